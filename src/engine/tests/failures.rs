//! Errors of the fake verbs.

use crate::{engine::Failure, error::Report, exit::Exit};

/// A mirror that answers 503 for some time.
#[derive(Debug, thiserror::Error)]
#[error("the mirror answered 503")]
pub struct Unreachable;

impl Report for Unreachable {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        "network"
    }

    fn hint(&self) -> Option<String> {
        None
    }

    fn passes(&self) -> bool {
        true
    }
}

/// What would break something.
#[derive(Debug, thiserror::Error)]
#[error("it belongs to somebody else")]
pub struct Refused;

impl Report for Refused {
    fn exit(&self) -> Exit {
        Exit::Blocked
    }

    fn reason(&self) -> &'static str {
        "refused"
    }

    fn hint(&self) -> Option<String> {
        None
    }
}

/// What newer package lists may allow.
#[derive(Debug, thiserror::Error)]
#[error("approve the package transaction: it would remove bash")]
pub struct ByLists;

impl Report for ByLists {
    fn exit(&self) -> Exit {
        Exit::Blocked
    }

    fn reason(&self) -> &'static str {
        "transaction-refused"
    }

    fn hint(&self) -> Option<String> {
        Some("name it".to_owned())
    }

    fn depends_on_lists(&self) -> bool {
        true
    }
}

/// What does not pass by itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

impl Report for Broken {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        "broken"
    }

    fn hint(&self) -> Option<String> {
        Some("mend it".to_owned())
    }
}

pub fn broken(error: impl ToString) -> Failure {
    Box::new(Broken(error.to_string()))
}
