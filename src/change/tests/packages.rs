//! Tests package transactions: installation and undo, rejections, waits and failures.

use std::sync::Mutex;

use camino::Utf8Path;
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Kind, Offered, hold_lock, release_lock},
    kit::{STATE, TestMachine, effects, says},
    system::run_process,
    with_each_manager,
};
use crate::{
    change::{Applier, ApplyChanges, Change, Reverted, Sink, Undo, packages::Unhold},
    config::desired::PackageSpec,
    error::Report,
    exit::Exit,
    host::{
        Files, ReadFiles,
        fake::{FakeFiles, Mutation, diff, failed, ok},
    },
    tools::packages::{FailureClass, HEADER},
};

pub(super) fn spec(name: &str, version: Option<&str>) -> PackageSpec {
    PackageSpec {
        name: name.into(),
        version: version.map(str::to_owned),
    }
}

pub(super) fn install(names: &[&str]) -> Change {
    replace(names.iter().map(|name| spec(name, None)).collect(), &[])
}

/// Installs packages and removes others.
pub(super) fn replace(packages: Vec<PackageSpec>, removing: &[&str]) -> Change {
    Change::InstallPackages {
        packages,
        removing: removing.iter().map(ToString::to_string).collect(),
        later: false,
    }
}

with_each_manager! {
    every_installed_package_is_removed
    second_apply_runs_no_command
    existing_packages_keep_their_marks
    packages_installed_during_a_wait_are_not_ours
    unapproved_actions_are_rejected
    newer_lists_need_a_new_approval
    upgraded_package_is_kept_and_the_downgrade_reported
    failed_systemd_reload_is_reported
    only_own_holds_are_released
    lists_are_downloaded_once_per_repository_change
    only_transient_errors_are_retried
    half_configured_packages_are_repaired_first
    wait_reports_package_manager_and_is_limited
    signal_ends_a_wait
    masked_timer_does_not_fail_the_transaction
    failed_timer_start_is_reported_and_retried
    plan_shows_the_actions_of_the_transaction
}

/// The flag file that disables compilation in package scripts.
const FLAG: &str = "/etc/dkms/no-autoinstall";

/// The record of the paused timers.
const PAUSED: &str = "/var/lib/gpu-bootstrap/paused.json";

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
        archive.offer(name, Offered::new("535.261.03-1", &[]).running(script));
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
    let two = &["nvidia-kernel-dkms", "zfs-dkms"][..];
    let one = &two[..1];
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
    assert!(!machine.fakes.files.snapshot().text().contains(STATE));
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
    let undo = machine.capture(&later).await;
    for (text, stays) in [("", true), (HEADER, false)] {
        files.put(FLAG, text);
        machine.recover(&undo).await;
        assert_eq!(files.exists(FLAG.into()).unwrap(), stays, "{text}");
    }
}

/// An archive with docker and its dependency.
pub(super) fn docker(kind: Kind) -> (TestMachine, Archive) {
    let machine = TestMachine::with(kind);
    let apt = Archive::on(&machine);
    apt.offer("runc", Offered::new("1.1.5", &[]));
    apt.offer(
        "docker.io",
        Offered::new("20.10.24", &["runc"])
            .configured_by("/etc/default/docker")
            .owning("/lib/systemd/system/docker.service"),
    );
    machine.fakes.files.put_directory("/etc/default", 0o755);
    (machine, apt)
}

async fn every_installed_package_is_removed(kind: Kind) {
    let (machine, _) = docker(kind);
    let directory = format!("{STATE}/transactions");
    let records = || {
        let names = machine.host.files.list(directory.as_str().into()).unwrap();
        (names.iter().filter(|name| name.ends_with(".json"))).count()
    };
    let before = machine.snapshot();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    let appeared: Vec<&String> = effects(&undo).appeared.iter().collect();
    assert_eq!(appeared, ["docker.io", "runc"]);
    assert_eq!(records(), 1);
    machine.reverts(&undo).await;
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
    assert_eq!(records(), 0);
    let again = machine.revert(&undo).await;
    assert!(!matches!(again, Reverted::Left { .. }), "{again:?}");
}

async fn second_apply_runs_no_command(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    machine.fakes.exec.clear_log();
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    assert!(undo.is_nothing());
    let is_change = |line: &String| line.contains("apt-get") || line.contains("dnf");
    assert!(!machine.fakes.exec.lines().iter().any(is_change));
}

async fn existing_packages_keep_their_marks(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("runc", "1.1.5");
    apt.edit("runc", |package| package.auto = true);
    let both = install(&["docker.io", "runc"]);
    assert!(!machine.apply_and_undo(&both).await.0.is_nothing());
    assert!(apt.has("runc"));
}

async fn packages_installed_during_a_wait_are_not_ours(kind: Kind) {
    let (machine, apt) = docker(kind);
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    apt.have("vim", "9");
    // If the transaction was interrupted before it started, no package is ours.
    assert!(machine.recover(&undo).await.is_nothing());
    let undo = (machine.apply_captured(&change, &undo).await).unwrap();
    machine.revert(&undo).await;
    assert!(apt.has("vim") && !apt.has("docker.io"));
}

async fn unapproved_actions_are_rejected(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.have("runc", "1.0");
    let nvidia = Offered::new("535.1", &[]);
    apt.offer("nvidia", nvidia.conflicting(&["podman"]));
    let before = machine.snapshot();
    let install = install(&["nvidia"]);
    let error = machine.fails(&install).await;
    assert_eq!(error.reason(), "transaction-refused");
    assert_eq!(error.exit(), Exit::Blocked);
    says(&error, "would remove podman");
    assert!(machine.applier.preview(&install).await.is_err());
    let wanted = replace(vec![spec("nvidia", Some("580.*"))], &["podman"]);
    let error = machine.fails(&wanted).await;
    assert_eq!(error.reason(), "package-not-found");
    assert!(error.to_string().contains("available: 535.1"), "{error}");
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
    let named = replace(vec![spec("nvidia", Some("535.*"))], &["podman"]);
    let undo = machine.apply(&named).await.unwrap();
    assert!(!apt.has("podman"));
    // `podman` cannot be reinstalled, because the archive does not contain it.
    says(machine.reverts_in_part(&undo).await.0, "podman");
}

#[tokio::test]
async fn only_simulated_and_approved_removals_happen() {
    let (machine, apt) = docker(Kind::Apt);
    apt.have("podman", "4");
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let named = replace(vec![spec("docker.io", None)], &["podman"]);
    machine.apply(&named).await.unwrap();
    let real: Vec<bool> = (machine.fakes.exec.lines().iter())
        .filter(|line| line.contains(" install ") && !line.contains(" -s "))
        .filter(|line| !line.contains("--print-uris"))
        .map(|line| line.contains("--no-remove"))
        .collect();
    assert_eq!(real, [true, false]);
}

async fn newer_lists_need_a_new_approval(kind: Kind) {
    // The lists were older than the mirror. The mirror's version removes another package.
    let (machine, apt) = docker(kind);
    apt.have("podman", "4");
    apt.events().faults = vec!["E: Failed to fetch http://x/runc.deb  404  Not Found"];
    let newer = |conflicts| Offered::new("1.1.6", &[]).conflicting(conflicts);
    apt.events().coming = vec![("runc", newer(&["podman"]))];
    let error = machine.fails(&install(&["docker.io"])).await;
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("would remove podman"), "{error}");
    assert!(apt.has("podman"));
    // Newer versions without side effects are installed.
    apt.events().faults = vec!["E: Failed to fetch http://x/runc.deb  404  Not Found"];
    apt.offer("runc", Offered::new("1.1.5", &[]));
    apt.events().coming = vec![("runc", newer(&[]))];
    (machine.apply(&install(&["docker.io", "runc"])).await).unwrap();
    assert_eq!(apt.package("runc").version, "1.1.6");
}

async fn upgraded_package_is_kept_and_the_downgrade_reported(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.have("runc", "1.0");
    let packages = vec![spec("docker.io", None), spec("runc", Some("1.1.*"))];
    let undo = machine.apply(&replace(packages, &[])).await.unwrap();
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert_eq!(what, "runc 1.1.5 instead of 1.0");
    let command = match kind {
        Kind::Apt => "`apt-get install --allow-downgrades runc=1.0`",
        Kind::Dnf => "`dnf downgrade runc-1.0`",
    };
    assert!(why.contains(command), "{why}");
    assert!(!apt.has("docker.io"));
    // After the downgrade there is nothing left to undo.
    apt.have("runc", "1.0");
    let again = machine.revert(&undo).await;
    assert!(!matches!(again, Reverted::Left { .. }), "{again:?}");
}

async fn failed_systemd_reload_is_reported(kind: Kind) {
    let (machine, _) = docker(kind);
    (machine.fakes.files).put_directory("/run/systemd/system", 0o755);
    let undo = machine.apply(&install(&["docker.io"])).await.unwrap();
    (machine.fakes.exec).on("systemctl", |cmd, _| match cmd.args[0].as_str() {
        "daemon-reload" => failed(1, "Failed to reload daemon: Connection timed out"),
        _ => ok("LoadState=not-found\nActiveState=inactive\n"),
    });
    let (what, why) = machine.reverts_in_part(&undo).await;
    assert!(what.contains("systemd still has loaded"), "{what}");
    assert!(why.contains("Connection timed out"), "{why}");
}

async fn only_own_holds_are_released(kind: Kind) {
    let (machine, apt) = docker(kind);
    machine.apply(&install(&["docker.io"])).await.unwrap();
    apt.edit("runc", |package| package.held = true);
    let patterns = vec!["docker*".into(), "runc".into(), "nvidia-*".into()];
    let (undo, _) = (machine.apply_and_undo(&Change::HoldPackages { patterns })).await;
    let ours = Unhold {
        held: vec!["docker.io".into()],
        entries: (kind == Kind::Dnf).then(|| vec!["docker.io-0:20.10.24.*".into()]),
        record: None,
    };
    assert_eq!(undo, Undo::Unhold(ours));
}

async fn lists_are_downloaded_once_per_repository_change(kind: Kind) {
    let (machine, _) = docker(kind);
    for _ in 0..2 {
        machine.apply(&Change::RefreshRepositories).await.unwrap();
    }
    let updates = || {
        let is_update = |line: &&String| line.ends_with("update") || line.ends_with("makecache");
        machine.fakes.exec.lines().iter().filter(is_update).count()
    };
    assert_eq!(updates(), 1);
    machine.applier.lists.set_fresh(false);
    machine.apply(&Change::RefreshRepositories).await.unwrap();
    assert_eq!(updates(), 2);
}

async fn only_transient_errors_are_retried(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.events().faults = vec!["E: Failed to fetch http://x/a.deb  Connection timed out"];
    machine.apply(&install(&["docker.io"])).await.unwrap();
    let what = match kind {
        Kind::Apt => "install",
        Kind::Dnf => "download",
    };
    says(machine.sink.text(), &format!("retry: {what} packages"));
    assert!(!machine.fakes.clock.slept().is_empty());

    let (machine, apt) = docker(kind);
    apt.events().faults = vec!["E: You don't have enough free space in /var/cache/apt/archives/."];
    let error = machine.fails(&install(&["docker.io"])).await;
    assert_eq!(error.reason(), "no-disk-space");
    assert!(machine.fakes.clock.slept().is_empty());
}

/// Records the progress.
#[derive(Default)]
struct Progress(Mutex<Vec<String>>);

impl Sink for Progress {
    fn line(&self, _: &str) {}

    fn progress(&self, current: u64, total: Option<u64>, unit: &str) {
        let total = total.unwrap_or_default();
        let text = format!("{current}/{total} {unit}");
        self.0.lock().unwrap().push(text);
    }

    fn retry(&self, _: &str, _: f64) {}
}

#[tokio::test]
async fn downloads_and_stages_have_separate_progress() {
    let (machine, apt) = docker(Kind::Apt);
    machine.fakes.exec.on("apt-get", move |cmd, _| {
        let mut output = apt.get(cmd);
        let is_real = !cmd.line().contains(" -s ") && !cmd.line().contains("--print-uris");
        if is_real && cmd.line().contains(" install ") {
            output.stdout = "Need to get 3 kB of archives.\n\
                Get:1 http://x bookworm/main amd64 runc amd64 1.1.5 [2 kB]\n\
                Get:2 http://x bookworm/main amd64 docker.io amd64 20.10.24 [1 kB]\n\
                Unpacking runc (1.1.5) ...\nUnpacking docker.io (20.10.24) ...\n\
                Setting up runc (1.1.5) ...\nSetting up docker.io (20.10.24) ...\n"
                .into();
        }
        output
    });
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    let sink = Progress::default();
    machine.applier.apply(&change, undo, &sink).await.unwrap();
    let expected = [
        "1/2 packages",
        "0/3000 bytes",
        "2/2 packages",
        "2000/3000 bytes",
        "25/100 percent",
        "50/100 percent",
        "75/100 percent",
        "100/100 percent",
    ];
    assert_eq!(*sink.0.lock().unwrap(), expected);
}

async fn half_configured_packages_are_repaired_first(kind: Kind) {
    let (machine, apt) = docker(kind);
    apt.offer("bash", Offered::new("5.2", &[]));
    apt.edit("bash", |package| package.half = true);
    let error = machine.fails(&install(&["docker.io"])).await;
    assert_eq!(error.reason(), "package-database-interrupted");
    assert!(error.hint().is_some());
    let (torn, built) = ("/var/lib/dkms/nvidia/580.1", "/var/lib/dkms/nvidia/580.2");
    let files = &machine.fakes.files;
    files.put_directory(&format!("{torn}/build"), 0o755);
    files.put(&format!("{built}/build/make.log"), "DKMS make.log\n");
    let undo = machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(undo.is_nothing());
    // DKMS would never accept the version.
    assert!(!files.exists(torn.into()).unwrap() && files.exists(built.into()).unwrap());
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

#[tokio::test]
async fn a_repair_waits_for_another_dkms_and_keeps_its_version() {
    let (machine, apt) = docker(Kind::Apt);
    apt.edit("bash", |package| package.half = true);
    let files = &machine.fakes.files;
    let added = Utf8Path::new("/var/lib/dkms/nvidia/580.1/build");
    files.create_directory(added, 0o755).unwrap();
    run_process(&machine, 41, "/bin/bash /usr/sbin/dkms add nvidia/580.1");
    let error = machine.fails(&Change::RepairPackages).await;
    assert_eq!((error.reason(), error.is_retryable()), ("dkms-busy", true));
    assert!(files.exists(added).unwrap());
    let lines = machine.fakes.exec.lines().join("\n");
    assert!(!lines.contains("--configure"), "{lines}");
    files.take("/proc/41");
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!files.exists(added).unwrap());
}

/// A power loss during a transaction may leave a package that must be unpacked again, and truncate the lists.
#[tokio::test]
async fn repair_downloads_lists_that_lack_a_package() {
    let (machine, apt) = docker(Kind::Apt);
    apt.edit("bash", |package| package.half = true);
    machine.fakes.exec.on("dpkg", |_, _| ok(""));
    const LACKS: &str =
        "E: The package bash needs to be reinstalled, but I can't find an archive for it.";
    let (own, mut has_lists) = (apt.clone(), false);
    machine.fakes.exec.on("apt-get", move |cmd, _| {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        has_lists |= has("update");
        match (has("--fix-broken"), has_lists, has("-s")) {
            (true, false, _) => return failed(100, LACKS),
            (true, true, false) => own.edit("bash", |package| package.half = false),
            _ => {}
        }
        own.get(cmd)
    });
    machine.apply(&Change::RepairPackages).await.unwrap();
    assert!(!apt.package("bash").half);
    // Lists that were downloaded in this run are complete.
    apt.edit("bash", |package| package.half = true);
    (machine.fakes.exec).on("apt-get", |_, _| failed(100, LACKS));
    let error = machine.fails(&Change::RepairPackages).await;
    assert_eq!(error.reason(), FailureClass::NotFound.reason());
}

#[tokio::test]
async fn build_error_shows_the_compiler_output() {
    let (machine, apt) = docker(Kind::Apt);
    let log = "/var/lib/dkms/nvidia-current/535.261.03/build/make.log";
    machine.fakes.files.put(log, "cc1: error: no such option\n");
    apt.edit("bash", |package| package.half = true);
    apt.events().faults = vec![
        "Error! Bad return status for module build on kernel: 6.1.0 (x86_64)\n\
         Consult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.",
    ];
    let error = machine.fails(&Change::RepairPackages).await;
    assert_eq!(error.reason(), "module-build");
    assert!(error.to_string().contains("no such option"), "{error}");
}

async fn wait_reports_package_manager_and_is_limited(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.units.put("apt-daily.timer", "enabled", "active");
    hold_lock(&machine.fakes.files);
    let before = machine.units.all();
    let error = machine.fails(&install(&["docker.io"])).await;
    assert_eq!(error.reason(), "package-lock-timeout");
    let text = error.to_string();
    says(&text, "812");
    says(&text, "`/usr/bin/python3 /usr/bin/unattended-upgrade`");
    says(machine.sink.text(), "unattended-upgr");
    // The timer is always started again.
    assert_eq!(machine.units.all(), before);
    assert!(!machine.fakes.files.exists("/proc/1".into()).unwrap());
    let lines = machine.fakes.exec.lines().join("\n");
    assert!(!lines.contains("kill"), "{lines}");
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
    let (ended, ()) = tokio::join!(applier.apply(&change, undo.clone(), &machine.sink), async {
        machine.waits().await;
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), crate::change::STOPPED);
    assert_eq!(machine.fakes.clock.slept().len(), 3);
    let undo = applier.reconcile(&undo, &machine.sink).await.unwrap();
    assert!(undo.is_nothing());
    release_lock(&machine.fakes.files);
    assert_eq!(machine.units.all(), units);
    let mut changed = diff(&before, &machine.snapshot());
    changed.retain(|line| !line.contains("/proc"));
    assert!(changed.is_empty(), "{changed:?}");
}

#[tokio::test]
async fn timers_of_an_interrupted_run_are_restarted() {
    let (machine, _) = docker(Kind::Apt);
    machine.units.put("apt-daily.timer", "enabled", "active");
    (machine.fakes.exec)
        .changes_when(|cmd| cmd.program == "apt-get" && cmd.args.iter().all(|arg| arg != "-s"));
    (machine.fakes.files).before_mutations(|_, mutation| match mutation {
        Mutation::Run(_) => Err(std::io::Error::other("the machine lost its power")),
        Mutation::File(..) => Ok(()),
    });
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    // As if the process had been killed during the transaction: no code after the pause runs.
    machine.units.put("apt-daily.timer", "enabled", "inactive");
    machine.fakes.files.put(
        &format!("{STATE}/paused.json"),
        "{\"schema\":1,\"units\":[\"apt-daily.timer\",\"gone.timer\"]}",
    );
    assert!(machine.recover(&undo).await.is_nothing());
    // `reconcile` starts no timer, because the engine also calls it for failed changes while another step changes packages.
    assert_eq!(machine.units.all()["apt-daily.timer"].1, "inactive");
    machine.restarted().resume_paused(&machine.sink).await;
    assert_eq!(machine.units.all()["apt-daily.timer"].1, "active");
    assert!(!machine.fakes.files.exists(PAUSED.into()).unwrap());
}

async fn masked_timer_does_not_fail_the_transaction(kind: Kind) {
    let (machine, _) = docker(kind);
    machine.units.put("apt-daily.timer", "enabled", "active");
    let units = machine.units.clone();
    (machine.fakes.exec).changes_when(|cmd| cmd.program != "systemctl");
    (machine.fakes.files).before_mutations(move |_, mutation| match mutation {
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
    assert!(!machine.fakes.files.exists(PAUSED.into()).unwrap());
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
    says(&told, "`broken.timer`");
    says(&told, "tries again");
    let recorded = machine.fakes.files.text(PAUSED);
    says(&recorded, "broken.timer");
    assert!(!recorded.contains("apt-daily"), "{recorded}");
    // With a stopped timer, `capture` and `reconcile` still succeed.
    let change = install(&["docker.io"]);
    let undo = machine.capture(&change).await;
    assert!(machine.reconcile(&undo).await.is_nothing());
    machine.units.put("broken.timer", "enabled", "active");
    ApplyChanges::resume_paused(&machine.applier, &machine.sink).await;
    assert!(!machine.fakes.files.exists(PAUSED.into()).unwrap());
}

/// `policy-rc.d` prevents the package script from stopping its daemon.
#[tokio::test]
async fn daemon_is_stopped_with_its_package() {
    // In a chroot, systemctl would query the host's units, or fail.
    for (kind, booted) in [(Kind::Apt, true), (Kind::Apt, false), (Kind::Dnf, true)] {
        let (machine, archive) = docker(kind);
        let daemon = Offered::new("1", &[]).owning(
            "/usr/lib/systemd/system/daemon.service\n/usr/lib/systemd/system/daemon.socket\n\
             /usr/lib/systemd/system/of-others.service\n/usr/lib/systemd/system/idle.service\n\
             /usr/share/doc/daemon/example.service",
        );
        archive.offer("daemon", daemon);
        if booted {
            (machine.fakes.files).put_directory("/run/systemd/system", 0o755);
        }
        let undo = machine.apply(&install(&["daemon"])).await.unwrap();
        for unit in [
            "daemon.service",
            "daemon.socket",
            "of-others.service",
            "example.service",
        ] {
            machine.units.put(unit, "enabled", "active");
        }
        machine.units.put("idle.service", "enabled", "inactive");
        let own = "/etc/systemd/system/of-others.service";
        machine.fakes.files.put(own, "[Service]\n");
        machine.fakes.exec.clear_log();
        machine.reverts(&undo).await;
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

async fn plan_shows_the_actions_of_the_transaction(kind: Kind) {
    let (machine, _) = docker(kind);
    let before = machine.fakes.files.mutations();
    let text = machine.preview(&install(&["docker.io"])).await;
    assert_eq!(text, "+ docker.io 20.10.24\n+ runc 1.1.5");
    let text = machine.preview(&install(&["unknown"])).await;
    assert_eq!(text, crate::change::packages::NOT_SIMULATED);
    assert_eq!(machine.fakes.files.mutations(), before);
}
