//! Debian's automatic updater, `unattended-upgrades`: the file that excludes packages from it.

use camino::Utf8PathBuf;

use crate::tools::packages::HEADER;

/// Read by unattended-upgrades, whether it is installed now or later.
pub const EXCLUSION: &str = "/etc/apt/apt.conf.d/52gpu-bootstrap-unattended-upgrades";

/// The file with these regular expressions over package names.
#[must_use]
pub fn exclusion(patterns: &[String]) -> (Utf8PathBuf, String) {
    let mut text = HEADER.replace('#', "//");
    text.push_str("Unattended-Upgrade::Package-Blacklist {\n");
    for pattern in patterns {
        text.push_str(&format!("    \"{pattern}\";\n"));
    }
    text.push_str("};\n");
    (EXCLUSION.into(), text)
}

/// A shell pattern as a regular expression for unattended-upgrades.
#[must_use]
pub fn as_regex(pattern: &str) -> String {
    let mut regex = String::from("^");
    for c in pattern.chars() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '.' | '+' => regex.extend(['\\', c]),
            c => regex.push(c),
        }
    }
    regex.push('$');
    regex
}

#[cfg(test)]
mod tests {
    use super::{as_regex, exclusion};

    #[test]
    fn the_exclusion_is_apt_configuration() {
        let (_, text) = exclusion(&["nvidia-".into()]);
        assert!(text.starts_with("//"));
        assert!(text.contains("Unattended-Upgrade::Package-Blacklist {\n    \"nvidia-\";\n};\n"));
    }

    #[test]
    fn a_pattern_becomes_a_regular_expression() {
        assert_eq!(as_regex("libc++?-*.1"), r"^libc\+\+.-.*\.1$");
    }
}
