use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU32;
use std::thread;

use super::fault::{Fault, Serving};
use super::{Site, serve};

const DEB: &str = "d/one_1.0_amd64.deb";

/// A server and its files; dropping it removes them.
struct Server {
    address: SocketAddr,
    _files: tempfile::TempDir,
}

fn server(serving: Serving) -> Server {
    let files = tempfile::tempdir().unwrap();
    let dir = files.path();
    for (path, text) in [
        ("www/d/file", "0123456789"),
        ("product", "the product"),
        ("www/d/InRelease", "signed by us"),
        ("www/d/one_1.0_amd64.deb", "0123456789"),
        ("www/other/one_1.0_amd64.deb", "0123456789"),
        ("faults/wrong-key/d/InRelease", "signed by a stranger"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let site = Site {
        root: dir.join("www"),
        faults: dir.join("faults"),
        listen: String::new(),
        netns: None,
        serving,
        below: "d".into(),
        program: dir.join("product"),
        hosts: vec!["repository.test:80".into()],
        cuts: AtomicU32::default(),
    };
    thread::spawn(move || serve(listener, site));
    Server {
        address,
        _files: files,
    }
}

fn ask_at(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "{request}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask(request: &str) -> String {
    ask_at(&server(Serving::default()), request)
}

#[test]
fn product_is_served_on_each_host() {
    let answer = ask("GET /gpu-bootstrap HTTP/1.1\r\nHost: 127.0.0.1");
    assert!(answer.ends_with("\r\n\r\nthe product"), "{answer}");
}

fn with(fault: Fault) -> Serving {
    Serving {
        fault: Some(fault),
        ..Serving::default()
    }
}

#[test]
fn ranges_are_served() {
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
fn outside_paths_and_other_methods_are_rejected() {
    assert!(ask("GET /../../etc/passwd HTTP/1.1").contains("404"));
    assert!(ask("GET /d HTTP/1.1").contains("404"));
    assert!(ask("GET /d/f%69le HTTP/1.1").contains("200"));
    for wrong in ["d/%2e%2e/file", "d/file%", "d/file%x9", "d/%ff"] {
        assert!(
            ask(&format!("GET /{wrong} HTTP/1.1")).contains("404"),
            "{wrong}"
        );
    }
    assert!(ask("PUT /d/file HTTP/1.1").contains("405"));
    let head = ask("HEAD /d/file HTTP/1.1");
    assert!(head.contains("Content-Length: 10") && head.ends_with("\r\n\r\n"));
}

#[test]
fn fault_applies_only_to_its_repository_and_package() {
    let get = |fault, path: &str| ask_at(&server(with(fault)), &format!("GET /{path} HTTP/1.1"));
    assert!(get(Fault::Missing, DEB).contains("404"));
    assert!(get(Fault::Missing, "other/one_1.0_amd64.deb").contains("200"));
    assert!(get(Fault::Missing, "d/file").contains("200"));
    let tampered = get(Fault::Tampered, DEB);
    assert!(tampered.contains("Content-Length: 10") && !tampered.ends_with("0123456789"));
    assert!(get(Fault::Unavailable, "d/file").contains("503"));
    assert!(get(Fault::Unavailable, "other/one_1.0_amd64.deb").contains("200"));
    assert!(get(Fault::WrongKey, "d/InRelease").ends_with("stranger"));
    assert!(get(Fault::WrongKey, "d/file").ends_with("0123456789"));
    let mut other = with(Fault::Missing);
    other.package = Some("two".into());
    assert!(ask_at(&server(other), &format!("GET /{DEB} HTTP/1.1")).contains("200"));
}

#[test]
fn connection_closes_given_number_of_times() {
    let mut once = with(Fault::Cut);
    once.times = Some(1);
    let server_once = server(once);
    let request = format!("GET /{DEB} HTTP/1.1");
    let cut = ask_at(&server_once, &request);
    assert!(
        cut.contains("Content-Length: 10") && cut.ends_with("\r\n01234"),
        "{cut}"
    );
    assert!(ask_at(&server_once, &request).ends_with("0123456789"));
    let always = server(with(Fault::Cut));
    let resumed = ask_at(&always, &format!("{request}\r\nRange: bytes=5-"));
    assert!(
        resumed.contains("206") && resumed.ends_with("\r\n\r\n"),
        "{resumed}"
    );
}

#[test]
fn slow_download_is_complete() {
    let mut slow = with(Fault::Slow);
    slow.bytes_per_second = Some(20);
    let begin = std::time::Instant::now();
    let answer = ask_at(&server(slow), &format!("GET /{DEB} HTTP/1.1"));
    assert!(answer.ends_with("0123456789"));
    assert!(begin.elapsed() >= std::time::Duration::from_millis(450));
}

#[test]
fn proxy_requires_credentials_and_forwards() {
    let upstream = server(Serving::default());
    let proxy = Serving {
        proxy: true,
        login: Some("foo:bar".into()),
        ..Serving::default()
    };
    let proxy = server(proxy);
    let request = "GET http://repository.test/d/file HTTP/1.1";
    assert!(ask_at(&proxy, request).contains("407"));
    let login = "Proxy-Authorization: Basic Zm9vOmJhcg==";
    assert!(ask_at(&proxy, &format!("{request}\r\n{login}")).ends_with("0123456789"));
    let elsewhere = format!("GET http://{}/d/file HTTP/1.1\r\n{login}", upstream.address);
    assert!(ask_at(&proxy, &elsewhere).ends_with("0123456789"));
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    write!(
        stream,
        "CONNECT {} HTTP/1.1\r\n{login}\r\n\r\n",
        upstream.address
    )
    .unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    write!(stream, "GET /d/file HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    reader.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("0123456789"), "{answer}");
}

#[test]
fn fault_keys_must_match() {
    let read = |text: &str| toml::from_str::<Serving>(text).unwrap().check();
    assert!(read("").is_ok());
    assert!(read("fault = 'cut'\ntimes = 1").is_ok());
    for wrong in [
        "fault = 'slow'",
        "fault = 'down'\ntimes = 1",
        "login = 'a:b'",
        "of = 'nvidia'",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
