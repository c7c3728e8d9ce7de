//! The state of one step during a run.

use std::time::Duration;

use super::{
    result::{ChangeReport, StepReport},
    retry::Retries,
};
use crate::{
    change::{Change, Lock, Problem},
    error::causes,
    event::{Event, Outcome},
    exit::Exit,
    journal::Standing,
    model::{findings, id::StepId},
    step::{Assessment, Step, StepError},
};

/// A step's answer.
pub(super) type Assessed = Result<Assessment, StepError>;

/// The state of one step during a run.
pub(super) struct Job {
    pub(super) id: StepId,
    pub(super) locks: Vec<Lock>,
    /// What it needs is installed before other packages.
    pub(super) long: bool,
    /// The last assessment.
    pub(super) answer: Option<Assessed>,
    /// The number of changes started or ended when that assessment was made.
    pub(super) answered_at: u64,
    /// The changes to apply, in order.
    pub(super) changes: Vec<Change>,
    /// How many of them are applied.
    pub(super) applied: usize,
    /// What was applied before it was tried again.
    pub(super) earlier: Vec<Change>,
    /// Its attempts that ended with something that passes.
    pub(super) retries: Retries,
    /// A task works for it now.
    pub(super) busy: bool,
    /// Its changes are decided.
    pub(super) decided: bool,
    /// When the current phase of applying began.
    pub(super) since: Option<Duration>,
    /// Time spent in earlier phases.
    pub(super) spent: Duration,
    pub(super) ended: Option<End>,
    /// A file that its changes rewrite was changed after it was read. It is assessed again once.
    pub(super) is_outdated: bool,
    /// Its changes that stand although the step is no longer wanted.
    pub(super) left_over: Vec<Standing>,
    /// Those of them that were undone in this run.
    pub(super) undone: Vec<ChangeReport>,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) why: String,
    pub(super) causes: Vec<String>,
    pub(super) hint: Option<String>,
    pub(super) reason: Option<&'static str>,
    /// The exit status that a failure means.
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

    pub(super) fn failed(what: &str, failure: &Problem) -> Self {
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
            hint: Some("this is a bug; please report it with the events of the run".to_owned()),
            reason: Some("bug"),
            exit: Some(Exit::Internal),
        }
    }
}

impl Job {
    pub(super) fn new(step: &dyn Step) -> Self {
        Self {
            id: step.id(),
            locks: step.locks().to_vec(),
            long: step.is_long(),
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
            left_over: Vec::new(),
            undone: Vec::new(),
        }
    }

    /// Whether it has not ended, and will change something as far as is known.
    pub(super) fn will_change(&self) -> bool {
        let expects = match &self.answer {
            Some(Ok(Assessment::Needs { changes, .. })) => !changes.is_empty(),
            Some(Ok(Assessment::After { expected, .. })) => !expected.is_empty(),
            _ => false,
        };
        self.ended.is_none() && expects
    }

    /// The changes that are still to be applied.
    pub(super) fn pending(&self) -> &[Change] {
        &self.changes[self.applied.min(self.changes.len())..]
    }

    /// What was applied for it.
    pub(super) fn done(&self) -> impl Iterator<Item = &Change> {
        let now = &self.changes[..self.applied.min(self.changes.len())];
        self.earlier.iter().chain(now)
    }

    /// How it ends if the machine is as wanted.
    pub(super) fn as_wanted(&self) -> Outcome {
        // New lists alone leave the machine as it was.
        if self
            .done()
            .any(|change| *change != Change::RefreshRepositories)
        {
            Outcome::Changed
        } else {
            Outcome::Satisfied
        }
    }

    /// Takes back what was decided, to assess it anew.
    pub(super) fn begin_again(&mut self) {
        self.earlier = self.done().cloned().collect();
        self.changes = Vec::new();
        self.applied = 0;
        self.decided = false;
        self.answer = None;
    }

    /// Whether the node was admitted before, and only its admission is missing now. That is no failure: an API
    /// server or a kubelet may be away for a moment, and the admission waits for both.
    pub(super) fn lacks_admission_alone(&self, missing: &[Change]) -> bool {
        let is_admission = |change: &Change| matches!(change, Change::AdmitNode { .. });
        matches!(missing, [change] if is_admission(change))
            && self.done().filter(|change| is_admission(change)).count() == 1
    }

    /// The event for its answer.
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

    /// The reason why steps that depend on it are not run.
    pub(super) fn not_because_of(&self) -> String {
        match self.ended.as_ref().map(|end| (end.outcome, &end.why)) {
            Some((Outcome::Blocked, _)) => format!("`{}` is blocked", self.id),
            Some((Outcome::Failed, _)) => format!("`{}` failed", self.id),
            // The root cause is passed on, because it is what the reader needs.
            Some((Outcome::NotRun, why)) => why.clone(),
            _ => format!("`{}` has not ended", self.id),
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
            .unwrap_or_else(|| End::bug("the step has no end"));
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

/// Whether a step ended without anything to do.
pub(super) const fn had_nothing_to_do(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Satisfied | Outcome::NotApplicable)
}
