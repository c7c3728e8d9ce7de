//! The output of `status` for people.

use std::io::{self, Write};

use super::{Style, human::outcomes, style::Ink};
use crate::engine::Status;

/// The current run, the result of the last run, and what is awaited.
///
/// # Errors
/// An error of the writer.
pub fn write(to: &mut dyn Write, status: &Status, style: Style) -> io::Result<()> {
    match &status.current {
        Some(current) if current.alive => {
            let progress = &current.progress;
            writeln!(
                to,
                "{} `{}` (pid {}) since {}",
                style.paint(Ink::Strong, "running:"),
                progress.command,
                progress.pid,
                progress.since
            )?;
            let ended = progress.steps.iter().filter(|step| step.outcome.is_some());
            writeln!(
                to,
                "  {} of {} steps have ended",
                ended.count(),
                progress.steps.len()
            )?;
            for change in &progress.changes {
                writeln!(to, "  now: {change}")?;
            }
            if let Some(detail) = &progress.detail {
                writeln!(to, "  {}", style.paint(Ink::Faint, detail))?;
            }
        }
        Some(current) => writeln!(
            to,
            "{} `{}` (pid {}), started {}, ended without a result",
            style.paint(Ink::Doubt, "cut off:"),
            current.progress.command,
            current.progress.pid,
            current.progress.since
        )?,
        None => writeln!(to, "no run is in progress")?,
    }
    match &status.last {
        None => writeln!(to, "nothing was run on this machine yet")?,
        Some(run) => match &run.ended {
            Some(ended) => writeln!(
                to,
                "last run: `{}` of version {}, ended {} with status {}: {}",
                run.mode,
                run.tool,
                ended.at,
                ended.exit,
                outcomes(&ended.summary, style)
            )?,
            None => writeln!(
                to,
                "last run: `{}` of version {}, started {}, has not ended",
                run.mode, run.tool, run.started
            )?,
        },
    }
    if let Some(awaited) = &status.awaited_reboot {
        let goes_on = if awaited.automatic {
            "by itself"
        } else {
            "with `gpu-bootstrap install`"
        };
        if status.reboot_due {
            writeln!(
                to,
                "{} {}; after it the run continues {goes_on}",
                style.paint(Ink::Doubt, "a reboot is awaited:"),
                awaited.why
            )?;
        } else {
            writeln!(
                to,
                "{} the run continues {goes_on}",
                style.paint(Ink::Doubt, "rebooted:")
            )?;
        }
    }
    if status.interrupted {
        writeln!(
            to,
            "{} a change was interrupted; run `gpu-bootstrap install` to continue, or `uninstall`",
            style.paint(Ink::Doubt, "interrupted:")
        )?;
    }
    if status.changes_standing > 0 {
        writeln!(
            to,
            "{} changes can be undone with `gpu-bootstrap uninstall`, of {}",
            status.changes_standing,
            status.steps_standing.join(", ")
        )?;
    }
    to.flush()
}
