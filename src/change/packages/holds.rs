//! Holds, which prevent background upgrades of packages.
//!
//! Settings and profiles contain patterns instead of package names, because the dependencies of a driver are only known after
//! the package manager has resolved them. A pattern can be planned earlier.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::{inventory::held, not_verified};
use crate::{
    change::{Applier, ChangeError, Reverted, Sink, Undo},
    model::{pattern, text::counted},
    tools::packages::{Mark, Package},
};

/// The known holds of gpu-bootstrap, from earlier runs and from this one.
#[derive(Debug, Default)]
pub(in crate::change) struct OwnHolds(Mutex<BTreeSet<String>>);

impl OwnHolds {
    pub(in crate::change) fn add(&self, names: impl IntoIterator<Item = String>) {
        self.set().extend(names);
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.set().clone()
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A panic in another thread cannot leave the set in an invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file name suffix of a record of holds.
const ENDING: &str = ".held";

/// The packages that a change holds, stored on disk immediately before they are held. Other programs may have upgraded or held
/// packages since the undo was captured, and the run may be killed before the journal contains the exact undo.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct HeldPackages {
    /// The schema version of this document.
    schema: u32,
    packages: Vec<String>,
    /// The entries that are added to the list of holds. `None` if there is no list.
    entries: Option<Vec<String>>,
}

/// Releases the holds of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Unhold {
    /// Packages that the change holds.
    pub held: Vec<String>,
    /// The entries that the change adds if holds are stored in a list. `None` if they are marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<String>>,
    /// The name of the record with the packages that were really held, which is written when they are known. `None` if this
    /// undo is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// Installed packages that match and are not held.
fn to_hold(database: &[Package], patterns: &[String]) -> Vec<String> {
    database
        .iter()
        .filter(|package| package.is_unpacked() && !package.held)
        .filter(|package| {
            patterns
                .iter()
                .any(|pattern| pattern::matches(pattern, &package.name))
        })
        .map(|package| package.id.clone())
        .collect()
}

impl Applier {
    pub(in crate::change) async fn preview_hold(
        &self,
        patterns: &[String],
    ) -> Result<String, ChangeError> {
        Ok(to_hold(&self.database().await?, patterns)
            .iter()
            .map(|name| format!("= {name}"))
            .collect::<Vec<_>>()
            .join("\n"))
    }

    /// Returns the undo of a hold. It is an estimate, because another package manager may still install or hold packages.
    pub(in crate::change) async fn capture_hold(
        &self,
        patterns: &[String],
    ) -> Result<Undo, ChangeError> {
        let database = self.database().await?;
        let ours = to_hold(&database, patterns);
        Ok(Undo::Unhold(Unhold {
            entries: self.new_entries(&database, &ours)?,
            held: ours,
            record: Some(self.new_record(ENDING)?),
        }))
    }

    /// Returns the entries that holding these packages adds to the list of holds, or `None` if there is no list. Existing
    /// entries are not ours.
    fn new_entries(
        &self,
        database: &[Package],
        names: &[String],
    ) -> Result<Option<Vec<String>>, ChangeError> {
        let Some(list) = self.backend.hold_list() else {
            return Ok(None);
        };
        let text = self.host.files.read_text(list.path())?.unwrap_or_default();
        let packages: Vec<&Package> = (database.iter())
            .filter(|package| names.contains(&package.id))
            .collect();
        let mut entries = list.entries(&packages);
        entries.retain(|entry| !text.lines().any(|line| line.trim() == entry));
        Ok(Some(entries))
    }

    /// Returns the exact undo from the record. Without a record, no package was held. The machine is not queried, because after
    /// an interruption the command may finish later.
    pub(in crate::change) fn refine_hold(&self, undo: Unhold) -> Result<Undo, ChangeError> {
        let Some(name) = &undo.record else {
            return Ok(Undo::Unhold(undo));
        };
        Ok(match self.held_by(name)? {
            Some(HeldPackages {
                packages, entries, ..
            }) => Undo::Unhold(Unhold {
                held: packages,
                entries,
                record: None,
            }),
            None => Undo::nothing("no package was held"),
        })
    }

    fn held_by(&self, name: &str) -> Result<Option<HeldPackages>, ChangeError> {
        let path = self.record_path(name, ENDING);
        (self.host.files.read(&path)?)
            .map(|text| serde_json::from_slice(&text))
            .transpose()
            .map_err(|error| ChangeError::unreadable(format!("read `{path}`"), error))
    }

    fn record_held(
        &self,
        undo: &Undo,
        database: &[Package],
        names: &[String],
    ) -> Result<(), ChangeError> {
        const WHAT: &str = "record the held packages";
        let Undo::Unhold(Unhold {
            record: Some(name), ..
        }) = undo
        else {
            return Err(ChangeError::unreadable(WHAT, "the undo has another kind"));
        };
        let held = HeldPackages {
            schema: 1,
            packages: names.to_vec(),
            entries: self.new_entries(database, names)?,
        };
        let text =
            serde_json::to_vec(&held).map_err(|error| ChangeError::unreadable(WHAT, error))?;
        Ok((self.host.files).write(&self.record_path(name, ENDING), &text, 0o600)?)
    }

    pub(in crate::change) async fn hold(
        &self,
        patterns: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.exclusively(sink, async {
            let database = self.database().await?;
            let names = to_hold(&database, patterns);
            if names.is_empty() {
                return Ok(());
            }
            self.record_held(undo, &database, &names)?;
            self.mark(Mark::Hold, &names, sink).await?;
            self.holds.add(names);
            match to_hold(&self.database().await?, patterns).first() {
                None => Ok(()),
                Some(name) => Err(not_verified(name, "not held", "a hold")),
            }
        })
        .await
    }

    /// Sets or releases holds, with a command or in the list of holds. [`Mark::Automatic`] always needs a command.
    pub(super) async fn mark(
        &self,
        mark: Mark,
        names: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = match mark {
            Mark::Hold => "hold packages",
            Mark::Unhold => "release holds",
            Mark::Automatic => "mark packages as automatically installed",
        };
        let list = self.backend.hold_list().filter(|_| mark != Mark::Automatic);
        let Some(list) = list else {
            let cmd = self.backend.mark(mark, names);
            return self.run_with_retries(what, cmd, sink).await;
        };
        let files = &self.host.files;
        if mark == Mark::Hold
            && let Some(why) = list.needs(&**files)?
        {
            return Err(ChangeError::unreadable(what, &why.why));
        }
        let database = self.database().await?;
        let packages: Vec<&Package> = (database.iter())
            .filter(|package| names.contains(&package.id))
            .collect();
        let text = files.read_text(list.path())?.unwrap_or_default();
        let text = match mark {
            Mark::Hold => list.with(&text, &packages, &self.holds.names()),
            _ => list.without(&text, &list.entries(&packages)),
        };
        self.write_hold_list(list.path(), &text, sink).await
    }

    /// Writes the list of holds. An existing list keeps its mode and owner. If it is a symlink, its target is written.
    async fn write_hold_list(
        &self,
        path: &Utf8Path,
        text: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (files, path) = (&self.host.files, self.target_of(path)?);
        let mode = files.stat(&path)?.map_or(0o644, |stat| stat.mode);
        files.write(&path, text.as_bytes(), mode)?;
        self.restore_labels(&[&path], sink).await
    }

    /// Releases the holds of a change.
    pub(in crate::change) async fn revert_hold(
        &self,
        undo: &Unhold,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        match self.refine_hold(undo.clone())? {
            Undo::Unhold(Unhold {
                entries: Some(entries),
                ..
            }) => self.remove_entries(&entries, sink).await,
            Undo::Unhold(Unhold { held, .. }) => self.unhold(&held, sink).await,
            _ => Ok(Reverted::nothing("no package was held")),
        }
    }

    /// Removes exactly the entries that a change has added to the list of holds. The packages may have other versions now, and
    /// other entries may hold them.
    async fn remove_entries(
        &self,
        entries: &[String],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let nothing = || Reverted::nothing("no hold of gpu-bootstrap remains");
        let Some(list) = self.backend.hold_list() else {
            return Ok(nothing());
        };
        let files = &self.host.files;
        let lacks_all = || -> Result<bool, ChangeError> {
            let text = files.read_text(list.path())?.unwrap_or_default();
            Ok(list.without(&text, entries) == text)
        };
        if lacks_all()? {
            return Ok(nothing());
        }
        self.exclusively(sink, async {
            let text = files.read_text(list.path())?.unwrap_or_default();
            let kept = list.without(&text, entries);
            self.write_hold_list(list.path(), &kept, sink).await
        })
        .await?;
        Ok(Reverted::done(format!("released {} holds", entries.len())))
    }

    pub(super) async fn unhold(
        &self,
        ours: &[String],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let now = held(&self.database().await?);
        let names: Vec<String> = (ours.iter())
            .filter(|name| now.contains(*name))
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(Reverted::nothing("no hold of gpu-bootstrap remains"));
        }
        self.exclusively(sink, self.mark(Mark::Unhold, &names, sink))
            .await?;
        Ok(Reverted::done(format!(
            "released the hold on {}",
            counted(names.len(), "package")
        )))
    }
}
