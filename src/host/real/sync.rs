//! Brings to the disk what package managers and their tools have written without syncing it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use camino::{Utf8Path, Utf8PathBuf};
use nix::unistd::syncfs;

use super::disk::failed;
use crate::host::{FilesError, os::present};

/// Folders that package managers and their tools write, and that may lie on filesystems of their own.
const SYSTEM: [&str; 8] = [
    "/",
    "/boot",
    "/boot/efi",
    "/etc",
    "/usr",
    "/usr/lib/modules",
    "/var",
    "/var/lib",
];

/// Filesystems whose server may not answer; `fuse` has subtypes, too. On `autofs` nothing was written: what
/// it mounts is listed after it.
const REMOTE: [&str; 16] = [
    "9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
];

/// The kernel's list of mounts: device, mount point, type.
const MOUNTS: &str = "/proc/self/mounts";

/// Syncs the filesystems of [`SYSTEM`].
pub(super) fn system() -> Result<(), FilesError> {
    let mounts = present(fs::read_to_string(MOUNTS))
        .map_err(failed("read", MOUNTS.into()))?
        .unwrap_or_default();
    let mut synced = BTreeSet::new();
    for path in SYSTEM.map(Utf8Path::new) {
        // Before it is opened: that alone may wait for ever.
        if path != "/" && is_remote(&mounts, path) {
            continue;
        }
        let folder = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            folder => folder.map_err(failed("sync", path))?,
        };
        let about = folder.metadata().map_err(failed("sync", path))?;
        if synced.insert(about.dev()) {
            syncfs(&folder)
                .map_err(io::Error::from)
                .map_err(failed("sync", path))?;
        }
    }
    Ok(())
}

/// Whether a path lies on a filesystem of [`REMOTE`]. Of several mounts at one point the last is visible.
fn is_remote(mounts: &str, path: &Utf8Path) -> bool {
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1).map(str::to_owned);
        let point = Utf8PathBuf::from(words.next()?);
        path.starts_with(&point)
            .then(|| Some((point.components().count(), words.next()?)))?
    };
    let holding = mounts.lines().filter_map(mount);
    let Some((_, kind)) = holding.max_by_key(|(depth, _)| *depth) else {
        return false;
    };
    REMOTE.contains(&kind.as_str()) || kind.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_server_is_known_before_it_is_opened() {
        let mounts = "/dev/vda1 / ext4 rw 0 0\nserver:/usr /usr nfs4 rw 0 0\n\
                      systemd-1 /boot/efi autofs rw 0 0\n/dev/vda15 /boot/efi vfat rw 0 0\n\
                      systemd-1 /boot autofs rw 0 0\n/dev/vdb /usr/lib/modules xfs rw 0 0\n\
                      s3 /var fuse.s3fs rw 0 0\n";
        for (path, remote) in [
            ("/", false),
            ("/etc", false),
            ("/usr", true),
            ("/usr/lib/modules", false),
            ("/var", true),
            ("/var/lib", true),
            ("/boot", true),
            ("/boot/efi", false),
        ] {
            assert_eq!(is_remote(mounts, path.into()), remote, "{path}");
        }
        assert!(!is_remote("", "/etc".into()));
        // What people mount from servers is not looked at at all.
        for path in ["/opt", "/home", "/srv", "/mnt"] {
            assert!(!SYSTEM.contains(&path), "{path}");
        }
    }
}
