//! Checks that a transaction fits on the filesystems, using the sizes that the package manager reports. A full disk during a
//! transaction leaves packages half-installed.

use crate::{
    change::{Applier, ChangeError},
    host::files::Limit,
    model::text::bytes,
    tools::{
        mounts,
        packages::{Estimate, FailureClass, TransactionRequest},
    },
};

/// Location of nearly all package files: libraries, programs, and modules (`/lib` is a symlink to `/usr/lib`).
const FILES: &str = "/usr";

/// Location of kernels and initramfs images.
const BOOT: &str = "/boot";

/// Location of the package database.
const STATE: &str = "/var";

impl Applier {
    /// Download and installed size of a transaction.
    pub(super) async fn estimate(
        &self,
        request: &TransactionRequest<'_>,
    ) -> Result<Estimate, ChangeError> {
        let query = self.backend.estimate(&self.settings(), request);
        let answer = self
            .ask("estimate the size of the package transaction", &query)
            .await?;
        Ok(self.backend.parse_estimate(&answer))
    }

    /// The remedies for package filesystems without free inodes.
    pub(super) fn without_inodes(&self) -> Vec<String> {
        let downloads = self.backend.downloads().as_str();
        let found = mounts::of(&*self.host.files, &[FILES, STATE, BOOT, downloads]);
        let found = found.unwrap_or_else(|second| {
            tracing::debug!(%second, "the package filesystems cannot be read");
            Vec::new()
        });
        (found.iter().filter(|one| one.free_space.lacks_inodes()))
            .map(|one| Limit::Inodes.remedy(&one.mount, &one.free_space))
            .collect()
    }

    /// Returns the sizes of a transaction. Rejects one that does not fit on the filesystems, before it changes anything. `simulated` is the output of a
    /// simulation. If it contains the sizes, the package manager is not queried again.
    pub(super) async fn check_space(
        &self,
        request: &TransactionRequest<'_>,
        simulated: Option<&str>,
    ) -> Result<Estimate, ChangeError> {
        let settings = self.settings();
        let simulation = self.backend.simulate(&settings, request);
        let has_sizes = self.backend.estimate(&settings, request) == simulation;
        let estimate = match simulated.filter(|_| has_sizes) {
            Some(answer) => self.backend.parse_estimate(answer),
            None => self.estimate(request).await?,
        };
        let downloads = self.backend.downloads().as_str();
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
            if needed > filesystem.free_space.free {
                short.push(format!(
                    "`{}` has {} free, but the packages need {}",
                    filesystem.mount,
                    bytes(filesystem.free_space.free),
                    bytes(needed)
                ));
            }
        }
        if short.is_empty() {
            return Ok(estimate);
        }
        let clean = self.backend.commands().clean;
        Err(ChangeError::blocked(
            FailureClass::NoSpace.reason(),
            format!("find space for the packages: {}", short.join("; ")),
        )
        .advice(format!(
            "free disk space (old kernels, package cache: `{clean}`) or enlarge the disk; no \
             package was changed"
        )))
    }
}
