//! `packages.lock`: all packages of the lock file have their locked versions, including dependencies that no other step requires.
//! Before the first change, the step blocks the run if no source offers a locked version any longer.

use std::collections::BTreeSet;

use super::{
    CLUSTER_PACKAGES, DRIVER_PACKAGES, HEADERS, PACKAGES_LOCK, TOOLKIT_PACKAGES,
    installed_runtimes, messages, packages,
    specs::{InstalledPackage, InstalledPackages, compare, outdated, package_step},
};
use crate::{
    change::{
        Lock,
        packages::{LOCK_REMEDY, repository},
    },
    config::desired::{Desired, LockedPackages, Manager},
    state::{LockStatus, Ours, State, StateError},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::{AvailablePackage, Package},
};

/// The `packages.lock` step.
pub(super) fn step() -> Step {
    Step::new(PACKAGES_LOCK, |cx| Box::pin(assess(cx)))
        .after(installed_runtimes())
        .after([HEADERS, DRIVER_PACKAGES, TOOLKIT_PACKAGES, CLUSTER_PACKAGES])
        .locks([Lock::Packages, Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct LockState {
    installed: InstalledPackages,
    ours: Ours,
    /// The packages that no source offers in their locked version, as `NAME VERSION`. Empty if a required repository is not
    /// configured yet. The package transaction then checks it.
    gone: Vec<String>,
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
    let differs: BTreeSet<&str> = (lock.versions.iter())
        .filter(|(name, version)| {
            let there = installed.get(*name);
            !there.is_some_and(|there| backend.compare(&there.version, version).is_eq())
        })
        .map(|(name, _)| name.as_str())
        .collect();
    let gone = match differs.is_empty() || !packages::has_lists(cx)? || lacks_repository(cx)? {
        true => Vec::new(),
        false => gone(cx, lock, &differs).await?,
    };
    Ok(LockState {
        installed,
        ours: cx.state.ours().clone(),
        gone,
        lists_are_new: cx.state.lists_are_new(),
    })
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

async fn gone(
    cx: &Cx<'_>,
    lock: &LockedPackages,
    differs: &BTreeSet<&str>,
) -> Result<Vec<String>, StepError> {
    let backend = packages::backend(cx);
    let names: Vec<&str> = differs.iter().copied().collect();
    let query = backend.offers_of_all_streams(&names);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    let offers = backend.parse_offers(&output.stdout);
    let is_offered = |name: &str, version: &str| {
        let mut offers = offers.iter();
        offers.any(|offer: &AvailablePackage| offer.name == name && offer.has(version))
    };
    Ok((lock.versions.iter())
        .filter(|(name, version)| differs.contains(name.as_str()) && !is_offered(name, version))
        .map(|(name, version)| format!("{name} {version}"))
        .collect())
}

fn decide(state: &LockState, lock: &LockedPackages, manager: Manager) -> Assessment {
    let specs = lock.specs();
    let replaced = outdated(manager, &specs, &state.installed, &state.ours);
    let count = compare(manager, &specs, &state.installed).unmet.len();
    let text = difference(lock, manager, &state.installed);
    match package_step(manager, &specs, &state.installed, replaced) {
        Assessment::Satisfied { .. } => Assessment::satisfied(format!(
            "{} packages have the versions of the lock file {}",
            specs.len(),
            lock.short_digest()
        )),
        answer if count == 0 => answer,
        _ if !state.gone.is_empty() => {
            let why = format!("{text}; no source offers {}", state.gone.join(", "));
            let hint = LOCK_REMEDY.to_owned();
            match state.lists_are_new {
                true => Assessment::Blocked { why, hint },
                false => Assessment::BlockedByOldLists { why, hint },
            }
        }
        Assessment::Needs { changes, .. } => Assessment::needs(text, changes),
        answer => answer,
    }
}

/// Describes the packages that differ from the lock: the locked and the installed version of each.
fn difference(lock: &LockedPackages, manager: Manager, installed: &InstalledPackages) -> String {
    let comparison = compare(manager, &lock.specs(), installed);
    let missing: Vec<&str> = (lock.versions.keys())
        .filter(|name| !installed.contains_key(*name))
        .map(String::as_str)
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
        lock.versions.len(),
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
    let has = |name: &String, version: &String| {
        let mut packages = database.iter().filter(|package| package.is_installed());
        packages.any(|package| {
            package.id == *name && backend.compare(&package.version, version).is_eq()
        })
    };
    let differs = lock
        .versions
        .iter()
        .filter(|(name, version)| !has(name, version));
    Ok(Some(LockStatus {
        digest: lock.digest.clone(),
        drift: differs.count(),
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
            free: Vec::new(),
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
        // Only packages that gpu-bootstrap installed may be downgraded.
        let removing = |changes: &[Change]| match changes.last() {
            Some(Change::InstallPackages { removing, .. }) => removing.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(removing(&changes), ["docker.io"]);
        let Assessment::Needs { changes, .. } = evaluate(&["docker.io=20.10.25"], &[], &[]) else {
            panic!("a difference");
        };
        assert!(removing(&changes).is_empty());
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
        ] {
            let answer = evaluate(installed, &[], gone);
            let Assessment::Blocked { why, .. } = &answer else {
                panic!("{answer:?}");
            };
            assert!(why.contains(said), "{why}");
        }
    }
}
