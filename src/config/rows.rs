//! Rows of profiles that name packages.

use serde::Deserialize;

use crate::{
    compat::matrix::Fabric,
    config::{desired::RuntimeKind, values::Build},
    model::{
        gpu::Flavour,
        version::{Branch, DriverVersion},
    },
};

/// A package and what its version follows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PackageRow {
    /// Its name, with placeholders.
    pub name: String,
    /// What its version follows.
    #[serde(default)]
    pub at: At,
}

/// What the version of a package follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The driver's version where one is asked for, else its branch.
    #[default]
    Version,
    /// The driver's branch.
    Branch,
    /// As `version`; and of that version, the build whose files are for the kernel. The name of such a
    /// package does not name the kernel.
    Kernel,
    /// Nothing of the driver's.
    Any,
}

/// A set of driver packages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DriverRow {
    /// `distribution` or `nvidia`.
    pub source: String,
    /// `version-id`s of the releases.
    pub releases: Vec<String>,
    /// The `ID`s of the systems that it is for; all of the profile where none is named.
    #[serde(default)]
    pub os_ids: Vec<String>,
    /// Architectures; all of the release where none is named.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Branches, preferred first.
    pub branches: Vec<Branch>,
    /// What the release carried when this was read, for a row of one branch.
    pub newest: Option<DriverVersion>,
    /// Kernel module flavour.
    pub flavour: Flavour,
    /// Compiled on the machine or packaged.
    pub build: Build,
    /// Kernel flavours for which there are packaged modules; any where none is named.
    #[serde(default)]
    pub kernel_flavours: Vec<String>,
    /// The DKMS name of the module.
    pub dkms: Option<String>,
    /// The module's file name.
    pub module: String,
    /// dnf: module stream.
    pub stream: Option<String>,
    /// Repositories needed.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// Packages.
    pub packages: Vec<PackageRow>,
    /// Packages that keep the modules at the newest kernel of a series: as in
    /// [`KernelRow::follow`](crate::config::kernel::KernelRow::follow).
    #[serde(default)]
    pub follow: Vec<String>,
    /// Patterns over package names whose version is pinned to the branch, where several branches
    /// share the names.
    #[serde(default)]
    pub pin: Vec<String>,
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "facts")]
    pub citation: String,
}

impl DriverRow {
    /// What contradicts `build`.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        if self.build.is_compiled() && self.is_rolling() {
            return Some("`at = \"kernel\"` belongs to `build = \"precompiled\"`");
        }
        (self.build.is_compiled() != self.dkms.is_some())
            .then_some("`dkms` belongs to `build = \"dkms\"`")
    }

    /// Whether its builds are each for one kernel: which branches there are for a kernel is known only
    /// when the package lists are asked.
    #[must_use]
    pub fn is_rolling(&self) -> bool {
        self.packages.iter().any(|package| package.at == At::Kernel)
    }
}

/// A release that is not served, for a reason of its own.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RefusedRelease {
    /// `VERSION_ID`, whole.
    pub version_id: String,
    /// Why, as the end of a sentence.
    pub why: String,
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// What runs beside the driver where GPUs reach others through switches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FabricRow {
    /// `distribution` or `nvidia`, as the driver's.
    pub source: String,
    /// `version-id`s of the releases.
    pub releases: Vec<String>,
    /// Architectures; all of the release where none is named.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Branches of the driver.
    pub branches: Vec<Branch>,
    /// The hardware that it is for.
    pub needs: Fabric,
    /// Packages, from the repositories of the driver. Those at the driver's version work with no other.
    pub packages: Vec<PackageRow>,
    /// The unit that must run before programs use the GPUs; none where the cluster starts it.
    pub unit: Option<String>,
    /// Kernel modules that must be loaded before the unit starts.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Packages of a container runtime.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuntimeRow {
    /// Which runtime.
    pub kind: RuntimeKind,
    /// `distribution` or `docker`.
    pub source: String,
    /// `version-id`s of the releases.
    pub releases: Vec<String>,
    /// Packages.
    pub packages: Vec<String>,
    /// Packages any of which means that the runtime is there from elsewhere.
    #[serde(default)]
    pub alternatives: Vec<String>,
    /// Its unit; none where it has no daemon.
    pub unit: Option<String>,
    /// Repositories needed.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// Where this was read and how far it can be trusted.
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
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "facts")]
    pub citation: String,
}
