//! The steps that make the machine a cluster node: `host` (kernel), `packages` (Kubernetes packages), `device_plugin` (its
//! configuration), `join` (membership; `restart_agent` detects an agent that must be restarted, `skew` unsupported versions) and
//! `node` (state in the cluster).
//! If the cluster is no longer configured, the node is not changed. Only `uninstall` removes a node, because its removal
//! stops its pods.

pub(super) mod device_plugin;
pub(super) mod host;
pub(super) mod join;
pub(super) mod node;
pub(super) mod packages;
mod restart_agent;
pub(super) mod skew;

use crate::{
    config::desired::{ClusterSpec, Desired},
    facts::Cloud,
    model::{
        clouds,
        kubernetes::{self, Labels, NodeName},
    },
    state::{Membership, labels},
    step::{Assessment, Cx, StepError},
};

/// The assessment of each of these steps if no cluster is configured.
fn no_cluster() -> Assessment {
    Assessment::not_applicable("no cluster is configured")
}

fn spec(desired: &Desired) -> Option<&ClusterSpec> {
    desired.cluster.as_ref()
}

/// Returns the configured node name. If none is configured, returns the name that the kubelet uses or would use.
fn name(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<Option<NodeName>, StepError> {
    match &spec.node.name {
        Some(name) => Ok(Some(name.clone())),
        None => Ok(cx.state.host_name()?),
    }
}

/// Returns the cluster that the machine has joined. With a join method that may run nodeadm, the nodeadm kubeconfig counts only
/// if a kubelet is running, because nodeadm writes it before the node joins.
async fn joined(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<Option<Membership>, StepError> {
    let found = cx.state.membership()?;
    let method = spec.method.implementation();
    let kubelets = (found.as_ref()).map_or(&[][..], |found| method.kubelets_of(&found.kubeconfig));
    if !kubelets.is_empty() {
        let mut runs = false;
        for unit in kubelets {
            runs |= (cx.state.unit(unit).await?).is_some_and(|unit| unit.is_active());
        }
        return Ok(found.filter(|_| runs));
    }
    Ok(found)
}

/// The required labels of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WantedLabels {
    /// GPU labels and configured labels, which have priority.
    labels: Labels,
    /// The GPU features for the file of Node Feature Discovery. `None` without GPU labels.
    features: Option<String>,
    /// The reason that the GPU labels are not known yet.
    unknown: Option<String>,
}

async fn wanted(cx: &Cx<'_>, spec: &ClusterSpec) -> WantedLabels {
    let mut wanted = WantedLabels::default();
    if spec.node.gpu_labels {
        match labels::of(cx.facts, cx.state.nvml().await, &cx.desired.device_plugin) {
            Ok(found) => wanted.labels = found.labels,
            Err(why) => wanted.unknown = Some(why.to_string()),
        }
        (wanted.labels).extend(labels::operator(cx.desired.toolkit.is_some()));
        wanted.features = Some(labels::features_file(&wanted.labels));
    }
    wanted.labels.extend(spec.node.labels.clone());
    wanted
}

/// Returns topology labels for the scheduler, which are only set at registration. A cloud controller sets the same
/// ones later, if the cluster has one.
///
/// Source: Kubernetes, "Well-Known Labels, Annotations and Taints". `node.kubernetes.io/lifecycle` is not listed
/// there, but public configurations of spot node pools use it (ten were checked; the value is always `spot`).
fn place(cloud: &Cloud) -> Labels {
    let row = cloud.provider.as_deref().and_then(clouds::named);
    let zone = match row.and_then(|row| row.node.zone.as_deref()) {
        None => cloud.zone.clone(),
        Some(form) => (cloud.region.as_ref().zip(cloud.zone.as_ref())).map(|(region, zone)| {
            let region = region.to_ascii_lowercase();
            form.replace("{region}", &region).replace("{zone}", zone)
        }),
    };
    let pairs = [
        ("topology.kubernetes.io/region", &cloud.region),
        ("topology.kubernetes.io/zone", &zone),
        ("node.kubernetes.io/instance-type", &cloud.instance_type),
        ("node.kubernetes.io/lifecycle", &cloud.lifecycle),
    ];
    (pairs.into_iter())
        .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
        .filter(|(_, value)| kubernetes::check_value(value).is_ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{join::fixtures::with, joined, place};
    use crate::{
        config::desired::JoinMethod,
        facts::Cloud,
        host::fake,
        joins::{kubeadm, nodeadm},
        steps::fixtures::{cx, facts, state},
    };

    #[tokio::test]
    async fn early_nodeadm_kubeconfig_requires_running_kubelet() {
        let command = || JoinMethod::Command {
            command: vec!["/usr/local/sbin/join".to_owned()],
            environment_file: None,
            joined_file: "/etc/joined".into(),
            leave_command: vec![],
        };
        for (method, kubeconfig, active, is_member) in [
            (JoinMethod::Eks, nodeadm::KUBECONFIG, "inactive", false),
            (JoinMethod::Eks, nodeadm::KUBECONFIG, "active", true),
            (command(), nodeadm::KUBECONFIG, "inactive", false),
            // kubeadm creates this kubeconfig when the node joins, so it counts even if the kubelet is inactive.
            (command(), kubeadm::KUBELET_CONF, "inactive", true),
            (JoinMethod::Managed, nodeadm::KUBECONFIG, "inactive", true),
        ] {
            let (host, fakes) = fake::host();
            let text = "clusters: [{name: a, cluster: {server: 'https://10.0.0.1:6443'}}]\n";
            fakes.files.put(kubeconfig, text);
            fakes.exec.on("systemctl", move |_, _| {
                fake::ok(format!(
                    "LoadState=loaded\nActiveState={active}\nUnitFileState=enabled\nResult=success\n"
                ))
            });
            let (facts, want) = (facts(), with(method));
            let state = state(&host, facts.clone());
            let cx = cx(&host, &facts, &state, &want);
            let spec = want.cluster.as_ref().expect("a cluster");
            let found = joined(&cx, spec).await.expect("readable");
            assert_eq!(
                found.is_some(),
                is_member,
                "{kubeconfig} {active}: {spec:?}"
            );
        }
    }

    #[test]
    fn topology_labels_are_set_at_registration() {
        let cloud = Cloud {
            instance_type: Some("p5.48xlarge".to_owned()),
            zone: Some("eu-central-1a".to_owned()),
            lifecycle: Some("spot".to_owned()),
            region: Some("not a label".to_owned()),
            ..Cloud::default()
        };
        let labels = place(&cloud);
        let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "node.kubernetes.io/instance-type",
                "node.kubernetes.io/lifecycle",
                "topology.kubernetes.io/zone"
            ]
        );
        assert!(place(&Cloud::default()).is_empty());
        let azure = Cloud {
            provider: Some("azure".to_owned()),
            region: Some("westeurope".to_owned()),
            zone: Some("2".to_owned()),
            ..Cloud::default()
        };
        let zone = place(&azure).remove("topology.kubernetes.io/zone");
        assert_eq!(zone.as_deref(), Some("westeurope-2"));
    }
}
