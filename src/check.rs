//! Checks find problems that no change of this program can repair. They only read.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    compat::matrix::Matrix, config::desired::Desired, facts::Facts, host::Reader, model::id::Id,
    state::State, step::StepError,
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
    /// It does not concern this machine (no GPU, no driver loaded, a feature that is not configured, an
    /// image without a running kernel), or nobody may be asked, as with `--root`.
    Skip,
    /// It was looked at, and the machine does not tell: NVML of this driver has no such value, a running
    /// kernel lacks the file. Alone it does not fail `check`. Never counted as a pass.
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
    /// The finding that is the root cause of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Id>,
    /// Whether `install` would change it: the machine may work without.
    #[serde(skip)]
    #[schemars(skip)]
    pub would_change: bool,
}

impl Finding {
    /// A finding without values; who makes it sets those that it has.
    #[must_use]
    pub fn new(id: Id, title: &str, status: Verdict, why: impl Into<String>) -> Self {
        Self {
            id,
            title: title.to_owned(),
            status,
            why: why.into(),
            observed: None,
            expected: None,
            remedy: None,
            links: Vec::new(),
            because: None,
            would_change: false,
        }
    }
}

/// The layer of a finding, in the order in which a node is built: the first layer with a problem has
/// the root cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Operating system, firmware and virtualization.
    Machine,
    /// GPUs on the PCI bus.
    Bus,
    /// The driver and its packages.
    Driver,
    /// `NVSwitch` and `NVLink`.
    Fabric,
    /// Container runtimes and the toolkit.
    Runtime,
    /// The whole node, and whether this program can prepare it: a fault of the machine is named before
    /// that nobody here repairs it.
    Node,
}

impl Layer {
    /// The layer of a finding of this name.
    #[must_use]
    pub fn of(id: &Id) -> Self {
        let name = id.as_str();
        // They are about the driver; nothing else depends on them.
        if [
            "kernel.deny",
            "kernel.headers",
            "os.pkg.consistency",
            "os.pkg.pins",
            "os.pkg.sources",
        ]
        .contains(&name)
        {
            return Self::Driver;
        }
        match name.split_once('.').map_or(name, |(first, _)| first) {
            "os" | "kernel" | "preflight" | "secure-boot" | "virt" => Self::Machine,
            "pci" => Self::Bus,
            "driver" | "drv" | "log" | "packages" | "repositories" => Self::Driver,
            "fabric" | "nvl" => Self::Fabric,
            "container" | "containerd" | "docker" | "runtime" | "rt" | "toolkit" | "cdi" => {
                Self::Runtime
            }
            _ => Self::Node,
        }
    }
}

/// Findings that tell, where they fail, what keeps this program from doing what it would like to do. They
/// are no fault of the machine, which may work without.
const WISHES: [&str; 12] = [
    "config.resolvable",
    "driver.packages",
    "kernel.headers",
    "kernel.release",
    "packages.hold",
    "preflight",
    "repositories",
    "runtime.containerd",
    "runtime.crio",
    "runtime.docker",
    "runtime.podman",
    "toolkit.packages",
];

/// Whether a finding of this name is about what this program would like, and not about the machine's health.
#[must_use]
pub fn is_wish(id: &Id) -> bool {
    WISHES.contains(&id.as_str())
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
