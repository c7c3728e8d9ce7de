//! What only older package lists refuse.

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

/// A file, then packages whose transaction is refused so often.
fn refused(times: u32) -> Rig {
    let rig = Rig::new([file("a", "/a", "x"), packages("p", &["one"]).after(&["a"])]);
    let asked = Arc::new(AtomicU32::new(0));
    *rig.verbs.rehearsal.lock().unwrap() = Box::new(move |change| match change {
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
async fn a_transaction_that_would_be_refused_blocks_the_run_before_its_first_change() {
    let rig = refused(u32::MAX);
    let plan = rig.plan().await;
    assert_eq!(plan.exit, Exit::Blocked);
    assert!(
        hint(&plan).starts_with("`install` asks again"),
        "{}",
        hint(&plan)
    );
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Blocked);
    assert_eq!(outcomes(&report), ["a not-run", "p blocked"]);
    assert_eq!(rig.log(), ["refresh the package lists"]);
    // The lists are new: nothing is asked again.
    assert_eq!(hint(&report), "name it");
}

#[tokio::test]
async fn the_changes_of_several_steps_are_rehearsed_side_by_side() {
    let rig = Rig::new([packages("p", &["one"]), packages("q", &["two"])]);
    rig.plan().await;
    assert_eq!(*rig.verbs.rehearsing.lock().unwrap(), (0, 2));
}

#[tokio::test]
async fn what_new_lists_do_not_refuse_blocks_nothing() {
    let rig = refused(1);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
}

#[tokio::test]
async fn a_run_that_could_not_download_lists_does_not_say_that_it_asks_again() {
    let rig = refused(u32::MAX);
    *rig.verbs.fails.lock().unwrap() = Some("refresh the package lists".to_owned());
    let report = rig.install().await.unwrap();
    let hint = hint(&report);
    assert!(hint.contains("cannot be downloaded"), "{hint}");
    assert!(!hint.contains("asks again"), "{hint}");
    let notes = report.notes.join("\n");
    assert!(
        notes.contains("failed to download new package lists"),
        "{notes}"
    );
}

#[tokio::test]
async fn a_check_says_who_asks_again() {
    let rig = Rig::new([fixed(
        "k",
        Assessment::BlockedByOldLists {
            why: "no module".to_owned(),
            hint: "upgrade".to_owned(),
        },
    )]);
    let report = rig.check().await;
    let remedy = report.findings.iter().find_map(|one| one.remedy.clone());
    let words = "`install` asks again with new package lists; if they say the same: upgrade";
    assert!(remedy.is_some_and(|remedy| remedy == words));
}

/// An image is pulled once more while a transaction runs after which only a reboot is left to do.
#[tokio::test]
async fn another_step_that_is_tried_again_keeps_nobody_from_its_reboot() {
    let (are_new, under_way) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (seen, begun) = (are_new.clone(), under_way.clone());
    // It asks for newer lists before it is certain, as `kernel.release` does.
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
        // It is tried again until the transaction is under way, and twice more then.
        if begun.load(Ordering::SeqCst) && answered.fetch_add(1, Ordering::SeqCst) > 1 {
            return satisfied("it is there");
        }
        Assessment::BlockedNow {
            why: "the registry does not answer".to_owned(),
            hint: String::new(),
            passes: Some(Duration::from_secs(100_000)),
        }
    });
    let mut rig = Rig::new([
        kernel.locks(&[Lock::Packages]).tells_lists(are_new),
        image.locks(&[Lock::Containers]),
    ]);
    rig.options.deadline = Some(Duration::from_secs(200_000));
    *rig.verbs.turns.lock().unwrap() = 1000;
    *rig.verbs.before.lock().unwrap() = Box::new(move |change| {
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
async fn a_step_that_needs_newer_lists_before_its_reboot_gets_them() {
    let verified = AtomicU32::new(0);
    let kernel = step("kernel", move |host| {
        if !exists(host, "/packages/kernel") {
            return needs(vec![Change::RefreshRepositories, install(&["kernel"])]);
        }
        let reboot = Change::Reboot {
            why: "the kernel is installed".to_owned(),
        };
        needs(match verified.fetch_add(1, Ordering::SeqCst) {
            // A package transaction of another step has failed meanwhile.
            0 => vec![Change::RefreshRepositories, reboot],
            _ => vec![reboot],
        })
    });
    let rig = Rig::new([kernel.locks(&[Lock::Packages])]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired, "{:?}", outcomes(&report));
}
