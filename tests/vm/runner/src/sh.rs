//! Runs a program with a deadline. Its output is kept and, on request, shown while it runs.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::out;

/// Grace period for a reader after a program has exited, because a daemon that it left behind may hold the pipe open
/// forever.
const READER_GRACE: Duration = Duration::from_secs(2);

/// A program to run.
#[derive(Clone, Debug)]
pub struct Cmd {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<PathBuf>,
    stdin: Vec<u8>,
    deadline: Duration,
    show: Option<String>,
    terminal: bool,
}

/// A shell script of `files/`, compiled in. Messages contain its name instead of its text.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub name: &'static str,
    pub text: &'static str,
}

/// A script of `files/` by its file name.
macro_rules! script {
    ($name:literal) => {
        $crate::sh::Script {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/files/", $name)),
        }
    };
}
pub(crate) use script;

impl Script {
    /// Its command line.
    pub fn argv(self, arguments: &[&str]) -> Vec<String> {
        let argv = [&["/bin/sh", "-c", self.text, self.name], arguments].concat();
        argv.into_iter().map(String::from).collect()
    }

    /// Runs it on the host.
    pub fn run(self, arguments: &[&str]) -> Cmd {
        Cmd::new(self.argv(arguments))
    }

    /// The same. Its mounts disappear with it, even if it is killed.
    pub fn mounting(self, arguments: &[&str]) -> Cmd {
        let apart = ["unshare", "--mount", "--propagation=private"].map(String::from);
        Cmd::new(apart.into_iter().chain(self.argv(arguments)))
    }
}

/// A path as an argument.
pub fn path(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

/// A command line for messages, without the text of scripts.
fn line(argv: &[String]) -> String {
    let told = |word: &String| match word.starts_with("#!") {
        true => "...".to_string(),
        false => word.clone(),
    };
    argv.iter().map(told).collect::<Vec<_>>().join(" ")
}

/// The result of a program.
#[derive(Clone, Debug)]
pub struct Done {
    /// The command line, for messages.
    pub line: String,
    /// The exit status; 128 plus the signal number after a signal, as in a shell.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
    /// Whether it was killed at its deadline.
    pub late: bool,
}

impl Cmd {
    /// A program and its arguments.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Cmd {
        Cmd {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            stdin: Vec::new(),
            deadline: Duration::from_secs(600),
            show: None,
            terminal: false,
        }
    }

    pub fn env(mut self, key: &str, value: impl Into<String>) -> Cmd {
        self.env.push((key.into(), value.into()));
        self
    }

    pub fn cwd(mut self, dir: &Path) -> Cmd {
        self.cwd = Some(dir.to_path_buf());
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Cmd {
        self.stdin = bytes.into();
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Cmd {
        self.deadline = deadline;
        self
    }

    /// Shows each line while the program runs, behind `prefix`.
    pub fn show(mut self, prefix: &str) -> Cmd {
        self.show = Some(prefix.into());
        self
    }

    /// Gives the program our own stdout and stderr, so that it uses our terminal, if any. The output is not kept.
    pub fn terminal(mut self) -> Cmd {
        self.terminal = true;
        self
    }

    /// Runs it and returns its result. Fails only if it could not be started.
    pub fn run(self) -> Result<Done> {
        let line = line(&self.argv);
        let (program, arguments) = self.argv.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(self.env.iter().cloned())
            .process_group(0);
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        command.stdin(if self.stdin.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        });
        if !self.terminal {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let start = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let group = Pid::from_raw(i32::try_from(child.id()).context("a process id too large")?);
        if let Some(mut pipe) = child.stdin.take() {
            let bytes = self.stdin.clone();
            // A program that exits without reading its input breaks the pipe; its exit status shows that.
            thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let stdout = child
            .stdout
            .take()
            .map(|pipe| Reader::start(pipe, self.show.clone()));
        let stderr = child
            .stderr
            .take()
            .map(|pipe| Reader::start(pipe, self.show.clone()));
        let (status, late) = wait(&mut child, group, start + self.deadline)?;
        let text = |reader: Option<Reader>| reader.map(Reader::finish).unwrap_or_default();
        Ok(Done {
            line,
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout: text(stdout),
            stderr: text(stderr),
            took: start.elapsed(),
            late,
        })
    }

    /// Runs it and fails unless it exits with 0.
    pub fn ok(self) -> Result<Done> {
        self.run()?.check()
    }
}

impl Done {
    /// Fails, with the end of its output, unless it exited with 0.
    pub fn check(self) -> Result<Done> {
        if self.code == 0 && !self.late {
            return Ok(self);
        }
        bail!(
            "`{}` {}\n{}",
            self.line,
            self.verdict(),
            self.output_tail(20)
        );
    }

    /// For example "exited with 3 after 1.2 s".
    pub fn verdict(&self) -> String {
        let took = out::seconds(self.took);
        match self.late {
            true => format!("was killed at its deadline, after {took} s"),
            false => format!("exited with {} after {took} s", self.code),
        }
    }

    /// The last lines of both outputs, so that one long output does not hide the other.
    pub fn output_tail(&self, lines: usize) -> String {
        let ends = [&self.stdout, &self.stderr].map(|text| out::tail(text.trim_end(), lines));
        ends.join("\n").trim().to_string()
    }
}

/// Starts a program that continues in its own process group, with its output in a file.
pub fn daemon(argv: &[String], log: &Path) -> Result<Child> {
    let line = line(argv);
    let (program, arguments) = argv.split_first().context("an empty command")?;
    let file =
        std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let errors = file.try_clone().context("cannot share a log")?;
    Command::new(program)
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))
}

fn wait(child: &mut Child, group: Pid, end: Instant) -> Result<(std::process::ExitStatus, bool)> {
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return Ok((status, false));
        }
        if Instant::now() >= end {
            kill_group(group);
            return Ok((child.wait().context("cannot wait for a child")?, true));
        }
        resume(group);
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Continues a stopped program. A machine that shuts down stops its processes before it kills them, and `nsenter` stops
/// with its child, so without this the machine would never be down.
fn resume(program: Pid) {
    let stopped = waitid(
        Id::Pid(program),
        WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED,
    );
    if matches!(stopped, Ok(WaitStatus::Stopped(..))) {
        let _ = kill(program, Signal::SIGCONT);
    }
}

/// A group that no longer exists needs no signal.
fn kill_group(group: Pid) {
    let _ = killpg(group, Signal::SIGKILL);
}

struct Reader {
    kept: Arc<Mutex<Vec<u8>>>,
    thread: thread::JoinHandle<()>,
}

impl Reader {
    fn start(pipe: impl Read + Send + 'static, show: Option<String>) -> Reader {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&kept);
        let thread = thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                if let Some(prefix) = &show {
                    out::say(format!(
                        "{prefix}{}",
                        String::from_utf8_lossy(&line).trim_end()
                    ));
                }
                if let Ok(mut kept) = sink.lock() {
                    kept.append(&mut line);
                }
                line.clear();
            }
        });
        Reader { kept, thread }
    }

    fn finish(self) -> String {
        let end = Instant::now() + READER_GRACE;
        while !self.thread.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        let kept = self
            .kept
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        String::from_utf8_lossy(&kept).into_owned()
    }
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Cmd {
        Cmd::new(["/bin/sh", "-c", script])
    }

    #[test]
    fn status_and_output_are_returned() {
        let done = shell("echo a; echo b >&2; cat; exit 3")
            .stdin("in")
            .run()
            .unwrap();
        assert_eq!(
            (done.code, done.stdout.as_str(), done.stderr.as_str()),
            (3, "a\nin", "b\n")
        );
        assert!(done.check().is_err());
    }

    #[test]
    fn deadline_kills_process_group() {
        let done = shell("sleep 60 & sleep 60")
            .deadline(Duration::from_millis(200))
            .run()
            .unwrap();
        assert!(
            done.late && done.took < Duration::from_secs(10),
            "{}",
            done.verdict()
        );
    }

    #[test]
    fn remaining_daemon_does_not_delay_result() {
        let done = shell("setsid sleep 20 & echo x").run().unwrap();
        assert_eq!(done.stdout, "x\n");
        assert!(done.took < Duration::from_secs(10));
    }
}
