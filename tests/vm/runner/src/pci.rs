//! A PCI bus made of files, in the format of `/sys/bus/pci`.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use gpu_bootstrap_vm_pci::config::ConfigSpace;
use gpu_bootstrap_vm_pci::table::Function;

/// Writes `devices/` and `drivers/` into `dir`. With `nvidia_loaded` every NVIDIA display function is bound to the
/// driver `nvidia`, regardless of the table.
pub fn fabricate(dir: &Path, functions: &[Function], nvidia_loaded: bool) -> Result<()> {
    for part in ["devices", "drivers"] {
        let path = dir.join(part);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    for function in functions {
        let taken = nvidia_loaded && function.device.is_nvidia_gpu();
        let driver = if taken {
            Some("nvidia")
        } else {
            function.driver.as_deref()
        };
        write_function(dir, function, driver)
            .with_context(|| format!("cannot fabricate PCI function {}", function.address))?;
    }
    Ok(())
}

fn write_function(dir: &Path, function: &Function, driver: Option<&str>) -> Result<()> {
    let model = &function.device;
    let (vendor, device) = (model.id.vendor, model.id.device);
    let (sub_vendor, sub_device) = (model.subsystem.vendor, model.subsystem.device);
    let class = model.class.0;
    let at = dir.join("devices").join(function.address.as_str());
    fs::create_dir_all(&at)?;
    let [_, base, sub, interface] = class.to_be_bytes();
    let modalias = format!(
        "pci:v{vendor:08X}d{device:08X}sv{sub_vendor:08X}sd{sub_device:08X}bc{base:02X}sc{sub:02X}i{interface:02X}"
    );
    let mut uevent = driver
        .map(|name| format!("DRIVER={name}\n"))
        .unwrap_or_default();
    write!(
        uevent,
        "PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{device:04X}\n\
         PCI_SUBSYS_ID={sub_vendor:04X}:{sub_device:04X}\nPCI_SLOT_NAME={}\nMODALIAS={modalias}\n",
        function.address
    )?;
    // Six BARs, the ROM and six bridge windows, all empty, because no device decodes an address here.
    let resource = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(13);
    let files = [
        ("vendor", format!("0x{vendor:04x}\n")),
        ("device", format!("0x{device:04x}\n")),
        ("subsystem_vendor", format!("0x{sub_vendor:04x}\n")),
        ("subsystem_device", format!("0x{sub_device:04x}\n")),
        ("class", format!("0x{class:06x}\n")),
        ("revision", format!("0x{:02x}\n", model.revision)),
        ("irq", "0\n".into()),
        ("enable", "1\n".into()),
        ("numa_node", format!("{}\n", function.numa_node)),
        ("local_cpulist", "0-1\n".into()),
        ("driver_override", "(null)\n".into()),
        ("modalias", format!("{modalias}\n")),
        ("resource", resource),
        ("uevent", uevent),
    ];
    for (name, text) in files {
        fs::write(at.join(name), text)?;
    }
    fs::write(at.join("config"), config_space(function))?;
    if let Some(vpd) = &model.vpd {
        fs::write(at.join("vpd"), vpd)?;
    }
    if let Some(name) = driver {
        let driver_dir = dir.join("drivers").join(name);
        fs::create_dir_all(&driver_dir)?;
        symlink(format!("../../drivers/{name}"), at.join("driver"))?;
        let back = format!("../../devices/{}", function.address);
        symlink(back, driver_dir.join(function.address.as_str()))?;
    }
    Ok(())
}

/// The first 256 bytes of configuration space, the same as in QEMU's function, with memory space and bus master
/// enabled.
fn config_space(function: &Function) -> [u8; 256] {
    let mut space = ConfigSpace::new(&function.device);
    space.write(0x04, &0x0006u16.to_le_bytes());
    let mut bytes = [0; 256];
    space.read(0, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h100() -> Function {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines.toml");
        let functions = gpu_bootstrap_vm_pci::table::functions_of(&path, "h100").unwrap();
        functions[0].clone()
    }

    #[test]
    fn config_space_contains_device_id() {
        let bytes = config_space(&h100());
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes[..4], [0xde, 0x10, 0x30, 0x23]);
        assert_eq!(bytes[8..12], [0xa1, 0x00, 0x02, 0x03]);
    }

    #[test]
    fn loaded_driver_is_linked_in_both_directions() {
        let dir = tempfile::tempdir().unwrap();
        fabricate(dir.path(), &[h100()], true).unwrap();
        let driver = dir.path().join("devices/0000:18:00.0/driver");
        assert_eq!(
            driver.canonicalize().unwrap(),
            dir.path().canonicalize().unwrap().join("drivers/nvidia")
        );
        assert!(
            dir.path()
                .join("drivers/nvidia/0000:18:00.0/vendor")
                .is_file()
        );
    }

    #[test]
    fn missing_driver_has_no_link() {
        let dir = tempfile::tempdir().unwrap();
        fabricate(dir.path(), &[h100()], false).unwrap();
        assert!(!dir.path().join("devices/0000:18:00.0/driver").exists());
        let class = fs::read_to_string(dir.path().join("devices/0000:18:00.0/class")).unwrap();
        assert_eq!(class, "0x030200\n");
    }
}
