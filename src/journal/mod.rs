//! The journal: an append-only record of every change of the machine. Each record is written and
//! synced before the engine continues. It has two purposes: it says what to undo, and that a reboot
//! is awaited. The state of the machine is never read from it.

mod read;
mod receipt;
mod secrecy;
mod store;

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use read::{History, Torn, parse};
pub use receipt::{Awaited, Ended, GoingBack, Proven, Receipt, Run, Standing, Unfinished, fold};
pub use store::Journal;

use crate::{
    change::{Change, Problem, Undo},
    config::desired::{PackagePolicy, PackageWish},
    error::Report,
    event::Summary,
    exit::Exit,
    host::FilesError,
    model::{id::StepId, paths::STATE, pci::PciId, secret::Secret},
    tools::packages::Manager,
};

/// The schema version of [`JournalLine`]. It is increased if an old reader would misunderstand a new journal, or
/// take it for a damaged one. Version 2 has boots that are counted, changes that are undone in part,
/// files that are undone by key, and the rollback to an earlier driver.
pub const SCHEMA: u32 = 2;

/// The journal's path.
#[must_use]
pub fn path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("journal.jsonl")
}

/// The receipt's path.
#[must_use]
pub fn receipt_path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("receipt.json")
}

/// The file of [`Request::credentials`].
fn credentials_path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("credentials.json")
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalLine {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Counts from 0 through the whole journal, without gaps.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// The id of the run that wrote it.
    pub run: String,
    /// The record itself.
    pub record: Record,
}

/// A journal record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Record {
    /// A run has started.
    RunStarted {
        /// Version of this program.
        tool: String,
        /// `install` or `uninstall`.
        mode: String,
        /// The cloud's id of the instance, or the DMI UUID. Another id than before means a cloned
        /// image.
        instance_id: Option<String>,
        /// Different after every boot.
        boot_id: Option<String>,
        /// The options of the run; a resumed run uses the same.
        request: Request,
        /// How the run changes packages; absent in journals of older versions and after
        /// `uninstall`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Policy>,
    },
    /// A run is about to end, because several boots ended before it did. The next boot does not
    /// continue it.
    GaveUp {
        /// What happened.
        why: String,
    },
    /// A change is about to be applied.
    Intent {
        /// The steps that need it.
        steps: Vec<StepId>,
        /// The change.
        change: Change,
        /// How to undo it, as far as this is known in advance.
        undo: Undo,
    },
    /// A change was applied.
    Applied {
        /// The `seq` of its intent.
        intent: u64,
        /// How to undo it, exactly.
        undo: Undo,
    },
    /// A change failed.
    Failed {
        /// The `seq` of its intent.
        intent: u64,
        /// What went wrong.
        message: String,
        /// The causes, outermost first.
        causes: Vec<String>,
        /// How to undo what it did before it failed.
        undo: Undo,
    },
    /// An earlier run was interrupted while it applied a change.
    Interrupted {
        /// The `seq` of its intent.
        intent: u64,
        /// How to undo what it did before the interruption.
        undo: Undo,
    },
    /// A change was undone.
    Reverted {
        /// The `seq` of its intent.
        intent: u64,
        /// A description.
        what: String,
    },
    /// A part of a change was undone, because some of its steps are no longer wanted.
    Reduced {
        /// The `seq` of its intent.
        intent: u64,
        /// The steps that still need it; none if only packages need it that others installed.
        steps: Vec<StepId>,
        /// A description.
        what: String,
        /// How to undo the rest.
        undo: Undo,
    },
    /// A change could not be undone.
    Left {
        /// The `seq` of its intent.
        intent: u64,
        /// What remains, and why.
        why: String,
    },
    /// The run can continue only after a reboot.
    RebootAwaited {
        /// The boot id at this time; another id means that the reboot has happened.
        boot_id: Option<String>,
        /// The reason.
        why: String,
        /// Whether this program reboots the machine and resumes by itself.
        automatic: bool,
    },
    /// The driver has passed every proof.
    Proven {
        /// The settings that name it: its source, flavour, branch and build.
        settings: Vec<String>,
        /// The packages of the driver, with their exact versions.
        driver: Vec<PackageWish>,
    },
    /// Another driver has failed validation. From here on the driver that was proven before is wanted,
    /// until [`Record::WentBack`].
    GoingBack {
        /// The driver that failed.
        from: String,
        /// The driver that was proven before.
        to: String,
        /// How it failed.
        why: String,
    },
    /// The rollback has ended, well or not.
    WentBack {
        /// The driver before has passed validation again.
        proven: bool,
    },
    /// The run has ended regularly.
    RunFinished {
        /// Its exit status.
        exit: u8,
        /// The outcomes, counted.
        summary: Summary,
    },
}

/// The options of a run: enough to repeat it after a reboot, without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Request {
    /// `--profile`: a name, or an absolute path.
    pub profile: Option<String>,
    /// `--config`, absolute.
    pub config: Vec<Utf8PathBuf>,
    /// `--set`, as given.
    pub set: Vec<String>,
    /// `--image`.
    pub image: bool,
    /// `--assume-gpu`.
    pub assume_gpus: Vec<PciId>,
    /// `--reboot`.
    pub reboot: bool,
    /// `--lock-timeout`.
    pub lock_timeout_seconds: Option<u64>,
    /// `--deadline`.
    pub deadline_seconds: Option<u64>,
    /// The settings of `--set` and the environment that hold a secret. They are kept in a file of
    /// their own with mode 0600.
    #[serde(skip)]
    pub credentials: Vec<Secret>,
}

/// The part of the package policy of a run that undoing needs: so `uninstall` needs no profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Policy {
    /// The package manager.
    pub manager: Manager,
    /// Seconds to wait for another package manager to end.
    pub lock_timeout_seconds: u64,
    /// Units that start the package manager by themselves; paused during a run.
    pub pause_units: Vec<String>,
    /// Shell patterns over names of packages that are a kernel: the running one stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
}

impl Policy {
    /// What undoing needs to know of a policy.
    #[must_use]
    pub fn of(policy: &PackagePolicy) -> Self {
        Self {
            manager: policy.manager,
            lock_timeout_seconds: policy.lock_timeout_seconds,
            pause_units: policy.pause_units.clone(),
            kernels: policy.guard.kernels.clone(),
        }
    }
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file error.
    #[error("use the journal")]
    Files(#[from] FilesError),
    /// A record of this run could not be written. Whether a part of it is in the file is not known, so
    /// this and every later record of the run is refused.
    #[error("use the journal")]
    Broken(#[source] Arc<FilesError>),
    /// Written by a newer version of this program.
    #[error("read `{path}`: line {line} has schema {found}, this version knows up to {SCHEMA}")]
    Newer {
        /// The journal.
        path: Utf8PathBuf,
        /// The line number, from 1.
        line: usize,
        /// Its schema version.
        found: u64,
    },
    /// It is missing or empty, and its receipt says that changes stand.
    #[error(
        "read `{path}`: it has no record, but `{}` names changes that stand",
        receipt_path()
    )]
    Lost {
        /// The journal.
        path: Utf8PathBuf,
    },
    /// A line that no version of this program wrote.
    #[error("read `{path}`: line {line} is no journal record: {why}")]
    Garbage {
        /// The journal.
        path: Utf8PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The error in it.
        why: String,
    },
    /// Lines are missing or out of order.
    #[error("read `{path}`: line {line} has number {found}, expected {expected}")]
    OutOfOrder {
        /// The journal.
        path: Utf8PathBuf,
        /// The line number, from 1.
        line: usize,
        /// Its sequence number.
        found: u64,
        /// The sequence number that follows that of the line before.
        expected: u64,
    },
    /// The data for the run after the reboot is damaged. Its content is not shown, because it is
    /// secret.
    #[error("read `{}`: no version of this program wrote that", credentials_path())]
    Credentials,
    /// A secret occurs in a name that undoing a change needs.
    #[error("record the change before it is made: the value of a secret occurs in `{name}`")]
    SecretInName {
        /// The name.
        name: String,
    },
    /// A record cannot be serialised; this is a bug.
    #[error("write a journal record")]
    Encode(#[source] serde_json::Error),
}

impl JournalError {
    /// The file error, if it is one.
    fn files(&self) -> Option<&FilesError> {
        match self {
            Self::Files(error) => Some(error),
            Self::Broken(error) => Some(error),
            _ => None,
        }
    }
}

impl Report for JournalError {
    fn exit(&self) -> Exit {
        match self.files() {
            Some(error) if error.is_denied() => Exit::NotPermitted,
            // A change that cannot be recorded is not made: the filesystem, an owner or a folder in a file's place is no bug.
            Some(_) => Exit::Blocked,
            None if matches!(self, Self::SecretInName { .. }) => Exit::Config,
            // What the machine has lost or somebody has edited is no bug; nothing was changed.
            None if matches!(
                self,
                Self::Newer { .. }
                    | Self::Garbage { .. }
                    | Self::OutOfOrder { .. }
                    | Self::Lost { .. }
                    | Self::Credentials
            ) =>
            {
                Exit::Blocked
            }
            _ => Exit::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(_) | Self::Broken(_) => {
                (self.files().and_then(FilesError::reason)).unwrap_or("journal-unavailable")
            }
            Self::Newer { .. } => "journal-newer",
            Self::Garbage { .. } | Self::OutOfOrder { .. } => "journal-damaged",
            Self::Lost { .. } => "journal-lost",
            Self::Credentials => "credentials-damaged",
            Self::SecretInName { .. } => "secret-in-name",
            Self::Encode(_) => "journal-encoding",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Files(_) | Self::Broken(_) if self.exit() == Exit::NotPermitted => {
                Some("run it as root".to_owned())
            }
            Self::Files(_) | Self::Broken(_) => Some(
                (self.files().and_then(FilesError::hint))
                    .unwrap_or_else(|| format!("is `{STATE}` writable, and is there room?")),
            ),
            Self::Credentials => Some(format!(
                "remove `{}` and run `gpu-bootstrap install` with its options again",
                credentials_path()
            )),
            Self::Newer { .. } => {
                Some("use the version of gpu-bootstrap that wrote it, or a newer one".to_owned())
            }
            Self::Garbage { path, .. } | Self::OutOfOrder { path, .. } => Some(format!(
                "somebody edited it: restore it from a backup, or move it aside with \
                 `mv {path} {path}.damaged` and run `gpu-bootstrap install` again; what it \
                 recorded can then no longer be undone, and `uninstall` keeps it and its backups"
            )),
            Self::Lost { path } => Some(format!(
                "restore the journal from a backup; without one undo by hand what `{receipt}` names, then run \
                 `mv {receipt} {path}.lost` and the same command again",
                receipt = receipt_path()
            )),
            Self::SecretInName { .. } => Some(
                "choose another password or token, which is no part of a path, of a package name or \
                 of another name: the journal keeps names in clear, because undoing needs them"
                    .to_owned(),
            ),
            Self::Encode(_) => None,
        }
    }
}

impl From<JournalError> for Problem {
    fn from(error: JournalError) -> Self {
        let problem = Self {
            hint: error.hint(),
            ..Self::new(error.reason(), error.to_string()).exiting(error.exit())
        };
        match error {
            JournalError::Files(source) => problem.caused_by(source),
            JournalError::Broken(source) => problem.caused_by(source),
            JournalError::Encode(source) => problem.caused_by(source),
            _ => problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_the_place_of_the_journal_blocks_the_run_and_only_root_may_write_it() {
        use std::io::ErrorKind;

        for (kind, exit, hint) in rows! {
            ErrorKind::IsADirectory, Exit::Blocked, "writable";
            ErrorKind::PermissionDenied, Exit::NotPermitted, "run it as root";
        } {
            let error = JournalError::Files(FilesError::Io {
                verb: "append to",
                path: "/var/lib/gpu-bootstrap/journal.jsonl".into(),
                source: kind.into(),
                disk: None,
            });
            assert_eq!(
                (error.exit(), error.reason()),
                (exit, "journal-unavailable")
            );
            let told = error.hint().unwrap_or_default();
            assert!(told.contains(hint), "{told}");
        }
    }
}
