//! Why a package transaction failed or was refused.

use camino::Utf8PathBuf;

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
    tools::packages::Fault,
};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// Another package manager did not end in time.
    #[error("wait for another package manager: after {waited} s {holder} still holds `{path}`")]
    Locked {
        /// The lock.
        path: Utf8PathBuf,
        /// Who has it, as `unattended-upgr (pid 812)`.
        holder: String,
        /// Seconds waited.
        waited: u64,
    },
    /// The package manager failed.
    #[error("{what}{}", attached(.attachment))]
    Failed {
        /// What was tried.
        what: String,
        /// Its class.
        fault: Fault,
        /// What to do about it.
        hint: Option<&'static str>,
        /// More words than the tool's own, as the tail of a compiler's log.
        attachment: Option<String>,
        /// What happened.
        source: Box<ExecError>,
    },
    /// The package database is half-configured.
    #[error("start a package transaction: {} half done: {}", are(.packages), .packages.join(", "))]
    HalfDone {
        /// Which packages.
        packages: Vec<String>,
    },
    /// No such version is offered.
    #[error("find a version of `{package}` that matches `{wanted}`: {offered}")]
    NoVersion {
        /// The package.
        package: String,
        /// The pattern, or `any`.
        wanted: String,
        /// What is offered instead, in words.
        offered: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
    /// The transaction would do what the plan does not name.
    #[error("agree to the package transaction: it {}", .reasons.join("; it "))]
    Refused {
        /// What it would do, each.
        reasons: Vec<String>,
    },
    /// The package manager succeeded and the result is another.
    #[error("verify the installed packages: `{package}` is {found}, {wanted} is wanted")]
    NotVerified {
        /// The package.
        package: String,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
}

fn are(packages: &[String]) -> &'static str {
    if packages.len() == 1 {
        "one package is"
    } else {
        "packages are"
    }
}

impl Report for PackageError {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused { .. } | Self::NoVersion { .. } => Exit::Blocked,
            _ => Exit::StepFailed,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Locked { .. } => Fault::Locked.reason(),
            Self::Failed { fault, .. } => fault.reason(),
            Self::HalfDone { .. } => Fault::Interrupted.reason(),
            Self::NoVersion { .. } => Fault::NotFound.reason(),
            Self::Refused { .. } => "transaction-refused",
            Self::NotVerified { .. } => "package-not-verified",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Failed { hint, .. } | Self::NoVersion { hint, .. } => *hint,
            Self::Locked { .. } => Fault::Locked.hint(),
            Self::HalfDone { .. } => Fault::Interrupted.hint(),
            Self::Refused { .. } => Some(
                "nothing was changed; name what may happen in `packages.may-remove` or \
                 `packages.may-upgrade`, or bring the machine up to date first",
            ),
            Self::NotVerified { .. } => None,
        }
        .map(str::to_owned)
    }
}
