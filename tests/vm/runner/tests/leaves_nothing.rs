//! An interrupted run leaves nothing on the host: neither after a signal at any moment, nor after
//! SIGKILL once `vm clean` has run. The tests look only at what carries the name of that run, so
//! other beds may run at the same time.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const VM: &str = env!("CARGO_BIN_EXE_vm");

/// A quick case on a container.
const CASE: &str = "bed-boots";

/// A case with a control plane.
const CLUSTER: &str = "bed-cluster";

const RUN: &str = "/run/gpu-bootstrap-vm";

/// Long enough to build everything that a machine is made of.
const LIMIT: Duration = Duration::from_secs(3600);

/// The longest time until a run ends after a signal; the run itself gives up earlier.
const END: Duration = Duration::from_secs(200);

/// The longest time until killed processes are gone, and for other short waits.
const DYING: Duration = Duration::from_secs(10);

/// Longer than another bed holds the lock of the list of machines; the bed itself waits as long
/// during its clean-up.
const TURN_OF_OTHERS: Duration = Duration::from_secs(60);

/// A run of the case, and the resources that it was seen to have.
struct Run {
    case: &'static str,
    child: Child,
    said: File,
    pid: u32,
    cache: PathBuf,
    processes: BTreeSet<(u32, String)>,
    namespaces: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
}

/// A moment in the life of a machine.
type Moment = (&'static str, fn(&Run) -> bool);

const MOMENTS: [Moment; 6] = [
    ("it has a name", |run| run.folder().exists()),
    ("its disk is being copied", |run| {
        run.disk().join("root/usr").exists()
    }),
    ("it has a network", |run| {
        run.folder().join("netns").exists()
    }),
    ("it has been turned on", |run| run.has_process("machine")),
    ("a command has entered it", |run| run.has_process("exec")),
    ("its second boot", SECOND_BOOT),
];

const SECOND_BOOT: fn(&Run) -> bool = |run| run.disk().join("root/root/boot-id").exists();

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn a_signal_leaves_nothing() {
    for (about, moment) in MOMENTS {
        let mut run = Run::start();
        run.wait_for(about, moment);
        run.remember();
        let status = run.end(Signal::SIGINT);
        assert_eq!(status.code(), Some(130), "SIGINT when {about}: {status}");
        run.assert_gone(about);
    }
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn a_signal_during_the_removal_of_a_machine_leaves_nothing() {
    let mut run = Run::start();
    run.wait_for("its second boot", SECOND_BOOT);
    run.remember();
    let list = hold_list();
    run.wait_for("it is being removed", |run| !run.disk().exists());
    run.send(Signal::SIGINT);
    run.wait_for("it has heard", |run| run.said().contains("cleaning up"));
    assert!(run.folder().exists(), "it has to wait for the list");
    drop(list);
    assert_eq!(run.wait().code(), Some(130));
    run.assert_gone("it was being removed");
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn runs_that_are_stopped_at_the_same_time_leave_nothing() {
    let mut runs = [Run::start(), Run::start()];
    for run in &mut runs {
        run.wait_for("it has a network", |run| {
            run.folder().join("netns").exists()
        });
    }
    runs.iter_mut().for_each(Run::remember);
    // Each of them waits while the other holds the lock of the list; here both wait.
    let list = hold_list();
    for run in &runs {
        run.send(Signal::SIGINT);
    }
    for run in &mut runs {
        run.wait_for("all but its name is gone", |run| !run.disk().exists());
    }
    drop(list);
    for run in &mut runs {
        assert_eq!(run.wait().code(), Some(130));
    }
    for run in &runs {
        run.assert_gone("others were stopped at once");
    }
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn a_signal_leaves_nothing_of_a_control_plane() {
    let mut run = Run::start_with_a_control_plane();
    let about = "its API server starts";
    run.wait_for(about, |run| {
        run.disk()
            .join("cluster/etc/kubernetes/no-check.conf")
            .exists()
    });
    run.remember();
    assert!(run.folder().join("netns-beside").exists());
    assert_eq!(run.end(Signal::SIGINT).code(), Some(130));
    run.assert_gone(about);
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn nothing_is_left_if_another_namespace_holds_the_mounts() {
    let mut run = Run::start();
    run.wait_for("it has been turned on", |run| run.has_process("machine"));
    // As a QEMU does that starts meanwhile.
    let mut keeper = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sleep", "600"])
        .spawn()
        .unwrap();
    let kept = |run: &Run| {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", keeper.id())).unwrap();
        mounts.contains(&run.id())
    };
    let end = Instant::now() + DYING;
    let is_apart = || namespace(keeper.id()) != namespace(std::process::id());
    while !is_apart() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    let was_kept = is_apart() && kept(&run);
    let status = run.end(Signal::SIGINT);
    let is_kept = kept(&run);
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    assert!(was_kept, "it has a namespace of its own");
    assert_eq!(status.code(), Some(130));
    assert!(!is_kept, "mounts are left in another namespace");
    run.assert_gone("somebody else kept the mounts");
}

#[test]
#[ignore = "builds a root filesystem, as root: `make test-long` runs it"]
fn a_signal_leaves_nothing_of_a_build() {
    let cache = tempfile::tempdir().unwrap();
    let mut run = Run::start_in(CASE, cache.path().to_path_buf());
    let about = "a root filesystem is being configured";
    run.wait_for(about, |run| {
        let entries = fs::read_dir(&run.cache).into_iter().flatten().flatten();
        let mut roots = entries.map(|entry| entry.path().join("root"));
        roots.any(|root| root.join("var/lib/dpkg/info/kmod.list").exists())
    });
    // mmdebstrap mounts in a namespace of its own, so that a mount which is left shows as a process in it.
    run.remember();
    assert_eq!(run.end(Signal::SIGINT).code(), Some(130));
    run.assert_gone(about);
}

#[test]
#[ignore = "boots machines, as root: `make test-long` runs it"]
fn after_sigkill_vm_clean_leaves_nothing() {
    let mut run = Run::start();
    run.wait_for("a command has entered it", |run| run.has_process("exec"));
    run.remember();
    let status = run.end(Signal::SIGKILL);
    assert_eq!(status.signal(), Some(9));
    assert!(run.folder().exists(), "there is something to clean");
    let cleaned = Command::new(VM)
        .arg("clean")
        .current_dir(repository())
        .status();
    assert!(cleaned.unwrap().success());
    run.assert_gone("after SIGKILL and `vm clean`");
}

/// Whoever adds a machine to the list or removes one waits until this is dropped.
fn hold_list() -> File {
    let list = File::open(Path::new(RUN).join(".lock")).unwrap();
    let end = Instant::now() + TURN_OF_OTHERS;
    loop {
        match list.try_lock() {
            Ok(()) => return list,
            Err(TryLockError::WouldBlock) => {
                assert!(Instant::now() < end, "another bed has the list of machines");
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::Error(error)) => panic!("the list of machines: {error}"),
        }
    }
}

/// The mount namespace of a process.
fn namespace(process: u32) -> PathBuf {
    fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap()
}

fn cache() -> PathBuf {
    std::env::var_os("TESTBED_CACHE").map_or_else(|| repository().join(".cache/vm"), PathBuf::from)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

impl Run {
    fn start() -> Run {
        Run::start_in(CASE, cache())
    }

    fn start_with_a_control_plane() -> Run {
        Run::start_in(CLUSTER, cache())
    }

    fn start_in(case: &'static str, cache: PathBuf) -> Run {
        let said = tempfile::tempfile().unwrap();
        let child = Command::new(VM)
            .args(["test", case])
            .env("TESTBED_CACHE", &cache)
            .current_dir(repository())
            // As a shell starts it: a terminal signals the whole group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .spawn()
            .unwrap();
        Run {
            case,
            pid: child.id(),
            child,
            said,
            cache,
            processes: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            locks: BTreeSet::new(),
        }
    }

    fn id(&self) -> String {
        format!("{}-{}", self.case, self.pid)
    }

    fn folder(&self) -> PathBuf {
        Path::new(RUN).join(self.id())
    }

    fn disk(&self) -> PathBuf {
        self.cache.join("machines").join(self.id())
    }

    /// All control groups of this run's machine, in every hierarchy.
    fn groups(&self) -> Vec<PathBuf> {
        let name = format!("gpu-bootstrap-vm.{}", self.id());
        let below = fs::read_dir("/sys/fs/cgroup").unwrap();
        below
            .map(|entry| entry.unwrap().path().join(&name))
            .chain([Path::new("/sys/fs/cgroup").join(&name)])
            .filter(|group| group.exists())
            .collect()
    }

    fn has_process(&self, part: &str) -> bool {
        let full = |group: PathBuf| {
            let text = fs::read_to_string(group.join(part).join("cgroup.procs"));
            text.is_ok_and(|text| !text.is_empty())
        };
        self.groups().into_iter().any(full)
    }

    fn wait_for(&mut self, about: &str, moment: fn(&Run) -> bool) {
        let end = Instant::now() + LIMIT;
        while !moment(self) {
            assert_eq!(self.child.try_wait().unwrap(), None, "before {about}");
            assert!(Instant::now() < end, "too late: {about}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Remembers everything that must be gone later and then has no name any more.
    fn remember(&mut self) {
        let own = namespaces(std::process::id());
        let mut family = BTreeSet::from([self.pid]);
        for group in self.groups() {
            family.extend(members(&group));
        }
        for process in processes() {
            if parent(process).is_some_and(|parent| family.contains(&parent)) {
                family.insert(process);
            }
        }
        for process in family {
            self.namespaces.extend(&namespaces(process) - &own);
            if let Some(start) = start_time(process) {
                self.processes.insert((process, start));
            }
        }
        if let Ok(root) = fs::metadata(self.disk().join("root")) {
            let name = format!("inode-{}:{}", root.dev(), root.ino());
            self.locks
                .insert(Path::new("/run/systemd/nspawn/locks").join(name));
        }
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        self.wait()
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid).unwrap()), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its processes, and others in its namespaces.
    fn alive(&self) -> Vec<String> {
        let is_ours = |process: &u32| {
            start_time(*process).is_some_and(|start| {
                self.processes.contains(&(*process, start))
                    || !namespaces(*process).is_disjoint(&self.namespaces)
            })
        };
        let name = |process: u32| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            format!("process {process} {}", name.trim())
        };
        processes().into_iter().filter(is_ours).map(name).collect()
    }

    /// Its output so far.
    fn said(&self) -> String {
        let mut bytes = vec![0; usize::try_from(self.said.metadata().unwrap().len()).unwrap()];
        self.said.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn assert_gone(&self, about: &str) {
        let text = self.said();
        let gave_up =
            |line: &&str| line.contains("left behind") || line.contains("not completely removed");
        let mut left: Vec<String> = text.lines().filter(gave_up).map(String::from).collect();
        let suffix = format!("-{}", self.pid);
        for folder in [RUN, "/run/systemd/nspawn/propagate"].map(PathBuf::from) {
            left.extend(entries(&folder, &suffix));
        }
        left.extend(entries(&self.cache.join("machines"), &suffix));
        left.extend(self.groups().iter().map(|path| path.display().to_string()));
        let existing = self.locks.iter().filter(|path| path.exists());
        left.extend(existing.map(|path| path.display().to_string()));
        for table in ["/proc/self/mountinfo", "/proc/net/unix"] {
            let text = fs::read_to_string(table).unwrap();
            let ours = text.lines().filter(|line| line.contains(&self.id()));
            left.extend(ours.map(String::from));
        }
        // The first process of a machine leaves its control group while it waits for the kernel to
        // end the others; it is gone a moment later.
        let end = Instant::now() + DYING;
        let mut alive = self.alive();
        while !alive.is_empty() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            alive = self.alive();
        }
        left.extend(alive);
        assert!(left.is_empty(), "left ({about}):\n{}", left.join("\n"));
    }
}

fn entries(folder: &Path, suffix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| path.ends_with(suffix))
        .collect()
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

/// Ordered by id, so that a parent mostly comes before its children.
fn processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

/// The fields of `/proc/PID/stat` from the third on; the second may contain blanks.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(String::from).collect())
}

fn parent(process: u32) -> Option<u32> {
    stat(process)?.get(1)?.parse().ok()
}

/// Distinguishes processes that had the same id. A zombie counts as ended.
fn start_time(process: u32) -> Option<String> {
    let fields = stat(process)?;
    (fields.first()? != "Z").then(|| fields.get(19).cloned())?
}

fn namespaces(process: u32) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/ns"));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect()
}
