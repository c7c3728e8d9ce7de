//! Selects the container runtimes if the settings do not specify them.

use super::{Daemon, OWNERS, RuntimeKind};
use crate::host::{FilesError, ReadFiles};

/// The container runtime requirement of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// The machine does not join a cluster.
    None,
    /// The kubelet uses a runtime of the machine.
    OfMachine,
    /// The cluster software ships its own runtime. Contains the reason.
    BringsOwn(&'static str),
}

/// Evidence of the runtimes on a machine.
#[derive(Debug, Clone, Default)]
pub struct Present {
    /// Runtimes whose programs are installed, by gpu-bootstrap or otherwise.
    pub installed: Vec<RuntimeKind>,
    /// Runtimes that an earlier run of gpu-bootstrap installed or configured.
    pub ours: Vec<RuntimeKind>,
    /// Whether the kubelet configuration of kubeadm exists.
    pub kubelet: bool,
    /// The installed Kubernetes distribution that ships its own containerd.
    pub distribution: Option<&'static str>,
}

impl Present {
    fn has(&self, kind: RuntimeKind) -> bool {
        self.installed.contains(&kind)
    }
}

/// The kubelet configuration that kubeadm writes.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";

/// Finds installed runtimes with a daemon, a kubelet configured by kubeadm, and an installed Kubernetes distribution. Podman
/// does not count, because many systems have it for administration tools.
///
/// # Errors
/// If a directory cannot be read.
pub fn present(files: &dyn ReadFiles, ours: Vec<RuntimeKind>) -> Result<Present, FilesError> {
    let is_there = |path: &str| match files.exists(path.into()) {
        // With `--lspci`, no files are known. Assume that no runtime is installed.
        Err(FilesError::NotReported { .. }) => Ok(false),
        answer => answer,
    };
    let mut installed = Vec::new();
    for daemon in Daemon::ALL {
        for path in daemon.kind().runtime().facts().binaries {
            if is_there(path)? {
                installed.push(daemon.kind());
                break;
            }
        }
    }
    let mut distribution = None;
    for owner in &OWNERS {
        if distribution.is_none() && is_there(owner.mark)? {
            distribution = Some(owner.name);
        }
    }
    Ok(Present {
        installed,
        ours,
        kubelet: is_there(KUBELET)?,
        distribution,
    })
}

/// Returns the runtimes and the reason.
#[must_use]
pub fn choose(cluster: Cluster, present: &Present) -> (Vec<RuntimeKind>, String) {
    let names = |kinds: &[RuntimeKind]| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        names.join(" and ")
    };
    match cluster {
        Cluster::BringsOwn(why) => (Vec::new(), format!("no container runtime: {why}")),
        Cluster::OfMachine => {
            let there: Vec<RuntimeKind> = RuntimeKind::of_kubelets()
                .filter(|kind| present.has(*kind))
                .collect();
            // Keep the runtime that an earlier run prepared, even if another one was added later as a dependency.
            let prepared = there.iter().find(|kind| {
                let mut others = RuntimeKind::ALL.into_iter();
                present.ours.contains(kind) && !others.any(|other| other.brings(**kind))
            });
            let (of_kubelet, why) = match prepared.or(there.first()) {
                Some(kind) => (*kind, "it is installed"),
                None => (RuntimeKind::KUBELET_DEFAULT, "the machine joins a cluster"),
            };
            let mut kinds = vec![of_kubelet];
            let default = RuntimeKind::DEFAULT;
            if present.ours.contains(&default) && present.has(default) {
                kinds.insert(0, default);
            }
            let why = format!("container runtime {}: {why}", names(&kinds));
            (kinds, why)
        }
        Cluster::None => {
            // A dependency of another installed runtime counts only if gpu-bootstrap configured it or a kubelet exists.
            let counts = |kind: &RuntimeKind| {
                let mut others = present.installed.iter();
                !others.any(|other| other.brings(*kind))
                    || present.kubelet
                    || present.ours.contains(kind)
            };
            let there: Vec<RuntimeKind> =
                present.installed.iter().copied().filter(counts).collect();
            if let (true, Some(name)) = (there.is_empty(), present.distribution) {
                let why = format!("no container runtime: {name} ships its own");
                return (Vec::new(), why);
            }
            if there.is_empty() {
                let default = RuntimeKind::DEFAULT;
                let why = format!(
                    "container runtime {}: the default if the machine does not join a cluster",
                    default.name()
                );
                return (vec![default], why);
            }
            let why = match &there[..] {
                [one] => format!("container runtime {}: it is installed", one.name()),
                all => format!("container runtimes {}: they are installed", names(all)),
            };
            (there, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_runtimes_are_kept_and_cluster_default_is_containerd() {
        use Cluster::{BringsOwn, None, OfMachine};
        use RuntimeKind::{Containerd, Crio, Docker};
        for (cluster, installed, ours, wanted) in [
            (None, &[][..], &[][..], &[Docker][..]),
            (None, &[Containerd], &[], &[Containerd]),
            (None, &[Crio], &[], &[Crio]),
            // containerd was installed with Docker.
            (None, &[Docker, Containerd], &[], &[Docker]),
            (None, &[Docker, Containerd], &[Docker], &[Docker]),
            // An earlier run has configured both.
            (
                None,
                &[Docker, Containerd],
                &[Docker, Containerd],
                &[Docker, Containerd],
            ),
            // They were removed in the meantime.
            (None, &[], &[Docker, Containerd], &[Docker]),
            (OfMachine, &[], &[], &[Containerd]),
            (OfMachine, &[Docker, Containerd], &[], &[Containerd]),
            (
                OfMachine,
                &[Docker, Containerd],
                &[Docker, Containerd],
                &[Docker, Containerd],
            ),
            (OfMachine, &[Crio], &[], &[Crio]),
            // Docker has added its containerd in the meantime.
            (OfMachine, &[Docker, Containerd, Crio], &[Crio], &[Crio]),
            (OfMachine, &[Containerd, Crio], &[], &[Containerd]),
            (BringsOwn("it ships its own"), &[Docker], &[Docker], &[]),
            (BringsOwn("it ships its own"), &[Containerd], &[], &[]),
        ] {
            let present = Present {
                installed: installed.to_vec(),
                ours: ours.to_vec(),
                kubelet: false,
                distribution: Option::None,
            };
            let (kinds, why) = choose(cluster, &present);
            assert_eq!(kinds, wanted, "{cluster:?} {present:?}");
            for kind in kinds {
                assert!(why.contains(kind.name()), "{why}");
            }
        }
        // The machine became a node without gpu-bootstrap, and also has Docker.
        let node = Present {
            installed: vec![Docker, Containerd],
            kubelet: true,
            ..Present::default()
        };
        assert_eq!(choose(None, &node).0, [Docker, Containerd]);
        // Docker is not added to a k3s node without a configured join, but it is kept if it is installed.
        let mut k3s = Present {
            distribution: Some("k3s"),
            ..Present::default()
        };
        assert!(choose(None, &k3s).0.is_empty());
        assert_eq!(choose(OfMachine, &k3s).0, [Containerd]);
        k3s.installed = vec![Docker];
        assert_eq!(choose(None, &k3s).0, [Docker]);
    }
}
