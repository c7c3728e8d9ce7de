//! The result of `install` and `uninstall`. The views of the events (`plain.rs`, `terminal.rs`) report the progress.

use std::io::{self, Write};

use super::{footer, next_step, node, outcomes};
use crate::{
    engine::{Mode, RunReport, StepReport},
    event::{Outcome, Summary},
    exit::Exit,
    report::{
        Style,
        error::block,
        messages::{duration, things},
        style::{Ink, of_outcome},
    },
};

/// Width of the outcome column including the gap. The longest outcome is `not-applicable`.
const TEXT: usize = 16;

/// Width of the label column of the node including the gap. The longest labels are `toolkit` and `reboots`.
const LABEL: usize = 9;

/// The result of `install` or `uninstall`: the verdict and the counts, with `-v` also every step.
///
/// # Errors
/// An error of the writer.
pub fn run(to: &mut dyn Write, report: &RunReport, style: Style) -> io::Result<()> {
    let (ink, verdict) = verdict(report);
    let time = duration(report.seconds);
    writeln!(to, "{}", style.paint(ink, &verdict))?;
    if let Some(node) = &report.node {
        writeln!(to)?;
        for (label, text) in node::rows(node) {
            let head = style.column(Ink::Faint, label, LABEL);
            writeln!(to, "{}", style.hanging(&format!("  {head}"), &text))?;
        }
    }
    if style.verbose && !report.steps.is_empty() {
        writeln!(to)?;
        for step in &report.steps {
            let head = style.column(of_outcome(step.outcome), step.outcome.word(), TEXT);
            let title = style.titled(&step.title, step.id.as_str());
            let text = format!("{title} {}", duration(step.seconds));
            writeln!(to, "{}", style.hanging(&head, &text))?;
            writeln!(to, "{}", style.indented(TEXT, &step.why))?;
        }
    }
    if !report.steps.is_empty() {
        let all = (report.to_ready).filter(|all| all - report.seconds > 1.0);
        let all = all.map_or(String::new(), |all| {
            format!(", {} with earlier runs", duration(all))
        });
        let counts = format!("{} in {time}{all}", outcomes(&report.summary(), style));
        footer(to, &counts, true, style)?;
    }
    if let Some(node) = report
        .node
        .as_ref()
        .filter(|node| !node.commands.is_empty())
    {
        writeln!(to, "\nNext:\n")?;
        for command in &node.commands {
            writeln!(to, "    {}", style.paint(Ink::Strong, command))?;
        }
    }
    to.flush()
}

fn verdict(report: &RunReport) -> (Ink, String) {
    let summary = report.summary();
    let changed = match summary.changed {
        0 => "nothing to change".to_owned(),
        count => format!("{} changed", things(count)),
    };
    match report.exit {
        Exit::Ok if report.mode == Mode::Uninstall => match summary.changed {
            0 => (Ink::Good, "nothing to undo".to_owned()),
            _ => (Ink::Good, "undone: all changes were reverted".to_owned()),
        },
        // An upgrade outside of the maintenance window.
        Exit::Ok if summary.not_run > 0 => (
            Ink::Doubt,
            "not upgraded yet: nothing was changed".to_owned(),
        ),
        Exit::Ok => (Ink::Good, done(&changed, &summary)),
        Exit::RebootRequired => (
            Ink::Doubt,
            format!("not ready yet: {changed}, and a reboot is needed"),
        ),
        Exit::Partial if report.mode == Mode::Uninstall => (
            Ink::Doubt,
            format!("partly undone: {} left", things(report.left.len())),
        ),
        // The desired state is reached, but some obsolete changes could not be reverted.
        Exit::Partial => (
            Ink::Doubt,
            format!(
                "{}; {} not reverted (no longer configured)",
                done(&changed, &summary),
                things(report.left.len())
            ),
        ),
        Exit::Interrupted | Exit::Terminated => (
            Ink::Doubt,
            format!("interrupted: {changed}, and the rest is not done"),
        ),
        // The reason and the hint are printed on standard error.
        Exit::Blocked if summary.changed == 0 => {
            (Ink::Bad, "blocked: nothing was changed".to_owned())
        }
        Exit::Blocked => (Ink::Bad, format!("blocked after {changed}")),
        exit => match report
            .steps
            .iter()
            .find(|step| step.outcome == Outcome::Failed)
        {
            Some(step) => (Ink::Bad, format!("not ready: {} failed", step.title)),
            None if rollback_finished(report) => (
                Ink::Bad,
                "rolled back: the requested driver failed, the previous driver works".to_owned(),
            ),
            None => match report
                .steps
                .iter()
                .find(|step| step.outcome == Outcome::Blocked)
            {
                Some(step) => (Ink::Bad, format!("not ready: {} is blocked", step.title)),
                None => match stopped(report) {
                    Some(step) => (Ink::Bad, format!("not ready: {}", step.why)),
                    None => (Ink::Bad, format!("not ready: exit status {}", exit.code())),
                },
            },
        },
    }
}

/// Whether the run rolled the driver back: every step succeeded, but the exit status reports a failure.
fn rollback_finished(report: &RunReport) -> bool {
    let is_done = |step: &StepReport| {
        matches!(
            step.outcome,
            Outcome::Changed | Outcome::Satisfied | Outcome::NotApplicable
        )
    };
    let install = report.mode != Mode::Uninstall && report.exit == Exit::StepFailed;
    install && !report.steps.is_empty() && report.steps.iter().all(is_done)
}

/// The first step that was not run because the deadline passed between two steps, so that no step failed.
fn stopped(report: &RunReport) -> Option<&StepReport> {
    let find = |wanted: &[Outcome]| {
        let mut steps = report.steps.iter();
        steps.find(|step| wanted.contains(&step.outcome))
    };
    if report.exit != Exit::StepFailed || find(&[Outcome::Failed, Outcome::Blocked]).is_some() {
        return None;
    }
    find(&[Outcome::NotRun]).filter(|step| !step.why.is_empty())
}

/// The verdict of an `install` that reached the desired state.
fn done(changed: &str, summary: &Summary) -> String {
    match summary.awaiting_boot {
        0 => format!("ready: {changed}"),
        count => format!(
            "prepared: {changed}; the first boot finishes {}",
            things(count)
        ),
    }
}

/// The problems of an unsuccessful `install` or `uninstall`: each failure with its causes
/// and its hint, and a required reboot. For standard error.
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
        writeln!(to)?;
        told.push(step);
        // A failed transaction fails all of its steps with the same error. Report the error once, with all titles.
        let titles: Vec<String> = report
            .steps
            .iter()
            .filter(same)
            .map(|step| style.titled(&step.title, step.id.as_str()))
            .collect();
        block(
            to,
            style,
            &format!("{}: {}", titles.join(", "), step.why),
            &step.causes,
            step.hint.as_deref(),
        )?;
    }
    if let Some(step) = stopped(report) {
        writeln!(to)?;
        let text = format!(
            "{}: {}",
            style.titled(&step.title, step.id.as_str()),
            step.why
        );
        let hint =
            "run the same command again: it continues here. `--deadline` sets the time limit";
        block(to, style, &text, &[], Some(hint))?;
    }
    let options = match report.mode {
        Mode::Uninstall => "",
        _ => ", with the same options",
    };
    let say = |to: &mut dyn Write, text: &str| writeln!(to, "\n{}", style.hanging("", text));
    match (&report.reboot, report.exit) {
        (Some(reboot), _) if reboot.automatic => say(
            to,
            &format!("rebooting: {}; the run continues automatically", reboot.why),
        )?,
        (Some(reboot), _) => {
            say(to, &format!("a reboot is needed: {}", reboot.why))?;
            let text = "After the reboot, with the same options:";
            next_step(to, text, report.mode.command(), style)?;
        }
        (None, Exit::Partial) => {
            let text = format!(
                "The remaining changes stay recorded. When the problem is solved{options}:"
            );
            next_step(to, &text, report.mode.command(), style)?;
        }
        (None, Exit::Interrupted | Exit::Terminated) => {
            let text = format!("All changes are recorded. To continue{options}:");
            next_step(to, &text, report.mode.command(), style)?;
        }
        _ => {}
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::StepId;

    fn report(mode: Mode, exit: Exit) -> RunReport {
        RunReport {
            seconds: 1.0,
            ..RunReport::new(mode, "1".to_owned(), exit)
        }
    }

    /// The deadline can pass between two steps. Then no step has failed.
    #[test]
    fn deadline_between_two_steps_is_reported_with_its_hint() {
        let step = |id: &'static str, outcome, why: &str| StepReport {
            id: StepId::new(id),
            title: "A step".to_owned(),
            outcome,
            why: why.to_owned(),
            hint: None,
            causes: Vec::new(),
            reason: None,
            seconds: 0.0,
            changes: Vec::new(),
        };
        let passed = "the deadline of 60 s has passed";
        let report = RunReport {
            steps: vec![
                step("a.step", Outcome::Changed, ""),
                step("b.step", Outcome::NotRun, passed),
                step("c.step", Outcome::NotRun, passed),
            ],
            ..report(Mode::Install, Exit::StepFailed)
        };
        let mut text = Vec::new();
        troubles(&mut text, &report, Style::default()).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("(b.step): the deadline of 60 s has passed"),
            "{text}"
        );
        assert_eq!(text.matches("hint: ").count(), 1, "{text}");
        assert_eq!(
            verdict(&report).1,
            "not ready: the deadline of 60 s has passed"
        );
    }

    #[test]
    fn unsuccessful_run_starts_with_the_reason() {
        let of = |outcomes: &[Outcome]| {
            let step = |outcome: &Outcome| StepReport {
                id: StepId::new("a.step"),
                title: "A step".to_owned(),
                outcome: *outcome,
                why: String::new(),
                hint: None,
                causes: Vec::new(),
                reason: None,
                seconds: 0.0,
                changes: Vec::new(),
            };
            verdict(&RunReport {
                steps: outcomes.iter().map(step).collect(),
                ..report(Mode::Install, Exit::StepFailed)
            })
            .1
        };
        assert_eq!(
            of(&[Outcome::Changed, Outcome::Satisfied]),
            "rolled back: the requested driver failed, the previous driver works"
        );
        assert_eq!(
            of(&[Outcome::Changed, Outcome::Blocked]),
            "not ready: A step is blocked"
        );
        assert_eq!(
            of(&[Outcome::Changed, Outcome::NotRun]),
            "not ready: exit status 6"
        );
        assert_eq!(of(&[]), "not ready: exit status 6");
    }

    #[test]
    fn interrupted_run_ends_with_the_command_that_continues_it() {
        for (mode, next) in rows! {
            Mode::Upgrade, "To continue, with the same options:\n\n    gpu-bootstrap upgrade\n";
            Mode::Uninstall, "To continue:\n\n    gpu-bootstrap uninstall\n";
        } {
            for exit in [Exit::Interrupted, Exit::Terminated] {
                let mut said = Vec::new();
                troubles(&mut said, &report(mode, exit), Style::default()).unwrap();
                let said = String::from_utf8(said).unwrap();
                assert!(said.ends_with(next), "{said}");
            }
        }
    }

    #[test]
    fn partial_result_ends_with_the_next_command() {
        for (mode, verdict, next) in rows! {
            Mode::Install,
                "ready: nothing to change; 1 thing not reverted (no longer configured)\n",
                "When the problem is solved, with the same\noptions:\n\n    gpu-bootstrap install\n";
            Mode::Uninstall, "partly undone: 1 thing left\n",
                "When the problem is solved:\n\n    gpu-bootstrap uninstall\n";
        } {
            let report = RunReport {
                left: vec!["`/etc/a`: it was changed".to_owned()],
                ..report(mode, Exit::Partial)
            };
            let mut said = Vec::new();
            run(&mut said, &report, Style::default()).unwrap();
            assert_eq!(String::from_utf8(said).unwrap(), verdict);
            let mut said = Vec::new();
            troubles(&mut said, &report, Style::default()).unwrap();
            let said = String::from_utf8(said).unwrap();
            assert!(said.ends_with(next), "{said}");
        }
    }
}
