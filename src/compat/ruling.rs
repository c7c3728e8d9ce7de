//! What a rule of the matrix says about a driver.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::gpu::Flavour;
use crate::model::version::DriverVersion;

/// The stable name of a rule.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A vGPU guest needs the GRID driver.
    Vgpu,
    /// The GPU is not known.
    UnknownGpu,
    /// The branch is not known.
    UnknownBranch,
    /// The first driver that drives a board.
    MinDriver,
    /// Whether a branch lists a board.
    Listed,
    /// Older versions drive a board with known problems.
    AdvisedDriver,
    /// The last branch of an architecture.
    LastBranch,
    /// The newest architecture of a branch.
    NewestArchitecture,
    /// Which kernel modules a board runs with.
    BoardFlavour,
    /// Which kernel modules a branch has.
    BranchFlavour,
    /// Two GPUs that no branch and flavour serves together.
    Pair,
    /// The driver that a CUDA version needs.
    CudaDriver,
    /// The driver that a CUDA version needs, where a `cuda-compat` package would replace it.
    ForwardCompat,
    /// The architectures that a CUDA version has code for.
    CudaArchitecture,
    /// The kernel that the modules are built for.
    Kernel,
    /// Whether a branch still gets fixes.
    Support,
    /// Security fixes that a version lacks.
    Security,
    /// A wish that contradicts itself.
    Wish,
    /// The versions that the repository has.
    Offered,
}

impl fmt::Display for Rule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Vgpu => "vgpu",
            Self::UnknownGpu => "unknown-gpu",
            Self::UnknownBranch => "unknown-branch",
            Self::MinDriver => "min-driver",
            Self::Listed => "listed",
            Self::AdvisedDriver => "advised-driver",
            Self::LastBranch => "last-branch",
            Self::NewestArchitecture => "newest-architecture",
            Self::BoardFlavour => "board-flavour",
            Self::BranchFlavour => "branch-flavour",
            Self::Pair => "pair",
            Self::CudaDriver => "cuda-driver",
            Self::ForwardCompat => "forward-compat",
            Self::CudaArchitecture => "cuda-architecture",
            Self::Kernel => "kernel",
            Self::Support => "support",
            Self::Security => "security",
            Self::Wish => "wish",
            Self::Offered => "offered",
        })
    }
}

/// How a rule judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judgement {
    /// For information.
    Note,
    /// It works, with a known drawback.
    Caution,
    /// No row answers.
    Unknown,
    /// There is evidence against it, but not enough to refuse.
    Against,
    /// A row rules it out.
    Refuse,
}

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The rule.
    pub rule: Rule,
    /// How it judges.
    pub judgement: Judgement,
    /// The values compared, in words.
    pub text: String,
    /// Where the rows were read: keys of the matrix's citations.
    pub citations: Vec<String>,
}

/// A driver that might be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its version.
    pub version: DriverVersion,
    /// Its kernel modules.
    pub flavour: Flavour,
}

pub(super) fn say(
    rule: Rule,
    judgement: Judgement,
    text: String,
    citations: &[impl AsRef<str>],
) -> Ruling {
    let citations = citations
        .iter()
        .map(|key| key.as_ref().to_owned())
        .collect();
    Ruling {
        rule,
        judgement,
        text,
        citations,
    }
}
