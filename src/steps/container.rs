//! `validation.container`: a container sees the GPUs and the driver's libraries, and computes on them.
//! This probe needs everything below it, so it comes last.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use super::{
    CDI, RUNTIME_CONTAINERD_NVIDIA, RUNTIME_DOCKER_NVIDIA, RUNTIME_PODMAN, VALIDATION_DEVICES,
    packages, wishes::Packages, words,
};
use crate::{
    change::{Change, Lock, Probe},
    config::desired::{Desired, RuntimeKind, RuntimeWish},
    facts::{Facts, GpuFact},
    host::{Nvml, NvmlView},
    model::{id::StepId, paths, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::probe,
};

/// See the module.
pub struct Container;

#[derive(Debug, Clone, Default)]
struct ContainerState {
    loaded: Option<DriverVersion>,
    installed: Packages,
    /// The GPUs that containers can use.
    gpus: Vec<GpuFact>,
    /// UUIDs of the devices that compute, by NVML; `None` if it does not answer.
    uuids: Option<Vec<String>>,
    /// The record of the last probe.
    record: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<ContainerState, StepError> {
    let record = match provable(cx.desired) {
        Some(wish) => cx.host.files().read_text(&record_path(wish.kind))?,
        None => None,
    };
    let loaded = cx.state.loaded_driver()?.cloned();
    // As in `validation.devices`: without a driver it has nothing to say.
    let uuids = if loaded.is_some() && cx.desired.driver.is_some() {
        match cx.state.nvml().await {
            Nvml::Ready(view) => Some(computing(view)),
            _ => None,
        }
    } else {
        None
    };
    Ok(ContainerState {
        loaded,
        uuids,
        installed: packages::installed(cx).await?,
        gpus: words::usable(cx)?.into_iter().cloned().collect(),
        record,
    })
}

fn computing(view: &NvmlView) -> Vec<String> {
    let devices = probe::devices(view).into_iter();
    devices.map(|device| device.uuid).collect()
}

/// The runtime in which a container is run.
fn provable(desired: &Desired) -> Option<&RuntimeWish> {
    (desired.runtimes.iter()).find(|wish| wish.kind.runs_single_containers())
}

fn record_path(kind: RuntimeKind) -> Utf8PathBuf {
    let name = match kind {
        RuntimeKind::Docker => "container-docker",
        RuntimeKind::Containerd => "container-containerd",
        RuntimeKind::Crio => "container-crio",
        RuntimeKind::Podman => "container-podman",
    };
    Utf8PathBuf::from(paths::STATE).join("proofs").join(name)
}

/// What the probe depends on. If none of it moved, the last result still holds.
fn inputs(
    state: &ContainerState,
    wish: &RuntimeWish,
    desired: &Desired,
    facts: &Facts,
    loaded: &DriverVersion,
) -> String {
    let mut lines = vec![format!("driver={loaded}")];
    // A clone has GPUs of its own, which nobody has seen, at the same addresses.
    if let Some(instance) = &facts.instance_id {
        lines.push(format!("instance={instance}"));
    }
    for gpu in &state.gpus {
        lines.push(format!("gpu={} {}", gpu.pci_address, gpu.pci_id));
    }
    let toolkit = desired.toolkit.iter().flat_map(|toolkit| &toolkit.packages);
    let alternatives = wish.alternatives.iter();
    let mut names: Vec<&String> = wish
        .packages
        .iter()
        .chain(toolkit)
        .map(|wish| &wish.name)
        .chain(alternatives)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if let Some(package) = state.installed.get(name) {
            lines.push(format!("package={name} {}", package.version));
        }
    }
    if let Some(image) = &desired.validation.image {
        lines.push(format!("image={image}"));
    }
    for uuid in state.uuids.iter().flatten() {
        lines.push(format!("{DEVICE}{uuid}"));
    }
    lines.join("\n") + "\n"
}

/// Begins the line of a device in a record.
const DEVICE: &str = "device=";

/// Whether a record is of these inputs. What NVML does not tell now is no difference: another step names
/// that.
fn is_of(record: &str, inputs: &str, uuids_known: bool) -> bool {
    let lines = |text: &str| -> Vec<String> {
        (text
            .lines()
            .filter(|line| uuids_known || !line.starts_with(DEVICE)))
        .map(str::to_owned)
        .collect()
    };
    lines(record) == lines(inputs)
}

fn decide(state: &ContainerState, desired: &Desired, facts: &Facts) -> Assessment {
    if desired.driver.is_none() {
        return words::no_driver();
    }
    if !desired.validation.container || desired.toolkit.is_none() {
        return Assessment::NotApplicable {
            why: "no container probe is configured".into(),
        };
    }
    let Some(wish) = provable(desired) else {
        return Assessment::NotApplicable {
            why: "no container runtime is configured that runs single containers".into(),
        };
    };
    let Some(loaded) = &state.loaded else {
        if desired.image {
            return Assessment::AwaitingBoot {
                why: "the probe needs live GPUs; it runs at the first boot".into(),
            };
        }
        if facts.gpus.is_empty() {
            return Assessment::NotApplicable {
                why: "no NVIDIA GPU is on the PCI bus".into(),
            };
        }
        return Assessment::After {
            upstream: VALIDATION_DEVICES,
            why: "the probe needs live GPUs".into(),
            expected: Vec::new(),
        };
    };
    let inputs = inputs(state, wish, desired, facts, loaded);
    let known = state.uuids.is_some();
    if (state.record.as_ref()).is_some_and(|record| is_of(record, &inputs, known)) {
        return Assessment::Satisfied {
            why: format!(
                "a container saw {} with driver {loaded}, and nothing has changed since",
                words::count(state.gpus.len())
            ),
        };
    }
    Assessment::Needs {
        why: match &state.record {
            None => "no container has seen the GPUs yet".to_owned(),
            Some(record) => format!("since the last probe: {}", moved(record, &inputs)),
        },
        changes: vec![Change::RunProbe {
            probe: Probe::ContainerSeesGpus {
                runtime: wish.kind,
                image: desired.validation.image.clone(),
                gpus: state.gpus.len(),
                driver: loaded.to_string(),
                uuids: state.uuids.clone().unwrap_or_default(),
                timeout_seconds: desired.validation.timeout_seconds,
            },
            record: record_path(wish.kind),
            inputs,
        }],
    }
}

/// Which lines are new, for people.
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

#[async_trait]
impl Step for Container {
    fn id(&self) -> StepId {
        super::VALIDATION_CONTAINER
    }

    fn title(&self) -> &'static str {
        "A container sees the GPUs"
    }

    fn after(&self) -> &[StepId] {
        const {
            &[
                CDI,
                RUNTIME_DOCKER_NVIDIA,
                RUNTIME_CONTAINERD_NVIDIA,
                RUNTIME_PODMAN,
                VALIDATION_DEVICES,
            ]
        }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        desired.driver.is_none()
            || (desired.validation.container
                && desired.toolkit.is_some()
                && provable(desired).is_some())
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
    }
}

#[cfg(test)]
mod tests {
    use super::{ContainerState, decide};
    use crate::{
        change::Change,
        step::Assessment,
        steps::{
            fixtures::{desired, facts},
            wishes::fixtures::packages,
        },
    };

    #[test]
    fn proven_once_and_again_when_something_moved() {
        let (want, facts) = (desired(), facts());
        let mut state = ContainerState {
            loaded: "535.261.03".parse().ok(),
            installed: packages(&["docker.io=20.10.24", "nvidia-container-toolkit=1.20.0-1"]),
            gpus: facts.gpus.clone(),
            uuids: Some(vec!["GPU-a".into(), "GPU-b".into()]),
            record: None,
        };
        let Assessment::Needs { changes, .. } = decide(&state, &want, &facts) else {
            panic!("must be proven");
        };
        let [Change::RunProbe { inputs, .. }] = &changes[..] else {
            panic!("one proof")
        };
        state.record = Some(inputs.clone());
        assert!(matches!(
            decide(&state, &want, &facts),
            Assessment::Satisfied { .. }
        ));
        state.installed = packages(&["docker.io=26.1.5", "nvidia-container-toolkit=1.20.0-1"]);
        let Assessment::Needs { why, .. } = decide(&state, &want, &facts) else {
            panic!("must be proven again");
        };
        assert_eq!(why, "since the last probe: package=docker.io 26.1.5");
        // Another MIG layout is proven again; what NVML does not tell is no difference.
        state.installed = packages(&["docker.io=20.10.24", "nvidia-container-toolkit=1.20.0-1"]);
        state.uuids = Some(vec!["GPU-a".into(), "MIG-c".into()]);
        let Assessment::Needs { why, .. } = decide(&state, &want, &facts) else {
            panic!("must be proven again");
        };
        assert_eq!(why, "since the last probe: device=MIG-c");
        state.uuids = None;
        assert!(matches!(
            decide(&state, &want, &facts),
            Assessment::Satisfied { .. }
        ));
    }
}
