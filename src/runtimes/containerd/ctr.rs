//! `ctr`, the containerd client. Images of the kubelet are in the namespace `k8s.io`.

use camino::Utf8Path;

use crate::host::{Cmd, Query};

/// The namespace of the kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// The namespaces of containers: those of the kubelet, `ctr` and Docker.
pub const NAMESPACES_OF_CONTAINERS: [&str; 3] = [KUBERNETES, "default", "moby"];

/// The directory in which containerd clients look for registry URLs, certificates and headers
/// (<https://github.com/containerd/containerd/blob/main/docs/hosts.md>). `ctr` reads it only with an option.
pub const HOSTS: &str = "/etc/containerd/certs.d";

/// Queries the version of the daemon. It succeeds only if the daemon responds on its socket.
pub fn version() -> Query {
    Query::new("ctr", ["version"])
}

/// Lists the daemon's plugins, one per line: type, id, platforms, status.
pub fn plugins() -> Query {
    Query::new("ctr", ["plugins", "list"])
}

/// Returns the status of the CRI plugin from the output of [`plugins`], or `None` if the plugin is missing.
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
pub fn images(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "images", "list", "--quiet"])
}

/// Lists the names of containers, including stopped ones.
pub fn containers(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "containers", "list", "--quiet"])
}

/// Lists the tasks (container processes) in a namespace, including stopped ones.
pub fn tasks(namespace: &str) -> Query {
    let namespace = in_namespace(namespace);
    Query::new("ctr", [namespace.as_str(), "tasks", "list"])
}

/// Returns the running and paused containers in the output of [`tasks`]: a table with the columns `TASK`, `PID` and `STATUS`.
/// Source: containerd, `cmd/ctr/commands/tasks/list.go`.
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
pub fn remove_container(namespace: &str, container: &str) -> Cmd {
    let namespace = in_namespace(namespace);
    Cmd::new(
        "ctr",
        [namespace.as_str(), "containers", "delete", "--", container],
    )
}

/// Pulls an image. With `hosts`, it uses the registry settings in [`HOSTS`].
pub fn pull(namespace: &str, image: &str, hosts: bool) -> Cmd {
    let (namespace, directory) = (in_namespace(namespace), format!("--hosts-dir={HOSTS}"));
    let mut args = vec![namespace.as_str(), "images", "pull"];
    if hosts {
        args.push(directory.as_str());
    }
    args.extend(["--", image]);
    Cmd::new("ctr", args)
}

/// Writes an image of the machine's platform to an archive, with its name.
pub fn export(namespace: &str, image: &str, archive: &Utf8Path) -> Cmd {
    let namespace = in_namespace(namespace);
    let args = [namespace.as_str(), "images", "export", "--"];
    Cmd::new("ctr", args.into_iter().chain([archive.as_str(), image]))
}

/// Loads an image with its name from an archive.
pub fn import(namespace: &str, archive: &Utf8Path) -> Cmd {
    let namespace = in_namespace(namespace);
    let args = [namespace.as_str(), "images", "import", "--"];
    Cmd::new("ctr", args.into_iter().chain([archive.as_str()]))
}

/// Removes an image.
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
    use super::parse_running;

    #[test]
    fn running_and_stopped_containers_are_distinguished() {
        let table = "TASK    PID     STATUS\nweb     812     RUNNING\njob     901     STOPPED\n";
        assert_eq!(parse_running(table), ["web"]);
        assert!(parse_running("TASK    PID    STATUS    \n").is_empty());
    }
}
