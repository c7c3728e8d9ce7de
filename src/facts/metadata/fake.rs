//! Fake metadata services: a local HTTP server with their responses.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

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

/// A machine of a cloud: `tests/clouds/NAME.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloudTest {
    pub(crate) firmware: Vec<FirmwareTest>,
    pub(crate) service: Option<FakeService>,
    /// The expected facts, without `cloud.`.
    #[serde(default)]
    pub(crate) facts: BTreeMap<String, String>,
}

/// Values of the firmware, and the instance type that they contain.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct FirmwareTest {
    pub(crate) sys_vendor: String,
    pub(crate) product_name: String,
    pub(crate) chassis_asset_tag: String,
    pub(crate) hypervisor_uuid: String,
    pub(crate) instance_type: Option<String>,
}

/// A metadata service.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FakeService {
    token: Option<FakeToken>,
    /// The header that each request needs. With `token`, its value is the token.
    header: String,
    /// The status of a request without the header.
    otherwise: u16,
    /// The response for each path. Other paths do not exist.
    responses: BTreeMap<String, String>,
}

/// A token that a PUT request returns.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FakeToken {
    path: String,
    /// The request header with the lifetime of the token, in seconds.
    header: String,
    /// The longest lifetime.
    longest: u32,
}

impl CloudTest {
    /// Returns the directory of the files.
    pub(crate) fn directory() -> Utf8PathBuf {
        Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clouds")
    }

    /// Returns the machine of a cloud, or `None` if it has no file.
    pub(crate) fn read(cloud: &str) -> Option<Self> {
        let path = Self::directory().join(format!("{cloud}.toml"));
        let text = std::fs::read_to_string(&path).ok()?;
        Some(toml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}")))
    }
}

impl FakeService {
    pub(crate) fn reply(&self, seen: &SeenRequest) -> Reply {
        let (name, value) = self.header.split_once(": ").unwrap();
        if let Some(token) = self.token.as_ref().filter(|token| token.path == seen.path) {
            let seconds = seen
                .header(&token.header)
                .and_then(|text| text.parse::<u32>().ok());
            return match (seen.method.as_str(), seconds) {
                ("PUT", Some(seconds)) if seconds <= token.longest => ok(value),
                ("PUT", _) => no(400),
                _ => no(405),
            };
        }
        if seen.header(name) != Some(value) {
            return no(self.otherwise);
        }
        self.responses
            .get(&seen.path)
            .map_or(no(404), |body| ok(body))
    }
}

fn of(cloud: &str, seen: &SeenRequest) -> Reply {
    let service = CloudTest::read(cloud).and_then(|test| test.service);
    service.unwrap().reply(seen)
}

pub(crate) fn aws(seen: &SeenRequest) -> Reply {
    of("aws", seen)
}

pub(crate) fn azure(seen: &SeenRequest) -> Reply {
    of("azure", seen)
}
