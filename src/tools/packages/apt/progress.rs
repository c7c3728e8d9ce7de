//! The progress of a transaction, read from the lines that apt and dpkg print for people.

/// The start of each line about a download.
const FETCHING: &str = "Get:";
/// The start of dpkg's lines, as in `Unpacking libx:amd64 (1.2-3) over (1.2-2) ...`.
const STAGES: [&str; 4] = [
    "Unpacking ",
    "Setting up ",
    "Removing ",
    "Purging configuration files for ",
];

/// Whether a line of output shows that a stage is done. dpkg's own lines end with three dots and
/// name a version, which distinguishes them from similar lines of package scripts.
#[must_use]
pub fn is_stage(line: &str) -> bool {
    match line.strip_prefix(FETCHING) {
        // `Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]`
        Some(rest) => rest.starts_with(|c: char| c.is_ascii_digit()),
        None => STAGES.iter().any(|sign| line.starts_with(sign)) && line.ends_with(") ..."),
    }
}

#[cfg(test)]
mod tests {
    use super::is_stage;

    #[test]
    fn lines_of_apt_and_dpkg() {
        for (line, expected) in [
            (
                "Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]",
                true,
            ),
            (
                "Unpacking libnvidia-ml1:amd64 (535.261.03-1~deb12u1) ...",
                true,
            ),
            ("Unpacking libx:amd64 (1.2-3) over (1.2-2) ...", true),
            ("Setting up docker.io (20.10.24+dfsg1-1+deb12u1) ...", true),
            ("Removing runc (1.1.5+ds1-1+deb12u1) ...", true),
            (
                "Purging configuration files for docker.io (20.10.24) ...",
                true,
            ),
            ("Removing group `docker' ...", false),
            ("Removing all DKMS Modules", false),
            ("Get: cloud", false),
            ("Preparing to unpack .../libx_1_amd64.deb ...", false),
            ("Building initial module for 6.1.0-44-amd64", false),
            ("", false),
        ] {
            assert_eq!(is_stage(line), expected, "{line}");
        }
    }
}
