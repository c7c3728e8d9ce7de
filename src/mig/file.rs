//! The layout file of NVIDIA's MIG manager (`version: v1`), which is accepted unchanged. Source: NVIDIA/mig-parted v0.15.0,
//! `api/spec/v1/spec.go`.
//!
//! Differences: `devices: all` never covers a GPU without MIG, and such a GPU needs no entry.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::layout::{Layout, Profile};
use crate::{
    model::{fault::Fault, pci::PciId, text::nearest},
    tools::yaml,
};

/// More instances than any GPU has.
const MOST: u32 = 64;

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LayoutFile {
    version: Version,
    mig_configs: BTreeMap<String, Vec<Spanned<Entry>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
enum Version {
    #[serde(rename = "v1")]
    V1,
}

/// An entry of a layout. The last entry that matches a GPU is used.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    #[serde(default)]
    device_filter: Option<Filters>,
    devices: Devices,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: Option<BTreeMap<Profile, u32>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Filters {
    One(Filter),
    Any(Vec<Filter>),
}

/// A model: `0x233010DE`, or with its subsystem `0x233010DE:0x16C110DE`. The device precedes the vendor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Filter {
    id: PciId,
    subsystem: Option<PciId>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Devices {
    Word(All),
    Indices(Vec<u32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
enum All {
    #[serde(rename = "all")]
    All,
}

const FILTER: &str = "a device filter such as `0x233010DE` or `0x233010DE:0x16C110DE`";

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = |text: &str| {
            let digits = text
                .strip_prefix("0x")
                .or_else(|| text.strip_prefix("0X"))?;
            let is_hex = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
            let [device_high, device_low, vendor_high, vendor_low] = number.to_be_bytes();
            Some(PciId {
                vendor: u16::from_be_bytes([vendor_high, vendor_low]),
                device: u16::from_be_bytes([device_high, device_low]),
            })
        };
        let parsed = match text.split_once(':') {
            Some((device, subsystem)) => id(device).zip(id(subsystem).map(Some)),
            None => id(text).map(|id| (id, None)),
        };
        let (id, subsystem) = parsed.ok_or_else(|| format!("`{text}` is not {FILTER}"))?;
        Ok(Self { id, subsystem })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "0x{:04X}{:04X}", self.id.device, self.id.vendor)?;
        match self.subsystem {
            Some(id) => write!(to, ":0x{:04X}{:04X}", id.device, id.vendor),
            None => Ok(()),
        }
    }
}

gpu_compat::serde_as_text!(Filter, FILTER);

/// A GPU of the machine, for the rules of a file.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// Its position among the GPUs of the machine, by PCI address.
    pub index: u32,
    pub id: Option<PciId>,
    pub subsystem: Option<PciId>,
    pub supports_mig: bool,
}

impl Entry {
    fn matches(&self, gpu: Listed) -> bool {
        let filters = match &self.device_filter {
            None => &[][..],
            Some(Filters::One(filter)) => std::slice::from_ref(filter),
            Some(Filters::Any(filters)) => filters,
        };
        let is_model = |filter: &Filter| {
            Some(filter.id) == gpu.id
                && (filter.subsystem.is_none() || filter.subsystem == gpu.subsystem)
        };
        let is_device = match &self.devices {
            Devices::Word(All::All) => gpu.supports_mig || !self.mig_enabled,
            Devices::Indices(indices) => indices.contains(&gpu.index),
        };
        (filters.is_empty() || filters.iter().any(is_model)) && is_device
    }

    fn layout(&self) -> Layout {
        if !self.mig_enabled {
            return Layout::default();
        }
        let devices = self.mig_devices.iter().flatten();
        let profiles = devices.flat_map(|(profile, count)| {
            let count = usize::try_from(*count).unwrap_or_default();
            std::iter::repeat_n(*profile, count)
        });
        Layout::with(profiles.collect())
    }

    /// Returns the violated rule.
    fn fault(&self) -> Option<String> {
        let counts = self.mig_devices.as_ref();
        let total = |counts: &BTreeMap<Profile, u32>| {
            counts
                .values()
                .fold(0_u32, |sum, one| sum.saturating_add(*one))
        };
        match (self.mig_enabled, counts) {
            (true, None) => Some("`mig-devices` is missing, which may be empty (`{}`)".to_owned()),
            (false, Some(counts)) if !counts.is_empty() => {
                Some("`mig-devices` must be empty if `mig-enabled` is false".to_owned())
            }
            (true, Some(counts)) if !counts.is_empty() && total(counts) == 0 => {
                Some("all counts in `mig-devices` are 0".to_owned())
            }
            (true, Some(counts)) if total(counts) > MOST => {
                Some(format!("`mig-devices` has more than {MOST} instances"))
            }
            _ => None,
        }
    }
}

impl LayoutFile {
    /// Parses a file. Profiles are not compared with GPUs here.
    ///
    /// # Errors
    /// If it violates the format, with the line and the key.
    pub fn parse(path: &str, text: &str) -> Result<Self, Fault> {
        let wrong = |why: String| {
            Fault::new(
                format!("`{path}` is not a valid layout file: {why}"),
                format!("correct `{path}`, or set `mig.layout` instead of `mig.file`"),
            )
        };
        let file: Self = yaml::parse(text).map_err(wrong)?;
        if file.mig_configs.is_empty() {
            return Err(wrong("`mig-configs` is empty".to_owned()));
        }
        for (name, entries) in &file.mig_configs {
            if entries.is_empty() {
                return Err(wrong(format!("`mig-configs.{name}` has no entry")));
            }
            for entry in entries {
                if let Some(why) = entry.value.fault() {
                    let line = entry.referenced.line();
                    return Err(wrong(format!("line {line}, `mig-configs.{name}`: {why}")));
                }
            }
        }
        Ok(file)
    }

    /// Selects a layout of the file. Without a name, the file must contain only one.
    ///
    /// # Errors
    /// If there is no such layout, or no name for several ones.
    pub fn choose(&self, path: &str, name: Option<&str>) -> Result<Chosen<'_>, Fault> {
        let names: Vec<&str> = self.mig_configs.keys().map(String::as_str).collect();
        let found = match name {
            Some(name) => self.mig_configs.get_key_value(name),
            None if names.len() == 1 => self.mig_configs.iter().next(),
            None => None,
        };
        if let Some((name, entries)) = found {
            return Ok(Chosen { name, entries });
        }
        Err(match name {
            Some(name) => Fault::new(
                format!("`{path}` has no layout `{name}`"),
                match nearest(name, names.iter().copied()) {
                    Some(near) => format!("set `mig.config = \"{near}\"`"),
                    None => format!("set `mig.config` to one of {}", names.join(", ")),
                },
            ),
            None => Fault::new(
                format!("`{path}` has {} layouts", names.len()),
                format!("set `mig.config` to one of {}", names.join(", ")),
            ),
        })
    }
}

/// A layout of a file.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'f> {
    name: &'f str,
    entries: &'f [Spanned<Entry>],
}

impl Chosen<'_> {
    /// Returns the layout of a GPU, and the line and the key of its entry. `None` for a GPU without MIG that the file does not
    /// mention.
    ///
    /// # Errors
    /// If no entry matches a GPU with MIG, or if the entry of a GPU without MIG enables it.
    pub fn layout(&self, gpu: Listed) -> Result<Option<(Layout, String)>, String> {
        let name = self.name;
        let last = self.entries.iter().rfind(|entry| entry.value.matches(gpu));
        let Some(entry) = last else {
            return match gpu.supports_mig {
                true => Err(format!("no entry of `mig-configs.{name}` matches it")),
                false => Ok(None),
            };
        };
        let place = format!("line {}, `mig-configs.{name}`", entry.referenced.line());
        if entry.value.mig_enabled && !gpu.supports_mig {
            return Err(format!("{place}: it does not support MIG"));
        }
        Ok(Some((entry.value.layout(), place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    /// The kinds of entries in mig-parted's example and default files.
    const FILE: &str = r#"
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false

  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}

  # A100 40 GB
  all-1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 7

  # Models with different profiles
  all-balanced:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 2
      "2g.10gb": 1
      "3g.20gb": 1
  - device-filter: "0x233010DE"
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.10gb": 2
      "2g.20gb": 1
      "3g.40gb": 1

  all-1g.10gb.me:
  - device-filter: ["0x233010DE:0x16C110DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.10gb+me": 1

  custom-config:
  - devices: [0, 1]
    mig-enabled: false
  - devices: [1]
    mig-enabled: true
    mig-devices:
      "1g.10gb": 4
      "3g.40gb": 0
  - devices: [2]
    mig-enabled: true
    mig-devices: {"1c.3g.40gb": 1}
"#;

    fn gpu(index: u32, id: &str) -> Listed {
        Listed {
            index,
            id: id.parse().ok(),
            subsystem: "10de:16c1".parse().ok(),
            supports_mig: true,
        }
    }

    fn layout(name: &str, gpu: Listed) -> Result<Option<String>, String> {
        let file = LayoutFile::parse("config.yaml", FILE).unwrap();
        let found = file
            .choose("config.yaml", Some(name))
            .unwrap()
            .layout(gpu)?;
        Ok(found.map(|(layout, _)| layout.to_string()))
    }

    #[test]
    fn last_matching_entry_decides() {
        for (name, index, id, text) in rows! {
            "all-disabled", 0, "10de:2330", "disabled";
            "all-enabled", 0, "10de:2330", "enabled";
            "all-1g.5gb", 3, "10de:20b0", "1g.5gb*7";
            "all-balanced", 0, "10de:20f1", "3g.20gb,2g.10gb,1g.5gb*2";
            "all-balanced", 1, "10de:2330", "3g.40gb,2g.20gb,1g.10gb*2";
            "all-1g.10gb.me", 1, "10de:2330", "1g.10gb+me";
            "custom-config", 0, "10de:2330", "disabled";
            "custom-config", 1, "10de:2330", "1g.10gb*4";
            "custom-config", 2, "10de:2330", "1c.3g.40gb";
        } {
            let found = layout(name, gpu(index, id));
            assert_eq!(found, Ok(Some(text.to_owned())), "{name}");
        }
    }

    #[test]
    fn gpu_without_entry_is_an_error() {
        let missing = "no entry of `mig-configs.all-balanced` matches it";
        assert_eq!(
            layout("all-balanced", gpu(0, "10de:2335")),
            Err(missing.to_owned())
        );
        let other = Listed {
            subsystem: None,
            ..gpu(0, "10de:2330")
        };
        assert!(layout("all-1g.10gb.me", other).is_err());
    }

    #[test]
    fn gpu_without_mig_is_skipped_unless_listed() {
        let plain = |index| Listed {
            supports_mig: false,
            ..gpu(index, "10de:27b8")
        };
        assert_eq!(layout("all-1g.5gb", plain(0)), Ok(None));
        assert_eq!(
            layout("all-disabled", plain(0)),
            Ok(Some("disabled".to_owned()))
        );
        let why = layout("custom-config", plain(1)).unwrap_err();
        assert_eq!(
            why,
            "line 47, `mig-configs.custom-config`: it does not support MIG"
        );
    }

    #[test]
    fn layout_is_selected_by_name() {
        let file = LayoutFile::parse("f", FILE).unwrap();
        let fault = file.choose("f", Some("all-balancd")).unwrap_err();
        assert_eq!(fault.why, "`f` has no layout `all-balancd`");
        assert_eq!(fault.remedy, "set `mig.config = \"all-balanced\"`");
        assert_eq!(file.choose("f", None).unwrap_err().why, "`f` has 6 layouts");
        let one = "version: v1\nmig-configs:\n  x:\n  - devices: all\n    mig-enabled: false\n";
        let file = LayoutFile::parse("f", one).unwrap();
        assert_eq!(file.choose("f", None).unwrap().name, "x");
    }

    #[test]
    fn invalid_file_is_rejected_with_its_line() {
        let entry = |text: &str| format!("version: v1\nmig-configs:\n  x:\n  - {text}\n");
        for (text, why) in [
            ("mig-configs: {}".to_owned(), "version"),
            ("version: v2\nmig-configs: {}".to_owned(), "v2"),
            (
                "version: v1\nmig-configs: {}".to_owned(),
                "`mig-configs` is empty",
            ),
            (
                "version: v1\nmig-configs:\n  x: []\n".to_owned(),
                "`mig-configs.x` has no entry",
            ),
            (entry("devices: all"), "mig-enabled"),
            (entry("mig-enabled: false"), "devices"),
            (
                entry("{devices: all, mig-enabled: false, other: 1}"),
                "other",
            ),
            (
                entry("{devices: all, mig-enabled: true}"),
                "line 4, `mig-configs.x`: `mig-devices` is missing",
            ),
            (
                entry("{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}"),
                "line 4, `mig-configs.x`: `mig-devices` must be empty",
            ),
            (
                entry("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}"),
                "line 4, `mig-configs.x`: all counts in `mig-devices` are 0",
            ),
            (
                entry("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 4000000000}}"),
                "more than 64 instances",
            ),
            (
                entry("{devices: all, mig-enabled: true, mig-devices: {1g.5gb+me-me: 1}}"),
                "`1g.5gb+me-me` is not a MIG profile",
            ),
            (
                entry("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}"),
                "line 4",
            ),
        ] {
            let fault = LayoutFile::parse("f.yaml", &text).unwrap_err();
            assert!(fault.why.contains(why), "{text}\n{}", fault.why);
        }
        // An untagged value has no better message.
        for text in [
            entry("{devices: some, mig-enabled: false}"),
            entry("{devices: all, device-filter: 2330, mig-enabled: false}"),
        ] {
            assert!(LayoutFile::parse("f.yaml", &text).is_err(), "{text}");
        }
    }

    reads_any_text!(
        "(version: v1|mig-configs:|devices|all|mig-enabled|true|- |  |\n|:|0x|[0-9a-f]|.)*",
        |text| LayoutFile::parse("f", &text); text.parse::<Filter>()
    );
}
