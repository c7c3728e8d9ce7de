//! The catalog of devices in `devices.toml`, and their addresses in a machine of `machines.toml`. The bus of a
//! container, the functions of QEMU and the inventory of the fake NVML are all generated from these entries.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Vendor and device, `10de:2330`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Id {
    pub vendor: u16,
    pub device: u16,
}

/// NVIDIA, as a PCI vendor.
pub const NVIDIA: u16 = 0x10de;

/// Base class, subclass and interface: `030200` is a 3D controller.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Class(pub u32);

/// The address of a function: `0000:18:00.0`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
pub struct Address(String);

/// One model of a PCI function.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Device {
    /// Its name in the product's matrix, or in pci.ids for other devices.
    pub name: String,
    pub id: Id,
    pub subsystem: Id,
    pub class: Class,
    #[serde(default)]
    pub revision: u8,
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// The values of the chip's ID registers. Without it the function is on the bus but no driver binds.
    pub chip: Option<Chip>,
    /// NVML values that differ from the model; missing if the device is not a GPU.
    pub nvml: Option<toml::Table>,
    /// Its vital product data.
    pub vpd: Option<String>,
    /// The sources of the numbers.
    pub source: String,
}

/// A range of memory that a function decodes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bar {
    /// The register, 0 to 5. A 64-bit range also uses the next one.
    pub index: u8,
    /// A power of two, in mebibytes.
    pub mib: u32,
    /// 64-bit and prefetchable.
    #[serde(default)]
    pub prefetchable: bool,
}

/// NVIDIA's numbers of a chip.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Chip {
    /// `NV_PMC_BOOT_42_ARCHITECTURE_…` of `nv_ref.h`.
    pub architecture: u8,
    /// The chip's entry in `g_hal_archimpl.h`.
    pub implementation: u8,
}

/// A device at an address of a machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Place {
    pub address: Address,
    /// The key of the device in the catalog.
    pub device: String,
    #[serde(default)]
    pub numa_node: i32,
    /// The kernel driver that is bound to it from the start.
    pub driver: Option<String>,
    /// It is on the bus, but NVML does not list it.
    #[serde(default)]
    pub silent: bool,
    /// NVML values of this GPU, which override the values of the device.
    #[serde(default)]
    pub nvml: toml::Table,
}

/// An address with its device looked up.
#[derive(Clone, Debug)]
pub struct Function {
    pub address: Address,
    pub device: Device,
    pub numa_node: i32,
    pub driver: Option<String>,
    /// Its NVML values; missing if NVML does not list it.
    pub nvml: Option<toml::Table>,
}

/// The catalog, in the directory of the machine table.
const CATALOGUE: &str = "devices.toml";

/// `devices.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    devices: BTreeMap<String, Device>,
}

/// The part of `machines.toml` that defines the bus. Other parts are read elsewhere.
#[derive(Debug, Deserialize)]
struct Table {
    machines: BTreeMap<String, Machine>,
}

#[derive(Debug, Deserialize)]
struct Machine {
    #[serde(default)]
    pci: Vec<Place>,
}

/// The catalog next to the machine table `path`. An invalid device is rejected, wherever it is used.
pub fn catalogue(path: &Path) -> Result<BTreeMap<String, Device>> {
    let path = path.with_file_name(CATALOGUE);
    let parse = |text: &str| -> Result<BTreeMap<String, Device>> {
        let table: Catalogue = toml::from_str(text)?;
        for (name, device) in &table.devices {
            (device.check()).with_context(|| format!("[devices.{name}]"))?;
        }
        Ok(table.devices)
    };
    parse(&read(&path)?).with_context(|| format!("{} is not valid", path.display()))
}

/// The functions of one machine of the table `path`.
pub fn functions_of(path: &Path, machine: &str) -> Result<Vec<Function>> {
    let devices = catalogue(path)?;
    let parse = |text: &str| -> Result<Vec<Function>> {
        let table: Table = toml::from_str(text)?;
        let Some(row) = table.machines.get(machine) else {
            let names: Vec<&str> = table.machines.keys().map(String::as_str).collect();
            bail!("no [machines.{machine}]; there are {}", names.join(", "));
        };
        functions(&devices, &row.pci).with_context(|| format!("[machines.{machine}]"))
    };
    parse(&read(path)?).with_context(|| format!("{} is not valid", path.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Looks up the device at each address.
pub fn functions(devices: &BTreeMap<String, Device>, places: &[Place]) -> Result<Vec<Function>> {
    let mut seen: BTreeMap<&Address, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, place) in places.iter().enumerate() {
        if let Some(first) = seen.insert(&place.address, index) {
            bail!(
                "pci[{index}].address: {} is already used by pci[{first}]",
                place.address
            );
        }
        let device = devices.get(&place.device).with_context(|| {
            format!(
                "pci[{index}].device: no [devices.{}] in the catalog",
                place.device
            )
        })?;
        let nvml = device.nvml.as_ref().filter(|_| !place.silent).map(|model| {
            let mut answers = model.clone();
            answers.extend(place.nvml.clone());
            answers
        });
        ensure!(
            nvml.is_some() || place.nvml.is_empty(),
            "pci[{index}].nvml: NVML does not list this function"
        );
        found.push(Function {
            address: place.address.clone(),
            device: device.clone(),
            numa_node: place.numa_node,
            driver: place.driver.clone(),
            nvml,
        });
    }
    Ok(found)
}

impl Device {
    /// Whether it is an NVIDIA GPU that the driver binds.
    pub fn is_nvidia_gpu(&self) -> bool {
        self.id.vendor == NVIDIA && self.class.base() == 0x03
    }

    /// Whether it is an NVSwitch, which the driver's fabric manager manages.
    pub fn is_nvswitch(&self) -> bool {
        self.id.vendor == NVIDIA && self.class.base() == 0x06
    }

    /// Checks that a type alone cannot express.
    fn check(&self) -> Result<()> {
        let mut taken = [false; 6];
        for (position, bar) in self.bars.iter().enumerate() {
            let registers = usize::from(bar.index)..usize::from(bar.index) + bar.registers();
            ensure!(
                registers.end <= taken.len(),
                "bars[{position}].index: a function has registers 0 to 5, and a prefetchable \
                 range takes two of them"
            );
            for register in registers {
                ensure!(
                    !taken[register],
                    "bars[{position}].index: register {register} is taken"
                );
                taken[register] = true;
            }
            ensure!(
                bar.mib.is_power_of_two(),
                "bars[{position}].mib: not a power of two"
            );
            ensure!(
                bar.prefetchable || bar.mib <= 2048,
                "bars[{position}].mib: too large for a 32-bit register"
            );
        }
        if let Some(chip) = self.chip {
            ensure!(
                chip.architecture < 0x20,
                "chip.architecture: more than 5 bits"
            );
            ensure!(
                chip.implementation < 0x10,
                "chip.implementation: more than 4 bits"
            );
            ensure!(
                taken[0],
                "chip: its registers are in the range of register 0, which bars does not have"
            );
        }
        ensure!(!self.source.is_empty(), "source: empty");
        Ok(())
    }
}

impl Bar {
    /// In bytes.
    pub fn size(self) -> u64 {
        u64::from(self.mib) << 20
    }

    /// The number of registers that it uses.
    pub fn registers(self) -> usize {
        if self.prefetchable { 2 } else { 1 }
    }
}

impl Chip {
    /// `NV_PMC_BOOT_0` at offset 0: architecture in 28:24, implementation in 23:20, and the revision with the two
    /// digits of the PCI revision.
    pub fn boot_0(self, revision: u8) -> u32 {
        self.chip_id() | u32::from(revision)
    }

    /// `NV_PMC_BOOT_42` at offset 0xa00: architecture in 29:24, implementation in 23:20, the
    /// revision in 19:12.
    pub fn boot_42(self, revision: u8) -> u32 {
        self.chip_id() | u32::from(revision) << 12
    }

    fn chip_id(self) -> u32 {
        u32::from(self.architecture) << 24 | u32::from(self.implementation) << 20
    }
}

impl Class {
    /// The base class: 3 is a display controller.
    pub fn base(self) -> u8 {
        (self.0 >> 16) as u8
    }
}

impl Address {
    /// In kernel notation.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Id, String> {
        text.split_once(':')
            .and_then(|(vendor, device)| {
                Some(Id {
                    vendor: hex(vendor, 4)? as u16,
                    device: hex(device, 4)? as u16,
                })
            })
            .ok_or_else(|| format!("`{text}` is not a pair of IDs such as `10de:2330`"))
    }
}

impl TryFrom<String> for Class {
    type Error = String;

    fn try_from(text: String) -> Result<Class, String> {
        hex(&text, 6)
            .map(Class)
            .ok_or_else(|| format!("`{text}` is not a class such as `030200`"))
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        let valid = || {
            let (rest, function) = text.split_once('.')?;
            let mut parts = rest.split(':');
            hex(parts.next()?, 4)?;
            hex(parts.next()?, 2)?;
            let slot = hex(parts.next()?, 2)?;
            let function = hex(function, 1)?;
            (parts.next().is_none() && slot < 32 && function < 8).then_some(())
        };
        match valid() {
            Some(()) => Ok(Address(text)),
            None => Err(format!("`{text}` is not an address such as `0000:18:00.0`")),
        }
    }
}

/// A number of exactly that many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let plain =
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = r#"
        [devices.gpu]
        name = "a GPU"
        id = "10de:2330"
        subsystem = "10de:16c1"
        class = "030200"
        revision = 0xa1
        bars = [{ index = 0, mib = 16 }]
        chip = { architecture = 0x18, implementation = 0 }
        nvml = { name = "of the model", minor = 3 }
        source = "made up"
    "#;

    fn parse(devices: &str, machines: &str) -> Result<Vec<Function>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machines.toml");
        fs::write(dir.path().join("devices.toml"), devices).unwrap();
        fs::write(&path, machines).unwrap();
        functions_of(&path, "m")
    }

    fn refused(devices: &str, machines: &str) -> String {
        format!("{:#}", parse(devices, machines).unwrap_err())
    }

    #[test]
    fn registers_match_real_h100() {
        let chip = Chip {
            architecture: 0x18,
            implementation: 0,
        };
        assert_eq!(chip.boot_0(0xa1), 0x1800_00a1);
        assert_eq!(chip.boot_42(0xa1), 0x180a_1000);
    }

    #[test]
    fn machine_overrides_values_of_device() {
        let text = "[[machines.m.pci]]\naddress = '0000:18:00.0'\ndevice = 'gpu'\n\
             nvml = { name = 'of the place' }\n\
             [[machines.m.pci]]\naddress = '0000:2a:00.0'\ndevice = 'gpu'\nsilent = true\n";
        let functions = parse(DEVICE, text).unwrap();
        let answers = functions[0].nvml.as_ref().unwrap();
        assert_eq!(answers["name"].as_str(), Some("of the place"));
        assert_eq!(answers["minor"].as_integer(), Some(3));
        assert!(functions[1].nvml.is_none());
    }

    #[test]
    fn errors_contain_file_and_key() {
        let place = "[[machines.m.pci]]\naddress = '0000:18:00.0'\ndevice = 'gpu'\n";
        let cases = [
            (
                DEVICE.replace("10de:2330", "nvidia"),
                "`nvidia` is not a pair",
            ),
            (DEVICE.replace("030200", "0302"), "`0302` is not a class"),
            (
                DEVICE.replace("mib = 16", "mib = 17"),
                "[devices.gpu]: bars[0].mib",
            ),
            (
                DEVICE.replace("index = 0", "index = 6"),
                "[devices.gpu]: bars[0].index",
            ),
            (
                DEVICE.replace("index = 0", "index = 1"),
                "[devices.gpu]: chip",
            ),
            (DEVICE.replace("0x18,", "0x20,"), "chip.architecture"),
            (DEVICE.replace("name = \"a GPU\"", "nmae = 1"), "nmae"),
        ];
        for (text, expected) in cases {
            let message = refused(&text, place);
            assert!(message.contains("devices.toml"), "{message}");
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let places = [
            (
                place.replace("'gpu'", "'gup'"),
                "[machines.m]: pci[0].device: no [devices.gup]",
            ),
            (
                place.repeat(2),
                "pci[1].address: 0000:18:00.0 is already used by pci[0]",
            ),
            (place.replace("18:00.0", "18:20.0"), "is not an address"),
            (
                place.replace("machines.m.", "machines.n."),
                "no [machines.m]; there are n",
            ),
            (
                format!("{place}silent = true\nnvml = {{ name = 'x' }}\n"),
                "pci[0].nvml",
            ),
        ];
        for (place, expected) in places {
            let message = refused(DEVICE, &place);
            assert!(message.contains("machines.toml"), "{message}");
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }
}
