//! What the engine needs of the verbs. [`Applier`](super::Applier) implements it for a machine; tests of the engine
//! implement it in memory.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;

use super::{Change, Problem, Reverted, Sink, Undo, packages::Withdrawn};
use crate::config::desired::Desired;

/// Describes, applies and undoes changes.
#[async_trait]
pub trait Verbs: Send + Sync {
    /// The same verbs for a run that wants something else. It knows nothing of what the run before has read; `holds` are
    /// packages that this program holds.
    fn anew(&self, desired: &Desired, holds: BTreeSet<String>) -> Arc<dyn Verbs>;

    /// Starts the timers that this run or an interrupted one has paused. Each run that may change the machine calls it before
    /// anything else and at its end, and never in between: a transaction or a build of another step may be under way.
    async fn resume_paused(&self, sink: &dyn Sink);

    /// A unified diff or the package manager's simulation; changes nothing.
    ///
    /// # Errors
    /// When the machine could not be looked at, or the simulation was refused.
    async fn preview(&self, change: &Change) -> Result<Option<String>, Problem>;

    /// Finds what would certainly refuse the change, before the first change of a run. Changes
    /// nothing.
    ///
    /// # Errors
    /// The refusal.
    async fn rehearse(&self, change: &Change) -> Result<(), Problem>;

    /// How the change will be undone, as far as can be said before; may store backups.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn capture(&self, change: &Change) -> Result<Undo, Problem>;

    /// Applies it. Returns the exact undo.
    ///
    /// # Errors
    /// When it failed, whatever it did until then.
    async fn apply(&self, change: &Change, undo: Undo, sink: &dyn Sink) -> Result<Undo, Problem>;

    /// The exact undo of a change that was cut off: before compared with now.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, Problem>;

    /// Undoes it.
    ///
    /// # Errors
    /// When it failed. The change stands then.
    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, Problem>;

    /// Undoes the part of it that is no longer wanted. `wanted` are names of packages that stay, with
    /// all that they need; `holds` are packages that this program holds.
    ///
    /// # Errors
    /// When it failed. The change stands then.
    async fn withdraw(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        holds: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Withdrawn, Problem>;
}

/// The verbs of `check`: there are none.
#[derive(Debug, Clone, Copy)]
pub struct NoVerbs;

/// A bug: `check` tried to change something.
fn only_looks() -> Problem {
    Problem::bug("change the machine: `check` only looks")
}

#[async_trait]
impl Verbs for NoVerbs {
    fn anew(&self, _: &Desired, _: BTreeSet<String>) -> Arc<dyn Verbs> {
        Arc::new(Self)
    }

    async fn resume_paused(&self, _: &dyn Sink) {}

    async fn preview(&self, _: &Change) -> Result<Option<String>, Problem> {
        Err(only_looks())
    }

    async fn rehearse(&self, _: &Change) -> Result<(), Problem> {
        Err(only_looks())
    }

    async fn capture(&self, _: &Change) -> Result<Undo, Problem> {
        Err(only_looks())
    }

    async fn apply(&self, _: &Change, _: Undo, _: &dyn Sink) -> Result<Undo, Problem> {
        Err(only_looks())
    }

    async fn reconcile(&self, _: &Undo, _: &dyn Sink) -> Result<Undo, Problem> {
        Err(only_looks())
    }

    async fn revert(&self, _: &Undo, _: &dyn Sink) -> Result<Reverted, Problem> {
        Err(only_looks())
    }

    async fn withdraw(
        &self,
        _: &Undo,
        _: &BTreeSet<String>,
        _: &BTreeSet<String>,
        _: &dyn Sink,
    ) -> Result<Withdrawn, Problem> {
        Err(only_looks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    struct Quiet;

    impl Sink for Quiet {
        fn line(&self, _: &str) {}
        fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
        fn retry(&self, _: &str, _: f64) {}
        fn note(&self, _: &str) {}
    }

    #[tokio::test]
    async fn a_change_of_check_is_a_bug() {
        let undo = Undo::Nothing { why: String::new() };
        let (change, none) = (Change::RefreshRepositories, BTreeSet::new());
        let refused = [
            NoVerbs.preview(&change).await.err(),
            NoVerbs.rehearse(&change).await.err(),
            NoVerbs.capture(&change).await.err(),
            NoVerbs.apply(&change, undo.clone(), &Quiet).await.err(),
            NoVerbs.reconcile(&undo, &Quiet).await.err(),
            NoVerbs.revert(&undo, &Quiet).await.err(),
            NoVerbs.withdraw(&undo, &none, &none, &Quiet).await.err(),
        ];
        for error in refused {
            let error = error.expect("check only looks");
            assert_eq!((error.exit, error.reason), (Exit::Internal, "bug"));
        }
    }
}
