//! The container probe with containerd.

use super::{
    error::ProbeError,
    job::{CONTAINER, ENVIRONMENT, Job, Ran},
};
use crate::tools::{ctr, toolkit};

/// Runs the container to its end.
///
/// # Errors
/// See [`ProbeError`].
pub(super) async fn run(job: &Job<'_>) -> Result<Ran, ProbeError> {
    let namespace = namespace(job);
    // The container of an interrupted probe still has the name.
    clear(job).await?;
    let mut args = vec![
        format!("--namespace={namespace}"),
        "run".into(),
        "--rm".into(),
    ];
    // Its default needs the CPU controller, which systemd does not enable on every machine.
    args.push("--cpu-shares=0".to_owned());
    args.push(format!("--runc-binary={}", toolkit::RUNTIME));
    args.extend(ENVIRONMENT.iter().map(|pair| format!("--env={pair}")));
    match (job.image, job.root) {
        (None, Some(root)) => {
            args.extend(["--rootfs", "--", root.folder.as_str()].map(str::to_owned))
        }
        (image, root) => {
            for (source, place) in root.iter().flat_map(|root| root.mounts()) {
                args.push(format!(
                    "--mount=type=bind,src={source},dst={place},options=rbind:ro"
                ));
            }
            args.extend(["--"].into_iter().chain(image).map(str::to_owned));
        }
    }
    args.push(CONTAINER.to_owned());
    // They replace the image's entry point.
    args.extend(job.command.iter().map(|word| (*word).to_owned()));
    job.contain(args, "ctr", async || clear(job).await).await
}

/// The image was pulled into the namespace of the kubelet.
fn namespace(job: &Job<'_>) -> &'static str {
    job.image.map_or(CONTAINER, |_| ctr::KUBERNETES)
}

/// Removes the container of a probe that was broken off.
///
/// # Errors
/// When containerd refuses.
pub(super) async fn clear(job: &Job<'_>) -> Result<(), ProbeError> {
    let namespace = namespace(job);
    let list = ctr::containers(namespace);
    let listed = (job.host.reader().query(&list).await?).success(list.cmd())?;
    if !listed.stdout.lines().any(|name| name.trim() == CONTAINER) {
        return Ok(());
    }
    // Its task may have ended; if it still runs, the removal of the container fails.
    job.host
        .exec
        .run(&ctr::end_task(namespace, CONTAINER), &mut |_, _| {})
        .await?;
    job.quiet(&ctr::remove_container(namespace, CONTAINER))
        .await
}
