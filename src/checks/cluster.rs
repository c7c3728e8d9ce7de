//! The node in its cluster: pods can be given the GPUs. It is asked with the kubelet's own credentials.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    host::Nvml,
    model::id::Id,
    state::{Membership, Registered, StateError},
    step::StepError,
    tools::kubernetes::kubectl::GPUS,
};

const ALLOCATABLE: Id = Id::new("k8s.allocatable");
const TITLE: &str = "GPUs that pods can be given";
const LINK: &str = "https://github.com/NVIDIA/k8s-device-plugin";

/// See the module.
pub struct Cluster;

struct NodeState {
    /// Only root may read the kubelet's credentials.
    is_denied: bool,
    /// The node's name, and what the cluster says about it; `None` if the machine is a node of no cluster.
    node: Option<(String, Registered)>,
    /// GPUs by NVML; `None` if it does not answer.
    gpus: Option<usize>,
}

async fn detect(subject: &Subject<'_>) -> Result<NodeState, StepError> {
    let nothing = |is_denied| NodeState {
        is_denied,
        node: None,
        gpus: None,
    };
    let membership: Membership = match subject.state.membership() {
        Ok(Some(membership)) => membership,
        Ok(None) => return Ok(nothing(false)),
        Err(StateError::Files(error)) if error.is_denied() => return Ok(nothing(true)),
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
    Ok(NodeState {
        is_denied: false,
        node,
        gpus,
    })
}

fn decide(state: &NodeState) -> Finding {
    let say = |status, why: String| Finding::new(ALLOCATABLE, TITLE, status, why);
    if state.is_denied {
        return say(
            Verdict::Skip,
            "only root may read the kubelet's credentials".to_owned(),
        );
    }
    let Some((name, says)) = &state.node else {
        return say(
            Verdict::Skip,
            "the machine is a node of no cluster".to_owned(),
        );
    };
    let node = match says {
        Registered::Node(node) => node,
        Registered::Unknown => {
            return say(
                Verdict::Unknown,
                format!("the cluster does not know node `{name}`"),
            );
        }
        Registered::Silent(why) => return say(Verdict::Unknown, why.clone()),
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
        ..say(status, why)
    };
    let offered: Option<usize> =
        (node.allocatable_gpus.as_ref()).and_then(|text| text.parse().ok());
    match (offered, state.gpus) {
        (_, Some(0)) => say(Verdict::Skip, "NVML lists no GPU".to_owned()),
        (None | Some(0), _) => with(
            Verdict::Warn,
            format!("node `{name}` offers no {GPUS}: no device plugin has registered"),
            "install NVIDIA's device plugin or GPU operator in the cluster; if it is there, see whether its pod \
             tolerates the node's taints and what its log says",
        ),
        // With time-slicing or MPS a node offers more.
        (Some(offered), Some(gpus)) if offered < gpus => with(
            Verdict::Warn,
            format!("node `{name}` offers {offered} of its {gpus} GPUs"),
            "see which GPU the device plugin calls unhealthy: `kubectl logs` of its pod on this node",
        ),
        (Some(offered), _) => say(
            Verdict::Pass,
            format!("node `{name}` offers {offered} {GPUS}"),
        ),
    }
}

#[async_trait]
impl Check for Cluster {
    fn ids(&self) -> &[Id] {
        const { &[ALLOCATABLE] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        Ok(vec![decide(&detect(subject).await?)])
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeState, decide};
    use crate::{check::Verdict, state::Registered, tools::kubernetes::kubectl::Node};

    #[test]
    fn the_cluster_offers_what_the_device_plugin_has_registered() {
        let node = |gpus: Option<&str>| {
            Registered::Node(Box::new(Node {
                ready: true,
                allocatable_gpus: gpus.map(str::to_owned),
                ..Node::default()
            }))
        };
        for (says, gpus, status, part) in [
            (node(Some("8")), Some(8), Verdict::Pass, "offers 8"),
            (node(Some("80")), Some(8), Verdict::Pass, "offers 80"),
            (node(Some("8")), None, Verdict::Pass, "offers 8"),
            (node(Some("7")), Some(8), Verdict::Warn, "7 of its 8"),
            (node(Some("0")), Some(8), Verdict::Warn, "no device plugin"),
            (node(None), Some(8), Verdict::Warn, "no device plugin"),
            (node(None), Some(0), Verdict::Skip, "no GPU"),
            (
                Registered::Unknown,
                Some(8),
                Verdict::Unknown,
                "does not know",
            ),
            (
                Registered::Silent("no answer".to_owned()),
                Some(8),
                Verdict::Unknown,
                "no answer",
            ),
        ] {
            let found = decide(&NodeState {
                is_denied: false,
                node: Some(("gpu-1".to_owned(), says)),
                gpus,
            });
            assert_eq!(found.status, status, "{}", found.why);
            assert!(found.why.contains(part), "{}", found.why);
        }
        for (is_denied, part) in [(false, "no cluster"), (true, "only root")] {
            let alone = decide(&NodeState {
                is_denied,
                node: None,
                gpus: Some(8),
            });
            assert_eq!(alone.status, Verdict::Skip);
            assert!(alone.why.contains(part), "{}", alone.why);
        }
    }
}
