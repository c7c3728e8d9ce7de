//! `check`: the findings of steps and of checks in one list.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{
    Session, Unresolvable,
    job::Job,
    result::{Mode, RunReport},
    survey::hint_by_old_lists,
};
use crate::{
    change::Change,
    check::{Finding, Subject, Verdict},
    checks::{self, NO_GPU},
    config::desired::Desired,
    error::{causes, one_line},
    exit::Exit,
    facts::Facts,
    journal::GoingBack,
    model::{
        findings::{self, Layer, Remedy},
        id::{Id, stands_for},
    },
    step::{Assessment, StepError},
};

/// Whether a state can be wanted on this machine.
pub(super) const RESOLVABLE: Id = Id::new("config.resolvable");

impl Session {
    /// The findings of steps and of checks, in the order of layers; what only this program would like to be
    /// otherwise comes behind all faults of the machine. The exit status is good only if
    /// nothing fails and everything that was to be looked at could be: an unknown that a check gives
    /// on purpose is its answer, but a look that ended with an error is no pass, nor is an audit in which
    /// nothing passes and something is unknown. What nobody may ask
    /// below `--root` is skipped.
    pub(super) async fn findings(&self, jobs: Vec<Job>) -> RunReport {
        let mut findings: Vec<Finding> = self.resolvable().await.into_iter().collect();
        let mut blind = jobs
            .iter()
            .any(|job| matches!(&job.answer, Some(Err(error)) if error.not_asked().is_none()));
        for examined in self.examine().await {
            match examined {
                Ok(found) => findings.extend(
                    found
                        .into_iter()
                        .filter(|finding| self.tools.options.wants(finding.id.as_str())),
                ),
                Err((ids, error)) => {
                    blind |= error.not_asked().is_none();
                    findings.extend(
                        ids.into_iter()
                            .filter(|id| self.tools.options.wants(id.as_str()))
                            .map(|id| not_seen(id.clone(), &error)),
                    );
                }
            }
        }
        // Within a layer, what is broken comes before what is only not as wanted.
        let proven = self.audit.iter().flat_map(|audit| &audit.proven);
        let proven: Vec<&Finding> = proven
            .filter(|finding| self.tools.options.wants(finding.id.as_str()))
            .collect();
        let of_steps = jobs.iter().filter_map(of_step);
        // A proof that failed just now says more than that there is none.
        findings
            .extend(of_steps.filter(|finding| proven.iter().all(|proof| proof.id != finding.id)));
        findings.extend(proven.into_iter().cloned());
        findings.sort_by_key(|finding| (rank(finding), Layer::of(&finding.id)));
        checks::causes::find(&mut findings);
        let options = &self.tools.options;
        for finding in &mut findings {
            if finding.status != Verdict::Pass && options.ignores(finding.id.as_str()) {
                finding.status = Verdict::Skip;
                finding.why = format!("ignored: {}", finding.why);
            }
        }
        let any = |verdict| findings.iter().any(|finding| finding.status == verdict);
        let fails = any(Verdict::Fail)
            || options.fail_on_warnings && any(Verdict::Warn)
            || options.fail_on_unknown && any(Verdict::Unknown);
        // Whoever asks for some findings alone gets their answers; a whole audit in which nothing passes has seen no machine.
        let whole = options.only.is_empty() && options.skip.is_empty();
        blind |= whole && any(Verdict::Unknown) && !any(Verdict::Pass);
        let has_gpus = !self.inner.state().facts().gpus.is_empty();
        blind |= has_gpus
            && (findings.iter()).any(|one| one.id == RESOLVABLE && one.status == Verdict::Unknown);
        self.emit_ends(&jobs);
        RunReport {
            mode: Mode::Check,
            run: self.tools.events.run().to_owned(),
            exit: if fails || blind {
                Exit::Drift
            } else {
                Exit::Ok
            },
            steps: jobs.iter().map(|job| job.report(Vec::new())).collect(),
            findings,
            notes: Vec::new(),
            reboot: None,
            left: Vec::new(),
            seconds: self.tools.events.elapsed().as_secs_f64(),
        }
    }

    /// Whether a state can be wanted on this machine.
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

    /// All checks at the same time, answers in the order of the list.
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
                (at, audit.checks[at].examine(&subject).await)
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
                            what: "the check's own answer".to_owned(),
                            why: "it panicked, which is a bug".to_owned(),
                        })
                    })
                    .map_err(|error| (check.ids().to_vec(), error))
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

fn resolved(desired: &Desired, back: Option<&GoingBack>) -> Finding {
    let driver = match &desired.driver {
        Some(driver) => format!(
            "driver branch {}, {} modules",
            driver.branch, driver.flavour
        ),
        None => "no driver".to_owned(),
    };
    let why = format!("profile `{}`, {driver}", desired.profile);
    let Some(GoingBack {
        from,
        to,
        why: failed,
    }) = back
    else {
        return Finding::new(RESOLVABLE, Verdict::Pass, why);
    };
    let why = format!(
        "driver {from} has failed validation ({failed}), and the rollback to {to} has not ended: until \
         then that driver is wanted ({why})"
    );
    Finding {
        remedy: Some("run `gpu-bootstrap install`, which goes on with the rollback".to_owned()),
        ..Finding::new(RESOLVABLE, Verdict::Warn, why)
    }
}

/// Where nothing can be wanted. A machine without an NVIDIA GPU needs no preparation, unless this
/// program has prepared it before; where the bus cannot be read, nobody knows.
fn unresolvable(reason: &Unresolvable, facts: &Facts, prepared: bool) -> Finding {
    let unread = facts.unknown.iter().find(|unknown| unknown.fact == "gpus");
    let (status, why) = match (facts.gpus.len(), unread) {
        _ if reason.needless => (Verdict::Skip, reason.why.clone()),
        (0, None) if !prepared => (
            Verdict::Skip,
            format!("nothing is to be prepared: {NO_GPU}"),
        ),
        (0, Some(unread)) if !prepared => (
            Verdict::Unknown,
            format!(
                "whether this machine has GPUs cannot be known: {}",
                unread.why
            ),
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

/// The machine in a few words.
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

fn of_step(job: &Job) -> Option<Finding> {
    let answer = match job.answer.as_ref()? {
        Ok(answer) => answer,
        Err(error) => return Some(not_seen(job.id.clone(), error)),
    };
    let because = match answer {
        Assessment::After { upstream, .. } => Some(upstream.clone()),
        // A person must remove the obstacle, so no other finding explains it. Validation finds what
        // others cause.
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
    if let Some(why) = job.why_left_over() {
        let undos: Vec<String> = job.undos().into_iter().map(|undo| undo.summary).collect();
        let remedy = format!("{WOULD}{}", undos.join("; "));
        return Some(Finding {
            would_change: true,
            ..finding(Verdict::Fail, &why, None, Some(remedy))
        });
    }
    Some(match answer {
        Assessment::Satisfied { why } => finding(Verdict::Pass, why, None, None),
        Assessment::NotApplicable { why } => finding(Verdict::Skip, why, None, None),
        // New lists alone change nothing about the machine: they let the step know.
        Assessment::Needs { why, changes } if changes[..] == [Change::RefreshRepositories] => {
            finding(
                Verdict::Unknown,
                why,
                None,
                Some("run `gpu-bootstrap install`, which refreshes the package lists".to_owned()),
            )
        }
        // Nothing is known to be wrong: `validation.devices` looks at the GPUs now.
        Assessment::Needs { why, changes } if changes.iter().all(Change::only_repeats_proof) => {
            finding(
                Verdict::Warn,
                why,
                None,
                Some("run `gpu-bootstrap check --prove`, or `gpu-bootstrap install`".to_owned()),
            )
        }
        Assessment::Needs { why, changes } => match changes.as_slice() {
            [Change::Reboot { why: reason }] => Finding {
                remedy_class: Some(Remedy::Reboot),
                ..finding(Verdict::Fail, why, None, Some(format!("reboot: {reason}")))
            },
            changes => Finding {
                would_change: true,
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
            &format!("not before `{upstream}` is as wanted: {why}"),
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

/// The place of a finding: faults of the machine, then what `install` would change, then what keeps this program
/// from doing so. What does not fail stays among the faults, in the order of layers.
fn rank(finding: &Finding) -> u8 {
    match finding.status {
        Verdict::Fail if finding.would_change => 1,
        Verdict::Fail if findings::is_wish(&finding.id) => 2,
        _ => 0,
    }
}

/// How the remedy of drift begins.
const WOULD: &str = "run `gpu-bootstrap install`; it would ";

fn would(changes: &[Change]) -> String {
    changes
        .iter()
        .map(Change::summary)
        .collect::<Vec<_>>()
        .join("; ")
}

fn not_seen(id: Id, error: &StepError) -> Finding {
    let (status, why, observed) = match error.not_asked() {
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
