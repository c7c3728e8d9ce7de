//! A fake `libnvidia-ml.so.1`: it exports NVML's C functions, and reads its GPUs and faults from a TOML file. Programs
//! under test open it with the real `dlopen`.
//!
//! The file is read when NVML is initialized. `README.md` describes it and its location.

mod api;
mod call;
mod pointer;
mod state;
mod store;

pub use fake_inventory::{faults, gpu, inventory, mig, model};
pub use pointer::version_of;

/// The names of all exported functions.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    api::symbols()
}
