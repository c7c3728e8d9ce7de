//! The types that all package managers share: packages and their condition, offers, actions.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FilesError, ReadFiles},
    model::{
        pattern,
        secret::{Secret, without_logins},
        version::{Branch, DriverVersion},
    },
};

/// The condition of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageCondition {
    /// In the database, but not installed.
    Absent,
    /// Removed; only its configuration is left.
    Configuration,
    /// Its installation was interrupted before all files were unpacked.
    HalfInstalled,
    /// Unpacked, but not configured.
    Unpacked,
    /// Installed and configured.
    Installed,
}

/// One package of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, without the architecture.
    pub name: String,
    /// The name that the package manager accepts: with the architecture if that is a foreign one.
    pub id: String,
    /// `amd64`, `x86_64`, `noarch`, …; empty if the database does not contain it.
    pub architecture: String,
    /// Its version, including the epoch; empty for a removed package.
    pub version: String,
    pub condition: PackageCondition,
    /// Whether it is held.
    pub held: bool,
    /// Its maintainer, as `Name <mail>`.
    pub packager: Option<String>,
    /// Its distributor, if the database has a field for it.
    pub vendor: Option<String>,
    /// The size of its files in bytes, as its maintainer estimated it; 0 if it is unknown.
    pub installed_bytes: u64,
}

impl Package {
    /// Whether more than its configuration exists.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !matches!(
            self.condition,
            PackageCondition::Absent | PackageCondition::Configuration
        )
    }

    /// Whether it is of another architecture than the machine's: its id has that behind the name.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        let behind = self.id.strip_prefix(self.name.as_str());
        behind.and_then(|behind| behind.get(1..)) == Some(self.architecture.as_str())
    }

    /// Whether its files are unpacked, configured or not.
    #[must_use]
    pub fn is_unpacked(&self) -> bool {
        matches!(
            self.condition,
            PackageCondition::Unpacked | PackageCondition::Installed
        )
    }

    /// Whether it is installed and configured, with at most triggers pending.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.condition == PackageCondition::Installed
    }

    /// Whether it is neither completely installed nor completely removed.
    #[must_use]
    pub fn needs_repair(&self) -> bool {
        matches!(
            self.condition,
            PackageCondition::HalfInstalled | PackageCondition::Unpacked
        )
    }
}

/// The versions of one package that repositories offer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackageOffer {
    pub name: String,
    /// The version that the package manager would choose.
    pub candidate: Option<String>,
    /// Versions with their priorities.
    pub versions: Vec<(String, i32)>,
    /// Versions that an administrator has forbidden in all their sources by a negative priority, and that our
    /// preference for a driver's branch would allow again: it names packages and versions, and cannot name a source.
    pub forbidden: Vec<String>,
    /// The installed version, if no repository offers it any more: once it is removed, it cannot be installed again.
    pub only_installed: Option<String>,
}

impl PackageOffer {
    /// Whether a repository offers exactly this version.
    #[must_use]
    pub fn has(&self, version: &str) -> bool {
        self.versions.iter().any(|(one, _)| one == version)
            && self.only_installed.as_deref() != Some(version)
    }
}

/// The lowest versions of other packages that a package accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowerBounds {
    /// The package.
    pub name: String,
    /// Names of other packages with these versions.
    pub bounds: Vec<(String, String)>,
}

impl LowerBounds {
    /// Returns the lowest version of a driver of this branch that the package accepts. For a package with a module
    /// for one kernel, that is the version of the module.
    #[must_use]
    pub fn driver(&self, branch: Branch) -> Option<DriverVersion> {
        (self.bounds.iter())
            .filter_map(|(_, version)| DriverVersion::from_package(version).ok())
            .find(|version| version.branch() == branch)
    }
}

/// The effect of a transaction on one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It would be installed.
    Install {
        /// Its [`Package::id`].
        name: String,
        /// The installed version that it replaces.
        from: Option<String>,
        /// The new version.
        to: String,
    },
    /// It would be removed.
    Remove {
        /// Its [`Package::id`].
        name: String,
        version: String,
    },
}

impl Action {
    /// The package.
    #[must_use]
    pub fn name(&self) -> &str {
        let (Self::Install { name, .. } | Self::Remove { name, .. }) = self;
        name
    }

    /// The text of actions for a plan, one per line.
    #[must_use]
    pub fn describe(actions: &[Self]) -> String {
        let lines: Vec<String> = actions
            .iter()
            .map(|action| match action {
                Self::Install {
                    name,
                    from: None,
                    to,
                } => format!("+ {name} {to}"),
                Self::Install {
                    name,
                    from: Some(from),
                    to,
                } => format!("~ {name} {from} -> {to}"),
                Self::Remove { name, version, .. } => format!("- {name} {version}"),
            })
            .collect();
        lines.join("\n")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionRequest<'p> {
    /// Install packages, each written by [`super::Backend::at_version`] or by its name, and
    /// remove others in the same transaction.
    Install {
        /// Packages to install.
        packages: &'p [String],
        /// Packages to remove.
        removing: &'p [String],
    },
    /// As [`TransactionRequest::Install`], where packages may also get an older version and holds do not
    /// count: what this does to each package is simulated and approved, like everything else.
    Move {
        /// Packages to install.
        packages: &'p [String],
        /// Packages to remove.
        removing: &'p [String],
    },
    /// Remove packages and their configuration.
    Purge(&'p [String]),
    /// Remove packages and keep their configuration.
    Remove(&'p [String]),
    /// Install installed packages once more, each written by [`super::Backend::at_version`].
    Reinstall(&'p [String]),
    /// Complete broken dependencies.
    Fix,
}

/// The files of one version of a package that is offered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The package.
    pub name: String,
    pub version: String,
    /// Its files and folders.
    pub paths: Vec<Utf8PathBuf>,
}

/// What a transaction downloads and unpacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The files to download, by URL, with their sizes in bytes.
    pub downloads: Vec<(String, u64)>,
    /// Bytes that the transaction takes on the disk, without the downloads.
    pub unpacked_bytes: u64,
}

impl Estimate {
    #[must_use]
    pub fn download_bytes(&self) -> u64 {
        (self.downloads.iter()).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// A source that did not deliver its lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFailure {
    /// The address that the package manager names: of the source, or of a file in it.
    pub address: String,
    /// The reason, in its words.
    pub why: String,
}

/// What a real transaction may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removals {
    /// Nothing, even if the resolver now wants to remove a package.
    None,
    /// The packages that the simulation named and the plan approved.
    Approved,
}

/// Why a list of holds has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoHolds {
    /// The setting, with its file.
    pub why: String,
    /// What a person does about it.
    pub remedy: String,
    /// Whether it may be enough to install the package of the list.
    pub package: bool,
}

/// The lines of an administrator's files that name a proxy, as sentences without logins.
///
/// # Errors
/// When an existing file cannot be read.
pub(super) fn lines_of_proxies(
    files: &dyn ReadFiles,
    paths: &[Utf8PathBuf],
    names_proxy: impl Fn(&str) -> bool,
) -> Result<Vec<String>, FilesError> {
    let mut found = Vec::new();
    for path in paths {
        let text = files.read_lossy(path)?.unwrap_or_default();
        let lines = text.lines().enumerate();
        found.extend(
            lines
                .filter(|(_, line)| names_proxy(line))
                .map(|(at, line)| {
                    let line = without_logins(line.trim());
                    format!("`{path}`, line {}, says `{line}`", at + 1)
                }),
        );
    }
    Ok(found)
}

/// A line by which somebody keeps packages from being installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exclusion {
    /// The file.
    pub path: Utf8PathBuf,
    /// The number of the line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
    /// Shell patterns over names of packages.
    pub patterns: Vec<String>,
    /// The patterns name the only packages that can be installed, and not those that cannot.
    pub only: bool,
}

impl Exclusion {
    /// Returns the exclusions in the files that are there, in their order.
    pub(super) fn in_files(
        files: &dyn ReadFiles,
        paths: &[Utf8PathBuf],
        parse: impl Fn(&Utf8Path, &str) -> Vec<Self>,
    ) -> Result<Vec<Self>, FilesError> {
        let mut found = Vec::new();
        for path in paths {
            if let Some(text) = files.read_lossy(path)? {
                found.extend(parse(path, &text));
            }
        }
        Ok(found)
    }

    /// The remedy for lines that hide packages.
    #[must_use]
    pub fn remedy(lines: &[String]) -> String {
        format!(
            "{}: if nobody needs this, take the packages out of it, and run the command again",
            lines.join("; ")
        )
    }

    /// Whether a package cannot be installed because of it.
    #[must_use]
    pub fn hides(&self, name: &str) -> bool {
        let matches = |one: &String| {
            pattern::matches(one, name)
                || (one.strip_prefix(name)).is_some_and(|version| version.starts_with('-'))
        };
        !name.is_empty() && self.patterns.iter().any(matches) != self.only
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "`{}`, line {}, says `{}`",
            self.path, self.line, self.text
        )
    }
}

/// What a person types, or where a person looks, with one package manager: for hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commands {
    /// Releases the hold of a package; `NAME` stands for the package, `ENTRY` for an entry of
    /// [`super::HoldList`].
    pub unhold: &'static str,
    /// Removes downloaded packages.
    pub clean: &'static str,
    /// Downloads new package lists.
    pub refresh: &'static str,
    /// Installs a package once more.
    pub reinstall: &'static str,
    /// Installs a package; `NAME` stands for it.
    pub install: &'static str,
    /// Brings the newest kernel of the series that the machine follows, whatever its packages are
    /// called.
    pub upgrade_kernel: &'static str,
    /// Installs one kernel; `KERNEL` stands for its release.
    pub install_kernel: &'static str,
    /// Installs a version of a package; `NAME` and `VERSION` stand for them. The revision of the package is left open.
    pub install_version: &'static str,
    /// Installs the headers of a kernel; `KERNEL` stands for its release.
    pub headers: &'static str,
    /// Where the login of a repository belongs.
    pub credentials: &'static str,
}

/// Packages that an interrupted package manager left half done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HalfDone {
    /// Those that are neither installed nor gone.
    pub packages: Vec<Package>,
    /// The program whose own records say that it was interrupted, where no package says so.
    pub interrupted: Option<&'static str>,
}

impl HalfDone {
    /// The package database is consistent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.interrupted.is_none()
    }
}

/// A mark on installed packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Keep the version.
    Hold,
    /// Let the version change again.
    Unhold,
    /// Automatically installed.
    Automatic,
}

/// The settings of every command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Seconds that the package manager itself waits for its locks: for a lock that is taken after
    /// this program has found all locks free.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy.
    pub proxy: Option<Secret>,
    /// What is reached without it, separated by commas.
    pub no_proxy: Option<String>,
}

#[cfg(test)]
impl Settings {
    /// Those of a run behind a proxy that asks for a password.
    pub(crate) fn behind_a_proxy() -> Self {
        Self {
            lock_timeout_seconds: 60,
            proxy: Some(Secret::new("http://joe:s3cret@proxy:3128")),
            no_proxy: Some("localhost,.internal".to_owned()),
        }
    }
}

/// One repository that a machine is configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    /// The name by which the package manager calls it, if it has names for repositories.
    pub id: Option<String>,
    /// Whether the package manager uses it.
    pub enabled: bool,
    /// The file that names it.
    pub file: Utf8PathBuf,
    /// Its URL in canonical form, to compare it with others.
    pub uri: String,
    /// Its URL, as written.
    pub written: String,
    pub suite: String,
    /// The keyring that it names, or the key itself.
    pub signed_by: Option<String>,
    /// Whether it is a source of binary packages.
    pub binary: bool,
    /// Its components; empty for a suite that is a path.
    pub components: Vec<String>,
    /// The architectures that it is restricted to; empty means the machine's.
    pub architectures: Vec<String>,
    /// Whether it makes the package manager skip a part of the verification.
    pub skips_verification: bool,
}

impl SourceEntry {
    /// Whether it is in a file that this program wrote.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        (self.file.file_name()).is_some_and(|name| name.starts_with("gpu-bootstrap-"))
    }

    /// Whether an address is its name, its own address, or that of a file in it.
    #[must_use]
    pub fn is_at(&self, address: &str) -> bool {
        if self.id.as_deref() == Some(address) {
            return true;
        }
        let address = Self::canonical(address);
        (address.strip_prefix(&self.uri))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether it names this URL and suite on a machine of this architecture, which replaces
    /// `$(ARCH)`.
    #[must_use]
    pub fn names(&self, uri: &str, suite: &str, architecture: Option<&str>) -> bool {
        let is = |text: &str, wanted: &str| match architecture {
            Some(architecture) => text.replace("$(ARCH)", architecture) == wanted,
            None => text == wanted,
        };
        is(&self.uri, &Self::canonical(uri)) && is(&self.suite, suite)
    }

    /// Whether it provides these components for these architectures.
    #[must_use]
    pub fn provides(&self, components: &[String], architectures: &[String]) -> bool {
        let has =
            |part: &String| self.architectures.is_empty() || self.architectures.contains(part);
        self.binary
            && components.iter().all(|one| self.components.contains(one))
            && architectures.iter().all(has)
    }

    /// Returns the address that NVIDIA gives for the container toolkit, if this is an older one: one for a distribution,
    /// of which some are gone, or one of the packages before the toolkit (NVIDIA/nvidia-container-toolkit issues 89, 489
    /// and 565, pull request 459).
    #[must_use]
    pub fn moved_to(&self) -> Option<&'static str> {
        let (_, path) = self.uri.split_once("://nvidia.github.io/")?;
        let is_old = match path.split_once('/')? {
            ("libnvidia-container", rest) => !matches!(rest.split('/').nth(1), Some("deb" | "rpm")),
            (package, _) => matches!(package, "nvidia-container-runtime" | "nvidia-docker"),
        };
        is_old.then_some(match self.file.extension() {
            Some("repo") => "https://nvidia.github.io/libnvidia-container/stable/rpm/$basearch",
            _ => "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
        })
    }

    /// Returns the URL that replaces the one of a repository that was shut down; `None` if it was not.
    ///
    /// Source: <https://kubernetes.io/blog/2023/08/31/legacy-package-repository-deprecation/> (removed on 2024-03-04).
    #[must_use]
    pub fn shut_down(&self) -> Option<&'static str> {
        const NOW: &str = "`https://pkgs.k8s.io/core:/stable:/v1.MINOR/`";
        let uri = self.uri.trim_end_matches('/');
        let is_old = uri.contains("://apt.kubernetes.io")
            || uri.contains("://packages.cloud.google.com/yum/repos/kubernetes")
            || uri.ends_with("://packages.cloud.google.com/apt")
                && self.suite.starts_with("kubernetes-");
        is_old.then_some(NOW)
    }

    /// Returns a URL in canonical form, to compare it with others. URLs of files and discs get the form that they
    /// have in messages of apt.
    #[must_use]
    pub fn canonical(uri: &str) -> String {
        let uri = uri.trim_end_matches('/');
        for (written, said) in [
            ("file:///", "file:/"),
            ("copy:///", "copy:/"),
            ("cdrom:[", "cdrom://["),
        ] {
            if let Some(rest) = uri.strip_prefix(written) {
                return format!("{said}{rest}");
            }
        }
        uri.to_owned()
    }
}

/// Further components of the archive that a machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Further {
    /// The URL, as configured on the machine.
    pub url: String,
    /// The wanted suites that the machine has at this URL.
    pub suites: Vec<String>,
    /// The wanted components that the machine does not have.
    pub components: Vec<String>,
    /// The key file of the entry.
    pub keyring: Option<String>,
}

/// Why further components cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// There is no entry for the suite.
    #[error("no source in {places} has suite `{suite}`")]
    NoEntry {
        suite: String,
        /// The files that contain sources.
        places: &'static str,
    },
    /// The key is embedded, or named by its fingerprint.
    #[error("the source in `{file}` does not name one key file in `Signed-By`")]
    NoKeyFile { file: Utf8PathBuf },
}

/// Each entry that names the same address and suite as another entry, but another key.
#[must_use]
pub fn contradictions(entries: &[SourceEntry]) -> Vec<String> {
    (entries.iter())
        .filter(|one| {
            entries.iter().any(|other| {
                one.uri == other.uri && one.suite == other.suite && one.signed_by != other.signed_by
            })
        })
        .map(|entry| {
            let SourceEntry {
                file, uri, suite, ..
            } = entry;
            let key = entry.signed_by.as_deref().unwrap_or("no key");
            format!("`{file}` names {uri} {suite} with {key}")
        })
        .collect()
}

/// What is wrong with the sources of a package manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFlaw {
    /// The files, with the line where there is one.
    pub why: String,
    /// What the package manager does.
    pub impact: Impact,
    /// What mends it.
    pub remedy: String,
}

/// What a package manager does with a flaw of its sources, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// It installs and updates nothing.
    All,
    /// It takes nothing from one source, and its update ends with an error.
    Source,
    /// As `Source`, if a file is missing or unreadable on the machine, too: a recorded tree may lack it, or have it
    /// with other rights.
    Lacking,
    /// It passes over a file.
    File,
}
