//! The state that the simulated programs share beside the files: the mirrors and the faults.
//! Everything else is in the machine's files, so a snapshot of the files is a snapshot of the
//! machine.

use std::sync::{Arc, Mutex, MutexGuard};

use camino::Utf8Path;
use gpu_bootstrap::host::{GpuHealth, ReadFiles, fake::FakeFiles};
use serde::Deserialize;
use toml::Table;

use crate::archive::Archive;

/// The faults, in the words of scenarios.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Faults {
    /// Another package manager runs.
    pub package_lock: Option<PackageLock>,
    /// Every changing call of apt must use this proxy.
    pub only_by_proxy: String,
    /// Why the network does not answer, in the words of the programs that use it.
    pub network: Option<String>,
    /// Addresses that return 404.
    pub gone: Vec<String>,
    /// Why the archives in the lists cannot be downloaded, in apt's words.
    pub download: Option<String>,
    /// How many times `apt-get update` finds a mirror whose sync is not complete.
    pub half_synced: u32,
    /// Compiling a kernel module fails.
    pub dkms: bool,
    /// The process is killed while dpkg unpacks and configures.
    pub power_cut: bool,
    /// `modprobe` fails with these words.
    pub modprobe: Option<String>,
    /// The beginning of the versions of the driver that the kernel refuses.
    pub bad_driver: Option<String>,
    /// A file that another program writes while packages are configured.
    pub beside: Option<String>,
    /// The behaviour of NVML: `hung`, `no-devices`, `failed`, `mismatch`.
    pub nvml: Option<String>,
    /// The GPUs do not join the fabric of their switches.
    pub fabric: bool,
    /// The number of GPUs that the driver does not initialise.
    pub lost_gpus: usize,
    /// What NVML tells of each GPU's health; it is not asked without it.
    pub health: Option<GpuHealth>,
    /// Docker does not start.
    pub docker: bool,
    /// Docker ignores the signal to read its configuration again.
    pub docker_reload: bool,
    /// Docker and containerd do not start with the nvidia runtime in their configuration.
    pub refuse_nvidia: bool,
    /// The first GPU computes another result than the CPU.
    pub computes_wrong: bool,
    /// A container sees no GPU, whatever is configured.
    pub container: bool,
    /// Units that do not start.
    pub units: Vec<String>,
    /// Why `kubeadm join` fails.
    pub join: Option<JoinFault>,
    /// What the cluster says of the machine's node, over what it would say.
    pub node: Table,
}

/// Why and how often `kubeadm join` fails.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct JoinFault {
    /// Its last words.
    pub said: String,
    pub times: u32,
    /// It leaves files behind, as after the cluster was found.
    pub begun: bool,
    /// So, and the process that has started it is killed.
    pub killed: bool,
}

/// Another package manager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PackageLock {
    pub pid: u32,
    pub program: String,
    /// The time after which it ends; never if absent.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// The shared state.
pub struct State {
    pub archive: Archive,
    pub faults: Faults,
    pub secure_boot: bool,
    /// Modules of the first initial RAM filesystem.
    pub initrd: Vec<String>,
    /// `rpm -qa` in the product's own format, if the machine has rpm.
    pub rpm: String,
    pub boots: u32,
    /// The machine's node in its cluster, as the API server prints it.
    pub node: Option<serde_json::Value>,
}

pub type Shared = Arc<Mutex<State>>;

pub fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The text of a file; `None` if it is not there.
pub fn text(files: &FakeFiles, path: &str) -> Option<String> {
    files
        .read_text(Utf8Path::new(path))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The architecture by the kernel's name for it.
pub fn arch(files: &FakeFiles) -> String {
    let arch = text(files, "/proc/sys/kernel/arch").unwrap_or_default();
    arch.trim().to_owned()
}

/// A text about `x86_64` (or `amd64`) as it is on a machine of this architecture.
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

pub fn list(files: &FakeFiles, folder: &str) -> Vec<String> {
    files
        .list(Utf8Path::new(folder))
        .unwrap_or_else(|error| panic!("{error}"))
}
