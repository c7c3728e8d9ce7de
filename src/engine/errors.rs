//! Why a run did not begin, or could not be recorded.

use super::graph::GraphError;
use crate::{
    change::Problem,
    error::Report,
    exit::Exit,
    host::FilesError,
    journal::{Awaited, JournalError},
};

/// The most reboots without a complete run. After that, another reboot will not help.
pub(super) const MOST_REBOOTS: u32 = 3;

/// The most of them if drivers have failed validations in between. Beyond it no run reboots for another
/// driver; the rollback has its own three.
pub(super) const MOST_REBOOTS_IN_ALL: u32 = 6;

/// Why a run did not begin, or could not be recorded. What goes wrong within a step is in the
/// report of the run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A bug in the list of steps.
    #[error("start the run")]
    Graph(#[from] GraphError),
    /// The journal cannot be read or written.
    #[error("record the run")]
    Journal(#[from] JournalError),
    /// The end of the run cannot be recorded. Its changes are recorded, and stay.
    #[error("record the end of the run")]
    Unfinished(#[source] JournalError),
    /// The reboot that is awaited has not happened.
    #[error("start the run: a reboot has been awaited since {} ({})", .awaited.since, .awaited.why)]
    RebootFirst {
        /// Which.
        awaited: Awaited,
        /// How many were awaited since the last complete run.
        reboots: u32,
    },
    /// Anything else.
    #[error(transparent)]
    Problem(#[from] Problem),
}

/// The error where `check` or `explain` was asked for a finding that does not exist; `nearest` is the most similar one.
pub fn no_finding(name: &str, nearest: Option<&str>) -> Problem {
    let hint = nearest.map_or_else(
        || "run `gpu-bootstrap explain` for all names".to_owned(),
        |nearest| format!("did you mean `{nearest}`?"),
    );
    let what = format!("find `{name}`: no finding has this name");
    Problem::new("no-finding", what)
        .exiting(Exit::Usage)
        .advice(hint)
}

/// The error where the run lock cannot be tried.
pub(super) fn not_locked(error: FilesError) -> Problem {
    let (mut exit, mut reason, mut hint) = (Exit::Internal, "run-lock", error.hint());
    if error.disk().is_some() {
        (exit, reason) = (Exit::Blocked, error.reason().unwrap_or(reason));
    } else if error.is_denied() {
        (exit, hint) = (Exit::NotPermitted, Some("run it as root".to_owned()));
    }
    Problem {
        hint,
        ..Problem::new(reason, "take the run lock")
            .exiting(exit)
            .caused_by(error)
    }
}

impl Report for EngineError {
    fn exit(&self) -> Exit {
        match self {
            Self::Graph(_) => Exit::Internal,
            Self::Journal(error) => error.exit(),
            // Only a run that changed nothing may say "nothing was changed".
            Self::Unfinished(error) => match error.exit() {
                Exit::Blocked => Exit::StepFailed,
                other => other,
            },
            Self::RebootFirst { .. } => Exit::RebootRequired,
            Self::Problem(problem) => problem.exit,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Graph(_) => "steps-out-of-order",
            Self::Journal(error) | Self::Unfinished(error) => error.reason(),
            Self::RebootFirst { .. } => "reboot-first",
            Self::Problem(problem) => problem.reason,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Graph(_) => Some("this is a bug; please report it".to_owned()),
            Self::Journal(error) | Self::Unfinished(error) => error.hint(),
            Self::Problem(problem) => problem.hint.clone(),
            Self::RebootFirst { awaited, reboots } => Some(if awaited.automatic {
                format!(
                    "the machine reboots automatically in a moment ({reboots} of {MOST_REBOOTS}); \
                     if it does not, run `gpu-bootstrap install --reboot`"
                )
            } else {
                "reboot, then run `gpu-bootstrap install` again; with `--reboot` the program does \
                 both"
                    .to_owned()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;
    use crate::host::files::{FullFilesystem, Limit, Room};

    #[test]
    fn a_lock_that_only_root_may_take_is_no_bug() {
        let lock = |kind, disk| {
            not_locked(FilesError::Io {
                verb: "lock",
                path: "/run/lock".into(),
                source: Error::from(kind),
                disk,
            })
        };
        let denied = lock(ErrorKind::PermissionDenied, None);
        assert_eq!(denied.exit(), Exit::NotPermitted);
        assert_eq!(denied.hint().as_deref(), Some("run it as root"));
        let other = lock(ErrorKind::NotFound, None);
        assert_eq!((other.exit(), other.reason()), (Exit::Internal, "run-lock"));
        assert_ne!(other.hint().as_deref(), Some("run it as root"));
        let full = FullFilesystem {
            mount: "/run".into(),
            room: Room {
                total: 1,
                free: 0,
                read_only: false,
                inodes: None,
            },
            limit: Limit::Space,
        };
        let full = lock(ErrorKind::StorageFull, Some(Box::new(full)));
        assert_eq!(
            (full.exit(), full.reason()),
            (Exit::Blocked, "no-disk-space")
        );
    }
}
