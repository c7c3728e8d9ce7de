//! Text layout: width, color and verbosity. Color only supports the text and never replaces a word.

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm, core::display_width, wrap};

use crate::{check::Verdict, event::Outcome, model::text::colour_mark};

/// The default width if the terminal does not report one.
pub const WIDTH: usize = 80;

/// The width of a line that is not wrapped.
pub const UNWRAPPED: usize = usize::MAX;

/// Minimum and maximum width of readable text.
const READABLE: (usize, usize) = (40, 120);

/// The longest code span that is kept on one line.
const SPAN: usize = 40;

/// The lines of a headline.
const HEADLINE: usize = 2;

/// A no-break space.
const GLUE: char = '\u{a0}';

/// How text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether the writer is a terminal and color is not disabled.
    pub colour: bool,
    /// Line width in columns.
    pub width: usize,
    /// Whether to show everything, or only changes and problems.
    pub verbose: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            colour: false,
            width: WIDTH,
            verbose: false,
        }
    }
}

/// The meaning of a piece of text.
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
    /// Creates a style with or without color.
    pub fn new(colour: bool) -> Self {
        Self {
            colour,
            ..Self::default()
        }
    }

    /// Sets the number of columns of the terminal, or [`UNWRAPPED`].
    #[must_use]
    pub fn columns(self, width: usize) -> Self {
        let width = match width {
            UNWRAPPED => UNWRAPPED,
            columns => columns.clamp(READABLE.0, READABLE.1),
        };
        Self { width, ..self }
    }

    /// Sets whether everything is shown.
    #[must_use]
    pub const fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
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
        // The writer replaces the marks by escape codes, and removes all other escape codes.
        let mark = colour_mark();
        format!("{mark}{code}m{text}{mark}0m")
    }

    /// A word in a column. It is padded before painting, because the padding would count the color codes as characters.
    pub(super) fn column(self, ink: Ink, text: &str, width: usize) -> String {
        self.paint(ink, &format!("{text:<width$}"))
    }

    /// A title, followed by the ID if they differ.
    pub(super) fn titled(self, title: &str, id: &str) -> String {
        let name = self.paint(Ink::Strong, title);
        if title == id {
            name
        } else {
            format!("{name} {}", self.paint(Ink::Faint, &format!("({id})")))
        }
    }

    /// Text with a hanging indent: further lines are indented by the width of the head.
    pub fn hanging(self, head: &str, text: &str) -> String {
        let gap = " ".repeat(display_width(head));
        let glued = glued(text.trim_end());
        let mut lines = glued.lines().peekable();
        if lines.peek().is_none() {
            return head.trim_end().to_owned();
        }
        let wrapped: Vec<String> = lines
            .enumerate()
            .flat_map(|(at, line)| {
                let options = Options::new(self.width)
                    .initial_indent(if at == 0 { head } else { &gap })
                    .subsequent_indent(&gap)
                    .break_words(false)
                    .word_separator(WordSeparator::AsciiSpace)
                    .word_splitter(WordSplitter::NoHyphenation)
                    .wrap_algorithm(WrapAlgorithm::FirstFit);
                wrap(line, options)
                    .into_iter()
                    .map(|line| line.replace(GLUE, " "))
                    .collect::<Vec<_>>()
            })
            .collect();
        wrapped.join("\n")
    }

    /// Text with all lines indented.
    pub(super) fn indented(self, by: usize, text: &str) -> String {
        self.hanging(&" ".repeat(by), text)
    }

    /// A remedy or a hint. Each command to run ("run `…`") is printed on a separate line, so that it can be copied.
    pub(super) fn advice(self, head: &str, text: &str) -> String {
        let gap = " ".repeat(display_width(head));
        let mut head = head.to_owned();
        let mut lines = Vec::new();
        let mut rest = text;
        while let Some((before, command, after)) = next_command(rest) {
            lines.push(self.hanging(&head, &format!("{before}run")));
            lines.push(format!("{gap}  {}", self.paint(Ink::Strong, command)));
            head.clone_from(&gap);
            rest = after.trim_start_matches([' ', ',', ';', ':', '.']);
        }
        if !rest.is_empty() {
            lines.push(self.hanging(&head, rest));
        }
        lines.join("\n")
    }

    /// Shortens text to one line after a head. Adds `…` if a clause was shortened.
    pub(super) fn clause(self, head: &str, text: &str) -> String {
        let first = text.lines().next().unwrap_or_default();
        let columns = self.width.saturating_sub(display_width(head));
        if display_width(first) <= columns {
            return first.to_owned();
        }
        let clause = first.split("; ").next().unwrap_or_default();
        if display_width(clause) <= columns {
            return clause.to_owned();
        }
        let mut short = String::new();
        for word in clause.split(' ') {
            if display_width(&short) + display_width(word) + 2 > columns {
                break;
            }
            short.push_str(word);
            short.push(' ');
        }
        // The first word is wider than the line.
        if short.is_empty() {
            for letter in clause.chars() {
                let longer = format!("{short}{letter}");
                if display_width(&longer) >= columns {
                    break;
                }
                short = longer;
            }
        }
        format!("{}…", short.trim_end())
    }

    /// Whether text fits into the rest of a line.
    pub(super) fn fits_line(self, around: &str, text: &str) -> bool {
        display_width(around) + display_width(text) <= self.width
    }

    /// Whether text fits into a headline.
    pub(super) fn fits(self, head: &str, text: &str) -> bool {
        self.hanging("", &format!("{head}{text}")).lines().count() <= HEADLINE
    }

    /// The clauses of a text that fit into a headline, and whether the text is complete. The first clause is always included and
    /// never shortened.
    pub(super) fn clauses(self, head: &str, text: &str) -> (String, bool) {
        if self.fits(head, text) {
            return (text.to_owned(), true);
        }
        let first = text.lines().next().unwrap_or_default();
        let mut end = first.find("; ").unwrap_or(first.len());
        for (at, _) in first.match_indices("; ").skip(1) {
            if self.fits(head, &first[..at]) {
                end = at;
            }
        }
        (first[..end].to_owned(), end == text.len())
    }
}

/// The text before "run `…`", the command, and the text after it.
fn next_command(text: &str) -> Option<(&str, &str, &str)> {
    const RUN: &str = "run `";
    let at = text
        .match_indices(RUN)
        .map(|(at, _)| at)
        .find(|at| *at == 0 || text[..*at].ends_with(' '))?;
    let (command, after) = text[at + RUN.len()..].split_once('`')?;
    Some((&text[..at], command, after))
}

/// Replaces the spaces in short code spans by no-break spaces.
fn glued(text: &str) -> String {
    let mut parts = text.split('`');
    let mut glued = parts.next().unwrap_or_default().to_owned();
    for (at, part) in parts.enumerate() {
        glued.push('`');
        let code = at % 2 == 0 && part.chars().count() <= SPAN && !part.contains('\n');
        if code {
            glued.push_str(&part.replace(' ', &GLUE.to_string()));
        } else {
            glued.push_str(part);
        }
    }
    glued
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

#[cfg(test)]
mod tests {
    use super::{Style, UNWRAPPED};

    #[test]
    fn wrapped_text_has_a_hanging_indent() {
        let narrow = Style::default().columns(40);
        assert_eq!(
            narrow.hanging("fail  ", "one two three four five six seven eight\nnine"),
            "fail  one two three four five six seven\n      eight\n      nine"
        );
        assert_eq!(narrow.hanging("note: ", ""), "note:");
    }

    #[test]
    fn log_line_is_not_wrapped() {
        let log = Style::default().columns(UNWRAPPED);
        let long = "word ".repeat(400);
        assert_eq!(log.hanging("fail  ", &long).lines().count(), 1);
        assert_eq!(log.clause("no: ", long.trim_end()), long.trim_end());
    }

    #[test]
    fn color_codes_have_no_width() {
        let (plain, coloured) = (Style::default(), Style::new(true));
        let head = coloured.column(super::Ink::Bad, "fail", 6);
        let text = "word ".repeat(30);
        let (with, without) = (
            coloured.hanging(&head, &text),
            plain.hanging("fail  ", &text),
        );
        assert_eq!(with.lines().count(), without.lines().count());
        assert_eq!(with.lines().nth(1), without.lines().nth(1));
    }

    #[test]
    fn short_command_is_not_broken() {
        let narrow = Style::default().columns(40);
        assert_eq!(
            narrow.hanging("", "the command to run first is `apt-get update`, once"),
            "the command to run first is\n`apt-get update`, once"
        );
    }

    #[test]
    fn each_command_in_a_hint_has_its_own_line() {
        let text = "run `a b`: it does c; if that fails, run `d | e` to see why";
        assert_eq!(
            Style::default().advice("hint: ", text),
            "hint: run\n        a b\n      it does c; if that fails, run\n        d | e\n      to see why"
        );
        assert_eq!(Style::default().advice("hint: ", "wait"), "hint: wait");
    }

    #[test]
    fn long_reason_ends_after_a_whole_word() {
        let narrow = Style::default().columns(40);
        assert_eq!(narrow.clause("no: ", "short"), "short");
        assert_eq!(
            narrow.clause("no: ", "one; and another reason that is much longer"),
            "one"
        );
        assert_eq!(
            narrow.clause("no: ", "a reason that is longer than the line has columns"),
            "a reason that is longer than the…"
        );
        // A word that is wider than the line is cut.
        let path = narrow.clause(
            "no: ",
            "`/etc/apt/sources.list.d/graphics-drivers.list` has an error",
        );
        assert_eq!(path, "`/etc/apt/sources.list.d/graphics-d…");
        assert_eq!(path.chars().count(), 36);
    }

    #[test]
    fn headline_has_complete_clauses_on_two_lines() {
        let narrow = Style::default().columns(40);
        let long = "the first clause; the second clause; and a third one that no longer fits in it";
        assert_eq!(
            narrow.clauses("fault: ", long),
            ("the first clause; the second clause".to_owned(), false)
        );
        let one = "word ".repeat(40);
        assert_eq!(
            narrow.clauses("fault: ", one.trim_end()),
            (one.trim_end().to_owned(), true)
        );
    }
}
