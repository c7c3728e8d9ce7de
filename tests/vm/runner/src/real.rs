//! Real contents for simulated packages. The machines of the benchmark install packages with the vendors' names and the
//! number and size of files that users install: Debian's files of the same driver, which the tables `real/*.toml` assign
//! to packages. The tables of all other machines, and thus their cached repositories, do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::bed::Bed;
use crate::cases::fill;
use crate::repo::rpm::table::Rpms;
use crate::repo::table::{File, Packages, upstream};
use crate::rootfs::{KEYRING, Mirror};
use crate::sh::Cmd;

/// The Debian release of the files.
const SUITE: &str = "bookworm";
const COMPONENTS: &str = "main contrib non-free non-free-firmware";

/// Debian's directory of libraries, and that of the driver's libraries in it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const DRIVER: &str = "nvidia/current";

/// The directory of libraries on AlmaLinux.
const RPM_LIBRARIES: &str = "usr/lib64";

/// The dnf repository with real contents, and the one whose packages it has. The first part of its paths is its name.
pub const REAL: &str = "real";
const COPIED: &str = "nvidia";

/// A table of contents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Contents {
    /// The Debian packages that contain the files.
    debian: Vec<String>,
    /// Only packages whose version starts with this, without its epoch, get contents.
    #[serde(default)]
    version: String,
    #[serde(rename = "content")]
    contents: Vec<Content>,
}

/// The content of one simulated package. Its paths may contain `{{upstream}}`, `{{version}}` and `{{branch}}`, Debian's
/// paths a `*` in each part.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Content {
    /// The complete name of the simulated package.
    package: String,
    /// Names of the driver's libraries. They replace the empty ones of the simulated package.
    #[serde(default)]
    libraries: Vec<String>,
    /// Files: path here = path in Debian.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Directories with everything in them: path here = path in Debian.
    #[serde(default)]
    trees: BTreeMap<String, String>,
    /// Additional dependencies.
    #[serde(default)]
    depends: Vec<String>,
    /// dpkg's file of triggers.
    #[serde(default)]
    triggers: Option<String>,
    /// Additional actions of the package's scripts, by their names in dpkg or in a spec file.
    #[serde(default)]
    scripts: BTreeMap<String, String>,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    _source: String,
}

/// What is added to a package: path here = path below the unpacked Debian packages, and symbolic links.
#[derive(Debug, Default, PartialEq)]
struct Placed {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
}

impl Contents {
    /// Reads a table.
    pub fn load(path: &Path) -> Result<Contents> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))
    }

    /// Returns the directory with the unpacked Debian packages of all tables with the same packages.
    pub fn unpack(&self, bed: &Bed, mirror: &Mirror) -> Result<PathBuf> {
        let archive = format!(
            "deb [signed-by={KEYRING}] {} {SUITE} {COMPONENTS}",
            mirror.main
        );
        let recipe = format!("{archive}\n{}", self.debian.join("\n"));
        let dir = bed.cached("real-files", &recipe, None, |dir| {
            Cmd::new([
                "mmdebstrap",
                "--variant=extract",
                "--mode=root",
                "--quiet",
                &format!("--include={}", self.debian.join(",")),
                SUITE,
                &dir.join("tree").to_string_lossy(),
                &archive,
            ])
            .deadline(Duration::from_secs(1800))
            .ok()
            .context("cannot unpack Debian's driver packages")
            .map(drop)
        })?;
        Ok(dir.join("tree"))
    }

    /// The packages of an apt table with the contents of this one. `tree` contains the unpacked Debian packages.
    pub fn debs(&self, mut table: Packages, tree: &Path) -> Result<Packages> {
        let mut packages = Vec::new();
        let mut missing = self.names();
        for package in &table.packages {
            for version in &package.versions {
                let mut values: BTreeMap<&str, String> = (package.values.iter())
                    .map(|(key, value)| (*key, value.clone()))
                    .collect();
                values.extend(of_version(version));
                let name = fill(&package.name, &values)?;
                let mut package = package.clone();
                package.versions = vec![version.clone()];
                if let Some(content) = self.of(&name, version) {
                    missing.remove(name.as_str());
                    let placed = (content.place(tree, LIBRARIES, &values))
                        .with_context(|| format!("cannot fill the package {name}"))?;
                    package.libraries.clear();
                    package.from_programs.extend(placed.files);
                    package.links.extend(placed.links);
                    package.depends.extend(content.depends.iter().cloned());
                    if let Some(triggers) = &content.triggers {
                        let file = File {
                            text: Some(triggers.clone()),
                            key_of: None,
                            mode: "644".into(),
                        };
                        package.files.insert("DEBIAN/triggers".into(), file);
                    }
                    for (script, text) in &content.scripts {
                        match script.as_str() {
                            "postinst" => package.scripts.postinst.push_str(text),
                            "postrm" => package.scripts.postrm.push_str(text),
                            _ => bail!("{name}: dpkg has no script `{script}` in these tables"),
                        }
                    }
                }
                packages.push(package);
            }
        }
        complete(&missing)?;
        table.packages = packages;
        Ok(table)
    }

    /// A dnf table with one repository, [`REAL`]: the packages and streams of NVIDIA's repository. Packages with a content
    /// only have the version with the content.
    pub fn rpms(&self, table: &Rpms, tree: &Path) -> Result<Rpms> {
        let mut repository = table.repositories[COPIED].clone();
        repository.path = format!("{REAL}/{}", repository.path);
        repository.key = repository.key.map(|key| format!("{REAL}/{key}"));
        let mut own = Rpms {
            releases: table.releases.clone(),
            repositories: BTreeMap::from([(REAL.to_string(), repository)]),
            ..Rpms::default()
        };
        let mut missing = self.names();
        for package in table.packages.iter().filter(|one| one.repository == COPIED) {
            let mut package = package.clone();
            package.repository = REAL.into();
            let full = (package.versions.iter())
                .find_map(|version| Some((version.clone(), self.of(&package.name, version)?)));
            if let Some((version, content)) = full {
                missing.remove(package.name.as_str());
                let placed = (content.place(tree, RPM_LIBRARIES, &of_version(&version)))
                    .with_context(|| format!("cannot fill the package {}", package.name))?;
                package.versions = vec![version];
                package.libraries.clear();
                package.from_programs.extend(placed.files);
                package.links.extend(placed.links);
                package.requires.extend(content.depends.iter().cloned());
                for (script, text) in &content.scripts {
                    (package.scripts.entry(script.clone()).or_default()).push_str(text);
                }
            }
            own.packages.push(package);
        }
        for stream in table.streams.iter().filter(|one| one.repository == COPIED) {
            let mut stream = stream.clone();
            stream.repository = REAL.into();
            own.streams.push(stream);
        }
        complete(&missing)?;
        Ok(own)
    }

    fn names(&self) -> BTreeSet<&str> {
        self.contents
            .iter()
            .map(|one| one.package.as_str())
            .collect()
    }

    /// The content of a package in a version.
    fn of(&self, name: &str, version: &str) -> Option<&Content> {
        let plain = version.split_once(':').map_or(version, |(_, rest)| rest);
        (self.contents.iter()).find(|one| one.package == name && plain.starts_with(&self.version))
    }
}

/// Rejects a content whose package does not exist.
fn complete(missing: &BTreeSet<&str>) -> Result<()> {
    match missing.first() {
        Some(name) => bail!("a content is for the package `{name}`, which is not in the table"),
        None => Ok(()),
    }
}

/// Template values of a version.
fn of_version(version: &str) -> BTreeMap<&'static str, String> {
    let upstream = upstream(version);
    let branch = upstream.split('.').next().unwrap_or_default();
    BTreeMap::from([
        ("version", version.to_string()),
        ("upstream", upstream.to_string()),
        ("branch", branch.to_string()),
    ])
}

impl Content {
    /// The places of its files, for a package whose libraries are in the directory `libraries`.
    fn place(
        &self,
        tree: &Path,
        libraries: &str,
        values: &BTreeMap<&str, String>,
    ) -> Result<Placed> {
        let mut placed = Placed::default();
        for soname in &self.libraries {
            let (stem, number) = soname.split_once(".so").unwrap_or((soname, ""));
            let real = find(tree, &format!("{LIBRARIES}/{DRIVER}/{stem}.so.*"))
                .or_else(|_| find(tree, &format!("{LIBRARIES}/{stem}.so.*")))?;
            let name = format!("{stem}.so.{}", values["upstream"]);
            if !number.is_empty() {
                (placed.links).insert(format!("{libraries}/{soname}"), name.clone());
            }
            placed.files.insert(format!("{libraries}/{name}"), real);
        }
        for (path, pattern) in &self.files {
            placed
                .files
                .insert(fill(path, values)?, find(tree, pattern)?);
        }
        for (path, pattern) in &self.trees {
            let from = find(tree, pattern)?;
            walk(tree, &from, &fill(path, values)?, &mut placed)?;
        }
        Ok(placed)
    }
}

/// The path below `tree` that matches a pattern: the last one in alphabetical order that is not a symbolic link. Only
/// directories above it may be links.
fn find(tree: &Path, pattern: &str) -> Result<String> {
    let mut found = String::new();
    let mut parts = pattern.split('/').peekable();
    while let Some(part) = parts.next() {
        let name = match part.split_once('*') {
            None => part.to_string(),
            Some((start, end)) => {
                let dir = tree.join(&found);
                let mut names: Vec<String> = fs::read_dir(&dir)
                    .with_context(|| format!("cannot read {}", dir.display()))?
                    .filter_map(|entry| {
                        let entry = entry.ok()?;
                        let name = entry.file_name().into_string().ok()?;
                        let link = entry.file_type().ok()?.is_symlink();
                        let fits = name.len() >= start.len() + end.len()
                            && name.starts_with(start)
                            && name.ends_with(end);
                        (fits && !(link && parts.peek().is_none())).then_some(name)
                    })
                    .collect();
                names.sort();
                (names.pop()).with_context(|| format!("Debian's packages contain no {pattern}"))?
            }
        };
        if !found.is_empty() {
            found.push('/');
        }
        found.push_str(&name);
    }
    if !tree.join(&found).exists() {
        bail!("Debian's packages contain no {pattern}");
    }
    Ok(found)
}

/// Places everything in the directory `from`.
fn walk(tree: &Path, from: &str, to: &str, placed: &mut Placed) -> Result<()> {
    let dir = tree.join(from);
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry.context("cannot read a directory")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().context("cannot read a directory")?;
        let (from, to) = (format!("{from}/{name}"), format!("{to}/{name}"));
        if kind.is_dir() {
            walk(tree, &from, &to, placed)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).context("cannot read a link")?;
            placed
                .links
                .insert(to, target.to_string_lossy().into_owned());
        } else {
            placed.files.insert(to, from);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
            content
                .trees
                .values()
                .for_each(|path| put(&format!("{path}/below/file")));
        }
        dir
    }

    #[test]
    fn library_gets_version_of_simulated_package() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = dir.path().join(LIBRARIES).join(DRIVER);
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("libcuda.so.535.261.03"), "").unwrap();
        symlink("libcuda.so.535.261.03", libraries.join("libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", libraries.join("libcuda.so.9")).unwrap();
        let content: Content = toml::from_str(
            "package = 'x'\nlibraries = ['libcuda.so.1']\nsource = ''\n\
             [files]\n'usr/a-{{upstream}}' = 'usr/lib/*/nvidia/current/libcuda.so.5*'",
        )
        .unwrap();
        let placed = content
            .place(dir.path(), "usr/lib64", &of_version("3:580.1-2.el9"))
            .unwrap();
        let real = format!("{LIBRARIES}/{DRIVER}/libcuda.so.535.261.03");
        assert_eq!(placed.files["usr/lib64/libcuda.so.580.1"], real);
        assert_eq!(placed.files["usr/a-580.1"], real);
        assert_eq!(placed.links["usr/lib64/libcuda.so.1"], "libcuda.so.580.1");
    }

    #[test]
    fn missing_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for pattern in ["usr/bin/nothing", "usr-*/nothing"] {
            assert!(find(dir.path(), pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn apt_table_gets_contents_and_triggers() {
        let contents = Contents::load(&here().join("real/ubuntu.toml")).unwrap();
        let files = ["ubuntu.toml", "packages.toml", "real/ubuntu-packages.toml"];
        let table = Packages::load(&files.map(|name| here().join(name))).unwrap();
        let tree = tree_of(&contents);
        let full = contents.debs(table, tree.path()).unwrap();
        let of = |name: &str| full.packages.iter().find(|one| one.name == name).unwrap();
        let compute = of("libnvidia-compute-{{branch}}-server");
        assert_eq!(compute.versions, ["580.173.02-0ubuntu0.24.04.1"]);
        assert!(
            (compute.from_programs).contains_key("usr/lib/x86_64-linux-gnu/libcuda.so.580.173.02")
        );
        assert!(compute.libraries.is_empty());
        let triggers = compute.files["DEBIAN/triggers"].text.as_deref();
        assert_eq!(triggers, Some("activate-noawait ldconfig\n"));
        let common = of("nvidia-kernel-common-{{branch}}-server");
        assert!(common.scripts.postinst.contains("update-initramfs -u"));
        // The other branch stays as small as before.
        let other = (full.packages.iter()).find(|one| {
            one.name == "libnvidia-compute-{{branch}}-server" && one.versions[0].starts_with("595")
        });
        assert!(other.unwrap().from_programs.is_empty());
    }

    #[test]
    fn dnf_repository_has_only_version_with_content() {
        let contents = Contents::load(&here().join("real/almalinux.toml")).unwrap();
        let table = Rpms::load(&here().join("rpms")).unwrap();
        let tree = tree_of(&contents);
        let full = contents.rpms(&table, tree.path()).unwrap();
        assert!(full.repositories[REAL].path.starts_with("real/"));
        assert!(full.packages.iter().all(|one| one.repository == REAL));
        let of = |name: &str| full.packages.iter().find(|one| one.name == name).unwrap();
        let libraries = of("nvidia-driver-cuda-libs");
        assert_eq!(libraries.versions, ["3:580.178.04-1"]);
        assert!((libraries.from_programs).contains_key("usr/lib64/libcuda.so.580.178.04"));
        assert!(of("nvidia-fabricmanager").versions.len() > 1);
        assert!(full.streams.iter().any(|one| one.stream == "580-open"));
    }

    #[test]
    fn content_of_unknown_package_is_rejected() {
        let contents: Contents =
            toml::from_str("debian = []\n[[content]]\npackage = 'nothing'\nsource = ''").unwrap();
        let table = Rpms::load(&here().join("rpms")).unwrap();
        let error = contents.rpms(&table, Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("`nothing`"), "{error:#}");
    }
}
