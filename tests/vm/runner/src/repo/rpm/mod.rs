//! dnf repositories for one release of AlmaLinux or Amazon Linux: packages built by rpmbuild and signed by rpmsign,
//! metadata by createrepo_c and signed by gpg.

mod spec;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use self::spec::Work;
use self::table::{Rpms, Stream};
use super::fake::Source;
use super::table::{Place, upstream};
use super::{
    Gpg, HALF_SYNCED, PORT, Repositories, STRANGER, UNSIGNED, WRONG_KEY, addresses, binaries, keys,
    owner,
};
use crate::bed::Bed;
use crate::claim::Claim;
use crate::rootfs::Mirror;
use crate::sh::Cmd;

/// A part of the recipe, because a change of these files may change the result.
const SOURCE: [&str; 4] = [
    include_str!("mod.rs"),
    include_str!("spec.rs"),
    include_str!("table.rs"),
    include_str!("../fake.rs"),
];
const SIGN: &str = include_str!("sign.sh");

/// The directory, below that of the repositories, with the packages that are installed on machines from the start.
const INSTALLED: &str = "installed";

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

/// The parts of machines of a release.
#[derive(Clone, Debug)]
pub struct Served {
    pub repositories: Repositories,
    /// Packages that are installed on machines from the start.
    pub installed: PathBuf,
    /// The initial files of `/etc/yum.repos.d` and `/etc/pki/rpm-gpg`: their text by their path.
    pub files: BTreeMap<String, String>,
}

/// Builds the repositories of a release; `toolkit` contains the packages of the container toolkit.
pub fn build(
    bed: &Bed,
    table: &Rpms,
    number: &str,
    toolkit: &Path,
    mirror: &Mirror,
) -> Result<Served> {
    let recipe = format!(
        "{number} {} {} {SIGN} {SOURCE:?} {BUILD:?}",
        toolkit.display(),
        table.told_of(number)?
    );
    let dir = bed.cached(&format!("rpms-{number}"), &recipe, None, |dir| {
        let paths: BTreeSet<&String> = (table.packages_of(number))
            .flat_map(|package| package.from_debian.values())
            .collect();
        let binaries = binaries(bed, paths.into_iter(), mirror)?;
        make(bed, dir, table, number, (toolkit, &binaries, None))
    })?;
    let repositories = Repositories {
        root: dir.join("www"),
        faults: dir.join("faults"),
        places: places(&dir, table, number)?,
    };
    Ok(Served {
        files: files(table, number, &repositories)?,
        installed: dir.join(INSTALLED),
        repositories,
    })
}

/// Adds the Kubernetes repository to a release. `programs` are the contents of its packages.
pub fn with_kubernetes(
    bed: &Bed,
    (kubernetes, number): (&Rpms, &str),
    served: &Repositories,
    (toolkit, programs): (&Path, &Path),
) -> Result<Repositories> {
    let recipe = format!(
        "{number} {} {} {kubernetes:?} {SIGN} {SOURCE:?} {BUILD:?}",
        served.root.display(),
        programs.display()
    );
    let kind = format!("rpms-{number}-kubernetes");
    let dir = bed.cached(&kind, &recipe, None, |dir| {
        for (from, name) in [(&served.root, "www"), (&served.faults, "faults")] {
            let (from, to) = (from.to_string_lossy(), dir.join(name));
            Cmd::new(["cp", "-al", &from, &to.to_string_lossy()])
                .ok()
                .context("cannot link the repositories")?;
        }
        // None of its packages contains Debian files.
        let sources = (toolkit, Path::new("/dev/null"), Some(programs));
        make(bed, dir, kubernetes, number, sources)
    })?;
    let mut places = places(&dir, kubernetes, number)?;
    places.extend(served.places.clone());
    Ok(Repositories {
        root: dir.join("www"),
        faults: dir.join("faults"),
        places,
    })
}

/// The repositories of a directory, each with the fingerprint of its key.
fn places(dir: &Path, table: &Rpms, number: &str) -> Result<BTreeMap<String, (Place, String)>> {
    let mut places = BTreeMap::new();
    for (name, place) in table.places(number)? {
        let signer = signer(table, &name);
        let fingerprint = fs::read_to_string(dir.join("fingerprints").join(signer))
            .context("cannot read a fingerprint")?;
        places.insert(name, (place, fingerprint.trim().to_string()));
    }
    Ok(places)
}

/// The repository whose key signs another.
fn signer<'a>(table: &'a Rpms, name: &'a str) -> &'a str {
    table.repositories[name].key_of.as_deref().unwrap_or(name)
}

/// The repositories that the distribution itself configures, and their keys.
fn files(
    table: &Rpms,
    number: &str,
    repositories: &Repositories,
) -> Result<BTreeMap<String, String>> {
    let release = table.release(number)?;
    let values = release.values(number);
    let mut files = BTreeMap::new();
    for (name, (place, _)) in &repositories.places {
        let repository = &table.repositories[name];
        let Some(id) = &repository.id else {
            continue;
        };
        let id = crate::cases::fill(id, &values)?;
        let key = format!("etc/pki/rpm-gpg/{}", release.key);
        let vendor = &repository.vendor;
        let stem = match vendor.to_lowercase().replace(' ', "") {
            own if own == id => own,
            own => format!("{own}-{id}"),
        };
        files.insert(
            format!("etc/yum.repos.d/{stem}.repo"),
            format!(
                "[{id}]\nname={vendor} $releasever - {id} (a fake of the test bed)\n\
                 baseurl=http://{}:{PORT}/{}/\nenabled={}\ngpgcheck=1\ngpgkey=file:///{key}\n",
                place.host,
                place.path,
                u8::from(repository.enabled)
            ),
        );
        let text =
            fs::read_to_string(repositories.root.join(&place.key)).context("cannot read a key")?;
        files.insert(key, text);
    }
    Ok(files)
}

fn make(
    bed: &Bed,
    dir: &Path,
    table: &Rpms,
    number: &str,
    (toolkit, binaries, programs): (&Path, &Path, Option<&Path>),
) -> Result<()> {
    let release = table.release(number)?;
    let places = table.places(number)?;
    let gpg = Gpg(Claim::take(bed, "rpm-keys")?);
    let owners = (places.iter()).filter(|(name, _)| table.repositories[*name].key_of.is_none());
    keys(
        dir,
        &gpg,
        owners.map(|(name, place)| (name.as_str(), &*place.key)),
    )?;
    // rpm only reads armored keys.
    let armoured: BTreeMap<String, PathBuf> = (places.iter())
        .map(|(name, place)| (name.clone(), dir.join("www").join(&place.key)))
        .collect();
    let values = addresses(places.iter());
    let source = Source {
        keys: &armoured,
        debian: binaries,
        programs,
        values: &values,
    };
    let work = dir.join("work");
    for (name, place) in &places {
        let pool = dir.join("www").join(&place.path);
        let trees = work.join("trees");
        for path in [&pool, &trees, &dir.join(INSTALLED)] {
            fs::create_dir_all(path).context("cannot create a directory")?;
        }
        let mut specs = Vec::new();
        let mut installed = Vec::new();
        for package in table.packages_of(number) {
            if package.repository != *name {
                continue;
            }
            let repository = (number, release, &table.repositories[name]);
            let work = Work {
                dir: &trees,
                toolkit,
            };
            for (index, version) in package.versions_in(number, release)?.iter().enumerate() {
                let spec = spec::write(package, version, repository, &source, &work)
                    .with_context(|| format!("cannot prepare {} {version}", package.name))?;
                specs.push(spec);
                if package.installed && index == 0 {
                    installed.push(file_name(&package.name, version, package.noarch));
                }
            }
        }
        rpmbuild(&specs, &work, &pool)
            .with_context(|| format!("cannot build the packages of {name}"))?;
        for file in &installed {
            fs::copy(pool.join(file), dir.join(INSTALLED).join(file))
                .with_context(|| format!("cannot copy {file}"))?;
        }
        let streams = match release.streams {
            true => modules(table, number, name)?,
            false => String::new(),
        };
        fs::write(work.join("modules.yaml"), streams).context("cannot write the streams")?;
        sign(dir, &gpg, &work, signer(table, name), &place.path)
            .with_context(|| format!("cannot sign the repository {name}"))?;
        crate::bed::remove_tree(&work)?;
    }
    Ok(())
}

/// The file of a package.
pub fn file_name(name: &str, version: &str, noarch: bool) -> String {
    let rest = version.split_once(':').map_or(version, |(_, rest)| rest);
    let architecture = if noarch { "noarch" } else { "x86_64" };
    format!("{name}-{rest}.{architecture}.rpm")
}

fn rpmbuild(specs: &[PathBuf], work: &Path, pool: &Path) -> Result<()> {
    let mut argv = vec!["rpmbuild".to_string(), "-bb".into(), "--quiet".into()];
    let places = [
        format!("_topdir {}", work.join("top").display()),
        format!("_rpmdir {}", pool.display()),
    ];
    for define in BUILD.iter().map(ToString::to_string).chain(places) {
        argv.extend(["--define".to_string(), define]);
    }
    argv.extend(specs.iter().map(|spec| spec.to_string_lossy().into_owned()));
    Cmd::new(argv).deadline(Duration::from_secs(1200)).ok()?;
    Ok(())
}

/// The module streams of a repository as modulemd documents of version 2.
fn modules(table: &Rpms, number: &str, repository: &str) -> Result<String> {
    let release = table.release(number)?;
    let mut text = String::new();
    let streams = (table.streams.iter()).filter(|stream| stream.repository == repository);
    for (index, stream) in streams.enumerate() {
        writeln!(
            text,
            "---\ndocument: modulemd\nversion: 2\ndata:\n  name: {}\n  stream: {}\n  version: {}\n  \
             context: {:08x}\n  arch: x86_64\n  summary: fake of the test bed\n  \
             description: >-\n    A fake of the test bed.\n  license:\n    module:\n    - MIT\n  \
             dependencies:\n  - requires:\n      platform: [{}]\n  profiles:\n    default:\n      \
             rpms:",
            stream.module,
            stream.stream,
            20_261_101_000_000_u64,
            index + 1,
            release.platform
        )?;
        for name in stream.packages.iter().chain(&stream.newest) {
            writeln!(text, "      - {name}")?;
        }
        text.push_str("  artifacts:\n    rpms:\n");
        for artifact in artifacts(table, number, stream)? {
            writeln!(text, "    - {artifact}")?;
        }
        text.push_str("...\n");
    }
    Ok(text)
}

/// The packages of a stream, in the form `NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE`.
fn artifacts(table: &Rpms, number: &str, stream: &Stream) -> Result<Vec<String>> {
    let release = table.release(number)?;
    let mut artifacts = Vec::new();
    for package in table.packages_of(number) {
        let newest_only = stream.newest.contains(&package.name);
        if package.repository != stream.repository
            || !newest_only && !stream.packages.contains(&package.name)
        {
            continue;
        }
        let mut versions = package.versions_in(number, release)?;
        versions.retain(|version| upstream(version).split('.').next() == Some(&stream.branch));
        if newest_only {
            versions.drain(..versions.len().saturating_sub(1));
        }
        for version in versions {
            let full = match version.contains(':') {
                true => version,
                false => format!("0:{version}"),
            };
            let architecture = if package.noarch { "noarch" } else { "x86_64" };
            artifacts.push(format!("{}-{full}.{architecture}", package.name));
        }
    }
    Ok(artifacts)
}

fn sign(dir: &Path, gpg: &Gpg, work: &Path, signer: &str, path: &str) -> Result<()> {
    let mut cmd = gpg
        .bash(SIGN)
        .env("ROOT", dir.join("www").join(path).to_string_lossy())
        .env("WORK", work.to_string_lossy())
        .env("NAME", owner(signer))
        .env("STRANGER", owner(STRANGER))
        .deadline(Duration::from_secs(900));
    for (variable, kind) in [
        ("WRONG_KEY", WRONG_KEY),
        ("HALF_SYNCED", HALF_SYNCED),
        ("UNSIGNED", UNSIGNED),
    ] {
        let fault = dir.join("faults").join(kind).join(path);
        fs::create_dir_all(&fault).context("cannot create a directory")?;
        cmd = cmd.env(variable, fault.to_string_lossy());
    }
    cmd.ok()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_contains_only_packages_of_its_branch() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpms");
        let table = Rpms::load(&path).unwrap();
        let text = modules(&table, "9", "nvidia").unwrap();
        let open = text.split("stream: 580-open\n").nth(1).unwrap();
        let open = open.split("...").next().unwrap();
        assert!(open.contains("    - nvidia-driver-cuda-3:580.178.04-1.el9.x86_64\n"));
        assert!(open.contains("    - nvidia-driver-cuda-3:580.173.02-1.el9.x86_64\n"));
        assert!(open.contains("    - kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch\n"));
        assert!(
            !open.contains("kmod-nvidia-open-dkms-3:580.173.02"),
            "{open}"
        );
        assert!(
            !open.contains("595") && !open.contains("latest-dkms"),
            "{open}"
        );
    }
}
