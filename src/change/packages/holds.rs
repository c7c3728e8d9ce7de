//! Holds: they keep packages from being upgraded in the background.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::inventory::{held, unreadable};
use crate::{
    change::{Applier, ChangeError, PackageError, Reverted, Sink, Undo},
    model::pattern,
    tools::packages::{Mark, Package},
};

/// The holds of this program, as far as they are known: those of earlier runs, and of this one.
#[derive(Debug, Default)]
pub(in crate::change) struct Holds(Mutex<BTreeSet<String>>);

impl Holds {
    pub(in crate::change) fn add(&self, names: impl IntoIterator<Item = String>) {
        self.set().extend(names);
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.set().clone()
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A panic in another thread cannot leave half a name.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    /// What is to be held is known before: if this program is killed, the command that holds it may end
    /// after the next run has looked.
    pub(in crate::change) async fn capture_hold(
        &self,
        patterns: &[String],
    ) -> Result<Undo, ChangeError> {
        let database = self.database().await?;
        let ours = to_hold(&database, patterns);
        Ok(Undo::Unhold {
            before: held(&database).into_iter().collect(),
            entries: self.new_entries(&database, &ours)?,
            held: Some(ours),
        })
    }

    /// What holding these packages adds to the list of holds; `None` if there is no list. What is in it
    /// already is of others.
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

    pub(in crate::change) async fn refine_hold(&self, undo: Undo) -> Result<Undo, ChangeError> {
        match undo {
            // The entries of the list are known exactly.
            Undo::Unhold {
                before,
                held: ours,
                entries: None,
            } => {
                let known: BTreeSet<String> = before.iter().cloned().collect();
                let mut all = held(&self.database().await?);
                all.extend(ours.into_iter().flatten());
                Ok(Undo::Unhold {
                    held: Some(all.difference(&known).cloned().collect()),
                    before,
                    entries: None,
                })
            }
            other => Ok(other),
        }
    }

    pub(in crate::change) async fn hold(
        &self,
        patterns: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.transactions()?;
        self.exclusively(sink, async {
            let names = to_hold(&self.database().await?, patterns);
            if names.is_empty() {
                return Ok(());
            }
            self.mark(Mark::Hold, &names, sink).await?;
            self.holds.add(names);
            match to_hold(&self.database().await?, patterns).first() {
                None => Ok(()),
                Some(name) => Err(PackageError::NotVerified {
                    package: name.clone(),
                    found: "not held".to_owned(),
                    wanted: "a hold".to_owned(),
                }
                .into()),
            }
        })
        .await
    }

    /// Sets or releases holds, by a command or in the list of holds.
    pub(super) async fn mark(
        &self,
        mark: Mark,
        names: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = match mark {
            Mark::Hold => "hold packages",
            Mark::Unhold => "release holds",
            Mark::Automatic => "restore marks",
        };
        let list = self.backend.hold_list().filter(|_| mark != Mark::Automatic);
        let Some(list) = list else {
            let cmd = self.transactions()?.mark(mark, names);
            return self.run_with_retries(what, cmd, sink).await;
        };
        let files = &self.host.files;
        if mark == Mark::Hold
            && let Some(why) = list.needs(&**files)?
        {
            return Err(unreadable(what, why));
        }
        let database = self.database().await?;
        let packages: Vec<&Package> = (database.iter())
            .filter(|package| names.contains(&package.id))
            .collect();
        let text = files.read_text(list.path())?.unwrap_or_default();
        let text = match mark {
            Mark::Hold => list.with(&text, &packages),
            _ => list.without(&text, &list.entries(&packages)),
        };
        files.write(list.path(), text.as_bytes(), 0o644)?;
        self.restore_labels(&[list.path()], sink).await
    }

    /// Removes from the list of holds exactly what a change has added to it: the packages may have other
    /// versions by now, and others may have locked these.
    pub(in crate::change) async fn remove_entries(
        &self,
        entries: &[String],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let nothing = || Reverted::Nothing {
            why: "no hold of this program is left".to_owned(),
        };
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
            files.write(list.path(), kept.as_bytes(), 0o644)?;
            self.restore_labels(&[list.path()], sink).await
        })
        .await?;
        Ok(Reverted::Done {
            what: format!("released {} holds", entries.len()),
        })
    }

    pub(in crate::change) async fn unhold(
        &self,
        before: &[String],
        ours: Option<&[String]>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let now = held(&self.database().await?);
        let names: Vec<String> = match ours {
            Some(ours) => ours
                .iter()
                .filter(|name| now.contains(*name))
                .cloned()
                .collect(),
            None => now
                .into_iter()
                .filter(|name| !before.contains(name))
                .collect(),
        };
        if names.is_empty() {
            return Ok(Reverted::Nothing {
                why: "no hold of this program is left".to_owned(),
            });
        }
        self.transactions()?;
        self.exclusively(sink, self.mark(Mark::Unhold, &names, sink))
            .await?;
        Ok(Reverted::Done {
            what: format!("released the hold on {} packages", names.len()),
        })
    }
}
