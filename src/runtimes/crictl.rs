//! `crictl`, the client of the Container Runtime Interface (CRI), which kubelets use.

use serde::Deserialize;

use crate::host::Query;

/// A condition that a runtime reports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady`, or a runtime-specific condition.
    #[serde(rename = "type")]
    pub name: String,
    /// Whether the condition is true.
    #[serde(default)]
    pub status: bool,
    /// The reason in one word if it is false.
    #[serde(default)]
    pub reason: String,
    /// The reason if it is false.
    #[serde(default)]
    pub message: String,
}

impl RuntimeCondition {
    /// Returns the reason if the condition is false.
    pub fn issue(&self) -> Option<String> {
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

/// Queries the conditions of the runtime at this socket.
pub fn info(socket: &str) -> Query {
    let endpoint = format!("--runtime-endpoint=unix://{socket}");
    Query::new("crictl", [endpoint.as_str(), "info", "--output=json"])
}

/// Queries the IDs of the running containers at this socket, one per line.
pub fn running(socket: &str) -> Query {
    let endpoint = format!("--runtime-endpoint=unix://{socket}");
    Query::new("crictl", [&*endpoint, "ps", "--quiet"])
}

/// Parses the output of [`info`].
///
/// # Errors
/// If the text is not JSON output of `crictl info`. The message contains the position.
pub fn parse_info(text: &str) -> Result<Vec<RuntimeCondition>, String> {
    let info: CrictlInfo = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(info.status.conditions)
}

/// Whether the error output shows that the runtime does not provide CRI, or only a CRI version that crictl does not support.
pub fn knows_no_service(stderr: &str) -> bool {
    stderr.contains("unknown service runtime.")
}

#[cfg(test)]
mod tests {
    use super::{knows_no_service, parse_info};

    #[test]
    fn conditions_are_parsed_with_their_reasons() {
        let text = r#"{"status": {"conditions": [
            {"type": "RuntimeReady", "status": true, "reason": "", "message": ""},
            {"type": "NetworkReady", "status": false, "reason": "NetworkPluginNotReady",
             "message": "Network plugin returns error: cni plugin not initialized"}]},
            "config": {"containerd": {"defaultRuntimeName": "runc"}}}"#;
        let found = parse_info(text).expect("an answer");
        assert_eq!(found[0].issue(), None);
        assert_eq!(
            found[1].issue().as_deref(),
            Some(
                "NetworkReady is false: NetworkPluginNotReady, Network plugin returns error: cni plugin \
                 not initialized"
            )
        );
        // Protobuf omits false values.
        let text = r#"{"status": {"conditions": [{"type": "RuntimeReady"}]}}"#;
        let found = parse_info(text).expect("an answer");
        assert_eq!(found[0].issue().as_deref(), Some("RuntimeReady is false"));
        assert!(parse_info("{}").is_err());
    }

    #[test]
    fn missing_service_is_distinguished_from_no_response() {
        assert!(knows_no_service(
            "validate CRI v1 runtime API: rpc error: code = Unimplemented desc = unknown service \
             runtime.v1.RuntimeService"
        ));
        assert!(!knows_no_service("context deadline exceeded"));
    }
}
