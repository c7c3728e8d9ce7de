//! The steps, and functions that several steps share. [`all`] is the only list of the steps. It sets the order of execution
//! and of reports.

mod autoload;
mod builds;
pub(crate) mod cdi;
mod cdi_rules;
mod check_timer;
pub mod cluster;
pub mod compute;
pub mod container;
mod deny;
pub(crate) mod devices;
mod driver_packages;
pub(crate) mod expected;
mod fabric;
#[cfg(test)]
pub(crate) mod fixtures;
mod headers;
mod holds;
mod image;
mod kernel_refusal;
mod kernel_release;
mod kernels;
mod messages;
mod module;
mod nodes;
mod options;
mod packages;
mod partial_install;
mod persistence;
mod prebuilt;
mod preflight;
mod program;
mod replaced;
mod repositories;
mod runtime_config;
mod runtime_packages;
mod secure_boot;
mod specs;
mod streams;
mod toolkit;

pub use autoload::PATH as AUTOLOAD_PATH;
pub(crate) use check_timer::SERVICE as CHECK_SERVICE;
pub use driver_packages::kept_branch;
pub use kernels::resolve;
pub use module::AFTER_MODULES;
pub(crate) use program::{PACKAGED, USUAL};

use crate::{
    config::desired::{Daemon, RuntimeKind},
    model::id::StepId,
    step::Step,
};

/// Checks before the first change.
pub const PREFLIGHT: StepId = StepId::new("preflight");
/// Secure Boot state and module signatures.
pub const SECURE_BOOT: StepId = StepId::new("secure-boot");
/// In-tree GPU drivers are blocked.
pub const KERNEL_DENY: StepId = StepId::new("kernel.deny");
/// Options of the driver modules.
pub const DRIVER_OPTIONS: StepId = StepId::new("driver.options");
/// DKMS fetches prebuilt modules instead of compiling them.
pub const DRIVER_PREBUILT: StepId = StepId::new("driver.prebuilt");
/// Package repositories and pins.
pub const REPOSITORIES: StepId = StepId::new("repositories");
/// A kernel with an available driver module.
pub const KERNEL_RELEASE: StepId = StepId::new("kernel.release");
/// Kernel headers.
pub const HEADERS: StepId = StepId::new("kernel.headers");
pub const DRIVER_PACKAGES: StepId = StepId::new("driver.packages");
/// Loads the driver at every boot.
pub const DRIVER_AUTOLOAD: StepId = StepId::new("driver.autoload");
/// Loaded module and installed packages match.
pub const DRIVER_MODULE: StepId = StepId::new("driver.module");
/// Persistence daemon.
pub const DRIVER_PERSISTENCE: StepId = StepId::new("driver.persistence");
/// The fabric manager, on machines that need it.
pub const DRIVER_FABRIC: StepId = StepId::new("driver.fabric");
/// Device nodes and their symlinks.
pub const DRIVER_NODES: StepId = StepId::new("driver.nodes");
/// NVIDIA Container Toolkit.
pub const TOOLKIT_PACKAGES: StepId = StepId::new("toolkit.packages");
pub const PACKAGES_HOLD: StepId = StepId::new("packages.hold");
/// CDI specification.
pub const CDI: StepId = StepId::new("cdi");
/// Instance type, PCI bus, driver, NVML and device nodes agree.
pub const VALIDATION_DEVICES: StepId = StepId::new("validation.devices");
/// Pulls the validation image.
pub const VALIDATION_IMAGE: StepId = StepId::new("validation.image");
/// A container sees the GPUs.
pub const VALIDATION_CONTAINER: StepId = StepId::new("validation.container");
/// The GPUs compute on the host. `install` runs the step only if no container validates them, and `check --validate` runs it on
/// every machine.
pub const VALIDATION_COMPUTE: StepId = StepId::new("validation.compute");

/// Kernel modules and sysctls for Kubernetes.
pub const CLUSTER_KERNEL: StepId = StepId::new("cluster.kernel");
/// kubelet, kubeadm, kubectl.
pub const CLUSTER_PACKAGES: StepId = StepId::new("cluster.packages");
/// The machine is a node of its cluster.
pub const CLUSTER_JOIN: StepId = StepId::new("cluster.join");
/// The node is Ready, has its labels, and its startup taints are removed.
pub const CLUSTER_NODE: StepId = StepId::new("cluster.node");

/// A timer that writes `check` results for other programs.
pub const CHECK_TIMER: StepId = StepId::new("check.timer");

/// Returns the ID of the step that installs a runtime.
