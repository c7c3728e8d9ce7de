//! The node condition that gpu-bootstrap writes.
//!
//! Source: Kubernetes API reference, `NodeCondition`.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

/// Maximum age of a heartbeat. Readers assume that the program has exited if the heartbeat is much older. The reporter of the
/// node readiness controller uses the same value (kubernetes-sigs/node-readiness-controller).
const HEARTBEAT: Duration = Duration::from_secs(5 * 60);

/// The content of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionStatus {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// A machine-readable reason: one word.
    pub reason: &'static str,
    /// A human-readable message.
    pub message: String,
}

/// Returns the node from the cluster with an updated condition of this type, or `None` if the condition is already up to date
/// and its heartbeat is recent. All other fields are unchanged. The API server rejects the update if the node was changed in
/// the meantime.
///
/// # Errors
/// If the text is not a node.
pub fn updated(
    node: &str,
    kind: &str,
    said: &ConditionStatus,
    now: Timestamp,
) -> Result<Option<String>, String> {
    let mut node: Value = serde_json::from_str(node).map_err(|error| error.to_string())?;
    let status = (node.as_object_mut())
        .and_then(|node| {
            node.entry("status")
                .or_insert_with(|| json!({}))
                .as_object_mut()
        })
        .ok_or("the node has no status")?;
    let conditions = (status.entry("conditions").or_insert_with(|| json!([])))
        .as_array_mut()
        .ok_or("the conditions are not a list")?;
    let before = (conditions.iter()).position(|one| one["type"] == kind);
    let before = before.map(|at| conditions.remove(at)).unwrap_or_default();
    let same_status = before["status"] == said.status;
    let fresh = (before["lastHeartbeatTime"].as_str())
        .and_then(|at| at.parse::<Timestamp>().ok())
        // A heartbeat in the future was written with a wrong clock.
        .and_then(|at| Duration::try_from(now.duration_since(at)).ok())
        .is_some_and(|age| age < HEARTBEAT);
    let says_so = before["reason"] == said.reason && before["message"] == said.message.as_str();
    if same_status && says_so && fresh {
        return Ok(None);
    }
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let since = before["lastTransitionTime"].as_str();
    conditions.push(json!({
        "type": kind,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since.filter(|_| same_status).unwrap_or(&now),
    }));
    Ok(Some(node.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "nvidia.com/GPUReady";

    fn said(status: &'static str, message: &str) -> ConditionStatus {
        ConditionStatus {
            status,
            reason: "GPUsReady",
            message: message.to_owned(),
        }
    }

    fn now() -> Timestamp {
        "2026-11-26T12:00:00.7Z".parse().expect("a time")
    }

    fn has(status: &str, message: &str, heartbeat: &str) -> String {
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": status, "reason": "GPUsReady", "message": message,
                "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-11-01T00:00:00Z",
            })
        };
        let conditions = json!([condition("Ready"), condition(KIND), condition("Other")]);
        json!({
            "metadata": {"name": "gpu-1", "resourceVersion": "7"},
            "spec": {"taints": [{"key": "a"}]},
            "status": {"conditions": conditions, "images": [1]},
        })
        .to_string()
    }

    #[test]
    fn condition_is_written_if_changed_or_heartbeat_is_old() {
        let written = |before: &str| {
            let text = updated(before, KIND, &said("True", "8 GPUs"), now()).expect("a node")?;
            let node: Value = serde_json::from_str(&text).expect("JSON");
            let conditions = node["status"]["conditions"].as_array().expect("a list");
            let own: Vec<&Value> = (conditions.iter())
                .filter(|one| one["type"] == KIND)
                .collect();
            assert_eq!(own.len(), 1, "{text}");
            assert_eq!(own[0]["lastHeartbeatTime"], "2026-11-26T12:00:00Z");
            assert_eq!(own[0]["message"], "8 GPUs");
            Some(own[0]["lastTransitionTime"] == "2026-11-26T12:00:00Z")
        };
        for (before, expected) in [
            // A node without conditions.
            (r#"{"metadata": {"name": "gpu-1"}}"#.to_owned(), Some(true)),
            (has("True", "8 GPUs", "2026-11-26T11:55:01Z"), None),
            (has("True", "8 GPUs", "2026-11-26T11:55:00Z"), Some(false)),
            (has("True", "8 GPUs", "2026-11-26T12:55:00Z"), Some(false)),
            (has("True", "8 GPUs", "yesterday"), Some(false)),
            (has("True", "7 GPUs", "2026-11-26T11:59:00Z"), Some(false)),
            (has("False", "8 GPUs", "2026-11-26T11:59:00Z"), Some(true)),
        ] {
            assert_eq!(written(&before), expected, "{before}");
        }
    }

    #[test]
    fn other_fields_stay_and_messages_are_escaped() {
        let told = said("False", "a \"}]}, \"spec\": {\"unschedulable\": true");
        let before = has("True", "8 GPUs", "2026-11-26T11:59:00Z");
        let text = updated(&before, KIND, &told, now()).expect("a node");
        let mut after: Value = serde_json::from_str(&text.expect("a change")).expect("JSON");
        let mut before: Value = serde_json::from_str(&before).expect("JSON");
        let mut own = Vec::new();
        for node in [&mut before, &mut after] {
            let conditions = node["status"]["conditions"].as_array_mut().expect("a list");
            own.extend(conditions.extract_if(.., |one| one["type"] == KIND));
        }
        assert_eq!(before, after);
        assert_eq!(own[1]["message"], told.message.as_str());
        for no_node in [
            "",
            "7",
            r#"{"status": 7}"#,
            r#"{"status": {"conditions": {}}}"#,
        ] {
            updated(no_node, KIND, &told, now()).expect_err(no_node);
        }
    }
}
