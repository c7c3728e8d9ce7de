//! Selects the package versions to request, and checks that a simulated transaction contains only actions that the plan
//! approves. These functions do not access the machine.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    change::{ChangeError, Class},
    config::{
        desired::{Guard, LockedPackages, PackageSpec},
        kernel::is_dkms_package,
        values::Build,
    },
    facts::detection::carries_driver,
    model::{pattern, version::DriverVersion},
    tools::packages::{Action, AvailablePackage, Backend, FailureClass, LowerBounds},
};

/// The reason if a transaction would install other packages than the lock file contains.
pub(super) const LOCK_DIFFERS: &str = "lock-differs";

/// The reason if no source offers a package of the lock file.
pub(super) const LOCK_UNAVAILABLE: &str = "lock-unavailable";

/// The reason if a transaction would install packages that the bundle of the run lacks.
const BUNDLE_LACKS: &str = "bundle-lacks";

/// The reason if a source offers a package of the lock file with another SHA-256.
const LOCK_DIGEST: &str = "lock-digest";

/// The reasons for which a lock file or a bundle blocks a package transaction.
pub const LOCK_REASONS: [&str; 4] = [LOCK_DIFFERS, LOCK_UNAVAILABLE, LOCK_DIGEST, BUNDLE_LACKS];

/// The remedy if no source offers a package of the lock file.
pub const LOCK_REMEDY: &str = "add a source that still has these versions, such as a mirror or a snapshot of the archive \
    (`repositories`), or create a new lock file with `gpu-bootstrap lock` on an updated node";

/// The beginning of the message about packages with another SHA-256 than the locked one.
pub const REPLACED_FILES: &str = "a source has replaced the files of";

/// The remedy if a source offers a package of the lock file with another SHA-256.
pub const DIGEST_REMEDY: &str = "ask the vendor why this version has another package file, and use a mirror or a snapshot of the \
    archive with the file of the lock (`repositories`), or create a new lock file with `gpu-bootstrap lock`";

/// The actions that the plan approves.
#[derive(Debug, Default)]
pub(super) struct Approved<'p> {
    /// Packages that the plan requests.
    pub named: BTreeSet<&'p str>,
    /// Name patterns of packages that may be removed.
    pub removing: Vec<&'p str>,
    /// Name patterns of packages that may be upgraded in addition to the named ones.
    pub upgrading: Vec<&'p str>,
    /// Held packages.
    pub held: BTreeSet<String>,
    /// Whether the transaction is a removal, so that no package may be installed.
    pub only_removals: bool,
    /// Packages that may be upgraded, downgraded or removed even if gpu-bootstrap holds them. `Applier::moving` has already
    /// rejected changes of packages with other holds.
    pub moving: BTreeSet<String>,
}

/// Selects the version of a package to request, see [`preferred`].
///
/// # Errors
/// If no available version matches the requested one. The message lists the available versions.
pub(super) fn choose(
    backend: &dyn Backend,
    spec: &PackageSpec,
    offer: Option<&AvailablePackage>,
) -> Result<String, ChangeError> {
    let wanted = spec.version.as_deref().unwrap_or("*");
    let none = |offered: String| {
        let (package, wanted) = (&spec.name, spec.version.as_deref().unwrap_or("*"));
        let what = format!("find a version of `{package}` that matches `{wanted}`: {offered}");
        ChangeError {
            hint: (FailureClass::NotFound.hint_for(backend.name())).map(str::to_owned),
            ..ChangeError::blocked(FailureClass::NotFound.reason(), what)
                .of(Class::NoVersion(package.clone()))
        }
    };
    let Some(offer) = offer else {
        return Err(none("the package is not in the package lists".to_owned()));
    };
    preferred(backend, offer, &|version| backend.matches(wanted, version)).ok_or_else(|| {
        none(if offer.versions.is_empty() {
            "no version is available".to_owned()
        } else {
            let all: Vec<&str> = offer.versions.iter().map(|(v, _)| v.as_str()).collect();
            format!("available: {}", all.join(", "))
        })
    })
}

/// Returns the package manager's candidate if it fits, because it respects pins and priorities. Otherwise returns the fitting
/// version with the highest priority, and the newest one if several have this priority. A version that an administrator has
/// forbidden never fits.
pub(super) fn preferred(
    backend: &dyn Backend,
    offer: &AvailablePackage,
    fits: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let fits = |version: &str| fits(version) && !offer.forbidden.iter().any(|one| one == version);
    if let Some(candidate) = offer.candidate.as_ref().filter(|one| fits(one)) {
        return Some(candidate.clone());
    }
    (offer.versions.iter())
        // A negative priority prevents the installation.
        .filter(|(version, priority)| *priority >= 0 && fits(version))
        .max_by(|(a, a_priority), (b, b_priority)| {
            (a_priority.cmp(b_priority)).then_with(|| backend.compare(a, b))
        })
        .map(|(version, _)| version.clone())
}

/// Describes the simulated actions that the plan does not approve. Each description starts with "would" and needs a subject
/// such as "it".
pub(super) fn objections(
    backend: &dyn Backend,
    actions: &[Action],
    approved: &Approved<'_>,
) -> Vec<String> {
    let any = |patterns: &[&str], name: &str| {
        let bare = backend.bare_name(name);
        patterns
            .iter()
            .any(|pattern| pattern::matches(pattern, name) || pattern::matches(pattern, bare))
    };
    let mut reasons = Vec::new();
    for action in actions {
        match action {
            Action::Remove { name, version } if approved.named.contains(name.as_str()) => {
                reasons.push(format!("would remove {name} {version}, which is required"));
            }
            _ if approved.moving.contains(action.name()) && !approved.only_removals => {}
            Action::Remove { name, version, .. } => {
                if approved.held.contains(name) {
                    reasons.push(format!("would remove {name} {version}, which is held"));
                } else if !any(&approved.removing, name) {
                    reasons.push(format!("would remove {name} {version}"));
                }
            }
            Action::Install { name, from, to } => match from {
                _ if approved.only_removals => {
                    reasons.push(format!("would install {name} {to}"));
                }
                None => {}
                Some(from) if from == to => {}
                Some(from) if approved.held.contains(name) => {
                    reasons.push(format!(
                        "would change {name}, which is held, from {from} to {to}"
                    ));
                }
                Some(from) if backend.compare(from, to) == Ordering::Greater => {
                    reasons.push(format!("would downgrade {name} from {from} to {to}"));
                }
                Some(from)
                    if !approved.named.contains(name.as_str())
                        && !any(&approved.upgrading, name) =>
                {
                    reasons.push(format!("would upgrade {name} from {from} to {to}"));
                }
                Some(_) => {}
            },
        }
    }
    reasons
}

/// Whether a package is a driver component, according to its name or its version.
pub(super) fn is_of_driver(name: &str, version: &str) -> bool {
    let is_driver = |version: DriverVersion| version.branch() >= DriverVersion::OLDEST_BRANCH;
    carries_driver(name) || DriverVersion::from_package(version).is_ok_and(is_driver)
}

/// Rejects driver component versions whose repository an administrator has forbidden with a negative priority. Our own
/// preference for the driver branch would allow them again.
pub(super) fn allowed(
    backend: &dyn Backend,
    actions: &[Action],
    offers: &[AvailablePackage],
    hint: &'static str,
) -> Result<(), ChangeError> {
    let is_forbidden = |name: &str, version: &String| {
        (offers.iter()).any(|offer| offer.name == name && offer.forbidden.contains(version))
    };
    let packages: Vec<String> = (actions.iter())
        .filter_map(|action| match action {
            Action::Install { name, to, .. } if is_forbidden(backend.bare_name(name), to) => {
                Some(format!("{name} {to}"))
            }
            _ => None,
        })
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    let packages = packages.join(", ");
    Err(ChangeError::blocked(
        "forbidden-source",
        format!(
            "approve the package transaction: preferences on this machine forbid the repository of \
             {packages}"
        ),
    )
    .advice(hint))
}

/// Returns the error for a transaction that the plan does not approve. It is marked as dependent on the package lists, because
/// newer lists may lead to a different transaction.
pub(super) fn disapproved(reason: &'static str, why: &str) -> ChangeError {
    ChangeError {
        depends_on_lists: true,
        ..ChangeError::blocked(reason, format!("approve the package transaction: {why}"))
    }
}

/// Rejects a transaction that would install a kernel that is not in `named`, a driver of a branch other than the one in
/// [`Guard`], or a DKMS package although nothing may be compiled.
pub(super) fn guarded(
    backend: &dyn Backend,
    actions: &[Action],
    named: &[&str],
    guard: &Guard,
) -> Result<(), ChangeError> {
    let (mut kernels, mut drivers, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for action in actions {
        let Action::Install { name, from, to } = action else {
            continue;
        };
        let bare = backend.bare_name(name);
        let is_kernel = (guard.kernels.iter()).any(|one| pattern::matches(one, bare));
        if from.is_none() && is_kernel && !named.contains(&bare) {
            kernels.push(name.clone());
        }
        if from.is_none() && guard.without_compiler && is_dkms_package(bare) {
            sources.push(format!("{name} {to}"));
        }
        if let Some(wanted) = guard.driver
            && carries_driver(bare)
            && let Ok(version) = DriverVersion::from_package(to)
            && version.branch() != wanted
        {
            drivers.push(format!("{name} {to}"));
        }
    }
    match guard.driver {
        Some(wanted) if !drivers.is_empty() => {
            let drivers = drivers.join(", ");
            let why =
                format!("it would install a driver of a branch other than {wanted}: {drivers}");
            Err(disapproved("driver-branch", &why).advice(
                "set `driver.branch` to an available branch, because the archive has replaced \
                 the selected branch with a newer one",
            ))
        }
        _ if !sources.is_empty() => {
            let why = format!(
                "it would install a package that compiles driver modules: {}",
                sources.join(", ")
            );
            Err(disapproved("compiles-modules", &why).advice(
                "no package with prebuilt modules has the version that the driver packages require: export the modules of \
                 the newest driver (`gpu-bootstrap modules export`), or set `driver.version` to the driver of an existing \
                 archive, and run this command again; or remove `driver.prebuilt.only`",
            ))
        }
        _ if !kernels.is_empty() => {
            let why = format!("it would install another kernel: {}", kernels.join(", "));
            let install = backend.commands().install_kernel;
            let problem = disapproved("new-kernel", &why).advice(format!(
                "install that kernel yourself (`{install}`), reboot, and run the command again; \
                 or {}, which compiles the module for the running kernel",
                Build::COMPILE
            ));
            Err(problem.of(Class::NewKernel))
        }
        _ => Ok(()),
    }
}

/// Returns the packages that a transaction would install in another version than the locked one, with their locked versions.
pub(super) fn not_locked(
    backend: &dyn Backend,
    actions: &[Action],
    lock: &LockedPackages,
) -> BTreeMap<String, String> {
    let other = |action: &Action| {
        let Action::Install { name, to, .. } = action else {
            return None;
        };
        let version = lock.versions.get(name)?;
        (backend.compare(to, version) != Ordering::Equal).then(|| (name.clone(), version.clone()))
    };
    actions.iter().filter_map(other).collect()
}

/// The remedy if a bundle lacks packages.
pub const BUNDLE_REMEDY: &str = "create the bundle on a node with the same image, kernel, settings and type of GPUs \
    (`gpu-bootstrap bundle create`)";

/// Rejects a transaction with packages that the bundle of the run does not contain. Its lists also contain other packages.
fn bundled(
    backend: &dyn Backend,
    actions: &[Action],
    lock: &LockedPackages,
) -> Result<(), ChangeError> {
    let lacking: Vec<String> = (actions.iter())
        .filter_map(|action| match action {
            Action::Install { name, to, .. } if lock.is_unbundled(backend, name, to) => {
                Some(format!("{name} {to}"))
            }
            _ => None,
        })
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let why = format!(
        "it would install packages that the bundle lacks: {}",
        lacking.join(", ")
    );
    Err(disapproved(BUNDLE_LACKS, &why).advice(BUNDLE_REMEDY))
}

/// Rejects a transaction with versions that differ from the lock file, with new packages that it does not contain, and with
/// packages that the bundle lacks.
pub(super) fn locked(
    backend: &dyn Backend,
    actions: &[Action],
    lock: &LockedPackages,
) -> Result<(), ChangeError> {
    let differs = not_locked(backend, actions, lock);
    let reasons: Vec<String> = (actions.iter())
        .filter_map(|action| match action {
            Action::Install { name, to, .. } if differs.contains_key(name) => {
                Some(format!("{name} {to} instead of {}", differs[name]))
            }
            Action::Install {
                name,
                from: None,
                to,
            } if !lock.allows(backend, name) => {
                Some(format!("{name} {to}, which it does not contain"))
            }
            _ => None,
        })
        .collect();
    if reasons.is_empty() {
        return bundled(backend, actions, lock);
    }
    let why = format!(
        "it differs from the lock file, because it would install {}",
        reasons.join(", ")
    );
    Err(disapproved(LOCK_DIFFERS, &why).advice(
        "create the lock file on a node with the same image, settings and type of GPUs, or run the command without `--lock`",
    ))
}

/// Returns the error for packages that no source offers in their locked version.
pub(super) fn unavailable(gone: &[String]) -> ChangeError {
    let first = gone.first().cloned().unwrap_or_default();
    let what = format!(
        "install the versions of the lock file: no source offers {}",
        gone.join(", ")
    );
    ChangeError::blocked(LOCK_UNAVAILABLE, what)
        .of(Class::NoVersion(first))
        .advice(LOCK_REMEDY)
}

/// Returns the error for packages that the sources offer only with another SHA-256 than the locked one.
pub(super) fn replaced_files(replaced: &[String]) -> ChangeError {
    let why = format!("{REPLACED_FILES} {}", replaced.join(", "));
    disapproved(LOCK_DIGEST, &why).advice(DIGEST_REMEDY)
}

/// Rejects a transaction that would install a precompiled driver module and driver libraries of the same branch but different
/// versions, because NVML would then fail. The package of such a module has the version of its kernel. The driver version of
/// the module is therefore read from the dependencies of the package: it is the lowest driver version that they accept.
pub(super) fn same_version(
    backend: &dyn Backend,
    actions: &[Action],
    modules: &[LowerBounds],
    guard: &Guard,
) -> Result<(), ChangeError> {
    let Some(branch) = guard.driver else {
        return Ok(());
    };
    for package in modules {
        let Some(module) = package.driver(branch) else {
            continue;
        };
        for action in actions {
            let Action::Install { name, to, .. } = action else {
                continue;
            };
            let version = DriverVersion::from_package(to).ok();
            if carries_driver(backend.bare_name(name))
                && version.is_some_and(|version| version.branch() == branch && version != module)
            {
                let why = format!(
                    "the module in `{}` has driver version {module}, but `{name}` would have {to}",
                    package.name
                );
                return Err(disapproved("driver-module-version", &why).advice(format!(
                    "run the command again later, when the archive has a module and libraries of the same \
                     version for this kernel, or {}, which compiles a module that matches the libraries",
                    Build::COMPILE
                )));
            }
        }
    }
    Ok(())
}

/// If an error about unmet dependencies mentions held packages, adds a list of them and returns [`FailureClass::Held`]. The hold is
/// the likely cause, but package managers do not report it.
pub(super) fn name_held_packages(
    class: FailureClass,
    told: String,
    held: &BTreeSet<String>,
) -> (FailureClass, String) {
    let words: BTreeSet<&str> = told.split_whitespace().collect();
    let named: Vec<&str> = held
        .iter()
        .map(String::as_str)
        .filter(|name| words.contains(name))
        .collect();
    if class != FailureClass::Unmet || named.is_empty() {
        return (class, told);
    }
    let text = format!("{told}\nheld: {}", named.join(", "));
    (FailureClass::Held, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Report, exit::Exit, model::version::Branch, tools::packages::Manager};

    /// Behavior that is common to all package managers is tested with apt.
    const APT: Manager = Manager::Apt;

    #[test]
    fn driver_component_from_forbidden_repository_is_rejected() {
        let offer = AvailablePackage {
            name: "libcuda1".to_owned(),
            candidate: Some("580.999.0".to_owned()),
            versions: vec![
                ("580.999.0".to_owned(), 1001),
                ("580.95.05-1".to_owned(), 1001),
            ],
            forbidden: vec!["580.999.0".to_owned()],
            ..AvailablePackage::default()
        };
        let chosen = preferred(APT.backend(), &offer, &|version| {
            version.starts_with("580.")
        });
        assert_eq!(chosen.as_deref(), Some("580.95.05-1"));
        let evaluate = |to: &str| {
            let install = Action::Install {
                name: "libcuda1:amd64".to_owned(),
                from: None,
                to: to.to_owned(),
            };
            allowed(
                APT.backend(),
                &[install],
                std::slice::from_ref(&offer),
                "forbid it",
            )
        };
        assert!(evaluate("580.95.05-1").is_ok());
        let error = evaluate("580.999.0").unwrap_err();
        assert_eq!(
            (error.reason(), error.exit(), error.hint().as_deref()),
            ("forbidden-source", Exit::Blocked, Some("forbid it"))
        );
        assert!(
            error.to_string().contains("libcuda1:amd64 580.999.0"),
            "{error}"
        );
    }

    #[test]
    fn hold_that_blocks_dependencies_is_reported() {
        let told = "The following packages have unmet dependencies:\n libnvidia-container-tools : \
                    Depends: libnvidia-container1 (>= 1.20.1-1) but 1.10.0-1 is to be installed";
        let held = |name: &str| BTreeSet::from([name.to_owned()]);
        let (class, text) = name_held_packages(
            FailureClass::Unmet,
            told.into(),
            &held("libnvidia-container1"),
        );
        assert_eq!(class, FailureClass::Held);
        assert!(text.ends_with("\nheld: libnvidia-container1"), "{text}");
        // A held package is listed only if the error contains its complete name.
        let (class, text) =
            name_held_packages(FailureClass::Unmet, told.into(), &held("libnvidia"));
        assert_eq!((class, text.as_str()), (FailureClass::Unmet, told));
    }

    fn spec(version: Option<&str>) -> PackageSpec {
        PackageSpec {
            name: "nvidia-kernel-dkms".into(),
            version: version.map(str::to_owned),
        }
    }

    fn offer(candidate: Option<&str>, versions: &[(&str, i32)]) -> AvailablePackage {
        AvailablePackage {
            name: "nvidia-kernel-dkms".into(),
            candidate: candidate.map(str::to_owned),
            versions: versions
                .iter()
                .map(|(version, priority)| ((*version).to_owned(), *priority))
                .collect(),
            forbidden: Vec::new(),
            only_installed: None,
        }
    }

    #[test]
    fn version_selected_by_pattern_then_priority_then_age() {
        let two = offer(
            Some("580.178.04-1"),
            &[
                ("580.178.04-1", 500),
                ("535.261.03-1~deb12u1", 500),
                ("535.183.01-1", 500),
                ("535.9.1-1", 500),
                ("535.300.1-1", -1),
            ],
        );
        for (pattern, expected) in [
            (None, "580.178.04-1"),
            (Some("535.*"), "535.261.03-1~deb12u1"),
            (Some("535.9.*"), "535.9.1-1"),
            (Some("535.183.01-1"), "535.183.01-1"),
        ] {
            assert_eq!(
                choose(APT.backend(), &spec(pattern), Some(&two)).unwrap(),
                expected
            );
        }
        // With equal priorities the newest version is selected, but never one with a negative priority.
        let equal = offer(
            Some("2"),
            &[("2", 500), ("1.2", 500), ("1.1", 500), ("1.3", -1)],
        );
        let fits = |version: &str| version.starts_with("1.");
        assert_eq!(
            preferred(APT.backend(), &equal, &fits).as_deref(),
            Some("1.2")
        );
        let pinned = offer(Some("2"), &[("2", 500), ("1.2", 100), ("1.1", 600)]);
        assert_eq!(
            choose(APT.backend(), &spec(Some("1.*")), Some(&pinned)).unwrap(),
            "1.1"
        );
    }

    #[test]
    fn error_lists_the_available_versions() {
        for (pattern, offered, text) in [
            (None, None, "is not in the package lists"),
            (None, Some(offer(None, &[])), "no version is available"),
            (
                Some("535.*"),
                Some(offer(Some("550.1-1"), &[("550.1-1", 500)])),
                "available: 550.1-1",
            ),
            (
                Some("535.*"),
                Some(offer(None, &[("535.1-1", -10)])),
                "available: 535.1-1",
            ),
        ] {
            let error = choose(APT.backend(), &spec(pattern), offered.as_ref()).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    fn install(name: &str, from: Option<&str>, to: &str) -> Action {
        Action::Install {
            name: name.into(),
            from: from.map(str::to_owned),
            to: to.into(),
        }
    }

    #[test]
    fn new_kernel_or_other_driver_branch_is_rejected() {
        let guard = Guard {
            driver: Some(Branch(550)),
            kernels: vec!["linux-image-*".into()],
            ..Guard::default()
        };
        let evaluate = |action: Action| {
            let named = ["linux-image-6.1.0-44-amd64"];
            guarded(APT.backend(), &[action], &named, &guard).err()
        };
        // In Debian 13, `nvidia-modprobe` has a separate source package, so its version differs from the driver version.
        for allowed in [
            install("nvidia-modprobe", None, "570.133.07-1"),
            install("nvidia-kernel-dkms", None, "550.163.01-2"),
            install("nvidia-kernel-common", None, "20240109+1"),
            install("linux-image-6.1.0-44-amd64", None, "6.1.1"),
            install("linux-image-amd64", Some("6.1.1"), "6.1.2"),
            remove("libnvidia-compute-570"),
        ] {
            assert!(evaluate(allowed.clone()).is_none(), "{allowed:?}");
        }
        // A transitional package installs a branch that differs from its name.
        let error = evaluate(install("libnvidia-compute-550", None, "580.95.05-1"));
        let error = error.expect("another branch is rejected");
        assert_eq!(error.reason(), "driver-branch");
        let what = error.to_string();
        assert!(
            what.ends_with("than 550: libnvidia-compute-550 580.95.05-1"),
            "{what}"
        );
        let error = evaluate(install("linux-image-6.8.0-1050-aws", None, "6.8.1"));
        let error = error.expect("a new kernel is rejected");
        assert_eq!(
            (error.exit(), error.reason()),
            (Exit::Blocked, "new-kernel")
        );
        let hint = error.hint().unwrap();
        assert!(hint.contains("reboot"), "{hint}");
    }

    #[test]
    fn new_dkms_package_is_rejected_without_compiler() {
        let evaluate = |without_compiler: bool, action: Action| {
            let guard = Guard {
                without_compiler,
                ..Guard::default()
            };
            guarded(APT.backend(), &[action], &[], &guard).err()
        };
        let error = evaluate(true, install("nvidia-kernel-dkms", None, "580.95.05-1"));
        let error = error.expect("it would compile modules");
        assert_eq!(
            (error.exit(), error.reason()),
            (Exit::Blocked, "compiles-modules")
        );
        assert!(error.to_string().contains("nvidia-kernel-dkms 580.95.05-1"));
        for (without_compiler, action) in [
            (false, install("nvidia-kernel-dkms", None, "580.95.05-1")),
            (true, install("nvidia-headless-no-dkms-580", None, "580.1")),
            (true, install("nvidia-prebuilt-modules-6.1", None, "580.1")),
        ] {
            assert!(evaluate(without_compiler, action).is_none());
        }
    }

    #[test]
    fn module_and_libraries_of_different_versions_are_rejected() {
        let guard = Guard {
            driver: Some(Branch(580)),
            ..Guard::default()
        };
        let module = LowerBounds {
            name: "linux-modules-nvidia-580-server-open-6.8.0-1059-aws".into(),
            bounds: vec![
                (
                    "linux-modules-6.8.0-1059-aws".into(),
                    "6.8.0-1059.62".into(),
                ),
                (
                    "nvidia-kernel-common-580-server".into(),
                    "580.159.03".into(),
                ),
            ],
        };
        let evaluate = |action: Action| {
            let modules = std::slice::from_ref(&module);
            same_version(APT.backend(), &[action], modules, &guard).err()
        };
        for allowed in [
            install("libnvidia-compute-580-server", None, "580.159.03-0ubuntu1"),
            install("nvidia-modprobe", None, "580.173.02-0ubuntu1"),
            install("linux-modules-6.8.0-1059-aws", None, "6.8.0-1059.62"),
        ] {
            assert!(evaluate(allowed.clone()).is_none(), "{allowed:?}");
        }
        let error = evaluate(install(
            "libnvidia-compute-580-server",
            None,
            "580.173.02-0ubuntu1",
        ));
        let error = error.expect("NVML would fail");
        assert_eq!(
            (error.exit(), error.reason()),
            (Exit::Blocked, "driver-module-version")
        );
        assert!(
            error.to_string().contains("driver version 580.159.03"),
            "{error}"
        );
    }

    #[test]
    fn transaction_must_match_the_lock() {
        let lock = LockedPackages {
            digest: "0".repeat(64),
            versions: [("runc", "1.1.5"), ("docker.io", "20.10.24")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
            free: vec!["*6.1.0-45*".to_owned()],
            ..LockedPackages::default()
        };
        for (action, objection) in [
            (install("runc", None, "1.1.5"), None),
            (install("runc", Some("1.1.4"), "1.1.5"), None),
            (
                install("runc", None, "1.1.6"),
                Some("would install runc 1.1.6 instead of 1.1.5"),
            ),
            (
                install("tini", None, "1"),
                Some("would install tini 1, which it does not contain"),
            ),
            // The other rules decide whether an installed package may change.
            (install("libc6", Some("1"), "2"), None),
            (
                install("linux-headers-6.1.0-45-amd64", None, "6.1.180"),
                None,
            ),
            (remove("tini"), None),
        ] {
            let error = locked(APT.backend(), std::slice::from_ref(&action), &lock).err();
            assert_eq!(error.is_some(), objection.is_some(), "{action:?}");
            if let (Some(error), Some(objection)) = (error, objection) {
                assert!(error.to_string().ends_with(objection), "{error}");
                assert_eq!(
                    (error.exit(), error.reason()),
                    (Exit::Blocked, LOCK_DIFFERS)
                );
            }
        }
    }

    fn remove(name: &str) -> Action {
        Action::Remove {
            name: name.into(),
            version: "1".into(),
        }
    }

    #[test]
    fn removal_pattern_ignores_the_architecture() {
        let approved = Approved {
            removing: vec!["libnvidia-*"],
            only_removals: true,
            ..Approved::default()
        };
        for (manager, id, is_approved) in [
            (Manager::Apt, "libnvidia-ml1:i386", true),
            (Manager::Dnf, "libnvidia-ml.i686", true),
            (Manager::Dnf, "bash.i686", false),
        ] {
            let found = objections(manager.backend(), &[remove(id)], &approved);
            assert_eq!(found.is_empty(), is_approved, "{id}");
        }
        assert_eq!(Manager::Dnf.backend().bare_name("python3.11"), "python3.11");
    }

    #[test]
    fn only_approved_actions_pass() {
        let approved = Approved {
            named: ["docker.io", "moby"].into(),
            removing: vec!["busybox-*"],
            upgrading: vec!["libc6*"],
            held: ["containerd", "podman", "libcuda1"]
                .map(str::to_owned)
                .into(),
            only_removals: false,
            moving: ["libcuda1", "docker.io"].map(str::to_owned).into(),
        };
        for (action, objection) in [
            (install("runc", None, "1"), None),
            (install("docker.io", Some("1"), "2"), None),
            (install("libc6-dev:i386", Some("1"), "2"), None),
            (install("gcc", Some("1"), "1"), None),
            (
                install("gcc", Some("1"), "2"),
                Some("would upgrade gcc from 1 to 2"),
            ),
            (
                install("moby", Some("2"), "1"),
                Some("would downgrade moby from 2 to 1"),
            ),
            // A required package is never removed, even if its version may change.
            (
                remove("docker.io"),
                Some("would remove docker.io 1, which is required"),
            ),
            (
                install("containerd", Some("1"), "2"),
                Some("would change containerd, which is held, from 1 to 2"),
            ),
            (remove("busybox-static"), None),
            (install("libcuda1", Some("2"), "1"), None),
            (install("libcuda1", Some("1"), "2"), None),
            (remove("libcuda1"), None),
            (
                remove("podman"),
                Some("would remove podman 1, which is held"),
            ),
            (remove("bash"), Some("would remove bash 1")),
        ] {
            let found = objections(APT.backend(), std::slice::from_ref(&action), &approved);
            assert_eq!(found.first().map(String::as_str), objection, "{action:?}");
        }
        let removal = Approved {
            removing: vec!["a"],
            only_removals: true,
            ..Approved::default()
        };
        assert!(objections(APT.backend(), &[remove("a")], &removal).is_empty());
        assert_eq!(
            objections(APT.backend(), &[install("b", None, "1")], &removal),
            ["would install b 1"]
        );
    }
}
