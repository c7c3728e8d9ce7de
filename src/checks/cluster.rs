//! Checks of the node in its cluster: it is Ready, has its taints, has compatible versions, and its GPUs are allocatable.
//! The cluster is queried with the kubelet's credentials.

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde::Deserialize;

use super::{
    operator::{self, OPERATOR},
    sharing,
};
use crate::{
    check::{Family, Finding, Subject, Verdict},
    config::desired::Desired,
    error::causes,
    host::{Nvml, ReadFiles},
    model::{
        id::Id,
        kubernetes::{NodeName, OF_READINESS, Taint},
    },
    runtimes::{PROGRAMS, RuntimeKind},
    sharing::{DRA_DRIVER, GpuAllocation},
    state::{Membership, Registered, Renamed, StateError},
    step::StepError,
    tools::{
        kubelet,
        kubernetes::{
            kubectl::{self, GPUS, Node},
            skew,
        },
    },
};

const READY: Id = Id::new("k8s.ready");
const VERSIONS: Id = Id::new("k8s.versions");
const SKEW_POLICY: &str = "https://kubernetes.io/releases/version-skew-policy/";
/// The directories of CNI plugins: the runtimes' default, and the directory of Debian packages.
const PLUGINS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// The directory of CNI configurations.
const NETWORKS: &str = "/etc/cni/net.d";
/// The data directory of k3s and RKE2.
const RANCHER: &str = "/var/lib/rancher";

const TAINTS: Id = Id::new("k8s.taints");
const TAINTS_DOC: &str =
    "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/";

const ALLOCATABLE: Id = Id::new("k8s.allocatable");
const LINK: &str = "https://github.com/NVIDIA/k8s-device-plugin";
const NO_PLUGIN: &str = "install the NVIDIA device plugin or GPU Operator in the cluster; if it is installed, check the \
                         tolerations and the log of its pod";
const FEWER: &str =
    "find the unhealthy GPU in the log of the device plugin pod on this node (`kubectl logs`)";

/// The kubelet's checkpoint of device plugins. Its directory is independent of the kubelet's root directory. Sources:
/// kubernetes/kubernetes, `pkg/kubelet/cm/devicemanager/manager.go` (`kubeletDeviceManagerCheckpoint`, `writeCheckpoint`: the
/// healthy devices of each resource) and issue 120626 (the directory).
const RECORD: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

const IDS: [Id; 5] = [READY, TAINTS, VERSIONS, OPERATOR, ALLOCATABLE];

/// The cluster checks.
pub(super) const FAMILY: Family = Family {
    ids: || IDS.to_vec(),
    examine: |subject| Box::pin(examine(subject)),
};

/// The number of healthy devices by resource, or the parse error.
type RegisteredDevices = Result<BTreeMap<String, usize>, String>;

/// The parsed fields of [`RECORD`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KubeletRecord {
    data: RecordedData,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RecordedData {
    registered_devices: Option<BTreeMap<String, Vec<String>>>,
}

/// Whether the NVIDIA DRA driver offers the GPUs. The node has no resources then, and its ResourceSlices are not read.
#[derive(Debug, Clone, Copy, Default)]
struct Dra {
    /// By `cluster.gpu-allocation`.
    is_configured: bool,
    /// Its directory exists. It remains after the driver was removed from the cluster.
    has_run: bool,
}

struct ClusterState {
    /// The kubelet's credentials cannot be read, because only root may read them.
    is_denied: bool,
    /// The registered node name and the different name that the kubelet uses; `None` if they are equal.
    renamed: Option<Renamed>,
    /// The node name and its registration in the cluster; `None` if the machine is not a node or has no host name.
    node: Option<(NodeName, Registered)>,
    /// The number of GPUs in NVML; `None` if it does not respond.
    gpus: Option<usize>,
    /// The resources that the configured sharing results in; `None` without sharing, or if they are unknown.
    shares: Option<sharing::Resources>,
    /// Whether the DRA driver is configured, or has run on this machine.
    dra: Dra,
    /// The version of the API server, if it responds.
    server: Option<String>,
    /// Whether the machine has cgroup v1.
    cgroup_v1: bool,
    /// Missing parts of the pod network on this machine.
    network_lacks: Vec<String>,
    /// The kubelet's checkpoint of device plugins; `None` if it is not required (the cluster responds) or not conclusive (see
    /// [`recorded`]).
    recorded: Option<RegisteredDevices>,
}

async fn detect(subject: &Subject<'_>) -> Result<ClusterState, StepError> {
    let nothing = |is_denied, recorded| ClusterState {
        is_denied,
        renamed: None,
        node: None,
        gpus: None,
        shares: None,
        dra: Dra::default(),
        server: None,
        cgroup_v1: false,
        network_lacks: Vec::new(),
        recorded,
    };
    let membership: Membership = match subject.state.membership() {
        Ok(Some(membership)) => membership,
        Ok(None) => return Ok(nothing(false, recorded(subject)?)),
        Err(StateError::Files(error)) if error.is_denied() => return Ok(nothing(true, None)),
        Err(error) => return Err(error.into()),
    };
    let named = (subject.desired).and_then(|desired| desired.cluster.as_ref()?.node.name.clone());
    let name = match named {
        Some(name) => Some(name),
        None => subject.state.host_name()?,
    };
    let node = match name {
        Some(name) => {
            let says = subject.state.registered(&membership, &name).await?;
            Some((name, says))
        }
        None => None,
    };
    let gpus = match subject.state.nvml().await {
        Nvml::Ready(view) => Some(view.devices.len()),
        _ => None,
    };
    let dra = dra(subject)?;
    let shares = match subject.desired.filter(|_| !dra.is_configured) {
        Some(desired) => sharing::expected(&desired.device_plugin, subject.state.nvml().await),
        None => None,
    };
    let answers = matches!(node, Some((_, Registered::Node(_))));
    let says_nothing = matches!(node, None | Some((_, Registered::Silent(_))));
    let files = subject.host.files();
    Ok(ClusterState {
        is_denied: false,
        renamed: subject.state.renamed()?,
        node,
        gpus,
        shares,
        dra,
        server: match answers {
            true => subject.state.api_server(&membership).await?,
            false => None,
        },
        cgroup_v1: subject.facts.kernel.cgroup_v1,
        network_lacks: match brings_network(&membership) {
            true => Vec::new(),
            false => network_lacks(files)?,
        },
        recorded: match says_nothing {
            true => recorded(subject)?,
            false => None,
        },
    })
}

/// Returns the finding for a kubelet that does not start with cgroup v1 according to its log, in a tree whose cluster cannot be
/// queried.
fn refused_cgroup_v1(subject: &Subject<'_>) -> Result<Option<Finding>, StepError> {
    let path = match subject.facts.kernel.cgroup_v1 {
        true => kubelet::refused_cgroup_v1(subject.host.files(), &PROGRAMS)?,
        false => None,
    };
    Ok(path.map(|path| {
        Finding::new(
            VERSIONS,
            Verdict::Warn,
            format!("the kubelet did not start: {} (`{path}`)", skew::CGROUP_V1),
        )
        .with_remedy(skew::CGROUP_V1_REMEDY)
    }))
}

/// Returns the finding for a machine with cgroup v1 whose kubelet will start only with `failCgroupV1: false`. Without this entry
/// in the settings, the join is refused.
fn accepts_cgroup_v1(subject: &Subject<'_>) -> Option<Finding> {
    let spec = subject.desired?.cluster.as_ref()?;
    let package = spec.packages.iter().find(|one| one.name == "kubelet")?;
    let why = skew::with_cgroup_v1(package.version.as_deref()?)?;
    let is_accepted = spec.method.implementation().ignores("SystemVerification");
    (subject.facts.kernel.cgroup_v1 && is_accepted).then(|| {
        Finding::new(
            VERSIONS,
            Verdict::Warn,
            format!("{why}, unless the cluster sets `failCgroupV1: false`"),
        )
        .with_remedy(skew::CGROUP_V1_REMEDY)
    })
}

/// Returns the kubelet's checkpoint of device plugins. `None` if the kubelet is not running, because the file remains after the
/// kubelet has stopped or was removed. Also `None` without a readable checkpoint, without GPUs, and with a DRA driver.
fn recorded(subject: &Subject<'_>) -> Result<Option<RegisteredDevices>, StepError> {
    let files = subject.host.files();
    if subject.state.is_of_this_machine()
        && (subject.state.kubelet_runtime()?).is_none_or(|kubelet| !kubelet.runs)
    {
        return Ok(None);
    }
    let text = match files.read_text(Utf8Path::new(RECORD)) {
        // Only root may read it.
        Err(error) if error.is_denied() => None,
        read => read?,
    };
    let Some(text) = text.filter(|_| !subject.facts.gpus.is_empty()) else {
        return Ok(None);
    };
    let dra = dra(subject)?;
    Ok((!dra.is_configured && !dra.has_run).then(|| read_record(&text)))
}

fn dra(subject: &Subject<'_>) -> Result<Dra, StepError> {
    let is_dra = |desired: &Desired| desired.settings.cluster.gpu_allocation == GpuAllocation::Dra;
    Ok(Dra {
        is_configured: subject.desired.is_some_and(is_dra),
        has_run: subject.host.files().exists(Utf8Path::new(DRA_DRIVER))?,
    })
}

/// Evaluates the resources of a node whose GPUs the DRA driver offers. `None` if a device plugin offers them.
fn by_dra(dra: Dra, name: &str, node: &Node) -> Option<Finding> {
    let finding = |status, why: String| Finding::new(ALLOCATABLE, status, why);
    let is_some = |count: &String| count != "0";
    let resources = (node.allocatable_gpus.clone().filter(is_some))
        .map(|count| format!("{count} {GPUS}"))
        .or_else(|| node.offered_instead());
    match (dra.is_configured, dra.has_run, resources) {
        (true, _, Some(found)) => Some(
            finding(
                Verdict::Warn,
                format!(
                    "a device plugin offers {found} of node `{name}`, but the DRA driver is configured (`cluster.gpu-allocation`): \
                     pods would get the same GPUs twice"
                ),
            )
            .with_remedy(
                "remove the device plugin from the cluster, or remove `cluster.gpu-allocation` from the settings",
            ),
        ),
        (true, false, None) => Some(
            finding(
                Verdict::Warn,
                format!(
                    "no GPUs for pods: the DRA driver has not started on node `{name}` (`{DRA_DRIVER}` is missing)"
                ),
            )
            .with_remedy(
                "run `gpu-bootstrap manifests --out DIR` and `kubectl apply -f DIR`; if the driver is installed, read the log of its \
                 pod on this node",
            ),
        ),
        // The directory remains after the driver was removed, and a stopped device plugin offers 0 GPUs.
        (false, true, None) if node.allocatable_gpus.is_some() => None,
        (_, true, None) => Some(finding(
            Verdict::Skip,
            format!(
                "the DRA driver has run on node `{name}`: `kubectl get resourceslices` lists the GPUs that it offers"
            ),
        )),
        (false, _, _) => None,
    }
}

fn read_record(text: &str) -> RegisteredDevices {
    let record: KubeletRecord =
        serde_json::from_str(text).map_err(|error| format!("`{RECORD}`: {error}"))?;
    let resources = record.data.registered_devices.unwrap_or_default();
    let counted = resources
        .into_iter()
        .map(|(name, devices)| (name, devices.len()));
    Ok(counted.collect())
}

/// Evaluates the kubelet's checkpoint if the cluster does not respond. `gpus` is the number of GPUs in NVML.
fn by_record(resources: &BTreeMap<String, usize>, gpus: Option<usize>) -> Finding {
    let with = |status, why: String, remedy: &str| Finding {
        remedy: Some(remedy.to_owned()),
        links: vec![LINK.to_owned()],
        ..Finding::new(ALLOCATABLE, status, why)
    };
    let fail = |why: String| with(Verdict::Fail, why, NO_PLUGIN);
    let of_gpus: Vec<(&String, usize)> = (resources.iter())
        .filter(|(name, _)| kubectl::is_of_gpus(name))
        .map(|(name, count)| (name, *count))
        .collect();
    let list = |all: &[(&String, usize)]| {
        let all: Vec<String> = (all.iter())
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        all.join(", ")
    };
    match &of_gpus[..] {
        // A new node is in this state until the pod of the plugin runs.
        [] => with(
            Verdict::Warn,
            format!(
                "no GPUs for pods, because no device plugin has registered GPUs with the kubelet (`{RECORD}`)"
            ),
            NO_PLUGIN,
        ),
        all if all.iter().all(|(_, count)| *count == 0) => fail(format!(
            "no GPUs for pods, because the kubelet has no healthy GPU ({}, `{RECORD}`): the device plugin has stopped or \
             reports all GPUs as unhealthy",
            list(all)
        )),
        [(name, count)] if *name == GPUS && gpus.is_some_and(|gpus| *count < gpus) => with(
            Verdict::Warn,
            format!(
                "the kubelet has {count} of {} GPUs (`{RECORD}`)",
                gpus.unwrap_or_default()
            ),
            FEWER,
        ),
        all => Finding::new(
            ALLOCATABLE,
            Verdict::Pass,
            format!("the kubelet has {} (`{RECORD}`)", list(all)),
        ),
    }
}

/// Whether the node's Kubernetes distribution ships CNI plugins in its own directories. Sources: k3s, "Basic network options";
/// RKE2, "Networking".
fn brings_network(membership: &Membership) -> bool {
    membership.kubeconfig.starts_with(RANCHER)
}

/// Returns the missing parts of the pod network: CNI plugins and a CNI configuration.
fn network_lacks(files: &dyn ReadFiles) -> Result<Vec<String>, StepError> {
    let mut lacks = Vec::new();
    let mut has_plugins = false;
    for directory in PLUGINS {
        has_plugins |= !files.list(directory.into())?.is_empty();
    }
    if !has_plugins {
        lacks.push(format!("no CNI plugin in `{}`", PLUGINS[0]));
    }
    let names = files.list(NETWORKS.into())?;
    let is_network = |name: &String| {
        [".conf", ".conflist", ".json"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    if !names.iter().any(is_network) {
        lacks.push(format!("no CNI configuration in `{NETWORKS}`"));
    }
    Ok(lacks)
}

/// The node, or the reason why it is unknown.
fn known(state: &ClusterState) -> Result<(&str, &Node), (Verdict, String)> {
    if state.is_denied {
        let why = "only root may read the kubelet's credentials";
        return Err((Verdict::Skip, why.to_owned()));
    }
    match &state.node {
        None => Err((
            Verdict::Skip,
            "the machine is not a cluster node".to_owned(),
        )),
        Some((name, Registered::Node(node))) => Ok((name, node)),
        Some((name, Registered::Unknown)) => Err((
            Verdict::Unknown,
            format!("node `{name}` does not exist in the cluster"),
        )),
        Some((_, Registered::Silent(why))) => Err((Verdict::Unknown, why.clone())),
    }
}

/// Whether the node is Ready. On new nodes, the most frequent reason is a missing pod network.
fn ready(state: &ClusterState) -> Finding {
    let finding = |status, why: String| Finding::new(READY, status, why);
    let found = known(state);
    if let Some(names) = &state.renamed {
        let remedy = Some(names.remedy());
        return match found {
            Ok((_, node)) if node.ready => Finding {
                remedy,
                ..finding(
                    Verdict::Warn,
                    format!("the kubelet will fail at its next start: {names}"),
                )
            },
            _ => Finding {
                remedy,
                ..finding(Verdict::Fail, names.to_string())
            },
        };
    }
    let (name, node) = match found {
        Ok(known) => known,
        Err((status, why)) => return finding(status, why),
    };
    if node.ready {
        return finding(Verdict::Pass, format!("node `{name}` is Ready"));
    }
    let why = node.why.as_deref().unwrap_or("for an unknown reason");
    let of_network = why.contains("cni") || why.contains("NetworkReady=false");
    let (lacks, remedy) = match (of_network, &state.network_lacks[..]) {
        (true, [_, ..]) => (
            format!("; {}", state.network_lacks.join(", and ")),
            "check the tolerations and the log of the CNI add-on's pod on this node, which installs the plugin and its \
             configuration",
        ),
        _ => (
            String::new(),
            "read the kubelet's log: `journalctl --unit kubelet`",
        ),
    };
    finding(
        Verdict::Fail,
        format!("node `{name}` is not Ready ({why}){lacks}"),
    )
    .with_remedy(remedy)
}

/// Whether the node still has its configured taints. Without them, pods that need no GPU are scheduled on it.
fn taints(state: &ClusterState, wanted: &[Taint]) -> Finding {
    let finding = |status, why: String| Finding::new(TAINTS, status, why);
    let (name, node) = match known(state) {
        Ok(known) => known,
        Err((status, why)) => return finding(status, why),
    };
    // Readiness taints are set at registration and removed by the controllers that own them.
    let persistent = (wanted.iter()).filter(|taint| !taint.key.starts_with(OF_READINESS));
    if persistent.clone().next().is_none() {
        return finding(
            Verdict::Skip,
            "no permanent taints are configured".to_owned(),
        );
    }
    let missing: Vec<String> = persistent
        .filter(|taint| !node.taints.contains(taint))
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return finding(Verdict::Pass, format!("node `{name}` has its taints"));
    }
    Finding {
        remedy: Some(format!(
            "run `kubectl taint node {name} {}`; if they were removed on purpose, remove them from `cluster.taints` \
             instead",
            missing.join(" ")
        )),
        links: vec![TAINTS_DOC.to_owned()],
        ..finding(
            Verdict::Warn,
            format!("node `{name}` lacks {}", missing.join(", ")),
        )
    }
}

/// Whether the kubelet is compatible with the API server, the container runtime and the cgroup version.
fn versions(state: &ClusterState) -> Finding {
    let finding = |status, why: String| Finding::new(VERSIONS, status, why);
    let unknown = |status, why| match state.cgroup_v1 {
        // A kubelet that does not start is not reported by the cluster.
        true => finding(
            Verdict::Warn,
            format!(
                "{}, but the version of this kubelet is unknown",
                skew::CGROUP_V1
            ),
        )
        .with_remedy(skew::CGROUP_V1_REMEDY),
        false => finding(status, why),
    };
    let node = match known(state) {
        Ok((_, node)) => node,
        Err((status, why)) => return unknown(status, why),
    };
    let Some(kubelet) = &node.kubelet else {
        let why = "the cluster does not report the kubelet version".to_owned();
        return unknown(Verdict::Unknown, why);
    };
    // For example `containerd://1.7.28`.
    let runtime = (node.runtime.as_deref()).and_then(|text| text.split_once("://"));
    let runtime = runtime.and_then(|(scheme, version)| {
        let kind =
            (RuntimeKind::ALL.into_iter()).find(|kind| kind.runtime().facts().scheme == scheme);
        Some((kind?.runtime(), version))
    });
    let whys: Vec<String> = [
        (state.server.as_deref()).and_then(|server| skew::with_server(kubelet, server)),
        runtime.and_then(|(runtime, version)| runtime.refuses_kubelet(kubelet, version)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !whys.is_empty() {
        return Finding {
            remedy: Some(
                "install compatible versions (`cluster.version` sets the kubelet version), then join again"
                    .to_owned(),
            ),
            links: vec![SKEW_POLICY.to_owned()],
            ..finding(Verdict::Fail, whys.join("; "))
        };
    }
    // The kubelet still runs if its configuration allows cgroup v1.
    if let (true, Some(why)) = (state.cgroup_v1, skew::with_cgroup_v1(kubelet)) {
        return finding(
            Verdict::Warn,
            format!("{why}, unless its configuration has `failCgroupV1: false`"),
        )
        .with_remedy(skew::CGROUP_V1_REMEDY);
    }
    let untested = runtime.and_then(|(runtime, version)| {
        let (why, link) = runtime.untested_kubelet(kubelet, version)?;
        Some((runtime, why, link))
    });
    if let Some((of, why, link)) = untested {
        return Finding {
            remedy: Some(format!(
                "install a {} version that was tested with this kubelet, or a kubelet that was tested with it",
                of.facts().title
            )),
            links: vec![link.to_owned()],
            ..finding(Verdict::Warn, why)
        };
    }
    let server =
        (state.server.as_deref()).map_or_else(|| "unknown".to_owned(), |server| server.to_owned());
    let runtime = node.runtime.as_deref().unwrap_or("unknown");
    finding(
        Verdict::Pass,
        format!("kubelet {kubelet}, API server {server}, runtime {runtime}"),
    )
}

fn decide(state: &ClusterState) -> Finding {
    let finding = |status, why: String| Finding::new(ALLOCATABLE, status, why);
    let (name, node) = match (known(state), &state.recorded) {
        (Ok(known), _) => known,
        (Err(_), Some(Ok(resources))) => return by_record(resources, state.gpus),
        (Err(_), Some(Err(why))) => return finding(Verdict::Unknown, why.clone()),
        (Err((status, why)), None) => return finding(status, why),
    };
    let with = |status, why: String, remedy: &str| Finding {
        observed: Some(
            node.allocatable_gpus
                .clone()
                .unwrap_or_else(|| "0".to_owned()),
        ),
        expected: state.gpus.map(|gpus| gpus.to_string()),
        remedy: Some(remedy.to_owned()),
        links: vec![LINK.to_owned()],
        ..finding(status, why)
    };
    if state.gpus != Some(0)
        && let Some(found) = by_dra(state.dra, name, node)
    {
        return found;
    }
    let shares = state.shares.as_ref();
    if let Some(shared) = shares.and_then(|all| sharing::decide(ALLOCATABLE, name, node, all)) {
        return shared;
    }
    let instead = node.offered_instead();
    let offered: Option<usize> =
        (node.allocatable_gpus.as_ref()).and_then(|text| text.parse().ok());
    match (offered, state.gpus) {
        (_, Some(0)) => finding(Verdict::Skip, "NVML reports no GPU".to_owned()),
        // The number of shared GPUs or MIG slices cannot be compared with the number of GPUs.
        (None | Some(0), _) if instead.is_some() => finding(
            Verdict::Pass,
            format!("node `{name}` offers {}", instead.unwrap_or_default()),
        ),
        // A new node is in this state until the pod of the plugin runs.
        (None, _) => with(
            Verdict::Warn,
            format!(
                "no GPUs for pods: node `{name}` offers no {GPUS}, because no device plugin has registered"
            ),
            NO_PLUGIN,
        ),
        (Some(0), _) => with(
            Verdict::Fail,
            format!(
                "no GPUs for pods: node `{name}` offers 0 {GPUS}, because the device plugin has stopped or reports all GPUs as \
                 unhealthy"
            ),
            NO_PLUGIN,
        ),
        // With time-slicing or MPS, a node offers more than its number of GPUs.
        (Some(offered), Some(gpus)) if offered < gpus => with(
            Verdict::Warn,
            format!("node `{name}` offers {offered} of its {gpus} GPUs"),
            FEWER,
        ),
        (Some(offered), _) => finding(
            Verdict::Pass,
            format!("node `{name}` offers {offered} {GPUS}"),
        ),
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let spec = (subject.desired).and_then(|desired| desired.cluster.as_ref());
    let state = match detect(subject).await {
        Err(error) if error.not_queried().is_some() => {
            let Some(refused) = refused_cgroup_v1(subject)? else {
                return Err(error);
            };
            let why = causes(&error).join(": ");
            let others = IDS.into_iter().filter(|id| *id != VERSIONS);
            let skipped = others.map(|id| Finding::new(id, Verdict::Skip, why.clone()));
            return Ok(skipped.chain([refused]).collect());
        }
        state => state?,
    };
    let wanted = spec.map_or(&[][..], |spec| &spec.node.taints);
    let versions = versions(&state);
    let planned = match versions.status {
        Verdict::Skip => accepts_cgroup_v1(subject),
        _ => None,
    };
    Ok(vec![
        ready(&state),
        taints(&state, wanted),
        planned.unwrap_or(versions),
        operator::decide(known(&state), &operator::detect(subject).await?),
        decide(&state),
    ])
}

#[cfg(test)]
mod tests {
    use super::{
        ClusterState, Dra, brings_network, decide, network_lacks, read_record, ready, taints,
        versions,
    };
    use crate::{
        check::Verdict,
        host::fake::FakeFiles,
        model::kubernetes::Taint,
        state::{Membership, Registered, Renamed},
        tools::kubernetes::kubectl::Node,
    };

    fn state(says: Registered, gpus: Option<usize>) -> ClusterState {
        ClusterState {
            is_denied: false,
            renamed: None,
            node: Some(("gpu-1".parse().expect("a name"), says)),
            gpus,
            shares: None,
            dra: Dra::default(),
            server: Some("v1.34.4".to_owned()),
            cgroup_v1: false,
            network_lacks: Vec::new(),
            recorded: None,
        }
    }

    #[test]
    fn changed_host_name_is_reported_as_the_cause() {
        let node = |ready| {
            Registered::Node(Box::new(Node {
                ready,
                why: Some("Kubelet stopped posting node status.".to_owned()),
                ..Node::default()
            }))
        };
        let renamed = |says| {
            ready(&ClusterState {
                renamed: Some(Renamed {
                    registered: "gpu-1".parse().expect("a name"),
                    now: "gpu-2".parse().expect("a name"),
                }),
                ..state(says, None)
            })
        };
        let silent = Registered::Silent("nodes \"gpu-1\" is forbidden".to_owned());
        for says in [node(false), Registered::Unknown, silent] {
            let found = renamed(says);
            assert_eq!(found.status, Verdict::Fail);
            assert!(
                found
                    .why
                    .starts_with("the kubelet uses the node name `gpu-2`"),
                "{}",
                found.why
            );
            assert!(!found.why.contains("stopped posting"), "{}", found.why);
            let remedy = found.remedy.expect("a remedy");
            assert!(
                remedy.contains("hostnamectl set-hostname gpu-1"),
                "{remedy}"
            );
        }
        let found = renamed(node(true));
        assert_eq!(found.status, Verdict::Warn);
        assert!(found.why.contains("`gpu-2`"), "{}", found.why);
    }

    #[test]
    fn missing_pod_network_is_reported() {
        let files = FakeFiles::new();
        files.put("/etc/cni/net.d/.kubernetes-cni-keep", "");
        let not_ready = Registered::Node(Box::new(Node {
            why: Some("KubeletNotReady: cni plugin not initialized".to_owned()),
            ..Node::default()
        }));
        let found = ready(&ClusterState {
            network_lacks: network_lacks(&files).expect("files"),
            ..state(not_ready.clone(), None)
        });
        assert_eq!(found.status, Verdict::Fail);
        for part in [
            "cni plugin not initialized",
            "`/opt/cni/bin`",
            "`/etc/cni/net.d`",
        ] {
            assert!(found.why.contains(part), "{}", found.why);
        }
        files.put("/opt/cni/bin/bridge", "");
        files.put("/etc/cni/net.d/10-bridge.conflist", "");
        assert!(network_lacks(&files).expect("files").is_empty());
        let found = ready(&state(not_ready, None));
        assert!(
            found
                .remedy
                .is_some_and(|remedy| remedy.contains("journalctl"))
        );
        let good = Registered::Node(Box::new(Node {
            ready: true,
            ..Node::default()
        }));
        assert_eq!(ready(&state(good, None)).status, Verdict::Pass);
    }

    #[test]
    fn removed_taint_warns() {
        let wanted: [Taint; 1] = ["nvidia.com/gpu=present:NoSchedule".parse().expect("one")];
        let node = |taints: &[Taint]| {
            let node = Node {
                taints: taints.to_vec(),
                ..Node::default()
            };
            state(Registered::Node(Box::new(node)), None)
        };
        let has = taints(&node(&wanted), &wanted);
        assert_eq!(has.status, Verdict::Pass);
        let lacks = taints(&node(&[]), &wanted);
        assert_eq!(lacks.status, Verdict::Warn);
        let remedy = lacks.remedy.expect("a remedy");
        assert!(
            remedy.contains("taint node gpu-1 nvidia.com/gpu=present:NoSchedule"),
            "{remedy}"
        );
        // A readiness taint may be missing, because its controller removes it.
        let theirs: Taint = "readiness.k8s.io/gpu=pending:NoSchedule"
            .parse()
            .expect("one");
        let with_theirs = [wanted[0].clone(), theirs.clone()];
        assert_eq!(taints(&node(&wanted), &with_theirs).status, Verdict::Pass);
        assert_eq!(taints(&node(&[]), &with_theirs).status, Verdict::Warn);
        assert_eq!(taints(&node(&[]), &[theirs]).status, Verdict::Skip);
        // Without configured taints there is nothing to compare.
        assert_eq!(taints(&node(&[]), &[]).status, Verdict::Skip);
    }

    #[test]
    fn k3s_and_rke2_ship_cni_plugins() {
        for (kubeconfig, expected) in [
            ("/etc/kubernetes/kubelet.conf", false),
            ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", true),
            ("/var/lib/rancher/rke2/agent/kubelet.kubeconfig", true),
        ] {
            let membership = Membership {
                kubeconfig: kubeconfig.into(),
                server: "https://10.0.0.1:6443".to_owned(),
                ca_pin: None,
            };
            assert_eq!(brings_network(&membership), expected, "{kubeconfig}");
        }
    }

    #[test]
    fn versions_must_be_compatible() {
        let with = |kubelet: &str, runtime: &str, cgroup_v1| {
            let node = Registered::Node(Box::new(Node {
                kubelet: Some(kubelet.to_owned()),
                runtime: Some(runtime.to_owned()),
                ..Node::default()
            }));
            versions(&ClusterState {
                cgroup_v1,
                server: Some("v1.36.0".to_owned()),
                ..state(node, None)
            })
        };
        for (found, status, part) in rows! {
            with("v1.36.0", "containerd://2.2.0", false), Verdict::Pass, "v1.36.0";
            with("v1.36.0", "containerd://2.1.4", false), Verdict::Warn, "is tested with 2.2.0";
            with("v1.36.0", "containerd://1.7.28", false), Verdict::Warn, "at least 2.0";
            with("v1.37.0", "containerd://2.1.4", false), Verdict::Fail, "newer";
            with("v1.36.0", "cri-o://1.33.0", true), Verdict::Warn, "cgroup v1";
            // The kubelet does not start, so the cluster does not report it.
            versions(&ClusterState {
                cgroup_v1: true,
                ..state(Registered::Silent("connection refused".to_owned()), None)
            }), Verdict::Warn, "1.35 and newer does not support, but the version of this kubelet is unknown";
            versions(&state(Registered::Silent("connection refused".to_owned()), None)),
                Verdict::Unknown, "connection refused";
        } {
            assert_eq!(found.status, status, "{}", found.why);
            assert!(found.why.contains(part), "{}", found.why);
        }
    }

    #[test]
    fn dra_driver_offers_no_resource_of_the_node() {
        for (is_configured, has_run, offers, status, part) in rows! {
            true, false, None, Verdict::Warn, "has not started";
            true, true, None, Verdict::Skip, "resourceslices";
            // The device plugin was removed.
            true, true, Some("0"), Verdict::Skip, "resourceslices";
            true, true, Some("2"), Verdict::Warn, "offers 2 nvidia.com/gpu of node `gpu-1`";
            false, true, None, Verdict::Skip, "resourceslices";
            // The driver was replaced by the device plugin.
            false, true, Some("2"), Verdict::Pass, "offers 2 nvidia.com/gpu";
            false, true, Some("0"), Verdict::Fail, "device plugin";
        } {
            let node = Node {
                allocatable_gpus: offers.map(str::to_owned),
                ..Node::default()
            };
            let found = decide(&ClusterState {
                dra: Dra {
                    is_configured,
                    has_run,
                },
                ..state(Registered::Node(Box::new(node)), Some(2))
            });
            assert_eq!(found.status, status, "{}", found.why);
            assert!(found.why.contains(part), "{}", found.why);
        }
    }

    #[test]
    fn registered_gpus_are_allocatable() {
        let node = |gpus: Option<&str>| {
            Registered::Node(Box::new(Node {
                ready: true,
                allocatable_gpus: gpus.map(str::to_owned),
                ..Node::default()
            }))
        };
        for (says, gpus, status, part) in rows! {
            node(Some("8")), Some(8), Verdict::Pass, "offers 8";
            node(Some("80")), Some(8), Verdict::Pass, "offers 80";
            node(Some("8")), None, Verdict::Pass, "offers 8";
            node(Some("7")), Some(8), Verdict::Warn, "7 of its 8";
            node(Some("0")), Some(8), Verdict::Fail, "has stopped";
            node(None), Some(8), Verdict::Warn, "no device plugin";
            node(None), Some(0), Verdict::Skip, "no GPU";
            Registered::Node(Box::new(Node {
                other_resources: [("nvidia.com/gpu.shared".to_owned(), "32".to_owned())].into(),
                ..Node::default()
            })), Some(8), Verdict::Pass, "32 nvidia.com/gpu.shared";
            Registered::Unknown, Some(8), Verdict::Unknown, "does not exist in the cluster";
            Registered::Silent("no answer".to_owned()), Some(8), Verdict::Unknown, "no answer";
        } {
            let found = decide(&state(says, gpus));
            assert_eq!(found.status, status, "{}", found.why);
            assert!(found.why.contains(part), "{}", found.why);
        }
        // Without a response of the cluster, the kubelet's checkpoint is used.
        for (record, status, part) in rows! {
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#,
                Verdict::Warn, "no device plugin";
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1}"#,
                Verdict::Warn, "no device plugin";
            r#"{"Data":{"RegisteredDevices":{"nvidia.com/gpu":[],"example.com/nic":["a"]}}}"#,
                Verdict::Fail, "0 nvidia.com/gpu";
            r#"{"Data":{"RegisteredDevices":{"nvidia.com/gpu":["GPU-1","GPU-2"]}}}"#, Verdict::Pass,
                "2 nvidia.com/gpu";
            r#"{"Data":{"RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}}}"#, Verdict::Warn, "1 of 2 GPUs";
            r#"{"Data":{"RegisteredDevices":{"nvidia.com/gpu":[],"nvidia.com/mig-1g.10gb":["a"]}}}"#,
                Verdict::Pass, "1 nvidia.com/mig-1g.10gb";
            // The network card plugin.
            r#"{"Data":{"RegisteredDevices":{"nvidia.com/hostdev":["a"]}}}"#, Verdict::Warn,
                "no device plugin";
            r#"{"Data":{"RegisteredDevices":{"volcano.sh/vgpu-number":["a"]}}}"#, Verdict::Pass,
                "1 volcano.sh/vgpu-number";
            "{", Verdict::Unknown, "kubelet_internal_checkpoint";
        } {
            let found = decide(&ClusterState {
                recorded: Some(read_record(record)),
                ..state(Registered::Silent("no answer".to_owned()), Some(2))
            });
            assert_eq!(found.status, status, "{}", found.why);
            assert!(found.why.contains(part), "{}", found.why);
            assert_eq!(
                found.remedy.is_some(),
                matches!(status, Verdict::Warn | Verdict::Fail)
            );
        }
        for (is_denied, part) in [(false, "not a cluster node"), (true, "only root")] {
            let alone = decide(&ClusterState {
                is_denied,
                node: None,
                ..state(Registered::Unknown, Some(8))
            });
            assert_eq!(alone.status, Verdict::Skip);
            assert!(alone.why.contains(part), "{}", alone.why);
        }
    }
}
