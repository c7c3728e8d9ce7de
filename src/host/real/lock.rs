//! An exclusive lock with a description of its holder.

use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

/// A held lock. The kernel always releases it when the process exits.
pub(super) struct Lock(File);

impl Lock {
    /// Acquires the lock on an open file. Returns `None` if another process holds it.
    pub fn take(mut file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
        file.write_all(holder().as_bytes())?;
        file.sync_all()?;
        Ok(Some(Self(file)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A released lock must not show a holder. If truncating fails, the next holder overwrites
        // the content.
        if let Err(error) = self.0.set_len(0) {
            tracing::debug!(%error, "the released lock file still describes this process");
        }
    }
}

/// Describes this process for other processes that find the lock held. Of the arguments, it contains
/// only the first one that is not an option (the subcommand), because others may contain secrets.
fn holder() -> String {
    // `args` panics if an argument is not valid UTF-8.
    let mut all = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let mut words = all
        .next()
        .into_iter()
        .chain(all.find(|word| !word.starts_with('-')));
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let command = std::iter::once(program.to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ");
    let since = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    format!("pid {}, `{command}`, since {since}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use crate::host::real::RealFiles;
    use crate::host::{Files, ReadFiles};

    #[test]
    fn lock_has_one_holder_with_a_description() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let path = root.join("run/lock");
        let guard = RealFiles.try_lock(&path).unwrap();
        assert!(guard.is_some());
        assert!(RealFiles.try_lock(&path).unwrap().is_none());
        let content = RealFiles.read_text(&path).unwrap().unwrap();
        assert!(content.starts_with(&format!("pid {}, `", std::process::id())));
        assert_eq!(RealFiles.stat(&path).unwrap().unwrap().mode, 0o600);
        drop(guard);
        assert_eq!(RealFiles.read_text(&path).unwrap().unwrap(), "");
        assert!(RealFiles.try_lock(&path).unwrap().is_some());
    }
}
