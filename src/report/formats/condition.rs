use super::line;
use crate::{
    check::{FailOn, Finding, Verdict},
    config::desired::ConditionMeaning,
    engine::{Maintenance, MaintenanceState, RunReport},
    exit::Exit,
    model::{
        findings::{Kind, Remedy},
        id::Id,
    },
    tools::kubernetes::condition::ConditionStatus,
};

/// Maximum message length in characters, because `kubectl describe node` shows the message on one line.
const LONGEST: usize = 250;

/// Whether a finding is not about the GPUs, but about the cluster or `check` itself. The GPU condition ignores these findings:
/// CNI pods may wait for this condition, and the node becomes Ready only after they have started.
fn of_cluster(id: &Id) -> bool {
    ["k8s.", "cluster.", "check."]
        .iter()
        .any(|layer| id.as_str().starts_with(layer))
}

/// Returns the node condition: whether GPUs, driver and runtimes work. `fail_on` selects the problems.
pub fn condition(
    report: &RunReport,
    meaning: ConditionMeaning,
    fail_on: &[FailOn],
    gpus: usize,
) -> ConditionStatus {
    let own: Vec<&Finding> = (report.findings.iter())
        .filter(|finding| !of_cluster(&finding.id))
        .collect();
    let is_selected = |finding: &Finding| fail_on.iter().any(|on| on.selects(finding));
    let problems: Vec<&&Finding> = (own.iter())
        .filter(|finding| is_selected(finding))
        .collect();
    let root = (problems.iter())
        .find(|finding| finding.because.is_none())
        .or(problems.first());
    // The GPUs are usable if only findings of `of_cluster` failed and no other finding is unknown.
    let of_cluster_alone = (report.findings.iter())
        .any(|finding| of_cluster(&finding.id) && is_selected(finding))
        && !own.iter().any(|finding| finding.status == Verdict::Unknown);
    let all_seen = report.exit == Exit::Ok || of_cluster_alone;
    let (ready, reason, message) = match root {
        Some(finding) => {
            let remedy = finding.class().map_or("none", Remedy::name);
            let kind = finding.kind().map_or("fault", Kind::name);
            let why = format!(
                "{kind} {} (remedy: {remedy}): {}",
                finding.id,
                line(&finding.why)
            );
            (Some(false), "CheckFailed", why)
        }
        None if all_seen => {
            let count = match gpus {
                0 => "no GPU".to_owned(),
                1 => "1 GPU".to_owned(),
                more => format!("{more} GPUs"),
            };
            let what = format!("{count}; no fault in driver and runtimes");
            (Some(true), "GPUsReady", what)
        }
        None => {
            let first = own.iter().find(|one| one.status == Verdict::Unknown);
            let why = first.map_or_else(
                || "not everything could be examined".to_owned(),
                |one| format!("{}: {}", one.id, line(&one.why)),
            );
            (None, "CheckIncomplete", why)
        }
    };
    ConditionStatus {
        status: match ready {
            None => "Unknown",
            Some(ready) if ready == (meaning == ConditionMeaning::Ready) => "True",
            Some(_) => "False",
        },
        reason,
        message,
    }
}

/// Returns the node condition while `upgrade` has taken the node out of service: the node is not ready, whatever its state.
/// `None` while the upgrade waits, because the node is in service.
pub fn condition_in_maintenance(
    maintenance: Maintenance,
    meaning: ConditionMeaning,
) -> Option<ConditionStatus> {
    let Maintenance { since, state } = maintenance;
    let since = since.strftime("%Y-%m-%d %H:%M:%S UTC");
    let (reason, message) = match state {
        MaintenanceState::Failed => (
            "UpgradeFailed",
            format!(
                "out of service since {since}; see the annotation gpu-bootstrap/upgrade-failed"
            ),
        ),
        MaintenanceState::OutOfService => ("Upgrading", format!("out of service since {since}")),
        MaintenanceState::Waiting => return None,
    };
    Some(ConditionStatus {
        status: match meaning {
            ConditionMeaning::Ready => "False",
            ConditionMeaning::Problem => "True",
        },
        reason,
        message,
    })
}

/// Truncates a message to [`LONGEST`] characters. Hide secrets first, because a truncated secret would not be recognized.
pub fn cut(message: &str) -> String {
    match message.char_indices().nth(LONGEST - 1) {
        Some((at, _)) if message.chars().count() > LONGEST => format!("{}…", &message[..at]),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Mode;

    fn report(exit: Exit, findings: &[(&'static str, Verdict)]) -> RunReport {
        RunReport {
            findings: (findings.iter())
                .map(|(id, status)| Finding::new(Id::new(id), *status, "it\nis \u{1b}[31moff"))
                .collect(),
            ..RunReport::new(Mode::Check, "1".to_owned(), exit)
        }
    }

    fn said(exit: Exit, findings: &[(&'static str, Verdict)]) -> (&'static str, &'static str) {
        let said = condition(
            &report(exit, findings),
            ConditionMeaning::Ready,
            &[FailOn::Fail],
            8,
        );
        (said.status, said.reason)
    }

    #[test]
    fn node_in_maintenance_is_not_ready() {
        use MaintenanceState::{Failed, OutOfService, Waiting};
        for (state, meaning, expected) in rows! {
            OutOfService, ConditionMeaning::Ready, Some(("False", "Upgrading"));
            Failed, ConditionMeaning::Ready, Some(("False", "UpgradeFailed"));
            Failed, ConditionMeaning::Problem, Some(("True", "UpgradeFailed"));
            Waiting, ConditionMeaning::Ready, None;
        } {
            let since = "2026-11-28T02:00:00Z".parse().unwrap();
            let said = condition_in_maintenance(Maintenance { since, state }, meaning);
            let said = said.map(|said| (said.status, said.reason));
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn condition_depends_on_machine_findings_only() {
        use Verdict::{Fail, Pass, Unknown, Warn};
        let pass = ("driver.module", Pass);
        for (exit, findings, expected) in rows! {
            Exit::Ok, &[pass][..], ("True", "GPUsReady");
            Exit::Ok, &[pass, ("mem.remap.pending", Warn)], ("True", "GPUsReady");
            // CNI pods may wait for a controller that removes a taint only when this condition is True.
            Exit::Drift, &[pass, ("k8s.ready", Fail)], ("True", "GPUsReady");
            // An unknown finding keeps the condition unknown, even if only cluster findings failed.
            Exit::Drift, &[("driver.module", Unknown), ("k8s.ready", Fail)],
                ("Unknown", "CheckIncomplete");
            Exit::Drift, &[("driver.module", Fail)], ("False", "CheckFailed");
            Exit::Drift, &[("k8s.ready", Fail), ("driver.module", Fail)], ("False", "CheckFailed");
            Exit::Drift, &[("driver.module", Unknown)], ("Unknown", "CheckIncomplete");
        } {
            assert_eq!(said(exit, findings), expected, "{findings:?}");
        }
        let warned = report(Exit::Drift, &[pass, ("mem.remap.pending", Warn)]);
        let strict = condition(&warned, ConditionMeaning::Ready, &[FailOn::Warn], 8);
        assert_eq!(strict.status, "False");
        let theirs = condition(&warned, ConditionMeaning::Problem, &[FailOn::Warn], 8);
        assert_eq!((theirs.status, theirs.reason), ("True", strict.reason));
        let fine = report(Exit::Ok, &[pass]);
        let fine = condition(&fine, ConditionMeaning::Problem, &[FailOn::Fail], 1);
        assert_eq!(fine.status, "False");
        assert_eq!(fine.message, "1 GPU; no fault in driver and runtimes");
    }

    #[test]
    fn message_is_one_line_with_root_cause_and_remedy() {
        let mut broken = report(
            Exit::Drift,
            &[
                ("driver.module", Verdict::Fail),
                ("pci.gpu.present", Verdict::Fail),
            ],
        );
        broken.findings[0].because = Some(Id::new("pci.gpu.present"));
        let said = |broken: &RunReport| {
            condition(broken, ConditionMeaning::Ready, &[FailOn::Fail], 8).message
        };
        let first = said(&broken);
        assert!(
            first.starts_with("fault pci.gpu.present (remedy: "),
            "{first}"
        );
        assert!(first.ends_with("): it is [31moff"), "{first}");
        broken.findings[1].remedy_class = Some(Remedy::PowerCycle);
        let own = said(&broken);
        assert!(
            own.starts_with("fault pci.gpu.present (remedy: power-cycle): "),
            "{own}"
        );
        broken.findings[1].why = "é".repeat(400);
        let long = cut(&said(&broken));
        assert_eq!(long.chars().count(), LONGEST);
        assert!(long.ends_with("é…"), "{long}");
        assert_eq!(cut(&"é".repeat(LONGEST)), "é".repeat(LONGEST));
    }
}
