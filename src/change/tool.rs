//! Runs tools that write the files listed in the change.

use std::time::Duration;

use camino::Utf8PathBuf;

use super::{Applier, ChangeError, FileAfter, Sink, Undo};
use crate::host::{Cmd, FileKind};

/// The time limit of a tool. `nvidia-ctk` and similar tools take seconds, but hang on a faulty GPU.
const DEADLINE: Duration = Duration::from_secs(300);

impl Applier {
    pub(super) fn capture_tool(
        &self,
        purpose: &str,
        writes: &[Utf8PathBuf],
        repeated: bool,
    ) -> Result<Undo, ChangeError> {
        if writes.is_empty() {
            return Ok(Undo::Impossible {
                what: format!("the effect of: {purpose}"),
                why: "the tool cannot undo it".to_owned(),
            });
        }
        let after = if repeated {
            FileAfter::Any
        } else {
            FileAfter::Unknown
        };
        let mut files = Vec::new();
        for path in writes {
            files.push((self.target_of(path)?, after.clone()));
        }
        self.capture_files(files)
    }

    pub(super) async fn run_tool(
        &self,
        purpose: &str,
        command: &[String],
        writes: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Some((program, args)) = command.split_first() else {
            return Err(ChangeError::unreadable(purpose, "the command is empty"));
        };
        for directory in writes.iter().filter_map(|path| path.parent()) {
            // Some tools do not create their output directories.
            if self.host.files.stat(directory)?.is_none() {
                self.host.files.create_directory(directory, 0o755)?;
            }
        }
        let cmd = Cmd::new(program, args.iter().cloned()).deadline(DEADLINE);
        self.tool(purpose, &cmd, sink).await?;
        self.sync(writes)
    }

    /// Syncs the files that a tool wrote. Most tools do not sync, but after a power loss a recorded change must not be lost.
    pub(super) fn sync(&self, writes: &[Utf8PathBuf]) -> Result<(), ChangeError> {
        let files = &self.host.files;
        for path in writes {
            let Some(path) = files.resolve(path)? else {
                continue;
            };
            if let Some(stat) = files.stat(&path)?
                && stat.kind == FileKind::File
            {
                files.append(&path, b"", stat.mode)?;
            }
        }
        Ok(())
    }
}
