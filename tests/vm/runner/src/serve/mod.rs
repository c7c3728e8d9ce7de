//! A small HTTP server for repositories: static files, ranges, keep-alive, and injected faults. It listens inside the
//! namespace of one machine, so other machines and the host cannot see it. As a proxy it uses the host's network to
//! reach the outside, for a machine that cannot.

mod fault;
mod files;
mod proxy;
mod request;

use std::fs::File;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

pub use fault::{Count, Fault, Serving};
pub use files::{PROGRAM, Site};
pub use proxy::base64;

use crate::out;
pub use request::{Request, read_request};

/// The log contains this once connections are accepted.
pub const READY: &str = "listening on";

/// The log contains this each time the fault happens.
pub const FAULT: &str = "the fault happened:";

/// The address that a server listens on.
#[derive(Clone, Debug)]
pub struct Listener {
    pub address: String,
    /// The network namespace; the current one if absent.
    pub netns: Option<PathBuf>,
}

/// Serves until the process exits.
pub fn run(at: &Listener, site: Site) -> Result<()> {
    let listener = match &at.netns {
        Some(file) => bind_inside(file, &at.address)?,
        None => bind(&at.address)?,
    };
    // The parent waits for this line, so a failed write must not be ignored.
    writeln!(std::io::stdout(), "{READY} {}", at.address).context("cannot write the log")?;
    serve(listener, site)
}

fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
}

/// A socket belongs to the namespace that it was created in. The thread that creates it enters that namespace and
/// exits; the rest of the process stays in its own.
fn bind_inside(netns: &Path, address: &str) -> Result<TcpListener> {
    let file = File::open(netns).with_context(|| format!("cannot open {}", netns.display()))?;
    let address = address.to_string();
    thread::spawn(move || {
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)
            .context("cannot enter the machine's network")?;
        bind(&address)
    })
    .join()
    .map_err(|_| anyhow!("the thread that listens panicked"))?
}

fn serve(listener: TcpListener, site: Site) -> Result<()> {
    let site = Arc::new(site);
    for stream in listener.incoming() {
        let stream = stream.context("cannot accept a connection")?;
        let site = Arc::clone(&site);
        thread::spawn(move || {
            if let Err(error) = talk(&stream, &site) {
                out::say(format!("connection closed: {error:#}"));
            }
        });
    }
    Ok(())
}

/// Whether a connection continues after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Keep,
    Close,
}

/// Handles the requests of one connection, one after the other.
fn talk(stream: &TcpStream, site: &Site) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        let (status, next) = match &site.serving.login {
            Some(login) if !proxy::admits(&request, login) => {
                (proxy::ask(&mut writer)?, Next::Keep)
            }
            _ => answer(stream, site, &request)?,
        };
        out::say(format!("{status} {} {}", request.method, request.target));
        if next == Next::Close || request.closes() {
            break;
        }
    }
    Ok(())
}

fn answer(mut stream: &TcpStream, site: &Site, request: &Request) -> Result<(u16, Next)> {
    if request.method == "CONNECT" {
        return Ok((proxy::tunnel(stream, request)?, Next::Close));
    }
    match request.address() {
        Some((host, path)) if !site.hosts.contains(&host) => {
            Ok((proxy::forward(stream, request, &host, &path)?, Next::Close))
        }
        Some((_, path)) => site.answer(&mut stream, request, &path),
        None => site.answer(&mut stream, request, &request.target),
    }
}

fn empty(writer: &mut impl Write, status: u16, reason: &str) -> Result<u16> {
    write!(
        writer,
        "HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n\r\n"
    )?;
    writer.flush()?;
    Ok(status)
}

#[cfg(test)]
mod tests;
