//! One loop for `check`, `plan` and `install`: assess all steps, then report, or apply and verify.
//! `uninstall` reverts `install` by reading the journal backwards.
//!
//! [`survey`] assesses every step, [`apply`] schedules the changes, [`batch`] merges the package
//! work of several steps, [`ledger`] is the write-ahead log, [`resume`] continues after a reboot.

mod answers;
mod apply;
mod available;
mod batch;
mod cancel;
mod check;
mod errors;
pub mod events;
mod follow;
mod graph;
mod guard;
mod install;
mod job;
mod ledger;
mod lock;
mod maintenance;
mod managed;
mod node;
mod obsolete;
pub mod own_time;
mod persist;
mod plan;
mod reboot;
mod result;
mod resume;
mod retry;
mod rollback;
mod rollback_messages;
mod runfile;
mod status;
mod statusfile;
mod survey;
#[cfg(test)]
mod tests;
mod timing;
mod unattended;
mod uninstall;
mod units;
mod wait;

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use tokio::sync::OnceCell;

pub use cancel::Cancel;
pub use errors::{EngineError, no_finding};
pub use events::Events;
pub use follow::Message;
pub use graph::GraphError;
pub use guard::release_lost;
pub use lock::{ValidatedNode, validated_node};
pub use maintenance::{Maintenance, MaintenanceState};
pub use managed::{holds, our_runtimes};
pub use result::{ChangeReport, Mode, Reboot, RunReport, StepReport};
pub use resume::{UNIT, applied_changes as applied, asked, request};
pub use retry::UNATTENDED_DEADLINE;
pub use rollback::{Rollback, rollback};
pub use runfile::{Progress, RunFile, StepProgress};
pub use status::{Current, FailedUpgrade, StatusSummary, policy, status};
pub use statusfile::{RunFault, RunState, RunStatus, StatusFile};
pub use timing::{ASSESSMENT, Span, SpanEnd, StepTime, Timing, last_timing};
pub use unattended::start as start_unattended;
pub use uninstall::{planned_uninstall, uninstall};
pub use wait::wait;

use crate::{
    change::{ApplyChanges, ChangeError},
    check::{FailOn, Family, Finding},
    compat::matrix::Matrix,
    config::{
        desired::{Desired, DriverSpec},
        load::Question,
    },
    event::{Event, StepTitle},
    exit::Exit,
    host::{Clock, Host},
    journal::{Journal, Policy, Request, RollbackStarted, fold},
    model::{
        findings,
        id::{Id, stands_for},
        paths::RUN,
        text,
    },
    state::{Ours, State},
    step::{Cx, Step, StepError},
    steps,
};
use errors::not_locked;
use graph::Graph;
use job::Assessed;
use survey::Simulations;

/// The environment of a run.
#[derive(Clone)]
pub struct Tools {
    /// The machine.
    pub host: Host,
    /// Applies and undoes changes.
    pub change_applier: Arc<dyn ApplyChanges>,
    /// The event stream.
    pub events: Events,
    /// The stop request.
    pub cancel: Cancel,
    /// The options of the run.
    pub options: Options,
}

/// The options of a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The gpu-bootstrap version.
    pub version: String,
    /// Absolute path of the gpu-bootstrap binary. The resume unit starts it.
    pub exe: Utf8PathBuf,
    /// The request, which is repeated after a reboot.
    pub request: Request,
    /// The package policy. `uninstall` reads it from the journal.
    pub policy: Option<Policy>,
    pub instance_id: Option<String>,
    pub boot_id: Option<String>,
    /// Time from the start of an `install` run during which transient failures are retried. After that,
    /// no new work starts. `None`: no retries and no time limit.
    pub deadline: Option<Duration>,
    /// The run was started by the resume unit.
    pub resumed: bool,
    /// `upgrade`: start outside of the maintenance window.
    pub now: bool,
    /// `check`: only these findings, each selected by its ID or by a prefix that ends before a dot.
    pub only: Vec<String>,
    /// `check`: exclude these findings.
    pub skip: Vec<String>,
    /// `check`: show these findings as skipped.
    pub ignore: Vec<String>,
    /// `check`: the findings that fail it.
    pub fail_on: Vec<FailOn>,
    /// `check`: treat unknown findings as failures.
    pub fail_on_unknown: bool,
}

/// The inputs of `check` in addition to the steps.
pub struct Audit {
    /// The health checks.
    pub checks: &'static [Family],
    /// The compatibility matrix.
    pub matrix: Arc<Matrix>,
    /// The desired state, or the reason there is none on this machine. Without it, the steps are
    /// not assessed.
    pub desired: Result<Desired, Unresolvable>,
    /// The rollback in progress, if any. The desired state then differs from the settings.
    pub back: Option<RollbackStarted>,
    /// An earlier gpu-bootstrap run has prepared the machine.
    pub prepared: bool,
    /// Differences from the settings are evaluated, because gpu-bootstrap prepared the machine or settings are given.
    pub compares: bool,
    /// The results of `check --validate`. Each replaces the finding of the step with the same ID.
    pub validated: Vec<Finding>,
    /// The last upgrade of this machine failed, and the node is out of service since then.
    pub failed_upgrade: Option<FailedUpgrade>,
}

/// The result of `plan`.
pub struct Planned {
    pub report: RunReport,
    /// The desired driver, resolved with the package lists.
    pub driver: Option<DriverSpec>,
    /// The reasons for the desired state.
    pub reasons: Vec<String>,
    /// The reason a rollback uses a version other than the validated one, if it does.
    pub warning: Option<String>,
    /// The machine is a prepared node in service, and a change stops its jobs.
    pub stops_jobs: bool,
}

/// The reason a machine has no desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolvable {
    /// The reason, with the compared values.
    pub why: String,
    /// The remedy.
    pub hint: Option<String>,
    /// This machine does not need preparation, even if it has GPUs.
    pub needless: bool,
    /// The operating system is unknown.
    pub unknown: bool,
}

/// Steps and checks on a machine.
pub struct Session {
    tools: Tools,
    inner: Arc<Inner>,
    audit: Option<Arc<Examination>>,
}

/// Data that all tasks of `check` share.
struct Examination {
    checks: Vec<Family>,
    matrix: Arc<Matrix>,
    unresolvable: Option<Unresolvable>,
    back: Option<RollbackStarted>,
    prepared: bool,
    compares: bool,
    validated: Vec<Finding>,
    failed_upgrade: Option<FailedUpgrade>,
}

/// Data that all tasks share.
struct Inner {
    host: Host,
    /// Empty if there is no desired state.
    steps: Vec<Step>,
    /// `None` only for `check` without a desired state.
    desired: Option<Arc<Desired>>,
    graph: Graph,
    /// Set by [`Session::audit`] and [`Session::asking`]. Not set in tests that do not need it.
    matrix: OnceLock<Arc<Matrix>>,
    /// The inputs of the desired state, for a rollback that resolves it again with the previous driver. Not set if this session
    /// cannot roll back.
    question: OnceLock<Question>,
    /// The reason the rollback in progress uses a version other than the validated one, if it does.
    note: OnceLock<String>,
    /// The reasons for the desired state.
    reasons: OnceLock<Vec<String>>,
    /// The rollback session, if this session started one.
    rollback: OnceLock<Box<Session>>,
    /// The current snapshot.
    state: Mutex<Arc<State>>,
    /// The desired state for the current snapshot.
    resolved: Mutex<Arc<OnceCell<Arc<Desired>>>>,
}

impl Inner {
    /// The desired state, as far as the current snapshot decides it. See [`steps::resolve`].
    async fn wanted(&self, state: &Arc<State>) -> Option<Arc<Desired>> {
        let desired = self.desired.as_ref()?;
        let resolved = self.resolved();
        let resolve = || async {
            let cx = Cx {
                host: self.host.reader(),
                facts: state.facts(),
                state,
                desired,
                matrix: self.matrix.get().map(|matrix| &**matrix),
            };
            // Ignore an error, because the step with the same query reports it.
            match steps::resolve(&cx).await {
                Ok(Some(resolved)) => Arc::new(resolved),
                Ok(None) | Err(_) => Arc::clone(desired),
            }
        };
        Some(Arc::clone(resolved.get_or_init(resolve).await))
    }

    async fn assess(&self, at: usize) -> Assessed {
        let state = self.state();
        let Some(desired) = self.wanted(&state).await else {
            return Err(StepError::Unexpected {
                what: "the desired state".to_owned(),
                why: "there is no desired state for this machine".to_owned(),
            });
        };
        let cx = Cx {
            host: self.host.reader(),
            facts: state.facts(),
            state: &state,
            desired: &desired,
            matrix: self.matrix.get().map(|matrix| &**matrix),
        };
        (self.steps[at].assess)(&cx).await
    }

    /// Whether this machine becomes an image.
    fn image(&self) -> bool {
        self.desired.as_ref().is_some_and(|desired| desired.image)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn resolved(&self) -> Arc<OnceCell<Arc<Desired>>> {
        Arc::clone(&self.resolved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Invalidates everything that was read.
    fn invalidate(&self) {
        *self.resolved.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Arc::new(state.next());
    }

    /// Updates the information for the steps about changes made by gpu-bootstrap.
    fn know(&self, ours: Ours) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Arc::new(state.next().knowing(ours));
    }

    fn monotonic(&self) -> Duration {
        self.host.clock.monotonic()
    }
}

impl Session {
    /// Creates a session for `plan` and `install`.
    ///
    /// # Errors
    /// [`EngineError::Graph`] if the steps cannot be ordered.
    pub fn new(
        tools: Tools,
        steps: Vec<Step>,
        state: State,
        desired: Desired,
    ) -> Result<Self, EngineError> {
        let graph = Graph::new(&steps)?;
        Ok(Self::with(
            tools,
            (steps, graph),
            state,
            Some(desired),
            None,
        ))
    }

    /// Allows this session to resolve the desired state again with another driver, for a rollback. The steps of the session use
    /// the matrix in `question` for information that is only available during the run.
    #[must_use]
    pub fn asking(self, question: Question, reasons: Vec<String>) -> Self {
        self.inner.reasons.get_or_init(|| reasons);
        self.inner
            .matrix
            .get_or_init(|| Arc::clone(&question.matrix));
        self.inner.question.get_or_init(|| question);
        self
    }

    /// Creates a session for `check`.
    ///
    /// # Errors
    /// [`EngineError::Graph`] if the steps cannot be ordered. [`no_finding`] if a selected or
    /// skipped finding does not exist, because a check with a misspelled ID would always pass.
    pub fn audit(
        tools: Tools,
        mut steps: Vec<Step>,
        state: State,
        audit: Audit,
    ) -> Result<Self, EngineError> {
        // The entire list must have an order, even if only a part of it is assessed.
        let mut graph = Graph::new(&steps)?;
        let Audit {
            checks,
            matrix,
            desired,
            back,
            prepared,
            compares,
            validated,
            failed_upgrade,
        } = audit;
        let known = (steps.iter().map(|step| step.id.clone()))
            .chain(checks.iter().flat_map(|check| (check.ids)()))
            .chain(validated.iter().map(|finding| finding.id.clone()))
            .chain([check::RESOLVABLE, check::UPGRADE_FAILED]);
        tools.options.all_known(&known.collect::<Vec<_>>())?;
        let wanted = |id: &str| tools.options.wants(id);
        let keep: Vec<bool> = (steps.iter())
            .map(|step| wanted(step.id.as_str()))
            .collect();
        let (desired, mut unresolvable) = match desired {
            Ok(desired) => (Some(desired), None),
            Err(why) => (None, Some(why)),
        };
        // If only steps are selected, also report the reason there is no desired state, because the steps are not assessed.
        let skipped = tools.options.skips(check::RESOLVABLE.as_str());
        let asked = wanted(check::RESOLVABLE.as_str()) || keep.contains(&true);
        if skipped || !asked {
            unresolvable = None;
        }
        let keep: Vec<bool> = (keep.iter())
            .map(|keep| *keep && desired.is_some())
            .collect();
        if keep.contains(&false) {
            graph = graph.only(&keep);
            let mut kept = keep.iter();
            steps.retain(|_| kept.next().copied().unwrap_or(true));
        }
        let selected = |check: &&Family| (check.ids)().iter().any(|id| wanted(id.as_str()));
        let examination = Examination {
            checks: checks.iter().filter(selected).copied().collect(),
            matrix,
            unresolvable,
            back,
            prepared,
            compares,
            validated,
            failed_upgrade,
        };
        let ordered = (steps, graph);
        Ok(Self::with(
            tools,
            ordered,
            state,
            desired,
            Some(Arc::new(examination)),
        ))
    }

    fn with(
        tools: Tools,
        (steps, graph): (Vec<Step>, Graph),
        state: State,
        desired: Option<Desired>,
        audit: Option<Arc<Examination>>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                host: tools.host.clone(),
                steps,
                desired: desired.map(Arc::new),
                graph,
                matrix: audit.as_ref().map_or_else(OnceLock::new, |audit| {
                    OnceLock::from(Arc::clone(&audit.matrix))
                }),
                question: OnceLock::new(),
                note: OnceLock::new(),
                reasons: OnceLock::new(),
                rollback: OnceLock::new(),
                state: Mutex::new(Arc::new(state)),
                resolved: Mutex::default(),
            }),
            tools,
            audit,
        }
    }

    /// The current machine state.
    pub fn state(&self) -> Arc<State> {
        self.inner.state()
    }

    /// Assesses all steps and reports problems. Read-only.
    pub async fn check(&self) -> RunReport {
        self.look(Mode::Check).await.0
    }

    /// Assesses all steps and reports the changes that `install` would make, and the driver as
    /// resolved with the package lists. Read-only.
    ///
    /// # Errors
    /// If the driver of a rollback in progress is no longer possible on this machine.
    pub async fn plan(&self) -> Result<Planned, EngineError> {
        let back = match self.driver_before().await {
            // Not an error: the plan contains a note about the unreadable journal.
            Err(EngineError::Journal(_)) => None,
            back => back?,
        };
        let session = back.as_ref().unwrap_or(self);
        let (report, stops_jobs) = session.look(Mode::Plan).await;
        let desired = session.inner.wanted(&session.inner.state()).await;
        Ok(Planned {
            report,
            driver: desired.and_then(|desired| desired.driver.clone()),
            reasons: session.inner.reasons.get().cloned().unwrap_or_default(),
            warning: session.inner.note.get().cloned(),
            stops_jobs,
        })
    }

    /// Returns the report, and whether a pending change of `plan` stops the jobs of a prepared node in service.
    async fn look(&self, mode: Mode) -> (RunReport, bool) {
        self.announce(mode);
        let look = async {
            self.read_ours();
            let (mut jobs, simulation) = self.survey(mode).await;
            let (mut notes, mut simulations) = (Vec::new(), Simulations::new());
            self.read_obsolete(&mut jobs, &mut notes);
            if mode == Mode::Plan {
                for kept in self.keep_running(&mut jobs).await {
                    self.tools.note(&mut notes, format!("obsolete: {kept}"));
                }
                simulations = self.dry_run(mode, &mut jobs, simulation).await;
                if let Some(note) = self.rollback_in_words(&jobs).await {
                    self.tools.note(&mut notes, note);
                }
            }
            self.conclude(mode, &mut jobs);
            let mut stops = false;
            if mode == Mode::Plan {
                // `read_obsolete` has reported an unreadable journal with its cause. Without it, the notes below are omitted.
                let history = Journal::read(&self.inner.host).ok();
                let receipt = history.map(|history| fold(&history.lines));
                if let Some(receipt) = &receipt
                    && self.tools.options.request.upgrade
                {
                    for note in self.upgrade_in_words(&jobs, receipt).await {
                        self.tools.note(&mut notes, note);
                    }
                }
                let maintenance = status(&self.inner.host, None)
                    .ok()
                    .and_then(|one| one.maintenance);
                if maintenance.is_some_and(|one| one.state != MaintenanceState::Waiting) {
                    self.tools.note(&mut notes, maintenance::RETURNS.to_owned());
                }
                // Non-root users cannot read the journal.
                stops = receipt.is_none_or(|receipt| receipt.validated.is_some())
                    && !self.tools.options.request.image
                    && self.is_in_service()
                    && jobs.iter().any(maintenance::stops_jobs);
            }
            // Evaluate the assessments as findings (`check`) or as pending changes (`plan`).
            let mut report = match mode {
                Mode::Check => self.findings(jobs).await,
                _ => self.planned(jobs, simulations).await,
            };
            notes.append(&mut report.notes);
            report.notes = notes;
            (report, stops)
        };
        // An assessment can be stopped at any time.
        let report = tokio::select! {
            biased;
            exit = self.tools.cancel.cancelled() => (RunReport { seconds: self.tools.events.elapsed().as_secs_f64(), ..RunReport::new(mode, self.tools.events.run().to_owned(), exit) }, false),
            report = look => report,
        };
        self.tools.finished(&report.0);
        report
    }

    fn announce(&self, mode: Mode) {
        self.tools.announce(mode, self.titles());
    }

    fn titles(&self) -> Vec<StepTitle> {
        self.inner
            .steps
            .iter()
            .map(|step| StepTitle {
                id: step.id.clone(),
                title: findings::title(&step.id).to_owned(),
            })
            .collect()
    }
}

impl Options {
    /// Whether a step or finding is selected.
    pub fn wants(&self, id: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| stands_for(name, id));
        (self.only.is_empty() || named(&self.only)) && !self.skips(id)
    }

    fn skips(&self, id: &str) -> bool {
        self.skip.iter().any(|name| stands_for(name, id))
    }

    /// Whether a finding is ignored.
    pub(super) fn ignores(&self, id: &str) -> bool {
        self.ignore.iter().any(|name| stands_for(name, id))
    }

    fn all_known(&self, known: &[Id]) -> Result<(), EngineError> {
        let is_known = |name: &str| known.iter().any(|id| stands_for(name, id.as_str()));
        let mut named = (self.only.iter()).chain(&self.skip).chain(&self.ignore);
        match named.find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => {
                let nearest = text::nearest(name, known.iter().map(Id::as_str));
                Err(no_finding(name, nearest).into())
            }
        }
    }
}

impl Tools {
    fn announce(&self, mode: Mode, steps: Vec<StepTitle>) {
        self.events.emit(Event::RunStarted {
            version: self.options.version.clone(),
            mode: mode.word().to_owned(),
            steps,
        });
    }

    fn note(&self, notes: &mut Vec<String>, message: String) {
        self.events.emit(Event::Note {
            message: message.clone(),
        });
        notes.push(message);
    }

    /// Starts the timers that this run or an interrupted one has paused.
    async fn resume_paused(&self) {
        let sink = events::EventSink {
            events: &self.events,
            steps: &[],
        };
        self.change_applier.resume_paused(&sink).await;
    }

    fn finished(&self, report: &RunReport) {
        self.events.emit(Event::RunFinished {
            summary: report.summary(),
            exit: report.exit.code(),
            seconds: report.seconds,
            to_ready: report.to_ready,
        });
    }

    /// Acquires the run lock, so that only one run is active.
    ///
    /// # Errors
    /// [`Exit::Busy`] if another run holds the lock.
    pub fn lock(&self) -> Result<Box<dyn Send + Sync>, ChangeError> {
        let directory = Utf8Path::new(RUN);
        let path = directory.join("lock");
        self.host
            .files
            .create_directory(directory, 0o755)
            .map_err(not_locked)?;
        match self.host.files.try_lock(&path).map_err(not_locked)? {
            Some(guard) => Ok(guard),
            None => {
                let holder = self.host.files.read_text(&path).map_err(not_locked)?;
                let holder = holder.unwrap_or_default();
                let what = format!(
                    "start the run: another run is in progress ({})",
                    holder.trim()
                );
                Err(ChangeError::new("busy", what)
                    .exiting(Exit::Busy)
                    .advice("wait for it; run `gpu-bootstrap status` to follow it"))
            }
        }
    }
}

/// Creates a run ID from the start time and the process ID.
pub fn run_id(clock: &dyn Clock) -> String {
    format!(
        "{}-{}",
        clock.now().strftime("%Y%m%dT%H%M%SZ"),
        std::process::id()
    )
}
