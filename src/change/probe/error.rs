//! Why a probe failed.

use crate::{
    error::Report,
    exit::Exit,
    host::{ExecError, FilesError},
};

/// What to do where nothing better is known.
pub(super) const SEE_CHECK: &str =
    "run `gpu-bootstrap check`: it names the faulty layer (driver, CDI or runtime)";

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its files could not be written.
    #[error("prepare the container")]
    Files(#[from] FilesError),
    /// A command failed.
    #[error("run the container")]
    Exec(#[from] ExecError),
    /// Anything else, in the words of the place that found it.
    #[error("{what}")]
    Found {
        reason: &'static str,
        what: String,
        hint: String,
    },
}

impl ProbeError {
    pub(super) fn new(reason: &'static str, what: impl Into<String>, hint: &str) -> Self {
        Self::Found {
            reason,
            what: what.into(),
            hint: hint.to_owned(),
        }
    }
}

impl Report for ProbeError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("proof-not-prepared"),
            Self::Exec(_) => "container-failed",
            Self::Found { reason, .. } => reason,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Files(error) if error.disk().is_some() => error.hint(),
            Self::Files(_) => Some("free space below `/var/lib`, then run again".to_owned()),
            Self::Exec(_) => Some(SEE_CHECK.to_owned()),
            Self::Found { hint, .. } => Some(hint.clone()),
        }
    }
}
