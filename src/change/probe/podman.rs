//! The container probe in Podman, which gets the GPUs by the CDI specification alone.

use std::time::Duration;

use super::{
    client::{CONTAINER, quiet, view},
    error::ProbeError,
    root::Root,
};
use crate::{
    change::Sink,
    host::{Cmd, ExecError, Host},
    tools::{container_view::ContainerView, podman},
};

/// Every GPU of the specification.
const DEVICE: &str = "--device=nvidia.com/gpu=all";

pub(super) async fn run(
    host: &Host,
    root: &Root,
    image: Option<&str>,
    deadline: Duration,
    sink: &dyn Sink,
) -> Result<ContainerView, ProbeError> {
    // The container of an interrupted probe still has the name.
    let clear = podman::remove_container(CONTAINER);
    quiet(host, &clear, sink).await?;
    let mut args: Vec<String> = ["run", "--rm", "--network=none", DEVICE]
        .into_iter()
        .map(str::to_owned)
        .collect();
    args.push(format!("--name={CONTAINER}"));
    // SELinux would keep the container from the driver's nodes.
    args.push("--security-opt=label=disable".to_owned());
    let mut command = root.command().into_iter();
    match image {
        None => args.extend(["--rootfs".to_owned(), root.folder.to_string()]),
        Some(image) => {
            for (source, place) in root.mounts() {
                args.push(format!(
                    "--mount=type=bind,source={source},target={place},readonly"
                ));
            }
            args.push("--pull=never".to_owned());
            args.extend(command.next().map(|first| format!("--entrypoint={first}")));
            args.push(image.to_owned());
        }
    }
    args.extend(command.map(str::to_owned));
    let ran = view(host, &Cmd::new("podman", args).deadline(deadline), sink).await;
    if matches!(ran, Err(ProbeError::Exec(ExecError::Deadline { .. })))
        && let Err(error) = quiet(host, &clear, sink).await
    {
        sink.line(&format!(
            "the container `{CONTAINER}` may still exist: {error}"
        ));
    }
    ran
}
