//! NVIDIA's fabric manager: the names of its unit and of its packages.

pub const UNIT: &str = "nvidia-fabricmanager.service";

/// Its package: with the branch in its name before 580, and as RPM packages were called before.
pub const PACKAGES: [&str; 3] = [
    "nvidia-fabricmanager",
    "nvidia-fabricmanager-*",
    "nvidia-fabric-manager",
];

/// The package of the NVLink subnet manager, which the fabric manager starts where it is needed.
pub const SUBNET_MANAGER: &str = "nvlsm";

/// The modules of the kernel through which the subnet manager reaches switches behind network devices. Where one is not
/// loaded, the fabric manager finds no switch.
///
/// Sources: NVIDIA/gpu-operator issue 2781, spectrocloud/CanvOS PR 700.
pub const SUBNET_MODULES: [&str; 2] = ["mlx5_ib", "ib_umad"];
