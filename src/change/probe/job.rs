//! A container that is run to its end, with the client of each runtime.

use std::time::Duration;

use super::root::Root;
use crate::{
    change::{Sink, has_image},
    config::desired::RuntimeKind,
    host::{Cmd, ExecError, Host, Output},
    tools::{ctr, docker, podman, tar, toolkit},
};

/// The image that is made for the probe, and removed after it. Only Docker needs one: the others take a
/// folder as the root filesystem.
pub(super) const IMAGE: &str = "gpu-bootstrap/probe:local";
/// The name of its container.
const CONTAINER: &str = "gpu-bootstrap-probe";
/// The time limit to pack and import a few megabytes, which needs no GPU, and to remove a container.
const PREPARE_DEADLINE: Duration = Duration::from_secs(120);

/// The variables that request all GPUs and the compute libraries from the nvidia runtime.
const VARIABLES: &str =
    "--env=NVIDIA_VISIBLE_DEVICES=all --env=NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// A container to run.
pub(super) struct ContainerRun<'j> {
    pub(super) host: &'j Host,
    pub(super) sink: &'j dyn Sink,
    pub(super) runtime: RuntimeKind,
    /// The name of the image for the runtime's client; `None` is an own one.
    pub(super) image: Option<&'j str>,
}

/// A container that has run.
pub(super) struct ContainerResult {
    pub(super) output: Output,
    pub(super) cmd: Cmd,
}

impl ContainerRun<'_> {
    /// Runs the program of `root` in the container to its end, for at most `limit`.
    ///
    /// # Errors
    /// When a command fails.
    pub(super) async fn run(
        &self,
        root: &Root,
        limit: Duration,
    ) -> Result<ContainerResult, ExecError> {
        let cmd = Cmd::new(self.client(), self.args(root)).deadline(limit);
        let own = match (self.runtime, self.image) {
            (RuntimeKind::Docker, None) => {
                let archive = root.folder.with_extension("tar");
                let pack = tar::pack(&archive, &root.folder, &["."]);
                self.quiet(&pack.deadline(PREPARE_DEADLINE)).await?;
                let import = docker::import(&archive, IMAGE);
                self.quiet(&import.deadline(PREPARE_DEADLINE)).await?;
                true
            }
            _ => false,
        };
        // The container of an interrupted probe still has the name.
        match self.remove_container().await {
            // Older ones call it an error that there is none.
            Err(ExecError::Failed { .. }) if self.runtime == RuntimeKind::Docker => {}
            removed => removed?,
        }
        let ran = (self.host.exec)
            .run(&cmd, &mut |_, line| self.sink.line(line))
            .await;
        // Only its client was ended: it still runs, and keeps its GPUs.
        if matches!(ran, Err(ExecError::Deadline { .. }))
            && let Err(error) = self.remove_container().await
        {
            self.sink.line(&format!(
                "the container `{CONTAINER}` may still exist: {error}"
            ));
        }
        let removed = match own {
            true => self.quiet(&docker::remove_image(IMAGE)).await,
            false => Ok(()),
        };
        // The result of the container comes first.
        let output = ran?;
        removed?;
        Ok(ContainerResult { output, cmd })
    }

    /// Removes the container of a probe that was broken off, and the own image.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub(super) async fn clear(&self) -> Result<(), ExecError> {
        self.remove_container().await?;
        // It may have been broken off before the image was made.
        let made = self.runtime == RuntimeKind::Docker
            && self.image.is_none()
            && has_image(self.host.reader(), self.runtime, IMAGE).await? == Some(true);
        match made {
            true => self.quiet(&docker::remove_image(IMAGE)).await,
            false => Ok(()),
        }
    }

    fn client(&self) -> &'static str {
        match self.runtime {
            RuntimeKind::Containerd => "ctr",
            other => other.name(),
        }
    }

    /// An image was pulled into the namespace of the kubelet.
    fn namespace(&self) -> &'static str {
        self.image.map_or(CONTAINER, |_| ctr::KUBERNETES)
    }

    fn args(&self, root: &Root) -> Vec<String> {
        // The nvidia runtime reads the variables, Podman the CDI specification alone.
        let options = match self.runtime {
            RuntimeKind::Docker => {
                format!("run --rm --network=none --runtime=nvidia --name={CONTAINER} {VARIABLES}")
            }
            // SELinux would keep the container from the driver's nodes.
            RuntimeKind::Podman => format!(
                "run --rm --network=none --device=nvidia.com/gpu=all --name={CONTAINER} \
                 --security-opt=label=disable"
            ),
            // The default of the CPU shares needs the CPU controller, which systemd does not enable on
            // every machine.
            RuntimeKind::Containerd => format!(
                "--namespace={} run --rm --cpu-shares=0 --runc-binary={} {VARIABLES}",
                self.namespace(),
                toolkit::RUNTIME
            ),
            RuntimeKind::Crio => String::new(),
        };
        let mut args: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        let mut command = root.command().into_iter().map(str::to_owned);
        let by_words = self.runtime == RuntimeKind::Containerd;
        let place = match self.image {
            None if self.runtime != RuntimeKind::Docker => {
                args.push("--rootfs".to_owned());
                root.folder.as_str()
            }
            image => {
                let read_only = match by_words {
                    true => "options=rbind:ro",
                    false => "readonly",
                };
                let mounts = image.map(|_| root.mounts()).into_iter().flatten();
                args.extend(mounts.map(|(source, place)| {
                    format!("--mount=type=bind,src={source},dst={place},{read_only}")
                }));
                if !by_words {
                    args.push("--pull=never".to_owned());
                    args.extend(command.next().map(|first| format!("--entrypoint={first}")));
                }
                image.unwrap_or(IMAGE)
            }
        };
        args.extend(["--", place].map(str::to_owned));
        // `ctr` takes the name as a word, and all that follows replaces the image's entry point.
        args.extend(by_words.then(|| CONTAINER.to_owned()));
        args.extend(command);
        args
    }

    /// Ends and removes the container.
    async fn remove_container(&self) -> Result<(), ExecError> {
        let remove = match self.runtime {
            RuntimeKind::Docker => docker::remove_container(CONTAINER).deadline(PREPARE_DEADLINE),
            RuntimeKind::Podman => podman::remove_container(CONTAINER),
            RuntimeKind::Containerd => {
                let namespace = self.namespace();
                let list = ctr::containers(namespace);
                let listed = (self.host.reader().query(&list).await?).success(list.cmd())?;
                if !listed.stdout.lines().any(|name| name.trim() == CONTAINER) {
                    return Ok(());
                }
                // Its task may have ended; if it still runs, the removal of the container fails.
                (self.host.exec)
                    .run(&ctr::end_task(namespace, CONTAINER), &mut |_, _| {})
                    .await?;
                ctr::remove_container(namespace, CONTAINER)
            }
            RuntimeKind::Crio => return Ok(()),
        };
        self.quiet(&remove).await
    }

    /// Runs a command whose output is only passed to the sink.
    async fn quiet(&self, cmd: &Cmd) -> Result<(), ExecError> {
        let output = (self.host.exec)
            .run(cmd, &mut |_, line| self.sink.line(line))
            .await?;
        output.success(cmd)?;
        Ok(())
    }
}
