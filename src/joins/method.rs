//! How a machine becomes a node of a cluster, and what the node is registered with.

use std::time::Duration;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    model::{
        kubernetes::{Labels, MigStrategy, NodeName, Taint},
        packages::PackageWish,
        token::TokenSource,
    },
    runtimes::choice::Cluster,
};

use super::{Leaving, Way, WayRow, agents, command, kubeadm, managed, nodeadm};

/// Ways to join a cluster, as settings name them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JoinKind {
    /// The machine joins no cluster.
    #[default]
    None,
    /// `kubeadm join`.
    Kubeadm,
    /// The agent of k3s.
    K3s,
    /// The agent of RKE2.
    Rke2,
    /// EKS: `nodeadm`, which Amazon's images bring.
    Eks,
    /// A command of the administrator's.
    Command,
    /// The machine is a node already: its provider has joined it.
    Managed,
}

impl JoinKind {
    /// Its row; `None` if the machine joins no cluster.
    #[must_use]
    pub const fn row(self) -> Option<&'static WayRow> {
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
    #[must_use]
    pub fn runtimes(self) -> Cluster {
        self.row().map_or(Cluster::None, |row| row.runtimes)
    }
}

/// The cluster that the machine belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterWish {
    /// How it joins.
    pub method: JoinMethod,
    /// What the node is registered with.
    pub node: NodeWish,
    /// What is installed for it.
    pub packages: Vec<PackageWish>,
    /// A kubeconfig that may change nodes.
    pub access: Option<Utf8PathBuf>,
    /// Seconds that each part of joining may take: to find the cluster, to get a certificate, to start the kubelet, to run
    /// a command, to become Ready.
    pub timeout_seconds: u64,
}

/// How a machine joins, with what that needs. No secret is in here: only places that have one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum JoinMethod {
    /// `kubeadm join`.
    Kubeadm {
        /// How the cluster is found.
        discovery: Discovery,
        /// The address of the container runtime's socket.
        socket: String,
        /// Preflight checks whose errors count as warnings.
        ignore_preflight_errors: Vec<String>,
    },
    /// The agent of k3s.
    K3s {
        /// The address of the server.
        server: String,
        /// Where the token is.
        token_source: TokenSource,
    },
    /// The agent of RKE2.
    Rke2 {
        /// The address of the server.
        server: String,
        /// Where the token is.
        token_source: TokenSource,
    },
    /// `nodeadm`.
    Eks,
    /// A command of the administrator's.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists once the machine has joined.
        joined_file: Utf8PathBuf,
        /// Program and arguments that take the machine out of its cluster again; empty if nothing does.
        #[serde(default)]
        leave_command: Vec<String>,
    },
    /// The provider has joined it.
    Managed,
}

/// How a machine leaves a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Leave {
    /// `kubeadm reset`.
    Kubeadm {
        /// The address of the container runtime's socket.
        socket: String,
        /// Folders that were not there before; removed if they are empty.
        created_folders: Vec<Utf8PathBuf>,
    },
    /// The agent of k3s stops.
    K3s,
    /// The agent of RKE2 stops.
    Rke2,
    /// EKS' `nodeadm` may not join any more, and its kubelet stops.
    Nodeadm,
    /// A command of the administrator's.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists while the machine is a node.
        joined_file: Utf8PathBuf,
        /// Seconds for the command.
        timeout_seconds: u64,
    },
    /// Nothing undoes this way to join.
    Never {
        /// Its name in the settings.
        method: String,
    },
}

impl Leave {
    /// How it leaves.
    #[must_use]
    pub fn way(&self) -> Box<dyn Leaving + '_> {
        match self {
            Self::Kubeadm {
                socket,
                created_folders: folders,
            } => Box::new(kubeadm::Reset { socket, folders }),
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

/// How kubeadm finds the cluster, and trusts what it finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Discovery {
    /// By a bootstrap token.
    Token {
        /// `HOST:PORT` of the API server.
        server: String,
        /// Where the token is.
        token_source: TokenSource,
        /// Digests of the certificate authority's public key, one of which must fit.
        ca_cert_hashes: Vec<String>,
    },
    /// By a kubeconfig.
    File {
        /// The kubeconfig.
        path: Utf8PathBuf,
        /// Where the token for the kubelet's first certificate is, if the kubeconfig has no credentials.
        token_source: Option<TokenSource>,
    },
}

/// What a node is registered with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeWish {
    /// Its name; `None` is the machine's host name.
    pub name: Option<NodeName>,
    /// Labels that the settings name.
    pub labels: Labels,
    /// Whether it is labelled with what its GPUs are.
    pub gpu_labels: bool,
    /// How MIG devices are labelled.
    #[serde(default)]
    pub mig_strategy: MigStrategy,
    /// Taints that stay.
    pub taints: Vec<Taint>,
    /// Taints that go when the node is Ready and proven.
    #[serde(default)]
    pub startup_taints: Vec<Taint>,
}

/// What stands in a file with secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// A token alone.
    Token,
    /// `NAME=VALUE` lines.
    Environment,
    /// A kubeconfig.
    Kubeconfig,
}

impl JoinMethod {
    /// What the program has to know about it.
    #[must_use]
    pub fn way(&self) -> Box<dyn Way + '_> {
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
    #[must_use]
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

    /// Where its token is.
    #[must_use]
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

    /// The same, to be changed.
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

    /// The files with secrets that it reads, and what stands in each.
    #[must_use]
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
    fn each_method_knows_a_node_that_another_method_has_made() {
        const SERVER: &str = "https://10.0.0.1:6443";
        let k3s = JoinMethod::K3s {
            server: SERVER.to_owned(),
            token_source: TokenSource::File("/t".into()),
        };
        for (kubeconfig, server, method, why) in rows! {
            K3S.kubeconfig, None, &k3s, None;
            K3S.kubeconfig, Some(SERVER), &k3s, None;
            K3S.kubeconfig, Some("https://10.9.9.9:6443"), &k3s,
                Some("it joined by https://10.9.9.9:6443");
            kubeadm::KUBELET_CONF, None, &k3s, Some("agent of k3s");
            nodeadm::KUBECONFIG, None, &JoinMethod::Eks, None;
            kubeadm::KUBELET_CONF, None, &JoinMethod::Eks, Some("nodeadm did not join it");
        } {
            let membership = Membership {
                kubeconfig: kubeconfig.into(),
                server: SERVER.to_owned(),
                ca_pin: None,
            };
            let config = server.map(|server| format!("{{\"server\": \"{server}\"}}"));
            let found = method.way().another(&membership, config.as_deref(), None);
            assert_eq!(found.is_some(), why.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
    }
}
