//! A machine in memory with an applier and a recording sink.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::Value;

use super::archive::Kind;
use crate::{
    change::{
        Applier, ApplyChanges, Change, ChangeError, Probe, Reverted, RuntimeSettings, Sink, Undo,
        packages::Effects,
    },
    config::desired::{Daemon, Guard, Manager, PackagePolicy, RuntimeKind},
    host::{
        Host,
        fake::{self, Fakes, Snapshot, diff, failed, ok},
    },
    model::document::{FileSettings, Setting},
};

pub(super) const STATE: &str = "/var/lib/gpu-bootstrap";

/// Records all messages.
#[derive(Default)]
pub(super) struct RecordingSink(pub Mutex<Vec<String>>);

impl Sink for RecordingSink {
    fn line(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }

    fn progress(&self, _: u64, _: Option<u64>, _: &str) {}

    fn retry(&self, message: &str, _: f64) {
        self.0.lock().unwrap().push(format!("retry: {message}"));
    }
}

impl RecordingSink {
    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

/// A text or an error contains these words.
#[track_caller]
pub(super) fn says(text: impl ToString, words: &str) {
    let text = text.to_string();
    assert!(text.contains(words), "{text}");
}

/// The effects of a complete transaction.
#[track_caller]
pub(super) fn effects(undo: &Undo) -> &Effects {
    match undo {
        Undo::Packages { effects, .. } => effects.as_deref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A probe that succeeds with one GPU.
pub(in crate::change) fn container_probe(runtime: RuntimeKind, image: Option<&str>) -> Probe {
    Probe::ContainerSeesGpus {
        runtime,
        image: image.map(str::to_owned),
        gpus: 1,
        driver: "1.2".into(),
        uuids: Vec::new(),
        timeout_seconds: 60,
        pull_timeout_seconds: 60,
        archive: None,
    }
}

/// Sets the nvidia runtime entry in a file of a daemon.
pub(super) fn configure(kind: Daemon, path: &str, key: &[&str], entry: Value) -> Change {
    Change::ConfigureRuntime {
        settings: RuntimeSettings {
            kind,
            unit: format!("{}.service", kind.name()),
            files: vec![FileSettings {
                path: path.into(),
                settings: vec![Setting {
                    key: key.iter().map(ToString::to_string).collect(),
                    value: Some(entry),
                }],
            }],
            runtime: "nvidia".into(),
            default: false,
            cdi: false,
            may_stop: false,
        },
    }
}

pub(super) fn policy() -> PackagePolicy {
    PackagePolicy {
        guard: Guard::default(),
        manager: Manager::Apt,
        lock_timeout_seconds: 60,
        proxy: None,
        no_proxy: None,
        pause_units: vec![
            "apt-daily.timer".into(),
            "apt-daily.service".into(),
            "not-there.timer".into(),
        ],
        may_remove: vec![],
        may_upgrade: vec![],
        bundled: None,
    }
}

fn applier(kind: Kind, host: &Host) -> Applier {
    Applier {
        backend: kind.backend(),
        ..Applier::new(host.clone(), policy(), STATE.into())
    }
}

/// A machine in memory and its applier.
pub(super) struct TestMachine {
    pub kind: Kind,
    pub host: Host,
    pub fakes: Fakes,
    pub applier: Applier,
    pub sink: RecordingSink,
    pub units: Units,
}

impl TestMachine {
    pub(super) fn new() -> Self {
        Self::with(Kind::Apt)
    }

    /// A machine with this package manager.
    pub(super) fn with(kind: Kind) -> Self {
        let (host, fakes) = fake::host();
        for directory in ["/etc", "/var/lib", "/proc", "/sys/module", "/boot"] {
            fakes.files.put_directory(directory, 0o755);
        }
        let units = Units::default();
        units.install(&fakes);
        Self {
            kind,
            applier: applier(kind, &host),
            host,
            fakes,
            sink: RecordingSink::default(),
            units,
        }
    }

    /// The same machine after a restart of gpu-bootstrap.
    pub(super) fn restarted(&self) -> Applier {
        applier(self.kind, &self.host)
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.fakes.files.snapshot().without(&[STATE])
    }

    pub(super) async fn apply(&self, change: &Change) -> Result<Undo, ChangeError> {
        let undo = self.applier.capture(change).await?;
        // The journal must store the undo without loss.
        let text = serde_json::to_string(&undo).unwrap();
        assert_eq!(serde_json::from_str::<Undo>(&text).unwrap(), undo);
        let applied = self.applier.apply(change, undo, &self.sink).await;
        let is_safe = applied.is_err() || !self.fakes.files.is_unsynced();
        assert!(
            is_safe,
            "a power loss would remove the effect of `{}`",
            change.summary()
        );
        applied
    }

    /// Applies a change that fails.
    pub(super) async fn fails(&self, change: &Change) -> ChangeError {
        self.apply(change).await.unwrap_err()
    }

    pub(super) async fn capture(&self, change: &Change) -> Undo {
        self.applier.capture(change).await.unwrap()
    }

    /// Applies a change after [`TestMachine::capture`].
    pub(super) async fn apply_captured(
        &self,
        change: &Change,
        undo: &Undo,
    ) -> Result<Undo, ChangeError> {
        (self.applier.apply(change, undo.clone(), &self.sink)).await
    }

    /// Returns when gpu-bootstrap has waited several times.
    pub(super) async fn waits(&self) {
        while self.fakes.clock.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn reconcile(&self, undo: &Undo) -> Undo {
        self.applier.reconcile(undo, &self.sink).await.unwrap()
    }

    pub(super) async fn preview(&self, change: &Change) -> String {
        self.applier.preview(change).await.unwrap().unwrap()
    }

    /// Reconciles after a restart of gpu-bootstrap.
    pub(super) async fn recover(&self, undo: &Undo) -> Undo {
        self.restarted().reconcile(undo, &self.sink).await.unwrap()
    }

    pub(super) async fn revert(&self, undo: &Undo) -> Reverted {
        let reverted = self.applier.revert(undo, &self.sink).await.unwrap();
        assert!(
            !self.fakes.files.is_unsynced(),
            "a power loss would bring the change back"
        );
        reverted
    }

    /// Reverts completely. Returns the description.
    pub(super) async fn reverts(&self, undo: &Undo) -> String {
        match self.revert(undo).await {
            Reverted::Done { what } => what,
            other => panic!("{other:?}"),
        }
    }

    /// Reverts in part. Returns the rest, and the reason.
    pub(super) async fn reverts_in_part(&self, undo: &Undo) -> (String, String) {
        match self.revert(undo).await {
            Reverted::Left { what, why } => (what, why),
            other => panic!("{other:?}"),
        }
    }

    /// There is nothing to revert.
    pub(super) async fn reverts_nothing(&self, undo: &Undo) {
        let reverted = self.revert(undo).await;
        assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    }

    /// Applies a change, checks that it had an effect, undoes it, and checks that nothing remains.
    pub(super) async fn apply_and_undo(&self, change: &Change) -> (Undo, Reverted) {
        let (before, units) = (self.snapshot(), self.units.all());
        let undo = self.apply(change).await.unwrap();
        let changed = self.snapshot() != before || self.units.all() != units;
        assert!(changed, "{} changed nothing", change.summary());
        let reverted = self.revert(&undo).await;
        let left = diff(&before, &self.snapshot());
        assert!(left.is_empty(), "left by {}: {left:#?}", change.summary());
        assert_eq!(self.units.all(), units, "{}", change.summary());
        (undo, reverted)
    }
}

/// Units by name: file state and active state.
#[derive(Clone, Default)]
pub(super) struct Units(Arc<Mutex<BTreeMap<String, (String, String)>>>);

impl Units {
    pub(super) fn put(&self, unit: &str, file: &str, active: &str) {
        self.0
            .lock()
            .unwrap()
            .insert(unit.into(), (file.into(), active.into()));
    }

    pub(super) fn all(&self) -> BTreeMap<String, (String, String)> {
        self.0.lock().unwrap().clone()
    }

    fn install(&self, fakes: &Fakes) {
        let units = self.0.clone();
        fakes.exec.on("systemctl", move |cmd, _| {
            let mut units = units.lock().unwrap();
            let verb = cmd.args[0].as_str();
            let unit = cmd.args.last().cloned().unwrap_or_default();
            if cmd.args.iter().any(|arg| arg.contains("NeedDaemonReload")) {
                return ok("NeedDaemonReload=no\n");
            }
            if verb == "daemon-reload" {
                return ok("");
            }
            let Some((file, active)) = units.get_mut(&unit) else {
                return if verb == "show" {
                    ok("LoadState=not-found\nActiveState=inactive\nUnitFileState=\nResult=success\n")
                } else {
                    failed(5, format!("Unit {unit} not loaded."))
                };
            };
            match verb {
                "show" => {
                    let is_masked = file.starts_with("masked");
                    let load = if is_masked { "masked" } else { "loaded" };
                    return ok(format!(
                        "LoadState={load}\nActiveState={active}\nUnitFileState={file}\n\
                         Result={}\n",
                        if active == "failed" { "exit-code" } else { "success" }
                    ));
                }
                "enable" => *file = "enabled".into(),
                "disable" => *file = "disabled".into(),
                "mask" => *file = "masked".into(),
                // The links of an enabled unit stay. The restored state is enabled again in both cases.
                "unmask" => *file = "disabled".into(),
                "stop" => *active = "inactive".into(),
                "start" | "restart" if file == "masked" => {
                    return failed(1, format!("Failed to {verb} {unit}: Unit {unit} is masked."));
                }
                // A unit with this name never becomes active.
                "start" | "restart" if unit.starts_with("broken") => {
                    *active = "failed".into();
                    return failed(1, "Job for unit failed.");
                }
                "start" | "restart" => *active = "active".into(),
                "reload" if active == "active" => {}
                "reset-failed" => *active = "inactive".into(),
                _ => return failed(1, format!("Unknown command verb {verb}.")),
            }
            ok("")
        });
        fakes
            .exec
            .on("journalctl", |_, _| ok("cannot open /dev/nvidiactl\n"));
    }
}
