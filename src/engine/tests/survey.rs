//! `check` and `plan`: findings, remedies and exit status. Both are read-only.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use super::kit::{
    Rig, Small, blocked, file, fixed, needs, outcomes, packages, satisfied, step, why, write,
};
use crate::{
    change::{Change, Lock},
    check::{FailOn, Family, Finding, Verdict},
    engine::{RunReport, Unresolvable, check::RESOLVABLE},
    error::Report,
    event::Outcome,
    exit::Exit,
    facts::Unknown,
    host::ExecError,
    model::{
        findings::{Kind, Remedy},
        id::Id,
    },
    step::{Assessment, Step, StepError},
};

fn after(up: &'static str) -> Assessment {
    Assessment::After {
        upstream: Id::new(up),
        why: "no module yet".to_owned(),
        expected: vec![write("/later", "?")],
    }
}

#[tokio::test]
async fn plan_shows_known_and_unknown_changes() {
    let rig = Rig::new([
        fixed("ok", satisfied("fine")),
        file("a", "/a", "x"),
        fixed("b", after("a")).after(&["a"]),
        packages("c", &["p"]).after(&["a"]),
    ]);
    let before = rig.fakes.files.snapshot();
    let report = rig.plan().await;
    assert_eq!(report.exit, Exit::Drift);
    assert_eq!(
        outcomes(&report),
        [
            "ok satisfied",
            "a would-change",
            "b would-change",
            "c would-change"
        ]
    );
    assert_eq!(why(&report, "b"), "after `a`: no module yet");
    let a = &report.steps[1].changes[0];
    assert_eq!(
        (a.kind, a.diff.as_deref()),
        ("write-file", Some("+x")),
        "{a:?}"
    );
    assert_eq!(report.steps[2].changes[0].diff, None);
    // The packages of `c` cannot be previewed before `a` is applied, so the failed preview is not reported.
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert_eq!(before, rig.fakes.files.snapshot());
    assert_eq!(rig.fakes.files.mutations(), 0);
}

#[tokio::test]
async fn plan_lists_a_package_once_with_its_first_step() {
    let rig = Rig::new([
        packages("a", &["one", "two"]),
        packages("b", &["two"]).after(&["a"]),
        packages("c", &["two", "three"]).after(&["a"]),
    ]);
    let report = rig.plan().await;
    let summaries = |at: usize| -> Vec<&str> {
        let changes = report.steps[at].changes.iter();
        changes.map(|change| change.summary.as_str()).collect()
    };
    assert_eq!(
        summaries(0),
        ["refresh the package lists", "install one, two"]
    );
    assert!(summaries(1).is_empty());
    assert_eq!(summaries(2), ["install three"]);
    assert_eq!(why(&report, "b"), "missing; installed together with `a`");
}

#[tokio::test]
async fn plan_stops_at_a_blocked_step() {
    let rig = Rig::new([
        fixed("a", blocked("no GPU")),
        file("b", "/b", "x").after(&["a"]),
        file("c", "/c", "x").after(&["b"]),
    ]);
    let report = rig.plan().await;
    assert_eq!(report.exit, Exit::Blocked);
    assert_eq!(outcomes(&report), ["a blocked", "b not-run", "c not-run"]);
    assert_eq!(why(&report, "c"), "`a` is blocked");
    assert!(report.steps[1].changes.is_empty());
}

#[tokio::test]
async fn plan_without_pending_changes_succeeds() {
    let rig = Rig::new([
        fixed("a", satisfied("fine")),
        fixed(
            "b",
            Assessment::AwaitingBoot {
                why: "no kernel here".to_owned(),
            },
        ),
    ]);
    assert_eq!(rig.plan().await.exit, Exit::Ok);
}

#[tokio::test]
async fn plan_reports_its_duration() {
    let rig = Rig::new([file("a", "/a", "x")]);
    let clock = rig.fakes.clock.clone();
    *rig.change_applier.dry_run_of_change.lock().unwrap() = Box::new(move |_| {
        clock.advance(Duration::from_secs(7));
        Ok(())
    });
    assert!((rig.plan().await.seconds - 7.0).abs() < 0.01);
}

/// The assessment of `slow` ends only when the packages are simulated.
#[tokio::test]
async fn simulation_does_not_wait_for_steps_without_packages() {
    let simulated = Arc::new(Notify::new());
    let (waits, notifies) = (Arc::clone(&simulated), simulated);
    let slow = Step::new(Id::new("slow"), move |_| {
        let waits = Arc::clone(&waits);
        Box::pin(async move {
            waits.notified().await;
            Ok(satisfied("listed"))
        })
    });
    let slow = Small(slow).locks(&[Lock::Modules]);
    let rig = Rig::new([slow, packages("packages", &["p"])]);
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    *rig.change_applier.dry_run_of_change.lock().unwrap() = Box::new(move |change| {
        if matches!(change, Change::InstallPackages { .. }) {
            counted.fetch_add(1, Ordering::SeqCst);
            notifies.notify_one();
        }
        Ok(())
    });
    let report = timeout(Duration::from_secs(10), rig.plan()).await.unwrap();
    assert_eq!(report.exit, Exit::Drift);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

const UNBOUND: Family = Family {
    ids: || vec![Id::new("pci.gpu.present")],
    examine: |_| {
        Box::pin(async {
            let id = Id::new("pci.gpu.present");
            Ok(vec![
                Finding::new(id, Verdict::Fail, "a GPU without a driver")
                    .with_remedy("install one"),
            ])
        })
    },
};

const BLIND: Family = Family {
    ids: || vec![Id::new("ecc")],
    examine: |_| {
        Box::pin(async {
            Err(StepError::Unexpected {
                what: "NVML".to_owned(),
                why: "timed out".to_owned(),
            })
        })
    },
};

const TOOLLESS: Family = Family {
    ids: || vec![Id::new("ecc")],
    examine: |_| {
        Box::pin(async {
            Err(StepError::Exec(ExecError::NotFound {
                program: "dmesg".to_owned(),
            }))
        })
    },
};

#[tokio::test]
async fn unknown_finding_shows_the_error() {
    let mut rig = Rig::new([fixed("a", satisfied("fine"))]);
    rig.checks = &[TOOLLESS];
    let report = rig.check().await;
    let about = &report.findings[1];
    assert_eq!(
        (about.status, about.observed.as_deref()),
        (Verdict::Unknown, Some("`dmesg` is not installed"))
    );
}

#[tokio::test]
async fn steps_and_checks_are_one_list() {
    let mut rig = Rig::new([
        fixed("a", satisfied("fine")),
        file("b", "/b", "x"),
        fixed("c", blocked("no disk space")).after(&["b"]),
        // Steps after a blocked step are also assessed.
        file("d", "/d", "x").after(&["c"]),
        fixed("e", after("d")).after(&["d"]),
    ]);
    rig.checks = &[UNBOUND, BLIND];
    let report = rig.check().await;
    let lines: Vec<String> = report
        .findings
        .iter()
        .map(|finding| format!("{} {:?}", finding.id, finding.status))
        .collect();
    assert_eq!(
        lines,
        [
            "pci.gpu.present Fail",
            "config.resolvable Pass",
            "ecc Unknown",
            "a Pass",
            "b Fail",
            "c Fail",
            "d Fail",
            "e Unknown"
        ]
    );
    assert_eq!(report.findings[7].because, Some(Id::new("d")));
    assert_eq!(
        report.findings[6].remedy.as_deref(),
        Some(
            "use another machine; then run `gpu-bootstrap install`, which is blocked: no disk space"
        )
    );
    assert_eq!(report.findings[2].why, "failed to read NVML: timed out");
    assert_eq!(
        report.findings[7].expected.as_deref(),
        Some("write `/later`")
    );
    assert_eq!(report.exit, Exit::Drift);
    assert_eq!(rig.fakes.files.mutations(), 0);
}

/// The administrator must remove the file in any case, even if the other fault is fixed. Validation
/// failures are consequences of other faults.
#[tokio::test]
async fn fault_with_manual_remedy_is_never_a_consequence() {
    let rig = Rig::new([
        file("driver.module", "/m", "x"),
        file("toolkit.packages", "/t", "x"),
        fixed("cdi", blocked("foreign file")),
        fixed("validation.devices", blocked("no device")),
    ]);
    let report = rig.check().await;
    let because = |id: &str| {
        let found = report.findings.iter().find(|one| one.id.as_str() == id);
        found.expect("the finding").because.clone()
    };
    assert_eq!(because("cdi"), None);
    assert_eq!(
        because("validation.devices"),
        Some(Id::new("driver.module"))
    );
}

#[tokio::test]
async fn reboot_only_step_has_reboot_as_remedy() {
    let reboot = Change::Reboot {
        why: "580 is loaded and 595 is installed".to_owned(),
    };
    let rig = Rig::new([
        fixed("driver.module", needs(vec![reboot.clone()])),
        fixed("driver.nodes", needs(vec![write("/a", "x"), reboot])),
    ]);
    let report = rig.check().await;
    let of = |id: &str| {
        let found = report.findings.iter().find(|one| one.id.as_str() == id);
        let found = found.expect("the finding");
        (found.remedy_class, found.remedy.clone().unwrap_or_default())
    };
    let (class, remedy) = of("driver.module");
    assert_eq!(class, Some(Remedy::Reboot));
    assert_eq!(remedy, "reboot: 580 is loaded and 595 is installed");
    let (class, remedy) = of("driver.nodes");
    assert_eq!(class, None);
    assert!(
        remedy.starts_with("run `gpu-bootstrap install`"),
        "{remedy}"
    );
}

#[tokio::test]
async fn differences_do_not_fail_a_machine_without_settings() {
    let mut rig = Rig::new([
        fixed("packages.hold", needs(vec![write("/a", "x")])),
        fixed("driver.module", needs(vec![write("/b", "x")])),
    ]);
    rig.compares = false;
    let report = rig.check().await;
    assert_eq!(
        verdicts(&report),
        [
            "packages.hold Skip",
            "driver.module Fail",
            "config.resolvable Pass"
        ]
    );
    assert_eq!(report.exit, Exit::Drift);
    assert_eq!(
        report.findings[1].command.as_deref(),
        Some("gpu-bootstrap install")
    );
    let aside = &report.findings[0];
    assert_eq!(
        (aside.kind(), &aside.command),
        (Some(Kind::Difference), &None)
    );
    rig.steps.truncate(1);
    assert_eq!(rig.check().await.exit, Exit::Ok);
    // On a machine with settings, differences fail if `--fail-on` selects them.
    rig.compares = true;
    rig.options.fail_on = vec![FailOn::Kind(Kind::Fault)];
    assert_eq!(rig.check().await.exit, Exit::Ok);
    rig.options.fail_on = vec![FailOn::Kind(Kind::Difference)];
    assert_eq!(rig.check().await.exit, Exit::Drift);
}

#[tokio::test]
async fn blocked_install_is_not_recommended() {
    let rig = Rig::new([
        fixed("driver.packages", blocked("another driver is installed")),
        fixed("driver.module", needs(vec![write("/b", "x")])),
    ]);
    let report = rig.check().await;
    let of = |id: &str| {
        let found = report.findings.iter().find(|one| one.id.as_str() == id);
        found.expect("the finding").clone()
    };
    let module = of("driver.module");
    assert_eq!(module.command, None);
    let remedy = module.remedy.unwrap_or_default();
    assert!(
        remedy.contains("which is blocked: another driver is installed"),
        "{remedy}"
    );
    assert_eq!(of("driver.packages").command, None);
}

/// Package sources that break each update.
const BROKEN_SOURCES: Family = Family {
    ids: || vec![Id::new("os.pkg.sources")],
    examine: |_| {
        Box::pin(async {
            Ok(vec![
                Finding::new(Id::new("os.pkg.sources"), Verdict::Fail, "broken")
                    .with_remedy("run `mv /a /a.disabled && apt-get update`"),
            ])
        })
    },
};

#[tokio::test]
async fn broken_sources_are_corrected_before_install() {
    let mut rig = Rig::new([fixed("driver.module", needs(vec![write("/b", "x")]))]);
    rig.checks = &[BROKEN_SOURCES];
    let report = rig.check().await;
    let of = |id: &str| {
        let found = report.findings.iter().find(|one| one.id.as_str() == id);
        found.expect("the finding").clone()
    };
    let command = Some("mv /a /a.disabled && apt-get update".to_owned());
    assert_eq!(of("os.pkg.sources").command, command);
    let module = of("driver.module");
    assert_eq!(module.command, command);
    let remedy = module.remedy.unwrap_or_default();
    assert!(
        remedy.ends_with("then run `gpu-bootstrap install`"),
        "{remedy}"
    );
}

#[tokio::test]
async fn panicking_step_is_unknown() {
    let rig = Rig::new([
        step("a", |_| panic!("a bug")),
        fixed("b", satisfied("fine")),
    ]);
    let report = rig.check().await;
    assert_eq!(
        verdicts(&report),
        ["config.resolvable Pass", "a Unknown", "b Pass"]
    );
    let about = &report.findings[1];
    assert!(about.why.contains("panicked, which is a bug"), "{about:?}");
    assert_eq!(report.exit, Exit::Drift);
    assert_eq!(outcomes(&rig.plan().await), ["a failed", "b satisfied"]);
}

#[tokio::test]
async fn failed_check_does_not_pass() {
    let mut rig = Rig::new([fixed("a", satisfied("fine"))]);
    assert_eq!(rig.check().await.exit, Exit::Ok);
    rig.checks = &[BLIND];
    assert_eq!(rig.check().await.exit, Exit::Drift);
    rig.options.skip = vec!["ecc".to_owned()];
    assert_eq!(rig.check().await.exit, Exit::Ok);
}

/// A machine without a desired state.
fn unsupported() -> Rig {
    let mut rig = Rig::new([
        file("driver.packages", "/a", "x"),
        fixed("cdi", satisfied("fine")).after(&["driver.packages"]),
    ]);
    rig.unresolvable = Some(Unresolvable {
        why: "fedora 42 is not supported".to_owned(),
        hint: Some("specify a profile".to_owned()),
        needless: false,
        unknown: false,
    });
    rig.checks = &[UNBOUND];
    rig
}

fn verdicts(report: &RunReport) -> Vec<String> {
    let line = |finding: &Finding| format!("{} {:?}", finding.id, finding.status);
    report.findings.iter().map(line).collect()
}

#[tokio::test]
async fn health_checks_run_without_a_desired_state() {
    let mut rig = unsupported();
    let report = rig.check().await;
    assert_eq!(
        verdicts(&report),
        ["pci.gpu.present Fail", "config.resolvable Fail"]
    );
    let last = &report.findings[1];
    assert_eq!(last.why, "fedora 42 is not supported");
    assert_eq!(last.remedy.as_deref(), Some("specify a profile"));
    assert_eq!(
        last.observed.as_deref(),
        Some("unknown system on x86_64, 2 NVIDIA GPUs")
    );
    assert_eq!(report.exit, Exit::Drift);
    assert!(report.steps.is_empty());
    // If only a step is selected, the report contains the reason that the step is not assessed.
    rig.options.only = vec!["cdi".to_owned()];
    assert_eq!(verdicts(&rig.check().await), ["config.resolvable Fail"]);
    rig.options.only = vec!["pci.gpu.present".to_owned()];
    assert_eq!(verdicts(&rig.check().await), ["pci.gpu.present Fail"]);
    rig.options.only.clear();
    rig.options.skip = vec!["config.resolvable".to_owned()];
    assert_eq!(verdicts(&rig.check().await), ["pci.gpu.present Fail"]);
}

#[tokio::test]
async fn machine_without_a_gpu_is_skipped_unless_it_was_prepared() {
    let resolvable = async |rig: &Rig| verdicts(&rig.check().await).remove(0);
    let mut rig = unsupported();
    rig.checks = &[];
    rig.facts.gpus.clear();
    assert_eq!(resolvable(&rig).await, "config.resolvable Skip");
    assert_eq!(rig.check().await.exit, Exit::Ok);
    rig.prepared = true;
    assert_eq!(resolvable(&rig).await, "config.resolvable Fail");
    rig.prepared = false;
    rig.facts.unknown.push(Unknown {
        fact: "gpus".to_owned(),
        why: "sysfs is missing".to_owned(),
    });
    assert_eq!(resolvable(&rig).await, "config.resolvable Unknown");
    // A complete check fails if no finding passes. With `--only`, an unknown finding does not fail.
    assert_eq!(rig.check().await.exit, Exit::Drift);
    rig.options.only = vec!["config.resolvable".to_owned()];
    assert_eq!(rig.check().await.exit, Exit::Ok);
}

#[tokio::test]
async fn configuration_is_reported_only_if_selected() {
    let mut rig = Rig::new([fixed("driver.packages", satisfied(""))]);
    let is_reported = |report: &RunReport| report.findings.iter().any(|one| one.id == RESOLVABLE);
    assert!(is_reported(&rig.check().await));
    rig.options.only = vec!["driver".to_owned()];
    assert!(!is_reported(&rig.check().await));
}

#[tokio::test]
async fn only_and_skip_accept_names_and_families() {
    let mut rig = Rig::new([
        fixed("driver.packages", satisfied("")),
        fixed("driver.module", satisfied("")).after(&["driver.packages"]),
        fixed("driverless", satisfied("")),
        fixed("cdi", satisfied("")).after(&["driver.module"]),
    ]);
    rig.options.only = vec!["driver".to_owned(), "cdi".to_owned()];
    rig.options.skip = vec!["driver.module".to_owned()];
    let report = rig.check().await;
    assert_eq!(
        outcomes(&report),
        ["driver.packages satisfied", "cdi satisfied"]
    );
}

#[tokio::test]
async fn nonexistent_finding_is_an_error() {
    for name in ["driver.modul", "driver.module.x", "drive", "ecc."] {
        let mut rig = Rig::new([fixed("driver.module", satisfied(""))]);
        rig.checks = &[BLIND];
        rig.options.skip = vec!["driver".to_owned(), "ecc".to_owned()];
        rig.options.only = vec![name.to_owned()];
        let error = rig.refused();
        assert_eq!(error.exit(), Exit::Usage, "{name}");
        assert!(format!("{error}").contains(&format!("`{name}`")), "{error}");
    }
}

#[tokio::test]
async fn failed_assessment_after_a_pending_step_waits_for_it() {
    let mut rig = Rig::new([
        file("a", "/a", "x"),
        step("b", |_| satisfied("")).after(&["a"]),
        step("c", |_| satisfied("")),
    ]);
    for small in &mut rig.steps[1..] {
        small.fails();
    }
    let report = rig.plan().await;
    assert_eq!(
        outcomes(&report),
        ["a would-change", "b would-change", "c failed"]
    );
    assert!(why(&report, "b").starts_with("after `a`"));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(outcomes(&report), ["a not-run", "b not-run", "c failed"]);
    assert_eq!(report.summary().failed, 1);
    assert_eq!(Outcome::Failed.word(), "failed");
}

#[tokio::test]
async fn check_and_plan_can_be_stopped_at_any_time() {
    let rig = Rig::new([fixed("a", satisfied("fine"))]);
    rig.cancel.cancel(Exit::Interrupted);
    assert_eq!(rig.check().await.exit, Exit::Interrupted);
    assert_eq!(rig.plan().await.exit, Exit::Interrupted);
}
