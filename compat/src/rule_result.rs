//! Rule results for a driver.

use crate::identity::Flavor;
use crate::version::DriverVersion;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A vGPU guest requires the GRID driver.
    Vgpu,
    /// The GPU is unknown.
    UnknownGpu,
    /// The branch is unknown or does not exist.
    UnknownBranch,
    /// The first driver that supports a board.
    MinDriver,
    /// Whether a branch lists a board.
    Listed,
    /// Older versions have known problems with a board.
    AdvisedDriver,
    /// The last branch of an architecture.
    LastBranch,
    /// The newest architecture of a branch.
    NewestArchitecture,
    /// The module flavors of a board.
    BoardFlavor,
    /// The module flavors of a branch.
    BranchFlavor,
    /// Two GPUs that no branch and flavor supports together.
    Pair,
    /// The driver that a CUDA version requires, and whether the version exists.
    CudaDriver,
    /// The driver that a CUDA version requires if a `cuda-compat` package can replace it.
    ForwardCompat,
    /// The architectures of a CUDA version.
    CudaArchitecture,
    /// The requirements of a cuDNN version.
    Cudnn,
    /// The kernel that the modules are built for.
    Kernel,
    /// The support status of a branch.
    Support,
    /// Missing security fixes.
    Security,
    /// Contradictory constraints.
    Constraints,
    /// The versions in the repository.
    Offered,
}

/// The severity of a rule result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evaluation {
    /// For information.
    Note,
    /// It works, with a known drawback.
    Caution,
    /// No entry covers it.
    Unknown,
    /// There is evidence against it, but not enough to reject it.
    Against,
    /// An entry rejects it.
    Refuse,
}

/// The result of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleResult {
    pub rule: Rule,
    /// The severity.
    pub evaluation: Evaluation,
    /// A message with the compared values.
    pub text: String,
    /// Keys of the sources.
    pub citations: Vec<String>,
}

/// A driver candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub version: DriverVersion,
    /// Its kernel modules.
    pub flavor: Flavor,
}

pub(super) fn say(
    rule: Rule,
    evaluation: Evaluation,
    text: String,
    citations: &[impl AsRef<str>],
) -> RuleResult {
    let citations = citations
        .iter()
        .map(|key| key.as_ref().to_owned())
        .collect();
    RuleResult {
        rule,
        evaluation,
        text,
        citations,
    }
}
