//! The barrier, going on after it, and images.

use super::kit::{Rig, exists, file, needs, outcomes, satisfied, step, why, write};
use crate::{
    change::Change,
    engine::{EngineError, request, status},
    error::Report,
    exit::Exit,
    journal::Request,
    step::Assessment,
};

const UNIT: &str = "/etc/systemd/system/gpu-bootstrap-resume.service";
const JOURNAL: &str = "/var/lib/gpu-bootstrap/journal.jsonl";

fn reboot() -> Change {
    Change::Reboot {
        why: "nouveau must go".to_owned(),
    }
}

/// Wants `/denied`, and a boot after it.
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

#[tokio::test]
async fn a_reboot_is_a_barrier_and_the_next_boot_goes_on() {
    let mut rig = Rig::new([module(), file("proof", "/proof", "x").after(&["module"])]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert_eq!(outcomes(&report), ["module awaiting-boot", "proof not-run"]);
    assert_eq!(
        why(&report, "proof"),
        "a reboot comes first: nouveau must go"
    );
    assert!(!report.reboot.unwrap().automatic);
    assert!(!rig.fakes.files.snapshot().text().contains(UNIT));

    let error = rig.install().await.unwrap_err();
    assert_eq!(error.exit(), Exit::RebootRequired);
    assert!(matches!(error, EngineError::RebootFirst { .. }));
    let told = status(&rig.fakes.host(), Some("boot-1")).unwrap();
    assert!(told.reboot_due && !told.interrupted);

    rig.options.boot_id = Some("boot-2".to_owned());
    rig.fakes.files.put("/booted", "");
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(outcomes(&report), ["module satisfied", "proof changed"]);
    let told = status(&rig.fakes.host(), Some("boot-2")).unwrap();
    assert!(told.awaited_reboot.is_none() && told.reboots == 0);
}

#[tokio::test]
async fn with_reboot_the_unit_is_there_until_the_work_is_done() {
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
            "restore /etc/systemd/system/gpu-bootstrap-resume.service"
        ]
    );
    assert!(!rig.fakes.files.snapshot().text().contains(UNIT));
}

#[tokio::test]
async fn reboots_that_do_not_help_end() {
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
        "3 reboots have not helped: nouveau must go"
    );
    assert!(report.steps[0].hint.is_some());
}

#[tokio::test]
async fn a_look_after_the_changes_may_ask_for_the_reboot() {
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
async fn an_image_ends_well_and_its_first_boot_finishes() {
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
    rig.options.request.assume_gpus = vec!["10de:2330".to_owned()];
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
    // The image is built again: nothing is written twice.
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
    assert!(!rig.fakes.files.snapshot().text().contains(UNIT));
    assert!(rig.fakes.files.text(JOURNAL).contains("i-2"));
}

#[tokio::test]
async fn without_the_unit_there_is_no_reboot_by_itself() {
    let mut rig = Rig::new([module()]);
    rig.options.request.reboot = true;
    *rig.verbs.fails.lock().unwrap() = Some("enable".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert!(!report.reboot.unwrap().automatic);
    assert!(report.notes[0].contains("will not go on by itself"));

    let mut rig = Rig::new([module()]);
    rig.image = true;
    *rig.verbs.fails.lock().unwrap() = Some("enable".to_owned());
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
}
