//! Packaged kernels and driver modules, and the boot loader menu.

use gpu_bootstrap::{host::fake::FakeFiles, model::version::KernelVersion};

use crate::{
    dpkg, kernel, rpm,
    state::{exists, list, text},
};

/// If this file exists, the GRUB default is kept.
pub const CHOSEN: &str = "/etc/default/grub.d/chosen.cfg";

/// Installs a kernel like its package, and regenerates the GRUB menu. Existing files are kept.
pub fn install(files: &FakeFiles, release: &str) {
    if !exists(files, &format!("/boot/vmlinuz-{release}")) {
        let image = match rpm::is_used(files) {
            true => "initramfs-KERNEL.img",
            false => "initrd.img-KERNEL",
        };
        kernel::put(files, release, image, &[]);
    }
    update_grub(files);
}

/// Removes a kernel.
pub fn remove(files: &FakeFiles, kernel: &str) {
    for path in [
        format!("/boot/vmlinuz-{kernel}"),
        format!("/boot/initrd.img-{kernel}"),
        format!("/lib/modules/{kernel}/modules.dep"),
    ] {
        dpkg::take(files, &path);
    }
    update_grub(files);
}

/// GRUB starts the newest kernel, unless the administrator selected another one.
fn update_grub(files: &FakeFiles) {
    if exists(files, CHOSEN) {
        return;
    }
    let newest = list(files, "/boot")
        .into_iter()
        .filter_map(|name| name.strip_prefix("vmlinuz-")?.parse::<KernelVersion>().ok())
        .max();
    if let Some(newest) = newest {
        put_grub(files, newest.as_str());
    }
}

/// GRUB's menu with one kernel.
pub fn put_grub(files: &FakeFiles, kernel: &str) {
    files.put(
        "/boot/grub/grub.cfg",
        format!("set default=\"0\"\nmenuentry 'Linux' {{\n\tlinux /boot/vmlinuz-{kernel} ro\n}}\n"),
    );
}

/// The kernel that GRUB starts.
pub fn next(files: &FakeFiles) -> Option<String> {
    let menu = text(files, "/boot/grub/grub.cfg")?;
    let (_, rest) = menu.split_once("/boot/vmlinuz-")?;
    rest.split_whitespace().next().map(str::to_owned)
}

const PACKAGED: &str = "kernel/nvidia-packaged";

/// Adds a packaged module to a kernel.
pub fn put_packaged(files: &FakeFiles, kernel: &str, version: &str, open: bool) {
    let path = format!("/lib/modules/{kernel}/modules.dep");
    let mut content = text(files, &path).unwrap_or_default();
    let license = if open { "Dual MIT/GPL" } else { "NVIDIA" };
    for name in ["nvidia", "nvidia-uvm", "nvidia-modeset"] {
        content.push_str(&format!("{PACKAGED}/{name}.ko:\n"));
        files.put(
            &format!("/lib/modules/{kernel}/{PACKAGED}/{name}.ko"),
            format!("\0version={version}\0license={license}\0"),
        );
    }
    files.put(&path, content);
}

/// Removes a packaged module from a kernel.
pub fn take_packaged(files: &FakeFiles, kernel: &str) {
    let path = format!("/lib/modules/{kernel}/modules.dep");
    if let Some(content) = text(files, &path) {
        let rest = content.lines().filter(|line| !line.starts_with(PACKAGED));
        files.put(
            &path,
            rest.map(|line| format!("{line}\n")).collect::<String>(),
        );
    }
    for name in ["nvidia", "nvidia-uvm", "nvidia-modeset"] {
        dpkg::take(
            files,
            &format!("/lib/modules/{kernel}/{PACKAGED}/{name}.ko"),
        );
    }
}

/// The version of the packaged module of a kernel.
pub fn packaged(files: &FakeFiles, kernel: &str) -> Option<String> {
    let content = text(
        files,
        &format!("/lib/modules/{kernel}/{PACKAGED}/nvidia.ko"),
    )?;
    let fields = content.split('\0');
    fields
        .filter_map(|field| field.strip_prefix("version="))
        .next()
        .map(str::to_owned)
}
