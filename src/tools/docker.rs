//! Docker's client.

use std::time::Duration;

use crate::host::{Cmd, Query};

/// Big images take a while.
const PULL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// What the daemon says about itself, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Info {
    /// Runtimes by name.
    #[serde(default)]
    pub runtimes: std::collections::BTreeMap<String, serde_json::Value>,
    /// The default runtime.
    pub default_runtime: Option<String>,
    /// `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
    /// The daemon's version.
    pub server_version: Option<String>,
    /// Why the daemon could not be asked; the client then still prints a document.
    #[serde(default)]
    pub server_errors: Vec<String>,
}

/// Asks the daemon about itself, as JSON.
#[must_use]
pub fn info() -> Query {
    Query::new("docker", ["info", "--format", "{{json .}}"])
}

/// Asks for an image; a status other than 0 says that it is not there.
#[must_use]
pub fn inspect_image(image: &str) -> Query {
    Query::new("docker", ["image", "inspect", "--format", "{{.Id}}", image])
}

/// Pulls an image.
#[must_use]
pub fn pull(image: &str) -> Cmd {
    Cmd::new("docker", ["pull", image]).deadline(PULL_DEADLINE)
}

/// Removes an image.
#[must_use]
pub fn remove_image(image: &str) -> Cmd {
    Cmd::new("docker", ["image", "rm", "--force", image]).deadline(Duration::from_secs(120))
}

/// Reads the answer to [`info`].
///
/// # Errors
/// Where and why it is no such document.
pub fn parse_info(text: &str) -> Result<Info, String> {
    serde_json::from_str(text.trim()).map_err(|error| error.to_string())
}

/// Looks whether the daemon's configuration file, `daemon.json`, can be read.
///
/// # Errors
/// Where and why it is no JSON object.
pub fn check_config(text: &str) -> Result<(), String> {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{check_config, parse_info};

    #[test]
    fn a_broken_configuration_is_told_with_its_place() {
        assert_eq!(check_config("{\"log-driver\": \"local\"}\n"), Ok(()));
        for (text, place) in [
            ("{\n  \"mtu\": 1400,\n}\n", "line 3 column 1"),
            ("", "line 1 column 0"),
            ("[]", "line 1 column 0"),
        ] {
            let why = check_config(text).expect_err("broken");
            assert!(why.contains(place), "{why}");
        }
    }

    #[test]
    fn runtimes_are_read() {
        let info = parse_info(
            r#"{"ID":"x","Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"runc":{"path":"runc"}},
               "DefaultRuntime":"runc","CgroupDriver":"systemd","ServerVersion":"20.10.24+dfsg1"}"#,
        )
        .expect("an answer");
        assert_eq!(
            info.runtimes.keys().collect::<Vec<_>>(),
            ["io.containerd.runc.v2", "runc"]
        );
        assert_eq!(info.default_runtime.as_deref(), Some("runc"));
        assert!(info.server_errors.is_empty());
    }

    #[test]
    fn a_silent_daemon_is_told() {
        let info =
            parse_info(r#"{"ID":"","ServerErrors":["Cannot connect to the Docker daemon"]}"#)
                .expect("an answer");
        assert_eq!(info.server_errors, ["Cannot connect to the Docker daemon"]);
        assert!(parse_info("docker: not found").is_err());
    }
}
