//! Which container runtimes are wanted where the settings leave it open.

use super::{Daemon, OWNERS, RuntimeKind};
use crate::host::{FilesError, ReadFiles};

/// The container runtime that the machine's cluster needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// The machine joins none.
    None,
    /// Its kubelet uses a runtime of the machine.
    OfMachine,
    /// It brings its own: the reason.
    BringsOwn(&'static str),
}

/// What tells which runtimes a machine has.
#[derive(Debug, Clone, Default)]
pub struct Present {
    /// Their programs are there, whoever has installed them.
    pub installed: Vec<RuntimeKind>,
    /// An earlier run of this program has installed or configured them.
    pub ours: Vec<RuntimeKind>,
    /// A kubelet has its configuration.
    pub kubelet: bool,
    /// The distribution of Kubernetes that is there and brings its own containerd.
    pub distribution: Option<&'static str>,
}

impl Present {
    fn has(&self, kind: RuntimeKind) -> bool {
        self.installed.contains(&kind)
    }
}

/// The configuration that each kubelet has.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";

/// What files tell: the runtimes with a daemon whose programs are there, and a kubelet. Many systems have Podman for the
/// tools of administrators, so it is no sign that somebody wants GPUs in it.
///
/// # Errors
/// When a folder cannot be read.
pub fn present(files: &dyn ReadFiles, ours: Vec<RuntimeKind>) -> Result<Present, FilesError> {
    let is_there = |path: &str| match files.exists(path.into()) {
        // Of a machine that is known from a text nothing is known here: it counts as bare.
        Err(FilesError::NotTold { .. }) => Ok(false),
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

/// The runtimes, and why these.
#[must_use]
pub fn choose(cluster: Cluster, present: &Present) -> (Vec<RuntimeKind>, String) {
    use RuntimeKind::{Containerd, Crio, Docker};
    let names = |kinds: &[RuntimeKind]| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        names.join(" and ")
    };
    match cluster {
        Cluster::BringsOwn(why) => (Vec::new(), format!("no container runtime: {why}")),
        Cluster::OfMachine => {
            let prepared = present.ours.contains(&Crio) && present.has(Crio);
            let (kubelets, why) = match (present.has(Containerd), present.has(Crio)) {
                // What came later, as Docker's containerd, changes nothing.
                _ if prepared => (Crio, "it is installed"),
                (true, _) => (Containerd, "it is installed"),
                (false, true) => (Crio, "it is installed"),
                (false, false) => (Containerd, "the machine joins a cluster"),
            };
            let mut kinds = vec![kubelets];
            if present.ours.contains(&Docker) && present.has(Docker) {
                kinds.insert(0, Docker);
            }
            let why = format!("container runtime {}: {why}", names(&kinds));
            (kinds, why)
        }
        Cluster::None => {
            // Docker brings containerd for itself; only who has configured it, or a kubelet, wants it beside Docker.
            let counts = |kind: &RuntimeKind| {
                *kind != Containerd
                    || !present.has(Docker)
                    || present.kubelet
                    || present.ours.contains(&Containerd)
            };
            let there: Vec<RuntimeKind> =
                present.installed.iter().copied().filter(counts).collect();
            if let (true, Some(name)) = (there.is_empty(), present.distribution) {
                let why = format!("no container runtime: {name} brings its own");
                return (Vec::new(), why);
            }
            if there.is_empty() {
                let why =
                    "container runtime docker: the default where the machine joins no cluster";
                return (vec![Docker], why.to_owned());
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
    fn what_is_there_stays_and_a_cluster_needs_containerd() {
        use Cluster::{BringsOwn, None, OfMachine};
        use RuntimeKind::{Containerd, Crio, Docker};
        for (cluster, installed, ours, wanted) in [
            (None, &[][..], &[][..], &[Docker][..]),
            (None, &[Containerd], &[], &[Containerd]),
            (None, &[Crio], &[], &[Crio]),
            // containerd came with Docker.
            (None, &[Docker, Containerd], &[], &[Docker]),
            (None, &[Docker, Containerd], &[Docker], &[Docker]),
            // An earlier run has prepared both.
            (
                None,
                &[Docker, Containerd],
                &[Docker, Containerd],
                &[Docker, Containerd],
            ),
            // Somebody has removed them since.
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
            // Docker has brought its containerd since.
            (OfMachine, &[Docker, Containerd, Crio], &[Crio], &[Crio]),
            (OfMachine, &[Containerd, Crio], &[], &[Containerd]),
            (BringsOwn("it brings its own"), &[Docker], &[Docker], &[]),
            (BringsOwn("it brings its own"), &[Containerd], &[], &[]),
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
        // Somebody else has made it a node, and it also has Docker.
        let node = Present {
            installed: vec![Docker, Containerd],
            kubelet: true,
            ..Present::default()
        };
        assert_eq!(choose(None, &node).0, [Docker, Containerd]);
        // A node of k3s that no setting names gets no Docker beside it; one that has Docker keeps it.
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
