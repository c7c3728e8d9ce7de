//! The state of one step during a run.

use std::time::Duration;

use super::{
    result::{ChangeReport, StepReport},
    retry::Retries,
};
use crate::{
    change::{Change, ChangeError, Lock},
    error::causes,
    event::{Event, Outcome},
    exit::Exit,
    journal::AppliedChange,
    model::{findings, id::StepId},
    step::{Assessment, Step, StepError},
};

/// The result of assessing a step.
pub(super) type Assessed = Result<Assessment, StepError>;

/// The state of one step during a run.
pub(super) struct Job {
    pub(super) id: StepId,
    pub(super) locks: Vec<Lock>,
    /// Its changes take long. The packages that they need are installed before other packages.
    pub(super) long: bool,
    /// Its changes must be applied before the next boot.
    pub(super) before_boot: bool,
    /// The last assessment.
    pub(super) answer: Option<Assessed>,
    /// The number of the scheduler's snapshot when the last assessment was started.
    pub(super) answered_at: u64,
    /// The changes to apply, in order.
    pub(super) changes: Vec<Change>,
    /// The number of applied changes.
    pub(super) applied: usize,
    /// The changes that were applied before a retry.
    pub(super) earlier: Vec<Change>,
    /// The attempts that failed with a transient error.
    pub(super) retries: Retries,
    /// A task is working on this step.
    pub(super) busy: bool,
    /// Its changes are decided.
    pub(super) decided: bool,
    /// The time at which the scheduler began to process the step. `None` before and after.
    pub(super) since: Option<Duration>,
    /// The time spent on the step, without the time since `since`.
    pub(super) spent: Duration,
    pub(super) ended: Option<End>,
    /// A file that its changes rewrite was modified after it was read, so the step was assessed again.
    /// This happens at most once.
    pub(super) is_outdated: bool,
    /// Its obsolete changes.
    pub(super) obsolete: Vec<AppliedChange>,
    /// The obsolete changes that were undone in this run.
    pub(super) undone: Vec<ChangeReport>,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) why: String,
    pub(super) causes: Vec<String>,
    pub(super) hint: Option<String>,
    pub(super) reason: Option<&'static str>,
    /// The exit status for a failure.
    pub(super) exit: Option<Exit>,
}

impl End {
    pub(super) fn new(outcome: Outcome, why: String) -> Self {
        Self {
            outcome,
            why,
            causes: Vec::new(),
            hint: None,
            reason: None,
            exit: None,
        }
    }

    pub(super) fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    pub(super) fn failed(what: &str, failure: &ChangeError) -> Self {
        let mut chain = vec![failure.to_string()];
        chain.extend(causes(failure));
        Self {
            outcome: Outcome::Failed,
            why: format!("failed to {what}"),
            causes: chain,
            hint: failure.hint.clone(),
            reason: Some(failure.reason),
            exit: Some(failure.exit),
        }
    }

    pub(super) fn could_not_look(error: &StepError) -> Self {
        Self {
            outcome: Outcome::Failed,
            why: format!("failed to {error}"),
            causes: causes(error),
            hint: None,
            reason: Some("assessment-failed"),
            exit: None,
        }
    }

    pub(super) fn bug(what: &str) -> Self {
        Self {
            outcome: Outcome::Failed,
            why: what.to_owned(),
            causes: Vec::new(),
            hint: Some("this is a bug: please report it with the events of the run".to_owned()),
            reason: Some("bug"),
            exit: Some(Exit::Internal),
        }
    }
}

impl Job {
    pub(super) fn new(step: &Step) -> Self {
        Self {
            id: step.id.clone(),
            locks: step.locks.clone(),
            long: step.is_long,
            before_boot: step.is_before_boot,
            answer: None,
            answered_at: 0,
            changes: Vec::new(),
            applied: 0,
            earlier: Vec::new(),
            retries: Retries::default(),
            busy: false,
            decided: false,
            since: None,
            spent: Duration::ZERO,
            ended: None,
            is_outdated: false,
            obsolete: Vec::new(),
            undone: Vec::new(),
        }
    }

    /// The outcome of the finished step.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.ended.as_ref().map(|end| end.outcome)
    }

    /// Whether the step is finished with this outcome.
    pub(super) fn has(&self, outcome: Outcome) -> bool {
        self.outcome() == Some(outcome)
    }

    /// Whether its part of the machine is as desired, with or without changes.
    pub(super) fn succeeded(&self) -> bool {
        self.has(Outcome::Satisfied) || self.has(Outcome::Changed)
    }

    /// Whether the step is blocked or failed. If an assessment has this result, the run changes nothing.
    pub(super) fn blocks_the_run(&self) -> bool {
        self.has(Outcome::Blocked) || self.has(Outcome::Failed)
    }

    /// Whether the step is not finished and is known to have pending changes.
    pub(super) fn will_change(&self) -> bool {
        let expects = match &self.answer {
            Some(Ok(Assessment::Needs { changes, .. })) => !changes.is_empty(),
            Some(Ok(Assessment::After { expected, .. })) => !expected.is_empty(),
            _ => false,
        };
        self.ended.is_none() && expects
    }

    /// The changes that the step needs, according to its last assessment.
    pub(super) fn needed(&self) -> &[Change] {
        match &self.answer {
            Some(Ok(Assessment::Needs { changes, .. })) => changes,
            _ => &[],
        }
    }

    /// The changes that are not yet applied.
    pub(super) fn pending(&self) -> &[Change] {
        &self.changes[self.applied.min(self.changes.len())..]
    }

    /// The changes that were applied for this step.
    pub(super) fn done(&self) -> impl Iterator<Item = &Change> {
        let now = &self.changes[..self.applied.min(self.changes.len())];
        self.earlier.iter().chain(now)
    }

    /// The outcome if the machine has the desired state.
    pub(super) fn as_wanted(&self) -> Outcome {
        // A refresh of the package lists does not count as a change.
        if self
            .done()
            .any(|change| *change != Change::RefreshRepositories)
        {
            Outcome::Changed
        } else {
            Outcome::Satisfied
        }
    }

    /// Discards the decision, to assess the step again.
    pub(super) fn begin_again(&mut self) {
        self.earlier = self.done().cloned().collect();
        self.changes = Vec::new();
        self.applied = 0;
        self.decided = false;
        self.answer = None;
    }

    /// Whether only the admission of the node is missing, although this run has applied it once. This
    /// is not a failure: the API server or the kubelet may be unavailable for a moment, and the
    /// admission waits for both.
    pub(super) fn lacks_admission_alone(&self, missing: &[Change]) -> bool {
        let is_admission = |change: &Change| matches!(change, Change::AdmitNode { .. });
        matches!(missing, [change] if is_admission(change))
            && self.done().filter(|change| is_admission(change)).count() == 1
    }

    /// The event for an assessment.
    pub(super) fn answer_event(&self, answer: &Assessed) -> Event {
        let (why, changes) = match answer {
            Ok(
                Assessment::Satisfied { why }
                | Assessment::NotApplicable { why }
                | Assessment::Blocked { why, .. }
                | Assessment::BlockedByOldLists { why, .. }
                | Assessment::BlockedNow { why, .. }
                | Assessment::AwaitingBoot { why },
            ) => (why.clone(), 0),
            Ok(Assessment::Needs { why, changes }) => (why.clone(), changes.len()),
            Ok(Assessment::After {
                upstream,
                why,
                expected,
            }) => (format!("after `{upstream}`: {why}"), expected.len()),
            Err(error) => (format!("failed to {error}"), 0),
        };
        Event::StepAssessed {
            step: self.id.clone(),
            why,
            changes,
        }
    }

    /// The reason dependent steps are not run.
    pub(super) fn not_because_of(&self) -> String {
        match self.ended.as_ref().map(|end| (end.outcome, &end.why)) {
            Some((Outcome::Blocked, _)) => format!("`{}` is blocked", self.id),
            Some((Outcome::Failed, _)) => format!("`{}` failed", self.id),
            // Pass on the root cause, because this is the relevant information.
            Some((Outcome::NotRun, why)) => why.clone(),
            _ => format!("`{}` has not finished", self.id),
        }
    }

    pub(super) fn finished(&self, seconds: f64) -> Option<Event> {
        self.ended.as_ref().map(|end| Event::StepFinished {
            step: self.id.clone(),
            outcome: end.outcome,
            why: end.why.clone(),
            seconds,
            causes: end.causes.clone(),
            hint: end.hint.clone(),
        })
    }

    pub(super) fn report(&self, changes: Vec<ChangeReport>) -> StepReport {
        let end = self
            .ended
            .clone()
            .unwrap_or_else(|| End::bug("the step has no outcome"));
        StepReport {
            id: self.id.clone(),
            title: findings::title(&self.id).to_owned(),
            outcome: end.outcome,
            why: end.why,
            hint: end.hint,
            causes: end.causes,
            reason: end.reason,
            seconds: self.spent.as_secs_f64(),
            changes,
        }
    }
}

/// Whether a step finished without changes.
pub(super) const fn had_nothing_to_do(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Satisfied | Outcome::NotApplicable)
}
