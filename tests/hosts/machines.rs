//! Runs `check --root` and `facts --root` on the machines of `machines/*.toml`, which are built as directory trees.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    sync::{Arc, Mutex},
    thread,
};

use camino::Utf8Path;
use gpu_bootstrap::{
    cli::{self, Console, Env},
    host::fake,
    model::secret::{Hiding, Secrets},
    report::UNWRAPPED,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    machine: Vec<Machine>,
}

/// See `machines/distributions.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    name: String,
    os: Option<String>,
    like: Option<String>,
    kernel: Option<String>,
    #[serde(default = "x86_64")]
    arch: String,
    #[serde(default)]
    pci: Vec<String>,
    loaded: Option<String>,
    library: Option<String>,
    suite: Option<String>,
    #[serde(default)]
    gone: usize,
    #[serde(default)]
    packages: Vec<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    links: BTreeMap<String, String>,
    #[serde(default)]
    prepared: bool,
    first: Option<String>,
    says: Option<String>,
    #[serde(default)]
    blind: bool,
    #[serde(default)]
    because: BTreeMap<String, String>,
    #[serde(default)]
    finds: BTreeMap<String, String>,
}

fn x86_64() -> String {
    "x86_64".to_owned()
}

/// The result of a command.
pub(super) struct Ran {
    pub(super) exit: u8,
    pub(super) out: String,
    pub(super) err: String,
}

fn put(root: &Utf8Path, path: &str, content: impl AsRef<[u8]>) {
    let at = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, content).unwrap();
}

fn link(root: &Utf8Path, path: &str, target: &str) {
    let at = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    symlink(target, at).unwrap();
}

impl Machine {
    fn build(&self, root: &Utf8Path) {
        if let Some(os) = &self.os {
            let (id, version) = os.split_once(' ').unwrap_or((os, ""));
            let mut text = format!("ID={id}\n");
            for (key, value) in [("VERSION_ID", version), ("ID_LIKE", self.like())] {
                if !value.is_empty() {
                    writeln!(text, "{key}=\"{value}\"").unwrap();
                }
            }
            put(root, "/etc/os-release", text);
        }
        if let Some(kernel) = &self.kernel {
            put(root, "/proc/sys/kernel/osrelease", format!("{kernel}\n"));
            put(root, "/proc/sys/kernel/arch", format!("{}\n", self.arch));
            put(root, "/proc/modules", self.modules());
            fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        }
        let functions = self.pci.iter().flat_map(|row| functions(row));
        for (at, function) in functions.enumerate() {
            let address = format!("0000:{:02x}:00.0", at + 1);
            function.put(root, &address);
            if at < self.gone {
                put(
                    root,
                    &format!("/sys/bus/pci/devices/{address}/config"),
                    [0xff; 64],
                );
            }
        }
        if let Some(version) = &self.loaded {
            put(root, "/sys/module/nvidia/version", format!("{version}\n"));
        }
        if let Some(version) = &self.library {
            for name in ["libnvidia-ml.so", "libcuda.so"] {
                let directory = format!("/usr/lib/{}-linux-gnu", self.arch);
                put(root, &format!("{directory}/{name}.{version}"), "");
                let target = format!("{name}.{version}");
                link(root, &format!("{directory}/{name}.1"), &target);
            }
        }
        const DATABASE: &str = "/var/lib/dpkg/status";
        if !(self.files.keys()).any(|path| path.starts_with(&format!("{DATABASE}/"))) {
            put(root, DATABASE, self.database());
        }
        if let Some(suite) = &self.suite {
            let source =
                format!("deb http://archive.example/ubuntu {suite} main restricted universe\n");
            put(root, "/etc/apt/sources.list", source);
        }
        for (path, content) in &self.files {
            put(root, path, content);
        }
        for (path, target) in &self.links {
            link(root, path, target);
        }
        if self.prepared {
            let journal = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/journals/complete.jsonl");
            let journal = fs::read(journal).unwrap();
            put(root, "/var/lib/gpu-bootstrap/journal.jsonl", journal);
        }
    }

    fn like(&self) -> &str {
        self.like.as_deref().unwrap_or_default()
    }

    fn modules(&self) -> &str {
        match self.loaded {
            Some(_) => "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
            None => "",
        }
    }

    fn database(&self) -> String {
        let mut text = String::new();
        for package in &self.packages {
            let (name, version) = package.split_once(' ').unwrap();
            writeln!(
                text,
                "Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: \
                 {version}\n"
            )
            .unwrap();
        }
        text
    }

    /// Describes the differences from the expected findings.
    fn evaluate(&self, ran: &Ran) -> Result<String, String> {
        let document: Value =
            serde_json::from_str(&ran.out).map_err(|_| format!("no document: {}", ran.err))?;
        let findings = document["findings"].as_array().unwrap();
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("-").to_owned();
        let of = |id: &str| findings.iter().find(|finding| finding["id"] == id);
        let first = findings.iter().find(|finding| {
            finding["status"] == "fail"
                && !findings.iter().any(|root| root["id"] == finding["because"])
        });
        let mut wrong = Vec::new();
        let exit = if first.is_some() || self.blind { 4 } else { 0 };
        if ran.exit != exit {
            wrong.push(format!("exit {}", ran.exit));
        }
        let id = first.map(|finding| text(finding, "id"));
        let why = first
            .map(|finding| text(finding, "why"))
            .unwrap_or_default();
        if id != self.first {
            wrong.push(format!("first is {id:?}: {why}"));
        }
        if let Some(says) = self
            .says
            .as_ref()
            .filter(|says| !why.contains(says.as_str()))
        {
            wrong.push(format!("`{why}` does not contain `{says}`"));
        }
        for (id, verdict) in &self.finds {
            let found = of(id).map(|finding| text(finding, "status"));
            if found.as_ref() != Some(verdict) {
                wrong.push(format!("{id} is {found:?}"));
            }
        }
        for (id, root) in &self.because {
            let found = of(id).map(|finding| text(finding, "because"));
            if found.as_ref() != Some(root) {
                wrong.push(format!("{id} because {found:?}"));
            }
        }
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        Ok(id.map_or_else(|| "-".to_owned(), |id| format!("{id}: {why}")))
    }
}

/// A PCI function.
struct Function {
    id: String,
    subsystem: String,
    class: String,
    driver: Option<String>,
}

/// Reads `COUNT x VENDOR:DEVICE+SUBSYSTEM/CLASS@DRIVER`.
fn functions(row: &str) -> Vec<Function> {
    let (count, row) = row.split_once(" x ").unwrap_or(("1", row));
    let (row, driver) = match row.split_once('@') {
        Some((row, driver)) => (row, Some(driver.to_owned())),
        None => (row, None),
    };
    // By default a 3D controller, like GPUs without display.
    let (id, class) = row.split_once('/').unwrap_or((row, "030200"));
    let (id, subsystem) = id.split_once('+').unwrap_or((id, "0000"));
    let one = || Function {
        id: id.to_owned(),
        subsystem: subsystem.to_owned(),
        class: class.to_owned(),
        driver: driver.clone(),
    };
    (0..count.parse().unwrap()).map(|_| one()).collect()
}

impl Function {
    fn put(&self, root: &Utf8Path, address: &str) {
        let directory = format!("/sys/bus/pci/devices/{address}");
        let (vendor, device) = self.id.split_once(':').unwrap();
        for (name, value) in [
            ("vendor", vendor),
            ("device", device),
            ("subsystem_vendor", vendor),
            ("subsystem_device", &self.subsystem),
            ("class", &self.class),
        ] {
            put(root, &format!("{directory}/{name}"), format!("0x{value}\n"));
        }
        if let Some(driver) = &self.driver {
            let target = format!("../../../bus/pci/drivers/{driver}");
            link(root, &format!("{directory}/driver"), &target);
        }
    }
}

pub(super) fn run(args: &[&str]) -> Ran {
    run_at(UNWRAPPED, args)
}

/// The width of a terminal, and the lines that the headline of `check` has at most.
const TERMINAL: usize = 80;
const HEADLINE: usize = 2;

/// Runs `check` on a terminal, and returns its headline if that has too many lines or is truncated.
pub(super) fn long_headline(check: &[&str]) -> Option<String> {
    let text = run_at(TERMINAL, check).out;
    // A blank line or indented text follows.
    let lines: Vec<&str> = (text.lines())
        .take_while(|line| !line.is_empty() && !line.starts_with(' '))
        .collect();
    (lines.len() > HEADLINE || lines.iter().any(|line| line.contains('…')))
        .then(|| lines.join("\n"))
}

fn run_at(width: usize, args: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (host, fakes) = fake::host();
    // Paths on the command line refer to the disk.
    for path in args
        .iter()
        .filter(|path| fs::metadata(path).is_ok_and(|file| file.is_file()))
    {
        let absolute = std::path::absolute(path).unwrap();
        let absolute = absolute.to_str().unwrap();
        fakes.files.put(absolute, fs::read(path).unwrap());
    }
    let http = host.http.clone();
    let secrets = Secrets::default();
    let env = Env {
        root: false,
        vars: BTreeMap::new(),
        secrets: secrets.clone(),
        exe: "/usr/local/bin/gpu-bootstrap".into(),
        command: args.join(" "),
        proxied: Arc::new(move |_, _| http.clone()),
    };
    let mut console = Console {
        out: Hiding::new(&mut out, &secrets),
        err: Hiding::new(&mut err, &secrets),
        out_terminal: false,
        err_terminal: false,
        colour: false,
        out_width: width,
        err_width: width,
        talk: Arc::new(|| Box::new(std::io::sink())),
        drawn: Default::default(),
    };
    let line: Vec<OsString> = (std::iter::once("gpu-bootstrap").chain(args.iter().copied()))
        .map(OsString::from)
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let exit = runtime
        .block_on(cli::run(line, &host, &env, &mut console))
        .code();
    drop(console);
    assert_eq!(fakes.exec.lines(), Vec::<String>::new());
    Ran {
        exit,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
    }
}

fn machines() -> Vec<Machine> {
    let tables = [
        include_str!("machines/distributions.toml"),
        include_str!("machines/hardware.toml"),
        include_str!("machines/drivers.toml"),
        include_str!("machines/surroundings.toml"),
        include_str!("machines/faults.toml"),
    ];
    (tables.iter())
        .flat_map(|text| toml::from_str::<Table>(text).unwrap().machine)
        .collect()
}

/// Runs a function on the tree of each machine, in two threads, and returns the results by machine name.
fn on_each(say: impl Fn(&Machine, &Utf8Path) -> String + Sync) -> BTreeMap<String, String> {
    let (todo, said) = (Mutex::new(machines()), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let next = todo.lock().unwrap().pop();
            let Some(machine) = next else { break };
            let directory = tempfile::tempdir().unwrap();
            let root = Utf8Path::from_path(directory.path()).unwrap();
            machine.build(root);
            let words = say(&machine, root);
            let twice = said.lock().unwrap().insert(machine.name.clone(), words);
            assert_eq!(twice, None, "{} is duplicated", machine.name);
        }
    };
    thread::scope(|threads| {
        threads.spawn(work);
        threads.spawn(work);
    });
    said.into_inner().unwrap()
}

/// The start of the first line, by kind.
const HEADS: [&str; 3] = ["fault", "risk", "difference"];

#[test]
fn audit_reports_the_first_problem_of_every_machine() {
    let wrong = Mutex::new(String::new());
    let said = on_each(|machine, root| {
        // The disk with the tree does not belong to the machine.
        let check = ["check", "--root", root.as_str(), "--ignore", "preflight"];
        let ran = run(&[&check[..], &["--format", "json"]].concat());
        let first = machine.evaluate(&ran).unwrap_or_else(|why| {
            writeln!(wrong.lock().unwrap(), "{}: {why}", machine.name).unwrap();
            String::new()
        });
        let text = run(&check);
        assert_eq!(text.exit, ran.exit, "{}", machine.name);
        let verdict = text.out.lines().next().unwrap_or_default();
        // The first line shows the first problem.
        match first.split_once(": ") {
            Some((id, why)) if (HEADS.iter()).any(|head| verdict == format!("{head}: {why}")) => {
                format!("{verdict} [{id}]")
            }
            _ => format!("{verdict} [{first}]"),
        }
    });
    assert!(said.len() >= 60, "{} machines", said.len());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong}");
    let lines: String = (said.iter())
        .map(|(name, first)| format!("{name:<36}  {first}\n"))
        .collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("machines", lines));
}

#[test]
fn headline_of_every_machine_is_complete_in_two_lines() {
    let long = on_each(|_, root| {
        let check = ["check", "--root", root.as_str(), "--ignore", "preflight"];
        long_headline(&check).unwrap_or_default()
    });
    let long: BTreeMap<_, _> = (long.into_iter())
        .filter(|(_, text)| !text.is_empty())
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn facts_list_unknown_values_on_every_machine() {
    on_each(|machine, root| {
        let ran = run(&["facts", "--root", root.as_str(), "--format", "json"]);
        assert_eq!(ran.exit, 0, "{}: {}", machine.name, ran.err);
        let facts: Value = serde_json::from_str(&ran.out).unwrap();
        let known = |fact: &str| {
            let unknown = facts["unknown"].as_array().unwrap();
            !unknown.iter().any(|line| line["fact"] == fact)
        };
        let name = &machine.name;
        assert_eq!(facts["os"].is_object(), known("os"), "{name}");
        let running = facts["kernel"]["running"].is_string();
        assert_eq!(running, known("kernel.running"), "{name}");
        if machine.kernel.is_some() {
            assert_eq!(facts["kernel"]["arch"], machine.arch, "{name}");
            assert!(running && known("gpus"), "{name}");
        }
        let text = run(&["facts", "--root", root.as_str()]);
        assert_eq!(text.exit, 0, "{name}");
        let none = text.out.contains("none on the PCI bus");
        assert!(!none || known("gpus"), "{name}:\n{}", text.out);
        String::new()
    });
}
