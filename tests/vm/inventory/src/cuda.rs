//! Settings used only by the fake `libcuda.so.1`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `[faults.cuda]`: faults of CUDA driver API functions, for all devices.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CudaFaults {
    /// Functions that never return.
    pub hang: Vec<String>,
    /// Return codes by function.
    pub returns: BTreeMap<String, i32>,
    /// Functions that crash the process.
    pub crash: Vec<String>,
}

/// `[gpu.cuda]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct GpuCuda {
    /// Functions that never return for this GPU.
    pub hang: Vec<String>,
    /// Return codes by function for this GPU.
    pub returns: BTreeMap<String, i32>,
    /// A UUID that differs from NVML's.
    pub uuid: Option<String>,
    /// One number in the result of each kernel is wrong.
    pub computes_wrong: bool,
    /// One bit is wrong in data copied from this GPU to the host.
    pub corrupts_memory: bool,
}
