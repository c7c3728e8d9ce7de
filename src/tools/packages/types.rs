//! Types shared by all package managers: packages and their states, available versions, actions.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FilesError, ReadFiles},
    model::{
        pattern,
        secret::{Secret, without_logins},
        text::shell_word,
        version::{Branch, DriverVersion},
    },
};

/// The state of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageCondition {
    /// In the database, but not installed.
    Absent,
    /// Removed, except for its configuration.
    Configuration,
    /// Unpacking was interrupted. With rpm: an interrupted upgrade left this old version installed.
    HalfInstalled,
    /// Unpacked, but not configured.
    Unpacked,
    /// Installed and configured.
    Installed,
}

/// A package in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The name without the architecture.
    pub name: String,
    /// The name that the package manager accepts. It includes a foreign architecture, and the version if several versions of
    /// the package can be installed at the same time.
    pub id: String,
    /// `amd64`, `x86_64`, `noarch`, …. Empty if the database does not contain it.
    pub architecture: String,
    /// The version including the epoch. Empty for a removed package.
    pub version: String,
    pub condition: PackageCondition,
    pub held: bool,
    /// The maintainer, in the format `Name <mail>`.
    pub packager: Option<String>,
    /// The vendor, if the database has a field for it.
    pub vendor: Option<String>,
    /// The installed size in bytes, as estimated by the maintainer. 0 if unknown.
    pub installed_bytes: u64,
}

impl Package {
    /// Whether the package exists, not only its configuration.
    pub fn is_there(&self) -> bool {
        !matches!(
            self.condition,
            PackageCondition::Absent | PackageCondition::Configuration
        )
    }

    /// Whether it has a foreign architecture, which its ID then contains.
    pub fn is_foreign(&self) -> bool {
        let behind = self.id.strip_prefix(self.name.as_str());
        behind.and_then(|behind| behind.get(1..)) == Some(self.architecture.as_str())
    }

    /// Whether its files are unpacked. The package may be unconfigured.
    pub fn is_unpacked(&self) -> bool {
        matches!(
            self.condition,
            PackageCondition::Unpacked | PackageCondition::Installed
        )
    }

    /// Whether it is installed and configured. Triggers may be pending.
    pub fn is_installed(&self) -> bool {
        self.condition == PackageCondition::Installed
    }

    /// Whether it is neither completely installed nor completely removed.
    pub fn needs_repair(&self) -> bool {
        matches!(
            self.condition,
            PackageCondition::HalfInstalled | PackageCondition::Unpacked
        )
    }
}

/// The available versions of one package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AvailablePackage {
    pub name: String,
    /// The version that the package manager would choose.
    pub candidate: Option<String>,
    /// Versions with their priorities, which are 0 if the package manager has no priorities for versions.
    pub versions: Vec<(String, i32)>,
    /// Versions that an administrator has blocked in all their sources with a negative priority, but that our preference for a
    /// driver branch allows. Our preference contains packages and versions, and cannot be restricted to a source.
    pub forbidden: Vec<String>,
    /// The installed version if no repository offers it. It cannot be reinstalled after removal.
    pub only_installed: Option<String>,
}

impl AvailablePackage {
    /// Whether a repository offers exactly this version.
    pub fn has(&self, version: &str) -> bool {
        self.versions.iter().any(|(one, _)| one == version)
            && self.only_installed.as_deref() != Some(version)
    }
}

/// The lowest dependency versions that a package accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowerBounds {
    pub name: String,
    /// The names of the dependencies, with these versions.
    pub bounds: Vec<(String, String)>,
}

impl LowerBounds {
    /// Returns the lowest driver version of this branch that the package accepts. For a package with a module for one kernel,
    /// this is the module version.
    pub fn driver(&self, branch: Branch) -> Option<DriverVersion> {
        (self.bounds.iter())
            .filter_map(|(_, version)| DriverVersion::from_package(version).ok())
            .find(|version| version.branch() == branch)
    }
}

/// The effect of a transaction on one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The package is installed.
    Install {
        /// Its [`Package::id`].
        name: String,
        /// The installed version that is replaced.
        from: Option<String>,
        /// The new version.
        to: String,
    },
    /// The package is removed.
    Remove {
        /// Its [`Package::id`].
        name: String,
        version: String,
    },
}

impl Action {
    /// Returns the package ID.
    pub fn name(&self) -> &str {
        let (Self::Install { name, .. } | Self::Remove { name, .. }) = self;
        name
    }

    /// Returns the package ID and the version that it installs.
    pub fn installed(&self) -> Option<(&str, &str)> {
        match self {
            Self::Install { name, to, .. } => Some((name, to)),
            Self::Remove { .. } => None,
        }
    }

    /// Describes actions for a plan, one per line.
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
    /// Install packages (specified by [`super::Transactions::at_version`] or by name) and remove packages in the same
    /// transaction.
    Install {
        /// Packages to install.
        packages: &'p [String],
        /// Packages to remove.
        removing: &'p [String],
    },
    /// Like [`TransactionRequest::Install`], but packages may be downgraded and holds are ignored. The effect on each package
    /// is simulated and approved like any other change.
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
    /// Reinstall packages, specified by [`super::Transactions::at_version`].
    Reinstall(&'p [String]),
    /// Fix broken dependencies.
    Fix,
}

/// The files of one available version of a package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub name: String,
    pub version: String,
    /// Its files and directories.
    pub paths: Vec<Utf8PathBuf>,
}

/// The download and installed size of a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The files to download, with their sizes in bytes. The text is the URL (apt) or the repository ID (dnf).
    pub downloads: Vec<(String, u64)>,
    /// The additional disk space in bytes, without the downloads.
    pub unpacked_bytes: u64,
}

impl Estimate {
    pub fn download_bytes(&self) -> u64 {
        (self.downloads.iter()).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// A source whose lists could not be downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFailure {
    /// The URL that the package manager reports: of the source or of one of its files.
    pub address: String,
    /// The reason that the package manager reports.
    pub why: String,
}

/// The packages that a transaction may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removals {
    /// No packages, even if the resolver would now remove one.
    None,
    /// The packages in the simulation that the plan approved.
    Approved,
}

/// The reason why a list of holds has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoHolds {
    /// The setting, with its file.
    pub why: String,
    /// The remedy for the administrator.
    pub remedy: String,
    /// Whether installing the package that implements the list may be sufficient.
    pub package: bool,
}

/// Returns the lines of an administrator's files that set a proxy, as messages without credentials.
///
/// # Errors
/// If an existing file cannot be read.
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
                    format!("`{path}`, line {}: `{line}`", at + 1)
                }),
        );
    }
    Ok(found)
}

/// A configuration line that excludes packages from installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exclusion {
    /// The file.
    pub path: Utf8PathBuf,
    /// The line number, starting at 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
    /// Shell patterns for package names.
    pub patterns: Vec<String>,
    /// Whether the patterns are an allowlist: only matching packages can be installed.
    pub only: bool,
}

impl Exclusion {
    /// Returns the exclusions in existing files, in file order.
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
    pub fn remedy(lines: &[String]) -> String {
        format!(
            "{}: remove the packages from this line unless you need it, then run the command again",
            lines.join("; ")
        )
    }

    /// Whether it prevents the installation of a package.
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
        write!(to, "`{}`, line {}: `{}`", self.path, self.line, self.text)
    }
}

impl Commands {
    /// The command that installs packages in one version, in one transaction. Names come from the examined machine.
    pub fn install_versions(&self, names: &[&str], version: &str) -> String {
        // The last word is the package.
        let (command, package) = self.install_version.rsplit_once(' ').unwrap_or(("", ""));
        let package = package.trim_matches('\'').replace("VERSION", version);
        let words = names
            .iter()
            .map(|name| shell_word(package.replace("NAME", name)));
        format!("{command} {}", words.collect::<Vec<_>>().join(" "))
    }

    /// The command that upgrades these packages in one transaction.
    pub fn upgrade_all(&self, names: &[&str]) -> String {
        let words: Vec<String> = names.iter().map(shell_word).collect();
        self.upgrade.replace("NAME", &words.join(" "))
    }
}

/// Commands and paths of a package manager for hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commands {
    /// Releases the hold of a package. `NAME` is the placeholder for the package, `ENTRY` for an entry of [`super::HoldList`].
    pub unhold: &'static str,
    /// Removes downloaded packages.
    pub clean: &'static str,
    /// Downloads new package lists.
    pub refresh: &'static str,
    /// Reinstalls a package.
    pub reinstall: &'static str,
    /// Installs a package. `NAME` is its placeholder.
    pub install: &'static str,
    /// Installs the newest kernel of the series that the machine follows, whatever the names of its packages are.
    pub upgrade_kernel: &'static str,
    /// Installs one kernel. `KERNEL` is the placeholder for its release.
    pub install_kernel: &'static str,
    /// Installs a version of a package; `NAME` and `VERSION` are placeholders. The package revision is left open.
    pub install_version: &'static str,
    /// Upgrades an installed package. `NAME` is its placeholder.
    pub upgrade: &'static str,
    /// Installs a version of a compiler, if each version is a package: `COMPILER` is the placeholder for a name such as `gcc-12`.
    pub compiler: Option<&'static str>,
    /// Lists the available versions of a package. `NAME` is its placeholder.
    pub versions: &'static str,
    /// Lists the packages in the repositories that contain a file; `FILE` is the placeholder for its path. `None` if this needs
    /// another program.
    pub containing: Option<&'static str>,
    /// Installs the headers of a kernel; `KERNEL` is a placeholder for its release.
    pub headers: &'static str,
    /// The package with kernel modules that the default kernel package omits, as it is in a sentence; `KERNEL` is a placeholder
    /// for the release of the kernel.
    pub extra_modules: &'static str,
    /// The location of repository credentials.
    pub credentials: &'static str,
}

/// Packages that an interrupted package manager left unconfigured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HalfDone {
    /// Packages that are neither completely installed nor completely removed.
    pub packages: Vec<Package>,
    /// The program whose own records show that it was interrupted, if no package shows it.
    pub interrupted: Option<&'static str>,
}

impl HalfDone {
    /// Whether the package database is consistent.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.interrupted.is_none()
    }
}

/// A mark of installed packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Keep the version.
    Hold,
    /// Let the version change again.
    Unhold,
    /// Mark as automatically installed.
    Automatic,
}

/// Packages whose triggers are pending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingTriggers {
    /// Other packages or running programs may depend on them.
    pub needed: Vec<String>,
    /// They only affect the next boot.
    pub deferrable: Vec<String>,
}

/// The settings of every command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The time in seconds that apt itself waits for a lock that was taken after gpu-bootstrap had found all locks free. dnf
    /// fails immediately instead.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy.
    pub proxy: Option<Secret>,
    /// Hosts that are accessed without the proxy, separated by commas.
    pub no_proxy: Option<String>,
}

#[cfg(test)]
impl Settings {
    /// The settings of a run with a proxy that requires a password.
    pub(crate) fn behind_a_proxy() -> Self {
        Self {
            lock_timeout_seconds: 60,
            proxy: Some(Secret::new("http://joe:s3cret@proxy:3128")),
            no_proxy: Some("localhost,.internal".to_owned()),
        }
    }
}

/// A configured repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    /// The repository ID, if the package manager has such IDs.
    pub id: Option<String>,
    /// Whether the repository is enabled.
    pub enabled: bool,
    /// The source file.
    pub file: Utf8PathBuf,
    /// The URL in canonical form, for comparisons.
    pub uri: String,
    /// The URL as written. In dnf files, it includes the option name, such as `baseurl=`.
    pub written: String,
    pub suite: String,
    /// The keyring path, or the key itself.
    pub signed_by: Option<String>,
    /// Whether it contains binary packages.
    pub binary: bool,
    /// The components. Empty for a suite that is a path.
    pub components: Vec<String>,
    /// The architectures that it is restricted to. Empty means the machine's architecture.
    pub architectures: Vec<String>,
    /// Whether it disables signature verification, completely or in part.
    pub skips_verification: bool,
}

impl SourceEntry {
    /// Whether it is in a file that gpu-bootstrap wrote.
    pub fn is_ours(&self) -> bool {
        (self.file.file_name()).is_some_and(|name| name.starts_with("gpu-bootstrap-"))
    }

    /// Whether a text is its ID, its URL, or the URL of one of its files.
    pub fn is_at(&self, address: &str) -> bool {
        if self.id.as_deref() == Some(address) {
            return true;
        }
        let address = Self::canonical(address);
        (address.strip_prefix(&self.uri))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether it has this URL and suite on a machine of this architecture, which replaces `$(ARCH)`.
    pub fn names(&self, uri: &str, suite: &str, architecture: Option<&str>) -> bool {
        let is = |text: &str, wanted: &str| match architecture {
            Some(architecture) => text.replace("$(ARCH)", architecture) == wanted,
            None => text == wanted,
        };
        is(&self.uri, &Self::canonical(uri)) && is(&self.suite, suite)
    }

    /// Whether it provides these components for these architectures.
    pub fn provides(&self, components: &[String], architectures: &[String]) -> bool {
        let has =
            |part: &String| self.architectures.is_empty() || self.architectures.contains(part);
        self.binary
            && components.iter().all(|one| self.components.contains(one))
            && architectures.iter().all(has)
    }

    /// Returns NVIDIA's current URL for the container toolkit if this URL is an older one: a URL for one distribution, some of
    /// which no longer exist, or a URL of the predecessor packages (NVIDIA/nvidia-container-toolkit issues 89, 489 and 565,
    /// pull request 459).
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
    pub fn shut_down(&self) -> Option<&'static str> {
        const NOW: &str = "`https://pkgs.k8s.io/core:/stable:/v1.MINOR/`";
        let uri = self.uri.trim_end_matches('/');
        let is_old = uri.contains("://apt.kubernetes.io")
            || uri.contains("://packages.cloud.google.com/yum/repos/kubernetes")
            || uri.ends_with("://packages.cloud.google.com/apt")
                && self.suite.starts_with("kubernetes-");
        is_old.then_some(NOW)
    }

    /// Returns a URL in canonical form, for comparisons. URLs of files and discs get the form that apt prints in messages.
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

/// Additional components of an archive that a machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Further {
    /// The URL, as configured on the machine.
    pub url: String,
    /// The required suites that the machine has at this URL.
    pub suites: Vec<String>,
    /// The required components that the machine does not have.
    pub components: Vec<String>,
    /// The key file of the entry.
    pub keyring: Option<String>,
}

/// Additional components cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// There is no source for the suite.
    #[error("no source in {places} has suite `{suite}`")]
    NoEntry {
        suite: String,
        /// The files that contain sources.
        places: &'static str,
    },
    /// The key is missing, embedded, specified by its fingerprint, or in several files.
    #[error("the source in `{file}` does not specify exactly one key file in `Signed-By`")]
    NoKeyFile { file: Utf8PathBuf },
}

/// Returns a description of each entry that has the same URL and suite as another entry, but another key.
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
            format!("`{file}` specifies {uri} {suite} with {key}")
        })
        .collect()
}

/// A repository whose packages replace newer ones, because of a preference of the administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForcedOrigin {
    /// The file with the preference.
    pub path: Utf8PathBuf,
    /// The host of the repository.
    pub host: String,
    /// The priority.
    pub priority: i64,
}

/// An error in the sources of a package manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceIssue {
    /// The error, with files and line numbers.
    pub why: String,
    /// The effect on the package manager.
    pub impact: Impact,
    /// The remedy.
    pub remedy: String,
}

/// The effect of a source error on the package manager, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// No package can be installed or updated.
    All,
    /// No packages are available from one source, and updating the lists fails.
    Source,
    /// Same as `Source`, but only if the keyring is really missing or unreadable on the machine. In a recorded copy of a
    /// machine, it may be missing or have other permissions.
    Lacking,
    /// A file is ignored.
    File,
}
