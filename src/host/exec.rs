//! Child processes: argument vectors, deadline, no shell, no stdin, `LC_ALL=C`.

use std::time::Duration;

use async_trait::async_trait;
use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::model::secret::Secret;

/// The deadline of a query.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(60);

/// The number of output lines in the error of a failed command.
pub const TAIL_LINES: usize = 20;

/// A command to run, with its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Cmd {
    /// The program: an absolute path, or a name that is looked up in a fixed, safe `PATH`.
    pub program: String,
    pub args: Vec<String>,
    /// The environment in addition to `PATH` and `LC_ALL=C`.
    pub env: Vec<(String, String)>,
    /// Additional environment with secret values.
    pub secret_env: Vec<(String, Secret)>,
    /// The standard input. `/dev/null` by default.
    pub stdin: Option<Secret>,
    /// The working directory. `/` by default.
    pub directory: Utf8PathBuf,
    /// The command is killed after this time (TERM, then KILL, sent to its process group).
    pub deadline: Duration,
    /// The command is killed after this time without output and without CPU time of its processes. The
    /// CPU time is only checked when this time has passed since the last output, so CPU time from before
    /// that output may extend the time once.
    pub silence: Option<Duration>,
}

/// A [`Cmd`] that does not change the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Query(Cmd);

/// The source of an output line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// How a command finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    Exited(i32),
    /// It was killed by this signal.
    Signalled(i32),
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with status {code}"),
            Self::Signalled(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// The status and the output of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Output {
    pub status: Status,
    /// The complete standard output.
    pub stdout: String,
    /// The complete standard error.
    pub stderr: String,
}

/// An error of a command.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// The program does not exist.
    #[error("`{program}` is not installed")]
    NotFound { program: String },
    /// The operating system failed to start the command, or its output could not be read.
    #[error("`{command}` could not be run: {why}")]
    Spawn {
        command: String,
        /// The error of the operating system.
        why: String,
    },
    /// The command must not be executed: with `--root` and in a recording, only files are read.
    #[error("`{command}` was not run: {why}")]
    NotQueried {
        command: String,
        /// The reason.
        why: String,
    },
    /// It exceeded its deadline.
    #[error("`{command}` timed out after {} s (last output: {tail})", .after.as_secs())]
    Deadline {
        command: String,
        after: Duration,
        /// The last output lines.
        tail: String,
    },
    /// It was killed because it was idle for too long without output.
    #[error("`{command}` was killed after {} s without output or CPU time (last output: {tail})", .after.as_secs())]
    Silent {
        command: String,
        /// The limit.
        after: Duration,
        /// The last output lines.
        tail: String,
    },
    /// It failed.
    #[error("`{command}` {status}{}", with_tail(.tail))]
    Failed {
        command: String,
        status: Status,
        /// The last lines of standard error, or of standard output if that is empty.
        tail: String,
    },
    /// It succeeded, but its output could not be parsed.
    #[error("unexpected output of `{command}`: {why}")]
    Unexpected {
        command: String,
        /// The expected and the actual output.
        why: String,
    },
}

fn with_tail(tail: &str) -> String {
    if tail.is_empty() {
        String::new()
    } else {
        format!(":\n{tail}")
    }
}

impl Cmd {
    /// Creates a command with [`QUERY_DEADLINE`], which [`Cmd::deadline`] changes. Untrusted values
    /// must not be parsed as options: pass them after `--` or as `--option=VALUE`. `tools/tests.rs`
    /// enforces this.
    #[cfg_attr(test, track_caller)]
    pub fn new<A: Into<String>>(program: &str, args: impl IntoIterator<Item = A>) -> Self {
        #[cfg(test)]
        built::note(std::panic::Location::caller());
        Self {
            program: program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            secret_env: Vec::new(),
            stdin: None,
            directory: Utf8PathBuf::from("/"),
            deadline: QUERY_DEADLINE,
            silence: None,
        }
    }

    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets a limit for idle time without output. A busy compiler may print nothing.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = Some(silence);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds an environment variable with a secret value.
    #[must_use]
    pub fn secret_env(mut self, key: &str, value: &Secret) -> Self {
        self.secret_env.push((key.to_owned(), value.clone()));
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn stdin(mut self, input: Secret) -> Self {
        self.stdin = Some(input);
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<Utf8PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// The human-readable command line.
    pub fn line(&self) -> String {
        std::iter::once(&self.program)
            .chain(&self.args)
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl Query {
    /// Creates a command that does not change the machine.
    #[cfg_attr(test, track_caller)]
    pub fn new<A: Into<String>>(program: &str, args: impl IntoIterator<Item = A>) -> Self {
        Self(Cmd::new(program, args))
    }

    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.0.deadline = deadline;
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.0 = self.0.env(key, value);
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn stdin(mut self, input: Secret) -> Self {
        self.0.stdin = Some(input);
        self
    }

    pub fn cmd(&self) -> &Cmd {
        &self.0
    }
}

impl Output {
    pub fn ok(&self) -> bool {
        self.status == Status::Exited(0)
    }

    /// Whether the middle of standard output was dropped because it was too large.
    pub fn is_cut(&self) -> bool {
        self.stdout.lines().any(|line| line.starts_with(LEFT_OUT))
    }

    /// Passes the lines of a complete output to a callback. Standard output comes first, because
    /// the original order is unknown.
    pub fn hand_out(&self, on_line: &mut OnLine<'_>) {
        for (stream, text) in [(Stream::Out, &self.stdout), (Stream::Err, &self.stderr)] {
            for line in text.lines() {
                on_line(stream, line);
            }
        }
    }

    /// Returns the output if the command exited with 0.
    ///
    /// # Errors
    /// [`ExecError::Failed`] with the last lines of the output.
    pub fn success(self, cmd: &Cmd) -> Result<Self, ExecError> {
        if self.ok() {
            return Ok(self);
        }
        Err(self.failure(cmd))
    }

    /// Converts the output to an error, for callers that do not decide by the exit status alone.
    #[must_use]
    pub fn failure(&self, cmd: &Cmd) -> ExecError {
        let said = if self.stderr.trim().is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        ExecError::Failed {
            command: cmd.line(),
            status: self.status.clone(),
            tail: tail(said),
        }
    }
}

/// The prefix of the line that replaces the middle of an output that is too large.
pub const LEFT_OUT: &str = "[… ";

/// Returns the last [`TAIL_LINES`] lines of a text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// A callback for each output line. (An alias, because `async_trait` would tie the line's lifetime
/// to the call if it were written out in the method.)
pub type OnLine<'a> = dyn FnMut(Stream, &str) + Send + 'a;

/// Runs commands.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Runs a command until it exits, and passes on each output line immediately.
    ///
    /// # Errors
    /// If it cannot be started or exceeds a limit. A failure status is in the [`Output`].
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError>;
}

/// Records the source locations where a test creates commands.
#[cfg(test)]
pub(crate) mod built {
    use std::{cell::RefCell, collections::BTreeSet, panic::Location};

    thread_local! {
        static PLACES: RefCell<BTreeSet<(String, u32)>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(at: &Location<'_>) {
        PLACES.with_borrow_mut(|places| places.insert((at.file().to_owned(), at.line())));
    }

    /// Returns file and line of each command created by this thread.
    pub(crate) fn places() -> BTreeSet<(String, u32)> {
        PLACES.with_borrow(Clone::clone)
    }
}
