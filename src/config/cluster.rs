//! The cluster that the machine joins. Validates the settings as a whole.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use camino::Utf8PathBuf;
use serde::Deserialize;

use crate::{
    config::{
        desired::{
            ClusterWish, Discovery, JoinKind, JoinMethod, Manager, NodeWish, PackageWish,
            RuntimeKind,
        },
        error::ResolveError,
        file::ClusterConfig,
        layers::Layers,
        profile::RepositoryRow,
        values::{AbsolutePath, Fingerprint, TimeLimit},
    },
    model::{
        kubernetes::{KubernetesVersion, NodeName, OF_READINESS, Taint},
        packages::Signed,
        text::built_in,
        token::TokenSource,
    },
    tools::kubernetes::skew,
};

/// The name of the Kubernetes package repository.
pub(super) const REPOSITORY: &str = "kubernetes";

/// The default port of an API server.
const API_PORT: u16 = 6443;

/// The default taint of a GPU node, which keeps pods without GPU requests away. GKE adds it to each GPU node. Source:
/// GKE, "About GPUs".
const GPU_TAINT: &str = "nvidia.com/gpu=present:NoSchedule";

/// The startup taint. Because of its prefix, cluster-autoscaler 1.29 and later knows that the node is starting, not
/// broken. Source: kubernetes/autoscaler, `cluster-autoscaler/utils/taints/taints.go`. A node cannot change its own
/// taints, so the taint is only set with `cluster.kubeconfig-file`: a taint that is never removed is worse than none.
const STARTUP_TAINT: &str =
    "startup-taint.cluster-autoscaler.kubernetes.io/gpu-bootstrap=validating:NoSchedule";

/// The content of `kubernetes.toml`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CommunityPackages {
    fingerprints: Vec<Fingerprint>,
    packages: Vec<String>,
    /// The oldest minor version.
    oldest: u32,
    source: String,
    repository: BTreeMap<Manager, PackagesRow>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PackagesRow {
    url: String,
    key_url: String,
    #[serde(default)]
    suites: Vec<String>,
}

static KUBERNETES: LazyLock<CommunityPackages> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "a test parses the built-in file")]
    built_in("kubernetes").expect("kubernetes.toml")
});

/// Returns the repository for this Kubernetes version, as a profile entry.
pub(super) fn repository(
    config: &ClusterConfig,
    manager: Manager,
    release: &str,
) -> Option<RepositoryRow> {
    let version = kubeadm_version(config)?;
    let row = KUBERNETES.repository.get(&manager)?;
    let fill = |text: &str| text.replace("{series}", &version.series());
    Some(RepositoryRow {
        name: REPOSITORY.to_owned(),
        releases: vec![release.to_owned()],
        url: fill(&row.url),
        suites: row.suites.clone(),
        components: Vec::new(),
        key_url: Some(fill(&row.key_url)),
        key_files: Vec::new(),
        fingerprints: KUBERNETES.fingerprints.clone(),
        priority: None,
        signed: Signed::default(),
        refused: None,
        citation: KUBERNETES.source.clone(),
    })
}

fn kubeadm_version(config: &ClusterConfig) -> Option<&KubernetesVersion> {
    config
        .version
        .as_ref()
        .filter(|_| config.join == Some(JoinKind::Kubeadm))
}

/// Returns the packages of a Kubernetes version.
fn packages(version: &KubernetesVersion) -> Vec<PackageWish> {
    let pattern = match version.patch {
        Some(_) => format!("{version}-*"),
        None => format!("{version}.*"),
    };
    let wish = |name: &String| PackageWish {
        name: name.clone(),
        version: Some(pattern.clone()),
    };
    KUBERNETES.packages.iter().map(wish).collect()
}

/// The inputs of resolving `[cluster]`.
pub(super) struct ClusterInputs<'a> {
    pub config: &'a ClusterConfig,
    pub layers: &'a Layers,
    /// The configured container runtimes.
    pub runtimes: &'a [RuntimeKind],
    /// Whether the machine has a GPU for containers.
    pub has_gpu: bool,
    /// The default boot kernel, or the kernel series of the release if it is unknown.
    pub kernel: Option<String>,
    /// The machine boots with cgroup v1.
    pub cgroup_v1: bool,
    /// The errors found so far.
    pub wrong: RefCell<Vec<ResolveError>>,
}

impl ClusterInputs<'_> {
    /// Resolves `[cluster]`. `None` if the machine joins no cluster.
    ///
    /// # Errors
    /// All missing or contradictory settings.
    pub(super) fn resolve(&self) -> Result<Option<ClusterWish>, ResolveError> {
        let kind = self.config.join.unwrap_or_default();
        self.only_what_counts(kind);
        let wish = match kind {
            JoinKind::None => None,
            kind => self.wish(kind),
        };
        let wrong = self.wrong.take();
        if wrong.is_empty() {
            return Ok(wish);
        }
        Err(ResolveError::all(wrong))
    }

    /// Returns the cluster settings. `None` if there are errors.
    fn wish(&self, kind: JoinKind) -> Option<ClusterWish> {
        let config = self.config;
        let method = match kind {
            JoinKind::None => None,
            JoinKind::Kubeadm => self.kubeadm(),
            JoinKind::K3s => {
                self.agent("k3s", API_PORT)
                    .map(|(server, token_source)| JoinMethod::K3s {
                        server,
                        token_source,
                    })
            }
            JoinKind::Rke2 => {
                self.agent("rke2", 9345)
                    .map(|(server, token_source)| JoinMethod::Rke2 {
                        server,
                        token_source,
                    })
            }
            JoinKind::Eks => self.eks(),
            JoinKind::Command => self.command(),
            JoinKind::Managed => Some(JoinMethod::Managed),
        };
        let packages = match kubeadm_version(config) {
            Some(version) => packages(version),
            None => Vec::new(),
        };
        let node = self.node(kind);
        Some(ClusterWish {
            method: method?,
            node: node?,
            packages,
            access: path(&config.kubeconfig_file),
            timeout_seconds: config.timeout.map_or(300, TimeLimit::seconds),
        })
    }

    /// A setting of a different join method is reported as a mistake.
    fn only_what_counts(&self, kind: JoinKind) {
        use JoinKind::{Command, K3s, Kubeadm, Rke2};
        let config = self.config;
        let of = |kinds: &'static [JoinKind], is_set: bool| is_set && !kinds.contains(&kind);
        for (key, strange) in [
            ("version", of(&[Kubeadm], config.version.is_some())),
            ("server", of(&[Kubeadm, K3s, Rke2], config.server.is_some())),
            ("token", of(&[Kubeadm, K3s, Rke2], config.token.is_some())),
            (
                "ca-cert-hashes",
                of(&[Kubeadm], config.ca_cert_hashes.is_some()),
            ),
            (
                "discovery-file",
                of(&[Kubeadm], config.discovery_file.is_some()),
            ),
            (
                "ignore-preflight-errors",
                of(&[Kubeadm], config.ignore_preflight_errors.is_some()),
            ),
            ("command", of(&[Command], config.command.is_some())),
            (
                "environment-file",
                of(&[Command], config.environment_file.is_some()),
            ),
            ("joined-file", of(&[Command], config.joined_file.is_some())),
            (
                "leave-command",
                of(&[Command], config.leave_command.is_some()),
            ),
        ] {
            if strange {
                self.wrong::<()>(
                    &format!("cluster.{key}"),
                    "this join method does not use it",
                    "set `cluster.join` to the intended method, or remove the key",
                );
            }
        }
    }

    /// Records an error of a key, so it has no value.
    fn wrong<T>(&self, key: &str, why: &str, hint: &str) -> Option<T> {
        let error = (self.layers).wrong(key, why.to_owned(), Some(hint.to_owned()));
        self.wrong.borrow_mut().push(error.into());
        None
    }

    fn needed<'v, T>(&self, key: &str, value: &'v Option<T>, hint: &str) -> Option<&'v T> {
        match value {
            Some(value) => Some(value),
            // A missing key has no location.
            None => self.wrong(
                "cluster.join",
                &format!("`cluster.{key}` is also required"),
                hint,
            ),
        }
    }

    fn kubeadm(&self) -> Option<JoinMethod> {
        let config = self.config;
        let version = self.needed(
            "version",
            &config.version,
            "set it to the Kubernetes version of the cluster, such as \"1.36\" (see `kubectl version`)",
        );
        let oldest = KUBERNETES.oldest;
        if (config.version.as_ref()).is_some_and(|version| version.minor < oldest) {
            self.wrong::<()>(
                "cluster.version",
                &format!(
                    "1.{oldest} is the oldest version of Kubernetes that is installed; older ones are end-of-life, and their \
                     repositories may keep an expired key"
                ),
                &format!("use a cluster of 1.{oldest} or newer, or `cluster.join = \"command\"`"),
            );
        }
        let mut wanted = RuntimeKind::ALL
            .into_iter()
            .filter(|kind| self.runtimes.contains(kind));
        let socket = match wanted.find_map(|kind| kind.runtime().facts().cri) {
            Some(socket) => Some(socket),
            None => self.wrong(
                "runtime.use",
                "the kubelet needs containerd or CRI-O",
                "add \"containerd\" to `runtime.use`",
            ),
        };
        let discovery = self.discovery();
        let version = version?.to_string();
        let ignored = config
            .ignore_preflight_errors
            .as_deref()
            .unwrap_or_default();
        let ignores_kernel = (ignored.iter().map(ToString::to_string)).any(|check| {
            check.eq_ignore_ascii_case("SystemVerification") || check.eq_ignore_ascii_case("all")
        });
        let kernel = self.kernel.as_deref();
        let reasons = [
            kernel.and_then(|kernel| skew::with_kernel(&version, kernel)),
            (self.cgroup_v1.then(|| skew::with_cgroup_v1(&version))).flatten(),
        ];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        if !ignores_kernel && !reasons.is_empty() {
            return self.wrong(
                "cluster.version",
                &reasons.join("; "),
                "use a release with a newer kernel, or set `cluster.ignore-preflight-errors = [\"SystemVerification\"]` \
                 to join with a kernel that Kubernetes does not support",
            );
        }
        Some(JoinMethod::Kubeadm {
            discovery: discovery?,
            socket: format!("unix://{}", socket?),
            ignore_preflight_errors: ignored.iter().map(ToString::to_string).collect(),
        })
    }

    fn discovery(&self) -> Option<Discovery> {
        let config = self.config;
        if let Some(file) = &config.discovery_file {
            if config.server.is_some() || config.ca_cert_hashes.is_some() {
                return self.wrong(
                    "cluster.discovery-file",
                    "the file contains the API server and its CA, and so do `cluster.server` and \
                     `cluster.ca-cert-hashes`",
                    "use only one of them",
                );
            }
            return Some(Discovery::File {
                path: file.clone().into_inner(),
                token_source: config.token.clone(),
            });
        }
        let server = self.needed(
            "server",
            &config.server,
            "set it to `HOST:PORT` of the API server, or set `cluster.discovery-file`",
        );
        let server = server.map(|server| server.as_str()).and_then(|server| {
            let has_port = (server.rsplit_once(':'))
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if server.contains("://") || server.contains('/') || !has_port {
                return self.wrong(
                    "cluster.server",
                    "kubeadm requires `HOST:PORT` of the API server",
                    "set it without `https://`, such as \"10.0.0.1:6443\"",
                );
            }
            Some(server)
        });
        let token_source = self.needed(
            "token",
            &config.token,
            "set it to the location of the token, such as \"file:/etc/gpu-bootstrap/join-token\" (create one with \
                 `kubeadm token create`)",
        );
        let hashes = self.needed(
            "ca-cert-hashes",
            &config.ca_cert_hashes,
            "without it, any server could impersonate the cluster; `kubeadm token create \
             --print-join-command` prints the digest",
        );
        if hashes.is_some_and(Vec::is_empty) {
            return self.wrong(
                "cluster.ca-cert-hashes",
                "without a digest, any server could impersonate the cluster",
                "run `kubeadm token create --print-join-command` to print the digest",
            );
        }
        Some(Discovery::Token {
            server: server?.to_owned(),
            token_source: token_source?.clone(),
            ca_cert_hashes: hashes?.iter().map(ToString::to_string).collect(),
        })
    }

    fn agent(&self, name: &str, port: u16) -> Option<(String, TokenSource)> {
        let server = self.server(name, port);
        let source = self.needed(
            "token",
            &self.config.token,
            "set it to the location of an agent token, such as \"file:/etc/gpu-bootstrap/join-token\": the output of \
                `k3s token create --ttl 30m`, or the file `agent-token` of a server started with `--agent-token`",
        );
        Some((server?, source?.clone()))
    }

    /// Returns the server URL of an agent.
    fn server(&self, name: &str, port: u16) -> Option<String> {
        let example = format!("set it to \"https://HOST:{port}\"");
        let server = self.needed("server", &self.config.server, &example)?;
        if !server.as_str().starts_with("https://") {
            let why = format!("{name} requires the full URL of the server");
            return self.wrong("cluster.server", &why, &example);
        }
        // Source: RKE2, "Quick Start": a server registers nodes at port 9345 and serves the API at 6443. k3s uses
        // 6443 for both.
        if port != API_PORT
            && server
                .as_str()
                .trim_end_matches('/')
                .ends_with(&format!(":{API_PORT}"))
        {
            let why =
                format!("port {API_PORT} is the API server, but {name} registers nodes at {port}");
            return self.wrong("cluster.server", &why, &example);
        }
        // The files for `cloud-init` use `@` for placeholders.
        if server.as_str().contains('@') {
            return self.wrong(
                "cluster.server",
                "a server URL must not contain `@`",
                &example,
            );
        }
        Some(server.to_string())
    }

    /// nodeadm rewrites the containerd configuration at each boot.
    fn eks(&self) -> Option<JoinMethod> {
        if self.runtimes.contains(&RuntimeKind::Containerd) {
            return self.wrong(
                "cluster.join",
                "nodeadm (EKS) rewrites the containerd configuration at each boot",
                "set `runtime.use` to a list without \"containerd\", such as `[]`. If the container toolkit is \
                 installed, nodeadm makes `nvidia` the default runtime",
            );
        }
        Some(JoinMethod::Eks)
    }

    fn command(&self) -> Option<JoinMethod> {
        let config = self.config;
        let command = self.needed(
            "command",
            &config.command,
            "set it to a list of program and arguments",
        );
        for (key, command, example) in [
            ("cluster.command", command, "join"),
            (
                "cluster.leave-command",
                config.leave_command.as_ref(),
                "leave",
            ),
        ] {
            let program = command.map(|command| command.first().map(String::as_str));
            if program.is_some_and(|program| !program.is_some_and(|path| path.starts_with('/'))) {
                self.wrong::<()>(
                    key,
                    "must start with an absolute path",
                    &format!("set it to a list of program and arguments, such as `[\"/usr/local/sbin/{example}\"]`"),
                );
            }
        }
        let joined = self.needed(
            "joined-file",
            &config.joined_file,
            "set it to a file that exists after the machine has joined, such as the kubeconfig of the kubelet",
        );
        Some(JoinMethod::Command {
            command: command?.clone(),
            environment_file: path(&config.environment_file),
            joined_file: joined?.clone().into_inner(),
            leave_command: config.leave_command.clone().unwrap_or_default(),
        })
    }

    fn node(&self, kind: JoinKind) -> Option<NodeWish> {
        let config = self.config;
        let name = config.node_name.as_ref();
        let name = name.map(|name| name.as_str().parse::<NodeName>());
        let name = name.transpose().unwrap_or_else(|_| {
            self.wrong(
                "cluster.node-name",
                "a node name must be a lower-case DNS name",
                "use lower-case letters, digits, `-` and `.`",
            )
        });
        if name.is_some() && matches!(kind, JoinKind::Eks | JoinKind::Managed) {
            self.wrong::<()>(
                "cluster.node-name",
                "the provider sets the name of this node",
                "remove the key",
            );
        }
        let labels = config.labels.as_deref().unwrap_or_default();
        // The pool determines the taints of a node that the provider joins.
        let refused = match kind {
            JoinKind::Managed => Some((
                "a node registers with its taints, and this one has already joined",
                "set these taints in the node pool",
            )),
            JoinKind::Eks => Some((
                "they would replace the taints of Karpenter and of the node group, and Karpenter deletes a node without \
                 its taints",
                "set them in the NodePool or the node group, or in the NodeConfig of the user data \
                 (`spec.kubelet.config.registerWithTaints`)",
            )),
            _ => None,
        };
        if let (Some((why, hint)), Some(_)) = (refused, &config.taints) {
            self.wrong::<()>("cluster.taints", why, hint);
        }
        // A custom command may register the node in any way.
        let registers = !matches!(kind, JoinKind::Managed | JoinKind::Eks | JoinKind::Command);
        let has_access = config.kubeconfig_file.is_some();
        let startup = match &config.startup_taints {
            Some(own) => own.clone(),
            None if has_access => vec![taint(STARTUP_TAINT)],
            None => Vec::new(),
        };
        if (startup.iter()).any(|taint| taint.key.starts_with(OF_READINESS)) {
            self.wrong::<()>(
                "cluster.startup-taints",
                "only the node readiness controller may remove taints of `readiness.k8s.io`",
                "set them in `cluster.taints`",
            );
        }
        if !startup.is_empty() && !has_access {
            self.wrong::<()>(
                "cluster.startup-taints",
                "a node cannot remove its own taints",
                "set `cluster.kubeconfig-file` to a kubeconfig with permission to change nodes",
            );
        }
        Some(NodeWish {
            name,
            labels: (labels.iter())
                .map(|label| (label.key.clone(), label.value.clone()))
                .collect(),
            gpu_labels: self.has_gpu && config.gpu_labels.unwrap_or(true),
            mig_strategy: config.mig_strategy.unwrap_or_default(),
            taints: match &config.taints {
                Some(own) => own.clone(),
                None if self.has_gpu && registers => vec![taint(GPU_TAINT)],
                None => Vec::new(),
            },
            startup_taints: startup,
        })
    }
}

fn path(file: &Option<AbsolutePath>) -> Option<Utf8PathBuf> {
    file.clone().map(AbsolutePath::into_inner)
}

fn taint(text: &str) -> Taint {
    #[expect(clippy::expect_used, reason = "a test resolves both constants")]
    text.parse().expect("a taint")
}
