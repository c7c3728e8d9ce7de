//! A small HTTP server for repositories: static files, ranges, keep-alive. It listens inside the
//! namespace of one machine, so that no two machines and nothing on the host see it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::out;

/// Serves `dir` on `address` until the process ends.
pub fn run(dir: &Path, address: &str) -> Result<()> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    serve(listener, dir)
}

fn serve(listener: TcpListener, dir: &Path) -> Result<()> {
    let dir = Arc::new(
        dir.canonicalize()
            .with_context(|| format!("cannot find {}", dir.display()))?,
    );
    for stream in listener.incoming() {
        let stream = stream.context("cannot accept a connection")?;
        let dir = Arc::clone(&dir);
        thread::spawn(move || {
            if let Err(error) = talk(&stream, &dir) {
                out::say(format!("connection ended: {error:#}"));
            }
        });
    }
    Ok(())
}

/// Answers the requests of one connection, one after the other.
fn talk(stream: &TcpStream, dir: &Path) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        let status = answer(&mut writer, dir, &request)?;
        out::say(format!("{status} {} {}", request.method, request.target));
        if request
            .headers
            .get("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
        {
            break;
        }
    }
    Ok(())
}

struct Request {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
}

fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>> {
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

fn answer(writer: &mut impl Write, dir: &Path, request: &Request) -> Result<u16> {
    let with_body = request.method == "GET";
    if !with_body && request.method != "HEAD" {
        return empty(writer, 405, "Method Not Allowed");
    }
    let Some(path) = locate(dir, &request.target) else {
        return empty(writer, 404, "Not Found");
    };
    let mut file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let size = file.metadata().context("cannot measure a file")?.len();
    let start = request
        .headers
        .get("range")
        .and_then(|value| range_start(value));
    let (status, reason, start) = match start {
        Some(start) if start >= size => return empty(writer, 416, "Range Not Satisfiable"),
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
    if with_body {
        file.seek(SeekFrom::Start(start))?;
        std::io::copy(&mut file.take(size - start), writer)?;
    }
    writer.flush()?;
    Ok(status)
}

fn empty(writer: &mut impl Write, status: u16, reason: &str) -> Result<u16> {
    write!(
        writer,
        "HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n\r\n"
    )?;
    writer.flush()?;
    Ok(status)
}

/// The file that a target names, if it is a file below `dir`.
fn locate(dir: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?.trim_start_matches('/');
    let path = Path::new(path);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let full = dir.join(path);
    (plain && fs::metadata(&full).is_ok_and(|meta| meta.is_file())).then_some(full)
}

/// `bytes=123-`, the only form that apt sends.
fn range_start(value: &str) -> Option<u64> {
    value
        .strip_prefix("bytes=")?
        .strip_suffix('-')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/file"), "0123456789").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let root = dir.path().to_path_buf();
        thread::spawn(move || serve(listener, &root));
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_file_and_a_part_of_it() {
        let whole = ask("GET /./d/file HTTP/1.1");
        assert!(
            whole.starts_with("HTTP/1.1 200") && whole.ends_with("0123456789"),
            "{whole}"
        );
        let part = ask("GET /d/file HTTP/1.1\r\nRange: bytes=4-");
        assert!(
            part.contains("206") && part.contains("bytes 4-9/10"),
            "{part}"
        );
        assert!(part.ends_with("\r\n456789"));
        assert!(ask("GET /d/file HTTP/1.1\r\nRange: bytes=10-").contains("416"));
    }

    #[test]
    fn nothing_outside_and_nothing_else() {
        assert!(ask("GET /../../etc/passwd HTTP/1.1").contains("404"));
        assert!(ask("GET /d HTTP/1.1").contains("404"));
        assert!(ask("PUT /d/file HTTP/1.1").contains("405"));
        let head = ask("HEAD /d/file HTTP/1.1");
        assert!(head.contains("Content-Length: 10") && head.ends_with("\r\n\r\n"));
    }
}
