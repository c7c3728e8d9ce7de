//! What several steps ask about packages, whichever package manager the machine has.

use std::collections::{BTreeMap, btree_map::Entry};

use super::wishes::{InstalledPackage, InstalledPackages};
use crate::{
    step::{Assessment, Cx, StepError},
    tools::packages::{self, Backend},
};

/// What is known about the machine's package manager.
pub(super) fn backend(cx: &Cx<'_>) -> &'static dyn Backend {
    cx.desired.packages.manager.backend()
}

/// Installed packages, from the database of the machine's package manager.
pub(super) async fn installed(cx: &Cx<'_>) -> Result<InstalledPackages, StepError> {
    let mut found = InstalledPackages::new();
    for package in database(cx).await? {
        // A package of a foreign architecture does not stand for the native one.
        if (package.is_unpacked() || package.held) && !package.is_foreign() {
            let version = match package.is_unpacked() {
                true => package.version.clone(),
                false => String::new(),
            };
            match found.entry(package.name.clone()) {
                Entry::Occupied(mut known)
                    if package.id == package.name
                        || backend(cx).has_several_versions(&package.name) =>
                {
                    known.get_mut().further.push(version);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(new) => {
                    new.insert(InstalledPackage {
                        complete: package.is_installed(),
                        held: package.held,
                        version,
                        further: Vec::new(),
                    });
                }
            }
        }
    }
    Ok(found)
}

/// As [`installed`], where a hold of this program does not count as one: it keeps others from changing
/// a package, and is set again after this program has changed it.
pub(super) async fn held_by_others(cx: &Cx<'_>) -> Result<InstalledPackages, StepError> {
    let (mut found, ours) = (installed(cx).await?, cx.state.ours());
    for (name, package) in &mut found {
        package.held &= ours.is_held_by_others(name);
    }
    Ok(found)
}

/// Every package that the package manager knows.
pub(super) async fn database<'a>(cx: &Cx<'a>) -> Result<&'a [packages::Package], StepError> {
    let database = cx.state.database(cx.desired.packages.manager).await?;
    database.ok_or_else(|| StepError::Unexpected {
        what: format!("`{}`", backend(cx).database_path()),
        why: "it is missing".into(),
    })
}

/// What an interrupted package manager left half done, in words.
pub(super) async fn half_done(cx: &Cx<'_>) -> Result<Vec<String>, StepError> {
    let backend = backend(cx);
    let database = cx.state.database(cx.desired.packages.manager).await?;
    let half_done = backend.half_done(cx.host.files(), database.unwrap_or_default())?;
    let packages =
        (half_done.packages.iter()).map(|package| format!("{} {}", package.name, package.version));
    let program = (half_done.interrupted).map(|program| format!("{program} was interrupted"));
    Ok(packages.chain(program).collect())
}

/// What an answer about packages is worth while some of them are half done: what stands in the way may be
/// gone when they are repaired, as a kernel whose scripts have not yet told the boot loader of it. So it
/// does not stop the repair.
pub(super) async fn unless_half_done(
    cx: &Cx<'_>,
    answer: Assessment,
) -> Result<Assessment, StepError> {
    let is_half_done = !half_done(cx).await?.is_empty();
    Ok(if is_half_done {
        passing(answer)
    } else {
        answer
    })
}

/// An answer that is asked for again once an earlier step has made its changes.
fn passing(answer: Assessment) -> Assessment {
    match answer {
        Assessment::Blocked { why, hint } | Assessment::BlockedByOldLists { why, hint } => {
            Assessment::BlockedNow {
                why,
                hint,
                passes: None,
            }
        }
        answer => answer,
    }
}

/// The names of packages in the lists that begin so; none if the package manager has no quick way.
pub(super) async fn names(cx: &Cx<'_>, prefix: &str) -> Result<Vec<String>, StepError> {
    let Some(query) = backend(cx).names(prefix) else {
        return Ok(Vec::new());
    };
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

/// Whether there are package lists that can be asked: none if nothing was downloaded yet, or a power
/// cut left them torn.
pub(super) fn has_lists(cx: &Cx<'_>) -> Result<bool, StepError> {
    let (backend, files) = (backend(cx), cx.host.files());
    Ok(backend.has_lists(files)? && backend.torn_lists(files)?.is_empty())
}

/// The versions of each of these packages that could be installed, the preferred one first; none for
/// a package that no repository offers.
pub(super) async fn offered_versions(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<BTreeMap<String, Vec<String>>, StepError> {
    let mut found: BTreeMap<String, Vec<String>> = (names.iter())
        .map(|name| ((*name).to_owned(), Vec::new()))
        .collect();
    if names.is_empty() {
        return Ok(found);
    }
    let backend = backend(cx);
    let query = backend.offers(names);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    for offer in backend.parse_offers(&output.stdout) {
        let others = (offer.versions.into_iter())
            // A negative priority prevents the installation.
            .filter(|(_, priority)| *priority >= 0)
            .map(|(version, _)| version)
            .filter(|version| offer.candidate.as_ref() != Some(version));
        let versions = offer.candidate.iter().cloned().chain(others).collect();
        found.insert(offer.name, versions);
    }
    Ok(found)
}

/// The files of every version of these packages that is offered; none where the lists do not tell.
pub(super) async fn contents(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<Vec<packages::Contents>, StepError> {
    let backend = backend(cx);
    let Some(query) = backend.contents(names) else {
        return Ok(Vec::new());
    };
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    Ok(backend.parse_contents(&output.stdout))
}

/// The lowest versions of others that these packages accept; none where this package manager is not asked.
pub(super) async fn lower_bounds(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<Vec<packages::LowerBounds>, StepError> {
    let backend = backend(cx);
    let Some(query) = backend.lower_bounds(names) else {
        return Ok(Vec::new());
    };
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    Ok(backend.parse_lower_bounds(&output.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        steps::fixtures::{self, desired, facts},
    };

    #[test]
    fn lists_that_are_missing_or_torn_are_not_asked() {
        let (host, fakes) = fake::host();
        let (facts, want) = (facts(), desired());
        let state = fixtures::state(&host, facts.clone());
        let cx = fixtures::cx(&host, &facts, &state, &want);
        let found = || has_lists(&cx).expect("readable");
        assert!(!found());
        let list =
            "/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages";
        fakes.files.put(list, "Package: nvidia-smi\n");
        assert!(found());
        // As a power cut leaves it.
        fakes.files.put(list, "");
        assert!(!found());
    }

    #[tokio::test]
    async fn a_package_of_a_foreign_architecture_does_not_stand_for_the_native_one() {
        let (host, fakes) = fake::host();
        let status: String = [
            ("dpkg", "amd64", "1.21"),
            ("libcuda1", "i386", "525.1-1"),
            ("libnvidia-ml1", "i386", "525.1-1"),
            ("libnvidia-ml1", "amd64", "535.2-1"),
        ]
        .map(|(name, architecture, version)| {
            format!(
                "Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\n\
                 Version: {version}\n\n"
            )
        })
        .concat();
        fakes.files.put("/var/lib/dpkg/status", status);
        let (facts, want) = (facts(), desired());
        let state = fixtures::state(&host, facts.clone());
        let cx = fixtures::cx(&host, &facts, &state, &want);
        let found = installed(&cx).await.expect("readable");
        let library = &found["libnvidia-ml1"];
        assert_eq!(library.version, "535.2-1");
        assert!(library.further.is_empty(), "{:?}", library.further);
        assert!(!found.contains_key("libcuda1"));
    }
}
