//! The kubelet's configuration.
//!
//! Source: <https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/>.

use serde::Deserialize;

use super::yaml;
use crate::model::kubernetes::Labels;

/// Its unit in the packages of the Kubernetes community.
pub const UNIT: &str = "kubelet.service";

/// Where kubeadm writes it.
pub const CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// Where kubeadm writes the kubelet's flags (kubernetes/kubernetes, `cmd/kubeadm/app/constants/constants.go`).
pub const FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// Labels in the format of the kubelet's `--node-labels`.
#[must_use]
pub fn label_list(labels: &Labels) -> String {
    let all: Vec<String> = (labels.iter())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(",")
}

/// What this program reads of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfig {
    /// What makes the control groups of pods: `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
    /// The socket of the container runtime, as an address.
    pub container_runtime_endpoint: Option<String>,
}

/// Reads the file.
///
/// # Errors
/// Where and why it is no such file, in one line.
pub fn parse(text: &str) -> Result<KubeletConfig, String> {
    yaml::parse(text)
}

/// A socket, by its address `unix:///run/containerd/containerd.sock`.
#[must_use]
pub fn socket(address: &str) -> String {
    address
        .strip_prefix("unix://")
        .unwrap_or(address)
        .to_owned()
}

/// The value of an option in a command line of the kubelet, given in one word or in two.
#[must_use]
pub fn option<'c>(command: &'c str, name: &str) -> Option<&'c str> {
    let mut words = command.split_ascii_whitespace();
    let value = loop {
        match words.next()?.strip_prefix(name) {
            Some("") => break words.next()?,
            Some(rest) => {
                if let Some(value) = rest.strip_prefix('=') {
                    break value;
                }
            }
            None => {}
        }
    };
    Some(value).filter(|value| !value.is_empty())
}

/// The socket that a command line of the kubelet names.
#[must_use]
pub fn endpoint(command: &str) -> Option<String> {
    option(command, "--container-runtime-endpoint").map(socket)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_control_groups_are_read_and_a_broken_file_is_told() {
        for (text, driver) in rows! {
            "cgroupDriver: systemd\n", Some("systemd");
            "cgroupDriver: 'cgroupfs' # by hand\n", Some("cgroupfs");
            "{\"kind\": \"KubeletConfiguration\", \"cgroupDriver\": \"systemd\"}", Some("systemd");
            "kind: KubeletConfiguration\nauthentication:\n  anonymous:\n    enabled: false\n", None;
            "cgroupDriver:\n", None;
            "logging:\n  cgroupDriver: no-key-of-the-first-level\n", None;
        } {
            let config = parse(text).expect(text);
            assert_eq!(config.cgroup_driver.as_deref(), driver, "{text}");
        }
        let why = parse("cgroupDriver: [").expect_err("a list that does not end");
        assert!(why.contains("line 1"), "{why}");
    }
}
