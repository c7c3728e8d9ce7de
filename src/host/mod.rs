//! The machine, as six narrow capabilities. A new tool never adds a method here: the knowledge of a
//! tool is in `tools`, which runs it through `Exec`.

pub mod clock;
pub mod cuda;
pub mod digest;
pub mod exec;
pub mod fake;
pub mod files;
pub mod gpu;
pub mod health;
pub mod http;
pub mod memory;
mod os;
pub mod read_only;
pub mod real;
pub mod record;
pub mod rooted;
pub mod system;
pub mod trusted;
pub mod view;

use std::sync::Arc;

pub use clock::Clock;
pub use cuda::{CudaDevice, CudaFault, CudaStart, CudaView, CudaWork};
pub use exec::{Cmd, Exec, ExecError, Output, Query, Stream};
pub use files::{FileKind, Files, FilesError, ReadFiles, Stat};
pub use gpu::{
    FabricHealth, FabricProgress, Gpu, GpuFabric, MigDevice, MigShare, Nvml, NvmlDevice, NvmlView,
};
pub use health::GpuHealth;
pub use http::{Http, HttpError, HttpRequest, HttpResponse, Method, RetryLimit, Route, ask_again};
pub use system::System;

/// The six capabilities through which everything outside this process is reached.
#[derive(Clone)]
pub struct Host {
    /// Files: read, write atomically, remove, list, stat.
    pub files: Arc<dyn Files>,
    /// Child processes; never a shell.
    pub exec: Arc<dyn Exec>,
    pub http: Arc<dyn Http>,
    /// NVML and CUDA, called in child processes with deadlines.
    pub gpu: Arc<dyn Gpu>,
    /// Memory and processes.
    pub system: Arc<dyn System>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// What an assessing step sees of the host: nothing on it can write.
#[derive(Clone, Copy)]
pub struct Reader<'h>(&'h Host);

impl Host {
    /// The read-only view.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader(self)
    }
}

impl<'h> Reader<'h> {
    /// Files, to read.
    #[must_use]
    pub fn files(&self) -> &'h dyn ReadFiles {
        &*self.0.files
    }

    /// Runs a command that promises to change nothing.
    ///
    /// # Errors
    /// When it cannot be started, or exceeds its deadline. A non-zero status is not an error here:
    /// see [`Output::success`].
    pub async fn query(&self, query: &Query) -> Result<Output, ExecError> {
        self.0.exec.run(query.cmd(), &mut |_, _| {}).await
    }

    /// Memory and processes.
    #[must_use]
    pub fn system(&self) -> &'h dyn System {
        &*self.0.system
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> jiff::Timestamp {
        self.0.clock.now()
    }
}
