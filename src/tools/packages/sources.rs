//! The configuration of a package manager: the sources of a machine, the settings that exclude packages, and the files that
//! gpu-bootstrap adds.

use camino::Utf8PathBuf;

use super::{ArchiveError, Exclusion, ForcedOrigin, Further, SourceEntry, SourceIssue};
use crate::{
    host::{FilesError, ReadFiles},
    model::packages::{Pin, Repository},
};

/// The configured sources and preferences.
pub trait Sources {
    /// Returns the configured repositories of the machine.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError>;

    /// Returns errors in the configured sources, with their effect on the package manager.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn source_issues(&self, files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError>;

    /// Returns the additions that give the machine these components in these suites, or `None` if it already has all of them.
    /// `entries` are the sources of the machine and must contain the first suite.
    ///
    /// # Errors
    /// If the machine has no source for the first suite, or if that source does not specify exactly one key file.
    fn further(
        &self,
        entries: &[SourceEntry],
        suites: &[String],
        components: &[String],
    ) -> Result<Option<Further>, ArchiveError>;

    /// Returns the configured repositories whose packages replace newer ones, because of a preference of the administrator.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn forced(&self, _files: &dyn ReadFiles) -> Result<Vec<ForcedOrigin>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the lines of the manager's configuration that exclude packages from installation.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn exclusions(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError>;

    /// Returns the lines of the manager's configuration that set a proxy, as messages.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn proxies(&self, files: &dyn ReadFiles) -> Result<Vec<String>, FilesError>;

    /// Returns `None` if no preference of the machine blocks a repository or a package. Otherwise returns a hint for the case
    /// that a preference of ours would allow it again.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn forbids(&self, _files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        Ok(None)
    }

    /// Returns the exclusions that a version preference of ours overrides.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn overridden(&self, _files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the lines of the administrator's configuration that select other versions of these packages than a version
    /// preference of ours.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn contrary(
        &self,
        _files: &dyn ReadFiles,
        _pin: &Pin,
        _packages: &[&str],
    ) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// Whether a repository needs suites.
    fn needs_suites(&self) -> bool {
        false
    }

    /// Returns the keyring path of a repository (ours or one of the distribution), or `None` if the manager uses its own
    /// keyrings.
    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf>;

    /// Whether keyrings must be armored.
    fn wants_armour(&self) -> bool {
        false
    }

    /// Returns the path and the text of a repository's source file.
    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String);

    /// Returns the file that sets the priority of a repository, if the manager needs a separate file for it.
    fn priority(&self, _repository: &Repository) -> Option<(Utf8PathBuf, String)> {
        None
    }

    /// Returns the file of a version preference, or `None` if the manager has no such preferences.
    fn pin(&self, _pin: &Pin) -> Option<(Utf8PathBuf, String)> {
        None
    }
}
