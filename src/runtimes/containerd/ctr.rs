//! `ctr`, the containerd client. Images of the kubelet are in the namespace `k8s.io`.

use crate::host::{Cmd, Query};

/// The namespace of the kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// The namespaces of containers: those of the kubelet, `ctr` and Docker.
pub const NAMESPACES_OF_CONTAINERS: [&str; 3] = [KUBERNETES, "default", "moby"];

/// The directory in which containerd clients look for registry URLs, certificates and headers
/// (<https://github.com/containerd/containerd/blob/main/docs/hosts.md>). `ctr` reads it only with an option.
pub const HOSTS: &str = "/etc/containerd/certs.d";

/// The default registry, as in Docker.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Returns an image name in the form that containerd requires, with registry and tag. Docker adds them itself.
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

/// Queries the version of the daemon. It succeeds only if the daemon responds on its socket.
#[must_use]
pub fn version() -> Query {
    Query::new("ctr", ["version"])
}

/// Lists the daemon's plugins, one per line: type, id, platforms, status.
#[must_use]
pub fn plugins() -> Query {
    Query::new("ctr", ["plugins", "list"])
}

/// Returns the status of the CRI plugin from the output of [`plugins`], or `None` if the plugin is missing.
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

/// Lists the names of containers, including stopped ones.
#[must_use]
pub fn containers(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "containers", "list", "--quiet"])
}

/// Lists the tasks (container processes) in a namespace, including stopped ones.
#[must_use]
pub fn tasks(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "tasks", "list"])
}

/// Returns the running and paused containers in the output of [`tasks`]: a table with the columns `TASK`, `PID` and `STATUS`.
/// Source: containerd, `cmd/ctr/commands/tasks/list.go`.
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

/// Kills the processes of a container. Fails if the container has no task.
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

/// Pulls an image. With `hosts`, it uses the registry settings in [`HOSTS`].
#[must_use]
pub fn pull(namespace: &str, image: &str, hosts: bool) -> Cmd {
    let (namespace, directory) = (in_namespace(namespace), format!("--hosts-dir={HOSTS}"));
    let mut args = vec![namespace.as_str(), "images", "pull"];
    if hosts {
        args.push(directory.as_str());
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
    fn image_names_get_registry_and_tag_like_in_docker() {
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
    fn running_and_stopped_containers_are_distinguished() {
        let table = "TASK    PID     STATUS\nweb     812     RUNNING\njob     901     STOPPED\n";
        assert_eq!(parse_running(table), ["web"]);
        assert!(parse_running("TASK    PID    STATUS    \n").is_empty());
    }
}
