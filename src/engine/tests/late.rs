//! What passes by itself.

use crate::{error::Report, exit::Exit};

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
