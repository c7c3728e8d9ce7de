//! `plan --os`: tries settings for a machine that is not there yet. What only the machine could tell is said to be
//! unknown.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    Failure,
    args::{self, OutputFormat},
    compat, machine, prepare, print,
    world::{Console, Env},
};
use crate::{
    compat::{
        matrix::{InstanceType, Matrix},
        names::Meaning,
    },
    config::{
        desired::{Desired, DriverWish, KernelWish, ModuleWay, PackageWish, Purpose},
        error::ResolveError,
        kernel,
        load::{self, Ask},
        resolve::{Flags, Resolution},
    },
    error::Report as _,
    exit::Exit,
    facts::{DeviceCatalog as _, Facts, GpuFact, Kernel, Os, Unknown},
    host::{Host, memory::Tree},
    model::{
        gpu::GpuIdentity,
        pci::PciAddress,
        version::{Branch, KernelVersion},
    },
    report::document::{SCHEMA, TOOL, Tool},
};

/// The architecture of a machine for which nobody has named one.
const USUAL_ARCH: &str = "x86_64";

/// What reading a file of that machine would answer.
const NO_MACHINE: &str = "no machine was looked at";

pub(super) fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::PlanArgs,
    system: &str,
) -> Result<Exit, Failure> {
    let matrix = machine::matrix(host, env)?;
    let os = compat::os_named(system)?;
    let machines = machines(&matrix, &args.trial, &os)?;
    let ask = Ask {
        profile: args.target.profile.clone(),
        config: prepare::absolute_all(&args.target.config)?,
        set: args.target.set.clone(),
        flags: Flags {
            trial: true,
            ..Flags::default()
        },
        secrets: env.secrets.clone(),
        ..Ask::default()
    };
    let nothing = nothing();
    let mut tried = Vec::new();
    for machine in machines {
        let named = &*host.files;
        let found = load::load(&*nothing.files, named, &ask, &machine.facts, &matrix);
        tried.push((machine, found));
    }
    let (machine, resolution) = alike(tried, &args.trial)?;
    console.warn(&resolution.warnings);
    let document = TrialDocument::of(&machine, &resolution, &args.trial);
    match args.output.format {
        OutputFormat::Json => print::json(&mut console.out, &document)?,
        OutputFormat::Human => print::text(&mut console.out, &document.human())?,
    }
    Ok(Exit::Ok)
}

/// A machine without any file: neither settings nor packages of this one count.
pub(super) fn nothing() -> Host {
    let mut tree = Tree::new(NO_MACHINE);
    tree.folder("/");
    tree.host()
}

/// What errors call the settings of a form of user data, which lie in no file yet.
pub(super) const SETTINGS: &str = "the form's settings";

/// A machine with these settings and no other file.
pub(super) fn with_settings(text: &str) -> Host {
    let mut tree = Tree::new(NO_MACHINE);
    tree.folder("/");
    tree.file(SETTINGS.to_owned(), text);
    tree.host()
}

/// A machine of which only the system is known.
pub(super) fn without_gpu(matrix: &Matrix, os: &Os) -> Facts {
    facts(matrix, os, USUAL_ARCH, &args::TrialArgs::default(), None)
}

/// A machine that is tried.
struct TrialMachine {
    /// For people: `p5.48xlarge (8 × H100 SXM5 80GB)`; `None` for one without a GPU.
    label: Option<String>,
    facts: Facts,
}

/// The machines that were named: several where the name of the GPU has several meanings.
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
        }]);
    };
    let meanings = matrix.meanings(name).map_err(|unknown| {
        Failure::usage(
            unknown,
            "`gpu-bootstrap compat --gpu NAME` knows the same names",
        )
    })?;
    let machine = |meaning: Meaning<'_>| {
        let arch = arch(asked, meaning.instance)?;
        Ok(TrialMachine {
            facts: facts(matrix, os, arch, asked, Some(&meaning)),
            label: Some(meaning.label),
        })
    };
    meanings.into_iter().map(machine).collect()
}

fn arch<'a>(asked: &'a args::TrialArgs, row: Option<&'a InstanceType>) -> Result<&'a str, Failure> {
    match (asked.arch.as_deref(), row) {
        (Some(arch), Some(row)) if arch != row.arch => Err(Failure::new(
            Exit::Usage,
            "arch-differs",
            &format!("try {} on {arch}: it is {}", row.name, row.arch),
            Some("leave `--arch` out"),
        )),
        (Some(arch), _) => Ok(arch),
        (None, Some(row)) => Ok(&row.arch),
        (None, None) => Ok(USUAL_ARCH),
    }
}

/// What detection would tell of the machine, as far as it was named.
fn facts(
    matrix: &Matrix,
    os: &Os,
    arch: &str,
    asked: &args::TrialArgs,
    meant: Option<&Meaning<'_>>,
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
    };
    if let Some(row) = meant.and_then(|meaning| meaning.instance) {
        facts.cloud.provider = Some(row.provider.clone());
        facts.cloud.instance_type = Some(row.name.clone());
    }
    if let Some(meaning) = meant
        && let Some(gpu) = &meaning.gpu
    {
        let count = meaning.instance.map_or(1, |row| row.gpus.max(1));
        let one = |at| gpu_fact(matrix, gpu, at);
        facts.gpus = (0..u8::try_from(count).unwrap_or(u8::MAX))
            .map(one)
            .collect();
    }
    facts
}

fn gpu_fact(matrix: &Matrix, gpu: &GpuIdentity, at: u8) -> GpuFact {
    let described = matrix.describe(gpu);
    GpuFact {
        pci_address: PciAddress {
            domain: 0,
            bus: at,
            device: 0,
            function: 0,
        },
        pci_id: gpu.pci_id,
        subsystem_id: gpu.subsystem_id,
        class: None,
        name: described.name,
        chip_name: gpu.chip_name.clone(),
        architecture: described.architecture,
        architecture_evidence: described.architecture_evidence,
        compute_capability: described.compute_capability,
        module_flavour: described.module_flavour,
        vgpu: described.vgpu,
        numa_node: None,
    }
}

/// The one answer for all machines that a name can mean.
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
            // The file is wrong, whatever the machine.
            Err(error) => return Err(error.into()),
        }
    }
    let differs = answers.windows(2).any(|pair| {
        let [one, other] = [&pair[0].1.desired, &pair[1].1.desired];
        installs(one) != installs(other)
    });
    if differs || !(answers.is_empty() || refused.is_empty()) {
        let name = asked.gpu.as_deref().unwrap_or_default();
        let fits = answers.iter().map(|(machine, resolution)| {
            let label = machine.label.as_deref().unwrap_or_default();
            let driver = resolution.desired.driver.as_ref();
            driver.map_or(label.to_owned(), |driver| {
                format!("{label}: {}", title(driver))
            })
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
                "try the settings on `{name}`, which can mean:\n{}",
                all.join("\n")
            ),
            Some("name one of them, by its PCI id or as an instance type"),
        ));
    }
    let count = answers.len();
    if let Some((mut machine, resolution)) = answers.into_iter().next() {
        if count > 1 {
            let name = asked.gpu.as_deref().unwrap_or_default();
            machine.label = Some(format!("any of the {count} GPUs that `{name}` can mean"));
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
        None => (Exit::Usage, "no GPU was named".to_owned()),
    };
    Failure::new(
        exit,
        "no-gpu",
        &format!("try the settings: {what}"),
        Some("name one with `--gpu`; for a node without GPUs set `gpu = \"optional\"`"),
    )
}

/// What two machines must have in common to be one answer.
fn installs(desired: &Desired) -> (Option<String>, Vec<&[PackageWish]>, Vec<&str>) {
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

fn title(driver: &DriverWish) -> String {
    format!(
        "driver branch {}, {} modules, from {}",
        driver.branch, driver.flavour, driver.source
    )
}

/// The answer. Its keys are a contract: they are added, never removed.
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
    flavour: String,
    source: &'r str,
    reasons: &'r [String],
    /// The ways to the modules, preferred first: which one is open is known only on the machine.
    ways: Vec<TrialWay>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct TrialWay {
    compiled: bool,
    packages: Vec<PackageWish>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct PackageGroup<'r> {
    r#for: &'r str,
    packages: &'r [PackageWish],
}

impl<'r> TrialDocument<'r> {
    fn of(machine: &'r TrialMachine, resolution: &'r Resolution, asked: &args::TrialArgs) -> Self {
        let (facts, desired) = (&machine.facts, &resolution.desired);
        let os = facts.os.as_ref();
        let version = os.and_then(|os| os.version_id.as_deref()).unwrap_or("");
        Self {
            schema: SCHEMA,
            tool: TOOL,
            machine: TriedMachine {
                os: format!("{} {version}", os.map_or("", |os| os.id.as_str())),
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
            reasons: &resolution.reasons,
            warnings: &resolution.warnings,
            unknown: unknown(facts, asked),
        }
    }

    fn human(&self) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        let gpu = machine.gpu.map_or_else(
            || "without a GPU".to_owned(),
            |label| format!("with {label}"),
        );
        let _ = writeln!(
            text,
            "the settings fit {} on {} {gpu}",
            machine.os,
            machine.arch.unwrap_or_default()
        );
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<16} {value}");
        };
        if let Some(driver) = &self.driver {
            let version =
                (driver.version.as_ref()).map_or_else(String::new, |one| format!(" {one}"));
            row(
                "driver",
                &format!(
                    "branch {}{version}, {} modules, from {}",
                    driver.branch, driver.flavour, driver.source
                ),
            );
            for reason in driver.reasons {
                row("", reason);
            }
            for (at, way) in driver.ways.iter().enumerate() {
                let name = if at == 0 { "  packages" } else { "  or" };
                let packages: Vec<String> = way.packages.iter().map(shown).collect();
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
        for reason in self.reasons {
            row("because", reason);
        }
        for (at, unknown) in self.unknown.iter().enumerate() {
            let name = if at == 0 { "unknown" } else { "" };
            row(name, &format!("{}: {}", unknown.fact, unknown.why));
        }
        text
    }
}

impl<'r> TrialDriver<'r> {
    fn of(driver: &'r DriverWish, kernel: Option<&KernelWish>, kernels: &[KernelVersion]) -> Self {
        let way = |wish: &KernelWish, way: &ModuleWay| {
            let templates: Vec<PackageWish> =
                way.packages.iter().chain(&way.headers).cloned().collect();
            TrialWay {
                compiled: way.is_compiled(),
                packages: match kernels {
                    [] => templates.iter().map(kernel::for_any_kernel).collect(),
                    kernels => wish.packages(&templates, kernels),
                },
            }
        };
        Self {
            branch: driver.branch,
            version: driver.version.as_ref().map(ToString::to_string),
            flavour: driver.flavour.to_string(),
            source: &driver.source,
            reasons: &driver.reasons,
            ways: (kernel.iter())
                .flat_map(|wish| wish.ways.iter().map(|one| way(wish, one)))
                .collect(),
        }
    }
}

/// The packages beside those of the driver, which its ways name.
fn groups(desired: &Desired) -> Vec<PackageGroup<'_>> {
    let named = |(purpose, packages)| {
        let r#for = match purpose {
            Purpose::Headers | Purpose::Driver => return None,
            Purpose::Runtime(wish) => wish.kind.name(),
            Purpose::Toolkit => "toolkit",
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

fn shown(wish: &PackageWish) -> String {
    match &wish.version {
        Some(version) => format!("{}={version}", wish.name),
        None => wish.name.clone(),
    }
}

/// What only the machine could tell.
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
            "`--kernel` names one; it decides which way to the modules is open, and `{…}` in names of packages",
        );
    }
    if asked.arch.is_none() && facts.cloud.instance_type.is_none() {
        add(
            "architecture",
            "x86_64 is assumed; `--arch` names another one",
        );
    }
    add(
        "packages",
        "which versions the repositories have, which sources the machine has, and what is installed there",
    );
    add(
        "secure-boot",
        "with it, only modules that are signed by a key of the machine load",
    );
    all
}
