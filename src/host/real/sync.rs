//! Syncs files that package managers and their tools have written without syncing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use camino::{Utf8Path, Utf8PathBuf};
use nix::unistd::syncfs;

use super::disk::failed;
use crate::host::{FilesError, os::present};

/// Directories that package managers and their tools write, and that may be separate filesystems.
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

/// Filesystems whose server may not respond. `fuse` also has subtypes. Opening an `autofs` can
/// trigger such a mount. It contains no files itself, and filesystems mounted on it are listed after
/// it.
const REMOTE: [&str; 16] = [
    "9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
];

/// The kernel's mount list: device, mount point, type.
const MOUNTS: &str = "/proc/self/mounts";

/// Syncs the filesystems of [`SYSTEM`], except remote ones. Always syncs `/`.
pub(super) fn system() -> Result<(), FilesError> {
    let mounts = present(fs::read_to_string(MOUNTS))
        .map_err(failed("read", MOUNTS.into()))?
        .unwrap_or_default();
    let mut synced = BTreeSet::new();
    for path in SYSTEM.map(Utf8Path::new) {
        // Check before opening, because opening can block forever.
        if path != "/" && is_remote(&mounts, path) {
            continue;
        }
        let directory = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            directory => directory.map_err(failed("sync", path))?,
        };
        let about = directory.metadata().map_err(failed("sync", path))?;
        if synced.insert(about.dev()) {
            syncfs(&directory)
                .map_err(io::Error::from)
                .map_err(failed("sync", path))?;
        }
    }
    Ok(())
}

/// Whether a path is on a filesystem of [`REMOTE`]. If several filesystems are mounted at one
/// point, the last one is visible.
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
    fn remote_filesystem_is_detected_before_opening() {
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
        // Typical mount points of remote filesystems are never accessed.
        for path in ["/opt", "/home", "/srv", "/mnt"] {
            assert!(!SYSTEM.contains(&path), "{path}");
        }
    }
}
