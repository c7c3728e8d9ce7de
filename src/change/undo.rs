//! The undo of a change, as data: captured from the machine before the change, completed after it, and stored in the journal.
//! Only our own changes are undone.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{
    edits::Edit,
    join::{LeaveCluster, RestoreLabels},
    maintenance::ReturnToService,
    mig::RestoreMig,
    packages::{Effects, RestoreStream, Unhold},
    unit::RestoreUnit,
};
use crate::config::desired::{Daemon, RuntimeKind};

/// How one change is undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "undo",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Undo {
    /// The change has no effect that must be undone.
    Nothing {
        /// The reason.
        why: String,
    },
    /// The change cannot be undone.
    Impossible {
        /// The remaining part.
        what: String,
        /// The reason.
        why: String,
    },
    /// Restore files.
    RestoreFiles {
        /// All files that the change writes or removes.
        files: Vec<FileBefore>,
        /// Directories that the change created, outermost first. They are removed if they are empty.
        created_directories: Vec<Utf8PathBuf>,
        /// The daemon that must load the restored files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daemon: Option<RuntimeDaemon>,
    },
    /// Undo a transaction of the package manager.
    Packages {
        /// The name of the transaction's record, which exists from the first command of the transaction.
        #[serde(rename = "before")]
        transaction: String,
        /// The effects of the transaction. `None` while it is incomplete.
        #[serde(rename = "traces")]
        effects: Option<Box<Effects>>,
    },
    /// Enable the previous module stream, or none.
    RestoreStream(RestoreStream),
    /// Release holds that the change set.
    Unhold(Unhold),
    /// Restore the state of a unit.
    RestoreUnit(RestoreUnit),
    /// Restart units and rebuild initramfs images that use restored files.
    FollowUp {
        /// The follow-up actions, in order.
        then: Vec<FollowUp>,
    },
    /// Unload a module that the change loaded.
    UnloadModule { module: String },
    /// Restore the MIG mode and the instances of GPUs.
    RestoreMig(RestoreMig),
    /// Remove a DKMS module from one kernel.
    RemoveModuleBuild {
        /// Its DKMS name.
        module: String,
        version: String,
        kernel: String,
    },
    /// Remove an image that the change pulled.
    RemoveImage { runtime: RuntimeKind, image: String },
    /// Leave a cluster that the change joined.
    LeaveCluster(LeaveCluster),
    /// Restore the previous labels of a node.
    RestoreLabels(RestoreLabels),
    /// Return the node to service.
    ReturnToService(ReturnToService),
    /// Set kernel parameters to their previous values.
    RestoreSysctls {
        /// The previous values by name.
        values: BTreeMap<String, String>,
        /// The values that the change sets. A different value at the time of the undo was set by another program.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        ours: BTreeMap<String, String>,
    },
    /// Turn on swap areas.
    TurnOnSwap {
        /// Files and devices.
        areas: Vec<String>,
    },
    /// Several undos, in the order in which they run.
    Several { undos: Vec<Undo> },
}

/// A container runtime daemon in whose files a change has set keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeDaemon {
    pub kind: Daemon,
    /// The systemd unit.
    pub unit: String,
    /// The runtime that the keys define.
    pub runtime: String,
}

/// An action after files were restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "then",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum FollowUp {
    /// Restart a running unit, so that it reads its configuration.
    RestartUnit { unit: String },
    /// Rebuild the initramfs of a kernel, which contains a copy of the files.
    RebuildInitramfs { kernel: String },
}

/// A file before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileBefore {
    pub path: Utf8PathBuf,
    /// The file before the change, or `None` if it did not exist.
    pub before: Option<Saved>,
    /// The file after the change. If the file differs at the time of the undo, it was modified by another program.
    pub after: FileAfter,
}

/// The state of a file after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "is",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum FileAfter {
    /// Unknown, because the change is incomplete.
    Unknown,
    /// The file does not exist.
    Absent,
    /// A file with any content, because it is rewritten after the change, for example at each boot.
    Any,
    /// A file with this content.
    File {
        /// SHA-256 of the content.
        sha256: String,
    },
    /// A JSON or TOML file with this content. If it was modified since, the edits are reverted by key.
    Edited {
        /// SHA-256 of the content.
        sha256: String,
        /// The edits of the change.
        edits: Vec<Edit>,
    },
    /// A symbolic link.
    Link {
        /// The target of the link.
        target: Utf8PathBuf,
    },
}

/// A backed up file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Saved {
    /// SHA-256 of the content, which is the name of the backup. For a symlink, SHA-256 of its target.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The target of a symbolic link. A link has no backup.
    pub link: Option<Utf8PathBuf>,
}

impl Undo {
    /// Returns an undo without effect, with the reason.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::Nothing { why: why.into() }
    }

    /// Returns `true` if there is nothing to undo.
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Nothing { .. } => true,
            Self::Packages {
                effects: Some(effects),
                ..
            } => effects.is_empty(),
            Self::Unhold(undo) => undo.held.is_empty(),
            Self::RestoreMig(undo) => undo.before == undo.after,
            Self::RestoreStream(undo) => undo.before.as_ref() == Some(&undo.stream),
            Self::Several { undos } => undos.iter().all(Self::is_nothing),
            _ => false,
        }
    }

    /// Returns `true` if the undo has a part that must run last, see [`Self::split_unloading`].
    pub fn unloads(&self) -> bool {
        self.split_unloading().0.is_some()
    }

    /// Splits the undo into two parts: the part that unloads kernel modules or restores kernel parameters, and the rest. The
    /// first part runs last, because daemons need the modules and parameters until their packages are removed.
    pub fn split_unloading(&self) -> (Option<Self>, Option<Self>) {
        match self {
            Self::UnloadModule { .. } | Self::RestoreSysctls { .. } => (Some(self.clone()), None),
            Self::Several { undos } => {
                let (unload, rest): (Vec<Self>, Vec<Self>) = (undos.iter().cloned())
                    .partition(|one| matches!(one, Self::UnloadModule { .. }));
                (Self::several(unload), Self::several(rest))
            }
            _ => (None, Some(self.clone())),
        }
    }

    fn several(mut undos: Vec<Self>) -> Option<Self> {
        match undos.len() {
            0 => None,
            1 => undos.pop(),
            _ => Some(Self::Several { undos }),
        }
    }

    /// Merges this undo with the undo of the preceding change if possible: two transactions are undone by one run of the
    /// package manager, two restarts of a unit become one, and the GPUs are partitioned once.
    pub fn merge(&self, older: &Self) -> Option<Self> {
        match (self, older) {
            (
                Self::Packages {
                    transaction: later,
                    effects: Some(mine),
                },
                Self::Packages {
                    transaction,
                    effects: Some(theirs),
                },
            ) => {
                let mut effects = theirs.and_then(mine);
                effects.merged.insert(later.clone());
                Some(Self::Packages {
                    transaction: transaction.clone(),
                    effects: Some(Box::new(effects)),
                })
            }
            (Self::RestoreMig(mine), Self::RestoreMig(theirs)) => {
                Some(Self::RestoreMig(mine.merged_with(theirs)))
            }
            (Self::FollowUp { then: mine }, Self::FollowUp { then: theirs }) => {
                Some(Self::FollowUp {
                    then: union(theirs, mine),
                })
            }
            _ => None,
        }
    }
}

/// The entries of both lists without duplicates.
fn union(older: &[FollowUp], newer: &[FollowUp]) -> Vec<FollowUp> {
    let mut all: Vec<FollowUp> = Vec::new();
    for one in older.iter().chain(newer) {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}

impl FileAfter {
    /// Returns `true` if a file is in the state after the change. `now` never contains edits.
    pub fn is(&self, now: &Self) -> bool {
        match (self, now) {
            (Self::Any, _) => true,
            (Self::Edited { sha256, .. }, Self::File { sha256: now }) => sha256 == now,
            _ => self == now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Reverted;

    #[test]
    fn two_restarts_of_a_unit_are_merged() {
        let restart = |unit: &str| Undo::FollowUp {
            then: vec![FollowUp::RestartUnit { unit: unit.into() }],
        };
        let once = restart("a.service").merge(&restart("a.service"));
        assert_eq!(once, Some(restart("a.service")));
        let Some(Undo::FollowUp { then }) = restart("b.service").merge(&restart("a.service"))
        else {
            panic!("one undo");
        };
        assert_eq!(then.len(), 2);
    }

    #[test]
    fn remaining_part_takes_precedence_over_other_results() {
        let done = Reverted::Done { what: "a".into() };
        let left = Reverted::Left {
            what: "b".into(),
            why: "c".into(),
        };
        let nothing = Reverted::Nothing { why: "d".into() };
        assert_eq!(Reverted::of(vec![done.clone(), left.clone()]), left);
        assert_eq!(Reverted::of(vec![nothing.clone(), done.clone()]), done);
        assert_eq!(
            Reverted::of(vec![nothing.clone(), nothing.clone()]),
            nothing
        );
    }
}
