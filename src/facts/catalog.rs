//! The interface between facts and the compatibility matrix.

use gpu_compat::{Matrix, pick::Constraints};

use super::{Facts, GpuFact};
use crate::model::{
    capability::ComputeCapability,
    gpu::{Architecture, ArchitectureEvidence, GpuIdentity, SupportedFlavors},
    pci::PciId,
};

/// Known properties of a GPU. Unknown properties are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuDescription {
    /// The name, for example `H100 SXM5 80GB`.
    pub name: Option<String>,
    /// The architecture, for example `hopper`.
    pub architecture: Option<Architecture>,
    /// The source of the architecture.
    pub architecture_evidence: Option<ArchitectureEvidence>,
    /// The compute capability, for example `9.0`.
    pub compute_capability: Option<ComputeCapability>,
    /// The supported kernel module flavors.
    pub module_flavor: Option<SupportedFlavors>,
    /// Whether this is a vGPU (a slice of a GPU that a hypervisor assigns to a guest).
    pub vgpu: bool,
}

/// The part of the compatibility matrix that facts need.
pub trait DeviceCatalog: Send + Sync {
    /// Describes a GPU. A GPU without its own entry is described by its chip name, otherwise by the
    /// range of its ID.
    fn describe(&self, gpu: &GpuIdentity) -> GpuDescription;

    /// Whether the ID belongs to an NVSwitch. Other NVIDIA bridges have the same PCI class.
    fn is_nvswitch(&self, id: PciId) -> bool;

    /// The name of a device other than a GPU, such as an NVSwitch.
    fn name(&self, id: PciId) -> Option<String>;
}

/// Copies the hardware and kernel from the facts. The other constraints, such as the driver branch, stay unset.
impl From<&Facts> for Constraints {
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
        // Facts only contain known properties. Assumptions about newer GPUs are made when a driver
        // is selected.
        GpuDescription {
            name: board
                .vgpu
                .map(|profile| profile.name.clone())
                .or_else(|| board.row.map(|row| row.name.clone())),
            architecture: board.architecture.map(|row| row.name.clone()),
            architecture_evidence: board.evidence,
            compute_capability: board.capability,
            module_flavor: board.evidence.map(|_| board.modules),
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
    use crate::model::gpu::{Architecture, ArchitectureEvidence, SupportedFlavors};

    #[test]
    fn matrix_describes_gpus() {
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
        assert_eq!(h100.module_flavor, Some(SupportedFlavors::Either));
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
        assert_eq!(desktop.module_flavor, Some(SupportedFlavors::Either));
        assert_eq!(titan.module_flavor, Some(SupportedFlavors::Proprietary));
        assert_eq!(describe("10de:ffff", None, None), GpuDescription::default());
        let switch: PciId = "10de:22a3".parse().unwrap();
        assert!(DeviceCatalog::name(&matrix, switch).is_some());
    }
}
