//! Podman: it has no daemon, and reads CDI specifications itself.

use std::time::Duration;

use super::containerd::layout::Version;
use crate::host::{Cmd, Query};

/// The first version that takes the name of a CDI device. Source: NVIDIA's container toolkit
/// documentation, "Support for Container Device Interface", prerequisites.
pub const READS_CDI: Version = Version(4, 1);

/// The first version that reads specifications of CDI 0.7.0, see [`super::cdi::Spec::has_groups`]. Source: Podman's
/// `go.mod`: 5.0 has version 0.6.2 of the library of CDI, 5.1 has 0.7.2.
pub const READS_GROUPS: Version = Version(5, 1);

/// Asks for an image: the status is 0 where it is there, 1 where it is not (podman-image-exists(1)).
#[must_use]
pub fn has_image(image: &str) -> Query {
    Query::new("podman", ["image", "exists", "--", image])
}

/// The status with which [`has_image`] says no.
pub const NO_IMAGE: i32 = 1;

/// Pulls an image.
#[must_use]
pub fn pull(image: &str) -> Cmd {
    Cmd::new("podman", ["pull", "--", image])
}

/// Removes an image. It fails where a container uses it: with `--force`, Podman would remove these
/// containers, podman-rmi(1).
#[must_use]
pub fn remove_image(image: &str) -> Cmd {
    Cmd::new("podman", ["image", "rm", "--", image]).deadline(Duration::from_secs(120))
}

/// Ends and removes a container; it is no error if there is none.
#[must_use]
pub fn remove_container(name: &str) -> Cmd {
    Cmd::new("podman", ["rm", "--force", "--ignore", "--", name]).deadline(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_somebody_uses_is_never_removed_with_its_containers() {
        assert_eq!(remove_image("a").line(), "podman image rm -- a");
    }
}
