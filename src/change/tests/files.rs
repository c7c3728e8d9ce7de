//! Tests files, repositories, and tools that write files.

use camino::Utf8PathBuf;
use nix::errno::Errno;

use super::kit::{STATE, TestMachine};
use crate::{
    change::{ApplyChanges, CHANGED_SINCE, Change, Reverted, Undo},
    config::desired::Repository,
    error::{Report, one_line},
    exit::Exit,
    host::{
        FileKind, ReadFiles,
        digest::sha256,
        fake::{Damage, diff, ok},
        files::unfinished,
    },
};

fn write(path: &str, content: &str) -> Change {
    Change::WriteFile {
        path: path.into(),
        content: content.into(),
        mode: 0o644,
        over: None,
    }
}

#[tokio::test]
async fn new_file_is_removed_with_its_directories() {
    let machine = TestMachine::new();
    let (_, reverted) = machine
        .apply_and_undo(&write("/etc/a/b/c.conf", "new\n"))
        .await;
    assert!(matches!(reverted, Reverted::Done { .. }));
}

#[tokio::test]
async fn file_is_restored_with_mode_and_owner() {
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put_mode("/etc/docker/daemon.json", "{}\n", 0o600);
    machine.fakes.files.own("/etc/docker/daemon.json", 7, 8);
    machine
        .apply_and_undo(&write("/etc/docker/daemon.json", "{\"a\":1}\n"))
        .await;
}

/// A sync of all filesystems may take minutes, or fail because of a filesystem of another program.
#[tokio::test]
async fn undo_of_a_file_syncs_no_other_files() {
    let machine = TestMachine::new();
    let undo = machine.apply(&write("/etc/a", "ours")).await.unwrap();
    (machine.fakes.files).damage("/", Damage::Syncs, Errno::EIO);
    machine.reverts(&undo).await;
}

#[tokio::test]
async fn changed_file_keeps_its_owner() {
    let machine = TestMachine::new();
    let path = "/etc/docker/daemon.json";
    machine.fakes.files.put(path, "{}\n");
    machine.fakes.files.own(path, 7, 8);
    machine.apply(&write(path, "{\"a\":1}\n")).await.unwrap();
    let stat = machine.host.files.stat(path.into()).unwrap().unwrap();
    assert_eq!((stat.uid, stat.gid), (7, 8));
}

#[tokio::test]
async fn symlink_is_restored_as_symlink() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/usr/lib/real", "x");
    machine.fakes.files.put_link("/etc/link", "../usr/lib/real");
    machine.apply_and_undo(&write("/etc/link", "y")).await;
}

#[tokio::test]
async fn later_changes_by_other_programs_are_kept() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/a", "before");
    let undo = machine.apply(&write("/etc/a", "ours")).await.unwrap();
    machine.fakes.files.put("/etc/a", "theirs");
    let reverted = machine.revert(&undo).await;
    assert!(
        matches!(&reverted, Reverted::Left { what, why }
            if what == "`/etc/a`" && why.contains("changed")),
        "{reverted:?}"
    );
    assert_eq!(machine.fakes.files.text("/etc/a"), "theirs");
    machine.fakes.files.take("/etc/a");
    assert!(
        matches!(machine.revert(&undo).await, Reverted::Left { why, .. } if why.contains("removed"))
    );
}

#[tokio::test]
async fn interrupted_write_is_undone_correctly() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/a", "before");
    let before = machine.snapshot();
    let change = write("/etc/a", "ours");
    let undo = machine.applier.capture(&change).await.unwrap();
    let early = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(matches!(
        machine.revert(&early).await,
        Reverted::Nothing { .. }
    ));
    machine.apply(&change).await.unwrap();
    let late = machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(matches!(machine.revert(&late).await, Reverted::Done { .. }));
    assert!(diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn file_that_was_never_written_is_not_ours() {
    let machine = TestMachine::new();
    let before = machine.snapshot();
    let change = write("/etc/new/a", "ours");
    let undo = machine.applier.capture(&change).await.unwrap();
    (machine.fakes.files).damage("/etc/new/a", Damage::Writes, Errno::EROFS);
    let applied = machine.applier.apply(&change, undo.clone(), &machine.sink);
    assert!(applied.await.is_err());
    machine.fakes.files.repair();
    let left = machine.applier.reconcile(&undo, &machine.sink).await;
    assert!(left.unwrap().is_nothing());
    assert!(diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn file_modified_since_reading_is_not_written() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/fstab", "/swap none swap\n");
    let mut change = write("/etc/fstab", "");
    if let Change::WriteFile { over, .. } = &mut change {
        *over = Some(sha256(b"/swap none swap\n"));
    }
    machine.applier.capture(&change).await.unwrap();
    for now in [
        Some("/swap none swap\n/dev/sdb /data ext4\n"),
        Some(""),
        None,
    ] {
        machine.fakes.files.take("/etc/fstab");
        if let Some(now) = now {
            machine.fakes.files.put("/etc/fstab", now);
        }
        let refused = machine.applier.capture(&change).await.unwrap_err();
        assert_eq!(refused.reason, CHANGED_SINCE, "{now:?}");
    }
}

#[tokio::test]
async fn temporary_file_of_a_killed_writer_is_removed() {
    let theirs = [
        "/etc/.a.bak",
        "/etc/.a.1-x.gpu-bootstrap-new",
        "/etc/.b.1-2.gpu-bootstrap-new",
    ];
    let left = format!("/etc/{}", unfinished("a", 4711, 2));
    let machine = TestMachine::new();
    for path in theirs {
        machine.fakes.files.put(path, "");
    }
    let before = machine.snapshot();
    // Killed before the change was complete.
    let undo = machine
        .applier
        .capture(&write("/etc/a", "ours"))
        .await
        .unwrap();
    machine.fakes.files.put(&left, "ou");
    machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(diff(&before, &machine.snapshot()).is_empty());
    // Killed during the undo.
    let undo = machine.apply(&write("/etc/a", "ours")).await.unwrap();
    machine.fakes.files.put(&left, "");
    machine.revert(&undo).await;
    assert!(diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn missing_backup_is_reported_and_file_kept() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/a", "before");
    let undo = machine.apply(&write("/etc/a", "ours")).await.unwrap();
    machine.fakes.files.take(&format!("{STATE}/backups"));
    let error = machine
        .applier
        .revert(&undo, &machine.sink)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "backup");
    assert_eq!(machine.fakes.files.text("/etc/a"), "ours");
}

#[tokio::test]
async fn only_listed_files_of_a_tool_are_restored() {
    let machine = TestMachine::new();
    machine.fakes.exec.on("nvidia-ctk", |_, files| {
        files.put("/etc/docker/daemon.json", "{\"runtimes\":{}}");
        ok("done\n")
    });
    let change = Change::RunTool {
        purpose: "register the nvidia runtime with docker".into(),
        command: vec!["nvidia-ctk".into(), "runtime".into(), "configure".into()],
        writes: vec!["/etc/docker/daemon.json".into(), "/etc/other".into()],
        repeated: false,
    };
    machine.apply_and_undo(&change).await;
    assert!(machine.sink.text().contains("done"));

    let nothing = Change::RunTool {
        purpose: "remove the driver".into(),
        command: vec!["nvidia-ctk".into()],
        writes: vec![],
        repeated: false,
    };
    let undo = machine.apply(&nothing).await.unwrap();
    assert!(matches!(machine.revert(&undo).await, Reverted::Left { .. }));
}

/// Otherwise root would write a file that the user chose, and the undo would change its owner.
#[tokio::test]
async fn symlink_through_foreign_directory_is_rejected() {
    let change = Change::RunTool {
        purpose: "register the nvidia runtime with docker".into(),
        command: vec!["nvidia-ctk".into()],
        writes: vec!["/etc/docker/daemon.json".into()],
        repeated: false,
    };
    for (link, target) in [
        ("/etc/docker/daemon.json", "/home/ada/daemon.json"),
        ("/etc/docker/daemon.json", "/home/ada/missing.json"),
        ("/etc/docker", "/home/ada"),
    ] {
        let machine = TestMachine::new();
        machine.fakes.files.put("/home/ada/daemon.json", "{}");
        machine.fakes.files.own("/home/ada", 1000, 1000);
        machine.fakes.files.put_link(link, target);
        let error = machine.applier.capture(&change).await.unwrap_err();
        assert!(one_line(&error).contains("/home/ada"), "{error}");
    }
}

/// The directories in which changes write files.
const DIRECTORIES: [&str; 20] = [
    "/etc/apt/apt.conf.d",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/etc/cdi",
    "/etc/containerd",
    "/etc/dkms",
    "/etc/dnf",
    "/etc/docker",
    "/etc/eks/nodeadm.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/needrestart/conf.d",
    "/etc/rancher/k3s",
    "/etc/sysctl.d",
    "/etc/systemd/system",
    "/etc/udev/rules.d",
    "/etc/yum.repos.d",
    "/usr/share/keyrings",
    "/var/lib/kubelet",
    "/run/gpu-bootstrap",
];

#[tokio::test]
async fn a_directory_that_a_user_can_redirect_is_not_written() {
    for directory in DIRECTORIES {
        for (owner, is_refused) in [(1000, true), (0, false)] {
            let machine = TestMachine::new();
            let files = &machine.fakes.files;
            files.put_directory("/srv/ada/files", 0o755);
            files.own("/srv/ada", owner, owner);
            files.put_link(directory, "/srv/ada/files");
            let path = format!("{directory}/gpu-bootstrap");
            let written = machine.apply(&Change::write(path, "ours\n")).await;
            assert_eq!(written.is_err(), is_refused, "{directory}: {written:?}");
            if let Err(error) = written {
                assert!(one_line(&error).contains("/srv/ada"), "{error}");
            }
            let is_there = files.exists("/srv/ada/files/gpu-bootstrap".into());
            assert_eq!(is_there.unwrap(), !is_refused, "{directory}");
        }
    }
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    machine.fakes.http.serve(URL, KEYS);
    files.put_directory("/srv/ada", 0o755);
    files.own("/srv/ada", 1000, 1000);
    files.put_link("/etc/apt/preferences.d", "/srv/ada");
    let error = machine.apply(&add(FIRST)).await.unwrap_err();
    assert!(one_line(&error).contains("/srv/ada"), "{error}");
}

/// A user's symlink in place of a file is replaced.
#[tokio::test]
async fn a_symlink_in_place_of_a_file_is_not_written_through() {
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    files.put("/root/victim", "theirs\n");
    files.put_link("/etc/modprobe.d/gpu-bootstrap.conf", "/root/victim");
    let change = Change::write("/etc/modprobe.d/gpu-bootstrap.conf", "ours\n");
    machine.apply_and_undo(&change).await;
    assert_eq!(files.text("/root/victim"), "theirs\n");
}

#[tokio::test]
async fn tool_output_is_synced_before_change_completes() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/tool/there", "");
    machine.fakes.exec.on("tool", |_, files| {
        files.put("/etc/tool/new", "{}");
        ok("")
    });
    let change = Change::RunTool {
        purpose: "write".into(),
        command: vec!["tool".into()],
        writes: vec!["/etc/tool/new".into(), "/etc/tool/absent".into()],
        repeated: false,
    };
    let before = machine.fakes.files.mutations();
    machine.apply(&change).await.unwrap();
    assert_eq!(machine.fakes.files.mutations() - before, 1);
    assert_eq!(machine.fakes.files.text("/etc/tool/new"), "{}");
}

#[tokio::test]
async fn file_truncated_by_an_interrupted_tool_is_restored() {
    let change = Change::RunTool {
        purpose: "register the nvidia runtime with docker".into(),
        command: vec!["nvidia-ctk".into()],
        writes: vec!["/etc/docker/daemon.json".into(), "/etc/new/spec".into()],
        repeated: false,
    };
    for cut in ["", "\0\0\0"] {
        let machine = TestMachine::new();
        let theirs = "{\"mtu\": 1400}";
        machine
            .fakes
            .files
            .put_mode("/etc/docker/daemon.json", theirs, 0o640);
        let before = machine.snapshot();
        let undo = machine.applier.capture(&change).await.unwrap();
        machine.fakes.files.put("/etc/docker/daemon.json", cut);
        machine.fakes.files.put("/etc/new/spec", cut);
        let undo = machine
            .restarted()
            .reconcile(&undo, &machine.sink)
            .await
            .unwrap();
        assert_eq!(machine.fakes.files.text("/etc/docker/daemon.json"), theirs);
        machine.revert(&undo).await;
        assert!(diff(&before, &machine.snapshot()).is_empty());
    }
    // Through a symlink.
    let machine = TestMachine::new();
    machine.fakes.files.put("/srv/daemon.json", "{}");
    (machine.fakes.files).put_link("/etc/docker/daemon.json", "/srv/daemon.json");
    let before = machine.snapshot();
    let undo = machine.applier.capture(&change).await.unwrap();
    machine.fakes.files.put("/srv/daemon.json", "");
    machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert!(diff(&before, &machine.snapshot()).is_empty());
    // A file that is not empty may contain an edit by the administrator, so it is kept.
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/docker/daemon.json", "{}");
    let undo = machine.applier.capture(&change).await.unwrap();
    machine.fakes.files.put("/etc/docker/daemon.json", "{\"a\"");
    machine
        .restarted()
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    assert_eq!(
        machine.fakes.files.text("/etc/docker/daemon.json"),
        "{\"a\""
    );
    // The path is no longer a file, so it has no content to restore.
    machine.fakes.files.take("/etc/docker/daemon.json");
    (machine.fakes.files).put_directory("/etc/docker/daemon.json", 0o755);
    machine.recover(&undo).await;
    let stat = machine.fakes.files.stat("/etc/docker/daemon.json".into());
    assert_eq!(stat.unwrap().unwrap().kind, FileKind::Directory);
}

#[tokio::test]
async fn diff_is_shown_in_the_preview() {
    let machine = TestMachine::new();
    machine.fakes.files.put("/etc/a", "one\ntwo\n");
    let text = machine
        .applier
        .preview(&write("/etc/a", "one\nthree\n"))
        .await
        .unwrap()
        .unwrap();
    assert!(text.contains("-two\n+three"), "{text}");
    let text = machine
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
        key_files: vec![],
        signed: crate::model::packages::Signed::Packages,
        priority: Some(600),
        packages: vec!["toolkit".into()],
    }
}

fn add(fingerprint: &str) -> Change {
    Change::AddRepository {
        repository: repository(fingerprint),
    }
}

#[tokio::test]
async fn repository_is_only_added_with_the_pinned_key() {
    let machine = TestMachine::new();
    machine.fakes.http.serve(URL, KEYS);
    machine
        .fakes
        .files
        .put_directory("/usr/share/keyrings", 0o755);
    machine
        .fakes
        .files
        .put_directory("/etc/apt/sources.list.d", 0o755);
    let undo = machine.apply(&add(FIRST)).await.unwrap();
    let keyring = machine
        .fakes
        .files
        .read("/usr/share/keyrings/gpu-bootstrap-toolkit.gpg".into())
        .unwrap()
        .unwrap();
    let keys = crate::tools::openpgp::parse(&keyring).unwrap().keys;
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].fingerprint, FIRST);
    assert!(
        machine
            .fakes
            .files
            .text("/etc/apt/preferences.d/zz-gpu-bootstrap-repository-toolkit")
            .contains("Pin-Priority: 600")
    );
    machine.revert(&undo).await;
    machine.apply_and_undo(&add(FIRST)).await;
}

#[tokio::test]
async fn wrong_key_is_rejected_with_both_fingerprints() {
    let machine = TestMachine::new();
    machine.fakes.http.serve(URL, KEYS);
    let before = machine.snapshot();
    let wrong = "0".repeat(40);
    let error = machine.apply(&add(&wrong)).await.unwrap_err();
    assert_eq!(error.reason(), "key-mismatch");
    let text = error.to_string();
    assert!(text.contains(FIRST) && text.contains(&wrong), "{text}");
    assert_eq!(error.exit(), Exit::Blocked);
    assert!(error.hint().unwrap().contains("vendor"));
    assert!(diff(&before, &machine.snapshot()).is_empty());
}

#[tokio::test]
async fn malformed_expired_and_missing_keys_are_rejected() {
    let machine = TestMachine::new();
    machine.fakes.http.serve(URL, "<html>404</html>");
    let error = machine.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.exit()),
        ("key-malformed", Exit::StepFailed)
    );
    machine.fakes.http.serve(URL, KEYS);
    machine
        .fakes
        .clock
        .set(jiff::Timestamp::from_second(1_900_000_000).unwrap());
    let error = machine.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.exit()),
        ("key-expired", Exit::Blocked)
    );
    machine.fakes.http.forget(URL);
    let error = machine.apply(&add(FIRST)).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.exit()),
        ("key-fetch", Exit::StepFailed)
    );
}

#[tokio::test]
async fn digest_binds_the_key_that_is_written() {
    use crate::{
        change::packages::repository::{Keyring, evaluate},
        tools::openpgp::{forged, parse},
    };
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put_directory("/usr/share/keyrings", 0o755);
    let path = "/usr/share/keyrings/gpu-bootstrap-toolkit.asc";
    let written = || machine.fakes.files.read(path.into()).unwrap();
    let (benign, forged) = forged::pair();
    let digest = parse(&benign).unwrap().digest.unwrap();
    let change = add(&format!("sha256:{digest}"));
    let Change::AddRepository { repository } = &change else {
        unreachable!();
    };
    // A body line that starts with `Version` makes it a different file.
    machine.fakes.http.serve(URL, forged.clone());
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "key-mismatch", "{error}");
    assert_eq!(written(), None);
    assert!(matches!(
        evaluate(repository, &forged),
        Keyring::Stranger(_)
    ));
    // A `Version:` header does not, and is not written.
    let version = String::from_utf8(benign.clone()).unwrap();
    let version = version.replacen("BLOCK-----\n", "BLOCK-----\nVersion: 1\n", 1);
    machine.fakes.http.serve(URL, version);
    let undo = machine.apply(&change).await.unwrap();
    assert_eq!(written().unwrap(), benign);
    assert_eq!(evaluate(repository, &benign), Keyring::Accepted);
    machine.revert(&undo).await;

    // An additional key after one with an accepted fingerprint is not written.
    let keys = parse(KEYS).unwrap().keys;
    let both = format!("{}{}", keys[0].armoured, keys[1].armoured);
    let mut change = change.clone();
    if let Change::AddRepository { repository } = &mut change {
        repository.fingerprints.push(FIRST.into());
        assert!(matches!(
            evaluate(repository, both.as_bytes()),
            Keyring::Stranger(_)
        ));
    }
    machine.fakes.http.serve(URL, both);
    let undo = machine.apply(&change).await.unwrap();
    assert_eq!(parse(&written().unwrap()).unwrap().keys, keys[..1]);
    machine.revert(&undo).await;
}

#[tokio::test]
async fn key_file_writable_by_other_users_is_rejected() {
    for (is_keyring, path) in [(true, "/srv/keys/site.gpg"), (false, "/etc/pki/vendor")] {
        let machine = TestMachine::new();
        machine.fakes.files.put(path, KEYS);
        let name = Utf8PathBuf::from(path);
        let change = Change::AddRepository {
            repository: Repository {
                keyring: is_keyring.then(|| name.clone()),
                key_files: (!is_keyring).then(|| name.clone()).into_iter().collect(),
                key_url: None,
                ..repository(FIRST)
            },
        };
        let directory = name.parent().expect("a folder").as_str();
        machine.fakes.files.own(directory, 1000, 0);
        let theirs = machine.snapshot();
        let error = machine.apply(&change).await.unwrap_err();
        let said = crate::error::one_line(&error);
        assert!(
            said.contains(&format!(
                "`{directory}` is writable by non-root users (owner 1000"
            )),
            "{said}"
        );
        assert_eq!(machine.snapshot(), theirs);
        machine.fakes.files.own(directory, 0, 0);
        machine.apply_and_undo(&change).await;
    }
}

#[tokio::test]
async fn contradictory_source_is_reported() {
    let machine = TestMachine::new();
    machine.fakes.http.serve(URL, KEYS);
    machine.fakes.files.put(
        "/etc/apt/sources.list.d/old.list",
        "deb [signed-by=/old.gpg] https://example.org/deb /\n",
    );
    let error = machine.applier.preview(&add(FIRST)).await.unwrap_err();
    assert_eq!(error.reason(), "repository-conflict");
    let error = machine.apply(&add(FIRST)).await.unwrap_err();
    assert!(error.hint().unwrap().contains("old.list"), "{error}");
}

#[tokio::test]
async fn files_ignored_by_apt_are_not_sources() {
    let machine = TestMachine::new();
    machine.fakes.http.serve(URL, KEYS);
    for name in ["old.list.save", "a source.list", "retired/old.list"] {
        let path = format!("/etc/apt/sources.list.d/{name}");
        machine
            .fakes
            .files
            .put(&path, "deb https://example.org/deb/ /\n");
    }
    machine
        .fakes
        .files
        .put_directory("/usr/share/keyrings", 0o755);
    machine.apply_and_undo(&add(FIRST)).await;
}

#[tokio::test]
async fn components_of_the_distribution_archive_need_its_keyring() {
    let machine = TestMachine::new();
    let keyring = Utf8PathBuf::from("/usr/share/keyrings/debian-archive-keyring.gpg");
    let change = Change::AddRepository {
        repository: Repository {
            keyring: Some(keyring.clone()),
            key_url: None,
            fingerprints: vec![],
            ..repository(FIRST)
        },
    };
    let error = machine.apply(&change).await.unwrap_err();
    assert!(
        error.to_string().contains("cannot be used: missing"),
        "{error}"
    );
    machine.fakes.files.put(keyring.as_str(), "keys");
    let (undo, _) = machine.apply_and_undo(&change).await;
    assert!(machine.fakes.http.log().is_empty());
    // The distribution's keyring is not changed.
    let Undo::RestoreFiles { files, .. } = undo else {
        panic!("files")
    };
    assert!(files.iter().all(|file| file.path != keyring));
}

#[tokio::test]
async fn selinux_labels_of_written_files_are_restored() {
    let machine = TestMachine::new();
    (machine.fakes.exec).on("restorecon", |_, _| crate::host::fake::ok(""));
    let change = Change::WriteFile {
        path: "/etc/modprobe.d/gpu-bootstrap.conf".into(),
        content: "blacklist nouveau\n".into(),
        mode: 0o644,
        over: None,
    };
    let labelled = || -> Vec<String> {
        let lines = machine.fakes.exec.lines();
        (lines.into_iter())
            .filter(|line| line.starts_with("restorecon"))
            .collect()
    };
    machine.apply_and_undo(&change).await;
    assert!(labelled().is_empty());
    machine.fakes.files.put("/sys/fs/selinux/enforce", "1");
    let undo = machine.apply(&change).await.unwrap();
    let lines = labelled();
    assert!(
        matches!(&lines[..], [line] if line.contains("/etc/modprobe.d/gpu-bootstrap.conf")),
        "{lines:?}"
    );
    assert_eq!(machine.fakes.files.text("/sys/fs/selinux/enforce"), "1");
    // A failure is only reported.
    (machine.fakes.exec).on("restorecon", |_, _| {
        crate::host::fake::failed(1, "no policy")
    });
    machine.revert(&undo).await;
    assert!(
        machine.sink.text().contains("no policy"),
        "{}",
        machine.sink.text()
    );
}

/// The filesystem table, from which we removed the swap area.
#[tokio::test]
async fn lines_added_later_are_kept() {
    const TABLE: &str = "/etc/fstab";
    let before = "/dev/vda1 / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n# end\n/dev/vdb /a ext4 x 0 2\n";
    let ours = before.replace("/swap.img none swap sw 0 0\n", "");
    let machine = TestMachine::new();
    machine.fakes.files.put_mode(TABLE, before, 0o600);
    let undo = machine.apply(&write(TABLE, &ours)).await.unwrap();
    machine
        .fakes
        .files
        .put_mode(TABLE, format!("{ours}/dev/vdc /data ext4 x 0 2\n"), 0o640);
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let expected = format!("{before}/dev/vdc /data ext4 x 0 2\n");
    assert_eq!(machine.fakes.files.text(TABLE), expected);
    let stat = machine.host.files.stat(TABLE.into()).unwrap().unwrap();
    assert_eq!(stat.mode, 0o640);
    let again = machine.revert(&undo).await;
    assert!(matches!(again, Reverted::Nothing { .. }), "{again:?}");
    assert_eq!(machine.fakes.files.text(TABLE), expected);

    // If the same lines were modified, the administrator decides. The message explains how to keep other changes.
    machine.fakes.files.put(
        TABLE,
        "/dev/vda1 / xfs defaults 0 1\n/swap2 none swap sw 0 0\n# end\n",
    );
    let left = machine.revert(&undo).await;
    let told = format!("{left:?}");
    assert!(matches!(left, Reverted::Left { .. }), "{told}");
    assert!(
        told.contains("diff -u ") && told.contains("add them to it"),
        "{told}"
    );
}

/// The undo has restored the last line, but was interrupted before it was recorded.
#[tokio::test]
async fn repeated_undo_keeps_lines_added_after_the_restored_ones() {
    const TABLE: &str = "/etc/fstab";
    let root = "/dev/vda1 / ext4 defaults 0 1\n";
    let before = format!("{root}/swap.img none swap sw 0 0\n");
    let machine = TestMachine::new();
    machine.fakes.files.put(TABLE, &*before);
    let undo = machine.apply(&write(TABLE, root)).await.unwrap();
    let now = format!("{before}/dev/vdc /data ext4 x 0 2\n");
    machine.fakes.files.put(TABLE, &*now);
    machine.reverts_nothing(&undo).await;
    assert_eq!(machine.fakes.files.text(TABLE), now);
}
