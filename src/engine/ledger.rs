//! Write-ahead recording. The engine changes a machine only through this module.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    events::{EventSink, Events},
    ours::ours,
};
use crate::{
    change::{Change, Problem, Reverted, STOPPED, Sink, Undo, Verbs, packages::Withdrawn},
    error::{causes, one_line},
    event::Event,
    journal::{Journal, JournalError, Record, Standing},
    model::id::StepId,
};

/// Applies and undoes changes, with a record before and after each.
#[derive(Clone)]
pub(super) struct Ledger {
    pub(super) journal: Journal,
    pub(super) verbs: Arc<dyn Verbs>,
    pub(super) events: Events,
}

impl Ledger {
    /// Applies a change: captures the undo, syncs the intent, applies, syncs the end.
    pub(super) async fn perform(&self, steps: &[StepId], change: &Change) -> Result<(), Problem> {
        let began = self.events.elapsed();
        let summary = change.summary();
        self.events.emit(Event::ChangeStarted {
            steps: steps.to_vec(),
            summary: summary.clone(),
        });
        let undo = self.verbs.capture(change).await?;
        let intent = self.journal.append(Record::Intent {
            steps: steps.to_vec(),
            change: change.clone(),
            undo: undo.clone(),
        })?;
        let sink = EventSink {
            events: &self.events,
            steps,
        };
        match self.verbs.apply(change, undo.clone(), &sink).await {
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
                // What it did before it failed must be undone by `uninstall`. Where that cannot be
                // determined the intent stays open, and the next run determines it.
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

    /// Ends the intents that an earlier run left open because it was interrupted.
    pub(super) async fn reconcile(&self) -> Result<Vec<String>, JournalError> {
        let mut notes = Vec::new();
        for open in self.journal.receipt().standing.iter().filter(|s| s.open) {
            let summary = open.change.summary();
            let sink = EventSink {
                events: &self.events,
                steps: &open.steps,
            };
            match self.verbs.reconcile(&open.undo, &sink).await {
                Ok(undo) => {
                    self.journal.append(Record::Interrupted {
                        intent: open.intent,
                        undo,
                    })?;
                    notes.push(format!(
                        "an earlier run was interrupted during: {summary}; the state is read \
                         again"
                    ));
                }
                Err(failure) => notes.push(format!(
                    "an earlier run was interrupted during: {summary}; its effects are not known \
                     yet: {}",
                    one_line(&failure)
                )),
            }
        }
        Ok(notes)
    }

    /// Undoes changes that stand; several at once where their undos were merged into `undo`.
    /// Records nothing where the undo had only waited when somebody asked to stop.
    pub(super) async fn revert(
        &self,
        standing: &[Standing],
        undo: &Undo,
    ) -> Result<Option<Reverted>, JournalError> {
        let reverted = self.undo(standing, undo).await;
        if let Some(reverted) = &reverted {
            self.reverted(standing, reverted)?;
        }
        Ok(reverted)
    }

    /// Undoes a part of a change, without a journal record.
    pub(super) async fn undo(&self, standing: &[Standing], undo: &Undo) -> Option<Reverted> {
        let steps = steps_of(standing);
        let sink = EventSink {
            events: &self.events,
            steps: &steps,
        };
        match self.verbs.revert(undo, &sink).await {
            Ok(reverted) => Some(reverted),
            Err(failure) if failure.reason == STOPPED => None,
            Err(failure) => Some(Reverted::left(
                standing
                    .iter()
                    .map(|standing| standing.change.summary())
                    .collect::<Vec<_>>()
                    .join("; "),
                one_line(&failure),
            )),
        }
    }

    /// Undoes the part of a change that is no longer wanted, without a journal record. The error is
    /// what stays; it is `None` if the undo had only waited when a signal came.
    pub(super) async fn withdraw(
        &self,
        standing: &Standing,
        wanted: &BTreeSet<String>,
    ) -> Result<Withdrawn, Option<Reverted>> {
        let sink = EventSink {
            events: &self.events,
            steps: &standing.steps,
        };
        let holds = ours(&self.journal.receipt().standing).held;
        let withdrawn = self.verbs.withdraw(&standing.undo, wanted, &holds, &sink);
        withdrawn.await.map_err(|failure| {
            (failure.reason != STOPPED)
                .then(|| Reverted::left(standing.change.summary(), one_line(&failure)))
        })
    }

    /// Records how undoing ended.
    pub(super) fn reverted(
        &self,
        standing: &[Standing],
        reverted: &Reverted,
    ) -> Result<(), JournalError> {
        for standing in standing {
            let intent = standing.intent;
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
        match self.verbs.reconcile(undo, sink).await {
            Ok(undo) => Some(undo),
            Err(failure) => {
                sink.note(&format!(
                    "the effects of the failed change ({summary}) are not known yet: {}",
                    one_line(&failure)
                ));
                None
            }
        }
    }
}

/// The steps for which changes were made, each once.
pub(super) fn steps_of(standing: &[Standing]) -> Vec<StepId> {
    let mut steps: Vec<StepId> = Vec::new();
    for step in standing.iter().flat_map(|standing| &standing.steps) {
        if !steps.contains(step) {
            steps.push(step.clone());
        }
    }
    steps
}
