//! The machine that the stand-ins for `libnvidia-ml.so.1` and `libcuda.so.1` show: its GPUs and its
//! faults come from one TOML file, so that both libraries agree. `../nvml/README.md` describes it.

pub mod code;
pub mod cuda;
pub mod faults;
pub mod gpu;
pub mod inventory;
pub mod mig;
pub mod model;
