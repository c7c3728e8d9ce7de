//! CUDA MPS: the control daemon that this process finds, and the limits that it was given.
//!
//! Source: NVIDIA, "Multi-Process Service", "Tools and Interface Reference" (the variable, its default, the file with the process ID
//! and the commands). The real library and the daemon communicate through pipes, whose protocol is not published. The fake daemon of
//! the case `mps` stores the commands that it receives in the file `commands`, which this library reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// The environment variable with the directory of the daemon.
const VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Its default.
const DEFAULT: &str = "/tmp/nvidia-mps";

/// The limits of each program that uses MPS.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The part of the multiprocessors, in percent.
    pub threads: Option<u32>,
    /// The memory of a GPU in MiB, by the index of the GPU.
    pub memory: BTreeMap<usize, u64>,
}

impl Limits {
    /// The limits of the daemon in the directory of this process. `None` without a running daemon: the process then uses the GPUs
    /// without MPS.
    pub fn find() -> Option<Self> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let path = named.unwrap_or_else(|| OsString::from(DEFAULT));
        let directory = Path::new(&path);
        let pid = fs::read_to_string(directory.join("nvidia-cuda-mps-control.pid")).ok()?;
        let runs = Path::new("/proc").join(pid.trim()).exists();
        let commands = fs::read_to_string(directory.join("commands")).ok()?;
        runs.then(|| Self::parse(&commands))
    }

    /// The last command of each kind is effective.
    fn parse(commands: &str) -> Self {
        let mut limits = Self::default();
        for line in commands.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["set_default_active_thread_percentage", percent] => {
                    limits.threads = percent.parse().ok();
                }
                ["set_default_device_pinned_mem_limit", gpu, limit] => {
                    let limit = limit
                        .strip_suffix('M')
                        .and_then(|number| number.parse().ok());
                    if let (Ok(gpu), Some(limit)) = (gpu.parse(), limit) {
                        limits.memory.insert(gpu, limit);
                    }
                }
                _ => {}
            }
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::Limits;

    #[test]
    fn last_command_is_effective() {
        let limits = Limits::parse(
            "set_default_device_pinned_mem_limit 0 20480M\nset_default_device_pinned_mem_limit 1 6144M\n\
             set_default_active_thread_percentage 25\nset_default_active_thread_percentage 50\n",
        );
        assert_eq!(limits.threads, Some(50));
        assert_eq!(limits.memory, [(0, 20_480), (1, 6144)].into());
        assert_eq!(Limits::parse("quit\n"), Limits::default());
    }
}
