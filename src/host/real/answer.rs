//! NVML conventions: struct versions, missing values, and error codes.

use nvml_wrapper::error::NvmlError;

/// Returns `None` for values that are not available, e.g. because the driver or the GPU does not
/// support them.
pub(super) fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NoPermission
            | NvmlError::NoData
            | NvmlError::UnexpectedVariant(_)
            | NvmlError::Utf8Error(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the numeric NVML return code as in `nvml.h`, or `None` for errors of the wrapper.
pub(super) fn code(error: &NvmlError) -> Option<i32> {
    Some(match error {
        NvmlError::Uninitialized => 1,
        NvmlError::InvalidArg => 2,
        NvmlError::NotSupported => 3,
        NvmlError::NoPermission => 4,
        NvmlError::NotFound => 6,
        NvmlError::InsufficientSize(_) => 7,
        NvmlError::InsufficientPower => 8,
        NvmlError::DriverNotLoaded => 9,
        NvmlError::Timeout => 10,
        NvmlError::IrqIssue => 11,
        NvmlError::LibraryNotFound => 12,
        NvmlError::FunctionNotFound => 13,
        NvmlError::CorruptedInfoROM => 14,
        NvmlError::GpuLost => 15,
        NvmlError::ResetRequired => 16,
        NvmlError::OperatingSystem => 17,
        NvmlError::LibRmVersionMismatch => 18,
        NvmlError::InUse => 19,
        NvmlError::InsufficientMemory => 20,
        NvmlError::NoData => 21,
        NvmlError::VgpuEccNotSupported => 22,
        NvmlError::Unknown => 999,
        // A code that the wrapper does not know.
        NvmlError::UnexpectedVariant(code) => return i32::try_from(*code).ok(),
        _ => return None,
    })
}

/// Returns the version of a struct as computed by `NVML_STRUCT_VERSION` in `nvml.h` (size and
/// number).
pub(super) fn version_of<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX) | (number << 24)
}
