//! What every package manager has in common: packages and their condition, offers, actions.

use camino::Utf8PathBuf;

use crate::model::secret::Secret;

/// How far a package is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Known to the database, and not there.
    Absent,
    /// Removed; only its configuration is left.
    Configuration,
    /// Its installation was interrupted before all files were there.
    HalfInstalled,
    /// Its files are there, and it is not configured.
    Unpacked,
    /// Installed and configured.
    Installed,
}

/// One package of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, without the architecture.
    pub name: String,
    /// The name by which the package manager takes it: with the architecture if it is a foreign one.
    pub id: String,
    /// `amd64`, `x86_64`, `noarch`, …; empty where the database does not say.
    pub architecture: String,
    /// Its version, epoch included; empty for a package that is gone.
    pub version: String,
    /// How far it is installed.
    pub condition: Condition,
    /// Nothing shall change its version.
    pub held: bool,
    /// Who maintains it, as `Name <mail>`.
    pub packager: Option<String>,
    /// Who distributes it, where the database keeps that apart.
    pub vendor: Option<String>,
    /// Bytes that its files take, as its maintainer estimated them; 0 where that is not known.
    pub installed_bytes: u64,
}

impl Package {
    /// Something of it is there besides configuration.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !matches!(self.condition, Condition::Absent | Condition::Configuration)
    }

    /// Its files are there, configured or not.
    #[must_use]
    pub fn is_unpacked(&self) -> bool {
        matches!(self.condition, Condition::Unpacked | Condition::Installed)
    }

    /// Installed and configured, with at most triggers to run.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.condition == Condition::Installed
    }

    /// Neither installed nor properly gone.
    #[must_use]
    pub fn needs_repair(&self) -> bool {
        matches!(
            self.condition,
            Condition::HalfInstalled | Condition::Unpacked
        )
    }
}

/// What repositories offer of one package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// What the package manager would take by itself.
    pub candidate: Option<String>,
    /// Versions with their priorities.
    pub versions: Vec<(String, i32)>,
}

/// What a transaction would do to one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It would be unpacked.
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
        /// Its version.
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

    /// Actions in words, one a line: what a plan shows.
    #[must_use]
    pub fn tell(actions: &[Self]) -> String {
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

/// What a transaction is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'p> {
    /// Install packages, each written by [`super::Transactions::at_version`] or by its name, and
    /// remove others in the same transaction.
    Install {
        /// What comes.
        packages: &'p [String],
        /// What goes.
        removing: &'p [String],
    },
    /// Remove packages and their configuration.
    Purge(&'p [String]),
    /// Remove packages and keep their configuration.
    Remove(&'p [String]),
    /// Complete broken dependencies.
    Fix,
}

/// What a real transaction may take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removals {
    /// Nothing, whatever the resolver comes to meanwhile.
    None,
    /// What the simulation named and the plan approved.
    Approved,
}

/// A mark on installed packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Keep the version.
    Hold,
    /// Let the version change again.
    Unhold,
    /// Installed for the sake of others.
    Automatic,
}

/// Settings of every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Seconds that the package manager itself waits for its locks: a backstop, for the moment
    /// between our own look at them and its start.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy.
    pub proxy: Option<Secret>,
    /// Install recommended packages too.
    pub recommends: bool,
}

/// One repository that a machine is configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    /// The file that names it.
    pub file: Utf8PathBuf,
    /// Its address, in the form in which two can be compared.
    pub uri: String,
    /// Its address, as written.
    pub written: String,
    /// The suite, or `/`.
    pub suite: String,
    /// The keyring that it names, or the key itself.
    pub signed_by: Option<String>,
    /// It is a source of binary packages.
    pub binary: bool,
    /// Its components; none for a suite that is a path.
    pub components: Vec<String>,
    /// The architectures that it is restricted to; none: the machine's.
    pub architectures: Vec<String>,
    /// It tells the package manager to do without some proof.
    pub trusting: bool,
}

impl SourceEntry {
    /// Whether it stands in a file of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        (self.file.file_name()).is_some_and(|name| name.starts_with("gpu-bootstrap-"))
    }

    /// Whether it names this address and suite on a machine of this architecture, for which
    /// `$(ARCH)` stands.
    #[must_use]
    pub fn names(&self, uri: &str, suite: &str, architecture: Option<&str>) -> bool {
        let is = |text: &str, wanted: &str| match architecture {
            Some(architecture) => text.replace("$(ARCH)", architecture) == wanted,
            None => text == wanted,
        };
        is(&self.uri, &Self::canonical(uri)) && is(&self.suite, suite)
    }

    /// Whether it brings these components for these architectures.
    #[must_use]
    pub fn brings(&self, components: &[String], architectures: &[String]) -> bool {
        let has =
            |part: &String| self.architectures.is_empty() || self.architectures.contains(part);
        self.binary
            && components.iter().all(|one| self.components.contains(one))
            && architectures.iter().all(has)
    }

    /// An address in the form in which two can be compared.
    #[must_use]
    pub fn canonical(uri: &str) -> String {
        uri.trim_end_matches('/').to_owned()
    }
}

/// Further components of the archive that a machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Further {
    /// The address, as the machine has it.
    pub url: String,
    /// Those of the wanted suites that the machine has there.
    pub suites: Vec<String>,
    /// Those of the wanted components that it lacks.
    pub components: Vec<String>,
    /// The key file of the entry.
    pub keyring: Option<String>,
}

/// Why further components cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// No entry for the suite.
    #[error("no source in {places} has suite `{suite}`")]
    NoEntry {
        /// The suite looked for.
        suite: String,
        /// Where sources are.
        places: &'static str,
    },
    /// The key is written out, or named by its fingerprint.
    #[error("the source in `{file}` does not name one key file in `Signed-By`")]
    NoKeyFile {
        /// The file.
        file: Utf8PathBuf,
    },
}
