//! Checks whether the kubelet to install supports the container runtime of the machine. The API server
//! version is not checked, because it is unknown before the machine joins. kubeadm rejects an API server that is more than
//! one minor version older than kubeadm (Kubernetes, "Creating a cluster with kubeadm", version skew), and after the join
//! `check` compares the API server with the kubelet.

use crate::{
    config::desired::{ClusterSpec, RuntimeKind},
    step::{Assessment, Cx, StepError},
};

/// Versions that the kubelet must support.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// The configured runtimes that are installed, with their versions.
    pub(super) runtimes: Vec<(RuntimeKind, String)>,
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
    Ok(Versions { runtimes })
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
    let (kind, why) = refusal?;
    Some(Assessment::blocked(
        why,
        format!(
            "upgrade {} (an existing package is kept: upgrade it yourself, or remove it so that \
             `runtime.source = \"docker\"` installs the newest one from Docker), or set an older `cluster.version` that the \
             cluster accepts",
            kind.name()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::{Versions, detect, refused};
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
    async fn kubelet_and_containerd_are_detected() {
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
        let versions = |containerd: Option<&str>| Versions {
            runtimes: (containerd.into_iter())
                .map(|version| (RuntimeKind::Containerd, version.to_owned()))
                .collect(),
        };
        let (containerd, crio) = (kind(RuntimeKind::Containerd), kind(RuntimeKind::Crio));
        assert_eq!(found(&containerd).await, versions(Some("1.7")));
        assert_eq!(found(&crio).await, versions(None));
        // An EKS image includes a kubelet that matches its containerd.
        assert_eq!(found(&with(JoinMethod::Eks)).await, Versions::default());
    }

    #[test]
    fn incompatible_kubelet_does_not_join() {
        let spec = |kubelet: &str| ClusterSpec {
            packages: specs(&[kubelet]),
            ..with_kubeadm(&[]).cluster.expect("a cluster")
        };
        let machine = |containerd: &str| Versions {
            runtimes: vec![(RuntimeKind::Containerd, containerd.to_owned())],
        };
        for (spec, machine, part) in rows! {
            spec("kubelet=1.34.*"), machine("1.6.20~ds1"), None;
            spec("kubelet=1.35.*"), machine("1.7.28"), None;
            spec("kubelet=1.37.*"), machine("1.7.28"), None;
            spec("kubelet=1.38.*"), machine("1.7.28"), Some("at least 2.0");
            spec("kubelet=1.38.*"), Versions::default(), None;
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
