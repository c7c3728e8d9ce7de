//! The interface of the change kinds for the engine. [`Applier`](super::Applier) implements it for a machine. Engine tests
//! implement it in memory.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;

use super::{
    Change, ChangeError, Reverted, Sink, Undo,
    packages::{Reduced, Simulation},
};
use crate::config::desired::Desired;

/// Describes, applies and reverts changes.
#[async_trait]
pub trait ApplyChanges: Send + Sync {
    /// Creates an instance for a run with another desired state, without cached data. `holds` are the packages that
    /// gpu-bootstrap holds.
    fn anew(&self, desired: &Desired, holds: BTreeSet<String>) -> Arc<dyn ApplyChanges>;

    /// Starts the timers that this run or an interrupted one has paused. Each run that may change the machine calls this first,
    /// and an installation also at its end. It is not called in between, because a transaction or a build of another step may
    /// be in progress.
    async fn resume_paused(&self, sink: &dyn Sink);

    /// Returns a unified diff or the package manager's simulation, without changing anything. `None` if there is no preview.
    ///
    /// # Errors
    /// If the machine could not be inspected, or if the simulation failed.
    async fn preview(&self, change: &Change) -> Result<Option<String>, ChangeError>;

    /// Detects errors that would certainly prevent the change, before the first change of a run. Changes nothing.
    ///
    /// # Errors
    /// The detected error.
    async fn dry_run(&self, change: &Change) -> Result<(), ChangeError>;

    /// Simulates the installations of several steps, in step order, as the transactions that the engine makes of them. This is
    /// the dry run and the preview of all of them. Returns one result for each change.
    async fn simulate_installs(&self, changes: &[&Change]) -> Vec<Simulation>;

    /// Returns the undo of the change, as far as it is known in advance. May store backups.
    ///
    /// # Errors
    /// If the machine could not be inspected.
    async fn capture(&self, change: &Change) -> Result<Undo, ChangeError>;

    /// Applies the change and returns its exact undo.
    ///
    /// # Errors
    /// If it failed. It may have been applied in part.
    async fn apply(
        &self,
        change: &Change,
        undo: Undo,
        sink: &dyn Sink,
    ) -> Result<Undo, ChangeError>;

    /// Returns the exact undo of an interrupted change, by comparing the previous state with the current one.
    ///
    /// # Errors
    /// If the machine could not be inspected.
    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, ChangeError>;

    /// Reverts the change.
    ///
    /// # Errors
    /// If it failed. The change remains applied.
    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, ChangeError>;

    /// Reverts the obsolete part of the change. `wanted` are the names of packages to keep with their dependencies, and `holds`
    /// are packages that gpu-bootstrap holds.
    ///
    /// # Errors
    /// If it failed. The change remains applied.
    async fn reduce(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        holds: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Reduced, ChangeError>;
}

/// The implementation for `check`, which makes no changes.
#[derive(Debug, Clone, Copy)]
pub struct NoChanges;

/// The error of a bug: `check` tried to make a change.
fn only_looks() -> ChangeError {
    ChangeError::bug("change the machine: `check` is read-only")
}

#[async_trait]
impl ApplyChanges for NoChanges {
    fn anew(&self, _: &Desired, _: BTreeSet<String>) -> Arc<dyn ApplyChanges> {
        Arc::new(Self)
    }

    async fn resume_paused(&self, _: &dyn Sink) {}

    async fn preview(&self, _: &Change) -> Result<Option<String>, ChangeError> {
        Err(only_looks())
    }

    async fn dry_run(&self, _: &Change) -> Result<(), ChangeError> {
        Err(only_looks())
    }

    async fn simulate_installs(&self, changes: &[&Change]) -> Vec<Simulation> {
        let rejected = |_: &&Change| Simulation::Rejected(only_looks());
        changes.iter().map(rejected).collect()
    }

    async fn capture(&self, _: &Change) -> Result<Undo, ChangeError> {
        Err(only_looks())
    }

    async fn apply(&self, _: &Change, _: Undo, _: &dyn Sink) -> Result<Undo, ChangeError> {
        Err(only_looks())
    }

    async fn reconcile(&self, _: &Undo, _: &dyn Sink) -> Result<Undo, ChangeError> {
        Err(only_looks())
    }

    async fn revert(&self, _: &Undo, _: &dyn Sink) -> Result<Reverted, ChangeError> {
        Err(only_looks())
    }

    async fn reduce(
        &self,
        _: &Undo,
        _: &BTreeSet<String>,
        _: &BTreeSet<String>,
        _: &dyn Sink,
    ) -> Result<Reduced, ChangeError> {
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
            NoChanges.preview(&change).await.err(),
            NoChanges.dry_run(&change).await.err(),
            NoChanges.capture(&change).await.err(),
            NoChanges.apply(&change, undo.clone(), &Quiet).await.err(),
            NoChanges.reconcile(&undo, &Quiet).await.err(),
            NoChanges.revert(&undo, &Quiet).await.err(),
            NoChanges.reduce(&undo, &none, &none, &Quiet).await.err(),
        ];
        for error in refused {
            let error = error.expect("check is read-only");
            assert_eq!((error.exit, error.reason), (Exit::Internal, "bug"));
        }
    }
}
