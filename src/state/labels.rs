//! Kubernetes node labels that describe the GPUs. This module computes the labels of NVIDIA GPU Feature Discovery from facts
//! and NVML, and the labels that make the NVIDIA GPU Operator adopt a prepared node. [`of`], [`operator`] and [`features_file`]
//! are pure functions.
//!
//! GPU Feature Discovery (GFD) may run later in the cluster and write the same labels. The keys and values must therefore be
//! equal, so that no label changes. The rules come from NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc), in `internal/lm`
//! unless specified otherwise. Each function mentions its source file.
//!
//! Three intentional differences:
//!
//! - **`nvidia.com/gfd.timestamp` is omitted**, like with the GFD option `--no-timestamp`, because it would change at every
//!   check.
//! - **GPUs of several models**: the GFD labels describe one model, which varies between runs. Here it is the first model in
//!   the NVML order.
//! - **Sharing** (`replicas` above 1, the product suffix `-SHARED`, `sharing-strategy`) follows the settings of this machine,
//!   which the device plugin of the cluster must match. With MPS and a GPU in MIG mode, GFD sets no labels; here, `mps.capable`
//!   is `false`, so that the MPS control daemon is not started.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::{
    facts::Facts,
    host::{Nvml, NvmlDevice, NvmlView},
    mig::{self, Candidate},
    model::kubernetes::check_value,
    sharing::{DevicePluginSpec, MpsDaemon, SharingMethod, SharingSpec},
    tools::packages::HEADER,
};

/// The resource name of whole GPUs, and the prefix of their labels.
const GPU: &str = "nvidia.com/gpu";

/// The labels of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuLabels {
    /// Label values by key. All values are valid in Kubernetes.
    pub labels: BTreeMap<String, String>,
    /// Labels that GFD would compute but Kubernetes would reject, for example a machine model of more than 63 characters. A
    /// kubelet with an invalid label does not start.
    pub refused: BTreeMap<String, String>,
}

/// The reason there are no labels. Like GFD, gpu-bootstrap computes either all labels or none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoLabels {
    /// NVML returned no GPU list.
    #[error("NVML does not respond, so the GPU labels are unknown")]
    NoAnswer,
    /// One GPU does not respond.
    #[error("GPU {index} does not respond to NVML ({why}), so the GPU labels are unknown")]
    Gpu {
        /// Its NVML index.
        index: u32,
        /// The NVML error.
        why: String,
    },
    /// NVML responds, but a value that the labels require is missing.
    #[error("NVML does not report {what}, so the GPU labels are unknown")]
    NotReported {
        /// What is missing.
        what: String,
    },
}

/// Computes the labels that GFD would set on this machine. Without a GPU the only label is `vgpu.present`.
///
/// # Errors
/// If NVML or one of its GPUs does not respond, or if NVML does not report a required value.
pub fn of(facts: &Facts, nvml: &Nvml, plugin: &DevicePluginSpec) -> Result<GpuLabels, NoLabels> {
    let mut all = BTreeMap::new();
    match nvml {
        Nvml::Ready(view) if !view.devices.is_empty() => {
            answering(&view.devices)?;
            put(&mut all, "nvidia.com/gpu.machine", machine(facts));
            versions(&mut all, view)?;
            capabilities(&mut all, &view.devices, plugin);
            whole_gpus(&mut all, &view.devices, plugin)?;
            let strategy = plugin.mig_strategy;
            if let Some(name) = mig::name(strategy) {
                put(&mut all, mig::STRATEGY, name);
            }
            let offers = mig::offers(strategy, &view.devices);
            for offer in offers.map_err(|what| NoLabels::NotReported { what })? {
                let shared = plugin.shared(&offer.resource);
                resource(&mut all, &offer, shared)?;
            }
            put(&mut all, "nvidia.com/gpu.mode", mode(facts, &view.devices));
            if let Some(clique) = clique(&view.devices) {
                put(&mut all, "nvidia.com/gpu.clique", clique);
            }
        }
        Nvml::Ready(_) | Nvml::NoDevices => {}
        _ => return Err(NoLabels::NoAnswer),
    }
    // vgpu.go. The facts identify vGPUs by their PCI device IDs, which are in the matrix.
    let vgpu = facts.gpus.iter().any(|gpu| gpu.vgpu);
    put(&mut all, "nvidia.com/vgpu.present", vgpu);
    let (labels, refused) = all
        .into_iter()
        .partition(|(_, value)| check_value(value).is_ok());
    Ok(GpuLabels { labels, refused })
}

/// The labels that make the NVIDIA GPU Operator adopt this node without reinstalling what gpu-bootstrap installed. `toolkit` is
/// true if the NVIDIA Container Toolkit is installed on the host.
///
/// Sources: NVIDIA/gpu-operator (commit a22dbf67, 2026-08-21) and NVIDIA/k8s-driver-manager (bd62ca7d).
///
/// - `nvidia.com/gpu.present`: the operator sets it if the NFD labels of the PCI device exist ([`features_file`]), and
///   otherwise sets it to `false` (controllers/nodelabeling_controller.go).
/// - `nvidia.com/gpu.deploy.driver=pre-installed`: the value that the operator's driver manager sets if it finds a driver on
///   the host (cmd/driver-manager/main.go). The operator keeps an existing value (controllers/state_manager.go,
///   `addGPUStateLabels`), and its driver runs only if the value is `true` (assets/state-driver/0500_daemonset.yaml).
/// - `nvidia.com/gpu.deploy.container-toolkit=false`: the same two rules (assets/state-container-toolkit).
///
/// Do not create files in `/run/nvidia/validations`. The operator's validator removes `driver-ready` and its siblings, inspects
/// the host, and creates them itself (cmd/nvidia-validator/main.go).
pub fn operator(toolkit: bool) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    put(&mut labels, "nvidia.com/gpu.present", true);
    put(&mut labels, "nvidia.com/gpu.deploy.driver", "pre-installed");
    if toolkit {
        put(
            &mut labels,
            "nvidia.com/gpu.deploy.container-toolkit",
            false,
        );
    }
    labels
}

/// The file from which Node Feature Discovery (NFD) reads our labels. Each program has its own file in this directory.
pub const FEATURES_FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/gpu-bootstrap";

/// The content of [`FEATURES_FILE`] for a machine with NVIDIA GPUs: these labels, and the one that a kubelet may not set on
/// itself. The NFD worker sets all of them.
///
/// The format is described in docs/usage/customization-guide.md of NFD, "Local feature source" (commit 76e6cc8c): one
/// `KEY=VALUE` per line, comments after `#`, at most 64 kB, and the file must be created with a rename. The PCI device label is
/// one of three that the operator accepts (controllers/state_manager.go, `gpuNodeLabels`). The NFD worker itself sets another
/// one, `pci-0302_10de.present` or `pci-0300_10de.present`, unless its `sources.pci` is configured differently.
pub fn features_file(labels: &BTreeMap<String, String>) -> String {
    let mut text = HEADER.to_owned();
    let present = "feature.node.kubernetes.io/pci-10de.present";
    let own = BTreeMap::from([(present.to_owned(), true.to_string())]);
    for (key, value) in own.iter().chain(labels) {
        text.push_str(&format!("{key}={value}\n"));
    }
    text
}

fn put(labels: &mut BTreeMap<String, String>, key: &str, value: impl Display) {
    labels.insert(key.to_owned(), value.to_string());
}

/// Returns an error if a GPU does not respond, because the counts would then be wrong.
fn answering(devices: &[NvmlDevice]) -> Result<(), NoLabels> {
    match devices
        .iter()
        .find_map(|gpu| Some((gpu, gpu.error.as_ref()?)))
    {
        Some((gpu, why)) => Err(NoLabels::Gpu {
            index: gpu.index,
            why: why.clone(),
        }),
        None => Ok(()),
    }
}

fn told<T>(value: Option<T>, what: impl FnOnce() -> String) -> Result<T, NoLabels> {
    value.ok_or_else(|| NoLabels::NotReported { what: what() })
}

/// machine-type.go.
fn machine(facts: &Facts) -> String {
    sanitised(facts.product.as_deref().unwrap_or("unknown"))
}

/// nvml.go, `newVersionLabeler`: driver versions have two or three parts.
fn versions(labels: &mut BTreeMap<String, String>, view: &NvmlView) -> Result<(), NoLabels> {
    let driver = &view.driver_version;
    let parts: Vec<&str> = driver.split('.').collect();
    let (major, minor, revision) = match parts[..] {
        [major, minor] => (major, minor, ""),
        [major, minor, revision] => (major, minor, revision),
        _ => {
            return Err(NoLabels::NotReported {
                what: format!("the driver version in two or three parts (got `{driver}`)"),
            });
        }
    };
    let cuda = view.cuda_version.as_deref();
    let cuda = told(cuda, || "the CUDA version of the driver".to_owned())?;
    let (cuda_major, cuda_minor) = cuda.split_once('.').unwrap_or((cuda, "0"));
    for (key, value) in [
        // The first five are deprecated but still written.
        ("driver.major", major),
        ("driver.minor", minor),
        ("driver.rev", revision),
        ("runtime.major", cuda_major),
        ("runtime.minor", cuda_minor),
        ("driver-version.major", major),
        ("driver-version.minor", minor),
        ("driver-version.revision", revision),
        ("driver-version.full", driver),
        ("runtime-version.major", cuda_major),
        ("runtime-version.minor", cuda_minor),
        ("runtime-version.full", cuda),
    ] {
        put(labels, &format!("nvidia.com/cuda.{key}"), value);
    }
    Ok(())
}

/// nvml.go, `newMigCapabilityLabeler` and `newSharingLabeler`. A GPU only has a MIG mode if it supports MIG.
fn capabilities(
    labels: &mut BTreeMap<String, String>,
    devices: &[NvmlDevice],
    plugin: &DevicePluginSpec,
) {
    put(labels, mig::CAPABLE, devices.iter().any(mig::is_capable));
    let in_cluster = matches!(plugin.mps(), Some((_, MpsDaemon::Cluster)));
    let has_mps = in_cluster && !devices.iter().any(mig::is_split);
    put(labels, "nvidia.com/mps.capable", has_mps);
}

fn name(gpu: &NvmlDevice) -> Result<&str, NoLabels> {
    told(gpu.name.as_deref(), || {
        format!("the name of GPU {}", gpu.index)
    })
}

/// mig-strategy.go, `newGPULabelers`, and resource.go. Whole GPUs precede partitioned ones.
fn whole_gpus(
    labels: &mut BTreeMap<String, String>,
    devices: &[NvmlDevice],
    plugin: &DevicePluginSpec,
) -> Result<(), NoLabels> {
    // Later values replace earlier ones, so write the first GPU last.
    let (split, whole): (Vec<_>, Vec<_>) = devices.iter().rev().partition(|gpu| mig::is_split(gpu));
    for gpu in split.into_iter().chain(whole) {
        let model = name(gpu)?;
        let count = devices
            .iter()
            .filter(|other| other.name == gpu.name)
            .count();
        let replicas = match mig::is_split(gpu) {
            // A partitioned GPU is not a resource, so it has no replicas.
            true => Replicas::NONE,
            false => Replicas::of(plugin.shared(GPU)),
        };
        base(labels, GPU, &[model], count, replicas);
        let mib = gpu.memory_bytes.unwrap_or_default() >> 20;
        if mib != 0 {
            put(labels, &format!("{GPU}.memory"), mib);
        }
        let capability = gpu.compute_capability.as_deref().and_then(capability);
        let what = || format!("the compute capability of GPU {}", gpu.index);
        let (major, minor) = told(capability, what)?;
        if major != 0 {
            put(labels, &format!("{GPU}.family"), family(major, minor));
            put(labels, &format!("{GPU}.compute.major"), major);
            put(labels, &format!("{GPU}.compute.minor"), minor);
        }
    }
    Ok(())
}

/// How often a resource is offered.
#[derive(Debug, Clone, Copy)]
struct Replicas<'s> {
    count: u32,
    shared: Option<&'s SharingSpec>,
}

impl<'s> Replicas<'s> {
    /// A resource that is not offered.
    const NONE: Self = Self {
        count: 0,
        shared: None,
    };

    fn of(shared: Option<&'s SharingSpec>) -> Self {
        Self {
            count: shared.map_or(1, |spec| spec.replicas),
            shared,
        }
    }
}

/// resource.go, `baseLabeler`, `getProductName` and `getReplicas`. A product with a renamed resource has no suffix.
fn base(
    labels: &mut BTreeMap<String, String>,
    resource: &str,
    product: &[&str],
    count: usize,
    replicas: Replicas<'_>,
) {
    let mut product: Vec<String> = product.iter().map(|part| sanitised(part)).collect();
    if replicas.shared.is_some_and(|spec| !spec.rename) {
        product.push("SHARED".to_owned());
    }
    let strategy = match replicas.shared {
        Some(spec) => spec.method.name(),
        None => SharingMethod::None.name(),
    };
    put(labels, &format!("{resource}.product"), product.join("-"));
    put(labels, &format!("{resource}.count"), count);
    put(labels, &format!("{resource}.replicas"), replicas.count);
    put(labels, &format!("{resource}.sharing-strategy"), strategy);
}

/// Splits `9.0` into two numbers.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// resource.go, `getArchFamily`.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, ..5) => "volta",
        (7, _) => "turing",
        (8, ..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}

/// resource.go, `NewMIGResourceLabeler`, and internal/resource/nvml-mig-device.go, `GetAttributes`.
fn resource(
    labels: &mut BTreeMap<String, String>,
    offer: &Candidate<'_>,
    shared: Option<&SharingSpec>,
) -> Result<(), NoLabels> {
    let resource = &offer.resource;
    let model = name(offer.gpu)?;
    let Some((profile, share)) = &offer.part else {
        base(
            labels,
            resource,
            &[model, "MIG", "INVALID"],
            0,
            Replicas::NONE,
        );
        put(labels, &format!("{resource}.sharing-strategy"), "");
        put(labels, &format!("{resource}.memory"), 0);
        return Ok(());
    };
    let replicas = Replicas::of(shared);
    let product = [model, "MIG", profile];
    base(labels, resource, &product, offer.count, replicas);
    put(labels, &format!("{resource}.memory"), share.memory_mib);
    for (key, value) in [
        ("multiprocessors", share.multiprocessors),
        ("slices.gi", share.gpu_slices),
        ("slices.ci", share.compute_slices),
        ("engines.copy", share.copy_engines),
        ("engines.decoder", share.decoders),
        ("engines.encoder", share.encoders),
        ("engines.jpeg", share.jpeg),
        ("engines.ofa", share.ofa),
    ] {
        put(labels, &format!("{resource}.{key}"), value);
    }
    Ok(())
}

/// nvml.go, `newGPUModeLabeler`: the mode is based on the PCI class, if all GPUs have the same class.
fn mode(facts: &Facts, devices: &[NvmlDevice]) -> &'static str {
    let class = |gpu: &NvmlDevice| {
        let on_bus = facts
            .gpus
            .iter()
            .find(|fact| Some(fact.pci_address) == gpu.pci_address);
        on_bus?.class.map(crate::model::pci::PciClass::base_and_sub)
    };
    let classes: BTreeSet<Option<u32>> = devices.iter().map(class).collect();
    let classes: Vec<Option<u32>> = classes.into_iter().collect();
    match classes[..] {
        [Some(0x0300)] => "graphics",
        [Some(0x0302)] => "compute",
        _ => "unknown",
    }
}

/// imex.go, and go-nvlib v0.12.0, pkg/nvlib/device/device.go, `IsFabricAttached`: the cluster and clique IDs, if they
/// are equal for all GPUs that have successfully joined a fabric with a cluster ID.
fn clique(devices: &[NvmlDevice]) -> Option<String> {
    let joined: BTreeSet<(&str, u32)> = devices.iter().filter_map(NvmlDevice::clique).collect();
    let joined: Vec<(&str, u32)> = joined.into_iter().collect();
    match joined[..] {
        [(cluster, clique)] => Some(format!("{cluster}.{clique}")),
        _ => None,
    }
}

/// resource.go, `sanitise`: removes characters that are invalid in labels and replaces white space with a dash.
fn sanitised(text: &str) -> String {
    let kept: String = text
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || "-_. ".contains(*letter))
        .collect();
    kept.split_whitespace().collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests;
