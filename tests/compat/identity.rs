//! A GPU keeps its identity from sysfs to driver selection.

use gpu_bootstrap::compat::pick::{Constraints, pick};
use gpu_bootstrap::facts::{Facts, Scope, gather};
use gpu_bootstrap::host::fake;

use crate::matrix;

/// The facts of a machine that has a GPU with this device id and a `pci.ids` file.
fn facts(device: &str, list: &str) -> Facts {
    let (host, fakes) = fake::host();
    let directory = "/sys/bus/pci/devices/0000:18:00.0";
    for (name, value) in [
        ("vendor", "0x10de"),
        ("device", device),
        ("class", "0x030000"),
        ("subsystem_vendor", "0x10de"),
        ("subsystem_device", "0x1218"),
        ("numa_node", "-1"),
    ] {
        let path = format!("{directory}/{name}");
        fakes.files.put(&path, format!("{value}\n"));
    }
    fakes.files.put("/usr/share/misc/pci.ids", list);
    let scope = Scope { executes: false };
    gather(host.reader(), Some(matrix()), scope)
}

#[test]
fn gpu_without_row_keeps_its_pci_ids_chip() {
    let list = "10de  NVIDIA Corporation\n\t1d81  GV100 [TITAN V]\n";
    let facts = facts("0x1d81", list);
    let gpu = &facts.gpus[0];
    assert_eq!(gpu.name.as_deref(), Some("TITAN V"));
    let architecture = gpu.architecture.as_ref().map(ToString::to_string);
    assert_eq!(architecture.as_deref(), Some("volta"));
    // Driver selection uses the identity that `facts` reports.
    let pick = pick(matrix(), &Constraints::from(&facts))
        .unwrap_or_else(|no_driver| panic!("{no_driver}"));
    assert_eq!(pick.branch.to_string(), "580");
    assert!(pick.assumed);
    assert!(
        pick.reasons
            .iter()
            .any(|why| why.starts_with("GV100 [TITAN V] (10de:1d81): Volta")),
        "{:?}",
        pick.reasons
    );
}

#[test]
fn unlisted_desktop_card_keeps_its_id_range_architecture() {
    let facts = facts("0x2786", "10de  NVIDIA Corporation\n");
    let gpu = &facts.gpus[0];
    assert_eq!(gpu.name, None);
    let architecture = gpu.architecture.as_ref().map(ToString::to_string);
    assert_eq!(architecture.as_deref(), Some("ada"));
    let evidence = serde_json::to_value(gpu).unwrap()["architecture-evidence"].clone();
    assert_eq!(evidence, "id-range");
    let pick = pick(matrix(), &Constraints::from(&facts))
        .unwrap_or_else(|no_driver| panic!("{no_driver}"));
    assert!(pick.assumed, "{pick:?}");
    // Its architecture is known, so the long-term branch supports it.
    assert_eq!(pick.branch.to_string(), "580");
}
