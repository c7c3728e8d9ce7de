//! `dcgm.packages` and `dcgm.service`: NVIDIA's Data Center GPU Manager and its Prometheus exporter on the host. The exporter uses
//! the host engine of `nvidia-dcgm.service`, because only one host engine can read the profiling metrics. `checks/dcgm.rs` reports
//! another one, for example in a pod.

use camino::Utf8Path;

use super::{
    DCGM_PACKAGES, DCGM_SERVICE, DRIVER_MIG, DRIVER_MODULE, DRIVER_NODES, REPOSITORIES,
    VALIDATION_COMPUTE, VALIDATION_CONTAINER, VALIDATION_DEVICES, messages, packages,
    specs::{InstalledPackages, outdated, package_step},
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, PackageSpec},
    facts::Facts,
    state::Ours,
    step::{Assessment, Cx, Step, StepError},
    tools::{
        dcgm::{self, DROP_IN, EXPORTER_UNIT, UNIT},
        systemctl::UnitState,
    },
};

/// The `dcgm.packages` step.
pub(super) fn packages_step() -> Step {
    Step::new(DCGM_PACKAGES, |cx| Box::pin(assess_packages(cx)))
        .after([REPOSITORIES])
        .locks([Lock::Packages])
        .wants(|change, desired| match &desired.dcgm {
            Some(spec) => is_wanted(change, &spec.packages),
            None => desired.driver.is_none(),
        })
}

/// Whether all DCGM packages of a change are configured. The transaction may also contain packages of other steps.
fn is_wanted(change: &Change, wanted: &[PackageSpec]) -> bool {
    let Change::InstallPackages { packages, .. } = change else {
        return true;
    };
    (packages.iter())
        .filter(|spec| spec.name.starts_with(dcgm::PACKAGES))
        .all(|spec| wanted.iter().any(|one| one.name == spec.name))
}

/// The `dcgm.service` step.
pub(super) fn service_step() -> Step {
    Step::new(DCGM_SERVICE, |cx| Box::pin(assess_service(cx)))
        // DCGM uses the GPUs, so it starts after the steps that need them exclusively.
        .after([
            DCGM_PACKAGES,
            DRIVER_MODULE,
            DRIVER_NODES,
            DRIVER_MIG,
            VALIDATION_DEVICES,
            VALIDATION_CONTAINER,
            VALIDATION_COMPUTE,
        ])
        .wants(|change, desired| {
            let Some(spec) = &desired.dcgm else {
                return desired.driver.is_none();
            };
            spec.exporter_port.is_some() || !is_of_exporter(change)
        })
}

/// Whether a change belongs to the exporter.
fn is_of_exporter(change: &Change) -> bool {
    match change {
        Change::WriteFile { path, .. } => path.as_str() == DROP_IN,
        Change::EnableUnit { unit, .. } | Change::RestartUnit { unit } => unit == EXPORTER_UNIT,
        _ => false,
    }
}

fn not_configured() -> Assessment {
    Assessment::not_applicable("DCGM is not configured (`dcgm.enabled`)")
}

fn decide_packages(installed: &InstalledPackages, ours: &Ours, desired: &Desired) -> Assessment {
    let Some(spec) = &desired.dcgm else {
        return not_configured();
    };
    let manager = desired.packages.manager;
    if let Some(old) = installed.get(dcgm::DCGM_3) {
        return Assessment::blocked(
            format!(
                "`{}` {} is installed, which conflicts with DCGM 4",
                dcgm::DCGM_3,
                old.version
            ),
            format!(
                "remove the package `{}`, and run the command again",
                dcgm::DCGM_3
            ),
        );
    }
    let replaced = outdated(manager, &spec.packages, installed, ours);
    package_step(manager, &spec.packages, installed, replaced)
}

async fn assess_packages(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if cx.desired.dcgm.is_none() {
        return Ok(not_configured());
    }
    let installed = packages::held_by_others(cx).await?;
    Ok(decide_packages(&installed, cx.state.ours(), cx.desired))
}

#[derive(Debug, Clone, Default)]
struct DcgmState {
    /// A driver is loaded.
    loaded: bool,
    /// The states of the units. `None` if a unit does not exist.
    unit: Option<UnitState>,
    exporter: Option<UnitState>,
    /// The content of our drop-in.
    drop_in: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<DcgmState, StepError> {
    Ok(DcgmState {
        loaded: cx.state.loaded_driver()?.is_some(),
        unit: cx.state.unit(UNIT).await?,
        exporter: cx.state.unit(EXPORTER_UNIT).await?,
        drop_in: cx.host.files().read_text(Utf8Path::new(DROP_IN))?,
    })
}

/// Adds the change that enables and starts a unit, unless it is enabled and active.
fn start(
    name: &str,
    unit: Option<&UnitState>,
    whys: &mut Vec<String>,
    changes: &mut Vec<Change>,
) -> bool {
    if unit.is_some_and(|unit| unit.is_enabled() && unit.is_active()) {
        return false;
    }
    let found = unit.map_or("not installed".to_owned(), ToString::to_string);
    whys.push(format!("`{name}` is {found}"));
    changes.push(Change::EnableUnit {
        unit: name.to_owned(),
        start: true,
    });
    true
}

fn decide_service(state: &DcgmState, desired: &Desired, facts: &Facts) -> Assessment {
    let Some(spec) = &desired.dcgm else {
        return not_configured();
    };
    if desired.image {
        return Assessment::awaits_boot(
            "DCGM needs a GPU and is started at the first boot of the image",
        );
    }
    if facts.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    let units = [
        (UNIT, state.unit.as_ref(), "dcgm.enabled"),
        (EXPORTER_UNIT, state.exporter.as_ref(), "dcgm.exporter"),
    ];
    for (name, unit, key) in units {
        let is_used = name == UNIT || spec.exporter_port.is_some();
        let otherwise = format!("set `{key} = false`");
        if let (Some(refusal), true) = (messages::masked(name, unit, &otherwise), is_used) {
            return refusal;
        }
    }
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    start(UNIT, state.unit.as_ref(), &mut whys, &mut changes);
    if let Some(port) = spec.exporter_port {
        let drop_in = dcgm::drop_in(port);
        let is_new = state.drop_in.as_ref() != Some(&drop_in);
        if is_new {
            whys.push(format!("`{DROP_IN}` is missing or different"));
            changes.push(Change::write(DROP_IN, drop_in));
        }
        let starts = start(
            EXPORTER_UNIT,
            state.exporter.as_ref(),
            &mut whys,
            &mut changes,
        );
        if is_new && !starts {
            changes.push(Change::RestartUnit {
                unit: EXPORTER_UNIT.to_owned(),
            });
        }
    }
    if changes.is_empty() {
        let exporter = spec.exporter_port.map_or_else(String::new, |port| {
            format!(", and the exporter listens on port {port}")
        });
        return Assessment::satisfied(format!("`{UNIT}` is enabled and active{exporter}"));
    }
    if !state.loaded {
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "DCGM requires a loaded driver".into(),
            expected: changes,
        };
    }
    Assessment::needs(whys.join("; "), changes)
}

async fn assess_service(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    // On other machines, nothing is read, so that `check` is not unknown.
    if cx.desired.dcgm.is_none() {
        return Ok(not_configured());
    }
    Ok(decide_service(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::desired::DcgmSpec,
        steps::{
            fixtures::{desired, facts, unit},
            specs::fixtures::{packages, specs},
        },
    };

    fn want(exporter_port: Option<u16>) -> Desired {
        let names = [
            "datacenter-gpu-manager-4-core",
            "datacenter-gpu-manager-4-cuda13",
        ];
        Desired {
            dcgm: Some(DcgmSpec {
                packages: specs(&names),
                exporter_port,
            }),
            ..desired()
        }
    }

    /// The packages are installed.
    fn installed() -> DcgmState {
        DcgmState {
            loaded: true,
            unit: Some(unit("disabled", "inactive")),
            exporter: Some(unit("disabled", "inactive")),
            drop_in: None,
        }
    }

    #[test]
    fn packages_are_installed_unless_dcgm_3_is_there() {
        let decide =
            |list: &[&str]| super::decide_packages(&packages(list), &Ours::default(), &want(None));
        decide(&[]).expect_needs();
        let all = [
            "datacenter-gpu-manager-4-core=1:4.6.0-1",
            "datacenter-gpu-manager-4-cuda13=1:4.6.0-1",
        ];
        decide(&all).expect_satisfied();
        let (why, hint) = decide(&["datacenter-gpu-manager=1:3.3.9"]).expect_blocked();
        assert!(why.contains("conflicts with DCGM 4"), "{why}");
        assert!(hint.contains("datacenter-gpu-manager"), "{hint}");
    }

    #[test]
    fn units_run_and_the_exporter_has_its_port() {
        let (_, changes) = decide_service(&installed(), &want(None), &facts()).expect_needs();
        assert!(
            matches!(&changes[..], [Change::EnableUnit { unit, start: true }] if unit == UNIT),
            "{changes:?}"
        );
        let want = want(Some(9401));
        let (_, changes) = decide_service(&installed(), &want, &facts()).expect_needs();
        let [
            Change::EnableUnit { .. },
            Change::WriteFile { content, .. },
            Change::EnableUnit { unit: exporter, .. },
        ] = &changes[..]
        else {
            panic!("{changes:?}");
        };
        assert!(content.contains("--address :9401 "), "{content}");
        assert_eq!(exporter, EXPORTER_UNIT);
        let done = DcgmState {
            unit: Some(unit("enabled", "active")),
            exporter: Some(unit("enabled", "active")),
            drop_in: Some(content.clone()),
            ..installed()
        };
        decide_service(&done, &want, &facts()).expect_satisfied();
        // A running exporter with another port is restarted.
        let other = DcgmState {
            drop_in: Some(dcgm::drop_in(9400)),
            ..done
        };
        let (_, changes) = decide_service(&other, &want, &facts()).expect_needs();
        assert!(
            matches!(
                &changes[..],
                [Change::WriteFile { .. }, Change::RestartUnit { .. }]
            ),
            "{changes:?}"
        );
        assert!(
            changes
                .iter()
                .all(|change| (service_step().wants)(change, &want))
        );
    }

    #[test]
    fn removed_settings_undo_their_changes() {
        let of_engine = Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: true,
        };
        let of_exporter = Change::write(DROP_IN, "x");
        for (settings, engine, exporter) in rows! {
            want(Some(9400)), true, true;
            want(None), true, false;
            desired(), false, false;
        } {
            let wants = service_step().wants;
            assert_eq!(wants(&of_engine, &settings), engine);
            assert_eq!(wants(&of_exporter, &settings), exporter);
        }
    }

    #[test]
    fn packages_of_another_cuda_version_are_obsolete() {
        let wants = packages_step().wants;
        // The packages of several steps are installed in one transaction.
        let with = |name: &str| Change::InstallPackages {
            packages: specs(&["nvidia-driver-cuda", "datacenter-gpu-manager-4-core", name]),
            removing: Vec::new(),
            later: false,
        };
        for (name, is_wanted) in rows! {
            "datacenter-gpu-manager-4-cuda13", true;
            "nvidia-container-toolkit", true;
            "datacenter-gpu-manager-4-cuda12", false;
            "datacenter-gpu-manager-exporter", false;
        } {
            assert_eq!(wants(&with(name), &want(None)), is_wanted, "{name}");
        }
        assert!(wants(&Change::RefreshRepositories, &want(None)));
        assert!(!wants(&Change::RefreshRepositories, &desired()));
    }

    #[test]
    fn other_machines_wait_or_skip() {
        decide_service(&installed(), &desired(), &facts()).expect_not_applicable();
        let image = Desired {
            image: true,
            ..want(None)
        };
        decide_service(&installed(), &image, &facts()).expect_awaiting_boot();
        let mut cpu = facts();
        cpu.gpus.clear();
        decide_service(&installed(), &want(None), &cpu).expect_not_applicable();
        let unloaded = DcgmState {
            loaded: false,
            ..installed()
        };
        let (upstream, _) = decide_service(&unloaded, &want(None), &facts()).expect_after();
        assert_eq!(upstream, DRIVER_MODULE);
        let masked = DcgmState {
            exporter: Some(UnitState {
                load: "masked".to_owned(),
                ..unit("masked", "inactive")
            }),
            ..installed()
        };
        decide_service(&masked, &want(Some(9400)), &facts()).expect_blocked();
        decide_service(&masked, &want(None), &facts()).expect_needs();
    }
}
