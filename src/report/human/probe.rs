//! The result of `probe`.

use std::io::{self, Write};

use crate::{
    report::{Style, messages::duration, style::Ink},
    tools::probe::{LayerStatus, ProbeDocument, label},
};

/// Width of the layer column. The longest layer is `instance type`.
const LAYERS: usize = 15;

/// Writes the verdict, the layers, and each device with its name or its error.
///
/// # Errors
/// If the writer fails.
pub fn probe(to: &mut dyn Write, document: &ProbeDocument, style: Style) -> io::Result<()> {
    let headline = match document.failed_layer {
        None => format!("{}: {}", style.paint(Ink::Good, "passed"), document.why),
        Some(layer) => {
            let word = style.paint(Ink::Bad, "failed");
            format!("{word} at the layer {layer}: {}", document.why)
        }
    };
    writeln!(to, "{}", style.hanging("", &headline))?;
    if let Some(remedy) = &document.remedy {
        let head = format!("  {} ", style.paint(Ink::Hint, "fix:"));
        writeln!(to, "{}", style.hanging(&head, remedy))?;
    }
    writeln!(to)?;
    for result in &document.layers {
        let (ink, word) = match result.status {
            LayerStatus::Pass => (Ink::Good, "pass"),
            LayerStatus::Fail => (Ink::Bad, "fail"),
            LayerStatus::Skip => (Ink::Faint, "skip"),
            LayerStatus::NotReached => (Ink::Faint, "not reached"),
        };
        let layer = format!("{:<LAYERS$}", result.layer.to_string());
        let head = format!("  {layer}{}", style.column(ink, word, 13));
        writeln!(to, "{}", style.hanging(&head, &result.why))?;
    }
    if !document.devices.is_empty() {
        writeln!(to)?;
    }
    for device in &document.devices {
        let said = match (&device.work, &device.fault) {
            (Some(work), _) => format!("{} computed in {}", work.name, duration(work.seconds)),
            (None, Some(fault)) => fault.clone(),
            (None, None) => continue,
        };
        let head = format!("  {}: ", style.paint(Ink::Strong, &label(device)));
        writeln!(to, "{}", style.hanging(&head, &said))?;
    }
    writeln!(to, "\ntook {}", duration(document.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::probe::{LayerFault, LayerResults, ProbeLayer};

    fn shown(document: &ProbeDocument) -> String {
        let mut text = Vec::new();
        probe(&mut text, document, Style::default()).expect("memory takes every text");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn failed_layer_is_followed_by_its_remedy() {
        let mut layers = LayerResults::default();
        layers.pass(ProbeLayer::Pci, "2 GPUs");
        let why = "no driver is bound to GPU 0000:18:00.0";
        layers.fail(LayerFault::new(ProbeLayer::Driver, why, "run `dmesg`"));
        let text = shown(&layers.document());
        let lines: Vec<&str> = text.lines().collect();
        let first = "failed at the layer driver: no driver is bound to GPU 0000:18:00.0";
        assert_eq!(lines[..2], [first, "  fix: run `dmesg`"]);
        assert_eq!(lines[3], "  PCI            pass         2 GPUs");
        assert_eq!(
            lines[5],
            "  device nodes   not reached  a lower layer failed"
        );
    }
}
