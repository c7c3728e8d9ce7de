//! Builds a machine from a TOML description: a file of `bases/` with the changes of a scenario.

use std::collections::BTreeMap;

use gpu_bootstrap::{
    host::{fake::Fakes, files::FreeSpace},
    tools::openpgp,
};
use serde::Deserialize;
use toml::Table;

use crate::{
    archive::{Archive, LISTS},
    boot,
    containers::merge,
    dpkg::{self, Entry},
    kernel,
    state::{Faults, State, on},
};

const GIB: u64 = 1 << 30;

/// A machine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Description {
    /// An Ubuntu release, which sets the operating system, the archive, its sources and the packages of the running kernel.
    pub release: Option<String>,
    /// The content of `/usr/lib/os-release`.
    pub os_release: String,
    /// Name of a file in `archives/`.
    pub archive: String,
    /// The running kernel.
    pub kernel: String,
    /// The kernel of the next boot, if it differs.
    pub next_kernel: Option<String>,
    /// The kernel's name of the architecture.
    pub architecture: String,
    /// `enabled`, `disabled`, or `unsupported` on a machine without UEFI.
    pub secure_boot: String,
    /// `VENDOR:DEVICE` of each GPU, with `/SUBVENDOR:SUBDEVICE` if it matters.
    pub gpus: Vec<String>,
    /// Number of NVSwitches of an HGX H100 board.
    pub nvswitches: u8,
    /// In-tree drivers that bind the GPU at boot unless they are denied.
    pub in_tree: Vec<String>,
    /// In-tree drivers in the initramfs.
    pub initrd: Vec<String>,
    /// Packages from the archive, with their dependencies. `name=version` selects an older version.
    pub packages: Vec<String>,
    /// Packages with only a name and version: `name=version`.
    pub plain: Vec<String>,
    pub held: Vec<String>,
    /// Half-configured packages.
    pub half: Vec<String>,
    pub memory_gib: u64,
    pub root_free_gib: u64,
    pub boot_free_mib: u64,
    /// Mount points that are read-only.
    pub read_only: Vec<String>,
    /// Directories without free space, where every write fails.
    pub full: Vec<String>,
    pub files: BTreeMap<String, String>,
    pub links: BTreeMap<String, String>,
    /// Owners other than root, by path.
    pub owners: BTreeMap<String, u32>,
    /// Firmware values: `sys_vendor`, `product_name`, ….
    pub dmi: BTreeMap<String, String>,
    /// The output of `rpm -qa`, one package per line, in the format of gpu-bootstrap with `|` for tabs.
    pub rpm: Option<String>,
    /// Whether the package lists have been downloaded.
    pub lists: bool,
    /// The wall clock.
    pub now: Option<String>,
    /// Runs as a non-root user.
    pub unprivileged: bool,
    pub faults: Faults,
}

/// Reads a base and applies the changes: arrays and values replace, tables merge.
pub fn describe(base: &str, differs: Table) -> Description {
    let path = format!(
        "{}/tests/machine/bases/{base}.toml",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut whole: Table = text.parse().unwrap_or_else(|e| panic!("{path}: {e}"));
    merge(&mut whole, differs);
    let mut about: Description =
        Table::try_into(whole).unwrap_or_else(|e| panic!("a machine on {base}: {e}"));
    if let Some(release) = about.release.clone() {
        ubuntu(&mut about, &release);
    }
    about
}

/// Describes an Ubuntu machine that runs a kernel from the archive, or from an image that is older than all archive versions.
fn ubuntu(about: &mut Description, release: &str) {
    let codename = match release {
        "22.04" => "jammy",
        "24.04" => "noble",
        "26.04" => "resolute",
        other => panic!("no archive for {other}"),
    };
    about.os_release = format!(
        "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"{release}\"\n\
         VERSION_CODENAME={codename}\nPRETTY_NAME=\"Ubuntu {release} LTS\"\n"
    );
    about.archive = format!("ubuntu-{release}");
    let kernel = &about.kernel;
    // Without the flavor.
    let abi: Vec<&str> = kernel.splitn(3, '-').take(2).collect();
    let abi = abi.join("-");
    about.plain = vec![
        "apt=2.8.3".to_owned(),
        "initramfs-tools=0.142".to_owned(),
        format!("linux-image-{kernel}={abi}.1"),
        format!("linux-modules-{kernel}={abi}.1"),
    ];
    about.files.insert(
        "/etc/apt/sources.list.d/ubuntu.sources".to_owned(),
        format!(
            "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu\n\
             Suites: {codename} {codename}-updates {codename}-security\n\
             Components: main restricted universe multiverse\n\
             Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
        ),
    );
}

/// Builds the machine, including the effects of its first boot.
pub fn build(about: &Description, fakes: &Fakes) -> State {
    let files = &fakes.files;
    let free_space = |free: u64, path: &str| FreeSpace {
        total: 100 * GIB,
        free,
        read_only: about.read_only.iter().any(|only| only == path),
        inodes: None,
    };
    // Write this before mounts become read-only.
    let writable = |free| FreeSpace {
        total: 100 * GIB,
        free,
        read_only: false,
        inodes: None,
    };
    files.mount("/", writable(about.root_free_gib * GIB));
    for (path, content) in &about.files {
        let content = on(&about.architecture, content);
        // Secrets are readable only by root.
        match path.ends_with("token") || path.ends_with(".key") {
            true => files.put_mode(path, content, 0o600),
            false => files.put(path, content),
        }
    }
    for (path, target) in &about.links {
        files.put_link(path, target);
    }
    for (path, uid) in &about.owners {
        files.own(path, *uid, 0);
    }
    files.put("/usr/lib/os-release", about.os_release.clone());
    files.put_link("/etc/os-release", "../usr/lib/os-release");
    files.put("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    files.put("/proc/1/comm", "systemd\n");
    files.put("/proc/1/status", "Name:\tsystemd\nUid:\t0\t0\t0\t0\n");
    files.put("/proc/modules", "");
    files.put("/proc/locks", "");
    files.put(
        "/proc/meminfo",
        format!("MemTotal: {} kB\n", about.memory_gib << 20),
    );
    files.put(
        "/proc/self/mountinfo",
        "20 1 259:0 / / rw shared:1 - ext4 /dev/vda1 rw\n",
    );
    files.put("/proc/self/exe", "the program");
    files.put(
        "/proc/self/maps",
        "5500-5600 r-xp 0 fe:01 1 /usr/local/bin/gpu-bootstrap\n\
         7f00-7f10 r-xp 0 fe:01 2 /lib/x86_64-linux-gnu/libc.so.6\n\
         7f20-7f30 r-xp 0 fe:01 3 /lib64/ld-linux-x86-64.so.2\n",
    );
    for library in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ] {
        files.put(library, "");
    }
    files.put("/proc/sys/kernel/osrelease", format!("{}\n", about.kernel));
    files.put("/proc/sys/kernel/arch", format!("{}\n", about.architecture));
    files.put(
        "/proc/version",
        format!(
            "Linux version {} (builder@example) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld) #1\n",
            about.kernel
        ),
    );
    for (name, value) in &about.dmi {
        files.put(&format!("/sys/class/dmi/id/{name}"), format!("{value}\n"));
    }
    for directory in [
        "/sys/firmware",
        "/sys/module",
        "/proc/driver",
        "/usr/bin",
        "/usr/sbin",
        "/dev",
    ] {
        files.put_directory(directory, 0o755);
    }
    secure_boot(about, fakes);
    // The modprobe package owns the directory on every distribution.
    files.put_directory("/etc/modprobe.d", 0o755);
    files.put_directory("/sys/bus/pci/devices", 0o755);
    for (at, id) in about.gpus.iter().enumerate() {
        put_gpu(fakes, &format!("0000:{:02x}:00.0", 6 + at), id);
    }
    for at in 0..about.nvswitches {
        let address = format!("0000:e1:{:02x}.0", 7 + at);
        put_function(fakes, &address, "10de:22a3", "10de:1796", "068000");
    }
    let image = if about.rpm.is_some() {
        "initramfs-KERNEL.img"
    } else {
        "initrd.img-KERNEL"
    };
    kernel::put(files, &about.kernel, image, &about.initrd);
    if let Some(next) = &about.next_kernel {
        kernel::put(files, next, image, &about.initrd);
    }
    let next = about.next_kernel.as_ref().unwrap_or(&about.kernel);
    boot::put_grub(files, next);
    files.put("/boot/grub/grubenv", "# GRUB Environment Block\n");
    let mut state = State {
        archive: if about.archive.is_empty() {
            Archive::default()
        } else {
            Archive::load(&about.archive, &about.architecture)
        },
        faults: Faults::default(),
        secure_boot: about.secure_boot == "enabled",
        initrd: about.initrd.clone(),
        rpm: about.rpm.clone().unwrap_or_default().replace('|', "\t"),
        boots: 0,
        node: None,
        pods: Vec::new(),
    };
    if about.rpm.is_some() {
        files.put("/var/lib/rpm/rpmdb.sqlite", "");
        let keys = openpgp::parse(include_bytes!("../keys/two.asc"))
            .expect("the test keys")
            .keys;
        files.put(
            "/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9",
            keys[0].armoured.clone(),
        );
        files.put_directory("/var/lib/dnf", 0o755);
        for spec in &about.packages {
            with_needs(fakes, &state, requested(&state, spec));
        }
        if about.lists {
            let updated = crate::dnf::refresh(files, &mut state);
            assert!(updated.stderr.is_empty(), "{}", updated.stderr);
        }
    } else {
        packages(about, fakes, &state);
    }
    state.faults = about.faults.clone();
    if let Some(other) = &state.faults.package_lock {
        crate::gpu::show_lock(files, other.pid, &other.program);
    }
    if let Some(now) = &about.now {
        fakes
            .clock
            .set(now.parse().unwrap_or_else(|e| panic!("{now}: {e}")));
    }
    crate::machine::start(files, &mut state, &about.in_tree);
    files.mount(
        "/boot",
        FreeSpace {
            free: about.boot_free_mib << 20,
            ..free_space(0, "/boot")
        },
    );
    for path in &about.read_only {
        if path != "/boot" {
            files.mount(path, free_space(about.root_free_gib * GIB, path));
        }
    }
    for directory in &about.full {
        files.damage(
            directory,
            gpu_bootstrap::host::fake::Damage::Writes,
            nix::errno::Errno::ENOSPC,
        );
    }
    state
}

fn secure_boot(about: &Description, fakes: &Fakes) {
    let value = match about.secure_boot.as_str() {
        "unsupported" => return,
        "enabled" => 1,
        "disabled" => 0,
        other => panic!("secure-boot is `{other}`"),
    };
    fakes.files.put(
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        [6, 0, 0, 0, value],
    );
}

fn put_gpu(fakes: &Fakes, address: &str, id: &str) {
    let (id, subsystem) = id.split_once('/').unwrap_or((id, "10de:16c1"));
    put_function(fakes, address, id, subsystem, "030200");
    let path = format!("/sys/bus/pci/devices/{address}/numa_node");
    fakes.files.put(&path, "-1\n");
    let path = format!("/sys/bus/pci/devices/{address}/reset");
    fakes.files.put(&path, "");
}

fn put_function(fakes: &Fakes, address: &str, id: &str, subsystem: &str, class: &str) {
    let (vendor, device) = id.split_once(':').expect("VENDOR:DEVICE");
    let (sub_vendor, sub_device) = subsystem.split_once(':').expect("VENDOR:DEVICE");
    let directory = format!("/sys/bus/pci/devices/{address}");
    for (name, value) in [
        ("vendor", vendor),
        ("device", device),
        ("subsystem_vendor", sub_vendor),
        ("subsystem_device", sub_device),
        ("class", class),
    ] {
        fakes
            .files
            .put(&format!("{directory}/{name}"), format!("0x{value}\n"));
    }
}

/// The archive package for `NAME` or `NAME=VERSION`.
fn requested<'s>(state: &'s State, spec: &str) -> &'s crate::archive::Package {
    match spec.split_once('=') {
        Some((name, version)) => state.archive.package(name, version),
        None => state.archive.newest(spec),
    }
}

fn packages(about: &Description, fakes: &Fakes, state: &State) {
    let files = &fakes.files;
    let keys = openpgp::parse(include_bytes!("../keys/two.asc"))
        .expect("the test keys")
        .keys;
    for distribution in ["debian", "ubuntu"] {
        files.put(
            &format!("/usr/share/keyrings/{distribution}-archive-keyring.gpg"),
            keys[0].binary.clone(),
        );
    }
    files.put("/var/lib/dpkg/lock-frontend", "");
    files.put("/var/lib/dpkg/lock", "");
    files.put_directory("/var/lib/dpkg/updates", 0o755);
    files.put_directory("/var/lib/dpkg/info", 0o755);
    files.put_directory(LISTS, 0o755);
    files.put("/var/lib/apt/extended_states", "");
    let mut database = BTreeMap::new();
    for plain in &about.plain {
        let (name, version) = plain.split_once('=').expect("name=version");
        database.insert(
            name.to_owned(),
            Entry {
                want: "install".to_owned(),
                state: "installed".to_owned(),
                version: version.to_owned(),
                maintainer: "Debian <packages@debian.example>".to_owned(),
            },
        );
    }
    dpkg::write(files, &database);
    for spec in &about.packages {
        let package = requested(state, spec);
        with_needs(fakes, state, package);
    }
    let mut database = dpkg::read(files);
    for name in &about.held {
        database
            .get_mut(name)
            .unwrap_or_else(|| panic!("{name} should be held, but is not installed"))
            .want = "hold".to_owned();
    }
    for name in &about.half {
        database
            .get_mut(name)
            .unwrap_or_else(|| panic!("{name} should be half-configured, but is not installed"))
            .state = "half-configured".to_owned();
    }
    dpkg::write(files, &database);
    if about.lists {
        let updated = state.archive.update(files, None, false);
        assert!(updated.ok(), "{}", updated.stderr);
    }
}

fn with_needs(fakes: &Fakes, state: &State, package: &crate::archive::Package) {
    if dpkg::installed(&fakes.files, &package.name).is_some() {
        return;
    }
    for spec in &package.depends {
        let (name, same) = spec
            .split_once(" = ")
            .map_or((spec.as_str(), false), |(n, _)| (n, true));
        let names: Vec<&str> = name.split(" | ").collect();
        if names
            .iter()
            .any(|name| dpkg::installed(&fakes.files, name).is_some())
        {
            continue;
        }
        let needed = if same {
            state.archive.package(names[0], &package.version)
        } else {
            state.archive.newest(names[0])
        };
        with_needs(fakes, state, needed);
    }
    dpkg::unpack(&fakes.files, package);
    dpkg::configure(&fakes.files, state, package).unwrap_or_else(|why| panic!("{why}"));
}
