//! What a run says while it goes on: one ordered stream, for eyes and machines. Events are not
//! needed for recovery (that is the journal's work).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::id::StepId;

/// The schema version of [`Envelope`].
pub const SCHEMA: u32 = 1;

/// An event with its place in the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Counts from 0 without gaps, except where `progress` and `output` were coalesced.
    pub seq: u64,
    /// Wall-clock time.
    pub at: jiff::Timestamp,
    /// Milliseconds since the run began, by a clock that never goes back.
    pub elapsed_ms: u64,
    /// The run's id.
    pub run: String,
    /// What happened.
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
    /// First; lists all steps so that a view can draw its frame.
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
        /// Which.
        step: StepId,
    },
    /// A step has decided.
    StepAssessed {
        /// Which.
        step: StepId,
        /// Its words.
        why: String,
        /// How many changes it needs.
        changes: usize,
    },
    /// A change is being applied.
    ChangeStarted {
        /// For which steps (a merged transaction serves several).
        steps: Vec<StepId>,
        /// In words.
        summary: String,
    },
    /// How far a change is. May be coalesced.
    Progress {
        /// For which steps.
        steps: Vec<StepId>,
        /// Done.
        current: u64,
        /// Of.
        total: Option<u64>,
        /// `bytes`, `packages`, ….
        unit: String,
    },
    /// A line that a tool printed. May be coalesced.
    Output {
        /// For which steps.
        steps: Vec<StepId>,
        /// The line.
        line: String,
    },
    /// An attempt failed and will be repeated.
    AttemptFailed {
        /// For which steps.
        steps: Vec<StepId>,
        /// What failed.
        message: String,
        /// Seconds until the next attempt.
        retry_in_seconds: f64,
    },
    /// A change is done.
    ChangeApplied {
        /// For which steps.
        steps: Vec<StepId>,
        /// In words.
        summary: String,
        /// How long it took.
        seconds: f64,
    },
    /// A step has ended.
    StepFinished {
        /// Which.
        step: StepId,
        /// How.
        outcome: Outcome,
        /// Why.
        why: String,
        /// How long it took, waiting for locks included.
        seconds: f64,
        /// The chain of causes of a failure, outermost first.
        causes: Vec<String>,
        /// What would help, if something stands in the way.
        hint: Option<String>,
    },
    /// Something worth knowing that belongs to no step.
    Note {
        /// In words.
        message: String,
    },
    /// The machine must be rebooted.
    RebootRequired {
        /// Why.
        why: String,
        /// Whether this program reboots it.
        automatic: bool,
    },
    /// Last.
    RunFinished {
        /// Outcomes, counted.
        summary: Summary,
        /// The exit status that the process will have.
        exit: u8,
        /// How long it took.
        seconds: f64,
    },
}

/// A step's name and title.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepTitle {
    /// Stable name.
    pub id: StepId,
    /// For people.
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
    /// Does not concern this machine.
    NotApplicable,
    /// Cannot be reached.
    Blocked,
    /// A change or its verification failed.
    Failed,
    /// Not started, because something before it failed or a reboot is due.
    NotRun,
    /// Left for the first boot of the image.
    AwaitingBoot,
}

impl Outcome {
    /// The word for it, the same for people, events and documents.
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

    /// Whether what depends on the step may go on.
    #[must_use]
    pub const fn lets_go_on(self) -> bool {
        matches!(
            self,
            Self::Satisfied | Self::Changed | Self::NotApplicable | Self::AwaitingBoot
        )
    }
}

/// Outcomes, counted.
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

/// Sees every event in order. It may be slow or break: the run goes on without it.
pub trait Subscriber: Send {
    /// Its name, for the note that tells when it was dropped.
    fn name(&self) -> &'static str;

    /// Takes an event.
    ///
    /// # Errors
    /// When it can take no more; it is dropped then.
    fn event(&mut self, envelope: &Envelope) -> std::io::Result<()>;
}
