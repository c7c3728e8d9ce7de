//! Properties of a machine, read once at the start of a run. A run does not change them, except for
//! kernels (see [`Kernel`]) and free disk space.
//!
//! [`gather()`] reads everything. There is one file per area, with pure parsers and little I/O.
//! Unreadable values are null and have an entry in [`Facts::unknown`]. Names and architectures of
//! GPUs come from the matrix ([`GpuFact::described`]). Data that can change during a run is in `state`.

mod boot;
mod cloud;
pub(crate) mod detection;
mod firmware;
mod gather;
pub(crate) mod kernel;
mod machine;
mod matrix;
mod metadata;
mod names;
mod os;
pub(crate) mod pci;
pub(crate) mod reader;
pub mod switches;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::model::{
    capability::ComputeCapability,
    gpu::{Architecture, ArchitectureEvidence, ChipName, GpuIdentity, SupportedFlavors},
    pci::{PciAddress, PciClass, PciId},
    version::KernelVersion,
};

pub use gather::gather;
#[cfg(test)]
pub(crate) use metadata::fake;
pub use metadata::{Service, complete};

/// The schema version of the `facts` document.
pub const SCHEMA: u32 = 1;

/// Permitted operations for gathering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Programs and NVML may be called. `false` with `--root`, where only files are read.
    pub executes: bool,
}

/// All detected properties. Unreadable values are `None` and listed in [`Facts::unknown`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: u32,
    /// From `/etc/os-release`.
    pub os: Option<Os>,
    /// The kernel, running and at the next boot.
    pub kernel: Kernel,
    /// UEFI Secure Boot.
    pub secure_boot: SecureBoot,
    /// Kernel lockdown: `none`, `integrity`, `confidentiality`.
    pub lockdown: Option<String>,
    /// As in `systemd-detect-virt`, for example `kvm`, `amazon`, `systemd-nspawn`. `none` on bare
    /// metal.
    pub virtualization: Option<String>,
    /// The machine model reported by the firmware, for example `ProLiant DL380a Gen11`,
    /// `p5.48xlarge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The cloud and the instance.
    pub cloud: Cloud,
    /// The name of process 1, for example `systemd`. In an image, the target of `/sbin/init`.
    pub init: Option<String>,
    /// Changes at every boot.
    pub boot_id: Option<String>,
    /// The instance ID of the cloud or the DMI UUID, which are new for every clone. If neither
    /// exists, `machine-id:` followed by the machine ID, which clones may share.
    pub instance_id: Option<String>,
    /// Total memory.
    pub memory_bytes: Option<u64>,
    /// Relevant filesystems, for example `/`, `/boot`, `/var`.
    pub disks: Vec<Disk>,
    /// NVIDIA GPUs on PCI, by address.
    pub gpus: Vec<GpuFact>,
    /// Virtual functions of these GPUs (SR-IOV). They are for virtual machines and do not count as
    /// GPUs of this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub virtual_functions: Vec<PciFact>,
    /// Display adapters and accelerators of other vendors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign_gpus: Vec<PciFact>,
    /// NVSwitches on PCI.
    pub nvswitches: Vec<PciFact>,
    /// Whether a network device manages NVLink switches that are not on PCI, as on HGX B200. `None`
    /// if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_management: Option<bool>,
    /// NVIDIA and Mellanox network devices on PCI.
    pub network_devices: Vec<PciFact>,
    /// Values that could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

/// The operating system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Os {
    /// For example `debian`, `ubuntu`, `almalinux`.
    pub id: String,
    /// For example `12`, `24.04`, `9.6`.
    pub version_id: Option<String>,
    /// Related distributions, for example `rhel`, `fedora`, nearest first.
    pub id_like: Vec<String>,
    /// For example `bookworm`, `noble`.
    pub version_codename: Option<String>,
    /// The human-readable name.
    pub pretty_name: Option<String>,
}

/// The kernel. The installed kernels and the kernel of the next boot change if the run installs a
/// kernel package. They are facts anyway, because the desired state is resolved from them at the start
/// of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// The running kernel.
    pub running: Option<KernelVersion>,
    /// The kernel of the next boot, as of the start of the run.
    pub next_boot: Option<KernelVersion>,
    /// All installed kernels (directories in `/lib/modules` with a kernel image), as of the start
    /// of the run.
    pub installed: Vec<KernelVersion>,
    /// For example `x86_64`, `aarch64`.
    pub arch: Option<String>,
    /// The compiler that built the running kernel, such as `gcc-12`.
    pub compiler: Option<String>,
    /// Whether systemd uses cgroup v1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cgroup_v1: bool,
}

impl Kernel {
    /// The running and the next kernel, without duplicates.
    pub fn bootable(&self) -> Vec<String> {
        let mut kernels: Vec<String> = [&self.running, &self.next_boot]
            .into_iter()
            .flatten()
            .map(ToString::to_string)
            .collect();
        kernels.dedup();
        kernels
    }
}

/// UEFI Secure Boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecureBoot {
    /// Unsigned modules are rejected.
    Enabled,
    /// UEFI without enforcement.
    Disabled,
    /// No UEFI, or UEFI without Secure Boot.
    Unsupported,
    /// Not readable.
    Unknown,
}

/// The cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cloud {
    /// For example `aws`, `gcp`, `azure`. `None` outside a known cloud.
    pub provider: Option<String>,
    /// The instance ID of the cloud, such as `i-0929128ff2f73a2f1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// For example `p5.48xlarge`.
    pub instance_type: Option<String>,
    /// `on-demand` or `spot`.
    pub lifecycle: Option<String>,
    /// For example `eu-central-1`, `westeurope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// For example `eu-central-1a`, `europe-west4-b`. On Azure `1`, `2` or `3`, and absent without
    /// a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disk {
    /// The checked path.
    pub mount: Utf8PathBuf,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// A GPU on PCI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuFact {
    pub pci_address: PciAddress,
    pub pci_id: PciId,
    /// The PCI subsystem ID, which identifies the board if `pci_id` is ambiguous.
    pub subsystem_id: Option<PciId>,
    /// VGA controller or 3D controller. Some boards can be switched between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<PciClass>,
    /// The name from the matrix, otherwise from `pci.ids`.
    pub name: Option<String>,
    /// The name in `pci.ids`, for example `GH100 [H100 SXM5 80GB]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip_name: Option<ChipName>,
    /// For example `hopper`.
    pub architecture: Option<Architecture>,
    /// The source of the architecture, or `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture_evidence: Option<ArchitectureEvidence>,
    /// For example `9.0`.
    pub compute_capability: Option<ComputeCapability>,
    /// The supported kernel module flavors.
    pub module_flavor: Option<SupportedFlavors>,
    /// A slice of a GPU, assigned by a hypervisor. Requires the GRID driver.
    pub vgpu: bool,
    /// The NUMA node, or `None` if the firmware does not report it.
    pub numa_node: Option<u32>,
}

impl GpuFact {
    /// The identity of the GPU in the matrix.
    pub fn identity(&self) -> GpuIdentity {
        GpuIdentity {
            pci_id: self.pci_id,
            subsystem_id: self.subsystem_id,
            chip_name: self.chip_name.clone(),
        }
    }
}

/// A PCI function other than those in [`Facts::gpus`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PciFact {
    pub pci_address: PciAddress,
    pub pci_id: PciId,
    /// The human-readable name.
    pub name: Option<String>,
}

/// A value that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The dotted key in this document.
    pub fact: String,
    /// The reason.
    pub why: String,
}
