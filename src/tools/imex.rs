//! `nvidia-imex`: its unit, its files, and the query of its state. IMEX lets the GPUs of several nodes in a rack share memory by
//! multi-node NVLink. All functions are pure.
//!
//! Sources: NVIDIA, "IMEX Service for NVLink Networks", "IMEX Service Config Options" (the keys and the default path of the node
//! list); DRA driver for NVIDIA GPUs, site/content/docs/prerequisites.md, "Host-managed IMEX" (the command socket, the query
//! and its answer `READY`).

use std::{net::IpAddr, time::Duration};

use camino::Utf8Path;

use crate::host::Query;

/// The unit that the package enables.
pub const UNIT: &str = "nvidia-imex.service";

/// The configuration file of the package.
pub const CONFIG: &str = "/etc/nvidia-imex/config.cfg";

/// The addresses of the nodes: the default of `IMEX_NODE_CONFIG_FILE`.
pub const NODES: &str = "/etc/nvidia-imex/nodes_config.cfg";

/// The socket for commands: the default of the DRA driver.
const SOCKET: &str = "/etc/nvidia-imex/imex_ctrl.sock";

/// The socket of a unit that cannot write to `/etc` (`ProtectSystem=full`). The DRA driver then needs the same path in
/// `resources.computeDomains.imex.hostSocketPath`.
const RUN_SOCKET: &str = "/var/run/nvidia-imex-ctrl.sock";

/// Whether the daemon reads this file when it starts.
pub fn is_file(path: &Utf8Path) -> bool {
    path == CONFIG || path == NODES
}

const ENABLED_KEY: &str = "IMEX_CMD_ENABLED";
const SOCKET_KEY: &str = "IMEX_CMD_UNIX_DOMAIN_PATH";

/// A daemon that does not answer within this time is not ready.
const DEADLINE: Duration = Duration::from_secs(20);

/// The output of [`state`] if the daemon is ready.
const READY: &str = "READY";

/// Queries the state of the daemon on this machine, which is not the state of the other nodes.
pub fn state() -> Query {
    Query::new("nvidia-imex-ctl", ["-q"]).deadline(DEADLINE)
}

/// Whether the output of [`state`] shows that the daemon of this machine is ready. With the default quorum `RECOVERY`, it is
/// ready before it is connected to the other nodes. Source: NVIDIA, "IMEX Service for NVLink Networks".
pub fn is_ready(output: &str) -> bool {
    output.trim() == READY
}

/// Returns the content of [`NODES`]. It has no comments, because GPU Feature Discovery accepts only addresses in this file.
/// Source: NVIDIA/k8s-device-plugin, `internal/lm/imex.go`.
pub fn node_list(nodes: &[IpAddr]) -> String {
    nodes.iter().map(|node| format!("{node}\n")).collect()
}

/// The last value of a key, without the lines that are comments.
fn value<'a>(config: &'a str, key: &str) -> Option<&'a str> {
    let mut values = config.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim())
    });
    values.next_back()
}

/// Whether the daemon has the command service, without which [`state`] has no answer.
pub fn has_commands(config: &str) -> bool {
    value(config, ENABLED_KEY) == Some("1")
}

/// Returns the socket for commands with which the daemon should run. An existing value is kept. `protect` are the values of
/// `ProtectSystem=` in the unit.
pub fn socket(config: &str, protect: &[String]) -> String {
    let own = value(config, SOCKET_KEY).filter(|path| !path.is_empty());
    let hides_etc = protect
        .last()
        .is_some_and(|value| matches!(value.as_str(), "full" | "strict"));
    own.unwrap_or(if hides_etc { RUN_SOCKET } else { SOCKET })
        .to_owned()
}

/// Returns the configuration with the command service on this socket, which the DRA driver queries. `None` if it already has
/// these values.
pub fn with_commands(config: &str, socket: &str) -> Option<String> {
    let desired = [(ENABLED_KEY, "1"), (SOCKET_KEY, socket)];
    if (desired.iter()).all(|(key, wanted)| value(config, key) == Some(*wanted)) {
        return None;
    }
    let is_ours = |line: &str| {
        let name = line.split_once('=').map(|(name, _)| name.trim());
        desired.iter().any(|(key, _)| name == Some(*key))
    };
    let mut text: String = (config.split_inclusive('\n'))
        .filter(|line| !is_ours(line))
        .collect();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for (key, value) in desired {
        text.push_str(&format!("{key}={value}\n"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_service_is_enabled_and_other_keys_stay() {
        let packaged = "# IMEX_CMD_ENABLED=1\nLOG_LEVEL=4\nIMEX_CMD_ENABLED=0\nIMEX_CMD_UNIX_DOMAIN_PATH=\nSERVER_PORT=50000";
        let expected = "# IMEX_CMD_ENABLED=1\nLOG_LEVEL=4\nSERVER_PORT=50000\nIMEX_CMD_ENABLED=1\n\
                        IMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\n";
        assert_eq!(with_commands(packaged, SOCKET).as_deref(), Some(expected));
        assert_eq!(with_commands(expected, SOCKET), None);
        assert!(!has_commands(packaged) && has_commands(expected));
        let only = "IMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/run/a.sock\n";
        assert_eq!(with_commands("", "/run/a.sock").as_deref(), Some(only));
    }

    #[test]
    fn socket_is_writable_for_the_unit() {
        for (config, protect, expected) in rows! {
            "", &[][..], SOCKET;
            "", &["full".to_owned()][..], RUN_SOCKET;
            "", &["full".to_owned(), "no".to_owned()][..], SOCKET;
            "IMEX_CMD_UNIX_DOMAIN_PATH=\n", &[][..], SOCKET;
            "IMEX_CMD_UNIX_DOMAIN_PATH=/run/a.sock\n", &["full".to_owned()][..], "/run/a.sock";
        } {
            assert_eq!(socket(config, protect), expected, "{config} {protect:?}");
        }
    }

    #[test]
    fn only_ready_is_ready() {
        for (output, ready) in rows! {
            "READY\n", true;
            "NOT READY\n", false;
            "UNAVAILABLE\n", false;
            "", false;
        } {
            assert_eq!(is_ready(output), ready, "{output}");
        }
        let nodes = ["10.0.0.1", "fd00::1"].map(|node| node.parse().expect("an address"));
        assert_eq!(node_list(&nodes), "10.0.0.1\nfd00::1\n");
    }
}
