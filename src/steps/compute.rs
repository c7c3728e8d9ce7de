//! `validation.compute`: the GPUs compute, in processes on the host. It is for machines on which no container
//! proves this: those whose container runtime is somebody else's, as on nodes of k3s, RKE2 and EKS.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{DRIVER_NODES, VALIDATION_DEVICES, container, words};
use crate::{
    change::{Change, Probe, ProofRecord},
    config::desired::Desired,
    facts::{Facts, GpuFact},
    model::{id::StepId, paths, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct Compute;

#[derive(Debug, Clone, Default)]
struct ComputeState {
    loaded: Option<DriverVersion>,
    /// The GPUs that this machine uses itself.
    gpus: Vec<GpuFact>,
    /// UUIDs of the devices that compute, by NVML; `None` if it does not answer.
    uuids: Option<Vec<String>>,
    /// The record of the last proof.
    record: Option<ProofRecord>,
}

async fn detect(cx: &Cx<'_>) -> Result<ComputeState, StepError> {
    let text = cx.host.files().read_text(&record_path())?;
    Ok(ComputeState {
        loaded: cx.state.loaded_driver()?.cloned(),
        gpus: words::usable(cx)?.into_iter().cloned().collect(),
        uuids: container::uuids(cx).await?,
        record: text.map(|text| ProofRecord::parse(&text)),
    })
}

fn record_path() -> Utf8PathBuf {
    Utf8Path::new(paths::STATE)
        .join(container::RECORDS)
        .join("host")
}

/// Whether the settings want the host to prove something: what no container proves.
fn is_wanted(desired: &Desired) -> bool {
    !container::is_wanted(desired)
}

/// What the probe depends on. If none of it moved, the last result of the same boot still holds.
fn inputs(state: &ComputeState, facts: &Facts, loaded: &DriverVersion) -> String {
    let mut lines = container::machine_inputs(&state.gpus, facts, loaded);
    lines.extend(container::device_inputs(state.uuids.as_deref()));
    lines.join("\n") + "\n"
}

fn proof_of(state: &ComputeState, inputs: String, again: bool) -> Change {
    Change::RunProbe {
        probe: Probe::HostComputes {
            gpus: state.gpus.len(),
        },
        record: record_path(),
        inputs,
        again,
    }
}

/// The proof, whatever was proven before; `None` where there is nothing to prove.
///
/// # Errors
/// When the machine could not be looked at.
pub async fn proof(cx: &Cx<'_>) -> Result<Option<Change>, StepError> {
    let state = detect(cx).await?;
    if nothing_to_prove(&state, cx.desired, cx.facts).is_some() {
        return Ok(None);
    }
    let proof = |loaded| proof_of(&state, inputs(&state, cx.facts, loaded), false);
    Ok(state.loaded.as_ref().map(proof))
}

/// The answer where nothing can or shall compute on the host.
fn nothing_to_prove(state: &ComputeState, desired: &Desired, facts: &Facts) -> Option<Assessment> {
    let not = |why: &str| Some(Assessment::not_applicable(why));
    if desired.driver.is_none() {
        return Some(words::no_driver());
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
    // Whoever makes MIG devices may come after the join, as in a container's proof.
    if state.uuids.as_ref().is_some_and(Vec::is_empty) {
        return not("GPUs in MIG mode have no MIG device on which a program could compute");
    }
    if state.loaded.is_some() {
        return None;
    }
    Some(container::without_driver(desired, facts))
}

fn decide(state: &ComputeState, desired: &Desired, facts: &Facts) -> Assessment {
    if let Some(answer) = nothing_to_prove(state, desired, facts) {
        return answer;
    }
    let Some(loaded) = &state.loaded else {
        return words::no_driver();
    };
    let inputs = inputs(state, facts, loaded);
    let due = container::due(
        state.record.as_ref(),
        &inputs,
        state.uuids.is_some(),
        facts.boot_id.as_deref(),
        "nothing has computed on the host",
    );
    match due {
        Some((why, again)) => Assessment::needs(why, vec![proof_of(state, inputs, again)]),
        None => Assessment::satisfied(format!(
            "{} computed on the host with driver {loaded} in this boot, and nothing has changed since",
            words::count(state.gpus.len())
        )),
    }
}

#[async_trait]
impl Step for Compute {
    fn id(&self) -> StepId {
        super::VALIDATION_COMPUTE
    }

    fn after(&self) -> &[StepId] {
        const { &[DRIVER_NODES, VALIDATION_DEVICES] }
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        desired.driver.is_none() || is_wanted(desired)
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
    }
}

#[cfg(test)]
mod tests {
    use super::{ComputeState, decide};
    use crate::{
        change::{Change, Probe, ProofRecord},
        config::desired::{Desired, RuntimeKind},
        facts::Facts,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    /// A machine whose container runtime is somebody else's.
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

    /// As an assessment leaves it after the probe has passed.
    fn record(changes: &[Change]) -> Option<ProofRecord> {
        let [Change::RunProbe { inputs, record, .. }] = changes else {
            panic!("one proof")
        };
        assert!(record.ends_with("validations/host"));
        Some(ProofRecord {
            inputs: inputs.clone(),
            boot: Some("b1".into()),
            ..ProofRecord::default()
        })
    }

    #[test]
    fn proven_once_and_again_when_something_moved() {
        let (want, facts, mut state) = machine();
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "nothing has computed on the host yet");
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
        // What NVML does not tell is no difference.
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
    fn a_proof_ends_with_its_boot() {
        let (want, mut facts, mut state) = machine();
        state.record = record(&decide(&state, &want, &facts).expect_needs().1);
        facts.boot_id = Some("b2".into());
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "nothing has computed on the host since this boot");
        assert!(changes.iter().all(Change::only_repeats_proof));
        state.loaded = "535.309.01".parse().ok();
        let (_, changes) = decide(&state, &want, &facts).expect_needs();
        assert!(!changes.iter().any(Change::only_repeats_proof));
    }

    #[test]
    fn the_host_proves_what_no_container_proves() {
        let (bare, facts, state) = machine();
        let mut only_pods = desired();
        only_pods.runtimes[0].kind = RuntimeKind::Crio;
        let mut without_toolkit = desired();
        without_toolkit.toolkit = None;
        let mut without_container = desired();
        without_container.validation.container = false;
        for want in [&bare, &only_pods, &without_toolkit, &without_container] {
            decide(&state, want, &facts).expect_needs();
        }
        let mut driverless = bare.clone();
        driverless.driver = None;
        for (want, words) in [
            (&desired(), "a container validates"),
            (&driverless, "no driver"),
        ] {
            let Assessment::NotApplicable { why } = decide(&state, want, &facts) else {
                panic!("nothing to prove: {words}");
            };
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn without_live_gpus_nothing_computes() {
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
                panic!("nothing to prove: {words}");
            };
            assert!(why.contains(words), "{why}");
            facts.gpus.clear();
        }
    }
}
