//! Memory and processes of this machine, from `sysinfo`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use sysinfo::{
    MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, System as Sysinfo, UpdateKind,
};

use super::RealFiles;
use crate::host::FilesError;
use crate::host::os::failed;
use crate::host::system::{MEMINFO, MemoryError, ProcFiles, Process, System, one_line};

/// The process filesystem.
const PROC: &str = "/proc";

/// Queries the kernel at every call.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealSystem;

impl System for RealSystem {
    fn memory_bytes(&self) -> Result<u64, MemoryError> {
        let mut system = Sysinfo::new().map_err(unavailable("read", MEMINFO))?;
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        match system.total_memory() {
            0 => Err(MemoryError::Absent),
            total => Ok(total),
        }
    }

    fn process(&self, pid: u32) -> Process {
        let found = look(ProcessesToUpdate::Some(&[Pid::from_u32(pid)]));
        found
            .into_iter()
            .flatten()
            .find(|process| process.pid == pid)
            .unwrap_or(Process {
                pid,
                name: None,
                command: None,
                uid: None,
            })
    }

    fn processes(&self) -> Result<Vec<Process>, FilesError> {
        // `sysinfo` returns no error if `/proc` or a process is unreadable.
        let listed = pids().map_err(failed("list", PROC.into()))?;
        let found = look(ProcessesToUpdate::All)?;
        complete(found, &listed, std::process::id(), &|pid| {
            ProcFiles(Arc::new(RealFiles)).process(pid)
        })
        .map_err(failed("list", PROC.into()))
    }

    /// `getrusage(2)` of the process with all its threads.
    fn own_cpu_time(&self) -> Option<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let used = usage.user_time() + usage.system_time();
        let micros = u64::try_from(used.num_microseconds()).ok()?;
        Some(Duration::from_micros(micros))
    }
}

/// Returns the process IDs listed by the kernel.
fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(PROC)? {
        let name = entry?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

/// Adds the listed processes that were not found or have no user ID, using `read`. Fails if the
/// calling process was not found, because other processes may also be missing then.
fn complete(
    mut found: Vec<Process>,
    listed: &[u32],
    own: u32,
    read: &dyn Fn(u32) -> Process,
) -> io::Result<Vec<Process>> {
    if !found.iter().any(|process| process.pid == own) {
        return Err(io::Error::other(
            "this process is missing in the process list",
        ));
    }
    let known: BTreeSet<u32> = (found.iter())
        .filter(|process| process.uid.is_some())
        .map(|process| process.pid)
        .collect();
    found.retain(|process| known.contains(&process.pid));
    let unknown = listed.iter().filter(|pid| !known.contains(pid));
    found.extend(unknown.map(|pid| read(*pid)));
    Ok(found)
}

fn look(which: ProcessesToUpdate<'_>) -> Result<Vec<Process>, FilesError> {
    let mut system = Sysinfo::new().map_err(unavailable("list", PROC))?;
    let what = ProcessRefreshKind::nothing()
        .with_cmd(UpdateKind::Always)
        .with_user(UpdateKind::Always)
        .without_tasks();
    system.refresh_processes_specifics(which, true, what);
    let processes = system
        .processes()
        .values()
        .map(|process| {
            let words = process.cmd().iter().map(|word| word.to_string_lossy());
            Process {
                pid: process.pid().as_u32(),
                name: Some(one_line(&process.name().to_string_lossy())),
                command: Some(one_line(&words.collect::<Vec<_>>().join(" "))),
                uid: process.user_id().map(|uid| **uid),
            }
        })
        .collect();
    Ok(processes)
}

/// Converts a `sysinfo` error to an error for the file that it reads.
fn unavailable(verb: &'static str, path: &str) -> impl FnOnce(sysinfo::Error) -> FilesError {
    let failed = failed(verb, path.into());
    move |error| failed(io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, uid: Option<u32>) -> Process {
        Process {
            pid,
            name: None,
            command: None,
            uid,
        }
    }

    #[test]
    fn list_without_this_process_is_an_error() {
        for found in [vec![], vec![process(1, Some(0))]] {
            assert!(complete(found, &[1, 7], 7, &|pid| process(pid, None)).is_err());
        }
    }

    #[test]
    fn process_that_was_only_listed_is_kept() {
        let found = vec![process(7, Some(0)), process(8, None)];
        let read = |pid| process(pid, (pid == 8).then_some(105));
        assert_eq!(
            complete(found, &[7, 8, 9], 7, &read).unwrap(),
            [process(7, Some(0)), process(8, Some(105)), process(9, None)]
        );
    }
}
