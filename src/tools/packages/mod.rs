//! Package managers. Each has a folder of its own with its argument vectors and the pure parsers of
//! its output; the rest of the program uses only [`Backend`].
//! [`Manager::backend`] is the one place that distinguishes package managers.
//!
//! To add one (`src/change/tests/tiny.rs` is the smallest that works):
//!
//! 1. A folder here with a type that implements [`Backend`], one file per subject. Its parsers are
//!    functions of `&str`, with a test that no text makes them panic (`reads_any_text`).
//! 2. In this file its `mod`, a variant of [`Manager`], its place in `ALL`, its arm in `backend()`. In
//!    `tests/layers.rs` the names of its programs in `NAMES`. From here on a profile may say
//!    `manager = "NAME"`; `src/change/packages` is the same for all.
//! 3. A variant of `Kind` in `src/change/tests/kinds.rs` (how its simulated program prints), and a module
//!    in the macro of `src/change/tests/mod.rs`: then all tests of transactions run against it, too.
//! 4. Its simulated programs in `tests/machine`, and a profile (CONTRIBUTING.md).

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
    Action, ArchiveError, Commands, Contents, Estimate, Exclusion, Further, HalfDone, Impact,
    LowerBounds, Mark, NoHolds, Package, PackageCondition, PackageOffer, Removals, Settings,
    SourceEntry, SourceFailure, SourceFlaw, TransactionRequest, contradictions,
};

use crate::{
    host::{Cmd, ExecError, FilesError, Output, Query, ReadFiles, Reader},
    model::{
        packages::{Pin, Repository},
        pattern,
        text::without_lines,
    },
};

/// The first line of every file that this program writes and people may read.
pub const HEADER: &str = "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n";

/// Folders of the package managers in which this program writes files that begin with [`HEADER`].
pub const WRITTEN_FOLDERS: [&str; 3] = [
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/etc/yum.repos.d",
];

/// The name of a package manager, as a profile writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

    /// The backend of this package manager.
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
    /// One of its files could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The query of the package manager's own tool failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// One package manager: its database, its order of versions, its files, its commands and the parsers of their output.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// The command that users know it by, for messages.
    fn name(&self) -> &'static str;

    /// Whether a machine has a database of this package manager.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// Every package in the database; `None` if there is no database.
    ///
    /// # Errors
    /// When the database exists and cannot be read.
    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError>;

    /// Returns what keeps it from reading its sources at all, so that nothing can be installed.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn source_flaws(&self, _files: &dyn ReadFiles) -> Result<Vec<SourceFlaw>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the remedy for a package that is unpacked and not configured; `None` if this manager does not
    /// configure packages.
    fn configures(&self) -> Option<&'static str> {
        None
    }

    /// The program that must be run to read the database; `None` if files are read.
    fn database_program(&self) -> Option<&'static str> {
        None
    }

    /// The path of the database, for messages.
    fn database_path(&self) -> &'static str;

    /// The program whose own records show that it was interrupted; `None` if there is none.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn interrupted(&self, _files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        Ok(None)
    }

    /// Returns what an interruption left half done, by the database and the records of the manager.
    ///
    /// # Errors
    /// When an existing file cannot be read.
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

    /// Whether several versions of a package can be installed at once, such as kernels with rpm. The [`Package::id`]
    /// of such a package contains its version.
    fn has_several_versions(&self, _name: &str) -> bool {
        false
    }

    /// The file in which this program records failed scripts of packages, one line of the manager's output for each;
    /// `None` if the manager's own database shows such packages.
    fn failed_scripts_record(&self) -> Option<Utf8PathBuf> {
        None
    }

    /// Returns the lines of [`Backend::failed_scripts_record`] whose packages are installed. The script of a package
    /// that was removed since does not matter any more.
    fn of_installed(&self, record: &str, _installed: &[Package]) -> String {
        record.to_owned()
    }

    /// The name of a package without its architecture, by [`Package::id`].
    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        id
    }

    /// [`Package::id`] of packages that are installed only because others need them.
    ///
    /// # Errors
    /// When the machine could not be read.
    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError>;

    /// Paths below a folder that installed packages own.
    ///
    /// # Errors
    /// When the machine could not be read.
    async fn owned_below(
        &self,
        host: Reader<'_>,
        folder: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError>;

    /// The paths that packages own, given by [`Package::id`].
    ///
    /// # Errors
    /// When the machine could not be read.
    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError>;

    /// The lines of the manager's configuration by which somebody keeps packages from being installed.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn exclusions(&self, _files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        Ok(Vec::new())
    }

    /// The lines of the manager's configuration that name a proxy, as sentences.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn proxies(&self, _files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        Ok(Vec::new())
    }

    /// The suffix with which a removal keeps a configuration file that somebody has changed; `None` if it keeps
    /// none.
    fn removed_configuration(&self) -> Option<&'static str> {
        None
    }

    /// The keys that the manager keeps in its own database and trusts for all repositories, and that
    /// it may import when it downloads packages; `None` if it has no such keys.
    ///
    /// # Errors
    /// When the machine could not be read.
    async fn keys(&self, _host: Reader<'_>) -> Result<Option<BTreeSet<String>>, DatabaseError> {
        Ok(None)
    }

    /// Makes the manager forget such keys.
    fn forget_keys(&self, _keys: &[String]) -> Option<Cmd> {
        None
    }

    /// The order of two versions, by the manager's own rules.
    fn compare(&self, a: &str, b: &str) -> Ordering;

    /// Whether a version matches a pattern such as `580.*`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        pattern::matches(wanted, version)
    }

    /// A file that the manager writes in each run. If the clock shows an earlier time, it is wrong.
    fn last_run(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// The folder of downloaded package files.
    fn downloads(&self) -> Option<&'static Utf8Path> {
        None
    }

    /// The package and version of a file in [`Backend::downloads`].
    fn downloaded(&self, _file: &str) -> Option<(String, String)> {
        None
    }

    /// Files that are locked while packages or lists change, the outermost first. A file whose name ends with `.pid`
    /// is not locked: it contains the number of the process that works.
    fn locks(&self) -> &'static [&'static str];

    /// Damaged files of the package lists, which must be downloaded again.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn torn_lists(&self, _files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Whether package lists exist, so that a package that is not in them is not offered.
    ///
    /// # Errors
    /// When the folder cannot be read.
    fn has_lists(&self, files: &dyn ReadFiles) -> Result<bool, FilesError>;

    /// The repositories that are configured on the machine.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn entries(&self, _files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns what must be added so that the machine has these components in these suites; `None` if it has them
    /// all. `entries` are those of the machine; the first suite must be among them.
    ///
    /// # Errors
    /// When the machine has no source for the first suite, or that source names no single key file.
    fn further(
        &self,
        _entries: &[SourceEntry],
        _suites: &[String],
        _components: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
        Ok(None)
    }

    /// Whether a repository must have suites.
    fn needs_suites(&self) -> bool {
        false
    }

    /// The path of the keyring of a repository, ours or one of the distribution; `None` if the
    /// manager's own keyrings are used.
    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf>;

    /// Whether keyrings must be armoured.
    fn wants_armour(&self) -> bool {
        false
    }

    /// The source file of a repository: path and text.
    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String);

    /// The file that sets the priority of a repository, if that needs a file of its own.
    fn priority(&self, _repository: &Repository) -> Option<(Utf8PathBuf, String)> {
        None
    }

    /// The file of a version preference; `None` if the manager has no such preferences.
    fn pin(&self, _pin: &Pin) -> Option<(Utf8PathBuf, String)> {
        None
    }

    /// The manager's module streams; `None` if it has none.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// The file in which holds are listed; `None` if the manager marks packages by a command,
    /// [`Backend::mark`].
    fn hold_list(&self) -> Option<&dyn HoldList> {
        None
    }

    /// The automatic updater; `None` if it obeys holds.
    fn updater(&self) -> Option<&dyn Updater> {
        None
    }

    /// Commands and places for hints.
    fn commands(&self) -> Commands;

    /// Downloads the package lists; `past_caches` bypasses proxy caches, for a mirror in mid-sync.
    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd;

    /// Queries the versions of packages that are offered.
    fn offers(&self, names: &[&str]) -> Query;

    /// As [`Backend::offers`], whichever module stream the packages are in.
    fn offers_of_all_streams(&self, names: &[&str]) -> Query {
        self.offers(names)
    }

    /// Queries the names of all packages in the lists that begin with the prefix, one per line; `None` if this
    /// manager has no quick way.
    fn names(&self, _prefix: &str) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::offers`].
    fn parse_offers(&self, text: &str) -> Vec<PackageOffer>;

    /// Queries the files of every version of these packages that is offered; `None` if this manager's
    /// lists do not contain them.
    fn contents(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::contents`].
    fn parse_contents(&self, _text: &str) -> Vec<Contents> {
        Vec::new()
    }

    /// Queries which versions of others the candidates of these packages accept; `None` if this manager
    /// is not asked.
    fn lower_bounds(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::lower_bounds`].
    fn parse_lower_bounds(&self, _text: &str) -> Vec<LowerBounds> {
        Vec::new()
    }

    /// Resolves a transaction and changes nothing.
    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query;

    /// Whether a command that simulates or estimates a transaction has given an answer, whatever its status says.
    fn has_answered(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Parses the answer to [`Backend::simulate`]; `installed` is the database.
    fn parse_actions(&self, text: &str, installed: &[Package]) -> Vec<Action>;

    /// Asks what an upgrade of the whole system would do, by the present lists; the answer is for
    /// [`Backend::parse_actions`]. `None` if that cannot be asked.
    fn upgrade(&self) -> Option<Query> {
        None
    }

    /// Returns why the answer to [`Backend::upgrade`] leaves repositories out; `None` if it covers all.
    fn unasked(&self, _output: &Output) -> Option<String> {
        None
    }

    /// Returns `None` if no preference of the machine forbids a repository or a package; otherwise a hint for the
    /// case that a preference of ours would allow it again.
    ///
    /// # Errors
    /// When an existing file cannot be read.
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

    /// Whether simulations can run at the same time. Those of dnf wait for the lock under which each reads its lists (`fill_sack` of
    /// dnf/base.py).
    fn simulates_side_by_side(&self) -> bool {
        false
    }

    /// Asks what a transaction would download and unpack, perhaps by [`Backend::simulate`]; `None` if that cannot be asked.
    fn estimate(&self, _settings: &Settings, _request: &TransactionRequest<'_>) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::estimate`].
    fn parse_estimate(&self, _text: &str) -> Estimate {
        Estimate::default()
    }

    /// Downloads what a transaction needs.
    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd;

    /// Performs a transaction that was simulated and approved.
    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        removals: Removals,
    ) -> Cmd;

    /// Whether [`Backend::perform`] uses only what [`Backend::download`] has downloaded.
    fn performs_from_downloads(&self) -> bool {
        false
    }

    /// Whether the scripts of packages compile nothing while the file
    /// [`NO_AUTOINSTALL`](crate::dkms::NO_AUTOINSTALL) exists.
    fn scripts_may_leave_modules(&self) -> bool {
        false
    }

    /// Whether a command that changes packages has succeeded.
    fn has_succeeded(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Returns the scripts of packages that failed although the command succeeded.
    fn failed_scripts(&self, _output: &str) -> Option<String> {
        None
    }

    /// Returns the files that the manager makes from its lists and could not read, by the output of a refresh. A
    /// power cut leaves them incomplete, and the manager does not make them again while they exist.
    ///
    /// # Errors
    /// When an existing folder cannot be read.
    fn torn_caches(
        &self,
        _files: &dyn ReadFiles,
        _output: &str,
    ) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the commands that end what the manager leaves running after its work.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn afterwards(&self, _files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
        Ok(Vec::new())
    }

    /// Configures packages that are unpacked but not configured; `None` if the manager has no such state.
    fn configure(&self) -> Option<Cmd>;

    /// Queries what an interrupted transaction had begun to install; `None` if the database of
    /// packages itself shows it.
    fn unfinished(&self) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::unfinished`]: packages with their versions, as arguments
    /// of this manager's command line.
    fn parse_unfinished(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Parses the answer to [`Backend::unfinished`]: packages that are not installed yet, in the same form.
    fn parse_missing(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Returns the command that gives an installed package a version that is offered, for hints; `None` if this
    /// manager never has to install a version once more.
    fn to_offered_command(&self, _package: &Package) -> Option<String> {
        None
    }

    /// Queries the configuration files of packages with their sizes in the package; `None` if the manager syncs
    /// these files.
    fn configuration_of(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the answer to [`Backend::configuration_of`]: files that are not empty in their package.
    fn parse_configuration(&self, _text: &str) -> Vec<Utf8PathBuf> {
        Vec::new()
    }

    /// Holds packages, releases them, or marks them as automatically installed.
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd;

    /// A package with a version, as an argument of this manager's command line.
    fn at_version(&self, name: &str, version: &str) -> String;

    /// The command that downgrades packages, for hints.
    fn downgrade_command(&self, packages: &[String]) -> String;

    /// A command line for people, without the options that every command has.
    fn short_line(&self, cmd: &Cmd) -> String {
        cmd.line()
    }

    /// The class of a failure, by its output.
    fn fault(&self, output: &str) -> Fault;

    /// Returns what the user can do about a failure, if its words tell more than its class.
    fn remedy(&self, _output: &str) -> Option<&'static str> {
        None
    }

    /// Returns the line that shows the failure. In a long output it is not among the last lines.
    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str>;

    /// The first reason that a failed command gives, without the manager's own prefix.
    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str> {
        output.lines().last()
    }

    /// The lines that explain why a transaction was refused.
    fn obstacle(&self, _output: &str) -> Option<String> {
        None
    }

    /// Failures that a successful download of the lists reports as warnings.
    fn failed_sources(&self, _output: &str) -> Option<String> {
        None
    }

    /// The sources that made a download of the lists fail; `None` if there was another reason, too.
    fn failures_by_source(&self, _output: &str) -> Option<Vec<SourceFailure>> {
        None
    }

    /// Whether a line of output shows that one stage of a transaction is done.
    fn is_stage(&self, _line: &str) -> bool {
        false
    }

    /// How many bytes will be downloaded, if a line of output says so.
    fn download_size(&self, _line: &str) -> Option<u64> {
        None
    }

    /// The size of the file whose download a line of output reports.
    fn download_part(&self, _line: &str) -> Option<u64> {
        None
    }
}

/// An automatic updater that does not obey holds.
pub trait Updater: Debug + Send + Sync {
    /// The file that excludes packages, given by the patterns of [`Updater::pattern`].
    fn exclusion(&self, patterns: &[String]) -> (Utf8PathBuf, String);

    /// A shell pattern over package names in the updater's own language.
    fn pattern(&self, shell: &str) -> String;
}

/// Module streams: of the packages of a module, only those of the enabled stream can be installed.
pub trait Streams: Debug + Send + Sync {
    /// The enabled stream of a module.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn enabled(&self, files: &dyn ReadFiles, module: &str) -> Result<Option<String>, FilesError>;

    /// The file that remembers the stream of a module.
    fn path(&self, module: &str) -> Utf8PathBuf;

    /// Enables a stream; another one must have been reset before.
    fn enable(&self, settings: &Settings, module: &str, stream: &str) -> Cmd;

    /// Forgets the stream of a module.
    fn reset(&self, settings: &Settings, module: &str) -> Cmd;
}

/// A file in which holds are listed.
pub trait HoldList: Debug + Send + Sync {
    /// Its path.
    fn path(&self) -> &'static Utf8Path;

    /// The package that makes the list have an effect.
    fn package(&self) -> &'static str;

    /// What keeps the list from having an effect, if anything.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn needs(&self, files: &dyn ReadFiles) -> Result<Option<NoHolds>, FilesError>;

    /// Returns `text` with holds on the installed versions of `packages`. For names in `ours`, holds of this program
    /// on other versions are taken out.
    fn with(&self, text: &str, packages: &[&Package], ours: &BTreeSet<String>) -> String;

    /// Returns the entries of the list that hold a package, also those that others have written.
    fn holding<'t>(&self, text: &'t str, package: &Package) -> Vec<&'t str>;

    /// The command that takes exactly these entries out of the list, for hints.
    fn release(&self, entries: &BTreeSet<&str>) -> String;

    /// Returns the entries that hold the installed versions of these packages.
    fn entries(&self, packages: &[&Package]) -> Vec<String>;

    /// Returns the list without these entries; all others stay.
    fn without(&self, text: &str, entries: &[String]) -> String {
        without_lines(text, |line| entries.iter().any(|entry| line == entry))
    }
}
