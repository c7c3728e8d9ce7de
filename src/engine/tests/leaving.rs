//! The reboot: after the work of others, and until it happens.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    kit::{Rig, needs, step},
    unattended::words,
};
use crate::{
    change::Change,
    engine::{Cancel, RebootError, reboot},
    error::Report,
    exit::Exit,
    host::{
        Clock, Host,
        fake::{self, FakeClock, FakeFiles, Fakes, failed, ok},
    },
};

const STATUS: &str = "/run/cloud-init/status.json";
const RESULT: &str = "/run/cloud-init/result.json";

/// A machine whose systemd refuses the first requests, and ignores the next ones.
fn machine(refused: usize, ignored: usize) -> (Host, Fakes) {
    let (host, fakes) = fake::host();
    fakes.exec.on("systemctl", move |cmd, files| {
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
    fakes.files.put("/requests", "");
    (host, fakes)
}

/// Time passes, and cloud-init ends.
struct Ends {
    clock: FakeClock,
    files: FakeFiles,
    after: Duration,
}

#[async_trait]
impl Clock for Ends {
    fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
        if self.monotonic() >= self.after {
            self.files.put(RESULT, "{}");
        }
    }
}

fn requests(fakes: &Fakes) -> usize {
    fakes.files.text("/requests").len()
}

#[tokio::test]
async fn a_reboot_is_requested_until_it_happens() {
    for (refused, ignored, happens) in [(0, 0, 1), (2, 0, 3), (0, 2, 3)] {
        let (host, fakes) = machine(refused, ignored);
        let (said, mut say) = words();
        reboot(&host, &[], &Cancel::new(), &mut say).await.unwrap();
        assert_eq!(requests(&fakes), happens);
        assert_eq!(said.lock().unwrap().len(), refused + ignored);
    }
}

#[tokio::test]
async fn a_reboot_that_does_not_happen_is_reported_after_three_requests() {
    let (host, fakes) = machine(9, 0);
    let error = reboot(&host, &[], &Cancel::new(), &mut words().1)
        .await
        .unwrap_err();
    assert!(matches!(error, RebootError::Refused(_)), "{error}");
    assert_eq!((error.exit(), requests(&fakes)), (Exit::RebootRequired, 3));
    assert_eq!(error.reason(), "reboot-refused");

    let (host, fakes) = machine(0, 9);
    let error = reboot(&host, &[], &Cancel::new(), &mut words().1)
        .await
        .unwrap_err();
    assert!(matches!(error, RebootError::StillUp), "{error}");
    assert_eq!(requests(&fakes), 3);
    // A minute after each request.
    assert_eq!(fakes.clock.monotonic(), Duration::from_secs(180));
}

#[tokio::test]
async fn the_reboot_waits_until_cloud_init_has_ended() {
    let (mut host, fakes) = machine(0, 0);
    fakes.files.put(STATUS, "{}");
    let after = Duration::from_secs(300);
    host.clock = Arc::new(Ends {
        clock: fakes.clock.clone(),
        files: fakes.files.clone(),
        after,
    });
    let (said, mut say) = words();
    reboot(&host, &[], &Cancel::new(), &mut say).await.unwrap();
    assert_eq!(requests(&fakes), 1);
    assert!(fakes.clock.monotonic() >= after);
    assert_eq!(
        *said.lock().unwrap(),
        ["the reboot waits until cloud-init has ended, for at most 30 min"]
    );
}

#[tokio::test]
async fn a_cloud_init_that_hangs_does_not_keep_the_machine_from_its_reboot() {
    let (host, fakes) = machine(0, 0);
    fakes.files.put(STATUS, "{}");
    let (said, mut say) = words();
    reboot(&host, &[], &Cancel::new(), &mut say).await.unwrap();
    assert_eq!(requests(&fakes), 1);
    let waited = fakes.clock.monotonic().as_secs();
    assert!((1800..1900).contains(&waited), "{waited}");
    assert!(said.lock().unwrap()[1].contains("still at work after 30 min"));
}

#[tokio::test]
async fn the_reboot_waits_for_another_package_manager() {
    const LOCK: &str = "/var/lib/dpkg/lock-frontend";
    let (host, fakes) = machine(0, 0);
    fakes.files.put(LOCK, "");
    let inode = host.files.stat(LOCK.into()).unwrap().unwrap().inode;
    fakes.files.put(
        "/proc/locks",
        format!("1: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"),
    );
    fakes.files.put("/proc/812/comm", "unattended-upgr\n");
    let (said, mut say) = words();
    reboot(&host, &[LOCK], &Cancel::new(), &mut say)
        .await
        .unwrap();
    assert!(said.lock().unwrap()[0].contains("until `unattended-upgr` (pid 812) has ended"));
}

#[tokio::test]
async fn a_signal_ends_the_wait_without_a_reboot() {
    let (host, fakes) = machine(0, 0);
    fakes.files.put(STATUS, "{}");
    let cancel = Cancel::new();
    cancel.cancel(Exit::Interrupted);
    let error = reboot(&host, &[], &cancel, &mut words().1)
        .await
        .unwrap_err();
    assert!(matches!(error, RebootError::Stopped), "{error}");
    assert_eq!(error.reason(), "reboot-stopped");
    assert_eq!(requests(&fakes), 0);
}

#[tokio::test]
async fn where_cloud_init_waits_for_this_run_the_resume_unit_reboots() {
    let mut rig = Rig::new([step("module", |_| {
        needs(vec![Change::Reboot {
            why: "nouveau must go".to_owned(),
        }])
    })]);
    rig.options.request.reboot = true;
    assert_eq!(rig.install().await.unwrap().exit, Exit::RebootRequired);
    rig.fakes.files.put(STATUS, "{}");
    rig.fakes.files.put(
        "/proc/self/cgroup",
        "0::/system.slice/cloud-final.service\n",
    );
    rig.fakes.exec.on("systemctl", |_, _| ok(""));
    let host = rig.fakes.host();
    reboot(&host, &[], &Cancel::new(), &mut words().1)
        .await
        .unwrap();
    assert_eq!(
        rig.fakes.exec.lines(),
        ["systemctl start --no-block -- gpu-bootstrap-resume.service"]
    );
    assert_eq!(rig.fakes.clock.monotonic(), Duration::ZERO);
}
