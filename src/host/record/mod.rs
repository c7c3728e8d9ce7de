//! What a run saw of a machine, kept in a folder: `check --record DIR` writes it. A replay in the
//! tests shows that nothing is missing.
//!
//! `manifest.json` holds every answer by what was asked; `files/` holds the contents at their real
//! paths, with the links that led there, so that `--root DIR/files` works as well. What may be a
//! secret is left out and named as left out.

mod recorder;
#[cfg(test)]
mod replay;
mod sensitive;
mod tree;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use recorder::{Recording, record};

use super::files::Room;
use super::{Cmd, CudaView, ExecError, FilesError, Nvml, Output, Stat};

/// The version of the format. It only grows.
const SCHEMA: u32 = 1;

/// The manifest's name in the folder.
const MANIFEST: &str = "manifest.json";

/// The name of the folder with the contents.
const FILES: &str = "files";

/// Why a recording cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder holds something already.
    #[error("record to `{folder}`: it is not empty")]
    NotEmpty { folder: Utf8PathBuf },
    /// The folder cannot be read or written.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The manifest cannot be written as JSON.
    #[error("write `{path}`")]
    Manifest {
        /// The manifest.
        path: Utf8PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
}

/// Every answer, by its question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RecordManifest {
    schema: u32,
    tool: String,
    recorded_at: jiff::Timestamp,
    reads: BTreeMap<Utf8PathBuf, RecordedAnswer<RecordedContent>>,
    stats: BTreeMap<Utf8PathBuf, RecordedAnswer<Option<Stat>>>,
    lists: BTreeMap<Utf8PathBuf, RecordedAnswer<Vec<String>>>,
    resolved: BTreeMap<Utf8PathBuf, RecordedAnswer<Option<Utf8PathBuf>>>,
    rooms: BTreeMap<Utf8PathBuf, RecordedAnswer<Room>>,
    commands: Vec<RecordedCommand>,
    nvml: Option<Nvml>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cuda: Option<CudaView>,
}

/// An answer of the operating system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecordedAnswer<T> {
    Is(T),
    Error(RecordedError),
}

/// An error of the operating system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RecordedError {
    errno: Option<i32>,
    why: String,
}

/// Where a content is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecordedContent {
    /// Nothing was at the path.
    Absent,
    /// Below `files`, at this path.
    At(Utf8PathBuf),
    /// It was there and is not kept, for this reason.
    LeftOut(String),
}

/// A command and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RecordedCommand {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    end: RecordedEnd,
}

/// How a command ended, or why there is no end of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
enum RecordedEnd {
    Output(Output),
    NotFound,
    Deadline { after_ms: u64, tail: String },
    Silent { after_ms: u64, tail: String },
    NotRun { why: String },
    LeftOut(String),
}

impl RecordedCommand {
    fn is(&self, cmd: &Cmd) -> bool {
        self.program == cmd.program && self.args == cmd.args && self.env == cmd.env
    }
}

impl<T: Clone> RecordedAnswer<T> {
    fn of(result: &Result<T, FilesError>) -> Self {
        match result {
            Ok(value) => Self::Is(value.clone()),
            Err(error) => Self::Error(RecordedError::of(error)),
        }
    }
}

impl RecordedError {
    fn of(error: &FilesError) -> Self {
        match error {
            FilesError::Io { source, .. } => Self {
                errno: source.raw_os_error(),
                why: source.to_string(),
            },
            error @ (FilesError::NotText { .. }
            | FilesError::NotTold { .. }
            | FilesError::Foreign { .. }) => Self {
                errno: None,
                why: error.to_string(),
            },
        }
    }
}

/// The place of a path below a folder: `/etc/x` below `files` is `files/etc/x`.
fn below(folder: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    folder.join(path.strip_prefix("/").unwrap_or(path))
}

impl RecordedEnd {
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
}

#[cfg(test)]
mod tests;
