//! Answers what facts ask about a device.

use crate::{
    compat::matrix::Matrix,
    facts::{DeviceCatalog, GpuDescription},
    model::{gpu::GpuIdentity, pci::PciId},
};

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
