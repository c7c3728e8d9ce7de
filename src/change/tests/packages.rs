//! Tests package transactions: installation and undo, rejections, waits and failures.

use camino::Utf8Path;
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Kind, Offered, hold_lock, release_lock},
    kit::{STATE, TestMachine},
    system::run_process,
    with_each_manager,
};
use crate::{
    change::{Applier, ApplyChanges, Change, Reverted, Undo, packages::Unhold},
    config::desired::PackageSpec,
    error::Report,
    exit::Exit,
    host::{
        Files, ReadFiles,
        fake::{FakeFiles, Mutation, diff, failed, ok},
    },
    tools::packages::HEADER,
};

pub(super) fn spec(name: &str, version: Option<&str>) -> PackageSpec {
    PackageSpec {
        name: name.into(),
        version: version.map(str::to_owned),
    }
}

pub(super) fn install(names: &[&str]) -> Change {
    Change::InstallPackages {
        packages: names.iter().map(|name| spec(name, None)).collect(),
        removing: vec![],
        later: false,
    }
}

with_each_manager! {
    every_installed_package_is_removed
    second_apply_runs_no_command
    existing_packages_keep_their_marks
    interrupted_installation_is_undone_by_its_record
    packages_installed_during_a_wait_are_not_ours
    unapproved_actions_are_rejected
    newer_lists_need_a_new_approval
    packages_needed_by_others_are_kept_and_reported
    upgraded_package_is_kept_and_the_downgrade_reported
    failed_systemd_reload_is_reported
    unneeded_packages_are_removed_and_needed_ones_stay
    only_own_holds_are_released
    lists_are_downloaded_once_per_repository_change
    only_transient_errors_are_retried
    half_configured_packages_are_repaired_first
    wait_reports_package_manager_and_is_limited
    signal_ends_a_wait
    masked_timer_does_not_fail_the_transaction
    failed_timer_start_is_reported_and_retried
    undone_transaction_leaves_no_record
    plan_shows_the_actions_of_the_transaction
}

/// The flag file that disables compilation in package scripts.
const FLAG: &str = "/etc/dkms/no-autoinstall";

/// Exists if a package script has seen the flag.
const SEEN: &str = "/var/lib/seen";

/// A machine on which these packages are available, and an installation that defers their module builds. `differs` is an
/// additional file of the machine, or a directory if it ends with `/`.
fn with_sources(kind: Kind, names: &[&'static str], differs: &str) -> (TestMachine, Change) {
    let machine = TestMachine::with(kind);
    let archive = Archive::on(&machine);
    for name in names {
        let script = |files: &FakeFiles| {
            if files.exists(FLAG.into()).unwrap() {
                files.put(SEEN, "");
            }
        };
        let source = Offered {
            script,
            ..Offered::new("535.261.03-1", &[])
        };
        archive.offer(name, source);
    }
    match differs.strip_suffix('/') {
        Some(directory) => machine.fakes.files.put_directory(directory, 0o755),
        None if differs.is_empty() => {}
        None => machine.fakes.files.put(differs, ""),
    }
    let later = Change::InstallPackages {
        packages: names.iter().map(|name| spec(name, None)).collect(),
        removing: vec![],
        later: true,
    };
    (machine, later)
}

#[tokio::test]
async fn scripts_defer_the_only_module() {
    let (one, two) = (
        &["nvidia-kernel-dkms"][..],
        &["nvidia-kernel-dkms", "zfs-dkms"][..],
    );
    for (kind, names, differs, leave) in [
        (Kind::Apt, one, "", true),
        (Kind::Apt, one, "/etc/dkms/framework.conf", true),
        // An existing directory is kept, even if it is empty.
        (Kind::Apt, one, "/etc/dkms/", true),
        // The flag would also prevent the compilation of another module, so it is not set.
        (Kind::Apt, two, "", false),
        (Kind::Apt, one, "/var/lib/dkms/zfs/2.1.11/source", false),
        // The scripts of rpm packages do not support the flag.
        (Kind::Dnf, one, "", false),
    ] {
        let (machine, later) = with_sources(kind, names, differs);
        let before = machine.fakes.files.exists("/etc/dkms".into()).unwrap();
        machine.units.put("apt-daily.timer", "enabled", "active");
        machine.apply(&later).await.unwrap();
        let exists = |path: &str| machine.fakes.files.exists(path.into()).unwrap();
        assert_eq!(exists(SEEN), leave, "{names:?} {differs}");
        assert!(!exists(FLAG), "{names:?} {differs}");
        assert_eq!(exists("/etc/dkms"), before, "{names:?} {differs}");
        // Until the module is compiled, no timer starts another DKMS.
        let timer = || machine.units.all()["apt-daily.timer"].1 == "active";
        assert_eq!(timer(), !leave, "{names:?} {differs}");
    }
}

/// Builds a module, which fails here without DKMS.
async fn build(applier: &Applier, machine: &TestMachine, kernel: &str) {
    let build = Change::BuildModule {
        module: "nvidia".to_owned(),
        kernel: kernel.to_owned(),
    };
    let why = "the build failed".to_owned();
    let built = applier.apply(&build, Undo::Nothing { why }, &machine.sink);
    assert!(built.await.is_err());
}

fn timer_runs(machine: &TestMachine) -> bool {
    machine.units.all()["apt-daily.timer"].1 == "active"
}

/// The timers are also paused in a run that only builds modules, such as the run after one that was killed.
#[tokio::test]
async fn timers_are_paused_until_the_run_ends() {
    let machine = TestMachine::new();
    machine.units.put("apt-daily.timer", "enabled", "active");
    for kernel in ["6.1.0", "6.2.0"] {
        build(&machine.applier, &machine, kernel).await;
        assert!(!timer_runs(&machine), "{kernel}");
    }
    ApplyChanges::resume_paused(&machine.applier, &machine.sink).await;
    assert!(timer_runs(&machine));
    assert_eq!(
        machine.fakes.files.snapshot().text().matches(STATE).count(),
        0
    );
}

#[tokio::test]
async fn build_during_package_work_starts_no_timer() {
    let (machine, later) = with_sources(Kind::Apt, &["nvidia-kernel-dkms"], "");
    machine.units.put("apt-daily.timer", "enabled", "active");
    machine.apply(&later).await.unwrap();
    let work = machine.applier.exclusively(&machine.sink, async {
        build(&machine.applier, &machine, "6.1.0").await;
        assert!(!timer_runs(&machine));
        Ok(())
    });
    work.await.unwrap();
    // The timer stays paused, because the same run may install kernel packages later.
    assert!(!timer_runs(&machine));
    ApplyChanges::resume_paused(&machine.applier, &machine.sink).await;
    assert!(timer_runs(&machine));
}

/// Package lists may be downloaded before the journal exists, so pausing the timers creates the state directory.
#[tokio::test]
async fn state_directory_is_removed_with_the_paused_timers() {
    let machine = TestMachine::new();
    Archive::on(&machine);
    machine.units.put("apt-daily.timer", "enabled", "active");
    let files = machine.fakes.files.clone();
    let work = machine.applier.exclusively(&machine.sink, async {
        let stat = files.stat(STATE.into())?.expect("the state folder");
        assert_eq!(stat.mode, 0o700);
        Ok(())
    });
    work.await.unwrap();
    assert!(!files.exists(STATE.into()).unwrap());
    // An existing directory is kept.
    files.put_directory(STATE, 0o700);
    let work = machine.applier.exclusively(&machine.sink, async { Ok(()) });
    work.await.unwrap();
    assert!(files.exists(STATE.into()).unwrap());
}

#[tokio::test]
async fn only_our_interrupted_flag_is_removed() {
    let (machine, later) = with_sources(Kind::Apt, &["nvidia-kernel-dkms"], FLAG);
    machine.apply(&later).await.unwrap();
    let files = &machine.fakes.files;
    assert!(files.exists(SEEN.into()).unwrap());
    let undo = machine.applier.capture(&later).await.unwrap();
    let reconcile = async || {
        let restarted = machine.restarted();
        restarted.reconcile(&undo, &machine.sink).await.unwrap();
        files.exists(FLAG.into()).unwrap()
    };
    assert!(reconcile().await);
    files.put(FLAG, HEADER);
    assert!(!reconcile().await);
}

/// An archive with docker and its dependency.
pub(super) fn docker(kind: Kind) -> (TestMachine, Archive) {
    let machine = TestMachine::with(kind);
    let apt = Archive::on(&machine);
    apt.offer("runc", Offered::new("1.1.5", &[]));
    apt.offer(
        "docker.io",
        Offered {
            conffile: Some("/etc/default/docker"),
            owns: "/lib/systemd/system/docker.service",
            ..Offered::new("20.10.24", &["runc"])
        },
    );
    machine.fakes.files.put_directory("/etc/default", 0o755);
    (machine, apt)
}

async fn every_installed_package_is_removed(kind: Kind) {
    let (machine, _) = docker(kind);
    let (undo, reverted) = machine.apply_and_undo(&install(&["docker.io"])).await;
    let Undo::Packages {
        effects: Some(effects),
        ..
    } = undo
    else {
        panic!("packages");
    };
    assert_eq!(
        effects.appeared.iter().collect::<Vec<_>>(),
        ["docker.io", "runc"]
    );
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
}

async fn second_apply_runs_no_command(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    machine.fakes.exec.clear_log();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(undo.is_nothing());
    assert!(
        !machine
            .fakes
            .exec
            .lines()
            .iter()
            .any(|line| line.contains("apt-get") || line.contains("tiny") || line.contains("dnf"))
    );
}

async fn existing_packages_keep_their_marks(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("runc", "1.1.5");
    apt.installed.lock().unwrap().get_mut("runc").unwrap().auto = true;
    apt.write(&machine.fakes.files);
    let (undo, _) = machine
        .apply_and_undo(&install(&["docker.io", "runc"]))
        .await;
    assert!(!undo.is_nothing());
    assert!(apt.installed.lock().unwrap().contains_key("runc"));
}

async fn interrupted_installation_is_undone_by_its_record(kind: Kind) {
    let (machine, _) = docker(kind);
    let before = machine.snapshot();
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    machine
        .applier
        .apply(&change, undo.clone(), &machine.sink)
        .await
        .unwrap();
    // The journal does not contain the result of the transaction.
    let restarted = machine.restarted();
    let undo = restarted.reconcile(&undo, &machine.sink).await.unwrap();
    restarted.revert(&undo, &machine.sink).await.unwrap();
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

async fn packages_installed_during_a_wait_are_not_ours(kind: Kind) {
    let (machine, apt) = docker(kind);
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    apt.have("vim", "9");
    apt.write(&machine.fakes.files);
    // If the transaction was interrupted before it started, no package is ours.
    let early = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(early.is_nothing());
    let undo = machine
        .applier
        .apply(&change, undo, &machine.sink)
        .await
        .unwrap();
    machine.revert(&undo).await;
    let left = apt.installed.lock().unwrap();
    assert!(left.contains_key("vim") && !left.contains_key("docker.io"));
}

async fn unapproved_actions_are_rejected(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.have("runc", "1.0");
    apt.offer(
        "nvidia",
        Offered {
            conflicts: &["podman"],
            ..Offered::new("535.1", &[])
        },
    );
    apt.write(&machine.fakes.files);
    let before = machine.snapshot();
    let error = machine.apply(&install(&["nvidia"])).await.unwrap_err();
    assert_eq!(error.reason(), "transaction-refused");
    assert_eq!(error.exit(), Exit::Blocked);
    assert!(error.to_string().contains("would remove podman"), "{error}");
    assert!(
        machine
            .applier
            .preview(&install(&["nvidia"]))
            .await
            .is_err()
    );
    let wanted = Change::InstallPackages {
        packages: vec![spec("nvidia", Some("580.*"))],
        removing: vec!["podman".into()],
        later: false,
    };
    let error = machine.apply(&wanted).await.unwrap_err();
    assert_eq!(error.reason(), "package-not-found");
    assert!(error.to_string().contains("available: 535.1"), "{error}");
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
    let named = Change::InstallPackages {
        packages: vec![spec("nvidia", Some("535.*"))],
        removing: vec!["podman".into()],
        later: false,
    };
    let undo = machine.apply(&named).await.unwrap();
    assert!(!apt.installed.lock().unwrap().contains_key("podman"));
    // `podman` cannot be reinstalled, because the archive does not contain it.
    let reverted = machine.revert(&undo).await;
    assert!(matches!(&reverted, Reverted::Left { what, .. } if what.contains("podman")));
}

#[tokio::test]
async fn only_simulated_and_approved_removals_happen() {
    let (machine, apt) = docker(Kind::Apt);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let named = Change::InstallPackages {
        packages: vec![spec("docker.io", None)],
        removing: vec!["podman".into()],
        later: false,
    };
    machine.apply(&named).await.unwrap();
    let real: Vec<bool> = machine
        .fakes
        .exec
        .lines()
        .iter()
        .filter(|line| line.contains(" install ") && !line.contains(" -s "))
        .filter(|line| !line.contains("--print-uris"))
        .filter(|line| !line.contains("--download-only"))
        .map(|line| line.contains("--no-remove"))
        .collect();
    assert_eq!(real, [true, false]);
}

async fn newer_lists_need_a_new_approval(kind: Kind) {
    // The lists were older than the mirror. The mirror's version removes another package.
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.write(&machine.fakes.files);
    *apt.faults.lock().unwrap() = vec!["E: Failed to fetch http://x/runc.deb  404  Not Found"];
    let newer = |conflicts| Offered {
        conflicts,
        ..Offered::new("1.1.6", &[])
    };
    *apt.coming.lock().unwrap() = vec![("runc", newer(&["podman"]))];
    let error = machine.apply(&install(&["docker.io"])).await.unwrap_err();
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("would remove podman"), "{error}");
    assert!(apt.installed.lock().unwrap().contains_key("podman"));
    // Newer versions without side effects are installed.
    *apt.faults.lock().unwrap() = vec!["E: Failed to fetch http://x/runc.deb  404  Not Found"];
    apt.offer("runc", Offered::new("1.1.5", &[]));
    *apt.coming.lock().unwrap() = vec![("runc", newer(&[]))];
    machine
        .apply(&install(&["docker.io", "runc"]))
        .await
        .unwrap();
    assert_eq!(apt.installed.lock().unwrap()["runc"].version, "1.1.6");
}

async fn packages_needed_by_others_are_kept_and_reported(kind: Kind) {
    let (machine, apt) = docker(kind);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    apt.offer("swarm", Offered::new("1", &["docker.io"]));
    apt.have("swarm", "1");
    apt.write(&machine.fakes.files);
    let reverted = machine.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Left { why, .. } if why.contains("would remove swarm")),
        "{reverted:?}"
    );
    assert!(apt.installed.lock().unwrap().contains_key("docker.io"));
}

async fn upgraded_package_is_kept_and_the_downgrade_reported(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("runc", "1.0");
    apt.write(&machine.fakes.files);
    let change = Change::InstallPackages {
        packages: vec![spec("docker.io", None), spec("runc", Some("1.1.*"))],
        removing: vec![],
        later: false,
    };
    let undo = machine.apply(&change).await.unwrap();
    let Reverted::Left { what, why } = machine.revert(&undo).await else {
        panic!("a part remains");
    };
    assert_eq!(what, "runc 1.1.5 instead of 1.0");
    let command = match kind {
        Kind::Apt => "`apt-get install --allow-downgrades runc=1.0`",
        Kind::Dnf => "`dnf downgrade runc-1.0`",
        Kind::Tiny => "`tiny perform as-approved install runc=1.0`",
    };
    assert!(why.contains(command), "{why}");
    assert!(!apt.installed.lock().unwrap().contains_key("docker.io"));
    // After the downgrade there is nothing left to undo.
    apt.have("runc", "1.0");
    apt.write(&machine.fakes.files);
    let again = machine.revert(&undo).await;
    assert!(!matches!(again, Reverted::Left { .. }), "{again:?}");
}

async fn failed_systemd_reload_is_reported(kind: Kind) {
    let (machine, _) = docker(kind);
    machine
        .fakes
        .files
        .put_directory("/run/systemd/system", 0o755);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    machine
        .fakes
        .exec
        .on("systemctl", |cmd, _| match cmd.args[0].as_str() {
            "daemon-reload" => failed(1, "Failed to reload daemon: Connection timed out"),
            _ => ok("LoadState=not-found\nActiveState=inactive\n"),
        });
    let Reverted::Left { what, why } = machine.revert(&undo).await else {
        panic!("a part remains");
    };
    assert!(what.contains("systemd still has loaded"), "{what}");
    assert!(why.contains("Connection timed out"), "{why}");
}

async fn unneeded_packages_are_removed_and_needed_ones_stay(kind: Kind) {
    let (machine, apt) = docker(kind);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    apt.offer("theirs", Offered::new("1", &["runc"]));
    apt.have("theirs", "1");
    apt.write(&machine.fakes.files);
    let Reverted::Left { what, .. } = machine.revert(&undo).await else {
        panic!("a part remains");
    };
    assert!(what.contains("1 package (runc)"), "{what}");
    {
        let installed = apt.installed.lock().unwrap();
        assert!(installed.contains_key("runc") && !installed.contains_key("docker.io"));
    }
}

async fn only_own_holds_are_released(kind: Kind) {
    let (machine, apt) = docker(kind);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    apt.installed.lock().unwrap().get_mut("runc").unwrap().held = true;
    apt.write(&machine.fakes.files);
    let (undo, _) = machine
        .apply_and_undo(&Change::HoldPackages {
            patterns: vec!["docker*".into(), "runc".into(), "nvidia-*".into()],
        })
        .await;
    assert_eq!(
        undo,
        Undo::Unhold(Unhold {
            held: vec!["docker.io".into()],
            entries: match kind {
                Kind::Dnf => Some(vec!["docker.io-0:20.10.24.*".into()]),
                _ => None,
            },
            record: None,
        })
    );
}

async fn lists_are_downloaded_once_per_repository_change(kind: Kind) {
    let (machine, _) = docker(kind);
    for _ in 0..2 {
        machine.apply(&Change::RefreshRepositories).await.unwrap();
    }
    let updates = || {
        let lines = machine.fakes.exec.lines();
        lines
            .iter()
            .filter(|line| {
                ["update", "refresh", "makecache"]
                    .iter()
                    .any(|end| line.ends_with(end))
            })
            .count()
    };
    assert_eq!(updates(), 1);
    machine.applier.lists.set_fresh(false);
    machine.apply(&Change::RefreshRepositories).await.unwrap();
    assert_eq!(updates(), 2);
}

async fn only_transient_errors_are_retried(kind: Kind) {
    let (machine, apt) = docker(kind);
    *apt.faults.lock().unwrap() = vec!["E: Failed to fetch http://x/a.deb  Connection timed out"];
    machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(
        machine.sink.text().contains("retry: download packages"),
        "{}",
        machine.sink.text()
    );
    assert!(!machine.fakes.clock.slept().is_empty());

    let (machine, apt) = docker(kind);
    *apt.faults.lock().unwrap() =
        vec!["E: You don't have enough free space in /var/cache/apt/archives/."];
    let error = machine.apply(&install(&["docker.io"])).await.unwrap_err();
    assert_eq!(error.reason(), "no-disk-space");
    assert!(machine.fakes.clock.slept().is_empty());
}

async fn half_configured_packages_are_repaired_first(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("bash", Offered::new("5.2", &[]));
    apt.installed.lock().unwrap().get_mut("bash").unwrap().half = true;
    apt.write(&machine.fakes.files);
    let error = machine.apply(&install(&["docker.io"])).await.unwrap_err();
    assert_eq!(error.reason(), "package-database-interrupted");
    assert!(error.hint().is_some());
    let (torn, built) = ("/var/lib/dkms/nvidia/580.1", "/var/lib/dkms/nvidia/580.2");
    let files = &machine.fakes.files;
    files
        .create_directory(Utf8Path::new(torn).join("build").as_path(), 0o755)
        .unwrap();
    files.put(&format!("{built}/build/make.log"), "DKMS make.log\n");
    let undo = machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(undo.is_nothing());
    assert!(
        !files.exists(torn.into()).unwrap(),
        "DKMS would never accept the version"
    );
    assert!(files.exists(built.into()).unwrap());
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn a_repair_waits_for_another_dkms_and_keeps_its_version() {
    let (machine, apt) = docker(Kind::Apt);
    apt.installed.lock().unwrap().get_mut("bash").unwrap().half = true;
    apt.write(&machine.fakes.files);
    let files = &machine.fakes.files;
    let added = Utf8Path::new("/var/lib/dkms/nvidia/580.1/build");
    files.create_directory(added, 0o755).unwrap();
    run_process(&machine, 41, "/bin/bash /usr/sbin/dkms add nvidia/580.1");
    let error = machine.apply(&Change::RepairPackages).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("dkms-busy", true));
    assert!(files.exists(added).unwrap());
    let lines = machine.fakes.exec.lines();
    assert!(
        !lines.iter().any(|line| line.contains("--configure")),
        "{lines:#?}"
    );
    files.take("/proc/41");
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!files.exists(added).unwrap());
}

#[tokio::test]
async fn build_error_shows_the_compiler_output() {
    let (machine, apt) = docker(Kind::Apt);
    let log = "/var/lib/dkms/nvidia-current/535.261.03/build/make.log";
    machine.fakes.files.put(log, "cc1: error: no such option\n");
    apt.installed.lock().unwrap().get_mut("bash").unwrap().half = true;
    apt.write(&machine.fakes.files);
    *apt.faults.lock().unwrap() = vec![
        "Error! Bad return status for module build on kernel: 6.1.0 (x86_64)\n\
         Consult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.",
    ];
    let error = machine.apply(&Change::RepairPackages).await.unwrap_err();
    assert_eq!(error.reason(), "module-build");
    assert!(error.to_string().contains("no such option"), "{error}");
}

async fn wait_reports_package_manager_and_is_limited(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.units.put("apt-daily.timer", "enabled", "active");
    hold_lock(&machine.fakes.files);
    let before = machine.units.all();
    let error = machine.apply(&install(&["docker.io"])).await.unwrap_err();
    assert_eq!(error.reason(), "package-lock-timeout");
    let text = error.to_string();
    assert!(
        text.contains("unattended-upgr") && text.contains("812"),
        "{text}"
    );
    assert!(
        text.contains("`/usr/bin/python3 /usr/bin/unattended-upgrade`"),
        "{text}"
    );
    assert!(machine.sink.text().contains("unattended-upgr"));
    // The timer is always started again.
    assert_eq!(machine.units.all(), before);
    assert!(!machine.fakes.files.exists("/proc/1".into()).unwrap());
    assert!(
        !machine
            .fakes
            .exec
            .lines()
            .iter()
            .any(|line| line.contains("kill"))
    );
    machine.fakes.files.put("/proc/locks", "");
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

async fn signal_ends_a_wait(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.units.put("apt-daily.timer", "enabled", "active");
    let (before, units) = (machine.snapshot(), machine.units.all());
    let stop = CancellationToken::new();
    let applier = machine.restarted().stopped_by(stop.clone());
    hold_lock(&machine.fakes.files);
    let change = install(&["docker.io"]);
    let undo = applier.capture(&change).await.unwrap();
    let asked = machine.fakes.clock.clone();
    let (ended, ()) = tokio::join!(applier.apply(&change, undo.clone(), &machine.sink), async {
        while asked.slept().len() < 3 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), crate::change::STOPPED);
    assert_eq!(machine.fakes.clock.slept().len(), 3);
    let undo = applier.reconcile(&undo, &machine.sink).await.unwrap();
    assert!(undo.is_nothing());
    release_lock(&machine.fakes.files);
    assert_eq!(machine.units.all(), units);
    let changed: Vec<String> = diff(&before, &machine.snapshot())
        .into_iter()
        .filter(|line| !line.contains("/proc"))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
}

#[tokio::test]
async fn timers_of_an_interrupted_run_are_restarted() {
    let (machine, _) = docker(Kind::Apt);
    machine.units.put("apt-daily.timer", "enabled", "active");
    machine
        .fakes
        .exec
        .changes_when(|cmd| cmd.program == "apt-get" && cmd.args.iter().all(|arg| arg != "-s"));
    machine
        .fakes
        .files
        .before_mutations(|_, mutation| match mutation {
            Mutation::Run(_) => Err(std::io::Error::other("the machine lost its power")),
            Mutation::File(..) => Ok(()),
        });
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    // As if the process had been killed during the transaction: no code after the pause runs.
    machine.units.put("apt-daily.timer", "enabled", "inactive");
    machine.fakes.files.put(
        &format!("{STATE}/paused.json"),
        "{\"schema\":1,\"units\":[\"apt-daily.timer\",\"gone.timer\"]}",
    );
    let undo = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(undo.is_nothing());
    // `reconcile` starts no timer, because the engine also calls it for failed changes while another step changes packages.
    assert_eq!(machine.units.all()["apt-daily.timer"].1, "inactive");
    machine.restarted().resume_paused(&machine.sink).await;
    assert_eq!(machine.units.all()["apt-daily.timer"].1, "active");
    let paused = format!("{STATE}/paused.json");
    assert!(!machine.fakes.files.exists(paused.as_str().into()).unwrap());
}

async fn masked_timer_does_not_fail_the_transaction(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.units.put("apt-daily.timer", "enabled", "active");
    let units = machine.units.clone();
    machine
        .fakes
        .exec
        .changes_when(|cmd| cmd.program != "systemctl");
    machine
        .fakes
        .files
        .before_mutations(move |_, mutation| match mutation {
            // The timer is paused, so the transaction is in progress.
            Mutation::Run(_) if units.all()["apt-daily.timer"].1 == "inactive" => {
                units.put("apt-daily.timer", "masked", "inactive");
                Ok(())
            }
            Mutation::Run(_) | Mutation::File(..) => Ok(()),
        });
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let masked = ("masked".to_owned(), "inactive".to_owned());
    assert_eq!(machine.units.all()["apt-daily.timer"], masked);
    let paused = format!("{STATE}/paused.json");
    assert!(!machine.fakes.files.exists(paused.as_str().into()).unwrap());
    // The masked timer is not started, and not reported.
    let told = machine.sink.text();
    assert!(!told.contains("apt-daily.timer"), "{told}");
}

async fn failed_timer_start_is_reported_and_retried(kind: Kind) {
    let (mut machine, _) = docker(kind);
    machine.applier.policy.pause_units = vec!["broken.timer".into(), "apt-daily.timer".into()];
    machine.units.put("broken.timer", "enabled", "active");
    machine.units.put("apt-daily.timer", "enabled", "active");
    machine.apply(&install(&["docker.io"])).await.unwrap();
    // The other timer is not affected.
    assert_eq!(machine.units.all()["apt-daily.timer"].1, "active");
    let told = machine.sink.text();
    assert!(
        told.contains("`broken.timer`") && told.contains("tries again"),
        "{told}"
    );
    let paused = format!("{STATE}/paused.json");
    let recorded = machine.fakes.files.text(&paused);
    assert!(
        recorded.contains("broken.timer") && !recorded.contains("apt-daily"),
        "{recorded}"
    );
    // With a stopped timer, `capture` and `reconcile` still succeed.
    let change = install(&["docker.io"]);
    let undo = machine.applier.capture(&change).await.unwrap();
    let closed = machine
        .applier
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(closed.is_nothing());
    machine.units.put("broken.timer", "enabled", "active");
    ApplyChanges::resume_paused(&machine.applier, &machine.sink).await;
    assert!(!machine.fakes.files.exists(paused.as_str().into()).unwrap());
}

/// `policy-rc.d` prevents the package script from stopping its daemon.
#[tokio::test]
async fn daemon_is_stopped_with_its_package() {
    // In a chroot, systemctl would query the host's units, or fail.
    for (kind, booted) in [(Kind::Apt, true), (Kind::Apt, false), (Kind::Dnf, true)] {
        let (machine, archive) = docker(kind);
        archive.offer(
            "daemon",
            Offered {
                owns: "/usr/lib/systemd/system/daemon.service\n/usr/lib/systemd/system/daemon.socket\n\
                       /usr/lib/systemd/system/of-others.service\n/usr/lib/systemd/system/idle.service\n\
                       /usr/share/doc/daemon/example.service",
                ..Offered::new("1", &[])
            },
        );
        if booted {
            machine
                .fakes
                .files
                .put_directory("/run/systemd/system", 0o755);
        }
        let undo = machine.apply(&install(&["daemon"])).await.unwrap();
        for (unit, active) in [
            ("daemon.service", "active"),
            ("daemon.socket", "active"),
            ("of-others.service", "active"),
            ("idle.service", "inactive"),
            ("example.service", "active"),
        ] {
            machine.units.put(unit, "enabled", active);
        }
        let own = "/etc/systemd/system/of-others.service";
        machine.fakes.files.put(own, "[Service]\n");
        machine.fakes.exec.clear_log();
        let reverted = machine.revert(&undo).await;
        assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
        let lines = machine.fakes.exec.lines();
        let stops: Vec<&str> = (lines.iter())
            .filter_map(|line| line.strip_prefix("systemctl stop -- "))
            .filter(|unit| !unit.ends_with(".timer"))
            .collect();
        let expected: &[&str] = match booted {
            true => &["daemon.socket", "daemon.service"],
            false => &[],
        };
        assert_eq!(stops, expected);
    }
}

async fn undone_transaction_leaves_no_record(kind: Kind) {
    let (machine, _) = docker(kind);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let directory = format!("{STATE}/transactions");
    let records = || {
        let names = machine.host.files.list(directory.as_str().into()).unwrap();
        (names.iter().filter(|name| name.ends_with(".json"))).count()
    };
    assert_eq!(records(), 1);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert_eq!(records(), 0);
    let again = machine.revert(&undo).await;
    assert!(!matches!(again, Reverted::Left { .. }), "{again:?}");
}

async fn plan_shows_the_actions_of_the_transaction(kind: Kind) {
    let (machine, _) = docker(kind);
    let before = machine.fakes.files.mutations();
    let text = machine
        .applier
        .preview(&install(&["docker.io"]))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(text, "+ docker.io 20.10.24\n+ runc 1.1.5");
    let text = machine
        .applier
        .preview(&install(&["unknown"]))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(text, crate::change::packages::NOT_SIMULATED);
    assert_eq!(machine.fakes.files.mutations(), before);
}
