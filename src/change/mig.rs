//! Changes the MIG mode and the instances of GPUs, and restores them. The unit that runs at each boot uses the same code,
//! because no GPU keeps its instances across a reboot.
//!
//! Mode and instances are separate: the mode is set first, GPUs whose new mode is pending are reset together, and then the
//! instances are created. Ampere needs the reset and stores the mode on the board. Hopper and later change the mode at once and
//! lose it when the driver is unloaded. Source: NVIDIA/mig-parted v0.15.0, `cmd/nvidia-mig-parted/apply`, and the MIG user guide.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    error::one_line,
    host::{Cmd, ExecError, FilesError, Nvml, NvmlDevice, NvmlView},
    mig::{
        Geometry, GpuInstance, GpuLayout, Profile, is_split, is_split_next, layout_of, needs_reset,
        reset_file,
    },
    model::{pci::PciAddress, text::shell_word},
    state::{ClientKind, ClientsOf, GpuClient, gpu_clients, in_use_by},
    tools::{nvidia_smi, systemctl},
    work::Hands,
};

/// The layouts of GPUs, and how they may be changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Partition {
    pub gpus: Vec<GpuLayout>,
    /// Units that use the GPUs and may be stopped for the change. They are started again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_units: Vec<String>,
    /// GPUs that must be reset together with these GPUs, because NVLink connects them or may connect them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset_with: Vec<PciAddress>,
}

impl Partition {
    /// A one-line summary in the imperative.
    pub fn summary(&self) -> String {
        format!("partition GPUs with MIG: {self}")
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.gpus.iter().map(ToString::to_string).collect();
        to.write_str(&texts.join(" "))
    }
}

/// Restores the layouts of GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreMig {
    pub before: Vec<GpuLayout>,
    /// The layouts of the change. Another layout was set by another program.
    pub after: Vec<GpuLayout>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_units: Vec<String>,
    /// Those of the units that ran before the change. An interrupted change may have left them stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset_with: Vec<PciAddress>,
}

impl RestoreMig {
    /// Merges the undo with the undo of the preceding change: the older state is restored.
    pub(super) fn merged_with(&self, older: &Self) -> Self {
        let has = |all: &[GpuLayout], one: &GpuLayout| all.iter().any(|other| other.gpu == one.gpu);
        let mut merged = self.clone();
        merged.before.retain(|one| !has(&older.before, one));
        merged.before.extend(older.before.iter().cloned());
        let rest = older.after.iter().filter(|one| !has(&self.after, one));
        merged.after.extend(rest.cloned());
        merged
    }
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Partitioned {
    /// The GPUs have their layouts.
    Done,
    /// The mode of these GPUs changes at the next boot, because they cannot be reset here.
    AfterReboot(Vec<PciAddress>),
}

/// How long programs may use the GPUs before a change is refused. `nvidia-smi` and a running `check` use them for a moment.
const USE_LIMIT: Duration = Duration::from_secs(15);

/// The polling interval during this time.
const USE_POLL: Duration = Duration::from_millis(500);

impl Applier {
    /// Finds programs that would block the change, before the first change of a run. Without a loaded driver, there are none.
    pub(super) async fn dry_run_partition(&self, partition: &Partition) -> Result<(), ChangeError> {
        let Nvml::Ready(view) = self.host.gpu.survey().await else {
            return Ok(());
        };
        let gpus = changed(partition, &view)?;
        for (gpu, wanted) in &gpus {
            placed(gpu, wanted)?;
        }
        let affected = affected(self, partition, &view, &gpus)?;
        // A plan without root permissions. The change itself lists the programs again.
        if matches!(clients_of(self, &affected), Err(error) if error.is_denied()) {
            return Ok(());
        }
        await_unused(self, &affected, &partition.stop_units).await
    }

    pub(super) async fn capture_partition(
        &self,
        partition: &Partition,
    ) -> Result<Undo, ChangeError> {
        let view = survey(self).await?;
        let mut before = Vec::new();
        for wanted in &partition.gpus {
            before.push(GpuLayout {
                gpu: wanted.gpu,
                layout: current(device(&view, wanted.gpu)?)?,
            });
        }
        let mut running = Vec::new();
        for unit in &partition.stop_units {
            if is_running(self, unit).await? {
                running.push(unit.clone());
            }
        }
        Ok(Undo::RestoreMig(RestoreMig {
            before,
            after: partition.gpus.clone(),
            stop_units: partition.stop_units.clone(),
            running,
            reset_with: partition.reset_with.clone(),
        }))
    }

    /// Starts the units that an interrupted change has left stopped.
    pub(super) async fn start_stopped(
        &self,
        undo: &RestoreMig,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        for unit in &undo.running {
            if !is_running(self, unit).await? {
                start(self, unit, sink).await?;
            }
        }
        Ok(())
    }

    /// Restores the layouts. A GPU that is missing now is skipped. A layout that another program has set is kept.
    pub(super) async fn restore_mig(
        &self,
        undo: &RestoreMig,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let texts = |gpus: &[GpuLayout]| {
            let texts: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            format!("the MIG layout {}", texts.join(" "))
        };
        let view = match self.host.gpu.survey().await {
            Nvml::Ready(view) => view,
            _ => {
                return Ok(Reverted::left(
                    texts(&undo.after),
                    "NVML does not respond, so the previous layout cannot be restored",
                ));
            }
        };
        let (mut wanted, mut kept, mut endings) = (Vec::new(), Vec::new(), Vec::new());
        for before in &undo.before {
            let Ok(gpu) = device(&view, before.gpu) else {
                continue;
            };
            let now = current(gpu)?;
            let ours = undo.after.iter().find(|after| after.gpu == before.gpu);
            if now == before.layout && is_split_next(gpu) == before.layout.enabled {
                continue;
            }
            // A reboot destroys all instances, and an interrupted change has created none.
            let is_ours = now.profiles().is_empty() || ours.is_some_and(|ours| ours.layout == now);
            match is_ours {
                true => wanted.push(before.clone()),
                false => kept.push(format!("{}={now}", before.gpu)),
            }
        }
        if !kept.is_empty() {
            endings.push(Reverted::left(
                format!("the MIG layout {}", kept.join(" ")),
                "another program has changed it",
            ));
        }
        if wanted.is_empty() {
            endings.push(Reverted::nothing("the GPUs have their previous MIG layout"));
            return Ok(Reverted::of(endings));
        }
        let partition_back = Partition {
            gpus: wanted,
            stop_units: undo.stop_units.clone(),
            reset_with: undo.reset_with.clone(),
        };
        let what = format!("restored {}", texts(&partition_back.gpus));
        // A layout does not contain which compute instances share a GPU instance.
        let note = match partition_back.gpus.iter().any(has_compute_instances) {
            true => {
                "; the compute instances share as few GPU instances as possible; before, they may have been in more"
            }
            false => "",
        };
        endings.push(match partition(self, &partition_back, sink).await? {
            Partitioned::Done => Reverted::done(format!("{what}{note}")),
            Partitioned::AfterReboot(_) => {
                Reverted::done(format!("{what}, which takes effect at the next boot{note}"))
            }
        });
        Ok(Reverted::of(endings))
    }
}

/// Whether a layout has compute instances that are smaller than their GPU instance.
fn has_compute_instances(gpu: &GpuLayout) -> bool {
    (gpu.layout.profiles().iter()).any(|profile| profile.compute.is_some())
}

/// Sets the layouts of GPUs, and verifies the result. GPUs that already have their layout are not touched.
///
/// # Errors
/// If programs use a GPU, or if a command fails. The GPU then has no instances, and the message contains its address.
pub async fn partition(
    hands: &Hands,
    partition: &Partition,
    sink: &dyn Sink,
) -> Result<Partitioned, ChangeError> {
    let view = survey(hands).await?;
    if changed(partition, &view)?.is_empty() {
        return Ok(Partitioned::Done);
    }
    let mut stopped = Vec::new();
    let mut result = Ok(Partitioned::Done);
    for unit in &partition.stop_units {
        let stopping = match is_running(hands, unit).await {
            Ok(false) => continue,
            Ok(true) => {
                // Started again even if the stop times out, because the unit may stop later.
                stopped.push(unit.clone());
                stop(hands, unit, sink).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = stopping {
            result = Err(error);
            break;
        }
    }
    if result.is_ok() {
        result = change(hands, partition, &view, sink).await;
    }
    for unit in &stopped {
        if let Err(error) = start(hands, unit, sink).await {
            match result {
                Ok(_) => result = Err(error),
                Err(_) => note_failure(sink, &error),
            }
        }
    }
    result
}

/// Notes a failure that follows another one, which is the result.
fn note_failure(sink: &dyn Sink, error: &ChangeError) {
    sink.note(&format!("failed to {}", one_line(error)));
}

async fn is_running(hands: &Hands, unit: &str) -> Result<bool, ChangeError> {
    let state = hands.unit_state_if_any(unit).await?;
    Ok(state.is_some_and(|state| state.is_active()))
}

/// Starts a unit without waiting, because it may be ordered after the unit that runs this change at boot.
async fn start(hands: &Hands, unit: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
    let what = format!("start `{unit}` again");
    let cmd = systemctl::start_no_block(unit);
    hands.tool(&what, &cmd, sink).await.map(drop)
}

async fn stop(hands: &Hands, unit: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
    let what = format!("stop `{unit}`, which uses the GPUs");
    let cmd = systemctl::act("stop", unit);
    hands.tool(&what, &cmd, sink).await.map(drop)
}

async fn change(
    hands: &Hands,
    partition: &Partition,
    view: &NvmlView,
    sink: &dyn Sink,
) -> Result<Partitioned, ChangeError> {
    let gpus = changed(partition, view)?;
    for (gpu, wanted) in &gpus {
        placed(gpu, wanted)?;
    }
    let affected = affected(hands, partition, view, &gpus)?;
    await_unused(hands, &affected, &[]).await?;
    for (gpu, wanted) in &gpus {
        if is_split(gpu) {
            destroy(hands, wanted.gpu, sink).await?;
        }
        if is_split_next(gpu) != wanted.layout.enabled {
            let mode = if wanted.layout.enabled {
                "enable"
            } else {
                "disable"
            };
            let what = format!("{mode} MIG mode of GPU {}", wanted.gpu);
            let cmd = nvidia_smi::set_mig_mode(wanted.gpu, wanted.layout.enabled);
            hands.tool(&what, &cmd, sink).await.map_err(in_use)?;
        }
    }
    let view = survey(hands).await?;
    let mut after_reboot = Vec::new();
    let waiting = waiting(partition, &view)?;
    if let Some(first) = waiting.first() {
        let together = reset_together(partition, &waiting);
        if let Some(gpu) = without_reset(hands, &together)? {
            sink.note(&format!(
                "GPU {gpu} cannot be reset on this machine, so its MIG mode changes at the next boot"
            ));
            after_reboot = waiting;
        } else {
            reset(hands, &together, &view, sink).await?;
            if !self::waiting(partition, &survey(hands).await?)?.is_empty() {
                return Err(ChangeError::unreadable(
                    format!("change the MIG mode of GPU {first}"),
                    "the mode is still pending after the reset",
                )
                .advice("run `systemctl reboot`, then `gpu-bootstrap install`"));
            }
        }
    }
    let view = survey(hands).await?;
    // The mode of the other GPUs is in effect, so only their instances are missing.
    for wanted in &partition.gpus {
        if after_reboot.contains(&wanted.gpu) {
            continue;
        }
        let gpu = device(&view, wanted.gpu)?;
        if !wanted.layout.profiles().is_empty() && current(gpu)? != wanted.layout {
            create(hands, gpu, wanted, sink).await?;
        }
    }
    let view = survey(hands).await?;
    let mut wrong = changed(partition, &view)?.into_iter();
    match wrong.find(|(_, wanted)| !after_reboot.contains(&wanted.gpu)) {
        None if after_reboot.is_empty() => Ok(Partitioned::Done),
        None => Ok(Partitioned::AfterReboot(after_reboot)),
        Some((gpu, wanted)) => Err(ChangeError::unreadable(
            format!("partition GPU {}", wanted.gpu),
            format!(
                "its layout is `{}` instead of `{}`",
                current(gpu)?,
                wanted.layout
            ),
        )),
    }
}

/// Creates the instances of a GPU without instances. If this fails, the GPU has no instances.
async fn create(
    hands: &Hands,
    gpu: &NvmlDevice,
    wanted: &GpuLayout,
    sink: &dyn Sink,
) -> Result<(), ChangeError> {
    let placed = placed(gpu, wanted)?;
    // GPU instances with one compute instance are created together. The order matters if the driver chooses the positions.
    let has_one = |instance: &Placed| instance.0.compute.is_empty();
    for group in placed.chunk_by(|one, other| has_one(one) && has_one(other)) {
        let created = match group {
            [(instance, start)] if !instance.compute.is_empty() => {
                create_shared(hands, wanted, (instance, *start), sink).await
            }
            _ => {
                let profiles: Vec<_> = (group.iter())
                    .map(|(instance, start)| (instance.profile, *start))
                    .collect();
                let cmd = nvidia_smi::create_instances(wanted.gpu, &profiles);
                let created = hands.tool(&creation(wanted), &cmd, sink).await;
                created.map(drop).map_err(in_use)
            }
        };
        if let Err(error) = created {
            if let Err(second) = destroy(hands, wanted.gpu, sink).await {
                note_failure(sink, &second);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Creates a GPU instance with compute instances that are smaller.
async fn create_shared(
    hands: &Hands,
    wanted: &GpuLayout,
    (instance, start): (&GpuInstance, Option<u32>),
    sink: &dyn Sink,
) -> Result<(), ChangeError> {
    let (gpu, what) = (wanted.gpu, creation(wanted));
    let cmd = nvidia_smi::create_gpu_instance(gpu, instance.profile, start);
    let output = hands.tool(&what, &cmd, sink).await.map_err(in_use)?;
    let id = nvidia_smi::created_instance(&output).ok_or_else(|| {
        let why = "`nvidia-smi` does not report the ID of the new GPU instance";
        ChangeError::unreadable(what.clone(), why)
    })?;
    let cmd = nvidia_smi::create_compute_instances(gpu, id, &instance.compute);
    let created = hands.tool(&what, &cmd, sink).await;
    created.map(drop).map_err(in_use)
}

/// A GPU instance, and its first memory slice.
type Placed = (GpuInstance, Option<u32>);

fn creation(wanted: &GpuLayout) -> String {
    format!(
        "create MIG instances `{}` on GPU {}",
        wanted.layout, wanted.gpu
    )
}

/// Returns the GPU instances with their positions. If the driver does not report positions, it chooses them, and the largest
/// instances are created first.
fn placed(gpu: &NvmlDevice, wanted: &GpuLayout) -> Result<Vec<Placed>, ChangeError> {
    let instances = wanted.layout.gpu_instances();
    let support = gpu.mig_support.as_ref();
    let reported = Geometry::of(None, support);
    // The PCI ID corrects numbers of instances that the driver reports.
    let Some(geometry) = reported.and_then(|_| Geometry::of(gpu.pci_id, support)) else {
        return Ok(instances.into_iter().map(|one| (one, None)).collect());
    };
    let profiles: Vec<Profile> = instances.iter().map(|one| one.profile).collect();
    let placed = geometry.place(&profiles).map_err(|why| {
        ChangeError::blocked("mig-layout", format!("{}: {why}", creation(wanted)))
            .advice(format!("use a layout that fits: {}", geometry.fitting()))
    })?;
    let starts = placed.into_iter().map(|(_, start)| Some(start));
    Ok(instances.into_iter().zip(starts).collect())
}

/// Destroys all instances of a GPU in MIG mode.
async fn destroy(hands: &Hands, gpu: PciAddress, sink: &dyn Sink) -> Result<(), ChangeError> {
    let what = format!("destroy the MIG instances of GPU {gpu}");
    for cmd in [
        nvidia_smi::destroy_compute_instances(gpu),
        nvidia_smi::destroy_gpu_instances(gpu),
    ] {
        run_unless_none(hands, &what, &cmd, sink).await?;
    }
    Ok(())
}

async fn run_unless_none(
    hands: &Hands,
    what: &str,
    cmd: &Cmd,
    sink: &dyn Sink,
) -> Result<(), ChangeError> {
    let ended = |source: ExecError| in_use(ChangeError::tool(what, source));
    let output = hands.exec(cmd, sink).await.map_err(ended)?;
    if nvidia_smi::found_none(&output) {
        return Ok(());
    }
    output.success(cmd).map(drop).map_err(ended)
}

/// Resets GPUs together. Like NVIDIA's MIG manager, destroys their instances first.
async fn reset(
    hands: &Hands,
    gpus: &[PciAddress],
    view: &NvmlView,
    sink: &dyn Sink,
) -> Result<(), ChangeError> {
    let mut devices = Vec::new();
    for gpu in gpus {
        devices.push(device(view, *gpu)?);
    }
    await_unused(hands, &devices, &[]).await?;
    // Those of a GPU that keeps its mode are created again after the reset.
    for device in devices {
        if let Some(gpu) = device.pci_address
            && !device.mig_devices.is_empty()
        {
            destroy(hands, gpu, sink).await?;
        }
    }
    let what = "reset the GPUs, so that their MIG mode changes";
    let reset = hands.tool(what, &nvidia_smi::reset(gpus), sink).await;
    reset.map(drop).map_err(|error| {
        let is_drm_loaded = hands.host.files.exists("/sys/module/nvidia_drm".into());
        error.advice(match is_drm_loaded {
            // NVIDIA/mig-parted#181.
            Ok(true) => {
                "the kernel module `nvidia_drm` may use the GPUs: run `systemctl reboot`, which also changes the mode; then \
                 run `gpu-bootstrap install`"
            }
            _ => "run `systemctl reboot`, which also changes the mode; then run `gpu-bootstrap install`",
        })
    })
}

/// Adds a remedy to the error of a command that fails if a program uses the GPU.
fn in_use(error: ChangeError) -> ChangeError {
    error.advice(
        "stop all programs that use the GPU (`fuser --verbose /dev/nvidia*`), then run `gpu-bootstrap install`",
    )
}

async fn survey(hands: &Hands) -> Result<NvmlView, ChangeError> {
    match hands.host.gpu.survey().await {
        Nvml::Ready(view) => Ok(view),
        other => Err(ChangeError::unreadable(
            "read the MIG layout of the GPUs",
            format!("NVML does not respond: {}", state_of(&other)),
        )
        .advice("run `gpu-bootstrap probe`")),
    }
}

fn state_of(nvml: &Nvml) -> String {
    match nvml {
        Nvml::Ready(_) => "ready".to_owned(),
        Nvml::NotLoadable { why } | Nvml::NotQueried { why } | Nvml::Failed { why, .. } => {
            why.clone()
        }
        Nvml::DriverNotLoaded => "the driver is not loaded".to_owned(),
        Nvml::VersionMismatch => "driver/library version mismatch".to_owned(),
        Nvml::NoDevices => "no GPU responds".to_owned(),
        Nvml::Hung { after_seconds } => format!("timeout after {after_seconds} s"),
    }
}

fn device(view: &NvmlView, gpu: PciAddress) -> Result<&NvmlDevice, ChangeError> {
    let found = (view.devices.iter()).find(|device| device.pci_address == Some(gpu));
    found.ok_or_else(|| {
        ChangeError::blocked(
            "gpu-missing",
            format!("partition GPU {gpu}: NVML does not list it"),
        )
        .advice("run `gpu-bootstrap install`, which computes the layout of the current GPUs")
    })
}

fn current(gpu: &NvmlDevice) -> Result<crate::mig::Layout, ChangeError> {
    layout_of(gpu).map_err(|what| ChangeError::unreadable("read the MIG layout", what))
}

/// Returns the GPUs without their layout.
fn changed<'v>(
    partition: &'v Partition,
    view: &'v NvmlView,
) -> Result<Vec<(&'v NvmlDevice, &'v GpuLayout)>, ChangeError> {
    let mut found = Vec::new();
    for wanted in &partition.gpus {
        let gpu = device(view, wanted.gpu)?;
        if current(gpu)? != wanted.layout || is_split_next(gpu) != wanted.layout.enabled {
            found.push((gpu, wanted));
        }
    }
    Ok(found)
}

/// Returns the GPUs whose mode is set but not in effect.
fn waiting(partition: &Partition, view: &NvmlView) -> Result<Vec<PciAddress>, ChangeError> {
    let mut found = Vec::new();
    for wanted in &partition.gpus {
        if is_split(device(view, wanted.gpu)?) != wanted.layout.enabled {
            found.push(wanted.gpu);
        }
    }
    Ok(found)
}

/// Returns the GPUs that are reset together so that the mode of these GPUs changes.
fn reset_together(partition: &Partition, waiting: &[PciAddress]) -> Vec<PciAddress> {
    let mut together = partition.reset_with.clone();
    for gpu in waiting {
        if !together.contains(gpu) {
            together.push(*gpu);
        }
    }
    together
}

/// Returns the first GPU that this machine cannot reset.
fn without_reset(hands: &Hands, gpus: &[PciAddress]) -> Result<Option<PciAddress>, ChangeError> {
    for gpu in gpus {
        if !hands.host.files.exists(&reset_file(*gpu))? {
            return Ok(Some(*gpu));
        }
    }
    Ok(None)
}

/// Returns the GPUs that the change affects: those without their layout, and those that are reset together with them. Programs on
/// the latter would otherwise stop the change after the instances were destroyed.
fn affected<'v>(
    hands: &Hands,
    partition: &Partition,
    view: &'v NvmlView,
    changed: &[(&'v NvmlDevice, &GpuLayout)],
) -> Result<Vec<&'v NvmlDevice>, ChangeError> {
    let mut found: Vec<&NvmlDevice> = changed.iter().map(|(gpu, _)| *gpu).collect();
    let resets: Vec<PciAddress> = (changed.iter())
        .filter(|(gpu, wanted)| is_split(gpu) != wanted.layout.enabled && needs_reset(gpu))
        .map(|(_, wanted)| wanted.gpu)
        .collect();
    let together = reset_together(partition, &resets);
    if !resets.is_empty() && without_reset(hands, &together)?.is_none() {
        for gpu in &partition.reset_with {
            found.push(device(view, *gpu)?);
        }
    }
    Ok(found)
}

/// Waits until no program uses the GPUs, except units that may be stopped.
async fn await_unused(
    hands: &Hands,
    gpus: &[&NvmlDevice],
    stop_units: &[String],
) -> Result<(), ChangeError> {
    let clock = &hands.host.clock;
    let started = clock.monotonic();
    loop {
        let mut found = clients_of(hands, gpus)?;
        found.retain(|client| {
            let unit = client.unit.as_ref();
            !unit.is_some_and(|unit| stop_units.contains(unit))
        });
        let waited = clock.monotonic().saturating_sub(started);
        if found.is_empty() || waited >= USE_LIMIT {
            return refuse(&found);
        }
        let what = "wait until no program uses the GPUs";
        hands.pause_for(USE_POLL, what).await?;
    }
}

/// Returns the programs that prevent a change of these GPUs.
fn clients_of(hands: &Hands, gpus: &[&NvmlDevice]) -> Result<Vec<GpuClient>, FilesError> {
    let minors: Vec<u32> = gpus.iter().filter_map(|gpu| gpu.minor).collect();
    let mut found = gpu_clients(&hands.host, ClientsOf::Gpus(&minors))?;
    found.retain(|client| client.kind != ClientKind::DriverDaemon);
    Ok(found)
}

/// The remedy for pods. A drain keeps the pods of DaemonSets: without the label `gpu.present`, the DaemonSets of `manifests` do not
/// run on the node, and with `gpu.deploy.operands=false` those of the GPU Operator do not (NVIDIA/gpu-operator v26.7.0,
/// `controllers/state_manager.go`). `install` sets `gpu.present` again.
const EMPTY_NODE: &str = "run `kubectl drain NODE --ignore-daemonsets`, and to stop the device plugin and the DCGM exporter, `kubectl \
                          label node NODE nvidia.com/gpu.present-` (of the GPU Operator: `kubectl label node NODE --overwrite \
                          nvidia.com/gpu.deploy.operands=false`)";

/// The end of the remedy for pods. Without it, the node keeps offering no GPUs.
const REFILL_NODE: &str = "then run `gpu-bootstrap install`, for the GPU Operator remove this label (`kubectl label node NODE \
                           nvidia.com/gpu.deploy.operands-`), and run `kubectl uncordon NODE`";

/// Returns an error that lists the programs. They are not stopped without consent.
fn refuse(found: &[GpuClient]) -> Result<(), ChangeError> {
    if found.is_empty() {
        return Ok(());
    }
    let units: Vec<String> = (found.iter().filter_map(|client| client.unit.as_ref()))
        .map(shell_word)
        .collect();
    let mut steps = Vec::new();
    let has_pods = found.iter().any(|client| client.is_in_pod);
    if has_pods {
        steps.push(EMPTY_NODE.to_owned());
    }
    if !units.is_empty() {
        steps.push(format!(
            "run `systemctl stop {}`, or add these units to `mig.stop-units`",
            units.join(" ")
        ));
    }
    if found
        .iter()
        .any(|client| client.unit.is_none() && !client.is_in_pod)
    {
        steps.push("stop the programs that are not in a pod or unit".to_owned());
    }
    let end = match has_pods {
        true => REFILL_NODE,
        false => "then run `gpu-bootstrap install`",
    };
    steps.push(end.to_owned());
    let hint = steps.join("; ");
    let what = format!(
        "partition the GPUs: {}; the MIG layout of a GPU in use cannot be changed",
        in_use_by(found)
    );
    Err(ChangeError::blocked("gpu-in-use", what).advice(hint))
}
