//! Another package manager that holds the locks.

use crate::host::{ReadFiles, fake::FakeFiles};

/// The lock files of all package managers.
const LOCKS: [&str; 2] = ["/var/lib/dpkg/lock-frontend", "/var/lib/rpm/.rpm.lock"];

/// Simulates another package manager that starts.
pub(super) fn hold_lock(files: &FakeFiles) {
    let mut lines = String::new();
    for lock in LOCKS {
        files.put(lock, "");
        let inode = files.stat(lock.into()).unwrap().unwrap().inode;
        lines.push_str(&format!(
            "1: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"
        ));
    }
    files.put("/proc/locks", lines);
    files.put("/proc/812/comm", "unattended-upgr\n");
    files.put(
        "/proc/812/cmdline",
        "/usr/bin/python3\0/usr/bin/unattended-upgrade\0",
    );
}

/// Simulates the exit of this package manager.
pub(super) fn release_lock(files: &FakeFiles) {
    for path in LOCKS.into_iter().chain(["/proc/locks", "/proc/812"]) {
        files.take(path);
    }
}
