//! Free disk space, and errors that contain the affected filesystem.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use super::RealFiles;
use crate::host::FilesError;
use crate::host::files::{FreeSpace, FullFilesystem, Limit};
use crate::host::{os, view};

/// Adds the operation and path to an error, and the filesystem if it is the cause.
pub(super) fn failed(
    verb: &'static str,
    path: &Utf8Path,
) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| {
        // A read can only fail with `EFBIG` because of our own size limit.
        let disk = (verb != "read")
            .then(|| disk(&path, &source).ok().flatten())
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

/// Returns the filesystem of a path if an error shows that one of its limits is reached.
fn disk(path: &Utf8Path, error: &io::Error) -> io::Result<Option<FullFilesystem>> {
    // Most errors concern only the path. Do not query the filesystem for them, because it may be a
    // hung mount.
    if Limit::of(error, &FreeSpace::default()).is_none() {
        return Ok(None);
    }
    let mut there = path
        .ancestors()
        .find_map(|at| at.canonicalize_utf8().ok())
        .ok_or_else(|| os::error(Errno::ENOENT))?;
    let free_space = free_space(&there)?;
    let Some(mut limit) = Limit::of(error, &free_space) else {
        return Ok(None);
    };
    if limit == Limit::ReadOnly && view::is_read_only_here(&RealFiles, &there).unwrap_or(false) {
        limit = Limit::ReadOnlyHere;
    }
    let device = fs::metadata(&there)?.dev();
    while let Some(above) = there.parent()
        && fs::metadata(above)?.dev() == device
    {
        there = above.to_owned();
    }
    Ok(Some(FullFilesystem {
        mount: there,
        free_space,
        limit,
    }))
}

pub(super) fn free_space(path: &Utf8Path) -> io::Result<FreeSpace> {
    for at in path.ancestors() {
        match statvfs(at.as_std_path()) {
            Ok(about) => return Ok(os::free_space(&about)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => return Err(os::error(errno)),
        }
    }
    Err(os::error(Errno::ENOENT))
}
