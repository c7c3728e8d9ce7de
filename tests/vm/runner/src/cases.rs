//! `cases/*.toml`, read as one table: what is done to which machine, and what must hold.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::net::Line;
use crate::serve::Serving;
use crate::tables::{Kind, MachineSpec, Machines};

/// The configuration that a machine of another system replaces by its own.
const DEFAULT_CONFIG: &str = "debian-12.toml";

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    case: Vec<Case>,
}

/// Whether DKMS compiles the driver's module in a case. Where it does not, it takes modules that
/// the bed compiled before, by the same DKMS for the same kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compile {
    #[default]
    Never,
    /// Not in the quick run of the table.
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
    /// A template in `configs/`, put into the machine as `/etc/gpu-bootstrap/config.toml`.
    pub config: Option<String>,
    /// Whether DKMS compiles the driver's module in it.
    #[serde(default)]
    pub compile: Compile,
    /// A file of the repository that cloud-init gets as user-data, on a NoCloud seed disk. Without
    /// it the machine has no data source, and cloud-init does nothing.
    pub user_data: Option<PathBuf>,
    /// About how many seconds it takes, where that is a minute or more: the longest is begun first.
    #[serde(default)]
    pub takes: u64,
    /// Runs in `make test`; the others run in `make test-vm` only.
    #[serde(default = "yes")]
    pub quick: bool,
    /// What is broken first: shell commands, each of which must succeed.
    #[serde(default)]
    pub before: Vec<String>,
    /// What is done, in order.
    pub run: Vec<Step>,
    /// What must hold after: shell commands, each of which must succeed.
    #[serde(default)]
    pub after: Vec<String>,
    /// What must hold after `uninstall`. With this key the case ends with `uninstall`, exit 0,
    /// and the machine must be as it was after `before`.
    pub after_uninstall: Option<Vec<String>>,
    /// Lines of the comparison that contain one of these are left out, each with its reason.
    #[serde(default)]
    pub except: Vec<Exception>,
}

/// A difference that is allowed to remain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    pub line: String,
    /// For the reader of the table.
    #[serde(rename = "why")]
    pub _why: String,
}

/// One thing that is done: a command, a boot, or a comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Step {
    pub title: String,
    /// A shell script that runs in the machine.
    pub run: Option<String>,
    /// Its `run` is started as a unit of this name and goes on beside the next steps.
    pub background: Option<String>,
    /// Waits until that unit says this.
    pub until_said: Option<String>,
    /// Waits for the end of such a unit: its output and its exit are this step's.
    pub join: Option<String>,
    /// Waits for the end of the product's run that resumes after a boot: its output and its exit
    /// are this step's.
    #[serde(default)]
    pub resumed: bool,
    /// How it must exit.
    #[serde(default)]
    pub exit: i32,
    /// Each of these must be in its standard output.
    #[serde(default)]
    pub stdout: Vec<String>,
    /// Each of these must be in its standard error.
    #[serde(default)]
    pub stderr: Vec<String>,
    /// JSON pointers into its standard output, and the values that must be there.
    #[serde(default)]
    pub json: BTreeMap<String, serde_json::Value>,
    /// JSON pointers at which there must be `null`.
    #[serde(default)]
    pub null: Vec<String>,
    /// JSON pointers to lists, and how many elements each has.
    #[serde(default)]
    pub count: BTreeMap<String, usize>,
    /// Exactly these findings of `check` fail, in any order.
    pub fails: Option<Vec<String>>,
    /// At least these findings of `check` fail.
    #[serde(default)]
    pub fails_with: Vec<String>,
    /// Keeps its standard output, a document of `plan`, under this name.
    pub save: Option<String>,
    /// Its standard output is the events of an `install` that did what this saved plan says.
    pub did: Option<String>,
    /// Its standard output is a document of `plan` without any change.
    #[serde(default)]
    pub did_nothing: bool,
    /// Its output is shown as it comes.
    #[serde(default)]
    pub show: bool,
    /// It may start no package tool except to ask.
    #[serde(default)]
    pub only_queries: bool,
    /// Seconds after which it is ended and the case fails, where no other case runs beside it.
    #[serde(default = "ten_minutes")]
    pub deadline: u64,
    /// Seconds after which it fails, whatever runs beside it: where time is what the step is about.
    pub within: Option<u64>,
    /// Powers the machine off and boots it again, in this state.
    pub boot: Option<Boot>,
    /// How the repository server behaves from now on.
    pub server: Option<Serving>,
    /// The machine's line to the outside from now on.
    pub line: Option<Line>,
    /// Waits until this script holds, across reboots that the machine makes by itself. A script
    /// that leaves by `exit` gives up.
    pub until: Option<String>,
    /// How many such reboots there must be on the way.
    #[serde(default)]
    pub reboots: u32,
    /// Waits likewise, and takes the power away.
    pub cut_when: Option<String>,
    /// At the machine's next boot, takes the power away when its console says this.
    pub cut_at_console: Option<String>,
    /// Compares the machine with what it was after `before`; this must not have changed.
    #[serde(default)]
    pub unchanged: bool,
}

impl Step {
    /// Whether its standard output, or errors, must be there to look through.
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

    /// The keys that are there and mean nothing in a step of its kind: an expectation among them
    /// would hold whatever happens.
    fn ignored(&self) -> Vec<&'static str> {
        let run = self.run.is_some() || self.join.is_some() || self.resumed;
        let waits =
            self.until.is_some() || self.cut_when.is_some() || self.cut_at_console.is_some();
        [
            ("`exit`", self.exit != 0, run),
            ("`stdout`", !self.stdout.is_empty(), run),
            ("`stderr`", !self.stderr.is_empty(), run),
            ("`did`", self.did.is_some(), run),
            // The events of an install are no document.
            (
                "what it expects of a document (`json`, `null`, `count`, `fails`, `fails-with`, `save`, `did-nothing`)",
                self.reads_document(),
                run && self.did.is_none(),
            ),
            ("`show`", self.show, run),
            // Of a script in the background only the start is watched.
            ("`only-queries`", self.only_queries, run && self.background.is_none()),
            (
                "`deadline`",
                self.deadline != ten_minutes(),
                (run || waits) && self.within.is_none(),
            ),
            ("`within`", self.within.is_some(), run || waits),
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
    /// As it is.
    Plain,
    /// With the driver that is installed in it looking loaded.
    SimulatedDriver,
}

fn yes() -> bool {
    true
}

fn ten_minutes() -> u64 {
    600
}

/// Reads the table: every file of the folder, in the order of their names.
pub fn load(dir: &Path) -> Result<Vec<Case>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot read {}", dir.display()))?;
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "toml"));
    files.sort();
    let mut cases: Vec<Case> = Vec::new();
    for file in &files {
        for case in read(file)? {
            if cases.iter().any(|other| other.name == case.name) {
                bail!("{}: case `{}` is there twice", file.display(), case.name);
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Refuses what names a machine, a root filesystem or a configuration that is not there.
pub fn fit(cases: &[Case], machines: &Machines, configs: &Path) -> Result<()> {
    for case in cases {
        let spec = (machines.machine(&case.machine))
            .with_context(|| format!("case `{}` is not right", case.name))?;
        if let Some(name) = &case.config
            && !configs.join(name).is_file()
        {
            bail!("case `{}`: there is no `{name}` in configs/", case.name);
        }
        let known = match spec.kind {
            Kind::Image => machines.images.contains_key(&spec.root),
            Kind::Container | Kind::Vm => machines.roots.contains_key(&spec.root),
        };
        if !known {
            bail!(
                "machine `{}`: machines.toml has no root `{}`",
                case.machine,
                spec.root
            );
        }
    }
    Ok(())
}

/// The cases as the quick run of the table has them.
pub fn make_quick(cases: &mut [Case]) {
    for case in cases {
        if case.compile == Compile::WithTime {
            case.compile = Compile::Never;
        }
    }
}

/// The cases on another machine than their own.
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
        toml::from_str(&text).with_context(|| format!("{} is not right", file.display()))?;
    for case in &table.case {
        check(case)
            .with_context(|| format!("{}: case `{}` is not right", file.display(), case.name))?;
    }
    Ok(table.case)
}

fn check(case: &Case) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    // The name becomes a host name and a folder.
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
            step.until.is_some(),
            step.cut_when.is_some(),
            step.cut_at_console.is_some(),
            step.unchanged,
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            bail!(
                "step `{}` needs one of `run`, `join`, `resumed`, `boot`, `server`, `line`, `until`, \
                 `cut-when`, `cut-at-console` and `unchanged`",
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

/// Puts values in place of `{{name}}`. A name without a value is an error.
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
    fn the_table_of_the_repository_is_right() {
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
    fn a_case_that_moves_takes_the_configuration_of_its_new_machine() {
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
    fn a_case_that_is_there_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let case = "[[case]]\nname = \"one\"\nabout = \"\"\nmachine = \"m\"\nrun = []\n";
        for name in ["a.toml", "b.toml"] {
            fs::write(dir.path().join(name), case).unwrap();
        }
        let text = load(dir.path()).unwrap_err().to_string();
        assert!(text.contains("b.toml") && text.contains("one"), "{text}");
    }

    #[test]
    fn a_key_that_means_nothing_in_its_step_is_refused() {
        let ignored = |text: &str| {
            let step: Step = toml::from_str(&format!("title = 't'\n{text}")).unwrap();
            step.ignored().join(" ")
        };
        for text in [
            "run = ''\nexit = 3\nstdout = ['x']\njson = { '/a' = 1 }\nshow = true\ndeadline = 9",
            "run = ''\ndid = 'plan'\nstdout = ['x']",
            "until = ''\nreboots = 1\ndeadline = 9",
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
    fn what_is_looked_through_is_kept() {
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
    fn templates_take_values_and_refuse_unknown_names() {
        let values = BTreeMap::from([("url", "http://x".to_string())]);
        assert_eq!(fill("a {{url}} b", &values).unwrap(), "a http://x b");
        assert!(fill("{{other}}", &values).is_err());
        assert!(fill("{{url", &values).is_err());
    }
}
