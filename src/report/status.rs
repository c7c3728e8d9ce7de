//! The human-readable output of `status`.

use std::io::{self, Write};

use super::{
    Style,
    human::{node, outcomes},
    messages::things,
    style::Ink,
};
use crate::{
    check::{INSTALL, UPGRADE},
    engine::{Current, Maintenance, MaintenanceState, StatusSummary},
    journal::RollbackStarted,
    model::text::counted,
};

/// Width of the label column including the gap. The longest label is `last run`.
const TEXT: usize = 10;

/// An introduction, and the command to run next.
type NextStep = (&'static str, String);

/// Writes the current run or the last result, a pending reboot, and the next command.
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
            None => "not finished".to_owned(),
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
    let ended = status.last.as_ref().and_then(|run| run.ended.as_ref());
    let failed = status
        .failed_upgrade
        .as_ref()
        .and_then(|one| one.why.as_ref());
    // The reason of a failed upgrade is shown below.
    if let (Some(why), None) = (ended.and_then(|ended| ended.why.as_ref()), failed) {
        lines.push(("reason", why.clone()));
    }
    if let Some(node) = ended.and_then(|ended| ended.node.as_ref()) {
        lines.extend(node::rows(node));
    }
    if let Some(RollbackStarted { from, to, why }) = &status.rollback_started {
        lines.push((
            "rollback",
            format!("from driver {from}, which failed validation ({why}), to {to}"),
        ));
    }
    if let Some(Maintenance { since, state }) = status.maintenance {
        let since = when(since);
        let text = match state {
            MaintenanceState::Waiting => {
                format!("waiting for the fleet lock or for the end of its workloads since {since}")
            }
            MaintenanceState::OutOfService => format!("out of service since {since}"),
            MaintenanceState::Failed => {
                let failed = status.failed_upgrade.as_ref();
                let why = failed.and_then(|failed| failed.why.as_ref());
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                format!("out of service since {since}; the upgrade failed{why}")
            }
        };
        lines.push(("upgrade", text));
    }
    if let Some(failed) = &status.failed_upgrade {
        let text = match (&failed.driver, &failed.driver_unknown) {
            (Some(driver), _) => format!("{driver} is loaded"),
            (None, None) => "none is loaded".to_owned(),
            (None, Some(why)) => format!("unknown: {why}"),
        };
        lines.push(("driver", text));
    }
    if status.gave_up.is_none() && status.unfinished_boots > 0 {
        let boots = match status.unfinished_boots {
            1 => "1 boot".to_owned(),
            boots => format!("{boots} consecutive boots"),
        };
        lines.push(("boots", format!("{boots} ended before the run finished")));
    }
    if status.changes_applied > 0 {
        lines.push((
            "to undo",
            format!(
                "{} changed by {}; `gpu-bootstrap uninstall` reverts them",
                things(status.changes_applied),
                counted(status.steps_applied.len(), "step")
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
        writeln!(to, "\n    {}", style.paint(Ink::Strong, &command))?;
    }
    to.flush()
}

/// The command that continues the last run.
fn again(status: &StatusSummary) -> String {
    if status.last.as_ref().is_some_and(|run| !run.installs()) {
        return "gpu-bootstrap uninstall".to_owned();
    }
    match &status.request {
        // With the same options, lock file and secrets.
        Some(request) if request.upgrade => format!("{UPGRADE} --as-installed"),
        Some(request) if status.maintenance.is_none() => request.append_to(INSTALL),
        _ if status.maintenance.is_some() => UPGRADE.to_owned(),
        _ => INSTALL.to_owned(),
    }
}

/// The command after a failed upgrade. The settings and the lock file that selected its driver are omitted.
fn with_other_driver(status: &StatusSummary) -> String {
    let Some(request) = &status.request else {
        return UPGRADE.to_owned();
    };
    let mut request = request.clone();
    request
        .set
        .retain(|setting| !setting.starts_with("driver."));
    (request.lock_path, request.bundle) = (None, None);
    request.append_to(UPGRADE)
}

/// The next command after a run with an error.
fn after_error(status: &StatusSummary) -> NextStep {
    match status.maintenance.map(|one| one.state) {
        Some(MaintenanceState::Failed) => (
            "Remove the reason, or restore the previous driver in the settings to return the node to service, then run:",
            with_other_driver(status),
        ),
        Some(_) => ("To continue the upgrade:", again(status)),
        None => (
            "To see the current problems:",
            "gpu-bootstrap check".to_owned(),
        ),
    }
}

/// The first line, and the next command if there is one.
fn verdict(status: &StatusSummary) -> (Ink, String, Option<NextStep>) {
    let alive = status.current.as_ref().filter(|current| current.alive);
    if let Some(current) = alive {
        let steps = &current.progress.steps;
        let ended = steps.iter().filter(|step| step.outcome.is_some());
        let text = format!(
            "running: `{}`, {} of {} steps finished",
            current.progress.mode,
            ended.count(),
            steps.len()
        );
        return (Ink::Strong, text, None);
    }
    if let Some(why) = &status.gave_up {
        let text = format!("gave up: {why}");
        return (Ink::Bad, text, Some(("To try again:", again(status))));
    }
    if let Some(awaited) = &status.awaited_reboot {
        let by_itself = "the run continues automatically";
        return match (status.reboot_due, awaited.automatic) {
            (true, true) => {
                let text = format!("waiting for a reboot: {}; {by_itself}", awaited.why);
                (
                    Ink::Doubt,
                    text,
                    Some(("To continue:", "reboot".to_owned())),
                )
            }
            (true, false) => {
                let text = format!("waiting for a reboot: {}", awaited.why);
                let why = "Reboot, then continue with:";
                (Ink::Doubt, text, Some((why, again(status))))
            }
            (false, true) => (Ink::Doubt, format!("rebooted: {by_itself}"), None),
            (false, false) => {
                let text = "rebooted: the run was not continued".to_owned();
                (Ink::Doubt, text, Some(("To continue:", again(status))))
            }
        };
    }
    if status.interrupted {
        let text = "interrupted: a change was started but did not finish".to_owned();
        let why = "To continue (or `gpu-bootstrap uninstall` to undo):";
        return (Ink::Bad, text, Some((why, again(status))));
    }
    let Some(run) = &status.last else {
        let text = "gpu-bootstrap has not run on this machine yet".to_owned();
        return (Ink::Faint, text, None);
    };
    match &run.ended {
        Some(ended) if ended.exit == 0 => {
            let text = format!("done: the last `{}` succeeded", run.mode);
            let why = "To check if the machine is ready now:";
            (
                Ink::Good,
                text,
                Some((why, "gpu-bootstrap check".to_owned())),
            )
        }
        Some(ended) => {
            let text = format!("not done: `{}` ended with status {}", run.mode, ended.exit);
            (Ink::Bad, text, Some(after_error(status)))
        }
        None => {
            let text = format!("interrupted: `{}` ended without a result", run.mode);
            (Ink::Bad, text, Some(("To continue:", again(status))))
        }
    }
}

fn progress(current: &Current) -> Vec<(&'static str, String)> {
    let progress = &current.progress;
    let mut lines = vec![(
        if current.alive { "process" } else { "stopped" },
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

/// Formats a time with a resolution of one second.
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
    fn status_without_a_run_is_shown() {
        let none = StatusSummary {
            current: None,
            last: None,
            awaited_reboot: None,
            reboot_due: false,
            reboots: 0,
            unfinished_boots: 0,
            gave_up: None,
            maintenance: None,
            failed_upgrade: None,
            rollback_started: None,
            request: None,
            changes_applied: 0,
            steps_applied: Vec::new(),
            interrupted: false,
        };
        assert_eq!(
            text(&none),
            "gpu-bootstrap has not run on this machine yet\n"
        );
        let document = serde_json::to_value(document::status(&none)).unwrap();
        assert_eq!(document["status"]["changes-applied"], 0);
        // A running rollback is shown.
        let back = StatusSummary {
            rollback_started: Some(RollbackStarted {
                from: "595.91.07".to_owned(),
                to: "580.178.04".to_owned(),
                why: "NVML fails".to_owned(),
            }),
            ..none
        };
        assert_eq!(
            text(&back),
            "gpu-bootstrap has not run on this machine yet\n\n\
         rollback  from driver 595.91.07, which failed validation (NVML fails), to\n          \
         580.178.04\n"
        );
        let document = serde_json::to_value(document::status(&back)).unwrap();
        assert_eq!(document["status"]["rollback-started"]["to"], "580.178.04");
    }
}
