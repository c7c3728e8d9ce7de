//! The verbs: everything that this program can do to a machine. Each can be described, applied
//! and undone; what its undo needs is captured from the machine before the change.
//!
//! The set is closed on purpose: a step cannot invent a way to change the machine, so no step
//! can forget the dry run or the undo.
//!
//! To add a verb, where no existing one will do:
//!
//! 1. Here a variant of [`Change`]. Its fields are in journals: they are only added.
//! 2. `cargo check` names each `match` that lacks it: two in `describe.rs`, and `capture` and `apply` of
//!    `applier.rs`. Add it to `preview` there if it has a diff, to `rehearse` if a refusal can be known
//!    before, and to `is_written_by_tools` if programs write for it.
//! 3. The work is a method of [`Applier`] in the file of its family, with its errors: a [`Problem`] is
//!    made where it happens, and what a program says has a row in `tools/faults.toml`.
//! 4. Its undo is a variant of [`Undo`] (`RestoreFiles` is enough for files). A new one goes into
//!    `undo.rs`, with more than two fields as a struct of the family's file, and into `undo`, `refine`,
//!    `reconcile` and `undo_writes_by_tools` of `applier.rs` as it needs them.
//! 5. In `tests/FAMILY.rs` `machine.apply_and_undo(&change)` applies, undoes, and compares the machine
//!    with before. Test an interruption, too: `capture`, then `reconcile` and `revert`.
//! 6. If it needs the lock of the package manager: `needs_package_lock` in `engine/apply.rs`. If a field of
//!    its is free text that may hold a secret: `meaning` in `journal/secrecy.rs`.
//! 7. A new record is a line in a new file of `tests/journals`.

mod agents;
mod applier;
mod backup;
mod describe;
mod docker;
mod edits;
mod file;
mod image;
mod join;
mod kernel_parameters;
mod labels;
mod module;
pub mod packages;
pub mod probe;
mod problem;
mod runtime;
#[cfg(test)]
mod tests;
mod tool;
pub mod undo;
mod unit;
mod verbs;

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

pub use applier::Applier;
pub use edits::Edit;
pub use image::has_image;
pub use join::{Admission, Join, Leave, LeaveCluster, RestoreLabels};
pub use probe::{ProofRecord, Proving};
pub use problem::{CHANGED_SINCE, Class, Problem, STOPPED};
pub use runtime::RuntimeSettings;
pub use undo::{Afterwards, FileAfter, FileBefore, Reverted, RuntimeDaemon, Saved, Undo};
pub use unit::RestoreUnit;
pub use verbs::{NoVerbs, Verbs};

use crate::config::desired::{PackageWish, Repository};

/// One change, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Change {
    /// Write a file atomically.
    WriteFile {
        /// Its path.
        path: Utf8PathBuf,
        /// The whole content.
        content: String,
        /// Permission bits.
        mode: u32,
        /// SHA-256 of the content from which the new one was made. If the file has changed since, it is not written, and the
        /// step is assessed again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over: Option<String>,
    },
    /// Fetch a repository's key, compare its fingerprint, write keyring and source.
    AddRepository {
        /// The repository.
        repository: Repository,
    },
    /// Download the package lists again; at most once per run unless a repository was added since.
    RefreshRepositories,
    /// Enable a stream of a module, so that its packages can be installed.
    EnableStream {
        /// The module.
        module: String,
        /// The stream.
        stream: String,
    },
    /// Install packages; those of all ready steps become one transaction.
    InstallPackages {
        /// The packages.
        packages: Vec<PackageWish>,
        /// Installed packages that the plan replaces: each gets another version, also an older one, if
        /// something wanted needs it, and is removed otherwise. A hold on one of them is this
        /// program's.
        removing: Vec<String>,
        /// The scripts of the packages leave the module that DKMS compiles to a change that follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        later: bool,
    },
    /// Repair packages that an interrupted package manager left half done.
    RepairPackages,
    /// Hold every installed package whose name matches.
    HoldPackages {
        /// Shell patterns over names of installed packages.
        patterns: Vec<String>,
    },
    /// Enable a unit, and start it.
    EnableUnit {
        /// The unit.
        unit: String,
        /// Start it now.
        start: bool,
    },
    /// Restart a unit so that it reads its configuration.
    RestartUnit {
        /// The unit.
        unit: String,
    },
    /// Set keys in the configuration of a container runtime, and make its daemon use them. A daemon
    /// that does not work with them gets its former configuration back.
    ConfigureRuntime {
        /// What is set, and what the daemon has to know afterwards.
        settings: RuntimeSettings,
    },
    /// Load a kernel module.
    LoadModule {
        /// The kernel module.
        module: String,
    },
    /// Rebuild the initial RAM filesystems of these kernels.
    RebuildInitramfs {
        /// Kernel releases.
        kernels: Vec<String>,
    },
    /// Build a DKMS module for one kernel.
    BuildModule {
        /// DKMS module name.
        module: String,
        /// Kernel release.
        kernel: String,
    },
    /// Run a tool that writes the files named here, and nothing else.
    RunTool {
        /// The purpose, for example `register the nvidia runtime with docker`.
        purpose: String,
        /// Program and arguments.
        command: Vec<String>,
        /// The files it writes; they are backed up first and restored by undo.
        writes: Vec<Utf8PathBuf>,
        /// A unit of this program runs the tool again at each boot, so the files have another content
        /// later and are this program's all the same.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repeated: bool,
    },
    /// Pull an image for a proof.
    PullImage {
        /// The container runtime.
        runtime: crate::config::desired::RuntimeKind,
        /// The image, as settings name it.
        image: String,
        /// The time limit of all attempts, in seconds.
        timeout_seconds: u64,
    },
    /// Run a probe. Its record stays, so that a later run probes again only if an input changed, or the
    /// machine has booted since.
    RunProbe {
        /// The probe.
        probe: Probe,
        /// Where success is recorded, below the state folder.
        record: Utf8PathBuf,
        /// What the probe depends on (versions, devices), one `name=value` per line; it is written
        /// to `record` as it is, with the boot and the result behind it.
        inputs: String,
        /// Nothing has changed since the last probe, but the machine has booted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// Set kernel parameters now; a file sets them at each boot.
    SetSysctls {
        /// The values, by name.
        values: BTreeMap<String, String>,
    },
    /// Use swap areas no more, until they are turned on again.
    TurnOffSwap {
        /// Files and devices.
        areas: Vec<String>,
    },
    /// Join a cluster.
    JoinCluster {
        /// Which, how, and with what the node is registered.
        join: Join,
    },
    /// Wait until the node is Ready, give it its labels, and remove the startup taints.
    AdmitNode {
        /// The node, and what is missing.
        admission: Admission,
    },
    /// Reboot: a barrier.
    Reboot {
        /// The reason.
        why: String,
    },
}

/// A run that proves function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "probe",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Probe {
    /// A container sees the device nodes and the driver's libraries.
    ContainerSeesGpus {
        /// The container runtime.
        runtime: crate::config::desired::RuntimeKind,
        /// The image in which the probe runs; `None` is one that is made for it.
        image: Option<String>,
        /// The number of GPUs that the container must see.
        gpus: usize,
        /// The driver version whose libraries the container must see.
        driver: String,
        /// UUIDs of the devices (GPUs or MIG devices) that must compute in the container. Without any the
        /// container only shows what it sees: NVML has told none, or an older version has planned this.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        uuids: Vec<String>,
        /// The time limit in seconds.
        timeout_seconds: u64,
        /// The time limit for pulling the image, in seconds.
        #[serde(default = "crate::config::desired::pull_timeout")]
        pull_timeout_seconds: u64,
    },
    /// Processes on the host compute on all devices that NVML lists.
    HostComputes {
        /// The number of GPUs.
        gpus: usize,
    },
}

impl Change {
    /// Writes a file that all may read.
    #[must_use]
    pub fn write(path: impl Into<Utf8PathBuf>, content: impl Into<String>) -> Self {
        Self::WriteFile {
            path: path.into(),
            content: content.into(),
            mode: 0o644,
            over: None,
        }
    }

    /// Whether this changes nothing about the machine: it only repeats, after a boot, a proof whose
    /// inputs are the same.
    #[must_use]
    pub fn only_repeats_proof(&self) -> bool {
        matches!(self, Self::RunProbe { again: true, .. })
    }
}

/// A lock that the engine holds while it applies a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lock {
    /// The package manager.
    Packages,
    /// Kernel modules and initial RAM filesystems.
    Modules,
    /// Container runtimes.
    Containers,
}

/// Receives the output and the progress of a change while it is applied.
pub trait Sink: Send + Sync {
    /// A line that a tool printed.
    fn line(&self, line: &str);
    /// Progress: the amount done, the total if it is known, and the unit (`bytes`, `packages`, …).
    fn progress(&self, current: u64, total: Option<u64>, unit: &str);
    /// An attempt failed and is repeated after a pause.
    fn retry(&self, message: &str, in_seconds: f64);
    /// What a person must know at the end, although nothing failed.
    fn note(&self, message: &str) {
        self.line(message);
    }
}
