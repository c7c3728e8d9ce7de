//! `packages.lock`: all packages of the lock file have their locked versions, including dependencies that no other step requires.
//! Before the first change, the step blocks the run if no source offers a locked version any longer.

use super::{
    CLUSTER_PACKAGES, DCGM_PACKAGES, DRIVER_PACKAGES, HEADERS, PACKAGES_LOCK, TOOLKIT_PACKAGES,
    installed_runtimes, messages, packages,
    specs::{Comparison, InstalledPackage, InstalledPackages, compare, install, outdated},
};
use crate::{
    change::{
        Lock,
        packages::{BUNDLE_REMEDY, DIGEST_REMEDY, LOCK_REMEDY, REPLACED_FILES, repository},
    },
    config::desired::{Desired, LockedPackages, Manager, PackageSpec},
    state::{LockStatus, Ours, State, StateError},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::{AvailablePackage, Backend, Package, mirrors::by_package},
};

/// The `packages.lock` step.
pub(super) fn step() -> Step {
    Step::new(PACKAGES_LOCK, |cx| Box::pin(assess(cx)))
        .after(installed_runtimes())
        .after([
            HEADERS,
            DRIVER_PACKAGES,
            TOOLKIT_PACKAGES,
            DCGM_PACKAGES,
            CLUSTER_PACKAGES,
        ])
        .locks([Lock::Packages, Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct LockState {
    installed: InstalledPackages,
    ours: Ours,
    /// The packages that no source, or the bundle of the run, offers in their locked version, as `NAME VERSION`. Without a bundle,
    /// empty if a required repository is not configured yet. The package transaction then checks it.
    gone: Vec<String>,
    /// The packages that the sources offer only with another SHA-256 than the locked one, as text for messages.
    replaced: Vec<String>,
    /// The package lists were downloaded in this run.
    lists_are_new: bool,
}

/// Adds packages of a foreign architecture, which a lock file contains by their ID.
fn with_foreign(installed: &mut InstalledPackages, database: &[Package]) {
    let foreign = database
        .iter()
        .filter(|one| one.is_foreign() && one.is_unpacked());
    installed.extend(foreign.map(|package| {
        let installed = InstalledPackage {
            version: package.version.clone(),
            further: Vec::new(),
            held: package.held,
            complete: package.is_installed(),
        };
        (package.id.clone(), installed)
    }));
}

async fn detect(cx: &Cx<'_>, lock: &LockedPackages) -> Result<LockState, StepError> {
    let mut installed = packages::held_by_others(cx).await?;
    with_foreign(&mut installed, packages::database(cx).await?);
    let backend = packages::backend(cx);
    let specs = needed(lock, &installed);
    let differs: Vec<&PackageSpec> = (specs.iter())
        .filter(|spec| !has(backend, &installed, spec))
        .collect();
    let gone = match &lock.bundled {
        Some(_) => unbundled(backend, lock, &differs),
        None => offered_no_longer(cx, &differs).await?,
    };
    let replaced = replaced_files(cx, lock, &differs).await?;
    Ok(LockState {
        installed,
        ours: cx.state.ours().clone(),
        gone,
        replaced,
        lists_are_new: cx.state.lists_are_new(),
    })
}

/// Returns the packages that the bundle lacks, as `NAME VERSION`.
fn unbundled(
    backend: &dyn Backend,
    lock: &LockedPackages,
    differs: &[&PackageSpec],
) -> Vec<String> {
    (differs.iter())
        .filter(|spec| lock.is_unbundled(backend, &spec.name, version(spec)))
        .map(|spec| format!("{} {}", spec.name, version(spec)))
        .collect()
}

/// Returns the packages that no source offers, as `NAME VERSION`.
async fn offered_no_longer(
    cx: &Cx<'_>,
    differs: &[&PackageSpec],
) -> Result<Vec<String>, StepError> {
    match differs.is_empty() || !packages::has_lists(cx)? || lacks_repository(cx)? {
        true => Ok(Vec::new()),
        false => gone(cx, differs).await,
    }
}

/// Whether a required repository is not configured yet, so that the package lists do not contain its packages.
fn lacks_repository(cx: &Cx<'_>) -> Result<bool, StepError> {
    let (backend, files) = (packages::backend(cx), cx.host.files());
    let by_root = cx.state.is_of_this_machine();
    for repository in &cx.desired.repositories {
        if !files.exists(&backend.source(repository).0)?
            && repository::configured_elsewhere(backend, files, repository, by_root)?.is_none()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn gone(cx: &Cx<'_>, differs: &[&PackageSpec]) -> Result<Vec<String>, StepError> {
    let backend = packages::backend(cx);
    let names: Vec<&str> = differs.iter().map(|spec| spec.name.as_str()).collect();
    let query = backend.offers_of_all_streams(&names);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    let offers = backend.parse_offers(&output.stdout);
    let is_offered = |spec: &PackageSpec| {
        let of = |offer: &&AvailablePackage| offer.name == spec.name;
        offers
            .iter()
            .find(of)
            .is_some_and(|offer| offer.has(version(spec)))
    };
    Ok((differs.iter())
        .filter(|spec| !is_offered(spec))
        .map(|spec| format!("{} {}", spec.name, version(spec)))
        .collect())
}

/// Returns the packages that the sources offer only with another SHA-256 than the locked one.
async fn replaced_files(
    cx: &Cx<'_>,
    lock: &LockedPackages,
    differs: &[&PackageSpec],
) -> Result<Vec<String>, StepError> {
    let names = differs.iter().map(|spec| spec.name.as_str());
    let backend = packages::backend(cx);
    let Some(mirrors) = backend.mirrors().filter(|_| lock.has_digests(names)) else {
        return Ok(Vec::new());
    };
    if !packages::has_lists(cx)? {
        return Ok(Vec::new());
    }
    let differs: Vec<(String, String)> = (differs.iter())
        .map(|spec| (spec.name.clone(), version(spec).to_owned()))
        .collect();
    let output = match mirrors.digests_query(&differs) {
        Some(query) => cx.host.query(&query).await?.stdout,
        None => String::new(),
    };
    let listed = mirrors.digests(cx.host.files(), &differs, &output)?;
    Ok(lock.replaced_files(&by_package(backend, &differs, &listed)))
}

/// Returns the locked packages that the machine needs.
fn needed(lock: &LockedPackages, installed: &InstalledPackages) -> Vec<PackageSpec> {
    let is_there = |name: &str| {
        installed
            .get(name)
            .is_some_and(|one| !one.version.is_empty())
    };
    lock.specs(is_there)
}

/// The locked version.
fn version(spec: &PackageSpec) -> &str {
    spec.version.as_deref().unwrap_or_default()
}

fn has(backend: &dyn Backend, installed: &InstalledPackages, spec: &PackageSpec) -> bool {
    let there = installed.get(&spec.name);
    there.is_some_and(|there| backend.compare(&there.version, version(spec)).is_eq())
}

fn decide(state: &LockState, lock: &LockedPackages, manager: Manager) -> Assessment {
    let specs = needed(lock, &state.installed);
    let comparison = compare(manager, &specs, &state.installed);
    if comparison.all_met() {
        return Assessment::satisfied(format!(
            "{} packages have the versions of the lock file {}",
            specs.len(),
            lock.short_digest()
        ));
    }
    if let Some(refusal) = comparison.refusal(manager) {
        return refusal;
    }
    let why = difference(lock, &specs, &comparison, &state.installed);
    if !state.gone.is_empty() && lock.bundled.is_some() {
        let why = format!("{why}; the bundle lacks {}", state.gone.join(", "));
        return Assessment::blocked(why, BUNDLE_REMEDY);
    }
    let blocked = |why: String, hint: &str| {
        let hint = hint.to_owned();
        match state.lists_are_new {
            true => Assessment::Blocked { why, hint },
            false => Assessment::BlockedByOldLists { why, hint },
        }
    };
    if !state.replaced.is_empty() {
        let replaced = state.replaced.join(", ");
        return blocked(format!("{why}; {REPLACED_FILES} {replaced}"), DIGEST_REMEDY);
    }
    if !state.gone.is_empty() {
        let why = format!("{why}; no source offers {}", state.gone.join(", "));
        return blocked(why, LOCK_REMEDY);
    }
    let replaced = outdated(manager, &specs, &state.installed, &state.ours);
    let newer = newer(manager, &specs, &state.installed, &replaced);
    if !newer.is_empty() {
        return Assessment::blocked(
            format!(
                "{why}; gpu-bootstrap did not install the newer versions of {}, so it does not downgrade them",
                messages::some(&newer)
            ),
            "use an image with the versions of the lock file, downgrade these packages manually, or create a new lock file with \
             `gpu-bootstrap lock` on a node with this image",
        );
    }
    Assessment::needs(why, install(&specs, replaced))
}

/// Returns the packages that are newer than in the lock and not among `replaced`.
fn newer<'s>(
    manager: Manager,
    specs: &'s [PackageSpec],
    installed: &InstalledPackages,
    replaced: &[String],
) -> Vec<&'s str> {
    let is_newer = |spec: &&PackageSpec| {
        let there = installed
            .get(&spec.name)
            .filter(|there| !there.version.is_empty());
        there.is_some_and(|there| {
            manager
                .backend()
                .compare(&there.version, version(spec))
                .is_gt()
        })
    };
    (specs.iter().filter(is_newer))
        .filter(|spec| !replaced.contains(&spec.name))
        .map(|spec| spec.name.as_str())
        .collect()
}

/// Describes the packages that differ from the lock: the locked and the installed version of each.
fn difference(
    lock: &LockedPackages,
    specs: &[PackageSpec],
    comparison: &Comparison,
    installed: &InstalledPackages,
) -> String {
    let missing: Vec<&str> = (specs.iter())
        .filter(|spec| !installed.contains_key(&spec.name))
        .map(|spec| spec.name.as_str())
        .collect();
    let is_missing = |text: &&String| text.ends_with(" is not installed");
    let mut parts: Vec<String> = (comparison.unmet.iter())
        .filter(|text| !is_missing(text))
        .cloned()
        .collect();
    if !missing.is_empty() {
        parts.push(format!("not installed: {}", messages::some(&missing)));
    }
    format!(
        "{} of {} packages differ from the lock file {}: {}",
        comparison.unmet.len(),
        specs.len(),
        lock.short_digest(),
        parts.join("; ")
    )
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let Some(lock) = &cx.desired.packages.guard.lock else {
        return Ok(Assessment::not_applicable("no lock file is used"));
    };
    let state = detect(cx, lock).await?;
    Ok(decide(&state, lock, cx.desired.packages.manager))
}

/// Compares the machine with the lock file of a desired state. `None` without a lock file.
///
/// # Errors
/// If the package database cannot be read.
pub async fn lock_status(
    state: &State,
    desired: &Desired,
) -> Result<Option<LockStatus>, StateError> {
    let policy = &desired.packages;
    let Some(lock) = &policy.guard.lock else {
        return Ok(None);
    };
    let backend = policy.manager.backend();
    let database = state.database(policy.manager).await?.unwrap_or_default();
    let found = |name: &str| {
        database
            .iter()
            .find(|one| one.id == name && one.is_installed())
    };
    let specs = lock.specs(|name| found(name).is_some());
    let differs = |spec: &&PackageSpec| {
        let there = found(&spec.name);
        !there.is_some_and(|there| backend.compare(&there.version, version(spec)).is_eq())
    };
    Ok(Some(LockStatus {
        digest: lock.digest.clone(),
        drift: specs.iter().filter(differs).count(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{change::Change, steps::specs::fixtures::packages};

    fn lock() -> LockedPackages {
        LockedPackages {
            digest: "0123456789abcdef".to_owned(),
            versions: [
                ("docker.io", "20.10.24"),
                ("runc", "1.1.5"),
                ("tini", "0.19"),
            ]
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into(),
            is_whole: true,
            ..LockedPackages::default()
        }
    }

    fn evaluate(installed: &[&str], ours: &[&str], gone: &[&str]) -> Assessment {
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let state = LockState {
            installed: packages(installed),
            ours: Ours {
                packages: ours.iter().map(|&name| name.to_owned()).collect(),
                ..Ours::default()
            },
            gone: strings(gone),
            replaced: Vec::new(),
            lists_are_new: true,
        };
        decide(&state, &lock(), Manager::Apt)
    }

    #[test]
    fn difference_contains_both_versions() {
        let answer = evaluate(&["docker.io=20.10.24", "runc=1.1.5", "tini=0.19"], &[], &[]);
        let Assessment::Satisfied { why } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(
            why,
            "3 packages have the versions of the lock file 0123456789ab"
        );
        let answer = evaluate(&["docker.io=20.10.25", "runc=1.1.5"], &["docker.io"], &[]);
        let Assessment::Needs { why, changes } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(
            why,
            "2 of 3 packages differ from the lock file 0123456789ab: docker.io 20.10.25 is installed, but 20.10.24 is \
             required; not installed: tini"
        );
        let Some(Change::InstallPackages { removing, .. }) = changes.last() else {
            panic!("{changes:?}");
        };
        assert_eq!(removing, &["docker.io"]);
    }

    #[test]
    fn dependency_of_other_nodes_is_not_installed() {
        let partial = LockedPackages {
            is_whole: false,
            required: ["runc".to_owned()].into(),
            ..lock()
        };
        let state = |installed: &[&str]| LockState {
            installed: packages(installed),
            ..LockState::default()
        };
        let decide = |installed: &[&str]| decide(&state(installed), &partial, Manager::Apt);
        let answer = decide(&["runc=1.1.5", "tini=0.19"]);
        assert!(matches!(answer, Assessment::Satisfied { .. }), "{answer:?}");
        for installed in [&["tini=0.19"][..], &["runc=1.1.5", "tini=0.18"]] {
            let answer = decide(installed);
            assert!(matches!(answer, Assessment::Needs { .. }), "{answer:?}");
        }
    }

    #[test]
    fn package_that_the_bundle_lacks_blocks_the_run() {
        let bundled = |packages: &[(&str, &str)]| LockedPackages {
            bundled: Some(
                (packages.iter())
                    .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
                    .collect(),
            ),
            ..lock()
        };
        let decide = |lock: &LockedPackages| {
            let specs = lock.specs(|_| true);
            let differs: Vec<&PackageSpec> = specs.iter().collect();
            let state = LockState {
                gone: unbundled(Manager::Apt.backend(), lock, &differs),
                ..LockState::default()
            };
            decide(&state, lock, Manager::Apt)
        };
        let whole = [
            ("docker.io", "20.10.24"),
            ("runc", "1.1.5"),
            ("tini", "0.19"),
        ];
        let answer = decide(&bundled(&whole));
        assert!(matches!(answer, Assessment::Needs { .. }), "{answer:?}");
        let answer = decide(&bundled(&[("docker.io", "20.10.24"), ("runc", "1.1.4")]));
        let Assessment::Blocked { why, hint } = &answer else {
            panic!("{answer:?}");
        };
        assert!(
            why.ends_with("the bundle lacks runc 1.1.5, tini 0.19"),
            "{why}"
        );
        assert!(hint.contains("bundle create"), "{hint}");
    }

    #[test]
    fn package_with_another_digest_blocks_the_run() {
        let offered = |digests: &[&str]| {
            let digests = digests.iter().map(|digest| digest.repeat(64)).collect();
            [("runc".to_owned(), digests)].into()
        };
        let mut lock = lock();
        assert!(!lock.has_digests(["runc"]));
        lock.digests.insert("runc".to_owned(), "a".repeat(64));
        assert!(lock.has_digests(["tini", "runc"]));
        for same in [&["a"][..], &["b", "a"], &[]] {
            assert_eq!(lock.replaced_files(&offered(same)), [""; 0]);
        }
        let replaced = lock.replaced_files(&offered(&["b"]));
        assert_eq!(
            replaced,
            ["runc 1.1.5 (SHA-256 bbbbbbbbbbbb… instead of aaaaaaaaaaaa…)"]
        );
        let state = LockState {
            replaced,
            ..LockState::default()
        };
        let answer = decide(&state, &lock, Manager::Apt);
        let Assessment::BlockedByOldLists { why, .. } = &answer else {
            panic!("{answer:?}");
        };
        assert!(
            why.contains("has replaced the files of runc 1.1.5"),
            "{why}"
        );
    }

    #[test]
    fn unavailable_or_held_package_blocks_the_run() {
        for (installed, gone, said) in [
            (
                &["runc=1.1.4"][..],
                &["runc 1.1.5"][..],
                "no source offers runc 1.1.5",
            ),
            (&["runc!=1.1.4"], &[], "and the package is held"),
            // Only packages that gpu-bootstrap installed may be downgraded.
            (
                &["runc=1.1.6"],
                &[],
                "did not install the newer versions of runc",
            ),
        ] {
            let answer = evaluate(installed, &[], gone);
            let Assessment::Blocked { why, .. } = &answer else {
                panic!("{answer:?}");
            };
            assert!(why.contains(said), "{why}");
        }
    }
}
