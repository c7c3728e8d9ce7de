//! Device nodes of the driver on a machine that gpu-bootstrap did not prepare: programs that do not run as root need existing
//! nodes of `nvidia-uvm`, and running containers need symlinks in `/dev/char`. On a prepared machine, `driver.nodes` reports
//! both.

use camino::Utf8Path;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    model::id::Id,
    runtimes::{RuntimeKind, cdi},
    state::owner,
    step::StepError,
    tools::{
        device_nodes::{self, Symlinks},
        toolkit,
    },
};

const NODES: Id = Id::new("drv.nodes");

/// The node that CUDA needs in addition to the GPU nodes.
const UVM: &str = "/dev/nvidia-uvm";

/// The `drv.nodes` check.
pub(super) const FAMILY: Family = Family {
    ids: || vec![NODES],
    examine: |subject| Box::pin(examine(subject)),
};

/// Creates nodes on demand for the driver libraries of all users. Sources: NVIDIA's driver README, nvidia-modprobe(1).
const MODPROBE: &str = "/usr/bin/nvidia-modprobe";

/// The toolkit program that creates nodes and symlinks.
const CTK: &str = "/usr/bin/nvidia-ctk";

/// The permission bit that executes a program as its owner.
const SETUID: u32 = 0o4000;

#[derive(Debug, Clone, Default)]
struct NodesState {
    /// The node of `nvidia-uvm` exists.
    has_uvm: bool,
    /// `nvidia-modprobe` creates this node on demand.
    on_demand: bool,
    /// The module `nvidia-uvm` is loaded.
    is_loaded: bool,
    has_ctk: bool,
    /// The device nodes without a symlink in `/dev/char`. Empty if no container needs the symlinks.
    symlinks: Symlinks,
}

fn decide(state: &NodesState) -> Finding {
    let finding = |status, why: String| Finding::new(NODES, status, why);
    if !state.has_uvm && !state.on_demand {
        let module = match state.is_loaded {
            true => "",
            false => ", and the module `nvidia-uvm` is not loaded",
        };
        let creation = device_nodes::creation(UVM);
        let create = match state.has_ctk {
            true => {
                "run `modprobe nvidia-uvm && nvidia-ctk system create-device-nodes --control-devices`; for the next boots, \
                 install `nvidia-modprobe`, which creates the device nodes on demand"
                    .to_owned()
            }
            false => format!(
                "install `nvidia-modprobe`, which creates the device nodes on demand, then run `{creation}`"
            ),
        };
        return Finding {
            observed: Some("no `/dev/nvidia-uvm`".to_owned()),
            expected: Some("`/dev/nvidia-uvm`, or a setuid `nvidia-modprobe`".to_owned()),
            remedy: Some(create),
            ..finding(
                Verdict::Fail,
                format!(
                    "CUDA fails for users other than root and in their containers, because `/dev/nvidia-uvm` does not \
                     exist{module}"
                ),
            )
        };
    }
    let Symlinks { nodes, missing } = &state.symlinks;
    if let Some(first) = missing.first() {
        return Finding {
            observed: Some(format!("no symlink to `{first}`")),
            remedy: Some(
                "run `nvidia-ctk system create-dev-char-symlinks --create-all`, also at each boot before the container \
                 runtime starts; or use CDI"
                    .to_owned(),
            ),
            ..finding(
                Verdict::Warn,
                format!(
                    "containers lose their GPUs at `systemctl daemon-reload` (`Failed to initialize NVML: Unknown Error`), \
                     because {} of {nodes} device nodes have no symlink in `/dev/char`",
                    missing.len()
                ),
            )
        };
    }
    finding(
        Verdict::Pass,
        "programs and containers find the device nodes that they need".to_owned(),
    )
}

/// Whether systemd removes devices without a symlink from containers: in legacy mode, the toolkit adds devices without the
/// knowledge of the runtime, and systemd manages the cgroups of the containers.
async fn needs_links(subject: &Subject<'_>) -> Result<bool, StepError> {
    let files = subject.host.files();
    if !files.exists(Utf8Path::new(toolkit::RUNTIME))? || cdi::is_there(files)? {
        return Ok(false);
    }
    let text = files.read_text(Utf8Path::new(toolkit::CONFIG))?;
    // Another finding reports an invalid file.
    let config = text.and_then(|text| toolkit::parse_config(&text).ok());
    let is_legacy = match config.and_then(|config| config.mode).as_deref() {
        Some("legacy") => true,
        Some("auto") | None => {
            (subject.state.toolkit_version().await).is_some_and(|it| it < toolkit::BY_CDI)
        }
        Some(_) => false,
    };
    if !is_legacy {
        return Ok(false);
    }
    for kind in RuntimeKind::ALL {
        if subject.state.has_runtime(kind).await {
            let view = subject.state.runtime(kind).await?;
            if kind.runtime().uses_systemd_cgroups(files, view)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

async fn detect(subject: &Subject<'_>, names: &[String]) -> Result<NodesState, StepError> {
    let files = subject.host.files();
    let modprobe = files.stat(Utf8Path::new(MODPROBE))?;
    // The copy of a tree may lack the permission bit.
    let is_setuid = |mode: u32| mode & SETUID != 0 || !subject.state.is_of_this_machine();
    let mut state = NodesState {
        has_uvm: names.iter().any(|name| name == "nvidia-uvm"),
        on_demand: modprobe.is_some_and(|stat| is_setuid(stat.mode)),
        is_loaded: (subject.state.loaded_modules()?.iter()).any(|module| module == "nvidia_uvm"),
        has_ctk: files.exists(Utf8Path::new(CTK))?,
        ..NodesState::default()
    };
    // A tree may not contain the directory.
    if !files.exists(Utf8Path::new("/dev/char"))? || !needs_links(subject).await? {
        return Ok(state);
    }
    state.symlinks = device_nodes::symlinks(files, !subject.state.is_of_this_machine())?;
    Ok(state)
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let skip = |why: &str| Ok(vec![Finding::new(NODES, Verdict::Skip, why)]);
    let files = subject.host.files();
    if subject.state.loaded_driver()?.is_none() {
        return skip("no driver is loaded");
    }
    if subject.prepared {
        return skip("`driver.nodes` examines the device nodes on this machine");
    }
    if subject.facts.container().is_some() {
        return skip("the device nodes belong to the host of this container");
    }
    if owner(files, subject.facts)?.is_some_and(|owner| owner.provides.device_nodes()) {
        return skip("the owner of the driver creates the device nodes");
    }
    let names = files.list(Utf8Path::new("/dev"))?;
    if !names.iter().any(|name| name == "nvidiactl") {
        return skip("the driver was not used since the boot, or the device nodes are unknown");
    }
    Ok(vec![decide(&detect(subject, &names).await?)])
}

#[cfg(test)]
mod tests {
    use super::{examine, toolkit};
    use crate::{
        check::{Finding, Subject, Verdict},
        host::fake::{self, FakeFiles},
        steps::fixtures::{facts, matrix, state},
    };

    /// Returns the finding for a machine with a driver and these files.
    async fn examined(prepared: bool, put: impl Fn(&FakeFiles)) -> Finding {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        files.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  x\n",
        );
        files.put("/proc/modules", "nvidia 1 0 - Live 0x0\n");
        files.put_device("/dev/nvidia0", 195, 0);
        files.put_device("/dev/nvidiactl", 195, 255);
        files.put_link("/dev/char/195:255", "../nvidiactl");
        put(files);
        let (facts, matrix) = (facts(), matrix());
        let state = state(&host, facts.clone());
        let subject = Subject {
            host: host.reader(),
            facts: &facts,
            state: &state,
            matrix: &matrix,
            desired: None,
            prepared,
        };
        examine(&subject).await.expect("readable").remove(0)
    }

    #[tokio::test]
    async fn missing_uvm_node_fails_if_no_program_creates_it() {
        let missing = examined(false, |_| {}).await;
        assert_eq!(missing.status, Verdict::Fail, "{}", missing.why);
        assert!(
            missing.why.contains("`nvidia-uvm` is not loaded"),
            "{}",
            missing.why
        );
        let prepared = examined(true, |_| {}).await;
        assert_eq!(prepared.status, Verdict::Skip);
        for (mode, verdict) in [(0o4755, Verdict::Pass), (0o755, Verdict::Fail)] {
            let found = examined(false, |files| {
                files.put_mode("/usr/bin/nvidia-modprobe", "", mode);
            })
            .await;
            assert_eq!(found.status, verdict, "{mode:o}: {}", found.why);
        }
        let there = examined(false, |files| files.put_device("/dev/nvidia-uvm", 511, 0)).await;
        assert_eq!(there.status, Verdict::Pass, "{}", there.why);
        let unused = examined(false, |files| files.take("/dev/nvidiactl")).await;
        assert_eq!(unused.status, Verdict::Skip);
    }

    #[tokio::test]
    async fn missing_symlinks_warn_in_legacy_mode_with_systemd_cgroups() {
        let files = |mode: &'static str, driver: &'static str, linked: bool| {
            move |files: &FakeFiles| {
                files.put_device("/dev/nvidia-uvm", 511, 0);
                files.put_link("/dev/char/511:0", "../nvidia-uvm");
                files.put(toolkit::RUNTIME, "");
                let text = format!("[nvidia-container-runtime]\nmode = \"{mode}\"\n");
                files.put(toolkit::CONFIG, text.as_str());
                files.put("/usr/bin/crio", "");
                // The last file decides.
                let earlier = match driver {
                    "systemd" => "cgroupfs",
                    _ => "systemd",
                };
                for (path, driver) in [
                    ("/etc/crio/crio.conf", earlier),
                    ("/etc/crio/crio.conf.d/99-site.conf", driver),
                ] {
                    let text = format!("[crio.runtime]\ncgroup_manager = \"{driver}\"\n");
                    files.put(path, text.as_str());
                }
                if linked {
                    files.put_link("/dev/char/195:0", "../nvidia0");
                }
            }
        };
        for (mode, driver, linked, verdict) in rows! {
            "legacy", "systemd", false, Verdict::Warn;
            "legacy", "systemd", true, Verdict::Pass;
            "legacy", "cgroupfs", false, Verdict::Pass;
            "cdi", "systemd", false, Verdict::Pass;
        } {
            let found = examined(false, files(mode, driver, linked)).await;
            assert_eq!(found.status, verdict, "{mode} {driver}: {}", found.why);
            let is_told = found.why.contains("1 of 3 device nodes have no symlink");
            assert_eq!(is_told, verdict == Verdict::Warn, "{}", found.why);
        }
    }
}
