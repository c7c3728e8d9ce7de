//! Why a package transaction failed or was refused.

use camino::Utf8PathBuf;

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
    model::version::{Branch, DriverVersion},
    tools::packages::Fault,
};

/// Why a package transaction failed or was refused.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// Another package manager did not finish in time.
    #[error("wait for another package manager: after {waited} s {holder} still holds `{path}`")]
    Locked {
        /// The lock file.
        path: Utf8PathBuf,
        /// The process that holds it, for example `unattended-upgr (pid 812)`.
        holder: String,
        /// Seconds that were waited.
        waited: u64,
    },
    /// The package manager failed.
    #[error("{what}{}", attached(.attachment))]
    Failed {
        /// The action.
        what: String,
        /// The class of the failure.
        fault: Fault,
        /// What the user can do about it.
        hint: Option<String>,
        /// Further text, for example the end of a compiler's log.
        attachment: Option<String>,
        /// What happened.
        source: Box<ExecError>,
    },
    /// Packages are half installed or half configured.
    #[error("start a package transaction: {} half done: {}", are(.packages), .packages.join(", "))]
    HalfDone { packages: Vec<String> },
    /// No repository offers a version that matches.
    #[error("find a version of `{package}` that matches `{wanted}`: {offered}")]
    NoVersion {
        package: String,
        /// The pattern, or `any`.
        wanted: String,
        /// What is offered instead, as a sentence part.
        offered: String,
        /// What the user can do about it.
        hint: Option<String>,
    },
    /// No repository offers the version that an interrupted transaction has begun to install.
    #[error(
        "complete the interrupted transaction: no repository offers `{package}` any more, and its \
         scripts have not all run"
    )]
    NotOffered {
        /// The package with its version.
        package: String,
        /// The command that brings it to a version that is offered.
        command: Option<String>,
    },
    /// The transaction would do something that the plan does not approve.
    #[error("approve the package transaction: it {}", .reasons.join("; it "))]
    Refused {
        /// What it would do, one entry per action, as `would …`.
        reasons: Vec<String>,
    },
    /// The transaction would change packages that somebody else holds.
    #[error(
        "approve the package transaction: {} must change with it, and somebody holds {}",
        .packages.join(", "),
        match .packages.len() { 1 => "it", _ => "them" }
    )]
    HeldByOthers {
        packages: Vec<String>,
        /// The command that releases their holds, and what it changes, as a part of a sentence.
        release: String,
    },
    /// The transaction would install another kernel.
    #[error(
        "approve the package transaction: it would install another kernel: {}",
        .packages.join(", ")
    )]
    NewKernel {
        /// The packages of the kernel.
        packages: Vec<String>,
        /// The command that installs a kernel.
        install: &'static str,
    },
    /// The transaction would install a driver of another branch.
    #[error(
        "approve the package transaction: it would install a driver of another branch than {wanted}: \
         {}",
        .packages.join(", ")
    )]
    OtherBranch {
        /// `name version` of each.
        packages: Vec<String>,
        /// The branch that is wanted.
        wanted: Branch,
    },
    /// Parts of the driver would come from a repository that a preference of the administrator forbids.
    #[error(
        "approve the package transaction: a preference of this machine forbids the repository of {}",
        .packages.join(", ")
    )]
    ForbiddenSource {
        /// `name version` of each.
        packages: Vec<String>,
        /// What to do about it.
        hint: &'static str,
    },
    /// The transaction would bring a driver module and libraries of different versions.
    #[error(
        "approve the package transaction: the module of `{package}` is driver {module}, and `{library}` \
         would be {found}"
    )]
    OtherModule {
        /// The package with the module.
        package: String,
        /// The version of its module.
        module: DriverVersion,
        /// A package of the driver.
        library: String,
        /// Its version.
        found: String,
    },
    /// The packages do not fit on a filesystem.
    #[error("find space for the packages: {}", .short.join("; "))]
    NoSpace {
        /// The filesystems with what they have and what is needed, one sentence each.
        short: Vec<String>,
        /// The command that removes downloaded packages.
        clean: &'static str,
    },
    /// The package manager succeeded, but the result differs from the request.
    #[error("verify the installed packages: `{package}` is {found}, {wanted} is wanted")]
    NotVerified {
        package: String,
        /// What is installed.
        found: String,
        /// What should be installed.
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
            Self::Refused { .. }
            | Self::HeldByOthers { .. }
            | Self::NoVersion { .. }
            | Self::NotOffered { .. }
            | Self::NewKernel { .. }
            | Self::OtherBranch { .. }
            | Self::ForbiddenSource { .. }
            | Self::OtherModule { .. }
            | Self::NoSpace { .. } => Exit::Blocked,
            _ => Exit::StepFailed,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Locked { .. } => Fault::Locked.reason(),
            Self::Failed { fault, .. } => fault.reason(),
            Self::HalfDone { .. } => Fault::Interrupted.reason(),
            Self::NoVersion { .. } | Self::NotOffered { .. } => Fault::NotFound.reason(),
            Self::Refused { .. } => "transaction-refused",
            Self::HeldByOthers { .. } => Fault::Held.reason(),
            Self::NewKernel { .. } => "new-kernel",
            Self::OtherBranch { .. } => "driver-branch",
            Self::ForbiddenSource { .. } => "forbidden-source",
            Self::OtherModule { .. } => "driver-module-version",
            Self::NoSpace { .. } => Fault::NoSpace.reason(),
            Self::NotVerified { .. } => "package-not-verified",
        }
    }

    fn passes(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Failed { fault, .. } => fault.is_transient() || fault.passes(),
            _ => false,
        }
    }

    fn depends_on_lists(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::NewKernel { .. }
                | Self::OtherBranch { .. }
                | Self::OtherModule { .. }
        )
    }

    fn hint(&self) -> Option<String> {
        if let Self::NoSpace { clean, .. } = self {
            return Some(format!(
                "free some room (old kernels, package cache: `{clean}`) or enlarge the disk; no \
                 package was changed"
            ));
        }
        match self {
            Self::Failed { hint, .. } | Self::NoVersion { hint, .. } => return hint.clone(),
            Self::Locked { .. } => Fault::Locked.hint(),
            Self::HalfDone { .. } => Fault::Interrupted.hint(),
            Self::Refused { .. } => Some(
                "nothing was changed; name what may happen in `packages.may-remove` or \
                 `packages.may-upgrade`, or bring the machine up to date first",
            ),
            Self::HeldByOthers { release, .. } => {
                return Some(format!(
                    "release the hold ({release}), or keep the driver as it is; nothing was changed"
                ));
            }
            Self::NewKernel { install, .. } => {
                return Some(format!(
                    "install that kernel yourself (`{install}`), reboot, and run the command again; \
                     or set `driver.build = \"dkms\"`, which compiles the module for the running \
                     kernel"
                ));
            }
            Self::NotOffered { command, .. } => {
                let with = (command.as_ref()).map_or_else(
                    || "the package manager's own command".to_owned(),
                    |command| format!("`{command}`"),
                );
                return Some(format!(
                    "nothing was changed; bring this package to a version that is offered with \
                     {with}, and run `gpu-bootstrap install` again: it completes the other packages, \
                     which are recorded"
                ));
            }
            Self::OtherBranch { .. } => Some(
                "the archive replaced that branch by a newer one: set `driver.branch` to the branch \
                 that it has",
            ),
            Self::ForbiddenSource { hint, .. } => Some(*hint),
            Self::OtherModule { .. } => Some(
                "the archive has modules and libraries of different versions for this kernel: run the \
                 command again later, or set `driver.build = \"dkms\"`, which compiles the module of the \
                 libraries' version",
            ),
            Self::NotVerified { .. } | Self::NoSpace { .. } => None,
        }
        .map(str::to_owned)
    }
}
