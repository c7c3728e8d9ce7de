//! Validated drivers are recorded in the journal, and a rollback to one of them continues until it is finished or aborted.

use std::sync::Arc;

use super::kit::{Rig, file, fixed, satisfied};
use crate::{
    check::Verdict,
    config::{
        desired::PackageSpec,
        load::{Question, SettingsRequest},
    },
    engine::{EngineError, RunReport, check::RESOLVABLE, rollback},
    error::Report as _,
    exit::Exit,
    facts::Facts,
    journal::{Journal, Record, RollbackStarted, fold},
    model::secret::Secrets,
    steps::{self, fixtures},
};

const DATABASE: &str = "/var/lib/dpkg/status";

/// A machine whose driver passes validation, with one more change.
fn validated() -> Rig {
    let validation_run = ["driver.packages", "driver.module", "validation.devices"];
    let steps = validation_run.map(|id| fixed(id, satisfied("working")));
    Rig::new(steps.into_iter().chain([file("other", "/other", "x")]))
}

/// Returns whether the journal contains a validated driver, and the notes of the run.
async fn remembered(rig: &Rig) -> (bool, String) {
    let report = rig.install().await.unwrap();
    let lines = Journal::read(&rig.fakes.host()).unwrap().lines.clone();
    (fold(&lines).validated.is_some(), report.notes.join("\n"))
}

#[tokio::test]
async fn unrecorded_validation_is_reported_with_the_reason() {
    let without = validated();
    let (is_known, notes) = remembered(&without).await;
    assert!(!is_known);
    assert!(
        notes.contains("not recorded as validated") && notes.contains(DATABASE),
        "{notes}"
    );
    let whole = validated();
    whole.fakes.files.put(DATABASE, "");
    assert_eq!(remembered(&whole).await, (true, String::new()));
}

#[tokio::test]
async fn driver_is_recorded_again_only_after_a_later_change() {
    let rig = validated();
    rig.fakes.files.put(DATABASE, "");
    let validated_at = async || {
        rig.install().await.unwrap();
        let lines = Journal::read(&rig.fakes.host()).unwrap().lines.clone();
        fold(&lines).validated.expect("a driver").seq
    };
    let first = validated_at().await;
    assert_eq!(validated_at().await, first);
    // The next run applies the change of `other` again.
    rig.fakes.files.take("/other");
    assert!(validated_at().await > first);
}

#[tokio::test]
async fn driver_is_recorded_although_another_step_failed() {
    let rig = validated();
    rig.fakes.files.put(DATABASE, "");
    *rig.change_applier.fails.lock().unwrap() = Some("/other".to_owned());
    assert_eq!(remembered(&rig).await, (true, String::new()));
}

#[tokio::test]
async fn driver_is_not_recorded_if_its_validation_failed() {
    let others = ["driver.packages", "driver.module"].map(|id| fixed(id, satisfied("working")));
    let validation_run = file("validation.devices", "/devices", "x");
    let rig = Rig::new(others.into_iter().chain([validation_run]));
    rig.fakes.files.put(DATABASE, "");
    *rig.change_applier.fails.lock().unwrap() = Some("/devices".to_owned());
    assert!(!remembered(&rig).await.0);
}

/// Records a validated driver in the journal, and a rollback to it from a driver that failed validation.
fn rolls_back(rig: &Rig) {
    let (journal, _) = Journal::open(&rig.fakes.host(), "test", &Secrets::default()).unwrap();
    let driver = PackageSpec {
        name: "nvidia-kernel-dkms".to_owned(),
        version: Some("535.261.03-1".to_owned()),
    };
    let records = [
        Record::Validated {
            settings: ["driver.source=distribution", "driver.branch=535"]
                .map(str::to_owned)
                .to_vec(),
            driver: vec![driver],
        },
        Record::RollbackStarted {
            from: "of branch 550".to_owned(),
            to: "535.261.03".to_owned(),
            why: "validation failed".to_owned(),
        },
    ];
    for record in records {
        journal.append(record).unwrap();
    }
}

/// Returns whether the journal contains an unfinished rollback.
fn is_on_it(rig: &Rig) -> bool {
    let lines = Journal::read(&rig.fakes.host()).unwrap().lines.clone();
    fold(&lines).rollback_started.is_some()
}

#[tokio::test]
async fn rollback_continues_unless_settings_abort_it() {
    let mut rig = validated();
    rolls_back(&rig);
    let host = rig.fakes.host();
    let mut desired = fixtures::desired();
    desired.driver.as_mut().unwrap().rollback = true;
    let back = rollback(&host, &desired).await.unwrap().unwrap();
    let settings = ["driver.source=distribution", "driver.branch=535"];
    assert_eq!(back.settings, settings);
    back.pin(&mut desired);
    let driver = desired.driver.as_mut().unwrap();
    let is_pinned = |one: &PackageSpec| one.version.as_deref() == Some("535.261.03-1");
    assert!(driver.packages.iter().any(is_pinned), "{driver:?}");
    driver.rollback = false;
    assert!(rollback(&host, &desired).await.unwrap().is_none());

    rig.settings = |desired| desired.driver.as_mut().unwrap().rollback = false;
    let plan = rig.plan().await.notes.join("\n");
    assert!(plan.contains("535.261.03 is aborted"), "{plan}");
    assert!(is_on_it(&rig));
    let report = rig.install().await.unwrap();
    let notes = report.notes.join("\n");
    assert!(notes.contains("535.261.03 is aborted"), "{notes}");
    assert_eq!(report.exit, Exit::Ok, "{notes}");
    assert!(!is_on_it(&rig));
}

#[tokio::test]
async fn check_reports_an_unfinished_rollback() {
    let mut rig = validated();
    rig.back = Some(RollbackStarted {
        from: "550.1".to_owned(),
        to: "535.2".to_owned(),
        why: "NVML fails".to_owned(),
    });
    let report = rig.check().await;
    let finding = (report.findings.iter()).find(|one| one.id == RESOLVABLE);
    let finding = finding.unwrap();
    assert_eq!(finding.status, Verdict::Warn);
    assert!(finding.why.contains("the rollback to 535.2"), "{finding:?}");
}

/// Installs with a session that can resolve the settings of a rollback on a machine with these facts.
async fn install_asking(rig: &Rig, facts: Facts) -> Result<RunReport, EngineError> {
    let host = rig.fakes.host();
    let question = Question {
        ask: SettingsRequest::default(),
        files: host.files.clone(),
        named: host.files,
        facts: Arc::new(facts),
        matrix: fixtures::matrix(),
    };
    let (tools, reporter) = rig.tools("run");
    let session = rig.session(tools).asking(question, Vec::new());
    let report = session.install().await;
    reporter.finish();
    report
}

/// DCGM is only in the repository of the new driver, which the previous driver does not use.
#[test]
fn rollback_is_possible_with_dcgm() {
    let rig = validated();
    let archive = "deb http://archive.example.org/debian bookworm main\n";
    rig.fakes.files.put("/etc/apt/sources.list", archive);
    let host = rig.fakes.host();
    let set = [
        "driver.source=nvidia",
        "driver.branch=580",
        "dcgm.enabled=true",
    ];
    let question = Question {
        ask: SettingsRequest {
            set: set.map(str::to_owned).to_vec(),
            ..SettingsRequest::default()
        },
        files: host.files.clone(),
        named: host.files,
        facts: Arc::new(fixtures::debian()),
        matrix: fixtures::matrix(),
    };
    let resolution = question.resolve().unwrap();
    assert!(resolution.desired.dcgm.is_some());
    let without = |warnings: &[String]| {
        let mut lines = warnings.iter();
        lines.any(|line| line.contains("restored without DCGM"))
    };
    assert!(!without(&resolution.warnings));
    let previous = ["driver.source=distribution", "driver.branch=535"];
    let resolution = question.with_driver(&previous.map(str::to_owned)).unwrap();
    assert_eq!(resolution.desired.dcgm, None);
    assert!(without(&resolution.warnings), "{:?}", resolution.warnings);
}

#[tokio::test]
async fn install_continues_a_rollback_in_its_own_run() {
    let mut rig = validated();
    rig.settings = |desired| desired.driver.as_mut().unwrap().rollback = true;
    // Without a rollback in the journal, the steps of the session run.
    let report = install_asking(&rig, fixtures::debian()).await.unwrap();
    assert_eq!(report.run, "run");
    assert!(!rig.log().is_empty());

    rolls_back(&rig);
    // These facts contain no operating system, so the driver cannot be resolved.
    let error = install_asking(&rig, fixtures::facts()).await.unwrap_err();
    assert!(error.to_string().contains("driver 535.261.03"), "{error}");
    assert!(error.hint().unwrap().contains("driver.rollback = false"));
    assert!(rig.log().is_empty() && is_on_it(&rig));

    let archive = "deb http://archive.example.org/debian bookworm main\n";
    rig.fakes.files.put("/etc/apt/sources.list", archive);
    // The steps of the rollback are the real ones. Their assessment already fails on this machine, so nothing is applied.
    let report = install_asking(&rig, fixtures::debian()).await.unwrap();
    assert_ne!(report.run, "run");
    assert!(
        (report.steps.iter()).any(|step| step.id == steps::PREFLIGHT),
        "{report:?}"
    );
    assert!(rig.log().is_empty());
}
