//! Which GPU a PCI id or a name means, and what is known about it.

use crate::compat::matrix::{
    ArchitectureRow, BranchRow, CapabilityRow, Confidence, Fabric, Gpu, InstanceType, Matrix, Vgpu,
    VgpuProfile,
};
use crate::model::capability::ComputeCapability;
use crate::model::gpu::{Architecture, ChipName, GpuIdentity, SupportedFlavours};
use crate::model::pci::PciId;
use crate::model::version::{Branch, DriverVersion};

/// How well a GPU is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// It has a row.
    Listed,
    /// It has no row, but the name of its chip tells the architecture.
    ByChip,
    /// It has no row, and its id is newer than the first GPU that only the open modules serve.
    AssumedNewer,
    /// Nothing is known about it.
    Nothing,
}

/// What the matrix knows about a GPU.
#[derive(Debug, Clone)]
pub struct Board<'m> {
    /// For messages: `H100 SXM5 80GB (10de:2330)`.
    pub label: String,
    /// How well it is known.
    pub knowledge: Knowledge,
    /// Its row.
    pub row: Option<&'m Gpu>,
    /// Its architecture.
    pub architecture: Option<&'m ArchitectureRow>,
    /// Its compute capability; with [`Knowledge::ByChip`] all of its architecture.
    pub capabilities: Vec<&'m CapabilityRow>,
    /// The modules that it runs with.
    pub modules: SupportedFlavours,
    /// The vGPU profile, where a hypervisor gives the guest a slice of the GPU.
    pub vgpu: Option<&'m VgpuProfile>,
    /// Where all this was read.
    pub citations: Vec<&'m str>,
}

impl<'m> Board<'m> {
    /// The first driver of all branches that drives the board; `None` where no row has it.
    pub fn min_driver(&self) -> Option<&'m DriverVersion> {
        let listed = self.row.and_then(|row| row.min_drivers.first());
        listed.or_else(|| self.floor())
    }

    /// The first driver of the compute capability; the lowest one where several capabilities are
    /// possible.
    pub fn floor(&self) -> Option<&'m DriverVersion> {
        // The board has a row: its capability must have a first driver.
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

    /// The last branch that drives it; `None` while it is current or unknown.
    pub fn last_branch(&self) -> Option<Branch> {
        self.architecture.and_then(|row| row.last_branch)
    }

    /// The fabric that a whole board needs to work with other boards.
    pub fn fabric(&self) -> Fabric {
        self.row.map_or(Fabric::None, |row| row.fabric)
    }

    /// True where the flavour rests on an assumption.
    pub fn is_assumed(&self) -> bool {
        self.row.is_none()
    }
}

/// A name that no GPU has, or several different GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No row has it.
    #[error("`{name}` is not a GPU of the matrix{}", perhaps(.nearest))]
    Unknown {
        /// What was asked.
        name: String,
        /// The nearest names.
        nearest: Vec<String>,
    },
    /// Several rows have it, and lead to different drivers.
    #[error("`{name}` can mean several different GPUs: {}", .candidates.join(", "))]
    Ambiguous {
        /// What was asked.
        name: String,
        /// The rows.
        candidates: Vec<String>,
    },
}

fn perhaps(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", names.join(", "))
    }
}

impl Matrix {
    /// The row of an architecture.
    pub fn architecture(&self, name: &Architecture) -> Option<&ArchitectureRow> {
        self.architectures.iter().find(|row| row.name == *name)
    }

    /// The place of an architecture among the generations, the oldest first.
    pub fn generation(&self, name: &Architecture) -> Option<usize> {
        self.architectures.iter().position(|row| row.name == *name)
    }

    /// The row of a compute capability.
    pub fn capability(&self, version: ComputeCapability) -> Option<&CapabilityRow> {
        self.capabilities
            .iter()
            .find(|row| row.versions.contains(&version))
    }

    /// The row of a branch.
    pub fn branch(&self, branch: Branch) -> Option<&BranchRow> {
        self.branches.iter().find(|row| row.branch == branch)
    }

    /// The row of a GPU: that of its board where one has the subsystem, else that of its id.
    pub fn gpu(&self, pci_id: PciId, subsystem_id: Option<PciId>) -> Option<&Gpu> {
        let of_id = || self.gpus.iter().filter(move |row| row.pci_id == pci_id);
        // Board makers put their own vendor id before NVIDIA's number for the board.
        let board = subsystem_id.and_then(|wanted| {
            of_id().find(|row| {
                row.subsystem_id
                    .is_some_and(|id| id.device == wanted.device)
            })
        });
        board.or_else(|| of_id().find(|row| row.subsystem_id.is_none()))
    }

    /// The profile of a vGPU guest.
    pub fn vgpu(&self, pci_id: PciId, subsystem_id: PciId) -> Option<(&Vgpu, &VgpuProfile)> {
        let row = self.vgpus.iter().find(|row| row.pci_id == pci_id)?;
        row.profiles
            .iter()
            .find(|p| p.subsystem_id == subsystem_id)
            .map(|profile| (row, profile))
    }

    /// True for an NVSwitch; other bridges share its PCI class.
    pub fn is_nvswitch(&self, pci_id: PciId) -> bool {
        self.nvswitches
            .iter()
            .any(|row| row.is_switch && row.pci_id == Some(pci_id))
    }

    /// The row of an instance type.
    pub fn instance_type(&self, provider: &str, name: &str) -> Option<&InstanceType> {
        self.instance_types
            .iter()
            .find(|row| row.provider == provider && row.name == name)
    }

    /// The architecture that the name of a chip tells, such as Hopper for `GH100 [H100 PCIe]`.
    pub fn architecture_of_chip(&self, name: &ChipName) -> Option<&ArchitectureRow> {
        self.architectures.iter().find(|row| {
            row.chip_prefixes.iter().any(|prefix| {
                (name.chip.strip_prefix(prefix.as_str()))
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
    }

    /// What is known about a GPU.
    pub fn board(&self, gpu: &GpuIdentity) -> Board<'_> {
        let vgpu = gpu
            .subsystem_id
            .and_then(|subsystem| self.vgpu(gpu.pci_id, subsystem));
        let named = gpu.chip_name.as_ref().and_then(|name| {
            self.architecture_of_chip(name)
                .map(|architecture| (name, architecture))
        });
        let mut board = match (self.gpu(gpu.pci_id, gpu.subsystem_id), named) {
            (Some(row), _) => self.listed(row),
            (None, Some((name, architecture))) => self.by_chip(gpu, name, architecture),
            (None, None) => self.unlisted(gpu),
        };
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
            knowledge: Knowledge::Listed,
            row: Some(row),
            architecture: self.architecture(&row.architecture),
            capabilities: self
                .capability(row.compute_capability)
                .into_iter()
                .collect(),
            modules: row.modules,
            vgpu: None,
            citations: row.citations.iter().map(String::as_str).collect(),
        }
    }

    fn by_chip<'m>(
        &'m self,
        gpu: &GpuIdentity,
        name: &ChipName,
        architecture: &'m ArchitectureRow,
    ) -> Board<'m> {
        let of_it = |row: &&CapabilityRow| row.architecture == architecture.name;
        Board {
            label: format!("{name} ({})", gpu.pci_id),
            knowledge: Knowledge::ByChip,
            row: None,
            architecture: Some(architecture),
            capabilities: self.capabilities.iter().filter(of_it).collect(),
            modules: architecture.modules,
            vgpu: None,
            citations: architecture.citations.iter().map(String::as_str).collect(),
        }
    }

    fn unlisted(&self, gpu: &GpuIdentity) -> Board<'_> {
        let rule = &self.unlisted_gpu;
        let newer = gpu.pci_id.vendor == rule.open_from.vendor && gpu.pci_id >= rule.open_from;
        Board {
            label: format!("GPU {}", gpu.pci_id),
            knowledge: if newer {
                Knowledge::AssumedNewer
            } else {
                Knowledge::Nothing
            },
            row: None,
            architecture: None,
            capabilities: Vec::new(),
            modules: SupportedFlavours::Either,
            vgpu: None,
            citations: rule.citations.iter().map(String::as_str).collect(),
        }
    }

    /// Finds a GPU by its name. Whole names are compared first, then words, never parts of words:
    /// `H200` is not in `GH200`. Where several rows fit, those of the highest confidence count;
    /// they must lead to the same driver.
    ///
    /// # Errors
    /// When no row has the name, or several rows that lead to different drivers.
    pub fn gpu_by_name(&self, name: &str) -> Result<&Gpu, NameError> {
        let asked = words(name);
        let by = |fits: &dyn Fn(&Gpu) -> bool| -> Vec<&Gpu> {
            let rows: Vec<&Gpu> = self.gpus.iter().filter(|row| fits(row)).collect();
            let best = rows.iter().map(|row| row.confidence).max();
            rows.into_iter()
                .filter(|row| Some(row.confidence) == best)
                .collect()
        };
        let mut found = if asked.is_empty() {
            Vec::new()
        } else {
            by(&|row| words(&row.name) == asked)
        };
        if found.is_empty() && !asked.is_empty() {
            found = by(&|row| row.aliases.iter().any(|alias| words(alias) == asked));
        }
        if found.is_empty() && !asked.is_empty() {
            let within = |text: &str| asked.iter().all(|word| words(text).contains(word));
            found = by(&|row| within(&row.name) || row.aliases.iter().any(|alias| within(alias)));
        }
        match found.as_slice() {
            [] => Err(NameError::Unknown {
                name: name.to_owned(),
                nearest: self.near(name),
            }),
            [first, rest @ ..] if rest.iter().all(|row| same_rules(first, row)) => Ok(first),
            rows => Err(NameError::Ambiguous {
                name: name.to_owned(),
                candidates: rows
                    .iter()
                    .map(|r| format!("{} ({})", r.name, r.pci_id))
                    .collect(),
            }),
        }
    }

    fn near(&self, name: &str) -> Vec<String> {
        let asked = words(name).join(" ");
        let mut scored: Vec<(f64, &str)> = self
            .gpus
            .iter()
            .filter(|row| row.confidence == Confidence::Verified)
            .map(|row| {
                (
                    strsim::jaro_winkler(&asked, &words(&row.name).join(" ")),
                    &*row.name,
                )
            })
            .filter(|(likeness, _)| *likeness > 0.75)
            .collect();
        scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        scored.dedup_by(|(_, a), (_, b)| a == b);
        scored
            .into_iter()
            .take(3)
            .map(|(_, name)| name.to_owned())
            .collect()
    }
}

/// The words of a name, without brands.
fn words(name: &str) -> Vec<String> {
    name.to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !matches!(*word, "nvidia" | "tesla" | "geforce"))
        .map(str::to_owned)
        .collect()
}

/// True when two rows lead to the same driver.
fn same_rules(a: &Gpu, b: &Gpu) -> bool {
    a.compute_capability == b.compute_capability
        && a.modules == b.modules
        && a.min_drivers == b.min_drivers
        && a.not_named_in == b.not_named_in
        && a.named_since == b.named_since
        && a.advised_driver == b.advised_driver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix::builtin().unwrap()
    }

    fn named(name: &str) -> Result<String, NameError> {
        matrix().gpu_by_name(name).map(|row| row.pci_id.to_string())
    }

    #[test]
    fn names_are_never_parts_of_words() {
        assert_eq!(named("H200 SXM"), Ok("10de:2335".to_owned()));
        assert_eq!(named("NVIDIA H200"), Ok("10de:2335".to_owned()));
        assert_eq!(named("T4"), Ok("10de:1eb8".to_owned()));
        assert_eq!(named("tesla-t4"), Ok("10de:1eb8".to_owned()));
        assert_eq!(named("L4"), Ok("10de:27b8".to_owned()));
        assert_eq!(named("A10"), Ok("10de:2236".to_owned()));
        assert_eq!(named("B200"), Ok("10de:2901".to_owned()));
        assert_eq!(named("GB200"), Ok("10de:2941".to_owned()));
        assert_eq!(named("A16"), Ok("10de:25b6".to_owned()));
        assert!(named("V100").is_ok());
        assert!(named("RTX 4090").is_ok());
    }

    #[test]
    fn ambiguous_and_unknown_names_list_candidates() {
        let Err(NameError::Ambiguous { candidates, .. }) = named("H100") else {
            panic!("H100 has boards with different first drivers");
        };
        assert!(
            candidates.iter().any(|c| c == "H100 SXM5 80GB (10de:2330)"),
            "{candidates:?}"
        );
        assert!(
            candidates.iter().all(|c| !c.contains("GH")),
            "{candidates:?}"
        );
        let Err(NameError::Unknown { nearest, .. }) = named("L40X") else {
            panic!("no such GPU")
        };
        assert!(
            nearest.iter().any(|name| name.starts_with("L40")),
            "{nearest:?}"
        );
        assert!(matches!(named(""), Err(NameError::Unknown { .. })));
        assert!(matches!(named("NVIDIA"), Err(NameError::Unknown { .. })));
    }

    #[test]
    fn subsystems_tell_boards_and_slices() {
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
    fn chips_tell_architectures() {
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
            ("GT218 [GeForce 210]", None),
            ("G92", None),
            ("GHOST", None),
        ] {
            let found = matrix.architecture_of_chip(&chip.parse().unwrap());
            assert_eq!(found.map(|row| row.name.as_str()), name, "{chip}");
        }
    }

    #[test]
    fn unlisted_gpus_are_known_as_far_as_they_are() {
        let matrix = matrix();
        let board = |id: &str, chip: Option<&str>| {
            let chip_name = chip.map(|name| name.parse().unwrap());
            let gpu = GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: None,
                chip_name,
            };
            let board = matrix.board(&gpu);
            (board.knowledge, board.modules)
        };
        assert_eq!(
            board("10de:ffff", None),
            (Knowledge::AssumedNewer, SupportedFlavours::Either)
        );
        assert_eq!(
            board("10de:0001", None),
            (Knowledge::Nothing, SupportedFlavours::Either)
        );
        assert_eq!(
            board("1002:ffff", None),
            (Knowledge::Nothing, SupportedFlavours::Either)
        );
        assert_eq!(
            board("10de:1d81", Some("GV100 [TITAN V]")),
            (Knowledge::ByChip, SupportedFlavours::Proprietary)
        );
        assert_eq!(
            board("10de:2bff", Some("GB202")),
            (Knowledge::ByChip, SupportedFlavours::Open)
        );
        assert_eq!(
            board("10de:2330", Some("GV100")),
            (Knowledge::Listed, SupportedFlavours::Either)
        );
    }
}
