//! A host that returns the recorded results. A query without a recorded result is an error, because a
//! guess could make a test pass for the wrong reason. A path is missing only if the recorded results
//! show that it does not exist.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{
    FILES, MANIFEST, RecordManifest, RecordedAnswer, RecordedContent, RecordedEnd, RecordedError,
    SCHEMA, below,
};
use crate::host::exec::OnLine;
use crate::host::fake::FakeClock;
use crate::host::files::FreeSpace;
use crate::host::read_only::{ReadOnly, Rejecting};
use crate::host::real::RealFiles;
use crate::host::system::ProcFiles;
use crate::host::{
    Cmd, CudaFault, CudaView, Exec, ExecError, FilesError, Gpu, Host, Nvml, Output, ReadFiles, Stat,
};

/// The error text for a change.
const WHY: &str = "a recorded machine cannot be changed";

/// The error text for a query without a recorded result.
const UNKNOWN: &str = "not in the recording";

/// Returns the recorded machine at the time of the recording.
///
/// # Panics
/// If the directory does not contain a recording with this format version.
pub fn replay(directory: &Utf8Path) -> Host {
    let text = RealFiles.read(&directory.join(MANIFEST)).unwrap().unwrap();
    let manifest: RecordManifest = serde_json::from_slice(&text).unwrap();
    assert_eq!(manifest.schema, SCHEMA);
    let clock = FakeClock::default();
    clock.set(manifest.recorded_at);
    let replay = Replay(Arc::new(Recorded {
        manifest,
        files: directory.join(FILES),
    }));
    let files = Arc::new(ReadOnly::new(replay.clone(), WHY));
    Host {
        files: files.clone(),
        system: Arc::new(ProcFiles(files)),
        exec: Arc::new(replay.clone()),
        gpu: Arc::new(replay),
        http: Arc::new(Rejecting {
            why: "a recording contains no network responses",
        }),
        clock: Arc::new(clock),
    }
}

impl<T: Clone> RecordedAnswer<T> {
    fn give(&self, verb: &'static str, path: &Utf8Path) -> Result<T, FilesError> {
        match self {
            Self::Is(value) => Ok(value.clone()),
            Self::Error(fault) => Err(fault.give(verb, path)),
        }
    }
}

impl RecordedError {
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

impl RecordedEnd {
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

#[derive(Clone)]
struct Replay(Arc<Recorded>);

struct Recorded {
    manifest: RecordManifest,
    files: Utf8PathBuf,
}

impl Recorded {
    /// Whether the recorded results show that a path does not exist.
    fn absent(&self, path: &Utf8Path) -> bool {
        path.ancestors().any(|at| self.says_absent(at))
    }

    fn says_absent(&self, path: &Utf8Path) -> bool {
        let manifest = &self.manifest;
        let listed_without = path
            .parent()
            .zip(path.file_name())
            .and_then(|(parent, name)| match manifest.lists.get(parent)? {
                RecordedAnswer::Is(names) => Some(!names.iter().any(|known| known == name)),
                RecordedAnswer::Error(_) => None,
            });
        listed_without == Some(true)
            || matches!(manifest.stats.get(path), Some(RecordedAnswer::Is(None)))
    }

    fn answer<T: Clone>(
        &self,
        answer: Option<&RecordedAnswer<T>>,
        verb: &'static str,
        path: &Utf8Path,
        absent: impl FnOnce() -> Option<T>,
    ) -> Result<T, FilesError> {
        match answer {
            Some(answer) => answer.give(verb, path),
            None if self.absent(path) => absent().ok_or_else(|| unknown(verb, path)),
            None => Err(unknown(verb, path)),
        }
    }
}

fn unknown(verb: &'static str, path: &Utf8Path) -> FilesError {
    other(verb, path, UNKNOWN.to_owned())
}

fn other(verb: &'static str, path: &Utf8Path, why: String) -> FilesError {
    FilesError::Io {
        verb,
        path: path.to_owned(),
        source: io::Error::other(why),
        disk: None,
    }
}

impl ReadFiles for Replay {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        let answer = self.0.manifest.reads.get(path);
        match self
            .0
            .answer(answer, "read", path, || Some(RecordedContent::Absent))?
        {
            RecordedContent::Absent => Ok(None),
            RecordedContent::LeftOut(why) => {
                let why = format!("left out of the recording: {why}");
                Err(other("read", path, why))
            }
            RecordedContent::At(real) => match RealFiles.read(&below(&self.0.files, &real))? {
                Some(content) => Ok(Some(content)),
                None => Err(other(
                    "read",
                    path,
                    "the recorded content is missing".to_owned(),
                )),
            },
        }
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        let answer = self.0.manifest.stats.get(path);
        self.0.answer(answer, "stat", path, || Some(None))
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        let answer = self.0.manifest.lists.get(directory);
        self.0
            .answer(answer, "list", directory, || Some(Vec::new()))
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        let answer = self.0.manifest.resolved.get(path);
        self.0.answer(answer, "resolve", path, || Some(None))
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        let answer = self.0.manifest.free_spaces.get(path);
        self.0
            .answer(answer, "read the free space of", path, || None)
    }
}

#[async_trait]
impl Exec for Replay {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let known = self.0.manifest.commands.iter().find(|known| known.is(cmd));
        let Some(known) = known else {
            return Err(ExecError::Spawn {
                command: cmd.line(),
                why: UNKNOWN.to_owned(),
            });
        };
        let output = known.end.give(cmd)?;
        output.hand_out(on_line);
        Ok(output)
    }
}

#[async_trait]
impl Gpu for Replay {
    async fn survey(&self) -> Nvml {
        self.0.manifest.nvml.clone().unwrap_or(Nvml::Failed {
            code: None,
            why: UNKNOWN.to_owned(),
        })
    }

    async fn compute(&self, _: &[String], _: std::time::Duration) -> CudaView {
        let known = self.0.manifest.cuda.clone();
        known.unwrap_or_else(|| {
            CudaView::without(CudaFault::NotQueried {
                why: UNKNOWN.to_owned(),
            })
        })
    }
}
