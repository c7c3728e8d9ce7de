//! Docker's client.

use std::time::Duration;

use crate::host::{Cmd, Query};

/// Big images take minutes.
const PULL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// What the daemon says about itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Info {
    /// Runtimes by name.
    #[serde(default)]
    pub runtimes: std::collections::BTreeMap<String, serde_json::Value>,
    /// The default runtime.
    pub default_runtime: Option<String>,
    /// The daemon's version.
    pub server_version: Option<String>,
    /// Whether containers keep running when the daemon stops.
    #[serde(default)]
    pub live_restore_enabled: bool,
    /// Why the daemon could not be asked. The client prints a document even then.
    #[serde(default)]
    pub server_errors: Vec<String>,
}

/// Asks the daemon about itself, as JSON.
#[must_use]
pub fn info() -> Query {
    Query::new("docker", ["info", "--format", "{{json .}}"])
}

/// Asks for the names of the running containers, one per line.
#[must_use]
pub fn running() -> Query {
    Query::new("docker", ["ps", "--format", "{{.Names}}"])
}

/// Asks for an image. The status is not 0 where the daemon does not have it.
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
/// Where and why it is not such a document.
pub fn parse_info(text: &str) -> Result<Info, String> {
    serde_json::from_str(text.trim()).map_err(|error| error.to_string())
}

/// What is wrong with a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// Where and why it cannot be read.
    pub why: String,
    /// Docker from [`LENIENT`] on reads it all the same; `nvidia-ctk` does not.
    pub forgiven: bool,
}

/// The first Docker that treats an empty file as none and skips a byte order mark
/// (moby/moby, `daemon/config/config.go` of 20.10.24 and 23.0.0). `nvidia-ctk` decodes the bytes as
/// they are (NVIDIA/nvidia-container-toolkit, `pkg/config/engine/docker/option.go`).
pub const LENIENT: u32 = 23;

/// The byte order mark with which some editors on Windows begin a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Checks that the daemon's configuration file, `daemon.json`, can be read.
///
/// # Errors
/// Where and why it is not a JSON object.
pub fn check_config(text: &str) -> Result<(), Flaw> {
    let unmarked = text.strip_prefix(BYTE_ORDER_MARK);
    let forgiven = |why: &str| Flaw {
        why: why.to_owned(),
        forgiven: true,
    };
    let rest = unmarked.unwrap_or(text);
    if rest.trim().is_empty() {
        return Err(forgiven("it is empty"));
    }
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(rest).map_err(|error| {
        Flaw {
            why: error.to_string(),
            forgiven: false,
        }
    })?;
    match unmarked {
        Some(_) => Err(forgiven("it begins with a byte order mark")),
        None => Ok(()),
    }
}

impl Info {
    /// Whether the daemon forgives a [`Flaw`] that can be forgiven.
    #[must_use]
    pub fn is_lenient(&self) -> bool {
        let major = self.server_version.as_deref().and_then(|version| {
            let digits = version.split('.').next()?;
            digits.parse::<u32>().ok()
        });
        major.is_some_and(|major| major >= LENIENT)
    }
}

#[cfg(test)]
mod tests {
    use super::{check_config, parse_info};

    #[test]
    fn a_broken_configuration_is_told_with_its_place() {
        assert_eq!(check_config("{\"log-driver\": \"local\"}\n"), Ok(()));
        for (text, place, forgiven) in [
            ("{\n  \"mtu\": 1400,\n}\n", "line 3 column 1", false),
            ("[]", "line 1 column 0", false),
            ("\u{feff}[]", "line 1 column 0", false),
            ("", "empty", true),
            (" \n", "empty", true),
            ("\u{feff}", "empty", true),
            ("\u{feff}{\"mtu\": 1400}", "byte order mark", true),
        ] {
            let flaw = check_config(text).expect_err("broken");
            assert!(flaw.why.contains(place), "{flaw:?}");
            assert_eq!(flaw.forgiven, forgiven, "{text}");
        }
    }

    #[test]
    fn newer_daemons_forgive() {
        for (version, lenient) in [
            ("\"20.10.24+dfsg1\"", false),
            ("\"23.0.0\"", true),
            ("\"28.5.2\"", true),
            ("null", false),
        ] {
            let text = format!(r#"{{"ServerVersion":{version}}}"#);
            assert_eq!(parse_info(&text).expect("an answer").is_lenient(), lenient);
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
