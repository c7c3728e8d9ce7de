//! `probe`: tests the layers from the bottom up and stops at the first failure. It reads no settings, does not require root,
//! and also works in a container. Up to NVML, it uses the rules of `validation.devices` (`agree` in `steps/devices.rs`).

use std::sync::Arc;

use camino::Utf8Path;

use super::{
    Failure,
    args::{OutputArgs, OutputFormat},
    env::{Console, Env},
    machine, print,
};
use crate::{
    change::probe::host,
    compat::matrix::Matrix,
    exit::Exit,
    facts::Facts,
    host::{Host, Nvml},
    model::text::counted,
    report::human,
    state::State,
    steps::{
        devices::{self, DevicesState},
        expected::{self, ExpectedGpus},
    },
    tools::{
        container_view,
        probe::{LayerFault, LayerResults, ProbeDocument, ProbeLayer},
        systemctl,
    },
};

pub(super) async fn run(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
    output: OutputArgs,
) -> Result<Exit, Failure> {
    let document = document(here, env).await?;
    match output.format {
        OutputFormat::Json => print::json(&mut console.out, &document)?,
        OutputFormat::Human => {
            let style = console.out_style();
            print::show(&mut console.out, |to| human::probe(to, &document, style))?;
        }
    }
    Ok(if document.passed {
        Exit::Ok
    } else {
        Exit::Drift
    })
}

/// The hidden subcommand of the container probe: prints the devices and libraries visible in this container, and the result
/// of the probe.
pub(super) async fn in_container(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
) -> Result<Exit, Failure> {
    let mut view = container_view::look(&*here.files).map_err(unreadable)?;
    view.probe = Some(document(here, env).await?);
    print::json(&mut console.out, &view)?;
    Ok(Exit::Ok)
}

pub(super) async fn document(here: &Host, env: &Env) -> Result<ProbeDocument, Failure> {
    let begin = here.clock.monotonic();
    let matrix = machine::matrix(here, env)?;
    let scope = machine::scope(None);
    let files = &*here.files;
    // systemd does not run in an application container.
    let in_container = !files
        .exists(Utf8Path::new(systemctl::BOOTED))
        .map_err(unreadable)?;
    // In a container, the GPUs are not compared with the instance type, so the metadata service is not queried.
    let facts = Arc::new(match in_container {
        true => machine::facts(here, &matrix, scope),
        false => machine::all_facts(here, &matrix, scope).await,
    });
    let state = State::new(here.clone(), scope, Arc::clone(&facts));
    let seen = match in_container {
        true => DevicesState::of_container(files, &state).await,
        false => DevicesState::read(files, &state, true).await,
    }
    .map_err(unreadable)?;
    let mut layers = LayerResults::default();
    if in_container {
        container(&mut layers, &seen);
    } else {
        bus(&mut layers, &seen, &facts);
        if !layers.failed() {
            instance_type(&mut layers, &facts, &matrix);
        }
    }
    let view = match seen.nvml() {
        Nvml::Ready(view) => Some(view),
        _ => None,
    };
    let spent = here.clock.monotonic().saturating_sub(begin);
    let within = host::WHOLE.saturating_sub(spent);
    let mut document = host::compute(&*here.gpu, layers, view, within).await;
    let loaded = || seen.loaded().map(ToString::to_string);
    document.driver_version = document.driver_version.or_else(loaded);
    document.seconds = (here.clock.monotonic() - begin).as_secs_f64();
    Ok(document)
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::caused(
        Exit::Internal,
        "machine-unreadable",
        "failed to inspect the GPUs",
        error,
        None,
    )
}

/// Tests the layers from the PCI bus to NVML, using the rules of `validation.devices`.
fn bus(layers: &mut LayerResults, seen: &DevicesState, facts: &Facts) {
    let gpus = seen.gpus();
    let fault = if facts.gpus.is_empty() {
        let unread = facts.unknown.iter().find(|one| one.fact == "gpus");
        Some(LayerFault::new(
            ProbeLayer::Pci,
            unread.map_or("no NVIDIA GPU is on the PCI bus", |one| one.why.as_str()),
            "run `lspci -d 10de:`, and check that the instance type has GPUs",
        ))
    } else if gpus == 0 {
        Some(LayerFault::new(
            ProbeLayer::Pci,
            "all GPUs are reserved for virtual machines",
            "run the probe in a virtual machine with one of these GPUs",
        ))
    } else if let Some(loaded) = seen.loaded() {
        devices::agree(seen, loaded, None)
            .err()
            .map(|differ| differ.fault)
    } else {
        Some(LayerFault::new(
            ProbeLayer::Driver,
            "the kernel module `nvidia` is not loaded",
            "run `gpu-bootstrap check` to find the cause",
        ))
    };
    let version = seen.loaded().map(ToString::to_string).unwrap_or_default();
    let passed = [
        (ProbeLayer::Pci, counted(gpus, "GPU")),
        (ProbeLayer::Driver, format!("bound to nvidia {version}")),
        (
            ProbeLayer::DeviceNodes,
            format!("of {}", counted(gpus, "GPU")),
        ),
        (ProbeLayer::Nvml, format!("lists {}", counted(gpus, "GPU"))),
    ];
    below(layers, passed, fault);
}

/// Tests the layers that are visible in a container. The PCI bus in a container may show GPUs that the container does not have,
/// and the kernel module belongs to the host.
fn container(layers: &mut LayerResults, seen: &DevicesState) {
    let why = "not checked in a container";
    for layer in [
        ProbeLayer::Pci,
        ProbeLayer::Driver,
        ProbeLayer::InstanceType,
    ] {
        layers.skip(layer, why);
    }
    let nodes = seen.nodes();
    let fault = match seen.loaded() {
        _ if nodes == 0 => Some(LayerFault::new(
            ProbeLayer::DeviceNodes,
            "this container has no GPU",
            "start it with GPUs: `--gpus all`, a CDI device `nvidia.com/gpu=all`, or a limit \
             `nvidia.com/gpu` of its pod",
        )),
        Some(loaded) => devices::agree(seen, loaded, None)
            .err()
            .map(|differ| differ.fault),
        None => Some(devices::unready(seen, None).fault),
    };
    let passed = [
        (
            ProbeLayer::DeviceNodes,
            format!("of {}", counted(nodes, "GPU")),
        ),
        (ProbeLayer::Nvml, format!("lists {}", counted(nodes, "GPU"))),
    ];
    below(layers, passed, fault);
}

/// Marks the layer of the fault as failed and the layers below it as passed. Without a fault, all these layers have passed.
fn below(
    layers: &mut LayerResults,
    passed: impl IntoIterator<Item = (ProbeLayer, String)>,
    fault: Option<LayerFault>,
) {
    for (layer, why) in passed {
        if fault.as_ref().is_none_or(|fault| layer < fault.layer) {
            layers.pass(layer, why);
        }
    }
    if let Some(fault) = fault {
        layers.fail(fault);
    }
}

/// Compares the number of GPUs with the number in the provider's instance type, using the rule of `validation.devices`.
fn instance_type(layers: &mut LayerResults, facts: &Facts, matrix: &Matrix) {
    let layer = ProbeLayer::InstanceType;
    match ExpectedGpus::of(facts, matrix) {
        Err(why) => layers.skip(layer, why),
        Ok(expected_gpus) => match expected_gpus.broken() {
            Some(why) => layers.fail(LayerFault::new(layer, why, expected::REMEDY)),
            None => layers.pass(
                layer,
                format!(
                    "{} has {}",
                    expected_gpus.instance_type,
                    counted(expected_gpus.promised, "GPU")
                ),
            ),
        },
    }
}
