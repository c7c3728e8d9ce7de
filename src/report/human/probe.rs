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
