//! The steps, one file for each. [`all`] is the only list. Its order is the order in reports, and
//! the steps must be able to run in it.

mod arrived;
mod autoload;
mod builds;
mod cdi;
mod cdi_rules;
mod check_timer;
pub mod cluster;
pub mod compute;
pub mod container;
mod deny;
pub(crate) mod devices;
mod driver_packages;
mod fabric;
#[cfg(test)]
pub(crate) mod fixtures;
mod headers;
mod holds;
mod image;
mod kernel_refusal;
mod kernel_release;
mod kernels;
mod module;
mod nodes;
mod options;
mod packages;
mod persistence;
mod prebuilt;
mod preflight;
mod program;
pub(crate) mod promise;
mod replaced;
mod repositories;
mod runtime_config;
mod runtime_packages;
mod secure_boot;
mod streams;
mod toolkit;
mod wishes;
mod words;

pub use autoload::PATH as AUTOLOAD_PATH;
pub use driver_packages::kept_branch;
pub use kernels::settle;

use crate::{
    config::desired::{Daemon, RuntimeKind},
    model::id::StepId,
    step::Step,
};

/// Preconditions.
pub const PREFLIGHT: StepId = StepId::new("preflight");
/// Secure Boot against the kind of module.
pub const SECURE_BOOT: StepId = StepId::new("secure-boot");
/// In-tree GPU drivers denied.
pub const KERNEL_DENY: StepId = StepId::new("kernel.deny");
/// Options of the driver's modules.
pub const DRIVER_OPTIONS: StepId = StepId::new("driver.options");
/// DKMS asks for modules that were compiled elsewhere.
pub const DRIVER_PREBUILT: StepId = StepId::new("driver.prebuilt");
/// Package repositories and pins.
pub const REPOSITORIES: StepId = StepId::new("repositories");
/// A kernel that can have a driver module.
pub const KERNEL_RELEASE: StepId = StepId::new("kernel.release");
/// Kernel headers.
pub const HEADERS: StepId = StepId::new("kernel.headers");
pub const DRIVER_PACKAGES: StepId = StepId::new("driver.packages");
/// Driver loaded at every boot.
pub const DRIVER_AUTOLOAD: StepId = StepId::new("driver.autoload");
/// Loaded module against installed packages.
pub const DRIVER_MODULE: StepId = StepId::new("driver.module");
/// Persistence daemon.
pub const DRIVER_PERSISTENCE: StepId = StepId::new("driver.persistence");
/// The fabric manager, where GPUs need it.
pub const DRIVER_FABRIC: StepId = StepId::new("driver.fabric");
/// Device nodes and their links.
pub const DRIVER_NODES: StepId = StepId::new("driver.nodes");
/// Docker Engine.
pub const RUNTIME_DOCKER: StepId = StepId::new("runtime.docker");
pub const RUNTIME_CONTAINERD: StepId = StepId::new("runtime.containerd");
/// CRI-O.
pub const RUNTIME_CRIO: StepId = StepId::new("runtime.crio");
pub const RUNTIME_PODMAN: StepId = StepId::new("runtime.podman");
/// NVIDIA Container Toolkit.
pub const TOOLKIT_PACKAGES: StepId = StepId::new("toolkit.packages");
/// Docker knows the nvidia runtime.
pub const RUNTIME_DOCKER_NVIDIA: StepId = StepId::new("runtime.docker-nvidia");
/// containerd knows the nvidia runtime.
pub const RUNTIME_CONTAINERD_NVIDIA: StepId = StepId::new("runtime.containerd-nvidia");
/// CRI-O's configuration.
pub const RUNTIME_CRIO_NVIDIA: StepId = StepId::new("runtime.crio-nvidia");
pub const PACKAGES_HOLD: StepId = StepId::new("packages.hold");
/// CDI specification.
pub const CDI: StepId = StepId::new("cdi");
/// Instance type, bus, driver, NVML and device nodes agree.
pub const VALIDATION_DEVICES: StepId = StepId::new("validation.devices");
/// The image of the proof is pulled.
pub const VALIDATION_IMAGE: StepId = StepId::new("validation.image");
/// A container sees the GPUs.
pub const VALIDATION_CONTAINER: StepId = StepId::new("validation.container");
/// The GPUs compute on the host. `check --prove` proves it on every machine, the step where no container does.
pub const VALIDATION_COMPUTE: StepId = StepId::new("validation.compute");

/// Kernel modules and parameters for Kubernetes.
pub const CLUSTER_KERNEL: StepId = StepId::new("cluster.kernel");
/// kubelet, kubeadm, kubectl.
pub const CLUSTER_PACKAGES: StepId = StepId::new("cluster.packages");
/// The machine is a node.
pub const CLUSTER_JOIN: StepId = StepId::new("cluster.join");
/// The node is Ready and admitted.
pub const CLUSTER_NODE: StepId = StepId::new("cluster.node");

/// A timer writes what `check` finds where others read it.
pub const CHECK_TIMER: StepId = StepId::new("check.timer");

/// The step that installs a runtime.
#[must_use]
pub fn package_step(kind: RuntimeKind) -> StepId {
    match kind {
        RuntimeKind::Docker => RUNTIME_DOCKER,
        RuntimeKind::Containerd => RUNTIME_CONTAINERD,
        RuntimeKind::Crio => RUNTIME_CRIO,
        RuntimeKind::Podman => RUNTIME_PODMAN,
    }
}

/// The step that configures a daemon.
#[must_use]
pub fn config_step(daemon: Daemon) -> StepId {
    match daemon {
        Daemon::Docker => RUNTIME_DOCKER_NVIDIA,
        Daemon::Containerd => RUNTIME_CONTAINERD_NVIDIA,
        Daemon::Crio => RUNTIME_CRIO_NVIDIA,
    }
}

/// Names of steps, after those of all steps that install a runtime.
macro_rules! after_runtimes {
    ($($id:expr),* $(,)?) => {
        const {
            &[
                $crate::steps::RUNTIME_DOCKER,
                $crate::steps::RUNTIME_CONTAINERD,
                $crate::steps::RUNTIME_CRIO,
                $crate::steps::RUNTIME_PODMAN,
                $($id),*
            ]
        }
    };
}

/// Names of steps, after those of all steps that configure a daemon.
macro_rules! after_configs {
    ($($id:expr),* $(,)?) => {
        const {
            &[
                $crate::steps::RUNTIME_DOCKER_NVIDIA,
                $crate::steps::RUNTIME_CONTAINERD_NVIDIA,
                $crate::steps::RUNTIME_CRIO_NVIDIA,
                $($id),*
            ]
        }
    };
}

/// Names of steps, after those of all steps of runtimes.
macro_rules! runtime_steps {
    ($($id:expr),* $(,)?) => {
        $crate::steps::after_runtimes![
            $crate::steps::RUNTIME_DOCKER_NVIDIA,
            $crate::steps::RUNTIME_CONTAINERD_NVIDIA,
            $crate::steps::RUNTIME_CRIO_NVIDIA,
            $($id),*
        ]
    };
}

use {after_configs, after_runtimes, runtime_steps};

/// All steps.
#[must_use]
pub fn all() -> Vec<Box<dyn Step>> {
    vec![
        Box::new(preflight::Preflight),
        Box::new(secure_boot::ModuleSigning),
        Box::new(deny::Deny),
        Box::new(options::Options),
        Box::new(prebuilt::PrebuiltModules),
        Box::new(repositories::Repositories),
        Box::new(kernel_release::KernelRelease),
        Box::new(headers::Headers),
        Box::new(driver_packages::DriverPackages),
        Box::new(runtime_packages::RuntimePackages(RuntimeKind::Docker)),
        Box::new(runtime_packages::RuntimePackages(RuntimeKind::Containerd)),
        Box::new(runtime_packages::RuntimePackages(RuntimeKind::Crio)),
        Box::new(runtime_packages::RuntimePackages(RuntimeKind::Podman)),
        Box::new(toolkit::Toolkit),
        Box::new(cluster::packages::ClusterPackages),
        Box::new(holds::Holds),
        Box::new(autoload::Autoload),
        Box::new(module::Module),
        Box::new(persistence::PersistenceDaemon),
        Box::new(fabric::FabricManager),
        Box::new(nodes::Nodes),
        Box::new(runtime_config::NvidiaRuntime::of(Daemon::Docker)),
        Box::new(runtime_config::NvidiaRuntime::of(Daemon::Containerd)),
        Box::new(runtime_config::NvidiaRuntime::of(Daemon::Crio)),
        Box::new(image::ValidationImage),
        Box::new(devices::Devices),
        Box::new(cdi::CdiSpecification),
        Box::new(container::ContainerProbe),
        Box::new(compute::Compute),
        Box::new(cluster::host::ClusterKernel),
        Box::new(cluster::join::JoinCluster),
        Box::new(cluster::node::AdmittedNode),
        Box::new(check_timer::CheckTimer),
    ]
}

#[cfg(test)]
mod tests {
    use super::{
        CHECK_TIMER, CLUSTER_JOIN, CLUSTER_NODE, CLUSTER_PACKAGES, DRIVER_FABRIC, DRIVER_MODULE,
        DRIVER_PACKAGES, HEADERS, KERNEL_DENY, KERNEL_RELEASE, PACKAGES_HOLD, PREFLIGHT,
        REPOSITORIES, RUNTIME_CONTAINERD_NVIDIA, RUNTIME_DOCKER, RUNTIME_DOCKER_NVIDIA,
        SECURE_BOOT, TOOLKIT_PACKAGES, VALIDATION_COMPUTE, VALIDATION_CONTAINER,
        VALIDATION_DEVICES, VALIDATION_IMAGE, all,
    };
    use crate::{
        change::Lock,
        model::{findings, id::Id},
    };

    #[test]
    fn every_step_comes_after_what_it_needs() {
        let steps = all();
        for (index, step) in steps.iter().enumerate() {
            for upstream in step.after() {
                assert!(
                    steps[..index]
                        .iter()
                        .any(|earlier| earlier.id() == *upstream),
                    "{} comes before {upstream}",
                    step.id()
                );
            }
        }
    }

    /// The order that the README guarantees: each step runs only after the steps listed with it, directly or through others.
    #[test]
    fn a_node_joins_after_its_validation_and_is_admitted_last() {
        let steps = all();
        for (step, earlier) in [
            (
                DRIVER_PACKAGES,
                &[SECURE_BOOT, KERNEL_DENY, REPOSITORIES, KERNEL_RELEASE][..],
            ),
            (DRIVER_MODULE, &[DRIVER_PACKAGES]),
            (VALIDATION_DEVICES, &[DRIVER_MODULE]),
            (
                VALIDATION_CONTAINER,
                &[VALIDATION_DEVICES, VALIDATION_IMAGE],
            ),
            (
                CLUSTER_JOIN,
                &[
                    PACKAGES_HOLD,
                    VALIDATION_DEVICES,
                    VALIDATION_CONTAINER,
                    VALIDATION_COMPUTE,
                ],
            ),
            (CLUSTER_NODE, &[CLUSTER_JOIN]),
        ] {
            let mut found = vec![step.clone()];
            let mut next = 0;
            while let Some(id) = found.get(next).cloned() {
                next += 1;
                let of = steps.iter().find(|one| one.id() == id).expect("a step");
                found.extend(of.after().iter().cloned());
            }
            for needed in earlier {
                assert!(found.contains(needed), "{step} does not wait for {needed}");
            }
        }
    }

    /// The timer of `check` tells of a blocked preflight, too.
    #[test]
    fn each_step_comes_after_the_preflight() {
        let mut waiting = vec![PREFLIGHT];
        for step in all() {
            let waits = step.after().iter().any(|name| waiting.contains(name));
            assert!(
                waits || [PREFLIGHT, CHECK_TIMER].contains(&step.id()),
                "{}",
                step.id()
            );
            waiting.push(step.id());
        }
    }

    /// A package of the driver builds modules, while another step may load or unload them.
    #[test]
    fn who_changes_something_that_others_change_holds_its_lock() {
        for (step, locks) in [
            (REPOSITORIES, &[Lock::Packages][..]),
            (KERNEL_RELEASE, &[Lock::Packages, Lock::Modules]),
            (HEADERS, &[Lock::Packages, Lock::Modules]),
            (DRIVER_PACKAGES, &[Lock::Packages, Lock::Modules]),
            (KERNEL_DENY, &[Lock::Modules]),
            (DRIVER_MODULE, &[Lock::Modules]),
            (DRIVER_FABRIC, &[Lock::Modules]),
            (TOOLKIT_PACKAGES, &[Lock::Packages]),
            (CLUSTER_PACKAGES, &[Lock::Packages]),
            (PACKAGES_HOLD, &[Lock::Packages]),
            (RUNTIME_DOCKER, &[Lock::Packages, Lock::Containers]),
            // A daemon that restarts breaks off a pull, and ends a container.
            (RUNTIME_DOCKER_NVIDIA, &[Lock::Containers]),
            (RUNTIME_CONTAINERD_NVIDIA, &[Lock::Containers]),
            (VALIDATION_IMAGE, &[Lock::Containers]),
            (VALIDATION_CONTAINER, &[Lock::Containers]),
        ] {
            let all = all();
            let found = all.iter().find(|one| one.id() == step);
            let held = found.map(|one| one.locks()).unwrap_or_default();
            assert!(
                locks.iter().all(|lock| held.contains(lock)),
                "{step}: {held:?}"
            );
        }
    }

    #[test]
    fn each_step_and_each_check_has_a_row_in_the_registry_and_no_row_is_of_nothing() {
        let steps = all();
        let mut names: Vec<Id> = steps.iter().map(|step| step.id()).collect();
        let checks = crate::checks::all();
        names.extend(checks.iter().flat_map(|check| check.ids().to_vec()));
        names.push(Id::new("config.resolvable"));
        for name in &names {
            assert!(findings::row(name).is_some(), "{name}");
        }
        for row in findings::rows() {
            assert!(names.contains(&row.id), "{}", row.id);
        }
    }
}
