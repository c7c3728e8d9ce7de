//! Errors of the fake appliers.

use crate::change::{CHANGED_SINCE, ChangeError};

/// A mirror that returns 503 for some time.
pub fn mirror_answers_503() -> ChangeError {
    ChangeError {
        retryable: true,
        ..ChangeError::new("network", "the mirror returned 503")
    }
}

/// The error of a change that would damage files of another program.
pub fn refused() -> ChangeError {
    ChangeError::blocked("refused", "owned by another program")
}

/// An error that newer package lists may resolve.
pub fn by_lists() -> ChangeError {
    let what = "approve the package transaction: it would remove bash";
    ChangeError {
        depends_on_lists: true,
        ..ChangeError::blocked("transaction-refused", what).advice("add it to the settings")
    }
}

/// A file that another program changed after it was read.
pub fn changed_since(path: &str) -> ChangeError {
    ChangeError::new(CHANGED_SINCE, format!("write `{path}`"))
}

/// A permanent error.
pub fn broken(error: impl ToString) -> ChangeError {
    ChangeError::new("broken", error.to_string()).advice("repair it")
}
