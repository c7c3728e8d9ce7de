//! `ctr`, containerd's own client. Images that the kubelet uses are in the namespace `k8s.io`.

use std::time::Duration;

use crate::host::{Cmd, Query};

/// The namespace of the kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// Big images take minutes.
pub const PULL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Lists the names of images.
#[must_use]
pub fn images(namespace: &str) -> Query {
    Query::new(
        "ctr",
        ["--namespace", namespace, "images", "list", "--quiet"],
    )
}

/// Lists the names of containers, running or not.
#[must_use]
pub fn containers(namespace: &str) -> Query {
    Query::new(
        "ctr",
        ["--namespace", namespace, "containers", "list", "--quiet"],
    )
}

/// Ends the processes of a container. The status is not 0 where none runs.
#[must_use]
pub fn end_task(namespace: &str, container: &str) -> Cmd {
    Cmd::new(
        "ctr",
        [
            "--namespace",
            namespace,
            "tasks",
            "delete",
            "--force",
            container,
        ],
    )
}

/// Removes a container without running processes, and its snapshot.
#[must_use]
pub fn remove_container(namespace: &str, container: &str) -> Cmd {
    Cmd::new(
        "ctr",
        ["--namespace", namespace, "containers", "delete", container],
    )
}

/// Pulls an image.
#[must_use]
pub fn pull(namespace: &str, image: &str) -> Cmd {
    Cmd::new("ctr", ["--namespace", namespace, "images", "pull", image]).deadline(PULL_DEADLINE)
}

/// Removes an image.
#[must_use]
pub fn remove(namespace: &str, image: &str) -> Cmd {
    Cmd::new(
        "ctr",
        [
            "--namespace",
            namespace,
            "images",
            "remove",
            "--sync",
            image,
        ],
    )
}
