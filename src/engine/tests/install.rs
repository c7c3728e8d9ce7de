//! Scheduling: order, merging, locks, failure, cancellation.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::kit::{
    Rig, blocked, exists, file, fixed, install, needs, outcome, outcomes, packages, satisfied,
    step, why, write,
};
use crate::{
    change::{Admission, Change, Lock},
    engine::{EngineError, GraphError, Session},
    error::Report,
    event::{Event, Outcome},
    exit::Exit,
    step::Assessment,
    steps::fixtures,
};

/// Between the assessment and the change, package manager simulations may run for a minute. Another
/// program may write the file in this time.
#[tokio::test]
async fn file_changed_after_assessment_is_read_again() {
    const FSTAB: &str = "/etc/fstab";
    // A program that changes the file again after each assessment makes the run fail.
    for (changes, exit) in [(1, Exit::Ok), (u32::MAX, Exit::StepFailed)] {
        let mut rig = Rig::new([]);
        let files = rig.fakes.files.clone();
        files.put(FSTAB, "swap\n");
        let left = AtomicU32::new(changes);
        let without_swap = step("swap", move |_| {
            let text = files.text(FSTAB);
            if left.load(Ordering::SeqCst) > 0 {
                left.fetch_sub(1, Ordering::SeqCst);
                files.put(FSTAB, format!("{text}mount\n"));
            }
            if !text.contains("swap\n") {
                return satisfied("no swap area");
            }
            needs(vec![Change::WriteFile {
                path: FSTAB.into(),
                content: text.replace("swap\n", ""),
                mode: 0o644,
                over: Some(text),
            }])
        });
        rig.steps = vec![without_swap];
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, exit, "{report:#?}");
        let text = rig.fakes.files.text(FSTAB);
        assert!(text.contains("mount\n"), "{text}");
        assert_eq!(text.contains("swap\n"), exit != Exit::Ok, "{text}");
    }
}

#[tokio::test]
async fn package_work_of_ready_steps_is_merged() {
    let rig = Rig::new([
        file("first", "/first", "x").locks(&[Lock::Packages]),
        packages("a", &["libc", "one"]).after(&["first"]),
        packages("b", &["two", "libc"]).after(&["first"]),
        packages("c", &["three"]).after(&["first"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok, "{report:#?}");
    assert_eq!(
        rig.log(),
        [
            "write `/first`",
            "refresh the package lists",
            "install libc, one, two, three"
        ]
    );
    assert_eq!(
        outcomes(&report),
        ["first changed", "a changed", "b changed", "c changed"]
    );
    let journal = rig.fakes.files.text("/var/lib/gpu-bootstrap/journal.jsonl");
    let transaction = journal
        .lines()
        .find(|line| line.contains("install-packages"))
        .unwrap();
    assert!(transaction.contains(r#""steps":["a","b","c"]"#));

    let again = rig.install().await.unwrap();
    assert_eq!(again.exit, Exit::Ok);
    assert!(rig.log().is_empty());
    assert!(
        again
            .steps
            .iter()
            .all(|step| step.outcome == Outcome::Satisfied)
    );
}

#[tokio::test]
async fn later_step_gets_a_separate_transaction_without_refresh() {
    let rig = Rig::new([
        packages("headers", &["headers"]),
        packages("driver", &["driver"]).after(&["headers"]),
        packages("docker", &["docker"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        rig.log(),
        [
            "refresh the package lists",
            "install headers, docker",
            "install driver"
        ]
    );
}

#[tokio::test]
async fn packages_of_a_long_step_are_installed_first() {
    let rig = || {
        Rig::new([
            packages("driver", &["driver"]),
            packages("docker", &["docker"]),
            packages("toolkit", &["toolkit"]),
            step("image", |host| {
                match (exists(host, "/packages/docker"), exists(host, "/image")) {
                    (_, true) => satisfied("pulled"),
                    (true, false) => needs(vec![write("/image", "")]),
                    (false, false) => Assessment::After {
                        upstream: crate::model::id::Id::new("docker"),
                        why: "not installed".to_owned(),
                        expected: vec![write("/image", "")],
                    },
                }
            })
            .after(&["docker", "toolkit"])
            .locks(&[Lock::Containers])
            .long(),
        ])
    };
    let bare = rig();
    let report = bare.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok, "{report:#?}");
    let log = bare.log();
    assert_eq!(
        log[..2],
        ["refresh the package lists", "install docker, toolkit"]
    );
    assert!(log[2..].contains(&"install driver".to_owned()), "{log:?}");
    assert!(log[2..].contains(&"write `/image`".to_owned()), "{log:?}");
    // If the long step has nothing to do, no separate transaction is needed.
    let pulled = rig();
    pulled.fakes.files.put("/image", "");
    pulled.install().await.unwrap();
    assert_eq!(pulled.log()[1], "install driver, docker, toolkit");
}

#[tokio::test]
async fn conflicting_versions_are_not_merged() {
    let spec = |id, version: &'static str| {
        step(id, move |host| {
            if exists(host, "/packages/p") && exists(host, "/stop") {
                return satisfied("there");
            }
            needs(vec![Change::InstallPackages {
                packages: vec![crate::config::desired::PackageSpec {
                    name: "p".to_owned(),
                    version: Some(version.to_owned()),
                }],
                removing: Vec::new(),
                later: false,
            }])
        })
        .locks(&[Lock::Packages])
    };
    let rig = Rig::new([spec("a", "1"), spec("b", "2")]);
    rig.install().await.unwrap();
    let installs: Vec<String> = (rig.log().into_iter())
        .filter(|line| line.starts_with("install "))
        .collect();
    assert_eq!(installs, ["install p=1"]);
}

#[tokio::test]
async fn blocked_run_changes_nothing_and_reports_all_reasons() {
    let rig = Rig::new([
        file("a", "/a", "x"),
        fixed("b", blocked("no GPU")),
        fixed("c", blocked("Secure Boot is enabled")).after(&["a"]),
        file("d", "/d", "x").after(&["c"]),
        fixed("e", satisfied("fine")),
    ]);
    let before = rig.fakes.files.snapshot().without(&["/run"]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Blocked);
    assert_eq!(
        outcomes(&report),
        [
            "a not-run",
            "b blocked",
            "c blocked",
            "d not-run",
            "e satisfied"
        ]
    );
    assert_eq!(why(&report, "a"), "`b` is blocked");
    assert_eq!(why(&report, "d"), "`c` is blocked");
    assert!(rig.log().is_empty());
    assert_eq!(before, rig.fakes.files.snapshot().without(&["/run"]));
}

#[tokio::test]
async fn failed_change_stops_new_work_and_reports_the_cause() {
    let rig = Rig::new([
        file("a", "/a", "x"),
        file("b", "/b", "x").after(&["a"]),
        file("c", "/c", "x").after(&["b"]),
        fixed("d", satisfied("fine")),
    ]);
    *rig.change_applier.fails.lock().unwrap() = Some("`/a`".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(
        outcomes(&report),
        ["a failed", "b not-run", "c not-run", "d satisfied"]
    );
    assert_eq!(why(&report, "a"), "failed to write `/a`");
    assert_eq!(report.steps[0].causes, ["exited with status 100"]);
    assert_eq!(report.steps[0].hint.as_deref(), Some("repair it"));
    assert_eq!(why(&report, "c"), "`a` failed");
    assert!(!rig.tree().contains("/c"));
}

#[tokio::test]
async fn unverified_step_fails() {
    let rig = Rig::new([step("a", |_| needs(vec![write("/a", "x")]))]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(report.steps[0].causes, ["before: missing", "now: missing"]);
}

#[tokio::test]
async fn unsatisfied_step_without_a_change_is_a_bug() {
    let rig = Rig::new([step("a", |_| needs(Vec::new()))]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Internal);
    assert!(
        why(&report, "a").contains("returned no change"),
        "{report:?}"
    );
}

#[tokio::test]
async fn step_satisfied_after_a_failed_verification_is_changed() {
    let admitted = Arc::new(AtomicU32::new(0));
    let looks = AtomicU32::new(0);
    let seen = admitted.clone();
    let rig = Rig::new([step("node", move |_| {
        // The cluster does not respond to the first assessment after the admission.
        if seen.load(Ordering::SeqCst) > 0 && looks.fetch_add(1, Ordering::SeqCst) > 0 {
            return satisfied("it is Ready");
        }
        let admission = Admission {
            node: "gpu-1".parse().unwrap(),
            labels: Default::default(),
            startup_taints: Vec::new(),
            access: None,
            timeout_seconds: 1,
        };
        needs(vec![Change::AdmitNode { admission }])
    })]);
    *rig.change_applier.before.lock().unwrap() = Box::new(move |_| {
        admitted.fetch_add(1, Ordering::SeqCst);
    });
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(outcomes(&report), ["node changed"]);
}

#[tokio::test]
async fn node_is_admitted_again_once_if_cluster_is_unreachable() {
    for (needed, exit, outcome) in [
        (1, Exit::Ok, "node changed"),
        (2, Exit::Ok, "node changed"),
        (3, Exit::StepFailed, "node failed"),
    ] {
        let admitted = Arc::new(AtomicU32::new(0));
        let (seen, counted) = (admitted.clone(), admitted.clone());
        let rig = Rig::new([step("node", move |_| {
            if seen.load(Ordering::SeqCst) >= needed {
                return satisfied("the node is Ready");
            }
            let admission = Admission {
                node: "gpu-1".parse().unwrap(),
                labels: Default::default(),
                startup_taints: Vec::new(),
                access: None,
                timeout_seconds: 1,
            };
            needs(vec![Change::AdmitNode { admission }])
        })]);
        *rig.change_applier.before.lock().unwrap() = Box::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, exit, "{report:#?}");
        assert_eq!(outcomes(&report), [outcome]);
        assert_eq!(admitted.load(Ordering::SeqCst), needed.min(2));
    }
}

#[tokio::test]
async fn dependent_step_is_assessed_again_after_its_upstream() {
    let rig = Rig::new([
        file("up", "/up", "x"),
        step("down", |host| {
            if exists(host, "/down") {
                satisfied("there")
            } else if exists(host, "/up") {
                needs(vec![write("/down", "y")])
            } else {
                Assessment::After {
                    upstream: crate::model::id::Id::new("up"),
                    why: "no module yet".to_owned(),
                    expected: vec![write("/down", "?")],
                }
            }
        })
        .after(&["up"]),
        step("never", |_| Assessment::After {
            upstream: crate::model::id::Id::new("up"),
            why: "never".to_owned(),
            expected: Vec::new(),
        })
        .after(&["down"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(
        outcomes(&report),
        ["up changed", "down changed", "never failed"]
    );
    assert_eq!(report.exit, Exit::Internal);
}

#[tokio::test]
async fn signal_finishes_running_change_and_starts_no_new_work() {
    let rig = Rig::new([
        step("a", |host| {
            if exists(host, "/2") {
                satisfied("both")
            } else {
                needs(vec![write("/1", ""), write("/2", "")])
            }
        }),
        file("b", "/b", "").after(&["a"]),
    ]);
    let cancel = rig.cancel.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |_| cancel.cancel(Exit::Terminated));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Terminated);
    assert_eq!(rig.log(), ["write `/1`"]);
    assert_eq!(
        why(&report, "a"),
        "stopped by SIGTERM, after 1 of 2 changes"
    );
    assert_eq!(outcomes(&report), ["a not-run", "b not-run"]);
    let journal = rig.fakes.files.text("/var/lib/gpu-bootstrap/journal.jsonl");
    assert!(journal.contains(r#""kind":"run-finished","exit":143"#));
}

#[tokio::test]
async fn signal_during_the_last_change_does_not_stop_the_run() {
    let rig = Rig::new([file("a", "/a", "x")]);
    let cancel = rig.cancel.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |_| cancel.cancel(Exit::Terminated));
    let report = rig.install().await.unwrap();
    assert_eq!(outcomes(&report), ["a changed"]);
    assert_eq!(report.exit, Exit::Ok);
}

#[tokio::test]
async fn hang_up_is_reported_as_the_reason() {
    let rig = Rig::new([file("a", "/a", "")]);
    rig.cancel.hang_up();
    let report = rig.install().await.unwrap();
    assert_eq!(why(&report, "a"), "stopped by SIGHUP");
    assert_eq!(report.exit, Exit::Terminated);
}

#[tokio::test]
async fn waiting_change_is_stopped_and_has_not_failed() {
    let rig = Rig::new([packages("a", &["one"]), file("b", "/b", "").after(&["a"])]);
    *rig.change_applier.waits.lock().unwrap() = Some(rig.cancel.clone());
    let cancel = rig.cancel.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |change| {
        if matches!(change, Change::InstallPackages { .. }) {
            cancel.cancel(Exit::Terminated);
        }
    });
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Terminated);
    assert_eq!(outcomes(&report), ["a not-run", "b not-run"]);
    assert!(report.steps.iter().all(|step| step.causes.is_empty()));
}

#[tokio::test]
async fn lock_error_reports_the_holder() {
    let rig = Rig::new([file("a", "/a", "x")]);
    rig.fakes.files.hold_lock(
        "/run/gpu-bootstrap/lock",
        "pid 812, `gpu-bootstrap install`, since 2026-01-01T00:00:00Z\n",
    );
    let error = rig.install().await.unwrap_err();
    assert_eq!(error.exit(), Exit::Busy);
    assert!(error.to_string().contains("pid 812"), "{error}");
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn only_unchanged_machine_reports_blocked() {
    for (first, exit) in [
        (file("a", "/a", "x"), Exit::StepFailed),
        (fixed("a", satisfied("fine")), Exit::Blocked),
    ] {
        let rig = Rig::new([first, file("b", "/b", "x").after(&["a"])]);
        *rig.change_applier.refuses.lock().unwrap() = Some("write `/b`".to_owned());
        let report = rig.install().await.unwrap();
        assert_eq!(outcome(&report, "b"), Outcome::Failed);
        assert_eq!(report.exit, exit);
    }
}

#[tokio::test]
async fn panic_in_a_step_fails_only_this_step() {
    let rig = Rig::new([
        step("a", |_| panic!("a bug")),
        fixed("b", satisfied("fine")),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(outcome(&report, "a"), Outcome::Failed);
    assert_eq!(outcome(&report, "b"), Outcome::Satisfied);
}

#[tokio::test]
async fn change_does_not_wait_for_unrelated_locks() {
    let rig = Rig::new([
        file("a", "/a", "").locks(&[Lock::Modules]),
        file("b", "/b", "").locks(&[Lock::Containers]),
        file("c", "/c", "").locks(&[Lock::Modules]),
    ]);
    rig.install().await.unwrap();
    let started = starts_and_ends(&rig);
    let at = |what: &str| started.iter().position(|line| line == what).unwrap();
    assert!(at("start b") < at("end a"), "{started:?}");
    assert!(at("end a") < at("start c"), "{started:?}");
}

/// Returns the start and the end of each change, with its first step.
fn starts_and_ends(rig: &Rig) -> Vec<String> {
    rig.seen()
        .iter()
        .filter_map(|event| match event {
            Event::ChangeStarted { steps, .. } => Some(format!("start {}", steps[0])),
            Event::ChangeApplied { steps, .. } => Some(format!("end {}", steps[0])),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn module_is_compiled_in_parallel_with_unrelated_packages() {
    let both = [Lock::Packages, Lock::Modules];
    let rig = Rig::new([
        packages("headers", &["headers"]).locks(&both),
        step("driver", |host| {
            let compile = Change::BuildModule {
                module: "nvidia".to_owned(),
                kernel: "6.1".to_owned(),
            };
            match (
                exists(host, "/packages/driver"),
                exists(host, "/built/nvidia"),
            ) {
                (true, true) => satisfied("compiled"),
                (true, false) => needs(vec![compile]),
                (false, _) => needs(vec![
                    Change::RefreshRepositories,
                    install(&["driver"]),
                    compile,
                ]),
            }
        })
        .locks(&both),
        packages("docker", &["docker"]),
        packages("toolkit", &["toolkit"]),
        // The transaction does not wait for package steps behind the build.
        fixed("behind", Assessment::not_applicable("nothing"))
            .after(&["driver"])
            .locks(&[Lock::Packages]),
        file("module", "/module", "x").after(&["driver"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok, "{report:#?}");
    assert_eq!(
        rig.log(),
        [
            "refresh the package lists",
            "install headers, driver",
            "build kernel module `nvidia` for 6.1",
            "install docker, toolkit",
            "write `/module`"
        ]
    );
    let spans = starts_and_ends(&rig);
    let at = |what: &str| spans.iter().rposition(|line| line == what).unwrap();
    assert!(at("start docker") < at("end driver"), "{spans:?}");
    assert!(at("end docker") < at("end driver"), "{spans:?}");
    // The scripts of the first packages leave the module build to the next change.
    let journal = rig.fakes.files.text("/var/lib/gpu-bootstrap/journal.jsonl");
    let mut transactions = (journal.lines()).filter(|line| line.contains("install-packages"));
    let left = |line: Option<&str>| line.unwrap().contains(r#""later":true"#);
    assert!(left(transactions.next()), "{journal}");
    assert!(!left(transactions.next()), "{journal}");
    rig.fakes.files.take("/built/nvidia");
    // After an interrupted run, only the module is missing.
    rig.install().await.unwrap();
    assert_eq!(rig.log(), ["build kernel module `nvidia` for 6.1"]);
}

#[tokio::test]
async fn refresh_does_not_wait_for_unrelated_changes() {
    let compile = Change::BuildModule {
        module: "zfs".to_owned(),
        kernel: "6.1".to_owned(),
    };
    let rig = Rig::new([
        step("long", move |host| match exists(host, "/built/zfs") {
            true => satisfied("compiled"),
            false => needs(vec![compile.clone()]),
        })
        .locks(&[Lock::Modules]),
        packages("driver", &["driver"]).locks(&[Lock::Packages, Lock::Modules]),
    ]);
    rig.install().await.unwrap();
    let spans = starts_and_ends(&rig);
    let at = |what: &str| spans.iter().position(|line| line == what).unwrap();
    assert!(at("end driver") < at("end long"), "{spans:?}");
    // The packages of `driver` are installed after the module of `long` is built.
    let last = spans.iter().rposition(|line| line == "start driver");
    assert!(Some(at("end long")) < last, "{spans:?}");
}

#[tokio::test]
async fn failed_module_build_does_not_affect_packages() {
    let rig = Rig::new([
        step("driver", |host| {
            let changes = [
                install(&["driver"]),
                Change::BuildModule {
                    module: "nvidia".to_owned(),
                    kernel: "6.1".to_owned(),
                },
            ];
            let there = exists(host, "/packages/driver");
            needs(changes[usize::from(there)..].to_vec())
        })
        .locks(&[Lock::Packages, Lock::Modules]),
        packages("docker", &["docker"]),
        file("module", "/module", "x").after(&["driver"]),
    ]);
    *rig.change_applier.fails.lock().unwrap() = Some("build kernel module".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(
        outcomes(&report),
        ["driver failed", "docker changed", "module not-run"]
    );
}

#[tokio::test]
async fn cyclic_step_list_is_rejected() {
    let order = |steps: Vec<super::kit::Small>| {
        let rig = Rig::new(steps);
        let steps = rig.steps.iter().map(|small| small.0.clone()).collect();
        let (tools, reporter) = rig.tools("x");
        let state = fixtures::state(&tools.host, fixtures::facts());
        let error = Session::new(tools, steps, state, fixtures::desired())
            .err()
            .unwrap();
        reporter.finish();
        match error {
            EngineError::Graph(error) => error,
            other => panic!("{other}"),
        }
    };
    let one = |id| fixed(id, satisfied(""));
    assert_eq!(
        order(vec![one("a").after(&["b"]), one("b").after(&["a"])]).to_string(),
        "order the steps: `a`, `b` wait for each other"
    );
    assert!(matches!(
        order(vec![one("a").after(&["nowhere"])]),
        GraphError::Unknown { .. }
    ));
    assert!(matches!(
        order(vec![one("a"), one("a")]),
        GraphError::Twice { .. }
    ));
    assert_eq!(install(&["x"]).summary(), "install x");
}

#[tokio::test]
async fn panicking_change_fails_its_step_and_ends_the_run() {
    let rig = Rig::new([file("a", "/a", "x"), file("b", "/b", "x").after(&["a"])]);
    *rig.change_applier.before.lock().unwrap() = Box::new(|_| panic!("a bug"));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Internal);
    assert_eq!(outcomes(&report), ["a failed", "b not-run"]);
    assert!(why(&report, "a").contains("task panicked"));
}

#[tokio::test]
async fn node_is_reported_as_validated_only_by_a_successful_validation() {
    let skipped = || Assessment::not_applicable("validation.compute = false");
    for (compute, expected) in [
        (satisfied("kernels run"), Some("on the host")),
        (skipped(), None),
    ] {
        let rig = Rig::new([
            fixed("driver.module", satisfied("loaded")),
            fixed("validation.container", skipped()),
            fixed("validation.compute", compute),
        ]);
        rig.fakes.files.put("/var/lib/dpkg/status", "");
        let report = rig.install().await.unwrap();
        let node = report.node.expect("a node");
        assert_eq!(node.validated.as_deref(), expected);
    }
}
