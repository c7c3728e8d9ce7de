//! NVIDIA GPUs, NVSwitches and network devices on the PCI bus, from sysfs.

use std::str::FromStr;

use crate::{
    facts::{Boards, GpuFact, PciFact, names, reader::FactReader},
    model::pci::{MELLANOX, NVIDIA, PciAddress, PciClass, PciId},
};

pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

/// What the bus holds that matters here.
#[derive(Debug, Default)]
pub(super) struct Bus {
    pub gpus: Vec<GpuFact>,
    pub nvswitches: Vec<PciFact>,
    pub network: Vec<PciFact>,
}

/// One function of NVIDIA or Mellanox.
#[derive(Debug)]
struct Function {
    address: PciAddress,
    id: PciId,
    class: PciClass,
    subsystem: Option<PciId>,
    numa_node: Option<u32>,
}

/// Looks at every function on the bus, in the order of addresses.
pub(super) fn gather(look: &mut FactReader<'_>, boards: Option<&dyn Boards>) -> Bus {
    let mut bus = Bus::default();
    if !look.exists("gpus", DEVICES) {
        for fact in ["gpus", "nvswitches", "network-devices"] {
            look.unknown(fact, format!("`{DEVICES}` is not there"));
        }
        return bus;
    }
    let mut names = names::Names::default();
    let mut functions: Vec<Function> = look
        .list("gpus", DEVICES)
        .iter()
        .filter_map(|name| function(look, name))
        .collect();
    functions.sort_by_key(|function| function.address);
    for function in functions {
        let nvidia = function.id.vendor == NVIDIA;
        if nvidia && function.class.is_gpu() {
            bus.gpus.push(gpu(look, boards, &mut names, function));
        } else if nvidia && function.class.is_nvswitch() {
            let device = other(look, boards, &mut names, "nvswitches", &function);
            if is_nvswitch(boards, &device) {
                bus.nvswitches.push(device);
            }
        } else if function.class.is_network() {
            bus.network.push(other(
                look,
                boards,
                &mut names,
                "network-devices",
                &function,
            ));
        }
    }
    bus
}

/// Reads one function; `None` if it is another vendor's, or if what it is cannot be read.
fn function(look: &mut FactReader<'_>, name: &str) -> Option<Function> {
    let folder = format!("{DEVICES}/{name}");
    let fact = format!("gpus[{name}]");
    let vendor = number(look, &fact, &folder, "vendor")?;
    if !matches!(vendor, NVIDIA | MELLANOX) {
        return None;
    }
    let address = look.parsed(&fact, PciAddress::from_str(name))?;
    let device = number(look, &fact, &folder, "device")?;
    let class = look.required(&fact, &format!("{folder}/class"))?;
    let class = look.parsed(&fact, PciClass::from_str(&class))?;
    let subsystem = |look: &mut FactReader<'_>| {
        Some(PciId {
            vendor: number(look, &fact, &folder, "subsystem_vendor")?,
            device: number(look, &fact, &folder, "subsystem_device")?,
        })
    };
    Some(Function {
        address,
        id: PciId { vendor, device },
        class,
        subsystem: subsystem(look),
        // The kernel writes -1 where the firmware does not say.
        numa_node: look
            .value(&fact, &format!("{folder}/numa_node"))
            .and_then(|node| node.parse().ok()),
    })
}

/// A file of one number such as `0x10de`.
fn number(look: &mut FactReader<'_>, fact: &str, folder: &str, name: &str) -> Option<u16> {
    let path = format!("{folder}/{name}");
    let text = look.required(fact, &path)?;
    let value = parse_number(&text);
    if value.is_none() {
        look.unknown(fact, format!("`{path}` holds `{text}`"));
    }
    value
}

fn parse_number(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("0x")?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u16::from_str_radix(digits, 16).ok())
        .flatten()
}

fn gpu(
    look: &mut FactReader<'_>,
    boards: Option<&dyn Boards>,
    names: &mut names::Names,
    function: Function,
) -> GpuFact {
    let describe = |chip: Option<&str>| {
        boards
            .map(|boards| boards.describe(function.id, function.subsystem, chip))
            .unwrap_or_default()
    };
    let mut board = describe(None);
    if (board.name.is_none() || board.architecture.is_none())
        && let Some(listed) = names.of(look, "gpus", function.id)
    {
        if board.architecture.is_none() {
            board = describe(Some(&listed));
        }
        board
            .name
            .get_or_insert_with(|| names::product(&listed).to_owned());
    }
    for (key, missing) in [
        ("name", board.name.is_none()),
        ("architecture", board.architecture.is_none()),
        ("compute-capability", board.compute_capability.is_none()),
        ("module-flavour", board.module_flavour.is_none()),
    ] {
        if missing {
            look.unknown(
                format!("gpus[{}].{key}", function.address),
                format!("neither the matrix nor `pci.ids` tells for {}", function.id),
            );
        }
    }
    GpuFact {
        pci_address: function.address,
        pci_id: function.id,
        subsystem_id: function.subsystem,
        name: board.name,
        architecture: board.architecture,
        compute_capability: board.compute_capability,
        module_flavour: board.module_flavour,
        vgpu: board.vgpu,
        numa_node: function.numa_node,
    }
}

fn other(
    look: &mut FactReader<'_>,
    boards: Option<&dyn Boards>,
    names: &mut names::Names,
    fact: &str,
    function: &Function,
) -> PciFact {
    let name = boards
        .and_then(|boards| boards.name(function.id))
        .or_else(|| names.of(look, fact, function.id));
    PciFact {
        pci_address: function.address,
        pci_id: function.id,
        name,
    }
}

/// Other NVIDIA bridges share the class, so the matrix decides by id, and the list by name where
/// there is no matrix.
fn is_nvswitch(boards: Option<&dyn Boards>, device: &PciFact) -> bool {
    match boards {
        Some(boards) => boards.is_nvswitch(device.pci_id),
        None => device
            .name
            .as_deref()
            .is_some_and(|name| name.contains("NVSwitch")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Board, host::fake};

    struct Matrix;

    impl Boards for Matrix {
        fn describe(&self, id: PciId, subsystem: Option<PciId>, chip: Option<&str>) -> Board {
            if chip.is_some_and(|chip| chip.starts_with("GB")) {
                return Board {
                    architecture: Some("blackwell".to_owned()),
                    module_flavour: Some("open".to_owned()),
                    ..Board::default()
                };
            }
            if id.device != 0x2330 {
                return Board::default();
            }
            Board {
                name: Some("H100 SXM5 80GB".to_owned()),
                architecture: Some("hopper".to_owned()),
                compute_capability: Some("9.0".to_owned()),
                module_flavour: Some("either".to_owned()),
                vgpu: subsystem.is_some_and(|subsystem| subsystem.device == 0x1733),
            }
        }
        fn is_nvswitch(&self, id: PciId) -> bool {
            id.device == 0x22a3
        }
        fn name(&self, _: PciId) -> Option<String> {
            None
        }
    }

    fn put(files: &fake::FakeFiles, address: &str, vendor: &str, device: &str, class: &str) {
        for (name, value) in [
            ("vendor", vendor),
            ("device", device),
            ("class", class),
            ("subsystem_vendor", vendor),
            ("subsystem_device", "0x16c1"),
            ("numa_node", "-1"),
        ] {
            files.put(&format!("{DEVICES}/{address}/{name}"), format!("{value}\n"));
        }
    }

    #[test]
    fn a_node_with_everything() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        put(files, "0000:5d:00.0", "0x10de", "0x2330", "0x030200");
        put(files, "0000:18:00.0", "0x10de", "0x2330", "0x030200");
        put(files, "0000:07:00.0", "0x10de", "0x22a3", "0x068000");
        put(files, "0000:08:00.0", "0x10de", "0x22b1", "0x068000");
        put(files, "0000:2a:00.0", "0x15b3", "0x1021", "0x020700");
        put(files, "0000:18:00.1", "0x10de", "0x22ba", "0x040300");
        put(files, "0000:00:1f.0", "0x8086", "0x2918", "0x060100");
        put(files, "0000:99:00.0", "0x10de", "0x3fff", "0x030000");
        files.put(&format!("{DEVICES}/0000:18:00.0/numa_node"), "1\n");
        files.put(
            "/usr/share/hwdata/pci.ids",
            "10de  NVIDIA Corporation\n\t3fff  GB299 [Future]\n15b3  Mellanox\n\t1021  MT2910\n",
        );
        let mut look = FactReader::new(host.reader().files());
        let bus = gather(&mut look, Some(&Matrix));
        assert_eq!(bus.gpus.len(), 3);
        assert_eq!(bus.gpus[0].pci_address.to_string(), "0000:18:00.0");
        assert_eq!(bus.gpus[0].numa_node, Some(1));
        assert_eq!(bus.gpus[1].numa_node, None);
        let future = &bus.gpus[2];
        assert_eq!(future.name.as_deref(), Some("Future"));
        assert_eq!(future.architecture.as_deref(), Some("blackwell"));
        assert_eq!(future.module_flavour.as_deref(), Some("open"));
        assert_eq!(bus.nvswitches.len(), 1);
        assert_eq!(bus.nvswitches[0].pci_id.to_string(), "10de:22a3");
        assert_eq!(bus.network.len(), 1);
        assert_eq!(bus.network[0].name.as_deref(), Some("MT2910"));
        let unknown = look.into_unknown();
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        assert_eq!(unknown[0].fact, "gpus[0000:99:00.0].compute-capability");
    }

    #[test]
    fn no_bus_is_unknown_and_an_empty_one_is_not() {
        let (host, fakes) = fake::host();
        let mut look = FactReader::new(host.reader().files());
        assert!(gather(&mut look, None).gpus.is_empty());
        assert_eq!(look.into_unknown().len(), 3);
        fakes.files.put_folder(DEVICES, 0o755);
        let mut look = FactReader::new(host.reader().files());
        assert!(gather(&mut look, None).gpus.is_empty());
        assert!(look.into_unknown().is_empty());
    }

    #[test]
    fn a_sick_function_is_named() {
        let (host, fakes) = fake::host();
        put(
            &fakes.files,
            "0000:18:00.0",
            "0x10de",
            "garbage",
            "0x030200",
        );
        let mut look = FactReader::new(host.reader().files());
        assert!(gather(&mut look, None).gpus.is_empty());
        let unknown = look.into_unknown();
        assert_eq!(unknown[0].fact, "gpus[0000:18:00.0]");
        assert!(unknown[0].why.contains("garbage"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(0x|[0-9a-f]|.)*") {
            let _ = parse_number(&text);
        }
    }
}
