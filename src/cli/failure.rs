//! The error of a command, as the one place that prints errors takes it.

use crate::{error::Report, exit::Exit};

/// Any error of a command.
#[derive(Debug)]
pub struct Failure(Box<dyn Report>);

/// An error whose class the command line decides.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Classed {
    message: String,
    exit: Exit,
    reason: &'static str,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Report for Classed {
    fn exit(&self) -> Exit {
        self.exit
    }

    fn reason(&self) -> &'static str {
        self.reason
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl Failure {
    /// With a class of its own.
    pub fn new(exit: Exit, reason: &'static str, message: &str, hint: Option<&str>) -> Self {
        Self(Box::new(Classed {
            message: message.to_owned(),
            exit,
            reason,
            hint: hint.map(str::to_owned),
            source: None,
        }))
    }

    /// The request is wrong as it was given.
    pub fn usage(error: impl std::error::Error + Send + Sync + 'static, hint: &str) -> Self {
        Self::caused(
            Exit::Usage,
            "usage",
            "failed to understand the question",
            error,
            Some(hint),
        )
    }

    /// With a cause.
    pub fn caused(
        exit: Exit,
        reason: &'static str,
        message: &str,
        source: impl std::error::Error + Send + Sync + 'static,
        hint: Option<&str>,
    ) -> Self {
        Self(Box::new(Classed {
            message: message.to_owned(),
            exit,
            reason,
            hint: hint.map(str::to_owned),
            source: Some(Box::new(source)),
        }))
    }

    /// Of the engine.
    pub fn boxed(report: Box<dyn Report>) -> Self {
        Self(report)
    }

    /// The error.
    #[must_use]
    pub fn report(&self) -> &dyn Report {
        &*self.0
    }
}

impl<R: Report> From<R> for Failure {
    fn from(report: R) -> Self {
        Self(Box::new(report))
    }
}
