//! The kubelet's configuration file.
//!
//! Source: <https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/>.

use serde::Deserialize;

use super::yaml;

/// Where kubeadm writes it.
pub const CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// What this program reads of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfig {
    /// What makes the control groups of pods: `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
}

/// Reads the file.
///
/// # Errors
/// Where and why it is no such file, in one line.
pub fn parse(text: &str) -> Result<KubeletConfig, String> {
    yaml::parse(text)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_control_groups_are_read_and_a_broken_file_is_told() {
        for (text, driver) in [
            ("cgroupDriver: systemd\n", Some("systemd")),
            ("cgroupDriver: 'cgroupfs' # by hand\n", Some("cgroupfs")),
            (
                "{\"kind\": \"KubeletConfiguration\", \"cgroupDriver\": \"systemd\"}",
                Some("systemd"),
            ),
            (
                "kind: KubeletConfiguration\nauthentication:\n  anonymous:\n    enabled: false\n",
                None,
            ),
            ("cgroupDriver:\n", None),
            (
                "logging:\n  cgroupDriver: no-key-of-the-first-level\n",
                None,
            ),
        ] {
            let config = parse(text).expect(text);
            assert_eq!(config.cgroup_driver.as_deref(), driver, "{text}");
        }
        let why = parse("cgroupDriver: [").expect_err("a list that does not end");
        assert!(why.contains("line 1"), "{why}");
    }
}
