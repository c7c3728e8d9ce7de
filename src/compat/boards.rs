//! The matrix as facts ask it.

use crate::{
    compat::{
        gpu::{GpuRef, Knowledge},
        matrix::{Matrix, Modules},
    },
    facts::{Board, Boards},
    model::pci::PciId,
};

impl Boards for Matrix {
    fn describe(&self, id: PciId, subsystem: Option<PciId>, chip: Option<&str>) -> Board {
        let board = self.board(&GpuRef {
            pci_id: id,
            subsystem_id: subsystem,
            chip_name: chip.map(str::to_owned),
        });
        // Facts say what is known; what may be assumed of a newer GPU is for `resolve` to say.
        let known = matches!(board.knowledge, Knowledge::Listed | Knowledge::ByChip);
        // Of an architecture with several capabilities, none is known.
        let capabilities: Vec<_> = match board.row {
            Some(row) => vec![row.compute_capability],
            None => board
                .capabilities
                .iter()
                .flat_map(|row| row.versions.clone())
                .collect(),
        };
        let compute_capability = match capabilities.as_slice() {
            [only] => Some(only.to_string()),
            _ => None,
        };
        Board {
            name: board
                .vgpu
                .map(|profile| profile.name.clone())
                .or_else(|| board.row.map(|row| row.name.clone())),
            architecture: board.architecture.map(|row| row.name.clone()),
            compute_capability,
            module_flavour: known.then(|| {
                match board.modules {
                    Modules::Open => "open",
                    Modules::Proprietary => "proprietary",
                    Modules::Either => "either",
                }
                .to_owned()
            }),
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

    #[test]
    fn what_facts_hear_of_gpus() {
        let matrix = Matrix::builtin().unwrap();
        let describe = |id: &str, subsystem: Option<&str>, chip: Option<&str>| {
            matrix.describe(
                id.parse().unwrap(),
                subsystem.map(|id| id.parse().unwrap()),
                chip,
            )
        };
        let h100 = describe("10de:2330", None, None);
        assert_eq!(h100.architecture.as_deref(), Some("hopper"));
        assert_eq!(h100.compute_capability.as_deref(), Some("9.0"));
        assert_eq!(h100.module_flavour.as_deref(), Some("either"));
        assert!(!h100.vgpu);
        let slice = describe("10de:27b8", Some("10de:1733"), None);
        assert_eq!(slice.name.as_deref(), Some("NVIDIA L4-3Q"));
        assert!(slice.vgpu);
        let titan = describe("10de:1d81", None, Some("GV100 [TITAN V]"));
        assert_eq!(titan.architecture.as_deref(), Some("volta"));
        assert_eq!(titan.module_flavour.as_deref(), Some("proprietary"));
        assert_eq!(describe("10de:ffff", None, None), Board::default());
        let switch: PciId = "10de:22a3".parse().unwrap();
        assert!(Boards::name(&matrix, switch).is_some());
    }
}
