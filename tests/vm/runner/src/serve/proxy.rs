//! An HTTP proxy, for machines without any other connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::request::Request;
use super::{Answer, empty};
use crate::out;

const CONNECT: Duration = Duration::from_secs(20);
/// Longer than the pauses of a healthy server.
const SILENCE: Duration = Duration::from_secs(60);

/// Hop-by-hop headers, which are not forwarded.
const OURS: [&str; 4] = [
    "proxy-authorization",
    "proxy-connection",
    "connection",
    "keep-alive",
];

/// The response to a request without valid credentials.
pub const REQUIRED: &str =
    "Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"test bed\"";

/// Whether a request has valid credentials.
pub fn admits(request: &Request, login: &str) -> bool {
    let given = request.headers.get("proxy-authorization");
    given.is_some_and(|given| *given == format!("Basic {}", STANDARD.encode(login)))
}

/// Fetches a URL for the client, over a new connection that closes with the response.
pub fn forward(
    mut client: &TcpStream,
    request: &Request,
    host: &str,
    path: &str,
) -> Result<Answer> {
    let mut server = match connect(host) {
        Ok(server) => server,
        Err(error) => return refuse(client, &error),
    };
    let mut text = format!(
        "{} {path} HTTP/1.1\r\nConnection: close\r\n",
        request.method
    );
    for (name, value) in &request.headers {
        if !OURS.contains(&name.as_str()) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    server.write_all(format!("{text}\r\n").as_bytes())?;
    std::io::copy(&mut server, &mut client).context("cannot forward a response")?;
    Ok((200, false))
}

/// Connects the client with a server and forwards the data of both.
pub fn tunnel(mut client: &TcpStream, request: &Request) -> Result<Answer> {
    let server = match connect(&request.target) {
        Ok(server) => server,
        Err(error) => return refuse(client, &error),
    };
    write!(client, "HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || pass(from_client, to_server));
    pass(server, client.try_clone()?);
    if up.join().is_err() {
        out::say("a tunnel's thread panicked");
    }
    Ok((200, false))
}

/// Either side may close a tunnel at any time; this is not an error.
fn pass(mut from: impl Read, mut to: TcpStream) {
    let ended = std::io::copy(&mut from, &mut to);
    let shut = to.shutdown(Shutdown::Write);
    if let (Err(error), _) | (Ok(_), Err(error)) = (ended, shut) {
        out::say(format!("tunnel: {error}"));
    }
}

fn connect(host: &str) -> Result<TcpStream> {
    let addresses = host.to_socket_addrs();
    let mut result = Err(anyhow!("{host} has no address"));
    for address in addresses.with_context(|| format!("cannot resolve {host}"))? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            error => result = error.with_context(|| format!("cannot reach {host}")),
        }
    }
    result
}

fn refuse(client: &TcpStream, error: &anyhow::Error) -> Result<Answer> {
    out::say(format!("{error:#}"));
    let (status, _) = empty(client, 502, "Bad Gateway")?;
    Ok((status, false))
}
