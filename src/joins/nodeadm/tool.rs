//! EKS' `nodeadm`, as Amazon's images have it.
//!
//! Sources: awslabs/amazon-eks-ami, commit 81fec2e895854f599974fe4d3d72f61c0a9aaffa (2026-07-23):
//! `templates/al2023/runtime/rootfs/etc/systemd/system/nodeadm-config.service` (before cloud-init; writes the configuration
//! of kubelet and containerd from user data alone) and `nodeadm-run.service` (after cloud-init; needs the first, which is
//! over by then and therefore runs again; reads user data and the folder [`DROP_INS`], writes the configuration again where
//! the two differ, and joins); `nodeadm/api/v1alpha1/nodeconfig_types.go`; `nodeadm/internal/api/merge.go` (flags are
//! appended, and the kubelet merges labels of several); `nodeadm/internal/kubelet/kubeconfig.go`;
//! `nodeadm/internal/containerd/config.go` and `runtime_config_nvidia.go` (containerd's whole configuration is written, with
//! `nvidia` as the default runtime where `/usr/bin/nvidia-container-runtime` is).
//! The folder is read since commit 0d558ec3 (2025-10-20), which the images from v20251023 on have.

use serde_json::json;

use crate::{
    model::kubernetes::Labels,
    tools::kubelet::{self, label_list},
};

pub const PROGRAM: &str = "/usr/bin/nodeadm";

/// Writes the configuration of kubelet and containerd, and joins.
pub const RUN_UNIT: &str = "nodeadm-run.service";

/// The kubelet of Canonical's images for EKS, which have no nodeadm: their `/etc/eks/bootstrap.sh` configures and starts it.
/// Source: documentation.ubuntu.com/aws, "EKS snaps".
pub const SNAP_UNIT: &str = "snap.kubelet-eks.daemon.service";

/// Exists once the machine is proven: user data makes it a condition of [`RUN_UNIT`], at each boot. It has the id of the
/// instance: user data removes the file of another one, which came with an image.
pub const MAY_JOIN: &str = "/var/lib/gpu-bootstrap/may-join";

/// Where cloud-init says which instance this is. Source: cloud-init's documentation, "Cloud-init directory layout".
pub const INSTANCE_ID: &str = "/var/lib/cloud/data/instance-id";

/// The kubeconfig of its kubelet. It is written long before the kubelet starts.
pub const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

/// The units of kubelets that use [`KUBECONFIG`].
pub const KUBELETS: [&str; 2] = [kubelet::UNIT, SNAP_UNIT];

/// The folder for parts of its configuration. The image has it.
pub const DROP_INS: &str = "/etc/eks/nodeadm.d";

/// Our part of the configuration.
pub const CONFIG: &str = "/etc/eks/nodeadm.d/50-gpu-bootstrap.yaml";

/// The configuration: JSON, which is YAML, too.
///
/// It names no taints: Karpenter and node groups hand theirs over as `spec.kubelet.config.registerWithTaints`
/// (aws/karpenter-provider-aws, `pkg/providers/amifamily/bootstrap/nodeadm.go`), and a flag of the kubelet replaces that
/// whole list. Without its own taint Karpenter does not register the node, and deletes it.
#[must_use]
pub fn configuration(labels: &Labels) -> String {
    let configuration = json!({
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {"kubelet": {"flags": [format!("--node-labels={}", label_list(labels))]}},
    });
    format!("{configuration:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flag would replace the taints of Karpenter and of the node group; labels of several flags are merged.
    #[test]
    fn the_configuration_is_a_node_config_without_taints() {
        let labels = Labels::from([("team".to_owned(), "research".to_owned())]);
        let text = configuration(&labels);
        assert!(!text.contains("taint"), "{text}");
        insta::assert_snapshot!(text);
    }
}
