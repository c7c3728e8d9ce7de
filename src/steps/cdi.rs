//! `cdi`: the Container Device Interface specification names the GPUs and libraries that are
//! there now. It goes stale with every driver change, since library file names carry the version, and
//! with a boot that gives nvidia-uvm, whose major number is dynamic, another number than before.

use async_trait::async_trait;

use super::{DRIVER_MODULE, TOOLKIT_PACKAGES, VALIDATION_DEVICES, look};
use crate::{
    change::{Change, Lock},
    config::desired::{Cdi as Wish, Desired},
    facts::Facts,
    host::{Nvml, files::Kind},
    model::{id::StepId, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct Cdi;

/// A device node with its numbers as `major:minor`. They are compared as text, so that what is no number
/// in a specification is another one than the node has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    path: String,
    numbers: String,
}

#[derive(Debug, Clone, Default)]
struct CdiState {
    spec: Option<String>,
    loaded: Option<DriverVersion>,
    /// Host paths that the specification names and that are not there.
    missing: Vec<String>,
    /// The devices that the specification gives numbers to, with what is there under their names now.
    devices: Vec<(Device, Kind)>,
    /// UUIDs of all GPUs, where the specification names some and NVML tells all.
    uuids: Option<Vec<String>>,
}

async fn detect(cx: &Cx<'_>, wish: &Wish) -> Result<CdiState, StepError> {
    let spec = cx.host.files().read_text(&wish.path)?;
    let mut missing = Vec::new();
    for path in spec.as_deref().map(host_paths).unwrap_or_default() {
        if !cx.host.files().exists(path.as_str().into())? {
            missing.push(path);
        }
    }
    let mut devices = Vec::new();
    for named in spec.as_deref().map(numbered_devices).unwrap_or_default() {
        // What is not there at all is among `missing`.
        if let Some(stat) = cx.host.files().stat(named.path.as_str().into())? {
            devices.push((named, stat.kind));
        }
    }
    let loaded = look::loaded_driver(cx)?;
    let uuids = match &spec {
        Some(spec) if loaded.is_some() && named_uuids(spec).next().is_some() => {
            match cx.host.nvml().await {
                Nvml::Ready(view) => view.devices.into_iter().map(|one| one.uuid).collect(),
                _ => None,
            }
        }
        _ => None,
    };
    Ok(CdiState {
        spec,
        loaded,
        missing,
        devices,
        uuids,
    })
}

/// The paths on the host that a specification written by `nvidia-ctk cdi generate` names: values
/// of `hostPath:` and of device nodes' `path:`. The tool writes one key a line.
fn host_paths(spec: &str) -> Vec<String> {
    let mut paths: Vec<String> = spec
        .lines()
        .map(|line| line.trim_start().trim_start_matches("- "))
        .filter_map(|line| {
            line.strip_prefix("hostPath: ")
                .or_else(|| line.strip_prefix("path: /dev/").map(|_| &line[6..]))
        })
        .map(|value| value.trim().trim_matches('"').to_owned())
        .filter(|path| path.starts_with('/'))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The device nodes that a specification gives numbers to, as `nvidia-ctk` 1.20 does. A container gets
/// the node that is written there; where no number is, its runtime asks the host.
fn numbered_devices(spec: &str) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    // What stands in one element of a list: a new one begins with a hyphen.
    let mut element: Vec<(&str, &str)> = Vec::new();
    for line in spec.lines().map(str::trim_start).chain(["- "]) {
        let key = match line.strip_prefix("- ") {
            Some(first) => {
                devices.extend(device(&element));
                element.clear();
                first
            }
            None => line,
        };
        element.extend(key.split_once(": "));
    }
    devices.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    devices.dedup();
    devices
}

/// The device node of an element of a list in a specification, if that is one with a number.
fn device(element: &[(&str, &str)]) -> Option<Device> {
    let value = |wanted: &str| {
        let mut found = element.iter().filter(|(key, _)| *key == wanted);
        found
            .next()
            .map(|(_, value)| value.trim().trim_matches('"'))
    };
    let path = value("hostPath").or_else(|| value("path"))?;
    let major = value("major")?;
    // Zero is left out.
    let minor = value("minor").unwrap_or("0");
    Some(Device {
        path: path.to_owned(),
        numbers: format!("{major}:{minor}"),
    })
}

/// Device names of a specification: `- name: "0"`, `- name: GPU-…`, `- name: all`.
fn device_names(spec: &str) -> Vec<String> {
    spec.lines()
        .filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("name: ")
                .or_else(|| line.strip_prefix("- name: "))
        })
        .map(|value| value.trim().trim_matches('"').to_owned())
        .collect()
}

/// The GPUs that a specification names by their UUID.
fn named_uuids(spec: &str) -> impl Iterator<Item = String> {
    (device_names(spec).into_iter()).filter(|name| name.starts_with("GPU-"))
}

/// What a device is now, where that is not what the specification has it as.
fn moved(named: &Device, now: &Kind) -> Option<String> {
    match now {
        Kind::CharDevice(major, minor) => {
            let now = format!("{major}:{minor}");
            (now != named.numbers).then_some(now)
        }
        _ => Some("no device".into()),
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
    }];
    let Some(loaded) = &state.loaded else {
        if desired.image {
            return Assessment::AwaitingBoot {
                why: "the specification is made from live GPUs, at the first boot".into(),
            };
        }
        if facts.gpus.is_empty() {
            return Assessment::NotApplicable {
                why: "no NVIDIA GPU is on the PCI bus".into(),
            };
        }
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "the specification is made from live GPUs".into(),
            expected: generate,
        };
    };
    let Some(spec) = &state.spec else {
        return Assessment::Needs {
            why: format!("`{}` is missing", wish.path),
            changes: generate,
        };
    };
    if let Some(path) = state.missing.first() {
        return Assessment::Needs {
            why: format!("`{}` names `{path}`, which is not there", wish.path),
            changes: generate,
        };
    }
    let mut devices = state.devices.iter();
    if let Some((named, now)) = devices.find_map(|(named, now)| Some((named, moved(named, now)?))) {
        return Assessment::Needs {
            why: format!(
                "`{}` has `{}` as device {}, which is {now} now",
                wish.path, named.path, named.numbers
            ),
            changes: generate,
        };
    }
    if !spec.contains(loaded.as_str()) {
        return Assessment::Needs {
            why: format!("`{}` was made for another driver than {loaded}", wish.path),
            changes: generate,
        };
    }
    // After a GPU was replaced, or the disk was cloned, all else may look the same.
    if let Some(uuids) = &state.uuids
        && let Some(gone) = named_uuids(spec).find(|named| !uuids.contains(named))
    {
        return Assessment::Needs {
            why: format!(
                "`{}` names `{gone}`, which is no GPU of this machine",
                wish.path
            ),
            changes: generate,
        };
    }
    let gpus = device_names(spec)
        .iter()
        .filter(|name| name.parse::<u32>().is_ok())
        .count();
    if gpus != facts.gpus.len() {
        return Assessment::Needs {
            why: format!(
                "`{}` names {gpus} GPUs, {} are on the bus",
                wish.path,
                facts.gpus.len()
            ),
            changes: generate,
        };
    }
    Assessment::Satisfied {
        why: format!("`{}` names {gpus} GPUs and driver {loaded}", wish.path),
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
    use super::{CdiState, Device, decide, device_names, host_paths, numbered_devices};
    use crate::{
        host::files::Kind,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    const SPEC: &str = r#"---
cdiVersion: 0.5.0
containerEdits:
    deviceNodes:
        - path: /dev/nvidiactl
    hooks:
        - args:
            - nvidia-cdi-hook
          hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
    mounts:
        - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
          hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
devices:
    - containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
      name: "0"
    - containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
      name: all
kind: nvidia.com/gpu
"#;

    fn state(loaded: &str) -> CdiState {
        CdiState {
            spec: Some(SPEC.into()),
            loaded: loaded.parse().ok(),
            missing: vec![],
            devices: vec![],
            uuids: None,
        }
    }

    #[test]
    fn paths_and_names_are_read() {
        assert_eq!(
            host_paths(SPEC),
            [
                "/dev/nvidia0",
                "/dev/nvidiactl",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03"
            ]
        );
        assert_eq!(device_names(SPEC), ["0", "all"]);
    }

    #[test]
    fn numbers_of_devices_are_read() {
        assert_eq!(numbered_devices(SPEC), [], "older tools write none");
        // As nvidia-ctk 1.20.1 writes it.
        let spec = r#"devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              major: 195
              fileMode: 438
              permissions: rwm
        hooks:
            - hookName: createContainer
              path: /usr/bin/nvidia-cdi-hook
              args:
                - nvidia-cdi-hook
                - --link
                - ../card0::/dev/dri/by-path/pci-0000:18:00.0-card
containerEdits:
    deviceNodes:
        - path: /dev/nvidia-uvm-tools
          major: 243
          minor: 1
        - path: /run/nvidia/dev/nvidiactl
          hostPath: /dev/nvidiactl
          major: 195
          minor: 255
"#;
        let device = |path: &str, numbers: &str| Device {
            path: path.into(),
            numbers: numbers.into(),
        };
        assert_eq!(
            numbered_devices(spec),
            [
                device("/dev/nvidia-uvm-tools", "243:1"),
                device("/dev/nvidia0", "195:0"),
                device("/dev/nvidiactl", "195:255"),
            ]
        );
        let broken = numbered_devices(&spec.replace("minor: 1\n", "minor: one\n"));
        assert_eq!(broken[0].numbers, "243:one");
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
            other => panic!("must be made anew: {other:?}"),
        };
        assert!(why(&state("535.309.01"), &facts).contains("another driver than 535.309.01"));
        let gone = CdiState {
            missing: vec!["/dev/nvidia0".into()],
            ..state("535.261.03")
        };
        assert!(why(&gone, &facts).contains("`/dev/nvidia0`, which is not there"));
        let none = CdiState {
            spec: None,
            ..state("535.261.03")
        };
        assert!(why(&none, &facts).contains("is missing"));
        let other = CdiState {
            spec: Some(SPEC.replace("name: all", "name: GPU-1")),
            uuids: Some(vec!["GPU-2".into()]),
            ..state("535.261.03")
        };
        assert!(why(&other, &facts).contains("`GPU-1`, which is no GPU of this machine"));
        let mut two = facts.clone();
        two.gpus.push(two.gpus[0].clone());
        assert!(why(&state("535.261.03"), &two).contains("names 1 GPUs, 2 are on the bus"));
    }

    #[test]
    fn a_device_that_is_not_what_it_was_makes_it_stale() {
        let (want, mut facts) = (desired(), facts());
        facts.gpus.truncate(1);
        let decide = |now| {
            let uvm = Device {
                path: "/dev/nvidia-uvm".into(),
                numbers: "243:1".into(),
            };
            let state = CdiState {
                devices: vec![(uvm, now)],
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
                panic!("must be made anew: {assessment:?}");
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
