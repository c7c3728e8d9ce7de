//! What only dnf has: module streams, keys of rpm, and scripts that fail without a word in the status.

use super::{
    archive::Kind,
    kit::TestMachine,
    packages::{docker, install},
};
use crate::{
    change::{Change, Reverted, Undo},
    error::Report,
    host::ReadFiles,
};

fn stream(stream: &str) -> Change {
    Change::EnableStream {
        module: "nvidia-driver".into(),
        stream: stream.into(),
    }
}

#[tokio::test]
async fn a_stream_is_enabled_and_the_one_before_comes_back() {
    let (machine, _) = docker(Kind::Dnf);
    machine.fakes.files.put_folder("/etc/dnf/modules.d", 0o755);
    let (_, reverted) = machine.apply_and_undo(&stream("580-open")).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    // dnf does not replace one stream by another.
    machine.apply(&stream("580-open")).await.unwrap();
    machine.apply_and_undo(&stream("595-open")).await;
    let undo = machine.apply(&stream("580-open")).await.unwrap();
    assert!(undo.is_nothing());
}

#[tokio::test]
async fn a_stream_that_somebody_else_enabled_since_stays() {
    let (machine, _) = docker(Kind::Dnf);
    let undo = machine.apply(&stream("580-open")).await.unwrap();
    let theirs = "[nvidia-driver]\nname=nvidia-driver\nstream=615-open\nprofiles=\nstate=enabled\n";
    let path = "/etc/dnf/modules.d/nvidia-driver.module";
    machine.fakes.files.put(path, theirs);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(machine.fakes.files.text(path), theirs);
}

#[tokio::test]
async fn a_manager_without_streams_says_so() {
    let machine = TestMachine::new();
    let error = machine
        .applier
        .capture(&stream("580-open"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "unsupported");
}

#[tokio::test]
async fn a_script_that_failed_is_an_error_until_it_has_run() {
    let (machine, apt) = docker(Kind::Dnf);
    *apt.failing.lock().unwrap() = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-script");
    assert!(
        error
            .to_string()
            .contains("%post(docker.io-20.10.24.x86_64)"),
        "{error}"
    );
    // The package counts as installed, and a second run does not take that for the truth.
    let error = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(error.unwrap().as_deref(), Some("~ docker.io"));
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-database-interrupted");
    // It fails again, and then it does not.
    *apt.failing.lock().unwrap() = vec!["docker.io"];
    let error = machine.apply(&Change::RepairPackages).await.unwrap_err();
    assert_eq!(error.reason(), "package-script");
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&change).await.unwrap();
}

#[tokio::test]
async fn a_key_that_was_imported_for_packages_goes_with_the_last_of_them() {
    let (machine, apt) = docker(Kind::Dnf);
    *apt.imports.lock().unwrap() = true;
    let keys = || {
        machine
            .fakes
            .files
            .exists("/var/lib/rpm/keys".into())
            .unwrap()
    };
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let Undo::Packages {
        effects: Some(effects),
        ..
    } = &undo
    else {
        panic!("packages");
    };
    assert_eq!(effects.keys.len(), 1);
    assert!(keys());
    machine.revert(&undo).await;
    assert!(!keys());
}

#[tokio::test]
async fn a_lock_of_a_process_that_is_gone_is_removed() {
    let (machine, _) = docker(Kind::Dnf);
    let stale = "/var/cache/dnf/metadata_lock.pid";
    machine.fakes.files.put(stale, "812");
    machine
        .fakes
        .files
        .put("/proc/812/cmdline", "/usr/sbin/sshd\0");
    machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(!machine.fakes.files.exists(stale.into()).unwrap());
}
