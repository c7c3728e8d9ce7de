//! Finds packages of a previously validated driver in the package lists.

use crate::{
    config::desired::{PackagePolicy, PackageSpec},
    error::one_line,
    facts::detection::carries_driver,
    host::Host,
    journal::Validated,
    model::version::DriverVersion,
};

/// The available packages of a validated driver.
pub(super) enum Available {
    /// The validated version is available: these packages in exactly these versions.
    Exact(Vec<PackageSpec>),
    /// The newest available version of its branch, and the packages that are no longer available in the
    /// validated version.
    Newest(DriverVersion, Vec<String>),
    /// No version of its branch is available. Contains the packages that are no longer available.
    Gone(Vec<String>),
}

/// Returns the driver packages that can be installed, according to the existing package lists.
///
/// # Errors
/// If there are no package lists, or if reading them fails.
pub(super) async fn offered(
    host: &Host,
    policy: &PackagePolicy,
    validated: &Validated,
) -> Result<Available, String> {
    let backend = policy.manager.backend();
    let has_lists = backend.has_lists(&*host.files, policy.bundled.as_deref());
    if !has_lists.map_err(|error| format!("failed to {}", one_line(&error)))? {
        return Err("there are no package lists".to_owned());
    }
    let names: Vec<&str> = (validated.driver.iter())
        .map(|one| one.name.as_str())
        .collect();
    // Query all module streams, because the stream of the failed driver may be enabled.
    let query = backend.offers_of_all_streams(&names);
    let asked = host.reader().query(&query).await;
    let output = asked.and_then(|output| output.success(query.cmd()));
    let output = output.map_err(|error| format!("failed to {}", one_line(&error)))?;
    let offers = backend.parse_offers(&output.stdout);
    let of = |spec: &PackageSpec| offers.iter().find(|offer| offer.name == spec.name);
    let is_there = |spec: &&PackageSpec| {
        let version = spec.version.as_deref().unwrap_or_default();
        of(spec).is_some_and(|offer| offer.has(version))
    };
    let (there, mut gone): (Vec<&PackageSpec>, Vec<&PackageSpec>) =
        validated.driver.iter().partition(is_there);
    let before = version(&validated.driver);
    // Ignore missing packages that do not have the driver version, such as a module with the version
    // of its kernel.
    gone.retain(|spec| {
        let version = spec.version.as_deref().map(DriverVersion::from_package);
        version.and_then(Result::ok) == before
    });
    let (Some(before), false) = (before, gone.is_empty()) else {
        return Ok(Available::Exact(there.into_iter().cloned().collect()));
    };
    let newest = |spec: &&PackageSpec| {
        let offer = of(spec)?;
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
        .map(|spec| {
            let version = spec.version.as_deref().unwrap_or_default();
            match exclusions.iter().find(|one| one.hides(&spec.name)) {
                Some(line) => format!("{} {version} (hidden: {line})", spec.name),
                None => format!("{} {version}", spec.name),
            }
        })
        .collect();
    Ok(match all.and_then(|all| all.into_iter().min()) {
        Some(newest) => Available::Newest(newest, gone),
        None => Available::Gone(gone),
    })
}

/// Describes the packages that are no longer available.
pub(super) fn no_longer(gone: &[String]) -> String {
    format!("no repository offers {} any longer", gone.join(", "))
}

/// Describes why no rollback is possible, with the remedy.
pub(super) fn none_left(validated: &Validated, gone: &[String]) -> String {
    format!(
        "no rollback to driver {} is possible: {}, or another version of its branch; to enable a \
         rollback, add a repository with these packages (`repositories`)",
        version_in_words(validated),
        no_longer(gone)
    )
}

/// The driver version among these packages.
pub(super) fn version(packages: &[PackageSpec]) -> Option<DriverVersion> {
    let version = |spec: &PackageSpec| {
        let version = DriverVersion::from_package(spec.version.as_deref()?).ok()?;
        carries_driver(&spec.name).then_some(version)
    };
    packages.iter().filter_map(version).max()
}

pub(super) fn version_in_words(validated: &Validated) -> String {
    version(&validated.driver).map_or_else(|| "before".to_owned(), |one| one.to_string())
}
