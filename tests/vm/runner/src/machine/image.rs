//! The boot source of a machine of the kind `image`: a distribution's cloud image with its own boot loader. cloud-init
//! installs the harness's files at the first boot.
//!
//! The machine's root directory is a payload here: the files that other kinds of machines have in their root from the
//! start are copied from it, before cloud-init applies the user data.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::vm::Source;
use super::{Frame, keygen};
use crate::bed::Bed;
use crate::disk_image::DISK;
use crate::qemu::{self, DISKS};
use crate::seed;
use crate::sh::Cmd;
use crate::simulation::INSIDE;

/// Size of the disk. The image grows to it at its first boot; only written data uses space.
const DISK_SIZE: &str = "16G";

/// The image in the machine's directory; the machine's own disk is a layer over it.
const BASE: &str = "base.qcow2";
const OVER: &str = "disk.qcow2";

/// Firmware in QEMU's root, and the file of its variables.
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const VARIABLES: &str = "usr/share/OVMF/OVMF_VARS_4M.fd";

/// The label of the disk with the payload.
const LABEL: &str = "testbed-payload";

/// User data for cases without any, because a minimal system has no other locale.
const USER_DATA: &str = "#cloud-config\nlocale: C.UTF-8\n";

/// cloud-init's vendor data. The user data is left to the case.
const VENDOR_DATA: &str = include_str!("../../files/image-vendor-data");

/// The units that connect to the repository server, as in machines of the kind `vm`.
const UNITS: [(&str, &str); 2] = [
    (
        "testbed-server.socket",
        include_str!("../../files/testbed-server.socket"),
    ),
    (
        "testbed-server.service",
        include_str!("../../files/testbed-server.service"),
    ),
];

/// See the module documentation.
pub struct Image {
    qemu: PathBuf,
}

/// Links the image in `image` into the machine's directory, and creates an empty payload. The kernel version is unknown
/// here.
pub fn payload(image: &Path, dir: &Path) -> Result<String> {
    fs::hard_link(image.join(DISK), dir.join(BASE)).context("cannot link an image")?;
    let etc = dir.join("root/etc");
    fs::create_dir_all(&etc).context("cannot create a directory")?;
    fs::write(etc.join("hosts"), "").context("cannot write a file")?;
    Ok(String::new())
}

impl Image {
    /// Creates the ssh key, and adds the connection to the repository server to the payload.
    pub fn prepare(bed: &Bed, frame: &Frame) -> Result<Image> {
        keygen(&frame.dir.join("key"))?;
        let units = frame.root().join("usr/lib/systemd/system");
        let wants = units.join("sockets.target.wants");
        fs::create_dir_all(&wants).context("cannot create a directory")?;
        for (file, text) in UNITS {
            fs::write(units.join(file), text).with_context(|| format!("cannot write {file}"))?;
        }
        symlink(
            "../testbed-server.socket",
            wants.join("testbed-server.socket"),
        )
        .context("cannot enable a unit")?;
        Ok(Image {
            qemu: qemu::root(bed)?,
        })
    }

    fn make_disks(&self, frame: &Frame) -> Result<()> {
        let variables = frame.dir.join("vars.fd");
        fs::copy(self.qemu.join(VARIABLES), variables)
            .context("cannot copy the firmware's state")?;
        let argv = [
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-F",
            "qcow2",
            "-b",
            BASE,
            &format!("{DISKS}/{OVER}"),
            DISK_SIZE,
        ]
        .map(String::from);
        let directories = (frame.dir.as_path(), frame.run.as_path());
        let argv = qemu::command(&self.qemu, &frame.group, &frame.net, directories, &argv);
        Cmd::new(argv).ok().context("cannot make a disk")?;
        self.seal_payload(frame)?;
        let seed = frame.seed();
        if !seed.exists() {
            seed::make(&seed, &frame.name, USER_DATA)?;
        }
        let key = fs::read_to_string(frame.dir.join("key.pub")).context("cannot read a key")?;
        let data = VENDOR_DATA
            .replace("{{key}}", key.trim())
            .replace("{{label}}", LABEL);
        seed::add(&seed, "vendor-data", &data)
    }

    fn seal_payload(&self, frame: &Frame) -> Result<()> {
        let root = frame.root();
        // The image has its own entries in that file, so these are appended to them.
        let inside = root.join(INSIDE.trim_start_matches('/'));
        fs::create_dir_all(&inside).context("cannot create a directory")?;
        fs::rename(root.join("etc/hosts"), inside.join("hosts")).context("cannot move a file")?;
        let disk = frame.dir.join("payload.img");
        super::ext4(&frame.group, LABEL, &root, &disk, 1 << 30)
            .context("cannot make the disk with the payload")
    }
}

impl Source for Image {
    fn port(&self) -> &'static str {
        "22"
    }

    fn ready(&self, frame: &Frame) -> Result<Vec<String>> {
        if !frame.dir.join(OVER).exists() {
            self.make_disks(frame)?;
        }
        let mut arguments = qemu::accelerator(&self.qemu, &frame.dir)?
            .map(String::from)
            .to_vec();
        arguments.extend(
            [
                "-drive",
                &format!("if=pflash,format=raw,readonly=on,file={FIRMWARE}"),
                "-drive",
                &format!("if=pflash,format=raw,file={DISKS}/vars.fd"),
                "-drive",
                // Data written by QEMU survives its exit, because it is in the host's cache.
                &format!(
                    "id=disk,file={DISKS}/{OVER},format=qcow2,if=none,cache=unsafe,discard=unmap"
                ),
                "-drive",
                &format!("id=payload,file={DISKS}/payload.img,format=raw,if=none,readonly=on"),
                "-device",
                "virtio-blk-pci,drive=payload,bus=pcie.0,addr=14",
            ]
            .map(String::from),
        );
        Ok(arguments)
    }
}
