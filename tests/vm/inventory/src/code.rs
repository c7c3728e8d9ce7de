//! NVML return codes for faults.

/// An NVML return code other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const UNINITIALIZED: Self = Self(1);
    pub const INVALID_ARGUMENT: Self = Self(2);
    pub const NOT_SUPPORTED: Self = Self(3);
    pub const NO_PERMISSION: Self = Self(4);
    pub const NOT_FOUND: Self = Self(6);
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    pub const FUNCTION_NOT_FOUND: Self = Self(13);
    pub const GPU_IS_LOST: Self = Self(15);
    pub const RESET_REQUIRED: Self = Self(16);
    pub const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub const IN_USE: Self = Self(19);
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub const UNKNOWN: Self = Self(999);
}
