//! The built-in table `detection.toml`: detects operating systems, package managers, hypervisors, driver
//! packages, and other software that manages the driver of a machine.
//!
//! The keys `source` and `confidence` are for maintainers and are not read.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::Os;
use crate::{
    model::{pattern, text::built_in},
    tools::packages::Manager,
};

static TABLE: LazyLock<Detection> =
    LazyLock::new(|| built_in("detection").expect("the built-in table parses, which is tested"));

pub(crate) fn table() -> &'static Detection {
    &TABLE
}

/// Whether a package contains the driver module or libraries. Companion packages
/// (`nvidia-modprobe`, `nvidia-settings`) are excluded, because they can have other versions.
pub(crate) fn carries_driver(name: &str) -> bool {
    let DriverPackagePatterns { names, except, .. } = &table().driver_packages;
    let any = |patterns: &[String]| patterns.iter().any(|one| pattern::matches(one, name));
    any(names) && !any(except)
}

/// Whether a package is a part of the driver that requires the other parts in the same version.
pub(crate) fn is_driver_part(name: &str) -> bool {
    let DriverPackagePatterns { parts, except, .. } = &table().driver_packages;
    let any = |patterns: &[String]| patterns.iter().any(|one| pattern::matches(one, name));
    any(parts) && !any(except)
}

/// The package manager of a system without a profile, by its `ID` and `ID_LIKE` (os-release(5)); `None` if it is unknown.
pub(crate) fn manager_of(os: &Os) -> Option<Manager> {
    let managers = &table().package_managers;
    let manager =
        |id: &String| (managers.iter()).find_map(|(one, ids)| ids.contains(id).then_some(*one));
    std::iter::once(&os.id).chain(&os.id_like).find_map(manager)
}

/// The complete table.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Detection {
    /// Operating system IDs without a profile, by package manager.
    pub package_managers: BTreeMap<Manager, Vec<String>>,
    pub virtualization: Virtualization,
    pub containers: Containers,
    pub driver_packages: DriverPackagePatterns,
    pub vendor: Vendor,
    pub runfile: Runfile,
    pub image: ImageMarks,
    pub provider_setup: Vec<ProviderSetup>,
    pub owner: Vec<OwnerRow>,
    pub driver_root: Vec<DriverRoot>,
}

/// A machine whose driver is managed by other software.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct OwnerRow {
    pub name: String,
    /// Operating system IDs.
    #[serde(default)]
    pub os: Vec<String>,
    /// One existing file is sufficient.
    #[serde(default)]
    pub files: Vec<String>,
    /// Kernel modules. One loaded module is sufficient.
    #[serde(default)]
    pub modules: Vec<String>,
    #[serde(flatten)]
    pub provides: Provides,
    /// A file that must also exist.
    #[serde(default)]
    pub and_file: Option<String>,
    /// The driver is in the library search path of the host, as on a machine without an owner.
    #[serde(default)]
    pub on_host: bool,
    pub why: String,
    pub remedy: String,
}

/// The other parts that the owner of a driver provides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Provides {
    /// The other software also runs the fabric manager, so a missing package or unit on the host is not
    /// evidence that the fabric manager is missing.
    pub fabric_manager: bool,
    /// Containers can only access the GPU through NVIDIA's container runtime or CDI.
    pub container_runtime: bool,
}

impl Provides {
    /// Whether it creates the device nodes.
    pub const fn device_nodes(self) -> bool {
        self.fabric_manager || self.container_runtime
    }
}

/// The root directory of a driver outside the linker's search path.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DriverRoot {
    pub path: String,
}

/// Prefixes of DMI values and the corresponding hypervisor.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Virtualization {
    pub rows: Vec<(String, String)>,
    /// Hypervisors whose DMI values are the same on bare metal. There, the product name contains `.metal`.
    pub also_metal: Vec<String>,
}

/// Container managers, as in `systemd-detect-virt`.
#[derive(Debug, Deserialize)]
pub(crate) struct Containers {
    /// Paths that exist only in containers, with the container manager.
    pub marks: Vec<(String, String)>,
    /// Managers of containers with a single application, without an operating system that could be prepared.
    pub applications: Vec<String>,
    /// Managers of containers with a complete operating system.
    pub systems: Vec<String>,
}

/// Patterns of driver packages. The first pattern of `names` with an installed package determines the
/// driver version.
#[derive(Debug, Deserialize)]
pub(crate) struct DriverPackagePatterns {
    pub names: Vec<String>,
    /// Packages that must have the driver version.
    pub parts: Vec<String>,
    pub except: Vec<String>,
}

/// Evidence that a package is from NVIDIA.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Vendor {
    pub mail_domain: String,
    pub vendor_prefix: String,
}

/// Files created by NVIDIA's installer.
#[derive(Debug, Deserialize)]
pub(crate) struct Runfile {
    pub marks: Vec<String>,
}

/// Files of images that contain a driver.
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
    /// Exists after the setup has finished.
    pub complete: String,
    pub log: String,
    /// The maximum duration of the setup.
    pub minutes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_manager_of_systems_without_a_profile_is_known() {
        let of = |id: &str, like: &[&str]| {
            manager_of(&Os {
                id: id.to_owned(),
                version_id: None,
                id_like: like.iter().map(|id| (*id).to_owned()).collect(),
                version_codename: None,
                pretty_name: None,
            })
        };
        assert_eq!(of("fedora", &[]), Some(Manager::Dnf));
        assert_eq!(of("nobara", &["fedora"]), Some(Manager::Dnf));
        assert_eq!(of("flatcar", &["coreos"]), None);
    }

    #[test]
    fn every_owner_has_evidence() {
        for row in &table().owner {
            let marks = [&row.os, &row.files, &row.modules];
            assert!(marks.iter().any(|marks| !marks.is_empty()), "{}", row.name);
        }
    }
}
