//! `dnf` on top of `rpm`: AlmaLinux, Rocky, RHEL. This version of the program reads its database
//! and describes its repositories; it does not change packages with it.

mod database;
mod repository;

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use rpm_version::rpm_evr_compare;

use super::{Backend, Commands, DatabaseError, Package, Transactions};
use crate::{
    host::{FilesError, ReadFiles, Reader},
    model::{packages::Repository, pattern},
};

/// The possible paths of rpm's database, which depend on its version.
const DATABASES: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];

/// rpm locks its database; dnf has pid files whose paths depend on its version.
const LOCKS: [&str; 2] = ["/usr/lib/sysimage/rpm/.rpm.lock", "/var/lib/rpm/.rpm.lock"];

/// Architectures of foreign packages: those of 32 bits.
const FOREIGN: [&str; 4] = ["i386", "i486", "i586", "i686"];

/// The backend for dnf.
#[derive(Debug)]
pub struct Dnf;

#[async_trait]
impl Backend for Dnf {
    fn name(&self) -> &'static str {
        "dnf"
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }

    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for folder in DATABASES {
            if files.exists(Utf8Path::new(folder))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        if !self.is_used_on(host.files())? {
            return Ok(None);
        }
        let query = database::all();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok(Some(database::parse(&output.stdout)))
    }

    fn database_program(&self) -> Option<&'static str> {
        Some("rpm")
    }

    fn database_path(&self) -> &'static str {
        DATABASES[1]
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        let query = database::asked_for();
        let output = host.query(&query).await?.success(query.cmd())?;
        let asked_for = database::parse_asked_for(&output.stdout);
        let key = |package: &Package| (package.name.clone(), package.architecture.clone());
        Ok((packages.iter())
            .filter(|package| !asked_for.contains(&key(package)))
            .map(|package| package.id.clone())
            .collect())
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        folder: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let query = database::owned();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok((output.stdout.lines().map(Utf8Path::new))
            .filter(|path| path.starts_with(folder))
            .map(Utf8Path::to_owned)
            .collect())
    }

    /// rpm's order: the epoch comes first, and no epoch counts as 0.
    fn compare(&self, a: &str, b: &str) -> Ordering {
        rpm_evr_compare(a, b)
    }

    /// A pattern without an epoch matches any epoch: vendors write `580.95.05` for `3:580.95.05-1`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        let bare = match version.split_once(':') {
            Some((_, bare)) if !wanted.contains(':') => bare,
            _ => version,
        };
        pattern::matches(wanted, bare)
    }

    fn locks(&self) -> &'static [&'static str] {
        &LOCKS
    }

    fn has_lists(&self, _: &dyn ReadFiles) -> Result<bool, FilesError> {
        // Offers are not needed as long as there are no transactions.
        Ok(false)
    }

    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        repository::keyring_path(repository)
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        repository::source(repository)
    }

    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        match id.rsplit_once('.') {
            Some((name, architecture)) if FOREIGN.contains(&architecture) => name,
            _ => id,
        }
    }

    fn commands(&self) -> Commands {
        Commands {
            unhold: "dnf versionlock delete NAME",
            clean: "dnf clean packages",
            reinstall: "dnf reinstall NAME",
            upgrade_kernel: "dnf upgrade kernel",
            install_kernel: "dnf install kernel-KERNEL",
            credentials: "the options `username` and `password` of the repository's file, \
                          dnf.conf(5), with mode 0600",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::Dnf;
    use crate::tools::packages::Backend;

    #[test]
    fn rpm_order() {
        for (older, newer) in [
            ("580.95.05-1.el9", "3:570.1-1.el9"),
            ("3:580.9.1-1", "3:580.10.1-1"),
            ("1.0~rc1-1", "1.0-1"),
            ("1.0-1", "1.0^git1-1"),
        ] {
            assert_eq!(
                Dnf.compare(older, newer),
                Ordering::Less,
                "{older} < {newer}"
            );
        }
        assert_eq!(Dnf.compare("0:1.0-1", "1.0-1"), Ordering::Equal);
    }

    #[test]
    fn a_pattern_without_an_epoch_asks_for_any_epoch() {
        for (wanted, version, expected) in [
            ("580.*", "3:580.95.05-1.el9", true),
            ("580.*", "580.95.05-1.el9", true),
            ("3:580.*", "3:580.95.05-1.el9", true),
            ("2:580.*", "3:580.95.05-1.el9", false),
            ("3:580.*", "580.95.05-1.el9", false),
            ("570.*", "3:580.95.05-1.el9", false),
        ] {
            assert_eq!(Dnf.matches(wanted, version), expected, "{wanted} {version}");
        }
    }
}
