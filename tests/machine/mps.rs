//! Simulates the control daemon of MPS, its directories, and the compute mode of the GPUs.

use gpu_bootstrap::host::{
    Cmd, ComputeMode, Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    state::{exists, text},
    units,
};

/// The unit of the daemon.
pub const UNIT: &str = "gpu-bootstrap-mps.service";
/// The daemon, which is also its client.
pub const PROGRAM: &str = "/usr/bin/nvidia-cuda-mps-control";
const DIRECTORY: &str = "/run/nvidia/mps/nvidia.com/gpu";
/// If a test writes this file, `nvidia-smi` has set the compute mode to DEFAULT.
const RESET: &str = "/run/simulated/compute-mode";
/// The process IDs of the programs that use MPS, which a test writes.
const CLIENTS: &str = "/run/simulated/mps-clients";
const INPUT: &str = "StandardInputText=";

/// Starts the daemon, and returns the commands that set its limits.
pub fn start(files: &FakeFiles, unit: &str) -> Result<String, String> {
    if !exists(files, PROGRAM) {
        return Err(format!("{PROGRAM}: No such file or directory"));
    }
    for name in ["pipe", "log"] {
        files.put_directory(&format!("{DIRECTORY}/{name}"), 0o755);
    }
    files.take(RESET);
    let commands = unit.lines().filter_map(|line| line.strip_prefix(INPUT));
    Ok(commands.map(|command| format!("{command}\n")).collect())
}

/// Stops the daemon, and the programs that use it.
pub fn stop(files: &FakeFiles) {
    for path in [DIRECTORY, CLIENTS] {
        files.take(path);
    }
}

/// The compute mode of all GPUs, which the unit sets.
pub fn compute_mode(files: &FakeFiles) -> ComputeMode {
    match units::active(files, UNIT) && !exists(files, RESET) {
        true => ComputeMode::ExclusiveProcess,
        false => ComputeMode::Default,
    }
}

/// `nvidia-cuda-mps-control` without options, which sends a command to the daemon.
pub fn control(cmd: &Cmd, files: &FakeFiles) -> Output {
    let pipes = format!("{DIRECTORY}/pipe");
    let has_pipes = |(key, value): &(String, String)| {
        key == "CUDA_MPS_PIPE_DIRECTORY" && *value == pipes && exists(files, &pipes)
    };
    let limits = units::memory(files, UNIT).filter(|_| cmd.env.iter().any(has_pipes));
    let Some(limits) = limits else {
        return failed(1, "Cannot find MPS control daemon process\n");
    };
    let input = cmd.stdin.as_ref().map(|input| input.expose().trim());
    match input.unwrap_or_default() {
        "get_default_active_thread_percentage" => {
            let set = limits
                .lines()
                .find_map(|line| line.strip_prefix("set_default_active_thread_percentage "));
            ok(format!("{}.0\n", set.unwrap_or("100")))
        }
        "get_server_list" if exists(files, CLIENTS) => ok("4000\n"),
        "get_server_list" => ok(""),
        "get_client_list 4000" => ok(text(files, CLIENTS).unwrap_or_default()),
        other => panic!("the simulated MPS daemon does not support `{other}`"),
    }
}
