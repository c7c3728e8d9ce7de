//! What a machine of the kind `vm` boots from: a disk made of the root folder that the bed gave it.
//!
//! The bed is its boot loader: at each start it reads the kernel and the initial RAM filesystem
//! that the disk's own links name, so that what the machine changed there counts at its next boot.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::vm::Source;
use super::{Frame, keygen, remove, sparse};
use crate::group::Part;
use crate::qemu::DISKS;
use crate::seed;
use crate::sh::Cmd;
use crate::simulation::INSIDE;

const KERNEL_LINE: &str =
    "root=/dev/vda rw console=ttyS0 loglevel=4 systemd.show_status=yes panic=-1";

/// What an emulated processor pays for and has no use for: a clock that is a device, and detours
/// around faults of real processors.
const QUICKER: &str = "tsc=reliable mitigations=off";

/// Size of a disk; only what is written takes room.
const DISK_BYTES: u64 = 16 << 30;

/// What cloud-init gets below the user-data, as from a cloud: keys and languages that nobody uses are not
/// made, for which an emulated machine beside others takes 38 s and more.
const VENDOR_DATA: &str = "#cloud-config\nssh_genkeytypes: [ed25519]\nlocale: false\n";

/// The bed's own way in: a second sshd, outside `/etc`, that waits for nothing.
const SSHD: &str = include_str!("../../files/testbed-sshd.conf");

/// Below `/usr/lib`: the way in, the way to the repository server in the machine's namespace (which
/// QEMU calls 10.0.3.2), a network for machines without cloud-init's, which goes before it, and what
/// nouveau does with a GPU that is no emulated one.
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

/// What of that starts at boot, and when.
const UNITS: [(&str, &str); 3] = [
    ("multi-user.target", "testbed-sshd.service"),
    ("multi-user.target", "systemd-networkd.service"),
    ("sockets.target", "testbed-server.socket"),
];

/// See the module.
pub struct Mould;

impl Mould {
    /// Puts the way in into the machine's root.
    pub fn prepare(frame: &Frame) -> Result<Mould> {
        let root = frame.root();
        let here = root.join(INSIDE.trim_start_matches('/'));
        fs::create_dir_all(&here).context("cannot make a folder")?;
        keygen(&here.join("hostkey"))?;
        keygen(&frame.dir.join("key"))?;
        fs::copy(frame.dir.join("key.pub"), here.join("authorized_keys"))
            .context("cannot authorize the bed")?;
        fs::write(here.join("sshd.conf"), SSHD).context("cannot write a configuration")?;
        for (file, text) in FILES {
            fs::write(root.join("usr/lib").join(file), text)
                .with_context(|| format!("cannot write {file}"))?;
        }
        for (target, unit) in UNITS {
            let wants = root.join(format!("usr/lib/systemd/system/{target}.wants"));
            fs::create_dir_all(&wants).context("cannot make a wants folder")?;
            symlink(Path::new("..").join(unit), wants.join(unit))
                .with_context(|| format!("cannot enable {unit}"))?;
        }
        let resolver = root.join("etc/resolv.conf");
        remove(&resolver)?;
        symlink("../run/systemd/resolve/stub-resolv.conf", resolver)
            .context("cannot configure the resolver")?;
        Ok(Mould)
    }
}

impl Source for Mould {
    fn port(&self) -> &'static str {
        "2222"
    }

    fn ready(&self, frame: &Frame) -> Result<Vec<String>> {
        make_disk(frame)?;
        load(frame)?;
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
            &format!("{KERNEL_LINE} {QUICKER}"),
            "-drive",
            // What QEMU was told to write survives QEMU: the host's cache keeps it.
            &format!("id=disk,file={DISKS}/disk.img,format=raw,if=none,cache=unsafe,discard=unmap"),
        ]
        .map(String::from)
        .to_vec())
    }
}

/// The machine's disk, made of its root at the first start.
fn make_disk(frame: &Frame) -> Result<()> {
    let disk = frame.dir.join("disk.img");
    if disk.exists() {
        return Ok(());
    }
    sparse(&disk, DISK_BYTES)?;
    let argv = [
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-L",
        "root",
        "-d",
        &frame.root().to_string_lossy(),
        &disk.to_string_lossy(),
    ]
    .map(String::from);
    Cmd::new(frame.group.inside(Part::Support, &argv))
        .ok()
        .context("cannot make a disk")?;
    let seed = frame.seed();
    match seed.exists() {
        true => seed::add(&seed, "vendor-data", VENDOR_DATA),
        false => Ok(()),
    }
}

/// Reads kernel and initial RAM filesystem from the disk, as a boot loader does: by the links in
/// its root, and without the journal of the filesystem.
fn load(frame: &Frame) -> Result<()> {
    let disk = frame.dir.join("disk.img");
    for (link, file) in [("/vmlinuz", "kernel"), ("/initrd.img", "initrd")] {
        let target = link_target(&disk, link)?;
        let to = frame.dir.join(file);
        remove(&to)?;
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
    // What a power cut left before the journal is replayed has wrong checksums, and maps that do not
    // fit: a boot loader looks at neither.
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
