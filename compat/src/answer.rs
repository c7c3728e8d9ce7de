//! The answer of the `compat` command, in the form of its JSON.

use serde::{Deserialize, Serialize};

use crate::identity::SupportedFlavours;
use crate::matrix::{BranchKind, Support};
use crate::version::{Branch, CudaVersion, DriverVersion};

/// The schema version of the answer.
pub const SCHEMA: u32 = 1;

/// The short form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compatibility {
    /// No rule refuses.
    Compatible,
    /// A rule refuses.
    Incompatible,
    /// It works with a `cuda-compat` package in the container.
    NeedsForwardCompat,
    /// A row is missing, or there is evidence against it.
    Unknown,
}

/// The answer, in the form of the command's JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The short form.
    pub verdict: Compatibility,
    /// Why: the values compared.
    pub why: Vec<String>,
    /// Which drivers serve what was asked.
    pub driver: DriverAnswer,
    /// `open`, `proprietary` or `either`; `null` where no GPU was asked about.
    pub module_flavour: Option<SupportedFlavours>,
    /// Where the rows that decided were read.
    #[serde(rename = "sources")]
    pub citations: Vec<String>,
    /// If the name of the GPU has several meanings with different answers: each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meanings: Vec<MeaningAnswer>,
    /// If nothing but the GPU was named: the branches that drive it, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<BranchAnswer>,
}

impl Answer {
    /// Whether the command exits with 0.
    pub fn is_compatible(&self) -> bool {
        self.verdict == Compatibility::Compatible
    }
}

/// The drivers that serve what was asked, apart from the driver that was asked about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DriverAnswer {
    /// The oldest driver; `null` where no row has it.
    pub min: Option<DriverVersion>,
    /// The last branch; `null` where no branch is the last one.
    pub max_branch: Option<Branch>,
    /// The one to install; `null` where none fits.
    pub recommended: Option<DriverVersion>,
}

/// A branch that drives the GPU, by its newest version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BranchAnswer {
    pub branch: Branch,
    /// Its support type, such as `ltsb`.
    pub kind: BranchKind,
    /// Its newest version that is known.
    pub newest: DriverVersion,
    /// Whether it gets fixes.
    pub support: Support,
    /// Until when, as precisely as is known.
    pub end_of_life: Option<String>,
    /// The first CUDA version with code for the GPU; `null` where none is known that the branch runs whole.
    pub cuda_min: Option<CudaVersion>,
    /// The newest CUDA version with code for the GPU of which the branch runs every feature.
    pub cuda_max: Option<CudaVersion>,
    /// The newest one that it runs by minor-version compatibility; `null` where that is none.
    pub cuda_limited_max: Option<CudaVersion>,
    /// `open`, `proprietary` or `either`.
    pub module_flavour: SupportedFlavours,
}

/// The answer for one or several of the GPUs that a name can mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MeaningAnswer {
    /// The GPUs or instance types that have this answer.
    pub gpus: Vec<String>,
    /// The short form.
    pub verdict: Compatibility,
    /// What is said about these and not about all.
    pub why: Vec<String>,
    /// Which drivers serve what was asked.
    pub driver: DriverAnswer,
    /// `open`, `proprietary` or `either`.
    pub module_flavour: Option<SupportedFlavours>,
}
