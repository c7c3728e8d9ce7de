//! What undoing a change takes, as data: captured from the machine before the change, refined
//! after it, kept in the journal. Only what we changed is ever undone.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::desired::PackageWish;

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
    /// Put files back as they were.
    RestoreFiles {
        /// Each file that the change writes or removes.
        files: Vec<FileBefore>,
        /// Folders that the change created, outermost first; removed where empty.
        #[schemars(with = "Vec<String>")]
        created_folders: Vec<Utf8PathBuf>,
    },
    /// Purge the packages that came with the change.
    RemovePackages {
        /// Names of everything installed before; kept only until `appeared` is known.
        before: Vec<String>,
        /// Absent before and present after; `None` while the change has not ended.
        appeared: Option<Vec<String>>,
    },
    /// Install packages again that the change removed.
    ReinstallPackages {
        /// With the versions that were there.
        packages: Vec<PackageWish>,
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
        /// It was running.
        active: bool,
    },
    /// Unload a module that the change loaded.
    UnloadModule {
        /// Which.
        module: String,
    },
    /// Load a module that the change unloaded.
    LoadModule {
        /// Which.
        module: String,
    },
    /// Remove an image that the change pulled.
    RemoveImage {
        /// By which runtime.
        runtime: crate::config::desired::RuntimeKind,
        /// Which.
        image: String,
    },
}

/// A file before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FileBefore {
    /// Which.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// What was there; `None`: nothing.
    pub before: Option<Saved>,
    /// SHA-256 of what the change left there, once it has ended: if the file is another by the
    /// time of undoing, somebody else has edited it.
    pub written: Option<String>,
}

/// A saved file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Saved {
    /// SHA-256 of the content: its name among the backups.
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
        matches!(self, Self::Nothing { .. })
    }

    /// This and the undo of the change just before it as one, where both are purges: one run of
    /// the package manager instead of two.
    #[must_use]
    pub fn merge(&self, older: &Self) -> Option<Self> {
        let (
            Self::RemovePackages {
                appeared: Some(mine),
                ..
            },
            Self::RemovePackages {
                appeared: Some(theirs),
                ..
            },
        ) = (self, older)
        else {
            return None;
        };
        let mut all: Vec<String> = mine.iter().chain(theirs).cloned().collect();
        all.sort();
        all.dedup();
        Some(Self::RemovePackages {
            before: Vec::new(),
            appeared: Some(all),
        })
    }
}
