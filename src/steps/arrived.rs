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
    let mut bytes: u64 = unpacked()
        .filter(|package| wanted(&package.name, &package.version))
        .map(|package| package.installed_bytes)
        .sum();
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
            bytes += stat.size;
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
