//! Events as plain lines, for logs and consoles that are not terminals.

use std::io::{self, Write};

use super::{
    Style,
    style::{Ink, of_outcome},
};
use crate::{
    event::{Envelope, Event, Outcome},
    model::id::StepId,
};

/// A running change without output for this long prints a sign of life.
const QUIET_MS: u64 = 20_000;

/// Writes the important events as lines.
pub struct Plain<W> {
    to: W,
    style: Style,
    last_ms: u64,
}

impl<W: Write + Send> Plain<W> {
    /// Writes to a log.
    pub const fn new(to: W, style: Style) -> Self {
        Self {
            to,
            style,
            last_ms: 0,
        }
    }

    fn line(&mut self, envelope: &Envelope, text: &str) -> io::Result<()> {
        self.last_ms = envelope.elapsed_ms;
        let seconds = envelope.elapsed_ms / 1000;
        let tenths = envelope.elapsed_ms % 1000 / 100;
        writeln!(self.to, "[{seconds:>5}.{tenths}] {text}")?;
        self.to.flush()
    }

    fn still(&mut self, envelope: &Envelope, steps: &[StepId], text: &str) -> io::Result<()> {
        if envelope.elapsed_ms < self.last_ms + QUIET_MS {
            return Ok(());
        }
        let text = format!("{}: … {text}", names(steps));
        self.line(envelope, &text)
    }
}

impl<W: Write + Send> crate::event::Subscriber for Plain<W> {
    fn name(&self) -> &'static str {
        "the log"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        match &envelope.event {
            Event::RunStarted {
                version,
                mode,
                steps,
            } => {
                let text = format!("gpu-bootstrap {version}: {mode}, {} steps", steps.len());
                self.line(envelope, &text)
            }
            Event::StepStarted { .. } | Event::StepAssessed { .. } => Ok(()),
            Event::ChangeStarted { steps, summary } => {
                let text = format!("{}: {summary}", names(steps));
                self.line(envelope, &text)
            }
            Event::Progress {
                steps,
                current,
                total,
                unit,
            } => self.still(envelope, steps, &amount(*current, *total, unit)),
            Event::Output { steps, line } => self.still(envelope, steps, line),
            Event::AttemptFailed {
                steps,
                message,
                retry_in_seconds,
            } => {
                let text = format!(
                    "{}: {message}; again in {retry_in_seconds:.0} s",
                    names(steps)
                );
                self.line(envelope, &text)
            }
            Event::ChangeApplied {
                steps,
                summary,
                seconds,
            } => {
                let text = format!("{}: done in {seconds:.1} s: {summary}", names(steps));
                self.line(envelope, &text)
            }
            Event::StepFinished {
                step,
                outcome,
                why,
                causes,
                ..
            } => {
                let word = self.style.paint(of_outcome(*outcome), outcome.word());
                let mut text = format!("{step}: {word}: {why}");
                if *outcome == Outcome::Failed {
                    for cause in causes {
                        text.push_str(&format!(": {}", cause.lines().next().unwrap_or_default()));
                    }
                }
                self.line(envelope, &text)
            }
            Event::Note { message } => {
                let text = format!("{} {message}", self.style.paint(Ink::Doubt, "note:"));
                self.line(envelope, &text)
            }
            Event::RebootRequired { why, automatic } => {
                let how = if *automatic {
                    "rebooting"
                } else {
                    "reboot needed"
                };
                self.line(envelope, &format!("{how}: {why}"))
            }
            Event::RunFinished { exit, seconds, .. } => self.line(
                envelope,
                &format!("ended with status {exit} after {seconds:.1} s"),
            ),
        }
    }
}

/// The steps' names.
pub(super) fn names(steps: &[StepId]) -> String {
    steps
        .iter()
        .map(StepId::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The progress of a change.
pub(super) fn amount(current: u64, total: Option<u64>, unit: &str) -> String {
    match total {
        Some(total) => format!("{current} of {total} {unit}"),
        None => format!("{current} {unit}"),
    }
}
