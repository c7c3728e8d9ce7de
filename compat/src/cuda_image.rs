//! Selects the NVIDIA CUDA base image for a driver, an architecture and an operating system.

use crate::identity::GpuIdentity;
use crate::matrix::Matrix;
use crate::version::{Branch, CudaVersion};

/// The image repository. NVIDIA publishes the same images at `nvcr.io/nvidia/cuda`.
const REPOSITORY: &str = "docker.io/nvidia/cuda";

/// The requirements for an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageFor<'a> {
    /// The driver branch.
    pub branch: Branch,
    /// The architecture, as printed by `uname -m`.
    pub arch: &'a str,
    /// `ID` and `VERSION_ID` of the system, and the related systems of its profile.
    pub system: (&'a str, &'a str, &'a [String]),
    /// The GPUs. Empty if unknown.
    pub gpus: &'a [GpuIdentity],
}

impl Matrix {
    /// Returns the base image of the newest CUDA version that the driver and the GPUs support, for the same operating system if
    /// possible. The error contains the newest CUDA version of the driver, or `None` if the branch has no entry.
    ///
    /// # Errors
    /// If no published image fits.
    pub fn cuda_image(&self, wanted: &ImageFor<'_>) -> Result<String, Option<CudaVersion>> {
        let branch = self.branches.iter().find(|row| row.branch == wanted.branch);
        let newest = branch.map(|row| row.max_cuda);
        // The container toolkit compares NVIDIA_REQUIRE_CUDA of the image with the CUDA version of the driver.
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

    /// Returns `true` if a toolkit has code for a GPU, or if the GPU is unknown.
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

/// Returns the system name in image tags. Systems related to Red Hat Enterprise Linux use its image.
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
    fn the_image_fits_the_driver_and_the_system() {
        let of = |tag: &str| format!("docker.io/nvidia/cuda:{tag}");
        let noble = ("ubuntu", "24.04");
        for (branch, system, tag) in [
            // The driver reports CUDA 12.2; Ubuntu 24.04 has images from 12.5 on.
            (535, noble, "12.2.2-base-ubuntu22.04"),
            (570, noble, "12.8.1-base-ubuntu24.04"),
            (570, ("ubuntu", "20.04"), "12.8.1-base-ubuntu20.04"),
            (570, ("debian", "12"), "12.8.1-base-ubuntu24.04"),
            (570, ("debian", "9"), "12.8.1-base-ubuntu24.04"),
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
    fn an_old_gpu_gets_its_last_cuda_version() {
        // P100: driver 580 supports Pascal, CUDA 13 has no code for it.
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

    #[test]
    fn an_architecture_without_a_toolkit_has_no_image() {
        let said = image(570, "riscv64", ("ubuntu", "24.04"), None);
        assert!(said.starts_with("none up to Some"), "{said}");
    }
}
