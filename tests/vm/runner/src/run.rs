//! Runs a case: creates its machine, breaks it, runs its steps, compares.

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::assets::{Assets, values};
use crate::bed::Bed;
use crate::bench::Timing;
use crate::cases::{Action, Boot, Case, Step, fill};
use crate::cluster::Cluster;
use crate::machine::{Changes, Machine, Used};
use crate::server::Server;
use crate::sh::{Cmd, Done};
use crate::snapshot::Snapshot;
use crate::tables::{Kind, Machines};
use crate::{
    agents, almalinux, apart, cloud, device_plugin, documents, kernel, mig_parted, modules, out,
    power, queues, release, seed, simulation, ubuntu, units, watch,
};

/// The inputs of a case.
pub struct Stage<'a> {
    pub bed: &'a Bed,
    pub machines: &'a Machines,
    pub assets: &'a Assets,
    /// Prints every step as it happens, and its output if the step has `show`.
    pub tell: bool,
    /// Keeps a failed machine up until the command is stopped.
    pub keep: bool,
    /// How many cases run at the same time.
    pub at_once: u32,
    /// The rate of the machines' links in tc(8) syntax, if limited.
    pub link: Option<&'a str>,
    /// The location of the changes of containers.
    pub changes: Changes,
    /// The program of the machines, if it is not the one in `assets`.
    pub program: Option<&'a Path>,
}

impl Stage<'_> {
    /// The time limit of a step. The value in the table is for a single case. With other cases in parallel
    /// it waits for CPUs, which is not a fault of the product.
    fn deadline(&self, seconds: u64) -> Duration {
        Duration::from_secs(seconds) * self.at_once
    }
}

/// The result of a case: an entry for each step, and the error that stopped it.
pub struct Outcome {
    pub rows: Vec<Row>,
    /// Its CPU time, which does not depend on other cases.
    pub processor: Option<Duration>,
    pub error: Option<anyhow::Error>,
}

/// One line of the final table.
pub struct Row {
    pub title: String,
    pub took: Duration,
    /// The measurements for `vm bench`, one for each name.
    pub measured: Vec<Measured>,
    /// The steps of a method of `vm bench`, with its name.
    pub timing: Option<(String, Timing)>,
    pub result: String,
}

/// A duration that `vm bench` reports.
#[derive(Clone, Debug)]
pub struct Measured {
    pub name: String,
    pub wall: Duration,
    pub used: Used,
    /// Peak memory of the machine's programs in bytes, above the value at the start.
    pub memory: u64,
}

struct Running<'a> {
    stage: &'a Stage<'a>,
    case: &'a Case,
    machine: Machine,
    values: BTreeMap<String, String>,
    server: Server,
    cluster: Option<Cluster>,
    before: Option<Snapshot>,
    plans: BTreeMap<String, String>,
    /// What the current step said about the steps of a method.
    timing: Option<(String, Timing)>,
    rows: Vec<Row>,
}

/// Runs one case completely.
pub fn run(stage: &Stage<'_>, case: &Case) -> Outcome {
    let start = Instant::now();
    match create(stage, case) {
        Ok((machine, server, cluster)) => {
            let mut running = Running {
                stage,
                case,
                values: known(stage, case, &machine.spec().root, cluster.as_ref()),
                machine,
                server,
                cluster,
                before: None,
                plans: BTreeMap::new(),
                timing: None,
                rows: Vec::new(),
            };
            let place = running.machine.place_of_changes();
            running.row("make the machine", start, place);
            let error = running.all().err().map(|error| match &running.cluster {
                Some(cluster) => error.context(format!("the control plane:\n{}", cluster.said())),
                None => error,
            });
            if let Some(error) = &error {
                running.hold(error);
            }
            Outcome {
                processor: running.machine.processor(),
                rows: running.rows,
                error,
            }
        }
        Err(error) => Outcome {
            rows: Vec::new(),
            processor: None,
            error: Some(error),
        },
    }
}

/// Values for the templates of a case.
fn known(
    stage: &Stage<'_>,
    case: &Case,
    root: &str,
    cluster: Option<&Cluster>,
) -> BTreeMap<String, String> {
    let mut known = values(stage.assets, root, case.cluster.is_some());
    known.extend(cluster.into_iter().flat_map(|one| one.values().clone()));
    known
}

fn create(stage: &Stage<'_>, case: &Case) -> Result<(Machine, Server, Option<Cluster>)> {
    let spec = stage.machines.machine(&case.machine)?;
    let root = stage
        .assets
        .roots
        .get(&spec.root)
        .with_context(|| format!("no root {}", spec.root))?;
    let machine = Machine::create(
        stage.bed,
        &case.name,
        spec,
        root,
        (case.disk(), stage.changes),
    )?;
    if !case.compile {
        for package in &spec.carried {
            let key = (spec.root.clone(), package.clone());
            let modules = (stage.assets.modules.get(&key))
                .with_context(|| format!("the modules of {package} were not compiled"))?;
            modules::carry(&machine.root(), modules)?;
            if spec.kind == Kind::Vm {
                let version = modules::version(modules)?;
                let fakes = &stage.assets.fakes;
                simulation::fake(&machine.root(), &version, stage.machines, spec, fakes)?;
            }
        }
    }
    simulation::equip(&machine.root())?;
    simulation::firmware(&machine.root(), &spec.dmi)?;
    if !case.downloads_program {
        let program = stage.program.unwrap_or(&stage.assets.product);
        machine.put(program, "/usr/local/bin/gpu-bootstrap")?;
    }
    if let Some(directory) = (stage.assets.packages.as_ref()).filter(|_| case.release_packages) {
        let rpm = stage.assets.served(&spec.root).is_some();
        for (from, to) in release::files(directory, rpm)? {
            machine.put(&from, &to)?;
        }
    }
    if let Some(built) = (stage.assets.mig_parted.as_ref()).filter(|_| case.mig_parted) {
        mig_parted::equip(stage.bed, &machine, built)?;
    }
    if let Some(built) = (stage.assets.device_plugin.as_ref()).filter(|_| case.device_plugin) {
        device_plugin::equip(&machine, built)?;
    }
    if let Some(built) = (stage.assets.queues.as_ref()).filter(|_| case.queues) {
        queues::equip(&machine, built)?;
    }
    machine.put(&stage.assets.image, "/usr/lib/testbed/probe.tar")?;
    // The fake's inventory is linked from the start, so that the link never counts as a change.
    std::os::unix::fs::symlink(
        "/usr/lib/testbed/fake-nvml.toml",
        machine.root().join("etc/fake-nvml.toml"),
    )
    .context("cannot link the fake's inventory")?;
    if let Some(served) = stage.assets.served(&spec.root) {
        almalinux::configure(&machine.root(), served)?;
    }
    let repositories = (stage.assets).repositories(&spec.root, case.cluster.is_some());
    let (root, fakes) = (machine.root(), &stage.assets.fakes);
    if let Some(kernel) = &spec.kernel {
        ubuntu::configure(&root, kernel, repositories)?;
    }
    if spec.kernel.is_some() || spec.loads_modules {
        kernel::prepare(&root, machine.kernel(), stage.machines, spec, fakes)?;
    }
    for directory in &spec.image_files {
        let from = stage.bed.here("image-files").join(directory);
        let (from, to) = (from.to_string_lossy(), root.to_string_lossy());
        Cmd::new(["cp", "-rPT", "--preserve=mode,links", &from, &to])
            .ok()
            .with_context(|| format!("cannot copy the files of {directory}"))?;
    }
    let server = Server::start(&machine, repositories, &stage.assets.product)?;
    if let Some(rate) = stage.link.or(case.link.as_deref()) {
        machine.link(rate)?;
    }
    let cluster = match (&case.cluster, &stage.assets.kubernetes) {
        (Some(wish), Some((programs, for_pods, built))) => {
            if wish.agents {
                agents::equip(&machine, built, programs)?;
            }
            let programs = (&**programs, &**for_pods);
            Some(Cluster::start(stage.bed, &machine, programs, wish)?)
        }
        _ => None,
    };
    if let Some(name) = &case.config {
        let path = stage.bed.here("configs").join(&spec.configs).join(name);
        let template =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = fill(&template, &known(stage, case, &spec.root, cluster.as_ref()))
            .with_context(|| path.display().to_string())?;
        let target = machine.root().join("etc/gpu-bootstrap");
        fs::create_dir_all(&target).context("cannot create a directory")?;
        fs::write(target.join("config.toml"), text).context("cannot write the configuration")?;
    }
    if let Some(path) = &case.user_data {
        let path = stage.bed.repo.join(path);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let known = known(stage, case, &spec.root, cluster.as_ref());
        let text = seed::adapt(&text, &case.user_data_values, &known)?;
        match spec.cloud {
            Some(cloud) => cloud::join(stage.bed, &machine, cloud, &text)?,
            None => seed::make(&machine.seed(), &case.name, &text)?,
        }
    }
    Ok((machine, server, cluster))
}

impl Running<'_> {
    fn all(&mut self) -> Result<()> {
        let start = Instant::now();
        self.machine.boot()?;
        // User data may change the machine from its first moment on, so there is no earlier state.
        let idle = self.case.user_data.is_none();
        if idle {
            self.machine.settle(self.stage.deadline(300))?;
        }
        self.row("first boot", start, "ok");
        self.hold_all("before", &self.case.before)?;
        if idle {
            self.before = Some(Snapshot::take(&self.machine)?);
        }
        let is_earlier = self.stage.program.is_some();
        let mut not_measured: Vec<&String> = Vec::new();
        for step in &self.case.run {
            if step.current_only && is_earlier {
                not_measured.extend(&step.measure);
                continue;
            }
            self.step(step, &not_measured)
                .with_context(|| format!("step `{}`", step.title))?;
        }
        self.server.fault_happened()?;
        self.hold_all("after", &self.case.after)?;
        if let Some(scripts) = &self.case.after_uninstall {
            self.uninstall(scripts)?;
        }
        let start = Instant::now();
        self.machine.power_off()?;
        self.row("power off", start, "ok");
        Ok(())
    }

    /// Runs a step. It does not measure these methods.
    fn step(&mut self, step: &Step, not_measured: &[&String]) -> Result<()> {
        if self.stage.tell {
            out::heading(&step.title);
        }
        let start = Instant::now();
        let before = (!step.measure.is_empty())
            .then(|| anyhow::Ok((self.machine.used()?, self.machine.peak())))
            .transpose()?;
        let limit = match step.within {
            Some(seconds) => Duration::from_secs(seconds),
            None => self.stage.deadline(step.deadline.unwrap_or(600)),
        };
        let result = self.act(step, limit);
        let result = result.and_then(|said| self.console_has(&step.console).map(|()| said));
        self.row(&step.title, start, result.as_deref().unwrap_or("FAILED"));
        let row = self.rows.last_mut().context("a step has a row")?;
        row.timing = self.timing.take();
        if let Some((before, peak)) = before {
            let used = self.machine.used()?.since(before);
            let memory = peak.end()?;
            let measured = |name: &String| Measured {
                name: name.clone(),
                wall: row.took,
                used,
                memory,
            };
            let names = (step.measure.iter()).filter(|name| !not_measured.contains(name));
            row.measured = names.map(measured).collect();
        }
        result.map(drop)
    }

    fn act(&mut self, step: &Step, limit: Duration) -> Result<String> {
        use Action::{CutAtConsole, CutAtRecords, CutWhen, Until};
        let text = match &step.action {
            Until(text) | CutWhen(text) | CutAtConsole(text) | CutAtRecords(text) => {
                fill(text, &self.values)?
            }
            _ => String::new(),
        };
        let machine = &mut self.machine;
        match &step.action {
            Action::Run(_) | Action::Join(_) | Action::Resumed => {
                power::wake(machine, limit)?;
                self.command(step, limit)
            }
            Action::Boot(boot) => self.reboot(*boot),
            Action::Server(serving) => {
                let mut serving = serving.clone();
                if let Some(package) = &mut serving.package {
                    *package = fill(package, &self.values)?;
                }
                self.server.behave(machine, &serving)?;
                Ok(serving.tell())
            }
            Action::Network(state) => machine.network(*state).map(|()| format!("{state:?}")),
            Action::ControlPlane(behaviour) => {
                let cluster = self.cluster.as_mut().context("no control plane")?;
                (cluster.behave(machine, *behaviour)).map(|()| format!("{behaviour:?}"))
            }
            Until(_) => power::until(machine, &text, step.reboots, limit),
            CutWhen(_) => power::cut_when(machine, &text, step.reboots, limit),
            CutAtConsole(_) => power::cut_at_console(machine, &text, limit),
            CutAtRecords(_) => {
                power::cut_at_records(machine, &text, step.every.unwrap_or(1), limit)
            }
            Action::Unchanged => {
                power::wake(machine, limit)?;
                self.unchanged()
            }
        }
    }

    fn console_has(&self, texts: &[String]) -> Result<()> {
        for text in texts {
            let console = self.machine.console()?;
            if !console.contains(text) {
                bail!(
                    "its console does not contain `{text}`:\n{}",
                    out::tail(&console, 40)
                );
            }
        }
        Ok(())
    }

    fn command(&mut self, step: &Step, limit: Duration) -> Result<String> {
        let script = units::script(step).context("a step without a script")?;
        let script = fill(&script, &self.values)?;
        if self.stage.tell && step.show {
            out::say(format!("  # {}", script.trim().replace('\n', "\n  # ")));
        }
        if step.only_queries {
            watch::start(&self.machine)?;
        }
        let mut command = self.machine.exec(&script).deadline(limit);
        if self.stage.tell && step.show {
            // In a terminal the product uses the terminal, as on a real machine, so there is no output to check.
            command = match std::io::stdout().is_terminal() && !step.is_read() {
                true => command.terminal(),
                false => command.show("  | "),
            };
        }
        let done = command.run()?;
        let mut result = format!("exit {}", done.code);
        if step.only_queries {
            let calls = watch::stop(&self.machine)?;
            let changing: Vec<&String> =
                calls.iter().filter(|call| !watch::is_query(call)).collect();
            if !changing.is_empty() {
                bail!("package tools were started to change something: {changing:?}");
            }
            result = format!("{result}, {} package queries", calls.len());
        }
        expect(step, &done, &self.values, &mut self.plans)?;
        if let Some(name) = &step.timing_of {
            self.timing = Some((name.clone(), Timing::read(&done.stdout)?));
        }
        Ok(result)
    }

    fn reboot(&mut self, boot: Boot) -> Result<String> {
        self.machine.power_off()?;
        if self.machine.spec().kind.is_emulated() {
            if boot != Boot::Plain {
                bail!("a machine with its own bus loads real drivers");
            }
            self.machine.boot()?;
            return Ok("ok".into());
        }
        self.machine.choose_kernel()?;
        let root = self.machine.root();
        let spec = self.machine.spec();
        let text = match boot {
            Boot::Plain => {
                simulation::unload_driver(&root, &spec.functions)?;
                "no driver is loaded".to_string()
            }
            Boot::SimulatedDriver => {
                let kernel = self.machine.kernel().to_string();
                let driver = simulation::load_driver(
                    &root,
                    &kernel,
                    self.stage.machines,
                    spec,
                    &self.stage.assets.fakes,
                )?;
                format!(
                    "simulated: {} module {} loaded, fakes for NVML, CUDA, nvidia-smi and the persistence daemon",
                    driver.flavor, driver.version
                )
            }
        };
        if self.stage.tell {
            out::say(format!("  {text}"));
        }
        self.machine.boot()?;
        Ok(text)
    }

    fn unchanged(&self) -> Result<String> {
        let now = Snapshot::take(&self.machine)?;
        let before = self.before.as_ref().context("no state to compare with")?;
        let except: Vec<String> = self
            .case
            .except
            .iter()
            .map(|one| one.line.clone())
            .collect();
        let changes = now.changes_since(before, &except);
        if !changes.is_empty() {
            bail!(
                "the machine is not in its original state:\n{}",
                changes.join("\n")
            );
        }
        Ok(format!("unchanged: {}", now.summary()))
    }

    fn uninstall(&mut self, scripts: &[String]) -> Result<()> {
        if self.stage.tell {
            out::heading("uninstall");
        }
        let start = Instant::now();
        let mut command = self
            .machine
            .exec("gpu-bootstrap uninstall")
            .deadline(self.stage.deadline(600));
        if self.stage.tell {
            command = command.show("  | ");
        }
        let done = command
            .ok()
            .inspect_err(|_| self.rows.push(failed("uninstall", start)))?;
        self.row("uninstall", start, &format!("exit {}", done.code));
        let start = Instant::now();
        let result = self.unchanged();
        self.row(
            "compare with the machine before",
            start,
            result.as_deref().unwrap_or("FAILED"),
        );
        result?;
        self.hold_all("after-uninstall", scripts)
    }

    /// Scripts of a case's list, each of which must succeed.
    fn hold_all(&mut self, list: &str, scripts: &[String]) -> Result<()> {
        for script in scripts {
            let start = Instant::now();
            let filled = fill(script, &self.values)?;
            let done = self
                .machine
                .exec(&format!("set -euo pipefail\n{filled}"))
                .run()?;
            if done.code != 0 || done.late {
                self.rows.push(failed(list, start));
                let script = script.trim();
                bail!(
                    "`{list}`: {}, and must exit with 0: `{script}`\n{}",
                    done.verdict(),
                    done.output_tail(20)
                );
            }
            self.row(list, start, "ok");
        }
        Ok(())
    }

    fn row(&mut self, title: &str, start: Instant, result: &str) {
        self.rows.push(Row {
            title: title.into(),
            took: start.elapsed(),
            measured: Vec::new(),
            timing: None,
            result: result.into(),
        });
    }

    /// Keeps a failed machine up for debugging, until the command is stopped.
    fn hold(&self, error: &anyhow::Error) {
        if !self.stage.keep {
            return;
        }
        out::say(format!("\ncase {} failed: {error:#}", self.case.name));
        let (state, command) = match self.machine.entry() {
            Some(entry) => ("is up; enter it", entry),
            None => {
                let disk = self.machine.root();
                (
                    "is down; look at its disk",
                    format!("ls {}", disk.display()),
                )
            }
        };
        let command = apart::from_outside(&command);
        out::say(format!("the machine {state} with\n\n    {command}\n"));
        out::say("This command waits until Ctrl-C, which stops the machine and removes it.");
        loop {
            std::thread::park();
        }
    }
}

fn failed(title: &str, start: Instant) -> Row {
    Row {
        title: title.into(),
        took: start.elapsed(),
        measured: Vec::new(),
        timing: None,
        result: "FAILED".into(),
    }
}

/// Compares the result of a command with the expectations of the case.
fn expect(
    step: &Step,
    done: &Done,
    values: &BTreeMap<String, String>,
    plans: &mut BTreeMap<String, String>,
) -> Result<()> {
    if done.late || done.code != step.exit {
        bail!(
            "expected exit {}, but it {}\n{}",
            step.exit,
            done.verdict(),
            documents::failures(&done.stdout).unwrap_or_else(|| done.output_tail(40))
        );
    }
    for (stream, text, wanted) in [
        ("stdout", &done.stdout, &step.stdout),
        ("stderr", &done.stderr, &step.stderr),
    ] {
        for part in wanted {
            let part = fill(part, values)?;
            // Human-readable text is wrapped, so a line end counts as a space.
            if !on_one_line(text).contains(&on_one_line(&part)) {
                bail!("`{part}` is not in {stream}:\n{}", out::tail(text, 40));
            }
        }
    }
    documents::expect(step, &done.stdout, plans)
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
