//! The commands `kubeadm join` and `kubeadm reset`, and the configuration and the error messages of `kubeadm join`.
//!
//! Sources: Kubernetes, "kubeadm Configuration (v1beta4)"; kubernetes/kubernetes 1.34, `cmd/kubeadm/app/constants/constants.go`
//! (paths), `cmd/kubeadm/app/discovery/token/token.go` and `cmd/kubeadm/app/util/pubkeypin/pubkeypin.go` (messages).

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use crate::{
    host::Cmd,
    model::{
        kubernetes::{Labels, Taint},
        secret::Secret,
    },
    tools::{
        faults::{self, KnownFault},
        kubelet::label_list,
        kubernetes::skew::series,
    },
};

/// The kubeconfig of the kubelet. It is written during the join, before the cluster has issued the client certificate.
pub const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";

/// The kubeconfig with the bootstrap token. It exists only during a join or after an interrupted one.
pub const BOOTSTRAP_CONF: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The cluster's CA certificate. kubeadm writes it after discovery.
pub const CA: &str = "/etc/kubernetes/pki/ca.crt";

/// Files of a control plane: static pod manifests, the CA key, the etcd data. A worker may also have the manifests directory,
/// but without manifests.
pub const OF_CONTROL_PLANES: [&str; 3] = [
    "/etc/kubernetes/manifests",
    "/etc/kubernetes/pki/ca.key",
    "/var/lib/etcd/member",
];

/// The discovery method, including its secret.
#[derive(Debug, Clone, PartialEq)]
pub enum KubeadmDiscovery<'a> {
    /// By a bootstrap token.
    Token {
        /// `HOST:PORT` of the API server.
        server: &'a str,
        token: &'a Secret,
        /// Accepted digests of the CA public key (`sha256:` and the digest).
        ca_cert_hashes: &'a [String],
    },
    /// By a kubeconfig.
    File {
        path: &'a Utf8PathBuf,
        /// The bootstrap token that the kubelet uses to request its first client certificate.
        token: Option<&'a Secret>,
    },
}

/// The registration settings of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration<'a> {
    /// The node name.
    pub name: &'a str,
    /// The URL of the container runtime socket.
    pub socket: &'a str,
    pub labels: &'a Labels,
    pub taints: &'a [Taint],
    /// Preflight checks whose errors are treated as warnings.
    pub ignore_preflight_errors: &'a [String],
    /// The time limit of each phase of the join.
    pub timeout: Duration,
}

/// Returns the configuration of `kubeadm join` as JSON, which is also valid YAML. It contains the token.
pub fn join_configuration(found: &KubeadmDiscovery<'_>, node: &Registration<'_>) -> Secret {
    let discovery = match found {
        KubeadmDiscovery::Token {
            server,
            token,
            ca_cert_hashes,
        } => json!({"bootstrapToken": {
            "apiServerEndpoint": server,
            "token": token.expose(),
            "caCertHashes": ca_cert_hashes,
        }}),
        KubeadmDiscovery::File { path, token } => {
            let mut discovery = json!({"file": {"kubeConfigPath": path}});
            if let Some(token) = token {
                discovery["tlsBootstrapToken"] = json!(token.expose());
            }
            discovery
        }
    };
    let mut extra: Vec<Value> = Vec::new();
    if !node.labels.is_empty() {
        extra.push(json!({"name": "node-labels", "value": label_list(node.labels)}));
    }
    let taints: Vec<Value> = (node.taints.iter())
        .map(|taint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect.name()}))
        .collect();
    let seconds = format!("{}s", node.timeout.as_secs());
    let configuration = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": discovery,
        "nodeRegistration": {
            "name": node.name,
            "criSocket": node.socket,
            "taints": taints,
            "kubeletExtraArgs": extra,
            "ignorePreflightErrors": node.ignore_preflight_errors,
        },
        "timeouts": {
            "discovery": seconds,
            "tlsBootstrap": seconds,
            "kubeletHealthCheck": seconds,
            "kubernetesAPICall": seconds,
        },
    });
    Secret::new(format!("{configuration:#}\n"))
}

/// Joins with a configuration file. `timeout` is the limit of each of the four kubeadm phases in [`join_configuration`], so the
/// deadline of the command is longer than the sum of these limits.
pub fn join(configuration: &Utf8Path, timeout: Duration) -> Cmd {
    Cmd::new(
        "kubeadm",
        ["join".to_owned(), format!("--config={configuration}")],
    )
    .deadline(timeout * 4 + Duration::from_secs(60))
}

/// Finds the cause of a failed `kubeadm join` in its output. `signed` is true for token discovery: kubeadm first verifies that
/// the cluster has signed its discovery data with the token. The token is therefore valid, and a later 401 response has another
/// cause.
pub fn fault(output: &str, signed: bool) -> &'static KnownFault {
    let rows = faults::of_join("kubeadm");
    let output = output.to_lowercase();
    // The lines before the last `error:` are progress messages.
    let output = &output[output.rfind("\nerror:").unwrap_or_default()..];
    let found = faults::find(rows, output);
    let blames_token =
        found.reason == "join-not-allowed" && !signed && output.contains("unauthorized");
    (rows.iter())
        .find(|fault| blames_token && fault.reason == "join-token-wrong")
        .unwrap_or(found)
}

/// The preflight check `SystemVerification` of kubeadm 1.32 and newer rejects kernels older than 4.19. Sources:
/// kubernetes/kubernetes#129462 and kubernetes/system-validators#48.
const KERNEL: (u64, (u64, u64)) = (32, (4, 19));

/// Returns the reason if this kubeadm version rejects this kernel. `None` if it accepts the kernel or if a version is invalid.
pub fn with_kernel(version: &str, kernel: &str) -> Option<String> {
    let ((_, minor), found) = (series(version)?, series(kernel)?);
    let (since, oldest) = KERNEL;
    (minor >= since && found < oldest).then(|| {
        let (major, second) = oldest;
        format!(
            "kubeadm 1.{since} or newer requires kernel {major}.{second} or newer, but the kernel of this machine is {kernel}"
        )
    })
}

/// Reverts the changes of `kubeadm join` on this machine. The node object remains in the cluster.
pub fn reset(socket: &str) -> Cmd {
    let socket = format!("--cri-socket={socket}");
    Cmd::new("kubeadm", ["reset", "--force", &socket]).deadline(Duration::from_secs(300))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_in_kubeadm_format() {
        let labels = Labels::from([
            ("nvidia.com/gpu.present".to_owned(), "true".to_owned()),
            ("team".to_owned(), "research".to_owned()),
        ]);
        let taints = ["nvidia.com/gpu=present:NoSchedule"
            .parse()
            .expect("a taint")];
        let node = Registration {
            name: "gpu-1",
            socket: "unix:///run/containerd/containerd.sock",
            labels: &labels,
            taints: &taints,
            ignore_preflight_errors: &["Swap".to_owned()],
            timeout: Duration::from_secs(120),
        };
        let token = Secret::new("abcdef.0123456789abcdef");
        let path = Utf8PathBuf::from("/etc/gpu-bootstrap/cluster.conf");
        let by_token = KubeadmDiscovery::Token {
            server: "10.0.0.1:6443",
            token: &token,
            ca_cert_hashes: &[format!("sha256:{}", "ab".repeat(32))],
        };
        insta::assert_snapshot!(join_configuration(&by_token, &node).expose());
        let by_file = KubeadmDiscovery::File {
            path: &path,
            token: Some(&token),
        };
        insta::assert_snapshot!(join_configuration(&by_file, &node).expose());
    }

    #[test]
    fn unauthorized_blames_the_token_only_without_signature() {
        for (said, signed, reason) in rows! {
            "error: failed to get config map: Unauthorized", false, "join-token-wrong";
            "error: failed to get config map: Unauthorized", true, "join-not-allowed";
            "error: x is forbidden", false, "join-not-allowed";
            "error: [ERROR CRI]: the socket is forbidden", true, "join-preflight";
            "error: failed to verify JWS signature: Unauthorized", true, "join-token-wrong";
        } {
            assert_eq!(fault(said, signed).reason, reason, "{said}");
        }
    }

    #[test]
    fn old_kernel_is_rejected() {
        for (kubeadm, kernel, is_rejected) in [
            ("1.32", "4.18.0-553.el8_10.x86_64", true),
            ("1.31", "4.18.0-553.el8_10.x86_64", false),
            ("1.37", "4.19.0-27-amd64", false),
            ("1.37", "5.14.0-570.12.1.el9_6.x86_64", false),
        ] {
            let why = with_kernel(kubeadm, kernel);
            assert_eq!(why.is_some(), is_rejected, "{kubeadm} {kernel}");
        }
    }
}
