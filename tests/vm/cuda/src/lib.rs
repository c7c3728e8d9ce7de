//! A fake `libcuda.so.1`: it exports the CUDA driver API functions that the probe calls, and reads its GPUs and faults
//! from the file of the fake NVML. Device memory is process memory, and the probe's kernel is computed on the CPU.
//!
//! `README.md` describes it. The library is never shipped.

mod api;
mod call;
mod mps;
mod pointer;
mod process;

/// The names of all exported functions.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    api::SYMBOLS.iter().copied()
}
