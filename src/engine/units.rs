//! What a run that continues by itself puts on the machine beside its own unit: the unit that counts
//! boots, and files that keep the driver's modules from being loaded.

use camino::Utf8Path;

use crate::{change::Change, journal::Standing, tools::packages::HEADER};

/// The unit that counts boots.
pub(super) const GUARD: &str = "gpu-bootstrap-guard.service";

/// While a run continues by itself: udev and `modules-load.d` respect `blacklist`, a load by name
/// does not.
const NOT_BY_ITSELF: &str = "/etc/modprobe.d/gpu-bootstrap-unfinished.conf";

/// After the run gave up. modprobe takes the first `install` of a module, so the name must sort
/// before those of the driver's packages.
const NOT_AT_ALL: &str = "/etc/modprobe.d/00-gpu-bootstrap-gave-up.conf";

/// Before `sysinit.target`, so that no ordinary service has started, and after the filesystems.
pub(super) fn guard(exe: &Utf8Path) -> String {
    format!(
        "# Written by gpu-bootstrap; it removes this file when its work is done.\n\
         [Unit]\n\
         Description=Count the boots in which gpu-bootstrap did not finish\n\
         DefaultDependencies=no\n\
         After=local-fs.target\n\
         Before=sysinit.target shutdown.target\n\
         Conflicts=shutdown.target\n\
         ConditionPathExists={journal}\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         ExecStart={exe} boot-guard\n\
         TimeoutStartSec=30\n\
         StandardInput=null\n\
         UMask=0022\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        exe = quoted(exe),
        journal = crate::journal::path(),
    )
}

/// A path as a word of `ExecStart`, by systemd.service(5): quotes, and `%` and `$` doubled.
pub(super) fn quoted(exe: &Utf8Path) -> String {
    let text = exe
        .as_str()
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    if text.contains(char::is_whitespace) {
        format!("\"{text}\"")
    } else {
        text
    }
}

/// Modules that load the driver's own. Debian's packages have `nvidia-drm` loaded at each boot, before any
/// boot can be counted.
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
    Change::WriteFile {
        path: path.into(),
        content: format!("{HEADER}{}", lines.concat()),
        mode: 0o644,
    }
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
