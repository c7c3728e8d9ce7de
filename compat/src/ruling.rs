//! What a rule of the matrix says about a driver.

use crate::identity::Flavour;
use crate::version::DriverVersion;

/// Which rule it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The driver, CUDA version and GPUs that a cuDNN needs.
    Cudnn,
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
