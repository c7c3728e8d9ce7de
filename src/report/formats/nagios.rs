use std::io::{self, Write};

use super::{Alarm, line};
use crate::{
    check::Finding, engine::RunReport, exit::Exit, model::findings::Kind,
    report::document::Verdicts,
};

/// Writes the result in the format of plugins for Nagios, Icinga and Sensu (Monitoring Plugins Development Guidelines). The
/// first line has the state, the root cause, and the counts as performance data. The other causes and the remedies follow. The
/// exit status is 0, 1, 2 or 3.
///
/// # Errors
/// An error of the writer.
pub fn nagios(to: &mut dyn Write, report: &RunReport) -> io::Result<Exit> {
    let alarm = Alarm::of(report);
    let (word, status) = match alarm {
        Alarm::Fine => ("OK", 0),
        Alarm::Warning => ("WARNING", 1),
        Alarm::Critical => ("CRITICAL", 2),
        Alarm::Unknown => ("UNKNOWN", 3),
    };
    let count = Verdicts::of(&report.findings);
    let causes = alarm.causes(&report.findings);
    let first = match causes.first() {
        Some(finding) => told(finding),
        None if alarm == Alarm::Unknown => "not everything could be examined".to_owned(),
        None if count.pass == 1 => "1 finding passes".to_owned(),
        None => format!("{} findings pass", count.pass),
    };
    writeln!(
        to,
        "GPU {word} - {first} | fail={} warn={} unknown={} pass={} faults={} risks={} differences={}",
        count.fail,
        count.warn,
        count.unknown,
        count.pass,
        count.faults,
        count.risks,
        count.differences
    )?;
    for finding in causes.iter().skip(1) {
        writeln!(to, "{}", told(finding))?;
    }
    for finding in &causes {
        if let Some(command) = &finding.command {
            writeln!(to, "command for {}: {}", finding.id, plain(command))?;
        } else if let Some(remedy) = &finding.remedy {
            writeln!(to, "remedy of {}: {}", finding.id, plain(remedy))?;
        }
    }
    to.flush()?;
    Ok(Exit::Plugin(status))
}

/// Writes the result if `check` itself failed. The state is UNKNOWN, as the guidelines require for plugin errors.
///
/// # Errors
/// An error of the writer.
pub fn nagios_failed(to: &mut dyn Write, why: &str) -> io::Result<Exit> {
    writeln!(to, "GPU UNKNOWN - {}", plain(why))?;
    to.flush()?;
    Ok(Exit::Plugin(3))
}

fn told(finding: &Finding) -> String {
    let kind = finding.kind().map_or("unknown", Kind::name);
    format!("{kind} {}: {}", finding.id, plain(&finding.why))
}

/// Joins text to one line and replaces vertical bars, because a vertical bar starts the performance data.
fn plain(text: &str) -> String {
    line(text).replace('|', "/")
}
