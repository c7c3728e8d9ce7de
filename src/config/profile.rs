//! Profiles: the packages for each operating system, their sources and their names. Profiles are data; the files in
//! `profiles/` are built into the binary.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

use crate::{
    config::{desired::Manager, error::ConfigError, kernel::KernelRow, values::Fingerprint},
    facts::Os,
    host::ReadFiles,
    model::{
        packages::Signed,
        text::{built_in, directory},
    },
};

pub use crate::config::rows::{
    At, DcgmRow, DriverRow, FabricRow, PackageRow, RdmaRow, RefusedRelease, RuntimeRow, ToolkitRow,
};

/// The schema version of profile files.
pub const SCHEMA: u32 = 1;

/// The directory of the administrator's profiles. A file replaces the built-in profile with the same name.
pub const DIRECTORY: &str = "/etc/gpu-bootstrap/profiles";

/// A profile file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its name.
    pub name: String,
    /// The `ID` values of `os-release` that the profile supports.
    pub os_ids: Vec<String>,
    /// Derived distributions that the profile may support, with a warning: their `ID`, or a name in their `ID_LIKE`.
    #[serde(default)]
    pub like: Vec<String>,
    /// Other names of these systems for `--os`, with their `ID`. Only built-in profiles are read for this key.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
    /// Directories in NVIDIA's CUDA repositories by release, including releases that the profile does not support. Only
    /// built-in profiles are read for this key.
    #[serde(default)]
    pub cuda_directories: BTreeMap<String, String>,
    /// Archives that are incompatible with other systems. Only built-in profiles are read for this key.
    #[serde(default)]
    pub own_archives: Option<OwnArchives>,
    /// The package manager.
    pub manager: Manager,
    /// Architectures by kernel name.
    pub architecture: BTreeMap<String, ArchitectureNames>,
    /// Package manager defaults.
    pub packages: PackageDefaults,
    /// Kernel modules.
    pub modules: ModuleDefaults,
    /// Persistence of the driver's state.
    pub persistence: PersistenceDefaults,
    /// Held packages.
    pub hold: HoldDefaults,
    /// Supported releases.
    pub release: Vec<Release>,
    /// Releases that are rejected for a specific reason.
    #[serde(default)]
    pub refused: Vec<RefusedRelease>,
    /// Repositories.
    pub repository: Vec<RepositoryRow>,
    /// Driver package sets, in order of preference.
    pub driver: Vec<DriverRow>,
    /// How to install a kernel, if known.
    #[serde(default)]
    pub kernel: Option<KernelRow>,
    /// Companion packages of the driver for GPUs behind switches.
    #[serde(default)]
    pub fabric: Vec<FabricRow>,
    /// Runtime package sets.
    pub runtime: Vec<RuntimeRow>,
    /// NVIDIA Container Toolkit.
    pub toolkit: ToolkitRow,
    /// Package sets of DCGM.
    #[serde(default)]
    pub dcgm: Vec<DcgmRow>,
    /// Package sets of kernel modules for RDMA.
    #[serde(default)]
    pub rdma: Vec<RdmaRow>,
}

/// Archives with packages that fit only one distribution and its derivatives.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OwnArchives {
    /// The distribution, for messages.
    pub title: String,
    /// Parts of their URLs.
    pub urls: Vec<String>,
    /// Parts of the URLs of archives with drivers, whose packages conflict with those of other distributions.
    pub drivers: Vec<String>,
}

impl OwnArchives {
    /// Whether the URL belongs to one of the archives.
    pub fn contain(&self, url: &str) -> bool {
        self.urls.iter().any(|part| url.contains(part))
    }

    /// Whether the URL belongs to one of the archives, and that archive has drivers.
    pub fn have_drivers(&self, url: &str) -> bool {
        self.contain(url) && self.drivers.iter().any(|part| url.contains(part))
    }
}

/// Names of a CPU architecture that differ from its kernel name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ArchitectureNames {
    /// Name in the package manager.
    pub package: String,
    /// Name in the CUDA repositories.
    pub cuda: String,
}

/// Defaults of package handling.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PackageDefaults {
    /// Units that start a package manager automatically.
    pub pause_units: Vec<String>,
    /// Shell patterns for names of kernel packages. No transaction installs a new kernel as a dependency.
    #[serde(default)]
    pub kernels: Vec<String>,
}

/// Kernel modules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModuleDefaults {
    /// In-tree drivers that must not claim the GPU.
    pub deny: Vec<String>,
    /// Modules to load at boot, in order.
    pub load: Vec<String>,
}

/// Persistence.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PersistenceDefaults {
    /// The unit of the daemon.
    pub unit: String,
}

/// Held packages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HoldDefaults {
    /// Shell patterns for package names: driver, runtime, toolkit.
    pub patterns: Vec<String>,
    /// Shell patterns for package names: kernels and headers.
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
    /// `VERSION_ID`: the full value (`24.04`) or its major number (`9`).
    pub version_id: String,
    /// The codename in the archive.
    pub codename: Option<String>,
    /// Supported architectures.
    pub architectures: Vec<String>,
    /// The default driver source.
    pub driver_source: String,
    /// The default runtime source.
    pub runtime_source: String,
    /// Kernel headers and build tools for DKMS, with placeholders.
    pub headers: Vec<String>,
    /// The kernel series, if the release has only one. Used if the kernel of the machine is unknown.
    pub kernel_series: Option<String>,
    /// The release boots with cgroup v1 by default.
    #[serde(default)]
    pub cgroup_v1: bool,
    /// Packages with modules that container runtimes and pod networks need, if the kernel image does not include
    /// them. With placeholders.
    #[serde(default)]
    pub container_modules: Vec<String>,
    /// The flavor in the names of module packages, if it differs from the kernel flavor.
    #[serde(default)]
    pub kernel_flavor: Vec<KernelFlavor>,
}

/// The name of a kernel flavor in module packages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelFlavor {
    /// The flavor at the end of the kernel release.
    pub kernel: String,
    /// The kernel series of this entry, such as `6.8`. Without it, the entry matches every other series.
    pub series: Option<String>,
    /// The flavor in package names.
    pub package: String,
}

/// A repository for some releases.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RepositoryRow {
    /// Our name for the repository.
    pub name: String,
    /// The `version-id` values of the releases.
    pub releases: Vec<String>,
    /// Its URL, or `distribution` for the archive that the machine already uses.
    pub url: String,
    /// deb: suites.
    #[serde(default)]
    pub suites: Vec<String>,
    /// deb: components.
    #[serde(default)]
    pub components: Vec<String>,
    /// The URL of the key. `{url}` is replaced by the repository URL.
    pub key_url: Option<String>,
    /// dnf: key files of the distribution with additional signing keys. Their fingerprints are also listed.
    #[serde(default)]
    pub key_files: Vec<String>,
    /// Fingerprints of accepted keys. Empty if unknown.
    #[serde(default)]
    pub fingerprints: Vec<Fingerprint>,
    /// apt: pin priority.
    pub priority: Option<i32>,
    /// dnf: the parts that the vendor signs.
    #[serde(default)]
    pub signed: Signed,
    /// The reason that the repository is not usable as it is, if any.
    pub refused: Option<String>,
    /// The source of this entry and its reliability.
    #[serde(rename = "source")]
    pub citation: String,
}

/// The selected profile with warnings about the selection.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileChoice {
    /// The profile.
    pub profile: Profile,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl Profile {
    /// Parses a profile.
    ///
    /// # Errors
    /// If it is invalid, for example because one part references a missing one.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let profile: Self =
            toml::from_str(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        profile.valid(file)
    }

    fn valid(self, file: &str) -> Result<Self, ConfigError> {
        self.validate().map_err(|why| ConfigError::Profile {
            file: file.to_owned(),
            why,
        })?;
        Ok(self)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// If there is none with this name.
    pub fn built_in(name: &str) -> Result<Self, ConfigError> {
        if !built_in_names().any(|known| known == name) {
            return Err(ConfigError::NoSuchProfile {
                name: name.to_owned(),
                known: built_in_names().map(str::to_owned).collect(),
            });
        }
        let file = format!("profiles/{name}.toml (built in)");
        let profile: Self =
            built_in(&format!("profiles/{name}")).map_err(|why| ConfigError::Profile {
                file: file.clone(),
                why: format!("{why}; the binary is corrupt, so reinstall it"),
            })?;
        profile.valid(&file)
    }

    /// Returns the requested profile by name or path, or the one for the operating system. A file in [`DIRECTORY`]
    /// replaces the built-in profile with the same name.
    ///
    /// # Errors
    /// If the profile does not exist or is invalid, or none supports the operating system.
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
        // Most profiles have the ID of their system as their name, and a profile takes long to read.
        let mut all = Vec::new();
        let (first, others): (Vec<_>, Vec<_>) = built_in_names().partition(|name| *name == os.id);
        for name in first.into_iter().chain(others) {
            let profile = Self::named(name, files)?;
            if profile.os_ids.contains(&os.id) {
                return Ok(ProfileChoice {
                    profile,
                    warnings: Vec::new(),
                });
            }
            all.push(profile);
        }
        match Self::of(&all, os) {
            Some(profile) => Ok(ProfileChoice {
                profile: profile.clone(),
                warnings: vec![match profile.like.contains(&os.id) {
                    true => format!(
                        "no profile for `{}`; using `{}` because they are related",
                        os.id, profile.name
                    ),
                    false => format!(
                        "no profile for `{}`; using `{}` because `ID_LIKE` of the system \
                         contains `{}`",
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

    /// Returns the profile for an operating system, or else the one for its nearest relative.
    pub fn of<'p>(all: &'p [Self], os: &Os) -> Option<&'p Self> {
        std::iter::once(&os.id)
            .chain(&os.id_like)
            .find_map(|family| {
                all.iter().find(|profile| {
                    profile.os_ids.contains(family) || profile.like.contains(family)
                })
            })
    }

    /// Returns all built-in profiles.
    ///
    /// # Errors
    /// If the binary is corrupt.
    pub fn all_built_in() -> Result<Vec<Self>, ConfigError> {
        built_in_names().map(Self::built_in).collect()
    }

    /// Lists the systems of the built-in profiles whose archive has signed modules: `almalinux 9, 10; ubuntu 24.04`.
    ///
    /// # Errors
    /// If the binary is corrupt.
    pub fn with_signed_modules() -> Result<String, ConfigError> {
        let mut systems = Vec::new();
        for profile in Self::all_built_in()? {
            let is_signed = |release: &&Release| {
                profile.driver.iter().any(|row| {
                    row.source == DISTRIBUTION
                        && !row.build.is_compiled()
                        && row.releases.contains(&release.version_id)
                })
            };
            let releases: Vec<&str> = (profile.release.iter().filter(is_signed))
                .map(|release| release.version_id.as_str())
                .collect();
            if !releases.is_empty() {
                systems.push(format!("{} {}", profile.name, releases.join(", ")));
            }
        }
        Ok(systems.join("; "))
    }

    /// Returns whether the value is a path instead of a name.
    pub fn is_path(asked: &str) -> bool {
        asked.contains('/') || asked.ends_with(".toml")
    }

    fn named(asked: &str, files: &dyn ReadFiles) -> Result<Self, ConfigError> {
        let is_path = Self::is_path(asked);
        let path = if is_path {
            Utf8PathBuf::from(asked)
        } else {
            Utf8Path::new(DIRECTORY).join(format!("{asked}.toml"))
        };
        match files.read_text(&path)? {
            Some(text) => Self::parse(&text, path.as_str()),
            None if is_path => Err(ConfigError::MissingFile { path }),
            None => Self::built_in(asked),
        }
    }

    /// Returns the release of the machine.
    pub fn release_for(&self, version_id: &str) -> Option<&Release> {
        (self.release.iter()).find(|release| is_of_release(version_id, &release.version_id))
    }

    /// Returns the directory of a release in NVIDIA's CUDA repositories.
    pub fn cuda_directory(&self, version_id: &str) -> Option<&str> {
        let mut releases = self.cuda_directories.iter();
        let (_, directory) = releases.find(|(release, _)| is_of_release(version_id, release))?;
        Some(directory)
    }

    /// Describes the supported releases: `debian 12, 13 (x86_64, aarch64)`.
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

    /// Returns the repository with this name for a release.
    pub fn repository_for(&self, name: &str, release: &Release) -> Option<&RepositoryRow> {
        self.repository
            .iter()
            .find(|row| row.name == name && row.releases.contains(&release.version_id))
    }

    /// Checks the schema version, the references between the parts, and rules that the types do not express. Returns the first
    /// error.
    fn validate(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!(
                "unsupported `schema = {}`; gpu-bootstrap supports {SCHEMA}",
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
                        "`{name}` references release `{id}`, which is not listed"
                    ));
                }
            }
        }
        for release in &self.release {
            for architecture in &release.architectures {
                if !self.architecture.contains_key(architecture) {
                    return Err(format!(
                        "release `{}` references architecture `{architecture}`, which is not listed",
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
            for row in &self.dcgm {
                served(&row.repositories, &row.releases)?;
            }
            for row in &self.rdma {
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
                    "repository `{}` has no fingerprint and no reason (`refused`)",
                    row.name
                ));
            }
        }
        for row in &self.driver {
            if row.newest.is_some() && row.branches.len() != 1 {
                return Err(format!(
                    "driver set `{}` {}: `newest` requires exactly one branch",
                    row.source, row.flavor
                ));
            }
            if let Some(why) = row.contradiction() {
                return Err(format!("driver set `{}` {}: {why}", row.source, row.flavor));
            }
        }
        Ok(())
    }
}

/// The archive that the machine already uses, as the URL of a repository and as a package source.
pub const DISTRIBUTION: &str = "distribution";

/// Returns the names of the built-in profiles: the files of `profiles/`.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    let files = directory("profiles").into_iter().flatten();
    files.map(|(name, _)| name)
}

/// Whether a `VERSION_ID` belongs to a release: `9.6` belongs to `9`.
fn is_of_release(version_id: &str, release: &str) -> bool {
    version_id
        .strip_prefix(release)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Describes an operating system.
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
    fn all_profile_files_are_built_in() {
        let directory = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
        let mut files: Vec<String> = directory
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

    #[test]
    fn cuda_directories_match_the_repositories() {
        for profile in Profile::all_built_in().unwrap() {
            for row in (profile.repository.iter()).filter(|row| row.name == "nvidia-cuda") {
                for release in &row.releases {
                    let directory = profile.cuda_directory(release).expect(release);
                    assert!(
                        row.url.contains(&format!("/repos/{directory}/")),
                        "{}",
                        row.url
                    );
                }
            }
        }
    }

    #[test]
    fn names_of_systems_are_unambiguous() {
        let all = Profile::all_built_in().unwrap();
        let mut names: Vec<&String> = (all.iter())
            .flat_map(|profile| {
                let ids = profile.os_ids.iter().chain(&profile.like);
                ids.chain(profile.aliases.keys())
            })
            .collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        for profile in &all {
            for id in profile.aliases.values() {
                assert!(
                    profile.os_ids.contains(id) || profile.like.contains(id),
                    "{id}"
                );
            }
        }
    }

    #[test]
    fn each_branch_of_a_fabric_row_has_a_driver() {
        for name in built_in_names() {
            let profile = Profile::built_in(name).unwrap();
            for fabric in &profile.fabric {
                for (release, branch) in (fabric.releases.iter())
                    .flat_map(|release| fabric.branches.iter().map(move |branch| (release, branch)))
                {
                    let serves = |driver: &DriverRow| {
                        driver.source == fabric.source
                            && driver.releases.contains(release)
                            && driver.branches.contains(branch)
                    };
                    assert!(
                        profile.driver.iter().any(serves),
                        "{name} {release}: `{}` has no driver of branch {branch}",
                        fabric.source
                    );
                }
            }
        }
    }
}
