//! QEMU, from a separate root filesystem, because the emulated GPU needs a newer version than the host's distribution
//! has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::group::{Group, Part};
use crate::net::Net;
use crate::rootfs::{self, KEYRING};
use crate::sh::Cmd;

/// The device `vfio-user-pci` was added in QEMU 10.1; the backports of this suite have a newer version.
const SUITE: &str = "trixie";

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("qemu.rs");

/// QEMU, `qemu-img`, its firmware, and a boot loader for disks that are built here. They are unpacked without their
/// maintainer scripts, which QEMU does not need.
const PACKAGES: &str = "qemu-system-x86,qemu-utils,ovmf,grub-efi-amd64-signed,base-files";

/// Only QEMU's packages come from the backports.
const PINS: &str = r#"mkdir -p "$1/etc/apt/preferences.d" "$1/dev" "$1/mnt" "$1/run" &&
printf 'Package: *qemu* seabios\nPin: release n=trixie-backports\nPin-Priority: 990\n' >"$1/etc/apt/preferences.d/qemu""#;

/// The path of a machine's directory and its sockets inside QEMU's root.
pub const DISKS: &str = "/mnt";
pub const SOCKETS: &str = "/run";

/// The mounts are visible only to this QEMU and disappear with it. Cases of emulated machines take the longest, so QEMU
/// gets a higher priority than other processes.
const ENTER: &str = r#"
root=$1 disks=$2 sockets=$3
shift 3
mount --bind /dev "$root/dev"
mount --bind "$disks" "$root/mnt"
mount --bind "$sockets" "$root/run"
exec nice -n -10 chroot "$root" "$@"
"#;

/// Returns the root filesystem with QEMU, built or from the cache.
pub fn root(bed: &Bed) -> Result<PathBuf> {
    let mirror = rootfs::mirror()?.main;
    let recipe = format!("{mirror}\n{SOURCE}");
    let dir = bed.cached("qemu", &recipe, None, |dir| {
        let root = dir.join("root");
        let list: String = [SUITE.to_string(), format!("{SUITE}-backports")]
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
            .collect();
        Cmd::new([
            "mmdebstrap".to_string(),
            "--variant=extract".into(),
            "--mode=root".into(),
            "--quiet".into(),
            format!("--include={PACKAGES}"),
            format!("--setup-hook={PINS}"),
            SUITE.into(),
            root.to_string_lossy().into_owned(),
            "-".into(),
        ])
        .stdin(list)
        .deadline(Duration::from_secs(600))
        .ok()?;
        // QEMU's own resolver forwards to this one, which belongs to slirp4netns.
        fs::write(root.join("etc/resolv.conf"), "nameserver 10.0.2.3\n")
            .context("cannot write the resolver")?;
        Cmd::new([
            "chroot",
            &root.to_string_lossy(),
            "qemu-system-x86_64",
            "--version",
        ])
        .ok()
        .map(drop)
    })?;
    Ok(dir.join("root"))
}

/// A command that runs a program from the QEMU root in a machine's group and network, with the
/// machine's directories mounted.
pub fn command(
    root: &Path,
    group: &Group,
    net: &Net,
    (disks, sockets): (&Path, &Path),
    arguments: &[String],
) -> Vec<String> {
    let [root, disks, sockets] = [root, disks, sockets].map(|path| path.to_string_lossy());
    let mut argv = net.inside([
        "unshare",
        "--mount",
        "--propagation=private",
        "/bin/sh",
        "-euc",
        ENTER,
        "sh",
        &root,
        &disks,
        &sockets,
    ]);
    argv.extend_from_slice(arguments);
    group.inside(Part::Machine, &argv)
}

/// A boot sector that uses the floating-point unit, as firmware does early and as a KVM that emulates instructions
/// cannot. It stops QEMU through the exit device with the value 33, which QEMU turns into exit code 67.
const PROBE: [u8; 10] = [0x9b, 0xdb, 0xe3, 0xba, 0x01, 0x05, 0xb0, 0x21, 0xee, 0xf4];
const PROBE_EXIT: i32 = 67;

/// QEMU's CPU options: with KVM if a guest really runs with it here. The existence of `/dev/kvm` is not sufficient.
pub fn accelerator(root: &Path, dir: &Path) -> Result<[&'static str; 4]> {
    static KVM: OnceLock<bool> = OnceLock::new();
    let kvm = match KVM.get() {
        Some(known) => *known,
        None => {
            let works = runs_by_kvm(root, dir)?;
            *KVM.get_or_init(|| works)
        }
    };
    Ok(match kvm {
        true => ["-accel", "kvm", "-cpu", "host"],
        false => ["-accel", "tcg,thread=multi", "-cpu", "max"],
    })
}

fn runs_by_kvm(root: &Path, dir: &Path) -> Result<bool> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(false);
    }
    let mut sector = PROBE.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    fs::write(dir.join("probe.img"), sector).context("cannot write a boot sector")?;
    let mut argv = ["unshare", "--mount", "--propagation=private"]
        .map(String::from)
        .to_vec();
    let [root, dir] = [root, dir].map(|path| path.to_string_lossy());
    argv.extend(["/bin/sh", "-euc", ENTER, "sh", &root, &dir, &dir].map(String::from));
    argv.extend(
        [
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-accel",
            "kvm",
            "-device",
            "isa-debug-exit",
            "-drive",
            &format!("file={DISKS}/probe.img,format=raw,if=ide"),
        ]
        .map(String::from),
    );
    // A guest that KVM cannot run hangs; a guest that it can run exits within a second.
    let done = Cmd::new(argv).deadline(Duration::from_secs(5)).run()?;
    Ok(done.code == PROBE_EXIT)
}
