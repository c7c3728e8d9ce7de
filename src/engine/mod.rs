//! One loop for `check`, `plan` and `install`: assess, and then tell, or apply and verify. The
//! undo of `install` is `uninstall`: the journal read backwards.
//!
//! [`survey`] looks at every step, [`apply`] schedules the changes, [`gate`] merges the package
//! work of several steps, [`ledger`] writes ahead, [`resume`] goes on after a reboot.

mod answers;
mod apply;
mod cancel;
mod check;
mod errors;
pub mod events;
mod follow;
mod gate;
mod graph;
mod guard;
mod install;
mod job;
mod lasting;
mod ledger;
mod leftover;
mod offered;
mod ours;
mod plan;
mod reboot;
mod result;
mod resume;
mod retry;
mod rollback;
mod rollback_words;
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
pub use ours::{holds, our_runtimes};
pub use result::{ChangeReport, Mode, Reboot, RunReport, StepReport};
pub use resume::{UNIT, applied_changes as applied, asked, request};
pub use retry::UNATTENDED_DEADLINE;
pub use rollback::{Rollback, rollback};
pub use runfile::{Progress, RunFile, StepProgress};
pub use status::{Current, StatusSummary, policy, status};
pub use statusfile::{RunFault, RunState, RunStatus, StatusFile};
pub use timing::{Span, SpanEnd, Timing, last_timing};
pub use unattended::start as start_unattended;
pub use uninstall::uninstall;
pub use wait::wait;

use crate::{
    change::{Problem, Verbs},
    check::{Check, FailOn, Finding},
    compat::matrix::Matrix,
    config::{
        desired::{Desired, DriverWish},
        load::Question,
    },
    event::{Event, StepTitle},
    exit::Exit,
    host::{Clock, Host},
    journal::{GoingBack, Policy, Request},
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

/// Everything that a run works with, whatever it is for.
#[derive(Clone)]
pub struct Tools {
    /// The machine.
    pub host: Host,
    /// Applies and undoes changes.
    pub verbs: Arc<dyn Verbs>,
    /// Where events go.
    pub events: Events,
    /// Whether somebody has asked to stop.
    pub cancel: Cancel,
    /// The rest.
    pub options: Options,
}

/// What was asked for, and who asks.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Version of this program.
    pub version: String,
    /// This program, absolute: the resume unit starts it.
    pub exe: Utf8PathBuf,
    /// The request, to be repeated after a reboot.
    pub request: Request,
    /// How packages are changed: `uninstall` reads it in the journal.
    pub policy: Option<Policy>,
    /// From the facts.
    pub instance_id: Option<String>,
    /// From the facts.
    pub boot_id: Option<String>,
    /// How long `install` tries again what passes by itself. After it, nothing new starts. `None`:
    /// it tries nothing again, and takes its time.
    pub deadline: Option<Duration>,
    /// The resume unit started this run.
    pub resumed: bool,
    /// `check`: only these, by name or by the part before a dot.
    pub only: Vec<String>,
    /// `check`: not these.
    pub skip: Vec<String>,
    /// `check`: these are shown as skipped.
    pub ignore: Vec<String>,
    /// `check`: the findings that fail it.
    pub fail_on: Vec<FailOn>,
    /// `check`: unknown findings also fail it.
    pub fail_on_unknown: bool,
}

/// What `check` knows beyond the steps.
pub struct Audit {
    /// The health checks.
    pub checks: Vec<Box<dyn Check>>,
    /// The compatibility matrix.
    pub matrix: Arc<Matrix>,
    /// What is wanted, or why nothing can be wanted on this machine: the steps are not assessed then.
    pub desired: Result<Desired, Unresolvable>,
    /// The rollback under way: then what is wanted is not what the settings say.
    pub back: Option<GoingBack>,
    /// This program has prepared the machine before.
    pub prepared: bool,
    /// Differences from the settings are evaluated, because gpu-bootstrap prepared the machine or settings are given.
    pub compares: bool,
    /// What was proven just now, by `check --prove`. A finding replaces that of the step with its name.
    pub proven: Vec<Finding>,
}

/// What `install` would do.
pub struct Planned {
    pub report: RunReport,
    /// The driver that is wanted, as far as the package lists decide on it.
    pub driver: Option<DriverWish>,
    /// Why what is wanted is wanted.
    pub reasons: Vec<String>,
    /// Why a rollback takes another version than the validated one, if it does.
    pub warning: Option<String>,
}

/// Why nothing can be wanted on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolvable {
    /// The reason, with the compared values.
    pub why: String,
    /// What would help.
    pub hint: Option<String>,
    /// Nothing has to be prepared here, whatever GPUs are seen.
    pub needless: bool,
    /// What would tell whether something can be wanted was not recorded.
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
    checks: Vec<Box<dyn Check>>,
    matrix: Arc<Matrix>,
    unresolvable: Option<Unresolvable>,
    back: Option<GoingBack>,
    prepared: bool,
    compares: bool,
    proven: Vec<Finding>,
}

/// Data that all tasks share.
struct Inner {
    host: Host,
    /// Empty where nothing can be wanted.
    steps: Vec<Box<dyn Step>>,
    /// `None` only for `check`, where nothing can be wanted.
    desired: Option<Arc<Desired>>,
    graph: Graph,
    /// Not known in tests that need none.
    matrix: OnceLock<Arc<Matrix>>,
    /// What was asked; `None` where nothing is asked again.
    question: OnceLock<Question>,
    /// Why the rollback under way takes another version than the proven one, where it does.
    note: OnceLock<String>,
    /// Why what is wanted is wanted.
    reasons: OnceLock<Vec<String>>,
    /// The session that went back to the driver before, if this one has.
    rollback: OnceLock<Box<Session>>,
    /// Of this epoch.
    state: Mutex<Arc<State>>,
    /// What is wanted in this epoch.
    settled: Mutex<Arc<OnceCell<Arc<Desired>>>>,
}

impl Inner {
    /// What is wanted, as far as the state of this epoch decides it: see [`steps::settle`].
    async fn wanted(&self, state: &Arc<State>) -> Option<Arc<Desired>> {
        let desired = self.desired.as_ref()?;
        let settled = self.settled();
        let settle = || async {
            let cx = Cx {
                host: self.host.reader(),
                facts: state.facts(),
                state,
                desired,
                matrix: self.matrix.get().map(|matrix| &**matrix),
            };
            // The step that asks the same question reports why it cannot be answered.
            match steps::settle(&cx).await {
                Ok(Some(settled)) => Arc::new(settled),
                Ok(None) | Err(_) => Arc::clone(desired),
            }
        };
        Some(Arc::clone(settled.get_or_init(settle).await))
    }

    async fn assess(&self, at: usize) -> Assessed {
        let state = self.state();
        let Some(desired) = self.wanted(&state).await else {
            return Err(StepError::Unexpected {
                what: "what is wanted".to_owned(),
                why: "nothing can be wanted on this machine".to_owned(),
            });
        };
        let cx = Cx {
            host: self.host.reader(),
            facts: state.facts(),
            state: &state,
            desired: &desired,
            matrix: self.matrix.get().map(|matrix| &**matrix),
        };
        self.steps[at].assess(&cx).await
    }

    /// This machine becomes an image.
    fn image(&self) -> bool {
        self.desired.as_ref().is_some_and(|desired| desired.image)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn settled(&self) -> Arc<OnceCell<Arc<Desired>>> {
        Arc::clone(&self.settled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets what was read: from now on everything is read anew.
    fn begin_epoch(&self) {
        *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Arc::new(state.next());
    }

    /// From now on the steps know this about the program's own work.
    fn know(&self, ours: Ours) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Arc::new(state.next().knowing(ours));
    }

    fn monotonic(&self) -> Duration {
        self.host.clock.monotonic()
    }
}

impl Session {
    /// Puts the steps in order, for `plan` and `install`.
    ///
    /// # Errors
    /// [`EngineError::Graph`] when the steps cannot be ordered.
    pub fn new(
        tools: Tools,
        steps: Vec<Box<dyn Step>>,
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

    /// The same session, which can ask again, with another driver. Its steps judge by the matrix of the question what they
    /// learn only during the run.
    #[must_use]
    pub fn asking(self, question: Question, reasons: Vec<String>) -> Self {
        self.inner.reasons.get_or_init(|| reasons);
        self.inner
            .matrix
            .get_or_init(|| Arc::clone(&question.matrix));
        self.inner.question.get_or_init(|| question);
        self
    }

    /// Puts the steps in order, for `check`.
    ///
    /// # Errors
    /// [`EngineError::Graph`] when the steps cannot be ordered. [`no_finding`] when a
    /// finding is selected or skipped that does not exist: a misspelt name would be a check that always
    /// passes.
    pub fn audit(
        tools: Tools,
        mut steps: Vec<Box<dyn Step>>,
        state: State,
        audit: Audit,
    ) -> Result<Self, EngineError> {
        // The whole list must have an order, also where only a part of it is assessed.
        let mut graph = Graph::new(&steps)?;
        let Audit {
            mut checks,
            matrix,
            desired,
            back,
            prepared,
            compares,
            proven,
        } = audit;
        let known = (steps.iter().map(|step| step.id()))
            .chain(checks.iter().flat_map(|check| check.ids().to_vec()))
            .chain(proven.iter().map(|finding| finding.id.clone()))
            .chain([check::RESOLVABLE]);
        tools.options.all_known(&known.collect::<Vec<_>>())?;
        let wanted = |id: &str| tools.options.wants(id);
        let keep: Vec<bool> = (steps.iter())
            .map(|step| wanted(step.id().as_str()))
            .collect();
        let (desired, mut unresolvable) = match desired {
            Ok(desired) => (Some(desired), None),
            Err(why) => (None, Some(why)),
        };
        // Somebody who asks only for a step must hear why it is not assessed.
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
        checks.retain(|check| check.ids().iter().any(|id| wanted(id.as_str())));
        let examination = Examination {
            checks,
            matrix,
            unresolvable,
            back,
            prepared,
            compares,
            proven,
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
        (steps, graph): (Vec<Box<dyn Step>>, Graph),
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
                settled: Mutex::default(),
            }),
            tools,
            audit,
        }
    }

    /// What can change about the machine, as of this epoch.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.inner.state()
    }

    /// Looks, and tells what is wrong; changes nothing and leaves no trace.
    pub async fn check(&self) -> RunReport {
        self.look(Mode::Check).await
    }

    /// Looks, and tells what `install` would do, and with which driver, as far as the package lists decide on it; changes
    /// nothing and leaves no trace.
    ///
    /// # Errors
    /// When the journal cannot be read, or the driver of a rollback cannot be had any more.
    pub async fn plan(&self) -> Result<Planned, EngineError> {
        let back = match self.driver_before().await {
            // The plan notes that the journal cannot be read.
            Err(EngineError::Journal(_)) => None,
            back => back?,
        };
        let session = back.as_ref().unwrap_or(self);
        let report = session.look(Mode::Plan).await;
        let desired = session.inner.wanted(&session.inner.state()).await;
        Ok(Planned {
            report,
            driver: desired.and_then(|desired| desired.driver.clone()),
            reasons: session.inner.reasons.get().cloned().unwrap_or_default(),
            warning: session.inner.note.get().cloned(),
        })
    }

    async fn look(&self, mode: Mode) -> RunReport {
        self.announce(mode);
        let look = async {
            self.read_ours();
            let mut jobs = self.survey().await;
            let mut notes = Vec::new();
            self.read_left_over(&mut jobs, &mut notes);
            if mode == Mode::Plan {
                for kept in self.keep_running(&mut jobs).await {
                    self.tools.note(&mut notes, format!("left over: {kept}"));
                }
                self.rehearse(mode, &mut jobs).await;
                if let Some(note) = self.rollback_in_words(&jobs).await {
                    self.tools.note(&mut notes, note);
                }
            }
            self.conclude(mode, &mut jobs);
            // The only other place where `check` and `plan` differ.
            let mut report = match mode {
                Mode::Check => self.findings(jobs).await,
                _ => self.planned(jobs).await,
            };
            notes.append(&mut report.notes);
            report.notes = notes;
            report
        };
        // Assessing can be stopped at any moment.
        let report = tokio::select! {
            biased;
            exit = self.tools.cancel.cancelled() => RunReport {
                mode,
                run: self.tools.events.run().to_owned(),
                exit,
                steps: Vec::new(),
                findings: Vec::new(),
                notes: Vec::new(),
                reboot: None,
                left: Vec::new(),
                seconds: self.tools.events.elapsed().as_secs_f64(),
            },
            report = look => report,
        };
        self.tools.finished(&report);
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
                id: step.id(),
                title: findings::title(&step.id()).to_owned(),
            })
            .collect()
    }
}

impl Options {
    /// Whether a step or a finding of this name was asked for.
    #[must_use]
    pub fn wants(&self, id: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| stands_for(name, id));
        (self.only.is_empty() || named(&self.only)) && !self.skips(id)
    }

    fn skips(&self, id: &str) -> bool {
        self.skip.iter().any(|name| stands_for(name, id))
    }

    /// Whether a finding of this name fails nothing.
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

    /// Starts the timers that a run has paused which was interrupted.
    async fn resume_paused(&self) {
        let sink = events::EventSink {
            events: &self.events,
            steps: &[],
        };
        self.verbs.resume_paused(&sink).await;
    }

    fn finished(&self, report: &RunReport) {
        // The run has ended, whether or not the time that it took can be read.
        let to_ready = (matches!(report.mode, Mode::Install) && report.exit == Exit::Ok)
            .then(|| timing::ready_by(&self.host, &report.run).ok().flatten())
            .flatten();
        self.events.emit(Event::RunFinished {
            summary: report.summary(),
            exit: report.exit.code(),
            seconds: report.seconds,
            to_ready,
        });
    }

    /// Takes the run lock, which keeps a second run of this program away.
    ///
    /// # Errors
    /// While another run holds it: [`Exit::Busy`].
    pub fn lock(&self) -> Result<Box<dyn Send + Sync>, Problem> {
        let folder = Utf8Path::new(RUN);
        let path = folder.join("lock");
        self.host
            .files
            .create_folder(folder, 0o755)
            .map_err(not_locked)?;
        match self.host.files.try_lock(&path).map_err(not_locked)? {
            Some(guard) => Ok(guard),
            None => {
                let holder = self.host.files.read_text(&path).map_err(not_locked)?;
                let holder = holder.unwrap_or_default();
                let what = format!("start the run: another one is running ({})", holder.trim());
                Err(Problem::new("busy", what)
                    .exiting(Exit::Busy)
                    .advice("wait for it; run `gpu-bootstrap status` to follow it"))
            }
        }
    }
}

/// A name for a run: when it began and which process it is.
#[must_use]
pub fn run_id(clock: &dyn Clock) -> String {
    format!(
        "{}-{}",
        clock.now().strftime("%Y%m%dT%H%M%SZ"),
        std::process::id()
    )
}
