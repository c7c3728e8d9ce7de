//! The test harness for real machines. It builds root filesystems and repositories, boots disposable machines from
//! them, breaks them on purpose, runs the product in them, and compares.
//!
//! See `tests/vm/README.md` to add a machine or a case.

mod agents;
mod almalinux;
mod apart;
mod assets;
mod bed;
mod bench;
mod cases;
mod claim;
mod cloud;
mod cluster;
mod crictl;
mod debian;
mod device_plugin;
mod disk_image;
mod documents;
mod go_module;
mod golang;
mod group;
mod image;
mod kernel;
mod kubernetes;
mod lock;
mod loops;
mod machine;
mod memory;
mod metadata;
mod mig_parted;
mod modules;
mod needs;
mod net;
mod out;
mod pci;
mod pods;
mod power;
mod qemu;
mod queue;
mod queues;
mod real;
mod record;
mod release;
mod repo;
mod rootfs;
mod run;
mod seed;
mod serve;
mod server;
mod sh;
mod simulation;
mod snapshot;
mod tables;
mod toolkit;
mod ubuntu;
mod units;
mod watch;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::assets::{Program, Wanted};
use crate::bed::Bed;
use crate::bench::{Results, Setting};
use crate::cases::{Case, Tier};
use crate::machine::Changes;
use crate::queue::Queue;
use crate::run::{Outcome, Stage};
use crate::tables::{Kind, Machines};

/// The case that `vm demo` prints step by step.
const DEMO: &str = "vendor-repositories";

/// Number of waiting cases that run in addition to the others.
const WAITING: usize = 4;

/// Test machines: build, boot, break, run, compare.
#[derive(Parser)]
#[command(name = "vm", version)]
struct Cli {
    /// Cache directory for slow builds [default: .cache/vm in the repository]
    #[arg(long, env = "TESTBED_CACHE", global = true)]
    cache: Option<PathBuf>,
    /// Only for `vm` itself: process ID of the command that started this run
    #[arg(long, hide = true, value_name = "PROCESS")]
    apart: Option<u32>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install the packages that the test harness needs
    Needs,
    /// Build root filesystems, the container toolkit, the repository and the probe image
    Prepare,
    /// Show the product's main job in two boots
    Demo {
        /// Keep the machine of a failed case running, print how to enter it, and wait for Ctrl-C
        #[arg(long)]
        keep: bool,
    },
    /// Run cases and print a line for each
    Test(How),
    /// Run the cases of the tier `bench` one after another, several times, and print the median results
    Bench(Rounds),
    /// List the machines and the cases
    List,
    /// Remove the leftovers of killed runs, and cache entries that were unused for days
    Clean,
    /// Serve a directory over HTTP; used inside the namespaces of machines
    Serve(serve::Site),
    /// Simulate a cloud's metadata service; used inside the namespaces of machines
    Metadata {
        /// Document with the metadata
        document: PathBuf,
        /// Addresses to listen on
        addresses: Vec<String>,
    },
}

/// Options of `vm bench`.
#[derive(Args)]
struct Rounds {
    /// Names of cases [default: all of the tier]
    cases: Vec<String>,
    /// Number of runs of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Program that machines run [default: the one compiled from this source, without optimization]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// An earlier version of the program, which is also measured
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Rate of each machine's link in `tc` syntax, such as `200mbit` [default: not limited]; can be repeated
    #[arg(long, value_name = "RATE")]
    link: Vec<String>,
    /// The location of the disks of the machines [default: memory]; can be repeated
    #[arg(long, value_enum)]
    disk: Vec<Changes>,
    /// Also write the results and a chart for each question into this directory
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Options of `vm test`.
#[derive(Args)]
struct How {
    /// Names of cases [default: all of the tier `core`]
    #[arg(conflicts_with = "tier")]
    cases: Vec<String>,
    /// Run the cases of this tier; can be repeated
    #[arg(long, value_enum)]
    tier: Vec<Tier>,
    /// Program that machines run [default: the one compiled from this source, without optimization]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Write the CPU time of each passed case into the table, as its `cpu`
    #[arg(long, conflicts_with = "on")]
    record_times: bool,
    /// Print each step, with its output if the step has `show = true`; one case at a time
    #[arg(long)]
    tell: bool,
    /// Run the cases on this machine instead of their own
    #[arg(long, value_name = "MACHINE")]
    on: Option<String>,
    /// Keep the machine of a failed case running, print how to enter it, and wait for Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Number of machines in parallel; many wait most of their time
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

impl How {
    /// The tiers to run if no case is specified.
    fn tiers(&self) -> &[Tier] {
        match (self.tier.is_empty(), self.cases.is_empty()) {
            (false, _) => &self.tier,
            (true, true) => &[Tier::Core],
            (true, false) => &[],
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            out::say(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let cli = Cli::parse();
    if let Verb::Serve(site) = cli.verb {
        serve::run(site)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Verb::Metadata {
        document,
        addresses,
    } = &cli.verb
    {
        metadata::run(document, addresses)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(command) = cli.apart {
        apart::enter(command)?;
    }
    let here = std::env::current_dir().context("cannot determine the current directory")?;
    let bed = Bed::open(&here, cli.cache)?;
    let makes_machines = !matches!(cli.verb, Verb::Needs | Verb::List | Verb::Clean);
    if makes_machines && cli.apart.is_none() {
        needs::root()?;
        tidy(&bed);
        return apart::run(&bed);
    }
    let machines = Machines::load(&bed.here("machines.toml"))?;
    let cases = cases::load(&bed.here("cases"))?;
    cases::fit(&cases, &machines, &bed.repo, &bed.here("configs"))?;
    match cli.verb {
        Verb::Needs => needs::ensure(&machines.toolkit.go)?,
        Verb::Prepare => {
            let all: Vec<&Case> = cases.iter().collect();
            assets::prepare(&bed, &machines, &wanted(&machines, &all)?, None)?;
        }
        Verb::List => {
            for (name, spec) in &machines.machines {
                out::say(format!(
                    "{name:<28} {:<10} {}",
                    spec.kind.name(),
                    spec.about
                ));
            }
            out::say("");
            for case in &cases {
                out::say(format!(
                    "{:<32} {:<16} {:<8} {}",
                    case.name,
                    case.machine,
                    case.tier.name(),
                    case.about
                ));
            }
        }
        Verb::Clean => {
            apart::clean(&bed)?;
            bed.prune()?;
        }
        Verb::Demo { keep } => {
            let cases = chosen(&cases, &[DEMO.to_string()], &[])?;
            return demo(&bed, &machines, cases[0], keep);
        }
        Verb::Test(how) => {
            let cases = match &how.on {
                Some(machine) => cases::moved(cases, machines.machine(machine)?),
                None => cases,
            };
            if let Some(left) = left_out(&cases, &how) {
                out::say(left);
            }
            let cases = chosen(&cases, &how.cases, how.tiers())?;
            return test(&bed, &machines, &cases, &how);
        }
        Verb::Bench(rounds) => {
            let tiers: &[Tier] = if rounds.cases.is_empty() {
                &[Tier::Bench]
            } else {
                &[]
            };
            let cases = chosen(&cases, &rounds.cases, tiers)?;
            return bench(&bed, &machines, &cases, &rounds);
        }
        Verb::Serve(_) | Verb::Metadata { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes leftovers of earlier runs and unused cache entries. A part that cannot be removed does no harm.
fn tidy(bed: &Bed) {
    if let Err(error) = apart::clean(bed) {
        out::say(format!("leftovers of an earlier run: {error:#}"));
    }
    if let Err(error) = bed.prune() {
        out::say(format!("unused cache entries: {error:#}"));
    }
}

fn chosen<'a>(cases: &'a [Case], names: &[String], tiers: &[Tier]) -> Result<Vec<&'a Case>> {
    if names.is_empty() {
        let meant = |case: &&Case| tiers.contains(&case.tier);
        return Ok(cases.iter().filter(meant).collect());
    }
    let find = |name: &String| {
        cases
            .iter()
            .find(|case| &case.name == name)
            .with_context(|| format!("no case `{name}` in cases/*.toml"))
    };
    names.iter().map(find).collect()
}

/// The number of skipped cases for each other tier.
fn left_out(cases: &[Case], how: &How) -> Option<String> {
    if !how.cases.is_empty() {
        return None;
    }
    let mut left: BTreeMap<Tier, usize> = BTreeMap::new();
    for case in cases
        .iter()
        .filter(|case| !how.tiers().contains(&case.tier))
    {
        *left.entry(case.tier).or_default() += 1;
    }
    let left: Vec<String> = (left.iter())
        .map(|(tier, count)| format!("{count} of the tier {}", tier.name()))
        .collect();
    (!left.is_empty()).then(|| format!("skipped cases: {}", left.join(", ")))
}

/// The start order of cases, so that no single long case remains at the end.
fn longest_first<'a>(cases: &[&'a Case]) -> Vec<&'a Case> {
    let mut cases = cases.to_vec();
    cases.sort_by_key(|case| Reverse(case.takes.max(case.cpu)));
    cases
}

/// The assets that the machines of `cases` need.
fn wanted(machines: &Machines, cases: &[&Case]) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    for case in cases {
        let machine = machines.machine(&case.machine)?;
        wanted.qemu |= machine.kind.is_emulated();
        wanted.packages |= case.release_packages;
        wanted.mig_parted |= case.mig_parted;
        wanted.device_plugin |= case.device_plugin;
        wanted.queues |= case.queues;
        if machine.kind == Kind::Image {
            wanted.images.insert(machine.root.clone());
            continue;
        }
        wanted.roots.insert(machine.root.clone());
        if case.cluster.is_some() {
            wanted.clusters.insert(machine.root.clone());
        }
        if !case.compile && !machine.carried.is_empty() {
            let packages = wanted.carried.entry(machine.root.clone()).or_default();
            packages.extend(machine.carried.iter().cloned());
        }
    }
    Ok(wanted)
}

fn demo(bed: &Bed, machines: &Machines, case: &Case, keep: bool) -> Result<ExitCode> {
    let start = Instant::now();
    out::heading("machine assets (built once, then kept outside git)");
    let assets = assets::prepare(
        bed,
        machines,
        &wanted(machines, &[case])?,
        Some(Program::Compiled),
    )?;
    let prepared = start.elapsed();
    let stage = Stage {
        bed,
        machines,
        assets: &assets,
        tell: true,
        keep,
        at_once: 1,
        link: None,
        changes: Changes::default(),
        program: None,
    };
    let outcome = run::run(&stage, case);
    let mut rows = step_rows(&outcome);
    rows.insert(1, row("prepare", prepared, "ok"));
    rows.push(row("all", start.elapsed(), verdict(&outcome)));
    out::say(format!("\n{}", out::table(&rows)));
    out::say(
        "Simulated: the GPU on the PCI bus, NVIDIA's packages with a small module, the loaded driver, its device nodes,\n\
         the results of NVML and CUDA, and the kernel version in /proc. Docker's packages have Debian's\n\
         programs. Real: everything else.",
    );
    match outcome.error {
        Some(error) => bail!("the demo failed: {error:#}"),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Runs the cases sequentially, several times in each setting, with no other case in parallel. The settings alternate, so
/// that changes of the host's speed affect all of them. Cases that compile the driver take minutes, which hardly depend on
/// the link and the disk, so they run only in the first setting. A failed case ends the benchmark, because the duration
/// of a broken node is meaningless; the report contains the cases before it.
fn bench(bed: &Bed, machines: &Machines, cases: &[&Case], rounds: &Rounds) -> Result<ExitCode> {
    let program = (rounds.program.as_ref()).map_or(Program::Compiled, |file| Program::Given(file));
    let assets = assets::prepare(bed, machines, &wanted(machines, cases)?, Some(program))?;
    let processors = thread::available_parallelism().context("cannot count the CPUs")?;
    let processors = u32::try_from(processors.get()).context("so many CPUs are not usual")?;
    let mut all: Vec<Results> = (Setting::all(&rounds.link, &rounds.disk).into_iter())
        .map(|setting| Results::new(setting, processors))
        .collect();
    let mut programs = vec![(None, "")];
    programs.extend(
        rounds
            .before
            .as_deref()
            .map(|file| (Some(file), bench::BEFORE)),
    );
    let mut failed = false;
    'rounds: for _ in 0..rounds.runs {
        for (at, results) in all.iter_mut().enumerate() {
            let setting = results.setting.clone();
            // Without a configuration a case does not use gpu-bootstrap, so the program makes no difference.
            let turns = (cases.iter()).flat_map(|case| programs.iter().map(move |one| (case, one)));
            let differs = |(case, one): &(&&Case, &(Option<&Path>, &str))| {
                one.0.is_none() || case.config.is_some()
            };
            let is_due = |(case, _): &(&&Case, _)| at == 0 || !case.compile;
            for (case, (program, suffix)) in turns.filter(differs).filter(is_due) {
                let stage = Stage {
                    bed,
                    machines,
                    assets: &assets,
                    tell: true,
                    keep: false,
                    at_once: 1,
                    link: setting.link.as_deref(),
                    changes: setting.changes,
                    program: *program,
                };
                let outcome = one(&stage, case);
                if outcome.error.is_some() {
                    failed = true;
                    break 'rounds;
                }
                results.add(outcome.rows, suffix);
            }
        }
    }
    let report = bench::report(&all);
    out::say(format!("\n{report}"));
    if let Some(directory) = &rounds.output {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let files = [("results.md".to_owned(), report)].into_iter();
        for (name, text) in files.chain(bench::charts(&all)) {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn step_rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["step".into(), "seconds".into(), "result".into()]];
    rows.extend(
        outcome
            .rows
            .iter()
            .map(|step| row(&step.title, step.took, &step.result)),
    );
    rows
}

fn row(title: &str, took: Duration, result: &str) -> Vec<String> {
    vec![title.into(), out::seconds(took), result.into()]
}

fn test(bed: &Bed, machines: &Machines, cases: &[&Case], how: &How) -> Result<ExitCode> {
    let start = Instant::now();
    let program = match &how.program {
        Some(file) => Program::Given(file),
        None => Program::Compiled,
    };
    let assets = assets::prepare(bed, machines, &wanted(machines, cases)?, Some(program))?;
    out::say(format!(
        "prepared in {} s; {} cases",
        out::seconds(start.elapsed()),
        cases.len()
    ));
    // Waiting cases start at once, in parallel with the others; with `--tell` no cases run in parallel.
    let (waits, works): (Vec<&Case>, Vec<&Case>) = longest_first(cases)
        .into_iter()
        .partition(|case| case.waits && !how.tell && how.jobs > 1);
    let workers = match how.tell {
        true => 1,
        false => how.jobs.clamp(1, works.len().max(1)),
    };
    let waiters = waits.len().min(WAITING);
    let stage = Stage {
        bed,
        machines,
        assets: &assets,
        tell: how.tell,
        keep: how.keep,
        // All waiting cases together need no more CPU time than one other case.
        at_once: u32::try_from(workers + waiters.min(1))
            .context("so many cases cannot run at once")?,
        link: None,
        changes: Changes::default(),
        program: None,
    };
    let queues = [
        (workers, queue(machines, works)?),
        (waiters, queue(machines, waits)?),
    ];
    let failed = AtomicUsize::new(0);
    let times = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        let threads = (queues.iter()).flat_map(|(count, queue)| vec![queue; *count]);
        for queue in threads {
            let (stage, failed, times) = (&stage, &failed, &times);
            scope.spawn(move || {
                while let Some(turn) = queue.next() {
                    let outcome = one(stage, turn.case);
                    if outcome.error.is_some() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    } else if let Some(time) = outcome.processor {
                        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                        times.insert(turn.case.name.clone(), time);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    let passed = cases.len() - failed;
    let times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    let processor: Duration = times.values().sum();
    if how.record_times {
        record::write(&bed.here("cases"), &times)?;
    }
    out::say(format!(
        "\nall in {} s, {} s of CPU time in the passed cases",
        out::seconds(start.elapsed()),
        out::seconds(processor)
    ));
    out::say(format!("{passed} passed, {failed} failed"));
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The ordered cases, for some threads to take from.
fn queue<'a>(machines: &Machines, cases: Vec<&'a Case>) -> Result<Queue<&'a Case>> {
    let processors = thread::available_parallelism().context("cannot count the CPUs")?;
    let mut waiting = Vec::new();
    for case in cases {
        let emulated = machines.machine(&case.machine)?.kind.is_emulated();
        waiting.push((case, emulated));
    }
    Ok(Queue::new(waiting, processors.get()))
}

/// Runs a case and prints its line.
fn one(stage: &Stage<'_>, case: &Case) -> Outcome {
    let begin = Instant::now();
    let outcome = run::run(stage, case);
    let mut text = String::new();
    if stage.tell || outcome.error.is_some() && !outcome.rows.is_empty() {
        text.push_str(&format!("\n{}\n", out::table(&step_rows(&outcome))));
    }
    text.push_str(&format!(
        "{:<5} {:<32} {:>6} s",
        verdict(&outcome),
        case.name,
        out::seconds(begin.elapsed())
    ));
    if let Some(processor) = outcome.processor {
        text.push_str(&format!("{:>7} s of CPU time", out::seconds(processor)));
    }
    if let Some(error) = &outcome.error {
        text.push_str("\n      ");
        text.push_str(&format!("{error:#}").replace('\n', "\n      "));
    }
    out::say(text);
    outcome
}

fn verdict(outcome: &Outcome) -> &'static str {
    if outcome.error.is_none() {
        "ok"
    } else {
        "FAIL"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn how(line: &[&str]) -> How {
        match Cli::parse_from(line).verb {
            Verb::Test(how) => how,
            _ => panic!("not `vm test`"),
        }
    }

    #[test]
    fn selected_tiers_run_and_skipped_cases_are_counted() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let cases = cases::load(&here.join("cases")).unwrap();
        let of = |tier| cases.iter().filter(|case| case.tier == tier).count();
        let runs = |how: &How| chosen(&cases, &how.cases, how.tiers()).unwrap().len();
        let core = how(&["vm", "test"]);
        assert_eq!(runs(&core), of(Tier::Core));
        let said = left_out(&cases, &core).unwrap();
        assert!(said.contains(&format!("{} of the tier cluster", of(Tier::Cluster))));
        assert!(!said.contains("core"), "{said}");
        let two = how(&["vm", "test", "--tier", "full", "--tier", "long"]);
        assert_eq!(runs(&two), of(Tier::Full) + of(Tier::Long));
        let named = how(&["vm", "test", "bed-boots"]);
        assert_eq!(runs(&named), 1);
        assert_eq!(left_out(&cases, &named), None);
        assert!(Cli::try_parse_from(["vm", "test", "bed-boots", "--tier", "core"]).is_err());
    }
}
