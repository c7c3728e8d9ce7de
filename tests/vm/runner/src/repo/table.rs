//! `packages.toml`: the repositories that the harness serves, and the fake packages in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    pub repositories: BTreeMap<String, Place>,
    /// After [`Packages::load`], packages `of` kernels are expanded to packages of each kernel.
    #[serde(rename = "package")]
    pub packages: Vec<Package>,
    #[serde(rename = "kernel", default)]
    kernels: Vec<Kernel>,
}

/// A repository: its URL and its layout.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Place {
    /// The host name in its URL.
    pub host: String,
    /// Its path on the server.
    pub path: String,
    /// The path of its public key on the server.
    pub key: String,
    /// With suites and components: the layout of Debian's archive. Without: flat.
    #[serde(default)]
    pub suites: Vec<String>,
    #[serde(default)]
    pub components: Vec<String>,
    pub origin: String,
    pub label: String,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    pub _source: String,
}

/// A fake package, in one or more versions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    pub repository: String,
    /// Its suite and component [default: the first ones of the repository].
    pub suite: Option<String>,
    pub component: Option<String>,
    /// May contain `{{branch}}` and `{{upstream}}`.
    pub name: String,
    #[serde(default)]
    pub versions: Vec<String>,
    /// If set, it expands to a package of each kernel.
    pub of: Option<Of>,
    #[serde(default = "amd64")]
    pub architecture: String,
    #[serde(default)]
    pub pre_depends: Vec<String>,
    #[serde(default)]
    pub depends: Vec<String>,
    #[serde(default)]
    pub recommends: Vec<String>,
    #[serde(default)]
    pub provides: Vec<String>,
    #[serde(default)]
    pub conflicts: Vec<String>,
    #[serde(default)]
    pub breaks: Vec<String>,
    #[serde(default)]
    pub replaces: Vec<String>,
    /// Files of `files` that are conffiles.
    #[serde(default)]
    pub conffiles: Vec<String>,
    /// Names of libraries: each becomes an empty shared object with the driver version.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Units that the scripts enable and start, like the debhelper scripts.
    #[serde(default)]
    pub units: Vec<String>,
    /// Modules that DKMS builds.
    pub dkms: Option<Dkms>,
    /// Modules that it contains.
    pub modules: Option<Modules>,
    /// Additional actions of the maintainer scripts.
    #[serde(default)]
    pub scripts: Scripts,
    /// Files by their path.
    #[serde(default)]
    pub files: BTreeMap<String, File>,
    /// Real files of Debian packages: path here = path there.
    #[serde(default)]
    pub from_debian: BTreeMap<String, String>,
    /// Programs that the harness compiles from their Go modules: path here = name there.
    #[serde(default)]
    pub from_programs: BTreeMap<String, String>,
    /// Links: path = target.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
    /// Source of these facts, for readers of the table.
    #[serde(rename = "source")]
    pub _source: String,
    /// The kernel of an older image, for its packages: they were removed from all repositories.
    #[serde(skip)]
    pub gone: Option<String>,
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Kernel {
    /// `6.8.0-1059-aws`.
    release: String,
    /// Of all its packages.
    version: String,
    /// Without a suite the archive has no package of it, as for the kernel of an older image.
    suite: Option<String>,
    /// Its packages that are missing in the archive, or were removed.
    #[serde(default)]
    without: Vec<Of>,
    /// The driver's modules: `580-server-open` = the driver's version.
    #[serde(default)]
    drivers: BTreeMap<String, String>,
    /// The series whose newest kernel it is, or was when the image was built: `aws-6.8`.
    #[serde(default)]
    newest_of: Vec<String>,
}

/// Compiled modules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Modules {
    /// The directory.
    pub at: String,
    pub licence: String,
    pub version: String,
    pub names: Vec<String>,
}

/// Modules that DKMS builds on the machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Dkms {
    /// The name of the module in DKMS.
    pub name: String,
    pub licence: String,
    pub modules: Vec<String>,
}

/// Parts of maintainer scripts that run before the generated ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripts {
    #[serde(default)]
    pub postinst: String,
    #[serde(default)]
    pub postrm: String,
}

/// The content of a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    pub text: Option<String>,
    /// The binary public key of this repository.
    pub key_of: Option<String>,
    #[serde(default = "plain")]
    pub mode: String,
}

fn amd64() -> String {
    "amd64".into()
}

fn plain() -> String {
    "644".into()
}

impl Packages {
    /// Reads and checks the table, which may consist of several files.
    pub fn load(files: &[PathBuf]) -> Result<Packages> {
        let mut text = String::new();
        for path in files {
            text += &fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            text.push('\n');
        }
        let mut table: Packages =
            toml::from_str(&text).with_context(|| format!("{files:?} is not valid"))?;
        let (of_kernels, mut all): (Vec<Package>, Vec<Package>) =
            (table.packages.into_iter()).partition(|package| package.of.is_some());
        for kernel in &table.kernels {
            for package in &of_kernels {
                all.extend(kernel.package(package)?);
            }
        }
        table.packages = all;
        for package in &table.packages {
            package
                .check(&table)
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        Ok(table)
    }

    /// The same with the repositories of `other`, which replace those of the same name.
    pub fn replaced_by(mut self, other: Packages) -> Packages {
        self.packages
            .retain(|package| !other.repositories.contains_key(&package.repository));
        self.packages.extend(other.packages);
        self.repositories.extend(other.repositories);
        self
    }
}

impl Package {
    fn check(&self, table: &Packages) -> Result<()> {
        let repositories = self
            .files
            .values()
            .filter_map(|file| file.key_of.as_ref())
            .chain([&self.repository]);
        for name in repositories {
            if !table.repositories.contains_key(name) {
                bail!("repository `{name}` does not exist");
            }
        }
        for file in self.files.values() {
            if file.text.is_some() == file.key_of.is_some() {
                bail!("a file needs one of `text` and `key-of`");
            }
        }
        if self.versions.is_empty() {
            bail!("it has no version");
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
        Ok(())
    }
}

impl Kernel {
    /// The packages of a template for this kernel: none, one, or one for each driver or series.
    fn package(&self, template: &Package) -> Result<Vec<Package>> {
        let Some(of) = template.of.filter(|of| !self.without.contains(of)) else {
            return Ok(Vec::new());
        };
        let (abi, flavor) = (self.release.rsplit_once('-')).context("a kernel has a flavor")?;
        let drivers: Vec<_> = self.drivers.iter().map(Some).collect();
        let series: Vec<_> = self.newest_of.iter().map(Some).collect();
        let (drivers, series) = match of {
            Of::Image | Of::Headers => (vec![None], vec![None]),
            Of::Signatures if drivers.is_empty() => return Ok(Vec::new()),
            Of::Signatures => (vec![None], vec![None]),
            Of::Driver => (drivers, vec![None]),
            Of::Series => (vec![None], series),
            Of::DriverSeries => (drivers, series),
        };
        let mut found = Vec::new();
        for driver in &drivers {
            for series in &series {
                let mut package = Package {
                    versions: vec![self.version.clone()],
                    suite: self.suite.clone(),
                    gone: self.suite.is_none().then(|| self.release.clone()),
                    of: None,
                    ..template.clone()
                };
                let values = &mut package.values;
                values.insert("kernel", self.release.clone());
                values.insert("abi", abi.into());
                values.insert("flavor", flavor.into());
                if let Some((driver, version)) = driver {
                    let branch = driver.split('-').next().unwrap_or_default();
                    values.insert("driver", (*driver).clone());
                    values.insert("driver-version", (*version).clone());
                    values.insert("driver-branch", branch.into());
                    values.insert("server", driver.trim_end_matches("-open").into());
                    let licence = match driver.ends_with("-open") {
                        true => "Dual MIT/GPL",
                        false => "NVIDIA",
                    };
                    values.insert("licence", licence.into());
                }
                if let Some(series) = series {
                    values.insert("series", (*series).clone());
                }
                found.push(package);
            }
        }
        Ok(found)
    }
}

impl Place {
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
        let first = |own: &Option<String>, all: &[String]| own.clone().or(all.first().cloned());
        match (
            first(&package.suite, &self.suites),
            first(&package.component, &self.components),
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
    use std::path::Path;

    use super::*;

    #[test]
    fn repository_table_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages.toml");
        let table = Packages::load(&[path]).unwrap();
        // The newest branch must be in the repository, so that a pin has an effect.
        let driver = table
            .packages
            .iter()
            .find(|p| p.name == "nvidia-driver-cuda");
        assert!(driver.unwrap().versions.len() > 2);
    }

    #[test]
    fn ubuntu_kernel_expands_to_packages() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = ["ubuntu.toml", "ubuntu-nvidia.toml"].map(|name| here.join(name));
        let table = Packages::load(&files).unwrap();
        let names = |kernel: &str| -> Vec<String> {
            (table.packages.iter())
                .filter(|one| one.values.get("kernel").is_some_and(|of| of == kernel))
                .map(|one| crate::cases::fill(&one.name, &one.values).unwrap())
                .collect()
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
        let gone = |kernel: &str| {
            (table.packages.iter()).all(|one| {
                one.values.get("kernel").is_none_or(|of| of != kernel) || one.gone.is_some()
            })
        };
        assert!(gone("6.8.0-1044-aws") && !gone("6.8.0-1060-aws"));
        assert!(
            !names("6.8.0-1044-aws")
                .iter()
                .any(|name| name.contains("nvidia"))
        );
    }

    #[test]
    fn upstream_version_is_extracted() {
        assert_eq!(upstream("5:20.10.24-1~debian.12~bookworm"), "20.10.24");
        assert_eq!(upstream("580.178.04-1"), "580.178.04");
    }
}
