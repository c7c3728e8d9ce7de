//! Helpers shared by several implementations of [`Files`](super::Files) and
//! [`ReadFiles`](super::ReadFiles).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::{FsFlags, Statvfs};

use super::files::{FreeSpace, Inodes};
use super::{FileKind, FilesError, Stat};

/// The maximum size of a file that is read completely, in case a path leads to a core dump.
const READ_LIMIT: u64 = 256 << 20;

/// Converts an error number to an error.
pub(super) fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno as i32)
}

/// Whether the error means that the path does not exist.
pub(super) fn absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Converts a missing path from an error to `None`.
pub(super) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if absent(&error) => Ok(None),
        result => result.map(Some),
    }
}

/// Adds the operation and the path to an error.
pub(super) fn failed(
    verb: &'static str,
    path: &Utf8Path,
) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| FilesError::Io {
        verb,
        path,
        source,
        disk: None,
    }
}

/// Rejects everything except regular files, because opening a device can trigger an action, and a
/// pipe can block forever.
pub(super) fn regular(about: &Metadata) -> io::Result<()> {
    if about.is_dir() {
        Err(error(Errno::EISDIR))
    } else if about.is_file() {
        Ok(())
    } else {
        Err(error(Errno::EINVAL))
    }
}

/// Reads the complete content. Files of sysfs and procfs do not report their size, so the limit
/// also applies to the read data.
pub(super) fn read_whole(file: File) -> io::Result<Vec<u8>> {
    read_at_most(file, READ_LIMIT)
}

/// Reads the complete content. Fails with `EFBIG` if it is larger than `limit` bytes.
pub(super) fn read_at_most(file: File, limit: u64) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > limit {
        return Err(error(Errno::EFBIG));
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(error(Errno::EFBIG));
    }
    Ok(content)
}

/// Converts metadata. `target` reads the target of a symlink.
pub(super) fn stat(
    about: &Metadata,
    target: impl FnOnce() -> io::Result<Utf8PathBuf>,
) -> io::Result<Stat> {
    let kind = about.file_type();
    let kind = if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Link(target()?)
    } else if kind.is_char_device() {
        let number = |part: u64| u32::try_from(part).map_err(io::Error::other);
        FileKind::CharDevice(number(major(about.rdev()))?, number(minor(about.rdev()))?)
    } else {
        FileKind::Other
    };
    Ok(Stat {
        kind,
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
        size: about.size(),
        mtime: about.mtime(),
        inode: about.ino(),
    })
}

/// Returns the free space in bytes.
pub(super) fn free_space(about: &Statvfs) -> FreeSpace {
    let unit = about.fragment_size();
    FreeSpace {
        total: about.blocks().saturating_mul(unit),
        free: about.blocks_available().saturating_mul(unit),
        read_only: about.flags().contains(FsFlags::ST_RDONLY),
        inodes: (about.files() > 0).then(|| Inodes {
            total: about.files(),
            free: about.files_available(),
        }),
    }
}
