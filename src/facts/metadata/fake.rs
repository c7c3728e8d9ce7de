//! Fake metadata services: a local HTTP server with their responses.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A received request. Header names are in lower case.
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl SeenRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// The response of the server: a status and a body, or no response.
pub(crate) type Reply = Option<(u16, String)>;

pub(crate) fn ok(body: &str) -> Reply {
    Some((200, body.to_owned()))
}

pub(crate) fn no(status: u16) -> Reply {
    Some((status, String::new()))
}

/// Serves until the test ends. Returns the URL.
pub(crate) fn serve(reply: impl Fn(&SeenRequest) -> Reply + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        while let Ok((mut connection, _)) = listener.accept() {
            let mut request = Vec::new();
            let mut buffer = [0; 1024];
            while !is_whole(&request) {
                let Ok(1..) = connection.read(&mut buffer).inspect(|count| {
                    request.extend_from_slice(&buffer[..*count]);
                }) else {
                    break;
                };
            }
            let text = String::from_utf8(request).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            let mut lines = head.lines();
            let mut first = lines
                .next()
                .unwrap_or_default()
                .split(' ')
                .map(str::to_owned);
            let seen = SeenRequest {
                method: first.next().unwrap_or_default(),
                path: first.next().unwrap_or_default(),
                headers: lines
                    .filter_map(|line| line.split_once(": "))
                    .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                    .collect(),
                body: body.to_owned(),
            };
            match reply(&seen) {
                Some((status, body)) => {
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n");
                    let answer = format!("{head}Connection: close\r\n\r\n{body}");
                    connection.write_all(answer.as_bytes()).unwrap();
                }
                // Keep the connection open.
                None => silent.push(connection),
            }
        }
    });
    address
}

/// Whether the whole request was read, including its body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        let length = (head.lines())
            .filter_map(|line| line.split_once(": "))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        length.is_none_or(|(_, length)| length.parse().is_ok_and(|length| body.len() >= length))
    })
}

/// IMDSv2: every request needs a token, and tokens are only available through PUT.
pub(crate) fn aws(seen: &SeenRequest) -> Reply {
    if seen.path == "/latest/api/token" {
        let seconds = seen.header("x-aws-ec2-metadata-token-ttl-seconds");
        return match (seen.method.as_str(), seconds) {
            ("PUT", Some(seconds)) if seconds.parse().is_ok_and(|s: u32| s <= 21_600) => {
                ok("AQAEA-token==")
            }
            ("PUT", _) => no(400),
            _ => no(405),
        };
    }
    if seen.header("x-aws-ec2-metadata-token") != Some("AQAEA-token==") {
        return no(401);
    }
    match seen.path.as_str() {
        "/latest/meta-data/instance-id" => ok("i-0929128ff2f73a2f1"),
        "/latest/meta-data/instance-type" => ok("p5.48xlarge"),
        "/latest/meta-data/instance-life-cycle" => ok("spot"),
        "/latest/meta-data/placement/region" => ok("us-east-2"),
        "/latest/meta-data/placement/availability-zone" => ok("us-east-2b"),
        _ => no(404),
    }
}

pub(crate) fn gcp(seen: &SeenRequest) -> Reply {
    if seen.header("metadata-flavor") != Some("Google") {
        return no(403);
    }
    match seen.path.strip_prefix("/computeMetadata/v1/instance/") {
        Some("id") => ok("4877340112233445566"),
        Some("machine-type") => ok("projects/123456789/machineTypes/a3-highgpu-8g"),
        Some("zone") => ok("projects/123456789/zones/europe-west4-b"),
        Some("scheduling/preemptible") => ok("TRUE"),
        _ => no(404),
    }
}

pub(crate) fn azure(seen: &SeenRequest) -> Reply {
    let path = "/metadata/instance/compute?api-version=2021-02-01&format=json";
    if seen.header("metadata") != Some("true") || seen.path != path {
        return no(400);
    }
    ok(
        r#"{"vmSize": "Standard_ND96isr_H100_v5", "location": "westeurope", "zone": "",
           "priority": "Regular", "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6", "tags": "", "userData": ""}"#,
    )
}
