//! Tests the error reports, and the waits that a stop request ends.

use std::sync::Arc;

use async_trait::async_trait;
use nix::errno::Errno;
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Offered},
    kit::{STATE, TestMachine, container_probe, policy, says},
    packages::{install, replace},
};
use crate::{
    change::{Applier, ApplyChanges, Change, LeaveMethod, LeaveService, LockUse, STOPPED},
    config::desired::{Repository, RuntimeKind},
    error::{Report, causes},
    host::{
        Cmd, Exec, ExecError, Http, HttpError, HttpRequest, HttpResponse, Output,
        exec::OnLine,
        fake::{Damage, failed, ok},
    },
    model::{
        fleet::{FleetLock, LockGroup},
        secret::Secret,
    },
};

fn offering(name: &'static str) -> (TestMachine, Archive) {
    let machine = TestMachine::new();
    let apt = Archive::on(&machine);
    apt.offer(name, Offered::new("1", &[]));
    (machine, apt)
}

#[tokio::test]
async fn apt_output_never_shows_the_proxy_password() {
    let machine = TestMachine::new();
    let mut policy = policy();
    policy.proxy = Some(Secret::new("http://joe:s3cret@proxy:3128"));
    let applier = Applier::new(machine.host.clone(), policy, STATE.into());
    machine.fakes.exec.on_result("apt-get", |cmd, _| {
        let words = "E: http://joe:s3cret@proxy:3128 said nothing".to_owned();
        if cmd.args.iter().any(|arg| arg == "-s") {
            return Ok(crate::host::Output {
                stdout: words.clone(),
                ..failed(100, words)
            });
        }
        Err(ExecError::Silent {
            command: cmd.line(),
            after: cmd.deadline,
            tail: words,
        })
    });
    machine.fakes.exec.on("apt-cache", |_, _| {
        ok("a:\n  Installed: (none)\n  Candidate: 1\n  Version table:\n     1 500\n        500 http://x y Packages\n")
    });
    machine.fakes.files.put("/var/lib/dpkg/status", "");
    for (change, told) in [
        (Change::RefreshRepositories, "without output"),
        (install(&["a"]), "simulate"),
    ] {
        let undo = applier.capture(&change).await.unwrap();
        let error = (applier.apply(&change, undo, &machine.sink).await).unwrap_err();
        let words = format!("{error}\n{}", causes(&error).join("\n"));
        says(&words, told);
        says(&words, "said nothing");
        assert!(!words.contains("s3cret"), "{words}");
    }
}

#[tokio::test]
async fn diagnosis_error_does_not_hide_the_first_error() {
    let (machine, apt) = offering("a");
    // The sources cannot be read to find the contradictory ones.
    (machine.fakes.files).put("/etc/apt/sources.list", "deb http://a x main\n");
    (machine.fakes.files).damage("/etc/apt/sources.list", Damage::Reads, Errno::EIO);
    let conflict = "E: Conflicting values set for option Signed-By regarding source https://x/ /";
    apt.events().faults = vec![conflict];
    let error = machine.fails(&Change::RefreshRepositories).await;
    assert_eq!(error.reason(), "repository-conflict");
    says(&error, "Conflicting values");
    says(&error, "`/etc/apt/sources.list`");
    // The same for a query.
    (machine.fakes.exec).on("apt-get", move |_, _| failed(100, conflict));
    let error = machine.fails(&install(&["a"])).await;
    assert_eq!(error.reason(), "repository-conflict");
    assert!(error.to_string().contains("`/etc/apt/sources.list`"));
}

#[tokio::test]
async fn failed_list_refresh_has_its_own_error() {
    let (machine, apt) = offering("a");
    // The errors occur in reverse order.
    apt.events().faults = vec![
        "E: You don't have enough free space in /var/lib/apt/lists/.",
        "E: Failed to fetch http://x/a.deb  404  Not Found",
    ];
    let error = machine.fails(&install(&["a"])).await;
    assert_eq!(error.reason(), "no-disk-space");
    assert!(machine.sink.text().contains("retry: install packages"));
}

#[tokio::test]
async fn error_hint_contains_the_package_manager_command() {
    let (machine, apt) = offering("a");
    for (fault, hint) in rows! {
        "E: Unable to locate package a", "`apt-cache policy NAME`";
        "E: Held packages were changed and -y was used", "`apt-mark unhold`";
        "E: You don't have enough free space in /var.", "free disk space on";
    } {
        apt.events().faults = vec![fault];
        let error = machine.fails(&install(&["a"])).await;
        let said = error.hint().unwrap_or_default();
        assert!(said.contains(hint), "{error}: {said}");
    }
}

#[tokio::test]
async fn stopped_undo_reports_the_stop() {
    let (machine, apt) = offering("a");
    apt.have("a", "1");
    let removal = replace(vec![], &["a"]);
    let undo = machine.apply(&removal).await.unwrap();
    apt.events().faults = vec!["E: Could not get lock /var/lib/dpkg/lock-frontend."];
    let stop = CancellationToken::new();
    stop.cancel();
    let applier = machine.restarted().stopped_by(stop);
    let error = applier.revert(&undo, &machine.sink).await.unwrap_err();
    assert_eq!(error.reason(), STOPPED);
    machine.revert(&undo).await;
    assert!(apt.has("a"));
}

#[tokio::test]
async fn stop_ends_the_retries_of_a_registry() {
    let machine = TestMachine::new();
    (machine.fakes.exec).on("docker", |cmd, _| match cmd.args[0].as_str() {
        "image" => failed(1, "Error: No such image: x"),
        _ => failed(1, "net/http: TLS handshake timeout"),
    });
    let stop = CancellationToken::new();
    stop.cancel();
    let applier = machine.restarted().stopped_by(stop);
    let change = Change::RunProbe {
        probe: container_probe(RuntimeKind::Docker, Some("x")),
        record: "/var/lib/gpu-bootstrap/validation".into(),
        inputs: String::new(),
        again: false,
    };
    let undo = applier.capture(&change).await.unwrap();
    let error = applier
        .apply(&change, undo, &machine.sink)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), STOPPED);
    assert!(machine.fakes.clock.slept().is_empty());
}

/// A server that accepts connections but never responds, and a command that never exits.
struct Hangs;

#[async_trait]
impl Exec for Hangs {
    async fn run(&self, _: &Cmd, _: &mut OnLine<'_>) -> Result<Output, ExecError> {
        std::future::pending().await
    }
}

/// A drain may last for days.
#[tokio::test]
async fn stop_ends_the_leave_command() {
    let machine = TestMachine::new();
    (machine.fakes.files).put_mode("/usr/bin/leave", "#!/bin/sh\n", 0o755);
    let mut host = machine.host.clone();
    host.exec = Arc::new(Hangs);
    let stop = CancellationToken::new();
    let applier = Applier::new(host, policy(), STATE.into()).stopped_by(stop.clone());
    let command = vec!["/usr/bin/leave".to_owned()];
    let change = Change::LeaveService {
        leave: LeaveService {
            why: String::new(),
            continues: false,
            lock: LockUse {
                lock: FleetLock::None,
                group: LockGroup::default(),
            },
            lock_seconds: 1,
            method: LeaveMethod::Command {
                leave: command.clone(),
                r#return: command,
            },
            drain_seconds: 172_800,
            evict_unmanaged: false,
            delete_emptydir_data: false,
            end_gpu_processes: true,
        },
    };
    let undo = applier.capture(&change).await.unwrap();
    let (ended, ()) = tokio::join!(applier.apply(&change, undo, &machine.sink), async {
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
}

#[async_trait]
impl Http for Hangs {
    async fn get(&self, _: &str, _: u64) -> Result<Vec<u8>, HttpError> {
        std::future::pending().await
    }

    async fn ask(&self, _: &HttpRequest) -> Result<HttpResponse, HttpError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn stop_ends_the_download_of_a_key() {
    let machine = TestMachine::new();
    let mut host = machine.host.clone();
    host.http = Arc::new(Hangs);
    let stop = CancellationToken::new();
    let applier = Applier::new(host, policy(), STATE.into()).stopped_by(stop.clone());
    let change = Change::AddRepository {
        repository: Repository {
            name: "toolkit".into(),
            url: "https://example.org/deb/".into(),
            suites: vec!["/".into()],
            components: vec![],
            architectures: vec!["amd64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec!["AA".repeat(20)],
            keyring: None,
            key_files: vec![],
            signed: crate::model::packages::Signed::Packages,
            priority: None,
            packages: vec![],
        },
    };
    let undo = applier.capture(&change).await.unwrap();
    let (ended, ()) = tokio::join!(applier.apply(&change, undo, &machine.sink), async {
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    // The dry run does not fail, because its caller has also received the stop request.
    applier.dry_run(&change).await.unwrap();
}

#[tokio::test]
async fn change_after_the_simulation_removes_no_package() {
    // The package gets a new conflict between the simulation and the transaction.
    let (machine, apt) = offering("a");
    apt.have("podman", "4");
    let moved = Offered::new("1", &[]).conflicting(&["podman"]);
    apt.events().moves = vec![("a", moved)];
    let error = machine.fails(&install(&["a"])).await;
    // apt rejects the removal in the first attempt, and the second attempt is not approved.
    assert!(machine.sink.text().contains("remove is disabled"));
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("would remove podman"), "{error}");
    assert!(apt.has("podman") && !apt.has("a"));
}
