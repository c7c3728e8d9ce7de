//! Files: written and removed whole, with what was there before among the backups.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Applier, ChangeError, FileAfter, FileBefore, Reverted, Saved, Undo};
use crate::host::{Kind, Stat, digest::sha256, files::leftovers};

/// A file as it is now, in the terms of an undo.
#[derive(Debug, PartialEq, Eq)]
struct Now {
    stat: Option<Stat>,
    after: FileAfter,
}

impl Applier {
    /// How files that are about to be written or removed are put back. `after` says what the
    /// change leaves at each path.
    pub(super) fn capture_files(
        &self,
        paths: &[Utf8PathBuf],
        after: impl Fn(&Utf8Path) -> FileAfter,
    ) -> Result<Undo, ChangeError> {
        let mut files = Vec::new();
        let mut created_folders: Vec<Utf8PathBuf> = Vec::new();
        for path in paths {
            files.push(FileBefore {
                path: path.clone(),
                before: self.save(path)?,
                after: after(path),
            });
            for folder in path.ancestors().skip(1) {
                if self.host.files.stat(folder)?.is_some() {
                    break;
                }
                if !created_folders.iter().any(|known| known == folder) {
                    created_folders.push(folder.to_owned());
                }
            }
        }
        // A folder sorts before what is in it.
        created_folders.sort();
        Ok(Undo::RestoreFiles {
            files,
            created_folders,
            then: Vec::new(),
        })
    }

    /// The undo of [`Applier::capture_files`], knowing what is there now that the change ended.
    pub(super) fn refine_files(&self, undo: Undo) -> Result<Undo, ChangeError> {
        let Undo::RestoreFiles {
            mut files,
            created_folders,
            then,
        } = undo
        else {
            return Ok(undo);
        };
        for file in &mut files {
            if file.after == FileAfter::Unknown {
                file.after = self.look(&file.path)?.after;
            }
        }
        Ok(Undo::RestoreFiles {
            files,
            created_folders,
            then,
        })
    }

    /// Mends what whoever was cut off left. A tool had emptied a file, to write it anew: most do it
    /// in this order, and a power cut leaves it without a byte, or with NULs in their number. There
    /// is nobody's work in such a file, and the tool and the daemon both refuse it.
    pub(super) fn mend_files(&self, undo: &Undo) -> Result<(), ChangeError> {
        match undo {
            Undo::RestoreFiles { files, .. } => files.iter().try_for_each(|file| self.mend(file)),
            Undo::Several { undos } => undos.iter().try_for_each(|undo| self.mend_files(undo)),
            _ => Ok(()),
        }
    }

    fn mend(&self, file: &FileBefore) -> Result<(), ChangeError> {
        self.sweep(&file.path)?;
        if file.after != FileAfter::Unknown {
            return Ok(());
        }
        let content = match self.host.files.stat(&file.path)? {
            Some(stat) if stat.kind == Kind::File => self.host.files.read(&file.path)?,
            _ => None,
        };
        if content.is_some_and(|content| content.iter().all(|byte| *byte == 0)) {
            self.restore(file)?;
        }
        Ok(())
    }

    /// Removes what a writer of ours that was killed left beside a file.
    fn sweep(&self, path: &Utf8Path) -> Result<(), ChangeError> {
        for leftover in leftovers(&*self.host.files, path)? {
            self.host.files.remove(&leftover)?;
        }
        Ok(())
    }

    fn save(&self, path: &Utf8Path) -> Result<Option<Saved>, ChangeError> {
        let files = &self.host.files;
        let Some(stat) = files.stat(path)? else {
            return Ok(None);
        };
        let (sha256, link) = match &stat.kind {
            Kind::File => {
                let content = files.read(path)?.unwrap_or_default();
                (self.backups.save(&content)?, None)
            }
            Kind::Link(target) => (sha256(target.as_str().as_bytes()), Some(target.clone())),
            Kind::Folder | Kind::CharDevice(..) | Kind::Other => {
                return Err(ChangeError::Unreadable {
                    what: format!("back up `{path}`"),
                    why: "it is neither a file nor a link".to_owned(),
                });
            }
        };
        Ok(Some(Saved {
            sha256,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            link,
        }))
    }

    fn look(&self, path: &Utf8Path) -> Result<Now, ChangeError> {
        let files = &self.host.files;
        let stat = files.stat(path)?;
        let after = match stat.as_ref().map(|stat| &stat.kind) {
            None => FileAfter::Absent,
            Some(Kind::Link(target)) => FileAfter::Link {
                target: target.clone(),
            },
            Some(Kind::File) => match files.read(path)? {
                Some(content) => FileAfter::File {
                    sha256: sha256(&content),
                },
                None => FileAfter::Absent,
            },
            Some(Kind::Folder | Kind::CharDevice(..) | Kind::Other) => FileAfter::Unknown,
        };
        Ok(Now { stat, after })
    }

    /// Writes a file; a file that is there keeps its owner.
    pub(super) fn write_file(
        &self,
        path: &Utf8Path,
        content: &[u8],
        mode: u32,
    ) -> Result<(), ChangeError> {
        let owner = self
            .host
            .files
            .stat(path)?
            .filter(|stat| stat.kind == Kind::File && (stat.uid, stat.gid) != (0, 0));
        self.host.files.write(path, content, mode)?;
        if let Some(stat) = owner {
            self.host.files.chown(path, stat.uid, stat.gid)?;
        }
        Ok(())
    }

    /// Puts files back, each only if it still is what the change left there.
    pub(super) fn restore_files(
        &self,
        files: &[FileBefore],
        created_folders: &[Utf8PathBuf],
    ) -> Result<Reverted, ChangeError> {
        let mut endings = Vec::new();
        for file in files {
            endings.push(self.restore(file)?);
        }
        for folder in created_folders.iter().rev() {
            if self.host.files.stat(folder)?.is_some()
                && self.host.files.remove_empty_folder(folder)?
            {
                endings.push(Reverted::Done {
                    what: format!("removed `{folder}`"),
                });
            }
        }
        Ok(Reverted::of(endings))
    }

    fn restore(&self, file: &FileBefore) -> Result<Reverted, ChangeError> {
        let path = &file.path;
        // A former undo may have been killed while it wrote.
        self.sweep(path)?;
        let now = self.look(path)?;
        if same(&now, file.before.as_ref()) {
            return Ok(Reverted::Nothing {
                why: format!("`{path}` is as it was"),
            });
        }
        if file.after != FileAfter::Unknown && now.after != file.after {
            return Ok(Reverted::Left {
                what: format!("`{path}`"),
                why: if now.after == FileAfter::Absent {
                    "somebody has removed it since".to_owned()
                } else {
                    "somebody has changed it since".to_owned()
                },
            });
        }
        let files = &self.host.files;
        let Some(saved) = &file.before else {
            files.remove(path)?;
            return Ok(Reverted::Done {
                what: format!("removed `{path}`"),
            });
        };
        match &saved.link {
            Some(target) => {
                files.remove(path)?;
                files.link(path, target)?;
            }
            None => {
                let content = self.backups.load(&saved.sha256)?;
                files.write(path, &content, saved.mode)?;
                files.chown(path, saved.uid, saved.gid)?;
            }
        }
        Ok(Reverted::Done {
            what: format!("restored `{path}`"),
        })
    }
}

fn same(now: &Now, before: Option<&Saved>) -> bool {
    match (&now.stat, before) {
        (None, None) => true,
        (Some(stat), Some(saved)) => match (&now.after, &saved.link) {
            (FileAfter::Link { target }, Some(link)) => target == link,
            (FileAfter::File { sha256 }, None) => {
                *sha256 == saved.sha256
                    && (stat.mode, stat.uid, stat.gid) == (saved.mode, saved.uid, saved.gid)
            }
            _ => false,
        },
        _ => false,
    }
}

/// A unified diff of a file and what replaces it; `before` is `None` where there is no file.
pub(super) fn diff(path: &Utf8Path, before: Option<&str>, after: &str) -> String {
    let old = before.map_or_else(|| "/dev/null".to_owned(), |_| format!("a{path}"));
    similar::TextDiff::from_lines(before.unwrap_or_default(), after)
        .unified_diff()
        .header(&old, &format!("b{path}"))
        .to_string()
}
