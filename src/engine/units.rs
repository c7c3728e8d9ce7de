//! Files of an unattended run: paths of its units, and modprobe files that prevent the driver modules
//! from being loaded.

use camino::{Utf8Path, Utf8PathBuf};

pub(super) use crate::tools::systemctl::quoted;
use crate::{
    change::Change,
    host::{FileKind, Files, FilesError, Stat},
    journal::AppliedChange,
    runtimes, steps,
    tools::packages::{HEADER, WRITTEN_DIRECTORIES},
};

/// The start of every human-readable file that gpu-bootstrap writes.
const OURS: &str = "# Written by gpu-bootstrap;";

/// Contains `blacklist` lines during an unattended run: udev and `modules-load.d` respect them, but
/// the run can still load the modules by name.
const NOT_BY_ITSELF: &str = "/etc/modprobe.d/gpu-bootstrap-unfinished.conf";

/// Contains `install MODULE /bin/false` lines after a run gave up. modprobe uses the first `install`
/// line of a module, so this file name must sort before the files of the driver packages.
const NOT_AT_ALL: &str = "/etc/modprobe.d/00-gpu-bootstrap-gave-up.conf";

/// Returns the path of a unit file.
pub(super) fn path(unit: &str) -> Utf8PathBuf {
    Utf8Path::new("/etc/systemd/system").join(unit)
}

/// Returns the symlink that enables a unit. systemd creates it for `WantedBy=multi-user.target`.
pub(super) fn link(unit: &str) -> Utf8PathBuf {
    path("multi-user.target.wants").join(unit)
}

/// Removes the files that prevent the driver from being loaded, and the unit whose run would remove
/// them. Files that are recorded in the journal stay, because the recorded run will remove them.
/// Returns the removed files.
pub(super) fn release(
    files: &dyn Files,
    unit: &str,
    applied: &[AppliedChange],
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let is_recorded = |path: &Utf8Path| {
        (applied.iter()).any(
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
        // Remove the symlink first, because an enabled unit without a file causes an error at each
        // boot.
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

/// A directory in which [`named_ours`] searches, in addition to those of steps, runtimes and package managers.
const NEEDRESTART: &str = "/etc/needrestart/conf.d";

/// Finds our files by name and first line, in directories where such files have an effect.
pub(super) fn named_ours(files: &dyn Files) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut found = Vec::new();
    let drop_ins = runtimes::written_directories();
    for directory in (steps::written_directories().into_iter())
        .chain([NEEDRESTART])
        .chain(drop_ins)
        .chain(WRITTEN_DIRECTORIES)
    {
        for name in files.list(Utf8Path::new(directory))? {
            let path = Utf8Path::new(directory).join(&name);
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

/// Modules that depend on the driver module and therefore load it. Debian packages load `nvidia-drm` at each boot, before the
/// run starts, and `rdma.modules` loads the last three.
const DEPENDENT: [&str; 5] = [
    "nvidia-modeset",
    "nvidia-drm",
    "nvidia-peermem",
    "gdrdrv",
    "nvidia-fs",
];

/// Returns the change that prevents automatic loading of the modules and of their dependents. The run
/// can still load them by name.
pub(super) fn not_by_itself(modules: &[String]) -> Change {
    let mut all = modules.to_vec();
    let more = DEPENDENT.map(str::to_owned);
    all.extend(more.into_iter().filter(|name| !modules.contains(name)));
    denial(NOT_BY_ITSELF, "blacklist", "", &all)
}

/// Returns the change that prevents all loading of the modules.
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

/// Returns the modules listed by [`not_by_itself`].
pub(super) fn modules(applied: &[AppliedChange]) -> Vec<String> {
    applied
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
    fn dependent_modules_are_also_denied() {
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
                "nvidia-peermem",
                "gdrdrv",
                "nvidia-fs"
            ]
        );
    }
}
