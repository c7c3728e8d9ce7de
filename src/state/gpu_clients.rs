//! The processes that use a GPU: those that have an NVIDIA device node open, on the host and in containers. The use count of the
//! module also counts dependent modules, and an existing device node does not mean that it is used.

use std::fmt;

use camino::Utf8Path;

use crate::host::{FilesError, Host, system::link_of};

/// The prefix of the NVIDIA device nodes.
const DEVICES: &str = "/dev/nvidia";

/// Programs that only manage or monitor GPUs: NVIDIA's daemons, and NVIDIA/k8s-device-plugin, `cmd`. They do not lose work if they
/// are stopped, and their units or DaemonSets start them again.
const MANAGEMENT: [&str; 10] = [
    "dcgm-exporter",
    "gpu-bootstrap",
    "gpu-feature-discovery",
    "nv-fabricmanager",
    "nv-hostengine",
    "nvidia-device-plugin",
    "nvidia-imex",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvlsm",
];

/// Part of the cgroup of a process in a Kubernetes pod, with each cgroup driver. Source: kubernetes/kubernetes,
/// `pkg/kubelet/cm/cgroup_manager_linux.go`.
const OF_PODS: &str = "kubepods";

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuClient {
    pub pid: u32,
    /// The process name.
    pub name: String,
    /// It runs in a Kubernetes pod.
    pub is_in_pod: bool,
    /// It only manages or monitors GPUs.
    pub is_management: bool,
}

impl fmt::Display for GpuClient {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} (PID {})", self.name, self.pid)
    }
}

/// Returns the processes that use a GPU, sorted by PID.
///
/// # Errors
/// If a running process cannot be inspected.
pub fn gpu_clients(host: &Host) -> Result<Vec<GpuClient>, FilesError> {
    let mut found = Vec::new();
    for process in host.system.processes()? {
        let pid = process.pid;
        if !uses_gpu(host, pid)? {
            continue;
        }
        let exe = link_of(&*host.files, pid, &format!("/proc/{pid}/exe"))?;
        let program = exe.as_deref().and_then(Utf8Path::file_name);
        let cgroup = format!("/proc/{pid}/cgroup");
        let cgroup = match host.files.read_lossy(Utf8Path::new(&cgroup)) {
            Err(_) if has_exited(host, pid) => continue,
            read => read?,
        };
        found.push(GpuClient {
            pid,
            is_in_pod: cgroup.is_some_and(|text| text.contains(OF_PODS)),
            is_management: program.is_some_and(|program| MANAGEMENT.contains(&program)),
            name: process.name.unwrap_or_else(|| "unknown".to_owned()),
        });
    }
    found.sort_by_key(|client| client.pid);
    Ok(found)
}

/// Whether a process has an NVIDIA device node open. `false` if it has exited.
fn uses_gpu(host: &Host, pid: u32) -> Result<bool, FilesError> {
    let directory = format!("/proc/{pid}/fd");
    let numbers = match host.files.list(Utf8Path::new(&directory)) {
        Err(_) if has_exited(host, pid) => return Ok(false),
        listed => listed?,
    };
    for number in numbers {
        // A file may be closed in the meantime, then it has no link.
        let target = link_of(&*host.files, pid, &format!("{directory}/{number}"))?;
        if target.is_some_and(|target| target.as_str().starts_with(DEVICES)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_exited(host: &Host, pid: u32) -> bool {
    let directory = format!("/proc/{pid}");
    matches!(host.files.exists(Utf8Path::new(&directory)), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    #[test]
    fn processes_with_an_open_device_node_are_found() {
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        let process = |pid: u32, name: &str, exe: &str, cgroup: &str, opened: &[&str]| {
            files.put(&format!("/proc/{pid}/comm"), format!("{name}\n"));
            files.put(&format!("/proc/{pid}/cgroup"), format!("0::{cgroup}\n"));
            files.put_link(&format!("/proc/{pid}/exe"), exe);
            for (number, target) in opened.iter().enumerate() {
                files.put_link(&format!("/proc/{pid}/fd/{number}"), target);
            }
        };
        let idle = ["/dev/null", "socket:[1]", "/home/a/dev/nvidia0"];
        process(10, "bash", "/usr/bin/bash", "/user.slice", &idle);
        process(
            20,
            "python3",
            "/usr/bin/python3.11",
            "/user.slice",
            &["/dev/null", "/dev/nvidia0"],
        );
        process(
            30,
            "nvidia-persiste",
            "/usr/bin/nvidia-persistenced",
            "/system.slice",
            &["/dev/nvidiactl"],
        );
        process(
            40,
            "app",
            "/usr/bin/app",
            "/kubepods.slice/kubepods-pod1.slice",
            &["/dev/nvidia-uvm"],
        );
        let found = gpu_clients(&host).expect("readable");
        let rows: Vec<(String, bool, bool)> = (found.iter())
            .map(|one| (one.to_string(), one.is_in_pod, one.is_management))
            .collect();
        assert_eq!(
            rows,
            [
                ("python3 (PID 20)".to_owned(), false, false),
                ("nvidia-persiste (PID 30)".to_owned(), false, true),
                ("app (PID 40)".to_owned(), true, false),
            ]
        );
    }
}
