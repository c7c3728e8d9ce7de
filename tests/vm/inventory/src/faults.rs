//! Injected faults.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::code::Code;
use crate::cuda::CudaFaults;

/// The table `[faults]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Faults {
    /// Functions that never return; `init` means all forms of `nvmlInit`.
    pub hang: Vec<String>,
    /// Functions that return 13, function not found.
    pub missing_symbols: Vec<String>,
    /// Return codes by function.
    pub returns: BTreeMap<String, u32>,
    /// Calls of functions in each process that succeed before the fault of the function, which must be in `hang`, `returns` or
    /// `missing-symbols`.
    pub after: BTreeMap<String, u32>,
    /// Initialization returns 9.
    pub driver_not_loaded: bool,
    /// Initialization returns 18.
    pub version_mismatch: bool,
    /// Initialization succeeds, but there is no GPU.
    pub no_devices: bool,
    /// NVML lists only this many GPUs.
    pub fewer_devices: Option<usize>,
    /// Indices of GPUs whose handle lookup returns 15.
    pub gpu_lost: Vec<usize>,
    /// Indices of GPUs whose handle lookup returns 16.
    pub reset_required: Vec<usize>,
    /// Faults of the CUDA driver API.
    pub cuda: CudaFaults,
}

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never returns.
    Hang,
    /// It returns this.
    Return(Code),
}

/// The name for all forms of `nvmlInit`.
const INIT: &str = "init";

impl Faults {
    /// The fault of a function, for all devices.
    pub fn on(&self, symbol: &str) -> Option<Fault> {
        find(&self.hang, &self.returns, symbol).or_else(|| {
            self.missing_symbols
                .iter()
                .any(|missing| missing == symbol)
                .then_some(Fault::Return(Code::FUNCTION_NOT_FOUND))
        })
    }

    /// The fault of the initialization.
    pub fn on_init(&self, symbol: &str) -> Option<Fault> {
        if self.hang.iter().any(|name| name == INIT) {
            return Some(Fault::Hang);
        }
        if let Some(code) = self.returns.get(INIT) {
            return returning(*code);
        }
        if self.driver_not_loaded {
            return Some(Fault::Return(Code::DRIVER_NOT_LOADED));
        }
        if self.version_mismatch {
            return Some(Fault::Return(Code::LIB_RM_VERSION_MISMATCH));
        }
        self.on(symbol)
    }

    /// The number of GPUs that NVML lists.
    pub fn visible(&self, gpus: usize) -> usize {
        if self.no_devices {
            return 0;
        }
        self.fewer_devices.map_or(gpus, |few| few.min(gpus))
    }

    /// The error code of a GPU's handle lookup.
    pub fn on_handle(&self, gpu: usize) -> Option<Code> {
        if self.gpu_lost.contains(&gpu) {
            return Some(Code::GPU_IS_LOST);
        }
        self.reset_required
            .contains(&gpu)
            .then_some(Code::RESET_REQUIRED)
    }

    /// Every function in these faults.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let listed = self.hang.iter().chain(&self.missing_symbols);
        listed
            .chain(self.returns.keys())
            .chain(self.after.keys())
            .map(String::as_str)
            .filter(|name| *name != INIT)
    }
}

/// The fault of a function in a list of hanging functions and a table of return codes.
pub fn find(hang: &[String], returns: &BTreeMap<String, u32>, symbol: &str) -> Option<Fault> {
    if hang.iter().any(|name| name == symbol) {
        return Some(Fault::Hang);
    }
    returns.get(symbol).and_then(|code| returning(*code))
}

/// 0 is success, not a fault.
fn returning(code: u32) -> Option<Fault> {
    (code != 0).then_some(Fault::Return(Code(code)))
}
