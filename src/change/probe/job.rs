//! A container that is run to its end, whatever runtime runs it.

use std::time::Duration;

use super::{error::ProbeError, root::Root};
use crate::{
    change::Sink,
    host::{Cmd, ExecError, Host, Output},
};

/// The image that is made for the probe, and removed after it.
pub(super) const IMAGE: &str = "gpu-bootstrap/probe:local";
/// The name of its container.
pub(super) const CONTAINER: &str = "gpu-bootstrap-probe";
/// The time limit to pack and import a few megabytes, which needs no GPU, and to remove a container.
pub(super) const PREPARE_DEADLINE: Duration = Duration::from_secs(120);

/// The variables that request all GPUs and the compute libraries from the nvidia runtime.
pub(super) const ENVIRONMENT: [&str; 2] = [
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
];

/// A container to run.
pub(super) struct Job<'j> {
    pub(super) host: &'j Host,
    pub(super) sink: &'j dyn Sink,
    /// This program and its libraries; `None` if a command of the image runs.
    pub(super) root: Option<&'j Root>,
    /// The name of the image for the runtime's client; `None` is an own one.
    pub(super) image: Option<&'j str>,
    /// The program and its arguments.
    pub(super) command: Vec<&'j str>,
    /// The time limit of the container.
    pub(super) limit: Duration,
}

impl Job<'_> {
    /// Runs a command whose output is only passed to the sink.
    pub(super) async fn quiet(&self, cmd: &Cmd) -> Result<(), ProbeError> {
        self.host
            .exec
            .run(cmd, &mut |_, line| self.sink.line(line))
            .await?
            .success(cmd)?;
        Ok(())
    }

    /// Runs the container. `clear` removes it if only its client was stopped at the time limit: it
    /// still runs then, and keeps its GPUs.
    pub(super) async fn contain(
        &self,
        args: Vec<String>,
        program: &str,
        clear: impl AsyncFnOnce() -> Result<(), ProbeError>,
    ) -> Result<Ran, ProbeError> {
        let cmd = Cmd::new(program, args).deadline(self.limit);
        let ran = (self.host.exec)
            .run(&cmd, &mut |_, line| self.sink.line(line))
            .await;
        if matches!(ran, Err(ExecError::Deadline { .. }))
            && let Err(error) = clear().await
        {
            self.sink.line(&format!(
                "the container `{CONTAINER}` may still exist: {error}"
            ));
        }
        Ok(Ran { output: ran?, cmd })
    }
}

/// A container that has run.
pub(super) struct Ran {
    pub(super) output: Output,
    pub(super) cmd: Cmd,
}
