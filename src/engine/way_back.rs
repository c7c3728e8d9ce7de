//! The way back to an earlier driver: if another one fails its proof, the run wants the driver that was
//! proven last, in exactly its versions. All the rest is what every run does.

use super::{EngineError, Session, job::Job, ledger::Ledger, ours::ours, resume};
use crate::{
    change::Undo,
    config::desired::{Desired, DriverWish, PackagePolicy, PackageWish},
    event::Outcome,
    exit::Exit,
    facts::detection::{carries_driver, is_driver_part},
    host::Host,
    journal::{GoingBack, Journal, Proven, Receipt, Record, Standing, fold},
    model::{id::StepId, version::DriverVersion},
    steps,
    tools::packages::Fault,
};

/// The steps that show whether a driver works. It counts only after the driver was replaced. What runs on
/// top of it, as a container, can fail for reasons of its own, which another driver does not mend.
const PROOFS: [StepId; 3] = [
    steps::DRIVER_PACKAGES,
    steps::DRIVER_MODULE,
    steps::VALIDATION_DEVICES,
];

/// What is wanted while the machine goes back to an earlier driver; `None` if it does not. How packages
/// are changed is as now: the journal has no secrets.
///
/// # Errors
/// When the journal cannot be read.
pub fn wanted_instead(host: &Host, policy: &PackagePolicy) -> Result<Option<Desired>, EngineError> {
    let receipt = fold(&Journal::read(host)?.lines);
    let (Some(_), Some(proven)) = (receipt.going_back, receipt.proven) else {
        return Ok(None);
    };
    Ok(Some(again(proven, policy)))
}

/// What was proven, with every package of the driver in the version that was proven.
fn again(proven: Proven, policy: &PackagePolicy) -> Desired {
    let Proven {
        desired: before,
        driver: exact,
        ..
    } = proven;
    let driver = before.driver.map(|wish| {
        let others = (wish.packages.iter())
            .filter(|wish| !exact.iter().any(|one| one.name == wish.name))
            .cloned();
        DriverWish {
            packages: others.chain(exact.iter().cloned()).collect(),
            // Nobody has to ask for it once more.
            asked: true,
            ..wish
        }
    });
    // The kernel decides later which of these are wanted.
    let kernel = before.kernel.map(|mut kernel| {
        let wishes = kernel.ways.iter_mut().flat_map(|way| &mut way.packages);
        for wish in wishes {
            if let Some(one) = exact.iter().find(|one| one.name == wish.name) {
                wish.version.clone_from(&one.version);
            }
        }
        kernel
    });
    let guard = before.packages.guard;
    Desired {
        driver,
        kernel,
        packages: PackagePolicy {
            guard,
            ..policy.clone()
        },
        ..before
    }
}

/// Whether the same is wanted, but for secrets, which the journal does not have.
fn same(one: &Desired, other: &Desired) -> bool {
    let (one, other) = (serde_json::to_value(one), serde_json::to_value(other));
    one.is_ok_and(|one| other.is_ok_and(|other| one == other))
}

/// The version of the driver among packages.
fn version(packages: &[PackageWish]) -> Option<DriverVersion> {
    let version = |wish: &PackageWish| {
        let version = DriverVersion::from_package(wish.version.as_deref()?).ok()?;
        carries_driver(&wish.name).then_some(version)
    };
    packages.iter().filter_map(version).max()
}

/// Whether the driver that was proven was replaced since then.
fn is_replaced(receipt: &Receipt, proven: &Proven) -> bool {
    let of_driver = |wish: &PackageWish| proven.driver.iter().any(|one| one.name == wish.name);
    (receipt.standing.iter())
        .filter(|standing| standing.intent > proven.seq)
        .any(|standing| match &standing.undo {
            Undo::Packages {
                effects: Some(effects),
                ..
            } => effects
                .moved
                .iter()
                .chain(&effects.disappeared)
                .any(of_driver),
            _ => false,
        })
}

/// The proof that failed, in words. A transaction that failed is none, but for a module that cannot be
/// built: the next run completes it.
fn failed_proof(jobs: &[Job]) -> Option<String> {
    jobs.iter()
        .filter(|job| PROOFS.contains(&job.id))
        .find_map(|job| {
            let end = job.ended.as_ref()?;
            let word = match end.outcome {
                Outcome::Failed => "failed",
                Outcome::Blocked => "is blocked",
                _ => return None,
            };
            if job.id == steps::DRIVER_PACKAGES && end.reason != Some(Fault::Build.reason()) {
                return None;
            }
            // The innermost cause says what went wrong.
            let cause = end.causes.last().map(|cause| format!(": {cause}"));
            let why = format!(
                "`{}` {word}: {}{}",
                job.id,
                end.why,
                cause.unwrap_or_default()
            );
            Some(why.split_whitespace().collect::<Vec<_>>().join(" "))
        })
}

impl Session {
    /// Remembers a driver that has passed every proof, if anything has changed since the last one.
    pub(super) async fn remember(&self, ledger: &Ledger) -> Result<(), EngineError> {
        let Some(desired) = self.inner.desired.as_ref().filter(|desired| !desired.image) else {
            return Ok(());
        };
        let Some(driver) = desired.driver.as_ref().filter(|driver| !driver.adopt) else {
            return Ok(());
        };
        let receipt = ledger.journal.receipt();
        let is_known = receipt.proven.as_ref().is_some_and(|proven| {
            let later = |one: &Standing| one.intent > proven.seq && !resume::is_of_unit(one);
            same(&proven.desired, desired) && !receipt.standing.iter().any(later)
        });
        if is_known {
            return Ok(());
        }
        let manager = desired.packages.manager;
        self.inner.begin_epoch();
        let state = self.inner.state();
        let Ok(Some(database)) = state.database(manager).await else {
            return Ok(());
        };
        let ours = ours(&receipt.standing).packages;
        let is_wished = |name: &str| driver.packages.iter().any(|wish| wish.name == name);
        let is_one = |name: &str| {
            is_wished(name)
                || (ours.contains(name) && (carries_driver(name) || is_driver_part(name)))
        };
        let exact = (database.iter())
            .filter(|package| package.is_installed() && is_one(&package.id))
            .map(|package| PackageWish {
                name: package.id.clone(),
                version: Some(package.version.clone()),
            })
            .collect();
        let record = Record::Proven {
            desired: Box::new(Desired::clone(desired)),
            driver: exact,
        };
        // Names must stay as they are, and nothing secret may be in them: then there is no way back.
        let text = serde_json::to_string(&record).unwrap_or_default();
        if !self.tools.events.secrets().are_in(&text) {
            (ledger.journal.append(record)).map_err(EngineError::Unfinished)?;
        }
        Ok(())
    }

    /// Decides to go back, if this run has replaced the driver and a step that proves it has failed.
    /// The next run does it.
    pub(super) fn turn_back(
        &self,
        ledger: &Ledger,
        exit: Exit,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        let failed = matches!(exit, Exit::StepFailed | Exit::Blocked | Exit::Internal);
        match failed_proof(jobs).filter(|_| failed && self.tools.cancel.exit().is_none()) {
            Some(why) => self.turn_back_because(ledger, why, notes).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Decides to go back if the driver was replaced. Returns whether it was.
    pub(super) fn turn_back_because(
        &self,
        ledger: &Ledger,
        why: String,
        notes: &mut Vec<String>,
    ) -> Result<bool, EngineError> {
        let receipt = ledger.journal.receipt();
        let driver = self
            .inner
            .desired
            .as_ref()
            .and_then(|desired| desired.driver.as_ref());
        let (Some(driver), Some(proven), None) = (driver, &receipt.proven, &receipt.going_back)
        else {
            return Ok(false);
        };
        if !driver.rollback || !is_replaced(&receipt, proven) {
            return Ok(false);
        }
        let to = version(&proven.driver).map_or_else(|| "before".to_owned(), |one| one.to_string());
        let from = (driver.version.as_ref()).map_or_else(
            || format!("of branch {}", driver.branch),
            ToString::to_string,
        );
        self.tools.note(
            notes,
            format!("the driver {from} has failed its proof ({why}); the run goes back to {to}"),
        );
        (ledger.journal.append(Record::GoingBack { from, to, why }))
            .map_err(EngineError::Unfinished)?;
        Ok(true)
    }

    /// The end of the way back. However well it went, the run has not done what was asked. If something
    /// else than a proof has failed, as a download, the next run goes on with it.
    pub(super) fn end_way_back(
        &self,
        ledger: &Ledger,
        back: &GoingBack,
        exit: Exit,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<Exit, EngineError> {
        if matches!(
            exit,
            Exit::RebootRequired | Exit::Interrupted | Exit::Terminated
        ) {
            return Ok(exit);
        }
        let proven = matches!(exit, Exit::Ok | Exit::Partial);
        let GoingBack { from, to, why } = back;
        if !proven && failed_proof(jobs).is_none() {
            self.tools.note(
                notes,
                format!("the next run goes on with the way back to driver {to}"),
            );
            return Ok(exit);
        }
        let ending = if proven {
            format!("driver {to} is back, and has passed its proof")
        } else {
            format!("and the way back to driver {to} has failed, too")
        };
        self.tools.note(
            notes,
            format!("the driver {from} has failed its proof ({why}); {ending}"),
        );
        (ledger.journal.append(Record::WentBack { proven })).map_err(EngineError::Unfinished)?;
        Ok(if proven { Exit::StepFailed } else { exit })
    }
}
