//! The ways to join a cluster, one file each.

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

pub use method::{ClusterWish, Discovery, JoinKind, JoinMethod, Leave, NodeWish, SecretKind};

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
    work::{Hands, Problem, Reverted, Sink},
};

/// What a machine joins, and with what it is registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Join {
    /// How.
    pub method: JoinMethod,
    /// The node's name.
    pub node: NodeName,
    /// Its labels.
    pub labels: Labels,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// A kubeconfig that may drain and delete the node when the machine leaves.
    pub access: Option<Utf8PathBuf>,
    /// Seconds for each part of the join.
    pub timeout_seconds: u64,
}

/// Where an API server listens by default.
const API_PORT: u16 = 6443;

/// A join method with its settings. The methods of the trait are what the settings, the step, the checks and the change
/// have to know about it; only [`JoinMethod::way`] knows all methods.
#[async_trait]
pub trait Way: Send + Sync {
    /// What joins the machine, and our part of its configuration.
    fn tool(&self) -> WayTool<'_> {
        WayTool::default()
    }

    /// What is wrong with a token, judged by its format.
    fn wrong_token(&self, _token: &str) -> Option<&'static str> {
        None
    }

    /// What the machine lacks to join.
    fn missing(&self, _found: &Found) -> Option<Lack> {
        None
    }

    /// Our configuration file, and its content.
    fn our_file(
        &self,
        _node: &NodeName,
        _labels: &Labels,
        _taints: &[Taint],
    ) -> Option<(&'static str, String)> {
        None
    }

    /// Whether the node is registered with the taints of the settings.
    fn registers_taints(&self) -> bool {
        true
    }

    /// Whether an agent of the provider joins the machine.
    fn is_joined_by_provider(&self) -> bool {
        false
    }

    /// The file that exists once the machine has joined, if no kubeconfig proves it.
    fn joined_file(&self) -> Option<&Utf8Path> {
        None
    }

    /// The kubeconfig that names the cluster.
    fn discovery_file(&self) -> Option<&Utf8Path> {
        None
    }

    /// The units of which one must run before this kubeconfig proves a membership. Empty: the file is proof enough.
    fn kubelets_of(&self, _kubeconfig: &Utf8Path) -> &'static [&'static str] {
        &[]
    }

    /// Why the machine is a node of another cluster than the settings name. `config` is our configuration file, `wanted` the
    /// cluster of [`discovery_file`](Self::discovery_file).
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

    /// Whether the method starts the kubelet of the machine, for which this program prepares the kernel and the runtime.
    fn starts_kubelet(&self) -> bool {
        false
    }

    /// Whether a failed preflight check counts as a warning.
    fn ignores(&self, _check: &str) -> bool {
        false
    }

    /// The container runtime whose configuration the method writes.
    fn configures(&self) -> Option<RuntimeKind> {
        None
    }

    /// Whether the kernel, with all modules that containers need, is the provider's.
    fn has_kernel_of_provider(&self) -> bool {
        false
    }

    /// The undo, before the join.
    fn leaving(&self, hands: &Hands, join: &Join) -> Result<Leave, Problem>;

    /// Joins.
    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), Problem>;
}

/// How a machine leaves a cluster: the undo in the journal.
#[async_trait]
pub trait Leaving: Send + Sync {
    /// Why the machine never leaves.
    fn never(&self) -> Option<String> {
        None
    }

    /// Whether a join has begun that left no membership.
    fn has_begun(&self, hands: &Hands) -> Result<bool, Problem>;

    /// Whether the kubeconfig may be older than the join, so that it counts only while the kubelet runs.
    fn is_early(&self, _hands: &Hands, _found: Option<&Membership>) -> Result<bool, Problem> {
        Ok(false)
    }

    /// Whether a membership that was found once counts without a running kubelet.
    fn counts_without_kubelet(&self) -> bool {
        false
    }

    /// Removes what an interrupted attempt of this program left.
    async fn clear(&self, _hands: &Hands, _sink: &dyn Sink) -> Result<(), Problem> {
        Ok(())
    }

    /// Why the machine cannot leave, so that its node must not be deleted. `clone` is why it is not the machine that joined.
    fn stays(
        &self,
        _hands: &Hands,
        _is_member: bool,
        _clone: Option<&str>,
    ) -> Result<Option<String>, Problem> {
        Ok(None)
    }

    /// Leaves.
    async fn leave(
        &self,
        hands: &Hands,
        is_member: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem>;
}

/// What joins a machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct WayTool<'a> {
    /// Its unit, which this program enables once the machine has joined.
    pub unit: Option<&'static str>,
    /// Its program.
    pub program: Option<&'a str>,
    /// A folder that the program needs.
    pub folder: Option<&'static str>,
    /// Our configuration file.
    pub config: Option<&'static str>,
    /// A unit beside which the unit may refuse to start.
    pub conflict: Option<&'static str>,
}

/// What the machine has of a [`WayTool`].
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The unit exists, or nobody could be asked.
    pub has_unit: bool,
    /// The program and its folder exist.
    pub has_program: bool,
    /// The unit does not start because of the conflict.
    pub conflicts: bool,
}

/// What a machine lacks to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    pub why: String,
    pub hint: &'static str,
}

/// What a join method says before there are settings of it.
pub struct WayRow {
    /// The keys of `[cluster]` that it uses, beside those of all methods.
    pub keys: &'static [&'static str],
    /// The container runtime that its kubelet uses.
    pub runtimes: Cluster,
    pub node: NodeRule,
    /// Whether the packages of the Kubernetes community are installed.
    pub has_packages: bool,
    /// Reads its settings. `None` if something is wrong.
    pub read: fn(&Given<'_>, &mut Wrongs) -> Option<JoinMethod>,
}

/// What settings may say about the node.
#[derive(Debug, Clone, Copy)]
pub struct NodeRule {
    pub is_named_by_provider: bool,
    /// Whether a node with GPUs gets a taint if the settings name none.
    pub has_default_taint: bool,
    /// Why the settings may name no taints, and the hint.
    pub no_taints: Option<(&'static str, &'static str)>,
}

impl NodeRule {
    /// A node that this program registers.
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
    /// Preflight checks whose errors count as warnings.
    pub ignored: Vec<String>,
    pub command: Option<&'a [String]>,
    pub environment_file: Option<&'a Utf8Path>,
    pub joined_file: Option<&'a Utf8Path>,
    pub leave_command: Option<&'a [String]>,
    /// The container runtimes that are wanted.
    pub runtimes: &'a [RuntimeKind],
    /// The kernel of the next boot, or the kernel series of the release if it is unknown.
    pub kernel: Option<&'a str>,
}

/// What is wrong with settings: the key, the reason and the hint.
#[derive(Debug, Default)]
pub struct Wrongs(pub Vec<(String, String, String)>);

impl Wrongs {
    /// Notes what is wrong with a key of `[cluster]`. There is no value then.
    pub fn add<T>(&mut self, key: &str, why: &str, hint: &str) -> Option<T> {
        self.at(&format!("cluster.{key}"), why, hint)
    }

    /// The same of any key.
    pub fn at<T>(&mut self, key: &str, why: &str, hint: &str) -> Option<T> {
        self.0
            .push((key.to_owned(), why.to_owned(), hint.to_owned()));
        None
    }

    /// A key that is needed. If it is missing it has no location, so the error names `cluster.join`.
    pub fn needed<T>(&mut self, key: &str, value: Option<T>, hint: &str) -> Option<T> {
        match value {
            Some(value) => Some(value),
            None => self.add("join", &format!("`cluster.{key}` is needed, too"), hint),
        }
    }
}

/// Whether the machine is validated and joins once cloud-init has ended.
///
/// # Errors
/// If the file cannot be read.
pub fn joins_after_cloud_init(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    nodeadm::may_join(files)
}

impl Join {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The error of a unit or program that has not joined the machine in time, with its last words.
    pub(crate) fn timed_out(&self, who: &str, words: Option<String>) -> Problem {
        let seconds = self.timeout_seconds;
        let what = format!("join the cluster: `{who}` has not joined it within {seconds} s");
        Problem::new("join-timeout", what)
            .telling(words)
            .advice("see what its log says, then run the command again")
    }
}

impl Hands {
    /// The cluster that the machine is a node of, or is about to be. With some methods the kubeconfig is written before
    /// anything may join.
    pub(crate) async fn joined_by(&self, way: &Leave) -> Result<Option<Membership>, Problem> {
        let found = self.joined_cluster()?;
        let is_early = way.way().is_early(self, found.as_ref())?;
        if is_early && !self.unit_state(kubelet::UNIT).await?.is_active() {
            return Ok(None);
        }
        Ok(found)
    }

    /// The cluster that this machine's kubelet has credentials of.
    pub(crate) fn joined_cluster(&self) -> Result<Option<Membership>, Problem> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => {
                Problem::unreadable(format!("read `{path}`"), why)
            }
        })
    }

    /// A secret in a file. Its step has looked before: the file may have changed since.
    pub(crate) fn secret(&self, path: &Utf8Path) -> Result<Secret, Problem> {
        self.refuse_unusable(path)?;
        let text = self.host.files.read_text(path)?;
        let text = text.ok_or_else(|| bad_secret(path, "it is missing"))?;
        // It may be another one than at the start of the run.
        let secret = Secret::new(text.trim());
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Refuses a file with a secret, or a kubeconfig, that others than root may read or replace: a kubeconfig can name a
    /// program, which kubectl runs.
    pub(crate) fn refuse_unusable(&self, path: &Utf8Path) -> Result<(), Problem> {
        match unusable_secret(&*self.host.files, path)? {
            None => Ok(()),
            Some(why) => Err(bad_secret(path, &why)),
        }
    }

    /// Writes a file with a secret below the run folder, and removes it when the work is done. kubeadm
    /// takes a token from its configuration or from the command line only.
    pub(crate) async fn with_secret_file<T>(
        &self,
        name: &str,
        content: &Secret,
        work: impl AsyncFnOnce(&Utf8Path) -> T,
    ) -> Result<T, Problem> {
        let path = Utf8Path::new(paths::RUN).join(name);
        let files = &self.host.files;
        files.write(&path, content.expose().as_bytes(), 0o600)?;
        let done = work(&path).await;
        files.remove(&path)?;
        Ok(done)
    }
}

/// The error of a file with a secret that cannot be used.
pub(crate) fn bad_secret(path: &Utf8Path, why: &str) -> Problem {
    Problem::new("join-secret", format!("use the secret in `{path}`: {why}"))
        .advice("write the secret into the file, with `chmod 600`, then run the command again")
}
