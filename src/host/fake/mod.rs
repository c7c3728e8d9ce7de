//! A machine in memory, stateful and written by hand, for tests of all modules above `host`.
//!
//! It is always compiled, so that scenario tests outside this crate use the same machine as unit
//! tests.

mod clock;
mod exec;
mod files;
mod gpu;
mod http;
mod snapshot;
#[cfg(test)]
mod tests;
mod tree;
mod unsynced;

use std::sync::Arc;

pub use clock::FakeClock;
pub use exec::{FakeExec, failed, ok};
pub use files::{Damage, FakeFiles, Mutation};
pub use gpu::FakeGpu;
pub use http::FakeHttp;
pub use snapshot::{Snapshot, diff};

use super::Host;
use super::system::ProcFiles;

/// The parts of a fake [`Host`], for test setup and inspection.
#[derive(Clone)]
pub struct Fakes {
    /// The file tree.
    pub files: FakeFiles,
    /// The programs, and the log of commands.
    pub exec: FakeExec,
    /// The network.
    pub http: FakeHttp,
    /// NVML and CUDA.
    pub gpu: FakeGpu,
    /// The clock, which advances on request and when sleeping.
    pub clock: FakeClock,
}

/// Creates an empty machine: no files except `/dev/kmsg`, no programs, no URLs, no NVML.
pub fn host() -> (Host, Fakes) {
    let files = FakeFiles::new();
    files.put_device("/dev/kmsg", 1, 11);
    let fakes = Fakes {
        exec: FakeExec::new(&files),
        http: FakeHttp::default(),
        gpu: FakeGpu::default(),
        clock: FakeClock::default(),
        files,
    };
    (fakes.host(), fakes)
}

impl Fakes {
    /// The machine as seen by the code under test.
    pub fn host(&self) -> Host {
        Host {
            files: Arc::new(self.files.clone()),
            exec: Arc::new(self.exec.clone()),
            http: Arc::new(self.http.clone()),
            gpu: Arc::new(self.gpu.clone()),
            system: Arc::new(ProcFiles(Arc::new(self.files.clone()))),
            clock: Arc::new(self.clock.clone()),
        }
    }
}

/// Locks a mutex even if another test thread panicked, because the fake's state is plain data.
fn locked<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
