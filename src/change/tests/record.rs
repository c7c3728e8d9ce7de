//! Tests transactions that are interrupted, stopped or retried while other programs change packages: which changes are ours.

use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Break, Kind, Offered, hold_lock, release_lock},
    kit::{RecordingSink, STATE, TestMachine, effects, says},
    packages::{docker, install, replace, spec},
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, Change, STOPPED, Undo},
    error::Report,
    host::{
        ReadFiles as _,
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
fn vim_comes(apt: &Archive) {
    apt.have("vim", "9");
}

fn appeared(undo: &Undo) -> Vec<&str> {
    effects(undo).appeared.iter().map(String::as_str).collect()
}

/// Applies a change until it waits for the lock of another program, which installs a package. Then requests a stop. Returns the
/// undo that is known while the other program is running.
async fn stopped_while_waiting(machine: &TestMachine, apt: &Archive, change: &Change) -> Undo {
    let stop = CancellationToken::new();
    let applier = machine.restarted().stopped_by(stop.clone());
    let undo = applier.capture(change).await.unwrap();
    let (ended, ()) = tokio::join!(applier.apply(change, undo.clone(), &machine.sink), async {
        machine.waits().await;
        vim_comes(apt);
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    says(machine.sink.text(), "unattended-upgr");
    applier.reconcile(&undo, &machine.sink).await.unwrap()
}

async fn foreign_packages_are_not_ours_after_stop(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.events().breaks = vec![Break::after(0, LOCKED).meanwhile(hold_lock)];
    let undo = stopped_while_waiting(&machine, &apt, &install(&["docker.io"])).await;
    assert!(undo.is_nothing(), "{undo:?}");
    release_lock(&machine.fakes.files);
    machine.revert(&undo).await;
    assert!(apt.has("vim"));
}

async fn only_packages_of_the_first_attempt_are_ours(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.events().breaks = vec![
        Break::after(0, LOCKED).meanwhile(hold_lock),
        Break::after(1, HALF_WAY),
    ];
    let undo = stopped_while_waiting(&machine, &apt, &install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["runc"]);
    release_lock(&machine.fakes.files);
    machine.revert(&undo).await;
    assert!(apt.has("vim") && !apt.has("runc"));
}

async fn packages_of_a_failed_attempt_are_undone(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.events().breaks = vec![Break::after(1, HALF_WAY)];
    let (undo, _) = machine.apply_and_undo(&install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    assert!(machine.sink.text().contains("retry: install packages"));
    assert!(!machine.fakes.clock.slept().is_empty());
}

async fn package_manager_of_killed_run_is_awaited(kind: Kind) {
    let (machine, apt) = docker(kind);
    let before = machine.snapshot();
    let change = install(&["docker.io"]);
    apt.events().breaks = vec![Break::after(1, "").killed().meanwhile(hold_lock)];
    let undo = machine.capture(&change).await;
    let failed = machine.apply_captured(&change, &undo).await;
    assert_eq!(failed.unwrap_err().reason(), "package-manager");
    // While the package manager is running, its effects are unknown and cannot be undone.
    let reconciled = machine.applier.reconcile(&undo, &machine.sink).await;
    assert_eq!(reconciled.unwrap_err().reason(), "package-lock-timeout");
    let reverted = machine.applier.revert(&undo, &machine.sink).await;
    assert_eq!(reverted.unwrap_err().reason(), "package-lock-timeout");
    apt.have("docker.io", "20.10.24");
    release_lock(&machine.fakes.files);
    let undo = machine.recover(&undo).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    machine.revert(&undo).await;
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

async fn later_changes_survive_undo_of_an_interruption(kind: Kind) {
    for n in 1.. {
        let (machine, apt) = docker(kind);
        machine.units.put("apt-daily.timer", "enabled", "active");
        apt.events().breaks = vec![Break::after(1, HALF_WAY)];
        let change = install(&["docker.io"]);
        let undo = machine.capture(&change).await;
        let (before, units) = (machine.snapshot(), machine.units.all());
        machine.fakes.files.kill_at(n);
        // The process is dead, so its result is lost.
        let lost = RecordingSink::default();
        let _said = (machine.applier.apply(&change, undo.clone(), &lost)).await;
        let killed = machine.fakes.files.killed();
        machine.fakes.files.revive();
        // The administrator changes the machine before the next run.
        vim_comes(&apt);
        let restarted = machine.restarted();
        restarted.resume_paused(&machine.sink).await;
        let undo = restarted.reconcile(&undo, &machine.sink).await.unwrap();
        restarted.revert(&undo, &machine.sink).await.unwrap();
        assert!(apt.remove("vim"), "{n}");
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
    let undo = machine.capture(&install(&["docker.io"])).await;
    let Undo::Packages { transaction, .. } = &undo else {
        panic!("{undo:?}");
    };
    for (name, version) in [("runc", "1.1.5"), ("docker.io", "20.10.24")] {
        let comes = Action::Install {
            name: name.to_owned(),
            from: None,
            to: "1".to_owned(),
        };
        let started = machine.applier.record_start(transaction, &[comes]).await;
        started.unwrap();
        apt.have(name, version);
    }
    let undo = machine.reconcile(&undo).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
}

async fn stopped_undo_completes_in_the_next_run(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("podman", Offered::new("4", &[]));
    apt.have("podman", "4");
    let change = replace(vec![spec("docker.io", None)], &["podman"]);
    let undo = machine.apply(&change).await.unwrap();
    apt.events().breaks = vec![Break::after(0, LOCKED).meanwhile(hold_lock)];
    let stop = CancellationToken::new();
    let applier = machine.restarted().stopped_by(stop.clone());
    let (ended, ()) = tokio::join!(applier.revert(&undo, &machine.sink), async {
        machine.waits().await;
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    release_lock(&machine.fakes.files);
    machine.reverts(&undo).await;
    assert!(apt.has("podman") && !apt.has("docker.io"));
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
    machine.reverts(&undo.unwrap()).await;
    assert_eq!(records().unwrap(), Vec::<String>::new());
    assert!(!apt.has("docker.io") && !apt.has("vim"));
}

/// A later version must be able to identify the format.
#[tokio::test]
async fn record_contains_its_schema() {
    let (machine, _) = docker(Kind::Apt);
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    let Undo::Packages { transaction, .. } = &undo else {
        panic!("{undo:?}");
    };
    (machine.applier.record_start(transaction, &[]).await).unwrap();
    let path = format!("{STATE}/transactions/{transaction}.json");
    let record: serde_json::Value = serde_json::from_str(&machine.fakes.files.text(&path)).unwrap();
    assert_eq!(record["schema"], 1, "{record}");
    assert_eq!(record["running"]["before"]["schema"], 1, "{record}");
}

#[tokio::test]
async fn unconfigured_packages_are_configured_before_removal() {
    let (machine, apt) = docker(Kind::Apt);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    apt.edit("docker.io", |package| package.half = true);
    machine.fakes.exec.clear_log();
    machine.reverts(&undo).await;
    let lines = machine.fakes.exec.lines();
    let at = |words: &str| lines.iter().position(|line| line.contains(words));
    let (configured, purged) = (at(" --configure "), at(" purge "));
    assert!(configured.is_some() && configured < purged, "{lines:#?}");
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
    let (_, why) = machine.reverts_in_part(&undo).await;
    says(&why, "would install podman 4");
    assert!(apt.has("docker.io"));
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
    let before = machine.snapshot();
    // `runc` was installed by a complete command, `docker.io` by an interrupted one, and the administrator installed `vim`
    // afterwards.
    for (package, version) in [("runc", "1.1.5"), ("docker.io", "20.10.24"), ("vim", "9")] {
        apt.have(package, version);
    }
    let path = format!("{STATE}/transactions/{name}.json");
    machine.fakes.files.put(&path, sample);
    let undo = Undo::Packages {
        transaction: name.to_owned(),
        effects: None,
    };
    let undo = machine.recover(&undo).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    machine.reverts(&undo).await;
    assert!(apt.remove("vim"));
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}
