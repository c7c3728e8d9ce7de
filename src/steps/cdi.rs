//! `cdi`: the Container Device Interface specification names the current GPUs and libraries. It
//! becomes stale with every driver change, because library file names contain the version, and
//! after a boot that assigns another number to nvidia-uvm, whose major number is dynamic.

use async_trait::async_trait;

use super::{DRIVER_MODULE, TOOLKIT_PACKAGES, VALIDATION_DEVICES};
use crate::{
    change::{Change, Lock},
    config::desired::{Cdi as Wish, Desired},
    facts::Facts,
    host::{Nvml, files::Kind},
    model::{id::StepId, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::cdi::{self, DeviceNode, Spec},
};

/// See the module.
pub struct Cdi;

#[derive(Debug, Clone, Default)]
struct CdiState {
    /// The specification, or why it is none; `None` where there is no file.
    spec: Option<Result<Spec, String>>,
    loaded: Option<DriverVersion>,
    /// Host paths that the specification names and that are not there.
    missing: Vec<String>,
    /// The device nodes that the specification gives numbers to, with what is there under their
    /// names now.
    nodes: Vec<(DeviceNode, Kind)>,
    /// UUIDs of all GPUs, where the specification names some and NVML tells all.
    uuids: Option<Vec<String>>,
}

async fn detect(cx: &Cx<'_>, wish: &Wish) -> Result<CdiState, StepError> {
    let loaded = cx.state.loaded_driver()?.cloned();
    let text = cx.host.files().read_text(&wish.path)?;
    let mut state = CdiState {
        spec: text.as_deref().map(cdi::parse),
        loaded,
        ..CdiState::default()
    };
    let Some(Ok(spec)) = &state.spec else {
        return Ok(state);
    };
    for path in spec.host_paths() {
        if !cx.host.files().exists(path.into())? {
            state.missing.push(path.to_owned());
        }
    }
    for node in spec.device_nodes() {
        // What is not there at all is among `missing`.
        if node.numbers().is_some()
            && let Some(stat) = cx.host.files().stat(node.host_path().into())?
        {
            state.nodes.push((node.clone(), stat.kind));
        }
    }
    if state.loaded.is_some()
        && spec.uuids().next().is_some()
        && let Nvml::Ready(view) = cx.state.nvml().await
    {
        state.uuids = view.devices.iter().map(|one| one.uuid.clone()).collect();
    }
    Ok(state)
}

/// How the numbers of a device node differ from what is there now; `None` where they are the same.
fn moved(node: &DeviceNode, now: &Kind) -> Option<String> {
    let (major, minor) = node.numbers()?;
    let now = match *now {
        Kind::CharDevice(now_major, now_minor) => {
            if (major, minor) == (now_major.into(), now_minor.into()) {
                return None;
            }
            format!("{now_major}:{now_minor}")
        }
        _ => "no device".to_owned(),
    };
    Some(format!(
        "has `{}` as device {major}:{minor}, which is {now} now",
        node.host_path()
    ))
}

/// Why a specification is not that of this machine; `None` where it is.
fn stale(state: &CdiState, spec: &Spec, loaded: &DriverVersion, on_bus: usize) -> Option<String> {
    if let Some(path) = state.missing.first() {
        return Some(format!("names `{path}`, which does not exist"));
    }
    if let Some(moved) = (state.nodes.iter()).find_map(|(node, now)| moved(node, now)) {
        return Some(moved);
    }
    if !(spec.host_paths().iter()).any(|path| path.contains(loaded.as_str())) {
        return Some(format!("was generated for another driver than {loaded}"));
    }
    // After a GPU was replaced, or the disk was cloned, all else may look the same.
    if let Some(uuids) = &state.uuids
        && let Some(gone) = spec
            .uuids()
            .find(|named| !uuids.iter().any(|one| one == named))
    {
        return Some(format!(
            "names `{gone}`, which is not a GPU of this machine"
        ));
    }
    let gpus = indexed(spec);
    (gpus != on_bus).then(|| format!("names {gpus} GPUs, {on_bus} are on the bus"))
}

/// How many GPUs a specification names by their index.
fn indexed(spec: &Spec) -> usize {
    (spec.devices.iter())
        .filter(|device| device.name.parse::<u32>().is_ok())
        .count()
}

fn decide(state: &CdiState, desired: &Desired, facts: &Facts) -> Assessment {
    let (Some(wish), Some(_), Some(_)) = (&desired.cdi, &desired.driver, &desired.toolkit) else {
        return Assessment::NotApplicable {
            why: "CDI is not wanted".into(),
        };
    };
    let generate = vec![Change::RunTool {
        purpose: "describe the GPUs for container runtimes (CDI)".into(),
        command: vec![
            "nvidia-ctk".into(),
            "cdi".into(),
            "generate".into(),
            format!("--output={}", wish.path),
        ],
        writes: vec![wish.path.clone()],
    }];
    let Some(loaded) = &state.loaded else {
        if desired.image {
            return Assessment::AwaitingBoot {
                why: "the specification needs live GPUs; it is generated at the first boot".into(),
            };
        }
        if facts.gpus.is_empty() {
            return Assessment::NotApplicable {
                why: "no NVIDIA GPU is on the PCI bus".into(),
            };
        }
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "the specification needs live GPUs".into(),
            expected: generate,
        };
    };
    let stale = match &state.spec {
        None => Some("is missing".to_owned()),
        Some(Err(why)) => Some(format!("cannot be read: {why}")),
        Some(Ok(spec)) => stale(state, spec, loaded, facts.gpus.len()),
    };
    match stale {
        Some(why) => Assessment::Needs {
            why: format!("`{}` {why}", wish.path),
            changes: generate,
        },
        None => Assessment::Satisfied {
            why: format!(
                "`{}` names {} GPUs and driver {loaded}",
                wish.path,
                facts.gpus.len()
            ),
        },
    }
}

#[async_trait]
impl Step for Cdi {
    fn id(&self) -> StepId {
        super::CDI
    }

    fn title(&self) -> &'static str {
        "CDI specification"
    }

    /// `nvidia-ctk` asks every GPU: where one does not start, it takes minutes to fail, in words
    /// about the specification.
    fn after(&self) -> &[StepId] {
        const { &[DRIVER_MODULE, TOOLKIT_PACKAGES, VALIDATION_DEVICES] }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let state = match &cx.desired.cdi {
            Some(wish) => detect(cx, wish).await?,
            None => CdiState::default(),
        };
        Ok(decide(&state, cx.desired, cx.facts))
    }
}

#[cfg(test)]
mod tests {
    use super::{CdiState, decide};
    use crate::{
        host::files::Kind,
        step::Assessment,
        steps::fixtures::{desired, facts},
        tools::cdi::parse,
    };

    const SPEC: &str = r#"
kind: nvidia.com/gpu
containerEdits:
    mounts:
        - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
devices:
    - name: "0"
    - name: all
"#;

    fn state(loaded: &str) -> CdiState {
        CdiState {
            spec: Some(parse(SPEC)),
            loaded: loaded.parse().ok(),
            ..CdiState::default()
        }
    }

    #[test]
    fn stale_in_each_way() {
        let (want, mut facts) = (desired(), facts());
        facts.gpus.truncate(1);
        assert!(matches!(
            decide(&state("535.261.03"), &want, &facts),
            Assessment::Satisfied { .. }
        ));
        let why = |state: &CdiState, facts| match decide(state, &want, facts) {
            Assessment::Needs { why, .. } => why,
            other => panic!("must be generated again: {other:?}"),
        };
        assert!(why(&state("535.309.01"), &facts).contains("another driver than 535.309.01"));
        let gone = CdiState {
            missing: vec!["/dev/nvidia0".into()],
            ..state("535.261.03")
        };
        assert!(why(&gone, &facts).contains("`/dev/nvidia0`, which does not exist"));
        let none = CdiState {
            spec: None,
            ..state("535.261.03")
        };
        assert!(why(&none, &facts).contains("is missing"));
        let torn = CdiState {
            spec: Some(parse(&SPEC[..SPEC.len() - 4])),
            ..state("535.261.03")
        };
        assert!(why(&torn, &facts).contains("cannot be read: "));
        let other = CdiState {
            spec: Some(parse(&SPEC.replace("name: all", "name: GPU-1"))),
            uuids: Some(vec!["GPU-2".into()]),
            ..state("535.261.03")
        };
        assert!(why(&other, &facts).contains("`GPU-1`, which is not a GPU of this machine"));
        let mut two = facts.clone();
        two.gpus.push(two.gpus[0].clone());
        assert!(why(&state("535.261.03"), &two).contains("names 1 GPUs, 2 are on the bus"));
    }

    #[test]
    fn a_device_that_is_not_what_it_was_makes_it_stale() {
        let (want, mut facts) = (desired(), facts());
        facts.gpus.truncate(1);
        let node = "containerEdits: {deviceNodes: [{path: /dev/nvidia-uvm, major: 243, minor: 1}]}";
        let spec = parse(node).expect("a specification");
        let uvm = spec
            .device_nodes()
            .first()
            .copied()
            .expect("a device node")
            .clone();
        let decide = |now| {
            let state = CdiState {
                nodes: vec![(uvm.clone(), now)],
                ..state("535.261.03")
            };
            decide(&state, &want, &facts)
        };
        assert!(matches!(
            decide(Kind::CharDevice(243, 1)),
            Assessment::Satisfied { .. }
        ));
        for (now, told) in [
            (Kind::CharDevice(242, 1), "242:1"),
            (Kind::CharDevice(243, 0), "243:0"),
            (Kind::CharDevice(1, 243), "1:243"),
            (Kind::File, "no device"),
        ] {
            let assessment = decide(now);
            let Assessment::Needs { why, .. } = &assessment else {
                panic!("must be generated again: {assessment:?}");
            };
            let words = format!("`/dev/nvidia-uvm` as device 243:1, which is {told} now");
            assert!(why.contains(&words), "{why}");
        }
    }

    #[test]
    fn without_a_loaded_driver_it_waits() {
        let (mut want, facts) = (desired(), facts());
        assert!(matches!(
            decide(&state(""), &want, &facts),
            Assessment::After { .. }
        ));
        want.image = true;
        assert!(matches!(
            decide(&state(""), &want, &facts),
            Assessment::AwaitingBoot { .. }
        ));
    }
}
