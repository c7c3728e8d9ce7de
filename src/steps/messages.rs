//! Messages that several steps share.

use crate::{
    facts::GpuFact,
    step::{Assessment, Cx, StepError},
    tools::systemctl::UnitState,
};

/// The assessment of every driver step if no driver is configured.
pub(super) fn no_driver() -> Assessment {
    Assessment::not_applicable("no driver is configured for this machine")
}

/// Formats a Unix time.
pub(super) fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("{seconds} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

/// Joins names. A list of more than four names is shortened.
pub(super) fn some(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}

/// The GPUs that are not reserved for virtual machines.
pub(super) fn usable<'a>(cx: &Cx<'a>) -> Result<Vec<&'a GpuFact>, StepError> {
    let mut usable = Vec::new();
    for gpu in &cx.facts.gpus {
        if !cx.state.is_reserved(gpu.pci_address)? {
            usable.push(gpu);
        }
    }
    Ok(usable)
}

/// Formats GPU indices.
pub(super) fn indices(gpus: &[u32]) -> String {
    let all: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    match gpus {
        [_] => format!("GPU {}", all.join(", ")),
        _ => format!("GPUs {}", all.join(", ")),
    }
}

/// Formats a count with names: `2 running containers (web, job)`.
pub(super) fn list_of(what: &str, names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{} {what}{plural} ({})", names.len(), names.join(", "))
}

/// Formats a GPU count as a subject with "has" or "have".
pub(super) fn has(gpus: usize) -> String {
    match gpus {
        1 => "1 GPU has".into(),
        n => format!("{n} GPUs have"),
    }
}

/// Formats a GPU count as a subject with "is" or "are".
pub(super) fn gpus(gpus: usize) -> String {
    match gpus {
        1 => "1 GPU is".into(),
        n => format!("{n} GPUs are"),
    }
}

/// Blocks if a unit is masked, because the administrator decided that it must not start. `otherwise` is the setting
/// that works without the unit.
pub(super) fn masked(name: &str, unit: Option<&UnitState>, otherwise: &str) -> Option<Assessment> {
    unit.filter(|unit| unit.load == "masked")?;
    Some(Assessment::blocked(
        format!("`{name}` is masked and cannot be started"),
        format!("run `systemctl unmask {name}`, or {otherwise}; then run the command again"),
    ))
}
