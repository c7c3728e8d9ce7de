//! Parses the output formats of `lspci`.

use super::{Driver, Function};
use crate::model::pci::{MELLANOX, NVIDIA, PciAddress, PciClass, PciId};

/// The text is not `lspci` output with IDs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LspciError {
    /// A line starts with an address but has no class or ID.
    #[error("line {line}: `{text}` has no numeric class and IDs")]
    NoIds {
        /// The line number, starting at 1.
        line: usize,
        /// The text of the line.
        text: String,
    },
    /// There are more functions than any machine has.
    #[error("more than {MOST} PCI functions")]
    TooMany,
    /// No line starts with an address.
    #[error("none of the {lines} lines starts with a PCI address")]
    NoFunctions {
        /// The number of lines.
        lines: usize,
    },
}

/// The maximum number of functions. The largest servers have some hundred, including all virtual functions.
const MOST: usize = 4096;

/// The vendor names that precede the device names in the output of `-nn`.
const VENDORS: [&str; 4] = [
    "NVIDIA Corporation",
    "nVidia Corporation",
    "Mellanox Technologies",
    "NVIDIA",
];

/// Parses the output of `lspci`. Unrelated lines are ignored, for example the text around the output in a ticket.
///
/// # Errors
/// If a line with an address has no IDs, if no line has an address, or if there are too many functions.
pub fn parse(text: &str) -> Result<Vec<Function>, LspciError> {
    let mut found: Vec<Function> = Vec::new();
    let mut details = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let (first, rest) = trimmed
            .split_once(char::is_whitespace)
            .unwrap_or((trimmed, ""));
        if let Ok(address) = first.parse::<PciAddress>() {
            let function = if rest.trim_start().starts_with('"') {
                machine_readable(address, rest)
            } else {
                for_people(address, rest)
            };
            if found.len() == MOST {
                return Err(LspciError::TooMany);
            }
            found.push(function.ok_or_else(|| LspciError::NoIds {
                line: index + 1,
                text: shortened(trimmed),
            })?);
        } else if let Some(function) = found.last_mut() {
            details |= detail(function, trimmed);
        }
    }
    if found.is_empty() {
        let lines = text.lines().count();
        return Err(LspciError::NoFunctions { lines });
    }
    if details {
        // `-k` and `-v` print the driver of every function that has one.
        for function in &mut found {
            if function.driver == Driver::NotReported {
                function.driver = Driver::None;
            }
        }
    }
    found.sort_by_key(|function| function.address);
    found.dedup_by_key(|function| function.address);
    Ok(found)
}

fn shortened(line: &str) -> String {
    const MOST: usize = 60;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Parses `-n` and `-nn`: `3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331] (rev a1)`, or `0302:
/// 10de:2331 (rev a1)`.
fn for_people(address: PciAddress, rest: &str) -> Option<Function> {
    let (class, device) = classified(rest)?;
    // The rest, in parentheses: revision and programming interface.
    let (device, revision) = match device.find(" (rev ") {
        Some(at) => {
            let (device, rest) = device.split_at(at);
            let digits = rest.get(6..8)?;
            (device, u8::from_str_radix(digits, 16).ok())
        }
        None => (device.split(" (prog-if").next()?, None),
    };
    let device = device.trim();
    let (name, id) = match device.strip_suffix(']') {
        Some(inner) => {
            let (name, id) = inner.rsplit_once('[')?;
            (name.trim(), id)
        }
        None => ("", device),
    };
    let id: PciId = id.parse().ok()?;
    Some(Function {
        address,
        class,
        id,
        name: name_of(id, name),
        subsystem: None,
        revision,
        driver: Driver::NotReported,
        numa_node: None,
    })
}

/// Returns the class and the rest of the line. The class is a number, or a name with a number in brackets.
fn classified(rest: &str) -> Option<(PciClass, &str)> {
    let rest = rest.trim_start();
    if let Some((name, device)) = rest.split_once("]: ") {
        let (_, class) = name.rsplit_once('[')?;
        return Some((class.parse().ok()?, device));
    }
    let (class, device) = rest.split_once(": ")?;
    let class = class.strip_prefix("Class ").unwrap_or(class);
    Some((class.trim().parse().ok()?, device))
}

/// Returns the device name without the vendor name. `None` if `pci.ids` does not contain it, or for a vendor other than NVIDIA
/// and Mellanox.
fn name_of(id: PciId, name: &str) -> Option<String> {
    if !matches!(id.vendor, NVIDIA | MELLANOX) {
        return None;
    }
    let name = VENDORS
        .iter()
        .find_map(|vendor| name.strip_prefix(vendor))
        .unwrap_or(name)
        .trim();
    (!name.is_empty() && !name.starts_with("Device")).then(|| name.to_owned())
}

/// Parses `-nmm` and `-nnmm`: `"0302" "10de" "2331" -ra1 "10de" "1626"`, or names with the numbers in brackets.
fn machine_readable(address: PciAddress, rest: &str) -> Option<Function> {
    let mut quoted = Vec::new();
    let mut revision = None;
    for (at, part) in rest.split('"').enumerate() {
        if at % 2 == 1 {
            quoted.push(part);
        } else if let Some(digits) = part.split_whitespace().find_map(|w| w.strip_prefix("-r")) {
            revision = u8::from_str_radix(digits, 16).ok();
        }
    }
    let number = |field: &str| -> Option<String> {
        let number = match field.strip_suffix(']') {
            Some(inner) => inner.rsplit_once('[')?.1,
            None => field,
        };
        Some(number.to_owned())
    };
    let id = |vendor: &str, device: &str| -> Option<PciId> {
        format!("{}:{}", number(vendor)?, number(device)?)
            .parse()
            .ok()
    };
    let [class, vendor, device, boards @ ..] = quoted.as_slice() else {
        return None;
    };
    let own = id(vendor, device)?;
    let name = device.strip_suffix(']').and_then(|d| d.rsplit_once('['));
    Some(Function {
        address,
        class: number(class)?.parse().ok()?,
        id: own,
        name: name.and_then(|(name, _)| name_of(own, name.trim())),
        subsystem: match boards {
            [vendor, device, ..] => id(vendor, device),
            _ => None,
        },
        revision,
        driver: Driver::NotReported,
        numa_node: None,
    })
}

/// Parses a detail line of a function. Returns `true` for a line that lspci prints only with `-k` or `-v`.
fn detail(function: &mut Function, line: &str) -> bool {
    let Some((key, value)) = line.split_once(':') else {
        let dead = line.starts_with("!!! Unknown header type");
        if dead {
            function.revision = Some(0xff);
        }
        return dead;
    };
    let value = value.trim();
    match key {
        "Subsystem" => {
            let id = match value.strip_suffix(']').and_then(|v| v.rsplit_once('[')) {
                Some((_, id)) => id,
                None => value,
            };
            function.subsystem = id.parse().ok();
        }
        "Kernel driver in use" => function.driver = Driver::Bound(value.to_owned()),
        "NUMA node" => function.numa_node = value.parse().ok(),
        "Kernel modules" | "Control" | "Flags" => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    fn one(text: &str) -> Function {
        let found = parse(text).unwrap();
        assert_eq!(found.len(), 1, "{text}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn more_functions_than_any_machine_are_rejected() {
        let lines = |count: usize| -> String {
            let line = |at: usize| {
                let (domain, bus, device) = (at >> 13, (at >> 5) & 0xff, at & 0x1f);
                format!("{domain:04x}:{bus:02x}:{device:02x}.0 0302: 10de:2331 (rev a1)\n")
            };
            (0..count).map(line).collect()
        };
        assert_eq!(parse(&lines(MOST)).unwrap().len(), MOST);
        assert_eq!(parse(&lines(MOST + 1)), Err(LspciError::TooMany));
    }

    #[test]
    fn gpu_is_parsed_in_every_format() {
        // From Contrast's documentation, Akash's provider-configs#82, aleph-vm, and the formats in the man page.
        for (text, name, subsystem, revision, driver) in rows! {
            "41:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331] (rev a1)\n   \
             Subsystem: NVIDIA Corporation GH100 [H100 PCIe] [10de:1626]\n   \
             Kernel driver in use: vfio-pci\n   Kernel modules: nvidiafb, nouveau\n",
                Some("GH100 [H100 PCIe]"), Some("10de:1626"), Some(0xa1),
                Driver::Bound("vfio-pci".into());
            "0000:41:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331]",
                Some("GH100 [H100 PCIe]"), None, None, Driver::NotReported;
            "41:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:2331] (rev a1)", None,
                None, Some(0xa1), Driver::NotReported;
            "41:00.0 0302: 10de:2331 (rev a1)", None, None, Some(0xa1), Driver::NotReported;
            "41:00.0 Class 0302: 10de:2331", None, None, None, Driver::NotReported;
            "0000:41:00.0 \"0302\" \"10de\" \"2331\" -ra1 -p00 \"10de\" \"1626\"", None,
                Some("10de:1626"), Some(0xa1), Driver::NotReported;
            "41:00.0 \"3D controller [0302]\" \"NVIDIA Corporation [10de]\" \
             \"GH100 [H100 PCIe] [2331]\" -ra1 \"\" \"\"", Some("GH100 [H100 PCIe]"), None,
                Some(0xa1), Driver::NotReported;
            "41:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331] (rev a1)\n\
             \tSubsystem: NVIDIA Corporation Device [10de:1626]\n\
             \tControl: I/O- Mem+ BusMaster+ SpecCycle-\n\
             \tRegion 0: Memory at 42042000000 (64-bit, prefetchable) [size=16M]\n\
             \tKernel modules: nvidiafb, nouveau\n", Some("GH100 [H100 PCIe]"), Some("10de:1626"),
                Some(0xa1), Driver::None;
        } {
            let function = one(text);
            assert_eq!(function.address.to_string(), "0000:41:00.0", "{text}");
            assert_eq!(function.id.to_string(), "10de:2331", "{text}");
            assert!(function.class.is_gpu(), "{text}");
            assert_eq!(function.name.as_deref(), name, "{text}");
            let board = function.subsystem.map(|id| id.to_string());
            assert_eq!(board.as_deref(), subsystem, "{text}");
            assert_eq!(function.revision, revision, "{text}");
            assert_eq!(function.driver, driver, "{text}");
        }
    }

    #[test]
    fn surrounding_ticket_text_is_ignored() {
        // vanities/GPU-Passthrough-Arch-Linux-to-Windows10#6, as it was pasted.
        let text = "already done this, nothing changed:\n\
            ```\n\
            $ lspci -nnk\n\
            3e:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA102 [GeForce RTX 3080] \
            [10de:2206] (rev a1)\n\
            Subsystem: Gigabyte Technology Co., Ltd Device [1458:404b]\n\
            Kernel driver in use: nvidia\n\
            Kernel modules: nouveau, nvidia_drm, nvidia\n\
            3e:00.1 Audio device [0403]: NVIDIA Corporation GA102 High Definition Audio Controller \
            [10de:1aef] (rev a1)\n\
            Subsystem: Gigabyte Technology Co., Ltd Device [1458:404b]\n\
            Kernel driver in use: snd_hda_intel\n\
            ```\n";
        let found = parse(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].driver, Driver::Bound("nvidia".into()));
        assert_eq!(found[0].name.as_deref(), Some("GA102 [GeForce RTX 3080]"));
        assert_eq!(found[1].driver, Driver::Bound("snd_hda_intel".into()));
        assert!(!found[1].class.is_gpu());
    }

    #[test]
    fn function_that_does_not_respond_is_dead() {
        let text = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK107M [10de:0fd1] (rev \
            ff) (prog-if ff)\n        !!! Unknown header type 7f\n\tKernel driver in use: nvidia\n";
        let function = one(text);
        assert!(function.is_dead());
        assert_eq!(function.name.as_deref(), Some("GK107M"));
    }

    #[test]
    fn other_vendors_and_wide_domains_are_parsed() {
        let text = "10000:e1:00.0 Non-Volatile memory controller [0108]: Intel Corporation NVMe \
            [8086:0a54]\n0001:00:00.0 PCI bridge [0604]: NVIDIA Corporation Device [10de:22b1]\n\
            2a:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] \
            [15b3:1021]\n";
        let found = parse(text).unwrap();
        let names: Vec<Option<&str>> = found.iter().map(|f| f.name.as_deref()).collect();
        assert_eq!(names, [Some("MT2910 Family [ConnectX-7]"), None, None]);
        assert_eq!(found[2].address.to_string(), "10000:e1:00.0");
    }

    #[test]
    fn text_without_ids_reports_its_line() {
        let plain = "# lspci\n00:00.0 Host bridge: Intel Corporation 440FX (rev 02)\n";
        assert_eq!(
            parse(plain).unwrap_err().to_string(),
            "line 2: `00:00.0 Host bridge: Intel Corporation 440FX (rev 02)` has no numeric class and IDs"
        );
        let other = parse("total 4\ndrwxr-xr-x 2 root root\n").unwrap_err();
        assert_eq!(other, LspciError::NoFunctions { lines: 2 });
        assert_eq!(parse(""), Err(LspciError::NoFunctions { lines: 0 }));
    }

    reads_any_text!(
        "((00:01.0|\\[0302\\]: |10de:2330|\"|\\[|\\]| \\(rev |Subsystem: |\n| |.)*)",
        |text| parse(&text)
    );
}
