//! `mps.daemon`: the control daemon of CUDA MPS, so that programs use a GPU at the same time. It runs in a unit of this machine
//! only if the machine is not a node of a cluster. In a cluster, the device plugin has its own daemon ([`MpsDaemon`]), and offers
//! no GPU until the daemon responds, which `k8s.allocatable` reports.
//!
//! The directories `pipe` and `log` with their parents, their permissions, the SELinux label, the compute mode and the limits are
//! the same as for the daemon of the device plugin: NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc), `cmd/mps-control-daemon/mps`
//! (`Start` and `Stop` in `daemon.go`). The machine case `mps` compares them with those of the program itself. The differences:
//!
//! - The directories exist before the compute mode is set, because systemd creates them (`RuntimeDirectory=`). The plugin sets the
//!   compute mode first. Both precede the start of the daemon.
//! - `/run/nvidia/mps/shm` is missing, a tmpfs that the plugin mounts over `/dev/shm` of its daemon and of each pod
//!   (`mount-shm.go`). The daemon uses `/dev/shm` of the host, like the programs of the host.
//! - `.started` and `.ready` are missing. The plugin creates and removes them, and does not read them. With `.ready`, this step would
//!   detect the daemon of the plugin.
//! - At a stop, systemd ends the daemon with a signal instead of `quit`, and removes both directories. The plugin keeps `pipe`.
//!   Without it, no program finds the files of a daemon that has exited, and `uninstall` leaves nothing. A restart keeps the
//!   directories, because containers have mounted them.
//!
//! Not verified on a machine with a GPU: the daemon ignores standard input with `-d`, and the system calls and directories that the
//! sandbox of the unit permits are sufficient for a server.

use camino::Utf8Path;

use super::{
    DRIVER_MODULE, DRIVER_NODES, MPS_DAEMON, VALIDATION_COMPUTE, VALIDATION_CONTAINER,
    VALIDATION_DEVICES, messages,
    nodes::{self, users},
};
use crate::{
    change::Change,
    config::desired::{Desired, MpsDaemon},
    error::one_line,
    facts::Facts,
    host::{ComputeMode, ExecError, FileKind, Nvml, NvmlDevice, Query, Stat, system::Process},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        mps::{self, DIRECTORY_MODE, LOGS, PIPES, PROGRAM},
        packages::{HEADER, Manager},
        selinux,
        systemctl::{UnitState, own_file},
    },
};

/// The unit of the control daemon.
pub const UNIT: &str = "gpu-bootstrap-mps.service";

/// The program that executes the work of the programs. The control daemon starts it for the first of them.
const SERVER: &str = "nvidia-cuda-mps-server";

/// Its process name: Linux truncates names to 15 characters.
const SHORT_NAME: &str = "nvidia-cuda-mps";

/// The parent of the directories of `RuntimeDirectory=`.
const RUN: &str = "/run/";

/// The label with which containers may use the socket. Source: `unprivilegedContainerSELinuxLabel` in `daemon.go`.
const LABEL: &str = "system_u:object_r:container_file_t:s0";

/// The file that exists while the daemon of the device plugin runs. Source: `cmd/mps-control-daemon/main.go`.
const READY_IN_CLUSTER: &str = "/run/nvidia/mps/.ready";

/// The `mps.daemon` step.
pub(super) fn step() -> Step {
    Step::new(MPS_DAEMON, |cx| Box::pin(assess(cx)))
        // Runs after the validation, which computes on the GPUs without MPS.
        .after([
            DRIVER_MODULE,
            DRIVER_NODES,
            VALIDATION_DEVICES,
            VALIDATION_CONTAINER,
            VALIDATION_COMPUTE,
        ])
        .wants(|_, desired| desired.driver.is_none() || desired.device_plugin.has_mps_on_host())
}

#[derive(Debug, Clone, Default)]
struct MpsState {
    /// The driver is loaded.
    loaded: bool,
    /// The GPUs. `None` if NVML does not respond.
    devices: Option<Vec<NvmlDevice>>,
    /// Content of the unit file.
    text: Option<String>,
    /// The state of the unit. `None` if it does not exist.
    unit: Option<UnitState>,
    has_program: bool,
    has_selinux: bool,
    /// The daemon of the device plugin runs.
    in_cluster: bool,
    /// The thread percentage that the daemon reports, or the reason that it does not respond. `None` if the unit is not active.
    answer: Option<Result<f64, String>>,
    pipes: Option<Stat>,
}

impl MpsState {
    fn is_up(&self) -> bool {
        self.unit.as_ref().is_some_and(UnitState::is_active)
    }
}

/// The unit text. The limits are in the unit, so that a crashed daemon gets them again when systemd restarts it.
fn unit(replicas: u32, devices: &[NvmlDevice], has_selinux: bool) -> String {
    let label = match has_selinux {
        true => format!("ExecStartPre=/usr/bin/chcon {LABEL} {PIPES}\n"),
        false => String::new(),
    };
    let limits: Vec<String> = (mps::limits(replicas, devices).iter())
        .map(|command| format!("StandardInputText={command}"))
        .collect();
    let directories = [PIPES, LOGS].map(|path| path.trim_start_matches(RUN));
    format!(
        include_str!("mps.service"),
        header = HEADER,
        program = PROGRAM,
        nodes = nodes::UNIT,
        users = users(),
        pipes = PIPES,
        logs = LOGS,
        directories = directories.join(" "),
        label = label,
        limits = limits.join("\n"),
    )
}

/// Replaces line breaks, for example in the output of a failed command.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the output of the daemon, or the reason that it does not respond.
async fn ask(cx: &Cx<'_>, query: &Query) -> Result<Result<String, String>, StepError> {
    let output = match cx.host.query(query).await {
        Ok(output) => output.success(query.cmd()),
        Err(error @ ExecError::NotQueried { .. }) => return Err(error.into()),
        Err(error) => Err(error),
    };
    Ok(output
        .map(|output| output.stdout)
        .map_err(|error| on_one_line(&one_line(&error))))
}

/// Returns the process IDs of the programs that use MPS, or the reason that the daemon does not respond.
async fn programs(cx: &Cx<'_>) -> Result<Result<Vec<u32>, String>, StepError> {
    let mut programs = Vec::new();
    let servers = match ask(cx, &mps::servers()).await? {
        Ok(servers) => servers,
        Err(why) => return Ok(Err(why)),
    };
    for server in mps::parse_processes(&servers) {
        match ask(cx, &mps::clients(server)).await? {
            Ok(clients) => programs.extend(mps::parse_processes(&clients)),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(programs))
}

/// Whether a process is an MPS server, through which programs use the GPUs. Its name is truncated like the name of the control daemon,
/// so only the command line distinguishes them. Without a command line, it may be a server.
fn is_server(process: &Process) -> bool {
    process.is_called(SERVER)
        || process.command.is_none() && process.name.as_deref() == Some(SHORT_NAME)
}

async fn detect(cx: &Cx<'_>, daemon: MpsDaemon) -> Result<MpsState, StepError> {
    let files = cx.host.files();
    let loaded = cx.state.loaded_driver()?.is_some();
    let devices = match loaded {
        true => match cx.state.nvml().await {
            Nvml::Ready(view) => Some(view.devices.clone()),
            _ => None,
        },
        false => None,
    };
    let state = MpsState {
        loaded,
        devices,
        ..MpsState::default()
    };
    if daemon == MpsDaemon::Cluster {
        return Ok(state);
    }
    let unit = cx.state.unit(UNIT).await?;
    let has_program = files.exists(Utf8Path::new(PROGRAM))?;
    let answer = match unit.as_ref().is_some_and(UnitState::is_active) && has_program {
        true => Some(ask(cx, &mps::percentage()).await?.and_then(|output| {
            mps::parse_percentage(&output)
                .ok_or_else(|| format!("unexpected output: {}", on_one_line(&output)))
        })),
        false => None,
    };
    Ok(MpsState {
        text: files.read_text(&own_file(UNIT))?,
        has_program,
        has_selinux: selinux::is_enabled(files)?,
        in_cluster: files.exists(Utf8Path::new(READY_IN_CLUSTER))?,
        pipes: files.stat(Utf8Path::new(PIPES))?,
        unit,
        answer,
        ..state
    })
}

/// The assessment if MPS is not configured, or not on this machine.
fn not_required(desired: &Desired) -> Option<Assessment> {
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    (desired.device_plugin.mps().is_none())
        .then(|| Assessment::not_applicable("MPS is not configured (`sharing.method`)"))
}

/// Returns the reason that a running daemon must be restarted.
fn fault(state: &MpsState, devices: &[NvmlDevice], replicas: u32) -> Option<String> {
    let percentage = match &state.answer {
        Some(Ok(percentage)) => *percentage,
        Some(Err(why)) => return Some(format!("`{UNIT}` is active, but does not respond: {why}")),
        None => return None,
    };
    let expected = mps::thread_percentage(replicas);
    if (percentage - f64::from(expected)).abs() >= 0.5 {
        return Some(format!(
            "each program may use {percentage} % of the threads instead of {expected} %"
        ));
    }
    match &state.pipes {
        None => return Some(format!("`{PIPES}` does not exist")),
        Some(stat) if stat.kind != FileKind::Directory => {
            return Some(format!("`{PIPES}` is not a directory"));
        }
        Some(stat) if stat.uid != 0 || stat.mode & 0o777 != DIRECTORY_MODE => {
            return Some(format!(
                "`{PIPES}` has owner {} and mode {:o} instead of owner 0 and mode {DIRECTORY_MODE:o}",
                stat.uid,
                stat.mode & 0o777
            ));
        }
        Some(_) => {}
    }
    let is_open = |gpu: &&NvmlDevice| {
        gpu.compute_mode
            .is_some_and(|mode| mode != ComputeMode::ExclusiveProcess)
    };
    let open: Vec<u32> = (devices.iter().filter(is_open))
        .map(|gpu| gpu.index)
        .collect();
    (!open.is_empty()).then(|| {
        let open = messages::indices(&open);
        format!("the compute mode of {open} is not `EXCLUSIVE_PROCESS`, so programs can use them without limits")
    })
}

fn decide(state: &MpsState, desired: &Desired, facts: &Facts) -> Assessment {
    if let Some(assessment) = not_required(desired) {
        return assessment;
    }
    let Some((spec, daemon)) = desired.device_plugin.mps() else {
        return Assessment::not_applicable("MPS is not configured");
    };
    let devices = state.devices.as_deref();
    if let Some(fault) = devices.and_then(|devices| spec.unsupported_by_mps(devices)) {
        return Assessment::blocked(fault.why, fault.remedy);
    }
    if daemon == MpsDaemon::Cluster {
        return Assessment::not_applicable(
            "the MPS control daemon of the device plugin runs in the cluster",
        );
    }
    if desired.image {
        return Assessment::awaits_boot(
            "the MPS limits depend on the GPUs; they are set at the first boot of the image",
        );
    }
    if facts.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    if !state.loaded {
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "the MPS limits depend on the memory of the GPUs".into(),
            expected: vec![Change::EnableUnit {
                unit: UNIT.to_owned(),
                start: true,
            }],
        };
    }
    if state.in_cluster {
        return Assessment::blocked(
            format!(
                "the MPS control daemon of the device plugin serves the GPUs (`{READY_IN_CLUSTER}`)"
            ),
            "set `cluster.join = \"managed\"`; or remove the device plugin from the cluster, then the file",
        );
    }
    if !state.has_program {
        return Assessment::blocked(
            format!("`{PROGRAM}` is not installed"),
            no_program(desired.packages.manager),
        );
    }
    let Some(devices) = devices else {
        return Assessment::BlockedNow {
            why: "NVML does not respond, so the memory of the GPUs is unknown".into(),
            hint: "run `gpu-bootstrap check`, which reports the cause".into(),
            retryable: None,
        };
    };
    let otherwise = "set `sharing.method = \"none\"`";
    if let Some(refusal) = messages::masked(UNIT, state.unit.as_ref(), otherwise) {
        return refusal;
    }
    planned(state, devices, spec.replicas)
}

/// Compares the unit and its daemon with the settings.
fn planned(state: &MpsState, devices: &[NvmlDevice], replicas: u32) -> Assessment {
    let text = unit(replicas, devices, state.has_selinux);
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    match &state.text {
        Some(found) if *found == text => {}
        found => {
            whys.push(match found {
                None => format!("`{UNIT}` is missing"),
                Some(_) => format!("`{UNIT}` has other limits or options"),
            });
            changes.push(Change::write(own_file(UNIT), text));
        }
    }
    let is_new = !changes.is_empty();
    let is_enabled = state.unit.as_ref().is_some_and(UnitState::is_enabled);
    if !(is_enabled && state.is_up()) {
        if let Some(found) = state.unit.as_ref().filter(|unit| unit.exists()) {
            whys.push(format!("`{UNIT}` is {found}"));
        }
        changes.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: true,
        });
    }
    if state.is_up() {
        let found = fault(state, devices, replicas).filter(|_| !is_new);
        if is_new || found.is_some() {
            whys.extend(found);
            changes.push(Change::RestartUnit {
                unit: UNIT.to_owned(),
            });
        }
    }
    if !changes.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    let percentage = mps::thread_percentage(replicas);
    Assessment::satisfied(format!(
        "`{UNIT}` responds, and each of {replicas} programs may use {percentage} % of the threads of a GPU; the directory is \
         `{PIPES}`"
    ))
}

/// The remedy if the control daemon is missing. No profile contains the name of its package, which depends on the source of the
/// driver.
fn no_program(manager: Manager) -> String {
    match manager.backend().commands().containing {
        Some(search) => format!(
            "gpu-bootstrap does not know its package: find it with `{}`, install it in the version of the driver, and run the \
             command again",
            search.replace("FILE", PROGRAM)
        ),
        None => "gpu-bootstrap does not know its package: install it from the package source of the driver, in the version of the \
                 driver, and run the command again"
            .to_owned(),
    }
}

/// Blocks a restart of the daemon, which would stop these programs.
fn in_use(programs: &[u32]) -> Option<Assessment> {
    let names: Vec<String> = programs.iter().map(ToString::to_string).collect();
    if names.is_empty() {
        return None;
    }
    let programs = messages::list_of("program", &names);
    Some(Assessment::BlockedNow {
        why: format!("the MPS control daemon must be restarted, which would stop {programs}"),
        hint: format!(
            "stop them (`ps -p {}` lists them), and run the command again",
            names.join(",")
        ),
        retryable: None,
    })
}

/// Blocks a restart of a daemon that does not respond, if programs may use it.
fn silent_in_use(why: &str) -> Assessment {
    Assessment::BlockedNow {
        why: format!(
            "the MPS control daemon must be restarted, but does not report its programs ({why}); `{SERVER}` is running, and a \
             restart would stop the programs that use it"
        ),
        hint: format!(
            "stop the programs that use the GPUs, run `systemctl restart {}`, and run the command again",
            UNIT.trim_end_matches(".service")
        ),
        retryable: None,
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    // On other machines, no file is read, so that `check` is not unknown.
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    let Some((_, daemon)) = cx.desired.device_plugin.mps() else {
        return Ok(Assessment::not_applicable("MPS is not configured"));
    };
    let state = detect(cx, daemon).await?;
    let assessment = decide(&state, cx.desired, cx.facts);
    let restarts = match &assessment {
        Assessment::Needs { changes, .. } => changes
            .iter()
            .any(|change| matches!(change, Change::RestartUnit { .. })),
        _ => false,
    };
    if !restarts {
        return Ok(assessment);
    }
    let blocked = match programs(cx).await? {
        Ok(programs) => in_use(&programs),
        Err(why) if cx.host.system().processes()?.iter().any(is_server) => {
            Some(silent_in_use(&why))
        }
        Err(_) => None,
    };
    Ok(blocked.unwrap_or(assessment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::desired::{DevicePluginSpec, SharingMethod, SharingSpec},
        host::fake,
        steps::fixtures::{self, desired, facts, nvml_device},
    };

    fn mps(replicas: u32, daemon: MpsDaemon) -> Desired {
        Desired {
            device_plugin: DevicePluginSpec {
                sharing: Some(SharingSpec {
                    method: SharingMethod::Mps,
                    mps_daemon: Some(daemon),
                    replicas,
                    resources: vec!["nvidia.com/gpu".to_owned()],
                    rename: false,
                    fail_requests_greater_than_one: true,
                }),
                ..DevicePluginSpec::default()
            },
            ..desired()
        }
    }

    fn devices(mode: ComputeMode) -> Vec<NvmlDevice> {
        (0..2)
            .map(|index| NvmlDevice {
                compute_mode: Some(mode),
                ..nvml_device(index)
            })
            .collect()
    }

    fn bare() -> MpsState {
        MpsState {
            loaded: true,
            devices: Some(devices(ComputeMode::Default)),
            has_program: true,
            ..MpsState::default()
        }
    }

    /// A running daemon with four replicas.
    fn made() -> MpsState {
        let devices = devices(ComputeMode::ExclusiveProcess);
        MpsState {
            text: Some(unit(4, &devices, false)),
            devices: Some(devices),
            unit: Some(fixtures::unit("enabled", "active")),
            answer: Some(Ok(25.0)),
            pipes: Some(Stat {
                kind: FileKind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                size: 0,
                mtime: 0,
                inode: 0,
            }),
            ..bare()
        }
    }

    fn found(state: &MpsState, replicas: u32) -> Assessment {
        decide(state, &mps(replicas, MpsDaemon::Host), &facts())
    }

    #[test]
    fn unit_sets_mode_directories_and_limits() {
        let text = unit(3, &devices(ComputeMode::Default), true);
        let line = |line: &str| {
            let line = format!("\n{line}\n");
            text.find(&line)
                .unwrap_or_else(|| panic!("{line} is missing: {text}"))
        };
        let in_order = [
            "RuntimeDirectory=nvidia/mps/nvidia.com/gpu/pipe nvidia/mps/nvidia.com/gpu/log",
            "ExecStartPre=/usr/bin/chcon system_u:object_r:container_file_t:s0 \
             /run/nvidia/mps/nvidia.com/gpu/pipe",
            "ExecStartPre=/usr/bin/nvidia-smi --compute-mode=EXCLUSIVE_PROCESS",
            "ExecStart=/usr/bin/nvidia-cuda-mps-control -d",
            "ExecStartPost=/usr/bin/nvidia-cuda-mps-control",
            "ExecStopPost=/usr/bin/nvidia-smi --compute-mode=DEFAULT",
            "StandardInputText=set_default_device_pinned_mem_limit 0 27306M",
            "StandardInputText=set_default_device_pinned_mem_limit 1 27306M",
            "StandardInputText=set_default_active_thread_percentage 33",
        ]
        .map(line);
        assert!(in_order.is_sorted(), "{text}");
        line("Environment=CUDA_MPS_PIPE_DIRECTORY=/run/nvidia/mps/nvidia.com/gpu/pipe");
        line("Environment=CUDA_MPS_LOG_DIRECTORY=/run/nvidia/mps/nvidia.com/gpu/log");
        line("RuntimeDirectoryMode=0755");
        line("NoNewPrivileges=yes");
        assert!(!unit(3, &[], false).contains("chcon"));
        // These options hide the GPUs, or separate the daemon from the programs.
        for option in [
            "\nPrivateDevices",
            "\nProtectClock",
            "\nDevice",
            "\nPrivateIPC",
            "\nPrivateNetwork",
        ] {
            assert!(!text.contains(option), "{option}");
        }
    }

    #[test]
    fn changes_install_and_update_the_daemon() {
        let (why, changes) = found(&bare(), 4).expect_needs();
        assert_eq!(why, "`gpu-bootstrap-mps.service` is missing");
        assert!(
            matches!(
                &changes[..],
                [
                    Change::WriteFile { .. },
                    Change::EnableUnit { start: true, .. }
                ]
            ),
            "{changes:?}"
        );
        let want = mps(4, MpsDaemon::Host);
        assert!(changes.iter().all(|change| (step().wants)(change, &want)));
        // Without the setting, and if the machine joins a cluster, the changes are undone.
        for other in [desired(), mps(4, MpsDaemon::Cluster)] {
            assert!(!changes.iter().any(|change| (step().wants)(change, &other)));
        }
        found(&made(), 4).expect_satisfied();
        let (why, changes) = found(&made(), 2).expect_needs();
        assert!(why.ends_with("has other limits or options"), "{why}");
        assert!(
            matches!(
                &changes[..],
                [Change::WriteFile { .. }, Change::RestartUnit { .. }]
            ),
            "{changes:?}"
        );
        let stopped = MpsState {
            unit: Some(fixtures::unit("enabled", "failed")),
            answer: None,
            ..made()
        };
        let (why, changes) = found(&stopped, 4).expect_needs();
        assert!(why.contains("is enabled and failed"), "{why}");
        assert!(matches!(
            &changes[..],
            [Change::EnableUnit { start: true, .. }]
        ));
    }

    #[test]
    fn faulty_daemon_is_restarted() {
        let pipes = |uid, mode| MpsState {
            pipes: made().pipes.map(|stat| Stat { uid, mode, ..stat }),
            ..made()
        };
        for (state, reason) in rows! {
            MpsState { answer: Some(Err("timed out".into())), ..made() },
                "is active, but does not respond: timed out";
            MpsState { answer: Some(Ok(100.0)), ..made() },
                "may use 100 % of the threads instead of 25 %";
            MpsState { pipes: None, ..made() }, "`/run/nvidia/mps/nvidia.com/gpu/pipe` does not exist";
            pipes(1000, 0o755), "has owner 1000 and mode 755 instead of owner 0 and mode 755";
            pipes(0, 0o777), "has owner 0 and mode 777";
            MpsState { devices: Some(devices(ComputeMode::Default)), ..made() },
                "the compute mode of GPUs 0, 1 is not `EXCLUSIVE_PROCESS`";
        } {
            let (why, changes) = found(&state, 4).expect_needs();
            assert!(why.contains(reason), "{why}");
            assert!(
                matches!(&changes[..], [Change::RestartUnit { .. }]),
                "{changes:?}"
            );
        }
    }

    #[test]
    fn impossible_machines_block() {
        let mut split = devices(ComputeMode::Default);
        split[1].mig = Some(true);
        let mut old = devices(ComputeMode::Default);
        old[0].compute_capability = Some("7.0".to_owned());
        for (state, replicas, reason) in rows! {
            MpsState { devices: Some(split.clone()), ..bare() }, 4, "GPU 1 is in MIG mode";
            MpsState { devices: Some(old.clone()), ..bare() }, 17,
                "MPS supports 16 programs on GPU 0, fewer than `sharing.replicas` (17)";
            MpsState { in_cluster: true, ..bare() }, 4,
                "the MPS control daemon of the device plugin serves the GPUs";
            MpsState { has_program: false, ..bare() }, 4,
                "`/usr/bin/nvidia-cuda-mps-control` is not installed";
        } {
            let (why, hint) = found(&state, replicas).expect_blocked();
            assert!(why.contains(reason) && !hint.is_empty(), "{why}");
        }
        for manager in Manager::ALL {
            let hint = no_program(manager);
            let search = manager.backend().commands().containing;
            assert_eq!(hint.contains(&format!(" {PROGRAM}`")), search.is_some());
            assert!(hint.contains("in the version of the driver"), "{hint}");
        }
        // The daemon of the device plugin has the same limits.
        for devices in [split, old] {
            let state = MpsState {
                devices: Some(devices),
                ..bare()
            };
            decide(&state, &mps(17, MpsDaemon::Cluster), &facts()).expect_blocked();
        }
        let silent = MpsState {
            devices: None,
            ..bare()
        };
        assert!(matches!(found(&silent, 4), Assessment::BlockedNow { .. }));
    }

    #[tokio::test]
    async fn gpus_of_the_device_plugins_daemon_get_no_second_daemon() {
        let (host, fakes) = fake::host();
        fakes.exec.on("systemctl", |_, _| {
            fake::ok("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n")
        });
        fakes.files.put(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  x\n",
        );
        fakes.files.put(PROGRAM, "");
        fakes.files.put(READY_IN_CLUSTER, "");
        let (facts, want) = (facts(), mps(4, MpsDaemon::Host));
        let state = fixtures::state(&host, facts.clone());
        let cx = fixtures::cx(&host, &facts, &state, &want);
        let (why, _) = assess(&cx).await.expect("readable").expect_blocked();
        assert!(why.contains("serves the GPUs"), "{why}");
    }

    #[test]
    fn daemon_of_the_cluster_needs_no_unit() {
        let want = mps(4, MpsDaemon::Cluster);
        let why = decide(&bare(), &want, &facts()).expect_not_applicable();
        assert!(why.contains("runs in the cluster"), "{why}");
        decide(&bare(), &desired(), &facts()).expect_not_applicable();
        let image = Desired {
            image: true,
            ..mps(4, MpsDaemon::Host)
        };
        decide(&MpsState::default(), &image, &facts()).expect_awaiting_boot();
    }

    #[test]
    fn restart_does_not_stop_programs() {
        assert!(in_use(&[]).is_none());
        let Some(Assessment::BlockedNow { why, hint, .. }) = in_use(&[41, 42]) else {
            panic!("not blocked");
        };
        assert!(why.ends_with("would stop 2 programs (41, 42)"), "{why}");
        assert!(hint.contains("`ps -p 41,42`"), "{hint}");
        let process = |command: Option<&str>| Process {
            pid: 40,
            name: Some(SHORT_NAME.to_owned()),
            command: command.map(str::to_owned),
            uid: Some(0),
        };
        assert!(is_server(&process(Some("/usr/bin/nvidia-cuda-mps-server"))));
        assert!(is_server(&process(None)));
        assert!(!is_server(&process(Some(
            "/usr/bin/nvidia-cuda-mps-control -d"
        ))));
    }
}
