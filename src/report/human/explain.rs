//! What is known of findings.

use std::io::{self, Write};

use crate::{
    model::findings::{FindingRow, Layer},
    report::{Style, style::Ink},
};

/// The names and titles of findings, by layer.
///
/// # Errors
/// When the target cannot be written.
pub fn findings(to: &mut dyn Write, rows: &[&FindingRow], style: Style) -> io::Result<()> {
    let width = rows.iter().map(|row| row.id.as_str().len()).max();
    let width = width.unwrap_or_default();
    for layer in Layer::ALL {
        writeln!(to, "{}", style.paint(Ink::Strong, layer.name()))?;
        for row in rows.iter().filter(|row| row.layer == layer) {
            let head = format!("  {:width$}  ", row.id.as_str());
            writeln!(to, "{}", style.hanging(&head, &row.title))?;
        }
    }
    Ok(())
}

/// Everything that the registry has about findings.
///
/// # Errors
/// When the target cannot be written.
pub fn explain(to: &mut dyn Write, rows: &[&FindingRow], style: Style) -> io::Result<()> {
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            writeln!(to)?;
        }
        writeln!(to, "{}", style.titled(&row.title, row.id.as_str()))?;
        let lines = [
            ("layer", Some(row.layer.name())),
            ("looks at", Some(row.looks.as_str())),
            ("fails", row.fails.as_deref()),
            ("warns", row.warns.as_deref()),
            ("remedy", Some(row.remedy.name())),
            ("next", row.next.as_deref()),
            ("source", row.source.as_deref()),
        ];
        for (name, text) in lines {
            if let Some(text) = text {
                let head = format!("  {}  ", style.column(Ink::Faint, name, 8));
                writeln!(to, "{}", style.hanging(&head, text))?;
            }
        }
    }
    Ok(())
}
