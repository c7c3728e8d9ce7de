//! `check --node-condition`: the cluster learns from the node itself whether its GPUs can be used.

use super::{
    Failure,
    world::{Console, Env},
};
use crate::{
    check::FailOn,
    config::desired::ConditionWish,
    engine::RunReport,
    exit::Exit,
    host::{ExecError, Host},
    model::kubernetes::NodeName,
    report::formats,
    state::{State, StateError},
    tools::kubernetes::{
        condition,
        kubectl::{self, NodeAnswer},
    },
};

/// How often the condition is written at most, where somebody else writes the node at the same time.
const ATTEMPTS: u32 = 5;

/// What is told to the cluster, and as which node.
pub(super) struct Telling {
    pub(super) wish: ConditionWish,
    /// The name of the node, where the settings have one.
    pub(super) node: Option<NodeName>,
    /// The findings that are a problem.
    pub(super) fail_on: Vec<FailOn>,
}

/// Writes the condition, if the cluster does not know it yet. A machine that is no node yet has nobody to tell.
pub(super) async fn tell(
    env: &Env,
    console: &mut Console<'_>,
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
        console.warn(&[why]);
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
    let gpus = state.facts().gpus.len();
    let mut said = formats::condition(report, telling.wish.meaning, &telling.fail_on, gpus);
    said.message = formats::cut(&env.secrets.hide(&said.message));
    let unwritten = |error: ExecError| {
        let message = format!("failed to write the condition {kind} of node `{name}`");
        let hint = "a kubelet may change the status of its own node alone: `kubectl auth whoami` with its kubeconfig tells \
                    which one that is";
        Failure::caused(
            Exit::StepFailed,
            "node-condition",
            &message,
            error,
            Some(hint),
        )
    };
    let kubeconfig = &membership.kubeconfig;
    // The kubelet may write its status between our read and our write.
    let mut attempt = 0;
    loop {
        attempt += 1;
        let answer = kubectl::asked(host.reader(), kubectl, kubeconfig, &name).await;
        let node = match answer.map_err(unwritten)? {
            NodeAnswer::Node(node) => node,
            NodeAnswer::Unknown => {
                let why = format!("the cluster does not know node `{name}`");
                return Err(failed(
                    &why,
                    "name the node as the cluster does: `cluster.node-name`",
                ));
            }
            NodeAnswer::Silent(why) => {
                return Err(failed(
                    &why,
                    "see whether the kubelet reaches its API server",
                ));
            }
        };
        let updated = condition::updated(&node, kind, &said, host.clock.now());
        let updated = updated.map_err(|why| {
            let why = format!("what the cluster tells of node `{name}` cannot be read: {why}");
            failed(&why, "see what `kubectl get node` prints")
        })?;
        let Some(node) = updated else {
            return Ok(());
        };
        let cmd = kubectl.replace_status(kubeconfig, &name, node);
        let output = host
            .exec
            .run(&cmd, &mut |_, _| {})
            .await
            .map_err(unwritten)?;
        if attempt < ATTEMPTS && !output.ok() && output.stderr.contains(kubectl::CONFLICT) {
            continue;
        }
        return output.success(&cmd).map(drop).map_err(unwritten);
    }
}
