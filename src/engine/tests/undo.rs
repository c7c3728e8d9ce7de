//! `uninstall` undoes only our changes, newest first, and lists the changes that stay.

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
async fn uninstall_restores_everything_and_leaves_no_trace() {
    let rig = rig();
    let before = rig.fakes.files.snapshot().without(&["/run"]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.log();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    // The two transactions are purged together.
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
async fn failed_undo_is_reported_and_retried() {
    let rig = rig();
    rig.install().await.unwrap();
    *rig.change_applier.fails.lock().unwrap() = Some("purge".to_owned());
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["purge also-mine mine: in use"]);
    let failed: Vec<&str> = report
        .steps
        .iter()
        .filter(|step| step.outcome == Outcome::Failed)
        .map(|step| step.id.as_str())
        .collect();
    assert_eq!(failed, ["q", "p"]);
    let told = status(&rig.fakes.host(), None).unwrap();
    assert_eq!(told.changes_applied, 2);

    *rig.change_applier.fails.lock().unwrap() = None;
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge also-mine mine"]);
}

#[tokio::test]
async fn effects_of_a_failed_change_are_undone() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.change_applier.fails.lock().unwrap() = Some("install".to_owned());
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    *rig.change_applier.fails.lock().unwrap() = None;
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge half"]);
}

#[tokio::test]
async fn next_run_determines_unknown_effects_of_a_failed_change() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.change_applier.fails.lock().unwrap() = Some("install".to_owned());
    *rig.change_applier.blind.lock().unwrap() = true;
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    let open = || status(&rig.fakes.host(), None).unwrap().interrupted;
    assert!(open(), "unknown effects are not recorded");
    *rig.change_applier.fails.lock().unwrap() = None;
    *rig.change_applier.blind.lock().unwrap() = false;
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(!open());
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge half"]);
}

/// The undo of `b` fails and must not affect `a`, although `b` also rebuilds the initramfs.
#[tokio::test]
async fn failed_undo_does_not_affect_another_step() {
    let rig = Rig::new([
        file("a", "/etc/a", "new"),
        step("b", |host| match exists(host, "/etc/b") {
            true => satisfied("present"),
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
    *rig.change_applier.fails.lock().unwrap() = Some("restore /etc/b".to_owned());
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["restore /etc/b: in use"]);
    assert_eq!(outcomes(&report), ["b failed", "a changed"]);
    assert!(!exists(rig.fakes.host().reader(), "/etc/a"));
}

/// An earlier run was killed during package work and left timers paused.
#[tokio::test]
async fn paused_timers_are_restarted_first() {
    let resumed = |rig: &Rig| std::mem::take(&mut *rig.change_applier.resumed.lock().unwrap());
    // Timers are also restarted without a journal.
    let rig = Rig::new([step("a", |_| satisfied("fine"))]);
    rig.uninstall().await.unwrap();
    assert_eq!(resumed(&rig), 1);
    // `install` restarts timers at its start and at its end.
    rig.install().await.unwrap();
    assert_eq!(resumed(&rig), 2);

    let rig = Rig::new([packages("p", &["half"]), file("f", "/etc/f", "new")]);
    *rig.change_applier.fails.lock().unwrap() = Some("write".to_owned());
    // A run with a failed step also restarts them only at its start and at its end, because a transaction of another step
    // may be in progress when the step fails.
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    assert_eq!(resumed(&rig), 2);
    rig.plan().await;
    rig.check().await;
    assert_eq!(resumed(&rig), 0);
}

#[tokio::test]
async fn unknown_effects_are_in_the_report() {
    let rig = Rig::new([packages("p", &["half"])]);
    *rig.change_applier.fails.lock().unwrap() = Some("install".to_owned());
    *rig.change_applier.blind.lock().unwrap() = true;
    let report = rig.install().await.unwrap();
    let told = report
        .notes
        .iter()
        .any(|note| note.contains("are still unknown"));
    assert!(told, "{:?}", report.notes);
}

#[tokio::test]
async fn signal_stops_between_two_undos() {
    let rig = rig();
    rig.install().await.unwrap();
    rig.cancel.cancel(Exit::Interrupted);
    rig.log();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Interrupted);
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn change_with_a_waiting_undo_stays_applied() {
    let rig = Rig::new([packages("a", &["one"])]);
    rig.install().await.unwrap();
    *rig.change_applier.waits.lock().unwrap() = Some(rig.cancel.clone());
    let (report, ()) = tokio::join!(rig.uninstall(), async {
        rig.cancel.cancel(Exit::Terminated);
    });
    let report = report.unwrap();
    assert_eq!(report.exit, Exit::Terminated);
    assert!(report.left.is_empty(), "{:?}", report.left);
    *rig.change_applier.waits.lock().unwrap() = None;
    let rig = Rig {
        cancel: crate::engine::Cancel::new(),
        ..rig
    };
    rig.log();
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge one"]);
}

#[tokio::test]
async fn unchanged_machine_has_no_undo() {
    let rig = Rig::new([step("a", |_| satisfied("fine"))]);
    rig.install().await.unwrap();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(report.steps.is_empty());
    assert!(!rig.tree().contains("/var/lib/gpu-bootstrap"));
}
