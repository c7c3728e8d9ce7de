//! `cases/*.toml`, read as one table: the machine of each case, its steps, and what must hold
//! afterwards.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cluster::{Behaviour, Wish};
use crate::net::Line;
use crate::serve::Serving;
use crate::tables::{MachineSpec, Machines};

/// The configuration that `--on` replaces by the one of the other machine.
const DEFAULT_CONFIG: &str = "debian-12.toml";

/// Mebibytes of a disk that no case fills; only written data takes space.
const ROOMY: u64 = 16 << 10;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    case: Vec<Case>,
}

/// Whether DKMS compiles the driver's module in a case. If not, it takes modules that the bed
/// compiled before, with the same DKMS for the same kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compile {
    #[default]
    Never,
    /// In every run but the quick one.
    WithTime,
    Always,
}

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    pub name: String,
    pub about: String,
    /// A machine of `machines.toml`.
    pub machine: String,
    /// Machines of the other family on which the same case runs, too, under the name
    /// `NAME-MACHINE`.
    #[serde(default)]
    pub also_on: Vec<String>,
    /// A template in `configs/`, put into the machine as `/etc/gpu-bootstrap/config.toml`.
    pub config: Option<String>,
    /// Whether DKMS compiles the driver's module in it.
    #[serde(default)]
    pub compile: Compile,
    /// A file of the repository that cloud-init gets as user-data, on a NoCloud seed disk. Without
    /// it the machine has no data source, and cloud-init does nothing.
    pub user_data: Option<PathBuf>,
    /// What a person who uses the file would write into it: the text there = the text in its place.
    /// An empty text removes the whole line.
    #[serde(default)]
    pub user_data_values: BTreeMap<String, String>,
    /// A control plane of Kubernetes beside the machine.
    pub cluster: Option<Wish>,
    /// Mebibytes of a container's disk of its own. Without this key a container has one, of
    /// [`ROOMY`], only if a step cuts the power.
    pub disk_mib: Option<u64>,
    /// About how many seconds it takes, if a minute or more: the longest case starts first.
    #[serde(default)]
    pub takes: u64,
    /// Runs in `make test`; the others run in `make test-vm` only.
    #[serde(default = "yes")]
    pub quick: bool,
    /// Shell commands that break the machine before the first step; each must succeed.
    #[serde(default)]
    pub before: Vec<String>,
    /// The steps, in order.
    pub run: Vec<Step>,
    /// Shell commands that run after the steps; each must succeed.
    #[serde(default)]
    pub after: Vec<String>,
    /// Shell commands that run after `uninstall`. With this key the case ends with `uninstall`,
    /// which must exit with 0, and the machine must be as it was after `before`.
    pub after_uninstall: Option<Vec<String>>,
    /// Lines of the comparison that contain one of these are ignored; each has a reason.
    #[serde(default)]
    pub except: Vec<Exception>,
}

/// A difference that may remain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    pub line: String,
    /// For the reader of the table.
    #[serde(rename = "why")]
    pub _why: String,
}

/// One step: a command, a boot, a comparison, or a change of the surroundings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Step {
    pub title: String,
    /// A shell script that runs in the machine.
    pub run: Option<String>,
    /// Starts `run` as a unit of this name that continues beside the next steps.
    pub background: Option<String>,
    /// Waits until that unit prints this text.
    pub until_said: Option<String>,
    /// Waits until that unit ends: its output and exit code are those of this step.
    pub join: Option<String>,
    /// Waits until the product's run that resumes after a boot has ended: its output and exit code
    /// are those of this step.
    #[serde(default)]
    pub resumed: bool,
    /// The expected exit code.
    #[serde(default)]
    pub exit: i32,
    /// Texts that its standard output must contain.
    #[serde(default)]
    pub stdout: Vec<String>,
    /// Texts that its standard error must contain.
    #[serde(default)]
    pub stderr: Vec<String>,
    /// JSON pointers into its standard output, with the expected values.
    #[serde(default)]
    pub json: BTreeMap<String, serde_json::Value>,
    /// JSON pointers whose value must be `null`.
    #[serde(default)]
    pub null: Vec<String>,
    /// JSON pointers to lists, with the expected number of elements.
    #[serde(default)]
    pub count: BTreeMap<String, usize>,
    /// Exactly these findings of `check` fail, in any order.
    pub fails: Option<Vec<String>>,
    /// At least these findings of `check` fail.
    #[serde(default)]
    pub fails_with: Vec<String>,
    /// Saves its standard output, a document of `plan`, under this name.
    pub save: Option<String>,
    /// Its standard output is the events of an `install` that did exactly what this saved plan
    /// says.
    pub did: Option<String>,
    /// Its standard output is a document of `plan` without any change.
    #[serde(default)]
    pub did_nothing: bool,
    /// Prints its output while it runs.
    #[serde(default)]
    pub show: bool,
    /// It may start package tools for queries only.
    #[serde(default)]
    pub only_queries: bool,
    /// Seconds after which the step is ended and the case fails, if no other case runs at the same
    /// time.
    #[serde(default = "ten_minutes")]
    pub deadline: u64,
    /// Seconds after which the step fails, however many cases run: for steps that test a duration.
    pub within: Option<u64>,
    /// Powers the machine off and boots it again, in this state.
    pub boot: Option<Boot>,
    /// How the repository server behaves from now on.
    pub server: Option<Serving>,
    /// The state of the machine's connection to the outside from now on.
    pub line: Option<Line>,
    /// How the control plane behaves from now on.
    pub control_plane: Option<Behaviour>,
    /// Waits until this script succeeds, across reboots that the machine makes by itself. A script
    /// that calls `exit` gives up.
    pub until: Option<String>,
    /// The number of such reboots that must happen meanwhile.
    #[serde(default)]
    pub reboots: u32,
    /// Waits in the same way, then cuts the power.
    pub cut_when: Option<String>,
    /// Cuts the power during the next boot, when the console prints this text.
    pub cut_at_console: Option<String>,
    /// Runs this command repeatedly. While it runs, the power is cut after a record of the journal that no run
    /// before has written, until a run ends by itself with status 0.
    pub cut_at_records: Option<String>,
    /// One such cut comes after about this many new records. With 1 each new record is cut at.
    #[serde(default = "one")]
    pub every: u32,
    /// Compares the machine with its state after `before`; the two must be equal.
    #[serde(default)]
    pub unchanged: bool,
}

impl Case {
    /// Mebibytes of the disk of its own that its container has.
    pub fn disk(&self) -> Option<u64> {
        (self.disk_mib).or_else(|| self.run.iter().any(Step::cuts).then_some(ROOMY))
    }
}

impl Step {
    /// Whether it cuts the power.
    fn cuts(&self) -> bool {
        self.cut_when.is_some() || self.cut_at_console.is_some() || self.cut_at_records.is_some()
    }

    /// Whether a check needs its standard output or standard error.
    pub fn is_read(&self) -> bool {
        !(self.stdout.is_empty() && self.stderr.is_empty())
            || self.did.is_some()
            || self.reads_document()
    }

    fn reads_document(&self) -> bool {
        let pointers = [self.json.len(), self.null.len(), self.count.len()];
        pointers.iter().any(|count| *count > 0)
            || !self.fails_with.is_empty()
            || self.fails.is_some()
            || self.save.is_some()
            || self.did_nothing
    }

    /// The keys of this step that its kind ignores. They are errors, because an ignored expectation
    /// would always hold.
    fn ignored(&self) -> Vec<&'static str> {
        let run = self.run.is_some() || self.join.is_some() || self.resumed;
        let waits = self.until.is_some() || self.cuts();
        [
            ("`exit`", self.exit != 0, run),
            ("`stdout`", !self.stdout.is_empty(), run),
            ("`stderr`", !self.stderr.is_empty(), run),
            ("`did`", self.did.is_some(), run),
            // The events of an install are not one document.
            (
                "its expectations of a document (`json`, `null`, `count`, `fails`, `fails-with`, `save`, `did-nothing`)",
                self.reads_document(),
                run && self.did.is_none(),
            ),
            ("`show`", self.show, run),
            // Only the start of a script in the background is watched.
            ("`only-queries`", self.only_queries, run && self.background.is_none()),
            (
                "`deadline`",
                self.deadline != ten_minutes(),
                (run || waits) && self.within.is_none(),
            ),
            ("`within`", self.within.is_some(), run || waits),
            ("`every`", self.every != one(), self.cut_at_records.is_some()),
            (
                "`reboots`",
                self.reboots != 0,
                self.until.is_some() || self.cut_when.is_some(),
            ),
        ]
        .into_iter()
        .filter(|(_, there, meant)| *there && !meant)
        .map(|(key, ..)| key)
        .collect()
    }
}

/// How a machine boots.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Boot {
    /// Without any change.
    Plain,
    /// With the installed driver simulated as loaded.
    SimulatedDriver,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn ten_minutes() -> u64 {
    600
}

/// Reads the table: every file of the directory, in the order of their names.
pub fn load(dir: &Path) -> Result<Vec<Case>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot read {}", dir.display()))?;
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "toml"));
    files.sort();
    let mut cases: Vec<Case> = Vec::new();
    for file in &files {
        for case in read(file)?.into_iter().flat_map(spread) {
            if cases.iter().any(|other| other.name == case.name) {
                bail!("{}: case `{}` is defined twice", file.display(), case.name);
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// A case, and the same case on each other machine that it names.
fn spread(case: Case) -> Vec<Case> {
    let others: Vec<Case> = (case.also_on.iter())
        .map(|machine| Case {
            name: format!("{}-{machine}", case.name),
            machine: machine.clone(),
            ..case.clone()
        })
        .collect();
    let mut all = vec![case];
    all.extend(others);
    all
}

/// Refuses cases that name a machine, a root filesystem or a configuration that does not exist.
pub fn fit(cases: &[Case], machines: &Machines, configs: &Path) -> Result<()> {
    for case in cases {
        let spec = (machines.machine(&case.machine))
            .with_context(|| format!("case `{}` is not valid", case.name))?;
        if let Some(name) = &case.config
            && !configs.join(&spec.configs).join(name).is_file()
        {
            bail!(
                "case `{}`: there is no `{name}` in configs/{}",
                case.name,
                spec.configs
            );
        }
        if !spec.kind.is_emulated() && case.run.iter().any(|step| step.cut_at_console.is_some()) {
            bail!(
                "case `{}`: the console of a container says nothing; `cut-when` can cut during its boot, too",
                case.name
            );
        }
        if !machines.has_root(spec) {
            bail!(
                "machine `{}`: machines.toml has no root `{}`, or no kernel for it",
                case.machine,
                spec.root
            );
        }
    }
    Ok(())
}

/// Turns off what the quick run leaves out of each case.
pub fn make_quick(cases: &mut [Case]) {
    for case in cases {
        if case.compile == Compile::WithTime {
            case.compile = Compile::Never;
        }
    }
}

/// The same cases, run on another machine than their own.
pub fn moved(mut cases: Vec<Case>, machine: &MachineSpec) -> Vec<Case> {
    for case in &mut cases {
        case.machine.clone_from(&machine.key);
        if machine.config.is_some() && case.config.as_deref() == Some(DEFAULT_CONFIG) {
            case.config.clone_from(&machine.config);
        }
    }
    cases
}

fn read(file: &Path) -> Result<Vec<Case>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let table: Table =
        toml::from_str(&text).with_context(|| format!("{} is not valid", file.display()))?;
    for case in &table.case {
        check(case)
            .with_context(|| format!("{}: case `{}` is not valid", file.display(), case.name))?;
    }
    Ok(table.case)
}

fn check(case: &Case) -> Result<()> {
    if case.run.iter().any(|step| step.every == 0) {
        bail!("`every` counts from 1");
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    // The name becomes a host name and a directory.
    if case.name.is_empty() || case.name.len() > 40 || !case.name.chars().all(plain) {
        bail!("a name has at most 40 small letters, digits and hyphens");
    }
    for step in &case.run {
        let kinds = [
            step.run.is_some(),
            step.join.is_some(),
            step.resumed,
            step.boot.is_some(),
            step.server.is_some(),
            step.line.is_some(),
            step.control_plane.is_some(),
            step.until.is_some(),
            step.cut_when.is_some(),
            step.cut_at_console.is_some(),
            step.cut_at_records.is_some(),
            step.unchanged,
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            bail!(
                "step `{}` needs one of `run`, `join`, `resumed`, `boot`, `server`, `line`, \
                 `control-plane`, `until`, `cut-when`, `cut-at-console`, `cut-at-records` and `unchanged`",
                step.title
            );
        }
        if step.background.is_some() && step.run.is_none()
            || step.until_said.is_some() && step.background.is_none()
        {
            bail!(
                "step `{}`: `background` belongs to `run`, `until-said` to `background`",
                step.title
            );
        }
        if step.control_plane.is_some() && case.cluster.is_none() {
            bail!("step `{}`: the case has no `cluster`", step.title);
        }
        let ignored = step.ignored();
        if !ignored.is_empty() {
            bail!("step `{}` would ignore {}", step.title, ignored.join(", "));
        }
        if let Some(serving) = &step.server {
            serving
                .check()
                .with_context(|| format!("step `{}`", step.title))?;
        }
    }
    Ok(())
}

/// Replaces `{{name}}` by its value. A name without a value is an error.
pub fn fill<K>(template: &str, values: &BTreeMap<K, String>) -> Result<String>
where
    K: Borrow<str> + Ord,
{
    let mut text = String::new();
    let mut rest = template;
    while let Some((left, right)) = rest.split_once("{{") {
        let (name, right) = right.split_once("}}").context("`{{` without `}}`")?;
        let value = values
            .get(name.trim())
            .with_context(|| format!("no value for `{{{{{name}}}}}`"))?;
        text.push_str(left);
        text.push_str(value);
        rest = right;
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_repository_is_valid() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let machines = Machines::load(&here.join("machines.toml")).unwrap();
        let cases = load(&here.join("cases")).unwrap();
        assert!(!cases.is_empty());
        fit(&cases, &machines, &here.join("configs")).unwrap();
        type Break = fn(&mut Case);
        for (wrong, word) in [
            ((|case| case.machine = "h1000".into()) as Break, "h1000"),
            (
                |case| case.config = Some("debian-21.toml".into()),
                "debian-21",
            ),
        ] {
            let mut cases = cases.clone();
            wrong(&mut cases[0]);
            let error = fit(&cases, &machines, &here.join("configs")).unwrap_err();
            assert!(format!("{error:#}").contains(word), "{error:#}");
        }
    }

    #[test]
    fn a_case_on_another_machine_takes_its_configuration() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let machines = Machines::load(&here.join("machines.toml")).unwrap();
        let cases = load(&here.join("cases")).unwrap();
        let find = |cases: &[Case]| cases.iter().find(|case| case.name == "main-job").cloned();
        let ubuntu = machines.machine("ubuntu-24-04").unwrap();
        let moved = find(&moved(cases, ubuntu)).unwrap();
        assert_eq!(moved.machine, "ubuntu-24-04");
        assert_eq!(moved.config.as_deref(), Some("ubuntu-24-04.toml"));
    }

    #[test]
    fn a_case_on_several_machines_is_a_case_on_each() {
        let dir = tempfile::tempdir().unwrap();
        let case = "[[case]]\nname = \"one\"\nabout = \"\"\nmachine = \"m\"\nalso-on = [\"n\"]\nrun = []\n";
        fs::write(dir.path().join("a.toml"), case).unwrap();
        let cases = load(dir.path()).unwrap();
        let named: Vec<_> = (cases.iter())
            .map(|case| (case.name.as_str(), case.machine.as_str()))
            .collect();
        assert_eq!(named, [("one", "m"), ("one-n", "n")]);
    }

    #[test]
    fn a_container_whose_power_is_cut_has_a_disk_of_its_own() {
        let disk = |text: &str| {
            let head = "name = 'one'\nabout = ''\nmachine = 'm'\n";
            let case: Case = toml::from_str(&format!("{head}{text}")).unwrap();
            case.disk()
        };
        assert_eq!(disk("run = [{ title = 't', run = '' }]"), None);
        assert_eq!(disk("run = [{ title = 't', cut-when = '' }]"), Some(ROOMY));
        assert_eq!(disk("disk-mib = 9\nrun = []"), Some(9));
    }

    #[test]
    fn a_case_that_is_defined_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let case = "[[case]]\nname = \"one\"\nabout = \"\"\nmachine = \"m\"\nrun = []\n";
        for name in ["a.toml", "b.toml"] {
            fs::write(dir.path().join(name), case).unwrap();
        }
        let text = load(dir.path()).unwrap_err().to_string();
        assert!(text.contains("b.toml") && text.contains("one"), "{text}");
    }

    #[test]
    fn a_key_that_its_step_would_ignore_is_refused() {
        let ignored = |text: &str| {
            let step: Step = toml::from_str(&format!("title = 't'\n{text}")).unwrap();
            step.ignored().join(" ")
        };
        for text in [
            "run = ''\nexit = 3\nstdout = ['x']\njson = { '/a' = 1 }\nshow = true\ndeadline = 9",
            "run = ''\ndid = 'plan'\nstdout = ['x']",
            "until = ''\nreboots = 1\ndeadline = 9",
            "cut-at-records = ''\nevery = 2\ndeadline = 9",
            "resumed = true\nexit = 3\ndeadline = 9",
            "join = 'u'\nwithin = 9",
            "join = 'u'\nstdout = ['x']\nonly-queries = true",
            "boot = 'plain'",
        ] {
            assert_eq!(ignored(text), "", "{text}");
        }
        for (text, key) in [
            ("until = ''\nstdout = ['x']", "`stdout`"),
            ("boot = 'plain'\njson = { '/a' = 1 }", "`json`"),
            ("boot = 'plain'\ndeadline = 9", "`deadline`"),
            ("run = ''\ndeadline = 9\nwithin = 9", "`deadline`"),
            ("line = 'up'\nwithin = 9", "`within`"),
            ("run = ''\nreboots = 1", "`reboots`"),
            ("cut-when = ''\nevery = 2", "`every`"),
            ("run = ''\ndid = 'plan'\nfails = []", "`fails`"),
            ("unchanged = true\nexit = 1", "`exit`"),
            (
                "run = ''\nbackground = 'u'\nonly-queries = true",
                "`only-queries`",
            ),
        ] {
            assert!(ignored(text).contains(key), "{text}");
        }
    }

    #[test]
    fn output_that_a_check_needs_is_kept() {
        let is_read = |text: &str| {
            let step: Step = toml::from_str(&format!("title = 't'\nrun = ''\n{text}")).unwrap();
            step.is_read()
        };
        assert!(!is_read("show = true\nexit = 1"));
        for text in [
            "stderr = ['x']",
            "fails = []",
            "null = ['/a']",
            "did = 'p'",
            "save = 'p'",
        ] {
            assert!(is_read(text), "{text}");
        }
    }

    #[test]
    fn templates_are_filled_and_unknown_names_are_refused() {
        let values = BTreeMap::from([("url", "http://x".to_string())]);
        assert_eq!(fill("a {{url}} b", &values).unwrap(), "a http://x b");
        assert!(fill("{{other}}", &values).is_err());
        assert!(fill("{{url", &values).is_err());
    }
}
