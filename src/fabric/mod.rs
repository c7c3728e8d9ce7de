//! The software that GPUs behind NVLink switches need: the NVIDIA fabric manager, the NVLink subnet manager, and IMEX in a rack.
//!
//! GPUs behind NVSwitches are unusable until the fabric manager runs in exactly the version of the loaded driver, and they have
//! joined its fabric. Until then, CUDA fails with error 802 (system not yet initialized). This module contains what is true
//! about this software on every machine: which switches need it, its packages and their versions, its unit, files and kernel
//! modules, and the states of the GPUs. `steps/fabric` sets it up, and `checks/fabric.rs` reports its faults. The evidence of
//! switches is in `facts/switches.rs`, and the selection of the packages in `config/fabric.rs`.

mod gpus;
mod installation;
mod modules;
mod packages;

use serde::Serialize;

use crate::{
    compat::matrix::{Fabric, Matrix},
    facts::{
        Facts,
        switches::{Evidence, switches},
    },
    model::{packages::PackageSpec, version::DriverVersion},
};

pub use gpus::Gpus;
pub use installation::{Installation, UNIT};
pub use modules::{SUBNET_MODULES, kernel_without, not_loaded};
pub use packages::{has_subnet_manager, installed, offered, package};

/// The software for GPUs behind switches that belongs to the driver of a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Companions {
    /// The software that the GPUs require. `Fabric::None` if no switches were detected and the boards are not part of a rack.
    pub needs: Fabric,
    /// Its setup. `None` if it is not needed or not available in the source of the driver.
    pub service: Option<Service>,
}

/// The setup of the software.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Service {
    /// Driver packages that require a driver of exactly their version, by name.
    pub exact: Vec<String>,
    /// The unit that must run. `None` if the cluster starts it.
    pub unit: Option<String>,
    /// Kernel modules that must be loaded before the unit starts.
    pub modules: Vec<String>,
}

impl Service {
    /// Returns its packages that require a driver of exactly this version.
    pub fn at(&self, version: &DriverVersion) -> Vec<PackageSpec> {
        let spec = |name: &String| PackageSpec {
            name: name.clone(),
            version: Some(format!("{version}-*")),
        };
        self.exact.iter().map(spec).collect()
    }
}

/// The NVLink switches of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Switches {
    None,
    /// The number of NVSwitches on the PCI bus. It is 0 if they are only known from other evidence.
    Pci(usize, Evidence),
    /// Switches behind a network device, which also need the NVLink subnet manager.
    Managed(Evidence),
}

impl Switches {
    /// Returns the switches that the facts show.
    pub fn of(matrix: &Matrix, facts: &Facts) -> Self {
        match switches(matrix, facts) {
            None => Self::None,
            Some((Fabric::FmNvlsm, evidence)) => Self::Managed(evidence),
            Some((_, evidence)) => Self::Pci(facts.nvswitches.len(), evidence),
        }
    }

    /// The reason on a machine without switches.
    pub const NOT_NEEDED: &str = "no NVSwitch, so no fabric manager is required";

    /// Returns the sentence that the switches need the fabric manager.
    pub fn need(&self) -> String {
        let by = |evidence: &Evidence| match evidence {
            Evidence::Bus(_) | Evidence::ProductData => String::new(),
            Evidence::InstanceType(name) => format!(" of {name}"),
            Evidence::Board(label) => format!(" of a {label} baseboard"),
            Evidence::Nvml => " (NVML is waiting for the fabric)".to_owned(),
        };
        match self {
            Self::None => Self::NOT_NEEDED.to_owned(),
            Self::Pci(0, evidence) => {
                format!("the NVSwitches{} need the fabric manager", by(evidence))
            }
            Self::Pci(1, _) => "1 NVSwitch needs the fabric manager".to_owned(),
            Self::Pci(count, _) => format!("{count} NVSwitches need the fabric manager"),
            Self::Managed(evidence) => {
                format!(
                    "the NVLink switches{} need the fabric manager",
                    by(evidence)
                )
            }
        }
    }
}

/// Whether the GPUs are part of a rack, whose switches are managed elsewhere.
pub fn is_in_rack(matrix: &Matrix, facts: &Facts) -> bool {
    (facts.gpus.iter()).any(|gpu| matrix.board(&gpu.identity()).fabric() == Fabric::Imex)
}
