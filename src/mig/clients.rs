//! The programs that use a GPU, from their open files. They prevent a change of its MIG mode or its instances.

use crate::host::{
    FilesError, ReadFiles, System,
    system::{Process, link_of},
};

/// Daemons that do not prevent a change: the driver's tools handle them. Linux truncates process names to 15 characters.
/// Source: NVIDIA/mig-parted, deployments/systemd/hooks.sh, which does not stop them.
const HARMLESS: [&str; 4] = [
    "nvidia-persistenced",
    "nvidia-persiste",
    "nv-fabricmanager",
    "nv-fabricmanage",
];

/// A program that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub pid: u32,
    /// The process name, which every user can choose.
    pub name: String,
    /// The systemd unit, if the process belongs to a service.
    pub unit: Option<String>,
}

impl std::fmt::Display for Client {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} (process {}", self.name, self.pid)?;
        match &self.unit {
            Some(unit) => write!(to, " of `{unit}`)"),
            None => to.write_str(")"),
        }
    }
}

/// Returns the programs that have a device node of these GPUs open, including programs in containers. `minors` are the numbers
/// in `/dev/nvidiaN`.
///
/// # Errors
/// If processes cannot be listed, or if one cannot be inspected for a reason other than its exit or missing permissions.
pub fn clients(
    files: &dyn ReadFiles,
    system: &dyn System,
    minors: &[u32],
) -> Result<Vec<Client>, FilesError> {
    let nodes: Vec<String> = (minors.iter())
        .map(|minor| format!("/dev/nvidia{minor}"))
        .collect();
    let mut found = Vec::new();
    for process in system.processes()? {
        let is_harmless = HARMLESS.iter().any(|name| process.is_called(name));
        if !is_harmless && has_open(files, process.pid, &nodes)? {
            found.push(Client {
                pid: process.pid,
                unit: unit(files, process.pid),
                name: name(&process),
            });
        }
    }
    Ok(found)
}

fn name(process: &Process) -> String {
    (process.name.clone()).unwrap_or_else(|| "an unnamed program".to_owned())
}

fn has_open(files: &dyn ReadFiles, pid: u32, nodes: &[String]) -> Result<bool, FilesError> {
    let directory = format!("/proc/{pid}/fd");
    let numbers = match files.list(directory.as_str().into()) {
        Ok(numbers) => numbers,
        Err(error) if error.is_denied() => return Ok(false),
        // The process has exited.
        Err(_)
            if matches!(
                files.exists(format!("/proc/{pid}").as_str().into()),
                Ok(false)
            ) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    for number in numbers {
        let target = link_of(files, pid, &format!("{directory}/{number}"))?;
        if target.is_some_and(|target| nodes.iter().any(|node| target == node.as_str())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the service in a line such as `0::/system.slice/nvidia-dcgm.service` of `/proc/PID/cgroup`, cgroups(7).
fn unit(files: &dyn ReadFiles, pid: u32) -> Option<String> {
    let path = format!("/proc/{pid}/cgroup");
    let text = files.read_lossy(path.as_str().into()).ok().flatten()?;
    let mut services = text.lines().filter_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let mut parts = path.split('/');
        (parts.next_back())
            .filter(|name| name.ends_with(".service"))
            .map(str::to_owned)
    });
    services.next_back()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::{fake::FakeFiles, system::ProcFiles};

    fn run(files: &FakeFiles, pid: u32, name: &str, open: &str) {
        files.put(&format!("/proc/{pid}/comm"), format!("{name}\n"));
        files.put(
            &format!("/proc/{pid}/cmdline"),
            format!("/usr/bin/{name}\0"),
        );
        files.put_link(&format!("/proc/{pid}/fd/7"), open);
    }

    #[test]
    fn programs_with_open_device_nodes_are_found() {
        let files = FakeFiles::new();
        run(&files, 10, "nv-hostengine", "/dev/nvidia0");
        files.put("/proc/10/cgroup", "0::/system.slice/nvidia-dcgm.service\n");
        run(&files, 11, "python3", "/dev/nvidia1");
        files.put("/proc/11/cgroup", "0::/kubepods.slice/cri-abc.scope\n");
        run(&files, 12, "nvidia-persiste", "/dev/nvidia0");
        run(&files, 13, "cat", "/dev/nvidiactl");
        run(&files, 14, "other", "/dev/nvidia10");
        // It has exited, except for its entry in the list.
        files.put("/proc/15/comm", "gone\n");
        let system = ProcFiles(Arc::new(files.clone()));
        let names = |minors: &[u32]| -> Vec<String> {
            let found = clients(&files, &system, minors).unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            names(&[0, 1]),
            [
                "nv-hostengine (process 10 of `nvidia-dcgm.service`)",
                "python3 (process 11)"
            ]
        );
        assert_eq!(names(&[1]), ["python3 (process 11)"]);
        assert!(names(&[]).is_empty());
    }
}
