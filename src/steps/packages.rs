//! What several steps ask about packages, whichever package manager the machine has.

use std::collections::btree_map::Entry;

use super::wishes::{Package, Packages};
use crate::{
    config::desired::PackageWish,
    step::{Cx, StepError},
    tools::packages::{self, Backend},
};

/// What is known about the machine's package manager.
pub(super) fn backend(cx: &Cx<'_>) -> &'static dyn Backend {
    cx.desired.packages.manager.backend()
}

/// Installed packages, from the database of the machine's package manager.
pub(super) async fn installed(cx: &Cx<'_>) -> Result<Packages, StepError> {
    let mut found = Packages::new();
    for package in database(cx).await? {
        if package.is_unpacked() || package.held {
            let version = match package.is_unpacked() {
                true => package.version.clone(),
                false => String::new(),
            };
            match found.entry(package.name.clone()) {
                // A package of a foreign architecture does not stand for the native one.
                Entry::Occupied(mut known) if package.id == package.name => {
                    known.get_mut().further.push(version);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(new) => {
                    new.insert(Package {
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
    if backend.transactions().is_none() {
        return Ok(Vec::new());
    }
    let database = cx.state.database(cx.desired.packages.manager).await?;
    let half_done = backend.half_done(cx.host.files(), database.unwrap_or_default())?;
    let packages =
        (half_done.packages.iter()).map(|package| format!("{} {}", package.name, package.version));
    let program = (half_done.interrupted).map(|program| format!("{program} was interrupted"));
    Ok(packages.chain(program).collect())
}

/// The names of packages in the lists that begin so; none if the package manager has no quick way.
pub(super) async fn names(cx: &Cx<'_>, prefix: &str) -> Result<Vec<String>, StepError> {
    let transactions = backend(cx).transactions();
    let Some(query) = transactions.and_then(|transactions| transactions.names(prefix)) else {
        return Ok(Vec::new());
    };
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

/// Which of the packages no repository offers. Empty when there are no package lists yet, or a
/// power cut left them torn: then nobody knows.
pub(super) async fn unavailable(
    cx: &Cx<'_>,
    wishes: &[PackageWish],
) -> Result<Vec<String>, StepError> {
    let (backend, files) = (backend(cx), cx.host.files());
    let Some(transactions) = backend.transactions() else {
        return Ok(Vec::new());
    };
    if wishes.is_empty() || !backend.has_lists(files)? || !backend.torn_lists(files)?.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = wishes.iter().map(|wish| wish.name.as_str()).collect();
    let query = transactions.offers(&names);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    let offers = transactions.parse_offers(&output.stdout);
    let offered =
        |name: &str| (offers.iter()).any(|offer| offer.name == name && offer.candidate.is_some());
    Ok(names
        .into_iter()
        .filter(|name| !offered(name))
        .map(str::to_owned)
        .collect())
}
