//! The probe on the host: CUDA computes on every device that NVML lists. The layers below are those of
//! `validation.devices`, which comes first.

use std::time::Duration;

use super::{
    container::{Proof, proof_of},
    error::ProbeError,
};
use crate::{
    host::{Gpu, Host, Nvml, NvmlView},
    tools::probe::{self, LayerFault, Layers, ProbeDocument, ProbeLayer},
};

/// The time limit of a whole probe: NVML and CUDA each have limits of their own, which are longer
/// together. A container has as much time and some seconds to start (`validation.timeout-seconds`).
pub const WHOLE: Duration = Duration::from_secs(50);

/// Runs the probe.
///
/// # Errors
/// The first layer that fails.
pub(super) async fn run(host: &Host) -> Result<Proof, ProbeError> {
    let begin = host.clock.monotonic();
    let mut layers = Layers::default();
    let document = match host.gpu.survey().await {
        Nvml::Ready(view) => {
            let spent = host.clock.monotonic().saturating_sub(begin);
            compute(&*host.gpu, layers, Some(&view), WHOLE.saturating_sub(spent)).await
        }
        _ => {
            layers.fail(LayerFault {
                layer: ProbeLayer::Nvml,
                why: "NVML does not list the GPUs any more".to_owned(),
                remedy: "run `gpu-bootstrap check`: it names the cause".to_owned(),
            });
            layers.document()
        }
    };
    match document.failed_layer {
        None => Ok(proof_of(&document, "")),
        Some(layer) => Err(ProbeError::OnHost {
            layer,
            why: document.why,
            remedy: document.remedy,
        }),
    }
}

/// Asks CUDA, if the layers below work and NVML lists devices.
pub async fn compute(
    gpu: &dyn Gpu,
    mut layers: Layers,
    view: Option<&NvmlView>,
    within: Duration,
) -> ProbeDocument {
    let (mut listed, mut driver, mut cuda, mut peers) = (Vec::new(), None, None, Vec::new());
    if let (false, Some(view)) = (layers.failed(), view) {
        driver = Some(view.driver_version.clone());
        listed = probe::devices(view);
        if listed.is_empty() {
            layers.fail(no_device());
        } else {
            let uuids: Vec<String> = listed.iter().map(|one| one.uuid.clone()).collect();
            let view = gpu.compute(&uuids, within).await;
            probe::judge(&mut layers, &mut listed, &view);
            cuda = view.start.ok().map(|start| start.version);
            peers = view.peers.and_then(Result::ok).unwrap_or_default();
        }
    }
    let mut document = layers.document();
    if document.passed {
        document.why = format!("{} compute", probe::devices_for_people(&listed));
    }
    document.driver_version = driver;
    document.cuda_version = cuda;
    document.devices = listed;
    document.peers = peers;
    document
}

fn no_device() -> LayerFault {
    LayerFault {
        layer: ProbeLayer::Cuda,
        why:
            "there is no device on which a program can compute: GPUs in MIG mode have no MIG device"
                .to_owned(),
        remedy: "make MIG devices (`nvidia-smi mig -cgi PROFILE -C`), or end MIG mode".to_owned(),
    }
}
