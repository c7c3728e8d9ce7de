//! Transactions that are interrupted, stopped or retried while others change packages: which
//! changes count as ours and which do not.

use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Break, Kind, Offered, hold_lock, release_lock},
    kit::{RecordingSink, STATE, TestMachine},
    packages::{docker, install, wish},
    with_each_manager,
};
use crate::{
    change::{Applier, Change, Reverted, STOPPED, Undo, Verbs},
    error::Report,
    host::{
        ReadFiles as _,
        exec::Status,
        fake::{diff, ok},
    },
    tools::packages::Action,
};

with_each_manager! {
    packages_of_others_do_not_count_after_a_stopped_wait
    only_packages_of_the_first_attempt_count_after_a_stop_before_the_second
    packages_of_a_failed_attempt_are_undone_with_the_rest
    a_package_manager_that_outlived_the_run_is_waited_for
    an_interrupted_transaction_is_undone_and_later_changes_of_others_stay
    an_unknown_result_does_not_count_as_the_state_before
    an_undo_stopped_during_a_wait_completes_in_the_next_run
}

const LOCKED: &str = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812";
/// A package script that needs the network fails with a network error after its package was
/// unpacked.
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

/// Applies a change until it waits for the lock of another program, which then installs a package;
/// then requests a stop. Returns the undo that is known while the other program still works.
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

async fn packages_of_others_do_not_count_after_a_stopped_wait(kind: Kind) {
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

async fn only_packages_of_the_first_attempt_count_after_a_stop_before_the_second(kind: Kind) {
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

async fn packages_of_a_failed_attempt_are_undone_with_the_rest(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
    let (undo, _) = machine.apply_and_undo(&install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    assert!(machine.sink.text().contains("retry: install packages"));
    assert!(!machine.fakes.clock.slept().is_empty());
}

async fn a_package_manager_that_outlived_the_run_is_waited_for(kind: Kind) {
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
    // As long as it works its effects are unknown, also to an undo.
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

async fn an_interrupted_transaction_is_undone_and_later_changes_of_others_stay(kind: Kind) {
    for n in 1.. {
        let (machine, apt) = docker(kind);
        machine.units.put("apt-daily.timer", "enabled", "active");
        *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
        let change = install(&["docker.io"]);
        let undo = machine.applier.capture(&change).await.unwrap();
        let (before, units) = (machine.snapshot(), machine.units.all());
        machine.fakes.files.kill_at(n);
        // The process is dead: its result is lost.
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

async fn an_unknown_result_does_not_count_as_the_state_before(kind: Kind) {
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

async fn an_undo_stopped_during_a_wait_completes_in_the_next_run(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("podman", Offered::new("4", &[]));
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    let undo = machine
        .apply(&Change::InstallPackages {
            packages: vec![wish("docker.io", None)],
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
    machine.revert(&undo.unwrap()).await;
    assert_eq!(records().unwrap(), Vec::<String>::new());
    let installed = apt.installed.lock().unwrap();
    assert!(!installed.contains_key("docker.io") && !installed.contains_key("vim"));
}

/// A later version must know what it reads.
#[tokio::test]
async fn a_record_names_its_schema() {
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
async fn what_is_half_configured_is_configured_before_it_is_removed() {
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

/// The removal of a package may need another one in its place, which nobody has asked for.
#[tokio::test]
async fn an_undo_installs_nothing_in_the_place_of_what_it_removes() {
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

/// A package manager was cut off under an earlier version of this program; this one undoes it.
#[tokio::test]
async fn the_record_of_an_earlier_version_is_read_and_undone() {
    let name = "20261101T101112.000000000-1";
    let sample = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/journals/transactions/20261101T101112.000000000-1.json"
    ));
    let (machine, apt) = docker(Kind::Apt);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    let before = machine.snapshot();
    // `runc` came with a command that ended, `docker.io` with one that was cut off, and somebody
    // else installed `vim` after that.
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
