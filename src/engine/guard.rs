//! Machines whose boots end early, because a module or the firmware of a GPU takes the kernel down.
//!
//! While a run continues by itself, neither udev nor `modules-load.d` loads the driver's modules: the run does, after it has
//! recorded its start and with it the boot. After several boots without progress the modules are denied altogether, and the
//! run gives up: the machine stays reachable, and `status` says why.
//!
//! Runs that started without an administrator, after a reboot, from a DaemonSet or from a startup script, then exit at once
//! and change nothing. Only a run without `--reboot` and `--unattended` lets the modules be loaded again.
//!
//! If the journal is lost or damaged, no run can end this: then the resume unit removes the denial, and itself.

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    EngineError, Options, Session,
    ledger::Ledger,
    resume,
    units::{self, modules, not_at_all},
};
use crate::{
    change::{Change, Problem, Reverted},
    dkms,
    host::{Files, FilesError, Host},
    journal::{JournalError, Receipt, Record, Request, Standing},
    model::id::StepId,
    steps,
    tools::packages::HEADER,
};

/// The most boots in a row without progress.
pub(super) const MOST_BOOTS: usize = 3;

/// The same with those that ended in the middle of package work: a power cut there costs no
/// progress that the next boot would not make up for.
const MOST_BOOTS_WITH_PACKAGES: usize = 8;

/// The name of its changes in the journal.
const GUARD: StepId = StepId::new("boot-guard");

/// How an administrator ends the state after a run gave up.
const REMEDY: &str = "the driver's modules stay denied, and runs with `--reboot` or `--unattended` change nothing; once the \
                      cause is fixed, run `gpu-bootstrap install` without these options";

/// Whether the run may have started without an administrator. `--unattended` starts a unit with `--reboot`.
pub(super) const fn is_automatic(options: &Options) -> bool {
    options.resumed || options.request.reboot
}

/// Why an earlier run gave up, if it also finished: after a power loss in between, the next run gives up again.
pub(super) fn gave_up(receipt: &Receipt) -> Option<&str> {
    (receipt.gave_up.as_deref()).filter(|_| receipt.unfinished.is_empty())
}

/// How many boots before this one made no progress, if they are too many.
pub(super) fn too_many(receipt: &Receipt, boot_id: Option<&str>) -> Option<usize> {
    let before =
        || (receipt.unfinished.iter()).filter(|boot| Some(boot.boot_id.as_str()) != boot_id);
    let elsewhere = before().filter(|boot| !boot.in_packages).count();
    (elsewhere >= MOST_BOOTS || before().count() >= MOST_BOOTS_WITH_PACKAGES)
        .then(|| before().count())
}

/// What people are told of a file that [`release`] has removed.
pub(super) fn told(path: &Utf8PathBuf) -> String {
    format!(
        "removed `{path}`, which an earlier run of this program has left and of which no record is there any more"
    )
}

/// Removes what keeps the driver from being loaded and is not in the journal, with the resume unit.
pub(super) fn release(
    files: &dyn Files,
    standing: &[Standing],
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut removed = units::release(files, resume::UNIT, standing)?;
    // With it, no later kernel would get a module.
    let flag = Utf8Path::new(dkms::NO_AUTOINSTALL);
    if (files.read(flag)?).is_some_and(|found| found.starts_with(HEADER.as_bytes())) {
        files.remove(flag)?;
        removed.push(flag.to_owned());
    }
    Ok(removed)
}

/// Removes what a run would have removed at its end, if `asked`, the request to resume, shows that no run can go on with this
/// journal: the resume unit, and the file that keeps the driver from being loaded. Returns what people are told.
///
/// # Errors
/// When a file cannot be read or removed.
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
        notes.push("`modprobe nvidia`, or the next boot, loads the driver again".to_owned());
    }
    Ok(notes)
}

/// Makes sure that nothing loads the modules.
async fn deny(ledger: &Ledger) -> Result<(), Problem> {
    let standing = ledger.journal.receipt().standing;
    let modules = modules(&standing);
    if modules.is_empty() || standing.iter().any(|one| one.whole && is_denial(one)) {
        return Ok(());
    }
    ledger.perform(&[GUARD], &not_at_all(&modules)).await
}

fn is_denial(standing: &Standing) -> bool {
    standing.steps == [GUARD]
}

/// Lets the modules be loaded again, for a run that an administrator started after one that gave up. Returns a note for each
/// change that could not be reverted.
pub(super) async fn allow(ledger: &Ledger) -> Result<Vec<String>, EngineError> {
    let mut notes = Vec::new();
    for standing in ledger.journal.receipt().standing {
        if is_denial(&standing) {
            let left = revert(ledger, standing).await?;
            notes.extend(left.map(|left| format!("the modules stay denied: {left}")));
        }
    }
    Ok(notes)
}

/// Undoes a change. Returns what stays, and why.
async fn revert(ledger: &Ledger, standing: Standing) -> Result<Option<String>, EngineError> {
    let undo = standing.undo.clone();
    let reverted = ledger.revert(&[standing], &undo).await;
    Ok(match reverted.map_err(EngineError::Unfinished)? {
        Some(Reverted::Left { what, why }) => Some(format!("{what}: {why}")),
        _ => None,
    })
}

impl Session {
    /// Gives up: no boot continues the run, and no boot loads the modules.
    pub(super) async fn give_up(
        &self,
        ledger: &Ledger,
        boots: usize,
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        let why = format!(
            "{boots} boots in a row ended before the run did; the last of them may have crashed \
             when the driver was loaded (`journalctl --boot=-1`)"
        );
        ledger.journal.append(Record::GaveUp { why: why.clone() })?;
        if let Err(failure) = deny(ledger).await {
            self.tools
                .note(notes, format!("the modules are not denied: {failure}"));
        }
        let autoload = |one: &Standing| matches!(&one.change, Change::WriteFile { path, .. } if path == steps::AUTOLOAD_PATH);
        for standing in ledger.journal.receipt().standing {
            if autoload(&standing) {
                // The modules are not loaded now, so there is nothing to unload.
                if let Some(left) = revert(ledger, standing).await? {
                    let note = format!("each boot still loads the modules: {left}");
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

    /// The modules of the wanted driver.
    pub(super) fn driver_modules(&self) -> &[String] {
        (self.inner.desired.as_ref())
            .and_then(|desired| desired.driver.as_ref())
            .map_or(&[], |driver| &driver.load_modules)
    }
}
