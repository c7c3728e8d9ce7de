//! `validation.compute`: the GPUs compute in processes on the host. For machines where no container validates the GPUs,
//! for example k3s, RKE2 and EKS nodes, where another program manages the container runtime.

use camino::{Utf8Path, Utf8PathBuf};

use super::{PROGRAM_DEVICES, VALIDATION_COMPUTE, VALIDATION_DEVICES, container, messages};
use crate::{
    change::{Change, Probe, ValidationRecord},
    config::desired::Desired,
    facts::{Facts, GpuFact},
    model::{paths, text::counted, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::probe,
};

/// The `validation.compute` step.
pub(super) fn step() -> Step {
    Step::new(VALIDATION_COMPUTE, |cx| Box::pin(assess(cx)))
        .after(PROGRAM_DEVICES)
        .after([VALIDATION_DEVICES])
        .wants(|_, desired| desired.driver.is_none() || is_wanted(desired))
}

#[derive(Debug, Clone, Default)]
struct ComputeState {
    loaded: Option<DriverVersion>,
    /// The GPUs that are not reserved for virtual machines.
    gpus: Vec<GpuFact>,
    /// UUIDs of the compute devices from NVML. `None` if NVML does not respond.
    uuids: Option<Vec<String>>,
    /// The last validation record.
    record: Option<ValidationRecord>,
}

async fn detect(cx: &Cx<'_>) -> Result<ComputeState, StepError> {
    let text = cx.host.files().read_text(&record_path())?;
    Ok(ComputeState {
        loaded: cx.state.loaded_driver()?.cloned(),
        gpus: messages::usable(cx)?.into_iter().cloned().collect(),
        uuids: container::uuids(cx).await?,
        record: text.map(|text| ValidationRecord::parse(&text)),
    })
}

fn record_path() -> Utf8PathBuf {
    Utf8Path::new(paths::STATE)
        .join(container::RECORDS)
        .join("host")
}

/// Returns whether the host must validate the GPUs because no container does.
fn is_wanted(desired: &Desired) -> bool {
    !container::is_wanted(desired)
}

/// The inputs of the probe. As long as they are unchanged, the last validation in this boot is still valid.
fn inputs(state: &ComputeState, facts: &Facts, loaded: &DriverVersion) -> String {
    let mut lines = container::machine_inputs(&state.gpus, facts, loaded);
    lines.extend(container::device_inputs(state.uuids.as_deref()));
    lines.join("\n") + "\n"
}

fn validation_of(state: &ComputeState, inputs: String, again: bool) -> Change {
    Change::RunProbe {
        probe: Probe::HostComputes {
            gpus: state.gpus.len(),
        },
        record: record_path(),
        inputs,
        again,
    }
}

/// Returns the change that validates the GPUs, regardless of earlier results. `None` if there is nothing to validate.
///
/// # Errors
/// If the machine state cannot be read.
pub async fn validation_run(cx: &Cx<'_>) -> Result<Option<Change>, StepError> {
    let state = detect(cx).await?;
    if nothing_to_validate(&state, cx.desired, cx.facts).is_some() {
        return Ok(None);
    }
    let validation_run = |loaded| validation_of(&state, inputs(&state, cx.facts, loaded), false);
    Ok(state.loaded.as_ref().map(validation_run))
}

/// Returns the assessment if host validation is impossible or unnecessary.
fn nothing_to_validate(
    state: &ComputeState,
    desired: &Desired,
    facts: &Facts,
) -> Option<Assessment> {
    let not = |why: &str| Some(Assessment::not_applicable(why));
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    if !is_wanted(desired) {
        return not("a container validates that the GPUs compute");
    }
    if desired.image || facts.gpus.is_empty() {
        return Some(container::without_driver(desired, facts));
    }
    if state.gpus.is_empty() {
        return not("all GPUs are reserved for virtual machines");
    }
    // Do not block, because MIG devices may be created after the machine has joined its cluster. Container validation does
    // not block either.
    if state.uuids.as_ref().is_some_and(Vec::is_empty) {
        return not(probe::NO_DEVICE);
    }
    if state.loaded.is_some() {
        return None;
    }
    Some(container::without_driver(desired, facts))
}

fn decide(state: &ComputeState, desired: &Desired, facts: &Facts) -> Assessment {
    if let Some(answer) = nothing_to_validate(state, desired, facts) {
        return answer;
    }
    let Some(loaded) = &state.loaded else {
        return messages::no_driver();
    };
    let inputs = inputs(state, facts, loaded);
    let due = container::due(
        state.record.as_ref(),
        &inputs,
        state.uuids.is_some(),
        facts.boot_id.as_deref(),
        "no probe has run on the host",
    );
    match due {
        Some((why, again)) => Assessment::needs(why, vec![validation_of(state, inputs, again)]),
        None => Assessment::satisfied(format!(
            "{} computed on the host with driver {loaded} in this boot, no changes since",
            counted(state.gpus.len(), "GPU")
        )),
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::{ComputeState, decide};
    use crate::{
        change::{Change, Probe, ValidationRecord},
        config::desired::Desired,
        facts::Facts,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    /// A machine with a container runtime that another program manages.
    fn machine() -> (Desired, Facts, ComputeState) {
        let (mut desired, mut facts) = (desired(), facts());
        desired.runtimes.clear();
        facts.boot_id = Some("b1".into());
        let state = ComputeState {
            loaded: "535.261.03".parse().ok(),
            gpus: facts.gpus.clone(),
            uuids: Some(vec!["GPU-a".into(), "GPU-b".into()]),
            record: None,
        };
        (desired, facts, state)
    }

    /// The validation record after the probe in these changes has passed.
    fn record(changes: &[Change]) -> Option<ValidationRecord> {
        let [Change::RunProbe { inputs, record, .. }] = changes else {
            panic!("one validation")
        };
        assert!(record.ends_with("validations/host"));
        Some(ValidationRecord {
            inputs: inputs.clone(),
            boot: Some("b1".into()),
            ..ValidationRecord::default()
        })
    }

    #[test]
    fn validation_repeats_only_after_a_change() {
        let (want, facts, mut state) = machine();
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "no probe has run on the host yet");
        assert!(matches!(
            &changes[..],
            [Change::RunProbe {
                probe: Probe::HostComputes { gpus: 2 },
                again: false,
                ..
            }]
        ));
        state.record = record(&changes);
        let why = decide(&state, &want, &facts).expect_satisfied();
        let words = "2 GPUs computed on the host with driver 535.261.03 in this boot";
        assert!(why.starts_with(words), "{why}");
        // If NVML does not respond, the devices are not compared.
        let uuids = state.uuids.take();
        let answer = decide(&state, &want, &facts);
        answer.expect_satisfied();
        state.uuids = uuids.map(|_| vec!["GPU-a".into(), "MIG-c".into()]);
        let (why, _) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "since the last probe: device=MIG-c");
        state.loaded = "535.309.01".parse().ok();
        let (why, _) = decide(&state, &want, &facts).expect_needs();
        assert!(why.starts_with("since the last probe: driver=535.309.01"));
    }

    #[test]
    fn validation_expires_at_reboot() {
        let (want, mut facts, mut state) = machine();
        state.record = record(&decide(&state, &want, &facts).expect_needs().1);
        facts.boot_id = Some("b2".into());
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "no probe has run on the host since this boot");
        assert!(changes.iter().all(Change::only_repeats_validation));
        state.loaded = "535.309.01".parse().ok();
        let (_, changes) = decide(&state, &want, &facts).expect_needs();
        assert!(!changes.iter().any(Change::only_repeats_validation));
    }

    #[test]
    fn host_validates_if_no_container_does() {
        let (bare, facts, state) = machine();
        let mut without_toolkit = desired();
        without_toolkit.toolkit = None;
        let mut without_container = desired();
        without_container.validation.container = false;
        for want in [&bare, &without_toolkit, &without_container] {
            decide(&state, want, &facts).expect_needs();
        }
        let mut driverless = bare.clone();
        driverless.driver = None;
        for (want, words) in [
            (&desired(), "a container validates"),
            (&driverless, "no driver"),
        ] {
            let Assessment::NotApplicable { why } = decide(&state, want, &facts) else {
                panic!("nothing to validate: {words}");
            };
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn not_applicable_without_usable_gpus() {
        let (mut want, mut facts, mut state) = machine();
        state.loaded = None;
        let answer = decide(&state, &want, &facts);
        answer.expect_after();
        want.image = true;
        let answer = decide(&state, &want, &facts);
        answer.expect_awaiting_boot();
        want.image = false;
        state.gpus.clear();
        for words in ["reserved for virtual machines", "is on the PCI bus"] {
            let Assessment::NotApplicable { why } = decide(&state, &want, &facts) else {
                panic!("nothing to validate: {words}");
            };
            assert!(why.contains(words), "{why}");
            facts.gpus.clear();
        }
    }
}
