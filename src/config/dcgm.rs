//! Resolves `[dcgm]`: the packages of DCGM for the CUDA version of the driver, from the repository of the driver.

use super::{
    desired::{DcgmSpec, PackageSpec},
    driver::DriverChoice,
    error::ConfigError,
    file::DcgmConfig,
    profile::{DcgmRow, Profile, Release},
    sources::SettingSources,
};
use crate::compat::matrix::Matrix;

/// The CUDA major versions with packages `datacenter-gpu-manager-4-cudaMAJOR`. Source: NVIDIA, "Install DCGM" (DCGM 4.6).
const MAJORS: [u32; 3] = [11, 12, 13];

/// The placeholder in package names.
const MAJOR: &str = "{cuda-major}";

/// The inputs of the resolution.
pub(super) struct DcgmInputs<'a> {
    pub profile: &'a Profile,
    pub release: &'a Release,
    pub config: &'a DcgmConfig,
    pub layers: &'a SettingSources,
    pub matrix: &'a Matrix,
    /// A driver that is kept may have another branch than the selected one.
    pub keeps_any_branch: bool,
    /// `None` on a machine without a driver.
    pub driver: Option<&'a DriverChoice<'a>>,
}

impl<'a> DcgmInputs<'a> {
    /// Returns the packages and their entry in the profile. `None` if DCGM is not configured, or without a driver.
    ///
    /// # Errors
    /// If the system has no known packages, or they are not in the repositories of the driver.
    pub(super) fn choose(&self) -> Result<Option<(DcgmSpec, &'a DcgmRow)>, ConfigError> {
        let (config, release) = (self.config, &self.release.version_id);
        if !config.enabled {
            return match config.exporter {
                true => Err(self.wrong(
                    "dcgm.exporter",
                    "the exporter needs `dcgm.enabled = true`",
                    "set it, or remove the key",
                )),
                false => Ok(None),
            };
        }
        let mut rows = self.profile.dcgm.iter();
        let Some(row) = rows.find(|row| row.releases.contains(release)) else {
            return Err(self.wrong(
                "dcgm.enabled",
                &format!(
                    "no DCGM packages are known for {} {release}",
                    self.profile.name
                ),
                "remove the key; in a cluster, use the DCGM exporter of `gpu-bootstrap manifests`, whose image contains DCGM",
            ));
        };
        if config.exporter && row.exporter.is_none() {
            return Err(self.wrong(
                "dcgm.exporter",
                &format!(
                    "no package of the exporter is known for {} {release}",
                    self.profile.name
                ),
                "remove the key, and run the exporter in a container with `--remote-hostengine-info`",
            ));
        }
        let Some(driver) = self.driver else {
            return Ok(None);
        };
        let has = |name: &String| driver.row.repositories.contains(name);
        if !row.repositories.iter().all(has) {
            // Packages of a repository that also contains drivers could replace those of the other source.
            return Err(self.wrong(
                "dcgm.enabled",
                &format!(
                    "the packages are in the repository {}, which `driver.source = \"{}\"` does not use, and drivers from two \
                     sources must not be mixed",
                    row.repositories.join(", "),
                    driver.spec.source
                ),
                "set `driver.source = \"nvidia\"`; or, in a cluster, use the DCGM exporter of `gpu-bootstrap manifests`",
            ));
        }
        if self.keeps_any_branch {
            return Err(self.wrong(
                "dcgm.enabled",
                "the packages depend on the CUDA version of the driver, which `driver.existing = \"keep\"` does not determine",
                "set `driver.branch` to the branch of the installed driver",
            ));
        }
        let branch = driver.spec.branch;
        let major = self.matrix.branch(branch).map(|row| row.max_cuda.major);
        let Some(major) = major.filter(|major| MAJORS.contains(major)) else {
            return Err(self.wrong(
                "dcgm.enabled",
                &format!("DCGM has no packages for the CUDA version of driver branch {branch}"),
                "set `driver.branch` to a supported branch, or remove the key",
            ));
        };
        let exporter = row.exporter.iter().filter(|_| config.exporter);
        let spec = |name: &String| PackageSpec {
            name: name.replace(MAJOR, &major.to_string()),
            version: None,
        };
        let spec = DcgmSpec {
            packages: row.packages.iter().chain(exporter).map(spec).collect(),
            exporter_port: config.exporter.then_some(config.port),
        };
        Ok(Some((spec, row)))
    }

    fn wrong(&self, key: &str, why: &str, hint: &str) -> ConfigError {
        (self.layers).wrong(key, why.to_owned(), Some(hint.to_owned()))
    }
}
