//! The cgroups of a run, each with the cgroups of its machines. Processes are found and killed by cgroup, never by
//! process name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::apart;

const PREFIX: &str = "gpu-bootstrap-run.";

/// The groups of one machine, one in each hierarchy that systemd uses.
#[derive(Clone, Debug)]
pub struct Group {
    dirs: Vec<PathBuf>,
}

impl Group {
    /// The groups of the machine `name`, existing or not.
    pub fn of(name: &str) -> Result<Group> {
        let dirs = of_run()?.into_iter().map(|dir| dir.join(name));
        Ok(Group {
            dirs: dirs.collect(),
        })
    }

    /// Creates them.
    pub fn create(&self) -> Result<()> {
        for dir in &self.dirs {
            for part in PARTS {
                let path = dir.join(part);
                fs::create_dir_all(&path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Wraps `argv` so that it runs inside `part` of the machine's groups. A shell moves itself there first, so the
    /// program never runs outside of them.
    pub fn inside(&self, part: Part, argv: &[String]) -> Vec<String> {
        let moves: String = self
            .dirs
            .iter()
            .map(|dir| {
                format!(
                    "echo 0 > '{}/{}/cgroup.procs' && ",
                    dir.display(),
                    PARTS[part as usize]
                )
            })
            .collect();
        let mut full = vec![
            "/bin/sh".into(),
            "-c".into(),
            format!("{moves}exec \"$@\""),
            "sh".into(),
        ];
        full.extend_from_slice(argv);
        full
    }

    /// The CPU time of the machine and its helper processes. `None` if the host's kernel does not account it.
    pub fn processor(&self) -> Option<Duration> {
        (self.dirs.iter())
            .filter_map(|dir| fs::read_to_string(dir.join("cpu.stat")).ok())
            .find_map(|text| used(&text))
    }

    /// The processes of these parts.
    pub fn processes(&self, parts: &[Part]) -> BTreeSet<i32> {
        let dirs = self.of_parts(parts);
        dirs.iter().flat_map(|dir| processes(dir)).collect()
    }

    /// Kills every process of these parts.
    pub fn end(&self, parts: &[Part]) -> Result<()> {
        match end(&self.of_parts(parts)).first() {
            None => Ok(()),
            Some(pid) => bail!("process {pid} cannot be killed"),
        }
    }

    fn of_parts(&self, parts: &[Part]) -> Vec<PathBuf> {
        let of = |dir: &PathBuf| {
            parts
                .iter()
                .map(|part| dir.join(PARTS[*part as usize]))
                .collect()
        };
        self.dirs.iter().flat_map::<Vec<_>, _>(of).collect()
    }

    /// Kills every process of the machine and removes the groups.
    pub fn destroy(&self) -> Result<()> {
        self.dirs.iter().try_for_each(|dir| destroy(dir))
    }
}

/// The groups of this run, one in each hierarchy.
pub fn of_run() -> Result<Vec<PathBuf>> {
    let name = format!("{PREFIX}{}", apart::command());
    Ok(mounted()?.into_iter().map(|dir| dir.join(&name)).collect())
}

/// The existing groups of all runs.
pub fn of_runs() -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = mounted()?.iter().flat_map(|dir| children(dir)).collect();
    found.retain(|dir| {
        let name = dir.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(PREFIX)
    });
    Ok(found)
}

/// Kills every process of a group and removes it.
pub fn destroy(dir: &Path) -> Result<()> {
    // A group whose processes do not exit cannot be removed.
    end(&[dir.to_path_buf()]);
    remove_groups(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Kills every process of the groups. Returns those that are left after a while.
fn end(dirs: &[PathBuf]) -> Vec<i32> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let pids: Vec<i32> = dirs.iter().flat_map(|dir| processes(dir)).collect();
        if pids.is_empty() || Instant::now() > end {
            return pids;
        }
        for pid in pids {
            // The process may have exited in the meantime; the next round shows it.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The role of a process of a machine.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// systemd-nspawn and the machine itself.
    Machine = 0,
    /// Its network and its repository server, which run outside of it.
    Support = 1,
    /// Commands that entered it.
    Exec = 2,
}

const PARTS: [&str; 3] = ["machine", "support", "exec"];

fn mounted() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    Ok(hierarchies(&mounts))
}

/// Mount points of the unified hierarchy, and of systemd's additional hierarchy.
fn hierarchies(mountinfo: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let mut right = right.split(' ');
        let (kind, options) = (right.next().unwrap_or(""), right.nth(1).unwrap_or(""));
        let wanted = kind == "cgroup2"
            || (kind == "cgroup" && options.split(',').any(|option| option == "name=systemd"));
        let mut left = left.split(' ').skip(3);
        let (Some(root), Some(at)) = (left.next(), left.next()) else {
            continue;
        };
        let at = PathBuf::from(at);
        if wanted && root == "/" && !found.contains(&at) {
            found.push(at);
        }
    }
    found
}

/// Reads `cpu.stat` of a cgroup.
fn used(text: &str) -> Option<Duration> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok().map(Duration::from_micros)
}

fn processes(dir: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = fs::read_to_string(dir.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        // The kernel shows 0 for a process of another PID namespace.
        .filter(|pid| *pid != 0)
        .collect();
    for child in children(dir) {
        pids.extend(processes(&child));
    }
    pids
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir())
        .collect()
}

/// Deepest first, because a group with subgroups cannot be removed. A group is busy for a moment while the kernel
/// removes its processes.
fn remove_groups(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for child in children(dir) {
        remove_groups(&child)?;
    }
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(dir) {
            Err(error)
                if error.raw_os_error() == Some(nix::libc::EBUSY) && Instant::now() < end =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            done => return done.with_context(|| format!("cannot remove {}", dir.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_group_is_parsed() {
        let text = "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n";
        assert_eq!(used(text), Some(Duration::from_millis(1500)));
        assert_eq!(used("nr_periods 0\n"), None);
    }

    #[test]
    fn both_cgroup_layouts_are_found() {
        let hybrid = "33 28 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                      34 28 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      35 28 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(
            hierarchies(hybrid),
            [
                Path::new("/sys/fs/cgroup/systemd"),
                Path::new("/sys/fs/cgroup/unified")
            ]
        );
        let unified = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(hierarchies(unified), [Path::new("/sys/fs/cgroup")]);
    }
}
