//! Serves the files of the repositories, with faults.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::fault::{Count, Fault, Serving};
use super::request::Request;
use super::{FAULT, Next, empty};
use crate::{out, repo};

/// Download path of the product, on each host.
pub const PROGRAM: &str = "gpu-bootstrap";

/// Served files.
#[derive(Debug)]
pub struct Site {
    pub root: PathBuf,
    /// The directories that are served during a fault, one for each kind.
    pub faults: PathBuf,
    pub serving: Serving,
    /// The fault applies below this path.
    pub below: String,
    /// The product, served as [`PROGRAM`].
    pub program: PathBuf,
    /// `host:port` of the repositories, for a proxy.
    pub hosts: Vec<String>,
    pub cuts: Count,
}

/// A part of a file that is being sent.
struct Body {
    file: File,
    size: u64,
    start: u64,
}

impl Site {
    pub(super) fn answer(
        &self,
        writer: &mut impl Write,
        request: &Request,
        target: &str,
    ) -> Result<(u16, Next)> {
        let with_body = request.method == "GET";
        if !with_body && request.method != "HEAD" {
            return Ok((empty(writer, 405, "Method Not Allowed")?, Next::Keep));
        }
        let fault = self.fault_at(target);
        if fault == Some(Fault::Unavailable) {
            happened(Fault::Unavailable);
            return Ok((empty(writer, 503, "Service Unavailable")?, Next::Keep));
        }
        let Some(path) = self.locate(target, fault) else {
            if fault == Some(Fault::Missing) {
                happened(Fault::Missing);
            }
            return Ok((empty(writer, 404, "Not Found")?, Next::Keep));
        };
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let size = file.metadata().context("cannot measure a file")?.len();
        let asked = request.headers.get("range");
        let (status, reason, start) = match asked.and_then(|value| range_start(value)) {
            Some(start) if start >= size => {
                return Ok((empty(writer, 416, "Range Not Satisfiable")?, Next::Keep));
            }
            Some(start) => (206, "Partial Content", start),
            None => (200, "OK", 0),
        };
        write!(
            writer,
            "HTTP/1.1 {status} {reason}\r\nContent-Type: application/octet-stream\r\n\
             Accept-Ranges: bytes\r\nContent-Length: {}\r\n",
            size - start
        )?;
        if status == 206 {
            write!(
                writer,
                "Content-Range: bytes {start}-{}/{size}\r\n",
                size - 1
            )?;
        }
        write!(writer, "\r\n")?;
        let next = match with_body {
            true => self.send(writer, Body { file, size, start }, fault)?,
            false => Next::Keep,
        };
        writer.flush()?;
        Ok((status, next))
    }

    /// The fault at this path.
    fn fault_at(&self, target: &str) -> Option<Fault> {
        let fault = self.serving.fault?;
        let path = plain(target)?;
        if !path.starts_with(&self.below) {
            return None;
        }
        if matches!(
            fault,
            Fault::WrongKey
                | Fault::HalfSynced
                | Fault::Unsigned
                | Fault::Down
                | Fault::Unavailable
        ) {
            return Some(fault);
        }
        let name = path.file_name()?.to_str()?;
        let package = package(name)?;
        let hit = self
            .serving
            .package
            .as_ref()
            .is_none_or(|one| one == package);
        hit.then_some(fault)
    }

    /// The file of a target, if it is a file below the root.
    fn locate(&self, target: &str, fault: Option<Fault>) -> Option<PathBuf> {
        let path = plain(target)?;
        let overlay = match fault {
            Some(Fault::Missing) => return None,
            Some(Fault::WrongKey) => Some(repo::WRONG_KEY),
            Some(Fault::HalfSynced) => Some(repo::HALF_SYNCED),
            Some(Fault::Unsigned) => Some(repo::UNSIGNED),
            _ => None,
        };
        let is_file = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file());
        let shown = overlay
            .map(|kind| self.faults.join(kind).join(&path))
            .filter(is_file);
        if let (Some(fault), Some(_)) = (fault, &shown) {
            happened(fault);
        }
        if path == Path::new(PROGRAM) {
            return Some(self.program.clone());
        }
        shown.or_else(|| Some(self.root.join(&path)).filter(is_file))
    }

    fn send(&self, writer: &mut impl Write, mut body: Body, fault: Option<Fault>) -> Result<Next> {
        body.file.seek(SeekFrom::Start(body.start))?;
        let rest = body.size - body.start;
        match fault {
            Some(Fault::Cut) if self.cuts.again(self.serving.times) => {
                happened(Fault::Cut);
                // A resumed download never gets past the middle.
                let count = (body.size / 2).saturating_sub(body.start);
                std::io::copy(&mut body.file.take(count), writer)?;
                return Ok(Next::Close);
            }
            Some(Fault::Tampered) => {
                happened(Fault::Tampered);
                let mut bytes = Vec::new();
                body.file.take(rest).read_to_end(&mut bytes)?;
                let middle = (body.size / 2).checked_sub(body.start);
                if let Some(byte) = middle
                    .and_then(|at| usize::try_from(at).ok())
                    .and_then(|at| bytes.get_mut(at))
                {
                    *byte ^= 0xff;
                }
                writer.write_all(&bytes)?;
            }
            Some(Fault::Slow) => {
                happened(Fault::Slow);
                let rate = self.serving.bytes_per_second.unwrap_or(u32::MAX);
                trickle(writer, &mut body.file.take(rest), rate)?;
            }
            _ => {
                std::io::copy(&mut body.file.take(rest), writer)?;
            }
        }
        Ok(Next::Keep)
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
fn trickle(writer: &mut impl Write, from: &mut impl Read, rate: u32) -> Result<()> {
    let begin = Instant::now();
    let mut buffer = vec![0; usize::try_from(rate / 20)?.max(1)];
    let mut sent: u32 = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        writer.write_all(&buffer[..count])?;
        writer.flush()?;
        sent += u32::try_from(count)?;
        let due = Duration::from_secs(1) * sent / rate.max(1);
        thread::sleep(due.saturating_sub(begin.elapsed()));
    }
}

/// A target as a path that cannot leave the directory that it is joined to.
fn plain(target: &str) -> Option<PathBuf> {
    let path = decoded(target.split(['?', '#']).next()?)?;
    let path = Path::new(path.trim_start_matches('/'));
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        .then(|| {
            path.components()
                .filter(|part| matches!(part, Component::Normal(_)))
                .collect()
        })
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
