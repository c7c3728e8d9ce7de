//! Client requests.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::Result;

/// A request. None of the supported requests has a body.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// Whether the client requests to close the connection after the response.
    pub fn closes(&self) -> bool {
        self.headers
            .get("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// `host:port` and path of a target that is an absolute URL, as sent to a proxy.
    pub fn address(&self) -> Option<(String, String)> {
        let rest = self.target.strip_prefix("http://")?;
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let host = match host.contains(':') {
            true => host.to_string(),
            false => format!("{host}:80"),
        };
        Some((host, path.to_string()))
    }
}

/// The next request of a connection; `None` if the client has closed it.
pub fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(String::from);
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some(Request {
                method,
                target,
                headers,
            }));
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
}
