//! The resolved desired state. It contains no "auto" values.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::config::file::Config;
use crate::fabric::Companions;
use crate::mig::LayoutRequest;
use crate::model::{
    gpu::Flavor,
    pattern,
    pci::PciId,
    secret::{self, Secret},
    version::{Branch, DriverVersion},
};

use crate::tools::{packages::Backend, prebuilt::Trust};

pub use crate::{
    config::choices::{ConditionMeaning, Existing, GpuProcesses, RdmaModule, Restart},
    config::kernel::{KernelSpec, ModuleMethod},
    joins::{ClusterSpec, Discovery, JoinKind, JoinMethod, NodeSpec},
    model::packages::{PackageSpec, Pin, Repository},
    runtimes::{Daemon, RuntimeKind, archive::ImageArchive},
    sharing::{DevicePluginSpec, MpsDaemon, SharingMethod, SharingSpec},
    tools::packages::Manager,
};

/// The desired state of the machine. Steps read no other part of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Desired {
    /// Name of the profile.
    pub profile: String,
    /// This machine becomes an image. Changes that need a live kernel or GPU wait for the first boot.
    pub image: bool,
    /// GPUs of the instances that boot the image.
    pub assume_gpus: Vec<PciId>,
    /// The settings. Steps read only those whose default is the same on every machine. The others are inputs of
    /// [`resolve`](super::resolve), which turns them into the other fields of this struct.
    #[serde(skip)]
    pub settings: Config,
    /// How packages are installed.
    pub packages: PackagePolicy,
    /// Repositories to add: from other vendors, and further components of the distribution archive.
    pub repositories: Vec<Repository>,
    /// Versions to prefer over newer ones, including for dependencies.
    pub pins: Vec<Pin>,
    /// In-tree drivers that must not claim the GPU, such as `nouveau`.
    pub deny_modules: Vec<String>,
    /// Kernel headers and build tools for the running and the next kernel.
    pub headers: Vec<PackageSpec>,
    /// Packages with kernel modules that container runtimes and pod networks need, for the running and the next kernel, if the
    /// kernel packages do not include them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_modules: Vec<PackageSpec>,
    /// The kernels that may run, with the module methods. `None` without a driver.
    pub kernel: Option<KernelSpec>,
    /// The driver. `None` on a machine without a GPU, if that is allowed.
    pub driver: Option<DriverSpec>,
    /// Persistence of the driver's state.
    pub persistence: Option<Persistence>,
    /// The MIG layout. `None` if MIG is not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSpec>,
    /// Container runtimes.
    pub runtimes: Vec<RuntimeSpec>,
    /// Whether restarting or removing a daemon may stop containers. Also applies to a runtime that is no longer
    /// configured.
    pub runtime_restart: Restart,
    /// NVIDIA Container Toolkit.
    pub toolkit: Option<ToolkitSpec>,
    /// Data Center GPU Manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dcgm: Option<DcgmSpec>,
    /// The packages of kernel modules for RDMA.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaSpec>,
    /// Container Device Interface.
    pub cdi: Option<Cdi>,
    /// The validation of the GPUs, in containers or on the host.
    pub validation: Validation,
    /// Packages that are held at their version.
    pub hold: Hold,
    /// The cluster of the machine. `None` if it joins none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSpec>,
    /// The configuration of the NVIDIA device plugin.
    #[serde(skip_serializing_if = "DevicePluginSpec::is_default")]
    pub device_plugin: DevicePluginSpec,
    /// Outputs of `check` results for other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportsSpec>,
}

/// The outputs of the `check` timer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReportsSpec {
    /// The metrics file for node_exporter.
    pub metrics: Option<Utf8PathBuf>,
    /// Whether the node condition is updated.
    pub node_condition: bool,
}

/// A condition of the node in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionSpec {
    /// The condition type.
    pub kind: String,
    pub meaning: ConditionMeaning,
}

/// The purpose of a group of packages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Purpose<'d> {
    /// Kernel headers and build tools.
    Headers,
    /// Kernel modules that container runtimes need.
    ContainerModules,
    /// The driver.
    Driver,
    /// A container runtime.
    Runtime(&'d RuntimeSpec),
    /// NVIDIA Container Toolkit.
    Toolkit,
    /// DCGM and its exporter.
    Dcgm,
    /// A kernel module for RDMA.
    Rdma,
    /// The packages of a cluster node.
    Cluster,
    /// Packages that holds depend on.
    Holds,
}

impl Desired {
    /// Returns all required packages by purpose. Code that needs the whole set uses this function. It lists each field of the
    /// desired state, so that a new field does not compile until it is listed here.
    pub fn package_groups(&self) -> Vec<(Purpose<'_>, &[PackageSpec])> {
        let Self {
            headers,
            container_modules,
            driver,
            runtimes,
            runtime_restart: _,
            toolkit,
            dcgm,
            rdma,
            persistence: _,
            mig: _,
            // A kernel that is no longer configured is kept, because the machine may run it.
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
            device_plugin: _,
            reports: _,
        } = self;
        let mut groups: Vec<(Purpose<'_>, &[PackageSpec])> = vec![
            (Purpose::Headers, headers),
            (Purpose::ContainerModules, container_modules),
        ];
        groups.extend(driver.iter().map(|one| (Purpose::Driver, &*one.packages)));
        groups.extend((runtimes.iter()).map(|one| (Purpose::Runtime(one), &*one.packages)));
        groups.extend(toolkit.iter().map(|one| (Purpose::Toolkit, &*one.packages)));
        groups.extend(dcgm.iter().map(|one| (Purpose::Dcgm, &*one.packages)));
        groups.extend(rdma.iter().map(|one| (Purpose::Rdma, &*one.packages)));
        groups.extend(cluster.iter().map(|one| (Purpose::Cluster, &*one.packages)));
        groups.retain(|(_, packages)| !packages.is_empty());
        // If nothing is required, nothing is held.
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
    /// The package manager.
    pub manager: Manager,
    /// Seconds to wait for another package manager process.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy for the package manager and gpu-bootstrap. Its URL may contain a password.
    #[serde(serialize_with = "secret::hidden")]
    pub proxy: Option<Secret>,
    /// Hosts, domains and networks that bypass the proxy, separated by commas.
    pub no_proxy: Option<String>,
    /// Timers and services that start the package manager automatically. Paused during a run.
    pub pause_units: Vec<String>,
    /// Packages whose removal the plan accepts (shell patterns).
    pub may_remove: Vec<String>,
    /// Installed packages outside the plan that may be upgraded if a dependency requires it (shell patterns). All
    /// others stay at their version.
    pub may_upgrade: Vec<String>,
    /// Rules for the packages that a transaction may install, including dependencies.
    pub guard: Guard,
    /// The directory with the sources of this run if it uses a bundle.
    #[serde(skip)]
    pub bundled: Option<Utf8PathBuf>,
}

/// Rules for the packages that a transaction may install, including dependencies. They are checked after the package manager
/// has simulated the transaction.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Guard {
    /// The only permitted driver branch. The package version decides, because a package with another branch in its name
    /// may be transitional.
    pub driver: Option<Branch>,
    /// Shell patterns for names of module packages that contain a kernel release and are requested without a driver version. A
    /// transaction is rejected if such a module does not match the version of the libraries.
    pub modules: Vec<String>,
    /// Shell patterns for names of kernel packages. A new kernel is only installed if a step requests it, not as a dependency.
    pub kernels: Vec<String>,
    /// Packages that require a driver of exactly their version, such as the fabric manager.
    pub exact: Vec<String>,
    /// This machine never compiles driver modules, so no DKMS package of the driver is installed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_compiler: bool,
    /// The versions of a lock file. No other packages are installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockedPackages>,
}

/// The packages of a lock file, including dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LockedPackages {
    /// The SHA-256 of the lock file.
    pub digest: String,
    /// The only permitted version of each package.
    pub versions: BTreeMap<String, String>,
    /// The only permitted SHA-256 of the packages, by name. A package without one may have any.
    #[serde(skip)]
    pub digests: BTreeMap<String, String>,
    /// Shell patterns for names of packages that may have any version, because they belong to another kernel than the lock
    /// file.
    pub free: Vec<String>,
    /// The machine requires all selected packages of the lock file. If not, such as on a node without a GPU, it does not need all
    /// dependencies either.
    pub is_whole: bool,
    /// Names of the packages that the machine requires.
    pub required: BTreeSet<String>,
    /// Names and versions of the packages in the bundle. `None` without a bundle.
    #[serde(skip)]
    pub bundled: Option<BTreeSet<(String, String)>>,
}

impl LockedPackages {
    /// Returns the beginning of the digest, for messages and metrics.
    pub fn short_digest(&self) -> &str {
        self.digest.get(..12).unwrap_or(&self.digest)
    }

    /// Whether a package may be installed. The packages of several kernels may be installed at the same time, so they are not
    /// locked.
    pub fn allows(&self, backend: &dyn Backend, name: &str) -> bool {
        self.versions.contains_key(name)
            || backend.has_several_versions(backend.bare_name(name))
            || self.free.iter().any(|one| pattern::matches(one, name))
    }

    /// Whether the run uses a bundle that does not contain a package. `name` may include an architecture.
    pub fn is_unbundled(&self, backend: &dyn Backend, name: &str, version: &str) -> bool {
        let is_it = |(bundled, other): &(String, String)| {
            (bundled == name || bundled == backend.bare_name(name))
                && backend.compare(other, version).is_eq()
        };
        (self.bundled.as_ref()).is_some_and(|bundled| !bundled.iter().any(is_it))
    }

    /// Whether the SHA-256 of any of these packages is locked.
    pub fn has_digests<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> bool {
        (names.into_iter()).any(|name| self.digests.contains_key(name))
    }

    /// Returns the packages that are offered only with another SHA-256 than the locked one, as text for messages. `offered` has
    /// the digests by package ID. The digest of a package that it lacks is unknown.
    pub fn replaced_files(&self, offered: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
        let short = |digest: &String| digest.get(..12).unwrap_or(digest).to_owned();
        let replaced = |(name, found): (&String, &BTreeSet<String>)| {
            let locked = self.digests.get(name)?;
            let version = self.versions.get(name)?;
            let is_other = !found.is_empty() && !found.contains(locked);
            is_other.then(|| {
                let found: Vec<String> = found.iter().map(short).collect();
                let (found, locked) = (found.join(" or "), short(locked));
                format!("{name} {version} (SHA-256 {found}… instead of {locked}…)")
            })
        };
        offered.iter().filter_map(replaced).collect()
    }

    /// Returns the packages that the machine needs, with their locked versions. `is_installed` is called with names.
    pub fn specs(&self, is_installed: impl Fn(&str) -> bool) -> Vec<PackageSpec> {
        let is_needed =
            |name: &String| self.is_whole || self.required.contains(name) || is_installed(name);
        (self.versions.iter())
            .filter(|(name, _)| is_needed(name))
            .map(|(name, version)| PackageSpec {
                name: name.clone(),
                version: Some(version.clone()),
            })
            .collect()
    }
}

/// The driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DriverSpec {
    pub branch: Branch,
    /// The exact version, if requested or selected. Otherwise the newest of the branch.
    pub version: Option<DriverVersion>,
    /// Kernel module flavor.
    pub flavor: Flavor,
    /// The flavor is a guess, because the matrix does not contain the GPU.
    pub assumed: bool,
    /// The name of the package source in the profile: `distribution` or `nvidia`.
    pub source: String,
    /// Another source, with the module method that this one lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternative: Option<OtherSource>,
    /// The DNF module stream to enable first, such as `nvidia-driver:580-open`.
    pub stream: Option<String>,
    /// Packages to install.
    pub packages: Vec<PackageSpec>,
    /// The name under which the module is compiled on the machine. `None` if it is precompiled.
    pub compiled_as: Option<String>,
    /// File name of the kernel module, without `.ko`. The loaded module is always named `nvidia`; Debian renames the
    /// file and adds an alias.
    pub module: String,
    /// Modules to load at boot, in order.
    pub load_modules: Vec<String>,
    /// How to handle a driver that gpu-bootstrap did not install.
    pub existing: Existing,
    /// The branch or version is explicitly configured, so it may be older than the installed one.
    pub asked: bool,
    /// Roll back to the last validated driver if this one fails validation.
    pub rollback: bool,
    /// The security fixes that the requested exact version lacks. If any are missing, the version is not newly installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable: Option<String>,
    /// The reasons for this selection.
    pub reasons: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// The software for GPUs behind switches, which requires a driver of exactly its version.
    pub companions: Companions,
    /// The signing key for modules that are compiled on the machine.
    pub signing: Option<SigningKey>,
    /// Sources of modules that another machine compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prebuilt: Option<Prebuilt>,
    /// The DKMS package that the packages with prebuilt modules replace. `None` if there are no such packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prebuilt_instead_of: Option<String>,
    /// Target for modules that this machine compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publish>,
    /// Module options that this machine needs.
    pub options: Vec<ModuleOption>,
}

/// Another source of the driver for this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OtherSource {
    /// Its name in the profile.
    pub source: String,
    /// Its modules are compiled on the machine. Otherwise they are precompiled and signed by the vendor.
    pub compiled: bool,
}

/// A signing key for kernel modules, which the machine must already trust.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SigningKey {
    /// The private key.
    pub key: Utf8PathBuf,
    /// Its certificate.
    pub certificate: Utf8PathBuf,
}

/// Sources of modules that another machine compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Prebuilt {
    /// Directories, URLs, and registry repositories.
    pub sources: Vec<String>,
    /// Minisign public keys. Empty if unsigned archives are accepted.
    pub public_keys: Vec<String>,
    /// The oldest time of a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<jiff::Timestamp>,
}

impl Prebuilt {
    /// Returns the accepted signatures.
    pub fn trust(&self) -> Trust {
        Trust {
            keys: self.public_keys.clone(),
            not_before: self.not_before,
        }
    }
}

/// Target for modules that this machine compiled, after it was validated with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Publish {
    /// A directory, or a registry repository.
    pub to: String,
    /// The private signing key. `None` if unsigned archives are accepted.
    pub key: Option<Utf8PathBuf>,
}

/// An option of a kernel module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModuleOption {
    /// File name of the module.
    pub module: String,
    /// Name of the parameter.
    pub name: String,
    /// The value.
    pub value: String,
    /// Its effect.
    pub why: String,
}

impl DriverSpec {
    /// Whether the module is compiled on the machine.
    pub const fn is_compiled(&self) -> bool {
        self.compiled_as.is_some()
    }

    /// The names of its packages that require a driver of exactly their version.
    pub fn exact_names(&self) -> &[String] {
        (self.companions.service.as_ref()).map_or(&[], |service| &service.exact)
    }

    /// Returns its packages that require a driver of exactly this version.
    pub fn exact_packages(&self, version: &DriverVersion) -> Vec<PackageSpec> {
        let packages = self.companions.service.as_ref();
        packages.map_or_else(Vec::new, |service| service.at(version))
    }

    /// Sets the module method.
    pub fn take_module(&mut self, method: &ModuleMethod) {
        self.compiled_as.clone_from(&method.compiled_as);
        self.module.clone_from(&method.module);
        self.prebuilt_instead_of =
            (method.prebuilt.as_ref()).map(|(replaced, _)| replaced.name.clone());
    }
}

/// The persistence daemon of the driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Persistence {
    /// The unit of the persistence daemon.
    pub unit: String,
}

/// DCGM on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DcgmSpec {
    /// Its packages, including that of the exporter.
    pub packages: Vec<PackageSpec>,
    /// The port of the exporter. `None` if it is not configured.
    pub exporter_port: Option<u16>,
}

/// A kernel module for RDMA and its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RdmaSpec {
    pub module: RdmaModule,
    pub packages: Vec<PackageSpec>,
}

/// The MIG layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigSpec {
    pub layout: LayoutRequest,
    /// Units that may be stopped while the layout is changed.
    pub stop_units: Vec<String>,
}

/// A container runtime.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeSpec {
    /// The kind of runtime.
    pub kind: RuntimeKind,
    /// Packages to install.
    pub packages: Vec<PackageSpec>,
    /// Packages that indicate that the runtime is already installed from another source, which is kept.
    pub alternatives: Vec<String>,
    /// The systemd unit. `None` for a runtime without a daemon.
    pub unit: Option<String>,
    /// Make nvidia the default runtime.
    pub nvidia_default: bool,
}

/// NVIDIA Container Toolkit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ToolkitSpec {
    /// Packages to install, all at one version.
    pub packages: Vec<PackageSpec>,
    /// The security fixes that the requested exact version lacks. If any are missing, the version is not newly installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerable: Option<String>,
}

/// CDI.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cdi {
    /// The path of the specification.
    pub path: Utf8PathBuf,
}

/// The validation of the GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Validation {
    /// Run a container with each runtime. Otherwise the GPUs compute on the host.
    pub container: bool,
    /// The image for the probe. `None` for a built-in image.
    pub image: Option<String>,
    /// Time limit for the container in seconds.
    pub timeout_seconds: u64,
    /// Time limit for pulling the image in seconds, including retries.
    pub pull_timeout_seconds: u64,
    /// The archives of the image in the bundle of the run. `None` without a bundle.
    #[serde(skip)]
    pub archives: Option<BTreeMap<RuntimeKind, ImageArchive>>,
}

impl Validation {
    /// The digest of the image in its registry, if the settings or the lock file contain it.
    pub fn image_digest(&self) -> Option<&str> {
        Some(self.image.as_deref()?.split_once('@')?.1)
    }

    /// The archive of the image for a runtime in the bundle of the run.
    pub fn archive(&self, runtime: RuntimeKind) -> Option<&ImageArchive> {
        self.archives.as_ref()?.get(&runtime)
    }
}

/// The time limit for pulling an image, in seconds, in journals that do not contain it.
pub const fn pull_timeout() -> u64 {
    1800
}

/// Holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hold {
    /// Shell patterns for names of installed packages, such as `libnvidia-*`.
    pub patterns: Vec<String>,
    /// Packages that unattended upgrades must not change (regular expressions for names).
    pub blacklist: Vec<String>,
    /// Packages that holds depend on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageSpec>,
}
