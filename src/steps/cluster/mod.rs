//! The steps that make the machine a node. Each looks at its own part: `host` the kernel, `packages` the programs,
//! `join` the membership, `node` what the cluster says.

pub(super) mod host;
pub(super) mod join;
pub(super) mod node;
pub(super) mod packages;

use crate::{
    config::desired::{ClusterWish, Desired},
    model::kubernetes::Labels,
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

/// The labels that the node must have: those of its GPUs, and those of the settings, which count more.
async fn labels(cx: &Cx<'_>, wish: &ClusterWish) -> Result<Labels, StepError> {
    let mut labels = Labels::new();
    if wish.node.gpu_labels {
        labels.insert("nvidia.com/gpu.present".to_owned(), "true".to_owned());
    }
    labels.extend(wish.node.labels.clone());
    let _ = cx;
    Ok(labels)
}
