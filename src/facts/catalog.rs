//! What facts ask of the compatibility matrix, which lies in a layer above.

use crate::model::{
    capability::ComputeCapability,
    gpu::{Architecture, ArchitectureEvidence, GpuIdentity, SupportedFlavours},
    pci::PciId,
};

/// What is known about a GPU; what is not known is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuDescription {
    /// `H100 SXM5 80GB`.
    pub name: Option<String>,
    /// `hopper`, ….
    pub architecture: Option<Architecture>,
    /// How the architecture is known.
    pub architecture_evidence: Option<ArchitectureEvidence>,
    /// `9.0`.
    pub compute_capability: Option<ComputeCapability>,
    /// The kernel modules that it runs with.
    pub module_flavour: Option<SupportedFlavours>,
    /// It is a vGPU, a slice of a GPU that a hypervisor gives to a guest.
    pub vgpu: bool,
}

/// The compatibility matrix, as far as facts need it.
pub trait DeviceCatalog: Send + Sync {
    /// Describes a GPU. A GPU without a row of its own is described by the name of its chip,
    /// or else by the range of its id.
    fn describe(&self, gpu: &GpuIdentity) -> GpuDescription;

    /// Whether the id is that of an NVSwitch; other NVIDIA bridges share its PCI class.
    fn is_nvswitch(&self, id: PciId) -> bool;

    /// The name of a device that is not a GPU.
    fn name(&self, id: PciId) -> Option<String>;
}
