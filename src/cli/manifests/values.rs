//! The values of the templates in `manifests/`, and their insertion.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    config::{
        choices::ImexMode,
        desired::{Desired, DevicePluginSpec},
    },
    host::digest::sha256,
    joins::RuntimeClass,
    mig::MigStrategy,
    model::{kubernetes::Taint, text::built_in},
    sharing::{GPU_CLASS, GpuAllocation},
    tools::kubernetes::kubectl::GPUS,
};

/// The label with the GPU model.
pub(super) const PRODUCT: &str = "nvidia.com/gpu.product";

/// The label that gpu-bootstrap sets on nodes with GPUs.
const PRESENT: &str = "nvidia.com/gpu.present";

/// The label that gpu-bootstrap sets on nodes whose GPUs are shared by MPS.
const MPS_CAPABLE: &str = "nvidia.com/mps.capable";

/// The directories of MPS in the device plugin, which queries the control daemon.
const MPS_MOUNTS: &str =
    "- {name: mps-shm, mountPath: /dev/shm}\n- {name: mps-root, mountPath: /mps}";

/// The volumes of [`MPS_MOUNTS`]. `35-mps-control-daemon.yaml` has the same ones.
const MPS_VOLUMES: &str = "- name: mps-root\n  hostPath: {path: /run/nvidia/mps, type: DirectoryOrCreate}\n- name: mps-shm\n  \
                           hostPath: {path: /run/nvidia/mps/shm}";

/// The comment of the queue of Kueue with the DRA driver. Source: kubernetes-sigs/kueue (commit ff69552e),
/// site/content/en/docs/tasks/manage/setup_dra.md.
const KUEUE_CLASSES: &str = "\
# The quotas have the names of the device classes. Enable the feature gate KueueDRAIntegration (DynamicResourceAllocation before
# Kueue 0.18), and map each class in `resources.deviceClassMappings` of its configuration, for example
# `{name: gpu.nvidia.com, deviceClassNames: [gpu.nvidia.com]}`.";

/// The comment of the Volcano queue with the DRA driver. Source: volcano.sh/volcano v1.15.1 (commit 0a56ed33),
/// docs/user-guide/how_to_use_dra_quota.md, and `parseDRAResourceList` in pkg/scheduler/plugins/capacity/capacity.go.
const VOLCANO_CLASSES: &str = "\
# The capability has the names of the device classes. Volcano counts them since 1.15, and only if the configuration of its scheduler
# has the plugin `capacity` instead of `proportion`.";

/// The values of all placeholders, without `@`.
type Values = BTreeMap<String, String>;

/// The settings and devices of a node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) plugin: DevicePluginSpec,
    pub(super) allocation: GpuAllocation,
    /// Whether `fabric.imex` is `dra`. ComputeDomains need the Helm chart of the DRA driver.
    pub(super) has_compute_domains: bool,
    /// The resources of the device plugin or the device classes of the DRA driver, with the numbers of their devices.
    pub(super) offers: BTreeMap<String, usize>,
    taints: Vec<Taint>,
    /// Whether gpu-bootstrap labels the node.
    is_labeled: bool,
    product: Option<String>,
    pub(super) runtime_class: RuntimeClass,
    /// Whether a pod can request one of the resources.
    pub(super) has_test_pod: bool,
    /// DCGM runs on the host, so a second host engine in a pod could not read the profiling metrics.
    pub(super) has_dcgm: bool,
}

/// An image in `images.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    image: String,
    /// Where the tag was read.
    source: String,
    /// What was not verified.
    unverified: Option<String>,
}

impl Node {
    /// Returns the values of a node with these resources. `product` is the GPU model in its label.
    pub(super) fn new(
        desired: &Desired,
        offers: BTreeMap<String, usize>,
        product: Option<String>,
    ) -> Self {
        let cluster = desired.cluster.as_ref();
        Self {
            plugin: desired.device_plugin.clone(),
            allocation: desired.settings.cluster.gpu_allocation,
            has_compute_domains: desired.settings.fabric.imex == ImexMode::Dra,
            offers,
            taints: cluster.map_or_else(Vec::new, |spec| spec.node.taints.clone()),
            is_labeled: cluster.is_some_and(|spec| spec.node.gpu_labels),
            product,
            runtime_class: cluster.map_or(RuntimeClass::Created, |spec| {
                spec.method.implementation().runtime_class()
            }),
            has_test_pod: true,
            has_dcgm: desired.dcgm.is_some(),
        }
    }

    /// Returns the values of all placeholders.
    ///
    /// # Errors
    /// If the built-in table of images is invalid.
    pub(super) fn values(&self) -> Result<Values, String> {
        let mut values = Values::new();
        let images: BTreeMap<String, Image> = built_in("manifests/images")?;
        for (name, row) in images {
            let name = name.to_uppercase();
            let unverified = row.unverified.map_or_else(String::new, |why| {
                format!("# Image: {}. Not verified: {why}", row.source)
            });
            values.insert(format!("{name}-IMAGE"), row.image);
            values.insert(format!("{name}-UNVERIFIED"), unverified);
        }
        let config = self.plugin.config();
        let has_mig = self.plugin.mig_strategy != MigStrategy::None;
        let of_mps = |text: &str| match self.plugin.mps() {
            Some(_) => text.to_owned(),
            None => String::new(),
        };
        let lines = |line: &dyn Fn(&str, usize) -> String| {
            let lines: Vec<String> = (self.offers.iter())
                .map(|(name, count)| line(name, *count))
                .collect();
            lines.join("\n")
        };
        let is_dra = self.allocation == GpuAllocation::Dra;
        let whole = if is_dra { GPU_CLASS } else { GPUS };
        let requested = match self.offers.contains_key(whole) {
            true => whole,
            false => self.offers.keys().next().map_or(whole, String::as_str),
        };
        for (name, value) in [
            ("DEVICE-PLUGIN-CONFIG-SHA256", sha256(config.as_bytes())),
            ("DEVICE-PLUGIN-CONFIG", config),
            ("DEVICE-PLUGIN-SECURITY", security(has_mig).to_owned()),
            (
                "MIG-MONITOR",
                match has_mig {
                    true => "- {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}".to_owned(),
                    false => String::new(),
                },
            ),
            ("MPS-MOUNTS", of_mps(MPS_MOUNTS)),
            ("MPS-VOLUMES", of_mps(MPS_VOLUMES)),
            ("MPS-NODE-SELECTOR", self.mps_labels()),
            (
                "DCGM-SHARING",
                match &self.plugin.sharing {
                    Some(_) => "- {name: KUBERNETES_VIRTUAL_GPUS, value: \"true\"}".to_owned(),
                    None => String::new(),
                },
            ),
            (
                "RUNTIME-CLASS",
                match self.runtime_class {
                    RuntimeClass::Default => String::new(),
                    _ => "runtimeClassName: nvidia".to_owned(),
                },
            ),
            ("TOLERATIONS", self.tolerations()),
            ("NODE-SELECTOR", self.labels("nodeSelector", None)),
            (
                "NODE-LABELS",
                self.labels("nodeLabels", self.product.as_deref()),
            ),
            (
                "QUOTA",
                lines(&|name, count| match is_dra {
                    true => format!("{name}.deviceclass.resource.k8s.io/devices: \"{count}\""),
                    false => format!("requests.{name}: \"{count}\""),
                }),
            ),
            (
                "KUEUE-CLASSES",
                if is_dra {
                    KUEUE_CLASSES.to_owned()
                } else {
                    String::new()
                },
            ),
            ("KUEUE-COVERED", lines(&|name, _| format!("- {name}"))),
            (
                "KUEUE-QUOTA",
                lines(&|name, count| format!("- {{name: {name}, nominalQuota: {count}}}")),
            ),
            (
                "VOLCANO-CLASSES",
                if is_dra {
                    VOLCANO_CLASSES.to_owned()
                } else {
                    String::new()
                },
            ),
            (
                "VOLCANO-CAPABILITY",
                lines(&|name, count| match is_dra {
                    true => format!("deviceclass/{name}: {count}"),
                    false => format!("{name}: {count}"),
                }),
            ),
            ("TEST-RESOURCE", format!("{requested}: 1")),
            ("DEVICE-CLASS", requested.to_owned()),
        ] {
            values.insert(name.to_owned(), value);
        }
        Ok(values)
    }

    /// Returns the tolerations for the taint of GPU nodes, and for the taints of this node.
    fn tolerations(&self) -> String {
        let mut lines = vec![format!("- {{key: {GPUS}, operator: Exists}}")];
        for taint in self.taints.iter().filter(|taint| taint.key != GPUS) {
            let (key, effect) = (&taint.key, taint.effect.name());
            // Without quotes, a key such as `true` is not a string.
            lines.push(format!(
                "- {{key: \"{key}\", operator: Exists, effect: {effect}}}"
            ));
        }
        lines.join("\n")
    }

    /// Returns the node selector of the MPS control daemon, as in the Helm chart.
    fn mps_labels(&self) -> String {
        let labels = self.labels("nodeSelector", None);
        match labels.is_empty() {
            true => labels,
            false => format!("{labels}\n  {MPS_CAPABLE}: \"true\""),
        }
    }

    /// Returns a map with the labels that gpu-bootstrap sets on the node. Empty if it sets none.
    fn labels(&self, key: &str, product: Option<&str>) -> String {
        if !self.is_labeled {
            return String::new();
        }
        let product = product.map_or_else(String::new, |product| {
            format!("\n  {PRODUCT}: \"{product}\"")
        });
        format!("{key}:\n  {PRESENT}: \"true\"{product}")
    }
}

/// The security context of the device plugin. It needs SYS_ADMIN to see MIG devices. Source: the Helm chart of the device
/// plugin, `_helpers.tpl`.
const fn security(has_mig: bool) -> &'static str {
    match has_mig {
        true => "capabilities:\n  add: [SYS_ADMIN]",
        false => "allowPrivilegeEscalation: false\ncapabilities:\n  drop: [ALL]",
    }
}

/// Fills in a template. A placeholder on a separate line is replaced by lines with the same indentation. Comments are not
/// changed.
///
/// # Errors
/// If a placeholder has no value.
pub(super) fn render(template: &str, values: &Values) -> Result<String, String> {
    let mut text = String::new();
    for line in template.lines() {
        let content = line.trim_start();
        let indent = &line[..line.len() - content.len()];
        let name = content
            .strip_prefix('@')
            .and_then(|rest| rest.strip_suffix('@'));
        if let Some(name) = name {
            let value = values.get(name);
            let value = value.ok_or_else(|| format!("no value for `@{name}@`"))?;
            for line in value.lines() {
                text.extend([indent, line, "\n"]);
            }
            continue;
        }
        let filled = match content.starts_with('#') {
            true => line.to_owned(),
            false => inline(line, values)?,
        };
        text.extend([filled.as_str(), "\n"]);
    }
    Ok(text)
}

/// Fills in the placeholders of a line, each of which is in quotes.
fn inline(line: &str, values: &Values) -> Result<String, String> {
    let Some((before, rest)) = line.split_once("\"@") else {
        return Ok(line.to_owned());
    };
    let (name, after) = (rest.split_once("@\"")).ok_or("a placeholder does not end with `@\"`")?;
    let value = values.get(name);
    let value = value.ok_or_else(|| format!("no value for `@{name}@`"))?;
    Ok(format!("{before}\"{value}\"{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_with_their_indentation() {
        let values = Values::from([
            ("LINES".to_owned(), "a: 1\nb: 2\n".to_owned()),
            ("NONE".to_owned(), String::new()),
            ("WORD".to_owned(), "x@sha256:00".to_owned()),
        ]);
        let template = "# @WORD@\nroot:\n  @LINES@\n  @NONE@\n  image: \"@WORD@\"\n";
        assert_eq!(
            render(template, &values).as_deref(),
            Ok("# @WORD@\nroot:\n  a: 1\n  b: 2\n  image: \"x@sha256:00\"\n")
        );
        for template in ["@OTHER@\n", "image: \"@OTHER@\"\n", "image: \"@WORD\n"] {
            render(template, &values).expect_err(template);
        }
    }
}
