//! The interface of the change kinds for the engine. [`Applier`](super::Applier) implements it for a machine. Engine tests
//! implement it in memory.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;

use super::{Change, Problem, Reverted, Sink, Undo, packages::Withdrawn};
use crate::config::desired::Desired;

/// Describes, applies and reverts changes.
#[async_trait]
pub trait Verbs: Send + Sync {
    /// Creates an instance for a run with another desired state, without cached data. `holds` are the packages that
    /// gpu-bootstrap holds.
    fn anew(&self, desired: &Desired, holds: BTreeSet<String>) -> Arc<dyn Verbs>;

    /// Starts the timers that this run or an interrupted one has paused. Each run that may change the machine calls this first
    /// and at its end, but never in between, because a transaction or a build of another step may be in progress.
    async fn resume_paused(&self, sink: &dyn Sink);

    /// Returns a unified diff or the package manager's simulation, without changing anything.
    ///
    /// # Errors
    /// If the machine could not be inspected, or if the simulation failed.
    async fn preview(&self, change: &Change) -> Result<Option<String>, Problem>;

    /// Detects errors that would certainly prevent the change, before the first change of a run. Changes nothing.
    ///
    /// # Errors
    /// The detected error.
    async fn rehearse(&self, change: &Change) -> Result<(), Problem>;

    /// Returns the undo of the change, if known in advance. May store backups.
    ///
    /// # Errors
    /// If the machine could not be inspected.
    async fn capture(&self, change: &Change) -> Result<Undo, Problem>;

    /// Applies the change and returns its exact undo.
    ///
    /// # Errors
    /// If it failed. It may have been applied in part.
    async fn apply(&self, change: &Change, undo: Undo, sink: &dyn Sink) -> Result<Undo, Problem>;

    /// Returns the exact undo of an interrupted change, by comparing the previous state with the current one.
    ///
    /// # Errors
    /// If the machine could not be inspected.
    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, Problem>;

    /// Reverts the change.
    ///
    /// # Errors
    /// If it failed. The change remains applied.
    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, Problem>;

    /// Reverts the obsolete part of the change. `wanted` are the names of packages to keep with their dependencies, and `holds`
    /// are packages that gpu-bootstrap holds.
    ///
    /// # Errors
    /// If it failed. The change remains applied.
    async fn withdraw(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        holds: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Withdrawn, Problem>;
}

/// The implementation for `check`, which makes no changes.
#[derive(Debug, Clone, Copy)]
pub struct NoVerbs;

/// A bug: `check` tried to make a change.
fn only_looks() -> Problem {
    Problem::bug("change the machine: `check` is read-only")
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
    async fn change_during_check_is_a_bug() {
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
            let error = error.expect("check is read-only");
            assert_eq!((error.exit, error.reason), (Exit::Internal, "bug"));
        }
    }
}
