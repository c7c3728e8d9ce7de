//! `machines.toml`: the machines that the bed can make, and what they are made from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machines {
    pub toolkit: Toolkit,
    /// The newest CUDA version that each driver branch serves, for what NVML answers.
    pub cuda_of_branch: BTreeMap<String, String>,
    pub roots: BTreeMap<String, Root>,
    pub machines: BTreeMap<String, MachineSpec>,
}

/// Where NVIDIA's container toolkit comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Toolkit {
    pub module: String,
    pub version: String,
    /// Revision of the packages that are made of it.
    pub revision: String,
    /// The oldest Go that compiles it.
    pub go: String,
}

/// A root filesystem.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Root {
    pub suite: String,
    pub packages: Vec<String>,
    /// DKMS packages of the archive whose modules are compiled once and carried into machines.
    #[serde(default)]
    pub carried: Vec<String>,
}

/// A machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachineSpec {
    pub about: String,
    pub kind: Kind,
    pub root: String,
    #[serde(default)]
    pub pci: Vec<PciFunction>,
}

/// How a machine runs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A container booted by systemd-nspawn: native speed, the host's kernel.
    Container,
}

/// One function on the PCI bus.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PciFunction {
    /// `0000:18:00.0`.
    pub address: String,
    /// `10de:2330`.
    pub id: String,
    /// Subsystem vendor and device.
    pub subsystem: String,
    /// Six hexadecimal digits: base class, subclass, interface.
    pub class: String,
    #[serde(default)]
    pub revision: u8,
    #[serde(default)]
    pub numa_node: i32,
    /// The kernel driver that serves it from the start.
    pub driver: Option<String>,
    /// What the stand-in NVML says of it; absent where no GPU answers.
    pub nvml: Option<toml::Table>,
}

impl Kind {
    /// As the table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Container => "container",
        }
    }
}

impl Machines {
    pub fn load(path: &Path) -> Result<Machines> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not right", path.display()))
    }

    /// The CUDA version of a driver.
    pub fn cuda_of(&self, driver: &str) -> Result<&str> {
        let branch = driver.split('.').next().unwrap_or_default();
        self.cuda_of_branch
            .get(branch)
            .map(String::as_str)
            .with_context(|| format!("machines.toml has no CUDA version for branch {branch}"))
    }

    /// A machine by name.
    pub fn machine(&self, name: &str) -> Result<&MachineSpec> {
        match self.machines.get(name) {
            Some(spec) => Ok(spec),
            None => bail!(
                "no machine `{name}` in machines.toml; there are {}",
                self.machines.keys().cloned().collect::<Vec<_>>().join(", ")
            ),
        }
    }
}

/// Splits `10de:2330` into its two numbers.
pub fn id_pair(text: &str) -> Result<(u16, u16)> {
    let parse = |part: &str| u16::from_str_radix(part, 16).ok();
    text.split_once(':')
        .and_then(|(vendor, device)| Some((parse(vendor)?, parse(device)?)))
        .with_context(|| format!("`{text}` is no pair of hexadecimal ids"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_repository_parses() {
        let machines =
            Machines::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines.toml"))
                .unwrap();
        for (name, machine) in &machines.machines {
            assert!(machines.roots.contains_key(&machine.root), "{name}");
            for function in &machine.pci {
                id_pair(&function.id).unwrap();
                id_pair(&function.subsystem).unwrap();
            }
        }
        assert!(machines.machine("no-such-machine").is_err());
    }
}
