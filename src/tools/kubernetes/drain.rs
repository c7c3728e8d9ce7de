//! Decides which pods of a node must be evicted before its maintenance, and reads the results of evictions. The rules are those
//! of `kubectl drain`, which cannot be used with the permissions of a kubelet, because it also reads DaemonSets.
//!
//! Sources: Kubernetes, "Safely Drain a Node" and "API-initiated Eviction"; kubernetes/kubectl, `pkg/drain/filters.go`.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::json;

use super::kubectl::{CONFLICT, NOT_FOUND};

/// The annotation of a pod that the kubelet itself has created from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The label of the pods of the system upgrade controller. If such a pod started this upgrade, its eviction would end the upgrade.
/// Source: rancher/system-upgrade-controller, `pkg/upgrade/job/job.go`.
const OF_UPGRADE_CONTROLLER: &str = "upgrade.cattle.io/controller";

/// Part of the kubectl error if an eviction would violate a disruption budget (status 429).
const TOO_MANY: &str = "(TooManyRequests)";

/// A pod of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// Its ID, which differs from the one of a later pod with the same name.
    pub uid: String,
    /// The kind of its controller, such as `ReplicaSet`.
    controller: Option<String>,
    /// It was created by the kubelet from a file.
    is_mirror: bool,
    /// It belongs to the system upgrade controller.
    is_of_upgrade: bool,
    /// It was deleted or evicted, and is shutting down.
    is_terminating: bool,
    /// All its containers have exited for good.
    is_finished: bool,
    /// It has an `emptyDir` volume, which is deleted with the pod.
    has_local_data: bool,
}

impl fmt::Display for Pod {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.namespace, self.name)
    }
}

/// What happens to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodAction {
    /// It stays: a DaemonSet or the kubelet would start it again immediately.
    Stays,
    /// It is shutting down.
    Waits,
    /// It is evicted.
    Evict,
    /// It would be lost, with the setting that allows its eviction.
    Refused {
        why: &'static str,
        setting: &'static str,
    },
}

/// The pods whose eviction loses something, and is allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// Pods without a controller, which are not started on another node.
    pub unmanaged: bool,
    /// Pods with `emptyDir` volumes, whose data is deleted.
    pub local_data: bool,
}

impl Pod {
    /// Decides what happens to the pod.
    pub fn action(&self, consent: Consent) -> PodAction {
        let is_of_daemon_set = self.controller.as_deref() == Some("DaemonSet");
        if self.is_mirror || is_of_daemon_set || self.is_of_upgrade {
            return PodAction::Stays;
        }
        if self.is_terminating {
            return PodAction::Waits;
        }
        // A finished pod loses nothing.
        if self.is_finished {
            return PodAction::Evict;
        }
        if self.controller.is_none() && !consent.unmanaged {
            return PodAction::Refused {
                why: "has no controller that starts it on another node",
                setting: "fleet.evict-unmanaged",
            };
        }
        if self.has_local_data && !consent.local_data {
            return PodAction::Refused {
                why: "has an emptyDir volume, whose data would be deleted",
                setting: "fleet.delete-emptydir-data",
            };
        }
        PodAction::Evict
    }

    /// Returns the document that requests the eviction.
    pub fn eviction(&self, dry_run: DryRun) -> String {
        // The ID protects a later pod with the same name, such as the next one of a StatefulSet.
        let mut document = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "deleteOptions": {"preconditions": {"uid": self.uid}},
        });
        if dry_run == DryRun::Yes {
            document["deleteOptions"]["dryRun"] = json!(["All"]);
        }
        document.to_string()
    }
}

/// Whether an eviction request only queries if the eviction is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    /// The document contains this, in addition to the URL.
    Yes,
    No,
}

/// The result of an eviction request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The pod is shutting down.
    Accepted,
    /// The pod no longer exists.
    Gone,
    /// A disruption budget does not permit it now, or the pod was replaced by one with the same name, with the reason.
    Later(String),
    /// The request failed, with the reason.
    Failed(String),
}

/// Evaluates the result of a `kubectl` eviction request.
pub fn result(succeeded: bool, stderr: &str) -> Evicted {
    if succeeded {
        return Evicted::Accepted;
    }
    let last = stderr.trim().lines().last().unwrap_or("no error message");
    let why = || {
        let text = last.strip_prefix("Error from server ").unwrap_or(last);
        text.split_once("): ")
            .map_or(text, |(_, text)| text)
            .to_owned()
    };
    match last {
        _ if last.contains(NOT_FOUND) => Evicted::Gone,
        // After a conflict, the ID of the new pod is read again.
        _ if last.contains(TOO_MANY) || last.contains(CONFLICT) => Evicted::Later(why()),
        _ => Evicted::Failed(last.to_owned()),
    }
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<PodObject>,
}

#[derive(Deserialize)]
struct PodObject {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<Owner>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    #[serde(default)]
    controller: bool,
}

#[derive(Default, Deserialize)]
struct PodSpec {
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct PodStatus {
    #[serde(default)]
    phase: String,
}

/// Parses a list of pods from the API.
///
/// # Errors
/// If the text is not a list of pods.
pub fn parse(text: &str) -> Result<Vec<Pod>, String> {
    let list: PodList = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let pod = |pod: PodObject| {
        let PodMetadata {
            name,
            namespace,
            uid,
            labels,
            annotations,
            owner_references,
            deletion_timestamp,
        } = pod.metadata;
        Pod {
            namespace,
            name,
            uid,
            controller: (owner_references.into_iter())
                .find(|owner| owner.controller)
                .map(|owner| owner.kind),
            is_mirror: annotations.contains_key(MIRROR),
            is_of_upgrade: labels.contains_key(OF_UPGRADE_CONTROLLER),
            is_terminating: deletion_timestamp.is_some(),
            is_finished: ["Succeeded", "Failed"].contains(&pod.status.phase.as_str()),
            has_local_data: pod.spec.volumes.iter().any(|one| one.empty_dir.is_some()),
        }
    };
    Ok(list.items.into_iter().map(pod).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with these parts of its metadata, of its other fields, and of its spec.
    fn pod(metadata: &str, rest: &str) -> Pod {
        let text = format!(
            r#"{{"items": [{{"metadata": {{"name": "a", "namespace": "b", "uid": "c"{metadata}}}{rest}}}]}}"#
        );
        parse(&text).expect("a list").remove(0)
    }

    #[test]
    fn action_depends_on_owner_and_data() {
        let set = r#", "ownerReferences": [{"kind": "ReplicaSet", "controller": true}]"#;
        let daemon = r#", "ownerReferences": [{"kind": "Other"}, {"kind": "DaemonSet", "controller": true}]"#;
        let leaving = r#", "deletionTimestamp": "2026-11-28T00:00:00Z""#;
        let mirror = r#", "annotations": {"kubernetes.io/config.mirror": "1"}"#;
        let upgrade = r#", "labels": {"upgrade.cattle.io/controller": "x"}"#;
        let local = r#", "spec": {"volumes": [{"name": "a"}, {"name": "b", "emptyDir": {}}]}"#;
        let done = r#", "status": {"phase": "Succeeded"}"#;
        let none = Consent::default();
        let all = Consent {
            unmanaged: true,
            local_data: true,
        };
        let refused = |setting: &'static str| move |action: PodAction| matches!(action, PodAction::Refused { setting: found, .. } if found == setting);
        for (metadata, rest, expected) in [
            (set, "", PodAction::Evict),
            (daemon, local, PodAction::Stays),
            (mirror, "", PodAction::Stays),
            (upgrade, "", PodAction::Stays),
            (leaving, local, PodAction::Waits),
            ("", done, PodAction::Evict),
        ] {
            assert_eq!(
                pod(metadata, rest).action(none),
                expected,
                "{metadata} {rest}"
            );
        }
        let unmanaged = pod("", "");
        assert!(refused("fleet.evict-unmanaged")(unmanaged.action(none)));
        // An owner that is not a controller does not start the pod again.
        let owned = pod(r#", "ownerReferences": [{"kind": "Node"}]"#, "");
        assert!(refused("fleet.evict-unmanaged")(owned.action(none)));
        let with_data = pod(set, local);
        assert!(refused("fleet.delete-emptydir-data")(
            with_data.action(none)
        ));
        for pod in [unmanaged, with_data] {
            assert_eq!(pod.action(all), PodAction::Evict);
        }
        parse("no list").expect_err("not JSON");
    }

    #[test]
    fn eviction_results_are_told_apart() {
        let budget = "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget.\n";
        let conflict = "Error from server (Conflict): the UID in the precondition does not match\n";
        let forbidden = "Error from server (Forbidden): pods \"a\" is forbidden";
        for (succeeded, stderr, expected) in rows! {
            true, "", Evicted::Accepted;
            false, "Error from server (NotFound): pods \"a\" not found\n", Evicted::Gone;
            false, budget, Evicted::Later("Cannot evict pod as it would violate the pod's disruption budget.".to_owned());
            false, conflict, Evicted::Later("the UID in the precondition does not match".to_owned());
            false, forbidden, Evicted::Failed(forbidden.to_owned());
            false, "", Evicted::Failed("no error message".to_owned());
        } {
            assert_eq!(result(succeeded, stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn eviction_names_one_pod() {
        assert_eq!(
            pod("", "").eviction(DryRun::No),
            r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a","namespace":"b"},"deleteOptions":{"preconditions":{"uid":"c"}}}"#
        );
        assert_eq!(
            pod("", "").eviction(DryRun::Yes),
            r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a","namespace":"b"},"deleteOptions":{"preconditions":{"uid":"c"},"dryRun":["All"]}}"#
        );
    }
}
