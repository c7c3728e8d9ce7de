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
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::out;
pub use fault::{Fault, Serving};
pub use files::{PROGRAM, Site};
pub use request::{Request, read_request};

/// The log contains this once connections are accepted.
pub const READY: &str = "listening on";

/// The log contains this each time the fault happens.
pub const FAULT: &str = "the fault happened:";

/// Serves until the process exits.
pub fn run(site: Site) -> Result<()> {
    let address = &site.listen;
    let listener = match &site.netns {
        Some(file) => bind_inside(file, address)?,
        None => bind(address)?,
    };
    // The parent waits for this line, so a failed write must not be ignored.
    writeln!(std::io::stdout(), "{READY} {address}").context("cannot write the log")?;
    serve(listener, site)
}

fn serve(listener: TcpListener, site: Site) -> Result<()> {
    accept(&listener, move |stream| talk(stream, &site))
}

/// Listens on an address.
pub fn bind(address: &str) -> Result<TcpListener> {
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

/// Serves each connection in a separate thread.
pub fn accept<T>(listener: &TcpListener, talk: T) -> Result<()>
where
    T: Fn(&TcpStream) -> Result<()> + Send + Sync + 'static,
{
    let talk = Arc::new(talk);
    for stream in listener.incoming() {
        let stream = stream.context("cannot accept a connection")?;
        let talk = Arc::clone(&talk);
        thread::spawn(move || {
            if let Err(error) = talk(&stream) {
                out::say(format!("connection closed: {error:#}"));
            }
        });
    }
    Ok(())
}

/// The status of a response, and whether its connection stays open.
type Answer = (u16, bool);

/// Handles the requests of one connection, one after the other.
fn talk(stream: &TcpStream, site: &Site) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        let (status, open) = answer(stream, site, &request)?;
        out::say(format!("{status} {} {}", request.method, request.target));
        if !open || request.closes() {
            break;
        }
    }
    Ok(())
}

fn answer(stream: &TcpStream, site: &Site, request: &Request) -> Result<Answer> {
    if (site.serving.login.as_ref()).is_some_and(|login| !proxy::admits(request, login)) {
        return empty(stream, 407, proxy::REQUIRED);
    }
    if request.method == "CONNECT" {
        return proxy::tunnel(stream, request);
    }
    match request.address() {
        Some((host, path)) if !site.hosts.contains(&host) => {
            proxy::forward(stream, request, &host, &path)
        }
        Some((_, path)) => site.answer(stream, request, &path),
        None => site.answer(stream, request, &request.target),
    }
}

fn empty(mut stream: &TcpStream, status: u16, reason: &str) -> Result<Answer> {
    write!(
        stream,
        "HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n\r\n"
    )?;
    Ok((status, true))
}

#[cfg(test)]
mod tests;
