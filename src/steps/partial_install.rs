//! The part of the required packages that an interrupted run has already downloaded or unpacked.

use crate::{
    config::desired::{PackageSpec, Pin},
    host::{FilesError, ReadFiles},
    model::pattern,
    tools::packages::{Backend, Package},
};

/// Returns the installed size of the required packages that are already unpacked, plus the size of the downloaded archives
/// of required packages.
pub(super) fn here(
    backend: &dyn Backend,
    files: &dyn ReadFiles,
    database: &[Package],
    requested: &[PackageSpec],
    pins: &[Pin],
) -> Result<u64, FilesError> {
    let wanted = |name: &str, version: &str| wanted(backend, name, version, requested, pins);
    let unpacked = || database.iter().filter(|package| package.is_unpacked());
    // The sizes come from package metadata and are not validated.
    let mut bytes = unpacked()
        .filter(|package| wanted(&package.name, &package.version))
        .fold(0_u64, |sum, package| {
            sum.saturating_add(package.installed_bytes)
        });
    let directory = backend.downloads();
    for file in files.list(directory)? {
        let Some((name, version)) = backend.downloaded(&file) else {
            continue;
        };
        // Ignore the archive if another version of the package is unpacked: if no version is required, that one suffices.
        let outlived = unpacked().any(|package| package.name == name && package.version != version);
        if wanted(&name, &version)
            && !outlived
            && let Some(stat) = files.stat(&directory.join(&file))?
        {
            bytes = bytes.saturating_add(stat.size);
        }
    }
    Ok(bytes)
}

/// Returns whether this version of a package is required, directly or as a dependency: a pin covers all packages that
/// must have the driver version.
fn wanted(
    backend: &dyn Backend,
    name: &str,
    version: &str,
    requested: &[PackageSpec],
    pins: &[Pin],
) -> bool {
    let fits = |wanted: &str| backend.matches(wanted, version);
    requested
        .iter()
        .any(|spec| spec.name == name && spec.version.as_deref().is_none_or(fits))
        || pins.iter().any(|pin| {
            fits(&pin.version) && pin.packages.iter().any(|one| pattern::matches(one, name))
        })
}

#[cfg(test)]
mod tests {
    use super::here;
    use crate::{
        config::desired::PackageSpec,
        host::fake::FakeFiles,
        tools::packages::{Manager, Package, PackageCondition},
    };

    /// The package database of an image may contain any size.
    #[test]
    fn huge_sizes_do_not_overflow() {
        let database = ["a", "b"].map(|name| Package {
            name: name.to_owned(),
            id: name.to_owned(),
            architecture: "amd64".to_owned(),
            version: "1".to_owned(),
            condition: PackageCondition::Installed,
            held: false,
            packager: None,
            vendor: None,
            installed_bytes: u64::MAX,
        });
        let requested = ["a", "b"].map(|name| PackageSpec {
            name: name.to_owned(),
            version: None,
        });
        let files = FakeFiles::new();
        let bytes = here(Manager::Apt.backend(), &files, &database, &requested, &[]);
        assert_eq!(bytes.ok(), Some(u64::MAX));
    }
}
