//! The methods to join a cluster, one module each.

pub mod agents;
mod command;
pub mod kubeadm;
mod managed;
mod method;
pub mod nodeadm;
mod token;

use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use method::{ClusterSpec, Discovery, JoinKind, JoinMethod, Leave, NodeSpec, SecretKind};

use crate::{
    host::{FilesError, ReadFiles, trusted::unusable_secret},
    model::{
        kubernetes::{KubernetesVersion, Labels, NodeName, Taint},
        paths,
        secret::Secret,
        token::TokenSource,
    },
    runtimes::{RuntimeKind, choice::Cluster},
    tools::{
        kubelet,
        kubernetes::{
            kubeconfig,
            membership::{self, Membership, MembershipError},
        },
    },
    work::{ChangeError, Hands, Reverted, Sink},
};

/// The cluster to join, and the registration of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Join {
    /// The join method.
    pub method: JoinMethod,
    /// The node name.
    pub node: NodeName,
    /// The node labels.
    pub labels: Labels,
    /// The node taints.
    pub taints: Vec<Taint>,
    /// A kubeconfig that may drain and delete the node when the machine leaves.
    pub access: Option<Utf8PathBuf>,
    /// Time limit of each part of the join, in seconds.
    pub timeout_seconds: u64,
}

/// The default port of an API server.
const API_PORT: u16 = 6443;

/// A join method with its settings. The settings, the step, the checks and the change use it through this trait. The list of
/// all implementations is in [`JoinMethod::implementation`].
#[async_trait]
pub trait Joining: Send + Sync {
    /// Returns the tool that joins the machine, and its configuration files.
    fn tool(&self) -> MethodTool<'_> {
        MethodTool::default()
    }

    /// Returns the error of a token, based on its format.
    fn wrong_token(&self, _token: &str) -> Option<&'static str> {
        None
    }

    /// Returns a requirement of the join that the machine lacks.
    fn missing(&self, _found: &Found) -> Option<Lack> {
        None
    }

    /// Returns the path and content of our configuration file.
    fn our_file(
        &self,
        _node: &NodeName,
        _labels: &Labels,
        _taints: &[Taint],
    ) -> Option<(&'static str, String)> {
        None
    }

    /// Whether the node registers with the configured taints.
    fn registers_taints(&self) -> bool {
        true
    }

    /// Whether an agent of the provider joins the machine.
    fn is_joined_by_provider(&self) -> bool {
        false
    }

    /// The file that exists after the machine has joined, if there may be no kubeconfig.
    fn joined_file(&self) -> Option<&Utf8Path> {
        None
    }

    /// The kubeconfig for discovery of the cluster.
    fn discovery_file(&self) -> Option<&Utf8Path> {
        None
    }

    /// Kubelet units, one of which must be running before this kubeconfig counts as a membership. If empty, the file is
    /// sufficient.
    fn kubelets_of(&self, _kubeconfig: &Utf8Path) -> &'static [&'static str] {
        &[]
    }

    /// Returns the server of the cluster in the configuration of the user: the API server, or the server of an agent.
    fn endpoint<'a>(&'a self, membership: &'a Membership) -> &'a str {
        &membership.server
    }

    /// Returns the reason if the machine is a node of a cluster that is not the configured one. `config` is the content of our
    /// configuration file, `wanted` the cluster in [`discovery_file`](Self::discovery_file).
    fn another(
        &self,
        _membership: &Membership,
        _config: Option<&str>,
        _wanted: Option<&kubeconfig::Cluster>,
    ) -> Option<String> {
        None
    }

    /// The agent that runs the kubelet and its own container runtime.
    fn agent(&self) -> Option<&'static agents::Agent> {
        None
    }

    /// Whether the method starts the kubelet of the machine, so that gpu-bootstrap prepares the kernel and the runtime.
    fn starts_kubelet(&self) -> bool {
        false
    }

    /// How pods get the nvidia runtime.
    fn runtime_class(&self) -> RuntimeClass {
        RuntimeClass::Created
    }

    /// Whether errors of a preflight check are treated as warnings.
    fn ignores(&self, _check: &str) -> bool {
        false
    }

    /// The container runtime whose configuration the method writes.
    fn configures(&self) -> Option<RuntimeKind> {
        None
    }

    /// Whether the provider supplies the kernel with all modules that containers need.
    fn has_kernel_of_provider(&self) -> bool {
        false
    }

    /// Returns the undo. Called before the join.
    fn leaving(&self, hands: &Hands, join: &Join) -> Result<Leave, ChangeError>;

    /// Joins the cluster.
    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError>;
}

/// The undo of a join, as stored in the journal.
#[async_trait]
pub trait Leaving: Send + Sync {
    /// Returns the reason if the join cannot be undone.
    fn never(&self) -> Option<String> {
        None
    }

    /// Whether a join may have started, so that it must be undone even if the machine is not a node.
    fn has_begun(&self, hands: &Hands) -> Result<bool, ChangeError>;

    /// Whether the kubeconfig may be older than the join. It then only counts while the kubelet is running.
    fn is_early(&self, _hands: &Hands, _found: Option<&Membership>) -> Result<bool, ChangeError> {
        Ok(false)
    }

    /// Whether the membership that was found after the join still counts if the kubelet is no longer running.
    fn counts_without_kubelet(&self) -> bool {
        false
    }

    /// Cleans up after an interrupted attempt.
    async fn clear(&self, _hands: &Hands, _sink: &dyn Sink) -> Result<(), ChangeError> {
        Ok(())
    }

    /// Returns the reason if the machine cannot leave, so that its node must not be deleted. If this machine is a clone of the
    /// machine that joined, `clone` is the message about it.
    fn stays(
        &self,
        _hands: &Hands,
        _is_member: bool,
        _clone: Option<&str>,
    ) -> Result<Option<String>, ChangeError> {
        Ok(None)
    }

    /// Leaves the cluster.
    async fn leave(
        &self,
        hands: &Hands,
        is_member: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError>;
}

/// How pods get the nvidia runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeClass {
    /// By a RuntimeClass that gpu-bootstrap creates.
    Created,
    /// By a RuntimeClass of the Kubernetes distribution.
    Existing,
    /// It is the default runtime of the node.
    Default,
}

/// The tool that joins a machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MethodTool<'a> {
    /// Its unit, which gpu-bootstrap enables after the join.
    pub unit: Option<&'static str>,
    /// The path of its executable.
    pub program: Option<&'a str>,
    /// A directory that it requires.
    pub directory: Option<&'static str>,
    /// Our configuration file.
    pub config: Option<&'static str>,
    /// Another unit. While it is enabled, the unit may not start.
    pub conflict: Option<&'static str>,
}

/// The parts of a [`MethodTool`] that exist on the machine.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The unit exists, or systemd could not be queried.
    pub has_unit: bool,
    /// The executable and its directory exist.
    pub has_program: bool,
    /// The unit does not start because of the conflict.
    pub conflicts: bool,
}

/// A requirement of the join that the machine lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    pub why: String,
    pub hint: &'static str,
}

/// The properties of a join method that do not depend on its settings.
pub struct MethodRow {
    /// The keys of `[cluster]` that it uses, in addition to the common keys.
    pub keys: &'static [&'static str],
    /// The container runtime that its kubelet uses.
    pub runtimes: Cluster,
    pub node: NodeRule,
    /// Whether the packages of the Kubernetes community are installed.
    pub has_packages: bool,
    /// Parses its settings. `None` if there are errors.
    pub read: fn(&Given<'_>, &mut Wrongs) -> Option<JoinMethod>,
}

/// The node settings that a join method allows.
#[derive(Debug, Clone, Copy)]
pub struct NodeRule {
    pub is_named_by_provider: bool,
    /// Whether a node with GPUs has a taint by default.
    pub has_default_taint: bool,
    /// If taints must not be configured: the reason and the hint.
    pub no_taints: Option<(&'static str, &'static str)>,
}

impl NodeRule {
    /// A node that gpu-bootstrap registers.
    pub const OURS: Self = Self {
        is_named_by_provider: false,
        has_default_taint: true,
        no_taints: None,
    };
}

/// The settings of `[cluster]` that join methods read.
pub struct Given<'a> {
    pub version: Option<&'a KubernetesVersion>,
    pub server: Option<&'a str>,
    pub token: Option<&'a TokenSource>,
    pub ca_cert_hashes: Option<Vec<String>>,
    pub discovery_file: Option<&'a Utf8Path>,
    /// Preflight checks whose errors are treated as warnings.
    pub ignored: Vec<String>,
    pub command: Option<&'a [String]>,
    pub environment_file: Option<&'a Utf8Path>,
    pub joined_file: Option<&'a Utf8Path>,
    pub leave_command: Option<&'a [String]>,
    /// The configured container runtimes.
    pub runtimes: &'a [RuntimeKind],
    /// The default boot kernel, or the kernel series of the release if it is unknown.
    pub kernel: Option<&'a str>,
    /// The machine uses cgroup v1.
    pub cgroup_v1: bool,
    /// The oldest minor version of Kubernetes whose packages are installed.
    pub oldest: u32,
}

/// The errors in settings: the key, the reason and the hint.
#[derive(Debug, Default)]
pub struct Wrongs(pub Vec<(String, String, String)>);

impl Wrongs {
    /// Records an error of a key in `[cluster]`. Returns `None`, for use as the value of the key.
    pub fn add<T>(&mut self, key: &str, why: &str, hint: &str) -> Option<T> {
        self.at(&format!("cluster.{key}"), why, hint)
    }

    /// Like [`Wrongs::add`], for any key.
    pub fn at<T>(&mut self, key: &str, why: &str, hint: &str) -> Option<T> {
        self.0
            .push((key.to_owned(), why.to_owned(), hint.to_owned()));
        None
    }

    /// Returns the value of a required key. A missing key has no location, so its error is reported at `cluster.join`.
    pub fn needed<T>(&mut self, key: &str, value: Option<T>, hint: &str) -> Option<T> {
        match value {
            Some(value) => Some(value),
            None => self.add("join", &format!("`cluster.{key}` is also required"), hint),
        }
    }
}

/// Whether the machine was validated before its join, and will join after cloud-init has finished.
///
/// # Errors
/// If the file cannot be read.
pub fn joins_after_cloud_init(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    nodeadm::may_join(files)
}

/// Whether this kubeconfig exists long before the machine joins: nodeadm writes it before it starts the kubelet, also on hybrid
/// nodes, where a command runs nodeadm. Canonical images, where the kubelet is a snap, contain it with placeholders for the
/// server.
fn is_early(kubeconfig: &Utf8Path) -> bool {
    kubeconfig == nodeadm::KUBECONFIG
}

/// Returns the kubelet units for a kubeconfig that [`is_early`]. It counts as a membership only if one of them is running.
fn kubelets_of(kubeconfig: &Utf8Path) -> &'static [&'static str] {
    match is_early(kubeconfig) {
        true => &nodeadm::KUBELETS,
        false => &[],
    }
}

impl Join {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The error of a unit or program that has not joined in time, with its last output.
    pub(crate) fn timed_out(&self, who: &str, words: Option<String>) -> ChangeError {
        let seconds = self.timeout_seconds;
        let what = format!("join the cluster: `{who}` did not join within {seconds} s");
        ChangeError::new("join-timeout", what)
            .telling(words)
            .advice("check its log, then run the command again")
    }
}

impl Hands {
    /// Returns the cluster that the machine has joined or is about to join. Some methods write the kubeconfig before the
    /// machine is allowed to join. It then counts only while the kubelet is running.
    pub(crate) async fn joined_by(&self, leave: &Leave) -> Result<Option<Membership>, ChangeError> {
        let found = self.joined_cluster()?;
        let is_early = leave.implementation().is_early(self, found.as_ref())?;
        if is_early && !self.unit_state(kubelet::UNIT).await?.is_active() {
            return Ok(None);
        }
        Ok(found)
    }

    /// The cluster for which the kubelet of this machine has credentials.
    pub(crate) fn joined_cluster(&self) -> Result<Option<Membership>, ChangeError> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => {
                ChangeError::unreadable(format!("read `{path}`"), why)
            }
        })
    }

    /// Reads a secret from a file. Checks the file again, because it may have changed since the step checked it.
    pub(crate) fn secret(&self, path: &Utf8Path) -> Result<Secret, ChangeError> {
        self.refuse_unusable(path)?;
        let text = self.host.files.read_text(path)?;
        let text = text.ok_or_else(|| bad_secret(path, "it is missing"))?;
        // The run hides known secrets in its output. This one may have changed since the start of the run.
        let secret = Secret::new(text.trim());
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Rejects a file with a secret, or a kubeconfig, if other users may read or replace it. A kubeconfig can contain a command
    /// that kubectl runs.
    pub(crate) fn refuse_unusable(&self, path: &Utf8Path) -> Result<(), ChangeError> {
        match unusable_secret(&*self.host.files, path)? {
            None => Ok(()),
            Some(why) => Err(bad_secret(path, &why)),
        }
    }

    /// Writes a secret to a file in the run directory, and removes it afterwards. kubeadm only accepts a token in its
    /// configuration or on the command line.
    pub(crate) async fn with_secret_file<T>(
        &self,
        name: &str,
        content: &Secret,
        work: impl AsyncFnOnce(&Utf8Path) -> T,
    ) -> Result<T, ChangeError> {
        let path = Utf8Path::new(paths::RUN).join(name);
        let files = &self.host.files;
        files.write(&path, content.expose().as_bytes(), 0o600)?;
        let done = work(&path).await;
        files.remove(&path)?;
        Ok(done)
    }
}

/// The error of an unusable secret file.
pub(crate) fn bad_secret(path: &Utf8Path, why: &str) -> ChangeError {
    ChangeError::new("join-secret", format!("use the secret in `{path}`: {why}"))
        .advice("write the secret into the file, with `chmod 600`, then run the command again")
}
