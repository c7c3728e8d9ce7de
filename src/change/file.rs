//! Backs up files before a change, and restores them, even if they were modified since.

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Applier, CHANGED_SINCE, ChangeError, Edit, FileAfter, FileBefore, Reverted, Saved, Sink, Undo,
    edits,
};
use crate::{
    host::{FileKind, Stat, digest::sha256, files::leftover_files, trusted::refuse_foreign},
    model::{
        document::{Document, DocumentError, Format},
        secret::without_secret_values,
    },
};

/// The current state of a file.
#[derive(Debug, PartialEq, Eq)]
struct FileNow {
    stat: Option<Stat>,
    after: FileAfter,
}

/// The result of restoring files.
pub(super) struct Restored {
    pub(super) ending: Reverted,
    /// Notes about settings of other programs that were removed. They are reported when it is certain that the files stay in
    /// this state.
    notes: Vec<String>,
}

impl Restored {
    /// Reports the notes, and returns the result.
    pub(super) fn told(self, sink: &dyn Sink) -> Reverted {
        for note in &self.notes {
            sink.note(note);
        }
        self.ending
    }
}

impl Applier {
    /// Creates the undo of files that are about to be written or removed. Each file comes with its state after the change. A
    /// symlink in place of such a file is replaced. A symlink in place of a directory is followed, unless a user other than
    /// root could redirect it.
    pub(super) fn capture_files(
        &self,
        wanted: impl IntoIterator<Item = (Utf8PathBuf, FileAfter)>,
    ) -> Result<Undo, ChangeError> {
        let mut files = Vec::new();
        let mut created_directories: Vec<Utf8PathBuf> = Vec::new();
        for (path, after) in wanted {
            if let Some(directory) = path.parent() {
                self.refuse_redirected(directory)?;
            }
            for directory in path.ancestors().skip(1) {
                if self.host.files.stat(directory)?.is_some() {
                    break;
                }
                if !created_directories.iter().any(|known| known == directory) {
                    created_directories.push(directory.to_owned());
                }
            }
            files.push(FileBefore {
                before: self.save(&path)?,
                path,
                after,
            });
        }
        // A directory sorts before its content.
        created_directories.sort();
        Ok(Undo::RestoreFiles {
            files,
            created_directories,
            daemon: None,
        })
    }

    /// Returns the file to write for a path. If the path is a symlink, this is its target, so that the symlink is kept. A
    /// symlink that a user other than root could redirect is an error, because root would write, and later chown, a file of
    /// that user's choice.
    ///
    /// # Errors
    /// If a symlink leads through a path that other users may change, or if the path cannot be examined.
    pub(super) fn target_of(&self, path: &Utf8Path) -> Result<Utf8PathBuf, ChangeError> {
        self.refuse_redirected(path)?;
        let files = &*self.host.files;
        Ok(files.resolve(path)?.unwrap_or_else(|| path.to_owned()))
    }

    /// Refuses a path with a symlink that a user other than root could have created or could change.
    fn refuse_redirected(&self, path: &Utf8Path) -> Result<(), ChangeError> {
        let files = &*self.host.files;
        for at in path.ancestors() {
            // The nearest existing ancestor. `stat` does not follow symlinks, so it also finds a dangling one.
            if files.stat(at)?.is_none() {
                continue;
            }
            if files.resolve(at)?.as_deref() != Some(at) {
                refuse_foreign(files, path)?;
            }
            break;
        }
        Ok(())
    }

    /// Stores the content that a change writes over an existing file. It is needed to distinguish our lines from lines that are
    /// added later.
    pub(super) fn keep_ours(&self, undo: &Undo, content: &str) -> Result<(), ChangeError> {
        let Undo::RestoreFiles { files, .. } = undo else {
            return Ok(());
        };
        let is_file =
            |file: &FileBefore| (file.before.as_ref()).is_some_and(|saved| saved.link.is_none());
        if files.iter().any(is_file) {
            self.backups.save(content.as_bytes())?;
        }
        Ok(())
    }

    /// Removes the lines of a change from a file that was modified since. Returns `None` if the modifications overlap with our
    /// lines, or if the written content is unknown.
    fn revert_lines(&self, file: &FileBefore) -> Result<Option<Reverted>, ChangeError> {
        let (Some(saved), FileAfter::File { sha256 }) = (&file.before, &file.after) else {
            return Ok(None);
        };
        let (files, path) = (&self.host.files, &file.path);
        if saved.link.is_some() || !files.exists(&self.backups.path(sha256))? {
            return Ok(None);
        }
        let (ours, before) = (
            self.backups.load(sha256)?,
            self.backups.load(&saved.sha256)?,
        );
        let (Some(now), Some(stat)) = (files.read(path)?, files.stat(path)?) else {
            return Ok(None);
        };
        let (Ok(ours), Ok(now), Ok(before)) = (
            String::from_utf8(ours),
            String::from_utf8(now),
            String::from_utf8(before),
        ) else {
            return Ok(None);
        };
        // An interrupted undo may have removed our lines already.
        let is_back = diffy::apply(&now, &diffy::create_patch(&before, &ours)).is_ok();
        let merged = match diffy::merge(&ours, &now, &before) {
            Ok(merged) if merged != now => merged,
            Err(_) if !is_back => return Ok(None),
            _ => {
                return Ok(Some(Reverted::nothing(format!(
                    "`{path}` no longer contains lines of gpu-bootstrap"
                ))));
            }
        };
        files.write(path, merged.as_bytes(), stat.mode)?;
        Ok(Some(Reverted::done(format!(
            "removed the lines of gpu-bootstrap from `{path}` and kept later changes"
        ))))
    }

    /// Completes the undo of [`Applier::capture_files`] after the change.
    pub(super) fn refine_files(&self, mut undo: Undo) -> Result<Undo, ChangeError> {
        if let Undo::RestoreFiles { files, .. } = &mut undo {
            for file in files {
                if file.after == FileAfter::Unknown {
                    file.after = self.file_now(&file.path)?.after;
                }
            }
        }
        Ok(undo)
    }

    /// If a failed or interrupted change has written none of its files, returns an undo that does nothing, because the files
    /// are not ours if another program writes them later. Also removes directories that the change created.
    pub(super) fn without_unwritten_files(&self, undo: &Undo) -> Result<Undo, ChangeError> {
        Ok(match undo {
            Undo::RestoreFiles {
                files,
                created_directories,
                ..
            } if !self.differ(files)? => {
                self.remove_created(created_directories)?;
                Undo::nothing("the files are unchanged")
            }
            Undo::Several { undos } => Undo::Several {
                undos: (undos.iter())
                    .map(|undo| self.without_unwritten_files(undo))
                    .collect::<Result<_, _>>()?,
            },
            other => other.clone(),
        })
    }

    /// Returns `true` if a file differs from its previous state.
    pub(super) fn differ(&self, former: &[FileBefore]) -> Result<bool, ChangeError> {
        for file in former {
            if !self.is_as_before(file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails if a file was modified since `over`, the digest of the content from which the new content was made.
    pub(super) fn refuse_changed(
        &self,
        path: &Utf8Path,
        over: Option<&str>,
    ) -> Result<(), ChangeError> {
        let Some(over) = over else {
            return Ok(());
        };
        let now = self.host.files.read(path)?;
        if now.is_some_and(|now| sha256(&now) == over) {
            return Ok(());
        }
        let what = format!("write `{path}`: another program has modified it since it was read");
        Err(ChangeError::new(CHANGED_SINCE, what).advice("run the same command again"))
    }

    /// The JSON or TOML file before the change, empty if it did not exist. `None` if it was a symlink or had another format.
    fn document_before(&self, file: &FileBefore) -> Result<Option<Document>, ChangeError> {
        Ok(match &file.before {
            None => parsed(&file.path, b""),
            Some(saved) if saved.link.is_some() => None,
            Some(saved) => parsed(&file.path, &self.backups.load(&saved.sha256)?),
        })
    }

    fn document_now(&self, path: &Utf8Path) -> Result<Option<Document>, ChangeError> {
        let text = self.host.files.read(path)?;
        Ok(text.and_then(|text| parsed(path, &text)))
    }

    /// Reverts the edits of a change in a file that was modified since. Removed settings of other programs are added to
    /// `notes`.
    fn revert_edits(
        &self,
        file: &FileBefore,
        made: &[Edit],
        notes: &mut Vec<String>,
    ) -> Result<Reverted, ChangeError> {
        let (files, path) = (&self.host.files, &file.path);
        let (Some(now), Some(stat)) = (self.document_now(path)?, files.stat(path)?) else {
            return Ok(self.edited_by_others(file, "changed"));
        };
        let unreadable =
            |error: DocumentError| ChangeError::unreadable(format!("edit `{path}`"), error);
        let before = self.document_before(file)?;
        let back = edits::revert(&now, made, before.as_ref()).map_err(unreadable)?;
        let mut endings = Vec::new();
        if !back.left.is_empty() {
            endings.push(Reverted::left(
                format!("{} in `{path}`", back.left.join(", ")),
                format!(
                    "modified since it was written. To finish, edit `{path}` and run the \
                     same command again"
                ),
            ));
        }
        let is_before = match before {
            Some(_) if file.before.is_none() => back.document.is_bare(),
            Some(before) => before.is_like(&back.document),
            None => false,
        };
        if !back.theirs.is_empty() {
            let what = format!(
                "removed {} from `{path}`, although modified later, because the program of this \
                 runtime is removed",
                back.theirs.join(", ")
            );
            notes.push(what.clone());
            endings.push(Reverted::done(what));
        }
        if back.left.is_empty() && is_before {
            endings.push(self.restore_saved(file)?);
        } else if back.taken.is_empty() {
            endings.push(Reverted::nothing(format!(
                "`{path}` contains no settings of gpu-bootstrap"
            )));
        } else {
            files.write(path, back.document.text().as_bytes(), stat.mode)?;
            endings.push(Reverted::done(format!(
                "removed {} from `{path}` and kept later changes",
                back.taken.join(", ")
            )));
        }
        Ok(Reverted::of(endings))
    }

    /// The result for a file that was modified by other programs, with the commands that finish the undo.
    fn edited_by_others(&self, file: &FileBefore, how: &str) -> Reverted {
        let path = &file.path;
        let (save, restore, then) = match &file.before {
            None => (
                "save the parts of it that you need".to_owned(),
                format!("rm {path}"),
                "",
            ),
            Some(Saved {
                link: Some(target), ..
            }) => (
                "save the parts of it that you need".to_owned(),
                format!("ln -sfn {target} {path}"),
                "",
            ),
            // Later additions, such as mounts, must not be lost.
            Some(saved) => {
                let backup = self.backups.path(&saved.sha256);
                (
                    format!("save later additions (`diff -u {backup} {path}`)"),
                    format!(
                        "install -m {:04o} -o {} -g {} {backup} {path}",
                        saved.mode, saved.uid, saved.gid
                    ),
                    ", and add them to it",
                )
            }
        };
        Reverted::left(
            format!("`{path}`"),
            format!(
                "{how} since it was written. To finish, {save}, run `{restore}`, and run \
                 the same command again{then}"
            ),
        )
    }

    /// Restores files that an interrupted tool left empty. Most tools truncate a file before they write it, so a power loss in
    /// between leaves it empty or full of NUL bytes. Such a file has no useful content, and the tool and the daemon reject it.
    pub(super) fn restore_emptied_files(&self, undo: &Undo) -> Result<(), ChangeError> {
        match undo {
            Undo::RestoreFiles { files, .. } => {
                files.iter().try_for_each(|file| self.restore_emptied(file))
            }
            Undo::Several { undos } => undos
                .iter()
                .try_for_each(|undo| self.restore_emptied_files(undo)),
            _ => Ok(()),
        }
    }

    fn restore_emptied(&self, file: &FileBefore) -> Result<(), ChangeError> {
        self.remove_temporary_files(&file.path)?;
        if !matches!(file.after, FileAfter::Unknown | FileAfter::Any) {
            return Ok(());
        }
        let content = match self.host.files.stat(&file.path)? {
            Some(stat) if stat.kind == FileKind::File => self.host.files.read(&file.path)?,
            _ => None,
        };
        if content.is_some_and(|content| content.iter().all(|byte| *byte == 0)) {
            self.restore_saved(file)?;
        }
        Ok(())
    }

    /// Removes temporary files that an interrupted run of gpu-bootstrap left next to a file.
    fn remove_temporary_files(&self, path: &Utf8Path) -> Result<(), ChangeError> {
        for leftover in leftover_files(&*self.host.files, path)? {
            self.host.files.remove(&leftover)?;
        }
        Ok(())
    }

    pub(super) fn save(&self, path: &Utf8Path) -> Result<Option<Saved>, ChangeError> {
        let files = &self.host.files;
        let Some(stat) = files.stat(path)? else {
            return Ok(None);
        };
        let (sha256, link) = match &stat.kind {
            FileKind::File => {
                let content = files.read(path)?.unwrap_or_default();
                (self.backups.save(&content)?, None)
            }
            FileKind::Link(target) => (sha256(target.as_str().as_bytes()), Some(target.clone())),
            FileKind::Directory | FileKind::CharDevice(..) | FileKind::Other => {
                return Err(ChangeError::unreadable(
                    format!("back up `{path}`"),
                    "it is neither a file nor a symlink",
                ));
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

    fn file_now(&self, path: &Utf8Path) -> Result<FileNow, ChangeError> {
        let files = &self.host.files;
        let stat = files.stat(path)?;
        let after = match stat.as_ref().map(|stat| &stat.kind) {
            None => FileAfter::Absent,
            Some(FileKind::Link(target)) => FileAfter::Link {
                target: target.clone(),
            },
            Some(FileKind::File) => match files.read(path)? {
                Some(content) => FileAfter::File {
                    sha256: sha256(&content),
                },
                None => FileAfter::Absent,
            },
            Some(FileKind::Directory | FileKind::CharDevice(..) | FileKind::Other) => {
                FileAfter::Unknown
            }
        };
        Ok(FileNow { stat, after })
    }

    /// Restores the files and their SELinux labels. If a file was modified since the change, only our edits or lines are
    /// removed, if possible.
    pub(super) async fn restore_files(
        &self,
        files: &[FileBefore],
        created_directories: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Restored, ChangeError> {
        let (mut endings, mut notes) = (Vec::new(), Vec::new());
        for file in files {
            endings.push(self.restore(file, &mut notes)?);
        }
        endings.extend(self.remove_created(created_directories)?);
        let ending = Reverted::of(endings);
        if !matches!(ending, Reverted::Nothing { .. }) {
            let paths = created_directories
                .iter()
                .chain(files.iter().map(|file| &file.path));
            let paths: Vec<&Utf8Path> = paths.map(AsRef::as_ref).collect();
            self.restore_labels(&paths, sink).await?;
        }
        Ok(Restored { ending, notes })
    }

    /// Removes directories that a change has created, if they are empty.
    pub(super) fn remove_created(
        &self,
        directories: &[Utf8PathBuf],
    ) -> Result<Vec<Reverted>, ChangeError> {
        let mut endings = Vec::new();
        for directory in directories.iter().rev() {
            if self.host.files.stat(directory)?.is_some()
                && self.host.files.remove_empty_directory(directory)?
            {
                endings.push(Reverted::done(format!("removed `{directory}`")));
            }
        }
        Ok(endings)
    }

    fn restore(&self, file: &FileBefore, notes: &mut Vec<String>) -> Result<Reverted, ChangeError> {
        let path = &file.path;
        // An earlier undo may have been interrupted while it wrote.
        self.remove_temporary_files(path)?;
        let now = self.file_now(path)?;
        if is_restored(&now, file.before.as_ref()) {
            return Ok(Reverted::nothing(format!("`{path}` is unchanged")));
        }
        if file.after != FileAfter::Unknown && !file.after.is(&now.after) {
            return match (&file.after, &now.after) {
                (FileAfter::Edited { edits, .. }, FileAfter::File { .. }) => {
                    self.revert_edits(file, edits, notes)
                }
                (_, FileAfter::Absent) => Ok(self.edited_by_others(file, "removed")),
                (_, FileAfter::File { .. }) => match self.revert_lines(file)? {
                    Some(taken) => Ok(taken),
                    None => Ok(self.edited_by_others(file, "changed")),
                },
                _ => Ok(self.edited_by_others(file, "changed")),
            };
        }
        self.restore_saved(file)
    }

    /// Returns `true` if a file is in the state before the change.
    pub(super) fn is_as_before(&self, file: &FileBefore) -> Result<bool, ChangeError> {
        Ok(is_restored(
            &self.file_now(&file.path)?,
            file.before.as_ref(),
        ))
    }

    /// Restores the state of a file before the change, regardless of its current state.
    pub(super) fn restore_saved(&self, file: &FileBefore) -> Result<Reverted, ChangeError> {
        let (files, path) = (&self.host.files, &file.path);
        let Some(saved) = &file.before else {
            files.remove(path)?;
            return Ok(Reverted::done(format!("removed `{path}`")));
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
        Ok(Reverted::done(format!("restored `{path}`")))
    }
}

/// Parses a text in the format of the file name. `None` if it is invalid.
fn parsed(path: &Utf8Path, text: &[u8]) -> Option<Document> {
    let text = std::str::from_utf8(text).ok()?;
    Document::parse(Format::of(path)?, text).ok()
}

/// Returns `true` if a file is in the state before the change.
fn is_restored(now: &FileNow, before: Option<&Saved>) -> bool {
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

/// A unified diff of a file and its new content. `before` is `None` if the file does not exist.
pub(super) fn diff(path: &Utf8Path, before: Option<&str>, after: &str) -> String {
    diff_with(path, before, after, 3)
}

/// The same for files that we did not create, without context lines and secret values. Our settings contain no secrets, but a
/// changed line may contain secrets of other programs, because such a file may be a single line.
pub(super) fn bare_diff(path: &Utf8Path, before: Option<&str>, after: &str) -> String {
    let before = before.map(without_secret_values);
    diff_with(path, before.as_deref(), &without_secret_values(after), 0)
}

fn diff_with(path: &Utf8Path, before: Option<&str>, after: &str, around: usize) -> String {
    let old = before.map_or_else(|| "/dev/null".to_owned(), |_| format!("a{path}"));
    let before = before.unwrap_or_default();
    if before == after {
        return String::new();
    }
    diffy::DiffOptions::new()
        .set_context_len(around)
        .set_original_filename(old)
        .set_modified_filename(format!("b{path}"))
        .create_patch(before, after)
        .to_string()
}
