//! The error type of commands. Errors are printed in one place, `super::run`.

use crate::{change::ChangeError, error::Report, exit::Exit};

/// An error of any type.
#[derive(Debug)]
pub struct Failure(Box<dyn Report>);

/// Several errors with the same exit code.
#[derive(Debug, thiserror::Error)]
#[error("{} errors", .0.len())]
struct Several(Vec<Failure>);

impl Report for Several {
    fn exit(&self) -> Exit {
        (self.0.first()).map_or(Exit::Usage, |first| first.report().exit())
    }

    fn reason(&self) -> &'static str {
        (self.0.first()).map_or("usage", |first| first.report().reason())
    }

    fn hint(&self) -> Option<String> {
        None
    }

    fn parts(&self) -> Vec<&dyn Report> {
        self.0.iter().map(Failure::report).collect()
    }
}

impl Failure {
    /// Returns an error if the list is not empty. Each error is printed with its own hint.
    pub fn unless_none(errors: Vec<Self>) -> Result<(), Self> {
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Several(errors).into()),
        }
    }

    /// Creates an error with its own exit code and reason.
    pub fn new(exit: Exit, reason: &'static str, message: &str, hint: Option<&str>) -> Self {
        let hint = hint.map(str::to_owned);
        Self(Box::new(ChangeError {
            hint,
            ..ChangeError::new(reason, message).exiting(exit)
        }))
    }

    /// Creates a usage error: the arguments are invalid.
    pub fn usage(error: impl std::error::Error + Send + Sync + 'static, hint: &str) -> Self {
        Self::caused(
            Exit::Usage,
            "usage",
            "failed to parse the arguments",
            error,
            Some(hint),
        )
    }

    /// Creates an error with a cause.
    pub fn caused(
        exit: Exit,
        reason: &'static str,
        message: &str,
        source: impl std::error::Error + Send + Sync + 'static,
        hint: Option<&str>,
    ) -> Self {
        let problem = ChangeError::new(reason, message).exiting(exit);
        Self(Box::new(ChangeError {
            hint: hint.map(str::to_owned),
            ..problem.caused_by(source)
        }))
    }

    /// The error.
    pub fn report(&self) -> &dyn Report {
        &*self.0
    }
}

impl<R: Report> From<R> for Failure {
    fn from(report: R) -> Self {
        Self(Box::new(report))
    }
}
