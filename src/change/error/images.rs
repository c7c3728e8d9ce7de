//! Why an image could not be pulled, by what the runtime's client says.

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
};

/// Why an image could not be pulled.
#[derive(Debug, thiserror::Error)]
#[error("pull the image `{image}` with {runtime}: {fault}{}", attached(.said))]
pub struct ImageError {
    pub image: String,
    pub runtime: &'static str,
    /// The kind of fault.
    pub fault: ImageFault,
    /// What the client says.
    pub said: Option<String>,
}

/// What is wrong with a registry, a connection or an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFault {
    /// The registry has no such image.
    NotFound,
    /// The registry wants a login, or does not accept it.
    Unauthorised,
    /// What was downloaded is not what the image's digests say.
    Damaged,
    /// It took too long.
    Slow {
        /// The time limit in seconds.
        seconds: u64,
    },
    /// Nothing answers at the registry's address.
    Unreachable,
    /// The registry speaks HTTP, the client HTTPS.
    Unencrypted,
    /// The registry's certificate is of nobody whom this machine trusts, or it is not valid.
    Untrusted,
    /// The registry refuses further requests for a while.
    TooManyRequests,
    /// The image is not there for this architecture.
    OtherArchitecture,
    /// It is not a name of an image.
    NoName,
    /// The disk is full.
    NoSpace,
    /// Something else.
    Other,
}

impl std::fmt::Display for ImageFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("the registry does not have it"),
            Self::Unauthorised => f.write_str("the registry wants a login that it accepts"),
            Self::Damaged => f.write_str("what was downloaded does not match the image's digests"),
            Self::Slow { seconds } => write!(f, "it was not downloaded within {seconds} s"),
            Self::Unreachable => f.write_str("the registry does not answer"),
            Self::Unencrypted => f.write_str("the registry does not use HTTPS"),
            Self::Untrusted => {
                f.write_str("this machine does not trust the registry's certificate")
            }
            Self::TooManyRequests => f.write_str("the registry refuses more requests for now"),
            Self::OtherArchitecture => f.write_str("it does not exist for this architecture"),
            Self::NoName => f.write_str("this is not the name of an image"),
            Self::NoSpace => f.write_str("the disk is full"),
            Self::Other => f.write_str("it failed"),
        }
    }
}

/// What clients say, in lower case, with the fault that it means. The first that is found counts.
///
/// Read in what the clients of Docker 20.10 and containerd 1.6 print in the cases `registry` and
/// `registry-containerd`, and in the errors of the registry's API
/// (<https://distribution.github.io/distribution/spec/api/#errors-2>).
const SIGNS: [(&str, ImageFault); 33] = [
    ("no space left", ImageFault::NoSpace),
    ("toomanyrequests", ImageFault::TooManyRequests),
    ("too many requests", ImageFault::TooManyRequests),
    ("invalid reference", ImageFault::NoName),
    ("no matching manifest", ImageFault::OtherArchitecture),
    ("no match for platform", ImageFault::OtherArchitecture),
    ("verification failed", ImageFault::Damaged),
    ("unexpected commit digest", ImageFault::Damaged),
    ("failed size validation", ImageFault::Damaged),
    ("unexpected commit size", ImageFault::Damaged),
    ("digest mismatch", ImageFault::Damaged),
    ("digest invalid", ImageFault::Damaged),
    ("http response to https client", ImageFault::Unencrypted),
    (
        "first record does not look like a tls",
        ImageFault::Unencrypted,
    ),
    // crypto/x509 of Go, in which all clients are written.
    ("x509:", ImageFault::Untrusted),
    ("no basic auth credentials", ImageFault::Unauthorised),
    ("unauthorized", ImageFault::Unauthorised),
    ("authorization failed", ImageFault::Unauthorised),
    ("authentication required", ImageFault::Unauthorised),
    ("incorrect username or password", ImageFault::Unauthorised),
    ("access denied", ImageFault::Unauthorised),
    ("access to the resource is denied", ImageFault::Unauthorised),
    ("403 forbidden", ImageFault::Unauthorised),
    ("manifest unknown", ImageFault::NotFound),
    ("name unknown", ImageFault::NotFound),
    ("blob unknown", ImageFault::NotFound),
    ("connection refused", ImageFault::Unreachable),
    ("no such host", ImageFault::Unreachable),
    ("timeout", ImageFault::Unreachable),
    ("network is unreachable", ImageFault::Unreachable),
    ("no route to host", ImageFault::Unreachable),
    ("connection reset", ImageFault::Unreachable),
    ("not found", ImageFault::NotFound),
];

impl ImageFault {
    /// The fault that a client's last words mean.
    #[must_use]
    pub fn of(said: &str) -> Self {
        let said = said.to_lowercase();
        let sign = SIGNS.iter().find(|(sign, _)| said.contains(sign));
        sign.map_or(Self::Other, |(_, fault)| *fault)
    }

    /// Whether another attempt within the same pull may help.
    #[must_use]
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::Slow { .. } | Self::Unreachable | Self::TooManyRequests | Self::Other
        )
    }
}

impl ImageError {
    /// The error of a client that could not pull.
    #[must_use]
    pub fn of(image: &str, runtime: &'static str, error: &ExecError) -> Self {
        let (fault, said) = match error {
            ExecError::Failed { tail, .. } => (ImageFault::of(tail), last_line(tail)),
            ExecError::Deadline { after, .. } => {
                let seconds = after.as_secs();
                (ImageFault::Slow { seconds }, None)
            }
            other => (ImageFault::Other, Some(other.to_string())),
        };
        Self {
            image: image.to_owned(),
            runtime,
            fault,
            said,
        }
    }
}

/// The line in which a client says why. The ones before it are about layers.
fn last_line(tail: &str) -> Option<String> {
    let line = tail.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

impl Report for ImageError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self.fault {
            ImageFault::NotFound => "image-not-found",
            ImageFault::Unauthorised => "image-unauthorised",
            ImageFault::Damaged => "image-damaged",
            ImageFault::Slow { .. } => "image-slow",
            ImageFault::Unreachable | ImageFault::Unencrypted => "registry-unreachable",
            ImageFault::Untrusted => "registry-untrusted",
            ImageFault::TooManyRequests => "registry-refuses",
            ImageFault::OtherArchitecture => "image-other-architecture",
            ImageFault::NoName => "image-name",
            ImageFault::NoSpace => "disk-full",
            ImageFault::Other => "image-not-pulled",
        }
    }

    /// Only a network that is not up yet, and a registry with a limit, are worth a whole further pull.
    fn passes(&self) -> bool {
        matches!(
            self.fault,
            ImageFault::Unreachable | ImageFault::TooManyRequests
        )
    }

    fn hint(&self) -> Option<String> {
        let docker = self.runtime == "docker";
        Some(match self.fault {
            ImageFault::NotFound => {
                "check the name and the tag in `validation.image`; registries remove old tags".into()
            }
            ImageFault::Unauthorised if docker => {
                "log in as root with `docker login REGISTRY`, which writes \
                 `/root/.docker/config.json`; then run the command again"
                    .into()
            }
            ImageFault::Unauthorised if self.runtime == "podman" => {
                "log in as root with `podman login REGISTRY`; then run the command again".into()
            }
            ImageFault::Unauthorised => {
                "write the login into a header of `/etc/containerd/certs.d/REGISTRY/hosts.toml` \
                 (docs/configuration.md shows it), readable by root alone; then run the command again"
                    .into()
            }
            ImageFault::Damaged => {
                "push the image again, or repair the registry or the proxy between: it sends other \
                 bytes than the image has"
                    .into()
            }
            ImageFault::Slow { .. } => {
                "use a registry nearby, or raise `validation.pull-timeout`".into()
            }
            ImageFault::Unreachable if docker => {
                "check the registry's name in `validation.image`, the network, and the proxy of the \
                 daemon (`docker info`); the built-in image needs no registry"
                    .into()
            }
            ImageFault::Unreachable => {
                "check the registry's name in `validation.image`, the network, and the proxy: \
                 `packages.proxy`, from containerd 2.0 on that of its unit; the built-in image needs no \
                 registry"
                    .into()
            }
            ImageFault::Unencrypted if docker => {
                "give the registry a certificate, or name it in `insecure-registries` of \
                 `/etc/docker/daemon.json`"
                    .into()
            }
            ImageFault::Unencrypted if self.runtime == "podman" => {
                "give the registry a certificate, or set `insecure = true` for it in \
                 `/etc/containers/registries.conf`"
                    .into()
            }
            ImageFault::Unencrypted => {
                "give the registry a certificate, or write its `http://` address into \
                 `/etc/containerd/certs.d/REGISTRY/hosts.toml`"
                    .into()
            }
            ImageFault::Untrusted => {
                "add the certificate of the registry's authority to those that the runtime trusts, and \
                 compare this machine's clock"
                    .into()
            }
            ImageFault::TooManyRequests => {
                "wait, log in to the registry, or use a mirror of it".into()
            }
            ImageFault::OtherArchitecture => {
                "name an image in `validation.image` that exists for this architecture".into()
            }
            ImageFault::NoName => {
                "write `validation.image` as `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`"
                    .into()
            }
            ImageFault::NoSpace => {
                "free space where the runtime keeps its images, then run the command again".into()
            }
            ImageFault::Other => {
                "pull the image by hand to see more, then run the command again".into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ImageError, ImageFault};
    use crate::{
        error::Report as _,
        host::{ExecError, exec::Status},
    };

    #[test]
    fn what_clients_say_is_one_fault() {
        for (said, fault) in [
            (
                "Error response from daemon: manifest for 127.0.0.1:5000/x:none not found: manifest \
                 unknown: manifest unknown",
                ImageFault::NotFound,
            ),
            (
                "ctr: failed to resolve reference \"127.0.0.1:5000/x:none\": \
                 127.0.0.1:5000/x:none: not found",
                ImageFault::NotFound,
            ),
            (
                "Error response from daemon: pull access denied for x, repository does not exist or \
                 may require 'docker login': denied: requested access to the resource is denied",
                ImageFault::Unauthorised,
            ),
            (
                "Error response from daemon: Head \"http://127.0.0.1:5000/v2/x/manifests/1\": no \
                 basic auth credentials",
                ImageFault::Unauthorised,
            ),
            (
                "ctr: failed to resolve reference \"x\": unexpected status from HEAD request: 401 \
                 Unauthorized",
                ImageFault::Unauthorised,
            ),
            (
                "filesystem layer verification failed for digest sha256:00",
                ImageFault::Damaged,
            ),
            (
                "ctr: failed commit on ref \"layer-sha256:00\": unexpected commit digest sha256:11, \
                 expected sha256:00: failed precondition",
                ImageFault::Damaged,
            ),
            (
                "Get \"http://127.0.0.1:5000/v2/\": dial tcp 127.0.0.1:5000: connect: connection \
                 refused",
                ImageFault::Unreachable,
            ),
            ("net/http: TLS handshake timeout", ImageFault::Unreachable),
            (
                "http: server gave HTTP response to HTTPS client",
                ImageFault::Unencrypted,
            ),
            (
                "toomanyrequests: You have reached your pull rate limit",
                ImageFault::TooManyRequests,
            ),
            (
                "no matching manifest for linux/arm64/v8 in the manifest list entries",
                ImageFault::OtherArchitecture,
            ),
            (
                "write /var/lib/docker/tmp/x: no space left on device",
                ImageFault::NoSpace,
            ),
            (
                "Get \"https://x/v2/\": x509: certificate signed by unknown authority",
                ImageFault::Untrusted,
            ),
            ("the daemon is not in the mood", ImageFault::Other),
        ] {
            assert_eq!(ImageFault::of(said), fault, "{said}");
        }
        assert!(ImageFault::Unreachable.passes() && !ImageFault::Unauthorised.passes());
    }

    #[test]
    fn the_message_has_the_clients_last_line() {
        let error = ExecError::Failed {
            command: "docker pull x".into(),
            status: Status::Exited(1),
            tail: "1: Pulling from x\nabc: Pulling fs layer\nmanifest unknown\n".into(),
        };
        let error = ImageError::of("x", "docker", &error);
        let words = "pull the image `x` with docker: the registry does not have it";
        let text = error.to_string();
        assert!(text.starts_with(words) && text.contains("manifest unknown"));
        assert!(!text.contains("fs layer"), "{text}");
        assert_eq!(error.reason(), "image-not-found");
    }
}
