//! Why a part of the state could not be read. Everybody who asks for it gets the same answer, so
//! the error can be cloned.

use std::sync::Arc;

use crate::{
    error::one_line,
    host::{ExecError, FilesError},
    tools::packages::DatabaseError,
};

/// Why a part of the state could not be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// A file.
    #[error("read the machine's files")]
    Files(#[source] Arc<FilesError>),
    /// A command.
    #[error("ask the machine's tools")]
    Exec(#[source] Arc<ExecError>),
    /// Something that was read makes no sense.
    #[error("understand {what}: {why}")]
    Unexpected {
        /// The file or tool.
        what: String,
        /// What was expected and what was there.
        why: String,
    },
}

impl StateError {
    /// Why nothing may be executed, where that is the reason: it is no fault of the machine.
    #[must_use]
    pub fn not_asked(&self) -> Option<&str> {
        match self {
            Self::Exec(error) => match &**error {
                ExecError::NotAsked { why, .. } => Some(why),
                _ => None,
            },
            _ => None,
        }
    }

    /// The reason in one line, for the list of what is unknown.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Files(error) => format!("failed to {}", one_line(&**error)),
            Self::Exec(error) => one_line(&**error),
            Self::Unexpected { why, .. } => why.clone(),
        }
    }
}

impl From<FilesError> for StateError {
    fn from(error: FilesError) -> Self {
        Self::Files(Arc::new(error))
    }
}

impl From<DatabaseError> for StateError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Files(error) => error.into(),
            DatabaseError::Exec(error) => error.into(),
        }
    }
}

impl From<ExecError> for StateError {
    fn from(error: ExecError) -> Self {
        Self::Exec(Arc::new(error))
    }
}
