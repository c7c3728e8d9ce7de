//! The container probe with Docker.

use super::{
    error::ProbeError,
    job::{CONTAINER, ENVIRONMENT, IMAGE, Job, PREPARE_DEADLINE, Ran},
    root::Root,
};
use crate::{
    change::has_image,
    config::desired::RuntimeKind,
    host::Cmd,
    tools::{docker, tar},
};

/// Runs the container to its end.
///
/// # Errors
/// See [`ProbeError`].
pub(super) async fn run(job: &Job<'_>) -> Result<Ran, ProbeError> {
    let own = match (job.image, job.root) {
        (None, Some(root)) => {
            import(job, root).await?;
            true
        }
        _ => false,
    };
    // The container of an interrupted probe still has the name.
    job.host
        .exec
        .run(&remove_container(), &mut |_, _| {})
        .await?;
    let mut args: Vec<String> = [
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        "--runtime=nvidia",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    args.push(format!("--name={CONTAINER}"));
    args.extend(ENVIRONMENT.iter().map(|pair| format!("--env={pair}")));
    if let (false, Some(root)) = (own, job.root) {
        for (source, place) in root.mounts() {
            args.push(format!(
                "--mount=type=bind,source={source},target={place},readonly"
            ));
        }
    }
    let mut command = job.command.iter();
    args.extend(command.next().map(|first| format!("--entrypoint={first}")));
    args.extend(["--", job.image.unwrap_or(IMAGE)].map(str::to_owned));
    args.extend(command.map(|word| (*word).to_owned()));
    let ran = job
        .contain(args, "docker", async || {
            job.quiet(&remove_container()).await
        })
        .await;
    if own {
        let removed = job.quiet(&remove_image()).await;
        // The result of the container comes first; a left image is reported only after a success.
        return ran.and_then(|ran| removed.map(|()| ran));
    }
    ran
}

/// Removes the container of a probe that was broken off, and the own image.
///
/// # Errors
/// When Docker refuses.
pub(super) async fn clear(job: &Job<'_>) -> Result<(), ProbeError> {
    job.quiet(&remove_container()).await?;
    // It may have been broken off before the image was made.
    let made = job.image.is_none()
        && has_image(job.host.reader(), RuntimeKind::Docker, IMAGE).await? == Some(true);
    match made {
        true => job.quiet(&remove_image()).await,
        false => Ok(()),
    }
}

fn remove_container() -> Cmd {
    docker::remove_container(CONTAINER).deadline(PREPARE_DEADLINE)
}

fn remove_image() -> Cmd {
    Cmd::new("docker", ["rmi", "--force", "--", IMAGE]).deadline(PREPARE_DEADLINE)
}

/// Makes the own image.
async fn import(job: &Job<'_>, root: &Root) -> Result<(), ProbeError> {
    let archive = root.folder.with_extension("tar");
    let pack = tar::pack(&archive, &root.folder, &["."]);
    job.quiet(&pack.deadline(PREPARE_DEADLINE)).await?;
    let import = docker::import(&archive, IMAGE);
    job.quiet(&import.deadline(PREPARE_DEADLINE)).await
}
