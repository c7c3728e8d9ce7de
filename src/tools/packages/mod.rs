//! Package managers. Each has a folder of its own that holds its argument vectors and the pure
//! parsers of what it prints; [`Backend`] and [`Transactions`] are all that the rest of the program
//! knows of it. [`Manager::backend`] is the one place that tells them apart.

pub mod apt;
pub mod dnf;
mod fault;
pub mod locks;
mod types;

use std::{cmp::Ordering, collections::BTreeSet, fmt::Debug};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use fault::Fault;
pub use types::{
    Action, ArchiveError, Condition, Further, Mark, Offer, Package, Removals, Request, Settings,
    SourceEntry,
};

use crate::{
    host::{Cmd, ExecError, FilesError, Query, ReadFiles, Reader},
    model::{
        packages::{Pin, Repository},
        pattern,
    },
};

/// First line of every file that we write and people may read.
pub const HEADER: &str = "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n";

/// The name of a package manager, as a profile writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// Debian, Ubuntu.
    Apt,
    /// AlmaLinux, Rocky, RHEL.
    Dnf,
}

impl Manager {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Apt, Self::Dnf];

    /// What is known about this package manager.
    #[must_use]
    pub fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Apt => &apt::Apt,
            Self::Dnf => &dnf::Dnf,
        }
    }
}

/// Why the package database could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A file of it.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The query to the package manager's own tool.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// What is known about one package manager: its database, its order of versions, its files.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The program that a person types, for messages.
    fn name(&self) -> &'static str;

    /// How it changes packages; `None` while this version of the program cannot do that.
    fn transactions(&self) -> Option<&dyn Transactions>;

    /// Whether a machine has a database of this package manager.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// Every package that the database knows; `None` where there is no database.
    ///
    /// # Errors
    /// When the database is there and cannot be read.
    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError>;

    /// The program that must be run to read the database; `None` where files are read.
    fn database_program(&self) -> Option<&'static str> {
        None
    }

    /// Where the database is, for messages.
    fn database_path(&self) -> &'static str;

    /// Whether the manager's own records tell that it was interrupted, in words; `None` if not.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError>;

    /// [`Package::id`] of packages that are installed only because others need them.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError>;

    /// Paths below a folder that installed packages own.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn owned_below(
        &self,
        host: Reader<'_>,
        folder: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError>;

    /// The order of two versions, by the manager's own rules.
    fn compare(&self, a: &str, b: &str) -> Ordering;

    /// Whether a version is the one that a pattern such as `580.*` asks for.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        pattern::matches(wanted, version)
    }

    /// A file that the manager's last run has written: the clock cannot be before it.
    fn last_run(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// The folder of package files that were downloaded and not thrown away yet.
    fn downloads(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// The package and version of a file in [`Backend::downloads`].
    fn downloaded(&self, _file: &str) -> Option<(String, String)> {
        None
    }

    /// Files that are locked while packages or lists change, the outermost first.
    fn locks(&self) -> &'static [&'static str];

    /// Files of the package lists that are not whole and must be fetched again.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    fn torn_lists(&self, files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError>;

    /// Whether package lists are there, so that a package they do not name is not offered.
    ///
    /// # Errors
    /// When the folder cannot be read.
    fn has_lists(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// Repositories that the machine is configured with.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError>;

    /// What must be added so that the machine has the components in the suites, or `None` where it
    /// has them all. `entries` are the machine's own; the first suite must be among them.
    ///
    /// # Errors
    /// When the machine has no source for the first suite, or its key cannot be named again.
    fn further(
        &self,
        entries: &[SourceEntry],
        suites: &[String],
        components: &[String],
    ) -> Result<Option<Further>, ArchiveError>;

    /// Whether a repository without suites cannot be described.
    fn needs_suites(&self) -> bool;

    /// Where the key of a repository is kept: ours, or one that the distribution ships; `None`
    /// where the manager's own keyrings vouch for it.
    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf>;

    /// The file that makes the repository known, and its text.
    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String);

    /// The file that gives everything of a repository its priority, where it is one of its own.
    fn priority(&self, repository: &Repository) -> Option<(Utf8PathBuf, String)>;

    /// The file of a version preference; `None` where the manager has no such preferences.
    fn pin(&self, pin: &Pin) -> Option<(Utf8PathBuf, String)>;

    /// The file that makes the automatic updater leave packages alone, given by regular
    /// expressions; `None` where holds alone do.
    fn updater_exclusion(&self, patterns: &[String]) -> Option<(Utf8PathBuf, String)>;

    /// A shell pattern over package names in the language of [`Backend::updater_exclusion`].
    fn updater_pattern(&self, pattern: &str) -> Option<String>;

    /// The command that releases a hold, for hints.
    fn unhold_command(&self) -> &'static str;
}

/// How one package manager changes packages: commands, and what their output means.
pub trait Transactions: Debug + Send + Sync {
    /// Fetches the package lists; past every cache on the way for a mirror in mid-sync.
    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd;

    /// Asks which versions of packages are offered.
    fn offers(&self, names: &[&str]) -> Query;

    /// Reads the answer to [`Transactions::offers`].
    fn parse_offers(&self, text: &str) -> Vec<Offer>;

    /// Resolves a transaction and changes nothing.
    fn simulate(&self, settings: &Settings, request: &Request<'_>) -> Query;

    /// Reads the answer to [`Transactions::simulate`].
    fn parse_actions(&self, text: &str) -> Vec<Action>;

    /// Downloads what a transaction needs.
    fn download(&self, settings: &Settings, request: &Request<'_>) -> Cmd;

    /// Performs a transaction that was simulated and approved.
    fn perform(&self, settings: &Settings, request: &Request<'_>, removals: Removals) -> Cmd;

    /// Configures what is unpacked and not configured.
    fn configure(&self) -> Cmd;

    /// Holds packages, releases them, or marks them as installed for others' sake.
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd;

    /// A package at a version, as this manager takes it on its command line.
    fn at_version(&self, name: &str, version: &str) -> String;

    /// The command by which a person goes back to older versions, for hints.
    fn downgrade_command(&self, packages: &[String]) -> String;

    /// A command line for people, without the options that every call has.
    fn short_line(&self, cmd: &Cmd) -> String;

    /// The class of a failure, by what was printed.
    fn fault(&self, output: &str) -> Fault;

    /// What to do about a failure, where this manager has a command for it.
    fn hint(&self, fault: Fault) -> Option<&'static str>;

    /// The line that tells the failure: in a long output it is not among the last ones.
    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str>;

    /// The lines that say what stands in the way of a transaction that was refused.
    fn obstacle(&self, output: &str) -> Option<String>;

    /// Failures that a successful fetch of the lists reports as warnings.
    fn failed_sources(&self, output: &str) -> Option<String>;

    /// Whether a line of output tells that one stage of a transaction is done.
    fn is_stage(&self, line: &str) -> bool;
}
