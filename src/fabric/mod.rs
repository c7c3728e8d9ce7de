//! Names of the NVIDIA fabric manager's unit and packages, and of the NVLink subnet manager.

use crate::{model::version::Branch, tools::packages::Manager};

pub const UNIT: &str = "nvidia-fabricmanager.service";

/// Package names. Before branch 580, NVIDIA's repositories have `nvidia-fabricmanager-BRANCH` (apt) and
/// `nvidia-fabric-manager` (dnf). The packages in the Ubuntu archive always contain the branch.
pub const PACKAGES: [&str; 3] = [
    "nvidia-fabricmanager",
    "nvidia-fabricmanager-*",
    "nvidia-fabric-manager",
];

/// The first branch whose packages have the same name in all repositories (`profiles`, `[[fabric]]`).
const ONE_NAME: Branch = Branch(580);

/// Returns the package of the fabric manager for a driver branch. Before branch 580, its name depends on the package manager
/// (AWS ParallelCluster cookbook; NVIDIA repositories for Ubuntu and RHEL).
#[must_use]
pub fn package(branch: Branch, manager: Option<Manager>) -> String {
    match manager {
        Some(manager) if branch < ONE_NAME => match manager.backend().has_branch_in_names() {
            true => format!("nvidia-fabricmanager-{branch}"),
            false => "nvidia-fabric-manager".to_owned(),
        },
        _ => "nvidia-fabricmanager".to_owned(),
    }
}

/// The package of the NVLink subnet manager. The fabric manager starts it on machines that need it.
pub const SUBNET_MANAGER: &str = "nvlsm";

/// The kernel modules that the subnet manager needs to access switches behind network devices. If one is not loaded, the fabric
/// manager finds no switch.
///
/// Sources: NVIDIA/gpu-operator issue 2781, spectrocloud/CanvOS PR 700.
pub const SUBNET_MODULES: [&str; 2] = ["mlx5_ib", "ib_umad"];
