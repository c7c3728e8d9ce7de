//! The result of `plan`.

use std::io::{self, Write};

use super::{footer, next_step, notes, outcomes};
use crate::{
    config::desired::DriverSpec,
    engine::{ChangeReport, RunReport, StepReport},
    event::Outcome,
    report::{
        Style,
        messages::things,
        style::{Ink, of_outcome},
    },
};

/// The maximum number of diff lines without `-v`. If there is only one more line, it is also shown.
const LINES: usize = 12;

/// Writes the result of `plan`: the changes with reasons and diffs, then the command that applies them.
///
/// # Errors
/// If the target cannot be written.
pub fn plan(
    to: &mut dyn Write,
    report: &RunReport,
    (driver, reasons): (Option<&DriverSpec>, &[String]),
    command: &str,
    style: Style,
) -> io::Result<()> {
    headline(to, report, style)?;
    if let Some(driver) = driver {
        let text = format!(
            "driver branch {}, {} modules, from {}",
            driver.branch, driver.flavor, driver.source
        );
        writeln!(to, "\n{}", style.hanging("", &text))?;
        for reason in &driver.reasons {
            writeln!(to, "{}", style.indented(2, reason))?;
        }
    }
    if !reasons.is_empty() {
        writeln!(to)?;
    }
    for reason in reasons {
        writeln!(to, "{}", style.hanging("", reason))?;
    }
    let mut hidden = false;
    for step in &report.steps {
        if idle(step.outcome) && !style.verbose {
            hidden = true;
            continue;
        }
        writeln!(to)?;
        hidden |= shown(to, step, style)?;
    }
    if !report.notes.is_empty() {
        writeln!(to)?;
        notes(to, &report.notes, style)?;
    }
    footer(to, &outcomes(&report.summary(), style), hidden, style)?;
    end(to, report, command, style)?;
    to.flush()
}

/// Writes the result of `uninstall --dry-run`: the changes that would be undone, then the command that undoes them.
///
/// # Errors
/// If the target cannot be written.
pub fn undo(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    // A change of several steps is listed for each of them.
    let mut changes: Vec<&str> = (report.steps.iter())
        .flat_map(|step| step.changes.iter().map(|change| &*change.summary))
        .collect();
    changes.sort_unstable();
    changes.dedup();
    let text = match changes.len() {
        0 if report.notes.is_empty() => "nothing to undo".to_owned(),
        0 => "no change is recorded".to_owned(),
        count => format!("{} would be undone", things(count)),
    };
    writeln!(to, "{}", style.paint(Ink::Doubt, &text))?;
    for step in &report.steps {
        let title = style.titled(&step.title, step.id.as_str());
        writeln!(to, "\n{}", style.hanging("", &title))?;
        for change in &step.changes {
            writeln!(to, "{}", style.hanging("  - undo: ", &change.summary))?;
        }
    }
    if !report.notes.is_empty() {
        writeln!(to)?;
        notes(to, &report.notes, style)?;
    }
    if !report.steps.is_empty() {
        let text = "Nothing was changed. To undo these changes:";
        next_step(to, text, "gpu-bootstrap uninstall", style)?;
    }
    to.flush()
}

const fn idle(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Satisfied | Outcome::NotApplicable | Outcome::NotRun
    )
}

fn headline(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let first = |outcome| report.steps.iter().find(|step| step.outcome == outcome);
    let because = |head: &str, step: &StepReport| {
        let text = format!("{head}{}", style.clause(head, &step.why));
        style.paint(Ink::Bad, &text)
    };
    let summary = report.summary();
    let text = if let Some(step) = first(Outcome::Blocked) {
        because("blocked: ", step)
    } else if let Some(step) = first(Outcome::Failed) {
        because("unknown: ", step)
    } else if summary.would_change > 0 {
        let text = format!("{} would change", things(summary.would_change));
        style.paint(Ink::Doubt, &text)
    } else {
        style.paint(Ink::Good, "nothing would change")
    };
    writeln!(to, "{text}")
}

/// Writes a step with its changes. Returns `true` if it omits a part.
fn shown(to: &mut dyn Write, step: &StepReport, style: Style) -> io::Result<bool> {
    let title = style.titled(&step.title, step.id.as_str());
    let head = if step.outcome == Outcome::WouldChange {
        String::new()
    } else {
        format!(
            "{}: ",
            style.paint(of_outcome(step.outcome), step.outcome.word())
        )
    };
    writeln!(to, "{}", style.hanging("", &format!("{head}{title}")))?;
    writeln!(to, "{}", style.indented(2, &step.why))?;
    let mut hidden = false;
    for change in &step.changes {
        writeln!(to, "{}", style.hanging("  - ", &change.summary))?;
        hidden |= preview(to, change, style)?;
    }
    for cause in &step.causes {
        let head = format!("  {} ", style.paint(Ink::Bad, "caused by:"));
        writeln!(to, "{}", style.hanging(&head, cause))?;
    }
    if let Some(hint) = &step.hint {
        let head = format!("  {} ", style.paint(Ink::Hint, "hint:"));
        writeln!(to, "{}", style.advice(&head, hint))?;
    }
    Ok(hidden)
}

/// Writes the preview of a change. Returns `true` if it omits lines.
fn preview(to: &mut dyn Write, change: &ChangeReport, style: Style) -> io::Result<bool> {
    let Some(diff) = &change.diff else {
        return Ok(false);
    };
    let lines: Vec<String> = (diff.lines())
        .filter_map(|line| readable(line, &change.summary))
        .collect();
    let all = style.verbose || lines.len() <= LINES + 1;
    let count = if all { lines.len() } else { LINES };
    for line in &lines[..count] {
        let ink = match line.as_bytes().first() {
            Some(b'+') => Ink::Good,
            Some(b'-') => Ink::Bad,
            Some(b'~' | b'@') => Ink::Hint,
            // A sentence instead of a diff.
            Some(b'a'..=b'z') => {
                writeln!(to, "{}", style.indented(6, line))?;
                continue;
            }
            _ => {
                writeln!(to, "      {line}")?;
                continue;
            }
        };
        writeln!(to, "      {}", style.paint(ink, line))?;
    }
    if !all {
        let more = format!("… and {} more lines", lines.len() - count);
        writeln!(to, "      {}", style.paint(Ink::Faint, &more))?;
    }
    Ok(!all)
}

/// Shortens a diff line. Returns `None` for a `---` line, a `+++` line whose path is in the summary, and the position in a new
/// file.
fn readable(line: &str, summary: &str) -> Option<String> {
    if line.starts_with("--- ") || line.starts_with("@@ -0,0 ") {
        return None;
    }
    match line.strip_prefix("+++ b") {
        Some(path) if summary.contains(&format!("`{path}`")) => None,
        Some(path) => Some(format!("@ {path}")),
        None => Some(line.to_owned()),
    }
}

fn end(to: &mut dyn Write, report: &RunReport, command: &str, style: Style) -> io::Result<()> {
    let words = command.split(' ');
    let verb = words.skip_while(|word| *word != "gpu-bootstrap").nth(1);
    let verb = verb.unwrap_or("install");
    if report.summary().blocked > 0 {
        return writeln!(to, "\n`{verb}` changes nothing until this is resolved.");
    }
    let changes = || report.steps.iter().flat_map(|step| &step.changes);
    if changes().next().is_none() {
        return Ok(());
    }
    let reboots = changes().any(|change| change.kind == "reboot");
    let text = if reboots {
        format!(
            "Nothing was changed. The plan includes a reboot; with `--reboot`, `{verb}` reboots and continues \
             automatically. To apply the plan:"
        )
    } else {
        "Nothing was changed. To apply the plan:".to_owned()
    };
    next_step(to, &text, command, style)
}
