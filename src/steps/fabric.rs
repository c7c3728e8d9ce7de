//! `fabric.manager`: GPUs behind NVSwitches work only while NVIDIA's fabric manager runs. This
//! version does not set it up, so such a machine is blocked before the first change.

use async_trait::async_trait;

use super::words;
use crate::{
    compat::matrix::Fabric,
    config::desired::Desired,
    host::ExecError,
    model::{id::StepId, version::DriverVersion},
    state::StateError,
    step::{Assessment, Cx, Step, StepError},
    tools::{fabric, systemctl::UnitState},
};

/// See the module.
pub struct FabricManager;

#[derive(Debug, Clone, Default)]
struct FabricState {
    unit: Option<UnitState>,
    /// The version of its package.
    version: Option<DriverVersion>,
}

async fn detect(cx: &Cx<'_>) -> Result<FabricState, StepError> {
    if !is_needed(cx.desired) {
        return Ok(FabricState::default());
    }
    let unit = match cx.state.unit(fabric::UNIT).await {
        Ok(unit) => unit,
        // A machine without systemd runs none of its units.
        Err(StateError::Exec(error)) if matches!(*error, ExecError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let packages =
        (cx.state.packages_like(&fabric::PACKAGES).await).map_err(|why| StepError::Unexpected {
            what: "the installed packages".to_owned(),
            why,
        })?;
    let version = match packages.into_iter().next() {
        None => None,
        Some((name, version)) => {
            let version = DriverVersion::from_package(&version);
            Some(version.map_err(|error| StepError::Unexpected {
                what: format!("the version of the package `{name}`"),
                why: error.to_string(),
            })?)
        }
    };
    Ok(FabricState { unit, version })
}

fn is_needed(desired: &Desired) -> bool {
    (desired.driver.as_ref()).is_some_and(|driver| driver.fabric != Fabric::None)
}

fn decide(state: &FabricState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return words::no_driver();
    };
    if driver.fabric == Fabric::None {
        return Assessment::NotApplicable {
            why: "no GPU of this machine is known to need a fabric manager".into(),
        };
    }
    let runs = state.unit.as_ref().is_some_and(UnitState::is_active);
    match &state.version {
        Some(version) if runs && version.branch() == driver.branch => Assessment::Satisfied {
            why: format!("the fabric manager {version} runs"),
        },
        Some(version) if runs => Assessment::Blocked {
            why: format!(
                "the fabric manager {version} runs, and driver branch {} is wanted: both must \
                 have the same version",
                driver.branch
            ),
            hint: format!("set `driver.branch = {}`", version.branch()),
        },
        _ => Assessment::Blocked {
            why: format!(
                "the GPUs need the fabric manager of exactly the driver's version, which this \
                 version of the program does not set up and which does not run ({})",
                (state.unit.as_ref()).map_or("not installed".to_owned(), ToString::to_string)
            ),
            hint: "use an image in which the driver and its fabric manager are installed, \
                   and keep them with `driver.adopt = true`"
                .into(),
        },
    }
}

#[async_trait]
impl Step for FabricManager {
    fn id(&self) -> StepId {
        super::FABRIC_MANAGER
    }

    fn title(&self) -> &'static str {
        "Fabric manager"
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(&detect(cx).await?, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{FabricState, decide};
    use crate::{
        compat::matrix::Fabric,
        step::Assessment,
        steps::fixtures::{desired, unit},
    };

    #[test]
    fn gpus_behind_switches_block_the_run_until_the_fabric_manager_runs() {
        let mut wanted = desired();
        let none = FabricState::default();
        assert!(matches!(
            decide(&none, &wanted),
            Assessment::NotApplicable { .. }
        ));
        let driver = wanted.driver.as_mut().expect("a driver");
        driver.fabric = Fabric::Fm;
        let branch = driver.branch;
        let Assessment::Blocked { why, .. } = decide(&none, &wanted) else {
            panic!("it does not run");
        };
        assert!(why.contains("fabric manager") && why.contains("not installed"));
        let running = |version: String| FabricState {
            unit: Some(unit("enabled", "active")),
            version: version.parse().ok(),
        };
        assert!(matches!(
            decide(&running(format!("{branch}.178.04")), &wanted),
            Assessment::Satisfied { .. }
        ));
        let Assessment::Blocked { hint, .. } = decide(&running("470.256.02".into()), &wanted)
        else {
            panic!("it is of another branch");
        };
        assert_eq!(hint, "set `driver.branch = 470`");
        let stopped = FabricState {
            unit: Some(unit("disabled", "inactive")),
            version: None,
        };
        assert!(matches!(
            decide(&stopped, &wanted),
            Assessment::Blocked { .. }
        ));
    }
}
