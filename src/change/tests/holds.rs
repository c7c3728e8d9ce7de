//! Holds, while others work on the same packages: what is released later is exactly what was held.

use std::collections::BTreeSet;

use super::{
    archive::{Archive, Kind, hold_lock, release_lock},
    kit::TestMachine,
    packages::{docker, install},
    with_each_manager,
};
use crate::{
    change::{Change, Reverted, Undo, Verbs, packages::Unhold},
    error::Report,
};

with_each_manager! {
    what_others_changed_before_the_hold_is_in_its_undo
    a_hold_that_was_not_set_leaves_nothing_to_release
    a_hold_whose_command_outlived_the_run_is_released
    a_hold_of_somebody_does_not_stop_a_repair
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

/// An automatic updater has the lock between the capture and the hold, and an administrator holds one of
/// the packages.
async fn what_others_changed_before_the_hold_is_in_its_undo(kind: Kind) {
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
    // A run that was killed before its journal had this finds out the same.
    let restarted = machine.restarted();
    let found = restarted.reconcile(&captured, &machine.sink).await.unwrap();
    assert_eq!(found, undo);
    machine.revert(&undo).await;
    assert_eq!(held(&machine).await, names(&["runc"]));
}

async fn a_hold_that_was_not_set_leaves_nothing_to_release(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.applier.capture(&hold).await.unwrap();
    hold_lock(&machine.fakes.files);
    let applied = (machine.applier).apply(&hold, undo.clone(), &machine.sink);
    assert_eq!(applied.await.unwrap_err().reason(), "package-lock-timeout");
    release_lock(&machine.fakes.files);
    // An administrator holds them then.
    set(&machine, &archive, "docker.io", true);
    let exact = machine.applier.reconcile(&undo, &machine.sink).await;
    assert!(exact.unwrap().is_nothing());
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(held(&machine).await, names(&["docker.io"]));
}

async fn a_hold_whose_command_outlived_the_run_is_released(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.applier.capture(&hold).await.unwrap();
    let applied = (machine.applier).apply(&hold, undo.clone(), &machine.sink);
    applied.await.unwrap();
    // The run was killed, the next one looks, and only then does the command end.
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

/// What is installed once more, or configured, keeps its version.
async fn a_hold_of_somebody_does_not_stop_a_repair(kind: Kind) {
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
