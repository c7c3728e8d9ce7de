//! EKS' `nodeadm`, as Amazon's images have it.
//!
//! Sources: awslabs/amazon-eks-ami, `templates/al2023/runtime/rootfs/etc/systemd/system/nodeadm-config.service` and
//! `nodeadm-run.service` (the second starts after cloud-init, and joins), `nodeadm/doc/api.md` (`NodeConfig`), and the
//! facts about the folder `/etc/eks/nodeadm.d`, whose files count more than user data.

use serde_json::json;

use super::kubeadm::label_list;
use crate::model::kubernetes::{Labels, Taint};

/// The program.
pub const PROGRAM: &str = "/usr/bin/nodeadm";

/// Writes the configuration of the kubelet and of containerd.
pub const CONFIG_UNIT: &str = "nodeadm-config.service";

/// Joins.
pub const RUN_UNIT: &str = "nodeadm-run.service";

/// Exists once the machine is proven: user data makes it a condition of [`RUN_UNIT`], at each boot.
pub const MAY_JOIN: &str = "/var/lib/gpu-bootstrap/may-join";

/// Our part of the configuration.
pub const CONFIG: &str = "/etc/eks/nodeadm.d/50-gpu-bootstrap.yaml";

/// The configuration: JSON, which is YAML, too.
#[must_use]
pub fn configuration(labels: &Labels, taints: &[Taint]) -> String {
    let taints: Vec<String> = taints.iter().map(ToString::to_string).collect();
    let mut flags = vec![format!("--node-labels={}", label_list(labels))];
    if !taints.is_empty() {
        flags.push(format!("--register-with-taints={}", taints.join(",")));
    }
    let configuration = json!({
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {"kubelet": {"flags": flags}},
    });
    format!("{configuration:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_a_node_config() {
        let labels = Labels::from([("team".to_owned(), "research".to_owned())]);
        let taints = ["nvidia.com/gpu=present:NoSchedule"
            .parse()
            .expect("a taint")];
        insta::assert_snapshot!(configuration(&labels, &taints));
    }
}
