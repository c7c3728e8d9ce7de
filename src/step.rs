//! A step reads the machine and decides what to change. It never changes anything.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use crate::{
    change::{Change, Lock},
    compat::matrix::Matrix,
    config::desired::Desired,
    facts::Facts,
    host::{ExecError, FilesError, Reader},
    model::id::StepId,
    state::{State, StateError},
};

/// The inputs of a step.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// Data that cannot change during a run.
    pub facts: &'a Facts,
    /// Machine state, valid until the next change.
    pub state: &'a State,
    /// The desired state.
    pub desired: &'a Desired,
    /// The compatibility matrix, for decisions about drivers and kernels that depend on the machine state.
    pub matrix: Option<&'a Matrix>,
}

/// A part of the desired state with a public name.
#[derive(Clone)]
pub struct Step {
    /// The stable public name. Its title is in `model::findings`.
    pub id: StepId,
    /// Steps that must finish before this one is assessed.
    pub after: Vec<StepId>,
    /// Locks that are held while its changes are applied.
    pub locks: Vec<Lock>,
    /// Whether its changes take long, see [`Step::long`].
    pub is_long: bool,
    /// Whether its changes must be applied before the next boot, see [`Step::before_boot`].
    pub is_before_boot: bool,
    /// Whether a change of an earlier run is still configured, see [`Step::wants`].
    pub wants: Arc<Wants>,
    /// Reads the machine and decides. Returns an error if the machine cannot be read. A wrong state is not an error.
    pub assess: Arc<dyn for<'a> Fn(&'a Cx<'a>) -> Assessing<'a> + Send + Sync>,
}

/// Returns whether a change is still configured.
pub type Wants = dyn Fn(&Change, &Desired) -> bool + Send + Sync;

/// An assessment in progress.
pub type Assessing<'a> = BoxFuture<'a, Result<Assessment, StepError>>;

impl Step {
    /// Creates a step without upstreams and locks, whose changes are always configured.
    pub fn new(
        id: StepId,
        assess: impl for<'a> Fn(&'a Cx<'a>) -> Assessing<'a> + Send + Sync + 'static,
    ) -> Self {
        Self {
            id,
            after: Vec::new(),
            locks: Vec::new(),
            is_long: false,
            is_before_boot: false,
            wants: Arc::new(|_, _| true),
            assess: Arc::new(assess),
        }
    }

    /// Adds upstream steps.
    pub fn after(mut self, ids: impl IntoIterator<Item = StepId>) -> Self {
        self.after.extend(ids);
        self
    }

    /// Sets the locks.
    pub fn locks(mut self, locks: impl Into<Vec<Lock>>) -> Self {
        self.locks = locks.into();
        self
    }

    /// Its changes take long and need neither the package manager nor the driver. The packages of the steps that it depends on
    /// are therefore installed first, in a separate transaction, and the step runs in parallel with the next transaction.
    pub fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    /// The next boot uses its results, but this run does not. If the run stops for a reboot or after a failure, and this step has
    /// not finished, it is assessed and its changes are applied at the end.
    pub fn before_boot(mut self) -> Self {
        self.is_before_boot = true;
        self
    }

    /// Sets whether a change that this step made in an earlier run is still configured. If not, it is obsolete and `install`
    /// undoes it. Only the settings decide: missing hardware, such as a GPU that fell off the bus, is not a reason to undo
    /// anything.
    pub fn wants(
        mut self,
        wants: impl Fn(&Change, &Desired) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.wants = Arc::new(wants);
        self
    }
}

/// The result of an assessment, and how each command handles it:
///
/// | result | `check` | `plan` | `install` |
/// |---|---|---|---|
/// | `Satisfied` | pass | satisfied | satisfied |
/// | `Needs` | fail | would-change, with diffs | applied, then assessed again |
/// | `After` | unknown, because of the earlier step | would-change | assessed again after the earlier step |
/// | `NotApplicable` | skip | not-applicable | not-applicable |
/// | `Blocked` | fail | blocked, exit 5 | exit 5 before the first change |
/// | `BlockedNow` | fail | waits for an earlier pending step, otherwise blocked | the same; retried if transient |
/// | `BlockedByOldLists` | fail | blocked, exit 5 | assessed again with new lists, before the first change |
/// | `AwaitingBoot` | warn | awaiting-boot | awaiting-boot, and the resume unit stays |
/// | an error | unknown, exit 4 | failed, exit 6 | exit 6 before the first change |
///
/// For `Needs`, `check` reports `warn` if only a validation must be repeated after a boot, and
/// `unknown` if only new package lists are needed. If an error occurs because commands must not be
/// executed (`--root`), `check` reports `skip`. If an earlier step has pending changes, an error of
/// this step only counts after that step has finished.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum Assessment {
    /// The machine has the desired state.
    Satisfied {
        /// Contains the compared values.
        why: String,
    },
    /// These changes are needed, in this order.
    Needs {
        /// Contains the compared values.
        why: String,
        /// Never empty.
        changes: Vec<Change>,
    },
    /// The step is not relevant for this machine.
    NotApplicable { why: String },
    /// The step cannot succeed, and neither can any step that depends on it.
    Blocked {
        /// The reason, with the compared values.
        why: String,
        /// The remedy.
        hint: String,
    },
    /// The step cannot succeed in the current state. An earlier step may fix this, so it blocks
    /// only if no earlier step has pending changes.
    BlockedNow {
        /// The reason, with the compared values.
        why: String,
        /// The remedy.
        hint: String,
        /// The maximum duration of a transient block. `None` if waiting does not help.
        retryable: Option<Duration>,
    },
    /// The step cannot succeed according to package lists that may be outdated. `install` downloads
    /// new lists and assesses it again.
    BlockedByOldLists {
        /// The reason, with the compared values.
        why: String,
        /// The remedy.
        hint: String,
    },
    /// The step needs a live kernel or GPU, but this machine becomes an image.
    AwaitingBoot {
        /// The reason for waiting.
        why: String,
    },
    /// The required changes are known only after an earlier step is applied. `install` then
    /// assesses the step again, and the step must not return `After` a second time.
    After {
        /// The earlier step.
        upstream: StepId,
        /// The missing information.
        why: String,
        /// The expected changes, if known.
        expected: Vec<Change>,
    },
}

impl Assessment {
    pub fn satisfied(why: impl Into<String>) -> Self {
        Self::Satisfied { why: why.into() }
    }

    pub fn needs(why: impl Into<String>, changes: Vec<Change>) -> Self {
        let why = why.into();
        Self::Needs { why, changes }
    }

    pub fn not_applicable(why: impl Into<String>) -> Self {
        Self::NotApplicable { why: why.into() }
    }

    pub fn blocked(why: impl Into<String>, hint: impl Into<String>) -> Self {
        let (why, hint) = (why.into(), hint.into());
        Self::Blocked { why, hint }
    }

    pub fn awaits_boot(why: impl Into<String>) -> Self {
        Self::AwaitingBoot { why: why.into() }
    }
}

impl StepError {
    /// Returns the reason if the error is caused by a query that is not permitted. This is not a problem of the machine.
    pub fn not_queried(&self) -> Option<&str> {
        match self {
            Self::Exec(ExecError::NotQueried { why, .. }) => Some(why),
            Self::Files(error) => error.not_reported(),
            Self::State(error) => error.not_queried(),
            _ => None,
        }
    }
}

/// An error that prevents a step from reading the machine.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("read the machine's files")]
    Files(#[from] FilesError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("run the machine's tools")]
    Exec(#[from] ExecError),
    /// Unexpected content.
    #[error("read {what}: {why}")]
    Unexpected {
        /// The file or tool.
        what: String,
        /// The expected and the actual content.
        why: String,
    },
}
