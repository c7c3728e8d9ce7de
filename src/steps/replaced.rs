//! Driver packages that conflict with the configured ones: different branch, origin, version or flavor. Packages that
//! gpu-bootstrap installed are replaced. For all others, the administrator decides.

use std::collections::BTreeSet;

use super::{
    messages,
    specs::{self, Comparison, InstalledPackages, compare, install},
};
use crate::{
    config::{
        desired::{Desired, DriverSpec, Existing, KernelSpec, PackageSpec},
        kernel::prebuilt_of,
    },
    facts::detection::{carries_driver, is_driver_part},
    model::{
        pattern,
        version::{Branch, DriverVersion},
    },
    state::{Origin, Ours},
    step::Assessment,
};

/// Name of the source for the distribution's archive.
const DISTRIBUTION: &str = "distribution";

/// The driver packages of the machine.
pub(super) struct There<'s> {
    /// Installed packages. Only holds of the administrator count as held.
    pub(super) installed: &'s InstalledPackages,
    /// Packages that gpu-bootstrap installed.
    pub(super) ours: &'s Ours,
    /// Origin of the installed driver.
    pub(super) origin: Option<Origin>,
}

/// Returns the name and version of each installed package of a driver with a different branch or origin. These packages
/// conflict with the configured ones: in files, or in the version that libraries and module must share.
pub(super) fn others(
    driver: &DriverSpec,
    desired: &Desired,
    there: &There<'_>,
) -> Vec<(String, String)> {
    let wanted_origin = if driver.source == DISTRIBUTION {
        Origin::Distribution
    } else {
        Origin::Vendor
    };
    // If an installed driver package meets its version requirement, the driver has the configured origin, regardless of the
    // vendor field of the package.
    let is_met = |spec: &PackageSpec| {
        (carries_driver(&spec.name) || is_driver_part(&spec.name))
            && spec.version.is_some()
            && compare(
                desired.packages.manager,
                std::slice::from_ref(spec),
                there.installed,
            )
            .all_met()
    };
    let other_origin = !driver.packages.iter().any(is_met)
        && (there.origin).is_some_and(|origin| origin != wanted_origin);
    let branch_of = |version: &str| {
        let version = DriverVersion::from_package(version).ok()?;
        Some(version.branch()).filter(|branch| *branch >= DriverVersion::OLDEST_BRANCH)
    };
    let of_others = |branch: &Branch| *branch != driver.branch || other_origin;
    // Only packages with the module or libraries identify a driver, because helpers have separate versions.
    let branches: BTreeSet<Branch> = (there.installed.iter())
        .filter(|(name, _)| carries_driver(name))
        .filter_map(|(_, package)| branch_of(&package.version))
        .filter(of_others)
        .collect();
    let held = |name: &str| (desired.hold.patterns.iter()).any(|one| pattern::matches(one, name));
    // Modules packaged for a kernel have the kernel version, and the branch in their name.
    let of_kernel = |name: &str| {
        let mut names = branches.iter().map(|branch| format!("-nvidia-{branch}-"));
        name.starts_with("linux-") && names.any(|part| name.contains(&part))
    };
    (there.installed.iter())
        .filter(|(name, _)| carries_driver(name) || held(name))
        .filter(|(name, package)| {
            branch_of(&package.version).is_some_and(|branch| branches.contains(&branch))
                || of_kernel(name)
        })
        .map(|(name, package)| (name.clone(), package.version.clone()))
        .collect()
}

/// Returns our packages of this driver branch that do not match the configured version or flavor.
pub(super) fn outdated(driver: &DriverSpec, desired: &Desired, there: &There<'_>) -> Vec<String> {
    let manager = desired.packages.manager;
    let mut names = specs::outdated(manager, &driver.packages, there.installed, there.ours);
    let requested = |name: &String| driver.packages.iter().any(|spec| spec.name == *name);
    let is_old = |version: &str| {
        let version = DriverVersion::from_package(version);
        (driver.version.as_ref()).is_some_and(|wanted| version.is_ok_and(|found| found != *wanted))
    };
    // The package names of the two flavors differ in one word. This also finds packages that depend on the module of the
    // other flavor.
    let neutral = |name: &str| name.replace("-open", "").replace("-latest", "");
    // Also includes modules for other kernels and their metapackages.
    let of_kernels: Vec<String> = (desired.kernel.iter())
        .flat_map(KernelSpec::module_patterns)
        .collect();
    let is_open = |name: &str| name.contains("-open");
    let is_twin = |name: &String| {
        let specs = driver.packages.iter().map(|spec| spec.name.as_str());
        let patterns = of_kernels.iter().map(String::as_str);
        let same = |spec: &str| neutral(spec) == neutral(name);
        specs.into_iter().any(same)
            || patterns.into_iter().any(|one| {
                is_open(one) != is_open(name) && pattern::matches(&neutral(one), &neutral(name))
            })
    };
    // Modules for other kernels depend on the same packages, so they cannot stay with the old flavor.
    let has_other_flavor =
        |name: &str| prebuilt_of(name).is_some_and(|(flavor, _)| flavor != driver.flavor);
    let more = (there.installed.iter())
        .filter(|(name, _)| there.ours.packages.contains(*name) && !requested(name))
        .filter(|(name, package)| {
            let is_part = carries_driver(name) || is_driver_part(name);
            (is_part && is_old(&package.version))
                || is_twin(name)
                || is_module(name)
                || has_other_flavor(name)
        })
        .map(|(name, _)| name.clone());
    names.extend(more.collect::<Vec<_>>());
    names
}

/// Returns whether an RPM package contains the driver module, precompiled or as source. Only one can be installed.
fn is_module(name: &str) -> bool {
    name.starts_with("kmod-nvidia-") || (name.starts_with("nvidia-") && name.ends_with("-kmod"))
}

/// Blocks a downgrade to an older driver that is not explicitly configured.
pub(super) fn blocked_downgrade(
    driver: &DriverSpec,
    there: &There<'_>,
    going: &[String],
) -> Option<Assessment> {
    let newest = (going.iter())
        .filter(|name| carries_driver(name) || is_driver_part(name))
        .filter_map(|name| there.installed.get(name))
        .filter_map(|package| DriverVersion::from_package(&package.version).ok())
        .max()?;
    if driver.asked || newest.branch() <= driver.branch {
        return None;
    }
    Some(Assessment::blocked(
        format!(
            "driver {newest} is installed, but the older branch {} would be \
             selected by default",
            driver.branch
        ),
        format!(
            "set `driver.branch = {}` to keep it, or `driver.branch = {}` to downgrade",
            newest.branch(),
            driver.branch
        ),
    ))
}

/// Replaces the packages from [`others`] if `driver.existing` is `replace` or gpu-bootstrap installed all of them. Otherwise
/// blocks. Holds of the administrator always block. A downgrade that is not configured blocks, unless `driver.existing` is
/// `replace`.
pub(super) fn instead_of(
    others: &[(String, String)],
    driver: &DriverSpec,
    desired: &Desired,
    there: &There<'_>,
) -> Assessment {
    let told = |packages: &[&(String, String)]| {
        let named: Vec<String> = (packages.iter())
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        messages::some(&named.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let all: Vec<&(String, String)> = others.iter().collect();
    let is_held = |(name, _): &&&(String, String)| there.installed[name].held;
    let held: Vec<&(String, String)> = all.iter().filter(is_held).copied().collect();
    let is_foreign = |(name, _): &&&(String, String)| !there.ours.packages.contains(name);
    let foreign = all.iter().any(|one| is_foreign(&one));
    let named = told(&all);
    let wanted = format!(
        "branch {} from {} is configured",
        driver.branch, driver.source
    );
    let replaces = driver.existing == Existing::Replace;
    if replaces || !foreign {
        if !held.is_empty() {
            return Assessment::blocked(
                format!("held packages must be replaced: {}", told(&held)),
                Comparison::default().held_hint(desired.packages.manager),
            );
        }
        let names: Vec<String> = others.iter().map(|(name, _)| name.clone()).collect();
        if !replaces && let Some(answer) = blocked_downgrade(driver, there, &names) {
            return answer;
        }
        return Assessment::needs(
            format!("{named} must be replaced: {wanted}"),
            install(&driver.packages, names),
        );
    }
    Assessment::blocked(
        format!("a different driver is installed ({named}), but {wanted}"),
        format!(
            "set `driver.existing = \"replace\"` to replace it. To keep it, set `driver.branch` and \
             `driver.source` to the installed ones (source `{DISTRIBUTION}` is the system's \
             archive)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{There, blocked_downgrade, instead_of, others, outdated};
    use crate::{
        change::Change,
        config::desired::{Desired, KernelSpec, ModuleMethod},
        state::{Origin, Ours},
        step::Assessment,
        steps::{
            fixtures::desired,
            specs::{
                InstalledPackages,
                fixtures::{packages, specs},
            },
        },
    };

    #[derive(Clone)]
    struct Machine {
        installed: InstalledPackages,
        ours: Ours,
        origin: Option<Origin>,
    }

    /// Runs the checks in the order of the step.
    fn decide(machine: &Machine, desired: &Desired) -> Option<Assessment> {
        let driver = desired.driver.as_ref().expect("a driver");
        let there = There {
            installed: &machine.installed,
            ours: &machine.ours,
            origin: machine.origin,
        };
        let found = others(driver, desired, &there);
        if !found.is_empty() {
            return Some(instead_of(&found, driver, desired, &there));
        }
        let old = outdated(driver, desired, &there);
        blocked_downgrade(driver, &there, &old).or_else(|| {
            (!old.is_empty()).then(|| Assessment::Needs {
                why: String::new(),
                changes: super::install(&driver.packages, old),
            })
        })
    }

    /// Returns the packages that the transaction replaces.
    fn replaced(machine: &Machine, desired: &Desired) -> Vec<String> {
        match decide(machine, desired) {
            None => Vec::new(),
            Some(Assessment::Needs { changes, .. }) => match &changes[1] {
                Change::InstallPackages { removing, .. } => removing.clone(),
                other => panic!("{other:?}"),
            },
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Installed packages, all installed and held by gpu-bootstrap.
    fn ours(installed: &[&str]) -> Machine {
        let installed = packages(installed);
        let names: std::collections::BTreeSet<String> = installed.keys().cloned().collect();
        Machine {
            ours: Ours {
                packages: names.clone(),
                held: names,
                ..Ours::default()
            },
            installed,
            origin: None,
        }
    }

    #[test]
    fn own_packages_are_replaced() {
        let want = desired();
        let mut old = ours(&[
            "nvidia-smi=470.256.02-1",
            "libnvidia-ml1=470.256.02-1",
            "nvidia-kernel-common=20220217+3",
        ]);
        assert_eq!(replaced(&old, &want), ["libnvidia-ml1", "nvidia-smi"]);
        // An unmanaged or held package among them needs the administrator.
        let mut held = old.clone();
        held.installed.get_mut("libnvidia-ml1").expect("there").held = true;
        let Some(Assessment::Blocked { why, hint }) = decide(&held, &want) else {
            panic!("a foreign hold must block");
        };
        assert!(
            why.contains("libnvidia-ml1 470") && !why.contains("smi"),
            "{why}"
        );
        assert!(hint.contains("unhold"), "{hint}");
        old.ours.packages.remove("libnvidia-ml1");
        assert!(matches!(
            decide(&old, &want),
            Some(Assessment::Blocked { .. })
        ));
        // The same branch from a different source, with different package names.
        let mut other = ours(&[
            "nvidia-driver-535-server=535.1.1-0ubuntu1",
            "libnvidia-ml1=535.1.1-0ubuntu1",
        ]);
        other.origin = Some(Origin::Vendor);
        let both = ["libnvidia-ml1", "nvidia-driver-535-server"];
        assert_eq!(replaced(&other, &want), both);
        // If a part of the configured driver is installed, the rest has the same origin.
        let mut same = ours(&["nvidia-smi=535.1.1-1", "libnvidia-ml1=535.1.1-1"]);
        same.origin = Some(Origin::Vendor);
        assert!(replaced(&same, &want).is_empty());
    }

    /// Regression test: apt also removes packages that we do not list as replaced, so the transaction was rejected.
    #[test]
    fn kernel_module_packages_follow_branch_and_flavor() {
        let modules = [
            "linux-modules-nvidia-580-server-open-6.8.0-1059-aws=6.8.0-1059.62",
            "linux-modules-nvidia-580-server-open-aws-6.8=6.8.0-1059.62",
        ];
        let names = modules.map(|one| one.split('=').next().expect("a name").to_owned());
        let mut want = desired();
        want.hold.patterns.push("linux-modules-nvidia-*".into());
        let mut installed = modules.to_vec();
        installed.push("libnvidia-compute-580-server=580.173.02-0ubuntu0.24.04.1");
        want.driver.as_mut().expect("a driver").branch = "595".parse().expect("a branch");
        let mut moved = replaced(&ours(&installed), &want);
        assert_eq!(moved.remove(0), "libnvidia-compute-580-server");
        assert_eq!(moved, names);
        // The other flavor of the same branch.
        let driver = want.driver.as_mut().expect("a driver");
        driver.branch = "580".parse().expect("a branch");
        driver.packages = specs(&[
            "linux-modules-nvidia-580-server-6.8.0-1059-aws",
            "libnvidia-compute-580-server=580.*",
        ]);
        want.kernel = Some(KernelSpec {
            policy: Default::default(),
            arch: "x86_64".into(),
            image: None,
            companions: Vec::new(),
            follow: Vec::new(),
            container_modules: vec![],
            refused: vec![],
            methods: vec![ModuleMethod {
                packages: specs(&["linux-modules-nvidia-580-server-{kernel}"]),
                headers: Vec::new(),
                follow: Vec::new(),
                compiled_as: None,
                module: "nvidia".into(),
                prebuilt: None,
                branch: None,
                companions: vec![],
            }],
        });
        assert_eq!(replaced(&ours(&installed), &want), names);
    }

    #[test]
    fn downgrade_must_be_configured() {
        let mut want = desired();
        let newer = ours(&["nvidia-smi=580.95.05-1", "libnvidia-ml1=580.95.05-1"]);
        let Some(Assessment::Blocked { why, hint }) = decide(&newer, &want) else {
            panic!("the downgrade is not configured");
        };
        assert!(why.contains("580.95.05") && why.contains("535"), "{why}");
        assert!(hint.contains("driver.branch = 580"), "{hint}");
        want.driver.as_mut().expect("a driver").asked = true;
        assert_eq!(replaced(&newer, &want), ["libnvidia-ml1", "nvidia-smi"]);
    }

    #[test]
    fn same_branch_change_moves_only_our_packages() {
        let mut want = desired();
        let driver = want.driver.as_mut().expect("a driver");
        driver.version = Some("535.261.03".parse().expect("a version"));
        driver.packages = specs(&["nvidia-kernel-dkms=535.261.03-*", "nvidia-smi=535.261.03-*"]);
        driver.asked = true;
        let installed = [
            "nvidia-kernel-dkms=535.171.04-1",
            "nvidia-smi=535.171.04-1",
            "libnvidia-ml1=535.171.04-1",
            // A helper with a separate version stays.
            "nvidia-modprobe=535.161.07-1",
        ];
        let moved = ["nvidia-kernel-dkms", "nvidia-smi", "libnvidia-ml1"];
        assert_eq!(replaced(&ours(&installed), &want), moved);
        let mut theirs = ours(&installed);
        theirs.ours = Ours::default();
        assert!(replaced(&theirs, &want).is_empty());
        let open = ours(&[
            "nvidia-open-kernel-dkms=535.261.03-1~deb12u1",
            "nvidia-smi=535.261.03-1~deb12u1",
        ]);
        assert_eq!(replaced(&open, &desired()), ["nvidia-open-kernel-dkms"]);
    }
}
