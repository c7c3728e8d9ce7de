//! What can go wrong with a change, with the word for scripts and the advice for people.

mod modules;
mod packages;
mod repositories;

use camino::Utf8PathBuf;

pub use modules::ModuleError;
pub use packages::PackageError;
pub use repositories::RepositoryError;

use super::probe::ProbeError;
use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
};

/// The word of [`ChangeError::Stopped`]: nothing failed, and nothing was begun that needs an end.
pub const STOPPED: &str = "stopped";

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A file could not be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A tool failed, and nothing more is known about why.
    #[error("{what}")]
    Tool {
        /// What was tried, as `restart docker.service`.
        what: String,
        /// What happened.
        source: ExecError,
    },
    /// A tool answered what cannot be understood.
    #[error("{what}: {why}")]
    Unreadable {
        /// What was tried.
        what: String,
        /// What was expected and what was there.
        why: String,
    },
    /// A backup is missing or damaged.
    #[error("use the backup `{path}`: {why}")]
    Backup {
        /// Where it should be.
        path: Utf8PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// This version cannot do that.
    #[error("{what} is not available in this version")]
    Unsupported {
        /// What.
        what: String,
    },
    /// Somebody asked to stop while there was only waiting to do.
    #[error("{what}: asked to stop")]
    Stopped {
        /// What was waited for.
        what: String,
    },
    /// A package transaction.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// A repository.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A unit did not become what it should.
    #[error("{what}: the unit is {state}{}", attached(.last_words))]
    Unit {
        /// What was tried.
        what: String,
        /// What it is.
        state: String,
        /// What it last wrote to the journal.
        last_words: Option<String>,
    },
    /// A kernel module.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A probe failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
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
            Self::Module(error) => error.reason(),
            Self::Probe(error) => error.reason(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Probe(error) => error.hint(),
            Self::Files(error) => error.hint(),
            Self::Packages(error) => error.hint(),
            Self::Repository(error) => error.hint(),
            Self::Module(error) => error.hint(),
            _ => None,
        }
    }
}
