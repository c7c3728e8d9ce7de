//! `plan`: what `install` would do, with diffs.

use super::{
    Session,
    job::Job,
    result::{ChangeReport, Mode, RunReport},
};
use crate::{change::Change, error::one_line, event::Outcome, exit::Exit, step::Assessment};

impl Session {
    /// Previews every change that is wanted.
    pub(super) async fn planned(&self, jobs: Vec<Job>) -> RunReport {
        let mut notes = Vec::new();
        let mut steps = Vec::with_capacity(jobs.len());
        for (at, job) in jobs.iter().enumerate() {
            let upstream_pending = self.inner.graph.up[at].iter().any(|up| {
                jobs[*up]
                    .ended
                    .as_ref()
                    .is_some_and(|end| end.outcome == Outcome::WouldChange)
            });
            let would_change = job
                .ended
                .as_ref()
                .is_some_and(|end| end.outcome == Outcome::WouldChange);
            let (changes, known) = match &job.answer {
                _ if !would_change => (&[][..], false),
                Some(Ok(Assessment::Needs { changes, .. })) => (changes.as_slice(), true),
                Some(Ok(Assessment::After { expected, .. })) => (expected.as_slice(), false),
                _ => (&[][..], false),
            };
            let mut reports = Vec::with_capacity(changes.len());
            for change in changes {
                let diff = if known {
                    self.preview(job, change, upstream_pending, &mut notes)
                        .await
                } else {
                    None
                };
                reports.push(ChangeReport {
                    kind: change.kind(),
                    summary: change.summary(),
                    diff,
                });
            }
            reports.extend(job.undos());
            steps.push(job.report(reports));
        }
        self.emit_ends(&jobs);
        let any = |outcome| steps.iter().any(|step| step.outcome == outcome);
        RunReport {
            mode: Mode::Plan,
            run: self.tools.events.run().to_owned(),
            exit: if any(Outcome::Blocked) {
                Exit::Blocked
            } else if any(Outcome::Failed) {
                Exit::StepFailed
            } else if any(Outcome::WouldChange) {
                Exit::Drift
            } else {
                Exit::Ok
            },
            steps,
            findings: Vec::new(),
            notes,
            reboot: None,
            left: Vec::new(),
            seconds: self.tools.events.elapsed().as_secs_f64(),
        }
    }

    /// The diff of a change. A simulation can fail because earlier changes were not applied. That is
    /// expected, and gives no diff.
    async fn preview(
        &self,
        job: &Job,
        change: &Change,
        upstream_pending: bool,
        notes: &mut Vec<String>,
    ) -> Option<String> {
        match self.tools.verbs.preview(change).await {
            Ok(diff) => diff,
            Err(failure) => {
                let packages = matches!(change, Change::InstallPackages { .. });
                if !(packages && upstream_pending) {
                    self.tools.note(
                        notes,
                        format!(
                            "`{}`: no preview of \"{}\": {}",
                            job.id,
                            change.summary(),
                            one_line(&*failure)
                        ),
                    );
                }
                None
            }
        }
    }
}
