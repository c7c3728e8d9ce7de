//! `ctr`, containerd's own client. Images that the kubelet uses are in the namespace `k8s.io`.

use crate::host::{Cmd, Query};

/// The namespace of the kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// The namespaces of containers: the kubelet's, that of `ctr` itself, and Docker's.
pub const NAMESPACES_OF_CONTAINERS: [&str; 3] = [KUBERNETES, "default", "moby"];

/// Where containerd's clients look for the addresses, certificates and headers of registries
/// (<https://github.com/containerd/containerd/blob/main/docs/hosts.md>). `ctr` reads it only if it is told to.
pub const HOSTS: &str = "/etc/containerd/certs.d";

/// The registry of names without one, and the folder of its own images, as Docker has them.
const DEFAULT_REGISTRY: &str = "docker.io";

/// A name of an image as containerd needs it, with registry and tag: Docker adds them itself.
#[must_use]
pub fn full_name(image: &str) -> String {
    let named = match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        Some(_) => format!("{DEFAULT_REGISTRY}/{image}"),
        None => format!("{DEFAULT_REGISTRY}/library/{image}"),
    };
    let last = named.rsplit('/').next().unwrap_or(&named);
    if last.contains([':', '@']) {
        named
    } else {
        format!("{named}:latest")
    }
}

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

/// The option that selects a namespace.
fn in_namespace(namespace: &str) -> String {
    format!("--namespace={namespace}")
}

/// Lists the names of images.
#[must_use]
pub fn images(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "images", "list", "--quiet"])
}

/// Lists the names of containers, running or not.
#[must_use]
pub fn containers(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "containers", "list", "--quiet"])
}

/// Lists what runs of a namespace's containers.
#[must_use]
pub fn tasks(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "tasks", "list"])
}

/// The containers that run, by the answer to [`tasks`]: a table with the columns `TASK`, `PID` and `STATUS`. Source:
/// containerd, `cmd/ctr/commands/tasks/list.go`.
#[must_use]
pub fn parse_running(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(
            |line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                [task, _, "RUNNING" | "PAUSED"] => Some(task.to_owned()),
                _ => None,
            },
        )
        .collect()
}

/// Ends the processes of a container. The status is not 0 where none runs.
#[must_use]
pub fn end_task(namespace: &str, container: &str) -> Cmd {
    let namespace = in_namespace(namespace);
    let args = [
        namespace.as_str(),
        "tasks",
        "delete",
        "--force",
        "--",
        container,
    ];
    Cmd::new("ctr", args)
}

/// Removes a container without running processes, and its snapshot.
#[must_use]
pub fn remove_container(namespace: &str, container: &str) -> Cmd {
    let namespace = in_namespace(namespace);
    Cmd::new(
        "ctr",
        [namespace.as_str(), "containers", "delete", "--", container],
    )
}

/// Pulls an image; with `hosts`, by what the files in [`HOSTS`] say about its registry.
#[must_use]
pub fn pull(namespace: &str, image: &str, hosts: bool) -> Cmd {
    let (namespace, folder) = (in_namespace(namespace), format!("--hosts-dir={HOSTS}"));
    let mut args = vec![namespace.as_str(), "images", "pull"];
    if hosts {
        args.push(folder.as_str());
    }
    args.extend(["--", image]);
    Cmd::new("ctr", args)
}

/// Removes an image.
#[must_use]
pub fn remove(namespace: &str, image: &str) -> Cmd {
    let namespace = in_namespace(namespace);
    Cmd::new(
        "ctr",
        [
            namespace.as_str(),
            "images",
            "remove",
            "--sync",
            "--",
            image,
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::{full_name, parse_running};

    #[test]
    fn names_get_registry_and_tag_as_docker_adds_them() {
        for (image, full) in rows! {
            "debian", "docker.io/library/debian:latest";
            "nvidia/cuda:12.8.1-base-ubi9", "docker.io/nvidia/cuda:12.8.1-base-ubi9";
            "nvcr.io/nvidia/cuda:1", "nvcr.io/nvidia/cuda:1";
            "localhost/x", "localhost/x:latest";
            "host:5000/x", "host:5000/x:latest";
            "host:5000/x@sha256:00", "host:5000/x@sha256:00";
        } {
            assert_eq!(full_name(image), full);
        }
    }

    #[test]
    fn containers_that_run_are_told_from_those_that_have_ended() {
        let table = "TASK    PID     STATUS\nweb     812     RUNNING\njob     901     STOPPED\n";
        assert_eq!(parse_running(table), ["web"]);
        assert!(parse_running("TASK    PID    STATUS    \n").is_empty());
    }
}
