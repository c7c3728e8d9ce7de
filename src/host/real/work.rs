//! How much of the processors a command has had: whether one that prints nothing works or hangs.
//!
//! DKMS compiles without output, on a busy machine longer than any limit that would still catch a
//! script that hangs. So silence counts only while the processes of a command use almost no processor
//! time; the deadline of the command ends everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::unistd::{Pid, SysconfVar, sysconf};

/// A command that had less of one processor while it printed nothing hangs: who only asks again and
/// again whether something has come has less, a compiler on a crowded machine has more.
const LEAST_SHARE: f64 = 0.01;

/// The kernel's account of one process. Source: proc_pid_stat(5).
struct Told {
    parent: i32,
    session: i32,
    /// In clock ticks, with that of its children that have ended.
    ticks: u64,
}

/// How much work there was by now of a command.
pub(super) struct CommandWork {
    leader: i32,
    ticks: u64,
}

impl CommandWork {
    /// Of a session, and of what descends from it, as it begins.
    pub(super) fn of(leader: Pid) -> Self {
        Self {
            leader: leader.as_raw(),
            ticks: 0,
        }
    }

    /// Whether it worked since the last call, which was at least `seconds` ago.
    pub(super) fn went_on(&mut self, seconds: f64) -> bool {
        let ticks = ticks(self.leader, &processes());
        // Less, where a process has gone that nobody waited for: it has done something, too.
        let worked = ticks.abs_diff(self.ticks);
        self.ticks = ticks;
        // Without an answer x86-64's USER_HZ, time(7).
        let second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of ticks for a comparison"
        )]
        let (worked, second) = (worked as f64, second as f64);
        worked >= (seconds * second * LEAST_SHARE).max(1.0)
    }
}

fn processes() -> BTreeMap<i32, Told> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            // The process has just ended.
            let text = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((process, parse(&text)?))
        })
        .collect()
}

/// A name, in brackets, may hold blanks and brackets.
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

/// apt gives dpkg a session of its own where it has a terminal.
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
    fn a_process_is_read_whatever_its_name() {
        let stat = "42 (a) b (c) S 7 41 40 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 99 0";
        let told = parse(stat).unwrap();
        assert_eq!((told.parent, told.session, told.ticks), (7, 40, 4330));
        assert!(parse("42 (cut").is_none());
        assert!(parse("42 (a) S 7 41").is_none());
    }

    #[test]
    fn work_is_that_of_the_session_and_its_descendants() {
        let told = |parent, session, ticks| Told {
            parent,
            session,
            ticks,
        };
        let processes = BTreeMap::from([
            (1, told(0, 1, 10_000)),
            (40, told(1, 40, 1)),
            (41, told(40, 40, 10)),
            // A session of its own, and a child of that.
            (50, told(41, 50, 100)),
            (51, told(50, 50, 1_000)),
            // Its parent has gone.
            (60, told(1, 40, 2)),
        ]);
        assert_eq!(ticks(40, &processes), 1_113);
    }

    #[test]
    fn who_works_goes_on_and_who_waits_does_not() {
        let mut work = CommandWork::of(Pid::this());
        // Since this process began, there was some.
        let end = std::time::Instant::now() + std::time::Duration::from_millis(50);
        while std::time::Instant::now() < end {}
        assert!(work.went_on(0.1));
        let mut idle = CommandWork::of(Pid::from_raw(i32::MAX));
        assert!(!idle.went_on(0.1));
    }
}
