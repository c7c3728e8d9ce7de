//! `check`: the findings of steps and of checks in one list.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{
    Session,
    job::Job,
    result::{Mode, RunReport},
};
use crate::{
    change::Change,
    check::{Finding, Verdict},
    error::{causes, one_line},
    exit::Exit,
    model::id::Id,
    step::{Assessment, StepError},
};

impl Session {
    /// The findings of steps, then those of checks. The exit status is good only if nothing fails
    /// and everything that was to be looked at could be: an unknown that a check gives on purpose
    /// is its answer, but a look that ended with an error is no pass. What nobody may ask below
    /// `--root` is skipped.
    pub(super) async fn findings(&self, jobs: Vec<Job>) -> RunReport {
        let mut findings: Vec<Finding> = jobs.iter().filter_map(of_step).collect();
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
                            .map(|id| not_seen(id.clone(), id.to_string(), &error)),
                    );
                }
            }
        }
        let fails = findings
            .iter()
            .any(|finding| finding.status == Verdict::Fail);
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

    /// All checks at the same time, answers in the order of the list.
    async fn examine(&self) -> Vec<Result<Vec<Finding>, (Vec<Id>, StepError)>> {
        let mut tasks = JoinSet::new();
        for at in 0..self.inner.checks.len() {
            let inner = Arc::clone(&self.inner);
            tasks.spawn(async move {
                let state = inner.state();
                (at, inner.checks[at].examine(&inner.cx(&state)).await)
            });
        }
        let mut answers: Vec<_> = self.inner.checks.iter().map(|_| None).collect();
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok((at, answer)) => answers[at] = Some(answer),
                Err(error) => tracing::error!(%error, "a check ended with a panic"),
            }
        }
        answers
            .into_iter()
            .zip(&self.inner.checks)
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

fn of_step(job: &Job) -> Option<Finding> {
    let answer = match job.answer.as_ref()? {
        Ok(answer) => answer,
        Err(error) => return Some(not_seen(job.id.clone(), job.title.to_owned(), error)),
    };
    let finding = |status, why: &str, expected, remedy| Finding {
        id: job.id.clone(),
        title: job.title.to_owned(),
        status,
        why: why.to_owned(),
        observed: None,
        expected,
        remedy,
        links: Vec::new(),
    };
    Some(match answer {
        Assessment::Satisfied { why } => finding(Verdict::Pass, why, None, None),
        Assessment::NotApplicable { why } => finding(Verdict::Skip, why, None, None),
        Assessment::Needs { why, changes } => finding(
            Verdict::Fail,
            why,
            None,
            Some(match changes.as_slice() {
                [Change::Reboot { why }] => format!("reboot: {why}"),
                changes => format!("run `gpu-bootstrap install`; it would {}", would(changes)),
            }),
        ),
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
        Assessment::Blocked { why, hint } => finding(Verdict::Fail, why, None, Some(hint.clone())),
        Assessment::AwaitingBoot { why } => finding(
            Verdict::Warn,
            why,
            None,
            Some("boot an instance of this image; it finishes automatically".to_owned()),
        ),
    })
}

fn would(changes: &[Change]) -> String {
    changes
        .iter()
        .map(Change::summary)
        .collect::<Vec<_>>()
        .join("; ")
}

fn not_seen(id: Id, title: String, error: &StepError) -> Finding {
    let (status, why, observed) = match error.not_asked() {
        Some(_) => (Verdict::Skip, causes(error).join(": "), None),
        None => (
            Verdict::Unknown,
            format!("failed to {}", one_line(error)),
            causes(error).last().cloned(),
        ),
    };
    Finding {
        id,
        title,
        status,
        why,
        observed,
        expected: None,
        remedy: None,
        links: Vec::new(),
    }
}
