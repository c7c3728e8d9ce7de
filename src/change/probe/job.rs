//! Runs a container to completion, with the client of each runtime.

use std::time::Duration;

use camino::Utf8Path;

use super::root::Root;
use crate::{
    change::{Sink, has_image},
    config::desired::RuntimeKind,
    host::{Cmd, ExecError, Host, Output},
    runtimes::{self, Containers, OneContainer, PREPARE_DEADLINE},
    tools::tar,
};

/// The image that is created for the probe and removed afterwards, if the runtime does not accept a directory as root
/// filesystem.
pub(super) const IMAGE: &str = "gpu-bootstrap/probe:local";
/// The container name.
const CONTAINER: &str = "gpu-bootstrap-probe";
pub(super) struct ContainerRun<'j> {
    pub(super) host: &'j Host,
    pub(super) sink: &'j dyn Sink,
    pub(super) runtime: RuntimeKind,
    /// The client of the runtime.
    pub(super) client: &'static dyn Containers,
    /// The configured image, as a name for the client. `None` if no image is configured: the container then contains only the
    /// program and its libraries.
    pub(super) image: Option<&'j str>,
}

/// The result of a container.
pub(super) struct ContainerResult {
    pub(super) output: Output,
    pub(super) cmd: Cmd,
}

impl ContainerRun<'_> {
    /// Runs the program in `root` in the container to completion, for at most `limit`.
    ///
    /// # Errors
    /// If a command fails.
    pub(super) async fn run(
        &self,
        root: &Root,
        limit: Duration,
    ) -> Result<ContainerResult, ExecError> {
        let (mounts, command) = (root.mounts(), root.command());
        let container = OneContainer {
            name: CONTAINER,
            image: self.image,
            own_image: IMAGE,
            root: &root.directory,
            mounts: self.image.map_or(&[][..], |_| &mounts),
            command: &command,
        };
        let cmd = self.client.start(&container).deadline(limit);
        let archive = root.directory.with_extension("tar");
        let import = match self.image {
            None => self.client.import(&archive, IMAGE),
            Some(_) => None,
        };
        if let Some(import) = &import {
            let pack = tar::pack(&archive, &root.directory, &["."]);
            self.quiet(&pack.deadline(PREPARE_DEADLINE)).await?;
            self.quiet(import).await?;
        }
        // The container of an interrupted probe may still use the name.
        self.remove_container_if_any().await?;
        let ran = (self.host.exec)
            .run(&cmd, &mut |_, line| self.sink.line(line))
            .await;
        // At the deadline, only the client was killed. The container still runs and uses its GPUs.
        if matches!(ran, Err(ExecError::Deadline { .. }))
            && let Err(error) = self.remove_container().await
        {
            self.sink.line(&format!(
                "the container `{CONTAINER}` may still exist: {error}"
            ));
        }
        let removed = match import {
            Some(_) => self.quiet(&self.client.remove_image(IMAGE)).await,
            None => Ok(()),
        };
        // An error of the container takes precedence.
        let output = ran?;
        removed?;
        Ok(ContainerResult { output, cmd })
    }

    /// Removes the container of an interrupted probe, and the image that the probe has created.
    ///
    /// # Errors
    /// If the runtime returns an error.
    pub(super) async fn clear(&self) -> Result<(), ExecError> {
        self.remove_container_if_any().await?;
        // The probe may have been interrupted before the image was created.
        let made = self.image.is_none()
            && makes_image(self.client)
            && has_image(self.host.reader(), self.runtime, IMAGE).await? == Some(true);
        match made {
            true => self.quiet(&self.client.remove_image(IMAGE)).await,
            false => Ok(()),
        }
    }

    /// Kills and removes the container of an interrupted probe.
    async fn remove_container_if_any(&self) -> Result<(), ExecError> {
        match self.remove_container().await {
            // Older clients return an error if the container does not exist.
            Err(ExecError::Failed { .. }) if self.client.may_miss() => Ok(()),
            removed => removed,
        }
    }

    /// Kills and removes the container.
    async fn remove_container(&self) -> Result<(), ExecError> {
        let line = |text: &str| self.sink.line(text);
        (self.client)
            .remove(self.host, CONTAINER, self.image, &line)
            .await
    }

    /// Runs a command and passes its output to the sink.
    async fn quiet(&self, cmd: &Cmd) -> Result<(), ExecError> {
        runtimes::quiet(self.host, cmd, &|text: &str| self.sink.line(text)).await
    }
}

/// Returns `true` if the probe must create an image, because the runtime does not accept a directory as root filesystem.
pub(super) fn makes_image(client: &dyn Containers) -> bool {
    client.import(Utf8Path::new(""), IMAGE).is_some()
}
