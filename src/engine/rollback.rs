//! Rolls back to the last validated driver if a new driver fails validation. Recorded settings override
//! all others and select the source, flavor and branch of that driver. Its packages are pinned to the
//! validated versions. If these are no longer available, the newest version of the branch is used.
//! Apart from that, a rollback is a normal run.
//!
//! The journal records `rollback-started`. Until `rollback-finished` is recorded, every `install` uses
//! the validated driver, so the rollback survives power loss and reboots like any other run. A
//! successful rollback exits with 6, because the requested driver is not installed. Each failed driver
//! restarts the reboot count, and the total is limited.

use super::{
    EngineError, Options, Session, Tools,
    available::{Available, no_longer, none_left, offered, version, version_in_words},
    job::Job,
    ledger::Ledger,
    managed::{holds, ours},
    resume, run_id,
};
use crate::{
    change::{ChangeError, Undo},
    compat::security,
    config::{
        desired::{Desired, DriverSpec, Existing, ModuleMethod, PackageSpec},
        error::ResolveError,
        load::Question,
        resolve::Resolution,
        values::Build,
    },
    error::{Report as _, one_line},
    event::Outcome,
    exit::Exit,
    facts::detection::{carries_driver, is_driver_part},
    host::Host,
    journal::{AppliedChange, Journal, Policy, Receipt, Record, RollbackStarted, Validated, fold},
    model::{id::StepId, version::DriverVersion},
    steps::{self, expected::ExpectedGpus},
    tools::packages::FailureClass,
};

/// The steps that validate a driver. If one of them fails after the driver was replaced, the driver is
/// rolled back. Failures of containers and other software on top of the driver may have other causes,
/// which another driver does not fix.
const VALIDATIONS: [StepId; 3] = [
    steps::DRIVER_PACKAGES,
    steps::DRIVER_MODULE,
    steps::VALIDATION_DEVICES,
];

/// The rollback in progress.
pub struct Rollback {
    /// The driver versions and the reason.
    pub back: RollbackStarted,
    /// The settings that select the driver. They override all others.
    pub settings: Vec<String>,
    /// The driver packages in the validated versions. Empty if another version of the branch is used
    /// instead.
    pub exact: Vec<PackageSpec>,
    /// The reason the run uses a version other than the validated one, if it does.
    pub note: Option<String>,
}

/// Returns the rollback in progress. `None` if there is none, or if the settings abort it.
///
/// # Errors
/// If the journal cannot be read.
pub async fn rollback(host: &Host, settings: &Desired) -> Result<Option<Rollback>, EngineError> {
    let receipt = fold(&Journal::read(host)?.lines);
    let (Some(back), Some(validated), false) = (
        receipt.rollback_started,
        receipt.validated,
        gives_up(settings),
    ) else {
        return Ok(None);
    };
    let (exact, note) = match offered(host, &settings.packages, &validated).await {
        Ok(Available::Exact(there)) => (there, None),
        Ok(Available::Newest(newest, gone)) => {
            let note = format!("rolling back to driver {newest}: {}", no_longer(&gone));
            (Vec::new(), Some(note))
        }
        // If no version is available, the run ends the rollback. If this is unknown, the run
        // downloads package lists to find out.
        Ok(Available::Gone(_)) | Err(_) => (validated.driver, None),
    };
    Ok(Some(Rollback {
        back,
        settings: validated.settings,
        exact,
        note,
    }))
}

impl Rollback {
    /// Resolves the desired state during the rollback.
    ///
    /// # Errors
    /// If the driver is no longer possible on this machine.
    pub fn resolve(&self, question: &Question) -> Result<Resolution, ResolveError> {
        let mut resolution = question.with_driver(&self.settings)?;
        self.pin(&mut resolution.desired);
        Ok(resolution)
    }

    /// Pins the driver packages to the validated versions.
    pub fn pin(&self, desired: &mut Desired) {
        let is_exact = |spec: &PackageSpec| self.exact.iter().any(|one| one.name == spec.name);
        if let Some(driver) = &mut desired.driver {
            driver.packages.retain(|spec| !is_exact(spec));
            driver.packages.extend(self.exact.iter().cloned());
        }
        if let Some(kernel) = &mut desired.kernel {
            (kernel.methods.iter_mut()).for_each(|method| method.fix(&self.exact));
        }
    }
}

/// Whether the settings abort a rollback in progress.
pub(super) fn gives_up(settings: &Desired) -> bool {
    (settings.driver.as_ref()).is_some_and(|driver| !driver.rollback)
}

/// Returns the settings that select a driver with these packages.
fn naming(desired: &Desired, driver: &DriverSpec, exact: &[PackageSpec]) -> Vec<String> {
    let methods: Vec<&ModuleMethod> = (desired.kernel.iter())
        .flat_map(|kernel| &kernel.methods)
        .collect();
    // A package with prebuilt modules has the same build as the DKMS package that it replaces.
    let is_dkms = |method: &ModuleMethod| method.is_compiled() || method.prebuilt.is_some();
    let compiled = |is: bool| methods.iter().any(|method| is_dkms(method) == is);
    // If both methods are possible, `driver.build` is omitted.
    let build = (compiled(true) != compiled(false)).then(|| Build::of(compiled(true)));
    // If the package lists decided the branch, use the branch of these packages.
    let is_open = methods.iter().any(|method| method.branch.is_some());
    let branch = version(exact).filter(|_| is_open);
    let branch = branch.map_or(driver.branch, |version| version.branch());
    let of_driver = [
        format!("driver.source={}", driver.source),
        format!("driver.flavor={}", driver.flavor),
        format!("driver.branch={branch}"),
    ];
    (of_driver.into_iter())
        .chain(build.map(|build| format!("driver.build={build}")))
        .collect()
}

/// The driver as shown in rollback messages.
pub(super) fn in_words(driver: &DriverSpec) -> String {
    (driver.version.as_ref()).map_or_else(
        || format!("of branch {}", driver.branch),
        ToString::to_string,
    )
}

/// Whether the validated driver has been replaced since its validation.
pub(super) fn is_replaced(receipt: &Receipt, validated: &Validated) -> bool {
    let of_driver = |spec: &PackageSpec| validated.driver.iter().any(|one| one.name == spec.name);
    (receipt.applied.iter())
        .filter(|applied| applied.intent > validated.seq)
        .any(|applied| match &applied.undo {
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

/// Describes the failed validation. A failed package transaction does not count, because the next run
/// completes it, except if a module could not be built.
fn failed_validation<'j>(jobs: impl Iterator<Item = &'j Job>) -> Option<String> {
    jobs.filter(|job| VALIDATIONS.contains(&job.id))
        .find_map(|job| {
            let end = job.ended.as_ref()?;
            let word = match end.outcome {
                Outcome::Failed => "failed",
                Outcome::Blocked => "is blocked",
                _ => return None,
            };
            if job.id == steps::DRIVER_PACKAGES && end.reason != Some(FailureClass::Build.reason())
            {
                return None;
            }
            // The innermost cause is the most specific one.
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

/// Whether a package could not be found. This may not be a driver package, because the packages of
/// several steps share one transaction.
fn lacks_a_package(jobs: &[Job]) -> bool {
    (jobs.iter().filter(|job| VALIDATIONS.contains(&job.id)))
        .filter_map(|job| job.ended.as_ref())
        .any(|end| end.reason == Some(FailureClass::NotFound.reason()))
}

/// The message if the settings abort a rollback.
pub(super) fn words_of_end(back: &RollbackStarted) -> String {
    let RollbackStarted { from, to, .. } = back;
    format!("the rollback from driver {from} to {to} is aborted: `driver.rollback` is false")
}

/// Whether the driver of a run passed validation. The run itself may have failed later, in software
/// on top of the driver. Before a reboot, or if the run was stopped, the driver is not validated.
fn has_passed(exit: Exit, jobs: &[Job]) -> bool {
    let passed = |validation_run: &StepId| {
        jobs.iter()
            .any(|job| job.id == *validation_run && job.succeeded())
    };
    match exit {
        Exit::Ok | Exit::Partial => jobs.iter().any(|job| VALIDATIONS.contains(&job.id)),
        Exit::StepFailed => VALIDATIONS.iter().all(passed),
        _ => false,
    }
}

impl Session {
    /// Returns a session with the same steps and the previous driver, if the journal contains a
    /// rollback.
    ///
    /// # Errors
    /// If the journal cannot be read, or if the driver is no longer possible on this machine.
    pub(super) async fn driver_before(&self) -> Result<Option<Self>, EngineError> {
        let (Some(question), Some(desired)) = (self.inner.question.get(), &self.inner.desired)
        else {
            return Ok(None);
        };
        let host = &self.tools.host;
        let Some(back) = rollback(host, desired).await? else {
            return Ok(None);
        };
        let Resolution {
            desired, reasons, ..
        } = match back.resolve(question) {
            Ok(resolution) => resolution,
            Err(error) => {
                let what = format!("failed to roll back to driver {}", back.back.to);
                let problem = ChangeError::new(error.reason(), what).exiting(error.exit());
                let hint = "set `driver.rollback = false` to abort this rollback";
                return Err(problem.advice(hint).caused_by(error).into());
            }
        };
        let tools = Tools {
            change_applier: self.tools.change_applier.anew(&desired, holds(host)),
            events: self.tools.events.of_next(&run_id(&*host.clock)),
            options: Options {
                policy: Some(Policy::of(&desired.packages)),
                ..self.tools.options.clone()
            },
            ..self.tools.clone()
        };
        let session = Self::new(tools, steps::all(), self.inner.state().next(), desired)?;
        if let Some(note) = back.note {
            session.inner.note.get_or_init(|| note);
        }
        Ok(Some(session.asking(question.clone(), reasons)))
    }

    /// Records a driver that passed validation, if its settings or any applied changes are newer than the
    /// last record.
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
            // This run has changed nothing, so nothing is recorded.
            return Ok(());
        }
        let is_known = receipt.validated.as_ref().is_some_and(|validated| {
            let later =
                |one: &AppliedChange| one.intent > validated.seq && !resume::is_of_unit(one);
            validated.settings == naming(desired, driver, &validated.driver)
                && !receipt.applied.iter().any(later)
        });
        if is_known {
            return Ok(());
        }
        let mut forgotten = |why: &str| {
            let note = format!(
                "this driver is not recorded as validated, so later runs cannot roll back to it: \
                 {why}"
            );
            self.tools.note(notes, note);
        };
        let manager = desired.packages.manager;
        self.inner.invalidate();
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
        let ours = ours(&receipt.applied).packages;
        let is_requested = |name: &str| driver.packages.iter().any(|spec| spec.name == name);
        let is_one = |name: &str| {
            is_requested(name)
                || (ours.contains(name) && (carries_driver(name) || is_driver_part(name)))
        };
        let exact: Vec<PackageSpec> = (database.iter())
            .filter(|package| package.is_installed() && is_one(&package.id))
            .map(|package| PackageSpec {
                name: package.id.clone(),
                version: Some(package.version.clone()),
            })
            .collect();
        let settings = naming(desired, driver, &exact);
        let driver = exact;
        (ledger
            .journal
            .append(Record::Validated { settings, driver }))
        .map_err(EngineError::Unfinished)?;
        Ok(())
    }

    /// Describes the failed validation. If the machine has fewer GPUs than its instance type specifies, a
    /// failure of the device validation does not count, because another driver does not fix it.
    fn failed_validation(&self, jobs: &[Job]) -> Option<String> {
        let state = self.inner.state();
        let expected_gpus = (self.inner.matrix.get())
            .and_then(|matrix| ExpectedGpus::of(state.facts(), matrix).ok());
        let is_broken = expected_gpus.is_some_and(|expected_gpus| expected_gpus.broken().is_some());
        failed_validation(
            jobs.iter()
                .filter(|job| !is_broken || job.id != steps::VALIDATION_DEVICES),
        )
    }

    /// Records the start of a rollback if the driver was replaced since its last validation and a
    /// validation step failed. Another run performs the rollback, normally in the same command
    /// ([`Session::install`]).
    pub(super) async fn turn_back(
        &self,
        ledger: &Ledger,
        exit: Exit,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        let failed = matches!(exit, Exit::StepFailed | Exit::Blocked | Exit::Internal);
        match (self.failed_validation(jobs))
            .filter(|_| failed && self.tools.cancel.exit().is_none())
        {
            Some(why) => (self.turn_back_because(ledger, why, notes).await).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Records the start of a rollback if the driver was replaced, a validated driver is available and
    /// the settings allow a rollback. Returns whether it was recorded.
    pub(super) async fn turn_back_because(
        &self,
        ledger: &Ledger,
        why: String,
        notes: &mut Vec<String>,
    ) -> Result<bool, EngineError> {
        let receipt = ledger.journal.receipt();
        // The branch may have been decided by the package lists.
        let resolved = self.inner.resolved();
        let desired = resolved.get().or(self.inner.desired.as_ref());
        let Some(desired) = desired else {
            return Ok(false);
        };
        let (Some(driver), Some(validated), None) = (
            &desired.driver,
            &receipt.validated,
            &receipt.rollback_started,
        ) else {
            return Ok(false);
        };
        if !driver.rollback || !is_replaced(&receipt, validated) {
            return Ok(false);
        }
        let from = in_words(driver);
        let failed = format!("driver {from} failed validation ({why})");
        let (to, because) = match offered(&self.inner.host, &desired.packages, validated).await {
            Ok(Available::Gone(gone)) => {
                let none = none_left(validated, &gone);
                self.tools.note(notes, format!("{failed}, and {none}"));
                return Ok(false);
            }
            Ok(Available::Newest(newest, gone)) => {
                (newest.to_string(), format!(": {}", no_longer(&gone)))
            }
            Ok(Available::Exact(_)) | Err(_) => (version_in_words(validated), String::new()),
        };
        let note = format!("{failed}; rolling back to {to}{because}");
        self.tools.note(notes, note);
        (ledger
            .journal
            .append(Record::RollbackStarted { from, to, why }))
        .map_err(EngineError::Unfinished)?;
        Ok(true)
    }

    /// Ends the rollback in progress if the settings abort it. Returns whether it was ended.
    pub(super) fn give_up_rollback(
        &self,
        ledger: &Ledger,
        notes: &mut Vec<String>,
    ) -> Result<bool, EngineError> {
        let receipt = ledger.journal.receipt();
        let gives_up = self.inner.desired.as_ref().is_some_and(|one| gives_up(one));
        let (true, Some(back)) = (gives_up, &receipt.rollback_started) else {
            return Ok(false);
        };
        self.tools.note(notes, words_of_end(back));
        (ledger
            .journal
            .append(Record::RollbackFinished { validated: false }))
        .map_err(EngineError::Unfinished)?;
        Ok(true)
    }

    /// Ends the rollback. Even a successful rollback is not a success of the run, because the
    /// requested driver is not installed. If the run failed for another reason, such as a download,
    /// the next run continues the rollback.
    pub(super) async fn end_rollback(
        &self,
        ledger: &Ledger,
        back: &RollbackStarted,
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
        let validated = has_passed(exit, jobs);
        let RollbackStarted { from, to, why } = back;
        let is_over = validated
            || self.failed_validation(jobs).is_some()
            || (lacks_a_package(jobs) && self.is_gone(ledger).await);
        if !is_over {
            self.tools.note(
                notes,
                format!(
                    "the next run continues the rollback to driver {to}; set `driver.rollback = \
                     false` to abort it"
                ),
            );
            return Ok(exit);
        }
        let ending = if validated {
            format!("driver {to} is installed again and passed validation")
        } else {
            format!("the rollback to driver {to} also failed")
        };
        self.tools.note(
            notes,
            format!("driver {from} failed validation ({why}); {ending}"),
        );
        if let Some(why) = self.lacks_fixes(to).filter(|_| validated) {
            self.tools.note(notes, why);
        }
        (ledger
            .journal
            .append(Record::RollbackFinished { validated }))
        .map_err(EngineError::Unfinished)?;
        Ok(if validated { Exit::StepFailed } else { exit })
    }

    /// The security fixes that are missing in the previous driver. It is restored anyway, because a
    /// node without a working GPU is worse.
    fn lacks_fixes(&self, version: &str) -> Option<String> {
        let matrix = self.inner.matrix.get()?;
        // `version_in_words` returns "before" for an unknown version.
        let version: DriverVersion = version.parse().ok()?;
        security::of_driver(matrix, &version).map(|lacking| lacking.why)
    }

    /// Whether neither the validated driver nor another version of its branch is available, so that
    /// another run cannot continue the rollback.
    async fn is_gone(&self, ledger: &Ledger) -> bool {
        let (Some(validated), Some(desired)) =
            (ledger.journal.receipt().validated, &self.inner.desired)
        else {
            return false;
        };
        let offered = offered(&self.inner.host, &desired.packages, &validated).await;
        matches!(offered, Ok(Available::Gone(_)))
    }
}
