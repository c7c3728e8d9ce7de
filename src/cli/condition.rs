//! `check --node-condition`: the node reports to its cluster whether its GPUs are usable.

use super::{
    Failure,
    env::{Console, Env},
};
use crate::{
    check::FailOn,
    config::desired::ConditionSpec,
    engine::{Maintenance, RunReport},
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

/// Maximum number of attempts if the node object changes between read and write.
const ATTEMPTS: u32 = 5;

/// The node condition settings of a check.
pub(super) struct ConditionUpdate {
    pub(super) spec: ConditionSpec,
    /// The node name from the settings, if set.
    pub(super) node: Option<NodeName>,
    /// Selects the findings that count as problems.
    pub(super) fail_on: Vec<FailOn>,
    /// The maintenance of the node, which may still wait.
    pub(super) maintenance: Option<Maintenance>,
}

/// Updates the node condition if it has changed. Prints a warning if the machine is not a node yet.
pub(super) async fn tell(
    env: &Env,
    console: &mut Console<'_>,
    host: &Host,
    state: &State,
    telling: &ConditionUpdate,
    report: &RunReport,
) -> Result<(), Failure> {
    let kind = &telling.spec.kind;
    let failed = |why: &str, hint: &str| {
        let message = format!("failed to write the condition {kind} of this node: {why}");
        Failure::new(Exit::StepFailed, "node-condition", &message, Some(hint))
    };
    let unread = |error: StateError| {
        let message = format!("failed to write the condition {kind} of this node");
        Failure::caused(Exit::StepFailed, "node-condition", &message, error, None)
    };
    let Some(membership) = state.membership().map_err(unread)? else {
        let why = format!("the condition {kind} is not written: the machine is not a node");
        console.warn(&[why]);
        return Ok(());
    };
    let name = match &telling.node {
        Some(name) => Some(name.clone()),
        None => state.host_name().map_err(unread)?,
    };
    let Some(name) = name else {
        return Err(failed(
            "the node name is unknown",
            "set `cluster.node-name` or a host name",
        ));
    };
    let Some(kubectl) = state.kubectl().map_err(unread)? else {
        return Err(failed(
            "kubectl is not installed",
            "install kubectl in `/usr/local/bin`",
        ));
    };
    let gpus = state.facts().gpus.len();
    let meaning = telling.spec.meaning;
    let mut said = (telling.maintenance)
        .and_then(|maintenance| formats::condition_in_maintenance(maintenance, meaning))
        .unwrap_or_else(|| formats::condition(report, meaning, &telling.fail_on, gpus));
    said.message = formats::cut(&env.secrets.hide(&said.message));
    let unwritten = |error: ExecError| {
        let message = format!("failed to write the condition {kind} of node `{name}`");
        let hint = "a kubelet can only change the status of its own node; `kubectl auth whoami` with its kubeconfig shows \
                    the node name";
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
                let why = format!("node `{name}` does not exist in the cluster");
                return Err(failed(
                    &why,
                    "set `cluster.node-name` to the name in `kubectl get nodes`",
                ));
            }
            NodeAnswer::Silent(why) => {
                return Err(failed(
                    &why,
                    "check if the kubelet can connect to its API server",
                ));
            }
        };
        let updated = condition::updated(&node, kind, &said, host.clock.now());
        let updated = updated.map_err(|why| {
            let why = format!("the API server returned an invalid node object for `{name}`: {why}");
            failed(
                &why,
                "run `kubectl get node -o yaml` to see the node object",
            )
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
