//! Steps that are blocked only by outdated package lists.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{
    failures::by_lists,
    kit::{Rig, exists, file, fixed, install, needs, outcomes, packages, satisfied, step, write},
};
use crate::{
    change::{Change, Lock},
    event::Outcome,
    exit::Exit,
    step::Assessment,
};

/// A file, then packages. The first `times` dry runs of their transaction fail because of the package lists.
fn refused(times: u32) -> Rig {
    let rig = Rig::new([file("a", "/a", "x"), packages("p", &["one"]).after(&["a"])]);
    let asked = Arc::new(AtomicU32::new(0));
    *rig.change_applier.dry_run_of_change.lock().unwrap() = Box::new(move |change| match change {
        Change::InstallPackages { .. } if asked.fetch_add(1, Ordering::SeqCst) < times => {
            Err(by_lists())
        }
        _ => Ok(()),
    });
    rig
}

fn hint(report: &crate::engine::RunReport) -> String {
    let blocked = |step: &&crate::engine::StepReport| step.outcome == Outcome::Blocked;
    let step = report.steps.iter().find(blocked).expect("a blocked step");
    step.hint.clone().unwrap()
}

#[tokio::test]
async fn rejected_transaction_blocks_the_run_before_its_first_change() {
    let rig = refused(u32::MAX);
    let plan = rig.plan().await;
    assert_eq!(plan.exit, Exit::Blocked);
    assert!(
        hint(&plan).starts_with("`install` checks again"),
        "{}",
        hint(&plan)
    );
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Blocked);
    assert_eq!(outcomes(&report), ["a not-run", "p blocked"]);
    assert_eq!(rig.log(), ["refresh the package lists"]);
    // The lists are new, so the hint does not recommend another check.
    assert_eq!(hint(&report), "add it to the settings");
}

#[tokio::test]
async fn changes_of_several_steps_are_dry_run_in_parallel() {
    let rig = Rig::new([packages("p", &["one"]), packages("q", &["two"])]);
    rig.plan().await;
    assert_eq!(*rig.change_applier.dry_running.lock().unwrap(), (0, 2));
    // The changes of one step, such as new repositories.
    let rig = Rig::new([step("r", |_| {
        needs(vec![write("/a", "x"), write("/b", "x")])
    })]);
    rig.plan().await;
    assert_eq!(*rig.change_applier.dry_running.lock().unwrap(), (0, 2));
}

#[tokio::test]
async fn transaction_accepted_with_new_lists_does_not_block() {
    let rig = refused(1);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
}

#[tokio::test]
async fn failed_list_download_is_in_the_remedy() {
    let rig = refused(u32::MAX);
    *rig.change_applier.fails.lock().unwrap() = Some("refresh the package lists".to_owned());
    let report = rig.install().await.unwrap();
    let hint = hint(&report);
    assert!(hint.contains("download of the package lists"), "{hint}");
    assert!(!hint.contains("checks again"), "{hint}");
    let notes = report.notes.join("\n");
    assert!(
        notes.contains("failed to download new package lists"),
        "{notes}"
    );
}

#[tokio::test]
async fn check_remedy_refers_to_install_for_new_lists() {
    let rig = Rig::new([fixed(
        "k",
        Assessment::BlockedByOldLists {
            why: "no module".to_owned(),
            hint: "upgrade".to_owned(),
        },
    )]);
    let report = rig.check().await;
    let remedy = report.findings.iter().find_map(|one| one.remedy.clone());
    let words = "`install` checks again with new package lists; if the result is the same: upgrade";
    assert!(remedy.is_some_and(|remedy| remedy == words));
}

/// The step `image` is retried while a package transaction runs. Only a reboot follows the transaction.
#[tokio::test]
async fn retry_of_another_step_does_not_delay_the_reboot() {
    let (are_new, under_way) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (seen, begun) = (are_new.clone(), under_way.clone());
    // Requests newer lists before it decides, like `kernel.release`.
    let kernel = step("kernel", move |host| {
        if !exists(host, "/packages/kernel") {
            return needs(vec![Change::RefreshRepositories, install(&["kernel"])]);
        }
        let reboot = Change::Reboot {
            why: "the kernel is installed".to_owned(),
        };
        needs(match seen.load(Ordering::SeqCst) {
            true => vec![reboot],
            false => vec![Change::RefreshRepositories, reboot],
        })
    });
    let answered = AtomicU32::new(0);
    let image = step("image", move |host| {
        if !exists(host, "/image") {
            return needs(vec![write("/image", "x")]);
        }
        // The step is retried until the transaction runs, and then twice more.
        if begun.load(Ordering::SeqCst) && answered.fetch_add(1, Ordering::SeqCst) > 1 {
            return satisfied("present");
        }
        Assessment::BlockedNow {
            why: "the registry does not respond".to_owned(),
            hint: String::new(),
            retryable: Some(Duration::from_secs(100_000)),
        }
    });
    let mut rig = Rig::new([
        kernel.locks(&[Lock::Packages]).tells_lists(are_new),
        image.locks(&[Lock::Containers]),
    ]);
    rig.options.deadline = Some(Duration::from_secs(200_000));
    *rig.change_applier.turns.lock().unwrap() = 1000;
    *rig.change_applier.before.lock().unwrap() = Box::new(move |change| {
        if matches!(change, Change::InstallPackages { .. }) {
            under_way.store(true, Ordering::SeqCst);
        }
    });
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired, "{:?}", outcomes(&report));
    let tried_again = rig
        .kinds()
        .iter()
        .filter(|kind| *kind == "attempt-failed")
        .count();
    assert!(tried_again > 1, "{tried_again}");
}

#[tokio::test]
async fn step_gets_newer_lists_before_its_reboot() {
    let verified = AtomicU32::new(0);
    let kernel = step("kernel", move |host| {
        if !exists(host, "/packages/kernel") {
            return needs(vec![Change::RefreshRepositories, install(&["kernel"])]);
        }
        let reboot = Change::Reboot {
            why: "the kernel is installed".to_owned(),
        };
        needs(match verified.fetch_add(1, Ordering::SeqCst) {
            // As if a transaction of another step had failed in the meantime, so that the lists no longer count as new.
            0 => vec![Change::RefreshRepositories, reboot],
            _ => vec![reboot],
        })
    });
    let rig = Rig::new([kernel.locks(&[Lock::Packages])]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired, "{:?}", outcomes(&report));
}
