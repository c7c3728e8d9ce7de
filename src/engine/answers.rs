//! Handles step assessments during `install`: the step finishes, its changes are decided, or it is
//! retried.

use std::{collections::BTreeSet, time::Duration};

use super::{
    apply::{Applying, Done, Stop},
    errors::{MOST_REBOOTS, MOST_REBOOTS_IN_ALL},
    job::{Assessed, End},
    result::Mode,
    survey::{conclusion, stands_in_the_way},
};
use crate::{
    change::Change,
    event::{Event, Outcome},
    step::Assessment,
};

impl Applying<'_> {
    /// Handles an assessment before anything is applied for the step.
    pub(super) fn decide(&mut self, at: usize) {
        let now = self.session.tools.events.elapsed();
        self.jobs[at].since.get_or_insert(now);
        let Some(answer) = &self.jobs[at].answer else {
            return;
        };
        let mut end = conclusion(Mode::Install, answer);
        match answer {
            Ok(Assessment::Satisfied { .. }) => end.outcome = self.jobs[at].as_wanted(),
            Ok(Assessment::Needs { changes, .. }) if changes.is_empty() => {
                end = End::bug("the step is not satisfied, but returned no change");
            }
            Ok(Assessment::Needs { changes, .. }) => {
                let mut changes = changes.clone();
                let refreshed = self.jobs[at].earlier.last() == Some(&Change::RefreshRepositories);
                if self.lists_are_new && refreshed {
                    changes.retain(|change| *change != Change::RefreshRepositories);
                }
                self.jobs[at].changes = changes;
                self.jobs[at].decided = true;
                return;
            }
            Ok(Assessment::BlockedByOldLists { .. }) => {
                self.jobs[at].changes = vec![Change::RefreshRepositories];
                self.jobs[at].decided = true;
                return;
            }
            Ok(Assessment::BlockedNow {
                retryable: Some(limit),
                ..
            }) => {
                let limit = *limit;
                if self.again(at, &end.why, Some(limit)) {
                    return;
                }
            }
            Ok(Assessment::After { upstream, .. }) => {
                let awaits = (self.jobs.iter())
                    .any(|job| job.id == *upstream && job.has(Outcome::AwaitingBoot));
                if awaits {
                    end.outcome = Outcome::AwaitingBoot;
                } else {
                    let bug = format!("the step still cannot be assessed: {}", end.why);
                    end = End::bug(&bug);
                }
            }
            _ => {}
        }
        if stands_in_the_way(end.outcome) {
            self.fail(at, end);
        } else {
            self.end(at, end);
        }
    }

    /// Handles an assessment after all changes of the step are applied.
    pub(super) fn verify(&mut self, at: usize, answer: Assessed) {
        let before = match &self.jobs[at].answer {
            Some(Ok(Assessment::Needs { why, .. })) => why.clone(),
            _ => String::new(),
        };
        match answer {
            Ok(Assessment::Satisfied { why } | Assessment::NotApplicable { why }) => {
                self.end(at, End::new(Outcome::Changed, why));
            }
            Ok(Assessment::AwaitingBoot { why }) => {
                self.end(at, End::new(Outcome::AwaitingBoot, why));
            }
            Ok(Assessment::Needs { why, changes }) => {
                if let [Change::Reboot { why }] = changes.as_slice() {
                    self.reboot(at, why.clone());
                } else if self.stop.is_none()
                    && (self.jobs[at].lacks_admission_alone(&changes)
                        || lacks_lists_alone(&changes))
                {
                    self.jobs[at].begin_again();
                } else {
                    self.not_verified(at, &before, &why);
                }
            }
            Ok(Assessment::BlockedNow {
                why,
                retryable: Some(limit),
                ..
            }) if self.again(at, &why, Some(limit)) => {}
            Ok(
                Assessment::Blocked { why, .. }
                | Assessment::BlockedByOldLists { why, .. }
                | Assessment::BlockedNow { why, .. }
                | Assessment::After { why, .. },
            ) => {
                self.not_verified(at, &before, &why);
            }
            Err(error) => {
                let mut end = End::could_not_look(&error);
                end.why = format!("the changes are applied, but verification {}", end.why);
                self.fail(at, end);
            }
        }
    }

    fn not_verified(&mut self, at: usize, before: &str, now: &str) {
        let mut end = End::new(
            Outcome::Failed,
            "the changes are applied, but the state is still wrong".to_owned(),
        )
        .hint(Some(
            "run `gpu-bootstrap install` again: it applies the missing changes or reports the \
             cause"
                .to_owned(),
        ));
        end.causes = vec![format!("before: {before}"), format!("now: {now}")];
        end.reason = Some("not-verified");
        self.fail(at, end);
    }

    /// Ends a step that needs a reboot before it can continue: with the request for the reboot, or as failed after too many
    /// reboots.
    pub(super) fn reboot(&mut self, at: usize, why: String) {
        if self.session.inner.image() {
            // The first boot of an instance of the image replaces this reboot. Other steps continue.
            self.end(at, End::new(Outcome::AwaitingBoot, why));
        } else if self.reboots.since >= MOST_REBOOTS {
            let mut end = End::new(
                Outcome::Failed,
                format!("no success after {MOST_REBOOTS} reboots: {why}"),
            )
            .hint(Some(
                "run `journalctl -b` and `lsmod` to find the module or unit that reappears at \
                 boot, then run `gpu-bootstrap install` again; `gpu-bootstrap uninstall` resets \
                 the count"
                    .to_owned(),
            ));
            end.reason = Some("reboot-loop");
            self.fail(at, end);
        } else if self.reboots.in_all >= MOST_REBOOTS_IN_ALL {
            let mut end = End::new(
                Outcome::Failed,
                format!(
                    "no success after {MOST_REBOOTS_IN_ALL} reboots, including reboots for drivers \
                     that failed validation: {why}"
                ),
            )
            .hint(Some(
                "run `gpu-bootstrap install` with the settings of a working driver: a successful \
                 run resets the count, and so does `gpu-bootstrap uninstall`"
                    .to_owned(),
            ));
            end.reason = Some("reboot-loop");
            self.fail(at, end);
        } else {
            self.end(at, End::new(Outcome::AwaitingBoot, why.clone()));
            self.stop.get_or_insert(Stop::Reboot(why));
        }
    }

    /// Retries a step after a pause. `limit` is the maximum duration of all attempts together. Returns
    /// `false` if there is not enough time left or a stop was requested.
    pub(super) fn again(&mut self, at: usize, message: &str, limit: Option<Duration>) -> bool {
        let tools = &self.session.tools;
        let job = &mut self.jobs[at];
        if self.stop.is_some() {
            return false;
        }
        let Some(pause) =
            (self.retry_policy).pause(&mut job.retries, tools.events.elapsed(), limit)
        else {
            return false;
        };
        tools.events.emit(Event::AttemptFailed {
            steps: vec![job.id.clone()],
            message: message.replace('\n', " "),
            retry_in_seconds: pause.as_secs_f64(),
        });
        job.begin_again();
        job.busy = true;
        let (clock, pauses) = (self.session.inner.host.clock.clone(), self.pauses.clone());
        self.start(vec![at], BTreeSet::new(), async move {
            tokio::select! {
                biased;
                () = pauses.cancelled() => {}
                () = clock.sleep(pause) => {}
            }
            Done::Paused { at }
        });
        true
    }
}

/// Whether only a refresh of the package lists is missing, with or without a reboot. This happens if a
/// failed package change of another step has marked the lists as outdated.
fn lacks_lists_alone(changes: &[Change]) -> bool {
    changes.contains(&Change::RefreshRepositories)
        && (changes.iter())
            .all(|change| matches!(change, Change::RefreshRepositories | Change::Reboot { .. }))
}
