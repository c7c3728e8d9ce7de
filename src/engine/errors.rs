//! Errors that prevent a run from starting or from being recorded.

use super::graph::GraphError;
use crate::{
    change::ChangeError,
    error::Report,
    exit::Exit,
    host::FilesError,
    journal::{Awaited, JournalError},
};

/// The maximum number of reboots without a successful run. Another reboot will not help.
pub(super) const MOST_REBOOTS: u32 = 3;

/// The maximum number of reboots if drivers failed validation in between. After that, no run
/// reboots for another driver. A rollback has its own limit of three.
pub(super) const MOST_REBOOTS_IN_ALL: u32 = 6;

/// An error that prevents a run from starting or from being recorded. Errors of steps are in the
/// report of the run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A bug in the list of steps.
    #[error("start the run")]
    Graph(#[from] GraphError),
    /// The journal cannot be read or written.
    #[error("record the run")]
    Journal(#[from] JournalError),
    /// After the start of the run, a journal record or a related file could not be written or removed.
    /// The changes up to then are recorded and stay applied.
    #[error("update the record and the files of the run")]
    Unfinished(#[source] JournalError),
    /// The pending reboot has not happened yet.
    #[error("start the run: a reboot is pending since {} ({})", .awaited.since, .awaited.why)]
    RebootFirst {
        /// The pending reboot.
        awaited: Awaited,
        /// The number of requested reboots since the last successful run, or since a driver failed
        /// validation.
        reboots: u32,
    },
    /// Any other error.
    #[error(transparent)]
    ChangeError(#[from] ChangeError),
}

/// The error if a finding passed to `check` or `explain` does not exist. `nearest` is the most
/// similar ID.
pub fn no_finding(name: &str, nearest: Option<&str>) -> ChangeError {
    let hint = nearest.map_or_else(
        || "run `gpu-bootstrap explain` to list all IDs".to_owned(),
        |nearest| format!("did you mean `{nearest}`?"),
    );
    let what = format!("find `{name}`: no such finding");
    ChangeError::new("no-finding", what)
        .exiting(Exit::Usage)
        .advice(hint)
}

/// The error if the run lock cannot be opened.
pub(super) fn not_locked(error: FilesError) -> ChangeError {
    let (mut exit, mut reason, mut hint) = (Exit::Internal, "run-lock", error.hint());
    if error.disk().is_some() {
        (exit, reason) = (Exit::Blocked, error.reason().unwrap_or(reason));
    } else if error.is_denied() {
        (exit, hint) = (Exit::NotPermitted, Some("run it as root".to_owned()));
    }
    ChangeError {
        hint,
        ..ChangeError::new(reason, "acquire the run lock")
            .exiting(exit)
            .caused_by(error)
    }
}

impl Report for EngineError {
    fn exit(&self) -> Exit {
        match self {
            Self::Graph(_) => Exit::Internal,
            Self::Journal(error) => error.exit(),
            // `Blocked` means that nothing was changed, but this run may have applied changes.
            Self::Unfinished(error) => match error.exit() {
                Exit::Blocked => Exit::StepFailed,
                other => other,
            },
            Self::RebootFirst { .. } => Exit::RebootRequired,
            Self::ChangeError(problem) => problem.exit,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Graph(_) => "steps-out-of-order",
            Self::Journal(error) | Self::Unfinished(error) => error.reason(),
            Self::RebootFirst { .. } => "reboot-first",
            Self::ChangeError(problem) => problem.reason,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Graph(_) => Some("this is a bug; please report it".to_owned()),
            Self::Journal(error) | Self::Unfinished(error) => error.hint(),
            Self::ChangeError(problem) => problem.hint.clone(),
            Self::RebootFirst { awaited, reboots } => Some(if awaited.automatic {
                format!(
                    "the machine reboots automatically in a moment (reboot {reboots} of \
                     {MOST_REBOOTS}); if it does not, run the same command with `--reboot`"
                )
            } else {
                "reboot, then run the same command again, or let `--reboot` do both".to_owned()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;
    use crate::host::files::{FreeSpace, FullFilesystem, Limit};

    #[test]
    fn lock_denied_to_non_root_is_not_a_bug() {
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
            free_space: FreeSpace {
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
