//! What the clients of all runtimes are run with: the name of the container, and how its answer is read.

use super::error::ProbeError;
use crate::{
    change::Sink,
    host::{Cmd, ExecError, Host},
    tools::container_view::ContainerView,
};

/// The name of the container.
pub(super) const CONTAINER: &str = "gpu-bootstrap-probe";

/// Runs a command whose output is only passed to the sink.
pub(super) async fn quiet(host: &Host, cmd: &Cmd, sink: &dyn Sink) -> Result<(), ProbeError> {
    host.exec
        .run(cmd, &mut |_, line| sink.line(line))
        .await?
        .success(cmd)?;
    Ok(())
}

/// Runs the container; its last output line is what it sees.
pub(super) async fn view(
    host: &Host,
    cmd: &Cmd,
    sink: &dyn Sink,
) -> Result<ContainerView, ProbeError> {
    let output = host
        .exec
        .run(cmd, &mut |_, line| sink.line(line))
        .await?
        .success(cmd)?;
    serde_json::from_str(output.stdout.trim()).map_err(|error| {
        ProbeError::Exec(ExecError::Unexpected {
            command: cmd.line(),
            why: format!("{error} in {:?}", crate::host::exec::tail(&output.stdout)),
        })
    })
}
