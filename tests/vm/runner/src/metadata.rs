//! The metadata service of a cloud, for cloud-init's data sources and for the product. It returns the same data as the
//! real service for their requests, rejects what the real service rejects, and returns 404 for the rest.
//!
//! Sources: cloud-init 22.4.2 (`DataSourceEc2`, `DataSourceGCE`, `DataSourceAzure`, `helpers/azure`) for the requests;
//! the clouds' documentation of their services for rejected requests (401 and 403 of IMDSv2, `Metadata-Flavor`,
//! `Metadata`).

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::out;
use crate::serve::{READY, Request, accept, bind, read_request};

/// The only token, in the format of IMDSv2.
const TOKEN: &str = "AQAEAHEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLE==";

/// The longest body of a request: the report to Azure's WireServer.
const LONGEST: u64 = 64 << 10;

/// The requested versions of Amazon's service.
const VERSIONS: [&str; 5] = [
    "latest",
    "2021-03-23",
    "2018-09-24",
    "2016-09-02",
    "2009-04-04",
];

/// A cloud.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Cloud {
    Aws,
    Gcp,
    Azure,
}

impl Cloud {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Cloud::Aws => "aws",
            Cloud::Gcp => "gcp",
            Cloud::Azure => "azure",
        }
    }
}

/// The data of a service.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Service {
    pub cloud: Cloud,
    pub answers: Value,
    pub user_data: String,
}

/// A response: status and body.
type Answer = (u16, String);

/// Serves a document at these addresses until the process exits.
pub fn run(document: &Path, addresses: &[String]) -> Result<()> {
    let text = fs::read(document).context("cannot read the metadata")?;
    let service: Service = serde_json::from_slice(&text).context("the metadata is not valid")?;
    let service = Arc::new(service);
    let mut threads: Vec<thread::JoinHandle<Result<()>>> = Vec::new();
    for address in addresses {
        let listener = bind(address)?;
        writeln!(std::io::stdout(), "{READY} {address}").context("cannot write the log")?;
        let service = Arc::clone(&service);
        threads.push(thread::spawn(move || {
            accept(&listener, move |stream| talk(stream, &service))
        }));
    }
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread that listens panicked"))??;
    }
    Ok(())
}

fn talk(stream: &TcpStream, service: &Service) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        let length = (request.headers.get("content-length")).and_then(|text| text.parse().ok());
        let mut body = String::new();
        (reader.by_ref())
            .take(length.unwrap_or(0).min(LONGEST))
            .read_to_string(&mut body)?;
        let (status, answer) = service.answer(&request, &body);
        out::say(format!("{status} {} {}", request.method, request.target));
        let flavor = match service.cloud {
            Cloud::Gcp => "Metadata-Flavor: Google\r\n",
            Cloud::Aws | Cloud::Azure => "",
        };
        let length = answer.len();
        write!(
            writer,
            "HTTP/1.1 {status} X\r\n{flavor}Content-Length: {length}\r\n\r\n{answer}"
        )?;
        writer.flush()?;
        if request.closes() {
            break;
        }
    }
    Ok(())
}

fn refused(status: u16) -> Answer {
    (status, String::new())
}

impl Service {
    fn answer(&self, request: &Request, body: &str) -> Answer {
        let (path, query) = (request.target.split_once('?')).unwrap_or((&request.target, ""));
        match self.cloud {
            Cloud::Aws => self.aws(request, path),
            Cloud::Gcp => self.gcp(request, path, query),
            Cloud::Azure if path.trim_end_matches('/') == "/machine" => {
                wire_server(request, query, body)
            }
            Cloud::Azure => self.azure(request, path, query),
        }
    }

    /// The second version of Amazon's service: every request needs a token.
    fn aws(&self, request: &Request, path: &str) -> Answer {
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        if path == "/latest/api/token" {
            let seconds = header("x-aws-ec2-metadata-token-ttl-seconds");
            let seconds = seconds.and_then(|text| text.parse().ok());
            return match (request.method.as_str(), seconds) {
                ("PUT", _) if header("x-forwarded-for").is_some() => refused(403),
                ("PUT", Some(1..=21600)) => (200, TOKEN.into()),
                ("PUT", _) => refused(400),
                _ => refused(405),
            };
        }
        if header("x-aws-ec2-metadata-token") != Some(TOKEN) {
            return refused(401);
        }
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        if !parts.next().is_some_and(|one| VERSIONS.contains(&one)) {
            return refused(404);
        }
        let parts: Vec<&str> = parts.collect();
        if parts == ["user-data"] {
            return (200, self.user_data.clone());
        }
        match walk(&self.answers, &parts) {
            Some(Value::Object(table)) => {
                let names = table.iter().map(|(name, value)| match value {
                    Value::Object(_) => format!("{name}/"),
                    _ => name.clone(),
                });
                (200, names.collect::<Vec<_>>().join("\n"))
            }
            Some(Value::String(text)) => (200, text.clone()),
            _ => refused(404),
        }
    }

    /// Google's service: every request needs its header; a whole table is one document.
    fn gcp(&self, request: &Request, path: &str, query: &str) -> Answer {
        if request.headers.get("metadata-flavor").map(String::as_str) != Some("Google") {
            return refused(403);
        }
        let Some(path) = path.strip_prefix("/computeMetadata/v1/") else {
            return refused(404);
        };
        let mut answers = self.answers.clone();
        if let Some(attributes) = answers.pointer_mut("/instance/attributes") {
            // A script is for Google's agent and not visible to cloud-init.
            let name = match self.user_data.starts_with("#!") {
                true => "startup-script",
                false => "user-data",
            };
            attributes[name] = self.user_data.clone().into();
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let recursive = query
            .split('&')
            .any(|one| one.eq_ignore_ascii_case("recursive=true"));
        match walk(&answers, &parts) {
            Some(table @ Value::Object(_)) if recursive => (200, table.to_string()),
            Some(Value::String(text)) => (200, text.clone()),
            _ => refused(404),
        }
    }

    /// Azure's service: every request needs its header and a version; each part of the document is one.
    fn azure(&self, request: &Request, path: &str, query: &str) -> Answer {
        let asked = request.headers.get("metadata").map(String::as_str);
        let version = query
            .split('&')
            .find_map(|one| one.strip_prefix("api-version="));
        let Some(version) =
            version.filter(|_| asked.is_some_and(|text| text == "true" || text == "True"))
        else {
            return refused(400);
        };
        let Some(path) = path.strip_prefix("/metadata/") else {
            return refused(404);
        };
        let mut answers = self.answers.clone();
        // The service returns it from this version on.
        if version >= "2021-01-01"
            && let Some(compute) = answers.pointer_mut("/instance/compute")
        {
            compute["userData"] = STANDARD.encode(&self.user_data).into();
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match walk(&answers, &parts) {
            Some(part) => (200, part.to_string()),
            None => refused(404),
        }
    }
}

/// Azure's other service, at a separate address: it returns the goal state, and receives the machine state.
fn wire_server(request: &Request, query: &str, body: &str) -> Answer {
    if !request.headers.contains_key("x-ms-version") {
        return refused(400);
    }
    match (request.method.as_str(), query) {
        ("GET", "comp=goalstate") => (200, GOAL_STATE.into()),
        ("POST", "comp=health") => {
            let state = (body.split_once("<State>")).and_then(|(_, rest)| rest.split_once('<'));
            out::say(format!("health: {}", state.map_or("", |(state, _)| state)));
            refused(200)
        }
        _ => refused(404),
    }
}

const GOAL_STATE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\
<GoalState><Version>2012-11-30</Version><Incarnation>1</Incarnation>\
<Container><ContainerId>0a1b2c3d-0000-0000-0000-000000000000</ContainerId><RoleInstanceList><RoleInstance>\
<InstanceId>cloud-azure</InstanceId><State>Started</State></RoleInstance></RoleInstanceList></Container></GoalState>";

fn walk<'v>(answers: &'v Value, parts: &[&str]) -> Option<&'v Value> {
    parts
        .iter()
        .try_fold(answers, |value, part| value.get(*part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(cloud: Cloud, answers: Value) -> impl Fn(&str, &str, &[(&str, &str)]) -> Answer {
        let service = Service {
            cloud,
            answers,
            user_data: "#cloud-config\n".into(),
        };
        move |method, target, headers| {
            let headers = (headers.iter()).map(|(name, value)| ((*name).into(), (*value).into()));
            let request = Request {
                method: method.into(),
                target: target.into(),
                headers: headers.collect(),
            };
            service.answer(&request, "")
        }
    }

    #[test]
    fn amazon_service_requires_token() {
        let answers = json!({"meta-data": {"instance-id": "i-1", "placement": {"region": "r"}}});
        let ask = service(Cloud::Aws, answers);
        assert_eq!(ask("GET", "/latest/meta-data/", &[]).0, 401);
        assert_eq!(ask("PUT", "/latest/api/token", &[]).0, 400);
        let ttl = ("x-aws-ec2-metadata-token-ttl-seconds", "60");
        let behind = [ttl, ("x-forwarded-for", "10.0.0.1")];
        assert_eq!(ask("PUT", "/latest/api/token", &behind).0, 403);
        let (status, token) = ask("PUT", "/latest/api/token", &[ttl]);
        assert_eq!(status, 200);
        let token = [("x-aws-ec2-metadata-token", token.as_str())];
        let get = |path: &str| ask("GET", path, &token);
        assert_eq!(get("/latest/meta-data/").1, "instance-id\nplacement/");
        assert_eq!(get("/2021-03-23/meta-data/placement/region").1, "r");
        assert_eq!(get("/latest/user-data").1, "#cloud-config\n");
        assert_eq!(get("/latest/meta-data/tags/").0, 404);
        assert_eq!(get("/1999-01-01/meta-data/").0, 404);
    }

    #[test]
    fn google_service_requires_header() {
        let ask = service(
            Cloud::Gcp,
            json!({"instance": {"id": "1", "attributes": {}}}),
        );
        let google = [("metadata-flavor", "Google")];
        let path = "/computeMetadata/v1/instance/id";
        assert_eq!(ask("GET", path, &[]).0, 403);
        assert_eq!(ask("GET", path, &google), (200, "1".into()));
        let all = "/computeMetadata/v1/instance/attributes/?recursive=True";
        assert_eq!(
            ask("GET", all, &google).1,
            "{\"user-data\":\"#cloud-config\\n\"}"
        );
        assert_eq!(
            ask("GET", "/computeMetadata/v1/instance/tags", &google).0,
            404
        );
    }

    #[test]
    fn azure_services_require_headers() {
        let ask = service(
            Cloud::Azure,
            json!({"instance": {"compute": {"vmSize": "s"}}}),
        );
        let metadata = [("metadata", "true")];
        let path = "/metadata/instance/compute?api-version=2019-06-01";
        assert_eq!(ask("GET", path, &[]).0, 400);
        assert_eq!(ask("GET", "/metadata/instance", &metadata).0, 400);
        assert_eq!(ask("GET", path, &metadata).1, "{\"vmSize\":\"s\"}");
        let newer = "/metadata/instance/compute?api-version=2021-08-01&extended=true";
        assert!(
            ask("GET", newer, &metadata)
                .1
                .contains("\"I2Nsb3VkLWNvbmZpZwo=\"")
        );
        assert_eq!(ask("GET", "/machine/?comp=goalstate", &[]).0, 400);
        let version = [("x-ms-version", "2012-11-30")];
        assert!(
            ask("GET", "/machine/?comp=goalstate", &version)
                .1
                .contains("<Incarnation>")
        );
        assert_eq!(ask("POST", "/machine?comp=health", &version).0, 200);
    }
}
