//! `status`: the current run, the last run, and a pending reboot.

use serde::Serialize;

use super::{
    EngineError,
    errors::not_locked,
    maintenance::{self, Maintenance, MaintenanceState},
    resume,
    runfile::{self, Progress},
};
use crate::{
    error::one_line,
    host::Host,
    journal::{Awaited, Journal, Policy, Receipt, Request, RollbackStarted, Run, fold},
    model::version::DriverVersion,
    state::loaded_driver,
};

/// The document of `status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StatusSummary {
    /// The run in progress, or a run that was interrupted.
    pub current: Option<Current>,
    /// The last run in the journal, including the current one.
    pub last: Option<Run>,
    /// The reboot that the last run requires.
    pub awaited_reboot: Option<Awaited>,
    /// The awaited reboot has not happened yet.
    pub reboot_due: bool,
    /// The number of requested reboots since the last successful run, or since a driver failed
    /// validation.
    pub reboots: u32,
    /// Consecutive boots without progress that ended before the run finished.
    pub unfinished_boots: usize,
    /// The reason the last `install` gave up. The next boot does not continue it.
    pub gave_up: Option<String>,
    /// `upgrade` takes or has taken the node out of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
    /// The last upgrade failed, and the node is out of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_upgrade: Option<FailedUpgrade>,
    /// A driver failed validation. Until the rollback is finished, each `install` uses the previous
    /// driver.
    pub rollback_started: Option<RollbackStarted>,
    /// The request of the last `install`.
    pub request: Option<Request>,
    /// The number of applied changes that `uninstall` would undo.
    pub changes_applied: usize,
    /// The steps of these changes, newest first.
    pub steps_applied: Vec<String>,
    /// A change was interrupted; the next `install` or `uninstall` handles it.
    pub interrupted: bool,
}

/// A failed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FailedUpgrade {
    /// The time at which the upgrade began to take the node out of service.
    pub since: jiff::Timestamp,
    /// The reason. `None` in journals of older versions.
    pub why: Option<String>,
    /// The driver that is loaded now. `None` if none is loaded, or if its version cannot be read.
    pub driver: Option<DriverVersion>,
    /// The reason the version of the driver cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_unknown: Option<String>,
}

/// A run in progress, or a run that was interrupted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Current {
    /// The process is alive.
    pub alive: bool,
    pub progress: Progress,
}

/// Reads the status. `boot_id` identifies the current boot.
///
/// # Errors
/// If the journal cannot be read.
pub fn status(host: &Host, boot_id: Option<&str>) -> Result<StatusSummary, EngineError> {
    let receipt = fold(&Journal::read(host)?.lines);
    let current = runfile::read(&*host.files)
        .map_err(not_locked)?
        .map(|progress| Current {
            alive: runfile::began(&*host.files, progress.pid)
                .is_some_and(|began| progress.pid_started.is_none_or(|then| then == began)),
            progress,
        });
    let awaited_reboot = awaited(&receipt);
    let alive = current.as_ref().is_some_and(|current| current.alive);
    let reboot_due = receipt
        .awaited
        .as_ref()
        .is_some_and(|awaited| awaited.boot_id.is_some() && awaited.boot_id.as_deref() == boot_id);
    let maintenance = maintenance::in_progress(&receipt, alive);
    let failed = maintenance.filter(|one| one.state == MaintenanceState::Failed);
    let failed_upgrade = failed.map(|Maintenance { since, .. }| {
        let ended = receipt.runs.iter().filter_map(|run| run.ended.as_ref());
        let (driver, driver_unknown) = match loaded_driver(&*host.files) {
            Ok(driver) => (driver, None),
            Err(error) => (None, Some(one_line(&error))),
        };
        FailedUpgrade {
            since,
            // Earlier reasons belong to upgrades that have ended.
            why: (ended.filter(|ended| ended.at >= since))
                .filter_map(|ended| ended.upgrade_failed.clone())
                .next_back(),
            driver,
            driver_unknown,
        }
    });
    Ok(StatusSummary {
        interrupted: !alive && receipt.applied.iter().any(|applied| applied.open),
        changes_applied: receipt.applied.len(),
        steps_applied: super::ledger::steps_of(&receipt.applied)
            .iter()
            .map(ToString::to_string)
            .collect(),
        current,
        last: receipt.runs.last().cloned(),
        awaited_reboot,
        reboot_due,
        reboots: receipt.reboots,
        unfinished_boots: (receipt.unfinished.iter())
            .filter(|boot| Some(boot.boot_id.as_str()) != boot_id)
            .count(),
        maintenance,
        failed_upgrade,
        gave_up: receipt.gave_up,
        rollback_started: receipt.rollback_started,
        request: receipt.request,
    })
}

/// Returns the pending reboot of a journal. It is automatic only if the resume unit is installed. Ctrl-C
/// removes the unit.
pub(super) fn awaited(receipt: &Receipt) -> Option<Awaited> {
    let mut awaited = receipt.awaited.clone()?;
    awaited.automatic &= receipt.applied.iter().any(resume::is_of_unit);
    Some(awaited)
}

/// Returns the package policy of the last `install`, or `None` if there is no such run or an older
/// version wrote the journal.
///
/// # Errors
/// If the journal cannot be read.
pub fn policy(host: &Host) -> Result<Option<Policy>, EngineError> {
    Ok(fold(&Journal::read(host)?.lines).policy)
}
