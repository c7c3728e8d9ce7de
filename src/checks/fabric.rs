//! The family of fabric checks: GPUs behind NVSwitches work only while the fabric manager runs, at
//! exactly the driver's version. Without it CUDA says error 802, system not yet initialised.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    facts::Facts,
    host::{FabricProgress, GpuFabric, Nvml},
    model::{id::Id, version::DriverVersion},
    step::StepError,
    tools::{fabric, systemctl::UnitState},
};

const UNIT: Id = Id::new("nvl.fm.unit");
const VERSION: Id = Id::new("nvl.fm.version");
const SUBNET: Id = Id::new("nvl.nvlsm");
const STATE: Id = Id::new("nvl.fabric.state");

const TITLE_UNIT: &str = "Fabric manager";
const TITLE_VERSION: &str = "Fabric manager of the driver's version";
const TITLE_SUBNET: &str = "NVLink subnet manager";
const TITLE_STATE: &str = "GPUs in the fabric of their switches";

/// See the module.
pub struct Fabric;

/// The switches that a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switches {
    None,
    /// NVSwitches on PCI, so many of them.
    Pci(usize),
    /// Switches behind a network device, which need the NVLink subnet manager, too.
    Managed,
}

#[derive(Debug, Clone)]
struct FabricState {
    switches: Switches,
    /// Names and versions of the installed packages of the fabric manager.
    packages: Result<Vec<(String, String)>, String>,
    subnet_manager: bool,
    /// The state of its unit; `Err` has why it was not asked.
    unit: Result<Option<UnitState>, String>,
    /// The loaded driver.
    driver: Option<DriverVersion>,
    /// What NVML says of the GPUs that know a fabric, by index; `None` for one that fails. `Err` has why
    /// nothing is known.
    gpus: Result<Vec<(u32, Option<GpuFabric>)>, String>,
}

fn switches(facts: &Facts) -> Switches {
    match facts.nvswitches.len() {
        _ if facts.gpus.is_empty() => Switches::None,
        0 if facts.nvlink_management == Some(true) => Switches::Managed,
        0 => Switches::None,
        count => Switches::Pci(count),
    }
}

async fn detect(subject: &Subject<'_>) -> Result<FabricState, StepError> {
    let (state, switches) = (subject.state, switches(subject.facts));
    let mut found = FabricState {
        switches,
        packages: Ok(Vec::new()),
        subnet_manager: false,
        unit: Ok(None),
        driver: state.loaded_driver()?.cloned(),
        gpus: Ok(Vec::new()),
    };
    if switches == Switches::None {
        return Ok(found);
    }
    found.packages = state.packages_like(&fabric::PACKAGES).await;
    found.subnet_manager = (state.packages_like(&[fabric::SUBNET_MANAGER]).await)
        .is_ok_and(|packages| !packages.is_empty());
    found.unit = match state.unit(fabric::UNIT).await {
        Ok(unit) => Ok(unit),
        Err(error) => match error.not_asked() {
            Some(why) => Err(why.to_owned()),
            None => return Err(error.into()),
        },
    };
    found.gpus = match &found.driver {
        None => Err("no driver is loaded".to_owned()),
        Some(_) => match state.nvml().await {
            Nvml::Ready(view) => Ok((view.devices.iter())
                .filter(|gpu| gpu.fabric.is_some() || gpu.error.is_some())
                .map(|gpu| (gpu.index, gpu.fabric.clone()))
                .collect()),
            Nvml::NotAsked { why } => Err(why.clone()),
            _ => Err("NVML does not answer".to_owned()),
        },
    };
    Ok(found)
}

fn needed(switches: Switches) -> String {
    match switches {
        Switches::None => "no NVSwitch is there, so nothing needs a fabric manager".to_owned(),
        Switches::Pci(1) => "1 NVSwitch needs the fabric manager".to_owned(),
        Switches::Pci(count) => format!("{count} NVSwitches need the fabric manager"),
        Switches::Managed => "the NVLink switches need the fabric manager".to_owned(),
    }
}

fn unit(state: &FabricState) -> Finding {
    let needed = needed(state.switches);
    let say = |status, why: String| Finding::new(UNIT, TITLE_UNIT, status, why);
    if state.switches == Switches::None {
        return say(Verdict::Skip, needed);
    }
    let fail = |observed: String, remedy: String| Finding {
        observed: Some(observed.clone()),
        expected: Some(format!("`{}` enabled and active", fabric::UNIT)),
        remedy: Some(remedy),
        ..say(
            Verdict::Fail,
            format!("{needed}, which is {observed}: no program reaches the GPUs (CUDA error 802)"),
        )
    };
    let installed = (state.packages.as_ref()).map_or(true, |packages| !packages.is_empty());
    let install = || match &state.driver {
        Some(driver) => format!(
            "install the package `nvidia-fabricmanager` at version {driver}, then run `systemctl \
             enable --now {}`",
            fabric::UNIT
        ),
        None => {
            "install the driver, and the package `nvidia-fabricmanager` at its version".to_owned()
        }
    };
    match &state.unit {
        Ok(Some(unit)) if unit.is_active() && unit.is_enabled() => {
            say(Verdict::Pass, format!("{needed}, and it runs"))
        }
        Ok(Some(unit)) => fail(
            unit.to_string(),
            match unit.active.as_str() {
                "failed" => format!("run `journalctl --unit {}` to see why", fabric::UNIT),
                _ => format!("run `systemctl enable --now {}`", fabric::UNIT),
            },
        ),
        Ok(None) => fail("not installed".to_owned(), install()),
        Err(_) if !installed => fail("not installed".to_owned(), install()),
        Err(why) => say(Verdict::Skip, format!("{needed}; whether it runs: {why}")),
    }
}

fn version(state: &FabricState) -> Finding {
    let say = |status, why: String| Finding::new(VERSION, TITLE_VERSION, status, why);
    if state.switches == Switches::None {
        return say(Verdict::Skip, needed(state.switches));
    }
    let packages = match &state.packages {
        Ok(packages) => packages,
        Err(why) => return say(Verdict::Unknown, why.clone()),
    };
    let Some((name, text)) = packages.first() else {
        return say(
            Verdict::Skip,
            "no package of the fabric manager is installed".to_owned(),
        );
    };
    let Some(driver) = &state.driver else {
        return say(
            Verdict::Skip,
            format!("{name} {text} is installed, and no driver is loaded"),
        );
    };
    let version = match DriverVersion::from_package(text) {
        Ok(version) => version,
        Err(error) => return say(Verdict::Unknown, format!("{name}: {error}")),
    };
    if version == *driver {
        return say(Verdict::Pass, format!("both are {version}"));
    }
    Finding {
        observed: Some(version.to_string()),
        expected: Some(driver.to_string()),
        remedy: Some(format!("install the package `{name}` at version {driver}")),
        ..say(
            Verdict::Fail,
            format!(
                "the fabric manager is {version} and the loaded driver {driver}: it works only \
                 with its own version"
            ),
        )
    }
}

fn subnet(state: &FabricState) -> Finding {
    let say = |status, why: &str| Finding::new(SUBNET, TITLE_SUBNET, status, why);
    match (state.switches, &state.packages) {
        (Switches::None | Switches::Pci(_), _) => {
            say(Verdict::Skip, "no switch needs a subnet manager")
        }
        (Switches::Managed, Err(why)) => say(Verdict::Unknown, why),
        (Switches::Managed, Ok(_)) if state.subnet_manager => say(
            Verdict::Pass,
            "`nvlsm` is installed; the fabric manager starts it",
        ),
        (Switches::Managed, Ok(_)) => Finding {
            observed: Some("not installed".to_owned()),
            expected: Some("the package `nvlsm`".to_owned()),
            remedy: Some("install the package `nvlsm` from NVIDIA's repository".to_owned()),
            ..say(
                Verdict::Fail,
                "the NVLink switches need the subnet manager, which is not installed",
            )
        },
    }
}

fn joined(state: &FabricState) -> Finding {
    let say = |status, why: String| Finding::new(STATE, TITLE_STATE, status, why);
    if state.switches == Switches::None {
        return say(Verdict::Skip, needed(state.switches));
    }
    let gpus = match &state.gpus {
        Ok(gpus) => gpus,
        Err(why) => return say(Verdict::Skip, why.clone()),
    };
    if gpus.is_empty() {
        // Before Hopper they have none: the fabric manager alone tells.
        return say(
            Verdict::Skip,
            "NVML knows no fabric of these GPUs".to_owned(),
        );
    }
    let outside: Vec<String> = (gpus.iter())
        .filter_map(|(index, gpu)| match gpu {
            None => Some(format!("GPU {index}: gives no answer")),
            Some(gpu) if gpu.state == FabricProgress::Completed && gpu.status == 0 => None,
            Some(gpu) => Some(format!("GPU {index}: {}", told(gpu))),
        })
        .collect();
    if outside.is_empty() {
        return say(
            Verdict::Pass,
            format!("{} of {} joined it", gpus.len(), gpus.len()),
        );
    }
    Finding {
        observed: Some(outside.join(", ")),
        expected: Some("completed".to_owned()),
        remedy: Some(format!(
            "run `journalctl --unit {}` to see why; a restart of it lets the GPUs join again",
            fabric::UNIT
        )),
        ..say(
            Verdict::Fail,
            format!(
                "{} of {} GPUs are not in the fabric: no program reaches them (CUDA error 802)",
                outside.len(),
                gpus.len()
            ),
        )
    }
}

/// How far a GPU is, in NVML's words.
fn told(gpu: &GpuFabric) -> String {
    match gpu.state {
        FabricProgress::NotStarted => "not started".to_owned(),
        FabricProgress::InProgress => "in progress".to_owned(),
        FabricProgress::Completed => format!("completed with NVML code {}", gpu.status),
    }
}

#[async_trait]
impl Check for Fabric {
    fn ids(&self) -> &[Id] {
        const { &[UNIT, VERSION, SUBNET, STATE] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let state = detect(subject).await?;
        Ok(vec![
            unit(&state),
            version(&state),
            subnet(&state),
            joined(&state),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::{FabricState, Switches, joined, subnet, switches, unit, version};
    use crate::{
        check::Verdict,
        facts::PciFact,
        host::{FabricProgress, GpuFabric},
        steps::fixtures,
    };

    fn gpu(state: FabricProgress, status: u32) -> GpuFabric {
        GpuFabric {
            state,
            status,
            cluster: None,
            clique: 0,
        }
    }

    fn state() -> FabricState {
        FabricState {
            switches: Switches::Pci(4),
            packages: Ok(vec![(
                "nvidia-fabricmanager-580".to_owned(),
                "580.178.04-0ubuntu0.24.04.1".to_owned(),
            )]),
            subnet_manager: false,
            unit: Ok(Some(fixtures::unit("enabled", "active"))),
            driver: "580.178.04".parse().ok(),
            gpus: Ok((0..8)
                .map(|index| (index, Some(gpu(FabricProgress::Completed, 0))))
                .collect()),
        }
    }

    #[test]
    fn switches_are_those_on_the_bus_or_behind_a_network_device() {
        let mut facts = fixtures::facts();
        assert_eq!(switches(&facts), Switches::None);
        facts.nvlink_management = Some(true);
        assert_eq!(switches(&facts), Switches::Managed);
        facts.nvswitches.push(PciFact {
            pci_address: "0000:07:00.0".parse().unwrap(),
            pci_id: "10de:22a3".parse().unwrap(),
            name: None,
        });
        assert_eq!(switches(&facts), Switches::Pci(1));
    }

    #[test]
    fn gpus_behind_switches_fail_without_a_running_fabric_manager() {
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
        let four = Switches::Pci(4);
        for (unit, packages, switches, verdict, words) in [
            (
                Ok(Some(("enabled", "active"))),
                true,
                four,
                Verdict::Pass,
                "it runs",
            ),
            (
                Ok(Some(("disabled", "inactive"))),
                true,
                four,
                Verdict::Fail,
                "4 NVSwitches need the fabric manager, which is disabled and inactive",
            ),
            (
                Ok(Some(("enabled", "failed"))),
                true,
                four,
                Verdict::Fail,
                "failed",
            ),
            (Ok(None), false, four, Verdict::Fail, "not installed"),
            (Err("a tree"), false, four, Verdict::Fail, "not installed"),
            (Err("a tree"), true, four, Verdict::Skip, "a tree"),
            (
                Ok(None),
                false,
                Switches::Managed,
                Verdict::Fail,
                "error 802",
            ),
            (
                Ok(None),
                false,
                Switches::None,
                Verdict::Skip,
                "no NVSwitch",
            ),
        ] {
            let finding = of(unit, packages, switches);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict == Verdict::Fail);
        }
        assert_eq!(unit(&state()).status, Verdict::Pass);
    }

    #[test]
    fn the_fabric_manager_has_the_version_of_the_driver() {
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
    fn a_gpu_outside_the_fabric_is_named() {
        assert_eq!(joined(&state()).status, Verdict::Pass);
        for (odd, words) in [
            (None, "GPU 3: gives no answer"),
            (
                Some(gpu(FabricProgress::NotStarted, 0)),
                "GPU 3: not started",
            ),
            (
                Some(gpu(FabricProgress::InProgress, 0)),
                "GPU 3: in progress",
            ),
            (
                Some(gpu(FabricProgress::Completed, 999)),
                "GPU 3: completed with NVML code 999",
            ),
        ] {
            let mut one = state();
            if let Ok(gpus) = &mut one.gpus {
                gpus[3].1 = odd;
            }
            let finding = joined(&one);
            assert_eq!(finding.status, Verdict::Fail);
            assert_eq!(finding.observed.as_deref(), Some(words));
            assert!(
                finding.why.starts_with("1 of 8 GPUs are not"),
                "{}",
                finding.why
            );
            // Without switches the state of a fabric means nothing.
            one.switches = Switches::None;
            assert_eq!(joined(&one).status, Verdict::Skip);
        }
        // Before Hopper, NVML knows none.
        let older = FabricState {
            gpus: Ok(Vec::new()),
            ..state()
        };
        assert_eq!(joined(&older).status, Verdict::Skip);
    }

    #[test]
    fn managed_switches_need_the_subnet_manager() {
        assert_eq!(subnet(&state()).status, Verdict::Skip);
        let managed = FabricState {
            switches: Switches::Managed,
            ..state()
        };
        assert_eq!(subnet(&managed).status, Verdict::Fail);
        let with = FabricState {
            subnet_manager: true,
            ..managed
        };
        assert_eq!(subnet(&with).status, Verdict::Pass);
    }
}
