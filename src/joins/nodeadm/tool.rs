//! The EKS tool `nodeadm` in Amazon images.
//!
//! Sources: awslabs/amazon-eks-ami, commit 81fec2e895854f599974fe4d3d72f61c0a9aaffa (2026-07-23):
//!
//! - `templates/al2023/runtime/rootfs/etc/systemd/system/nodeadm-config.service` runs before cloud-init. It writes the
//!   configuration of the kubelet and containerd only from user data.
//! - `nodeadm-run.service` runs after cloud-init. It depends on the first unit, which has exited by then and therefore runs
//!   again. It reads user data and the directory [`DROP_INS`], rewrites the configuration if they differ, and joins.
//! - `nodeadm/api/v1alpha1/nodeconfig_types.go`; `nodeadm/internal/api/merge.go` (flags are appended, and the kubelet merges
//!   labels of several flags); `nodeadm/internal/kubelet/kubeconfig.go`.
//! - `nodeadm/internal/containerd/config.go` and `runtime_config_nvidia.go`: the complete containerd configuration is
//!   generated, with `nvidia` as the default runtime if `/usr/bin/nvidia-container-runtime` exists.
//!
//! The directory is read since commit 0d558ec3 (2025-10-20), which is part of the images from v20251023 on.

use serde_json::json;

use crate::{
    model::kubernetes::Labels,
    tools::kubelet::{self, label_list},
};

pub const PROGRAM: &str = "/usr/bin/nodeadm";

/// Writes the configuration of the kubelet and containerd, and joins.
pub const RUN_UNIT: &str = "nodeadm-run.service";

/// The kubelet unit of the Canonical images for EKS. These images do not contain nodeadm. Instead, their
/// `/etc/eks/bootstrap.sh` configures and starts the kubelet. Source: documentation.ubuntu.com/aws, "EKS snaps".
pub const SNAP_UNIT: &str = "snap.kubelet-eks.daemon.service";

/// Exists after the machine is validated. User data makes it a condition of [`RUN_UNIT`] at each boot. It contains the instance
/// ID, and user data removes the file of another instance, which may be part of an image.
pub const MAY_JOIN: &str = "/var/lib/gpu-bootstrap/may-join";

/// The file in which cloud-init stores the instance ID. Source: cloud-init documentation, "Cloud-init directory layout".
pub const INSTANCE_ID: &str = "/var/lib/cloud/data/instance-id";

/// The kubeconfig that nodeadm writes, long before it starts the kubelet.
pub const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

/// The units of kubelets that use [`KUBECONFIG`].
pub const KUBELETS: [&str; 2] = [kubelet::UNIT, SNAP_UNIT];

/// The directory for partial configurations, which exists in the image.
pub const DROP_INS: &str = "/etc/eks/nodeadm.d";

/// The partial nodeadm configuration that gpu-bootstrap writes.
pub const CONFIG: &str = "/etc/eks/nodeadm.d/50-gpu-bootstrap.yaml";

/// Returns the configuration as JSON, which is also valid YAML.
///
/// It contains no taints, because a kubelet flag replaces the complete list in `spec.kubelet.config.registerWithTaints`, where
/// Karpenter and node groups set theirs (aws/karpenter-provider-aws, `pkg/providers/amifamily/bootstrap/nodeadm.go`). Without
/// its own taint, Karpenter does not register the node, and deletes it.
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

    /// A flag would replace the taints of Karpenter and of the node group. Labels of several flags are merged.
    #[test]
    fn configuration_is_a_node_config_without_taints() {
        let labels = Labels::from([("team".to_owned(), "research".to_owned())]);
        let text = configuration(&labels);
        assert!(!text.contains("taint"), "{text}");
        insta::assert_snapshot!(text);
    }
}
