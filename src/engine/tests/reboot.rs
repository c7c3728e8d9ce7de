//! Reboots, resuming after them, and images.

use std::sync::atomic::{AtomicBool, Ordering};

use super::kit::{
    Rig, Small, WANTS, blocked, exists, file, fixed, install, needs, outcomes, satisfied, step,
    why, write,
};
use crate::{
    change::{Change, Lock},
    engine::{EngineError, request, status},
    error::Report,
    exit::Exit,
    journal::{Journal, Record, Request},
    model::secret::Secrets,
    step::Assessment,
};

const UNIT: &str = "/etc/systemd/system/gpu-bootstrap-resume.service";
const JOURNAL: &str = "/var/lib/gpu-bootstrap/journal.jsonl";

fn reboot() -> Change {
    Change::Reboot {
        why: "nouveau must be unloaded".to_owned(),
    }
}

/// A step that writes `/denied` and then requires a reboot until `/booted` exists.
fn module() -> super::kit::Small {
    step("module", |host| {
        if exists(host, "/booted") {
            satisfied("loaded")
        } else if exists(host, "/denied") {
            needs(vec![reboot()])
        } else {
            needs(vec![write("/denied", ""), reboot()])
        }
    })
}

/// A step whose file the next boot reads.
fn triggers(after: &'static str) -> Small {
    let file = file("triggers", "/triggers", "x").after(&[after]);
    Small(file.0.before_boot())
}

#[tokio::test]
async fn work_for_the_next_boot_is_finished_before_a_reboot() {
    let rig = Rig::new([module(), triggers("module")]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert_eq!(
        outcomes(&report),
        ["module awaiting-boot", "triggers changed"]
    );

    let rig = Rig::new([module(), triggers("module")]);
    *rig.change_applier.refuses.lock().unwrap() = Some("`/triggers`".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(
        outcomes(&report),
        ["module awaiting-boot", "triggers failed"]
    );
    assert!(report.reboot.is_none());
}

#[tokio::test]
async fn work_for_the_next_boot_is_finished_after_a_failure() {
    let rig = Rig::new([file("validation", "/a", "x"), triggers("validation")]);
    *rig.change_applier.fails.lock().unwrap() = Some("`/a`".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(outcomes(&report), ["validation failed", "triggers changed"]);

    let rig = Rig::new([file("validation", "/a", "x"), triggers("validation")]);
    *rig.change_applier.fails.lock().unwrap() = Some("`/".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(outcomes(&report), ["validation failed", "triggers not-run"]);
}

#[tokio::test]
async fn reboot_is_a_barrier_and_the_next_boot_continues() {
    let mut rig = Rig::new([
        module(),
        file("validation", "/validation", "x").after(&["module"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert_eq!(
        outcomes(&report),
        ["module awaiting-boot", "validation not-run"]
    );
    assert_eq!(
        why(&report, "validation"),
        "reboot required first: nouveau must be unloaded"
    );
    assert!(!report.reboot.unwrap().automatic);
    assert!(!rig.tree().contains(UNIT));

    let error = rig.install().await.unwrap_err();
    assert_eq!(error.exit(), Exit::RebootRequired);
    assert!(matches!(error, EngineError::RebootFirst { .. }));
    let told = status(&rig.fakes.host(), Some("boot-1")).unwrap();
    assert!(told.reboot_due && !told.interrupted);

    rig.options.boot_id = Some("boot-2".to_owned());
    rig.fakes.files.put("/booted", "");
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        outcomes(&report),
        ["module satisfied", "validation changed"]
    );
    let told = status(&rig.fakes.host(), Some("boot-2")).unwrap();
    assert!(told.awaited_reboot.is_none() && told.reboots == 0);
}

#[tokio::test]
async fn step_with_changes_is_assessed_before_its_reboot() {
    let kernel = step("kernel", |host| {
        if exists(host, "/kernel") {
            blocked("the boot loader would start another kernel")
        } else {
            needs(vec![write("/kernel", ""), reboot()])
        }
    });
    let report = Rig::new([kernel]).install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(outcomes(&report), ["kernel failed"]);
    assert!(report.reboot.is_none());
    let causes = &report.steps[0].causes;
    assert!(
        causes
            .iter()
            .any(|one| one.contains("would start another kernel")),
        "{causes:?}"
    );
}

#[tokio::test]
async fn decision_is_repeated_with_new_package_lists() {
    let mut wanted = step("driver", |host| {
        let package = if exists(host, "/new-lists") {
            "new"
        } else {
            "old"
        };
        if exists(host, &format!("/packages/{package}")) {
            satisfied("installed")
        } else {
            needs(vec![Change::RefreshRepositories, install(&[package])])
        }
    });
    wanted = wanted.locks(&[Lock::Packages]);
    let rig = Rig::new([wanted]);
    let files = rig.fakes.files.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |change| {
        if *change == Change::RefreshRepositories {
            files.put("/new-lists", "");
        }
    });
    let report = rig.install().await.unwrap();
    assert_eq!(outcomes(&report), ["driver changed"]);
    let log = rig.log();
    let refreshed = log.iter().filter(|line| line.contains("refresh")).count();
    assert_eq!(refreshed, 1, "{log:?}");
    let text = rig.tree();
    assert!(
        text.contains("/packages/new") && !text.contains("/packages/old"),
        "{text}"
    );
}

#[tokio::test]
async fn resume_unit_stays_until_the_work_is_done() {
    let mut rig = Rig::new([module()]);
    rig.options.request = Request {
        profile: Some("debian".to_owned()),
        reboot: true,
        ..Request::default()
    };
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert!(report.reboot.unwrap().automatic);
    let unit = rig.fakes.files.text(UNIT);
    assert!(unit.contains("\nExecStart=/usr/local/bin/gpu-bootstrap install --resume\n"));
    assert!(
        rig.log()
            .contains(&"enable `gpu-bootstrap-resume.service`".to_owned())
    );
    let resumed = request(&rig.fakes.host()).unwrap().unwrap();
    assert_eq!(resumed.profile.as_deref(), Some("debian"));

    rig.options.boot_id = Some("boot-2".to_owned());
    rig.fakes.files.put("/booted", "");
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        rig.log(),
        [
            "disable gpu-bootstrap-resume.service",
            "restore /etc/systemd/system/gpu-bootstrap-resume.service",
            "restore /etc/modprobe.d/gpu-bootstrap-unfinished.conf"
        ]
    );
    assert!(!rig.tree().contains(UNIT));
}

#[tokio::test]
async fn useless_reboots_end() {
    let mut rig = Rig::new([module()]);
    for boot in 1..=3 {
        rig.options.boot_id = Some(format!("boot-{boot}"));
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::RebootRequired, "boot {boot}");
    }
    rig.options.boot_id = Some("boot-4".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(
        why(&report, "module"),
        "no success after 3 reboots: nouveau must be unloaded"
    );
    assert!(report.steps[0].hint.is_some());
}

#[tokio::test]
async fn reboots_for_several_failing_drivers_end() {
    let mut rig = Rig::new([module()]);
    let back = Record::RollbackStarted {
        from: "2".to_owned(),
        to: "1".to_owned(),
        why: "validation failed".to_owned(),
    };
    let over = Record::RollbackFinished { validated: true };
    let mut records = [
        back.clone(),
        over.clone(),
        back.clone(),
        over.clone(),
        back,
        over,
    ]
    .into_iter();
    for boot in 1..=6 {
        rig.options.boot_id = Some(format!("boot-{boot}"));
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::RebootRequired, "boot {boot}");
        let (journal, _) = Journal::open(&rig.fakes.host(), "test", &Secrets::default()).unwrap();
        journal.append(records.next().unwrap()).unwrap();
    }
    rig.options.boot_id = Some("boot-7".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(
        why(&report, "module"),
        "no success after 6 reboots, including reboots for drivers that failed validation: nouveau \
        must be unloaded"
    );
    assert_eq!(report.steps[0].reason, Some("reboot-loop"));
}

#[tokio::test]
async fn verification_may_require_the_reboot() {
    let rig = Rig::new([step("a", |host| {
        if exists(host, "/a") {
            needs(vec![reboot()])
        } else {
            needs(vec![write("/a", "")])
        }
    })]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
}

#[tokio::test]
async fn image_build_succeeds_and_its_first_boot_finishes() {
    let live = |path: &'static str| {
        move |host: crate::host::Reader<'_>| {
            if exists(host, path) {
                satisfied("live")
            } else {
                Assessment::AwaitingBoot {
                    why: "needs a live kernel".to_owned(),
                }
            }
        }
    };
    let mut rig = Rig::new([
        file("a", "/a", "x"),
        module().after(&["a"]),
        step("cdi", live("/booted")).after(&["module"]),
        file("b", "/b", "x").after(&["cdi"]),
    ]);
    rig.image = true;
    rig.options.request.image = true;
    rig.options.request.assume_gpus = vec!["10de:2330".parse().unwrap()];
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        outcomes(&report),
        [
            "a changed",
            "module awaiting-boot",
            "cdi awaiting-boot",
            "b changed"
        ]
    );
    assert!(rig.fakes.files.text(UNIT).contains("install --resume"));
    // A repeated image build changes nothing.
    rig.log();
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert!(rig.log().is_empty());

    rig.image = false;
    rig.options.request = request(&rig.fakes.host()).unwrap().unwrap();
    assert!(!rig.options.request.image && rig.options.request.assume_gpus.is_empty());
    rig.options.boot_id = Some("boot-2".to_owned());
    rig.options.instance_id = Some("i-2".to_owned());
    rig.fakes.files.put("/booted", "");
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(
        report.notes.iter().any(|note| note.contains("clone")),
        "{:?}",
        report.notes
    );
    assert!(!rig.tree().contains(UNIT));
    assert!(rig.fakes.files.text(JOURNAL).contains("i-2"));
}

#[tokio::test]
async fn no_automatic_reboot_without_the_unit() {
    let mut rig = Rig::new([module()]);
    rig.options.request.reboot = true;
    *rig.change_applier.fails.lock().unwrap() = Some("enable".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert!(!report.reboot.unwrap().automatic);
    assert!(report.notes[0].contains("will not continue the run"));

    let mut rig = Rig::new([module()]);
    rig.image = true;
    *rig.change_applier.fails.lock().unwrap() = Some("enable".to_owned());
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
}

/// A rig whose request is `install --reboot`.
fn rebooting(steps: impl IntoIterator<Item = super::kit::Small>) -> Rig {
    let mut rig = Rig::new(steps);
    rig.options.request.reboot = true;
    rig
}

/// Requests a stop as soon as the file is about to be written.
fn stop_at(rig: &Rig, path: &'static str, by: Exit) {
    let cancel = rig.cancel.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |change| {
        if matches!(change, Change::WriteFile { path: at, .. } if at == path) {
            cancel.cancel(by);
        }
    });
}

fn armed(rig: &Rig) -> bool {
    let tree = rig.tree();
    assert_eq!(
        tree.contains(UNIT),
        tree.contains(&format!("{WANTS}/gpu-boot"))
    );
    tree.contains(UNIT)
}

#[tokio::test]
async fn run_stopped_during_assessment_changes_nothing() {
    for by in [Exit::Interrupted, Exit::Terminated] {
        let rig = rebooting([file("a", "/etc/a", "x")]);
        let before = rig.fakes.files.snapshot().without(&["/run"]);
        rig.cancel.cancel(by);
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, by);
        assert_eq!(outcomes(&report), ["a not-run"]);
        assert_eq!(before, rig.fakes.files.snapshot().without(&["/run"]));
    }
}

#[tokio::test]
async fn only_shutdown_continues_at_next_boot() {
    let steps = || [file("a", "/a", "x"), file("b", "/b", "x").after(&["a"])];
    let rig = rebooting(steps());
    stop_at(&rig, "/a", Exit::Terminated);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Terminated);
    assert!(armed(&rig));

    let rig = rebooting(steps());
    stop_at(&rig, "/a", Exit::Interrupted);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Interrupted);
    assert!(!armed(&rig));
    assert!(report.notes[0].contains("does not continue the run"));
    assert_eq!(rig.fakes.files.text("/a"), "x");

    // If a change fails at the same time, the exit status is different, but the unit is also removed.
    let rig = rebooting(steps());
    stop_at(&rig, "/a", Exit::Interrupted);
    *rig.change_applier.fails.lock().unwrap() = Some("`/a`".to_owned());
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    assert!(!armed(&rig));
}

#[tokio::test]
async fn ctrl_c_prevents_the_reboot() {
    let steps = || {
        [
            file("b", "/b", "x").locks(&[Lock::Containers]),
            step("module", |_| needs(vec![reboot()])),
        ]
    };
    for (by, automatic) in [(Exit::Interrupted, false), (Exit::Terminated, true)] {
        let rig = rebooting(steps());
        stop_at(&rig, "/b", by);
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::RebootRequired);
        assert_eq!(report.reboot.unwrap().automatic, automatic);
        assert_eq!(armed(&rig), automatic);
    }
}

#[tokio::test]
async fn unchanged_run_leaves_nothing_for_the_next_boot() {
    let late = |answer: Assessment| {
        let first = AtomicBool::new(true);
        step("late", move |_| {
            if first.swap(false, Ordering::SeqCst) {
                return Assessment::After {
                    upstream: crate::model::id::Id::new("up"),
                    why: "unknown".to_owned(),
                    expected: vec![write("/late", "x")],
                };
            }
            answer.clone()
        })
        .after(&["up"])
    };
    let up = || fixed("up", satisfied("fine"));
    let rig = rebooting([up(), late(blocked("no GPU"))]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Blocked);
    assert_eq!(rig.log().len(), 6, "installed and removed again");
    assert!(!armed(&rig));

    // A change that cannot be removed counts as a change.
    let rig = rebooting([up(), late(blocked("no GPU"))]);
    *rig.change_applier.fails.lock().unwrap() = Some("restore".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert!(report.notes[0].contains("no longer needed"));
}

#[tokio::test]
async fn removed_unit_is_installed_again() {
    let link = format!("{WANTS}/gpu-bootstrap-resume.service");
    for gone in [vec![UNIT], vec![&*link], vec![UNIT, &*link]] {
        let mut rig = rebooting([module()]);
        assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
        for path in gone {
            rig.fakes.files.take(path);
        }
        rig.options.boot_id = Some("boot-2".to_owned());
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::RebootRequired);
        assert!(report.reboot.unwrap().automatic);
        assert!(armed(&rig));
        rig.options.boot_id = Some("boot-3".to_owned());
        rig.fakes.files.put("/booted", "");
        assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
        assert!(!armed(&rig));
    }
}

#[tokio::test]
async fn uninstall_removes_the_resume_unit_first() {
    let rig = rebooting([module()]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    rig.log();
    *rig.change_applier.fails.lock().unwrap() = Some("/denied".to_owned());
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Partial);
    assert_eq!(
        rig.log()[..2],
        [
            "disable gpu-bootstrap-resume.service",
            "restore /etc/systemd/system/gpu-bootstrap-resume.service",
        ]
    );
    assert!(!armed(&rig));
}

/// `plan` shows everything that `install` does, including the changes that make the next boot
/// continue the run.
#[tokio::test]
async fn plan_with_a_reboot_lists_the_resume_changes() {
    let mut rig = Rig::new([module()]);
    let planned = rig.plan().await;
    let of_reboot = |note: &&String| note.contains("`install --reboot`");
    let note = planned.notes.iter().find(of_reboot).expect("a note");
    rig.options.request.reboot = true;
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    let (journal, _) = Journal::open(&rig.fakes.host(), "look", &Secrets::default()).unwrap();
    let mut applied = journal.receipt().applied;
    applied.retain(|one| one.steps[0].as_str() == "resume");
    assert!(applied.len() > 2, "{applied:?}");
    for one in applied {
        let summary = one.change.summary();
        assert!(note.contains(&summary), "{summary}: {note}");
    }
    // Without a reboot, the plan does not contain this note.
    let rig = Rig::new([file("validation", "/validation", "x")]);
    assert!(rig.plan().await.notes.iter().all(|note| !of_reboot(&note)));
}
