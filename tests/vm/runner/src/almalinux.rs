//! Root filesystems that simulate AlmaLinux and Amazon Linux: Debian programs, with dnf as the only package manager,
//! and an rpm database with fake packages. README.md lists the real parts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::repo::table::{Package, Release};
use crate::repo::{Repositories, rpm};
use crate::rootfs;
use crate::sh::{Script, path, script};
use crate::tables::Root;

const FINISH: Script = script!("almalinux-root.sh");

/// The root filesystem of its Debian packages, which all releases of one suite share.
pub fn base(bed: &Bed, spec: &Root) -> Result<PathBuf> {
    let spec = Root {
        almalinux: None,
        ..spec.clone()
    };
    rootfs::build(bed, &spec)
}

/// The release that a root simulates, and its kernel series if the release has several.
pub fn release(name: &str) -> (&str, Option<&str>) {
    match name.split_once('/') {
        Some((number, series)) => (number, Some(series)),
        None => (name, None),
    }
}

/// The table's release of these repositories.
fn of(served: &Repositories) -> Result<&Release> {
    (served.table.release.as_ref()).context("the repositories are not for dnf")
}

/// Returns the directory with the root filesystem of the entry `spec`, in its subdirectory `root`: its [`base`],
/// modified to simulate the release of this name.
pub fn build(bed: &Bed, spec: &Root, name: &str, served: &Repositories) -> Result<PathBuf> {
    let base = base(bed, spec)?;
    let (release, (number, series)) = (of(served)?, self::release(name));
    let of_series = |one: &Package| one.series.is_empty() || Some(&*one.series) == series;
    let installed: Vec<_> = (served.table.packages.iter())
        .filter(|package| package.installed && of_series(package))
        .collect();
    let files: Vec<String> = (installed.iter())
        .filter_map(|package| Some(package.rpm(package.versions.first()?)))
        .collect();
    let finish = FINISH.text;
    let recipe = format!("{} {release:?} {installed:?} {finish}", base.display());
    let kind = format!("almalinux-{}", name.replace('/', "-"));
    bed.cached(&kind, &recipe, Some(rootfs::MAX_AGE), |dir| {
        let places = [&base.join("root"), &dir.join("root"), &served.installed()];
        let [from, to, packages] = places.map(|place| path(place));
        let mut argv = vec![&*from, &to, &packages, number];
        argv.extend([&*release.platform, &release.database]);
        argv.extend(files.iter().map(String::as_str));
        let command = FINISH.mounting(&argv).deadline(Duration::from_secs(1200));
        command
            .ok()
            .with_context(|| format!("cannot make Debian look like the release {name}"))
            .map(drop)
    })
}

/// Writes the repositories that the distribution configures itself, and their keys, into the root of a machine before
/// its first boot.
pub fn configure(root: &Path, served: &Repositories) -> Result<()> {
    for (path, text) in rpm::files(served, of(served)?)? {
        let at = root.join(path);
        if let Some(dir) = at.parent() {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
        }
        std::fs::write(&at, text).with_context(|| format!("cannot write {}", at.display()))?;
    }
    Ok(())
}
