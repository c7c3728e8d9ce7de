//! The tables of repositories that the harness serves, and of the fake packages in them: `packages.toml` and the tables
//! of Ubuntu for apt, the directory `rpms` for the simulated AlmaLinux and Amazon Linux releases.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::contents::Format;
use crate::cases::fill;

/// Placeholder for the kernel series in the name of a kernel package.
const SERIES: &str = "{{series}}";

/// The series of Amazon Linux 2023 whose packages have the usual names.
const FIRST: &str = "6.1";

/// The tables in the directory `rpms` that all releases share.
const RPMS: [&str; 4] = [
    "almalinux.toml",
    "amazon.toml",
    "vendors.toml",
    "modules.toml",
];

/// The whole table: for apt, or for one release with dnf.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Table {
    pub repositories: BTreeMap<String, Place>,
    /// After [`Table::load`], packages of kernels are expanded to packages of each kernel.
    #[serde(rename = "package")]
    pub packages: Vec<Package>,
    #[serde(rename = "kernel")]
    kernels: Vec<Kernel>,
    /// Names of packages that each machine has from the start, without files, because Debian provides the programs.
    system: Vec<Package>,
    #[serde(rename = "stream")]
    pub streams: Vec<Stream>,
    /// The release whose packages these are. `None` for apt.
    #[serde(skip)]
    pub release: Option<Release>,
    #[serde(skip)]
    pub format: Format,
}

/// A release of AlmaLinux or Amazon Linux.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    #[serde(skip)]
    pub number: String,
    /// The numbers of all releases.
    #[serde(skip)]
    all: Vec<String>,
    /// The repository of the base system.
    pub base: String,
    /// The platform of module streams.
    pub platform: String,
    /// Suffix of the package versions.
    dist: String,
    /// Version and release of its kernels by series, from the oldest; machines have the first. The series is empty if
    /// there is only one.
    kernels: BTreeMap<String, Vec<String>>,
    /// The directory of the rpm database.
    pub database: String,
    /// The file of the distribution's key below `/etc/pki/rpm-gpg`.
    pub key: String,
    /// Whether its repositories have module streams.
    pub streams: bool,
    /// Values for templates.
    pub values: BTreeMap<String, String>,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    _source: String,
}

/// A repository: its URL and its layout. Texts may contain the values of a release.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Place {
    /// The host name in its URL.
    pub host: String,
    /// Its path on the server.
    pub path: String,
    /// The path of its public key on the server. After [`Table::load`], of the key that signs it.
    pub key: String,
    /// The repository whose key signs it, if not its own.
    pub key_of: Option<String>,
    /// For apt. With suites and components: the layout of Debian's archive. Without: flat.
    pub suites: Vec<String>,
    pub components: Vec<String>,
    pub origin: String,
    pub label: String,
    /// The releases that have it; all if empty.
    pub releases: Vec<String>,
    /// Its ID in the machine's `/etc/yum.repos.d`, if it is configured from the start.
    pub id: Option<String>,
    /// Whether it is disabled there.
    pub disabled: bool,
    /// Vendor tag of its rpm packages.
    pub vendor: String,
    pub packager: String,
    /// Source of these facts, for readers of the table.
    source: String,
}

/// A fake package, in one or more versions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    pub repository: String,
    /// Its suite and component [default: the first ones of the repository].
    pub suite: Option<String>,
    pub component: Option<String>,
    /// May contain `{{branch}}` and `{{upstream}}` in a table for apt.
    pub name: String,
    /// `EPOCH:VERSION-REVISION`, the epoch if there is one, from the oldest.
    pub versions: Vec<String>,
    /// Its versions in other repositories, which have it too.
    pub also: BTreeMap<String, Vec<String>>,
    /// If set, it expands to a package of each kernel of the archive.
    pub of: Option<Of>,
    /// Its versions are the kernel versions of the release.
    pub of_kernel: bool,
    /// Its versions do not have the release's `dist` suffix.
    pub without_dist: bool,
    /// The releases that have it; all if empty.
    pub releases: Vec<String>,
    /// It is for all architectures.
    pub noarch: bool,
    /// Installed on machines from the start.
    pub installed: bool,
    pub pre_depends: Vec<String>,
    pub depends: Vec<String>,
    pub recommends: Vec<String>,
    pub provides: Vec<String>,
    pub conflicts: Vec<String>,
    pub breaks: Vec<String>,
    /// `Replaces`, in an rpm package `Obsoletes`.
    pub replaces: Vec<String>,
    /// Paths of files that are marked as configuration, without the first slash.
    pub config: Vec<String>,
    /// Names of libraries: each becomes an empty shared object with the driver version.
    pub libraries: Vec<String>,
    /// Units that the scripts enable and start, like debhelper, or for which they follow the presets, like the systemd
    /// macros of rpm.
    pub units: Vec<String>,
    /// Modules that DKMS builds.
    pub dkms: Option<Dkms>,
    /// Modules that it contains.
    pub modules: Option<Modules>,
    /// Parts of scripts, by the names of dpkg or of a spec file, that run before the generated ones.
    pub scripts: BTreeMap<String, String>,
    /// Files by their path.
    pub files: BTreeMap<String, File>,
    /// Real files of Debian packages: path here = path there.
    pub from_debian: BTreeMap<String, String>,
    /// Programs that the harness compiles from their Go modules, or the files of `real.rs`: path here = name there.
    pub from_programs: BTreeMap<String, String>,
    /// The package of NVIDIA's container toolkit, built by `toolkit.rs`, whose files it contains.
    pub from_toolkit: Option<String>,
    /// Links: path = target.
    pub links: BTreeMap<String, String>,
    /// Source of these facts, for readers of the table.
    source: String,
    /// The kernel of an older image, for its packages: they were removed from all repositories.
    #[serde(skip)]
    pub gone: Option<String>,
    /// Its kernel series, if the release has several.
    #[serde(skip)]
    pub series: String,
    /// Template values of its kernel.
    #[serde(skip)]
    pub values: BTreeMap<&'static str, String>,
}

/// The part of an archive kernel that a package contains.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// Its image and its modules.
    Image,
    /// Its headers.
    Headers,
    /// The driver's modules for it.
    Driver,
    /// Files that are shared by all driver modules for it.
    Signatures,
    /// The metapackages of each series whose newest kernel it is.
    Series,
    /// The metapackages for the driver modules.
    DriverSeries,
}

/// A kernel of an archive, which expands to its packages.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Kernel {
    /// `6.8.0-1059-aws`.
    release: String,
    /// Of all its packages.
    version: String,
    /// Without a suite the archive has no package of it, as for the kernel of an older image.
    suite: Option<String>,
    /// Its packages that are missing in the archive, or were removed.
    without: Vec<Of>,
    /// The driver's modules: `580-server-open` = the driver's version.
    drivers: BTreeMap<String, String>,
    /// The series whose newest kernel it is, or was when the image was built: `aws-6.8`.
    newest_of: Vec<String>,
}

/// Compiled modules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modules {
    /// The directory.
    pub at: String,
    pub licence: String,
    pub version: String,
    pub names: Vec<String>,
}

/// Modules that DKMS builds on the machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dkms {
    /// The name of the module in DKMS.
    pub name: String,
    pub licence: String,
    pub modules: Vec<String>,
}

/// The content of a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    pub text: Option<String>,
    /// The public key of this repository: binary for apt, armored for rpm.
    pub key_of: Option<String>,
    pub mode: Option<String>,
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

/// Reads one table from several files.
fn read<T: DeserializeOwned>(files: &[PathBuf]) -> Result<T> {
    let mut text = String::new();
    for path in files {
        text +=
            &fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        text.push('\n');
    }
    toml::from_str(&text).with_context(|| format!("{files:?} is not valid"))
}

/// Whether a list of releases contains this one; an empty list contains all.
fn includes(releases: &[String], number: &str) -> bool {
    releases.is_empty() || releases.iter().any(|one| one == number)
}

impl Table {
    /// Reads and checks a table for apt or, with a release, for dnf.
    pub fn load(files: &[PathBuf], release: Option<&Release>) -> Result<Table> {
        let mut table: Table = read(files)?;
        let (of_kernels, mut all): (Vec<Package>, Vec<Package>) =
            (table.packages.into_iter()).partition(|package| package.of.is_some());
        if table.kernels.is_empty() && !of_kernels.is_empty() {
            bail!("{files:?} has packages `of` kernels, and no `[[kernel]]`");
        }
        for kernel in &table.kernels {
            if kernel.release.is_empty() || kernel.version.is_empty() {
                bail!("{files:?} is not valid: `[[kernel]]` needs `release` and `version`");
            }
            for package in &of_kernels {
                all.extend(kernel.packages(package));
            }
        }
        table.packages = all.iter().flat_map(Package::everywhere).collect();
        table.release = release.cloned();
        table.format = Format::of(release.is_some())?;
        for (name, place) in &table.repositories {
            (place.check(&table)).with_context(|| format!("repository `{name}` is not valid"))?;
        }
        for package in &table.packages {
            (package.check(&table))
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        for package in &table.system {
            (table.knows(&package.releases))
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        if let Some(release) = release {
            table.limit(release)?;
        }
        Ok(table)
    }

    /// Rejects `releases` with an unknown number.
    fn knows(&self, releases: &[String]) -> Result<()> {
        let all = self.release.as_ref().map_or(&[][..], |one| &one.all);
        match releases.iter().find(|number| !all.contains(number)) {
            Some(number) => bail!("no release is called `{number}`"),
            None => Ok(()),
        }
    }

    /// The table of a release in the directory `rpms`.
    pub fn of_rpms(directory: &Path, number: &str) -> Result<Table> {
        let mut releases: BTreeMap<String, Release> = read(&[directory.join("releases.toml")])?;
        let all = releases.keys().cloned().collect();
        let mut release = (releases.remove(number))
            .with_context(|| format!("the directory rpms has no release `{number}`"))?;
        release.all = all;
        release.number = number.into();
        release.values.insert("release".into(), number.into());
        Table::load(&RPMS.map(|name| directory.join(name)), Some(&release))
    }

    /// Keeps the repositories and packages of a release, with their names and versions there.
    fn limit(&mut self, release: &Release) -> Result<()> {
        let values = &release.values;
        let owners = self.repositories.clone();
        (self.repositories).retain(|_, place| includes(&place.releases, &release.number));
        for place in self.repositories.values_mut() {
            let owner = place.key_of.as_ref().map(|owner| &owners[owner].key);
            place.path = fill(&place.path, values)?;
            place.key = fill(owner.unwrap_or(&place.key), values)?;
            place.id = (place.id.as_ref()).map(|id| fill(id, values)).transpose()?;
        }
        let mut found = Vec::new();
        let system = self.system.drain(..).map(|mut package| {
            if package.versions.is_empty() {
                package.versions = vec!["0-1".into()];
            }
            (package.repository, package.installed) = (release.base.clone(), true);
            package
        });
        for mut package in self.packages.drain(..).chain(system) {
            if !includes(&package.releases, &release.number)
                || !self.repositories.contains_key(&package.repository)
            {
                continue;
            }
            let dist = if package.without_dist {
                ""
            } else {
                &release.dist
            };
            for version in &mut package.versions {
                *version = fill(version, values)? + dist;
            }
            if !package.of_kernel {
                found.push(package);
                continue;
            }
            found.extend(release.kernels.iter().map(|(series, kernels)| {
                let in_names = if series == FIRST { "" } else { series };
                Package {
                    name: package.name.replace(SERIES, in_names),
                    series: series.clone(),
                    versions: kernels.clone(),
                    ..package.clone()
                }
            }));
        }
        self.packages = found;
        Ok(())
    }
}

impl Package {
    /// Itself, and the same in other repositories.
    fn everywhere(&self) -> Vec<Package> {
        let also = self.also.iter().map(|(repository, versions)| Package {
            repository: repository.clone(),
            versions: versions.clone(),
            ..self.clone()
        });
        [self.clone()].into_iter().chain(also).collect()
    }

    fn check(&self, table: &Table) -> Result<()> {
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
        if self.name.is_empty() || self.source.is_empty() {
            bail!("it needs `name` and `source`");
        }
        if let Some(path) = self.config.iter().find(|path| path.starts_with('/')) {
            bail!("`config`: write `{path}` without the first slash");
        }
        if self.versions.is_empty() != self.of_kernel {
            bail!("it needs one of `versions` and `of-kernel`");
        }
        let place = &table.repositories[&self.repository];
        for (own, all) in [
            (&self.suite, &place.suites),
            (&self.component, &place.components),
        ] {
            if let Some(own) = own
                && !all.contains(own)
            {
                bail!("its repository has no `{own}`");
            }
        }
        let only_rpm = self.of_kernel
            || self.without_dist
            || self.installed
            || !self.releases.is_empty()
            || self.from_toolkit.is_some();
        let only_deb = !self.pre_depends.is_empty() || !self.breaks.is_empty();
        if (only_rpm && table.release.is_none()) || (only_deb && table.release.is_some()) {
            bail!("a key is only for the other package format");
        }
        table.knows(&self.releases)?;
        match (self.scripts.keys()).find(|name| !table.format.scripts.contains(name)) {
            Some(name) => bail!("no script is called `{name}`"),
            None => Ok(()),
        }
    }

    /// The file of a version as rpm.
    pub fn rpm(&self, version: &str) -> String {
        let rest = version.split_once(':').map_or(version, |(_, rest)| rest);
        format!("{}-{rest}.{}.rpm", self.name, self.rpm_architecture())
    }

    /// Its architecture for rpm.
    pub fn rpm_architecture(&self) -> &'static str {
        if self.noarch { "noarch" } else { "x86_64" }
    }

    /// The names of its relations in a control file, and the related packages.
    pub fn relations(&self) -> [(&'static str, &Vec<String>); 7] {
        [
            ("Pre-Depends", &self.pre_depends),
            ("Depends", &self.depends),
            ("Recommends", &self.recommends),
            ("Provides", &self.provides),
            ("Conflicts", &self.conflicts),
            ("Breaks", &self.breaks),
            ("Replaces", &self.replaces),
        ]
    }
}

impl Kernel {
    /// The packages of a template for this kernel: none, one, or one for each driver or series.
    fn packages(&self, template: &Package) -> Vec<Package> {
        let Some(of) = template.of.filter(|of| !self.without.contains(of)) else {
            return Vec::new();
        };
        let drivers: Vec<_> = match of {
            Of::Driver | Of::DriverSeries => self.drivers.iter().map(Some).collect(),
            Of::Signatures if self.drivers.is_empty() => Vec::new(),
            _ => vec![None],
        };
        let series: Vec<_> = match of {
            Of::Series | Of::DriverSeries => self.newest_of.iter().map(Some).collect(),
            _ => vec![None],
        };
        let mut found = Vec::new();
        for driver in &drivers {
            for series in &series {
                let mut values = BTreeMap::from([("kernel", self.release.clone())]);
                if let Some((driver, version)) = driver {
                    let server = driver.trim_end_matches("-open");
                    let open = server != driver.as_str();
                    values.extend([
                        ("driver", (*driver).clone()),
                        ("driver-version", (*version).clone()),
                        ("server", server.into()),
                        (
                            "licence",
                            if open { "Dual MIT/GPL" } else { "NVIDIA" }.into(),
                        ),
                    ]);
                }
                values.extend(series.map(|series| ("series", series.clone())));
                found.push(Package {
                    versions: vec![self.version.clone()],
                    suite: self.suite.clone(),
                    gone: self.suite.is_none().then(|| self.release.clone()),
                    of: None,
                    values,
                    ..template.clone()
                });
            }
        }
        found
    }
}

impl Place {
    fn check(&self, table: &Table) -> Result<()> {
        if [&self.host, &self.path, &self.source].contains(&&String::new()) {
            bail!("it needs `host`, `path` and `source`");
        }
        if table.release.is_some() && [&self.vendor, &self.packager].contains(&&String::new()) {
            bail!("it needs `vendor` and `packager`");
        }
        table.knows(&self.releases)?;
        let owner = self.key_of.as_ref();
        if self.key.is_empty() != owner.is_some()
            || owner.is_some_and(|owner| !table.repositories.contains_key(owner))
        {
            bail!("it needs `key`, or `key-of` another repository");
        }
        Ok(())
    }

    /// The directories of packages, below its path.
    pub fn pools(&self) -> Vec<String> {
        let of = |suite: &String| -> Vec<String> {
            (self.components.iter())
                .map(|component| format!("dists/{suite}/pool/{component}/amd64"))
                .collect()
        };
        match self.suites.is_empty() {
            true => vec![".".into()],
            false => self.suites.iter().flat_map(of).collect(),
        }
    }

    /// The directory of a package, below its path.
    pub fn pool(&self, package: &Package) -> String {
        let suite = package.suite.as_ref().or(self.suites.first());
        match (
            suite,
            package.component.as_ref().or(self.components.first()),
        ) {
            (Some(suite), Some(component)) => format!("dists/{suite}/pool/{component}/amd64"),
            _ => ".".into(),
        }
    }
}

/// The version without epoch and revision.
pub fn upstream(version: &str) -> &str {
    let plain = version.split_once(':').map_or(version, |(_, rest)| rest);
    plain.rsplit_once('-').map_or(plain, |(left, _)| left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the harness.
    fn here() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn apt_table_is_valid() {
        let table = Table::load(&[here().join("packages.toml")], None).unwrap();
        // The newest branch must be in the repository, so that a pin has an effect.
        let driver = (table.packages.iter()).find(|one| one.name == "nvidia-driver-cuda");
        assert!(driver.unwrap().versions.len() > 2);
    }

    #[test]
    fn rpm_table_is_valid() {
        for number in ["8", "9", "10", "2023"] {
            let table = Table::of_rpms(&here().join("rpms"), number).unwrap();
            let base = &table.release.as_ref().unwrap().base;
            // A newer kernel must be in the repository, so that keeping the old one has an effect.
            let kernels = (table.packages.iter())
                .filter(|one| one.of_kernel && one.installed && one.repository == *base);
            for kernel in kernels {
                assert!(kernel.versions.len() > 1, "{number} {}", kernel.name);
            }
            assert!(
                table.repositories["nvidia"].path.ends_with("/x86_64"),
                "{number}"
            );
            assert!(table.repositories.contains_key(base), "{number}");
            for stream in &table.streams {
                for name in stream.packages.iter().chain(&stream.newest) {
                    let known = table.packages.iter().any(|package| &package.name == name);
                    assert!(known, "{}:{} names {name}", stream.module, stream.stream);
                }
            }
        }
    }

    /// With the names from awslabs/amazon-eks-ami.
    #[test]
    fn kernel_package_names_contain_series() {
        let table = Table::of_rpms(&here().join("rpms"), "2023").unwrap();
        for (name, series) in [
            ("kernel-devel", "6.1"),
            ("kernel6.12-devel", "6.12"),
            ("kernel6.18-devel", "6.18"),
        ] {
            let package = (table.packages.iter())
                .find(|one| one.name == name)
                .unwrap();
            assert!(
                package.versions[0].starts_with(&format!("{series}.")),
                "{package:?}"
            );
        }
    }

    #[test]
    fn ubuntu_kernel_expands_to_packages() {
        let files = ["ubuntu.toml", "ubuntu-nvidia.toml"].map(|name| here().join(name));
        let table = Table::load(&files, None).unwrap();
        let of = |kernel: &str| -> Vec<&Package> {
            (table.packages.iter())
                .filter(|one| one.values.get("kernel").is_some_and(|of| of == kernel))
                .collect()
        };
        let names = |kernel: &str| -> Vec<String> {
            let named = |one: &Package| fill(&one.name, &one.values).unwrap();
            of(kernel).into_iter().map(named).collect()
        };
        let newest = names("6.8.0-1060-aws");
        for name in [
            "linux-image-6.8.0-1060-aws",
            "linux-headers-6.8.0-1060-aws",
            "linux-image-aws-6.8",
            "linux-modules-nvidia-580-server-open-6.8.0-1060-aws",
            "linux-modules-nvidia-580-server-open-aws-6.8",
        ] {
            assert!(newest.iter().any(|one| one == name), "{name}: {newest:?}");
        }
        // The kernel of an old image: it is in no repository.
        let gone = |kernel: &str| of(kernel).iter().all(|one| one.gone.is_some());
        assert!(gone("6.8.0-1044-aws") && !gone("6.8.0-1060-aws"));
        assert!(
            !names("6.8.0-1044-aws")
                .iter()
                .any(|name| name.contains("nvidia"))
        );
    }

    /// Returns the error of a table with a repository and this text.
    fn error(text: &str, release: Option<&Release>) -> String {
        let place = "[repositories.one]\nhost = \"h\"\npath = \"p\"\nkey = \"k\"\nsource = \"s\"\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("table.toml");
        fs::write(&file, format!("{place}{text}")).unwrap();
        format!("{:#}", Table::load(&[file], release).unwrap_err())
    }

    /// The beginning of a valid package.
    const PACKAGE: &str =
        "[[package]]\nrepository = \"one\"\nname = \"n\"\nversions = [\"1\"]\nsource = \"s\"\n";

    #[test]
    fn absolute_path_of_configuration_is_rejected() {
        let said = error(&format!("{PACKAGE}config = [\"/etc/a\"]"), None);
        assert!(said.contains("`/etc/a` without the first slash"), "{said}");
    }

    #[test]
    fn kernel_without_release_or_version_is_rejected() {
        for key in ["release", "version"] {
            let said = error(&format!("[[kernel]]\n{key} = \"1\""), None);
            assert!(said.contains("needs `release` and `version`"), "{said}");
        }
    }

    #[test]
    fn incomplete_rpm_table_is_rejected() {
        let release = Table::of_rpms(&here().join("rpms"), "9").unwrap().release;
        let said = error("", release.as_ref());
        assert!(said.contains("needs `vendor` and `packager`"), "{said}");
        let text = format!("vendor = \"v\"\npackager = \"p\"\n{PACKAGE}releases = [\"9\", \"11\"]");
        let said = error(&text, release.as_ref());
        assert!(said.contains("no release is called `11`"), "{said}");
    }

    #[test]
    fn upstream_version_is_extracted() {
        assert_eq!(upstream("5:20.10.24-1~debian.12~bookworm"), "20.10.24");
        assert_eq!(upstream("580.178.04-1"), "580.178.04");
    }
}
