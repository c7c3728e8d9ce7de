//! The Kubernetes distributions that bring a containerd of their own.

/// A Kubernetes distribution that brings a containerd of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct KubernetesDistribution {
    pub name: &'static str,
    /// The programs that contain the kubelet, or start it.
    pub programs: &'static [&'static str],
    /// What is on the disk only where it is installed.
    pub mark: &'static str,
    /// The socket of its containerd.
    pub socket: &'static str,
    /// The files that its containerd is configured with; `*.toml` stands for all such files of a folder.
    pub configs: &'static [&'static str],
    /// It writes its configuration at each start, with the nvidia runtime if the toolkit is there then.
    pub detects: bool,
    /// The files that replace the template of its configuration; the first one that is there counts.
    pub templates: &'static [&'static str],
    /// What makes its containerd know the nvidia runtime, for people.
    pub remedy: &'static str,
}

/// Sources: k3s-io/k3s, `pkg/agent/containerd/runtimes.go` (it looks for `/usr/bin/nvidia-container-runtime` when
/// it starts), `config.go` (`templateGenerations`) and `config_linux.go`; RKE2 contains the same agent; k0s, `docs/runtime.md`; MicroK8s,
/// <https://canonical.com/microk8s/docs/configuring-services>, and `microk8s-resources/default-args`.
pub const OWNERS: [KubernetesDistribution; 4] = [
    KubernetesDistribution {
        name: "rke2",
        programs: &["rke2", "rke2-agent", "rke2-server"],
        mark: "/var/lib/rancher/rke2/agent/etc/containerd",
        socket: "/run/k3s/containerd/containerd.sock",
        configs: &["/var/lib/rancher/rke2/agent/etc/containerd/config.toml"],
        detects: true,
        templates: &[
            "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
        ],
        remedy: "run `systemctl restart rke2-agent` (on a server: rke2-server) when its pods may pause",
    },
    KubernetesDistribution {
        name: "k3s",
        programs: &["k3s", "k3s-agent", "k3s-server"],
        mark: "/var/lib/rancher/k3s/agent/etc/containerd",
        socket: "/run/k3s/containerd/containerd.sock",
        configs: &["/var/lib/rancher/k3s/agent/etc/containerd/config.toml"],
        detects: true,
        templates: &[
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        ],
        remedy: "run `systemctl restart k3s-agent` (on a server: k3s) when its pods may pause",
    },
    KubernetesDistribution {
        name: "k0s",
        programs: &["k0s"],
        mark: "/var/lib/k0s/bin/containerd",
        socket: "/run/k0s/containerd.sock",
        configs: &["/etc/k0s/containerd.d/*.toml", "/etc/k0s/containerd.toml"],
        detects: false,
        templates: &[],
        remedy: "add the runtime in a file of the folder `/etc/k0s/containerd.d`, from k0s 1.27.1 on, or in \
                 `/etc/k0s/containerd.toml`, and restart k0s when its pods may pause",
    },
    KubernetesDistribution {
        name: "microk8s",
        programs: &["kubelite"],
        mark: "/var/snap/microk8s/current/args/containerd-template.toml",
        socket: "/var/snap/microk8s/common/run/containerd.sock",
        configs: &["/var/snap/microk8s/current/args/containerd-template.toml"],
        detects: false,
        templates: &[],
        remedy: "add the runtime to `/var/snap/microk8s/current/args/containerd-template.toml`, then run \
                 `microk8s stop` and `microk8s start`",
    },
];

/// The programs whose processes tell which container runtime the kubelet uses.
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
    fn the_programs_are_the_kubelet_and_those_of_its_owners() {
        let owners = OWNERS.iter().flat_map(|owner| owner.programs);
        let all: Vec<&str> = ["kubelet"].iter().chain(owners).copied().collect();
        assert_eq!(all, PROGRAMS);
    }
}
