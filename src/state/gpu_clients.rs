//! The processes that use a GPU: those that have an NVIDIA device node open, on the host and in containers. The use count of the
//! module also counts dependent modules, and an existing device node does not mean that it is used.

use std::fmt;

use camino::Utf8Path;

use crate::host::{
    FilesError, Host,
    system::{DELETED, has_exited, link_of, program_of},
};

/// The prefix of the NVIDIA device nodes.
const DEVICES: &str = "/dev/nvidia";

/// Programs that do not work on the GPUs. The file name of the executable decides, because every user can choose the name and the
/// arguments of a process. Sources: NVIDIA's daemons; NVIDIA/k8s-device-plugin, `cmd`; NVIDIA/mig-parted,
/// deployments/systemd/hooks.sh, which does not stop the daemons of the driver.
const PROGRAMS: [(&str, ClientKind); 12] = [
    ("dcgm-exporter", ClientKind::Management),
    ("gpu-bootstrap", ClientKind::Management),
    ("gpu-feature-discovery", ClientKind::Management),
    ("nv-fabricmanager", ClientKind::DriverDaemon),
    ("nv-hostengine", ClientKind::Management),
    ("nvidia-cuda-mps-control", ClientKind::Management),
    ("nvidia-cuda-mps-server", ClientKind::Management),
    ("nvidia-device-plugin", ClientKind::Management),
    ("nvidia-imex", ClientKind::Management),
    ("nvidia-persistenced", ClientKind::DriverDaemon),
    ("nvidia-smi", ClientKind::Management),
    ("nvlsm", ClientKind::Management),
];

/// Part of the cgroup of a process in a Kubernetes pod, with each cgroup driver. Source: kubernetes/kubernetes,
/// `pkg/kubelet/cm/cgroup_manager_linux.go`.
const OF_PODS: &str = "kubepods";

/// What a client does, which decides what it prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// It may lose work if it is stopped. It prevents an upgrade and a change of the MIG layout.
    Work,
    /// It only manages or monitors GPUs, does not lose work if it is stopped, and its unit or DaemonSet starts it again. It
    /// prevents a change of the MIG layout, which fails for a GPU in use.
    Management,
    /// A daemon that the driver's tools handle. It prevents neither.
    DriverDaemon,
}

/// The GPUs whose clients are listed.
#[derive(Debug, Clone, Copy)]
pub enum ClientsOf<'a> {
    /// All GPUs, including clients that have only a device node of the driver open, such as `/dev/nvidiactl`.
    AllGpus,
    /// The GPUs with these numbers in `/dev/nvidiaN`.
    Gpus(&'a [u32]),
}

impl ClientsOf<'_> {
    /// Whether an open file is one of the device nodes.
    fn includes(self, target: &str) -> bool {
        let target = target.strip_suffix(DELETED).unwrap_or(target);
        let Some(rest) = target.strip_prefix(DEVICES) else {
            return false;
        };
        match self {
            Self::AllGpus => true,
            Self::Gpus(minors) => rest.parse().is_ok_and(|minor| minors.contains(&minor)),
        }
    }
}

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuClient {
    pub pid: u32,
    /// The process name, which every user can choose.
    pub name: String,
    /// The systemd unit, if the process belongs to a service.
    pub unit: Option<String>,
    /// It runs in a Kubernetes pod.
    pub is_in_pod: bool,
    pub kind: ClientKind,
}

impl fmt::Display for GpuClient {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} (process {}", self.name, self.pid)?;
        match &self.unit {
            Some(unit) => write!(to, " of `{unit}`)"),
            None => to.write_str(")"),
        }
    }
}

/// Returns the list for messages, such as `in use by python3 (process 4242)`.
pub fn in_use_by(clients: &[GpuClient]) -> String {
    let names: Vec<String> = clients.iter().map(ToString::to_string).collect();
    format!("in use by {}", names.join(", "))
}

/// Returns the processes that use these GPUs, sorted by PID.
///
/// # Errors
/// If processes cannot be listed, or if a running process cannot be inspected, for example without root permissions.
pub fn gpu_clients(host: &Host, of: ClientsOf<'_>) -> Result<Vec<GpuClient>, FilesError> {
    let mut found = Vec::new();
    for process in host.system.processes()? {
        let pid = process.pid;
        if !uses_gpu(host, pid, of)? {
            continue;
        }
        let program = program_of(&*host.files, pid)?;
        let cgroup = format!("/proc/{pid}/cgroup");
        let cgroup = match host.files.read_lossy(Utf8Path::new(&cgroup)) {
            Err(_) if has_exited(&*host.files, pid) => continue,
            read => read?.unwrap_or_default(),
        };
        let kind = (PROGRAMS.iter()).find(|(name, _)| program.as_deref() == Some(*name));
        found.push(GpuClient {
            pid,
            name: process
                .name
                .unwrap_or_else(|| "an unnamed program".to_owned()),
            unit: unit(&cgroup),
            is_in_pod: cgroup.contains(OF_PODS),
            kind: kind.map_or(ClientKind::Work, |(_, kind)| *kind),
        });
    }
    found.sort_by_key(|client| client.pid);
    Ok(found)
}

/// Whether a process has a device node of these GPUs open. `false` if it has exited.
fn uses_gpu(host: &Host, pid: u32, of: ClientsOf<'_>) -> Result<bool, FilesError> {
    let directory = format!("/proc/{pid}/fd");
    let numbers = match host.files.list(Utf8Path::new(&directory)) {
        Err(_) if has_exited(&*host.files, pid) => return Ok(false),
        listed => listed?,
    };
    for number in numbers {
        // A file may be closed in the meantime, then it has no link.
        let target = link_of(&*host.files, pid, &format!("{directory}/{number}"))?;
        if target.is_some_and(|target| of.includes(target.as_str())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the service in a line such as `0::/system.slice/nvidia-dcgm.service` of `/proc/PID/cgroup`, cgroups(7).
fn unit(cgroup: &str) -> Option<String> {
    let mut services = cgroup.lines().filter_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let name = path.split('/').next_back()?;
        name.ends_with(".service").then(|| name.to_owned())
    });
    services.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    /// Adds a process whose executable has this path.
    fn run(fakes: &fake::Fakes, pid: u32, exe: &str, cgroup: &str, opened: &[&str]) {
        let files = &fakes.files;
        let name = exe.split(' ').next().and_then(|exe| exe.rsplit('/').next());
        let name: String = name.unwrap_or_default().chars().take(15).collect();
        files.put(&format!("/proc/{pid}/comm"), format!("{name}\n"));
        files.put(&format!("/proc/{pid}/cgroup"), format!("0::{cgroup}\n"));
        files.put_link(&format!("/proc/{pid}/exe"), exe);
        for (number, target) in opened.iter().enumerate() {
            files.put_link(&format!("/proc/{pid}/fd/{number}"), target);
        }
    }

    #[test]
    fn processes_with_an_open_device_node_are_found() {
        use ClientKind::{DriverDaemon, Management, Work};
        let (host, fakes) = fake::host();
        let (user, system) = ("/user.slice", "/system.slice/nvidia-dcgm.service");
        let pod = "/kubepods.slice/kubepods-pod1.slice/cri-abc.scope";
        for (pid, exe, cgroup, opened) in rows! {
            10, "/usr/bin/bash", user, &["/dev/null", "socket:[1]", "/home/a/dev/nvidia0"][..];
            20, "/usr/bin/python3", user, &["/dev/null", "/dev/nvidia0"][..];
            30, "/usr/bin/nvidia-persistenced (deleted)", "/system.slice", &["/dev/nvidia0"][..];
            40, "/usr/bin/app", pod, &["/dev/nvidia1 (deleted)"][..];
            50, "/usr/bin/nv-hostengine", system, &["/dev/nvidia0"][..];
            60, "/usr/bin/other", user, &["/dev/nvidia10"][..];
            70, "/usr/bin/cat", user, &["/dev/nvidiactl"][..];
        } {
            run(&fakes, pid, exe, cgroup, opened);
        }
        // Its name is the name of a daemon, but its executable is another program.
        fakes.files.put("/proc/60/comm", "nvidia-persiste\n");
        // It has exited, except for its entry in the list.
        fakes.files.put("/proc/80/comm", "gone\n");
        let found = gpu_clients(&host, ClientsOf::AllGpus).expect("readable");
        let rows: Vec<(String, bool, ClientKind)> = (found.iter())
            .map(|one| (one.to_string(), one.is_in_pod, one.kind))
            .collect();
        let expected = [
            ("python3 (process 20)", false, Work),
            ("nvidia-persiste (process 30)", false, DriverDaemon),
            ("app (process 40)", true, Work),
            (
                "nv-hostengine (process 50 of `nvidia-dcgm.service`)",
                false,
                Management,
            ),
            ("nvidia-persiste (process 60)", false, Work),
            ("cat (process 70)", false, Work),
        ];
        assert_eq!(
            rows,
            expected.map(|(text, pod, kind)| (text.to_owned(), pod, kind))
        );
        let pids = |minors: &[u32]| -> Vec<u32> {
            let found = gpu_clients(&host, ClientsOf::Gpus(minors)).expect("readable");
            found.iter().map(|client| client.pid).collect()
        };
        assert_eq!(pids(&[0, 1]), [20, 30, 40, 50]);
        assert_eq!(pids(&[1]), [40]);
        assert!(pids(&[]).is_empty());
        assert_eq!(
            in_use_by(&found[..2]),
            "in use by python3 (process 20), nvidia-persiste (process 30)"
        );
    }
}
