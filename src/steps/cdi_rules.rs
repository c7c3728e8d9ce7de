//! Checks whether CDI specifications match this machine, and whether two of them define the same device.
//!
//! A device in the later directory shadows a device with the same name in the earlier one. Two files of one directory
//! that define the same device are a conflict, and runtimes then do not inject the device at all
//! (container-device-interface, `pkg/cdi/doc.go` and `resolveConflict` in `pkg/cdi/cache.go`).

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::messages;
use crate::{
    host::{Nvml, files::FileKind},
    mig::{Visible, visible},
    model::{text::counted, version::DriverVersion},
    runtimes::cdi::{self, DIRECTORIES, DeviceNode, KIND, Spec},
    step::{Cx, StepError},
    tools::device_nodes,
};

/// A CDI specification file for NVIDIA GPUs, and the machine state that it refers to.
#[derive(Debug, Clone)]
pub(super) struct SeenSpec {
    pub(super) path: Utf8PathBuf,
    /// The specification, or the reason that it is invalid.
    pub(super) spec: Result<Spec, String>,
    /// Missing host paths of the specification.
    pub(super) missing: Vec<String>,
    /// Device nodes with a number in the specification, and the current file kind at their path.
    pub(super) nodes: Vec<(DeviceNode, FileKind)>,
}

/// The machine state that specifications are compared with.
#[derive(Debug, Clone, Default)]
pub(super) struct MachineDevices {
    /// Devices that containers can use, from NVML. `None` if NVML does not respond.
    pub(super) visible: Option<Vec<Visible>>,
    /// Number of GPUs on the bus that are not reserved for virtual machines.
    pub(super) gpus: usize,
    /// Character devices of the driver in `/proc/devices`: names and major numbers. Empty if the kernel lists no
    /// device.
    pub(super) majors: Vec<(String, u32)>,
}

/// Returns the files with a specification for NVIDIA GPUs: first `own` if it exists, then other files in the
/// directories that runtimes read.
pub(super) fn seen(cx: &Cx<'_>, own: &Utf8Path) -> Result<Vec<SeenSpec>, StepError> {
    let files = cx.host.files();
    let mut paths = vec![own.to_owned()];
    for directory in DIRECTORIES {
        let directory = Utf8Path::new(directory);
        let mut names = files.list(directory)?;
        names.sort_unstable();
        paths.extend(
            (names.iter().map(|name| directory.join(name)))
                .filter(|path| path != own && cdi::is_read(path)),
        );
    }
    let mut all = Vec::new();
    for path in paths {
        let Some(text) = files.read_text(&path)? else {
            continue;
        };
        let spec = cdi::parse(&text);
        let is_ours = path == own;
        // Runtimes ignore an invalid file, so an invalid unmanaged file shadows no device.
        if is_ours || spec.as_ref().is_ok_and(|spec| spec.kind == KIND) {
            all.push(look(cx, path, spec)?);
        }
    }
    Ok(all)
}

fn look(cx: &Cx<'_>, path: Utf8PathBuf, spec: Result<Spec, String>) -> Result<SeenSpec, StepError> {
    let (mut missing, mut nodes) = (Vec::new(), Vec::new());
    // A recording or an image without `/dev` contains no device nodes.
    let has_nodes = cx.host.files().exists("/dev".into())?;
    if let Ok(spec) = &spec {
        for path in spec.host_paths() {
            if path.starts_with("/dev/") && !has_nodes {
                continue;
            }
            if !cx.host.files().exists(path.into())? {
                missing.push(path.to_owned());
            }
        }
        for node in spec.device_nodes() {
            // A missing node is already in `missing`.
            if node.numbers().is_some()
                && let Some(stat) = cx.host.files().stat(node.host_path().into())?
            {
                nodes.push((node.clone(), stat.kind));
            }
        }
    }
    Ok(SeenSpec {
        path,
        spec,
        missing,
        nodes,
    })
}

pub(super) async fn machine(cx: &Cx<'_>, loaded: bool) -> Result<MachineDevices, StepError> {
    let devices = cx.host.files().read_text("/proc/devices".into())?;
    let mut machine = MachineDevices {
        gpus: messages::usable(cx)?.len(),
        majors: device_nodes::majors(devices.as_deref().unwrap_or_default()),
        visible: None,
    };
    if loaded && let Nvml::Ready(view) = cx.state.nvml().await {
        // If NVML lists too few GPUs, its list is not used, and `validation.devices` reports the missing GPU.
        let whole = view.devices.len() >= machine.gpus;
        // Names by UUID are only comparable if NVML reports every UUID.
        let known = |all: &Vec<Visible>| all.iter().all(|one| one.uuid.is_some());
        machine.visible = Some(visible(view)).filter(|all| whole && known(all));
    }
    Ok(machine)
}

/// Describes a device node whose major number is not the one of its driver, so it refers to no device or to a different one.
pub(super) fn dead_node(seen: &SeenSpec, machine: &MachineDevices) -> Option<String> {
    seen.nodes.iter().find_map(|(node, now)| {
        let FileKind::CharDevice(major, minor) = *now else {
            return None;
        };
        let (name, right) = machine.major_of(node.host_path())?;
        (major != right).then(|| {
            format!(
                "`{}` is device {major}:{minor}, but the kernel has {name} at {right}",
                node.host_path()
            )
        })
    })
}

impl MachineDevices {
    /// Whether some GPUs have MIG devices, and no other GPU is in MIG mode without them.
    pub(super) fn is_partitioned(&self) -> bool {
        let devices = self.visible.as_deref().unwrap_or_default();
        let gpus: BTreeSet<&str> = (devices.iter())
            .filter_map(|one| one.index.split(':').next())
            .collect();
        devices.iter().any(Visible::is_part) && gpus.len() >= self.gpus
    }

    /// Returns the name and major number of a node's driver in `/proc/devices`. `None` if it is not listed.
    fn major_of(&self, path: &str) -> Option<(&str, u32)> {
        let names = device_nodes::drivers_of(path);
        (self.majors.iter())
            .find(|(name, _)| names.contains(&name.as_str()))
            .map(|(name, major)| (name.as_str(), *major))
    }
}

/// Describes how the number of a device node has changed. `None` if it is unchanged.
fn moved(node: &DeviceNode, now: &FileKind) -> Option<String> {
    let (major, minor) = node.numbers()?;
    let now = match *now {
        FileKind::CharDevice(now_major, now_minor) => {
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

/// Returns the reason that a specification does not match this machine. `None` if it does.
pub(super) fn stale(
    seen: &SeenSpec,
    machine: &MachineDevices,
    loaded: &DriverVersion,
) -> Option<String> {
    let spec = match &seen.spec {
        Ok(spec) => spec,
        Err(why) => return Some(format!("cannot be read: {why}")),
    };
    if let Some(name) = spec.forbidden_name() {
        return Some(format!(
            "has version {}, which does not allow names that start with a digit such as `{name}`, so runtimes reject it",
            spec.cdi_version
        ));
    }
    if let Some(path) = seen.missing.first() {
        return Some(format!("contains `{path}`, which does not exist"));
    }
    if let Some(moved) = (seen.nodes.iter()).find_map(|(node, now)| moved(node, now)) {
        return Some(moved);
    }
    let other = (spec.host_paths().into_iter())
        .find(|path| cdi::driver_of(path).is_some_and(|version| version != *loaded));
    if let Some(path) = other {
        return Some(format!(
            "contains `{path}`, which does not belong to the loaded driver {loaded}"
        ));
    }
    if !(spec.host_paths().iter()).any(|path| path.contains(loaded.as_str())) {
        return Some(format!("was not generated for the loaded driver {loaded}"));
    }
    let Some(visible) = &machine.visible else {
        // Only NVML lists MIG devices. Without NVML, only the GPU count of a specification without MIG devices is compared.
        let gpus = spec.names().filter_map(Name::of);
        let gpus = gpus.filter(|name| *name == Name::Index).count();
        let parts = spec.names().any(|name| Name::of(name) == Some(Name::Part));
        return (!parts && gpus != machine.gpus).then(|| {
            format!(
                "contains {}, but {} are on the bus",
                counted(gpus, "GPU"),
                machine.gpus
            )
        });
    };
    // After a GPU replacement, a new MIG layout or a cloned disk, only the device names may differ.
    let gone = (spec.names().filter(|name| Name::of(name).is_some()))
        .find(|name| !visible.iter().any(|one| one.is_called(name)));
    if let Some(gone) = gone {
        let what = match Name::of(gone) {
            Some(Name::Part | Name::PartUuid) => "MIG device",
            _ => "GPU",
        };
        return Some(format!(
            "contains `{gone}`, which is not a {what} of this machine"
        ));
    }
    let unnamed = visible
        .iter()
        .find(|one| !spec.names().any(|name| one.is_called(name)))?;
    Some(format!(
        "does not contain `{}`, which NVML lists",
        unnamed.uuid.as_ref().unwrap_or(&unnamed.index)
    ))
}

/// Kinds of device names, as generated by `nvidia-ctk cdi generate` (NVIDIA/nvidia-container-toolkit,
/// `pkg/nvcdi/namer.go`).
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
    /// Returns `None` for `all` and for names that the administrator added.
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

/// Two files of one directory that define the same device. If one of them is ours, it is first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) one: Utf8PathBuf,
    pub(super) other: Utf8PathBuf,
    /// The device names in both files.
    pub(super) names: Vec<String>,
}

pub(super) fn conflict(all: &[SeenSpec]) -> Option<Conflict> {
    let names = |seen: &SeenSpec| -> Vec<String> {
        let spec = seen.spec.as_ref().ok();
        spec.into_iter()
            .flat_map(|spec| spec.names().map(str::to_owned))
            .collect()
    };
    all.iter().enumerate().find_map(|(at, one)| {
        all[at + 1..]
            .iter()
            .filter(|other| other.path.parent() == one.path.parent())
            .find_map(|other| {
                let known = names(one);
                let mut both = names(other);
                both.retain(|name| known.contains(name));
                (!both.is_empty()).then(|| Conflict {
                    one: one.path.clone(),
                    other: other.path.clone(),
                    names: both,
                })
            })
    })
}

/// Returns the unmanaged files that shadow devices of `own`: their directory is later, and they contain the same
/// device names.
pub(super) fn hiding<'s>(
    own: &Utf8Path,
    all: &'s [SeenSpec],
) -> impl Iterator<Item = &'s SeenSpec> {
    let place = |path: &Utf8Path| {
        let directory = path.parent().map(Utf8Path::as_str);
        DIRECTORIES.iter().position(|one| Some(*one) == directory)
    };
    let here = place(own);
    let ours: Option<Vec<&str>> = (all.iter().find(|seen| seen.path == own))
        .and_then(|seen| seen.spec.as_ref().ok())
        .map(|spec| spec.names().collect());
    let is_ours = move |name: &str| match &ours {
        Some(ours) => ours.contains(&name),
        // Names that the toolkit would generate.
        None => name == "all" || Name::of(name).is_some(),
    };
    all.iter().filter(move |seen| {
        here.is_some()
            && place(&seen.path) > here
            && (seen.spec.as_ref()).is_ok_and(|spec| spec.names().any(&is_ours))
    })
}

#[cfg(test)]
mod tests {
    use super::{MachineDevices, SeenSpec, dead_node, stale};
    use crate::{
        host::{MigDevice, NvmlView, fake, files::FileKind},
        mig::{Visible, visible},
        model::version::DriverVersion,
        runtimes::cdi::parse,
        steps::fixtures::{cx, desired, facts, nvml_device, state},
    };

    const SPEC: &str = r#"
kind: nvidia.com/gpu
containerEdits:
    mounts:
        - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
        - hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-egl-gbm.so.1.1.0
devices:
    - name: "0"
    - name: all
"#;

    fn loaded(version: &str) -> DriverVersion {
        version.parse().expect("a version")
    }

    fn seen(text: &str) -> SeenSpec {
        SeenSpec {
            path: "/etc/cdi/nvidia.yaml".into(),
            spec: parse(text),
            missing: vec![],
            nodes: vec![],
        }
    }

    fn machine(gpus: usize, visible: Option<Vec<Visible>>) -> MachineDevices {
        MachineDevices {
            gpus,
            visible,
            ..MachineDevices::default()
        }
    }

    fn gpu(index: u32, uuid: &str) -> Visible {
        Visible {
            index: index.to_string(),
            uuid: Some(uuid.to_owned()),
        }
    }

    #[test]
    fn partitioned_machine_has_no_gpu_without_a_device() {
        for (gpus, devices, expected) in rows! {
            1, "0:0 0:1", true;
            2, "0:0 1", true;
            2, "0:0 0:1", false;
            1, "0", false;
            1, "", false;
        } {
            let devices = (devices.split_whitespace())
                .map(|index| Visible {
                    index: index.to_owned(),
                    uuid: None,
                })
                .collect();
            assert_eq!(machine(gpus, Some(devices)).is_partitioned(), expected);
        }
        assert!(!machine(1, None).is_partitioned());
    }

    #[test]
    fn each_mismatch_makes_specification_stale() {
        let one = machine(1, None);
        let why = |seen: &SeenSpec, machine: &MachineDevices, version: &str| {
            stale(seen, machine, &loaded(version)).unwrap_or_default()
        };
        assert_eq!(why(&seen(SPEC), &one, "535.261.03"), "");
        assert!(why(&seen(SPEC), &one, "535.309.01").contains(
            "libcuda.so.535.261.03`, which does not belong to the loaded driver 535.309.01"
        ));
        // One library of a different driver version among matching ones.
        let mixed = SPEC.replace(
            "        - hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-egl-gbm.so.1.1.0\n",
            "        - hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.525.1.1\n",
        );
        assert!(why(&seen(&mixed), &one, "535.261.03").contains("libnvidia-ml.so.525.1.1`"));
        let bare = SPEC.replace("535.261.03", "1");
        assert!(
            why(&seen(&bare), &one, "535.261.03")
                .contains("not generated for the loaded driver 535.261.03")
        );
        let gone = SeenSpec {
            missing: vec!["/dev/nvidia0".into()],
            ..seen(SPEC)
        };
        assert!(why(&gone, &one, "535.261.03").contains("`/dev/nvidia0`, which does not exist"));
        let other = machine(1, Some(vec![gpu(0, "GPU-2")]));
        let named = SPEC.replace("name: all", "name: GPU-1");
        assert!(
            why(&seen(&named), &other, "535.261.03")
                .contains("`GPU-1`, which is not a GPU of this machine")
        );
        let two = machine(2, None);
        assert!(
            why(&seen(SPEC), &two, "535.261.03").contains("contains 1 GPU, but 2 are on the bus")
        );
        let old = format!("cdiVersion: 0.4.0{SPEC}");
        assert!(
            why(&seen(&old), &one, "535.261.03")
                .contains("version 0.4.0, which does not allow names")
        );
    }

    #[tokio::test]
    async fn specification_is_compared_with_the_gpus_and_drivers_of_the_machine() {
        let (host, fakes) = fake::host();
        let devices = "Character devices:\n  1 mem\n195 nvidia\n";
        fakes.files.put("/proc/devices", devices);
        let (facts, want) = (facts(), desired());
        let state = state(&host, facts.clone());
        let cx = cx(&host, &facts, &state, &want);
        let found = super::machine(&cx, false).await.expect("readable");
        let why = stale(&seen(SPEC), &found, &loaded("535.261.03"));
        assert!(why.is_some_and(|why| why.contains("but 2 are on the bus")));
        assert_eq!(found.major_of("/dev/nvidia0"), Some(("nvidia", 195)));
    }

    #[test]
    fn missing_library_is_found_without_device_nodes() {
        let (host, fakes) = fake::host();
        let (facts, want) = (facts(), desired());
        let state = state(&host, facts.clone());
        let cx = cx(&host, &facts, &state, &want);
        let nodes = "    deviceNodes:\n        - path: /dev/nvidiactl\n    mounts:";
        let text = SPEC.replace("    mounts:", nodes);
        let missing = || {
            let seen = super::look(&cx, "/etc/cdi/x.yaml".into(), parse(&text));
            seen.expect("readable").missing
        };
        let libraries = [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03",
            "/usr/lib/x86_64-linux-gnu/libnvidia-egl-gbm.so.1.1.0",
        ];
        let sorted = |mut paths: Vec<String>| {
            paths.sort();
            paths
        };
        assert_eq!(sorted(missing())[..1], ["/dev/nvidiactl"]);
        fakes.files.take("/dev");
        assert_eq!(sorted(missing()), libraries);
    }

    /// Compares device names of a specification with an NVML view.
    fn compared(names: &[&str], view: &NvmlView) -> Option<String> {
        let devices: String = names
            .iter()
            .map(|name| format!("    - name: \"{name}\"\n"))
            .collect();
        let spec = seen(&SPEC.replace("    - name: \"0\"\n", &devices));
        let machine = machine(1, Some(visible(view)));
        stale(&spec, &machine, &loaded("535.261.03"))
    }

    #[test]
    fn mig_devices_replace_their_gpu() {
        let mut view = NvmlView {
            driver_version: "535.261.03".into(),
            cuda_version: None,
            devices: vec![nvml_device(0), nvml_device(1)],
        };
        view.devices[0].mig = Some(true);
        let part = |index, uuid: &str| MigDevice {
            index,
            uuid: Some(uuid.to_owned()),
            profile: None,
            share: None,
        };
        view.devices[0].mig_devices = vec![part(0, "MIG-a"), part(2, "MIG-b")];
        // By index, by UUID, or both. Names that the administrator added are ignored.
        for right in [
            &["0:0", "0:2", "1"][..],
            &["MIG-a", "MIG-b", "GPU-1"],
            &["0:0", "0:2", "1", "MIG-a", "MIG-b", "GPU-1", "gdrcopy"],
        ] {
            assert_eq!(compared(right, &view), None, "{right:?}");
        }
        for (wrong, words) in rows! {
            &["0", "1"][..], "contains `0`, which is not a GPU";
            &["0:0", "0:1", "1"], "contains `0:1`, which is not a MIG device";
            &["MIG-a", "MIG-c", "GPU-1"], "contains `MIG-c`, which is not a MIG device";
            &["0:0", "1"], "does not contain `MIG-b`, which NVML lists";
            &["0:0", "0:2"], "does not contain `GPU-1`, which NVML lists";
        } {
            let why = compared(wrong, &view).unwrap_or_default();
            assert!(why.contains(words), "{wrong:?}: {why}");
        }
        // A GPU in MIG mode without MIG devices is not usable.
        view.devices[0].mig_devices.clear();
        assert_eq!(compared(&["1"], &view), None);
    }

    fn node(path: &str, now: FileKind) -> SeenSpec {
        let text = format!(
            "{SPEC}    - name: x\n      containerEdits: {{deviceNodes: [{{path: {path}, major: 243, minor: 1}}]}}\n"
        );
        let mut seen = seen(&text);
        let spec = seen.spec.as_ref().expect("a specification");
        let nodes = spec.device_nodes().into_iter().cloned();
        seen.nodes = nodes.map(|node| (node, now.clone())).collect();
        seen
    }

    #[test]
    fn changed_device_number_makes_specification_stale() {
        let one = machine(1, None);
        let why = |now| {
            let seen = node("/dev/nvidia-uvm", now);
            stale(&seen, &one, &loaded("535.261.03"))
        };
        assert_eq!(why(FileKind::CharDevice(243, 1)), None);
        for (now, told) in [
            (FileKind::CharDevice(242, 1), "242:1"),
            (FileKind::CharDevice(243, 0), "243:0"),
            (FileKind::CharDevice(1, 243), "1:243"),
            (FileKind::File, "no device"),
        ] {
            let why = why(now).expect("stale");
            let words = format!("`/dev/nvidia-uvm` as device 243:1, which is {told} now");
            assert!(why.contains(&words), "{why}");
        }
    }

    #[test]
    fn node_with_wrong_major_number_is_dead() {
        let majors = |uvm| MachineDevices {
            majors: vec![("nvidia".into(), 195), ("nvidia-uvm".into(), uvm)],
            ..machine(1, None)
        };
        let seen = node("/dev/nvidia-uvm", FileKind::CharDevice(243, 1));
        assert_eq!(dead_node(&seen, &majors(243)), None);
        assert_eq!(
            dead_node(&seen, &majors(242)).as_deref(),
            Some("`/dev/nvidia-uvm` is device 243:1, but the kernel has nvidia-uvm at 242")
        );
        // Not reported if `/proc/devices` does not list the driver, or for nodes of other drivers.
        assert_eq!(dead_node(&seen, &machine(1, None)), None);
        let other = node("/dev/dri/card0", FileKind::CharDevice(226, 0));
        assert_eq!(dead_node(&other, &majors(242)), None);
    }
}
