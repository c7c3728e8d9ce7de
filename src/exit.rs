//! Exit codes. They are part of the command-line interface and never change.

use serde::Serialize;

/// The exit status of the process. Scripts and units rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// Compliant, installed, or nothing to do.
    Ok,
    /// A bug, or an error without its own code.
    Internal,
    /// Invalid options or arguments.
    Usage,
    /// The settings, a profile or the matrix are invalid, or a file is writable by non-root users.
    Config,
    /// `check`: a finding fails, or nothing could be checked. `plan`: changes are pending. `probe`: a layer fails.
    /// `compat`: the result is unknown. `report`: a node fails or differs.
    Drift,
    /// A condition is not met, for example because the machine is unsupported or its disk is full. No changes were made.
    Blocked,
    /// A change or its verification failed, or a step could not read the machine.
    StepFailed,
    /// `uninstall` finished, or `install` reverted a removed setting, but some changes could not be
    /// undone.
    Partial,
    /// Progress is saved: reboot, then run the command again.
    RebootRequired,
    /// Another run holds the lock, or `status --wait` timed out.
    Busy,
    /// Root is required.
    NotPermitted,
    /// SIGINT; a running change was finished first.
    Interrupted,
    /// SIGTERM; a running change was finished first.
    Terminated,
    /// `check` as a monitoring plugin: the status of its protocol, 0 to 3.
    Plugin(u8),
}

impl Exit {
    /// The process exit status.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Config => 3,
            Self::Drift => 4,
            Self::Blocked => 5,
            Self::StepFailed => 6,
            Self::Partial => 7,
            Self::RebootRequired => 8,
            Self::Busy => 9,
            Self::NotPermitted => 10,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::Plugin(status) => status,
        }
    }

    /// Returns the variant of an exit status. An unknown status becomes `Internal`.
    pub fn of(code: u8) -> Self {
        const ALL: [Exit; 13] = [
            Exit::Ok,
            Exit::Internal,
            Exit::Usage,
            Exit::Config,
            Exit::Drift,
            Exit::Blocked,
            Exit::StepFailed,
            Exit::Partial,
            Exit::RebootRequired,
            Exit::Busy,
            Exit::NotPermitted,
            Exit::Interrupted,
            Exit::Terminated,
        ];
        let named = ALL.into_iter().find(|exit| exit.code() == code);
        named.unwrap_or(Self::Internal)
    }
}
