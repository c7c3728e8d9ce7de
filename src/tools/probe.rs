//! The document of `probe`: the status of each layer, and the results of the GPUs. The container probe runs `probe` in a
//! container, and parses the document that it prints.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cuda;
use crate::host::{CudaFault, CudaView, CudaWork, NvmlView, bare_uuid};
use crate::model::{pci::PciAddress, text::counted};

/// The schema version of the document.
pub const SCHEMA: u32 = 1;

/// The layers, from bottom to top. Layers above a failed one cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeLayer {
    /// GPUs on the PCI bus.
    Pci,
    /// The driver is loaded and bound to the GPUs.
    Driver,
    /// `/dev/nvidiaN`.
    DeviceNodes,
    /// NVML lists the GPUs.
    Nvml,
    /// The number of GPUs matches the instance type.
    InstanceType,
    /// CUDA starts and lists the same devices as NVML.
    Cuda,
    /// Each device copies data and computes correct results.
    Compute,
}

impl ProbeLayer {
    /// All layers, from bottom to top.
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

/// The status of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerStatus {
    /// It works.
    Pass,
    /// It failed, and the layers above it were not tried.
    Fail,
    /// It does not apply to this machine.
    Skip,
    /// A lower layer failed.
    NotReached,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayerResult {
    pub layer: ProbeLayer,
    pub status: LayerStatus,
    /// The compared values, or the reason if the layer was not tried.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProbedDevice {
    /// The NVML UUID: `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The NVML index of the GPU.
    pub index: u32,
    /// The index of the MIG device on the GPU, or `None` for a complete GPU.
    #[serde(default)]
    pub mig_index: Option<u32>,
    /// The PCI address of the GPU.
    pub pci_address: Option<PciAddress>,
    /// The CUDA results, or `None` if no computation was done.
    pub work: Option<CudaWork>,
    /// The error.
    pub fault: Option<String>,
    /// The remedy of the error.
    pub remedy: Option<String>,
}

/// The program that created a document.
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
    /// The schema version of the document.
    pub schema: u32,
    /// The program that created it.
    pub tool: ProbeTool,
    /// Whether no layer failed.
    pub passed: bool,
    /// The first failed layer, or `None` if no layer failed.
    pub failed_layer: Option<ProbeLayer>,
    /// A summary of the result if no layer failed, otherwise the error.
    pub why: String,
    /// The remedy.
    pub remedy: Option<String>,
    /// The driver version from NVML.
    pub driver_version: Option<String>,
    /// The newest CUDA version that the driver supports, from CUDA.
    pub cuda_version: Option<String>,
    /// All layers, from bottom to top.
    pub layers: Vec<LayerResult>,
    /// The devices that NVML lists: GPUs, or their MIG devices.
    pub devices: Vec<ProbedDevice>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// A failed layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFault {
    pub layer: ProbeLayer,
    /// The compared values.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

impl LayerFault {
    /// Creates a failed layer.
    pub fn new(layer: ProbeLayer, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            layer,
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

/// Collects the layers, from bottom to top.
#[derive(Debug, Default)]
pub struct LayerResults {
    results: Vec<LayerResult>,
    fault: Option<LayerFault>,
}

impl LayerResults {
    /// Adds a layer that works, with the compared values.
    pub fn pass(&mut self, layer: ProbeLayer, why: impl Into<String>) {
        self.add(layer, LayerStatus::Pass, why.into());
    }

    /// Adds a layer that does not apply to this machine.
    pub fn skip(&mut self, layer: ProbeLayer, why: impl Into<String>) {
        self.add(layer, LayerStatus::Skip, why.into());
    }

    /// Adds a failed layer. The document contains the error and the remedy of the first failed layer.
    pub fn fail(&mut self, fault: LayerFault) {
        self.add(fault.layer, LayerStatus::Fail, fault.why.clone());
        self.fault.get_or_insert(fault);
    }

    fn add(&mut self, layer: ProbeLayer, status: LayerStatus, why: String) {
        self.results.push(LayerResult { layer, status, why });
    }

    /// Whether a layer has failed.
    pub fn failed(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns the document, without the data from NVML and CUDA.
    pub fn document(mut self) -> ProbeDocument {
        for layer in ProbeLayer::ALL {
            if !self.results.iter().any(|known| known.layer == layer) {
                let why = "a lower layer failed".to_owned();
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

/// The reason that [`devices`] returns no device, although NVML lists GPUs.
pub const NO_DEVICE: &str = "the GPUs are in MIG mode without a MIG device";

/// Returns the fault for [`NO_DEVICE`].
#[must_use]
pub fn no_device() -> LayerFault {
    LayerFault::new(
        ProbeLayer::Cuda,
        format!("no device can run programs: {NO_DEVICE}"),
        "create MIG devices (`nvidia-smi mig -cgi PROFILE -C`), or disable MIG mode",
    )
}

/// Returns the devices for computations, from NVML: GPUs, or their MIG devices in MIG mode. A GPU in MIG mode without MIG
/// devices is omitted.
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

/// Returns a human-readable device name.
pub fn label(device: &ProbedDevice) -> String {
    match device.mig_index {
        None => format!("GPU {} ({})", device.index, device.uuid),
        Some(part) => format!("MIG device {}:{part} ({})", device.index, device.uuid),
    }
}

/// Adds the layers `Cuda` and `Compute` from the CUDA results, and stores the result of each device in `devices`, which is the
/// output of [`devices`].
pub fn evaluate(layers: &mut LayerResults, devices: &mut [ProbedDevice], view: &CudaView) {
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
    let starts = format!(
        "CUDA {} starts and lists the same devices as NVML",
        start.version
    );
    layers.pass(ProbeLayer::Cuda, starts);
    for device in &mut *devices {
        let unknown = CudaFault::Failed {
            why: "the device was not tested".to_owned(),
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
        let right = format!(
            "{} copied data and computed correct results",
            devices_for_people(devices)
        );
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

/// Returns an error if CUDA and NVML list different devices. If there are MIG devices, the lists are not compared, because CUDA
/// lists at most one MIG device in each process.
fn other_devices(devices: &[ProbedDevice], uuids: &[String]) -> Option<String> {
    if devices.iter().any(|device| device.mig_index.is_some()) {
        return None;
    }
    let plain = |uuid: &str| format!("GPU-{}", bare_uuid(uuid).to_lowercase());
    let nvml: BTreeSet<String> = devices.iter().map(|device| plain(&device.uuid)).collect();
    let cuda: BTreeSet<String> = uuids.iter().map(|uuid| plain(uuid)).collect();
    (nvml != cuda).then(|| {
        format!(
            "CUDA lists {}, NVML {}; only CUDA: {}; only NVML: {}",
            counted(cuda.len(), "GPU"),
            counted(nvml.len(), "GPU"),
            only(&cuda, &nvml),
            only(&nvml, &cuda)
        )
    })
}

/// Returns the UUIDs that are only in `these`, as human-readable text.
pub fn only(these: &BTreeSet<String>, those: &BTreeSet<String>) -> String {
    let only: Vec<&str> = these.difference(those).map(String::as_str).collect();
    match only[..] {
        [] => "none".to_owned(),
        _ => only.join(", "),
    }
}

/// Returns the number of devices of each kind as text.
pub fn devices_for_people(devices: &[ProbedDevice]) -> String {
    let parts = devices.iter().filter(|one| one.mig_index.is_some()).count();
    counted_devices(devices.len() - parts, parts)
}

/// Formats a number of GPUs and a number of MIG devices.
pub fn counted_devices(gpus: usize, parts: usize) -> String {
    let gpus_text = counted(gpus, "GPU");
    let parts_text = counted(parts, "MIG device");
    match (gpus, parts) {
        (_, 0) => gpus_text,
        (0, _) => parts_text,
        _ => format!("{gpus_text} and {parts_text}"),
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
            compute_mode: None,
            mig: Some(false),
            mig_devices: Vec::new(),
            mig_support: None,
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

    /// Two working GPUs.
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

    fn evaluated(view: &CudaView) -> ProbeDocument {
        let mut layers = LayerResults::default();
        let mut found = devices(&nvml(vec![gpu(0), gpu(1)]));
        evaluate(&mut layers, &mut found, view);
        layers.document()
    }

    fn returned(call: &str, code: i32) -> CudaFault {
        CudaFault::Returned {
            call: call.into(),
            code,
        }
    }

    #[test]
    fn layers_above_a_failed_one_are_not_reached() {
        let mut layers = LayerResults::default();
        layers.pass(ProbeLayer::Pci, "2 GPUs");
        layers.fail(LayerFault::new(ProbeLayer::Nvml, "the first", "fix it"));
        layers.fail(LayerFault::new(ProbeLayer::Driver, "the second", ""));
        let document = layers.document();
        assert_eq!(document.failed_layer, Some(ProbeLayer::Nvml));
        assert_eq!(
            (&*document.why, document.remedy.as_deref()),
            ("the first", Some("fix it"))
        );
        let order: Vec<ProbeLayer> = document.layers.iter().map(|one| one.layer).collect();
        assert_eq!(order, ProbeLayer::ALL);
        let last = document.layers.last().expect("layers");
        assert_eq!(last.status, LayerStatus::NotReached);
    }

    #[test]
    fn lowest_failed_cuda_layer_is_reported() {
        assert!(evaluated(&view()).passed);
        let mut broken = view();
        broken.devices[1].result = Err(returned("cuCtxSynchronize", 719));
        let document = evaluated(&broken);
        assert_eq!(document.failed_layer, Some(ProbeLayer::Compute));
        assert!(
            document
                .why
                .starts_with("GPU 1 (GPU-1): `cuCtxSynchronize` returned 719")
        );
        // A device without a result has not passed.
        broken.devices.pop();
        assert_eq!(evaluated(&broken).failed_layer, Some(ProbeLayer::Compute));
        broken.start = Err(returned("cuInit", 802));
        assert_eq!(evaluated(&broken).failed_layer, Some(ProbeLayer::Cuda));
    }

    #[test]
    fn cuda_must_list_the_same_gpus_as_nvml() {
        let mut other = view();
        if let Ok(start) = &mut other.start {
            start.uuids.pop();
        }
        let document = evaluated(&other);
        assert_eq!(document.failed_layer, Some(ProbeLayer::Cuda));
        let words = "CUDA lists 1 GPU, NVML 2 GPUs; only CUDA: none; only NVML: GPU-1";
        assert_eq!(document.why, words);
    }

    #[test]
    fn mig_devices_compute_and_cuda_lists_at_most_one() {
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
        evaluate(&mut layers, &mut found, &view);
        assert!(!layers.failed());
        assert!(found.iter().all(|one| one.work.is_some()));
    }
}
