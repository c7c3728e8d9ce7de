//! SELinux in an emulated machine: its policy is enforced from the first boot, and the files of its disk are labeled
//! before the disk is built, at the host's speed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Frame;
use crate::group::Part;
use crate::sh::Cmd;

/// The boot options that `selinux-activate` adds. Without them Debian's kernel starts AppArmor.
pub const KERNEL_OPTIONS: &str = "security=selinux enforcing=1";

/// Policy rules for the harness: its sshd on another port, and its socket.
const MODULE: &str = include_str!("../../files/testbed-selinux.cil");

/// Installs the harness's module into the policy, and labels the files; no process is confined yet. `/var/lib` is a
/// mount.
const LABEL: &str = "semodule --noreload --install=/root/testbed.cil && rm /root/testbed.cil && \
    setfiles -F /etc/selinux/default/contexts/files/file_contexts / /var/lib";

/// Whether a root filesystem has a policy.
pub fn is_wanted(root: &Path) -> bool {
    root.join("etc/selinux/default").is_dir()
}

/// Labels a machine's root directory with its own policy.
pub fn label(frame: &Frame) -> Result<()> {
    let root = frame.root();
    fs::write(root.join("root/testbed.cil"), MODULE).context("cannot write a policy module")?;
    let root = root.to_string_lossy();
    // Without /proc `setfiles` finds no file.
    let inside = "mount -t proc proc \"$1/proc\" && exec chroot \"$1\" /bin/sh -euc \"$2\"";
    let argv = [
        "unshare", "--mount", "/bin/sh", "-euc", inside, "sh", &root, LABEL,
    ]
    .map(String::from);
    Cmd::new(frame.group.inside(Part::Support, &argv))
        .ok()
        .context("cannot label a disk for SELinux")
        .map(drop)
}
