//! The interface between facts and the compatibility matrix.

use gpu_compat::{Matrix, pick::Constraints};

use super::{Facts, GpuFact};
use crate::model::{gpu::GpuIdentity, pci::PciAddress};

impl GpuFact {
    /// A GPU with its data in the matrix: of its own entry, otherwise of its chip name, otherwise of
    /// the range of its ID. Unknown properties are `None`.
    pub fn described(pci_address: PciAddress, gpu: GpuIdentity, matrix: Option<&Matrix>) -> Self {
        let board = matrix.map(|matrix| matrix.board(&gpu));
        let board = board.as_ref();
        let row = board.and_then(|board| board.row);
        let vgpu = board.and_then(|board| board.vgpu);
        let evidence = board.and_then(|board| board.evidence);
        Self {
            pci_address,
            pci_id: gpu.pci_id,
            subsystem_id: gpu.subsystem_id,
            class: None,
            name: vgpu
                .map(|profile| profile.name.clone())
                .or_else(|| row.map(|row| row.name.clone())),
            chip_name: gpu.chip_name,
            architecture: board
                .and_then(|board| board.architecture)
                .map(|row| row.name.clone()),
            architecture_evidence: evidence,
            compute_capability: board.and_then(|board| board.capability),
            // Facts only contain known properties. Assumptions about newer GPUs are made when a
            // driver is selected.
            module_flavor: board
                .filter(|_| evidence.is_some())
                .map(|board| board.modules),
            vgpu: vgpu.is_some(),
            numa_node: None,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::{Architecture, ArchitectureEvidence, SupportedFlavors};

    #[test]
    fn matrix_describes_gpus() {
        let matrix = Matrix::builtin().unwrap();
        let describe = |id: &str, subsystem: Option<&str>, chip: Option<&str>| {
            let gpu = GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: subsystem.map(|id| id.parse().unwrap()),
                chip_name: chip.map(|name| name.parse().unwrap()),
            };
            GpuFact::described("0000:18:00.0".parse().unwrap(), gpu, Some(&matrix))
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
        let unknown = describe("10de:ffff", None, None);
        assert_eq!((unknown.name, unknown.architecture), (None, None));
        assert_eq!(
            (unknown.compute_capability, unknown.module_flavor),
            (None, None)
        );
    }
}
