//! `machines.toml`: the machines that the harness can build, and their parts. Their devices are in `devices.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gpu_bootstrap_vm_pci::table::{self, Device, Function, Place};
use serde::Deserialize;

use crate::metadata::Cloud;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machines {
    pub toolkit: Toolkit,
    /// The newest CUDA version of each driver branch, for the NVML results.
    pub cuda_of_branch: BTreeMap<String, String>,
    pub roots: BTreeMap<String, Root>,
    /// Root filesystems that simulate Ubuntu.
    #[serde(default)]
    pub ubuntu: BTreeMap<String, Ubuntu>,
    /// Root filesystems whose repositories have packages with real contents: the file of the contents.
    #[serde(default)]
    pub real: BTreeMap<String, String>,
    /// Disks of machines of the kind `image`.
    #[serde(default)]
    pub images: BTreeMap<String, Image>,
    /// The catalog of PCI devices, set by [`Machines::load`].
    #[serde(skip)]
    pub devices: BTreeMap<String, Device>,
    pub machines: BTreeMap<String, MachineSpec>,
}

/// The origin of NVIDIA's container toolkit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Toolkit {
    pub module: String,
    pub version: String,
    /// Revision of the packages that are built from it.
    pub revision: String,
    /// The oldest Go version that compiles it.
    pub go: String,
}

/// A root filesystem.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Root {
    pub suite: String,
    pub packages: Vec<String>,
    /// The simulated release, in the directory `rpms`. After a slash, the kernel series, if the release has several.
    pub almalinux: Option<String>,
    /// Whether its packages are from the last point release, as in an image built at that time. Its apt still has the
    /// security updates.
    #[serde(default)]
    pub point_release: bool,
    /// The only modules of its initramfs, which keeps it small and fast. Without this key the distribution's default
    /// applies, with most modules.
    #[serde(default)]
    pub initramfs: Vec<String>,
}

/// A root filesystem of Debian programs that simulates Ubuntu.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ubuntu {
    /// Debian's root filesystem, without a kernel.
    pub from: String,
    /// The files of its repository and package table.
    pub packages: Vec<String>,
}

/// A disk with a boot loader and cloud-init.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "ImageRow")]
pub enum Image {
    /// Published by a distribution, with a checksum list.
    Published { image: String, checksums: String },
    /// Built here from a root filesystem.
    Made { from: String },
}

/// An image in the TOML file: `image` and `checksums`, or `from`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageRow {
    image: Option<String>,
    checksums: Option<String>,
    from: Option<String>,
}

impl TryFrom<ImageRow> for Image {
    type Error = &'static str;

    fn try_from(row: ImageRow) -> Result<Image, Self::Error> {
        match (row.image, row.checksums, row.from) {
            (Some(image), Some(checksums), None) => Ok(Image::Published { image, checksums }),
            (None, None, Some(from)) => Ok(Image::Made { from }),
            _ => Err("an image has `image` and `checksums`, or `from`"),
        }
    }
}

/// A machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachineSpec {
    pub about: String,
    pub kind: Kind,
    /// A root filesystem; for the kind `image` one of the images.
    pub root: String,
    /// The configuration that replaces the one for Debian 12 if a case runs on this machine instead of its own.
    pub config: Option<String>,
    /// The directory below `configs` with the configurations of cases on this machine.
    #[serde(default)]
    pub configs: String,
    /// DKMS packages of the archive whose modules are compiled once for its kernel, and copied to it.
    #[serde(default)]
    pub carried: Vec<String>,
    /// The kernel of a simulated Ubuntu machine, from its package table.
    pub kernel: Option<String>,
    /// The firmware of such a machine reports Secure Boot, and its kernel rejects unsigned modules.
    #[serde(default)]
    pub secure_boot: bool,
    /// DMI values of such a machine: `sys_vendor` and the like.
    #[serde(default)]
    pub dmi: BTreeMap<String, String>,
    /// Its simulated kernel loads modules at any time, as on each simulated Ubuntu machine.
    #[serde(default)]
    pub loads_modules: bool,
    /// Directories of `image-files` whose files are in its image in addition to its packages.
    #[serde(default)]
    pub image_files: Vec<String>,
    /// It simulates an instance of this cloud: `clouds/NAME.toml`.
    pub cloud: Option<Cloud>,
    /// The devices on its bus, by address.
    #[serde(default)]
    pub pci: Vec<Place>,
    /// The NVML faults: `[faults]` in `nvml/README.md`.
    #[serde(default)]
    pub faults: toml::Table,
    /// Its name in the table, set by [`Machines::load`].
    #[serde(skip)]
    pub key: String,
    /// `pci` with the devices looked up, set by [`Machines::load`].
    #[serde(skip)]
    pub functions: Vec<Function>,
}

/// How a machine runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A container booted by systemd-nspawn: native speed, the host's kernel.
    #[default]
    Container,
    /// Emulated by QEMU: its own kernel, its own bus, reboots and power losses.
    Vm,
    /// The same, from a distribution's cloud image, with its own boot loader and cloud-init.
    Image,
}

impl Kind {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Container => "container",
            Kind::Vm => "vm",
            Kind::Image => "image",
        }
    }

    /// Whether it has its own kernel and bus.
    pub fn is_emulated(self) -> bool {
        self != Kind::Container
    }
}

impl Machines {
    pub fn load(path: &Path) -> Result<Machines> {
        let devices = table::catalogue(path)?;
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text, devices).with_context(|| format!("{} is not valid", path.display()))
    }

    fn parse(text: &str, devices: BTreeMap<String, Device>) -> Result<Machines> {
        let mut table: Machines = toml::from_str(text)?;
        table.devices = devices;
        for (name, machine) in &mut table.machines {
            machine.key = name.clone();
            machine.functions = table::functions(&table.devices, &machine.pci)
                .with_context(|| format!("[machines.{name}]"))?;
        }
        Ok(table)
    }

    /// The CUDA version of a driver.
    pub fn cuda_of(&self, driver: &str) -> Result<&str> {
        let branch = driver.split('.').next().unwrap_or_default();
        self.cuda_of_branch
            .get(branch)
            .map(String::as_str)
            .with_context(|| format!("machines.toml has no CUDA version for branch {branch}"))
    }

    /// Whether a machine has its root filesystem.
    pub fn has_root(&self, spec: &MachineSpec) -> bool {
        match spec.kind {
            Kind::Image => self.images.contains_key(&spec.root),
            Kind::Vm => self.roots.contains_key(&spec.root),
            Kind::Container => match self.ubuntu.get(&spec.root) {
                Some(ubuntu) => spec.kernel.is_some() && self.roots.contains_key(&ubuntu.from),
                None => self.roots.contains_key(&spec.root),
            },
        }
    }

    /// A root filesystem by name.
    pub fn root(&self, name: &str) -> Result<&Root> {
        self.roots
            .get(name)
            .with_context(|| format!("machines.toml has no root `{name}`"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn machines() -> Machines {
        Machines::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines.toml")).unwrap()
    }

    #[test]
    fn repository_table_parses() {
        let machines = machines();
        for (name, machine) in &machines.machines {
            assert!(machines.has_root(machine), "{name}");
            for directory in &machine.image_files {
                let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("../image-files")
                    .join(directory);
                assert!(directory.is_dir(), "{name}: {}", directory.display());
            }
            if let Some(config) = &machine.config {
                let file = Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("../configs")
                    .join(config);
                assert!(file.is_file(), "{name}");
            }
        }
        assert!(machines.machine("no-such-machine").is_err());
        let eight = &machines.machine("h100x8-dkms").unwrap().functions;
        let gpus = eight.iter().filter(|f| f.device.is_nvidia_gpu()).count();
        assert_eq!((eight.len(), gpus), (12, 8));
    }

    #[test]
    fn invalid_image_entries_are_rejected() {
        let error = |text: &str| toml::from_str::<Image>(text).unwrap_err().to_string();
        assert!(error("image = 'x'").contains("`image` and `checksums`, or `from`"));
        assert!(error("form = 'x'").contains("unknown field `form`"));
        assert!(error("from = 'x'\nimage = 'y'").contains("or `from`"));
    }

    /// The architectures of the matrix, by NVIDIA's number.
    const ARCHITECTURES: [(u8, &str); 7] = [
        (0x14, "volta"),
        (0x16, "turing"),
        (0x17, "ampere"),
        (0x18, "hopper"),
        (0x19, "ada"),
        (0x1a, "blackwell"),
        (0x1b, "blackwell"),
    ];

    /// The machines must test the product with the IDs of its own matrix, not with invented ones.
    #[test]
    fn devices_match_matrix() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../compat/cuda-driver-matrix.toml");
        let matrix: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        let row = |kind: &str, id: &str| {
            let found = matrix[kind].as_array().unwrap().iter().find(|row| {
                row.get("pci-id").and_then(toml::Value::as_str) == Some(id)
                    && row.get("subsystem-id").is_none()
            });
            found
                .cloned()
                .unwrap_or_else(|| panic!("the matrix has no [[{kind}]] {id}"))
        };
        for (key, device) in &machines().devices {
            if device.is_nvidia_gpu() {
                let gpu = row("gpu", &device.id.to_string());
                assert_eq!(gpu["name"].as_str(), Some(device.name.as_str()), "{key}");
                let chip = device.chip.as_ref();
                let number = chip
                    .unwrap_or_else(|| panic!("{key} has no `chip`"))
                    .architecture;
                let architecture = ARCHITECTURES.iter().find(|(n, _)| *n == number).unwrap().1;
                assert_eq!(gpu["architecture"].as_str(), Some(architecture), "{key}");
            } else if device.id.vendor == table::NVIDIA && device.class.base() == 0x06 {
                let switch = row("nvswitch", &device.id.to_string());
                assert_eq!(switch["name"].as_str(), Some(device.name.as_str()), "{key}");
            }
        }
    }
}
