//! Simulates systemd units: files on disk, symlinks of enabled units, and running units below `/run`.

use gpu_bootstrap::host::{
    Cmd, FileKind, Output, ReadFiles,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    containers,
    state::{State, exists, list, text},
};

const ETC: &str = "/etc/systemd/system";
const RUNNING: &str = "/run/simulated/active";
/// NVIDIA's fabric manager.
pub const FABRIC_MANAGER: &str = "nvidia-fabricmanager.service";
/// The unit of `driver.mig`.
const MIG: &str = "gpu-bootstrap-mig.service";
const FAILED: &str = "/run/simulated/failed";

/// The unit file, or `None` if the unit does not exist.
fn file(files: &FakeFiles, unit: &str) -> Option<String> {
    [ETC, "/lib/systemd/system"]
        .iter()
        .find_map(|directory| text(files, &format!("{directory}/{unit}")))
}

fn masked(files: &FakeFiles, unit: &str) -> bool {
    let path = format!("{ETC}/{unit}");
    files
        .stat(path.as_str().into())
        .expect("the file can be inspected")
        .is_some_and(|stat| matches!(stat.kind, FileKind::Link(target) if target == "/dev/null"))
}

/// The symlink directory from the `[Install]` section of the unit.
fn wants(files: &FakeFiles, unit: &str) -> Option<String> {
    file(files, unit)?
        .lines()
        .find_map(|line| line.strip_prefix("WantedBy="))
        .map(|target| format!("{ETC}/{}.wants", target.trim()))
}

pub fn enabled(files: &FakeFiles, unit: &str) -> bool {
    wants(files, unit)
        .is_some_and(|directory| list(files, &directory).iter().any(|name| name == unit))
}

pub fn enable(files: &FakeFiles, unit: &str) {
    if let Some(directory) = wants(files, unit)
        && !enabled(files, unit)
    {
        let from = if exists(files, &format!("{ETC}/{unit}")) {
            ETC
        } else {
            "/lib/systemd/system"
        };
        files.put_link(&format!("{directory}/{unit}"), &format!("{from}/{unit}"));
    }
}

pub fn disable(files: &FakeFiles, unit: &str) {
    for directory in list(files, ETC) {
        if directory.ends_with(".wants") {
            files.take(&format!("{ETC}/{directory}/{unit}"));
            if list(files, &format!("{ETC}/{directory}")).is_empty() {
                files.take(&format!("{ETC}/{directory}"));
            }
        }
    }
}

pub fn active(files: &FakeFiles, unit: &str) -> bool {
    exists(files, &format!("{RUNNING}/{unit}"))
}

/// The configuration of a running unit at startup.
pub fn memory(files: &FakeFiles, unit: &str) -> Option<String> {
    text(files, &format!("{RUNNING}/{unit}"))
}

/// Starts a unit with its current configuration.
pub fn start(files: &FakeFiles, state: &State, unit: &str) -> Result<(), String> {
    if active(files, unit) {
        return Ok(());
    }
    if masked(files, unit) {
        return Err(format!("Failed to start {unit}: Unit {unit} is masked.\n"));
    }
    if file(files, unit).is_none() {
        return Err(format!("Failed to start {unit}: Unit {unit} not found.\n"));
    }
    let text = file(files, unit).unwrap_or_default();
    let mut conditions = text
        .lines()
        .filter_map(|line| line.strip_prefix("ConditionPathExists="));
    if !conditions.all(|path| exists(files, path)) {
        return Ok(());
    }
    let outcome = if state.faults.units.iter().any(|broken| broken == unit) {
        Err("the test broke it".to_owned())
    } else {
        match unit {
            "docker.service" if state.faults.docker => Err("the test broke it".to_owned()),
            "docker.service" => containers::docker_config(files)
                .and_then(|config| unless_refused(state, config, "docker")),
            "containerd.service" => {
                unless_refused(state, containers::containerd_merged(files), "containerd")
            }
            "gpu-bootstrap-cdi.service" => {
                // It is ordered after the MIG unit.
                if enabled(files, MIG) {
                    let _ = start(files, state, MIG);
                }
                Ok(containers::describe_again(files, state))
            }
            "nvidia-cdi-refresh.service" => containers::refresh(files, state),
            MIG => crate::mig::start_unit(files, state),
            "gpu-bootstrap-devices.service" => Ok(containers::link_nodes(files)),
            FABRIC_MANAGER => crate::fabric::start(files),
            crate::mps::UNIT => crate::mps::start(files, &text),
            "nvidia-persistenced.service" if !exists(files, "/dev/nvidiactl") => {
                Err("Failed to query NVIDIA devices.".to_owned())
            }
            "nvidia-persistenced.service" => Ok(command(files, unit).unwrap_or_default()),
            _ => Ok(String::new()),
        }
    };
    match outcome {
        Ok(memory) => {
            files.put(&format!("{RUNNING}/{unit}"), memory);
            files.take(&format!("{FAILED}/{unit}"));
            Ok(())
        }
        Err(why) => {
            files.put(&format!("{FAILED}/{unit}"), why);
            Err(format!(
                "Job for {unit} failed because the control process exited with error code.\n"
            ))
        }
    }
}

/// The configuration of a daemon at startup. The daemon rejects the nvidia runtime if the test requests it.
fn unless_refused(state: &State, config: String, daemon: &str) -> Result<String, String> {
    if state.faults.refuse_nvidia && config.contains("nvidia") {
        return Err(format!("{daemon}: the test lets no nvidia runtime in"));
    }
    Ok(config)
}

pub fn stop(files: &FakeFiles, unit: &str) {
    files.take(&format!("{RUNNING}/{unit}"));
    if unit == "gpu-bootstrap-devices.service" {
        containers::unlink_nodes(files);
    }
    if unit == crate::mps::UNIT {
        crate::mps::stop(files);
    }
}

/// All enabled units, sorted by name. A boot starts them.
pub fn all_enabled(files: &FakeFiles) -> Vec<String> {
    let mut found: Vec<String> = list(files, ETC)
        .iter()
        .filter(|directory| directory.ends_with(".wants"))
        .flat_map(|directory| list(files, &format!("{ETC}/{directory}")))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// `ExecStart=` of a unit, from the last file or drop-in with one.
pub fn command(files: &FakeFiles, unit: &str) -> Option<String> {
    let directory = format!("{ETC}/{unit}.d");
    let drop_ins = list(files, &directory).into_iter();
    let texts = drop_ins.filter_map(|name| text(files, &format!("{directory}/{name}")));
    file(files, unit)
        .into_iter()
        .chain(texts)
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| line.strip_prefix("ExecStart=").map(str::to_owned))
        .rfind(|command| !command.is_empty())
}

/// Whether the persistence daemon runs with persistence mode enabled.
pub fn persistence(files: &FakeFiles) -> bool {
    memory(files, "nvidia-persistenced.service")
        .is_some_and(|command| !command.contains("--no-persistence-mode"))
}

const SANDBOX: [&str; 8] = [
    "ProtectSystem",
    "PrivateDevices",
    "ReadOnlyPaths",
    "InaccessiblePaths",
    "TemporaryFileSystem",
    "ProtectKernelModules",
    "RootDirectory",
    "RootImage",
];

fn show(files: &FakeFiles, unit: &str, properties: &str) -> Output {
    let there = file(files, unit).is_some();
    let masked = masked(files, unit);
    let broken = exists(files, &format!("{FAILED}/{unit}"));
    let mut said = String::new();
    for property in properties.split(',') {
        if property == "ExecStart" {
            if let Some(command) = command(files, unit) {
                let path = command.split(' ').next().unwrap_or_default();
                said.push_str(&format!(
                    "ExecStart={{ path={path} ; argv[]={command} ; ignore_errors=no ; pid=0 }}\n"
                ));
            }
            continue;
        }
        // The sandbox settings of the unit file.
        if SANDBOX.contains(&property) {
            let setting = file(files, unit).unwrap_or_default();
            let value = setting
                .lines()
                .find_map(|line| line.strip_prefix(property)?.strip_prefix('='));
            said.push_str(&format!("{property}={}\n", value.unwrap_or_default()));
            continue;
        }
        let value = match property {
            "LoadState" if masked => "masked",
            "LoadState" if there => "loaded",
            "LoadState" => "not-found",
            "ActiveState" if active(files, unit) => "active",
            "ActiveState" if broken => "failed",
            "ActiveState" => "inactive",
            "UnitFileState" if masked => "masked",
            "UnitFileState" if !there => "",
            "UnitFileState" if wants(files, unit).is_none() => "static",
            "UnitFileState" if enabled(files, unit) => "enabled",
            "UnitFileState" => "disabled",
            "Result" if broken => "exit-code",
            "Result" => "success",
            // systemctl omits it if there is no job.
            "Job" => continue,
            "Id" => unit,
            // Package scripts reload systemd, so their unit files are current.
            "NeedDaemonReload" => "no",
            "DropInPaths" => {
                let directory = format!("{ETC}/{unit}.d");
                let paths = list(files, &directory).into_iter();
                let paths: Vec<String> = paths.map(|name| format!("{directory}/{name}")).collect();
                said.push_str(&format!("DropInPaths={}\n", paths.join(" ")));
                continue;
            }
            other => panic!("the simulated systemctl does not support property `{other}`"),
        };
        said.push_str(&format!("{property}={value}\n"));
    }
    ok(said)
}

/// Whether a command line of `systemctl` changes the machine.
pub fn changes(cmd: &Cmd) -> bool {
    !matches!(
        cmd.args.first().map(String::as_str),
        Some(
            "show" | "is-active" | "is-enabled" | "list-units" | "is-system-running" | "--version"
        )
    )
}

/// `systemctl`.
pub fn systemctl(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["show", properties, "--", unit] => {
            let properties = properties
                .strip_prefix("--property=")
                .unwrap_or_else(|| panic!("{}", cmd.line()));
            show(files, unit, properties)
        }
        ["--version"] => ok("systemd 252 (252.39-1~deb12u1)\n"),
        ["daemon-reload"] | ["reset-failed", "--", _] => ok(""),
        ["start", "--no-block", "--", unit] => act(files, state, "start", unit, cmd),
        ["is-system-running"] if exists(files, "/run/simulated/reboot") => Output {
            stdout: "stopping\n".to_owned(),
            ..failed(1, "")
        },
        ["is-system-running"] => ok("running\n"),
        ["reboot"] => {
            files.put("/run/simulated/reboot", "");
            ok("")
        }
        [verb, "--", unit] => act(files, state, verb, unit, cmd),
        _ => panic!("the simulated systemctl does not support `{}`", cmd.line()),
    }
}

fn act(files: &FakeFiles, state: &State, verb: &str, unit: &str, cmd: &Cmd) -> Output {
    let there = file(files, unit).is_some() || masked(files, unit);
    if !there {
        return failed(
            5,
            format!("Failed to {verb} {unit}: Unit {unit} not loaded.\n"),
        );
    }
    let started = |result: Result<(), String>| match result {
        Ok(()) => ok(""),
        Err(why) => failed(1, why),
    };
    match verb {
        "enable" => enable(files, unit),
        "disable" => disable(files, unit),
        "stop" => stop(files, unit),
        "start" => return started(start(files, state, unit)),
        "restart" => {
            stop(files, unit);
            return started(start(files, state, unit));
        }
        "reload" => {
            if !active(files, unit) {
                return failed(1, format!("{unit} is not active, cannot reload.\n"));
            }
            // If the configuration is invalid, the daemon logs the error after the signal and continues.
            if unit == "docker.service"
                && !state.faults.docker_reload
                && let Ok(memory) = containers::docker_config(files)
            {
                files.put(&format!("{RUNNING}/{unit}"), memory);
            }
        }
        "mask" => files.put_link(&format!("{ETC}/{unit}"), "/dev/null"),
        "unmask" => {
            if masked(files, unit) {
                files.take(&format!("{ETC}/{unit}"));
            }
        }
        _ => panic!("the simulated systemctl does not support `{}`", cmd.line()),
    }
    ok("")
}

/// `journalctl --unit=UNIT …`, and `journalctl --dmesg …`.
pub fn journalctl(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    if args.first() == Some(&"--dmesg") {
        let log = text(files, "/run/simulated/kernel-log").unwrap_or_default();
        let boot = format!("Linux version {}", crate::kernel::running(files));
        let record = |message| serde_json::json!({ "MESSAGE": message }).to_string() + "\n";
        return ok(std::iter::once(&*boot)
            .chain(log.lines())
            .map(record)
            .collect::<String>());
    }
    let unit = match args[..] {
        [unit, "--lines=20", "--no-pager", "--output=cat"] => unit.strip_prefix("--unit="),
        _ => None,
    };
    let Some(unit) = unit else {
        panic!("the simulated journalctl does not support `{}`", cmd.line());
    };
    ok(text(files, &format!("{FAILED}/{unit}")).unwrap_or_default() + "\n")
}
