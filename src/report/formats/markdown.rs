use std::io::{self, Write};

use super::{Alarm, causes_first, line, values, verdict_of};
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    model::findings::Kind,
    report::document::{MachineSummary, TOOL, Verdicts},
};

/// Writes Markdown for a ticket, with the verdict, the machine, and each problem with its remedy.
///
/// # Errors
/// An error of the writer.
pub fn markdown(
    to: &mut dyn Write,
    report: &RunReport,
    machine: &MachineSummary,
) -> io::Result<()> {
    let alarm = Alarm::of(report);
    let verdict = match alarm {
        Alarm::Fine => "no fault found",
        Alarm::Warning => "no fault found, with warnings",
        Alarm::Critical => verdict_of(report),
        Alarm::Unknown => "not everything could be examined",
    };
    writeln!(to, "## GPU check: {verdict}\n")?;
    let gpus = machine.gpus.to_string();
    let version = format!("{} {}", TOOL.name, TOOL.version);
    for (name, value) in [
        ("System", machine.os.as_ref()),
        ("Kernel", machine.kernel.as_ref()),
        ("Cloud", machine.cloud.as_ref()),
        ("Instance type", machine.instance_type.as_ref()),
        ("Instance", machine.instance_id.as_ref()),
        ("GPUs on the bus", Some(&gpus)),
        ("Checked by", Some(&version)),
    ] {
        if let Some(value) = value {
            writeln!(to, "- {name}: {}", escaped(value))?;
        }
    }
    type Belongs = fn(&Finding) -> bool;
    let sections: [(&str, Belongs); 4] = [
        ("Faults", |one| one.is(Kind::Fault)),
        ("Risks", |one| one.is(Kind::Risk)),
        ("Differences from the settings", |one| {
            one.is(Kind::Difference)
        }),
        ("Unknown", |one| one.status == Verdict::Unknown),
    ];
    for (title, belongs) in sections {
        let mut findings = (causes_first(&report.findings).into_iter())
            .filter(|finding| belongs(finding))
            .peekable();
        if findings.peek().is_some() {
            writeln!(to, "\n### {title}")?;
        }
        for finding in findings {
            one(to, finding)?;
        }
    }
    let count = Verdicts::of(&report.findings);
    writeln!(to, "\n{}", count.sentence())?;
    to.flush()
}

fn one(to: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    writeln!(
        to,
        "\n**{}** (`{}`): {}",
        escaped(&finding.title),
        finding.id,
        escaped(&finding.why)
    )?;
    if let Some(cause) = &finding.because {
        writeln!(to, "- cause: `{cause}`")?;
    }
    for (name, value) in values(finding) {
        match name {
            // Users copy the command, so do not escape it.
            "command" => writeln!(to, "\n```sh\n{}\n```\n", line(value))?,
            "kind" => {}
            _ => writeln!(to, "- {name}: {}", escaped(value))?,
        }
    }
    for link in &finding.links {
        writeln!(to, "- <{link}>")?;
    }
    Ok(())
}

/// Escapes Markdown in text from the machine, except backquotes, which our messages put around names.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    let mut in_code = false;
    let text = line(text);
    // If a backquote is unpaired, escape all of them, because it would start a code span.
    let codes = text.matches('`').count().is_multiple_of(2);
    for c in text.chars() {
        if c == '`' && codes {
            in_code = !in_code;
        } else if !in_code && "\\`*_{}[]<>#|!".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
