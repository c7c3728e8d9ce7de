//! Progress of a transaction, told from the lines that apt and dpkg print for people.

/// What a line tells about the way that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// An archive is fetched.
    Fetching,
    /// A package's files are put in place.
    Unpacking,
    /// A package is configured.
    SettingUp,
    /// A package's files are taken away.
    Removing,
    /// What a removed package configured is taken away.
    Purging,
}

/// What each stage's lines begin with.
const SIGNS: [(&str, Stage); 5] = [
    // `Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]`
    ("Get:", Stage::Fetching),
    // `Unpacking libx:amd64 (1.2-3) over (1.2-2) ...`
    ("Unpacking ", Stage::Unpacking),
    // `Setting up libx:amd64 (1.2-3) ...`
    ("Setting up ", Stage::SettingUp),
    // `Removing libx:amd64 (1.2-3) ...`
    ("Removing ", Stage::Removing),
    // `Purging configuration files for libx:amd64 (1.2-3) ...`
    ("Purging configuration files for ", Stage::Purging),
];

/// Reads a line of output. dpkg's own lines end with three dots and name a version, which tells
/// them from what a package's script says in similar words.
#[must_use]
pub fn read(line: &str) -> Option<Stage> {
    let (sign, stage) = SIGNS.iter().find(|(sign, _)| line.starts_with(sign))?;
    let genuine = match stage {
        Stage::Fetching => line[sign.len()..].starts_with(|c: char| c.is_ascii_digit()),
        _ => line.ends_with(") ..."),
    };
    genuine.then_some(*stage)
}

#[cfg(test)]
mod tests {
    use super::{Stage, read};

    #[test]
    fn lines_of_apt_and_dpkg() {
        for (line, expected) in [
            (
                "Get:3 http://debian.example.org/debian bookworm/main amd64 libx amd64 1.2-3 [12.3 kB]",
                Some(Stage::Fetching),
            ),
            (
                "Unpacking libnvidia-ml1:amd64 (535.261.03-1~deb12u1) ...",
                Some(Stage::Unpacking),
            ),
            (
                "Unpacking libx:amd64 (1.2-3) over (1.2-2) ...",
                Some(Stage::Unpacking),
            ),
            (
                "Setting up docker.io (20.10.24+dfsg1-1+deb12u1) ...",
                Some(Stage::SettingUp),
            ),
            (
                "Removing runc (1.1.5+ds1-1+deb12u1) ...",
                Some(Stage::Removing),
            ),
            (
                "Purging configuration files for docker.io (20.10.24) ...",
                Some(Stage::Purging),
            ),
            ("Removing group `docker' ...", None),
            ("Removing all DKMS Modules", None),
            ("Get: cloud", None),
            ("Preparing to unpack .../libx_1_amd64.deb ...", None),
            ("Building initial module for 6.1.0-44-amd64", None),
            ("", None),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }
}
