//! Finds the matrix entries of a GPU.

use crate::capability::ComputeCapability;
use crate::identity::{
    Architecture, ArchitectureEvidence, ChipName, GpuIdentity, SupportedFlavors,
};
use crate::matrix::{
    ArchitectureRow, BranchRow, CapabilityRow, ChipRange, Fabric, Gpu, InstanceType, Matrix, Vgpu,
    VgpuProfile,
};
use crate::pci::PciId;
use crate::version::{Branch, DriverVersion};

/// The matrix data of a GPU.
#[derive(Debug, Clone)]
pub struct Board<'m> {
    /// For messages: `H100 SXM5 80GB (10de:2330)`.
    pub label: String,
    pub row: Option<&'m Gpu>,
    pub architecture: Option<&'m ArchitectureRow>,
    /// The source of the architecture. `None` if it is unknown, or if the product was given by name.
    pub evidence: Option<ArchitectureEvidence>,
    /// Only its ID is known, and it is newer than the first GPU that requires the open modules.
    pub assumed_newer: bool,
    /// The entry of its compute capability, or all entries of its architecture if the capability is unknown.
    pub capabilities: Vec<&'m CapabilityRow>,
    /// Its compute capability, if known.
    pub capability: Option<ComputeCapability>,
    /// The supported module flavors.
    pub modules: SupportedFlavors,
    /// The vGPU profile, if the GPU is a slice from a hypervisor.
    pub vgpu: Option<&'m VgpuProfile>,
    /// Keys of the sources.
    pub citations: Vec<&'m str>,
}

impl<'m> Board<'m> {
    /// The first driver that supports the board, in any branch. `None` if unknown.
    pub fn min_driver(&self) -> Option<&'m DriverVersion> {
        let listed = self.row.and_then(|row| row.min_drivers.first());
        listed.or_else(|| self.floor())
    }

    /// The first driver of the compute capability, or the lowest one if several capabilities are possible.
    pub fn floor(&self) -> Option<&'m DriverVersion> {
        // A board with an entry has one capability. If its first driver is unknown, so is the first driver of the board.
        let floors: Option<Vec<_>> = self
            .capabilities
            .iter()
            .map(|row| row.min_driver.as_ref())
            .collect();
        if self.row.is_some() {
            floors?.into_iter().min()
        } else {
            self.capabilities
                .iter()
                .filter_map(|row| row.min_driver.as_ref())
                .min()
        }
    }

    /// The last branch that supports it. `None` if it is still supported, or unknown.
    pub fn last_branch(&self) -> Option<Branch> {
        self.architecture.and_then(|row| row.last_branch)
    }

    /// The fabric service that a whole board needs to communicate with other boards.
    pub fn fabric(&self) -> Fabric {
        self.row.map_or(Fabric::None, |row| row.fabric)
    }

    /// Returns `true` if the flavor is assumed.
    pub fn is_assumed(&self) -> bool {
        self.row.is_none()
    }

    /// The source of the architecture, as a suffix for messages.
    pub(super) fn inferred(&self) -> &'static str {
        match (self.evidence, self.architecture) {
            (Some(ArchitectureEvidence::ChipName), _) => " (by its chip name)",
            (Some(ArchitectureEvidence::IdRange), _) => " (by its ID range)",
            (None, Some(_)) => " (by its name)",
            (Some(ArchitectureEvidence::Listed), _) | (None, None) => "",
        }
    }
}

impl Matrix {
    /// Returns the entry of an architecture.
    pub fn architecture(&self, name: &Architecture) -> Option<&ArchitectureRow> {
        self.architectures.iter().find(|row| row.name == *name)
    }

    /// Returns the index of an architecture, oldest first.
    pub fn generation(&self, name: &Architecture) -> Option<usize> {
        self.architectures.iter().position(|row| row.name == *name)
    }

    /// Returns the entry of a compute capability.
    pub fn capability(&self, version: ComputeCapability) -> Option<&CapabilityRow> {
        self.capabilities
            .iter()
            .find(|row| row.versions.contains(&version))
    }

    /// Returns the entry of a branch.
    pub fn branch(&self, branch: Branch) -> Option<&BranchRow> {
        self.branches.iter().find(|row| row.branch == branch)
    }

    /// Returns the entry of a GPU: by its subsystem ID if possible, otherwise by its PCI ID.
    pub fn gpu(&self, pci_id: PciId, subsystem_id: Option<PciId>) -> Option<&Gpu> {
        let of_id = || self.gpus.iter().filter(move |row| row.pci_id == pci_id);
        // Board vendors use their own vendor ID with NVIDIA's device number of the board.
        let board = subsystem_id.and_then(|wanted| {
            of_id().find(|row| {
                row.subsystem_id
                    .is_some_and(|id| id.device == wanted.device)
            })
        });
        board.or_else(|| of_id().find(|row| row.subsystem_id.is_none()))
    }

    /// Returns the profile of a vGPU guest.
    pub fn vgpu(&self, pci_id: PciId, subsystem_id: PciId) -> Option<(&Vgpu, &VgpuProfile)> {
        let row = self.vgpus.iter().find(|row| row.pci_id == pci_id)?;
        row.profiles
            .iter()
            .find(|p| p.subsystem_id == subsystem_id)
            .map(|profile| (row, profile))
    }

    /// Returns `true` for an NVSwitch. Other bridges have the same PCI class.
    pub fn is_nvswitch(&self, pci_id: PciId) -> bool {
        self.nvswitches
            .iter()
            .any(|row| row.is_switch && row.pci_id == Some(pci_id))
    }

    /// Returns the entry of an instance type. The Azure metadata service does not preserve the case of a name.
    pub fn instance_type(&self, provider: &str, name: &str) -> Option<&InstanceType> {
        self.instance_types
            .iter()
            .find(|row| row.provider == provider && row.name.eq_ignore_ascii_case(name))
    }

    /// Returns the architecture of a chip name, such as Hopper for `GH100 [H100 PCIe]`.
    pub fn architecture_of_chip(&self, name: &ChipName) -> Option<&ArchitectureRow> {
        self.architectures.iter().find(|row| {
            row.chip_prefixes.iter().any(|prefix| {
                (name.chip.strip_prefix(prefix.as_str()))
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
    }

    /// Returns the range that contains an ID.
    pub fn chip_range(&self, pci_id: PciId) -> Option<&ChipRange> {
        self.chip_ranges.iter().find(|row| row.contains(pci_id))
    }

    /// Returns the compute capability if all ranges of the chip have the same one. `GA102GL` is a GA102.
    fn capability_of_chip(&self, chip: &str) -> Option<ComputeCapability> {
        let blocks = (self.chip_ranges.iter())
            .filter(|row| row.chips.iter().any(|name| chip.starts_with(name.as_str())));
        let mut found = blocks.map(|row| row.compute_capability);
        let first = found.next()??;
        found.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns the data of a GPU: from its entry, otherwise from its chip name, otherwise from its ID range.
    pub fn board(&self, gpu: &GpuIdentity) -> Board<'_> {
        let vgpu = gpu
            .subsystem_id
            .and_then(|subsystem| self.vgpu(gpu.pci_id, subsystem));
        let by_chip = || self.by_chip(gpu, gpu.chip_name.as_ref()?);
        let by_range = || self.by_range(gpu, self.chip_range(gpu.pci_id)?);
        let mut board = (self.gpu(gpu.pci_id, gpu.subsystem_id))
            .map(|row| self.listed(row))
            .or_else(by_chip)
            .or_else(by_range)
            .unwrap_or_else(|| self.unlisted(gpu));
        if let Some((row, profile)) = vgpu {
            board.vgpu = Some(profile);
            board.label = format!("{} ({})", profile.name, gpu.pci_id);
            board
                .citations
                .extend(row.citations.iter().map(String::as_str));
        }
        board
    }

    fn listed<'m>(&'m self, row: &'m Gpu) -> Board<'m> {
        Board {
            label: format!("{} ({})", row.name, row.pci_id),
            row: Some(row),
            architecture: self.architecture(&row.architecture),
            evidence: Some(ArchitectureEvidence::Listed),
            assumed_newer: false,
            capabilities: self
                .capability(row.compute_capability)
                .into_iter()
                .collect(),
            capability: Some(row.compute_capability),
            modules: row.modules,
            vgpu: None,
            citations: row.citations.iter().map(String::as_str).collect(),
        }
    }

    fn by_chip(&self, gpu: &GpuIdentity, name: &ChipName) -> Option<Board<'_>> {
        let architecture = self.architecture_of_chip(name)?;
        // A product from a query has no ID.
        let (label, evidence) = if gpu.pci_id.device == 0 {
            (name.product_or_chip().to_owned(), None)
        } else {
            let label = format!("{name} ({})", gpu.pci_id);
            (label, Some(ArchitectureEvidence::ChipName))
        };
        let capability = self.capability_of_chip(&name.chip);
        let board = self.without_row(label, architecture, capability);
        Some(Board { evidence, ..board })
    }

    fn by_range<'m>(&'m self, gpu: &GpuIdentity, range: &'m ChipRange) -> Option<Board<'m>> {
        let architecture = self.architecture(&range.architecture)?;
        let label = format!("{} GPU {}", architecture.title, gpu.pci_id);
        let mut board = self.without_row(label, architecture, range.compute_capability);
        board.evidence = Some(ArchitectureEvidence::IdRange);
        let citations = range.citations.iter().map(String::as_str);
        board.citations.extend(citations);
        Some(board)
    }

    fn without_row<'m>(
        &'m self,
        label: String,
        architecture: &'m ArchitectureRow,
        capability: Option<ComputeCapability>,
    ) -> Board<'m> {
        let of_it = |row: &&CapabilityRow| match capability {
            Some(version) => row.versions.contains(&version),
            None => row.architecture == architecture.name,
        };
        let capabilities: Vec<&CapabilityRow> = self.capabilities.iter().filter(of_it).collect();
        let only = match capabilities.as_slice() {
            [row] => match row.versions.as_slice() {
                [version] => Some(*version),
                _ => None,
            },
            _ => None,
        };
        Board {
            label,
            row: None,
            architecture: Some(architecture),
            evidence: None,
            assumed_newer: false,
            capability: capability.or(only),
            capabilities,
            modules: architecture.modules,
            vgpu: None,
            citations: architecture.citations.iter().map(String::as_str).collect(),
        }
    }

    fn unlisted(&self, gpu: &GpuIdentity) -> Board<'_> {
        let rule = &self.unlisted_gpu;
        Board {
            label: format!("GPU {}", gpu.pci_id),
            row: None,
            architecture: None,
            evidence: None,
            assumed_newer: gpu.pci_id.vendor == rule.open_from.vendor
                && gpu.pci_id >= rule.open_from,
            capabilities: Vec::new(),
            capability: None,
            modules: SupportedFlavors::Either,
            vgpu: None,
            citations: rule.citations.iter().map(String::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix::builtin().unwrap()
    }

    #[test]
    fn subsystems_identify_boards_and_slices() {
        let matrix = matrix();
        let id = |text: &str| text.parse::<PciId>().unwrap();
        let name = |sub: &str| {
            matrix
                .gpu(id("10de:25b6"), Some(id(sub)))
                .unwrap()
                .name
                .clone()
        };
        assert_eq!(name("10de:14a9"), "A16");
        assert_eq!(name("10de:157e"), "A2");
        assert_eq!(name("1028:0001"), "A2 / A16");
        let (_, profile) = matrix.vgpu(id("10de:27b8"), id("10de:1733")).unwrap();
        assert_eq!(profile.name, "NVIDIA L4-3Q");
        assert!(matrix.vgpu(id("10de:27b8"), id("10de:16ca")).is_none());
        assert!(matrix.is_nvswitch(id("10de:22a3")));
        assert!(!matrix.is_nvswitch(id("10de:22b1")));
    }

    #[test]
    fn instance_types_are_case_insensitive() {
        let matrix = matrix();
        for name in ["Standard_ND96isr_H100_v5", "standard_nd96isr_h100_v5"] {
            assert!(matrix.instance_type("azure", name).is_some(), "{name}");
        }
        assert!(
            matrix
                .instance_type("aws", "Standard_ND96isr_H100_v5")
                .is_none()
        );
    }

    #[test]
    fn chip_names_determine_the_architecture() {
        let matrix = matrix();
        for (chip, name) in [
            ("GF100 [Tesla C2050]", Some("fermi")),
            ("GK110BGL [Tesla K40m]", Some("kepler")),
            ("GM204GL", Some("maxwell")),
            ("GP102", Some("pascal")),
            ("GV100GL [Tesla V100]", Some("volta")),
            ("TU104", Some("turing")),
            ("GA100", Some("ampere")),
            ("AD102GL [L40]", Some("ada")),
            ("GH100", Some("hopper")),
            ("GB20B [GB10]", Some("blackwell")),
            ("GT218 [GeForce 210]", Some("tesla")),
            ("G92", Some("tesla")),
            ("NV43 [GeForce 6600]", None),
            ("GHOST", None),
        ] {
            let found = matrix.architecture_of_chip(&chip.parse().unwrap());
            assert_eq!(found.map(|row| row.name.as_str()), name, "{chip}");
        }
    }

    #[test]
    fn unlisted_gpus_are_inferred_from_chip_and_id() {
        let matrix = matrix();
        let board = |id: &str, chip: Option<&str>| {
            let chip_name = chip.map(|name| name.parse().unwrap());
            let gpu = GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: None,
                chip_name,
            };
            let board = matrix.board(&gpu);
            (board.evidence, board.assumed_newer, board.modules)
        };
        let (either, by_chip) = (
            SupportedFlavors::Either,
            Some(ArchitectureEvidence::ChipName),
        );
        assert_eq!(board("10de:ffff", None), (None, true, either));
        assert_eq!(board("10de:0001", None), (None, false, either));
        assert_eq!(board("1002:ffff", None), (None, false, either));
        assert_eq!(
            board("10de:1d81", Some("GV100 [TITAN V]")),
            (by_chip, false, SupportedFlavors::Proprietary)
        );
        assert_eq!(
            board("10de:2bff", Some("GB202")),
            (by_chip, false, SupportedFlavors::Open)
        );
        assert_eq!(
            board("10de:2330", Some("GV100")),
            (Some(ArchitectureEvidence::Listed), false, either)
        );
        // If the name contains no chip, the ID counts.
        assert_eq!(
            board("10de:2786", Some("Device 2786")),
            (Some(ArchitectureEvidence::IdRange), false, either)
        );
    }

    #[test]
    fn id_ranges_determine_the_architecture() {
        let matrix = matrix();
        for (id, architecture, capability) in [
            ("10de:0194", Some("tesla"), None),          // GeForce 8800 Ultra
            ("10de:06d9", Some("fermi"), Some("2.0")),   // GeForce GTX 465
            ("10de:1180", Some("kepler"), Some("3.0")),  // GeForce GTX 680
            ("10de:13c0", Some("maxwell"), Some("5.2")), // GeForce GTX 980
            ("10de:1b80", Some("pascal"), Some("6.1")),  // GeForce GTX 1080
            ("10de:1d81", Some("volta"), Some("7.0")),   // TITAN V
            ("10de:1f95", Some("turing"), Some("7.5")),  // GTX 1650 Ti Mobile
            ("10de:2520", Some("ampere"), Some("8.6")),  // RTX 3060 Mobile
            ("10de:2786", Some("ada"), Some("8.9")),     // RTX 4070
            ("10de:28e0", Some("ada"), Some("8.9")),     // RTX 4060 Mobile
            ("10de:23ff", Some("hopper"), Some("9.0")),  // newer than the matrix
            ("10de:2f04", Some("blackwell"), Some("12.0")), // RTX 5070
            ("10de:30ff", Some("rubin"), Some("10.7")),  // newer than the matrix
            ("10de:1ad7", None, None),                   // a USB controller of a card
            ("1002:2786", None, None),
            ("10de:0040", None, None), // before CUDA
        ] {
            let board = matrix.board(&GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: None,
                chip_name: None,
            });
            let found = board.architecture.map(|row| row.name.as_str());
            assert_eq!(found, architecture, "{id}");
            let found = board.capability.map(|version| version.to_string());
            assert_eq!(found.as_deref(), capability, "{id}");
            assert_eq!(
                board.evidence.is_some(),
                found.is_some() || architecture.is_some(),
                "{id}"
            );
        }
    }

    #[test]
    fn every_gpu_is_in_a_range_of_its_architecture() {
        let matrix = matrix();
        for row in &matrix.gpus {
            let block = matrix.chip_range(row.pci_id);
            let found = block.map(|block| &block.architecture);
            assert_eq!(found, Some(&row.architecture), "{}", row.pci_id);
            if let Some(capability) = block.and_then(|block| block.compute_capability) {
                assert_eq!(capability, row.compute_capability, "{}", row.pci_id);
            }
        }
    }
}
