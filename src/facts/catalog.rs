//! What facts ask of the compatibility matrix, and what the matrix is told of a machine.

use gpu_compat::{Matrix, pick::Wish};

use super::{Facts, GpuFact};
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

/// The machine of the facts, without constraints.
impl From<&Facts> for Wish {
    fn from(facts: &Facts) -> Self {
        let cloud = &facts.cloud;
        Self {
            gpus: facts.gpus.iter().map(GpuFact::identity).collect(),
            kernel: facts.kernel.running.clone(),
            next_kernel: facts.kernel.next_boot.clone(),
            arch: facts.kernel.arch.clone(),
            instance: cloud.provider.clone().zip(cloud.instance_type.clone()),
            nvswitch: Some(!facts.nvswitches.is_empty()),
            nvlink_management: facts.nvlink_management,
            ..Self::default()
        }
    }
}

impl DeviceCatalog for Matrix {
    fn describe(&self, gpu: &GpuIdentity) -> GpuDescription {
        let board = self.board(gpu);
        // Facts hold what is known. What may be assumed about a newer GPU is left to the pick of
        // the driver.
        GpuDescription {
            name: board
                .vgpu
                .map(|profile| profile.name.clone())
                .or_else(|| board.row.map(|row| row.name.clone())),
            architecture: board.architecture.map(|row| row.name.clone()),
            architecture_evidence: board.evidence,
            compute_capability: board.capability,
            module_flavour: board.evidence.map(|_| board.modules),
            vgpu: board.vgpu.is_some(),
        }
    }

    fn is_nvswitch(&self, id: PciId) -> bool {
        Self::is_nvswitch(self, id)
    }

    fn name(&self, id: PciId) -> Option<String> {
        self.nvswitches
            .iter()
            .find(|row| row.pci_id == Some(id))
            .map(|row| row.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::{Architecture, ArchitectureEvidence, SupportedFlavours};

    #[test]
    fn what_facts_hear_of_gpus() {
        let matrix = Matrix::builtin().unwrap();
        let describe = |id: &str, subsystem: Option<&str>, chip: Option<&str>| {
            matrix.describe(&GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: subsystem.map(|id| id.parse().unwrap()),
                chip_name: chip.map(|name| name.parse().unwrap()),
            })
        };
        let architecture = |name: &str| name.parse::<Architecture>().ok();
        let h100 = describe("10de:2330", None, None);
        assert_eq!(h100.architecture, architecture("hopper"));
        assert_eq!(h100.compute_capability, "9.0".parse().ok());
        assert_eq!(h100.module_flavour, Some(SupportedFlavours::Either));
        assert!(!h100.vgpu);
        let slice = describe("10de:27b8", Some("10de:1733"), None);
        assert_eq!(slice.name.as_deref(), Some("NVIDIA L4-3Q"));
        assert!(slice.vgpu);
        let titan = describe("10de:1d81", None, Some("GV100 [TITAN V]"));
        assert_eq!(titan.architecture, architecture("volta"));
        assert_eq!(
            h100.architecture_evidence,
            Some(ArchitectureEvidence::Listed)
        );
        assert_eq!(
            titan.architecture_evidence,
            Some(ArchitectureEvidence::ChipName)
        );
        let desktop = describe("10de:2786", None, None);
        assert_eq!(desktop.architecture, architecture("ada"));
        assert_eq!(
            desktop.architecture_evidence,
            Some(ArchitectureEvidence::IdRange)
        );
        assert_eq!(desktop.module_flavour, Some(SupportedFlavours::Either));
        assert_eq!(titan.module_flavour, Some(SupportedFlavours::Proprietary));
        assert_eq!(describe("10de:ffff", None, None), GpuDescription::default());
        let switch: PciId = "10de:22a3".parse().unwrap();
        assert!(DeviceCatalog::name(&matrix, switch).is_some());
    }
}
