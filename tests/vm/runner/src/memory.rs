//! The most memory that a machine's programs had at one time, seen by looks at short intervals. What a program has between two
//! looks is missed.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::group::{Group, Part};

/// The pause after a look, as a multiple of its duration: so looks take at most a fiftieth of a processor.
const PAUSE: u32 = 50;
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// Looks at a machine's programs until it is asked what it saw.
pub struct Peak {
    end: Sender<()>,
    looks: JoinHandle<u64>,
}

impl Peak {
    /// Starts to look.
    pub fn start(group: &Group) -> Peak {
        let (end, ended) = mpsc::channel();
        let group = group.clone();
        let looks = thread::spawn(move || {
            let first = held(&group);
            let mut most = first;
            let mut pause = LEAST_PAUSE;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let start = Instant::now();
                most = most.max(held(&group));
                pause = LEAST_PAUSE.max(start.elapsed() * PAUSE);
            }
            most - first
        });
        Peak { end, looks }
    }

    /// Returns the most bytes beyond those of the first look.
    pub fn end(self) -> Result<u64> {
        drop(self.end);
        let failed = |_| anyhow!("the looks at the memory of a machine ended with a panic");
        self.looks.join().map_err(failed)
    }
}

/// The bytes of anonymous memory of the machine's programs: what they allocated. Files are not counted, which the kernel can
/// drop, nor is a machine's disk that lies in memory.
fn held(group: &Group) -> u64 {
    let programs = group.processes(&[Part::Machine, Part::Exec]).into_iter();
    // A process that has ended since has none.
    let texts = programs.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    texts.filter_map(|text| anonymous(&text)).sum()
}

/// Reads the line `RssAnon` of proc_pid_status(5), in bytes. A process that is being removed has no such line.
fn anonymous(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_read_in_bytes() {
        let status =
            "Name:\tcc1\nVmHWM:\t  204800 kB\nRssAnon:\t  102400 kB\nRssFile:\t    5120 kB\n";
        assert_eq!(anonymous(status), Some(100 << 20));
        assert_eq!(anonymous("Name:\tcc1\nState:\tZ (zombie)\n"), None);
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(anonymous(&own).unwrap() > 0);
    }
}
