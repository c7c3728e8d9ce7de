//! `check`: the findings of steps and of checks in one list.

use std::sync::Arc;

use camino::Utf8PathBuf;
use tokio::task::JoinSet;

use super::{
    Examination, Session, Unresolvable,
    job::Job,
    maintenance::stops_jobs,
    result::{Mode, RunReport},
    survey::hint_by_old_lists,
};
use crate::{
    change::Change,
    check::{Finding, INSTALL, Subject, UPGRADE, Verdict},
    checks::{self, INSTALL_IT, NO_GPU},
    config::desired::Desired,
    error::{causes, one_line},
    exit::Exit,
    facts::Facts,
    journal::RollbackStarted,
    model::{
        findings::{self, Kind, Layer, Remedy},
        id::{Id, stands_for},
        text::shell_word,
    },
    step::{Assessment, StepError},
    steps::{CDI, cdi},
};

/// Systems on which no command can be run, because they have no shell. Talos is controlled with `talosctl` from outside,
/// <https://docs.siderolabs.com/talos/v1.11/learn-more/talos-for-linux-admins>.
const WITHOUT_SHELL: [&str; 1] = ["talos"];

/// The finding about a failed upgrade.
pub(super) const UPGRADE_FAILED: Id = Id::new("node.upgrade");

/// The finding about the desired state of this machine.
pub(super) const RESOLVABLE: Id = Id::new("config.resolvable");

impl Session {
    /// Returns the findings of steps and of checks: faults first, then risks, then differences, each in the order of layers.
    ///
    /// If gpu-bootstrap did not prepare the machine and there are no settings, differences are not evaluated. The exit status
    /// is `Ok` only if `Options::fail_on` selects no finding and everything could be examined. An `unknown` finding of a check
    /// is a valid result, but an error is not, and neither is a complete audit in which nothing passes and something is
    /// unknown. Findings that need a command are skipped with `--root`.
    pub(super) async fn findings(&self, jobs: Vec<Job>) -> RunReport {
        let mut findings: Vec<Finding> = self.resolvable().await.into_iter().collect();
        findings.extend(self.failed_upgrade());
        let mut blind = jobs
            .iter()
            .any(|job| matches!(&job.answer, Some(Err(error)) if error.not_queried().is_none()));
        for examined in self.examine().await {
            match examined {
                Ok(found) => findings.extend(
                    found
                        .into_iter()
                        .filter(|finding| self.tools.options.wants(finding.id.as_str())),
                ),
                Err((ids, error)) => {
                    blind |= error.not_queried().is_none();
                    findings.extend(
                        ids.into_iter()
                            .filter(|id| self.tools.options.wants(id.as_str()))
                            .map(|id| not_seen(id.clone(), &error)),
                    );
                }
            }
        }
        let validated = self.audit.iter().flat_map(|audit| &audit.validated);
        let validated: Vec<&Finding> = validated
            .filter(|finding| self.tools.options.wants(finding.id.as_str()))
            .collect();
        let refresh = self.refresh().await;
        let of_steps = (jobs.iter())
            .filter_map(|job| Some(self.with_tool(job, of_step(job, refresh.as_deref())?)));
        // A validation that ran just now replaces the finding of the step, which is about an earlier validation.
        findings.extend(of_steps.filter(|finding| {
            validated
                .iter()
                .all(|validation_run| validation_run.id != finding.id)
        }));
        // A validation that failed just now is a fault. The registry has these findings as differences, because a missing
        // record also fails.
        findings.extend(
            validated
                .into_iter()
                .cloned()
                .map(|validation_run| Finding {
                    as_kind: (validation_run.status == Verdict::Fail).then_some(Kind::Fault),
                    ..validation_run
                }),
        );
        let state = self.inner.state();
        let os = state.facts().os.as_ref();
        let has_shell = os.is_none_or(|os| !WITHOUT_SHELL.contains(&os.id.as_str()));
        for finding in findings.iter_mut().filter(|_| has_shell) {
            finding.derive_command();
        }
        if (self.audit.as_ref()).is_some_and(|audit| !audit.compares) {
            set_differences_aside(&mut findings, &jobs);
        }
        findings.sort_by_key(|finding| (rank(finding), Layer::of(&finding.id)));
        without_blocked_install(&mut findings, &jobs, self.audit.as_deref());
        sources_before_install(&mut findings);
        if (self.audit.as_ref()).is_some_and(|audit| audit.prepared) && self.is_in_service() {
            upgrade_in_service(&mut findings, &jobs);
        }
        checks::causes::find(&mut findings);
        let options = &self.tools.options;
        for finding in &mut findings {
            if finding.status != Verdict::Pass && options.ignores(finding.id.as_str()) {
                finding.status = Verdict::Skip;
                finding.why = format!("ignored: {}", finding.why);
            }
        }
        let any = |verdict| findings.iter().any(|finding| finding.status == verdict);
        let fails = (findings.iter()).any(|one| options.fail_on.iter().any(|on| on.selects(one)))
            || options.fail_on_unknown && any(Verdict::Unknown);
        // A complete audit in which nothing passes did not examine the machine. With `--only` or `--skip`, this may be the
        // expected result.
        let whole = options.only.is_empty() && options.skip.is_empty();
        blind |= whole && any(Verdict::Unknown) && !any(Verdict::Pass);
        let has_gpus = !self.inner.state().facts().gpus.is_empty();
        blind |= has_gpus
            && (findings.iter()).any(|one| one.id == RESOLVABLE && one.status == Verdict::Unknown);
        self.emit_ends(&jobs);
        RunReport {
            steps: jobs.iter().map(|job| job.report(Vec::new())).collect(),
            findings,
            seconds: self.tools.events.elapsed().as_secs_f64(),
            ..RunReport::new(
                Mode::Check,
                self.tools.events.run().to_owned(),
                if fails || blind {
                    Exit::Drift
                } else {
                    Exit::Ok
                },
            )
        }
    }

    /// Completes the finding about the CDI specification. A broken existing file is a fault that its generator fixes. A
    /// specification that was never generated is only a difference.
    fn with_tool(&self, job: &Job, finding: Finding) -> Finding {
        let Some(Ok(Assessment::Needs { changes, .. })) = &job.answer else {
            return finding;
        };
        if finding.status != Verdict::Fail || job.id != CDI {
            return finding;
        }
        let mut tools = changes.iter().filter_map(|change| match change {
            Change::RunTool {
                command, writes, ..
            } => Some((command, writes)),
            _ => None,
        });
        let files = &self.inner.host.files;
        // Treat a file that cannot be examined as existing, because only a missing file is not a fault.
        let is_there = |path: &Utf8PathBuf| files.exists(path).unwrap_or(true);
        match tools.find(|(_, writes)| writes.iter().any(is_there)) {
            // If the file is hidden by a correct one, containers work until that one is gone.
            Some((command, _)) => {
                let is_served = finding.why.contains(cdi::SERVED);
                let finding = Finding {
                    status: if is_served {
                        Verdict::Warn
                    } else {
                        finding.status
                    },
                    as_kind: is_served.then_some(Kind::Risk),
                    ..finding
                };
                // On a prepared machine, `install` generates the file and validates it.
                if self.audit.as_ref().is_some_and(|audit| audit.prepared) {
                    return finding;
                }
                let words: Vec<String> = command.iter().map(shell_word).collect();
                let command = words.join(" ");
                Finding {
                    remedy: Some(format!("run `{command}`")),
                    command: Some(command),
                    ..finding
                }
            }
            None => Finding {
                as_kind: Some(Kind::Difference),
                ..finding
            },
        }
    }

    /// Returns the command that downloads new package lists on this machine.
    async fn refresh(&self) -> Option<String> {
        let desired = self.inner.wanted(&self.inner.state()).await?;
        let manager = desired.packages.manager;
        Some(manager.backend().commands().refresh.to_owned())
    }

    /// Returns the finding about the desired state of this machine.
    async fn resolvable(&self) -> Option<Finding> {
        let audit = self.audit.as_ref()?;
        let asked = self.tools.options.wants(RESOLVABLE.as_str());
        let desired = self.inner.wanted(&self.inner.state()).await;
        match (&audit.unresolvable, &desired) {
            (Some(why), _) => Some(unresolvable(
                why,
                self.inner.state().facts(),
                audit.prepared,
            )),
            (None, Some(desired)) if asked => Some(resolved(desired, audit.back.as_ref())),
            _ => None,
        }
    }

    /// Returns a finding if the last upgrade failed or did not return the node to service.
    fn failed_upgrade(&self) -> Option<Finding> {
        let failed = self.audit.as_ref()?.failed_upgrade.as_ref()?;
        if !self.tools.options.wants(UPGRADE_FAILED.as_str()) {
            return None;
        }
        let why = failed.why.as_ref().map(|why| format!(": {why}"));
        let text = format!(
            "an upgrade took the node out of service at {} and did not return it{}",
            failed.since.strftime("%F %T UTC"),
            why.unwrap_or_default()
        );
        let mut finding = Finding::new(UPGRADE_FAILED, Verdict::Fail, text).with_remedy(format!(
            "remove the reason, or restore the previous driver in the settings, then run `{UPGRADE}`"
        ));
        finding.command = Some(UPGRADE.to_owned());
        Some(finding)
    }

    /// Runs all checks concurrently. The results have the order of the list.
    async fn examine(&self) -> Vec<Result<Vec<Finding>, (Vec<Id>, StepError)>> {
        let Some(audit) = &self.audit else {
            return Vec::new();
        };
        let mut tasks = JoinSet::new();
        for at in 0..audit.checks.len() {
            let (inner, audit) = (Arc::clone(&self.inner), Arc::clone(audit));
            tasks.spawn(async move {
                let state = inner.state();
                let desired = inner.wanted(&state).await;
                let subject = Subject {
                    host: inner.host.reader(),
                    facts: state.facts(),
                    state: &state,
                    matrix: &audit.matrix,
                    desired: desired.as_deref(),
                    prepared: audit.prepared,
                };
                (at, (audit.checks[at].examine)(&subject).await)
            });
        }
        let mut answers: Vec<_> = audit.checks.iter().map(|_| None).collect();
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok((at, answer)) => answers[at] = Some(answer),
                Err(error) => tracing::error!(%error, "a check ended with a panic"),
            }
        }
        answers
            .into_iter()
            .zip(&audit.checks)
            .map(|(answer, check)| {
                answer
                    .unwrap_or_else(|| {
                        Err(StepError::Unexpected {
                            what: "the result of the check".to_owned(),
                            why: "it panicked, which is a bug".to_owned(),
                        })
                    })
                    .map_err(|error| ((check.ids)(), error))
            })
            .collect()
    }

    pub(super) fn emit_ends(&self, jobs: &[Job]) {
        for at in &self.inner.graph.order {
            if let Some(event) = jobs[*at].finished(jobs[*at].spent.as_secs_f64()) {
                self.tools.events.emit(event);
            }
        }
    }
}

fn resolved(desired: &Desired, back: Option<&RollbackStarted>) -> Finding {
    let driver = match &desired.driver {
        Some(driver) => format!("driver branch {}, {} modules", driver.branch, driver.flavor),
        None => "no driver".to_owned(),
    };
    let why = format!("profile `{}`, {driver}", desired.profile);
    let Some(RollbackStarted {
        from,
        to,
        why: failed,
    }) = back
    else {
        return Finding::new(RESOLVABLE, Verdict::Pass, why);
    };
    let why = format!(
        "driver {from} failed validation ({failed}), and the rollback to {to} is not finished ({why})"
    );
    Finding::new(RESOLVABLE, Verdict::Warn, why)
        .with_remedy("run `gpu-bootstrap install`, which continues the rollback")
}

/// The finding about a machine without a desired state. A machine without an NVIDIA GPU needs no preparation, unless
/// gpu-bootstrap prepared it before. If the PCI bus cannot be read, the result is unknown.
fn unresolvable(reason: &Unresolvable, facts: &Facts, prepared: bool) -> Finding {
    let unread = facts.unknown.iter().find(|unknown| unknown.fact == "gpus");
    let (status, why) = match (facts.gpus.len(), unread) {
        _ if reason.needless => (Verdict::Skip, reason.why.clone()),
        (0, None) if !prepared => (Verdict::Skip, NO_GPU.to_owned()),
        (0, Some(unread)) if !prepared => (
            Verdict::Unknown,
            format!("the GPUs of this machine are unknown: {}", unread.why),
        ),
        _ if reason.unknown && !prepared => (Verdict::Unknown, reason.why.clone()),
        _ => (Verdict::Fail, reason.why.clone()),
    };
    Finding {
        observed: Some(seen(facts)),
        remedy: (status == Verdict::Fail)
            .then(|| reason.hint.clone())
            .flatten(),
        ..Finding::new(RESOLVABLE, status, why)
    }
}

/// A short description of the machine.
fn seen(facts: &Facts) -> String {
    let os = facts.os.as_ref().map_or_else(
        || "unknown system".to_owned(),
        |os| match &os.version_id {
            Some(version) => format!("{} {version}", os.id),
            None => os.id.clone(),
        },
    );
    let arch = facts.kernel.arch.as_deref();
    let count = facts.gpus.len();
    format!(
        "{os} on {}, {count} NVIDIA {}",
        arch.unwrap_or("an unknown architecture"),
        if count == 1 { "GPU" } else { "GPUs" }
    )
}

fn of_step(job: &Job, refresh: Option<&str>) -> Option<Finding> {
    let answer = match job.answer.as_ref()? {
        Ok(answer) => answer,
        Err(error) => return Some(not_seen(job.id.clone(), error)),
    };
    let because = match answer {
        Assessment::After { upstream, .. } => Some(upstream.clone()),
        // Only the administrator can fix a blocked step. With itself as the cause, `checks::causes` does not search for another
        // one. Validations and `*-nvidia` steps are exceptions, because other findings can be their cause.
        Assessment::Blocked { .. }
            if !stands_for("validation", job.id.as_str())
                && !job.id.as_str().ends_with("-nvidia") =>
        {
            Some(job.id.clone())
        }
        _ => None,
    };
    let finding = |status, why: &str, expected, remedy| Finding {
        expected,
        remedy,
        because: because.clone(),
        ..Finding::new(job.id.clone(), status, why)
    };
    if let Some(why) = job.why_obsolete() {
        let undos: Vec<String> = job.undos().into_iter().map(|undo| undo.summary).collect();
        let remedy = format!("{WOULD}{}", undos.join("; "));
        return Some(Finding {
            command: Some(INSTALL.to_owned()),
            ..finding(Verdict::Fail, &why, None, Some(remedy))
        });
    }
    Some(match answer {
        Assessment::Satisfied { why } => finding(Verdict::Pass, why, None, None),
        Assessment::NotApplicable { why } => finding(Verdict::Skip, why, None, None),
        // The result depends on new package lists. Downloading them does not change the machine otherwise.
        Assessment::Needs { why, changes } if changes[..] == [Change::RefreshRepositories] => {
            finding(
                Verdict::Unknown,
                why,
                None,
                refresh.map(|command| format!("run `{command}`, then check again")),
            )
        }
        // Only a warning: the validation succeeded before the last boot, and `validation.devices` examines the GPUs now.
        Assessment::Needs { why, changes }
            if changes.iter().all(Change::only_repeats_validation) =>
        {
            finding(
                Verdict::Warn,
                why,
                None,
                Some("run `gpu-bootstrap check --validate`, or `gpu-bootstrap install`".to_owned()),
            )
        }
        Assessment::Needs { why, changes } => match changes.as_slice() {
            [Change::Reboot { why: reason }] => Finding {
                remedy_class: Some(Remedy::Reboot),
                ..finding(Verdict::Fail, why, None, Some(format!("reboot: {reason}")))
            },
            changes => Finding {
                command: Some(INSTALL.to_owned()),
                ..finding(
                    Verdict::Fail,
                    why,
                    None,
                    Some(format!("{WOULD}{}", would(changes))),
                )
            },
        },
        Assessment::After {
            upstream,
            why,
            expected,
        } => finding(
            Verdict::Unknown,
            &format!("depends on `{upstream}`: {why}"),
            (!expected.is_empty()).then(|| would(expected)),
            Some(format!("see `{upstream}`")),
        ),
        Assessment::BlockedByOldLists { why, hint } => finding(
            Verdict::Fail,
            why,
            None,
            Some(hint_by_old_lists(Mode::Check, hint)),
        ),
        Assessment::Blocked { why, hint } | Assessment::BlockedNow { why, hint, .. } => {
            finding(Verdict::Fail, why, None, Some(hint.clone()))
        }
        Assessment::AwaitingBoot { why } => finding(
            Verdict::Warn,
            why,
            None,
            Some("boot an instance of this image; it finishes automatically".to_owned()),
        ),
    })
}

/// The position of a finding: faults and findings that do not fail, then risks, then differences that `install` cannot remove,
/// such as blocked steps, then those that `install` removes.
fn rank(finding: &Finding) -> u8 {
    match (finding.status, finding.kind()) {
        (Verdict::Fail, Some(Kind::Risk)) => 1,
        (Verdict::Fail, Some(Kind::Difference)) => match finding.command.as_deref() {
            Some(INSTALL) => 3,
            _ => 2,
        },
        _ => 0,
    }
}

/// Marks differences, and steps that depend on them, as not evaluated. Called if there are no settings and gpu-bootstrap did
/// not prepare the machine.
fn set_differences_aside(findings: &mut [Finding], jobs: &[Job]) {
    let is_later = |finding: &Finding| {
        let job = jobs.iter().find(|job| job.id == finding.id);
        let answer = job.and_then(|job| job.answer.as_ref()?.as_ref().ok());
        let later = matches!(answer, Some(Assessment::After { .. }));
        let is_difference =
            findings::row(&finding.id).is_some_and(|row| row.kind == Kind::Difference);
        finding.status == Verdict::Unknown && answer.is_some() && (later || is_difference)
    };
    for finding in findings {
        let unsupported = finding.id == RESOLVABLE && finding.status != Verdict::Unknown;
        if finding.is(Kind::Difference)
            || unsupported && finding.status == Verdict::Fail
            || is_later(finding)
        {
            finding.set_aside();
        }
    }
}

/// Replaces the command `install` by the remedy of whatever blocks it: a step, or the missing desired state.
fn without_blocked_install(findings: &mut [Finding], jobs: &[Job], audit: Option<&Examination>) {
    let unresolvable = audit.and_then(|audit| audit.unresolvable.as_ref());
    let of_jobs = jobs.iter().find_map(|job| match job.answer.as_ref() {
        Some(Ok(Assessment::Blocked { why, hint } | Assessment::BlockedNow { why, hint, .. })) => {
            Some((why.as_str(), Some(hint.as_str())))
        }
        _ => None,
    });
    let of_machine = unresolvable.map(|reason| (reason.why.as_str(), reason.hint.as_deref()));
    let Some((why, hint)) = of_machine.or(of_jobs) else {
        return;
    };
    for finding in findings {
        if finding.command.as_deref() != Some(INSTALL) {
            continue;
        }
        finding.command = None;
        // Keep the remedy of a difference, because it lists the changes.
        if !finding.is(Kind::Difference) {
            finding.remedy = Some(match hint {
                Some(hint) => format!("{hint}; then run `{INSTALL}`, which is blocked: {why}"),
                None => format!("`{INSTALL}` is blocked: {why}"),
            });
        }
    }
}

/// Replaces the command `install` on a prepared node in service by `upgrade`, which takes the node out of service first, if the
/// pending changes stop jobs: `install` makes all of them, whatever the finding. A remedy with a setting of the driver replaces the
/// driver, which stops jobs as well.
fn upgrade_in_service(findings: &mut [Finding], jobs: &[Job]) {
    let stops = jobs.iter().any(stops_jobs);
    for finding in findings {
        let changes_driver =
            (finding.remedy.as_ref()).is_some_and(|remedy| remedy.contains("driver."));
        if !stops && !changes_driver {
            continue;
        }
        if finding.command.as_deref() == Some(INSTALL) {
            finding.command = Some(UPGRADE.to_owned());
        }
        if let Some(remedy) = &mut finding.remedy {
            *remedy = remedy.replace(&format!("`{INSTALL}"), &format!("`{UPGRADE}"));
        }
    }
}

/// The finding about the package sources.
const SOURCES: &str = "os.pkg.sources";

/// Puts the remedy of broken package sources before the installation of a driver, which needs package lists from all of them.
fn sources_before_install(findings: &mut [Finding]) {
    let broken = (findings.iter()).find(|one| one.id.as_str() == SOURCES && one.is(Kind::Fault));
    let Some(Finding {
        remedy: Some(remedy),
        command,
        ..
    }) = broken.cloned()
    else {
        return;
    };
    for finding in findings {
        let then = match (finding.command.as_deref(), finding.remedy.as_deref()) {
            (Some(INSTALL), _) => format!("run `{INSTALL}`"),
            // On a machine that `install` does not support, the administrator installs the driver from these sources.
            (_, Some(own)) if own.contains(INSTALL_IT) => own.to_owned(),
            _ => continue,
        };
        if finding.is(Kind::Difference) {
            continue;
        }
        finding.command.clone_from(&command);
        finding.remedy = Some(format!(
            "first correct the package sources: {remedy}; then {then}"
        ));
    }
}

/// The start of the remedy of a difference.
const WOULD: &str = "run `gpu-bootstrap install`; it would ";

fn would(changes: &[Change]) -> String {
    changes
        .iter()
        .map(Change::summary)
        .collect::<Vec<_>>()
        .join("; ")
}

fn not_seen(id: Id, error: &StepError) -> Finding {
    let (status, why, observed) = match error.not_queried() {
        Some(_) => (Verdict::Skip, causes(error).join(": "), None),
        None => (
            Verdict::Unknown,
            format!("failed to {}", one_line(error)),
            causes(error).last().cloned(),
        ),
    };
    Finding {
        observed,
        ..Finding::new(id, status, why)
    }
}
