//! The progress of a transaction, parsed from the human-readable output of apt and dpkg.

use super::sizes;

/// Prefix of lines about a download.
const FETCHING: &str = "Get:";
/// Prefixes of dpkg lines such as `Unpacking libx:amd64 (1.2-3) over (1.2-2) ...`.
const STAGES: [&str; 4] = [
    "Unpacking ",
    "Setting up ",
    "Removing ",
    "Purging configuration files for ",
];

/// Whether an output line reports a stage of the transaction, such as a download or the removal of a package. dpkg's own lines
/// end with a version and three dots, unlike similar lines of package scripts.
pub fn is_stage(line: &str) -> bool {
    match line.strip_prefix(FETCHING) {
        // `Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]`
        Some(rest) => rest.starts_with(|c: char| c.is_ascii_digit()),
        None => STAGES.iter().any(|sign| line.starts_with(sign)) && line.ends_with(") ..."),
    }
}

/// Returns the total download size in bytes. `Need to get 12.3 MB/312 MB of archives.` means that the rest is already
/// downloaded.
pub fn download_size(line: &str) -> Option<u64> {
    let (size, _) = line
        .strip_prefix("Need to get ")?
        .split_once(" of archives")?;
    sizes::rounded(size.split('/').next()?)
}

/// Returns the size at the end of a download line.
pub fn download_part(line: &str) -> Option<u64> {
    if !line.starts_with(FETCHING) {
        return None;
    }
    let (_, size) = line.strip_suffix(']')?.rsplit_once('[')?;
    sizes::rounded(size)
}

#[cfg(test)]
mod tests {
    use super::{download_part, download_size, is_stage};

    #[test]
    fn download_sizes_are_parsed() {
        for (line, size) in [
            ("Need to get 312 MB of archives.", Some(312_000_000)),
            ("Need to get 12.3 kB/1,024 MB of archives.", Some(12_300)),
            ("Need to get 0 B/99.8 MB of archives.", Some(0)),
            ("Need to get some rest", None),
        ] {
            assert_eq!(download_size(line), size, "{line}");
        }
        let line = "Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3";
        assert_eq!(
            download_part(&format!("{line} [1,234 kB]")),
            Some(1_234_000)
        );
        assert_eq!(download_part(line), None);
        assert_eq!(download_part("Setting up x [2 kB]"), None);
    }

    #[test]
    fn stages_of_apt_and_dpkg_are_recognized() {
        for (line, expected) in rows! {
            "Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]",
                true;
            "Unpacking libnvidia-ml1:amd64 (535.261.03-1~deb12u1) ...", true;
            "Unpacking libx:amd64 (1.2-3) over (1.2-2) ...", true;
            "Setting up docker.io (20.10.24+dfsg1-1+deb12u1) ...", true;
            "Removing runc (1.1.5+ds1-1+deb12u1) ...", true;
            "Purging configuration files for docker.io (20.10.24) ...", true;
            "Removing group `docker' ...", false;
            "Removing all DKMS Modules", false;
            "Get: cloud", false;
            "Preparing to unpack .../libx_1_amd64.deb ...", false;
            "Building initial module for 6.1.0-44-amd64", false;
            "", false;
        } {
            assert_eq!(is_stage(line), expected, "{line}");
        }
    }
}
