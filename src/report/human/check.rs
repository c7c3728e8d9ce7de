//! The result of `check`.

use std::io::{self, Write};

use super::{counted, footer, next_step, notes};
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    event::Outcome,
    exit::Exit,
    model::findings::{self, Remedy},
    report::{
        Style,
        document::Verdicts,
        style::{Ink, of_verdict, word},
        words::things,
    },
};

/// The width of the column of verdicts, with the gap behind it: the longest is `unknown`.
const TEXT: usize = 9;

/// The command that repairs drift.
const INSTALL: &str = "gpu-bootstrap install";

/// What stands before the titles of findings that another one blocks.
const BLOCKED: &str = "also affected:";

/// The finding that says whether this machine can be prepared at all.
const RESOLVABLE: &str = "config.resolvable";

/// The finding that says whose driver the machine has.
const OWNER: &str = "os.managed";

fn is_resolvable(finding: &Finding) -> bool {
    finding.id.as_str() == RESOLVABLE
}

/// Whether it warns of the health of the machine, and asks for something.
fn is_of_health(finding: &Finding) -> bool {
    // What only a program or a setting has to change is no fault of the machine.
    let is_small = |class| {
        matches!(
            class,
            Remedy::None | Remedy::RestartApp | Remedy::Reconfigure
        )
    };
    finding.status == Verdict::Warn
        && findings::is_health(&finding.id)
        && !finding.class().is_some_and(is_small)
}

/// The findings by what a reader does about them.
#[derive(Default)]
struct Sorted<'r> {
    /// A warning of the machine's health beside which nothing fails but what this program would like.
    warning: Option<&'r Finding>,
    /// Problems that `install` does not repair by itself.
    broken: Vec<&'r Finding>,
    /// Differences from the desired state, which `install` removes.
    drift: Vec<&'r Finding>,
    /// What cannot be right before these are: each names its root cause.
    folded: Vec<&'r Finding>,
    /// Steps of an image that its first boot finishes.
    at_boot: Vec<&'r Finding>,
    /// Other warnings, and what could not be determined.
    doubts: Vec<&'r Finding>,
    /// No problem, or not relevant.
    rest: Vec<&'r Finding>,
    /// The number of steps that would change something.
    changes: usize,
}

impl<'r> Sorted<'r> {
    fn of(report: &'r RunReport) -> Self {
        let mut sorted = Self::default();
        for finding in &report.findings {
            let step = report.steps.iter().find(|step| step.id == finding.id);
            let outcome = step.map(|step| step.outcome);
            let problem = !matches!(finding.status, Verdict::Pass | Verdict::Skip);
            // A warning is about a proof that would only be repeated.
            let changes = problem && finding.status != Verdict::Warn;
            sorted.changes += usize::from(changes && outcome == Some(Outcome::WouldChange));
            let list = match (finding.status, outcome) {
                _ if !problem => &mut sorted.rest,
                _ if finding.because.is_some() => &mut sorted.folded,
                (Verdict::Fail, _) if finding.would_change => &mut sorted.drift,
                (Verdict::Fail, _) => &mut sorted.broken,
                (_, Some(Outcome::AwaitingBoot)) => &mut sorted.at_boot,
                _ => &mut sorted.doubts,
            };
            list.push(finding);
        }
        // The faults of the machine stand before the wishes.
        let only_wishes = match sorted.broken.first() {
            Some(root) => findings::is_wish(&root.id),
            None => sorted.changes > 0 || sorted.doubts.iter().any(|one| is_resolvable(one)),
        };
        let first = sorted.doubts.iter().position(|one| is_of_health(one));
        sorted.warning = (first.filter(|_| only_wishes)).map(|at| sorted.doubts.remove(at));
        sorted
    }

    /// The findings that cannot be right before this one is.
    fn under(&self, root: &Finding) -> Vec<&'r Finding> {
        let caused = |finding: &&&Finding| finding.because.as_ref() == Some(&root.id);
        self.folded.iter().filter(caused).copied().collect()
    }
}

/// The first line. The finding is the one whose whole reason it tells.
struct Headline<'r> {
    ink: Ink,
    text: String,
    tells: Option<&'r Finding>,
}

fn headline<'r>(
    report: &'r RunReport,
    sorted: &Sorted<'r>,
    whole: bool,
    style: Style,
) -> Headline<'r> {
    let because = |ink, head: &str, finding: &'r Finding| {
        let (clause, whole) = style.clause(head, &finding.why);
        Headline {
            ink,
            text: format!("{head}{clause}"),
            tells: whole.then_some(finding),
        }
    };
    let plain = |ink, text: String| Headline {
        ink,
        text,
        tells: None,
    };
    let unknown = |finding: &&&Finding| finding.status == Verdict::Unknown;
    let nothing = |finding: &&&Finding| is_resolvable(finding);
    if let Some(warning) = sorted.warning {
        return because(Ink::Doubt, "possible fault: ", warning);
    }
    if let Some(root) = sorted.broken.first() {
        return match root.id.as_str() {
            RESOLVABLE => because(Ink::Bad, "no fault found, but not prepared: ", root),
            _ if findings::is_wish(&root.id) => because(Ink::Bad, "not as wanted: ", root),
            _ => because(Ink::Bad, "not ready: ", root),
        };
    }
    if sorted.changes > 0 {
        let text = format!("{} would change", things(sorted.changes));
        return match sorted.drift[..] {
            [only] => because(Ink::Doubt, &format!("{text}: "), only),
            _ => plain(Ink::Doubt, text),
        };
    }
    if let Some(finding) = sorted.doubts.iter().find(nothing) {
        return because(
            Ink::Doubt,
            "no fault found, but not everything is known: ",
            finding,
        );
    }
    if report.exit != Exit::Ok {
        return match sorted.doubts.iter().find(unknown) {
            Some(finding) => because(Ink::Bad, "unknown: ", finding),
            None => plain(Ink::Bad, "unknown: not everything was examined".to_owned()),
        };
    }
    let owned = |finding: &&&Finding| finding.id.as_str() == OWNER;
    if let Some(finding) = sorted.rest.iter().find(owned)
        && finding.status == Verdict::Pass
        && sorted
            .rest
            .iter()
            .any(|finding| nothing(&finding) && finding.status == Verdict::Skip)
    {
        return because(Ink::Good, "healthy, and managed by ", finding);
    }
    if let Some(finding) = sorted.rest.iter().find(nothing)
        && finding.status == Verdict::Skip
    {
        return because(Ink::Faint, "", finding);
    }
    if !sorted.at_boot.is_empty() {
        let text = format!(
            "prepared: the first boot finishes {}",
            things(sorted.at_boot.len())
        );
        return plain(Ink::Doubt, text);
    }
    let passed = (sorted.rest.iter())
        .filter(|finding| finding.status == Verdict::Pass)
        .count();
    // A part that is good says nothing about the node.
    let good = match passed {
        _ if whole => "ready".to_owned(),
        1 => "1 finding passes".to_owned(),
        passed => format!("{passed} findings pass"),
    };
    if passed == 0
        && let Some(finding) = sorted.doubts.iter().find(unknown)
    {
        return because(Ink::Doubt, "nothing could be judged: ", finding);
    }
    if sorted.doubts.is_empty() && passed == 0 {
        let text = "nothing to check: no finding concerns this machine";
        return plain(Ink::Faint, text.to_owned());
    }
    match doubts(&sorted.doubts) {
        None => plain(Ink::Good, good),
        Some(doubts) => plain(Ink::Doubt, format!("{good}, with {doubts}")),
    }
}

/// Warnings, and what could not be determined, counted; nothing if there are none.
fn doubts(findings: &[&Finding]) -> Option<String> {
    let unknown = (findings.iter())
        .filter(|finding| finding.status == Verdict::Unknown)
        .count();
    let warnings = match findings.len() - unknown {
        0 => None,
        1 => Some("1 warning".to_owned()),
        warnings => Some(format!("{warnings} warnings")),
    };
    match (warnings, unknown) {
        (warnings, 0) => warnings,
        (None, unknown) => Some(format!("{unknown} unknown")),
        (Some(warnings), unknown) => Some(format!("{warnings} and {unknown} unknown")),
    }
}

/// What was examined.
#[derive(Debug, Clone, Copy)]
pub struct Examined {
    /// The whole node. Otherwise a part that was asked for, and the verdict is about that part.
    pub whole: bool,
    /// The machine that runs the command. Otherwise a tree or a text that tells of another one.
    pub here: bool,
}

/// The result of `check`: the verdict, what fails, what would change, and how many pass.
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
    writeln!(to, "{}", style.paint(headline.ink, &headline.text))?;
    if style.verbose {
        for finding in &report.findings {
            writeln!(to)?;
            row(to, finding, Shown::ALL, style)?;
        }
    } else {
        problems(to, &sorted, (&headline, examined), style)?;
    }
    if !report.notes.is_empty() {
        writeln!(to)?;
        notes(to, &report.notes, style)?;
    }
    let count = Verdicts::of(&report.findings);
    let parts = [
        (count.fail, "fail", Ink::Bad),
        (count.warn, "warn", Ink::Doubt),
        (count.unknown, "unknown", Ink::Doubt),
        (count.pass, "pass", Ink::Good),
        (count.skip, "skip", Ink::Faint),
    ];
    let hidden = sorted.rest.len() + sorted.folded.len() + sorted.at_boot.len() > 0;
    footer(to, &counted(&parts, style), hidden, style)?;
    to.flush()
}

/// Whether the first line has told the whole reason of a finding.
fn is_told(headline: &Headline<'_>, finding: &Finding) -> bool {
    (headline.tells).is_some_and(|told| std::ptr::eq(told, finding))
}

fn problems(
    to: &mut dyn Write,
    sorted: &Sorted<'_>,
    (headline, examined): (&Headline<'_>, Examined),
    style: Style,
) -> io::Result<()> {
    let first = sorted.warning.iter();
    for finding in first.chain(&sorted.broken).chain(&sorted.doubts) {
        writeln!(to)?;
        let show = Shown {
            why: !is_told(headline, finding),
            // The command follows once, after everything that it changes.
            install: sorted.drift.is_empty(),
        };
        row(to, finding, show, style)?;
        let head = format!("{}{BLOCKED} ", " ".repeat(TEXT));
        listed(to, &head, &sorted.under(finding), style)?;
    }
    if !sorted.drift.is_empty() {
        if sorted.warning.is_some() || !sorted.broken.is_empty() {
            let text = format!("{} would change:", things(sorted.changes));
            writeln!(to, "\n{}", style.paint(Ink::Doubt, &text))?;
        }
        writeln!(to)?;
        for finding in &sorted.drift {
            let title = style.titled(&finding.title, finding.id.as_str());
            writeln!(to, "{}", style.hanging("  - ", &title))?;
            if !is_told(headline, finding) {
                writeln!(to, "{}", style.indented(4, &finding.why))?;
            }
            let head = format!("    {BLOCKED} ");
            listed(to, &head, &sorted.under(finding), style)?;
        }
        let why = match examined.here {
            true => "To make these changes:",
            false => "To make these changes, run on that machine:",
        };
        next_step(to, why, INSTALL, style)?;
    }
    if !sorted.at_boot.is_empty() {
        writeln!(to)?;
        listed(to, "left for the first boot: ", &sorted.at_boot, style)?;
    }
    Ok(())
}

/// Findings by title only.
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

/// The parts of a finding that are said nowhere else.
#[derive(Clone, Copy)]
struct Shown {
    why: bool,
    install: bool,
}

impl Shown {
    const ALL: Self = Self {
        why: true,
        install: true,
    };
}

fn row(to: &mut dyn Write, finding: &Finding, show: Shown, style: Style) -> io::Result<()> {
    let head = style.column(of_verdict(finding.status), word(finding.status), TEXT);
    let title = style.titled(&finding.title, finding.id.as_str());
    writeln!(to, "{}", style.hanging(&head, &title))?;
    if show.why {
        writeln!(to, "{}", style.indented(TEXT, &finding.why))?;
    }
    if finding.status == Verdict::Pass || finding.status == Verdict::Skip {
        return Ok(());
    }
    for (name, value) in [
        ("observed", &finding.observed),
        ("expected", &finding.expected),
    ] {
        // The reason often has the value already, and the title what is expected.
        let said = |value: &&String| {
            let title = finding.title.to_lowercase();
            finding.why.contains(*value)
                || (name == "expected" && title.contains(&value.to_lowercase()))
        };
        if let Some(value) = value.as_ref().filter(|value| !said(value)) {
            let label = style.paint(Ink::Faint, &format!("{name}:"));
            let head = format!("{}{label} ", " ".repeat(TEXT));
            writeln!(to, "{}", style.hanging(&head, value))?;
        }
    }
    let said = |remedy: &&String| !show.install && remedy.as_str() == format!("run `{INSTALL}`");
    if let Some(remedy) = finding.remedy.as_ref().filter(|remedy| !said(remedy)) {
        let label = style.paint(Ink::Hint, "remedy:");
        let head = format!("{}{label} ", " ".repeat(TEXT));
        writeln!(to, "{}", style.advice(&head, remedy))?;
    }
    for link in &finding.links {
        writeln!(to, "{}{link}", " ".repeat(TEXT))?;
    }
    Ok(())
}
