//! Reports for people.

use std::io::{self, Write};

use super::{
    Style,
    document::Verdicts,
    error::block,
    style::{Ink, indented, of_outcome, of_verdict, word},
};
use crate::{
    check::{Finding, Verdict},
    engine::{RunReport, StepReport},
    event::{Outcome, Summary},
    exit::Exit,
};

/// The width of the column of outcomes: the longest is `not-applicable`.
const OUTCOMES: usize = 14;

/// The width of the column of verdicts: the longest is `unknown`.
const VERDICTS: usize = 7;

/// The result of `check`: one line for each finding, followed by the remedy of a problem.
///
/// # Errors
/// An error of the writer.
pub fn check(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let width = widest(report.findings.iter().map(|finding| finding.id.as_str()));
    for finding in &report.findings {
        writeln!(
            to,
            "{}  {:<width$}  {}",
            style.column(of_verdict(finding.status), word(finding.status), VERDICTS),
            finding.id.as_str(),
            finding.why,
        )?;
        if finding.status != Verdict::Pass && finding.status != Verdict::Skip {
            details(to, finding, style)?;
        }
    }
    notes(to, report, style)?;
    let count = Verdicts::of(&report.findings);
    let parts = [
        (count.pass, "pass", Ink::Good),
        (count.warn, "warn", Ink::Doubt),
        (count.fail, "fail", Ink::Bad),
        (count.unknown, "unknown", Ink::Doubt),
        (count.skip, "skip", Ink::Faint),
    ];
    writeln!(to, "\n{}", counted(&parts, style))?;
    to.flush()
}

fn details(to: &mut dyn Write, finding: &Finding, style: Style) -> io::Result<()> {
    for (name, text, ink) in [
        ("observed", &finding.observed, Ink::Faint),
        ("expected", &finding.expected, Ink::Faint),
        ("remedy", &finding.remedy, Ink::Hint),
    ] {
        if let Some(text) = text {
            let label = style.paint(ink, &format!("{name}:"));
            writeln!(to, "{}{label} {text}", " ".repeat(VERDICTS + 2))?;
        }
    }
    for link in &finding.links {
        writeln!(to, "{}{link}", " ".repeat(VERDICTS + 2))?;
    }
    Ok(())
}

/// The result of `plan`: every change, with its diff.
///
/// # Errors
/// An error of the writer.
pub fn plan(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let width = widest(report.steps.iter().map(|step| step.id.as_str()));
    for step in &report.steps {
        head(to, step, width, style)?;
        for change in &step.changes {
            writeln!(to, "  - {}", change.summary)?;
            if let Some(diff) = &change.diff {
                writeln!(to, "{}", coloured_diff(diff, style))?;
            }
        }
        trouble(to, step, style)?;
    }
    notes(to, report, style)?;
    writeln!(to, "\n{}", outcomes(&report.summary(), style))?;
    let changes = report
        .steps
        .iter()
        .map(|step| step.changes.len())
        .sum::<usize>();
    if report.exit == Exit::Blocked {
        writeln!(to, "`install` changes nothing until this is solved.")?;
    } else if changes > 0 {
        writeln!(
            to,
            "Nothing was changed. Run `gpu-bootstrap install` to apply the plan."
        )?;
    }
    to.flush()
}

/// The result of `install` or `uninstall`: a table of steps and seconds, then what to do next.
///
/// # Errors
/// An error of the writer.
pub fn run(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let width = widest(report.steps.iter().map(|step| step.id.as_str()));
    if !report.steps.is_empty() {
        let title = format!(
            "{:<OUTCOMES$}  {:>7}  {:<width$}  why",
            "outcome", "seconds", "step"
        );
        writeln!(to, "{}", style.paint(Ink::Strong, &title))?;
    }
    for step in &report.steps {
        writeln!(
            to,
            "{}  {:>7.1}  {:<width$}  {}",
            style.column(of_outcome(step.outcome), step.outcome.word(), OUTCOMES),
            step.seconds,
            step.id.as_str(),
            step.why,
        )?;
    }
    if !report.steps.is_empty() {
        writeln!(to)?;
    }
    writeln!(
        to,
        "{} in {:.1} s",
        outcomes(&report.summary(), style),
        report.seconds
    )?;
    notes(to, report, style)?;
    for left in &report.left {
        writeln!(to, "{} {left}", style.paint(Ink::Doubt, "left:"))?;
    }
    to.flush()
}

/// The problems of an `install` or `uninstall` that did not end well: each failure with its causes
/// and its hint, and a required reboot. These are messages, not data.
///
/// # Errors
/// An error of the writer.
pub fn troubles(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let mut told: Vec<&StepReport> = Vec::new();
    for step in &report.steps {
        let same = |other: &&StepReport| other.why == step.why && other.causes == step.causes;
        if !matches!(step.outcome, Outcome::Failed | Outcome::Blocked) || told.iter().any(same) {
            continue;
        }
        if !told.is_empty() {
            writeln!(to)?;
        }
        told.push(step);
        // A transaction for several steps failed for all of them: it is reported once.
        let ids: Vec<&str> = report
            .steps
            .iter()
            .filter(same)
            .map(|step| step.id.as_str())
            .collect();
        block(
            to,
            style,
            &format!("{}: {}", ids.join(", "), step.why),
            &step.causes,
            step.hint.as_deref(),
        )?;
    }
    let hint = |to: &mut dyn Write, text: &str| {
        writeln!(to, "\n{} {text}", style.paint(Ink::Hint, "hint:"))
    };
    match (&report.reboot, report.exit) {
        (Some(reboot), _) if reboot.automatic => {
            writeln!(
                to,
                "rebooting: {}; the run continues automatically",
                reboot.why
            )?;
        }
        (Some(reboot), _) => {
            writeln!(to, "a reboot is needed: {}", reboot.why)?;
            hint(to, "reboot, then run `gpu-bootstrap install` again")?;
        }
        (None, Exit::Blocked) => writeln!(to, "\nnothing was changed")?,
        (None, Exit::Partial) => hint(
            to,
            "the changes that are left stay recorded; solve the problem and run `gpu-bootstrap \
             uninstall` again",
        )?,
        (None, Exit::Interrupted | Exit::Terminated) => hint(
            to,
            "all changes are recorded; run the same command again to continue",
        )?,
        (None, Exit::Ok)
            if report
                .steps
                .iter()
                .any(|step| step.outcome == Outcome::AwaitingBoot) =>
        {
            writeln!(
                to,
                "\nthe first boot finishes the remaining steps automatically"
            )?;
        }
        _ => {}
    }
    to.flush()
}

fn head(to: &mut dyn Write, step: &StepReport, width: usize, style: Style) -> io::Result<()> {
    writeln!(
        to,
        "{}  {:<width$}  {}",
        style.column(of_outcome(step.outcome), step.outcome.word(), OUTCOMES),
        step.id.as_str(),
        step.why,
    )
}

fn trouble(to: &mut dyn Write, step: &StepReport, style: Style) -> io::Result<()> {
    for cause in &step.causes {
        writeln!(to, "  {} {}", style.paint(Ink::Bad, "caused by:"), cause)?;
    }
    if let Some(hint) = &step.hint {
        writeln!(to, "  {} {hint}", style.paint(Ink::Hint, "hint:"))?;
    }
    Ok(())
}

fn notes(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    for note in &report.notes {
        writeln!(to, "{} {note}", style.paint(Ink::Doubt, "note:"))?;
    }
    Ok(())
}

fn coloured_diff(diff: &str, style: Style) -> String {
    let lines: Vec<String> = diff
        .trim_end()
        .lines()
        .map(|line| match line.as_bytes().first() {
            Some(b'+') => style.paint(Ink::Good, line),
            Some(b'-') => style.paint(Ink::Bad, line),
            Some(b'@') => style.paint(Ink::Hint, line),
            _ => line.to_owned(),
        })
        .collect();
    indented(&lines.join("\n"), 4)
}

/// The outcomes, counted, as text.
pub(super) fn outcomes(summary: &Summary, style: Style) -> String {
    let parts = [
        (summary.changed, "changed", Ink::Good),
        (summary.would_change, "would change", Ink::Doubt),
        (summary.satisfied, "satisfied", Ink::Good),
        (summary.awaiting_boot, "awaiting boot", Ink::Doubt),
        (summary.failed, "failed", Ink::Bad),
        (summary.blocked, "blocked", Ink::Bad),
        (summary.not_run, "not run", Ink::Faint),
        (summary.not_applicable, "not applicable", Ink::Faint),
    ];
    counted(&parts, style)
}

fn counted(parts: &[(usize, &str, Ink)], style: Style) -> String {
    let words: Vec<String> = parts
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, word, ink)| style.paint(*ink, &format!("{count} {word}")))
        .collect();
    if words.is_empty() {
        "nothing to do".to_owned()
    } else {
        words.join(", ")
    }
}

fn widest<'t>(texts: impl Iterator<Item = &'t str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}
