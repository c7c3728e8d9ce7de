//! Journals of earlier releases are parsed to the same values by every later version, from the first release on.

use std::{fs, path::Path};

use camino::Utf8Path;
use gpu_bootstrap::{
    change::{Leave, LeaveCluster, LeaveMethod, Undo},
    error::Report,
    journal::{History, JournalError, Receipt, Record, fold, parse},
};

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn read(name: &str) -> History {
    let content = fs::read(directory().join(name)).expect("a readable sample");
    parse(Utf8Path::new(name), &content).unwrap_or_else(|error| panic!("{error}"))
}

fn receipt(name: &str) -> Receipt {
    fold(&read(name).lines)
}

/// `intent step` of each applied change, newest first. `?` marks an intent without an end record.
fn applied(receipt: &Receipt) -> Vec<String> {
    receipt
        .applied
        .iter()
        .map(|applied| {
            let open = if applied.open { "?" } else { "" };
            format!("{} {}{open}", applied.intent, applied.steps[0])
        })
        .collect()
}

#[test]
fn every_sample_is_read() {
    let mut count = 0;
    for entry in fs::read_dir(directory()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".jsonl") {
            assert!(!read(&name).lines.is_empty(), "{name}");
            count += 1;
        }
    }
    assert!(count >= 8);
}

#[test]
fn receipt_round_trips_through_its_file() {
    for name in ["complete.jsonl", "uninstalled-in-part.jsonl"] {
        let receipt = receipt(name);
        let text = serde_json::to_string(&receipt).unwrap();
        assert_eq!(serde_json::from_str::<Receipt>(&text).unwrap(), receipt);
    }
}

#[test]
fn a_complete_run() {
    let receipt = receipt("complete.jsonl");
    // Changes without a lasting effect are not in the list of applied changes.
    assert_eq!(
        applied(&receipt),
        ["7 driver.persistence", "3 packages.hold", "1 driver.module"]
    );
    assert_eq!(receipt.runs[0].ended.as_ref().unwrap().exit, 0);
    assert_eq!(
        receipt.request.unwrap().set,
        ["driver.branch=535".to_owned()]
    );
}

/// With kubeadm, and with a command of the administrator.
#[test]
fn joined_machine_has_a_leave_method() {
    let history = read("left-and-joined-anew.jsonl");
    let leaves: Vec<Leave> = (history.lines.iter())
        .filter_map(|line| match &line.record {
            Record::Applied {
                undo: Undo::LeaveCluster(LeaveCluster { leave, cluster, .. }),
                ..
            } => {
                assert_eq!(cluster.as_ref().unwrap().server, "https://10.0.0.1:6443");
                Some(leave.clone())
            }
            _ => None,
        })
        .collect();
    let [
        Leave::Kubeadm {
            created_directories,
            ..
        },
        Leave::Command { command, .. },
    ] = &leaves[..]
    else {
        panic!("{leaves:?}");
    };
    assert_eq!(created_directories.len(), 3);
    assert_eq!(command[..], ["/usr/local/sbin/leave", "--now"]);
    assert_eq!(applied(&fold(&history.lines)), ["8 cluster.join"]);
}

/// With the agents of k3s and RKE2, and with nodeadm. A managed machine is already a node, so only its labels are set.
#[test]
fn undo_of_each_join_method_is_read() {
    let history = read("joined-in-other-ways.jsonl");
    let undos: Vec<&Undo> = (history.lines.iter())
        .filter_map(|line| match &line.record {
            Record::Applied { undo, .. } => Some(undo),
            _ => None,
        })
        .collect();
    let [
        Undo::LeaveCluster(k3s),
        Undo::LeaveCluster(rke2),
        Undo::LeaveCluster(eks),
        Undo::RestoreLabels(managed),
    ] = &undos[..]
    else {
        panic!("{undos:?}");
    };
    assert_eq!(k3s.leave, Leave::K3s);
    assert_eq!(rke2.leave, Leave::Rke2);
    assert_eq!(eks.leave, Leave::Nodeadm);
    for left in [k3s, rke2, eks] {
        let cluster = left.cluster.as_ref().unwrap();
        assert!(cluster.server.starts_with("https://"), "{cluster:?}");
    }
    let before: Vec<Option<&str>> = managed.labels.values().map(Option::as_deref).collect();
    assert_eq!(before, [None, Some("ops")]);
    assert_eq!(applied(&fold(&history.lines)), ["22 cluster.node"]);
}

/// The node of a failed upgrade stays out of service until a later run succeeds.
#[test]
fn failed_upgrade_has_a_return_to_service() {
    let receipt = receipt("upgrade-failed.jsonl");
    assert_eq!(applied(&receipt), ["1 maintenance"]);
    let Undo::ReturnToService(undo) = &receipt.applied[0].undo else {
        panic!("{:?}", receipt.applied[0].undo);
    };
    assert_eq!(undo.lock.lock.to_string(), "fleetlock:https://lock.example");
    assert!(
        matches!(&undo.method, LeaveMethod::Cluster(cluster) if cluster.node.to_string() == "gpu-1"),
        "{:?}",
        undo.method
    );
    assert!(receipt.request.is_some_and(|request| request.upgrade));
}

#[test]
fn mig_layouts_are_recorded() {
    let receipt = receipt("gpus-partitioned.jsonl");
    assert_eq!(applied(&receipt), ["1 driver.mig"]);
    let Undo::RestoreMig(undo) = &receipt.applied[0].undo else {
        panic!("{:?}", receipt.applied[0].undo);
    };
    assert_eq!(undo.before[0].to_string(), "0000:18:00.0=disabled");
    assert_eq!(undo.stop_units, ["nvidia-dcgm.service"]);
}

#[test]
fn masked_unit_is_recorded() {
    let receipt = receipt("unit-masked.jsonl");
    assert_eq!(applied(&receipt), ["1 fabric.imex"]);
    let Undo::RestoreUnit(undo) = &receipt.applied[0].undo else {
        panic!("{:?}", receipt.applied[0].undo);
    };
    assert!(undo.unmask && undo.enabled && undo.active == Some(true));
}

#[test]
fn image_files_and_packages_are_recorded() {
    let receipt = receipt("files-and-packages.jsonl");
    assert_eq!(applied(&receipt), ["3 driver.packages", "1 kernel.deny"]);
    assert_eq!(receipt.applied[0].steps.len(), 2);
    assert!(receipt.request.unwrap().image);
}

#[test]
fn an_interrupted_run() {
    let receipt = receipt("cut-off.jsonl");
    assert_eq!(applied(&receipt)[0], "7 driver.persistence?");
    assert!(receipt.runs[0].ended.is_none());
}

#[test]
fn truncated_last_line_is_not_a_record() {
    let history = read("torn.jsonl");
    let torn = history.torn.unwrap();
    assert_eq!((torn.line, history.lines.len()), (5, 4));
    assert_eq!(
        applied(&fold(&history.lines)),
        ["3 packages.hold?", "1 driver.module"]
    );
}

#[test]
fn last_line_without_line_feed_is_a_record() {
    let history = read("whole-without-line-feed.jsonl");
    assert_eq!((history.lines.len(), history.torn), (3, None));
}

#[test]
fn failure_and_interruption_are_recorded() {
    let receipt = receipt("failed-then-interrupted.jsonl");
    assert_eq!(receipt.applied[0].intent, 5);
    assert!(receipt.applied.iter().all(|applied| !applied.open));
    assert_eq!(receipt.runs.len(), 3);
}

#[test]
fn an_awaited_reboot() {
    let receipt = receipt("reboot-awaited.jsonl");
    let awaited = receipt.awaited.unwrap();
    assert_eq!(awaited.boot_id.as_deref(), Some("b-1"));
    assert!(awaited.automatic);
    assert_eq!(receipt.reboots, 1);
}

#[test]
fn changes_left_by_uninstall_remain_applied() {
    let receipt = receipt("uninstalled-in-part.jsonl");
    assert_eq!(applied(&receipt), ["1 driver.module"]);
    assert_eq!(receipt.runs[1].mode, "uninstall");
}

#[test]
fn reduced_change_remains_applied_for_the_other_steps() {
    let receipt = receipt("reduced-in-part.jsonl");
    assert_eq!(
        applied(&receipt),
        ["3 runtime.docker-nvidia", "1 driver.packages"]
    );
    assert_eq!(receipt.applied[1].steps.len(), 1);
    let Undo::Packages {
        effects: Some(rest),
        ..
    } = &receipt.applied[1].undo
    else {
        panic!("packages");
    };
    assert_eq!(Vec::from_iter(&rest.appeared), ["nvidia-driver"]);
}

#[test]
fn last_recorded_policy_is_used() {
    assert_eq!(receipt("complete.jsonl").policy, None);
    let policy = receipt("reduced-in-part.jsonl").policy.unwrap();
    assert_eq!(policy.lock_timeout_seconds, 600);
    assert_eq!(policy.pause_units, ["apt-daily.timer"]);
}

#[test]
fn garbage_is_rejected_with_line_and_remedy() {
    let good = fs::read_to_string(directory().join("complete.jsonl")).unwrap();
    let path = Utf8Path::new("/var/lib/gpu-bootstrap/journal.jsonl");
    let lines: Vec<&str> = good.lines().collect();
    let refused = |text: String| parse(path, text.as_bytes()).unwrap_err();

    let torn_inside = format!("{}\n{{\"sch\n{}\n", lines[0], lines[1]);
    assert!(matches!(
        refused(torn_inside),
        JournalError::Garbage { line: 2, .. }
    ));
    let missing = format!("{}\n{}\n", lines[0], lines[2]);
    assert!(matches!(
        refused(missing),
        JournalError::OutOfOrder {
            line: 2,
            found: 2,
            expected: 1,
            ..
        }
    ));
    // A power loss cannot leave a complete JSON object that is not a record, not even at the end.
    let strange = format!("{}\n{{\"schema\":1,\"seq\":1}}\n", lines[0]);
    let error = refused(strange);
    assert!(matches!(error, JournalError::Garbage { line: 2, .. }));
    assert!(error.hint().unwrap().contains("journal.jsonl.damaged"));
    let newer = format!("{}\n{{\"schema\":3,\"anything\":true}}\n", lines[0]);
    let error = refused(newer);
    assert!(matches!(
        error,
        JournalError::Newer {
            line: 2,
            found: 3,
            ..
        }
    ));
    assert_eq!(error.reason(), "journal-newer");
}

#[test]
fn boots_that_interrupted_the_run_are_counted() {
    let receipt = receipt("gave-up.jsonl");
    // The first boot made progress.
    let boots: Vec<&str> = (receipt.unfinished.iter())
        .map(|boot| boot.boot_id.as_str())
        .collect();
    assert_eq!(boots, ["b-2", "b-3", "b-4", "b-5"]);
    assert!(receipt.unfinished.iter().all(|boot| !boot.in_packages));
    assert!(receipt.gave_up.unwrap().starts_with("3 boots"));
    assert_eq!(receipt.request.unwrap().deadline_seconds, Some(3600));
}

/// The first boot crashed during package work, the next ones after the run had reconciled that work.
#[test]
fn open_package_work_excuses_only_its_own_boot() {
    let receipt = receipt("crashed-in-packages.jsonl");
    let boots: Vec<(&str, bool)> = (receipt.unfinished.iter())
        .map(|boot| (boot.boot_id.as_str(), boot.in_packages))
        .collect();
    assert_eq!(boots, [("b-1", true), ("b-2", false), ("b-3", false)]);
}

#[test]
fn failed_driver_rolls_back_to_the_validated_one() {
    let receipt = receipt("rollback-started.jsonl");
    let back = receipt.rollback_started.expect("a rollback");
    assert_eq!(
        (back.from.as_str(), back.to.as_str()),
        ("of branch 595", "580.178.04")
    );
    let validated = receipt.validated.expect("a validated driver");
    assert!(
        (validated.driver.iter()).any(|package| package.name == "libcuda1"
            && package.version.as_deref() == Some("580.178.04-1"))
    );
    assert!(validated.settings.contains(&"driver.branch=580".to_owned()));
    // Boots for the failed driver count only in the sum.
    assert_eq!((receipt.reboots, receipt.reboots_in_all), (1, 2));
}

#[test]
fn finished_rollback_is_recorded() {
    let receipt = receipt("rollback-finished.jsonl");
    assert_eq!(receipt.rollback_started, None);
    assert!(receipt.validated.is_some());
}
