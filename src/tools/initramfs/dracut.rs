//! `dracut`, used by AlmaLinux, RHEL and related distributions.

use camino::{Utf8Path, Utf8PathBuf};

use super::{BUILD_DEADLINE, Generator};
use crate::host::{Cmd, Query};

pub(super) const PATH: &str = "/usr/bin/dracut";

/// The backend for `dracut`.
#[derive(Debug)]
pub(in crate::tools) struct Dracut;

impl Generator for Dracut {
    fn program(&self) -> &'static str {
        "dracut"
    }

    fn image(&self, kernel: &str) -> Utf8PathBuf {
        format!("/boot/initramfs-{kernel}.img").into()
    }

    fn list(&self, image: &Utf8Path) -> Query {
        Query::new("lsinitrd", ["--", image.as_str()])
    }

    /// Uses `--force`, because dracut does not overwrite an existing image without it (dracut(8)).
    fn rebuild(&self, kernel: &str) -> Cmd {
        let image = self.image(kernel);
        Cmd::new("dracut", ["--force", "--", image.as_str(), kernel]).deadline(BUILD_DEADLINE)
    }
}
