//! Memory and processes of this machine, by `sysinfo`.

use std::io;

use sysinfo::{
    MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, System as Sysinfo, UpdateKind,
};

use crate::host::FilesError;
use crate::host::os::failed;
use crate::host::system::{MEMINFO, MemoryError, Process, System};

/// Asks the kernel anew at every call.
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
        look(ProcessesToUpdate::All)
    }
}

fn look(which: ProcessesToUpdate<'_>) -> Result<Vec<Process>, FilesError> {
    let mut system = Sysinfo::new().map_err(unavailable("list", "/proc"))?;
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
                name: Some(process.name().to_string_lossy().into_owned()),
                command: Some(words.collect::<Vec<_>>().join(" ")),
                uid: process.user_id().map(|uid| **uid),
            }
        })
        .collect();
    Ok(processes)
}

/// What `sysinfo` could not do, as the error of what it reads.
fn unavailable(verb: &'static str, path: &str) -> impl FnOnce(sysinfo::Error) -> FilesError {
    let failed = failed(verb, path.into());
    move |error| failed(io::Error::other(error))
}
