//! Finds the line of a row and a key in a matrix, by the spans of the TOML parser.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A matrix as the parser read it: every key and value with its place in the text.
pub(super) struct Spans<'a> {
    text: &'a str,
    root: DeTable<'a>,
}

impl<'a> Spans<'a> {
    /// Reads the text as far as it is TOML.
    pub(super) fn new(text: &'a str) -> Self {
        let (root, _) = DeTable::parse_recoverable(text);
        Self {
            text,
            root: root.into_inner(),
        }
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, byte: usize) -> usize {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// The line of a key, from 1. `row` is a table and the place of the row in it; without a row
    /// the key stands before the first table. A row that lacks the key has the line of its header.
    pub(super) fn line_of(&self, row: Option<(&str, usize)>, key: &str) -> usize {
        let span = match row {
            None => span_of(&self.root, key),
            Some((table, index)) => value(&self.root, table).and_then(|rows| {
                let row = match rows.get_ref() {
                    DeValue::Array(rows) => rows.get(index)?,
                    _ => rows,
                };
                let of_key = row.get_ref().as_table().and_then(|row| span_of(row, key));
                Some(of_key.unwrap_or_else(|| row.span()))
            }),
        };
        self.line(span.map_or(0, |span| span.start))
    }

    /// The innermost key whose name or value holds a byte.
    pub(super) fn key_at(&self, byte: usize) -> Option<&str> {
        innermost(&self.root, byte)
    }
}

fn entry<'t, 'a>(
    table: &'t DeTable<'a>,
    key: &str,
) -> Option<(
    &'t Spanned<toml::de::DeString<'a>>,
    &'t Spanned<DeValue<'a>>,
)> {
    table.iter().find(|(name, _)| name.get_ref() == key)
}

fn span_of(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    entry(table, key).map(|(name, _)| name.span())
}

fn value<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<&'t Spanned<DeValue<'a>>> {
    entry(table, key).map(|(_, value)| value)
}

fn innermost<'t>(table: &'t DeTable<'_>, byte: usize) -> Option<&'t str> {
    table.iter().find_map(|(name, value)| {
        let own = || {
            (name.span().contains(&byte) || value.span().contains(&byte)).then(|| &**name.get_ref())
        };
        within(value, byte, name.get_ref()).or_else(own)
    })
}

/// The innermost key in a value; `name` is the key of the value itself.
fn within<'t>(value: &'t Spanned<DeValue<'_>>, byte: usize, name: &'t str) -> Option<&'t str> {
    match value.get_ref() {
        DeValue::Table(table) => innermost(table, byte),
        DeValue::Array(items) => items.iter().find_map(|item| {
            within(item, byte, name).or_else(|| item.span().contains(&byte).then_some(name))
        }),
        _ => None,
    }
}
