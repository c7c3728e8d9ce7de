//! The verbs: everything that this program ever does to a machine. Each can be described, applied
//! and undone; what undoing takes is captured from the machine before the change.
//!
//! The set is closed on purpose: a step cannot invent a way of changing the machine, so no step
//! can forget the dry run or the undo.

mod applier;
mod backup;
mod describe;
mod error;
mod file;
mod image;
mod module;
pub mod packages;
pub mod probe;
#[cfg(test)]
mod tests;
mod tool;
pub mod undo;
mod unit;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use applier::Applier;
pub use error::{ChangeError, ModuleError, PackageError, RepositoryError, STOPPED};
pub use undo::{Afterwards, FileAfter, FileBefore, Reverted, Saved, Undo};

use crate::config::desired::{PackageWish, Repository};

/// One change, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Change {
    /// Write a file atomically.
    WriteFile {
        /// Where.
        #[schemars(with = "String")]
        path: Utf8PathBuf,
        /// The whole content.
        content: String,
        /// Permission bits.
        mode: u32,
    },
    /// Fetch a repository's key, compare its fingerprint, write keyring and source.
    AddRepository {
        /// Which.
        repository: Repository,
    },
    /// Read the package lists anew; at most once per run unless a repository was added since.
    RefreshRepositories,
    /// Install packages; those of all ready steps become one transaction.
    InstallPackages {
        /// What.
        packages: Vec<PackageWish>,
        /// Packages whose removal is part of the plan.
        removing: Vec<String>,
    },
    /// Finish what an interrupted package manager left half done.
    RepairPackages,
    /// Hold every installed package whose name matches.
    HoldPackages {
        /// Shell patterns over names of installed packages.
        patterns: Vec<String>,
    },
    /// Enable a unit, and start it.
    EnableUnit {
        /// Which.
        unit: String,
        /// Start it now.
        start: bool,
    },
    /// Restart a unit so that it reads its configuration.
    RestartUnit {
        /// Which.
        unit: String,
    },
    /// Load a kernel module.
    LoadModule {
        /// Which.
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
    /// Run a tool that writes files which are named here, and nothing else.
    RunTool {
        /// What it is for, as `register the nvidia runtime with docker`.
        purpose: String,
        /// Program and arguments.
        command: Vec<String>,
        /// The files it writes; they are backed up first and restored by undo.
        #[schemars(with = "Vec<String>")]
        writes: Vec<Utf8PathBuf>,
    },
    /// Run a probe. What stays is its record, so that a run on a machine where nothing moved need not
    /// probe again.
    RunProbe {
        /// Which probe.
        probe: Probe,
        /// Where success is recorded, below the state folder.
        #[schemars(with = "String")]
        record: Utf8PathBuf,
        /// What the probe depends on (versions, devices), one `name=value` a line; it is written
        /// to `record` as it is.
        inputs: String,
    },
    /// Reboot: a barrier.
    Reboot {
        /// Why.
        why: String,
    },
}

/// A run that proves function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "probe",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Probe {
    /// A container sees the device nodes and the driver's libraries.
    ContainerSeesGpus {
        /// By which runtime.
        runtime: crate::config::desired::RuntimeKind,
        /// In which image; `None` is our own probe image.
        image: Option<String>,
        /// How many GPUs it must see.
        gpus: usize,
        /// The driver version whose libraries it must see.
        driver: String,
        /// Bound in seconds.
        timeout_seconds: u64,
    },
}

/// What the engine must hold while a change is applied.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Lock {
    /// The package manager.
    Packages,
    /// Kernel modules and initial RAM filesystems.
    Modules,
    /// Container runtimes.
    Containers,
    /// Cluster membership.
    Cluster,
}

/// Hears about a change while it is applied.
pub trait Sink: Send + Sync {
    /// A line that a tool printed.
    fn line(&self, line: &str);
    /// How far it is: done, of how many if that is known, of what (`bytes`, `packages`, …).
    fn progress(&self, current: u64, total: Option<u64>, unit: &str);
    /// An attempt failed and will be repeated.
    fn retry(&self, message: &str, in_seconds: f64);
}
