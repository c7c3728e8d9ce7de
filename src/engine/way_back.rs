//! The way back to an earlier driver: if another one fails its proof, the run wants the driver that was
//! proven last, in exactly its versions. All the rest is what every run does.
//!
//! The journal gets `going-back`, and until `went-back` every `install` wants that driver, so the way
//! back survives power cuts and reboots as any run does. It ends with exit 6, because what was asked
//! for is not there. Each driver that fails begins the count of reboots anew, and their sum has a bound.

use camino::Utf8Path;

use super::{EngineError, Session, job::Job, ledger::Ledger, ours::ours, resume};
use crate::{
    change::{Undo, packages::kept},
    config::desired::{Desired, DriverWish, Existing, PackagePolicy, PackageWish},
    error::one_line,
    event::Outcome,
    exit::Exit,
    facts::detection::{carries_driver, is_driver_part},
    host::Host,
    journal::{GoingBack, Journal, JournalError, Proven, Receipt, Record, Standing, fold},
    model::{id::StepId, paths, version::DriverVersion},
    steps::{self, promise::Promise},
    tools::packages::Fault,
};

/// The steps that show whether a driver works. It counts only after the driver was replaced. What runs on
/// top of it, as a container, can fail for reasons of its own, which another driver does not mend.
const PROOFS: [StepId; 3] = [
    steps::DRIVER_PACKAGES,
    steps::DRIVER_MODULE,
    steps::VALIDATION_DEVICES,
];

/// What is wanted while the machine goes back to an earlier driver; `None` if it does not, or if the
/// settings give the way back up. How packages are changed is as in the settings: the journal has no
/// secrets.
///
/// # Errors
/// When the journal cannot be read, or another version of this program recorded what was proven.
pub fn wanted_instead(host: &Host, settings: &Desired) -> Result<Option<Instead>, EngineError> {
    let receipt = fold(&Journal::read(host)?.lines);
    let given_up = given_up(&receipt, settings).is_some();
    let (Some(back), Some(proven), false) = (receipt.going_back, receipt.proven, given_up) else {
        return Ok(None);
    };
    match proven.desired() {
        Ok(before) => Ok(Some(Instead {
            desired: again(before, proven.driver, &settings.packages),
            back,
        })),
        Err(source) => Err(EngineError::WayBack {
            named: version(&proven.driver),
            to: back.to,
            source,
        }),
    }
}

/// What is wanted until the way back has ended.
pub struct Instead {
    /// The driver that was proven last, and all that was wanted with it.
    pub desired: Desired,
    /// The way back.
    pub back: GoingBack,
}

/// Why the settings give up a way back that has begun; `None` if there is none, or if it goes on.
pub(super) fn given_up(receipt: &Receipt, settings: &Desired) -> Option<&'static str> {
    let (back, proven) = (receipt.going_back.as_ref()?, receipt.proven.as_ref()?);
    let driver = settings.driver.as_ref()?;
    if !driver.rollback {
        return Some("`driver.rollback` is false");
    }
    // Where nobody understands what was wanted, a person may name a driver. The one that has failed was
    // mostly named, too.
    let another = driver.asked && is_another(driver, &back.from);
    (another && proven.desired().is_err())
        .then_some("another version of this program recorded it, and the settings name a driver")
}

/// The driver of a wish, as a way back names it.
fn in_words(driver: &DriverWish) -> String {
    (driver.version.as_ref()).map_or_else(
        || format!("of branch {}", driver.branch),
        ToString::to_string,
    )
}

/// Whether a wish cannot mean the driver that has failed, which is written by [`in_words`].
fn is_another(driver: &DriverWish, failed: &str) -> bool {
    match (&driver.version, failed.parse::<DriverVersion>()) {
        (Some(wanted), Ok(failed)) => *wanted != failed,
        (None, Ok(failed)) => driver.branch != failed.branch(),
        (_, Err(_)) => failed != format!("of branch {}", driver.branch),
    }
}

/// The packages of the proven driver, in exactly their versions, whose files are kept before another driver
/// takes their place; none where no run would go back to it.
#[must_use]
pub fn to_keep(host: &Host, desired: &Desired) -> Vec<PackageWish> {
    if !desired
        .driver
        .as_ref()
        .is_some_and(|driver| driver.rollback)
    {
        return Vec::new();
    }
    // A journal that cannot be read ends the run before it changes anything.
    let receipt = Journal::read(host).map(|history| fold(&history.lines));
    let proven = receipt.ok().filter(|receipt| receipt.going_back.is_none());
    proven
        .and_then(|receipt| receipt.proven)
        .map_or_else(Vec::new, |proven| proven.driver)
}

/// What was proven, with every package of the driver in the version that was proven.
fn again(before: Desired, exact: Vec<PackageWish>, policy: &PackagePolicy) -> Desired {
    // What was wanted leaves the branch open where the package lists decided on it.
    let rolling = (before.kernel.iter())
        .flat_map(|kernel| &kernel.ways)
        .any(|way| way.branch.is_some());
    let branch = (version(&exact).filter(|_| rolling)).map(|version| version.branch());
    let driver = before.driver.map(|wish| {
        let others = (wish.packages.iter())
            .filter(|wish| !exact.iter().any(|one| one.name == wish.name))
            .cloned();
        DriverWish {
            packages: others.chain(exact.iter().cloned()).collect(),
            branch: branch.unwrap_or(wish.branch),
            // Nobody has to ask for it once more.
            asked: true,
            // It was there before: a node without a working GPU is worse than one that lacks fixes.
            vulnerable: None,
            // What the settings say about it decides whether it begins and whether it goes on.
            rollback: true,
            ..wish
        }
    });
    // The kernel decides later which of these are wanted.
    let kernel = before.kernel.map(|mut kernel| {
        (kernel.ways).retain(|way| way.branch == branch);
        kernel.ways.iter_mut().for_each(|way| way.fix(&exact));
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

/// The version of the driver among packages.
fn version(packages: &[PackageWish]) -> Option<DriverVersion> {
    let version = |wish: &PackageWish| {
        let version = DriverVersion::from_package(wish.version.as_deref()?).ok()?;
        carries_driver(&wish.name).then_some(version)
    };
    packages.iter().filter_map(version).max()
}

pub(super) fn version_in_words(proven: &Proven) -> String {
    version(&proven.driver).map_or_else(|| "before".to_owned(), |one| one.to_string())
}

pub(super) fn not_understood(error: &serde_json::Error) -> String {
    format!("what was proven was recorded by another version of this program ({error})")
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
fn failed_proof<'j>(jobs: impl Iterator<Item = &'j Job>) -> Option<String> {
    jobs.filter(|job| PROOFS.contains(&job.id)).find_map(|job| {
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

/// Whether a package could not be found. The packages of several steps are one transaction, so it need not
/// be one of the driver's.
fn lacks_a_package(jobs: &[Job]) -> bool {
    (jobs.iter().filter(|job| PROOFS.contains(&job.id)))
        .filter_map(|job| job.ended.as_ref())
        .any(|end| end.reason == Some(Fault::NotFound.reason()))
}

/// What is said of a way back that the settings give up.
pub(super) fn words_of_end(back: &GoingBack, why: &str) -> String {
    let GoingBack { from, to, .. } = back;
    format!("the way back from driver {from} to {to} is given up: {why}")
}

/// Whether the driver of a run has passed its proof, however the run has ended: what runs on top of it may
/// have failed. Before a reboot, and when somebody stopped the run, nothing is proven.
fn has_passed(exit: Exit, jobs: &[Job]) -> bool {
    let passed = |proof: &StepId| {
        let ends =
            (jobs.iter().filter(|job| job.id == *proof)).filter_map(|job| job.ended.as_ref());
        let mut outcomes = ends.map(|end| end.outcome);
        outcomes.any(|one| matches!(one, Outcome::Satisfied | Outcome::Changed))
    };
    match exit {
        Exit::Ok | Exit::Partial => jobs.iter().any(|job| PROOFS.contains(&job.id)),
        Exit::StepFailed => PROOFS.iter().all(passed),
        _ => false,
    }
}

impl Session {
    /// Remembers a driver that has passed its proof, if anything has changed since the last one.
    pub(super) async fn remember(
        &self,
        ledger: &Ledger,
        exit: Exit,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        if !has_passed(exit, jobs) {
            return Ok(());
        }
        let Some(desired) = self.inner.desired.as_ref().filter(|desired| !desired.image) else {
            return Ok(());
        };
        let Some(driver) = desired
            .driver
            .as_ref()
            .filter(|driver| driver.existing != Existing::Keep)
        else {
            return Ok(());
        };
        let receipt = ledger.journal.receipt();
        if exit == Exit::StepFailed && receipt.runs.iter().all(|run| run.ended.is_some()) {
            // This run has changed nothing, and writes nothing.
            return Ok(());
        }
        let wanted = serde_json::to_value(&**desired)
            .map_err(|error| EngineError::Unfinished(JournalError::Encode(error)))?;
        let is_known = receipt.proven.as_ref().is_some_and(|proven| {
            let later = |one: &Standing| one.intent > proven.seq && !resume::is_of_unit(one);
            proven.desired == wanted && !receipt.standing.iter().any(later)
        });
        if is_known {
            return Ok(());
        }
        let mut forgotten = |why: &str| {
            let note = format!(
                "this driver is not remembered as proven, so that no later run can go back to it: \
                 {why}"
            );
            self.tools.note(notes, note);
        };
        let manager = desired.packages.manager;
        self.inner.begin_epoch();
        let state = self.inner.state();
        let database = match state.database(manager).await {
            Ok(Some(database)) => database,
            Ok(None) => {
                forgotten(&format!(
                    "`{}` is missing",
                    manager.backend().database_path()
                ));
                return Ok(());
            }
            Err(error) => {
                forgotten(&format!("failed to {}", one_line(&error)));
                return Ok(());
            }
        };
        let ours = ours(&receipt.standing).packages;
        let is_wished = |name: &str| driver.packages.iter().any(|wish| wish.name == name);
        let is_one = |name: &str| {
            is_wished(name)
                || (ours.contains(name) && (carries_driver(name) || is_driver_part(name)))
        };
        let exact: Vec<PackageWish> = (database.iter())
            .filter(|package| package.is_installed() && is_one(&package.id))
            .map(|package| PackageWish {
                name: package.id.clone(),
                version: Some(package.version.clone()),
            })
            .collect();
        // The files of another driver are of no use any more.
        let there: Vec<PackageWish> = (database.iter())
            .filter(|package| package.is_installed())
            .map(|package| PackageWish {
                name: package.id.clone(),
                version: Some(package.version.clone()),
            })
            .collect();
        kept::forget(&*self.inner.host.files, Utf8Path::new(paths::STATE), &there)
            .map_err(|error| EngineError::Unfinished(error.into()))?;
        let record = Record::Proven {
            desired: Box::new(wanted),
            driver: exact,
        };
        let text = serde_json::to_string(&record)
            .map_err(|error| EngineError::Unfinished(JournalError::Encode(error)))?;
        if self.tools.events.secrets().are_in(&text) {
            forgotten(
                "the value of a secret occurs in what is wanted, and the journal has no secrets",
            );
            return Ok(());
        }
        (ledger.journal.append(record)).map_err(EngineError::Unfinished)?;
        Ok(())
    }

    /// The proof that failed. That a GPU is missing which the instance type promises is none: no driver brings it back.
    fn failed_proof(&self, jobs: &[Job]) -> Option<String> {
        let state = self.inner.state();
        let promise =
            (self.inner.matrix.get()).and_then(|matrix| Promise::of(state.facts(), matrix).ok());
        let is_broken = promise.is_some_and(|promise| promise.broken().is_some());
        failed_proof(
            jobs.iter()
                .filter(|job| !is_broken || job.id != steps::VALIDATION_DEVICES),
        )
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
        match (self.failed_proof(jobs)).filter(|_| failed && self.tools.cancel.exit().is_none()) {
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
        // The package lists can have decided on the branch.
        let settled = self.inner.settled();
        let desired = settled.get().or(self.inner.desired.as_ref());
        let driver = desired.and_then(|desired| desired.driver.as_ref());
        let (Some(driver), Some(proven), None) = (driver, &receipt.proven, &receipt.going_back)
        else {
            return Ok(false);
        };
        if !driver.rollback || !is_replaced(&receipt, proven) {
            return Ok(false);
        }
        let (to, from) = (version_in_words(proven), in_words(driver));
        if let Err(error) = proven.desired() {
            let error = not_understood(&error);
            self.tools.note(
                notes,
                format!(
                    "the driver {from} has failed its proof ({why}), and there is no way back to \
                     {to}: {error}"
                ),
            );
            return Ok(false);
        }
        self.tools.note(
            notes,
            format!("the driver {from} has failed its proof ({why}); the run goes back to {to}"),
        );
        (ledger.journal.append(Record::GoingBack { from, to, why }))
            .map_err(EngineError::Unfinished)?;
        Ok(true)
    }

    /// Ends a way back that the settings give up. Returns whether they do.
    pub(super) fn give_up_way_back(
        &self,
        ledger: &Ledger,
        notes: &mut Vec<String>,
    ) -> Result<bool, EngineError> {
        let receipt = ledger.journal.receipt();
        let settings = self.inner.desired.as_ref();
        let why = settings.and_then(|settings| given_up(&receipt, settings));
        let (Some(why), Some(back)) = (why, &receipt.going_back) else {
            return Ok(false);
        };
        self.tools.note(notes, words_of_end(back, why));
        (ledger.journal.append(Record::WentBack { proven: false }))
            .map_err(EngineError::Unfinished)?;
        Ok(true)
    }

    /// The end of the way back. However well it went, the run has not done what was asked. If something
    /// else than a proof has failed, as a download, the next run goes on with it.
    pub(super) async fn end_way_back(
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
        let proven = has_passed(exit, jobs);
        let GoingBack { from, to, why } = back;
        let is_over = proven
            || self.failed_proof(jobs).is_some()
            || (lacks_a_package(jobs) && self.is_gone(ledger, notes).await);
        if !is_over {
            self.tools.note(
                notes,
                format!(
                    "the next run goes on with the way back to driver {to}; with `driver.rollback = \
                     false` it gives it up"
                ),
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

    /// Whether no repository offers a package of the proven driver any more that would have to be
    /// installed: waiting does not help.
    async fn is_gone(&self, ledger: &Ledger, notes: &mut Vec<String>) -> bool {
        let Some(proven) = ledger.journal.receipt().proven else {
            return false;
        };
        let Some(desired) = &self.inner.desired else {
            return false;
        };
        let manager = desired.packages.manager;
        self.inner.begin_epoch();
        let why = match self.inner.state().database(manager).await {
            Ok(database) => {
                let is_there = |one: &&PackageWish| {
                    (database.iter().flat_map(|all| all.iter())).any(|package| {
                        package.id == one.name && one.version.as_ref() == Some(&package.version)
                    })
                };
                let missing: Vec<&PackageWish> =
                    (proven.driver.iter().filter(|one| !is_there(one))).collect();
                if missing.is_empty() {
                    return false;
                }
                match self.not_offered(manager, &missing).await {
                    Ok(gone) => return !gone.is_empty(),
                    Err(why) => why,
                }
            }
            Err(error) => format!("failed to {}", one_line(&error)),
        };
        let note = format!("whether the driver's packages are still offered is not known: {why}");
        self.tools.note(notes, note);
        false
    }
}
