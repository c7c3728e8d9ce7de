//! Package managers. Each has a directory with its argument vectors and the pure parsers of its output. All other code uses
//! only [`Backend`]. [`Manager::backend`] is the only place that distinguishes package managers.
//!
//! To add a package manager (`src/change/tests/tiny.rs` is the smallest working one):
//!
//! 1. Add a directory here with a type that implements [`Backend`], one file per subject. Its parsers are functions of `&str`,
//!    with a test that no text makes them panic (`reads_any_text`).
//! 2. In this file, add its `mod`, a variant of [`Manager`], its entry in `ALL`, and its arm in `backend()`. Add the names of
//!    its programs to `NAMES` in `tests/layers.rs`. Profiles can now use `manager = "NAME"`. `src/change/packages` is the same
//!    for all package managers.
//! 3. Add a variant of `Kind` in `src/change/tests/kinds.rs` (the output of its simulated program) and a module in the macro of
//!    `src/change/tests/mod.rs`. All transaction tests then also run with it.
//! 4. Add its simulated programs in `tests/machine`, and a profile (CONTRIBUTING.md).

pub(super) mod apt;
pub(super) mod dnf;
mod fault;
pub mod locks;
mod types;

use std::{cmp::Ordering, collections::BTreeSet, fmt::Debug};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use fault::Fault;
pub use types::{
    Action, ArchiveError, AvailablePackage, Commands, Contents, Estimate, Exclusion, Further,
    HalfDone, Impact, LowerBounds, Mark, NoHolds, Package, PackageCondition, Removals, Settings,
    SourceEntry, SourceFailure, SourceIssue, TransactionRequest, contradictions,
};

use crate::{
    host::{Cmd, ExecError, FilesError, Output, Query, ReadFiles, Reader},
    model::{
        packages::{Pin, Repository},
        pattern,
        text::without_lines,
    },
};

/// The first line of every human-readable file that gpu-bootstrap writes.
pub const HEADER: &str = "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n";

/// Directories of the package managers in which gpu-bootstrap writes files that start with [`HEADER`].
pub const WRITTEN_DIRECTORIES: [&str; 3] = [
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/etc/yum.repos.d",
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
    #[must_use]
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

/// A package manager: its database, version order, files, commands, and the parsers of their output.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The name of its main command, for messages.
    fn name(&self) -> &'static str;

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

    /// Returns errors in the configured sources, with their effect on the package manager.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn source_issues(&self, _files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the remedy for a package that is unpacked but not configured, or `None` if this manager does not configure
    /// packages.
    fn configures(&self) -> Option<&'static str> {
        None
    }

    /// Whether NVIDIA's older packages for this manager have the driver branch in their names.
    fn has_branch_in_names(&self) -> bool {
        false
    }

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
    fn interrupted(&self, _files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        Ok(None)
    }

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

    /// Returns the lines of [`Backend::failed_scripts_record`] whose packages are installed. Failed scripts of removed packages
    /// no longer matter.
    fn of_installed(&self, record: &str, _installed: &[Package]) -> String {
        record.to_owned()
    }

    /// Returns the package name without its architecture, from a [`Package::id`].
    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        id
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

    /// Returns the lines of the manager's configuration that exclude packages from installation.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn exclusions(&self, _files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the records of the administrator that make the manager select the packages of one origin, even if newer versions
    /// are installed.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn forced(&self, _files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the lines of the manager's configuration that set a proxy, as messages.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn proxies(&self, _files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        Ok(Vec::new())
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

    /// Returns the command that removes keys from the manager's own database, see [`Backend::keys`].
    fn forget_keys(&self, _keys: &[String]) -> Option<Cmd> {
        None
    }

    /// Compares two versions by the manager's rules.
    fn compare(&self, a: &str, b: &str) -> Ordering;

    /// Whether a version matches a pattern such as `580.*`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        pattern::matches(wanted, version)
    }

    /// A file that the manager writes on every run. If the clock is before its modification time, the clock is wrong.
    fn last_run(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// The directory of downloaded package files.
    fn downloads(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// Returns the package and version of a file in [`Backend::downloads`].
    fn downloaded(&self, _file: &str) -> Option<(String, String)> {
        None
    }

    /// Files that are locked while packages or lists change. The first one is the lock of a transaction. A file whose name ends
    /// with `.pid` is not locked but contains the process ID of the running package manager.
    fn locks(&self) -> &'static [&'static str];

    /// Returns the truncated files of the package lists, which must be downloaded again.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn truncated_lists(&self, _files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Whether package lists exist, so that a package that is not in them is unavailable.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn has_lists(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// Returns the configured repositories of the machine.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn entries(&self, _files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the additions that give the machine these components in these suites, or `None` if it already has all of them.
    /// `entries` are the sources of the machine and must contain the first suite.
    ///
    /// # Errors
    /// If the machine has no source for the first suite, or if that source does not specify exactly one key file.
    fn further(
        &self,
        _entries: &[SourceEntry],
        _suites: &[String],
        _components: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
        Ok(None)
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

    /// The manager's module streams, or `None` if it has none.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// The file that lists holds, or `None` if the manager marks packages with a command, [`Backend::mark`].
    fn hold_list(&self) -> Option<&dyn HoldList> {
        None
    }

    /// The automatic updater that has a separate exclusion list, or `None` if holds are sufficient.
    fn updater(&self) -> Option<&dyn Updater> {
        None
    }

    /// Commands and paths for hints.
    fn commands(&self) -> Commands;

    /// Downloads the package lists. `past_caches` bypasses proxy caches, for a mirror that is being synchronized.
    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd;

    /// Queries the available versions of packages.
    fn offers(&self, names: &[&str]) -> Query;

    /// Same as [`Backend::offers`], but for all module streams.
    fn offers_of_all_streams(&self, names: &[&str]) -> Query {
        self.offers(names)
    }

    /// Queries the names of all packages in the lists with this prefix, one per line. `None` if this manager has no fast query
    /// for it.
    fn names(&self, _prefix: &str) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::offers`].
    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage>;

    /// Queries the files of every available version of these packages, or `None` if this manager's lists do not contain them.
    fn contents(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::contents`].
    fn parse_contents(&self, _text: &str) -> Vec<Contents> {
        Vec::new()
    }

    /// Queries the dependency versions that the candidates of these packages accept, or `None` if this manager is not queried
    /// for them.
    fn lower_bounds(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::lower_bounds`].
    fn parse_lower_bounds(&self, _text: &str) -> Vec<LowerBounds> {
        Vec::new()
    }

    /// Resolves a transaction without changing anything.
    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query;

    /// Whether a simulation or an estimate printed a result. Some managers then still exit with an error status.
    fn has_answered(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Parses the output of [`Backend::simulate`]. `installed` is the database.
    fn parse_actions(&self, text: &str, installed: &[Package]) -> Vec<Action>;

    /// Simulates an upgrade of the complete system with the existing lists. [`Backend::parse_actions`] parses the output.
    /// `None` if this is not supported.
    fn upgrade(&self) -> Option<Query> {
        None
    }

    /// Returns the reason if the output of [`Backend::upgrade`] does not cover all repositories, otherwise `None`.
    fn not_queried(&self, _output: &Output) -> Option<String> {
        None
    }

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

    /// Whether simulations can run in parallel. dnf simulations cannot, because each of them waits for the lock that protects
    /// the lists (`fill_sack` of dnf/base.py).
    fn simulates_side_by_side(&self) -> bool {
        false
    }

    /// Queries the download and installed size of a transaction, possibly with [`Backend::simulate`]. `None` if this is not
    /// supported.
    fn estimate(&self, _settings: &Settings, _request: &TransactionRequest<'_>) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::estimate`].
    fn parse_estimate(&self, _text: &str) -> Estimate {
        Estimate::default()
    }

    /// Downloads the packages of a transaction.
    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd;

    /// Performs a simulated and approved transaction.
    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        removals: Removals,
    ) -> Cmd;

    /// Whether [`Backend::perform`] uses only packages that [`Backend::download`] has downloaded.
    fn performs_from_downloads(&self) -> bool {
        false
    }

    /// Whether package scripts skip compilation while the file [`NO_AUTOINSTALL`](crate::dkms::NO_AUTOINSTALL) exists.
    fn scripts_may_leave_modules(&self) -> bool {
        false
    }

    /// Whether a package change command has succeeded.
    fn has_succeeded(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Returns the package scripts that failed although the command succeeded.
    fn failed_scripts(&self, _output: &str) -> Option<String> {
        None
    }

    /// Returns the cache files that the manager generates from its lists and that could not be read, according to the output of
    /// a refresh. A power loss truncates them, and the manager does not regenerate existing files.
    ///
    /// # Errors
    /// If an existing directory cannot be read.
    fn torn_caches(
        &self,
        _files: &dyn ReadFiles,
        _output: &str,
    ) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the commands that stop processes which the manager leaves running.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn follow_up(&self, _files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
        Ok(Vec::new())
    }

    /// Configures packages that are unpacked but not configured. `None` if the manager has no such state.
    fn configure(&self) -> Option<Cmd>;

    /// Queries the packages that an interrupted transaction had started to install. `None` if the package database itself shows
    /// them.
    fn unfinished(&self) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::unfinished`]: the packages to reinstall, with versions, in the format of this manager's
    /// command line.
    fn parse_unfinished(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Parses the output of [`Backend::unfinished`]: the packages that are not installed yet, in the format of
    /// [`Backend::parse_unfinished`].
    fn parse_missing(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Returns the command that changes an installed package to an available version, for a hint if a package must be
    /// reinstalled but its version is no longer available. `None` if this manager completes an interrupted installation without
    /// reinstalling packages.
    fn to_offered_command(&self, _package: &Package) -> Option<String> {
        None
    }

    /// Queries the configuration files of packages, with their sizes in the package. `None` if the manager writes
    /// these files with fsync, so that a power loss cannot truncate them.
    fn configuration_of(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Backend::configuration_of`]: files that are not empty in their package.
    fn parse_configuration(&self, _text: &str) -> Vec<Utf8PathBuf> {
        Vec::new()
    }

    /// Holds packages, releases them, or marks them as automatically installed.
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd;

    /// Formats a package with a version as a command line argument.
    fn at_version(&self, name: &str, version: &str) -> String;

    /// Returns the command that downgrades packages, for hints.
    fn downgrade_command(&self, packages: &[String]) -> String;

    /// Returns a human-readable command line, without the options that every command has.
    fn short_line(&self, cmd: &Cmd) -> String {
        cmd.line()
    }

    /// Returns the failure class of an output.
    fn fault(&self, output: &str) -> Fault;

    /// Returns the remedy of a failure, if its message is more specific than its class.
    fn remedy(&self, _output: &str) -> Option<&'static str> {
        None
    }

    /// Returns the line that shows the failure. In a long output, this is often not one of the last lines.
    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str>;

    /// Returns the first reason in the output of a failed command, without the manager's prefix.
    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str> {
        output.lines().last()
    }

    /// Returns the lines that explain why a transaction cannot be resolved or must not be performed.
    fn preflight_issue(&self, _output: &str) -> Option<String> {
        None
    }

    /// Returns failures that a successful download of the lists reports as warnings.
    fn failed_sources(&self, _output: &str) -> Option<String> {
        None
    }

    /// Returns the sources whose lists could not be downloaded. `None` if no source or something else failed.
    fn failures_by_source(&self, _output: &str) -> Option<Vec<SourceFailure>> {
        None
    }

    /// Whether an output line reports a stage of a transaction, such as a download or the installation of one package.
    fn is_stage(&self, _line: &str) -> bool {
        false
    }

    /// Returns the total download size, if an output line contains it.
    fn download_size(&self, _line: &str) -> Option<u64> {
        None
    }

    /// Returns the size of the file, if an output line reports its download.
    fn download_part(&self, _line: &str) -> Option<u64> {
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
