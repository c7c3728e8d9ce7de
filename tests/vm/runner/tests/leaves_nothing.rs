//! A finished run leaves nothing on the host: after an error, after a signal at any moment, and after SIGKILL once `vm
//! clean` has run. The tests look only at resources of that run, so other runs may be active at the same time.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const VM: &str = env!("CARGO_BIN_EXE_vm");

/// A quick case on a container, and a machine on which it fails.
const CASE: &str = "bed-boots";
const WRONG: &str = "h100";

const RUN: &str = "/run/gpu-bootstrap-vm";

/// Long enough to build all parts of a machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// The longest time until a run exits after a signal, because removing a disk takes time.
const END: Duration = Duration::from_secs(120);

/// The longest time until the kernel has removed the resources of killed processes.
const DYING: Duration = Duration::from_secs(10);

/// A run of the case, and its observed namespaces.
struct Run {
    child: Child,
    cache: PathBuf,
    namespaces: BTreeSet<PathBuf>,
}

/// A moment in the life of a machine.
type Moment = (&'static str, fn(&Run) -> bool);

const MOMENTS: [Moment; 6] = [
    ("the run has a directory", |run| run.directory().exists()),
    ("its disk is being copied", |run| {
        run.inside(&run.disk()).join("root/usr").exists()
    }),
    ("it has a network", |run| {
        run.inside(&Path::new(RUN).join(CASE))
            .join("netns")
            .exists()
    }),
    ("it has been turned on", |run| run.has_process("machine")),
    ENTERED,
    ("its second boot", |run| {
        run.inside(&run.disk()).join("root/root/boot-id").exists()
    }),
];

const ENTERED: Moment = ("a command has entered it", |run| run.has_process("exec"));

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn signal_leaves_nothing() {
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    for (moment, signal) in MOMENTS.into_iter().zip(signals.into_iter().cycle()) {
        let mut run = Run::start(&[], cache());
        run.wait_for(moment);
        run.send(signal);
        let status = run.wait(END);
        let about = format!("{signal} when {}", moment.0);
        assert_eq!(status.code(), Some(128 + signal as i32), "{about}");
        run.assert_gone(&about);
    }
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn failed_case_leaves_nothing() {
    let mut run = Run::start(&["--on", WRONG], cache());
    run.wait_for(ENTERED);
    assert_eq!(run.wait(LIMIT).code(), Some(1));
    run.assert_gone("a case failed");
}

#[test]
#[ignore = "builds a root filesystem, as root: `make test-long` runs it"]
fn signal_during_build_leaves_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let mut run = Run::start(&[], cache.path().to_path_buf());
    let about = "a root filesystem is being configured";
    run.wait_for((about, |run| {
        let entries = fs::read_dir(&run.cache).into_iter().flatten().flatten();
        let mut roots = entries.map(|entry| entry.path().join("root"));
        roots.any(|root| root.join("var/lib/dpkg/info/kmod.list").exists())
    }));
    run.send(Signal::SIGINT);
    assert_eq!(run.wait(END).code(), Some(130));
    run.assert_gone(about);
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn vm_clean_after_sigkill_leaves_nothing() {
    let mut run = Run::start(&[], cache());
    run.wait_for(ENTERED);
    run.send(Signal::SIGKILL);
    assert_eq!(run.wait(END).signal(), Some(9));
    assert!(run.directory().exists(), "there is something to clean");
    clean();
    run.assert_gone("after SIGKILL and `vm clean`");
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn no_process_survives_sigkill() {
    let mut run = Run::start(&[], cache());
    run.wait_for(ENTERED);
    run.send(Signal::SIGKILL);
    run.wait(END);
    let end = Instant::now() + DYING;
    while !run.alive().is_empty() || !run.loop_devices_and_mounts().is_empty() {
        assert!(Instant::now() < end, "{:?}", run.alive());
        thread::sleep(Duration::from_millis(10));
    }
    clean();
    run.assert_gone("some time after SIGKILL, and `vm clean`");
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn vm_clean_keeps_active_run() {
    let mut run = Run::start(&[], cache());
    run.wait_for(ENTERED);
    clean();
    assert!(run.wait(LIMIT).success());
    run.assert_gone("it passed");
}

fn clean() {
    let mut clean = Command::new(VM);
    clean.arg("clean").env("TESTBED_CACHE", cache());
    let cleaned = clean.current_dir(repository()).status();
    assert!(cleaned.unwrap().success());
}

fn cache() -> PathBuf {
    std::env::var_os("TESTBED_CACHE").map_or_else(|| repository().join(".cache/vm"), PathBuf::from)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

impl Run {
    fn start(options: &[&str], cache: PathBuf) -> Run {
        let child = Command::new(VM)
            .args(["test", CASE])
            .args(options)
            .env("TESTBED_CACHE", &cache)
            .current_dir(repository())
            // Like a shell, because a terminal signals the whole group.
            .process_group(0)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Run {
            child,
            cache,
            namespaces: BTreeSet::new(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.cache.join("runs").join(self.child.id().to_string())
    }

    fn disk(&self) -> PathBuf {
        self.directory().join(CASE)
    }

    /// The first process in the PID namespace of the run.
    fn first(&self) -> Option<u32> {
        let command = self.child.id();
        let path = format!("/proc/{command}/task/{command}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().next()?.parse().ok()
    }

    /// A path as seen by the run.
    fn inside(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.first().unwrap_or_default());
        Path::new(&root).join(path.strip_prefix("/").unwrap())
    }

    /// All cgroups of this run, in every hierarchy.
    fn groups(&self) -> Vec<PathBuf> {
        let name = format!("gpu-bootstrap-run.{}", self.child.id());
        let below = fs::read_dir("/sys/fs/cgroup").unwrap();
        below
            .map(|entry| entry.unwrap().path().join(&name))
            .chain([Path::new("/sys/fs/cgroup").join(&name)])
            .filter(|group| group.exists())
            .collect()
    }

    fn has_process(&self, part: &str) -> bool {
        let groups = self.groups();
        let mut parts = groups.iter().map(|group| group.join(CASE).join(part));
        parts.any(|group| !members(&group).is_empty())
    }

    /// Waits for a moment, and records the namespaces of all processes of the run.
    fn wait_for(&mut self, (about, has_come): Moment) {
        let end = Instant::now() + LIMIT;
        while !has_come(self) {
            assert_eq!(self.child.try_wait().unwrap(), None, "before {about}");
            assert!(Instant::now() < end, "too late: {about}");
            thread::sleep(Duration::from_millis(1));
        }
        let processes = self.groups().into_iter().flat_map(|group| members(&group));
        let all: BTreeSet<PathBuf> = processes.flat_map(namespaces).collect();
        self.namespaces = &all - &namespaces(std::process::id());
    }

    fn send(&self, signal: Signal) {
        let command = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(command, signal).unwrap();
    }

    fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not exit");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processes in its namespaces.
    fn alive(&self) -> Vec<String> {
        let name = |process: u32| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            format!("process {process} {}", name.trim())
        };
        let is_ours = |process: &u32| !namespaces(*process).is_disjoint(&self.namespaces);
        processes().into_iter().filter(is_ours).map(name).collect()
    }

    fn loop_devices_and_mounts(&self) -> Vec<String> {
        let directory = self.directory().display().to_string();
        let mut left = vec![fs::read_to_string("/proc/self/mountinfo").unwrap()];
        for device in fs::read_dir("/sys/block").unwrap() {
            let file = device.unwrap().path().join("loop/backing_file");
            left.extend(fs::read_to_string(file));
        }
        let lines = left.iter().flat_map(|text| text.lines());
        let ours = lines.filter(|line| line.contains(&directory));
        ours.map(String::from).collect()
    }

    fn left(&self) -> Vec<String> {
        let small =
            [RUN, "/run/systemd/nspawn/propagate"].map(|directory| Path::new(directory).join(CASE));
        let paths = self
            .groups()
            .into_iter()
            .chain([self.directory()])
            .chain(small);
        let paths = paths.filter(|path| path.exists());
        let mut left: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        left.extend(self.loop_devices_and_mounts());
        left.extend(self.alive());
        left
    }

    fn assert_gone(&self, about: &str) {
        let end = Instant::now() + DYING;
        while !self.left().is_empty() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let left = self.left();
        assert!(left.is_empty(), "left ({about}):\n{}", left.join("\n"));
    }
}

fn members(group: &Path) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_to_string(group.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(members(&entry.path()));
        }
    }
    found
}

fn processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

fn namespaces(process: u32) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/ns"));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect()
}
