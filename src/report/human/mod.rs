//! Human-readable reports.

mod check;
mod explain;
pub(super) mod node;
mod plan;
mod probe;
mod run;

use std::io::{self, Write};

pub use check::{Examined, check};
pub use explain::{Topic, explain, findings};
pub use plan::{plan, undo};
pub use probe::probe;
pub use run::{run, troubles};

use super::{Style, style::Ink};
use crate::event::Summary;

/// The number of steps with each outcome, as text.
pub(super) fn outcomes(summary: &Summary, style: Style) -> String {
    let parts = [
        (summary.changed, "changed", Ink::Good),
        (summary.would_change, "would change", Ink::Doubt),
        (summary.awaiting_boot, "awaiting boot", Ink::Doubt),
        (summary.failed, "failed", Ink::Bad),
        (summary.blocked, "blocked", Ink::Bad),
        (summary.not_run, "not run", Ink::Faint),
        (summary.satisfied, "satisfied", Ink::Good),
        (summary.not_applicable, "not applicable", Ink::Faint),
    ];
    counted(&parts, style)
}

fn counted(parts: &[(usize, &str, Ink)], style: Style) -> String {
    let words: Vec<String> = parts
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, word, ink)| style.paint(*ink, &format!("{count} {word}")))
        .collect();
    if words.is_empty() {
        "nothing to do".to_owned()
    } else {
        words.join(", ")
    }
}

/// The counts, and a note about `-v` if the output is incomplete.
fn footer(to: &mut dyn Write, counts: &str, hidden: bool, style: Style) -> io::Result<()> {
    let text = if hidden && !style.verbose {
        format!("{counts} (`-v` shows all)")
    } else {
        counts.to_owned()
    };
    writeln!(to, "\n{}", style.hanging("", &text))
}

fn notes(to: &mut dyn Write, notes: &[String], style: Style) -> io::Result<()> {
    for note in notes {
        let head = format!("{} ", style.paint(Ink::Doubt, "note:"));
        writeln!(to, "{}", style.hanging(&head, note))?;
    }
    Ok(())
}

/// A command on a separate line, after a sentence that introduces it.
fn next_step(to: &mut dyn Write, why: &str, command: &str, style: Style) -> io::Result<()> {
    writeln!(to, "\n{}", style.hanging("", why))?;
    writeln!(to, "\n    {}", style.paint(Ink::Strong, command))
}
