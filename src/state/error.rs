//! Errors when reading the machine state. They can be cloned, because all readers of a value get the same error.

use std::sync::Arc;

use crate::{
    error::one_line,
    host::{ExecError, FilesError},
    tools::packages::DatabaseError,
};

/// The reason a part of the state could not be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// A file could not be read.
    #[error("read the machine's files")]
    Files(#[source] Arc<FilesError>),
    /// A command could not be run.
    #[error("run the machine's tools")]
    Exec(#[source] Arc<ExecError>),
    /// A file or an output could not be parsed.
    #[error("parse {what}: {why}")]
    Unexpected {
        /// The file or tool.
        what: String,
        /// The reason it could not be parsed.
        why: String,
    },
}

impl StateError {
    /// The reason if commands may not be executed or the data is not available here. This is not an error of the machine.
    pub fn not_queried(&self) -> Option<&str> {
        match self {
            Self::Exec(error) => match &**error {
                ExecError::NotQueried { why, .. } => Some(why),
                _ => None,
            },
            Self::Files(error) => error.not_reported(),
            Self::Unexpected { .. } => None,
        }
    }

    /// The reason in one line, for the list of unknown facts.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Files(error) => error.not_reported().map_or_else(
                || format!("failed to {}", one_line(&**error)),
                str::to_owned,
            ),
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
