//! Files, repositories, and tools that write files.

use camino::Utf8PathBuf;

use super::kit::{Bed, STATE};
use crate::{
    change::{Change, ChangeError, RepositoryError, Reverted, Undo},
    config::desired::Repository,
    error::Report,
    exit::Exit,
    host::{
        ReadFiles,
        fake::{diff, ok},
        files::unfinished,
    },
};

fn write(path: &str, content: &str) -> Change {
    Change::WriteFile {
        path: path.into(),
        content: content.into(),
        mode: 0o644,
    }
}

#[tokio::test]
async fn a_new_file_is_removed_with_its_directories() {
    let bed = Bed::new();
    let (_, reverted) = bed.there_and_back(&write("/etc/a/b/c.conf", "new\n")).await;
    assert!(matches!(reverted, Reverted::Done { .. }));
}

#[tokio::test]
async fn a_file_comes_back_with_mode_and_owner() {
    let bed = Bed::new();
    bed.fakes
        .files
        .put_mode("/etc/docker/daemon.json", "{}\n", 0o600);
    bed.fakes.files.own("/etc/docker/daemon.json", 7, 8);
    bed.there_and_back(&write("/etc/docker/daemon.json", "{\"a\":1}\n"))
        .await;
}

#[tokio::test]
async fn a_link_comes_back_as_a_link() {
    let bed = Bed::new();
    bed.fakes.files.put("/usr/lib/real", "x");
    bed.fakes.files.put_link("/etc/link", "../usr/lib/real");
    bed.there_and_back(&write("/etc/link", "y")).await;
}

#[tokio::test]
async fn later_changes_of_a_file_by_others_stay() {
    let bed = Bed::new();
    bed.fakes.files.put("/etc/a", "before");
    let undo = bed.apply(&write("/etc/a", "ours")).await.unwrap();
    bed.fakes.files.put("/etc/a", "theirs");
    let reverted = bed.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Left { what, why }
            if what == "`/etc/a`" && why.contains("changed")),
        "{reverted:?}"
    );
    assert_eq!(bed.fakes.files.text("/etc/a"), "theirs");
    bed.fakes.files.take("/etc/a");
    assert!(
        matches!(bed.revert(&undo).await, Reverted::Left { why, .. } if why.contains("removed"))
    );
}

#[tokio::test]
async fn undo_is_right_if_interrupted_before_or_after_the_write() {
    let bed = Bed::new();
    bed.fakes.files.put("/etc/a", "before");
    let before = bed.snapshot();
    let change = write("/etc/a", "ours");
    let undo = bed.applier.capture(&change).await.unwrap();
    let early = bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert!(matches!(bed.revert(&early).await, Reverted::Nothing { .. }));
    bed.apply(&change).await.unwrap();
    let late = bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert!(matches!(bed.revert(&late).await, Reverted::Done { .. }));
    assert!(diff(&before, &bed.snapshot()).is_empty());
}

#[tokio::test]
async fn the_temporary_file_of_a_killed_writer_is_removed() {
    let theirs = [
        "/etc/.a.bak",
        "/etc/.a.1-x.gpu-bootstrap-new",
        "/etc/.b.1-2.gpu-bootstrap-new",
    ];
    let left = format!("/etc/{}", unfinished("a", 4711, 2));
    let bed = Bed::new();
    for path in theirs {
        bed.fakes.files.put(path, "");
    }
    let before = bed.snapshot();
    // Killed before the change ended.
    let undo = bed.applier.capture(&write("/etc/a", "ours")).await.unwrap();
    bed.fakes.files.put(&left, "ou");
    bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert!(diff(&before, &bed.snapshot()).is_empty());
    // Killed while it was undone.
    let undo = bed.apply(&write("/etc/a", "ours")).await.unwrap();
    bed.fakes.files.put(&left, "");
    bed.revert(&undo).await;
    assert!(diff(&before, &bed.snapshot()).is_empty());
}

#[tokio::test]
async fn a_missing_backup_is_reported_and_the_file_stays() {
    let bed = Bed::new();
    bed.fakes.files.put("/etc/a", "before");
    let undo = bed.apply(&write("/etc/a", "ours")).await.unwrap();
    bed.fakes.files.take(&format!("{STATE}/backups"));
    let error = bed.applier.revert(&undo, &bed.heard).await.unwrap_err();
    assert_eq!(error.reason(), "backup");
    assert_eq!(bed.fakes.files.text("/etc/a"), "ours");
}

#[tokio::test]
async fn a_tool_may_write_only_the_files_that_it_names() {
    let bed = Bed::new();
    bed.fakes.exec.on("nvidia-ctk", |_, files| {
        files.put("/etc/docker/daemon.json", "{\"runtimes\":{}}");
        ok("done\n")
    });
    let change = Change::RunTool {
        purpose: "register the nvidia runtime with docker".into(),
        command: vec!["nvidia-ctk".into(), "runtime".into(), "configure".into()],
        writes: vec!["/etc/docker/daemon.json".into(), "/etc/other".into()],
    };
    bed.there_and_back(&change).await;
    assert!(bed.heard.text().contains("done"));

    let nothing = Change::RunTool {
        purpose: "remove the driver".into(),
        command: vec!["nvidia-ctk".into()],
        writes: vec![],
    };
    let undo = bed.apply(&nothing).await.unwrap();
    assert!(matches!(bed.revert(&undo).await, Reverted::Left { .. }));
}

#[tokio::test]
async fn files_of_a_tool_are_synced_before_the_change_counts_as_applied() {
    let bed = Bed::new();
    bed.fakes.files.put("/etc/tool/there", "");
    bed.fakes.exec.on("tool", |_, files| {
        files.put("/etc/tool/new", "{}");
        ok("")
    });
    let change = Change::RunTool {
        purpose: "write".into(),
        command: vec!["tool".into()],
        writes: vec!["/etc/tool/new".into(), "/etc/tool/absent".into()],
    };
    let before = bed.fakes.files.mutations();
    bed.apply(&change).await.unwrap();
    assert_eq!(bed.fakes.files.mutations() - before, 1);
    assert_eq!(bed.fakes.files.text("/etc/tool/new"), "{}");
}

#[tokio::test]
async fn a_file_that_an_interrupted_tool_emptied_is_restored() {
    let change = Change::RunTool {
        purpose: "register the nvidia runtime with docker".into(),
        command: vec!["nvidia-ctk".into()],
        writes: vec!["/etc/docker/daemon.json".into(), "/etc/new/spec".into()],
    };
    for cut in ["", "\0\0\0"] {
        let bed = Bed::new();
        let theirs = "{\"mtu\": 1400}";
        bed.fakes
            .files
            .put_mode("/etc/docker/daemon.json", theirs, 0o640);
        let before = bed.snapshot();
        let undo = bed.applier.capture(&change).await.unwrap();
        bed.fakes.files.put("/etc/docker/daemon.json", cut);
        bed.fakes.files.put("/etc/new/spec", cut);
        let undo = bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
        assert_eq!(bed.fakes.files.text("/etc/docker/daemon.json"), theirs);
        bed.revert(&undo).await;
        assert!(diff(&before, &bed.snapshot()).is_empty());
    }
    // Through a link.
    let bed = Bed::new();
    bed.fakes.files.put("/srv/daemon.json", "{}");
    (bed.fakes.files).put_link("/etc/docker/daemon.json", "/srv/daemon.json");
    let before = bed.snapshot();
    let undo = bed.applier.capture(&change).await.unwrap();
    bed.fakes.files.put("/srv/daemon.json", "");
    bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert!(diff(&before, &bed.snapshot()).is_empty());
    // Whatever says something may be somebody's.
    let bed = Bed::new();
    bed.fakes.files.put("/etc/docker/daemon.json", "{}");
    let undo = bed.applier.capture(&change).await.unwrap();
    bed.fakes.files.put("/etc/docker/daemon.json", "{\"a\"");
    bed.restarted().reconcile(&undo, &bed.heard).await.unwrap();
    assert_eq!(bed.fakes.files.text("/etc/docker/daemon.json"), "{\"a\"");
}

#[tokio::test]
async fn the_diff_is_shown_first() {
    let bed = Bed::new();
    bed.fakes.files.put("/etc/a", "one\ntwo\n");
    let text = bed
        .applier
        .preview(&write("/etc/a", "one\nthree\n"))
        .await
        .unwrap()
        .unwrap();
    assert!(text.contains("-two\n+three"), "{text}");
    let text = bed
        .applier
        .preview(&write("/etc/new", "x\n"))
        .await
        .unwrap()
        .unwrap();
    assert!(text.starts_with("--- /dev/null\n+++ b/etc/new\n"), "{text}");
}

// --- Repositories -----------------------------------------------------------------------------

const KEYS: &[u8] = include_bytes!("../../../tests/keys/two.asc");
const FIRST: &str = "8EBE33251F7E6A8E6C2120DD2DE2D3DD7E65B027";
const URL: &str = "https://example.org/key";

fn repository(fingerprint: &str) -> Repository {
    Repository {
        name: "toolkit".into(),
        url: "https://example.org/deb/".into(),
        suites: vec!["/".into()],
        components: vec![],
        architectures: vec!["amd64".into()],
        key_url: Some(URL.into()),
        fingerprints: vec![fingerprint.into()],
        keyring: None,
        priority: Some(600),
    }
}

fn add(fingerprint: &str) -> Change {
    Change::AddRepository {
        repository: repository(fingerprint),
    }
}

#[tokio::test]
async fn a_repository_is_added_only_with_the_pinned_key() {
    let bed = Bed::new();
    bed.fakes.http.serve(URL, KEYS);
    bed.fakes.files.put_folder("/usr/share/keyrings", 0o755);
    bed.fakes.files.put_folder("/etc/apt/sources.list.d", 0o755);
    let undo = bed.apply(&add(FIRST)).await.unwrap();
    let keyring = bed
        .fakes
        .files
        .read("/usr/share/keyrings/gpu-bootstrap-toolkit.gpg".into())
        .unwrap()
        .unwrap();
    let keys = crate::tools::openpgp::parse(&keyring).unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].fingerprint, FIRST);
    assert!(
        bed.fakes
            .files
            .text("/etc/apt/preferences.d/gpu-bootstrap-repository-toolkit")
            .contains("Pin-Priority: 600")
    );
    bed.revert(&undo).await;
    bed.there_and_back(&add(FIRST)).await;
}

#[tokio::test]
async fn another_key_is_refused_with_both_fingerprints_and_nothing_changes() {
    let bed = Bed::new();
    bed.fakes.http.serve(URL, KEYS);
    let before = bed.snapshot();
    let wrong = "0".repeat(40);
    let error = bed.apply(&add(&wrong)).await.unwrap_err();
    assert!(matches!(
        &error,
        ChangeError::Repository(RepositoryError::KeyMismatch { .. })
    ));
    let text = error.to_string();
    assert!(text.contains(FIRST) && text.contains(&wrong), "{text}");
    assert_eq!(error.exit(), Exit::Blocked);
    assert!(error.hint().unwrap().contains("vendor"));
    assert!(diff(&before, &bed.snapshot()).is_empty());
}

#[tokio::test]
async fn garbage_and_expired_keys_are_refused() {
    let bed = Bed::new();
    bed.fakes.http.serve(URL, "<html>404</html>");
    let error = bed.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(error.reason(), "key-malformed");
    bed.fakes.http.serve(URL, KEYS);
    bed.fakes
        .clock
        .set(jiff::Timestamp::from_second(1_900_000_000).unwrap());
    let error = bed.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(error.reason(), "key-expired");
    bed.fakes.http.forget(URL);
    let error = bed.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(error.reason(), "key-fetch");
}

#[tokio::test]
async fn a_contradicting_source_is_named() {
    let bed = Bed::new();
    bed.fakes.http.serve(URL, KEYS);
    bed.fakes.files.put(
        "/etc/apt/sources.list.d/old.list",
        "deb [signed-by=/old.gpg] https://example.org/deb /\n",
    );
    let error = bed.applier.preview(&add(FIRST)).await.unwrap_err();
    assert_eq!(error.reason(), "repository-conflict");
    let error = bed.apply(&add(FIRST)).await.unwrap_err();
    assert!(error.hint().unwrap().contains("old.list"), "{error}");
}

#[tokio::test]
async fn files_that_apt_ignores_do_not_count_as_sources() {
    let bed = Bed::new();
    bed.fakes.http.serve(URL, KEYS);
    for name in ["old.list.save", "a source.list", "retired/old.list"] {
        let path = format!("/etc/apt/sources.list.d/{name}");
        bed.fakes
            .files
            .put(&path, "deb https://example.org/deb/ /\n");
    }
    bed.fakes.files.put_folder("/usr/share/keyrings", 0o755);
    bed.there_and_back(&add(FIRST)).await;
}

#[tokio::test]
async fn components_of_the_distribution_archive_need_its_keyring() {
    let bed = Bed::new();
    let keyring = Utf8PathBuf::from("/usr/share/keyrings/debian-archive-keyring.gpg");
    let change = Change::AddRepository {
        repository: Repository {
            keyring: Some(keyring.clone()),
            key_url: None,
            fingerprints: vec![],
            ..repository(FIRST)
        },
    };
    let error = bed.apply(&change).await.unwrap_err();
    assert!(error.to_string().contains("is not there"), "{error}");
    bed.fakes.files.put(keyring.as_str(), "keys");
    let (undo, _) = bed.there_and_back(&change).await;
    assert!(bed.fakes.http.log().is_empty());
    // The distribution's keyring is not ours to touch.
    let Undo::RestoreFiles { files, .. } = undo else {
        panic!("files")
    };
    assert!(files.iter().all(|file| file.path != keyring));
}
