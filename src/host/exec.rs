//! Child processes: argument vectors, a deadline, no shell, stdin closed, `LC_ALL=C`.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::model::secret::Secret;

/// How long a query may take before it counts as hung.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(60);

/// How many of the last lines of a failed command an error carries.
pub const TAIL_LINES: usize = 20;

/// A command: what runs, and how long it may take.
#[derive(Debug, Clone, PartialEq)]
pub struct Cmd {
    /// The program: a bare name found on a fixed, safe `PATH`, or an absolute path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment beside `PATH` and `LC_ALL=C`.
    pub env: Vec<(String, String)>,
    /// More of it that must not be seen.
    pub secret_env: Vec<(String, Secret)>,
    /// Written to its standard input; without it stdin is `/dev/null`.
    pub stdin: Option<Secret>,
    /// After this it is ended (TERM, then KILL, to its whole process group).
    pub deadline: Duration,
    /// It is ended after this time without a line of output and without processor time of its
    /// processes. Processor time that it used while it still printed may extend the time once.
    pub silence: Option<Duration>,
}

/// A [`Cmd`] that promises to change nothing on the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Query(Cmd);

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with status {code}"),
            Self::Signalled(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// The status and the output of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Output {
    /// How it ended.
    pub status: Status,
    /// Standard output, whole.
    pub stdout: String,
    /// Standard error, whole.
    pub stderr: String,
}

/// What can go wrong around a command.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// No such program.
    #[error("`{program}` is not installed")]
    NotFound { program: String },
    /// The operating system refused to start it, or reading its output failed.
    #[error("`{command}` could not be run: {why}")]
    Spawn {
        /// The command line.
        command: String,
        /// The operating system's words.
        why: String,
    },
    /// It is not executed: with `--root` and in a recording only files are read.
    #[error("`{command}` is not run: {why}")]
    NotAsked {
        /// The command line.
        command: String,
        /// Why not.
        why: String,
    },
    /// It took too long.
    #[error("`{command}` did not end within {} s (last output: {tail})", .after.as_secs())]
    Deadline {
        /// The command line.
        command: String,
        /// The deadline.
        after: Duration,
        /// Its last lines.
        tail: String,
    },
    /// It printed nothing and did not work for too long.
    #[error("`{command}` printed nothing and did nothing for {} s and was ended (last output: {tail})", .after.as_secs())]
    Silent {
        /// The command line.
        command: String,
        /// The bound on silence.
        after: Duration,
        /// Its last lines.
        tail: String,
    },
    /// It ended badly.
    #[error("`{command}` {status}{}", with_tail(.tail))]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: Status,
        /// The last lines of its error output, or of its output if that is empty.
        tail: String,
    },
    /// It ended well but said something that cannot be understood.
    #[error("`{command}` printed what cannot be understood: {why}")]
    Unexpected {
        /// The command line.
        command: String,
        /// What was expected and what was there.
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
    /// A command with [`QUERY_DEADLINE`]; raise it with [`Cmd::deadline`]. No value that others can choose may be taken for an
    /// option: it stands behind `--`, or behind the `=` of one; `tools/tests.rs` holds that.
    #[must_use]
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
            deadline: QUERY_DEADLINE,
            silence: None,
        }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Bounds silence, as long as nothing works in it: a compiler may print nothing.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = Some(silence);
        self
    }

    /// Adds to the environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a secret to the environment.
    #[must_use]
    pub fn secret_env(mut self, key: &str, value: &Secret) -> Self {
        self.secret_env.push((key.to_owned(), value.clone()));
        self
    }

    /// Gives it standard input.
    #[must_use]
    pub fn stdin(mut self, input: Secret) -> Self {
        self.stdin = Some(input);
        self
    }

    /// The command line, for people.
    #[must_use]
    pub fn line(&self) -> String {
        std::iter::once(&self.program)
            .chain(&self.args)
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl Query {
    /// Declares that the command changes nothing.
    #[must_use]
    #[cfg_attr(test, track_caller)]
    pub fn new<A: Into<String>>(program: &str, args: impl IntoIterator<Item = A>) -> Self {
        Self(Cmd::new(program, args))
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.0.deadline = deadline;
        self
    }

    /// Adds to the environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.0 = self.0.env(key, value);
        self
    }

    /// Gives it standard input.
    #[must_use]
    pub fn stdin(mut self, input: Secret) -> Self {
        self.0.stdin = Some(input);
        self
    }

    /// The command.
    #[must_use]
    pub fn cmd(&self) -> &Cmd {
        &self.0
    }
}

impl Output {
    /// Whether it exited with 0.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.status == Status::Exited(0)
    }

    /// Whether the middle of standard output is missing, because the output was too large.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.stdout.lines().any(|line| line.starts_with(LEFT_OUT))
    }

    /// Hands out the lines of an output that is there already: standard output first, because how
    /// the two were mixed is not known any more.
    pub fn hand_out(&self, on_line: &mut OnLine<'_>) {
        for (stream, text) in [(Stream::Out, &self.stdout), (Stream::Err, &self.stderr)] {
            for line in text.lines() {
                on_line(stream, line);
            }
        }
    }

    /// The output if the command exited with 0.
    ///
    /// # Errors
    /// [`ExecError::Failed`] with the tail of what it printed.
    pub fn success(self, cmd: &Cmd) -> Result<Self, ExecError> {
        if self.ok() {
            return Ok(self);
        }
        Err(self.failure(cmd))
    }

    /// The output as an error: for a command whose status does not tell everything.
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

/// How the line begins that replaces the middle of an output that is too large.
pub const LEFT_OUT: &str = "[… ";

/// The last [`TAIL_LINES`] lines of a text.
#[must_use]
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Is handed each line as it comes. (An alias, because `async_trait` would tie the line's lifetime
/// to the call if it were written out in the method.)
pub type OnLine<'a> = dyn FnMut(Stream, &str) + Send + 'a;

/// Runs commands.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Runs one to its end, handing each line out as it comes.
    ///
    /// # Errors
    /// When it cannot be started or a bound is exceeded; a bad status is in the [`Output`].
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError>;
}

/// Where the commands of a test are built.
#[cfg(test)]
pub(crate) mod built {
    use std::{cell::RefCell, collections::BTreeSet, panic::Location};

    thread_local! {
        static PLACES: RefCell<BTreeSet<(String, u32)>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(at: &Location<'_>) {
        PLACES.with_borrow_mut(|places| places.insert((at.file().to_owned(), at.line())));
    }

    /// File and line of each place where this thread has built a command.
    pub(crate) fn places() -> BTreeSet<(String, u32)> {
        PLACES.with_borrow(Clone::clone)
    }
}
