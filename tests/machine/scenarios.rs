//! Runs `tests/scenarios/*.toml`: a machine, command lines on it, and their expected results. Each scenario is a separate test,
//! declared in `main.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use gpu_bootstrap::host::fake::{self, Damage, Snapshot};
use gpu_bootstrap::model::pattern::matches;
use nix::errno::Errno;
use serde::Deserialize;
use serde_json::Value;
use toml::Table;

use crate::{
    archive,
    build::describe,
    dpkg, gpu,
    machine::{Machine, Ran},
    state::{Faults, lock, text},
    units,
};

/// A scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// One sentence about the behavior under test.
    pub about: String,
    /// One run of the scenario for each table: `{{KEY}}` in the file is replaced by the value of KEY.
    #[serde(default)]
    pub each: Vec<BTreeMap<String, String>>,
    /// The rows of the failure catalog that it covers.
    #[serde(default)]
    pub failures: Vec<u32>,
    /// Name of a base in `tests/machine/bases`.
    pub base: String,
    /// The differences from the base.
    #[serde(default)]
    pub machine: Table,
    /// The acts, in order.
    #[serde(rename = "then")]
    pub acts: Vec<Act>,
}

/// One act and its expected results.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Act {
    /// The arguments of a command line.
    pub run: Option<String>,
    /// Reboots the machine, and runs the command line of the resume unit.
    pub boot: bool,
    /// Files written before the act.
    pub write: BTreeMap<String, String>,
    /// Paths removed before the act.
    pub take: Vec<String>,
    /// Symlinks changed before the act: path and target.
    pub link: BTreeMap<String, String>,
    /// Units stopped before the act.
    pub stop: Vec<String>,
    /// The faults, starting with this act.
    pub faults: Option<Faults>,
    /// Packages purged before the act.
    pub purge: Vec<String>,
    /// Packages (`NAME` or `NAME=VERSION`, both patterns) removed from the downloaded lists before the act.
    pub forget: Vec<String>,
    /// The same, removed from the mirrors as well.
    pub withdraw: Vec<String>,
    /// Versions replaced by a newer one in the mirrors and in the downloaded lists before the act.
    pub supersede: BTreeMap<String, String>,
    /// The holder of the run lock, as written in the lock file.
    pub busy: Option<String>,
    /// Unreadable paths in this act.
    pub unreadable: Vec<String>,
    /// Kills the process at its nth change of the machine.
    pub kill_at: Option<u64>,

    /// Exit status.
    pub exit: Option<u8>,
    /// Outcomes by step. Other steps are not checked.
    pub outcomes: BTreeMap<String, String>,
    /// The allowed outcomes of all steps that are not in `outcomes`.
    pub others: Vec<String>,
    /// Status by finding.
    pub findings: BTreeMap<String, String>,
    /// Kinds of changes by step, in order.
    pub changes: BTreeMap<String, Vec<String>>,
    /// Texts that the reason of a step (or finding) contains.
    pub why: BTreeMap<String, Vec<String>>,
    /// Texts that the hint of a step, or the remedy of a finding, contains.
    pub hint: BTreeMap<String, Vec<String>>,
    /// Texts that standard error contains.
    pub stderr: Vec<String>,
    /// Texts that standard output contains.
    pub stdout: Vec<String>,
    /// Texts that standard output does not contain.
    pub not_stdout: Vec<String>,
    /// Texts that neither the output nor a journal record contains.
    pub silent_about: Vec<String>,
    /// The machine has no relevant change in this act.
    pub nothing_changed: bool,
    /// The machine has no relevant change since before the given act (from 0).
    pub as_before: Option<usize>,
    /// Package tools were started only for queries.
    pub no_package_work: bool,
    /// How often a program was started with these arguments.
    pub ran: BTreeMap<String, usize>,
    /// Texts that files contain afterwards. An empty list only checks that the file exists.
    pub files: BTreeMap<String, Vec<String>>,
    /// Paths that do not exist afterwards.
    pub absent: Vec<String>,
    /// Versions of packages afterwards. Names and versions are patterns. An empty text means that no such package is installed.
    pub packages: BTreeMap<String, String>,
    /// Packages that are on hold afterwards.
    pub held: Vec<String>,
    /// Units by `enabled`, `active`, … afterwards.
    pub units: BTreeMap<String, String>,
    /// Whether gpu-bootstrap requested a reboot.
    pub reboot_asked: Option<bool>,
    /// Whether the resume unit exists.
    pub resume_unit: Option<bool>,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// The names of all scenarios, from their file names.
fn names() -> Vec<String> {
    let mut found: Vec<String> = std::fs::read_dir(directory())
        .expect("the directory of scenarios")
        .map(|entry| entry.expect("a file").file_name().into_string())
        .filter_map(|name| Some(name.expect("a name").strip_suffix(".toml")?.to_owned()))
        .collect();
    found.sort();
    found
}

/// Reads a scenario, once for each table of `each`.
fn read(name: &str) -> Vec<Scenario> {
    let path = directory().join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).expect("a scenario");
    let parsed = |text: &str| -> Scenario {
        toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let scenario = parsed(&text);
    if scenario.each.is_empty() {
        return vec![scenario];
    }
    let filled = |values: &BTreeMap<String, String>| {
        let mut text = text.clone();
        for (key, value) in values {
            let placeholder = format!("{{{{{key}}}}}");
            assert!(text.contains(&placeholder), "{name} ignores `{key}`");
            text = text.replace(&placeholder, value);
        }
        assert!(!text.contains("{{"), "{name}: no value for a placeholder");
        parsed(&text)
    };
    scenario.each.iter().map(filled).collect()
}

/// Fails if a scenario does not have its expected results. `cargo test --test machine scenario:: -- --show-output` shows the
/// time of each scenario.
#[expect(
    clippy::print_stdout,
    reason = "the test harness captures it unless `--show-output` is given"
)]
pub fn run([path]: [&Path; 1]) {
    let name = path.file_stem().and_then(|name| name.to_str());
    let name = name.expect("the name of a scenario");
    let start = std::time::Instant::now();
    let wrong = in_parallel(&read(name), |scenario| {
        let wrong = play(scenario);
        match wrong.is_empty() {
            true => wrong,
            false => vec![format!("{}\n  {}", scenario.about, wrong.join("\n  "))],
        }
    });
    println!("{name}: {:.2} s", start.elapsed().as_secs_f32());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The differences from the expected results.
type Wrong = Vec<String>;

fn play(scenario: &Scenario) -> Wrong {
    let machine = Machine::new(describe(&scenario.base, scenario.machine.clone()));
    let mut before: Vec<Snapshot> = Vec::new();
    let mut wrong = Wrong::new();
    for (at, act) in scenario.acts.iter().enumerate() {
        before.push(machine.snapshot());
        let ran = act.play(&machine);
        let mut found = Wrong::new();
        act.evaluate(&machine, ran.as_ref(), &before, &mut found);
        if !found.is_empty() {
            let what = act.run.clone().unwrap_or_else(|| "boot".to_owned());
            wrong.extend(
                found
                    .into_iter()
                    .map(|line| format!("act {at} (`{what}`): {line}")),
            );
            if let Some(ran) = &ran {
                wrong.push(told(ran));
            }
            break;
        }
    }
    wrong
}

/// Limits the output to the first lines and the number of the rest.
fn first(lines: &[String]) -> String {
    const SHOWN: usize = 15;
    let more = lines.len().saturating_sub(SHOWN);
    let mut text = lines[..lines.len() - more].join("\n    ");
    if more > 0 {
        text.push_str(&format!("\n    and {more} more"));
    }
    text
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A short form of a run's output.
pub fn told(ran: &Ran) -> String {
    let document: Value = serde_json::from_str(&ran.out).unwrap_or(Value::Null);
    let mut lines = vec![format!("exit {}", ran.exit)];
    for entry in ["steps", "findings"]
        .iter()
        .flat_map(|key| document[key].as_array())
        .flatten()
    {
        let word = entry
            .get("outcome")
            .or_else(|| entry.get("status"))
            .unwrap_or(&Value::Null);
        lines.push(format!(
            "{} {word}: {} {}",
            entry["id"], entry["why"], entry["causes"]
        ));
    }
    if let Some(notes) = document["notes"].as_array() {
        lines.extend(notes.iter().map(|note| format!("note: {note}")));
    }
    if lines.len() == 1 {
        lines.push(format!("stdout: {}", ran.out));
        lines.push(format!("stderr: {}", ran.err));
    }
    lines.join("\n    ")
}

impl Act {
    fn play(&self, machine: &Machine) -> Option<Ran> {
        let files = &machine.fakes.files;
        if let Some(faults) = &self.faults {
            if let Some(other) = &faults.package_lock {
                gpu::show_lock(files, other.pid, &other.program);
            } else {
                files.put("/proc/locks", "");
            }
            lock(&machine.state).faults = faults.clone();
        }
        for (path, content) in &self.write {
            files.put(path, content.clone());
        }
        for path in &self.take {
            files.take(path);
        }
        for (path, target) in &self.link {
            files.take(path);
            files.put_link(path, target);
        }
        for unit in &self.stop {
            units::stop(files, unit);
        }
        for name in &self.purge {
            dpkg::remove(files, &lock(&machine.state), name, true);
        }
        for spec in &self.forget {
            archive::forget(files, spec);
        }
        for spec in &self.withdraw {
            lock(&machine.state).archive.withdraw(files, spec);
        }
        for (old, new) in &self.supersede {
            lock(&machine.state).archive.supersede(files, old, new);
        }
        if let Some(holder) = &self.busy {
            files.hold_lock("/run/gpu-bootstrap/lock", holder);
        }
        let words: Option<Vec<String>> = if self.boot {
            machine.reboot();
            machine.resume_command()
        } else {
            self.run.as_ref().map(|line| words(line))
        };
        let mut words = words?;
        // The expectations use the JSON document, unless the scenario selects another format.
        let documents = ["check", "plan", "install", "uninstall"];
        if documents.contains(&words[0].as_str()) && !words.iter().any(|word| word == "--format") {
            words.extend(["--format".to_owned(), "json".to_owned()]);
        }
        if let Some(n) = self.kill_at {
            machine.stop_at(n);
        }
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        for path in &self.unreadable {
            files.damage(path, Damage::Reads, Errno::EIO);
        }
        let ran = machine.run(&args);
        if !self.unreadable.is_empty() {
            files.repair();
        }
        assert!(
            self.kill_at.is_none() || ran.exit != 0,
            "the run finished before the kill"
        );
        machine.go_on();
        Some(ran)
    }

    fn evaluate(
        &self,
        machine: &Machine,
        ran: Option<&Ran>,
        before: &[Snapshot],
        wrong: &mut Wrong,
    ) {
        let now = machine.snapshot();
        if let Some(ran) = ran {
            self.evaluate_run(ran, wrong);
        } else if self.exit.is_some() {
            wrong.push("nothing ran".to_owned());
        }
        for (asked, at) in [
            (self.nothing_changed, before.len() - 1),
            (self.as_before.is_some(), self.as_before.unwrap_or_default()),
        ] {
            let differences = fake::diff(&before[at], &now);
            if asked && !differences.is_empty() {
                wrong.push(format!(
                    "the machine has changed:\n    {}",
                    first(&differences)
                ));
            }
        }
        for (part, path) in self.silent_about.iter().flat_map(|part| {
            [
                "/var/lib/gpu-bootstrap/journal.jsonl",
                "/var/lib/gpu-bootstrap/receipt.json",
            ]
            .map(|path| (part, path))
        }) {
            if text(&machine.fakes.files, path).is_some_and(|text| text.contains(part)) {
                wrong.push(format!("`{path}` says `{part}`"));
            }
        }
        self.evaluate_machine(machine, wrong);
    }

    fn evaluate_run(&self, ran: &Ran, wrong: &mut Wrong) {
        if let Some(exit) = self.exit
            && exit != ran.exit
        {
            wrong.push(format!("exit {} instead of {exit}", ran.exit));
        }
        if ran.out.contains("the run panicked") {
            wrong.push("panic: an unsupported operation of a fake, or a bug".to_owned());
        }
        let document: Value = serde_json::from_str(&ran.out).unwrap_or(Value::Null);
        self.evaluate_steps(&document, wrong);
        // Human-readable text is wrapped, so a line end counts as a space.
        let (out, err) = (on_one_line(&ran.out), on_one_line(&ran.err));
        for part in &self.stderr {
            if !err.contains(&on_one_line(part)) {
                wrong.push(format!("standard error does not contain `{part}`"));
            }
        }
        for part in &self.stdout {
            if !out.contains(&on_one_line(part)) {
                wrong.push(format!("standard output does not contain `{part}`"));
            }
        }
        for part in &self.not_stdout {
            if out.contains(&on_one_line(part)) {
                wrong.push(format!("standard output contains `{part}`"));
            }
        }
        for part in &self.silent_about {
            if out.contains(part) || err.contains(part) {
                wrong.push(format!("it says `{part}`"));
            }
        }
        let lines: Vec<String> = ran.commands.iter().map(|cmd| cmd.line()).collect();
        for (words, times) in &self.ran {
            let found = lines
                .iter()
                .filter(|line| {
                    words
                        .split(' ')
                        .all(|word| line.split(' ').any(|other| other == word))
                })
                .count();
            if found != *times {
                wrong.push(format!(
                    "`{words}` ran {found} times instead of {times}: {lines:#?}"
                ));
            }
        }
        if self.no_package_work {
            wrong.extend(
                package_work(ran)
                    .into_iter()
                    .map(|line| format!("it ran `{line}`")),
            );
        }
    }

    fn evaluate_steps(&self, document: &Value, wrong: &mut Wrong) {
        let entries = |key: &str| document[key].as_array().cloned().unwrap_or_default();
        let (steps, findings) = (entries("steps"), entries("findings"));
        let find = |id: &str| {
            steps
                .iter()
                .chain(&findings)
                .find(|entry| entry["id"] == *id)
                .cloned()
        };
        for (expected, key) in [(&self.outcomes, "outcome"), (&self.findings, "status")] {
            for (id, word) in expected {
                match find(id) {
                    None => wrong.push(format!("`{id}` is missing")),
                    Some(entry) if entry[key] != **word => wrong.push(format!(
                        "`{id}` is {} instead of {word}: {}",
                        entry[key], entry["why"]
                    )),
                    Some(_) => {}
                }
            }
        }
        if !self.others.is_empty() {
            for entry in steps.iter().chain(&findings) {
                let id = entry["id"].as_str().unwrap_or_default();
                let word = entry.get("outcome").or_else(|| entry.get("status"));
                let word = word.and_then(Value::as_str).unwrap_or_default();
                let named = self.outcomes.contains_key(id) || self.findings.contains_key(id);
                if !named && !self.others.iter().any(|other| other == word) {
                    wrong.push(format!("`{id}` is {word}: {}", entry["why"]));
                }
            }
        }
        for (id, kinds) in &self.changes {
            let found: Vec<String> = find(id)
                .and_then(|step| step["changes"].as_array().cloned())
                .unwrap_or_default()
                .iter()
                .map(|change| change["kind"].as_str().unwrap_or_default().to_owned())
                .collect();
            if found != *kinds {
                wrong.push(format!(
                    "the changes of `{id}` are {found:?} instead of {kinds:?}"
                ));
            }
        }
        for (expected, keys) in [
            (&self.why, ["why", "causes"]),
            (&self.hint, ["hint", "remedy"]),
        ] {
            for (id, parts) in expected {
                let said = find(id)
                    .map(|entry| {
                        let said = |key: &str| match entry.get(key) {
                            Some(Value::String(text)) => text.clone(),
                            Some(other) => other.to_string(),
                            None => String::new(),
                        };
                        keys.map(said).join(" ")
                    })
                    .unwrap_or_default();
                for part in parts {
                    if !said.contains(part) {
                        wrong.push(format!("`{id}` does not contain `{part}`: {said}"));
                    }
                }
            }
        }
    }

    fn evaluate_machine(&self, machine: &Machine, wrong: &mut Wrong) {
        let files = &machine.fakes.files;
        for (path, parts) in &self.files {
            match text(files, path) {
                None => wrong.push(format!("{path} does not exist")),
                Some(content) => wrong.extend(
                    parts
                        .iter()
                        .filter(|part| !content.contains(*part))
                        .map(|part| format!("{path} does not contain `{part}`: {content}")),
                ),
            }
        }
        for path in &self.absent {
            if crate::state::exists(files, path) {
                wrong.push(format!("{path} exists"));
            }
        }
        let database = dpkg::read(files);
        for (name, version) in &self.packages {
            let mut found: Vec<&str> = (database.iter())
                .filter(|(known, entry)| matches(name, known) && entry.state == "installed")
                .map(|(_, entry)| entry.version.as_str())
                .collect();
            if found.is_empty() {
                found.push("");
            }
            for found in found {
                // `*` matches any version, but a package that is not installed has none.
                if found.is_empty() != version.is_empty() || !matches(version, found) {
                    wrong.push(format!("{name} is `{found}` instead of `{version}`"));
                }
            }
        }
        for name in &self.held {
            if database.get(name).is_none_or(|entry| entry.want != "hold") {
                wrong.push(format!("{name} is not held"));
            }
        }
        for (unit, state) in &self.units {
            let enabled = if units::enabled(files, unit) {
                "enabled"
            } else {
                "disabled"
            };
            let active = if units::active(files, unit) {
                "active"
            } else {
                "inactive"
            };
            if *state != format!("{enabled} {active}") {
                wrong.push(format!("{unit} is {enabled} {active} instead of {state}"));
            }
        }
        if let Some(asked) = self.reboot_asked
            && asked != machine.reboot_asked()
        {
            wrong.push(format!("reboot requested: {}", !asked));
        }
        if let Some(there) = self.resume_unit
            && there != machine.resume_command().is_some()
        {
            wrong.push(format!("the resume unit exists: {}", !there));
        }
    }
}

/// Starts of package tools, except for queries.
pub fn package_work(ran: &Ran) -> Vec<String> {
    ran.commands
        .iter()
        .filter(|cmd| {
            matches!(
                cmd.program.as_str(),
                "apt-get" | "dpkg" | "apt-mark" | "dnf"
            )
        })
        .filter(|cmd| crate::machine::changes(cmd))
        .map(|cmd| cmd.line())
        .collect()
}

/// Splits a command line into words. Single quotes preserve blanks.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            found.push(part.to_owned());
        } else {
            found.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    found
}

/// Runs work for each item on all CPUs, and returns the non-empty results.
pub fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) -> Wrong + Sync) -> Wrong {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let wrong = std::sync::Mutex::new(Wrong::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) =
                    items.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let found = catch_unwind(AssertUnwindSafe(|| work(item)))
                        .unwrap_or_else(|panic| vec![words_of(&*panic)]);
                    wrong.lock().expect("no panic here").extend(found);
                }
            });
        }
    });
    wrong.into_inner().expect("no panic here")
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("panicked: {}", text.unwrap_or_default())
}

/// The tests are listed when `main.rs` is compiled, and cargo does not compile it again for a new file.
#[test]
fn every_scenario_has_a_test() {
    let mut tests = std::process::Command::new(std::env::current_exe().expect("this program"));
    let listed = tests.args(["--list", "scenario::"]).output();
    let listed = String::from_utf8(listed.expect("the list of tests").stdout).expect("UTF-8");
    let tests: BTreeSet<String> = (listed.lines())
        .filter_map(|line| line.strip_prefix("scenario::")?.strip_suffix(": test"))
        .map(str::to_owned)
        .collect();
    let names = names().into_iter();
    let expected: BTreeSet<String> = names.map(|name| name.replace('-', "_")).collect();
    assert_eq!(tests, expected, "run `touch tests/machine/main.rs`");
}

#[test]
fn every_cataloged_failure_has_a_scenario() {
    let scenarios: Vec<Scenario> = names().iter().flat_map(|name| read(name)).collect();
    assert!(scenarios.len() >= 40, "{} scenarios", scenarios.len());
    // These rows need a real cluster or belong to a later version: containers that lose GPUs (9), the kubelet (18, 22).
    let later = [9, 18, 22];
    for row in (1..=25).filter(|row| !later.contains(row)) {
        let covered = (scenarios.iter()).any(|scenario| scenario.failures.contains(&row));
        assert!(covered, "no scenario for failure {row}");
    }
}
