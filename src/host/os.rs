//! What the implementations that read real files have in common.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::{FsFlags, Statvfs};

use super::files::Room;
use super::{FileKind, FilesError, Stat};

/// The largest file that is read as a whole: a bound against a path that leads to a core dump.
const READ_LIMIT: u64 = 256 << 20;

/// An error number as an error.
pub(super) fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno as i32)
}

/// Whether the error says that nothing is at the path.
pub(super) fn absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Absence is no error.
pub(super) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if absent(&error) => Ok(None),
        result => result.map(Some),
    }
}

/// Adds what was tried on which path.
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

/// Whether the filesystem is at fault, not the path.
pub(super) fn takes_no_more(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Refuses everything but regular files: opening a device can act on it, a pipe can wait for ever.
pub(super) fn regular(about: &Metadata) -> io::Result<()> {
    if about.is_dir() {
        Err(error(Errno::EISDIR))
    } else if about.is_file() {
        Ok(())
    } else {
        Err(error(Errno::EINVAL))
    }
}

/// The whole content. Files of sysfs and procfs do not know their size, so the bound is on what
/// comes.
pub(super) fn read_whole(file: File) -> io::Result<Vec<u8>> {
    read_at_most(file, READ_LIMIT)
}

/// The same with another bound.
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

/// What is known about a path; `target` reads where it leads if it is a link.
pub(super) fn stat(
    about: &Metadata,
    target: impl FnOnce() -> io::Result<Utf8PathBuf>,
) -> io::Result<Stat> {
    let kind = about.file_type();
    let kind = if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Folder
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

/// Room in bytes.
pub(super) fn room(about: &Statvfs) -> Room {
    let unit = about.fragment_size();
    Room {
        total: about.blocks().saturating_mul(unit),
        free: about.blocks_available().saturating_mul(unit),
        read_only: about.flags().contains(FsFlags::ST_RDONLY),
    }
}
