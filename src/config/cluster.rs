//! Resolves `[cluster]`, the cluster that the machine joins, and validates its settings together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use camino::Utf8PathBuf;
use serde::Deserialize;

use crate::{
    config::{
        desired::{ClusterSpec, JoinKind, Manager, NodeSpec, PackageSpec, RuntimeKind},
        error::ResolveError,
        file::ClusterConfig,
        profile::RepositoryRow,
        sources::SettingSources,
        values::{AbsolutePath, Fingerprint, TimeLimit, Word},
    },
    joins::{Given, MethodRow, NodeRule, Wrongs},
    model::{
        kubernetes::{KubernetesVersion, NodeName, OF_READINESS, Taint},
        packages::Signed,
        text::built_in,
    },
};

/// The name of the Kubernetes package repository.
pub(super) const REPOSITORY: &str = "kubernetes";

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

/// Returns the package repository of the configured Kubernetes version, as a profile entry. `None` if the join method installs
/// no Kubernetes packages.
pub(super) fn repository(
    config: &ClusterConfig,
    manager: Manager,
    release: &str,
) -> Option<RepositoryRow> {
    let version = version_of_packages(config)?;
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

/// Returns the version of the Kubernetes packages, if the join method installs them.
fn version_of_packages(config: &ClusterConfig) -> Option<&KubernetesVersion> {
    let row = config.join.and_then(JoinKind::row);
    (config.version.as_ref()).filter(|_| row.is_some_and(|row| row.has_packages))
}

/// Returns the packages of a Kubernetes version.
fn packages(version: &KubernetesVersion) -> Vec<PackageSpec> {
    let pattern = match version.patch {
        Some(_) => format!("{version}-*"),
        None => format!("{version}.*"),
    };
    let spec = |name: &String| PackageSpec {
        name: name.clone(),
        version: Some(pattern.clone()),
    };
    KUBERNETES.packages.iter().map(spec).collect()
}

/// The inputs of resolving `[cluster]`.
pub(super) struct ClusterInputs<'a> {
    pub config: &'a ClusterConfig,
    pub layers: &'a SettingSources,
    /// The configured container runtimes.
    pub runtimes: &'a [RuntimeKind],
    /// Whether the machine has a GPU that is not reserved for virtual machines.
    pub has_gpu: bool,
    /// The default boot kernel. If it is unknown, the kernel series of the release.
    pub kernel: Option<String>,
    /// Whether the machine uses cgroup v1.
    pub cgroup_v1: bool,
    /// The errors found so far.
    pub wrong: RefCell<Vec<ResolveError>>,
}

impl ClusterInputs<'_> {
    /// Resolves `[cluster]`. `None` if the machine joins no cluster.
    ///
    /// # Errors
    /// All missing or contradictory settings.
    pub(super) fn resolve(&self) -> Result<Option<ClusterSpec>, ResolveError> {
        let row = self.config.join.unwrap_or_default().row();
        self.only_what_counts(row);
        let spec = row.and_then(|row| self.spec(row));
        let wrong = self.wrong.take();
        if wrong.is_empty() {
            return Ok(spec);
        }
        Err(ResolveError::all(wrong))
    }

    /// Returns the cluster settings. Records all errors in `wrong`. `None` if an error prevents a result.
    fn spec(&self, row: &MethodRow) -> Option<ClusterSpec> {
        let config = self.config;
        let given = Given {
            version: config.version.as_ref(),
            server: config.server.as_ref().map(Word::as_str),
            token: config.token.as_ref(),
            ca_cert_hashes: (config.ca_cert_hashes.as_ref()).map(|hashes| texts(hashes)),
            discovery_file: config.discovery_file.as_ref().map(AbsolutePath::as_path),
            ignored: texts(
                config
                    .ignore_preflight_errors
                    .as_deref()
                    .unwrap_or_default(),
            ),
            command: config.command.as_deref(),
            environment_file: config.environment_file.as_ref().map(AbsolutePath::as_path),
            joined_file: config.joined_file.as_ref().map(AbsolutePath::as_path),
            leave_command: config.leave_command.as_deref(),
            runtimes: self.runtimes,
            kernel: self.kernel.as_deref(),
            cgroup_v1: self.cgroup_v1,
            oldest: KUBERNETES.oldest,
        };
        let mut wrongs = Wrongs::default();
        let method = (row.read)(&given, &mut wrongs);
        for (key, why, hint) in wrongs.0 {
            self.wrong::<()>(&key, &why, &hint);
        }
        let packages = match version_of_packages(config) {
            Some(version) => packages(version),
            None => Vec::new(),
        };
        let node = self.node(&row.node);
        Some(ClusterSpec {
            method: method?,
            node: node?,
            packages,
            access: path(&config.kubeconfig_file),
            timeout_seconds: config.timeout.map_or(300, TimeLimit::seconds),
        })
    }

    /// A setting of a different join method is reported as a mistake.
    fn only_what_counts(&self, row: Option<&MethodRow>) {
        let config = self.config;
        let keys = row.map_or(&[][..], |row| row.keys);
        for (key, is_set) in [
            ("version", config.version.is_some()),
            ("server", config.server.is_some()),
            ("token", config.token.is_some()),
            ("ca-cert-hashes", config.ca_cert_hashes.is_some()),
            ("discovery-file", config.discovery_file.is_some()),
            (
                "ignore-preflight-errors",
                config.ignore_preflight_errors.is_some(),
            ),
            ("command", config.command.is_some()),
            ("environment-file", config.environment_file.is_some()),
            ("joined-file", config.joined_file.is_some()),
            ("leave-command", config.leave_command.is_some()),
        ] {
            if is_set && !keys.contains(&key) {
                self.wrong::<()>(
                    &format!("cluster.{key}"),
                    "this join method does not use it",
                    "set `cluster.join` to the intended method, or remove the key",
                );
            }
        }
    }

    /// Records an error of a key. Returns `None`, for use as the value of the key.
    fn wrong<T>(&self, key: &str, why: &str, hint: &str) -> Option<T> {
        let error = (self.layers).wrong(key, why.to_owned(), Some(hint.to_owned()));
        self.wrong.borrow_mut().push(error.into());
        None
    }

    fn node(&self, rule: &NodeRule) -> Option<NodeSpec> {
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
        if name.is_some() && rule.is_named_by_provider {
            self.wrong::<()>(
                "cluster.node-name",
                "the provider sets the name of this node",
                "remove the key",
            );
        }
        let labels = config.labels.as_deref().unwrap_or_default();
        // If the provider joins the node, its node pool determines the taints.
        if let (Some((why, hint)), Some(_)) = (rule.no_taints, &config.taints) {
            self.wrong::<()>("cluster.taints", why, hint);
        }
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
        Some(NodeSpec {
            name,
            labels: (labels.iter())
                .map(|label| (label.key.clone(), label.value.clone()))
                .collect(),
            gpu_labels: self.has_gpu && config.gpu_labels.unwrap_or(true),
            taints: match &config.taints {
                Some(own) => own.clone(),
                None if self.has_gpu && rule.has_default_taint => vec![taint(GPU_TAINT)],
                None => Vec::new(),
            },
            startup_taints: startup,
        })
    }
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn path(file: &Option<AbsolutePath>) -> Option<Utf8PathBuf> {
    file.clone().map(AbsolutePath::into_inner)
}

fn taint(text: &str) -> Taint {
    #[expect(clippy::expect_used, reason = "a test resolves both constants")]
    text.parse().expect("a taint")
}
