//! The steps that make the machine a node. Each looks at its own part: `host` the kernel, `packages` the programs,
//! `join` the membership, `node` what the cluster says.

pub(super) mod host;
pub(super) mod join;
pub(super) mod node;
pub(super) mod packages;

use crate::{
    config::desired::{ClusterWish, Desired},
    model::kubernetes::Labels,
    state::labels,
    step::{Assessment, Cx, StepError},
};

/// The answer of each of these steps where no cluster is named.
fn no_cluster() -> Assessment {
    Assessment::NotApplicable {
        why: "no cluster is configured".to_owned(),
    }
}

fn wish(desired: &Desired) -> Option<&ClusterWish> {
    desired.cluster.as_ref()
}

/// The node's name: the one of the settings, or the host name.
fn name(cx: &Cx<'_>, wish: &ClusterWish) -> Result<Option<String>, StepError> {
    match &wish.node.name {
        Some(name) => Ok(Some(name.clone())),
        None => Ok(cx.state.host_name()?),
    }
}

/// The labels that the node must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Wanted {
    /// Those of its GPUs, and those of the settings, which count more.
    labels: Labels,
    /// What a file says about its GPUs to Node Feature Discovery; `None` without GPU labels.
    features: Option<String>,
    /// Why the labels of the GPUs are not known yet.
    unknown: Option<String>,
}

async fn wanted(cx: &Cx<'_>, wish: &ClusterWish) -> Wanted {
    let mut wanted = Wanted::default();
    if wish.node.gpu_labels {
        let strategy = wish.node.mig_strategy;
        match labels::of(cx.facts, cx.state.nvml().await, strategy) {
            Ok(found) => wanted.labels = found.labels,
            Err(why) => wanted.unknown = Some(why.to_string()),
        }
        (wanted.labels).extend(labels::operator(cx.desired.toolkit.is_some()));
        wanted.features = Some(labels::features_file(&wanted.labels));
    }
    wanted.labels.extend(wish.node.labels.clone());
    wanted
}
