//! QEMU itself, from a root filesystem of its own: the emulated GPU needs a newer one than the
//! host's distribution has.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::group::{Group, Part};
use crate::net::Net;
use crate::rootfs::{self, KEYRING};
use crate::sh::Cmd;

/// The device `vfio-user-pci` came with QEMU 10.1; this suite has a newer one in its backports.
const SUITE: &str = "trixie";

/// Its packages are unpacked without their scripts, which set up nothing that QEMU needs.
const PACKAGES: &str = "qemu-system-x86,base-files";

/// Everything of QEMU, and nothing else, comes from the backports.
const PINS: &str = r#"mkdir -p "$1/etc/apt/preferences.d" "$1/dev" "$1/mnt" "$1/run" &&
printf 'Package: *qemu* seabios\nPin: release n=trixie-backports\nPin-Priority: 990\n' >"$1/etc/apt/preferences.d/qemu""#;

/// Where a machine's folder and its sockets are seen by QEMU.
pub const DISKS: &str = "/mnt";
pub const SOCKETS: &str = "/run";

/// Mounts are seen by this QEMU alone and go with it.
const ENTER: &str = r#"
root=$1 disks=$2 sockets=$3
shift 3
mount --bind /dev "$root/dev"
mount --bind "$disks" "$root/mnt"
mount --bind "$sockets" "$root/run"
exec chroot "$root" qemu-system-x86_64 "$@"
"#;

/// The root filesystem with QEMU, built or from the cache.
pub fn root(bed: &Bed) -> Result<PathBuf> {
    let mirror = rootfs::mirror()?.main;
    let recipe = format!("{SUITE}\n{PACKAGES}\n{PINS}\n{mirror}");
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
        // QEMU's own resolver hands questions on to this one, of slirp4netns.
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

/// A command that runs QEMU in a machine's group and network, with the machine's folders mounted.
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
