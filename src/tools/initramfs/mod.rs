//! Builds and lists initramfs images. There is one submodule for each generator, and [`of`] selects the installed one.

pub(super) mod dracut;
pub(super) mod update_initramfs;

use std::{fmt::Debug, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// Time limit of a build, which takes about 10 to 30 s on a healthy machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(600);

/// A program that builds initramfs images.
pub trait Generator: Debug + Send + Sync {
    /// The program name, for messages.
    fn program(&self) -> &'static str;

    /// The path of the image of a kernel.
    fn image(&self, kernel: &str) -> Utf8PathBuf;

    /// Lists the content of an image. Each output line ends with a path.
    fn list(&self, image: &Utf8Path) -> Query;

    /// Rebuilds the image of a kernel.
    fn rebuild(&self, kernel: &str) -> Cmd;
}

/// Returns the installed generator, or Debian's if none or both are installed.
///
/// # Errors
/// If the files of the machine cannot be read.
pub fn of(files: &dyn ReadFiles) -> Result<&'static dyn Generator, FilesError> {
    let has_update_initramfs = files.exists(Utf8Path::new(update_initramfs::PATH))?;
    Ok(
        if !has_update_initramfs && files.exists(Utf8Path::new(dracut::PATH))? {
            &dracut::Dracut
        } else {
            &update_initramfs::UpdateInitramfs
        },
    )
}

/// Returns the modules that are in the listed image. Module files may be compressed.
pub fn modules_in<'m>(listing: &str, modules: &'m [String]) -> Vec<&'m str> {
    modules
        .iter()
        .filter(|module| {
            listing.lines().any(|line| {
                let name = line.rsplit('/').next().unwrap_or(line);
                // The kernel treats `-` and `_` in module names as equal.
                name.split_once(".ko")
                    .is_some_and(|(stem, _)| stem.replace('-', "_") == module.replace('-', "_"))
            })
        })
        .map(String::as_str)
        .collect()
}

/// Whether the listed image contains the file with this absolute path. The paths in an image are relative to its root, with or
/// without a leading `./`. Some programs print attributes before the path.
pub fn has_file(listing: &str, path: &Utf8Path) -> bool {
    let wanted = path.as_str().trim_start_matches('/');
    listing
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap_or(line))
        .any(|path| path.trim_start_matches("./").trim_start_matches('/') == wanted)
}

#[cfg(test)]
mod tests {
    use super::{has_file, modules_in, of};
    use crate::host::fake::FakeFiles;
    use camino::Utf8Path;

    #[test]
    fn installed_generator_is_used() {
        let files = FakeFiles::new();
        assert_eq!(of(&files).unwrap().program(), "update-initramfs");
        files.put("/usr/bin/dracut", "");
        let dracut = of(&files).unwrap();
        assert_eq!(dracut.image("5.14.0"), "/boot/initramfs-5.14.0.img");
        assert_eq!(
            dracut.rebuild("5.14.0").line(),
            "dracut --force -- /boot/initramfs-5.14.0.img 5.14.0"
        );
        // On Debian, the dracut package also installs an `update-initramfs`, which package scripts call.
        files.put("/usr/sbin/update-initramfs", "");
        assert_eq!(of(&files).unwrap().program(), "update-initramfs");
    }

    #[test]
    fn file_is_found_by_its_complete_path() {
        let path = Utf8Path::new("/etc/modprobe.d/deny.conf");
        // Debian images contain a directory `conf`, which must not match the end of the path.
        assert!(!has_file(".\nconf\nconf/initramfs.conf\netc\n", path));
        for line in [
            "etc/modprobe.d/deny.conf",
            "./etc/modprobe.d/deny.conf",
            "-rw-r--r--   1 root     root          120 Jan  1  2026 etc/modprobe.d/deny.conf",
        ] {
            assert!(has_file(&format!("etc\n{line}\n"), path));
        }
    }

    #[test]
    fn modules_are_found_compressed_or_uncompressed() {
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
