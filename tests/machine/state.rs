//! The state of the simulated programs outside of the files: mirrors and faults. Everything else is in files, so a file
//! snapshot is a snapshot of the machine.

use std::sync::{Arc, Mutex, MutexGuard};

use camino::Utf8Path;
use gpu_bootstrap::host::{GpuHealth, ReadFiles, fake::FakeFiles};
use serde::Deserialize;
use toml::Table;

use crate::{
    archive::{Archive, Package},
    prebuilt,
};

/// The faults, as written in scenarios.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Faults {
    /// Another package manager is running.
    pub package_lock: Option<PackageLock>,
    /// The proxy that every changing apt command must use.
    pub only_by_proxy: String,
    /// The network error, as reported by programs.
    pub network: Option<String>,
    /// URLs that return 404.
    pub gone: Vec<String>,
    /// The error for package downloads, as reported by apt.
    pub download: Option<String>,
    /// The number of `apt-get update` calls that find an incomplete mirror sync.
    pub half_synced: u32,
    /// Compiling a kernel module fails.
    pub dkms: bool,
    /// Kills the process while dpkg unpacks and configures.
    pub power_cut: bool,
    /// The error message of `modprobe`.
    pub modprobe: Option<String>,
    /// Version prefix of drivers that the kernel rejects.
    pub bad_driver: Option<String>,
    /// The RDMA stack has no peer memory.
    pub no_peer_memory: bool,
    /// A file that another program writes while packages are configured.
    pub beside: Option<String>,
    /// The behavior of NVML: `hung`, `no-devices`, `failed`, `mismatch`.
    pub nvml: Option<String>,
    /// The command of `nvidia-smi` that fails: `create` (instances) or `reset`. `pending`: a reboot does not reset the GPUs.
    pub mig: Option<String>,
    /// The GPUs do not join the NVSwitch fabric.
    pub fabric: bool,
    /// The number of GPUs that the driver fails to initialize.
    pub lost_gpus: usize,
    /// The NVML health data of each GPU. If absent, NVML is not queried.
    pub health: Option<GpuHealth>,
    /// Docker does not start.
    pub docker: bool,
    /// Docker ignores the reload signal.
    pub docker_reload: bool,
    /// Docker and containerd do not start with the nvidia runtime in their configuration.
    pub refuse_nvidia: bool,
    /// The first GPU computes a wrong result.
    pub computes_wrong: bool,
    /// Containers never see a GPU.
    pub container: bool,
    /// Units that fail to start.
    pub units: Vec<String>,
    /// The failure of `kubeadm join`.
    pub join: Option<JoinFault>,
    /// Overrides for the node object in the cluster.
    pub node: Table,
    /// The number of `kubectl` calls that cannot connect to the API server.
    pub api_server: u32,
}

/// The cause and number of `kubeadm join` failures.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct JoinFault {
    /// The last line of output.
    pub said: String,
    pub times: u32,
    /// Leaves files behind, as if the cluster was reachable.
    pub begun: bool,
    /// Same as `begun`, and its parent process is killed.
    pub killed: bool,
}

/// Another package manager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PackageLock {
    pub pid: u32,
    pub program: String,
    /// The time until it exits. Absent if it never exits.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// The shared state.
pub struct State {
    pub archive: Archive,
    pub faults: Faults,
    pub secure_boot: bool,
    /// Modules of the first initramfs.
    pub initrd: Vec<String>,
    /// `rpm -qa` in the format of gpu-bootstrap, if the machine has rpm.
    pub rpm: String,
    pub boots: u32,
    /// The node object of the machine, as returned by the API server.
    pub node: Option<serde_json::Value>,
    /// The pods of the node.
    pub pods: Vec<Pod>,
}

impl State {
    /// Adds the packages that gpu-bootstrap has built to the archive.
    pub fn learn_built(&mut self, files: &FakeFiles) {
        let known = &mut self.archive.packages;
        for package in prebuilt::packages(files) {
            let is_it = |one: &Package| one.name == package.name && one.version == package.version;
            if !known.iter().any(is_it) {
                known.push(package);
            }
        }
    }
}

/// A pod of the node.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The object, as returned by the API server.
    pub object: serde_json::Value,
    /// How often a disruption budget prevents its eviction.
    pub refusals: u32,
    /// The API server rejects its eviction.
    pub is_forbidden: bool,
    /// How often it is still listed after its eviction.
    pub lingers: u32,
}

pub type Shared = Arc<Mutex<State>>;

pub fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The text of a file, or `None` if it does not exist.
pub fn text(files: &FakeFiles, path: &str) -> Option<String> {
    files
        .read_text(Utf8Path::new(path))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The architecture by its kernel name.
pub fn arch(files: &FakeFiles) -> String {
    let arch = text(files, "/proc/sys/kernel/arch").unwrap_or_default();
    arch.trim().to_owned()
}

/// Replaces `x86_64` (or `amd64`) in a text with the architecture of the machine.
pub fn on(arch: &str, text: &str) -> String {
    match arch {
        "aarch64" => (text.replace(
            "compute/cuda/repos/rhel9/x86_64",
            "compute/cuda/repos/rhel9/sbsa",
        ))
        .replace("x86_64", "aarch64")
        .replace("amd64", "arm64"),
        _ => text.to_owned(),
    }
}

pub fn exists(files: &FakeFiles, path: &str) -> bool {
    files
        .exists(Utf8Path::new(path))
        .unwrap_or_else(|error| panic!("{error}"))
}

pub fn list(files: &FakeFiles, directory: &str) -> Vec<String> {
    files
        .list(Utf8Path::new(directory))
        .unwrap_or_else(|error| panic!("{error}"))
}
