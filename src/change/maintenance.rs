//! Takes a node out of service before an upgrade, and returns it: the fleet lock, the cordon, the evictions, and the processes
//! that use a GPU.
//!
//! The order is lock, cordon, evict, and in reverse for the return. The annotation [`MAINTENANCE`] is set in the same request as
//! the cordon and contains whether the node was cordoned before, so that only our own cordon is removed. If it is missing at the
//! return, another program has taken over, and the cordon stays as it is.

use std::{sync::atomic::Ordering, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    error::one_line,
    exit::Exit,
    host::{ExecError, FilesError, Output},
    model::{
        fleet::{FleetLock, LockGroup},
        kubernetes::NodeName,
    },
    state::{ClientKind, ClientsOf, GpuClient, gpu_clients, in_use_by},
    tools::{
        fleetlock::{self, LockRequest, MACHINE_ID},
        kubernetes::{
            drain::{self, Consent, DryRun, Evicted, Pod, PodAction},
            kubectl::{self, Kubectl, Node, Registered},
        },
    },
};

/// The annotation of a node that an upgrade has taken out of service.
pub const MAINTENANCE: &str = "gpu-bootstrap/maintenance";

/// The annotation of a node whose upgrade failed, with the reason.
pub const UPGRADE_FAILED: &str = "gpu-bootstrap/upgrade-failed";

/// The pause before another eviction of a pod that a disruption budget protects, as in `kubectl drain`.
const AGAIN: Duration = Duration::from_secs(5);

/// The pause before another request for the fleet lock.
const LOCK_AGAIN: Duration = Duration::from_secs(30);

/// The time limit of a lock command.
const LOCK_COMMAND: Duration = Duration::from_secs(120);

/// How long the return waits for the API server, which may start after this node, and for the release of the fleet lock. A return
/// command has at least this time: it may wait for the same, also with a short `fleet.drain-timeout`.
const RETURN: Duration = Duration::from_secs(300);

/// The maximum length of an annotation with a reason. All annotations of an object together have at most 256 KiB.
const LONGEST: usize = 1000;

/// How a node is taken out of service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaveService {
    /// The reason, for the annotation.
    pub why: String,
    /// An earlier run began to take the node out of service, so the node may have booted a moment ago.
    #[serde(default)]
    pub continues: bool,
    pub lock: LockUse,
    /// How long to wait for the lock, in seconds.
    pub lock_seconds: u64,
    pub method: LeaveMethod,
    /// The time limit for the pods or the command, in seconds.
    pub drain_seconds: u64,
    /// Evict pods without a controller.
    pub evict_unmanaged: bool,
    /// Evict pods with `emptyDir` volumes.
    pub delete_emptydir_data: bool,
    /// Processes that use a GPU do not prevent the upgrade.
    pub end_gpu_processes: bool,
}

/// A fleet lock and the group of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LockUse {
    pub lock: FleetLock,
    pub group: LockGroup,
}

/// The system that sends work to the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "by",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum LeaveMethod {
    /// None, or another program has taken the node out of service.
    Nothing,
    /// Kubernetes.
    Cluster(ClusterNode),
    /// Commands of the administrator.
    Command {
        leave: Vec<String>,
        r#return: Vec<String>,
    },
}

/// The Node object of this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterNode {
    pub node: NodeName,
    /// A kubeconfig that is used instead of the kubelet's.
    pub access: Option<Utf8PathBuf>,
}

/// Returns a node to service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReturnToService {
    pub lock: LockUse,
    pub method: LeaveMethod,
    /// The time limit for the return command in seconds, if it is longer than the default of five minutes.
    pub drain_seconds: u64,
}

/// The content of the annotation [`MAINTENANCE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Note {
    why: String,
    since: jiff::Timestamp,
    /// The node was cordoned before, and stays cordoned.
    was_unschedulable: bool,
}

impl LeaveService {
    const fn consent(&self) -> Consent {
        Consent {
            unmanaged: self.evict_unmanaged,
            local_data: self.delete_emptydir_data,
        }
    }

    /// A one-line summary in the imperative.
    pub(super) fn summary(&self) -> String {
        let mut parts = Vec::new();
        match &self.lock.lock {
            FleetLock::None => {}
            lock => parts.push(format!("acquire the fleet lock `{lock}`")),
        }
        match &self.method {
            LeaveMethod::Nothing => {}
            LeaveMethod::Cluster(cluster) => {
                parts.push(format!("cordon node `{}` and evict its pods", cluster.node));
            }
            LeaveMethod::Command { leave, .. } => parts.push(format!("run `{}`", leave.join(" "))),
        }
        if !self.end_gpu_processes {
            parts.push("check that no process uses a GPU".to_owned());
        }
        match parts.is_empty() {
            true => "take the node out of service".to_owned(),
            false => parts.join(", "),
        }
    }
}

/// An error that leaves the node in service.
fn stays(reason: &'static str, what: impl Into<String>) -> ChangeError {
    ChangeError::blocked(reason, what)
}

/// Returns the remedy if a request to the API server fails.
fn access_remedy(cluster: &ClusterNode) -> String {
    match &cluster.access {
        Some(access) => format!(
            "check that `{access}` (`fleet.kubeconfig-file`) reaches the API server, and that its \
             account may get and patch nodes, list pods and create pods/eviction"
        ),
        None => "check that the kubelet can connect to its API server, or set \
                 `fleet.kubeconfig-file`"
            .to_owned(),
    }
}

/// The time limit for the queries of a dry run. A webhook of the cluster may delay each of them.
const PREVIEW: Duration = Duration::from_secs(60);

/// The remedy if the API server rejects an eviction.
const OTHER_ACCESS: &str = "if the kubelet is not allowed to evict pods, set `fleet.kubeconfig-file` or \
                            `fleet.leave-command`";

/// Evaluates the result of an eviction request.
fn evicted(pod: &Pod, result: Result<Output, ExecError>) -> Result<Evicted, ChangeError> {
    match result {
        Ok(output) => Ok(drain::result(output.ok(), &output.stderr)),
        // kubectl itself retries if the API server asks for it.
        Err(error @ ExecError::Deadline { .. }) => Ok(Evicted::Later(error.to_string())),
        Err(source) => Err(ChangeError::tool(format!("evict pod {pod}"), source)),
    }
}

impl Applier {
    /// Returns the kubectl and the kubeconfig for changes of the node.
    fn access_to(&self, cluster: &ClusterNode) -> Result<(Kubectl, Utf8PathBuf), ChangeError> {
        let (kubectl, own) = self.own_access(&cluster.node)?;
        match &cluster.access {
            Some(access) => {
                self.refuse_unusable(access)?;
                Ok((kubectl, access.clone()))
            }
            None => Ok((kubectl, own)),
        }
    }

    /// Reads the Node object. A clone of this machine must not cordon the node of the original with an administrator's access.
    async fn maintained(&self, cluster: &ClusterNode) -> Result<Node, ChangeError> {
        let name = &cluster.node;
        let (kubectl, kubeconfig) = self.access_to(cluster)?;
        let what = format!("query the cluster for node `{name}`");
        let asked = kubectl::registered(self.host.reader(), kubectl, &kubeconfig, name).await;
        let asked = asked.map_err(|source| ChangeError::tool(&what, source))?;
        let error = |why: &str| {
            stays("node-not-read", format!("{what}: {why}")).advice(access_remedy(cluster))
        };
        let node = match asked {
            Registered::Node(node) => *node,
            Registered::Unknown => return Err(error("it does not exist in the cluster")),
            Registered::Silent(why) => return Err(error(&why)),
        };
        if cluster.access.is_some()
            && let Some(why) = self.is_another(&node)?
        {
            return Err(stays(
                "node-of-another",
                format!("cordon node `{name}`: {why}"),
            ));
        }
        Ok(node)
    }

    /// Reads the Node object. After a boot, the API server may start after this program.
    async fn awaited_node(&self, cluster: &ClusterNode, what: &str) -> Result<Node, ChangeError> {
        let node = self
            .awaited(what, RETURN, || async {
                Ok(self.maintained(cluster).await.ok())
            })
            .await?;
        match node {
            Some(node) => Ok(node),
            // The reason is the last error.
            None => self.maintained(cluster).await,
        }
    }

    /// Lists the pods of the node.
    async fn pods(&self, cluster: &ClusterNode) -> Result<Vec<Pod>, ChangeError> {
        let (kubectl, kubeconfig) = self.access_to(cluster)?;
        let what = format!("list the pods of node `{}`", cluster.node);
        let query = kubectl.pods(&kubeconfig, &cluster.node);
        let ran = self.host.reader().query(&query).await;
        let output = ran
            .and_then(|output| output.success(query.cmd()))
            .map_err(|source| {
                stays("pods-not-listed", &*what)
                    .advice(access_remedy(cluster))
                    .caused_by(source)
            })?;
        drain::parse(&output.stdout).map_err(|why| ChangeError::unreadable(what, why))
    }

    /// Returns an error if a pod must not be evicted.
    fn refuse_pods(pods: &[Pod], consent: Consent, node: &NodeName) -> Result<(), ChangeError> {
        let mut refused = Vec::new();
        let mut settings = Vec::new();
        for pod in pods {
            if let PodAction::Refused { why, setting } = pod.action(consent) {
                refused.push(format!("{pod} {why}"));
                if !settings.contains(&setting) {
                    settings.push(setting);
                }
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let settings: Vec<String> = (settings.iter())
            .map(|setting| format!("`{setting} = true`"))
            .collect();
        Err(stays(
            "pods-not-evictable",
            format!("empty node `{node}`: {}", refused.join("; ")),
        )
        .advice(format!(
            "delete these pods when their work is done, or set {}",
            settings.join(" and ")
        )))
    }

    /// Detects reasons for which the node would stay in service. Changes nothing.
    pub(super) async fn dry_run_leave(&self, leave: &LeaveService) -> Result<(), ChangeError> {
        if let LeaveMethod::Cluster(cluster) = &leave.method {
            match leave.continues {
                true => {
                    let what = format!("query the cluster for node `{}`", cluster.node);
                    self.awaited_node(cluster, &what).await?
                }
                false => self.maintained(cluster).await?,
            };
            let pods = self.pods(cluster).await?;
            Self::refuse_pods(&pods, leave.consent(), &cluster.node)?;
        }
        if leave.method == LeaveMethod::Nothing {
            self.refuse_gpu_clients(leave)?;
        }
        self.node_id(&leave.lock.lock).map(drop)
    }

    /// Lists the pods that would be evicted and the processes that use a GPU.
    pub(super) async fn preview_leave(
        &self,
        leave: &LeaveService,
    ) -> Result<Option<String>, ChangeError> {
        let mut lines = Vec::new();
        if let LeaveMethod::Cluster(cluster) = &leave.method {
            let started = self.host.clock.monotonic();
            for pod in self.pods(cluster).await? {
                let elapsed = self.host.clock.monotonic().saturating_sub(started);
                match pod.action(leave.consent()) {
                    PodAction::Stays => {}
                    PodAction::Waits => lines.push(format!("{pod} is terminating")),
                    PodAction::Evict if elapsed >= PREVIEW => lines.push(format!(
                        "evict {pod}; whether this is permitted now was not evaluated, because the API server takes too long"
                    )),
                    PodAction::Evict => match self.may_evict(cluster, &pod).await? {
                        Evicted::Gone => {}
                        Evicted::Accepted => lines.push(format!("evict {pod}")),
                        Evicted::Later(why) => lines.push(format!(
                            "evict {pod}, which is not possible now: {}; if this does not change within {} s \
                             (`fleet.drain-timeout`), the upgrade does not start",
                            why.trim_end_matches('.'),
                            leave.drain_seconds
                        )),
                        Evicted::Failed(why) => lines.push(format!(
                            "evict {pod}, which fails: {why}; unless this changes, the upgrade does not start; \
                             {OTHER_ACCESS}"
                        )),
                    },
                    PodAction::Refused { why, setting } => lines.push(format!(
                        "{pod} {why}: it blocks the upgrade, unless `{setting}` is true"
                    )),
                }
            }
        }
        let mut clients = self.gpu_workers()?;
        clients.retain(|client| !client.is_in_pod);
        if !clients.is_empty() {
            lines.push(format!("GPUs {}", in_use_by(&clients)));
        }
        Ok((!lines.is_empty()).then(|| lines.join("\n")))
    }

    pub(super) async fn capture_leave(&self, leave: &LeaveService) -> Result<Undo, ChangeError> {
        self.dry_run_leave(leave).await?;
        Ok(Undo::ReturnToService(ReturnToService {
            lock: leave.lock.clone(),
            method: leave.method.clone(),
            drain_seconds: leave.drain_seconds,
        }))
    }

    /// Takes the node out of service. After an error, the undo returns it.
    pub(super) async fn leave_service(
        &self,
        leave: &LeaveService,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.acquire_lock(leave, sink).await?;
        match &leave.method {
            LeaveMethod::Nothing => {}
            LeaveMethod::Cluster(cluster) => {
                self.cordon(cluster, &leave.why, sink).await?;
                self.empty(cluster, leave, sink).await?;
            }
            LeaveMethod::Command { leave: command, .. } => {
                let limit = Duration::from_secs(leave.drain_seconds);
                let what = "take the node out of service with `fleet.leave-command`";
                let ran = self.service_command(command, limit, sink);
                // After a stop request, the return command undoes what the command has done so far.
                (self.unless_stopped(what, ran).await?)
                    .map_err(|error| stays("leave-command", what).caused_by(error))?;
            }
        }
        self.refuse_gpu_clients(leave)
    }

    /// Cordons the node and sets the annotation in one request. If an interrupted run has already done so, its annotation is kept.
    async fn cordon(
        &self,
        cluster: &ClusterNode,
        why: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let node = self.maintained(cluster).await?;
        let before = node.annotations.get(MAINTENANCE);
        let before = before.and_then(|text| serde_json::from_str::<Note>(text).ok());
        let note = Note {
            why: self.annotation(why),
            since: self.host.clock.now(),
            was_unschedulable: node.unschedulable,
        };
        let note = serde_json::to_string(&before.unwrap_or(note))
            .map_err(|error| ChangeError::bug("write an annotation").caused_by(error))?;
        let patch = json!({
            "metadata": {"annotations": {MAINTENANCE: note, UPGRADE_FAILED: null}},
            "spec": {"unschedulable": true},
        });
        let what = format!("cordon node `{}`", cluster.node);
        self.patch(cluster, &what, &patch, sink).await
    }

    /// Removes secrets and limits the length.
    fn annotation(&self, text: &str) -> String {
        let hidden = self.secrets.hide(text);
        hidden.chars().take(LONGEST).collect()
    }

    async fn patch(
        &self,
        cluster: &ClusterNode,
        what: &str,
        patch: &Value,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (kubectl, kubeconfig) = self.access_to(cluster)?;
        let cmd = kubectl.patch(&kubeconfig, &cluster.node, patch);
        let ran = self.tool(what, &cmd, sink).await;
        ran.map(drop)
            .map_err(|error| error.exiting(Exit::Blocked).advice(access_remedy(cluster)))
    }

    /// Evicts the pods and waits until they no longer exist. A disruption budget is respected until the time limit.
    async fn empty(
        &self,
        cluster: &ClusterNode,
        leave: &LeaveService,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let name = &cluster.node;
        let what = format!("empty node `{name}`");
        let limit = Duration::from_secs(leave.drain_seconds);
        let clock = &self.host.clock;
        let started = clock.monotonic();
        let mut told = Vec::new();
        loop {
            let waiting = match self.evict_once(cluster, leave).await {
                Ok(waiting) => waiting,
                // The API server may be unavailable for a moment.
                Err(error) if error.reason == "pods-not-listed" => vec![one_line(&error)],
                Err(error) => return Err(error),
            };
            if waiting.is_empty() {
                return Ok(());
            }
            if clock.monotonic().saturating_sub(started) >= limit {
                let seconds = leave.drain_seconds;
                let what = format!("{what} within {seconds} s: {}", waiting.join("; "));
                return Err(stays("drain-timeout", what).advice(
                    "check the disruption budgets (`kubectl get poddisruptionbudget \
                     --all-namespaces`) and the pods, or set a longer `fleet.drain-timeout`. Pods \
                     that were evicted run on other nodes",
                ));
            }
            if waiting != told {
                waiting.iter().for_each(|line| sink.line(line));
                told = waiting;
            }
            self.pause_for(AGAIN, &what).await?;
        }
    }

    /// Requests the eviction of each pod that is not terminating. Returns the remaining pods with the reason.
    async fn evict_once(
        &self,
        cluster: &ClusterNode,
        leave: &LeaveService,
    ) -> Result<Vec<String>, ChangeError> {
        let pods = self.pods(cluster).await?;
        Self::refuse_pods(&pods, leave.consent(), &cluster.node)?;
        let mut waiting = Vec::new();
        for pod in pods {
            match pod.action(leave.consent()) {
                PodAction::Stays | PodAction::Refused { .. } => {}
                PodAction::Waits => waiting.push(format!("{pod} is terminating")),
                PodAction::Evict => match self.evict(cluster, &pod).await? {
                    Evicted::Gone => {}
                    Evicted::Accepted => waiting.push(format!("{pod} is terminating")),
                    Evicted::Later(why) => waiting.push(format!("{pod}: {why}")),
                    Evicted::Failed(why) => {
                        let what = format!("evict pod {pod} of node `{}`: {why}", cluster.node);
                        return Err(stays("eviction-failed", what).advice(OTHER_ACCESS));
                    }
                },
            }
        }
        Ok(waiting)
    }

    /// Queries whether a pod may be evicted now.
    async fn may_evict(&self, cluster: &ClusterNode, pod: &Pod) -> Result<Evicted, ChangeError> {
        let (kubectl, kubeconfig) = self.access_to(cluster)?;
        let names = (&*pod.namespace, &*pod.name);
        let query = kubectl.may_evict(&kubeconfig, names, pod.eviction(DryRun::Yes));
        evicted(pod, self.host.reader().query(&query).await)
    }

    async fn evict(&self, cluster: &ClusterNode, pod: &Pod) -> Result<Evicted, ChangeError> {
        let (kubectl, kubeconfig) = self.access_to(cluster)?;
        let names = (&*pod.namespace, &*pod.name);
        let cmd = kubectl.evict(&kubeconfig, names, pod.eviction(DryRun::No));
        // The response is not printed, because it is repeated for each attempt.
        evicted(pod, self.host.exec.run(&cmd, &mut |_, _| {}).await)
    }

    /// Returns the processes that use a GPU and may lose work.
    pub(super) fn gpu_workers(&self) -> Result<Vec<GpuClient>, FilesError> {
        let mut clients = gpu_clients(&self.host, ClientsOf::AllGpus)?;
        clients.retain(|client| client.kind == ClientKind::Work);
        Ok(clients)
    }

    /// Returns an error if a process uses a GPU. After the evictions, only pods that stay on the node are left, and they are
    /// started again after the reboot.
    fn refuse_gpu_clients(&self, leave: &LeaveService) -> Result<(), ChangeError> {
        if leave.end_gpu_processes {
            return Ok(());
        }
        let is_drained = matches!(leave.method, LeaveMethod::Cluster(_));
        let mut clients = self.gpu_workers()?;
        clients.retain(|client| !(is_drained && client.is_in_pod));
        if clients.is_empty() {
            return Ok(());
        }
        Err(stays(
            "gpu-in-use",
            format!("take the GPUs out of use: {}", in_use_by(&clients)),
        )
        .advice(
            "stop these processes, or set `fleet.gpu-processes = \"end\"`, with which the reboot \
             ends them",
        ))
    }

    /// Runs a command of the administrator.
    async fn service_command(
        &self,
        command: &[String],
        limit: Duration,
        sink: &dyn Sink,
    ) -> Result<Output, ChangeError> {
        let cmd = self.with_environment(command, None, limit)?;
        self.tool(&format!("run `{}`", command.join(" ")), &cmd, sink)
            .await
    }

    /// The ID of this machine on a FleetLock server. Empty for other locks.
    fn node_id(&self, lock: &FleetLock) -> Result<String, ChangeError> {
        if !matches!(lock, FleetLock::Server(_)) {
            return Ok(String::new());
        }
        let text = self.host.files.read_text(Utf8Path::new(MACHINE_ID))?;
        fleetlock::node_id(&text.unwrap_or_default()).ok_or_else(|| {
            stays(
                "no-machine-id",
                format!("acquire the fleet lock: `{MACHINE_ID}` does not contain a machine ID"),
            )
            .advice("run `systemd-machine-id-setup`")
        })
    }

    /// Sends one request for the lock. The error is the reason.
    async fn ask_for_lock(&self, used: &LockUse, what: LockRequest) -> Result<(), String> {
        match &used.lock {
            FleetLock::None => Ok(()),
            FleetLock::Server(url) => {
                let id = self.node_id(&used.lock).map_err(|error| one_line(&error))?;
                let request = fleetlock::request(url, what, &id, &used.group);
                let response = self.host.http.ask(&request).await;
                fleetlock::result(&response.map_err(|error| one_line(&error))?)
            }
            FleetLock::Command(command) => {
                let mut command = command.clone();
                command.push(what.word().to_owned());
                let ran = async {
                    let cmd = self.with_environment(&command, None, LOCK_COMMAND)?;
                    let ran = self.host.exec.run(&cmd, &mut |_, _| {}).await;
                    ran.and_then(|output| output.success(&cmd))
                        .map_err(|source| {
                            ChangeError::tool(format!("run `{}`", cmd.line()), source)
                        })
                };
                ran.await.map(drop).map_err(|error| one_line(&error))
            }
        }
    }

    /// Waits for the lock. Every response but a success means that it is not acquired.
    async fn acquire_lock(&self, leave: &LeaveService, sink: &dyn Sink) -> Result<(), ChangeError> {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        let limit = Duration::from_secs(leave.lock_seconds);
        // An earlier run may have acquired it.
        (self.lacks_fleet_lock).store(!leave.continues, Ordering::SeqCst);
        loop {
            let Err(why) = self.ask_for_lock(&leave.lock, LockRequest::Acquire).await else {
                self.lacks_fleet_lock.store(false, Ordering::SeqCst);
                return Ok(());
            };
            let what = format!("acquire the fleet lock `{}`", leave.lock.lock);
            let rest = limit.saturating_sub(clock.monotonic().saturating_sub(started));
            if rest.is_zero() {
                let what = format!("{what} within {} s: {why}", leave.lock_seconds);
                return Err(stays("fleet-lock", what).advice(
                    "if another node holds the lock, wait until its upgrade has finished, or repair it \
                     if its Node object has the annotation `gpu-bootstrap/upgrade-failed`; otherwise \
                     check `fleet.lock`",
                ));
            }
            let pause = LOCK_AGAIN.min(rest);
            sink.retry(&format!("failed to {what}: {why}"), pause.as_secs_f64());
            self.pause_for(pause, &what).await?;
        }
    }

    /// Releases the lock. The network or the server may be unavailable for a moment, for example after a boot.
    async fn release_lock(&self, used: &LockUse) -> Result<(), String> {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        let what = format!("release the fleet lock `{}`", used.lock);
        loop {
            let Err(why) = self.ask_for_lock(used, LockRequest::Release).await else {
                return Ok(());
            };
            let is_over = clock.monotonic().saturating_sub(started) >= RETURN;
            if is_over || self.pause_for(LOCK_AGAIN, &what).await.is_err() {
                return Err(why);
            }
        }
    }

    /// Ends an upgrade that has not acquired the lock, and therefore has changed nothing. The release is requested once anyway,
    /// because the response to a successful request may have been lost.
    async fn without_lock(&self, used: &LockUse) -> Reverted {
        let lock = &used.lock;
        match self.ask_for_lock(used, LockRequest::Release).await {
            Ok(()) => Reverted::nothing(format!("the fleet lock `{lock}` was not acquired")),
            Err(why) => Reverted::left(format!("the fleet lock `{lock}`"), why),
        }
    }

    /// Marks the node: its upgrade has failed, so it stays out of service.
    pub(super) async fn mark_failed(
        &self,
        cluster: &ClusterNode,
        why: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let patch = json!({
            "metadata": {"annotations": {UPGRADE_FAILED: self.annotation(why)}},
        });
        let what = format!(
            "set the annotation `{UPGRADE_FAILED}` of node `{}`",
            cluster.node
        );
        self.awaited_node(cluster, &what).await?;
        self.patch(cluster, &what, &patch, sink).await
    }

    /// Returns the node to service. It is uncordoned only if we cordoned it, and the lock is released last.
    pub(super) async fn return_to_service(
        &self,
        undo: &ReturnToService,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let mut endings = Vec::new();
        if self.lacks_fleet_lock.load(Ordering::SeqCst) {
            return Ok(self.without_lock(&undo.lock).await);
        }
        match &undo.method {
            LeaveMethod::Nothing => {}
            LeaveMethod::Cluster(cluster) => endings.push(self.uncordon(cluster, sink).await?),
            LeaveMethod::Command { r#return, .. } => {
                let limit = Duration::from_secs(undo.drain_seconds).max(RETURN);
                self.service_command(r#return, limit, sink).await?;
                endings.push(Reverted::done(format!("ran `{}`", r#return.join(" "))));
            }
        }
        if undo.lock.lock != FleetLock::None {
            let lock = &undo.lock.lock;
            endings.push(match self.release_lock(&undo.lock).await {
                Ok(()) => Reverted::done(format!("released the fleet lock `{lock}`")),
                Err(why) => Reverted::left(format!("the fleet lock `{lock}`"), why),
            });
        }
        match endings.is_empty() {
            true => Ok(Reverted::nothing("the node was not taken out of service")),
            false => Ok(Reverted::of(endings)),
        }
    }

    async fn uncordon(
        &self,
        cluster: &ClusterNode,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let name = &cluster.node;
        if self.joined_cluster()?.is_none() {
            return Ok(Reverted::nothing("the machine is no longer a node"));
        }
        let what = format!("uncordon node `{name}`");
        let node = self.awaited_node(cluster, &what).await?;
        let Some(note) = node.annotations.get(MAINTENANCE) else {
            let why = format!("node `{name}` does not have the annotation `{MAINTENANCE}`");
            return Ok(Reverted::nothing(why));
        };
        let was_unschedulable =
            (serde_json::from_str::<Note>(note).ok()).is_some_and(|note| note.was_unschedulable);
        let mut patch = json!({
            "metadata": {"annotations": {MAINTENANCE: null, UPGRADE_FAILED: null}},
        });
        if !was_unschedulable {
            patch["spec"] = json!({"unschedulable": null});
        }
        self.patch(cluster, &what, &patch, sink).await?;
        Ok(Reverted::done(match was_unschedulable {
            true => format!("node `{name}` stays cordoned, as before the upgrade"),
            false => format!("node `{name}` is uncordoned"),
        }))
    }
}
