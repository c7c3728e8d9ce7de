//! The kubelet's configuration.
//!
//! Source: <https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/>.

use serde::Deserialize;

use super::{syslog, yaml};
use crate::{
    host::{FilesError, ReadFiles},
    model::kubernetes::Labels,
};

/// The kubelet unit in the community packages.
pub const UNIT: &str = "kubelet.service";

/// The path that kubeadm uses.
pub const CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// The file of kubelet flags that kubeadm writes (kubernetes/kubernetes, `cmd/kubeadm/app/constants/constants.go`).
pub const FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// How the administrator removes the files of a kubelet, as a part of remedies.
pub const RESET: &str = "if kubeadm joined this machine, run `kubeadm reset` on it";

/// Returns the log file in which one of the programs, which contain a kubelet, reports that it does not start with cgroup v1 (kubernetes/kubernetes,
/// `cmd/kubelet/app/server.go`). Each user can write such a line.
///
/// # Errors
/// If an existing file cannot be read.
pub fn refused_cgroup_v1(
    files: &dyn ReadFiles,
    programs: &[&str],
) -> Result<Option<&'static str>, FilesError> {
    const REFUSAL: &str = "kubelet is configured to not run on a host using cgroup v1";
    for path in syslog::FILES {
        let text = files.read_lossy(path.into())?.unwrap_or_default();
        let mut messages = text
            .lines()
            .filter_map(|line| syslog::message(line, programs));
        if messages.any(|message| message.contains(REFUSAL)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Formats labels for the kubelet option `--node-labels`.
pub fn label_list(labels: &Labels) -> String {
    let all: Vec<String> = (labels.iter())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(",")
}

/// The fields that gpu-bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfig {
    /// The cgroup driver: `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
    /// The socket of the container runtime, as a URL.
    pub container_runtime_endpoint: Option<String>,
}

/// Parses the configuration.
///
/// # Errors
/// If the text is invalid. The message is one line with the position.
pub fn parse(text: &str) -> Result<KubeletConfig, String> {
    yaml::parse(text)
}

/// Returns the path of a socket URL such as `unix:///run/containerd/containerd.sock`.
pub fn socket(address: &str) -> String {
    address
        .strip_prefix("unix://")
        .unwrap_or(address)
        .to_owned()
}

/// Returns the value of an option on a kubelet command line, given as one argument or two.
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

/// Returns the socket on a kubelet command line.
pub fn endpoint(command: &str) -> Option<String> {
    option(command, "--container-runtime-endpoint").map(socket)
}

/// Returns the socket in [`FLAGS`] or in a configuration file of the kubelet.
///
/// # Errors
/// If the configuration is invalid. The message is one line with the position.
pub fn socket_in(path: &str, text: &str) -> Result<Option<String>, String> {
    let found = match path {
        FLAGS => endpoint(&text.replace('"', " ")),
        _ => (parse(text)?.container_runtime_endpoint).map(|address| socket(&address)),
    };
    // kubeadm writes an empty address into the configuration if the socket is in the flags.
    Ok(found.filter(|socket| !socket.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::{CONFIG, FLAGS, parse, socket_in};

    #[test]
    fn cgroup_driver_is_parsed_and_broken_file_is_an_error() {
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
        let why = parse("cgroupDriver: [").expect_err("an unterminated list");
        assert!(why.contains("line 1"), "{why}");
    }

    #[test]
    fn socket_is_in_the_configuration_or_in_the_flags() {
        let flags = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/a.sock\"\n";
        for (path, text, socket) in rows! {
            CONFIG, "containerRuntimeEndpoint: unix:///run/a.sock\n", Some("/run/a.sock");
            CONFIG, "containerRuntimeEndpoint: \"\"\n", None;
            FLAGS, flags, Some("/run/a.sock");
            FLAGS, "KUBELET_KUBEADM_ARGS=\"\"\n", None;
        } {
            assert_eq!(
                socket_in(path, text).expect(text).as_deref(),
                socket,
                "{text}"
            );
        }
    }
}
