//! Words that several steps say to people.

use crate::{facts::Facts, step::Assessment};

/// The answer of every step about the driver when none is wanted.
pub(super) fn no_driver() -> Assessment {
    Assessment::NotApplicable {
        why: "no driver is configured for this machine".into(),
    }
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

/// How many GPUs, for people: as an object.
pub(super) fn count(facts: &Facts) -> String {
    match facts.gpus.len() {
        1 => "1 GPU".into(),
        n => format!("{n} GPUs"),
    }
}

/// How many GPUs, for people: as a subject with its verb.
pub(super) fn gpus(facts: &Facts) -> String {
    match facts.gpus.len() {
        1 => "1 GPU is".into(),
        n => format!("{n} GPUs are"),
    }
}
