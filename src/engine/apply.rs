//! The scheduler: one loop that starts work and handles finished work. One task makes all
//! decisions. Each assessment, each batch of package work and each sequence of changes of a step runs
//! in a separate task.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::task::{Id as TaskId, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Session,
    batch::{batch, due, only_compiles},
    job::{Assessed, End, Job, had_nothing_to_do},
    ledger::Ledger,
    retry::RetryPolicy,
};
use crate::{
    change::{CHANGED_SINCE, Change, ChangeError, Lock, STOPPED},
    error::one_line,
    event::{Event, Outcome},
    exit::Exit,
    model::id::StepId,
    step::Assessment,
};

/// The scheduler's state.
pub(super) struct Applying<'s> {
    pub(super) session: &'s Session,
    ledger: Ledger,
    pub(super) reboots: Reboots,
    pub(super) jobs: Vec<Job>,
    tasks: JoinSet<Done>,
    /// The steps and the locks of each running task.
    workers: HashMap<TaskId, Worker>,
    /// Incremented whenever a change starts or finishes. An assessment with a lower number is
    /// outdated, and so is the state that it was based on.
    snapshot: u64,
    /// The package lists were refreshed after the last repository was added, and no package change has
    /// failed since with a transient error, which outdated lists may cause.
    pub(super) lists_are_new: bool,
    pub(super) stop: Option<Stop>,
    /// [`Self::note_when_ready`] has reported it.
    is_ready: bool,
    pub(super) retry_policy: RetryPolicy,
    /// Cancels the pauses before retries.
    pub(super) pauses: CancellationToken,
}

/// The number of reboots since the last successful run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reboots {
    /// Counted since the last driver that failed validation.
    pub(super) since: u32,
    /// Including reboots for drivers that failed validation.
    pub(super) in_all: u32,
}

struct Worker {
    steps: Vec<usize>,
    locks: BTreeSet<Lock>,
}

/// The reason no new work starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    /// A step failed or is blocked.
    Step(String),
    /// The user requested a stop.
    Cancelled(Exit),
    /// A reboot is due.
    Reboot(String),
    /// The deadline has passed.
    Deadline(Duration),
}

/// The result of a task.
pub(super) enum Done {
    Assessed {
        at: usize,
        answer: Assessed,
    },
    Applied {
        steps: Vec<usize>,
        count: usize,
        failed: Option<(String, ChangeError)>,
    },
    /// The pause before another attempt is over.
    Paused {
        at: usize,
    },
}

impl<'s> Applying<'s> {
    pub(super) fn new(
        session: &'s Session,
        ledger: Ledger,
        reboots: Reboots,
        jobs: Vec<Job>,
    ) -> Self {
        // Read everything again, including everything that could not be read before.
        session.inner.invalidate();
        session.inner.state().note_lists(false);
        Self {
            session,
            ledger,
            reboots,
            jobs,
            tasks: JoinSet::new(),
            workers: HashMap::new(),
            snapshot: 0,
            lists_are_new: false,
            stop: None,
            is_ready: false,
            retry_policy: RetryPolicy::new(&session.tools.options),
            pauses: session.tools.cancel.token().child_token(),
        }
    }

    /// Runs until all work is done or nothing more may start.
    pub(super) async fn run(&mut self) {
        loop {
            if self.stop.is_none()
                && let Some(exit) = self.session.tools.cancel.exit()
            {
                self.stop = Some(Stop::Cancelled(exit));
                if !self.tasks.is_empty() {
                    self.session.tools.events.emit(Event::Note {
                        message:
                            "stop requested: started work is finished first, no new work starts"
                                .to_owned(),
                    });
                }
            }
            let elapsed = self.session.tools.events.elapsed();
            if self.stop.is_none()
                && let Some(deadline) = self.retry_policy.passed(elapsed)
            {
                self.stop = Some(Stop::Deadline(deadline));
            }
            while self.advance() {}
            self.note_when_ready();
            if self.stop.is_some() {
                self.pauses.cancel();
            }
            if self.tasks.is_empty() {
                break;
            }
            let cancel = self.session.tools.cancel.clone();
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(Ok((task, done))) => {
                        self.workers.remove(&task);
                        self.take_in(done);
                    }
                    Some(Err(error)) => self.crashed(&error),
                    None => {}
                },
                _ = cancel.cancelled(), if self.stop.is_none() => {}
            }
        }
        if matches!(self.stop, Some(Stop::Reboot(_) | Stop::Step(_))) {
            self.finish_before_boot().await;
        }
        self.give_up_the_rest();
    }

    /// Reports once that only work is left which the node does not need.
    fn note_when_ready(&mut self) {
        let is_left = |job: &&Job| {
            job.before_boot && job.ended.is_none() && job.busy && !job.pending().is_empty()
        };
        let is_done = |job: &Job| job.succeeded() || job.has(Outcome::NotApplicable);
        if self.is_ready
            || self.session.inner.image()
            || self.stop.is_some()
            || !self.jobs.iter().all(|job| is_left(&job) || is_done(job))
        {
            return;
        }
        let Some(left) = self.jobs.iter().find(is_left) else {
            return;
        };
        self.is_ready = true;
        let message = format!("the node is ready; `{}` is still running", left.id);
        self.session.tools.events.emit(Event::Note { message });
    }

    /// Applies the changes that must precede the next boot. If one fails, the machine is not rebooted. After a failure of another
    /// step, this is an attempt: only that failure is reported as such.
    async fn finish_before_boot(&mut self) {
        let steps = self.jobs.iter().enumerate();
        let due: Vec<usize> = steps
            .filter(|(_, job)| job.before_boot && job.ended.is_none())
            .map(|(at, _)| at)
            .collect();
        for at in due {
            match self.finish(at).await {
                None => {}
                Some(end) if end.outcome != Outcome::Failed => self.end(at, end),
                Some(end) if matches!(self.stop, Some(Stop::Reboot(_))) => self.fail(at, end),
                Some(end) => {
                    let why = [end.why].into_iter().chain(end.causes).collect::<Vec<_>>();
                    self.end(at, End::new(Outcome::NotRun, why.join(": ")));
                }
            }
        }
    }

    /// Assesses a step and applies its changes. `None` if it needs none, or if a stop was requested.
    async fn finish(&self, at: usize) -> Option<End> {
        let changes = match self.session.inner.assess(at).await {
            Ok(Assessment::Needs { changes, .. }) => changes,
            Ok(_) => return None,
            Err(error) => return Some(End::could_not_look(&error)),
        };
        let ids = self.ids(&[at]);
        for change in changes {
            match self.ledger.perform(&ids, &change).await {
                Ok(()) => {}
                Err(failure) if failure.reason == STOPPED => return None,
                Err(failure) => return Some(End::failed(&change.summary(), &failure)),
            }
        }
        let why = "applied at the end of the run".to_owned();
        Some(End::new(Outcome::Changed, why))
    }

    /// Starts and finishes work. Returns whether the state of a step changed.
    fn advance(&mut self) -> bool {
        let mut moved = false;
        for at in self.session.inner.graph.order.clone() {
            if self.jobs[at].ended.is_none() && !self.jobs[at].busy {
                moved |= self.advance_step(at);
            }
        }
        if self.stop.is_none() {
            moved |= self.advance_packages();
        }
        moved
    }

    fn advance_step(&mut self, at: usize) -> bool {
        let upstream = &self.session.inner.graph.up[at];
        let ends: Vec<Option<Outcome>> =
            upstream.iter().map(|up| self.jobs[*up].outcome()).collect();
        if let Some(dead) = ends
            .iter()
            .position(|end| end.is_some_and(|outcome| !outcome.lets_go_on()))
        {
            if self.jobs[at].before_boot {
                // See `finish_before_boot`.
                return false;
            }
            let why = self.jobs[upstream[dead]].not_because_of();
            self.end(at, End::new(Outcome::NotRun, why));
            return true;
        }
        if ends.iter().any(Option::is_none) {
            return false;
        }
        let job = &self.jobs[at];
        if !job.decided {
            if self.stop.is_some() {
                return false;
            }
            let usable = job.answered_at == self.snapshot
                && !matches!(
                    job.answer,
                    None | Some(
                        Err(_) | Ok(Assessment::After { .. } | Assessment::BlockedNow { .. })
                    )
                );
            if usable {
                self.decide(at);
            } else {
                self.assess(at);
            }
            return true;
        }
        match job.pending().first() {
            None => {
                // An assessment changes nothing, so it may start even if changes may not.
                self.assess(at);
                true
            }
            Some(_) if self.stop.is_some() => false,
            // The next assessment decides whether the applied changes require this reboot.
            Some(Change::Reboot { .. }) if job.applied > 0 => {
                let applied = job.applied;
                self.jobs[at].changes.truncate(applied);
                self.assess(at);
                true
            }
            Some(Change::Reboot { why }) => {
                let why = why.clone();
                self.jobs[at].applied += 1;
                self.reboot(at, why);
                true
            }
            Some(change) if batch(change).is_some() => false,
            Some(_) => self.apply_changes(at),
        }
    }

    /// Starts an assessment of a step, to decide its changes or to verify the applied ones.
    fn assess(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        let now = self.session.tools.events.elapsed();
        job.since.get_or_insert(now);
        job.busy = true;
        job.answered_at = self.snapshot;
        let inner = Arc::clone(&self.session.inner);
        self.start(vec![at], BTreeSet::new(), async move {
            Done::Assessed {
                at,
                answer: inner.assess(at).await,
            }
        });
    }

    /// Applies the changes of a step up to the next batch or reboot, while holding its locks. Returns
    /// `false` if another task holds one of the locks.
    fn apply_changes(&mut self, at: usize) -> bool {
        let changes: Vec<Change> = self.jobs[at]
            .pending()
            .iter()
            .take_while(|change| {
                batch(change).is_none() && !matches!(change, Change::Reboot { .. })
            })
            .cloned()
            .collect();
        let mut locks: BTreeSet<Lock> = self.jobs[at].locks.iter().copied().collect();
        if changes.iter().any(needs_package_lock) {
            locks.insert(Lock::Packages);
        }
        if only_compiles(&self.jobs[at]) {
            locks.remove(&Lock::Packages);
        }
        if !self.free(&locks) {
            return false;
        }
        self.begin(&[at]);
        let ledger = self.ledger.clone();
        let cancel = self.session.tools.cancel.clone();
        let id = self.jobs[at].id.clone();
        self.start(vec![at], locks, async move {
            let mut count = 0;
            let mut failed = None;
            for change in &changes {
                if cancel.exit().is_some() {
                    break;
                }
                if let Err(failure) = ledger.perform(std::slice::from_ref(&id), change).await {
                    failed = Some((change.summary(), failure));
                    break;
                }
                count += 1;
            }
            Done::Applied {
                steps: vec![at],
                count,
                failed,
            }
        });
        true
    }

    /// Starts a batch of package work (see the module `batch`) if every step that can join it is waiting. Returns whether the
    /// state of a step changed.
    fn advance_packages(&mut self) -> bool {
        let Some(shared) = due(&self.jobs, &self.session.inner.graph) else {
            return false;
        };
        if shared.change == Change::RefreshRepositories && self.lists_are_new {
            for at in shared.steps {
                self.jobs[at].applied += 1;
            }
            return true;
        }
        let mut locks = BTreeSet::from([Lock::Packages]);
        // A refresh of the lists only needs the package lock, not the other locks of the steps.
        if shared.change != Change::RefreshRepositories {
            for at in &shared.steps {
                locks.extend(self.jobs[*at].locks.iter().copied());
            }
        }
        if !self.free(&locks) {
            return false;
        }
        self.begin(&shared.steps);
        let ledger = self.ledger.clone();
        let ids = self.ids(&shared.steps);
        self.start(shared.steps.clone(), locks, async move {
            let failed = ledger
                .perform(&ids, &shared.change)
                .await
                .err()
                .map(|failure| (shared.change.summary(), failure));
            Done::Applied {
                steps: shared.steps,
                count: usize::from(failed.is_none()),
                failed,
            }
        });
        true
    }

    fn ids(&self, steps: &[usize]) -> Vec<StepId> {
        steps.iter().map(|at| self.jobs[*at].id.clone()).collect()
    }

    fn begin(&mut self, steps: &[usize]) {
        self.next_snapshot();
        for at in steps {
            self.jobs[*at].busy = true;
        }
    }

    fn next_snapshot(&mut self) {
        self.snapshot += 1;
        self.session.inner.invalidate();
        (self.session).know_unread(&self.ledger.journal.receipt().applied);
    }

    pub(super) fn start(
        &mut self,
        steps: Vec<usize>,
        locks: BTreeSet<Lock>,
        work: impl Future<Output = Done> + Send + 'static,
    ) {
        let task = self.tasks.spawn(work);
        self.workers.insert(task.id(), Worker { steps, locks });
    }

    fn free(&self, locks: &BTreeSet<Lock>) -> bool {
        self.workers
            .values()
            .all(|worker| worker.locks.is_disjoint(locks))
    }

    fn take_in(&mut self, done: Done) {
        match done {
            Done::Assessed { at, answer } => {
                self.jobs[at].busy = false;
                let changed = match (&self.jobs[at].answer, &answer) {
                    (Some(Ok(before)), Ok(now)) => before != now,
                    _ => true,
                };
                if changed {
                    let event = self.jobs[at].answer_event(&answer);
                    self.session.tools.events.emit(event);
                }
                if self.jobs[at].decided {
                    self.verify(at, answer);
                } else {
                    self.jobs[at].answer = Some(answer);
                    self.decide(at);
                }
            }
            Done::Applied {
                steps,
                count,
                failed,
            } => {
                self.next_snapshot();
                for at in &steps {
                    let job = &mut self.jobs[*at];
                    job.busy = false;
                    let done = &job.changes[job.applied..job.applied + count];
                    let refreshed = done.contains(&Change::RefreshRepositories);
                    if refreshed {
                        self.lists_are_new = true;
                    }
                    if done
                        .iter()
                        .any(|change| matches!(change, Change::AddRepository { .. }))
                    {
                        self.lists_are_new = false;
                    }
                    job.applied += count;
                    if refreshed {
                        // Decide again with the new package lists.
                        job.begin_again();
                    }
                }
                self.session.inner.state().note_lists(self.lists_are_new);
                if let Some((summary, failure)) = failed
                    // A change that was stopped while waiting did not run, so it did not fail.
                    && failure.reason != STOPPED
                {
                    for at in steps {
                        let job = &mut self.jobs[at];
                        if failure.reason == CHANGED_SINCE && !job.is_outdated {
                            job.is_outdated = true;
                            job.begin_again();
                            continue;
                        }
                        let message = format!("failed to {summary}: {}", one_line(&failure));
                        // Outdated lists may be the cause of the failure.
                        let job = &self.jobs[at];
                        if failure.retryable
                            && (job.changes.get(job.applied)).is_some_and(needs_package_lock)
                        {
                            self.lists_are_new = false;
                            self.session.inner.state().note_lists(false);
                        }
                        if !(failure.retryable && self.again(at, &message, None)) {
                            self.fail(at, End::failed(&summary, &failure));
                        }
                    }
                }
            }
            Done::Paused { at } => {
                self.jobs[at].busy = false;
                // State that was read before the pause is outdated.
                self.next_snapshot();
            }
        }
    }

    pub(super) fn fail(&mut self, at: usize, end: End) {
        let word = if end.outcome == Outcome::Blocked {
            "is blocked"
        } else {
            "failed"
        };
        let why = format!("`{}` {word}", self.jobs[at].id);
        match self.stop {
            Some(Stop::Step(_) | Stop::Cancelled(_) | Stop::Deadline(_)) => {}
            // A failure has precedence over a reboot.
            None | Some(Stop::Reboot(_)) => self.stop = Some(Stop::Step(why)),
        }
        self.end(at, end);
    }

    fn crashed(&mut self, error: &tokio::task::JoinError) {
        tracing::error!(%error, "a task of the engine panicked");
        let Some(worker) = self.workers.remove(&error.id()) else {
            return;
        };
        self.next_snapshot();
        for at in worker.steps {
            self.jobs[at].busy = false;
            self.fail(at, End::bug("its task panicked"));
        }
    }

    pub(super) fn end(&mut self, at: usize, mut end: End) {
        let now = self.session.tools.events.elapsed();
        let job = &mut self.jobs[at];
        if !job.undone.is_empty() && had_nothing_to_do(end.outcome) {
            end.why = format!("obsolete changes are undone; {}", end.why);
            end.outcome = Outcome::Changed;
        }
        if let Some(since) = job.since.take() {
            job.spent += now.saturating_sub(since);
        }
        job.ended = Some(end);
        if let Some(event) = job.finished(job.spent.as_secs_f64()) {
            self.session.tools.events.emit(event);
        }
    }

    /// Marks every step without an outcome as not-run, or as failed if no stop explains it. Called when
    /// no work is running and none can start.
    fn give_up_the_rest(&mut self) {
        let because = match &self.stop {
            Some(Stop::Step(why)) => why.clone(),
            Some(Stop::Cancelled(Exit::Interrupted)) => "stopped by SIGINT".to_owned(),
            Some(Stop::Cancelled(_)) if self.session.tools.cancel.hung_up() => {
                "stopped by SIGHUP".to_owned()
            }
            Some(Stop::Cancelled(_)) => "stopped by SIGTERM".to_owned(),
            Some(Stop::Reboot(why)) => format!("reboot required first: {why}"),
            Some(Stop::Deadline(after)) => {
                format!("the deadline of {} s has passed", after.as_secs())
            }
            None => "no step can start (this is a bug)".to_owned(),
        };
        for at in self.session.inner.graph.order.clone() {
            let job = &self.jobs[at];
            if job.ended.is_some() {
                continue;
            }
            let why = if job.applied == 0 {
                because.clone()
            } else {
                format!(
                    "{because}, after {} of {} changes",
                    job.applied,
                    job.changes.len()
                )
            };
            let outcome = if self.stop.is_some() {
                Outcome::NotRun
            } else {
                Outcome::Failed
            };
            self.end(at, End::new(outcome, why));
        }
    }
}

const fn needs_package_lock(change: &Change) -> bool {
    matches!(
        change,
        Change::AddRepository { .. }
            | Change::RefreshRepositories
            | Change::EnableStream { .. }
            | Change::InstallPackages { .. }
            | Change::RepairPackages
            | Change::RunTriggers
            | Change::HoldPackages { .. }
    )
}
