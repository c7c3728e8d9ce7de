//! `dpkg` itself: what an interruption left, and which package owns a file.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::apt::quiet;
use crate::host::{Cmd, Query};

/// Where dpkg keeps lists of files, checksums and scripts.
pub const INFO: &str = "/var/lib/dpkg/info";

/// Says what is half done.
#[must_use]
pub fn audit() -> Query {
    Query::new("dpkg", ["--audit"])
}

/// Reads the answer to [`audit`]: the packages that it names. dpkg(1) prints a reason, then one
/// package a line, indented, with its description.
#[must_use]
pub fn parse_audit(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name).to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Configures what is unpacked and not configured.
#[must_use]
pub fn configure_all() -> Cmd {
    quiet(Cmd::new(
        "dpkg",
        [
            "--force-confdef",
            "--force-confold",
            "--configure",
            "--pending",
        ],
    ))
    .deadline(Duration::from_secs(45 * 60))
    .silence(Duration::from_secs(10 * 60))
}

/// Whether the name of a file in [`INFO`] is that of a package's list of files.
#[must_use]
pub fn is_list(name: &str) -> bool {
    name.ends_with(".list")
}

/// Reads a package's list of files: those below a folder.
pub fn listed_below<'t>(
    text: &'t str,
    folder: &'t Utf8Path,
) -> impl Iterator<Item = Utf8PathBuf> + 't {
    text.lines()
        .map(Utf8Path::new)
        .filter(move |path| path.starts_with(folder))
        .map(Utf8Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audits_name_packages() {
        let text = "The following packages are only half configured, probably due to problems\n\
                    configuring them the first time.  The configuration should be retried using\n\
                    dpkg --configure <package> or the configure menu option in dselect:\n \
                    nvidia-kernel-dkms   NVIDIA binary kernel module DKMS source\n \
                    libc6:amd64          GNU C Library: Shared libraries\n\n";
        assert_eq!(parse_audit(text), ["libc6", "nvidia-kernel-dkms"]);
        assert!(parse_audit("").is_empty());
    }

    #[test]
    fn lists_of_files() {
        let text = "/.\n/etc\n/etc/docker\n/etc/default/docker\n/usr/bin/docker\n/etcetera\n";
        let found: Vec<Utf8PathBuf> = listed_below(text, "/etc".into()).collect();
        assert_eq!(found, ["/etc", "/etc/docker", "/etc/default/docker"]);
    }
}
