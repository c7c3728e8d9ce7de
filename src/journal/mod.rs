//! The append-only record of what was done to the machine, written and synced before the engine
//! goes on. It serves two ends: to know what to undo, and to know that a reboot is awaited. What
//! the machine is like is never read from here.

mod read;
mod receipt;
mod store;

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use read::{History, Torn, parse};
pub use receipt::{Awaited, Ended, Receipt, Run, Standing, fold};
pub use store::Journal;

use crate::{
    change::{Change, Undo},
    error::Report,
    event::Summary,
    exit::Exit,
    host::FilesError,
    model::{id::StepId, paths::STATE, pci::PciId, secret::Secret},
};

/// The schema version of [`Line`]. It rises only when an old reader would misunderstand.
pub const SCHEMA: u32 = 1;

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

/// Where [`Request::credentials`] are.
fn credentials_path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("credentials.json")
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Counts from 0 through the whole journal, without gaps.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// The id of the run that wrote it.
    pub run: String,
    /// What is recorded.
    pub record: Record,
}

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Record {
    /// A run begins.
    RunStarted {
        /// Version of this program.
        tool: String,
        /// `install` or `uninstall`.
        mode: String,
        /// The cloud's id of the instance, or the DMI UUID: another one means a cloned image.
        instance_id: Option<String>,
        /// New at every boot.
        boot_id: Option<String>,
        /// What was asked for; resuming asks for the same.
        request: Request,
    },
    /// A change is about to be applied.
    Intent {
        /// The steps that it serves.
        steps: Vec<StepId>,
        /// Which.
        change: Change,
        /// How it is undone, as far as can be said before.
        undo: Undo,
    },
    /// It was applied.
    Applied {
        /// The `seq` of its intent.
        intent: u64,
        /// How it is undone, exactly.
        undo: Undo,
    },
    /// It was tried and failed.
    Failed {
        /// The `seq` of its intent.
        intent: u64,
        /// What went wrong.
        message: String,
        /// Why, outermost cause first.
        causes: Vec<String>,
        /// How what it did all the same is undone.
        undo: Undo,
    },
    /// A former run was cut off while applying it.
    Interrupted {
        /// The `seq` of its intent.
        intent: u64,
        /// How what it did all the same is undone.
        undo: Undo,
    },
    /// It is undone.
    Reverted {
        /// The `seq` of its intent.
        intent: u64,
        /// In words.
        what: String,
    },
    /// It could not be undone.
    Left {
        /// The `seq` of its intent.
        intent: u64,
        /// What stays and why.
        why: String,
    },
    /// Nothing more can be done before a reboot.
    RebootAwaited {
        /// The boot that has to end.
        boot_id: Option<String>,
        /// Why.
        why: String,
        /// This program reboots and goes on by itself.
        automatic: bool,
    },
    /// The run has ended in an orderly way.
    RunFinished {
        /// Its exit status.
        exit: u8,
        /// Outcomes, counted.
        summary: Summary,
    },
}

/// What a run was asked for: enough to ask for the same again after a reboot, and no secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct Request {
    /// `--profile`: a name, or an absolute path.
    pub profile: Option<String>,
    /// `--config`, absolute.
    #[schemars(with = "Vec<String>")]
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
    /// More of `set`: with passwords, so they are kept in a file of their own.
    #[serde(skip)]
    #[schemars(skip)]
    pub credentials: Vec<Secret>,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file.
    #[error("use the journal")]
    Files(#[from] FilesError),
    /// Written by a newer version of this program.
    #[error("read `{path}`: line {line} has schema {found}, this version knows up to {SCHEMA}")]
    Newer {
        /// The journal.
        path: Utf8PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Its schema.
        found: u64,
    },
    /// Something that no version of this program wrote.
    #[error("read `{path}`: line {line} is no journal record: {why}")]
    Garbage {
        /// The journal.
        path: Utf8PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Lines are missing or were moved.
    #[error("read `{path}`: line {line} has number {found}, expected {expected}")]
    OutOfOrder {
        /// The journal.
        path: Utf8PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Its number.
        found: u64,
        /// The number after the line before.
        expected: u64,
    },
    /// What was kept for the run after a reboot is damaged. What is there is not shown.
    #[error("read `{}`: no version of this program wrote that", credentials_path())]
    Credentials,
    /// A record cannot be turned into text; a bug.
    #[error("write a journal record")]
    Encode(#[source] serde_json::Error),
}

impl Report for JournalError {
    fn exit(&self) -> Exit {
        match self {
            Self::Files(FilesError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Exit::NotPermitted
            }
            // What cannot be written down is not done.
            Self::Files(error) if error.disk().is_some() => Exit::Blocked,
            _ => Exit::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("journal-unavailable"),
            Self::Newer { .. } => "journal-newer",
            Self::Garbage { .. } | Self::OutOfOrder { .. } => "journal-damaged",
            Self::Credentials => "credentials-damaged",
            Self::Encode(_) => "journal-encoding",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Files(_) if self.exit() == Exit::NotPermitted => {
                Some("run it as root".to_owned())
            }
            Self::Files(error) => Some(
                error
                    .hint()
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
                 recorded can then no longer be undone"
            )),
            Self::Encode(_) => None,
        }
    }
}
