//! Tests large transactions on a slow link: other packages are installed while the driver is downloaded.

use std::collections::BTreeSet;

use super::{
    archive::{Archive, Break, Kind, Offered},
    kit::{RecordingSink, TestMachine, effects},
    packages::{docker, install},
};
use crate::{
    change::{ApplyChanges, Change},
    host::{
        Cmd,
        fake::{diff, failed},
    },
};

const HALF_WAY: &str = "E: Sub-process /usr/bin/dpkg returned an error code (1)";

/// A machine with a link on which each download takes this time. The driver and Docker have two packages of 60 MB each.
fn machine(download_seconds: u64) -> (TestMachine, Archive, Change) {
    let (machine, archive) = docker(Kind::Apt);
    archive.offer("libnvidia-cfg1", Offered::new("580.95.05", &[]));
    archive.offer("nvidia-smi", Offered::new("580.95.05", &["libnvidia-cfg1"]));
    archive.events().size = 60 << 20;
    archive.events().download_seconds = download_seconds;
    (machine, archive, install(&["nvidia-smi", "docker.io"]))
}

/// The commands that download or install packages: their verbs, and the names of their packages.
fn commands(machine: &TestMachine) -> Vec<String> {
    let queries = ["-s", "--print-uris"];
    let verbs = ["install", "download", "--download-only"];
    let names = ["docker.io", "libnvidia-cfg1", "nvidia-smi", "runc"];
    let word = |arg: &String| {
        let mut words = verbs.iter().chain(&names);
        let is_it = |word: &&&str| {
            arg.strip_prefix(**word)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['=', '-']))
        };
        words.find(is_it).copied()
    };
    (machine.fakes.exec.log().iter())
        .filter(|cmd| cmd.program == "apt-get")
        .filter(|cmd| !cmd.args.iter().any(|arg| queries.contains(&arg.as_str())))
        .map(|cmd| {
            cmd.args
                .iter()
                .filter_map(word)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

#[tokio::test]
async fn other_packages_are_installed_while_the_driver_is_downloaded() {
    let (machine, archive, change) = machine(5);
    let before = machine.snapshot();
    let undo = machine.apply(&change).await.unwrap();
    assert_eq!(
        commands(&machine),
        [
            "install --download-only docker.io",
            "install docker.io",
            "download nvidia-smi libnvidia-cfg1",
            "install docker.io nvidia-smi"
        ]
    );
    // The effects are the same as without the division.
    let appeared = ["docker.io", "libnvidia-cfg1", "nvidia-smi", "runc"].map(str::to_owned);
    assert_eq!(effects(&undo).appeared, BTreeSet::from(appeared));
    let automatic = ["libnvidia-cfg1", "runc"].map(str::to_owned);
    assert_eq!(effects(&undo).automatic, BTreeSet::from(automatic));
    assert!(!archive.package("nvidia-smi").auto);
    machine.reverts(&undo).await;
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

#[tokio::test]
async fn fast_link_or_small_download_needs_one_transaction() {
    let (fast, _, change) = machine(1);
    fast.apply(&change).await.unwrap();
    let (small, archive, _) = machine(5);
    archive.events().size = 20 << 20;
    small.apply(&change).await.unwrap();
    let whole = "install docker.io nvidia-smi";
    assert_eq!(commands(&small), [whole]);
    assert_eq!(
        commands(&fast),
        ["install --download-only docker.io", whole]
    );
}

#[tokio::test]
async fn failed_download_beside_only_delays() {
    let (machine, archive, change) = machine(5);
    let is_beside = |cmd: &Cmd| cmd.args.iter().any(|arg| arg == "download");
    machine
        .fakes
        .exec
        .on("apt-get", move |cmd, _| match is_beside(cmd) {
            true => failed(100, "no route to host"),
            false => archive.get(cmd),
        });
    let undo = machine.apply(&change).await.unwrap();
    assert_eq!(effects(&undo).appeared.len(), 4);
    let last = commands(&machine).pop();
    assert_eq!(last.as_deref(), Some("install docker.io nvidia-smi"));
}

#[tokio::test]
async fn interruption_leaves_nothing() {
    for n in 2.. {
        let (machine, archive, change) = machine(5);
        // The first installation fails, if gpu-bootstrap is not killed before.
        if n % 2 == 0 {
            archive.events().breaks = vec![Break::after(1, HALF_WAY)];
        }
        let undo = machine.capture(&change).await;
        let before = machine.snapshot();
        machine.fakes.files.kill_at(n / 2);
        // The process is dead, so its result is lost.
        let lost = RecordingSink::default();
        let _said = (machine.applier.apply(&change, undo.clone(), &lost)).await;
        let killed = machine.fakes.files.killed();
        machine.fakes.files.revive();
        let restarted = machine.restarted();
        restarted.resume_paused(&machine.sink).await;
        let undo = restarted.reconcile(&undo, &machine.sink).await.unwrap();
        restarted.revert(&undo, &machine.sink).await.unwrap();
        let left = diff(&before, &machine.snapshot());
        assert_eq!(left, Vec::<String>::new(), "interrupted at {n}");
        if !killed && n % 2 == 1 {
            assert!(n > 10, "it writes more often than {n} times");
            return;
        }
    }
}
