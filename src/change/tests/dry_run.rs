//! Tests errors that are detected before the first change of a run.

use super::{
    archive::{Kind, Offered},
    kit::{TestMachine, says},
    packages::{docker, install, spec},
    with_each_manager,
};
use crate::{
    change::{
        ApplyChanges, Change, ChangeError,
        packages::{FURTHER, NOT_SIMULATED, Simulation, WantedPackages},
    },
    error::Report,
    exit::Exit,
};

with_each_manager! {
    installations_of_several_steps_are_one_transaction
    rejected_installation_is_reported_for_its_step
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
    let conflicting = Offered::new("20.10.24", &["runc"]).conflicting(&["podman"]);
    archive.offer("docker.io", conflicting);
    let change = install(&["docker.io"]);
    let error = machine.applier.dry_run(&change).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Blocked);
    assert_eq!(error.reason(), "transaction-refused");
    says(&error, "would remove podman 4");
    assert!(error.depends_on_lists);
    // A run repairs unconfigured packages first, which changes the simulation, so the dry run does not reject its actions.
    archive.edit("bash", |package| package.half = true);
    machine.applier.dry_run(&change).await.unwrap();
    archive.edit("bash", |package| package.half = false);
    machine.applier.policy.may_remove = vec!["podman".into()];
    machine.applier.dry_run(&change).await.unwrap();
}

/// The three reads are for interrupted package work, for the approval, and for the inventory before the download, which may
/// import keys.
#[tokio::test]
async fn approval_reads_the_database_once() {
    let (machine, _) = docker(Kind::Dnf);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let lines = machine.fakes.exec.lines();
    let is_download = |line: &String| line.contains("--downloadonly");
    let before = lines.split(is_download).next().unwrap_or_default();
    let reads = (before.iter())
        .filter(|line| line.starts_with("rpm -qa --qf") && line.contains("%{NAME}"))
        .count();
    assert_eq!(reads, 3, "{before:?}");
}

/// The preview of each installation.
async fn previews(machine: &TestMachine, changes: &[Change]) -> Vec<Result<String, ChangeError>> {
    let changes: Vec<&Change> = changes.iter().collect();
    let simulated = machine.applier.simulate_installs(&changes).await;
    simulated.into_iter().map(Simulation::preview).collect()
}

/// The number of simulated transactions.
fn simulations(machine: &TestMachine) -> usize {
    let lines = machine.fakes.exec.lines();
    let is_simulation = |line: &&String| line.contains(" -s ") || line.contains("--assumeno");
    lines.iter().filter(is_simulation).count()
}

async fn installations_of_several_steps_are_one_transaction(kind: Kind) {
    let (machine, archive) = docker(kind);
    archive.offer("dkms", Offered::new("3", &[]));
    let changes = ["docker.io", "dkms", "unknown"].map(|name| install(&[name]));
    let found = previews(&machine, &changes).await;
    let texts: Vec<&str> = (found.iter())
        .map(|one| one.as_deref().expect("approved"))
        .collect();
    let first = format!("+ docker.io 20.10.24\n{FURTHER}\n+ runc 1.1.5");
    let second = format!("+ dkms 3\n{FURTHER}\n+ runc 1.1.5");
    assert_eq!(texts, [first.as_str(), second.as_str(), NOT_SIMULATED]);
    assert_eq!(simulations(&machine), 1);
    // A query runs once, although several parts of the dry run need its result.
    let mut lines = machine.fakes.exec.lines();
    let all = lines.len();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), all, "{lines:?}");
    // The results belong to one dry run.
    archive.offer("dkms", Offered::new("4", &[]));
    let found = previews(&machine, &changes[1..2]).await;
    assert_eq!(found[0].as_deref().expect("approved"), "+ dkms 4");
}

async fn rejected_installation_is_reported_for_its_step(kind: Kind) {
    let (machine, archive) = docker(kind);
    archive.have("podman", "4");
    let conflicting = Offered::new("20.10.24", &["runc"]).conflicting(&["podman"]);
    archive.offer("docker.io", conflicting);
    archive.offer("dkms", Offered::new("3", &[]));
    archive.offer("make", Offered::new("4.3", &[]));
    let changes = ["dkms", "docker.io", "make"].map(|name| install(&[name]));
    let found = previews(&machine, &changes).await;
    let error = found[1].as_ref().expect_err("podman would be removed");
    assert_eq!(error.reason(), "transaction-refused");
    let text = error.to_string();
    assert!(text.contains("would remove podman 4"), "{text}");
    assert!(!text.contains("in one transaction"), "{text}");
    for (at, expected) in [(0, "+ dkms 3"), (2, "+ make 4.3")] {
        assert_eq!(found[at].as_deref().expect("approved"), expected);
    }
}

/// Each transaction is possible separately, but `a` conflicts with a dependency of `b`.
#[tokio::test]
async fn removal_by_the_merged_transaction_is_rejected() {
    let (machine, archive) = docker(Kind::Apt);
    let conflicting = Offered::new("1", &[]).conflicting(&["library"]);
    archive.offer("a", conflicting);
    archive.offer("b", Offered::new("1", &["library"]));
    archive.offer("library", Offered::new("2", &[]));
    let changes = ["a", "docker.io", "b"].map(|name| install(&[name]));
    for change in &changes {
        machine.applier.dry_run(change).await.unwrap();
    }
    let found = previews(&machine, &changes).await;
    let error = found[2].as_ref().expect_err("the library would be removed");
    assert_eq!(error.exit(), Exit::Blocked);
    assert_eq!(error.reason(), "transaction-refused");
    let text = error.to_string();
    let words = "would remove library 2 (in one transaction with a, docker.io)";
    says(&text, words);
    assert!(found[0].is_ok() && found[1].is_ok(), "{found:?}");
}

/// The packages of all steps are installed in one transaction, which contains the packages of steps that are not ready yet.
async fn kernel_requested_by_another_step_is_accepted(kind: Kind) {
    let (mut machine, archive) = docker(kind);
    archive.offer("linux-image", Offered::new("6.1", &[]));
    archive.offer("dkms", Offered::new("3", &["linux-image"]));
    machine.applier.policy.guard.kernels = vec!["linux-image".into()];
    let change = install(&["dkms"]);
    let error = machine.applier.dry_run(&change).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Blocked);
    assert_eq!(error.reason(), "new-kernel");
    machine.applier = machine.restarted().wanting(WantedPackages {
        packages: vec![spec("linux-image", None)],
        repositories: vec![],
    });
    machine.applier.policy.guard.kernels = vec!["linux-image".into()];
    machine.applier.dry_run(&change).await.unwrap();
    let told = machine.applier.preview(&change).await.unwrap();
    assert!(told.unwrap().contains("part of a transaction"));
}
