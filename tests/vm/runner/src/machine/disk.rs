//! A container's separate disk: ext4 in a sparse file, mounted through a loop device. It can simulate a power loss: the
//! filesystem is shut down as in xfstests (`godown`), no more data reaches the file, and the next mount replays the
//! journal. It can also be full without filling the host's disk.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};

use super::Frame;
use crate::group::{Group, Part};
use crate::loops;
use crate::sh::Cmd;

/// The disk's file in the machine's layer.
const FILE: &str = "disk.img";

/// EXT4_GOING_FLAGS_NOLOGFLUSH of Linux, fs/ext4/ext4.h: the journal is not flushed before.
const NO_LOG_FLUSH: u32 = 2;

// EXT4_IOC_SHUTDOWN there: `_IOR('X', 125, __u32)`.
nix::ioctl_read!(ext4_shutdown, b'X', 125, u32);

/// See the module documentation.
pub struct Disk {
    image: PathBuf,
    root: PathBuf,
}

impl Disk {
    /// Creates a disk of this size with the content of the root filesystem `from`, and mounts it as the machine's root,
    /// below `dir`.
    pub fn make(group: &Group, from: &Path, dir: &Path, mib: u64) -> Result<Disk> {
        let disk = Disk {
            image: dir.join("layer").join(FILE),
            root: dir.join("root"),
        };
        super::ext4(group, "root", from, &disk.image, mib << 20)?;
        disk.mount(group)?;
        Ok(disk)
    }

    /// Mounting replays the journal. The loop device disappears with the mount.
    fn mount(&self, group: &Group) -> Result<()> {
        let [image, root] = [&self.image, &self.root].map(|path| path.to_string_lossy());
        let argv = ["mount", "-o", "loop", &image, &root].map(String::from);
        Cmd::new(group.inside(Part::Support, &argv))
            .ok()
            .context("cannot mount a disk")
            .map(drop)
    }

    /// Syncs the harness's changes that were made while the machine was off, because a power loss must not revert them.
    pub fn sync(&self) -> Result<()> {
        let root = self.open()?;
        nix::unistd::syncfs(&root).context("cannot sync a disk")
    }

    fn open(&self) -> Result<File> {
        File::open(&self.root).with_context(|| format!("cannot open {}", self.root.display()))
    }

    /// Cuts off all users of the disk, and makes the disk usable for the next boot. As in a real power
    /// loss, no byte reaches the disk after the first step, whatever the processes still do.
    pub fn cut(&self, frame: &Frame) -> Result<()> {
        let root = self.open()?;
        let mut how = NO_LOG_FLUSH;
        // SAFETY: the descriptor is open, and the kernel reads one u32 at the address of `how`.
        unsafe { ext4_shutdown(root.as_raw_fd(), &raw mut how) }
            .context("cannot shut down a filesystem")?;
        drop(root);
        frame.group.end(&[Part::Machine, Part::Exec])?;
        umount2(&self.root, MntFlags::MNT_DETACH).context("cannot unmount a disk")?;
        // This also detaches the mount in namespaces that were cloned from the host's namespace in the meantime.
        fs::remove_dir(&self.root).context("cannot remove a mount point")?;
        fs::create_dir(&self.root).context("cannot make a mount point")?;
        loops::released(&frame.dir)?;
        self.mount(&frame.group)
    }
}
