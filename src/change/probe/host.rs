//! The host probe: CUDA computes on every device in NVML. `validation.devices`, which runs first, validates the layers below.

use std::time::Duration;

use super::SEE_CHECK;
use crate::{
    change::ChangeError,
    host::{Gpu, Host, Nvml, NvmlView},
    tools::probe::{self, LayerFault, LayerResults, ProbeDocument, ProbeLayer},
};

/// The time limit of a complete probe. NVML and CUDA have separate limits, whose sum is larger. A container has the same time
/// plus some seconds to start (`validation.timeout`).
pub const WHOLE: Duration = Duration::from_secs(50);

/// Runs the probe and returns a description of the result.
///
/// # Errors
/// The first layer that fails.
pub(super) async fn run(host: &Host) -> Result<String, ChangeError> {
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
                "NVML no longer lists the GPUs",
                SEE_CHECK,
            ));
            layers.document()
        }
    };
    passed(&document, "host", "host-cannot-compute")?;
    Ok(in_words(&document))
}

/// Runs CUDA, if the layers below work and NVML lists devices.
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
            layers.fail(probe::no_device());
        } else {
            let uuids: Vec<String> = listed.iter().map(|one| one.uuid.clone()).collect();
            let view = gpu.compute(&uuids, within).await;
            probe::evaluate(&mut layers, &mut listed, &view);
            cuda = view.start.ok().map(|start| start.version);
        }
    }
    let mut document = layers.document();
    if document.passed {
        let verb = if listed.len() == 1 {
            "computes"
        } else {
            "compute"
        };
        document.why = format!("{} {verb}", probe::devices_for_people(&listed));
    }
    document.driver_version = driver;
    document.cuda_version = cuda;
    document.devices = listed;
    document
}

/// Returns an error with the first failed layer.
pub(super) fn passed(
    document: &ProbeDocument,
    place: &str,
    reason: &'static str,
) -> Result<(), ChangeError> {
    let Some(layer) = document.failed_layer else {
        return Ok(());
    };
    let what = format!("the {place} fails at the layer {layer}: {}", document.why);
    Err(ChangeError::new(reason, what).advice(document.remedy.as_deref().unwrap_or(SEE_CHECK)))
}

/// The description of a successful probe.
pub(super) fn in_words(document: &ProbeDocument) -> String {
    let cuda = (document.cuda_version.as_ref())
        .map_or_else(String::new, |version| format!(" with CUDA {version}"));
    format!("{}{cuda}", document.why)
}
