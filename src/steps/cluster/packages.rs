//! `cluster.packages`: kubelet, kubeadm and kubectl, all at the version of the cluster.

use super::{no_cluster, spec};
use crate::{
    change::Lock,
    config::desired::Desired,
    state::Ours,
    step::{Assessment, Cx, Step, StepError},
    steps::{
        CLUSTER_PACKAGES, REPOSITORIES, packages,
        specs::{InstalledPackages, outdated, package_step},
    },
};

/// The `cluster.packages` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(CLUSTER_PACKAGES, |cx| Box::pin(assess(cx)))
        .after([REPOSITORIES])
        .locks([Lock::Packages])
}

fn decide(installed: &InstalledPackages, ours: &Ours, desired: &Desired) -> Assessment {
    let Some(spec) = spec(desired) else {
        return no_cluster();
    };
    if spec.packages.is_empty() {
        return Assessment::not_applicable(format!(
            "{} needs no Kubernetes packages",
            spec.method.name()
        ));
    }
    let manager = desired.packages.manager;
    let replaced = outdated(manager, &spec.packages, installed, ours);
    package_step(manager, &spec.packages, installed, replaced)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let needs_packages = spec(cx.desired).is_some_and(|spec| !spec.packages.is_empty());
    let installed = match needs_packages {
        true => packages::held_by_others(cx).await?,
        false => InstalledPackages::default(),
    };
    Ok(decide(&installed, cx.state.ours(), cx.desired))
}
