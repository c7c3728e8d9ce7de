use std::io::{self, Write};

use super::{Alarm, line};
use crate::{engine::RunReport, exit::Exit, model::findings::Kind};

/// The answer of a plugin of the node problem detector (kubernetes/node-problem-detector, docs/custom_plugin_monitor.md): the
/// status is 0 if there is no problem, 1 if there is one, 2 if that is unknown; the output becomes the message of the condition
/// or event, and is cut at `max_output_length`, 80 bytes by default. So the root cause is the whole output. A warning is no
/// problem of the node, but with `--fail-on warn`.
///
/// # Errors
/// An error of the writer.
pub fn npd(to: &mut dyn Write, report: &RunReport) -> io::Result<Exit> {
    let alarm = Alarm::of(report);
    let status = match alarm {
        Alarm::Fine => 0,
        // A warning is a problem for whoever asks for that.
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

/// The answer where `check` has failed to look.
///
/// # Errors
/// An error of the writer.
pub fn npd_failed(to: &mut dyn Write, why: &str) -> io::Result<Exit> {
    writeln!(to, "{}", line(why))?;
    to.flush()?;
    Ok(Exit::Plugin(2))
}
