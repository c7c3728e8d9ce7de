//! Selects the container runtimes if the settings do not specify them.

use super::{Daemon, OWNERS, RuntimeKind};
use crate::{
    host::{FilesError, ReadFiles},
    model::fault::Fault,
    tools::kubelet,
};

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
    /// Configurable runtimes whose programs are installed, by gpu-bootstrap or otherwise.
    pub installed: Vec<RuntimeKind>,
    /// An installed runtime that `install` does not configure.
    pub other: Option<RuntimeKind>,
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
    let (mut installed, mut other) = (Vec::new(), None);
    for kind in Daemon::ALL.map(Daemon::kind) {
        let facts = kind.runtime().facts();
        for path in facts.binaries {
            if is_there(path)? {
                match facts.is_configurable {
                    true => installed.push(kind),
                    false => other = Some(kind),
                }
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
        other,
        ours,
        kubelet: is_there(kubelet::CONFIG)?,
        distribution,
    })
}

/// Returns the file that sets the runtime as the runtime of a kubeadm kubelet.
fn set_in(files: &dyn ReadFiles, kind: RuntimeKind) -> Result<Option<&'static str>, FilesError> {
    for path in [kubelet::CONFIG, kubelet::FLAGS] {
        let text = match files.read_text(path.into()) {
            // A recording without this file.
            Err(FilesError::NotReported { .. }) => None,
            answer => answer?,
        }
        .unwrap_or_default();
        // `rt.kubelet.runtime` reports an invalid file.
        if let Ok(Some(socket)) = kubelet::socket_in(path, &text)
            && RuntimeKind::of_socket(&socket) == Some(kind)
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the reason if `install` does not configure a runtime, and the remedy.
#[must_use]
pub fn unsupported(kind: RuntimeKind) -> Option<Fault> {
    let facts = kind.runtime().facts();
    if facts.is_configurable {
        return None;
    }
    let (title, name) = (facts.title, kind.name());
    let default = RuntimeKind::KUBELET_DEFAULT.name();
    Some(Fault::new(
        format!("`install` does not configure {title}, because this was never tested"),
        format!(
            "set `runtime.use = [\"{default}\"]` to use {default} instead, or `runtime.use = []` to keep {title}: `install` \
             then prepares the driver, the toolkit and the CDI specification, and you configure {title} (`nvidia-ctk runtime \
             configure --runtime={name} && systemctl restart {name}`); `check` evaluates its configuration"
        ),
    ))
}

/// Returns the reason if the settings must select the runtimes, and the remedy: the machine uses a runtime that `install` does
/// not configure, and might get a second one.
///
/// # Errors
/// If the configuration of the kubelet cannot be read.
pub fn undecided(
    files: &dyn ReadFiles,
    cluster: Cluster,
    present: &Present,
) -> Result<Option<Fault>, FilesError> {
    let Some(kind) = present
        .other
        .filter(|_| !matches!(cluster, Cluster::BringsOwn(_)))
    else {
        return Ok(None);
    };
    let title = kind.runtime().facts().title;
    let used = match set_in(files, kind)? {
        Some(path) => format!("the kubelet uses {title} (`{path}`)"),
        None if present.distribution.is_some() => return Ok(None),
        None if present.installed.is_empty() => {
            format!("{title} is the only container runtime of this machine")
        }
        None if matches!(cluster, Cluster::OfMachine)
            && !RuntimeKind::of_kubelets().any(|kind| present.has(kind)) =>
        {
            format!("{title} is the only runtime of this machine that a kubelet can use")
        }
        None => return Ok(None),
    };
    Ok(unsupported(kind).map(|fault| Fault {
        why: format!("{used}, and {}", fault.why),
        ..fault
    }))
}

/// Returns the runtimes and the reason.
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
            if let (true, Some(other)) = (there.is_empty(), present.other) {
                let name = other.name();
                let why = format!("no container runtime: {name} is installed, and not configured");
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
    use crate::host::fake::FakeFiles;

    #[test]
    fn installed_runtimes_are_kept_and_cluster_default_is_containerd() {
        use Cluster::{BringsOwn, None, OfMachine};
        use RuntimeKind::{Containerd, Docker};
        for (cluster, installed, ours, wanted) in [
            (None, &[][..], &[][..], &[Docker][..]),
            (None, &[Containerd], &[], &[Containerd]),
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
            (OfMachine, &[Docker], &[], &[Containerd]),
            (BringsOwn("it ships its own"), &[Docker], &[Docker], &[]),
            (BringsOwn("it ships its own"), &[Containerd], &[], &[]),
        ] {
            let present = Present {
                installed: installed.to_vec(),
                ours: ours.to_vec(),
                ..Present::default()
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

    #[test]
    fn second_runtime_is_not_added_silently() {
        use Cluster::{BringsOwn, None, OfMachine};
        use RuntimeKind::{Containerd, Crio, Docker};
        const CRIO: &str = "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n";
        const FLAGS: &str =
            "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/crio/crio.sock\"\n";
        const CONTAINERD: &str =
            "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n";
        let crio = "/usr/bin/crio";
        let containerd = "/usr/bin/containerd";
        let (uses, only) = (
            Some("the kubelet uses CRI-O"),
            Some("the only container runtime"),
        );
        for (cluster, files, refused) in rows! {
            None, &[(crio, "")][..], only;
            OfMachine, &[(crio, "")], only;
            BringsOwn("it ships its own"), &[(crio, "")], Option::None;
            None, &[(crio, ""), ("/var/lib/rancher/k3s/agent/etc/containerd", "")], Option::None;
            None, &[(crio, ""), (containerd, "")], Option::None;
            OfMachine, &[(crio, ""), ("/usr/bin/dockerd", "")], Some("that a kubelet can use");
            OfMachine, &[(crio, ""), (containerd, ""), (kubelet::CONFIG, CONTAINERD)], Option::None;
            None, &[(crio, ""), (containerd, ""), (kubelet::CONFIG, CRIO)], uses;
            OfMachine, &[(crio, ""), (containerd, ""), (kubelet::FLAGS, FLAGS)], uses;
            // The kubelet does not start. It is another finding.
            None, &[(crio, ""), (containerd, ""), (kubelet::CONFIG, "[")], Option::None;
            OfMachine, &[(kubelet::CONFIG, CRIO)], Option::None;
        } {
            let tree = FakeFiles::new();
            for (path, text) in files {
                tree.put(path, *text);
            }
            let present = present(&tree, vec![Crio]).expect("readable");
            let found = undecided(&tree, cluster, &present).expect("readable");
            match (&found, refused) {
                (Some(Fault { why, remedy }), Some(words)) => {
                    assert!(
                        why.contains(words) && remedy.contains("`runtime.use = []`"),
                        "{why}: {remedy}"
                    );
                }
                _ => assert_eq!(found.is_some(), refused.is_some(), "{cluster:?} {files:?}"),
            }
            let (kinds, _) = choose(cluster, &present);
            assert!(!kinds.contains(&Crio), "{kinds:?}");
        }
        assert!(
            [Docker, Containerd]
                .iter()
                .all(|kind| unsupported(*kind).is_none())
        );
    }
}
