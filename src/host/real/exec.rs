//! Child processes: argument vector, fixed environment, a separate session, limits.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, setsid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use super::lines::{KeptOutput, Lines, Tail};
use super::work::CommandWork;
use crate::host::exec::{OnLine, Status};
use crate::host::{Cmd, Exec, ExecError, Output, Stream};

/// The search path for programs, also passed to child processes.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The time between TERM and KILL, so that a package manager can leave its database consistent.
const GRACE: Duration = Duration::from_secs(10);

/// The time to wait after KILL. A process that is blocked in the kernel by a faulty device does not
/// die, so we continue without it.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// How long output is read after the command has exited, if background processes keep its pipes
/// open.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs programs on this machine.
#[derive(Debug, Clone)]
pub struct RealExec {
    grace: Duration,
}

impl Default for RealExec {
    fn default() -> Self {
        Self { grace: GRACE }
    }
}

#[async_trait]
impl Exec for RealExec {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let mut child = start(cmd)?;
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), cmd.stdin.clone()) {
            tokio::spawn(async move {
                // A program that does not read all of its input is not an error. Its exit status is
                // decisive.
                if let Err(error) = stdin.write_all(input.expose().as_bytes()).await {
                    tracing::debug!(%error, "the child did not read all its input");
                }
            });
        }
        let mut run = RunningCommand::new(cmd, &child, self.grace);
        let mut out = Pipe::new(Stream::Out, child.stdout.take());
        let mut err = Pipe::new(Stream::Err, child.stderr.take());
        let mut group = ProcessGroup(run.group);
        loop {
            if run.ended() && out.closed() && err.closed() {
                break;
            }
            tokio::select! {
                // In this order, so that output is passed on before the exit is handled.
                biased;
                () = sleep_until(run.due()) => {
                    if run.bound_reached() {
                        break;
                    }
                }
                read = out.read() => {
                    out.take(read, &mut run, on_line).map_err(|error| spawn_error(cmd, &error))?;
                }
                read = err.read() => {
                    err.take(read, &mut run, on_line).map_err(|error| spawn_error(cmd, &error))?;
                }
                ended = child.wait(), if !run.ended() => {
                    run.exited(ended.map_err(|error| spawn_error(cmd, &error))?);
                }
            }
        }
        out.finish(&mut run, on_line);
        err.finish(&mut run, on_line);
        group.release();
        run.result(cmd, out.kept.text(), err.kept.text())
    }
}

fn start(cmd: &Cmd) -> Result<Child, ExecError> {
    let mut command = Command::new(find(cmd)?);
    command
        .args(&cmd.args)
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .env("HOME", "/root")
        // A context set by root with `docker context use` would send our queries to another
        // machine.
        .env("DOCKER_CONTEXT", "default")
        .envs(cmd.env.iter().map(|(key, value)| (key, value)))
        .envs(
            cmd.secret_env
                .iter()
                .map(|(key, value)| (key, value.expose())),
        )
        .current_dir(&cmd.directory)
        .stdin(if cmd.stdin.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec, only `setsid` and `umask` are called. Both are
    // async-signal-safe, and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            // A separate session has no terminal for prompts, receives no Ctrl-C meant for us, and
            // forms one process group to kill.
            setsid()?;
            // A hardened root shell may use umask 077, which would make installed packages
            // unreadable.
            umask(Mode::from_bits_truncate(0o022));
            Ok(())
        });
    }
    command.spawn().map_err(|error| spawn_error(cmd, &error))
}

fn spawn_error(cmd: &Cmd, error: &io::Error) -> ExecError {
    ExecError::Spawn {
        command: cmd.line(),
        why: error.to_string(),
    }
}

/// Finds the path of a program. We do this ourselves to distinguish a missing program from a script
/// with a missing interpreter.
fn find(cmd: &Cmd) -> Result<PathBuf, ExecError> {
    let not_found = || ExecError::NotFound {
        program: cmd.program.clone(),
    };
    let path = Path::new(&cmd.program);
    if path.is_absolute() {
        return if path.exists() {
            Ok(path.to_owned())
        } else {
            Err(not_found())
        };
    }
    if cmd.program.contains('/') {
        return Err(ExecError::Spawn {
            command: cmd.line(),
            why: "a program must be a name or an absolute path".to_owned(),
        });
    }
    PATH.split(':')
        .map(|directory| Path::new(directory).join(path))
        .find(|candidate| {
            candidate
                .metadata()
                .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(not_found)
}

/// Kills the process group if the caller stops waiting, so that no child process outlives the
/// caller.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        signal(self.0, Signal::SIGKILL);
    }
}

fn signal(group: Option<Pid>, which: Signal) {
    if let Some(group) = group {
        match killpg(group, which) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::warn!(%group, %errno, "failed to signal the process group"),
        }
    }
}

/// The reason a command is killed.
#[derive(Clone, Copy)]
enum EndCause {
    Deadline,
    Silence,
}

/// The stages of killing a command.
#[derive(Clone, Copy)]
enum Stage {
    Running,
    /// TERM was sent. KILL follows at this time.
    Asked(EndCause, Instant),
    /// KILL was sent. We stop waiting at this time.
    Killed(EndCause, Instant),
}

/// A running command.
struct RunningCommand {
    group: Option<Pid>,
    grace: Duration,
    deadline: Instant,
    silence: Option<Duration>,
    /// The time of the last output or CPU activity.
    last_sign: Instant,
    work: Option<CommandWork>,
    stage: Stage,
    end: Option<Status>,
    drain_until: Option<Instant>,
    tail: Tail,
}

impl RunningCommand {
    fn new(cmd: &Cmd, child: &Child, grace: Duration) -> Self {
        let now = Instant::now();
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Self {
            group,
            work: group.map(CommandWork::of),
            grace,
            deadline: now + cmd.deadline,
            silence: cmd.silence,
            last_sign: now,
            stage: Stage::Running,
            end: None,
            drain_until: None,
            tail: Tail::default(),
        }
    }

    fn ended(&self) -> bool {
        self.end.is_some()
    }

    fn exited(&mut self, status: ExitStatus) {
        self.end = Some(match (status.code(), status.signal()) {
            (Some(code), _) => Status::Exited(code),
            (None, Some(signal)) => Status::Signalled(signal),
            // `wait` only reports exited processes, which have one of the two.
            (None, None) => Status::Exited(-1),
        });
        self.drain_until = Some(Instant::now() + DRAIN);
        if !matches!(self.stage, Stage::Running) {
            // The leader exited after TERM. Now kill the rest of its group.
            signal(self.group, Signal::SIGKILL);
        }
    }

    /// The time of the next limit.
    fn due(&self) -> Instant {
        if let Some(until) = self.drain_until {
            return until;
        }
        match self.stage {
            Stage::Running => self
                .silence
                .map(|silence| self.last_sign + silence)
                .map_or(self.deadline, |silent| silent.min(self.deadline)),
            Stage::Asked(_, until) | Stage::Killed(_, until) => until,
        }
    }

    /// Handles a reached limit. Returns whether to stop waiting.
    fn bound_reached(&mut self) -> bool {
        if self.drain_until.is_some() {
            return true;
        }
        let now = Instant::now();
        self.stage = match self.stage {
            Stage::Running => {
                let bound = if now >= self.deadline {
                    EndCause::Deadline
                } else if self.works() {
                    self.last_sign = now;
                    return false;
                } else {
                    EndCause::Silence
                };
                signal(self.group, Signal::SIGTERM);
                Stage::Asked(bound, now + self.grace)
            }
            Stage::Asked(bound, _) => {
                signal(self.group, Signal::SIGKILL);
                Stage::Killed(bound, now + AFTER_KILL)
            }
            Stage::Killed(..) => return true,
        };
        false
    }

    /// Whether the command has used CPU time. A compiler may print nothing for a long time, and
    /// killing it would leave a package half-configured.
    fn works(&mut self) -> bool {
        let seconds = self.last_sign.elapsed().as_secs_f64();
        let works = (self.work.as_mut()).is_some_and(|work| work.was_busy(seconds));
        if works {
            tracing::info!(seconds, "a command without output is still working");
        }
        works
    }

    fn result(self, cmd: &Cmd, stdout: String, stderr: String) -> Result<Output, ExecError> {
        let command = cmd.line();
        let tail = self.tail.text();
        match (self.stage, self.end) {
            (Stage::Running, Some(status)) => Ok(Output {
                status,
                stdout,
                stderr,
            }),
            (Stage::Asked(EndCause::Silence, _) | Stage::Killed(EndCause::Silence, _), _) => {
                Err(ExecError::Silent {
                    command,
                    after: cmd.silence.unwrap_or_default(),
                    tail,
                })
            }
            _ => Err(ExecError::Deadline {
                command,
                after: cmd.deadline,
                tail,
            }),
        }
    }
}

/// An output stream of the child.
struct Pipe<R> {
    stream: Stream,
    reader: Option<R>,
    buffer: Box<[u8]>,
    lines: Lines,
    kept: KeptOutput,
}

impl<R: AsyncRead + Unpin> Pipe<R> {
    fn new(stream: Stream, reader: Option<R>) -> Self {
        Self {
            stream,
            reader,
            buffer: vec![0; 16 << 10].into_boxed_slice(),
            lines: Lines::default(),
            kept: KeptOutput::default(),
        }
    }

    fn closed(&self) -> bool {
        self.reader.is_none()
    }

    /// Reads data. Never completes after the stream is closed.
    async fn read(&mut self) -> io::Result<usize> {
        match &mut self.reader {
            Some(reader) => reader.read(&mut self.buffer).await,
            None => std::future::pending().await,
        }
    }

    fn take(
        &mut self,
        read: io::Result<usize>,
        run: &mut RunningCommand,
        on_line: &mut OnLine<'_>,
    ) -> io::Result<()> {
        let count = read?;
        if count == 0 {
            self.reader = None;
            return Ok(());
        }
        run.last_sign = Instant::now();
        let bytes = &self.buffer[..count];
        self.kept.add(bytes);
        self.lines.feed(bytes, |line| {
            run.tail.add(line);
            on_line(self.stream, line);
        });
        Ok(())
    }

    fn finish(&mut self, run: &mut RunningCommand, on_line: &mut OnLine<'_>) {
        self.lines.finish(|line| {
            run.tail.add(line);
            on_line(self.stream, line);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::secret::Secret;

    fn sh(script: &str) -> Cmd {
        Cmd::new("/bin/sh", ["-c", script])
    }

    async fn run(cmd: &Cmd) -> Result<Output, ExecError> {
        let exec = RealExec {
            grace: Duration::from_millis(300),
        };
        exec.run(cmd, &mut |_, _| {}).await
    }

    #[tokio::test]
    async fn lines_and_complete_output_are_returned() {
        let mut lines = Vec::new();
        let cmd = sh("echo one; printf 'ten\\rtwenty\\r\\n'; echo bad >&2; printf end; exit 3");
        let output = RealExec::default()
            .run(&cmd, &mut |stream, line| {
                lines.push((stream, line.to_owned()));
            })
            .await
            .unwrap();
        assert_eq!(output.status, Status::Exited(3));
        assert_eq!(output.stdout, "one\nten\rtwenty\r\nend");
        assert_eq!(output.stderr, "bad\n");
        let out: Vec<_> = lines
            .iter()
            .filter(|(stream, _)| *stream == Stream::Out)
            .map(|(_, line)| line.as_str())
            .collect();
        assert_eq!(out, ["one", "ten", "twenty", "end"]);
        assert!(lines.contains(&(Stream::Err, "bad".to_owned())));
    }

    #[tokio::test]
    async fn environment_contains_only_our_variables() {
        let none: [&str; 0] = [];
        let cmd =
            Cmd::new("env", none).secret_env("https_proxy", &Secret::new("http://proxy:3128"));
        let output = run(&cmd).await.unwrap();
        let mut lines: Vec<_> = output.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "DOCKER_CONTEXT=default",
                "HOME=/root",
                "LC_ALL=C",
                &format!("PATH={PATH}"),
                "https_proxy=http://proxy:3128"
            ]
        );
    }

    #[tokio::test]
    async fn stdin_is_given_or_empty() {
        let none: [&str; 0] = [];
        let cmd = Cmd::new("cat", none);
        assert_eq!(run(&cmd).await.unwrap().stdout, "");
        // More than the pipe capacity, in both directions at the same time.
        let long = "x".repeat(1 << 20);
        let cmd = cmd.stdin(Secret::new(long.clone()));
        assert_eq!(run(&cmd).await.unwrap().stdout, long);
        // A program that does not read its input is not an error.
        let cmd = Cmd::new("true", none).stdin(Secret::new(long));
        assert!(run(&cmd).await.unwrap().ok());
    }

    #[tokio::test]
    async fn missing_program_is_reported() {
        let none: [&str; 0] = [];
        for program in ["no-such-program-here", "/no/such/program"] {
            let error = run(&Cmd::new(program, none)).await.unwrap_err();
            assert_eq!(
                error,
                ExecError::NotFound {
                    program: program.to_owned()
                }
            );
        }
        for program in ["relative/path", "/etc/passwd"] {
            let error = run(&Cmd::new(program, none)).await.unwrap_err();
            assert!(matches!(error, ExecError::Spawn { .. }), "{error:?}");
        }
    }

    #[tokio::test]
    async fn signal_is_not_an_exit_status() {
        let output = run(&sh("kill -9 $$")).await.unwrap();
        assert_eq!(output.status, Status::Signalled(9));
    }

    #[tokio::test]
    async fn deadline_kills_a_group_that_ignores_term() {
        // The grandchild would keep the pipe open for half a minute.
        let cmd =
            sh("trap '' TERM; sleep 31 & echo $!; wait; sleep 32").deadline(Duration::from_secs(2));
        let start = Instant::now();
        let error = run(&cmd).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(20));
        let ExecError::Deadline { tail, .. } = error else {
            panic!("{error:?}");
        };
        let grandchild: i32 = tail.trim().parse().unwrap();
        // A process dies some time after the signal. A zombie counts as dead.
        let stat = format!("/proc/{grandchild}/stat");
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        while lives() {
            assert!(start.elapsed() < Duration::from_secs(20), "still alive");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn silent_command_is_killed_and_output_keeps_it_alive() {
        let cmd = sh("for i in 1 2 3 4 5; do echo $i; sleep 0.2; done; echo quiet; sleep 33")
            .silence(Duration::from_millis(700));
        let error = run(&cmd).await.unwrap_err();
        let ExecError::Silent { tail, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(tail, "1\n2\n3\n4\n5\nquiet");
    }

    #[tokio::test]
    async fn busy_silent_command_is_not_killed() {
        let script = "end=$(($(date +%s%N) + 3500000000)); \
                      while [ $(date +%s%N) -lt $end ]; do :; done; echo done; sleep 35";
        let cmd = sh(script).silence(Duration::from_secs(2));
        let error = run(&cmd).await.unwrap_err();
        let ExecError::Silent { tail, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(tail, "done");
    }

    #[tokio::test]
    async fn background_daemon_does_not_block_us() {
        let start = Instant::now();
        let output = run(&sh("sleep 20 & echo started $!")).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(output.ok());
        let pid = output.stdout.trim().rsplit(' ').next().unwrap();
        // The background process keeps running, because it may be a service that the program
        // started on purpose.
        let pid = Pid::from_raw(pid.parse().unwrap());
        nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn dropped_command_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let cmd = sh(&format!("echo $$ > {}; sleep 34", file.display()));
        let given_up = tokio::time::timeout(Duration::from_millis(500), run(&cmd)).await;
        assert!(given_up.is_err());
        let pid: i32 = std::fs::read_to_string(&file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        assert!(state.is_err() || state.unwrap().contains(") Z "));
    }
}
