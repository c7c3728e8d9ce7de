//! The test harness [`Rig`], and fake appliers that act on the files of a fake machine.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::failures::{broken, changed_since, mirror_answers_503, refused};
pub use super::reading::{blocked, outcome, outcomes, satisfied, why};
pub use super::small::{
    Small, exists, file, fixed, install, needs, packages, reboots, specs, step, write,
};
use crate::{
    change::{
        ApplyChanges, Change, ChangeError, FileAfter, FileBefore, FollowUp, NoChanges, RestoreUnit,
        ReturnToService, Reverted, Saved, Sink, Undo,
        packages::{Effects, Reduced, Simulation},
    },
    check::{FailOn, Family},
    config::desired::Desired,
    engine::{
        Audit, Cancel, EngineError, Options, RunReport, Session, Tools, Unresolvable, events,
        uninstall,
    },
    event::{Envelope, Event, Subscriber},
    facts::Facts,
    host::{
        Host,
        fake::{self, Fakes},
    },
    journal::RollbackStarted,
    model::secret::Secrets,
    steps::fixtures,
};

/// The directory of enabled units.
pub const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";

/// The dry run of a write of this file does not end.
pub const ENDLESS: &str = "/endless";

type Hook = Box<dyn FnMut(&Change) + Send>;
type DryRun = Box<dyn FnMut(&Change) -> Result<(), ChangeError> + Send>;

/// Appliers for a fake machine: packages are files in `/packages`, and enabled units are files
/// where systemd has symlinks. The content of a saved file is stored in place of its digest.
pub struct FileChanges {
    pub host: Host,
    pub log: Mutex<Vec<String>>,
    /// The number of attempts to restart paused units.
    pub resumed: Mutex<u32>,
    /// A change or undo whose summary contains this text fails after it has done its work.
    pub fails: Mutex<Option<String>>,
    /// A change whose summary contains this text fails without an effect.
    pub refuses: Mutex<Option<String>>,
    /// Called for each dry run.
    pub dry_run_of_change: Mutex<DryRun>,
    /// The number of dry runs in progress, and its maximum.
    pub dry_running: Mutex<(u32, u32)>,
    /// The effects of a change cannot be determined.
    pub blind: Mutex<bool>,
    /// The number of further package transactions that fail with a transient error.
    pub late: Mutex<u32>,
    /// The number of scheduler turns that a package transaction takes.
    pub turns: Mutex<u32>,
    /// If set, package transactions and their undo wait until this is cancelled, and then fail.
    pub waits: Mutex<Option<Cancel>>,
    /// Called before each change is applied.
    pub before: Mutex<Hook>,
}

impl FileChanges {
    fn waits(&self) -> Option<Cancel> {
        self.waits.lock().unwrap().clone()
    }

    fn names(&self) -> Result<Vec<String>, ChangeError> {
        self.host
            .files
            .list(Utf8Path::new("/packages"))
            .map_err(broken)
    }

    fn act(&self, change: &Change) -> Result<(), ChangeError> {
        let files = &self.host.files;
        match change {
            Change::WriteFile { path, content, .. } => files
                .write(path, content.as_bytes(), 0o644)
                .map_err(broken)?,
            Change::InstallPackages { packages, .. } => {
                for package in packages {
                    let path = format!("/packages/{}", package.name);
                    files.write((&*path).into(), b"", 0o644).map_err(broken)?;
                }
            }
            Change::EnableUnit { unit, .. } => {
                let path = Utf8PathBuf::from(format!("{WANTS}/{unit}"));
                files.write(&path, b"", 0o644).map_err(broken)?;
            }
            Change::BuildModule { module, .. } => {
                let path = Utf8PathBuf::from(format!("/built/{module}"));
                files.write(&path, b"", 0o644).map_err(broken)?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[async_trait]
impl ApplyChanges for FileChanges {
    fn anew(&self, _: &Desired, _: BTreeSet<String>) -> Arc<dyn ApplyChanges> {
        Arc::new(NoChanges)
    }

    async fn resume_paused(&self, _: &dyn Sink) {
        *self.resumed.lock().unwrap() += 1;
    }

    async fn preview(&self, change: &Change) -> Result<Option<String>, ChangeError> {
        match change {
            Change::WriteFile { content, .. } => Ok(Some(format!("+{content}"))),
            _ => Ok(None),
        }
    }

    async fn dry_run(&self, change: &Change) -> Result<(), ChangeError> {
        {
            let (running, most) = &mut *self.dry_running.lock().unwrap();
            *running += 1;
            *most = (*most).max(*running);
        }
        if matches!(change, Change::WriteFile { path, .. } if path == ENDLESS) {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        self.dry_running.lock().unwrap().0 -= 1;
        (self.dry_run_of_change.lock().unwrap())(change)
    }

    async fn simulate_installs(&self, changes: &[&Change]) -> Vec<Simulation> {
        let simulated = |change: &&Change| match (self.dry_run_of_change.lock().unwrap())(change) {
            Ok(()) => Simulation::Unknown(broken("unable to locate package")),
            Err(error) => Simulation::Rejected(error),
        };
        changes.iter().map(simulated).collect()
    }

    async fn capture(&self, change: &Change) -> Result<Undo, ChangeError> {
        if let Change::WriteFile {
            path,
            over: Some(over),
            ..
        } = change
            && self.host.files.read_text(path).map_err(broken)?.as_ref() != Some(over)
        {
            return Err(changed_since(path.as_str()));
        }
        Ok(match change {
            Change::WriteFile { path, .. } => Undo::RestoreFiles {
                files: vec![FileBefore {
                    path: path.clone(),
                    before: self
                        .host
                        .files
                        .read_text(path)
                        .map_err(broken)?
                        .map(|content| Saved {
                            sha256: content,
                            mode: 0o644,
                            uid: 0,
                            gid: 0,
                            link: None,
                        }),
                    after: FileAfter::Unknown,
                }],
                created_directories: Vec::new(),
                daemon: None,
            },
            Change::InstallPackages { .. } => Undo::Packages {
                transaction: self.names()?.join(" "),
                effects: None,
            },
            Change::EnableUnit { unit, start } => Undo::RestoreUnit(RestoreUnit {
                unit: unit.clone(),
                enabled: false,
                masked: false,
                active: start.then_some(false),
                unmask: false,
            }),
            Change::LeaveService { leave } => Undo::ReturnToService(ReturnToService {
                lock: leave.lock.clone(),
                method: leave.method.clone(),
                drain_seconds: leave.drain_seconds,
            }),
            Change::RebuildInitramfs { kernels } => Undo::FollowUp {
                then: (kernels.iter())
                    .map(|kernel| FollowUp::RebuildInitramfs {
                        kernel: kernel.clone(),
                    })
                    .collect(),
            },
            _ => Undo::Nothing {
                why: "no undo".to_owned(),
            },
        })
    }

    async fn apply(
        &self,
        change: &Change,
        undo: Undo,
        sink: &dyn Sink,
    ) -> Result<Undo, ChangeError> {
        let summary = change.summary();
        self.log.lock().unwrap().push(summary.clone());
        (self.before.lock().unwrap())(change);
        if let (Change::InstallPackages { .. }, Some(cancel)) = (change, self.waits()) {
            cancel.cancelled().await;
            return Err(ChangeError::stopped("wait for another package manager"));
        }
        if matches!(change, Change::InstallPackages { .. }) {
            let turns = *self.turns.lock().unwrap();
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            let mut late = self.late.lock().unwrap();
            if *late > 0 {
                *late -= 1;
                return Err(mirror_answers_503());
            }
        }
        if matches!(change, Change::BuildModule { .. }) {
            // A module build takes longer than all other work.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
        let refuses = self.refuses.lock().unwrap().clone();
        if refuses.is_some_and(|refuses| summary.contains(&refuses)) {
            return Err(refused());
        }
        sink.line("working");
        self.act(change)?;
        tokio::task::yield_now().await;
        let fails = self.fails.lock().unwrap().clone();
        if fails.is_some_and(|fails| summary.contains(&fails)) {
            return Err(broken("exited with status 100"));
        }
        self.reconcile(&undo, sink).await
    }

    async fn reconcile(&self, undo: &Undo, _: &dyn Sink) -> Result<Undo, ChangeError> {
        if *self.blind.lock().unwrap() {
            return Err(broken("another program is working"));
        }
        Ok(match undo {
            Undo::Packages {
                transaction: before,
                ..
            } => {
                let names: BTreeSet<&str> = before.split(' ').collect();
                Undo::Packages {
                    transaction: before.clone(),
                    effects: Some(Box::new(Effects {
                        appeared: self
                            .names()?
                            .into_iter()
                            .filter(|name| !names.contains(name.as_str()))
                            .collect(),
                        ..Effects::default()
                    })),
                }
            }
            other => other.clone(),
        })
    }

    async fn revert(&self, undo: &Undo, _sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        let files = &self.host.files;
        let what = match undo {
            Undo::RestoreFiles { files: saved, .. } => {
                for one in saved {
                    match &one.before {
                        Some(before) => {
                            files.write(&one.path, before.sha256.as_bytes(), before.mode)
                        }
                        None => files.remove(&one.path),
                    }
                    .map_err(broken)?;
                }
                let each: Vec<String> = (saved.iter())
                    .map(|one| format!("restore {}", one.path))
                    .collect();
                each.join("; ")
            }
            Undo::Packages { effects, .. } => {
                let names: Vec<String> = effects
                    .iter()
                    .flat_map(|effects| effects.appeared.clone())
                    .collect();
                for name in &names {
                    let path = Utf8PathBuf::from(format!("/packages/{name}"));
                    files.remove(&path).map_err(broken)?;
                }
                format!("purge {}", names.join(" "))
            }
            Undo::RestoreUnit(RestoreUnit { unit, .. }) => {
                let path = Utf8PathBuf::from(format!("{WANTS}/{unit}"));
                files.remove(&path).map_err(broken)?;
                format!("disable {unit}")
            }
            Undo::ReturnToService(_) => "return to service".to_owned(),
            _ => "nothing".to_owned(),
        };
        if let (Undo::Packages { .. }, Some(cancel)) = (undo, self.waits()) {
            cancel.cancelled().await;
            return Err(ChangeError::stopped("wait for another package manager"));
        }
        self.log.lock().unwrap().push(what.clone());
        let fails = self.fails.lock().unwrap().clone();
        if fails.is_some_and(|fails| what.contains(&fails)) {
            return Ok(Reverted::Left {
                what,
                why: "in use".to_owned(),
            });
        }
        Ok(Reverted::Done { what })
    }

    async fn reduce(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        _: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Reduced, ChangeError> {
        super::obsolete::part(self, undo, wanted, sink).await
    }
}

/// A fake machine with steps and appliers.
pub struct Rig {
    pub fakes: Fakes,
    pub change_applier: Arc<FileChanges>,
    pub cancel: Cancel,
    pub secrets: Secrets,
    pub options: Options,
    pub image: bool,
    /// The machine has no GPU, so no driver is configured.
    pub no_gpu: bool,
    /// Additional settings.
    pub settings: fn(&mut Desired),
    pub back: Option<RollbackStarted>,
    pub unresolvable: Option<Unresolvable>,
    pub prepared: bool,
    pub compares: bool,
    pub facts: Facts,
    /// Packages in the desired state.
    pub wanted: Vec<&'static str>,
    pub steps: Vec<Small>,
    pub checks: &'static [Family],
    pub events: Arc<Mutex<Vec<Envelope>>>,
}

impl Rig {
    /// All files of the machine as text.
    pub fn tree(&self) -> String {
        self.fakes.files.snapshot().text()
    }

    pub fn new(steps: impl IntoIterator<Item = Small>) -> Self {
        let (host, fakes) = fake::host();
        fakes.files.put_directory("/packages", 0o755);
        fakes.files.put_directory("/etc/modprobe.d", 0o755);
        fakes.files.put_directory(WANTS, 0o755);
        // The first write would create these directories, and `uninstall` would not remove them.
        fakes.files.put_directory("/var/lib", 0o755);
        fakes.files.put_directory("/run", 0o755);
        Self {
            change_applier: Arc::new(FileChanges {
                host,
                log: Mutex::default(),
                resumed: Mutex::default(),
                fails: Mutex::default(),
                refuses: Mutex::default(),
                dry_run_of_change: Mutex::new(Box::new(|_| Ok(()))),
                dry_running: Mutex::default(),
                blind: Mutex::default(),
                late: Mutex::default(),
                turns: Mutex::default(),
                waits: Mutex::default(),
                before: Mutex::new(Box::new(|_| {})),
            }),
            fakes,
            cancel: Cancel::new(),
            secrets: Secrets::default(),
            options: Options {
                version: "0.0.0".to_owned(),
                exe: "/usr/local/bin/gpu-bootstrap".into(),
                boot_id: Some("boot-1".to_owned()),
                instance_id: Some("i-1".to_owned()),
                fail_on: vec![FailOn::Fail],
                ..Options::default()
            },
            image: false,
            no_gpu: false,
            settings: |_| {},
            back: None,
            unresolvable: None,
            prepared: false,
            compares: true,
            facts: fixtures::facts(),
            wanted: Vec::new(),
            steps: steps.into_iter().collect(),
            checks: &[],
            events: Arc::default(),
        }
    }

    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.change_applier.log.lock().unwrap())
    }

    /// Returns the kinds of the events since the last call.
    pub fn kinds(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.lock().unwrap())
            .into_iter()
            .map(|envelope| {
                let value = serde_json::to_value(&envelope.event).unwrap();
                value["kind"].as_str().unwrap().to_owned()
            })
            .collect()
    }

    pub fn seen(&self) -> Vec<Event> {
        self.events
            .lock()
            .unwrap()
            .iter()
            .map(|envelope| envelope.event.clone())
            .collect()
    }

    pub fn tools(&self, run: &str) -> (Tools, events::Reporter) {
        let host = self.fakes.host();
        let memory: Box<dyn Subscriber> = Box::new(super::memory::Memory(Arc::clone(&self.events)));
        let (events, reporter) =
            events::start(run, host.clock.clone(), &self.secrets, vec![memory]).unwrap();
        let tools = Tools {
            host,
            change_applier: self.change_applier.clone(),
            events,
            cancel: self.cancel.clone(),
            options: self.options.clone(),
        };
        (tools, reporter)
    }

    pub fn session(&self, tools: Tools) -> Session {
        self.try_session(tools).unwrap()
    }

    /// Returns the error of a run that is rejected before it starts.
    pub fn refused(&self) -> EngineError {
        let (tools, reporter) = self.tools("refused");
        let error = self.try_session(tools).err().unwrap();
        reporter.finish();
        error
    }

    fn try_session(&self, tools: Tools) -> Result<Session, EngineError> {
        let steps = self.steps.iter().map(|small| small.0.clone()).collect();
        let mut desired = fixtures::desired();
        desired.image = self.image;
        desired.headers = specs(&self.wanted);
        if self.no_gpu {
            (desired.driver, desired.toolkit) = (None, None);
        }
        (self.settings)(&mut desired);
        let state = fixtures::state(&tools.host, self.facts.clone());
        let audit = Audit {
            validated: Vec::new(),
            failed_upgrade: None,
            checks: self.checks,
            matrix: fixtures::matrix(),
            desired: match &self.unresolvable {
                Some(why) => Err(why.clone()),
                None => Ok(desired),
            },
            back: self.back.clone(),
            prepared: self.prepared,
            compares: self.compares,
        };
        Session::audit(tools, steps, state, audit)
    }

    pub async fn install(&self) -> Result<RunReport, EngineError> {
        let (tools, reporter) = self.tools("run");
        let report = self.session(tools).install().await;
        reporter.finish();
        report
    }

    pub async fn plan(&self) -> RunReport {
        let (tools, reporter) = self.tools("plan");
        let report = self.session(tools).plan().await.unwrap().report;
        reporter.finish();
        report
    }

    pub async fn check(&self) -> RunReport {
        let (tools, reporter) = self.tools("check");
        let report = self.session(tools).check().await;
        reporter.finish();
        report
    }

    pub async fn uninstall(&self) -> Result<RunReport, EngineError> {
        let (tools, reporter) = self.tools("undo");
        let report = uninstall(&tools, &[]).await;
        reporter.finish();
        report
    }
}
