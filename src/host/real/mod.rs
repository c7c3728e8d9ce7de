//! The machine that this process runs on.

mod answer;
mod clock;
mod cuda;
mod disk;
mod exec;
mod files;
pub mod gpu;
mod health;
mod http;
mod lines;
mod lock;
mod ourselves;
mod sync;
mod system;
mod work;

pub use clock::RealClock;
pub use cuda::{TimeLimits, cuda_work};
pub use exec::RealExec;
pub use files::RealFiles;
pub use gpu::{NVML_VIEW, RealGpu, nvml_view};
pub use http::{HttpProxy, RealHttp};
pub use ourselves::Ourselves;
pub use system::RealSystem;

use std::sync::Arc;

use super::Host;

/// Returns this machine.
pub fn host() -> Host {
    let clock = Arc::new(RealClock);
    let exec = Arc::new(RealExec::default());
    Host {
        files: Arc::new(RealFiles),
        http: Arc::new(RealHttp::new(clock.clone(), None)),
        gpu: Arc::new(RealGpu::new(exec.clone())),
        exec,
        system: Arc::new(RealSystem),
        clock,
    }
}
