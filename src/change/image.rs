//! Container images: pulled, and removed by undo if they were not there before.

use std::time::Duration;

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    config::desired::RuntimeKind,
    host::{Cmd, ExecError, exec::Status},
    tools::{ctr, docker, podman},
};

/// Waiting times between attempts: registries limit rates, and networks fail for a while.
const BACKOFF: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

impl Applier {
    /// Whether the runtime has the image; `None` if its client is not installed.
    pub(super) async fn has_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
    ) -> Result<Option<bool>, ChangeError> {
        let query = match runtime {
            RuntimeKind::Docker => docker::inspect_image(image),
            RuntimeKind::Containerd => ctr::images(ctr::KUBERNETES),
            RuntimeKind::Podman => podman::has_image(image),
            // Nothing runs a container in it, so nothing needs an image.
            RuntimeKind::Crio => return Ok(None),
        };
        let what = || format!("look for the image `{image}`");
        let output = match self.host.reader().query(&query).await {
            Ok(output) => output,
            Err(ExecError::NotFound { .. }) => return Ok(None),
            Err(source) => {
                return Err(ChangeError::Tool {
                    what: what(),
                    source,
                });
            }
        };
        match runtime {
            RuntimeKind::Docker => {
                if !output.ok() && !output.stderr.to_lowercase().contains("no such image") {
                    // A daemon that does not answer has not said that the image is missing.
                    let source = output.success(query.cmd()).err();
                    return source.map_or(Ok(Some(true)), |source| {
                        Err(ChangeError::Tool {
                            what: what(),
                            source,
                        })
                    });
                }
                Ok(Some(output.ok()))
            }
            RuntimeKind::Containerd => {
                let output = output
                    .success(query.cmd())
                    .map_err(|source| ChangeError::Tool {
                        what: what(),
                        source,
                    })?;
                Ok(Some(output.stdout.lines().any(|line| line.trim() == image)))
            }
            RuntimeKind::Crio => Ok(None),
            RuntimeKind::Podman if output.status == Status::Exited(podman::NO_IMAGE) => {
                Ok(Some(false))
            }
            RuntimeKind::Podman => match output.success(query.cmd()) {
                Ok(_) => Ok(Some(true)),
                Err(source) => Err(ChangeError::Tool {
                    what: what(),
                    source,
                }),
            },
        }
    }

    pub(super) async fn capture_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
    ) -> Result<Undo, ChangeError> {
        Ok(match self.has_image(runtime, image).await? {
            Some(true) => Undo::Nothing {
                why: format!("the image `{image}` was there before"),
            },
            _ => Undo::RemoveImage {
                runtime,
                image: image.to_owned(),
            },
        })
    }

    pub(super) async fn pull_image(
        &self,
        runtime: RuntimeKind,
        image: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.has_image(runtime, image).await? == Some(true) {
            return Ok(());
        }
        let cmd = match runtime {
            RuntimeKind::Docker => docker::pull(image),
            RuntimeKind::Containerd => ctr::pull(ctr::KUBERNETES, image),
            RuntimeKind::Podman => podman::pull(image),
            RuntimeKind::Crio => return Ok(()),
        };
        self.pull_with_retries(image, &cmd, sink).await
    }

    async fn pull_with_retries(
        &self,
        image: &str,
        cmd: &Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = format!("pull the image `{image}`");
        let mut pauses = BACKOFF.iter();
        loop {
            let error = match self.tool(&what, cmd, sink).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let passes = match &error {
                ChangeError::Tool {
                    source: ExecError::Failed { tail, .. },
                    ..
                } => !is_permanent(tail),
                _ => false,
            };
            let (true, Some(pause)) = (passes, pauses.next()) else {
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
        match self.has_image(runtime, image).await? {
            None => {
                return Ok(Reverted::Nothing {
                    why: "the runtime is not installed any more".to_owned(),
                });
            }
            Some(false) => {
                return Ok(Reverted::Nothing {
                    why: format!("the image `{image}` is already gone"),
                });
            }
            Some(true) => {}
        }
        let cmd = match runtime {
            RuntimeKind::Docker => docker::remove_image(image),
            RuntimeKind::Containerd => ctr::remove(ctr::KUBERNETES, image),
            RuntimeKind::Podman => podman::remove_image(image),
            RuntimeKind::Crio => {
                return Ok(Reverted::Nothing {
                    why: "CRI-O got no image".to_owned(),
                });
            }
        };
        self.tool(&format!("remove the image `{image}`"), &cmd, sink)
            .await?;
        Ok(Reverted::Done {
            what: format!("removed the image `{image}`"),
        })
    }
}

/// Whether a registry's answer is permanent, so that another attempt cannot change it.
fn is_permanent(tail: &str) -> bool {
    let text = tail.to_lowercase();
    [
        "manifest unknown",
        "not found",
        "access denied",
        "unauthorized",
        "no matching manifest",
        "invalid reference",
        "no space left",
    ]
    .iter()
    .any(|sign| text.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::is_permanent;

    #[test]
    fn only_transient_failures_are_retried() {
        assert!(is_permanent("manifest for x:1 not found: manifest unknown"));
        assert!(is_permanent("pull access denied for x"));
        assert!(!is_permanent("net/http: TLS handshake timeout"));
        assert!(!is_permanent(
            "toomanyrequests: You have reached your pull rate limit"
        ));
    }
}
