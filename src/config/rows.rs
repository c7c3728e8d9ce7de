//! Rows of profiles that name packages.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{compat::matrix::Fabric, config::desired::RuntimeKind, model::version::Branch};

/// A package and what its version follows.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PackageRow {
    /// Its name, with placeholders.
    pub name: String,
    /// What its version follows.
    #[serde(default)]
    pub at: At,
}

/// What the version of a package follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The driver's version where one is asked for, else its branch.
    #[default]
    Version,
    /// The driver's branch.
    Branch,
    /// Nothing of the driver's.
    Any,
}

/// A release that is not served, for a reason of its own.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
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
    pub alternatives: Vec<String>,
    /// Its unit.
    pub unit: String,
    /// Repositories needed.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// NVIDIA Container Toolkit.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
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
