//! A fake package as a file tree and a spec file, from which rpmbuild builds it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::{Package, Release, Repository};
use crate::repo::fake::{Source, Tree};
use crate::repo::table::upstream;
use crate::sh::Cmd;

/// The scripts of the systemd macros `%systemd_post`, `%systemd_preun` and `%systemd_postun`: a unit gets its preset
/// state, and is stopped when it is removed. It is never started.
const UNIT_POST: &str = "\
if [ $1 -eq 1 ] && [ -x /usr/bin/systemctl ]; then
    systemctl --no-reload preset {{unit}} >/dev/null 2>&1 || :
fi
";
const UNIT_PREUN: &str = "\
if [ $1 -eq 0 ] && [ -x /usr/bin/systemctl ]; then
    systemctl --no-reload disable --now {{unit}} >/dev/null 2>&1 || :
fi
";
/// On AlmaLinux the file triggers of systemd do this.
const UNIT_POSTUN: &str = "systemctl daemon-reload >/dev/null 2>&1 || :\n";

/// The DKMS scripts of NVIDIA's packages: a failed build does not fail the package.
const DKMS_POST: &str = "\
dkms add -m {{dkms}} -v {{upstream}} -q || :
dkms build -m {{dkms}} -v {{upstream}} -q || :
dkms install -m {{dkms}} -v {{upstream}} -q --force || :
";
const DKMS_PREUN: &str = "dkms remove -m {{dkms}} -v {{upstream}} -q --all || :\n";

/// System directories: a package with files in them does not own them.
const OF_THE_SYSTEM: [&str; 16] = [
    "",
    "boot",
    "etc",
    "usr",
    "usr/bin",
    "usr/lib",
    "usr/lib/modules",
    "usr/lib/systemd",
    "usr/lib/systemd/system",
    "usr/lib64",
    "usr/sbin",
    "usr/share",
    "usr/share/doc",
    "usr/src",
    "var",
    "var/lib",
];

/// The directories of a package during its build.
pub struct Work<'a> {
    pub dir: &'a Path,
    /// The packages of NVIDIA's container toolkit.
    pub toolkit: &'a Path,
}

/// Writes the tree and the spec file of one version; returns the path of the spec file.
pub fn write(
    package: &Package,
    version: &str,
    (number, release, repository): (&str, &Release, &Repository),
    source: &Source<'_>,
    work: &Work<'_>,
) -> Result<PathBuf> {
    let name = format!("{}-{}", package.name, version.replace(':', "_"));
    let root = work.dir.join(&name);
    fs::create_dir_all(&root).context("cannot create a directory")?;
    let upstream = upstream(version);
    let mut values: BTreeMap<&str, String> = release.values(number);
    values.extend((source.values.iter()).map(|(key, value)| (key.as_str(), value.clone())));
    values.extend([
        ("name", package.name.clone()),
        ("version", version.to_string()),
        ("evr", evr(version).to_string()),
        ("upstream", upstream.to_string()),
        (
            "branch",
            upstream.split('.').next().unwrap_or_default().to_string(),
        ),
        ("kernel", format!("{version}.x86_64")),
    ]);
    let tree = Tree {
        root: &root,
        values: &values,
        libraries: "usr/lib64",
        modules: "/extra",
    };
    tree.files(&package.files, &package.from_debian, source)?;
    for (path, name) in &package.from_programs {
        let real = source.programs.context("the programs are not compiled")?;
        let real = real.join(name);
        fs::copy(&real, tree.place(path)?)
            .with_context(|| format!("cannot copy {}", real.display()))?;
    }
    for library in &package.libraries {
        tree.library(library, upstream)?;
    }
    for (path, target) in &package.links {
        let at = tree.place(&tree.fill(path)?)?;
        std::os::unix::fs::symlink(tree.fill(target)?, at).context("cannot make a link")?;
    }
    if let Some(dkms) = &package.dkms {
        tree.dkms(dkms)?;
    }
    if let Some(modules) = &package.modules {
        tree.modules(modules)?;
    }
    if let Some(name) = &package.from_toolkit {
        unpack(work.toolkit, name, &root)?;
    }
    let spec = spec(package, version, repository, &tree)?;
    let path = work.dir.join(format!("{name}.spec"));
    fs::write(&path, spec).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Epoch and version without release, for dependencies between packages of one driver.
fn evr(version: &str) -> &str {
    version.rsplit_once('-').map_or(version, |(left, _)| left)
}

/// Unpacks the files of a package that was built for Debian.
fn unpack(toolkit: &Path, name: &str, to: &Path) -> Result<()> {
    let mut found = fs::read_dir(toolkit)
        .context("cannot read the toolkit's packages")?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let start = format!("{name}_");
    let package = found
        .find(|path| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().starts_with(&start))
        })
        .with_context(|| format!("the toolkit has no package {name}"))?;
    Cmd::new([
        "dpkg-deb",
        "-x",
        &package.to_string_lossy(),
        &to.to_string_lossy(),
    ])
    .ok()?;
    // If `/lib` is a link, a package must not contain it as a directory.
    let (old, new) = (to.join("lib"), to.join("usr/lib"));
    if old.is_dir() {
        fs::create_dir_all(&new).context("cannot create a directory")?;
        let merge = [
            "cp",
            "-a",
            &format!("{}/.", old.display()),
            &new.to_string_lossy(),
        ];
        Cmd::new(merge)
            .ok()
            .context("cannot merge two directories")?;
        crate::bed::remove_tree(&old)?;
    }
    Ok(())
}

fn spec(
    package: &Package,
    version: &str,
    repository: &Repository,
    tree: &Tree<'_>,
) -> Result<String> {
    let (epoch, rest) = match version.split_once(':') {
        Some((epoch, rest)) => (Some(epoch), rest),
        None => (None, version),
    };
    let (version, release) = rest
        .rsplit_once('-')
        .with_context(|| format!("`{rest}` has no release"))?;
    let mut text = format!(
        "Name: {}\nVersion: {version}\nRelease: {release}\nSummary: fake of the test bed\n\
         License: none\nAutoReqProv: no\nVendor: {}\nPackager: {}\n",
        package.name, repository.vendor, repository.packager
    );
    if let Some(epoch) = epoch {
        writeln!(text, "Epoch: {epoch}")?;
    }
    if package.noarch {
        text.push_str("BuildArch: noarch\n");
    }
    for (tag, values) in [
        ("Requires", &package.requires),
        ("Recommends", &package.recommends),
        ("Provides", &package.provides),
        ("Conflicts", &package.conflicts),
        ("Obsoletes", &package.obsoletes),
    ] {
        for value in values {
            writeln!(text, "{tag}: {}", tree.fill(value)?)?;
        }
    }
    text.push_str(
        "%description\nA fake of the test bed: the vendor's name, nothing of its content.\n",
    );
    writeln!(
        text,
        "%install\nmkdir -p %{{buildroot}}\ncp -a '{}'/. %{{buildroot}}/",
        tree.root.display()
    )?;
    for (name, body) in scripts(package, tree)? {
        writeln!(text, "%{name}\n{body}")?;
    }
    text.push_str("%files\n");
    let config: Vec<String> = (package.config.iter())
        .map(|path| tree.fill(path))
        .collect::<Result<_>>()?;
    list(tree.root, "", &config, &mut text)?;
    Ok(text)
}

/// The scripts, in the order of rpm.
fn scripts(package: &Package, tree: &Tree<'_>) -> Result<BTreeMap<&'static str, String>> {
    let mut scripts = BTreeMap::new();
    for name in ["pre", "post", "preun", "postun", "posttrans"] {
        let mut body = match package.scripts.get(name) {
            Some(text) => tree.fill(text)?.trim_start().to_string(),
            None => String::new(),
        };
        if let Some(dkms) = &package.dkms {
            let more = [("dkms", dkms.name.as_str())];
            match name {
                "post" => body.push_str(&tree.fill_with(DKMS_POST, &more)?),
                "preun" => body.push_str(&tree.fill_with(DKMS_PREUN, &more)?),
                _ => {}
            }
        }
        for unit in &package.units {
            let more = [("unit", unit.as_str())];
            match name {
                "post" => body.push_str(&tree.fill_with(UNIT_POST, &more)?),
                "preun" => body.push_str(&tree.fill_with(UNIT_PREUN, &more)?),
                "postun" => body.push_str(UNIT_POSTUN),
                _ => {}
            }
        }
        if !package.libraries.is_empty() && ["post", "postun"].contains(&name) {
            body.push_str("/sbin/ldconfig\n");
        }
        if !body.is_empty() {
            scripts.insert(name, body);
        }
    }
    Ok(scripts)
}

/// Lists the paths that a package owns, below `path` of its tree.
fn list(root: &Path, path: &str, config: &[String], text: &mut String) -> Result<()> {
    let dir = root.join(path);
    let mut names: Vec<String> = fs::read_dir(&dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    if !OF_THE_SYSTEM.contains(&path) {
        writeln!(text, "%dir \"/{path}\"")?;
    }
    for name in names {
        let path = match path {
            "" => name,
            path => format!("{path}/{name}"),
        };
        let at = root.join(&path);
        if at.is_dir() && !at.is_symlink() {
            list(root, &path, config, text)?;
        } else if config.contains(&path) {
            writeln!(text, "%config(noreplace) \"/{path}\"")?;
        } else {
            writeln!(text, "\"/{path}\"")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::rpm::table::Rpms;

    #[test]
    fn spec_has_epoch_dependencies_and_unit_scripts() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpms");
        let table = Rpms::load(&path).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (keys, values) = (BTreeMap::new(), BTreeMap::new());
        let source = Source {
            keys: &keys,
            debian: dir.path(),
            programs: None,
            values: &values,
        };
        let work = Work {
            dir: dir.path(),
            toolkit: dir.path(),
        };
        let release = table.release("9").unwrap();
        let package = (table.packages_of("9")).find(|one| one.name == "nvidia-persistenced");
        let version = "3:580.178.04-1.el9";
        let place = ("9", release, &table.repositories["nvidia"]);
        let spec = write(package.unwrap(), version, place, &source, &work).unwrap();
        let text = fs::read_to_string(spec).unwrap();
        for part in [
            "Epoch: 3\n",
            "Version: 580.178.04\nRelease: 1.el9\n",
            "Requires: libnvidia-cfg(x86-64) >= 3:580.178.04\n",
            "preset nvidia-persistenced.service",
            "\"/usr/lib/systemd/system/nvidia-persistenced.service\"\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("%dir \"/usr/lib/systemd/system\""));
    }
}
