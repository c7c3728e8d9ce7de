//! Profiles: for each operating system what is installed, from where, and under which names.
//! Profiles are data; the files in `profiles/` are built into the program.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

use crate::{
    config::{
        desired::Manager,
        error::ConfigError,
        kernel::KernelRow,
        values::{Fingerprint, TimeLimit},
    },
    facts::Os,
    host::ReadFiles,
    model::{
        packages::Signed,
        text::{folder, table},
    },
};

pub use crate::config::rows::{
    At, DriverRow, FabricRow, PackageRow, RefusedRelease, RuntimeRow, ToolkitRow,
};

/// The schema version of profile files.
pub const SCHEMA: u32 = 1;

/// The folder for files that replace the built-in profile of their name.
pub const FOLDER: &str = "/etc/gpu-bootstrap/profiles";

/// A profile as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its name.
    pub name: String,
    /// The `ID`s of `os-release` that it serves.
    pub os_ids: Vec<String>,
    /// Relatives that it may serve, with a warning: their `ID`, or a name in their `ID_LIKE`.
    #[serde(default)]
    pub like: Vec<String>,
    /// The package manager.
    pub manager: Manager,
    /// Architectures, by the kernel's name for them.
    pub architecture: BTreeMap<String, ArchitectureNames>,
    /// The package manager's surroundings.
    pub packages: PackageDefaults,
    /// Kernel modules.
    pub modules: ModuleDefaults,
    /// Persistence of the driver's state.
    pub persistence: PersistenceDefaults,
    /// The container probe.
    pub validation: ValidationDefaults,
    /// What is held.
    pub hold: HoldDefaults,
    /// Releases served.
    pub release: Vec<Release>,
    /// Releases that are refused for a reason of their own.
    #[serde(default)]
    pub refused: Vec<RefusedRelease>,
    /// Repositories.
    pub repository: Vec<RepositoryRow>,
    /// Driver package sets, in order of preference.
    pub driver: Vec<DriverRow>,
    /// How a kernel is installed, where that is known.
    #[serde(default)]
    pub kernel: Option<KernelRow>,
    /// What runs beside the driver where GPUs are behind switches.
    #[serde(default)]
    pub fabric: Vec<FabricRow>,
    /// Runtime package sets.
    pub runtime: Vec<RuntimeRow>,
    /// NVIDIA Container Toolkit.
    pub toolkit: ToolkitRow,
}

/// The names of a processor architecture, which the kernel names otherwise.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ArchitectureNames {
    /// By the package manager.
    pub package: String,
    /// In NVIDIA's CUDA repositories.
    pub cuda: String,
}

/// Defaults of package handling.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PackageDefaults {
    /// How long to wait for another package manager.
    pub lock_timeout: TimeLimit,
    /// Units that start a package manager by themselves.
    pub pause_units: Vec<String>,
    /// Shell patterns over names of packages that are a kernel: none is installed unless the
    /// administrator does it.
    #[serde(default)]
    pub kernels: Vec<String>,
}

/// Kernel modules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModuleDefaults {
    /// In-tree drivers that must not take the GPU.
    pub deny: Vec<String>,
    /// What is loaded at boot, in order.
    pub load: Vec<String>,
}

/// Persistence.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PersistenceDefaults {
    /// The unit of the daemon.
    pub unit: String,
}

/// Defaults of the container probe.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ValidationDefaults {
    /// Run a container.
    pub container: bool,
    /// How long it may take.
    pub timeout: TimeLimit,
}

/// What is held.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HoldDefaults {
    /// Shell patterns over package names: driver, runtime, toolkit.
    pub patterns: Vec<String>,
    /// Shell patterns over package names: kernels and headers.
    pub kernel: Vec<String>,
    /// Regular expressions for unattended upgrades: driver, runtime, toolkit.
    pub blacklist: Vec<String>,
    /// Regular expressions for unattended upgrades: kernels and headers.
    pub kernel_blacklist: Vec<String>,
}

/// A release of the operating system.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Release {
    /// `VERSION_ID`, whole (`24.04`) or its major number (`9`).
    pub version_id: String,
    /// The archive's name for it.
    pub codename: Option<String>,
    /// Architectures served.
    pub architectures: Vec<String>,
    /// Where the driver comes from unless told otherwise.
    pub driver_source: String,
    /// Where runtimes come from unless told otherwise.
    pub runtime_source: String,
    /// Kernel headers and build tools, for modules that are compiled; with placeholders.
    pub headers: Vec<String>,
    /// The kernel series, if the release has only one. It counts where the kernel of the machine is unknown.
    pub kernel_series: Option<String>,
    /// Packages with the modules of each kernel that container runtimes and pod networks need, where its image lacks
    /// them; with placeholders.
    #[serde(default)]
    pub container_modules: Vec<String>,
    /// The flavour in the names of packaged modules, where it is not the kernel's own.
    #[serde(default)]
    pub kernel_flavour: Vec<KernelFlavour>,
}

/// How a kernel's flavour is called in the names of packaged modules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelFlavour {
    /// The flavour at the end of the kernel's release.
    pub kernel: String,
    /// The kernel series that this row is about, such as `6.8`; without it every other one.
    pub series: Option<String>,
    /// The flavour in package names.
    pub package: String,
}

/// A repository, for some releases.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RepositoryRow {
    /// Our name for it.
    pub name: String,
    /// `version-id`s of the releases.
    pub releases: Vec<String>,
    /// Its address, or `distribution` for the archive that the machine already uses.
    pub url: String,
    /// deb: suites.
    #[serde(default)]
    pub suites: Vec<String>,
    /// deb: components.
    #[serde(default)]
    pub components: Vec<String>,
    /// Where the key is fetched; `{url}` stands for the address.
    pub key_url: Option<String>,
    /// dnf: key files of the distribution whose keys sign here, too; their fingerprints are named like
    /// all others.
    #[serde(default)]
    pub key_files: Vec<String>,
    /// Fingerprints of acceptable keys; none where they are not known.
    #[serde(default)]
    pub fingerprints: Vec<Fingerprint>,
    /// apt: pin priority.
    pub priority: Option<i32>,
    /// dnf: what the vendor signs.
    #[serde(default)]
    pub signed: Signed,
    /// Why it cannot be used as it is, where it cannot.
    pub refused: Option<String>,
    /// Where this was read and how far it can be trusted.
    #[serde(rename = "source")]
    pub citation: String,
}

/// The profile that was chosen, and the doubts about the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileChoice {
    /// The profile.
    pub profile: Profile,
    /// Doubts, for people.
    pub warnings: Vec<String>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// When it does not parse, or one part refers to another that is not there.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let profile: Self =
            toml::from_str(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        profile.validate().map_err(|why| ConfigError::Profile {
            file: file.to_owned(),
            why,
        })?;
        Ok(profile)
    }

    /// One of the built-in profiles.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn built_in(name: &str) -> Result<Self, ConfigError> {
        if !built_in_names().any(|known| known == name) {
            return Err(ConfigError::NoSuchProfile {
                name: name.to_owned(),
                known: built_in_names().map(str::to_owned).collect(),
            });
        }
        let file = format!("profiles/{name}.toml (built in)");
        let text = table(&format!("profiles/{name}")).map_err(|why| ConfigError::Profile {
            file: file.clone(),
            why: format!("{why}; this program is damaged: install it again"),
        })?;
        Self::parse(text, &file)
    }

    /// The profile that was asked for by name or path, or else the one for the operating system.
    /// A file in [`FOLDER`] takes the place of the built-in one of its name.
    ///
    /// # Errors
    /// When there is no such profile, it does not parse, or none serves the operating system.
    pub fn choose(
        asked: Option<&str>,
        os: Option<&Os>,
        files: &dyn ReadFiles,
    ) -> Result<ProfileChoice, ConfigError> {
        if let Some(asked) = asked {
            return Ok(ProfileChoice {
                profile: Self::named(asked, files)?,
                warnings: Vec::new(),
            });
        }
        let os = os.ok_or(ConfigError::UnknownOs)?;
        let all = built_in_names()
            .map(|name| Self::named(name, files))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(profile) = all.iter().find(|profile| profile.os_ids.contains(&os.id)) {
            return Ok(ProfileChoice {
                profile: profile.clone(),
                warnings: Vec::new(),
            });
        }
        // A profile for the whole family, by the nearest relative that has one.
        let relative = std::iter::once(&os.id)
            .chain(&os.id_like)
            .find_map(|family| {
                all.iter().find(|profile| {
                    profile.os_ids.contains(family) || profile.like.contains(family)
                })
            });
        match relative {
            Some(profile) => Ok(ProfileChoice {
                profile: profile.clone(),
                warnings: vec![match profile.like.contains(&os.id) {
                    true => format!(
                        "there is no profile for `{}`; `{}` is used because the two are relatives",
                        os.id, profile.name
                    ),
                    false => format!(
                        "there is no profile for `{}`; `{}` is used because the system says that \
                         it is like `{}`",
                        os.id,
                        profile.name,
                        os.id_like.join(" ")
                    ),
                }],
            }),
            None => Err(ConfigError::UnsupportedOs {
                os: described(os),
                supported: all.iter().map(Self::serves).collect(),
            }),
        }
    }

    /// Whether what was asked for is a path and not a name.
    #[must_use]
    pub fn is_path(asked: &str) -> bool {
        asked.contains('/') || asked.ends_with(".toml")
    }

    fn named(asked: &str, files: &dyn ReadFiles) -> Result<Self, ConfigError> {
        let is_path = Self::is_path(asked);
        let path = if is_path {
            Utf8PathBuf::from(asked)
        } else {
            Utf8Path::new(FOLDER).join(format!("{asked}.toml"))
        };
        match files.read_text(&path)? {
            Some(text) => Self::parse(&text, path.as_str()),
            None if is_path => Err(ConfigError::MissingFile { path }),
            None => Self::built_in(asked),
        }
    }

    /// The release that the machine runs.
    #[must_use]
    pub fn release_for(&self, version_id: &str) -> Option<&Release> {
        self.release.iter().find(|release| {
            version_id == release.version_id
                || version_id
                    .strip_prefix(&release.version_id)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// What it serves, for people: `debian 12, 13 (x86_64, aarch64)`.
    #[must_use]
    pub fn serves(&self) -> String {
        let releases: Vec<&str> = self
            .release
            .iter()
            .map(|release| release.version_id.as_str())
            .collect();
        let architectures: Vec<&str> = self.architecture.keys().map(String::as_str).collect();
        format!(
            "{} {} ({})",
            self.os_ids.join("/"),
            releases.join(", "),
            architectures.join(", ")
        )
    }

    /// The repository of this name for a release.
    #[must_use]
    pub fn repository_for(&self, name: &str, release: &Release) -> Option<&RepositoryRow> {
        self.repository
            .iter()
            .find(|row| row.name == name && row.releases.contains(&release.version_id))
    }

    /// Finds a part that refers to something that does not exist, and describes it.
    fn validate(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!(
                "`schema = {}` is unknown; this program reads {SCHEMA}",
                self.schema
            ));
        }
        let rows = (self.repository.iter().map(|row| (&row.name, &row.releases)))
            .chain(self.driver.iter().map(|row| (&row.source, &row.releases)))
            .chain(self.fabric.iter().map(|row| (&row.source, &row.releases)))
            .chain(self.runtime.iter().map(|row| (&row.source, &row.releases)));
        for (name, releases) in rows {
            for id in releases {
                if !self.release.iter().any(|release| release.version_id == *id) {
                    return Err(format!(
                        "`{name}` names release `{id}`, which is not listed"
                    ));
                }
            }
        }
        for release in &self.release {
            for architecture in &release.architectures {
                if !self.architecture.contains_key(architecture) {
                    return Err(format!(
                        "release `{}` names architecture `{architecture}`, which is not listed",
                        release.version_id
                    ));
                }
            }
            let served = |names: &[String], of: &[String]| {
                let missing = names
                    .iter()
                    .find(|name| self.repository_for(name, release).is_none());
                match missing {
                    Some(name) if of.contains(&release.version_id) => Err(format!(
                        "repository `{name}` is not listed for release `{}`",
                        release.version_id
                    )),
                    _ => Ok(()),
                }
            };
            for row in &self.driver {
                served(&row.repositories, &row.releases)?;
            }
            for row in &self.runtime {
                served(&row.repositories, &row.releases)?;
            }
            served(
                &self.toolkit.repositories,
                std::slice::from_ref(&release.version_id),
            )?;
        }
        for row in &self.repository {
            if row.url != DISTRIBUTION && row.fingerprints.is_empty() && row.refused.is_none() {
                return Err(format!(
                    "repository `{}` has no fingerprint and does not say why (`refused`)",
                    row.name
                ));
            }
        }
        for row in &self.driver {
            if row.newest.is_some() && row.branches.len() != 1 {
                return Err(format!(
                    "driver set `{}` {}: `newest` belongs to a row of one branch",
                    row.source, row.flavour
                ));
            }
            if let Some(why) = row.contradiction() {
                return Err(format!(
                    "driver set `{}` {}: {why}",
                    row.source, row.flavour
                ));
            }
        }
        Ok(())
    }
}

/// Stands for the archive that the machine already uses: as the address of a repository, and as the
/// source of packages.
pub const DISTRIBUTION: &str = "distribution";

/// The names of the built-in profiles: the files of `profiles/`.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    let files = folder("profiles").into_iter().flatten();
    files.map(|(name, _)| name)
}

/// An operating system, for people.
#[must_use]
pub fn described(os: &Os) -> String {
    match &os.version_id {
        Some(version) => format!("{} {version}", os.id),
        None => os.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_built_in() {
        let folder = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
        let mut files: Vec<String> = folder
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        files.sort();
        let mut names: Vec<String> = built_in_names()
            .map(|name| format!("{name}.toml"))
            .collect();
        names.sort();
        assert_eq!(files, names);
        for name in built_in_names() {
            assert_eq!(Profile::built_in(name).unwrap().name, name);
        }
    }
}
