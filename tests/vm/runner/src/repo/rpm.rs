//! Packages for dnf, built by rpmbuild, and other files for dnf: module streams and the files of `/etc/yum.repos.d`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::contents::Contents;
use super::table::{Package, Place, Release, Stream, Table, upstream};
use super::{PORT, Repositories};
use crate::sh::Cmd;

/// Options that limit a package to the contents of its spec file.
const BUILD: [&str; 7] = [
    "__os_install_post %{nil}",
    "debug_package %{nil}",
    "_build_id_links none",
    "_binaries_in_noarch_packages_terminate_build 0",
    "_binary_payload w1.gzdio",
    "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    "_unpackaged_files_terminate_build 1",
];

/// System directories: a package with files in them does not own them.
const OF_THE_SYSTEM: &str = " boot etc usr usr/bin usr/lib usr/lib/modules usr/lib/systemd usr/lib/systemd/system \
                             usr/lib64 usr/sbin usr/share usr/share/doc usr/src var var/lib ";

/// Writes the spec file of one version, next to its files; returns its path.
pub fn spec(version: &str, place: &Place, contents: &Contents<'_>) -> Result<PathBuf> {
    let package = contents.package;
    let (epoch, rest) = version.split_once(':').unwrap_or(("", version));
    let (version, release) = rest
        .rsplit_once('-')
        .with_context(|| format!("`{rest}` has no release"))?;
    let mut text = format!(
        "Name: {}\nVersion: {version}\nRelease: {release}\nSummary: fake of the test bed\n\
         License: none\nAutoReqProv: no\nVendor: {}\nPackager: {}\n",
        package.name, place.vendor, place.packager
    );
    if !epoch.is_empty() {
        writeln!(text, "Epoch: {epoch}")?;
    }
    if package.noarch {
        text.push_str("BuildArch: noarch\n");
    }
    for (field, values) in package.relations() {
        let tag = match field {
            "Depends" => "Requires",
            "Replaces" => "Obsoletes",
            same => same,
        };
        for value in values {
            writeln!(text, "{tag}: {}", contents.fill(value)?)?;
        }
    }
    write!(
        text,
        "%description\nA fake of the test bed: the vendor's name, nothing of its content.\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a '{}'/. %{{buildroot}}/\n",
        contents.root.display()
    )?;
    for (name, body) in contents.scripts()? {
        writeln!(text, "%{name}\n{body}")?;
    }
    text.push_str("%files\n");
    list(package, contents.root, &mut text)?;
    let path = contents.root.with_extension("spec");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Lists the paths that a package owns.
fn list(package: &Package, root: &Path, text: &mut String) -> Result<()> {
    let root = root.to_string_lossy();
    let found = Cmd::new(["find", &root, "-mindepth", "1", "-printf", "%y%P\\n"]).ok()?;
    for line in found.stdout.lines() {
        let (kind, path) = line.split_at(1);
        let directive = match kind {
            "d" if OF_THE_SYSTEM.contains(&format!(" {path} ")) => continue,
            "d" => "%dir ",
            _ if package.config.iter().any(|one| one == path) => "%config(noreplace) ",
            _ => "",
        };
        writeln!(text, "{directive}\"/{path}\"")?;
    }
    Ok(())
}

/// Builds packages from their spec files into the directory `pool`.
pub fn build(specs: &[PathBuf], work: &Path, pool: &Path) -> Result<()> {
    let places = [
        format!("_topdir {}", work.join("top").display()),
        format!("_rpmdir {}", pool.display()),
    ];
    let mut argv = ["rpmbuild", "-bb", "--quiet"].map(String::from).to_vec();
    for define in BUILD.map(String::from).into_iter().chain(places) {
        argv.extend(["--define".to_string(), define]);
    }
    argv.extend(specs.iter().map(|spec| spec.to_string_lossy().into_owned()));
    Cmd::new(argv)
        .deadline(Duration::from_secs(1200))
        .ok()
        .map(drop)
}

/// The module streams of a repository as modulemd documents of version 2. Empty without streams.
pub fn modules(table: &Table, release: &Release, repository: &str) -> Result<String> {
    let mut text = String::new();
    if !release.streams {
        return Ok(text);
    }
    let streams = (table.streams.iter()).filter(|stream| stream.repository == repository);
    for (index, stream) in streams.enumerate() {
        write!(
            text,
            "---\ndocument: modulemd\nversion: 2\ndata:\n  name: {}\n  stream: {}\n  version: {}\n  \
             context: {:08x}\n  arch: x86_64\n  summary: fake of the test bed\n  \
             description: >-\n    A fake of the test bed.\n  license:\n    module:\n    - MIT\n  \
             dependencies:\n  - requires:\n      platform: [{}]\n  profiles:\n    default:\n      \
             rpms:\n      - {}\n  artifacts:\n    rpms:\n    - {}\n...\n",
            stream.module,
            stream.stream,
            20_261_101_000_000_u64,
            index + 1,
            release.platform,
            [&stream.packages[..], &stream.newest]
                .concat()
                .join("\n      - "),
            artifacts(table, stream).join("\n    - ")
        )?;
    }
    Ok(text)
}

/// The packages of a stream, in the form `NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE`.
fn artifacts(table: &Table, stream: &Stream) -> Vec<String> {
    let mut artifacts = Vec::new();
    for package in &table.packages {
        let newest_only = stream.newest.contains(&package.name);
        if package.repository != stream.repository
            || !newest_only && !stream.packages.contains(&package.name)
        {
            continue;
        }
        let of_branch =
            |version: &&String| upstream(version).split('.').next() == Some(&stream.branch);
        let mut versions: Vec<&String> = package.versions.iter().filter(of_branch).collect();
        if newest_only {
            versions.drain(..versions.len().saturating_sub(1));
        }
        artifacts.extend(versions.into_iter().map(|version| {
            let epoch = if version.contains(':') { "" } else { "0:" };
            format!(
                "{}-{epoch}{version}.{}",
                package.name,
                package.rpm_architecture()
            )
        }));
    }
    artifacts
}

/// The initial files of `/etc/yum.repos.d` and `/etc/pki/rpm-gpg`, their text by their path: the repositories that the
/// distribution itself configures, and their keys.
pub fn files(repositories: &Repositories, release: &Release) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for (place, _) in repositories.places.values() {
        let Some(id) = &place.id else {
            continue;
        };
        let key = format!("etc/pki/rpm-gpg/{}", release.key);
        let vendor = &place.vendor;
        let stem = match vendor.to_lowercase().replace(' ', "") {
            own if own == *id => own,
            own => format!("{own}-{id}"),
        };
        files.insert(
            format!("etc/yum.repos.d/{stem}.repo"),
            format!(
                "[{id}]\nname={vendor} $releasever - {id} (a fake of the test bed)\n\
                 baseurl=http://{}:{PORT}/{}/\nenabled={}\ngpgcheck=1\ngpgkey=file:///{key}\n",
                place.host,
                place.path,
                u8::from(!place.disabled)
            ),
        );
        let text =
            fs::read_to_string(repositories.root.join(&place.key)).context("cannot read a key")?;
        files.insert(key, text);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::contents::tests::written;

    fn table() -> Table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpms");
        Table::of_rpms(&path, "9").unwrap()
    }

    #[test]
    fn stream_contains_only_packages_of_its_branch() {
        let table = table();
        let text = modules(&table, table.release.as_ref().unwrap(), "nvidia").unwrap();
        let open = text.split("stream: 580-open\n").nth(1).unwrap();
        let open = open.split("...").next().unwrap();
        assert!(open.contains("    - nvidia-driver-cuda-3:580.178.04-1.el9.x86_64\n"));
        assert!(open.contains("    - nvidia-driver-cuda-3:580.173.02-1.el9.x86_64\n"));
        assert!(open.contains("    - kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch\n"));
        for other in ["kmod-nvidia-open-dkms-3:580.173.02", "595", "latest-dkms"] {
            assert!(!open.contains(other), "{open}");
        }
    }

    #[test]
    fn spec_has_epoch_dependencies_and_unit_scripts() {
        let table = table();
        let dir = tempfile::tempdir().unwrap();
        let (version, root) = ("3:580.178.04-1.el9", dir.path().join("tree"));
        let contents = written(&table, "nvidia-persistenced", version, &root);
        let spec = spec(version, &table.repositories["nvidia"], &contents).unwrap();
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
