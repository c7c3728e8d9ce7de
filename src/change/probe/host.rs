//! The probe on the host: CUDA computes on every device that NVML lists. The layers below are those of
//! `validation.devices`, which comes first.

use std::time::Duration;

use super::SEE_CHECK;
use crate::{
    change::Problem,
    host::{Gpu, Host, Nvml, NvmlView},
    tools::probe::{self, LayerFault, LayerResults, ProbeDocument, ProbeLayer},
};

/// The time limit of a whole probe: NVML and CUDA each have limits of their own, which are longer
/// together. A container has as much time and some seconds to start (`validation.timeout`).
pub const WHOLE: Duration = Duration::from_secs(50);

/// Runs the probe. The result is in words.
///
/// # Errors
/// The first layer that fails.
pub(super) async fn run(host: &Host) -> Result<String, Problem> {
    let begin = host.clock.monotonic();
    let mut layers = LayerResults::default();
    let document = match host.gpu.survey().await {
        Nvml::Ready(view) => {
            let spent = host.clock.monotonic().saturating_sub(begin);
            compute(&*host.gpu, layers, Some(&view), WHOLE.saturating_sub(spent)).await
        }
        _ => {
            layers.fail(LayerFault::new(
                ProbeLayer::Nvml,
                "NVML does not list the GPUs any more",
                SEE_CHECK,
            ));
            layers.document()
        }
    };
    passed(&document, "host", "host-cannot-compute")?;
    Ok(in_words(&document))
}

/// Asks CUDA, if the layers below work and NVML lists devices.
pub async fn compute(
    gpu: &dyn Gpu,
    mut layers: LayerResults,
    view: Option<&NvmlView>,
    within: Duration,
) -> ProbeDocument {
    let (mut listed, mut driver, mut cuda) = (Vec::new(), None, None);
    if let (false, Some(view)) = (layers.failed(), view) {
        driver = Some(view.driver_version.clone());
        listed = probe::devices(view);
        if listed.is_empty() {
            layers.fail(LayerFault::new(
                ProbeLayer::Cuda,
                "there is no device on which a program can compute: GPUs in MIG mode have no MIG device",
                "make MIG devices (`nvidia-smi mig -cgi PROFILE -C`), or end MIG mode",
            ));
        } else {
            let uuids: Vec<String> = listed.iter().map(|one| one.uuid.clone()).collect();
            let view = gpu.compute(&uuids, within).await;
            probe::judge(&mut layers, &mut listed, &view);
            cuda = view.start.ok().map(|start| start.version);
        }
    }
    let mut document = layers.document();
    if document.passed {
        document.why = format!("{} compute", probe::devices_for_people(&listed));
    }
    document.driver_version = driver;
    document.cuda_version = cuda;
    document.devices = listed;
    document
}

/// Fails with the first layer that failed in this place.
pub(super) fn passed(
    document: &ProbeDocument,
    place: &str,
    reason: &'static str,
) -> Result<(), Problem> {
    let Some(layer) = document.failed_layer else {
        return Ok(());
    };
    let what = format!("the {place} fails at the layer {layer}: {}", document.why);
    Err(Problem::new(reason, what).advice(document.remedy.as_deref().unwrap_or(SEE_CHECK)))
}

/// The result of a probe that passed, in words.
pub(super) fn in_words(document: &ProbeDocument) -> String {
    let cuda = (document.cuda_version.as_ref())
        .map_or_else(String::new, |version| format!(" with CUDA {version}"));
    format!("{}{cuda}", document.why)
}
