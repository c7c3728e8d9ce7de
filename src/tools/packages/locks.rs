//! Finds the process that holds a package manager lock, using the kernel's lock list or a PID file. This module never takes or
//! breaks a lock.

use camino::Utf8Path;

use crate::{
    host::{FilesError, ReadFiles, System, system::real_user},
    tools::mounts,
};

/// The kernel's list of all file locks.
const PROC_LOCKS: &str = "/proc/locks";

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The lock file.
    pub lock: String,
    /// The process ID, if the process is in our PID namespace.
    pub pid: Option<u32>,
    /// The process name, for example `unattended-upgr` (the kernel keeps 15 characters).
    pub name: Option<String>,
    /// The command line.
    pub command: Option<String>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), Some(pid)) => write!(f, "`{name}` (pid {pid})"),
            (None, Some(pid)) => write!(f, "process {pid}"),
            _ => f.write_str("a process outside this PID namespace"),
        }
    }
}

/// An entry of the kernel's lock list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    pid: u32,
    device: Device,
    inode: u64,
}

/// The device number of a filesystem, major and minor. `/proc/locks` and the kernel's mount list contain the number of the
/// filesystem itself. `stat` may return another number, for example for a btrfs subvolume.
type Device = (u32, u32);

/// Returns the process that holds any of these locks, or `None` if all are free.
///
/// Only root processes can hold a package manager lock. Any user can lock a file with the same inode number on another
/// filesystem, so the device is compared, and processes of other users are ignored. `/proc/PID/fd` is never read, because the
/// process owner can choose the paths in its links.
///
/// # Errors
/// If the list or an existing file cannot be read.
pub fn holder(
    files: &dyn ReadFiles,
    system: &dyn System,
    locks: &[&str],
) -> Result<Option<Holder>, FilesError> {
    // If `/proc` is completely hidden from us, rely on the lock timeout of the package manager.
    let text = files.read_text(Utf8Path::new(PROC_LOCKS))?;
    let held = parse(&text.unwrap_or_default());
    for &lock in locks {
        if is_pid_file(lock) {
            match writer(files, Utf8Path::new(lock))? {
                Some(pid) if is_at_work(files, pid)? => {
                    return Ok(Some(process(system, lock, pid)));
                }
                _ => continue,
            }
        }
        let Some(inode) = files
            .stat(Utf8Path::new(lock))?
            .map(|stat| stat.inode)
            .filter(|&inode| inode != 0)
        else {
            continue;
        };
        let device = device_of(files, lock)?;
        let same_file =
            |held: &&Held| held.inode == inode && device.is_none_or(|device| device == held.device);
        if let Some(holder) =
            (held.iter().filter(same_file)).find_map(|held| root_process(system, lock, held.pid))
        {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// Whether a lock is a file that contains the process ID of the running package manager.
fn is_pid_file(lock: &str) -> bool {
    lock.ends_with(".pid")
}

/// Returns the process ID in a file, or `None` if the file does not exist or contains no number.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn writer(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Option<u32>, FilesError> {
    let text = files.read(path)?;
    Ok(text.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok()))
}

/// Whether a PID file has content that is not a process ID, for example after a power loss. dnf rejects such a file, but
/// accepts an empty one (`dnf/lock.py`).
///
/// # Errors
/// If the file exists but cannot be read.
pub fn is_torn(files: &dyn ReadFiles, path: &Utf8Path) -> Result<bool, FilesError> {
    let is_empty = files.read(path)?.is_none_or(|text| text.is_empty());
    Ok(!is_empty && writer(files, path)?.is_none())
}

/// Parts of the command lines of programs that write PID files.
const WRITERS: [&str; 4] = ["dnf", "yum", "packagekit", "ansible"];

/// Whether this process exists, belongs to root, and is a program that writes PID files. After a reboot, another program may
/// have the same process ID.
///
/// # Errors
/// If an existing file of the process cannot be read.
pub fn is_at_work(files: &dyn ReadFiles, pid: u32) -> Result<bool, FilesError> {
    let status = format!("/proc/{pid}/status");
    let status = files.read_text(Utf8Path::new(&status))?.unwrap_or_default();
    if real_user(&status).is_some_and(|uid| uid != 0) {
        return Ok(false);
    }
    let path = format!("/proc/{pid}/cmdline");
    let line = files.read_text(Utf8Path::new(&path))?.unwrap_or_default();
    let line = line.to_ascii_lowercase();
    Ok(WRITERS.iter().any(|word| line.contains(word)))
}

/// Returns the PID files of exited processes, and PID files with content that is not a process ID. The first lock is not
/// returned, because it shows that a transaction was interrupted.
///
/// # Errors
/// If an existing file cannot be read.
pub fn stale<'l>(files: &dyn ReadFiles, locks: &[&'l str]) -> Result<Vec<&'l str>, FilesError> {
    let mut stale = Vec::new();
    for &lock in locks.iter().skip(1).filter(|lock| is_pid_file(lock)) {
        let path = Utf8Path::new(lock);
        let is_stale = match writer(files, path)? {
            Some(pid) => !is_at_work(files, pid)?,
            None => is_torn(files, path)?,
        };
        if is_stale {
            stale.push(lock);
        }
    }
    Ok(stale)
}

/// Parses lines such as `1: POSIX  ADVISORY  WRITE 812 fe:00:5833827 0 EOF`, `proc_locks(5)`. Entries of waiting processes have
/// an arrow before the kind. `dpkg` and `apt` lock with fcntl, which is `POSIX`.
fn parse(text: &str) -> Vec<Held> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            (words.next()? == "POSIX").then_some(())?;
            (words.nth(1)? == "WRITE").then_some(())?;
            // The ID is 0 for a process outside this PID namespace, and -1 for a lock of an open file description.
            let pid = words.next()?.parse().unwrap_or(0);
            let mut file = words.next()?.split(':');
            let mut hexadecimal = || u32::from_str_radix(file.next()?, 16).ok();
            let device = (hexadecimal()?, hexadecimal()?);
            let inode = file.next()?.parse().ok()?;
            Some(Held { pid, device, inode })
        })
        .collect()
}

/// Returns the device of a file's filesystem, or `None` if the kernel's mount list is unavailable.
fn device_of(files: &dyn ReadFiles, lock: &str) -> Result<Option<Device>, FilesError> {
    let path = Utf8Path::new(lock);
    let path = files.resolve(path)?.unwrap_or_else(|| path.to_owned());
    let list = mounts::list(files)?;
    Ok(mounts::holding(&list, &path).and_then(|mount| {
        let (major, minor) = mount.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }))
}

/// Returns the holder, unless the process belongs to another user.
fn root_process(system: &dyn System, lock: &str, pid: u32) -> Option<Holder> {
    if pid == 0 {
        return Some(Holder {
            lock: lock.to_owned(),
            pid: None,
            name: None,
            command: None,
        });
    }
    let process_uid = system.process(pid).uid;
    // The UID is unknown if the process has just exited, or if `/proc` hides it from an unprivileged `check`.
    let is_root = process_uid.is_none_or(|uid| uid == 0);
    is_root.then(|| process(system, lock, pid))
}

fn process(system: &dyn System, lock: &str, pid: u32) -> Holder {
    let process = system.process(pid);
    Holder {
        lock: lock.to_owned(),
        pid: Some(pid),
        name: process.name,
        command: process.command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::host::{fake::FakeFiles, system::ProcFiles};

    const LOCKS: [&str; 2] = ["/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"];

    fn holder(files: &FakeFiles, locks: &[&str]) -> Result<Option<Holder>, FilesError> {
        super::holder(files, &ProcFiles(Arc::new(files.clone())), locks)
    }

    fn machine(line: impl Fn(u64) -> String) -> FakeFiles {
        let files = FakeFiles::new();
        for lock in LOCKS {
            files.put(lock, "");
        }
        let inode = files.stat(LOCKS[0].into()).unwrap().unwrap().inode;
        files.put("/proc/locks", line(inode));
        files
    }

    #[test]
    fn holder_name_and_command_are_read() {
        let files = machine(|inode| {
            format!(
                "1: FLOCK  ADVISORY  WRITE 7 fe:00:{inode} 0 EOF\n\
                 2: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n\
                 2: -> POSIX  ADVISORY  WRITE 813 fe:00:{inode} 0 EOF\n"
            )
        });
        files.put("/proc/812/comm", "unattended-upgr\n");
        files.put(
            "/proc/812/cmdline",
            "/usr/bin/python3\0/usr/bin/unattended-upgrade\0",
        );
        let holder = holder(&files, &LOCKS).unwrap().unwrap();
        assert_eq!(holder.to_string(), "`unattended-upgr` (pid 812)");
        assert_eq!(holder.lock, LOCKS[0]);
        assert_eq!(
            holder.command.as_deref(),
            Some("/usr/bin/python3 /usr/bin/unattended-upgrade")
        );
    }

    #[test]
    fn same_inode_on_another_filesystem_is_ignored() {
        for (lock_device, mounts, is_held) in [
            ("fe:00", "25 1 254:0 / / rw - ext4 /dev/vda1 rw\n", true),
            ("00:2b", "25 1 254:0 / / rw - ext4 /dev/vda1 rw\n", false),
            (
                "fe:00",
                "25 1 254:0 / / rw - ext4 /dev/vda1 rw\n26 25 254:1 / /var rw - ext4 /dev/vdb1 rw\n",
                false,
            ),
            // Without the mount list, only the inode number is compared.
            ("00:2b", "", true),
        ] {
            let files = machine(|inode| {
                format!("2: POSIX  ADVISORY  WRITE 812 {lock_device}:{inode} 0 EOF\n")
            });
            files.put("/proc/812/status", "Uid:\t0\t0\t0\t0\n");
            files.put("/proc/self/mountinfo", mounts);
            let holder = holder(&files, &LOCKS).unwrap();
            assert_eq!(holder.is_some(), is_held, "{lock_device} {mounts}");
        }
    }

    #[test]
    fn process_of_another_user_is_not_a_holder() {
        let files = machine(|inode| format!("2: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"));
        files.put("/proc/812/status", "Uid:\t65534\t0\t0\t0\n");
        assert_eq!(holder(&files, &LOCKS).unwrap(), None);
        files.put("/proc/812/status", "Uid:\t0\t0\t0\t0\n");
        assert_eq!(holder(&files, &LOCKS).unwrap().unwrap().pid, Some(812));
    }

    #[test]
    fn holder_outside_our_namespace_is_reported() {
        let files = machine(|inode| format!("1: POSIX  ADVISORY  WRITE 0 fe:00:{inode} 0 EOF\n"));
        let holder = holder(&files, &LOCKS).unwrap().unwrap();
        assert_eq!(holder.pid, None);
        assert!(holder.to_string().contains("outside this PID namespace"));
    }

    #[test]
    fn pid_file_is_a_lock_while_its_process_runs() {
        const FILES: [&str; 2] = [
            "/var/lib/dnf/rpmdb_lock.pid",
            "/var/cache/dnf/download_lock.pid",
        ];
        let files = FakeFiles::new();
        assert_eq!(holder(&files, &FILES).unwrap(), None);
        files.put(FILES[1], "812");
        files.put("/proc/812/comm", "dnf\n");
        files.put(
            "/proc/812/cmdline",
            "/usr/bin/python3\0/usr/bin/dnf\0upgrade\0",
        );
        let found = holder(&files, &FILES).unwrap().unwrap();
        assert_eq!((found.lock.as_str(), found.pid), (FILES[1], Some(812)));
        assert!(stale(&files, &FILES).unwrap().is_empty());
        // A user has started a program with this name, and it has the process ID of a dnf process that was killed.
        files.put("/proc/812/status", "Uid:\t65534\t65534\t65534\t65534\n");
        assert_eq!(holder(&files, &FILES).unwrap(), None);
        assert_eq!(stale(&files, &FILES).unwrap(), [FILES[1]]);
        files.put("/proc/812/status", "Uid:\t0\t0\t0\t0\n");
        assert!(stale(&files, &FILES).unwrap().is_empty());
        files.put("/proc/812/cmdline", "/usr/sbin/sshd\0");
        assert_eq!(holder(&files, &FILES).unwrap(), None);
        assert_eq!(stale(&files, &FILES).unwrap(), [FILES[1]]);
    }

    #[test]
    fn free_locks_have_no_holder() {
        let files = machine(|inode| {
            let other = inode + 1000;
            format!("1: POSIX  ADVISORY  WRITE 5 fe:00:{other} 0 EOF\n1: POSIX garbage\n")
        });
        assert_eq!(holder(&files, &LOCKS).unwrap(), None);
        assert_eq!(holder(&FakeFiles::new(), &LOCKS).unwrap(), None);
    }
}
