//! Shows events on a terminal. A finished step is a permanent line, unless nothing was done for it (`-v` also shows these
//! steps). Each running change has a spinner with its duration and its last line of output.

use std::{io, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    Drawn, Style,
    messages::{Amounts, title},
    plain::{again, ended, quiet},
    screen,
    style::{Ink, of_outcome},
};
use crate::{
    event::{Envelope, Event, Outcome, StepTitle, Subscriber},
    model::{
        id::StepId,
        text::{is_control, without_controls},
    },
};

/// The interval between two frames of a spinner.
const TICK: Duration = Duration::from_millis(120);

/// Draws on a terminal.
pub struct Terminal {
    bars: MultiProgress,
    style: Style,
    titles: Vec<StepTitle>,
    /// The progress bar of the run, on the last line.
    whole: Option<ProgressBar>,
    running: Vec<RunningChange>,
}

/// A change that is being applied.
struct RunningChange {
    steps: Vec<StepId>,
    summary: String,
    bar: ProgressBar,
    said: ProgressBar,
    amounts: Amounts,
    line: String,
}

impl RunningChange {
    fn show(&self) {
        let text = printable(&self.amounts.and(&self.line));
        self.said.set_message(text);
    }
}

impl Terminal {
    /// Draws on standard error. The log uses `drawn` to write above the bars.
    pub fn new(style: Style, drawn: &Drawn) -> Self {
        let terminal = Self::on(screen::open(), style);
        drawn.show(&terminal.bars);
        terminal
    }

    /// Draws on another target.
    pub fn on(target: ProgressDrawTarget, style: Style) -> Self {
        Self {
            bars: MultiProgress::with_draw_target(target),
            style,
            titles: Vec::new(),
            whole: None,
            running: Vec::new(),
        }
    }

    fn begin(&mut self, mode: &str, steps: &[StepTitle]) -> io::Result<()> {
        self.titles = steps.to_vec();
        let whole = self.bars.add(ProgressBar::new(steps.len() as u64));
        whole.set_style(template(if self.style.colour {
            "{spinner:.cyan} {prefix} {bar:24.cyan/dim} {pos}/{len} {elapsed} {wide_msg:.dim}"
        } else {
            "{spinner} {prefix} {bar:24} {pos}/{len} {elapsed} {wide_msg}"
        })?);
        whole.set_prefix(mode.to_owned());
        whole.enable_steady_tick(TICK);
        self.whole = Some(whole);
        Ok(())
    }

    fn change_started(&mut self, steps: &[StepId], summary: &str) -> io::Result<()> {
        let place = |bar: ProgressBar| match &self.whole {
            Some(whole) => self.bars.insert_before(whole, bar),
            None => self.bars.add(bar),
        };
        let bar = place(ProgressBar::new_spinner());
        bar.set_style(template(if self.style.colour {
            "{spinner:.cyan} {prefix:.bold} {wide_msg} {elapsed}"
        } else {
            "{spinner} {prefix} {wide_msg} {elapsed}"
        })?);
        bar.set_prefix(match steps {
            [] => String::new(),
            [step] => title(&self.titles, step).to_owned(),
            [first, others @ ..] => format!("{} +{}", title(&self.titles, first), others.len()),
        });
        bar.set_message(summary.to_owned());
        bar.enable_steady_tick(TICK);
        let said = place(ProgressBar::new_spinner());
        said.set_style(template(if self.style.colour {
            "    {wide_msg:.dim}"
        } else {
            "    {wide_msg}"
        })?);
        self.running.push(RunningChange {
            steps: steps.to_vec(),
            summary: summary.to_owned(),
            bar,
            said,
            amounts: Amounts::default(),
            line: String::new(),
        });
        Ok(())
    }

    fn said(&mut self, steps: &[StepId], take_in: impl Fn(&mut RunningChange)) {
        let here = |running: &&mut RunningChange| running.steps == steps;
        for running in self.running.iter_mut().filter(here) {
            take_in(running);
            running.show();
        }
    }

    fn clear(&mut self, ended: impl Fn(&RunningChange) -> bool) {
        self.running.retain(|running| {
            let ended = ended(running);
            if ended {
                running.said.finish_and_clear();
                running.bar.finish_and_clear();
            }
            !ended
        });
    }

    fn step_finished(
        &mut self,
        step: &StepId,
        outcome: Outcome,
        why: &str,
        seconds: f64,
    ) -> io::Result<()> {
        self.clear(|running| running.steps.contains(step) && outcome == Outcome::Failed);
        if let Some(whole) = &self.whole {
            whole.inc(1);
        }
        if quiet(outcome) && !self.style.verbose {
            return Ok(());
        }
        let word = self.style.column(of_outcome(outcome), outcome.word(), 14);
        let name = ended(&self.titles, step, seconds);
        let name = self.style.paint(Ink::Strong, &name);
        // The error message at the end of the run contains the reason, the causes and the hint.
        let text = match outcome {
            Outcome::Failed | Outcome::Blocked => name,
            _ => format!("{name}: {}", printable(why)),
        };
        self.print(&format!("{word}  "), &text)
    }

    /// Prints a permanent text above the bars.
    fn print(&self, head: &str, text: &str) -> io::Result<()> {
        let text = self.style.hanging(head, text);
        self.bars.println(without_controls(&text).unwrap_or(text))
    }
}

impl Subscriber for Terminal {
    fn name(&self) -> &'static str {
        "the terminal"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        match &envelope.event {
            Event::RunStarted { mode, steps, .. } => self.begin(mode, steps)?,
            Event::StepStarted { step } => {
                if let Some(whole) = &self.whole {
                    whole.set_message(format!("assessing: {}", title(&self.titles, step)));
                }
            }
            Event::StepAssessed { step, why, .. } => {
                if let Some(whole) = &self.whole {
                    let title = title(&self.titles, step);
                    whole.set_message(printable(&format!("{title}: {why}")));
                }
            }
            Event::ChangeStarted { steps, summary } => {
                if let Some(whole) = &self.whole {
                    whole.set_message("");
                }
                self.change_started(steps, summary)?;
            }
            Event::Progress {
                steps,
                current,
                total,
                unit,
            } => self.said(steps, |running| {
                running.amounts.set(*current, *total, unit);
            }),
            Event::Output { steps, line } => self.said(steps, |running| {
                running.line.clone_from(line);
            }),
            Event::AttemptFailed {
                steps,
                message,
                retry_in_seconds,
            } => self.said(steps, |running| {
                running.line = again(message, *retry_in_seconds);
            }),
            Event::ChangeApplied { steps, summary, .. } => {
                self.clear(|running| running.steps == *steps && running.summary == *summary);
            }
            Event::StepFinished {
                step,
                outcome,
                why,
                seconds,
                ..
            } => self.step_finished(step, *outcome, why, *seconds)?,
            Event::Note { message } => {
                let head = format!("{} ", self.style.paint(Ink::Doubt, "note:"));
                self.print(&head, &printable(message))?;
            }
            Event::RebootRequired { .. } => {}
            Event::RunFinished { .. } => {
                self.clear(|_| true);
                if let Some(whole) = self.whole.take() {
                    whole.finish_and_clear();
                }
            }
        }
        Ok(())
    }
}

/// Replaces control characters, because they would move the cursor.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_control(c) { ' ' } else { c })
        .collect()
}

fn template(text: &str) -> io::Result<ProgressStyle> {
    ProgressStyle::with_template(text).map_err(io::Error::other)
}
