//! SELinux: whether it is enabled, and the default labels of files, restorecon(8).

use std::time::Duration;

use camino::Utf8Path;

use crate::host::{Cmd, FilesError, ReadFiles};

/// A file in selinuxfs, which is mounted only if SELinux is enabled.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// Whether SELinux is enabled.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn is_enabled(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    files.exists(Utf8Path::new(ENFORCE))
}

/// Restores the default labels of paths. Missing paths are ignored.
pub fn restore(paths: &[&Utf8Path]) -> Cmd {
    let paths = paths.iter().map(|path| path.as_str());
    Cmd::new("restorecon", ["-i", "--"].into_iter().chain(paths)).deadline(Duration::from_secs(60))
}
