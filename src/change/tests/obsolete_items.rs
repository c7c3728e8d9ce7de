//! Tests which files are removed with packages and which are kept: those created by other programs, requested by the
//! administrator, or still in use.

use std::io;

use super::{
    archive::{Archive, Break, Kind, Offered, append},
    kit::{TestMachine, says},
    packages::{docker, install, replace, spec},
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, Undo},
    host::{ReadFiles, fake::Mutation},
};

with_each_manager! {
    unowned_files_are_kept_and_reported
    files_from_a_failed_attempt_are_not_ours
    manually_requested_package_is_kept_with_dependencies
    unchanged_mark_keeps_no_package
    only_packages_needed_by_others_are_kept
    marks_are_only_restored_on_manual_packages
    existing_file_is_restored_after_interrupted_removal
}

/// While `docker.io` is installed, its script creates files and accounts, and so does another program of the administrator.
fn beside(machine: &TestMachine, apt: &Archive) {
    let mut archive = apt.archive.lock().unwrap();
    let docker = archive.get_mut("docker.io").expect("it is available");
    docker.script = |files| {
        append(files, "/etc/group", "docker:x:113:");
        let dock = "dock:x:105:113::/nonexistent:/bin/false";
        append(files, "/etc/passwd", dock);
        files.put("/etc/docker/key.json", "{}");
        append(files, "/etc/group", "site:x:114:");
        append(files, "/etc/passwd", "joe:x:1000:114::/home/joe:/bin/sh");
        files.put("/etc/site/rules.conf", "theirs");
        files.put("/etc/docker/daemon.json", "theirs");
        files.put_link("/etc/systemd/system/site.service", "/opt/site.service");
    };
    drop(archive);
    (machine.fakes.files).put_directory("/etc/systemd/system", 0o755);
}

async fn unowned_files_are_kept_and_reported(kind: Kind) {
    let (machine, apt) = docker(kind);
    beside(&machine, &apt);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    machine.reverts(&undo).await;
    let noted = machine.sink.text();
    let files = &machine.fakes.files;
    for path in [
        "/etc/site/rules.conf",
        "/etc/docker/daemon.json",
        "/etc/docker/key.json",
        "/etc/systemd/system/site.service",
    ] {
        assert!(files.stat(path.into()).unwrap().is_some(), "{path}");
        assert!(noted.contains(&format!("`{path}`")), "{noted}");
    }
    assert!(files.text("/etc/passwd").contains("joe"));
    assert!(files.text("/etc/group").contains("site"));
    let accounts = "installed: user `dock`, user `joe`, group `docker`, group `site`";
    says(&noted, accounts);
}

async fn files_from_a_failed_attempt_are_not_ours(kind: Kind) {
    let (machine, apt) = docker(kind);
    let fault = Break::after(0, "Segmentation fault");
    let fault = fault.meanwhile(|files| files.put("/etc/site.conf", "theirs"));
    apt.events().breaks = vec![fault];
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    assert!(machine.apply_captured(&change, &undo).await.is_err());
    let undo = machine.reconcile(&undo).await;
    assert!(undo.is_nothing(), "{undo:?}");
    machine.revert(&undo).await;
    assert_eq!(machine.fakes.files.text("/etc/site.conf"), "theirs");
}

/// Installs `stack`, which depends on `docker.io`, which depends on `runc`.
async fn stack(kind: Kind) -> (TestMachine, Archive, Undo) {
    let (machine, apt) = docker(kind);
    apt.offer("stack", Offered::new("1", &["docker.io"]));
    let undo = machine.apply(&install(&["stack"])).await.unwrap();
    (machine, apt, undo)
}

async fn manually_requested_package_is_kept_with_dependencies(kind: Kind) {
    let (machine, apt, undo) = stack(kind).await;
    apt.edit("docker.io", |package| package.auto = false);
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert!(what.contains("1 package (docker.io)"), "{what}");
    assert!(what.contains("1 package (runc)"), "{what}");
    assert!(why.contains("marked as manually installed after"), "{why}");
    assert!(why.contains("would remove docker.io"), "{why}");
    assert_eq!(apt.there(), ["docker.io", "runc"]);
}

async fn unchanged_mark_keeps_no_package(kind: Kind) {
    let (machine, apt, undo) = stack(kind).await;
    // `stack` was requested by us, so it is unknown if it was also requested by the administrator.
    apt.edit("stack", |package| package.auto = false);
    machine.reverts(&undo).await;
    assert!(apt.there().is_empty());
}

/// Not with dnf: rpm removes a package together with its configuration, or leaves a copy that it does not track.
#[tokio::test]
async fn configuration_of_an_earlier_installation_stays() {
    let (machine, apt) = docker(Kind::Apt);
    (machine.fakes.files).put("/etc/default/docker", "a default\n");
    apt.have("docker.io", "19");
    apt.edit("docker.io", |package| package.gone = true);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let what = machine.reverts(&undo).await;
    assert!(what.contains("purged 1 package (runc)"), "{what}");
    assert!(what.contains("removed 1 package (docker.io)"), "{what}");
    let text = machine.fakes.files.text("/etc/default/docker");
    assert_eq!(text, "a default\n");
    assert!(apt.package("docker.io").gone && !apt.has("runc"));
}

async fn existing_file_is_restored_after_interrupted_removal(kind: Kind) {
    let (machine, apt) = docker(kind);
    let files = &machine.fakes.files;
    files.put("/etc/default/docker", "theirs\n");
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    // The process dies after the removal, before the file is restored. Only the list of backups on disk contains its path.
    let (packages, tree) = (apt.installed.clone(), files.clone());
    files.before_mutations(move |_, mutation| {
        let removed = !packages.lock().unwrap().contains_key("docker.io");
        if removed && matches!(mutation, Mutation::File(_, path) if path == "/etc/default/docker") {
            tree.kill_at(1);
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    });
    let _error = (machine.applier.revert(&undo, &machine.sink).await).unwrap_err();
    files.revive();
    assert!(!files.exists("/etc/default/docker".into()).unwrap());
    files.before_mutations(|_, _| Ok(()));
    let restarted = machine.restarted();
    restarted.revert(&undo, &machine.sink).await.unwrap();
    assert_eq!(files.text("/etc/default/docker"), "theirs\n");
}

async fn only_packages_needed_by_others_are_kept(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("stack", Offered::new("1", &["docker.io"]));
    // The undo would remove `docker.io`, whose configuration existed before, and purge the other packages.
    apt.have("docker.io", "19");
    apt.edit("docker.io", |package| package.gone = true);
    let undo = machine.apply(&install(&["stack"])).await.unwrap();
    apt.offer("theirs", Offered::new("1", &["docker.io"]));
    apt.have("theirs", "1");
    let (what, why) = machine.reverts_in_part(&undo).await;
    // rpm does not record remaining configuration, so with dnf all packages are purged and sorted. Otherwise the package to
    // remove is listed after the packages to purge.
    let names = match kind {
        Kind::Dnf => "docker.io, runc",
        Kind::Apt => "runc, docker.io",
    };
    assert!(what.contains(&format!("2 packages ({names})")), "{what}");
    assert!(why.contains("would remove theirs"), "{why}");
    assert_eq!(apt.there(), ["docker.io", "runc", "theirs"]);
    // When the other package is removed, the next undo completes.
    apt.remove("theirs");
    machine.reverts(&undo).await;
    assert!(apt.there().is_empty());
}

async fn marks_are_only_restored_on_manual_packages(kind: Kind) {
    let (machine, apt) = docker(kind);
    for name in ["runc", "lost", "kept"] {
        apt.offer(name, Offered::new("1.1.5", &[]));
        apt.have(name, "1.0");
        apt.edit(name, |package| package.auto = true);
    }
    let newer = ["runc", "lost", "kept"].map(|name| spec(name, Some("1.1.5")));
    let undo = (machine.apply(&replace(newer.to_vec(), &[])).await).unwrap();
    assert!(!apt.package("runc").auto);
    apt.remove("lost");
    apt.edit("kept", |package| package.auto = true);
    machine.fakes.exec.clear_log();
    machine.revert(&undo).await;
    assert!(apt.package("runc").auto);
    let lines = machine.fakes.exec.lines();
    let marked: Vec<&String> = (lines.iter())
        .filter(|line| line.contains(" auto ") || line.contains(" mark remove "))
        .collect();
    assert_eq!(marked.len(), 1, "{lines:?}");
    assert!(marked[0].ends_with(" runc"), "{marked:?}");
}
