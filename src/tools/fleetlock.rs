//! The FleetLock protocol: a server limits how many nodes are out of service at the same time.
//!
//! Locks are owned and recursive: a repeated request of the holder succeeds, so that it can be sent again after a crash.
//!
//! Sources: coreos/zincati, `docs/development/fleetlock/protocol.md`; poseidon/fleetlock, `internal/nodes.go`.

use std::time::Duration;

use ring::hmac;
use serde::Deserialize;
use serde_json::json;

use crate::{
    host::{HttpRequest, HttpResponse, Method, Route, digest::hex},
    model::{
        fleet::LockGroup,
        secret::Secret,
        text::{excerpt, without_controls},
    },
};

/// The file with the machine ID, 32 hexadecimal digits, from which the node's ID on the server is derived. machine-id(5)
pub const MACHINE_ID: &str = "/etc/machine-id";

/// The application ID of Zincati. poseidon/fleetlock finds the Node object by the ID that is derived with it, and cannot release
/// the lock of a node with another ID. Source: poseidon/fleetlock, `internal/nodes.go`.
const APPLICATION: [u8; 16] = [
    0xde, 0x35, 0x10, 0x6b, 0x6e, 0xc2, 0x46, 0x88, 0xb6, 0x3a, 0xfd, 0xda, 0xa1, 0x56, 0x67, 0x9b,
];

/// The time limit of one request.
const WITHIN: Duration = Duration::from_secs(30);

/// The maximum size of a response.
const LARGEST: u64 = 64 << 10;

/// A request to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRequest {
    /// Acquire the lock.
    Acquire,
    /// Release the lock.
    Release,
}

impl LockRequest {
    /// The last part of the URL.
    const fn path(self) -> &'static str {
        match self {
            Self::Acquire => "/v1/pre-reboot",
            Self::Release => "/v1/steady-state",
        }
    }

    /// The argument for a lock command.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
        }
    }
}

/// Returns the ID of this machine on the server, from the content of [`MACHINE_ID`]: the application-specific ID of
/// sd_id128_get_machine_app_specific(3), as 32 hexadecimal digits. `None` if the content is not a machine ID.
pub fn node_id(machine_id: &str) -> Option<String> {
    let digits = machine_id.trim();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let key: Option<Vec<u8>> = (0..32)
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key?);
    let mut id: [u8; 16] = hmac::sign(&key, &APPLICATION).as_ref()[..16]
        .try_into()
        .ok()?;
    // The version and variant bits of a random UUID.
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    Some(hex(&id))
}

/// Returns the HTTP request for a server at this base URL.
pub fn request(url: &str, what: LockRequest, id: &str, group: &LockGroup) -> HttpRequest {
    let document = json!({"client_params": {"id": id, "group": group}});
    HttpRequest {
        method: Method::Post(document.to_string()),
        route: Route::Proxied,
        url: format!("{url}{}", what.path()),
        headers: vec![
            ("fleet-lock-protocol", Secret::new("true")),
            ("content-type", Secret::new("application/json")),
        ],
        within: WITHIN,
        limit: LARGEST,
    }
}

/// Evaluates the response. The error is the reason of the server, or its status. Only a success is a success: a lock whose state
/// is unknown is not acquired.
///
/// # Errors
/// If the status is not a success.
pub fn result(response: &HttpResponse) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Refusal {
        kind: String,
        value: String,
    }
    if (200..300).contains(&response.status) {
        return Ok(());
    }
    let status = format!("the server returned {}", response.status);
    Err(match serde_json::from_slice(&response.body) {
        Ok(Refusal { kind, value }) => {
            let text = format!("{kind}: {value}");
            let words: Vec<&str> = text.split_whitespace().collect();
            let text = excerpt(&words.join(" "));
            format!("{status} ({})", without_controls(&text).unwrap_or(text))
        }
        Err(_) => status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first row is from poseidon/fleetlock, `internal/nodes_test.go`.
    #[test]
    fn node_id_is_the_one_of_zincati() {
        for (machine, id) in rows! {
            "1c09ca98649c4c7abc779cd04c96812e\n", Some("978a225b3d7b40e9acd7ce9b62f68444");
            "uninitialized\n", None;
            "", None;
            "zz09ca98649c4c7abc779cd04c96812e", None;
        } {
            assert_eq!(node_id(machine).as_deref(), id, "{machine}");
        }
    }

    #[test]
    fn request_has_the_form_of_the_protocol() {
        let group = "rack-1".parse().expect("a group");
        let made = request(
            "https://lock.example/base",
            LockRequest::Acquire,
            "1f",
            &group,
        );
        assert_eq!(made.url, "https://lock.example/base/v1/pre-reboot");
        let body = r#"{"client_params":{"id":"1f","group":"rack-1"}}"#;
        assert_eq!(made.method, Method::Post(body.to_owned()));
        let (name, value) = &made.headers[0];
        assert_eq!((*name, value.expose()), ("fleet-lock-protocol", "true"));
        let made = request("https://lock.example", LockRequest::Release, "1f", &group);
        assert_eq!(made.url, "https://lock.example/v1/steady-state");
    }

    #[test]
    fn only_a_successful_status_acquires_the_lock() {
        for (status, body, error) in rows! {
            200, "", None;
            204, "", None;
            301, "", Some("the server returned 301");
            423, r#"{"kind": "lock_held", "value": "reboot lock\nheld"}"#, Some("the server returned 423 (lock_held: reboot lock held)");
            500, r#"{"kind": "failed_lock", "value": ""}"#, Some("the server returned 500 (failed_lock:)");
            503, "<html>", Some("the server returned 503");
            404, r#"{"kind": 1}"#, Some("the server returned 404");
        } {
            let response = HttpResponse {
                status,
                body: body.as_bytes().to_vec(),
                headers: Vec::new(),
            };
            let found = result(&response).err();
            assert_eq!(found.as_deref(), error, "{status} {body}");
        }
    }
}
