//! Initial RAM filesystems by Debian's `initramfs-tools`.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{Cmd, Query};

/// Building takes some 10 to 30 s on a healthy machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(600);

/// Where a kernel's image is.
#[must_use]
pub fn image(kernel: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/boot/initrd.img-{kernel}"))
}

/// Lists what an image holds, one path a line.
#[must_use]
pub fn list(image: &Utf8Path) -> Query {
    Query::new("lsinitramfs", [image.as_str()])
}

/// Builds a kernel's image anew.
#[must_use]
pub fn update(kernel: &str) -> Cmd {
    Cmd::new("update-initramfs", ["-u", "-k", kernel]).deadline(BUILD_DEADLINE)
}

/// Which of the modules the listed image holds. Module files may be compressed.
#[must_use]
pub fn modules_in<'m>(listing: &str, modules: &'m [String]) -> Vec<&'m str> {
    modules
        .iter()
        .filter(|module| {
            listing.lines().any(|line| {
                let name = line.rsplit('/').next().unwrap_or(line);
                // The kernel takes `-` and `_` in module names as the same.
                name.split_once(".ko")
                    .is_some_and(|(stem, _)| stem.replace('-', "_") == module.replace('-', "_"))
            })
        })
        .map(String::as_str)
        .collect()
}

/// Whether the listed image holds the file with this absolute path; an image has paths from its
/// root, with or without a leading `./`.
#[must_use]
pub fn has_file(listing: &str, path: &Utf8Path) -> bool {
    let wanted = path.as_str().trim_start_matches('/');
    listing
        .lines()
        .any(|line| line.trim_start_matches("./").trim_start_matches('/') == wanted)
}

#[cfg(test)]
mod tests {
    use super::{has_file, modules_in};
    use camino::Utf8Path;

    #[test]
    fn a_file_is_found_by_its_whole_path() {
        let path = Utf8Path::new("/etc/modprobe.d/deny.conf");
        // Debian's images have a folder of that name.
        assert!(!has_file(".\nconf\nconf/initramfs.conf\netc\n", path));
        for line in ["etc/modprobe.d/deny.conf", "./etc/modprobe.d/deny.conf"] {
            assert!(has_file(&format!("etc\n{line}\n"), path));
        }
    }

    #[test]
    fn modules_are_found_by_name_compressed_or_not() {
        let listing = "usr/lib/modules/6.1.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz\n\
                       usr/lib/modules/6.1.0/kernel/drivers/net/nova-core.ko\n\
                       etc/modprobe.d/nouveau-off.conf\n";
        let modules = [
            "nouveau".to_owned(),
            "nova_core".to_owned(),
            "nova_drm".to_owned(),
        ];
        assert_eq!(modules_in(listing, &modules), ["nouveau", "nova_core"]);
    }
}
