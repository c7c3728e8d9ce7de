//! An HTTP proxy, for machines without any other connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::empty;
use super::request::Request;
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

/// Whether a request has valid credentials.
pub fn admits(request: &Request, login: &str) -> bool {
    request
        .headers
        .get("proxy-authorization")
        .and_then(|value| value.strip_prefix("Basic "))
        .is_some_and(|given| given == base64(login.as_bytes()))
}

/// Requests credentials.
pub fn ask(writer: &mut impl Write) -> Result<u16> {
    write!(
        writer,
        "HTTP/1.1 407 Proxy Authentication Required\r\n\
         Proxy-Authenticate: Basic realm=\"test bed\"\r\nContent-Length: 0\r\n\r\n"
    )?;
    writer.flush()?;
    Ok(407)
}

/// Fetches a URL for the client, over a new connection that closes with the response.
pub fn forward(mut client: &TcpStream, request: &Request, host: &str, path: &str) -> Result<u16> {
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
    Ok(200)
}

/// Connects the client with a server and forwards the data of both.
pub fn tunnel(client: &TcpStream, request: &Request) -> Result<u16> {
    let server = match connect(&request.target) {
        Ok(server) => server,
        Err(error) => return refuse(client, &error),
    };
    let mut writer = client;
    write!(writer, "HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || pass(from_client, to_server));
    pass(server, client.try_clone()?);
    if up.join().is_err() {
        out::say("a tunnel's thread panicked");
    }
    Ok(200)
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
    let addresses = host
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {host}"))?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("cannot reach {host}")),
        None => anyhow::bail!("{host} has no address"),
    }
}

fn refuse(mut client: &TcpStream, error: &anyhow::Error) -> Result<u16> {
    out::say(format!("{error:#}"));
    empty(&mut client, 502, "Bad Gateway")
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The encoding of RFC 4648, section 4.
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0_u32, |bits, (at, byte)| {
            bits | u32::from(*byte) << (16 - 8 * at)
        });
        for at in 0..4 {
            match at <= chunk.len() {
                true => text.push(char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_examples() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
