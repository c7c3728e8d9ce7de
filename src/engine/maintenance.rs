//! `upgrade`: an `install` for a node in use. It takes the node out of service before the first change, and returns it after the
//! validation.
//!
//! Both are one recorded change with its undo. After a power loss, the node is therefore either in service, or it is cordoned and
//! the journal contains how to return it: the next successful run does this. A node whose upgrade has failed stays out of service
//! and keeps the fleet lock, so that no other node starts.

use std::time::Duration;

use super::{
    EngineError, Session, job::Job, ledger::Ledger, result::StepReport, rollback::in_words,
};
use crate::{
    change::{
        Change, ChangeError, ClusterNode, LeaveMethod, LeaveService, LockUse, Reverted, STOPPED,
    },
    check::UPGRADE,
    config::desired::{Desired, GpuProcesses},
    error::{Report as _, causes, one_line},
    event::Outcome,
    exit::Exit,
    journal::{AppliedChange, Receipt},
    model::{
        fleet::{FleetLock, WindowState},
        id::StepId,
    },
    state::StateError,
    step::Assessment,
    steps::{self, UPGRADE_TIMER_UNIT},
};

/// The step ID in the journal of the changes that take the node out of service.
pub(super) const MAINTENANCE: StepId = StepId::new("maintenance");

/// The note of a plan during a maintenance.
pub(super) const RETURNS: &str = "the node is out of service because of an upgrade; a run that succeeds returns it to service and \
                                  releases the fleet lock";

/// The title in reports.
const TITLE: &str = "Maintenance";

/// Whether the change takes the node out of service.
pub(super) fn is_of_maintenance(applied: &AppliedChange) -> bool {
    applied.steps == [MAINTENANCE]
}

/// Whether the change has taken the node out of service completely. A drain may have been interrupted.
fn has_left(applied: &AppliedChange) -> bool {
    is_of_maintenance(applied) && applied.whole
}

/// The maintenance of a node, according to its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Maintenance {
    /// The time of the first request for the fleet lock.
    pub since: jiff::Timestamp,
    pub state: MaintenanceState,
}

/// The state of a node during an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaintenanceState {
    /// A running upgrade waits for the fleet lock or for the end of the workloads. The driver is not changed yet.
    Waiting,
    /// The node is out of service. After an interrupted run, it may also be partly drained, or not at all: the journal does not
    /// contain whether that run acquired the fleet lock.
    OutOfService,
    /// The upgrade has failed or did not return the node to service, and the node waits for an administrator.
    Failed,
}

/// Returns the maintenance in progress, or `None` if the node is in service. `runs`: the process of the last run is alive.
pub(super) fn in_progress(receipt: &Receipt, runs: bool) -> Option<Maintenance> {
    let first = (receipt.applied.iter()).rfind(|applied| is_of_maintenance(applied))?;
    let leaves = |applied: &AppliedChange| is_of_maintenance(applied) && applied.open;
    let ended = receipt.runs.last().and_then(|run| run.ended.as_ref());
    // A run that was stopped during the return has succeeded.
    let goes_on = [
        Exit::Ok,
        Exit::Partial,
        Exit::RebootRequired,
        Exit::Interrupted,
        Exit::Terminated,
    ];
    let has_failed = receipt.rollback_started.is_none()
        && ended.is_some_and(|ended| !goes_on.iter().any(|exit| exit.code() == ended.exit));
    let is_waiting =
        runs && receipt.applied.iter().any(leaves) && !receipt.applied.iter().any(has_left);
    Some(Maintenance {
        since: first.at,
        state: match (is_waiting, has_failed) {
            (true, _) => MaintenanceState::Waiting,
            (false, false) => MaintenanceState::OutOfService,
            (false, true) => MaintenanceState::Failed,
        },
    })
}

/// Steps whose changes do not affect the work of the node.
const QUIET: [StepId; 2] = [steps::CHECK_TIMER, steps::UPGRADE_TIMER];

/// Whether a step has changes for which the node must be out of service. The repetition of a validation is not one.
fn is_disturbing(job: &Job) -> bool {
    if QUIET.contains(&job.id) {
        return false;
    }
    let repeats = match &job.answer {
        Some(Ok(Assessment::Needs { changes, .. })) => {
            !changes.is_empty() && changes.iter().all(Change::only_repeats_validation)
        }
        _ => false,
    };
    job.has(Outcome::WouldChange) && !(repeats && job.obsolete.is_empty())
}

/// Whether a step has changes that stop the jobs of a node: other packages, another layout of the GPUs, a restart of the fabric
/// manager, or a reboot.
pub(super) fn stops_jobs(job: &Job) -> bool {
    let stops = |change: &Change| match change {
        Change::InstallPackages { .. } | Change::PartitionGpus { .. } | Change::Reboot { .. } => {
            true
        }
        Change::RestartUnit { .. } => job.id == steps::DRIVER_FABRIC,
        _ => false,
    };
    let pending = match &job.answer {
        Some(Ok(Assessment::Needs { changes, .. })) => &changes[..],
        Some(Ok(Assessment::After { expected, .. })) => &expected[..],
        _ => &[],
    };
    let obsolete = job.obsolete.iter().map(|applied| &applied.change);
    job.has(Outcome::WouldChange) && pending.iter().chain(obsolete).any(stops)
}

/// Whether changes were applied or undone for a step in this run. A refresh of the package lists does not count.
fn has_changed(job: &Job) -> bool {
    !job.undone.is_empty()
        || job
            .done()
            .any(|change| *change != Change::RefreshRepositories)
}

/// Returns the result of the maintenance as the result of a step.
fn report(outcome: Outcome, why: String) -> StepReport {
    StepReport {
        id: MAINTENANCE,
        title: TITLE.to_owned(),
        outcome,
        why,
        hint: None,
        causes: Vec::new(),
        reason: None,
        seconds: 0.0,
        changes: Vec::new(),
    }
}

fn failed(outcome: Outcome, error: &ChangeError) -> StepReport {
    StepReport {
        hint: error.hint(),
        causes: causes(error),
        reason: Some(error.reason()),
        ..report(outcome, format!("failed to {error}"))
    }
}

/// The reason an upgrade does not start, with the exit status of the run.
pub(super) struct Stays {
    pub(super) exit: Exit,
    pub(super) step: StepReport,
    /// The node is not in service: an earlier run took it out of service, or its return has failed.
    is_out: bool,
}

/// The reason a node stays out of service at the end of a run.
pub(super) enum Unreturned {
    /// Its return has failed.
    Stuck(StepReport),
    /// The upgrade has failed, with the reason.
    Failed(String),
}

impl Unreturned {
    /// The reason.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Stuck(step) => step.why.clone(),
            Self::Failed(why) => why.clone(),
        }
    }
}

/// The result of taking the node out of service.
pub(super) enum Leaving {
    /// The run does not take the node out of service, or an earlier run did.
    NotNeeded,
    /// The node is out of service, after this time for the lock and the evictions.
    Left(Duration),
    /// The upgrade does not start.
    Failed(Stays),
}

impl Stays {
    fn blocked(why: String, hint: &str) -> Self {
        let step = StepReport {
            hint: Some(hint.to_owned()),
            ..report(Outcome::Blocked, why)
        };
        Self::new(Exit::Blocked, step)
    }

    const fn new(exit: Exit, step: StepReport) -> Self {
        Self {
            exit,
            step,
            is_out: false,
        }
    }

    /// The reason with its causes if the node is not in service, for the journal.
    pub(super) fn out_because(&self) -> Option<String> {
        self.is_out.then(|| self.step.with_causes())
    }

    /// The reason with its causes and the hint.
    pub(super) fn with_hint(&self) -> String {
        let hint = self.step.hint.iter().map(|hint| format!("; {hint}"));
        self.step.with_causes() + &hint.collect::<String>()
    }

    /// The reason, for the steps that do not run.
    pub(super) fn why(&self) -> String {
        let state = match self.is_out {
            true => "the upgrade did not start",
            false => "the node stays in service",
        };
        format!("{state}: {}", self.step.why)
    }
}

impl Session {
    /// Whether the machine may have jobs: it is a node of a Kubernetes cluster, or its settings contain how it leaves service.
    pub(super) fn is_in_service(&self) -> bool {
        let desired = self.inner.desired.as_ref();
        let fleet = desired.map(|desired| &desired.settings.fleet);
        let leaves = fleet.is_some_and(|fleet| {
            fleet.leave_command.is_some() || fleet.lock != FleetLock::None || fleet.window.is_some()
        });
        // If this is unknown, the node may have jobs.
        leaves || !matches!(self.inner.state().membership(), Ok(None))
    }

    /// Whether this run must take the node out of service.
    fn leaves(&self, jobs: &[Job], receipt: &Receipt) -> bool {
        let continues = self.tools.options.resumed || receipt.rollback_started.is_some();
        self.tools.options.request.upgrade
            && jobs.iter().any(is_disturbing)
            && !(continues && receipt.applied.iter().any(has_left))
    }

    /// Returns the reason that the upgrade must not start. Changes nothing. `None` if it may start, or if this run does not take
    /// the node out of service.
    pub(super) async fn stays_in_service(&self, jobs: &[Job], receipt: &Receipt) -> Option<Stays> {
        if !self.leaves(jobs, receipt) {
            return None;
        }
        let options = &self.tools.options;
        let fleet = &self.inner.desired.as_ref()?.settings.fleet;
        // Outside of the window, a node must not wait out of service for the next one.
        let any_time =
            options.now || options.resumed || receipt.applied.iter().any(is_of_maintenance);
        if let (Some(window), false) = (&fleet.window, any_time)
            && let WindowState::Closed { until } = window.state(self.inner.host.clock.now())
        {
            let why = format!("the maintenance window `{window}` is closed, and opens at {until}");
            let is_timed =
                |job: &Job| job.id == steps::UPGRADE_TIMER && job.has(Outcome::Satisfied);
            let next = match jobs.iter().any(is_timed) {
                true => format!("`{UPGRADE_TIMER_UNIT}` starts the upgrade then"),
                false => format!("run `{UPGRADE}` again then"),
            };
            let hint = format!("{next}; to upgrade now, add `--now`");
            let step = StepReport {
                hint: Some(hint),
                ..report(Outcome::NotRun, why)
            };
            return Some(Stays::new(Exit::Ok, step));
        }
        if let Some(why) = self.no_way_back(jobs, receipt).await {
            return Some(Stays::blocked(
                format!("no way back: {why}"),
                "to upgrade anyway, set `driver.rollback = false`",
            ));
        }
        let error = match self.leave_change(jobs, receipt) {
            Ok(change) => self.tools.change_applier.dry_run(&change).await.err()?,
            Err(error) => error,
        };
        Some(self.stays_because(&error))
    }

    fn stays_because(&self, error: &ChangeError) -> Stays {
        let exit = match error.reason {
            STOPPED => self.tools.cancel.exit().unwrap_or(Exit::Blocked),
            _ => Exit::Blocked,
        };
        Stays::new(exit, failed(Outcome::Blocked, error))
    }

    /// Returns the node to service after an upgrade that did not start. A node that an earlier run has taken out of service
    /// completely stays out of service, because that run may have changed the machine. If the return fails, its failure is the
    /// result.
    pub(super) async fn not_left(
        &self,
        ledger: &Ledger,
        mut stays: Stays,
        notes: &mut Vec<String>,
    ) -> Result<Stays, EngineError> {
        let was_left = ledger.journal.receipt().applied.iter().any(has_left);
        if !was_left && let Some(stuck) = self.return_to_service(ledger, notes).await? {
            let note = format!("the upgrade did not start: {}", stays.step.with_causes());
            self.tools.note(notes, note);
            stays = Stays::new(Exit::StepFailed, stuck);
        }
        stays.is_out = (ledger.journal.receipt().applied.iter()).any(is_of_maintenance);
        Ok(stays)
    }

    /// Takes the node out of service. If this fails, the node returns to service.
    pub(super) async fn leave_service(
        &self,
        ledger: &Ledger,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<Leaving, EngineError> {
        let receipt = ledger.journal.receipt();
        if !self.leaves(jobs, &receipt) {
            return Ok(Leaving::NotNeeded);
        }
        let began = self.tools.events.elapsed();
        let left = match self.leave_change(jobs, &receipt) {
            Ok(change) => ledger.perform(&[MAINTENANCE], &change).await,
            Err(error) => Err(error),
        };
        let Err(error) = left else {
            let ended = self.tools.events.elapsed();
            return Ok(Leaving::Left(ended.saturating_sub(began)));
        };
        let stays = self.stays_because(&error);
        Ok(Leaving::Failed(self.not_left(ledger, stays, notes).await?))
    }

    /// Returns the change that takes the node out of service.
    fn leave_change(&self, jobs: &[Job], receipt: &Receipt) -> Result<Change, ChangeError> {
        let desired = (self.inner.desired.as_ref())
            .ok_or_else(|| ChangeError::bug("upgrade without a desired state"))?;
        let fleet = &desired.settings.fleet;
        let method = match (&fleet.leave_command, &fleet.return_command) {
            (Some(leave), Some(back)) => LeaveMethod::Command {
                leave: leave.clone(),
                r#return: back.clone(),
            },
            _ if !fleet.drain => LeaveMethod::Nothing,
            _ => self.node_to_drain(desired)?,
        };
        // The wait for the lock ends with the window.
        let now = self.inner.host.clock.now();
        let mut lock_seconds = fleet.lock_timeout.seconds();
        if let Some(WindowState::Open { until }) =
            fleet.window.as_ref().map(|window| window.state(now))
        {
            let rest = until.duration_since(now).as_secs();
            lock_seconds = lock_seconds.min(u64::try_from(rest).unwrap_or_default());
        }
        Ok(Change::LeaveService {
            leave: LeaveService {
                why: why(desired, jobs),
                continues: receipt.applied.iter().any(is_of_maintenance),
                lock: LockUse {
                    lock: fleet.lock.clone(),
                    group: fleet.lock_group.clone(),
                },
                lock_seconds,
                method,
                drain_seconds: fleet.drain_timeout.seconds(),
                evict_unmanaged: fleet.evict_unmanaged,
                delete_emptydir_data: fleet.delete_emptydir_data,
                end_gpu_processes: fleet.gpu_processes == GpuProcesses::End,
            },
        })
    }

    /// Returns the Node object of this machine, or nothing if it is not a node.
    fn node_to_drain(&self, desired: &Desired) -> Result<LeaveMethod, ChangeError> {
        let state = self.inner.state();
        let unread = |error: StateError| {
            ChangeError::blocked("node-not-read", "find the node of this machine").caused_by(error)
        };
        if state.membership().map_err(unread)?.is_none() {
            return Ok(LeaveMethod::Nothing);
        }
        let configured = (desired.cluster.as_ref()).and_then(|cluster| cluster.node.name.clone());
        let name = match configured {
            Some(name) => Some(name),
            None => state.host_name().map_err(unread)?,
        };
        let node = name.ok_or_else(|| {
            ChangeError::blocked(
                "no-node-name",
                "find the node of this machine: no node name",
            )
            .advice("set `cluster.node-name` or a host name")
        })?;
        let access = &desired.settings.fleet.kubeconfig_file;
        Ok(LeaveMethod::Cluster(ClusterNode {
            node,
            access: access.as_ref().map(|path| path.as_path().to_owned()),
        }))
    }

    /// Describes what `upgrade` would do in addition to the changes.
    pub(super) async fn upgrade_in_words(&self, jobs: &[Job], receipt: &Receipt) -> Vec<String> {
        if !self.leaves(jobs, receipt) {
            return Vec::new();
        }
        let mut words = Vec::new();
        if let Ok(change) = self.leave_change(jobs, receipt) {
            words.push(format!("upgrade: {}", change.summary()));
            match self.tools.change_applier.preview(&change).await {
                Ok(Some(lines)) => {
                    words.extend(lines.lines().map(|line| format!("upgrade: {line}")))
                }
                Ok(None) => {}
                Err(error) => words.push(format!("upgrade: failed to {}", one_line(&error))),
            }
        }
        // The step of the module detects the reboot only after the packages are installed.
        let is_replaced =
            |job: &Job| job.id == steps::DRIVER_PACKAGES && job.has(Outcome::WouldChange);
        if jobs.iter().any(is_replaced) {
            match self.inner.state().loaded_driver() {
                Ok(Some(loaded)) => words.push(format!(
                    "upgrade: reboot if the new driver differs from the loaded driver {loaded}"
                )),
                Ok(None) => {}
                Err(error) => words.push(format!(
                    "upgrade: a reboot may be required, because the loaded driver is unknown: {}",
                    one_line(&error)
                )),
            }
        }
        if let Some(stays) = self.stays_in_service(jobs, receipt).await {
            words.push(format!(
                "the upgrade would not start: {}",
                stays.with_hint()
            ));
        }
        words
    }

    /// Ends the maintenance after a run: the node returns to service if the run succeeded, or if it failed before any other
    /// change. Otherwise, the node stays out of service, with the reason.
    pub(super) async fn end_maintenance(
        &self,
        ledger: &Ledger,
        exit: Exit,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<Option<Unreturned>, EngineError> {
        let receipt = ledger.journal.receipt();
        let Some(last) = receipt.applied.iter().find(|one| is_of_maintenance(one)) else {
            return Ok(None);
        };
        // The rollback, or the run after the reboot, ends the maintenance.
        if receipt.rollback_started.is_some() || exit == Exit::RebootRequired {
            return Ok(None);
        }
        // Changes are only made after the node has left.
        let first = receipt.applied.iter().rfind(|one| has_left(one));
        let is_later = |one: &AppliedChange, first: &AppliedChange| {
            one.intent > first.intent && !is_of_maintenance(one)
        };
        let untouched = !jobs.iter().any(has_changed)
            && first.is_none_or(|first| {
                self.has_taken_out(&receipt, first)
                    && !(receipt.applied.iter()).any(|one| is_later(one, first))
            });
        if matches!(exit, Exit::Ok | Exit::Partial) || untouched {
            let stuck = self.return_to_service(ledger, notes).await?;
            return Ok(stuck.map(Unreturned::Stuck));
        }
        if matches!(exit, Exit::Interrupted | Exit::Terminated) {
            self.tools.note(notes, STILL_OUT.to_owned());
            return Ok(None);
        }
        let why = reason(exit, jobs, notes);
        self.tools.note(
            notes,
            "the upgrade failed, so the node stays out of service and keeps the fleet lock. After \
             the remedy, or with the previous driver in the settings, run `gpu-bootstrap upgrade`: \
             it returns the node to service"
                .to_owned(),
        );
        if let Change::LeaveService { leave } = &last.change
            && let LeaveMethod::Cluster(node) = &leave.method
        {
            let mark = Change::MarkFailedUpgrade {
                node: node.clone(),
                why: why.clone(),
            };
            if let Err(error) = ledger.perform(&[MAINTENANCE], &mark).await {
                self.tools
                    .note(notes, format!("failed to {}", one_line(&error)));
            }
        }
        Ok(Some(Unreturned::Failed(why)))
    }

    /// Whether this run has taken the node out of service. If an earlier run did, it may have changed the machine.
    fn has_taken_out(&self, receipt: &Receipt, left: &AppliedChange) -> bool {
        let own = (receipt.runs.iter()).rfind(|run| run.id == self.tools.events.run());
        own.is_some_and(|run| run.started <= left.at)
    }

    /// Returns the node to service.
    async fn return_to_service(
        &self,
        ledger: &Ledger,
        notes: &mut Vec<String>,
    ) -> Result<Option<StepReport>, EngineError> {
        let mut applied = ledger.journal.receipt().applied;
        applied.retain(is_of_maintenance);
        let mut stuck = None;
        for one in applied {
            let undo = one.undo.clone();
            let reverted = ledger.revert(&[one], &undo).await;
            match reverted.map_err(EngineError::Unfinished)? {
                Some(Reverted::Left { what, why }) => {
                    let text = format!("not returned to service: {what}: {why}");
                    let hint = "when the problem is solved, run `gpu-bootstrap upgrade`";
                    stuck = Some(StepReport {
                        hint: Some(hint.to_owned()),
                        ..report(Outcome::Failed, text)
                    });
                }
                Some(Reverted::Done { what }) => self.tools.note(notes, what),
                Some(Reverted::Nothing { .. }) => {}
                None => self.tools.note(notes, STILL_OUT.to_owned()),
            }
        }
        Ok(stuck)
    }
}

/// The note after a stop.
const STILL_OUT: &str =
    "the node is still out of service: run `gpu-bootstrap upgrade` to continue the upgrade";

/// The reason for the annotation of the node: the driver, or the steps that change.
fn why(desired: &Desired, jobs: &[Job]) -> String {
    let changed: Vec<&str> = (jobs.iter())
        .filter(|job| is_disturbing(job))
        .map(|job| job.id.as_str())
        .collect();
    let driver = (desired.driver.as_ref()).map_or_else(String::new, |driver| {
        format!(", driver {}", in_words(driver))
    });
    format!(
        "gpu-bootstrap upgrade in progress ({}{driver})",
        changed.join(", ")
    )
}

/// The reason of a failed upgrade: the rollback, or the first failed step.
fn reason(exit: Exit, jobs: &[Job], notes: &[String]) -> String {
    let of_rollback = notes
        .iter()
        .rev()
        .find(|note| note.contains("failed validation"));
    let of_step = jobs
        .iter()
        .find(|job| job.blocks_the_run())
        .and_then(|job| {
            let end = job.ended.as_ref()?;
            let causes: String = (end.causes.iter())
                .map(|cause| format!(": {cause}"))
                .collect();
            Some(format!("{}: {}{causes}", job.id, end.why))
        });
    (of_rollback.cloned().or(of_step)).unwrap_or_else(|| format!("exit status {}", exit.code()))
}

#[cfg(test)]
mod tests {
    use super::{MAINTENANCE, MaintenanceState, in_progress};
    use crate::{
        change::{Change, Undo},
        journal::{AppliedChange, fold},
    };

    /// An interrupted drain may have evicted pods, so the node is out of service.
    #[test]
    fn node_waits_only_while_a_run_takes_it_out_of_service() {
        for (runs, open, whole, state) in rows! {
            true, true, false, MaintenanceState::Waiting;
            false, true, false, MaintenanceState::OutOfService;
            true, false, true, MaintenanceState::OutOfService;
        } {
            let mut receipt = fold(&[]);
            receipt.applied.push(AppliedChange {
                intent: 1,
                at: jiff::Timestamp::UNIX_EPOCH,
                steps: vec![MAINTENANCE],
                change: Change::RefreshRepositories,
                undo: Undo::nothing("a test"),
                open,
                whole,
            });
            let found = in_progress(&receipt, runs).expect("maintenance");
            assert_eq!(found.state, state, "{runs} {open}");
        }
    }
}
