//! Measures the CPU time of a command, to tell a busy command from a hung one when it prints
//! nothing.
//!
//! DKMS compiles without output. On a busy machine, this takes longer than any limit that would
//! still detect a hung script. Silence therefore counts only while the processes of a command use
//! almost no CPU time. The deadline of the command limits everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::unistd::{Pid, SysconfVar, sysconf};

/// The minimum CPU share of a busy command without output. A process that only polls uses less, and
/// a compiler on a busy machine uses more.
const LEAST_SHARE: f64 = 0.01;

/// The kernel's data about a process. Source: proc_pid_stat(5).
struct Told {
    parent: i32,
    session: i32,
    /// CPU time in clock ticks, including its exited child processes.
    ticks: u64,
}

/// The CPU time of a command so far.
pub(super) struct CommandWork {
    leader: i32,
    ticks: u64,
}

impl CommandWork {
    /// Starts measuring a new session with its descendants.
    pub(super) fn of(leader: Pid) -> Self {
        Self {
            leader: leader.as_raw(),
            ticks: 0,
        }
    }

    /// Whether it was busy since the last call, at least `seconds` ago.
    pub(super) fn went_on(&mut self, seconds: f64) -> bool {
        let ticks = ticks(self.leader, &processes());
        // The value decreases if a process exited and was not waited for, which also counts as
        // work.
        let worked = ticks.abs_diff(self.ticks);
        self.ticks = ticks;
        // The fallback is USER_HZ on x86-64, time(7).
        let second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        #[expect(clippy::cast_precision_loss, reason = "a tick count for a comparison")]
        let (worked, second) = (worked as f64, second as f64);
        worked >= (seconds * second * LEAST_SHARE).max(1.0)
    }
}

fn processes() -> BTreeMap<i32, Told> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            // The process has just exited.
            let text = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((process, parse(&text)?))
        })
        .collect()
}

/// Parses a stat line. The process name, in parentheses, may contain spaces and parentheses.
fn parse(stat: &str) -> Option<Told> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |at: usize| -> Option<u64> { fields.get(at)?.parse().ok() };
    Some(Told {
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// Returns the ticks of a session and its descendants. apt starts dpkg in a separate session if it
/// has a terminal.
fn ticks(leader: i32, processes: &BTreeMap<i32, Told>) -> u64 {
    let in_session = |told: &Told| told.session == leader;
    let mut ours: BTreeSet<i32> = processes
        .iter()
        .filter(|(process, told)| **process == leader || in_session(told))
        .map(|(process, _)| *process)
        .collect();
    loop {
        let children: Vec<i32> = processes
            .iter()
            .filter(|(process, told)| ours.contains(&told.parent) && !ours.contains(process))
            .map(|(process, _)| *process)
            .collect();
        if children.is_empty() {
            break;
        }
        ours.extend(children);
    }
    ours.iter().map(|process| processes[process].ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_any_name_is_parsed() {
        let stat = "42 (a) b (c) S 7 41 40 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 99 0";
        let told = parse(stat).unwrap();
        assert_eq!((told.parent, told.session, told.ticks), (7, 40, 4330));
        assert!(parse("42 (cut").is_none());
        assert!(parse("42 (a) S 7 41").is_none());
    }

    #[test]
    fn session_and_descendants_are_counted() {
        let told = |parent, session, ticks| Told {
            parent,
            session,
            ticks,
        };
        let processes = BTreeMap::from([
            (1, told(0, 1, 10_000)),
            (40, told(1, 40, 1)),
            (41, told(40, 40, 10)),
            // A separate session with a child process.
            (50, told(41, 50, 100)),
            (51, told(50, 50, 1_000)),
            // The parent has exited.
            (60, told(1, 40, 2)),
        ]);
        assert_eq!(ticks(40, &processes), 1_113);
    }

    #[test]
    fn busy_process_works_and_idle_process_does_not() {
        let mut work = CommandWork::of(Pid::this());
        // This process has used CPU time since it started.
        let end = std::time::Instant::now() + std::time::Duration::from_millis(50);
        while std::time::Instant::now() < end {}
        assert!(work.went_on(0.1));
        let mut idle = CommandWork::of(Pid::from_raw(i32::MAX));
        assert!(!idle.went_on(0.1));
    }
}
