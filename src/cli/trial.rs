//! `plan --os`: checks settings for a machine that does not exist yet, and rejects what `install` would reject there. Values
//! that only the machine can report are listed as unknown.

use std::fmt::Write as _;

use camino::Utf8PathBuf;
use serde::Serialize;

use super::{
    Failure,
    args::{self, OutputFormat},
    compat,
    env::{Console, Env},
    machine, plan, prepare, print,
};
use crate::{
    compat::{
        kernels::KernelPolicy,
        matrix::{InstanceType, Matrix},
        names::NameMatch,
    },
    config::{
        desired::{Desired, DriverSpec, KernelSpec, ModuleMethod, PackageSpec, Purpose},
        error::{Refusal, ResolveError},
        kernel,
        load::{self, SettingsRequest},
        resolve::{Flags, Resolution},
    },
    error::Report as _,
    exit::Exit,
    facts::{Facts, GpuFact, Kernel, Os, Unknown, switches},
    host::{Host, memory::Tree},
    mig::{GpuLayout, Layout, LayoutRequest, MigGpu, NoLayout, plugin_fault},
    model::{
        fault::Fault,
        pci::PciAddress,
        text::counted,
        version::{Branch, KernelVersion},
    },
    report::{
        Style,
        document::{SCHEMA, TOOL, Tool},
    },
    sharing::SharingSpec,
};

/// The default architecture.
const USUAL_ARCH: &str = "x86_64";

/// The reason why the files of a simulated machine are unknown, for error messages.
const NO_MACHINE: &str = "no machine was inspected";

/// The width of the names in the output.
const COLUMN: usize = 16;

/// Measured durations of `install` without validation: system, release, whether modules come from another node, and the
/// shortest and the longest run in seconds. Includes only runs with real driver packages. Source: `make bench`, driver 535 on two
/// slow CPUs. docs/tested.md contains the last run; the longest ones are from a slower host.
const MEASURED: [(&str, &str, bool, [u32; 2]); 2] = [
    ("debian", "12", false, [121, 295]),
    ("debian", "12", true, [33, 70]),
];

pub(super) fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::PlanArgs,
    system: &str,
) -> Result<Exit, Failure> {
    let matrix = machine::matrix(host, env)?;
    let (machine, resolution) = resolved(host, env, &matrix, (&args.target, &args.trial), system)?;
    console.warn(&resolution.warnings);
    rejected(&resolution.desired)?;
    let mut document = TrialDocument::of(&machine, &resolution, &args.trial);
    document.unknown.extend(machine.mig.unknown());
    document
        .unknown
        .extend(newer_than(&matrix, &resolution.desired));
    match args.output.format {
        OutputFormat::Json => print::json(&mut console.out, &document)?,
        OutputFormat::Human => {
            let command = plan::install_command(&args.target, None, &args.image);
            let text = document.human(&command, console.out_style());
            print::text(&mut console.out, &text)?;
        }
    }
    Ok(Exit::Ok)
}

/// Resolves settings for a machine that does not exist yet.
///
/// # Errors
/// If the settings are invalid, or the options do not specify one machine.
pub(super) fn resolved(
    host: &Host,
    env: &Env,
    matrix: &Matrix,
    (target, trial): (&args::TargetArgs, &args::TrialArgs),
    system: &str,
) -> Result<(TrialMachine, Resolution), Failure> {
    let os = compat::os_named(system)?;
    let machines = machines(matrix, trial, &os)?;
    let ask = SettingsRequest {
        profile: target.profile.clone(),
        config: prepare::absolute_all(&target.config)?,
        set: target.set.clone(),
        flags: Flags {
            trial: true,
            ..Flags::default()
        },
        secrets: env.secrets.clone(),
        ..SettingsRequest::default()
    };
    let nothing = nothing();
    let mut tried = Vec::new();
    for mut machine in machines {
        let named = &*host.files;
        let found = load::load(&*nothing.files, named, &ask, &machine.facts, matrix);
        let found = found.and_then(|resolution| {
            machine.mig = MigPlan::of(&machine.facts, &resolution.desired)?;
            refuse_sharing(&machine.facts, &resolution.desired)?;
            Ok(resolution)
        });
        tried.push((machine, found));
    }
    alike(tried, trial)
}

/// The MIG layouts of a simulated machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MigPlan {
    /// None is configured.
    None,
    /// The layout of each GPU that supports MIG.
    Layouts(Vec<GpuLayout>),
    /// The reason that only the machine shows them.
    Unknown(String),
}

impl MigPlan {
    /// Computes the layouts like the step `driver.mig`.
    ///
    /// # Errors
    /// If the layout does not fit on the GPUs.
    fn of(facts: &Facts, desired: &Desired) -> Result<Self, Refusal> {
        let Some(spec) = desired.mig.as_ref().filter(|_| !facts.gpus.is_empty()) else {
            return Ok(Self::None);
        };
        if let LayoutRequest::File { path, .. } = &spec.layout {
            return Ok(Self::Unknown(format!(
                "`{path}` is only read on the machine"
            )));
        }
        let gpus: Vec<MigGpu> = (facts.gpus.iter())
            .map(|gpu| {
                MigGpu::of_model(
                    gpu.pci_address,
                    gpu.pci_id,
                    gpu.subsystem_id,
                    gpu.name.as_deref(),
                    gpu.compute_capability,
                )
            })
            .collect();
        // The PCI addresses are simulated.
        let without_address = |text: String| {
            let names = gpus.iter().map(|gpu| (gpu.to_string(), &gpu.name));
            names.fold(text, |text, (full, name)| text.replace(&full, name))
        };
        match spec.layout.layouts(None, &gpus) {
            Ok(layouts) => {
                let profiles = layouts.iter().flat_map(|one| one.layout.profiles());
                match plugin_fault(desired.device_plugin.mig_strategy, profiles) {
                    Some(fault) => Err(refused("mig-layout", fault)),
                    None => Ok(Self::Layouts(layouts)),
                }
            }
            Err(NoLayout::Later(gpu)) => Ok(Self::Unknown(format!(
                "only the driver reports the MIG profiles of {}",
                without_address(gpu)
            ))),
            Err(NoLayout::Fault(fault)) => {
                let why = without_address(fault.why);
                Err(refused("mig-layout", Fault { why, ..fault }))
            }
        }
    }

    /// The layout of each GPU that supports MIG. `None` if it is not configured or unknown.
    fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Layouts(layouts) => layouts.first().map(|one| &one.layout),
            Self::None | Self::Unknown(_) => None,
        }
    }

    /// The layouts. `None` if a layout is not configured or unknown, or if another tool creates the instances.
    pub(super) fn instances(&self) -> Option<&[GpuLayout]> {
        match self {
            Self::Layouts(layouts) => {
                let is_known =
                    |one: &GpuLayout| !(one.layout.enabled && one.layout.profiles().is_empty());
                layouts.iter().all(is_known).then_some(&layouts[..])
            }
            Self::None | Self::Unknown(_) => None,
        }
    }

    /// Describes it in a list of GPUs with different results.
    fn title(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Layouts(_) => self.layout().map(|layout| format!("MIG layout {layout}")),
            Self::Unknown(why) => Some(format!("MIG layout unknown: {why}")),
        }
    }

    fn unknown(&self) -> Option<Unknown> {
        let Self::Unknown(why) = self else {
            return None;
        };
        Some(Unknown {
            fact: "mig-layout".to_owned(),
            why: why.clone(),
        })
    }
}

fn refused(reason: &'static str, fault: Fault) -> Refusal {
    Refusal {
        reason,
        why: fault.why,
        hint: Some(fault.remedy),
    }
}

/// Rejects sharing that the step `mps.daemon` would reject.
fn refuse_sharing(facts: &Facts, desired: &Desired) -> Result<(), Refusal> {
    let mps = desired.driver.as_ref().and(desired.device_plugin.mps());
    let Some((spec, _)) = mps else {
        return Ok(());
    };
    let fault = facts.gpus.iter().find_map(|gpu| {
        let name = gpu.name.as_deref().unwrap_or("the GPU");
        let capability = gpu.compute_capability.map(|it| it.to_string());
        spec.exceeds_mps(name, capability.as_deref())
    });
    match fault {
        Some(fault) => Err(refused("mps-replicas", fault)),
        None => Ok(()),
    }
}

/// Rejects versions that lack security fixes. The steps of `install` also reject them, unless the machine already has this
/// version.
pub(super) fn rejected(desired: &Desired) -> Result<(), Failure> {
    let driver = desired
        .driver
        .as_ref()
        .and_then(|driver| driver.vulnerable.as_ref());
    let toolkit = desired
        .toolkit
        .as_ref()
        .and_then(|toolkit| toolkit.vulnerable.as_ref());
    let all = [("driver.version", driver), ("toolkit.version", toolkit)];
    let failures = all.into_iter().filter_map(|(key, why)| {
        let hint =
            format!("set a fixed version as `{key}`, or set `driver.allow-vulnerable = true`");
        let message = format!("use `{key}`: {}", why?);
        Some(Failure::new(
            Exit::Blocked,
            "vulnerable",
            &message,
            Some(&hint),
        ))
    });
    Failure::unless_none(failures.collect())
}

/// Reports a driver version that is newer than the matrix as unknown, because it may not exist.
fn newer_than(matrix: &Matrix, desired: &Desired) -> Option<Unknown> {
    let driver = desired.driver.as_ref()?;
    let version = driver.version.as_ref()?;
    let newest = &matrix.branch(driver.branch)?.newest_version;
    (version > newest).then(|| Unknown {
        fact: "driver.version".to_owned(),
        why: format!(
            "{version} is newer than {newest}, the newest version in the matrix: only the package lists show if it exists"
        ),
    })
}

/// Returns a machine without files, so that the settings and packages of this machine have no effect.
pub(super) fn nothing() -> Host {
    let mut tree = Tree::new(NO_MACHINE);
    tree.directory("/");
    tree.host()
}

/// The file name in error messages about the settings of a user-data template.
pub(super) const SETTINGS: &str = "the template's settings";

/// Returns a machine with only these files.
pub(super) fn with_settings(texts: Vec<(Utf8PathBuf, String)>) -> Host {
    let mut tree = Tree::new(NO_MACHINE);
    tree.directory("/");
    for (path, text) in texts {
        tree.file(path.into_string(), text);
    }
    tree.host()
}

/// Returns the facts of a machine if only its operating system and maybe its architecture are known.
pub(super) fn without_gpu(matrix: &Matrix, os: &Os, arch: Option<String>) -> Facts {
    let arch = arch.as_deref().unwrap_or(USUAL_ARCH);
    facts(matrix, os, arch, &args::TrialArgs::default(), None)
}

/// A simulated machine.
pub(super) struct TrialMachine {
    /// The GPUs, such as `p5.48xlarge (8 × H100 SXM5 80GB)`. `None` without a GPU.
    label: Option<String>,
    pub(super) facts: Facts,
    pub(super) mig: MigPlan,
}

/// Returns the requested machines. A GPU name that matches several GPUs results in several machines.
fn machines(
    matrix: &Matrix,
    asked: &args::TrialArgs,
    os: &Os,
) -> Result<Vec<TrialMachine>, Failure> {
    let Some(name) = &asked.gpu else {
        let arch = arch(asked, None)?;
        return Ok(vec![TrialMachine {
            label: None,
            facts: facts(matrix, os, arch, asked, None),
            mig: MigPlan::None,
        }]);
    };
    let name_matches = matrix.name_matches(name).map_err(|unknown| {
        Failure::usage(
            unknown,
            "run `gpu-bootstrap compat --gpu NAME`, which accepts the same names",
        )
    })?;
    let machine = |name_match: NameMatch<'_>| {
        let arch = arch(asked, name_match.instance)?;
        Ok(TrialMachine {
            facts: facts(matrix, os, arch, asked, Some(&name_match)),
            label: Some(name_match.label),
            mig: MigPlan::None,
        })
    };
    name_matches.into_iter().map(machine).collect()
}

fn arch<'a>(asked: &'a args::TrialArgs, row: Option<&'a InstanceType>) -> Result<&'a str, Failure> {
    match (asked.arch.as_deref(), row) {
        (Some(arch), Some(row)) if arch != row.arch => Err(Failure::new(
            Exit::Usage,
            "arch-differs",
            &format!("plan for {} on {arch}: it is {}", row.name, row.arch),
            Some("omit `--arch`"),
        )),
        (Some(arch), _) => Ok(arch),
        (None, Some(row)) => Ok(&row.arch),
        (None, None) => Ok(USUAL_ARCH),
    }
}

/// Returns the facts that the options specify.
fn facts(
    matrix: &Matrix,
    os: &Os,
    arch: &str,
    asked: &args::TrialArgs,
    meant: Option<&NameMatch<'_>>,
) -> Facts {
    let nothing = Tree::new(NO_MACHINE).host();
    let mut facts = machine::facts(&nothing, matrix, machine::TEXT_ONLY);
    facts.os = Some(os.clone());
    facts.kernel = Kernel {
        running: asked.kernel.clone(),
        next_boot: asked.kernel.clone(),
        installed: asked.kernel.iter().cloned().collect(),
        arch: Some(arch.to_owned()),
        compiler: None,
        cgroup_v1: false,
    };
    if let Some(row) = meant.and_then(|name_match| name_match.instance) {
        facts.cloud.provider = Some(row.provider.clone());
        facts.cloud.instance_type = Some(row.name.clone());
    }
    if let Some(name_match) = meant
        && let Some(gpu) = &name_match.gpu
    {
        let count = name_match.gpus.unwrap_or(1);
        let one = |bus| {
            let address = PciAddress {
                domain: 0,
                bus,
                device: 0,
                function: 0,
            };
            GpuFact::described(address, gpu.clone(), Some(matrix))
        };
        facts.gpus = (0..u8::try_from(count).unwrap_or(u8::MAX))
            .map(one)
            .collect();
        if name_match.instance.is_none() && name_match.switches == Some(true) {
            switches::assume(&mut facts, matrix, gpu);
        }
    }
    facts
}

/// Returns the result that is the same for all machines. It is an error if the results differ, because the GPU name is
/// ambiguous.
fn alike(
    tried: Vec<(TrialMachine, Result<Resolution, ResolveError>)>,
    asked: &args::TrialArgs,
) -> Result<(TrialMachine, Resolution), Failure> {
    let mut answers: Vec<(TrialMachine, Resolution)> = Vec::new();
    let mut refused = Vec::new();
    for (machine, found) in tried {
        match found {
            Ok(resolution) => answers.push((machine, resolution)),
            Err(ResolveError::Refused(error)) => refused.push((machine, error)),
            // An invalid file is invalid for every machine.
            Err(error) => return Err(error.into()),
        }
    }
    let differs = answers.windows(2).any(|pair| {
        let [(one, first), (other, second)] = [&pair[0], &pair[1]];
        installs(&first.desired) != installs(&second.desired) || one.mig != other.mig
    });
    if differs || !(answers.is_empty() || refused.is_empty()) {
        let name = asked.gpu.as_deref().unwrap_or_default();
        let fits = answers.iter().map(|(machine, resolution)| {
            let label = machine.label.as_deref().unwrap_or_default();
            let driver = resolution.desired.driver.as_ref().map(title);
            let parts: Vec<String> = driver.into_iter().chain(machine.mig.title()).collect();
            match parts.is_empty() {
                true => label.to_owned(),
                false => format!("{label}: {}", parts.join(", ")),
            }
        });
        let not = refused.iter().map(|(machine, error)| {
            let label = machine.label.as_deref().unwrap_or_default();
            format!("{label}: {}", error.why)
        });
        let all: Vec<String> = fits.chain(not).collect();
        return Err(Failure::new(
            Exit::Usage,
            "gpu-ambiguous",
            &format!(
                "plan for `{name}`, which matches several GPUs:\n{}",
                all.join("\n")
            ),
            Some("select one of them with `--gpu` and its PCI ID or an instance type"),
        ));
    }
    let count = answers.len();
    if let Some((mut machine, resolution)) = answers.into_iter().next() {
        if count > 1 {
            let name = asked.gpu.as_deref().unwrap_or_default();
            machine.label = Some(format!(
                "{name} (same result for all {count} matching GPUs)"
            ));
        }
        return Ok((machine, resolution));
    }
    match refused.into_iter().next() {
        Some((machine, error)) if error.reason() == "no-gpu" => Err(no_gpu(machine.label)),
        Some((_, error)) => Err(error.into()),
        None => Err(no_gpu(None)),
    }
}

fn no_gpu(label: Option<String>) -> Failure {
    let (exit, what) = match label {
        Some(label) => (Exit::Blocked, format!("{label} has no NVIDIA GPU")),
        None => (Exit::Usage, "`--gpu` is missing".to_owned()),
    };
    Failure::new(
        exit,
        "no-gpu",
        &format!("plan for this system: {what}"),
        Some("add `--gpu NAME`; for a node without GPUs, add `--set gpu=optional`"),
    )
}

/// The parts of the desired state that must be equal for a common result.
fn installs(desired: &Desired) -> (Option<String>, Vec<&[PackageSpec]>, Vec<&str>) {
    let driver = desired.driver.as_ref();
    let groups = desired.package_groups().into_iter();
    (
        driver.map(title),
        groups.map(|(_, packages)| packages).collect(),
        (desired.repositories.iter())
            .map(|repository| repository.name.as_str())
            .collect(),
    )
}

fn title(driver: &DriverSpec) -> String {
    format!(
        "driver branch {}, {} modules, from {}",
        driver.branch, driver.flavor, driver.source
    )
}

/// The result. Its keys are a stable interface: keys are added, never removed.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TrialDocument<'r> {
    schema: u32,
    tool: Tool,
    machine: TriedMachine<'r>,
    driver: Option<TrialDriver<'r>>,
    repositories: Vec<&'r str>,
    packages: Vec<PackageGroup<'r>>,
    join: Option<&'r str>,
    /// The layout of each GPU that supports MIG.
    mig_layout: Option<String>,
    sharing: Option<&'r SharingSpec>,
    duration: Duration,
    reboots: Reboots,
    reasons: &'r [String],
    warnings: &'r [String],
    unknown: Vec<Unknown>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TriedMachine<'r> {
    os: String,
    arch: Option<&'r str>,
    kernel: Option<String>,
    gpu: Option<&'r str>,
    gpus: usize,
    instance_type: Option<&'r str>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TrialDriver<'r> {
    branch: Branch,
    version: Option<String>,
    flavor: String,
    source: &'r str,
    reasons: &'r [String],
    /// The install methods of the modules, preferred first. Only the machine shows which one is possible.
    methods: Vec<TrialMethod>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TrialMethod {
    compiled: bool,
    packages: Vec<PackageSpec>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct PackageGroup<'r> {
    r#for: &'r str,
    packages: &'r [PackageSpec],
}

/// The expected duration of `install`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Duration {
    /// The shortest and the longest measured run. `null` if there is no benchmark for these settings.
    about_seconds: Option<[u32; 2]>,
    /// The basis of the estimate, or the reason that there is none.
    basis: String,
}

impl Duration {
    fn of(id: &str, version: &str, driver: Option<&DriverSpec>, compiled: bool) -> Self {
        let system = format!("{id} {version}");
        let unknown = |basis: String| Self {
            about_seconds: None,
            basis,
        };
        let Some(driver) = driver else {
            return unknown("no benchmark without a driver".to_owned());
        };
        if !compiled {
            return unknown(format!(
                "no benchmark of packaged modules on {system} with real packages"
            ));
        }
        let prebuilt = driver.prebuilt.is_some();
        let row = MEASURED
            .iter()
            .find(|(of, release, with, _)| (*of, *release, *with) == (id, version, prebuilt));
        match row {
            Some((.., range)) => Self {
                about_seconds: Some(*range),
                basis: format!(
                    "estimate from benchmarks on {system} with two slow CPUs, without validation"
                ),
            },
            None => unknown(format!("no benchmark on {system}")),
        }
    }

    fn human(&self) -> String {
        match self.about_seconds {
            Some([least, most]) => format!("about {least} to {most} s ({})", self.basis),
            None => format!("unknown: {}", self.basis),
        }
    }
}

/// The number of reboots of `install`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Reboots {
    min: u32,
    max: u32,
    /// The conditions of a reboot.
    why: Vec<&'static str>,
}

impl Reboots {
    fn of(desired: &Desired) -> Self {
        let mut why = Vec::new();
        if desired.driver.is_some() {
            why.push("nouveau or nova is bound to a GPU");
            let policy = desired.kernel.as_ref().map(|kernel| kernel.policy);
            if policy != Some(KernelPolicy::No) {
                why.push("the running kernel cannot get the driver module, and another kernel is installed");
            }
        }
        Self {
            min: 0,
            max: u32::from(!why.is_empty()),
            why,
        }
    }

    fn human(&self) -> String {
        match self.why.is_empty() {
            true => "none".to_owned(),
            false => format!("none, or one if {}", self.why.join(", or if ")),
        }
    }
}

impl<'r> TrialDocument<'r> {
    fn of(machine: &'r TrialMachine, resolution: &'r Resolution, asked: &args::TrialArgs) -> Self {
        let (facts, desired) = (&machine.facts, &resolution.desired);
        let os = facts.os.as_ref();
        let id = os.map_or("", |os| os.id.as_str());
        let version = os.and_then(|os| os.version_id.as_deref()).unwrap_or("");
        let first = desired
            .kernel
            .as_ref()
            .and_then(|kernel| kernel.methods.first());
        let compiled = first.is_some_and(ModuleMethod::is_compiled);
        Self {
            schema: SCHEMA,
            tool: TOOL,
            machine: TriedMachine {
                os: format!("{id} {version}"),
                arch: facts.kernel.arch.as_deref(),
                kernel: facts.kernel.running.as_ref().map(ToString::to_string),
                gpu: machine.label.as_deref(),
                gpus: facts.gpus.len(),
                instance_type: facts.cloud.instance_type.as_deref(),
            },
            driver: (desired.driver.as_ref()).map(|driver| {
                let kernels = facts.kernel.running.as_slice();
                TrialDriver::of(driver, desired.kernel.as_ref(), kernels)
            }),
            repositories: (desired.repositories.iter())
                .map(|repository| repository.name.as_str())
                .collect(),
            packages: groups(desired),
            join: (desired.cluster.as_ref()).map(|cluster| cluster.method.name()),
            mig_layout: machine.mig.layout().map(ToString::to_string),
            sharing: desired.device_plugin.sharing.as_ref(),
            duration: Duration::of(id, version, desired.driver.as_ref(), compiled),
            reboots: Reboots::of(desired),
            reasons: &resolution.reasons,
            warnings: &resolution.warnings,
            unknown: unknown(facts, asked),
        }
    }

    fn human(&self, command: &str, style: Style) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        let gpu = machine.gpu.map_or_else(
            || "without a GPU".to_owned(),
            |label| format!("with {label}"),
        );
        let head = format!(
            "the settings fit {} on {} {gpu}",
            machine.os,
            machine.arch.unwrap_or_default()
        );
        let _ = writeln!(text, "{}", style.hanging("", &head));
        let mut row = |name: &str, value: &str| {
            let head = format!("{name:<COLUMN$} ");
            let _ = writeln!(text, "{}", style.hanging(&head, value));
        };
        if let Some(driver) = &self.driver {
            let version =
                (driver.version.as_ref()).map_or_else(String::new, |one| format!(" {one}"));
            row(
                "driver",
                &format!(
                    "branch {}{version}, {} modules, from {}",
                    driver.branch, driver.flavor, driver.source
                ),
            );
            for reason in driver.reasons {
                row("", reason);
            }
            for (at, method) in driver.methods.iter().enumerate() {
                let name = if at == 0 { "  packages" } else { "  or" };
                let packages: Vec<String> = method.packages.iter().map(shown).collect();
                row(name, &packages.join(", "));
            }
        }
        for group in &self.packages {
            let packages: Vec<String> = group.packages.iter().map(shown).collect();
            row(group.r#for, &packages.join(", "));
        }
        if !self.repositories.is_empty() {
            row("repositories", &self.repositories.join(", "));
        }
        row("join", self.join.unwrap_or("no cluster"));
        if let Some(layout) = &self.mig_layout {
            row("mig", &format!("{layout} on each GPU that supports MIG"));
        }
        if let Some(spec) = self.sharing {
            row(
                "sharing",
                &format!(
                    "{}, {} of each {}",
                    spec.method.name(),
                    counted(spec.replicas, "replica"),
                    spec.resources.join(", ")
                ),
            );
        }
        row("duration", &self.duration.human());
        row("reboots", &self.reboots.human());
        for reason in self.reasons {
            row("because", reason);
        }
        for (at, unknown) in self.unknown.iter().enumerate() {
            let name = if at == 0 { "unknown" } else { "" };
            row(name, &format!("{}: {}", unknown.fact, unknown.why));
        }
        let _ = writeln!(
            text,
            "\nTo apply these settings on such a machine:\n\n    {command}"
        );
        text
    }
}

impl<'r> TrialDriver<'r> {
    fn of(driver: &'r DriverSpec, kernel: Option<&KernelSpec>, kernels: &[KernelVersion]) -> Self {
        let method = |spec: &KernelSpec, method: &ModuleMethod| {
            let templates: Vec<PackageSpec> = method
                .packages
                .iter()
                .chain(&method.headers)
                .cloned()
                .chain(method.prebuilt_package())
                .collect();
            TrialMethod {
                compiled: method.is_compiled(),
                packages: match kernels {
                    [] => templates.iter().map(kernel::for_any_kernel).collect(),
                    kernels => spec.packages(&templates, kernels),
                },
            }
        };
        Self {
            branch: driver.branch,
            version: driver.version.as_ref().map(ToString::to_string),
            flavor: driver.flavor.to_string(),
            source: &driver.source,
            reasons: &driver.reasons,
            methods: (kernel.iter())
                .flat_map(|spec| spec.methods.iter().map(|one| method(spec, one)))
                .collect(),
        }
    }
}

/// Returns the packages other than driver packages and kernel headers, which [`TrialDriver`] contains.
fn groups(desired: &Desired) -> Vec<PackageGroup<'_>> {
    let named = |(purpose, packages)| {
        let r#for = match purpose {
            Purpose::Headers | Purpose::Driver => return None,
            Purpose::ContainerModules => "container-modules",
            Purpose::Runtime(spec) => spec.kind.name(),
            Purpose::Toolkit => "toolkit",
            Purpose::Dcgm => "dcgm",
            Purpose::Rdma => "rdma",
            Purpose::Cluster => "cluster",
            Purpose::Holds => "holds",
        };
        Some(PackageGroup { r#for, packages })
    };
    desired
        .package_groups()
        .into_iter()
        .filter_map(named)
        .collect()
}

fn shown(spec: &PackageSpec) -> String {
    match &spec.version {
        Some(version) => format!("{}={version}", spec.name),
        None => spec.name.clone(),
    }
}

/// Returns the values that only the machine can report.
fn unknown(facts: &Facts, asked: &args::TrialArgs) -> Vec<Unknown> {
    let mut all = Vec::new();
    let mut add = |fact: &str, why: &str| {
        all.push(Unknown {
            fact: fact.to_owned(),
            why: why.to_owned(),
        });
    };
    if asked.kernel.is_none() {
        add(
            "kernel",
            "specify it with `--kernel`; it determines the install method of the modules, and `{…}` in package names",
        );
    }
    if asked.arch.is_none() && facts.cloud.instance_type.is_none() {
        add(
            "architecture",
            "x86_64 is assumed; specify another one with `--arch`",
        );
    }
    add(
        "packages",
        "versions in the repositories, package sources of the machine, and installed packages",
    );
    add(
        "secure-boot",
        "if it is enabled, only modules load that are signed with a key of the machine",
    );
    all
}

#[cfg(test)]
mod tests {
    use super::{Duration, Reboots};
    use crate::{compat::kernels::KernelPolicy, steps::fixtures::desired};

    #[test]
    fn only_measured_systems_have_a_duration() {
        let desired = desired();
        let driver = desired.driver.as_ref();
        let of = |id: &str, version: &str, compiled| Duration::of(id, version, driver, compiled);
        assert_eq!(of("debian", "12", true).about_seconds, Some([121, 295]));
        for (id, version, compiled, why) in rows! {
            "debian", "13", true, "no benchmark on debian 13";
            "ubuntu", "24.04", false, "no benchmark of packaged modules";
        } {
            let duration = of(id, version, compiled);
            assert_eq!(duration.about_seconds, None, "{id} {version}");
            assert!(duration.human().contains(why), "{}", duration.human());
        }
    }

    #[test]
    fn reboots_depend_on_the_kernel_policy() {
        let mut desired = desired();
        assert_eq!(Reboots::of(&desired).max, 1);
        if let Some(kernel) = &mut desired.kernel {
            kernel.policy = KernelPolicy::No;
        }
        assert!(!Reboots::of(&desired).human().contains("kernel"));
        desired.driver = None;
        assert_eq!(Reboots::of(&desired).human(), "none");
    }
}
