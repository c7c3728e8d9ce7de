//! Restores SELinux labels. A replaced file gets the default label of its directory, which may differ from the policy. The
//! SELinux mode is not changed.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Applier, ChangeError, Sink, Undo};
use crate::{error::one_line, host::ExecError, tools::selinux};

impl Applier {
    /// Restores the labels of files that a change has written, and syncs them. A failure is only reported, because the files
    /// are correct and most directories have the correct default label.
    pub(super) async fn restore_labels(
        &self,
        paths: &[&Utf8Path],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if paths.is_empty() || !selinux::is_enabled(&*self.host.files)? {
            return Ok(());
        }
        let cmd = selinux::restore(paths);
        let ran = self.exec(&cmd, sink).await;
        match ran.and_then(|output| output.success(&cmd)) {
            Ok(_) => {
                let paths: Vec<Utf8PathBuf> = paths.iter().map(|path| (*path).to_owned()).collect();
                self.sync(&paths)?;
            }
            Err(ExecError::NotFound { .. }) => {}
            Err(error) => sink.note(&format!(
                "failed to restore SELinux labels: {}",
                one_line(&error)
            )),
        }
        Ok(())
    }
}

/// The files and directories that a change writes, according to its undo.
pub(super) fn written(undo: &Undo) -> Vec<&Utf8Path> {
    match undo {
        Undo::RestoreFiles {
            files,
            created_directories,
            ..
        } => (created_directories.iter())
            .chain(files.iter().map(|file| &file.path))
            .map(AsRef::as_ref)
            .collect(),
        Undo::Several { undos } => undos.iter().flat_map(written).collect(),
        _ => Vec::new(),
    }
}
