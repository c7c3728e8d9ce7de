//! The output of `status` for people.

use std::io::{self, Write};

use super::{Style, human::outcomes, style::Ink, words::things};
use crate::{
    engine::{Current, StatusSummary},
    journal::GoingBack,
};

/// The width of the column of labels, with the gap behind it: the longest is `last run`.
const TEXT: usize = 10;

/// What to do next, and why.
type NextStep = (&'static str, &'static str);

const INSTALL: &str = "gpu-bootstrap install";

/// The current run or the result of the last one, what is awaited, and what to do.
///
/// # Errors
/// An error of the writer.
pub fn write(to: &mut dyn Write, status: &StatusSummary, style: Style) -> io::Result<()> {
    let (ink, verdict, next) = verdict(status);
    writeln!(to, "{}", style.hanging("", &style.paint(ink, &verdict)))?;
    let mut lines = Vec::new();
    if let Some(current) = &status.current {
        lines.extend(progress(current));
    }
    if let Some(run) = &status.last {
        let how = match &run.ended {
            Some(ended) => format!(
                "ended {} with status {}: {}",
                when(ended.at),
                ended.exit,
                outcomes(&ended.summary, style)
            ),
            None => "has not ended".to_owned(),
        };
        lines.push((
            "last run",
            format!(
                "`{}` of version {}, started {}, {how}",
                run.mode,
                run.tool,
                when(run.started)
            ),
        ));
    }
    if let Some(GoingBack { from, to, why }) = &status.going_back {
        lines.push((
            "rollback",
            format!("from driver {from}, which has failed validation ({why}), to {to}"),
        ));
    }
    if status.gave_up.is_none() && status.unfinished_boots > 0 {
        let boots = match status.unfinished_boots {
            1 => "1 boot".to_owned(),
            boots => format!("{boots} boots"),
        };
        lines.push((
            "boots",
            format!("{boots} in a row ended before the run did"),
        ));
    }
    if status.changes_standing > 0 {
        lines.push((
            "to undo",
            format!(
                "{}, made for {} steps, with `gpu-bootstrap uninstall`",
                things(status.changes_standing),
                status.steps_standing.len()
            ),
        ));
    }
    if !lines.is_empty() {
        writeln!(to)?;
    }
    for (label, text) in lines {
        let head = style.column(Ink::Faint, label, TEXT);
        writeln!(to, "{}", style.hanging(&head, &text))?;
    }
    if let Some((why, command)) = next {
        writeln!(to, "\n{}", style.hanging("", why))?;
        writeln!(to, "\n    {}", style.paint(Ink::Strong, command))?;
    }
    to.flush()
}

/// The first line, and the next step if a person has to do it.
fn verdict(status: &StatusSummary) -> (Ink, String, Option<NextStep>) {
    let alive = status.current.as_ref().filter(|current| current.alive);
    if let Some(current) = alive {
        let steps = &current.progress.steps;
        let ended = steps.iter().filter(|step| step.outcome.is_some());
        let text = format!(
            "running: `{}`, {} of {} steps have ended",
            current.progress.mode,
            ended.count(),
            steps.len()
        );
        return (Ink::Strong, text, None);
    }
    if let Some(why) = &status.gave_up {
        let text = format!("gave up: {why}");
        return (Ink::Bad, text, Some(("To try again:", INSTALL)));
    }
    if let Some(awaited) = &status.awaited_reboot {
        let by_itself = "the run continues by itself";
        return match (status.reboot_due, awaited.automatic) {
            (true, true) => {
                let text = format!("a reboot is awaited: {}; {by_itself}", awaited.why);
                (Ink::Doubt, text, Some(("To continue:", "reboot")))
            }
            (true, false) => {
                let text = format!("a reboot is awaited: {}", awaited.why);
                let why = "Reboot, then continue with:";
                (Ink::Doubt, text, Some((why, INSTALL)))
            }
            (false, true) => (Ink::Doubt, format!("rebooted: {by_itself}"), None),
            (false, false) => {
                let text = "rebooted: the run has not been continued".to_owned();
                (Ink::Doubt, text, Some(("To continue:", INSTALL)))
            }
        };
    }
    if status.interrupted {
        let text = "interrupted: a change was started and has not ended".to_owned();
        let why = "To continue (or `gpu-bootstrap uninstall` to undo):";
        return (Ink::Bad, text, Some((why, INSTALL)));
    }
    let Some(run) = &status.last else {
        let text = "nothing was run on this machine yet".to_owned();
        return (Ink::Faint, text, None);
    };
    match &run.ended {
        Some(ended) if ended.exit == 0 => {
            let text = format!("done: the last `{}` ended well", run.mode);
            let why = "Whether the machine is ready now:";
            (Ink::Good, text, Some((why, "gpu-bootstrap check")))
        }
        Some(ended) => {
            let text = format!("not done: `{}` ended with status {}", run.mode, ended.exit);
            let why = "To see what is wrong now:";
            (Ink::Bad, text, Some((why, "gpu-bootstrap check")))
        }
        None => {
            let text = format!("cut off: `{}` ended without a result", run.mode);
            (Ink::Bad, text, Some(("To continue:", INSTALL)))
        }
    }
}

fn progress(current: &Current) -> Vec<(&'static str, String)> {
    let progress = &current.progress;
    let mut lines = vec![(
        if current.alive { "process" } else { "cut off" },
        format!(
            "`{}` (pid {}), started {}",
            progress.command,
            progress.pid,
            when(progress.since)
        ),
    )];
    if !current.alive {
        return lines;
    }
    lines.extend(
        progress
            .changes
            .iter()
            .map(|change| ("now", change.clone())),
    );
    lines.extend(progress.detail.iter().map(|detail| ("", detail.clone())));
    lines
}

/// A time to the second.
fn when(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document;

    fn text(status: &StatusSummary) -> String {
        let mut out = Vec::new();
        write(&mut out, status, Style::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_status_without_any_run() {
        let none = StatusSummary {
            current: None,
            last: None,
            awaited_reboot: None,
            reboot_due: false,
            reboots: 0,
            unfinished_boots: 0,
            gave_up: None,
            going_back: None,
            request: None,
            changes_standing: 0,
            steps_standing: Vec::new(),
            interrupted: false,
        };
        assert_eq!(text(&none), "nothing was run on this machine yet\n");
        let document = serde_json::to_value(document::status(&none)).unwrap();
        assert_eq!(document["status"]["changes-standing"], 0);
        // While a driver that failed is replaced by the one before, this is said.
        let back = StatusSummary {
            going_back: Some(GoingBack {
                from: "595.91.07".to_owned(),
                to: "580.178.04".to_owned(),
                why: "NVML fails".to_owned(),
            }),
            ..none
        };
        assert_eq!(
            text(&back),
            "nothing was run on this machine yet\n\n\
         rollback  from driver 595.91.07, which has failed validation (NVML fails), to\n          \
         580.178.04\n"
        );
        let document = serde_json::to_value(document::status(&back)).unwrap();
        assert_eq!(document["status"]["going-back"]["to"], "580.178.04");
    }
}
