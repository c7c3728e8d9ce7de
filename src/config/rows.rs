//! Profile entries with packages.

use serde::Deserialize;

use crate::{
    compat::matrix::Fabric,
    config::{choices::RdmaModule, desired::RuntimeKind, values::Build},
    model::{
        gpu::Flavor,
        version::{Branch, DriverVersion},
    },
};

/// A package with its version constraint.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PackageRow {
    /// The name, with placeholders.
    pub name: String,
    /// The version constraint.
    #[serde(default)]
    pub at: At,
}

/// How the version of a package is determined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The requested driver version, or any version of the driver branch if none is requested.
    #[default]
    Version,
    /// Any version of the driver branch, even if a driver version is requested.
    Branch,
    /// Like `version`, but one version has a build for each kernel, under the same package name. The build for the
    /// selected kernel is used.
    Kernel,
    /// Independent of the driver.
    Any,
}

/// A set of driver packages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DriverRow {
    /// `distribution` or `nvidia`.
    pub source: String,
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// The supported `ID` values of operating systems. Empty for all of the profile.
    #[serde(default)]
    pub os_ids: Vec<String>,
    /// Architectures. Empty for all of the release.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Branches, preferred first.
    pub branches: Vec<Branch>,
    /// The version that was available when this entry was written. Only for an entry with one branch.
    pub newest: Option<DriverVersion>,
    /// Kernel module flavor.
    pub flavor: Flavor,
    /// Compiled on the machine or packaged.
    pub build: Build,
    /// Kernel flavors with precompiled modules. Empty for any.
    #[serde(default)]
    pub kernel_flavors: Vec<String>,
    /// The DKMS name of the module.
    #[serde(rename = "dkms")]
    pub compiled_as: Option<String>,
    /// File name of the module without `.ko`.
    pub module: String,
    /// dnf: module stream.
    pub stream: Option<String>,
    /// Repositories needed.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// Packages.
    pub packages: Vec<PackageRow>,
    /// Packages that keep the modules at the newest kernel of a series, as in
    /// [`KernelRow::follow`](crate::config::kernel::KernelRow::follow).
    #[serde(default)]
    pub follow: Vec<String>,
    /// Patterns for package names that are pinned to the branch, if several branches share the names.
    #[serde(default)]
    pub pin: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

impl DriverRow {
    /// Returns the contradiction between `build` and the other keys.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        if self.build.is_compiled() && self.is_rolling() {
            return Some("`at = \"kernel\"` requires `build = \"precompiled\"`");
        }
        (self.build.is_compiled() != self.compiled_as.is_some())
            .then_some("`dkms` and `build = \"dkms\"` require each other")
    }

    /// Returns whether there is one build for each kernel, so that the branches for a kernel are only known from the
    /// package lists.
    pub fn is_rolling(&self) -> bool {
        self.packages.iter().any(|package| package.at == At::Kernel)
    }
}

/// A release that is unsupported for a specific reason.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RefusedRelease {
    /// The full `VERSION_ID`.
    pub version_id: String,
    /// The reason, as the end of a sentence.
    pub why: String,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Companion software of the driver for GPUs that are connected by switches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FabricRow {
    /// `distribution` or `nvidia`, like the driver source.
    pub source: String,
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// Architectures. Empty for all of the release.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Branches of the driver.
    pub branches: Vec<Branch>,
    /// The hardware that needs it.
    pub needs: Fabric,
    /// Packages from the driver repositories. Packages at the driver version require a driver of exactly that
    /// version.
    pub packages: Vec<PackageRow>,
    /// The unit that must run before programs use the GPUs. `None` if the cluster starts it.
    pub unit: Option<String>,
    /// Kernel modules that must be loaded before the unit starts.
    #[serde(default)]
    pub modules: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Packages of a container runtime.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuntimeRow {
    /// The kind of runtime.
    pub kind: RuntimeKind,
    /// `distribution` or `docker`.
    pub source: String,
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// Packages.
    pub packages: Vec<String>,
    /// Packages that indicate that the runtime is installed from another source.
    #[serde(default)]
    pub alternatives: Vec<String>,
    /// The systemd unit. `None` without a daemon.
    pub unit: Option<String>,
    /// Repositories needed.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// NVIDIA Container Toolkit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ToolkitRow {
    /// Packages, all at one version.
    pub packages: Vec<String>,
    /// Repositories needed.
    pub repositories: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Packages of DCGM.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DcgmRow {
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// Packages. `{cuda-major}` is the major CUDA version of the driver.
    pub packages: Vec<String>,
    /// The package of its exporter. `None` if its name is unknown for this system.
    pub exporter: Option<String>,
    /// Repositories needed.
    pub repositories: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Packages of a kernel module for RDMA.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RdmaRow {
    /// The module that the packages contain.
    pub module: RdmaModule,
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// Architectures. Empty for all of the release.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Packages.
    pub packages: Vec<String>,
    /// Repositories needed. The driver must come from the same repositories, because the module is compiled for it. Empty if
    /// every machine has the packages in its configured repositories.
    pub repositories: Vec<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}
