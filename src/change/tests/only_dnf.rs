//! Tests features that only dnf has: module streams, rpm keys, and scripts that fail without an error status.

use super::{
    archive::{Archive, Break, Kind, Offered},
    dnf::{CONFIGURATION, KEYS, LOCK_LIST, NO_METADATA, row},
    kit::{STATE, TestMachine, effects, says},
    moved,
    packages::{docker, install},
};
use crate::{
    change::{ApplyChanges, Change, Reverted},
    error::Report,
    host::{Cmd, ReadFiles, fake::diff},
    model::secret::Secret,
};

const MODULE: &str = "/etc/dnf/modules.d/nvidia-driver.module";

/// The file of a module without a stream.
const RESET: &str = "[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=\n";

/// A machine without streams.
fn modular() -> TestMachine {
    let (machine, _) = docker(Kind::Dnf);
    (machine.fakes.files).put_directory("/etc/dnf/modules.d", 0o755);
    machine
}

fn stream(stream: &str) -> Change {
    Change::EnableStream {
        module: "nvidia-driver".into(),
        stream: stream.into(),
    }
}

#[tokio::test]
async fn stream_is_enabled_and_the_previous_one_restored() {
    let machine = modular();
    let (_, reverted) = machine.apply_and_undo(&stream("580-open")).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    // dnf does not replace one stream by another.
    machine.apply(&stream("580-open")).await.unwrap();
    machine.apply_and_undo(&stream("595-open")).await;
    let undo = machine.apply(&stream("580-open")).await.unwrap();
    assert!(undo.is_nothing());
}

#[tokio::test]
async fn module_changed_later_by_others_is_kept() {
    let theirs = "[nvidia-driver]\nname=nvidia-driver\nstream=615-open\nprofiles=\nstate=enabled\n";
    for (earlier, now) in [(None, theirs), (Some("580-open"), RESET)] {
        let machine = modular();
        if let Some(earlier) = earlier {
            machine.apply(&stream(earlier)).await.unwrap();
        }
        let undo = machine.apply(&stream("595-open")).await.unwrap();
        machine.fakes.files.put(MODULE, now);
        machine.reverts_nothing(&undo).await;
        assert_eq!(machine.fakes.files.text(MODULE), now);
    }
}

#[tokio::test]
async fn previous_stream_is_restored_after_a_kill() {
    let machine = modular();
    machine.apply(&stream("580-open")).await.unwrap();
    let before = machine.fakes.files.text(MODULE);
    let interrupted = machine.capture(&stream("595-open")).await;
    machine.fakes.files.put(MODULE, RESET);
    // The next run reconciles first.
    let interrupted = machine.recover(&interrupted).await;
    assert_eq!(machine.fakes.files.text(MODULE), before);
    let second = machine.apply(&stream("595-open")).await.unwrap();
    machine.revert(&second).await;
    machine.revert(&interrupted).await;
    assert_eq!(machine.fakes.files.text(MODULE), before);
}

#[tokio::test]
async fn failed_stream_undo_is_completed_by_the_next() {
    let machine = modular();
    machine.apply(&stream("580-open")).await.unwrap();
    let before = machine.fakes.files.text(MODULE);
    let undo = machine.apply(&stream("595-open")).await.unwrap();
    let markers = || {
        let names = machine.fakes.files.list(STATE.into()).unwrap();
        (names.iter().filter(|name| name.starts_with("stream-"))).count()
    };
    machine.fakes.files.put(NO_METADATA, "");
    let _error = (machine.applier.revert(&undo, &machine.sink).await).unwrap_err();
    assert_eq!(machine.fakes.files.text(MODULE), RESET);
    assert_eq!(markers(), 1);
    machine.fakes.files.take(NO_METADATA);
    let restarted = machine.restarted();
    restarted.revert(&undo, &machine.sink).await.unwrap();
    assert_eq!(machine.fakes.files.text(MODULE), before);
    assert_eq!(markers(), 0);
    // From now on, a reset was done manually.
    machine.fakes.files.put(MODULE, RESET);
    let reverted = restarted.revert(&undo, &machine.sink).await.unwrap();
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(machine.fakes.files.text(MODULE), RESET);
}

#[tokio::test]
async fn truncated_lock_file_does_not_block_the_repair() {
    let (machine, _) = docker(Kind::Dnf);
    let record = "/var/lib/dnf/rpmdb_lock.pid";
    machine.fakes.files.put(record, "\0\0\0");
    (machine.fakes.files).put("/var/cache/dnf/metadata_lock.pid", "x");
    let error = machine.fails(&install(&["docker.io"])).await;
    assert_eq!(error.reason(), "package-database-interrupted");
    // dnf treats an empty file as its own, and rejects a file without a number.
    assert_eq!(machine.fakes.files.text(record), "");
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!machine.fakes.files.exists(record.into()).unwrap());
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn undo_of_a_hold_removes_exactly_its_entries() {
    let (machine, apt) = docker(Kind::Dnf);
    let files = &machine.fakes.files;
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let patterns = vec!["docker*".into(), "runc".into()];
    let undo = (machine.apply(&Change::HoldPackages { patterns }).await).unwrap();
    // One of them was upgraded and locked again by the administrator.
    apt.have("docker.io", "28.5.2");
    let list = files.text(LOCK_LIST) + "docker.io-0:28.5.2.*\n";
    assert!(list.contains("docker.io-0:20.10.24.*"), "{list}");
    files.put(LOCK_LIST, &*list);
    machine.reverts(&undo).await;
    assert_eq!(files.text(LOCK_LIST), "docker.io-0:28.5.2.*\n");
    machine.reverts_nothing(&undo).await;
}

/// Including a list that is a symlink into a site configuration directory.
#[tokio::test]
async fn existing_hold_list_keeps_mode_and_owner() {
    for (theirs, path) in rows! {
        "# site\nbash-0:5.1.8-9.el9.*", LOCK_LIST;
        "# site\r\nbash-0:5.1.8-9.el9.*\r\n", LOCK_LIST;
        "# site\r\nbash-0:5.1.8-9.el9.*", "/etc/site/versionlock.list";
        "bash-0:5.1.8-9.el9.*\n\n", LOCK_LIST;
    } {
        let (machine, _) = docker(Kind::Dnf);
        let files = &machine.fakes.files;
        machine.apply(&install(&["docker.io"])).await.unwrap();
        files.take(LOCK_LIST);
        files.put_mode(path, theirs, 0o640);
        files.own(path, 0, 8);
        if path != LOCK_LIST {
            files.put_link(LOCK_LIST, path);
        }
        let before = machine.snapshot();
        let patterns = vec!["docker*".into()];
        let undo = (machine.apply(&Change::HoldPackages { patterns }).await).unwrap();
        let held = files.text(LOCK_LIST);
        says(&held, "\ndocker.io-0:20.10.24.*");
        assert!(held.starts_with(theirs), "{held}");
        let stat = files.stat(path.into()).unwrap().unwrap();
        assert_eq!((stat.mode, stat.uid, stat.gid), (0o640, 0, 8));
        machine.revert(&undo).await;
        assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
    }
}

#[tokio::test]
async fn version_missing_on_the_mirror_blocks_the_repair() {
    let (machine, apt) = docker(Kind::Dnf);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    for name in ["docker.io", "runc"] {
        apt.edit(name, |package| package.half = true);
    }
    apt.archive.lock().unwrap().remove("runc");
    let before = apt.installed.lock().unwrap().len();
    let error = machine.fails(&Change::RepairPackages).await;
    says(&error, "no repository has `runc-");
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("nothing was changed"), "{hint}");
    assert!(hint.contains("`dnf distro-sync runc`"), "{hint}");
    assert_eq!(apt.installed.lock().unwrap().len(), before);
    assert!(apt.package("docker.io").half);
    // The administrator follows the hint. After this transaction neither the dnf history nor its lock contains the
    // interrupted transaction.
    apt.edit("docker.io", |package| package.half = false);
    apt.edit("runc", |runc| {
        (runc.half, runc.version) = (false, "1.1.4".to_owned())
    });
    let plan = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(plan.unwrap().as_deref(), Some("~ docker.io"));
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn package_removed_by_undo_is_not_incomplete_later() {
    let (machine, apt) = docker(Kind::Dnf);
    apt.events().failing = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    let error = (machine.apply_captured(&change, &undo).await).unwrap_err();
    assert_eq!(error.reason(), "package-script");
    machine.revert(&machine.reconcile(&undo).await).await;
    // The administrator or gpu-bootstrap installs the same version.
    machine.apply(&change).await.unwrap();
    let plan = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(plan.unwrap().as_deref(), Some(""));
}

#[tokio::test]
async fn manually_removed_package_is_not_incomplete_later() {
    let (machine, apt) = docker(Kind::Dnf);
    apt.events().failing = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let _error = machine.apply(&change).await.unwrap_err();
    for name in ["docker.io", "runc"] {
        apt.remove(name);
    }
    machine.apply(&change).await.unwrap();
}

fn has(cmd: &Cmd, word: &str) -> bool {
    cmd.args.iter().any(|arg| arg == word)
}

/// Adds a row to the simulations of a verb, from the command on for which this is due.
fn simulates_more(
    machine: &TestMachine,
    archive: &Archive,
    verb: &'static str,
    more: String,
    mut is_due: impl FnMut(&Cmd) -> bool + Send + 'static,
) {
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, _| {
        let (mut output, is_due) = (own.dnf(cmd), is_due(cmd));
        if is_due && has(cmd, "--assumeno") && has(cmd, verb) {
            output.stdout = format!("Dependencies resolved.\n{more}\n{}", output.stdout);
        }
        output
    });
}

#[tokio::test]
async fn additional_removal_since_the_plan_is_rejected() {
    let (machine, archive) = moved::driver(Kind::Dnf).await;
    // A package that depends on a removed one was installed in the meantime.
    let (bash, mut downloaded) = (row("bash", Some("5.2"), None), false);
    simulates_more(&machine, &archive, "shell", bash, move |cmd| {
        downloaded |= has(cmd, "--downloadonly");
        downloaded
    });
    let change = moved::install("580.*", &["driver", "library-1"]);
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("remove bash"), "{error}");
    assert_eq!(archive.package("driver").version, "535.1");
}

#[tokio::test]
async fn package_that_was_not_removed_is_an_error() {
    let (machine, archive) = moved::driver(Kind::Dnf).await;
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, _| {
        let is_real = has(cmd, "-y") && has(cmd, "--cacheonly");
        let Some(script) = cmd.stdin.as_ref().filter(|_| is_real) else {
            return own.dnf(cmd);
        };
        let kept: Vec<&str> = (script.expose().lines())
            .filter(|line| !line.starts_with("remove "))
            .collect();
        let less = Cmd {
            stdin: Some(Secret::new(kept.join("\n"))),
            ..cmd.clone()
        };
        own.dnf(&less)
    });
    let change = moved::install("580.*", &["driver", "library-1"]);
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "package-not-verified");
    says(&error, "`library-1` is still installed");
}

#[tokio::test]
async fn truncated_cache_is_regenerated() {
    const TORN: &str = "/var/cache/dnf/gpu-bootstrap-nvidia.solv";
    let (machine, archive) = docker(Kind::Dnf);
    machine.fakes.files.put(TORN, "SOLV");
    let others = "/var/cache/dnf/baseos.solv";
    machine.fakes.files.put(others, "SOLV");
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let mut output = archive.dnf(cmd);
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
    apt.events().breaks = vec![Break::after(1, "").killed()];
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    let _error = (machine.apply_captured(&change, &undo).await).unwrap_err();
    apt.edit("runc", |package| package.half = true);
    machine.recover(&undo).await;
    machine.fakes.files.take("/var/lib/dnf/rpmdb_lock.pid");
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "package-database-interrupted");
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&change).await.unwrap();
}

/// A machine on which the installation of `docker.io` and `runc` was interrupted in the scripts of a package.
async fn interrupted(package: &str) -> (TestMachine, Archive) {
    let (machine, archive) = docker(Kind::Dnf);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    archive.edit(package, |package| package.half = true);
    (machine, archive)
}

#[tokio::test]
async fn interrupted_repair_may_remove_duplicates() {
    let (machine, archive) = interrupted("runc").await;
    // The rpm database contains the same version twice.
    let twice = row("runc", Some("1.1.5"), None);
    simulates_more(&machine, &archive, "reinstall", twice, |_| true);
    machine.apply(&Change::RepairPackages).await.unwrap();
}

/// An interrupted upgrade leaves two versions of a package. No repository has the old one, and a reinstallation of the new one
/// removes it.
#[tokio::test]
async fn repair_does_not_reinstall_the_old_version() {
    const OLD: &str = "/var/lib/rpm/old-runc";
    let (machine, archive) = interrupted("runc").await;
    machine.fakes.files.put(OLD, "");
    let own = archive.clone();
    machine.fakes.exec.on("rpm", move |cmd, files| {
        let mut output = own.rpm(cmd);
        if has(cmd, "-qa") && output.stdout.contains("runc\t") && files.exists(OLD.into()).unwrap()
        {
            (output.stdout).push_str("runc\tx86_64\t(none)\t1.1.4\t(none)\t(none)\t(none)\n");
        }
        output
    });
    let own = archive.clone();
    machine.fakes.exec.on("dnf", move |cmd, files| {
        let is_real = !has(cmd, "--assumeno") && !has(cmd, "--downloadonly");
        if has(cmd, "reinstall") && is_real {
            files.take(OLD);
        }
        own.dnf(cmd)
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!archive.package("runc").half);
}

/// dnf would complete the dependencies with any suitable packages, such as the other module flavor.
#[tokio::test]
async fn repair_first_installs_the_missing_packages_of_the_transaction() {
    let (machine, archive) = interrupted("docker.io").await;
    archive.remove("runc");
    archive.events().begun = " ** Install runc-1.1.5.x86_64 @archive\n";
    let (other, own) = (row("crun", None, Some("1.0")), archive.clone());
    simulates_more(&machine, &archive, "reinstall", other, move |_| {
        !own.has("runc")
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(archive.has("runc") && !archive.package("docker.io").half);
}

/// A power loss may have truncated the package lists.
#[tokio::test]
async fn repair_downloads_package_lists_that_lack_a_package() {
    let (machine, archive) = interrupted("runc").await;
    archive.archive.lock().unwrap().remove("runc");
    archive.events().coming = vec![("runc", Offered::new("1.1.5", &[]))];
    let (applier, repair) = (machine.restarted(), Change::RepairPackages);
    let undo = applier.capture(&repair).await.unwrap();
    applier.apply(&repair, undo, &machine.sink).await.unwrap();
    assert!(!archive.package("runc").half);
}

#[tokio::test]
async fn foreign_pattern_blocks_upgrade_but_not_repair() {
    let (machine, archive) = interrupted("runc").await;
    machine.fakes.files.put(LOCK_LIST, "run*\n");
    let twice = row("runc", Some("1.1.5"), None);
    simulates_more(&machine, &archive, "reinstall", twice, |_| true);
    machine.apply(&Change::RepairPackages).await.unwrap();
    // A new version of the package is blocked.
    let (mut machine, _) = moved::driver(Kind::Dnf).await;
    machine.applier = machine.restarted();
    machine.fakes.files.put(LOCK_LIST, "driver*\nlib*\n");
    let change = moved::install("580.*", &["driver"]);
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "package-held");
    let hint = error.hint().unwrap();
    for part in ["`dnf versionlock delete 'driver*'`", "`driver*`", LOCK_LIST] {
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
    let captured = machine.applier.capture(&stream("580-open")).await;
    assert_eq!(captured.unwrap_err().reason(), "unsupported");
}

#[tokio::test]
async fn failed_script_is_an_error_until_repaired() {
    let (machine, apt) = docker(Kind::Dnf);
    apt.events().failing = vec!["docker.io"];
    let change = install(&["docker.io"]);
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "package-script");
    says(&error, "%post(docker.io-20.10.24.x86_64)");
    // The package counts as installed, but a second run does not rely on that.
    let error = machine.restarted().preview(&Change::RepairPackages).await;
    assert_eq!(error.unwrap().as_deref(), Some("~ docker.io"));
    let error = machine.fails(&change).await;
    assert_eq!(error.reason(), "package-database-interrupted");
    // The script fails again in the first repair, and succeeds in the second one.
    apt.events().failing = vec!["docker.io"];
    let error = machine.fails(&Change::RepairPackages).await;
    assert_eq!(error.reason(), "package-script");
    machine.apply(&Change::RepairPackages).await.unwrap();
    machine.apply(&change).await.unwrap();
}

#[tokio::test]
async fn imported_key_is_removed_with_the_last_package() {
    let (machine, apt) = docker(Kind::Dnf);
    apt.events().imports = true;
    let keys = || machine.fakes.files.exists(KEYS.into()).unwrap();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    assert_eq!(effects(&undo).keys.len(), 1);
    assert!(keys());
    machine.revert(&undo).await;
    assert!(!keys());
}

#[tokio::test]
async fn package_of_the_running_kernel_keeps_its_key() {
    let (mut machine, apt) = docker(Kind::Dnf);
    machine.applier.policy.guard.kernels = vec!["kernel-image-*".to_owned()];
    apt.offer("kernel-image-6.1", Offered::new("1", &[]));
    apt.events().imports = true;
    let change = install(&["docker.io", "kernel-image-6.1"]);
    let undo = machine.apply(&change).await.unwrap();
    (machine.fakes.files).put("/proc/sys/kernel/osrelease", "6.1-1\n");
    machine.reverts_in_part(&undo).await;
    assert!(apt.has("kernel-image-6.1") && !apt.has("runc"));
    assert!(machine.fakes.files.exists(KEYS.into()).unwrap());
}

#[tokio::test]
async fn stale_lock_is_removed() {
    let (machine, _) = docker(Kind::Dnf);
    let stale = "/var/cache/dnf/metadata_lock.pid";
    machine.fakes.files.put(stale, "812");
    (machine.fakes.files).put("/proc/812/cmdline", "/usr/sbin/sshd\0");
    machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(!machine.fakes.files.exists(stale.into()).unwrap());
}
