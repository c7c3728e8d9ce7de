//! Accounts that came with packages: removed only where it is certain that nobody uses them.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    archive::Kind,
    kit::{STATE, TestMachine, policy},
    packages::{docker, install},
};
use crate::{
    change::{Applier, Reverted},
    host::{
        FilesError, Host, System,
        fake::Damage,
        system::{MemoryError, Process},
    },
};

/// A system that says this about its processes.
struct Says(fn() -> Result<Vec<Process>, FilesError>);

impl System for Says {
    fn memory_bytes(&self) -> Result<u64, MemoryError> {
        Err(MemoryError::Absent)
    }

    fn process(&self, pid: u32) -> Process {
        process(pid, None)
    }

    fn processes(&self) -> Result<Vec<Process>, FilesError> {
        (self.0)()
    }
}

fn process(pid: u32, uid: Option<u32>) -> Process {
    Process {
        pid,
        name: None,
        command: None,
        uid,
    }
}

/// How undoing docker's packages ends, whose user is `dock` with number 105.
async fn undone(says: fn() -> Result<Vec<Process>, FilesError>) -> (TestMachine, Reverted) {
    let (machine, _) = docker(Kind::Apt);
    machine.fakes.files.put("/proc/812/comm", "dockerd\n");
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let host = Host {
        system: Arc::new(Says(says)),
        ..machine.host.clone()
    };
    let applier = Applier {
        backend: machine.kind.backend(),
        ..Applier::new(host, policy(), STATE.into())
    };
    let reverted = applier.revert(&undo, &machine.sink).await.unwrap();
    (machine, reverted)
}

#[tokio::test]
async fn an_account_stays_where_a_process_may_need_it() {
    for (says, reason) in [
        (
            (|| Ok(vec![process(1, Some(0)), process(812, Some(105))])) as fn() -> _,
            "a process runs as this user",
        ),
        (
            || Ok(vec![process(1, Some(0)), process(812, None)]),
            "process 812 may run as this user: its user cannot be read",
        ),
        (
            || {
                Err(FilesError::Io {
                    verb: "list",
                    path: "/proc".into(),
                    source: std::io::Error::other("not mounted"),
                    disk: None,
                })
            },
            "whether a process runs as this user cannot be determined: list `/proc`",
        ),
    ] {
        let (machine, reverted) = undone(says).await;
        let Reverted::Left { what, why } = reverted else {
            panic!("{reverted:?}");
        };
        assert!(what.contains("user `dock`"), "{what}");
        assert!(why.contains(reason), "{why}");
        assert!(machine.fakes.files.text("/etc/passwd").contains("dock:"));
    }
}

/// A process of the account that is listed, and has ended before more can be read about it.
#[tokio::test]
async fn a_process_that_has_ended_keeps_no_account() {
    for denied in [false, true] {
        let (machine, _) = docker(Kind::Apt);
        let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
        let files = &machine.fakes.files;
        files.put_link("/proc/self/ns/pid", "pid:[4026531836]");
        if denied {
            // As the kernel answers between the end of a process and its disappearance.
            files.damage("/proc/4711/ns/pid", Damage::Reads, Errno::EACCES);
        }
        let host = Host {
            system: Arc::new(Says(|| Ok(vec![process(4711, Some(105))]))),
            ..machine.host.clone()
        };
        let applier = Applier::new(host, policy(), STATE.into());
        let reverted = applier.revert(&undo, &machine.sink).await.unwrap();
        assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
        assert!(!files.text("/etc/passwd").contains("dock:"));
    }
}

#[tokio::test]
async fn an_account_goes_where_no_process_is_of_that_user() {
    // The second one has ended since it was listed.
    let (machine, reverted) = undone(|| Ok(vec![process(1, Some(0)), process(4711, None)])).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert!(!machine.fakes.files.text("/etc/passwd").contains("dock:"));
}
