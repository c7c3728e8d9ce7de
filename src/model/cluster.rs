//! How a machine joins a cluster, and the labels and taints of its node.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{
    kubernetes::{Labels, MigStrategy, NodeName, Taint},
    packages::PackageWish,
    token::TokenSource,
};

/// Join methods, with their names in the settings.
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
    /// EKS: `nodeadm`, which is part of the Amazon EKS images.
    Eks,
    /// A command from the settings.
    Command,
    /// The machine is already a node, because its provider joined it.
    Managed,
}

/// The cluster that the machine belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterWish {
    /// The join method.
    pub method: JoinMethod,
    /// Name, labels and taints of the node.
    pub node: NodeWish,
    /// Packages that joining needs.
    pub packages: Vec<PackageWish>,
    /// A kubeconfig with permission to change nodes.
    pub access: Option<Utf8PathBuf>,
    /// Timeout of each phase of joining in seconds: find the cluster, get a certificate, start the kubelet, run a command,
    /// become Ready.
    pub timeout_seconds: u64,
}

/// The join method with its parameters. Contains no secrets, only the sources of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum JoinMethod {
    /// `kubeadm join`.
    Kubeadm {
        /// How the cluster is found.
        discovery: Discovery,
        /// The CRI socket.
        socket: String,
        /// Preflight checks whose errors count as warnings.
        ignore_preflight_errors: Vec<String>,
    },
    /// The k3s agent.
    K3s {
        /// The URL of the server.
        server: String,
        /// The source of the token.
        token_source: TokenSource,
    },
    /// The RKE2 agent.
    Rke2 {
        /// The URL of the server.
        server: String,
        /// The source of the token.
        token_source: TokenSource,
    },
    /// `nodeadm`.
    Eks,
    /// A command from the settings.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// A file with environment variables for the command.
        environment_file: Option<Utf8PathBuf>,
        /// A file that exists after the machine has joined.
        joined_file: Utf8PathBuf,
        /// Program and arguments that remove the machine from its cluster. Empty if there is no such command.
        #[serde(default)]
        leave_command: Vec<String>,
    },
    /// The provider joined the machine.
    Managed,
}

/// How kubeadm discovers the cluster and verifies its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Discovery {
    /// Bootstrap token discovery.
    Token {
        /// `HOST:PORT` of the API server.
        server: String,
        /// The source of the token.
        token_source: TokenSource,
        /// Public key hashes of the cluster CA. One of them must match.
        ca_cert_hashes: Vec<String>,
    },
    /// Kubeconfig file discovery.
    File {
        /// The kubeconfig.
        path: Utf8PathBuf,
        /// The source of the token for the kubelet's first certificate, if the kubeconfig has no credentials.
        token_source: Option<TokenSource>,
    },
}

/// Name, labels and taints of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeWish {
    /// The node name. `None` means the host name.
    pub name: Option<NodeName>,
    /// Labels from the settings.
    pub labels: Labels,
    /// Whether to add labels that describe the GPUs.
    pub gpu_labels: bool,
    /// How to label MIG devices.
    #[serde(default)]
    pub mig_strategy: MigStrategy,
    /// Permanent taints.
    pub taints: Vec<Taint>,
    /// Taints that are removed when the node is Ready and validated.
    #[serde(default)]
    pub startup_taints: Vec<Taint>,
}

/// The format of a file with secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// A single token.
    Token,
    /// `NAME=VALUE` lines.
    Environment,
    /// A kubeconfig.
    Kubeconfig,
}

impl JoinMethod {
    /// Returns the name in the settings.
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

    /// Returns the source of the token, if the method uses one.
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

    /// Mutable variant of [`token_source`](Self::token_source).
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

    /// Returns the files with secrets that the method reads, with their formats.
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
