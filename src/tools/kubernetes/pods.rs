//! Pods by `kubectl`: made, looked at, read and deleted.
//!
//! Sources: Kubernetes, reference of kubectl and of the API (`Pod`); reasons that the kubelet gives:
//! kubernetes/kubernetes, `pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime/kuberuntime_container.go`,
//! `pkg/kubelet/lifecycle/predicate.go`.

use camino::Utf8Path;
use serde::Deserialize;

use super::kubectl::{DEADLINE, Kubectl};
use crate::{
    host::{Cmd, Query},
    model::secret::Secret,
};

/// The runtime class of nvidia's container runtime, as NVIDIA's GPU operator and the manuals of k3s name it.
pub const RUNTIME_CLASS: &str = "nvidia";

/// Reasons for which a container waits because its image is not there.
const NO_IMAGE: [&str; 3] = ["ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"];

/// The reason of a pod whose own deadline is over. Source: kubernetes/kubernetes, `pkg/kubelet/active_deadline.go`.
const OVERDUE: &str = "DeadlineExceeded";

/// Reasons for which a container has ended although its program never ran.
const NOT_STARTED: [&str; 2] = ["StartError", "ContainerCannotRun"];

impl Kubectl {
    /// Makes the pod of a manifest.
    #[must_use]
    pub fn create(self, kubeconfig: &Utf8Path, manifest: String) -> Cmd {
        let args = self.args(kubeconfig, &["create", "--filename=-"], []);
        Cmd::new(self.program, args)
            .stdin(Secret::new(manifest))
            .deadline(DEADLINE)
    }

    /// Reads a pod.
    #[must_use]
    pub fn pod(self, kubeconfig: &Utf8Path, namespace: &str, name: &str) -> Query {
        let namespace = format!("--namespace={namespace}");
        let own = [
            "get",
            "pod",
            &namespace,
            "--ignore-not-found",
            "--output=json",
        ];
        let args = self.args(kubeconfig, &own, [name.to_owned()]);
        Query::new(self.program, args).deadline(DEADLINE)
    }

    /// Reads what the container of a pod has printed.
    #[must_use]
    pub fn log(self, kubeconfig: &Utf8Path, namespace: &str, name: &str) -> Query {
        let namespace = format!("--namespace={namespace}");
        let args = self.args(kubeconfig, &["logs", &namespace], [name.to_owned()]);
        Query::new(self.program, args).deadline(DEADLINE)
    }

    /// Deletes a pod, and does not wait until it is gone: that would need the right to list and watch pods.
    #[must_use]
    pub fn delete_pod(self, kubeconfig: &Utf8Path, namespace: &str, name: &str) -> Cmd {
        let namespace = format!("--namespace={namespace}");
        let own = [
            "delete",
            "pod",
            &namespace,
            "--ignore-not-found",
            "--grace-period=1",
            "--wait=false",
        ];
        let args = self.args(kubeconfig, &own, [name.to_owned()]);
        Cmd::new(self.program, args).deadline(DEADLINE)
    }

    /// Looks for the runtime class of nvidia's runtime.
    #[must_use]
    pub fn runtime_class(self, kubeconfig: &Utf8Path) -> Query {
        let own = ["get", "runtimeclass", "--output=name"];
        let args = self.args(kubeconfig, &own, [RUNTIME_CLASS.to_owned()]);
        Query::new(self.program, args).deadline(DEADLINE)
    }
}

/// How far a pod has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// There is no such pod.
    Gone,
    /// Its container does not run yet: why.
    Waiting(String),
    /// Its container runs.
    Running,
    /// Its container has ended with this status.
    Ended(i64),
    /// Its container could not be started: why.
    NotStarted(String),
    /// The kubelet has refused the pod: why.
    Refused(String),
    /// The image is not there.
    NoImage(String),
    /// The kubelet has ended the pod at its own deadline.
    Overdue(String),
}

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    reason: String,
    message: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Deserialize)]
struct ContainerStatus {
    #[serde(default)]
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Reason>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Reason>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Reason {
    reason: String,
    message: String,
    exit_code: i64,
}

/// Reads the output of [`Kubectl::pod`].
///
/// # Errors
/// Why it is no pod.
pub fn parse(text: &str) -> Result<PodState, String> {
    if text.trim().is_empty() {
        return Ok(PodState::Gone);
    }
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Status {
        phase,
        reason,
        message,
        container_statuses,
    } = document.status;
    let said = |reason: &str, message: &str| match (reason, message) {
        ("", "") => "for an unknown reason".to_owned(),
        (one, "") | ("", one) => one.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    if phase == "Failed" && reason == OVERDUE {
        return Ok(PodState::Overdue(said(&reason, &message)));
    }
    let state = (container_statuses.into_iter().next()).map(|one| one.state);
    if let Some(ended) = state.as_ref().and_then(|state| state.terminated.as_ref()) {
        return Ok(match NOT_STARTED.contains(&ended.reason.as_str()) {
            true => PodState::NotStarted(said(&ended.reason, &ended.message)),
            false => PodState::Ended(ended.exit_code),
        });
    }
    if phase == "Failed" {
        return Ok(PodState::Refused(said(&reason, &message)));
    }
    let Some(state) = state else {
        return Ok(PodState::Waiting(
            "the kubelet has not taken it up".to_owned(),
        ));
    };
    Ok(match (state.running, state.waiting) {
        (Some(_), _) => PodState::Running,
        (None, Some(waiting)) if NO_IMAGE.contains(&waiting.reason.as_str()) => {
            PodState::NoImage(said(&waiting.reason, &waiting.message))
        }
        (None, waiting) => {
            let Reason {
                reason, message, ..
            } = waiting.unwrap_or_default();
            PodState::Waiting(said(&reason, &message))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{PodState, parse};

    #[test]
    fn a_pod_that_does_not_run_tells_why() {
        let status = |status: &str| parse(&format!(r#"{{"kind":"Pod","status":{status}}}"#));
        let of = |state: &str| {
            status(&format!(
                r#"{{"phase":"Pending","containerStatuses":[{{"name":"probe","state":{state}}}]}}"#
            ))
        };
        for (found, expected) in [
            (parse(""), PodState::Gone),
            (
                status(r#"{"phase":"Pending"}"#),
                PodState::Waiting("the kubelet has not taken it up".into()),
            ),
            (
                status(
                    r#"{"phase":"Failed","reason":"UnexpectedAdmissionError","message":"Allocate failed"}"#,
                ),
                PodState::Refused("UnexpectedAdmissionError: Allocate failed".into()),
            ),
            // The kubelet has killed its container.
            (
                status(
                    r#"{"phase":"Failed","reason":"DeadlineExceeded","containerStatuses":[{"name":"probe","state":{"terminated":{"exitCode":137}}}]}"#,
                ),
                PodState::Overdue("DeadlineExceeded".into()),
            ),
            (
                of(r#"{"waiting":{"reason":"ContainerCreating"}}"#),
                PodState::Waiting("ContainerCreating".into()),
            ),
            (
                of(r#"{"waiting":{"reason":"ErrImageNeverPull","message":"not present"}}"#),
                PodState::NoImage("ErrImageNeverPull: not present".into()),
            ),
            (
                of(r#"{"running":{"startedAt":"2026-11-24T00:00:00Z"}}"#),
                PodState::Running,
            ),
            (
                of(r#"{"terminated":{"exitCode":0,"reason":"Completed"}}"#),
                PodState::Ended(0),
            ),
            (
                of(
                    r#"{"terminated":{"exitCode":128,"reason":"StartError","message":"no such file"}}"#,
                ),
                PodState::NotStarted("StartError: no such file".into()),
            ),
        ] {
            assert_eq!(found.as_ref(), Ok(&expected));
        }
        parse("no pod").expect_err("no JSON");
    }
}
