//! The error type for all work on the machine: changes, cluster joins, and external tools. An error gets its machine-readable
//! reason and its hint for the user where it occurs.

use std::{error::Error, fmt::Display};

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
    tools::packages::FailureClass,
};

/// The reason if a stop was requested during a wait. Nothing has failed, and no command was interrupted.
pub const STOPPED: &str = "stopped";

/// The reason if a file was modified after its new content had been computed, so it was not written.
pub const CHANGED_SINCE: &str = "changed-since";

#[must_use]
#[derive(Debug, thiserror::Error)]
#[error("{what}{}", attached(.words))]
pub struct ChangeError {
    /// The failed action, worded to follow "failed to", such as "install packages".
    pub what: String,
    /// Additional lines that are printed below the message, such as the end of a log.
    pub words: Option<String>,
    /// The machine-readable reason, such as `tool-failed`. Scripts depend on it, so it must not change.
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

/// The errors that callers handle differently.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Class {
    #[default]
    Other,
    /// The package manager failed.
    PackageManager(FailureClass),
    /// No repository has a suitable version of the package with this name.
    NoVersion(String),
    /// The transaction would install a kernel that is not in the plan.
    NewKernel,
    /// The key of a repository could not be downloaded.
    KeyNotFetched,
    /// A source of prebuilt modules cannot be accessed now.
    SourceUnavailable,
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

    /// An external tool failed, and a more specific reason is not known.
    pub fn tool(what: impl Into<String>, source: ExecError) -> Self {
        Self::new("tool-failed", what).caused_by(source)
    }

    /// Unexpected tool output or file content.
    pub fn unreadable(what: impl Display, why: impl Display) -> Self {
        Self::new("tool-output", format!("{what}: {why}"))
    }

    /// gpu-bootstrap cannot make this change on the machine.
    pub fn unsupported(what: impl Display) -> Self {
        Self::blocked(
            "unsupported",
            format!("{what}: not supported by this version of gpu-bootstrap"),
        )
        .advice("make this change manually, then run `gpu-bootstrap check`")
    }

    /// An internal error.
    pub fn bug(what: &str) -> Self {
        Self::new("bug", what)
            .exiting(Exit::Internal)
            .advice("this is a bug; please report it")
    }

    /// A stop was requested during a wait.
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

    /// Returns the command error that caused this error, if any.
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
