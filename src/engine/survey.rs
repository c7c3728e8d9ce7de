//! The first assessment of a run. All steps are assessed at the same time, because the machine does
//! not change meanwhile. The results are evaluated in step order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    future::join_all,
    stream::{FuturesOrdered, StreamExt},
};
use tokio::task::JoinSet;

use super::{
    Session,
    events::EventSink,
    job::{Assessed, End, Job},
    result::Mode,
    retry::{Retries, RetryPolicy},
};
use crate::{
    change::{Change, ChangeError, Class, Lock, packages::Simulation},
    error::{causes, one_line},
    event::{Event, Outcome},
    journal::AppliedChange,
    model::id::StepId,
    step::{Assessment, StepError},
};

/// The simulated package installations, by the index of the step and of the change.
pub(super) type Simulations = BTreeMap<(usize, usize), Simulation>;

/// The package installations of all steps, by the index of the step and of the change.
type Installations = BTreeMap<(usize, usize), Change>;

/// A simulation that was started before every step was assessed. Dropping it stops the simulation.
pub(super) struct StartedSimulation {
    installations: Installations,
    task: JoinSet<Vec<Simulation>>,
}

impl Session {
    /// Assesses every selected step. Except for `check`, the package installations are simulated as soon as the steps that work
    /// with packages are assessed, because other assessments can take as long, such as listing an initramfs.
    pub(super) async fn survey(&self, mode: Mode) -> (Vec<Job>, Option<StartedSimulation>) {
        let mut jobs: Vec<Job> = self.inner.steps.iter().map(Job::new).collect();
        let mut tasks = JoinSet::new();
        for (at, job) in jobs.iter().enumerate() {
            let inner = Arc::clone(&self.inner);
            let step = job.id.clone();
            self.tools.events.emit(Event::StepStarted { step });
            tasks.spawn(async move {
                let began = inner.monotonic();
                let answer = inner.assess(at).await;
                (at, answer, inner.monotonic().saturating_sub(began))
            });
        }
        let (mut answered, mut simulation) = (0, None);
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok((at, answer, took)) => {
                    jobs[at].spent += took;
                    self.tools.events.emit(jobs[at].answer_event(&answer));
                    jobs[at].answer = Some(answer);
                    answered += 1;
                }
                Err(error) => {
                    tracing::error!(%error, "an assessment panicked");
                }
            }
            let mut open = jobs.iter().filter(|job| job.answer.is_none());
            let are_known = open.all(|job| !job.locks.contains(&Lock::Packages));
            if mode != Mode::Check && are_known && simulation.is_none() {
                simulation = Some(self.start_simulation(installations(&jobs)));
            }
        }
        if answered < jobs.len() {
            for job in jobs.iter_mut().filter(|job| job.answer.is_none()) {
                job.answer = Some(Err(StepError::Unexpected {
                    what: "the state of the step".to_owned(),
                    why: "the assessment panicked, which is a bug".to_owned(),
                }));
            }
        }
        (jobs, simulation)
    }

    /// Blocks each step that has a change that would certainly be rejected, before anything is
    /// changed. The changes of all steps are dry-run in parallel, and their package installations
    /// are simulated as one transaction. A plan does not dry-run new repositories, because their
    /// keys would have to be downloaded. Returns the simulations, which a plan shows.
    pub(super) async fn dry_run(
        &self,
        mode: Mode,
        jobs: &mut [Job],
        started: Option<StartedSimulation>,
    ) -> Simulations {
        let rejections = join_all(jobs.iter().map(|job| self.rejection(mode, job)));
        let simulations = self.simulate_installs(jobs, started);
        let (rejections, mut simulations) = tokio::join!(rejections, simulations);
        for (at, (job, rejection)) in jobs.iter_mut().zip(rejections).enumerate() {
            if let Some(failure) = rejection.or_else(|| take_rejection(&mut simulations, at)) {
                job.answer = Some(Ok(self.blocked_by(failure)));
            }
        }
        simulations
    }

    /// Returns the error of the first change of the step, other than a package installation, that would be rejected. The changes
    /// are dry-run in parallel, because each new repository downloads a key from another server.
    async fn rejection(&self, mode: Mode, job: &Job) -> Option<ChangeError> {
        let is_included = |change: &&Change| match change {
            Change::AddRepository { .. } => mode != Mode::Plan,
            Change::InstallPackages { .. } => false,
            _ => true,
        };
        let included = job.needed().iter().filter(is_included);
        let dry_runs = included.map(|change| self.tools.change_applier.dry_run(change));
        let mut dry_runs: FuturesOrdered<_> = dry_runs.collect();
        // The first error is certain before the later dry runs end.
        while let Some(result) = dry_runs.next().await {
            if let Err(failure) = result {
                return Some(failure);
            }
        }
        None
    }

    fn start_simulation(&self, installations: Installations) -> StartedSimulation {
        let mut task = JoinSet::new();
        let applier = Arc::clone(&self.tools.change_applier);
        let changes: Vec<Change> = installations.values().cloned().collect();
        if !changes.is_empty() {
            task.spawn(async move {
                let changes: Vec<&Change> = changes.iter().collect();
                applier.simulate_installs(&changes).await
            });
        }
        StartedSimulation {
            installations,
            task,
        }
    }

    /// Simulates the package installations of all steps, or waits for their simulation if it was already started.
    async fn simulate_installs(
        &self,
        jobs: &[Job],
        started: Option<StartedSimulation>,
    ) -> Simulations {
        let installations = installations(jobs);
        let started = started.filter(|started| started.installations == installations);
        let mut simulation = started.unwrap_or_else(|| self.start_simulation(installations));
        let simulated = match simulation.task.join_next().await {
            None => Vec::new(),
            Some(Ok(simulated)) => simulated,
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        };
        let keys = simulation.installations.into_keys();
        keys.zip(simulated).collect()
    }

    /// Returns the assessment of a step with a change that would be rejected.
    fn blocked_by(&self, failure: ChangeError) -> Assessment {
        let mut words = vec![failure.to_string()];
        words.extend(causes(&failure));
        let why = format!("failed to {}", words.join(": "));
        let hint = failure.hint.unwrap_or_default();
        if failure.depends_on_lists && !self.inner.state().lists_are_new() {
            Assessment::BlockedByOldLists { why, hint }
        } else if failure.class == Class::SourceUnavailable {
            Assessment::BlockedNow {
                why,
                hint,
                retryable: Some(Duration::MAX),
            }
        } else {
            Assessment::blocked(why, hint)
        }
    }

    /// The assessment before the first change. If only transient problems block the run, it is
    /// repeated after a pause, until the deadline.
    ///
    /// A step that is blocked only by outdated package lists is assessed again with new lists.
    /// Downloading lists leaves nothing to undo, so it is not recorded as a change.
    pub(super) async fn survey_before_changes(
        &self,
        applied: &[AppliedChange],
        notes: &mut Vec<String>,
    ) -> Vec<Job> {
        let tools = &self.tools;
        let policy = RetryPolicy::new(&tools.options);
        let mut retries = Retries::default();
        let (mut asked_anew, mut stay_old) = (false, false);
        loop {
            let (mut jobs, simulation) = self.survey(Mode::Install).await;
            self.find_obsolete(&mut jobs, applied);
            // An assessment can be stopped at any time. No change starts after that.
            tokio::select! {
                biased;
                _ = tools.cancel.cancelled() => {}
                _ = self.dry_run(Mode::Install, &mut jobs, simulation) => {}
            }
            self.conclude(Mode::Install, &mut jobs);
            if stay_old {
                jobs.iter_mut().for_each(say_that_lists_stay_old);
            }
            if let Some(step) = only_by_old_lists(&jobs).filter(|_| !asked_anew)
                && tools.cancel.exit().is_none()
            {
                match self.refresh_lists(&step).await {
                    Ok(()) => asked_anew = true,
                    Err(failure) => {
                        let error = one_line(&failure);
                        let message = format!("failed to download new package lists: {error}");
                        let elapsed = tools.events.elapsed();
                        let pause = (failure.retryable)
                            .then(|| policy.pause(&mut retries, elapsed, None))
                            .flatten();
                        if let Some(pause) = pause {
                            self.pause(&step, message, pause).await;
                        } else {
                            (asked_anew, stay_old) = (true, true);
                            self.tools.note(notes, message);
                        }
                        self.inner.invalidate();
                    }
                }
                continue;
            }
            let Some((job, why, limit)) = passing(&jobs) else {
                return jobs;
            };
            let Some(pause) = policy.pause(&mut retries, tools.events.elapsed(), Some(limit))
            else {
                return jobs;
            };
            if !self.pause(&job.id, why.to_owned(), pause).await {
                // Do not report the steps as blocked: the run ends like any other stopped run.
                jobs.iter_mut().for_each(|job| job.ended = None);
                return jobs;
            }
            self.inner.invalidate();
        }
    }

    /// Reports the failure and waits before the next attempt. Returns `false` if a stop was
    /// requested.
    async fn pause(&self, step: &StepId, message: String, pause: Duration) -> bool {
        self.tools.events.emit(Event::AttemptFailed {
            steps: vec![step.clone()],
            message,
            retry_in_seconds: pause.as_secs_f64(),
        });
        tokio::select! {
            biased;
            _ = self.tools.cancel.cancelled() => false,
            () = self.inner.host.clock.sleep(pause) => true,
        }
    }

    /// Downloads the package lists for a step that is blocked by outdated ones.
    async fn refresh_lists(&self, step: &StepId) -> Result<(), ChangeError> {
        let (change, events) = (Change::RefreshRepositories, &self.tools.events);
        let (steps, summary) = (vec![step.clone()], change.summary());
        let began = events.elapsed();
        events.emit(Event::ChangeStarted {
            steps: steps.clone(),
            summary: summary.clone(),
        });
        let undo = self.tools.change_applier.capture(&change).await?;
        let sink = EventSink {
            events,
            steps: &steps,
        };
        self.tools
            .change_applier
            .apply(&change, undo, &sink)
            .await?;
        events.emit(Event::ChangeApplied {
            seconds: events.elapsed().saturating_sub(began).as_secs_f64(),
            steps,
            summary,
        });
        self.inner.invalidate();
        self.inner.state().note_lists(true);
        Ok(())
    }

    /// Sets the outcome that each step has if nothing is applied.
    pub(super) fn conclude(&self, mode: Mode, jobs: &mut [Job]) {
        for at in self.inner.graph.order.clone() {
            let upstream = &self.inner.graph.up[at];
            let dead = upstream
                .iter()
                .map(|up| &jobs[*up])
                .find(|up| up.outcome().is_some_and(stands_in_the_way))
                .map(|up| up.not_because_of());
            let pending = upstream
                .iter()
                .map(|up| &jobs[*up])
                .find(|up| up.has(Outcome::WouldChange))
                .map(|up| up.id.clone());
            let end = match (jobs[at].answer.as_ref(), dead) {
                // `check` reports every assessment. `plan` and `install` skip the steps after a blocked or failed one.
                (_, Some(why)) if mode != Mode::Check => End::new(Outcome::NotRun, why),
                (Some(answer), _) => match (answer, pending) {
                    (Err(error), Some(upstream)) => End::new(
                        Outcome::WouldChange,
                        format!(
                            "after `{upstream}`; cannot be assessed now: {}",
                            one_line(error)
                        ),
                    ),
                    // `check` evaluates the current state of the machine.
                    (Ok(Assessment::BlockedNow { why, .. }), _) if mode != Mode::Check => {
                        match self.pending_before(at, jobs) {
                            Some(up) => {
                                End::new(Outcome::WouldChange, format!("after `{up}`: {why}"))
                            }
                            None => conclusion(mode, answer),
                        }
                    }
                    (answer, _) => match jobs[at].why_obsolete() {
                        Some(why) => End::new(Outcome::WouldChange, why),
                        None => conclusion(mode, answer),
                    },
                },
                (None, _) => End::new(Outcome::NotRun, "not assessed".to_owned()),
            };
            jobs[at].ended = Some(end);
        }
    }

    /// Returns the nearest step before this one (direct or indirect) that would change something.
    fn pending_before(&self, at: usize, jobs: &[Job]) -> Option<StepId> {
        let graph = &self.inner.graph;
        let mut upstream = graph.order.iter().rev().map(|up| (up, &jobs[*up]));
        upstream
            .find(|(up, job)| graph.below[**up].contains(&at) && job.has(Outcome::WouldChange))
            .map(|(_, job)| job.id.clone())
    }
}

fn installations(jobs: &[Job]) -> Installations {
    let mut found = Installations::new();
    for (at, job) in jobs.iter().enumerate() {
        for (number, change) in job.needed().iter().enumerate() {
            if matches!(change, Change::InstallPackages { .. }) {
                found.insert((at, number), change.clone());
            }
        }
    }
    found
}

/// Removes and returns the error of the first installation of a step that would be rejected.
fn take_rejection(simulations: &mut Simulations, at: usize) -> Option<ChangeError> {
    let mut of_step = simulations.range((at, 0)..=(at, usize::MAX));
    let (key, _) = of_step.find(|(_, one)| matches!(one, Simulation::Rejected(_)))?;
    let key = *key;
    simulations.remove(&key)?.preview().err()
}

/// Returns the step that blocks the run, its reason, and the wait limit, if everything that blocks the
/// run is transient. If several steps block it, returns the one with the shortest limit. `None` if the
/// run is not blocked, or blocked permanently.
fn passing(jobs: &[Job]) -> Option<(&Job, &str, Duration)> {
    let found: Option<Vec<_>> = jobs
        .iter()
        .filter(|job| job.blocks_the_run())
        .map(|job| match &job.answer {
            Some(Ok(Assessment::BlockedNow {
                why,
                retryable: Some(limit),
                ..
            })) => Some((job, why.as_str(), *limit)),
            _ => None,
        })
        .collect();
    found?.into_iter().min_by_key(|(_, _, limit)| *limit)
}

/// Returns the step that blocks the run, if only outdated package lists block it.
fn only_by_old_lists(jobs: &[Job]) -> Option<StepId> {
    let by_old_lists =
        |job: &&Job| matches!(job.answer, Some(Ok(Assessment::BlockedByOldLists { .. })));
    let mut blocking = jobs.iter().filter(|job| job.blocks_the_run());
    let first = blocking.next().filter(by_old_lists)?;
    blocking
        .all(|job| by_old_lists(&job))
        .then(|| first.id.clone())
}

/// Whether steps that depend on a step with this outcome are skipped.
pub(super) const fn stands_in_the_way(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Blocked | Outcome::Failed | Outcome::NotRun
    )
}

/// Returns the remedy for a step that is blocked by outdated package lists.
pub(super) fn hint_by_old_lists(mode: Mode, hint: &str) -> String {
    let first = match mode {
        // The step is assessed again as soon as only outdated lists block the run.
        Mode::Install | Mode::Upgrade | Mode::Uninstall => {
            "the package lists may be outdated; new ones are downloaded when no other step blocks \
             the run"
        }
        Mode::Check | Mode::Plan => "`install` checks again with new package lists",
    };
    format!("{first}; if the result is the same: {hint}")
}

/// Sets the remedy if the lists could not be downloaded.
fn say_that_lists_stay_old(job: &mut Job) {
    if let Some(Ok(Assessment::BlockedByOldLists { hint, .. })) = &job.answer
        && let Some(end) = &mut job.ended
    {
        end.hint = Some(format!(
            "first fix the download of the package lists (see the notes), then run the command \
             again; if the result is the same: {hint}"
        ));
    }
}

/// Returns the outcome of a step if nothing is applied for it.
pub(super) fn conclusion(mode: Mode, answer: &Assessed) -> End {
    match answer {
        Ok(Assessment::Satisfied { why }) => End::new(Outcome::Satisfied, why.clone()),
        Ok(Assessment::NotApplicable { why }) => End::new(Outcome::NotApplicable, why.clone()),
        Ok(Assessment::AwaitingBoot { why }) => End::new(Outcome::AwaitingBoot, why.clone()),
        Ok(Assessment::Needs { why, .. }) => End::new(Outcome::WouldChange, why.clone()),
        Ok(Assessment::After { upstream, why, .. }) => {
            End::new(Outcome::WouldChange, format!("after `{upstream}`: {why}"))
        }
        Ok(Assessment::BlockedByOldLists { why, hint }) => {
            End::new(Outcome::Blocked, why.clone()).hint(Some(hint_by_old_lists(mode, hint)))
        }
        Ok(Assessment::Blocked { why, hint } | Assessment::BlockedNow { why, hint, .. }) => {
            End::new(Outcome::Blocked, why.clone()).hint(Some(hint.clone()))
        }
        Err(error) => End::could_not_look(error),
    }
}
