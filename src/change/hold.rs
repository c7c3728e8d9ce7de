//! Holds: packages that no background upgrade may move.

use std::collections::BTreeSet;

use super::{
    Applier, ChangeError, Reverted, Sink, Undo,
    inventory::{full_name, held, native},
};
use crate::{
    model::pattern,
    tools::{apt, dpkg_status::Package},
};

/// Installed packages that match and are not held.
fn to_hold(database: &[Package], patterns: &[String]) -> Vec<String> {
    let native = native(database);
    database
        .iter()
        .filter(|package| package.is_unpacked() && !package.is_held())
        .filter(|package| {
            patterns
                .iter()
                .any(|pattern| pattern::matches(pattern, &package.name))
        })
        .map(|package| full_name(package, native))
        .collect()
}

impl Applier {
    pub(super) fn preview_hold(&self, patterns: &[String]) -> Result<String, ChangeError> {
        Ok(to_hold(&self.database()?, patterns)
            .iter()
            .map(|name| format!("= {name}"))
            .collect::<Vec<_>>()
            .join("\n"))
    }

    pub(super) fn capture_hold(&self) -> Result<Undo, ChangeError> {
        Ok(Undo::Unhold {
            before: held(&self.database()?).into_iter().collect(),
            held: None,
        })
    }

    pub(super) fn refine_hold(&self, undo: Undo) -> Result<Undo, ChangeError> {
        match undo {
            Undo::Unhold { before, held: None } => {
                let known: BTreeSet<String> = before.iter().cloned().collect();
                let now = held(&self.database()?);
                Ok(Undo::Unhold {
                    held: Some(now.difference(&known).cloned().collect()),
                    before,
                })
            }
            other => Ok(other),
        }
    }

    pub(super) async fn hold(
        &self,
        patterns: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.apt()?;
        self.exclusively(sink, async {
            let names = to_hold(&self.database()?, patterns);
            if names.is_empty() {
                return Ok(());
            }
            self.apt_run("hold packages", apt::mark("hold", &names), sink)
                .await?;
            match to_hold(&self.database()?, patterns).first() {
                None => Ok(()),
                Some(name) => Err(ChangeError::NotVerified {
                    package: name.clone(),
                    found: "not held".to_owned(),
                    wanted: "a hold".to_owned(),
                }),
            }
        })
        .await
    }

    pub(super) async fn unhold(
        &self,
        before: &[String],
        ours: Option<&[String]>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let now = held(&self.database()?);
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
                why: "no hold of ours is left".to_owned(),
            });
        }
        self.apt()?;
        self.exclusively(
            sink,
            self.apt_run("release holds", apt::mark("unhold", &names), sink),
        )
        .await?;
        Ok(Reverted::Done {
            what: format!("released the hold on {} packages", names.len()),
        })
    }
}
