//! Names of the NVIDIA fabric manager's unit and packages, and of the NVLink subnet manager.

pub const UNIT: &str = "nvidia-fabricmanager.service";

/// Package names. Before branch 580, NVIDIA's repositories have `nvidia-fabricmanager-BRANCH` (apt) and
/// `nvidia-fabric-manager` (dnf). The packages in the Ubuntu archive always contain the branch.
pub const PACKAGES: [&str; 3] = [
    "nvidia-fabricmanager",
    "nvidia-fabricmanager-*",
    "nvidia-fabric-manager",
];

/// The package of the NVLink subnet manager. The fabric manager starts it on machines that need it.
pub const SUBNET_MANAGER: &str = "nvlsm";

/// The kernel modules that the subnet manager needs to access switches behind network devices. If one is not loaded, the fabric
/// manager finds no switch.
///
/// Sources: NVIDIA/gpu-operator issue 2781, spectrocloud/CanvOS PR 700.
pub const SUBNET_MODULES: [&str; 2] = ["mlx5_ib", "ib_umad"];
