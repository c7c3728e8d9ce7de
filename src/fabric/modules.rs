//! Kernel modules that the NVLink subnet manager needs.

use crate::{
    host::{FilesError, ReadFiles},
    tools::kmod,
};

/// The kernel modules that the subnet manager needs to access switches behind network devices. If one is not loaded, the fabric
/// manager finds no switch.
///
/// Sources: NVIDIA/gpu-operator issue 2781, spectrocloud/CanvOS PR 700.
pub const SUBNET_MODULES: [&str; 2] = ["mlx5_ib", "ib_umad"];

/// Returns the [`SUBNET_MODULES`] that are not loaded. The module list of a recorded tree may be incomplete. It is regarded as
/// complete if it contains the driver of the switches' network devices.
///
/// # Errors
/// If a file cannot be read.
pub fn not_loaded(
    files: &dyn ReadFiles,
    loaded: &[String],
) -> Result<Vec<&'static str>, FilesError> {
    let mut missing = Vec::new();
    if loaded.iter().any(|name| name == "mlx5_core") {
        for module in SUBNET_MODULES {
            let is_listed = loaded.iter().any(|name| name == module);
            if !is_listed && !files.exists(&kmod::in_kernel(module))? {
                missing.push(module);
            }
        }
    }
    Ok(missing)
}

/// Whether one of these modules does not exist for the kernel. `false` if the modules on disk are unknown.
///
/// # Errors
/// If the list of the modules on disk cannot be read.
pub fn kernel_without(
    files: &dyn ReadFiles,
    kernel: &str,
    modules: &[&str],
) -> Result<bool, FilesError> {
    let list = files.read_text(&kmod::list_of(kernel))?;
    Ok(list.is_some_and(|list| {
        let has = |module: &&str| list.contains(&format!("/{module}.ko"));
        !modules.iter().all(has)
    }))
}
