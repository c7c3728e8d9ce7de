//! The machine around the kernel: virtualization, process 1, IDs, memory, disks.

use camino::Utf8Path;

use crate::facts::{
    Disk, Facts,
    cloud::{CloudInit, Dmi},
    detection::{Containers, table},
    reader::FactReader,
};
use crate::{
    error::one_line,
    host::system::{MemoryError, System},
    runtimes,
};

/// Filesystems that need free space: for packages and archives, kernels, and container images.
const PATHS: [&str; 5] = ["/", "/boot", "/tmp", "/usr", "/var"];

impl Facts {
    /// The container manager, if this is a container.
    pub fn container(&self) -> Option<&str> {
        let word = self.virtualization.as_deref()?;
        let Containers {
            applications,
            systems,
            ..
        } = &table().containers;
        (applications.iter().chain(systems))
            .any(|one| one == word)
            .then_some(word)
    }

    /// The container manager, if this is an application container.
    pub fn application_container(&self) -> Option<&str> {
        let applications = &table().containers.applications;
        (self.container()).filter(|word| applications.iter().any(|one| one == word))
    }
}

/// Returns the hypervisor or container manager as in `systemd-detect-virt`, or `none` on bare
/// metal.
pub(super) fn virtualization(reader: &mut FactReader<'_>, dmi: &Dmi) -> Option<String> {
    let fact = "virtualization";
    // WSL is identified by the kernel release: `Microsoft` in WSL 1, `microsoft-standard-WSL2` in
    // WSL 2. Source: systemd src/basic/virt.c.
    let release = reader.value(fact, "/proc/sys/kernel/osrelease");
    if release.is_some_and(|release| is_wsl(&release)) {
        return Some("wsl".to_owned());
    }
    // A container is the innermost layer, so it is detected first. systemd records it in a file.
    if let Some(container) = reader.value(fact, "/run/systemd/container") {
        return Some(container);
    }
    for (mark, word) in &table().containers.marks {
        if reader.exists(fact, mark) {
            return Some(word.clone());
        }
    }
    if let Some(word) = hypervisor_of(dmi) {
        return Some(word.to_owned());
    }
    if let Some(kind) = reader.value(fact, "/sys/hypervisor/type") {
        return Some(kind);
    }
    if let Some(compatible) = reader.value(fact, "/proc/device-tree/hypervisor/compatible") {
        let word = if compatible.contains("kvm") {
            "kvm"
        } else {
            "vm-other"
        };
        return Some(word.to_owned());
    }
    let flag = reader
        .text(fact, "/proc/cpuinfo")
        .and_then(|text| hypervisor_flag(&text));
    match flag {
        Some(true) => Some("vm-other".to_owned()),
        Some(false) => Some("none".to_owned()),
        // Only x86 has the flag. On other architectures, firmware without a known name means bare
        // metal.
        None if dmi.present => Some("none".to_owned()),
        None => {
            reader.unknown(fact, "neither the firmware nor `/proc/cpuinfo` is readable");
            None
        }
    }
}

fn is_wsl(release: &str) -> bool {
    let release = release.to_ascii_lowercase();
    release.contains("microsoft") || release.contains("wsl")
}

/// Returns the name of process 1, or in an image the target of `/sbin/init`.
pub(super) fn init(reader: &mut FactReader<'_>) -> Option<String> {
    if let Some(name) = reader.value("init", "/proc/1/comm") {
        return Some(name);
    }
    let target = reader.resolve("init", "/sbin/init");
    if let Some(name) = target.as_deref().and_then(Utf8Path::file_name) {
        return Some(name.to_owned());
    }
    reader.unknown("init", "neither `/proc/1/comm` nor `/sbin/init` exists");
    None
}

/// Returns the boot ID, which changes at every boot.
pub(super) fn boot_id(reader: &mut FactReader<'_>) -> Option<String> {
    reader.required("boot-id", "/proc/sys/kernel/random/boot_id")
}

/// Returns an ID that a clone of this machine does not share: the instance ID of the cloud,
/// otherwise the firmware UUID. The machine ID is the last choice and marked as such, because a
/// clone may keep it.
pub(super) fn instance_id(reader: &mut FactReader<'_>, init: &CloudInit) -> Option<String> {
    let fact = "instance-id";
    if let Some(id) = &init.instance_id {
        return Some(id.clone());
    }
    if let Some(id) = reader
        .value(fact, "/var/lib/cloud/data/instance-id")
        .filter(|id| id != "iid-datasource-none")
    {
        return Some(id);
    }
    if let Some(uuid) = reader
        .value(fact, "/sys/class/dmi/id/product_uuid")
        .filter(|uuid| is_unique(uuid))
    {
        return Some(uuid.to_ascii_lowercase());
    }
    if let Some(id) = reader
        .value(fact, "/etc/machine-id")
        .filter(|id| id != "uninitialized")
    {
        return Some(format!("machine-id:{id}"));
    }
    reader.unknown(fact, "no ID of a cloud, firmware or machine is readable");
    None
}

/// Returns the total memory in bytes.
pub(super) fn memory(reader: &mut FactReader<'_>, system: &dyn System) -> Option<u64> {
    let why = match system.memory_bytes() {
        Ok(bytes) => return Some(bytes),
        Err(MemoryError::Files(error)) => error
            .not_reported()
            .map_or_else(|| format!("failed to {}", one_line(&error)), str::to_owned),
        Err(error) => error.to_string(),
    };
    reader.unknown("memory-bytes", why);
    None
}

/// Returns the filesystems of [`PATHS`] and of the data directories of container runtimes: the root,
/// and each path that is a separate filesystem.
pub(super) fn disks(reader: &mut FactReader<'_>) -> Vec<Disk> {
    let mounts = reader.text("disks", "/proc/self/mountinfo");
    let own = |path: &str| match &mounts {
        Some(mounts) => path == "/" || is_mounted(mounts, path),
        None => path == "/",
    };
    if mounts.is_none() {
        reader.unknown(
            "disks",
            "`/proc/self/mountinfo` is not readable, so only `/` was checked",
        );
    }
    let mut disks = Vec::new();
    let mut paths: Vec<&str> = (PATHS.into_iter())
        .chain(runtimes::data_directories())
        .collect();
    paths.sort_unstable();
    for path in paths.into_iter().filter(|path| own(path)) {
        match reader.files().free_space(Utf8Path::new(path)) {
            Ok(free_space) => disks.push(Disk {
                mount: path.into(),
                total_bytes: free_space.total,
                free_bytes: free_space.free,
            }),
            Err(error) => {
                reader.answer::<()>("disks", Err(error));
            }
        }
    }
    disks
}

fn hypervisor_of(dmi: &Dmi) -> Option<&'static str> {
    let values = [
        &dmi.product_name,
        &dmi.sys_vendor,
        &dmi.board_vendor,
        &dmi.bios_vendor,
        &dmi.product_version,
    ];
    let word = values.iter().find_map(|value| {
        table()
            .virtualization
            .rows
            .iter()
            .find(|(prefix, _)| value.starts_with(prefix.as_str()))
            .map(|(_, word)| word.as_str())
    })?;
    // On bare metal, the firmware of some clouds reports the same vendor as in a VM, but the instance type contains `.metal`.
    let metal = dmi
        .product_name
        .split_once(".metal")
        .is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('-'));
    let also_metal = &table().virtualization.also_metal;
    Some(if metal && also_metal.iter().any(|one| one == word) {
        "none"
    } else {
        word
    })
}

/// Whether the CPU has the hypervisor flag. `None` on architectures without it.
fn hypervisor_flag(cpuinfo: &str) -> Option<bool> {
    let flags = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "flags")?
        .1;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Whether a firmware UUID is unique. Firmware without a UUID reports only the digit `0` or only the
/// digit `f` on every machine.
fn is_unique(uuid: &str) -> bool {
    let digits: Vec<u8> = uuid.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.len() == 32
        && !digits.iter().all(|digit| *digit == b'0')
        && !digits.iter().all(|digit| digit.eq_ignore_ascii_case(&b'f'))
}

/// Whether a path is a mount point, which is the fifth field of a line according to
/// proc_pid_mountinfo(5).
fn is_mounted(mountinfo: &str, path: &str) -> bool {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|mount| mount == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{fake, files::FreeSpace};
    use crate::model::text::reads_any_text;

    #[test]
    fn virtual_machines_and_bare_metal_are_distinguished() {
        let word = |vendor: &str, product: &str| {
            hypervisor_of(&Dmi {
                sys_vendor: vendor.to_owned(),
                product_name: product.to_owned(),
                ..Dmi::default()
            })
        };
        assert_eq!(word("Amazon EC2", "p5.48xlarge"), Some("amazon"));
        assert_eq!(word("Amazon EC2", "g4dn.metal"), Some("none"));
        assert_eq!(word("Amazon EC2", "u-6tb1.metal-24xl"), Some("none"));
        assert_eq!(word("QEMU", "KVM Virtual Machine"), Some("kvm"));
        assert_eq!(word("QEMU", "Standard PC (Q35 + ICH9, 2009)"), Some("qemu"));
        assert_eq!(word("Google", "Google Compute Engine"), Some("google"));
        assert_eq!(word("Dell Inc.", "PowerEdge XE9680"), None);
        assert_eq!(
            hypervisor_flag("flags\t\t: fpu hypervisor lahf_lm\n"),
            Some(true)
        );
        assert_eq!(hypervisor_flag("flags\t\t: fpu lahf_lm\n"), Some(false));
        assert_eq!(hypervisor_flag("Features\t: fp asimd\n"), None);
    }

    #[test]
    fn wsl_is_detected_by_its_kernel_release() {
        for (release, wsl) in [
            ("5.15.167.4-microsoft-standard-WSL2", true),
            ("4.4.0-19041-Microsoft", true),
            ("6.1.0-44-cloud-amd64", false),
        ] {
            assert_eq!(is_wsl(release), wsl, "{release}");
        }
    }

    #[test]
    fn container_is_detected_by_the_systemd_file() {
        let (host, fakes) = fake::host();
        fakes
            .files
            .put("/run/systemd/container", "systemd-nspawn\n");
        let mut reader = FactReader::new(host.reader().files());
        let dmi = Dmi::default();
        assert_eq!(
            virtualization(&mut reader, &dmi).as_deref(),
            Some("systemd-nspawn")
        );
    }

    #[test]
    fn container_is_detected_by_its_files() {
        for (mark, word) in &table().containers.marks {
            let (host, fakes) = fake::host();
            fakes.files.put(&format!("{mark}/x"), "");
            let mut reader = FactReader::new(host.reader().files());
            let found = virtualization(&mut reader, &Dmi::default());
            assert_eq!(found.as_ref(), Some(word));
        }
    }

    #[test]
    fn instance_ids_are_used_in_order_of_reliability() {
        let (host, fakes) = fake::host();
        let id = |init: &CloudInit| instance_id(&mut FactReader::new(host.reader().files()), init);
        let none = CloudInit::default();
        assert_eq!(id(&none), None);
        fakes.files.put("/etc/machine-id", "0123456789abcdef\n");
        assert_eq!(id(&none).as_deref(), Some("machine-id:0123456789abcdef"));
        let uuid = "/sys/class/dmi/id/product_uuid";
        fakes
            .files
            .put(uuid, "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n");
        assert_eq!(id(&none).as_deref(), Some("machine-id:0123456789abcdef"));
        fakes
            .files
            .put(uuid, "EC2E1916-9099-7CAF-FD21-012345ABCDEF\n");
        assert_eq!(
            id(&none).as_deref(),
            Some("ec2e1916-9099-7caf-fd21-012345abcdef")
        );
        fakes.files.put("/var/lib/cloud/data/instance-id", "i-1\n");
        assert_eq!(id(&none).as_deref(), Some("i-1"));
        let cloud = CloudInit {
            instance_id: Some("i-2".to_owned()),
            ..CloudInit::default()
        };
        assert_eq!(id(&cloud).as_deref(), Some("i-2"));
    }

    #[test]
    fn each_filesystem_is_listed_once() {
        let (host, fakes) = fake::host();
        let free_space = |total| FreeSpace {
            total,
            free: total / 2,
            read_only: false,
            inodes: None,
        };
        fakes.files.mount("/", free_space(1_000_000));
        fakes.files.mount("/var", free_space(600_000));
        fakes.files.put(
            "/proc/self/mountinfo",
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 8:2 / /var rw - ext4 /dev/sda2 rw\n",
        );
        let mut reader = FactReader::new(host.reader().files());
        let disks = disks(&mut reader);
        let found: Vec<(&str, u64)> = disks
            .iter()
            .map(|disk| (disk.mount.as_str(), disk.total_bytes))
            .collect();
        assert_eq!(found, [("/", 1_000_000), ("/var", 600_000)]);
        assert!(reader.into_unknown().is_empty());
    }

    reads_any_text!(
        "(flags|:|\n|.)*",
        |text| hypervisor_flag(&text); is_mounted(&text, &text); is_unique(&text)
    );
}
