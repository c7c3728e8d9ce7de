//! The fabric states of GPUs.

use crate::host::{FabricHealth, FabricProgress, GpuFabric, NvmlDevice};

/// The GPUs that NVML reports a fabric for, and the GPUs that did not respond, for which the fabric is `None`, each with its
/// index. Others have no fabric: GPUs before Hopper, and GPUs that are not connected to the NVSwitches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gpus(Vec<(u32, Option<GpuFabric>)>);

impl FromIterator<(u32, Option<GpuFabric>)> for Gpus {
    fn from_iter<I: IntoIterator<Item = (u32, Option<GpuFabric>)>>(gpus: I) -> Self {
        Self(gpus.into_iter().collect())
    }
}

impl Gpus {
    /// Selects these GPUs.
    pub fn of(devices: &[NvmlDevice]) -> Self {
        (devices.iter())
            .filter(|gpu| gpu.fabric.is_some() || gpu.error.is_some())
            .map(|gpu| (gpu.index, gpu.fabric.clone()))
            .collect()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns their number.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the GPUs with a fabric.
    pub fn known(&self) -> impl Iterator<Item = (u32, &GpuFabric)> {
        (self.0.iter()).filter_map(|(index, gpu)| Some((*index, gpu.as_ref()?)))
    }

    /// Whether a GPU has not joined its fabric. GPUs that have joined do not need a fabric manager on this machine: in a guest,
    /// the host's fabric manager registers them.
    pub fn wait(&self) -> bool {
        self.known().any(|(_, gpu)| !gpu.has_joined())
    }

    /// Returns the indices of the GPUs that did not respond.
    pub fn silent(&self) -> Vec<u32> {
        let silent = self.0.iter().filter(|(_, gpu)| gpu.is_none());
        silent.map(|(index, _)| *index).collect()
    }

    /// Returns the indices of the GPUs whose registration has not finished.
    pub fn waiting(&self) -> Vec<u32> {
        let waiting = (self.known()).filter(|(_, gpu)| gpu.state != FabricProgress::Completed);
        waiting.map(|(index, _)| index).collect()
    }

    /// Returns the indices of the GPUs whose registration has failed, and the NVML code of the first one.
    pub fn failed(&self) -> Option<(Vec<u32>, u32)> {
        let failed = |gpu: &GpuFabric| gpu.state == FabricProgress::Completed && gpu.status != 0;
        let (indices, codes): (Vec<u32>, Vec<u32>) = (self.known())
            .filter(|(_, gpu)| failed(gpu))
            .map(|(index, gpu)| (index, gpu.status))
            .unzip();
        Some((indices, *codes.first()?))
    }

    /// Describes each GPU that has not joined or did not respond.
    pub fn outside(&self) -> Vec<String> {
        (self.0.iter())
            .filter_map(|(index, gpu)| match gpu {
                None => Some(format!("GPU {index}: does not respond")),
                Some(gpu) if gpu.has_joined() => None,
                Some(gpu) => Some(format!("GPU {index}: {}", progress(gpu))),
            })
            .collect()
    }

    /// Describes each GPU with a fabric that is not healthy. GPUs whose driver reports no health are healthy.
    pub fn unhealthy(&self) -> Vec<String> {
        (self.known())
            .filter_map(|(index, gpu)| Some(format!("GPU {index}: {}", fault(gpu)?)))
            .collect()
    }
}

/// Returns the NVML name of the fabric health of a GPU; `None` if it is healthy or unknown.
fn fault(gpu: &GpuFabric) -> Option<&'static str> {
    match gpu.health? {
        FabricHealth::Healthy => None,
        FabricHealth::Unhealthy => Some("unhealthy"),
        FabricHealth::LimitedCapacity => Some("limited capacity"),
    }
}

/// Returns the NVML name of the registration state of a GPU.
fn progress(gpu: &GpuFabric) -> String {
    match gpu.state {
        FabricProgress::NotStarted => "not started".to_owned(),
        FabricProgress::InProgress => "in progress".to_owned(),
        FabricProgress::Completed => format!("completed with NVML code {}", gpu.status),
    }
}

#[cfg(test)]
mod tests {
    use super::Gpus;
    use crate::{
        host::{FabricProgress, GpuFabric, NvmlDevice},
        steps::fixtures::{in_fabric, nvml_device},
    };

    #[test]
    fn joined_gpus_need_no_fabric_manager() {
        let joined = || (0, Some(in_fabric(FabricProgress::Completed, 0)));
        let wait = |other: &[(u32, Option<GpuFabric>)]| {
            let all = other.iter().cloned().chain([joined()]);
            all.collect::<Gpus>().wait()
        };
        assert!(!wait(&[(1, None)]));
        assert!(wait(&[(1, Some(in_fabric(FabricProgress::InProgress, 0)))]));
        assert!(wait(&[(
            1,
            Some(in_fabric(FabricProgress::Completed, 999))
        )]));
        assert!(!Gpus::default().wait());
    }

    #[test]
    fn only_failed_gpus_without_a_fabric_are_silent() {
        let device = |index: u32, fabric: Option<GpuFabric>, error: Option<&str>| NvmlDevice {
            fabric,
            error: error.map(str::to_owned),
            ..nvml_device(index)
        };
        let done = || Some(in_fabric(FabricProgress::Completed, 0));
        for (devices, silent) in rows! {
            vec![device(0, done(), None), device(1, done(), None)], vec![];
            // GPUs before Hopper, and GPUs that are not connected to the NVSwitches, have no fabric.
            vec![device(0, None, None), device(1, None, None)], vec![];
            vec![device(0, done(), None), device(1, None, None)], vec![];
            vec![device(0, done(), None), device(1, None, Some("lost"))], vec![1];
            vec![device(0, None, Some("GPU is lost")), device(1, None, None)], vec![0];
        } {
            assert_eq!(Gpus::of(&devices).silent(), silent);
        }
    }
}
