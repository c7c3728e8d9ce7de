//! `install.sh` of a release, with fake package managers.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

const RELEASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/release");

/// The binary in the archive.
const PROGRAM: &str = "the program";

/// The programs of the system that the script needs.
const PROGRAMS: [&str; 13] = [
    "sh",
    "grep",
    "mktemp",
    "rm",
    "chmod",
    "cp",
    "sha256sum",
    "tar",
    "gzip",
    "mkdir",
    "install",
    "mv",
    "curl",
];

/// A release for x86_64, and a machine with fake programs in `bin`, which record their arguments in `calls`.
struct Machine {
    directory: TempDir,
}

impl Machine {
    /// A machine with these fake programs, which is x86_64. The user is root.
    fn with(programs: &[&str]) -> Self {
        let machine = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        for name in ["bin", "release", "tmp", "gpu-bootstrap-1.2.3-linux-x86_64"] {
            fs::create_dir(machine.at(name)).expect("created");
        }
        machine.write("gpu-bootstrap-1.2.3-linux-x86_64/gpu-bootstrap", PROGRAM);
        let packed = Command::new("tar")
            .arg("czf")
            .arg(machine.at("release/gpu-bootstrap-1.2.3-linux-x86_64.tar.gz"))
            .arg("gpu-bootstrap-1.2.3-linux-x86_64")
            .current_dir(machine.directory.path())
            .status()
            .expect("tar");
        assert!(packed.success());
        machine.write("release/gpu-bootstrap_1.2.3_amd64.deb", "the deb");
        machine.write("release/gpu-bootstrap-1.2.3-1.x86_64.rpm", "the rpm");
        let written = Command::new(format!("{RELEASE}/checksums.sh"))
            .arg(machine.at("release"))
            .env_remove("RELEASE_KEY")
            .output()
            .expect("checksums.sh");
        assert!(written.status.success(), "{written:?}");

        for name in PROGRAMS {
            let path = std::env::split_paths(&std::env::var_os("PATH").expect("PATH"))
                .map(|directory| directory.join(name))
                .find(|path| path.exists())
                .unwrap_or_else(|| panic!("{name} is not installed"));
            symlink(path, machine.at("bin").join(name)).expect("linked");
        }
        machine.program("id", "echo 0");
        machine.program("uname", "echo x86_64");
        for name in programs {
            // The last argument is the package.
            let body = format!(
                r#"echo "{name} $*" >>"$T/calls"; for last; do :; done; cp "$last" "$T/installed""#
            );
            machine.program(name, &body);
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.at(name), content).expect("written");
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.at("bin").join(name);
        // Not through a symlink to the program of the system.
        if path.is_symlink() {
            fs::remove_file(&path).expect("removed");
        }
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    /// Runs a script with these arguments.
    fn run(&self, script: &Path, arguments: &[&str]) -> Output {
        Command::new("/bin/sh")
            .arg(script)
            .args(arguments)
            .env_clear()
            .env("PATH", self.at("bin"))
            .env("T", self.directory.path())
            .env("TMPDIR", self.at("tmp"))
            .env("CURL_CA_BUNDLE", self.at("certificate"))
            .stdin(Stdio::null())
            .output()
            .expect("sh")
    }

    /// Installs from a place.
    fn install(&self, arguments: &[&str]) -> Output {
        let output = self.run(&self.at("release/install.sh"), arguments);
        let left = fs::read_dir(self.at("tmp")).expect("a directory").count();
        assert_eq!(left, 0, "temporary files remain: {output:?}");
        output
    }

    /// Installs from the directory of the release.
    fn install_locally(&self) -> Output {
        self.install(&[&self.at("release").display().to_string()])
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.at(name)).ok()
    }

    /// Fails if the script succeeded, has another error, or called a package manager.
    fn assert_refused(&self, output: &Output, reason: &str) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{output:?}");
        assert!(error.contains(reason), "{error}");
        assert_eq!(self.read("calls"), None);
    }
}

fn assert_success(output: &Output, last: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains(last), "{text}");
}

#[test]
fn package_of_the_system_is_installed() {
    for (programs, name, content, call) in [
        (
            &["dpkg", "apt-get"][..],
            "gpu-bootstrap_1.2.3_amd64.deb",
            "the deb",
            "apt-get -q -y -o DPkg::Lock::Timeout=300 install /",
        ),
        (
            &["rpm"],
            "gpu-bootstrap-1.2.3-1.x86_64.rpm",
            "the rpm",
            "rpm -U --replacepkgs /",
        ),
    ] {
        let machine = Machine::with(programs);
        let output = machine.install_locally();
        assert_success(&output, &format!("installed: {name}\n"));
        assert_eq!(machine.read("installed").as_deref(), Some(content));
        let calls = machine.read("calls").expect("a call");
        assert!(calls.starts_with(call), "{calls}");
        assert_eq!(calls.lines().count(), 1, "{calls}");
    }
}

#[test]
fn binary_is_installed_in_a_given_directory() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    fs::create_dir(machine.at("programs")).expect("created");
    machine.write("programs/gpu-bootstrap", "an older version");
    let release = machine.at("release").display().to_string();
    let programs = machine.at("programs").display().to_string();
    let output = machine.install(&[&release, &programs]);
    assert_success(&output, "-linux-x86_64.tar.gz\n");
    assert_eq!(machine.read("calls"), None);
    let program = machine.read("programs/gpu-bootstrap");
    assert_eq!(program.as_deref(), Some(PROGRAM));
    let mode = machine.at("programs/gpu-bootstrap").metadata();
    assert_eq!(mode.expect("a file").permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_dir(&programs).expect("a directory").count(), 1);
}

#[test]
fn package_with_another_checksum_is_refused() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    machine.write("release/gpu-bootstrap_1.2.3_amd64.deb", "the dEb");
    machine.assert_refused(&machine.install_locally(), "checksum mismatch: /");
}

#[test]
fn script_without_checksums_is_refused() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    let release = machine.at("release").display().to_string();
    let output = machine.run(Path::new(&format!("{RELEASE}/install.sh")), &[&release]);
    machine.assert_refused(&output, "contains no checksums");
}

#[test]
fn machine_without_a_release_file_is_refused() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    machine.program("uname", "echo aarch64");
    machine.assert_refused(&machine.install_locally(), "no file *_arm64.deb");
    machine.program("uname", "echo riscv64");
    machine.assert_refused(&machine.install_locally(), "no release for riscv64");
}

#[test]
fn unprivileged_user_is_refused() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    machine.program("id", "echo 1000");
    machine.assert_refused(&machine.install_locally(), "root is required");
}

#[test]
fn url_without_encryption_is_refused() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    let output = machine.install(&["http://127.0.0.1/release"]);
    machine.assert_refused(&output, "does not start with https://");
}

#[test]
fn incomplete_script_does_nothing() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    let script = machine.read("release/install.sh").expect("a script");
    let release = machine.at("release").display().to_string();
    let lines: Vec<&str> = script.lines().collect();
    for count in 0..lines.len() {
        machine.write("incomplete", &lines[..count].join("\n"));
        machine.run(&machine.at("incomplete"), &[&release]);
        assert_eq!(machine.read("calls"), None, "{count} lines");
    }
    machine.write("complete", &script);
    machine.run(&machine.at("complete"), &[&release]);
    assert!(machine.read("calls").is_some());
}

/// An HTTPS server, which stops when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have failed to start.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn files_are_downloaded_over_https() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    let made = Command::new("openssl")
        .args("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split(' '))
        .args("-addext subjectAltName=IP:127.0.0.1 -keyout key -out certificate".split(' '))
        .current_dir(machine.directory.path())
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    let port = (TcpListener::bind("127.0.0.1:0").expect("a port"))
        .local_addr()
        .expect("an address")
        .port();
    let server = "import http.server, ssl, sys\n\
                  server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)\n\
                  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
                  context.load_cert_chain('../certificate', '../key')\n\
                  server.socket = context.wrap_socket(server.socket, server_side=True)\n\
                  server.serve_forever()\n";
    let mut server = Server(
        Command::new("python3")
            .args(["-c", server, &port.to_string()])
            .current_dir(machine.at("release"))
            .stderr(Stdio::null())
            .spawn()
            .expect("python3"),
    );
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "no server");
        assert!(server.0.try_wait().expect("a child").is_none());
        std::thread::sleep(Duration::from_millis(20));
    }

    let place = format!("https://127.0.0.1:{port}/");
    assert_success(&machine.install(&[&place]), "installed: ");
    assert_eq!(machine.read("installed").as_deref(), Some("the deb"));

    fs::remove_file(machine.at("calls")).expect("removed");
    fs::remove_file(machine.at("release/gpu-bootstrap_1.2.3_amd64.deb")).expect("removed");
    machine.assert_refused(&machine.install(&[&place]), "failed to download https://");

    // The system does not trust the certificate of the server.
    machine.write("release/gpu-bootstrap_1.2.3_amd64.deb", "the deb");
    machine.write("certificate", "");
    machine.assert_refused(&machine.install(&[&place]), "failed to download https://");
}

#[test]
fn wget_downloads_if_curl_is_missing() {
    let machine = Machine::with(&["dpkg", "apt-get"]);
    fs::remove_file(machine.at("bin/curl")).expect("removed");
    // wget -O FILE URL
    machine.program(
        "wget",
        r#"while [ $# -gt 1 ]; do [ "$1" != -O ] || out=$2; shift; done
echo "$1" >"$T/url"
cp "$T/release/${1##*/}" "$out""#,
    );
    let place = "https://files.example.com/v1.2.3";
    assert_success(&machine.install(&[place]), "installed: ");
    assert_eq!(
        machine.read("url").as_deref(),
        Some("https://files.example.com/v1.2.3/gpu-bootstrap_1.2.3_amd64.deb\n")
    );
    assert_eq!(machine.read("installed").as_deref(), Some("the deb"));
}
