//! A run has its own PID and mount namespaces, so that the kernel cleans up: when the first process of the namespace
//! exits, for whatever reason, all others are killed, and their mounts and networks are removed.
//!
//! The command that the user starts stays outside. It creates the two things that outlive processes, the cgroups of the
//! run and its directory on the disk, and starts the run. It removes both when the run has finished, or after a signal,
//! which stops the run. If the command itself is killed, the run is killed with it, and the next command (or `vm
//! clean`) removes the leftovers. Anything in use is locked.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Command, ExitCode};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bed::{Bed, open, remove_tree};
use crate::group::{self, Group, Part};
use crate::{lock, out};

/// In a run, its small files and sockets. Outside, the lock for creating or removing the files of a run.
pub const RUN: &str = "/run/gpu-bootstrap-vm";

/// systemd-nspawn does not always remove its files here.
const NSPAWN: &str = "/run/systemd/nspawn";

/// The cgroup name of the run's own processes.
const OWN: &str = "run";

/// In a run, its process IDs on the host.
static IDS: OnceLock<Ids> = OnceLock::new();

struct Ids {
    command: u32,
    first: u32,
}

/// The process ID of the command that the user started, which is also the name of the run.
pub fn command() -> u32 {
    IDS.get().map_or_else(process::id, |ids| ids.command)
}

/// The host command that executes `command` in the namespaces of the run.
pub fn from_outside(command: &str) -> String {
    let first = IDS.get().map_or_else(process::id, |ids| ids.first);
    format!("nsenter --target {first} --pid --mount -- {command}")
}

/// Executes this command again in separate namespaces, and removes its leftovers.
pub fn run(bed: &Bed) -> Result<ExitCode> {
    // Before creating anything that a signal would leave behind.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])
        .context("cannot wait for signals and for the run")?;
    let owned = Owned::take(bed)?;
    unshare(CloneFlags::CLONE_NEWPID).context("cannot make a PID namespace")?;
    let argv = [
        // The running program, even if its file was compiled again in the meantime.
        format!("/proc/{}/exe", process::id()),
        format!("--apart={}", process::id()),
    ];
    let argv = owned.group.inside(Part::Support, &argv);
    let mut run = Command::new(&argv[0])
        .args(&argv[1..])
        .args(env::args_os().skip(1))
        .spawn()
        .context("cannot start the run")?;
    let mut stopped = None;
    loop {
        for signal in signals.wait() {
            if signal != SIGCHLD && stopped.is_none() {
                out::say(format!("\nstopped by signal {signal}: cleaning up"));
                run.kill().context("cannot kill the run")?;
                stopped = Some(signal);
            }
        }
        if let Some(status) = run.try_wait().context("cannot wait for the run")? {
            let stopped = stopped.or(status.signal()).map(|signal| 128 + signal);
            let code = stopped.or(status.code()).unwrap_or(1);
            return Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}

/// Makes this process, the first of its PID namespace, a run: it is killed with `command`, and has its own mount
/// namespace.
pub fn enter(command: u32) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot bind the run to its command")?;
    // This is still the host's /proc.
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read the status of the run")?;
    let parent = format!("PPid:\t{command}");
    if !status.lines().any(|line| line == parent) {
        bail!("the parent process {command} has exited");
    }
    let first = fs::read_link("/proc/self").context("cannot read the process ID of the run")?;
    let first =
        (first.to_string_lossy().parse()).context("cannot parse the process ID of the run")?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .context("cannot separate the mounts")?;
    for (kind, at) in [("proc", "/proc"), ("tmpfs", RUN), ("tmpfs", NSPAWN)] {
        fs::create_dir_all(at).with_context(|| format!("cannot make {at}"))?;
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {at}"))?;
    }
    IDS.set(Ids { command, first })
        .map_err(|_| anyhow!("already in a run"))
}

/// The resources that outlive the processes of a run. Dropping it removes them.
struct Owned<'a> {
    bed: &'a Bed,
    group: Group,
    /// Locks on all of its directories.
    locks: Vec<File>,
}

impl<'a> Owned<'a> {
    fn take(bed: &'a Bed) -> Result<Owned<'a>> {
        let _turn = turn()?;
        fs::create_dir(&bed.machines)
            .with_context(|| format!("cannot make {}", bed.machines.display()))?;
        let mut owned = Owned {
            bed,
            group: Group::of(OWN)?,
            locks: Vec::new(),
        };
        owned.group.create()?;
        for dir in group::of_run()?.iter().chain([&bed.machines]) {
            let lock = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
            lock.lock()
                .with_context(|| format!("cannot lock {}", dir.display()))?;
            owned.locks.push(lock);
        }
        Ok(owned)
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        let groups =
            group::of_run().and_then(|dirs| all(dirs.iter().map(|dir| group::destroy(dir))));
        if let Err(error) = all([groups, remove_tree(&self.bed.machines)]) {
            out::say(format!("left behind (`vm clean` removes it): {error:#}"));
        }
    }
}

/// Removes the leftovers of runs whose command was killed. If a part cannot be removed, the rest is still removed, and
/// the next command tries again.
pub fn clean(bed: &Bed) -> Result<()> {
    let _turn = turn()?;
    // A run exits a moment after its command. Without its processes its directory no longer changes.
    let groups = group::of_runs()?;
    let groups = groups.iter().map(|dir| unless_in_use(dir, group::destroy));
    let groups = all(groups.collect::<Vec<_>>());
    let mut directories = Vec::new();
    for entry in fs::read_dir(bed.runs()).context("cannot read the cache")? {
        let directory = entry.context("cannot read the cache")?.path();
        directories.push(unless_in_use(&directory, remove_tree));
    }
    all([groups, all(directories)])
}

fn unless_in_use(dir: &Path, remove: fn(&Path) -> Result<()>) -> Result<()> {
    if let Some(lock) = open(dir)?
        && lock::try_take(&lock)?
    {
        out::say(format!("removing {}, which has no owner", dir.display()));
        remove(dir)?;
    }
    Ok(())
}

fn turn() -> Result<File> {
    fs::create_dir_all(RUN).with_context(|| format!("cannot make {RUN}"))?;
    lock::take(&Path::new(RUN).join(".lock"), "the list of runs")
}

/// Joins many errors into one.
fn all(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let errors = results.into_iter().filter_map(Result::err);
    let texts: Vec<String> = errors.map(|error| format!("{error:#}")).collect();
    match texts.is_empty() {
        true => Ok(()),
        false => Err(anyhow!(texts.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_in_use_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("1");
        fs::create_dir_all(directory.join("a-case")).unwrap();
        let lock = File::open(&directory).unwrap();
        lock.lock().unwrap();
        unless_in_use(&directory, remove_tree).unwrap();
        assert!(directory.exists());
        drop(lock);
        unless_in_use(&directory, remove_tree).unwrap();
        assert!(!directory.exists());
        unless_in_use(&directory, remove_tree).unwrap();
    }

    #[test]
    fn all_errors_are_collected() {
        let error = all([Err(anyhow!("a")), Ok(()), Err(anyhow!("b"))]).unwrap_err();
        assert_eq!(error.to_string(), "a; b");
    }
}
