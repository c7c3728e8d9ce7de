//! Handles boot loops: a driver module or the firmware of a GPU crashes the kernel at each boot.
//!
//! During an unattended run, neither udev nor `modules-load.d` loads the driver modules. The run
//! loads them itself, after it has recorded its start and the boot ID. After several boots without
//! progress, the modules are denied and the run gives up, so that the machine stays reachable.
//! `status` shows the reason.
//!
//! Runs that were not started by an administrator (after a reboot, from a DaemonSet or from a
//! startup script) then exit immediately without changing anything. Only a run without `--reboot`
//! and `--unattended` allows the modules again.
//!
//! If the journal is lost or damaged, no run can remove the denial, so the resume unit removes it
//! together with itself.

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    EngineError, Options, Session,
    ledger::Ledger,
    resume,
    units::{self, modules, not_at_all},
};
use crate::{
    change::{Change, ChangeError, Reverted, packages::release_builds},
    host::{Files, FilesError, Host},
    journal::{AppliedChange, JournalError, Receipt, Record, Request},
    model::id::StepId,
    steps,
};

/// The maximum number of consecutive boots without progress, not counting boots that were interrupted
/// during package work.
pub(super) const MOST_BOOTS: usize = 3;

/// The maximum number of consecutive boots without progress, counting also boots that were interrupted
/// during package work. It is higher because the next boot continues this work, so such a boot is not a
/// sign of a boot loop.
const MOST_BOOTS_WITH_PACKAGES: usize = 8;

/// The step ID in the journal of the changes that deny the modules.
const GUARD: StepId = StepId::new("boot-guard");

/// The remedy after a run gave up.
const REMEDY: &str = "the driver modules stay denied, and runs with `--reboot` or `--unattended` \
                      change nothing; after fixing the cause, run `gpu-bootstrap install` without \
                      these options";

/// Whether the run may have started without an administrator. `--unattended` starts a unit with
/// `--reboot`.
pub(super) const fn is_automatic(options: &Options) -> bool {
    options.resumed || options.request.reboot
}

/// The reason an earlier run gave up, if that run also finished. If a power loss prevented it from
/// finishing, the next run gives up again.
pub(super) fn gave_up(receipt: &Receipt) -> Option<&str> {
    (receipt.gave_up.as_deref()).filter(|_| receipt.unfinished.is_empty())
}

/// Returns the number of earlier boots without progress if it has reached a limit.
pub(super) fn too_many(receipt: &Receipt, boot_id: Option<&str>) -> Option<usize> {
    let before =
        || (receipt.unfinished.iter()).filter(|boot| Some(boot.boot_id.as_str()) != boot_id);
    let elsewhere = before().filter(|boot| !boot.in_packages).count();
    (elsewhere >= MOST_BOOTS || before().count() >= MOST_BOOTS_WITH_PACKAGES)
        .then(|| before().count())
}

/// The note for a file that [`release`] has removed.
pub(super) fn told(path: &Utf8PathBuf) -> String {
    format!("removed `{path}`: created by an earlier gpu-bootstrap run, but not in the journal")
}

/// Removes the resume unit, and the files that prevent the driver from being loaded and are not in
/// the journal.
pub(super) fn release(
    files: &dyn Files,
    applied: &[AppliedChange],
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut removed = units::release(files, resume::UNIT, applied)?;
    // While this file exists, new kernels do not get a module.
    removed.extend(release_builds(files)?.map(Utf8Path::to_owned));
    Ok(removed)
}

/// Cleans up if `asked` (the request to resume) shows that no run can continue with this journal.
/// Removes the resume unit and the files that prevent the driver from being loaded, as a run does
/// when it finishes. Returns the notes for the user.
///
/// # Errors
/// If a file cannot be read or removed.
pub fn release_lost(
    host: &Host,
    asked: &Result<Option<Request>, EngineError>,
) -> Result<Vec<String>, EngineError> {
    let is_lost = match asked {
        Ok(asked) => asked.is_none(),
        Err(EngineError::Journal(error)) => matches!(
            error,
            JournalError::Lost { .. }
                | JournalError::Garbage { .. }
                | JournalError::OutOfOrder { .. }
        ),
        Err(_) => false,
    };
    if !is_lost {
        return Ok(Vec::new());
    }
    let removed = release(&*host.files, &[])
        .map_err(|error| EngineError::Journal(JournalError::from(error)))?;
    let mut notes: Vec<String> = removed.iter().map(told).collect();
    if !notes.is_empty() {
        notes.push(
            "run `modprobe nvidia` to load the driver now; otherwise it is loaded at the next boot"
                .to_owned(),
        );
    }
    Ok(notes)
}

/// Prevents all loading of the driver modules.
async fn deny(ledger: &Ledger) -> Result<(), ChangeError> {
    let applied = ledger.journal.receipt().applied;
    let modules = modules(&applied);
    if modules.is_empty() || applied.iter().any(|one| one.whole && is_denial(one)) {
        return Ok(());
    }
    ledger.perform(&[GUARD], &not_at_all(&modules)).await
}

fn is_denial(applied: &AppliedChange) -> bool {
    applied.steps == [GUARD]
}

/// Allows the modules again after an earlier run gave up. Called for a run that an administrator
/// started, and during a rollback. Returns a note for each change that could not be reverted.
pub(super) async fn allow(ledger: &Ledger) -> Result<Vec<String>, EngineError> {
    let mut notes = Vec::new();
    for applied in ledger.journal.receipt().applied {
        if is_denial(&applied) {
            let left = revert(ledger, applied).await?;
            notes.extend(left.map(|left| format!("the modules are still denied: {left}")));
        }
    }
    Ok(notes)
}

/// Undoes a change. Returns the part that could not be undone, with the reason.
async fn revert(ledger: &Ledger, applied: AppliedChange) -> Result<Option<String>, EngineError> {
    let undo = applied.undo.clone();
    let reverted = ledger.revert(&[applied], &undo).await;
    Ok(match reverted.map_err(EngineError::Unfinished)? {
        Some(Reverted::Left { what, why }) => Some(format!("{what}: {why}")),
        _ => None,
    })
}

impl Session {
    /// Gives up: later boots neither continue the run nor load the modules.
    pub(super) async fn give_up(
        &self,
        ledger: &Ledger,
        boots: usize,
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        let why = format!(
            "{boots} consecutive boots ended before the run finished, the last one possibly in a \
             crash when the driver was loaded (`journalctl --boot=-1`)"
        );
        ledger.journal.append(Record::GaveUp { why: why.clone() })?;
        if let Err(failure) = deny(ledger).await {
            self.tools
                .note(notes, format!("failed to deny the modules: {failure}"));
        }
        let autoload = |one: &AppliedChange| matches!(&one.change, Change::WriteFile { path, .. } if path == steps::AUTOLOAD_PATH);
        for applied in ledger.journal.receipt().applied {
            if autoload(&applied) {
                // Undoing this file is sufficient: the modules are not loaded, so none must be unloaded.
                if let Some(left) = revert(ledger, applied).await? {
                    let note = format!("the modules are still loaded at each boot: {left}");
                    self.tools.note(notes, note);
                }
            }
        }
        if let Some(note) = resume::dismiss(ledger).await? {
            self.tools.note(notes, note);
        }
        self.note_gave_up(&why, notes);
        Ok(())
    }

    /// Reports why a run gave up, with the remedy.
    pub(super) fn note_gave_up(&self, why: &str, notes: &mut Vec<String>) {
        self.tools.note(notes, format!("gave up: {why}"));
        self.tools.note(notes, REMEDY.to_owned());
    }

    /// The modules of the configured driver.
    pub(super) fn driver_modules(&self) -> &[String] {
        (self.inner.desired.as_ref())
            .and_then(|desired| desired.driver.as_ref())
            .map_or(&[], |driver| &driver.load_modules)
    }
}
