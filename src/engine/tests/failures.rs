//! Errors of the fake verbs.

use crate::change::{CHANGED_SINCE, Problem};

/// A mirror that answers 503 for some time.
pub fn mirror_answers_503() -> Problem {
    Problem {
        passes: true,
        ..Problem::new("network", "the mirror answered 503")
    }
}

/// What would break something.
pub fn refused() -> Problem {
    Problem::blocked("refused", "it belongs to somebody else")
}

/// What newer package lists may allow.
pub fn by_lists() -> Problem {
    let what = "approve the package transaction: it would remove bash";
    Problem {
        depends_on_lists: true,
        ..Problem::blocked("transaction-refused", what).advice("name it")
    }
}

/// A file that another program has changed since the new content was made from it.
pub fn changed_since(path: &str) -> Problem {
    Problem::new(CHANGED_SINCE, format!("write `{path}`"))
}

/// What does not pass by itself.
pub fn broken(error: impl ToString) -> Problem {
    Problem::new("broken", error.to_string()).advice("mend it")
}
