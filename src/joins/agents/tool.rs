//! The k3s and RKE2 agents, which are one program with two names.
//!
//! Sources: k3s, "k3s agent" and "Configuration File" (files in the directory are read in name order, and a `+` after a key
//! appends to the values of earlier files); RKE2, "Agent Configuration Reference". Labels and taints are used only at
//! registration.

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
    /// The port for node registration. k3s uses 6443 for registration and for the API. RKE2 uses 6443 only for the API. Source:
    /// RKE2, "Quick Start".
    pub port: u16,
    /// The start of the suffix of its versions, such as `k3s` in `v1.35.2+k3s1`. Source: the releases of k3s-io/k3s and
    /// rancher/rke2.
    build: &'static str,
    pub unit: &'static str,
    /// The configuration file of gpu-bootstrap. The agent reads the files in this directory in name order.
    pub config: &'static str,
    /// The copy of the token, for a token source that is not permanent, because the agent reads the token at each start.
    pub token: &'static str,
    /// The kubeconfig of its kubelet. The agent writes it during the join, before it starts the kubelet.
    pub kubeconfig: &'static str,
}

/// The cloud setup of NetworkManager, which removes pod routes. Agent units from before October 2025 do not start while it is
/// enabled, which is the default in AlmaLinux images for AWS and Azure (k3s-io/k3s#12889, rancher/rke2#8935,
/// AlmaLinux/cloud-images `ansible/roles`).
pub const CLOUD_SETUP: &str = "nm-cloud-setup.service";

/// The error for a version that is not one of an agent, see [`Agent::of_version`].
pub const NO_VERSION: &str =
    "not a version of k3s or RKE2, such as `v1.35.2+k3s1` or `v1.35.2+rke2r1`";

/// Both agents.
pub const ALL: [&Agent; 2] = [&K3S, &RKE2];

pub const K3S: Agent = Agent {
    name: "k3s",
    port: API_PORT,
    build: "k3s",
    unit: "k3s-agent.service",
    config: "/etc/rancher/k3s/config.yaml.d/50-gpu-bootstrap.yaml",
    token: "/etc/rancher/k3s/gpu-bootstrap.token",
    kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
};

pub const RKE2: Agent = Agent {
    name: "rke2",
    port: 9345,
    build: "rke2r",
    unit: "rke2-agent.service",
    config: "/etc/rancher/rke2/config.yaml.d/50-gpu-bootstrap.yaml",
    token: "/etc/rancher/rke2/gpu-bootstrap.token",
    kubeconfig: "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
};

impl Agent {
    /// Returns the agent of a version, or `None` if it is not a version of an agent. A release candidate has `-rc` and a number
    /// before the `+`.
    pub fn of_version(version: &str) -> Option<&'static Self> {
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (kubernetes, build) = version.strip_prefix('v')?.split_once('+')?;
        let (kubernetes, candidate) = kubernetes.split_once("-rc").unwrap_or((kubernetes, "1"));
        let numbers: Vec<&str> = kubernetes.split('.').chain([candidate]).collect();
        let is_version = numbers.len() == 4 && numbers.into_iter().all(is_number);
        let is_own = |agent: &&Self| build.strip_prefix(agent.build).is_some_and(is_number);
        ALL.into_iter().find(is_own).filter(|_| is_version)
    }
}

/// The error for a server token.
const OF_SERVER: &str = "server token: it allows a machine to become a server and to read the cluster's secrets; use the file \
     `agent-token` of a server that was started with `--agent-token`, or the output of `k3s token create --ttl 2h`";

/// The error for a token without the hash of the CA certificate.
const NOT_SECURE: &str = "not a token in the secure format `K10<CA hash>::...`, so the agent would trust any server at the \
     address; use the output of `k3s token create --ttl 2h` on a server (`rke2 token create --ttl 2h`), or the file \
     `agent-token` of a server that was started with `--agent-token`";

/// Returns the error of a token, or `None` for an agent token in the secure format. Its credentials are `node:PASSWORD` or a
/// bootstrap token. The agent accepts an empty hash but then does not verify the server, so an empty hash is an error. Sources:
/// k3s, "k3s token", token format and types; `parseToken` and `validateCAHash` of pkg/clientaccess/token.go.
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

/// Returns the configuration as JSON, which is also valid YAML. It contains the path of the token file, but no secret.
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

/// Returns the server in a configuration that gpu-bootstrap wrote, or `None` for other text.
pub fn server_of(configuration: &str) -> Option<String> {
    let parsed: serde_json::Value = serde_json::from_str(configuration).ok()?;
    Some(parsed["server"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_one_agent() {
        for (version, agent) in rows! {
            "v1.35.2+k3s1", Some("k3s");
            "v1.35.2-rc1+k3s1", Some("k3s");
            "v1.35.12+rke2r10", Some("rke2");
            "VERSION", None;
            "v1.35+k3s1", None;
            "v1.35.2", None;
            "1.35.2+k3s1", None;
            "v1.35.2+k3s", None;
            "v1.35.2+rke21", None;
            "v1.35.2-rc+k3s1", None;
        } {
            let found = Agent::of_version(version).map(|agent| agent.name);
            assert_eq!(found, agent, "{version}");
        }
    }

    #[test]
    fn only_secure_agent_tokens_are_accepted() {
        let hash = "0123456789abcdef".repeat(4);
        for (token, wrong) in rows! {
            format!("K10{hash}::node:hush\n"), None;
            format!("K10{hash}::abcdef.0123456789abcdef"), None;
            format!("K10{hash}::server:hush"), Some(OF_SERVER);
            "K10::server:hush".to_owned(), Some(OF_SERVER);
            // The short format: a server password, an agent password, a bootstrap token.
            "hush".to_owned(), Some(NOT_SECURE);
            "node:hush".to_owned(), Some(NOT_SECURE);
            "abcdef.0123456789abcdef".to_owned(), Some(NOT_SECURE);
            // If the hash is empty, the agent does not verify the server.
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
    fn configuration_contains_the_token_file() {
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
