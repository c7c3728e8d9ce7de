//! Checks find problems that no change of this program can repair. They only read.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    compat::matrix::Matrix,
    config::desired::Desired,
    facts::Facts,
    host::Reader,
    model::{
        findings::{self, Remedy},
        id::Id,
    },
    state::State,
    step::StepError,
};

/// What a check examines. A machine can be examined without anything being wanted there.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// What cannot change.
    pub facts: &'a Facts,
    /// What can, as of this epoch.
    pub state: &'a State,
    /// The compatibility matrix.
    pub matrix: &'a Matrix,
    /// What is wanted; `None` if nothing can be wanted on this machine.
    pub desired: Option<&'a Desired>,
    /// This program has prepared the machine before, so it must have GPUs.
    pub prepared: bool,
}

/// The verdict of a finding. A check that could not look returns an error, which never becomes
/// `Skip`, and `Unknown` never becomes `Pass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No problem.
    Pass,
    /// A possible problem.
    Warn,
    /// A problem.
    Fail,
    /// It does not concern this machine (no GPU, no driver loaded, a feature that is not configured, an
    /// image without a running kernel), or nobody may be asked, as with `--root`.
    Skip,
    /// It was looked at, and the machine does not tell: NVML of this driver has no such value, a running
    /// kernel lacks the file. Alone it does not fail `check`. Never counted as a pass.
    Unknown,
}

/// One line of `check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable name.
    pub id: Id,
    /// Title for people.
    pub title: String,
    /// The verdict.
    pub status: Verdict,
    /// The reason, with the compared values.
    pub why: String,
    /// The observed value.
    pub observed: Option<String>,
    /// The expected value.
    pub expected: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
    /// What kind of act the remedy is, where it is not that of the registry.
    #[serde(skip)]
    pub remedy_class: Option<Remedy>,
    /// Links to documentation.
    pub links: Vec<String>,
    /// The finding that is the root cause of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Id>,
    /// Whether `install` would change it: the machine may work without.
    #[serde(skip)]
    pub would_change: bool,
}

impl Finding {
    /// A finding without values; who makes it sets those that it has. The registry has its title.
    #[must_use]
    pub fn new(id: Id, status: Verdict, why: impl Into<String>) -> Self {
        Self {
            title: findings::title(&id).to_owned(),
            id,
            status,
            why: why.into(),
            observed: None,
            expected: None,
            remedy: None,
            remedy_class: None,
            links: Vec::new(),
            because: None,
            would_change: false,
        }
    }

    /// What kind of act mends it: its own, else that of the registry.
    #[must_use]
    pub fn class(&self) -> Option<Remedy> {
        (self.remedy_class).or_else(|| findings::row(&self.id).map(|row| row.remedy))
    }
}

/// A family of health checks.
#[async_trait]
pub trait Check: Send + Sync {
    /// Stable names of its findings.
    fn ids(&self) -> &[Id];
    /// Examines the machine.
    ///
    /// # Errors
    /// If it could not examine the machine; this becomes an `unknown` finding.
    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError>;
}
