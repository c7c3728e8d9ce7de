//! The table `detection.toml`, built into the program: how to detect hypervisors, driver packages,
//! and who else may manage the driver of a machine.
//!
//! Its keys `source` and `confidence` are for the people who change it and are not read.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::model::{pattern, text::built_in};

static TABLE: LazyLock<Detection> =
    LazyLock::new(|| built_in("detection").expect("the built-in table is valid, as a test checks"));

pub(crate) fn table() -> &'static Detection {
    &TABLE
}

/// Whether a package of this name carries the driver's module or libraries. The packages beside them
/// (`nvidia-modprobe`, `nvidia-settings`) can have versions of their own.
pub(crate) fn carries_driver(name: &str) -> bool {
    let DriverPackagePatterns { names, except, .. } = &table().driver_packages;
    let any = |patterns: &[String]| patterns.iter().any(|one| pattern::matches(one, name));
    any(names) && !any(except)
}

/// Whether a package is a part of the driver, which works only with the other parts of one version.
pub(crate) fn is_driver_part(name: &str) -> bool {
    let DriverPackagePatterns { parts, except, .. } = &table().driver_packages;
    let any = |patterns: &[String]| patterns.iter().any(|one| pattern::matches(one, name));
    any(parts) && !any(except)
}

/// All of it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Detection {
    pub virtualization: Virtualization,
    pub driver_packages: DriverPackagePatterns,
    pub vendor: Vendor,
    pub runfile: Runfile,
    pub image: ImageMarks,
    pub provider_setup: Vec<ProviderSetup>,
    pub owner: Vec<OwnerRow>,
    pub driver_root: Vec<DriverRoot>,
}

/// A machine whose driver is somebody else's.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct OwnerRow {
    pub name: String,
    /// Ids of operating systems.
    #[serde(default)]
    pub os: Vec<String>,
    /// One of them is enough.
    #[serde(default)]
    pub files: Vec<String>,
    /// Modules of the kernel; one that is loaded is enough.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Packages and units of the host do not tell of the fabric manager: it comes with the driver.
    #[serde(default)]
    pub fabric_manager: bool,
    /// Its containers reach the GPU by NVIDIA's container runtime, or by CDI.
    #[serde(default)]
    pub container_runtime: bool,
    pub why: String,
    pub remedy: String,
}

/// The root of a driver that the linker does not search.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DriverRoot {
    pub path: String,
}

/// Beginnings of DMI values, and the hypervisor that they mean.
#[derive(Debug, Deserialize)]
pub(crate) struct Virtualization {
    pub rows: Vec<(String, String)>,
}

/// Patterns of driver packages, the most reliable one first.
#[derive(Debug, Deserialize)]
pub(crate) struct DriverPackagePatterns {
    pub names: Vec<String>,
    /// Those that must all have the driver's version.
    pub parts: Vec<String>,
    pub except: Vec<String>,
}

/// What marks a package as NVIDIA's own.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Vendor {
    pub mail_domain: String,
    pub vendor_prefix: String,
}

/// Files that NVIDIA's installer leaves.
#[derive(Debug, Deserialize)]
pub(crate) struct Runfile {
    pub marks: Vec<String>,
}

/// Files of images that bring the driver themselves.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageMarks {
    pub marks: Vec<String>,
}

/// Node setup by a provider that may delete driver files after the kubelet has started.
#[derive(Debug, Deserialize)]
pub(crate) struct ProviderSetup {
    pub name: String,
    /// Exists while the setup may delete driver files.
    pub marker: String,
    /// Exists once the setup has finished.
    pub complete: String,
    pub log: String,
    /// The longest duration of the setup.
    pub minutes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_has_a_mark() {
        for row in &table().owner {
            let marks = [&row.os, &row.files, &row.modules];
            assert!(marks.iter().any(|marks| !marks.is_empty()), "{}", row.name);
        }
    }
}
