//! Unattended runs: transient failures are retried, recoverable problems are waited for, and boots
//! without progress are counted.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::kit::{
    Rig, Small, WANTS, exists, file, fixed, needs, outcomes, packages, reboots, satisfied, step,
    why,
};
use crate::{
    change::Change,
    engine::{release_lost, request, status},
    event::Event,
    exit::Exit,
    host::fake::Mutation,
    step::Assessment,
};

const UNIT: &str = "/etc/systemd/system/gpu-bootstrap-resume.service";
const NOT_BY_ITSELF: &str = "/etc/modprobe.d/gpu-bootstrap-unfinished.conf";
const NOT_AT_ALL: &str = "/etc/modprobe.d/00-gpu-bootstrap-gave-up.conf";
const JOURNAL: &str = "/var/lib/gpu-bootstrap/journal.jsonl";
const AUTOLOAD: &str = "/etc/modules-load.d/gpu-bootstrap.conf";

fn blocked_now(why: &str, retryable: Option<Duration>) -> Assessment {
    Assessment::BlockedNow {
        why: why.to_owned(),
        hint: "check the machine".to_owned(),
        retryable,
    }
}

fn hours(hours: u64) -> Option<Duration> {
    Some(Duration::from_secs(hours * 3600))
}

/// The loaded module is older than the library until the machine reboots.
fn upgraded() -> [Small; 2] {
    [
        step("module", |host| {
            if exists(host, "/booted") {
                satisfied("loaded")
            } else {
                reboots("535 is loaded and 580 is installed")
            }
        }),
        step("devices", |host| {
            if exists(host, "/booted") {
                satisfied("no mismatch")
            } else {
                blocked_now("NVML and the module differ", None)
            }
        })
        .after(&["persistence"]),
    ]
}

#[tokio::test]
async fn block_that_a_reboot_fixes_ends_in_the_reboot() {
    let [module, devices] = upgraded();
    let between = fixed("persistence", satisfied("fine")).after(&["module"]);
    let mut rig = Rig::new([module, between, devices]);
    rig.options.request.reboot = true;

    let plan = rig.plan().await;
    assert_eq!(plan.exit, Exit::Drift);
    assert_eq!(
        why(&plan, "devices"),
        "after `module`: NVML and the module differ"
    );
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::RebootRequired);
    assert!(report.reboot.as_ref().unwrap().automatic);
    assert_eq!(
        outcomes(&report),
        [
            "module awaiting-boot",
            "persistence not-run",
            "devices not-run"
        ]
    );

    rig.options.boot_id = Some("boot-2".to_owned());
    rig.fakes.files.put("/booted", "");
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
}

#[tokio::test]
async fn permanent_block_prevents_the_first_change() {
    let rig = Rig::new([
        fixed("module", satisfied("loaded")),
        fixed("devices", blocked_now("a GPU fell off the bus", None)).after(&["module"]),
        file("other", "/other", "x"),
    ]);
    for report in [rig.plan().await, rig.install().await.unwrap()] {
        assert_eq!(report.exit, Exit::Blocked);
        assert_eq!(report.steps[1].hint.as_deref(), Some("check the machine"));
    }
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn block_that_outlives_its_upstream_steps_fails_the_run() {
    let rig = Rig::new([
        file("driver", "/driver", "x"),
        fixed("devices", blocked_now("no driver is bound", None)).after(&["driver"]),
    ]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(outcomes(&report), ["driver changed", "devices blocked"]);
}

#[tokio::test]
async fn mirror_outage_of_ten_minutes_is_retried() {
    let mut rig = Rig::new([
        packages("driver", &["one"]),
        packages("docker", &["two"]),
        file("other", "/other", "x"),
        file("validation", "/validation", "x").after(&["driver"]),
    ]);
    rig.options.deadline = hours(2);
    *rig.change_applier.late.lock().unwrap() = 6;
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok, "{report:#?}");
    assert_eq!(
        outcomes(&report),
        [
            "driver changed",
            "docker changed",
            "other changed",
            "validation changed"
        ]
    );
    let transactions = || {
        let log = rig.change_applier.log.lock().unwrap().clone();
        log.iter()
            .filter(|line| line.starts_with("install"))
            .count()
    };
    assert_eq!(transactions(), 7);
    let slept: Duration = rig.fakes.clock.slept().iter().sum();
    assert!(slept > Duration::from_secs(300), "{slept:?}");
    let retried = rig.seen().iter().any(|event| {
        matches!(event, Event::AttemptFailed { message, .. }
            if message == "failed to install one, two: the mirror returned 503")
    });
    assert!(retried);
}

#[tokio::test]
async fn attended_run_fails_at_once_and_deadline_ends_retries() {
    let rig = Rig::new([packages("driver", &["one"])]);
    *rig.change_applier.late.lock().unwrap() = 1;
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert!(rig.fakes.clock.slept().is_empty());

    let mut rig = Rig::new([packages("driver", &["one"])]);
    rig.options.deadline = Some(Duration::from_secs(60));
    *rig.change_applier.late.lock().unwrap() = 1000;
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    assert_eq!(report.steps[0].causes, ["the mirror returned 503"]);
    let slept: Duration = rig.fakes.clock.slept().iter().sum();
    assert!(slept < Duration::from_secs(60), "{slept:?}");
}

#[tokio::test]
async fn no_new_work_starts_after_the_deadline() {
    let mut rig = Rig::new([file("a", "/a", "x"), file("b", "/b", "x").after(&["a"])]);
    rig.options.deadline = hours(1);
    let clock = rig.fakes.clock.clone();
    *rig.change_applier.before.lock().unwrap() =
        Box::new(move |_| clock.advance(Duration::from_secs(3601)));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    // Started work is finished and verified.
    assert_eq!(outcomes(&report), ["a changed", "b not-run"]);
    assert_eq!(why(&report, "b"), "the deadline of 3600 s has passed");
}

#[tokio::test]
async fn deadline_during_the_last_step_does_not_fail_the_run() {
    let mut rig = Rig::new([file("a", "/a", "x")]);
    rig.options.deadline = hours(1);
    let clock = rig.fakes.clock.clone();
    *rig.change_applier.before.lock().unwrap() =
        Box::new(move |_| clock.advance(Duration::from_secs(3601)));
    let report = rig.install().await.unwrap();
    assert_eq!(outcomes(&report), ["a changed"]);
    assert_eq!(report.exit, Exit::Ok);
}

/// Blocked until this many seconds after the start.
fn late_clock(seconds: i64) -> Small {
    step("preflight", move |host| {
        if host.now().as_second() >= 1_767_225_600 + seconds {
            satisfied("the clock is correct")
        } else {
            blocked_now("the clock is wrong", Some(Duration::MAX))
        }
    })
}

#[tokio::test]
async fn run_waits_for_clock_synchronization() {
    let mut rig = Rig::new([late_clock(100), file("a", "/a", "x").after(&["preflight"])]);
    rig.options.deadline = hours(1);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert_eq!(outcomes(&report), ["preflight satisfied", "a changed"]);

    let rig = Rig::new([late_clock(100), file("a", "/a", "x").after(&["preflight"])]);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Blocked);
    assert!(rig.fakes.clock.slept().is_empty() && rig.log().is_empty());
}

#[tokio::test]
async fn signal_while_waiting_ends_the_run_as_stopped() {
    for by in [Exit::Interrupted, Exit::Terminated] {
        let mut rig = Rig::new([late_clock(100), file("a", "/a", "x").after(&["preflight"])]);
        rig.options.deadline = hours(1);
        rig.cancel.cancel(by);
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, by);
        assert_eq!(outcomes(&report), ["preflight not-run", "a not-run"]);
        assert!(why(&report, "preflight").starts_with("stopped by SIG"));
        assert!(rig.log().is_empty());
    }
}

#[tokio::test]
async fn permanent_problem_is_not_waited_for() {
    let mut rig = Rig::new([late_clock(100), fixed("b", super::kit::blocked("no GPU"))]);
    rig.options.deadline = hours(1);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Blocked);
    assert!(rig.fakes.clock.slept().is_empty());
    // The wait for a hung GPU ends at the retry limit of the step, which is shorter than the deadline.
    let hangs = blocked_now("NVML timed out", Some(Duration::from_secs(180)));
    let mut rig = Rig::new([fixed("devices", hangs)]);
    rig.options.deadline = hours(2);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Blocked);
    let slept: Duration = rig.fakes.clock.slept().iter().sum();
    assert!(slept < Duration::from_secs(180), "{slept:?}");
}

/// Loads the module after creating the file that loads it at every boot.
fn driver() -> [Small; 2] {
    [
        file("autoload", AUTOLOAD, "nvidia\n"),
        step("module", |host| {
            if exists(host, "/loaded") {
                satisfied("loaded")
            } else {
                needs(vec![Change::LoadModule {
                    module: "nvidia".to_owned(),
                }])
            }
        })
        .after(&["autoload"]),
    ]
}

/// If `panics` is set, the kernel panics when the module is loaded.
fn machine_that_panics(panics: &Arc<AtomicBool>) -> Rig {
    let mut rig = Rig::new(driver());
    rig.options.request.reboot = true;
    // The first write would create this directory, and the fake undo does not remove it.
    rig.fakes.files.put_directory("/etc/modules-load.d", 0o755);
    let (files, panics) = (rig.fakes.files.clone(), Arc::clone(panics));
    *rig.change_applier.before.lock().unwrap() = Box::new(move |change| {
        if matches!(change, Change::LoadModule { .. }) {
            if panics.load(Ordering::SeqCst) {
                files.before_mutations(|_, _| Err(std::io::Error::other("the kernel panicked")));
            } else {
                files.put("/loaded", "");
            }
        }
    });
    rig
}

fn boot(rig: &mut Rig, number: u32) {
    rig.fakes.files.before_mutations(|_, _| Ok(()));
    rig.fakes.files.revive();
    rig.options.boot_id = Some(format!("boot-{number}"));
    rig.options.resumed = true;
}

/// Without the journal, no other program removes the files that prevent the driver from being loaded.
#[tokio::test]
async fn machine_with_lost_journal_loads_the_driver_again() {
    const STATE: &str = "/var/lib/gpu-bootstrap";
    let panics = Arc::new(AtomicBool::new(true));
    let lost = async |boots: u32| {
        let mut rig = machine_that_panics(&panics);
        drop(rig.install().await);
        for number in 2..2 + boots {
            boot(&mut rig, number);
            drop(rig.install().await);
        }
        rig.fakes.files.before_mutations(|_, _| Ok(()));
        rig.fakes.files.revive();
        rig.fakes.files.take(STATE);
        rig
    };
    let exists = |rig: &Rig, path: &str| rig.tree().contains(path);

    // If the journal is lost during an unattended run, the next boot removes the files that prevent
    // the driver from being loaded.
    let rig = lost(0).await;
    assert!(exists(&rig, NOT_BY_ITSELF));
    let unit = rig.fakes.files.text(UNIT);
    assert!(
        !unit.contains("Condition"),
        "the unit must start without a journal: {unit}"
    );
    let flag = crate::dkms::NO_AUTOINSTALL;
    let header = crate::tools::packages::HEADER;
    let text = format!("{header}# The directory was created for this file.\n");
    rig.fakes.files.put(flag, text);
    let asked = request(&rig.fakes.host());
    let told = release_lost(&rig.fakes.host(), &asked).unwrap();
    assert_eq!(told.len(), 4, "{told:?}");
    for gone in [
        NOT_BY_ITSELF,
        UNIT,
        &format!("{WANTS}/gpu-"),
        flag,
        "/etc/dkms",
    ] {
        assert!(!exists(&rig, gone), "{gone}");
    }

    // After a run gave up, the files stay until the administrator runs `install` or `uninstall`.
    for by_install in [true, false] {
        let mut rig = lost(4).await;
        assert!(exists(&rig, NOT_AT_ALL));
        panics.store(false, Ordering::SeqCst);
        rig.options.resumed = false;
        let report = match by_install {
            true => rig.install().await.unwrap(),
            false => rig.uninstall().await.unwrap(),
        };
        panics.store(true, Ordering::SeqCst);
        assert!(!exists(&rig, NOT_AT_ALL));
        match by_install {
            true => {
                let told = |note: &String| note.contains("not in the journal");
                assert!(report.notes.iter().any(told), "{:?}", report.notes);
            }
            // The remaining files are listed, and the report does not claim that nothing was
            // changed.
            false => {
                let told = |what: &String| what.contains("journal is lost");
                assert_eq!(report.left.is_empty(), report.exit == Exit::Ok);
                assert!(report.left.iter().all(told), "{:?}", report.left);
            }
        }
    }
}

#[tokio::test]
async fn machine_stays_reachable_after_three_boots_without_progress() {
    let panics = Arc::new(AtomicBool::new(true));
    let mut rig = machine_that_panics(&panics);
    let before = rig.fakes.files.snapshot().without(&["/run", "/var/lib"]);
    // The kernel panic also kills the process, so its result is irrelevant. This boot made
    // progress.
    drop(rig.install().await);
    for number in 2..=4 {
        boot(&mut rig, number);
        let files = &rig.fakes.files;
        assert!(files.text(NOT_BY_ITSELF).contains("\nblacklist nvidia\n"));
        drop(rig.install().await);
    }
    let tree = |rig: &Rig| rig.tree();
    assert!(tree(&rig).contains(UNIT) && !tree(&rig).contains(NOT_AT_ALL));

    boot(&mut rig, 5);
    rig.log();
    *rig.change_applier.fails.lock().unwrap() = Some(format!("restore {AUTOLOAD}"));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed);
    for part in [
        "3 consecutive boots",
        "the modules are still loaded at each boot: restore /etc/modules-load.d/",
    ] {
        let told = report.notes.iter().any(|note| note.contains(part));
        assert!(told, "{part}: {:?}", report.notes);
    }
    let now = tree(&rig);
    for gone in [UNIT, NOT_BY_ITSELF, AUTOLOAD, &format!("{WANTS}/gpu-")] {
        assert!(!now.contains(gone), "{gone}: {now}");
    }
    let denied = rig.fakes.files.text(NOT_AT_ALL);
    assert!(denied.contains("\ninstall nvidia /bin/false\n"));
    let told = status(&rig.fakes.host(), Some("boot-5")).unwrap();
    assert!(told.gave_up.unwrap().contains("3 consecutive boots"));

    // The kubelet restarts the DaemonSet pod repeatedly, and a startup script runs at each boot.
    let (tree_before, journal) = (tree(&rig), rig.fakes.files.text(JOURNAL));
    rig.options.resumed = false;
    for number in [5, 6, 7] {
        rig.options.boot_id = Some(format!("boot-{number}"));
        rig.log();
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::StepFailed);
        for part in [
            "gave up: 3 consecutive boots",
            "run `gpu-bootstrap install` without",
        ] {
            let told = report.notes.iter().any(|note| note.contains(part));
            assert!(told, "{part}: {:?}", report.notes);
        }
        assert!(rig.log().is_empty());
        assert_eq!(tree(&rig), tree_before);
        assert_eq!(rig.fakes.files.text(JOURNAL), journal);
    }

    // The administrator installs a driver that does not panic. If the file that denies the modules
    // cannot be removed, the failure is reported.
    panics.store(false, Ordering::SeqCst);
    rig.options.request.reboot = false;
    *rig.change_applier.fails.lock().unwrap() = Some(format!("restore {NOT_AT_ALL}"));
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok, "{report:#?}");
    let note = format!("the modules are still denied: restore {NOT_AT_ALL}: in use");
    assert!(report.notes.contains(&note), "{:?}", report.notes);
    *rig.change_applier.fails.lock().unwrap() = None;
    let told = status(&rig.fakes.host(), Some("boot-5")).unwrap();
    assert_eq!((told.gave_up, told.unfinished_boots), (None, 0));
    assert!(!tree(&rig).contains(NOT_AT_ALL) && !tree(&rig).contains(UNIT));
    assert_eq!(rig.fakes.files.text(AUTOLOAD), "nvidia\n");
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    rig.fakes.files.take("/loaded");
    assert_eq!(
        rig.fakes.files.snapshot().without(&["/run", "/var/lib"]),
        before
    );
}

/// The pod of a DaemonSet can start before the resume unit, and a startup script always does.
#[tokio::test]
async fn boots_of_runs_that_were_never_resumed_are_counted() {
    let panics = Arc::new(AtomicBool::new(true));
    let mut rig = machine_that_panics(&panics);
    // Only the module is missing, so no boot makes progress.
    rig.fakes.files.put(AUTOLOAD, "nvidia\n");
    for number in 1..=3 {
        boot(&mut rig, number);
        rig.options.resumed = false;
        drop(rig.install().await);
        assert!(!rig.tree().contains(NOT_AT_ALL), "boot {number}");
    }
    boot(&mut rig, 4);
    rig.options.resumed = false;
    rig.log();
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::StepFailed, "{report:#?}");
    assert!(!rig.log().iter().any(|line| line.contains("load")));
    let denied = rig.fakes.files.text(NOT_AT_ALL);
    assert!(denied.contains("\ninstall nvidia /bin/false\n"));
    assert!(!rig.tree().contains(UNIT));
}

/// The power loss occurs after `gave-up` is recorded and before the modules are denied.
#[tokio::test]
async fn interrupted_giving_up_is_completed_by_next_run() {
    let panics = Arc::new(AtomicBool::new(true));
    let mut rig = machine_that_panics(&panics);
    for number in 1..=4 {
        boot(&mut rig, number);
        drop(rig.install().await);
    }
    boot(&mut rig, 5);
    let mut is_off = false;
    rig.fakes.files.before_mutations(move |_, mutation| {
        is_off |= matches!(mutation, Mutation::File(_, path) if path == NOT_AT_ALL);
        if is_off {
            return Err(std::io::Error::other("power loss"));
        }
        Ok(())
    });
    drop(rig.install().await);
    assert!(!rig.tree().contains(NOT_AT_ALL));

    boot(&mut rig, 6);
    rig.options.resumed = false;
    assert_eq!(rig.install().await.unwrap().exit, Exit::StepFailed);
    assert!(rig.tree().contains(NOT_AT_ALL));
}

#[tokio::test]
async fn finished_run_resets_the_boot_count() {
    let panics = Arc::new(AtomicBool::new(true));
    let mut rig = machine_that_panics(&panics);
    drop(rig.install().await);
    for number in 2..=3 {
        boot(&mut rig, number);
        drop(rig.install().await);
    }
    boot(&mut rig, 4);
    let told = status(&rig.fakes.host(), Some("boot-4")).unwrap();
    assert_eq!(told.unfinished_boots, 2);
    // A finished run resets the count, regardless of its result.
    panics.store(false, Ordering::SeqCst);
    rig.options.resumed = false;
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    let told = status(&rig.fakes.host(), Some("boot-5")).unwrap();
    assert_eq!(told.unfinished_boots, 0);
}

#[tokio::test]
async fn binary_in_a_temporary_location_is_kept() {
    let mut rig = Rig::new([step("a", |_| reboots("x"))]);
    rig.fakes.files.put("/tmp/gb", "the program");
    rig.fakes.files.put("/proc/self/exe", "the program");
    rig.fakes.files.put("/tmp/node.toml", "[driver]\n");
    rig.options.exe = "/tmp/gb".into();
    rig.options.request.reboot = true;
    rig.options.request.config = vec!["/tmp/node.toml".into()];
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    // `/tmp` is emptied at boot.
    rig.fakes.files.take("/tmp");
    let unit = rig.fakes.files.text(UNIT);
    let program = "/var/lib/gpu-bootstrap/kept/gpu-bootstrap";
    assert!(
        unit.contains(&format!("\nExecStart={program} install --resume\n")),
        "{unit}"
    );
    assert_eq!(rig.fakes.files.text(program), "the program");
    let request = crate::engine::request(&rig.fakes.host()).unwrap().unwrap();
    assert_eq!(
        rig.fakes.files.text(request.config[0].as_str()),
        "[driver]\n"
    );
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert!(!rig.tree().contains("/var/lib/gpu-bootstrap"));
}

#[tokio::test]
async fn deadline_of_the_request_applies_to_the_next_boot() {
    let mut rig = Rig::new([step("a", |_| reboots("x"))]);
    rig.options.request.reboot = true;
    rig.options.request.deadline_seconds = Some(600);
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    assert!(
        rig.fakes
            .files
            .text(UNIT)
            .contains("\nRuntimeMaxSec=4200s\n")
    );
    let request = crate::engine::request(&rig.fakes.host()).unwrap().unwrap();
    assert_eq!(request.deadline_seconds, Some(600));
}

/// Collects messages.
pub(super) fn words() -> (Arc<Mutex<Vec<String>>>, impl FnMut(&str) + Send) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&said);
    (said, move |text: &str| {
        to.lock().unwrap().push(text.to_owned())
    })
}
