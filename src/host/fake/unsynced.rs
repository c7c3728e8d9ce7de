//! What a power cut can harm.

use camino::Utf8Path;

/// Whether a power cut can harm what is at a path: the kernel's own files are on no disk, and the lists of
/// packages and their downloads are caches.
pub(super) fn is_on_disk(path: &str) -> bool {
    let elsewhere = ["/proc", "/sys", "/dev", "/run", "/var/cache"];
    let path = Utf8Path::new(path);
    let is_list =
        path.starts_with("/var/lib") && path.components().any(|part| part.as_str() == "lists");
    !is_list && !elsewhere.iter().any(|folder| path.starts_with(folder))
}
