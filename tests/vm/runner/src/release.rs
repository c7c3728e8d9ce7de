//! The packages of a release, built from the program of this run with the packaging files of the release, in two versions. The
//! files in the packages are the same; only the version differs. Also the files that `install.sh` needs, from `make release`
//! if it built the program, otherwise from the first version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::assets::PRODUCT;
use crate::bed::Bed;
use crate::sh::{Script, path, script};

const PACK: Script = script!("release-packages.sh");

/// The installed version, and the version of the upgrade.
const VERSIONS: [&str; 2] = ["0.0.1", "99.0.0"];

/// The directory of the packages in a machine.
const INSIDE: &str = "/usr/lib/testbed/packages";

/// The directory of the files for `install.sh`, on the host below the packages, and in a machine.
const FILES: &str = "release";
const FILES_INSIDE: &str = "/usr/lib/testbed/release";

/// The names of the packages, in the order of [`VERSIONS`].
fn names(rpm: bool) -> [String; 2] {
    VERSIONS.map(|version| match rpm {
        true => format!("gpu-bootstrap-{version}-1.x86_64.rpm"),
        false => format!("gpu-bootstrap_{version}_amd64.deb"),
    })
}

/// Builds the directory of the packages.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let directory = bed.programs.join("packages");
    let program = bed.programs.join(PRODUCT);
    let [repo, program, packages] = [&bed.repo, &program, &directory].map(|place| path(place));
    PACK.run(&[&repo, &program, &packages, VERSIONS[0], VERSIONS[1]])
        .deadline(Duration::from_secs(900))
        .ok()
        .context("cannot build the release packages")?;
    Ok(directory)
}

/// The packages and the release files of a machine: files on the host, and their paths in the machine.
///
/// # Errors
///
/// If the directory of the release files cannot be read.
pub fn files(directory: &Path, rpm: bool) -> Result<Vec<(PathBuf, String)>> {
    let mut files: Vec<(PathBuf, String)> = names(rpm)
        .map(|name| (directory.join(&name), format!("{INSIDE}/{name}")))
        .into();
    let release = directory.join(FILES);
    let read = || format!("cannot read {}", release.display());
    for entry in std::fs::read_dir(&release).with_context(read)? {
        let entry = entry.with_context(read)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((entry.path(), format!("{FILES_INSIDE}/{name}")));
    }
    Ok(files)
}

/// Template values: the paths of the packages and of the release files in a machine.
pub fn values(rpm: bool) -> BTreeMap<String, String> {
    let [package, upgrade] = names(rpm).map(|name| format!("{INSIDE}/{name}"));
    BTreeMap::from([
        ("release-package".to_owned(), package),
        ("release-upgrade".to_owned(), upgrade),
        ("release-files".to_owned(), FILES_INSIDE.to_owned()),
    ])
}
