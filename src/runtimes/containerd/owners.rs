//! Kubernetes distributions that ship their own containerd.

use super::parse_config;
use crate::tools::toolkit;

/// A Kubernetes distribution that ships its own containerd.
#[derive(Debug, PartialEq, Eq)]
pub struct KubernetesDistribution {
    pub name: &'static str,
    /// The programs that contain or start the kubelet.
    pub programs: &'static [&'static str],
    /// Its systemd units, one of which runs on a node. Empty if it is not controlled by a unit.
    pub units: &'static [&'static str],
    /// A path that exists only if the distribution is installed.
    pub mark: &'static str,
    /// The socket of its containerd.
    pub socket: &'static str,
    /// The configuration files of its containerd. `*.toml` matches all such files in a directory.
    pub configs: &'static [&'static str],
    /// Whether it generates its configuration at each start, including the nvidia runtime if the toolkit is installed at that
    /// time.
    pub detects: bool,
    /// The files that replace its configuration template. The first existing one is used.
    pub templates: &'static [&'static str],
    /// The remedy if its containerd has no nvidia runtime, for the administrator.
    pub remedy: &'static str,
}

impl KubernetesDistribution {
    /// Whether its containerd finds the nvidia runtime in a file. containerd reads only the tables of the file's own version. In
    /// a version 2 file, `plugins.cri` (the version 1 name) has no effect: 1.x does not start, and later releases ignore it
    /// (containerd 1.7, services/server/config/config.go, `ValidateV2`). In a version 1 file, or a file that is not TOML, the
    /// program name of the nvidia runtime is sufficient.
    pub fn finds_nvidia_in(text: &str) -> bool {
        toolkit::is_named_in(text)
            && parse_config(text).ok().is_none_or(|config| {
                config.version < 2
                    || config.runtimes.iter().any(|name| name.contains("nvidia"))
                    || config
                        .programs
                        .values()
                        .any(|path| toolkit::is_named_in(path))
            })
    }
}

/// Sources: k3s-io/k3s, `pkg/agent/containerd/runtimes.go` (it detects `/usr/bin/nvidia-container-runtime` at startup),
/// `config.go` (`templateGenerations`) and `config_linux.go`; RKE2 contains the same agent; k0s, `docs/runtime.md`; MicroK8s,
/// <https://canonical.com/microk8s/docs/configuring-services>, and `microk8s-resources/default-args`.
pub const OWNERS: [KubernetesDistribution; 4] = [
    KubernetesDistribution {
        name: "rke2",
        programs: &["rke2", "rke2-agent", "rke2-server"],
        units: &["rke2-agent.service", "rke2-server.service"],
        mark: "/var/lib/rancher/rke2/agent/etc/containerd",
        socket: "/run/k3s/containerd/containerd.sock",
        configs: &["/var/lib/rancher/rke2/agent/etc/containerd/config.toml"],
        detects: true,
        templates: &[
            "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
        ],
        remedy: "run `systemctl restart rke2-agent` (on a server: rke2-server) when the node's pods may be interrupted",
    },
    KubernetesDistribution {
        name: "k3s",
        programs: &["k3s", "k3s-agent", "k3s-server"],
        units: &["k3s-agent.service", "k3s.service"],
        mark: "/var/lib/rancher/k3s/agent/etc/containerd",
        socket: "/run/k3s/containerd/containerd.sock",
        configs: &["/var/lib/rancher/k3s/agent/etc/containerd/config.toml"],
        detects: true,
        templates: &[
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        ],
        remedy: "run `systemctl restart k3s-agent` (on a server: k3s) when the node's pods may be interrupted",
    },
    KubernetesDistribution {
        name: "k0s",
        programs: &["k0s"],
        units: &["k0sworker.service", "k0scontroller.service"],
        mark: "/var/lib/k0s/bin/containerd",
        socket: "/run/k0s/containerd.sock",
        configs: &["/etc/k0s/containerd.d/*.toml", "/etc/k0s/containerd.toml"],
        detects: false,
        templates: &[],
        remedy: "add the runtime in a file in `/etc/k0s/containerd.d` (k0s 1.27.1 and newer) or in `/etc/k0s/containerd.toml`, \
                 and restart k0s when the node's pods may be interrupted",
    },
    KubernetesDistribution {
        name: "microk8s",
        programs: &["kubelite"],
        units: &[],
        mark: "/var/snap/microk8s/current/args/containerd-template.toml",
        socket: "/var/snap/microk8s/common/run/containerd.sock",
        configs: &["/var/snap/microk8s/current/args/containerd-template.toml"],
        detects: false,
        templates: &[],
        remedy: "add the runtime to `/var/snap/microk8s/current/args/containerd-template.toml`, then run \
                 `microk8s stop` and `microk8s start`",
    },
];

/// The programs whose processes reveal which container runtime the kubelet uses.
pub const PROGRAMS: [&str; 9] = [
    "kubelet",
    "rke2",
    "rke2-agent",
    "rke2-server",
    "k3s",
    "k3s-agent",
    "k3s-server",
    "k0s",
    "kubelite",
];

#[cfg(test)]
mod tests {
    use super::{OWNERS, PROGRAMS};

    #[test]
    fn programs_are_the_kubelet_and_the_distributions() {
        let owners = OWNERS.iter().flat_map(|owner| owner.programs);
        let all: Vec<&str> = ["kubelet"].iter().chain(owners).copied().collect();
        assert_eq!(all, PROGRAMS);
    }
}
