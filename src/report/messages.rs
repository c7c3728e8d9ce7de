//! Durations, amounts and titles, shared by several reports.

use crate::{
    event::StepTitle,
    model::{id::StepId, text::counted},
};

/// Formats a duration for humans.
pub(crate) fn duration(seconds: f64) -> String {
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
fn amount(current: u64, total: Option<u64>, unit: &str) -> String {
    match (unit, total) {
        ("percent", _) => format!("{current} %"),
        ("bytes", Some(total)) => format!("{} of {}", bytes(current), bytes(total)),
        ("bytes", None) => bytes(current),
        (_, Some(total)) => format!("{current} of {total} {unit}"),
        (_, None) => format!("{current} {unit}"),
    }
}

/// The progress of a change in each of its units.
#[derive(Default)]
pub(super) struct Amounts(Vec<(String, String)>);

impl Amounts {
    /// Updates the amount of a unit.
    pub(super) fn set(&mut self, current: u64, total: Option<u64>, unit: &str) {
        let text = amount(current, total, unit);
        match self.0.iter_mut().find(|(known, _)| known == unit) {
            Some((_, known)) => *known = text,
            // The percentage is for the installation, which follows the download. Remove the amounts of the download.
            None if unit == "percent" => self.0 = vec![(unit.to_owned(), text)],
            None => self.0.push((unit.to_owned(), text)),
        }
    }

    /// Returns all amounts, followed by `rest`.
    pub(super) fn and(&self, rest: &str) -> String {
        let amounts: Vec<&str> = self.0.iter().map(|(_, text)| text.as_str()).collect();
        let amounts = amounts.join(", ");
        match (amounts.is_empty(), rest.is_empty()) {
            (true, _) => rest.to_owned(),
            (_, true) => amounts,
            _ => format!("{amounts}: {rest}"),
        }
    }
}

/// Formats a number of bytes with decimal units, which package managers also use.
fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", count / unit, count % unit * 10 / unit),
        None => format!("{count} B"),
    }
}

/// Formats a number of things, in singular or plural.
pub(super) fn things(count: usize) -> String {
    counted(count, "thing")
}

/// The titles of steps, or the ID of a step that the run did not announce.
pub(super) fn titles(known: &[StepTitle], steps: &[StepId]) -> String {
    steps
        .iter()
        .map(|step| title(known, step))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The title of a step, or its ID if the run did not announce it.
pub(super) fn title<'t>(known: &'t [StepTitle], step: &'t StepId) -> &'t str {
    known
        .iter()
        .find(|known| known.id == *step)
        .map_or(step.as_str(), |known| known.title.as_str())
}

#[cfg(test)]
mod tests {
    use super::{Amounts, amount, duration};

    #[test]
    fn packages_and_bytes_are_shown_together() {
        let mut amounts = Amounts::default();
        assert_eq!(amounts.and("a line"), "a line");
        amounts.set(2, Some(9), "packages");
        amounts.set(1_000, Some(5_000_000), "bytes");
        amounts.set(3, Some(9), "packages");
        assert_eq!(
            amounts.and("Get:3"),
            "3 of 9 packages, 1.0 kB of 5.0 MB: Get:3"
        );
        amounts.set(10, Some(100), "percent");
        assert_eq!(amounts.and(""), "10 %");
    }

    #[test]
    fn durations_and_amounts_are_formatted() {
        for (seconds, text) in [
            (0.04, "0.0 s"),
            (9.94, "9.9 s"),
            (59.6, "1 min"),
            (161.0, "2 min 41 s"),
            (3_720.0, "1 h 2 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        for ((current, total, unit), text) in rows! {
            (3, Some(9), "packages"), "3 of 9 packages";
            (42, Some(100), "percent"), "42 %";
            (12_340_000, Some(1_500_000_000), "bytes"), "12.3 MB of 1.5 GB";
            (999, None, "bytes"), "999 B";
        } {
            assert_eq!(amount(current, total, unit), text);
        }
    }
}
