//! A machine in memory: stateful, written by hand, for tests of everything above `host`.
//!
//! It is compiled always, so that the scenario tests outside this crate use the same machine as
//! the unit tests inside it.

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

/// The parts of a fake [`Host`], to arrange the machine and to look at what was done to it.
#[derive(Clone)]
pub struct Fakes {
    /// The tree of files.
    pub files: FakeFiles,
    /// The programs, and the log of what ran.
    pub exec: FakeExec,
    /// What the network answers.
    pub http: FakeHttp,
    /// What NVML says.
    pub gpu: FakeGpu,
    /// The time, moved by hand and by sleeping.
    pub clock: FakeClock,
}

/// An empty machine: a root folder, no program, no network, no NVML.
#[must_use]
pub fn host() -> (Host, Fakes) {
    let files = FakeFiles::new();
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
    /// The machine as the code under test sees it.
    #[must_use]
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

/// A lock that outlives a panic of another test thread: the fake's state is plain data.
fn locked<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
