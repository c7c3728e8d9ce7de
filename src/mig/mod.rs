//! MIG: the layouts of GPUs, the devices that programs can use, and the resource names under which the device plugin offers
//! them. `host/real/gpu/mig.rs` reads MIG devices and profiles from NVML, `steps/mig.rs` compares them with the configured layout,
//! and `change/mig.rs` changes them.

mod file;
mod geometry;
mod layout;
mod request;

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use geometry::{Geometry, Placed};
pub use layout::{GpuInstance, GpuLayout, Layout, LayoutError, ModelLayout, NamedLayout, Profile};
pub use request::{LayoutRequest, MigGpu, NoLayout};

use crate::{
    compat::capability::ComputeCapability,
    host::{MigDevice, MigShare, NvmlDevice, NvmlView},
    model::{fault::Fault, pci::PciAddress},
    tools::kubernetes::kubectl::{GPUS, MIG_DEVICES},
};

/// How MIG devices are exposed to pods, and labeled. Must match `MIG_STRATEGY` of the device plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MigStrategy {
    /// MIG devices have no labels.
    #[default]
    None,
    /// All MIG devices have one profile, and are exposed as whole GPUs: `nvidia.com/gpu`.
    Single,
    /// Each profile is a separate resource: `nvidia.com/mig-1g.10gb`.
    Mixed,
}

/// The label with the strategy.
pub const STRATEGY: &str = "nvidia.com/mig.strategy";

/// The label that shows whether a GPU of the node supports MIG.
pub const CAPABLE: &str = "nvidia.com/mig.capable";

/// Whether MIG mode is enabled. The GPU is then only usable through its MIG devices.
pub fn is_split(gpu: &NvmlDevice) -> bool {
    gpu.mig == Some(true)
}

/// Whether a GPU supports MIG. Other GPUs have no MIG mode.
pub fn is_capable(gpu: &NvmlDevice) -> bool {
    gpu.mig.is_some()
}

/// Whether MIG mode is enabled after the next reset or reboot. A driver that does not report this changes the mode at once.
pub fn is_split_next(gpu: &NvmlDevice) -> bool {
    let support = gpu.mig_support.as_ref();
    support.map_or_else(|| is_split(gpu), |support| support.pending)
}

/// The file that exists if the GPU of a machine can be reset. In virtual machines, the hypervisor may not allow it. Source:
/// NVIDIA/mig-parted, deployments/systemd/service.sh.
pub fn reset_file(gpu: PciAddress) -> Utf8PathBuf {
    format!("/sys/bus/pci/devices/{gpu}/reset").into()
}

/// The first compute capability whose MIG mode changes without a reset: Hopper. Source: the MIG user guide.
const WITHOUT_RESET: u32 = 9;

/// Whether a change of the MIG mode needs a reset of the GPU. `true` if its compute capability is unknown.
pub fn needs_reset(gpu: &NvmlDevice) -> bool {
    let capability = gpu.compute_capability.as_deref();
    may_need_reset(capability.and_then(|text| text.parse().ok()))
}

/// The same for a GPU of which only the model is known.
pub fn may_need_reset(capability: Option<ComputeCapability>) -> bool {
    capability.is_none_or(|capability| capability.major < WITHOUT_RESET)
}

/// Returns the current layout of a GPU.
///
/// # Errors
/// If NVML does not report the profile of a MIG device.
pub fn layout_of(gpu: &NvmlDevice) -> Result<Layout, String> {
    if !is_split(gpu) {
        return Ok(Layout::default());
    }
    let profiles: Result<Vec<Profile>, String> = (gpu.mig_devices.iter())
        .map(|part| {
            let profile = part.profile.as_deref().and_then(|name| name.parse().ok());
            profile.ok_or_else(|| unknown_profile(part, gpu))
        })
        .collect();
    profiles.map(Layout::with)
}

fn unknown_profile(part: &MigDevice, gpu: &NvmlDevice) -> String {
    format!(
        "the profile of MIG device {} of GPU {}",
        part.index, gpu.index
    )
}

/// Returns the reason that the device plugin does not start on a node with these MIG devices: with the strategy `mixed`, it has no
/// resource for a compute instance that is smaller than its GPU instance. Source: NVIDIA/k8s-device-plugin v0.20.0,
/// `internal/rm/rm.go`, `AddDefaultResourcesToConfig`, and `internal/rm/device_map.go`, `buildMigDeviceMap`.
pub fn plugin_fault<'p>(
    strategy: MigStrategy,
    profiles: impl IntoIterator<Item = &'p Profile>,
) -> Option<Fault> {
    if strategy != MigStrategy::Mixed {
        return None;
    }
    let mut profiles = profiles.into_iter();
    let profile = profiles.find(|profile| profile.compute.is_some())?;
    Some(Fault::new(
        format!(
            "with `cluster.mig-strategy = \"mixed\"`, the device plugin does not start on a node with `{profile}`, because this compute \
             instance is smaller than its GPU instance"
        ),
        format!(
            "use `{}` in the MIG layout, or set `cluster.mig-strategy = \"single\"`, also for the device plugin, with one profile on \
             all GPUs",
            profile.of_gpu_instance()
        ),
    ))
}

/// A GPU or one of its MIG devices, with its possible names in a CDI specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// `0` for a GPU, `0:1` for a MIG device.
    pub index: String,
    pub uuid: Option<String>,
}

impl Visible {
    /// Whether it is a MIG device.
    pub fn is_part(&self) -> bool {
        self.index.contains(':')
    }

    pub fn is_called(&self, name: &str) -> bool {
        self.index == name || self.uuid.as_deref() == Some(name)
    }
}

/// Returns the usable devices. A GPU in MIG mode is only usable through its MIG devices.
pub fn visible(view: &NvmlView) -> Vec<Visible> {
    let mut found = Vec::new();
    for gpu in &view.devices {
        if is_split(gpu) {
            found.extend(gpu.mig_devices.iter().map(|part| Visible {
                index: format!("{}:{}", gpu.index, part.index),
                uuid: part.uuid.clone(),
            }));
        } else {
            found.push(Visible {
                index: gpu.index.to_string(),
                uuid: gpu.uuid.clone(),
            });
        }
    }
    found
}

/// Returns the value of [`STRATEGY`]. `None` if the node has no such label.
pub const fn name(strategy: MigStrategy) -> Option<&'static str> {
    match strategy {
        MigStrategy::None => None,
        MigStrategy::Single => Some("single"),
        MigStrategy::Mixed => Some("mixed"),
    }
}

/// Returns the devices of a machine that does not exist yet: this number of GPUs, some of which have these layouts.
pub fn planned(layouts: &[GpuLayout], gpus: usize) -> Vec<NvmlDevice> {
    let gpu = |(index, at): (u32, usize)| {
        let layout = layouts.get(at).map(|one| &one.layout);
        let profiles = layout.map_or(&[][..], Layout::profiles);
        NvmlDevice {
            index,
            mig: layout.map(|layout| layout.enabled),
            mig_devices: (0..)
                .zip(profiles)
                .map(|(index, profile)| MigDevice {
                    index,
                    uuid: None,
                    profile: Some(profile.to_string()),
                    share: Some(MigShare::default()),
                })
                .collect(),
            ..NvmlDevice::default()
        }
    };
    (0..).zip(0..gpus).map(gpu).collect()
}

/// A resource of MIG devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate<'n> {
    /// Its name.
    pub resource: String,
    /// The GPU of the first device.
    pub gpu: &'n NvmlDevice,
    /// The profile and the share of each device. In the profile, `+` is replaced by a dot, because label keys must not contain
    /// it. `None` if the device plugin rejects this partitioning, so no resource is offered to pods.
    pub part: Option<(String, MigShare)>,
    /// The number of devices.
    pub count: usize,
}

/// Returns the resources with MIG devices. If two have the same name, the last one counts.
///
/// # Errors
/// If NVML does not report the profile of a MIG device.
pub fn offers(strategy: MigStrategy, devices: &[NvmlDevice]) -> Result<Vec<Candidate<'_>>, String> {
    match strategy {
        MigStrategy::None => Ok(Vec::new()),
        MigStrategy::Single => Ok(single(devices)?.into_iter().collect()),
        MigStrategy::Mixed => mixed(devices),
    }
}

/// A MIG device, and its GPU.
struct Part<'n> {
    gpu: &'n NvmlDevice,
    profile: String,
    share: MigShare,
}

impl<'n> Part<'n> {
    fn offer(&self, resource: String, count: usize) -> Candidate<'n> {
        Candidate {
            resource,
            gpu: self.gpu,
            part: Some((self.profile.clone(), self.share)),
            count,
        }
    }
}

/// All MIG devices in NVML order.
fn parts(devices: &[NvmlDevice]) -> Result<Vec<Part<'_>>, String> {
    let split = devices.iter().filter(|gpu| is_split(gpu));
    split
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |part| (gpu, part)))
        .map(|(gpu, part): (&NvmlDevice, &MigDevice)| {
            let told = part.profile.as_deref().zip(part.share);
            let (profile, share) = told.ok_or_else(|| unknown_profile(part, gpu))?;
            Ok(Part {
                gpu,
                profile: profile.replace('+', "."),
                share,
            })
        })
        .collect()
}

/// Source: NVIDIA/k8s-device-plugin, mig-strategy.go, `newMigStrategySingleLabeler`.
fn single(devices: &[NvmlDevice]) -> Result<Option<Candidate<'_>>, String> {
    let Some(first) = devices.iter().find(|gpu| is_split(gpu)) else {
        return Ok(None);
    };
    let parts = parts(devices)?;
    let profiles: BTreeSet<&str> = parts.iter().map(|part| part.profile.as_str()).collect();
    let uniform = profiles.len() == 1
        && (devices.iter()).all(|gpu| is_split(gpu) && !gpu.mig_devices.is_empty());
    Ok(Some(match parts.first() {
        Some(part) if uniform => part.offer(GPUS.to_owned(), parts.len()),
        _ => Candidate {
            resource: GPUS.to_owned(),
            gpu: first,
            part: None,
            count: 0,
        },
    }))
}

/// Source: NVIDIA/k8s-device-plugin, mig-strategy.go, `newMigStrategyMixedLabeler`. Partitioned GPUs without MIG devices are
/// skipped.
fn mixed(devices: &[NvmlDevice]) -> Result<Vec<Candidate<'_>>, String> {
    let parts = parts(devices)?;
    // All devices of a profile have the same resource name, and the last entry counts. The order is reversed, so that the
    // first device provides the values.
    let offers = parts.iter().rev().map(|part| {
        let same = parts.iter().filter(|other| other.profile == part.profile);
        part.offer(format!("{MIG_DEVICES}{}", part.profile), same.count())
    });
    Ok(offers.collect())
}
