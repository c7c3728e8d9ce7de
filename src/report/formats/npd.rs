use std::io::{self, Write};

use super::{Alarm, line};
use crate::{engine::RunReport, exit::Exit, model::findings::Kind};

/// Writes the result as a plugin of the node problem detector (kubernetes/node-problem-detector,
/// docs/custom_plugin_monitor.md). The exit status is 0 without a problem, 1 with a problem, and 2 if the state is unknown. The
/// output contains only the root cause, because it becomes the message of the condition or event, truncated to
/// `max_output_length` (80 bytes by default). A warning is a problem only if `check` does not exit with 0, for example with
/// `--fail-on warn`.
///
/// # Errors
/// An error of the writer.
pub fn npd(to: &mut dyn Write, report: &RunReport) -> io::Result<Exit> {
    let alarm = Alarm::of(report);
    let status = match alarm {
        Alarm::Fine => 0,
        // With `--fail-on warn`, `check` does not exit with 0.
        Alarm::Warning => u8::from(report.exit != Exit::Ok),
        Alarm::Critical => 1,
        Alarm::Unknown => 2,
    };
    let causes = alarm.causes(&report.findings);
    let text = match causes.first() {
        _ if status == 0 => "no fault in GPUs, driver and runtimes".to_owned(),
        Some(finding) => {
            let kind = finding.kind().map_or("unknown", Kind::name);
            format!("{kind} {}: {}", finding.id, line(&finding.why))
        }
        None => "not everything could be examined".to_owned(),
    };
    writeln!(to, "{text}")?;
    to.flush()?;
    Ok(Exit::Plugin(status))
}

/// Writes the result if `check` itself failed.
///
/// # Errors
/// An error of the writer.
pub fn npd_failed(to: &mut dyn Write, why: &str) -> io::Result<Exit> {
    writeln!(to, "{}", line(why))?;
    to.flush()?;
    Ok(Exit::Plugin(2))
}
