//! Join methods with their settings, and the registration of the node.

use std::time::Duration;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    model::{
        kubernetes::{Labels, NodeName, Taint},
        packages::PackageSpec,
        token::TokenSource,
    },
    runtimes::choice::Cluster,
};

use super::{Joining, Leaving, MethodRow, agents, command, kubeadm, managed, nodeadm};

/// Names of the join methods in the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JoinKind {
    /// The machine does not join a cluster.
    #[default]
    None,
    /// `kubeadm join`.
    Kubeadm,
    /// The k3s agent.
    K3s,
    /// The RKE2 agent.
    Rke2,
    /// EKS: `nodeadm`, which is part of Amazon images.
    Eks,
    /// Run a command of the administrator.
    Command,
    /// The machine is already a node, because its provider has joined it.
    Managed,
}

impl JoinKind {
    /// The properties of the join method. `None` if the machine does not join a cluster.
    pub const fn row(self) -> Option<&'static MethodRow> {
        Some(match self {
            Self::None => return None,
            Self::Kubeadm => &kubeadm::ROW,
            Self::K3s => &agents::OF_K3S,
            Self::Rke2 => &agents::OF_RKE2,
            Self::Eks => &nodeadm::ROW,
            Self::Command => &command::ROW,
            Self::Managed => &managed::ROW,
        })
    }

    /// The container runtime that its kubelet uses.
    pub fn runtimes(self) -> Cluster {
        self.row().map_or(Cluster::None, |row| row.runtimes)
    }
}

/// The cluster of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterSpec {
    /// The join method.
    pub method: JoinMethod,
    /// The registration of the node.
    pub node: NodeSpec,
    /// The Kubernetes packages.
    pub packages: Vec<PackageSpec>,
    /// A kubeconfig that may change nodes.
    pub access: Option<Utf8PathBuf>,
    /// Time limit in seconds of each part of the join: discovery, the certificate request, the start of the kubelet, a
    /// command, and the wait until the node is Ready.
    pub timeout_seconds: u64,
}

/// A join method with its settings. It contains the locations of secrets, but no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum JoinMethod {
    /// `kubeadm join`.
    Kubeadm {
        /// The discovery method.
        discovery: Discovery,
        /// The URL of the container runtime socket.
        socket: String,
        /// Preflight checks whose errors are treated as warnings.
        ignore_preflight_errors: Vec<String>,
    },
    /// The k3s agent.
    K3s {
        /// The server URL.
        server: String,
        /// The location of the token.
        token_source: TokenSource,
    },
    /// The RKE2 agent.
    Rke2 {
        /// The server URL.
        server: String,
        /// The location of the token.
        token_source: TokenSource,
    },
    /// `nodeadm`.
    Eks,
    /// Run a command of the administrator.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists after the machine has joined.
        joined_file: Utf8PathBuf,
        /// Program and arguments of the command that removes the machine from its cluster. May be empty.
        #[serde(default)]
        leave_command: Vec<String>,
    },
    /// The provider joins the machine.
    Managed,
}

/// How a machine leaves a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Leave {
    /// `kubeadm reset`.
    Kubeadm {
        /// The URL of the container runtime socket.
        socket: String,
        /// Directories that did not exist before. They are removed if they are empty.
        created_directories: Vec<Utf8PathBuf>,
    },
    /// Stop the k3s agent.
    K3s,
    /// Stop the RKE2 agent.
    Rke2,
    /// Prevent `nodeadm` of EKS from joining, and stop its kubelet.
    Nodeadm,
    /// Run a command of the administrator.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists while the machine is a node.
        joined_file: Utf8PathBuf,
        /// Time limit of the command, in seconds.
        timeout_seconds: u64,
    },
    /// This join method cannot be undone.
    Never {
        /// Its name in the settings.
        method: String,
    },
}

impl Leave {
    pub fn implementation(&self) -> Box<dyn Leaving + '_> {
        match self {
            Self::Kubeadm {
                socket,
                created_directories: directories,
            } => Box::new(kubeadm::Reset {
                socket,
                directories,
            }),
            Self::K3s => Box::new(agents::StopAgent(&agents::K3S)),
            Self::Rke2 => Box::new(agents::StopAgent(&agents::RKE2)),
            Self::Nodeadm => Box::new(nodeadm::HoldBack),
            Self::Command {
                command,
                environment_file,
                joined_file,
                timeout_seconds,
            } => Box::new(command::LeaveByCommand {
                command,
                environment_file: environment_file.as_deref(),
                joined_file,
                timeout: Duration::from_secs(*timeout_seconds),
            }),
            Self::Never { method } => Box::new(managed::Never { method }),
        }
    }
}

/// The discovery method of kubeadm, with its trust anchor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Discovery {
    /// By a bootstrap token.
    Token {
        /// `HOST:PORT` of the API server.
        server: String,
        /// The location of the token.
        token_source: TokenSource,
        /// Digests of the public key of the CA certificate. One of them must match.
        ca_cert_hashes: Vec<String>,
    },
    /// By a kubeconfig.
    File {
        /// The kubeconfig.
        path: Utf8PathBuf,
        /// The location of the token for the first certificate request, if the kubeconfig has no credentials.
        token_source: Option<TokenSource>,
    },
}

/// The registration of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeSpec {
    /// The node name. `None` means the host name.
    pub name: Option<NodeName>,
    /// The configured labels.
    pub labels: Labels,
    /// Whether the node has labels for its GPUs.
    pub gpu_labels: bool,
    /// Permanent taints.
    pub taints: Vec<Taint>,
    /// Taints that are removed when the node is Ready and validated.
    #[serde(default)]
    pub startup_taints: Vec<Taint>,
}

/// The format of a secret file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// A token.
    Token,
    /// `NAME=VALUE` lines.
    Environment,
    /// A kubeconfig.
    Kubeconfig,
}

impl JoinMethod {
    pub fn implementation(&self) -> Box<dyn Joining + '_> {
        match self {
            Self::Kubeadm {
                discovery,
                socket,
                ignore_preflight_errors: ignored,
            } => Box::new(kubeadm::ByKubeadm {
                discovery,
                socket,
                ignored,
            }),
            Self::K3s {
                server,
                token_source,
            } => Box::new(agents::ByAgent {
                agent: &agents::K3S,
                server,
                token_source,
                leave: Leave::K3s,
            }),
            Self::Rke2 {
                server,
                token_source,
            } => Box::new(agents::ByAgent {
                agent: &agents::RKE2,
                server,
                token_source,
                leave: Leave::Rke2,
            }),
            Self::Eks => Box::new(nodeadm::ByNodeadm),
            Self::Command {
                command,
                environment_file,
                joined_file,
                leave_command,
            } => Box::new(command::ByCommand {
                command,
                environment_file: environment_file.as_deref(),
                joined_file,
                leave_command,
            }),
            Self::Managed => Box::new(managed::Managed),
        }
    }

    /// Its name in the settings.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kubeadm { .. } => "kubeadm",
            Self::K3s { .. } => "k3s",
            Self::Rke2 { .. } => "rke2",
            Self::Eks => "eks",
            Self::Command { .. } => "command",
            Self::Managed => "managed",
        }
    }

    /// The location of its token.
    pub const fn token_source(&self) -> Option<&TokenSource> {
        match self {
            Self::Kubeadm { discovery, .. } => match discovery {
                Discovery::Token { token_source, .. } => Some(token_source),
                Discovery::File { token_source, .. } => token_source.as_ref(),
            },
            Self::K3s { token_source, .. } | Self::Rke2 { token_source, .. } => Some(token_source),
            Self::Eks | Self::Command { .. } | Self::Managed => None,
        }
    }

    /// A mutable reference to the location of its token.
    pub const fn token_source_mut(&mut self) -> Option<&mut TokenSource> {
        match self {
            Self::Kubeadm { discovery, .. } => match discovery {
                Discovery::Token { token_source, .. } => Some(token_source),
                Discovery::File { token_source, .. } => token_source.as_mut(),
            },
            Self::K3s { token_source, .. } | Self::Rke2 { token_source, .. } => Some(token_source),
            Self::Eks | Self::Command { .. } | Self::Managed => None,
        }
    }

    /// The secret files that the join method reads, with their formats.
    pub fn secret_files(&self) -> Vec<(&Utf8PathBuf, SecretKind)> {
        use SecretKind::{Environment, Kubeconfig, Token};
        let mut files = Vec::new();
        match self {
            Self::Kubeadm {
                discovery: Discovery::File { path, .. },
                ..
            } => files.push((path, Kubeconfig)),
            Self::Command {
                environment_file: Some(path),
                ..
            } => files.push((path, Environment)),
            _ => {}
        }
        if let Some(TokenSource::File(path)) = self.token_source() {
            files.push((path, Token));
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{joins::agents::K3S, tools::kubernetes::membership::Membership};

    #[test]
    fn node_of_another_join_method_is_detected() {
        const SERVER: &str = "https://10.0.0.1:6443";
        let k3s = JoinMethod::K3s {
            server: SERVER.to_owned(),
            token_source: TokenSource::File("/t".into()),
        };
        for (kubeconfig, server, method, why) in rows! {
            K3S.kubeconfig, None, &k3s, None;
            K3S.kubeconfig, Some(SERVER), &k3s, None;
            K3S.kubeconfig, Some("https://10.9.9.9:6443"), &k3s,
                Some("it joined https://10.9.9.9:6443");
            kubeadm::KUBELET_CONF, None, &k3s, Some("the k3s agent");
            nodeadm::KUBECONFIG, None, &JoinMethod::Eks, None;
            kubeadm::KUBELET_CONF, None, &JoinMethod::Eks, Some("nodeadm did not join the machine");
        } {
            let membership = Membership {
                kubeconfig: kubeconfig.into(),
                server: SERVER.to_owned(),
                ca_pin: None,
            };
            let config = server.map(|server| format!("{{\"server\": \"{server}\"}}"));
            let found = method
                .implementation()
                .another(&membership, config.as_deref(), None);
            assert_eq!(found.is_some(), why.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
    }
}
