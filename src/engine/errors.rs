//! Why a run did not begin, or could not be recorded.

use super::graph::GraphError;
use crate::{
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
    /// `check` was asked for a finding that does not exist.
    #[error("start the check: there is no finding `{name}`")]
    NoFinding {
        /// The name as it was given.
        name: String,
        /// The most similar finding.
        nearest: Option<String>,
    },
    /// The journal cannot be read or written.
    #[error("record the run")]
    Journal(#[from] JournalError),
    /// The end of the run cannot be recorded. Its changes are recorded, and stay.
    #[error("record the end of the run")]
    Unfinished(#[source] JournalError),
    /// The run lock cannot be tried.
    #[error("take the run lock")]
    Lock(#[source] FilesError),
    /// Another run holds the lock.
    #[error("start the run: another one is running ({holder})")]
    Busy {
        /// Its pid, command, and since when.
        holder: String,
    },
    /// The reboot that is awaited has not happened.
    #[error("start the run: a reboot has been awaited since {} ({})", .awaited.since, .awaited.why)]
    RebootFirst {
        /// Which.
        awaited: Awaited,
        /// How many were awaited since the last complete run.
        reboots: u32,
    },
}

impl Report for EngineError {
    fn exit(&self) -> Exit {
        match self {
            Self::Graph(_) => Exit::Internal,
            Self::NoFinding { .. } => Exit::Usage,
            Self::Journal(error) => error.exit(),
            // Only a run that changed nothing may say "nothing was changed".
            Self::Unfinished(error) => match error.exit() {
                Exit::Blocked => Exit::StepFailed,
                other => other,
            },
            Self::Lock(error) if error.disk().is_some() => Exit::Blocked,
            Self::Lock(error) if error.is_denied() => Exit::NotPermitted,
            Self::Lock(_) => Exit::Internal,
            Self::Busy { .. } => Exit::Busy,
            Self::RebootFirst { .. } => Exit::RebootRequired,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Graph(_) => "steps-out-of-order",
            Self::NoFinding { .. } => "no-finding",
            Self::Journal(error) | Self::Unfinished(error) => error.reason(),
            Self::Lock(error) if error.disk().is_some() => error.reason().unwrap_or("run-lock"),
            Self::Lock(_) => "run-lock",
            Self::Busy { .. } => "busy",
            Self::RebootFirst { .. } => "reboot-first",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Graph(_) => Some("this is a bug; please report it".to_owned()),
            Self::NoFinding { nearest, .. } => Some(nearest.as_ref().map_or_else(
                || "run `gpu-bootstrap check -v` for all names".to_owned(),
                |nearest| format!("did you mean `{nearest}`?"),
            )),
            Self::Journal(error) | Self::Unfinished(error) => error.hint(),
            Self::Lock(_) if self.exit() == Exit::NotPermitted => Some("run it as root".to_owned()),
            Self::Lock(error) => error.hint(),
            Self::Busy { .. } => {
                Some("wait for it; run `gpu-bootstrap status` to follow it".to_owned())
            }
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
    use crate::host::files::{Disk, Room};

    #[test]
    fn a_lock_that_only_root_may_take_is_no_bug() {
        let lock = |kind, disk| {
            EngineError::Lock(FilesError::Io {
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
        let full = Disk {
            mount: "/run".into(),
            room: Room {
                total: 1,
                free: 0,
                read_only: false,
            },
        };
        let full = lock(ErrorKind::StorageFull, Some(Box::new(full)));
        assert_eq!(
            (full.exit(), full.reason()),
            (Exit::Blocked, "no-disk-space")
        );
    }
}
