//! Which of NVIDIA's CUDA base images runs with a driver, on an architecture, for a system.

use crate::identity::GpuIdentity;
use crate::matrix::Matrix;
use crate::version::{Branch, CudaVersion};

/// The repository of the images. NVIDIA publishes the same ones at `nvcr.io/nvidia/cuda`.
const REPOSITORY: &str = "docker.io/nvidia/cuda";

/// What an image must fit.
#[derive(Debug, Clone, Copy)]
pub struct ImageFor<'a> {
    /// The branch of the driver.
    pub branch: Branch,
    /// The architecture, as `uname -m` names it.
    pub arch: &'a str,
    /// `ID` and `VERSION_ID` of the system, and the relatives that its profile serves.
    pub system: (&'a str, &'a str, &'a [String]),
    /// The GPUs; none where they are not known.
    pub gpus: &'a [GpuIdentity],
}

impl Matrix {
    /// The base image of the newest CUDA version that the driver can run and the GPUs are supported by:
    /// of the machine's own system if there is one. The error is the newest CUDA version of the
    /// driver; `None` if the branch has no row.
    ///
    /// # Errors
    /// When no image that was seen as published fits.
    pub fn cuda_image(&self, wanted: &ImageFor<'_>) -> Result<String, Option<CudaVersion>> {
        let branch = self.branches.iter().find(|row| row.branch == wanted.branch);
        let newest = branch.map(|row| row.max_cuda);
        // The image names its CUDA version in NVIDIA_REQUIRE_CUDA, and the container toolkit compares that
        // with the driver's.
        let fits = |version: CudaVersion| {
            newest.is_some_and(|newest| version.minor_version() <= newest.minor_version())
                && (self.toolkits.iter()).any(|toolkit| {
                    toolkit.version == version
                        && toolkit.arches.iter().any(|arch| arch == wanted.arch)
                })
                && wanted
                    .gpus
                    .iter()
                    .all(|gpu| self.has_code_for(version, gpu))
        };
        let (id, version, like) = wanted.system;
        let own = system(id, version, like);
        (self.cuda_images.iter())
            .filter(|row| fits(row.version))
            .max_by_key(|row| row.version)
            .and_then(|row| {
                let own = row.systems.iter().find(|one| Some(*one) == own.as_ref());
                let system = own.or(row.systems.first())?;
                Some(format!("{REPOSITORY}:{}-base-{system}", row.version))
            })
            .ok_or(newest)
    }

    /// Whether a toolkit has code for a GPU; where nothing is known about it, it may.
    fn has_code_for(&self, version: CudaVersion, gpu: &GpuIdentity) -> bool {
        let version = version.minor_version();
        let board = self.board(gpu);
        board.capabilities.is_empty()
            || (board.capabilities.iter()).any(|row| {
                row.first_cuda.minor_version() <= version
                    && (row.last_cuda).is_none_or(|last| version <= last.minor_version())
            })
    }
}

/// A system as the tags name it. Relatives of Red Hat Enterprise Linux get its image.
fn system(id: &str, version: &str, like: &[String]) -> Option<String> {
    match id {
        "ubuntu" => Some(format!("ubuntu{version}")),
        _ if id == "rhel" || like.iter().any(|family| family == "rhel") => {
            let major = version.split('.').next().unwrap_or(version);
            Some(format!("ubi{major}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::ImageFor;
    use crate::identity::GpuIdentity;
    use crate::matrix::Matrix;

    fn image(branch: u32, arch: &str, system: (&str, &str), gpu: Option<&str>) -> String {
        let gpus: Vec<GpuIdentity> = (gpu.iter())
            .map(|id| GpuIdentity {
                pci_id: id.parse().expect("an id"),
                subsystem_id: None,
                chip_name: None,
            })
            .collect();
        let like = match system.0 {
            "almalinux" => vec!["rhel".to_owned()],
            _ => Vec::new(),
        };
        let wanted = ImageFor {
            branch: branch.to_string().parse().expect("a branch"),
            arch,
            system: (system.0, system.1, &like),
            gpus: &gpus,
        };
        match Matrix::builtin().expect("it parses").cuda_image(&wanted) {
            Ok(image) => image,
            Err(newest) => format!("none up to {newest:?}"),
        }
    }

    #[test]
    fn the_image_is_never_newer_than_the_driver_and_of_the_own_system_if_there_is_one() {
        let of = |tag: &str| format!("docker.io/nvidia/cuda:{tag}");
        let noble = ("ubuntu", "24.04");
        for (branch, system, tag) in [
            // The driver reports CUDA 12.2; Ubuntu 24.04 has images from 12.5 on.
            (535, noble, "12.2.2-base-ubuntu22.04"),
            (570, noble, "12.8.1-base-ubuntu24.04"),
            (570, ("ubuntu", "20.04"), "12.8.1-base-ubuntu20.04"),
            (570, ("debian", "12"), "12.8.1-base-ubuntu24.04"),
            (570, ("almalinux", "9.6"), "12.8.1-base-ubi9"),
            (570, ("almalinux", "10.0"), "12.8.1-base-ubuntu24.04"),
            (580, noble, "13.0.2-base-ubuntu24.04"),
            (610, noble, "13.3.0-base-ubuntu24.04"),
        ] {
            let h100 = Some("10de:2330");
            assert_eq!(image(branch, "x86_64", system, h100), of(tag), "{branch}");
            assert_eq!(image(branch, "aarch64", system, h100), of(tag), "{branch}");
        }
    }

    #[test]
    fn an_old_gpu_gets_the_last_cuda_that_has_code_for_it() {
        // A P100: CUDA 13 has no code for Pascal, driver 580 drives it.
        let said = image(580, "x86_64", ("ubuntu", "24.04"), Some("10de:15f8"));
        assert_eq!(said, "docker.io/nvidia/cuda:12.9.1-base-ubuntu24.04");
    }

    #[test]
    fn an_old_driver_has_no_image() {
        let said = image(470, "x86_64", ("ubuntu", "20.04"), None);
        assert!(said.starts_with("none up to Some(CudaVersion { major: 11, minor: 4"));
        assert_eq!(
            image(123, "x86_64", ("ubuntu", "20.04"), None),
            "none up to None"
        );
    }
}
