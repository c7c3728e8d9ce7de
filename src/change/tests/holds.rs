//! Tests holds while other programs change the same packages: the undo releases exactly the holds that the change has set.

use std::collections::BTreeSet;

use super::{
    archive::{Archive, Kind, hold_lock, release_lock},
    kit::TestMachine,
    packages::{docker, install},
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, Change, Reverted, Undo, packages::Unhold},
    error::Report,
};

with_each_manager! {
    undo_covers_changes_before_the_hold
    hold_that_was_not_set_is_not_released
    hold_that_finished_after_the_run_is_released
    foreign_hold_does_not_block_a_repair
}

const LIST: &str = "/etc/dnf/plugins/versionlock.list";

async fn prepared(kind: Kind) -> (TestMachine, Archive, Change) {
    let (machine, archive) = docker(kind);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let patterns = vec!["docker*".into(), "runc".into()];
    (machine, archive, Change::HoldPackages { patterns })
}

async fn held(machine: &TestMachine) -> BTreeSet<String> {
    let database = (machine.kind.backend().database(machine.host.reader()).await).unwrap();
    (database.unwrap().into_iter())
        .filter(|package| package.held)
        .map(|package| package.id)
        .collect()
}

fn set(machine: &TestMachine, archive: &Archive, name: &str, is_held: bool) {
    (archive.installed.lock().unwrap().get_mut(name).unwrap()).held = is_held;
    archive.write(&machine.fakes.files);
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Between the capture and the hold, an automatic updater changes packages, and an administrator holds one of them.
async fn undo_covers_changes_before_the_hold(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let captured = machine.applier.capture(&hold).await.unwrap();
    archive.have("docker.io", "28.5.2");
    archive.have("docker-extra", "1");
    set(&machine, &archive, "runc", true);
    let applied = (machine.applier).apply(&hold, captured.clone(), &machine.sink);
    let undo = applied.await.unwrap();
    let Undo::Unhold(Unhold {
        held: ours,
        entries,
        ..
    }) = &undo
    else {
        panic!("{undo:?}");
    };
    assert_eq!(ours, &["docker-extra", "docker.io"]);
    if let Some(entries) = entries {
        assert_eq!(entries, &["docker-extra-0:1.*", "docker.io-0:28.5.2.*"]);
    }
    assert_eq!(
        held(&machine).await,
        names(&["docker-extra", "docker.io", "runc"])
    );
    // If a run is killed before its journal contains the undo, the next run computes the same undo.
    let restarted = machine.restarted();
    let found = restarted.reconcile(&captured, &machine.sink).await.unwrap();
    assert_eq!(found, undo);
    machine.revert(&undo).await;
    assert_eq!(held(&machine).await, names(&["runc"]));
}

async fn hold_that_was_not_set_is_not_released(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.applier.capture(&hold).await.unwrap();
    hold_lock(&machine.fakes.files);
    let applied = (machine.applier).apply(&hold, undo.clone(), &machine.sink);
    assert_eq!(applied.await.unwrap_err().reason(), "package-lock-timeout");
    release_lock(&machine.fakes.files);
    // Then an administrator holds one of the packages.
    set(&machine, &archive, "docker.io", true);
    let exact = machine.applier.reconcile(&undo, &machine.sink).await;
    assert!(exact.unwrap().is_nothing());
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(held(&machine).await, names(&["docker.io"]));
}

async fn hold_that_finished_after_the_run_is_released(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.applier.capture(&hold).await.unwrap();
    let applied = (machine.applier).apply(&hold, undo.clone(), &machine.sink);
    applied.await.unwrap();
    // The run was killed, and its command sets the holds only after the next run has called `reconcile`.
    machine.fakes.files.take(LIST);
    for name in ["docker.io", "runc"] {
        set(&machine, &archive, name, false);
    }
    let undo = (machine.applier.reconcile(&undo, &machine.sink).await).unwrap();
    for name in ["docker.io", "runc"] {
        set(&machine, &archive, name, true);
    }
    machine.revert(&undo).await;
    assert!(held(&machine).await.is_empty());
}

/// A repair reinstalls or configures packages without changing their version, so it does not violate a hold.
async fn foreign_hold_does_not_block_a_repair(kind: Kind) {
    let (machine, archive, _) = prepared(kind).await;
    (archive
        .installed
        .lock()
        .unwrap()
        .get_mut("docker.io")
        .unwrap())
    .half = true;
    set(&machine, &archive, "docker.io", true);
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!archive.installed.lock().unwrap()["docker.io"].half);
    assert_eq!(held(&machine).await, names(&["docker.io"]));
}
