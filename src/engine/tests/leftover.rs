//! A setting that is taken back: what it has left is shown, reported and undone.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::kit::{
    FileVerbs, Rig, Small, WANTS, exists, file, install, needs, outcomes, packages, satisfied,
    step, why,
};
use crate::{
    change::{Change, Lock, Problem, Sink, Undo, Verbs, packages::Withdrawn},
    check::Verdict,
    config::desired::Restart,
    engine::{RunReport, status},
    event::Event,
    exit::Exit,
    host::fake::{failed, ok},
};

/// Undoes the part of a change that is not wanted: packages are wanted by name.
pub async fn part(
    verbs: &FileVerbs,
    undo: &Undo,
    wanted: &BTreeSet<String>,
    sink: &dyn Sink,
) -> Result<Withdrawn, Problem> {
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
    let reverted = verbs.revert(&going, sink).await?;
    Ok(Withdrawn { reverted, rest })
}

/// Two steps share a transaction, and one of them also has a file.
fn rig() -> Rig {
    Rig::new([
        packages("driver", &["driver"]),
        packages("docker", &["docker"]),
        file("docker-nvidia", "/etc/docker", "nvidia").after(&["docker"]),
        file("other", "/etc/other", "new").after(&["docker-nvidia"]),
    ])
}

/// The undo of the shared transaction, in the words of [`applied`].
const SHARED: &str = "driver: undo: install driver, docker; what is still wanted or needed stays";

/// The changes that the events since the last call say to be applied, by their first step.
fn applied(rig: &Rig) -> Vec<String> {
    (std::mem::take(&mut *rig.events.lock().unwrap()).into_iter())
        .filter_map(|envelope| match envelope.event {
            Event::ChangeApplied { steps, summary, .. } => Some(format!("{}: {summary}", steps[0])),
            _ => None,
        })
        .collect()
}

/// The same, installed, and then without docker.
async fn withdrawn() -> Rig {
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
    rig.steps[1].withdraw();
    rig.steps[2].withdraw();
    rig.wanted = vec!["driver"];
    rig
}

#[tokio::test]
async fn check_reports_and_plan_shows_what_a_withdrawn_setting_has_left() {
    let rig = withdrawn().await;
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
        "1 change of it stands that no setting wants any more"
    );
    let shown: Vec<String> = (planned.steps.iter())
        .flat_map(|step| step.changes.iter())
        .map(|change| format!("{}: {}", change.kind, change.summary))
        .collect();
    assert_eq!(
        shown,
        [
            "undo: undo: install driver, docker; what is still wanted or needed stays",
            "undo: undo: write `/etc/docker`",
        ]
    );
    assert_eq!(rig.fakes.files.snapshot(), before);
}

#[tokio::test]
async fn install_undoes_what_a_withdrawn_setting_has_left_and_keeps_what_others_share() {
    let rig = withdrawn().await;
    rig.kinds();
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(
        applied(&rig),
        ["docker-nvidia: undo: write `/etc/docker`", SHARED]
    );
    // The file goes before the packages that it belongs to.
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
    assert_eq!(told.steps_standing, ["other", "driver"]);

    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert!(rig.log().is_empty(), "a second run changes nothing");
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["restore /etc/other", "purge driver"]);
}

#[tokio::test]
async fn a_shared_transaction_waits_until_the_other_steps_are_as_wanted() {
    let rig = withdrawn().await;
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
async fn without_a_gpu_no_package_that_the_driver_may_need_is_withdrawn() {
    let mut rig = withdrawn().await;
    let driver = rig.steps[0].clone();
    rig.steps[0].has_no_gpu();
    (rig.no_gpu, rig.wanted) = (true, vec![]);
    let checked = rig.check().await;
    let note = checked.notes.join("\n");
    assert!(
        note.contains("stays until the machine has a GPU again"),
        "{note}"
    );
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(report.notes.iter().any(|note| note.contains("`driver`")));
    // The file has no package of the driver.
    assert_eq!(rig.log(), ["restore /etc/docker"]);
    // The GPU is back.
    rig.steps[0] = driver;
    (rig.no_gpu, rig.wanted) = (false, vec!["driver"]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.log(), ["purge docker"]);
}

#[tokio::test]
async fn on_a_machine_without_a_gpu_what_runtimes_share_is_withdrawn() {
    let mut rig = withdrawn().await;
    // The step is content: it is about something else than the GPU.
    (rig.no_gpu, rig.wanted) = (true, vec!["driver"]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(rig.log(), ["restore /etc/docker", "purge docker"]);
}

#[tokio::test]
async fn what_of_it_cannot_be_undone_is_named_and_tried_again() {
    let rig = withdrawn().await;
    rig.kinds();
    *rig.verbs.fails.lock().unwrap() = Some("restore /etc/docker".to_owned());
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Partial);
    assert_eq!(report.left, ["restore /etc/docker: somebody uses it"]);
    assert_eq!(applied(&rig), [SHARED]);
    assert_eq!(rig.check().await.exit, Exit::Drift);
    *rig.verbs.fails.lock().unwrap() = None;
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.check().await.exit, Exit::Ok);
}

#[tokio::test]
async fn killed_while_it_withdraws_and_installed_again_ends_the_same() {
    let wanted = {
        let rig = withdrawn().await;
        rig.install().await.unwrap();
        rig.fakes.files.snapshot().without(&["/run", "/var/lib"])
    };
    for n in 1..60 {
        let rig = withdrawn().await;
        rig.fakes.files.kill_at(n);
        // The process is dead: nobody hears what it says.
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
    panic!("withdrawing writes more often than expected");
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_is_told_and_stops_neither_check_nor_plan() {
    let rig = withdrawn().await;
    rig.fakes
        .files
        .put("/var/lib/gpu-bootstrap/journal.jsonl", "no json\n{}\n");
    for report in [rig.check().await, rig.plan().await] {
        assert_eq!(report.exit, Exit::Ok);
        assert!(
            report.notes[0].contains("is not known: failed to"),
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
            return satisfied("it is enabled");
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

/// Only consent stops containers, and a shorter `runtime.use` in the settings of a fleet is none.
#[tokio::test]
async fn a_runtime_stays_while_its_containers_run() {
    const LINES: &str = "web\ndb\n";
    const TASKS: &str = "TASK    PID    STATUS\nweb     7      RUNNING\ndb      8      PAUSED\n";
    for (id, name, unit, client, says) in rows! {
        "runtime.docker", "docker", "docker.service", "docker", LINES;
        "runtime.containerd", "containerd", "containerd.service", "ctr", TASKS;
        "runtime.crio", "crio", "crio.service", "crictl", LINES;
    } {
        let mut rig = Rig::new([
            packages("driver", &["driver"]),
            daemon(id, name, unit),
            file("other", "/etc/other", "new"),
        ]);
        assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
        rig.steps[1].withdraw();
        rig.wanted = vec!["driver"];
        rig.fakes.exec.on(client, move |_, _| ok(says));
        rig.log();
        let words = format!("{name} runs the containers web, db");
        let told = |report: &RunReport| report.notes.join("\n").contains(&words);
        let planned = rig.plan().await;
        assert!(told(&planned), "{:?}", planned.notes);
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::Partial);
        assert!(told(&report) && report.left.len() == 1, "{report:?}");
        assert!(rig.log().is_empty(), "{name}: its unit stays, too");
        // A daemon that runs and says nothing may run some; one that does not run stops with none.
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

/// The purge waits for the packages of another step, and meanwhile a job is started.
#[tokio::test]
async fn a_runtime_stays_if_containers_are_started_during_the_run() {
    let mut rig = Rig::new([
        packages("driver", &["driver"]).locks(&[Lock::Packages]),
        packages("runtime.docker", &["docker"]),
    ]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.steps[1].withdraw();
    rig.steps[0] = packages("driver", &["driver", "newer"]).locks(&[Lock::Packages]);
    rig.wanted = vec!["driver", "newer"];
    let is_busy = Arc::new(AtomicBool::new(false));
    let starts = Arc::clone(&is_busy);
    *rig.verbs.before.lock().unwrap() = Box::new(move |_| starts.store(true, Ordering::SeqCst));
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
    let told = |note: &String| note.contains("docker runs the containers job");
    assert!(report.notes.iter().any(told), "{:?}", report.notes);
}

#[tokio::test]
async fn a_runtime_goes_with_its_containers_where_the_settings_consent() {
    let mut rig = Rig::new([
        packages("driver", &["driver"]),
        packages("runtime.docker", &["docker"]),
    ]);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    rig.steps[1].withdraw();
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
