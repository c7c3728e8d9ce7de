//! Root filesystems that simulate Ubuntu: Debian programs, real apt and dpkg, and the archive of the table
//! `ubuntu.toml`. README.md lists the real parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bed::Bed;
use crate::repo::{PORT, Repositories};
use crate::rootfs;
use crate::sh::{Script, path, script};
use crate::tables::Root;

const ROOT: Script = script!("ubuntu-root.sh");
const INSTALL: Script = script!("install-packages.sh");

/// The archive in the table of repositories.
const ARCHIVE: &str = "ubuntu";

/// The path of its key, as in Ubuntu.
const KEYRING: &str = "usr/share/keyrings/ubuntu-archive-keyring.gpg";

/// Returns the directory with the root filesystem, in its subdirectory `root`: the Debian root of the entry `spec`,
/// modified to simulate Ubuntu, and without a kernel.
pub fn build(bed: &Bed, name: &str, spec: &Root) -> Result<PathBuf> {
    let base = rootfs::build(bed, spec)?;
    let recipe = format!("{} {}", base.display(), ROOT.text);
    bed.cached(name, &recipe, Some(rootfs::MAX_AGE), |dir| {
        let command = ROOT.run(&[&path(&base.join("root")), &path(&dir.join("root"))]);
        let done = command.deadline(Duration::from_secs(600)).ok();
        done.context("cannot make Debian look like Ubuntu")
            .map(drop)
    })
}

/// Writes the archive's sources and key into the root of a machine before its first boot, and installs its kernel.
pub fn configure(root: &Path, kernel: &str, repositories: &Repositories) -> Result<()> {
    let (place, _) = (repositories.places.get(ARCHIVE)).context("the archive is missing")?;
    let sources = format!(
        "Types: deb\nURIs: http://{}:{PORT}/{}/\nSuites: {}\nComponents: {}\nSigned-By: /{KEYRING}\n",
        place.host,
        place.path,
        place.suites.join(" "),
        place.components.join(" ")
    );
    fs::write(root.join("etc/apt/sources.list.d/ubuntu.sources"), sources)
        .context("cannot write the sources")?;
    fs::copy(repositories.key(ARCHIVE), root.join(KEYRING)).context("cannot copy the key")?;
    let mut packages = debs(&repositories.gone(kernel), |_| true)?;
    if packages.is_empty() {
        let own = ["linux-image", "linux-modules"].map(|part| format!("{part}-{kernel}_"));
        for pool in place.pools() {
            let pool = repositories.root.join(&place.path).join(pool);
            packages.extend(debs(&pool, |name| {
                own.iter().any(|start| name.starts_with(start))
            })?);
        }
    }
    if packages.is_empty() {
        bail!("no suite has the kernel {kernel}");
    }
    let root = path(root);
    let packages: Vec<_> = packages.iter().map(|file| path(file)).collect();
    let argv: Vec<&str> = [&root]
        .into_iter()
        .chain(&packages)
        .map(|word| &**word)
        .collect();
    let done = INSTALL.mounting(&argv).ok();
    done.with_context(|| format!("cannot install the kernel {kernel}"))
        .map(drop)
}

/// The packages of a directory with matching names; none if it does not exist.
fn debs(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.context("cannot read a directory")?.path();
        if wanted(&path.file_name().unwrap_or_default().to_string_lossy()) {
            found.push(path);
        }
    }
    Ok(found)
}
