//! The pod that proves a GPU in the cluster: whether it has to run, and with what.
//!
//! It is a part of `cluster.node`: a device plugin may come only to a node with its labels, and other
//! pods may come only when this one has computed. So the labels come first, then the pod, and then the
//! startup taint goes.

use camino::Utf8PathBuf;

use super::{name, wish};
use crate::{
    change::{Change, PodProbe, Probe, ProofRecord},
    config::desired::{ClusterWish, Desired, PodWish, RuntimeKind},
    host::Nvml,
    model::{kubernetes::NodeName, paths},
    state::Membership,
    step::{Cx, StepError},
    steps::{container::RECORDS, words},
    tools::probe,
};

/// What is known about the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pod {
    /// None is wanted.
    Unwanted,
    /// NVML or the driver does not tell the devices yet.
    Unknown,
    /// One is wanted.
    Wanted(Box<Wanted>),
}

/// A pod that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The pod.
    pub(super) probe: PodProbe,
    /// What its result depends on.
    pub(super) inputs: String,
    /// The record of the last one that passed.
    pub(super) record: Option<ProofRecord>,
    /// The boot.
    pub(super) boot: Option<String>,
}

impl Wanted {
    /// Why the pod has to run; `None` if its last result still counts. A node at work may have no GPU to give, so a
    /// boot alone is no reason: only a node with its startup taint is proven in each boot.
    pub(super) fn why(&self, has_taint: bool) -> Option<&'static str> {
        match &self.record {
            None => Some("no pod has computed on a GPU yet"),
            Some(record) if !record.is_of(&self.inputs, true) => {
                Some("no pod has computed on a GPU since driver, GPUs or cluster changed")
            }
            Some(record) if has_taint && !record.is_of_boot(self.boot.as_deref()) => {
                Some("no pod has computed on a GPU since this boot")
            }
            Some(_) => None,
        }
    }

    /// The change that runs it.
    pub(super) fn change(&self) -> Change {
        Change::RunProbe {
            probe: Probe::PodSeesGpu(self.probe.clone()),
            record: record_path(),
            inputs: self.inputs.clone(),
            again: false,
        }
    }
}

fn record_path() -> Utf8PathBuf {
    Utf8PathBuf::from(paths::STATE).join(RECORDS).join("pod")
}

pub(super) async fn detect(
    cx: &Cx<'_>,
    cluster: &ClusterWish,
    membership: &Membership,
    node: &NodeName,
) -> Result<Pod, StepError> {
    let Some((pod, access)) = asked_for(cx.desired, cluster) else {
        return Ok(Pod::Unwanted);
    };
    let (Some(driver), Nvml::Ready(view)) = (cx.state.loaded_driver()?, cx.state.nvml().await)
    else {
        return Ok(Pod::Unknown);
    };
    let devices = probe::devices(view).into_iter();
    let uuids: Vec<String> = devices.map(|device| device.uuid).collect();
    let mut lines = vec![
        format!("driver={driver}"),
        format!("cluster={} {node}", membership.server),
    ];
    lines.extend(
        cx.facts
            .instance_id
            .iter()
            .map(|id| format!("instance={id}")),
    );
    for gpu in words::usable(cx)? {
        lines.push(format!("gpu={} {}", gpu.pci_address, gpu.pci_id));
    }
    lines.extend(uuids.iter().map(|uuid| format!("device={uuid}")));
    let text = cx.host.files().read_text(&record_path())?;
    Ok(Pod::Wanted(Box::new(Wanted {
        probe: PodProbe {
            node: node.clone(),
            namespace: pod.namespace.clone(),
            access: access.clone(),
            nvidia_default: cx
                .desired
                .runtimes
                .iter()
                .any(|runtime| runtime.kind == RuntimeKind::Containerd && runtime.nvidia_default),
            driver: driver.to_string(),
            uuids,
            timeout_seconds: pod.timeout_seconds,
        },
        inputs: lines.join("\n") + "\n",
        record: text.map(|text| ProofRecord::parse(&text)),
        boot: cx.facts.boot_id.clone(),
    })))
}

fn asked_for<'d>(
    desired: &'d Desired,
    cluster: &'d ClusterWish,
) -> Option<(&'d PodWish, &'d Utf8PathBuf)> {
    Some((desired.validation.pod.as_ref()?, cluster.access.as_ref()?))
}

/// The pod, whatever was proven before; `None` where none is wanted, or the machine is no node.
///
/// # Errors
/// When the machine could not be looked at.
pub async fn proof(cx: &Cx<'_>) -> Result<Option<Change>, StepError> {
    let Some(cluster) = wish(cx.desired) else {
        return Ok(None);
    };
    let (Some(membership), Some(node)) = (super::joined(cx, cluster).await?, name(cx, cluster)?)
    else {
        return Ok(None);
    };
    Ok(match detect(cx, cluster, &membership, &node).await? {
        Pod::Wanted(wanted) => Some(wanted.change()),
        Pod::Unwanted | Pod::Unknown => None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::{PodProbe, ProofRecord, Wanted};

    pub(in crate::steps::cluster) fn wanted(record: Option<(&str, &str)>) -> Wanted {
        Wanted {
            probe: PodProbe {
                node: "gpu-1".parse().expect("a name"),
                namespace: "default".into(),
                access: "/etc/k".into(),
                nvidia_default: false,
                driver: "580.1".into(),
                uuids: vec!["GPU-a".into()],
                timeout_seconds: 60,
            },
            inputs: "driver=580.1\ndevice=GPU-a\n".into(),
            record: record.map(|(inputs, boot)| ProofRecord {
                inputs: inputs.into(),
                boot: Some(boot.into()),
                ..ProofRecord::default()
            }),
            boot: Some("b2".into()),
        }
    }

    #[test]
    fn a_node_at_work_is_not_asked_for_a_gpu_after_each_boot() {
        let same = "driver=580.1\ndevice=GPU-a\n";
        assert!(wanted(None).why(false).is_some());
        assert!(wanted(Some((same, "b2"))).why(true).is_none());
        assert!(wanted(Some((same, "b1"))).why(false).is_none());
        assert!(wanted(Some((same, "b1"))).why(true).is_some());
        let other = "driver=580.2\ndevice=GPU-a\n";
        assert!(wanted(Some((other, "b2"))).why(false).is_some());
    }
}
