//! Obsolete changes of a removed setting are shown, reported and undone.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::kit::{
    FileChanges, Rig, Small, WANTS, exists, file, install, needs, outcomes, packages, satisfied,
    step, why,
};
use crate::{
    change::{ApplyChanges, Change, ChangeError, Lock, Sink, Undo, packages::Reduced},
    check::Verdict,
    config::desired::Restart,
    engine::{RunReport, status},
    event::Event,
    exit::Exit,
    host::fake::{failed, ok},
};

/// Undoes the obsolete part of a change. Packages are compared by name.
pub async fn part(
    change_applier: &FileChanges,
    undo: &Undo,
    wanted: &BTreeSet<String>,
    sink: &dyn Sink,
) -> Result<Reduced, ChangeError> {
    let (mut going, mut rest) = (undo.clone(), undo.clone());
    for (undo, stays) in [(&mut going, false), (&mut rest, true)] {
        if let Undo::Packages {
            effects: Some(effects),
            ..
        } = undo
        {
            effects
                .appeared
                .retain(|name| wanted.contains(name) == stays);
        }
    }
    let reverted = change_applier.revert(&going, sink).await?;
    Ok(Reduced { reverted, rest })
}

/// Two steps share a package transaction, a third one configures Docker, and a fourth one has an unrelated file.
fn rig() -> Rig {
    Rig::new([
        packages("driver", &["driver"]),
        packages("docker", &["docker"]),
        file("docker-nvidia", "/etc/docker", "nvidia").after(&["docker"]),
        file("other", "/etc/other", "new").after(&["docker-nvidia"]),
    ])
}

/// The undo of the shared transaction, as formatted by [`applied`].
const SHARED: &str =
    "driver: undo: install driver, docker (configured packages and their dependencies stay)";

/// Returns the changes that were applied since the last call, with their first step.
fn applied(rig: &Rig) -> Vec<String> {
    (std::mem::take(&mut *rig.events.lock().unwrap()).into_iter())
        .filter_map(|envelope| match envelope.event {
            Event::ChangeApplied { steps, summary, .. } => Some(format!("{}: {summary}", steps[0])),
            _ => None,
        })
        .collect()
}

/// An installed machine whose settings no longer contain docker.
async fn reduced() -> Rig {
    let mut rig = rig();
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(
        rig.log(),
        [
            "refresh the package lists",
            "install driver, docker",
            "write `/etc/docker`",
            "write `/etc/other`",
        ]
    );
    rig.steps[1].reduce();
    rig.steps[2].reduce();
    rig.wanted = vec!["driver"];
    rig
}

#[tokio::test]
async fn check_and_plan_show_obsolete_changes() {
    let rig = reduced().await;
    let before = rig.fakes.files.snapshot();
    let checked = rig.check().await;
    assert_eq!(checked.exit, Exit::Drift);
    let failed: Vec<_> = (checked.findings.iter())
        .filter(|finding| finding.status == Verdict::Fail)
        .map(|finding| finding.id.as_str())
        .collect();
    assert_eq!(failed, ["docker", "docker-nvidia"]);
    let of_file = (checked.findings.iter()).find(|one| one.id.as_str() == "docker-nvidia");
    let remedy = of_file.and_then(|one| one.remedy.as_deref()).unwrap();
    assert!(
        remedy.contains("it would undo: write `/etc/docker`"),
        "{remedy}"
    );

    let planned = rig.plan().await;
    assert_eq!(planned.exit, Exit::Drift);
    assert_eq!(
        why(&planned, "docker"),
        "1 obsolete change is still applied"
    );
    let shown: Vec<String> = (planned.steps.iter())
        .flat_map(|step| step.changes.iter())
        .map(|change| format!("{}: {}", change.kind, change.summary))
        .collect();
    assert_eq!(
        shown,
        [
            "undo: undo: install driver, docker (configured packages and their dependencies stay)",
            "undo: undo: write `/etc/docker`",
        ]
    );
    assert_eq!(rig.fakes.files.snapshot(), before);
}

#[tokio::test]
async fn install_undoes_obsolete_changes_and_keeps_shared_packages() {
    let rig = reduced().await;
    rig.kinds();
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        applied(&rig),
        ["docker-nvidia: undo: write `/etc/docker`", SHARED]
    );
    // The configuration file of Docker is removed before its package.
    assert_eq!(rig.log(), ["restore /etc/docker", "purge docker"]);
    assert_eq!(
        outcomes(&report),
        [
            "driver satisfied",
            "docker changed",
            "docker-nvidia changed",
            "other satisfied"
        ]
    );
    assert_eq!(rig.plan().await.exit, Exit::Ok);
    assert_eq!(rig.check().await.exit, Exit::Ok);
    let told = status(&rig.fakes.host(), None).unwrap();
    assert_eq!(told.steps_applied, ["other", "driver"]);

    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert!(rig.log().is_empty(), "a second run changes nothing");
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["restore /etc/other", "purge driver"]);
}

#[tokio::test]
async fn shared_transaction_waits_until_other_steps_are_satisfied() {
    let rig = reduced().await;
    rig.fakes.files.take("/packages/driver");
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(
        rig.log(),
        [
            "restore /etc/docker",
            "refresh the package lists",
            "install driver",
            "purge docker",
        ]
    );
    assert_eq!(rig.plan().await.exit, Exit::Ok);
}

#[tokio::test]
async fn transaction_shared_with_the_driver_stays_without_a_gpu() {
    let mut rig = reduced().await;
    let driver = rig.steps[0].clone();
    rig.steps[0].has_no_gpu();
    (rig.no_gpu, rig.wanted) = (true, vec![]);
    let checked = rig.check().await;
    let note = checked.notes.join("\n");
    assert!(
        note.contains("parts of it stay until the machine has a GPU again"),
        "{note}"
    );
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(report.notes.iter().any(|note| note.contains("`driver`")));
    // The file does not depend on a driver package.
    assert_eq!(rig.log(), ["restore /etc/docker"]);
    // The GPU is present again.
    rig.steps[0] = driver;
    (rig.no_gpu, rig.wanted) = (false, vec!["driver"]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge docker"]);
}

#[tokio::test]
async fn shared_runtime_packages_are_reduced_without_a_gpu() {
    let mut rig = reduced().await;
    // The other step of the transaction is still satisfied, like a runtime step, which needs no GPU.
    (rig.no_gpu, rig.wanted) = (true, vec!["driver"]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(rig.log(), ["restore /etc/docker", "purge docker"]);
}

#[tokio::test]
async fn failed_undo_is_reported_and_retried() {
    let rig = reduced().await;
    rig.kinds();
    *rig.change_applier.fails.lock().unwrap() = Some("restore /etc/docker".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["restore /etc/docker: in use"]);
    assert_eq!(applied(&rig), [SHARED]);
    assert_eq!(rig.check().await.exit, Exit::Drift);
    *rig.change_applier.fails.lock().unwrap() = None;
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.check().await.exit, Exit::Ok);
}

#[tokio::test]
async fn killed_reduction_can_be_repeated() {
    let wanted = {
        let rig = reduced().await;
        rig.install().await.unwrap();
        rig.fakes.files.snapshot().without(&["/run", "/var/lib"])
    };
    for n in 1..60 {
        let rig = reduced().await;
        rig.fakes.files.kill_at(n);
        // The process is dead, so its result is irrelevant.
        let _said = rig.install().await;
        let killed = rig.fakes.files.killed();
        rig.fakes.files.revive();
        assert_eq!(rig.install().await.unwrap().exit, Exit::Ok, "killed at {n}");
        let now = rig.fakes.files.snapshot().without(&["/run", "/var/lib"]);
        assert_eq!(now, wanted, "killed at {n}");
        assert_eq!(rig.check().await.exit, Exit::Ok, "killed at {n}");
        if !killed {
            return;
        }
    }
    panic!("the reduction writes more often than expected");
}

#[tokio::test]
async fn unreadable_journal_is_reported_but_check_and_plan_continue() {
    let rig = reduced().await;
    rig.fakes
        .files
        .put("/var/lib/gpu-bootstrap/journal.jsonl", "not json\n{}\n");
    for report in [rig.check().await, rig.plan().await] {
        assert_eq!(report.exit, Exit::Ok);
        assert!(
            report.notes[0].contains("(obsolete changes are unknown)"),
            "{:?}",
            report.notes
        );
    }
}

/// A step that installs a daemon and enables its unit.
fn daemon(id: &'static str, package: &'static str, unit: &'static str) -> Small {
    let step = step(id, move |host| {
        let there = [format!("/packages/{package}"), format!("{WANTS}/{unit}")];
        if there.iter().all(|path| exists(host, path)) {
            return satisfied("enabled");
        }
        needs(vec![
            Change::RefreshRepositories,
            install(&[package]),
            Change::EnableUnit {
                unit: unit.to_owned(),
                start: true,
            },
        ])
    });
    step.locks(&[Lock::Packages])
}

/// Running containers are stopped only if `runtime.restart` is `"always"`. Removing a runtime from
/// `runtime.use` is not sufficient, because the settings may be shared by a fleet.
#[tokio::test]
async fn runtime_stays_while_its_containers_run() {
    const LINES: &str = "web\ndb\n";
    const TASKS: &str = "TASK    PID    STATUS\nweb     7      RUNNING\ndb      8      PAUSED\n";
    for (id, name, unit, client, says) in rows! {
        "runtime.docker", "docker", "docker.service", "docker", LINES;
        "runtime.containerd", "containerd", "containerd.service", "ctr", TASKS;
    } {
        let mut rig = Rig::new([
            packages("driver", &["driver"]),
            daemon(id, name, unit),
            file("other", "/etc/other", "new"),
        ]);
        assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
        rig.steps[1].reduce();
        rig.wanted = vec!["driver"];
        rig.fakes.exec.on(client, move |_, _| ok(says));
        rig.log();
        let words = format!("{name} is running the containers web, db");
        let told = |report: &RunReport| report.notes.join("\n").contains(&words);
        let planned = rig.plan().await;
        assert!(told(&planned), "{:?}", planned.notes);
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::Partial);
        assert!(told(&report) && report.left.len() == 1, "{report:?}");
        assert!(rig.log().is_empty(), "{name}: its unit also stays");
        // An active daemon that does not respond may have containers. An inactive daemon has none.
        for (active, stays) in [("active", true), ("inactive", false)] {
            let state = format!("LoadState=loaded\nActiveState={active}\nUnitFileState=enabled\n");
            (rig.fakes.exec).on(client, |_, _| failed(1, "Cannot connect to the daemon"));
            (rig.fakes.exec).on("systemctl", move |_, _| ok(state.clone()));
            let report = rig.install().await.unwrap();
            assert_eq!(report.exit == Exit::Partial, stays, "{active}: {report:?}");
            let undone = match stays {
                true => Vec::new(),
                false => vec![format!("disable {unit}"), format!("purge {name}")],
            };
            assert_eq!(rig.log(), undone, "{active}");
        }
    }
}

/// The purge waits for the packages of another step, and a container is started in the meantime.
#[tokio::test]
async fn runtime_stays_if_containers_are_started_during_the_run() {
    let mut rig = Rig::new([
        packages("driver", &["driver"]).locks(&[Lock::Packages]),
        packages("runtime.docker", &["docker"]),
    ]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.steps[1].reduce();
    rig.steps[0] = packages("driver", &["driver", "newer"]).locks(&[Lock::Packages]);
    rig.wanted = vec!["driver", "newer"];
    let is_busy = Arc::new(AtomicBool::new(false));
    let starts = Arc::clone(&is_busy);
    *rig.change_applier.before.lock().unwrap() =
        Box::new(move |_| starts.store(true, Ordering::SeqCst));
    (rig.fakes.exec).on("docker", move |_, _| {
        ok(if is_busy.load(Ordering::SeqCst) {
            "job\n"
        } else {
            ""
        })
    });
    rig.log();
    let report = rig.install().await.unwrap();
    let log = rig.log();
    assert!(log.iter().any(|line| line.contains("install")), "{log:?}");
    assert!(!log.iter().any(|line| line.contains("purge")), "{log:?}");
    assert_eq!(report.exit, Exit::Partial, "{report:#?}");
    let told = |note: &String| note.contains("docker is running the containers job");
    assert!(report.notes.iter().any(told), "{:?}", report.notes);
}

#[tokio::test]
async fn runtime_with_containers_is_removed_if_restarts_are_allowed() {
    let mut rig = Rig::new([
        packages("driver", &["driver"]),
        packages("runtime.docker", &["docker"]),
    ]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.steps[1].reduce();
    rig.wanted = vec!["driver"];
    rig.settings = |desired| {
        desired.runtimes.clear();
        desired.runtime_restart = Restart::Always;
    };
    rig.fakes.exec.on("docker", |_, _| ok("web\n"));
    rig.log();
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge docker"]);
}
