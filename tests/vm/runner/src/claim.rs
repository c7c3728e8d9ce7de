//! A claim: the resources that a run owns under one name. They are a directory for small files and short paths, a
//! directory on the disk, and cgroups for all processes. Dropping it removes them at the end of a case. Resources of
//! the whole run need no removal, see `apart`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

use crate::bed::{Bed, remove_tree};
use crate::group::Group;
use crate::{net, out};

/// The free disk space in bytes that is required to create a machine, for its changes if they do not fit into memory.
/// On a full disk a server or a machine would exit without a message, because its log cannot be written.
const ROOM: u64 = 3 << 30;

/// A claimed name with its resources; dropping it removes all of them.
pub struct Claim {
    /// Its directory below the run directory.
    pub run: PathBuf,
    /// Its directory on the disk.
    pub dir: PathBuf,
    pub group: Group,
}

impl Claim {
    /// Claims `name`, and creates its directories and cgroups.
    pub fn take(bed: &Bed, name: &str) -> Result<Claim> {
        let run = bed.run.join(name);
        fs::create_dir(&run).with_context(|| format!("cannot make {}", run.display()))?;
        let claim = Claim {
            run,
            dir: bed.machines.join(name),
            group: Group::of(name)?,
        };
        let dir = &claim.dir;
        fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        enough(dir, room(dir)?)?;
        claim.group.create()?;
        Ok(claim)
    }

    fn remove(&self) -> Result<()> {
        self.group.destroy()?;
        net::destroy(&self.run)?;
        let [root, layer] = ["root", "layer"].map(|name| self.dir.join(name));
        unmount(&root)?;
        // Removing the directory also removes the mount from other namespaces, such as the namespace of a machine that is
        // being started. The root of an emulated machine is not a mount, and is removed with the rest.
        let _ = fs::remove_dir(&root);
        unmount(&layer)?;
        remove_tree(&self.dir)?;
        remove_tree(&self.run)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            let dir = self.dir.display();
            out::say(format!("{dir} is not completely removed: {error:#}"));
        }
    }
}

/// The free space in bytes of the filesystem of a directory.
fn room(dir: &Path) -> Result<u64> {
    let found =
        statvfs(dir).with_context(|| format!("cannot read the free space of {}", dir.display()))?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn enough(dir: &Path, room: u64) -> Result<()> {
    if room < ROOM {
        bail!(
            "{} MiB are free on the disk of {}, and a machine needs {}: free disk space there",
            room >> 20,
            dir.display(),
            ROOM >> 20
        );
    }
    Ok(())
}

/// Removes a mount and all mounts below it.
pub fn unmount(at: &Path) -> Result<()> {
    match umount2(at, MntFlags::MNT_DETACH) {
        // Not a mount: the disk of an image, a layer on the disk, or a machine that was not completely created.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => bail!("cannot unmount {}: {error}", at.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_disk_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        enough(dir.path(), ROOM).unwrap();
        let error = enough(dir.path(), ROOM - 1).unwrap_err().to_string();
        assert!(error.starts_with("3071 MiB are free"), "{error}");
    }
}
