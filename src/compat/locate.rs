//! Finds the line of a row and a key in a matrix, for messages.

use std::ops::Range;

use crate::compat::load::Problem;
use crate::model::text::nearest;

/// The text of a matrix with the lines of its tables.
pub(super) struct Locator<'a> {
    lines: Vec<&'a str>,
    text: &'a str,
}

impl<'a> Locator<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            lines: text.lines().collect(),
            text,
        }
    }

    /// The line of a key before the first table, from 1.
    pub(super) fn top(&self, key: &str) -> usize {
        self.key_below(0, key).unwrap_or(1)
    }

    /// The line of a key in the `index`th row of a table, or of the row's header, from 1.
    pub(super) fn row(&self, table: &str, index: usize, key: &str) -> usize {
        let (many, one) = (format!("[[{table}]]"), format!("[{table}]"));
        let header = self
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| {
                [&many, &one]
                    .iter()
                    .any(|h| line.trim().starts_with(h.as_str()))
            })
            .nth(index)
            .map_or(0, |(number, _)| number);
        self.key_below(header + 1, key).unwrap_or(header + 1)
    }

    /// What the TOML reader said, with the nearest valid key where it knows no such key.
    pub(super) fn syntax(&self, message: &str, span: Option<Range<usize>>) -> Problem {
        let start = span.map_or(0, |span| span.start.min(self.text.len()));
        let line = self.text.as_bytes()[..start]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let key = self
            .lines
            .get(line)
            .and_then(|line| line.split(['=', '#']).next())
            .map_or("", str::trim)
            .trim_matches(['[', ']'])
            .to_owned();
        let mut words = message.split('`').skip(1).step_by(2);
        let remedy =
            if message.starts_with("unknown field") || message.starts_with("unknown variant") {
                let unknown = words.next().unwrap_or_default();
                let near = nearest(unknown, words);
                near.map_or_else(
                    || "take it out".to_owned(),
                    |near| format!("perhaps `{near}`"),
                )
            } else if message.starts_with("missing field") {
                "add the key to this row".to_owned()
            } else {
                "mend the value; CONTRIBUTING.md describes the rows".to_owned()
            };
        let what = message.lines().collect::<Vec<_>>().join(" ");
        Problem {
            line: line + 1,
            key,
            what,
            remedy,
        }
    }

    /// The line of a key from a line on, up to the next table; counted from 1.
    fn key_below(&self, from: usize, key: &str) -> Option<usize> {
        self.lines
            .iter()
            .enumerate()
            .skip(from)
            .take_while(|(_, line)| !line.starts_with('['))
            .find(|(_, line)| {
                line.split('=')
                    .next()
                    .is_some_and(|word| word.trim() == key)
            })
            .map(|(number, _)| number + 1)
    }
}
