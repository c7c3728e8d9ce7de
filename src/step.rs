//! A step looks at the machine and decides; it never changes it.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    change::{Change, Lock},
    compat::matrix::Matrix,
    config::desired::Desired,
    facts::Facts,
    host::{ExecError, FilesError, Reader},
    model::id::StepId,
    state::{State, StateError},
};

/// What a step decides from.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// What cannot change.
    pub facts: &'a Facts,
    /// What can, as of this epoch.
    pub state: &'a State,
    /// What is wanted.
    pub desired: &'a Desired,
    /// What is known about drivers and kernels, for what can be judged only now.
    pub matrix: Option<&'a Matrix>,
}

/// A step: a piece of the desired state with a public name.
#[async_trait]
pub trait Step: Send + Sync {
    /// Its stable public name. The registry of findings (`model::findings`) has its title.
    fn id(&self) -> StepId;
    /// Steps that must have ended before this one is assessed.
    fn after(&self) -> &[StepId] {
        &[]
    }
    /// What is held while its changes are applied.
    fn locks(&self) -> &[Lock] {
        &[]
    }
    /// Whether its changes take long and need neither the package manager nor the driver: what it needs is
    /// installed first, in a transaction of its own, and it goes on beside the next one.
    fn is_long(&self) -> bool {
        false
    }
    /// Whether the settings still want a change that this step made in an earlier run. If not, it is
    /// left over, and `install` undoes it. Settings alone decide: hardware that is missing now, as a
    /// GPU that has fallen off the bus, is no reason to undo anything.
    fn wants(&self, _change: &Change, _desired: &Desired) -> bool {
        true
    }
    /// Looks and decides.
    ///
    /// # Errors
    /// When the machine could not be looked at; that it is wrong is no error.
    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError>;
}

/// What a step found, and what each command makes of it:
///
/// | answer | `check` | `plan` | `install` |
/// |---|---|---|---|
/// | `Satisfied` | pass | satisfied | satisfied |
/// | `Needs` | fail | would-change, with diffs | applied, then assessed again |
/// | `After` | unknown, because of that step | would-change | assessed again after that step |
/// | `NotApplicable` | skip | not-applicable | not-applicable |
/// | `Blocked` | fail | blocked, exit 5 | exit 5 before the first change |
/// | `BlockedNow` | fail | waits for a pending step before it, else blocked | the same; tried again if it passes |
/// | `BlockedByOldLists` | fail | blocked, exit 5 | asked again with new lists, before the first change |
/// | `AwaitingBoot` | warn | awaiting-boot | awaiting-boot, and the resume unit stays |
/// | an error | unknown, exit 4 | failed, exit 6 | exit 6 before the first change |
///
/// `check` says `warn` where only a proof is repeated after a boot, and `unknown` where only new
/// package lists are needed. An error because nothing may be executed (`--root`) is `skip` there.
/// An error of a step behind one that has something to do counts only when that one has ended.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum Assessment {
    /// The machine is as wanted.
    Satisfied {
        /// With the values compared.
        why: String,
    },
    /// It needs these changes, in this order.
    Needs {
        /// With the values compared.
        why: String,
        /// Never empty.
        changes: Vec<Change>,
    },
    /// It does not concern this machine.
    NotApplicable {
        /// Why not.
        why: String,
    },
    /// It cannot be reached; nothing that depends on it can.
    Blocked {
        /// What stands in the way, with the values compared.
        why: String,
        /// What would help.
        hint: String,
    },
    /// It cannot be reached as the machine is now. A step that it comes after may heal this, so it
    /// blocks only if none of these has anything to do.
    BlockedNow {
        /// What stands in the way, with the values compared.
        why: String,
        /// What would help.
        hint: String,
        /// How long this lasts at most if it passes by itself. `None`: waiting does not help.
        passes: Option<Duration>,
    },
    /// By package lists that may be old it cannot be reached. `install` downloads new ones before it says
    /// so; with these the step answers something else.
    BlockedByOldLists {
        /// What stands in the way, with the values compared.
        why: String,
        /// What would help.
        hint: String,
    },
    /// It needs a live kernel or GPU, and this machine becomes an image.
    AwaitingBoot {
        /// What is awaited.
        why: String,
    },
    /// What it needs is known only when an earlier step has been applied. In `install` it is
    /// assessed again then, and must not answer this twice.
    After {
        /// That step.
        upstream: StepId,
        /// What is not known yet.
        why: String,
        /// What it will do then, as far as can be said.
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
    /// Why nobody may ask, where that is so: it is no fault of the machine.
    #[must_use]
    pub fn not_asked(&self) -> Option<&str> {
        match self {
            Self::Exec(ExecError::NotAsked { why, .. }) => Some(why),
            Self::Files(error) => error.not_told(),
            Self::State(error) => error.not_asked(),
            _ => None,
        }
    }
}

/// Why a step could not look.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("read the machine's files")]
    Files(#[from] FilesError),
    /// A part of the state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A command.
    #[error("run the machine's tools")]
    Exec(#[from] ExecError),
    /// Something that was read makes no sense.
    #[error("understand {what}: {why}")]
    Unexpected {
        /// The file or tool.
        what: String,
        /// What was expected and what was there.
        why: String,
    },
}
