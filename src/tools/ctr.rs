//! `ctr`, containerd's own client. Images that the kubelet uses are in the namespace `k8s.io`.

use std::time::Duration;

use camino::Utf8Path;

use crate::host::{Cmd, Query};

/// The kubelet's images.
pub const KUBERNETES: &str = "k8s.io";

/// Of our own.
pub const OURS: &str = "gpu-bootstrap";

/// Big images take a while.
pub const PULL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Lists the names of images.
#[must_use]
pub fn images(namespace: &str) -> Query {
    Query::new(
        "ctr",
        ["--namespace", namespace, "images", "list", "--quiet"],
    )
}

/// Pulls an image.
#[must_use]
pub fn pull(namespace: &str, image: &str) -> Cmd {
    Cmd::new("ctr", ["--namespace", namespace, "images", "pull", image]).deadline(PULL_DEADLINE)
}

/// Reads an image from an archive.
#[must_use]
pub fn import(namespace: &str, archive: &Utf8Path) -> Cmd {
    Cmd::new(
        "ctr",
        [
            "--namespace",
            namespace,
            "images",
            "import",
            archive.as_str(),
        ],
    )
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

/// Runs a container by NVIDIA's runtime with all GPUs, to its end.
#[must_use]
pub fn run_with_gpus(namespace: &str, image: &str, name: &str, command: &[&str]) -> Cmd {
    let args = [
        "--namespace",
        namespace,
        "run",
        "--rm",
        "--runc-binary",
        "nvidia-container-runtime",
        "--env",
        "NVIDIA_VISIBLE_DEVICES=all",
        "--env",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        image,
        name,
    ];
    Cmd::new("ctr", args.iter().chain(command).copied())
}

/// Ends and removes what is left of a container.
#[must_use]
pub fn clean_up(namespace: &str, name: &str) -> [Cmd; 2] {
    [
        Cmd::new(
            "ctr",
            [
                "--namespace",
                namespace,
                "tasks",
                "kill",
                "--signal",
                "SIGKILL",
                name,
            ],
        ),
        Cmd::new(
            "ctr",
            ["--namespace", namespace, "containers", "remove", name],
        ),
    ]
}
