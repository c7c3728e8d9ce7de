//! The undo of a change, as data: captured from the machine before the change, completed after it,
//! and kept in the journal. Only what this program changed is ever undone.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{
    edits::Edit,
    join::{LeaveCluster, RestoreLabels},
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
    /// The change leaves nothing that must be undone.
    Nothing {
        /// Why there is nothing to undo.
        why: String,
    },
    /// The change cannot be undone.
    Impossible {
        /// What stays.
        what: String,
        /// The reason.
        why: String,
    },
    /// Restore files.
    RestoreFiles {
        /// All files that the change writes or removes.
        files: Vec<FileBefore>,
        /// Folders that the change created, outermost first; removed if they are empty.
        created_folders: Vec<Utf8PathBuf>,
        /// The daemon of a container runtime that takes up what is restored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daemon: Option<RuntimeDaemon>,
    },
    /// Undo a transaction of the package manager.
    Packages {
        /// The name of the transaction's record, which exists from its first command on.
        #[serde(rename = "before")]
        transaction: String,
        /// What the transaction did; `None` while it has not ended.
        #[serde(rename = "traces")]
        effects: Option<Box<Effects>>,
    },
    /// Enable the stream of a module that was enabled before, or none.
    RestoreStream(RestoreStream),
    /// Release holds that the change set.
    Unhold(Unhold),
    /// Restore the state of a unit.
    RestoreUnit(RestoreUnit),
    /// Make services read again what earlier undos restored.
    Afterwards {
        /// What follows, in order.
        then: Vec<Afterwards>,
    },
    /// Unload a module that the change loaded.
    UnloadModule {
        /// The kernel module.
        module: String,
    },
    /// Remove a DKMS module from one kernel.
    RemoveModuleBuild {
        /// Its DKMS name.
        module: String,
        /// Its version.
        version: String,
        /// The kernel release.
        kernel: String,
    },
    /// Remove an image that the change pulled.
    RemoveImage {
        /// The container runtime.
        runtime: RuntimeKind,
        /// The image.
        image: String,
    },
    /// Leave a cluster that the change joined.
    LeaveCluster(LeaveCluster),
    /// Give a node the labels that it had.
    RestoreLabels(RestoreLabels),
    /// Set kernel parameters to their values before.
    RestoreSysctls {
        /// The values before, by name.
        values: BTreeMap<String, String>,
        /// The values that the change sets: one with another value by then is somebody else's.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        ours: BTreeMap<String, String>,
    },
    /// Use swap areas again.
    TurnOnSwap {
        /// Files and devices.
        areas: Vec<String>,
    },
    /// Several undos, in the order in which they run.
    Several {
        /// The undos.
        undos: Vec<Undo>,
    },
}

/// The daemon of a container runtime in whose files a change has set keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeDaemon {
    /// Which one.
    pub kind: Daemon,
    /// Its unit.
    pub unit: String,
    /// The name of the runtime that the keys make known to it.
    pub runtime: String,
}

/// What follows after files were restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "then",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Afterwards {
    /// A running unit reads its configuration again.
    RestartUnit {
        /// The unit.
        unit: String,
    },
    /// The initial RAM filesystem of a kernel, which contains a copy of the files, is rebuilt.
    RebuildInitramfs {
        /// The kernel release.
        kernel: String,
    },
}

/// A file before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileBefore {
    /// Its path.
    pub path: Utf8PathBuf,
    /// The file before the change; `None` if there was none.
    pub before: Option<Saved>,
    /// The file after the change. If the file differs from it at the time of the undo, somebody
    /// else has changed it.
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
    /// Unknown, because the change has not ended.
    Unknown,
    /// There is no file.
    Absent,
    /// A file whose content changes with each boot.
    Any,
    /// A file with this content.
    File {
        /// SHA-256 of the content.
        sha256: String,
    },
    /// A JSON or TOML file with this content. If somebody else has changed it, the edits are taken back one by
    /// one.
    Edited {
        /// SHA-256 of the content.
        sha256: String,
        /// What the change edited.
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
    /// SHA-256 of the content, which is the name of the backup; for a link, of its target.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The target if it was a symbolic link; then there is no backup.
    pub link: Option<Utf8PathBuf>,
}

impl Undo {
    /// Nothing must be undone, for this reason.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::Nothing { why: why.into() }
    }

    /// Whether there is nothing to undo.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Nothing { .. } => true,
            Self::Packages {
                effects: Some(effects),
                ..
            } => effects.is_empty(),
            Self::Unhold(undo) => undo.held.is_empty(),
            Self::RestoreStream(undo) => undo.before.as_ref() == Some(&undo.stream),
            Self::Several { undos } => undos.iter().all(Self::is_nothing),
            _ => false,
        }
    }

    /// Whether the undo has a part that comes last, see [`Self::split_unloading`].
    #[must_use]
    pub fn unloads(&self) -> bool {
        self.split_unloading().0.is_some()
    }

    /// Splits the undo into the part that unloads kernel modules or restores kernel parameters, which daemons need until
    /// their packages are removed, and the rest.
    #[must_use]
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

    /// Merges this undo and that of the preceding change, if one can do the work of both: two
    /// purges are one run of the package manager, and two restarts of a unit are one.
    #[must_use]
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
            (Self::Afterwards { then: mine }, Self::Afterwards { then: theirs }) => {
                Some(Self::Afterwards {
                    then: union(theirs, mine),
                })
            }
            _ => None,
        }
    }
}

/// The entries of both lists without duplicates.
fn union(older: &[Afterwards], newer: &[Afterwards]) -> Vec<Afterwards> {
    let mut all: Vec<Afterwards> = Vec::new();
    for one in older.iter().chain(newer) {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}

impl FileAfter {
    /// Whether a file is as the change left it. `now` never has edits.
    #[must_use]
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
    fn two_restarts_of_a_unit_are_one() {
        let restart = |unit: &str| Undo::Afterwards {
            then: vec![Afterwards::RestartUnit { unit: unit.into() }],
        };
        let once = restart("a.service").merge(&restart("a.service"));
        assert_eq!(once, Some(restart("a.service")));
        let Some(Undo::Afterwards { then }) = restart("b.service").merge(&restart("a.service"))
        else {
            panic!("one undo");
        };
        assert_eq!(then.len(), 2);
    }

    #[test]
    fn a_part_that_stays_outweighs_the_other_results() {
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
