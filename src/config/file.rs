//! The user-visible settings: the configuration file, and the environment and `--set` as other ways to set the same
//! keys. Every key is optional, because the profile has the defaults.

use std::{collections::BTreeMap, net::IpAddr};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    compat::kernels::KernelPolicy,
    config::{
        choices::{ConditionMeaning, Existing, GpuProcesses, ImexMode, RdmaModule, Restart},
        values::{
            AbsolutePath, BranchKey, Build, CaHash, ConditionType, Fingerprint, GpuNeed, Holding,
            MinisignKey, ModuleSource, ModuleTarget, Moment, PackagePattern, Proxy, ResourceName,
            Size, TimeLimit, Url, VersionPattern, Word,
        },
    },
    joins::JoinKind,
    mig::{MigStrategy, ModelLayout, NamedLayout},
    model::{
        fleet::{FleetLock, LockGroup, Window},
        gpu::Flavor,
        kubernetes::{KubernetesVersion, OwnLabel, Taint},
        token::TokenSource,
        version::{CudaVersion, DriverVersion},
    },
    runtimes::RuntimeKind,
    sharing::{GpuAllocation, SharingMethod},
};

/// Returns the JSON schema of the configuration, which is stored in `docs/config.schema.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// A table of settings. Each entry is a key with its description in Markdown, its type and its default: `= VALUE` if
/// it is the same on every machine, or `=> "WORDS"`. Schema, documentation and messages are generated from it. A key
/// with a value is read as `desired.settings.TABLE.KEY`. The others are inputs of `resolve`.
macro_rules! settings {
    (
        $(#[$of:meta])*
        $table:ident {
            $( $(#[$on:meta])* $vis:vis $key:ident: $type:ty $(= $value:expr)? $(=> $words:literal)?, )*
        }
    ) => {
        #[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
        $(#[$of])*
        #[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
        pub struct $table {
            $(
                $(#[$on])*
                $(#[schemars(extend("x-default" = $words))])?
                $vis $key: $type,
            )*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $($key: settings!(@ $($value)?),)* }
            }
        }
    };
    (@) => { Default::default() };
    (@ $value:expr) => { $value };
}

settings! {
    /// The configuration of gpu-bootstrap. See docs/configuration.md.
    #[schemars(title = "gpu-bootstrap configuration")]
    Config {
        /// A name (`debian`, `ubuntu`, `almalinux`, `amzn`) or a file path; `--profile` overrides it. Without this
        /// key, a derived distribution (`ID_LIKE`) uses the related profile, with a warning.
        pub profile: Option<Word> => "by `ID` of `/etc/os-release`",
        /// `"optional"`: a machine without an NVIDIA GPU is accepted, and gets container runtimes but no driver. For
        /// pools that share one configuration with CPU nodes.
        pub gpu: GpuNeed = GpuNeed::Required,
        /// Packages to hold at their versions, so that background upgrades do not change them: `"none"`; `"driver"`
        /// for the packages of the driver, the runtimes, the container toolkit and Kubernetes; `"driver-and-kernel"`
        /// also for kernel and headers, because a new kernel has no driver module until one is built for it.
        pub hold: Option<Holding> => r#"`"driver-and-kernel"`"#,
        /// Additional packages to hold, as names or patterns. No effect if `hold` is `"none"`.
        pub hold_extra: Option<Vec<PackagePattern>> => "`[]`",
        /// The NVIDIA driver.
        pub driver: DriverConfig,
        /// Container runtimes.
        pub runtime: RuntimeConfig,
        /// NVIDIA Container Toolkit.
        pub toolkit: ToolkitConfig,
        /// Data Center GPU Manager (DCGM).
        pub dcgm: DcgmConfig,
        /// Container Device Interface.
        pub cdi: CdiConfig,
        /// Persistence of the driver's state.
        pub persistence: PersistenceConfig,
        /// Software for GPUs that are connected by NVLink switches.
        pub fabric: FabricConfig,
        /// RDMA with GPU memory.
        pub rdma: RdmaConfig,
        /// Partitioning of GPUs (MIG).
        pub mig: MigConfig,
        /// Package repositories by name.
        pub repositories: BTreeMap<String, RepositoryConfig>,
        /// How packages are installed.
        pub packages: PackagesConfig,
        /// Conditions for the first change.
        pub preflight: PreflightConfig,
        /// The container validation at the end.
        pub validation: ValidationConfig,
        /// The cluster to join after validation.
        pub cluster: ClusterConfig,
        /// Sharing of GPUs between pods.
        pub sharing: SharingConfig,
        /// Outputs of `check` results for other programs.
        pub check: CheckConfig,
        /// How `upgrade` takes a node out of service.
        pub fleet: FleetConfig,
    }
}

settings! {
    /// The NVIDIA driver.
    DriverConfig {
        /// The driver branch, such as `580`.
        pub branch: Option<BranchKey> => "the matrix decides: a supported long-term branch first",
        /// An exact version in quotes, such as `"580.178.04"`.
        pub version: Option<DriverVersion> => "the newest of the branch",
        /// Kernel modules: `"open"` or `"proprietary"`.
        pub flavor: Option<Flavor> => "by GPU and branch",
        /// The package source: the distribution's archive or the NVIDIA repository.
        pub source: Option<Word> => r#"`"nvidia"`; on Ubuntu `"distribution"`, unless only the NVIDIA repository has the required fabric manager"#,
        /// Precompiled modules, or modules compiled on the machine.
        pub build: Option<Build> => r#"`"precompiled"` if the source has modules for the kernel, otherwise `"dkms"`"#,
        /// Kernels that may be installed for the driver module. `"no"`: none. `"same-series"`: a newer kernel of the
        /// same series and flavor (such as 6.8 and `aws`) if the kernels of the machine have no precompiled module,
        /// even if DKMS could compile one. `"any"`: also a kernel of a different series if no module is available
        /// otherwise. A new kernel needs one reboot.
        pub may_change_kernel: Option<KernelPolicy> => r#"`"same-series"`"#,
        /// Policy for a driver that gpu-bootstrap did not install: `"refuse"` stops the run (exit 5). `"keep"` uses a
        /// driver from the NVIDIA installer or the image (e.g. the Amazon accelerated image for EKS) if it supports
        /// the GPUs, with a warning if its branch is not the configured one. `"replace"` removes it. A driver that
        /// gpu-bootstrap installed is replaced without this setting: see [change the driver](#change-the-driver).
        pub existing: Option<Existing> => r#"`"refuse"`"#,
        /// If a new driver fails validation, roll back to the previous driver, because an old driver is better than a
        /// node without a working GPU.
        pub rollback: Option<bool> => "`true`",
        /// `true`: a `driver.version` or `toolkit.version` that lacks security fixes may be installed. By default, the
        /// run is blocked (exit 5), and the message contains the NVIDIA bulletin. This only applies to a full version,
        /// not to a pattern. Installed versions, the newest version of the source, and the driver of a rollback are
        /// always permitted, and `plan` and `check` list their missing fixes.
        pub allow_vulnerable: Option<bool> => "`false`",
        /// CUDA versions of the containers, in quotes, such as `["12.4"]`. A driver that does not support them is not
        /// selected. A version that was never released is rejected. A version that is newer than the matrix causes a
        /// warning that its required driver is unknown.
        pub cuda: Option<Vec<CudaVersion>> => "`[]`",
        /// Signing of locally compiled modules under Secure Boot.
        pub secure_boot: SecureBootConfig,
        /// Kernel modules that another machine compiled.
        pub prebuilt: PrebuiltConfig,
    }
}

settings! {
    /// Signing of locally compiled modules under Secure Boot: set both keys or none.
    SecureBootConfig {
        /// For Secure Boot: a private key to sign modules that DKMS compiles.
        pub key: Option<AbsolutePath> => "none",
        /// The certificate of this key (DER). It must already be enrolled in the firmware (`db`) or the shim
        /// (`MokListRT`), otherwise the run is blocked before the first change.
        pub certificate: Option<AbsolutePath> => "none",
    }
}

settings! {
    /// Kernel modules that another machine compiled.
    PrebuiltConfig {
        /// Directories, URLs and registry repositories, such as `["oci://registry.example/team/gpu",
        /// "https://modules.example/gpu", "/srv/modules"]`, that contain archives from `gpu-bootstrap modules export`.
        /// DKMS queries them before it compiles modules, also for later kernels. It compiles as usual if none of them
        /// has modules for the kernel, driver, flavor and distribution. URLs with credentials are rejected, because
        /// every local user can read them. A registry is accessed only over HTTPS, with the credentials that `docker
        /// login` stored for root. See [prebuilt driver modules](#prebuilt-driver-modules).
        pub sources: Option<Vec<ModuleSource>> => "`[]`",
        /// `true`: this machine never compiles driver modules. `install` builds a package from the archive with the modules of
        /// the running kernel, and of the kernel of the next boot, and installs it together with the driver, so that kernel
        /// headers, DKMS and a compiler are not installed. If no source has such an archive, the run is blocked before the
        /// first change or, if the driver version is not known yet, fails after the repository of the driver was added: set
        /// `driver.version`. Not with a lock file. See [machines without a compiler](#machines-without-a-compiler).
        pub only: bool = false,
        /// Public keys of [minisign](https://jedisct1.github.io/minisign/), each the second line of `minisign.pub`.
        /// An archive is only used if one of them signed it (`ARCHIVE.minisig` next to it). Cannot be combined with
        /// `driver.prebuilt.unsigned`.
        pub public_keys: Option<Vec<MinisignKey>> => "`[]`",
        /// A date or a time, such as `"2026-01-31"` or `"2026-01-31T12:00:00Z"`: archives signed before it are not
        /// used. Set it to the time when you replaced broken archives, because their signatures remain valid, so anyone with
        /// write access to a source could restore them. Archives from before this time are published again. Cannot be
        /// combined with `driver.prebuilt.unsigned`.
        pub not_before: Option<Moment> => "none",
        /// `true`: archives need no signature. Anyone with write access to a source then has root on each machine
        /// that queries it, so its URL must not start with `http://`.
        pub unsigned: Option<bool> => "`false`",
        /// Where `install` publishes the modules that DKMS compiled for the running kernel, after the machine passed
        /// validation with them: `"oci://registry.example/team/gpu"`, or a directory that only root can write.
        /// Existing archives are not overwritten, and modules from a source are not published. If publishing fails, a
        /// warning reports the reason and the node is still Ready.
        pub publish: Option<ModuleTarget> => "not published",
        /// The private minisign key that signs published archives, created without a password (`minisign -G -W`). The
        /// file must belong to root with mode 0600. Its owner can provide kernel modules to all machines that trust
        /// the public key, so install it only on builders, not on all nodes. Not needed with
        /// `driver.prebuilt.unsigned`.
        pub sign_key: Option<AbsolutePath> => "none",
    }
}

settings! {
    /// Container runtimes.
    RuntimeConfig {
        /// The runtimes to install and configure: `docker`, `containerd`, `podman`; `[]` for none. Without this key,
        /// the installed runtimes are used. If no runtime is installed, the default is `containerd` if the machine
        /// joins a cluster with kubeadm, a command or its provider; `[]` if k3s, RKE2, k0s or MicroK8s is installed,
        /// because they include a runtime; and `docker` otherwise. If the machine joins with k3s, RKE2 or EKS, the
        /// default is always `[]`. An installed containerd that is a dependency of Docker counts only if gpu-bootstrap
        /// configured it, and an installed Podman does not count. `plan` prints the selection and its reason. An
        /// existing runtime, even without a package, is only configured, not replaced. Podman has no daemon and needs
        /// no configuration: version 4.1 and later read the CDI specification (`podman run --device
        /// nvidia.com/gpu=all`), so `cdi.enabled` and `toolkit.enabled` must be `true`. Its packages come from the
        /// distribution: Debian 12 and 13, Ubuntu 24.04 and 26.04, AlmaLinux 9 and 10 (on AlmaLinux, only `plan` was
        /// tested). CRI-O is not configured: if the kubelet uses it, or if it is the only installed runtime, this key is
        /// required. With `[]`, the driver, the toolkit and the CDI specification are prepared, and you configure CRI-O.
        pub r#use: Option<Vec<RuntimeKind>> => "what is installed",
        /// The package source: the distribution's archive or the Docker repository.
        pub source: Option<Word> => r#"`"distribution"`; on AlmaLinux `"docker"`"#,
        /// Make nvidia the default runtime.
        pub nvidia_default: Option<bool> => "`false`",
        /// Whether Docker may be restarted, although a restart stops its containers. A reload is sufficient for the
        /// nvidia runtime, but Docker 25.0 to 28.1 enables CDI only at a restart. `"when-idle"`: Docker is restarted
        /// only while no container runs, or if its `live-restore` is enabled; `plan` lists the running containers.
        /// `"always"`: Docker is restarted, and its containers are stopped. A restart of containerd does not stop
        /// containers.
        pub restart: Option<Restart> => r#"`"when-idle"`"#,
    }
}

settings! {
    /// NVIDIA Container Toolkit.
    ToolkitConfig {
        /// Install the toolkit.
        pub enabled: Option<bool> => "`true`",
        /// A version such as `"1.20.0"` or a pattern such as `"1.20.*"` for all of its packages. For a version that
        /// lacks security fixes, see `driver.allow-vulnerable`.
        pub version: Option<VersionPattern> => "the newest",
    }
}

settings! {
    /// Data Center GPU Manager (DCGM) on the host, for diagnostics and metrics.
    DcgmConfig {
        /// Install DCGM 4 for the CUDA version of the driver, and run `nvidia-dcgm.service`. Its packages are in the NVIDIA
        /// repository, so `driver.source` must be `"nvidia"`. Known for Ubuntu 22.04 and 24.04, Debian 12, AlmaLinux 8 to 10 and
        /// Amazon Linux 2023. Do not run another host engine in the cluster, see [DCGM](fleet.md#gpu-metrics).
        pub enabled: bool = false,
        /// Also install the Prometheus exporter of DCGM, and run `nvidia-dcgm-exporter.service`. Known for Ubuntu 22.04 and 24.04
        /// and AlmaLinux 8.
        pub exporter: bool = false,
        /// The port of the exporter, on all addresses of the machine.
        pub port: u16 = 9400,
    }
}

settings! {
    /// Container Device Interface.
    CdiConfig {
        /// Write a CDI specification, `/etc/cdi/nvidia.yaml`.
        pub enabled: Option<bool> => "`true`",
    }
}

settings! {
    /// Persistence.
    PersistenceConfig {
        /// Run the persistence daemon with persistence mode enabled, so that the driver keeps its state while no
        /// program uses it.
        pub enabled: Option<bool> => "`true`",
    }
}

settings! {
    /// Software for GPUs that are connected by NVLink switches. The fabric manager needs no settings.
    FabricConfig {
        /// Who runs IMEX on the nodes of a rack such as GB200 NVL72: `"off"`: not changed. `"dra"`: the DRA driver, for each
        /// ComputeDomain. `nvidia-imex.service` is stopped and masked, because it would block the daemons of the DRA driver.
        /// `"host"`: `nvidia-imex.service`, with the nodes in `fabric.imex-nodes` and the command service that the DRA driver
        /// needs in its mode `hostManaged`. On machines outside of a rack, `"host"` has no effect. See
        /// [multi-node NVLink](#multi-node-nvlink).
        pub imex: ImexMode = ImexMode::Off,
        /// The IP addresses of all nodes in the IMEX domain, including this one, such as `["10.0.0.11", "10.0.0.12"]`. Each node
        /// must have the same list. Required by `fabric.imex = "host"`.
        pub imex_nodes: Vec<IpAddr> = Vec::new(),
    }
}

settings! {
    /// RDMA with GPU memory.
    RdmaConfig {
        /// Kernel modules to load now and at every boot: `"efa"`, `"nvidia-peermem"`, `"gdrdrv"`, `"nvidia-fs"`. They are loaded
        /// in this order. The packages of `"nvidia-fs"` and `"gdrdrv"` are installed and held on systems whose repositories have
        /// them, after the driver, because they are compiled for it. See [RDMA](#rdma). `"nvidia-peermem"` is part of the driver
        /// packages, needs DOCA-OFED installed before the driver, and must have the version of the driver. A module without a
        /// package must already be installed. With open driver modules on Linux 5.12 or later, most programs use DMA-BUF and need
        /// none of them.
        pub modules: Vec<RdmaModule> = Vec::new(),
    }
}

settings! {
    /// Partitioning of GPUs (MIG). Set at most one of `layout`, `models` and `file`.
    MigConfig {
        /// The layout of all GPUs that support MIG: `"all-disabled"`, `"all-enabled"` (without instances), `"all-balanced"`
        /// (instances of three sizes), or `"all-PROFILE"` for as many instances as fit, such as `"all-1g.10gb"`. In
        /// names of profiles, a dot replaces `+`, such as `"all-1g.10gb.me"`. See [MIG](mig.md).
        pub layout: Option<NamedLayout> => "MIG is not changed",
        /// The layout of each GPU model by PCI ID, such as `["10de:2330=3g.40gb,2g.20gb,1g.10gb*2",
        /// "10de:20b7=disabled"]`. Each model that supports MIG needs an entry.
        pub models: Option<Vec<ModelLayout>> => "`[]`",
        /// A layout file of NVIDIA's MIG manager (`version: v1`), such as `"/etc/nvidia-mig-manager/config.yaml"`. It must
        /// belong to root.
        pub file: Option<AbsolutePath> => "none",
        /// The name of a layout in this file.
        pub config: Option<Word> => "the only one in the file",
        /// systemd units that use the GPUs, such as `["nvidia-dcgm.service"]`. They may be stopped while the layout is changed,
        /// and are started again. Other programs that use a GPU block the change of its layout.
        pub stop_units: Option<Vec<Word>> => "`[]`",
    }
}

settings! {
    /// A package repository.
    RepositoryConfig {
        /// `false`: do not add the repository, because the machine gets its packages from another one. `true`: add it
        /// although no package needs it.
        pub enabled: Option<bool> => "`true` if a selected package needs it, or it is new",
        /// The repository URL, for example of a mirror. May contain `{codename}`, `{release}`, `{arch}`,
        /// `{package-arch}`, `{cuda-arch}`.
        pub url: Option<Url> => "from the profile",
        /// The URL of the key.
        pub key_url: Option<Url> => "from the profile; for `nvidia-cuda` a file below the repository URL",
        /// Fingerprints of accepted keys, with all 40 digits. Any other key is rejected.
        pub fingerprints: Option<Vec<Fingerprint>> => "from the profile",
        /// A key file that already exists on the machine, instead of `key-url` and `fingerprints`.
        pub keyring: Option<AbsolutePath> => "none",
        /// deb: suites; `["/"]` for a flat repository.
        pub suites: Option<Vec<Word>> => "from the profile",
        /// deb: components.
        pub components: Option<Vec<Word>> => "from the profile",
        /// apt: pin priority of the required packages that come from this repository. For a repository that is not in
        /// the profile, it applies to all required packages.
        pub priority: Option<i32> => "`600` for `nvidia-container-toolkit`, otherwise the package manager default",
    }
}

settings! {
    /// How packages are installed.
    PackagesConfig {
        /// How long to wait for another package manager or DKMS process; `--lock-timeout` overrides it.
        pub lock_timeout: TimeLimit = TimeLimit::minutes(15),
        /// Hosts, domains and networks to access without the proxy, separated by commas.
        pub no_proxy: Option<String> => "`no_proxy` of the environment",
        /// An HTTP proxy for the package manager and for keys, also when packages are removed. Its password is never
        /// printed.
        pub proxy: Option<Proxy> => "`https_proxy`, `http_proxy` or `all_proxy` of the environment",
        /// Packages that a transaction may remove, as names or patterns. Any other removal is rejected.
        pub may_remove: Option<Vec<PackagePattern>> => "`[]`",
        /// Installed packages that may be upgraded if a dependency requires it, as names or patterns. All others stay
        /// at their version.
        pub may_upgrade: Option<Vec<PackagePattern>> => "`[]`",
    }
}

settings! {
    /// Conditions for the first change.
    PreflightConfig {
        // An estimate: driver, DKMS with a compiler, headers, Docker and a container image.
        /// Free space on `/` that a full installation requires. If `/usr`, `/var` or the apt download directory are
        /// separate filesystems, this is the total of all of them, with at least an eighth on each. The size of
        /// required packages that are already installed or downloaded is subtracted.
        pub min_free_root: Size = Size::megabytes(6000),
        // The size of an additional initramfs.
        /// Required free space on `/boot`.
        pub min_free_boot: Size = Size::megabytes(120),
        /// Required memory.
        pub min_memory: Size = Size::megabytes(1500),
    }
}

settings! {
    /// The container validation.
    ValidationConfig {
        /// Run [the probe](probe.md) in a container of each runtime: all GPUs must be visible and run a computation.
        /// If no runtime can run the container (`false`, `runtime.use = []`, or no toolkit), the probe runs on the host
        /// (`validation.compute`).
        pub container: bool = true,
        /// The image for the probe, as `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`, or `cuda` for the
        /// [NVIDIA base image](#validation-image).
        pub image: Option<Word> => "a built-in one, which needs no registry",
        /// The time limit of the container.
        pub timeout: TimeLimit = TimeLimit::minutes(1),
        /// The time limit for pulling the image, including all retries.
        pub pull_timeout: TimeLimit = TimeLimit::minutes(30),
    }
}

settings! {
    /// The cluster to join after validation.
    ClusterConfig {
        /// The join method: `"kubeadm"`, `"k3s"`, `"rke2"`, `"eks"`, `"command"`; `"managed"` if the provider has
        /// already joined the machine (node pools of GKE, AKS, EKS): gpu-bootstrap then only sets the labels and
        /// removes the startup taint.
        pub join: Option<JoinKind> => r#"`"none"`"#,
        /// kubeadm: the Kubernetes version (1.34 or newer), such as `"1.36"` or `"1.36.4"`. It selects the community repository of
        /// this minor version. kubelet, kubeadm and kubectl are installed and held. A kubelet must not be newer than
        /// the API server.
        pub version: Option<KubernetesVersion>,
        /// kubeadm: `"HOST:PORT"` of the API server. k3s and rke2: the server URL, such as `"https://10.0.0.1:6443"`,
        /// with port 9345 for rke2.
        pub server: Option<Word>,
        /// The location of the token: `"file:/etc/gpu-bootstrap/join-token"`, a file that belongs to root and has
        /// mode 0600, or one of the [other token sources](#token-sources). After the machine has joined, kubeadm
        /// no longer needs it.
        #[schemars(extend("x-secret" = "place"))]
        pub token: Option<TokenSource>,
        /// kubeadm: the digests of the cluster CA, as printed by `kubeadm token create --print-join-command`. At
        /// least one is required.
        pub ca_cert_hashes: Option<Vec<CaHash>>,
        /// kubeadm: a kubeconfig with the API server and its CA. It replaces `cluster.server`, `cluster.ca-cert-hashes`
        /// and, if it contains credentials, `cluster.token`. Mode 0600.
        pub discovery_file: Option<AbsolutePath>,
        /// kubeadm: preflight checks whose errors are treated as warnings. With `"Swap"`, swap stays enabled. Kernels
        /// older than 4.19 (AlmaLinux, Rocky and RHEL 8) need `"SystemVerification"`.
        pub ignore_preflight_errors: Option<Vec<Word>> => "`[]`",
        /// `command`: program and arguments. Runs once, after validation.
        pub command: Option<Vec<String>>,
        /// `command`: a file with `NAME=VALUE` lines for its environment. Mode 0600.
        pub environment_file: Option<AbsolutePath>,
        /// `command`: a file that exists after the machine has joined.
        pub joined_file: Option<AbsolutePath>,
        /// `command`: program and arguments that remove the machine from its cluster, with the same environment.
        /// `uninstall` runs it if the machine is a node or `cluster.joined-file` exists, and the command must remove
        /// this file. Keep `cluster.environment-file` until then. The command must not contain a value from
        /// `cluster.environment-file`, because the journal stores the command.
        pub leave_command: Option<Vec<String>>,
        /// The node name.
        pub node_name: Option<Word> => "the host name",
        /// Labels, such as `["team=research"]`. Keys that a node cannot set on itself, such as
        /// `node-role.kubernetes.io/gpu`, are rejected.
        pub labels: Option<Vec<OwnLabel>> => "`[]`",
        /// Set the labels that GPU Feature Discovery would set, and labels that make the GPU Operator use the
        /// installed driver and toolkit. The same labels are written to a file for Node Feature Discovery.
        pub gpu_labels: Option<bool> => "`true`",
        /// The program that offers the GPUs to pods, which `manifests` writes: `"device-plugin"`: the NVIDIA device plugin, as
        /// resources such as `nvidia.com/gpu`. `"dra"`: the NVIDIA DRA driver, for pods with a ResourceClaim. It requires
        /// Kubernetes 1.34.2 and driver branch 565 or later. Then `sharing.method` and the MIG strategy `"single"` are
        /// rejected, because only the device plugin has them. See [DRA driver](share-a-gpu.md#dra-driver).
        pub gpu_allocation: GpuAllocation = GpuAllocation::DevicePlugin,
        /// The MIG strategy of the device plugin: `"none"`, `"single"` or `"mixed"`. The labels depend on it.
        pub mig_strategy: Option<MigStrategy> => r#"`"none"`"#,
        /// Taints with which the node registers. On a machine without a GPU, the default is `[]`. `check` does not
        /// require a taint with the key prefix `readiness.k8s.io/`, because the node readiness controller removes it.
        /// With `join = "command"`, the command sets the taints: the default is `[]`, and `check` expects the taints in
        /// this setting. With `"eks"` and `"managed"`, the NodePool, node group or node pool sets the taints, and this
        /// key is rejected, because our kubelet flag would replace the taints of Karpenter.
        pub taints: Option<Vec<Taint>> => r#"`["nvidia.com/gpu=present:NoSchedule"]`"#,
        /// Taints that keep all pods away until the node is Ready, labeled and validated; `[]` for none. By default,
        /// the [usual startup taint](#join-methods) is set if `cluster.kubeconfig-file` is configured, which is
        /// required to remove it, because a node cannot change its own taints. With `"eks"` and `"managed"`, the
        /// provider sets the taints (`startupTaints` in Karpenter), and gpu-bootstrap only removes them.
        pub startup_taints: Option<Vec<Taint>> => "the usual startup taint if `cluster.kubeconfig-file` is set, otherwise none",
        /// A kubeconfig with permission to change nodes. Mode 0600. Used to remove the startup taint, and by
        /// `uninstall` to drain and delete the node.
        pub kubeconfig_file: Option<AbsolutePath>,
        /// The time limit for each part of the join: discovering the cluster, getting a certificate, starting the
        /// kubelet, running your commands, and becoming Ready.
        pub timeout: Option<TimeLimit> => r#"`"5m"`"#,
    }
}

settings! {
    /// Sharing of GPUs between pods by the NVIDIA device plugin, or between programs by CUDA MPS.
    SharingConfig {
        /// `"time-slicing"`: the device plugin offers each shared device to several pods, which take turns on it, without
        /// isolation and without limits for memory. `"mps"`: programs use each GPU at the same time, each with an equal part of
        /// its memory and threads. With `cluster.join`, the device plugin runs the MPS control daemon in the cluster. Without
        /// it, `install` runs the daemon on this machine, for programs and containers that set `CUDA_MPS_PIPE_DIRECTORY`. Not
        /// together with MIG. For both methods, `install` writes the configuration of the plugin to
        /// `/etc/nvidia-device-plugin/gpu-bootstrap.yaml`, and `manifests` to a ConfigMap. `"none"`: each device is offered
        /// to one pod.
        pub method: Option<SharingMethod> => r#"`"none"`"#,
        /// How often each shared device is offered, at least 2. With MPS at most 48, and the GPU is divided by this number.
        pub replicas: Option<u32>,
        /// The resources of the device plugin whose devices are shared. MIG devices such as `"nvidia.com/mig-1g.10gb"` are
        /// separate resources only with `cluster.mig-strategy = "mixed"`; with `"single"`, they are `"nvidia.com/gpu"`.
        pub resources: Option<Vec<ResourceName>> => r#"`["nvidia.com/gpu"]`"#,
        /// `true`: shared devices get another resource name, such as `nvidia.com/gpu.shared`, so that a pod that requests
        /// `nvidia.com/gpu` never shares a GPU. `false`: the name is unchanged, and the label `nvidia.com/gpu.product` of the
        /// node gets the suffix `-SHARED`.
        pub rename: Option<bool> => "`false`",
        /// Reject pods that request more than one replica, because they would not get more time or memory.
        pub fail_requests_greater_than_one: Option<bool> => "`true`",
    }
}

settings! {
    /// Outputs of `check` results for other programs. If a key is set, a timer runs `check` every minute.
    CheckConfig {
        /// The directory of the node_exporter textfile collector, such as
        /// `"/var/lib/node_exporter/textfile_collector"`: a timer writes the `check` metrics to `gpu_bootstrap.prom`
        /// there.
        pub textfile: Option<AbsolutePath>,
        /// A node condition, such as `"nvidia.com/GPUReady"`: the timer sets it with the kubelet credentials.
        pub node_condition: Option<ConditionType>,
        /// The meaning of a true condition: `"ready"`, or `"problem"` as in the node problem detector.
        pub node_condition_true: Option<ConditionMeaning> => r#"`"ready"`"#,
    }
}

settings! {
    /// How `upgrade` takes a node out of service, see [the upgrade of nodes in use](upgrade.md).
    FleetConfig {
        /// A lock that limits how many nodes are out of service: `"none"`; `"fleetlock:URL"` for a server with the
        /// [FleetLock protocol](https://github.com/coreos/zincati/blob/main/docs/development/fleetlock/protocol.md);
        /// `"command:PROGRAM ARGUMENT …"` for a program with its absolute path, which gets the additional argument
        /// `acquire` or `release` and must exit with 0 if it has done so, also if the node already holds or does not
        /// hold the lock. A failed upgrade keeps the lock.
        pub lock: FleetLock = FleetLock::None,
        /// The group of the node on the FleetLock server.
        pub lock_group: LockGroup = LockGroup::default(),
        /// How long to wait for the lock. With `fleet.window`, the wait also ends with the window.
        pub lock_timeout: TimeLimit = TimeLimit::minutes(60),
        /// The weekly maintenance window in UTC, such as `"Sat 02:00-05:00 UTC"`, `"Mon,Thu 22:00-02:00 UTC"` or
        /// `"daily 03:00-05:00 UTC"`. Outside of it, `upgrade` changes nothing and exits with 0, unless it has the
        /// option `--now`. An upgrade that has started is finished after the window.
        pub window: Option<Window>,
        /// A timer that runs `upgrade --reboot` with the settings of the last `install` when `fleet.window` opens.
        pub timer: bool = false,
        /// Cordon the node and evict its pods, if the machine is a Kubernetes node and no `fleet.leave-command` is
        /// set. `false` if another program has already drained it.
        pub drain: bool = true,
        /// How long to wait until the pods are evicted and have exited.
        pub drain_timeout: TimeLimit = TimeLimit::minutes(15),
        /// A kubeconfig to cordon the node and evict its pods, with mode 0600, instead of the kubelet's.
        pub kubeconfig_file: Option<AbsolutePath>,
        /// Evict pods without a controller. They are not started on another node.
        pub evict_unmanaged: bool = false,
        /// Evict pods with `emptyDir` volumes. The data in these volumes is deleted.
        pub delete_emptydir_data: bool = false,
        /// Program and arguments that take the node out of service instead of `fleet.drain`, such as a script that
        /// drains it in Slurm. It must not return before all jobs have ended, and has the time limit
        /// `fleet.drain-timeout`. If it fails, `fleet.return-command` runs, and the upgrade does not start.
        pub leave_command: Option<Vec<String>>,
        /// Program and arguments that return the node to service. Must succeed if the node is in service. Has the time limit
        /// `fleet.drain-timeout`, but at least five minutes.
        pub return_command: Option<Vec<String>>,
        /// Processes that still use a GPU when the node is out of service: with `"block"`, the upgrade does not
        /// start, and lists them; with `"end"`, the reboot ends them. Programs that only manage or monitor GPUs, and
        /// pods of DaemonSets, do not count.
        pub gpu_processes: GpuProcesses = GpuProcesses::Block,
    }
}

impl Config {
    /// Returns whether the machine may be without an NVIDIA GPU.
    pub fn is_gpu_optional(&self) -> bool {
        self.gpu == GpuNeed::Optional
    }
}
