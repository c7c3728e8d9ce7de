//! Descriptions of findings, settings, errors and exit codes.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::{
    model::findings::{FindingRow, Layer, Remedy},
    report::{Style, style::Ink},
};

/// A description with a title and named lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topic {
    /// `finding`, `setting`, `xid` and so on.
    pub kind: &'static str,
    /// The name or number.
    pub id: String,
    /// The title.
    pub title: String,
    /// The lines, in order.
    #[serde(flatten, serialize_with = "as_map")]
    pub lines: Vec<(&'static str, String)>,
}

fn as_map<S: Serializer>(lines: &[(&'static str, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(lines.iter().map(|(name, text)| (name, text)))
}

impl From<&FindingRow> for Topic {
    fn from(row: &FindingRow) -> Self {
        let lines = [
            ("layer", Some(row.layer.name())),
            ("looks at", Some(row.looks.as_str())),
            ("fails", row.fails.as_deref()),
            ("warns", row.warns.as_deref()),
            ("remedy", Some(advice(row.remedy))),
            ("next", row.next.as_deref()),
            ("source", row.source.as_deref()),
        ];
        Self {
            kind: "finding",
            id: row.id.as_str().to_owned(),
            title: row.title.clone(),
            lines: (lines.into_iter())
                .filter_map(|(name, text)| Some((name, text?.to_owned())))
                .collect(),
        }
    }
}

/// The remedy of a class. `check` prints the exact command for the machine.
const fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::None => "no action is needed",
        Remedy::Reconfigure => {
            "run `gpu-bootstrap install`, or change the file or package that `check` reports"
        }
        Remedy::RestartService => "restart the service that `check` reports",
        Remedy::RestartApp => "restart the application that uses the GPU",
        Remedy::ResetGpu => {
            "drain the node, then run `nvidia-smi --gpu-reset` when the GPU is unused, or reboot"
        }
        Remedy::Reboot => "drain the node, then reboot it",
        Remedy::PowerCycle => {
            "drain the node, then switch the machine off and on; stop and start a cloud instance, which deletes its \
             local disks"
        }
        Remedy::Update => "install a newer version of the driver or package that `check` reports",
        Remedy::CheckMechanics => "check the power cables and the seat of the GPU",
        Remedy::Replace => "replace the GPU, or use another instance",
        Remedy::ContactSupport => "run `nvidia-bug-report.sh`, and contact the hardware vendor",
    }
}

/// Writes the names and titles of findings, by layer.
///
/// # Errors
/// If the target cannot be written.
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

/// Writes descriptions.
///
/// # Errors
/// If the target cannot be written.
pub fn explain(to: &mut dyn Write, topics: &[Topic], style: Style) -> io::Result<()> {
    for (at, topic) in topics.iter().enumerate() {
        if at > 0 {
            writeln!(to)?;
        }
        writeln!(
            to,
            "{}",
            style.hanging("", &style.titled(&topic.title, &topic.id))
        )?;
        for (name, text) in &topic.lines {
            let head = format!("  {}  ", style.column(Ink::Faint, name, 8));
            writeln!(to, "{}", style.hanging(&head, text))?;
        }
    }
    Ok(())
}
