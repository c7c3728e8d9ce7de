//! The current state of memory and processes.

use std::{sync::Arc, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use super::{FileKind, Files, FilesError, ReadFiles};
use crate::model::text::is_control;

pub(super) const MEMINFO: &str = "/proc/meminfo";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The name, such as `unattended-upgr` (at most 15 characters).
    pub name: Option<String>,
    /// The command line.
    pub command: Option<String>,
    /// The real user ID.
    pub uid: Option<u32>,
}

/// Replaces the control characters in text from a process by spaces. NUL separates arguments, and
/// line breaks could imitate output of gpu-bootstrap.
pub(super) fn one_line(text: &str) -> String {
    let plain = |c: char| if is_control(c) { ' ' } else { c };
    text.chars()
        .map(plain)
        .collect::<String>()
        .trim()
        .to_owned()
}

impl Process {
    /// Whether the first argument or the process name (such as `k3s-agent`) is this program. Any
    /// user can fake both.
    pub fn is_called(&self, program: &str) -> bool {
        let first = (self.command.as_deref()).and_then(|line| line.split(' ').next());
        let file = first.and_then(|path| path.rsplit('/').next());
        file == Some(program) || self.name.as_deref() == Some(program)
    }
}

/// The namespaces that a program outside of containers shares with us.
const NAMESPACES: [&str; 2] = ["pid", "mnt"];

/// Whether a process is in our namespaces. `false` if it has exited, or if we have no permission to
/// read its namespaces.
///
/// # Errors
/// If a symlink of a running process cannot be read for another reason.
pub fn is_in_own_namespaces(files: &dyn ReadFiles, pid: u32) -> Result<bool, FilesError> {
    for namespace in NAMESPACES {
        let theirs = link_of(files, pid, &format!("/proc/{pid}/ns/{namespace}"))?;
        let own = link_of(files, pid, &format!("/proc/self/ns/{namespace}"))?;
        if own.is_none() || theirs != own {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a process has exited. `false` if this is unknown.
pub fn has_exited(files: &dyn ReadFiles, pid: u32) -> bool {
    matches!(
        files.exists(Utf8Path::new(&format!("/proc/{pid}"))),
        Ok(false)
    )
}

/// Returns the target of a symlink in `/proc`. `None` if the process has exited or permission is
/// denied.
///
/// # Errors
/// If a symlink of a running process cannot be read for another reason.
pub fn link_of(
    files: &dyn ReadFiles,
    pid: u32,
    path: &str,
) -> Result<Option<Utf8PathBuf>, FilesError> {
    match files.stat(Utf8Path::new(path)) {
        Ok(stat) => Ok(stat.and_then(|stat| match stat.kind {
            FileKind::Link(target) => Some(target),
            _ => None,
        })),
        Err(error) if error.is_denied() || has_exited(files, pid) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Suffix that the kernel (`d_path()`) appends to the path of an open file that was deleted or replaced, such as by an upgrade.
pub const DELETED: &str = " (deleted)";

/// Returns the file name of a process's executable, also if the file was replaced. `None` if the process has exited or permission
/// is denied. Unlike the process name, it is the name of an existing file.
///
/// # Errors
/// If the symlink of a running process cannot be read for another reason.
pub fn program_of(files: &dyn ReadFiles, pid: u32) -> Result<Option<String>, FilesError> {
    let file = link_of(files, pid, &format!("/proc/{pid}/exe"))?;
    Ok(file.and_then(|file| {
        let name = file.file_name()?;
        Some(name.strip_suffix(DELETED).unwrap_or(name).to_owned())
    }))
}

/// The reason the memory size is unknown.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The file does not exist or is empty.
    #[error("`{MEMINFO}` is missing or empty")]
    Absent,
    /// The file does not contain the number.
    #[error("`{MEMINFO}` has no `MemTotal`")]
    NoTotal,
}

/// Memory and processes.
pub trait System: Send + Sync {
    /// Returns the total memory in bytes.
    ///
    /// # Errors
    /// See [`MemoryError`].
    fn memory_bytes(&self) -> Result<u64, MemoryError>;

    /// Returns a process by its ID. Unknown values are `None`, because it may exit at any time.
    fn process(&self, pid: u32) -> Process;

    /// Returns all processes, including those in containers.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn processes(&self) -> Result<Vec<Process>, FilesError>;

    /// Returns the CPU time of this process, without the programs that it has started. `None` if it is unknown or not
    /// reproducible, such as in a recording.
    fn own_cpu_time(&self) -> Option<Duration> {
        None
    }

    /// Returns the wall-clock time of this process in which none of the programs worked that do the main work, such as the
    /// package manager (`engine/own_time.rs`). `None` if it is not measured.
    fn own_time(&self) -> Option<Duration> {
        None
    }
}

/// Reads memory and processes from `/proc` in a file tree: for `--root`, recordings and tests.
#[derive(Clone)]
pub struct ProcFiles(pub Arc<dyn Files>);

impl ProcFiles {
    fn text(&self, path: &Utf8Path) -> Option<String> {
        let bytes = self.0.read(path).ok().flatten()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl System for ProcFiles {
    fn memory_bytes(&self) -> Result<u64, MemoryError> {
        let bytes = self.0.read(MEMINFO.into())?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        if text.trim().is_empty() {
            return Err(MemoryError::Absent);
        }
        total(&text).ok_or(MemoryError::NoTotal)
    }

    fn process(&self, pid: u32) -> Process {
        let directory = Utf8PathBuf::from(format!("/proc/{pid}"));
        let text = |name: &str| self.text(&directory.join(name));
        Process {
            pid,
            name: text("comm").map(|name| one_line(&name)),
            command: text("cmdline").map(|line| one_line(&line)),
            uid: text("status").and_then(|status| real_user(&status)),
        }
    }

    fn processes(&self) -> Result<Vec<Process>, FilesError> {
        let names = self.0.list("/proc".into())?;
        let pids = names.iter().filter_map(|name| name.parse().ok());
        Ok(pids.map(|pid| self.process(pid)).collect())
    }
}

/// Parses `MemTotal:       65843200 kB`, where kB means KiB.
fn total(meminfo: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the real user ID in `/proc/PID/status`, proc_pid_status(5).
pub fn real_user(status: &str) -> Option<u32> {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;
    use crate::host::real::{RealFiles, RealSystem};
    use crate::model::text::reads_any_text;

    #[test]
    fn memory_size_is_in_bytes() {
        assert_eq!(
            total("MemTotal:       65843200 kB\nMemFree: 1 kB\n"),
            Some(67_423_436_800)
        );
        for text in [
            "",
            "MemTotal:",
            "MemTotal: x kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(total(text), None, "{text}");
        }
    }

    #[test]
    fn process_is_read_from_a_tree() {
        let files = FakeFiles::new();
        files.put("/proc/812/comm", "dockerd\n");
        files.put("/proc/812/cmdline", "/usr/bin/dockerd\0-H\nx\0fd://\0");
        files.put("/proc/812/status", "Name:\tdockerd\nUid:\t105\t0\t0\t0\n");
        files.put("/proc/meminfo", "");
        let system = ProcFiles(Arc::new(files));
        let process = Process {
            pid: 812,
            name: Some("dockerd".to_owned()),
            command: Some("/usr/bin/dockerd -H x fd://".to_owned()),
            uid: Some(105),
        };
        assert_eq!(system.processes().unwrap(), [process]);
        assert_eq!(system.process(1).name, None);
        assert!(matches!(system.memory_bytes(), Err(MemoryError::Absent)));
    }

    /// The file-based implementation must return the same data as the real one.
    #[test]
    fn real_and_file_based_system_agree() {
        let (real, files) = (RealSystem, ProcFiles(Arc::new(RealFiles)));
        let memory = real.memory_bytes().unwrap();
        assert_eq!(memory, files.memory_bytes().unwrap());
        let pid = std::process::id();
        let process = real.process(pid);
        assert_eq!(process, files.process(pid));
        assert!(process.name.is_some() && process.command.is_some() && process.uid.is_some());
        assert!(real.processes().unwrap().contains(&process));
    }

    reads_any_text!(
        "(MemTotal:|Uid:|kB|\n|.)*",
        |text| total(&text); real_user(&text)
    );
}
