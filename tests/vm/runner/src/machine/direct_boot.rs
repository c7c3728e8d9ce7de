//! The boot source of a machine of the kind `vm`: a disk built from the prepared root directory.
//!
//! The harness is its boot loader: at each start it reads the kernel and the initramfs through the links on the disk,
//! so that a changed link takes effect at the next boot.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::selinux;
use super::vm::Source;
use super::{Frame, ext4, keygen};
use crate::bed::remove_file;
use crate::qemu::DISKS;
use crate::seed;
use crate::sh::Cmd;
use crate::simulation::INSIDE;

const KERNEL_LINE: &str =
    "root=/dev/vda rw console=ttyS0 loglevel=4 systemd.show_status=yes panic=-1";

/// An emulated CPU needs neither a clock device nor mitigations for flaws of real CPUs, but would be slower with both.
/// The kernel would count timer ticks within a few milliseconds and panic if none arrives, which happens on a busy
/// host.
const QUICKER: &str = "tsc=reliable mitigations=off no_timer_check";

/// Size of a disk; only written data uses space.
const DISK_BYTES: u64 = 16 << 30;

/// cloud-init's vendor data, as in a cloud. It disables unused keys and locales, because generating them takes 38 s and
/// more on an emulated machine with others in parallel.
const VENDOR_DATA: &str = "#cloud-config\nssh_genkeytypes: [ed25519]\nlocale: false\n";

/// The harness's access: a second sshd, outside `/etc`, that waits for no other unit.
const SSHD: &str = include_str!("../../files/testbed-sshd.conf");

/// Files below `/usr/lib`: the access; the connection to the repository server in the machine's
/// namespace (QEMU's address for it is 10.0.3.2); a network for machines without a configuration by
/// cloud-init, which has precedence; and a rule that simulates how nouveau holds a real GPU.
const FILES: [(&str, &str); 5] = [
    (
        "systemd/system/testbed-sshd.service",
        include_str!("../../files/testbed-sshd.service"),
    ),
    (
        "systemd/system/testbed-server.socket",
        include_str!("../../files/testbed-server.socket"),
    ),
    (
        "systemd/system/testbed-server.service",
        include_str!("../../files/testbed-server.service"),
    ),
    (
        "systemd/network/90-testbed.network",
        "[Match]\nType=ether\n[Network]\nDHCP=yes\n",
    ),
    (
        "udev/rules.d/90-testbed-nouveau.rules",
        include_str!("../../files/testbed-nouveau.rules"),
    ),
];

/// The units of these that start at boot, and when.
const UNITS: [(&str, &str); 3] = [
    ("multi-user.target", "testbed-sshd.service"),
    ("multi-user.target", "systemd-networkd.service"),
    ("sockets.target", "testbed-server.socket"),
];

/// See the module documentation.
pub struct DirectBoot;

impl DirectBoot {
    /// Adds the access to the machine's root.
    pub fn prepare(frame: &Frame) -> Result<DirectBoot> {
        let root = frame.root();
        let here = root.join(INSIDE.trim_start_matches('/'));
        fs::create_dir_all(&here).context("cannot create a directory")?;
        keygen(&here.join("hostkey"))?;
        keygen(&frame.dir.join("key"))?;
        fs::copy(frame.dir.join("key.pub"), here.join("authorized_keys"))
            .context("cannot authorize the harness")?;
        fs::write(here.join("sshd.conf"), SSHD).context("cannot write a configuration")?;
        for (file, text) in FILES {
            fs::write(root.join("usr/lib").join(file), text)
                .with_context(|| format!("cannot write {file}"))?;
        }
        for (target, unit) in UNITS {
            let wants = root.join(format!("usr/lib/systemd/system/{target}.wants"));
            fs::create_dir_all(&wants).context("cannot create a wants directory")?;
            symlink(Path::new("..").join(unit), wants.join(unit))
                .with_context(|| format!("cannot enable {unit}"))?;
        }
        let resolver = root.join("etc/resolv.conf");
        remove_file(&resolver)?;
        symlink("../run/systemd/resolve/stub-resolv.conf", resolver)
            .context("cannot configure the resolver")?;
        Ok(DirectBoot)
    }
}

impl Source for DirectBoot {
    fn port(&self) -> &'static str {
        "2222"
    }

    fn ready(&self, frame: &Frame) -> Result<Vec<String>> {
        make_disk(frame)?;
        load(frame)?;
        let line = match selinux::is_wanted(&frame.root()) {
            true => format!("{KERNEL_LINE} {QUICKER} {}", selinux::KERNEL_OPTIONS),
            false => format!("{KERNEL_LINE} {QUICKER}"),
        };
        Ok([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "qemu64",
            "-kernel",
            &format!("{DISKS}/kernel"),
            "-initrd",
            &format!("{DISKS}/initrd"),
            "-append",
            &line,
            "-drive",
            // Data written by QEMU survives its exit, because it is in the host's cache.
            &format!("id=disk,file={DISKS}/disk.img,format=raw,if=none,cache=unsafe,discard=unmap"),
        ]
        .map(String::from)
        .to_vec())
    }
}

/// The machine's disk, built from its root at the first start.
fn make_disk(frame: &Frame) -> Result<()> {
    let disk = frame.dir.join("disk.img");
    if disk.exists() {
        return Ok(());
    }
    if selinux::is_wanted(&frame.root()) {
        selinux::label(frame)?;
    }
    ext4(&frame.group, "root", &frame.root(), &disk, DISK_BYTES)?;
    let seed = frame.seed();
    match seed.exists() {
        true => seed::add(&seed, "vendor-data", VENDOR_DATA),
        false => Ok(()),
    }
}

/// Reads the kernel and the initramfs from the disk as a boot loader does: through the links in its root, and without
/// replaying the journal of the filesystem.
fn load(frame: &Frame) -> Result<()> {
    let disk = frame.dir.join("disk.img");
    for (link, file) in [("/vmlinuz", "kernel"), ("/initrd.img", "initrd")] {
        let target = link_target(&disk, link)?;
        let to = frame.dir.join(file);
        remove_file(&to)?;
        debugfs(&disk, &format!("dump {target} {}", to.display()))?;
        let size = fs::metadata(&to).map(|meta| meta.len()).unwrap_or(0);
        if size == 0 {
            bail!("the boot loader finds no {target} on the disk");
        }
    }
    Ok(())
}

fn link_target(disk: &Path, link: &str) -> Result<String> {
    let said = debugfs(disk, &format!("stat {link}"))?;
    let target = said
        .lines()
        .find_map(|line| line.split_once("Fast link dest: "))
        .map(|(_, target)| target.trim().trim_matches('"').to_string());
    let target = target.with_context(|| format!("the disk has no link {link}: {said}"))?;
    Ok(format!("/{}", target.trim_start_matches('/')))
}

fn debugfs(disk: &Path, request: &str) -> Result<String> {
    // After a power loss, until the journal is replayed, checksums are wrong and bitmaps do not match. A boot loader
    // checks neither.
    let done = Cmd::new([
        "debugfs",
        "-n",
        "-c",
        "-R",
        request,
        &disk.to_string_lossy(),
    ])
    .ok()?;
    Ok(done.stdout)
}
