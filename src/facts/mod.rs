//! What this program cannot change about a machine, read once per run.
//!
//! [`gather()`] reads everything, one file of this folder per area; each has pure parsers and as
//! little I/O as it needs. What cannot be read is null and has a line in [`Facts::unknown`]. Names
//! and architectures of GPUs come from the matrix, through [`DeviceCatalog`]. What can change while a run goes on is in `state`.

mod boot;
mod catalog;
mod cloud;
pub(crate) mod detection;
mod firmware;
mod gather;
pub(crate) mod kernel;
mod machine;
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
    gpu::{Architecture, ArchitectureEvidence, ChipName, GpuIdentity, SupportedFlavours},
    pci::{PciAddress, PciClass, PciId},
    version::KernelVersion,
};

pub use catalog::{DeviceCatalog, GpuDescription};
pub use gather::gather;
#[cfg(test)]
pub(crate) use metadata::standin;
pub use metadata::{Service, complete};

/// The schema version of the document of `facts`.
pub const SCHEMA: u32 = 1;

/// What gathering may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Programs and NVML may be asked. They may not with `--root`, where only files are read.
    pub executes: bool,
}

/// Everything detected that cannot change. What could not be read is `None` and named in
/// [`Facts::unknown`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: u32,
    /// From `/etc/os-release`.
    pub os: Option<Os>,
    /// The kernel, now and at the next boot.
    pub kernel: Kernel,
    /// UEFI Secure Boot.
    pub secure_boot: SecureBoot,
    /// Kernel lockdown: `none`, `integrity`, `confidentiality`.
    pub lockdown: Option<String>,
    /// `kvm`, `amazon`, `systemd-nspawn`, …: the words of `systemd-detect-virt`; `none` on bare
    /// metal.
    pub virtualization: Option<String>,
    /// The model of the machine, as its firmware tells it: `ProLiant DL380a Gen11`, `p5.48xlarge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Where it runs.
    pub cloud: Cloud,
    /// `systemd`, or the name of process 1.
    pub init: Option<String>,
    /// New at every boot.
    pub boot_id: Option<String>,
    /// The cloud's id of the instance or the DMI UUID: new for every clone. Where there is neither,
    /// `machine-id:` and the machine id, which a clone may share.
    pub instance_id: Option<String>,
    /// Total memory.
    pub memory_bytes: Option<u64>,
    /// Filesystems that matter: `/`, `/boot`, `/var`, ….
    pub disks: Vec<Disk>,
    /// NVIDIA GPUs on PCI, by address.
    pub gpus: Vec<GpuFact>,
    /// Virtual functions of these GPUs (SR-IOV): they are for virtual machines, and no GPUs of this
    /// machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub virtual_functions: Vec<PciFact>,
    /// Display adapters and accelerators of other vendors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign_gpus: Vec<PciFact>,
    /// NVSwitches on PCI.
    pub nvswitches: Vec<PciFact>,
    /// Whether a network device manages NVLink switches that are not on PCI, as on HGX B200; `None`
    /// if no device could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_management: Option<bool>,
    /// NVIDIA and Mellanox network devices on PCI.
    pub network_devices: Vec<PciFact>,
    /// What could not be read, and why.
    pub unknown: Vec<Unknown>,
}

/// The operating system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Os {
    /// `debian`, `ubuntu`, `almalinux`, ….
    pub id: String,
    /// `12`, `24.04`, `9.6`.
    pub version_id: Option<String>,
    /// Families, nearest first.
    pub id_like: Vec<String>,
    /// `bookworm`, `noble`.
    pub version_codename: Option<String>,
    /// For people.
    pub pretty_name: Option<String>,
}

/// The kernel. What is installed and what the next boot will run does change when a kernel package
/// is installed; both are facts because the configuration is resolved from them, and a run installs
/// no kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// Running now.
    pub running: Option<KernelVersion>,
    /// What the next boot will run, as of the start of the run.
    pub next_boot: Option<KernelVersion>,
    /// All installed kernels (folders below `/lib/modules` with a kernel image), as of the
    /// start of the run.
    pub installed: Vec<KernelVersion>,
    /// `x86_64`, `aarch64`.
    pub arch: Option<String>,
    /// The compiler that built the running kernel, as `gcc-12`.
    pub compiler: Option<String>,
}

impl Kernel {
    /// The running and the next kernel, without repetition.
    #[must_use]
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
    /// Unsigned modules are refused.
    Enabled,
    /// UEFI without enforcement.
    Disabled,
    /// No UEFI, or one without Secure Boot.
    Unsupported,
    /// Could not be read.
    Unknown,
}

/// The cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cloud {
    /// `aws`, `gcp`, `azure`, …; `None` outside a known cloud.
    pub provider: Option<String>,
    /// The cloud's own id of the instance, such as `i-0929128ff2f73a2f1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// `p5.48xlarge`.
    pub instance_type: Option<String>,
    /// `on-demand`, `spot`.
    pub lifecycle: Option<String>,
    /// `eu-central-1`, `westeurope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// `eu-central-1a`, `europe-west4-b`; on Azure `1`, `2` or `3`, and absent without a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disk {
    /// The path that was asked about.
    pub mount: Utf8PathBuf,
    /// Size.
    pub total_bytes: u64,
    /// Available.
    pub free_bytes: u64,
}

/// A GPU on PCI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuFact {
    /// Where.
    pub pci_address: PciAddress,
    /// What.
    pub pci_id: PciId,
    /// The board, where the id alone is ambiguous.
    pub subsystem_id: Option<PciId>,
    /// A VGA controller or a 3D controller: some boards can be switched between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<PciClass>,
    /// From the matrix, then `pci.ids`.
    pub name: Option<String>,
    /// What `pci.ids` calls it: `GH100 [H100 SXM5 80GB]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip_name: Option<ChipName>,
    /// `hopper`, ….
    pub architecture: Option<Architecture>,
    /// How the architecture is known; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture_evidence: Option<ArchitectureEvidence>,
    /// `9.0`.
    pub compute_capability: Option<ComputeCapability>,
    /// The kernel modules that it runs with.
    pub module_flavour: Option<SupportedFlavours>,
    /// A slice of a GPU, given by a hypervisor: needs the GRID driver.
    pub vgpu: bool,
    /// The NUMA node; `None` when the firmware does not say.
    pub numa_node: Option<u32>,
}

impl GpuFact {
    /// What identifies the GPU in the matrix.
    #[must_use]
    pub fn identity(&self) -> GpuIdentity {
        GpuIdentity {
            pci_id: self.pci_id,
            subsystem_id: self.subsystem_id,
            chip_name: self.chip_name.clone(),
        }
    }
}

/// Another PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PciFact {
    /// Where.
    pub pci_address: PciAddress,
    /// What.
    pub pci_id: PciId,
    /// For people.
    pub name: Option<String>,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The key in this document, dotted.
    pub fact: String,
    /// Why not.
    pub why: String,
}
