//! The result of `probe`.

use std::io::{self, Write};

use crate::{
    host::CudaPeer,
    report::{Style, style::Ink, words::duration},
    tools::probe::{LayerStatus, ProbeDocument, ProbedDevice, label},
};

/// The width of the column of layers: the longest is `instance type`.
const LAYERS: usize = 15;

/// Writes the verdict, the layers, and a table of the devices.
///
/// # Errors
/// When the writer fails.
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
    if document.devices.iter().any(|device| device.work.is_some()) {
        writeln!(to)?;
        table(to, &document.devices)?;
    }
    for device in &document.devices {
        if let Some(fault) = &device.fault {
            let head = format!("\n{}: ", style.paint(Ink::Strong, &label(device)));
            writeln!(to, "{}", style.hanging(&head, fault))?;
        }
    }
    if let Some(line) = peers(&document.peers) {
        writeln!(to, "\n{}", style.hanging("", &line))?;
    }
    writeln!(to, "\ntook {}", duration(document.seconds))
}

/// The figures, without a verdict: copies in GB/s, highest clocks in MHz.
fn table(to: &mut dyn Write, devices: &[ProbedDevice]) -> io::Result<()> {
    let mut rows = vec![
        ["device", "to", "from", "within", "clock", "memory", "name"].map(str::to_owned),
        ["", "GB/s", "GB/s", "GB/s", "MHz", "MHz", ""].map(str::to_owned),
    ];
    for device in devices {
        let Some(work) = &device.work else { continue };
        let place = match device.mig_index {
            None => device.index.to_string(),
            Some(part) => format!("{}:{part}", device.index),
        };
        let clock =
            |clock: Option<u32>| clock.map_or_else(|| "-".to_owned(), |clock| clock.to_string());
        rows.push([
            place,
            format!("{:.1}", work.to_device_gb_s),
            format!("{:.1}", work.from_device_gb_s),
            format!("{:.0}", work.on_device_gb_s),
            clock(work.clock_mhz),
            clock(work.memory_clock_mhz),
            work.name.clone(),
        ]);
    }
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells: Vec<String> = (row.iter().zip(widths).enumerate())
            .map(|(at, (cell, width))| match at {
                0 | 6 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        writeln!(to, "  {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// The slowest and the fastest way between two GPUs.
fn peers(peers: &[CudaPeer]) -> Option<String> {
    let mut figures: Vec<f64> = peers.iter().filter_map(|peer| peer.gb_s).collect();
    figures.sort_by(f64::total_cmp);
    let (slowest, fastest) = (figures.first()?, figures.last()?);
    Some(format!(
        "between GPUs: {} of {} ways are direct, {slowest:.1} to {fastest:.1} GB/s",
        figures.len(),
        peers.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::probe::{LayerFault, Layers, ProbeLayer};

    fn shown(document: &ProbeDocument) -> String {
        let mut text = Vec::new();
        probe(&mut text, document, Style::default()).expect("memory takes every text");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn the_first_line_names_the_layer_and_the_second_what_to_do() {
        let mut layers = Layers::default();
        layers.pass(ProbeLayer::Pci, "2 GPUs");
        layers.fail(LayerFault {
            layer: ProbeLayer::Driver,
            why: "no driver is bound to GPU 0000:18:00.0".into(),
            remedy: "run `dmesg`".into(),
        });
        let text = shown(&layers.document());
        let lines: Vec<&str> = text.lines().collect();
        let first = "failed at the layer driver: no driver is bound to GPU 0000:18:00.0";
        assert_eq!(lines[..2], [first, "  fix: run `dmesg`"]);
        assert_eq!(lines[3], "  PCI            pass         2 GPUs");
        assert_eq!(
            lines[5],
            "  device nodes   not reached  a lower layer fails"
        );
    }

    #[test]
    fn the_slowest_and_the_fastest_way_between_gpus_are_told() {
        let peer = |gb_s| CudaPeer {
            from: "GPU-a".into(),
            to: "GPU-b".into(),
            gb_s,
        };
        assert_eq!(peers(&[peer(None)]), None);
        let all = [peer(Some(380.25)), peer(None), peer(Some(12.0))];
        let line = "between GPUs: 2 of 3 ways are direct, 12.0 to 380.2 GB/s";
        assert_eq!(peers(&all).as_deref(), Some(line));
    }
}
