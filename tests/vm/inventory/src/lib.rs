//! The machine that the fakes of `libnvidia-ml.so.1` and `libcuda.so.1` simulate: its GPUs and faults come from one
//! TOML file, so that both libraries are consistent. `../nvml/README.md` describes it.

pub mod code;
pub mod cuda;
pub mod faults;
pub mod gpu;
pub mod instances;
pub mod inventory;
pub mod mig;
pub mod model;
