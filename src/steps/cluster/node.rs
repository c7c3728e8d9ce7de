//! `cluster.node`: the node is Ready in the cluster, has its labels, and no startup taints.

use super::{WantedLabels, joined, name, no_cluster, spec, wanted};
use crate::{
    change::{Admission, Change},
    config::desired::{ClusterSpec, Desired, JoinMethod},
    model::kubernetes::{Labels, NodeName, Taint},
    state::{Registered, Renamed, labels::FEATURES_FILE},
    step::{Assessment, Cx, Step, StepError},
    steps::{CLUSTER_JOIN, CLUSTER_NODE, VALIDATION_DEVICES},
};

/// The `cluster.node` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(CLUSTER_NODE, |cx| Box::pin(assess(cx))).after([CLUSTER_JOIN, VALIDATION_DEVICES])
}

#[derive(Debug, Clone)]
enum NodeState {
    /// The machine has not joined a cluster yet.
    NotJoined,
    /// The administrator's command has joined the machine, but no kubelet kubeconfig is in a known path.
    OutOfSight,
    /// kubectl is not installed.
    NoKubectl,
    /// The machine has joined with this node name.
    Joined {
        name: NodeName,
        says: Registered,
        /// Set if the kubelet now uses a different name.
        renamed: Option<Renamed>,
        wanted: WantedLabels,
        /// The content of the file for Node Feature Discovery.
        features: Option<String>,
    },
}

async fn detect(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<NodeState, StepError> {
    let Some(membership) = joined(cx, spec).await? else {
        return Ok(match &spec.method {
            JoinMethod::Command { joined_file, .. } if cx.host.files().exists(joined_file)? => {
                NodeState::OutOfSight
            }
            _ => NodeState::NotJoined,
        });
    };
    let Some(name) = name(cx, spec)? else {
        return Ok(NodeState::NotJoined);
    };
    if cx.state.kubectl()?.is_none() {
        return Ok(NodeState::NoKubectl);
    }
    Ok(NodeState::Joined {
        says: cx.state.registered(&membership, &name).await?,
        renamed: cx.state.renamed()?,
        wanted: wanted(cx, spec).await,
        features: cx.host.files().read_text(FEATURES_FILE.into())?,
        name,
    })
}

fn decide(state: &NodeState, desired: &Desired) -> Assessment {
    let Some(spec) = spec(desired) else {
        return no_cluster();
    };
    if desired.image {
        return Assessment::awaits_boot("an image is not a node");
    }
    let (name, says, renamed, wanted, features) = match state {
        NodeState::NotJoined => {
            return Assessment::After {
                upstream: CLUSTER_JOIN,
                why: "the machine is not a node yet".to_owned(),
                expected: Vec::new(),
            };
        }
        NodeState::OutOfSight => {
            return Assessment::not_applicable("no kubelet kubeconfig in a known path");
        }
        // The EKS image does not contain kubectl.
        NodeState::NoKubectl if spec.node.startup_taints.is_empty() => {
            return Assessment::not_applicable(
                "cannot query the cluster: kubectl is not installed",
            );
        }
        NodeState::NoKubectl => {
            return Assessment::blocked(
                "cannot remove the startup taints: kubectl is not installed",
                "install kubectl in `/usr/local/bin`, then run the command again",
            );
        }
        NodeState::Joined {
            name,
            says,
            renamed,
            wanted,
            features,
        } => (name, says, renamed, wanted, features),
    };
    let is_ready = matches!(says, Registered::Node(node) if node.ready);
    if let (Some(names), false) = (renamed, is_ready) {
        return Assessment::blocked(names.to_string(), names.remedy());
    }
    if let Some(unknown) = &wanted.unknown {
        return Assessment::After {
            upstream: VALIDATION_DEVICES,
            why: unknown.clone(),
            expected: Vec::new(),
        };
    }
    let file = (wanted.features.as_ref())
        .filter(|text| Some(*text) != features.as_ref())
        .map(|text| Change::write(FEATURES_FILE, text.clone()));
    let all_taints = &spec.node.startup_taints;
    let admit = |why: String, missing: Labels, startup_taints: Vec<Taint>| {
        let mut changes: Vec<Change> = file.iter().cloned().collect();
        changes.push(Change::AdmitNode {
            admission: Admission {
                node: name.clone(),
                labels: missing,
                startup_taints,
                access: spec.access.clone(),
                timeout_seconds: spec.timeout_seconds,
            },
        });
        Assessment::needs(why, changes)
    };
    let node = match says {
        Registered::Node(node) => node,
        Registered::Unknown => {
            return admit(
                format!("node `{name}` does not exist in the cluster"),
                wanted.labels.clone(),
                all_taints.clone(),
            );
        }
        Registered::Silent(why) => {
            return admit(
                format!("failed to query node `{name}`: {why}"),
                wanted.labels.clone(),
                all_taints.clone(),
            );
        }
    };
    let (mut whys, mut missing) = (Vec::new(), Labels::new());
    if !node.ready {
        let why = node.why.as_deref().unwrap_or("for an unknown reason");
        whys.push(format!("node `{name}` is not Ready ({why})"));
    }
    for (key, value) in &wanted.labels {
        let found = node.labels.get(key);
        if found != Some(value) {
            let found = found.map_or_else(|| "missing".to_owned(), |found| format!("`{found}`"));
            whys.push(format!("label {key} is {found} instead of `{value}`"));
            missing.insert(key.clone(), value.clone());
        }
    }
    let taints: Vec<Taint> = (all_taints.iter())
        .filter(|startup| node.taints.iter().any(|taint| taint.key == startup.key))
        .cloned()
        .collect();
    whys.extend((taints.iter()).map(|taint| format!("startup taint {} is still set", taint.key)));
    if let (true, Some(file)) = (whys.is_empty(), &file) {
        return Assessment::needs(
            format!("`{FEATURES_FILE}` is missing or different"),
            vec![file.clone()],
        );
    }
    if whys.is_empty() {
        return Assessment::satisfied(format!("node `{name}` is Ready and has its labels"));
    }
    admit(whys.join("; "), missing, taints)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let Some(spec) = spec(cx.desired) else {
        return Ok(no_cluster());
    };
    if cx.desired.image {
        return Ok(decide(&NodeState::NotJoined, cx.desired));
    }
    Ok(decide(&detect(cx, spec).await?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{steps::cluster::join::fixtures::with_kubeadm, tools::kubernetes::kubectl::Node};

    fn joined(says: Registered) -> NodeState {
        NodeState::Joined {
            name: "gpu-1".parse().expect("a name"),
            says,
            renamed: None,
            wanted: WantedLabels {
                labels: Labels::from([("team".to_owned(), "research".to_owned())]),
                ..WantedLabels::default()
            },
            features: None,
        }
    }

    #[test]
    fn renamed_node_blocks() {
        let mut state = joined(Registered::Node(Box::new(Node {
            ready: false,
            ..Node::default()
        })));
        let NodeState::Joined { renamed, .. } = &mut state else {
            panic!("{state:?}");
        };
        *renamed = Some(Renamed {
            registered: "gpu-1".parse().expect("a name"),
            now: "gpu-2".parse().expect("a name"),
        });
        let (why, hint) = decide(&state, &with_kubeadm(&[])).expect_blocked();
        assert!(why.contains("the node name `gpu-2`"), "{why}");
        assert!(hint.contains("hostnamectl set-hostname gpu-1"), "{hint}");
    }

    fn admission(state: &NodeState) -> (String, Admission) {
        match decide(state, &with_kubeadm(&[])) {
            Assessment::Needs { why, changes } => match &changes[..] {
                [Change::AdmitNode { admission }] => (why, admission.clone()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ready_node_with_labels_is_admitted() {
        let good = Node {
            ready: true,
            labels: Labels::from([("team".to_owned(), "research".to_owned())]),
            ..Node::default()
        };
        decide(
            &joined(Registered::Node(Box::new(good.clone()))),
            &with_kubeadm(&[]),
        )
        .expect_satisfied();
        let starting = Node {
            taints: vec!["starting:NoSchedule".parse().expect("a taint")],
            ..good.clone()
        };
        let (why, admission_) = admission(&joined(Registered::Node(Box::new(starting))));
        assert!(why.contains("startup taint starting is still set"), "{why}");
        assert_eq!(admission_.startup_taints.len(), 1);
        let not_ready = Node {
            ready: false,
            why: Some("KubeletNotReady: no network".to_owned()),
            labels: Labels::new(),
            ..good
        };
        let (why, admission_) = admission(&joined(Registered::Node(Box::new(not_ready))));
        assert!(
            why.contains("no network") && why.contains("label team is missing"),
            "{why}"
        );
        assert!(admission_.startup_taints.is_empty() && admission_.labels.len() == 1);
    }

    /// Node Feature Discovery labels the node from this file.
    #[test]
    fn node_feature_discovery_file_contains_the_labels() {
        let ready = Node {
            ready: true,
            ..Node::default()
        };
        for (found, is_right) in [(None, false), (Some("old"), false), (Some("new"), true)] {
            let state = NodeState::Joined {
                name: "gpu-1".parse().expect("a name"),
                says: Registered::Node(Box::new(ready.clone())),
                renamed: None,
                wanted: WantedLabels {
                    features: Some("new".to_owned()),
                    ..WantedLabels::default()
                },
                features: found.map(str::to_owned),
            };
            match decide(&state, &with_kubeadm(&[])) {
                Assessment::Satisfied { .. } if is_right => {}
                Assessment::Needs { changes, .. } if !is_right => assert!(
                    matches!(
                        &changes[..],
                        [Change::WriteFile { path, content, .. }]
                            if path == FEATURES_FILE && content == "new"
                    ),
                    "{changes:?}"
                ),
                other => panic!("{found:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn unregistered_or_unknown_node_is_admitted() {
        for says in [
            Registered::Unknown,
            Registered::Silent("no answer".to_owned()),
        ] {
            let (why, admission) = admission(&joined(says));
            assert!(
                why.contains("gpu-1") && admission.startup_taints.len() == 1,
                "{why}"
            );
        }
        decide(&NodeState::NotJoined, &with_kubeadm(&[])).expect_after();
    }
}
