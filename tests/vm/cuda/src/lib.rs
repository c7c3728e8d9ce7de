//! A stand-in for `libcuda.so.1`: it exports the functions of CUDA's driver API that the probe calls,
//! and its GPUs and faults come from the file of the stand-in NVML. Memory of a device is memory of
//! the process, and the probe's one kernel is computed on the CPU.
//!
//! `README.md` describes it. The library is never shipped.

mod api;
mod call;
mod pointer;
mod process;

/// The names of all exported functions.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    api::SYMBOLS.iter().copied()
}
