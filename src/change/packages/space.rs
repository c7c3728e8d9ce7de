//! Whether the filesystems have room for a transaction, by the sizes that the package manager's own
//! simulation names: a disk that is full in the middle leaves packages half installed.

use crate::{
    change::{Applier, Problem},
    host::files::Limit,
    model::text::bytes,
    tools::{
        mounts,
        packages::{Estimate, Fault, TransactionRequest},
    },
};

/// Where nearly all files of packages are: libraries, programs, and (as `/lib` is a link) modules.
const FILES: &str = "/usr";

/// Where kernels and their initramfs are.
const BOOT: &str = "/boot";

/// Where a package manager keeps its database, and downloads if it names no folder for them.
const STATE: &str = "/var";

impl Applier {
    /// What a transaction downloads and unpacks; `None` if the package manager cannot tell.
    pub(super) async fn estimate(
        &self,
        request: &TransactionRequest<'_>,
    ) -> Result<Option<Estimate>, Problem> {
        let Some(query) = self.backend.estimate(&self.settings(), request) else {
            return Ok(None);
        };
        let answer = self
            .ask("estimate the size of the package transaction", &query)
            .await?;
        Ok(Some(self.backend.parse_estimate(&answer)))
    }

    /// The remedies for the filesystems of packages that have no inodes for further files.
    pub(super) fn without_inodes(&self) -> Vec<String> {
        let downloads = self.backend.downloads().map_or(STATE, |path| path.as_str());
        let found = mounts::of(&*self.host.files, &[FILES, STATE, BOOT, downloads]);
        let found = found.unwrap_or_else(|second| {
            tracing::debug!(%second, "the filesystems of packages cannot be read");
            Vec::new()
        });
        (found.iter().filter(|one| one.room.lacks_inodes()))
            .map(|one| Limit::Inodes.remedy(&one.mount, &one.room))
            .collect()
    }

    /// Refuses a transaction that does not fit on the filesystems, before it changes anything. `simulated` is the answer to a
    /// simulation: a package manager that names sizes there is not asked once more.
    pub(super) async fn check_space(
        &self,
        request: &TransactionRequest<'_>,
        simulated: Option<&str>,
    ) -> Result<(), Problem> {
        let settings = self.settings();
        let simulation = self.backend.simulate(&settings, request);
        let is_told = self.backend.estimate(&settings, request) == Some(simulation);
        let estimate = match simulated.filter(|_| is_told) {
            Some(answer) => self.backend.parse_estimate(answer),
            None => match self.estimate(request).await? {
                Some(estimate) => estimate,
                None => return Ok(()),
            },
        };
        let downloads = self.backend.downloads().map_or(STATE, |path| path.as_str());
        let needs = [
            (FILES, estimate.unpacked_bytes),
            (downloads, estimate.download_bytes()),
        ];
        let mut short = Vec::new();
        for filesystem in mounts::of(&*self.host.files, &needs.map(|(path, _)| path))? {
            let needed: u64 = (needs.iter())
                .filter(|(path, _)| filesystem.paths.contains(path))
                .map(|(_, bytes)| bytes)
                .sum();
            if needed > filesystem.room.free {
                short.push(format!(
                    "`{}` has {} free, the packages need {}",
                    filesystem.mount,
                    bytes(filesystem.room.free),
                    bytes(needed)
                ));
            }
        }
        if short.is_empty() {
            return Ok(());
        }
        let clean = self.backend.commands().clean;
        Err(Problem::blocked(
            Fault::NoSpace.reason(),
            format!("find space for the packages: {}", short.join("; ")),
        )
        .advice(format!(
            "free some room (old kernels, package cache: `{clean}`) or enlarge the disk; no \
             package was changed"
        )))
    }
}
