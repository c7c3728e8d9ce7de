//! Tests transactions that are interrupted, stopped or retried while other programs change packages: which changes are ours.

use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Break, Kind, Offered, hold_lock, release_lock},
    kit::{RecordingSink, STATE, TestMachine},
    packages::{docker, install, spec},
    with_each_manager,
};
use crate::{
    change::{Applier, ApplyChanges, Change, Reverted, STOPPED, Undo},
    error::Report,
    host::{
        ReadFiles as _,
        exec::Status,
        fake::{diff, ok},
    },
    tools::packages::Action,
};

with_each_manager! {
    foreign_packages_are_not_ours_after_stop
    only_packages_of_the_first_attempt_are_ours
    packages_of_a_failed_attempt_are_undone
    package_manager_of_killed_run_is_awaited
    later_changes_survive_undo_of_an_interruption
    inventory_of_an_unfinished_command_is_kept
    stopped_undo_completes_in_the_next_run
}

const LOCKED: &str = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812";
/// A package script fails with a network error after its package was unpacked.
const HALF_WAY: &str = "curl: (28) Connection timed out\n\
                        dpkg: error processing package docker.io (--configure):\n \
                        installed docker.io package post-installation script subprocess returned \
                        error exit status 28";

/// The administrator installs a package.
fn vim_comes(machine: &TestMachine, apt: &Archive) {
    apt.have("vim", "9");
    apt.write(&machine.fakes.files);
}

fn appeared(undo: &Undo) -> Vec<&str> {
    let Undo::Packages {
        effects: Some(effects),
        ..
    } = undo
    else {
        panic!("{undo:?}");
    };
    effects.appeared.iter().map(String::as_str).collect()
}

/// Applies a change until it waits for the lock of another program, which installs a package. Then requests a stop. Returns the
/// undo that is known while the other program is running.
async fn stopped_while_waiting(machine: &TestMachine, apt: &Archive, change: &Change) -> Undo {
    let stop = CancellationToken::new();
    let applier = machine.restarted().stopped_by(stop.clone());
    let undo = applier.capture(change).await.unwrap();
    let clock = machine.fakes.clock.clone();
    let (ended, ()) = tokio::join!(applier.apply(change, undo.clone(), &machine.sink), async {
        while clock.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
        vim_comes(machine, apt);
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    assert!(machine.sink.text().contains("unattended-upgr"));
    applier.reconcile(&undo, &machine.sink).await.unwrap()
}

async fn foreign_packages_are_not_ours_after_stop(kind: Kind) {
    let (machine, apt) = docker(kind);
    *apt.breaks.lock().unwrap() = vec![Break {
        meanwhile: hold_lock,
        ..Break::after(0, LOCKED)
    }];
    let undo = stopped_while_waiting(&machine, &apt, &install(&["docker.io"])).await;
    assert!(undo.is_nothing(), "{undo:?}");
    release_lock(&machine.fakes.files);
    machine.revert(&undo).await;
    assert!(apt.installed.lock().unwrap().contains_key("vim"));
}

async fn only_packages_of_the_first_attempt_are_ours(kind: Kind) {
    let (machine, apt) = docker(kind);
    *apt.breaks.lock().unwrap() = vec![
        Break {
            meanwhile: hold_lock,
            ..Break::after(0, LOCKED)
        },
        Break::after(1, HALF_WAY),
    ];
    let undo = stopped_while_waiting(&machine, &apt, &install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["runc"]);
    release_lock(&machine.fakes.files);
    machine.revert(&undo).await;
    let left = apt.installed.lock().unwrap();
    assert!(left.contains_key("vim") && !left.contains_key("runc"));
}

async fn packages_of_a_failed_attempt_are_undone(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
    let (undo, _) = machine.apply_and_undo(&install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    assert!(machine.sink.text().contains("retry: install packages"));
    assert!(!machine.fakes.clock.slept().is_empty());
}

async fn package_manager_of_killed_run_is_awaited(kind: Kind) {
    let (machine, apt) = docker(kind);
    let before = machine.snapshot();
    let change = install(&["docker.io"]);
    *apt.breaks.lock().unwrap() = vec![Break {
        status: Status::Signalled(9),
        meanwhile: hold_lock,
        ..Break::after(1, "")
    }];
    let undo = machine.applier.capture(&change).await.unwrap();
    let failed = machine
        .applier
        .apply(&change, undo.clone(), &machine.sink)
        .await;
    assert_eq!(failed.unwrap_err().reason(), "package-manager");
    // While the package manager is running, its effects are unknown and cannot be undone.
    let error = machine
        .applier
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "package-lock-timeout");
    let error = machine
        .applier
        .revert(&undo, &machine.sink)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "package-lock-timeout");
    apt.have("docker.io", "20.10.24");
    apt.write(&machine.fakes.files);
    release_lock(&machine.fakes.files);
    let undo = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    machine.revert(&undo).await;
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

async fn later_changes_survive_undo_of_an_interruption(kind: Kind) {
    for n in 1.. {
        let (machine, apt) = docker(kind);
        machine.units.put("apt-daily.timer", "enabled", "active");
        *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
        let change = install(&["docker.io"]);
        let undo = machine.applier.capture(&change).await.unwrap();
        let (before, units) = (machine.snapshot(), machine.units.all());
        machine.fakes.files.kill_at(n);
        // The process is dead, so its result is lost.
        let _said = machine
            .applier
            .apply(&change, undo.clone(), &RecordingSink::default())
            .await;
        let killed = machine.fakes.files.killed();
        machine.fakes.files.revive();
        // The administrator changes the machine before the next run.
        vim_comes(&machine, &apt);
        let restarted = machine.restarted();
        restarted.resume_paused(&machine.sink).await;
        let undo = restarted.reconcile(&undo, &machine.sink).await.unwrap();
        restarted.revert(&undo, &machine.sink).await.unwrap();
        assert!(apt.installed.lock().unwrap().remove("vim").is_some(), "{n}");
        apt.write(&machine.fakes.files);
        let left = diff(&before, &machine.snapshot());
        assert_eq!(left, Vec::<String>::new(), "interrupted at {n}");
        assert_eq!(machine.units.all(), units, "interrupted at {n}");
        if !killed {
            assert!(n > 5, "it writes more often than {n} times");
            return;
        }
    }
}

async fn inventory_of_an_unfinished_command_is_kept(kind: Kind) {
    let (machine, apt) = docker(kind);
    let undo = machine
        .applier
        .capture(&install(&["docker.io"]))
        .await
        .unwrap();
    let Undo::Packages { transaction, .. } = &undo else {
        panic!("{undo:?}");
    };
    let comes = |name: &str| {
        [Action::Install {
            name: name.to_owned(),
            from: None,
            to: "1".to_owned(),
        }]
    };
    (machine
        .applier
        .record_start(transaction, &comes("runc"))
        .await)
        .unwrap();
    apt.have("runc", "1.1.5");
    apt.write(&machine.fakes.files);
    (machine
        .applier
        .record_start(transaction, &comes("docker.io"))
        .await)
        .unwrap();
    apt.have("docker.io", "20.10.24");
    apt.write(&machine.fakes.files);
    let undo = machine
        .applier
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
}

async fn stopped_undo_completes_in_the_next_run(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("podman", Offered::new("4", &[]));
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    let undo = machine
        .apply(&Change::InstallPackages {
            packages: vec![spec("docker.io", None)],
            removing: vec!["podman".into()],
            later: false,
        })
        .await
        .unwrap();
    *apt.breaks.lock().unwrap() = vec![Break {
        meanwhile: hold_lock,
        ..Break::after(0, LOCKED)
    }];
    let stop = CancellationToken::new();
    let applier: Applier = machine.restarted().stopped_by(stop.clone());
    let clock = machine.fakes.clock.clone();
    let (ended, ()) = tokio::join!(applier.revert(&undo, &machine.sink), async {
        while clock.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    release_lock(&machine.fakes.files);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let now = apt.installed.lock().unwrap();
    assert!(now.contains_key("podman") && !now.contains_key("docker.io"));
}

#[tokio::test]
async fn transactions_that_are_undone_together_leave_no_record() {
    let (machine, apt) = docker(Kind::Apt);
    for name in ["podman", "vim"] {
        apt.offer(name, Offered::new("4", &[]));
    }
    let mut undo: Option<Undo> = None;
    for name in ["docker.io", "podman", "vim"] {
        let newer = machine.apply(&install(&[name])).await.unwrap();
        undo = Some(match undo {
            Some(older) => newer.merge(&older).unwrap(),
            None => newer,
        });
    }
    let records = || (machine.fakes.files).list(format!("{STATE}/transactions").as_str().into());
    assert_eq!(records().unwrap().len(), 3);
    let reverted = machine.revert(&undo.unwrap()).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert_eq!(records().unwrap(), Vec::<String>::new());
    let installed = apt.installed.lock().unwrap();
    assert!(!installed.contains_key("docker.io") && !installed.contains_key("vim"));
}

/// A later version must be able to identify the format.
#[tokio::test]
async fn record_contains_its_schema() {
    let (machine, _) = docker(Kind::Apt);
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    let Undo::Packages { transaction, .. } = &undo else {
        panic!("{undo:?}");
    };
    machine
        .applier
        .record_start(transaction, &[])
        .await
        .unwrap();
    let path = format!("{STATE}/transactions/{transaction}.json");
    let record: serde_json::Value = serde_json::from_str(&machine.fakes.files.text(&path)).unwrap();
    assert_eq!(record["schema"], 1, "{record}");
    assert_eq!(record["running"]["before"]["schema"], 1, "{record}");
}

#[tokio::test]
async fn unconfigured_packages_are_configured_before_removal() {
    let (machine, apt) = docker(Kind::Apt);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let half = |name: &str| apt.installed.lock().unwrap().get_mut(name).unwrap().half = true;
    half("docker.io");
    apt.write(&machine.fakes.files);
    machine.fakes.exec.clear_log();
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let lines = machine.fakes.exec.lines();
    let at = |words: &str| lines.iter().position(|line| line.contains(words));
    let configured = at(" --configure ");
    assert!(
        configured.is_some() && configured < at(" purge "),
        "{lines:#?}"
    );
}

/// The package manager may resolve a removal by installing a replacement package, which is not approved.
#[tokio::test]
async fn undo_installs_no_replacement_packages() {
    let (machine, apt) = docker(Kind::Apt);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    machine.fakes.exec.on("apt-get", |cmd, _| {
        let simulated = cmd.args.iter().any(|arg| arg == "-s");
        assert!(simulated, "only simulated: {}", cmd.line());
        ok("Remv docker.io [20.10.24]\nRemv runc [1.1.5]\nInst podman (4 Archive [amd64])\n")
    });
    let reverted = machine.revert(&undo).await;
    let Reverted::Left { why, .. } = &reverted else {
        panic!("{reverted:?}");
    };
    assert!(why.contains("would install podman 4"), "{why}");
    assert!(apt.installed.lock().unwrap().contains_key("docker.io"));
}

/// A package manager was interrupted under an earlier version of gpu-bootstrap, and this version undoes it.
#[tokio::test]
async fn record_of_an_earlier_version_is_undone() {
    let name = "20261101T101112.000000000-1";
    let sample = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/journals/transactions/20261101T101112.000000000-1.json"
    ));
    let (machine, apt) = docker(Kind::Apt);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    let before = machine.snapshot();
    // `runc` was installed by a complete command, `docker.io` by an interrupted one, and the administrator installed `vim`
    // afterwards.
    for (package, version) in [("runc", "1.1.5"), ("docker.io", "20.10.24"), ("vim", "9")] {
        apt.have(package, version);
    }
    apt.write(&machine.fakes.files);
    let path = format!("{STATE}/transactions/{name}.json");
    machine.fakes.files.put(&path, sample);
    let undo = Undo::Packages {
        transaction: name.to_owned(),
        effects: None,
    };
    let undo = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert!(apt.installed.lock().unwrap().remove("vim").is_some());
    apt.write(&machine.fakes.files);
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}
