//! Real contents for fake packages. The machines of the benchmark install packages with the vendors' names and the number
//! and size of files that users install: the files of Debian's packages of the same driver, which the tables
//! `real/*.toml` assign to packages. The tables of all other machines, and thus their cached repositories, do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::bed::Bed;
use crate::cases::fill;
use crate::debian;
use crate::repo::table::{Package, Table, upstream};
use crate::rootfs::Mirror;

const COMPONENTS: &str = "main contrib non-free non-free-firmware";

/// Debian's directory of libraries, and the directory of the driver's libraries in it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const DRIVER: &str = "nvidia/current";

/// A table of contents.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Contents {
    /// The Debian packages that contain the files.
    debian: Vec<String>,
    /// The version of the packages with contents, without epoch and revision.
    version: String,
    #[serde(rename = "content")]
    contents: Vec<Content>,
}

/// The content of one package. Its paths may contain `{{upstream}}`, `{{version}}` and `{{branch}}`, paths in Debian a `*`
/// in each part.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Content {
    /// The complete name of the package.
    package: String,
    /// Names of the driver's libraries.
    libraries: Vec<String>,
    /// Files: path here = path in Debian.
    files: BTreeMap<String, String>,
    /// Directories with everything in them: path here = path in Debian.
    trees: BTreeMap<String, String>,
    /// Additional dependencies.
    depends: Vec<String>,
    /// Additional actions of the package's scripts, by their names.
    scripts: BTreeMap<String, String>,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    _source: String,
}

/// Adds the contents in `file` to the packages of a table. Returns the directory of their files.
pub fn fill_table(bed: &Bed, mirror: &Mirror, file: &Path, table: &mut Table) -> Result<PathBuf> {
    let contents = Contents::load(file)?;
    let packages = contents.debian.join(",");
    let recipe = format!("{mirror:?} {COMPONENTS} {packages} {}", debian::SOURCE);
    let dir = bed.cached("real-files", &recipe, None, |dir| {
        debian::extract(mirror, COMPONENTS, &packages, &dir.join("tree"))
    })?;
    let tree = dir.join("tree");
    contents.add_to(table, &tree)?;
    Ok(tree)
}

impl Contents {
    fn load(path: &Path) -> Result<Contents> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))
    }

    /// Adds the contents to the packages of a table, which then only have the version with contents. `tree` contains the
    /// unpacked Debian packages.
    fn add_to(&self, table: &mut Table, tree: &Path) -> Result<()> {
        let mut missing: BTreeSet<&str> = (self.contents.iter()).map(|one| &*one.package).collect();
        let libraries = table.format.libraries.clone();
        for package in &mut table.packages {
            let of_version = |version: &&String| upstream(version) == self.version;
            // The version of a kernel's package is the version of the kernel.
            let version = match package.values.is_empty() {
                true => package.versions.iter().find(of_version),
                false => package.versions.first(),
            };
            let Some(version) = version.cloned() else {
                continue;
            };
            let mut values: BTreeMap<&str, String> = package.values.clone();
            values.extend([
                ("version", version.clone()),
                ("upstream", upstream(&version).to_string()),
                (
                    "branch",
                    self.version
                        .split('.')
                        .next()
                        .unwrap_or_default()
                        .to_string(),
                ),
            ]);
            let name = fill(&package.name, &values)?;
            if let Some(content) = self.contents.iter().find(|one| one.package == name) {
                missing.remove(&*name);
                package.versions = vec![version];
                (content.add_to(package, tree, &libraries, &values))
                    .with_context(|| format!("cannot fill the package {name}"))?;
            }
        }
        match missing.first() {
            Some(name) => bail!("a content is for the package `{name}`, which is not in the table"),
            None => Ok(()),
        }
    }
}

impl Content {
    /// Adds it to a package whose libraries are in the directory `libraries`.
    fn add_to(
        &self,
        package: &mut Package,
        tree: &Path,
        libraries: &str,
        values: &BTreeMap<&str, String>,
    ) -> Result<()> {
        let files = &mut package.from_programs;
        for soname in &self.libraries {
            let stem = soname.split_once(".so").map_or(&**soname, |(stem, _)| stem);
            let real = find(tree, &format!("{LIBRARIES}/{DRIVER}/{stem}.so.*"))
                .or_else(|_| find(tree, &format!("{LIBRARIES}/{stem}.so.*")))?;
            files.insert(
                format!("{libraries}/{stem}.so.{}", values["upstream"]),
                real,
            );
            if !package.libraries.contains(soname) {
                package.libraries.push(soname.clone());
            }
        }
        for (path, pattern) in &self.files {
            files.insert(fill(path, values)?, find(tree, pattern)?);
        }
        for (path, pattern) in &self.trees {
            let from = find(tree, pattern)?;
            walk(tree, &from, &fill(path, values)?, files)?;
        }
        package.depends.extend(self.depends.iter().cloned());
        for (script, text) in &self.scripts {
            let script = package.scripts.entry(script.clone()).or_default();
            script.push_str(text);
        }
        Ok(())
    }
}

/// The path below `tree` that matches a pattern: the last one in alphabetical order that is not a symbolic link. Only
/// directories above it may be links.
fn find(tree: &Path, pattern: &str) -> Result<String> {
    let mut found = PathBuf::new();
    let mut parts = pattern.split('/').peekable();
    while let Some(part) = parts.next() {
        let Some((start, end)) = part.split_once('*') else {
            found.push(part);
            continue;
        };
        let dir = tree.join(&found);
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry.context("cannot read a directory")?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let fits = name
                .strip_prefix(start)
                .is_some_and(|rest| rest.ends_with(end));
            if fits && !(is_link && parts.peek().is_none()) {
                names.push(name);
            }
        }
        let last = names.into_iter().max();
        found.push(last.with_context(|| format!("Debian's packages contain no {pattern}"))?);
    }
    if !tree.join(&found).exists() {
        bail!("Debian's packages contain no {pattern}");
    }
    Ok(found.to_string_lossy().into_owned())
}

/// Adds all files below the directory `from`, without symbolic links.
fn walk(tree: &Path, from: &str, to: &str, files: &mut BTreeMap<String, String>) -> Result<()> {
    let dir = tree.join(from);
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry.context("cannot read a directory")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().context("cannot read a directory")?;
        let (from, to) = (format!("{from}/{name}"), format!("{to}/{name}"));
        if kind.is_dir() {
            walk(tree, &from, &to, files)?;
        } else if kind.is_file() {
            files.insert(to, from);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// A tree in which each file of a table exists once, without content.
    fn tree_of(contents: &Contents) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path.replace('*', "535.1"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for content in &contents.contents {
            for soname in &content.libraries {
                let (stem, _) = soname.split_once(".so").unwrap();
                put(&format!("{LIBRARIES}/{DRIVER}/{stem}.so.*"));
            }
            content.files.values().for_each(|path| put(path));
            (content.trees.values()).for_each(|path| put(&format!("{path}/below/file")));
        }
        dir
    }

    #[test]
    fn tables_fill_packages_of_one_version() {
        let ubuntu = ["ubuntu.toml", "packages.toml", "real/ubuntu-packages.toml"];
        let debs = Table::load(&ubuntu.map(|name| here().join(name)), None).unwrap();
        let rpms = Table::of_rpms(&here().join("rpms"), "9").unwrap();
        for (file, mut table, name, library) in [
            (
                "ubuntu.toml",
                debs,
                "libnvidia-compute-{{branch}}-server",
                "usr/lib/x86_64-linux-gnu/libcuda.so.580.173.02",
            ),
            (
                "almalinux.toml",
                rpms,
                "nvidia-driver-cuda-libs",
                "usr/lib64/libcuda.so.580.178.04",
            ),
        ] {
            let contents = Contents::load(&here().join("real").join(file)).unwrap();
            let tree = tree_of(&contents);
            contents.add_to(&mut table, tree.path()).unwrap();
            let package = (table.packages.iter())
                .find(|one| one.name == name)
                .unwrap();
            assert_eq!(package.versions.len(), 1, "{name}");
            let real = format!("{LIBRARIES}/{DRIVER}/libcuda.so.535.1");
            assert_eq!(package.from_programs[library], real);
            assert!(package.libraries.contains(&"libcuda.so.1".to_owned()));
        }
    }

    #[test]
    fn missing_file_and_unknown_package_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        for pattern in ["usr/bin/nothing", "usr-*/nothing"] {
            assert!(find(dir.path(), pattern).is_err(), "{pattern}");
        }
        let contents: Contents = toml::from_str(
            "debian = []\nversion = '1'\n[[content]]\npackage = 'nothing'\nsource = ''",
        )
        .unwrap();
        let error = contents
            .add_to(&mut Table::default(), dir.path())
            .unwrap_err();
        assert!(error.to_string().contains("`nothing`"), "{error:#}");
    }
}
