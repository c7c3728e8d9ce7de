//! `update-initramfs`, from Debian's `initramfs-tools`.

use camino::{Utf8Path, Utf8PathBuf};

use super::{BUILD_DEADLINE, Generator};
use crate::host::{Cmd, Query};

/// The path of the program.
pub(super) const PATH: &str = "/usr/sbin/update-initramfs";

/// The backend for `update-initramfs`.
#[derive(Debug)]
pub(in crate::tools) struct UpdateInitramfs;

impl Generator for UpdateInitramfs {
    fn program(&self) -> &'static str {
        "update-initramfs"
    }

    fn image(&self, kernel: &str) -> Utf8PathBuf {
        format!("/boot/initrd.img-{kernel}").into()
    }

    fn list(&self, image: &Utf8Path) -> Query {
        Query::new("lsinitramfs", ["--", image.as_str()])
    }

    fn rebuild(&self, kernel: &str) -> Cmd {
        // update-initramfs(8) has no long option for the kernel.
        let kernel = format!("-k{kernel}");
        Cmd::new("update-initramfs", ["-u", &kernel]).deadline(BUILD_DEADLINE)
    }
}
