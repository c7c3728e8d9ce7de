//! Measures the CPU time of a command, to tell a busy command from a hung one when it prints
//! nothing.
//!
//! DKMS compiles without output, which on a slow machine takes longer than any useful limit for
//! commands without output. A command is therefore considered hung only if it prints nothing and
//! its processes use almost no CPU time. A busy command is limited only by its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::unistd::{Pid, SysconfVar, sysconf};

/// A command is busy if it uses at least this share of one CPU. A process that only polls uses less,
/// and a compiler on a slow machine uses more.
const LEAST_SHARE: f64 = 0.01;

/// Fields of `/proc/PID/stat`, proc_pid_stat(5).
struct Told {
    parent: i32,
    session: i32,
    /// User and system time in clock ticks, including child processes that it has waited for.
    ticks: u64,
}

/// The CPU time of a command so far.
pub(super) struct CommandWork {
    /// The first process of the command, which is also its session leader.
    leader: i32,
    ticks: u64,
}

impl CommandWork {
    /// Creates the counter of a command that has just started in a new session.
    pub(super) fn of(leader: Pid) -> Self {
        Self {
            leader: leader.as_raw(),
            ticks: 0,
        }
    }

    /// Returns whether the command was busy since the previous call (or its start), which was at
    /// least `seconds` ago.
    pub(super) fn was_busy(&mut self, seconds: f64) -> bool {
        let ticks = ticks(self.leader, &processes());
        // The sum decreases if a process exits and its parent does not wait for it. This also
        // counts as activity.
        let worked = ticks.abs_diff(self.ticks);
        self.ticks = ticks;
        // Ticks per second. The fallback is USER_HZ on x86-64, time(7).
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
            // Fails if the process has just exited.
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
        // utime, stime, cutime, cstime
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// Returns the CPU time of a session and of all descendants of its processes. Descendants may be in
/// other sessions: apt with a terminal starts dpkg in a separate session.
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
    fn process_name_may_contain_parentheses() {
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
    fn only_a_busy_process_counts_as_active() {
        let mut work = CommandWork::of(Pid::this());
        let end = std::time::Instant::now() + std::time::Duration::from_millis(50);
        while std::time::Instant::now() < end {}
        assert!(work.was_busy(0.1));
        let mut idle = CommandWork::of(Pid::from_raw(i32::MAX));
        assert!(!idle.was_busy(0.1));
    }
}
