//! Sharing of GPUs between pods by the NVIDIA device plugin: the configuration of the plugin, and the resources that it then
//! offers to pods. All functions are pure.
//!
//! Source: NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc): `api/config/v1` (the file), `internal/rm/device_map.go` (the
//! resources).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    host::NvmlDevice,
    mig::{self, MigStrategy},
    model::fault::Fault,
    tools::{
        kubernetes::kubectl::{GPUS, MIG_DEVICES},
        mps,
    },
};

/// The directory of [`PATH`].
pub const DIRECTORY: &str = "/etc/nvidia-device-plugin";

/// The configuration for a device plugin that runs on the host (`--config-file`).
pub const PATH: &str = "/etc/nvidia-device-plugin/gpu-bootstrap.yaml";

/// The directory of the NVIDIA DRA driver, which provides GPUs to pods without a device plugin. Both must not offer the same
/// GPUs. Source: kubernetes-sigs/dra-driver-nvidia-gpu, `DriverPluginPath`.
pub const DRA_DRIVER: &str = "/var/lib/kubelet/plugins/gpu.nvidia.com";

/// The longest name of a resource, with its domain. Source: `MaxResourceNameLength`.
pub const LONGEST_NAME: usize = 63;

/// The suffix of a shared resource that is renamed. Source: `DefaultSharedResourceNameSuffix`.
const RENAMED: &str = ".shared";

/// The names of resources that the device plugin offers, for messages.
pub const RESOURCE: &str = "`nvidia.com/gpu`, or a MIG resource such as `nvidia.com/mig-1g.10gb` or `nvidia.com/mig-1g.10gb.me`";

/// The regular expression of [`is_resource`].
pub const RESOURCE_PATTERN: &str = "^nvidia\\.com/(gpu|mig-[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$";

/// Whether it is the name of a resource that the device plugin offers. Kubernetes requires lower-case letters after the domain.
pub fn is_resource(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name == GPUS
        || (name.strip_prefix(MIG_DEVICES)).is_some_and(|profile| {
            profile.starts_with(outer) && profile.ends_with(outer) && profile.chars().all(inner)
        })
}

/// How several pods share a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SharingMethod {
    /// Each device is offered to one pod.
    #[default]
    None,
    /// Each device is offered several times. The pods take turns on it.
    TimeSlicing,
    /// Each device is offered several times. The pods use it at the same time through CUDA MPS, each with a part of its memory
    /// and threads.
    Mps,
}

impl SharingMethod {
    /// The name in the settings and in the node label `nvidia.com/gpu.sharing-strategy`. Source: `api/config/v1/sharing.go`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::TimeSlicing => "time-slicing",
            Self::Mps => "mps",
        }
    }
}

/// The program that offers the GPUs of the node to pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuAllocation {
    /// The NVIDIA device plugin, as resources of the node.
    #[default]
    DevicePlugin,
    /// The NVIDIA DRA driver, for pods with a ResourceClaim.
    Dra,
}

/// The device class of the DRA driver for GPUs that are not in MIG mode. Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.4.1
/// (commit 764900e7), `deviceclass-gpu.yaml` of the Helm chart.
pub const GPU_CLASS: &str = "gpu.nvidia.com";

/// The device class of the DRA driver for MIG devices. Source: `deviceclass-mig.yaml`.
const MIG_CLASS: &str = "mig.nvidia.com";

/// Where the control daemon of MPS runs. Only one can serve the GPUs: both would use the same directories, and the one of the
/// cluster mounts `shm` again and sets the compute mode when it starts and stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MpsDaemon {
    /// In a unit of this machine, for programs and containers outside of a cluster.
    Host,
    /// In a pod of the device plugin. The daemon of the host cannot replace it: the Helm chart and the GPU Operator start the pod
    /// on each node with the label `nvidia.com/mps.capable`, which GPU Feature Discovery sets, and the device plugin accepts no
    /// other directory than `/mps` in its container. Source: `cmd/mps-control-daemon/mps/root.go`, `internal/lm/nvml.go` and
    /// `daemonset-mps-control-daemon.yml` in the Helm chart.
    Cluster,
}

/// The configuration of the device plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DevicePluginSpec {
    /// How MIG devices are offered.
    pub mig_strategy: MigStrategy,
    /// `None` if no device is shared.
    pub sharing: Option<SharingSpec>,
}

/// Devices that are shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SharingSpec {
    /// The method. Never `None`.
    pub method: SharingMethod,
    /// Where the control daemon of MPS runs. `None` for other methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_daemon: Option<MpsDaemon>,
    /// How often each device is offered, at least 2.
    pub replicas: u32,
    /// The names of the shared resources, before they are renamed.
    pub resources: Vec<String>,
    /// Whether the names get the suffix `.shared`.
    pub rename: bool,
    /// Whether a pod that requests more than one replica is rejected.
    pub fail_requests_greater_than_one: bool,
}

impl SharingSpec {
    /// Returns the name under which a shared resource is offered.
    pub fn name_of(&self, resource: &str) -> String {
        match self.rename {
            true => format!("{resource}{RENAMED}"),
            false => resource.to_owned(),
        }
    }

    /// Returns the reason that MPS cannot share one of the GPUs, and the remedy. `None` if it can share all of them.
    pub fn unsupported_by_mps(&self, devices: &[NvmlDevice]) -> Option<Fault> {
        if let Some(gpu) = devices.iter().find(|gpu| mig::is_split(gpu)) {
            let index = gpu.index;
            return Some(Fault::new(
                format!(
                    "GPU {index} is in MIG mode, and the device plugin does not support MPS on MIG devices"
                ),
                format!(
                    "run `nvidia-smi -i {index} -mig 0`, or set `sharing.method = \"time-slicing\"`"
                ),
            ));
        }
        devices.iter().find_map(|gpu| {
            let name = format!("GPU {}", gpu.index);
            self.exceeds_mps(&name, gpu.compute_capability.as_deref())
        })
    }

    /// Returns the reason that MPS does not support so many replicas on a GPU, and the remedy. `gpu` is its name in the message.
    pub fn exceeds_mps(&self, gpu: &str, capability: Option<&str>) -> Option<Fault> {
        let (replicas, most) = (self.replicas, mps::most_clients(capability));
        (most < replicas).then(|| {
            Fault::new(
                format!(
                    "MPS supports {most} programs on {gpu}, fewer than `sharing.replicas` ({replicas})"
                ),
                format!(
                    "set `sharing.replicas = {most}`, or set `sharing.method = \"time-slicing\"`"
                ),
            )
        })
    }

    fn replicas(&self) -> usize {
        usize::try_from(self.replicas).unwrap_or(usize::MAX)
    }
}

impl DevicePluginSpec {
    /// Whether it is the configuration of a plugin without a configuration file.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns how a resource is shared. `None` if it is not shared.
    pub fn shared(&self, resource: &str) -> Option<&SharingSpec> {
        (self.sharing.as_ref()).filter(|spec| spec.resources.iter().any(|name| name == resource))
    }

    /// The sharing by MPS. `None` if GPUs are not shared, or by another method.
    pub fn mps(&self) -> Option<(&SharingSpec, MpsDaemon)> {
        let spec = self.sharing.as_ref()?;
        Some((spec, spec.mps_daemon?))
    }

    /// Whether the control daemon of MPS runs in a unit of this machine. No device plugin uses it.
    pub fn has_mps_on_host(&self) -> bool {
        matches!(self.mps(), Some((_, MpsDaemon::Host)))
    }

    /// Returns the configuration file of the device plugin, in YAML. Names and numbers need no quotes.
    pub fn config(&self) -> String {
        let strategy = mig::name(self.mig_strategy).unwrap_or("none");
        let mut text = format!("version: v1\nflags:\n  migStrategy: {strategy}\n");
        let Some(spec) = &self.sharing else {
            return text;
        };
        let key = match spec.method {
            // The plugin does not start without this flag: `validateFlags` in `cmd/nvidia-device-plugin/main.go`.
            SharingMethod::Mps => {
                text.push_str(&format!("  mpsRoot: {}\n", mps::ROOT));
                "mps"
            }
            SharingMethod::TimeSlicing | SharingMethod::None => "timeSlicing",
        };
        text.push_str(&format!(
            "sharing:\n  {key}:\n    renameByDefault: {}\n    failRequestsGreaterThanOne: {}\n    resources:\n",
            spec.rename, spec.fail_requests_greater_than_one
        ));
        for name in &spec.resources {
            let replicas = spec.replicas;
            text.push_str(&format!(
                "      - name: {name}\n        replicas: {replicas}\n"
            ));
        }
        text
    }

    /// Returns the resources that the device plugin offers to pods, with their numbers. Empty if it rejects the MIG devices.
    ///
    /// # Errors
    /// If NVML does not report the profile of a MIG device.
    pub fn offers(&self, devices: &[NvmlDevice]) -> Result<BTreeMap<String, usize>, String> {
        let ignores_mig = self.mig_strategy == MigStrategy::None;
        let whole = devices
            .iter()
            .filter(|gpu| ignores_mig || !mig::is_split(gpu));
        let mut counts = BTreeMap::from([(GPUS.to_owned(), whole.count())]);
        for candidate in mig::offers(self.mig_strategy, devices)? {
            if candidate.part.is_none() {
                return Ok(BTreeMap::new());
            }
            counts.insert(candidate.resource, candidate.count);
        }
        Ok(self.replicated(counts))
    }

    /// Returns the device classes of the DRA driver, with the numbers of their devices. The driver needs no MIG strategy: it offers
    /// all MIG devices, and never a GPU in MIG mode as a whole. Source: `GetPerGpuAllocatableDevices` in
    /// `cmd/gpu-kubelet-plugin/nvlib.go`.
    ///
    /// # Errors
    /// If NVML does not report the profile of a MIG device.
    pub fn device_classes(devices: &[NvmlDevice]) -> Result<BTreeMap<String, usize>, String> {
        let plugin = Self {
            mig_strategy: MigStrategy::Mixed,
            sharing: None,
        };
        let mut classes = BTreeMap::new();
        for (name, count) in plugin.offers(devices)? {
            let class = if name == GPUS { GPU_CLASS } else { MIG_CLASS };
            *classes.entry(class.to_owned()).or_default() += count;
        }
        Ok(classes)
    }

    /// Returns the resources for a number of GPUs without MIG devices.
    pub fn offers_of_whole_gpus(&self, count: usize) -> BTreeMap<String, usize> {
        self.replicated(BTreeMap::from([(GPUS.to_owned(), count)]))
    }

    fn replicated(&self, counts: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
        (counts.into_iter())
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| match self.shared(&name) {
                Some(spec) => (spec.name_of(&name), count.saturating_mul(spec.replicas())),
                None => (name, count),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{MigDevice, MigShare},
        steps::fixtures::nvml_device,
    };

    fn spec(mig_strategy: MigStrategy, resources: &[&str], rename: bool) -> DevicePluginSpec {
        DevicePluginSpec {
            mig_strategy,
            sharing: Some(SharingSpec {
                method: SharingMethod::TimeSlicing,
                mps_daemon: None,
                replicas: 4,
                resources: resources.iter().map(|&name| name.to_owned()).collect(),
                rename,
                fail_requests_greater_than_one: true,
            }),
        }
    }

    #[test]
    fn configuration_has_the_format_of_the_device_plugin() {
        let names = ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"];
        assert_eq!(
            spec(MigStrategy::Mixed, &names, true).config(),
            r"version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
      - name: nvidia.com/gpu
        replicas: 4
      - name: nvidia.com/mig-1g.10gb
        replicas: 4
"
        );
        let mut mps = spec(MigStrategy::None, &["nvidia.com/gpu"], false);
        if let Some(spec) = &mut mps.sharing {
            spec.method = SharingMethod::Mps;
            spec.mps_daemon = Some(MpsDaemon::Cluster);
        }
        assert_eq!(
            mps.config(),
            r"version: v1
flags:
  migStrategy: none
  mpsRoot: /run/nvidia/mps
sharing:
  mps:
    renameByDefault: false
    failRequestsGreaterThanOne: true
    resources:
      - name: nvidia.com/gpu
        replicas: 4
"
        );
        let plain = DevicePluginSpec::default();
        assert_eq!(plain.config(), "version: v1\nflags:\n  migStrategy: none\n");
        assert!(plain.is_default());
    }

    /// A GPU in MIG mode with two devices.
    fn split(index: u32) -> NvmlDevice {
        let part = |index| MigDevice {
            index,
            uuid: None,
            profile: Some("1g.10gb".to_owned()),
            share: Some(MigShare::default()),
        };
        NvmlDevice {
            mig: Some(true),
            mig_devices: vec![part(0), part(1)],
            ..nvml_device(index)
        }
    }

    #[test]
    fn each_shared_device_is_offered_as_often_as_configured() {
        let whole = [nvml_device(0), nvml_device(1)];
        let mixed = [nvml_device(0), split(1)];
        let (gpu, mig) = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb");
        for (found, expected) in [
            (DevicePluginSpec::default().offers(&whole), vec![(gpu, 2)]),
            (
                spec(MigStrategy::None, &[gpu], false).offers(&whole),
                vec![(gpu, 8)],
            ),
            (
                spec(MigStrategy::None, &[gpu], true).offers(&whole),
                vec![("nvidia.com/gpu.shared", 8)],
            ),
            (
                spec(MigStrategy::Mixed, &[mig], false).offers(&mixed),
                vec![(gpu, 1), (mig, 8)],
            ),
            (
                spec(MigStrategy::Single, &[gpu], false).offers(&[split(0)]),
                vec![(gpu, 8)],
            ),
            // The plugin rejects a node with GPUs in both modes.
            (
                spec(MigStrategy::Single, &[gpu], false).offers(&mixed),
                vec![],
            ),
            // The plugin ignores the MIG devices.
            (
                spec(MigStrategy::None, &[gpu], false).offers(&[split(0)]),
                vec![(gpu, 4)],
            ),
        ] {
            let found = found.expect("reported profiles");
            let found: Vec<(&str, usize)> = (found.iter())
                .map(|(name, count)| (name.as_str(), *count))
                .collect();
            assert_eq!(found, expected);
        }
        let classes = DevicePluginSpec::device_classes(&mixed).expect("reported profiles");
        let expected = [(GPU_CLASS.to_owned(), 1), (MIG_CLASS.to_owned(), 2)];
        assert_eq!(classes, BTreeMap::from(expected));
    }
}
