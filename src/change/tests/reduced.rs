//! Tests undos after later changes: files that were edited, transactions that are still needed in part, and files that are too
//! large to read.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::{
    archive::{Archive, Kind, Offered},
    kit::{STATE, TestMachine, configure},
    packages::{docker, install},
    with_each_manager,
};
use crate::{
    change::{Change, Reverted, Undo},
    config::desired::Daemon,
    host::fake::{Damage, ok},
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

fn installed(archive: &Archive) -> Vec<String> {
    let names = archive.installed.lock().unwrap();
    let ours = |name: &&String| ["docker.io", "driver", "library", "runc"].contains(&name.as_str());
    names.keys().filter(ours).cloned().collect()
}

/// A transaction with a driver and docker.
async fn shared(kind: Kind) -> (TestMachine, Archive, Undo) {
    let (machine, archive) = docker(kind);
    archive.offer("library", Offered::new("1", &[]));
    archive.offer("driver", Offered::new("1", &["library"]));
    archive.write(&machine.fakes.files);
    let undo = machine
        .apply(&install(&["driver", "docker.io"]))
        .await
        .unwrap();
    assert_eq!(
        installed(&archive),
        ["docker.io", "driver", "library", "runc"]
    );
    (machine, archive, undo)
}

async fn only_obsolete_packages_are_removed(kind: Kind) {
    let (machine, archive, undo) = shared(kind).await;
    let files = &machine.fakes.files;
    files.put_directory("/run/systemd/system", 0o755);
    machine.fakes.exec.clear_log();
    let (wanted, holds) = (set(&["driver"]), set(&[]));
    let reduced = (machine.applier)
        .reduce(&undo, &wanted, &holds, &machine.sink)
        .await
        .unwrap();
    assert!(matches!(&reduced.reverted, Reverted::Done { what } if what.contains("2 packages")));
    assert_eq!(installed(&archive), ["driver", "library"]);
    let lines = machine.fakes.exec.lines();
    assert!(
        lines.iter().any(|line| line == "systemctl daemon-reload"),
        "{lines:?}"
    );
    let Undo::Packages {
        effects: Some(rest),
        ..
    } = &reduced.rest
    else {
        panic!("a remaining undo")
    };
    assert_eq!(rest.appeared, set(&["driver", "library"]));
    assert!(matches!(
        machine.revert(&reduced.rest).await,
        Reverted::Done { .. }
    ));
    assert!(installed(&archive).is_empty());
}

async fn held_package_is_also_removed(kind: Kind) {
    let names = ["docker.io", "driver", "library"];
    let (machine, archive, undo) = shared_and_held(kind, &names).await;
    let (wanted, holds) = (set(&["driver"]), set(&names));
    (machine.applier)
        .reduce(&undo, &wanted, &holds, &machine.sink)
        .await
        .unwrap();
    assert_eq!(installed(&archive), ["driver", "library"]);
    // The driver depends on the library.
    for name in ["driver", "library"] {
        assert!(archive.installed.lock().unwrap()[name].held, "{name}");
    }
}

/// Like [`shared`], with these packages held.
async fn shared_and_held(kind: Kind, names: &[&str]) -> (TestMachine, Archive, Undo) {
    let (machine, archive, undo) = shared(kind).await;
    for name in names {
        (archive.installed.lock().unwrap().get_mut(*name).unwrap()).held = true;
    }
    archive.write(&machine.fakes.files);
    (machine, archive, undo)
}

async fn failed_reduction_keeps_the_holds(kind: Kind) {
    let names = ["docker.io", "driver", "library"];
    let (machine, archive, undo) = shared_and_held(kind, &names).await;
    *archive.faults.lock().unwrap() = vec!["E: dpkg was not found"];
    let _error = (machine.applier)
        .reduce(&undo, &set(&["driver"]), &set(&names), &machine.sink)
        .await
        .unwrap_err();
    for name in names {
        assert!(archive.installed.lock().unwrap()[name].held, "{name}");
    }
}

async fn manually_requested_package_is_not_removed(kind: Kind) {
    let (machine, archive, undo) = shared_and_held(kind, &["docker.io", "runc"]).await;
    (archive.installed.lock().unwrap().get_mut("runc").unwrap()).auto = false;
    archive.write(&machine.fakes.files);
    let (wanted, holds) = (set(&["driver"]), set(&["docker.io", "runc"]));
    let reduced = (machine.applier)
        .reduce(&undo, &wanted, &holds, &machine.sink)
        .await
        .unwrap();
    assert!(
        matches!(&reduced.reverted, Reverted::Left { what, why }
            if what.contains("runc") && why.contains("manually installed after")),
        "{:?}",
        reduced.reverted
    );
    assert_eq!(installed(&archive), ["driver", "library", "runc"]);
    assert!(archive.installed.lock().unwrap()["runc"].held);
}

async fn last_package_ends_the_reduced_transaction(kind: Kind) {
    let (machine, archive) = docker(kind);
    let before = machine.snapshot();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let reduced = (machine.applier)
        .reduce(&undo, &set(&["driver"]), &set(&[]), &machine.sink)
        .await
        .unwrap();
    assert!(reduced.rest.is_nothing());
    assert!(installed(&archive).is_empty());
    let left = crate::host::fake::diff(&before, &machine.snapshot());
    assert!(left.is_empty(), "{left:#?}");
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
    machine
        .fakes
        .files
        .put_mode(DAEMON, "{\"mtu\":1400}", 0o600);
    let undo = register(&machine).await;
    let text = machine.fakes.files.text(DAEMON);
    let edited = text.replace("1400", "1500");
    machine.fakes.files.put_mode(DAEMON, edited, 0o640);
    let reverted = machine.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Done { what } if what.contains("removed runtimes.nvidia from")),
        "{reverted:?}"
    );
    assert_eq!(machine.fakes.files.text(DAEMON), "{\n    \"mtu\": 1500\n}");
    let stat = crate::host::ReadFiles::stat(&machine.fakes.files, DAEMON.into());
    assert_eq!(stat.unwrap().unwrap().mode, 0o640);
    assert!(matches!(
        machine.revert(&undo).await,
        Reverted::Nothing { .. }
    ));
}

#[tokio::test]
async fn reformatted_file_is_restored() {
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put_mode(DAEMON, "{\"mtu\":1400}", 0o600);
    let before = machine.snapshot();
    let undo = register(&machine).await;
    let text = machine.fakes.files.text(DAEMON);
    machine.fakes.files.put(DAEMON, text + "\n\n");
    assert!(matches!(machine.revert(&undo).await, Reverted::Done { .. }));
    assert!(crate::host::fake::diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn modified_runtime_entry_is_kept_with_the_remedy() {
    let machine = TestMachine::new();
    machine.fakes.files.put(DAEMON, "{\"mtu\":1400}");
    let undo = register(&machine).await;
    let theirs = "{\"runtimes\":{\"nvidia\":{\"path\":\"theirs\"}}}";
    machine.fakes.files.put(DAEMON, theirs);
    let Reverted::Left { what, why } = machine.revert(&undo).await else {
        panic!("the entry was modified");
    };
    assert_eq!(what, format!("runtimes.nvidia in `{DAEMON}`"));
    assert!(
        why.contains(&format!("edit `{DAEMON}` and run the same command again")),
        "{why}"
    );
    assert_eq!(machine.fakes.files.text(DAEMON), theirs);
    machine.fakes.files.put(DAEMON, "not JSON");
    let Reverted::Left { why, .. } = machine.revert(&undo).await else {
        panic!("the content is unknown");
    };
    assert!(
        why.contains(&format!("`install -m 0644 -o 0 -g 0 {STATE}/backups/")),
        "{why}"
    );
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
        let Reverted::Left { why, .. } = machine.revert(&undo).await else {
            panic!("the file is kept");
        };
        assert!(why.contains(command), "{why}");
        // `install` also prints this text when it reverts a change that is no longer configured. A hint to run `uninstall`
        // would then remove the driver.
        assert!(!why.contains("gpu-bootstrap"), "{why}");
        undos.push(undo);
    }
    // The command completes the undo.
    machine.fakes.files.take("/etc/new");
    assert!(matches!(
        machine.revert(&undos[0]).await,
        Reverted::Nothing { .. }
    ));
}

#[tokio::test]
async fn too_large_file_in_etc_blocks_no_transaction() {
    let (machine, archive) = docker(Kind::Apt);
    let core = "/etc/core.4711";
    machine.fakes.files.put(core, "much");
    machine
        .fakes
        .files
        .damage(core, Damage::Content, Errno::EFBIG);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(matches!(machine.revert(&undo).await, Reverted::Done { .. }));
    assert!(installed(&archive).is_empty());
    assert_eq!(machine.fakes.files.text(core), "much");
}
