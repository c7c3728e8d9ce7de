//! The errors of changes, each with a reason for scripts and a hint for people.

mod images;
mod joins;
mod modules;
mod packages;
mod repositories;
mod runtimes;
mod tokens;

use camino::Utf8PathBuf;

pub use images::{ImageError, ImageFault};
pub use joins::JoinError;
pub use modules::ModuleError;
pub use packages::PackageError;
pub use repositories::RepositoryError;
pub use runtimes::RuntimeError;
pub use tokens::{TokenError, TokenFault};

use super::probe::ProbeError;
use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
};

/// The reason of [`ChangeError::Stopped`]: nothing failed, and no command was left unfinished.
pub const STOPPED: &str = "stopped";

/// Why a change failed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A file could not be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A tool failed, for a reason that has no class of its own.
    #[error("{what}")]
    Tool {
        /// The action, for example `restart docker.service`.
        what: String,
        /// What happened.
        source: ExecError,
    },
    /// The output of a tool, or the state of a file, is not as expected.
    #[error("{what}: {why}")]
    Unreadable {
        /// The action.
        what: String,
        /// What was expected and what was found.
        why: String,
    },
    /// A backup is missing or damaged.
    #[error("use the backup `{path}`: {why}")]
    Backup {
        path: Utf8PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// This version does not support the change.
    #[error("{what}: this version cannot do that yet")]
    Unsupported {
        /// The action, for example `change packages with dnf`.
        what: String,
    },
    /// A request to stop ended a wait.
    #[error("{what}: asked to stop")]
    Stopped {
        /// The wait.
        what: String,
    },
    /// A package transaction failed or was refused.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// A repository was not added.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A unit did not reach the wanted state.
    #[error("{what}: the unit is {state}{}", attached(.last_words))]
    Unit {
        /// The action.
        what: String,
        state: String,
        /// Its last lines in the journal.
        last_words: Option<String>,
    },
    /// Only a restart of Docker would help, and it would stop containers.
    #[error("restart `{unit}`: it would stop the containers {}", .containers.join(", "))]
    WouldStop {
        /// Docker's unit.
        unit: String,
        /// The containers, by name.
        containers: Vec<String>,
    },
    /// Docker does not tell which containers a restart would stop.
    #[error("ask docker which containers a restart of `{unit}` would stop: {why}")]
    DaemonSilent {
        /// Docker's unit.
        unit: String,
        /// What it says, or why that cannot be used.
        why: String,
    },
    /// A kernel module could not be loaded, unloaded or built.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A container runtime was not configured.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A probe failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// An image could not be pulled.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The machine did not become a node.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl Report for ChangeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unsupported { .. } => Exit::Blocked,
            Self::Packages(error) => error.exit(),
            Self::Repository(error) => error.exit(),
            _ => Exit::StepFailed,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("file"),
            Self::Tool { .. } => "tool-failed",
            Self::Unreadable { .. } => "tool-output",
            Self::Backup { .. } => "backup",
            Self::Unsupported { .. } => "unsupported",
            Self::Stopped { .. } => STOPPED,
            Self::Packages(error) => error.reason(),
            Self::Repository(error) => error.reason(),
            Self::Unit { .. } => "unit-failed",
            Self::WouldStop { .. } => "containers-run",
            Self::DaemonSilent { .. } => "docker-silent",
            Self::Module(error) => error.reason(),
            Self::Runtime(error) => error.reason(),
            Self::Probe(error) => error.reason(),
            Self::Image(error) => error.reason(),
            Self::Join(error) => error.reason(),
        }
    }

    fn passes(&self) -> bool {
        match self {
            Self::Packages(error) => error.passes(),
            Self::Repository(error) => error.passes(),
            Self::Image(error) => error.passes(),
            Self::Join(error) => error.passes(),
            _ => false,
        }
    }

    fn depends_on_lists(&self) -> bool {
        matches!(self, Self::Packages(error) if error.depends_on_lists())
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Probe(error) => error.hint(),
            Self::Image(error) => error.hint(),
            Self::Join(error) => error.hint(),
            Self::Runtime(error) => error.hint(),
            Self::Files(error) => error.hint(),
            Self::Packages(error) => error.hint(),
            Self::Repository(error) => error.hint(),
            Self::Module(error) => error.hint(),
            Self::Unsupported { .. } => {
                Some("do it by hand, and run `gpu-bootstrap check` to audit the machine".to_owned())
            }
            Self::WouldStop { unit, .. } => Some(format!(
                "a reload did not make docker use its configuration, so the former one is back: stop \
                 the containers, or set `\"live-restore\": true` in `/etc/docker/daemon.json` and run \
                 `systemctl reload {unit}`, or set `runtime.restart = \"always\"`; then run the command again"
            )),
            Self::DaemonSilent { unit, .. } => Some(format!(
                "see what `docker info` says; when its containers may stop, run `systemctl restart \
                 {unit}`, then run the command again"
            )),
            _ => None,
        }
    }
}
