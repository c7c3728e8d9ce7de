//! The kernel driver that is bound to each GPU (from sysfs), and the GPUs that are reserved for virtual machines.

use camino::Utf8PathBuf;

use super::{State, StateError};
use crate::{
    facts::GpuFact,
    host::{FileKind, FilesError, ReadFiles},
    model::pci::{DEVICES, PciAddress},
};

/// Returns `true` for drivers that reserve a GPU for virtual machines: `vfio-pci`, its device-specific variants such as
/// `nvgrace_gpu_vfio_pci`, and `pci-stub`. They are only bound on request.
pub fn is_reserved(driver: &str) -> bool {
    let driver = driver.replace('_', "-");
    driver == "pci-stub" || driver == "vfio-pci" || driver.ends_with("-vfio-pci")
}

/// Returns `true` for nova, the successor of nouveau in the kernel. Its module is called `NovaCore`.
pub fn is_nova(driver: &str) -> bool {
    let plain = driver.replace(['-', '_'], "").to_ascii_lowercase();
    matches!(plain.as_str(), "novacore" | "novadrm" | "nova")
}

impl State {
    /// Returns `true` if a GPU in the facts is reserved for virtual machines.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn is_reserved(&self, gpu: PciAddress) -> Result<bool, StateError> {
        Ok(self.bound_driver(gpu)?.is_some_and(is_reserved))
    }

    /// Returns the kernel driver that is bound to a GPU in the facts, or `None` if it has no driver.
    ///
    /// # Errors
    /// If sysfs cannot be read.
    pub fn bound_driver(&self, gpu: PciAddress) -> Result<Option<&str>, StateError> {
        let read = || {
            let gpus = self.facts.gpus.iter().map(|gpu| gpu.pci_address);
            gpus.map(|gpu| (gpu, bound(&*self.host.files, gpu).map_err(StateError::from)))
                .collect()
        };
        match self.memo.bound_drivers.get_or_init(read).get(&gpu) {
            Some(Ok(driver)) => Ok(driver.as_deref()),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }
}

/// Returns the GPUs that are reserved for virtual machines.
///
/// # Errors
/// If sysfs cannot be read.
pub fn reserved(files: &dyn ReadFiles, gpus: &[GpuFact]) -> Result<Vec<PciAddress>, FilesError> {
    let mut found = Vec::new();
    for gpu in gpus {
        if bound(files, gpu.pci_address)?.is_some_and(|driver| is_reserved(&driver)) {
            found.push(gpu.pci_address);
        }
    }
    Ok(found)
}

fn bound(files: &dyn ReadFiles, gpu: PciAddress) -> Result<Option<String>, FilesError> {
    let link = Utf8PathBuf::from(format!("{DEVICES}/{gpu}/driver"));
    Ok(match files.stat(&link)?.map(|stat| stat.kind) {
        Some(FileKind::Link(target)) => target.file_name().map(str::to_owned),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    #[test]
    fn driver_variants_are_recognized() {
        for driver in ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub"] {
            assert!(is_reserved(driver), "{driver}");
        }
        for driver in ["NovaCore", "nova_core", "nova-drm"] {
            assert!(is_nova(driver) && !is_reserved(driver), "{driver}");
        }
        for driver in ["nvidia", "nouveau", "vfio"] {
            assert!(!is_nova(driver) && !is_reserved(driver), "{driver}");
        }
    }

    #[test]
    fn bound_driver_is_read_for_each_gpu() {
        let (host, fakes) = fake::host();
        fakes.files.put_link(
            &format!("{DEVICES}/0000:18:00.0/driver"),
            "../../../../bus/pci/drivers/nvidia",
        );
        let state = state(&host, facts());
        let of = |gpu: &str| {
            let driver = state.bound_driver(gpu.parse().expect("an address"));
            driver.expect("readable").map(str::to_owned)
        };
        assert_eq!(of("0000:18:00.0").as_deref(), Some("nvidia"));
        assert_eq!(of("0000:2a:00.0"), None);
    }

    #[test]
    fn gpu_bound_for_passthrough_is_reserved() {
        let (host, fakes) = fake::host();
        let second: PciAddress = "0000:2a:00.0".parse().expect("an address");
        // The device-specific variants are treated like the driver itself.
        for variant in ["vfio-pci", "nvgrace_gpu_vfio_pci"] {
            for (gpu, driver) in [("0000:18:00.0", "nouveau"), ("0000:2a:00.0", variant)] {
                fakes.files.put_link(
                    &format!("{DEVICES}/{gpu}/driver"),
                    &format!("../../../../bus/pci/drivers/{driver}"),
                );
            }
            let found = reserved(&*host.files, &facts().gpus).expect("readable");
            assert_eq!(found, [second], "{variant}");
            let state = state(&host, facts());
            assert!(state.is_reserved(second).expect("readable"), "{variant}");
        }
    }
}
