//! The result of the `compat` command, as serialized to JSON.

use serde::{Deserialize, Serialize};

use crate::identity::SupportedFlavors;
use crate::matrix::{BranchKind, Support};
use crate::version::{Branch, CudaVersion, DriverVersion};

/// The schema version of the result.
pub const SCHEMA: u32 = 1;

/// The verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compatibility {
    /// No rule rejects the combination, and there is no evidence against it.
    Compatible,
    /// A rule rejects the combination, or the CUDA version has no code for the GPU.
    Incompatible,
    /// Requires a `cuda-compat` package in the container.
    NeedsForwardCompat,
    /// No entry covers the combination, or there is inconclusive evidence against it.
    Unknown,
}

/// The result. Its serialized form is the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The verdict.
    pub verdict: Compatibility,
    /// The reasons with the compared values. The decisive one is first.
    pub why: Vec<String>,
    /// The supported drivers.
    pub driver: DriverAnswer,
    /// `open`, `proprietary` or `either`; `null` without a known GPU, or if the GPUs have no common result.
    pub module_flavor: Option<SupportedFlavors>,
    /// Sources of the entries that were used.
    #[serde(rename = "sources")]
    pub citations: Vec<String>,
    /// If the GPUs that the name matches have different results: each result with its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name_matches: Vec<NameMatchAnswer>,
    /// The branches that support the GPU, newest first, if the query contains only a GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<BranchAnswer>,
}

impl Answer {
    /// Returns `true` if the verdict is [`Compatibility::Compatible`].
    pub fn is_compatible(&self) -> bool {
        self.verdict == Compatibility::Compatible
    }
}

/// The supported drivers, regardless of the driver in the query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DriverAnswer {
    /// The oldest driver; `null` if unknown.
    pub min: Option<DriverVersion>,
    /// The last branch; `null` if the current branches still support the GPU.
    pub max_branch: Option<Branch>,
    /// The recommended driver; `null` if no driver fits.
    pub recommended: Option<DriverVersion>,
}

/// A branch that supports the GPU, evaluated for its newest version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BranchAnswer {
    pub branch: Branch,
    /// Its support type, such as `ltsb`.
    pub kind: BranchKind,
    /// Its newest known version.
    pub newest: DriverVersion,
    /// Its support status.
    pub support: Support,
    /// The end-of-life date, as precise as its source.
    pub end_of_life: Option<String>,
    /// The oldest CUDA version that has code for the GPU and is fully supported by the branch; `null` if there is none.
    pub cuda_min: Option<CudaVersion>,
    /// The newest CUDA version that has code for the GPU and is fully supported by the branch; `null` if there is none.
    pub cuda_max: Option<CudaVersion>,
    /// The newest CUDA version that has code for the GPU and that the branch supports by minor-version compatibility; `null` if
    /// there is none.
    pub cuda_limited_max: Option<CudaVersion>,
    /// `open`, `proprietary` or `either`.
    pub module_flavor: SupportedFlavors,
}

/// The result for some of the GPUs that a name matches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NameMatchAnswer {
    /// The GPUs or instance types with this result.
    pub gpus: Vec<String>,
    /// The verdict.
    pub verdict: Compatibility,
    /// The reasons that do not apply to all matching GPUs.
    pub why: Vec<String>,
    /// The supported drivers.
    pub driver: DriverAnswer,
    /// `open`, `proprietary` or `either`.
    pub module_flavor: Option<SupportedFlavors>,
}
