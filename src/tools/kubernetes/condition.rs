//! A condition of the node that this program writes: when it has to be written, and how.
//!
//! Source: Kubernetes, reference of the API, `NodeCondition`.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::kubectl::NodeCondition;

/// How old a heartbeat may be: readers take one that is much older for the word of a program that has ended. The node
/// readiness controller's reporter has the same (kubernetes-sigs/node-readiness-controller).
const HEARTBEAT: Duration = Duration::from_secs(5 * 60);

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word for programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// The change of the node's status after which its condition of this type says this; `None` where it says so already, and
/// its heartbeat is fresh. `before` are the conditions that the node has.
#[must_use]
pub fn patch(kind: &str, said: &Said, before: &[NodeCondition], now: Timestamp) -> Option<String> {
    let before = before.iter().find(|one| one.r#type == kind);
    let same_status = before.is_some_and(|before| before.status == said.status);
    let says_so =
        before.is_some_and(|before| before.reason == said.reason && before.message == said.message);
    let fresh = (before.and_then(|before| before.last_heartbeat_time))
        // One of the future is of a clock that was wrong.
        .and_then(|at| Duration::try_from(now.duration_since(at)).ok())
        .is_some_and(|age| age < HEARTBEAT);
    if same_status && says_so && fresh {
        return None;
    }
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut condition = json!({
        "type": kind,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "lastHeartbeatTime": now,
    });
    if !same_status {
        condition["lastTransitionTime"] = json!(now);
    }
    Some(json!({ "status": { "conditions": [condition] } }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "nvidia.com/GPUReady";

    fn at(time: &str) -> Timestamp {
        format!("2026-11-26T{time}Z").parse().expect("a time")
    }

    fn said(status: &'static str, message: &str) -> Said {
        Said {
            status,
            reason: "GPUsReady",
            message: message.to_owned(),
        }
    }

    fn has(status: &str, message: &str, heartbeat: Option<&str>) -> Vec<NodeCondition> {
        let condition = |kind: &str, status: &str| NodeCondition {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: "GPUsReady".to_owned(),
            message: message.to_owned(),
            last_heartbeat_time: heartbeat.map(at),
        };
        vec![condition("Ready", "Unknown"), condition(KIND, status)]
    }

    #[test]
    fn a_condition_is_written_when_it_says_something_else_or_its_heartbeat_is_old() {
        let now = at("12:00:00.7");
        let written = |said: &Said, before: &[NodeCondition]| {
            let patch: serde_json::Value =
                serde_json::from_str(&patch(KIND, said, before, now)?).expect("JSON");
            let condition = patch["status"]["conditions"][0].clone();
            assert_eq!(condition["type"], KIND);
            assert_eq!(condition["lastHeartbeatTime"], "2026-11-26T12:00:00Z");
            Some(condition["lastTransitionTime"].is_string())
        };
        let good = said("True", "8 GPUs");
        for (before, expected) in [
            // A node that has none.
            (vec![], Some(true)),
            (has("True", "8 GPUs", Some("11:55:01")), None),
            (has("True", "8 GPUs", Some("11:55:00")), Some(false)),
            (has("True", "8 GPUs", Some("12:55:00")), Some(false)),
            (has("True", "8 GPUs", None), Some(false)),
            (has("True", "7 GPUs", Some("11:59:00")), Some(false)),
            (has("False", "8 GPUs", Some("11:59:00")), Some(true)),
        ] {
            assert_eq!(written(&good, &before), expected, "{before:?}");
        }
    }

    #[test]
    fn what_others_have_written_into_a_message_stays_text() {
        let told = said("False", "a \"}]}, \"spec\": {\"unschedulable\": true");
        let patch = patch(KIND, &told, &[], at("12:00:00")).expect("a patch");
        let patch: serde_json::Value = serde_json::from_str(&patch).expect("JSON");
        assert_eq!(patch["status"]["conditions"][0]["message"], told.message);
        assert!(patch.get("spec").is_none());
    }
}
