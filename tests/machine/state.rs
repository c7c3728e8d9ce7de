//! What the simulated programs share beside the files: the mirrors and what is broken. All else
//! of the machine's state is in its files, so that a snapshot of the files is a snapshot of all.

use std::sync::{Arc, Mutex, MutexGuard};

use camino::Utf8Path;
use gpu_bootstrap::host::{ReadFiles, fake::FakeFiles};
use serde::Deserialize;

use crate::archive::Archive;

/// What is broken, as scenarios say it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Faults {
    /// Another package manager runs.
    pub package_lock: Option<PackageLock>,
    /// Every call of apt that changes something is made with this proxy.
    pub only_by_proxy: String,
    /// Why nothing answers on the network, in the words of the programs that try.
    pub network: Option<String>,
    /// Addresses that answer 404.
    pub gone: Vec<String>,
    /// The archives in the lists cannot be downloaded, in apt's words.
    pub download: Option<String>,
    /// How many times `apt-get update` meets a mirror in the middle of its sync.
    pub half_synced: u32,
    /// Compiling a kernel module fails.
    pub dkms: bool,
    /// The process is killed while dpkg unpacks and configures.
    pub power_cut: bool,
    /// `modprobe` fails with these words.
    pub modprobe: Option<String>,
    /// What NVML does: `hung`, `no-devices`, `failed`, `mismatch`.
    pub nvml: Option<String>,
    /// How many GPUs the driver does not bring up.
    pub lost_gpus: usize,
    /// Docker does not start.
    pub docker: bool,
    /// A container sees nothing, whatever is configured.
    pub container: bool,
    /// Units that do not start.
    pub units: Vec<String>,
}

/// Another package manager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PackageLock {
    pub pid: u32,
    pub program: String,
    /// It ends after so long; never, if absent.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// What the programs share.
pub struct State {
    pub archive: Archive,
    pub faults: Faults,
    pub secure_boot: bool,
    /// Modules of the first initial RAM filesystem.
    pub initrd: Vec<String>,
    /// `rpm -qa` in the product's own format, where the machine has rpm.
    pub rpm: String,
    pub boots: u32,
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
