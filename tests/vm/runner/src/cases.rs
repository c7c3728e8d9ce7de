//! `cases/*.toml`, read as one table: the machine of each case, its steps, and its expectations.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::cluster::{Behaviour, Wish};
use crate::machine::ROOMY;
use crate::net;
use crate::serve::Serving;
use crate::tables::{MachineSpec, Machines};

/// The configuration that `--on` replaces with the configuration of the other machine.
const DEFAULT_CONFIG: &str = "debian-12.toml";

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    case: Vec<Case>,
}

/// How often a case runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// In `make test`, which has a time budget: a test of this crate checks these cases against it.
    Core,
    /// In `make test-all`.
    #[default]
    Full,
    /// In `make test-all`, and in CI if a change affects joining: each method to join a cluster once. Kubernetes is compiled.
    Cluster,
    /// In `make test-long`: emulated machines, slow cases, and those that test the harness itself by hand.
    Long,
    /// In `make bench`: each measures one method to prepare the same node.
    Bench,
}

impl Tier {
    /// Its name in the table and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Core => "core",
            Tier::Full => "full",
            Tier::Cluster => "cluster",
            Tier::Long => "long",
            Tier::Bench => "bench",
        }
    }
}

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    pub name: String,
    pub about: String,
    /// A machine of `machines.toml`.
    pub machine: String,
    /// Other machines on which the same case runs, under the name `NAME-MACHINE`.
    #[serde(default)]
    pub also_on: Vec<String>,
    /// The subset of `also-on` in the full tier, if the case covers something else there. The others are in the long
    /// tier.
    #[serde(default)]
    pub full_on: Vec<String>,
    /// A template in `configs/`, put into the machine as `/etc/gpu-bootstrap/config.toml`.
    pub config: Option<String>,
    /// DKMS compiles the driver's module in it, although its machine carries modules that the harness has compiled with
    /// the same DKMS for the same kernel.
    #[serde(default)]
    pub compile: bool,
    /// A file of the repository that cloud-init gets as user data, on a NoCloud seed disk. Without it the machine has
    /// no data source, and cloud-init does nothing.
    pub user_data: Option<PathBuf>,
    /// Replacements that a user of the file would make: the text in the file = its replacement. An empty text removes
    /// the whole line.
    #[serde(default)]
    pub user_data_values: BTreeMap<String, String>,
    /// The product is not installed on the machine: its user data downloads it.
    #[serde(default)]
    pub downloads_program: bool,
    /// The machine has the release packages of the product, in two versions, which its scripts install.
    #[serde(default)]
    pub release_packages: bool,
    /// The machine has NVIDIA's mig-parted and its layout files.
    #[serde(default)]
    pub mig_parted: bool,
    /// The machine has NVIDIA's device plugin and its MPS control daemon.
    #[serde(default)]
    pub device_plugin: bool,
    /// The machine has the custom resource definitions of the queues of Kueue and Volcano.
    #[serde(default)]
    pub queues: bool,
    /// A Kubernetes control plane next to the machine.
    pub cluster: Option<Wish>,
    /// The rate of the machine's link in tc(8) syntax. Not limited without this key.
    pub link: Option<String>,
    /// Size in mebibytes of a container's separate disk. Without this key a container has one, of size [`ROOMY`], only
    /// if a step simulates a power loss.
    pub disk_mib: Option<u64>,
    /// Approximate duration in seconds, if a minute or more: the longest case starts first.
    #[serde(default)]
    pub takes: u64,
    /// The tier.
    #[serde(default)]
    pub tier: Tier,
    /// It waits nearly all the time, for time limits of the product. It runs in addition to the others and does not
    /// count as a worker.
    #[serde(default)]
    pub waits: bool,
    /// The measured CPU time in seconds, written by `vm test --record-times`.
    #[serde(default)]
    pub cpu: u64,
    /// Shell commands that break the machine before the first step; each must succeed.
    #[serde(default)]
    pub before: Vec<String>,
    /// The steps, in order.
    pub run: Vec<Step>,
    /// Shell commands that run after the steps; each must succeed.
    #[serde(default)]
    pub after: Vec<String>,
    /// Shell commands that run after `uninstall`. With this key the case finishes with `uninstall`, which must exit
    /// with 0, and the machine must be in the same state as after `before`.
    pub after_uninstall: Option<Vec<String>>,
    /// Ignored lines of the comparison, which contain one of these texts; each has a reason.
    #[serde(default)]
    pub except: Vec<Exception>,
}

/// A difference that may remain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    pub line: String,
    /// For readers of the table.
    #[serde(rename = "why")]
    pub _why: String,
}

/// One step: an action, and its options.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, remote = "Self", rename_all = "kebab-case")]
pub struct Step {
    pub title: String,
    #[serde(flatten)]
    pub action: Action,
    /// Starts `run` as a unit of this name that continues in parallel with the next steps.
    pub background: Option<String>,
    /// Waits until that unit prints this text.
    pub until_said: Option<String>,
    /// The expected exit code.
    pub exit: i32,
    /// Texts that its standard output must contain.
    pub stdout: Vec<String>,
    /// Texts that its standard error must contain.
    pub stderr: Vec<String>,
    /// JSON pointers into its standard output, with the expected values.
    pub json: BTreeMap<String, serde_json::Value>,
    /// JSON pointers whose value must be `null`.
    pub null: Vec<String>,
    /// JSON pointers to lists, with the expected number of elements.
    pub count: BTreeMap<String, usize>,
    /// Exactly these findings of `check` fail, in any order.
    pub fails: Option<Vec<String>>,
    /// At least these findings of `check` fail.
    pub fails_with: Vec<String>,
    /// Saves its standard output, a document of `plan`, under this name.
    pub save: Option<String>,
    /// Its standard output contains the events of an `install` that did exactly this saved plan.
    pub did: Option<String>,
    /// Its standard output is a document of `plan` without any change.
    pub did_nothing: bool,
    /// Text that the console must have printed by the end of the step, since the machine was turned on.
    pub console: Vec<String>,
    /// `vm bench` reports its duration under each of these names. Steps with the same name are added up.
    pub measure: Vec<String>,
    /// Not run with the program of `vm bench --before`, which does not have the tested feature. Later steps do not measure
    /// its methods either.
    pub current_only: bool,
    /// Its standard output is the document of `status --timing --format json` of the method with this name in `measure`,
    /// or a document with the same keys.
    pub timing_of: Option<String>,
    /// Prints its output while it runs.
    pub show: bool,
    /// It may start package tools only for queries.
    pub only_queries: bool,
    /// Seconds after which the step is killed and the case fails, if no other case runs at the same time.
    /// Ten minutes if absent.
    pub deadline: Option<u64>,
    /// Seconds after which the step fails, regardless of the number of running cases: for steps that test a duration.
    pub within: Option<u64>,
    /// The number of reboots that must happen during `until` or `cut-when`.
    pub reboots: u32,
    /// About one power loss per this many new records. With 1 the power is lost at each new record.
    /// 1 if absent.
    pub every: Option<u32>,
}

/// What a step does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Runs a shell script in the machine.
    Run(String),
    /// Waits until the unit of this name, which an earlier step started, exits, and uses its output and exit code.
    Join(String),
    /// Waits until the resumed run of the product has finished, and uses its output and exit code.
    #[serde(deserialize_with = "present")]
    Resumed,
    /// Powers the machine off and boots it again, in this state.
    Boot(Boot),
    /// The behavior of the repository server from now on.
    Server(Serving),
    /// The state of the machine's connection to the outside from now on.
    Network(net::State),
    /// The behavior of the control plane from now on.
    ControlPlane(Behaviour),
    /// Waits until this script succeeds, across reboots that the machine makes automatically. A script that calls
    /// `exit` gives up.
    Until(String),
    /// Waits in the same way, then simulates a power loss.
    CutWhen(String),
    /// Simulates a power loss during the next boot, when the console prints this text.
    CutAtConsole(String),
    /// Runs this command repeatedly. While it runs, the power is lost after a journal record that no earlier run has
    /// written, until a run exits with status 0.
    CutAtRecords(String),
    /// Compares the machine with its state after `before`; the two must be equal.
    #[default]
    #[serde(deserialize_with = "present")]
    Unchanged,
}

/// The value of an action without one is `true`.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<(), D::Error> {
    bool::deserialize(value).map(drop)
}

const ACTIONS: &str = "run join resumed boot server network control-plane until cut-when cut-at-console \
                       cut-at-records unchanged";

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Step, D::Error> {
        source.deserialize_map(Steps)
    }
}

/// Reads a step. An error of a visitor has the location of the step in the file.
struct Steps;

impl<'de> Visitor<'de> for Steps {
    type Value = Step;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a step")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Step, M::Error> {
        let table = toml::Table::deserialize(MapAccessDeserializer::new(map))?;
        let title = table.get("title").map(toml::Value::to_string);
        let title = title.ok_or_else(|| M::Error::custom("a step has no `title`"))?;
        let said = |problem: String| M::Error::custom(format!("step {title} {problem}"));
        meant(&table).map_err(said)?;
        Step::deserialize(table).map_err(|error| said(format!("is not valid: {error}")))
    }
}

/// Rejects a step without an action, with several, or with keys that its action ignores. Those are errors, because an
/// ignored expectation would always hold.
fn meant(step: &toml::Table) -> Result<(), String> {
    let has = |key: &str| {
        step.get(key)
            .is_some_and(|value| value.as_bool() != Some(false))
    };
    let actions: Vec<&str> = ACTIONS.split(' ').filter(|action| has(action)).collect();
    let [action] = actions[..] else {
        return Err(format!("needs one of `{}`", ACTIONS.replace(' ', "`, `")));
    };
    let among = |list: &str| list.split(' ').any(|one| one == action);
    let output = among("run join resumed");
    let waits = output || among("until cut-when cut-at-console cut-at-records");
    let is_meant = |key: &str| match key {
        "title" | "console" | "measure" | "current-only" => true,
        "exit" | "stdout" | "stderr" | "did" | "show" | "timing-of" => output,
        // The events of an install are not one document.
        "json" | "null" | "count" | "fails" | "fails-with" | "save" | "did-nothing" => {
            output && !has("did")
        }
        "background" => action == "run",
        "until-said" => has("background"),
        // For a script in the background only its start is watched.
        "only-queries" => output && !has("background"),
        "deadline" => waits && !has("within"),
        "within" => waits,
        "every" => action == "cut-at-records",
        "reboots" => among("until cut-when"),
        _ => key == action,
    };
    let mut ignored: Vec<&str> = step.keys().map(String::as_str).collect();
    ignored.retain(|key| !is_meant(key));
    match ignored.is_empty() {
        true => Ok(()),
        false => Err(format!("would ignore `{}`", ignored.join("`, `"))),
    }
}

impl Case {
    /// Size in mebibytes of the separate disk of its container.
    pub fn disk(&self) -> Option<u64> {
        (self.disk_mib).or_else(|| self.run.iter().any(Step::cuts).then_some(ROOMY))
    }
}

impl Step {
    /// Whether it simulates a power loss.
    fn cuts(&self) -> bool {
        use Action::{CutAtConsole, CutAtRecords, CutWhen};
        matches!(self.action, CutWhen(_) | CutAtConsole(_) | CutAtRecords(_))
    }

    /// Whether a check needs its standard output or standard error.
    pub fn is_read(&self) -> bool {
        let texts = [&self.stdout, &self.stderr, &self.null, &self.fails_with];
        texts.iter().any(|list| !list.is_empty())
            || !(self.json.is_empty() && self.count.is_empty())
            || [&self.save, &self.did, &self.timing_of]
                .iter()
                .any(|name| name.is_some())
            || self.fails.is_some()
            || self.did_nothing
    }

    /// Whether it starts a unit of this name: with `background`, or in its script.
    fn starts(&self, unit: &str) -> bool {
        let option = format!("--unit={unit}");
        self.background.as_deref() == Some(unit)
            || matches!(&self.action, Action::Run(script)
                if script.split_whitespace().any(|word| word == option))
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

/// A case, and the same case on each of its other machines.
fn spread(case: Case) -> Vec<Case> {
    let others: Vec<Case> = (case.also_on.iter())
        .map(|machine| Case {
            name: format!("{}-{machine}", case.name),
            machine: machine.clone(),
            tier: match case.full_on.contains(machine) {
                true => Tier::Full,
                false => Tier::Long,
            },
            ..case.clone()
        })
        .collect();
    let mut all = vec![case];
    all.extend(others);
    all
}

/// Rejects cases with a machine, a root filesystem, a configuration or a file of the repository that does not exist.
pub fn fit(cases: &[Case], machines: &Machines, repo: &Path, configs: &Path) -> Result<()> {
    for case in cases {
        let spec = (machines.machine(&case.machine))
            .with_context(|| format!("case `{}` is not valid", case.name))?;
        if let Some(name) = &case.config
            && !configs.join(&spec.configs).join(name).is_file()
        {
            bail!(
                "case `{}`: `{name}` does not exist in configs/{}",
                case.name,
                spec.configs
            );
        }
        if let Some(path) = &case.user_data
            && !repo.join(path).is_file()
        {
            bail!(
                "case `{}`: `{}` does not exist in the repository",
                case.name,
                path.display()
            );
        }
        let only_in_containers =
            case.release_packages || case.mig_parted || case.device_plugin || case.queues;
        if spec.kind.is_emulated() && only_in_containers {
            bail!(
                "case `{}`: only containers have the release packages, mig-parted, the device plugin, and the definitions of queues",
                case.name
            );
        }
        let reads = |step: &Step| {
            matches!(step.action, Action::CutAtConsole(_)) || !step.console.is_empty()
        };
        if !spec.kind.is_emulated() && case.run.iter().any(reads) {
            bail!(
                "case `{}`: a container has no console output; `cut-when` also works during its boot",
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
    if case.run.iter().any(|step| step.every == Some(0)) {
        bail!("`every` counts from 1");
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    // The name becomes a host name and a directory.
    if case.name.is_empty() || case.name.len() > 40 || !case.name.chars().all(plain) {
        bail!("a name has at most 40 small letters, digits and hyphens");
    }
    if let Some(stray) = (case.full_on.iter()).find(|one| !case.also_on.contains(one)) {
        bail!("`full-on` contains `{stray}`, which is not in `also-on`");
    }
    if case.waits && case.takes == 0 {
        bail!("`waits` is only for slow cases: `takes` is missing");
    }
    if case.cluster.is_some() && case.tier == Tier::Core {
        bail!(
            "a case with a `cluster` is too slow for the tier `core`: Kubernetes is compiled for it"
        );
    }
    for step in &case.run {
        if matches!(step.action, Action::ControlPlane(_)) && case.cluster.is_none() {
            bail!("step `{}`: the case has no `cluster`", step.title);
        }
        if let Action::Server(serving) = &step.action {
            serving
                .check()
                .with_context(|| format!("step `{}`", step.title))?;
        }
    }
    check_names(&case.run)?;
    for script in scripts(case) {
        if let Some(line) = ignored_line(script) {
            bail!("`{line}`: bash ignores `!` before the last line: write `if …; then exit 1; fi`");
        }
    }
    Ok(())
}

/// Rejects steps that use a plan or a unit that no earlier step saves or starts.
fn check_names(steps: &[Step]) -> Result<()> {
    for (at, step) in steps.iter().enumerate() {
        let earlier = &steps[..at];
        if let Some(plan) = &step.did
            && !earlier.iter().any(|step| step.save.as_ref() == Some(plan))
        {
            bail!(
                "step `{}`: no earlier step has `save = \"{plan}\"`",
                step.title
            );
        }
        if let Action::Join(unit) = &step.action
            && !earlier.iter().any(|step| step.starts(unit))
        {
            bail!(
                "step `{}`: no earlier step starts the unit `{unit}`",
                step.title
            );
        }
    }
    Ok(())
}

/// All scripts of a case.
fn scripts(case: &Case) -> impl Iterator<Item = &String> {
    let of_steps = case.run.iter().filter_map(|step| match &step.action {
        Action::Run(script) | Action::Until(script) | Action::CutWhen(script) => Some(script),
        _ => None,
    });
    of_steps
        .chain(&case.before)
        .chain(&case.after)
        .chain(case.after_uninstall.iter().flatten())
}

/// The first line whose failure is ignored: a failed `! command` does not stop a script, even with `set -e`, so only
/// the last line of a script may start with it.
fn ignored_line(script: &str) -> Option<&str> {
    let mut lines = script.trim().lines();
    lines.next_back();
    lines.map(str::trim).find(|line| line.starts_with("! "))
}

/// Replaces `{{name}}` with its value. A name without a value is an error.
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
mod tests;
