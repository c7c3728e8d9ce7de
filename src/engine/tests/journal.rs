//! A run that is interrupted at any write and repeated has the result of an uninterrupted run.

use nix::errno::Errno;

use super::kit::{Rig, file, fixed, packages};
use crate::{
    engine::status, error::Report, exit::Exit, host::fake::Damage, model::secret::Secret,
    step::Assessment,
};

const JOURNAL: &str = "/var/lib/gpu-bootstrap/journal.jsonl";
const CREDENTIALS: &str = "/var/lib/gpu-bootstrap/credentials.json";

fn rig() -> Rig {
    let rig = Rig::new([
        file("a", "/etc/a", "new"),
        packages("p", &["mine"]).after(&["a"]),
        file("b", "/etc/b", "new").after(&["p"]),
    ]);
    rig.fakes.files.put("/etc/a", "old");
    rig
}

/// An image build. One step waits for the first boot of the image.
fn image() -> Rig {
    let mut rig = Rig::new([
        file("a", "/etc/a", "new"),
        fixed(
            "cdi",
            Assessment::AwaitingBoot {
                why: "needs a live kernel".to_owned(),
            },
        ),
    ]);
    rig.fakes.files.put("/etc/a", "old");
    rig.image = true;
    rig
}

/// Returns the number of mutations of an uninterrupted run.
async fn mutations(rig: Rig) -> u64 {
    rig.install().await.unwrap();
    rig.fakes.files.mutations()
}

#[tokio::test]
async fn run_killed_at_any_write_can_be_repeated() {
    killed_and_installed_again(rig).await;
}

#[tokio::test]
async fn killed_image_build_resumes_at_first_boot() {
    killed_and_installed_again(image).await;
}

async fn killed_and_installed_again(rig: fn() -> Rig) {
    let wanted = {
        let rig = rig();
        rig.install().await.unwrap();
        rig.fakes
            .files
            .snapshot()
            .without(&["/run", "/var/lib/gpu-bootstrap"])
    };
    let bare = rig().fakes.files.snapshot().without(&["/run"]);
    for n in 1..=mutations(rig()).await {
        let rig = rig();
        rig.fakes.files.kill_at(n);
        // The process is dead, so its result is irrelevant.
        let _said = rig.install().await;
        rig.fakes.files.revive();
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::Ok, "killed at {n}");
        let now = rig
            .fakes
            .files
            .snapshot()
            .without(&["/run", "/var/lib/gpu-bootstrap"]);
        assert_eq!(now, wanted, "killed at {n}");
        let told = status(&rig.fakes.host(), None).unwrap();
        assert!(!told.interrupted, "killed at {n}");
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
        assert_eq!(
            rig.fakes.files.snapshot().without(&["/run"]),
            bare,
            "killed at {n}"
        );
    }
}

#[tokio::test]
async fn run_killed_at_any_write_can_be_undone() {
    let rig = || {
        let mut rig = rig();
        rig.options.request.reboot = true;
        rig.options.request.credentials = vec![Secret::new("packages.proxy=http://u:s3cret@p")];
        rig
    };
    let bare = rig().fakes.files.snapshot().without(&["/run"]);
    for n in 1..=mutations(rig()).await {
        let rig = rig();
        rig.fakes.files.kill_at(n);
        // The process is dead, so its result is irrelevant.
        let _said = rig.install().await;
        rig.fakes.files.revive();
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
        let now = rig.fakes.files.snapshot().without(&["/run"]);
        assert_eq!(now, bare, "killed at {n}");
    }
}

#[tokio::test]
async fn remains_of_a_killed_run_are_removed() {
    let rig = rig();
    let kept = format!("{JOURNAL}.damaged");
    rig.fakes.files.put(JOURNAL, "{\"schema\":1,\"se");
    rig.fakes.files.put(CREDENTIALS, "[\"s3cret\"]");
    rig.fakes.files.put(&kept, "{}\n");
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    let tree = rig.tree();
    assert!(tree.contains(&kept));
    assert!(!tree.contains(CREDENTIALS) && !tree.contains(&format!("{JOURNAL} ")));
    rig.fakes.files.take(&kept);
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    let tree = rig.tree();
    assert!(!tree.contains("/var/lib/gpu-bootstrap"));
}

#[tokio::test]
async fn moved_journal_stays_with_its_backups() {
    let rig = rig();
    let backup = "/var/lib/gpu-bootstrap/backups/abc";
    let transaction = "/var/lib/gpu-bootstrap/transactions/1.json";
    let damaged = format!("{JOURNAL}.damaged");
    let kept = [damaged.as_str(), backup, transaction];
    for path in kept {
        rig.fakes.files.put(path, "from an earlier journal");
    }
    rig.fakes
        .files
        .put("/var/lib/gpu-bootstrap/validations/a", "");
    rig.install().await.unwrap();
    let report = rig.uninstall().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    let note = report.notes.last().unwrap();
    assert!(
        note.contains("journal.jsonl.damaged") && note.contains("`rm -r "),
        "{note}"
    );
    for path in kept {
        assert_eq!(rig.fakes.files.text(path), "from an earlier journal");
    }
    let text = rig.fakes.files.snapshot().without(&kept).text();
    for gone in ["validations", "receipt.json", "journal.jsonl "] {
        assert!(!text.contains(gone), "{text}");
    }
}

#[tokio::test]
async fn unsyncable_record_stops_the_run() {
    let rig = rig();
    let bare = rig.fakes.files.snapshot().without(&["/run"]);
    let files = rig.fakes.files.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |_| {
        // The disk fails: the record is in the file, but it is unknown whether it is on disk.
        files.damage(JOURNAL, Damage::Syncs, Errno::EIO);
    });
    let error = rig.install().await.unwrap_err();
    assert_eq!(error.reason(), "journal-unavailable");
    assert_eq!(rig.log(), ["write `/etc/a`"], "no further change follows");
    *rig.change_applier.before.lock().unwrap() = Box::new(|_| {});
    rig.fakes.files.repair();
    let told = status(&rig.fakes.host(), None).unwrap();
    assert_eq!(told.changes_applied, 1);
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), bare);
}

#[tokio::test]
async fn killed_undo_can_be_repeated() {
    let bare = rig().fakes.files.snapshot().without(&["/run"]);
    for n in 1..40 {
        let rig = rig();
        rig.install().await.unwrap();
        rig.fakes.files.kill_at(n);
        let _said = rig.uninstall().await;
        let killed = rig.fakes.files.killed();
        rig.fakes.files.revive();
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok, "{n}");
        assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), bare, "{n}");
        if !killed {
            return;
        }
    }
    panic!("the undo writes more often than expected");
}

#[tokio::test]
async fn unrecordable_changes_are_not_made() {
    let rig = rig();
    rig.install().await.unwrap();
    rig.fakes.files.put("/etc/a", "drifted");
    rig.log();
    rig.fakes
        .files
        .damage(JOURNAL, Damage::Writes, Errno::ENOSPC);
    let error = rig.install().await.unwrap_err();
    assert_eq!(error.reason(), "no-disk-space");
    assert_eq!(error.exit(), Exit::Blocked);
    let hint = error.hint().unwrap();
    assert!(hint.contains("free disk space on `/` (0 B of "), "{hint}");
    assert!(rig.log().is_empty());
    assert_eq!(rig.fakes.files.text("/etc/a"), "drifted");
}

#[tokio::test]
async fn disk_that_fills_up_during_a_run_loses_nothing() {
    let rig = rig();
    let bare = rig.fakes.files.snapshot().without(&["/run"]);
    let files = rig.fakes.files.clone();
    *rig.change_applier.before.lock().unwrap() = Box::new(move |_| {
        files.damage(JOURNAL, Damage::Writes, Errno::ENOSPC);
    });
    let error = rig.install().await.unwrap_err();
    assert_eq!(error.exit(), Exit::StepFailed);
    assert_eq!(error.reason(), "no-disk-space");
    *rig.change_applier.before.lock().unwrap() = Box::new(|_| {});
    rig.fakes.files.repair();
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), bare);
}

#[tokio::test]
async fn truncated_last_line_is_reported_and_dropped() {
    let rig = rig();
    rig.install().await.unwrap();
    let whole = rig.fakes.files.text(JOURNAL);
    rig.fakes
        .files
        .put_mode(JOURNAL, format!("{whole}{{\"schema\":1,\"se"), 0o600);
    let report = rig.install().await.unwrap();
    assert_eq!(report.exit, Exit::Ok);
    assert!(
        report.notes[0].contains("is incomplete"),
        "{:?}",
        report.notes
    );
    let now = rig.fakes.files.text(JOURNAL);
    assert!(now.starts_with(&whole));
    assert!(
        now.lines()
            .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
    );
}

#[tokio::test]
async fn damaged_journal_stops_the_run_before_any_change() {
    let rig = rig();
    rig.fakes.files.put(JOURNAL, "not json\n{}\n");
    let error = rig.install().await.unwrap_err();
    assert_eq!(error.reason(), "journal-damaged");
    assert_eq!(error.exit(), Exit::Blocked);
    assert!(error.hint().unwrap().contains("mv "));
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn receipt_and_journal_are_readable_only_by_root() {
    let rig = rig();
    rig.install().await.unwrap();
    let tree = rig.tree();
    let mode = |path: &str| {
        tree.lines()
            .find(|line| line.contains(&format!("{path} ")) || line.ends_with(path))
            .map(ToOwned::to_owned)
            .unwrap_or_else(|| panic!("{path} in:\n{tree}"))
    };
    assert!(mode("/var/lib/gpu-bootstrap").contains("700"));
    assert!(mode("/var/lib/gpu-bootstrap/journal.jsonl").contains("600"));
    assert!(mode("/var/lib/gpu-bootstrap/receipt.json").contains("600"));
    let receipt: crate::journal::Receipt =
        serde_json::from_str(&rig.fakes.files.text("/var/lib/gpu-bootstrap/receipt.json")).unwrap();
    assert_eq!(receipt.applied.len(), 3);
    assert_eq!(receipt.applied[0].steps[0].as_str(), "b");
}

#[tokio::test]
async fn lost_journal_is_detected() {
    for is_empty in [true, false] {
        let rig = rig();
        assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
        match is_empty {
            true => rig.fakes.files.put(JOURNAL, ""),
            false => rig.fakes.files.take(JOURNAL),
        }
        let before = rig.fakes.files.snapshot().without(&["/run"]);
        for error in [
            rig.uninstall().await.unwrap_err(),
            rig.install().await.unwrap_err(),
        ] {
            assert_eq!(
                (error.reason(), error.exit()),
                ("journal-lost", Exit::Blocked)
            );
            let hint = error.hint().unwrap();
            assert!(hint.contains("receipt.json"), "{hint}");
        }
        assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), before);
        // Follow the hint.
        let receipt = "/var/lib/gpu-bootstrap/receipt.json";
        let text = rig.fakes.files.text(receipt);
        rig.fakes.files.put(&format!("{JOURNAL}.lost"), text);
        rig.fakes.files.take(receipt);
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    }
}
