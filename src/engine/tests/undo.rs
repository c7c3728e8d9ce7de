//! `uninstall`: newest first, only ours, and what stays is named.

use super::kit::{Rig, exists, file, needs, outcomes, packages, satisfied, step, write};
use crate::{change::Change, engine::status, event::Outcome, exit::Exit};

fn rig() -> Rig {
    let rig = Rig::new([
        file("a", "/etc/a", "new"),
        packages("p", &["mine", "theirs"]).after(&["a"]),
        packages("q", &["also-mine"]).after(&["p"]),
        file("b", "/etc/b", "new").after(&["q"]),
    ]);
    rig.fakes.files.put("/etc/a", "old");
    rig.fakes.files.put("/packages/theirs", "");
    rig
}

#[tokio::test]
async fn everything_is_put_back_newest_first_and_no_trace_stays() {
    let rig = rig();
    let before = rig.fakes.files.snapshot().without(&["/run"]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.log();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    // Two transactions are purged as one.
    assert_eq!(
        rig.log(),
        ["restore /etc/b", "purge also-mine mine", "restore /etc/a"]
    );
    assert_eq!(before, rig.fakes.files.snapshot().without(&["/run"]));
    assert!(
        report
            .steps
            .iter()
            .all(|step| step.outcome == Outcome::Changed)
    );
    let again = rig.uninstall().await.unwrap();
    assert_eq!(again.exit, Exit::Ok);
    assert!(again.notes[0].contains("nothing to undo"));
}

#[tokio::test]
async fn what_stays_is_named_and_tried_again() {
    let rig = rig();
    rig.install().await.unwrap();
    *rig.verbs.fails.lock().unwrap() = Some("purge".to_owned());
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["purge also-mine mine: somebody uses it"]);
    let failed: Vec<&str> = report
        .steps
        .iter()
        .filter(|step| step.outcome == Outcome::Failed)
        .map(|step| step.id.as_str())
        .collect();
    assert_eq!(failed, ["q", "p"]);
    let told = status(&rig.fakes.host(), None).unwrap();
    assert_eq!(told.changes_standing, 2);

    *rig.verbs.fails.lock().unwrap() = None;
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge also-mine mine"]);
}

#[tokio::test]
async fn what_a_failed_change_did_all_the_same_is_undone() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.verbs.fails.lock().unwrap() = Some("install".to_owned());
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    *rig.verbs.fails.lock().unwrap() = None;
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge half"]);
}

#[tokio::test]
async fn what_a_failed_change_left_is_told_by_the_next_run_if_this_one_cannot() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.verbs.fails.lock().unwrap() = Some("install".to_owned());
    *rig.verbs.blind.lock().unwrap() = true;
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    let open = || status(&rig.fakes.host(), None).unwrap().interrupted;
    assert!(open(), "nothing is recorded that nobody knows");
    *rig.verbs.fails.lock().unwrap() = None;
    *rig.verbs.blind.lock().unwrap() = false;
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(!open());
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge half"]);
}

/// The file of another step lies next to one with which the initramfs is rebuilt.
#[tokio::test]
async fn a_file_that_stays_does_not_take_that_of_another_step_along() {
    let rig = Rig::new([
        file("a", "/etc/a", "new"),
        step("b", |host| match exists(host, "/etc/b") {
            true => satisfied("it is there"),
            false => needs(vec![
                write("/etc/b", "new"),
                Change::RebuildInitramfs {
                    kernels: vec!["6.1.0".to_owned()],
                },
            ]),
        })
        .after(&["a"]),
    ]);
    rig.install().await.unwrap();
    *rig.verbs.fails.lock().unwrap() = Some("restore /etc/b".to_owned());
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["restore /etc/b: somebody uses it"]);
    assert_eq!(outcomes(&report), ["b failed", "a changed"]);
    assert!(!exists(rig.fakes.host().reader(), "/etc/a"));
}

/// A run that was killed in the middle of package work has left timers paused.
#[tokio::test]
async fn each_run_starts_paused_timers_first_and_a_change_that_fails_does_not() {
    let resumed = |rig: &Rig| std::mem::take(&mut *rig.verbs.resumed.lock().unwrap());
    // Without anything in the journal, too.
    let rig = Rig::new([step("a", |_| satisfied("fine"))]);
    rig.uninstall().await.unwrap();
    assert_eq!(resumed(&rig), 1);
    // At its end, too: it may have ended before a module was compiled.
    rig.install().await.unwrap();
    assert_eq!(resumed(&rig), 2);

    let rig = Rig::new([packages("p", &["half"]), file("f", "/etc/f", "new")]);
    *rig.verbs.fails.lock().unwrap() = Some("write".to_owned());
    // The transaction of another step may be under way.
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    assert_eq!(resumed(&rig), 2);
    rig.plan().await;
    rig.check().await;
    assert_eq!(resumed(&rig), 0);
}

#[tokio::test]
async fn effects_that_are_not_known_yet_are_told_in_the_report() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.verbs.fails.lock().unwrap() = Some("install".to_owned());
    *rig.verbs.blind.lock().unwrap() = true;
    let report = rig.install().await.unwrap();
    let told = report
        .notes
        .iter()
        .any(|note| note.contains("are not known yet"));
    assert!(told, "{:?}", report.notes);
}

#[tokio::test]
async fn a_signal_stops_between_two_undos() {
    let rig = rig();
    rig.install().await.unwrap();
    rig.cancel.cancel(Exit::Interrupted);
    rig.log();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Interrupted);
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn an_undo_that_only_waits_is_not_tried_and_stands() {
    let rig = Rig::new([packages("a", &["one"])]);
    rig.install().await.unwrap();
    *rig.verbs.waits.lock().unwrap() = Some(rig.cancel.clone());
    let (report, ()) = tokio::join!(rig.uninstall(), async {
        rig.cancel.cancel(Exit::Terminated);
    });
    let report = report.unwrap();
    assert_eq!(report.exit, Exit::Terminated);
    assert!(report.left.is_empty(), "{:?}", report.left);
    *rig.verbs.waits.lock().unwrap() = None;
    let rig = Rig {
        cancel: crate::engine::Cancel::new(),
        ..rig
    };
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge one"]);
}

#[tokio::test]
async fn a_machine_that_was_as_wanted_has_nothing_to_undo() {
    let rig = Rig::new([step("a", |_| satisfied("fine"))]);
    rig.install().await.unwrap();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(report.steps.is_empty());
    assert!(!rig.tree().contains("/var/lib/gpu-bootstrap"));
}
