//! Peak memory of a machine's programs, sampled at short intervals. Peaks between two samples are missed.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::group::{Group, Part};

/// The pause after a sample, as a multiple of its duration, so that sampling takes at most a fiftieth of a CPU.
const PAUSE: u32 = 50;
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// Samples the memory of a machine's programs until the result is requested.
pub struct Peak {
    end: Sender<()>,
    looks: JoinHandle<u64>,
}

impl Peak {
    /// Starts sampling.
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

    /// Returns the peak in bytes above the first sample.
    pub fn end(self) -> Result<u64> {
        drop(self.end);
        let failed = |_| anyhow!("the thread that samples the memory of a machine panicked");
        self.looks.join().map_err(failed)
    }
}

/// The anonymous memory of the machine's programs in bytes, which is the memory that they allocated. It does not
/// include files, which the kernel can drop, or a machine's disk in memory.
fn held(group: &Group) -> u64 {
    let programs = group.processes(&[Part::Machine, Part::Exec]).into_iter();
    // A process that has exited in the meantime has no memory.
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
