//! Tests units, restarts of Docker, kernel modules, DKMS builds and initramfs images.

use std::time::Duration;

use serde_json::json;

use super::kit::{TestMachine, configure, says};
use crate::{
    change::{ApplyChanges, Change, Reverted},
    config::desired::Daemon,
    error::Report,
    exit::Exit,
    host::{
        ReadFiles,
        fake::{FakeFiles, diff, failed, ok},
    },
};

fn enable(unit: &str) -> Change {
    Change::EnableUnit {
        unit: unit.into(),
        start: true,
    }
}

#[tokio::test]
async fn unit_is_restored() {
    for (file, active) in [
        ("disabled", "inactive"),
        ("enabled", "inactive"),
        ("disabled", "active"),
    ] {
        let machine = TestMachine::new();
        machine.units.put("docker.service", file, active);
        machine.apply_and_undo(&enable("docker.service")).await;
    }
}

#[tokio::test]
async fn masked_unit_is_restored() {
    let unit = "nvidia-imex.service";
    let mask = Change::MaskUnit { unit: unit.into() };
    for (file, active) in [("enabled", "active"), ("disabled", "inactive")] {
        let machine = TestMachine::new();
        machine.units.put(unit, file, active);
        let (undo, reverted) = machine.apply_and_undo(&mask).await;
        assert!(
            matches!(&reverted, Reverted::Done { what } if what.contains("unmask")),
            "{reverted:?}"
        );
        // An interruption before the change has no effect.
        let reverted = machine.revert(&undo).await;
        assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    }
    // A mask of the administrator is kept, also by the undo of a unit that was enabled.
    let machine = TestMachine::new();
    machine.units.put(unit, "masked", "active");
    let undo = machine.apply(&mask).await.unwrap();
    let masked = ("masked".to_owned(), "inactive".to_owned());
    assert_eq!(machine.units.all()[unit], masked);
    machine.revert(&undo).await;
    assert_eq!(machine.units.all()[unit].0, "masked");
    // It is set again, but the unit stays enabled, which the mask has hidden.
    machine.units.put(unit, "enabled", "inactive");
    let reverted = machine.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Done { what } if what.contains("mask") && !what.contains("disable")),
        "{reverted:?}"
    );
    // A mask until the next boot becomes a permanent one, which the undo removes.
    machine.units.put(unit, "masked-runtime", "inactive");
    let undo = machine.apply(&mask).await.unwrap();
    assert_eq!(machine.units.all()[unit].0, "masked");
    machine.revert(&undo).await;
    assert_eq!(machine.units.all()[unit].0, "disabled");
    machine.units.put(unit, "disabled", "inactive");
    let undo = machine.apply(&enable(unit)).await.unwrap();
    machine.units.put(unit, "masked", "active");
    machine.revert(&undo).await;
    assert_eq!(machine.units.all()[unit].0, "masked");
}

#[tokio::test]
async fn imex_is_not_stopped_while_a_program_uses_a_gpu() {
    let unit = "nvidia-imex.service";
    let mask = Change::MaskUnit { unit: unit.into() };
    let restart = Change::RestartUnit { unit: unit.into() };
    let nodes = Change::write("/etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n");
    let machine = TestMachine::new();
    machine.units.put(unit, "disabled", "inactive");
    let undo = machine.apply(&enable(unit)).await.unwrap();
    let restarted = machine.apply(&restart).await.unwrap();
    let files = &machine.fakes.files;
    files.put("/proc/77/comm", "python3\n");
    files.put_link("/proc/77/exe", "/usr/bin/python3");
    files.put_link("/proc/77/fd/9", "/dev/nvidia0");
    let before = machine.units.all();
    for change in [&mask, &restart, &nodes] {
        let error = machine.apply(change).await.unwrap_err();
        assert_eq!((error.reason, error.exit), ("gpu-in-use", Exit::Blocked));
        assert!(error.what.contains("python3 (process 77)"), "{error}");
    }
    for change in [&mask, &restart] {
        let error = machine.applier.dry_run(change).await.unwrap_err();
        assert_eq!(error.reason, "gpu-in-use");
    }
    let reverted = machine.revert(&restarted).await;
    assert!(matches!(reverted, Reverted::Left { .. }), "{reverted:?}");
    let stopped = machine.applier.revert(&undo, &machine.sink).await;
    assert_eq!(stopped.unwrap_err().reason, "gpu-in-use");
    assert_eq!(machine.units.all(), before);
    // A unit that is not running can be masked.
    machine.units.put(unit, "enabled", "inactive");
    machine.apply(&mask).await.unwrap();
}

#[tokio::test]
async fn unit_is_enabled_but_not_started_without_systemd() {
    let machine = TestMachine::new();
    (machine.fakes.files).put("/lib/systemd/system/x.service", "[Service]\n");
    // In a chroot, systemctl commands that need a manager exit with 0 and have no effect (systemctl(1)).
    machine.fakes.exec.on("systemctl", |cmd, _| {
        ok(match cmd.args.first().map(String::as_str) {
            Some("is-enabled") => "disabled\n",
            _ => "",
        })
    });
    let undo = machine.apply(&enable("x.service")).await.unwrap();
    machine
        .apply(&Change::RestartUnit {
            unit: "x.service".into(),
        })
        .await
        .unwrap();
    let log = machine.fakes.exec.log();
    let change_applier = log.iter().filter_map(|cmd| cmd.args.first());
    let change_applier: Vec<&str> = (change_applier.map(String::as_str))
        .filter(|verb| !matches!(*verb, "show" | "is-enabled"))
        .collect();
    assert_eq!(change_applier, ["enable"]);
    assert!(machine.sink.text().contains("starts at the next boot"));
    // The undo also uses systemctl only for files.
    machine
        .fakes
        .exec
        .on("systemctl", |cmd, _| match &*cmd.args[0] {
            "is-enabled" => ok("enabled\n"),
            "disable" => ok(""),
            verb => failed(1, verb),
        });
    let reverted = machine.revert(&undo).await;
    let Reverted::Done { what } = &reverted else {
        panic!("{reverted:?}");
    };
    assert_eq!(what, "disable `x.service`");
}

#[tokio::test]
async fn unit_that_was_running_is_started_again() {
    let machine = TestMachine::new();
    machine.units.put("x.service", "disabled", "active");
    let before = machine.units.all();
    let undo = machine.apply(&enable("x.service")).await.unwrap();
    // The unit has stopped since then.
    machine.units.put("x.service", "enabled", "inactive");
    let reverted = machine.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Done { what } if what.contains("start `x.service`")),
        "{reverted:?}"
    );
    assert_eq!(machine.units.all(), before);
    // A running unit is not started again.
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
}

#[tokio::test]
async fn removed_unit_needs_no_undo() {
    let machine = TestMachine::new();
    machine.units.put("x.service", "disabled", "inactive");
    let undo = machine.apply(&enable("x.service")).await.unwrap();
    let other = TestMachine::new();
    assert!(matches!(
        other.revert(&undo).await,
        Reverted::Nothing { .. }
    ));
}

#[tokio::test]
async fn failed_unit_shows_its_last_output() {
    let machine = TestMachine::new();
    machine.units.put("broken.service", "disabled", "inactive");
    let error = machine.apply(&enable("broken.service")).await.unwrap_err();
    assert_eq!(error.reason(), "unit-failed");
    assert!(
        error.to_string().contains("cannot open /dev/nvidiactl"),
        "{error}"
    );
    // Another attempt would only fail again.
    let lines = machine.fakes.exec.lines();
    let starts = lines
        .iter()
        .filter(|line| line.starts_with("systemctl start"));
    assert_eq!(starts.count(), 1, "{lines:?}");
    for unit in ["masked.service", "absent.service"] {
        machine.units.put("masked.service", "masked", "inactive");
        let error = machine.apply(&enable(unit)).await.unwrap_err();
        assert_eq!(error.reason(), "unit-failed");
    }
}

/// Like the Docker unit, which systemd restarts automatically after each failure, up to its limit.
#[tokio::test]
async fn unit_with_start_limit_hit_is_still_started() {
    let machine = TestMachine::new();
    let mut state = ("activating", "exit-code");
    machine.fakes.exec.on("systemctl", move |cmd, _| {
        match &*cmd.args[0] {
            "restart" if state.1 == "start-limit-hit" || state.0 == "activating" => {
                state = ("failed", "start-limit-hit");
                failed(1, "Start request repeated too quickly.")
            }
            "restart" => {
                state = ("active", "success");
                ok("")
            }
            "reset-failed" => {
                state = ("inactive", "success");
                ok("")
            }
            _ => ok(format!(
                "LoadState=loaded\nActiveState={}\nUnitFileState=enabled\nResult={}\nNeedDaemonReload=no\n",
                state.0, state.1
            )),
        }
    });
    let restart = Change::RestartUnit {
        unit: "docker.service".into(),
    };
    machine.apply(&restart).await.expect("the unit is running");
}

/// A unit that another program restarts is inactive between the two halves of the restart, and has a job.
#[tokio::test]
async fn a_unit_that_is_still_starting_after_a_minute_is_an_error() {
    for state in [
        "ActiveState=activating\n",
        "ActiveState=inactive\nJob=312\n",
    ] {
        let machine = TestMachine::new();
        (machine.fakes.exec).on("systemctl", move |cmd, _| match &*cmd.args[0] {
            "show" => ok(format!(
                "LoadState=loaded\n{state}UnitFileState=enabled\nResult=success\n"
            )),
            _ => ok(""),
        });
        let restart = Change::RestartUnit {
            unit: "docker.service".into(),
        };
        let error = machine.apply(&restart).await.unwrap_err();
        assert_eq!(error.reason(), "unit-failed");
        let slept: Duration = machine.fakes.clock.slept().iter().sum();
        assert_eq!(slept, Duration::from_secs(60), "{state}");
    }
}

#[tokio::test]
async fn restart_is_only_undone_for_running_unit() {
    let machine = TestMachine::new();
    machine.units.put("docker.service", "enabled", "active");
    let undo = machine
        .apply(&Change::RestartUnit {
            unit: "docker.service".into(),
        })
        .await
        .unwrap();
    assert!(matches!(machine.revert(&undo).await, Reverted::Done { .. }));
    machine.units.put("docker.service", "enabled", "inactive");
    assert!(matches!(
        machine.revert(&undo).await,
        Reverted::Nothing { .. }
    ));
}

/// systemd does not detect a new drop-in directory for a loaded unit.
#[tokio::test]
async fn unit_is_restarted_with_a_new_drop_in() {
    let machine = TestMachine::new();
    machine.units.put("a.service", "static", "active");
    let write = Change::WriteFile {
        path: "/etc/systemd/system/a.service.d/50-gpu-bootstrap.conf".into(),
        content: "[Service]\n".into(),
        mode: 0o644,
        over: None,
    };
    machine.apply(&write).await.unwrap();
    machine.fakes.exec.clear_log();
    let restart = Change::RestartUnit {
        unit: "a.service".into(),
    };
    machine.apply(&restart).await.unwrap();
    let lines = machine.fakes.exec.lines();
    let at = |wanted: &str| lines.iter().position(|line| line == wanted);
    let reload = at("systemctl daemon-reload");
    assert!(
        reload.is_some() && reload < at("systemctl restart -- a.service"),
        "{lines:?}"
    );
}

/// A Docker daemon with two running containers. It reports the nvidia runtime after this many queries.
fn docker(machine: &TestMachine, after: usize, live_restore: bool, default: &'static str) {
    machine.units.put("docker.service", "enabled", "active");
    let mut asked = 0;
    machine.fakes.exec.on("docker", move |cmd, _| {
        if cmd.args[0] == "ps" {
            return ok("web\ntraining\n");
        }
        asked += 1;
        let nvidia = if asked > after { r#","nvidia":{}"# } else { "" };
        ok(format!(
            r#"{{"Runtimes":{{"runc":{{}}{nvidia}}},"DefaultRuntime":"{default}",
                "LiveRestoreEnabled":{live_restore}}}"#
        ))
    });
}

fn nvidia() -> Change {
    let entry = json!({"path": "nvidia-container-runtime"});
    let path = "/etc/docker/daemon.json";
    configure(Daemon::Docker, path, &["runtimes", "nvidia"], entry)
}

#[tokio::test]
async fn preview_hides_secrets_in_a_one_line_file() {
    let machine = TestMachine::new();
    let text = r#"{"log-opts":{"splunk-token":"SPLUNK-1"},"registry-mirrors":[]}"#;
    machine.fakes.files.put("/etc/docker/daemon.json", text);
    let shown = machine.applier.preview(&nvidia()).await.unwrap().unwrap();
    assert!(shown.contains("nvidia-container-runtime"), "{shown}");
    assert!(
        shown.contains("splunk-token") && !shown.contains("SPLUNK-1"),
        "{shown}"
    );
}

pub(super) fn restarts(machine: &TestMachine) -> usize {
    let lines = machine.fakes.exec.lines();
    (lines.iter())
        .filter(|line| line.starts_with("systemctl restart"))
        .count()
}

#[tokio::test]
async fn docker_loads_a_runtime_without_a_restart() {
    let machine = TestMachine::new();
    docker(&machine, 3, false, "runc");
    let undo = machine.apply(&nvidia()).await.unwrap();
    assert_eq!(restarts(&machine), 0);
    // The undo does not stop the containers either.
    let Reverted::Done { what } = machine.revert(&undo).await else {
        panic!("the files are restored");
    };
    assert!(what.contains("web, training"), "{what}");
    assert_eq!(restarts(&machine), 0);
    // The removal of the default runtime is different, because no new container would start.
    docker(&machine, 0, false, "nvidia");
    let Reverted::Left { why, .. } = machine.revert(&undo).await else {
        panic!("a restart is required");
    };
    assert!(why.contains("`systemctl restart docker.service`"), "{why}");
}

#[tokio::test]
async fn docker_loads_a_default_runtime_without_a_restart() {
    let machine = TestMachine::new();
    docker(&machine, 3, false, "nvidia");
    let mut change = nvidia();
    if let Change::ConfigureRuntime { settings } = &mut change {
        settings.default = true;
    }
    machine.apply(&change).await.unwrap();
    assert_eq!(restarts(&machine), 0);
}

#[tokio::test]
async fn restart_of_docker_never_stops_containers() {
    const NEVER: usize = 1_000_000;
    let machine = TestMachine::new();
    docker(&machine, NEVER, false, "runc");
    let error = machine.apply(&nvidia()).await.unwrap_err();
    assert_eq!(error.reason(), "configuration-put-back");
    let said = crate::error::causes(&error).join("; ");
    assert!(said.contains("web, training"), "{said}");
    assert!(error.hint().unwrap().contains("live-restore"));
    assert_eq!(restarts(&machine), 0);
    docker(&machine, NEVER, true, "runc");
    machine.apply(&nvidia()).await.unwrap();
    assert_eq!(restarts(&machine), 1);
}

#[tokio::test]
async fn docker_with_unknown_containers_is_not_restarted() {
    let silent = [
        "",
        "not JSON",
        r#"{"ServerErrors":["Cannot connect to the Docker daemon"]}"#,
    ];
    for answer in silent {
        let machine = TestMachine::new();
        docker(&machine, 0, false, "runc");
        let undo = machine.apply(&nvidia()).await.unwrap();
        machine.fakes.exec.on("docker", move |_, _| ok(answer));
        let error = machine.apply(&nvidia()).await.unwrap_err();
        assert_eq!(error.reason(), "docker-silent", "{answer}");
        assert!(error.hint().unwrap().contains("docker info"));
        let Reverted::Left { why, .. } = machine.revert(&undo).await else {
            panic!("`{answer}`: a restart is required");
        };
        assert!(why.contains("`systemctl restart docker.service`"), "{why}");
        assert_eq!(restarts(&machine), 0, "{answer}");
    }
}

#[tokio::test]
async fn restored_configuration_is_loaded() {
    let machine = TestMachine::new();
    machine.units.put("docker.service", "enabled", "active");
    machine.fakes.files.put("/etc/docker/daemon.json", "{}");
    let file = machine
        .apply(&Change::WriteFile {
            path: "/etc/docker/daemon.json".into(),
            content: "{\"a\":1}".into(),
            mode: 0o644,
            over: None,
        })
        .await
        .unwrap();
    let restart = machine
        .apply(&Change::RestartUnit {
            unit: "docker.service".into(),
        })
        .await
        .unwrap();
    machine.fakes.exec.clear_log();
    machine.revert(&file).await;
    machine.revert(&restart).await;
    assert_eq!(machine.fakes.files.text("/etc/docker/daemon.json"), "{}");
    assert!(
        machine
            .fakes
            .exec
            .lines()
            .contains(&"systemctl restart -- docker.service".to_owned())
    );
}

/// A kernel without modules, with commands that load and unload them.
fn modprobe(machine: &TestMachine) {
    fn unload(files: &FakeFiles, name: &str) {
        files.take(&format!("/sys/module/{name}"));
        let text = files.text("/proc/modules").replace(&format!("{name},"), "");
        let others = text.lines().filter(|line| !line.starts_with(name));
        files.put(
            "/proc/modules",
            others.map(|line| format!("{line}\n")).collect::<String>(),
        );
    }
    machine.fakes.files.put("/proc/modules", "");
    machine.fakes.exec.on("modprobe", |cmd, files| {
        let name = cmd.args.last().unwrap().replace('-', "_");
        files.put_directory(&format!("/sys/module/{name}"), 0o755);
        let loaded = files.text("/proc/modules");
        files.put("/proc/modules", format!("{loaded}{name} 1 0 - Live 0x0\n"));
        ok("")
    });
    machine.fakes.exec.on("rmmod", |cmd, files| {
        unload(files, cmd.args.last().unwrap());
        ok("")
    });
}

#[tokio::test]
async fn module_is_loaded_and_unloaded() {
    let machine = TestMachine::new();
    modprobe(&machine);
    machine
        .apply_and_undo(&Change::LoadModule {
            module: "nvidia-uvm".into(),
        })
        .await;
}

#[tokio::test]
async fn module_in_use_is_kept_until_reboot() {
    let machine = TestMachine::new();
    modprobe(&machine);
    let load = Change::LoadModule {
        module: "nvidia".into(),
    };
    let undo = machine.apply(&load).await.unwrap();
    for (modules, user) in [
        ("nvidia 1 1 - Live 0x0\n", "`nvidia` is in use by 1 open"),
        (
            "nvidia 1 1 nvidia_uvm, Live 0x0\nnvidia_uvm 1 2 - Live 0x0\n",
            "`nvidia_uvm` is in use by 2 open",
        ),
    ] {
        machine.fakes.files.put("/proc/modules", modules);
        let reverted = machine.revert(&undo).await;
        assert!(
            matches!(&reverted, Reverted::Left { what, why }
                if what.contains("until the next boot") && why.contains(user)),
            "{reverted:?}"
        );
        assert!(
            !machine
                .fakes
                .exec
                .lines()
                .iter()
                .any(|line| line.starts_with("rmmod"))
        );
    }
}

#[tokio::test]
async fn dependent_modules_are_unloaded_together() {
    let machine = TestMachine::new();
    modprobe(&machine);
    let load = Change::LoadModule {
        module: "nvidia".into(),
    };
    let undo = machine.apply(&load).await.unwrap();
    machine.fakes.files.put(
        "/proc/modules",
        "nvidia_uvm 1 0 - Live 0x0\nnvidia_drm 1 0 - Live 0x0\n\
         nvidia_modeset 1 1 nvidia_drm, Live 0x0\n\
         nvidia 1 3 nvidia_uvm,nvidia_drm,nvidia_modeset, Live 0x0\ndrm 1 1 nvidia_drm, Live 0x0\n",
    );
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let mut lines = machine.fakes.exec.lines();
    lines.retain(|line| line.starts_with("rmmod"));
    assert_eq!(
        lines,
        [
            "rmmod -- nvidia_uvm",
            "rmmod -- nvidia_drm",
            "rmmod -- nvidia_modeset",
            "rmmod -- nvidia",
        ]
    );
}

#[tokio::test]
async fn modules_of_a_removed_boot_file_are_unloaded() {
    let machine = TestMachine::new();
    modprobe(&machine);
    machine
        .fakes
        .files
        .put_directory("/etc/modules-load.d", 0o755);
    let file = Change::WriteFile {
        path: "/etc/modules-load.d/gpu.conf".into(),
        content: "# a comment\nnvidia\nnvidia-uvm\n".into(),
        mode: 0o644,
        over: None,
    };
    let before = machine.snapshot();
    let undo = machine.apply(&file).await.unwrap();
    assert!(undo.unloads());
    // After the next boot.
    for module in ["nvidia", "nvidia_uvm"] {
        (machine.fakes.files).put_directory(&format!("/sys/module/{module}"), 0o755);
    }
    machine.fakes.files.put(
        "/proc/modules",
        "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n",
    );
    machine.revert(&undo).await;
    assert!(diff(&before, &machine.snapshot()).is_empty());
    // A module that was already loaded is kept.
    for module in ["nvidia", "nvidia_uvm"] {
        (machine.fakes.files).put_directory(&format!("/sys/module/{module}"), 0o755);
    }
    let undo = machine.applier.capture(&file).await.unwrap();
    assert!(!undo.unloads());
}

#[tokio::test]
async fn rejected_key_hints_at_secure_boot() {
    let machine = TestMachine::new();
    machine.fakes.exec.on("modprobe", |_, _| {
        failed(
            1,
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n",
        )
    });
    let error = machine
        .apply(&Change::LoadModule {
            module: "nvidia".into(),
        })
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "module-signature");
    assert!(error.hint().unwrap().contains("Secure Boot"));
}

#[tokio::test]
async fn initramfs_is_rebuilt_after_its_files_are_restored() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/boot/initrd.img-6.1.0", "");
    machine.fakes.exec.on("update-initramfs", |_, _| ok(""));
    let change = Change::RebuildInitramfs {
        kernels: vec!["6.1.0".into()],
    };
    let undo = machine.apply(&change).await.unwrap();
    assert!(matches!(machine.revert(&undo).await, Reverted::Done { .. }));
    assert_eq!(
        machine.fakes.exec.lines(),
        ["update-initramfs -u -k6.1.0", "update-initramfs -u -k6.1.0"]
    );
    machine
        .fakes
        .exec
        .on("update-initramfs", |_, _| failed(1, "cpio failed"));
    let error = machine.apply(&change).await.unwrap_err();
    assert!(!error.to_string().contains("without `"), "{error}");
    machine.fakes.exec.forget("update-initramfs");
    let error = machine.fails(&change).await;
    says(
        error,
        "rebuild the initramfs of 6.1.0 without `update-initramfs`",
    );
    machine.fakes.files.take("/boot/initrd.img-6.1.0");
    assert!(matches!(
        machine.revert(&undo).await,
        Reverted::Nothing { .. }
    ));
    assert!(machine.apply(&change).await.is_err());
}

#[tokio::test]
async fn existing_build_is_not_undone() {
    let machine = TestMachine::new();
    machine.fakes.exec.on("dkms", |_, _| {
        ok("nvidia-current/535.261.03, 6.1.0, x86_64: installed\n")
    });
    for (kernel, stays) in [("6.1.0", true), ("6.1.1", false)] {
        let change = Change::BuildModule {
            module: "nvidia-current".into(),
            kernel: kernel.into(),
        };
        let undo = machine.applier.capture(&change).await.unwrap();
        assert_eq!(undo.is_nothing(), stays, "{kernel}: {undo:?}");
    }
}

/// A built module in the DKMS tree.
const BUILT: &str = "/var/lib/dkms/nvidia/580.95.05/6.1.0/x86_64/module/nvidia-current.ko";

/// A machine on which DKMS builds `nvidia` 580.95.05 from source. `status` is the output of `dkms status` before the build.
fn machine_with_dkms(status: &'static str) -> TestMachine {
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put("/usr/src/nvidia-580.95.05/dkms.conf", "x");
    machine
        .fakes
        .files
        .put("/usr/src/nvidia-fs-2.1/dkms.conf", "x");
    machine.fakes.files.put("/usr/src/nvidia-470/README", "x");
    machine.fakes.exec.on("dkms", move |cmd, files| {
        match &*cmd.args[0] {
            "status" if files.text("/status") == "built" => {
                return ok("nvidia/580.95.05, 6.1.0, x86_64: installed\n");
            }
            "status" => return ok(status),
            "remove" => files.put("/status", "removed"),
            _ => {
                files.put(BUILT, "ELF");
                files.put("/status", "built");
            }
        }
        ok("")
    });
    machine.fakes.files.put("/status", "");
    machine
}

fn build_nvidia() -> Change {
    Change::BuildModule {
        module: "nvidia".into(),
        kernel: "6.1.0".into(),
    }
}

#[tokio::test]
async fn truncated_build_is_repeated() {
    const LIST: &str = "/lib/modules/6.1.0/modules.dep";
    const INSTALLED: &str = "/lib/modules/6.1.0/updates/dkms/nvidia-current.ko.xz";
    for (file, content, torn) in [
        (BUILT, "", true),
        (LIST, "", true),
        (LIST, "kernel/a.ko:\n", true),
        (INSTALLED, "", true),
        (
            "/var/lib/dkms/nvidia/580.95.05/6.1.0/x86_64/log/make.log",
            "",
            false,
        ),
    ] {
        let machine = machine_with_dkms("nvidia/580.95.05, 6.1.0, x86_64: installed\n");
        // The DKMS name of the module differs from its file name.
        for (path, content) in [
            (BUILT, "ELF"),
            (LIST, "updates/dkms/nvidia-current.ko.xz: kernel/a.ko\n"),
            (INSTALLED, "XZ"),
            (file, content),
        ] {
            machine.fakes.files.put(path, content);
        }
        machine.apply(&build_nvidia()).await.unwrap();
        let lines = machine.fakes.exec.lines();
        let built = lines.iter().any(|line| line.starts_with("dkms install"));
        assert_eq!(built, torn, "{file}, {content:?}: {lines:#?}");
    }
}

#[tokio::test]
async fn killed_build_does_not_block_the_next() {
    let machine = machine_with_dkms("nvidia/580.95.05: added\n");
    let files = &machine.fakes.files;
    let unfinished = "/var/lib/dkms/nvidia/580.95.05/6.1.0/x86_64/log/make.log";
    files.put(unfinished, "CC nv.o\n");
    machine.apply(&build_nvidia()).await.unwrap();
    assert!(!files.exists(unfinished.into()).unwrap());
    assert_eq!(files.text(BUILT), "ELF");
}

/// Adds a running process with this command line.
pub(super) fn run_process(machine: &TestMachine, pid: u32, command: &str) {
    let files = &machine.fakes.files;
    for (file, text) in [
        ("comm", "dkms\n"),
        ("cmdline", &command.replace(' ', "\0")),
        ("status", "Uid:\t0\t0\t0\t0\n"),
    ] {
        files.put(&format!("/proc/{pid}/{file}"), text);
    }
    files.put_link(&format!("/proc/{pid}/exe"), "/usr/bin/bash");
    for process in [pid.to_string().as_str(), "self"] {
        for namespace in ["pid", "mnt"] {
            let link = format!("/proc/{process}/ns/{namespace}");
            files.put_link(&link, &format!("{namespace}:[1]"));
        }
    }
}

/// The log of an incomplete build.
const UNFINISHED: &str = "/var/lib/dkms/nvidia/580.95.05/6.1.0/x86_64/log/make.log";

#[tokio::test]
async fn build_waits_for_another_dkms() {
    let machine = machine_with_dkms("nvidia/580.95.05: added\n");
    let files = &machine.fakes.files;
    files.put(UNFINISHED, "CC nv.o\n");
    run_process(
        &machine,
        41,
        "/bin/bash /usr/sbin/dkms install -m nvidia -v 580.95.05",
    );
    let error = machine.apply(&build_nvidia()).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("dkms-busy", true));
    assert!(error.to_string().contains("process 41"), "{error}");
    assert_eq!(files.text(UNFINISHED), "CC nv.o\n");
    let lines = machine.fakes.exec.lines();
    let built = |line: &String| line.starts_with("dkms install");
    assert!(!lines.iter().any(built), "{lines:#?}");
    // A query, a process in a container, or another program is not waited for.
    files.put(
        "/proc/41/cmdline",
        "/bin/bash\0/usr/sbin/dkms\0status\0-m\0nvidia",
    );
    run_process(&machine, 42, "/bin/bash /usr/sbin/dkms autoinstall");
    files.put_link("/proc/42/ns/mnt", "mnt:[2]");
    run_process(&machine, 43, "/bin/bash /usr/sbin/dkms autoinstall");
    files.put_link("/proc/43/exe", "/usr/bin/mount");
    machine.apply(&build_nvidia()).await.unwrap();
    assert_eq!(files.text(BUILT), "ELF");
}

#[tokio::test]
async fn the_reported_wait_for_another_dkms_gets_shorter() {
    let machine = machine_with_dkms("nvidia/580.95.05: added\n");
    let files = &machine.fakes.files;
    files.put(UNFINISHED, "CC nv.o\n");
    run_process(&machine, 41, "/bin/bash /usr/sbin/dkms autoinstall");
    let clock = machine.fakes.clock.clone();
    let change = build_nvidia();
    let (ended, ()) = tokio::join!(machine.apply(&change), async {
        while clock.slept().len() < 5 {
            tokio::task::yield_now().await;
        }
        // The first process has ended, and a second one was started.
        files.put("/proc/41/cmdline", "/bin/bash\0/usr/sbin/dkms\0status");
        run_process(&machine, 42, "/bin/bash /usr/sbin/dkms autoinstall");
    });
    assert_eq!(ended.unwrap_err().reason(), "dkms-busy");
    let text = machine.sink.text();
    for (pid, left) in [(41, 60), (42, 50)] {
        let wanted = format!(
            "retry: process {pid}, `/bin/bash /usr/sbin/dkms autoinstall`, is running; waiting for at most {left} s more"
        );
        assert!(text.contains(&wanted), "{text}");
    }
}

#[tokio::test]
async fn dkms_is_recognized_after_an_upgrade_of_its_shell_and_by_its_compiler() {
    let running = |command: &str, exe: &str, cwd: &str| {
        let machine = machine_with_dkms("");
        run_process(&machine, 41, command);
        let files = &machine.fakes.files;
        files.put_link("/proc/41/exe", exe);
        files.put_link("/proc/41/cwd", cwd);
        let system = crate::host::system::ProcFiles(std::sync::Arc::new(files.clone()));
        crate::dkms::running(files, &system).unwrap().is_some()
    };
    let script = "/bin/bash /usr/sbin/dkms install -m nvidia -v 580.95.05";
    assert!(running(script, "/usr/bin/bash (deleted)", "/"));
    assert!(running(
        "/bin/sh /usr/sbin/dkms autoinstall",
        "/usr/bin/dash",
        "/"
    ));
    assert!(!running(
        "sudo dkms install -m nvidia",
        "/usr/bin/sudo",
        "/"
    ));
    let build = "/var/lib/dkms/nvidia/580.95.05/build";
    assert!(running("make -j4 modules", "/usr/bin/make", build));
    assert!(!running(
        "make -j4 modules",
        "/usr/bin/make",
        "/usr/src/linux"
    ));
    assert!(!running("-bash", "/usr/bin/bash", build));
}

#[tokio::test]
async fn build_waits_for_the_dkms_unit() {
    let machine = machine_with_dkms("nvidia/580.95.05: added\n");
    machine.fakes.files.put(UNFINISHED, "CC nv.o\n");
    machine.units.put("dkms.service", "enabled", "activating");
    let error = machine.apply(&build_nvidia()).await.unwrap_err();
    assert_eq!(error.reason(), "dkms-busy");
    assert_eq!(machine.fakes.files.text(UNFINISHED), "CC nv.o\n");
    machine.units.put("dkms.service", "enabled", "active");
    machine.apply(&build_nvidia()).await.unwrap();
    assert_eq!(machine.fakes.files.text(BUILT), "ELF");
}

#[tokio::test]
async fn several_module_sources_are_listed_and_not_built() {
    let machine = machine_with_dkms("");
    (machine.fakes.files).put("/usr/src/nvidia-535.261.03/dkms.conf", "x");
    let error = machine.apply(&build_nvidia()).await.unwrap_err();
    let said = error.to_string();
    for part in ["535.261.03, 580.95.05", "`dkms add -m nvidia -v VERSION`"] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn unregistered_module_is_built_from_source() {
    let machine = machine_with_dkms("");
    let undo = machine.apply(&build_nvidia()).await.unwrap();
    let lines = machine.fakes.exec.lines();
    let wanted = "dkms install -m nvidia -v 580.95.05 -k 6.1.0";
    assert!(lines.iter().any(|line| line == wanted), "{lines:#?}");
    assert!(!undo.is_nothing());
}

/// Whether the last command that starts with this line compiles without debug information.
fn compiles_lean(machine: &TestMachine, line: &str) -> bool {
    let log = machine.fakes.exec.log();
    let ran = log.iter().rev().find(|cmd| cmd.line().starts_with(line));
    let lean = ("KCFLAGS".to_owned(), "-g0".to_owned());
    ran.expect("the command ran").env.contains(&lean)
}

#[tokio::test]
async fn modules_are_compiled_without_debug_information() {
    // If the kernel headers include `vmlinux`, the build generates BTF from the debug information, so it needs them.
    for (headers, lean) in [("include", true), ("vmlinux", false)] {
        let machine = machine_with_dkms("");
        let file = format!("/usr/src/linux-headers-6.1.0/{headers}");
        machine.fakes.files.put(&file, "x");
        (machine.fakes.files).put_link("/lib/modules/6.1.0/build", "/usr/src/linux-headers-6.1.0");
        machine.apply(&build_nvidia()).await.unwrap();
        assert_eq!(compiles_lean(&machine, "dkms install"), lean, "{headers}");
    }
}

#[tokio::test]
async fn failed_build_shows_the_compiler_output() {
    let machine = TestMachine::new();
    machine.fakes.exec.on("dkms", |cmd, files| {
        if cmd.args[0] == "status" {
            return ok("nvidia-current/535.261.03: added\n");
        }
        files.put(
            "/var/lib/dkms/nvidia-current/535.261.03/build/make.log",
            "cc: error: unrecognized command-line option\n",
        );
        failed(10, "Error! Bad return status for module build\n")
    });
    let error = machine
        .apply(&Change::BuildModule {
            module: "nvidia-current".into(),
            kernel: "6.1.0".into(),
        })
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "module-build");
    assert!(
        error.to_string().contains("unrecognized command-line"),
        "{error}"
    );
}
