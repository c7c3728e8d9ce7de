//! The document of `probe`: how far a node works, layer by layer, and what its GPUs computed. A
//! container prints it, too, and the container probe reads it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cuda;
use crate::host::{CudaFault, CudaView, CudaWork, NvmlView};
use crate::model::pci::PciAddress;

/// The version of the document.
pub const SCHEMA: u32 = 1;

/// The layers, bottom up. Nothing works above the first one that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeLayer {
    /// GPUs on the PCI bus.
    Pci,
    /// They are bound to the driver, which is loaded.
    Driver,
    /// `/dev/nvidiaN`.
    DeviceNodes,
    /// NVML lists them.
    Nvml,
    /// They are as many as the instance type promises.
    InstanceType,
    /// CUDA starts, and lists the devices that NVML lists.
    Cuda,
    /// Each device copies and computes right.
    Compute,
}

impl ProbeLayer {
    /// All, bottom up.
    pub const ALL: [Self; 7] = [
        Self::Pci,
        Self::Driver,
        Self::DeviceNodes,
        Self::Nvml,
        Self::InstanceType,
        Self::Cuda,
        Self::Compute,
    ];
}

impl fmt::Display for ProbeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pci => "PCI",
            Self::Driver => "driver",
            Self::DeviceNodes => "device nodes",
            Self::Nvml => "NVML",
            Self::InstanceType => "instance type",
            Self::Cuda => "CUDA",
            Self::Compute => "compute",
        })
    }
}

/// How a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerStatus {
    /// It works.
    Pass,
    /// It does not: nothing above it was tried.
    Fail,
    /// It does not concern this machine.
    Skip,
    /// A lower layer fails.
    NotReached,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayerResult {
    /// Which.
    pub layer: ProbeLayer,
    /// How it is.
    pub status: LayerStatus,
    /// The compared values, or why it was not tried.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProbedDevice {
    /// NVML's UUID: `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// NVML's index of the GPU.
    pub index: u32,
    /// The MIG device of the GPU; `None` for a whole GPU.
    #[serde(default)]
    pub mig_index: Option<u32>,
    /// Place of the GPU on the bus.
    pub pci_address: Option<PciAddress>,
    /// What CUDA says about it; `None` if it has not computed.
    pub work: Option<CudaWork>,
    /// What went wrong.
    pub fault: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// The program that made a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProbeTool {
    pub name: String,
    pub version: String,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProbeDocument {
    /// The version of the document.
    pub schema: u32,
    /// The program that made it.
    pub tool: ProbeTool,
    /// All layers work.
    pub passed: bool,
    /// The first layer that fails.
    pub failed_layer: Option<ProbeLayer>,
    /// What is proven, or what is wrong.
    pub why: String,
    /// What to do.
    pub remedy: Option<String>,
    /// The driver, by NVML.
    pub driver_version: Option<String>,
    /// The newest CUDA version of the driver, by CUDA.
    pub cuda_version: Option<String>,
    /// All layers, bottom up.
    pub layers: Vec<LayerResult>,
    /// The devices that NVML lists: a GPU, or each of its MIG devices.
    pub devices: Vec<ProbedDevice>,
    /// How long it took.
    pub seconds: f64,
}

/// A layer that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFault {
    /// Which.
    pub layer: ProbeLayer,
    /// The compared values.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

impl LayerFault {
    /// A layer that fails, with the compared values and what to do.
    pub fn new(layer: ProbeLayer, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            layer,
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

/// Collects the layers, bottom up.
#[derive(Debug, Default)]
pub struct LayerResults {
    results: Vec<LayerResult>,
    fault: Option<LayerFault>,
}

impl LayerResults {
    /// A layer that works, with the compared values.
    pub fn pass(&mut self, layer: ProbeLayer, why: impl Into<String>) {
        self.add(layer, LayerStatus::Pass, why.into());
    }

    /// A layer that does not concern this machine.
    pub fn skip(&mut self, layer: ProbeLayer, why: impl Into<String>) {
        self.add(layer, LayerStatus::Skip, why.into());
    }

    /// The first layer that fails.
    pub fn fail(&mut self, fault: LayerFault) {
        self.add(fault.layer, LayerStatus::Fail, fault.why.clone());
        self.fault.get_or_insert(fault);
    }

    fn add(&mut self, layer: ProbeLayer, status: LayerStatus, why: String) {
        self.results.push(LayerResult { layer, status, why });
    }

    /// Whether one has failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.fault.is_some()
    }

    /// The document, without what NVML and CUDA told.
    #[must_use]
    pub fn document(mut self) -> ProbeDocument {
        for layer in ProbeLayer::ALL {
            if !self.results.iter().any(|known| known.layer == layer) {
                let why = "a lower layer fails".to_owned();
                self.add(layer, LayerStatus::NotReached, why);
            }
        }
        self.results.sort_by_key(|result| result.layer);
        let fault = self.fault;
        ProbeDocument {
            schema: SCHEMA,
            tool: ProbeTool {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            passed: fault.is_none(),
            failed_layer: fault.as_ref().map(|fault| fault.layer),
            why: (fault.as_ref()).map_or_else(String::new, |fault| fault.why.clone()),
            remedy: fault.map(|fault| fault.remedy),
            driver_version: None,
            cuda_version: None,
            layers: self.results,
            devices: Vec::new(),
            seconds: 0.0,
        }
    }
}

/// The devices on which programs compute, by NVML: GPUs, and in MIG mode their MIG devices. A GPU in
/// MIG mode without any has none.
#[must_use]
pub fn devices(nvml: &NvmlView) -> Vec<ProbedDevice> {
    let mut found = Vec::new();
    for gpu in &nvml.devices {
        let device = |uuid: &Option<String>, mig_index| {
            Some(ProbedDevice {
                uuid: uuid.clone()?,
                index: gpu.index,
                mig_index,
                pci_address: gpu.pci_address,
                work: None,
                fault: None,
                remedy: None,
            })
        };
        if gpu.mig == Some(true) {
            let parts = gpu.mig_devices.iter();
            found.extend(parts.filter_map(|part| device(&part.uuid, Some(part.index))));
        } else {
            found.extend(device(&gpu.uuid, None));
        }
    }
    found
}

/// The name of a device for people.
#[must_use]
pub fn label(device: &ProbedDevice) -> String {
    match device.mig_index {
        None => format!("GPU {} ({})", device.index, device.uuid),
        Some(part) => format!("MIG device {}:{part} ({})", device.index, device.uuid),
    }
}

/// What CUDA's answers mean for the upper layers. The devices are those of [`devices`].
pub fn judge(layers: &mut LayerResults, devices: &mut [ProbedDevice], view: &CudaView) {
    let start = match &view.start {
        Ok(start) => start,
        Err(fault) => {
            let (why, remedy) = (cuda::why(fault), cuda::remedy(fault));
            return layers.fail(LayerFault::new(ProbeLayer::Cuda, why, remedy));
        }
    };
    if let Some(why) = other_devices(devices, &start.uuids) {
        return layers.fail(LayerFault::new(ProbeLayer::Cuda, why, cuda::OTHER_DEVICES));
    }
    let starts = format!("CUDA {} starts and lists what NVML lists", start.version);
    layers.pass(ProbeLayer::Cuda, starts);
    for device in &mut *devices {
        let unknown = CudaFault::Failed {
            why: "it was not asked".to_owned(),
        };
        let done = view.devices.iter().find(|done| done.uuid == device.uuid);
        match done.map_or(Err(&unknown), |done| done.result.as_ref()) {
            Ok(work) => device.work = Some(work.clone()),
            Err(fault) => {
                device.fault = Some(cuda::why(fault));
                device.remedy = Some(cuda::remedy(fault));
            }
        }
    }
    let mut wrong = devices.iter().filter(|device| device.work.is_none());
    let Some(first) = wrong.next() else {
        let right = format!("{} copied and computed right", devices_for_people(devices));
        return layers.pass(ProbeLayer::Compute, right);
    };
    let mut why = format!(
        "{}: {}",
        label(first),
        first.fault.as_deref().unwrap_or_default()
    );
    let others: Vec<String> = wrong.map(label).collect();
    if !others.is_empty() {
        why += &format!("; also {}", others.join(", "));
    }
    let remedy = first.remedy.clone().unwrap_or_default();
    layers.fail(LayerFault::new(ProbeLayer::Compute, why, remedy));
}

/// CUDA and NVML must list the same devices. In MIG mode CUDA lists one device at most, and each
/// process sees its own: there the devices are compared one by one.
fn other_devices(devices: &[ProbedDevice], uuids: &[String]) -> Option<String> {
    if devices.iter().any(|device| device.mig_index.is_some()) {
        return None;
    }
    let plain = |uuid: &str| format!("GPU-{}", uuid.trim_start_matches("GPU-").to_lowercase());
    let nvml: BTreeSet<String> = devices.iter().map(|device| plain(&device.uuid)).collect();
    let cuda: BTreeSet<String> = uuids.iter().map(|uuid| plain(uuid)).collect();
    (nvml != cuda).then(|| {
        format!(
            "CUDA lists {}, NVML {}; only CUDA: {}; only NVML: {}",
            count(cuda.len()),
            count(nvml.len()),
            only(&cuda, &nvml),
            only(&nvml, &cuda)
        )
    })
}

/// The UUIDs that are among `these` alone, for people.
#[must_use]
pub fn only(these: &BTreeSet<String>, those: &BTreeSet<String>) -> String {
    let only: Vec<&str> = these.difference(those).map(String::as_str).collect();
    match only[..] {
        [] => "no other one".to_owned(),
        _ => only.join(", "),
    }
}

/// How many devices, for people.
#[must_use]
pub fn count(devices: usize) -> String {
    match devices {
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    }
}

/// How many devices of each kind, for people.
#[must_use]
pub fn devices_for_people(devices: &[ProbedDevice]) -> String {
    let parts = devices.iter().filter(|one| one.mig_index.is_some()).count();
    let mig = match parts {
        1 => "1 MIG device".to_owned(),
        n => format!("{n} MIG devices"),
    };
    match devices.len() - parts {
        0 => mig,
        gpus if parts == 0 => count(gpus),
        gpus => format!("{} and {mig}", count(gpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{CudaDevice, CudaStart, MigDevice, NvmlDevice};

    fn gpu(index: u32) -> NvmlDevice {
        NvmlDevice {
            index,
            uuid: Some(format!("GPU-{index}")),
            name: None,
            pci_address: None,
            pci_id: None,
            minor: Some(index),
            memory_bytes: None,
            compute_capability: None,
            persistence: None,
            mig: Some(false),
            mig_devices: Vec::new(),
            fabric: None,
            health: None,
            error: None,
        }
    }

    fn nvml(devices: Vec<NvmlDevice>) -> NvmlView {
        NvmlView {
            driver_version: "580.95.05".into(),
            cuda_version: None,
            devices,
        }
    }

    fn work() -> CudaWork {
        CudaWork {
            name: "H100".into(),
            compute_capability: "9.0".into(),
            memory_bytes: 80 << 30,
            seconds: 0.4,
        }
    }

    /// Two GPUs that compute.
    fn view() -> CudaView {
        let uuids = ["GPU-0", "GPU-1"];
        CudaView {
            start: Ok(CudaStart {
                version: "13.0".into(),
                uuids: vec!["0".into(), "1".into()],
            }),
            devices: (uuids.iter())
                .map(|uuid| CudaDevice {
                    uuid: (*uuid).into(),
                    result: Ok(work()),
                })
                .collect(),
        }
    }

    fn judged(view: &CudaView) -> ProbeDocument {
        let mut layers = LayerResults::default();
        let mut found = devices(&nvml(vec![gpu(0), gpu(1)]));
        judge(&mut layers, &mut found, view);
        layers.document()
    }

    fn returned(call: &str, code: i32) -> CudaFault {
        CudaFault::Returned {
            call: call.into(),
            code,
        }
    }

    #[test]
    fn nothing_above_the_first_layer_that_fails_is_reached() {
        let mut layers = LayerResults::default();
        layers.pass(ProbeLayer::Pci, "2 GPUs");
        layers.fail(LayerFault::new(ProbeLayer::Nvml, "the first", "mend it"));
        layers.fail(LayerFault::new(ProbeLayer::Driver, "the second", ""));
        let document = layers.document();
        assert_eq!(document.failed_layer, Some(ProbeLayer::Nvml));
        assert_eq!(
            (&*document.why, document.remedy.as_deref()),
            ("the first", Some("mend it"))
        );
        let order: Vec<ProbeLayer> = document.layers.iter().map(|one| one.layer).collect();
        assert_eq!(order, ProbeLayer::ALL);
        let last = document.layers.last().expect("layers");
        assert_eq!(last.status, LayerStatus::NotReached);
    }

    #[test]
    fn the_layers_of_cuda_fail_from_below() {
        assert!(judged(&view()).passed);
        let mut broken = view();
        broken.devices[1].result = Err(returned("cuCtxSynchronize", 719));
        let document = judged(&broken);
        assert_eq!(document.failed_layer, Some(ProbeLayer::Compute));
        assert!(
            document
                .why
                .starts_with("GPU 1 (GPU-1): `cuCtxSynchronize` returned 719")
        );
        // A device of which nothing is known has not passed.
        broken.devices.pop();
        assert_eq!(judged(&broken).failed_layer, Some(ProbeLayer::Compute));
        broken.start = Err(returned("cuInit", 802));
        assert_eq!(judged(&broken).failed_layer, Some(ProbeLayer::Cuda));
    }

    #[test]
    fn cuda_must_list_the_gpus_that_nvml_lists() {
        let mut other = view();
        if let Ok(start) = &mut other.start {
            start.uuids.pop();
        }
        let document = judged(&other);
        assert_eq!(document.failed_layer, Some(ProbeLayer::Cuda));
        let words = "CUDA lists 1 GPU, NVML 2 GPUs; only CUDA: no other one; only NVML: GPU-1";
        assert_eq!(document.why, words);
    }

    #[test]
    fn in_mig_mode_the_parts_compute_and_cuda_lists_one_of_them_at_most() {
        let part = |index| MigDevice {
            index,
            uuid: Some(format!("MIG-{index}")),
            profile: None,
            share: None,
        };
        let split = NvmlDevice {
            mig: Some(true),
            mig_devices: vec![part(0), part(2)],
            ..gpu(1)
        };
        let mut found = devices(&nvml(vec![gpu(0), split]));
        let uuids: Vec<&str> = found.iter().map(|one| one.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-0", "MIG-0", "MIG-2"]);
        assert_eq!(label(&found[2]), "MIG device 1:2 (MIG-2)");
        assert_eq!(devices_for_people(&found), "1 GPU and 2 MIG devices");
        let view = CudaView {
            start: Ok(CudaStart {
                version: "13.0".into(),
                uuids: vec!["0".into()],
            }),
            devices: (uuids.iter())
                .map(|uuid| CudaDevice {
                    uuid: (*uuid).into(),
                    result: Ok(work()),
                })
                .collect(),
        };
        let mut layers = LayerResults::default();
        judge(&mut layers, &mut found, &view);
        assert!(!layers.failed());
        assert!(found.iter().all(|one| one.work.is_some()));
    }
}
