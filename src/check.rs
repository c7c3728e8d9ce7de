//! Checks examine what no change of ours can mend. They are the read-only siblings of steps.

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
    /// As it should be.
    Pass,
    /// Worth a look.
    Warn,
    /// Wrong.
    Fail,
    /// Does not concern this machine, or is nothing that may be asked below `--root`.
    Skip,
    /// Could not be determined; never counted as a pass.
    Unknown,
}

/// One line of `check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable name.
    pub id: Id,
    /// For people.
    pub title: String,
    /// The verdict.
    pub status: Verdict,
    /// With the values compared.
    pub why: String,
    /// What was seen.
    pub observed: Option<String>,
    /// What should be.
    pub expected: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
    /// Where to read on.
    pub links: Vec<String>,
}

/// A family of health checks.
#[async_trait]
pub trait Check: Send + Sync {
    /// Stable names of the findings it makes.
    fn ids(&self) -> &[Id];
    /// Looks.
    ///
    /// # Errors
    /// When it could not look; that becomes an `unknown` finding.
    async fn examine(&self, cx: &Cx<'_>) -> Result<Vec<Finding>, StepError>;
}
