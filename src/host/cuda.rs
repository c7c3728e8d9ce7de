//! Results of the CUDA driver API as data: device list, computation of each device, errors.

use serde::{Deserialize, Serialize};

/// Results of the CUDA driver API. If the initialization fails, there are no results of devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaView {
    /// The result of the initialization.
    pub start: Result<CudaStart, CudaFault>,
    /// The results of the requested devices, in the requested order.
    pub devices: Vec<CudaDevice>,
}

/// The devices listed by CUDA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaStart {
    /// The latest CUDA version that the driver supports, such as `13.0`.
    pub version: String,
    /// The UUIDs of the devices by index. A process without a device selection sees at most one MIG
    /// device.
    pub uuids: Vec<String>,
}

/// The result of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaDevice {
    /// The requested UUID.
    pub uuid: String,
    /// The result of the computation.
    pub result: Result<CudaWork, CudaFault>,
}

/// Properties of a device that has computed successfully.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaWork {
    /// Marketing name.
    pub name: String,
    /// Such as `9.0`.
    pub compute_capability: String,
    pub memory_bytes: u64,
    /// The duration of the computation.
    pub seconds: f64,
}

/// An error of the CUDA driver API, or of the process that calls it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum CudaFault {
    /// The dynamic loader rejected the library. Contains its message.
    #[error("`libcuda.so.1` cannot be opened: {why}")]
    NotLoadable { why: String },
    #[error("`libcuda.so.1` has no function `{call}`")]
    NoFunction { call: String },
    /// A function returned an error, which is a `CUresult`.
    #[error("`{call}` returned {code}")]
    Returned { call: String, code: i32 },
    /// A phase timed out, and the process was killed.
    #[error("{phase} timed out after {after_seconds} s")]
    Hung { phase: String, after_seconds: u64 },
    /// The process crashed in a phase.
    #[error("while {phase}, the process {why}")]
    Crashed { phase: String, why: String },
    /// A copy to the GPU and back changed the data. `at` is the byte offset of the first difference.
    #[error("data read back from the GPU differs from the written data, first at byte {at}")]
    WrongCopy { at: u64 },
    /// The GPU computed a wrong result. `at` is the index of the first different number.
    #[error("the GPU result differs from the CPU result, first at index {at}")]
    WrongResult { at: u64 },
    /// CUDA does not list the requested device.
    #[error("CUDA lists {found} instead of the device that NVML lists")]
    OtherDevice { found: String },
    /// Commands must not be executed, for example with `--root`.
    #[error("CUDA was not queried: {why}")]
    NotQueried { why: String },
    /// The process could not be started, or its output could not be parsed.
    #[error("{why}")]
    Failed { why: String },
}

impl CudaView {
    /// Creates a view that contains only the error.
    pub fn without(fault: CudaFault) -> Self {
        Self {
            start: Err(fault),
            devices: Vec::new(),
        }
    }
}
