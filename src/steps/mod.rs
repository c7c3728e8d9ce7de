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
mod dcgm;
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
mod lock;
mod messages;
mod mig;
mod module;
mod mps;
mod nodes;
mod options;
mod packages;
mod partial_install;
mod persistence;
mod prebuilt;
mod preflight;
mod program;
mod rdma;
mod replaced;
mod repositories;
mod runtime_config;
mod runtime_packages;
mod secure_boot;
mod specs;
mod streams;
mod timer;
mod toolkit;
mod triggers;
mod upgrade_timer;

pub use autoload::PATH as AUTOLOAD_PATH;
pub use driver_packages::kept_branch;
pub use kernels::resolve;
pub use lock::lock_status;
pub use mig::UNIT as MIG_UNIT;
pub use module::AFTER_MODULES;
pub(crate) use prebuilt::override_starts;
pub(crate) use program::{PACKAGED, USUAL, program_in};
pub use upgrade_timer::TIMER as UPGRADE_TIMER_UNIT;

use crate::{
    config::desired::{Daemon, RuntimeKind},
    model::{id::StepId, paths::RESUME_UNIT},
    sharing,
    step::Step,
};

/// The units that start gpu-bootstrap.
pub(crate) const STARTING_UNITS: [&str; 4] = [
    RESUME_UNIT,
    check_timer::SERVICE,
    upgrade_timer::SERVICE,
    mig::UNIT,
];

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
/// Who runs IMEX on a node of a rack.
pub const FABRIC_IMEX: StepId = StepId::new("fabric.imex");
/// The packages of kernel modules for RDMA.
pub const RDMA_PACKAGES: StepId = StepId::new("rdma.packages");
/// Kernel modules for RDMA with GPU memory.
pub const RDMA_MODULES: StepId = StepId::new("rdma.modules");
/// Device nodes and their symlinks.
pub const DRIVER_NODES: StepId = StepId::new("driver.nodes");
/// The MIG layout of the GPUs.
pub const DRIVER_MIG: StepId = StepId::new("driver.mig");
/// NVIDIA Container Toolkit.
pub const TOOLKIT_PACKAGES: StepId = StepId::new("toolkit.packages");
/// All packages of the lock file have their locked versions.
pub const PACKAGES_LOCK: StepId = StepId::new("packages.lock");
pub const PACKAGES_HOLD: StepId = StepId::new("packages.hold");
/// Package triggers that transactions have deferred.
pub const PACKAGES_TRIGGERS: StepId = StepId::new("packages.triggers");
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
/// The configuration of a device plugin that runs on the host.
pub const DEVICE_PLUGIN: StepId = StepId::new("cluster.device-plugin");
/// kubelet, kubeadm, kubectl.
pub const CLUSTER_PACKAGES: StepId = StepId::new("cluster.packages");
/// The machine is a node of its cluster.
pub const CLUSTER_JOIN: StepId = StepId::new("cluster.join");
/// The node is Ready, has its labels, and its startup taints are removed.
pub const CLUSTER_NODE: StepId = StepId::new("cluster.node");

/// The packages of DCGM.
pub const DCGM_PACKAGES: StepId = StepId::new("dcgm.packages");
/// DCGM and its exporter run.
pub const DCGM_SERVICE: StepId = StepId::new("dcgm.service");

/// The control daemon of MPS, so that programs use a GPU at the same time.
pub const MPS_DAEMON: StepId = StepId::new("mps.daemon");

/// A timer that writes `check` results for other programs.
pub const CHECK_TIMER: StepId = StepId::new("check.timer");

/// A timer that starts upgrades in the maintenance window.
pub const UPGRADE_TIMER: StepId = StepId::new("upgrade.timer");

/// The steps after which the driver serves the GPUs. IMEX is only restarted while no program uses a GPU, so it is before validation.
const DRIVER_RUNS: [StepId; 4] = [
    DRIVER_MODULE,
    DRIVER_PERSISTENCE,
    DRIVER_FABRIC,
    FABRIC_IMEX,
];

/// The steps that change the devices for programs: the layout of the GPUs, and the device nodes.
const PROGRAM_DEVICES: [StepId; 2] = [DRIVER_MIG, DRIVER_NODES];

/// Returns the directories in which files of steps have an effect.
pub const fn written_directories() -> [&'static str; 8] {
    [
        secure_boot::DIRECTORY,
        "/etc/modprobe.d",
        "/etc/modules-load.d",
        sharing::DIRECTORY,
        "/etc/sysctl.d",
        "/etc/systemd/system",
        "/etc/systemd/system/nvidia-dcgm-exporter.service.d",
        "/etc/systemd/system/nvidia-persistenced.service.d",
    ]
}

/// Returns the ID of the step that installs a runtime.
pub fn package_step(kind: RuntimeKind) -> StepId {
    StepId::owned(format!("runtime.{}", kind.name()))
}

/// Returns the ID of the step that configures a daemon.
pub fn config_step(daemon: Daemon) -> StepId {
    StepId::owned(format!("runtime.{}-nvidia", daemon.name()))
}

/// Returns the steps that install a runtime.
fn installed_runtimes() -> impl Iterator<Item = StepId> {
    RuntimeKind::configurable().map(package_step)
}

/// Returns the steps that configure a daemon.
fn configured_daemons() -> impl Iterator<Item = StepId> {
    daemons().map(config_step)
}

/// Returns the daemons that `install` can configure.
fn daemons() -> impl Iterator<Item = Daemon> {
    RuntimeKind::configurable().filter_map(RuntimeKind::daemon)
}

/// Returns all steps in order.
pub fn all() -> Vec<Step> {
    let mut all = vec![
        preflight::step(),
        secure_boot::step(),
        deny::step(),
        options::step(),
        repositories::step(),
        prebuilt::step(),
        kernel_release::step(),
        headers::step(),
        driver_packages::step(),
    ];
    all.extend(RuntimeKind::configurable().map(runtime_packages::step));
    all.extend([
        toolkit::step(),
        dcgm::packages_step(),
        rdma::packages_step(),
        cluster::packages::step(),
        lock::step(),
        holds::step(),
        triggers::step(),
        autoload::step(),
        module::step(),
        persistence::step(),
        fabric::step(),
        fabric::imex::step(),
        rdma::modules_step(),
        nodes::step(),
    ]);
    all.extend(daemons().map(runtime_config::step));
    all.extend([
        image::step(),
        devices::step(),
        mig::step(),
        cdi::step(),
        container::step(),
        compute::step(),
        mps::step(),
        dcgm::service_step(),
        cluster::host::step(),
        cluster::device_plugin::step(),
        cluster::join::step(),
        cluster::node::step(),
        check_timer::step(),
        upgrade_timer::step(),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::{
        CHECK_TIMER, CLUSTER_JOIN, CLUSTER_NODE, CLUSTER_PACKAGES, DCGM_PACKAGES, DRIVER_FABRIC,
        DRIVER_MIG, DRIVER_MODULE, DRIVER_PACKAGES, FABRIC_IMEX, HEADERS, KERNEL_DENY,
        KERNEL_RELEASE, PACKAGES_HOLD, PREFLIGHT, RDMA_MODULES, RDMA_PACKAGES, REPOSITORIES,
        SECURE_BOOT, TOOLKIT_PACKAGES, VALIDATION_COMPUTE, VALIDATION_CONTAINER,
        VALIDATION_DEVICES, VALIDATION_IMAGE, all, config_step, package_step,
    };
    use crate::{
        change::Lock,
        config::desired::{Daemon, RuntimeKind},
        model::{findings, id::Id},
    };

    #[test]
    fn each_step_follows_its_upstreams() {
        let steps = all();
        for (index, step) in steps.iter().enumerate() {
            for upstream in &step.after {
                assert!(
                    steps[..index].iter().any(|earlier| earlier.id == *upstream),
                    "{} comes before {upstream}",
                    step.id
                );
            }
        }
    }

    /// The order that the README guarantees: each step depends on the listed steps, directly or indirectly.
    #[test]
    fn node_joins_after_validation_and_is_admitted_last() {
        let steps = all();
        for (step, earlier) in [
            (
                DRIVER_PACKAGES,
                &[SECURE_BOOT, KERNEL_DENY, REPOSITORIES, KERNEL_RELEASE][..],
            ),
            (DRIVER_MODULE, &[DRIVER_PACKAGES]),
            (RDMA_PACKAGES, &[DRIVER_PACKAGES, HEADERS]),
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
                    FABRIC_IMEX,
                    RDMA_MODULES,
                ],
            ),
            (CLUSTER_NODE, &[CLUSTER_JOIN]),
        ] {
            let mut found = vec![step.clone()];
            let mut next = 0;
            while let Some(id) = found.get(next).cloned() {
                next += 1;
                let of = steps.iter().find(|one| one.id == id).expect("a step");
                found.extend(of.after.iter().cloned());
            }
            for needed in earlier {
                assert!(found.contains(needed), "{step} does not wait for {needed}");
            }
        }
    }

    /// The `check` timer does not follow the preflight, because it must also report a blocked preflight.
    #[test]
    fn each_step_follows_the_preflight() {
        let mut waiting = vec![PREFLIGHT];
        for step in all() {
            let waits = step.after.iter().any(|name| waiting.contains(name));
            assert!(
                waits || [PREFLIGHT, CHECK_TIMER].contains(&step.id),
                "{}",
                step.id
            );
            waiting.push(step.id);
        }
    }

    /// A driver package builds modules, so no other step may load or unload them at the same time.
    #[test]
    fn steps_with_shared_targets_hold_the_lock() {
        let docker = package_step(RuntimeKind::Docker);
        for (step, locks) in [
            (REPOSITORIES, &[Lock::Packages][..]),
            (KERNEL_RELEASE, &[Lock::Packages, Lock::Modules]),
            (HEADERS, &[Lock::Packages, Lock::Modules]),
            (DRIVER_PACKAGES, &[Lock::Packages, Lock::Modules]),
            (KERNEL_DENY, &[Lock::Modules]),
            (DRIVER_MODULE, &[Lock::Modules]),
            (DRIVER_FABRIC, &[Lock::Modules]),
            (RDMA_PACKAGES, &[Lock::Packages, Lock::Modules]),
            (RDMA_MODULES, &[Lock::Modules]),
            (DRIVER_MIG, &[Lock::Modules]),
            (TOOLKIT_PACKAGES, &[Lock::Packages]),
            (DCGM_PACKAGES, &[Lock::Packages]),
            (CLUSTER_PACKAGES, &[Lock::Packages]),
            (PACKAGES_HOLD, &[Lock::Packages]),
            (docker, &[Lock::Packages, Lock::Containers]),
            // A daemon restart aborts pulls and stops containers.
            (config_step(Daemon::Docker), &[Lock::Containers]),
            (config_step(Daemon::Containerd), &[Lock::Containers]),
            (VALIDATION_IMAGE, &[Lock::Containers]),
            (VALIDATION_CONTAINER, &[Lock::Containers]),
        ] {
            let all = all();
            let found = all.iter().find(|one| one.id == step);
            let held = found.map(|one| &one.locks[..]).unwrap_or_default();
            assert!(
                locks.iter().all(|lock| held.contains(lock)),
                "{step}: {held:?}"
            );
        }
    }

    #[test]
    fn registry_matches_steps_and_checks() {
        let steps = all();
        let mut names: Vec<Id> = steps.iter().map(|step| step.id.clone()).collect();
        let checks = crate::checks::ALL;
        names.extend(checks.iter().flat_map(|check| (check.ids)()));
        names.extend(["config.resolvable", "node.upgrade"].map(Id::new));
        for name in &names {
            assert!(findings::row(name).is_some(), "{name}");
        }
        for row in findings::rows() {
            assert!(names.contains(&row.id), "{}", row.id);
        }
    }
}
