//! Backups of file contents, in the state directory. They are named by the SHA-256 of their content, so that equal contents are
//! stored once and damage is detected.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::ChangeError;
use crate::host::{Files, digest::sha256};

/// Stores the backups.
#[derive(Clone)]
pub(super) struct Backups {
    files: Arc<dyn Files>,
    directory: Utf8PathBuf,
}

impl Backups {
    pub(super) fn new(files: Arc<dyn Files>, state: &Utf8Path) -> Self {
        Self {
            files,
            directory: state.join("backups"),
        }
    }

    /// Stores the content and returns the name of the backup.
    pub(super) fn save(&self, content: &[u8]) -> Result<String, ChangeError> {
        let name = sha256(content);
        let path = self.directory.join(&name);
        let whole = self
            .files
            .read(&path)?
            .is_some_and(|stored| stored == content);
        if !whole {
            // Files in `/etc` may be readable only by root, so this directory is as well.
            self.files.create_directory(&self.directory, 0o700)?;
            self.files.write(&path, content, 0o600)?;
        }
        Ok(name)
    }

    /// The path of a backup.
    pub(super) fn path(&self, name: &str) -> Utf8PathBuf {
        self.directory.join(name)
    }

    /// Reads and verifies a backup.
    pub(super) fn load(&self, name: &str) -> Result<Vec<u8>, ChangeError> {
        let path = self.path(name);
        let content = self.files.read(&path)?;
        match content {
            Some(content) if sha256(&content) == name => Ok(content),
            found => {
                let why = match found {
                    None => "it is missing",
                    Some(_) => "the content does not match its digest",
                };
                let what = format!("use the backup `{path}`: {why}");
                Err(ChangeError::new("backup", what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{ReadFiles, fake};

    #[test]
    fn equal_contents_stored_once_and_damage_detected() {
        let (host, fakes) = fake::host();
        let backups = Backups::new(host.files.clone(), "/var/lib/gpu-bootstrap".into());
        let name = backups.save(b"secret").unwrap();
        let writes = fakes.files.mutations();
        assert_eq!(backups.save(b"secret").unwrap(), name);
        assert_eq!(fakes.files.mutations(), writes);
        assert_eq!(backups.load(&name).unwrap(), b"secret");
        let path = format!("/var/lib/gpu-bootstrap/backups/{name}");
        let mode = |path: &str| fakes.files.stat(path.into()).unwrap().unwrap().mode;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode("/var/lib/gpu-bootstrap/backups"), 0o700);
        fakes.files.put(&path, "other");
        assert!(backups.load(&name).is_err());
        assert!(backups.load("00").is_err());
        // Saving the same content again repairs a damaged backup.
        assert_eq!(backups.save(b"secret").unwrap(), name);
        assert_eq!(backups.load(&name).unwrap(), b"secret");
    }
}
