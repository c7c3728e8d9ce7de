//! `check --node-condition`: the cluster learns from the node itself whether its GPUs can be used.

use super::{Failure, World, prepare};
use crate::{
    config::desired::ConditionWish,
    engine::RunReport,
    exit::Exit,
    host::Host,
    model::kubernetes::NodeName,
    report::formats,
    state::{Registered, State, StateError},
    tools::kubernetes::condition,
};

/// What is told to the cluster, and as which node.
pub(super) struct Telling {
    pub(super) wish: ConditionWish,
    /// The name of the node, where the settings have one.
    pub(super) node: Option<NodeName>,
    /// Whether a warning is a problem.
    pub(super) warnings_fail: bool,
}

/// Writes the condition, if the cluster does not know it yet. A machine that is no node yet has nobody to tell.
pub(super) async fn tell(
    world: &mut World<'_>,
    host: &Host,
    state: &State,
    telling: &Telling,
    report: &RunReport,
) -> Result<(), Failure> {
    let kind = &telling.wish.kind;
    let failed = |why: &str, hint: &str| {
        let message = format!("failed to write the condition {kind} of this node: {why}");
        Failure::new(Exit::StepFailed, "node-condition", &message, Some(hint))
    };
    let unread = |error: StateError| {
        let message = format!("failed to write the condition {kind} of this node");
        Failure::caused(Exit::StepFailed, "node-condition", &message, error, None)
    };
    let Some(membership) = state.membership().map_err(unread)? else {
        let why =
            format!("the condition {kind} is not written: the machine is a node of no cluster");
        prepare::warn(world, &[why]);
        return Ok(());
    };
    let name = match &telling.node {
        Some(name) => Some(name.clone()),
        None => state.host_name().map_err(unread)?,
    };
    let Some(name) = name else {
        return Err(failed(
            "its name is not known",
            "set `cluster.node-name`, or give the machine a host name",
        ));
    };
    let Some(kubectl) = state.kubectl().map_err(unread)? else {
        return Err(failed(
            "there is no kubectl on this machine",
            "put kubectl into `/usr/local/bin`",
        ));
    };
    let node = match state.registered(&membership, &name).await.map_err(unread)? {
        Registered::Node(node) => node,
        Registered::Unknown => {
            let why = format!("the cluster does not know node `{name}`");
            return Err(failed(
                &why,
                "name the node as the cluster does: `cluster.node-name`",
            ));
        }
        Registered::Silent(why) => {
            return Err(failed(
                &why,
                "see whether the kubelet reaches its API server",
            ));
        }
    };
    let gpus = state.facts().gpus.len();
    let mut said = formats::condition(report, telling.wish.meaning, telling.warnings_fail, gpus);
    said.message = world.secrets.hide(&said.message).into_owned();
    let Some(patch) = condition::patch(kind, &said, &node.conditions, host.clock.now()) else {
        return Ok(());
    };
    let cmd = kubectl.patch_status(&membership.kubeconfig, &name, &patch);
    let ran = host.exec.run(&cmd, &mut |_, _| {}).await;
    let written = ran.and_then(|output| output.success(&cmd).map(drop));
    written.map_err(|error| {
        let message = format!("failed to write the condition {kind} of node `{name}`");
        let hint = "a kubelet may change the status of its own node alone: `kubectl auth whoami` with its kubeconfig tells \
                    which one that is";
        Failure::caused(Exit::StepFailed, "node-condition", &message, error, Some(hint))
    })
}
