//! Words that several reports share: durations, amounts, titles.

use crate::{event::StepTitle, model::id::StepId};

/// A duration as people say it.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    let whole = std::time::Duration::from_secs_f64(seconds.round()).as_secs();
    match (whole / 3600, whole % 3600 / 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// The progress of a change.
pub(super) fn amount(current: u64, total: Option<u64>, unit: &str) -> String {
    match (unit, total) {
        ("percent", _) => format!("{current} %"),
        ("bytes", Some(total)) => format!("{} of {}", bytes(current), bytes(total)),
        ("bytes", None) => bytes(current),
        (_, Some(total)) => format!("{current} of {total} {unit}"),
        (_, None) => format!("{current} {unit}"),
    }
}

/// Decimal units, as package managers print them.
fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", count / unit, count % unit * 10 / unit),
        None => format!("{count} B"),
    }
}

/// A number of things, in words.
pub(super) fn things(count: usize) -> String {
    match count {
        1 => "1 thing".to_owned(),
        count => format!("{count} things"),
    }
}

/// The titles of steps; the id of a step that the run did not announce.
pub(super) fn titles(known: &[StepTitle], steps: &[StepId]) -> String {
    steps
        .iter()
        .map(|step| title(known, step))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The title of a step, or its id if the run did not announce it.
pub(super) fn title<'t>(known: &'t [StepTitle], step: &'t StepId) -> &'t str {
    known
        .iter()
        .find(|known| known.id == *step)
        .map_or(step.as_str(), |known| known.title.as_str())
}

#[cfg(test)]
mod tests {
    use super::{amount, duration};

    #[test]
    fn durations_and_amounts() {
        for (seconds, text) in [
            (0.04, "0.0 s"),
            (9.94, "9.9 s"),
            (59.6, "1 min"),
            (161.0, "2 min 41 s"),
            (3_720.0, "1 h 2 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        for ((current, total, unit), text) in [
            ((3, Some(9), "packages"), "3 of 9 packages"),
            ((42, Some(100), "percent"), "42 %"),
            (
                (12_340_000, Some(1_500_000_000), "bytes"),
                "12.3 MB of 1.5 GB",
            ),
            ((999, None, "bytes"), "999 B"),
        ] {
            assert_eq!(amount(current, total, unit), text);
        }
    }
}
