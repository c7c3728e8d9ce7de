//! `validation.container`: a container sees the GPUs and the driver libraries, and computes on them. It depends on
//! all other parts, so it is the last validation.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    CDI, VALIDATION_CONTAINER, VALIDATION_DEVICES, VALIDATION_IMAGE, configured_daemons,
    installed_runtimes, messages, packages, specs::InstalledPackages,
};
use crate::{
    change::{Change, Lock, Probe, ValidationRecord},
    config::desired::{Desired, RuntimeKind, RuntimeSpec},
    facts::{Facts, GpuFact},
    host::{FilesError, Nvml, ReadFiles},
    model::{paths, text::counted, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::probe,
};

/// The `validation.container` step.
pub(super) fn step() -> Step {
    Step::new(VALIDATION_CONTAINER, |cx| Box::pin(assess(cx)))
        .after(installed_runtimes())
        .after(configured_daemons())
        .after([CDI, VALIDATION_DEVICES, VALIDATION_IMAGE])
        .locks([Lock::Containers])
        .wants(|_, desired| desired.driver.is_none() || is_wanted(desired))
}

#[derive(Debug, Clone, Default)]
struct ContainerState {
    loaded: Option<DriverVersion>,
    installed: InstalledPackages,
    /// The GPUs that are not reserved for virtual machines.
    gpus: Vec<GpuFact>,
    /// UUIDs of the compute devices from NVML. `None` if NVML does not respond.
    uuids: Option<Vec<String>>,
    /// The last validation record of each runtime.
    records: BTreeMap<RuntimeKind, ValidationRecord>,
}

async fn detect(cx: &Cx<'_>) -> Result<ContainerState, StepError> {
    let mut records = BTreeMap::new();
    for spec in &cx.desired.runtimes {
        records.extend(record(cx, spec.kind)?.map(|record| (spec.kind, record)));
    }
    Ok(ContainerState {
        loaded: cx.state.loaded_driver()?.cloned(),
        uuids: uuids(cx).await?,
        installed: packages::installed(cx).await?,
        gpus: messages::usable(cx)?.into_iter().cloned().collect(),
        records,
    })
}

/// Returns UUIDs of the compute devices from NVML. `None` if NVML does not respond.
pub(super) async fn uuids(cx: &Cx<'_>) -> Result<Option<Vec<String>>, StepError> {
    // Do not query NVML if no driver is loaded or configured, as in `validation.devices`.
    if cx.state.loaded_driver()?.is_none() || cx.desired.driver.is_none() {
        return Ok(None);
    }
    Ok(match cx.state.nvml().await {
        Nvml::Ready(view) => {
            let devices = probe::devices(view).into_iter();
            Some(devices.map(|device| device.uuid).collect())
        }
        _ => None,
    })
}

/// Directory of the records, below the state directory.
pub const RECORDS: &str = "validations";

/// Returns the last validation record of a runtime.
pub(super) fn record(
    cx: &Cx<'_>,
    kind: RuntimeKind,
) -> Result<Option<ValidationRecord>, StepError> {
    let text = cx.host.files().read_text(&record_path(kind))?;
    Ok(text.map(|text| ValidationRecord::parse(&text)))
}

/// Returns the time of the last successful validation of the GPUs, on the host or in a container. `None` if there is no record
/// with a valid time.
///
/// # Errors
/// If a record cannot be read.
pub fn last_validated(files: &dyn ReadFiles) -> Result<Option<jiff::Timestamp>, FilesError> {
    let directory = Utf8Path::new(paths::STATE).join(RECORDS);
    let mut last = None;
    for name in files.list(&directory)? {
        let text = files.read_text(&directory.join(name))?;
        let record = ValidationRecord::parse(&text.unwrap_or_default());
        last = last.max(record.at.and_then(|at| at.parse().ok()));
    }
    Ok(last)
}

/// Returns whether containers are used for validation.
pub fn is_wanted(desired: &Desired) -> bool {
    desired.validation.container && desired.toolkit.is_some() && !desired.runtimes.is_empty()
}

fn record_path(kind: RuntimeKind) -> Utf8PathBuf {
    let name = format!("container-{}", kind.name());
    Utf8PathBuf::from(paths::STATE).join(RECORDS).join(name)
}

/// Returns the inputs that all probes share.
pub(super) fn machine_inputs(
    gpus: &[GpuFact],
    facts: &Facts,
    loaded: &DriverVersion,
) -> Vec<String> {
    let mut lines = vec![format!("driver={loaded}")];
    // A cloned machine has other GPUs at the same PCI addresses. They have not been validated.
    if let Some(instance) = &facts.instance_id {
        lines.push(format!("instance={instance}"));
    }
    for gpu in gpus {
        lines.push(format!("gpu={} {}", gpu.pci_address, gpu.pci_id));
    }
    lines
}

/// Returns the inputs from the compute devices.
pub(super) fn device_inputs(uuids: Option<&[String]>) -> impl Iterator<Item = String> {
    (uuids.into_iter().flatten()).map(|uuid| format!("device={uuid}"))
}

/// Returns the inputs of the probe. As long as they are unchanged, the last validation in this boot is still valid.
fn inputs(
    state: &ContainerState,
    spec: &RuntimeSpec,
    desired: &Desired,
    facts: &Facts,
    loaded: &DriverVersion,
) -> String {
    let mut lines = machine_inputs(&state.gpus, facts, loaded);
    let toolkit = desired.toolkit.iter().flat_map(|toolkit| &toolkit.packages);
    let alternatives = spec.alternatives.iter();
    let mut names: Vec<&String> = spec
        .packages
        .iter()
        .chain(toolkit)
        .map(|spec| &spec.name)
        .chain(alternatives)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if let Some(package) = state.installed.get(name) {
            lines.push(format!("package={name} {}", package.version));
        }
    }
    let image = desired.validation.image.iter();
    lines.extend(image.map(|image| format!("{}{image}", ValidationRecord::IMAGE)));
    lines.extend(device_inputs(state.uuids.as_deref()));
    lines.join("\n") + "\n"
}

/// Returns the change that validates one runtime.
fn validation_run(
    state: &ContainerState,
    spec: &RuntimeSpec,
    desired: &Desired,
    loaded: &DriverVersion,
    (inputs, again): (String, bool),
) -> Change {
    let validation = &desired.validation;
    Change::RunProbe {
        probe: Probe::ContainerSeesGpus {
            runtime: spec.kind,
            image: validation.image.clone(),
            gpus: state.gpus.len(),
            driver: loaded.to_string(),
            uuids: state.uuids.clone().unwrap_or_default(),
            timeout_seconds: validation.timeout_seconds,
            pull_timeout_seconds: validation.pull_timeout_seconds,
            archive: validation.archive(spec.kind).cloned(),
        },
        record: record_path(spec.kind),
        inputs,
        again,
    }
}

/// Returns the changes that validate all runtimes, regardless of earlier results. Empty if there is nothing to validate.
///
/// # Errors
/// If the machine state cannot be read.
pub async fn validations(cx: &Cx<'_>) -> Result<Vec<Change>, StepError> {
    let state = detect(cx).await?;
    let (desired, facts) = (cx.desired, cx.facts);
    if nothing_to_validate(&state, desired, facts).is_some() {
        return Ok(Vec::new());
    }
    let Some(loaded) = &state.loaded else {
        return Ok(Vec::new());
    };
    let all = desired.runtimes.iter().map(|spec| {
        let inputs = inputs(&state, spec, desired, facts, loaded);
        validation_run(&state, spec, desired, loaded, (inputs, false))
    });
    Ok(all.collect())
}

/// Returns the assessment if no container can or must run.
fn nothing_to_validate(
    state: &ContainerState,
    desired: &Desired,
    facts: &Facts,
) -> Option<Assessment> {
    let not = |why: &str| Some(Assessment::not_applicable(why));
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    if !desired.validation.container || desired.toolkit.is_none() {
        return not("no container probe is configured");
    }
    if desired.runtimes.is_empty() {
        return not("no container runtime is configured");
    }
    if state.loaded.is_some() {
        return None;
    }
    Some(without_driver(desired, facts))
}

/// Returns the assessment of a validation without a loaded driver.
pub(super) fn without_driver(desired: &Desired, facts: &Facts) -> Assessment {
    if desired.image {
        return Assessment::awaits_boot("the probe needs live GPUs; it runs at the first boot");
    }
    if facts.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    Assessment::After {
        upstream: VALIDATION_DEVICES,
        why: "the probe needs live GPUs".into(),
        expected: Vec::new(),
    }
}

fn decide(state: &ContainerState, desired: &Desired, facts: &Facts) -> Assessment {
    if let Some(answer) = nothing_to_validate(state, desired, facts) {
        return answer;
    }
    let Some(loaded) = &state.loaded else {
        return messages::no_driver();
    };
    let (known, boot) = (state.uuids.is_some(), facts.boot_id.as_deref());
    let (mut changes, mut whys) = (Vec::new(), Vec::new());
    for spec in &desired.runtimes {
        let inputs = inputs(state, spec, desired, facts, loaded);
        let record = state.records.get(&spec.kind);
        let nothing = "no container has seen the GPUs";
        if let Some((why, again)) = due(record, &inputs, known, boot, nothing) {
            whys.push(format!("{}: {why}", spec.kind.name()));
            changes.push(validation_run(
                state,
                spec,
                desired,
                loaded,
                (inputs, again),
            ));
        }
    }
    if changes.is_empty() {
        let runtimes = desired.runtimes.iter().map(|spec| spec.kind.name());
        let runtimes: Vec<&str> = runtimes.collect();
        return Assessment::satisfied(format!(
            "a container of {} saw {} with driver {loaded} in this boot, no changes \
             since",
            runtimes.join(", and one of "),
            counted(state.gpus.len(), "GPU")
        ));
    }
    Assessment::needs(whys.join("; "), changes)
}

/// Returns the reason for a new validation, and whether it only repeats the last one after a boot. `None` if the last
/// one is still valid. `nothing` is the text for a missing validation.
pub(super) fn due(
    record: Option<&ValidationRecord>,
    inputs: &str,
    devices_known: bool,
    boot: Option<&str>,
    nothing: &str,
) -> Option<(String, bool)> {
    let Some(record) = record else {
        return Some((format!("{nothing} yet"), false));
    };
    if !record.is_of(inputs, devices_known) {
        let moved = moved(&record.inputs, inputs);
        return Some((format!("since the last probe: {moved}"), false));
    }
    (!record.is_of_boot(boot)).then(|| (format!("{nothing} since this boot"), true))
}

/// Lists the input lines that are not in the record.
fn moved(record: &str, inputs: &str) -> String {
    let new: Vec<&str> = inputs
        .lines()
        .filter(|line| !record.lines().any(|old| old == *line))
        .collect();
    if new.is_empty() {
        "the probe depends on fewer inputs".to_owned()
    } else {
        new.join(", ")
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ContainerState, decide, last_validated};
    use crate::{
        change::{Change, ValidationRecord},
        config::desired::{Desired, RuntimeKind},
        facts::Facts,
        host::fake,
        steps::{
            fixtures::{desired, facts},
            specs::fixtures::packages,
        },
    };

    /// The record after a passed probe.
    fn record(inputs: &str, boot: &str) -> ValidationRecord {
        ValidationRecord {
            inputs: inputs.to_owned(),
            boot: Some(boot.to_owned()),
            ..ValidationRecord::default()
        }
    }

    #[test]
    fn last_validation_is_the_newest_record() {
        let (host, fakes) = fake::host();
        let last = || {
            last_validated(&*host.files)
                .expect("readable")
                .map(|at| at.to_string())
        };
        assert_eq!(last(), None);
        // A record of an older version has no time.
        for (name, text) in rows! {
            "host", "driver=580\n";
            "container-docker", "validated-at=2026-11-23T22:00:00Z\n";
            "container-containerd", "validated-at=2026-11-25T08:30:00.5Z\n";
        } {
            let path = format!("/var/lib/gpu-bootstrap/validations/{name}");
            fakes.files.put(&path, text);
        }
        assert_eq!(last().as_deref(), Some("2026-11-25T08:30:00.5Z"));
    }

    fn machine() -> (Desired, Facts, ContainerState) {
        let mut facts = facts();
        facts.boot_id = Some("b1".into());
        let state = ContainerState {
            loaded: "535.261.03".parse().ok(),
            installed: packages(&["docker.io=20.10.24", "nvidia-container-toolkit=1.20.0-1"]),
            gpus: facts.gpus.clone(),
            uuids: Some(vec!["GPU-a".into(), "GPU-b".into()]),
            records: BTreeMap::new(),
        };
        (desired(), facts, state)
    }

    #[test]
    fn validation_repeats_only_after_a_change() {
        let (want, facts, mut state) = machine();
        let (_, changes) = decide(&state, &want, &facts).expect_needs();
        let [Change::RunProbe { inputs, again, .. }] = &changes[..] else {
            panic!("one validation")
        };
        assert!(!again);
        (state.records).insert(RuntimeKind::Docker, record(inputs, "b1"));
        decide(&state, &want, &facts).expect_satisfied();
        state.installed = packages(&["docker.io=26.1.5", "nvidia-container-toolkit=1.20.0-1"]);
        let (why, _) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(
            why,
            "docker: since the last probe: package=docker.io 26.1.5"
        );
        // A new MIG layout is validated again. If NVML does not respond, the devices are not compared.
        state.installed = packages(&["docker.io=20.10.24", "nvidia-container-toolkit=1.20.0-1"]);
        state.uuids = Some(vec!["GPU-a".into(), "MIG-c".into()]);
        let (why, _) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "docker: since the last probe: device=MIG-c");
        state.uuids = None;
        decide(&state, &want, &facts).expect_satisfied();
    }

    #[test]
    fn each_runtime_is_validated_separately() {
        let (mut want, facts, mut state) = machine();
        let mut second = want.runtimes[0].clone();
        second.kind = RuntimeKind::Containerd;
        want.runtimes.push(second);
        let (_, changes) = decide(&state, &want, &facts).expect_needs();
        let [
            Change::RunProbe { inputs, .. },
            Change::RunProbe { record: path, .. },
        ] = &changes[..]
        else {
            panic!("two validations")
        };
        assert!(path.ends_with("validations/container-containerd"));
        (state.records).insert(RuntimeKind::Docker, record(inputs, "b1"));
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert_eq!(why, "containerd: no container has seen the GPUs yet");
        assert_eq!(changes.len(), 1);
    }
}
