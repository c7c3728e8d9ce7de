//! Records real package managers, if `PACKAGES` is a directory with the root filesystems of `tests/packages/record.sh`.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use gpu_bootstrap::{
    host::{
        Cmd, Host, Output,
        exec::Status,
        fake::{self, Fakes},
    },
    tools::packages::Manager,
};
use tokio::runtime::Runtime;

use super::{
    FILES, LOCKS,
    contract::{self, Asked, Line, OURS, PROGRAMS, Scenarios, outcome},
};
use crate::archive::{Archive, Package};

/// Builds packages and repositories from the output of [`write_packages`], and generates their keys.
const REPOSITORY: &str = r#"
cd /build
for tree in debs/*; do dpkg-deb --root-owner-group --build "$tree" /srv/www/demo >/dev/null; done
for spec in specs/*.spec; do
    rpmbuild --quiet -bb --define "_topdir /build/rpm" --define "_rpmdir /srv/www/demo" --define "_build_id_links none" "$spec"
done
# As in tests/vm/runner/files/almalinux-root.sh: Debian's rpm has its database in the home directory of its user.
mkdir -p /var/lib/rpm
echo "%_dbpath /var/lib/rpm" >/usr/lib/rpm/macros.d/macros.demo
rpm --install /srv/www/demo/x86_64/rpm-*.rpm
rm /srv/www/demo/x86_64/rpm-*.rpm
export GNUPGHOME=/build/gnupg
mkdir -m 700 $GNUPGHOME
for key in demo stranger; do
    gpg --batch --quiet --passphrase '' --quick-gen-key $key@example.org rsa3072 sign never
    gpg --export $key@example.org >/srv/$key.gpg
    gpg --armor --export $key@example.org >/srv/$key.asc
done
cd /srv/www/demo
rpmsign --define '__gpg /usr/bin/gpg' --define '_gpg_name demo@example.org' --addsign x86_64/*.rpm >/dev/null
createrepo_c --quiet --no-database .
lists=dists/stable/main/binary-amd64
mkdir -p $lists
apt-ftparchive packages . >$lists/Packages
gzip --keep $lists/Packages
apt-ftparchive -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Components=main \
    -o APT::FTPArchive::Release::Architectures=amd64 release dists/stable >/build/Release
mv /build/Release dists/stable
gpg --batch --quiet --local-user demo@example.org --clearsign --output dists/stable/InRelease dists/stable/Release
gpg --batch --quiet --local-user demo@example.org --armor --detach-sign repodata/repomd.xml
gpgconf --kill all
mkdir -p /etc/pki/rpm-gpg /etc/yum.repos.d /etc/dnf/vars
cp /srv/demo.gpg /usr/share/keyrings/demo.gpg
cp /srv/demo.asc /etc/pki/rpm-gpg/demo
echo 9 >/etc/dnf/vars/releasever
for plugin in local post-transaction-actions show_leaves leaves; do
    rm -rf "/usr/lib/python3/dist-packages/dnf-plugins/$plugin.py" "/etc/dnf/plugins/$plugin."*
done
rm -rf /etc/apt/sources.list /etc/apt/apt.conf.d/99mmdebstrap /var/lib/apt/lists/* /etc/dnf/aliases.d /build
echo "nameserver 127.0.0.1" >/etc/resolv.conf
echo "127.0.0.1 localhost packages.example.org" >/etc/hosts
touch /srv/ready
"#;

/// A package script that fails if `/etc/demo-fails` exists.
const SCRIPT: &str = "if [ -e /etc/demo-fails ]; then\n    echo 'Error! Bad return status for module \
                      build on kernel: 6.1.0 (x86_64)' >&2\n    exit 10\nfi\n";

fn directory() -> Option<PathBuf> {
    env::var_os("PACKAGES").map(PathBuf::from)
}

fn write(root: &Path, path: &str, text: &str) {
    let at = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(at.parent().expect("a folder")).expect("a folder");
    fs::write(&at, text).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
}

fn script(package: &Package) -> &'static str {
    match package.dkms {
        Some(_) => SCRIPT,
        None => "",
    }
}

/// Writes the file trees and build descriptions of the packages.
fn write_packages(root: &Path) {
    write(root, "/build/specs/rpm.spec", BASE);
    for package in Archive::load("contract", "x86_64").packages {
        let Package { name, version, .. } = &package;
        let specs = |specs: &[String], same: &str| -> String {
            let one = |spec: &String| spec.replace(" = self", same);
            specs.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let tree = format!("/build/debs/{name}_{}", version.replace(':', "."));
        let mut control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: Demo \
             <demo@example.org>\nInstalled-Size: 10\nDescription: {name}\n"
        );
        let (epoch, rest) = match version.split_once(':') {
            Some((epoch, rest)) => (format!("Epoch: {epoch}\n"), rest),
            None => (String::new(), version.as_str()),
        };
        let (upstream, release) = rest.split_once('-').expect("a release");
        let mut spec = format!(
            "Name: {name}\n{epoch}Version: {upstream}\nRelease: {release}\nSummary: {name}\n\
             License: none\nAutoReqProv: no\n"
        );
        for (deb, rpm, values) in [
            ("Depends", "Requires", &package.depends),
            ("Recommends", "Recommends", &package.recommends),
            ("Conflicts", "Conflicts", &package.conflicts),
        ] {
            if !values.is_empty() {
                control += &format!("{deb}: {}\n", specs(values, &format!(" (= {version})")));
                spec += &format!("{rpm}: {}\n", specs(values, &format!(" = {version}")));
            }
        }
        write(root, &format!("{tree}/DEBIAN/control"), &control);
        let contents = (package.files.iter()).map(|path| (path, String::from("demo\n")));
        let conffiles = (package.conffiles.iter()).map(|(path, text)| (path, text.clone()));
        let (mut install, mut files) = (String::new(), String::new());
        for (path, text) in contents.chain(conffiles) {
            write(root, &format!("{tree}{path}"), &text);
            install += &format!("install -D -m 644 {tree}{path} %{{buildroot}}{path}\n");
            let is_configuration = package.conffiles.contains_key(path);
            let mark = if is_configuration {
                "%config(noreplace) "
            } else {
                ""
            };
            files += &format!("{mark}{path}\n");
        }
        let conffiles: String = package
            .conffiles
            .keys()
            .map(|path| format!("{path}\n"))
            .collect();
        if !conffiles.is_empty() {
            write(root, &format!("{tree}/DEBIAN/conffiles"), &conffiles);
        }
        let script = script(&package);
        let post = match script.is_empty() {
            true => String::new(),
            false => {
                let path = format!("{tree}/DEBIAN/postinst");
                write(root, &path, &format!("#!/bin/sh\nset -e\n{script}"));
                let at = root.join(path.trim_start_matches('/'));
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                fs::set_permissions(at, mode).expect("a mode");
                format!("%post\n{script}")
            }
        };
        spec += &format!("%description\n{name}\n%install\n{install}{post}%files\n{files}");
        let path = format!("/build/specs/{name}-{}.spec", version.replace(':', "."));
        write(root, &path, &spec);
    }
}

/// The dependencies that every machine with rpm provides.
const BASE: &str = "Name: rpm\nVersion: 4\nRelease: 1\nSummary: rpm\nLicense: none\nAutoReqProv: \
                    no\nProvides: /bin/sh\n%description\nrpm\n%files\n";

fn sh(script: &str, values: &[(&str, &str)]) {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-euc", script])
        .stdin(Stdio::null())
        .envs(values.iter().copied());
    assert!(command.status().expect("a shell").success(), "{script}");
}

/// A command in a root filesystem, with a clean environment.
fn inside(root: &Path, program: &str) -> Command {
    let mut command = Command::new("chroot");
    command
        .arg(root)
        .args(["timeout", "120", program])
        .env_clear();
    command
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C");
    command
}

/// A real machine: a copy of a root filesystem, and its repository server.
struct Real {
    root: PathBuf,
    fakes: Fakes,
    asked: Arc<Mutex<Vec<Asked>>>,
    kept: Mutex<BTreeMap<String, Option<String>>>,
    server: Child,
    happens: BTreeMap<String, String>,
}

impl Real {
    fn new(suite: &Path, happens: &BTreeMap<String, String>) -> Self {
        let directory = suite.with_file_name("machine");
        let places = [("SUITE", suite), ("MACHINE", &directory)];
        let places = places.map(|(name, path)| (name, path.to_str().expect("text")));
        sh(
            r#"mkdir -p "$MACHINE"
            mount -t tmpfs tmpfs "$MACHINE"
            cd "$MACHINE"
            mkdir upper work root
            mount -t overlay overlay -o "lowerdir=$SUITE,upperdir=upper,workdir=work" root
            mount -t proc proc root/proc
            mount -t tmpfs tmpfs root/run"#,
            &places,
        );
        let root = directory.join("root");
        fs::create_dir_all(root.join("var/tmp/demo-kept/partial")).expect("a folder");
        let server = Command::new("chroot")
            .arg(&root)
            .args("python3 -m http.server 80 --bind 127.0.0.1 --directory /srv/www".split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        while TcpStream::connect("127.0.0.1:80").is_err() {
            std::thread::yield_now();
        }
        let (_, fakes) = fake::host();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        for program in PROGRAMS {
            let (asked, root) = (asked.clone(), root.clone());
            fakes.exec.on(program, move |cmd, files| {
                let said = run(&root, cmd);
                asked.lock().expect("a lock").push(Asked {
                    command: cmd.line(),
                    said: said.clone(),
                });
                contract::arrange(files, &read(&root));
                said
            });
        }
        contract::arrange(&fakes.files, &read(&root));
        Self {
            root,
            fakes,
            asked,
            kept: Mutex::default(),
            server,
            happens: happens.clone(),
        }
    }

    /// The commands and changed files since the last call.
    fn line(&self, scenario: &str, step: &str) -> Line {
        let now = read(&self.root);
        let mut kept = self.kept.lock().expect("a lock");
        let mut files: BTreeMap<_, _> = (now.iter())
            .filter(|(path, text)| kept.get(*path) != Some(*text))
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect();
        let gone = kept.keys().filter(|path| !now.contains_key(*path));
        files.extend(gone.map(|path| (path.clone(), None)));
        *kept = now;
        Line {
            scenario: scenario.to_owned(),
            step: step.to_owned(),
            asked: std::mem::take(&mut self.asked.lock().expect("a lock")),
            files,
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let directory = self.root.with_file_name("");
        let directory = directory.to_str().expect("text");
        // A process that holds a lock there exits with its namespace.
        sh(
            "umount --lazy --recursive \"$MACHINE\"",
            &[("MACHINE", directory)],
        );
    }
}

fn run(root: &Path, cmd: &Cmd) -> Output {
    let mut command = inside(root, &cmd.program);
    command.args(&cmd.args).envs(cmd.env.iter().cloned());
    assert!(cmd.secret_env.is_empty(), "no proxy here");
    let (stdin, text) = match &cmd.stdin {
        Some(text) => (Stdio::piped(), text.expose().to_owned()),
        None => (Stdio::null(), String::new()),
    };
    let child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("a program");
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).expect("a script");
    }
    let output = child.wait_with_output().expect("an output");
    let status = output.status.code().expect("it exits");
    assert_ne!(status, 124, "`{}` takes too long", cmd.line());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Output {
        status: Status::Exited(status),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Exists during a dnf transaction.
const TRANSACTION: &str = "/var/lib/dnf/rpmdb_lock.pid";

/// The files that gpu-bootstrap reads, limited to packages with prefix [`OURS`].
fn read(root: &Path) -> BTreeMap<String, Option<String>> {
    let text = |path: &str| fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
    let names = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(directory.trim_start_matches('/')));
        let entries = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("a file"));
        entries
            .map(|entry| entry.file_name().into_string().expect("text"))
            .collect()
    };
    let paragraphs = |path: &str| {
        let all = text(path).unwrap_or_default();
        let ours = all
            .split_inclusive("\n\n")
            .filter(|one| one.contains(&format!("Package: {OURS}")));
        ours.collect::<String>()
    };
    let mut found = BTreeMap::new();
    for path in ["/var/lib/dpkg/status", "/var/lib/apt/extended_states"] {
        found.insert(path.to_owned(), Some(paragraphs(path)));
    }
    for name in names("/var/lib/dpkg/updates") {
        let path = format!("/var/lib/dpkg/updates/{name}");
        found.insert(path.clone(), text(&path));
    }
    for name in names("/var/lib/dpkg/info")
        .iter()
        .filter(|name| name.starts_with(OURS))
    {
        if name.ends_with(".md5sums") {
            continue;
        }
        let path = format!("/var/lib/dpkg/info/{name}");
        found.insert(path.clone(), text(&path));
    }
    // Of lists and caches, only the file names matter.
    for directory in ["/var/lib/apt/lists", "/var/cache/dnf"] {
        for name in names(directory)
            .iter()
            .filter(|name| name.contains('.') || name.contains('_'))
        {
            found.insert(format!("{directory}/{name}"), Some(String::new()));
        }
    }
    let list = "/etc/dnf/plugins/versionlock.list";
    let files = FILES.into_iter().chain([LOCKS]).map(|(path, _)| path);
    for path in files.chain([list]) {
        if let Some(text) = text(path) {
            found.insert(path.to_owned(), Some(text));
        }
    }
    // The file means an interrupted transaction only if its process no longer exists. gpu-bootstrap detects a live process with
    // files that are not recorded.
    let working = text(TRANSACTION).unwrap_or_default();
    if !working.is_empty() && !Path::new("/proc").join(&working).exists() {
        found.insert(TRANSACTION.to_owned(), Some(working));
    }
    // The database format is private, so record only its existence.
    if root.join("var/lib/rpm/rpmdb.sqlite").exists() {
        found.insert("/var/lib/rpm/rpmdb.sqlite".to_owned(), Some(String::new()));
    }
    found
}

impl contract::Machine for Real {
    fn host(&self) -> Host {
        self.fakes.host()
    }

    fn happens(&self, what: &str) {
        let script = self.happens.get(what);
        let script = script.unwrap_or_else(|| panic!("unknown event `{what}`"));
        let mut command = inside(&self.root, "/bin/sh");
        command.args(["-euc", script]).env("srv", "/srv/www/demo");
        command.env("server", self.server.id().to_string());
        assert!(command.status().expect("a shell").success(), "{script}");
        contract::arrange(&self.fakes.files, &read(&self.root));
    }

    fn put(&self, path: &str, text: String) {
        write(&self.root, path, &text);
        self.fakes.files.put(path, text);
    }
}

/// The version of a package manager and of its low-level tool.
fn version(root: &Path, manager: Manager) -> String {
    let of = |package: &str| {
        let mut query = inside(root, "dpkg-query");
        query.args(["--show", "--showformat=${Version}", package]);
        let output = query.output().expect("a version");
        let text = String::from_utf8(output.stdout).expect("text");
        let text = text.split('-').next().unwrap_or_default();
        text.split('+').next().unwrap_or_default().to_owned()
    };
    match manager {
        Manager::Apt => format!("apt-{}-dpkg-{}", of("apt"), of("dpkg")),
        Manager::Dnf => format!("dnf-{}-rpm-{}", of("dnf"), of("rpm")),
    }
}

/// Runs the real programs, if available, and records their output.
pub fn record(runtime: &Runtime, manager: Manager) {
    let Some(directory) = directory() else {
        return;
    };
    let scenarios = Scenarios::read();
    for suite in ["bookworm", "trixie"] {
        let suite = directory.join(suite);
        if !suite.join("srv/ready").exists() {
            fs::create_dir_all(suite.join("srv/www/demo")).expect("a folder");
            write_packages(&suite);
            for (path, text) in FILES.into_iter().chain([LOCKS]) {
                write(&suite, path, text);
            }
            let mut build = inside(&suite, "/bin/sh");
            build.args(["-euc", REPOSITORY]).stdin(Stdio::null());
            assert!(build.status().expect("a shell").success(), "no repository");
        }
        let mut lines = Vec::new();
        for scenario in scenarios.of(manager) {
            let real = Real::new(&suite, &scenarios.happens);
            for step in &scenario.steps {
                runtime.block_on(outcome(manager, &real, step));
                let line = real.line(&scenario.name, step);
                lines.push(serde_json::to_string(&line).expect("JSON") + "\n");
            }
        }
        let name = format!("{}.jsonl", version(&suite, manager));
        fs::write(contract::directory().join(name), lines.concat()).expect("written");
    }
}
