//! `driver.fabric`: GPUs behind NVSwitches only work while the NVIDIA fabric manager of exactly the driver version
//! runs, and after they have joined its fabric. The packages of the fabric manager are part of the driver packages. This
//! step starts it before anything uses the GPUs, and waits until the GPUs have joined.

pub(super) mod imex;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::{
    DRIVER_FABRIC, DRIVER_MODULE, DRIVER_PACKAGES, DRIVER_PERSISTENCE,
    driver_packages::adopts,
    messages, packages,
    specs::{Comparison, compare},
};
use crate::{
    change::{Change, Lock},
    compat::matrix::Fabric,
    config::desired::{Desired, DriverSpec},
    fabric::{self, Gpus, Service},
    host::{ExecError, Nvml},
    model::version::DriverVersion,
    runtimes,
    state::StateError,
    step::{Assessment, Cx, Step, StepError},
    tools::{kmod, packages::HEADER, systemctl::UnitState},
};

/// Time limit for GPUs to join the fabric after the fabric manager has started. NVIDIA documents no limit.
const JOINING: Duration = Duration::from_secs(300);

/// The file that loads the fabric modules at every boot.
const AUTOLOAD: &str = "/etc/modules-load.d/gpu-bootstrap-fabric.conf";

/// Returns the units that start programs on the GPUs. systemd ignores units that do not exist.
fn users() -> String {
    format!("{} kubelet.service", runtimes::units())
}

/// The `driver.fabric` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_FABRIC, |cx| Box::pin(assess(cx)))
        .after([DRIVER_PACKAGES, DRIVER_MODULE, DRIVER_PERSISTENCE])
        .locks([Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct FabricState {
    /// A driver that was installed without packages is kept, including its companion software.
    adopts: bool,
    /// The loaded driver.
    loaded: Option<DriverVersion>,
    unit: Option<UnitState>,
    /// The version of the driver packages.
    packaged: Option<DriverVersion>,
    /// The version of the fabric manager package.
    version: Option<DriverVersion>,
    /// The service packages compared with the version of the loaded driver.
    packages: Comparison,
    /// Files of the service that must be written.
    files: Vec<Change>,
    /// Kernel modules of the service that are not loaded.
    not_loaded: Vec<String>,
    /// The fabric states of the GPUs.
    gpus: Gpus,
    /// The reason that fabric states are unknown.
    silent: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<FabricState, StepError> {
    let Some(driver) = &cx.desired.driver else {
        return Ok(FabricState::default());
    };
    if driver.companions.needs == Fabric::None {
        return Ok(FabricState::default());
    }
    let loaded = cx.state.loaded_driver()?.cloned();
    let mut state = FabricState {
        adopts: adopts(cx).await,
        packaged: cx.state.driver().await.package_version.clone(),
        unit: unit(cx, fabric::UNIT).await?,
        version: version(cx).await?,
        ..FabricState::default()
    };
    if let (Some(service), Some(loaded)) = (&driver.companions.service, &loaded) {
        let installed = packages::installed(cx).await?;
        let manager = cx.desired.packages.manager;
        state.packages = compare(manager, &service.at(loaded), &installed);
        for file in files(service) {
            let Change::WriteFile { path, content, .. } = &file else {
                continue;
            };
            if cx.host.files().read_text(path)?.as_ref() != Some(content) {
                state.files.push(file);
            }
        }
        for module in &service.modules {
            if !cx.host.files().exists(&kmod::in_kernel(module))? {
                state.not_loaded.push(module.clone());
            }
        }
    }
    if loaded.is_some() {
        match cx.state.nvml().await {
            Nvml::Ready(view) => {
                state.gpus = Gpus::of(&view.devices);
                state.silent = silent(&state.gpus);
            }
            Nvml::Hung { after_seconds } => {
                state.silent = Some(format!("NVML timed out after {after_seconds} s"));
            }
            Nvml::Failed { why, .. } => state.silent = Some(format!("NVML failed: {why}")),
            Nvml::NoDevices => state.silent = Some("NVML lists no GPU".to_owned()),
            // `validation.devices` reports these states.
            Nvml::NotLoadable { .. }
            | Nvml::DriverNotLoaded
            | Nvml::VersionMismatch
            | Nvml::NotQueried { .. } => {}
        }
    }
    state.loaded = loaded;
    Ok(state)
}

/// Describes the GPUs that did not respond to NVML.
fn silent(gpus: &Gpus) -> Option<String> {
    let silent = gpus.silent();
    (!silent.is_empty()).then(|| format!("{} did not respond to NVML", messages::indices(&silent)))
}

async fn unit(cx: &Cx<'_>, name: &str) -> Result<Option<UnitState>, StepError> {
    match cx.state.unit(name).await {
        Ok(unit) => Ok(unit),
        // A machine without systemd runs no units.
        Err(StateError::Exec(error)) if matches!(*error, ExecError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn version(cx: &Cx<'_>) -> Result<Option<DriverVersion>, StepError> {
    let packages = (fabric::installed(cx.state).await).map_err(|why| StepError::Unexpected {
        what: "the installed packages".to_owned(),
        why,
    })?;
    let Some((name, version)) = packages.into_iter().next() else {
        return Ok(None);
    };
    let version = DriverVersion::from_package(&version);
    Ok(Some(version.map_err(|error| StepError::Unexpected {
        what: format!("the version of the package `{name}`"),
        why: error.to_string(),
    })?))
}

/// Returns the files that load the service's modules and start the service before programs on the GPUs at the next boot.
fn files(service: &Service) -> Vec<Change> {
    let mut files = Vec::new();
    if !service.modules.is_empty() {
        files.push(Change::write(
            AUTOLOAD,
            format!("{HEADER}{}\n", service.modules.join("\n")),
        ));
    }
    if let Some(unit) = &service.unit {
        files.push(Change::write(
            format!("/etc/systemd/system/{unit}.d/50-gpu-bootstrap.conf"),
            format!("{HEADER}[Unit]\nBefore={}\n", users()),
        ));
    }
    files
}

fn decide(state: &FabricState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    if driver.companions.needs == Fabric::None {
        return Assessment::not_applicable(
            "no GPU of this machine needs a fabric manager, as far as known",
        );
    }
    match &driver.companions.service {
        Some(service) if !state.adopts => set_up(state, desired, service),
        _ if driver.companions.needs == Fabric::Imex => Assessment::not_applicable(
            "multi-node NVLink requires IMEX, which this driver source does not provide. \
             GPUs of one node work without it",
        ),
        _ => found(state, driver),
    }
}

/// Assesses a fabric manager that gpu-bootstrap does not set up: the step is satisfied or blocks the run.
fn found(state: &FabricState, driver: &DriverSpec) -> Assessment {
    let runs = state.unit.as_ref().is_some_and(UnitState::is_active);
    let wanted = |version: &DriverVersion| match &state.loaded {
        Some(loaded) => version == loaded,
        None => state.adopts || version.branch() == driver.branch,
    };
    match &state.version {
        Some(version) if runs && wanted(version) => not_joined(state).unwrap_or_else(|| {
            Assessment::satisfied(format!("the fabric manager {version} is running"))
        }),
        Some(version) if runs => Assessment::blocked(
            format!(
                "the fabric manager {version} is running, but {} is configured: both must have the same \
                 version",
                match &state.loaded {
                    Some(loaded) => format!("driver {loaded}"),
                    None => format!("driver branch {}", driver.branch),
                }
            ),
            format!("set `driver.branch = {}`", version.branch()),
        ),
        _ => Assessment::blocked(
            format!(
                "the GPUs need a fabric manager of exactly the driver version, which is not \
                 running ({}) and not available in `{}`",
                (state.unit.as_ref()).map_or("not installed".to_owned(), ToString::to_string),
                driver.source
            ),
            "set `driver.source = \"nvidia\"`, whose repository has it, or use an image in \
             which the driver and its fabric manager are installed, and keep them with \
             `driver.existing = \"keep\"`",
        ),
    }
}

/// Assesses a fabric manager that gpu-bootstrap sets up for the loaded driver: returns the changes that start it, then blocks
/// until the GPUs have joined the fabric.
fn set_up(state: &FabricState, desired: &Desired, service: &Service) -> Assessment {
    if desired.image {
        return Assessment::awaits_boot("the fabric manager starts at the first boot of the image");
    }
    let Some(loaded) = &state.loaded else {
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "the fabric manager requires a loaded driver".into(),
            expected: start(service),
        };
    };
    if state.version.is_some() && state.version == state.packaged && state.packaged != state.loaded
    {
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: format!("driver {loaded} is loaded, but a different one is installed"),
            expected: Vec::new(),
        };
    }
    if !state.packages.all_met() {
        // `driver.packages` installs them together with the driver.
        return Assessment::BlockedNow {
            why: format!(
                "{}: the fabric manager requires a driver of the same version",
                state.packages.unmet_text()
            ),
            hint: format!(
                "run `gpu-bootstrap install`, which installs {} at version {loaded}",
                service.exact.join(" and ")
            ),
            retryable: None,
        };
    }
    let Some(unit) = &service.unit else {
        return Assessment::satisfied(format!(
            "{}; `fabric.imex` sets who starts it",
            state.packages.met_text()
        ));
    };
    let runs = (state.unit.as_ref()).is_some_and(|unit| unit.is_active() && unit.is_enabled());
    let mut changes = state.files.clone();
    changes.extend(state.not_loaded.iter().map(|module| Change::LoadModule {
        module: module.clone(),
    }));
    let mut whys = Vec::new();
    if !state.files.is_empty() {
        whys.push("the service would not start in time at the next boot".to_owned());
    }
    if !state.not_loaded.is_empty() {
        whys.push(format!("{} not loaded", state.not_loaded.join(", ")));
    }
    if !runs {
        whys.push(format!(
            "`{unit}` is {}",
            (state.unit.as_ref()).map_or("not installed".to_owned(), ToString::to_string)
        ));
        changes.push(Change::EnableUnit {
            unit: unit.clone(),
            start: true,
        });
    } else if !state.not_loaded.is_empty() {
        // The service was started without these modules, which it needs to find its switches.
        changes.push(Change::RestartUnit { unit: unit.clone() });
    }
    if !changes.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    not_joined(state).unwrap_or_else(|| {
        Assessment::satisfied(format!(
            "the fabric manager {loaded} is running{}",
            match state.gpus.known().count() {
                0 => String::new(),
                count => format!(", and {} joined the fabric", messages::has(count)),
            }
        ))
    })
}

/// Returns the changes that start a service that is not set up yet.
fn start(service: &Service) -> Vec<Change> {
    let mut changes = files(service);
    changes.extend(service.modules.iter().map(|module| Change::LoadModule {
        module: module.clone(),
    }));
    changes.extend(service.unit.iter().map(|unit| Change::EnableUnit {
        unit: unit.clone(),
        start: true,
    }));
    changes
}

/// Returns the reason that GPUs are unusable although the fabric manager runs. `None` if all have joined.
fn not_joined(state: &FabricState) -> Option<Assessment> {
    if let Some((failed, code)) = state.gpus.failed() {
        return Some(Assessment::blocked(
            format!(
                "{} failed to join the fabric (NVML code {code}): programs cannot use them together",
                messages::indices(&failed)
            ),
            format!(
                "run `journalctl --unit {}` to find the cause, then reboot",
                fabric::UNIT
            ),
        ));
    }
    let waiting = state.gpus.waiting();
    if waiting.is_empty() {
        return state.silent.as_ref().map(|silent| Assessment::BlockedNow {
            why: format!("{silent}: it is unknown if all GPUs have joined the fabric"),
            hint: "run `gpu-bootstrap check` to diagnose the GPUs".into(),
            retryable: Some(JOINING),
        });
    }
    Some(Assessment::BlockedNow {
        why: format!(
            "the fabric manager is running, but {} not joined the fabric yet: programs cannot use them \
             (CUDA error 802)",
            match waiting.len() {
                1 => format!("{} has", messages::indices(&waiting)),
                _ => format!("{} have", messages::indices(&waiting)),
            }
        ),
        hint: format!("run `journalctl --unit {}` to find the cause", fabric::UNIT),
        retryable: Some(JOINING),
    })
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired))
}
