//! Package managers. Each has a directory with its argument vectors and the pure parsers of its output. All other code uses
//! only [`Backend`]. [`Manager::backend`] is the only place that distinguishes package managers.
//!
//! To add a package manager:
//!
//! 1. Add a directory here with a type that implements [`Backend`] in `mod.rs`, and each topic in a separate file: [`Database`]
//!    in `database.rs`, [`Sources`] in `sources.rs`, [`Offers`] in `offers.rs`, [`Transactions`] in `commands.rs`, and
//!    [`Messages`] in `failures.rs`. Only the methods without a default are required. The parsers are functions of `&str`, with a
//!    test that no text makes them panic (`reads_any_text`).
//! 2. In this file, add its `mod`, a variant of [`Manager`], its entry in `ALL`, and its arm in `backend()`. Add the names of
//!    its programs to `NAMES` in `tests/layers.rs`. Profiles can now use `manager = "NAME"`. `src/change/packages` is the same
//!    for all package managers, and so is the test of their arguments in `src/tools/tests.rs`.
//! 3. Add its commands and output to the archive in `src/change/tests` (as in `dnf.rs` there) and a module in the macro of
//!    `src/change/tests/mod.rs`. All transaction tests then also run with it.
//! 4. Add its simulated programs in `tests/machine`, and a profile (CONTRIBUTING.md).

mod apt;
mod builder;
mod database;
pub(super) mod dnf;
mod failure_class;
pub mod locks;
mod messages;
pub mod mirrors;
mod offers;
mod sources;
mod transactions;
mod types;

use std::{collections::BTreeSet, fmt::Debug};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use builder::{Builder, ModulePackage, PackageFile, Relations};
pub use database::Database;
pub use failure_class::FailureClass;
pub use messages::Messages;
pub use offers::Offers;
pub use sources::Sources;
pub use transactions::Transactions;
pub use types::{
    Action, ArchiveError, AvailablePackage, Commands, Contents, Estimate, Exclusion, ForcedOrigin,
    Further, HalfDone, Impact, LowerBounds, Mark, NoHolds, Package, PackageCondition,
    PendingTriggers, Removals, Settings, SourceEntry, SourceFailure, SourceIssue,
    TransactionRequest, contradictions,
};

use crate::{
    host::{Cmd, ExecError, FilesError, ReadFiles},
    model::text::without_lines,
};

/// The first line of every human-readable file that gpu-bootstrap writes.
pub const HEADER: &str = "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n";

/// Directories of the package managers in which gpu-bootstrap writes files that start with [`HEADER`].
pub const WRITTEN_DIRECTORIES: [&str; 3] = [
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/etc/yum.repos.d",
];

/// The programs of all package managers.
pub const PROGRAMS: [&str; 8] = [
    "apt-cache",
    "apt-get",
    "apt-helper",
    "apt-mark",
    "dnf",
    "dpkg",
    "gpgconf",
    "rpm",
];

/// The name of a package manager, as used in profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// Debian and Ubuntu.
    Apt,
    /// RHEL and related distributions, and Amazon Linux 2023.
    Dnf,
}

impl Manager {
    pub const ALL: [Self; 2] = [Self::Apt, Self::Dnf];

    /// The backend of this package manager.
    pub fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Apt => &apt::Apt,
            Self::Dnf => &dnf::Dnf,
        }
    }
}

/// The package database could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A database file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The package manager's query tool failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// A package manager. Its methods are in a trait for each topic.
pub trait Backend:
    Database + Sources + Offers + Transactions + Messages + Debug + Send + Sync
{
    /// The name of its main command, for messages.
    fn name(&self) -> &'static str;

    /// Whether NVIDIA's older packages for this manager have the driver branch in their names.
    fn has_branch_in_names(&self) -> bool {
        false
    }

    /// The manager's module streams, or `None` if it has none.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// The file that lists holds, or `None` if the manager marks packages with a command, [`Transactions::mark`].
    fn hold_list(&self) -> Option<&dyn HoldList> {
        None
    }

    /// Partial copies of its repositories, or `None` if they are not supported.
    fn mirrors(&self) -> Option<&dyn mirrors::Mirrors> {
        None
    }

    /// Builds packages, or `None` if this is not supported.
    fn builder(&self) -> Option<&dyn Builder> {
        None
    }

    /// The automatic updater that has a separate exclusion list, or `None` if holds are sufficient.
    fn updater(&self) -> Option<&dyn Updater> {
        None
    }
}

/// An automatic updater with a separate exclusion list. Holds are set on installed packages. The list also excludes matching
/// packages that are installed later.
pub trait Updater: Debug + Send + Sync {
    /// Returns the file that excludes packages. The patterns are created by [`Updater::pattern`].
    fn exclusion(&self, patterns: &[String]) -> (Utf8PathBuf, String);

    /// Converts a shell pattern for package names to the syntax of the updater.
    fn pattern(&self, shell: &str) -> String;
}

/// Module streams. Only the packages of the enabled stream of a module can be installed.
pub trait Streams: Debug + Send + Sync {
    /// Returns the enabled stream of a module.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn enabled(&self, files: &dyn ReadFiles, module: &str) -> Result<Option<String>, FilesError>;

    /// Returns the file that stores the stream of a module.
    fn path(&self, module: &str) -> Utf8PathBuf;

    /// Enables a stream. If another one is enabled, it must be reset first.
    fn enable(&self, settings: &Settings, module: &str, stream: &str) -> Cmd;

    /// Resets the stream of a module.
    fn reset(&self, settings: &Settings, module: &str) -> Cmd;

    /// The command that replaces a driver stream with precompiled modules by the one that compiles them with DKMS, or `None` if
    /// the stream has no precompiled modules. `os` is the ID of the system.
    fn compiled(&self, os: &str, module: &str, stream: &str) -> Option<String>;
}

/// A file that lists holds.
pub trait HoldList: Debug + Send + Sync {
    fn path(&self) -> &'static Utf8Path;

    /// The package that the list requires to have an effect.
    fn package(&self) -> &'static str;

    /// Returns the reason if the list has no effect.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn needs(&self, files: &dyn ReadFiles) -> Result<Option<NoHolds>, FilesError>;

    /// Returns `text` with holds on the installed versions of `packages`. `ours` are the [`Package::id`]s that gpu-bootstrap
    /// manages: for these packages, except kernels, holds on other versions are removed.
    fn with(&self, text: &str, packages: &[&Package], ours: &BTreeSet<String>) -> String;

    /// Returns the entries of the list that hold a package, including entries written by other programs.
    fn holding<'t>(&self, text: &'t str, package: &Package) -> Vec<&'t str>;

    /// Returns the command that removes exactly these entries from the list, for hints.
    fn release(&self, entries: &BTreeSet<&str>) -> String;

    /// Returns the entries that hold the installed versions of these packages.
    fn entries(&self, packages: &[&Package]) -> Vec<String>;

    /// Returns the list without these entries. All other entries are kept.
    fn without(&self, text: &str, entries: &[String]) -> String {
        without_lines(text, |line| entries.iter().any(|entry| line == entry))
    }
}
