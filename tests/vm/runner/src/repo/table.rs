//! `packages.toml`: the repositories that the bed serves, and the stand-in packages in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    pub repositories: BTreeMap<String, Place>,
    #[serde(rename = "package")]
    pub packages: Vec<Package>,
}

/// A repository: its address and its layout.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Place {
    /// The name in its address.
    pub host: String,
    /// Its path on the server.
    pub path: String,
    /// The path of its public key on the server.
    pub key: String,
    /// With a component: the layout of Debian's archive. Without: flat.
    pub suite: Option<String>,
    pub component: Option<String>,
    pub origin: String,
    pub label: String,
    /// Where these facts come from, for the reader of the table.
    #[serde(rename = "source")]
    pub _source: String,
}

/// A stand-in package, in one or more versions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    pub repository: String,
    pub name: String,
    pub versions: Vec<String>,
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
    /// Files of `files` that dpkg treats as configuration of the administrator.
    #[serde(default)]
    pub conffiles: Vec<String>,
    /// Names of libraries: each becomes an empty shared object with the driver's version.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Units that the scripts enable and start, as those of debhelper do.
    #[serde(default)]
    pub units: Vec<String>,
    /// Modules that DKMS builds.
    pub dkms: Option<Dkms>,
    /// Additional actions of the maintainer scripts.
    #[serde(default)]
    pub scripts: Scripts,
    /// Files by their path.
    #[serde(default)]
    pub files: BTreeMap<String, File>,
    /// Real files of Debian's packages: path here = path there.
    #[serde(default)]
    pub from_debian: BTreeMap<String, String>,
    /// Where these facts come from, for the reader of the table.
    #[serde(rename = "source")]
    pub _source: String,
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
}

/// The content of a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    pub text: Option<String>,
    /// The public key of this repository, without armour.
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
    /// Reads and checks the table.
    pub fn load(path: &Path) -> Result<Packages> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let table: Packages =
            toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))?;
        for package in &table.packages {
            package
                .check(&table)
                .with_context(|| format!("package `{}` is not valid", package.name))?;
        }
        Ok(table)
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
                bail!("there is no repository `{name}`");
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
        Ok(())
    }
}

impl Place {
    /// The directory of the packages, below its path.
    pub fn pool(&self) -> String {
        match (&self.suite, &self.component) {
            (Some(suite), Some(component)) => format!("dists/{suite}/pool/{component}/amd64"),
            _ => ".".into(),
        }
    }

    /// The directory of `Release`, below its path.
    pub fn release(&self) -> String {
        match &self.suite {
            Some(suite) => format!("dists/{suite}"),
            None => ".".into(),
        }
    }

    /// The directory of the package lists, below that of `Release`.
    pub fn lists(&self) -> String {
        match &self.component {
            Some(component) => format!("{component}/binary-amd64"),
            None => ".".into(),
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

    #[test]
    fn the_table_of_the_repository_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages.toml");
        let table = Packages::load(&path).unwrap();
        // The newest branch must be in the repository, so that a pin has an effect.
        let driver = table
            .packages
            .iter()
            .find(|p| p.name == "nvidia-driver-cuda");
        assert!(driver.unwrap().versions.len() > 2);
    }

    #[test]
    fn versions_have_parts() {
        assert_eq!(upstream("5:20.10.24-1~debian.12~bookworm"), "20.10.24");
        assert_eq!(upstream("580.178.04-1"), "580.178.04");
    }
}
