//! Recordings: `check --record DIR` stores everything that a run has read from a machine. A replay
//! in the tests verifies that nothing is missing.
//!
//! `manifest.json` contains every result by its query. `files/` contains file contents at their
//! real paths, and the symlinks to them, so that `--root DIR/files` also works. Possible secrets
//! are omitted and marked as omitted.

mod recorder;
#[cfg(test)]
mod replay;
mod sensitive;
mod tree;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use recorder::{Recording, record};

use super::files::FreeSpace;
use super::{Cmd, CudaView, ExecError, FilesError, Nvml, Output, Stat};

/// The format version. It only increases.
const SCHEMA: u32 = 1;

/// The file name of the manifest.
const MANIFEST: &str = "manifest.json";

/// The name of the directory with the file contents.
const FILES: &str = "files";

/// The reason a recording cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The directory is not empty.
    #[error("record to `{directory}`: the directory is not empty")]
    NotEmpty { directory: Utf8PathBuf },
    /// The directory is not readable or not writable.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The manifest cannot be converted to JSON.
    #[error("write `{path}`")]
    Manifest {
        path: Utf8PathBuf,
        source: serde_json::Error,
    },
}

/// All results by query.
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
    free_spaces: BTreeMap<Utf8PathBuf, RecordedAnswer<FreeSpace>>,
    commands: Vec<RecordedCommand>,
    nvml: Option<Nvml>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cuda: Option<CudaView>,
}

/// The result of a file operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecordedAnswer<T> {
    Is(T),
    Error(RecordedError),
}

/// The error of a file operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RecordedError {
    errno: Option<i32>,
    why: String,
}

/// The location of the content of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecordedContent {
    /// The file did not exist.
    Absent,
    /// In `files`, at this path.
    At(Utf8PathBuf),
    /// The file existed but is not stored, for this reason.
    LeftOut(String),
}

/// A command and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RecordedCommand {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    end: RecordedEnd,
}

/// The result of a command, or the reason there is none.
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
            | FilesError::NotReported { .. }
            | FilesError::Foreign { .. }) => Self {
                errno: None,
                why: error.to_string(),
            },
        }
    }
}

/// Maps a path into a directory: `/etc/x` in `files` becomes `files/etc/x`.
fn below(directory: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    directory.join(path.strip_prefix("/").unwrap_or(path))
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
                | ExecError::NotQueried { why, .. }
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
