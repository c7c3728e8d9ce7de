//! Tests undos after later changes: files that were edited, transactions that are still needed in part, and files that are too
//! large to read.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::{
    archive::{Archive, Kind, Offered},
    kit::{STATE, TestMachine, configure, effects, says},
    packages::{docker, install},
    with_each_manager,
};
use crate::{
    change::{Change, ChangeError, Reverted, Undo, packages::Reduced},
    config::desired::Daemon,
    host::fake::{Damage, diff, ok},
};

const DAEMON: &str = "/etc/docker/daemon.json";

with_each_manager! {
    only_obsolete_packages_are_removed
    held_package_is_also_removed
    failed_reduction_keeps_the_holds
    manually_requested_package_is_not_removed
    last_package_ends_the_reduced_transaction
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn reduce(
    machine: &TestMachine,
    undo: &Undo,
    holds: &[&str],
) -> Result<Reduced, ChangeError> {
    let (wanted, holds) = (set(&["driver"]), set(holds));
    (machine.applier.reduce(undo, &wanted, &holds, &machine.sink)).await
}

/// A transaction with a driver and docker.
async fn shared(kind: Kind) -> (TestMachine, Archive, Undo) {
    let (machine, archive) = docker(kind);
    archive.offer("library", Offered::new("1", &[]));
    archive.offer("driver", Offered::new("1", &["library"]));
    let undo = (machine.apply(&install(&["driver", "docker.io"])).await).unwrap();
    let all = ["docker.io", "driver", "library", "runc"];
    assert_eq!(archive.known(), all);
    (machine, archive, undo)
}

async fn only_obsolete_packages_are_removed(kind: Kind) {
    let (machine, archive, undo) = shared(kind).await;
    let files = &machine.fakes.files;
    files.put_directory("/run/systemd/system", 0o755);
    machine.fakes.exec.clear_log();
    let reduced = reduce(&machine, &undo, &[]).await.unwrap();
    assert!(matches!(&reduced.reverted, Reverted::Done { what } if what.contains("2 packages")));
    assert_eq!(archive.known(), ["driver", "library"]);
    let lines = machine.fakes.exec.lines();
    let reload = "systemctl daemon-reload".to_owned();
    assert!(lines.contains(&reload), "{lines:?}");
    let rest = effects(&reduced.rest);
    assert_eq!(rest.appeared, set(&["driver", "library"]));
    machine.reverts(&reduced.rest).await;
    assert!(archive.known().is_empty());
}

async fn held_package_is_also_removed(kind: Kind) {
    let names = ["docker.io", "driver", "library"];
    let (machine, archive, undo) = shared_and_held(kind, &names).await;
    reduce(&machine, &undo, &names).await.unwrap();
    assert_eq!(archive.known(), ["driver", "library"]);
    // The driver depends on the library.
    for name in ["driver", "library"] {
        assert!(archive.package(name).held, "{name}");
    }
}

/// Like [`shared`], with these packages held.
async fn shared_and_held(kind: Kind, names: &[&str]) -> (TestMachine, Archive, Undo) {
    let (machine, archive, undo) = shared(kind).await;
    for name in names {
        archive.edit(name, |package| package.held = true);
    }
    (machine, archive, undo)
}

async fn failed_reduction_keeps_the_holds(kind: Kind) {
    let names = ["docker.io", "driver", "library"];
    let (machine, archive, undo) = shared_and_held(kind, &names).await;
    archive.events().faults = vec!["E: dpkg was not found"];
    assert!(reduce(&machine, &undo, &names).await.is_err());
    for name in names {
        assert!(archive.package(name).held, "{name}");
    }
}

async fn manually_requested_package_is_not_removed(kind: Kind) {
    let (machine, archive, undo) = shared_and_held(kind, &["docker.io", "runc"]).await;
    archive.edit("runc", |package| package.auto = false);
    let reduced = reduce(&machine, &undo, &["docker.io", "runc"]).await;
    let Reverted::Left { what, why } = reduced.unwrap().reverted else {
        panic!("runc stays");
    };
    says(&what, "runc");
    says(&why, "manually installed after");
    assert_eq!(archive.known(), ["driver", "library", "runc"]);
    assert!(archive.package("runc").held);
}

async fn last_package_ends_the_reduced_transaction(kind: Kind) {
    let (machine, archive) = docker(kind);
    let before = machine.snapshot();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let reduced = reduce(&machine, &undo, &[]).await.unwrap();
    assert!(reduced.rest.is_nothing());
    assert!(archive.known().is_empty());
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

/// Registers the nvidia runtime with docker, which is not running afterwards.
async fn register(machine: &TestMachine) -> Undo {
    machine.units.put("docker.service", "enabled", "active");
    (machine.fakes.exec).on("docker", |_, _| ok(r#"{"Runtimes": {"nvidia": {}}}"#));
    let entry = serde_json::json!({"args": [], "path": "n"});
    let change = configure(Daemon::Docker, DAEMON, &["runtimes", "nvidia"], entry);
    let undo = machine.apply(&change).await.unwrap();
    machine.units.put("docker.service", "enabled", "inactive");
    undo
}

#[tokio::test]
async fn runtime_is_removed_from_an_edited_file() {
    let machine = TestMachine::new();
    (machine.fakes.files).put_mode(DAEMON, "{\"mtu\":1400}", 0o600);
    let undo = register(&machine).await;
    let text = machine.fakes.files.text(DAEMON);
    let edited = text.replace("1400", "1500");
    machine.fakes.files.put_mode(DAEMON, edited, 0o640);
    let what = machine.reverts(&undo).await;
    says(&what, "removed runtimes.nvidia from");
    assert_eq!(machine.fakes.files.text(DAEMON), "{\n    \"mtu\": 1500\n}");
    let stat = crate::host::ReadFiles::stat(&machine.fakes.files, DAEMON.into());
    assert_eq!(stat.unwrap().unwrap().mode, 0o640);
    machine.reverts_nothing(&undo).await;
}

#[tokio::test]
async fn reformatted_file_is_restored() {
    let machine = TestMachine::new();
    (machine.fakes.files).put_mode(DAEMON, "{\"mtu\":1400}", 0o600);
    let before = machine.snapshot();
    let undo = register(&machine).await;
    let text = machine.fakes.files.text(DAEMON);
    machine.fakes.files.put(DAEMON, text + "\n\n");
    machine.reverts(&undo).await;
    assert!(diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn modified_runtime_entry_is_kept_with_the_remedy() {
    let machine = TestMachine::new();
    machine.fakes.files.put(DAEMON, "{\"mtu\":1400}");
    let undo = register(&machine).await;
    let theirs = "{\"runtimes\":{\"nvidia\":{\"path\":\"theirs\"}}}";
    machine.fakes.files.put(DAEMON, theirs);
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert_eq!(what, format!("runtimes.nvidia in `{DAEMON}`"));
    let remedy = format!("edit `{DAEMON}` and run the same command again");
    says(&why, &remedy);
    assert_eq!(machine.fakes.files.text(DAEMON), theirs);
    machine.fakes.files.put(DAEMON, "not JSON");
    let (_, why) = machine.reverts_in_part(&undo).await;
    let remedy = format!("`install -m 0644 -o 0 -g 0 {STATE}/backups/");
    says(&why, &remedy);
}

#[tokio::test]
async fn edited_file_shows_command_that_completes_undo() {
    let machine = TestMachine::new();
    machine.fakes.files.put_link("/etc/link", "../usr/lib/real");
    let mut undos = Vec::new();
    for (path, command) in [
        ("/etc/new", "`rm /etc/new`"),
        ("/etc/link", "`ln -sfn ../usr/lib/real /etc/link`"),
    ] {
        let change = Change::WriteFile {
            path: path.into(),
            content: "ours".into(),
            mode: 0o644,
            over: None,
        };
        let undo = machine.apply(&change).await.unwrap();
        machine.fakes.files.put(path, "theirs");
        let (_, why) = machine.reverts_in_part(&undo).await;
        assert!(why.contains(command), "{why}");
        // `install` also prints this text when it reverts a change that is no longer configured. A hint to run `uninstall`
        // would then remove the driver.
        assert!(!why.contains("gpu-bootstrap"), "{why}");
        undos.push(undo);
    }
    // The command completes the undo.
    machine.fakes.files.take("/etc/new");
    machine.reverts_nothing(&undos[0]).await;
}

#[tokio::test]
async fn too_large_file_in_etc_blocks_no_transaction() {
    let (machine, archive) = docker(Kind::Apt);
    let core = "/etc/core.4711";
    machine.fakes.files.put(core, "much");
    (machine.fakes.files).damage(core, Damage::Content, Errno::EFBIG);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    machine.reverts(&undo).await;
    assert!(archive.known().is_empty());
    assert_eq!(machine.fakes.files.text(core), "much");
}
