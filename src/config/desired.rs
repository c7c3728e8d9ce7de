//! The resolved target: nothing in it says "auto".

use camino::Utf8PathBuf;
use serde::Serialize;

use crate::compat::matrix::Fabric;
use crate::config::file::Config;
use crate::model::{
    gpu::Flavour,
    pci::PciId,
    secret::{self, Secret},
    version::{Branch, DriverVersion},
};

use crate::tools::prebuilt::Trust;

pub use crate::{
    config::choices::{ConditionMeaning, Existing, Restart},
    config::kernel::{KernelWish, ModuleWay},
    joins::{ClusterWish, Discovery, JoinKind, JoinMethod, NodeWish},
    model::packages::{PackageWish, Pin, Repository},
    runtimes::{Daemon, RuntimeKind},
    tools::packages::Manager,
};

/// What the machine shall be. Steps read it and nothing else of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Desired {
    /// The profile's name.
    pub profile: String,
    /// This machine becomes an image: work for a live kernel or GPU awaits the first boot.
    pub image: bool,
    /// GPUs that the instances of the image will have.
    pub assume_gpus: Vec<PciId>,
    /// The settings, for the keys whose default is the same on every machine: others are resolved, and only this room sees
    /// them.
    #[serde(skip)]
    pub settings: Config,
    /// How packages are installed.
    pub packages: PackagePolicy,
    /// Repositories to add: other vendors', and further components of the distribution's own archive.
    pub repositories: Vec<Repository>,
    /// Versions that the package manager must prefer over newer ones, also for dependencies.
    pub pins: Vec<Pin>,
    /// In-tree drivers that must not take the GPU, as `nouveau`.
    pub deny_modules: Vec<String>,
    /// Kernel headers and build tools, by package name, for the running and next-boot kernel.
    pub headers: Vec<PackageWish>,
    /// Packages with the modules that container runtimes and pod networks need of these kernels, where the kernel's own
    /// package lacks them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_modules: Vec<PackageWish>,
    /// The kernels that may run, and how the driver's module may come to them; `None` without a
    /// driver.
    pub kernel: Option<KernelWish>,
    /// The driver; `None` on a machine without a GPU when that is allowed.
    pub driver: Option<DriverWish>,
    /// Persistence of the driver's state.
    pub persistence: Option<Persistence>,
    /// Container runtimes.
    pub runtimes: Vec<RuntimeWish>,
    /// Whether the restart or the removal of a daemon may stop containers. It also applies to a runtime that is no longer
    /// configured.
    pub runtime_restart: Restart,
    /// NVIDIA Container Toolkit.
    pub toolkit: Option<ToolkitWish>,
    /// Container Device Interface.
    pub cdi: Option<Cdi>,
    /// The container probe.
    pub validation: Validation,
    /// What is held at its version.
    pub hold: Hold,
    /// The cluster that the machine belongs to; `None` if it joins none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterWish>,
    /// Where others read what `check` finds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportsWish>,
}

/// Where a timer writes what `check` finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReportsWish {
    /// The file with metrics, which node_exporter reads.
    pub metrics: Option<Utf8PathBuf>,
    /// Whether the node has a condition.
    pub node_condition: bool,
}

/// A condition of the node in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionWish {
    /// Its type.
    pub kind: String,
    pub meaning: ConditionMeaning,
}

/// What a group of packages is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Purpose<'d> {
    /// Kernel headers, build tools, and further modules of the kernel.
    Headers,
    /// The driver.
    Driver,
    /// A container runtime.
    Runtime(&'d RuntimeWish),
    /// NVIDIA Container Toolkit.
    Toolkit,
    /// What makes the machine a node.
    Cluster,
    /// What holds need.
    Holds,
}

impl Desired {
    /// All packages that are wanted, by what they are for. Whoever needs the whole set takes it from
    /// here: a new part of the desired state does not compile until it is named below.
    #[must_use]
    pub fn package_groups(&self) -> Vec<(Purpose<'_>, &[PackageWish])> {
        let Self {
            headers,
            container_modules,
            driver,
            runtimes,
            runtime_restart: _,
            toolkit,
            persistence: _,
            // A kernel stays when nobody wants it any more: the machine may run it.
            kernel: _,
            profile: _,
            image: _,
            assume_gpus: _,
            settings: _,
            packages: _,
            repositories: _,
            pins: _,
            deny_modules: _,
            cdi: _,
            validation: _,
            hold,
            cluster,
            reports: _,
        } = self;
        let mut groups: Vec<(Purpose<'_>, &[PackageWish])> = vec![
            (Purpose::Headers, headers),
            (Purpose::Headers, container_modules),
        ];
        groups.extend(driver.iter().map(|one| (Purpose::Driver, &*one.packages)));
        groups.extend((runtimes.iter()).map(|one| (Purpose::Runtime(one), &*one.packages)));
        groups.extend(toolkit.iter().map(|one| (Purpose::Toolkit, &*one.packages)));
        groups.extend(cluster.iter().map(|one| (Purpose::Cluster, &*one.packages)));
        groups.retain(|(_, packages)| !packages.is_empty());
        // Where nothing is wanted, nothing is held.
        if !(groups.is_empty() || hold.patterns.is_empty() || hold.packages.is_empty()) {
            groups.push((Purpose::Holds, &hold.packages));
        }
        groups
    }
}

/// How packages are handled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PackagePolicy {
    /// Which package manager.
    pub manager: Manager,
    /// Seconds to wait for another package manager to end.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy for the package manager and for us: its address may hold a password.
    #[serde(serialize_with = "secret::hidden")]
    pub proxy: Option<Secret>,
    /// Hosts, domains and networks that are reached without it, separated by commas.
    pub no_proxy: Option<String>,
    /// Timers and services that start the package manager by themselves; paused during a run.
    pub pause_units: Vec<String>,
    /// Packages whose removal the plan accepts (shell patterns).
    pub may_remove: Vec<String>,
    /// Installed packages that the plan does not name and that may still be upgraded where a
    /// dependency demands it (shell patterns); all others stay at their version.
    pub may_upgrade: Vec<String>,
    /// What no transaction may bring, whatever dependencies want.
    pub guard: Guard,
}

/// What no transaction may bring, whatever dependencies want: only its simulation shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Guard {
    /// The driver's branch. A package whose name says another branch can be transitional.
    pub driver: Option<Branch>,
    /// Shell patterns over names of packages with a driver module and the version of a kernel: the module
    /// must be of the version of the libraries.
    pub modules: Vec<String>,
    /// Shell patterns over names of packages that are a kernel: a new kernel is not installed
    /// without consent.
    pub kernels: Vec<String>,
    /// Packages that work only beside the driver of exactly their version.
    pub exact: Vec<String>,
}

/// The driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DriverWish {
    /// Series.
    pub branch: Branch,
    /// Exact version where one was asked for or picked; else the newest of the branch.
    pub version: Option<DriverVersion>,
    /// Kernel module flavour.
    pub flavour: Flavour,
    /// Flavour assumed for a GPU that the matrix does not know.
    pub assumed: bool,
    /// Where the packages come from, by the profile's name for it: `distribution` or `nvidia`.
    pub source: String,
    /// Another source, which has modules in a way that this one has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternative: Option<OtherSource>,
    /// The module stream to enable first, such as `nvidia-driver:580-open`, where the package
    /// manager has streams.
    pub stream: Option<String>,
    /// What is installed.
    pub packages: Vec<PackageWish>,
    /// The DKMS module name, where the module is compiled on the machine.
    pub dkms: Option<String>,
    /// Name of the kernel module's file, without `.ko`. What is loaded is always called `nvidia`;
    /// Debian renames the file and has an alias.
    pub module: String,
    /// Modules to load at boot, in order.
    pub load_modules: Vec<String>,
    /// What becomes of a driver that somebody else has installed.
    pub existing: Existing,
    /// Settings name the branch or the version: then it may also be an older one than is installed.
    pub asked: bool,
    /// Go back to the driver that was proven last if this one fails validation.
    pub rollback: bool,
    /// Why the exact version that was asked for is not newly installed: security fixes that it lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable: Option<String>,
    /// Why this pick, for people.
    pub reasons: Vec<String>,
    /// Doubts, for people.
    pub warnings: Vec<String>,
    /// The service without which the GPUs of this machine do not work: its switches were seen.
    pub fabric: Fabric,
    /// What signs modules that are compiled on the machine.
    pub signing: Option<SigningKey>,
    /// Where modules come from that were compiled on another machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prebuilt: Option<Prebuilt>,
    /// Where modules go that were compiled on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publish>,
    /// Options that its modules need on this machine.
    pub options: Vec<ModuleOption>,
    /// How that service is set up; `None` where nothing is needed, or the source does not have it.
    pub fabric_service: Option<FabricService>,
}

/// Another source of the driver for this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OtherSource {
    /// The profile's name for it.
    pub source: String,
    /// Its modules are compiled on the machine; otherwise they are packaged, and signed by their vendor.
    pub compiled: bool,
}

/// A key that signs kernel modules, which the machine must trust already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SigningKey {
    /// The private key.
    pub key: Utf8PathBuf,
    /// Its certificate.
    pub certificate: Utf8PathBuf,
}

/// Where modules come from that were compiled on another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Prebuilt {
    /// Folders, addresses, and repositories of registries.
    pub sources: Vec<String>,
    /// Public keys of minisign's; none where unsigned archives are accepted.
    pub public_keys: Vec<String>,
    /// The oldest time of a signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<jiff::Timestamp>,
}

impl Prebuilt {
    /// The signatures that count.
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust {
            keys: self.public_keys.clone(),
            not_before: self.not_before,
        }
    }
}

/// Where modules go that were compiled on this machine, once it is proven with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Publish {
    /// A folder, or a repository of a registry.
    pub to: String,
    /// The private key that signs them; none where unsigned archives are accepted.
    pub key: Option<Utf8PathBuf>,
}

/// An option of a kernel module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModuleOption {
    /// The module, by the name of its file.
    pub module: String,
    /// Its parameter.
    pub name: String,
    /// The value.
    pub value: String,
    /// What it does, for people.
    pub why: String,
}

impl DriverWish {
    /// Whether the module is compiled on the machine.
    #[must_use]
    pub const fn is_compiled(&self) -> bool {
        self.dkms.is_some()
    }

    /// Takes the module in this way.
    pub fn take_module(&mut self, way: &ModuleWay) {
        self.dkms.clone_from(&way.dkms);
        self.module.clone_from(&way.module);
    }
}

/// What runs beside the driver where GPUs reach others through switches.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FabricService {
    /// Those of the driver's packages that work with no other version of the driver, by name.
    pub exact: Vec<String>,
    /// The unit that must run; `None` where the cluster starts it.
    pub unit: Option<String>,
    /// Kernel modules that must be loaded before the unit starts.
    pub modules: Vec<String>,
}

impl FabricService {
    /// Its packages that work only beside this version of the driver.
    #[must_use]
    pub fn at(&self, version: &DriverVersion) -> Vec<PackageWish> {
        let wish = |name: &String| PackageWish {
            name: name.clone(),
            version: Some(format!("{version}-*")),
        };
        self.exact.iter().map(wish).collect()
    }
}

/// Persistence.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Persistence {
    /// The unit of the persistence daemon.
    pub unit: String,
}

/// A container runtime.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeWish {
    /// Which.
    pub kind: RuntimeKind,
    /// What is installed.
    pub packages: Vec<PackageWish>,
    /// Packages any of which means that the runtime is already there from elsewhere, and stays.
    pub alternatives: Vec<String>,
    /// Its unit; `None` for a runtime without a daemon.
    pub unit: Option<String>,
    /// Make the nvidia runtime the default one.
    pub nvidia_default: bool,
}

/// NVIDIA Container Toolkit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ToolkitWish {
    /// What is installed, all at one version.
    pub packages: Vec<PackageWish>,
    /// Why the exact version that was asked for is not newly installed: security fixes that it lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable: Option<String>,
}

/// CDI.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cdi {
    /// Where the specification is written.
    pub path: Utf8PathBuf,
}

/// The container probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Validation {
    /// Run a container with each runtime; without it the GPUs compute on the host.
    pub container: bool,
    /// The image in which the probe runs; `None` means one that is made for it.
    pub image: Option<String>,
    /// Seconds that the container may take.
    pub timeout_seconds: u64,
    /// Seconds that pulling the image may take, with all attempts.
    pub pull_timeout_seconds: u64,
}

/// How long pulling an image may take in seconds, where nobody has said otherwise: big images take
/// minutes.
#[must_use]
pub const fn pull_timeout() -> u64 {
    1800
}

/// Holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hold {
    /// Shell patterns over names of installed packages, as `libnvidia-*`.
    pub patterns: Vec<String>,
    /// Patterns that unattended upgrades must leave alone (regular expressions on names).
    pub blacklist: Vec<String>,
    /// What holds need to have an effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageWish>,
}
