//! Formats the error with which a command ends.

use std::io::{self, Write};

use super::Style;
use super::style::Ink;
use crate::error::{Report, causes, one_line};

/// Writes an error with its causes and its hint, without color.
///
/// # Errors
/// An error of the writer.
pub fn write(to: &mut dyn Write, error: &dyn Report) -> io::Result<()> {
    styled(to, error, Style::default())
}

/// Like [`write()`], but in color if the style is colored.
///
/// # Errors
/// An error of the writer.
pub fn styled(to: &mut dyn Write, error: &dyn Report, style: Style) -> io::Result<()> {
    for (at, part) in error.parts().into_iter().enumerate() {
        if at > 0 {
            writeln!(to)?;
        }
        styled(to, part, style)?;
    }
    if !error.parts().is_empty() {
        return Ok(());
    }
    block(
        to,
        style,
        &failed_to(&error.to_string()),
        &causes(error),
        error.hint().as_deref(),
    )
}

/// An error and its causes on one line, without the hint. If there are several errors, only the first.
pub fn in_one_line(error: &dyn Report) -> String {
    match error.parts().into_iter().next() {
        Some(first) => in_one_line(first),
        None => failed_to(&one_line(error)),
    }
}

/// Adds "failed to ". Error messages are fragments that complete this phrase.
fn failed_to(message: &str) -> String {
    if message.starts_with("failed to ") {
        message.to_owned()
    } else {
        format!("failed to {message}")
    }
}

/// Writes the lines `error:`, `caused by:` and `hint:`.
pub(super) fn block(
    to: &mut dyn Write,
    style: Style,
    message: &str,
    causes: &[String],
    hint: Option<&str>,
) -> io::Result<()> {
    let head = format!("{} ", style.paint(Ink::Bad, "error:"));
    writeln!(to, "{}", style.hanging(&head, message))?;
    for cause in causes {
        // A cause may be the output of a tool. `hanging` aligns its further lines with the first one.
        let head = format!("  {} ", style.paint(Ink::Bad, "caused by:"));
        writeln!(to, "{}", style.hanging(&head, cause))?;
    }
    if let Some(hint) = hint {
        let head = format!("{} ", style.paint(Ink::Hint, "hint:"));
        writeln!(to, "\n{}", style.advice(&head, hint))?;
    }
    to.flush()
}
