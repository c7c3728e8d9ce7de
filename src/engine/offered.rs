//! Finds packages of a previously validated driver in the package lists.

use crate::{
    config::desired::{Manager, PackageWish},
    error::one_line,
    facts::detection::carries_driver,
    host::Host,
    journal::Proven,
    model::version::DriverVersion,
};

/// The available packages of a validated driver.
pub(super) enum Offered {
    /// The same version: these packages in exactly these versions.
    Exact(Vec<PackageWish>),
    /// The newest version of its branch, and the packages that are no longer available.
    Newest(DriverVersion, Vec<String>),
    /// No version of its branch, only the packages that are no longer available.
    Gone(Vec<String>),
}

/// Returns the packages that can be installed, according to the existing package lists.
///
/// # Errors
/// The reason this is unknown.
pub(super) async fn offered(
    host: &Host,
    manager: Manager,
    proven: &Proven,
) -> Result<Offered, String> {
    let backend = manager.backend();
    let has_lists = backend.has_lists(&*host.files);
    if !has_lists.map_err(|error| format!("failed to {}", one_line(&error)))? {
        return Err("there are no package lists".to_owned());
    }
    let names: Vec<&str> = (proven.driver.iter())
        .map(|one| one.name.as_str())
        .collect();
    // The module stream of the failed driver may be enabled.
    let query = backend.offers_of_all_streams(&names);
    let asked = host.reader().query(&query).await;
    let output = asked.and_then(|output| output.success(query.cmd()));
    let output = output.map_err(|error| format!("failed to {}", one_line(&error)))?;
    let offers = backend.parse_offers(&output.stdout);
    let of = |wish: &PackageWish| offers.iter().find(|offer| offer.name == wish.name);
    let is_there = |wish: &&PackageWish| {
        let version = wish.version.as_deref().unwrap_or_default();
        of(wish).is_some_and(|offer| offer.has(version))
    };
    let (there, mut gone): (Vec<&PackageWish>, Vec<&PackageWish>) =
        proven.driver.iter().partition(is_there);
    let before = version(&proven.driver);
    // Packages with another version, such as a module with the version of its kernel, are
    // irrelevant.
    gone.retain(|wish| {
        let version = wish.version.as_deref().map(DriverVersion::from_package);
        version.and_then(Result::ok) == before
    });
    let (Some(before), false) = (before, gone.is_empty()) else {
        return Ok(Offered::Exact(there.into_iter().cloned().collect()));
    };
    let newest = |wish: &&PackageWish| {
        let offer = of(wish)?;
        let all = offer
            .versions
            .iter()
            .filter(|(version, _)| offer.has(version));
        all.filter_map(|(version, _)| DriverVersion::from_package(version).ok())
            .filter(|version| version.branch() == before.branch())
            .max()
    };
    let all: Option<Vec<DriverVersion>> = gone.iter().map(newest).collect();
    let exclusions = backend.exclusions(&*host.files);
    let exclusions = exclusions.map_err(|error| format!("failed to {}", one_line(&error)))?;
    let gone = (gone.iter())
        .map(|wish| {
            let version = wish.version.as_deref().unwrap_or_default();
            match exclusions.iter().find(|one| one.hides(&wish.name)) {
                Some(line) => format!("{} {version} (hidden: {line})", wish.name),
                None => format!("{} {version}", wish.name),
            }
        })
        .collect();
    Ok(match all.and_then(|all| all.into_iter().min()) {
        Some(newest) => Offered::Newest(newest, gone),
        None => Offered::Gone(gone),
    })
}

/// Describes the packages that are no longer available.
pub(super) fn no_longer(gone: &[String]) -> String {
    format!("no repository offers {} any longer", gone.join(", "))
}

/// Describes why no rollback is possible, with the remedy.
pub(super) fn none_left(proven: &Proven, gone: &[String]) -> String {
    format!(
        "no rollback to driver {} is possible: {}, or another version of its branch; to enable a \
         rollback, add a repository with these packages (`repositories`)",
        version_in_words(proven),
        no_longer(gone)
    )
}

/// The driver version among these packages.
pub(super) fn version(packages: &[PackageWish]) -> Option<DriverVersion> {
    let version = |wish: &PackageWish| {
        let version = DriverVersion::from_package(wish.version.as_deref()?).ok()?;
        carries_driver(&wish.name).then_some(version)
    };
    packages.iter().filter_map(version).max()
}

pub(super) fn version_in_words(proven: &Proven) -> String {
    version(&proven.driver).map_or_else(|| "before".to_owned(), |one| one.to_string())
}
