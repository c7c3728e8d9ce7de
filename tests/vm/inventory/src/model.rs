//! Known GPUs by PCI id, so that a row of an inventory can be short.

use serde::Deserialize;

use crate::gpu::{Brand, Remote};

/// A row of `models.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// `vendor:device`.
    pub pci_id: String,
    /// As NVML names it.
    pub name: String,
    /// As NVML brands it.
    pub brand: Brand,
    /// As `9.0`.
    pub compute_capability: String,
    /// Nominal size.
    pub memory_gib: u64,
    /// It has ECC.
    #[serde(default)]
    pub ecc: bool,
    /// It can do MIG.
    #[serde(default)]
    pub mig: bool,
    /// NVLinks.
    #[serde(default)]
    pub links: u32,
    /// What the links lead to.
    #[serde(default)]
    pub remote: Remote,
    /// It registers with an NVLink fabric.
    #[serde(default)]
    pub fabric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    model: Vec<Model>,
}

/// The known GPU with this id.
///
/// # Errors
/// If the built-in table does not parse.
pub fn find(pci_id: &str) -> Result<Option<Model>, toml::de::Error> {
    let models: Models = toml::from_str(include_str!("../models.toml"))?;
    Ok(models
        .model
        .into_iter()
        .find(|model| model.pci_id == pci_id))
}
