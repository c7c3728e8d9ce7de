//! PCI identifiers of a device: IDs, address and class.

use std::fmt;
use std::str::FromStr;

use crate::text::{as_text, excerpt};

/// NVIDIA's vendor id.
pub const NVIDIA: u16 = 0x10de;
/// The vendor id of Mellanox, whose network adapters NVIDIA makes.
pub const MELLANOX: u16 = 0x15b3;

/// The sysfs directory with a directory for each function on the bus.
pub const DEVICES: &str = "/sys/bus/pci/devices";
/// Paths of the PCI ID database: Debian and Ubuntu; Red Hat and derivatives, and SUSE; older Debian.
pub const NAME_LISTS: [&str; 3] = [
    "/usr/share/misc/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
];

/// An invalid PCI identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PciError {
    #[error("`{text}` is not a PCI id such as `10de:2330`")]
    Id { text: String },
    #[error("`{text}` is not a PCI address such as `0000:18:00.0`")]
    Address { text: String },
    #[error("`{text}` is not a PCI class such as `0x030200`")]
    Class { text: String },
}

/// Vendor and device, or vendor and device of a subsystem: `10de:2330`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciId {
    pub vendor: u16,
    /// The device ID, assigned by the vendor.
    pub device: u16,
}

impl FromStr for PciId {
    type Err = PciError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let digits = digits.strip_prefix("0x").unwrap_or(digits);
            (digits.len() == 4).then(|| hex(digits)).flatten()
        };
        text.split_once(':')
            .and_then(|(vendor, device)| {
                let vendor = u16::try_from(number(vendor)?).ok()?;
                let device = u16::try_from(number(device)?).ok()?;
                Some(Self { vendor, device })
            })
            .ok_or_else(|| PciError::Id {
                text: excerpt(text),
            })
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

as_text!(
    PciId,
    "PCI vendor and device id, such as 10de:2330",
    "^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$"
);

/// The address of a device: domain, bus, device and function, `0000:18:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain; wider than 16 bits behind some host bridges.
    pub domain: u32,
    pub bus: u8,
    /// The device, at most 31.
    pub device: u8,
    /// The function, at most 7.
    pub function: u8,
}

impl FromStr for PciAddress {
    type Err = PciError;

    /// Accepts the forms of sysfs (`0000:18:00.0`), `lspci` (`18:00.0`) and NVML
    /// (`00000000:18:00.0`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_address(text).ok_or_else(|| PciError::Address {
            text: excerpt(text),
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

as_text!(
    PciAddress,
    "PCI address, such as 0000:18:00.0",
    r"^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$"
);

/// Class, subclass and programming interface, as in sysfs: `0x030200`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciClass(pub u32);

impl PciClass {
    /// Class and subclass without the programming interface.
    pub fn base_and_sub(self) -> u32 {
        self.0 >> 8
    }

    /// A VGA controller or a 3D controller, the classes of NVIDIA GPUs.
    pub fn is_gpu(self) -> bool {
        matches!(self.base_and_sub(), 0x0300 | 0x0302)
    }

    /// A display controller or a processing accelerator: the GPU classes of all vendors.
    pub fn is_display_or_accelerator(self) -> bool {
        matches!(self.0 >> 16, 0x03 | 0x12)
    }

    /// A bridge of the subclass "other", the class of NVSwitches. Other NVIDIA bridges also have it, so the PCI ID must be
    /// compared as well.
    pub fn is_nvswitch(self) -> bool {
        self.base_and_sub() == 0x0680
    }

    /// An Ethernet or InfiniBand adapter.
    pub fn is_network(self) -> bool {
        matches!(self.base_and_sub(), 0x0200 | 0x0207)
    }
}

impl FromStr for PciClass {
    type Err = PciError;

    /// Accepts the forms of sysfs (`0x030200`) and of `lspci -n` (`0302`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let class = match digits.len() {
            6 => hex(digits).map(Self),
            4 => hex(digits).map(|class| Self(class << 8)),
            _ => None,
        };
        class.ok_or_else(|| PciError::Class {
            text: excerpt(text),
        })
    }
}

impl fmt::Display for PciClass {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "0x{:06x}", self.0)
    }
}

as_text!(
    PciClass,
    "PCI class, such as 0x030200",
    "^(0x)?([0-9a-fA-F]{4}|[0-9a-fA-F]{6})$"
);

/// A hexadecimal number without a sign; the standard parser would accept `+5`.
fn hex(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

fn parse_address(text: &str) -> Option<PciAddress> {
    let (place, function) = text.rsplit_once('.')?;
    let mut words = place.rsplit(':');
    let device = words.next().filter(|w| w.len() == 2).and_then(hex)?;
    let bus = words.next().filter(|w| w.len() == 2).and_then(hex)?;
    let domain = match words.next() {
        Some(word) if (4..=8).contains(&word.len()) => hex(word)?,
        Some(_) => return None,
        None => 0,
    };
    let function = hex(function)?;
    if words.next().is_some() || device > 31 || function > 7 {
        return None;
    }
    Some(PciAddress {
        domain,
        bus: u8::try_from(bus).ok()?,
        device: u8::try_from(device).ok()?,
        function: u8::try_from(function).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed() {
        let id: PciId = "10DE:2330".parse().unwrap();
        assert_eq!(
            id,
            PciId {
                vendor: NVIDIA,
                device: 0x2330
            }
        );
        assert_eq!(id.to_string(), "10de:2330");
        assert_eq!("0x10de:0x2330".parse(), Ok(id));
        for text in [
            "",
            "10de",
            "10de:233",
            "10de:23300",
            "10de:xxxx",
            "+0de:2330",
            "10de:2330:1",
        ] {
            assert!(text.parse::<PciId>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_of_sysfs_lspci_and_nvml_are_parsed() {
        let address: PciAddress = "0000:18:00.0".parse().unwrap();
        assert_eq!(address.to_string(), "0000:18:00.0");
        assert_eq!("18:00.0".parse(), Ok(address));
        assert_eq!("00000000:18:00.0".parse(), Ok(address));
        let wide: PciAddress = "10000:E1:1f.7".parse().unwrap();
        assert_eq!(wide.to_string(), "10000:e1:1f.7");
        for text in [
            "",
            "18:00",
            "0000:18:20.0",
            "0000:18:00.8",
            "000:18:00.0",
            "1:2:3:4.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn classes_are_distinguished() {
        let class = |text: &str| text.parse::<PciClass>().unwrap();
        assert!(class("0x030200").is_gpu());
        assert!(class("0x030000").is_gpu());
        assert!(class("0302").is_gpu());
        assert!(!class("0x040300").is_gpu());
        assert!(class("0x038000").is_display_or_accelerator());
        assert!(class("0x120000").is_display_or_accelerator());
        assert!(!class("0x060400").is_display_or_accelerator());
        assert!(class("0x068000").is_nvswitch());
        assert!(!class("0x060400").is_nvswitch());
        assert!(class("0x020700").is_network());
        assert_eq!(class("0302").to_string(), "0x030200");
        assert!("0x03".parse::<PciClass>().is_err());
    }

    #[test]
    fn identifiers_are_strings_in_json() {
        let id: PciId = "10de:2330".parse().unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"10de:2330\"");
        assert_eq!(serde_json::from_str::<PciId>("\"10de:2330\"").unwrap(), id);
    }
}
