//! A stand-in for `libnvidia-ml.so.1`: it exports NVML's C functions, and its GPUs and its faults
//! come from a TOML file. Programs under test open it through the real `dlopen` path.
//!
//! The file is read when NVML is initialised. `README.md` says where it is read from, and describes it.

mod api;
mod call;
mod pointer;
mod state;

pub use standin_inventory::{faults, gpu, inventory, mig, model};

/// The names of all exported functions.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    api::symbols()
}
