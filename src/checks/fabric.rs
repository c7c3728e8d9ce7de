//! Fabric checks. GPUs behind NVSwitches require a running fabric manager with exactly the driver version. Otherwise CUDA
//! fails with error 802 (system not yet initialized).

use super::messages;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    fabric::{self, Gpus, Installation, Switches},
    facts::switches::Evidence,
    host::Nvml,
    model::{id::Id, version::DriverVersion},
    state::owner,
    step::StepError,
    tools::{packages::Manager, systemctl::UnitState},
};

const UNIT: Id = Id::new("nvl.fm.unit");
const VERSION: Id = Id::new("nvl.fm.version");
const SUBNET: Id = Id::new("nvl.nvlsm");
const STATE: Id = Id::new("nvl.fabric.state");

/// The fabric checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![UNIT, VERSION, SUBNET, STATE],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone)]
struct FabricState {
    switches: Switches,
    /// Names and versions of the installed packages of the fabric manager.
    packages: Result<Vec<(String, String)>, String>,
    subnet_manager: bool,
    files: Installation,
    /// The owner of the driver, if it also installs the fabric manager, outside of the packages and units of this system.
    owner: Option<&'static str>,
    /// Kernel modules that switches behind network devices need, but that are not loaded.
    not_loaded: Vec<&'static str>,
    /// The running kernel, if one of these modules does not exist for it.
    lacks_module: Option<String>,
    /// The GPUs are part of a rack, whose switches are managed elsewhere.
    rack: bool,
    /// The unit state. `Err` contains the reason why it was not queried.
    unit: Result<Option<UnitState>, String>,
    /// The version of the loaded driver.
    driver: Option<DriverVersion>,
    /// The fabric states of the GPUs. `Err` contains the reason why they are unknown.
    gpus: Result<Gpus, String>,
    /// The package manager of the machine.
    manager: Option<Manager>,
    /// The versions of the fabric manager package in the package lists. `None` if they are unknown, or if the installed package
    /// has the driver version.
    offered: Option<Vec<DriverVersion>>,
}

async fn detect(subject: &Subject<'_>) -> Result<FabricState, StepError> {
    let state = subject.state;
    let mut found = FabricState {
        switches: Switches::of(subject.matrix, subject.facts),
        packages: fabric::installed(state).await,
        subnet_manager: false,
        owner: owner(subject.host.files(), subject.facts)?
            .filter(|owner| owner.provides.fabric_manager)
            .map(|owner| owner.name),
        not_loaded: Vec::new(),
        lacks_module: None,
        unit: Ok(None),
        files: Installation::read(subject.host.files())?,
        rack: fabric::is_in_rack(subject.matrix, subject.facts),
        driver: state.loaded_driver()?.cloned(),
        gpus: Ok(Gpus::default()),
        manager: messages::manager(subject.host.files(), subject.facts.os.as_ref())?,
        offered: None,
    };
    found.gpus = match &found.driver {
        None => Err("no driver is loaded".to_owned()),
        Some(_) if subject.facts.gpus.is_empty() => Ok(Gpus::default()),
        Some(_) => match state.nvml().await {
            Nvml::Ready(view) => Ok(Gpus::of(&view.devices)),
            Nvml::NotQueried { why } => Err(why.clone()),
            _ => Err("NVML does not respond".to_owned()),
        },
    };
    if found.switches == Switches::None && !found.rack && found.gpus.as_ref().is_ok_and(Gpus::wait)
    {
        found.switches = Switches::Pci(0, Evidence::Nvml);
    }
    // The fabric manager is neither installed nor needed, so no other data is read.
    let installed = (found.packages.as_ref()).is_ok_and(|packages| !packages.is_empty());
    if found.switches == Switches::None && !installed && !found.files.exists {
        return Ok(found);
    }
    if matches!(found.switches, Switches::Managed(_)) {
        found.not_loaded = fabric::not_loaded(subject.host.files(), state.loaded_modules()?)?;
        found.lacks_module = kernel_without(subject, &found.not_loaded)?;
    }
    found.subnet_manager = fabric::has_subnet_manager(state).await;
    found.offered = offered(subject, &found).await?;
    found.unit = match state.unit(fabric::UNIT).await {
        Ok(unit) => Ok(unit),
        Err(error) => match error.not_queried() {
            Some(why) => Err(why.to_owned()),
            None => return Err(error.into()),
        },
    };
    Ok(found)
}

/// Returns the versions of the fabric manager package in the package lists. `None` if the installed package has the driver
/// version, if no driver is loaded, and if there are no lists or they cannot be queried.
async fn offered(
    subject: &Subject<'_>,
    state: &FabricState,
) -> Result<Option<Vec<DriverVersion>>, StepError> {
    let (Some(driver), Some(manager)) = (&state.driver, state.manager) else {
        return Ok(None);
    };
    let installed = state.packages.as_ref().ok().and_then(|all| all.first());
    let is_right = installed.is_some_and(|(_, version)| {
        DriverVersion::from_package(version).is_ok_and(|version| version == *driver)
    });
    if is_right {
        return Ok(None);
    }
    let name = match installed {
        Some((name, _)) => name.clone(),
        None => fabric::package(driver.branch(), Some(manager)),
    };
    Ok(fabric::offered(subject.host, manager, &name).await?)
}

/// Returns the running kernel, if one of the modules does not exist for it.
fn kernel_without(subject: &Subject<'_>, modules: &[&str]) -> Result<Option<String>, StepError> {
    let (Some(running), false) = (&subject.facts.kernel.running, modules.is_empty()) else {
        return Ok(None);
    };
    let running = running.to_string();
    let lacks_one = fabric::kernel_without(subject.host.files(), &running, modules)?;
    Ok(lacks_one.then_some(running))
}

/// Returns the finding for a fabric manager that is not needed. Without switches it fails at each boot.
fn unneeded(state: &FabricState) -> Finding {
    let (fails, how) = match &state.unit {
        Ok(Some(unit)) => (unit.is_enabled() && !unit.is_active(), unit.to_string()),
        Ok(None) => (false, String::new()),
        // Files show whether it is enabled, but not whether it runs.
        Err(_) => (state.files.enabled, "enabled".to_owned()),
    };
    if !fails || state.rack {
        return Finding::new(UNIT, Verdict::Skip, Switches::NOT_NEEDED);
    }
    Finding {
        observed: Some(how.clone()),
        remedy: Some(format!(
            "run `systemctl disable {unit}`, or remove the package",
            unit = fabric::UNIT
        )),
        ..Finding::new(
            UNIT,
            Verdict::Warn,
            format!(
                "no NVSwitch, but `{}` is {how} and fails at each boot without one",
                fabric::UNIT
            ),
        )
    }
}

fn unit(state: &FabricState) -> Finding {
    if state.switches == Switches::None {
        return unneeded(state);
    }
    let needed = state.switches.need();
    let finding = |status, why: String| Finding::new(UNIT, status, why);
    let fail = |observed: String, remedy: String| Finding {
        observed: Some(observed.clone()),
        expected: Some(format!("`{}` enabled and active", fabric::UNIT)),
        remedy: Some(remedy),
        ..finding(
            Verdict::Fail,
            format!(
                "{needed}, which is {observed}, so no program can use the GPUs (CUDA error 802)"
            ),
        )
    };
    // If the packages are unknown, the files decide. If the files are also inconclusive, the fabric manager is regarded as
    // installed.
    let installed = state.files.exists
        || (state.packages.as_ref())
            .map_or(!state.files.has_programs, |packages| !packages.is_empty());
    if let (Some(owner), Ok(None) | Err(_), false) = (state.owner, &state.unit, installed) {
        let all_in = |gpus: &Gpus| !gpus.is_empty() && !gpus.wait();
        return match state.gpus.as_ref().is_ok_and(all_in) {
            true => finding(
                Verdict::Pass,
                format!("{needed}, which is part of the driver of {owner}; the GPUs have joined"),
            ),
            false => finding(
                Verdict::Skip,
                format!(
                    "{needed}, which is part of the driver of {owner}; its state is not visible here"
                ),
            ),
        };
    }
    let install = || match &state.driver {
        Some(_) if state.switches == Switches::Pci(0, Evidence::Nvml) => format!(
            "in a virtual machine, ask the operator of the host to check its fabric manager; on the \
             machine with the switches, install `nvidia-fabricmanager` in the driver version and \
             run `systemctl enable --now {}`",
            fabric::UNIT
        ),
        Some(driver) => {
            let manager = state.manager;
            let name = fabric::package(driver.branch(), manager);
            let then = format!("systemctl enable --now {}", fabric::UNIT);
            (not_offered(state, &name, driver))
                .unwrap_or_else(|| at_version(manager, &name, driver, &then))
        }
        None => "install the driver, and the package `nvidia-fabricmanager` in the same version"
            .to_owned(),
    };
    match &state.unit {
        Ok(Some(unit)) if unit.is_active() && unit.is_enabled() => {
            finding(Verdict::Pass, format!("{needed}, and it runs"))
        }
        Ok(Some(unit)) if unit.is_active() => Finding {
            observed: Some(unit.to_string()),
            expected: Some(format!("`{}` enabled and active", fabric::UNIT)),
            remedy: Some(format!("run `systemctl enable {}`", fabric::UNIT)),
            ..finding(
                Verdict::Warn,
                format!(
                    "{needed}, which runs but is not enabled, so no program can use the GPUs after the next boot \
                     (CUDA error 802)"
                ),
            )
        },
        Ok(Some(unit)) => fail(
            unit.to_string(),
            match unit.active.as_str() {
                "failed" => format!("run `journalctl --unit {}` to see the reason", fabric::UNIT),
                _ => format!("run `systemctl enable --now {}`", fabric::UNIT),
            },
        ),
        Ok(None) => fail("not installed".to_owned(), install()),
        Err(_) if !installed => fail("not installed".to_owned(), install()),
        Err(_) if state.files.exists && state.files.lists_units && !state.files.enabled => {
            Finding {
                remedy: Some(format!("run `systemctl enable --now {}`", fabric::UNIT)),
                ..finding(
                    Verdict::Warn,
                    format!(
                        "{needed}, which is installed but not enabled: unless another service starts it, no program can use the \
                     GPUs after a boot (CUDA error 802)"
                    ),
                )
            }
        }
        Err(why) => finding(
            Verdict::Skip,
            format!("{needed}; its state is unknown: {why}"),
        ),
    }
}

/// Returns the remedy that installs a package in the driver version and then runs a command.
fn at_version(manager: Option<Manager>, name: &str, driver: &DriverVersion, then: &str) -> String {
    match manager {
        Some(manager) => {
            let commands = manager.backend().commands();
            let install = commands.install_versions(&[name], &driver.to_string());
            format!("run `{install} && {then}`")
        }
        None => format!("install the package `{name}` in version {driver}, then run `{then}`"),
    }
}

/// Returns the remedy if the package lists do not contain the package in the driver version.
fn not_offered(state: &FabricState, name: &str, driver: &DriverVersion) -> Option<String> {
    let offered = state.offered.as_ref()?;
    if offered.contains(driver) {
        return None;
    }
    let all: Vec<String> = offered
        .iter()
        .rev()
        .take(3)
        .map(ToString::to_string)
        .collect();
    Some(match &all[..] {
        [] => format!(
            "no configured repository has `{name}`: install the driver and the fabric manager in one version from one \
             repository, such as NVIDIA's"
        ),
        all => format!(
            "no configured repository has `{name}` in version {driver}: install the driver and the fabric manager in one \
             transaction in a version that both have (available: {})",
            all.join(", ")
        ),
    })
}

/// Returns the remedy for an installed package of another version. If the package lists are unknown, the remedy covers both
/// cases, because the driver version is often not available as a package (NVIDIA/gpu-operator issue 544).
fn other_version(state: &FabricState, name: &str, driver: &DriverVersion) -> String {
    let then = format!("systemctl restart {}", fabric::UNIT);
    let install = at_version(state.manager, name, driver, &then);
    match (state.manager, &state.offered) {
        (_, Some(_)) => not_offered(state, name, driver).unwrap_or(install),
        (Some(manager), None) => format!(
            "run `{}`; if {driver} is available, {install}; otherwise install the driver and the fabric manager in one \
             transaction in one version of a supported branch",
            manager.backend().commands().versions.replace("NAME", name)
        ),
        (None, None) => install,
    }
}

fn version(state: &FabricState) -> Finding {
    let finding = |status, why: String| Finding::new(VERSION, status, why);
    if state.switches == Switches::None {
        return finding(Verdict::Skip, state.switches.need());
    }
    let is_packaged = (state.packages.as_ref()).is_ok_and(|packages| !packages.is_empty());
    if let (Some(owner), false) = (state.owner, is_packaged) {
        return finding(
            Verdict::Skip,
            format!("the fabric manager is part of the driver of {owner}"),
        );
    }
    let packages = match &state.packages {
        Ok(packages) => packages,
        Err(_) if state.files.has_programs && !state.files.exists => {
            return finding(Verdict::Skip, "no fabric manager is installed".to_owned());
        }
        Err(why) => return finding(Verdict::Unknown, why.clone()),
    };
    let Some((name, text)) = packages.first() else {
        return finding(
            Verdict::Skip,
            "no fabric manager package is installed".to_owned(),
        );
    };
    let Some(driver) = &state.driver else {
        return finding(
            Verdict::Skip,
            format!("{name} {text} is installed, but no driver is loaded"),
        );
    };
    let version = match DriverVersion::from_package(text) {
        Ok(version) => version,
        Err(error) => return finding(Verdict::Unknown, format!("{name}: {error}")),
    };
    if version == *driver {
        return finding(Verdict::Pass, format!("both are {version}"));
    }
    Finding {
        observed: Some(version.to_string()),
        expected: Some(driver.to_string()),
        remedy: Some(other_version(state, name, driver)),
        ..finding(
            Verdict::Fail,
            format!(
                "the fabric manager version is {version}, but the loaded driver version is {driver}; they must be \
                 equal"
            ),
        )
    }
}

/// Whether the fabric manager cannot reach its switches because kernel modules are not loaded.
fn is_cut_off(state: &FabricState) -> bool {
    let stands = match &state.unit {
        Ok(Some(unit)) => !unit.is_active(),
        // A fabric manager in a driver container has no unit here.
        Ok(None) => state.owner.is_some(),
        Err(_) => true,
    };
    !state.not_loaded.is_empty() && stands
}

fn cut_off(state: &FabricState) -> Finding {
    let modules = state.not_loaded.join(", ");
    let load = format!(
        "run `modprobe --all {}`, add {modules} to a file in `/etc/modules-load.d`, and restart the fabric manager",
        state.not_loaded.join(" ")
    );
    Finding {
        observed: Some(format!("{modules} not loaded")),
        expected: Some(format!("{} loaded", fabric::SUBNET_MODULES.join(", "))),
        remedy: Some(match (&state.lacks_module, state.manager) {
            (Some(kernel), Some(manager)) => {
                let package = manager.backend().commands().extra_modules;
                let package = package.replace("KERNEL", kernel);
                format!(
                    "install the package that contains them for {kernel} ({package}); then {load}"
                )
            }
            (Some(kernel), None) => {
                format!("install the package that contains them for {kernel}; then {load}")
            }
            (None, _) => load,
        }),
        ..Finding::new(
            SUBNET,
            Verdict::Fail,
            format!(
                "the GPUs cannot join the fabric (CUDA error 802), because kernel modules required by the fabric manager are \
                 not loaded: {modules}"
            ),
        )
    }
}

fn subnet(state: &FabricState) -> Finding {
    let finding = |status, why: &str| Finding::new(SUBNET, status, why);
    match (&state.switches, &state.packages) {
        (Switches::None | Switches::Pci(..), _) => {
            finding(Verdict::Skip, "no switch needs a subnet manager")
        }
        (Switches::Managed(_), _)
            if is_cut_off(state) && (state.subnet_manager || state.owner.is_some()) =>
        {
            cut_off(state)
        }
        (Switches::Managed(_), _) if state.owner.is_some() && !state.subnet_manager => finding(
            Verdict::Skip,
            "the subnet manager is part of the driver, like the fabric manager",
        ),
        (Switches::Managed(_), Err(why)) => finding(Verdict::Unknown, why),
        (Switches::Managed(_), Ok(_)) if state.subnet_manager => finding(
            Verdict::Pass,
            "`nvlsm` is installed; the fabric manager starts it",
        ),
        (Switches::Managed(_), Ok(_)) => Finding {
            observed: Some("not installed".to_owned()),
            expected: Some("the package `nvlsm`".to_owned()),
            remedy: Some(match state.manager {
                Some(manager) => format!(
                    "run `{}`; the package is in the NVIDIA repository",
                    manager
                        .backend()
                        .commands()
                        .install
                        .replace("NAME", "nvlsm")
                ),
                None => "install the package `nvlsm` from the NVIDIA repository".to_owned(),
            }),
            ..finding(
                Verdict::Fail,
                "the NVLink switches need the subnet manager, which is not installed",
            )
        },
    }
}

fn joined(state: &FabricState) -> Finding {
    let finding = |status, why: String| Finding::new(STATE, status, why);
    let any_sick = (state.gpus.as_ref()).is_ok_and(|gpus| !gpus.unhealthy().is_empty());
    // In a guest or a rack no switch is visible, but the driver reports the fabric health.
    if state.switches == Switches::None && !any_sick {
        return finding(Verdict::Skip, state.switches.need());
    }
    let gpus = match &state.gpus {
        Ok(gpus) => gpus,
        Err(why) => return finding(Verdict::Skip, why.clone()),
    };
    if gpus.is_empty() {
        // GPUs before Hopper do not report their fabric state.
        return finding(
            Verdict::Skip,
            "NVML does not report a fabric state for these GPUs".to_owned(),
        );
    }
    let outside = gpus.outside();
    if outside.is_empty() {
        let sick = gpus.unhealthy();
        if sick.is_empty() {
            return finding(
                Verdict::Pass,
                format!("{} of {} GPUs have joined", gpus.len(), gpus.len()),
            );
        }
        return Finding {
            expected: Some("healthy".to_owned()),
            remedy: Some(format!(
                "drain the node, then check its links with `nvidia-smi nvlink --status` and read {}",
                log_of(state)
            )),
            ..finding(
                Verdict::Fail,
                format!(
                    "all GPUs have joined the fabric, but the driver reports {}",
                    sick.join(", ")
                ),
            )
        };
    }
    Finding {
        observed: Some(outside.join(", ")),
        expected: Some("completed".to_owned()),
        remedy: Some(match state.owner {
            None => format!(
                "run `systemctl restart {}`, after which the GPUs join again; {} contains the reason",
                fabric::UNIT,
                log_of(state)
            ),
            Some(_) => format!(
                "read {}; the GPUs join again when the fabric manager restarts",
                log_of(state)
            ),
        }),
        ..finding(
            Verdict::Fail,
            format!(
                "{} of {} GPUs are not in the fabric, so no program can use them (CUDA error 802)",
                outside.len(),
                gpus.len()
            ),
        )
    }
}

/// Returns the location of the fabric manager log.
fn log_of(state: &FabricState) -> String {
    match state.owner {
        Some(owner) => {
            format!("the log of the fabric manager, which is part of the driver of {owner}")
        }
        None => format!("`journalctl --unit {}`", fabric::UNIT),
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let state = detect(subject).await?;
    let mut unit = unit(&state);
    let subnet = subnet(&state);
    if is_cut_off(&state) && subnet.status == Verdict::Fail && unit.status == Verdict::Fail {
        unit.because = Some(SUBNET);
    }
    Ok(vec![unit, version(&state), subnet, joined(&state)])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        Evidence, FabricState, Gpus, Installation, Manager, Switches, joined, subnet, unit, version,
    };
    use crate::{
        check::Verdict,
        host::{FabricProgress, GpuFabric},
        steps::fixtures::{self, in_fabric},
    };

    /// Eight GPUs that have joined the fabric, except the specified ones.
    fn gpus<const N: usize>(other: [(u32, Option<GpuFabric>); N]) -> Gpus {
        let other = BTreeMap::from(other);
        let joined = || Some(in_fabric(FabricProgress::Completed, 0));
        (0..8)
            .map(|index| (index, other.get(&index).cloned().unwrap_or_else(joined)))
            .collect()
    }

    fn state() -> FabricState {
        FabricState {
            switches: Switches::Pci(4, Evidence::Bus(4)),
            files: Installation {
                has_programs: true,
                ..Installation::default()
            },
            owner: None,
            not_loaded: Vec::new(),
            lacks_module: None,
            rack: false,
            packages: Ok(vec![(
                "nvidia-fabricmanager-580".to_owned(),
                "580.178.04-0ubuntu0.24.04.1".to_owned(),
            )]),
            subnet_manager: false,
            unit: Ok(Some(fixtures::unit("enabled", "active"))),
            driver: "580.178.04".parse().ok(),
            gpus: Ok(gpus([])),
            manager: None,
            offered: None,
        }
    }

    #[test]
    fn command_installs_only_an_available_version() {
        let of = |offered: Option<&[&str]>, manager| {
            let state = FabricState {
                driver: "580.159.04".parse().ok(),
                manager,
                offered: offered.map(|all| all.iter().filter_map(|one| one.parse().ok()).collect()),
                ..state()
            };
            let remedy = version(&state).remedy.unwrap_or_default();
            let absent = FabricState {
                packages: Ok(Vec::new()),
                unit: Ok(None),
                ..state
            };
            (remedy, unit(&absent).remedy.unwrap_or_default())
        };
        let apt = Some(Manager::Apt);
        let both: &[&str] = &["580.159.04", "580.178.04"];
        let install = "run `apt-get install 'nvidia-fabricmanager";
        for (offered, manager, first, words) in rows! {
            Some(both), apt, install, "=580.159.04*'";
            Some(&both[1..]), apt, "no configured repository", "(available: 580.178.04)";
            Some(&both[..0]), apt, "no configured repository", "in one version from one repository";
            None, apt, "run `apt-cache policy nvidia-fabricmanager-580`", "if 580.159.04 is available";
            None, None, "install the package", "in version 580.159.04";
        } {
            let (remedy, absent) = of(offered, manager);
            assert!(
                remedy.starts_with(first) && remedy.contains(words),
                "{remedy}"
            );
            // If no package is installed and the lists are unknown, the command installs the driver version.
            let first = if offered.is_none() && manager.is_some() {
                install
            } else {
                first
            };
            assert!(absent.starts_with(first), "{absent}");
        }
    }

    #[test]
    fn gpus_behind_switches_require_a_fabric_manager() {
        let of = |unit: Result<Option<(&str, &str)>, &str>, packages: bool, switches| {
            let mut state = state();
            state.switches = switches;
            state.unit = match unit {
                Ok(unit) => Ok(unit.map(|(file, active)| fixtures::unit(file, active))),
                Err(why) => Err(why.to_owned()),
            };
            if !packages {
                state.packages = Ok(Vec::new());
            }
            super::unit(&state)
        };
        let four = || Switches::Pci(4, Evidence::Bus(4));
        for (unit, packages, switches, verdict, words) in rows! {
            Ok(Some(("enabled", "active"))), true, four(), Verdict::Pass, "it runs";
            Ok(Some(("disabled", "inactive"))), true, four(), Verdict::Fail,
                "4 NVSwitches need the fabric manager, which is disabled and inactive";
            Ok(Some(("disabled", "active"))), true, four(), Verdict::Warn, "after the next boot";
            Ok(Some(("enabled", "failed"))), true, four(), Verdict::Fail, "failed";
            Ok(None), false, four(), Verdict::Fail, "not installed";
            Err("a tree"), false, four(), Verdict::Fail, "not installed";
            Err("a tree"), true, four(), Verdict::Skip, "a tree";
            Ok(None), false, Switches::Managed(Evidence::ProductData), Verdict::Fail, "error 802";
            Ok(None), false, Switches::None, Verdict::Skip, "no NVSwitch";
        } {
            let finding = of(unit, packages, switches);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            let is_faulty = matches!(verdict, Verdict::Fail | Verdict::Warn);
            assert_eq!(finding.remedy.is_some(), is_faulty);
        }
        assert_eq!(unit(&state()).status, Verdict::Pass);
    }

    #[test]
    fn missing_files_mean_not_installed() {
        let unknown = |files| FabricState {
            packages: Err("no database".to_owned()),
            unit: Err("a tree".to_owned()),
            files,
            ..state()
        };
        let empty = Installation {
            has_programs: true,
            ..Installation::default()
        };
        let finding = unit(&unknown(empty));
        assert_eq!(finding.status, Verdict::Fail, "{}", finding.why);
        assert_eq!(version(&unknown(empty)).status, Verdict::Skip);
        let installed = Installation {
            exists: true,
            ..empty
        };
        assert_eq!(unit(&unknown(installed)).status, Verdict::Skip);
        // Whether the unit is enabled is known only if the tree contains links of enabled units.
        let of = |enabled| Installation {
            enabled,
            lists_units: true,
            ..installed
        };
        let disabled = unit(&unknown(of(false)));
        assert_eq!(disabled.status, Verdict::Warn, "{}", disabled.why);
        assert!(disabled.why.contains("not enabled"), "{}", disabled.why);
        assert!(disabled.remedy.unwrap().contains("systemctl enable --now"));
        assert_eq!(unit(&unknown(of(true))).status, Verdict::Skip);
        // Without programs in the tree, the state is unknown.
        assert_eq!(
            unit(&unknown(Installation::default())).status,
            Verdict::Skip
        );
    }

    #[test]
    fn unneeded_fabric_manager_warns_if_it_fails() {
        let of = |unit: Result<Option<(&str, &str)>, &str>, enabled| {
            let state = FabricState {
                switches: Switches::None,
                unit: match unit {
                    Ok(unit) => Ok(unit.map(|(file, active)| fixtures::unit(file, active))),
                    Err(why) => Err(why.to_owned()),
                },
                files: Installation {
                    has_programs: true,
                    exists: true,
                    enabled,
                    lists_units: true,
                },
                ..state()
            };
            super::unit(&state)
        };
        let failing = of(Ok(Some(("enabled", "failed"))), true);
        assert_eq!(failing.status, Verdict::Warn, "{}", failing.why);
        assert!(failing.remedy.unwrap().contains("systemctl disable"));
        assert_eq!(of(Err("a tree"), true).status, Verdict::Warn);
        assert_eq!(of(Err("a tree"), false).status, Verdict::Skip);
        assert_eq!(
            of(Ok(Some(("disabled", "inactive"))), false).status,
            Verdict::Skip
        );
        assert_eq!(
            of(Ok(Some(("enabled", "active"))), true).status,
            Verdict::Skip
        );
    }

    #[test]
    fn fabric_manager_version_must_equal_driver_version() {
        assert_eq!(version(&state()).status, Verdict::Pass);
        let other = FabricState {
            driver: "580.159.03".parse().ok(),
            ..state()
        };
        let finding = version(&other);
        assert_eq!(finding.status, Verdict::Fail);
        assert_eq!(finding.expected.as_deref(), Some("580.159.03"));
        let none = FabricState {
            packages: Ok(Vec::new()),
            ..state()
        };
        assert_eq!(version(&none).status, Verdict::Skip);
    }

    #[test]
    fn install_command_fits_the_package_manager() {
        let mut state = state();
        state.packages = Ok(Vec::new());
        state.unit = Ok(None);
        state.driver = Some("545.23.08".parse().unwrap());
        for (manager, command) in [
            (
                Manager::Dnf,
                "yum install 'nvidia-fabric-manager-545.23.08*'",
            ),
            (
                Manager::Apt,
                "apt-get install 'nvidia-fabricmanager-545=545.23.08*'",
            ),
        ] {
            state.manager = Some(manager);
            let remedy = unit(&state).remedy.unwrap();
            let whole =
                format!("run `{command} && systemctl enable --now nvidia-fabricmanager.service`");
            assert_eq!(remedy, whole);
        }
        state.driver = Some("580.95.05".parse().unwrap());
        let remedy = unit(&state).remedy.unwrap();
        assert!(
            remedy.contains("'nvidia-fabricmanager=580.95.05*'"),
            "{remedy}"
        );
    }

    #[test]
    fn gpu_outside_the_fabric_fails() {
        assert_eq!(joined(&state()).status, Verdict::Pass);
        for (odd, words) in rows! {
            None, "GPU 3: does not respond";
            Some(in_fabric(FabricProgress::NotStarted, 0)), "GPU 3: not started";
            Some(in_fabric(FabricProgress::InProgress, 0)), "GPU 3: in progress";
            Some(in_fabric(FabricProgress::Completed, 999)), "GPU 3: completed with NVML code 999";
        } {
            let mut one = state();
            one.gpus = Ok(gpus([(3, odd)]));
            let finding = joined(&one);
            assert_eq!(finding.status, Verdict::Fail);
            assert_eq!(finding.observed.as_deref(), Some(words));
            assert!(
                finding.why.starts_with("1 of 8 GPUs are not"),
                "{}",
                finding.why
            );
            // Without switches the fabric state is irrelevant.
            one.switches = Switches::None;
            assert_eq!(joined(&one).status, Verdict::Skip);
        }
        // Before Hopper, NVML does not report a fabric state.
        let older = FabricState {
            gpus: Ok(Gpus::default()),
            ..state()
        };
        assert_eq!(joined(&older).status, Verdict::Skip);
    }

    #[test]
    fn managed_switches_need_the_subnet_manager() {
        assert_eq!(subnet(&state()).status, Verdict::Skip);
        let managed = FabricState {
            switches: Switches::Managed(Evidence::ProductData),
            ..state()
        };
        assert_eq!(subnet(&managed).status, Verdict::Fail);
        let with = FabricState {
            subnet_manager: true,
            ..managed
        };
        assert_eq!(subnet(&with).status, Verdict::Pass);
        // Without the modules, the fabric manager does not find the switches. If it is running, it has found them.
        let mut cut_off = FabricState {
            not_loaded: vec!["ib_umad"],
            lacks_module: Some("6.8.0-1030-aws".to_owned()),
            manager: Some(Manager::Apt),
            unit: Ok(Some(fixtures::unit("enabled", "failed"))),
            ..with
        };
        let finding = subnet(&cut_off);
        assert_eq!(finding.status, Verdict::Fail);
        let remedy = finding.remedy.unwrap_or_default();
        assert!(
            remedy.contains("linux-modules-extra-6.8.0-1030-aws"),
            "{remedy}"
        );
        cut_off.manager = Some(Manager::Dnf);
        let remedy = subnet(&cut_off).remedy.unwrap_or_default();
        assert!(
            remedy.contains("(the kernel's `modules-extra`)"),
            "{remedy}"
        );
        cut_off.lacks_module = None;
        let remedy = subnet(&cut_off).remedy.unwrap_or_default();
        assert!(
            remedy.starts_with("run `modprobe --all ib_umad`"),
            "{remedy}"
        );
        cut_off.unit = Ok(Some(fixtures::unit("enabled", "active")));
        assert_eq!(subnet(&cut_off).status, Verdict::Pass);
    }

    #[test]
    fn fabric_manager_in_a_driver_container_passes() {
        let mut owned = FabricState {
            owner: Some("NVIDIA's GPU Operator"),
            packages: Ok(Vec::new()),
            unit: Ok(None),
            ..state()
        };
        let joined_all = unit(&owned);
        assert_eq!(joined_all.status, Verdict::Pass, "{}", joined_all.why);
        assert_eq!(version(&owned).status, Verdict::Skip);
        let managed = FabricState {
            switches: Switches::Managed(Evidence::ProductData),
            ..owned.clone()
        };
        assert_eq!(subnet(&managed).status, Verdict::Skip);
        // Before Hopper, NVML does not report the fabric.
        owned.gpus = Ok(Gpus::default());
        assert_eq!(unit(&owned).status, Verdict::Skip);
        owned.gpus = Ok(gpus([(0, Some(in_fabric(FabricProgress::InProgress, 0)))]));
        let finding = joined(&owned);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.remedy.unwrap_or_default().contains("GPU Operator"));
        // A fabric manager on the host is checked as on other machines.
        owned.unit = Ok(Some(fixtures::unit("enabled", "failed")));
        assert_eq!(unit(&owned).status, Verdict::Fail);
    }
}
