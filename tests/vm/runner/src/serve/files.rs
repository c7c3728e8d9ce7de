//! Serves the files of the repositories, with faults.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::fault::{Fault, Serving};
use super::request::Request;
use super::{Answer, FAULT, empty};
use crate::{out, repo};

/// Download path of the product, on each host.
pub const PROGRAM: &str = "gpu-bootstrap";

/// Served files, and how they are served.
#[derive(Args, Debug)]
pub struct Site {
    /// Directory to serve
    pub root: PathBuf,
    /// Directory to serve during a fault, with a subdirectory for each kind
    #[arg(long)]
    pub faults: PathBuf,
    #[arg(long)]
    pub listen: String,
    /// Network namespace to listen in [default: its own]
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// Behavior, as JSON
    #[arg(long, value_parser = serving)]
    pub serving: Serving,
    /// Path prefix that a fault applies to
    #[arg(long)]
    pub below: String,
    /// Binary of the product
    #[arg(long)]
    pub program: PathBuf,
    /// Host names and ports that a proxy serves itself
    #[arg(long = "host")]
    pub hosts: Vec<String>,
    /// How often the connection was closed in the middle of a package.
    #[arg(skip)]
    pub cuts: AtomicU32,
}

fn serving(text: &str) -> Result<Serving, serde_json::Error> {
    serde_json::from_str(text)
}

impl Site {
    pub(super) fn answer(
        &self,
        mut stream: &TcpStream,
        request: &Request,
        target: &str,
    ) -> Result<Answer> {
        let with_body = request.method == "GET";
        if !with_body && request.method != "HEAD" {
            return empty(stream, 405, "Method Not Allowed");
        }
        let fault = self.fault_at(target);
        if fault == Some(Fault::Unavailable) {
            happened(Fault::Unavailable);
            return empty(stream, 503, "Service Unavailable");
        }
        let Some(path) = self.locate(target, fault) else {
            return empty(stream, 404, "Not Found");
        };
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let size = file.metadata().context("cannot measure a file")?.len();
        let range = request.headers.get("range");
        let (status, reason, start, more) = match range.and_then(|value| range_start(value)) {
            Some(start) if start >= size => {
                return empty(stream, 416, "Range Not Satisfiable");
            }
            Some(start) => {
                let range = format!("Content-Range: bytes {start}-{}/{size}\r\n", size - 1);
                (206, "Partial Content", start, range)
            }
            None => (200, "OK", 0, String::new()),
        };
        write!(
            stream,
            "HTTP/1.1 {status} {reason}\r\nContent-Type: application/octet-stream\r\n\
             Accept-Ranges: bytes\r\nContent-Length: {}\r\n{more}\r\n",
            size - start
        )?;
        Ok((
            status,
            !with_body || self.send(stream, file, start..size, fault)?,
        ))
    }

    /// The fault at this path.
    fn fault_at(&self, target: &str) -> Option<Fault> {
        let fault = self.serving.fault?;
        let path = plain(target)?;
        let hit = match fault {
            Fault::Tampered | Fault::Missing | Fault::Slow | Fault::Cut => {
                let package = path.file_name()?.to_str().and_then(package)?;
                (self.serving.package.as_ref()).is_none_or(|one| one == package)
            }
            _ => true,
        };
        (hit && path.starts_with(&self.below)).then_some(fault)
    }

    /// The file of a target, if it is a file below the root.
    fn locate(&self, target: &str, fault: Option<Fault>) -> Option<PathBuf> {
        let path = plain(target)?;
        let overlay = match fault {
            Some(Fault::Missing) => {
                happened(Fault::Missing);
                return None;
            }
            Some(Fault::WrongKey) => Some(repo::WRONG_KEY),
            Some(Fault::HalfSynced) => Some(repo::HALF_SYNCED),
            Some(Fault::Unsigned) => Some(repo::UNSIGNED),
            _ => None,
        };
        let shown = overlay.map(|kind| self.faults.join(kind).join(&path));
        let shown = shown.filter(|path| path.is_file());
        if let (Some(fault), Some(_)) = (fault, &shown) {
            happened(fault);
        }
        if path == Path::new(PROGRAM) {
            return Some(self.program.clone());
        }
        shown.or_else(|| Some(self.root.join(&path)).filter(|path| path.is_file()))
    }

    /// Sends this part of a file. Returns whether the connection stays open.
    fn send(
        &self,
        mut stream: &TcpStream,
        mut file: File,
        part: Range<u64>,
        fault: Option<Fault>,
    ) -> Result<bool> {
        file.seek(SeekFrom::Start(part.start))?;
        let again = || {
            let before = self.cuts.fetch_add(1, Ordering::SeqCst);
            self.serving.times.is_none_or(|times| before < times)
        };
        let fault = fault.filter(|fault| *fault != Fault::Cut || again());
        if let Some(fault @ (Fault::Cut | Fault::Tampered | Fault::Slow)) = fault {
            happened(fault);
        }
        let middle = (part.end / 2).checked_sub(part.start);
        let mut rest = file.take(match fault {
            // A resumed download never gets past the middle.
            Some(Fault::Cut) => middle.unwrap_or(0),
            _ => part.end - part.start,
        });
        match fault {
            Some(Fault::Tampered) => {
                let mut bytes = Vec::new();
                rest.read_to_end(&mut bytes)?;
                let middle = middle.and_then(|at| usize::try_from(at).ok());
                if let Some(byte) = middle.and_then(|at| bytes.get_mut(at)) {
                    *byte ^= 0xff;
                }
                stream.write_all(&bytes)?;
            }
            Some(Fault::Slow) => {
                let rate = self.serving.bytes_per_second.unwrap_or(u32::MAX);
                trickle(stream, rest, rate)?;
            }
            _ => drop(io::copy(&mut rest, &mut stream)?),
        }
        Ok(fault != Some(Fault::Cut))
    }
}

/// The package name in a file name: `NAME_VERSION_ARCHITECTURE.deb` or `NAME-VERSION-RELEASE.ARCHITECTURE.rpm`.
fn package(file: &str) -> Option<&str> {
    match file.strip_suffix(".rpm") {
        Some(rest) => rest.rsplitn(3, '-').nth(2),
        None => file.strip_suffix(".deb")?.split('_').next(),
    }
}

fn happened(fault: Fault) {
    out::say(format!("{FAULT} {fault:?}"));
}

/// Sends at a limited rate, in steps so short that a client does not time out.
fn trickle(mut stream: &TcpStream, mut from: impl Read, rate: u32) -> Result<()> {
    let begin = Instant::now();
    let mut buffer = vec![0; usize::try_from(rate / 20)?.max(1)];
    let mut sent: u32 = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count])?;
        sent += u32::try_from(count)?;
        let due = Duration::from_secs(1) * sent / rate.max(1);
        thread::sleep(due.saturating_sub(begin.elapsed()));
    }
}

/// A target as a path that cannot leave the directory that it is joined to.
fn plain(target: &str) -> Option<PathBuf> {
    let path = decoded(target.split(['?', '#']).next()?)?;
    let parts = Path::new(path.trim_start_matches('/')).components();
    (parts.filter(|part| *part != Component::CurDir))
        .map(|part| matches!(part, Component::Normal(_)).then_some(part))
        .collect()
}

/// Decodes `%7e` and the like in a path.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// `bytes=123-`, the only form that apt sends.
fn range_start(value: &str) -> Option<u64> {
    value
        .strip_prefix("bytes=")?
        .strip_suffix('-')?
        .parse()
        .ok()
}
