//! The agents of k3s and RKE2, which are one program with two names.
//!
//! Sources: k3s, "k3s agent" and "Configuration File" (files of the folder in the order of their names; a `+` behind a key
//! appends to what earlier files say); RKE2, "Agent Configuration Reference". Labels and taints count at the registration
//! only.

use camino::Utf8Path;
use serde_json::json;

use crate::{
    joins::API_PORT,
    model::kubernetes::{Labels, Taint},
    tools::kubernetes::token,
};

/// One of the two agents.
#[derive(Debug, PartialEq, Eq)]
pub struct Agent {
    pub name: &'static str,
    /// Where a server registers nodes. Source: RKE2, "Quick Start": a server of RKE2 serves the API at 6443; k3s does both there.
    pub port: u16,
    pub unit: &'static str,
    /// Our part of its configuration. The agent reads the files of this folder in the order of their names.
    pub config: &'static str,
    /// Our file with the token, where the one of the settings does not last: the agent reads it at each start.
    pub token: &'static str,
    /// The kubeconfig of its kubelet, which exists once the machine has joined.
    pub kubeconfig: &'static str,
}

/// NetworkManager's set-up for clouds, which removes routes of pods. Units of agents from before October 2025 do not start
/// while it is enabled, as it is in AlmaLinux' images for AWS and Azure (k3s-io/k3s#12889, rancher/rke2#8935,
/// AlmaLinux/cloud-images `ansible/roles`).
pub const CLOUD_SETUP: &str = "nm-cloud-setup.service";

/// Both.
pub const ALL: [&Agent; 2] = [&K3S, &RKE2];

pub const K3S: Agent = Agent {
    name: "k3s",
    port: API_PORT,
    unit: "k3s-agent.service",
    config: "/etc/rancher/k3s/config.yaml.d/50-gpu-bootstrap.yaml",
    token: "/etc/rancher/k3s/gpu-bootstrap.token",
    kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
};

pub const RKE2: Agent = Agent {
    name: "rke2",
    port: 9345,
    unit: "rke2-agent.service",
    config: "/etc/rancher/rke2/config.yaml.d/50-gpu-bootstrap.yaml",
    token: "/etc/rancher/rke2/gpu-bootstrap.token",
    kubeconfig: "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
};

/// A server's token.
const OF_SERVER: &str = "it is the token of the servers, with which a machine becomes a server and reads what the cluster \
     keeps: use the file `agent-token` of a server that was started with `--agent-token`, or what `k3s token create --ttl \
     30m` prints";

/// A token without the hash of the CA certificate.
const NOT_SECURE: &str = "it is not a token in the secure form `K10<CA hash>::...`, without which the agent trusts any server \
     that answers at the address: use what `k3s token create --ttl 30m` prints on a server (`rke2 token create --ttl 30m`), or \
     the file `agent-token` of a server that was started with `--agent-token`";

/// Returns what is wrong with a token; `None` for a token of agents in the secure form. Its credentials are `node:PASSWORD` or
/// a bootstrap token. The agent accepts an empty hash, and then verifies nothing. Sources: k3s, "k3s token", token format and
/// types; `parseToken` and `validateCAHash` of pkg/clientaccess/token.go.
#[must_use]
pub fn wrong_token(token: &str) -> Option<&'static str> {
    let parts = (token.trim().strip_prefix("K10")).and_then(|rest| rest.split_once("::"));
    let Some((hash, credentials)) = parts else {
        return Some(NOT_SECURE);
    };
    if credentials.starts_with("server:") {
        return Some(OF_SERVER);
    }
    let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let has_password = (credentials.strip_prefix("node:")).is_some_and(|one| !one.is_empty());
    let is_secure = is_hash && (has_password || token::is_bootstrap(credentials));
    (!is_secure).then_some(NOT_SECURE)
}

/// The configuration: JSON, which is YAML, too. It names the file with the token, and has no secret.
#[must_use]
pub fn configuration(
    server: &str,
    token_file: &Utf8Path,
    node: &str,
    labels: &Labels,
    taints: &[Taint],
) -> String {
    let labels: Vec<String> = (labels.iter())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let taints: Vec<String> = (taints.iter())
        .map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect.name()))
        .collect();
    let configuration = json!({
        "server": server,
        "token-file": token_file,
        "node-name": node,
        "node-label+": labels,
        "node-taint+": taints,
    });
    format!("{configuration:#}\n")
}

/// The server of a configuration of ours; `None` for text that is none.
#[must_use]
pub fn server_of(configuration: &str) -> Option<String> {
    let parsed: serde_json::Value = serde_json::from_str(configuration).ok()?;
    Some(parsed["server"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_agent_tokens_in_the_secure_form_pass() {
        let hash = "0123456789abcdef".repeat(4);
        for (token, wrong) in rows! {
            format!("K10{hash}::node:hush\n"), None;
            format!("K10{hash}::abcdef.0123456789abcdef"), None;
            format!("K10{hash}::server:hush"), Some(OF_SERVER);
            "K10::server:hush".to_owned(), Some(OF_SERVER);
            // The short form: a server's password, an agent's, a bootstrap token.
            "hush".to_owned(), Some(NOT_SECURE);
            "node:hush".to_owned(), Some(NOT_SECURE);
            "abcdef.0123456789abcdef".to_owned(), Some(NOT_SECURE);
            // The agent does not compare an empty hash.
            "K10::node:hush".to_owned(), Some(NOT_SECURE);
            format!("K10{}::node:hush", &hash[1..]), Some(NOT_SECURE);
            format!("K10{hash}::node:"), Some(NOT_SECURE);
            format!("K10{hash}::hush"), Some(NOT_SECURE);
            format!("K10{hash}"), Some(NOT_SECURE);
            String::new(), Some(NOT_SECURE);
        } {
            assert_eq!(wrong_token(&token), wrong, "{token}");
        }
    }

    #[test]
    fn the_configuration_names_the_file_with_the_token() {
        let labels = Labels::from([
            ("nvidia.com/gpu.present".to_owned(), "true".to_owned()),
            ("team".to_owned(), "research".to_owned()),
        ]);
        let taints = ["nvidia.com/gpu=present:NoSchedule"
            .parse()
            .expect("a taint")];
        let token = Utf8Path::new("/etc/gpu-bootstrap/join-token");
        let written = configuration("https://10.0.0.1:6443", token, "gpu-1", &labels, &taints);
        assert_eq!(
            server_of(&written).as_deref(),
            Some("https://10.0.0.1:6443")
        );
        insta::assert_snapshot!(written);
    }
}
