//! What the engine needs of the verbs. `change::Applier` implements it for a machine; tests implement
//! it in memory.

use async_trait::async_trait;

use crate::{
    change::{Applier, Change, Reverted, Sink, Undo},
    error::Report,
};

/// Any error that can be shown.
pub type Failure = Box<dyn Report>;

/// Describes, applies and undoes changes.
#[async_trait]
pub trait Verbs: Send + Sync {
    /// A unified diff or the package manager's simulation; changes nothing.
    ///
    /// # Errors
    /// When the machine could not be looked at, or the simulation was refused.
    async fn preview(&self, change: &Change) -> Result<Option<String>, Failure>;

    /// Finds what would certainly refuse the change, before the first change of a run. Changes
    /// nothing.
    ///
    /// # Errors
    /// The refusal.
    async fn rehearse(&self, change: &Change) -> Result<(), Failure>;

    /// How the change will be undone, as far as can be said before; may store backups.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn capture(&self, change: &Change) -> Result<Undo, Failure>;

    /// Applies it. Returns the exact undo.
    ///
    /// # Errors
    /// When it failed, whatever it did until then.
    async fn apply(&self, change: &Change, undo: Undo, sink: &dyn Sink) -> Result<Undo, Failure>;

    /// The exact undo of a change that was cut off: before compared with now.
    ///
    /// # Errors
    /// When the machine could not be looked at.
    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, Failure>;

    /// Undoes it.
    ///
    /// # Errors
    /// When it failed. The change stands then.
    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, Failure>;
}

#[async_trait]
impl Verbs for Applier {
    async fn preview(&self, change: &Change) -> Result<Option<String>, Failure> {
        Applier::preview(self, change).await.map_err(boxed)
    }

    async fn rehearse(&self, change: &Change) -> Result<(), Failure> {
        Applier::rehearse(self, change).await.map_err(boxed)
    }

    async fn capture(&self, change: &Change) -> Result<Undo, Failure> {
        Applier::capture(self, change).await.map_err(boxed)
    }

    async fn apply(&self, change: &Change, undo: Undo, sink: &dyn Sink) -> Result<Undo, Failure> {
        Applier::apply(self, change, undo, sink)
            .await
            .map_err(boxed)
    }

    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, Failure> {
        Applier::reconcile(self, undo, sink).await.map_err(boxed)
    }

    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, Failure> {
        Applier::revert(self, undo, sink).await.map_err(boxed)
    }
}

fn boxed(error: impl Report) -> Failure {
    Box::new(error)
}
