//! `nvidia-cuda-mps-control`: the control daemon of CUDA MPS, its directories, its commands and their output, and the limits for
//! each program with a number of replicas. All functions are pure.
//!
//! Sources: NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc), `cmd/mps-control-daemon/mps` (`daemon.go`, `root.go` and
//! `device.go`); NVIDIA, "Multi-Process Service", "Tools and Interface Reference" (the commands).

use std::time::Duration;

use crate::{
    host::{NvmlDevice, Query},
    model::secret::Secret,
};

/// The control daemon, which is also its client: without options, it reads commands from standard input.
pub const PROGRAM: &str = "/usr/bin/nvidia-cuda-mps-control";

/// The directory in which the device plugin expects the files of MPS (`--mps-root` in its Helm chart).
pub const ROOT: &str = "/run/nvidia/mps";

/// The directory with the socket of the daemon, for the resource `nvidia.com/gpu`. Programs that use MPS need it in
/// [`PIPE_VARIABLE`]. It is not the default `/tmp/nvidia-mps`, which non-root users could create first, and to which CUDA and the
/// container toolkit connect every program (aws/amazon-ecs-ami#771).
pub const PIPES: &str = "/run/nvidia/mps/nvidia.com/gpu/pipe";

/// The directory of the log files `control.log` and `server.log`.
pub const LOGS: &str = "/run/nvidia/mps/nvidia.com/gpu/log";

/// The permission bits of both directories.
pub const DIRECTORY_MODE: u32 = 0o755;

/// The environment variable with [`PIPES`].
pub const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The environment variable with [`LOGS`].
pub const LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";

/// The largest number of programs on one GPU. Source: `maxClients` in `device.go`.
pub const MOST_CLIENTS: u32 = 48;

/// The same for GPUs with a compute capability below 7.5. MPS itself supports 48 programs on Volta (7.0), but the device plugin
/// has this limit.
pub const MOST_CLIENTS_BEFORE_TURING: u32 = 16;

/// Returns the largest number of replicas of a GPU with this compute capability.
pub fn most_clients(capability: Option<&str>) -> u32 {
    let parts = capability.and_then(|capability| capability.split_once('.'));
    let parts = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match parts {
        Some(version) if version < (7_u32, 5_u32) => MOST_CLIENTS_BEFORE_TURING,
        _ => MOST_CLIENTS,
    }
}

/// Returns the part of the threads of a GPU that each program may use, in percent. Source: `activeThreadPercentage`.
pub fn thread_percentage(replicas: u32) -> u32 {
    100 / replicas.max(1)
}

/// Returns the memory of a GPU that each program may allocate, in MiB. Source: `perDevicePinnedDeviceMemoryLimits`.
pub fn memory_limit(total_bytes: u64, replicas: u32) -> u64 {
    (total_bytes / u64::from(replicas.max(1))) >> 20
}

/// Returns the commands that set the limits of all programs, one per line. A GPU without known memory has no memory limit.
pub fn limits(replicas: u32, devices: &[NvmlDevice]) -> Vec<String> {
    let memory = devices.iter().filter_map(|gpu| {
        let total = gpu.memory_bytes.filter(|total| *total > 0)?;
        let (index, limit) = (gpu.index, memory_limit(total, replicas));
        Some(format!(
            "set_default_device_pinned_mem_limit {index} {limit}M"
        ))
    });
    let threads = format!(
        "set_default_active_thread_percentage {}",
        thread_percentage(replicas)
    );
    memory.chain([threads]).collect()
}

/// A daemon that does not answer within this time is restarted.
const DEADLINE: Duration = Duration::from_secs(20);

/// Sends a command to the daemon. The program has no option for the directory of the socket.
fn ask(command: &str) -> Query {
    Query::new(PROGRAM, [""; 0])
        .env(PIPE_VARIABLE, PIPES)
        .stdin(Secret::new(format!("{command}\n")))
        .deadline(DEADLINE)
}

/// Queries the thread percentage of new servers, like the health check of the device plugin.
pub fn percentage() -> Query {
    ask("get_default_active_thread_percentage")
}

/// Queries the process IDs of the MPS servers. The daemon starts one for the first program of a user.
pub fn servers() -> Query {
    ask("get_server_list")
}

/// Queries the process IDs of the programs that use a server.
pub fn clients(server: u32) -> Query {
    ask(&format!("get_client_list {server}"))
}

/// Parses a list of process IDs, one per line.
pub fn parse_processes(output: &str) -> Vec<u32> {
    (output.lines())
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}

/// Parses the output of [`percentage`], such as `25.0`.
pub fn parse_percentage(output: &str) -> Option<f64> {
    output
        .lines()
        .rev()
        .find_map(|line| line.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::nvml_device;

    #[test]
    fn limits_are_equal_parts_rounded_down() {
        for (replicas, percent, mebibytes) in rows! {
            2, 50, 40_960;
            3, 33, 27_306;
            7, 14, 11_702;
            48, 2, 1_706;
        } {
            assert_eq!(thread_percentage(replicas), percent, "{replicas}");
            assert_eq!(memory_limit(80 << 30, replicas), mebibytes, "{replicas}");
        }
    }

    #[test]
    fn each_gpu_has_its_own_memory_limit() {
        let small = NvmlDevice {
            memory_bytes: Some(24 << 30),
            ..nvml_device(1)
        };
        let unknown = NvmlDevice {
            memory_bytes: None,
            ..nvml_device(2)
        };
        assert_eq!(
            limits(4, &[nvml_device(0), small, unknown]),
            [
                "set_default_device_pinned_mem_limit 0 20480M",
                "set_default_device_pinned_mem_limit 1 6144M",
                "set_default_active_thread_percentage 25",
            ]
        );
    }

    #[test]
    fn older_gpus_have_fewer_clients() {
        for (capability, most) in rows! {
            "6.0", 16;
            "7.0", 16;
            "7.5", 48;
            "9.0", 48;
            "10.0", 48;
        } {
            assert_eq!(most_clients(Some(capability)), most, "{capability}");
        }
    }

    #[test]
    fn output_of_the_daemon_is_parsed() {
        assert_eq!(parse_percentage("25.0\n"), Some(25.0));
        assert_eq!(parse_percentage(""), None);
        let no_daemon = "Cannot find MPS control daemon process\n";
        assert_eq!(parse_percentage(no_daemon), None);
        assert!(parse_processes(no_daemon).is_empty());
        assert_eq!(parse_processes("41\n42\n"), [41, 42]);
    }
}
