//! The room of a disk, and errors that name the disk at fault.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::host::FilesError;
use crate::host::files::{FullFilesystem, Room};
use crate::host::os::{self, takes_no_more};

/// Adds what was tried on which path, and the filesystem where that is at fault.
pub(super) fn failed(
    verb: &'static str,
    path: &Utf8Path,
) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| {
        let disk = takes_no_more(&source)
            .then(|| disk(&path).ok())
            .flatten()
            .map(Box::new);
        FilesError::Io {
            verb,
            path,
            source,
            disk,
        }
    }
}

/// The filesystem on which a path is or would be.
fn disk(path: &Utf8Path) -> io::Result<FullFilesystem> {
    let mut there = path
        .ancestors()
        .find_map(|at| at.canonicalize_utf8().ok())
        .ok_or_else(|| os::error(Errno::ENOENT))?;
    let room = room(&there)?;
    let device = fs::metadata(&there)?.dev();
    while let Some(above) = there.parent()
        && fs::metadata(above)?.dev() == device
    {
        there = above.to_owned();
    }
    Ok(FullFilesystem { mount: there, room })
}

pub(super) fn room(path: &Utf8Path) -> io::Result<Room> {
    for at in path.ancestors() {
        match statvfs(at.as_std_path()) {
            Ok(about) => return Ok(os::room(&about)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => return Err(os::error(errno)),
        }
    }
    Err(os::error(Errno::ENOENT))
}
