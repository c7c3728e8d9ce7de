//! The JSON document of each command. The keys are a stable interface, so keys are added but never removed.

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    check::{Finding, Verdict},
    engine::{ChangeReport, Mode, Reboot, RunReport, StatusSummary, StepReport, Timing},
    event::{Outcome, Summary},
    facts::{Cloud, Disk, Facts, GpuFact, Kernel, Os, PciFact, SecureBoot, Unknown},
    host::Nvml,
    model::{
        findings::{Kind, Layer, Remedy},
        id::StepId,
        node::NodeSummary,
    },
    state::{FoundDriver, FoundRuntime, Inventory, KubeletRuntime, Snapshot},
};

/// The schema version of all documents here except [`FactsDocument`].
pub const SCHEMA: u32 = 1;

/// The name and version of gpu-bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
}

/// gpu-bootstrap in the version of this build.
pub const TOOL: Tool = Tool {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
};

/// A summary of the machine. `facts` contains the details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MachineSummary {
    /// For example `debian 12`.
    pub os: Option<String>,
    /// The running kernel.
    pub kernel: Option<String>,
    /// For example `x86_64`.
    pub arch: Option<String>,
    /// For example `aws`.
    pub cloud: Option<String>,
    /// For example `p5.48xlarge`.
    pub instance_type: Option<String>,
    /// The instance ID of the cloud, or the DMI UUID.
    pub instance_id: Option<String>,
    /// NVIDIA GPUs on the bus.
    pub gpus: usize,
}

impl MachineSummary {
    /// Selects the summary from the facts.
    pub fn of(facts: &Facts) -> Self {
        Self {
            os: facts.os.as_ref().map(|os| match &os.version_id {
                Some(version) => format!("{} {version}", os.id),
                None => os.id.clone(),
            }),
            kernel: facts.kernel.running.as_ref().map(ToString::to_string),
            arch: facts.kernel.arch.clone(),
            cloud: facts.cloud.provider.clone(),
            instance_type: facts.cloud.instance_type.clone(),
            instance_id: facts.instance_id.clone(),
            gpus: facts.gpus.len(),
        }
    }
}

/// The verdicts of a run, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// See [`Verdict::Pass`](crate::check::Verdict::Pass).
    pub pass: usize,
    /// See [`Verdict::Warn`](crate::check::Verdict::Warn).
    pub warn: usize,
    /// See [`Verdict::Fail`](crate::check::Verdict::Fail).
    pub fail: usize,
    /// See [`Verdict::Skip`](crate::check::Verdict::Skip).
    pub skip: usize,
    /// See [`Verdict::Unknown`](crate::check::Verdict::Unknown).
    pub unknown: usize,
    /// Failures of the kind [`Kind::Fault`].
    pub faults: usize,
    /// Failures and warnings of the kind [`Kind::Risk`].
    pub risks: usize,
    /// Failures and warnings of the kind [`Kind::Difference`].
    pub differences: usize,
}

impl Verdicts {
    /// Counts the findings by verdict and by kind.
    pub fn of(findings: &[Finding]) -> Self {
        let count = |verdict| {
            findings
                .iter()
                .filter(|finding| finding.status == verdict)
                .count()
        };
        let of = |kind| findings.iter().filter(|finding| finding.is(kind)).count();
        Self {
            pass: count(Verdict::Pass),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
            skip: count(Verdict::Skip),
            unknown: count(Verdict::Unknown),
            faults: of(Kind::Fault),
            risks: of(Kind::Risk),
            differences: of(Kind::Difference),
        }
    }

    /// Returns the counts as text.
    pub fn sentence(&self) -> String {
        let plural = |count: usize, word: &str| match count {
            1 => format!("1 {word}"),
            count => format!("{count} {word}s"),
        };
        let parts = [
            (self.faults, plural(self.faults, "fault")),
            (self.risks, plural(self.risks, "risk")),
            (self.differences, plural(self.differences, "difference")),
            (self.unknown, format!("{} unknown", self.unknown)),
            (self.pass, format!("{} pass", self.pass)),
            (self.skip, format!("{} skip", self.skip)),
        ];
        let parts: Vec<String> = (parts.into_iter())
            .filter(|(count, _)| *count > 0)
            .map(|(_, text)| text)
            .collect();
        parts.join(", ")
    }
}

/// The document of `facts`: constant properties of the machine, and a snapshot of its state. [`Facts`] and [`Snapshot`]
/// describe the fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FactsDocument<'f> {
    pub(crate) schema: u32,
    pub(crate) os: &'f Option<Os>,
    pub(crate) kernel: &'f Kernel,
    pub(crate) secure_boot: SecureBoot,
    pub(crate) lockdown: &'f Option<String>,
    pub(crate) virtualization: &'f Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) product: Option<&'f str>,
    pub(crate) cloud: &'f Cloud,
    pub(crate) init: &'f Option<String>,
    pub(crate) boot_id: &'f Option<String>,
    pub(crate) instance_id: &'f Option<String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) disks: &'f [Disk],
    pub(crate) gpus: Vec<GpuDocument<'f>>,
    #[serde(skip_serializing_if = "<[PciFact]>::is_empty")]
    pub(crate) virtual_functions: &'f [PciFact],
    #[serde(skip_serializing_if = "<[PciFact]>::is_empty")]
    pub(crate) foreign_gpus: &'f [PciFact],
    pub(crate) nvswitches: &'f [PciFact],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nvlink_management: Option<bool>,
    pub(crate) network_devices: &'f [PciFact],
    pub(crate) driver: &'f FoundDriver,
    pub(crate) nvml: Option<&'f Nvml>,
    pub(crate) runtimes: &'f [FoundRuntime],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubelet: Option<KubeletRuntime>,
    pub(crate) unknown: Vec<Unknown>,
}

/// A GPU in [`FactsDocument`]: the fields of [`GpuFact`], and the driver bound to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuDocument<'f> {
    #[serde(flatten)]
    pub(crate) fact: &'f GpuFact,
    pub(crate) bound_driver: Option<&'f str>,
}

/// Builds the document of `facts`.
pub fn facts<'f>(facts: &'f Facts, snapshot: Snapshot<'f>) -> FactsDocument<'f> {
    let gpu = |gpu: &'f GpuFact| GpuDocument {
        fact: gpu,
        bound_driver: snapshot.bound_drivers.get(&gpu.pci_address).copied(),
    };
    let mut unknown = facts.unknown.clone();
    // Facts and state may depend on the same file, so skip duplicates.
    for line in snapshot.unknown {
        if !unknown.contains(&line) {
            unknown.push(line);
        }
    }
    FactsDocument {
        schema: facts.schema,
        os: &facts.os,
        kernel: &facts.kernel,
        secure_boot: facts.secure_boot,
        lockdown: &facts.lockdown,
        virtualization: &facts.virtualization,
        product: facts.product.as_deref(),
        cloud: &facts.cloud,
        init: &facts.init,
        boot_id: &facts.boot_id,
        instance_id: &facts.instance_id,
        memory_bytes: facts.memory_bytes,
        disks: &facts.disks,
        gpus: facts.gpus.iter().map(gpu).collect(),
        virtual_functions: &facts.virtual_functions,
        foreign_gpus: &facts.foreign_gpus,
        nvswitches: &facts.nvswitches,
        nvlink_management: facts.nvlink_management,
        network_devices: &facts.network_devices,
        driver: snapshot.driver,
        nvml: snapshot.nvml,
        runtimes: snapshot.runtimes,
        kubelet: snapshot.kubelet,
        unknown,
    }
}

/// The versions and the state of a node in [`CheckDocument`] and in the metrics. A value that could not be read, or that
/// `--root` and `--lspci` do not read, is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeStatus {
    #[serde(flatten)]
    pub inventory: Inventory,
    /// The time of the last successful validation of the GPUs.
    pub validated: Option<Timestamp>,
    /// The machine must be rebooted: a run waits for it, the next boot starts another kernel, or it is the remedy of a problem.
    pub reboot_pending: Option<bool>,
    /// `install` or `uninstall` is running, and does not wait as in `upgrade_waiting`.
    pub run_active: Option<bool>,
    /// `upgrade` has taken the node out of service.
    pub maintenance: Option<bool>,
    /// `upgrade` waits for the fleet lock or for the end of the workloads.
    pub upgrade_waiting: Option<bool>,
    /// See [`Timing::to_ready`](crate::engine::Timing::to_ready).
    pub time_to_ready_seconds: Option<f64>,
}

impl NodeStatus {
    /// The status of a node of which only versions and devices were read.
    pub fn of(inventory: Inventory) -> Self {
        Self {
            inventory,
            validated: None,
            reboot_pending: None,
            run_active: None,
            maintenance: None,
            upgrade_waiting: None,
            time_to_ready_seconds: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckDocument<'r> {
    schema: u32,
    tool: Tool,
    /// The time of the check.
    time: Timestamp,
    /// The exit status.
    exit: u8,
    host: MachineSummary,
    node: &'r NodeStatus,
    summary: Verdicts,
    /// Warnings about the desired state, as in `plan`.
    warnings: &'r [String],
    findings: Vec<FindingDocument<'r>>,
}

/// A finding in [`CheckDocument`], with its layer, kind and remedy class.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FindingDocument<'r> {
    #[serde(flatten)]
    finding: &'r Finding,
    layer: Layer,
    /// The kind, if it fails or warns, or is a difference that was not evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// The remedy class, if it fails or warns.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy_class: Option<Remedy>,
}

impl<'r> FindingDocument<'r> {
    fn of(finding: &'r Finding) -> Self {
        let is_bad = matches!(finding.status, Verdict::Fail | Verdict::Warn);
        Self {
            finding,
            layer: Layer::of(&finding.id),
            kind: finding.kind(),
            remedy_class: finding.class().filter(|_| is_bad),
        }
    }
}

/// The document of `plan`, `install` and `uninstall`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunDocument<'r> {
    schema: u32,
    tool: Tool,
    /// Omitted by `uninstall`, which only reads the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<MachineSummary>,
    mode: Mode,
    run: &'r str,
    exit: u8,
    seconds: f64,
    summary: Summary,
    steps: Vec<StepDocument<'r>>,
    notes: &'r [String],
    reboot: Option<&'r Reboot>,
    left: &'r [String],
    /// The node, if `install` has made it ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'r NodeSummary>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct StepDocument<'r> {
    id: &'r StepId,
    title: &'r str,
    outcome: Outcome,
    why: &'r str,
    hint: Option<&'r str>,
    reason: Option<&'static str>,
    causes: &'r [String],
    seconds: f64,
    changes: &'r [ChangeReport],
}

impl<'r> StepDocument<'r> {
    fn of(step: &'r StepReport) -> Self {
        Self {
            id: &step.id,
            title: &step.title,
            outcome: step.outcome,
            why: &step.why,
            hint: step.hint.as_deref(),
            reason: step.reason,
            causes: &step.causes,
            seconds: step.seconds,
            changes: &step.changes,
        }
    }
}

/// The document of `status --timing`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimingDocument<'r> {
    schema: u32,
    tool: Tool,
    timing: &'r Timing,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatusDocument<'r> {
    schema: u32,
    tool: Tool,
    status: &'r StatusSummary,
}

/// The result of `check`.
pub fn check<'r>(
    report: &'r RunReport,
    time: Timestamp,
    facts: &Facts,
    node: &'r NodeStatus,
    warnings: &'r [String],
) -> CheckDocument<'r> {
    CheckDocument {
        schema: SCHEMA,
        tool: TOOL,
        time,
        exit: report.exit.code(),
        host: MachineSummary::of(facts),
        node,
        summary: Verdicts::of(&report.findings),
        warnings,
        findings: report.findings.iter().map(FindingDocument::of).collect(),
    }
}

/// The changes that `plan` proposes, or that `install` or `uninstall` made.
pub fn run<'r>(report: &'r RunReport, facts: Option<&Facts>) -> RunDocument<'r> {
    RunDocument {
        schema: SCHEMA,
        tool: TOOL,
        host: facts.map(MachineSummary::of),
        mode: report.mode,
        run: &report.run,
        exit: report.exit.code(),
        seconds: report.seconds,
        summary: report.summary(),
        steps: report.steps.iter().map(StepDocument::of).collect(),
        notes: &report.notes,
        reboot: report.reboot.as_ref(),
        left: &report.left,
        node: report.node.as_ref(),
    }
}

/// The result of `status --timing`.
pub fn timing(timing: &Timing) -> TimingDocument<'_> {
    TimingDocument {
        schema: SCHEMA,
        tool: TOOL,
        timing,
    }
}

/// The result of `status`.
pub fn status(status: &StatusSummary) -> StatusDocument<'_> {
    StatusDocument {
        schema: SCHEMA,
        tool: TOOL,
        status,
    }
}
