//! The error type of changes and of code that works with changes. It is created where the error occurs, with a machine-readable
//! reason and a hint for the user.

use std::{error::Error, fmt::Display};

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
    tools::packages::Fault,
};

/// The reason if a stop request ended a wait. Nothing failed, and no command was interrupted.
pub const STOPPED: &str = "stopped";

/// The reason if a file was modified after the new content was computed from it. The file was not written.
pub const CHANGED_SINCE: &str = "changed-since";

/// The error of a change, or of other work.
#[must_use]
#[derive(Debug, thiserror::Error)]
#[error("{what}{}", attached(.words))]
pub struct ChangeError {
    /// The failed action. It completes "failed to".
    pub what: String,
    /// Additional lines, such as the end of a log.
    pub words: Option<String>,
    pub reason: &'static str,
    pub exit: Exit,
    pub hint: Option<String>,
    /// Whether the error is transient, so that a retry may succeed.
    pub retryable: bool,
    /// Whether newer package lists may change the result.
    pub depends_on_lists: bool,
    pub source: Option<Box<dyn Error + Send + Sync>>,
    pub class: Class,
}

/// Error classes that code distinguishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Class {
    #[default]
    Other,
    /// The package manager failed.
    PackageManager(Fault),
    /// No repository has a matching version of this package.
    NoVersion(String),
    /// The transaction would install another kernel.
    NewKernel,
    /// The key of a repository could not be downloaded.
    KeyNotFetched,
    /// A daemon did not report which containers a restart would stop.
    DaemonSilent,
    /// The container runtime rejects its configuration.
    ConfigurationRefused,
}

impl ChangeError {
    pub fn new(reason: &'static str, what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            words: None,
            reason,
            exit: Exit::StepFailed,
            hint: None,
            retryable: false,
            depends_on_lists: false,
            source: None,
            class: Class::Other,
        }
    }

    /// An error that was detected before any change.
    pub fn blocked(reason: &'static str, what: impl Into<String>) -> Self {
        Self::new(reason, what).exiting(Exit::Blocked)
    }

    /// A tool failed for a reason that is not in a table.
    pub fn tool(what: impl Into<String>, source: ExecError) -> Self {
        Self::new("tool-failed", what).caused_by(source)
    }

    /// Unexpected tool output or file content.
    pub fn unreadable(what: impl Display, why: impl Display) -> Self {
        Self::new("tool-output", format!("{what}: {why}"))
    }

    /// This version does not support the change.
    pub fn unsupported(what: impl Display) -> Self {
        Self::blocked(
            "unsupported",
            format!("{what}: not supported by this version"),
        )
        .advice("do it manually, and run `gpu-bootstrap check` to audit the machine")
    }

    /// An internal error.
    pub fn bug(what: &str) -> Self {
        Self::new("bug", what)
            .exiting(Exit::Internal)
            .advice("this is a bug; please report it")
    }

    /// A stop request ended a wait.
    pub fn stopped(what: &str) -> Self {
        Self::new(STOPPED, format!("{what}: stop requested"))
    }

    pub fn exiting(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    pub fn advice(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    pub fn telling(self, words: Option<String>) -> Self {
        Self { words, ..self }
    }

    pub fn caused_by(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            source: Some(Box::new(source)),
            ..self
        }
    }

    pub fn of(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// The result of the command that is the cause.
    pub fn ended(&self) -> Option<&ExecError> {
        self.source.as_ref()?.downcast_ref()
    }
}

impl Report for ChangeError {
    fn exit(&self) -> Exit {
        self.exit
    }

    fn reason(&self) -> &'static str {
        self.reason
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    fn is_retryable(&self) -> bool {
        self.retryable
    }
}

impl From<FilesError> for ChangeError {
    fn from(error: FilesError) -> Self {
        let problem = Self {
            hint: error.hint(),
            ..Self::new(error.reason().unwrap_or("file"), error.to_string())
        };
        match error {
            FilesError::Io { source, .. } => problem.caused_by(source),
            _ => problem,
        }
    }
}
