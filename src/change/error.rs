//! What can go wrong with a change, with the word for scripts and the advice for people.

use camino::Utf8PathBuf;

use super::probe::ProbeError;
use crate::{
    error::Report,
    exit::Exit,
    host::{ExecError, FilesError, HttpError},
    tools::{apt_fault, kmod, openpgp::OpenPgpError},
};

/// The word of [`ChangeError::Stopped`]: nothing failed, and nothing was begun that needs an end.
pub const STOPPED: &str = "stopped";

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A file could not be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A tool failed, and nothing more is known about why.
    #[error("{what}")]
    Tool {
        /// What was tried, as `restart docker.service`.
        what: String,
        /// What happened.
        source: ExecError,
    },
    /// A tool answered what cannot be understood.
    #[error("{what}: {why}")]
    Unreadable {
        /// What was tried.
        what: String,
        /// What was expected and what was there.
        why: String,
    },
    /// A backup is missing or damaged.
    #[error("use the backup `{path}`: {why}")]
    Backup {
        /// Where it should be.
        path: Utf8PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// This version cannot do that.
    #[error("{what} is not available in this version")]
    Unsupported {
        /// What.
        what: String,
    },
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
    /// Somebody asked to stop while there was only waiting to do.
    #[error("{what}: asked to stop")]
    Stopped {
        /// What was waited for.
        what: String,
    },
    /// apt or dpkg failed.
    #[error("{what}{}", attached(.attachment))]
    Packages {
        /// What was tried.
        what: String,
        /// Its class.
        fault: apt_fault::Fault,
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
    },
    /// The transaction would do what the plan does not name.
    #[error("agree to the package transaction: it {}", .reasons.join("; it "))]
    Refused {
        /// What it would do, each.
        reasons: Vec<String>,
    },
    /// apt succeeded and the result is another.
    #[error("verify the installed packages: `{package}` is {found}, {wanted} is wanted")]
    NotVerified {
        /// The package.
        package: String,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
    /// A key or file could not be fetched.
    #[error("fetch the key of repository `{repository}`")]
    Fetch {
        /// The repository.
        repository: String,
        /// What happened.
        source: HttpError,
    },
    /// What was fetched is no key.
    #[error("read the key of repository `{repository}` from `{url}`")]
    NoKey {
        /// The repository.
        repository: String,
        /// Where it came from.
        url: String,
        /// What is wrong with it.
        source: OpenPgpError,
    },
    /// The key is not the one that is trusted.
    #[error(
        "trust the key of repository `{repository}`: `{url}` holds {}, and only {} is accepted",
        .found.join(", "),
        .accepted.join(" or ")
    )]
    KeyMismatch {
        /// The repository.
        repository: String,
        /// Where it came from.
        url: String,
        /// Fingerprints found.
        found: Vec<String>,
        /// Fingerprints accepted.
        accepted: Vec<String>,
    },
    /// The key has expired.
    #[error("trust the key of repository `{repository}`: {fingerprint} expired on {on}")]
    KeyExpired {
        /// The repository.
        repository: String,
        /// Which key.
        fingerprint: String,
        /// The day.
        on: String,
    },
    /// Another source file contradicts.
    #[error(
        "add repository `{repository}`: `{file}` names the same address {uri} with another \
         Signed-By ({theirs})"
    )]
    SourceConflict {
        /// The repository.
        repository: String,
        /// The other file.
        file: Utf8PathBuf,
        /// The address and suite.
        uri: String,
        /// Its keyring.
        theirs: String,
    },
    /// A repository is not described well enough.
    #[error("add repository `{repository}`: {why}")]
    Repository {
        /// The repository.
        repository: String,
        /// What is missing.
        why: String,
    },
    /// A unit did not become what it should.
    #[error("{what}: the unit is {state}{}", attached(.last_words))]
    Unit {
        /// What was tried.
        what: String,
        /// What it is.
        state: String,
        /// What it last wrote to the journal.
        last_words: Option<String>,
    },
    /// A kernel module was refused.
    #[error("{what}")]
    Module {
        /// What was tried.
        what: String,
        /// Its class.
        fault: kmod::Fault,
        /// What happened.
        source: ExecError,
    },
    /// A kernel module is in use.
    #[error("unload kernel module `{module}`: it is in use by {by}")]
    InUse {
        /// Which.
        module: String,
        /// By whom.
        by: String,
    },
    /// A DKMS build failed.
    #[error("build kernel module `{module}` for {kernel}{}", attached(.log))]
    Build {
        /// Which.
        module: String,
        /// For which kernel.
        kernel: String,
        /// The end of the compiler's log.
        log: Option<String>,
        /// What happened; nothing where DKMS does not know the module.
        source: Option<Box<ExecError>>,
    },
    /// The proof failed.
    #[error(transparent)]
    Proof(#[from] ProbeError),
}

fn attached(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!("\n{text}"))
        .unwrap_or_default()
}

fn are(packages: &[String]) -> &'static str {
    if packages.len() == 1 {
        "one package is"
    } else {
        "packages are"
    }
}

impl Report for ChangeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Unsupported { .. }
            | Self::Refused { .. }
            | Self::NoVersion { .. }
            | Self::KeyMismatch { .. }
            | Self::KeyExpired { .. }
            | Self::SourceConflict { .. }
            | Self::Repository { .. } => Exit::Blocked,
            _ => Exit::StepFailed,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("file"),
            Self::Tool { .. } => "tool-failed",
            Self::Unreadable { .. } => "tool-output",
            Self::Backup { .. } => "backup",
            Self::Unsupported { .. } => "unsupported",
            Self::Locked { .. } => "apt-lock-timeout",
            Self::Stopped { .. } => STOPPED,
            Self::Packages { fault, .. } => fault.reason(),
            Self::HalfDone { .. } => "package-database-interrupted",
            Self::NoVersion { .. } => "package-not-found",
            Self::Refused { .. } => "transaction-refused",
            Self::NotVerified { .. } => "package-not-verified",
            Self::Fetch { .. } => "key-fetch",
            Self::NoKey { .. } => "key-malformed",
            Self::KeyMismatch { .. } => "key-mismatch",
            Self::KeyExpired { .. } => "key-expired",
            Self::SourceConflict { .. } => "repository-conflict",
            Self::Repository { .. } => "repository",
            Self::Unit { .. } => "unit-failed",
            Self::Module { fault, .. } => match fault {
                kmod::Fault::KeyRejected => "module-signature",
                kmod::Fault::NotFound => "module-not-found",
                kmod::Fault::WrongKernel => "module-kernel",
                kmod::Fault::NoDevice => "module-no-device",
                kmod::Fault::InUse => "module-in-use",
                kmod::Fault::Other => "module-failed",
            },
            Self::InUse { .. } => "module-in-use",
            Self::Build { .. } => "module-build",
            Self::Proof(error) => error.reason(),
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Proof(error) => return error.hint(),
            Self::Files(error) => return error.hint(),
            Self::Packages { fault, .. } => return fault.hint().map(str::to_owned),
            Self::Locked { .. } => apt_fault::Fault::Locked.hint()?,
            Self::HalfDone { .. } => apt_fault::Fault::Interrupted.hint()?,
            Self::NoVersion { .. } => apt_fault::Fault::NotFound.hint()?,
            Self::Build { .. } => apt_fault::Fault::Build.hint()?,
            Self::SourceConflict { file, .. } => {
                return Some(format!("remove `{file}`, or the entry in it"));
            }
            Self::Refused { .. } => {
                "nothing was changed; name what may happen in `packages.may-remove` or \
                 `packages.may-upgrade`, or bring the machine up to date first"
            }
            Self::KeyMismatch { .. } => {
                "nothing was changed. Ask the repository's vendor, over another way than this \
                 network, which fingerprint is right; a key that changed without notice can be \
                 an attack"
            }
            Self::KeyExpired { .. } => {
                "the vendor must publish the key anew; check the machine's clock, too"
            }
            Self::Module { fault, .. } => match fault {
                kmod::Fault::KeyRejected => {
                    "Secure Boot is on and the kernel does not know who signed the module: \
                     install a module signed by the distribution, or enrol the signing key with \
                     `mokutil` from the console"
                }
                kmod::Fault::NotFound => {
                    "the module was not built for the running kernel: its headers are missing, \
                     or the machine must boot the kernel it was built for (`dkms status`)"
                }
                kmod::Fault::WrongKernel => {
                    "the module belongs to another kernel; reboot, or build it for this one"
                }
                kmod::Fault::NoDevice => {
                    "another driver has the GPU, or the driver does not support it; the kernel \
                     log says which (`dmesg`)"
                }
                kmod::Fault::InUse | kmod::Fault::Other => return None,
            },
            Self::InUse { .. } => "stop what uses it, or reboot",
            Self::Fetch { .. } => apt_fault::Fault::Network.hint()?,
            _ => return None,
        };
        Some(text.to_owned())
    }
}
