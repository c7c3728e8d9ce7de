use std::io::{self, Write};

use crate::{
    engine::RunReport,
    exit::Exit,
    model::findings::{Kind, Layer},
    report::{document::TOOL, style::word},
};

/// Writes metrics in the Prometheus text format for the textfile collector of node_exporter. The collector requires constant
/// help and type lines, no timestamps, and a newline at the end. Write the metrics to a temporary file in the same directory,
/// then rename it.
///
/// # Errors
/// An error of the writer.
pub fn prometheus(
    to: &mut dyn Write,
    report: &RunReport,
    gpus: usize,
    to_ready: Option<f64>,
) -> io::Result<()> {
    let mut metric = |name: &str, help: &str, lines: &[(String, f64)]| -> io::Result<()> {
        writeln!(to, "# HELP gpu_bootstrap_{name} {help}")?;
        writeln!(to, "# TYPE gpu_bootstrap_{name} gauge")?;
        for (labels, value) in lines {
            writeln!(to, "gpu_bootstrap_{name}{labels} {value}")?;
        }
        Ok(())
    };
    let one = |value: f64| vec![(String::new(), value)];
    metric(
        "build_info",
        "The version of gpu-bootstrap that wrote these metrics.",
        &[(format!("{{version=\"{}\"}}", TOOL.version), 1.0)],
    )?;
    metric(
        "check_success",
        "1 if the last check exited with status 0.",
        &one(f64::from(u8::from(report.exit == Exit::Ok))),
    )?;
    metric(
        "check_duration_seconds",
        "Duration of the last check.",
        &one(report.seconds),
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a machine has few GPUs")]
    metric("gpus", "NVIDIA GPUs on the PCI bus.", &one(gpus as f64))?;
    if let Some(seconds) = to_ready {
        metric(
            "time_to_ready_seconds",
            "Duration of the last installation that changed something, including reboots, if it succeeded.",
            &one(seconds),
        )?;
    }
    // IDs of findings and names of layers need no escaping in labels.
    let findings: Vec<(String, f64)> = (report.findings.iter())
        .map(|finding| {
            let (id, layer) = (&finding.id, Layer::of(&finding.id).name());
            let status = word(finding.status);
            let kind = finding.kind().map_or("none", Kind::name);
            let labels =
                format!("{{id=\"{id}\",layer=\"{layer}\",kind=\"{kind}\",status=\"{status}\"}}");
            (labels, 1.0)
        })
        .collect();
    metric(
        "finding",
        "1 for each finding of the last check, with its status (pass, warn, fail, skip or unknown) and its kind (fault, risk, difference or none).",
        &findings,
    )?;
    to.flush()
}
