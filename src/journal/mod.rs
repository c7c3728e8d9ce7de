//! The journal: an append-only record of every change of the machine. Each record is written and synced before the engine
//! continues. The journal stores how to undo changes, and whether a reboot is pending. The state of the machine is read from
//! the machine itself, never from the journal.

mod read;
mod receipt;
mod secrecy;
mod store;

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use read::{History, Torn, parse};
pub use receipt::{
    AppliedChange, Awaited, Ended, Receipt, RollbackStarted, Run, Unfinished, Validated, fold,
};
pub use store::Journal;

use crate::{
    change::{Change, ChangeError, Undo},
    config::desired::{PackagePolicy, PackageSpec},
    error::Report,
    event::Summary,
    exit::Exit,
    host::FilesError,
    model::{
        id::StepId, node::NodeSummary, paths::STATE, pci::PciId, secret::Secret, text::shell_word,
    },
    tools::packages::Manager,
};

/// The schema version of [`JournalLine`]. It is increased if an old reader would misinterpret a new journal, or report it as
/// damaged. Version 2 added boot counts, changes that are reduced, files that are reverted by key, and the rollback to an
/// earlier driver.
pub const SCHEMA: u32 = 2;

/// The path of the journal.
pub fn path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("journal.jsonl")
}

/// The path of the receipt.
pub fn receipt_path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("receipt.json")
}

/// The file that stores [`Request::credentials`].
fn credentials_path() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("credentials.json")
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalLine {
    /// The schema version, [`SCHEMA`].
    pub schema: u32,
    /// Sequence number in the whole journal, from 0 and without gaps.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// The id of the run that wrote the record.
    pub run: String,
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
        /// The version of gpu-bootstrap.
        tool: String,
        /// `install` or `uninstall`. The mode of `upgrade` is `install`, with [`Request::upgrade`].
        mode: String,
        /// The cloud's instance id, or the DMI UUID. A new id means that the image was cloned.
        instance_id: Option<String>,
        /// The kernel's boot id, which changes at every boot.
        boot_id: Option<String>,
        /// The options of the run, which a resumed run repeats.
        request: Request,
        /// The package policy of the run. Absent in journals of older versions and for `uninstall`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Policy>,
        /// Seconds from the start of the run to this record, in which the steps were assessed. Absent in journals of older
        /// versions, and for `uninstall`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assessed_seconds: Option<f64>,
    },
    /// A run is about to stop, because several boots were interrupted before it finished. The next boot does not resume it.
    GaveUp {
        /// The reason.
        why: String,
    },
    /// A change is about to be applied.
    Intent {
        /// The steps that need it.
        steps: Vec<StepId>,
        /// The change.
        change: Change,
        /// How to undo it, if known in advance.
        undo: Undo,
    },
    /// A change was applied.
    Applied {
        /// The `seq` of its intent.
        intent: u64,
        /// The exact undo.
        undo: Undo,
    },
    /// A change failed.
    Failed {
        /// The `seq` of its intent.
        intent: u64,
        /// The error message.
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
    /// A part of a change was undone, because some of its steps are no longer configured.
    Reduced {
        /// The `seq` of its intent.
        intent: u64,
        /// The steps that still need it. Empty if it is only needed by packages that gpu-bootstrap did not install.
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
        /// The remaining part, and the reason.
        why: String,
    },
    /// The run can continue only after a reboot.
    RebootAwaited {
        /// The boot id at this time. A different id means that the machine was rebooted.
        boot_id: Option<String>,
        /// The reason.
        why: String,
        /// Whether gpu-bootstrap reboots the machine and resumes automatically.
        automatic: bool,
    },
    /// The driver has passed validation.
    Validated {
        /// The settings that select it: source, flavor, branch and build.
        settings: Vec<String>,
        /// The packages of the driver, with their exact versions.
        driver: Vec<PackageSpec>,
    },
    /// A new driver has failed validation. The last validated driver is the desired driver until [`Record::RollbackFinished`].
    RollbackStarted {
        /// The driver that failed.
        from: String,
        /// The last validated driver.
        to: String,
        /// The validation error.
        why: String,
    },
    /// The rollback has finished, successfully or not.
    RollbackFinished {
        /// Whether the last validated driver has passed validation again.
        validated: bool,
    },
    /// The run has finished normally.
    RunFinished {
        /// Its exit status.
        exit: u8,
        /// The number of steps per outcome.
        summary: Summary,
        /// The node, if it is ready.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<Box<NodeSummary>>,
        /// The reason an upgrade failed or did not start, if the node stays out of service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upgrade_failed: Option<String>,
        /// The first step that was blocked or failed, with the reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// The CPU time of gpu-bootstrap itself in seconds, without the programs that it started. Absent in journals of older
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpu_seconds: Option<f64>,
        /// The wall-clock time of gpu-bootstrap itself in seconds, see [`own_time`](crate::host::System::own_time). Absent in
        /// journals of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_seconds: Option<f64>,
    },
}

/// The options that are needed to repeat a run after a reboot. The journal does not contain the secret ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Request {
    /// `--profile`: a name or an absolute path.
    pub profile: Option<String>,
    /// `--config`: absolute paths.
    pub config: Vec<Utf8PathBuf>,
    /// The settings of `--set` and of environment variables, except those in `credentials`.
    pub set: Vec<String>,
    /// `--image`.
    pub image: bool,
    /// `--assume-gpu`.
    pub assume_gpus: Vec<PciId>,
    /// `--reboot`.
    pub reboot: bool,
    /// The command is `upgrade`: the node is taken out of service before the first change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
    /// `--lock-timeout`.
    pub lock_timeout_seconds: Option<u64>,
    /// `--deadline`.
    pub deadline_seconds: Option<u64>,
    /// The content of the `--lock` file, because a run after a reboot must use the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// The path of the `--lock` file, for the commands in messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_path: Option<Utf8PathBuf>,
    /// The directory of `--bundle`: an absolute path. Its lock file is in `lock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Utf8PathBuf>,
    /// The settings that contain a secret. They are stored in a separate file with mode 0600.
    #[serde(skip)]
    pub credentials: Vec<Secret>,
}

impl Request {
    /// Appends the options that select the same desired state to a command, quoted for a shell. Settings with a secret are missing.
    pub fn append_to(&self, command: &str) -> String {
        let mut words = vec![command.to_owned()];
        let mut add = |option: &str, value: &str| {
            words.push(format!("{option} {}", shell_word(value)));
        };
        if let Some(profile) = &self.profile {
            add("--profile", profile);
        }
        for file in &self.config {
            add("--config", file.as_str());
        }
        for setting in &self.set {
            add("--set", setting);
        }
        if let Some(file) = &self.lock_path {
            add("--lock", file.as_str());
        }
        if let Some(directory) = &self.bundle {
            add("--bundle", directory.as_str());
        }
        if !self.assume_gpus.is_empty() {
            let ids: Vec<String> = self.assume_gpus.iter().map(ToString::to_string).collect();
            add("--assume-gpu", &ids.join(","));
        }
        if self.image {
            words.insert(1, "--image".to_owned());
        }
        words.join(" ")
    }
}

/// The part of a package policy that `uninstall` needs, so that it does not need a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Policy {
    /// The package manager.
    pub manager: Manager,
    /// Seconds to wait until another package manager exits.
    pub lock_timeout_seconds: u64,
    /// Units that start the package manager automatically. They are paused during a run.
    pub pause_units: Vec<String>,
    /// Shell patterns for the names of kernel packages, with which an undo finds and keeps the packages of the running kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
}

impl Policy {
    /// Selects the part of a policy that an undo needs.
    pub fn of(policy: &PackagePolicy) -> Self {
        Self {
            manager: policy.manager,
            lock_timeout_seconds: policy.lock_timeout_seconds,
            pause_units: policy.pause_units.clone(),
            kernels: policy.guard.kernels.clone(),
        }
    }
}

/// The reason the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file error.
    #[error("access the journal")]
    Files(#[from] FilesError),
    /// A record of this run could not be written. It may be partially in the file, so this record and all later ones of the run
    /// are rejected.
    #[error("access the journal")]
    Broken(#[source] Arc<FilesError>),
    /// The journal was written by a newer version of gpu-bootstrap.
    #[error(
        "read `{path}`: line {line} has schema {found}, but this version only supports schemas up \
         to {SCHEMA}"
    )]
    Newer {
        /// The journal.
        path: Utf8PathBuf,
        /// The line number, from 1.
        line: usize,
        /// Its schema version.
        found: u64,
    },
    /// The journal is missing or empty, but its receipt lists applied changes or is unreadable.
    #[error(
        "read `{path}`: it contains no records, but `{}` lists applied changes",
        receipt_path()
    )]
    Lost {
        /// The journal.
        path: Utf8PathBuf,
    },
    /// A line that was not written by gpu-bootstrap.
    #[error("read `{path}`: line {line} is not a journal record: {why}")]
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
        /// The expected sequence number.
        expected: u64,
    },
    /// The data for the run after the reboot is damaged. It is secret, so it is not shown.
    #[error("read `{}`: not written by gpu-bootstrap", credentials_path())]
    Credentials,
    /// A name that is needed to undo a change contains a secret.
    #[error("record the change before it is made: `{name}` contains the value of a secret")]
    SecretInName {
        /// The name.
        name: String,
    },
    /// A record cannot be serialized. This is a bug.
    #[error("write a journal record")]
    Encode(#[source] serde_json::Error),
}

impl JournalError {
    /// Returns the file error that caused this error, if any.
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
            // A change that cannot be recorded is not made. A full or read-only filesystem, a wrong owner, or a directory at
            // the path of a file is not a bug.
            Some(_) => Exit::Blocked,
            None if matches!(self, Self::SecretInName { .. }) => Exit::Config,
            // A journal that was lost or edited is not a bug, and nothing was changed.
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
                    .unwrap_or_else(|| format!("check that `{STATE}` is writable and has free \
                                                space")),
            ),
            Self::Credentials => Some(format!(
                "remove `{}` and run `gpu-bootstrap install` again with its options",
                credentials_path()
            )),
            Self::Newer { .. } => {
                Some("use the version of gpu-bootstrap that wrote it, or a newer one".to_owned())
            }
            Self::Garbage { path, .. } | Self::OutOfOrder { path, .. } => Some(format!(
                "the journal was edited: restore it from a backup, or move it aside with `mv \
                 {path} {path}.damaged` and run `gpu-bootstrap install` again. The changes that \
                 it recorded can then no longer be undone, and `uninstall` keeps it and its \
                 backups"
            )),
            Self::Lost { path } => Some(format!(
                "restore the journal from a backup. Without a backup, undo the changes in \
                 `{receipt}` manually, then run `mv {receipt} {path}.lost` and the same command \
                 again",
                receipt = receipt_path()
            )),
            Self::SecretInName { .. } => Some(
                "choose another password or token that does not occur in a path, a package name or \
                 another name: the journal stores names unencrypted, because the undo needs them"
                    .to_owned(),
            ),
            Self::Encode(_) => None,
        }
    }
}

impl From<JournalError> for ChangeError {
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
    fn journal_file_errors_block_the_run() {
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
