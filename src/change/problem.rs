//! The error of a change, and of what works with changes. It is made where it happens, with its reason for scripts and its
//! hint for people.

use std::{error::Error, fmt::Display};

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
    tools::packages::Fault,
};

/// The reason where a request to stop ended a wait: nothing failed, and no command was left unfinished.
pub const STOPPED: &str = "stopped";

/// The reason where a file has changed since the new content was made from it: the file was not written.
pub const CHANGED_SINCE: &str = "changed-since";

/// Why a change failed, or other work of this program.
#[must_use]
#[derive(Debug, thiserror::Error)]
#[error("{what}{}", attached(.words))]
pub struct Problem {
    /// What failed. It completes "failed to".
    pub what: String,
    /// More words below it, such as the last lines of a log.
    pub words: Option<String>,
    pub reason: &'static str,
    pub exit: Exit,
    pub hint: Option<String>,
    /// Whether another attempt may succeed without help.
    pub passes: bool,
    /// Whether newer package lists may lead to another answer.
    pub depends_on_lists: bool,
    pub source: Option<Box<dyn Error + Send + Sync>>,
    pub class: Class,
}

/// The problems that code tells from others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Class {
    #[default]
    Other,
    /// The package manager failed.
    PackageManager(Fault),
    /// No repository offers a version of this package that matches.
    NoVersion(String),
    /// The transaction would install another kernel.
    NewKernel,
    /// The key of a repository could not be fetched.
    KeyNotFetched,
    /// Docker does not tell which containers a restart would stop.
    DockerSilent,
    /// The program of a container runtime refuses its configuration.
    ConfigurationRefused,
}

impl Problem {
    pub fn new(reason: &'static str, what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            words: None,
            reason,
            exit: Exit::StepFailed,
            hint: None,
            passes: false,
            depends_on_lists: false,
            source: None,
            class: Class::Other,
        }
    }

    /// A problem because of which nothing was changed.
    pub fn blocked(reason: &'static str, what: impl Into<String>) -> Self {
        Self::new(reason, what).exiting(Exit::Blocked)
    }

    /// A tool failed, for a reason that has no row in a table.
    pub fn tool(what: impl Into<String>, source: ExecError) -> Self {
        Self::new("tool-failed", what).caused_by(source)
    }

    /// The output of a tool, or the state of a file, is not as expected.
    pub fn unreadable(what: impl Display, why: impl Display) -> Self {
        Self::new("tool-output", format!("{what}: {why}"))
    }

    /// This version does not support the change.
    pub fn unsupported(what: impl Display) -> Self {
        Self::blocked(
            "unsupported",
            format!("{what}: this version cannot do that yet"),
        )
        .advice("do it by hand, and run `gpu-bootstrap check` to audit the machine")
    }

    /// This program did what it never does.
    pub fn bug(what: &str) -> Self {
        Self::new("bug", what)
            .exiting(Exit::Internal)
            .advice("this is a bug; please report it")
    }

    /// A request to stop ended a wait.
    pub fn stopped(what: &str) -> Self {
        Self::new(STOPPED, format!("{what}: asked to stop"))
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

    /// How the command ended that is the cause.
    pub fn ended(&self) -> Option<&ExecError> {
        self.source.as_ref()?.downcast_ref()
    }
}

impl Report for Problem {
    fn exit(&self) -> Exit {
        self.exit
    }

    fn reason(&self) -> &'static str {
        self.reason
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    fn passes(&self) -> bool {
        self.passes
    }
}

impl From<FilesError> for Problem {
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
