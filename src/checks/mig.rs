//! Checks that GPUs in MIG mode have MIG devices that programs and the device plugin can use, on any machine. The step
//! `driver.mig` compares them with the settings.

use std::collections::BTreeSet;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    host::{Nvml, NvmlDevice},
    mig::{self, MigStrategy, Profile},
    model::{id::Id, text::counted},
    step::StepError,
    steps::MIG_UNIT,
    tools::systemctl::{UnitState, own_file},
};

const LAYOUT: Id = Id::new("drv.mig.layout");

pub(super) const FAMILY: Family = Family {
    ids: || vec![LAYOUT],
    examine: |subject| Box::pin(examine(subject)),
};

/// The data of the finding.
#[derive(Debug, Clone, Default)]
struct MigState {
    gpus: Vec<NvmlDevice>,
    strategy: MigStrategy,
    /// The indices of the GPUs that are configured to have no instances, for a tool that creates them: `all-enabled`, or `enabled`
    /// in `mig.models`.
    without_instances: BTreeSet<u32>,
}

/// Reports a failed unit, also if the driver is not loaded, which may be the cause.
fn failed(unit: Option<&UnitState>) -> Option<Finding> {
    unit.filter(|unit| unit.active == "failed")?;
    let why = format!("`{MIG_UNIT}` failed, so the MIG layout may differ from the configured one");
    let remedy = format!("run `journalctl --boot --unit={MIG_UNIT}`, then `gpu-bootstrap install`");
    Some(Finding {
        remedy: Some(remedy),
        ..Finding::new(LAYOUT, Verdict::Fail, why)
    })
}

fn decide(state: &MigState) -> Finding {
    let finding = |status, why: String| Finding::new(LAYOUT, status, why);
    let fail = |why: String, remedy: &str| Finding {
        remedy: Some(remedy.to_owned()),
        ..finding(Verdict::Fail, why)
    };
    if !state.gpus.iter().any(mig::is_capable) {
        return finding(Verdict::Skip, "no GPU supports MIG".to_owned());
    }
    let names = |gpus: &[&NvmlDevice]| {
        let names: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        match gpus {
            [_] => format!("GPU {}", names.join(", ")),
            _ => format!("GPUs {}", names.join(", ")),
        }
    };
    let pending: Vec<&NvmlDevice> = (state.gpus.iter())
        .filter(|gpu| {
            let support = gpu.mig_support.as_ref();
            support.is_some_and(|support| support.pending != mig::is_split(gpu))
        })
        .collect();
    let split: Vec<&NvmlDevice> = (state.gpus.iter().filter(|gpu| mig::is_split(gpu))).collect();
    if split.is_empty() && pending.is_empty() {
        return finding(Verdict::Skip, "MIG is disabled".to_owned());
    }
    let (as_configured, empty): (Vec<&NvmlDevice>, Vec<&NvmlDevice>) = (split.iter().copied())
        .filter(|gpu| gpu.mig_devices.is_empty())
        .partition(|gpu| state.without_instances.contains(&gpu.index));
    if !empty.is_empty() {
        return fail(
            format!(
                "in MIG mode without a MIG device, so programs cannot use it: {}",
                names(&empty)
            ),
            "set `mig.layout`, then run `gpu-bootstrap install`; or create MIG devices (`nvidia-smi mig -cgi PROFILE -C`), or \
             disable MIG mode",
        );
    }
    // If all GPUs are empty as configured, no program has created the MIG devices yet.
    let is_unsuitable = state.strategy == MigStrategy::Single
        && as_configured.len() < state.gpus.len()
        && mig::offers(MigStrategy::Single, &state.gpus)
            .is_ok_and(|offers| offers.iter().any(|offer| offer.part.is_none()));
    if is_unsuitable {
        return fail(
            "the MIG strategy `single` needs MIG devices of one profile on all GPUs, so the device plugin offers no GPU".to_owned(),
            "set `cluster.mig-strategy = \"mixed\"`, also for the device plugin, or a `mig.layout` with one profile",
        );
    }
    let profiles: Vec<Profile> = (split.iter().flat_map(|gpu| &gpu.mig_devices))
        .filter_map(|part| part.profile.as_deref()?.parse().ok())
        .collect();
    if let Some(fault) = mig::plugin_fault(state.strategy, &profiles) {
        return fail(fault.why, &fault.remedy);
    }
    if !pending.is_empty() {
        return Finding {
            remedy: Some("run `systemctl reboot`".to_owned()),
            ..finding(
                Verdict::Warn,
                format!(
                    "the MIG mode changes at the next reset: {}",
                    names(&pending)
                ),
            )
        };
    }
    if !as_configured.is_empty() {
        return Finding {
            remedy: Some("create MIG devices (`nvidia-smi mig -cgi PROFILE -C`)".to_owned()),
            ..finding(
                Verdict::Warn,
                format!(
                    "in MIG mode without a MIG device, as configured: {}",
                    names(&as_configured)
                ),
            )
        };
    }
    let devices: usize = split.iter().map(|gpu| gpu.mig_devices.len()).sum();
    finding(
        Verdict::Pass,
        format!(
            "{} on {}",
            counted(devices, "MIG device"),
            counted(split.len(), "GPU")
        ),
    )
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let unit = match subject.host.files().exists(&own_file(MIG_UNIT))? {
        true => subject.state.unit(MIG_UNIT).await?,
        false => None,
    };
    if let Some(finding) = failed(unit.as_ref()) {
        return Ok(vec![finding]);
    }
    if subject.state.loaded_driver()?.is_none() {
        let why = "no driver is loaded";
        return Ok(vec![Finding::new(LAYOUT, Verdict::Skip, why)]);
    }
    let gpus = match subject.state.nvml().await {
        Nvml::Ready(view) => view.devices.clone(),
        Nvml::NotQueried { why } => {
            return Ok(vec![Finding::new(LAYOUT, Verdict::Skip, why.clone())]);
        }
        _ => {
            let why = "NVML does not respond";
            return Ok(vec![Finding::new(LAYOUT, Verdict::Unknown, why)]);
        }
    };
    let layout = (subject.desired)
        .and_then(|desired| desired.mig.as_ref())
        .map(|spec| &spec.layout);
    let model = |gpu: &NvmlDevice| {
        let facts = subject.facts.gpus.iter();
        let mut own = facts.filter(|fact| Some(fact.pci_address) == gpu.pci_address);
        own.next().map(|fact| fact.pci_id)
    };
    let state = MigState {
        strategy: (subject.desired).map_or(MigStrategy::None, |desired| {
            desired.device_plugin.mig_strategy
        }),
        without_instances: (gpus.iter())
            .filter(|gpu| layout.is_some_and(|layout| layout.leaves_empty(model(gpu))))
            .map(|gpu| gpu.index)
            .collect(),
        gpus,
    };
    Ok(vec![decide(&state)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{MigDevice, MigShare, MigSupport},
        steps::fixtures::{nvml_device, unit},
    };

    /// A GPU with MIG devices of these profiles. `None` if MIG is disabled.
    fn gpu(index: u32, profiles: Option<&[&str]>) -> NvmlDevice {
        let parts = (0..).zip(profiles.unwrap_or_default());
        NvmlDevice {
            mig: Some(profiles.is_some()),
            mig_devices: parts
                .map(|(index, profile)| MigDevice {
                    index,
                    uuid: None,
                    profile: Some((*profile).to_owned()),
                    share: Some(MigShare::default()),
                })
                .collect(),
            mig_support: Some(MigSupport {
                pending: profiles.is_some(),
                profiles: Vec::new(),
            }),
            ..nvml_device(index)
        }
    }

    #[test]
    fn unusable_layouts_are_reported() {
        use MigStrategy::{Mixed, None as Without, Single};
        use Verdict::{Fail, Pass, Skip};
        let one: &[&str] = &["1g.10gb"];
        let two: &[&str] = &["3g.40gb", "1g.10gb"];
        let small: &[&str] = &["1c.3g.40gb"; 3];
        for (gpus, strategy, verdict, why) in [
            (vec![gpu(0, None)], Without, Skip, "MIG is disabled"),
            (
                vec![gpu(0, Some(one))],
                Single,
                Pass,
                "1 MIG device on 1 GPU",
            ),
            (
                vec![gpu(0, Some(one)), gpu(1, Some(&[]))],
                Without,
                Fail,
                "in MIG mode without a MIG device, so programs cannot use it: GPU 1",
            ),
            (
                vec![gpu(0, Some(two))],
                Without,
                Pass,
                "2 MIG devices on 1 GPU",
            ),
            (
                vec![gpu(0, Some(two))],
                Single,
                Fail,
                "the MIG strategy `single` needs",
            ),
            (
                vec![gpu(0, Some(small))],
                Single,
                Pass,
                "3 MIG devices on 1 GPU",
            ),
            (
                vec![gpu(0, Some(small))],
                Mixed,
                Fail,
                "with `cluster.mig-strategy = \"mixed\"`, the device plugin does not start",
            ),
            (
                vec![gpu(0, Some(one)), gpu(1, None)],
                Single,
                Fail,
                "the MIG strategy `single` needs",
            ),
        ] {
            let state = MigState {
                gpus,
                strategy,
                without_instances: BTreeSet::new(),
            };
            let finding = decide(&state);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.starts_with(why), "{}", finding.why);
        }
    }

    #[test]
    fn pending_mode_and_failed_unit_are_reported() {
        let mut pending = gpu(0, None);
        pending.mig_support = Some(MigSupport {
            pending: true,
            profiles: Vec::new(),
        });
        let mut state = MigState {
            gpus: vec![pending],
            ..MigState::default()
        };
        assert_eq!(decide(&state).status, Verdict::Warn);
        // The configured layout `all-enabled`.
        state.gpus = vec![gpu(0, Some(&[]))];
        assert_eq!(decide(&state).status, Verdict::Fail);
        state.without_instances = BTreeSet::from([0]);
        let finding = decide(&state);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(finding.remedy.is_some_and(|remedy| remedy.contains("-cgi")));
        // Another GPU changes its mode at the next reset.
        let mut other = gpu(1, None);
        other.mig_support = Some(MigSupport {
            pending: true,
            profiles: Vec::new(),
        });
        state.gpus.push(other);
        let finding = decide(&state);
        assert!(finding.why.ends_with("reset: GPU 1"), "{}", finding.why);
        // With the strategy `single`, another GPU has MIG devices.
        state.gpus[1] = gpu(1, Some(&["1g.10gb"]));
        assert_eq!(decide(&state).status, Verdict::Warn);
        state.strategy = MigStrategy::Single;
        let finding = decide(&state);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.contains("`single`"), "{}", finding.why);
        state.gpus.pop();
        assert_eq!(decide(&state).status, Verdict::Warn);
        // Another GPU is not configured to be empty.
        state.gpus.push(gpu(1, Some(&[])));
        let finding = decide(&state);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.ends_with("GPU 1"), "{}", finding.why);
        assert!(failed(Some(&unit("enabled", "active"))).is_none());
        let finding = failed(Some(&unit("enabled", "failed"))).expect("a finding");
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.why.contains(MIG_UNIT), "{}", finding.why);
        let plain = NvmlDevice {
            mig: None,
            ..nvml_device(0)
        };
        let state = MigState {
            gpus: vec![plain],
            ..MigState::default()
        };
        assert_eq!(decide(&state).why, "no GPU supports MIG");
    }
}
