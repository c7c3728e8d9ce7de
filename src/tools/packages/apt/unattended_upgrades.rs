//! `unattended-upgrades`, the automatic updater of Debian, and the file that excludes packages from it.

use camino::Utf8PathBuf;

use crate::tools::packages::{HEADER, Updater};

/// The file also takes effect if unattended-upgrades is installed later.
const EXCLUSION: &str = "/etc/apt/apt.conf.d/52gpu-bootstrap-unattended-upgrades";

#[derive(Debug)]
pub struct UnattendedUpgrades;

impl Updater for UnattendedUpgrades {
    fn exclusion(&self, patterns: &[String]) -> (Utf8PathBuf, String) {
        let mut text = HEADER.replace('#', "//");
        text.push_str("Unattended-Upgrade::Package-Blacklist {\n");
        for pattern in patterns {
            text.push_str(&format!("    \"{pattern}\";\n"));
        }
        text.push_str("};\n");
        (EXCLUSION.into(), text)
    }

    /// Converts a shell pattern to a regular expression.
    fn pattern(&self, shell: &str) -> String {
        let mut regex = String::from("^");
        for c in shell.chars() {
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
}

#[cfg(test)]
mod tests {
    use super::UnattendedUpgrades;
    use crate::tools::packages::Updater;

    #[test]
    fn exclusion_is_apt_configuration() {
        let (_, text) = UnattendedUpgrades.exclusion(&["nvidia-".into()]);
        assert!(text.starts_with("//"));
        assert!(text.contains("Unattended-Upgrade::Package-Blacklist {\n    \"nvidia-\";\n};\n"));
    }

    #[test]
    fn pattern_becomes_a_regular_expression() {
        let regex = UnattendedUpgrades.pattern("libc++?-*.1");
        assert_eq!(regex, r"^libc\+\+.-.*\.1$");
    }
}
