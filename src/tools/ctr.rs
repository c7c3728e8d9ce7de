//! `ctr`, containerd's own client. Images that the kubelet uses are in the namespace `k8s.io`.

use std::time::Duration;

use crate::host::{Cmd, Query};

/// The namespace of the kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// Big images take minutes.
pub const PULL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Asks the daemon for its version: whether it answers over its socket.
#[must_use]
pub fn version() -> Query {
    Query::new("ctr", ["version"])
}

/// Lists the daemon's plugins, one per line: type, id, platforms, status.
#[must_use]
pub fn plugins() -> Query {
    Query::new("ctr", ["plugins", "list"])
}

/// The status of the plugin that serves the kubelet, by the answer to [`plugins`]; `None` if it is not
/// named.
#[must_use]
pub fn cri_status(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.first() == Some(&"io.containerd.grpc.v1") && words.get(1) == Some(&"cri");
        words.last().copied().filter(|_| is_it)
    })
}

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
