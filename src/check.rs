//! Checks find problems that no change of this program can repair. They only read.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    model::id::Id,
    step::{Cx, StepError},
};

/// The verdict of a finding.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No problem.
    Pass,
    /// A possible problem.
    Warn,
    /// A problem.
    Fail,
    /// Not relevant for this machine, or not possible with `--root`.
    Skip,
    /// Could not be determined; never counted as a pass.
    Unknown,
}

/// One line of `check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Links to documentation.
    pub links: Vec<String>,
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
    async fn examine(&self, cx: &Cx<'_>) -> Result<Vec<Finding>, StepError>;
}
