//! The fuzz targets: one function for each kind of input that gpu-bootstrap reads but does not write itself.
//!
//! Each target asserts more than the absence of panics: untrusted control characters do not reach the output, each error has
//! its exit status and contains the file path, and written data is parsed to the same values. `tests/fuzz.rs` runs the corpus
//! through the same functions without a fuzzer.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex},
};

use camino::Utf8Path;
use gpu_bootstrap::{
    cli::{self, Console, Env},
    dkms,
    exit::Exit,
    facts,
    host::{
        Files as _, Host,
        exec::Status,
        fake::{self, FakeFiles},
        files::FreeSpace,
    },
    joins::kubeadm,
    journal,
    model::{
        document::{Document, Format, check_toml},
        environment,
        gpu::Flavor,
        secret::{Hiding, Secrets},
        text::{colour_mark, without_controls},
        version::{DriverVersion, KernelVersion},
    },
    report::fleet::{self, Collected, Fleet},
    runtimes::{
        ConfigFile, Version, cdi,
        containerd::{self, ctr, layout},
        crictl, crio, docker,
    },
    tools::{
        accounts, container_view, faults, initramfs, kernel_log, kmod, kubelet,
        kubernetes::{kubeconfig, kubectl, token},
        lspci, module_file, mounts, openpgp,
        packages::{FailureClass, Manager},
        prebuilt, sysctl, systemctl, toolkit,
    },
};

/// A target: its name, which is also its directory in the corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 6] = [
    ("answers", answers),
    ("journal", journal),
    ("lspci", lspci),
    ("settings", settings),
    ("texts", texts),
    ("tree", tree),
];

/// Runs a target. Inputs that contain the random number that marks our own colors are skipped. A fuzzer can read it from the
/// comparisons in the program, but an attacker cannot know it.
pub fn give(name: &str, text: &[u8]) {
    let own = colour_mark()
        .trim_start_matches("\u{1b}[")
        .trim_end_matches(';');
    if text.windows(own.len()).any(|part| part == own.as_bytes()) {
        return;
    }
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    target.expect("a target").1(text);
}

/// The output of a command line.
struct Said {
    exit: Exit,
    out: String,
    err: String,
}

/// Standard error, which another thread also writes.
#[derive(Clone, Default)]
struct Talk(Arc<Mutex<Vec<u8>>>);

impl Write for Talk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a command line as root, and asserts the properties of all command lines.
fn run(host: &Host, args: &[&str]) -> Said {
    let (mut out, err) = (Vec::new(), Talk::default());
    let (mut talk, more) = (err.clone(), err.clone());
    let network = host.http.clone();
    let secrets = Secrets::default();
    let env = Env {
        root: true,
        vars: BTreeMap::new(),
        secrets: secrets.clone(),
        exe: "/usr/local/bin/gpu-bootstrap".into(),
        command: args.join(" "),
        proxied: Arc::new(move |_, _| network.clone()),
    };
    let mut console = Console {
        out: Hiding::new(&mut out, &secrets),
        err: Hiding::new(&mut talk, &secrets),
        out_terminal: false,
        err_terminal: false,
        colour: false,
        out_width: 80,
        err_width: 80,
        talk: Arc::new(move || Box::new(more.clone())),
        drawn: Default::default(),
    };
    let line: Vec<OsString> = std::iter::once(&"gpu-bootstrap")
        .chain(args)
        .map(OsString::from)
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let exit = runtime.block_on(cli::run(line, host, &env, &mut console));
    drop(console);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let err = text(err.0.lock().expect("nobody panicked").clone());
    let said = Said {
        exit,
        out: text(out),
        err,
    };
    for text in [&said.out, &said.err] {
        assert_eq!(without_controls(text), None, "a control character");
    }
    assert_ne!(said.exit, Exit::Internal, "{args:?}: {}", said.err);
    if args.contains(&"json") && !said.out.is_empty() {
        let document: Result<serde_json::Value, _> = serde_json::from_str(&said.out);
        assert!(document.is_ok(), "{document:?}");
    }
    said
}

/// The systems and GPUs that settings are resolved for. A first line of `#` and a digit selects one.
const TRIALS: [(&str, &str); 6] = [
    ("ubuntu-24.04", "H100"),
    ("debian-12", "L4"),
    ("almalinux-9.6", "p5.48xlarge"),
    ("amzn-2023", "p4d.24xlarge"),
    ("ubuntu-22.04", "GB200"),
    ("debian-13", "V100"),
];

/// A settings file, resolved for a described machine (`plan --os`).
pub fn settings(text: &[u8]) {
    const FILE: &str = "/settings.toml";
    let (host, fakes) = fake::host();
    fakes.files.put(FILE, text);
    let digit = text.strip_prefix(b"#").and_then(|rest| rest.first());
    let (os, gpu) = TRIALS[usize::from(digit.copied().unwrap_or_default()) % TRIALS.len()];
    let args = ["plan", "--os", os, "--gpu", gpu, "--config", FILE];
    let said = run(&host, &args);
    let toml = std::str::from_utf8(text).is_ok_and(|text| text.parse::<toml::Table>().is_ok());
    if !toml {
        assert_eq!(said.exit, Exit::Config, "{}", said.err);
    }
    if said.exit == Exit::Config {
        assert!(said.err.contains(FILE), "{}", said.err);
    }
    let document = run(&host, &[&args[..], &["--format", "json"]].concat());
    assert_eq!(document.exit, said.exit);
}

/// A journal, which is parsed, serialized, shown by `status` and undone.
pub fn journal(text: &[u8]) {
    let path = journal::path();
    let read = journal::parse(&path, text);
    if let Ok(history) = &read {
        let lines: Vec<String> = (history.lines.iter())
            .map(|line| serde_json::to_string(line).expect("a record is JSON") + "\n")
            .collect();
        let again = journal::parse(&path, lines.concat().as_bytes());
        let again = again.expect("a serialized journal can be parsed");
        assert_eq!(again.lines, history.lines);
        assert_eq!(journal::fold(&again.lines), journal::fold(&history.lines));
        assert!(history.whole <= text.len());
    }
    let (host, fakes) = fake::host();
    fakes.files.put(path.as_str(), text);
    let now = || host.files.read(&path).expect("files in memory");
    for format in ["human", "json"] {
        let said = run(&host, &["status", "--format", format]);
        if read.is_err() {
            assert_eq!(said.exit, Exit::Blocked, "{}", said.err);
            assert!(said.err.contains(path.as_str()), "{}", said.err);
        }
    }
    assert_eq!(now().as_deref(), Some(text), "`status` changes nothing");
    let said = run(&host, &["uninstall"]);
    match (read, now()) {
        // An unreadable journal is not modified.
        (Err(_), now) => assert_eq!(now.as_deref(), Some(text), "{}", said.err),
        // All records are kept until everything is undone.
        (Ok(history), Some(now)) => {
            assert!(now.starts_with(&text[..history.whole]), "{}", said.err);
        }
        (Ok(_), None) => assert!(
            matches!(said.exit, Exit::Ok | Exit::Partial),
            "{}",
            said.err
        ),
    }
}

/// The output of lspci.
pub fn lspci(text: &[u8]) {
    const FILE: &str = "/lspci.txt";
    let (host, fakes) = fake::host();
    fakes.files.put(FILE, text);
    let known = lspci::parse(&String::from_utf8_lossy(text)).is_ok();
    for args in [&["facts", "--format", "json"][..], &["check"], &["compat"]] {
        let said = run(&host, &[args, &["--lspci", FILE]].concat());
        match known {
            true => assert!(!said.out.is_empty(), "{args:?}: {}", said.err),
            false => {
                assert_eq!(said.exit, Exit::Usage, "{args:?}: {}", said.err);
                assert!(said.err.contains(FILE), "{}", said.err);
            }
        }
    }
}

/// A part of a machine, from a line `=== HEAD` to the next one.
///
/// `/PATH` is a file, `/PATH -> TARGET` a symlink, `$ WORDS` the standard output of commands that begin with these words, and
/// `! WORDS` their error output when they fail.
struct Part<'t> {
    head: &'t str,
    body: &'t [u8],
}

/// The index of the machine to change (the first digit), and the parts that change it.
fn parts(text: &[u8]) -> (usize, Vec<Part<'_>>) {
    const MARK: &[u8] = b"\n=== ";
    let machine = text.first().copied().unwrap_or_default();
    let mut found = Vec::new();
    let starts: Vec<usize> = (text.windows(MARK.len()).enumerate())
        .filter_map(|(at, window)| (window == MARK).then_some(at))
        .collect();
    for (at, start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied().unwrap_or(text.len());
        let part = &text[start + MARK.len()..end];
        let line = part.iter().position(|byte| *byte == b'\n');
        let line = line.unwrap_or(part.len());
        if let Ok(head) = std::str::from_utf8(&part[..line]) {
            let body = part.get(line + 1..).unwrap_or_default();
            found.push(Part { head, body });
        }
    }
    (usize::from(machine), found)
}

/// The directories of the recorded machines in `tests/hosts`, sorted by name.
fn recorded() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let hosts = (here
        .ancestors()
        .map(|directory| directory.join("tests/hosts")))
    .find(|directory| directory.is_dir())
    .expect("the repository");
    let entries = fs::read_dir(hosts).expect("tests/hosts");
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path().join("root"))
        .filter(|root| root.is_dir())
        .collect();
    found.sort();
    found
}

/// A copy of a recorded machine on disk, or an empty tree, which an input changes and then restores.
struct Tree {
    root: PathBuf,
    aside: PathBuf,
    done: Vec<Done>,
}

/// A change that an input made to a [`Tree`].
enum Done {
    /// A new entry.
    Made(PathBuf),
    /// A replaced entry, which was moved aside.
    PutAside { aside: PathBuf, path: PathBuf },
}

impl Tree {
    fn new(directory: &Path, recorded: Option<&Path>) -> Self {
        let (root, aside) = (directory.join("root"), directory.join("aside"));
        for directory in [&root.join("etc"), &aside] {
            fs::create_dir_all(directory).expect("a folder");
        }
        if let Some(recorded) = recorded {
            copy(recorded, &root);
        }
        Self {
            root,
            aside,
            done: Vec::new(),
        }
    }

    /// Applies a part, if possible. Symlinks are not followed, so nothing is created outside of the tree.
    fn put(&mut self, part: &Part<'_>) {
        let (path, target) = match part.head.split_once(" -> ") {
            Some((path, target)) => (path, Some(target)),
            None => (part.head, None),
        };
        let parts: Vec<Component<'_>> = Path::new(path).components().skip(1).collect();
        let plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
        let [directories @ .., name] = &parts[..] else {
            return;
        };
        if !parts.iter().all(plain) {
            return;
        }
        let mut at = self.root.clone();
        for directory in directories {
            at.push(directory);
            match at.symlink_metadata() {
                Ok(about) if about.is_dir() => {}
                Err(_) if fs::create_dir(&at).is_ok() => self.done.push(Done::Made(at.clone())),
                _ => return,
            }
        }
        at.push(name);
        if at.symlink_metadata().is_ok() {
            let aside = self.aside.join(self.done.len().to_string());
            fs::rename(&at, &aside).expect("the entry is moved aside");
            let path = at.clone();
            self.done.push(Done::PutAside { aside, path });
        }
        let made = match target {
            Some(target) => symlink(target, &at),
            None if path.ends_with('/') => fs::create_dir(&at),
            None => fs::write(&at, part.body),
        };
        if made.is_ok() {
            self.done.push(Done::Made(at));
        }
    }

    /// Reverts all changes. A directory that is not empty by then contains files written by the program, which must not write
    /// here.
    fn restore_saved(&mut self) {
        while let Some(done) = self.done.pop() {
            let undone = match done {
                Done::PutAside { aside, path } => fs::rename(aside, path),
                Done::Made(path) => match path.symlink_metadata() {
                    Ok(about) if about.is_dir() => fs::remove_dir(path),
                    _ => fs::remove_file(path),
                },
            };
            undone.expect("the tree is as before");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (source, place) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().expect("its kind");
        if kind.is_symlink() {
            symlink(fs::read_link(source).expect("a link"), place).expect("a link");
        } else if kind.is_dir() {
            fs::create_dir_all(&place).expect("a folder");
            copy(&source, &place);
        } else {
            fs::copy(source, place).expect("a file");
        }
    }
}

/// The trees of a thread (each recorded machine and an empty one), and their parent directory.
struct Trees {
    _directory: tempfile::TempDir,
    trees: Vec<Tree>,
}

impl Trees {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let recorded = recorded();
        let recorded = (recorded.iter()).map(|root| Some(root.as_path()));
        let trees = (recorded.chain([None]).enumerate())
            .map(|(at, root)| Tree::new(&directory.path().join(at.to_string()), root))
            .collect();
        Self {
            _directory: directory,
            trees,
        }
    }
}

/// A machine on disk, read by `check --root` and `facts --root`.
pub fn tree(text: &[u8]) {
    thread_local! {
        static TREES: std::cell::RefCell<Trees> = std::cell::RefCell::new(Trees::new());
    }
    let (machine, parts) = parts(text);
    TREES.with_borrow_mut(|trees| {
        let count = trees.trees.len();
        let tree = &mut trees.trees[machine % count];
        for part in parts.iter().filter(|part| part.head.starts_with('/')) {
            tree.put(part);
        }
        let (host, _) = fake::host();
        let root = tree.root.to_str().expect("UTF-8");
        let facts = run(&host, &["facts", "--root", root, "--format", "json"]);
        if facts.exit == Exit::Ok {
            let document: facts::Facts = serde_json::from_str(&facts.out).expect("facts");
            let again = serde_json::to_value(&document).expect("JSON");
            let back: facts::Facts = serde_json::from_value(again).expect("facts");
            assert_eq!(back, document);
        }
        let told = run(&host, &["check", "--root", root, "-v"]);
        let document = run(&host, &["check", "--root", root, "--format", "json"]);
        assert_eq!(told.exit, document.exit);
        tree.restore_saved();
    });
}

/// The output of commands that begin with these words: standard output, or error output if they fail.
struct Answer {
    words: String,
    fails: bool,
    says: String,
}

/// A machine in memory with the command outputs of the input.
pub fn answers(text: &[u8]) {
    let (machine, parts) = parts(text);
    let (host, fakes) = fake::host();
    let free_space = FreeSpace {
        total: 100 << 30,
        free: 50 << 30,
        read_only: false,
        inodes: None,
    };
    fakes.files.mount("/", free_space);
    let recorded = recorded();
    if let Some(root) = recorded.get(machine % (recorded.len() + 1)) {
        load(root, root, &fakes.files);
    }
    let mut programs: BTreeMap<&str, Vec<Answer>> = BTreeMap::new();
    for part in &parts {
        let (kind, words) = part.head.split_at_checked(2).unwrap_or_default();
        if matches!(kind, "$ " | "! ") {
            let program = words.split(' ').next().unwrap_or_default();
            programs.entry(program).or_default().push(Answer {
                words: words.to_owned(),
                fails: kind == "! ",
                says: String::from_utf8_lossy(part.body).into_owned(),
            });
        } else if part.head.starts_with('/') {
            // Impossible entries, such as a file below a file, are skipped.
            let _ = match part.head.split_once(" -> ") {
                Some((path, target)) => fakes.files.link(path.into(), target.into()),
                None => fakes.files.write(part.head.into(), part.body, 0o644),
            };
        }
    }
    for (program, answers) in programs {
        fakes.exec.on(program, move |cmd, _| {
            let name = cmd.program.rsplit('/').next().unwrap_or_default();
            let line = format!("{name} {}", cmd.args.join(" "));
            let mut output = fake::ok("");
            for answer in (answers.iter()).filter(|answer| line.starts_with(&answer.words)) {
                if answer.fails {
                    output.status = Status::Exited(1);
                    output.stderr.push_str(&answer.says);
                } else {
                    output.stdout.push_str(&answer.says);
                }
            }
            output
        });
    }
    let before = fakes.files.snapshot().without(&["/run"]);
    run(&host, &["check", "--format", "json"]);
    run(&host, &["plan"]);
    let after = fakes.files.snapshot().without(&["/run"]);
    let changed = fake::diff(&before, &after);
    assert!(changed.is_empty(), "{changed:?}");
}

/// Reads documents of other nodes.
fn fleet_report(mut bytes: &[u8]) {
    let mut collected = Collected::default();
    collected.read("nodes", &mut bytes);
    let fleet = Fleet::of(collected, "2026-11-29T05:00:00Z".parse().expect("a time"));
    let mut report = Vec::new();
    fleet::markdown(&mut report, &fleet).expect("memory takes it");
    let report = String::from_utf8(report).expect("text");
    assert_eq!(without_controls(&report), None, "a control character");
}

fn load(root: &Path, directory: &Path, files: &FakeFiles) {
    for entry in fs::read_dir(directory).expect("a folder") {
        let entry = entry.expect("an entry");
        let source = entry.path();
        let inside = source.strip_prefix(root).expect("below the root");
        let path = format!("/{}", inside.to_str().expect("UTF-8"));
        let kind = entry.file_type().expect("its kind");
        if kind.is_symlink() {
            let target = fs::read_link(&source).expect("a link");
            files.put_link(&path, target.to_str().expect("UTF-8"));
        } else if kind.is_dir() {
            files.put_directory(&path, 0o755);
            load(root, &source, files);
        } else {
            files.put(&path, fs::read(&source).expect("a file"));
        }
    }
}

/// Output or files of a tool. Each input is passed to every parser.
pub fn texts(bytes: &[u8]) {
    let _ = openpgp::parse(bytes);
    let _ = module_file::modinfo(bytes, "vermagic");
    let _ = module_file::needed_symbols(bytes);
    let _ = prebuilt::verify(bytes, "x.tar.gz", bytes, &prebuilt::Trust::default());
    let _ = prebuilt::unpack(bytes, &purpose(), None, &["nvidia".to_owned()]);
    let text = &*String::from_utf8_lossy(bytes);
    packages(text);
    runtimes(text);
    documents(text);
    fleet_report(bytes);
    // Kernel, modules and hardware.
    let mut records = kernel_log::records(text);
    records.extend(kernel_log::records_of_journal(text));
    // As log messages without timestamps.
    records.extend(text.lines().map(str::to_owned));
    let records = kernel_log::last_boot(&records);
    let messages = kernel_log::read(records.iter().map(String::as_str));
    let _ = kernel_log::rows(&messages).count();
    let _ = kmod::parse_loaded(text);
    let nvidia = ["nvidia".to_owned(), "nvidia-drm".to_owned()];
    let _ = kmod::file_of(text, "nvidia");
    let _ = kmod::name_of(text);
    let _ = kmod::named_for_boot(text).count();
    let _ = kmod::denied_by_boot(text, &nvidia);
    let _ = kmod::settings(text).count();
    let _ = kmod::settings_of_boot(text).count();
    let _ = faults::of_modprobe(text);
    let _ = initramfs::modules_in(text, &nvidia);
    let _ = initramfs::has_file(text, Utf8Path::new("/etc/modprobe.d/nvidia.conf"));
    let _ = dkms::version_in(text, "nvidia");
    let _ = dkms::parse_status(text);
    let _ = FailureClass::Build.log_named_in(text);
    let _ = dkms::telling_line(text);
    let _ = dkms::program_of_override(text);
    let _ = (
        prebuilt::symbols(text),
        prebuilt::release(text),
        prebuilt::compiler(text),
    );
    let _ = prebuilt::said(text).count();
    let _ = mounts::holding(text, Utf8Path::new("/var/lib/docker"));
    let _ = sysctl::parse_swaps(text);
    if let Some(rest) = sysctl::without_swap(text) {
        assert_eq!(sysctl::without_swap(&rest), None, "no swap remains");
    }
    let _ = gpu_bootstrap::tools::device_nodes::majors(text);
    let _ = cdi::driver_of(text);
    let _ = container_view::mapped_objects(text);
    let _ = accounts::names(text);
    let _ = (text.parse::<DriverVersion>(), text.parse::<KernelVersion>());
    // systemd.
    let _ = systemctl::parse_show(text);
    let _ = systemctl::parse_once(text);
    let _ = systemctl::parse_command(text);
    let _ = systemctl::parse_spares_children(text);
    let _ = systemctl::parse_needs_reload(text, &["/etc/systemd/system/a.service.d/b.conf".into()]);
    let _ = environment::parse(text);
    // Kubernetes.
    let _ = kubelet::parse(text);
    let _ = kubelet::option(text, "--config");
    let _ = kubelet::endpoint(text);
    let _ = kubeconfig::parse(text);
    let _ = kubeconfig::secrets(text);
    let _ = kubeconfig::node_of(bytes);
    let _ = kubeconfig::pin_of(text);
    let _ = kubectl::server_version(text);
    let _ = kubeadm::fault(text, true);
    let _ = token::is_bootstrap(text);
}

/// The request for a module archive.
fn purpose() -> prebuilt::BuildTarget {
    prebuilt::BuildTarget {
        distribution: "debian".to_owned(),
        kernel: "6.1.0-44-amd64".parse().expect("a kernel"),
        architecture: "x86_64".to_owned(),
        driver: "535.261.03".parse().expect("a version"),
        flavor: Flavor::Open,
    }
}

/// The parsers of package managers, for output and for files.
fn packages(text: &str) {
    let (host, fakes) = fake::host();
    for path in [
        "/var/lib/dpkg/status",
        "/var/lib/apt/extended_states",
        "/etc/apt/sources.list",
        "/etc/apt/sources.list.d/one.list",
        "/etc/apt/sources.list.d/one.sources",
        "/etc/apt/preferences",
        "/etc/dnf/dnf.conf",
        "/etc/dnf/plugins/versionlock.list",
        "/etc/yum.repos.d/one.repo",
    ] {
        fakes.files.put(path, text);
    }
    for program in ["rpm", "dpkg", "apt-mark"] {
        let text = text.to_owned();
        fakes.exec.on(program, move |_, _| fake::ok(text.clone()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    for manager in Manager::ALL {
        let backend = manager.backend();
        let files = &*host.files;
        let database = runtime.block_on(backend.database(host.reader()));
        let database = database.ok().flatten().unwrap_or_default();
        let _ = runtime.block_on(backend.automatic(host.reader(), &database));
        let _ = runtime.block_on(backend.owned_below(host.reader(), Utf8Path::new("/etc")));
        let _ = runtime.block_on(backend.keys(host.reader()));
        let _ = backend.half_done(files, &database);
        let _ = backend.source_issues(files);
        let _ = backend.exclusions(files);
        if let Ok(entries) = backend.entries(files) {
            let _ = gpu_bootstrap::tools::packages::contradictions(&entries);
        }
        let (a, b) = text.split_once('\n').unwrap_or((text, ""));
        let order = backend.compare(a, b);
        assert_eq!(backend.compare(b, a), order.reverse(), "an order");
        let _ = backend.of_installed(text, &database);
        let _ = backend.downloaded(a);
        let _ = backend.parse_offers(text);
        let _ = backend.parse_contents(text);
        let _ = backend.parse_lower_bounds(text);
        let _ = backend.parse_actions(text, &database);
        let _ = backend.parse_estimate(text).download_bytes();
        let _ = backend.parse_unfinished(text, &database);
        let _ = backend.parse_configuration(text);
        let _ = backend.failed_scripts(text);
        let _ = backend.failure_class(text).hint_for(backend.name());
        let _ = backend.telling_line(text);
        let _ = backend.first_reason(text);
        let _ = backend.preflight_issue(text);
        let _ = backend.failed_sources(text);
        let _ = backend.failures_by_source(text);
        let _ = backend.has_answered(&fake::failed(1, text));
        let _ = backend.has_succeeded(&fake::ok(text));
        for line in text.lines() {
            let _ = backend.is_stage(line);
            let _ = backend.download_size(line);
            let _ = backend.download_part(line);
        }
    }
}

/// Output and configuration files of container runtimes.
fn runtimes(text: &str) {
    let _ = docker::can_validate(text);
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let _ = docker::flags(text);
    let _ = docker::validate(&words, Utf8Path::new("/etc/docker/daemon.json"));
    let _ = docker::mistyped(text);
    if let Ok(info) = docker::parse_info(text) {
        let _ = (info.is_lenient(), info.needs_cdi(), info.programs());
    }
    let _ = docker::check_config(text);
    let _ = docker::runtimes(text, &[]);
    let _ = docker::default_runtime(text, &[]);
    let _ = crictl::parse_info(text);
    let _ = ctr::cri_status(text);
    let _ = ctr::parse_running(text);
    let _ = toolkit::parse_config(text);
    let _ = toolkit::is_named_in(text);
    let _ = toolkit::needs_packages(text);
    if let Ok(spec) = cdi::parse(text) {
        let _ = (spec.device_nodes(), spec.host_paths(), spec.names().count());
    }
    let _ = containerd::parse_config(text);
    let _ = check_toml(text);
    let file = ConfigFile {
        path: "/etc/containerd/config.toml".into(),
        text: Some(text.to_owned()),
    };
    let _ = Version::parse(text);
    for version in [None, Some(Version(1, 7)), Some(Version(2, 1))] {
        let files = [file.clone()];
        let _ = containerd::faults::faults(&files, &files, version);
        let _ = containerd::faults::programs(&files, version);
        let wanted = layout::ContainerdRuntime {
            name: "nvidia",
            program: "/usr/bin/nvidia-container-runtime",
            kept: false,
            default: true,
            cdi: true,
            systemd_cgroup: Some(true),
            for_kubelet: true,
        };
        let _ = layout::settings(&files, version, &wanted);
    }
    let file = ConfigFile {
        path: "/etc/crio/crio.conf".into(),
        text: Some(text.to_owned()),
    };
    let files = [file];
    let _ = crio::programs(&files);
    let _ = crio::faults(&files, |_| true);
    let _ = crio::parse(text);
}

/// A daemon configuration file. The Docker and containerd keys are set, and the result must parse and contain them.
fn documents(text: &str) {
    if let Ok(mut document) = Document::parse(Format::Json, text) {
        let runtime = docker::DockerRuntime {
            name: "nvidia",
            program: "/usr/bin/nvidia-container-runtime",
            kept: false,
            default: true,
            cdi: true,
        };
        let wanted = docker::settings(&document, &runtime);
        if wanted.iter().all(|one| document.set(one).is_ok()) {
            let again = Document::parse(Format::Json, &document.text());
            let again = again.expect("the written file can be parsed");
            assert!(docker::settings(&again, &runtime).is_empty(), "{text}");
        }
    }
    if let Ok(document) = Document::parse(Format::Toml, text) {
        let again = Document::parse(Format::Toml, &document.text());
        assert!(
            again
                .expect("the parsed file can be parsed again")
                .is_like(&document)
        );
    }
}
