//! Checks whether the kubelet to install supports the container runtime and the kernel of the machine. The API server
//! version is not checked, because it is unknown before the machine joins. kubeadm rejects an API server that is more than
//! one minor version older than kubeadm (Kubernetes, "Creating a cluster with kubeadm", version skew), and after the join
//! `check` compares the API server with the kubelet.

use crate::{
    config::desired::{ClusterSpec, RuntimeKind},
    step::{Assessment, Cx, StepError},
    tools::kubernetes::skew,
};

/// Exists only with cgroup v2.
const CGROUP_V2: &str = "/sys/fs/cgroup/cgroup.controllers";

/// Versions that the kubelet must support.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// The configured runtimes that are installed, with their versions.
    pub(super) runtimes: Vec<(RuntimeKind, String)>,
    /// Whether the machine has cgroup v1.
    pub(super) has_cgroup_v1: bool,
}

pub(super) async fn detect(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<Versions, StepError> {
    if kubelet(spec).is_none() {
        return Ok(Versions::default());
    }
    let mut runtimes = Vec::new();
    for spec in &cx.desired.runtimes {
        let version = cx.state.runtime_version(spec.kind).await;
        runtimes.extend(version.map(|version| (spec.kind, version.to_string())));
    }
    Ok(Versions {
        runtimes,
        has_cgroup_v1: !cx.host.files().exists(CGROUP_V2.into())?,
    })
}

/// Returns the version pattern of the kubelet to install.
fn kubelet(spec: &ClusterSpec) -> Option<&str> {
    let package = spec.packages.iter().find(|one| one.name == "kubelet")?;
    package.version.as_deref()
}

/// Returns the reason that the machine cannot join with these versions.
pub(super) fn refused(spec: &ClusterSpec, versions: &Versions) -> Option<Assessment> {
    let kubelet = kubelet(spec)?;
    let refuses =
        |(kind, version): &(RuntimeKind, String)| kind.runtime().refuses_kubelet(kubelet, version);
    let refusal = (versions.runtimes.iter()).find_map(|found| Some((found.0, refuses(found)?)));
    if let Some((kind, why)) = refusal {
        return Some(Assessment::blocked(
            why,
            format!(
                "upgrade {} (an existing package is kept: upgrade it yourself, or remove it so that \
             `runtime.source = \"docker\"` installs the newest one from Docker), or set an older `cluster.version` that the \
             cluster accepts",
                kind.name()
            ),
        ));
    }
    // If the cluster accepts cgroup v1, the settings ignore the kubeadm check `SystemVerification`.
    let ignores = spec.method.implementation().ignores("SystemVerification");
    let why = (versions.has_cgroup_v1 && !ignores)
        .then(|| skew::with_cgroup_v1(kubelet))
        .flatten()?;
    Some(Assessment::blocked(
        why,
        "boot with `systemd.unified_cgroup_hierarchy=1` in the kernel command line. If the kubelets of the \
         cluster have `failCgroupV1: false`, add `SystemVerification` to \
         `cluster.ignore-preflight-errors` instead",
    ))
}

#[cfg(test)]
mod tests {
    use super::{CGROUP_V2, Versions, detect, refused};
    use crate::{
        config::desired::{ClusterSpec, Desired, JoinMethod, RuntimeKind},
        host::fake,
        step::Assessment,
        steps::{
            cluster::join::fixtures::{with, with_kubeadm},
            fixtures::{cx, facts, state},
            specs::fixtures::specs,
        },
    };

    #[tokio::test]
    async fn kubelet_containerd_and_cgroups_are_detected() {
        let (host, fakes) = fake::host();
        fakes.files.put("/usr/bin/containerd", "");
        fakes.exec.on("containerd", |_, _| {
            fake::ok("containerd github.com/containerd/containerd v1.7.28 b98a3aa\n")
        });
        let facts = facts();
        let found = async |want: &Desired| {
            let state = state(&host, facts.clone());
            let cx = cx(&host, &facts, &state, want);
            let spec = want.cluster.as_ref().expect("a cluster");
            detect(&cx, spec).await.expect("readable")
        };
        let kind = |kind| {
            let mut want = with_kubeadm(&[]);
            want.runtimes[0].kind = kind;
            want
        };
        let versions = |containerd: Option<&str>, has_cgroup_v1| Versions {
            runtimes: (containerd.into_iter())
                .map(|version| (RuntimeKind::Containerd, version.to_owned()))
                .collect(),
            has_cgroup_v1,
        };
        let (containerd, crio) = (kind(RuntimeKind::Containerd), kind(RuntimeKind::Crio));
        assert_eq!(found(&containerd).await, versions(Some("1.7"), true));
        assert_eq!(found(&crio).await, versions(None, true));
        fakes.files.put(CGROUP_V2, "cpu memory\n");
        assert_eq!(found(&containerd).await, versions(Some("1.7"), false));
        // An EKS image includes a kubelet that matches its containerd.
        assert_eq!(found(&with(JoinMethod::Eks)).await, Versions::default());
    }

    #[test]
    fn incompatible_kubelet_does_not_join() {
        let spec = |kubelet: &str, ignored: &[&str]| ClusterSpec {
            packages: specs(&[kubelet]),
            ..with_kubeadm(ignored).cluster.expect("a cluster")
        };
        let machine = |containerd: &str, has_cgroup_v1| Versions {
            runtimes: vec![(RuntimeKind::Containerd, containerd.to_owned())],
            has_cgroup_v1,
        };
        for (spec, machine, part) in rows! {
            spec("kubelet=1.34.*", &[]), machine("1.6.20~ds1", true), None;
            spec("kubelet=1.35.*", &[]), machine("1.7.28", false), None;
            spec("kubelet=1.35.*", &[]), machine("1.7.28", true), Some("cgroup v1");
            spec("kubelet=1.35.*", &["SystemVerification"]), machine("1.7.28", true), None;
            spec("kubelet=1.37.*", &[]), machine("1.7.28", false), None;
            spec("kubelet=1.38.*", &[]), machine("1.7.28", false), Some("at least 2.0");
            spec("kubelet=1.38.*", &[]), Versions::default(), None;
        } {
            match (refused(&spec, &machine), part) {
                (None, None) => {}
                (Some(Assessment::Blocked { why, .. }), Some(part)) => {
                    assert!(why.contains(part), "{why}");
                }
                (other, part) => panic!("{other:?}, expected {part:?}"),
            }
        }
    }
}
