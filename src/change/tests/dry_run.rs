//! Tests errors that are detected before the first change of a run.

use super::{
    archive::{Kind, Offered},
    packages::{docker, install, spec},
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, packages::WantedPackages},
    error::Report,
    exit::Exit,
};

with_each_manager! {
    unapproved_actions_are_detected_before_the_first_change
    kernel_requested_by_another_step_is_accepted
}

/// The dnf simulation contains the sizes. apt needs a separate query.
#[tokio::test]
async fn dry_run_simulates_once() {
    for (kind, expected) in [(Kind::Apt, [1, 1, 0]), (Kind::Dnf, [0, 0, 1])] {
        let (machine, _) = docker(kind);
        let change = install(&["docker.io"]);
        machine.applier.dry_run(&change).await.unwrap();
        let lines = machine.fakes.exec.lines();
        let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
        let asked = [" -s ", "--print-uris", "--assumeno"].map(count);
        assert_eq!(asked, expected, "{lines:?}");
    }
}

/// The dry run checks every installation, even one without a driver and without replaced packages.
async fn unapproved_actions_are_detected_before_the_first_change(kind: Kind) {
    let (mut machine, archive) = docker(kind);
    archive.have("podman", "4");
    archive.write(&machine.fakes.files);
    archive.offer(
        "docker.io",
        Offered {
            conflicts: &["podman"],
            ..Offered::new("20.10.24", &["runc"])
        },
    );
    let change = install(&["docker.io"]);
    let error = machine.applier.dry_run(&change).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.reason()),
        (Exit::Blocked, "transaction-refused")
    );
    assert!(
        error.to_string().contains("would remove podman 4"),
        "{error}"
    );
    assert!(error.depends_on_lists);
    // A run repairs unconfigured packages first, which changes the simulation, so the dry run does not reject its actions.
    (archive.installed.lock().unwrap().get_mut("bash").unwrap()).half = true;
    archive.write(&machine.fakes.files);
    machine.applier.dry_run(&change).await.unwrap();
    (archive.installed.lock().unwrap().get_mut("bash").unwrap()).half = false;
    archive.write(&machine.fakes.files);
    machine.applier.policy.may_remove = vec!["podman".into()];
    machine.applier.dry_run(&change).await.unwrap();
}

/// The packages of all steps are installed in one transaction, but each part is simulated separately first.
async fn kernel_requested_by_another_step_is_accepted(kind: Kind) {
    let (mut machine, archive) = docker(kind);
    archive.offer("linux-image", Offered::new("6.1", &[]));
    archive.offer("dkms", Offered::new("3", &["linux-image"]));
    machine.applier.policy.guard.kernels = vec!["linux-image".into()];
    let change = install(&["dkms"]);
    let error = machine.applier.dry_run(&change).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.reason()),
        (Exit::Blocked, "new-kernel")
    );
    machine.applier = machine.restarted().wanting(WantedPackages {
        packages: vec![spec("linux-image", None)],
        repositories: vec![],
    });
    machine.applier.policy.guard.kernels = vec!["linux-image".into()];
    machine.applier.dry_run(&change).await.unwrap();
    let told = machine.applier.preview(&change).await.unwrap();
    assert!(told.unwrap().contains("part of a transaction"));
}
