//! Words that several steps say to people.

use crate::{
    facts::GpuFact,
    step::{Assessment, Cx, StepError},
    tools::systemctl::UnitState,
};

/// The answer of every step about the driver when none is wanted.
pub(super) fn no_driver() -> Assessment {
    Assessment::not_applicable("no driver is configured for this machine")
}

/// Seconds since 1970 for people.
pub(super) fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("{seconds} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

/// The first few of many names.
pub(super) fn some(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}

/// The GPUs that this machine uses itself: all but those reserved for virtual machines.
pub(super) fn usable<'a>(cx: &Cx<'a>) -> Result<Vec<&'a GpuFact>, StepError> {
    let mut usable = Vec::new();
    for gpu in &cx.facts.gpus {
        if !cx.state.is_reserved(gpu.pci_address)? {
            usable.push(gpu);
        }
    }
    Ok(usable)
}

/// GPUs by their index, for people.
pub(super) fn indices(gpus: &[u32]) -> String {
    let all: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    match gpus {
        [_] => format!("GPU {}", all.join(", ")),
        _ => format!("GPUs {}", all.join(", ")),
    }
}

/// How many GPUs, for people: as an object.
pub(super) fn count(gpus: usize) -> String {
    match gpus {
        1 => "1 GPU".into(),
        n => format!("{n} GPUs"),
    }
}

/// How many of something, with their names, for people: `2 running containers (web, job)`.
pub(super) fn list_of(what: &str, names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{} {what}{plural} ({})", names.len(), names.join(", "))
}

/// How many GPUs, for people: as a subject that has done something.
pub(super) fn has(gpus: usize) -> String {
    match gpus {
        1 => "1 GPU has".into(),
        n => format!("{n} GPUs have"),
    }
}

/// How many GPUs, for people: as a subject with its verb.
pub(super) fn gpus(gpus: usize) -> String {
    match gpus {
        1 => "1 GPU is".into(),
        n => format!("{n} GPUs are"),
    }
}

/// The refusal where somebody has masked a unit: nothing can start it, and who masked it has decided.
/// `otherwise` is how the settings do without it.
pub(super) fn masked(name: &str, unit: Option<&UnitState>, otherwise: &str) -> Option<Assessment> {
    unit.filter(|unit| unit.load == "masked")?;
    Some(Assessment::blocked(
        format!("`{name}` is masked, so nothing can start it"),
        format!("run `systemctl unmask {name}`, or {otherwise}; then run the command again"),
    ))
}
