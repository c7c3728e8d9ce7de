//! `crictl`, the client of the interface through which a kubelet uses a container runtime (CRI).

use serde::Deserialize;

use crate::host::Query;

/// What a runtime says about one of its parts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady`, or one of the runtime's own.
    #[serde(rename = "type")]
    pub name: String,
    /// Whether it holds.
    #[serde(default)]
    pub status: bool,
    /// Why not, in one word.
    #[serde(default)]
    pub reason: String,
    /// Why not.
    #[serde(default)]
    pub message: String,
}

impl RuntimeCondition {
    /// Why it does not hold; nothing where it does.
    #[must_use]
    pub fn flaw(&self) -> Option<String> {
        let said = [&self.reason, &self.message].map(|text| text.trim());
        let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
        (!self.status).then(|| match &said[..] {
            [] => format!("{} is false", self.name),
            said => format!("{} is false: {}", self.name, said.join(", ")),
        })
    }
}

#[derive(Deserialize)]
struct CrictlInfo {
    status: RuntimeStatus,
}

#[derive(Deserialize)]
struct RuntimeStatus {
    conditions: Vec<RuntimeCondition>,
}

/// Asks the runtime at this socket for its conditions.
#[must_use]
pub fn info(socket: &str) -> Query {
    let endpoint = format!("--runtime-endpoint=unix://{socket}");
    Query::new("crictl", [endpoint.as_str(), "info", "--output=json"])
}

/// Asks the runtime at this socket for the ids of its running containers, one per line.
#[must_use]
pub fn running(socket: &str) -> Query {
    let endpoint = format!("--runtime-endpoint=unix://{socket}");
    Query::new("crictl", [&*endpoint, "ps", "--quiet"])
}

/// Reads the answer to [`info`].
///
/// # Errors
/// Where and why it is not such a document.
pub fn parse_info(text: &str) -> Result<Vec<RuntimeCondition>, String> {
    let info: CrictlInfo = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(info.status.conditions)
}

/// Whether the runtime has no service that the client knows: it has no CRI, or another version of it.
#[must_use]
pub fn knows_no_service(stderr: &str) -> bool {
    stderr.contains("unknown service runtime.")
}

#[cfg(test)]
mod tests {
    use super::{knows_no_service, parse_info};

    #[test]
    fn conditions_are_read_with_their_reasons() {
        let text = r#"{"status": {"conditions": [
            {"type": "RuntimeReady", "status": true, "reason": "", "message": ""},
            {"type": "NetworkReady", "status": false, "reason": "NetworkPluginNotReady",
             "message": "Network plugin returns error: cni plugin not initialized"}]},
            "config": {"containerd": {"defaultRuntimeName": "runc"}}}"#;
        let found = parse_info(text).expect("an answer");
        assert_eq!(found[0].flaw(), None);
        assert_eq!(
            found[1].flaw().as_deref(),
            Some(
                "NetworkReady is false: NetworkPluginNotReady, Network plugin returns error: cni plugin \
                 not initialized"
            )
        );
        // Protobuf leaves out what is false.
        let text = r#"{"status": {"conditions": [{"type": "RuntimeReady"}]}}"#;
        let found = parse_info(text).expect("an answer");
        assert_eq!(found[0].flaw().as_deref(), Some("RuntimeReady is false"));
        assert!(parse_info("{}").is_err());
    }

    #[test]
    fn a_service_that_is_not_there_is_told_from_silence() {
        assert!(knows_no_service(
            "validate CRI v1 runtime API: rpc error: code = Unimplemented desc = unknown service \
             runtime.v1.RuntimeService"
        ));
        assert!(!knows_no_service("context deadline exceeded"));
    }
}
