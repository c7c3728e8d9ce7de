//! Errors of the fake appliers.

use crate::change::{CHANGED_SINCE, Problem};

/// A mirror that returns 503 for some time.
pub fn mirror_answers_503() -> Problem {
    Problem {
        passes: true,
        ..Problem::new("network", "the mirror returned 503")
    }
}

/// A change that would break something.
pub fn refused() -> Problem {
    Problem::blocked("refused", "owned by another program")
}

/// An error that newer package lists may resolve.
pub fn by_lists() -> Problem {
    let what = "approve the package transaction: it would remove bash";
    Problem {
        depends_on_lists: true,
        ..Problem::blocked("transaction-refused", what).advice("add it to the settings")
    }
}

/// A file that another program changed after it was read.
pub fn changed_since(path: &str) -> Problem {
    Problem::new(CHANGED_SINCE, format!("write `{path}`"))
}

/// A permanent error.
pub fn broken(error: impl ToString) -> Problem {
    Problem::new("broken", error.to_string()).advice("repair it")
}
