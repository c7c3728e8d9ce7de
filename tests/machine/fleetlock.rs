//! A server with the FleetLock protocol, for the in-memory network and for HTTP on 127.0.0.1, and the client over real HTTP.
//!
//! No package registry has such a server, so it was written for these tests. With the URL of a real server in `FLEETLOCK_URL`, the
//! rollout of 40 nodes uses that one (CONTRIBUTING.md).

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use gpu_bootstrap::{
    host::{
        Http, HttpRequest, HttpResponse, Method,
        real::{HttpProxy, RealClock, RealHttp},
    },
    model::{fleet::LockGroup, secret::Secret},
    tools::fleetlock::{LockRequest, node_id, request, result},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A server with one group, `default`.
pub struct LockServer {
    slots: usize,
    holders: Mutex<BTreeSet<String>>,
    /// A real server, which responds instead.
    real: Option<RealServer>,
}

struct RealServer {
    url: String,
    http: RealHttp,
    runtime: Runtime,
}

impl RealServer {
    fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            http: RealHttp::new(Arc::new(RealClock), None),
            runtime: runtime(),
        }
    }

    /// Sends a request of the in-memory network, whose server is at `base`.
    fn send(&self, base: &str, request: &HttpRequest) -> HttpResponse {
        let path = request.url.strip_prefix(base).expect("its URL");
        let request = HttpRequest {
            url: format!("{}{path}", self.url),
            ..request.clone()
        };
        // The runtime of the machine runs in this thread.
        let ask = || self.runtime.block_on(self.http.ask(&request));
        let answer = thread::scope(|scope| scope.spawn(ask).join().expect("no panic"));
        answer.expect("a response of the server")
    }
}

fn runtime() -> Runtime {
    (tokio::runtime::Builder::new_current_thread().enable_all())
        .build()
        .expect("a runtime")
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The document of a request.
fn document(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_default()
}

/// The ID of the node that sends a request.
pub fn sender(request: &HttpRequest) -> String {
    let id = &document(body(request))["client_params"]["id"];
    id.as_str().expect("an ID").to_owned()
}

fn body(request: &HttpRequest) -> &str {
    match &request.method {
        Method::Post(body) => body,
        other => panic!("{other:?} is not a request of the protocol"),
    }
}

impl LockServer {
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            holders: Mutex::default(),
            real: None,
        }
    }

    /// A server with this number of slots: the one in `FLEETLOCK_URL` if the variable is set.
    pub fn real_or_new(slots: usize) -> Self {
        Self {
            real: env::var("FLEETLOCK_URL")
                .ok()
                .map(|url| RealServer::new(&url)),
            ..Self::new(slots)
        }
    }

    /// The IDs of the nodes that hold the lock.
    pub fn holders(&self) -> BTreeSet<String> {
        locked(&self.holders).clone()
    }

    /// Responds to a request in the in-memory network. `base` is the URL of the server.
    pub fn answer(&self, base: &str, request: &HttpRequest) -> HttpResponse {
        if let Some(real) = &self.real {
            // One request at a time, so that the holders are known.
            let mut holders = locked(&self.holders);
            let response = real.send(base, request);
            if response.status == 200 {
                match request.url.ends_with("/v1/pre-reboot") {
                    true => holders.insert(sender(request)),
                    false => holders.remove(&sender(request)),
                };
            }
            return response;
        }
        let path = request.url.strip_prefix(base).expect("its URL");
        let protocol = (request.headers.iter()).find(|(name, _)| *name == "fleet-lock-protocol");
        self.respond(
            path,
            protocol.map(|(_, value)| value.expose()),
            body(request),
        )
    }

    fn respond(&self, path: &str, protocol: Option<&str>, body: &str) -> HttpResponse {
        let reply = |status: u16, kind: &str| HttpResponse {
            status,
            body: json!({"kind": kind, "value": "a sentence"})
                .to_string()
                .into_bytes(),
            headers: Vec::new(),
        };
        if protocol != Some("true") {
            return reply(400, "missing_fleetlock_header");
        }
        let client = &document(body)["client_params"];
        let (Some(id), Some(group)) = (client["id"].as_str(), client["group"].as_str()) else {
            return reply(400, "bad_request");
        };
        if group != "default" {
            return reply(500, "error");
        }
        let mut holders = locked(&self.holders);
        match path {
            "/v1/pre-reboot" if !holders.contains(id) && holders.len() >= self.slots => {
                return reply(423, "all_slots_full");
            }
            "/v1/pre-reboot" => holders.insert(id.to_owned()),
            "/v1/steady-state" => holders.remove(id),
            _ => return reply(404, "not_found"),
        };
        reply(200, "success")
    }

    /// Starts the server on 127.0.0.1, and returns its URL. It runs until the process exits.
    fn listen(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || {
            for connection in listener.incoming() {
                let served = connection.and_then(|connection| self.serve(&connection));
                served.expect("a connection");
            }
        });
        url
    }

    /// Responds to the request of a connection.
    fn serve(&self, mut connection: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(connection);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let (mut protocol, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "fleet-lock-protocol" => protocol = Some(value.to_owned()),
                "content-length" => length = value.parse().expect("a number"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let response = match first.split(' ').collect::<Vec<_>>()[..] {
            ["POST", path, _] => {
                let body = String::from_utf8_lossy(&body);
                self.respond(path, protocol.as_deref(), &body)
            }
            _ => panic!("not a request of the protocol: {first}"),
        };
        let head = format!(
            "HTTP/1.1 {} Status\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            response.status,
            response.body.len()
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(&response.body)
    }
}

/// Sends the requests of two nodes to a server whose group `default` has one slot, which is free. Returns the refusals.
fn exchange(http: &RealHttp, url: &str) -> Vec<String> {
    let runtime = runtime();
    let group = LockGroup::default();
    let id = |machine: &str| node_id(machine).expect("an ID");
    let one = id("1c09ca98649c4c7abc779cd04c96812e");
    let other = id("0123456789abcdef0123456789abcdef");
    let mut refusals = Vec::new();
    for (what, id, succeeds) in rows! {
        LockRequest::Acquire, &one, true;
        LockRequest::Acquire, &other, false;
        // After a power loss, the holder acquires it again.
        LockRequest::Acquire, &one, true;
        // A node that did not get the lock also releases it.
        LockRequest::Release, &other, true;
        LockRequest::Acquire, &other, false;
        LockRequest::Release, &one, true;
        // The response to the first release may have been lost.
        LockRequest::Release, &one, true;
        LockRequest::Acquire, &other, true;
        LockRequest::Acquire, &one, false;
        LockRequest::Release, &other, true;
    } {
        let response = runtime.block_on(http.ask(&request(url, what, id, &group)));
        let found = result(&response.expect("a response"));
        assert_eq!(found.is_ok(), succeeds, "{what:?} {id}: {found:?}");
        refusals.extend(found.err());
    }
    refusals
}

#[test]
fn client_acquires_repeats_and_releases_over_http() {
    let url = LockServer::new(1).listen();
    // The address is excluded from the proxy.
    let proxy = HttpProxy {
        url: Secret::new("http://127.0.0.1:9"),
        no_proxy: Some("127.0.0.1".to_owned()),
    };
    let http = RealHttp::new(Arc::new(RealClock), Some(proxy));
    let refused = "the server returned 423 (all_slots_full: a sentence)";
    assert_eq!(exchange(&http, &url), [refused; 3]);
}
