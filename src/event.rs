//! Events of a run: one ordered stream for users and programs. Recovery uses the journal, not the
//! events.

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
    /// Counts from 0 without gaps, except for `progress` and `output` events that a slow reader misses.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// Milliseconds since the run started, measured with a monotonic clock.
    pub elapsed_ms: u64,
    /// The run's id.
    pub run: String,
    pub event: Event,
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Event {
    /// The first event. Lists all steps, so that a view can show them from the start.
    RunStarted {
        /// The gpu-bootstrap version.
        version: String,
        /// `check`, `plan`, `install`, `upgrade`, `uninstall`.
        mode: String,
        /// The steps in order.
        steps: Vec<StepTitle>,
    },
    /// A step is being assessed.
    StepStarted {
        /// The step.
        step: StepId,
    },
    /// A step was assessed.
    StepAssessed {
        /// The step.
        step: StepId,
        /// The reason.
        why: String,
        /// The number of required changes.
        changes: usize,
    },
    /// A change is being applied.
    ChangeStarted {
        /// The steps that need it. A merged transaction has several.
        steps: Vec<StepId>,
        /// A description.
        summary: String,
    },
    /// The progress of a change. A slow reader gets only the newest one.
    Progress {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// The finished amount.
        current: u64,
        /// The total amount.
        total: Option<u64>,
        /// The unit: `bytes`, `packages`, ….
        unit: String,
    },
    /// An output line of a tool. A slow reader misses the oldest ones.
    Output {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// The line.
        line: String,
    },
    /// An attempt failed and will be retried.
    AttemptFailed {
        /// The steps that need the change.
        steps: Vec<StepId>,
        /// The error.
        message: String,
        /// Seconds until the next attempt.
        retry_in_seconds: f64,
    },
    /// A change was applied.
    ChangeApplied {
        /// The steps that need it.
        steps: Vec<StepId>,
        /// A description.
        summary: String,
        /// The duration.
        seconds: f64,
    },
    /// A step has finished.
    StepFinished {
        /// The step.
        step: StepId,
        /// Its outcome.
        outcome: Outcome,
        /// The reason.
        why: String,
        /// The duration, including waits for locks.
        seconds: f64,
        /// The chain of causes of a failure, outermost first.
        causes: Vec<String>,
        /// A hint for the user, if the step is blocked or has failed.
        hint: Option<String>,
    },
    /// Information that does not belong to a step.
    Note {
        /// The text.
        message: String,
    },
    /// The machine must be rebooted.
    RebootRequired {
        /// The reason.
        why: String,
        /// Whether gpu-bootstrap reboots the machine.
        automatic: bool,
    },
    /// The last event.
    RunFinished {
        /// The number of steps with each outcome.
        summary: Summary,
        /// The exit status of the process.
        exit: u8,
        /// The duration.
        seconds: f64,
        /// If the node is now ready: the seconds since the installation began, including earlier
        /// runs and reboots.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_ready: Option<f64>,
    },
}

impl Event {
    /// Returns the free-text fields, which may contain user input or tool output. IDs, titles and modes
    /// are not included.
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
    /// The stable name.
    pub id: StepId,
    /// The human-readable title.
    pub title: String,
}

/// The outcome of a step.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// No change needed.
    Satisfied,
    /// Changed and verified.
    Changed,
    /// `plan` and `check`: changes are pending.
    WouldChange,
    /// Not relevant for this machine.
    NotApplicable,
    /// Not possible, because a condition is not met.
    Blocked,
    /// A change or its verification failed.
    Failed,
    /// Not started, because an earlier step is blocked or failed, a reboot is due, or the run was stopped.
    NotRun,
    /// Postponed until the next boot, because a reboot is required or an image is being built.
    AwaitingBoot,
}

impl Outcome {
    /// The name used in output, events and documents.
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

    /// Whether steps that depend on a step with this outcome may run.
    pub const fn lets_go_on(self) -> bool {
        matches!(
            self,
            Self::Satisfied | Self::Changed | Self::NotApplicable | Self::AwaitingBoot
        )
    }
}

/// The number of steps with each outcome.
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

/// Receives the events in order. A slow subscriber misses some `progress` and `output` events, and a
/// failed subscriber is removed. Neither stops the run.
pub trait Subscriber: Send {
    /// The name, for the note that the subscriber was removed.
    fn name(&self) -> &'static str;

    /// Receives an event.
    ///
    /// # Errors
    /// If the subscriber can no longer receive events. It is then removed.
    fn event(&mut self, envelope: &Envelope) -> std::io::Result<()>;
}
