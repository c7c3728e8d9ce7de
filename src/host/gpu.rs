//! The NVML and CUDA interface. Each NVML failure is a separate state, such as a missing library, a
//! version mismatch, no devices, or a hung call.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{cuda::CudaView, health::GpuHealth};
use crate::model::pci::{PciAddress, PciId};

/// The NVML result, or the reason there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "state",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Nvml {
    /// NVML responds.
    Ready(NvmlView),
    /// `libnvidia-ml.so.1` cannot be opened.
    NotLoadable {
        /// The message of the dynamic loader.
        why: String,
    },
    /// The library is installed, but the kernel module is not loaded.
    DriverNotLoaded,
    /// Library and kernel module have different versions, so a reboot is required.
    VersionMismatch,
    /// Library and module exist, but no GPU responds.
    NoDevices,
    /// NVML timed out, and its process was killed.
    Hung {
        /// The timeout in seconds.
        after_seconds: u64,
    },
    /// NVML was not queried, for example because `--root` never executes commands.
    NotQueried {
        /// The reason.
        why: String,
    },
    /// Any other error.
    Failed {
        /// The NVML return code, if any.
        code: Option<i32>,
        /// A description.
        why: String,
    },
}

/// The NVML inventory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvmlView {
    /// The driver version.
    pub driver_version: String,
    /// The latest CUDA version that the driver supports, such as `12.2`.
    pub cuda_version: Option<String>,
    /// The GPUs, by index.
    pub devices: Vec<NvmlDevice>,
}

/// One GPU in NVML. Unreported values are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvmlDevice {
    /// The NVML index.
    pub index: u32,
    /// The UUID (`GPU-…`).
    pub uuid: Option<String>,
    /// The marketing name.
    pub name: Option<String>,
    pub pci_address: Option<PciAddress>,
    pub pci_id: Option<PciId>,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// The compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    pub persistence: Option<bool>,
    /// How many processes may use the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<ComputeMode>,
    /// Whether MIG is enabled.
    pub mig: Option<bool>,
    /// The MIG devices. Empty unless MIG is enabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_devices: Vec<MigDevice>,
    /// The pending MIG mode and the profiles, or `None` if the GPU does not support MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_support: Option<MigSupport>,
    /// The fabric registration, or `None` if the GPU or its driver does not support it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// The health, or `None` if the GPU failed before it was queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<GpuHealth>,
    /// The reason this GPU does not respond, if it does not.
    pub error: Option<String>,
}

impl NvmlDevice {
    /// Returns the cluster and clique IDs, if the GPU has joined a fabric with a cluster ID.
    pub fn clique(&self) -> Option<(&str, u32)> {
        let fabric = self.fabric.as_ref().filter(|fabric| fabric.has_joined())?;
        Some((fabric.cluster.as_deref()?, fabric.clique))
    }
}

/// `nvmlComputeMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Several processes.
    Default,
    /// One thread. Drivers no longer support it.
    ExclusiveThread,
    /// No process.
    Prohibited,
    /// One process. With MPS, this is the MPS server, which several programs use.
    ExclusiveProcess,
}

/// The fabric registration of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuFabric {
    /// The progress.
    pub state: FabricProgress,
    /// The NVML return code of the registration. 0 is success.
    pub status: u32,
    /// The UUID of the GPU cluster that is connected by NVLink, possibly across machines. `None` if
    /// the fabric has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The clique ID within the cluster. GPUs of a clique can access each other's memory.
    #[serde(default)]
    pub clique: u32,
    /// The health of the GPU's fabric link, if the driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<FabricHealth>,
}

impl GpuFabric {
    /// Whether the registration has finished successfully.
    pub fn has_joined(&self) -> bool {
        self.state == FabricProgress::Completed && self.status == 0
    }
}

/// The summary in `nvmlGpuFabricInfo_v3_t`, without "not supported".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricHealth {
    Healthy,
    Unhealthy,
    /// The link does not have its full bandwidth.
    LimitedCapacity,
}

/// `nvmlGpuFabricState_t`, without "not supported".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricProgress {
    /// The GPU waits for the fabric manager.
    NotStarted,
    /// The registration is in progress.
    InProgress,
    /// The registration has finished, successfully or not.
    Completed,
}

/// A MIG device: a partition of a GPU that programs use instead of the GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigDevice {
    /// The index on the GPU.
    pub index: u32,
    /// The UUID (`MIG-…`).
    pub uuid: Option<String>,
    /// The profile, such as `1g.10gb` or `1g.10gb+me`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The resources of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<MigShare>,
}

/// The pending mode and the profiles of a GPU that supports MIG.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigSupport {
    /// Whether MIG is enabled after the next reset of the GPU.
    pub pending: bool,
    /// The profiles of GPU instances. Empty if the driver does not report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<MigProfile>,
}

/// A profile of GPU instances (`nvmlGpuInstanceProfileInfo_t`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigProfile {
    /// The name, such as `1g.10gb+me`.
    pub name: String,
    /// The maximum number of instances. NVML reports a wrong number on A30.
    pub count: u32,
    /// The possible placements. Empty if the driver does not report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<MigPlacement>,
}

/// The memory slices that an instance occupies (`nvmlGpuInstancePlacement_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigPlacement {
    /// The first slice.
    pub start: u32,
    /// The number of slices.
    pub size: u32,
}

/// The resources of a MIG device (`nvmlDeviceAttributes_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigShare {
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// GPU instance slices.
    pub gpu_slices: u32,
    /// Compute instance slices.
    pub compute_slices: u32,
    /// Copy engines. Like all following fields, they are shared with other compute instances of the
    /// GPU instance.
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// Returns a UUID without the prefix of NVML, as in CUDA.
pub fn bare_uuid(uuid: &str) -> &str {
    uuid.trim_start_matches("GPU-").trim_start_matches("MIG-")
}

/// Calls the driver libraries.
#[async_trait]
pub trait Gpu: Send + Sync {
    /// Returns the NVML inventory, or the state that prevents it. Has a timeout and never fails.
    async fn survey(&self) -> Nvml;

    /// Runs a CUDA computation on the devices with these UUIDs (`GPU-…`, `MIG-…`), each in a
    /// separate process. Finishes `within` this time. Failures are returned as data.
    async fn compute(&self, devices: &[String], within: Duration) -> CudaView;
}
