use std::io::{self, Write};

use serde_json::json;

use super::{line, values};
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    report::style::word,
};

/// Writes TAP (testanything.org) with a line for each finding, and a YAML block for each problem. The values in the block are
/// JSON, which is valid YAML. The version is 13, because Perl's `TAP::Parser` rejects version 14.
///
/// # Errors
/// An error of the writer.
pub fn tap(to: &mut dyn Write, report: &RunReport) -> io::Result<()> {
    writeln!(to, "TAP version 13\n1..{}", report.findings.len())?;
    for (at, finding) in report.findings.iter().enumerate() {
        let word = match finding.status {
            Verdict::Fail => "not ok",
            _ => "ok",
        };
        let skipped = match finding.status {
            Verdict::Skip => format!(" # SKIP {}", escaped(&finding.why)),
            Verdict::Unknown => format!(" # SKIP unknown: {}", escaped(&finding.why)),
            _ => String::new(),
        };
        let id = &finding.id;
        writeln!(
            to,
            "{word} {} - {id}: {}{skipped}",
            at + 1,
            escaped(&finding.title)
        )?;
        if matches!(finding.status, Verdict::Fail | Verdict::Warn) {
            block(to, finding)?;
        }
    }
    to.flush()
}

/// Escapes `#`, which starts a directive, and backslashes.
fn escaped(text: &str) -> String {
    line(text).replace('\\', "\\\\").replace('#', "\\#")
}

fn block(to: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    writeln!(to, "  ---")?;
    writeln!(to, "  message: {}", json!(finding.why))?;
    writeln!(to, "  severity: {}", word(finding.status))?;
    for (name, value) in values(finding) {
        writeln!(to, "  {name}: {}", json!(value))?;
    }
    if let Some(cause) = &finding.because {
        writeln!(to, "  cause: {cause}")?;
    }
    writeln!(to, "  ...")
}
