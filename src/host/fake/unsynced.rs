//! Files that a power loss can damage.

use camino::Utf8Path;

/// Whether a power loss can damage the file at a path. Kernel filesystems are not on disk, and
/// package lists and downloads are caches.
pub(super) fn is_on_disk(path: &str) -> bool {
    let elsewhere = ["/proc", "/sys", "/dev", "/run", "/var/cache"];
    let path = Utf8Path::new(path);
    let is_list =
        path.starts_with("/var/lib") && path.components().any(|part| part.as_str() == "lists");
    !is_list
        && !elsewhere
            .iter()
            .any(|directory| path.starts_with(directory))
}
