//! Measures the time of gpu-bootstrap itself: the wall-clock time of the process in which no package manager, compiler,
//! container program, kernel tool or service that it started was working.
//!
//! These programs run in parallel, so the time in which at least one of them runs is subtracted, not the sum of their times.
//! Short queries, such as `lspci` and `systemctl show`, and all waiting belong to gpu-bootstrap itself.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    host::{
        Clock, Cmd, Exec, ExecError, FilesError, Host, Output, System,
        exec::OnLine,
        system::{MemoryError, Process},
    },
    tools::packages,
};

/// The other programs, in addition to [`packages::PROGRAMS`]: compiler, container programs and kernel tools.
const OTHERS: [&str; 15] = [
    "dkms",
    "containerd",
    "crictl",
    "crio",
    "ctr",
    "docker",
    "dockerd",
    "nvidia-ctk",
    "podman",
    "dracut",
    "lsinitramfs",
    "lsinitrd",
    "modprobe",
    "rmmod",
    "update-initramfs",
];

/// The commands of `systemctl` that wait until a service has started or stopped.
const SERVICE_COMMANDS: [&str; 4] = ["reload", "restart", "start", "stop"];

/// Returns the machine with [`System::own_time`], which begins now.
pub fn measured(host: Host) -> Host {
    let watch = Arc::new(Watch {
        began: host.clock.monotonic(),
        clock: Arc::clone(&host.clock),
        others: Mutex::default(),
    });
    Host {
        exec: Arc::new(Measured {
            inner: host.exec,
            watch: Arc::clone(&watch),
        }),
        system: Arc::new(Measured {
            inner: host.system,
            watch,
        }),
        ..host
    }
}

struct Measured<T: ?Sized> {
    inner: Arc<T>,
    watch: Arc<Watch>,
}

struct Watch {
    clock: Arc<dyn Clock>,
    began: Duration,
    others: Mutex<Others>,
}

/// The time in which at least one of the other programs was running.
#[derive(Default)]
struct Others {
    running: usize,
    /// The time at which the first of the running programs was started.
    since: Duration,
    /// The time until `since`.
    total: Duration,
}

/// One of the other programs, while it runs. A caller that stops waiting drops it.
struct Running<'w>(&'w Watch);

impl Watch {
    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> Running<'_> {
        let mut others = self.others();
        if others.running == 0 {
            others.since = self.clock.monotonic();
        }
        others.running += 1;
        Running(self)
    }

    fn own_time(&self) -> Duration {
        let others = self.others();
        let now = self.clock.monotonic();
        let current = match others.running {
            0 => Duration::ZERO,
            _ => now.saturating_sub(others.since),
        };
        let whole = now.saturating_sub(self.began);
        whole.saturating_sub(others.total + current)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut others = self.0.others();
        others.running -= 1;
        if others.running == 0 {
            let worked = self.0.clock.monotonic().saturating_sub(others.since);
            others.total += worked;
        }
    }
}

fn is_other(cmd: &Cmd) -> bool {
    let name = cmd.program.rsplit('/').next().unwrap_or(&cmd.program);
    if name == "systemctl" {
        let command = cmd.args.first().map_or("", String::as_str);
        return SERVICE_COMMANDS.contains(&command);
    }
    OTHERS.contains(&name) || packages::PROGRAMS.contains(&name)
}

#[async_trait]
impl Exec for Measured<dyn Exec> {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let _running = is_other(cmd).then(|| self.watch.start());
        self.inner.run(cmd, on_line).await
    }
}

impl System for Measured<dyn System> {
    fn memory_bytes(&self) -> Result<u64, MemoryError> {
        self.inner.memory_bytes()
    }

    fn process(&self, pid: u32) -> Process {
        self.inner.process(pid)
    }

    fn processes(&self) -> Result<Vec<Process>, FilesError> {
        self.inner.processes()
    }

    fn own_cpu_time(&self) -> Option<Duration> {
        self.inner.own_cpu_time()
    }

    fn own_time(&self) -> Option<Duration> {
        Some(self.watch.own_time())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    /// Two overlapping programs from 2 to 9 s, a third one from 12 to 13 s, and one that is still running since 14 s.
    #[test]
    fn parallel_programs_are_subtracted_once() {
        let (host, fakes) = fake::host();
        let watch = Watch {
            clock: Arc::clone(&host.clock),
            began: host.clock.monotonic(),
            others: Mutex::default(),
        };
        let pass = |seconds| fakes.clock.advance(Duration::from_secs(seconds));
        pass(2);
        let first = watch.start();
        pass(3);
        let second = watch.start();
        pass(1);
        drop(first);
        pass(3);
        drop(second);
        assert_eq!(watch.own_time(), Duration::from_secs(2));
        pass(3);
        let third = watch.start();
        pass(1);
        drop(third);
        pass(1);
        let _running = watch.start();
        pass(5);
        assert_eq!(watch.own_time(), Duration::from_secs(6));
    }

    #[tokio::test]
    async fn only_long_work_of_other_programs_is_subtracted() {
        let (host, fakes) = fake::host();
        for program in ["dkms", "systemctl"] {
            let clock = fakes.clock.clone();
            fakes.exec.on(program, move |_, _| {
                clock.advance(Duration::from_secs(10));
                fake::ok("")
            });
        }
        let host = measured(host);
        let run = async |program: &str, args: &[&str]| {
            let cmd = Cmd::new(program, args.iter().copied());
            host.exec.run(&cmd, &mut |_, _| {}).await.unwrap();
            host.system.own_time().unwrap().as_secs()
        };
        assert_eq!(run("/usr/sbin/dkms", &["status"]).await, 0);
        assert_eq!(run("systemctl", &["restart", "--", "a.service"]).await, 0);
        assert_eq!(run("systemctl", &["show", "--", "a.service"]).await, 10);
    }
}
