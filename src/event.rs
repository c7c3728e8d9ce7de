//! Events of a run: one ordered stream, for people and programs. Recovery does not need them; it
//! uses the journal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::id::StepId;

/// The schema version of [`Envelope`].
pub const SCHEMA: u32 = 1;

/// An event with its position in the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Counts from 0 without gaps, except for merged `progress` and `output` events.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// Milliseconds since the run started, measured with a monotonic clock.
    pub elapsed_ms: u64,
    /// The run's id.
    pub run: String,
    /// The event itself.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Event {
    /// The first event; it lists all steps, so that a view can draw them.
    RunStarted {
        /// Version of this program.
        version: String,
        /// `check`, `plan`, `install`, `uninstall`.
        mode: String,
        /// The steps in order.
        steps: Vec<StepTitle>,
    },
    /// A step is being assessed.
    StepStarted {
        /// The step.
        step: StepId,
    },
    /// A step has been assessed.
    StepAssessed {
        /// The step.
        step: StepId,
        /// The reason.
        why: String,
        /// The number of changes that it needs.
        changes: usize,
    },
    /// A change is being applied.
    ChangeStarted {
        /// The steps that need it (a merged transaction serves several).
        steps: Vec<StepId>,
        /// A description.
        summary: String,
    },
    /// The progress of a change. May be merged.
    Progress {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// The amount that is done.
        current: u64,
        /// The whole amount.
        total: Option<u64>,
        /// `bytes`, `packages`, ….
        unit: String,
    },
    /// An output line of a tool. May be merged with others.
    Output {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// The line.
        line: String,
    },
    /// An attempt failed and will be repeated.
    AttemptFailed {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// What failed.
        message: String,
        /// Seconds until the next attempt.
        retry_in_seconds: f64,
    },
    /// A change has been applied.
    ChangeApplied {
        /// The steps that need it.
        steps: Vec<StepId>,
        /// A description.
        summary: String,
        /// How long it took.
        seconds: f64,
    },
    /// A step has ended.
    StepFinished {
        /// The step.
        step: StepId,
        /// Its outcome.
        outcome: Outcome,
        /// The reason.
        why: String,
        /// Its duration, including waits for locks.
        seconds: f64,
        /// The chain of causes of a failure, outermost first.
        causes: Vec<String>,
        /// A hint for the user, if the step is blocked or has failed.
        hint: Option<String>,
    },
    /// Information that belongs to no step.
    Note {
        /// The text.
        message: String,
    },
    /// The machine must be rebooted.
    RebootRequired {
        /// The reason.
        why: String,
        /// Whether this program reboots it.
        automatic: bool,
    },
    /// The last event.
    RunFinished {
        /// The outcomes, counted.
        summary: Summary,
        /// The exit status of the process.
        exit: u8,
        /// Its duration.
        seconds: f64,
        /// The seconds since the installation began, with the runs before it and the reboots, if it is ready now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_ready: Option<f64>,
    },
}

impl Event {
    /// Its texts: what people and tools have said. Names of steps and modes are not among them.
    pub fn texts_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::RunStarted { .. } | Self::StepStarted { .. } | Self::RunFinished { .. } => {
                Vec::new()
            }
            Self::StepAssessed { why: text, .. }
            | Self::ChangeStarted { summary: text, .. }
            | Self::Progress { unit: text, .. }
            | Self::Output { line: text, .. }
            | Self::AttemptFailed { message: text, .. }
            | Self::ChangeApplied { summary: text, .. }
            | Self::Note { message: text }
            | Self::RebootRequired { why: text, .. } => vec![text],
            Self::StepFinished {
                why, causes, hint, ..
            } => std::iter::once(why).chain(causes).chain(hint).collect(),
        }
    }
}

/// A step's name and title.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepTitle {
    /// Stable name.
    pub id: StepId,
    /// The title for people.
    pub title: String,
}

/// How a step ended.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing to do.
    Satisfied,
    /// Changed, and verified.
    Changed,
    /// `plan` and `check`: changes are pending.
    WouldChange,
    /// Is not relevant for this machine.
    NotApplicable,
    /// Cannot be made: a condition is not met.
    Blocked,
    /// A change or its verification failed.
    Failed,
    /// Not started, because something before it failed or a reboot is due.
    NotRun,
    /// Left for the first boot of the image.
    AwaitingBoot,
}

impl Outcome {
    /// Its name, the same for people, events and documents.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Satisfied => "satisfied",
            Self::Changed => "changed",
            Self::WouldChange => "would-change",
            Self::NotApplicable => "not-applicable",
            Self::Blocked => "blocked",
            Self::Failed => "failed",
            Self::NotRun => "not-run",
            Self::AwaitingBoot => "awaiting-boot",
        }
    }

    /// Whether steps that depend on it may run.
    #[must_use]
    pub const fn lets_go_on(self) -> bool {
        matches!(
            self,
            Self::Satisfied | Self::Changed | Self::NotApplicable | Self::AwaitingBoot
        )
    }
}

/// The outcomes of a run, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// See [`Outcome::Satisfied`].
    pub satisfied: usize,
    /// See [`Outcome::Changed`].
    pub changed: usize,
    /// See [`Outcome::WouldChange`].
    pub would_change: usize,
    /// See [`Outcome::NotApplicable`].
    pub not_applicable: usize,
    /// See [`Outcome::Blocked`].
    pub blocked: usize,
    /// See [`Outcome::Failed`].
    pub failed: usize,
    /// See [`Outcome::NotRun`].
    pub not_run: usize,
    /// See [`Outcome::AwaitingBoot`].
    pub awaiting_boot: usize,
}

impl Summary {
    /// Counts outcomes.
    #[must_use]
    pub fn of(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        let mut summary = Self::default();
        for outcome in outcomes {
            *match outcome {
                Outcome::Satisfied => &mut summary.satisfied,
                Outcome::Changed => &mut summary.changed,
                Outcome::WouldChange => &mut summary.would_change,
                Outcome::NotApplicable => &mut summary.not_applicable,
                Outcome::Blocked => &mut summary.blocked,
                Outcome::Failed => &mut summary.failed,
                Outcome::NotRun => &mut summary.not_run,
                Outcome::AwaitingBoot => &mut summary.awaiting_boot,
            } += 1;
        }
        summary
    }
}

/// Receives every event in order. It may be slow or fail: the run continues without it.
pub trait Subscriber: Send {
    /// Its name, for the note that it was removed.
    fn name(&self) -> &'static str;

    /// Receives an event.
    ///
    /// # Errors
    /// If it cannot receive any more events; it is then removed.
    fn event(&mut self, envelope: &Envelope) -> std::io::Result<()>;
}
