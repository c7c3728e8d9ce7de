//! Compares the GPU resources of the node with those that the configured sharing and the MIG devices result in. Part of
//! `k8s.allocatable` (`cluster.rs`).

use std::collections::BTreeMap;

use crate::{
    check::{Finding, Verdict},
    config::desired::DevicePluginSpec,
    host::Nvml,
    mig::{self, MigStrategy},
    model::id::Id,
    tools::kubernetes::kubectl::{GPUS, Node},
};

const LINK: &str = "https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus";
const OTHER_CONFIGURATION: &str = "run `gpu-bootstrap manifests --out DIR` and `kubectl apply -f DIR`, so that the device plugin has the configured sharing and \
     MIG strategy; if it has, restart its pod on this node, or correct the settings in `[sharing]` and `cluster.mig-strategy`";
const UNHEALTHY: &str =
    "find the unhealthy GPU in the log of the device plugin pod on this node (`kubectl logs`)";

/// Resource names with their numbers.
pub(super) type Resources = BTreeMap<String, usize>;

/// Returns the resources that the node offers if the device plugin has the configured sharing and MIG strategy. `None` if GPUs are
/// neither shared nor offered as MIG devices, or if the devices are unknown.
pub(super) fn expected(plugin: &DevicePluginSpec, nvml: &Nvml) -> Option<Resources> {
    let Nvml::Ready(view) = nvml else {
        return None;
    };
    let has_mig_devices =
        plugin.mig_strategy != MigStrategy::None && view.devices.iter().any(mig::is_split);
    if plugin.sharing.is_none() && !has_mig_devices {
        return None;
    }
    let expected = plugin.offers(&view.devices).ok()?;
    (!expected.is_empty()).then_some(expected)
}

fn offered(node: &Node) -> Resources {
    let gpus = node.allocatable_gpus.iter();
    let gpus = gpus.map(|count| (GPUS.to_owned(), count.clone()));
    gpus.chain(node.other_resources.clone())
        .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn list(resources: &Resources) -> String {
    let all: Vec<String> = (resources.iter())
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    all.join(", ")
}

/// Evaluates the resources of a node. `None` if it offers none, for example because no device plugin runs.
pub(super) fn decide(id: Id, name: &str, node: &Node, expected: &Resources) -> Option<Finding> {
    let offered = offered(node);
    if offered.is_empty() {
        return None;
    }
    let has_same_names = offered.keys().eq(expected.keys());
    let has_more = (offered.iter()).any(|(name, count)| expected.get(name) < Some(count));
    let found = list(&offered);
    if offered == *expected {
        let why = format!("node `{name}` offers {found}, as configured");
        return Some(Finding::new(id, Verdict::Pass, why));
    }
    let remedy = match has_same_names && !has_more {
        true => UNHEALTHY,
        false => OTHER_CONFIGURATION,
    };
    let wanted = list(expected);
    let why =
        format!("node `{name}` offers {found} instead of {wanted}, which result from the settings");
    Some(Finding {
        observed: Some(found),
        expected: Some(wanted),
        remedy: Some(remedy.to_owned()),
        links: vec![LINK.to_owned()],
        ..Finding::new(id, Verdict::Warn, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{MigDevice, MigShare, NvmlView},
        steps::fixtures::nvml_device,
    };

    #[test]
    fn mig_devices_are_expected_with_a_strategy() {
        let mut split = nvml_device(0);
        split.mig = Some(true);
        split.mig_devices = (0..7)
            .map(|index| MigDevice {
                index,
                uuid: None,
                profile: Some("1g.10gb".to_owned()),
                share: Some(MigShare::default()),
            })
            .collect();
        let view = |devices| {
            Nvml::Ready(NvmlView {
                driver_version: "580.178.04".to_owned(),
                cuda_version: None,
                devices,
            })
        };
        let plugin = |mig_strategy| DevicePluginSpec {
            mig_strategy,
            sharing: None,
        };
        let nvml = view(vec![split, nvml_device(1)]);
        let expected = Resources::from([
            (GPUS.to_owned(), 1),
            ("nvidia.com/mig-1g.10gb".to_owned(), 7),
        ]);
        assert_eq!(
            super::expected(&plugin(MigStrategy::Mixed), &nvml),
            Some(expected)
        );
        assert_eq!(super::expected(&plugin(MigStrategy::None), &nvml), None);
        let whole = view(vec![nvml_device(0)]);
        assert_eq!(super::expected(&plugin(MigStrategy::Mixed), &whole), None);
    }

    #[test]
    fn node_must_offer_the_configured_replicas() {
        let expected = Resources::from([(GPUS.to_owned(), 8)]);
        let shared = "nvidia.com/gpu.shared";
        for (gpus, others, verdict, remedy) in [
            (Some("8"), None, Verdict::Pass, None),
            // Two GPUs with four replicas each, one of which is unhealthy.
            (Some("4"), None, Verdict::Warn, Some("unhealthy GPU")),
            // The device plugin has more replicas, or other names.
            (Some("16"), None, Verdict::Warn, Some("manifests --out")),
            (None, Some("8"), Verdict::Warn, Some("manifests --out")),
            (Some("0"), Some("8"), Verdict::Warn, Some("manifests --out")),
        ] {
            let node = Node {
                allocatable_gpus: gpus.map(str::to_owned),
                other_resources: (others.iter())
                    .map(|count| (shared.to_owned(), (*count).to_owned()))
                    .collect(),
                ..Node::default()
            };
            let id = Id::new("k8s.allocatable");
            let found = decide(id, "gpu-1", &node, &expected).expect("a finding");
            assert_eq!(found.status, verdict, "{}", found.why);
            let hint = found.remedy.unwrap_or_default();
            assert!(remedy.is_none_or(|part| hint.contains(part)), "{hint}");
            assert_eq!(hint.is_empty(), remedy.is_none(), "{hint}");
        }
        let id = Id::new("k8s.allocatable");
        assert!(decide(id, "gpu-1", &Node::default(), &expected).is_none());
    }
}
