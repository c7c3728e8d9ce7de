//! The directory `rpms`: the simulated AlmaLinux releases, the repositories that the harness serves to them, and the
//! fake packages in these.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cases::fill;
use crate::repo::table::{Dkms, File, Modules, Place};

/// Placeholder for the kernel series in the name of a kernel package.
const SERIES: &str = "{{series}}";

/// The series of Amazon Linux 2023 whose packages have the usual names.
const FIRST: &str = "6.1";

/// The whole table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rpms {
    /// By release number.
    #[serde(default)]
    pub releases: BTreeMap<String, Release>,
    #[serde(default)]
    pub repositories: BTreeMap<String, Repository>,
    /// Names of packages that each machine has from the start, without files, because Debian provides the programs.
    #[serde(default)]
    pub system: Vec<Named>,
    #[serde(default, rename = "package")]
    pub packages: Vec<Package>,
    #[serde(default, rename = "stream")]
    pub streams: Vec<Stream>,
}

/// A release of AlmaLinux.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Release {
    /// With its minor number.
    pub version: String,
    pub codename: String,
    /// Suffix of the package versions.
    pub dist: String,
    /// Version and release of its kernels, from the oldest; machines have the first.
    #[serde(default)]
    pub kernels: Vec<String>,
    /// The same by series, if kernel packages have the series in their names.
    #[serde(default)]
    pub series: BTreeMap<String, Vec<String>>,
    /// The directory of the rpm database.
    pub database: String,
    /// The ID of the repository called CRB on AlmaLinux 9.
    #[serde(default)]
    pub crb: String,
    /// The repository of the base system.
    pub base: String,
    /// The platform of module streams.
    pub platform: String,
    /// Release name in the URLs of NVIDIA's repositories.
    pub cuda: String,
    /// The file of the distribution's key below `/etc/pki/rpm-gpg`.
    pub key: String,
    /// The file of the key that signs NVIDIA's repository.
    pub cuda_key: String,
    /// Whether its repositories have module streams.
    pub streams: bool,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    _source: String,
}

/// A repository. Texts may contain the values of a release.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Repository {
    /// The host name in its URL.
    pub host: String,
    /// Its path on the server.
    pub path: String,
    /// The path of its public key on the server.
    pub key: Option<String>,
    /// The repository whose key signs it, if not its own.
    pub key_of: Option<String>,
    /// The releases that have it; all if empty.
    #[serde(default)]
    pub releases: Vec<String>,
    /// Its ID in the machine's `/etc/yum.repos.d`, if it is configured from the start.
    pub id: Option<String>,
    /// Whether it is enabled there.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Vendor tag of its packages.
    pub vendor: String,
    pub packager: String,
    #[serde(rename = "source")]
    _source: String,
}

/// A package without files.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub name: String,
    #[serde(default = "zero")]
    pub version: String,
    #[serde(default)]
    pub provides: Vec<String>,
}

/// A fake package, in one or more versions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    pub repository: String,
    pub name: String,
    /// `EPOCH:VERSION-RELEASE`, the epoch if there is one.
    #[serde(default)]
    pub versions: Vec<String>,
    /// Its versions do not have the release's `dist` suffix.
    #[serde(default)]
    pub without_dist: bool,
    /// Its versions are the kernel versions.
    #[serde(default)]
    pub of_kernel: bool,
    /// Its kernel series, set by [`Rpms::load`] for a name with `{{series}}`.
    #[serde(skip)]
    pub series: Option<String>,
    /// The releases that have it; all if empty.
    #[serde(default)]
    pub releases: Vec<String>,
    #[serde(default)]
    pub noarch: bool,
    /// Installed on machines from the start.
    #[serde(default)]
    pub installed: bool,
    #[serde(default)]
    pub requires: Vec<String>,
    #[serde(default)]
    pub recommends: Vec<String>,
    #[serde(default)]
    pub provides: Vec<String>,
    #[serde(default)]
    pub conflicts: Vec<String>,
    #[serde(default)]
    pub obsoletes: Vec<String>,
    /// Files of `files` that are marked as configuration.
    #[serde(default)]
    pub config: Vec<String>,
    /// Names of libraries: each becomes an empty shared object with the driver version.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Units for which the scripts follow the presets, like the systemd macros.
    #[serde(default)]
    pub units: Vec<String>,
    /// Modules that DKMS builds.
    pub dkms: Option<Dkms>,
    /// Modules that it contains.
    pub modules: Option<Modules>,
    /// Additional script actions, by their names in a spec file.
    #[serde(default)]
    pub scripts: BTreeMap<String, String>,
    /// Files by their path.
    #[serde(default)]
    pub files: BTreeMap<String, File>,
    /// Symbolic links: path = target.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
    /// Real files of Debian's packages: path here = path there.
    #[serde(default)]
    pub from_debian: BTreeMap<String, String>,
    /// Compiled programs: path here = name there.
    #[serde(default)]
    pub from_programs: BTreeMap<String, String>,
    /// The package of NVIDIA's container toolkit, built by `toolkit.rs`, whose files it contains.
    pub from_toolkit: Option<String>,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    _source: String,
}

/// A module stream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    pub repository: String,
    pub module: String,
    pub stream: String,
    /// The driver branch of its packages.
    pub branch: String,
    /// Packages that it contains in all versions of the branch.
    pub packages: Vec<String>,
    /// Packages that it contains only in the newest version.
    pub newest: Vec<String>,
    #[serde(rename = "source")]
    _source: String,
}

/// A series as it appears in package names: empty for the first one.
fn in_names(series: &str) -> &str {
    match series {
        FIRST => "",
        other => other,
    }
}

/// Whether a list of releases contains this one; an empty list contains all.
fn includes(releases: &[String], number: &str) -> bool {
    releases.is_empty() || releases.iter().any(|one| one == number)
}

fn yes() -> bool {
    true
}

fn zero() -> String {
    "0-1".into()
}

impl Rpms {
    /// Reads and checks the table. Each file of the directory contains a part.
    pub fn load(directory: &Path) -> Result<Rpms> {
        let mut table = Rpms::default();
        for name in [
            "almalinux.toml",
            "amazon.toml",
            "vendors.toml",
            "modules.toml",
        ] {
            let path = directory.join(name);
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let part: Rpms = toml::from_str(&text)
                .with_context(|| format!("{} is not valid", path.display()))?;
            table.releases.extend(part.releases);
            table.repositories.extend(part.repositories);
            table.system.extend(part.system);
            table.packages.extend(part.packages);
            table.streams.extend(part.streams);
        }
        table.packages = (table.packages.iter())
            .flat_map(|package| package.of_each_series(&table.releases))
            .collect();
        for (number, release) in &table.releases {
            let system = table.system.iter().map(|one| one.package(number, release));
            table.packages.extend(system);
        }
        for (name, repository) in &table.repositories {
            let owner = repository.key_of.as_ref();
            if repository.key.is_some() == owner.is_some()
                || owner.is_some_and(|owner| !table.repositories.contains_key(owner))
            {
                bail!("repository `{name}` needs `key`, or `key-of` another repository");
            }
        }
        for package in &table.packages {
            package
                .check(&table)
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        Ok(table)
    }

    /// The table of the Kubernetes packages, for the releases of this one.
    pub fn of_kubernetes(&self, directory: &Path) -> Result<Rpms> {
        let path = directory.join("kubernetes.toml");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut table: Rpms =
            toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))?;
        table.releases = self.releases.clone();
        for package in &table.packages {
            (package.check(&table))
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        Ok(table)
    }

    /// A release by its number.
    pub fn release(&self, number: &str) -> Result<&Release> {
        self.releases
            .get(number)
            .with_context(|| format!("the directory rpms has no release `{number}`"))
    }

    /// Text that changes whenever the contents of a release's repositories change.
    pub fn told_of(&self, number: &str) -> Result<String> {
        let repositories: Vec<_> = (self.repositories.iter())
            .filter(|(_, one)| includes(&one.releases, number))
            .collect();
        let packages: Vec<_> = self.packages_of(number).collect();
        let (release, streams) = (self.release(number)?, &self.streams);
        Ok(format!(
            "{release:?} {repositories:?} {packages:?} {streams:?}"
        ))
    }

    /// The packages of a release.
    pub fn packages_of<'a>(&'a self, number: &'a str) -> impl Iterator<Item = &'a Package> {
        (self.packages.iter()).filter(move |package| {
            let repository = self.repositories.get(&package.repository);
            includes(&package.releases, number)
                && repository.is_none_or(|one| includes(&one.releases, number))
        })
    }

    /// The repositories of a release, with their templates filled.
    pub fn places(&self, number: &str) -> Result<BTreeMap<String, Place>> {
        let values = self.release(number)?.values(number);
        let filled = |(name, repository): (&String, &Repository)| {
            let owner = match &repository.key_of {
                Some(owner) => &self.repositories[owner],
                None => repository,
            };
            let place = Place {
                host: repository.host.clone(),
                path: fill(&repository.path, &values)?,
                key: fill(owner.key.as_deref().unwrap_or_default(), &values)?,
                suites: Vec::new(),
                components: Vec::new(),
                origin: String::new(),
                label: String::new(),
                _source: String::new(),
            };
            anyhow::Ok((name.clone(), place))
        };
        (self.repositories.iter())
            .filter(|(_, repository)| includes(&repository.releases, number))
            .map(filled)
            .collect()
    }
}

impl Release {
    /// Values for templates.
    pub fn values(&self, number: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("release", number.to_string()),
            ("release-version", self.version.clone()),
            ("codename", self.codename.clone()),
            ("dist", self.dist.clone()),
            ("crb", self.crb.clone()),
            ("cuda", self.cuda.clone()),
            ("platform", self.platform.clone()),
            ("cuda-key", self.cuda_key.clone()),
        ])
    }
}

impl Named {
    fn package(&self, number: &str, release: &Release) -> Package {
        Package {
            repository: release.base.clone(),
            releases: vec![number.to_string()],
            name: self.name.clone(),
            versions: vec![self.version.clone()],
            installed: true,
            provides: self.provides.clone(),
            ..Package::default()
        }
    }
}

impl Package {
    /// Itself, or one package for each kernel series if its name contains the placeholder.
    fn of_each_series(&self, releases: &BTreeMap<String, Release>) -> Vec<Package> {
        if !self.name.contains(SERIES) {
            return vec![self.clone()];
        }
        let all = self.releases.iter().filter_map(|one| releases.get(one));
        all.flat_map(|release| release.series.keys())
            .map(|series| Package {
                name: self.name.replace(SERIES, in_names(series)),
                series: Some(series.clone()),
                ..self.clone()
            })
            .collect()
    }

    fn check(&self, table: &Rpms) -> Result<()> {
        let named = self.files.values().filter_map(|file| file.key_of.as_ref());
        for name in named.chain([&self.repository]) {
            if !table.repositories.contains_key(name) {
                bail!("repository `{name}` does not exist");
            }
        }
        for file in self.files.values() {
            if file.text.is_some() == file.key_of.is_some() {
                bail!("a file needs one of `text` and `key-of`");
            }
        }
        if self.versions.is_empty() != self.of_kernel {
            bail!("it needs one of `versions` and `of-kernel`");
        }
        if let Some(number) = (self.releases.iter()).find(|one| !table.releases.contains_key(*one))
        {
            bail!("release `{number}` does not exist");
        }
        Ok(())
    }

    /// Its versions in a release, from the oldest.
    pub fn versions_in(&self, number: &str, release: &Release) -> Result<Vec<String>> {
        if self.of_kernel {
            let series = self
                .series
                .as_ref()
                .map(|series| release.series.get(series));
            let kernels = series.unwrap_or(Some(&release.kernels));
            return Ok(kernels.cloned().unwrap_or_default());
        }
        let values = release.values(number);
        let dist = match self.without_dist {
            true => "",
            false => &release.dist,
        };
        (self.versions.iter())
            .map(|version| Ok(format!("{}{dist}", fill(version, &values)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_table_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpms");
        let table = Rpms::load(&path).unwrap();
        for (number, release) in &table.releases {
            // A newer kernel must be in the repository, so that keeping the old one has an effect.
            let kernels = (table.packages_of(number))
                .filter(|one| one.of_kernel && one.installed && one.repository == release.base);
            for kernel in kernels {
                let versions = kernel.versions_in(number, release).unwrap();
                assert!(versions.len() > 1, "{number} {}", kernel.name);
            }
            let places = table.places(number).unwrap();
            assert!(places["nvidia"].path.ends_with("/x86_64"), "{number}");
            assert!(places.contains_key(&release.base), "{number}");
        }
        for stream in &table.streams {
            for name in stream.packages.iter().chain(&stream.newest) {
                let known = table.packages.iter().any(|package| &package.name == name);
                assert!(known, "{}:{} names {name}", stream.module, stream.stream);
            }
        }
    }
    /// With the names from awslabs/amazon-eks-ami.
    #[test]
    fn kernel_package_names_contain_series() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpms");
        let table = Rpms::load(&path).unwrap();
        let release = table.release("2023").unwrap();
        for (name, series) in [
            ("kernel-devel", "6.1"),
            ("kernel6.12-devel", "6.12"),
            ("kernel6.18-devel", "6.18"),
        ] {
            let package = (table.packages_of("2023")).find(|one| one.name == name);
            let versions = package.unwrap().versions_in("2023", release).unwrap();
            assert!(
                versions[0].starts_with(&format!("{series}.")),
                "{versions:?}"
            );
        }
        assert!((table.packages_of("9")).all(|one| one.series.is_none()));
    }
}
