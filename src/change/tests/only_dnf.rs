//! Tests features that only dnf has: module streams, rpm keys, and scripts that fail without an error status.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{
    archive::{Archive, Break, Kind, Offered},
    dnf::{CONFIGURATION, NO_METADATA, row},
    kit::{STATE, TestMachine},
    moved,
    packages::{docker, install},
};
use crate::{
    change::{ApplyChanges, Change, Reverted, Undo},
    error::Report,
    host::{Cmd, ReadFiles, exec::Status, fake::diff},
    model::secret::Secret,
};

/// The file of a module without a stream.
const RESET: &str = "[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=\n";

fn stream(stream: &str) -> Change {
    Change::EnableStream {
        module: "nvidia-driver".into(),
        stream: stream.into(),
    }
}

#[tokio::test]
async fn stream_is_enabled_and_the_previous_one_restored() {
    let (machine, _) = docker(Kind::Dnf);
    machine
        .fakes
        .files
        .put_directory("/etc/dnf/modules.d", 0o755);
    let (_, reverted) = machine.apply_and_undo(&stream("580-open")).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    // dnf does not replace one stream by another.
    machine.apply(&stream("580-open")).await.unwrap();
    machine.apply_and_undo(&stream("595-open")).await;
    let undo = machine.apply(&stream("580-open")).await.unwrap();
    assert!(undo.is_nothing());
}

#[tokio::test]
async fn stream_enabled_later_by_another_program_is_kept() {
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
async fn previous_stream_is_restored_after_a_kill() {
    let (machine, _) = docker(Kind::Dnf);
    machine
        .fakes
        .files
        .put_directory("/etc/dnf/modules.d", 0o755);
    machine.apply(&stream("580-open")).await.unwrap();
    let path = "/etc/dnf/modules.d/nvidia-driver.module";
    let before = machine.fakes.files.text(path);
    let interrupted = machine.applier.capture(&stream("595-open")).await.unwrap();
    machine.fakes.files.put(path, RESET);
    // The next run reconciles first.
    let restarted = machine.restarted();
    let interrupted = restarted.reconcile(&interrupted, &machine.sink).await;
    let interrupted = interrupted.unwrap();
    assert_eq!(machine.fakes.files.text(path), before);
    let second = machine.apply(&stream("595-open")).await.unwrap();
    machine.revert(&second).await;
    machine.revert(&interrupted).await;
    assert_eq!(machine.fakes.files.text(path), before);
}

#[tokio::test]
async fn failed_stream_undo_is_completed_by_the_next() {
    let (machine, _) = docker(Kind::Dnf);
    machine
        .fakes
        .files
        .put_directory("/etc/dnf/modules.d", 0o755);
    machine.apply(&stream("580-open")).await.unwrap();
    let path = "/etc/dnf/modules.d/nvidia-driver.module";
    let before = machine.fakes.files.text(path);
    let undo = machine.apply(&stream("595-open")).await.unwrap();
    let markers = || {
        let names = machine.fakes.files.list(STATE.into()).unwrap();
        names
            .iter()
            .filter(|name| name.starts_with("stream-"))
            .count()
    };
    machine.fakes.files.put(NO_METADATA, "");
    let _error = machine
        .applier
        .revert(&undo, &machine.sink)
        .await
        .unwrap_err();
    assert_eq!(machine.fakes.files.text(path), RESET);
    assert_eq!(markers(), 1);
    machine.fakes.files.take(NO_METADATA);
    let restarted = machine.restarted();
    restarted.revert(&undo, &machine.sink).await.unwrap();
    assert_eq!(machine.fakes.files.text(path), before);
    assert_eq!(markers(), 0);
    // From now on, a reset was done manually.
    machine.fakes.files.put(path, RESET);
    let reverted = restarted.revert(&undo, &machine.sink).await.unwrap();
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(machine.fakes.files.text(path), RESET);
}

#[tokio::test]
async fn manually_reset_module_stays_reset() {
    let (machine, _) = docker(Kind::Dnf);
    machine
        .fakes
        .files
        .put_directory("/etc/dnf/modules.d", 0o755);
    machine.apply(&stream("580-open")).await.unwrap();
    let undo = machine.apply(&stream("595-open")).await.unwrap();
    let path = "/etc/dnf/modules.d/nvidia-driver.module";
    machine.fakes.files.put(path, RESET);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(machine.fakes.files.text(path), RESET);
}

#[tokio::test]
async fn truncated_lock_file_does_not_block_the_repair() {
    let (machine, _) = docker(Kind::Dnf);
    let record = "/var/lib/dnf/rpmdb_lock.pid";
    machine.fakes.files.put(record, "\0\0\0");
    machine
        .fakes
        .files
        .put("/var/cache/dnf/metadata_lock.pid", "x");
    let error = machine.apply(&install(&["docker.io"])).await.unwrap_err();
    assert_eq!(error.reason(), "package-database-interrupted");
    // dnf treats an empty file as its own, and rejects a file without a number.
    assert_eq!(machine.fakes.files.text(record), "");
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!machine.fakes.files.exists(record.into()).unwrap());
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn undo_of_a_hold_removes_exactly_its_entries() {
    const LIST: &str = "/etc/dnf/plugins/versionlock.list";
    let (machine, apt) = docker(Kind::Dnf);
    let files = &machine.fakes.files;
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let patterns = vec!["docker*".into(), "runc".into()];
    let undo = machine
        .apply(&Change::HoldPackages { patterns })
        .await
        .unwrap();
    // One of them was upgraded and locked again by the administrator.
    apt.have("docker.io", "28.5.2");
    apt.write(files);
    let list = files.text(LIST) + "docker.io-0:28.5.2.*\n";
    assert!(list.contains("docker.io-0:20.10.24.*"), "{list}");
    files.put(LIST, &*list);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert_eq!(files.text(LIST), "docker.io-0:28.5.2.*\n");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
}

/// Including a list that is a symlink into a site configuration directory.
#[tokio::test]
async fn existing_hold_list_keeps_mode_and_owner() {
    const LIST: &str = "/etc/dnf/plugins/versionlock.list";
    for (theirs, path) in rows! {
        "# site\nbash-0:5.1.8-9.el9.*", LIST;
        "# site\r\nbash-0:5.1.8-9.el9.*\r\n", LIST;
        "# site\r\nbash-0:5.1.8-9.el9.*", "/etc/site/versionlock.list";
        "bash-0:5.1.8-9.el9.*\n\n", LIST;
    } {
        let (machine, _) = docker(Kind::Dnf);
        let files = &machine.fakes.files;
        machine.apply(&install(&["docker.io"])).await.unwrap();
        files.take(LIST);
        files.put_mode(path, theirs, 0o640);
        files.own(path, 0, 8);
        if path != LIST {
            files.put_link(LIST, path);
        }
        let before = machine.snapshot();
        let patterns = vec!["docker*".into()];
        let undo = machine
            .apply(&Change::HoldPackages { patterns })
            .await
            .unwrap();
        let held = files.text(LIST);
        assert!(
            held.starts_with(theirs) && held.contains("\ndocker.io-0:20.10.24.*"),
            "{held}"
        );
        let stat = files.stat(path.into()).unwrap().unwrap();
        assert_eq!((stat.mode, stat.uid, stat.gid), (0o640, 0, 8));
        machine.revert(&undo).await;
        let left = diff(&before, &machine.snapshot());
        assert!(left.is_empty(), "{left:#?}");
    }
}

#[tokio::test]
async fn version_missing_on_the_mirror_blocks_the_repair() {
    let (machine, apt) = docker(Kind::Dnf);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    for name in ["docker.io", "runc"] {
        apt.installed.lock().unwrap().get_mut(name).unwrap().half = true;
    }
    apt.write(&machine.fakes.files);
    apt.archive.lock().unwrap().remove("runc");
    let before = apt.installed.lock().unwrap().len();
    let error = machine.apply(&Change::RepairPackages).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no repository has `runc-"), "{text}");
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("nothing was changed"), "{hint}");
    assert!(hint.contains("`dnf distro-sync runc`"), "{hint}");
    {
        let mut there = apt.installed.lock().unwrap();
        assert!(there.len() == before && there["docker.io"].half);
        // The administrator follows the hint. After this transaction neither the dnf history nor its lock contains the
        // interrupted transaction.
        there.values_mut().for_each(|package| package.half = false);
        there.get_mut("runc").unwrap().version = "1.1.4".to_owned();
    }
    apt.write(&machine.fakes.files);
    let plan = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(plan.unwrap().as_deref(), Some("~ docker.io"));
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn package_removed_by_undo_is_not_incomplete_later() {
    let (machine, apt) = docker(Kind::Dnf);
    *apt.failing.lock().unwrap() = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    let applied = machine.applier.apply(&change, undo.clone(), &machine.sink);
    assert_eq!(applied.await.unwrap_err().reason(), "package-script");
    let undo = machine.applier.reconcile(&undo, &machine.sink).await;
    machine.revert(&undo.unwrap()).await;
    // The administrator or gpu-bootstrap installs the same version.
    machine.apply(&change).await.unwrap();
    let plan = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(plan.unwrap().as_deref(), Some(""));
}

#[tokio::test]
async fn manually_removed_package_is_not_incomplete_later() {
    let (machine, apt) = docker(Kind::Dnf);
    *apt.failing.lock().unwrap() = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let _error = machine.apply(&change).await.unwrap_err();
    for name in ["docker.io", "runc"] {
        apt.installed.lock().unwrap().remove(name);
    }
    apt.write(&machine.fakes.files);
    machine.apply(&change).await.unwrap();
}

#[tokio::test]
async fn additional_removal_since_the_plan_is_rejected() {
    let (machine, archive) = moved::driver(Kind::Dnf).await;
    let (own, downloaded) = (archive.clone(), Arc::new(AtomicBool::new(false)));
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let mut output = own.dnf(cmd, files);
        if has("--downloadonly") {
            downloaded.store(true, Ordering::SeqCst);
        }
        if has("--assumeno") && has("shell") && downloaded.load(Ordering::SeqCst) {
            // A package that depends on a removed one was installed in the meantime.
            let more = row("bash", Some("5.2"), None);
            output.stdout = format!("Dependencies resolved.\n{more}\n{}", output.stdout);
        }
        output
    });
    let change = moved::install("580.*", &["driver", "library-1"]);
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("remove bash"), "{error}");
    assert_eq!(archive.installed.lock().unwrap()["driver"].version, "535.1");
}

#[tokio::test]
async fn package_that_was_not_removed_is_an_error() {
    let (machine, archive) = moved::driver(Kind::Dnf).await;
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let Some(script) = cmd
            .stdin
            .as_ref()
            .filter(|_| has("-y") && has("--cacheonly"))
        else {
            return own.dnf(cmd, files);
        };
        let kept: Vec<&str> = (script.expose().lines())
            .filter(|line| !line.starts_with("remove "))
            .collect();
        let less = Cmd {
            stdin: Some(Secret::new(kept.join("\n"))),
            ..cmd.clone()
        };
        own.dnf(&less, files)
    });
    let change = moved::install("580.*", &["driver", "library-1"]);
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-not-verified");
    assert!(
        error.to_string().contains("`library-1` is still installed"),
        "{error}"
    );
}

#[tokio::test]
async fn truncated_cache_is_regenerated() {
    const TORN: &str = "/var/cache/dnf/gpu-bootstrap-nvidia.solv";
    let (machine, archive) = docker(Kind::Dnf);
    machine.fakes.files.put(TORN, "SOLV");
    let others = "/var/cache/dnf/baseos.solv";
    machine.fakes.files.put(others, "SOLV");
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let mut output = archive.dnf(cmd, files);
        if files.exists(TORN.into()).unwrap() {
            output.stderr = "Error: Loading repository 'gpu-bootstrap-nvidia' has failed\n\
                             Ignoring repositories: gpu-bootstrap-nvidia\n"
                .to_owned();
        }
        output
    });
    machine.apply(&Change::RefreshRepositories).await.unwrap();
    let files = &machine.fakes.files;
    assert!(!files.exists(TORN.into()).unwrap() && files.exists(others.into()).unwrap());
}

#[tokio::test]
async fn interruption_is_detected_after_a_boot() {
    let (machine, apt) = docker(Kind::Dnf);
    *apt.breaks.lock().unwrap() = vec![Break {
        status: Status::Signalled(9),
        ..Break::after(1, "")
    }];
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    let applied = machine.applier.apply(&change, undo.clone(), &machine.sink);
    let _error = applied.await.unwrap_err();
    (apt.installed.lock().unwrap().get_mut("runc").unwrap()).half = true;
    apt.write(&machine.fakes.files);
    let restarted = machine.restarted();
    restarted.reconcile(&undo, &machine.sink).await.unwrap();
    machine.fakes.files.take("/var/lib/dnf/rpmdb_lock.pid");
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-database-interrupted");
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&change).await.unwrap();
}

/// A machine on which the installation of `docker.io` and `runc` was interrupted in the scripts of a package.
async fn interrupted(package: &str) -> (TestMachine, Archive) {
    let (machine, archive) = docker(Kind::Dnf);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let mut installed = archive.installed.lock().unwrap();
    installed.get_mut(package).unwrap().half = true;
    drop(installed);
    archive.write(&machine.fakes.files);
    (machine, archive)
}

#[tokio::test]
async fn interrupted_repair_may_remove_duplicates() {
    let (machine, archive) = interrupted("runc").await;
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let mut output = archive.dnf(cmd, files);
        if has("--assumeno") && has("reinstall") {
            // The rpm database contains the same version twice.
            let twice = row("runc", Some("1.1.5"), None);
            output.stdout = format!("Dependencies resolved.\n{twice}\n{}", output.stdout);
        }
        output
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
}

/// dnf would complete the dependencies with any suitable packages, such as the other module flavor.
#[tokio::test]
async fn repair_first_installs_the_missing_packages_of_the_transaction() {
    let (machine, archive) = interrupted("docker.io").await;
    archive.installed.lock().unwrap().remove("runc");
    archive.write(&machine.fakes.files);
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let mut output = own.dnf(cmd, files);
        let is_missing = !own.installed.lock().unwrap().contains_key("runc");
        if has("history") {
            output
                .stdout
                .push_str(" ** Install runc-1.1.5.x86_64 @archive\n");
        }
        if has("--assumeno") && has("reinstall") && is_missing {
            let other = row("crun", None, Some("1.0"));
            output.stdout = format!("Dependencies resolved.\n{other}\n{}", output.stdout);
        }
        output
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
    let installed = archive.installed.lock().unwrap();
    assert!(installed.contains_key("runc") && !installed["docker.io"].half);
}

/// A power loss may have truncated the package lists.
#[tokio::test]
async fn repair_downloads_package_lists_that_lack_a_package() {
    let (machine, archive) = interrupted("runc").await;
    archive.archive.lock().unwrap().remove("runc");
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, files| {
        if cmd.args.iter().any(|arg| arg == "makecache") {
            own.offer("runc", Offered::new("1.1.5", &[]));
        }
        own.dnf(cmd, files)
    });
    let (applier, repair) = (machine.restarted(), Change::RepairPackages);
    let undo = applier.capture(&repair).await.unwrap();
    applier.apply(&repair, undo, &machine.sink).await.unwrap();
    assert!(!archive.installed.lock().unwrap()["runc"].half);
}

#[tokio::test]
async fn foreign_pattern_blocks_upgrade_but_not_repair() {
    const LIST: &str = "/etc/dnf/plugins/versionlock.list";
    let (machine, archive) = interrupted("runc").await;
    machine.fakes.files.put(LIST, "run*\n");
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let mut output = own.dnf(cmd, files);
        if has("--assumeno") && has("reinstall") {
            let twice = row("runc", Some("1.1.5"), None);
            output.stdout = format!("Dependencies resolved.\n{twice}\n{}", output.stdout);
        }
        output
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
    // A new version of the package is blocked.
    let (mut machine, _) = moved::driver(Kind::Dnf).await;
    machine.applier = machine.restarted();
    machine.fakes.files.put(LIST, "driver*\nlib*\n");
    let change = moved::install("580.*", &["driver"]);
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-held");
    let hint = error.hint().unwrap();
    for part in ["`dnf versionlock delete 'driver*'`", "`driver*`", LIST] {
        assert!(hint.contains(part), "{hint}");
    }
}

#[tokio::test]
async fn truncated_configuration_is_restored_by_a_repair() {
    let (machine, _) = interrupted("runc").await;
    let files = &machine.fakes.files;
    let mut rows = Vec::new();
    for (flags, size, path, content) in [
        ("cn", 12, "/etc/runc/emptied", ""),
        ("c", 12, "/etc/runc/changed", "by the administrator"),
        ("c", 12, "/etc/runc/emptied-on-purpose", ""),
        ("c", 0, "/etc/runc/empty", ""),
        ("", 9, "/usr/bin/runc", ""),
    ] {
        files.put(path, content);
        let mut time = files.stat(path.into()).unwrap().unwrap().mtime;
        if path.ends_with("on-purpose") {
            time -= 86_400;
        }
        rows.push(format!("{flags}|{size}|{time}|{path}"));
    }
    files.put(&format!("{CONFIGURATION}/runc"), rows.join("\n"));
    machine.apply(&Change::RepairPackages).await.unwrap();
    let is_there = |path: &str| files.exists(path.into()).unwrap();
    assert!(!is_there("/etc/runc/emptied"), "rpm would keep it");
    for path in [
        "/etc/runc/changed",
        "/etc/runc/emptied-on-purpose",
        "/etc/runc/empty",
        "/usr/bin/runc",
    ] {
        assert!(is_there(path), "{path}");
    }
}

#[tokio::test]
async fn package_manager_without_streams_is_reported() {
    let machine = TestMachine::new();
    let error = machine
        .applier
        .capture(&stream("580-open"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "unsupported");
}

#[tokio::test]
async fn failed_script_is_an_error_until_repaired() {
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
    // The package counts as installed, but a second run does not rely on that.
    let error = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(error.unwrap().as_deref(), Some("~ docker.io"));
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "package-database-interrupted");
    // The script fails again in the first repair, and succeeds in the second one.
    *apt.failing.lock().unwrap() = vec!["docker.io"];
    let error = machine.apply(&Change::RepairPackages).await.unwrap_err();
    assert_eq!(error.reason(), "package-script");
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&change).await.unwrap();
}

#[tokio::test]
async fn imported_key_is_removed_with_the_last_package() {
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
async fn package_of_the_running_kernel_keeps_its_key() {
    let (mut machine, apt) = docker(Kind::Dnf);
    machine.applier.policy.guard.kernels = vec!["kernel-image-*".to_owned()];
    apt.offer("kernel-image-6.1", Offered::new("1", &[]));
    *apt.imports.lock().unwrap() = true;
    let change = install(&["docker.io", "kernel-image-6.1"]);
    let undo = machine.apply(&change).await.unwrap();
    machine
        .fakes
        .files
        .put("/proc/sys/kernel/osrelease", "6.1-1\n");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Left { .. }), "{reverted:?}");
    let installed = apt.installed.lock().unwrap();
    assert!(installed.contains_key("kernel-image-6.1") && !installed.contains_key("runc"));
    assert!(
        machine
            .fakes
            .files
            .exists("/var/lib/rpm/keys".into())
            .unwrap()
    );
}

#[tokio::test]
async fn stale_lock_is_removed() {
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
