//! What people write: the configuration file, and with it the environment and `--set`, which are
//! other ways to write the same keys. Every key is optional; the profile has the defaults.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    compat::kernels::Consent,
    config::{
        choices::{ConditionMeaning, Existing, Restart},
        values::{
            AbsolutePath, BranchKey, Build, CaHash, ConditionType, Fingerprint, GpuNeed, Holding,
            MinisignKey, ModuleSource, ModuleTarget, Moment, PackagePattern, Proxy, Size,
            TimeLimit, Url, VersionPattern, Word,
        },
    },
    joins::JoinKind,
    model::{
        gpu::Flavour,
        kubernetes::{KubernetesVersion, MigStrategy, OwnLabel, Taint},
        token::TokenSource,
        version::{CudaVersion, DriverVersion},
    },
    runtimes::RuntimeKind,
};

/// The JSON schema of the configuration, as it is kept in `docs/config.schema.json`.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// A table of settings. A row is a key: what it is for, in Markdown, its type, and what counts without it: `= VALUE`, where
/// that is the same on every machine, or `=> "WORDS"`. Schema, documents and messages come from it. A key with a value is read
/// by whoever needs it, as `desired.settings.TABLE.KEY`; of the others `resolve` makes something.
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
        /// A name (`debian`, `ubuntu`, `almalinux`, `amzn`) or a path to a file; `--profile` overrides it. Without it,
        /// a derived distribution (`ID_LIKE`) uses the related profile, with a warning.
        pub profile: Option<Word> => "by `ID` of `/etc/os-release`",
        /// `"optional"`: a machine without an NVIDIA GPU is acceptable, and gets runtimes and no driver. For pools that
        /// share one configuration with CPU nodes.
        pub gpu: GpuNeed = GpuNeed::Required,
        /// Which packages stay at their versions, so that background upgrades do not change them: `"none"`; `"driver"`,
        /// those of the driver, the runtimes, the container toolkit and Kubernetes; `"driver-and-kernel"`, also kernel
        /// and headers, because a new kernel has no driver module until one is built for it.
        pub hold: Option<Holding> => r#"`"driver-and-kernel"`"#,
        /// More packages to hold, as names or patterns; without effect where `hold` is `"none"`.
        pub hold_extra: Option<Vec<PackagePattern>> => "`[]`",
        /// The NVIDIA driver.
        pub driver: DriverConfig,
        /// Container runtimes.
        pub runtime: RuntimeConfig,
        /// NVIDIA Container Toolkit.
        pub toolkit: ToolkitConfig,
        /// Container Device Interface.
        pub cdi: CdiConfig,
        /// Persistence of the driver's state.
        pub persistence: PersistenceConfig,
        /// Package repositories, by name.
        pub repositories: BTreeMap<String, RepositoryConfig>,
        /// How packages are installed.
        pub packages: PackagesConfig,
        /// What must hold before anything is changed.
        pub preflight: PreflightConfig,
        /// The container probe at the end.
        pub validation: ValidationConfig,
        /// The cluster that the machine joins when all else is validated.
        pub cluster: ClusterConfig,
        /// Where others read what `check` finds.
        pub check: CheckConfig,
    }
}

settings! {
    /// The NVIDIA driver.
    DriverConfig {
        /// The driver branch, as `580`.
        pub branch: Option<BranchKey> => "the matrix decides: a supported long-term branch first",
        /// An exact version in quotes, as `"580.178.04"`.
        pub version: Option<DriverVersion> => "the newest of the branch",
        /// Kernel modules: `"open"` or `"proprietary"`.
        pub flavour: Option<Flavour> => "by GPU and branch",
        /// Where packages come from: the distribution's archive or NVIDIA's repository.
        pub source: Option<Word> => r#"`"nvidia"`; on Ubuntu `"distribution"`, unless only NVIDIA's repository has what manages the GPUs' switches"#,
        /// Packaged modules, or modules compiled on the machine.
        pub build: Option<Build> => r#"`"precompiled"` if the source has modules for the kernel, otherwise `"dkms"`"#,
        /// Kernels that may be installed for the driver's module: `"no"` none; `"same-series"` a newer one of the same
        /// series and flavour (6.8, `aws`), if the kernels of the machine have no packaged module, also where one could
        /// be compiled; `"any"` also one of another series, if nothing else leads to a module. Each costs one reboot.
        pub may_change_kernel: Option<Consent> => r#"`"same-series"`"#,
        /// What becomes of a driver that this program has not installed: `"refuse"` ends the run (exit 5), `"keep"`
        /// keeps one of NVIDIA's installer or of the image (e.g. Amazon's accelerated image for EKS) if it supports the
        /// GPUs, with a warning if its branch is not the configured one; `"replace"` removes it. What this program has
        /// installed it replaces without this setting: see [another driver](#another-driver).
        pub existing: Option<Existing> => r#"`"refuse"`"#,
        /// If another driver fails validation, go back to the one before: a node without a working GPU is worse than
        /// one with the old driver.
        pub rollback: Option<bool> => "`true`",
        /// A `driver.version` or `toolkit.version` (a whole one, not a pattern) that lacks security fixes is not newly
        /// installed (exit 5; the message names NVIDIA's bulletin), unless this is `true`. What is already there stays,
        /// and so do a version that the source has as its newest and the driver of a rollback: `plan` and `check` name
        /// what they lack.
        pub allow_vulnerable: Option<bool> => "`false`",
        /// CUDA versions of the containers, in quotes, as `["12.4"]`. A driver that does not support them is not
        /// selected. A version that was never released is refused; of one that is newer than the matrix a warning says
        /// that its driver is not known.
        pub cuda: Option<Vec<CudaVersion>> => "`[]`",
        /// What signs the modules compiled here, where Secure Boot is on.
        pub secure_boot: SecureBootConfig,
        /// Kernel modules that were compiled on another machine.
        pub prebuilt: PrebuiltConfig,
    }
}

settings! {
    /// What signs the modules compiled here, where Secure Boot is on: both keys, or none.
    SecureBootConfig {
        /// Where Secure Boot is on: a private key that signs what DKMS compiles.
        pub key: Option<AbsolutePath> => "none",
        /// Its certificate (DER). The firmware (`db`) or the shim (`MokListRT`) must know it already; otherwise the run
        /// is refused at once.
        pub certificate: Option<AbsolutePath> => "none",
    }
}

settings! {
    /// Kernel modules that were compiled on another machine.
    PrebuiltConfig {
        /// Folders, addresses and repositories of registries, as `["oci://registry.example/team/gpu",
        /// "https://modules.example/gpu", "/srv/modules"]`, that have archives of `gpu-bootstrap modules export`. DKMS
        /// asks them before it compiles, also for a kernel that comes later, and compiles as always where none has
        /// modules for the kernel, driver, flavour and distribution, or where they do not fit. No logins: everybody on
        /// the machine can read the addresses. A registry is asked by HTTPS alone, with the login that `docker login`
        /// of root has written. See [modules that are compiled once](#modules-that-are-compiled-once).
        pub sources: Option<Vec<ModuleSource>> => "`[]`",
        /// Public keys of [minisign](https://jedisct1.github.io/minisign/), each the second line of `minisign.pub`. One
        /// of them must have signed an archive (`ARCHIVE.minisig` beside it); otherwise it is not used. Not together
        /// with `driver.prebuilt.unsigned`.
        pub public_keys: Option<Vec<MinisignKey>> => "`[]`",
        /// A day or a time, such as `"2026-01-31"` or `"2026-01-31T12:00:00Z"`: an archive that was signed before it is
        /// not used. Set it to the time at which you replaced archives that have an error: their signatures stay valid,
        /// so whoever can write to a source could put them back. What was published before it is published again. Not
        /// together with `driver.prebuilt.unsigned`.
        pub not_before: Option<Moment> => "none",
        /// `true`: archives need no signature. Whoever can write to a source then has root on each machine that asks
        /// it, so it must not start with `http://`.
        pub unsigned: Option<bool> => "`false`",
        /// Where `install` puts the modules that DKMS has compiled here for the running kernel, once the machine has
        /// passed validation with them: `"oci://registry.example/team/gpu"`, or a folder that root alone may write.
        /// What is there already stays, and modules from a source are not published. Where it does not succeed, a
        /// warning says why, and the node is ready all the same.
        pub publish: Option<ModuleTarget> => "nothing is published",
        /// The private key of minisign that signs what is published, made without a password (`minisign -G -W`). The
        /// file is root's with mode 0600. Whoever reads it can give kernel modules to each machine that trusts its
        /// public key, so give it to builders and not to all nodes. Not needed with `driver.prebuilt.unsigned`.
        pub sign_key: Option<AbsolutePath> => "none",
    }
}

settings! {
    /// Container runtimes.
    RuntimeConfig {
        /// The runtimes to install and configure: `docker`, `containerd`, `crio`, `podman`; `[]` for none. Without the
        /// key it is what the machine has; else `containerd` where it joins a cluster by kubeadm, by a command or by
        /// its provider; else none where k3s, RKE2, k0s or MicroK8s is there, which bring their own; else `docker`.
        /// Where it joins by k3s, RKE2 or EKS it is `[]`, too. containerd beside Docker counts only if this program has
        /// prepared it, and Podman does not count. `plan` says what was chosen, and why. A runtime that is already
        /// installed, also without a package, is not replaced, only configured. Podman has no daemon and needs no
        /// configuration: from version 4.1 on it reads the CDI specification (`podman run --device
        /// nvidia.com/gpu=all`), so `cdi.enabled` and `toolkit.enabled` must be `true`. Its packages are those of the
        /// distribution: Debian 12 and 13, Ubuntu 24.04 and 26.04, AlmaLinux 9 and 10 (there it was only planned, and
        /// not run). CRI-O is not in Debian's archive: its package comes from repositories that the administrator has
        /// added. Its nvidia runtime is written into `/etc/crio/crio.conf.d/99-nvidia.toml`.
        pub r#use: Option<Vec<RuntimeKind>> => "what is installed",
        /// Where packages come from: the distribution's archive or Docker's repository.
        pub source: Option<Word> => r#"`"distribution"`; on AlmaLinux `"docker"`"#,
        /// Make the nvidia runtime the default one.
        pub nvidia_default: Option<bool> => "`false`",
        /// Whether Docker may be restarted although that stops containers. Docker takes up the nvidia runtime by a
        /// reload, and CDI (25.0 to 28.1) only by a restart. With `"when-idle"` it is restarted only while no container
        /// runs, or with Docker's `live-restore`; `plan` names the containers. With `"always"` they are stopped. A
        /// restart of containerd or CRI-O stops no containers.
        pub restart: Option<Restart> => r#"`"when-idle"`"#,
    }
}

settings! {
    /// NVIDIA Container Toolkit.
    ToolkitConfig {
        /// Install it.
        pub enabled: Option<bool> => "`true`",
        /// A version as `"1.20.0"`, or a pattern as `"1.20.*"`; for all of its packages. A version that lacks security
        /// fixes: see `driver.allow-vulnerable`.
        pub version: Option<VersionPattern> => "the newest",
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
        /// Run the persistence daemon with persistence mode on, so that the driver keeps its state while no program
        /// uses it.
        pub enabled: Option<bool> => "`true`",
    }
}

settings! {
    /// A package repository.
    RepositoryConfig {
        /// `false`: do not add it; the machine gets its packages from another repository. `true`: add it although no
        /// package needs it.
        pub enabled: Option<bool> => "`true` if a selected package needs it, or it is new",
        /// Its address, for example of a mirror. May contain `{codename}`, `{release}`, `{arch}`, `{package-arch}`,
        /// `{cuda-arch}`.
        pub url: Option<Url> => "the profile's",
        /// The address of the key.
        pub key_url: Option<Url> => "the profile's; for `nvidia-cuda` a file below the address",
        /// Accepted keys, each by its full fingerprint of 40 digits. A key that matches none of them is refused.
        pub fingerprints: Option<Vec<Fingerprint>> => "the profile's",
        /// A key file that is already on the machine, instead of the two above.
        pub keyring: Option<AbsolutePath> => "none",
        /// deb: suites; `["/"]` for a flat repository.
        pub suites: Option<Vec<Word>> => "the profile's",
        /// deb: components.
        pub components: Option<Vec<Word>> => "the profile's",
        /// apt: pin priority of the wanted packages that need it (of all wanted packages if it is a repository of your
        /// own).
        pub priority: Option<i32> => "`600` for `nvidia-container-toolkit`, otherwise that of the package manager",
    }
}

settings! {
    /// How packages are installed.
    PackagesConfig {
        /// How long to wait until another package manager, or another DKMS, ends; `--lock-timeout` overrides it.
        pub lock_timeout: Option<TimeLimit> => r#"`"15m"`"#,
        /// Hosts, domains and networks that are reached without the proxy, separated by commas.
        pub no_proxy: Option<String> => "`no_proxy` of the environment",
        /// An HTTP proxy for the package manager and for keys, also when packages are removed. A password in it is
        /// never shown.
        pub proxy: Option<Proxy> => "`https_proxy`, `http_proxy` or `all_proxy` of the environment",
        /// Packages that a transaction may remove, as names or patterns. Any other removal is refused.
        pub may_remove: Option<Vec<PackagePattern>> => "`[]`",
        /// Installed packages that may be upgraded if a dependency requires it, as names or patterns. All others stay
        /// at their version.
        pub may_upgrade: Option<Vec<PackagePattern>> => "`[]`",
    }
}

settings! {
    /// Preconditions.
    PreflightConfig {
        // An estimate: driver, DKMS with a compiler, headers, Docker and a container image.
        /// Required free space for a whole installation: on `/`, or, if `/usr`, `/var` or apt's downloads have
        /// filesystems of their own, together with them, and an eighth of it on each; packages that an interrupted run
        /// has installed are subtracted.
        pub min_free_root: Size = Size::megabytes(6000),
        // The space for one more initramfs.
        /// Required free space on `/boot`.
        pub min_free_boot: Size = Size::megabytes(120),
        /// Required memory.
        pub min_memory: Size = Size::megabytes(1500),
    }
}

settings! {
    /// The container probe.
    ValidationConfig {
        /// Run a container with each runtime; it must see all GPUs and compute on them ([the probe](probe.md)). Not
        /// with CRI-O, which runs only pods: run a pod with a GPU there. Where none runs (`false`, `runtime.use = []`,
        /// CRI-O alone, no toolkit), the GPUs must compute on the host (`validation.compute`).
        pub container: Option<bool> => "`true`",
        /// The image in which the probe runs, as `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`; or `cuda`,
        /// [NVIDIA's base image](#the-image-of-the-probe).
        pub image: Option<Word> => "a built-in one, which needs no registry",
        /// The time limit of the container.
        pub timeout: Option<TimeLimit> => r#"`"1m"`"#,
        /// The time limit for pulling the image, with all attempts.
        pub pull_timeout: Option<TimeLimit> => r#"`"30m"`"#,
    }
}

settings! {
    /// The cluster that the machine joins when all else is validated.
    ClusterConfig {
        /// How the machine joins: `"kubeadm"`, `"k3s"`, `"rke2"`, `"eks"`, `"command"`; `"managed"` where the provider
        /// has joined it already (node pools of GKE, AKS, EKS): then it gets its labels, and loses the startup taint.
        pub join: Option<JoinKind> => r#"`"none"`"#,
        /// kubeadm: the version of Kubernetes, such as `"1.36"`, or `"1.36.4"`. It selects the community's repository
        /// of that minor version; kubelet, kubeadm and kubectl are installed and held. A kubelet may not be newer than
        /// the API server.
        pub version: Option<KubernetesVersion>,
        /// kubeadm: `"HOST:PORT"` of the API server. k3s and rke2: the server's address, such as
        /// `"https://10.0.0.1:6443"`, for rke2 with port 9345.
        pub server: Option<Word>,
        /// Where the token is: `"file:/etc/gpu-bootstrap/join-token"`, a file that belongs to root and has mode 0600;
        /// or one of the [other places](#other-places-of-the-token). Once the machine has joined kubeadm does not need
        /// it any more.
        #[schemars(extend("x-secret" = "place"))]
        pub token: Option<TokenSource>,
        /// kubeadm: the digests of the cluster's certificate authority, as `kubeadm token create --print-join-command`
        /// prints them. At least one is needed.
        pub ca_cert_hashes: Option<Vec<CaHash>>,
        /// kubeadm: a kubeconfig that says how to find the cluster, in place of server, digests and, if it has
        /// credentials, the token. Mode 0600.
        pub discovery_file: Option<AbsolutePath>,
        /// kubeadm: names of preflight checks whose errors count as warnings. With `"Swap"`, swap stays on.
        /// Kernels older than 4.19 (AlmaLinux, Rocky and RHEL 8) need `"SystemVerification"`.
        pub ignore_preflight_errors: Option<Vec<Word>> => "`[]`",
        /// `command`: program and arguments. It runs once, when everything is validated.
        pub command: Option<Vec<String>>,
        /// `command`: `NAME=VALUE` lines for its environment; mode 0600.
        pub environment_file: Option<AbsolutePath>,
        /// `command`: a file that exists once the machine has joined.
        pub joined_file: Option<AbsolutePath>,
        /// `command`: program and arguments that take the machine out of its cluster again, with the same environment.
        /// `uninstall` runs it while the machine is a node or `cluster.joined-file` exists, and the file must be gone
        /// then. Until then keep `cluster.environment-file`; no value of it may stand in this command, because the
        /// journal keeps it.
        pub leave_command: Option<Vec<String>>,
        /// The node's name.
        pub node_name: Option<Word> => "the host name",
        /// Labels, such as `["team=research"]`. Keys that a node may not set on itself are refused, such as
        /// `node-role.kubernetes.io/gpu`.
        pub labels: Option<Vec<OwnLabel>> => "`[]`",
        /// Label the node with what GPU Feature Discovery would find, and with what makes the GPU Operator take the
        /// driver and the toolkit that are there. The same labels go into a file for Node Feature Discovery.
        pub gpu_labels: Option<bool> => "`true`",
        /// How the device plugin offers MIG devices, which the labels must say alike: `"none"`, `"single"`, `"mixed"`.
        pub mig_strategy: Option<MigStrategy> => r#"`"none"`"#,
        /// Taints that the node registers with; none on a machine without a GPU. A taint whose key begins with
        /// `readiness.k8s.io/` is only set: the node readiness controller removes it. With `join = "command"` the
        /// command gives the node its taints: the default is none, and `check` looks for those that are named here.
        /// With `"eks"` and `"managed"` the NodePool, node group or node pool gives them, and the key is refused: a
        /// flag of ours would replace those of Karpenter.
        pub taints: Option<Vec<Taint>> => r#"`["nvidia.com/gpu=present:NoSchedule"]`"#,
        /// Register with taints that keep all pods away, and remove them when the node is Ready, labelled and
        /// validated; `[]` for none. Without the key it is the [usual one](#each-way-to-join) where
        /// `cluster.kubeconfig-file` is set: a node may not change its own taints. With `"eks"` and `"managed"` the
        /// provider sets them (on Karpenter as `startupTaints`), and they are only removed.
        pub startup_taints: Option<Vec<Taint>> => "the usual one with `cluster.kubeconfig-file`, otherwise none",
        /// A kubeconfig that may change nodes; mode 0600. It removes the startup taint, and on `uninstall` drains and
        /// deletes the node.
        pub kubeconfig_file: Option<AbsolutePath>,
        /// How long each part of joining may take: to find the cluster, to get a certificate, to start the kubelet, to
        /// run your commands, to become Ready.
        pub timeout: Option<TimeLimit> => r#"`"5m"`"#,
    }
}

settings! {
    /// Where others read what `check` finds: a timer runs it each minute.
    CheckConfig {
        /// The folder of node_exporter's textfile collector, such as `"/var/lib/node_exporter/textfile_collector"`: a
        /// timer writes the metrics of `check` into `gpu_bootstrap.prom` there.
        pub textfile: Option<AbsolutePath>,
        /// A condition of the node, such as `"nvidia.com/GPUReady"`: the timer writes it with the credentials of the
        /// kubelet.
        pub node_condition: Option<ConditionType>,
        /// What it means that the condition is true: `"ready"`, or `"problem"` as with the conditions of the node
        /// problem detector.
        pub node_condition_true: Option<ConditionMeaning> => r#"`"ready"`"#,
    }
}

impl Config {
    /// Whether the machine may be without an NVIDIA GPU.
    #[must_use]
    pub fn is_gpu_optional(&self) -> bool {
        self.gpu == GpuNeed::Optional
    }
}
