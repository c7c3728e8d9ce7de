//! `cdi`: the Container Device Interface specification names the current GPUs and libraries. It
//! becomes stale with every driver change, because library file names contain the version, and
//! after a boot that assigns another number to nvidia-uvm, whose major number is dynamic.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{
    DRIVER_MODULE, DRIVER_NODES, TOOLKIT_PACKAGES, VALIDATION_DEVICES,
    nodes::{self, USERS},
    words,
};
use crate::{
    change::{Change, Lock},
    config::desired::{Cdi as Wish, Desired},
    facts::Facts,
    host::{Nvml, NvmlView, files::Kind},
    model::{id::StepId, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        cdi::{self, DeviceNode, Spec},
        packages::HEADER,
    },
};

/// The unit that makes the specification again at each boot.
const UNIT: &str = "gpu-bootstrap-cdi.service";

/// Where it is.
const UNIT_PATH: &str = "/etc/systemd/system/gpu-bootstrap-cdi.service";

/// See the module.
pub struct Cdi;

#[derive(Debug, Clone, Default)]
struct CdiState {
    /// The unit's file.
    unit: Option<String>,
    enabled: bool,
    /// The specification, or why it is none; `None` where there is no file.
    spec: Option<Result<Spec, String>>,
    loaded: Option<DriverVersion>,
    /// Host paths that the specification names and that are not there.
    missing: Vec<String>,
    /// The device nodes that the specification gives numbers to, with what is there under their
    /// names now.
    nodes: Vec<(DeviceNode, Kind)>,
    /// What containers can use, by NVML; `None` where it does not answer.
    visible: Option<Vec<Visible>>,
    /// GPUs on the bus that this machine uses itself.
    gpus: usize,
}

/// A GPU, or one of the MIG devices that take its place, with the names that the specification may
/// give it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Visible {
    /// `0` for a GPU, `0:1` for a MIG device.
    index: String,
    uuid: Option<String>,
}

impl Visible {
    fn is_called(&self, name: &str) -> bool {
        self.index == name || self.uuid.as_deref() == Some(name)
    }
}

/// A GPU with MIG is not usable as a whole: its MIG devices are.
fn visible(view: &NvmlView) -> Vec<Visible> {
    let mut found = Vec::new();
    for gpu in &view.devices {
        if gpu.mig == Some(true) {
            found.extend(gpu.mig_devices.iter().map(|part| Visible {
                index: format!("{}:{}", gpu.index, part.index),
                uuid: part.uuid.clone(),
            }));
        } else {
            found.push(Visible {
                index: gpu.index.to_string(),
                uuid: gpu.uuid.clone(),
            });
        }
    }
    found
}

/// The numbers of device nodes can be others at another boot, and when a module is loaded again: then the
/// unit of the nodes is restarted, and this one with it. Where the specification was not made yet, it is
/// not this unit's work: `install` makes it, and can undo it.
fn unit(path: &Utf8Path) -> String {
    format!(
        "{HEADER}[Unit]\n\
         Description=Describe the GPUs for container runtimes (CDI) as they are at this boot\n\
         ConditionPathExists={path}\n\
         ConditionPathExists=/usr/bin/nvidia-ctk\n\
         ConditionPathExists=/proc/driver/nvidia/version\n\
         After={nodes} nvidia-persistenced.service\n\
         PartOf={nodes}\n\
         Before={USERS}\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=/usr/bin/nvidia-ctk cdi generate --output={path}\n\
         TimeoutStartSec=300\n\
         StandardInput=null\n\
         NoNewPrivileges=yes\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        nodes = nodes::UNIT,
    )
}

async fn detect(cx: &Cx<'_>, wish: &Wish) -> Result<CdiState, StepError> {
    let loaded = cx.state.loaded_driver()?.cloned();
    let text = cx.host.files().read_text(&wish.path)?;
    let mut state = CdiState {
        unit: cx.host.files().read_text(Utf8Path::new(UNIT_PATH))?,
        enabled: nodes::is_enabled(cx, UNIT)?,
        spec: text.as_deref().map(cdi::parse),
        loaded,
        gpus: words::usable(cx)?.len(),
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
        && let Nvml::Ready(view) = cx.state.nvml().await
    {
        // A name by UUID can be compared only if NVML gives every UUID.
        let known = |all: &Vec<Visible>| all.iter().all(|one| one.uuid.is_some());
        state.visible = Some(visible(view)).filter(known);
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
fn stale(state: &CdiState, spec: &Spec, loaded: &DriverVersion) -> Option<String> {
    if let Some(path) = state.missing.first() {
        return Some(format!("names `{path}`, which does not exist"));
    }
    if let Some(moved) = (state.nodes.iter()).find_map(|(node, now)| moved(node, now)) {
        return Some(moved);
    }
    if !(spec.host_paths().iter()).any(|path| path.contains(loaded.as_str())) {
        return Some(format!("was generated for another driver than {loaded}"));
    }
    let Some(visible) = &state.visible else {
        // What MIG made of the GPUs only NVML knows.
        let gpus = spec.names().filter_map(Name::of);
        let gpus = gpus.filter(|name| *name == Name::Index).count();
        let parts = spec.names().any(|name| Name::of(name) == Some(Name::Part));
        return (!parts && gpus != state.gpus).then(|| {
            format!(
                "names {}, {} are on the bus",
                words::count(gpus),
                state.gpus
            )
        });
    };
    // After a GPU was replaced, MIG was set up anew, or the disk was cloned, all else may look the
    // same.
    let gone = (spec.names().filter(|name| Name::of(name).is_some()))
        .find(|name| !visible.iter().any(|one| one.is_called(name)));
    if let Some(gone) = gone {
        let what = match Name::of(gone) {
            Some(Name::Part | Name::PartUuid) => "MIG device",
            _ => "GPU",
        };
        return Some(format!(
            "names `{gone}`, which is not a {what} of this machine"
        ));
    }
    let unnamed = visible
        .iter()
        .find(|one| !spec.names().any(|name| one.is_called(name)))?;
    Some(format!(
        "does not name `{}`, which NVML lists",
        unnamed.uuid.as_ref().unwrap_or(&unnamed.index)
    ))
}

/// What a name of the specification stands for, as `nvidia-ctk cdi generate` names devices
/// (NVIDIA/nvidia-container-toolkit, `pkg/nvcdi/namer.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    /// `0`.
    Index,
    /// `0:1`.
    Part,
    /// `GPU-…`.
    Uuid,
    /// `MIG-…`.
    PartUuid,
}

impl Name {
    /// `None` for `all`, and for what an administrator has added.
    fn of(name: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<u32>().is_ok();
        match name.split_once(':') {
            Some((gpu, part)) if number(gpu) && number(part) => Some(Self::Part),
            _ if number(name) => Some(Self::Index),
            _ if name.starts_with("GPU-") => Some(Self::Uuid),
            _ if name.starts_with("MIG-") => Some(Self::PartUuid),
            _ => None,
        }
    }
}

/// What the specification names, for people.
fn named(state: &CdiState) -> String {
    let visible = state.visible.as_deref().unwrap_or_default();
    let parts = visible.iter().filter(|one| one.index.contains(':')).count();
    match (visible.len() - parts, parts) {
        (0, 0) => words::count(state.gpus),
        (gpus, 0) => words::count(gpus),
        (0, parts) => format!("{parts} MIG devices"),
        (gpus, parts) => format!("{}, {parts} MIG devices", words::count(gpus)),
    }
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
        repeated: true,
    }];
    let mut at_boot = Vec::new();
    let unit = unit(&wish.path);
    if state.unit.as_ref() != Some(&unit) {
        at_boot.push(Change::WriteFile {
            path: UNIT_PATH.into(),
            content: unit,
            mode: 0o644,
        });
    }
    if !state.enabled {
        // The specification is of now; the unit is for later boots.
        at_boot.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: false,
        });
    }
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
            expected: generate.into_iter().chain(at_boot).collect(),
        };
    };
    let stale = match &state.spec {
        None => Some("is missing".to_owned()),
        Some(Err(why)) => Some(format!("cannot be read: {why}")),
        Some(Ok(spec)) => stale(state, spec, loaded),
    };
    match stale {
        Some(why) => Assessment::Needs {
            why: format!("`{}` {why}", wish.path),
            changes: generate.into_iter().chain(at_boot).collect(),
        },
        None if !at_boot.is_empty() => Assessment::Needs {
            why: format!("`{UNIT}` does not make `{}` again at boot", wish.path),
            changes: at_boot,
        },
        None => Assessment::Satisfied {
            why: format!("`{}` names {} and driver {loaded}", wish.path, named(state)),
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
        const {
            &[
                DRIVER_MODULE,
                DRIVER_NODES,
                TOOLKIT_PACKAGES,
                VALIDATION_DEVICES,
            ]
        }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, change: &Change, desired: &Desired) -> bool {
        let Some(wish) = &desired.cdi else {
            return desired.driver.is_none();
        };
        // The specification at an earlier path would name devices for ever that are gone, and a unit for
        // it would do nothing.
        match change {
            Change::RunTool { writes, .. } => writes.contains(&wish.path),
            Change::WriteFile { content, .. } => *content == unit(&wish.path),
            _ => true,
        }
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
    use super::{CdiState, Visible, decide, unit, visible};
    use crate::{
        change::Change,
        host::{MigDevice, NvmlView, files::Kind},
        step::Assessment,
        steps::fixtures::{desired, facts, nvml_device},
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
        let path = desired().cdi.map(|wish| wish.path).unwrap_or_default();
        CdiState {
            unit: Some(unit(&path)),
            enabled: true,
            spec: Some(parse(SPEC)),
            loaded: loaded.parse().ok(),
            gpus: 1,
            ..CdiState::default()
        }
    }

    #[test]
    fn stale_in_each_way() {
        let (want, facts) = (desired(), facts());
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
            visible: Some(vec![gpu(0, "GPU-2")]),
            ..state("535.261.03")
        };
        assert!(why(&other, &facts).contains("`GPU-1`, which is not a GPU of this machine"));
        let two = CdiState {
            gpus: 2,
            ..state("535.261.03")
        };
        assert!(why(&two, &facts).contains("names 1 GPU, 2 are on the bus"));
    }

    fn gpu(index: u32, uuid: &str) -> Visible {
        Visible {
            index: index.to_string(),
            uuid: Some(uuid.to_owned()),
        }
    }

    /// The names of a specification against what NVML lists.
    fn compared(names: &[&str], view: &NvmlView) -> Option<String> {
        let devices: String = names
            .iter()
            .map(|name| format!("    - name: \"{name}\"\n"))
            .collect();
        let spec = parse(&SPEC.replace("    - name: \"0\"\n", &devices));
        let state = CdiState {
            spec: Some(spec),
            visible: Some(visible(view)),
            ..state("535.261.03")
        };
        match decide(&state, &desired(), &facts()) {
            Assessment::Needs { why, .. } => Some(why),
            Assessment::Satisfied { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mig_devices_take_the_place_of_their_gpu() {
        let mut view = NvmlView {
            driver_version: "535.261.03".into(),
            cuda_version: None,
            devices: vec![nvml_device(0), nvml_device(1)],
        };
        view.devices[0].mig = Some(true);
        let part = |index, uuid: &str| MigDevice {
            index,
            uuid: Some(uuid.to_owned()),
        };
        view.devices[0].mig_devices = vec![part(0, "MIG-a"), part(2, "MIG-b")];
        // By index, by UUID, or by both; what an administrator added does not matter.
        for right in [
            &["0:0", "0:2", "1"][..],
            &["MIG-a", "MIG-b", "GPU-1"],
            &["0:0", "0:2", "1", "MIG-a", "MIG-b", "GPU-1", "gdrcopy"],
        ] {
            assert_eq!(compared(right, &view), None, "{right:?}");
        }
        for (wrong, words) in [
            (&["0", "1"][..], "names `0`, which is not a GPU"),
            (
                &["0:0", "0:1", "1"],
                "names `0:1`, which is not a MIG device",
            ),
            (
                &["MIG-a", "MIG-c", "GPU-1"],
                "names `MIG-c`, which is not a MIG device",
            ),
            (&["0:0", "1"], "does not name `MIG-b`, which NVML lists"),
            (&["0:0", "0:2"], "does not name `GPU-1`, which NVML lists"),
        ] {
            let why = compared(wrong, &view).unwrap_or_default();
            assert!(why.contains(words), "{wrong:?}: {why}");
        }
        // MIG without a device: nothing of the GPU is usable.
        view.devices[0].mig_devices.clear();
        assert_eq!(compared(&["1"], &view), None);
    }

    #[test]
    fn a_device_that_is_not_what_it_was_makes_it_stale() {
        let (want, facts) = (desired(), facts());
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
    fn a_unit_makes_it_again_at_each_boot() {
        let (want, facts) = (desired(), facts());
        let bare = CdiState {
            unit: None,
            enabled: false,
            ..state("535.261.03")
        };
        let Assessment::Needs { changes, .. } = decide(&bare, &want, &facts) else {
            panic!("a unit is missing");
        };
        assert!(matches!(
            &changes[..],
            [
                Change::WriteFile { .. },
                Change::EnableUnit { start: false, .. }
            ]
        ));
        let missing = CdiState { spec: None, ..bare };
        let Assessment::Needs { changes, .. } = decide(&missing, &want, &facts) else {
            panic!("all of it is missing");
        };
        assert!(matches!(
            &changes[0],
            Change::RunTool { repeated: true, .. }
        ));
        assert_eq!(changes.len(), 3);
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
