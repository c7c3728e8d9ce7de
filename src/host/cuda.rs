//! CUDA's driver API as data: what it lists, what each device computed, and what went wrong.

use serde::{Deserialize, Serialize};

/// What a look through CUDA's driver API found. What comes after a fault is not there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaView {
    /// How it started.
    pub start: Result<CudaStart, CudaFault>,
    /// What each device did that was asked for, in that order.
    pub devices: Vec<CudaDevice>,
}

/// What CUDA lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaStart {
    /// The newest CUDA version of the driver, as `13.0`.
    pub version: String,
    /// UUIDs of the devices, by index. In a process without a choice of its own CUDA lists one MIG
    /// device at most.
    pub uuids: Vec<String>,
}

/// One device, and how it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaDevice {
    /// The UUID that was asked for.
    pub uuid: String,
    /// What it did.
    pub result: Result<CudaWork, CudaFault>,
}

/// What a device that has computed is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaWork {
    /// Marketing name.
    pub name: String,
    /// As `9.0`.
    pub compute_capability: String,
    pub memory_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum CudaFault {
    /// The dynamic loader refuses the library, with its own words.
    #[error("`libcuda.so.1` cannot be opened: {why}")]
    NotLoadable { why: String },
    #[error("`libcuda.so.1` has no function `{call}`")]
    NoFunction { call: String },
    /// A function returned an error: a `CUresult`.
    #[error("`{call}` returned {code}")]
    Returned { call: String, code: i32 },
    /// A phase did not end in time, and the process was ended.
    #[error("{phase} did not end within {after_seconds} s")]
    Hung { phase: String, after_seconds: u64 },
    /// The process ended in a phase.
    #[error("while {phase}, the process {why}")]
    Crashed { phase: String, why: String },
    /// The byte offset of the first difference.
    #[error("what was read back from the GPU differs from what was written, first at byte {at}")]
    WrongCopy { at: u64 },
    /// The first number that differs.
    #[error("the GPU computed another result than the CPU, first in number {at}")]
    WrongResult { at: u64 },
    /// CUDA does not give the device that was asked for, but others or none.
    #[error("CUDA gives {found} for NVML's UUID")]
    OtherDevice { found: String },
    /// Nothing is executed there.
    #[error("CUDA was not asked: {why}")]
    NotAsked { why: String },
    /// The process could not be started or understood.
    #[error("{why}")]
    Failed { why: String },
}

impl CudaView {
    /// Nothing but the reason why there is nothing.
    #[must_use]
    pub fn without(fault: CudaFault) -> Self {
        Self {
            start: Err(fault),
            devices: Vec::new(),
        }
    }
}
