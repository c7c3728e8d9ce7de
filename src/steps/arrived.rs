//! How much of the wanted packages has arrived on the machine, before an earlier run was cut off.

use crate::{
    config::desired::{PackageWish, Pin},
    host::{FilesError, ReadFiles},
    model::pattern,
    tools::packages::{Backend, Package},
};

/// Bytes of wanted packages that are unpacked, and of their archives.
pub(super) fn here(
    backend: &dyn Backend,
    files: &dyn ReadFiles,
    database: &[Package],
    wished: &[PackageWish],
    pins: &[Pin],
) -> Result<u64, FilesError> {
    let wanted = |name: &str, version: &str| wanted(backend, name, version, wished, pins);
    let unpacked = || database.iter().filter(|package| package.is_unpacked());
    // The sizes are those that a maintainer has written into the package, whatever they are.
    let mut bytes = unpacked()
        .filter(|package| wanted(&package.name, &package.version))
        .fold(0_u64, |sum, package| {
            sum.saturating_add(package.installed_bytes)
        });
    let Some(folder) = backend.downloads() else {
        return Ok(bytes);
    };
    for file in files.list(folder)? {
        let Some((name, version)) = backend.downloaded(&file) else {
            continue;
        };
        // A wish without a version is met by the one that is there: another one is an old one.
        let outlived = unpacked().any(|package| package.name == name && package.version != version);
        if wanted(&name, &version)
            && !outlived
            && let Some(stat) = files.stat(&folder.join(&file))?
        {
            bytes = bytes.saturating_add(stat.size);
        }
    }
    Ok(bytes)
}

/// Whether this version of a package is wished for, or belongs to what is: a pin names all that
/// must have the driver's version.
fn wanted(
    backend: &dyn Backend,
    name: &str,
    version: &str,
    wished: &[PackageWish],
    pins: &[Pin],
) -> bool {
    let fits = |wanted: &str| backend.matches(wanted, version);
    wished
        .iter()
        .any(|wish| wish.name == name && wish.version.as_deref().is_none_or(fits))
        || pins.iter().any(|pin| {
            fits(&pin.version) && pin.packages.iter().any(|one| pattern::matches(one, name))
        })
}

#[cfg(test)]
mod tests {
    use super::here;
    use crate::{
        config::desired::PackageWish,
        host::fake::FakeFiles,
        tools::packages::{Manager, Package, PackageCondition},
    };

    /// The sizes in the database of a tree may be those of nobody's package.
    #[test]
    fn sizes_that_no_disk_has_are_no_overflow() {
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
        let wished = ["a", "b"].map(|name| PackageWish {
            name: name.to_owned(),
            version: None,
        });
        let files = FakeFiles::new();
        let bytes = here(Manager::Apt.backend(), &files, &database, &wished, &[]);
        assert_eq!(bytes.ok(), Some(u64::MAX));
    }
}
