//! MIG: GPUs that are split into MIG devices. Which devices programs can use, and as which resources the device plugin offers
//! them. `host/real/mig.rs` reads them from NVML.

use std::collections::BTreeSet;

use crate::{
    host::{MigDevice, MigShare, NvmlDevice, NvmlView},
    model::kubernetes::MigStrategy,
    tools::kubernetes::kubectl::{GPUS, MIG_DEVICES},
};

/// The label with the strategy.
pub const STRATEGY: &str = "nvidia.com/mig.strategy";

/// The label that tells whether a GPU of the node can be split.
pub const CAPABLE: &str = "nvidia.com/mig.capable";

/// Whether MIG mode is on: then the GPU cannot be used as a whole.
#[must_use]
pub fn is_split(gpu: &NvmlDevice) -> bool {
    gpu.mig == Some(true)
}

/// Whether a GPU can be split. Others have no MIG mode.
#[must_use]
pub fn is_capable(gpu: &NvmlDevice) -> bool {
    gpu.mig.is_some()
}

/// A GPU, or one of the MIG devices that take its place, with the names that a CDI specification may give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// `0` for a GPU, `0:1` for a MIG device.
    pub index: String,
    pub uuid: Option<String>,
}

impl Visible {
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.index == name || self.uuid.as_deref() == Some(name)
    }
}

/// The devices that programs can use.
#[must_use]
pub fn visible(view: &NvmlView) -> Vec<Visible> {
    let mut found = Vec::new();
    for gpu in &view.devices {
        if is_split(gpu) {
            found.extend(gpu.mig_devices.iter().map(|part| Visible {
                index: format!("{}:{}", gpu.index, part.index),
                uuid: part.uuid.clone(),
            }));
        } else {
            found.push(Visible {
                index: gpu.index.to_string(),
                uuid: gpu.uuid.clone(),
            });
        }
    }
    found
}

/// The name of a strategy in [`STRATEGY`]; `None` if the node gets no such label.
#[must_use]
pub const fn name(strategy: MigStrategy) -> Option<&'static str> {
    match strategy {
        MigStrategy::None => None,
        MigStrategy::Single => Some("single"),
        MigStrategy::Mixed => Some("mixed"),
    }
}

/// A resource that stands for MIG devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer<'n> {
    /// Its name.
    pub resource: String,
    /// The GPU of the first device.
    pub gpu: &'n NvmlDevice,
    /// The profile of the devices, with a dot in place of `+`, which a key may not have, and the share of each. `None` if
    /// nothing is offered to pods, because the device plugin rejects such a node.
    pub part: Option<(String, MigShare)>,
    /// The number of devices.
    pub count: usize,
}

/// The resources with MIG devices. If two have one name, the last one counts.
///
/// # Errors
/// What NVML does not report about a MIG device.
pub fn offers(strategy: MigStrategy, devices: &[NvmlDevice]) -> Result<Vec<Offer<'_>>, String> {
    match strategy {
        MigStrategy::None => Ok(Vec::new()),
        MigStrategy::Single => Ok(single(devices)?.into_iter().collect()),
        MigStrategy::Mixed => mixed(devices),
    }
}

/// A MIG device, and its GPU.
struct Part<'n> {
    gpu: &'n NvmlDevice,
    profile: String,
    share: MigShare,
}

impl<'n> Part<'n> {
    fn offer(&self, resource: String, count: usize) -> Offer<'n> {
        Offer {
            resource,
            gpu: self.gpu,
            part: Some((self.profile.clone(), self.share)),
            count,
        }
    }
}

/// All MIG devices, in the order of NVML.
fn parts(devices: &[NvmlDevice]) -> Result<Vec<Part<'_>>, String> {
    let split = devices.iter().filter(|gpu| is_split(gpu));
    split
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |part| (gpu, part)))
        .map(|(gpu, part): (&NvmlDevice, &MigDevice)| {
            let told = part.profile.as_deref().zip(part.share);
            let (profile, share) = told.ok_or_else(|| {
                format!(
                    "the profile of MIG device {} of GPU {}",
                    part.index, gpu.index
                )
            })?;
            Ok(Part {
                gpu,
                profile: profile.replace('+', "."),
                share,
            })
        })
        .collect()
}

/// Source: NVIDIA/k8s-device-plugin, mig-strategy.go, `newMigStrategySingleLabeler`.
fn single(devices: &[NvmlDevice]) -> Result<Option<Offer<'_>>, String> {
    let Some(first) = devices.iter().find(|gpu| is_split(gpu)) else {
        return Ok(None);
    };
    let parts = parts(devices)?;
    let profiles: BTreeSet<&str> = parts.iter().map(|part| part.profile.as_str()).collect();
    let uniform = profiles.len() == 1
        && (devices.iter()).all(|gpu| is_split(gpu) && !gpu.mig_devices.is_empty());
    Ok(Some(match parts.first() {
        Some(part) if uniform => part.offer(GPUS.to_owned(), parts.len()),
        _ => Offer {
            resource: GPUS.to_owned(),
            gpu: first,
            part: None,
            count: 0,
        },
    }))
}

/// Source: the same, `newMigStrategyMixedLabeler`. GPUs that are split and have no MIG devices are left out.
fn mixed(devices: &[NvmlDevice]) -> Result<Vec<Offer<'_>>, String> {
    let parts = parts(devices)?;
    // The first device of a profile describes all of them, so it comes last.
    let offers = parts.iter().rev().map(|part| {
        let same = parts.iter().filter(|other| other.profile == part.profile);
        part.offer(format!("{MIG_DEVICES}{}", part.profile), same.count())
    });
    Ok(offers.collect())
}
