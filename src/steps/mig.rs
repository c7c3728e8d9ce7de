//! `driver.mig`: each GPU that supports MIG has the configured layout, now and after every boot.
//!
//! Instances never persist, and GPUs since Hopper also lose the MIG mode when the driver is unloaded. A unit therefore applies and
//! verifies the layout at each boot, before container runtimes and the kubelet start. If it fails, the unit fails: a node must not
//! silently offer other devices than configured. The command line of the unit contains the resolved layout, so that a boot
//! depends on neither settings nor the network.
//!
//! `nvidia-cdi-refresh.service` fails while a GPU in MIG mode has no instances. At boot, it starts after the unit: systemd also
//! orders a start by its udev rule after a unit whose start is pending. During a run, its failure is ignored, and the step `cdi`
//! restarts it after the instances were created, also at its start limit; while it stays failed, `check` reports `cdi`. AKS adds `SuccessExitStatus=1 2 127` to the unit
//! (Azure/AgentBaker pull request 9150). This is not required here, and would hide other failures of `nvidia-ctk`.

use std::{collections::BTreeSet, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    DRIVER_MIG, DRIVER_MODULE, DRIVER_NODES, DRIVER_RUNS, VALIDATION_DEVICES, cdi, messages,
    nodes::{self, is_enabled, users},
    program,
};
use crate::{
    change::{Change, Lock, Partition},
    compat::matrix::Fabric,
    config::desired::{Desired, MigSpec},
    error::one_line,
    fabric,
    host::{ExecError, FilesError, Nvml, NvmlDevice, trusted::refuse_foreign},
    mig::{
        Geometry, GpuLayout, Layout, LayoutRequest, MigGpu, NoLayout, is_capable, is_split_next,
        layout_of, may_need_reset, needs_reset, plugin_fault, reset_file,
    },
    model::{pci::PciAddress, text::counted},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        packages::HEADER,
        systemctl::{own_file, quoted},
        toolkit,
    },
};

/// The unit that partitions the GPUs at each boot.
pub const UNIT: &str = "gpu-bootstrap-mig.service";

/// The time limit of its start, as in `mig.service`.
const UNIT_LIMIT: Duration = Duration::from_secs(480);

/// Units that use the GPUs and start at boot. A GPU in use cannot be partitioned. Sources: NVIDIA/mig-parted,
/// deployments/systemd/hooks.sh; `nvidia-dcgm-exporter.service` is the unit of AKS node images.
const CLIENTS: [&str; 6] = [
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "nvsm.service",
    "nvsm-core.service",
];

/// The `driver.mig` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_MIG, |cx| Box::pin(assess(cx)))
        .after(DRIVER_RUNS)
        .after([DRIVER_NODES, VALIDATION_DEVICES])
        .locks([Lock::Modules])
        .wants(|_, desired| desired.driver.is_none() || desired.mig.is_some())
}

#[derive(Debug, Clone)]
struct MigState {
    /// The content of the layout file, or the reason that it cannot be used. `None` if no file is configured.
    file: Option<Result<String, String>>,
    /// The GPUs that are not reserved for virtual machines, by PCI address.
    gpus: Vec<SeenGpu>,
    /// A driver is loaded.
    loaded: bool,
    /// The reason that NVML does not respond although a driver is loaded.
    silent: Option<String>,
    unit: Option<String>,
    enabled: bool,
    /// The unit failed at boot.
    failed: bool,
    /// The unit is starting, or waits for its start.
    starting: bool,
    /// The executable for the unit, or the reason that it must not be used.
    program: Result<Utf8PathBuf, String>,
}

#[derive(Debug, Clone, PartialEq)]
struct SeenGpu {
    gpu: MigGpu,
    /// The layout and the pending mode, or the missing value. `None` if NVML does not list the GPU.
    now: Option<Result<(Layout, bool), String>>,
    /// A change of the mode needs a reset.
    needs_reset: bool,
    can_reset: bool,
}

fn seen(cx: &Cx<'_>, devices: Option<&[NvmlDevice]>) -> Result<Vec<SeenGpu>, StepError> {
    let mut found = Vec::new();
    for fact in messages::usable(cx)? {
        let address = fact.pci_address;
        let device = (devices.into_iter().flatten())
            .find(|device| device.pci_address == Some(address) && device.error.is_none());
        let support = device.and_then(|device| device.mig_support.as_ref());
        let model = MigGpu::of_model(
            address,
            fact.pci_id,
            fact.subsystem_id,
            fact.name.as_deref(),
            fact.compute_capability,
        );
        found.push(SeenGpu {
            now: device
                .map(|device| layout_of(device).map(|layout| (layout, is_split_next(device)))),
            needs_reset: device
                .map_or_else(|| may_need_reset(fact.compute_capability), needs_reset),
            can_reset: cx.host.files().exists(&reset_file(address))?,
            gpu: match device {
                Some(device) => MigGpu {
                    supports_mig: Some(is_capable(device)),
                    geometry: Geometry::of(Some(fact.pci_id), support),
                    ..model
                },
                None => model,
            },
        });
    }
    found.sort_by_key(|seen| seen.gpu.address);
    Ok(found)
}

async fn detect(cx: &Cx<'_>, spec: &MigSpec) -> Result<MigState, StepError> {
    let files = cx.host.files();
    let loaded = cx.state.loaded_driver()?.is_some();
    let (mut devices, mut silent) = (None, None);
    if loaded {
        match cx.state.nvml().await {
            Nvml::Ready(view) => devices = Some(view.devices.as_slice()),
            Nvml::Hung { after_seconds } => {
                silent = Some(format!("NVML timed out after {after_seconds} s"));
            }
            Nvml::NotQueried { why } => {
                let (command, why) = ("NVML".to_owned(), why.clone());
                return Err(ExecError::NotQueried { command, why }.into());
            }
            other => silent = Some(format!("NVML does not respond ({})", state_of(other))),
        }
    }
    let unit = files.read_text(&own_file(UNIT))?;
    let systemd = match &unit {
        Some(_) => cx.state.unit(UNIT).await?,
        None => None,
    };
    Ok(MigState {
        file: match &spec.layout {
            LayoutRequest::File { path, .. } => Some(file(cx, path)?),
            LayoutRequest::Named(_) | LayoutRequest::Models(_) => None,
        },
        gpus: seen(cx, devices)?,
        loaded,
        silent,
        enabled: is_enabled(cx, UNIT)?,
        failed: (systemd.as_ref()).is_some_and(|unit| unit.active == "failed"),
        starting: (systemd.as_ref())
            .is_some_and(|unit| unit.active == "activating" || unit.has_job),
        program: program::of_unit(cx, unit.as_deref())?,
        unit,
    })
}

fn state_of(nvml: &Nvml) -> &'static str {
    match nvml {
        Nvml::VersionMismatch => "driver/library version mismatch",
        Nvml::NoDevices => "no GPU responds",
        Nvml::NotLoadable { .. } => "its library cannot be loaded",
        _ => "it failed",
    }
}

/// Reads the layout file. A file of another user is not used, because its owner would control the GPUs.
fn file(cx: &Cx<'_>, path: &Utf8Path) -> Result<Result<String, String>, StepError> {
    let files = cx.host.files();
    if cx.state.is_of_this_machine() {
        match refuse_foreign(files, path) {
            Ok(()) => {}
            Err(error @ FilesError::Foreign { .. }) => return Ok(Err(one_line(&error))),
            Err(error) => return Err(error.into()),
        }
    }
    let text = files.read_text(path)?;
    Ok(text.ok_or_else(|| format!("`{path}` does not exist")))
}

/// The unit text.
fn unit(program: &Utf8Path, partition: &Partition) -> String {
    let mut command = format!("{} partition-gpus", quoted(program));
    for name in &partition.stop_units {
        command.push_str(&format!(" --stop-unit={}", quoted(Utf8Path::new(name))));
    }
    for gpu in &partition.reset_with {
        command.push_str(&format!(" --reset-with={gpu}"));
    }
    command.push_str(&format!(" {partition}"));
    let stopped = partition.stop_units.iter().map(String::as_str);
    let clients: BTreeSet<&str> = CLIENTS.into_iter().chain(stopped).collect();
    let clients: Vec<&str> = clients.into_iter().collect();
    format!(
        include_str!("mig.service"),
        header = HEADER,
        nodes = nodes::UNIT,
        fabric = fabric::UNIT,
        cdi = cdi::UNIT,
        refresh = toolkit::REFRESH,
        users = users(),
        clients = clients.join(" "),
        command = command,
    )
}

fn decide(state: &MigState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    let Some(spec) = &desired.mig else {
        return Assessment::not_applicable("no MIG layout is configured");
    };
    if desired.image {
        return Assessment::awaits_boot("the GPUs are partitioned at the first boot of the image");
    }
    if state.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    let text = match &state.file {
        Some(Err(why)) => {
            return Assessment::blocked(
                format!("the MIG layout cannot be read: {why}"),
                "create the file that `mig.file` specifies, with root as its owner and mode 0644",
            );
        }
        Some(Ok(text)) => Some(text.as_str()),
        None => None,
    };
    let gpus: Vec<MigGpu> = state.gpus.iter().map(|seen| seen.gpu.clone()).collect();
    let layouts = match spec.layout.layouts(text, &gpus) {
        Ok(layouts) => layouts,
        Err(NoLayout::Fault(fault)) => return Assessment::blocked(fault.why, fault.remedy),
        Err(NoLayout::Later(gpu)) if state.loaded => return unknown(state, &gpu),
        Err(NoLayout::Later(gpu)) => {
            return after_module(format!("the MIG profiles of {gpu} are unknown"), Vec::new());
        }
    };
    if layouts.is_empty() {
        return Assessment::not_applicable("no GPU supports MIG");
    }
    let profiles = layouts.iter().flat_map(|one| one.layout.profiles());
    if let Some(fault) = plugin_fault(desired.device_plugin.mig_strategy, profiles) {
        return Assessment::blocked(fault.why, fault.remedy);
    }
    let program = match &state.program {
        Ok(program) => program,
        Err(why) => return program::not_persistent(why, own_file(UNIT).as_str()),
    };
    let partition = Partition {
        reset_with: reset_with(driver.companions.needs, &state.gpus, &layouts),
        gpus: layouts,
        stop_units: spec.stop_units.clone(),
    };
    let at_boot = unit(program, &partition);
    let mut at_boot_changes = Vec::new();
    if state.unit.as_ref() != Some(&at_boot) {
        at_boot_changes.push(Change::write(own_file(UNIT), at_boot));
    }
    if !state.enabled || !at_boot_changes.is_empty() {
        at_boot_changes.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            // This step partitions the GPUs now.
            start: false,
        });
    }
    let now = match differences(state, &partition) {
        Ok(now) => now,
        Err(reason) => return reason.with(partition, at_boot_changes),
    };
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    match now {
        Differences::Layouts(differing) if differing.is_empty() => {}
        // During a boot. Both would change the GPUs, and the result of the unit is not known yet.
        _ if state.starting => return starting(),
        // The unit failed after the boot because the mode was still pending, so another boot would not help either.
        Differences::Pending(gpus) if state.failed => return still_pending(&gpus),
        Differences::Pending(gpus) => {
            let why = format!(
                "the MIG mode of {gpus} is set but takes effect at the next boot, because this machine cannot reset its GPUs"
            );
            let mut changes = at_boot_changes;
            changes.push(Change::Reboot { why: why.clone() });
            return Assessment::needs(why, changes);
        }
        Differences::Layouts(differing) => {
            whys.push(differing.join("; "));
            changes.push(Change::PartitionGpus {
                partition: partition.clone(),
            });
        }
    }
    if !at_boot_changes.is_empty() {
        whys.push(format!("`{UNIT}` does not apply this layout at boot"));
        changes.extend(at_boot_changes);
    }
    if state.failed {
        // It finds the layout that this step has set, so it changes nothing and is no longer failed. Not a restart, whose undo
        // would start the unit again and partition the GPUs.
        whys.push(format!("`{UNIT}` is failed"));
        changes.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: true,
        });
    }
    if changes.is_empty() {
        return Assessment::satisfied(format!(
            "{} with the configured MIG layout ({partition}), and `{UNIT}` applies it at boot",
            counted(partition.gpus.len(), "GPU")
        ));
    }
    Assessment::needs(whys.join("; "), changes)
}

/// The comparison of the GPUs with their layouts.
enum Differences {
    /// A description of each GPU that differs.
    Layouts(Vec<String>),
    /// The pending mode of these GPUs takes effect at the next boot.
    Pending(String),
}

/// The reason that the GPUs cannot be compared.
enum NoComparison {
    /// The driver is not loaded.
    NotLoaded,
    Silent(String),
}

impl NoComparison {
    fn with(self, partition: Partition, at_boot: Vec<Change>) -> Assessment {
        match self {
            Self::NotLoaded => {
                let mut expected = vec![Change::PartitionGpus { partition }];
                expected.extend(at_boot);
                after_module("the driver is not loaded".to_owned(), expected)
            }
            Self::Silent(why) => unreadable(&why),
        }
    }
}

fn starting() -> Assessment {
    Assessment::BlockedNow {
        why: format!("`{UNIT}` is partitioning the GPUs"),
        hint: format!("run `journalctl --boot --unit={UNIT}`"),
        retryable: Some(UNIT_LIMIT),
    }
}

fn still_pending(gpus: &str) -> Assessment {
    Assessment::blocked(
        format!(
            "the MIG mode of {gpus} is set but did not take effect at this boot, and this machine cannot reset its GPUs"
        ),
        "stop the virtual machine and start it again, so that the hypervisor resets its GPUs (on a physical machine: switch it off \
         and on), then run `gpu-bootstrap install`; or remove the `mig` settings",
    )
}

fn unreadable(why: &str) -> Assessment {
    Assessment::BlockedNow {
        why: format!("the current MIG layout is unknown: {why}"),
        hint: "run `gpu-bootstrap probe`".to_owned(),
        retryable: None,
    }
}

fn differences(state: &MigState, partition: &Partition) -> Result<Differences, NoComparison> {
    if !state.loaded {
        return Err(NoComparison::NotLoaded);
    }
    if let Some(why) = &state.silent {
        return Err(NoComparison::Silent(why.clone()));
    }
    let is_without_reset =
        |seen: &SeenGpu| partition.reset_with.contains(&seen.gpu.address) && !seen.can_reset;
    let cannot_reset_together = state.gpus.iter().any(is_without_reset);
    let mut differing = Vec::new();
    let mut waiting = Vec::new();
    for wanted in &partition.gpus {
        let seen = (state.gpus.iter()).find(|seen| seen.gpu.address == wanted.gpu);
        let Some((seen, now)) = seen.and_then(|seen| Some((seen, seen.now.as_ref()?))) else {
            let why = format!("NVML does not list GPU {}", wanted.gpu);
            return Err(NoComparison::Silent(why));
        };
        let (layout, pending) = match now {
            Ok(now) => now,
            Err(what) => return Err(NoComparison::Silent(format!("NVML does not report {what}"))),
        };
        let GpuLayout { gpu, layout: want } = wanted;
        let waits = seen.needs_reset && (!seen.can_reset || cannot_reset_together);
        if layout.enabled != want.enabled && *pending == want.enabled && waits {
            waiting.push(gpu.to_string());
        } else if layout != want || *pending != want.enabled {
            differing.push(format!(
                "GPU {gpu} has MIG layout `{layout}` instead of `{want}`"
            ));
        }
    }
    if differing.is_empty() && !waiting.is_empty() {
        return Ok(Differences::Pending(waiting.join(", ")));
    }
    Ok(Differences::Layouts(differing))
}

/// Returns the GPUs that are reset together: all GPUs behind NVSwitches, and all GPUs whose MIG mode needs a reset, because NVLink
/// may connect them without NVSwitches. Source: NVIDIA/mig-parted, `cmd/nvidia-mig-parted/apply/mode.go`, which always resets all
/// GPUs.
fn reset_with(fabric: Fabric, gpus: &[SeenGpu], layouts: &[GpuLayout]) -> Vec<PciAddress> {
    let all = layouts.iter().map(|one| one.gpu);
    match fabric {
        Fabric::Fm | Fabric::FmNvlsm => all.collect(),
        Fabric::None | Fabric::Imex => {
            let needs_reset = |gpu: &PciAddress| {
                (gpus.iter()).any(|seen| seen.gpu.address == *gpu && seen.needs_reset)
            };
            let together: Vec<PciAddress> = all.filter(needs_reset).collect();
            if together.len() > 1 {
                together
            } else {
                Vec::new()
            }
        }
    }
}

fn after_module(why: String, expected: Vec<Change>) -> Assessment {
    Assessment::After {
        upstream: DRIVER_MODULE,
        why,
        expected,
    }
}

/// Reports a GPU whose profiles neither NVML nor the table contains.
fn unknown(state: &MigState, gpu: &str) -> Assessment {
    match &state.silent {
        Some(why) => unreadable(why),
        None => Assessment::blocked(
            format!("the MIG profiles of {gpu} are unknown: the driver does not report them"),
            "run `gpu-bootstrap install --set mig.layout=all-enabled`, because some drivers report them only in MIG mode; \
             then run `gpu-bootstrap install` with this layout",
        ),
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let bare = MigState {
        file: None,
        gpus: Vec::new(),
        loaded: false,
        silent: None,
        unit: None,
        enabled: false,
        failed: false,
        starting: false,
        program: Err("not inspected".to_owned()),
    };
    let state = match &cx.desired.mig {
        Some(spec) if !cx.desired.image => detect(cx, spec).await?,
        _ => bare,
    };
    Ok(decide(&state, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mig::MigStrategy, steps::fixtures::desired};

    fn spec(layout: &str) -> Desired {
        Desired {
            mig: Some(MigSpec {
                layout: LayoutRequest::Named(layout.parse().unwrap()),
                stop_units: vec!["nvidia-dcgm.service".to_owned()],
            }),
            ..desired()
        }
    }

    /// A GPU with its current layout.
    fn gpu(id: &str, layout: &str) -> SeenGpu {
        let layout: Layout = layout.parse().unwrap();
        let id = id.parse().unwrap();
        SeenGpu {
            now: Some(Ok((layout.clone(), layout.enabled))),
            needs_reset: true,
            can_reset: true,
            gpu: MigGpu {
                address: "0000:18:00.0".parse().unwrap(),
                id,
                subsystem: None,
                name: "A100".to_owned(),
                supports_mig: Some(true),
                geometry: Geometry::of(Some(id), None),
            },
        }
    }

    fn state(gpu: SeenGpu) -> MigState {
        MigState {
            file: None,
            gpus: vec![gpu],
            loaded: true,
            silent: None,
            unit: None,
            enabled: true,
            failed: false,
            starting: false,
            program: Ok("/usr/local/bin/gpu-bootstrap".into()),
        }
    }

    fn kinds(changes: &[Change]) -> Vec<&'static str> {
        changes.iter().map(Change::kind).collect()
    }

    #[test]
    fn layout_is_applied_now_and_at_boot() {
        let want = spec("all-balanced");
        let mut now = state(gpu("10de:20b0", "disabled"));
        let (why, changes) = decide(&now, &want).expect_needs();
        assert!(
            why.starts_with(
                "GPU 0000:18:00.0 has MIG layout `disabled` instead of `3g.20gb,2g.10gb,1g.5gb*2`"
            ),
            "{why}"
        );
        assert_eq!(
            kinds(&changes),
            ["partition-gpus", "write-file", "enable-unit"]
        );
        let Some(Change::WriteFile { content, .. }) = changes.get(1) else {
            panic!("{changes:?}");
        };
        assert!(
            content.contains(
                "ExecStart=/usr/local/bin/gpu-bootstrap partition-gpus --stop-unit=nvidia-dcgm.service \
                 0000:18:00.0=3g.20gb,2g.10gb,1g.5gb*2\n"
            ),
            "{content}"
        );
        let before = content.lines().find(|line| line.starts_with("Before="));
        for unit in [
            "containerd.service",
            "docker.service",
            "kubelet.service",
            "gpu-bootstrap-cdi.service",
            "nvidia-cdi-refresh.service",
            "nvidia-dcgm.service",
        ] {
            let before = before.unwrap_or_default();
            assert!(before.contains(unit), "{unit}: {before}");
        }
        now.unit = Some(content.clone());
        now.gpus = vec![gpu("10de:20b0", "1g.5gb*2,2g.10gb,3g.20gb")];
        decide(&now, &want).expect_satisfied();
        // The unit stays failed after the GPUs were repaired.
        now.failed = true;
        let (why, changes) = decide(&now, &want).expect_needs();
        assert!(why.contains("is failed"), "{why}");
        assert_eq!(kinds(&changes), ["enable-unit"]);
        now.gpus = vec![gpu("10de:20b0", "disabled")];
        let (_, changes) = decide(&now, &want).expect_needs();
        assert_eq!(kinds(&changes), ["partition-gpus", "enable-unit"]);
        now.failed = false;
        // After a boot without the unit, or after another program has changed the layout.
        for other in ["enabled", "1g.5gb*7", "disabled"] {
            now.gpus = vec![gpu("10de:20b0", other)];
            let (_, changes) = decide(&now, &want).expect_needs();
            assert_eq!(kinds(&changes), ["partition-gpus"], "{other}");
        }
        let (_, changes) = decide(&now, &spec("all-1g.5gb")).expect_needs();
        assert_eq!(
            kinds(&changes),
            ["partition-gpus", "write-file", "enable-unit"]
        );
        decide(&now, &desired()).expect_not_applicable();
    }

    #[test]
    fn layout_that_does_not_fit_blocks_before_the_driver_is_installed() {
        let mut bare = state(gpu("10de:20b0", "disabled"));
        bare.loaded = false;
        bare.gpus[0].now = None;
        let (why, hint) = decide(&bare, &spec("all-1g.18gb")).expect_blocked();
        assert!(why.contains("has no profile `1g.18gb`"), "{why}");
        assert!(hint.contains("`1g.5gb*7`"), "{hint}");
        let (upstream, expected) = decide(&bare, &spec("all-balanced")).expect_after();
        assert_eq!(upstream, DRIVER_MODULE);
        assert_eq!(
            kinds(&expected),
            ["partition-gpus", "write-file", "enable-unit"]
        );
        // A model that is not in the table.
        bare.gpus[0].gpu.supports_mig = None;
        bare.gpus[0].gpu.geometry = None;
        decide(&bare, &spec("all-balanced")).expect_after();
        bare.loaded = true;
        bare.gpus[0].gpu.supports_mig = Some(true);
        bare.gpus[0].now = Some(Ok((Layout::default(), false)));
        decide(&bare, &spec("all-balanced")).expect_blocked();
    }

    #[test]
    fn compute_instances_need_a_device_plugin_that_starts() {
        let mut want = spec("all-disabled");
        if let Some(mig) = &mut want.mig {
            let model = "10de:20b0=1c.3g.20gb*3".parse().unwrap();
            mig.layout = LayoutRequest::Models(vec![model]);
        }
        let now = state(gpu("10de:20b0", "disabled"));
        for (strategy, starts) in rows! {
            MigStrategy::None, true;
            MigStrategy::Single, true;
            MigStrategy::Mixed, false;
        } {
            want.device_plugin.mig_strategy = strategy;
            let assessment = decide(&now, &want);
            if starts {
                let (why, _) = assessment.expect_needs();
                assert!(why.contains("instead of `1c.3g.20gb*3`"), "{why}");
            } else {
                let (why, hint) = assessment.expect_blocked();
                assert!(
                    why.contains("does not start on a node with `1c.3g.20gb`"),
                    "{why}"
                );
                assert!(hint.contains("use `3g.20gb`"), "{hint}");
            }
        }
    }

    #[test]
    fn pending_mode_without_reset_needs_one_reboot() {
        let want = spec("all-1g.5gb");
        let mut now = state(gpu("10de:20b0", "disabled"));
        now.gpus[0].can_reset = false;
        let (_, changes) = decide(&now, &want).expect_needs();
        assert_eq!(changes.first().map(Change::kind), Some("partition-gpus"));
        let Some(Change::WriteFile { content, .. }) = changes.get(1) else {
            panic!("{changes:?}");
        };
        now.unit = Some(content.clone());
        // The change has set the mode.
        now.gpus[0].now = Some(Ok((Layout::default(), true)));
        let (why, changes) = decide(&now, &want).expect_needs();
        assert!(why.contains("takes effect at the next boot"), "{why}");
        assert_eq!(kinds(&changes), ["reboot"]);
        // The result of the unit at this boot decides.
        now.starting = true;
        let (_, _, retryable) = decide(&now, &want).expect_blocked_now();
        assert_eq!(retryable, Some(UNIT_LIMIT));
        (now.starting, now.failed) = (false, true);
        let (why, _) = decide(&now, &want).expect_blocked();
        assert!(why.contains("did not take effect at this boot"), "{why}");
        now.failed = false;
        // With a reset, the change continues.
        now.gpus[0].can_reset = true;
        let (_, changes) = decide(&now, &want).expect_needs();
        assert_eq!(kinds(&changes), ["partition-gpus"]);
        // After the reboot.
        now.gpus[0].can_reset = false;
        now.gpus[0].now = Some(Ok((Layout::with(Vec::new()), true)));
        let (_, changes) = decide(&now, &want).expect_needs();
        assert_eq!(kinds(&changes), ["partition-gpus"]);
    }

    #[test]
    fn gpus_that_nvlink_may_connect_are_reset_together() {
        for (fabric, need_reset, together) in rows! {
            Fabric::Fm, &[true][..], 1;
            Fabric::Fm, &[false, false][..], 2;
            Fabric::None, &[true][..], 0;
            Fabric::None, &[true, true][..], 2;
            // Ampere and Hopper.
            Fabric::None, &[true, true, false][..], 2;
            Fabric::None, &[false, false][..], 0;
        } {
            let mut want = spec("all-disabled");
            if let Some(driver) = &mut want.driver {
                driver.companions.needs = fabric;
            }
            let mut now = state(gpu("10de:20b0", "1g.5gb*7"));
            now.gpus = (0x18..)
                .zip(need_reset)
                .map(|(bus, needs_reset)| {
                    let mut seen = gpu("10de:20b0", "1g.5gb*7");
                    seen.gpu.address.bus = bus;
                    seen.needs_reset = *needs_reset;
                    seen
                })
                .collect();
            let (_, changes) = decide(&now, &want).expect_needs();
            let Some(Change::PartitionGpus { partition }) = changes.first() else {
                panic!("{changes:?}");
            };
            assert_eq!(partition.reset_with.len(), together, "{need_reset:?}");
        }
    }

    #[test]
    fn mode_waits_for_a_boot_if_one_of_the_gpus_cannot_be_reset() {
        let mut now = state(gpu("10de:20b0", "disabled"));
        now.gpus.push(gpu("10de:20b0", "disabled"));
        now.gpus[1].gpu.address.bus += 1;
        now.gpus[1].can_reset = false;
        for seen in &mut now.gpus {
            seen.now = Some(Ok((Layout::default(), true)));
        }
        let (_, changes) = decide(&now, &spec("all-1g.5gb")).expect_needs();
        assert_eq!(kinds(&changes), ["write-file", "enable-unit", "reboot"]);
    }

    #[test]
    fn silent_nvml_blocks() {
        let mut now = state(gpu("10de:20b0", "disabled"));
        now.silent = Some("NVML timed out after 30 s".to_owned());
        let (why, ..) = decide(&now, &spec("all-balanced")).expect_blocked_now();
        assert!(why.contains("NVML timed out after 30 s"), "{why}");
        now.silent = None;
        now.gpus[0].now = None;
        let (why, ..) = decide(&now, &spec("all-balanced")).expect_blocked_now();
        assert!(why.contains("does not list GPU 0000:18:00.0"), "{why}");
    }

    #[test]
    fn file_of_another_user_blocks() {
        let mut want = spec("all-balanced");
        if let Some(mig) = &mut want.mig {
            mig.layout = LayoutRequest::File {
                path: "/etc/mig.yaml".into(),
                config: None,
            };
        }
        let mut now = state(gpu("10de:20b0", "disabled"));
        now.file = Some(Err("`/etc/mig.yaml` does not exist".to_owned()));
        decide(&now, &want).expect_blocked();
        let text = "version: v1\nmig-configs:\n  x:\n  - {devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}\n";
        now.file = Some(Ok(text.to_owned()));
        let (why, _) = decide(&now, &want).expect_needs();
        assert!(why.contains("instead of `7g.40gb`"), "{why}");
    }

    #[test]
    fn undo_follows_from_the_settings() {
        let change = Change::PartitionGpus {
            partition: Partition {
                gpus: Vec::new(),
                stop_units: Vec::new(),
                reset_with: Vec::new(),
            },
        };
        let mut want = spec("all-balanced");
        assert!((step().wants)(&change, &want));
        want.mig = None;
        assert!(!(step().wants)(&change, &want));
        // Without a driver, MIG settings are not evaluated.
        want.driver = None;
        assert!((step().wants)(&change, &want));
    }
}
