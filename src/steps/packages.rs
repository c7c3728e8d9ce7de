//! Package queries of several steps, for any package manager.

use std::collections::{BTreeMap, btree_map::Entry};

use super::specs::{InstalledPackage, InstalledPackages};
use crate::{
    host::Query,
    step::{Assessment, Cx, StepError},
    tools::packages::{self, Backend},
};

/// Returns the package manager backend of the machine.
pub(super) fn backend(cx: &Cx<'_>) -> &'static dyn Backend {
    cx.desired.packages.manager.backend()
}

/// Returns unpacked or held packages from the package database of the machine. A held package that is not unpacked has an
/// empty version.
pub(super) async fn installed(cx: &Cx<'_>) -> Result<InstalledPackages, StepError> {
    let mut found = InstalledPackages::new();
    for package in database(cx).await? {
        // A package of a foreign architecture does not replace the native one.
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

/// Like [`installed`], but ignores holds that gpu-bootstrap has set. These holds only prevent changes by other programs,
/// and are set again after a change.
pub(super) async fn held_by_others(cx: &Cx<'_>) -> Result<InstalledPackages, StepError> {
    let (mut found, ours) = (installed(cx).await?, cx.state.ours());
    for (name, package) in &mut found {
        package.held &= ours.is_held_by_others(name);
    }
    Ok(found)
}

/// Returns every package in the package database.
pub(super) async fn database<'a>(cx: &Cx<'a>) -> Result<&'a [packages::Package], StepError> {
    let database = cx.state.database(cx.desired.packages.manager).await?;
    database.ok_or_else(|| StepError::Unexpected {
        what: format!("`{}`", backend(cx).database_path()),
        why: "it is missing".into(),
    })
}

/// Describes packages that an interrupted package manager left unconfigured, and the interrupted program if it is known.
pub(super) async fn half_done(cx: &Cx<'_>) -> Result<Vec<String>, StepError> {
    let backend = backend(cx);
    let database = cx.state.database(cx.desired.packages.manager).await?;
    let half_done = backend.half_done(cx.host.files(), database.unwrap_or_default())?;
    let packages =
        (half_done.packages.iter()).map(|package| format!("{} {}", package.name, package.version));
    let program = (half_done.interrupted).map(|program| format!("{program} was interrupted"));
    Ok(packages.chain(program).collect())
}

/// Turns a blocking assessment into `BlockedNow` if packages are unconfigured. Their repair by an earlier step may also
/// remove the problem, e.g. if the scripts of a kernel package have not yet updated the boot loader, so the problem must
/// not prevent the repair.
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

/// Turns a blocking assessment into `BlockedNow`, so that the step is assessed again after the changes of earlier steps.
fn passing(answer: Assessment) -> Assessment {
    match answer {
        Assessment::Blocked { why, hint } | Assessment::BlockedByOldLists { why, hint } => {
            Assessment::BlockedNow {
                why,
                hint,
                retryable: None,
            }
        }
        answer => answer,
    }
}

/// Returns package names with this prefix in the lists. Empty if the package manager has no fast query.
pub(super) async fn names(cx: &Cx<'_>, prefix: &str) -> Result<Vec<String>, StepError> {
    let Some(query) = backend(cx).names(prefix) else {
        return Ok(Vec::new());
    };
    let output = cx.state.query(&query).await?.success(query.cmd())?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

/// Returns whether package lists exist and are complete. A power loss may truncate them.
pub(super) fn has_lists(cx: &Cx<'_>) -> Result<bool, StepError> {
    let (backend, files) = (backend(cx), cx.host.files());
    let bundled = cx.desired.packages.bundled.as_deref();
    Ok(backend.has_lists(files, bundled)? && backend.truncated_lists(files)?.is_empty())
}

/// Returns the installable versions of each package, preferred version first. Empty if no repository has the package.
pub(super) async fn offered_versions(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<BTreeMap<String, Vec<String>>, StepError> {
    versions_in(cx, names, &backend(cx).offers(names)).await
}

/// Same as [`offered_versions`], but for all module streams.
pub(super) async fn versions_of_all_streams(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<BTreeMap<String, Vec<String>>, StepError> {
    versions_in(cx, names, &backend(cx).offers_of_all_streams(names)).await
}

async fn versions_in(
    cx: &Cx<'_>,
    names: &[&str],
    query: &Query,
) -> Result<BTreeMap<String, Vec<String>>, StepError> {
    let mut found: BTreeMap<String, Vec<String>> = (names.iter())
        .map(|name| ((*name).to_owned(), Vec::new()))
        .collect();
    if names.is_empty() {
        return Ok(found);
    }
    let output = cx.state.query(query).await?.success(query.cmd())?;
    for offer in backend(cx).parse_offers(&output.stdout) {
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

/// Returns the files of every available version of these packages. Empty if the lists do not contain files.
pub(super) async fn contents(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<Vec<packages::Contents>, StepError> {
    let backend = backend(cx);
    let Some(query) = backend.contents(names) else {
        return Ok(Vec::new());
    };
    let output = cx.state.query(&query).await?.success(query.cmd())?;
    Ok(backend.parse_contents(&output.stdout))
}

/// Returns the minimum versions of dependencies that these packages accept. Empty if the package manager has
/// no such query.
pub(super) async fn lower_bounds(
    cx: &Cx<'_>,
    names: &[&str],
) -> Result<Vec<packages::LowerBounds>, StepError> {
    let backend = backend(cx);
    let Some(query) = backend.lower_bounds(names) else {
        return Ok(Vec::new());
    };
    let output = cx.state.query(&query).await?.success(query.cmd())?;
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
    fn missing_or_truncated_lists_are_not_usable() {
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
        // The state after a power loss.
        fakes.files.put(list, "");
        assert!(!found());
    }

    #[tokio::test]
    async fn foreign_architecture_does_not_replace_native_package() {
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
