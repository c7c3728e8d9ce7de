//! What a run that continues by itself puts on the machine beside its own unit: files that keep the driver's modules from
//! being loaded.

use camino::{Utf8Path, Utf8PathBuf};

pub(super) use crate::tools::systemctl::quoted;
use crate::{
    change::Change,
    host::{FileKind, Files, FilesError, Stat},
    journal::Standing,
    runtimes,
    tools::packages::{HEADER, WRITTEN_FOLDERS},
};

/// How every file begins that this program writes for itself.
const OURS: &str = "# Written by gpu-bootstrap;";

/// While a run continues by itself: udev and `modules-load.d` respect `blacklist`, a load by name
/// does not.
const NOT_BY_ITSELF: &str = "/etc/modprobe.d/gpu-bootstrap-unfinished.conf";

/// After the run gave up. modprobe takes the first `install` of a module, so the name must sort
/// before those of the driver's packages.
const NOT_AT_ALL: &str = "/etc/modprobe.d/00-gpu-bootstrap-gave-up.conf";

/// The file of a unit.
pub(super) fn path(unit: &str) -> Utf8PathBuf {
    Utf8Path::new("/etc/systemd/system").join(unit)
}

/// The symbolic link that enables a unit; systemd makes it for `WantedBy=multi-user.target`.
pub(super) fn link(unit: &str) -> Utf8PathBuf {
    path("multi-user.target.wants").join(unit)
}

/// Removes what keeps the driver from being loaded, and the unit of this name that would take that back. What a change in the
/// journal tells of stays: its run will end it. Returns the files that were removed.
pub(super) fn release(
    files: &dyn Files,
    unit: &str,
    standing: &[Standing],
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let is_recorded = |path: &Utf8Path| {
        (standing.iter()).any(
            |one| matches!(&one.change, Change::WriteFile { path: written, .. } if written == path),
        )
    };
    let denials = [NOT_BY_ITSELF, NOT_AT_ALL].map(|path| (Utf8PathBuf::from(path), None));
    let unit = (path(unit), Some(link(unit)));
    let mut removed = Vec::new();
    for (path, link) in denials.into_iter().chain([unit]) {
        let text = files.read(&path)?.unwrap_or_default();
        if !text.starts_with(OURS.as_bytes()) || is_recorded(&path) {
            continue;
        }
        // The link goes first: a unit that is enabled and has no file is an error at each boot.
        if let Some(link) = link
            && files.stat(&link)?.is_some()
        {
            files.remove(&link)?;
        }
        files.remove(&path)?;
        removed.push(path);
    }
    Ok(removed)
}

/// Units that unpack or compile the driver's modules at boot. Amazon's accelerated image for EKS unpacks its module in the
/// first boot, in a unit that cloud-init does not wait for (awslabs/amazon-eks-ami, `nvidia-kmod-load.service`). DKMS compiles
/// for a new kernel in its own unit, and two of it destroy each other's work.
pub(super) const AFTER_MODULES: &str = "After=nvidia-kmod-load.service dkms.service";

/// Folders with files of ours, whose names say whose they are.
const FOLDERS: [&str; 7] = [
    "/etc/dkms/framework.conf.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/needrestart/conf.d",
    "/etc/sysctl.d",
    "/etc/systemd/system",
    "/etc/systemd/system/nvidia-persistenced.service.d",
];

/// The files by whose names they are ours, in the folders where such files have an effect.
pub(super) fn named_ours(files: &dyn Files) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut found = Vec::new();
    let drop_ins = runtimes::written_folders();
    for folder in FOLDERS.into_iter().chain(drop_ins).chain(WRITTEN_FOLDERS) {
        for name in files.list(Utf8Path::new(folder))? {
            let path = Utf8Path::new(folder).join(&name);
            let is_file = |stat: Stat| stat.kind == FileKind::File;
            if !name.contains("gpu-bootstrap") || !files.stat(&path)?.is_some_and(is_file) {
                continue;
            }
            let text = files.read(&path)?.unwrap_or_default();
            if text.starts_with(OURS.as_bytes()) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Modules that load the driver's own. Debian's packages have `nvidia-drm` loaded at each boot, before the run starts.
const DEPENDENT: [&str; 3] = ["nvidia-modeset", "nvidia-drm", "nvidia-peermem"];

/// The change after which only the run loads the modules.
pub(super) fn not_by_itself(modules: &[String]) -> Change {
    let mut all = modules.to_vec();
    let more = DEPENDENT.map(str::to_owned);
    all.extend(more.into_iter().filter(|name| !modules.contains(name)));
    denial(NOT_BY_ITSELF, "blacklist", "", &all)
}

/// The change after which nothing loads them.
pub(super) fn not_at_all(modules: &[String]) -> Change {
    denial(NOT_AT_ALL, "install", " /bin/false", modules)
}

fn denial(path: &str, verb: &str, rest: &str, modules: &[String]) -> Change {
    let lines: Vec<String> = modules
        .iter()
        .map(|module| format!("{verb} {module}{rest}\n"))
        .collect();
    Change::write(path, format!("{HEADER}{}", lines.concat()))
}

/// The modules that [`not_by_itself`] named.
pub(super) fn modules(standing: &[Standing]) -> Vec<String> {
    standing
        .iter()
        .find_map(|one| match &one.change {
            Change::WriteFile { path, content, .. } if path == NOT_BY_ITSELF => Some(content),
            _ => None,
        })
        .map(|content| {
            let names = content
                .lines()
                .filter_map(|line| line.strip_prefix("blacklist "));
            names.map(str::to_owned).collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_load_the_drivers_own_are_not_loaded_by_themselves_either() {
        let named = ["nvidia", "nvidia-uvm", "nvidia-drm"].map(str::to_owned);
        let Change::WriteFile { content, .. } = not_by_itself(&named) else {
            panic!("a file");
        };
        let lines: Vec<&str> = content
            .lines()
            .filter_map(|line| line.strip_prefix("blacklist "))
            .collect();
        assert_eq!(
            lines,
            [
                "nvidia",
                "nvidia-uvm",
                "nvidia-drm",
                "nvidia-modeset",
                "nvidia-peermem"
            ]
        );
    }
}
