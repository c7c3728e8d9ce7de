//! NVML as states with a name: it may be absent, of another version, empty or hung. And what asks it.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{cuda::CudaView, health::GpuHealth};
use crate::model::pci::{PciAddress, PciId};

/// The view of NVML, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "state",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Nvml {
    /// It answers.
    Ready(NvmlView),
    /// `libnvidia-ml.so.1` cannot be opened.
    NotLoadable {
        /// The message of the dynamic loader.
        why: String,
    },
    /// The library is there, the kernel module is not.
    DriverNotLoaded,
    /// Library and kernel module are of different versions: a reboot is due.
    VersionMismatch,
    /// Both are there and no GPU answers.
    NoDevices,
    /// It did not answer in time and its process was ended.
    Hung {
        /// Seconds waited.
        after_seconds: u64,
    },
    /// It is not queried: with `--root` nothing is executed.
    NotAsked {
        /// Why not.
        why: String,
    },
    /// Any other error.
    Failed {
        /// The NVML return code, where there was one.
        code: Option<i32>,
        /// In words.
        why: String,
    },
}

/// An inventory by NVML.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvmlView {
    /// The driver version.
    pub driver_version: String,
    /// The newest CUDA version that the driver serves, as `12.2`.
    pub cuda_version: Option<String>,
    /// The GPUs, by index.
    pub devices: Vec<NvmlDevice>,
}

/// One GPU by NVML; a value that it does not report is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvmlDevice {
    /// NVML index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// Marketing name.
    pub name: Option<String>,
    /// Its PCI address.
    pub pci_address: Option<PciAddress>,
    /// Its PCI id.
    pub pci_id: Option<PciId>,
    /// Number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// As `9.0`.
    pub compute_capability: Option<String>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// MIG enabled.
    pub mig: Option<bool>,
    /// Its MIG devices; none unless MIG is enabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_devices: Vec<MigDevice>,
    /// Its place in the fabric of switches; `None` where the GPU or its driver knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// Its health; `None` if it did not answer before this was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<GpuHealth>,
    /// Why this GPU does not answer, if it does not.
    pub error: Option<String>,
}

/// How far a GPU is with joining the fabric of its switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuFabric {
    /// The progress.
    pub state: FabricProgress,
    /// The NVML return code with which joining ended; 0 is success.
    pub status: u32,
    /// The UUID of the cluster of GPUs that NVLink joins, also across machines; `None` where the fabric
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The number of the clique within the cluster: its GPUs reach each other's memory.
    #[serde(default)]
    pub clique: u32,
    /// The health of its way through the fabric, where the driver tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<FabricHealth>,
}

/// The summary of `nvmlGpuFabricInfo_v3_t`, without "not supported".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricHealth {
    /// Whole.
    Healthy,
    /// Broken.
    Unhealthy,
    /// It works at less than its full bandwidth.
    LimitedCapacity,
}

/// `nvmlGpuFabricState_t`, without "not supported".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricProgress {
    /// The GPU waits for the fabric manager.
    NotStarted,
    /// It is being joined.
    InProgress,
    /// It was joined, with success or not.
    Completed,
}

/// One MIG device: a part of a GPU that programs use in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigDevice {
    /// Its index on the GPU.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: Option<String>,
    /// The profile, as `1g.10gb` or `1g.10gb+me`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How much of the GPU it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<MigShare>,
}

/// What a MIG device has of its GPU (`nvmlDeviceAttributes_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigShare {
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Slices of the GPU instance.
    pub gpu_slices: u32,
    /// Slices of the compute instance.
    pub compute_slices: u32,
    /// Copy engines, shared with other compute instances of the GPU instance, as all that follow.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// Asks the driver's libraries.
#[async_trait]
pub trait Gpu: Send + Sync {
    /// NVML's inventory now, or the state that prevents one. Bounded in time; never fails.
    async fn survey(&self) -> Nvml;

    /// Computes through CUDA on the devices with these UUIDs (`GPU-…`, `MIG-…`), each in a process of
    /// its own. It ends `within` this time; a fault is data.
    async fn compute(&self, devices: &[String], within: Duration) -> CudaView;
}
