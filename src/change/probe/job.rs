//! A container that is run to its end, with the client of each runtime.

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

/// The image that is made for the probe, and removed after it, where a folder is not enough as the root filesystem.
pub(super) const IMAGE: &str = "gpu-bootstrap/probe:local";
/// The name of its container.
const CONTAINER: &str = "gpu-bootstrap-probe";
/// A container to run.
pub(super) struct ContainerRun<'j> {
    pub(super) host: &'j Host,
    pub(super) sink: &'j dyn Sink,
    pub(super) runtime: RuntimeKind,
    /// Its client.
    pub(super) client: &'static dyn Containers,
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
        let (mounts, command) = (root.mounts(), root.command());
        let container = OneContainer {
            name: CONTAINER,
            image: self.image,
            own_image: IMAGE,
            root: &root.folder,
            mounts: self.image.map_or(&[][..], |_| &mounts),
            command: &command,
        };
        let cmd = self.client.start(&container).deadline(limit);
        let archive = root.folder.with_extension("tar");
        let import = match self.image {
            None => self.client.import(&archive, IMAGE),
            Some(_) => None,
        };
        if let Some(import) = &import {
            let pack = tar::pack(&archive, &root.folder, &["."]);
            self.quiet(&pack.deadline(PREPARE_DEADLINE)).await?;
            self.quiet(import).await?;
        }
        // The container of an interrupted probe still has the name.
        match self.remove_container().await {
            // Older ones call it an error that there is none.
            Err(ExecError::Failed { .. }) if self.client.may_miss() => {}
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
        let removed = match import {
            Some(_) => self.quiet(&self.client.remove_image(IMAGE)).await,
            None => Ok(()),
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
        let made = self.image.is_none()
            && makes_image(self.client)
            && has_image(self.host.reader(), self.runtime, IMAGE).await? == Some(true);
        match made {
            true => self.quiet(&self.client.remove_image(IMAGE)).await,
            false => Ok(()),
        }
    }

    /// Ends and removes the container.
    async fn remove_container(&self) -> Result<(), ExecError> {
        let line = |text: &str| self.sink.line(text);
        (self.client)
            .remove(self.host, CONTAINER, self.image, &line)
            .await
    }

    /// Runs a command whose output is only passed to the sink.
    async fn quiet(&self, cmd: &Cmd) -> Result<(), ExecError> {
        runtimes::quiet(self.host, cmd, &|text: &str| self.sink.line(text)).await
    }
}

/// Whether a container needs an image of its own.
pub(super) fn makes_image(client: &dyn Containers) -> bool {
    client.import(Utf8Path::new(""), IMAGE).is_some()
}
