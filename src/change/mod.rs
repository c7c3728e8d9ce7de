//! The change kinds: every way in which gpu-bootstrap can change a machine. Each change can be described, applied and reverted.
//! The data for its undo is captured before the change.
//!
//! The set is closed on purpose. A step cannot define new ways to change the machine, so no step can omit the dry run or the
//! undo.
//!
//! To add a change kind, if no existing one is sufficient:
//!
//! 1. Add a variant of [`Change`] here. Its name and fields are stored in journals, so existing ones must not change.
//! 2. `cargo check` reports each incomplete `match`: one in `describe.rs`, and `capture` and `apply` in `applier.rs`. Also
//!    extend `preview` there if the change has a diff, `dry_run` if an error can be detected in advance, and
//!    `is_written_by_tools` if it runs programs that write files.
//! 3. Implement the work as a method of [`Applier`] in the file of its family. A [`ChangeError`] is created where the error
//!    occurs. Add patterns for the error output of external programs to `tools/faults.toml`.
//! 4. Its undo is a variant of [`Undo`] (`RestoreFiles` is sufficient for files). Add a new variant to `undo.rs`. If it
//!    has more than two fields, put them into a struct in the family's file. Extend `undo`, `refine`, `reconcile` and
//!    `undo_writes_by_tools` in `applier.rs` as needed.
//! 5. Test it in `tests/FAMILY.rs`: `machine.apply_and_undo(&change)` applies and reverts it, and compares the machine with its
//!    previous state. Also test an interruption: `capture`, then `reconcile` and `revert`.
//! 6. If it needs the package manager lock, extend `needs_package_lock` in `engine/apply.rs`. If a field is free text that may
//!    contain a secret, extend `meaning` in `journal/secrecy.rs`.
//! 7. Add a new file to `tests/journals`: a journal with a record of the change.

mod agents;
mod applier;
mod apply_changes;
mod backup;
mod describe;
mod edits;
mod file;
mod image;
mod join;
mod kernel_parameters;
mod labels;
pub mod maintenance;
mod mig;
mod module;
pub mod packages;
pub mod probe;
mod reload;
mod runtime;
#[cfg(test)]
mod tests;
mod tool;
pub mod undo;
mod unit;

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

pub use crate::joins::{Join, Leave};
pub use crate::work::{CHANGED_SINCE, ChangeError, Class, Reverted, STOPPED, Sink};
pub use applier::Applier;
pub use apply_changes::{ApplyChanges, NoChanges};
pub use edits::Edit;
pub use image::{has_image, image_names};
pub use join::{Admission, LeaveCluster, RestoreLabels};
pub use maintenance::{ClusterNode, LeaveMethod, LeaveService, LockUse, ReturnToService};
pub use mig::{Partition, Partitioned, RestoreMig, partition};
pub use probe::{ProbeCaller, ValidationRecord};
pub use runtime::RuntimeSettings;
pub use undo::{FileAfter, FileBefore, FollowUp, RuntimeDaemon, Saved, Undo};
pub use unit::RestoreUnit;

use crate::{
    config::desired::{PackageSpec, Repository},
    modules::package::PackageBuild,
    runtimes::archive::ImageArchive,
};

/// Defines [`Change`] from its variants, each with its name in journals and reports.
macro_rules! kinds {
    ($( $(#[$on:meta])* $kind:literal => $variant:ident $({ $($fields:tt)* })?, )*) => {
        /// One change, as data.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all_fields = "kebab-case")]
        pub enum Change {
            $( $(#[$on])* #[serde(rename = $kind)] $variant $({ $($fields)* })?, )*
        }

        impl Change {
            /// The serialized name of the change kind, for example `write-file`.
            pub fn kind(&self) -> &'static str {
                match self {
                    $( Self::$variant { .. } => $kind, )*
                }
            }
        }
    };
}

kinds! {
    /// Write a file atomically.
    "write-file" => WriteFile {
        path: Utf8PathBuf,
        /// The complete content.
        content: String,
        /// Permission bits.
        mode: u32,
        /// SHA-256 of the content from which the new content was made. If the file was modified since, it is not written and
        /// the step is assessed again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over: Option<String>,
    },
    /// Download the key of a repository, verify its fingerprint, and write the keyring and the source.
    "add-repository" => AddRepository { repository: Repository },
    /// Download the package lists, at most once per run unless a repository was added.
    "refresh-repositories" => RefreshRepositories,
    /// Enable a module stream, so that its packages can be installed.
    "enable-stream" => EnableStream { module: String, stream: String },
    /// Install packages. The packages of all ready steps are installed in one transaction.
    "install-packages" => InstallPackages {
        packages: Vec<PackageSpec>,
        /// Installed packages that the plan replaces or removes. Those that `packages` depend on get another version,
        /// possibly an older one. The others are removed. Our holds on these packages do not prevent this, but any other hold
        /// does.
        removing: Vec<String>,
        /// Defer the DKMS build of the package scripts to a later change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        later: bool,
    },
    /// Repair packages that an interrupted package manager left unconfigured.
    "repair-packages" => RepairPackages,
    /// Run the package triggers that transactions have deferred.
    "run-triggers" => RunTriggers,
    /// Hold all installed packages with a matching name.
    "hold-packages" => HoldPackages {
        /// Shell patterns for the names of installed packages.
        patterns: Vec<String>,
    },
    /// Enable a unit, and start it if `start` is set.
    "enable-unit" => EnableUnit { unit: String, start: bool },
    /// Stop a unit and mask it, so that nothing can start it.
    "mask-unit" => MaskUnit { unit: String },
    /// Restart a unit so that it reads its configuration.
    "restart-unit" => RestartUnit { unit: String },
    /// Set keys in the configuration of a container runtime, and make its daemon use them. If the daemon fails with them, its
    /// previous configuration is restored.
    "configure-runtime" => ConfigureRuntime {
        /// The keys, and the configuration that the daemon must have afterwards.
        settings: RuntimeSettings,
    },
    /// Load a kernel module.
    "load-module" => LoadModule { module: String },
    /// Set the MIG mode and the instances of GPUs.
    "partition-gpus" => PartitionGpus {
        /// The layouts of the GPUs.
        partition: Partition,
    },
    /// Rebuild the initramfs of these kernels.
    "rebuild-initramfs" => RebuildInitramfs {
        /// Kernel releases.
        kernels: Vec<String>,
    },
    /// Build a DKMS module for one kernel.
    "build-module" => BuildModule {
        /// DKMS module name.
        module: String,
        /// Kernel release.
        kernel: String,
    },
    /// Build a package with prebuilt modules. The installation of the driver also installs it.
    "build-package" => BuildPackage {
        /// The modules and their sources.
        build: PackageBuild,
    },
    /// Run a tool that writes only these files.
    "run-tool" => RunTool {
        /// The purpose, for example `register the nvidia runtime with docker`.
        purpose: String,
        /// Program and arguments.
        command: Vec<String>,
        /// The files that the tool writes. They are backed up first and restored by the undo.
        writes: Vec<Utf8PathBuf>,
        /// A unit of gpu-bootstrap runs the tool again at each boot. The content of the files changes, but they remain ours.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repeated: bool,
    },
    /// Pull an image for a validation, or load it from the bundle of the run.
    "pull-image" => PullImage {
        runtime: crate::config::desired::RuntimeKind,
        /// The image name from the settings.
        image: String,
        /// The time limit of all attempts, in seconds.
        timeout_seconds: u64,
        /// The archive in the bundle. `None` if the image is pulled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archive: Option<ImageArchive>,
    },
    /// Run a probe. A success is recorded, so that a later run probes again only if an input has changed or the machine was
    /// rebooted.
    "run-probe" => RunProbe {
        probe: Probe,
        /// The file for the result, in the state directory.
        record: Utf8PathBuf,
        /// The inputs of the probe (versions, devices), one `name=value` per line. They are copied to `record`, followed by the
        /// boot and the result.
        inputs: String,
        /// Only the boot has changed since the last probe.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// Set kernel parameters now. A file sets them at each boot.
    "set-sysctls" => SetSysctls {
        /// The values by name.
        values: BTreeMap<String, String>,
    },
    /// Turn off active swap areas. `/etc/fstab` is changed separately.
    "turn-off-swap" => TurnOffSwap {
        /// Files and devices.
        areas: Vec<String>,
    },
    /// Join a cluster.
    "join-cluster" => JoinCluster {
        /// The cluster, the join method and the registration of the node.
        join: Join,
    },
    /// Wait until the node is Ready, set its labels, and remove the startup taints.
    "admit-node" => AdmitNode {
        /// The node and the missing settings.
        admission: Admission,
    },
    /// Take the node out of service: acquire the fleet lock, cordon the node, evict its pods, and check that the GPUs are unused.
    "leave-service" => LeaveService {
        /// The method, the limits and the consents.
        leave: LeaveService,
    },
    /// Mark the node: its upgrade has failed, so it stays out of service.
    "mark-failed-upgrade" => MarkFailedUpgrade {
        node: ClusterNode,
        /// The reason.
        why: String,
    },
    /// Reboot the machine after all other changes have finished.
    "reboot" => Reboot {
        /// The reason.
        why: String,
    },
}

/// A validation run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "probe",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Probe {
    /// A container can access the device nodes and the driver libraries.
    ContainerSeesGpus {
        runtime: crate::config::desired::RuntimeKind,
        /// The image in which the probe runs. `None` for a minimal image that is built for it.
        image: Option<String>,
        /// The number of GPUs that must be visible in the container.
        gpus: usize,
        /// The driver version of the libraries that must be visible in the container.
        driver: String,
        /// UUIDs of the devices (GPUs or MIG devices) that must compute in the container. If it is empty, the container only
        /// reports the visible devices, because NVML returned no UUIDs or an older version planned the change.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        uuids: Vec<String>,
        /// The time limit in seconds.
        timeout_seconds: u64,
        /// The time limit for pulling the image, in seconds.
        #[serde(default = "crate::config::desired::pull_timeout")]
        pull_timeout_seconds: u64,
        /// The archive in the bundle with the image. `None` if a missing image is pulled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archive: Option<ImageArchive>,
    },
    /// Processes on the host compute on all devices in NVML.
    HostComputes { gpus: usize },
}

impl Change {
    /// Creates a change that writes a world-readable file.
    pub fn write(path: impl Into<Utf8PathBuf>, content: impl Into<String>) -> Self {
        Self::WriteFile {
            path: path.into(),
            content: content.into(),
            mode: 0o644,
            over: None,
        }
    }

    /// Returns `true` if the change only repeats a validation after a boot, with the same inputs. This does not change the
    /// machine.
    pub fn only_repeats_validation(&self) -> bool {
        matches!(self, Self::RunProbe { again: true, .. })
    }
}

/// A lock that the engine holds while it applies a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lock {
    Packages,
    /// Kernel modules and initramfs images.
    Modules,
    Containers,
}
