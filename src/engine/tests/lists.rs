//! What only older package lists refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{
    failures::ByLists,
    kit::{Rig, file, fixed, outcomes, packages},
};
use crate::{change::Change, event::Outcome, exit::Exit, step::Assessment};

/// A file, then packages whose transaction is refused so often.
fn refused(times: u32) -> Rig {
    let rig = Rig::new([file("a", "/a", "x"), packages("p", &["one"]).after(&["a"])]);
    let asked = Arc::new(AtomicU32::new(0));
    *rig.verbs.rehearsal.lock().unwrap() = Box::new(move |change| match change {
        Change::InstallPackages { .. } if asked.fetch_add(1, Ordering::SeqCst) < times => {
            Err(Box::new(ByLists))
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
