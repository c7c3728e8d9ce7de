//! Compares required packages with installed ones. Shared by all steps that install packages.

use std::collections::BTreeMap;

use crate::{
    change::Change,
    config::desired::{Manager, PackageSpec},
    state::Ours,
    step::Assessment,
};

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledPackage {
    /// As written by the package manager. Empty for a held package that is not installed.
    pub version: String,
    /// Other installed versions, such as kernels on RPM systems.
    pub further: Vec<String>,
    /// Held at this version.
    pub held: bool,
    /// Unpacked and configured.
    pub complete: bool,
}

/// Installed packages by name.
pub type InstalledPackages = BTreeMap<String, InstalledPackage>;

/// The result of comparing required packages with installed ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// `name version` of each met requirement.
    pub met: Vec<String>,
    /// Messages about packages that are missing, unconfigured or at a different version.
    pub unmet: Vec<String>,
    /// Messages about held packages that are not installed or need a different version.
    pub held: Vec<String>,
}

/// Compares required packages with installed ones.
pub fn compare(
    manager: Manager,
    specs: &[PackageSpec],
    installed: &InstalledPackages,
) -> Comparison {
    let backend = manager.backend();
    let mut result = Comparison::default();
    for spec in specs {
        let Some(package) = installed.get(&spec.name) else {
            result.unmet.push(format!("{} is not installed", spec.name));
            continue;
        };
        if package.version.is_empty() {
            let text = format!("{} is not installed, but held", spec.name);
            result.held.push(text.clone());
            result.unmet.push(text);
            continue;
        }
        let fits = |version: &&String| {
            (spec.version.as_deref()).is_none_or(|wanted| backend.matches(wanted, version))
        };
        let found = std::iter::once(&package.version)
            .chain(&package.further)
            .find(fits);
        if let Some(version) = found {
            if package.complete {
                result.met.push(format!("{} {version}", spec.name));
            } else {
                (result.unmet).push(format!("{} {version} is half-installed", spec.name));
            }
        } else {
            let wanted = spec.version.as_deref().unwrap_or_default();
            let text = format!(
                "{} {} is installed, but {wanted} is required",
                spec.name, package.version
            );
            if package.held {
                result.held.push(format!("{text}, and the package is held"));
            }
            result.unmet.push(text);
        }
    }
    result
}

impl Comparison {
    /// Returns whether all requirements are met.
    pub fn all_met(&self) -> bool {
        self.unmet.is_empty()
    }

    /// Lists the met requirements.
    pub fn met_text(&self) -> String {
        format!("installed: {}", self.met.join(", "))
    }

    /// Lists the unmet requirements.
    pub fn unmet_text(&self) -> String {
        self.unmet.join("; ")
    }

    /// Returns the blocked assessment if [`Comparison::held`] is not empty.
    pub fn refusal(&self, manager: Manager) -> Option<Assessment> {
        (!self.held.is_empty())
            .then(|| Assessment::blocked(self.held.join("; "), self.held_hint(manager)))
    }

    /// Returns the remedy for held packages.
    pub fn held_hint(&self, manager: Manager) -> String {
        let backend = manager.backend();
        let unhold = backend.commands().unhold;
        let place = (backend.hold_list())
            .map(|list| format!(" with the entry from `{}`", list.path()))
            .unwrap_or_default();
        format!("release the hold (`{unhold}`{place}), or configure the held version")
    }
}

/// Returns the required packages that gpu-bootstrap installed and whose version is not the required one. Their version may
/// be changed.
pub fn outdated(
    manager: Manager,
    specs: &[PackageSpec],
    installed: &InstalledPackages,
    ours: &Ours,
) -> Vec<String> {
    let backend = manager.backend();
    let differs = |spec: &&PackageSpec| {
        let (Some(wanted), Some(there)) = (&spec.version, installed.get(&spec.name)) else {
            return false;
        };
        !there.version.is_empty() && !backend.matches(wanted, &there.version)
    };
    (specs.iter().filter(differs))
        .map(|spec| spec.name.clone())
        .filter(|name| ours.packages.contains(name))
        .collect()
}

/// Assesses a step that only needs packages. See [`install`] for `replacing`.
pub fn package_step(
    manager: Manager,
    specs: &[PackageSpec],
    installed: &InstalledPackages,
    replacing: Vec<String>,
) -> Assessment {
    let comparison = compare(manager, specs, installed);
    if let Some(refusal) = comparison.refusal(manager) {
        return refusal;
    }
    if comparison.all_met() {
        return Assessment::satisfied(comparison.met_text());
    }
    Assessment::needs(comparison.unmet_text(), install(specs, replacing))
}

/// Returns the changes that meet the requirements: fresh package lists, then one transaction, which may change the version
/// of the packages in `replacing` or remove them.
pub fn install(specs: &[PackageSpec], replacing: Vec<String>) -> Vec<Change> {
    vec![
        Change::RefreshRepositories,
        Change::InstallPackages {
            packages: specs.to_vec(),
            removing: replacing,
            later: false,
        },
    ]
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::{InstalledPackage, InstalledPackages};
    use crate::config::desired::PackageSpec;

    /// Installed packages from `name=version`, with `!` for held and `?` for half-installed.
    pub(crate) fn packages(list: &[&str]) -> InstalledPackages {
        list.iter()
            .map(|entry| {
                let held = entry.contains('!');
                let complete = !entry.contains('?');
                let plain = entry.replace(['!', '?'], "");
                let (name, version) = plain.split_once('=').expect("name=version");
                (
                    name.to_owned(),
                    InstalledPackage {
                        version: version.to_owned(),
                        further: Vec::new(),
                        held,
                        complete,
                    },
                )
            })
            .collect()
    }

    /// Package requirements from `name` or `name=pattern`.
    pub(crate) fn specs(list: &[&str]) -> Vec<PackageSpec> {
        list.iter()
            .map(|entry| match entry.split_once('=') {
                Some((name, version)) => PackageSpec {
                    name: name.to_owned(),
                    version: Some(version.to_owned()),
                },
                None => PackageSpec {
                    name: (*entry).to_owned(),
                    version: None,
                },
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        compare,
        fixtures::{packages, specs},
    };
    use crate::config::desired::Manager;

    #[test]
    fn each_unmet_requirement_is_reported() {
        let installed = packages(&["a=1.0", "b=2.0-1", "c?=3.0", "d!=4.0"]);
        let result = compare(
            Manager::Apt,
            &specs(&["a", "b=2.*", "c", "d=5.*", "e=6.*"]),
            &installed,
        );
        assert_eq!(result.met, ["a 1.0", "b 2.0-1"]);
        assert_eq!(
            result.unmet,
            [
                "c 3.0 is half-installed",
                "d 4.0 is installed, but 5.* is required",
                "e is not installed"
            ]
        );
        assert_eq!(
            result.held,
            ["d 4.0 is installed, but 5.* is required, and the package is held"]
        );
    }

    #[test]
    fn hold_on_missing_package_blocks() {
        let result = compare(
            Manager::Apt,
            &specs(&["docker.io"]),
            &packages(&["docker.io!="]),
        );
        assert_eq!(result.held, ["docker.io is not installed, but held"]);
    }

    #[test]
    fn versions_match_by_package_manager_rules() {
        let installed = packages(&["nvidia-driver=3:580.95.05-1.el9"]);
        let wanted = specs(&["nvidia-driver=580.*"]);
        assert!(compare(Manager::Dnf, &wanted, &installed).all_met());
        assert!(!compare(Manager::Apt, &wanted, &installed).all_met());
    }

    #[test]
    fn one_of_several_installed_versions_suffices() {
        let mut installed = packages(&["kernel-devel=5.14.0-503.el9"]);
        let kernel = installed.get_mut("kernel-devel").expect("a package");
        kernel.further = vec!["5.14.0-570.12.1.el9_6".into()];
        let met = |version: &str| {
            let wanted = specs(&[&format!("kernel-devel={version}")]);
            compare(Manager::Dnf, &wanted, &installed).all_met()
        };
        assert!(met("5.14.0-503.el9") && met("5.14.0-570.12.1.el9_6"));
        assert!(!met("5.14.0-570.1.1.el9_6"));
    }

    #[test]
    fn held_package_with_matching_version_is_met() {
        assert!(compare(Manager::Apt, &specs(&["a=1.*"]), &packages(&["a!=1.0"])).all_met());
    }
}
