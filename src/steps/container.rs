//! `validation.container`: a container sees the GPUs and the driver's libraries. This
//! probe needs everything below it, so it comes last.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use super::{
    CDI, RUNTIME_CONTAINERD_NVIDIA, RUNTIME_DOCKER_NVIDIA, VALIDATION_DEVICES, packages,
    wishes::Packages, words,
};
use crate::{
    change::{Change, Lock, Probe},
    config::desired::{Desired, RuntimeKind, RuntimeWish},
    facts::{Facts, GpuFact},
    model::{id::StepId, paths, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct Container;

#[derive(Debug, Clone, Default)]
struct ContainerState {
    loaded: Option<DriverVersion>,
    installed: Packages,
    /// The GPUs that containers can use.
    gpus: Vec<GpuFact>,
    /// The record of the last probe.
    record: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<ContainerState, StepError> {
    let record = match cx.desired.runtimes.first() {
        Some(wish) => cx.host.files().read_text(&record_path(wish.kind))?,
        None => None,
    };
    Ok(ContainerState {
        loaded: cx.state.loaded_driver()?.cloned(),
        installed: packages::installed(cx).await?,
        gpus: words::usable(cx)?.into_iter().cloned().collect(),
        record,
    })
}

fn record_path(kind: RuntimeKind) -> Utf8PathBuf {
    let name = match kind {
        RuntimeKind::Docker => "container-docker",
        RuntimeKind::Containerd => "container-containerd",
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
    lines.join("\n") + "\n"
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
    let Some(wish) = desired.runtimes.first() else {
        return Assessment::NotApplicable {
            why: "no container runtime is configured".into(),
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
    if state.record.as_deref() == Some(&inputs) {
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
                && !desired.runtimes.is_empty())
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
    }
}
