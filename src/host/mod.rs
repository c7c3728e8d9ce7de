//! The machine as six narrow interfaces. A new tool never adds a method here: the knowledge about a
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
    ComputeMode, FabricHealth, FabricProgress, Gpu, GpuFabric, MigDevice, MigPlacement, MigProfile,
    MigShare, MigSupport, Nvml, NvmlDevice, NvmlView, bare_uuid,
};
pub use health::GpuHealth;
pub(crate) use http::status_passes;
pub use http::{Http, HttpError, HttpRequest, HttpResponse, Method, RetryLimit, Route, ask_again};
pub use system::System;

/// The six interfaces to everything outside this process.
#[derive(Clone)]
pub struct Host {
    pub files: Arc<dyn Files>,
    /// Child processes, never with a shell.
    pub exec: Arc<dyn Exec>,
    pub http: Arc<dyn Http>,
    /// NVML and CUDA, called in child processes with deadlines.
    pub gpu: Arc<dyn Gpu>,
    /// Memory and processes.
    pub system: Arc<dyn System>,
    /// Clock and sleeping.
    pub clock: Arc<dyn Clock>,
}

/// The read-only view of the host for assessments.
#[derive(Clone, Copy)]
pub struct Reader<'h>(&'h Host);

impl Host {
    /// Returns the read-only view.
    pub fn reader(&self) -> Reader<'_> {
        Reader(self)
    }
}

impl<'h> Reader<'h> {
    /// Read access to files.
    pub fn files(&self) -> &'h dyn ReadFiles {
        &*self.0.files
    }

    /// Runs a command that does not change the machine.
    ///
    /// # Errors
    /// If the command cannot be started or exceeds its deadline. A non-zero status is not an error, see
    /// [`Output::success`].
    pub async fn query(&self, query: &Query) -> Result<Output, ExecError> {
        self.0.exec.run(query.cmd(), &mut |_, _| {}).await
    }

    /// Memory and processes.
    pub fn system(&self) -> &'h dyn System {
        &*self.0.system
    }

    /// The current time.
    pub fn now(&self) -> jiff::Timestamp {
        self.0.clock.now()
    }
}
