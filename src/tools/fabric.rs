//! NVIDIA's fabric manager: the names of its unit and of its packages.

/// Its unit.
pub const UNIT: &str = "nvidia-fabricmanager.service";

/// Its package: with the branch in its name before 580, and as RPM packages were called before.
pub const PACKAGES: [&str; 3] = [
    "nvidia-fabricmanager",
    "nvidia-fabricmanager-*",
    "nvidia-fabric-manager",
];

/// The package of the NVLink subnet manager, which the fabric manager starts where it is needed.
pub const SUBNET_MANAGER: &str = "nvlsm";
