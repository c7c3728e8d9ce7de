//! What only the stand-in for `libcuda.so.1` reads.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `[faults.cuda]`: faults of functions of CUDA's driver API, whatever they are asked about.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CudaFaults {
    /// Functions that never return.
    pub hang: Vec<String>,
    /// Return codes by function.
    pub returns: BTreeMap<String, i32>,
    /// Functions during which the process ends as if it had crashed.
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
    /// Another UUID than NVML's.
    pub uuid: Option<String>,
    /// One number of each kernel's result is wrong.
    pub computes_wrong: bool,
    /// One bit of what is copied from this GPU to the host is wrong.
    pub corrupts_memory: bool,
}
