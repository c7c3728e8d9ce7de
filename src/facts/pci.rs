//! Reads the relevant devices on the PCI bus from sysfs: NVIDIA GPUs, NVSwitches, NVIDIA and Mellanox
//! network devices, and display adapters and accelerators of other vendors.

use std::str::FromStr;

use camino::Utf8Path;
use gpu_compat::Matrix;

use crate::{
    facts::{GpuFact, PciFact, names, reader::FactReader},
    model::{
        gpu::GpuIdentity,
        pci::{DEVICES, MELLANOX, NVIDIA, PciAddress, PciClass, PciId},
    },
};

/// The relevant devices on the bus. [`Facts`](crate::facts::Facts) describes the fields.
#[derive(Debug, Default)]
pub(super) struct Bus {
    pub gpus: Vec<GpuFact>,
    pub virtual_functions: Vec<PciFact>,
    pub foreign_gpus: Vec<PciFact>,
    pub nvswitches: Vec<PciFact>,
    pub network: Vec<PciFact>,
    pub nvlink_management: Option<bool>,
}

/// A string in the vital product data (VPD) of the network device that manages NVLink switches. On
/// HGX boards since Blackwell, the switches themselves are not on the PCI bus. Source:
/// NVIDIA/gpu-driver-container.
const SWITCH_MANAGEMENT: &[u8] = b"SW_MNG";

/// A PCI function of NVIDIA or Mellanox, or a display adapter or accelerator of another vendor.
#[derive(Debug)]
struct SysfsFunction {
    address: PciAddress,
    id: PciId,
    class: PciClass,
    subsystem: Option<PciId>,
    numa_node: Option<u32>,
    /// Whether this is an SR-IOV virtual function whose physical function is on this machine, so that
    /// the kernel creates the symlink `physfn`. In a guest, a passed-through virtual function has no
    /// such symlink.
    is_virtual: bool,
}

/// Reads the relevant devices on the bus, sorted by address.
pub(super) fn gather(reader: &mut FactReader<'_>, matrix: Option<&Matrix>) -> Bus {
    let mut bus = Bus::default();
    if !reader.exists("gpus", DEVICES) {
        for fact in ["gpus", "nvswitches", "network-devices"] {
            reader.unknown(fact, format!("`{DEVICES}` does not exist"));
        }
        return bus;
    }
    let mut names = names::Names::default();
    let mut functions: Vec<SysfsFunction> = reader
        .list("gpus", DEVICES)
        .iter()
        .filter_map(|name| function(reader, name))
        .collect();
    functions.sort_by_key(|function| function.address);
    for function in functions {
        let nvidia = function.id.vendor == NVIDIA;
        if nvidia && function.class.is_gpu() && function.is_virtual {
            let device = other(reader, matrix, &mut names, "virtual-functions", &function);
            bus.virtual_functions.push(device);
        } else if nvidia && function.class.is_gpu() {
            bus.gpus.push(gpu(reader, matrix, &mut names, function));
        } else if nvidia && function.class.is_nvswitch() {
            let device = other(reader, matrix, &mut names, "nvswitches", &function);
            if is_nvswitch(matrix, &device) {
                bus.nvswitches.push(device);
            }
        } else if function.class.is_network() {
            bus.network.push(other(
                reader,
                matrix,
                &mut names,
                "network-devices",
                &function,
            ));
        } else if !nvidia && function.class.is_display_or_accelerator() {
            let device = other(reader, matrix, &mut names, "foreign-gpus", &function);
            bus.foreign_gpus.push(device);
        }
    }
    if !bus.gpus.is_empty() {
        bus.nvlink_management = nvlink_management(reader, &bus.network);
    }
    bus
}

/// Whether a network device manages NVLink switches. `None` if no vital product data (VPD) is
/// readable, for example in a guest or without root.
fn nvlink_management(reader: &mut FactReader<'_>, network: &[PciFact]) -> Option<bool> {
    let fact = "nvlink-management";
    let mut told = None;
    for device in network {
        let path = format!("{DEVICES}/{}/vpd", device.pci_address);
        let Some(data) = reader.bytes(fact, &path) else {
            continue;
        };
        let manages = (data.windows(SWITCH_MANAGEMENT.len())).any(|at| at == SWITCH_MANAGEMENT);
        told = Some(told.unwrap_or(false) || manages);
    }
    told
}

/// Reads one function. Returns `None` if it is not relevant, or if its address, ID or class cannot
/// be read.
fn function(reader: &mut FactReader<'_>, name: &str) -> Option<SysfsFunction> {
    let directory = format!("{DEVICES}/{name}");
    let fact = format!("gpus[{name}]");
    let vendor = number(reader, &fact, &directory, "vendor")?;
    if !matches!(vendor, NVIDIA | MELLANOX) {
        let class = reader.value(&fact, &format!("{directory}/class"))?;
        let class: Option<PciClass> = class.parse().ok();
        class.filter(|class| class.is_display_or_accelerator())?;
    }
    let address = reader.parsed(&fact, PciAddress::from_str(name))?;
    let device = number(reader, &fact, &directory, "device")?;
    let class = reader.required(&fact, &format!("{directory}/class"))?;
    let class = reader.parsed(&fact, PciClass::from_str(&class))?;
    let subsystem = |reader: &mut FactReader<'_>| {
        Some(PciId {
            vendor: number(reader, &fact, &directory, "subsystem_vendor")?,
            device: number(reader, &fact, &directory, "subsystem_device")?,
        })
    };
    let physical = (reader.files()).stat(Utf8Path::new(&format!("{directory}/physfn")));
    Some(SysfsFunction {
        address,
        id: PciId { vendor, device },
        class,
        is_virtual: reader.answer(&fact, physical).flatten().is_some(),
        subsystem: subsystem(reader),
        // If the firmware does not report a NUMA node, the value is -1, which does not parse.
        numa_node: reader
            .value(&fact, &format!("{directory}/numa_node"))
            .and_then(|node| node.parse().ok()),
    })
}

/// Reads a file that contains a number such as `0x10de`.
fn number(reader: &mut FactReader<'_>, fact: &str, directory: &str, name: &str) -> Option<u16> {
    let path = format!("{directory}/{name}");
    let text = reader.required(fact, &path)?;
    let value = parse_number(&text);
    if value.is_none() {
        reader.unknown(fact, format!("`{path}` contains `{text}`"));
    }
    value
}

fn parse_number(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` also accepts a sign.
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u16::from_str_radix(digits, 16).ok())
        .flatten()
}

fn gpu(
    reader: &mut FactReader<'_>,
    matrix: Option<&Matrix>,
    names: &mut names::Names,
    function: SysfsFunction,
) -> GpuFact {
    let identity = GpuIdentity {
        pci_id: function.id,
        subsystem_id: function.subsystem,
        chip_name: names
            .of(reader, "gpus", function.id)
            .and_then(|name| name.parse().ok()),
    };
    let address = function.address;
    let mut gpu = GpuFact::described(address, identity, matrix);
    let listed = gpu.chip_name.as_ref();
    gpu.name = (gpu.name).or_else(|| listed.map(|name| name.product_or_chip().to_owned()));
    for (key, missing) in [
        ("name", gpu.name.is_none()),
        ("architecture", gpu.architecture.is_none()),
        ("compute-capability", gpu.compute_capability.is_none()),
        ("module-flavor", gpu.module_flavor.is_none()),
    ] {
        if missing {
            reader.unknown(
                format!("gpus[{address}].{key}"),
                format!(
                    "not found in the matrix or `pci.ids` (PCI ID {})",
                    function.id
                ),
            );
        }
    }
    GpuFact {
        class: Some(function.class),
        numa_node: function.numa_node,
        ..gpu
    }
}

fn other(
    reader: &mut FactReader<'_>,
    matrix: Option<&Matrix>,
    names: &mut names::Names,
    fact: &str,
    function: &SysfsFunction,
) -> PciFact {
    let listed = matrix
        .and_then(|matrix| (matrix.nvswitches.iter()).find(|row| row.pci_id == Some(function.id)));
    let name = listed
        .map(|row| row.name.clone())
        .or_else(|| names.of(reader, fact, function.id));
    PciFact {
        pci_address: function.address,
        pci_id: function.id,
        name,
    }
}

/// Whether a device is an NVSwitch. The class is not sufficient, because other NVIDIA bridges also
/// have it, so the PCI ID is looked up in the matrix. Without a matrix, the name in `pci.ids` is
/// checked.
fn is_nvswitch(matrix: Option<&Matrix>, device: &PciFact) -> bool {
    match matrix {
        Some(matrix) => matrix.is_nvswitch(device.pci_id),
        None => device
            .name
            .as_deref()
            .is_some_and(|name| name.contains("NVSwitch")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::{
        host::fake,
        model::gpu::{Architecture, SupportedFlavors},
    };

    fn read(reader: &mut FactReader<'_>) -> Bus {
        gather(reader, Some(&Matrix::builtin().unwrap()))
    }

    fn architecture(name: &str) -> Option<Architecture> {
        name.parse().ok()
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
    fn all_device_kinds_are_detected() {
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
        let mut reader = FactReader::new(host.reader().files());
        let bus = read(&mut reader);
        assert_eq!(bus.gpus.len(), 3);
        assert_eq!(bus.gpus[0].pci_address.to_string(), "0000:18:00.0");
        assert_eq!(bus.gpus[0].numa_node, Some(1));
        assert_eq!(bus.gpus[1].numa_node, None);
        let future = &bus.gpus[2];
        assert_eq!(future.name.as_deref(), Some("Future"));
        let chip = future.chip_name.as_ref().map(ToString::to_string);
        assert_eq!(chip.as_deref(), Some("GB299 [Future]"));
        assert_eq!(future.architecture, architecture("blackwell"));
        assert_eq!(future.module_flavor, Some(SupportedFlavors::Open));
        assert_eq!(bus.nvswitches.len(), 1);
        assert_eq!(bus.nvswitches[0].pci_id.to_string(), "10de:22a3");
        assert_eq!(bus.nvswitches[0].name.as_deref(), Some("H100 NVSwitch"));
        assert_eq!(bus.network.len(), 1);
        assert_eq!(bus.network[0].name.as_deref(), Some("MT2910"));
        let unknown = reader.into_unknown();
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        assert_eq!(unknown[0].fact, "gpus[0000:99:00.0].compute-capability");
    }

    #[test]
    fn virtual_function_is_a_gpu_only_in_a_guest() {
        let (host, fakes) = fake::host();
        put(&fakes.files, "0000:41:00.0", "0x10de", "0x2330", "0x030200");
        put(&fakes.files, "0000:41:00.4", "0x10de", "0x2330", "0x030200");
        let link = format!("{DEVICES}/0000:41:00.4/physfn");
        fakes.files.put_link(&link, "../0000:41:00.0");
        let mut reader = FactReader::new(host.reader().files());
        let bus = read(&mut reader);
        let gpus: Vec<String> = bus.gpus.iter().map(|g| g.pci_address.to_string()).collect();
        assert_eq!(gpus, ["0000:41:00.0"]);
        assert_eq!(bus.virtual_functions.len(), 1);
        // In the guest, the function has no symlink to a physical function.
        let (host, fakes) = fake::host();
        put(&fakes.files, "0000:06:00.0", "0x10de", "0x2330", "0x030200");
        let mut reader = FactReader::new(host.reader().files());
        let bus = read(&mut reader);
        assert_eq!((bus.gpus.len(), bus.virtual_functions.len()), (1, 0));
    }

    #[test]
    fn gpus_of_other_vendors_are_listed() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        put(files, "0000:05:00.0", "0x1002", "0x74a1", "0x120000");
        put(files, "0000:00:02.0", "0x8086", "0x3e9b", "0x030000");
        put(files, "0000:00:1f.0", "0x8086", "0x2918", "0x060100");
        let mut reader = FactReader::new(host.reader().files());
        let bus = read(&mut reader);
        let ids: Vec<String> = (bus.foreign_gpus.iter())
            .map(|gpu| gpu.pci_id.to_string())
            .collect();
        assert_eq!(ids, ["8086:3e9b", "1002:74a1"]);
        assert!(bus.gpus.is_empty() && reader.into_unknown().is_empty());
    }

    #[test]
    fn nvlink_management_is_read_from_product_data() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        let told = || {
            let mut reader = FactReader::new(host.reader().files());
            read(&mut reader).nvlink_management
        };
        put(files, "0000:18:00.0", "0x10de", "0x2901", "0x030200");
        put(files, "0000:2a:00.0", "0x15b3", "0x1021", "0x020700");
        put(files, "0000:2b:00.0", "0x15b3", "0x1021", "0x020700");
        assert_eq!(told(), None);
        files.put(
            &format!("{DEVICES}/0000:2a:00.0/vpd"),
            b"PN\x05MCX75".to_vec(),
        );
        assert_eq!(told(), Some(false));
        let vpd = b"\x82\x10\0product V1\x06SW_MNG".to_vec();
        files.put(&format!("{DEVICES}/0000:2b:00.0/vpd"), vpd);
        assert_eq!(told(), Some(true));
    }

    #[test]
    fn only_a_missing_bus_is_unknown() {
        let (host, fakes) = fake::host();
        let mut reader = FactReader::new(host.reader().files());
        assert!(gather(&mut reader, None).gpus.is_empty());
        assert_eq!(reader.into_unknown().len(), 3);
        fakes.files.put_directory(DEVICES, 0o755);
        let mut reader = FactReader::new(host.reader().files());
        assert!(gather(&mut reader, None).gpus.is_empty());
        assert!(reader.into_unknown().is_empty());
    }

    #[test]
    fn unreadable_function_is_unknown() {
        let (host, fakes) = fake::host();
        put(
            &fakes.files,
            "0000:18:00.0",
            "0x10de",
            "garbage",
            "0x030200",
        );
        let mut reader = FactReader::new(host.reader().files());
        assert!(gather(&mut reader, None).gpus.is_empty());
        let unknown = reader.into_unknown();
        assert_eq!(unknown[0].fact, "gpus[0000:18:00.0]");
        assert!(unknown[0].why.contains("garbage"));
    }

    reads_any_text!("(0x|[0-9a-f]|.)*", |text| parse_number(&text));
}
