//! Tests of the fake files.

use camino::Utf8Path;
use nix::errno::Errno;

use super::{Damage, FakeFiles, diff};
use crate::host::files::FreeSpace;
use crate::host::{FileKind, Files, FilesError, ReadFiles};

fn errno<T: std::fmt::Debug>(result: Result<T, FilesError>) -> Errno {
    match result {
        Err(FilesError::Io { source, .. }) => Errno::from_raw(source.raw_os_error().unwrap()),
        other => panic!("expected an OS error, got {other:?}"),
    }
}

#[test]
fn symlinks_are_resolved() {
    let files = FakeFiles::new();
    files.put("/usr/lib/os-release", "ID=debian\n");
    files.put_link("/etc/os-release", "../usr/lib/os-release");
    files.put_link("/lib", "usr/lib");
    files.put_link("/abs", "/lib/os-release");
    files.put_link("/loop", "loop");
    files.put_link("/dangling", "/nowhere");
    assert_eq!(files.text("/etc/os-release"), "ID=debian\n");
    assert_eq!(files.text("/abs"), "ID=debian\n");
    assert_eq!(
        files.resolve("/abs".into()).unwrap().unwrap(),
        "/usr/lib/os-release"
    );
    assert_eq!(
        files.stat("/lib".into()).unwrap().unwrap().kind,
        FileKind::Link("usr/lib".into())
    );
    assert_eq!(files.list("/lib".into()).unwrap(), ["os-release"]);
    assert_eq!(errno(files.read("/loop".into())), Errno::ELOOP);
    assert_eq!(files.read("/dangling".into()).unwrap(), None);
    assert!(!files.exists("/dangling".into()).unwrap());
    assert!(files.stat("/dangling".into()).unwrap().is_some());
    assert_eq!(files.read("/usr/lib/os-release/x".into()).unwrap(), None);
}

#[test]
fn list_returns_only_names_in_the_directory() {
    let files = FakeFiles::new();
    files.put("/etc/a/b/c", "");
    files.put("/etc/a-b", "");
    files.put("/etc/a.d/x", "");
    assert_eq!(files.list("/etc".into()).unwrap(), ["a", "a-b", "a.d"]);
    assert_eq!(
        files.list("/etc/none".into()).unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(files.list("/".into()).unwrap(), ["etc"]);
}

#[test]
fn writing_keeps_the_owner_and_sets_the_mode() {
    let files = FakeFiles::new();
    files.put_mode("/etc/daemon.json", "{}", 0o600);
    files.own("/etc/daemon.json", 7, 8);
    let path = Utf8Path::new("/etc/daemon.json");
    files.write(path, b"{ }", 0o640).unwrap();
    let stat = files.stat(path).unwrap().unwrap();
    assert_eq!((stat.mode, stat.uid, stat.gid, stat.size), (0o640, 7, 8, 3));
    files.append(path, b"\n", 0o600).unwrap();
    assert_eq!(files.text("/etc/daemon.json"), "{ }\n");
    assert_eq!(files.stat(path).unwrap().unwrap().mode, 0o640);
}

#[test]
fn full_or_read_only_filesystem_rejects_writes() {
    let files = FakeFiles::new();
    files.put("/boot/old", "12345");
    let small = FreeSpace {
        total: 10,
        free: 4,
        read_only: false,
        inodes: None,
    };
    files.mount("/boot", small);
    let before = files.snapshot();
    assert_eq!(
        errno(files.write("/boot/new/deep".into(), b"12345", 0o644)),
        Errno::ENOSPC
    );
    assert_eq!(diff(&before, &files.snapshot()), Vec::<String>::new());
    files
        .write("/boot/old".into(), b"123456789", 0o644)
        .unwrap();
    assert_eq!(
        files.free_space("/boot/none/at/all".into()).unwrap().free,
        0
    );
    files.remove("/boot/old".into()).unwrap();
    assert_eq!(files.free_space("/boot".into()).unwrap().free, 9);
    files.mount(
        "/boot",
        FreeSpace {
            read_only: true,
            ..small
        },
    );
    assert_eq!(
        errno(files.write("/boot/new".into(), b"", 0o644)),
        Errno::EROFS
    );
}

#[test]
fn damage_affects_only_its_operations() {
    let files = FakeFiles::new();
    files.put("/etc/x", "1");
    files.damage("/etc", Damage::Writes, Errno::EACCES);
    assert_eq!(
        errno(files.write("/etc/x".into(), b"2", 0o644)),
        Errno::EACCES
    );
    assert_eq!(files.text("/etc/x"), "1");
    files.damage("/etc/x", Damage::Reads, Errno::EIO);
    assert_eq!(errno(files.read("/etc/x".into())), Errno::EIO);
    files.repair();
    files.write("/etc/x".into(), b"2", 0o644).unwrap();
}

#[test]
fn killed_process_makes_no_more_changes() {
    let files = FakeFiles::new();
    files.kill_at(2);
    files.write("/a".into(), b"", 0o644).unwrap();
    assert!(files.write("/b".into(), b"", 0o644).is_err());
    assert!(files.killed());
    assert!(files.write("/c".into(), b"", 0o644).is_err());
    files.revive();
    assert_eq!(files.list("/".into()).unwrap(), ["a"]);
    files.write("/b".into(), b"", 0o644).unwrap();
}

#[test]
fn hook_sees_each_mutation_and_may_read() {
    let files = FakeFiles::new();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (log, looking) = (seen.clone(), files.clone());
    files.before_mutations(move |number, mutation| {
        let names = looking.list("/".into()).unwrap();
        log.lock()
            .unwrap()
            .push(format!("{number} {mutation:?} {names:?}"));
        Ok(())
    });
    files.write("/a".into(), b"", 0o644).unwrap();
    files.remove("/a".into()).unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            r#"1 File("write", "/a") []"#,
            r#"2 File("remove", "/a") ["a"]"#
        ]
    );
}

#[test]
fn snapshots_differ_by_line() {
    let files = FakeFiles::new();
    files.put("/etc/x", "1\n");
    files.put("/etc/y", "1\n");
    files.put_device("/dev/nvidia0", 195, 0);
    let before = files.snapshot();
    files.write("/etc/x".into(), b"2\n", 0o600).unwrap();
    files.remove("/etc/y".into()).unwrap();
    files.link("/etc/z".into(), "x".into()).unwrap();
    files.write("/var/lib/own".into(), b"", 0o600).unwrap();
    assert_eq!(
        diff(&before, &files.snapshot().without(&["/var"])),
        [
            r#"~ /etc/x 0600 file "2\n" (was 0644 file "1\n")"#,
            r#"- /etc/y 0644 file "1\n""#,
            "+ /etc/z -> x",
        ]
    );
}

#[test]
fn lock_has_one_holder() {
    let files = FakeFiles::new();
    let path = Utf8Path::new("/run/lock");
    let guard = files.try_lock(path).unwrap();
    assert!(guard.is_some());
    assert!(files.try_lock(path).unwrap().is_none());
    drop(guard);
    assert!(files.try_lock(path).unwrap().is_some());
    files.hold_lock("/run/lock", "pid 812");
    assert!(files.try_lock(path).unwrap().is_none());
    assert_eq!(files.text("/run/lock"), "pid 812");
}

#[test]
fn only_empty_directories_are_removed() {
    let files = FakeFiles::new();
    files.create_directory("/etc/a/b".into(), 0o700).unwrap();
    assert_eq!(files.stat("/etc/a/b".into()).unwrap().unwrap().mode, 0o700);
    assert_eq!(files.stat("/etc/a".into()).unwrap().unwrap().mode, 0o755);
    assert!(!files.remove_empty_directory("/etc/a".into()).unwrap());
    assert!(files.remove_empty_directory("/etc/a/b".into()).unwrap());
    assert!(files.remove_empty_directory("/etc/a/b".into()).unwrap());
    assert_eq!(errno(files.remove("/etc/a".into())), Errno::EISDIR);
}
