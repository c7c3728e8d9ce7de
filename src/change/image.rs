//! Pulls container images, or loads them from a bundle. The undo removes an image that did not exist before.

use std::time::Duration;

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    config::desired::RuntimeKind,
    error::one_line,
    host::{Cmd, ExecError, Reader},
    runtimes::{Containers, archive::ImageArchive},
    tools::faults,
};

/// Pauses between attempts. Registries limit rates, and networks fail temporarily.
const BACKOFF: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// Returns the names of an image in the runtime: the one of a pulled image, and the one of an image from a bundle. Empty if the
/// image is missing, and `None` if the client of the runtime is not installed.
///
/// # Errors
/// If the runtime could not be queried.
pub async fn image_names(
    host: Reader<'_>,
    runtime: RuntimeKind,
    image: &str,
) -> Result<Option<Vec<String>>, ExecError> {
    // Without a client no container is started, so no image is needed.
    let Some(client) = runtime.runtime().containers() else {
        return Ok(None);
    };
    let mut found = Vec::new();
    let names = [Some(client.image_name(image)), client.loaded_name(image)];
    for name in names.into_iter().flatten() {
        let query = client.find_image(&name);
        let output = match host.query(&query).await {
            Ok(output) => output,
            Err(ExecError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match client.has_image(&name, &output) {
            Some(true) => found.push(name),
            Some(false) => {}
            None => return Err(output.failure(query.cmd())),
        }
    }
    Ok(Some(found))
}

/// Returns whether the runtime has the image, or `None` if its client is not installed.
///
/// # Errors
/// If the runtime could not be queried.
pub async fn has_image(
    host: Reader<'_>,
    runtime: RuntimeKind,
    image: &str,
) -> Result<Option<bool>, ExecError> {
    let names = image_names(host, runtime, image).await?;
    Ok(names.map(|names| !names.is_empty()))
}

/// Describes the loading of an image.
pub(super) fn load_summary(runtime: RuntimeKind, image: &str, archive: &ImageArchive) -> String {
    let (name, path) = (runtime.name(), &archive.path);
    format!("load the image `{image}` into {name} from `{path}`")
}

impl Applier {
    pub(super) async fn has_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
    ) -> Result<Option<bool>, ChangeError> {
        let found = has_image(self.host.reader(), runtime, image).await;
        found.map_err(|source| ChangeError::tool(format!("look for the image `{image}`"), source))
    }

    pub(super) async fn capture_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
    ) -> Result<Undo, ChangeError> {
        Ok(match self.has_image(runtime, image).await? {
            Some(true) => Undo::nothing(format!("the image `{image}` already existed")),
            _ => Undo::RemoveImage {
                runtime,
                image: image.to_owned(),
            },
        })
    }

    /// Loads an image from the bundle of the run. The archive is verified first, because the manifest of the bundle only had to
    /// match its size.
    async fn load_image(
        &self,
        (runtime, client): (RuntimeKind, &dyn Containers),
        image: &str,
        archive: &ImageArchive,
        limit: Duration,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = load_summary(runtime, image, archive);
        let damaged = |why: &str| {
            ChangeError::blocked("bundle-damaged", format!("{what}: {why}"))
                .advice("copy the bundle again, and verify it with `gpu-bootstrap bundle verify`")
        };
        let files = &*self.host.files;
        match files.digest(&archive.path)? {
            None => return Err(damaged("the archive does not exist")),
            Some(content) if content.sha256 != archive.sha256 => {
                return Err(damaged("the archive has another SHA-256"));
            }
            Some(_) => {}
        }
        if let Some(why) = archive.issue(files, runtime, image)? {
            return Err(damaged(&why));
        }
        for cmd in client.load(image, &archive.id, &archive.path) {
            self.tool(&what, &cmd.deadline(limit), sink).await?;
        }
        match self.has_image(runtime, image).await? {
            Some(true) => Ok(()),
            _ => Err(ChangeError::new(
                "image-not-loaded",
                format!("{what}: the runtime does not have the image afterwards"),
            )),
        }
    }

    /// Pulls an image unless it exists, or loads it from an archive. Credentials are read from the configuration of the runtime's
    /// client: [`Containers::pull`](crate::runtimes::Containers::pull).
    pub(super) async fn pull_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
        archive: Option<&ImageArchive>,
        limit: Duration,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.has_image(runtime, image).await? == Some(true) {
            return Ok(());
        }
        let Some(client) = runtime.runtime().containers() else {
            return Ok(());
        };
        if let Some(archive) = archive {
            let by = (runtime, client);
            return self.load_image(by, image, archive, limit, sink).await;
        }
        let cmd = client.pull(&*self.host.files, &client.image_name(image))?;
        let cmd = match client.client_pulls() {
            true => self.by_proxy(cmd),
            false => cmd,
        };
        self.pull_with_retries(runtime, image, cmd, limit, sink)
            .await
    }

    /// Sets the proxy for clients that download images themselves. Other clients let their daemon download, with its own proxy
    /// settings.
    fn by_proxy(&self, mut cmd: Cmd) -> Cmd {
        if let Some(proxy) = &self.policy.proxy {
            cmd = cmd
                .secret_env("https_proxy", proxy)
                .secret_env("http_proxy", proxy);
        }
        match &self.policy.no_proxy {
            Some(direct) => cmd.env("no_proxy", direct),
            None => cmd,
        }
    }

    async fn pull_with_retries(
        &self,
        runtime: RuntimeKind,
        image: &str,
        cmd: Cmd,
        limit: Duration,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let begin = self.host.clock.monotonic();
        let left = || limit.saturating_sub(self.host.clock.monotonic().saturating_sub(begin));
        let mut pauses = BACKOFF.iter();
        loop {
            let cmd = cmd.clone().deadline(left());
            let ran = self.exec(&cmd, sink).await;
            let (error, again) = match ran.and_then(|output| output.success(&cmd)) {
                Ok(_) => return Ok(()),
                Err(error) => not_pulled(image, runtime.name(), &error, limit),
            };
            let pause = pauses.next().filter(|pause| **pause < left());
            let (true, Some(pause)) = (again, pause) else {
                return Err(error);
            };
            sink.retry(&error.to_string(), pause.as_secs_f64());
            self.pause_for(*pause, "wait before another attempt")
                .await?;
        }
    }

    pub(super) async fn remove_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let what = format!("remove the image `{image}`");
        let names = image_names(self.host.reader(), runtime, image).await;
        let names = names.map_err(|source| ChangeError::tool(&*what, source))?;
        let (Some(names), Some(client)) = (names, runtime.runtime().containers()) else {
            return Ok(Reverted::nothing("the runtime is no longer installed"));
        };
        if names.is_empty() {
            return Ok(Reverted::nothing(format!(
                "the image `{image}` no longer exists"
            )));
        }
        for name in names {
            let cmd = client.remove_image(&name);
            if let Err(error) = self.tool(&what, &cmd, sink).await {
                return match error.ended() {
                    // It is used by a container that we did not start.
                    Some(ended @ ExecError::Failed { .. }) if client.keeps_used_images() => Ok(
                        Reverted::left(format!("the image `{image}`"), one_line(ended)),
                    ),
                    _ => Err(error),
                };
            }
        }
        Ok(Reverted::done(format!("removed the image `{image}`")))
    }
}

/// The error of a client that could not pull, and whether a retry may help.
fn not_pulled(
    image: &str,
    runtime: &str,
    error: &ExecError,
    limit: Duration,
) -> (ChangeError, bool) {
    let what = format!("pull the image `{image}` with {runtime}");
    let (fault, said) = match error {
        ExecError::Deadline { .. } => {
            // The limit for all attempts together.
            let seconds = limit.as_secs();
            let what = format!("{what}: not downloaded within {seconds} s");
            let slow = ChangeError::new("image-slow", what)
                .advice("use a registry nearby, or increase `validation.pull-timeout`");
            return (slow, false);
        }
        // The lines before the last one report the progress of layers.
        ExecError::Failed { tail, .. } => (
            faults::of_pull(tail),
            (tail.lines().map(str::trim).rfind(|line| !line.is_empty())).map(str::to_owned),
        ),
        other => (faults::of_pull(""), Some(other.to_string())),
    };
    let problem = ChangeError {
        hint: fault.hint_for(runtime).map(str::to_owned),
        retryable: fault.retryable,
        ..ChangeError::new(&fault.reason, format!("{what}: {}", fault.what)).telling(said)
    };
    (problem, fault.again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::exec::Status;

    #[test]
    fn pull_error_contains_the_last_client_line() {
        let error = ExecError::Failed {
            command: "docker pull x".into(),
            status: Status::Exited(1),
            tail: "1: Pulling from x\nabc: Pulling fs layer\nmanifest unknown\n\n".into(),
        };
        let (error, again) = not_pulled("x", "docker", &error, Duration::ZERO);
        assert_eq!(
            error.to_string(),
            "pull the image `x` with docker: the image does not exist in the registry\nmanifest unknown"
        );
        assert_eq!(
            (error.reason, error.retryable, again),
            ("image-not-found", false, false)
        );
    }
}
