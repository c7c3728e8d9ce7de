//! Colour. It never carries meaning: the words do.

use crate::{check::Verdict, event::Outcome};

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether the writer is a terminal and colour is not turned off.
    pub colour: bool,
}

/// The meaning of a piece of text, with its ECMA-48 colour number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Good,
    Bad,
    Doubt,
    Hint,
    Faint,
    Strong,
}

impl Style {
    /// With colour, or without.
    #[must_use]
    pub const fn new(colour: bool) -> Self {
        Self { colour }
    }

    pub(super) fn paint(self, ink: Ink, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Good => "32",
            Ink::Bad => "31;1",
            Ink::Doubt => "33",
            Ink::Hint => "36",
            Ink::Faint => "2",
            Ink::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A word in a column: padded first, because colour codes have no width.
    pub(super) fn column(self, ink: Ink, text: &str, width: usize) -> String {
        self.paint(ink, &format!("{text:<width$}"))
    }
}

pub(super) const fn of_outcome(outcome: Outcome) -> Ink {
    match outcome {
        Outcome::Satisfied | Outcome::Changed => Ink::Good,
        Outcome::WouldChange | Outcome::AwaitingBoot => Ink::Doubt,
        Outcome::Blocked | Outcome::Failed => Ink::Bad,
        Outcome::NotApplicable | Outcome::NotRun => Ink::Faint,
    }
}

pub(super) const fn of_verdict(verdict: Verdict) -> Ink {
    match verdict {
        Verdict::Pass => Ink::Good,
        Verdict::Warn | Verdict::Unknown => Ink::Doubt,
        Verdict::Fail => Ink::Bad,
        Verdict::Skip => Ink::Faint,
    }
}

/// The name of a verdict.
pub(super) const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
        Verdict::Skip => "skip",
        Verdict::Unknown => "unknown",
    }
}

/// Text with every further line indented like the first.
pub(super) fn indented(text: &str, by: usize) -> String {
    let gap = " ".repeat(by);
    text.lines()
        .map(|line| format!("{gap}{line}"))
        .collect::<Vec<_>>()
        .join("\n")
}
