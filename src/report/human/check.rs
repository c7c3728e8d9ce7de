//! The result of `check`: the cause first, then its fix and its consequences, then everything else, and the next command.

use std::io::{self, Write};

use super::{footer, next_step, notes};
use crate::{
    check::{Finding, Verdict, is_repair},
    checks::NO_GPU,
    engine::{RunReport, StepReport},
    event::Outcome,
    exit::Exit,
    model::findings::{self, Kind, Layer, Remedy},
    report::{
        Style,
        document::Verdicts,
        messages::things,
        style::{Ink, of_verdict, word},
    },
};

/// The width of the verdict column with its gap. The longest verdict is `unknown`. `difference` is longer than the column.
const TEXT: usize = 9;

/// The indentation of the details of a problem.
const DETAIL: usize = 2;

/// The label before the findings that a root cause has caused.
const AFFECTED: &str = "also affected:";

/// The finding that shows whether a desired state exists for this machine.
const RESOLVABLE: &str = "config.resolvable";

/// ID prefixes of findings about hardware and the running driver.
const ACUTE: [&str; 5] = ["log.", "gpu.", "mem.", "nvl.", "pci."];

/// The finding about the owner of the driver.
const OWNER: &str = "os.managed";

fn is_resolvable(finding: &Finding) -> bool {
    finding.id.as_str() == RESOLVABLE
}

/// Whether a finding is a warning about hardware or the running driver that needs an action on the machine.
fn is_acute(finding: &Finding) -> bool {
    let is_of_fault = findings::row(&finding.id).is_some_and(|row| row.kind == Kind::Fault)
        && ACUTE
            .iter()
            .any(|family| finding.id.as_str().starts_with(family));
    // These remedies need no action, or only change a program or a setting.
    let is_minor = |class| {
        matches!(
            class,
            Remedy::None | Remedy::RestartApp | Remedy::Reconfigure
        )
    };
    finding.status == Verdict::Warn && is_of_fault && !finding.class().is_some_and(is_minor)
}

/// The findings, grouped by section of the page.
#[derive(Default)]
struct Sorted<'r> {
    /// The machine does not work.
    faults: Vec<&'r Finding>,
    /// It works, but may fail later. The first one can be the headline.
    risks: Vec<&'r Finding>,
    /// Differences from the settings.
    differences: Vec<&'r Finding>,
    /// Differences that are not evaluated.
    aside: Vec<&'r Finding>,
    /// Problems that another finding has caused.
    folded: Vec<&'r Finding>,
    /// Steps of an image that its first boot finishes.
    at_boot: Vec<&'r Finding>,
    unknown: Vec<&'r Finding>,
    /// No problem, or not applicable.
    rest: Vec<&'r Finding>,
    /// The number of steps that `install` would change.
    changes: usize,
}

impl<'r> Sorted<'r> {
    fn of(report: &'r RunReport) -> Self {
        let mut sorted = Self::default();
        for finding in &report.findings {
            let step = report.steps.iter().find(|step| step.id == finding.id);
            let outcome = step.map(|step| step.outcome);
            let kind = finding.kind();
            // A step with a warning would only repeat its validation. Do not count this as a change.
            sorted.changes += usize::from(
                outcome == Some(Outcome::WouldChange)
                    && !matches!(finding.status, Verdict::Pass | Verdict::Warn),
            );
            let list = match (finding.status, kind) {
                (Verdict::Skip, Some(Kind::Difference)) => &mut sorted.aside,
                (Verdict::Pass | Verdict::Skip, _) => &mut sorted.rest,
                _ if finding.because.is_some() => &mut sorted.folded,
                (Verdict::Unknown, _) => &mut sorted.unknown,
                (Verdict::Warn, _) if outcome == Some(Outcome::AwaitingBoot) => &mut sorted.at_boot,
                (_, Some(Kind::Risk)) => &mut sorted.risks,
                (_, Some(Kind::Difference)) => &mut sorted.differences,
                (_, Some(Kind::Fault) | None) => &mut sorted.faults,
            };
            list.push(finding);
        }
        // Failures first, then acute warnings, then other warnings that need an action, then those that need an update or no
        // action.
        let rank = |finding: &&Finding| match finding.status {
            Verdict::Fail => 0,
            _ if is_acute(finding) => 1,
            _ if !matches!(finding.class(), Some(Remedy::None | Remedy::Update)) => 2,
            _ => 3,
        };
        sorted.risks.sort_by_key(rank);
        sorted
            .differences
            .sort_by_key(|finding| finding.status != Verdict::Fail);
        sorted
    }

    /// The findings that this root cause has caused.
    fn under(&self, root: &Finding) -> Vec<&'r Finding> {
        let caused = |finding: &&&Finding| finding.because.as_ref() == Some(&root.id);
        self.folded.iter().filter(caused).copied().collect()
    }

    /// The root cause of the page: a fault, a failed risk, an acute risk if there are also differences, or a failed difference
    /// that `install` does not fix.
    fn root(&self) -> Option<&'r Finding> {
        let risk = self.risks.first().copied();
        let is_alone = self.differences.is_empty() && self.aside.is_empty();
        let risk = risk.filter(|one| one.status == Verdict::Fail || !is_alone && is_acute(one));
        let blocked = self.differences.first().copied();
        let blocked =
            blocked.filter(|one| one.status == Verdict::Fail && !is_repair(one.command.as_deref()));
        self.faults.first().copied().or(risk).or(blocked)
    }

    /// The next command: the command of the root cause, or without a root cause, of the first difference.
    fn next(&self) -> Option<&'r str> {
        match self.root() {
            Some(root) => root.command.as_deref(),
            None => {
                let first = self.differences.first()?;
                first.command.as_deref()
            }
        }
    }
}

/// The first lines. `whole` is the finding whose complete reason they contain.
struct Headline<'r> {
    ink: Ink,
    text: String,
    whole: Option<&'r Finding>,
    /// Text below it.
    detail: Option<&'r str>,
}

impl<'r> Headline<'r> {
    fn plain(ink: Ink, text: impl Into<String>) -> Self {
        Self {
            ink,
            text: text.into(),
            whole: None,
            detail: None,
        }
    }

    /// Creates a headline from the clauses of a reason that fit. The first clause is never truncated.
    fn of(ink: Ink, head: &str, finding: &'r Finding, style: Style) -> Self {
        let (text, whole) = match &finding.brief {
            Some(brief) if !style.fits(head, &finding.why) => (style.clauses(head, brief).0, false),
            _ => style.clauses(head, &finding.why),
        };
        Self {
            ink,
            text: format!("{head}{text}"),
            whole: whole.then_some(finding),
            detail: None,
        }
    }
}

fn headline<'r>(
    report: &'r RunReport,
    sorted: &Sorted<'r>,
    whole: bool,
    style: Style,
) -> Headline<'r> {
    if let Some(root) = sorted.root() {
        return match (root.kind(), root.status) {
            (Some(Kind::Difference), _) => Headline::of(Ink::Doubt, "difference: ", root, style),
            (Some(Kind::Risk), Verdict::Warn) => Headline::of(Ink::Doubt, "risk: ", root, style),
            (Some(Kind::Risk), _) => Headline::of(Ink::Bad, "risk: ", root, style),
            _ => Headline::of(Ink::Bad, "fault: ", root, style),
        };
    }
    if sorted.changes > 0 && !sorted.differences.is_empty() {
        let text = format!("{} would change", things(sorted.changes));
        return match sorted.differences[..] {
            [only] => Headline::of(Ink::Doubt, &format!("{text}: "), only, style),
            _ => Headline::plain(Ink::Doubt, text),
        };
    }
    let found = |is: &dyn Fn(&Finding) -> bool| {
        (report.findings.iter()).find(|finding| finding.because.is_none() && is(finding))
    };
    let unknown = |finding: &Finding| finding.status == Verdict::Unknown;
    // Without a GPU, the rest of the machine does not matter.
    if let Some(finding) = found(&|one| is_resolvable(one) && one.why == NO_GPU)
        && finding.status == Verdict::Skip
    {
        return Headline::of(Ink::Faint, "", finding, style);
    }
    if let Some(finding) = found(&|one| is_resolvable(one) && unknown(one)) {
        let head = "no fault found, but not everything is known: ";
        return Headline::of(Ink::Doubt, head, finding, style);
    }
    let is_bad = |finding: &Finding| finding.status == Verdict::Fail;
    if report.exit != Exit::Ok && found(&is_bad).is_none() && found(&unknown).is_some() {
        // Missing data is less important than a known risk.
        if let Some(risk) = sorted.risks.first().copied().filter(|_| whole) {
            return Headline::of(Ink::Doubt, "risk: ", risk, style);
        }
        return match found(&unknown) {
            Some(finding) => Headline::of(Ink::Bad, "unknown: ", finding, style),
            None => Headline::plain(Ink::Bad, "unknown: not everything was examined"),
        };
    }
    if report.exit != Exit::Ok && found(&is_bad).is_none() && sorted.risks.is_empty() {
        return Headline::plain(Ink::Bad, "unknown: not everything was examined");
    }
    if !sorted.at_boot.is_empty() {
        let text = format!(
            "prepared: the first boot finishes {}",
            things(sorted.at_boot.len())
        );
        return Headline::plain(Ink::Doubt, text);
    }
    let count = Verdicts::of(&report.findings);
    if count.pass == 0 && sorted.risks.is_empty() {
        return match found(&unknown) {
            Some(finding) => {
                Headline::of(Ink::Doubt, "nothing could be examined: ", finding, style)
            }
            None => Headline::plain(Ink::Faint, "nothing to check on this machine"),
        };
    }
    if let Some(finding) = found(&|one| is_resolvable(one) && one.status == Verdict::Skip)
        && finding.kind().is_none()
        && !drives_gpus(report)
        && found(&|one| one.id.as_str() == OWNER && one.status == Verdict::Pass).is_none()
    {
        return Headline::of(Ink::Faint, "", finding, style);
    }
    let good = match whole {
        // Selected findings give no verdict about the node.
        false if count.pass == 0 => "no finding passes".to_owned(),
        false if count.pass == 1 => "1 finding passes".to_owned(),
        false => format!("{} findings pass", count.pass),
        true if drives_gpus(report) => match sorted.aside.is_empty() && is_configured(report) {
            true => "ready".to_owned(),
            false => "healthy".to_owned(),
        },
        true => "no fault found, but the driver could not be examined".to_owned(),
    };
    let owner = found(&|one| one.id.as_str() == OWNER && one.status == Verdict::Pass);
    let owner = owner.filter(|_| whole);
    let good = match owner {
        Some(owner) => {
            let name = owner.why.split(" (").next().unwrap_or(&owner.why);
            format!("{good}, managed by {name}")
        }
        None => good,
    };
    let doubts: Vec<String> = [
        (sorted.risks.len(), "risk", "risks"),
        (sorted.differences.len(), "difference", "differences"),
        (sorted.unknown.len(), "unknown", "unknown"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, one, several)| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {several}"),
    })
    .collect();
    let headline = match doubts.is_empty() {
        true => Headline::plain(Ink::Good, good),
        false => Headline::plain(Ink::Doubt, format!("{good}, with {}", doubts.join(" and "))),
    };
    Headline {
        detail: owner.map(|owner| owner.why.as_str()),
        ..headline
    }
}

/// Whether the driver was examined and works: a finding about its binding, the driver, the fabric or a runtime passes.
fn drives_gpus(report: &RunReport) -> bool {
    (report.findings.iter()).any(|finding| {
        finding.status == Verdict::Pass
            && (finding.id.as_str() == "pci.driver-bound" || Layer::of(&finding.id).needs_driver())
    })
}

/// Whether the machine has a desired state that was compared with it.
fn is_configured(report: &RunReport) -> bool {
    (report.findings.iter())
        .find(|finding| is_resolvable(finding))
        .is_none_or(|finding| finding.status != Verdict::Skip)
}

/// The scope of the check.
#[derive(Debug, Clone, Copy)]
pub struct Examined {
    /// The whole node. Otherwise the verdict is about the selected findings.
    pub whole: bool,
    /// The machine that runs the command. Otherwise a directory or text from another machine.
    pub here: bool,
}

/// Writes the result of `check`.
///
/// # Errors
/// An error of the writer.
pub fn check(
    to: &mut dyn Write,
    report: &RunReport,
    examined: Examined,
    style: Style,
) -> io::Result<()> {
    let sorted = Sorted::of(report);
    let headline = headline(report, &sorted, examined.whole, style);
    let text = style.hanging("", &headline.text);
    writeln!(to, "{}", style.paint(headline.ink, &text))?;
    if let Some(detail) = headline.detail {
        writeln!(to, "{}", style.indented(DETAIL, detail))?;
    }
    if style.verbose {
        for finding in &report.findings {
            writeln!(to)?;
            row(to, finding, style)?;
        }
    } else {
        problems(to, &sorted, &headline, style)?;
    }
    if examined.whole {
        aside(to, report, &sorted, style)?;
    }
    if !report.notes.is_empty() {
        writeln!(to)?;
        notes(to, &report.notes, style)?;
    }
    let count = Verdicts::of(&report.findings);
    let hidden = sorted.rest.len() + sorted.folded.len() + sorted.aside.len() > 0;
    footer(to, &examined_sentence(count), hidden, style)?;
    if let Some(command) = sorted.next() {
        let next = match examined.here {
            true => "Next:",
            false => "Next, on that machine:",
        };
        next_step(to, next, command, style)?;
    }
    to.flush()
}

/// The counts by kind and verdict, and the number of examined findings.
fn examined_sentence(count: Verdicts) -> String {
    let all = count.pass + count.warn + count.fail + count.skip + count.unknown;
    let seen = all - count.skip - count.unknown;
    let counts = Verdicts { skip: 0, ..count }.sentence();
    let examined = format!("{seen} of {all} examined");
    match counts.is_empty() {
        true => examined,
        false => format!("{counts}; {examined}"),
    }
}

/// Writes one line about the differences that were not evaluated.
fn aside(
    to: &mut dyn Write,
    report: &RunReport,
    sorted: &Sorted<'_>,
    style: Style,
) -> io::Result<()> {
    let unsupported = sorted.aside.iter().find(|finding| is_resolvable(finding));
    let is_aside = |step: &&StepReport| sorted.aside.iter().any(|finding| finding.id == step.id);
    let blocked = (report.steps.iter())
        .filter(|step| step.outcome == Outcome::Blocked)
        .find(is_aside);
    let text = match (unsupported, blocked, sorted.changes) {
        (Some(finding), ..) => {
            format!("gpu-bootstrap cannot prepare this machine: {}", finding.why)
        }
        (None, Some(step), _) => format!(
            "`install` is blocked: {} (`gpu-bootstrap plan` shows the remedy)",
            step.why
        ),
        _ if sorted.aside.is_empty() => return Ok(()),
        (None, None, 0) => return Ok(()),
        (None, None, changes) => format!(
            "`install` would change {}: `gpu-bootstrap plan`",
            things(changes)
        ),
    };
    writeln!(to, "\n{}", style.hanging("", &text))
}

fn problems(
    to: &mut dyn Write,
    sorted: &Sorted<'_>,
    headline: &Headline<'_>,
    style: Style,
) -> io::Result<()> {
    let root = sorted.root();
    if let Some(root) = root {
        if let Some(command) = &root.command {
            writeln!(to, "\n    {}", style.paint(Ink::Strong, command))?;
        }
        writeln!(to)?;
        let is_reported = headline.whole.is_some_and(|told| std::ptr::eq(told, root));
        details(to, root, !is_reported, style)?;
        affected(to, &sorted.under(root), style)?;
    }
    let is_root = |finding: &Finding| root.is_some_and(|root| std::ptr::eq(root, finding));
    for finding in sorted.faults.iter().filter(|one| !is_root(one)) {
        let head = format!("{} ", style.paint(Ink::Bad, "fault:"));
        writeln!(to, "\n{}", style.hanging(&head, &finding.why))?;
        details(to, finding, false, style)?;
        if let Some(command) = &finding.command {
            writeln!(to, "\n    {}", style.paint(Ink::Strong, command))?;
        }
        affected(to, &sorted.under(finding), style)?;
    }
    let others: Vec<&&Finding> = sorted.risks.iter().filter(|one| !is_root(one)).collect();
    if !others.is_empty() || !sorted.unknown.is_empty() {
        writeln!(to)?;
    }
    for finding in others {
        one_line(to, finding, style)?;
    }
    for finding in &sorted.unknown {
        one_line(to, finding, style)?;
    }
    let drift: Vec<&&Finding> = (sorted.differences.iter())
        .filter(|one| !is_root(one))
        .collect();
    if !drift.is_empty() {
        let text = match root {
            Some(_) => "\nDifferences from the settings:\n",
            None => "",
        };
        writeln!(to, "{text}")?;
        for finding in drift {
            let title = style.titled(&finding.title, finding.id.as_str());
            writeln!(to, "{}", style.hanging("  - ", &title))?;
            if !(headline.whole).is_some_and(|told| std::ptr::eq(told, *finding)) {
                writeln!(to, "{}", style.indented(4, &finding.why))?;
            }
            listed(
                to,
                &format!("    {AFFECTED} "),
                &sorted.under(finding),
                style,
            )?;
        }
    }
    if !sorted.at_boot.is_empty() {
        writeln!(to)?;
        listed(to, "left for the first boot: ", &sorted.at_boot, style)?;
    }
    Ok(())
}

/// A finding on one line, possibly truncated. `-v` shows the complete text.
fn one_line(to: &mut dyn Write, finding: &Finding, style: Style) -> io::Result<()> {
    let name = match finding.status {
        Verdict::Unknown => "unknown",
        _ => finding.kind().map_or("risk", Kind::name),
    };
    let head = format!("{name:<TEXT$}");
    let id = format!(" ({})", finding.id);
    let around = format!("{head}{id}");
    let text = match &finding.brief {
        Some(brief) if !style.fits_line(&around, &finding.why) => style.clause(&around, brief),
        _ => style.clause(&around, &finding.why),
    };
    let painted = style.paint(Ink::Doubt, &head);
    writeln!(to, "{painted}{text}{}", style.paint(Ink::Faint, &id))
}

/// Writes the title, the values and the remedy of a problem, and its reason unless the headline contains it.
fn details(to: &mut dyn Write, finding: &Finding, with_why: bool, style: Style) -> io::Result<()> {
    let gap = " ".repeat(DETAIL);
    let title = style.titled(&finding.title, finding.id.as_str());
    writeln!(to, "{}", style.hanging(&gap, &title))?;
    if with_why {
        writeln!(to, "{}", style.indented(DETAIL, &finding.why))?;
    }
    values(to, finding, &gap, style)
}

fn affected(to: &mut dyn Write, findings: &[&Finding], style: Style) -> io::Result<()> {
    let head = format!("{}{AFFECTED} ", " ".repeat(DETAIL));
    listed(to, &head, findings, style)
}

/// Writes the titles of findings after `head`.
fn listed(to: &mut dyn Write, head: &str, findings: &[&Finding], style: Style) -> io::Result<()> {
    let titles: Vec<&str> = findings
        .iter()
        .map(|finding| finding.title.as_str())
        .collect();
    if titles.is_empty() {
        return Ok(());
    }
    writeln!(to, "{}", style.hanging(head, &titles.join("; ")))
}

/// The compared values and the remedy of a problem.
fn values(to: &mut dyn Write, finding: &Finding, gap: &str, style: Style) -> io::Result<()> {
    for (name, value) in [
        ("observed", &finding.observed),
        ("expected", &finding.expected),
    ] {
        // Skip a value that the reason contains, and an expected value that the title contains.
        let is_shown = |value: &&String| {
            let title = finding.title.to_lowercase();
            finding.why.contains(*value)
                || (name == "expected" && title.contains(&value.to_lowercase()))
        };
        if let Some(value) = value.as_ref().filter(|value| !is_shown(value)) {
            let label = style.paint(Ink::Faint, &format!("{name}:"));
            writeln!(to, "{}", style.hanging(&format!("{gap}{label} "), value))?;
        }
    }
    // Skip a remedy that only repeats the command, because the command is on a separate line.
    if let Some(remedy) = finding.remedy_text() {
        let label = style.paint(Ink::Hint, "remedy:");
        writeln!(to, "{}", style.hanging(&format!("{gap}{label} "), remedy))?;
    }
    Ok(())
}

/// Writes a finding for `-v`.
fn row(to: &mut dyn Write, finding: &Finding, style: Style) -> io::Result<()> {
    let name = match finding.status {
        Verdict::Fail | Verdict::Warn => finding.kind().map_or("fail", Kind::name),
        other => word(other),
    };
    // `difference` is longer than the column.
    let head = match name.len() < TEXT {
        true => style.column(of_verdict(finding.status), name, TEXT),
        false => format!("{} ", style.paint(of_verdict(finding.status), name)),
    };
    let title = style.titled(&finding.title, finding.id.as_str());
    writeln!(to, "{}", style.hanging(&head, &title))?;
    writeln!(to, "{}", style.indented(TEXT, &finding.why))?;
    if finding.status == Verdict::Pass || finding.status == Verdict::Skip {
        return Ok(());
    }
    let gap = " ".repeat(TEXT);
    values(to, finding, &gap, style)?;
    if let Some(command) = &finding.command {
        let label = style.paint(Ink::Hint, "command:");
        writeln!(to, "{gap}{label} {}", style.paint(Ink::Strong, command))?;
    }
    for link in &finding.links {
        writeln!(to, "{gap}{link}")?;
    }
    Ok(())
}
