//! The reboot waits for other programs and is requested until it happens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{
    kit::{Rig, reboots, step},
    unattended::words,
};
use crate::{
    change::ChangeError,
    engine::{reboot::reboot, status},
    error::Report,
    exit::Exit,
    host::{
        Clock,
        fake::{FakeClock, failed, ok},
    },
};

/// The run lock.
const LOCK: &str = "/run/gpu-bootstrap/lock";

const STATUS: &str = "/run/cloud-init/status.json";
const RESULT: &str = "/run/cloud-init/result.json";

/// A machine with a pending reboot.
async fn due() -> Rig {
    let mut rig = Rig::new([step("module", |_| reboots("nouveau must be unloaded"))]);
    rig.options.request.reboot = true;
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    rig
}

/// The same machine. Its systemd rejects the first `refused` reboot requests and ignores the next `ignored` ones.
async fn machine(refused: usize, ignored: usize) -> Rig {
    let rig = due().await;
    rig.fakes.exec.on("systemctl", move |cmd, files| {
        let line = cmd.args.join(" ");
        let count = files.text("/requests").len();
        match line.as_str() {
            "reboot" => {
                files.put("/requests", "x".repeat(count + 1));
                if count < refused {
                    failed(1, "Call to Reboot failed: Access denied")
                } else {
                    ok("")
                }
            }
            "is-system-running" if count > refused + ignored => ok("stopping\n"),
            "is-system-running" => ok("running\n"),
            _ => ok(""),
        }
    });
    rig.fakes.files.put("/requests", "");
    rig
}

/// Reboots the machine.
async fn leave(
    rig: &Rig,
    clock: Option<Arc<dyn Clock>>,
    locks: &[&str],
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ChangeError> {
    let (mut tools, reporter) = rig.tools("run");
    if let Some(clock) = clock {
        tools.host.clock = clock;
    }
    let left = reboot(&tools, locks, say).await;
    reporter.finish();
    left
}

/// A clock that calls `happens` after each sleep.
struct Meanwhile {
    clock: FakeClock,
    happens: Box<dyn Fn() + Send + Sync>,
}

#[async_trait]
impl Clock for Meanwhile {
    fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
        (self.happens)();
    }
}

fn meanwhile(rig: &Rig, happens: impl Fn() + Send + Sync + 'static) -> Option<Arc<dyn Clock>> {
    Some(Arc::new(Meanwhile {
        clock: rig.fakes.clock.clone(),
        happens: Box::new(happens),
    }))
}

fn requests(rig: &Rig) -> usize {
    rig.fakes.files.text("/requests").len()
}

#[tokio::test]
async fn reboot_is_requested_until_it_happens() {
    for (refused, ignored, happens) in [(0, 0, 1), (2, 0, 3), (0, 2, 3)] {
        let rig = machine(refused, ignored).await;
        let (said, mut say) = words();
        leave(&rig, None, &[], &mut say).await.unwrap();
        assert_eq!(requests(&rig), happens);
        assert_eq!(said.lock().unwrap().len(), refused + ignored);
    }
}

#[tokio::test]
async fn missing_reboot_is_reported_after_three_requests() {
    let rig = machine(9, 0).await;
    let error = leave(&rig, None, &[], &mut words().1).await.unwrap_err();
    assert_eq!((error.exit(), requests(&rig)), (Exit::RebootRequired, 3));
    assert_eq!(error.reason(), "reboot-refused");
    assert!(error.to_string().contains("were rejected"), "{error}");
    // The program waits for 20 seconds between the requests.
    assert_eq!(rig.fakes.clock.monotonic(), Duration::from_secs(40));

    let rig = machine(0, 9).await;
    let error = leave(&rig, None, &[], &mut words().1).await.unwrap_err();
    assert_eq!(error.reason(), "reboot-refused");
    assert!(error.to_string().contains("does not shut down"), "{error}");
    assert_eq!(requests(&rig), 3);
    // The program waits for a minute after each request.
    assert_eq!(rig.fakes.clock.monotonic(), Duration::from_secs(180));
}

#[tokio::test]
async fn reboot_waits_for_cloud_init() {
    let rig = machine(0, 0).await;
    let fakes = &rig.fakes;
    fakes.files.put(STATUS, "{}");
    let after = Duration::from_secs(300);
    let (time, files) = (fakes.clock.clone(), fakes.files.clone());
    let clock = meanwhile(&rig, move || {
        if time.monotonic() >= after {
            files.put(RESULT, "{}");
        }
    });
    let (said, mut say) = words();
    leave(&rig, clock, &[], &mut say).await.unwrap();
    assert_eq!(requests(&rig), 1);
    assert!(fakes.clock.monotonic() >= after);
    assert_eq!(
        *said.lock().unwrap(),
        ["waiting up to 30 min for cloud-init before the reboot"]
    );
}

#[tokio::test]
async fn hung_cloud_init_does_not_prevent_the_reboot() {
    let rig = machine(0, 0).await;
    let fakes = &rig.fakes;
    fakes.files.put(STATUS, "{}");
    let (said, mut say) = words();
    leave(&rig, None, &[], &mut say).await.unwrap();
    assert_eq!(requests(&rig), 1);
    let waited = fakes.clock.monotonic().as_secs();
    assert!((1800..1900).contains(&waited), "{waited}");
    assert!(said.lock().unwrap()[1].contains("still running after 30 min"));
}

#[tokio::test]
async fn reboot_waits_for_another_package_manager() {
    const DPKG: &str = "/var/lib/dpkg/lock-frontend";
    let rig = machine(0, 0).await;
    let fakes = &rig.fakes;
    fakes.files.put(DPKG, "");
    let host = fakes.host();
    let inode = host.files.stat(DPKG.into()).unwrap().unwrap().inode;
    fakes.files.put(
        "/proc/locks",
        format!("1: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"),
    );
    fakes.files.put("/proc/812/comm", "unattended-upgr\n");
    let (said, mut say) = words();
    leave(&rig, None, &[DPKG], &mut say).await.unwrap();
    assert!(said.lock().unwrap()[0].contains("for `unattended-upgr` (pid 812) before"));
}

/// The state that the user sees after the reboot was stopped: whether the unit exists, and the exit
/// status of the run in `status`.
fn after(rig: &Rig) -> (bool, Option<u8>) {
    let told = status(&rig.fakes.host(), Some("boot-1")).unwrap();
    assert!(told.reboot_due);
    let there = rig.tree().contains("/gpu-bootstrap-resume.service");
    assert_eq!(told.awaited_reboot.unwrap().automatic, there);
    (there, told.last.unwrap().ended.map(|ended| ended.exit))
}

#[tokio::test]
async fn ctrl_c_during_the_wait_cancels_continuation() {
    let rig = machine(0, 0).await;
    rig.fakes.files.put(STATUS, "{}");
    rig.cancel.cancel(Exit::Interrupted);
    let (said, mut say) = words();
    let error = leave(&rig, None, &[], &mut say).await.unwrap_err();
    assert_eq!((error.exit(), requests(&rig)), (Exit::Interrupted, 0));
    assert_eq!(after(&rig), (false, Some(130)));
    let said = said.lock().unwrap().join("\n");
    assert!(
        said.contains("the next boot does not continue the run"),
        "{said}"
    );
}

#[tokio::test]
async fn shutdown_during_the_wait_continues_at_the_next_boot() {
    for waits in [true, false] {
        let rig = machine(0, 0).await;
        if waits {
            rig.fakes.files.put(STATUS, "{}");
        }
        rig.cancel.cancel(Exit::Terminated);
        let error = leave(&rig, None, &[], &mut words().1).await.unwrap_err();
        assert_eq!((error.exit(), requests(&rig)), (Exit::Terminated, 0));
        assert_eq!(after(&rig), (true, Some(143)));
    }
}

#[tokio::test]
async fn uninstall_is_locked_while_the_reboot_waits() {
    let rig = machine(0, 0).await;
    rig.fakes.files.put(STATUS, "{}");
    let refused = Arc::new(AtomicBool::new(false));
    let (host, by_others) = (rig.fakes.host(), Arc::clone(&refused));
    let clock = meanwhile(&rig, move || {
        let lock = host.files.try_lock(LOCK.into()).unwrap();
        by_others.store(lock.is_none(), Ordering::SeqCst);
    });
    leave(&rig, clock, &[], &mut words().1).await.unwrap();
    assert!(refused.load(Ordering::SeqCst));
}

#[tokio::test]
async fn machine_is_not_rebooted_after_an_uninstall() {
    // The uninstall is running.
    let rig = machine(0, 0).await;
    rig.fakes
        .files
        .hold_lock(LOCK, "pid 7, `gpu-bootstrap uninstall`");
    let error = leave(&rig, None, &[], &mut words().1).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.exit()),
        ("busy", Exit::RebootRequired)
    );
    assert_eq!(requests(&rig), 0);
    // The uninstall has finished, once completely and once with a change that it could not undo.
    for fails in [None, Some("gpu-bootstrap-resume".to_owned())] {
        let rig = machine(0, 0).await;
        *rig.change_applier.fails.lock().unwrap() = fails;
        rig.uninstall().await.unwrap();
        let error = leave(&rig, None, &[], &mut words().1).await.unwrap_err();
        assert_eq!(error.reason(), "reboot-not-awaited", "{error}");
        assert_eq!(requests(&rig), 0);
    }
}

#[tokio::test]
async fn resume_unit_reboots_if_cloud_init_waits_for_the_run() {
    let rig = due().await;
    rig.fakes.files.put(STATUS, "{}");
    rig.fakes.files.put(
        "/proc/self/cgroup",
        "0::/system.slice/cloud-final.service\n",
    );
    rig.fakes.exec.on("systemctl", |_, _| ok(""));
    leave(&rig, None, &[], &mut words().1).await.unwrap();
    let mut changes = rig.fakes.exec.lines();
    changes.retain(|line| line != "systemctl --version");
    assert_eq!(
        changes,
        ["systemctl start --no-block -- gpu-bootstrap-resume.service"]
    );
    assert_eq!(rig.fakes.clock.monotonic(), Duration::ZERO);
}

#[tokio::test]
async fn stopped_reboot_ends_the_rollback_run() {
    let mut rig = due().await;
    // After another boot, nouveau is still loaded.
    rig.options.boot_id = Some("boot-2".to_owned());
    let (tools, first_reporter) = rig.tools("first");
    let first = rig.session(tools);
    let (tools, reporter) = rig.tools("rollback");
    let report = first.roll_back(rig.session(tools)).await.unwrap();
    assert_eq!(
        (report.exit, &*report.run),
        (Exit::RebootRequired, "rollback")
    );
    rig.cancel.cancel(Exit::Terminated);
    let exit = first.follow(&report, &mut |_| {}).await.unwrap();
    assert_eq!(exit, Exit::Terminated);
    let last = status(&rig.fakes.host(), Some("boot-2")).unwrap().last;
    let last = last.map(|run| (run.id, run.ended.map(|ended| ended.exit)));
    assert_eq!(last, Some(("rollback".to_owned(), Some(143))));
    reporter.finish();
    first_reporter.finish();
}
