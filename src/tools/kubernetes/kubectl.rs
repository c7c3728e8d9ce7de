//! Reads and changes the node object of this machine with `kubectl`. It is installed with the kubelet packages and supports
//! every kubeconfig, including one with an exec plugin.
//!
//! Sources: Kubernetes, kubectl reference and API reference (`Node`).

use std::{collections::BTreeMap, time::Duration};

use camino::Utf8Path;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    host::{Cmd, ExecError, FilesError, Query, ReadFiles, Reader},
    model::{
        kubernetes::{Labels, NodeName, Taint},
        secret::Secret,
    },
};

/// The resource that the NVIDIA device plugin adds to a node.
pub const GPUS: &str = "nvidia.com/gpu";

/// The resource name if GPUs are shared by time-slicing or MPS with `renameByDefault`. Source: NVIDIA/k8s-device-plugin,
/// README, "Shared Access to GPUs".
const SHARED_GPUS: &str = "nvidia.com/gpu.shared";

/// Prefix of the resource names of MIG devices with the strategy `mixed`. Other `nvidia.com/` resources may be network
/// adapters.
pub const MIG_DEVICES: &str = "nvidia.com/mig-";

/// Whether a resource is a GPU or a part of one, for any device plugin. NVIDIA's network card plugin uses other names in
/// `nvidia.com`. The KubeVirt plugin uses board names such as `nvidia.com/GH100_H100_SXM5_80GB`.
pub fn is_of_gpus(resource: &str) -> bool {
    let is_board = (resource.strip_prefix("nvidia.com/"))
        .is_some_and(|name| name.starts_with(char::is_uppercase));
    is_board
        || resource.starts_with(MIG_DEVICES)
        || ["gpu", "cuda"].iter().any(|word| resource.contains(word))
}

/// Part of the kubectl error if the object does not exist.
pub(super) const NOT_FOUND: &str = "(NotFound)";

/// Part of the kubectl error if the node was changed since it was read.
pub const CONFLICT: &str = "(Conflict)";

/// The time limit of one request, shorter than the time limit of the command.
const REQUEST: &str = "--request-timeout=10s";
const DEADLINE: Duration = Duration::from_secs(20);

/// A kubectl program, with the arguments that precede the kubectl arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kubectl {
    pub program: &'static str,
    /// The preceding arguments.
    pub first: &'static [&'static str],
}

/// The `kubectl` binary, and the ones in Kubernetes distributions. Sources: k3s, "Command-line tools"; RKE2, "Cluster access".
pub const PROGRAMS: [Kubectl; 5] = [
    Kubectl {
        program: "/usr/bin/kubectl",
        first: &[],
    },
    Kubectl {
        program: "/usr/local/bin/kubectl",
        first: &[],
    },
    // On GKE nodes. Source: kubernetes/kubernetes, `cluster/gce/gci/configure.sh`, `install-kube-binary-config`.
    Kubectl {
        program: "/home/kubernetes/bin/kubectl",
        first: &[],
    },
    Kubectl {
        program: "/usr/local/bin/k3s",
        first: &["kubectl"],
    },
    Kubectl {
        program: "/var/lib/rancher/rke2/bin/kubectl",
        first: &[],
    },
];

/// Returns the installed kubectl, or `None` if none is installed.
///
/// # Errors
/// If the files of the machine cannot be read.
pub fn find<F: ReadFiles + ?Sized>(files: &F) -> Result<Option<Kubectl>, FilesError> {
    for one in PROGRAMS {
        if files.exists(Utf8Path::new(one.program))? {
            return Ok(Some(one));
        }
    }
    Ok(None)
}

impl Kubectl {
    /// Returns the arguments of a command: the options, then the operands, which cannot be parsed as options.
    fn args(
        self,
        kubeconfig: &Utf8Path,
        options: &[&str],
        operands: impl IntoIterator<Item = String>,
    ) -> Vec<String> {
        let mut args: Vec<String> = self.first.iter().map(|&word| word.to_owned()).collect();
        args.extend([format!("--kubeconfig={kubeconfig}"), REQUEST.to_owned()]);
        args.extend(options.iter().map(|&word| word.to_owned()));
        args.push("--".to_owned());
        args.extend(operands);
        args
    }

    /// Queries the node.
    pub fn node(self, kubeconfig: &Utf8Path, name: &NodeName) -> Query {
        let args = self.args(
            kubeconfig,
            &["get", "node", "--output=json"],
            [name.to_string()],
        );
        Query::new(self.program, args).deadline(DEADLINE)
    }

    /// Queries the version of the API server, which every account may read.
    pub fn version(self, kubeconfig: &Utf8Path) -> Query {
        let own = ["get", "--raw=/version"];
        Query::new(self.program, self.args(kubeconfig, &own, [])).deadline(DEADLINE)
    }

    /// Sets labels, and removes labels with the value `None`.
    pub fn label<'l>(
        self,
        kubeconfig: &Utf8Path,
        name: &NodeName,
        labels: impl Iterator<Item = (&'l str, Option<&'l str>)>,
    ) -> Cmd {
        let labels = labels.map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}-"),
        });
        let operands = std::iter::once(name.to_string()).chain(labels);
        let args = self.args(kubeconfig, &["label", "node", "--overwrite"], operands);
        Cmd::new(self.program, args).deadline(DEADLINE)
    }

    /// Replaces the status of the node. `node` is the complete object from [`asked`]. `kubectl patch` is not used, because it
    /// first reads the status with a separate request, for which kubelets have no permission. Every kubelet may write the
    /// status of its own node (kubernetes/kubernetes, `plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go`,
    /// `NodeRules`).
    pub fn replace_status(self, kubeconfig: &Utf8Path, name: &NodeName, node: String) -> Cmd {
        let address = format!("--raw=/api/v1/nodes/{name}/status");
        let args = self.args(kubeconfig, &["replace", &address, "--filename=-"], []);
        Cmd::new(self.program, args)
            .deadline(DEADLINE)
            .stdin(Secret::new(node))
    }

    pub fn untaint(self, kubeconfig: &Utf8Path, name: &NodeName, taints: &[&Taint]) -> Cmd {
        let taints = (taints.iter()).map(|taint| format!("{}:{}-", taint.key, taint.effect.name()));
        let values = std::iter::once(name.to_string()).chain(taints);
        let args = self.args(kubeconfig, &["taint", "node"], values);
        Cmd::new(self.program, args).deadline(DEADLINE)
    }

    /// Evicts the pods of the node. DaemonSet pods stay, and the data of `emptyDir` volumes is lost.
    pub fn drain(self, kubeconfig: &Utf8Path, name: &NodeName, timeout: Duration) -> Cmd {
        let limit = format!("--timeout={}s", timeout.as_secs());
        let own = [
            "drain",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            &limit,
        ];
        let args = self.args(kubeconfig, &own, [name.to_string()]);
        Cmd::new(self.program, args).deadline(timeout + DEADLINE)
    }

    /// Lists the pods of a node. A kubelet may only list pods with this selector (kubernetes/enhancements, KEP-4601).
    pub fn pods(self, kubeconfig: &Utf8Path, name: &NodeName) -> Query {
        let address = format!("--raw=/api/v1/pods?fieldSelector=spec.nodeName%3D{name}");
        let args = self.args(kubeconfig, &["get", &address], []);
        Query::new(self.program, args).deadline(DEADLINE)
    }

    /// Requests the eviction of a pod with this document. Every kubelet may evict the pods of its node (kubernetes/kubernetes,
    /// `plugin/pkg/admission/noderestriction/admission.go`, `admitPodEviction`).
    pub fn evict(
        self,
        kubeconfig: &Utf8Path,
        (namespace, pod): (&str, &str),
        eviction: String,
    ) -> Cmd {
        let address = format!("--raw=/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        let args = self.args(kubeconfig, &["create", &address, "--filename=-"], []);
        Cmd::new(self.program, args)
            .deadline(DEADLINE)
            .stdin(Secret::new(eviction))
    }

    /// Queries whether the eviction of a pod is permitted now, with the same permission and the same result as
    /// [`Kubectl::evict`]. The API server evaluates the disruption budgets, but neither evicts the pod nor counts the request
    /// (kubernetes/kubernetes, `pkg/registry/core/pod/storage/eviction.go`, `checkAndDecrement`). A kubelet may not read the
    /// budgets themselves.
    pub fn may_evict(
        self,
        kubeconfig: &Utf8Path,
        (namespace, pod): (&str, &str),
        eviction: String,
    ) -> Query {
        let address =
            format!("--raw=/api/v1/namespaces/{namespace}/pods/{pod}/eviction?dryRun=All");
        let args = self.args(kubeconfig, &["create", &address, "--filename=-"], []);
        Query::new(self.program, args)
            .deadline(DEADLINE)
            .stdin(Secret::new(eviction))
    }

    /// Applies a JSON merge patch to the node: `null` removes a field. A kubelet may change its own node, except its taints and
    /// some labels (kubernetes/kubernetes, `plugin/pkg/admission/noderestriction/admission.go`, `admitNode`).
    pub fn patch(self, kubeconfig: &Utf8Path, name: &NodeName, patch: &Value) -> Cmd {
        let patch = format!("--patch={patch}");
        let own = ["patch", "node", "--type=merge", &patch];
        let args = self.args(kubeconfig, &own, [name.to_string()]);
        Cmd::new(self.program, args).deadline(DEADLINE)
    }

    /// Deletes the node object.
    pub fn delete(self, kubeconfig: &Utf8Path, name: &NodeName) -> Cmd {
        let own = ["delete", "node", "--ignore-not-found"];
        let args = self.args(kubeconfig, &own, [name.to_string()]);
        Cmd::new(self.program, args).deadline(DEADLINE)
    }
}

/// A node in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub ready: bool,
    /// The kubelet's reason if the node is not Ready.
    pub why: Option<String>,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
    /// No pods are scheduled on it.
    pub unschedulable: bool,
    /// The taints. A taint that gpu-bootstrap cannot parse is omitted.
    pub taints: Vec<Taint>,
    /// The number of GPUs for pods, or `None` if the node does not have the resource [`GPUS`].
    pub allocatable_gpus: Option<String>,
    /// Shared GPUs and MIG devices for pods, with their numbers.
    pub other_resources: BTreeMap<String, String>,
    /// The kubelet version.
    pub kubelet: Option<String>,
    /// The container runtime, for example `containerd://2.1.4`.
    pub runtime: Option<String>,
    /// The machine ID that the kubelet reports, see [`MACHINE_IDS`].
    pub system_uuid: Option<String>,
}

impl Node {
    /// Describes the resources that the node has instead of [`GPUS`], or returns `None` if it has none.
    pub fn offered_instead(&self) -> Option<String> {
        let others = (self.other_resources.iter()).filter(|(_, count)| is_some(count));
        let others: Vec<String> = others
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        (!others.is_empty()).then(|| others.join(", "))
    }
}

/// The files with a machine ID. The kubelet uses the first existing one. Source: google/cadvisor, `utils/sysfs/sysfs.go`,
/// `GetSystemUUID`.
pub const MACHINE_IDS: [&str; 4] = [
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    "/etc/machine-id",
];

/// Whether a resource count is not 0.
fn is_some(count: &str) -> bool {
    count.parse() != Ok(0_u64)
}

/// The result of a node query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    Node(Box<Node>),
    /// The node does not exist in the cluster.
    Unknown,
    /// The query failed, with the reason.
    Silent(String),
}

/// The unparsed result of a node query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAnswer {
    /// The node, as JSON.
    Node(String),
    /// The node does not exist in the cluster.
    Unknown,
    /// The query failed, with the reason.
    Silent(String),
}

/// Queries a node. A failed query is not an error, because the API server may be temporarily unavailable.
///
/// # Errors
/// If kubectl cannot be executed.
pub async fn asked(
    host: Reader<'_>,
    kubectl: Kubectl,
    kubeconfig: &Utf8Path,
    name: &NodeName,
) -> Result<NodeAnswer, ExecError> {
    let query = kubectl.node(kubeconfig, name);
    let output = match host.query(&query).await {
        Ok(output) => output,
        Err(error @ ExecError::Deadline { .. }) => {
            return Ok(NodeAnswer::Silent(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    if !output.ok() {
        if output.stderr.contains(NOT_FOUND) {
            return Ok(NodeAnswer::Unknown);
        }
        // The lines before the last one report kubectl's retries.
        let said = output.stderr.trim().lines().last();
        let why = said.map_or_else(|| output.failure(query.cmd()).to_string(), str::to_owned);
        return Ok(NodeAnswer::Silent(why));
    }
    Ok(NodeAnswer::Node(output.stdout))
}

/// Queries and parses a node, see [`asked`].
///
/// # Errors
/// If kubectl cannot be executed, or does not print a node.
pub async fn registered(
    host: Reader<'_>,
    kubectl: Kubectl,
    kubeconfig: &Utf8Path,
    name: &NodeName,
) -> Result<Registered, ExecError> {
    let text = match asked(host, kubectl, kubeconfig, name).await? {
        NodeAnswer::Node(text) => text,
        NodeAnswer::Unknown => return Ok(Registered::Unknown),
        NodeAnswer::Silent(why) => return Ok(Registered::Silent(why)),
    };
    let node = parse_node(&text).map_err(|why| ExecError::Unexpected {
        command: kubectl.node(kubeconfig, name).cmd().line(),
        why,
    })?;
    Ok(Registered::Node(Box::new(node)))
}

/// Parses the output of [`Kubectl::version`].
pub fn server_version(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ServerVersion {
        git_version: String,
    }
    let version: ServerVersion = serde_json::from_str(text).ok()?;
    Some(version.git_version)
}

#[derive(Debug, Deserialize)]
struct NodeObject {
    metadata: Metadata,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    unschedulable: bool,
    #[serde(default)]
    taints: Vec<TaintEntry>,
}

#[derive(Debug, Deserialize)]
struct TaintEntry {
    key: String,
    #[serde(default)]
    value: String,
    effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    #[serde(default)]
    conditions: Vec<NodeCondition>,
    #[serde(default)]
    allocatable: BTreeMap<String, String>,
    #[serde(default)]
    node_info: NodeInfo,
}

#[derive(Debug, Deserialize)]
struct NodeCondition {
    r#type: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    kubelet_version: Option<String>,
    container_runtime_version: Option<String>,
    #[serde(rename = "systemUUID")]
    system_uuid: Option<String>,
}

/// Parses the output of [`Kubectl::node`].
///
/// # Errors
/// If the text is not a node.
fn parse_node(text: &str) -> Result<Node, String> {
    let document: NodeObject = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let ready = (document.status.conditions.iter()).find(|one| one.r#type == "Ready");
    let is_ready = ready.is_some_and(|condition| condition.status == "True");
    let why = match ready {
        _ if is_ready => None,
        None => Some("the kubelet has not reported its status yet".to_owned()),
        Some(condition) => Some(format!("{}: {}", condition.reason, condition.message)),
    };
    let taint = |entry: &TaintEntry| {
        let text = format!("{}={}:{}", entry.key, entry.value, entry.effect);
        text.parse().ok()
    };
    let mut resources = document.status.allocatable;
    let allocatable_gpus = resources.remove(GPUS);
    resources.retain(|name, _| name == SHARED_GPUS || name.starts_with(MIG_DEVICES));
    Ok(Node {
        ready: is_ready,
        why,
        labels: document.metadata.labels,
        annotations: document.metadata.annotations,
        unschedulable: document.spec.unschedulable,
        taints: document.spec.taints.iter().filter_map(taint).collect(),
        allocatable_gpus,
        other_resources: resources,
        kubelet: document.status.node_info.kubelet_version,
        runtime: document.status.node_info.container_runtime_version,
        system_uuid: (document.status.node_info.system_uuid).filter(|id| !id.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = r#"{
  "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.present": "true"}},
  "spec": {"taints": [
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-11-24T00:00:00Z"}
  ]},
  "status": {
    "allocatable": {"cpu": "2", "nvidia.com/gpu": "8"},
    "conditions": [
      {"type": "MemoryPressure", "status": "False"},
      {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni plugin not initialized"}
    ],
    "nodeInfo": {"kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.1.4", "systemUUID": "EC2-1"}
  }
}"#;

    #[test]
    fn node_is_parsed() {
        let node = parse_node(NODE).expect("a node");
        assert!(!node.ready);
        assert_eq!(
            node.why.as_deref(),
            Some("KubeletNotReady: cni plugin not initialized")
        );
        let taints: Vec<String> = node.taints.iter().map(ToString::to_string).collect();
        assert_eq!(
            taints,
            [
                "nvidia.com/gpu=present:NoSchedule",
                "node.kubernetes.io/not-ready:NoExecute"
            ]
        );
        assert_eq!(node.allocatable_gpus.as_deref(), Some("8"));
        assert_eq!(node.runtime.as_deref(), Some("containerd://2.1.4"));
        assert_eq!(node.system_uuid.as_deref(), Some("EC2-1"));
        assert_eq!(
            server_version(r#"{"major": "1", "gitVersion": "v1.34.4"}"#).as_deref(),
            Some("v1.34.4")
        );
        assert_eq!(node.offered_instead(), None);
        for (offered, instead) in rows! {
            r#""nvidia.com/gpu": "0""#, None;
            r#""nvidia.com/hostdev": "8""#, None;
            r#""nvidia.com/gpu.shared": "32""#, Some("32 nvidia.com/gpu.shared");
            r#""nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "0""#,
                Some("7 nvidia.com/mig-1g.10gb");
        } {
            let node = NODE.replace(r#""nvidia.com/gpu": "8""#, offered);
            let node = parse_node(&node).expect("a node");
            assert_eq!(node.offered_instead().as_deref(), instead, "{offered}");
        }
        let ready = NODE.replace(
            r#""status": "False", "reason""#,
            r#""status": "True", "reason""#,
        );
        let node = parse_node(&ready).expect("a node");
        assert_eq!((node.ready, node.why), (true, None));
        let new = parse_node(r#"{"metadata": {"name": "gpu-1"}}"#).expect("a node");
        assert!(!new.ready && new.why.is_some());
        parse_node("no node").expect_err("not JSON");
    }

    #[test]
    fn labels_are_set_and_removed() {
        let cmd = PROGRAMS[3].label(
            "/etc/k".into(),
            &"gpu-1".parse().expect("a name"),
            [("a", Some("b")), ("c", None)].into_iter(),
        );
        assert_eq!(
            cmd.line(),
            "/usr/local/bin/k3s kubectl --kubeconfig=/etc/k --request-timeout=10s label node --overwrite -- gpu-1 \
             a=b c-"
        );
    }
}
