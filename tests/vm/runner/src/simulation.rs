//! Simulates hardware that a machine does not have. The harness's output marks all of it as simulated. Its files are in
//! `/usr/lib/testbed` of the machine, outside `/etc`, and a unit mounts them early in each boot.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpu_bootstrap_vm_pci::table::{Address, Function};
use sha2::{Digest, Sha256};

use crate::pci;
use crate::sh::Cmd;
use crate::tables::{MachineSpec, Machines};

/// Separator before an inventory at the end of a fake library (`../../cuda/README.md`).
const APPENDED: &str = "\n# inventory of the fake\n";

/// The directory inside a machine.
pub const INSIDE: &str = "/usr/lib/testbed";

const START: &str = include_str!("../files/testbed-start.sh");
const SMI: &str = include_str!("../files/nvidia-smi.sh");
const UNIT: &str = include_str!("../files/testbed.service");
/// Programs for cases, described in README.md.
const PROGRAMS: [(&str, &str); 21] = [
    (
        "kill-at-every-record",
        include_str!("../files/kill-at-every-record.pl"),
    ),
    ("cut-at-record", include_str!("../files/cut-at-record.pl")),
    ("emptied", include_str!("../files/emptied.sh")),
    ("journal.pl", include_str!("../files/journal.pl")),
    ("leave-free", include_str!("../files/leave-free.sh")),
    ("started", include_str!("../files/started.sh")),
    (
        "tell-containers",
        include_str!("../files/tell-containers.sh"),
    ),
    ("state", include_str!("../files/state.sh")),
    ("method-time", include_str!("../files/method-time.sh")),
    ("hold-lock", include_str!("../files/hold-lock.pl")),
    ("attack", include_str!("../files/attack.pl")),
    ("add-non-free", include_str!("../files/add-non-free.sh")),
    ("small-boot", include_str!("../files/small-boot.sh")),
    ("record.sh", include_str!("../../../gpu/record.sh")),
    ("sound", include_str!("../files/sound.sh")),
    (
        "sandboxed-check",
        include_str!("../files/sandboxed-check.sh"),
    ),
    ("installed", include_str!("../files/installed.sh")),
    ("package", include_str!("../files/package.sh")),
    ("mig-changed", include_str!("../files/mig-changed.sh")),
    ("mig-smi", include_str!("../files/mig-smi.sh")),
    ("vendors-only", include_str!("../files/vendors-only.sh")),
];

/// Writes the DMI files of a machine: file names and their contents.
pub fn firmware(root: &Path, dmi: &BTreeMap<String, String>) -> Result<()> {
    let here = root
        .join(INSIDE.trim_start_matches('/'))
        .join("class/dmi/id");
    for (name, text) in dmi {
        write(&here.join(name), &format!("{text}\n"))?;
    }
    Ok(())
}

/// Copies the programs for cases into a machine of any kind.
pub fn equip(root: &Path) -> Result<()> {
    let here = root.join(INSIDE.trim_start_matches('/'));
    for (name, script) in PROGRAMS {
        program(&here.join(name), script)?;
    }
    Ok(())
}

/// Writes the machine's PCI bus and kernel version.
pub fn prepare(root: &Path, kernel: &str, functions: &[Function]) -> Result<()> {
    let here = root.join(INSIDE.trim_start_matches('/'));
    program(&here.join("start"), START)?;
    show_kernel(root, kernel)?;
    pci::fabricate(&here.join("pci"), functions, false)?;
    let units = root.join("usr/lib/systemd/system");
    write(&units.join("testbed.service"), UNIT)?;
    let wants = units.join("sysinit.target.wants");
    fs::create_dir_all(&wants).context("cannot create a wants directory")?;
    symlink("../testbed.service", wants.join("testbed.service"))
        .context("cannot enable the unit")?;
    // The machine runs the host's kernel, for which it has no modules.
    write(
        &units.join("systemd-modules-load.service.d/testbed.conf"),
        "[Unit]\nConditionPathExists=!/usr/lib/testbed\n",
    )
}

/// Writes the kernel version that the machine reports from its next boot on.
pub fn show_kernel(root: &Path, kernel: &str) -> Result<()> {
    let here = root.join(INSIDE.trim_start_matches('/'));
    write(&here.join("osrelease"), &format!("{kernel}\n"))?;
    write(&here.join("version"), &proc_version(root, kernel)?)
}

/// The kernel that the boot loader would start: on simulated AlmaLinux the saved GRUB entry, on simulated Ubuntu the
/// one-time entry or the first menu entry. `None` on Debian.
pub fn saved_kernel(root: &Path) -> Result<Option<String>> {
    for (file, before) in [
        ("boot/grub2/grubenv", "saved_entry=testbed-"),
        ("boot/grub/grubenv", "next_entry=gnulinux-"),
        ("boot/grub/grub.cfg", "\tlinux\t/boot/vmlinuz-"),
    ] {
        let path = root.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let entry = text.lines().find_map(|line| line.strip_prefix(before));
                let entry = entry.and_then(|entry| entry.split(' ').next());
                return Ok(entry.map(|entry| entry.trim_end_matches("-advanced-1").to_string()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    Ok(None)
}

/// The content of `/proc/version` for the kernel on the disk. It contains the compiler that must build modules.
fn proc_version(root: &Path, kernel: &str) -> Result<String> {
    let path = root.join(format!("boot/config-{kernel}"));
    let config =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let compiler = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT="))
        .with_context(|| format!("{} contains no compiler", path.display()))?
        .trim_matches('"');
    Ok(format!(
        "Linux version {kernel} (debian-kernel@lists.debian.org) ({compiler}, GNU ld) \
         #1 SMP PREEMPT_DYNAMIC Debian (simulated by the test bed)\n"
    ))
}

/// The fake driver libraries.
#[derive(Clone, Debug)]
pub struct Fakes {
    /// Replaces `libnvidia-ml.so.1`.
    pub nvml: PathBuf,
    /// Replaces `libcuda.so.1`.
    pub cuda: PathBuf,
    /// Changes MIG like `nvidia-smi`.
    pub smi: PathBuf,
}

/// A driver that is simulated as loaded.
#[derive(Clone, Debug)]
pub struct Driver {
    /// The version of the module that DKMS really built in this machine.
    pub version: String,
    /// `open` or `proprietary`, read from the license of the built module.
    pub flavor: &'static str,
}

/// Simulates the driver installed in `root` as loaded for the next boot, in the version of the module that was built
/// for the machine's kernel. The fakes overwrite the real libraries in place, so that dpkg removes them like its own
/// files.
pub fn load_driver(
    root: &Path,
    kernel: &str,
    machines: &Machines,
    spec: &MachineSpec,
    fakes: &Fakes,
) -> Result<Driver> {
    let functions = &spec.functions;
    let module = find_module(&root.join("usr/lib/modules").join(kernel))?;
    let info = |field: &str| -> Result<String> {
        let path = module.to_string_lossy().into_owned();
        Ok(Cmd::new(["modinfo", "-F", field, &path])
            .ok()?
            .stdout
            .trim()
            .to_string())
    };
    let version = info("version")?;
    let flavor = if info("license")?.contains("MIT") {
        "open"
    } else {
        "proprietary"
    };
    let driver = Driver { version, flavor };
    let here = root.join(INSIDE.trim_start_matches('/'));
    crate::bed::remove_tree(&here.join("pci"))?;
    crate::bed::remove_tree(&here.join("driver"))?;
    pci::fabricate(&here.join("pci"), functions, true)?;
    kernel_side(&here.join("driver"), &driver, functions)?;
    let cuda = machines.cuda_of(&driver.version)?;
    let inventory = inventory(&driver.version, cuda, spec)?;
    write(&here.join("fake-nvml.toml"), &inventory)?;
    library_side(root, &here, &driver.version, fakes, &inventory)?;
    write(&here.join("gpus"), &listing(functions))?;
    programs(root, &here, fakes)?;
    // The refresh unit of NVIDIA's toolkit looks for the modules of `uname -r`, the host kernel. The drop-in looks for
    // those of the machine's kernel.
    write(
        &root.join("usr/lib/systemd/system/nvidia-cdi-refresh.service.d/90-testbed.conf"),
        &format!(
            "[Service]\nExecCondition=\nExecCondition=/bin/sh -c 'grep -qE \
             \"/(nvidia|nvidia-current)[.]ko\" /lib/modules/{kernel}/modules.dep'\n"
        ),
    )?;
    Ok(driver)
}

/// Copies the fakes into the root of a machine before its first boot, to a directory that is not in a library search
/// path. `version` is the driver version that the machine will get.
pub fn fake(
    root: &Path,
    version: &str,
    machines: &Machines,
    spec: &MachineSpec,
    fakes: &Fakes,
) -> Result<()> {
    let here = root.join(INSIDE.trim_start_matches('/'));
    let cuda = machines.cuda_of(version)?;
    let inventory = inventory(version, cuda, spec)?;
    write(&here.join("fake-nvml.toml"), &inventory)?;
    let directory = here.join("libraries");
    fs::create_dir_all(&directory).context("cannot create a directory")?;
    for (name, library) in [
        ("libnvidia-ml.so.1", &fakes.nvml),
        ("libcuda.so.1", &fakes.cuda),
    ] {
        let place = directory.join(name);
        fs::copy(library, &place).with_context(|| format!("cannot write {}", place.display()))?;
        append(&place, &inventory)?;
    }
    Ok(())
}

/// Appends the inventory to a fake library, for containers.
fn append(library: &Path, inventory: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(library)
        .with_context(|| format!("cannot open {}", library.display()))?;
    std::io::Write::write_all(&mut file, format!("{APPENDED}{inventory}").as_bytes())
        .with_context(|| format!("cannot write {}", library.display()))
}

/// Removes the simulated driver, for the next boot.
pub fn unload_driver(root: &Path, functions: &[Function]) -> Result<()> {
    let here = root.join(INSIDE.trim_start_matches('/'));
    crate::bed::remove_tree(&here.join("driver"))?;
    crate::bed::remove_tree(&here.join("pci"))?;
    pci::fabricate(&here.join("pci"), functions, false)
}

fn kernel_side(dir: &Path, driver: &Driver, functions: &[Function]) -> Result<()> {
    // Two lines, the second with the compiler: `nv_procfs_read_version`, kernel-open/nvidia/nv-procfs.c of
    // github:NVIDIA/open-gpu-kernel-modules. Text of the open flavor: github:nix-community/nixGL#186.
    let kind = match driver.flavor {
        "open" => "NVIDIA UNIX Open Kernel Module for x86_64",
        _ => "NVIDIA UNIX x86_64 Kernel Module",
    };
    let version = &driver.version;
    write(
        &dir.join("proc/nvidia/version"),
        &format!(
            "NVRM version: {kind}  {version}  (simulated by the test bed)\n\
             GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
        ),
    )?;
    write(&dir.join("nodes"), &devices(&dir.join("proc"), functions)?)?;
    // O: built out of tree; E: not signed with a trusted key; P: license not compatible with the GPL (Linux,
    // Documentation/admin-guide/tainted-kernels.rst). The license of the open flavor is "Dual MIT/GPL".
    let taint = match driver.flavor {
        "open" => "OE",
        _ => "POE",
    };
    for module in ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"] {
        let at = dir.join("module").join(module);
        write(&at.join("initstate"), "live\n")?;
        write(&at.join("refcnt"), "0\n")?;
        write(&at.join("taint"), &format!("{taint}\n"))?;
        write(&at.join("version"), &format!("{version}\n"))?;
    }
    // The dependencies between the modules are real. The sizes are realistic but not those of a particular version.
    let modules: String = [
        ("nvidia_uvm", 1_540_096, "0 -"),
        ("nvidia_drm", 77_824, "0 -"),
        ("nvidia_modeset", 1_314_816, "1 nvidia_drm,"),
        ("nvidia", 56_717_312, "2 nvidia_uvm,nvidia_modeset,"),
    ]
    .iter()
    .map(|(name, size, users)| format!("{name} {size} {users} Live 0x0000000000000000 ({taint})\n"))
    .collect();
    write(&dir.join("modules"), &modules)
}

/// Writes the driver's device entries below `proc`. Returns the device nodes, each with its module.
pub(crate) fn devices(proc: &Path, functions: &[Function]) -> Result<String> {
    // With 1, NVIDIA's container hook would mount a file over this one in the container's /proc, which the harness
    // cannot simulate. An administrator who manages the device nodes sets 0.
    write(
        &proc.join("nvidia/params"),
        "ModifyDeviceFiles: 0\nDeviceFileMode: 438\n",
    )?;
    // Numbers: kernel-open/common/inc/nv-chardev-numbers.h there.
    let mut nodes =
        String::from("/dev/nvidiactl 195 255 nvidia\n/dev/nvidia-modeset 195 254 nvidia_modeset\n");
    // nvidia-uvm gets a free major number (`alloc_chrdev_region`, kernel-open/nvidia-uvm/uvm.c there). 511 is the first
    // number that the kernel assigns when the low range is full (`find_dynamic_major`, fs/char_dev.c of Linux).
    nodes.push_str("/dev/nvidia-uvm 511 0 nvidia_uvm\n/dev/nvidia-uvm-tools 511 1 nvidia_uvm\n");
    let gpus = functions
        .iter()
        .filter(|function| function.device.is_nvidia_gpu());
    for (minor, gpu) in gpus.enumerate() {
        writeln!(nodes, "/dev/nvidia{minor} 195 {minor} nvidia")?;
        write(
            &proc
                .join("nvidia/gpus")
                .join(gpu.address.as_str())
                .join("information"),
            &format!(
                "Bus Location: \t {}\nDevice Minor: \t {minor}\n",
                gpu.address
            ),
        )?;
    }
    // The driver's list, and the path where NVIDIA's scripts look for switches: ubuntu24.04/nvidia-driver of
    // github:NVIDIA/gpu-driver-container.
    for switch in functions.iter().filter(|one| one.device.is_nvswitch()) {
        write(
            &proc
                .join("nvidia-nvswitch/devices")
                .join(switch.address.as_str())
                .join("information"),
            "(simulated by the test bed)\n",
        )?;
    }
    Ok(nodes)
}

/// Overwrites the real libraries with the fakes, and keeps the real ones next to the inventory. A container gets only
/// the libraries, so they also have the inventory at their end.
fn library_side(
    root: &Path,
    here: &Path,
    version: &str,
    fakes: &Fakes,
    inventory: &str,
) -> Result<()> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let places = [
        libraries.join("nvidia/current"),
        libraries.clone(),
        // Library directory on AlmaLinux.
        root.join("usr/lib64"),
    ];
    for (name, with) in [
        ("libnvidia-ml.so", &fakes.nvml),
        ("libcuda.so", &fakes.cuda),
    ] {
        let name = format!("{name}.{version}");
        let mut paths = places.iter().map(|dir| dir.join(&name));
        let Some(real) = paths.find(|path| path.is_file()) else {
            bail!(
                "the driver's packages left no {name} in {}",
                libraries.display()
            );
        };
        replace(here, &real, with)?;
        append(&real, inventory)?;
    }
    Ok(())
}

/// Replaces the programs that use the hardware through private interfaces: `nvidia-smi`, and the persistence daemon.
fn programs(root: &Path, here: &Path, fakes: &Fakes) -> Result<()> {
    let smi = here.join("nvidia-smi");
    program(&smi, SMI)?;
    put_smi(here, fakes)?;
    for place in ["usr/lib/nvidia/current/nvidia-smi", "usr/bin/nvidia-smi"] {
        let real = root.join(place);
        if real.is_file() && !real.is_symlink() {
            replace(here, &real, &smi)?;
        }
    }
    write(
        &root.join("usr/lib/systemd/system/nvidia-persistenced.service.d/90-testbed.conf"),
        "[Service]\nType=exec\nPIDFile=\nExecStart=\nExecStart=/bin/sleep infinity\nExecStopPost=\n",
    )
}

/// Copies the program that `mig-smi` runs.
pub(crate) fn put_smi(here: &Path, fakes: &Fakes) -> Result<()> {
    fs::copy(&fakes.smi, here.join("fake-mig-smi")).context("cannot copy a program")?;
    Ok(())
}

/// Overwrites a file in place, so that dpkg removes it like its own, and keeps the original.
fn replace(here: &Path, real: &Path, with: &Path) -> Result<()> {
    let kept = here.join("real").join(real.file_name().unwrap_or_default());
    if !kept.exists() {
        fs::create_dir_all(here.join("real")).context("cannot create a directory")?;
        fs::copy(real, &kept).with_context(|| format!("cannot keep {}", real.display()))?;
    }
    fs::copy(with, real)
        .with_context(|| format!("cannot replace {} with {}", real.display(), with.display()))?;
    Ok(())
}

/// The GPUs that NVML lists, with the keys of their `[[gpu]]`.
fn answering(functions: &[Function]) -> impl Iterator<Item = (&Function, &toml::Table)> {
    functions
        .iter()
        .filter_map(|function| Some((function, function.nvml.as_ref()?)))
}

/// The fake's inventory, generated from the same table as the bus.
fn inventory(version: &str, cuda: &str, spec: &MachineSpec) -> Result<String> {
    let mut table = toml::Table::from_iter([
        ("driver-version".to_string(), version.into()),
        ("cuda-version".to_string(), cuda.into()),
        ("gpu".to_string(), gpus(spec)),
    ]);
    // Left out without a fault, so that a case can append its own table.
    if !spec.faults.is_empty() {
        table.insert("faults".to_string(), spec.faults.clone().into());
    }
    toml::to_string(&table).context("cannot write the fake's inventory")
}

/// The GPUs of the inventory.
pub(crate) fn gpus(spec: &MachineSpec) -> toml::Value {
    let gpus: Vec<toml::Value> = answering(&spec.functions)
        .map(|(function, answers)| {
            let mut gpu = answers.clone();
            let mut set = |key: &str, value: String| {
                gpu.entry(key).or_insert_with(|| value.into());
            };
            set("pci-address", function.address.to_string());
            set("pci-id", function.device.id.to_string());
            set("pci-subsystem", function.device.subsystem.to_string());
            set("uuid", uuid(&function.address));
            // The fake persistence daemon does nothing, so its setting is applied here.
            gpu.entry("persistence").or_insert(true.into());
            toml::Value::Table(gpu)
        })
        .collect();
    toml::Value::Array(gpus)
}

/// The output of `nvidia-smi -L`.
pub(crate) fn listing(functions: &[Function]) -> String {
    answering(functions)
        .enumerate()
        .map(|(index, (function, answers))| {
            let name = answers
                .get("name")
                .and_then(toml::Value::as_str)
                .unwrap_or("NVIDIA GPU");
            format!("GPU {index}: {name} (UUID: {})\n", uuid(&function.address))
        })
        .collect()
}

/// A GPU's UUID, computed from its address so that it is the same at every boot.
fn uuid(address: &Address) -> String {
    let hex: String = Sha256::digest(address.as_str().as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..32]
    )
}

/// Name of the main module: in NVIDIA's packages, in Debian's, and in Debian's open flavor.
const MODULES: [&str; 3] = ["nvidia", "nvidia-current", "nvidia-current-open"];

/// The driver's main module below `modules`, regardless of the package.
fn find_module(modules: &Path) -> Result<PathBuf> {
    let mut dirs = vec![modules.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        for entry in entries {
            let path = entry.context("cannot read a directory")?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let stem = name.split(".ko").next().unwrap_or_default();
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            } else if name.contains(".ko") && MODULES.contains(&stem) {
                return Ok(path);
            }
        }
    }
    bail!("no nvidia module was built below {}", modules.display())
}

pub(crate) fn program(path: &Path, script: &str) -> Result<()> {
    write(path, script)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_taint_depends_on_license() {
        let dir = tempfile::tempdir().unwrap();
        for (flavor, taint) in [("open", "OE"), ("proprietary", "POE")] {
            let driver = Driver {
                version: "535.1.2".into(),
                flavor,
            };
            kernel_side(dir.path(), &driver, &[]).unwrap();
            let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(read("module/nvidia_uvm/taint"), format!("{taint}\n"));
            let modules = read("modules");
            assert!(
                modules
                    .lines()
                    .all(|line| line.ends_with(&format!("({taint})"))),
                "{modules}"
            );
        }
    }

    #[test]
    fn boot_loader_starts_first_or_chosen_entry() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| write(&dir.path().join("boot").join(name), text);
        let chosen = || saved_kernel(dir.path()).unwrap();
        assert_eq!(chosen(), None);
        let menu = "menuentry 'x' {\n\tlinux\t/boot/vmlinuz-6.8.0-2-aws root=UUID=1\n}\n\
                    menuentry 'y' {\n\tlinux\t/boot/vmlinuz-6.8.0-1-aws root=UUID=1\n}\n";
        put("grub/grub.cfg", menu).unwrap();
        assert_eq!(chosen().as_deref(), Some("6.8.0-2-aws"));
        put(
            "grub/grubenv",
            "next_entry=gnulinux-6.8.0-1-aws-advanced-1\n",
        )
        .unwrap();
        assert_eq!(chosen().as_deref(), Some("6.8.0-1-aws"));
        put("grub2/grubenv", "saved_entry=testbed-5.14.0-1.el9.x86_64\n").unwrap();
        assert_eq!(chosen().as_deref(), Some("5.14.0-1.el9.x86_64"));
    }

    #[test]
    fn inventory_matches_bus() {
        let machines =
            Machines::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines.toml"))
                .unwrap();
        let spec = machines.machine("h100").unwrap();
        let text = inventory("535.1.2", machines.cuda_of("535.1.2").unwrap(), spec).unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(table["driver-version"].as_str(), Some("535.1.2"));
        assert_eq!(
            table["gpu"][0]["pci-address"].as_str(),
            Some("0000:18:00.0")
        );
        assert!(listing(&spec.functions).starts_with("GPU 0: NVIDIA H100"));
    }
}
