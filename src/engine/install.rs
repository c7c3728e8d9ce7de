//! `install`: assesses all steps, and starts changes only if no step blocks the run.

use super::{
    EngineError, Session, Tools,
    apply::{Applying, Reboots, Stop},
    guard,
    job::{End, Job},
    ledger::Ledger,
    maintenance::{Leaving, Stays, Unreturned},
    persist,
    result::{ChangeReport, Mode, Reboot, RunReport, StepReport},
    resume,
    status::awaited,
};
use crate::{
    change::Undo,
    event::{Event, Outcome, Summary},
    exit::Exit,
    journal::{AppliedChange, Awaited, History, Journal, JournalError, Record, RollbackStarted},
    model::node::NodeSummary,
};

impl Session {
    /// Brings the machine to the desired state, or reports why this is not possible. Each change is
    /// recorded before and after it is applied. A change that was interrupted earlier is completed.
    ///
    /// If a driver fails validation, the same call rolls back to the previous driver. It also
    /// continues a rollback that an earlier run started.
    ///
    /// The caller prints the report and then calls [`Session::follow`].
    ///
    /// # Errors
    /// If the run cannot start (another run is in progress, or a reboot is pending) or cannot be
    /// recorded. Errors of steps are in the report.
    pub async fn install(&self) -> Result<RunReport, EngineError> {
        if let Some(back) = self.driver_before().await? {
            return self.roll_back(back).await;
        }
        let report = self.attempt().await?;
        match self.driver_before().await? {
            Some(back) => self.roll_back(back).await,
            None => Ok(report),
        }
    }

    /// Runs the session of a rollback and keeps it for [`Session::follow`].
    pub(super) async fn roll_back(&self, session: Self) -> Result<RunReport, EngineError> {
        let session = self.inner.rollback.get_or_init(|| Box::new(session));
        session.attempt().await
    }

    async fn attempt(&self) -> Result<RunReport, EngineError> {
        let lock = self.tools.lock()?;
        self.tools.resume_paused().await;
        let (journal, history) = Journal::open(
            &self.tools.host,
            self.tools.events.run(),
            self.tools.events.secrets(),
        )?;
        if let Some(report) = self.reboot_first(&journal)? {
            return Ok(report);
        }
        self.announce(Mode::of(&self.tools.options.request));
        let mut notes = Vec::new();
        self.look_back(&journal, &history, &mut notes);
        let mut before = journal.receipt();
        let is_automatic = guard::is_automatic(&self.tools.options);
        if let Some(why) = guard::gave_up(&before).filter(|_| is_automatic) {
            self.note_gave_up(why, &mut notes);
            let report = self.report(Exit::StepFailed, &[], notes, None);
            self.tools.finished(&report);
            return Ok(report);
        }
        let ledger = Ledger {
            journal,
            change_applier: self.tools.change_applier.clone(),
            events: self.tools.events.clone(),
        };
        // Write nothing to an untouched machine before it is clear that the run is not blocked.
        let known = !history.lines.is_empty();
        let first = history.lines.len() as u64;
        if known {
            self.begin(&ledger)?;
        }
        if self.give_up_rollback(&ledger, &mut notes)? {
            before.rollback_started = None;
        }
        if let Some(RollbackStarted { from, to, why }) = &before.rollback_started {
            let note = format!("driver {from} failed validation ({why}): rolling back to {to}");
            self.tools.note(&mut notes, note);
        }
        if let Some(note) = self.inner.note.get() {
            self.tools.note(&mut notes, note.clone());
        }
        let reboots = Reboots {
            since: before.reboots,
            // The reboots for failed drivers do not count towards the limit of a rollback.
            in_all: match before.rollback_started {
                Some(_) => 0,
                None => before.reboots_in_all,
            },
        };
        for note in ledger.reconcile().await? {
            self.tools.note(&mut notes, note);
        }
        let back = before.rollback_started.clone();
        if is_automatic {
            let boots = guard::too_many(&before, self.tools.options.boot_id.as_deref());
            if let Some(boots) = boots {
                let why = format!("{boots} consecutive boots ended before the run finished");
                let mut upgrade_failed = None;
                if !self.turn_back_because(&ledger, why, &mut notes).await? {
                    self.give_up(&ledger, boots, &mut notes).await?;
                    let out = self.end_maintenance(&ledger, Exit::StepFailed, &[], &mut notes);
                    upgrade_failed = out.await?.map(|out| out.why());
                }
                notes.extend(self.tools.events.take_notes());
                let mut report = self.report(Exit::StepFailed, &[], notes, None);
                report.upgrade_failed = upgrade_failed;
                finish(&self.tools, &ledger.journal, &report)?;
                self.tools.finished(&report);
                return Ok(report);
            }
        }
        let released = guard::release(&*self.tools.host.files, &before.applied)
            .map_err(|error| EngineError::Unfinished(JournalError::from(error)))?;
        for path in released {
            self.tools.note(&mut notes, guard::told(&path));
        }
        if !is_automatic || back.is_some() {
            for note in guard::allow(&ledger).await? {
                self.tools.note(&mut notes, note);
            }
        }

        let applied = ledger.journal.receipt().applied;
        self.know(&applied);
        let mut jobs = self.survey_before_changes(&applied, &mut notes).await;
        let mut left = Vec::new();
        let mut maintenance = None;
        let blocked = refusal(&jobs);
        if blocked.is_none()
            && let Some(stays) = self
                .stays_in_service(&jobs, &ledger.journal.receipt())
                .await
        {
            let stays = self.not_left(&ledger, stays, &mut notes).await?;
            let report = self.not_started(jobs, stays, notes);
            if known {
                finish(&self.tools, &ledger.journal, &report)?;
            }
            self.tools.finished(&report);
            return Ok(report);
        }
        let (jobs, exit, reboot) = if let Some(exit) = blocked {
            nothing_changes(&mut jobs);
            self.emit_ends(&jobs);
            (jobs, exit, None)
        } else {
            // After a stop request, nothing is changed, not even at the next boot.
            let mut armed = false;
            let mut left_in = None;
            if self.tools.cancel.exit().is_none() {
                if !known {
                    self.begin(&ledger)?;
                }
                armed = self.survive_power_cuts(&ledger, &jobs, &mut notes).await;
                match self.leave_service(&ledger, &jobs, &mut notes).await? {
                    Leaving::NotNeeded => {}
                    Leaving::Left(time) => left_in = Some(time),
                    Leaving::Failed(stays) => {
                        let exit = self.disarm(&ledger, stays.exit, armed, &mut notes).await?;
                        notes.extend(self.tools.events.take_notes());
                        let report = RunReport {
                            exit,
                            ..self.not_started(jobs, stays, notes)
                        };
                        finish(&self.tools, &ledger.journal, &report)?;
                        self.tools.finished(&report);
                        return Ok(report);
                    }
                }
            }
            jobs.iter_mut().for_each(|job| job.ended = None);
            let mut undone = self.undo_obsolete(&ledger, &mut jobs, &mut notes).await?;
            if undone.any || left_in.is_some() {
                // State that was read before the undo, or before the node has left service, is outdated.
                jobs.iter_mut().for_each(|job| job.answer = None);
            }
            let mut applying = Applying::new(self, ledger.clone(), reboots, jobs);
            applying.retry_policy = applying.retry_policy.extended(left_in.unwrap_or_default());
            applying.run().await;
            let mut exit = exit_of(&applying, undone.any || changed(&applying, &ledger, first));
            if !undone.any {
                let jobs = &mut applying.jobs;
                exit = (self.undo_blocked_by_lock(&ledger, first, exit, jobs, &mut notes)).await?;
            }
            if exit == Exit::Ok {
                (self.undo_the_rest(&ledger, &mut applying.jobs, &mut undone, &mut notes)).await?;
            }
            let jobs = applying.jobs;
            let reboot = match (&applying.stop, exit) {
                (Some(Stop::Reboot(why)), Exit::RebootRequired) => {
                    Some(self.await_reboot(&ledger, why, &mut notes).await?)
                }
                _ => None,
            };
            let exit = if exit == Exit::Ok {
                self.keep_or_dismiss_resume(&ledger, &jobs, &mut notes)
                    .await?
            } else {
                self.disarm(&ledger, exit, armed, &mut notes).await?
            };
            let exit = undone.exit(exit);
            left = undone.left;
            (jobs, exit, reboot)
        };

        self.remember(&ledger, exit, &jobs, &mut notes).await?;
        let exit = match &back {
            Some(back) => {
                self.end_rollback(&ledger, back, exit, &jobs, &mut notes)
                    .await?
            }
            None => {
                self.turn_back(&ledger, exit, &jobs, &mut notes).await?;
                exit
            }
        };
        let out = (self.end_maintenance(&ledger, exit, &jobs, &mut notes)).await?;
        let upgrade_failed = out.as_ref().map(Unreturned::why);
        let exit = match out {
            Some(Unreturned::Stuck(stuck)) => {
                maintenance = Some(stuck);
                Exit::StepFailed
            }
            Some(Unreturned::Failed(_)) | None => exit,
        };
        if back.is_some() && exit != Exit::Ok && ledger.journal.receipt().rollback_started.is_none()
        {
            // The next boot must not try the failed driver again.
            if let Some(note) = resume::dismiss(&ledger).await? {
                self.tools.note(&mut notes, note);
            }
        }
        notes.extend(self.tools.events.take_notes());
        let node = self.node(exit, &jobs, &before, &mut notes).await;
        let mut report = self.report(exit, &jobs, notes, reboot);
        report.steps.extend(maintenance);
        report.left = left;
        report.node = node;
        report.upgrade_failed = upgrade_failed;
        if known
            || ledger
                .journal
                .receipt()
                .runs
                .iter()
                .any(|run| run.ended.is_none())
        {
            finish(&self.tools, &ledger.journal, &report)?;
            report.to_ready = self.to_ready(&report);
        }
        // A run that builds a module keeps timers paused until its end.
        self.tools.resume_paused().await;
        self.tools.finished(&report);
        drop(lock);
        Ok(report)
    }

    fn report(
        &self,
        exit: Exit,
        jobs: &[Job],
        notes: Vec<String>,
        reboot: Option<Reboot>,
    ) -> RunReport {
        RunReport {
            steps: jobs.iter().map(|job| job.report(done(job))).collect(),
            notes,
            reboot,
            seconds: self.tools.events.elapsed().as_secs_f64(),
            ..RunReport::new(
                Mode::of(&self.tools.options.request),
                self.tools.events.run().to_owned(),
                exit,
            )
        }
    }

    /// Returns the report of an upgrade that has not started, because the node stays in service.
    fn not_started(&self, mut jobs: Vec<Job>, stays: Stays, mut notes: Vec<String>) -> RunReport {
        if stays.exit == Exit::Ok {
            self.tools.note(&mut notes, stays.with_hint());
        }
        for job in jobs.iter_mut().filter(|job| job.has(Outcome::WouldChange)) {
            job.ended = Some(End::new(Outcome::NotRun, stays.why()));
        }
        self.emit_ends(&jobs);
        let mut report = self.report(stays.exit, &jobs, notes, None);
        report.upgrade_failed = stays.out_because();
        report.steps.push(stays.step);
        report
    }

    /// Handles a recorded reboot that has not happened. If the reboot is automatic and this run also uses
    /// `--reboot`, it is requested again. Otherwise this run is rejected.
    fn reboot_first(&self, journal: &Journal) -> Result<Option<RunReport>, EngineError> {
        let receipt = journal.receipt();
        let now = &self.tools.options.boot_id;
        match awaited(&receipt).filter(|one| one.boot_id.is_some() && one.boot_id == *now) {
            None => Ok(None),
            Some(Awaited { why, automatic, .. })
                if automatic && self.tools.options.request.reboot =>
            {
                let mut notes = Vec::new();
                let note = "the reboot requested by the last run has not happened";
                self.tools.note(&mut notes, note.to_owned());
                let reboot = Some(Reboot { why, automatic });
                Ok(Some(self.report(Exit::RebootRequired, &[], notes, reboot)))
            }
            Some(awaited) => Err(EngineError::RebootFirst {
                awaited,
                reboots: receipt.reboots,
            }),
        }
    }

    /// Reports information about earlier runs from the journal, before any step is assessed.
    fn look_back(&self, journal: &Journal, history: &History, notes: &mut Vec<String>) {
        if let Some(torn) = &history.torn {
            self.tools.note(
                notes,
                format!(
                    "the last line of the journal ({}) is incomplete, probably because of a power \
                     loss; its {} bytes are dropped",
                    torn.line, torn.bytes
                ),
            );
        }
        let before = journal.receipt().instance_id;
        if let (Some(before), Some(now)) = (&before, &self.tools.options.instance_id)
            && before != now
        {
            self.tools.note(
                notes,
                format!(
                    "this is a clone: the journal was written on instance `{before}`, the current \
                     instance is `{now}`"
                ),
            );
        }
    }

    fn begin(&self, ledger: &Ledger) -> Result<(), EngineError> {
        let files = &*self.tools.host.files;
        let (request, copies) =
            persist::request(files, &self.tools.options.request).map_err(JournalError::from)?;
        // The journal is written first, because `uninstall` reads from it which files to remove.
        ledger.journal.append(Record::RunStarted {
            tool: self.tools.options.version.clone(),
            mode: Mode::Install.word().to_owned(),
            instance_id: self.tools.options.instance_id.clone(),
            boot_id: self.tools.options.boot_id.clone(),
            request,
            policy: self.tools.options.policy.clone(),
            assessed_seconds: Some(self.tools.events.elapsed().as_secs_f64()),
        })?;
        persist::copy(files, &copies).map_err(JournalError::from)?;
        ledger
            .journal
            .keep_credentials(&self.tools.options.request.credentials)?;
        Ok(())
    }

    /// Installs the resume unit before the first change if the run uses `--reboot`, because no user
    /// is present to continue after a power loss. Returns whether this run installed it.
    async fn survive_power_cuts(
        &self,
        ledger: &Ledger,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> bool {
        let stood = resume::stands(ledger);
        let changes = jobs.iter().any(|job| job.has(Outcome::WouldChange));
        if changes
            && self.tools.options.request.reboot
            && let Err(note) = resume::ensure(&self.tools, ledger, self.driver_modules()).await
        {
            self.tools.note(notes, note);
        }
        !stood && resume::stands(ledger)
    }

    async fn await_reboot(
        &self,
        ledger: &Ledger,
        why: &str,
        notes: &mut Vec<String>,
    ) -> Result<Reboot, EngineError> {
        let mut automatic = self.tools.options.request.reboot && !self.stopped_by_hand();
        if automatic
            && let Err(note) = resume::ensure(&self.tools, ledger, self.driver_modules()).await
        {
            // A reboot without a continuation is worse than asking the user to reboot.
            automatic = false;
            self.tools.note(notes, note);
        }
        ledger
            .journal
            .append(Record::RebootAwaited {
                boot_id: self.tools.options.boot_id.clone(),
                why: why.to_owned(),
                automatic,
            })
            .map_err(EngineError::Unfinished)?;
        self.tools.events.emit(Event::RebootRequired {
            why: why.to_owned(),
            automatic,
        });
        Ok(Reboot {
            why: why.to_owned(),
            automatic,
        })
    }

    /// Keeps the resume unit while a step waits for a boot, and removes it when all steps are done.
    /// The first boot of an image must finish the work, so the unit must be in place there.
    async fn keep_or_dismiss_resume(
        &self,
        ledger: &Ledger,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<Exit, EngineError> {
        if jobs.iter().any(|job| job.has(Outcome::AwaitingBoot)) {
            if let Err(note) = resume::ensure(&self.tools, ledger, self.driver_modules()).await {
                self.tools.note(notes, note);
                return Ok(Exit::StepFailed);
            }
        } else if let Some(note) = resume::dismiss(ledger).await? {
            self.tools.note(notes, note);
        }
        Ok(Exit::Ok)
    }

    /// After a run that did not succeed, the unit stays for the next boot, except if the run changed
    /// nothing or was stopped with Ctrl-C. SIGTERM does not count as a stop by the user, because it is
    /// also sent at shutdown.
    async fn disarm(
        &self,
        ledger: &Ledger,
        exit: Exit,
        armed: bool,
        notes: &mut Vec<String>,
    ) -> Result<Exit, EngineError> {
        let untouched = armed && exit == Exit::Blocked;
        if !resume::stands(ledger) || !(untouched || self.stopped_by_hand()) {
            return Ok(exit);
        }
        let left = resume::dismiss(ledger).await?;
        let exit = match exit {
            Exit::Blocked if left.is_some() => Exit::StepFailed,
            exit => exit,
        };
        if let Some(note) = left {
            self.tools.note(notes, note);
        } else if !untouched {
            let command = Mode::of(&self.tools.options.request).command();
            let note = format!(
                "stopped by Ctrl-C: the next boot does not continue the run; run `{command}` with \
                 the same options to continue"
            );
            self.tools.note(notes, note);
        }
        Ok(exit)
    }

    fn stopped_by_hand(&self) -> bool {
        self.tools.cancel.exit() == Some(Exit::Interrupted)
    }
}

/// Ends a run in the journal with its report.
pub(super) fn finish(
    tools: &Tools,
    journal: &Journal,
    report: &RunReport,
) -> Result<(), EngineError> {
    let stopped = |step: &&StepReport| matches!(step.outcome, Outcome::Blocked | Outcome::Failed);
    let reasons = Reasons {
        upgrade_failed: report.upgrade_failed.clone(),
        why: (report.steps.iter().find(stopped)).map(|step| format!("{}: {}", step.id, step.why)),
    };
    let summary = report.summary();
    end(
        tools,
        journal,
        report.exit,
        summary,
        report.node.clone(),
        reasons,
    )
}

/// The reasons that a run did not succeed, for the journal.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    upgrade_failed: Option<String>,
    why: Option<String>,
}

/// Ends a run in the journal and rewrites the receipt.
pub(super) fn end(
    tools: &Tools,
    journal: &Journal,
    exit: Exit,
    summary: Summary,
    node: Option<NodeSummary>,
    reasons: Reasons,
) -> Result<(), EngineError> {
    let system = &tools.host.system;
    let (cpu_time, own_time) = (system.own_cpu_time(), system.own_time());
    journal
        .append(Record::RunFinished {
            exit: exit.code(),
            summary,
            node: node.map(Box::new),
            upgrade_failed: reasons.upgrade_failed,
            why: reasons.why,
            cpu_seconds: cpu_time.map(|time| time.as_secs_f64()),
            own_seconds: own_time.map(|time| time.as_secs_f64()),
        })
        .and_then(|_| journal.write_receipt())
        .map_err(EngineError::Unfinished)
}

/// The exit status if the assessments already rule out any change.
fn refusal(jobs: &[Job]) -> Option<Exit> {
    let any = |outcome| jobs.iter().any(|job| job.has(outcome));
    if any(Outcome::Blocked) {
        Some(Exit::Blocked)
    } else if any(Outcome::Failed) {
        Some(Exit::StepFailed)
    } else {
        None
    }
}

/// Marks every step with pending changes as not-run, with the reason.
fn nothing_changes(jobs: &mut [Job]) {
    let culprit = jobs.iter().find(|job| job.blocks_the_run());
    let Some(why) = culprit.map(Job::not_because_of) else {
        return;
    };
    for job in jobs {
        if job.has(Outcome::WouldChange) {
            job.ended = Some(End::new(Outcome::NotRun, why.clone()));
        }
    }
}

/// The changes that were applied for a step.
fn done(job: &Job) -> Vec<ChangeReport> {
    job.done()
        .map(|change| ChangeReport {
            kind: change.kind(),
            summary: change.summary(),
            diff: None,
        })
        .chain(job.undone.iter().cloned())
        .collect()
}

/// Whether a run changed anything since its `first` record. A failed package transaction counts, because
/// it may have installed some of its packages. Other failed changes do not count.
fn changed(applying: &Applying<'_>, ledger: &Ledger, first: u64) -> bool {
    let brought = |applied: &AppliedChange| {
        applied.intent >= first && matches!(applied.undo, Undo::Packages { .. })
    };
    applying.jobs.iter().any(|job| job.done().next().is_some())
        || ledger.journal.receipt().applied.iter().any(brought)
}

fn exit_of(applying: &Applying<'_>, changed: bool) -> Exit {
    let any = |outcome| applying.jobs.iter().any(|job| job.has(outcome));
    let mut ends = applying.jobs.iter().filter_map(|job| job.ended.as_ref());
    if let Some(end) = ends.find(|end| end.outcome == Outcome::Failed) {
        return match end.exit {
            // `Blocked` means that nothing was changed.
            Some(Exit::Blocked) if changed => Exit::StepFailed,
            Some(exit) => exit,
            None => Exit::StepFailed,
        };
    }
    if any(Outcome::Blocked) {
        return if changed {
            Exit::StepFailed
        } else {
            Exit::Blocked
        };
    }
    match &applying.stop {
        Some(Stop::Cancelled(exit)) if any(Outcome::NotRun) => *exit,
        Some(Stop::Reboot(_)) => Exit::RebootRequired,
        Some(Stop::Step(_)) => Exit::StepFailed,
        Some(Stop::Deadline(_)) if any(Outcome::NotRun) => Exit::StepFailed,
        _ => Exit::Ok,
    }
}
