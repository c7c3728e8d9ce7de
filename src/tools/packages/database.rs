//! The package database, the order of package versions, and the records of earlier runs.

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{DatabaseError, HalfDone, Package};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles, Reader},
    model::pattern,
};

/// The installed packages.
#[async_trait]
pub trait Database: Sync {
    /// Whether the machine has a database of this package manager.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// Returns all packages in the database, or `None` if there is no database.
    ///
    /// # Errors
    /// If the database exists but cannot be read.
    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError>;

    /// The program that must be executed to read the database, or `None` if the database consists of readable files.
    fn database_program(&self) -> Option<&'static str> {
        None
    }

    /// The path of the database, for messages.
    fn database_path(&self) -> &'static str;

    /// Returns the program whose own records show that it was interrupted, or `None`.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError>;

    /// Returns the packages that an interruption left unconfigured, according to the database and the manager's records.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn half_done(
        &self,
        files: &dyn ReadFiles,
        database: &[Package],
    ) -> Result<HalfDone, FilesError> {
        let packages: Vec<Package> = (database.iter())
            .filter(|package| package.needs_repair())
            .cloned()
            .chain(self.with_failed_scripts(files, database)?)
            .collect();
        let interrupted = match packages.is_empty() {
            true => self.interrupted(files)?,
            false => None,
        };
        Ok(HalfDone {
            packages,
            interrupted,
        })
    }

    /// Returns the packages whose scripts failed, if only [`Database::failed_scripts_record`] shows them.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn with_failed_scripts(
        &self,
        _files: &dyn ReadFiles,
        _database: &[Package],
    ) -> Result<Vec<Package>, FilesError> {
        Ok(Vec::new())
    }

    /// Whether several versions of a package can be installed at the same time, such as kernels with rpm. The [`Package::id`]
    /// of such a package contains its version.
    fn has_several_versions(&self, _name: &str) -> bool {
        false
    }

    /// The file in which gpu-bootstrap records failed package scripts, one line of the manager's output for each. `None` if the
    /// manager's own database shows such packages.
    fn failed_scripts_record(&self) -> Option<Utf8PathBuf> {
        None
    }

    /// Returns the lines of [`Self::failed_scripts_record`] whose packages are installed. Failed scripts of removed packages
    /// no longer matter.
    fn of_installed(&self, record: &str, _installed: &[Package]) -> String {
        record.to_owned()
    }

    /// Returns the package name without its architecture, from a [`Package::id`].
    fn bare_name<'n>(&self, id: &'n str) -> &'n str;

    /// Compares two versions by the manager's rules.
    fn compare(&self, a: &str, b: &str) -> Ordering;

    /// Whether a version matches a pattern such as `580.*`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        pattern::matches(wanted, version)
    }

    /// Returns the [`Package::id`]s of packages that are installed only as dependencies.
    ///
    /// # Errors
    /// If the machine could not be read.
    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError>;

    /// Returns the paths below a directory that are owned by installed packages.
    ///
    /// # Errors
    /// If the machine could not be read.
    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError>;

    /// Returns the paths that are owned by these packages, given by [`Package::id`].
    ///
    /// # Errors
    /// If the machine could not be read.
    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError>;

    /// Queries the configuration files of packages, with their sizes in the package. `None` if the manager writes
    /// these files with fsync, so that a power loss cannot truncate them.
    fn configuration_of(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Self::configuration_of`]: files that are not empty in their package.
    fn parse_configuration(&self, _text: &str) -> Vec<Utf8PathBuf> {
        Vec::new()
    }

    /// The suffix that a removal adds to a modified configuration file, or `None` if it does not keep such files.
    fn removed_configuration(&self) -> Option<&'static str> {
        None
    }

    /// Returns the keys in the manager's own database, which it trusts for all repositories and may import when it downloads
    /// packages. `None` if it has no such keys.
    ///
    /// # Errors
    /// If the machine could not be read.
    async fn keys(&self, _host: Reader<'_>) -> Result<Option<BTreeSet<String>>, DatabaseError> {
        Ok(None)
    }

    /// Returns the command that removes keys from the manager's own database, see [`Self::keys`].
    fn forget_keys(&self, _keys: &[String]) -> Option<Cmd> {
        None
    }

    /// A file that the manager writes on every run. If the clock is before its modification time, the clock is wrong.
    fn last_run(&self) -> Option<&'static Utf8Path> {
        None
    }
}
