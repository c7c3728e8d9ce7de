//! A machine and a resolved configuration for the tests of `decide`: Debian 12 with two H100.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use crate::{
    change::Change,
    compat::matrix::{Fabric, Matrix},
    config::{
        desired::{
            Desired, DriverSpec, Existing, Guard, Hold, Manager, PackagePolicy, Pin, Repository,
            Restart, RuntimeKind, RuntimeSpec, ToolkitSpec, Validation,
        },
        load::{SettingsRequest, load},
    },
    fabric::Companions,
    facts::{Cloud, Facts, GpuFact, Kernel, Os, SCHEMA, Scope, SecureBoot},
    host::{ComputeMode, FabricProgress, GpuFabric, Host, NvmlDevice, fake::FakeFiles},
    model::{
        gpu::{ArchitectureEvidence, Flavor, SupportedFlavors},
        id::StepId,
        version::Branch,
    },
    state::State,
    step::{Assessment, Cx},
    steps::specs::fixtures::specs,
    tools::systemctl::UnitState,
};

pub(crate) fn unit(file: &str, active: &str) -> UnitState {
    UnitState {
        load: "loaded".into(),
        active: active.into(),
        file: file.into(),
        result: "success".into(),
        has_job: false,
    }
}

/// The fabric state that NVML reports for a GPU.
pub(crate) fn in_fabric(state: FabricProgress, status: u32) -> GpuFabric {
    GpuFabric {
        state,
        status,
        cluster: None,
        clique: 0,
        health: None,
    }
}

pub(crate) fn nvml_device(index: u32) -> NvmlDevice {
    NvmlDevice {
        index,
        uuid: Some(format!("GPU-{index}")),
        name: Some("NVIDIA H100 80GB HBM3".into()),
        pci_address: None,
        pci_id: None,
        minor: Some(index),
        memory_bytes: Some(80 << 30),
        compute_capability: Some("9.0".into()),
        persistence: Some(true),
        compute_mode: Some(ComputeMode::Default),
        mig: Some(false),
        mig_devices: vec![],
        mig_support: None,
        fabric: None,
        health: None,
        error: None,
    }
}

fn gpu(address: &str) -> GpuFact {
    GpuFact {
        pci_address: address.parse().expect("an address"),
        pci_id: "10de:2330".parse().expect("an id"),
        subsystem_id: None,
        class: None,
        name: Some("H100 SXM5 80GB".into()),
        chip_name: None,
        architecture: "hopper".parse().ok(),
        architecture_evidence: Some(ArchitectureEvidence::Listed),
        compute_capability: "9.0".parse().ok(),
        module_flavor: Some(SupportedFlavors::Either),
        vgpu: false,
        numa_node: None,
    }
}

pub(crate) fn facts() -> Facts {
    let kernel = "6.1.0-44-amd64".parse().ok();
    Facts {
        schema: SCHEMA,
        os: None,
        kernel: Kernel {
            running: kernel.clone(),
            next_boot: kernel.clone(),
            installed: kernel.into_iter().collect(),
            arch: Some("x86_64".into()),
            compiler: None,
            cgroup_v1: false,
        },
        secure_boot: SecureBoot::Unsupported,
        lockdown: None,
        virtualization: None,
        product: None,
        cloud: Cloud::default(),
        init: Some("systemd".into()),
        boot_id: Some("boot".into()),
        instance_id: Some("instance".into()),
        memory_bytes: Some(64 << 30),
        disks: vec![],
        gpus: vec![gpu("0000:18:00.0"), gpu("0000:2a:00.0")],
        virtual_functions: vec![],
        foreign_gpus: vec![],
        nvswitches: vec![],
        nvlink_management: None,
        network_devices: vec![],
        unknown: vec![],
    }
}

/// The state of a machine with these facts.
pub(crate) fn state(host: &Host, facts: Facts) -> State {
    State::new(host.clone(), Scope { executes: true }, Arc::new(facts))
}

/// The state as seen below `--root`.
pub(crate) fn state_below_root(host: &Host, facts: Facts) -> State {
    State::new(host.clone(), Scope { executes: false }, Arc::new(facts))
}

static MATRIX: LazyLock<Arc<Matrix>> =
    LazyLock::new(|| Arc::new(Matrix::builtin().expect("a matrix")));

/// The built-in matrix, which is slow to parse.
pub(crate) fn matrix() -> Arc<Matrix> {
    Arc::clone(&MATRIX)
}

/// The context of a step with these inputs and the built-in matrix.
pub(crate) fn cx<'a>(
    host: &'a Host,
    facts: &'a Facts,
    state: &'a State,
    desired: &'a Desired,
) -> Cx<'a> {
    Cx {
        host: host.reader(),
        facts,
        state,
        desired,
        matrix: Some(&MATRIX),
    }
}

/// The machine of [`facts`], with Debian 12.
pub(crate) fn debian() -> Facts {
    Facts {
        os: Some(Os {
            id: "debian".into(),
            version_id: Some("12".into()),
            id_like: vec![],
            version_codename: None,
            pretty_name: None,
        }),
        ..facts()
    }
}

/// The values of the Debian profile, so that new fields need no line in [`desired`].
static OF_PROFILE: LazyLock<Desired> = LazyLock::new(|| {
    let files = FakeFiles::new();
    let resolution = load(
        &files,
        &files,
        &SettingsRequest::default(),
        &debian(),
        &MATRIX,
    );
    resolution.expect("a supported machine").desired
});

pub(crate) fn desired() -> Desired {
    Desired {
        packages: PackagePolicy {
            manager: Manager::Apt,
            lock_timeout_seconds: 60,
            proxy: None,
            no_proxy: None,
            pause_units: vec![],
            may_remove: vec![],
            may_upgrade: vec![],
            guard: Guard::default(),
            bundled: None,
        },
        container_modules: vec![],
        repositories: vec![Repository {
            name: "toolkit".into(),
            url: "https://example.org/deb/amd64".into(),
            suites: vec!["/".into()],
            components: vec![],
            architectures: vec!["amd64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec!["C95B321B61E88C1809C4F759DDCAE044F796ECB0".into()],
            keyring: None,
            key_files: vec![],
            signed: crate::model::packages::Signed::Packages,
            priority: None,
            packages: vec![],
        }],
        pins: vec![Pin {
            name: "driver".into(),
            packages: vec!["nvidia-*".into()],
            version: "535.*".into(),
            priority: 1001,
        }],
        deny_modules: vec!["nouveau".into(), "nova_core".into()],
        headers: specs(&["linux-headers-6.1.0-44-amd64"]),
        driver: Some(DriverSpec {
            branch: Branch(535),
            version: None,
            flavor: Flavor::Proprietary,
            assumed: false,
            source: "distribution".into(),
            alternative: None,
            stream: None,
            packages: specs(&["nvidia-kernel-dkms=535.*", "nvidia-smi=535.*"]),
            compiled_as: Some("nvidia-current".into()),
            module: "nvidia-current".into(),
            load_modules: vec!["nvidia".into(), "nvidia-uvm".into()],
            existing: Existing::Refuse,
            asked: false,
            rollback: true,
            vulnerable: None,
            reasons: vec![],
            warnings: vec![],
            companions: Companions {
                needs: Fabric::None,
                service: None,
            },
            options: vec![],
            signing: None,
            prebuilt: None,
            prebuilt_instead_of: None,
            publish: None,
        }),
        runtimes: vec![RuntimeSpec {
            kind: RuntimeKind::Docker,
            packages: specs(&["docker.io"]),
            alternatives: vec!["docker-ce".into()],
            unit: Some("docker.service".into()),
            nvidia_default: false,
        }],
        runtime_restart: Restart::WhenIdle,
        toolkit: Some(ToolkitSpec {
            packages: specs(&[
                "nvidia-container-toolkit=1.20.*",
                "nvidia-container-toolkit-base=1.20.*",
            ]),
            vulnerable: None,
        }),
        validation: Validation {
            archives: None,
            container: true,
            image: None,
            timeout_seconds: 60,
            pull_timeout_seconds: 1800,
        },
        hold: Hold {
            patterns: vec!["nvidia-*".into(), "libnvidia-*".into()],
            blacklist: vec!["^nvidia-".into()],
            packages: vec![],
        },
        ..OF_PROFILE.clone()
    }
}

/// Expected kinds of assessments. Any other kind fails the test and is printed.
impl Assessment {
    /// Returns its reason.
    #[track_caller]
    pub(crate) fn expect_satisfied(self) -> String {
        match self {
            Self::Satisfied { why } => why,
            other => panic!("expected `Satisfied`: {other:?}"),
        }
    }

    /// Returns its reason and its changes.
    #[track_caller]
    pub(crate) fn expect_needs(self) -> (String, Vec<Change>) {
        match self {
            Self::Needs { why, changes } => (why, changes),
            other => panic!("expected `Needs`: {other:?}"),
        }
    }

    /// Returns its reason.
    #[track_caller]
    pub(crate) fn expect_not_applicable(self) -> String {
        match self {
            Self::NotApplicable { why } => why,
            other => panic!("expected `NotApplicable`: {other:?}"),
        }
    }

    /// Returns its reason and its hint.
    #[track_caller]
    pub(crate) fn expect_blocked(self) -> (String, String) {
        match self {
            Self::Blocked { why, hint } => (why, hint),
            other => panic!("expected `Blocked`: {other:?}"),
        }
    }

    /// Returns its reason, its hint, and its maximum duration.
    #[track_caller]
    pub(crate) fn expect_blocked_now(self) -> (String, String, Option<Duration>) {
        match self {
            Self::BlockedNow {
                why,
                hint,
                retryable,
            } => (why, hint, retryable),
            other => panic!("expected `BlockedNow`: {other:?}"),
        }
    }

    /// Returns its reason and its hint.
    #[track_caller]
    pub(crate) fn expect_blocked_by_old_lists(self) -> (String, String) {
        match self {
            Self::BlockedByOldLists { why, hint } => (why, hint),
            other => panic!("expected `BlockedByOldLists`: {other:?}"),
        }
    }

    /// Returns its reason.
    #[track_caller]
    pub(crate) fn expect_awaiting_boot(self) -> String {
        match self {
            Self::AwaitingBoot { why } => why,
            other => panic!("expected `AwaitingBoot`: {other:?}"),
        }
    }

    /// Returns the step that it waits for, and its expected changes.
    #[track_caller]
    pub(crate) fn expect_after(self) -> (StepId, Vec<Change>) {
        match self {
            Self::After {
                upstream, expected, ..
            } => (upstream, expected),
            other => panic!("expected `After`: {other:?}"),
        }
    }
}
