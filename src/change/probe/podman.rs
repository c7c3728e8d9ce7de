//! The container probe in Podman, which gets the GPUs by the CDI specification alone.

use super::{
    error::ProbeError,
    job::{CONTAINER, Job, Ran},
};
use crate::tools::podman;

/// Every GPU of the specification.
const DEVICE: &str = "--device=nvidia.com/gpu=all";

/// Runs the container to its end.
///
/// # Errors
/// See [`ProbeError`].
pub(super) async fn run(job: &Job<'_>) -> Result<Ran, ProbeError> {
    // The container of an interrupted probe still has the name.
    clear(job).await?;
    let mut args: Vec<String> = ["run", "--rm", "--network=none", DEVICE]
        .into_iter()
        .map(str::to_owned)
        .collect();
    args.push(format!("--name={CONTAINER}"));
    // SELinux would keep the container from the driver's nodes.
    args.push("--security-opt=label=disable".to_owned());
    let mut command = job.command.iter();
    match (job.image, job.root) {
        (None, Some(root)) => {
            args.extend(["--rootfs", "--", root.folder.as_str()].map(str::to_owned))
        }
        (image, root) => {
            for (source, place) in root.iter().flat_map(|root| root.mounts()) {
                args.push(format!(
                    "--mount=type=bind,source={source},target={place},readonly"
                ));
            }
            args.push("--pull=never".to_owned());
            args.extend(command.next().map(|first| format!("--entrypoint={first}")));
            args.extend(["--"].into_iter().chain(image).map(str::to_owned));
        }
    }
    args.extend(command.map(|word| (*word).to_owned()));
    job.contain(args, "podman", async || clear(job).await).await
}

/// Removes the container of a probe that was broken off.
///
/// # Errors
/// When Podman refuses.
pub(super) async fn clear(job: &Job<'_>) -> Result<(), ProbeError> {
    job.quiet(&podman::remove_container(CONTAINER)).await
}
