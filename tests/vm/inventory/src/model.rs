//! Known GPUs by PCI ID, so that an inventory entry can be short.

use serde::Deserialize;

use crate::gpu::{Brand, Remote};

/// An entry of `models.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// `vendor:device`.
    pub pci_id: String,
    /// Name in NVML.
    pub name: String,
    /// Brand in NVML.
    pub brand: Brand,
    /// For example `9.0`.
    pub compute_capability: String,
    /// Nominal size.
    pub memory_gib: u64,
    /// Whether it has ECC.
    #[serde(default)]
    pub ecc: bool,
    /// Whether it supports MIG.
    #[serde(default)]
    pub mig: bool,
    /// Its compute slices in MIG mode.
    #[serde(default = "seven")]
    pub mig_slices: u32,
    /// Number of NVLinks.
    #[serde(default)]
    pub links: u32,
    /// The remote devices of the links.
    #[serde(default)]
    pub remote: Remote,
    /// Whether it registers with an NVLink fabric.
    #[serde(default)]
    pub fabric: bool,
}

fn seven() -> u32 {
    7
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    model: Vec<Model>,
}

/// The known GPU with this ID.
///
/// # Errors
/// If the built-in table is invalid.
pub fn find(pci_id: &str) -> Result<Option<Model>, toml::de::Error> {
    let models: Models = toml::from_str(include_str!("../models.toml"))?;
    Ok(models
        .model
        .into_iter()
        .find(|model| model.pci_id == pci_id))
}
