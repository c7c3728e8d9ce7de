//! Reverts the obsolete part of a package transaction. Several steps share a transaction, so if one of them is no longer
//! configured, only its packages are removed.

use std::collections::BTreeSet;

use super::{
    effects::{Effects, Inventory},
    inventory::held,
};
use crate::{
    change::{Applier, ApplyChanges, ChangeError, Reverted, Sink, Undo},
    error::one_line,
    tools::packages::Mark,
};

/// The result of [`Applier::reduce`].
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced {
    /// The result of the removal.
    pub reverted: Reverted,
    /// The undo of the part that is still applied.
    pub rest: Undo,
}

impl Applier {
    /// Removes the packages that a transaction installed. Packages in `wanted` are kept, and so are packages that any other
    /// installed package depends on. If the effects of the transaction are unknown, all of it is reverted.
    ///
    /// `holds` are the packages that gpu-bootstrap holds. A held package cannot be removed, so the holds of the candidates are
    /// released first. Holds on packages that are kept are set again, even after a failure.
    ///
    /// Accounts and files in `/etc` cannot be assigned to a single package, so they remain recorded until the last package of
    /// the transaction is removed.
    ///
    /// # Errors
    /// If the removal fails. The change remains applied.
    pub async fn reduce(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        holds: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Reduced, ChangeError> {
        let Undo::Packages {
            transaction,
            effects: Some(effects),
        } = undo
        else {
            return Ok(Reduced {
                reverted: self.revert(undo, sink).await?,
                rest: nothing(),
            });
        };
        let inventory = self.inventory().await?;
        let candidates: BTreeSet<String> = (effects.appeared.union(&effects.refilled))
            .filter(|name| !wanted.contains(self.backend.bare_name(name)))
            .cloned()
            .collect();
        let held: Vec<String> = held(&self.database().await?)
            .into_iter()
            .filter(|name| candidates.contains(name) && holds.contains(name))
            .collect();
        // Release the holds first, so that the simulation shows which packages can really be removed.
        let reduced = async {
            if !held.is_empty() {
                self.unhold(&held, sink).await?;
            }
            self.reduce_packages(transaction, effects, candidates, &inventory, sink)
                .await
        };
        let reduced = reduced.await;
        // A failure is only noted, because the removal has already finished, and an error of the removal takes precedence.
        if let Err(error) = self.hold_again(&held, sink).await {
            sink.note(&format!(
                "failed to {}; the next `install` holds the packages again",
                one_line(&error)
            ));
        }
        let reduced = reduced?;
        self.sync_system().await?;
        Ok(reduced)
    }

    /// Sets the holds again on packages that were not removed.
    async fn hold_again(&self, names: &[String], sink: &dyn Sink) -> Result<(), ChangeError> {
        if names.is_empty() {
            return Ok(());
        }
        let again: Vec<String> = (self.database().await?.into_iter())
            .filter(|package| package.is_unpacked() && !package.held)
            .map(|package| package.id)
            .filter(|id| names.contains(id))
            .collect();
        if again.is_empty() {
            return Ok(());
        }
        self.exclusively(sink, self.mark(Mark::Hold, &again, sink))
            .await
    }

    /// Removes the candidates, except for those that packages outside the candidates depend on.
    async fn reduce_packages(
        &self,
        transaction: &str,
        effects: &Effects,
        candidates: BTreeSet<String>,
        inventory: &Inventory,
        sink: &dyn Sink,
    ) -> Result<Reduced, ChangeError> {
        let there: Vec<String> = (candidates.iter())
            .filter(|name| {
                inventory.packages.contains_key(*name) || inventory.configured.contains(*name)
            })
            .cloned()
            .collect();
        let kept = self.needed_by_others(&there).await?;
        let going: BTreeSet<String> = (candidates.into_iter())
            .filter(|name| !kept.names.contains(name))
            .collect();
        let is_whole = stays(effects, &going).is_empty();
        let (part, mut rest) = split(effects, &going);
        let reverted = if going.is_empty() {
            Reverted::nothing("the packages are still configured, or other packages depend on them")
        } else if is_whole {
            self.revert_packages(transaction, Some(effects), sink)
                .await?
        } else {
            let (mut endings, _) = self
                .exclusively(sink, self.undo_packages(&part, sink))
                .await?;
            endings.extend(self.reload_units(sink).await?);
            Reverted::of(endings)
        };
        if is_whole && !matches!(reverted, Reverted::Left { .. }) {
            rest = Effects::default();
        }
        // Packages that were not removed stay in the record, because gpu-bootstrap installed them.
        let now = self.inventory().await?;
        let is_there =
            |name: &&String| now.packages.contains_key(*name) || now.configured.contains(*name);
        rest.appeared
            .extend(part.appeared.iter().filter(is_there).cloned());
        rest.refilled.extend(
            (part.refilled.iter())
                .filter(|name| now.packages.contains_key(*name))
                .cloned(),
        );
        Ok(Reduced {
            reverted,
            rest: Undo::Packages {
                transaction: transaction.to_owned(),
                effects: Some(Box::new(rest)),
            },
        })
    }
}

fn nothing() -> Undo {
    Undo::nothing("the change was undone")
}

/// The packages of a transaction that are not removed.
fn stays<'e>(effects: &'e Effects, going: &BTreeSet<String>) -> BTreeSet<&'e String> {
    (effects.appeared.iter().chain(&effects.refilled))
        .filter(|name| !going.contains(*name))
        .collect()
}

/// Splits the effects into those of the packages to remove and the rest.
fn split(effects: &Effects, going: &BTreeSet<String>) -> (Effects, Effects) {
    let part = Effects {
        appeared: effects.appeared.intersection(going).cloned().collect(),
        refilled: effects.refilled.intersection(going).cloned().collect(),
        // With this set, the undo detects packages that were marked as manually installed after the transaction, and keeps
        // them.
        automatic: effects.automatic.intersection(going).cloned().collect(),
        there: effects.there.clone(),
        ..Effects::default()
    };
    let rest = Effects {
        appeared: effects.appeared.difference(going).cloned().collect(),
        refilled: effects.refilled.difference(going).cloned().collect(),
        ..effects.clone()
    };
    (part, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::packages::Unowned;

    #[test]
    fn accounts_stay_recorded_until_the_last_removal() {
        let set = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let effects = Effects {
            appeared: set(&["docker.io", "nvidia-driver", "runc"]),
            refilled: set(&["tini"]),
            beside: Unowned {
                groups: set(&["docker"]),
                ..Unowned::default()
            },
            now_manual: set(&["zlib1g"]),
            ..Effects::default()
        };
        let (part, rest) = split(&effects, &set(&["docker.io", "tini"]));
        assert_eq!(part.appeared, set(&["docker.io"]));
        assert_eq!(part.refilled, set(&["tini"]));
        assert!(part.beside.is_empty() && part.now_manual.is_empty());
        assert_eq!(rest.appeared, set(&["nvidia-driver", "runc"]));
        assert!(rest.refilled.is_empty());
        assert_eq!(
            (rest.beside, rest.now_manual),
            (effects.beside, effects.now_manual)
        );
    }
}
