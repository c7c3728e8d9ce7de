//! What people write: the configuration file, and with it the environment and `--set`, which are
//! other ways to write the same keys. Every key is optional; the profile has the defaults.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    compat::kernels::Consent,
    config::{
        desired::{ConditionMeaning, Existing, JoinKind, Restart, RuntimeKind},
        values::{
            AbsolutePath, BranchKey, Build, CaHash, ConditionType, Fingerprint, GpuNeed, Holding,
            MinisignKey, ModuleSource, ModuleTarget, PackagePattern, Proxy, Size, TimeLimit, Url,
            VersionPattern, Word,
        },
    },
    model::{
        gpu::Flavour,
        kubernetes::{KubernetesVersion, MigStrategy, OwnLabel, Taint},
        token::TokenSource,
        version::{CudaVersion, DriverVersion},
    },
};

/// The JSON schema of the configuration, as it is kept in `docs/config.schema.json`.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// The configuration of gpu-bootstrap. See docs/configuration.md.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
#[schemars(title = "gpu-bootstrap configuration")]
pub struct Config {
    /// The profile, by name or path; `--profile` goes before it.
    pub profile: Option<Word>,
    /// Whether a machine must have an NVIDIA GPU: "required", or "optional": without one it gets no driver.
    pub gpu: Option<GpuNeed>,
    /// What stays at its version: "none", "driver" (with runtimes, toolkit and Kubernetes), "driver-and-kernel".
    pub hold: Option<Holding>,
    /// More packages to hold, as names or patterns.
    pub hold_extra: Option<Vec<PackagePattern>>,
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

/// The NVIDIA driver.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct DriverConfig {
    /// The series, such as 580.
    pub branch: Option<BranchKey>,
    /// An exact version, such as "580.178.04".
    pub version: Option<DriverVersion>,
    /// Kernel modules: "open" or "proprietary".
    pub flavour: Option<Flavour>,
    /// Where packages come from: "distribution" or "nvidia".
    pub source: Option<Word>,
    /// Kernel modules packaged for the kernel ("precompiled") or compiled here ("dkms").
    pub build: Option<Build>,
    /// Kernels that may be installed to get a kernel module: none ("no"), those of the same series
    /// ("same-series"), or any of the same flavour ("any").
    pub may_change_kernel: Option<Consent>,
    /// What signs the modules compiled here, where Secure Boot is on.
    pub secure_boot: SecureBootConfig,
    /// What becomes of a driver that this program has not installed: "refuse", "keep" or "replace".
    pub existing: Option<Existing>,
    /// Go back to the driver before if another one fails validation.
    pub rollback: Option<bool>,
    /// Also install a `version` that lacks security fixes which its branch has.
    pub allow_vulnerable: Option<bool>,
    /// CUDA versions that containers will bring, such as ["12.4"].
    pub cuda: Option<Vec<CudaVersion>>,
    /// Kernel modules that were compiled on another machine.
    pub prebuilt: PrebuiltConfig,
}

/// What signs the modules compiled here, where Secure Boot is on: both keys, or none.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct SecureBootConfig {
    /// The private key.
    pub key: Option<AbsolutePath>,
    /// Its certificate (DER), which the firmware or the shim must know already.
    pub certificate: Option<AbsolutePath>,
}

/// Kernel modules that were compiled on another machine.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PrebuiltConfig {
    /// Folders, addresses and repositories of registries that have archives of `gpu-bootstrap modules export`, in the order in
    /// which they are asked.
    pub sources: Option<Vec<ModuleSource>>,
    /// Public keys of minisign's: one of them must have signed an archive.
    pub public_keys: Option<Vec<MinisignKey>>,
    /// Also use archives that nobody has signed.
    pub unsigned: Option<bool>,
    /// Where `install` puts the modules that were compiled here: a folder, or a repository of a registry.
    pub publish: Option<ModuleTarget>,
    /// The private key of minisign's that signs them.
    pub sign_key: Option<AbsolutePath>,
}

/// Container runtimes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// Which to install and configure: "docker", "containerd", "crio", "podman"; an empty list for none.
    pub r#use: Option<Vec<RuntimeKind>>,
    /// Where their packages come from: "distribution" or "docker".
    pub source: Option<Word>,
    /// Make the nvidia runtime the default one.
    pub nvidia_default: Option<bool>,
    /// Whether Docker may be restarted although that stops containers: "when-idle" (only while none
    /// runs), "always".
    pub restart: Option<Restart>,
}

/// NVIDIA Container Toolkit.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct ToolkitConfig {
    /// Install it.
    pub enabled: Option<bool>,
    /// A version such as "1.20.0", or a pattern such as "1.20.*".
    pub version: Option<VersionPattern>,
}

/// Container Device Interface.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct CdiConfig {
    /// Write a specification.
    pub enabled: Option<bool>,
}

/// Persistence.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PersistenceConfig {
    /// Run the persistence daemon.
    pub enabled: Option<bool>,
}

/// A package repository.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct RepositoryConfig {
    /// Add it.
    pub enabled: Option<bool>,
    /// Its address.
    pub url: Option<Url>,
    /// Where its key is fetched.
    pub key_url: Option<Url>,
    /// Fingerprints of acceptable keys, each whole.
    pub fingerprints: Option<Vec<Fingerprint>>,
    /// A key file that is already on the machine, instead of `key-url` and `fingerprints`.
    pub keyring: Option<AbsolutePath>,
    /// deb: suites; "/" for a flat repository.
    pub suites: Option<Vec<Word>>,
    /// deb: components.
    pub components: Option<Vec<Word>>,
    /// apt: pin priority of the wanted packages that it has.
    pub priority: Option<i32>,
}

/// How packages are installed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PackagesConfig {
    /// How long to wait for another package manager to end, such as "15m".
    pub lock_timeout: Option<TimeLimit>,
    /// An HTTP proxy, for the package manager and for keys.
    pub proxy: Option<Proxy>,
    /// Hosts, domains and networks that are reached without the proxy, separated by commas.
    pub no_proxy: Option<String>,
    /// Packages that may be removed on the way.
    pub may_remove: Option<Vec<PackagePattern>>,
    /// Installed packages that may be upgraded where a dependency demands it.
    pub may_upgrade: Option<Vec<PackagePattern>>,
}

/// Preconditions.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PreflightConfig {
    /// Free space wanted on `/`, such as "6GB".
    pub min_free_root: Option<Size>,
    /// Free space wanted on `/boot`.
    pub min_free_boot: Option<Size>,
    /// Memory wanted.
    pub min_memory: Option<Size>,
}

/// The container probe.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct ValidationConfig {
    /// Run a container with each runtime; without it the GPUs compute on the host.
    pub container: Option<bool>,
    /// The image in which the probe runs, or `cuda`: NVIDIA's base image that fits driver, GPUs and system. Without it an
    /// own one that needs no registry.
    pub image: Option<Word>,
    /// How long the container may take, such as "1m".
    pub timeout: Option<TimeLimit>,
    /// How long pulling the image may take, with all attempts.
    pub pull_timeout: Option<TimeLimit>,
}

/// The cluster that the machine joins when all else is validated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// How it joins: "kubeadm", "k3s", "rke2", "eks", "command"; "managed" for a node that is in its cluster
    /// already; "none".
    pub join: Option<JoinKind>,
    /// kubeadm: the version of Kubernetes, such as "1.36" or "1.36.4".
    pub version: Option<KubernetesVersion>,
    /// kubeadm: `HOST:PORT` of the API server. k3s, rke2: the address of a
    /// server, such as "https://10.0.0.1:6443" for k3s and "https://10.0.0.1:9345" for rke2.
    pub server: Option<Word>,
    /// Where the token is: "file:/PATH", which only root may read; "credential:NAME" (systemd), "aws-secret:REGION/NAME",
    /// "gcp-secret:PROJECT/NAME", "azure-secret:VAULT/NAME".
    #[schemars(extend("x-secret" = "place"))]
    pub token: Option<TokenSource>,
    /// kubeadm: the digests of the cluster's certificate authority, each "sha256:…".
    pub ca_cert_hashes: Option<Vec<CaHash>>,
    /// kubeadm: a kubeconfig that says how to find the cluster, in place of server, token and digests.
    pub discovery_file: Option<AbsolutePath>,
    /// kubeadm: preflight checks whose errors count as warnings, such as ["Swap"].
    pub ignore_preflight_errors: Option<Vec<Word>>,
    /// command: program and arguments that make this machine a node.
    pub command: Option<Vec<String>>,
    /// command: a file with `NAME=VALUE` lines for its environment, which only root may read.
    pub environment_file: Option<AbsolutePath>,
    /// command: a file that exists once the machine has joined.
    pub joined_file: Option<AbsolutePath>,
    /// command: program and arguments that take this machine out of its cluster again, on `uninstall`.
    pub leave_command: Option<Vec<String>>,
    /// The node's name; without it the machine's host name.
    pub node_name: Option<Word>,
    /// Labels of the node beside those that describe its GPUs, such as ["team=research"].
    pub labels: Option<Vec<OwnLabel>>,
    /// Label the node with what GPU Feature Discovery would find.
    pub gpu_labels: Option<bool>,
    /// How the device plugin offers MIG devices, which the labels must say alike: "none", "single", "mixed".
    pub mig_strategy: Option<MigStrategy>,
    /// Taints of the node. Without this key a GPU node gets `nvidia.com/gpu=present:NoSchedule`.
    pub taints: Option<Vec<Taint>>,
    /// Taints that keep pods away until the node is Ready and validated. Without this key there is the usual one wherever
    /// `kubeconfig-file` can remove it.
    pub startup_taints: Option<Vec<Taint>>,
    /// A kubeconfig that may change nodes: to remove the startup taint, and to drain and delete the node on
    /// `uninstall`. Only root may read it.
    pub kubeconfig_file: Option<AbsolutePath>,
    /// How long each part of joining may take, such as "5m": to find the cluster, to get a certificate, to start the
    /// kubelet, to run your commands, to become Ready.
    pub timeout: Option<TimeLimit>,
}

/// Where others read what `check` finds: a timer runs it each minute.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct CheckConfig {
    /// The folder of node_exporter's textfile collector: metrics are written there.
    pub textfile: Option<AbsolutePath>,
    /// A condition that the node has in its cluster, such as "nvidia.com/GPUReady".
    pub node_condition: Option<ConditionType>,
    /// What it means that the condition is true: "ready", "problem".
    pub node_condition_true: Option<ConditionMeaning>,
}
