//! The write-ahead log. The engine applies and undoes a [`Change`] only through this module, except for
//! a refresh of the package lists before the first change, which leaves nothing to undo.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    events::{EventSink, Events},
    managed::ours,
};
use crate::{
    change::{ApplyChanges, Change, ChangeError, Reverted, STOPPED, Sink, Undo, packages::Reduced},
    error::{causes, one_line},
    event::Event,
    journal::{AppliedChange, Journal, JournalError, Record},
    model::id::StepId,
};

/// Applies and undoes changes, with a record before and after each.
#[derive(Clone)]
pub(super) struct Ledger {
    pub(super) journal: Journal,
    pub(super) change_applier: Arc<dyn ApplyChanges>,
    pub(super) events: Events,
}

impl Ledger {
    /// Applies a change: captures the undo, records the intent, applies the change, records the result.
    pub(super) async fn perform(
        &self,
        steps: &[StepId],
        change: &Change,
    ) -> Result<(), ChangeError> {
        let began = self.events.elapsed();
        let summary = change.summary();
        self.events.emit(Event::ChangeStarted {
            steps: steps.to_vec(),
            summary: summary.clone(),
        });
        let undo = self.change_applier.capture(change).await?;
        let intent = self.journal.append(Record::Intent {
            steps: steps.to_vec(),
            change: change.clone(),
            undo: undo.clone(),
        })?;
        let sink = EventSink {
            events: &self.events,
            steps,
        };
        match self.change_applier.apply(change, undo.clone(), &sink).await {
            Ok(undo) => {
                self.journal.append(Record::Applied { intent, undo })?;
                self.events.emit(Event::ChangeApplied {
                    steps: steps.to_vec(),
                    summary,
                    seconds: self.events.elapsed().saturating_sub(began).as_secs_f64(),
                });
                Ok(())
            }
            Err(failure) => {
                // `uninstall` must revert whatever was applied before the failure. If that is
                // unknown, leave the intent open so that the next run reconciles it.
                if let Some(undo) = self.exact(&summary, &undo, &sink).await {
                    self.journal.append(Record::Failed {
                        intent,
                        message: failure.to_string(),
                        causes: causes(&failure),
                        undo,
                    })?;
                }
                Err(failure)
            }
        }
    }

    /// Closes the intents that an interrupted run left open.
    pub(super) async fn reconcile(&self) -> Result<Vec<String>, JournalError> {
        let mut notes = Vec::new();
        for open in self.journal.receipt().applied.iter().filter(|s| s.open) {
            let summary = open.change.summary();
            let sink = EventSink {
                events: &self.events,
                steps: &open.steps,
            };
            match self.change_applier.reconcile(&open.undo, &sink).await {
                Ok(undo) => {
                    self.journal.append(Record::Interrupted {
                        intent: open.intent,
                        undo,
                    })?;
                    notes.push(format!(
                        "an earlier run was interrupted during: {summary}; its state is read again"
                    ));
                }
                Err(failure) => notes.push(format!(
                    "an earlier run was interrupted during: {summary}; its effects are still \
                     unknown: {}",
                    one_line(&failure)
                )),
            }
        }
        Ok(notes)
    }

    /// Undoes applied changes, several at once if their undos were merged into `undo`. If a stop
    /// was requested while the undo waited, e.g. for a lock, records nothing and returns `None`.
    pub(super) async fn revert(
        &self,
        applied: &[AppliedChange],
        undo: &Undo,
    ) -> Result<Option<Reverted>, JournalError> {
        let reverted = self.undo(applied, undo).await;
        if let Some(reverted) = &reverted {
            self.reverted(applied, reverted)?;
        }
        Ok(reverted)
    }

    /// Undoes changes, or a part of one, without a journal record. `None` if a stop was requested
    /// while the undo waited, e.g. for a lock.
    pub(super) async fn undo(&self, applied: &[AppliedChange], undo: &Undo) -> Option<Reverted> {
        let steps = steps_of(applied);
        let sink = EventSink {
            events: &self.events,
            steps: &steps,
        };
        match self.change_applier.revert(undo, &sink).await {
            Ok(reverted) => Some(reverted),
            Err(failure) if failure.reason == STOPPED => None,
            Err(failure) => Some(Reverted::left(
                applied
                    .iter()
                    .map(|applied| applied.change.summary())
                    .collect::<Vec<_>>()
                    .join("; "),
                one_line(&failure),
            )),
        }
    }

    /// Undoes the obsolete part of a change without a journal record. The error is the remaining
    /// part, or `None` if a stop was requested while the undo waited.
    pub(super) async fn reduce(
        &self,
        applied: &AppliedChange,
        wanted: &BTreeSet<String>,
    ) -> Result<Reduced, Option<Reverted>> {
        let sink = EventSink {
            events: &self.events,
            steps: &applied.steps,
        };
        let holds = ours(&self.journal.receipt().applied).held;
        let reduced = self
            .change_applier
            .reduce(&applied.undo, wanted, &holds, &sink);
        reduced.await.map_err(|failure| {
            (failure.reason != STOPPED)
                .then(|| Reverted::left(applied.change.summary(), one_line(&failure)))
        })
    }

    /// Records the result of an undo.
    pub(super) fn reverted(
        &self,
        applied: &[AppliedChange],
        reverted: &Reverted,
    ) -> Result<(), JournalError> {
        for applied in applied {
            let intent = applied.intent;
            self.journal.append(match reverted {
                Reverted::Done { what } => Record::Reverted {
                    intent,
                    what: what.clone(),
                },
                Reverted::Nothing { why } => Record::Reverted {
                    intent,
                    what: format!("nothing to do: {why}"),
                },
                Reverted::Left { what, why } => Record::Left {
                    intent,
                    why: format!("{what}: {why}"),
                },
            })?;
        }
        Ok(())
    }

    async fn exact(&self, summary: &str, undo: &Undo, sink: &dyn Sink) -> Option<Undo> {
        match self.change_applier.reconcile(undo, sink).await {
            Ok(undo) => Some(undo),
            Err(failure) => {
                sink.note(&format!(
                    "the effects of the failed change ({summary}) are still unknown: {}",
                    one_line(&failure)
                ));
                None
            }
        }
    }
}

/// Returns the steps of the changes without duplicates.
pub(super) fn steps_of(applied: &[AppliedChange]) -> Vec<StepId> {
    let mut steps: Vec<StepId> = Vec::new();
    for step in applied.iter().flat_map(|applied| &applied.steps) {
        if !steps.contains(step) {
            steps.push(step.clone());
        }
    }
    steps
}
