//! Kernel parameters in `/proc/sys`, and swap areas.
//!
//! Sources: sysctl(8), proc_swaps(5), fstab(5).

use std::time::Duration;

use crate::host::Cmd;

/// The active swap areas.
pub const SWAPS: &str = "/proc/swaps";

/// The table of filesystems.
pub const FSTAB: &str = "/etc/fstab";

/// The network interfaces. A bridge has a directory `bridge`, and the directory `brif` with the interfaces that it connects.
/// Source: Linux, `Documentation/ABI/testing/sysfs-class-net` and `net/bridge/br_sysfs_br.c`.
pub const INTERFACES: &str = "/sys/class/net";

/// The bridge that the CNI plugin `bridge` creates for pods. Source: containernetworking/plugins, `bridge`.
pub const BRIDGE_OF_PODS: &str = "cni0";

/// `swapoff` moves all swapped pages to memory, which can take minutes.
const SWAP_DEADLINE: Duration = Duration::from_secs(300);

/// Returns the file of a parameter.
pub fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Sets a parameter until the next boot.
pub fn set(name: &str, value: &str) -> Cmd {
    let value = format!("{name}={value}");
    Cmd::new("sysctl", ["--write", "--", &value])
}

/// Turns off swap on a file or device.
pub fn swap_off(area: &str) -> Cmd {
    Cmd::new("swapoff", ["--", area]).deadline(SWAP_DEADLINE)
}

/// Turns on swap on a file or device.
pub fn swap_on(area: &str) -> Cmd {
    Cmd::new("swapon", ["--", area]).deadline(SWAP_DEADLINE)
}

/// Returns the files and devices in the list of swap areas, including compressed memory (zram).
pub fn parse_swaps(text: &str) -> Vec<String> {
    (text.lines().skip(1))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Returns the table of filesystems with its swap entries commented out, or `None` if it has no swap entries.
pub fn without_swap(fstab: &str) -> Option<String> {
    let mut found = false;
    let mut text = String::new();
    for line in fstab.split_inclusive('\n') {
        let mut fields = line.split_whitespace();
        let is_comment = fields.next().is_none_or(|first| first.starts_with('#'));
        if !is_comment && fields.nth(1) == Some("swap") {
            found = true;
            text.push_str("# turned off by gpu-bootstrap: ");
        }
        text.push_str(line);
    }
    found.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_entries_become_comments() {
        let fstab = "# <file system>\nUUID=a / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n";
        assert_eq!(
            without_swap(fstab).as_deref(),
            Some(
                "# <file system>\nUUID=a / ext4 defaults 0 1\n\
                 # turned off by gpu-bootstrap: /swap.img none swap sw 0 0\n"
            )
        );
        assert_eq!(without_swap("UUID=a / ext4\n# /swap none swap\n\n"), None);
        let styled = "UUID=a / ext4\r\n/swap.img none swap";
        let expected = "UUID=a / ext4\r\n# turned off by gpu-bootstrap: /swap.img none swap";
        assert_eq!(without_swap(styled).as_deref(), Some(expected));
    }

    #[test]
    fn active_swap_areas_are_parsed() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swap.img                               \
                    file\t\t2097148\t\t0\t\t-2\n";
        assert_eq!(parse_swaps(text), ["/swap.img"]);
        assert!(parse_swaps("Filename Type Size Used Priority\n").is_empty());
        assert!(parse_swaps("").is_empty());
    }
}
