//! What undoing a change takes, as data: captured from the machine before the change, refined
//! after it, kept in the journal. Only what we changed is ever undone.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::packages::Effects;
use crate::config::desired::RuntimeKind;

/// How one change is undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "undo",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Undo {
    /// Nothing stays of the change.
    Nothing {
        /// Why there is nothing to undo.
        why: String,
    },
    /// There is no way back.
    Impossible {
        /// What stays.
        what: String,
        /// Why.
        why: String,
    },
    /// Put files back as they were.
    RestoreFiles {
        /// Each file that the change writes or removes.
        files: Vec<FileBefore>,
        /// Folders that the change created, outermost first; removed where empty.
        #[schemars(with = "Vec<String>")]
        created_folders: Vec<Utf8PathBuf>,
        /// What must follow so that the restored files count.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        then: Vec<Afterwards>,
    },
    /// Take back what a transaction of the package manager did.
    Packages {
        /// The name of the transaction's record, which is kept from its first command on.
        #[serde(rename = "before")]
        transaction: String,
        /// What the transaction did; `None` while it has not ended.
        #[serde(rename = "traces")]
        effects: Option<Box<Effects>>,
    },
    /// Take holds away that the change set.
    Unhold {
        /// Held before the change; these stay held.
        before: Vec<String>,
        /// Held by the change; `None` while it has not ended.
        held: Option<Vec<String>>,
    },
    /// Put a unit back to how it was.
    RestoreUnit {
        /// Which.
        unit: String,
        /// It was enabled.
        enabled: bool,
        /// It was masked.
        masked: bool,
        /// It was running; `None`: the change neither started nor stopped it, and undoing it does
        /// not either. The unit that goes on after a reboot is undone from within itself.
        active: Option<bool>,
    },
    /// Let something read again what older undos put back.
    Afterwards {
        /// What follows, in order.
        then: Vec<Afterwards>,
    },
    /// Unload a module that the change loaded.
    UnloadModule {
        /// Which.
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
        /// By which runtime.
        runtime: RuntimeKind,
        /// Which.
        image: String,
    },
    /// Several, the first to be undone first.
    Several {
        /// Which.
        undos: Vec<Undo>,
    },
}

/// What follows when files are back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "then",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Afterwards {
    /// A unit that runs reads its configuration anew.
    RestartUnit {
        /// Which.
        unit: String,
    },
    /// The initial RAM filesystem of a kernel holds a copy of them.
    RebuildInitramfs {
        /// The kernel release.
        kernel: String,
    },
}

/// A file before a change, and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FileBefore {
    /// Which.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// What was there; `None`: nothing.
    pub before: Option<Saved>,
    /// What the change leaves there: if it is something else by the time of undoing, somebody
    /// else has been at it.
    pub after: FileAfter,
}

/// A file after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "is",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum FileAfter {
    /// The change has not ended and does not say.
    Unknown,
    /// Nothing is there.
    Absent,
    /// A file with this content.
    File {
        /// SHA-256 of the content.
        sha256: String,
    },
    /// A symbolic link.
    Link {
        /// To where.
        #[schemars(with = "String")]
        target: Utf8PathBuf,
    },
}

/// A saved file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Saved {
    /// SHA-256 of the content: its name among the backups. Of a link, of its target.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The target, if it was a symbolic link; there is no backup then.
    #[schemars(with = "Option<String>")]
    pub link: Option<Utf8PathBuf>,
}

/// How undoing ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reverted {
    /// It is undone.
    Done {
        /// What was done, for people.
        what: String,
    },
    /// There was nothing to do.
    Nothing {
        /// Why.
        why: String,
    },
    /// It stays.
    Left {
        /// What stays.
        what: String,
        /// Why.
        why: String,
    },
}

impl Undo {
    /// Whether nothing stays of the change.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Nothing { .. } => true,
            Self::Packages {
                effects: Some(effects),
                ..
            } => effects.is_empty(),
            Self::Unhold {
                held: Some(held), ..
            } => held.is_empty(),
            Self::Several { undos } => undos.iter().all(Self::is_nothing),
            _ => false,
        }
    }

    /// Whether it unloads a kernel module.
    #[must_use]
    pub fn unloads(&self) -> bool {
        self.split_unloading().0.is_some()
    }

    /// What it unloads of kernel modules, and all else that it does.
    #[must_use]
    pub fn split_unloading(&self) -> (Option<Self>, Option<Self>) {
        match self {
            Self::UnloadModule { .. } => (Some(self.clone()), None),
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

    /// This and the undo of the change just before it as one, where one does the work of both: two
    /// purges are one run of the package manager, and a restart must come after the file it is for.
    #[must_use]
    pub fn merge(&self, older: &Self) -> Option<Self> {
        match (self, older) {
            (
                Self::Packages {
                    effects: Some(mine),
                    ..
                },
                Self::Packages {
                    transaction,
                    effects: Some(theirs),
                },
            ) => Some(Self::Packages {
                transaction: transaction.clone(),
                effects: Some(Box::new(theirs.and_then(mine))),
            }),
            (
                Self::Afterwards { then: mine },
                Self::RestoreFiles {
                    files,
                    created_folders,
                    then: theirs,
                },
            ) => Some(Self::RestoreFiles {
                files: files.clone(),
                created_folders: created_folders.clone(),
                then: both(theirs, mine),
            }),
            // The newer files go back first, which also sets the order when one file is in both.
            (
                Self::RestoreFiles {
                    files: mine,
                    created_folders: my_folders,
                    then: my_then,
                },
                Self::RestoreFiles {
                    files,
                    created_folders,
                    then,
                },
            ) if !my_then.is_empty() => Some(Self::RestoreFiles {
                files: mine.iter().chain(files).cloned().collect(),
                created_folders: created_folders.iter().chain(my_folders).cloned().collect(),
                then: both(then, my_then),
            }),
            (Self::Afterwards { then: mine }, Self::Afterwards { then: theirs }) => {
                Some(Self::Afterwards {
                    then: both(theirs, mine),
                })
            }
            _ => None,
        }
    }
}

/// Each of both once.
fn both(older: &[Afterwards], newer: &[Afterwards]) -> Vec<Afterwards> {
    let mut all: Vec<Afterwards> = Vec::new();
    for one in older.iter().chain(newer) {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}

impl Reverted {
    /// Several endings as one: what stays outweighs what is done, and that outweighs nothing.
    #[must_use]
    pub fn of(endings: Vec<Self>) -> Self {
        let (mut done, mut nothing, mut left, mut whys) = (vec![], vec![], vec![], vec![]);
        for ending in endings {
            match ending {
                Self::Done { what } => done.push(what),
                Self::Nothing { why } => nothing.push(why),
                Self::Left { what, why } => {
                    left.push(what);
                    whys.push(why);
                }
            }
        }
        if !left.is_empty() {
            whys.dedup();
            Self::Left {
                what: left.join("; "),
                why: whys.join("; "),
            }
        } else if !done.is_empty() {
            Self::Done {
                what: done.join("; "),
            }
        } else {
            nothing.dedup();
            Self::Nothing {
                why: nothing.join("; "),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restart(unit: &str) -> Afterwards {
        Afterwards::RestartUnit { unit: unit.into() }
    }

    #[test]
    fn a_restart_follows_the_files_it_is_for() {
        let newer = Undo::Afterwards {
            then: vec![restart("docker.service")],
        };
        let older = Undo::RestoreFiles {
            files: vec![],
            created_folders: vec!["/etc/docker".into()],
            then: vec![],
        };
        assert_eq!(
            newer.merge(&older),
            Some(Undo::RestoreFiles {
                files: vec![],
                created_folders: vec!["/etc/docker".into()],
                then: vec![restart("docker.service")],
            })
        );
        assert_eq!(older.merge(&newer), None);
    }

    #[test]
    fn what_stays_outweighs_the_rest() {
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
