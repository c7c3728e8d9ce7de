//! `kubeadm join` and `kubeadm reset`.
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
};

/// The kubeconfig of the kubelet. It exists once the machine has joined.
pub const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";

/// The kubeconfig with the bootstrap token. It exists only while a machine joins, or if that was interrupted.
pub const BOOTSTRAP_CONF: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The cluster's certificate authority, which kubeadm writes when it has found the cluster.
pub const CA: &str = "/etc/kubernetes/pki/ca.crt";

/// What only a control plane has: files of static pods, the key of the certificate authority, the data of etcd.
pub const OF_CONTROL_PLANES: [&str; 3] = [
    "/etc/kubernetes/manifests",
    "/etc/kubernetes/pki/ca.key",
    "/var/lib/etcd/member",
];

/// The unit of the kubelet, in the community's packages.
pub const UNIT: &str = "kubelet.service";

/// How kubeadm finds the cluster, with the secret itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Found<'a> {
    /// By a bootstrap token.
    Token {
        /// `HOST:PORT` of the API server.
        server: &'a str,
        token: &'a Secret,
        /// Digests of the certificate authority's public key.
        ca_cert_hashes: &'a [String],
    },
    /// By a kubeconfig.
    File {
        path: &'a Utf8PathBuf,
        /// The token for the first certificate.
        token: Option<&'a Secret>,
    },
}

/// What a machine is registered with.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration<'a> {
    /// The node's name.
    pub name: &'a str,
    /// The address of the container runtime's socket.
    pub socket: &'a str,
    pub labels: &'a Labels,
    pub taints: &'a [Taint],
    /// Preflight checks whose errors count as warnings.
    pub ignore_preflight_errors: &'a [String],
    /// The time for each part of the join.
    pub timeout: Duration,
}

/// The configuration of `kubeadm join`: JSON, which is YAML, too. It contains the token.
#[must_use]
pub fn join_configuration(found: &Found<'_>, node: &Registration<'_>) -> Secret {
    let discovery = match found {
        Found::Token {
            server,
            token,
            ca_cert_hashes,
        } => json!({"bootstrapToken": {
            "apiServerEndpoint": server,
            "token": token.expose(),
            "caCertHashes": ca_cert_hashes,
        }}),
        Found::File { path, token } => {
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

/// Labels as the kubelet's `--node-labels` has them.
#[must_use]
pub fn label_list(labels: &Labels) -> String {
    let all: Vec<String> = (labels.iter())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(",")
}

/// Joins with a configuration file. It ends by itself: `timeout` is the time for each of its parts.
#[must_use]
pub fn join(configuration: &Utf8Path, timeout: Duration) -> Cmd {
    Cmd::new(
        "kubeadm",
        ["join".to_owned(), format!("--config={configuration}")],
    )
    .deadline(timeout * 4 + Duration::from_secs(60))
}

/// Undoes what `kubeadm join` has done to the machine.
#[must_use]
pub fn reset(socket: &str) -> Cmd {
    let socket = format!("--cri-socket={socket}");
    Cmd::new("kubeadm", ["reset", "--force", &socket]).deadline(Duration::from_secs(300))
}

/// What is wrong with text that is no bootstrap token.
pub const NO_TOKEN: &str = "it has no bootstrap token, which is 6 and 16 small letters and digits with a full stop between them";

/// Whether text is a bootstrap token. Source: Kubernetes, "Authenticating with Bootstrap Tokens", token format.
#[must_use]
pub fn is_token(text: &str) -> bool {
    let small = |part: &str, length: usize| {
        part.len() == length && (part.bytes()).all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
    };
    (text.split_once('.')).is_some_and(|(id, secret)| small(id, 6) && small(secret, 16))
}

/// Why a machine did not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The cluster has no token with this id. It deletes expired ones, so they look the same.
    TokenUnknown,
    /// The cluster has a token with this id, and another secret.
    TokenWrong,
    /// The certificate authority is another one.
    CaWrong,
    /// The API server is not reached.
    Unreachable,
    /// The API server answers that it cannot serve.
    Unavailable,
    /// The API server does not let the machine read what a join needs. One that has just started answers so until it
    /// has read its tokens and roles, and a new control plane until `kubeadm init` has ended.
    NotAllowed,
    /// A certificate is not valid at the time that this machine's clock shows.
    Clock,
    /// The kubelet does not become healthy.
    Kubelet,
    /// The cluster does not sign the kubelet's certificate.
    NoCertificate,
    /// A preflight check fails.
    Preflight,
    /// Anything else.
    Other,
}

impl Fault {
    /// The fault that kubeadm's output tells. The order counts: a wrong clock is told by messages about certificates,
    /// and all of them can stand behind one about the time that is over.
    ///
    /// `signed` tells that the cluster proves by a signature that it knows the token, before the token is used: then an
    /// answer of 401 does not mean that the token is wrong.
    #[must_use]
    pub fn of(output: &str, signed: bool) -> Self {
        let text = output.to_ascii_lowercase();
        // Before it, kubeadm tells what it waits for.
        let text = match text.rfind("\nerror:") {
            Some(at) => &text[at..],
            None => &text,
        };
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&["certificate has expired or is not yet valid"]) {
            Self::Clock
        } else if says(&["could not find a jws signature"]) {
            Self::TokenUnknown
        } else if says(&["failed to verify jws signature"]) {
            Self::TokenWrong
        } else if says(&["are pinned", "certificate signed by unknown authority"]) {
            Self::CaWrong
        } else if says(&["[error "]) {
            Self::Preflight
        } else if says(&[
            "127.0.0.1:10248",
            "kubelet is not healthy",
            "the kubelet is not running",
        ]) {
            Self::Kubelet
        } else if says(&["unauthorized"]) && !signed {
            Self::TokenWrong
        } else if says(&["unauthorized", "is forbidden"]) {
            Self::NotAllowed
        } else if says(&[
            "currently unable to handle the request",
            "service unavailable",
            "too many requests",
            "server is not ready",
        ]) {
            Self::Unavailable
        } else if says(&[
            "connection refused",
            "no route to host",
            "network is unreachable",
            "i/o timeout",
            "no such host",
            "connection reset",
            "tls handshake timeout",
            "unexpected eof",
        ]) {
            Self::Unreachable
        } else if says(&["kubelet-client-current.pem", "tls bootstrap"]) {
            Self::NoCertificate
        } else if says(&["context deadline exceeded", "client.timeout exceeded"]) {
            Self::Unreachable
        } else {
            Self::Other
        }
    }

    /// Whether it goes away without help.
    #[must_use]
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::Unavailable | Self::NotAllowed | Self::Clock
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_that_of_kubeadm() {
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
        let by_token = Found::Token {
            server: "10.0.0.1:6443",
            token: &token,
            ca_cert_hashes: &[format!("sha256:{}", "ab".repeat(32))],
        };
        insta::assert_snapshot!(join_configuration(&by_token, &node).expose());
        let by_file = Found::File {
            path: &path,
            token: Some(&token),
        };
        insta::assert_snapshot!(join_configuration(&by_file, &node).expose());
    }

    #[test]
    fn an_answer_of_401_blames_the_token_only_if_nothing_has_proven_it() {
        let said = "error: failed to get config map: Unauthorized";
        assert_eq!(Fault::of(said, false), Fault::TokenWrong);
        assert_eq!(Fault::of(said, true), Fault::NotAllowed);
        let preflight = "error: [ERROR CRI]: the socket is forbidden";
        assert_eq!(Fault::of(preflight, true), Fault::Preflight);
    }

    #[test]
    fn a_token_has_two_parts() {
        assert!(is_token("abcdef.0123456789abcdef"));
        for bad in [
            "",
            "abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef\n",
        ] {
            assert!(!is_token(bad), "{bad:?}");
        }
    }
}
