//! Obsolete changes: applied by an earlier run, but no longer configured. `check` reports them,
//! `plan` lists them, `install` reverts them.
//!
//! A change is obsolete if it is not configured for any of its steps. A package transaction that is
//! shared by several steps can be obsolete in part: packages that are still configured stay, with
//! all their dependencies.

use std::collections::BTreeSet;

use super::{
    EngineError, Session,
    job::Job,
    ledger::Ledger,
    managed::daemons,
    result::ChangeReport,
    uninstall::{UndoOutcome, group, undo_groups},
};
use crate::{
    change::{Change, Lock, Reverted, Undo, packages::Reduced},
    config::desired::{Desired, Restart},
    error::one_line,
    event::Event,
    exit::Exit,
    journal::{AppliedChange, Journal, Record, fold},
    model::id::StepId,
    step::Assessment,
};

/// The change kind of an undo in plans.
const UNDO: &str = "undo";

/// The result of undoing obsolete changes.
#[derive(Debug, Default)]
pub(super) struct Undone {
    /// Whether the machine was changed.
    pub(super) any: bool,
    /// The changes that stay, with the reason.
    pub(super) left: Vec<String>,
    /// Package work waits until the packages of the other steps are installed.
    postponed: bool,
}

/// Returns the obsolete applied changes, newest first. `wants` returns whether a change is still
/// configured for a step. Changes of an unknown step (of another gpu-bootstrap version, or the
/// resume unit) are kept.
fn obsolete(
    applied: &[AppliedChange],
    wants: &dyn Fn(&StepId, &Change) -> bool,
) -> Vec<AppliedChange> {
    applied
        .iter()
        .filter(|one| !one.open && !one.steps.is_empty())
        .filter(|one| {
            let wanted = |step: &StepId| wants(step, &one.change);
            if is_transaction(one) {
                !one.steps.iter().all(wanted)
            } else {
                !one.steps.iter().any(wanted)
            }
        })
        .cloned()
        .collect()
}

fn is_transaction(applied: &AppliedChange) -> bool {
    matches!(
        applied.undo,
        Undo::Packages {
            effects: Some(_),
            ..
        }
    )
}

/// Whether the change is undone after files and units: a package transaction or a repository.
/// Packages are removed only after the packages of all steps are installed, because it is not known
/// earlier which packages are needed.
fn is_late(applied: &AppliedChange) -> bool {
    is_transaction(applied) || matches!(applied.change, Change::AddRepository { .. })
}

/// Describes the undo, for example `undo: write /etc/cdi/nvidia.yaml`.
fn summary(applied: &AppliedChange) -> String {
    let rest = if is_transaction(applied) {
        " (configured packages and their dependencies stay)"
    } else {
        ""
    };
    format!("undo: {}{rest}", applied.change.summary())
}

fn report(applied: &AppliedChange) -> ChangeReport {
    ChangeReport {
        kind: UNDO,
        summary: summary(applied),
        diff: None,
    }
}

impl Job {
    /// The reason the step is not satisfied, if it only has to undo obsolete changes.
    pub(super) fn why_obsolete(&self) -> Option<String> {
        let count = match self.obsolete.len() {
            _ if !self.is_idle() => return None,
            0 => return None,
            1 => "1 obsolete change is".to_owned(),
            more => format!("{more} obsolete changes are"),
        };
        Some(format!("{count} still applied"))
    }

    /// The undos of the obsolete changes.
    pub(super) fn undos(&self) -> Vec<ChangeReport> {
        self.obsolete.iter().map(report).collect()
    }

    /// Whether the step has nothing to apply.
    fn is_idle(&self) -> bool {
        matches!(
            self.answer,
            Some(Ok(
                Assessment::NotApplicable { .. } | Assessment::Satisfied { .. }
            ))
        )
    }
}

impl Session {
    /// Finds obsolete changes in a read-only run. An unreadable journal stops neither `check` nor
    /// `plan`, because only root may read it.
    pub(super) fn read_obsolete(&self, jobs: &mut [Job], notes: &mut Vec<String>) {
        if self.inner.desired.is_none() {
            return;
        }
        match Journal::read(&self.inner.host) {
            Ok(history) => {
                let applied = fold(&history.lines).applied;
                self.find_obsolete(jobs, &applied);
                self.name_postponed(jobs, &applied, notes);
            }
            Err(error) => self.tools.note(
                notes,
                format!(
                    "failed to {} (obsolete changes are unknown)",
                    one_line(&error)
                ),
            ),
        }
    }

    /// Finds the obsolete changes of each step.
    pub(super) fn find_obsolete(&self, jobs: &mut [Job], applied: &[AppliedChange]) {
        // Without a desired state it is unknown which changes are obsolete.
        let Some(desired) = &self.inner.desired else {
            return;
        };
        let wants = |id: &StepId, change: &Change| self.is_wanted(id, change, desired);
        let all = obsolete(applied, &wants);
        let postponed: Vec<bool> = (all.iter())
            .map(|one| self.waits_for_hardware(one, jobs).is_some())
            .collect();
        for job in jobs {
            job.obsolete = (all.iter().zip(&postponed))
                .filter(|(_, postponed)| !**postponed)
                .map(|(one, _)| one)
                .filter(|one| one.steps.contains(&job.id) && !wants(&job.id, &one.change))
                .cloned()
                .collect();
        }
    }

    /// Whether a change of an earlier run is still configured for a step.
    fn is_wanted(&self, id: &StepId, change: &Change, desired: &Desired) -> bool {
        let step = self.inner.steps.iter().find(|step| step.id == *id);
        step.is_none_or(|step| (step.wants)(change, desired))
    }

    /// Returns the step that prevents a shared transaction from being reduced now. The transaction is
    /// still configured for this step, but on a machine without a GPU the desired state does not
    /// contain the packages of the step.
    fn waits_for_hardware(&self, applied: &AppliedChange, jobs: &[Job]) -> Option<StepId> {
        let desired = self.inner.desired.as_ref()?;
        if desired.driver.is_some() || !is_transaction(applied) {
            return None;
        }
        let needs_it = |id: &StepId| {
            let job = jobs.iter().find(|job| job.id == *id);
            self.is_wanted(id, &applied.change, desired)
                && job.is_none_or(|job| {
                    matches!(job.answer, Some(Ok(Assessment::NotApplicable { .. })))
                })
        };
        applied.steps.iter().find(|id| needs_it(id)).cloned()
    }

    /// Keeps the obsolete changes of a container runtime while containers are running. Only explicit
    /// consent (`runtime.restart = "always"`) stops containers, and removing a setting is not consent.
    /// Returns the kept changes with the reason.
    pub(super) async fn keep_running(&self, jobs: &mut [Job]) -> Vec<String> {
        let desired = self.inner.desired.as_ref();
        if desired.is_some_and(|desired| desired.runtime_restart == Restart::Always) {
            return Vec::new();
        }
        let mut kept = Vec::new();
        for (step, daemon) in daemons() {
            let all: Vec<AppliedChange> = (jobs.iter().filter(|job| job.id == step))
                .flat_map(|job| job.obsolete.clone())
                .collect();
            if all.is_empty() {
                continue;
            }
            let (name, unit) = (daemon.name(), format!("{}.service", daemon.name()));
            let running = daemon.configured().running(self.inner.host.reader()).await;
            let why = match running.map_err(|error| one_line(&error)) {
                Ok(containers) if containers.is_empty() => continue,
                Ok(containers) => {
                    format!("{name} is running the containers {}", containers.join(", "))
                }
                // A daemon that is not running has no containers.
                Err(_) if !self.may_run(&unit).await => continue,
                Err(why) => format!("the running containers of {name} are unknown ({why})"),
            };
            for job in jobs.iter_mut() {
                job.obsolete.retain(|one| !all.contains(one));
            }
            kept.push(format!(
                "the changes of `{step}` stay: {why}; stop the containers, then run `gpu-bootstrap \
                install` again"
            ));
        }
        kept
    }

    async fn may_run(&self, unit: &str) -> bool {
        let state = self.inner.state().unit(unit).await;
        state.is_ok_and(|unit| unit.is_some_and(|unit| unit.is_active()))
    }

    /// Adds a note for each obsolete change that is kept because of
    /// [`Session::waits_for_hardware`].
    fn name_postponed(&self, jobs: &[Job], applied: &[AppliedChange], notes: &mut Vec<String>) {
        let Some(desired) = &self.inner.desired else {
            return;
        };
        let wants = |id: &StepId, change: &Change| self.is_wanted(id, change, desired);
        for one in obsolete(applied, &wants) {
            if let Some(step) = self.waits_for_hardware(&one, jobs) {
                let what = one.change.summary();
                self.tools.note(
                    notes,
                    format!(
                        "obsolete: {what}: parts of it stay until the machine has a GPU again, \
                         because the packages for `{step}` are unknown without a GPU"
                    ),
                );
            }
        }
    }

    /// Undoes obsolete changes before anything is applied. Files and units are undone first, newest
    /// first, because their undo may need the packages. Then packages and repositories are undone if
    /// the packages of all other steps are installed. Otherwise only the repositories are undone now,
    /// and [`Session::undo_the_rest`] undoes the package transactions at the end.
    pub(super) async fn undo_obsolete(
        &self,
        ledger: &Ledger,
        jobs: &mut [Job],
        notes: &mut Vec<String>,
    ) -> Result<Undone, EngineError> {
        let mut undone = Undone::default();
        self.name_postponed(jobs, &ledger.journal.receipt().applied, notes);
        undone.left = self.keep_running(jobs).await;
        let early = found(jobs, |applied| !is_late(applied));
        self.undo_whole(ledger, early, jobs, &mut undone).await?;
        let is_busy = |job: &Job| job.locks.contains(&Lock::Packages) && !job.is_idle();
        undone.postponed = !found(jobs, is_late).is_empty() && jobs.iter().any(is_busy);
        if undone.postponed {
            // Packages must not be installed from a repository that is no longer configured.
            let is_repository = |one: &AppliedChange| is_late(one) && !is_transaction(one);
            let repositories = found(jobs, is_repository);
            self.undo_whole(ledger, repositories, jobs, &mut undone)
                .await?;
        } else {
            self.undo_late(ledger, jobs, &mut undone).await?;
        }
        for left in &undone.left {
            self.tools.note(notes, format!("obsolete: {left}"));
        }
        Ok(undone)
    }

    /// Undoes the postponed changes, after everything was applied.
    pub(super) async fn undo_the_rest(
        &self,
        ledger: &Ledger,
        jobs: &mut [Job],
        undone: &mut Undone,
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        if !undone.postponed {
            return Ok(());
        }
        let known = undone.left.len();
        // Containers may have been started since the run began.
        let kept = self.keep_running(jobs).await;
        undone.left.extend(kept);
        self.undo_late(ledger, jobs, undone).await?;
        for left in &undone.left[known..] {
            self.tools.note(notes, format!("obsolete: {left}"));
        }
        Ok(())
    }

    /// Undoes transactions before repositories, because packages that a transaction removed are
    /// installed again and may be in these repositories.
    async fn undo_late(
        &self,
        ledger: &Ledger,
        jobs: &mut [Job],
        undone: &mut Undone,
    ) -> Result<(), EngineError> {
        for applied in found(jobs, is_transaction) {
            if self.tools.cancel.exit().is_some() {
                return Ok(());
            }
            let (reverted, is_resolved) = self.reduce(ledger, &applied, jobs).await?;
            if is_resolved {
                is_undone(jobs, &applied);
            }
            match reverted {
                Some(Reverted::Left { what, why }) => {
                    undone.any |= is_resolved;
                    undone.left.push(format!("{what}: {why}"));
                }
                Some(Reverted::Done { .. }) => undone.any = true,
                Some(Reverted::Nothing { .. }) | None => {}
            }
        }
        let repositories = found(jobs, |one| is_late(one) && !is_transaction(one));
        self.undo_whole(ledger, repositories, jobs, undone).await
    }

    /// Undoes entire changes, like `uninstall`.
    async fn undo_whole(
        &self,
        ledger: &Ledger,
        applied: Vec<AppliedChange>,
        jobs: &mut [Job],
        undone: &mut Undone,
    ) -> Result<(), EngineError> {
        let mut groups: Vec<_> = group(applied)
            .into_iter()
            .map(|group| (group, UndoOutcome::NotTried, 0.0))
            .collect();
        undo_groups(&self.tools, ledger, &mut groups).await?;
        for (group, fate, _) in groups {
            match fate {
                UndoOutcome::Gone(_) => {
                    undone.any = true;
                    for applied in &group.applied {
                        is_undone(jobs, applied);
                    }
                }
                UndoOutcome::Stays(what) => undone.left.push(what),
                UndoOutcome::NotTried => {}
            }
        }
        Ok(())
    }

    /// Undoes the obsolete part of a transaction. Returns the result (`None` if a signal arrived
    /// while it was waiting), and whether the transaction is no longer obsolete. Anything that
    /// stays, such as an account in use, is undone by `uninstall`.
    async fn reduce(
        &self,
        ledger: &Ledger,
        applied: &AppliedChange,
        jobs: &[Job],
    ) -> Result<(Option<Reverted>, bool), EngineError> {
        let state = self.inner.state();
        let desired = self.inner.wanted(&state).await;
        let desired = desired.as_deref();
        let mut wanted: BTreeSet<String> = (desired.into_iter())
            .flat_map(Desired::package_groups)
            .flat_map(|(_, packages)| packages)
            .map(|spec| spec.name.clone())
            .collect();
        // Keep the packages of the bootable kernels.
        let kernels = state.bootable_kernels().0;
        wanted.extend(
            (desired.and_then(|desired| desired.kernel.as_ref()))
                .into_iter()
                .flat_map(|kernel| kernel.of_kernels(&kernels)),
        );
        let began = self.tools.events.elapsed();
        let summary = summary(applied);
        self.tools.events.emit(Event::ChangeStarted {
            steps: applied.steps.clone(),
            summary: summary.clone(),
        });
        let Reduced { reverted, rest } = match ledger.reduce(applied, &wanted).await {
            Ok(reduced) => reduced,
            Err(None) => return Ok((None, false)),
            Err(Some(left)) => {
                (ledger.reverted(std::slice::from_ref(applied), &left))
                    .map_err(EngineError::Unfinished)?;
                return Ok((Some(left), false));
            }
        };
        let (what, is_left) = match &reverted {
            Reverted::Done { what } => (what.clone(), false),
            Reverted::Nothing { why } => (format!("nothing to do: {why}"), false),
            Reverted::Left { what, why } => (format!("left: {what}: {why}"), true),
        };
        let is_unwanted = |id: &StepId| {
            let mut of_step = jobs.iter().filter(|job| job.id == *id);
            of_step.any(|job| job.obsolete.contains(applied))
        };
        let intent = applied.intent;
        let record = if rest.is_nothing() {
            Record::Reverted { intent, what }
        } else {
            Record::Reduced {
                intent,
                steps: (applied.steps.iter())
                    .filter(|id| !is_unwanted(id))
                    .cloned()
                    .collect(),
                what,
                undo: rest,
            }
        };
        (ledger.journal.append(record)).map_err(EngineError::Unfinished)?;
        if !is_left {
            self.tools.events.emit(Event::ChangeApplied {
                steps: applied.steps.clone(),
                summary,
                seconds: (self.tools.events.elapsed())
                    .saturating_sub(began)
                    .as_secs_f64(),
            });
        }
        Ok((Some(reverted), true))
    }
}

impl Undone {
    /// Returns `exit`, but `Partial` instead of `Ok` if an obsolete change stays.
    pub(super) fn exit(&self, exit: Exit) -> Exit {
        if exit == Exit::Ok && !self.left.is_empty() {
            Exit::Partial
        } else {
            exit
        }
    }
}

/// Returns the matching obsolete changes of all steps, newest first.
fn found(jobs: &[Job], is_one: impl Fn(&AppliedChange) -> bool) -> Vec<AppliedChange> {
    let mut all: Vec<AppliedChange> = Vec::new();
    for applied in jobs.iter().flat_map(|job| &job.obsolete) {
        if is_one(applied) && !all.contains(applied) {
            all.push(applied.clone());
        }
    }
    all.sort_by_key(|applied| std::cmp::Reverse(applied.intent));
    all
}

/// Moves a change from the obsolete to the undone changes of its steps.
fn is_undone(jobs: &mut [Job], applied: &AppliedChange) {
    for job in jobs {
        if job.obsolete.contains(applied) {
            job.obsolete.retain(|one| one != applied);
            job.undone.push(report(applied));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Change, packages::Effects};

    fn applied(intent: u64, steps: &[&'static str], undo: Undo) -> AppliedChange {
        AppliedChange {
            intent,
            at: jiff::Timestamp::UNIX_EPOCH,
            steps: steps.iter().map(|id| StepId::new(id)).collect(),
            change: Change::RefreshRepositories,
            undo,
            open: false,
            whole: true,
        }
    }

    fn packages() -> Undo {
        Undo::Packages {
            transaction: "1".into(),
            effects: Some(Box::new(Effects::default())),
        }
    }

    fn unit() -> Undo {
        Undo::UnloadModule { module: "m".into() }
    }

    #[test]
    fn shared_transaction_is_obsolete_if_one_step_is_unconfigured() {
        let all = [
            applied(7, &["resume"], unit()),
            applied(6, &[], packages()),
            applied(5, &["docker"], packages()),
            applied(4, &["driver", "docker"], packages()),
            applied(3, &["driver", "docker"], unit()),
            applied(2, &["docker"], unit()),
            applied(1, &["driver"], packages()),
        ];
        let found = obsolete(&all, &|id, _| id.as_str() != "docker");
        let intents: Vec<u64> = found.iter().map(|one| one.intent).collect();
        assert_eq!(intents, [5, 4, 2]);
    }

    #[test]
    fn interrupted_change_is_not_obsolete() {
        let mut open = applied(1, &["docker"], unit());
        open.open = true;
        assert!(obsolete(&[open], &|_, _| false).is_empty());
    }
}
