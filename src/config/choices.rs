//! The words that settings choose between.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What it means that the condition of a node is true.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionMeaning {
    /// All is well, as with the kubelet's `Ready`.
    #[default]
    Ready,
    /// Something is wrong, as with `MemoryPressure` and the conditions of the node problem detector.
    Problem,
}

/// What becomes of a driver that somebody else has installed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Existing {
    /// The run is refused.
    #[default]
    Refuse,
    /// It stays, if it supports the GPUs.
    Keep,
    /// It is removed, and the wanted one is installed.
    Replace,
}

/// When a daemon may be restarted whose restart stops its containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// While no container runs.
    #[default]
    WhenIdle,
    /// At any time.
    Always,
}
