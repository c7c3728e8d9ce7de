//! What a run saw of a machine, kept in a folder: `check --record DIR` writes it, tests replay it.
//!
//! `manifest.json` holds every answer by what was asked; `files/` holds the contents at their real
//! paths, with the links that led there, so that `--root DIR/files` works as well. What may be a
//! secret is left out and named as left out.

mod recorder;
mod replay;
mod sensitive;

use std::collections::BTreeMap;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use recorder::{Recording, record};
pub use replay::replay;

use super::files::Room;
use super::{Cmd, ExecError, FilesError, Nvml, Output, Stat};

/// The version of the format. It only grows.
const SCHEMA: u32 = 1;

/// The manifest's name in the folder.
const MANIFEST: &str = "manifest.json";

/// The name of the folder with the contents.
const FILES: &str = "files";

/// What can go wrong with a recording, beside what is recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder holds something already.
    #[error("record to `{folder}`: it is not empty")]
    NotEmpty {
        /// The folder.
        folder: Utf8PathBuf,
    },
    /// The folder cannot be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// There is no recording.
    #[error("replay `{folder}`: there is no `{MANIFEST}` in it")]
    Missing {
        /// The folder.
        folder: Utf8PathBuf,
    },
    /// The manifest is none.
    #[error("read `{path}`")]
    Manifest {
        /// The manifest.
        path: Utf8PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// A later version wrote it.
    #[error("read `{path}`: its schema is {found}, this version knows {SCHEMA}")]
    Schema {
        /// The manifest.
        path: Utf8PathBuf,
        /// Its schema.
        found: u32,
    },
}

/// Every answer, by what was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Manifest {
    schema: u32,
    tool: String,
    recorded_at: jiff::Timestamp,
    reads: BTreeMap<Utf8PathBuf, Answer<Content>>,
    stats: BTreeMap<Utf8PathBuf, Answer<Option<Stat>>>,
    lists: BTreeMap<Utf8PathBuf, Answer<Vec<String>>>,
    resolved: BTreeMap<Utf8PathBuf, Answer<Option<Utf8PathBuf>>>,
    rooms: BTreeMap<Utf8PathBuf, Answer<Room>>,
    commands: Vec<Command>,
    nvml: Option<Nvml>,
}

/// An answer of the operating system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer<T> {
    Is(T),
    Error(Fault),
}

/// An error of the operating system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Fault {
    errno: Option<i32>,
    why: String,
}

/// Where a content is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Content {
    /// Nothing was at the path.
    Absent,
    /// Below `files`, at this path.
    At(Utf8PathBuf),
    /// It was there and is not kept, for this reason.
    LeftOut(String),
}

/// A command and what it left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Command {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    end: End,
}

/// How a command ended, or why there is no end of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
enum End {
    Output(Output),
    NotFound,
    Deadline { after_ms: u64, tail: String },
    Silent { after_ms: u64, tail: String },
    NotRun { why: String },
    LeftOut(String),
}

impl Command {
    fn is(&self, cmd: &Cmd) -> bool {
        self.program == cmd.program && self.args == cmd.args && self.env == cmd.env
    }
}

impl<T: Clone> Answer<T> {
    fn of(result: &Result<T, FilesError>) -> Self {
        match result {
            Ok(value) => Self::Is(value.clone()),
            Err(error) => Self::Error(Fault::of(error)),
        }
    }

    fn give(&self, verb: &'static str, path: &Utf8Path) -> Result<T, FilesError> {
        match self {
            Self::Is(value) => Ok(value.clone()),
            Self::Error(fault) => Err(fault.give(verb, path)),
        }
    }
}

impl Fault {
    fn of(error: &FilesError) -> Self {
        match error {
            FilesError::Io { source, .. } => Self {
                errno: source.raw_os_error(),
                why: source.to_string(),
            },
            error @ FilesError::NotText { .. } => Self {
                errno: None,
                why: error.to_string(),
            },
        }
    }

    fn give(&self, verb: &'static str, path: &Utf8Path) -> FilesError {
        FilesError::Io {
            verb,
            path: path.to_owned(),
            source: self.errno.map_or_else(
                || io::Error::other(self.why.clone()),
                io::Error::from_raw_os_error,
            ),
            disk: None,
        }
    }
}

/// The place of a path below a folder: `/etc/x` below `files` is `files/etc/x`.
fn below(folder: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    folder.join(path.strip_prefix("/").unwrap_or(path))
}

impl End {
    fn of(result: &Result<Output, ExecError>) -> Self {
        let ms = |duration: &std::time::Duration| {
            u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
        };
        match result {
            Ok(output) => Self::Output(output.clone()),
            Err(ExecError::NotFound { .. }) => Self::NotFound,
            Err(ExecError::Deadline { after, tail, .. }) => Self::Deadline {
                after_ms: ms(after),
                tail: tail.clone(),
            },
            Err(ExecError::Silent { after, tail, .. }) => Self::Silent {
                after_ms: ms(after),
                tail: tail.clone(),
            },
            Err(
                ExecError::Spawn { why, .. }
                | ExecError::NotAsked { why, .. }
                | ExecError::Unexpected { why, .. },
            ) => Self::NotRun { why: why.clone() },
            Err(error @ ExecError::Failed { .. }) => Self::NotRun {
                why: error.to_string(),
            },
        }
    }

    fn give(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        let command = cmd.line();
        let after = |ms: &u64| std::time::Duration::from_millis(*ms);
        Err(match self {
            Self::Output(output) => return Ok(output.clone()),
            Self::NotFound => ExecError::NotFound {
                program: cmd.program.clone(),
            },
            Self::Deadline { after_ms, tail } => ExecError::Deadline {
                command,
                after: after(after_ms),
                tail: tail.clone(),
            },
            Self::Silent { after_ms, tail } => ExecError::Silent {
                command,
                after: after(after_ms),
                tail: tail.clone(),
            },
            Self::NotRun { why } => ExecError::Spawn {
                command,
                why: why.clone(),
            },
            Self::LeftOut(why) => ExecError::Spawn {
                command,
                why: format!("left out of the recording: {why}"),
            },
        })
    }
}

#[cfg(test)]
mod tests;
