//! SELinux: whether the kernel enforces or records its policy, and the labels of files,
//! restorecon(8).

use std::time::Duration;

use camino::Utf8Path;

use crate::host::{Cmd, FilesError, ReadFiles};

/// A file of selinuxfs, which is mounted only where SELinux is enabled.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// Whether SELinux is enabled.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn is_enabled(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    files.exists(Utf8Path::new(ENFORCE))
}

/// Restores the labels that the policy has for paths; one that is gone is ignored.
#[must_use]
pub fn restore(paths: &[&Utf8Path]) -> Cmd {
    let paths = paths.iter().map(|path| path.as_str());
    Cmd::new("restorecon", ["-i", "--"].into_iter().chain(paths)).deadline(Duration::from_secs(60))
}
