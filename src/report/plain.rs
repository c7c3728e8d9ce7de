//! Prints events as plain lines, for logs and consoles that are not terminals. Each line starts with the seconds since the
//! start of the run. Lines are not wrapped, so that logs can be searched.

use std::io::{self, Write};

use super::{
    Style,
    messages::{Amounts, duration, title, titles},
    style::{Ink, of_outcome},
};
use crate::{
    event::{Envelope, Event, Outcome, StepTitle},
    model::id::StepId,
};

/// If no line was printed for this long, the next output or progress of a change prints a progress line.
const QUIET_MS: u64 = 20_000;

/// A change shorter than this, in seconds, does not print a line when it finishes, because the next line implies it. A shorter
/// step is printed without its duration.
const SHORT: f64 = 1.0;

/// Writes the important events as lines.
pub struct Plain<W> {
    to: W,
    style: Style,
    last_ms: u64,
    steps: Vec<StepTitle>,
    amounts: Amounts,
}

impl<W: Write + Send> Plain<W> {
    /// Writes to a log.
    pub fn new(to: W, style: Style) -> Self {
        Self {
            to,
            style,
            last_ms: 0,
            steps: Vec::new(),
            amounts: Amounts::default(),
        }
    }

    fn line(&mut self, envelope: &Envelope, text: &str) -> io::Result<()> {
        self.last_ms = envelope.elapsed_ms;
        let seconds = envelope.elapsed_ms / 1000;
        let tenths = envelope.elapsed_ms % 1000 / 100;
        writeln!(self.to, "[{seconds:>5}.{tenths}] {text}")?;
        self.to.flush()
    }

    fn about(&mut self, envelope: &Envelope, steps: &[StepId], text: &str) -> io::Result<()> {
        let text = format!("{}: {text}", titles(&self.steps, steps));
        self.line(envelope, &text)
    }

    /// A progress line with the amount and the last line of output.
    fn still(&mut self, envelope: &Envelope, steps: &[StepId], output: &str) -> io::Result<()> {
        if envelope.elapsed_ms < self.last_ms + QUIET_MS {
            return Ok(());
        }
        let text = format!("… {}", self.amounts.and(output));
        self.about(envelope, steps, &text)
    }

    fn step_finished(&mut self, envelope: &Envelope) -> io::Result<()> {
        let Event::StepFinished {
            step,
            outcome,
            why,
            seconds,
            causes,
            ..
        } = &envelope.event
        else {
            return Ok(());
        };
        if quiet(*outcome) && !self.style.verbose {
            return Ok(());
        }
        let word = self.style.paint(of_outcome(*outcome), outcome.word());
        let mut text = format!("{word}: {}", ended(&self.steps, step, *seconds));
        text.push_str(&format!(": {why}"));
        if *outcome == Outcome::Failed {
            for cause in causes {
                text.push_str(&format!(": {}", cause.lines().next().unwrap_or_default()));
            }
        }
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
                self.steps.clone_from(steps);
                // This may be a second run, whose elapsed time starts at 0 again.
                self.last_ms = 0;
                let text = format!("gpu-bootstrap {version}: {mode}, {} steps", steps.len());
                self.line(envelope, &text)
            }
            // The report after the run shows the reboot.
            Event::StepStarted { .. }
            | Event::StepAssessed { .. }
            | Event::RebootRequired { .. } => Ok(()),
            Event::ChangeStarted { steps, summary } => {
                self.amounts = Amounts::default();
                self.about(envelope, steps, summary)
            }
            Event::Progress {
                steps,
                current,
                total,
                unit,
            } => {
                self.amounts.set(*current, *total, unit);
                self.still(envelope, steps, "")
            }
            Event::Output { steps, line } => self.still(envelope, steps, line),
            Event::AttemptFailed {
                steps,
                message,
                retry_in_seconds,
            } => {
                let text = again(message, *retry_in_seconds);
                self.about(envelope, steps, &text)
            }
            Event::ChangeApplied { steps, seconds, .. } => {
                if *seconds < SHORT {
                    return Ok(());
                }
                let text = format!("done in {}", duration(*seconds));
                self.about(envelope, steps, &text)
            }
            Event::StepFinished { .. } => self.step_finished(envelope),
            Event::Note { message } => {
                let text = format!("{} {message}", self.style.paint(Ink::Doubt, "note:"));
                self.line(envelope, &text)
            }
            Event::RunFinished {
                exit,
                seconds,
                to_ready,
                ..
            } => {
                let time = duration(*seconds);
                // Omit the total time if there was only one run, because both times are the same.
                let all = to_ready.filter(|all| all - seconds > 1.0).map(duration);
                let all =
                    all.map(|all| format!(", ready {all} after the start of the installation"));
                let all = all.unwrap_or_default();
                self.line(
                    envelope,
                    &format!("ended with status {exit} after {time}{all}"),
                )
            }
        }
    }
}

/// Whether a step with this outcome is only counted and not printed. If a step is not run, the failure or reboot that prevents
/// it is printed instead.
pub(super) const fn quiet(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Satisfied | Outcome::NotApplicable | Outcome::NotRun
    )
}

/// A finished step: its title, and its duration unless it is short.
pub(super) fn ended(steps: &[StepTitle], step: &StepId, seconds: f64) -> String {
    let title = title(steps, step);
    if seconds < SHORT {
        title.to_owned()
    } else {
        format!("{title} ({})", duration(seconds))
    }
}

/// A failed attempt, and the time until the next attempt.
pub(super) fn again(message: &str, seconds: f64) -> String {
    format!("{message}; again in {}", duration(seconds))
}
