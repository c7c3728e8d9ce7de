//! Transactions that are cut off, stopped or tried again while others work: what is ours, and what
//! is not.

use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Break, Kind, Offered, hold_lock, release_lock},
    kit::{Bed, Heard},
    packages::{docker, install, wish},
    with_each_manager,
};
use crate::{
    change::{Applier, Change, Reverted, STOPPED, Undo},
    error::Report,
    host::{exec::Status, fake::diff},
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
/// A script that wanted the network fails like the network, after its package was unpacked.
const HALF_WAY: &str = "curl: (28) Connection timed out\n\
                        dpkg: error processing package docker.io (--configure):\n \
                        installed docker.io package post-installation script subprocess returned \
                        error exit status 28";

/// Somebody else installs a package.
fn vim_comes(bed: &Bed, apt: &Archive) {
    apt.have("vim", "9");
    apt.write(&bed.fakes.files);
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

/// Applies until it waits for somebody, who then installs a package; then asks to stop. Gives what
/// can be told of it while the other one still works.
async fn stopped_while_waiting(bed: &Bed, apt: &Archive, change: &Change) -> Undo {
    let stop = CancellationToken::new();
    let applier = bed.restarted().stopped_by(stop.clone());
    let undo = applier.capture(change).await.unwrap();
    let clock = bed.fakes.clock.clone();
    let (ended, ()) = tokio::join!(applier.apply(change, undo.clone(), &bed.heard), async {
        while clock.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
        vim_comes(bed, apt);
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    assert!(bed.heard.text().contains("unattended-upgr"));
    applier.reconcile(&undo, &bed.heard).await.unwrap()
}

async fn packages_of_others_do_not_count_after_a_stopped_wait(kind: Kind) {
    let (bed, apt) = docker(kind);
    *apt.breaks.lock().unwrap() = vec![Break {
        meanwhile: hold_lock,
        ..Break::after(0, LOCKED)
    }];
    let undo = stopped_while_waiting(&bed, &apt, &install(&["docker.io"])).await;
    assert!(undo.is_nothing(), "{undo:?}");
    release_lock(&bed.fakes.files);
    bed.revert(&undo).await;
    assert!(apt.installed.lock().unwrap().contains_key("vim"));
}

async fn only_packages_of_the_first_attempt_count_after_a_stop_before_the_second(kind: Kind) {
    let (bed, apt) = docker(kind);
    *apt.breaks.lock().unwrap() = vec![
        Break {
            meanwhile: hold_lock,
            ..Break::after(0, LOCKED)
        },
        Break::after(1, HALF_WAY),
    ];
    let undo = stopped_while_waiting(&bed, &apt, &install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["runc"]);
    release_lock(&bed.fakes.files);
    bed.revert(&undo).await;
    let left = apt.installed.lock().unwrap();
    assert!(left.contains_key("vim") && !left.contains_key("runc"));
}

async fn packages_of_a_failed_attempt_are_undone_with_the_rest(kind: Kind) {
    let (bed, apt) = docker(kind);
    apt.have("podman", "4");
    apt.write(&bed.fakes.files);
    *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
    let (undo, _) = bed.there_and_back(&install(&["docker.io"])).await;
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    assert!(bed.heard.text().contains("retry: install packages"));
    assert!(!bed.fakes.clock.slept().is_empty());
}

async fn a_package_manager_that_outlived_the_run_is_waited_for(kind: Kind) {
    let (bed, apt) = docker(kind);
    let before = bed.snapshot();
    let change = install(&["docker.io"]);
    *apt.breaks.lock().unwrap() = vec![Break {
        status: Status::Signalled(9),
        meanwhile: hold_lock,
        ..Break::after(1, "")
    }];
    let undo = bed.applier.capture(&change).await.unwrap();
    let failed = bed.applier.apply(&change, undo.clone(), &bed.heard).await;
    assert_eq!(failed.unwrap_err().reason(), "package-manager");
    // As long as it works nobody can say what it will have done; neither can an undo.
    let error = bed.applier.reconcile(&undo, &bed.heard).await.unwrap_err();
    assert_eq!(error.reason(), "apt-lock-timeout");
    let error = bed.applier.revert(&undo, &bed.heard).await.unwrap_err();
    assert_eq!(error.reason(), "apt-lock-timeout");
    apt.have("docker.io", "20.10.24");
    apt.write(&bed.fakes.files);
    release_lock(&bed.fakes.files);
    let undo = bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
    bed.revert(&undo).await;
    assert_eq!(diff(&before, &bed.snapshot()), Vec::<String>::new());
}

async fn an_interrupted_transaction_is_undone_and_later_changes_of_others_stay(kind: Kind) {
    for n in 1.. {
        let (bed, apt) = docker(kind);
        bed.units.put("apt-daily.timer", "enabled", "active");
        *apt.breaks.lock().unwrap() = vec![Break::after(1, HALF_WAY)];
        let change = install(&["docker.io"]);
        let undo = bed.applier.capture(&change).await.unwrap();
        let (before, units) = (bed.snapshot(), bed.units.all());
        bed.fakes.files.kill_at(n);
        // The process is dead: whatever it says, nobody hears it.
        let _said = bed
            .applier
            .apply(&change, undo.clone(), &Heard::default())
            .await;
        let killed = bed.fakes.files.killed();
        bed.fakes.files.revive();
        // Somebody works on the machine before anybody looks again.
        vim_comes(&bed, &apt);
        let restarted = bed.restarted();
        let undo = restarted.reconcile(&undo, &bed.heard).await.unwrap();
        restarted.revert(&undo, &bed.heard).await.unwrap();
        assert!(apt.installed.lock().unwrap().remove("vim").is_some(), "{n}");
        apt.write(&bed.fakes.files);
        let left = diff(&before, &bed.snapshot());
        assert_eq!(left, Vec::<String>::new(), "cut off at {n}");
        assert_eq!(bed.units.all(), units, "cut off at {n}");
        if !killed {
            assert!(n > 5, "it writes more often than {n} times");
            return;
        }
    }
}

async fn an_unknown_result_does_not_count_as_the_state_before(kind: Kind) {
    let (bed, apt) = docker(kind);
    let undo = bed.applier.capture(&install(&["docker.io"])).await.unwrap();
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
    (bed.applier.begin(transaction, &comes("runc")).await).unwrap();
    apt.have("runc", "1.1.5");
    apt.write(&bed.fakes.files);
    (bed.applier.begin(transaction, &comes("docker.io")).await).unwrap();
    apt.have("docker.io", "20.10.24");
    apt.write(&bed.fakes.files);
    let undo = bed.applier.reconcile(&undo, &bed.heard).await.unwrap();
    assert_eq!(appeared(&undo), ["docker.io", "runc"]);
}

async fn an_undo_stopped_during_a_wait_completes_in_the_next_run(kind: Kind) {
    let (bed, apt) = docker(kind);
    apt.offer("podman", Offered::new("4", &[]));
    apt.have("podman", "4");
    apt.write(&bed.fakes.files);
    let undo = bed
        .apply(&Change::InstallPackages {
            packages: vec![wish("docker.io", None)],
            removing: vec!["podman".into()],
        })
        .await
        .unwrap();
    *apt.breaks.lock().unwrap() = vec![Break {
        meanwhile: hold_lock,
        ..Break::after(0, LOCKED)
    }];
    let stop = CancellationToken::new();
    let applier: Applier = bed.restarted().stopped_by(stop.clone());
    let clock = bed.fakes.clock.clone();
    let (ended, ()) = tokio::join!(applier.revert(&undo, &bed.heard), async {
        while clock.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    release_lock(&bed.fakes.files);
    let reverted = bed.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let now = apt.installed.lock().unwrap();
    assert!(now.contains_key("podman") && !now.contains_key("docker.io"));
}
