//! Resolves profile, configuration, facts and matrix to the desired state of the machine. A pure function: all inputs
//! were read before.

use std::cell::RefCell;

use serde::Serialize;

use crate::{
    compat::{kernels::KernelPolicy, matrix::Matrix, security},
    config::{
        choices::Existing,
        cluster::{self, ClusterInputs},
        dcgm::DcgmInputs,
        desired::{
            Cdi, Desired, DriverSpec, Guard, Hold, KernelSpec, ModuleMethod, PackagePolicy,
            PackageSpec, Persistence, Purpose, ReportsSpec, RuntimeKind, RuntimeSpec, ToolkitSpec,
        },
        driver::DriverInputs,
        error::{Refusal, ResolveError, or_noted},
        file::Config,
        imex,
        kernel::{KernelRow, template},
        mig::mig,
        no_effect::{self, NoEffectInputs},
        profile::{Profile, ProfileChoice, Release, RuntimeRow, described},
        rdma,
        repositories::{Needed, RepositoryInputs},
        sharing,
        sources::{Provenance, SettingSources},
        template::Placeholders,
        validation::validation,
        values::{AbsolutePath, Holding, PackagePattern},
    },
    error::one_line,
    facts::{Facts, GpuFact, Os},
    model::{
        fault::Fault,
        gpu::GpuIdentity,
        pattern,
        pci::{PciAddress, PciId},
        secret::Secret,
        text::nearest,
    },
    runtimes::{
        cdi,
        choice::{self, Present},
    },
    tools::packages::SourceEntry,
};

/// The metrics file in the directory of the node_exporter textfile collector.
const METRICS: &str = "gpu_bootstrap.prom";

/// Options that only flags can set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--image`: this machine becomes an image.
    pub image: bool,
    /// `--assume-gpu`: the GPUs of the instances that boot the image.
    pub assume_gpus: Vec<PciId>,
    /// `plan --os`: there is no machine, so its kernel and its package sources may be unknown.
    pub trial: bool,
}

/// The inputs of the resolution.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The profile.
    pub choice: &'a ProfileChoice,
    /// The configuration.
    pub layers: &'a SettingSources,
    /// The machine.
    pub facts: &'a Facts,
    /// The compatibility matrix.
    pub matrix: &'a Matrix,
    /// The package sources of the machine, for further components of its archive.
    pub sources: &'a [SourceEntry],
    /// GPUs that are reserved for virtual machines.
    pub reserved: &'a [PciAddress],
    /// The container runtimes of the machine.
    pub present: &'a Present,
    /// The machine is already a cluster node.
    pub is_node: bool,
    pub flags: &'a Flags,
    /// The driver is the previous one, see [`SettingSources::only_driver`].
    pub is_rollback: bool,
}

/// The desired state of the machine with explanations.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resolution {
    /// The desired state.
    pub desired: Desired,
    /// Values that the user set, with locations. Everything else comes from the profile.
    pub provenance: Vec<Provenance>,
    /// Explanations of automatic choices. The driver has separate ones.
    pub reasons: Vec<String>,
    /// Warnings about the resolution, including those about the driver.
    pub warnings: Vec<String>,
}

/// Resolves the desired state.
///
/// # Errors
/// If a setting does not match the profile, or the machine does not support the desired state.
pub fn resolve(inputs: Inputs<'_>) -> Result<Resolution, ResolveError> {
    let profile = &inputs.choice.profile;
    let config = inputs.layers.merged()?;
    let (release, placeholders) = machine(profile, inputs.facts, inputs.flags)?;
    let gpus = gpus(inputs, &config);
    // Collect the errors of runtimes, cluster, GPUs, driver and validation to report all of them at once. Setting errors are
    // therefore also reported on a machine without a GPU.
    let wrong = &mut Vec::new();
    let (kinds, reason) = match &config.runtime.r#use {
        Some(kinds) => (kinds.clone(), None),
        None => {
            let join = config.cluster.join.unwrap_or_default();
            // Ignore an installed runtime without packages for this release in the profile.
            let is_served = |kind: &RuntimeKind| {
                let mut rows = profile.runtime.iter();
                rows.any(|row| row.kind == *kind && row.releases.contains(&release.version_id))
            };
            let mut present = inputs.present.clone();
            present.installed.retain(is_served);
            let (kinds, why) = choice::choose(join.runtimes(), &present);
            (kinds, Some(why))
        }
    };
    let runtimes = or_noted(runtime_rows(inputs, &config, release, &kinds), wrong);
    let cluster = ClusterInputs {
        config: &config.cluster,
        layers: inputs.layers,
        runtimes: &kinds,
        has_gpu: matches!(gpus, Ok(Some(_))),
        kernel: (placeholders.kernels.last().map(ToString::to_string))
            .or_else(|| release.kernel_series.clone()),
        cgroup_v1: match inputs.flags.trial {
            true => release.cgroup_v1,
            // An existing node keeps its kubelet configuration. An image boots on another machine.
            false => inputs.facts.kernel.cgroup_v1 && !inputs.is_node && !inputs.flags.image,
        },
        wrong: RefCell::default(),
    }
    .resolve();
    let cluster = or_noted(cluster, wrong);
    let device_plugin = or_noted(
        sharing::device_plugin(&config, inputs.layers, inputs.is_node),
        wrong,
    );
    let gpus = or_noted(gpus, wrong);
    let known = gpus.clone().flatten().unwrap_or_default();
    let driver_for = |gpus| DriverInputs {
        profile,
        release,
        config: &config.driver,
        layers: inputs.layers,
        facts: inputs.facts,
        matrix: inputs.matrix,
        placeholders: &placeholders,
        gpus,
        image: inputs.flags.image,
        trial: inputs.flags.trial,
    };
    let driver = match gpus.flatten() {
        Some(gpus) => driver_for(gpus).choose().map(Some),
        // The machines of a pool without GPUs may have the settings of the others.
        None if inputs.flags.trial => driver_for(Vec::new()).check().map(|()| None),
        None => Ok(None),
    };
    let driver = or_noted(driver, wrong);
    if let Some(Some(chosen)) = &driver
        && !inputs.is_rollback
        && let Err(error) = sharing::dra_driver(&config, inputs.layers, chosen.spec.branch)
    {
        wrong.push(error.into());
    }
    let validation = validation(
        (profile, inputs.layers, &config),
        (inputs.matrix, inputs.facts),
        (driver.as_ref().and_then(Option::as_ref)).map(|driver| (&driver.spec, known.as_slice())),
    );
    let validation = or_noted(validation, wrong);
    if let Err(error) = fleet(inputs.layers, &config) {
        wrong.push(error);
    }
    if let Err(error) = imex::check(&config.fabric, inputs.layers) {
        wrong.push(error.into());
    }
    let mig = or_noted(mig(&config.mig, inputs.layers), wrong);
    let (
        Some(runtimes),
        Some(cluster),
        Some(device_plugin),
        Some(driver),
        Some(validation),
        Some(mig),
        true,
    ) = (
        runtimes,
        cluster,
        device_plugin,
        driver,
        validation,
        mig,
        wrong.is_empty(),
    )
    else {
        return Err(ResolveError::all(std::mem::take(wrong)));
    };
    let with_toolkit = driver.is_some() && config.toolkit.enabled.unwrap_or(true);
    let toolkit_lacks = toolkit_lacks(inputs.matrix, profile, &config).filter(|_| with_toolkit);
    let cdi = (with_toolkit && config.cdi.enabled.unwrap_or(true)).then(|| Cdi {
        path: cdi::FILE.into(),
    });
    let chosen = DcgmInputs {
        profile,
        release,
        config: &config.dcgm,
        layers: inputs.layers,
        matrix: inputs.matrix,
        keeps_any_branch: config.driver.existing == Some(Existing::Keep)
            && config.driver.branch.is_none()
            && config.driver.version.is_none(),
        driver: driver.as_ref(),
    }
    .choose();
    // The settings may be impossible with the previous driver, and DCGM must not prevent its restoration.
    let (dcgm, without_dcgm) = match chosen {
        Err(error) if inputs.is_rollback => {
            let why = format!(
                "the previous driver is restored without DCGM: {}",
                one_line(&error)
            );
            (None, Some(why))
        }
        chosen => (chosen?, None),
    };
    let rdma = rdma::choose(
        profile,
        release,
        &placeholders.arch,
        &config.rdma.modules,
        driver.as_ref(),
    );
    let by_cdi = runtimes.iter().find(|row| row.kind.daemon().is_none());
    if let (Some(_), Some(row)) = (&driver, by_cdi) {
        cdi_reaches(inputs, row.kind, with_toolkit, cdi.is_some())?;
    }

    let mut needed: Vec<Needed<'_>> = Vec::new();
    if let Some(driver) = &driver {
        let requested = driver.spec.packages.iter().map(|spec| spec.name.clone());
        let pinned = driver.pin.iter().flat_map(|pin| pin.packages.clone());
        needed.push(Needed {
            repositories: &driver.row.repositories,
            packages: requested.chain(pinned).collect(),
        });
    }
    needed.extend(runtimes.iter().map(|row| Needed {
        repositories: &row.repositories,
        packages: row.packages.clone(),
    }));
    if with_toolkit {
        needed.push(Needed {
            repositories: &profile.toolkit.repositories,
            packages: profile.toolkit.packages.clone(),
        });
    }
    needed.extend(dcgm.iter().map(|(spec, row)| Needed {
        repositories: &row.repositories,
        packages: spec.packages.iter().map(|one| one.name.clone()).collect(),
    }));
    needed.extend(rdma.iter().map(|(spec, row)| Needed {
        repositories: &row.repositories,
        packages: spec.packages.iter().map(|one| one.name.clone()).collect(),
    }));
    // Each Kubernetes minor version has a separate repository, which is the same for all profiles.
    let kubernetes = cluster::repository(&config.cluster, profile.manager, &release.version_id);
    let named = [cluster::REPOSITORY.to_owned()];
    if let Some(cluster) = &cluster
        && kubernetes.is_some()
    {
        needed.push(Needed {
            repositories: &named,
            packages: (cluster.packages.iter())
                .map(|spec| spec.name.clone())
                .collect(),
        });
    }
    let repository_inputs = RepositoryInputs {
        profile,
        further: kubernetes.as_slice(),
        release,
        placeholders: &placeholders,
        config: &config.repositories,
        layers: inputs.layers,
        sources: (!inputs.flags.trial).then_some(inputs.sources),
    };
    let repositories = repository_inputs.choose(&needed)?;
    // Without a known GPU, the repository of the driver is also unused.
    let unused_repositories = if driver.is_some() {
        repository_inputs.unused(&needed)
    } else {
        Vec::new()
    };

    let headers = (driver.as_ref())
        .map(|driver| placeholders.for_kernels(&driver.methods[0].headers))
        .unwrap_or_default();
    // Runtimes with a daemon and clusters need these kernel modules. Podman does not, and kernels on EKS and provider nodes
    // include them.
    let runs_containers = (kinds.iter()).any(|kind| kind.daemon().is_some())
        || (cluster.as_ref())
            .is_some_and(|cluster| !cluster.method.implementation().has_kernel_of_provider());
    let container_modules = match runs_containers {
        true => placeholders.kernel_templates(&release.container_modules),
        false => Vec::new(),
    };
    let nvidia_default = config.runtime.nvidia_default.unwrap_or(false);
    let has_driver = driver.is_some();
    let kernel = (driver.as_ref()).map(|driver| {
        let policy = config.driver.may_change_kernel.unwrap_or_default();
        KernelSpec {
            container_modules: container_modules.clone(),
            ..kernel(
                profile.kernel.as_ref(),
                &placeholders,
                policy,
                &driver.methods,
            )
        }
    });
    let dcgm = dcgm.map(|(spec, _)| spec);
    let rdma = rdma.into_iter().map(|(spec, _)| spec).collect();
    let (driver, pin) = driver.map_or((None, None), |chosen| (Some(chosen.spec), chosen.pin));
    let mut desired = Desired {
        profile: profile.name.clone(),
        image: inputs.flags.image,
        assume_gpus: inputs.flags.assume_gpus.clone(),
        settings: config.clone(),
        packages: packages(profile, &config),
        repositories,
        pins: pin.into_iter().collect(),
        deny_modules: profile.modules.deny.clone(),
        headers,
        container_modules: placeholders.for_kernels(&container_modules),
        kernel,
        driver,
        persistence: (has_driver && config.persistence.enabled.unwrap_or(true)).then(|| {
            Persistence {
                unit: profile.persistence.unit.clone(),
            }
        }),
        mig: mig.filter(|_| has_driver),
        runtimes: runtimes
            .into_iter()
            .map(|row| RuntimeSpec {
                kind: row.kind,
                packages: specs(&row.packages, None),
                alternatives: row.alternatives.clone(),
                unit: row.unit.clone(),
                nvidia_default,
            })
            .collect(),
        runtime_restart: config.runtime.restart.unwrap_or_default(),
        toolkit: with_toolkit.then(|| ToolkitSpec {
            packages: specs(&profile.toolkit.packages, toolkit_version(&config)),
            vulnerable: (toolkit_lacks.clone())
                .filter(|_| !config.driver.allow_vulnerable.unwrap_or(false)),
        }),
        dcgm,
        rdma,
        cdi,
        validation,
        hold: hold(profile, &config),
        cluster,
        device_plugin,
        reports: reports(&config),
    };
    // If the package lists decide the branch, it is not known yet, so transactions are not restricted to it. The required
    // packages get exact versions instead.
    desired.packages.guard.driver = (desired.driver.as_ref())
        .filter(|_| !desired.kernel.as_ref().is_some_and(KernelSpec::is_open))
        .map(|driver| driver.branch);
    desired.packages.guard.modules = (desired.kernel.iter())
        .flat_map(KernelSpec::module_patterns)
        .collect();
    desired.packages.guard.without_compiler = config.driver.prebuilt.only;
    desired.packages.guard.exact = (desired.driver.iter())
        .flat_map(DriverSpec::exact_names)
        .cloned()
        .collect();
    hold_what_is_wanted(&mut desired);
    let mut warnings = inputs.choice.warnings.clone();
    // The reserved GPUs of a machine that builds an image are irrelevant for the instances of the image.
    if !inputs.flags.image && !inputs.reserved.is_empty() {
        warnings.push(format!(
            "not available to containers because they are reserved for virtual machines (bound to \
             `vfio-pci`): {}",
            addresses(inputs.reserved)
        ));
    }
    warnings.extend((desired.driver.iter()).flat_map(|driver| driver.warnings.iter().cloned()));
    warnings.extend(toolkit_lacks);
    warnings.extend(without_dcgm);
    warnings.extend(rdma::replaceable(
        &config.rdma.modules,
        desired.driver.as_ref(),
        &placeholders.kernels,
    ));
    warnings.extend(no_effect::warnings(&NoEffectInputs {
        config: &config,
        layers: inputs.layers,
        unused_repositories,
        driver_source: (desired.driver.as_ref()).map(|driver| driver.source.as_str()),
        kernel: desired.kernel.as_ref(),
        runtimes: &kinds,
    }));
    if placeholders.kernels.is_empty() && !inputs.flags.trial {
        warnings.push("the running kernel and the default boot kernel are unknown".into());
    }
    Ok(Resolution {
        desired,
        provenance: inputs.layers.provenance(),
        reasons: reason.into_iter().collect(),
        warnings,
    })
}

/// Returns the release and the placeholder values for this machine, or the reason that it is not supported.
fn machine<'p>(
    profile: &'p Profile,
    facts: &Facts,
    flags: &Flags,
) -> Result<(&'p Release, Placeholders), Refusal> {
    let supported = || format!("profile `{}` supports {}", profile.name, profile.serves());
    let unsupported = |os: &Os| {
        let own = (profile.refused.iter())
            .find(|row| os.version_id.as_ref() == Some(&row.version_id))
            .map_or_else(String::new, |row| format!(": {}", row.why));
        Refusal::new(
            "os-unsupported",
            format!("{} is not supported{own}", described(os)),
            supported(),
        )
    };
    let os = (facts.os.as_ref()).ok_or_else(|| {
        Refusal::new(
            "os-unknown",
            "the operating system is unknown".into(),
            supported(),
        )
    })?;
    let (version, release) = (os.version_id.as_ref())
        .and_then(|version| Some((version, profile.release_for(version)?)))
        .ok_or_else(|| unsupported(os))?;
    let arch = facts.kernel.arch.as_deref().ok_or_else(|| {
        Refusal::new(
            "arch-unknown",
            "the architecture is unknown".into(),
            supported(),
        )
    })?;
    let names = (profile.architecture.get(arch))
        .filter(|_| release.architectures.iter().any(|served| served == arch))
        .ok_or_else(|| {
            Refusal::new(
                "arch-unsupported",
                format!("{} on {arch} is not supported", described(os)),
                supported(),
            )
        })?;
    let placeholders =
        Placeholders::new((release, version), arch, names, &facts.kernel, flags.image);
    Ok((release, placeholders))
}

/// Returns the GPUs that need a driver. `None` if there is none and none is required.
fn gpus(inputs: Inputs<'_>, config: &Config) -> Result<Option<Vec<GpuIdentity>>, Refusal> {
    let Inputs { facts, flags, .. } = inputs;
    if !flags.assume_gpus.is_empty() {
        let assumed = flags.assume_gpus.iter().map(|id| GpuIdentity {
            pci_id: *id,
            subsystem_id: None,
            chip_name: None,
        });
        return Ok(Some(assumed.collect()));
    }
    let usable: Vec<&GpuFact> = (facts.gpus.iter())
        .filter(|gpu| flags.image || !inputs.reserved.contains(&gpu.pci_address))
        .collect();
    if let Some(slice) = usable.iter().find(|gpu| gpu.vgpu) {
        return Err(Refusal::new(
            "vgpu",
            format!(
                "{} at {} is a vGPU, which needs the licensed GRID guest driver",
                slice.name.as_deref().unwrap_or("a GPU"),
                slice.pci_address
            ),
            "install the GRID guest driver that matches the vGPU release of the hypervisor",
        ));
    }
    if !facts.virtual_functions.is_empty() {
        return Err(Refusal::new(
            "vgpu-host",
            "the GPUs have virtual functions (SR-IOV), so they are assigned to virtual machines"
                .into(),
            "prepare the virtual machines instead, or disable the virtual functions to use the GPUs on this machine \
             (`/usr/lib/nvidia/sriov-manage -d ALL`)",
        ));
    }
    if !usable.is_empty() {
        return Ok(Some(usable.into_iter().map(GpuFact::identity).collect()));
    }
    if config.is_gpu_optional() {
        return Ok(None);
    }
    if !facts.gpus.is_empty() {
        return Err(Refusal::new(
            "gpus-reserved",
            format!(
                "all GPUs are reserved for virtual machines (bound to `vfio-pci`): {}",
                addresses(inputs.reserved)
            ),
            "remove the GPUs for containers from the `ids=` option of vfio-pci (in \
             `/etc/modprobe.d`, the kernel command line, or `driverctl list-overrides`), and \
             reboot. For a node without GPUs, set `gpu = \"optional\"`",
        ));
    }
    // With a configured branch and flavor, the driver of an image can be selected without knowing its GPUs.
    if flags.image && config.driver.branch.is_some() && config.driver.flavor.is_some() {
        return Ok(Some(Vec::new()));
    }
    Err(Refusal::new(
        "no-gpu",
        "no NVIDIA GPU is on the PCI bus".into(),
        "run `lspci -d 10de:` to list the GPUs. For an image, specify the GPUs of its instances with \
         `--image --assume-gpu PCI-ID`. For a pool with CPU nodes, set `gpu = \"optional\"`",
    ))
}

fn addresses(gpus: &[PciAddress]) -> String {
    let all: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    all.join(", ")
}

fn runtime_rows<'a>(
    inputs: Inputs<'a>,
    config: &Config,
    release: &Release,
    kinds: &[RuntimeKind],
) -> Result<Vec<&'a RuntimeRow>, ResolveError> {
    let profile = &inputs.choice.profile;
    let source = (config.runtime.source.as_ref())
        .map_or(release.runtime_source.as_str(), |source| source.as_str());
    let served = |row: &&RuntimeRow| row.releases.contains(&release.version_id);
    let mut rows: Vec<&RuntimeRow> = Vec::new();
    for &kind in kinds {
        if let Some(Fault { why, remedy }) = choice::unsupported(kind) {
            return Err(inputs.layers.wrong("runtime.use", why, Some(remedy)).into());
        }
        let of_kind = profile
            .runtime
            .iter()
            .filter(served)
            .filter(|row| row.kind == kind);
        // `runtime.source` has no effect on runtimes with only one source.
        let has_sources = kind.runtime().facts().has_sources;
        let row = of_kind
            .clone()
            .find(|row| row.source == source || !has_sources)
            .ok_or_else(|| {
                let known: Vec<&str> = of_kind.map(|row| row.source.as_str()).collect();
                if known.is_empty() {
                    let why = format!(
                        "no packages of {2} are known for {0} {1}",
                        profile.name,
                        release.version_id,
                        kind.name()
                    );
                    return inputs.layers.wrong("runtime.use", why, None);
                }
                let why = format!(
                    "on {} {} this runtime is available from {}",
                    profile.name,
                    release.version_id,
                    known.join(" and ")
                );
                let hint = nearest(source, known.iter().copied())
                    .map(|nearest| format!("did you mean `{nearest}`?"));
                inputs.layers.wrong("runtime.source", why, hint)
            })?;
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Rejects disabled CDI if a runtime supports GPUs only through CDI.
fn cdi_reaches(
    inputs: Inputs<'_>,
    kind: RuntimeKind,
    with_toolkit: bool,
    with_cdi: bool,
) -> Result<(), ResolveError> {
    if with_cdi {
        return Ok(());
    }
    let key = match with_toolkit {
        true => "cdi.enabled",
        false => "toolkit.enabled",
    };
    let name = kind.name();
    let why = format!("{name} supports GPUs only through CDI, which needs the toolkit");
    let hint = format!("set `{key} = true`, or remove {name} from `runtime.use`");
    let error = inputs.layers.wrong(key, why, Some(hint));
    Err(error.into())
}

fn kernel(
    row: Option<&KernelRow>,
    placeholders: &Placeholders,
    policy: KernelPolicy,
    methods: &[ModuleMethod],
) -> KernelSpec {
    let templates = |texts: &[String]| -> Vec<PackageSpec> {
        (texts.iter().map(|text| template(&placeholders.fill(text)))).collect()
    };
    KernelSpec {
        policy,
        arch: placeholders.arch.clone(),
        image: row.map(|row| template(&placeholders.fill(&row.image))),
        companions: row
            .map(|row| templates(&row.companions))
            .unwrap_or_default(),
        follow: row.map(|row| templates(&row.follow)).unwrap_or_default(),
        container_modules: Vec::new(),
        refused: row.map(|row| row.refused.clone()).unwrap_or_default(),
        methods: methods.to_vec(),
    }
}

fn packages(profile: &Profile, config: &Config) -> PackagePolicy {
    let own = &config.packages;
    PackagePolicy {
        manager: profile.manager,
        lock_timeout_seconds: own.lock_timeout.seconds(),
        proxy: own.proxy.as_ref().map(|proxy| Secret::new(proxy.expose())),
        no_proxy: own.no_proxy.clone(),
        pause_units: profile.packages.pause_units.clone(),
        may_remove: own.may_remove.as_deref().map(patterns).unwrap_or_default(),
        may_upgrade: own.may_upgrade.as_deref().map(patterns).unwrap_or_default(),
        guard: Guard {
            kernels: profile.packages.kernels.clone(),
            ..Guard::default()
        },
        bundled: None,
    }
}

/// Returns the outputs of the `check` timer. `None` if none is configured.
fn reports(config: &Config) -> Option<ReportsSpec> {
    let directory = config.check.textfile.clone().map(AbsolutePath::into_inner);
    let node_condition = config.check.node_condition.is_some();
    (directory.is_some() || node_condition).then(|| ReportsSpec {
        metrics: directory.map(|directory| directory.join(METRICS)),
        node_condition,
    })
}

/// Checks the settings of `upgrade` that depend on each other.
fn fleet(layers: &SettingSources, config: &Config) -> Result<(), ResolveError> {
    let fleet = &config.fleet;
    let wrong = |key: &str, why: &str, hint: &str| {
        let why = why.to_owned();
        Err(layers.wrong(key, why, Some(hint.to_owned())).into())
    };
    let commands = [
        ("fleet.leave-command", &fleet.leave_command),
        ("fleet.return-command", &fleet.return_command),
    ];
    for (key, command) in commands {
        let program = command.as_ref().map(|words| words.first());
        if program.is_some_and(|program| !program.is_some_and(|path| path.starts_with('/'))) {
            let hint =
                "set it to a list of program and arguments, such as `[\"/usr/local/sbin/drain\"]`";
            return wrong(key, "must start with an absolute path", hint);
        }
    }
    match (&fleet.leave_command, &fleet.return_command) {
        (Some(_), None) => wrong(
            "fleet.leave-command",
            "`fleet.return-command` is also required",
            "set it to the command that returns the node to service",
        ),
        (None, Some(_)) => wrong(
            "fleet.return-command",
            "`fleet.leave-command` is also required",
            "set it to the command that takes the node out of service",
        ),
        _ if fleet.timer && fleet.window.is_none() => wrong(
            "fleet.timer",
            "`fleet.window` is also required",
            "set the window in which the node may be upgraded, such as `\"Sat 02:00-05:00 UTC\"`",
        ),
        _ => Ok(()),
    }
}

fn hold(profile: &Profile, config: &Config) -> Hold {
    let default = &profile.hold;
    let kernel = match config.hold.unwrap_or_default() {
        Holding::None => {
            return Hold {
                patterns: Vec::new(),
                blacklist: Vec::new(),
                packages: Vec::new(),
            };
        }
        Holding::Driver => false,
        Holding::DriverAndKernel => true,
    };
    let with = |base: &[String], of_kernel: &[String]| {
        let further = if kernel { of_kernel } else { &[] };
        base.iter().chain(further).cloned().collect::<Vec<String>>()
    };
    let extra = (config.hold_extra.as_deref())
        .map(patterns)
        .unwrap_or_default();
    let mut hold = Hold {
        patterns: with(&default.patterns, &default.kernel),
        blacklist: with(&default.blacklist, &default.kernel_blacklist),
        packages: Vec::new(),
    };
    let backend = profile.manager.backend();
    hold.packages = (backend.hold_list().iter())
        .map(|list| template(list.package()))
        .collect();
    if let Some(updater) = backend.updater() {
        hold.blacklist
            .extend(extra.iter().map(|pattern| updater.pattern(pattern)));
    }
    hold.patterns.extend(extra);
    hold
}

/// Adds all required packages that match no hold pattern to the holds. Kernel headers and modules are not added, because the
/// setting `hold` specifies whether kernel packages are held.
fn hold_what_is_wanted(desired: &mut Desired) {
    if desired.hold.patterns.is_empty() {
        return;
    }
    let is_held = |name: &String| {
        (desired.hold.patterns.iter()).any(|pattern| pattern::matches(pattern, name))
    };
    let forgotten: Vec<String> = (desired.package_groups().into_iter())
        .filter(|(purpose, _)| {
            !matches!(
                purpose,
                Purpose::Headers | Purpose::ContainerModules | Purpose::Holds
            )
        })
        .flat_map(|(_, packages)| packages)
        .map(|spec| spec.name.clone())
        .filter(|name| !is_held(name))
        .collect();
    desired.hold.patterns.extend(forgotten);
}

fn patterns(patterns: &[PackagePattern]) -> Vec<String> {
    patterns.iter().map(ToString::to_string).collect()
}

/// Converts `1.20.0` to a pattern for all its revisions. `1.20.0-1` and `1.20.*` are unchanged.
fn toolkit_version(config: &Config) -> Option<String> {
    let version = config.toolkit.version.as_ref()?.as_str();
    if version.contains(['-', '*', '?']) {
        Some(version.to_owned())
    } else {
        Some(format!("{version}-*"))
    }
}

/// Returns the security fixes that an exact toolkit version lacks.
fn toolkit_lacks(matrix: &Matrix, profile: &Profile, config: &Config) -> Option<String> {
    let version = config.toolkit.version.as_ref()?.as_str();
    let mut names = profile.toolkit.packages.iter();
    let lacking = names.find_map(|name| security::of_package(matrix, name, version))?;
    (!version.contains(['*', '?'])).then_some(lacking.why)
}

fn specs(names: &[String], version: Option<String>) -> Vec<PackageSpec> {
    let spec = |name: &String| PackageSpec {
        name: name.clone(),
        version: version.clone(),
    };
    names.iter().map(spec).collect()
}
