//! `facts`: prints the detected facts.

use std::{collections::BTreeSet, fmt::Write as _, sync::Arc};

use super::{
    Failure, args,
    env::{Console, Env},
    machine, print,
};
use crate::{
    exit::Exit,
    facts::SecureBoot,
    host::{Host, Nvml},
    model::{gpu::ArchitectureEvidence, text::counted},
    report::{
        Style,
        document::{self, FactsDocument, GpuDocument},
    },
    state::State,
};

pub(super) async fn run(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::FactsArgs,
) -> Result<Exit, Failure> {
    let matrix = machine::matrix(here, env)?;
    let (host, scope) = match &args.lspci {
        Some(file) => (machine::from_lspci(here, file)?, machine::TEXT_ONLY),
        None => {
            let root = args.root.as_deref();
            (machine::host(here, root)?, machine::scope(root))
        }
    };
    let facts = Arc::new(machine::all_facts(&host, &matrix, scope).await);
    let state = State::new(host, scope, Arc::clone(&facts));
    let document = document::facts(&facts, state.snapshot().await);
    match args.output.format {
        args::OutputFormat::Json => print::json(&mut console.out, &document)?,
        args::OutputFormat::Human => {
            let text = human(&document, console.out_style());
            print::text(&mut console.out, &text)?;
        }
    }
    Ok(Exit::Ok)
}

fn human(facts: &FactsDocument<'_>, style: Style) -> String {
    let mut text = String::new();
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let mut row = |name: &str, value: String| {
        let line = style.hanging(&format!("{name:<16} "), &value);
        let _ = writeln!(text, "{line}");
    };
    let os = facts.os.as_ref();
    row(
        "system",
        or_unknown(os.map(|os| os.pretty_name.clone().unwrap_or_else(|| os.id.clone()))),
    );
    let kernel = &facts.kernel;
    row(
        "kernel",
        or_unknown(kernel.running.as_ref().map(ToString::to_string)),
    );
    if kernel.next_boot != kernel.running {
        row(
            "next boot",
            or_unknown(kernel.next_boot.as_ref().map(ToString::to_string)),
        );
    }
    row("architecture", or_unknown(kernel.arch.clone()));
    let secure_boot = match facts.secure_boot {
        SecureBoot::Enabled => "on",
        SecureBoot::Disabled => "off",
        SecureBoot::Unsupported => "not supported",
        SecureBoot::Unknown => "unknown",
    };
    row("secure boot", secure_boot.into());
    if let Some(provider) = &facts.cloud.provider {
        let instance = or_unknown(facts.cloud.instance_type.clone());
        row("cloud", format!("{provider}, {instance}"));
    }
    if let Some(memory) = facts.memory_bytes {
        row(
            "memory",
            format!("{:.1} GiB", memory as f64 / f64::from(1 << 30)),
        );
    }
    for gpu in &facts.gpus {
        row("gpu", described(facts, gpu));
    }
    if facts.gpus.is_empty() {
        let is_read = !facts.unknown.iter().any(|unknown| unknown.fact == "gpus");
        let none = if is_read {
            "none on the PCI bus"
        } else {
            "unknown"
        };
        row("gpu", none.into());
    }
    if !facts.virtual_functions.is_empty() {
        let count = counted(facts.virtual_functions.len(), "virtual function");
        row("gpu", format!("{count} for virtual machines"));
    }
    for gpu in facts.foreign_gpus {
        let name = gpu.name.as_deref().unwrap_or("unknown name");
        row(
            "other display",
            format!("{} {name} [{}]", gpu.pci_address, gpu.pci_id),
        );
    }
    for switch in facts.nvswitches {
        let name = switch.name.as_deref().unwrap_or("NVSwitch");
        row("nvswitch", format!("{} {name}", switch.pci_address));
    }
    let driver = &facts.driver;
    for (name, version) in [
        ("driver loaded", &driver.loaded_version),
        ("library", &driver.library_version),
        ("packages", &driver.package_version),
        ("module on disk", &driver.module_version),
    ] {
        if let Some(version) = version {
            row(name, version.to_string());
        }
    }
    match &facts.nvml {
        Some(Nvml::Ready(view)) => row("nvml", counted(view.devices.len(), "GPU")),
        Some(Nvml::NotLoadable { .. } | Nvml::DriverNotLoaded | Nvml::NotQueried { .. }) | None => {
        }
        Some(Nvml::VersionMismatch) => row("nvml", "driver/library version mismatch".into()),
        Some(Nvml::NoDevices) => row("nvml", "no devices".into()),
        Some(Nvml::Hung { after_seconds }) => row("nvml", format!("hung for {after_seconds} s")),
        Some(Nvml::Failed { why, .. }) => row("nvml", why.clone()),
    }
    for runtime in facts.runtimes {
        row(&runtime.name, or_unknown(runtime.version.clone()));
    }
    if let Some(kubelet) = &facts.kubelet {
        row(
            "kubelet",
            format!(
                "{} (`{}`, according to {})",
                kubelet.name, kubelet.socket, kubelet.known_by
            ),
        );
    }
    let mut reasons: Vec<&str> = facts.unknown.iter().map(|line| line.why.as_str()).collect();
    let mut seen = BTreeSet::new();
    reasons.retain(|why| seen.insert(*why));
    for why in reasons {
        let of_it = facts.unknown.iter().filter(|line| line.why == why);
        let names: Vec<&str> = of_it.map(|line| line.fact.as_str()).collect();
        row("unknown", format!("{}: {why}", names.join(", ")));
    }
    text
}

/// Formats a GPU: PCI address, name, PCI ID, the architecture if it was inferred, and the bound driver.
fn described(facts: &FactsDocument<'_>, gpu: &GpuDocument<'_>) -> String {
    let fact = gpu.fact;
    let name = fact.name.as_deref().unwrap_or("unknown GPU");
    let inferred = match (&fact.architecture, fact.architecture_evidence) {
        (Some(architecture), Some(evidence)) if evidence != ArchitectureEvidence::Listed => {
            format!(", {architecture} by {evidence}")
        }
        _ => String::new(),
    };
    let bound = format!("gpus[{}].bound-driver", fact.pci_address);
    let driver = match gpu.bound_driver {
        Some(driver) => driver,
        None if facts.unknown.iter().any(|line| line.fact == bound) => "driver unknown",
        None => "no driver",
    };
    format!(
        "{} {name} [{}]{inferred}, {driver}",
        fact.pci_address, fact.pci_id
    )
}
