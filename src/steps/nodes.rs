//! `driver.nodes`: each device node of the driver has a symlink in `/dev/char`, now and after every boot.
//!
//! systemd uses this symlink to find the devices that a container may access. Without it, `systemctl daemon-reload`
//! removes the GPUs from running containers: "Failed to initialize NVML: Unknown Error"
//! (NVIDIA/nvidia-container-toolkit#48). udev creates no symlinks, because the driver does not announce its devices
//! to it.

use camino::Utf8Path;

use super::{DRIVER_MODULE, DRIVER_NODES, TOOLKIT_PACKAGES, messages};
use crate::{
    change::Change,
    config::desired::Desired,
    facts::Facts,
    runtimes,
    step::{Assessment, Cx, Step, StepError},
    tools::{
        device_nodes::{self, Symlinks},
        packages::HEADER,
        systemctl::UnitState,
        toolkit,
    },
};

/// The unit that creates device nodes and their symlinks.
pub const UNIT: &str = "gpu-bootstrap-devices.service";

/// The path of the unit.
const UNIT_PATH: &str = "/etc/systemd/system/gpu-bootstrap-devices.service";

/// The udev rule that restarts the unit each time a driver module is loaded.
const RULE_PATH: &str = "/etc/udev/rules.d/71-gpu-bootstrap-devices.rules";

/// Returns the units that need the nodes: container runtimes and the kubelet.
pub(super) fn users() -> String {
    format!("{} {}", runtimes::units(), runtimes::kubelet_units())
}

/// Device nodes of the module `nvidia-uvm`.
const UVM: [&str; 2] = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// The `driver.nodes` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_NODES, |cx| Box::pin(assess(cx)))
        .after([DRIVER_MODULE, TOOLKIT_PACKAGES])
        .wants(|_, desired| desired.driver.is_none() || desired.toolkit.is_some())
}

#[derive(Debug, Clone, Default)]
struct NodesState {
    unit: Option<String>,
    rule: Option<String>,
    enabled: bool,
    active: bool,
    loaded: bool,
    /// Missing nodes that CUDA needs, although their module is loaded.
    missing: Vec<&'static str>,
    symlinks: Symlinks,
}

/// The unit text. The unit loads no module: the file of `driver.autoload` does that at boot, unless `engine/guard.rs`
/// prevents it during an unattended run. A GPU node is created on first use, so `--create-all` creates symlinks for all
/// possible nodes. Because it stops at a gap in the MIG device IDs, a separate command covers the existing nodes.
fn unit() -> String {
    format!(
        include_str!("nodes.service"),
        header = HEADER,
        refresh = toolkit::REFRESH,
        users = users(),
    )
}

/// The udev rule text. A reloaded module can have different device numbers, so the unit is restarted. Debian names
/// the module `nvidia-current`.
fn rule() -> String {
    format!(
        "{HEADER}ACTION==\"add\", SUBSYSTEM==\"module\", KERNEL==\"nvidia|nvidia_current|nvidia_uvm\", \
         RUN+=\"/usr/bin/systemctl --no-block restart {UNIT}\"\n"
    )
}

async fn detect(cx: &Cx<'_>) -> Result<NodesState, StepError> {
    let files = cx.host.files();
    let mut state = NodesState {
        unit: files.read_text(Utf8Path::new(UNIT_PATH))?,
        rule: files.read_text(Utf8Path::new(RULE_PATH))?,
        enabled: is_enabled(cx, UNIT)?,
        loaded: cx.state.loaded_driver()?.is_some(),
        symlinks: device_nodes::symlinks(files, false)?,
        ..NodesState::default()
    };
    // The kernel does not create the nodes of nvidia-uvm. Container runtimes can only pass existing nodes, so without them
    // CUDA fails in containers although NVML works. An image has no `/dev/nvidiactl`, so no nodes are expected there.
    let names = files.list("/dev".into())?;
    let has = |path: &str| {
        names
            .iter()
            .any(|name| path.strip_prefix("/dev/") == Some(name))
    };
    let modules = cx.state.loaded_modules()?;
    if has("/dev/nvidiactl") && modules.iter().any(|module| module == "nvidia_uvm") {
        state.missing = UVM.into_iter().filter(|path| !has(path)).collect();
    }
    if state.loaded && !(state.symlinks.missing.is_empty() && state.missing.is_empty()) {
        let unit: Option<UnitState> = cx.state.unit(UNIT).await?;
        state.active = unit.is_some_and(|unit| unit.is_active());
    }
    Ok(state)
}

/// Returns whether a unit that gpu-bootstrap installed starts at boot. Reads the symlink of the unit, so this also works
/// on an image, where no command may run.
pub(super) fn is_enabled(cx: &Cx<'_>, unit: &str) -> Result<bool, StepError> {
    let link = Utf8Path::new("/etc/systemd/system/multi-user.target.wants").join(unit);
    Ok(cx.host.files().stat(&link)?.is_some())
}

fn decide(state: &NodesState, desired: &Desired, facts: &Facts) -> Assessment {
    if desired.driver.is_none() {
        return messages::no_driver();
    }
    if desired.toolkit.is_none() {
        return Assessment::not_applicable(
            "the container toolkit, which creates the symlinks, is not configured",
        );
    }
    if facts.gpus.is_empty() && !desired.image {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    let (unit, rule) = (unit(), rule());
    let mut changes = Vec::new();
    if state.unit.as_ref() != Some(&unit) {
        changes.push(Change::write(UNIT_PATH, &unit));
    }
    if state.rule.as_ref() != Some(&rule) {
        changes.push(Change::write(RULE_PATH, &rule));
    }
    if !state.enabled || !changes.is_empty() {
        changes.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            // In an image the conditions of the unit are not met, so systemd does not start it.
            start: true,
        });
        return Assessment::needs(
            format!("`{UNIT}` does not create the device nodes at boot"),
            changes,
        );
    }
    if desired.image || !state.loaded {
        return Assessment::satisfied(format!("`{UNIT}` creates the device nodes at boot"));
    }
    let why = match (&state.missing[..], &state.symlinks.missing[..]) {
        ([], []) => None,
        ([first, ..], _) => Some(format!("`{first}` is missing, but CUDA needs it")),
        ([], [first, ..]) => Some(format!(
            "{} of {} device nodes have no symlink in `/dev/char`, e.g. `{first}`",
            state.symlinks.missing.len(),
            state.symlinks.nodes
        )),
    };
    if let Some(why) = why {
        return Assessment::needs(
            why,
            vec![if state.active {
                Change::RestartUnit {
                    unit: UNIT.to_owned(),
                }
            } else {
                Change::EnableUnit {
                    unit: UNIT.to_owned(),
                    start: true,
                }
            }],
        );
    }
    Assessment::satisfied(format!(
        "{} device nodes have symlinks in `/dev/char`, and `{UNIT}` creates them at boot",
        state.symlinks.nodes
    ))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::{
        NodesState, RULE_PATH, Symlinks, UNIT, UNIT_PATH, UVM, assess, decide, rule, step, unit,
    };
    use crate::{
        change::Change,
        host::fake,
        steps::fixtures::{cx, desired, facts, state},
    };

    fn made() -> NodesState {
        NodesState {
            unit: Some(unit()),
            rule: Some(rule()),
            enabled: true,
            active: true,
            loaded: true,
            missing: Vec::new(),
            symlinks: Symlinks {
                nodes: 4,
                missing: Vec::new(),
            },
        }
    }

    #[test]
    fn node_without_symlink_starts_or_restarts_the_unit() {
        let (want, facts) = (desired(), facts());
        decide(&made(), &want, &facts).expect_satisfied();
        let state = NodesState {
            symlinks: Symlinks {
                nodes: 4,
                missing: vec!["/dev/nvidia0".into()],
            },
            ..made()
        };
        let (why, changes) = decide(&state, &want, &facts).expect_needs();
        assert!(
            why.contains("1 of 4") && why.contains("`/dev/nvidia0`"),
            "{why}"
        );
        assert!(matches!(&changes[..], [Change::RestartUnit { .. }]));
        let stopped = NodesState {
            active: false,
            ..state
        };
        let (_, changes) = decide(&stopped, &want, &facts).expect_needs();
        assert!(matches!(
            &changes[..],
            [Change::EnableUnit { start: true, .. }]
        ));
    }

    #[tokio::test]
    async fn unit_creates_missing_node_of_loaded_module() {
        let (host, fakes) = fake::host();
        fakes.exec.on("systemctl", |_, _| {
            fake::ok("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n")
        });
        let files = &fakes.files;
        files.put(UNIT_PATH, unit());
        files.put(RULE_PATH, rule());
        files.put_link(
            "/etc/systemd/system/multi-user.target.wants/gpu-bootstrap-devices.service",
            UNIT_PATH,
        );
        files.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  x\n",
        );
        let assess = async || {
            let (facts, want) = (facts(), desired());
            let state = state(&host, facts.clone());
            let cx = cx(&host, &facts, &state, &want);
            assess(&cx).await.expect("readable")
        };
        files.put_device("/dev/nvidiactl", 195, 255);
        // `nvidia_uvm` is not loaded, which `driver.module` reports.
        files.put("/proc/modules", "nvidia 1 0 - Live 0x0\n");
        let (why, _) = assess().await.expect_needs();
        assert!(why.contains("`/dev/nvidiactl`"), "{why}");
        files.put_link("/dev/char/195:255", "/dev/nvidiactl");
        assess().await.expect_satisfied();
        files.put(
            "/proc/modules",
            "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
        );
        let (why, changes) = assess().await.expect_needs();
        assert_eq!(why, "`/dev/nvidia-uvm` is missing, but CUDA needs it");
        assert!(matches!(&changes[..], [Change::RestartUnit { .. }]));
        for (minor, path) in (0..).zip(UVM) {
            files.put_device(path, 511, minor);
            files.put_link(&format!("/dev/char/511:{minor}"), path);
        }
        assess().await.expect_satisfied();
    }

    #[test]
    fn image_gets_the_unit_without_a_gpu() {
        let (mut want, mut facts) = (desired(), facts());
        // Image build machines usually have no GPU.
        facts.gpus.clear();
        decide(&NodesState::default(), &want, &facts).expect_not_applicable();
        want.image = true;
        let bare = decide(&NodesState::default(), &want, &facts);
        let (_, changes) = bare.expect_needs();
        assert!(matches!(
            &changes[..],
            [
                Change::WriteFile { .. },
                Change::WriteFile { .. },
                Change::EnableUnit { .. }
            ]
        ));
        let state = NodesState {
            loaded: false,
            ..made()
        };
        decide(&state, &want, &facts).expect_satisfied();
        want.toolkit = None;
        decide(&made(), &want, &facts).expect_not_applicable();
    }

    #[test]
    fn unit_is_obsolete_without_a_toolkit() {
        let unit = Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: true,
        };
        let mut want = desired();
        assert!((step().wants)(&unit, &want));
        want.toolkit = None;
        assert!(!(step().wants)(&unit, &want));
        // Without a driver it is unknown if a toolkit is configured.
        want.driver = None;
        assert!((step().wants)(&unit, &want));
    }
}
