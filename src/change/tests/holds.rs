//! Tests holds while other programs change the same packages: the undo releases exactly the holds that the change has set.

use std::collections::BTreeSet;

use super::{
    archive::{Archive, Kind, hold_lock, release_lock},
    dnf::LOCK_LIST,
    kit::TestMachine,
    packages::{docker, install},
    with_each_manager,
};
use crate::{
    change::{Change, Undo},
    error::Report,
};

with_each_manager! {
    undo_covers_changes_before_the_hold
    hold_that_was_not_set_is_not_released
    hold_that_finished_after_the_run_is_released
    foreign_hold_does_not_block_a_repair
}

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

fn set(archive: &Archive, name: &str, is_held: bool) {
    archive.edit(name, |package| package.held = is_held);
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Between the capture and the hold, an automatic updater changes packages, and an administrator holds one of them.
async fn undo_covers_changes_before_the_hold(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let captured = machine.capture(&hold).await;
    archive.have("docker.io", "28.5.2");
    archive.have("docker-extra", "1");
    set(&archive, "runc", true);
    let undo = (machine.apply_captured(&hold, &captured).await).unwrap();
    let Undo::Unhold(ours) = &undo else {
        panic!("{undo:?}");
    };
    assert_eq!(ours.held, ["docker-extra", "docker.io"]);
    if let Some(entries) = &ours.entries {
        assert_eq!(entries, &["docker-extra-0:1.*", "docker.io-0:28.5.2.*"]);
    }
    let all = names(&["docker-extra", "docker.io", "runc"]);
    assert_eq!(held(&machine).await, all);
    // If a run is killed before its journal contains the undo, the next run computes the same undo.
    assert_eq!(machine.recover(&captured).await, undo);
    machine.revert(&undo).await;
    assert_eq!(held(&machine).await, names(&["runc"]));
}

async fn hold_that_was_not_set_is_not_released(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.capture(&hold).await;
    hold_lock(&machine.fakes.files);
    let error = (machine.apply_captured(&hold, &undo).await).unwrap_err();
    assert_eq!(error.reason(), "package-lock-timeout");
    release_lock(&machine.fakes.files);
    // Then an administrator holds one of the packages.
    set(&archive, "docker.io", true);
    assert!(machine.reconcile(&undo).await.is_nothing());
    machine.reverts_nothing(&undo).await;
    assert_eq!(held(&machine).await, names(&["docker.io"]));
}

async fn hold_that_finished_after_the_run_is_released(kind: Kind) {
    let (machine, archive, hold) = prepared(kind).await;
    let undo = machine.capture(&hold).await;
    (machine.apply_captured(&hold, &undo).await).unwrap();
    // The run was killed, and its command sets the holds only after the next run has called `reconcile`.
    machine.fakes.files.take(LOCK_LIST);
    for name in ["docker.io", "runc"] {
        set(&archive, name, false);
    }
    let undo = machine.reconcile(&undo).await;
    for name in ["docker.io", "runc"] {
        set(&archive, name, true);
    }
    machine.revert(&undo).await;
    assert!(held(&machine).await.is_empty());
}

/// A repair reinstalls or configures packages without changing their version, so it does not violate a hold.
async fn foreign_hold_does_not_block_a_repair(kind: Kind) {
    let (machine, archive, _) = prepared(kind).await;
    archive.edit("docker.io", |package| package.half = true);
    set(&archive, "docker.io", true);
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!archive.package("docker.io").half);
    assert_eq!(held(&machine).await, names(&["docker.io"]));
}
