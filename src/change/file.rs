//! Files: written and removed as a whole; their former content is backed up.

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Applier, CHANGED_SINCE, Edit, FileAfter, FileBefore, Problem, Reverted, Saved, Sink, Undo,
    edits,
};
use crate::{
    host::{FileKind, Stat, digest::sha256, files::leftovers, trusted::refuse_foreign},
    model::{
        document::{Document, DocumentError, Format},
        secret::without_secret_values,
    },
};

/// The state of a file now.
#[derive(Debug, PartialEq, Eq)]
struct FileNow {
    stat: Option<Stat>,
    after: FileAfter,
}

/// How restoring files ended.
pub(super) struct Restored {
    pub(super) ending: Reverted,
    /// What went of others' settings: to be told as soon as it is certain that the files stay so.
    notes: Vec<String>,
}

impl Restored {
    /// Tells the notes, and returns how it ended.
    pub(super) fn told(self, sink: &dyn Sink) -> Reverted {
        for note in &self.notes {
            sink.note(note);
        }
        self.ending
    }
}

impl Applier {
    /// The undo of files that are about to be written or removed, each with what the change leaves. A symlink in place of such a
    /// file is replaced, one in place of a directory is followed, unless a user other than root could redirect it.
    pub(super) fn capture_files(
        &self,
        wanted: impl IntoIterator<Item = (Utf8PathBuf, FileAfter)>,
    ) -> Result<Undo, Problem> {
        let mut files = Vec::new();
        let mut created_folders: Vec<Utf8PathBuf> = Vec::new();
        for (path, after) in wanted {
            if let Some(folder) = path.parent() {
                self.refuse_redirected(folder)?;
            }
            for folder in path.ancestors().skip(1) {
                if self.host.files.stat(folder)?.is_some() {
                    break;
                }
                if !created_folders.iter().any(|known| known == folder) {
                    created_folders.push(folder.to_owned());
                }
            }
            files.push(FileBefore {
                before: self.save(&path)?,
                path,
                after,
            });
        }
        // A folder sorts before its content.
        created_folders.sort();
        Ok(Undo::RestoreFiles {
            files,
            created_folders,
            daemon: None,
        })
    }

    /// The file that is written at a path. A symlink is kept, and its target is written, unless a user other than root could
    /// redirect it: root would write, and later change the owner of, a file of that user's choice.
    ///
    /// # Errors
    /// If a symlink leads through a path that other users may change, or if the path cannot be examined.
    pub(super) fn target_of(&self, path: &Utf8Path) -> Result<Utf8PathBuf, Problem> {
        self.refuse_redirected(path)?;
        let files = &*self.host.files;
        Ok(files.resolve(path)?.unwrap_or_else(|| path.to_owned()))
    }

    /// Refuses a path with a symlink that a user other than root could have created or could change.
    fn refuse_redirected(&self, path: &Utf8Path) -> Result<(), Problem> {
        let files = &*self.host.files;
        for at in path.ancestors() {
            // The nearest ancestor that exists. `stat` does not follow a symlink, so a dangling one is found too.
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

    /// Keeps what a change writes over a file of somebody else's: without it nobody can tell its lines from those that
    /// others add later.
    pub(super) fn keep_ours(&self, undo: &Undo, content: &str) -> Result<(), Problem> {
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

    /// Takes the lines of a change out of a file to which others have added some since; `None` if they touch each other, or
    /// if it is not known what the change has written.
    fn take_lines_back(&self, file: &FileBefore) -> Result<Option<Reverted>, Problem> {
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
        // An undo that was cut off may have taken them back already.
        let is_back = diffy::apply(&now, &diffy::create_patch(&before, &ours)).is_ok();
        let merged = match diffy::merge(&ours, &now, &before) {
            Ok(merged) if merged != now => merged,
            Err(_) if !is_back => return Ok(None),
            _ => {
                return Ok(Some(Reverted::nothing(format!(
                    "nothing of this program is in `{path}` any more"
                ))));
            }
        };
        files.write(path, merged.as_bytes(), stat.mode)?;
        Ok(Some(Reverted::done(format!(
            "took the lines of this program back in `{path}`, which others have changed since"
        ))))
    }

    /// Completes the undo of [`Applier::capture_files`] after the change.
    pub(super) fn refine_files(&self, mut undo: Undo) -> Result<Undo, Problem> {
        if let Undo::RestoreFiles { files, .. } = &mut undo {
            for file in files {
                if file.after == FileAfter::Unknown {
                    file.after = self.file_now(&file.path)?.after;
                }
            }
        }
        Ok(undo)
    }

    /// The undo without files that a change which failed or was interrupted has not written. Whoever writes such a file later
    /// owns it.
    pub(super) fn without_unwritten_files(&self, undo: &Undo) -> Result<Undo, Problem> {
        Ok(match undo {
            Undo::RestoreFiles {
                files,
                created_folders,
                ..
            } if !self.differ(files)? => {
                self.remove_created(created_folders)?;
                Undo::nothing("the files are as they were")
            }
            Undo::Several { undos } => Undo::Several {
                undos: (undos.iter())
                    .map(|undo| self.without_unwritten_files(undo))
                    .collect::<Result<_, _>>()?,
            },
            other => other.clone(),
        })
    }

    /// Whether a file is different from what it was.
    pub(super) fn differ(&self, former: &[FileBefore]) -> Result<bool, Problem> {
        for file in former {
            if !self.is_as_before(file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses to write over a file that has changed since `over`, the digest of the content that the new one was made from.
    pub(super) fn refuse_changed(
        &self,
        path: &Utf8Path,
        over: Option<&str>,
    ) -> Result<(), Problem> {
        let Some(over) = over else {
            return Ok(());
        };
        let now = self.host.files.read(path)?;
        if now.is_some_and(|now| sha256(&now) == over) {
            return Ok(());
        }
        let what = format!("write `{path}`: another program has changed it since it was read");
        Err(Problem::new(CHANGED_SINCE, what).advice("run the same command again"))
    }

    /// A JSON or TOML file before the change, an empty one if there was none; `None` if it was neither.
    fn document_before(&self, file: &FileBefore) -> Result<Option<Document>, Problem> {
        Ok(match &file.before {
            None => parsed(&file.path, b""),
            Some(saved) if saved.link.is_some() => None,
            Some(saved) => parsed(&file.path, &self.backups.load(&saved.sha256)?),
        })
    }

    fn document_now(&self, path: &Utf8Path) -> Result<Option<Document>, Problem> {
        let text = self.host.files.read(path)?;
        Ok(text.and_then(|text| parsed(path, &text)))
    }

    /// Takes the edits of a change back from a file that somebody has edited since. `notes` get what goes of theirs.
    fn take_edits_back(
        &self,
        file: &FileBefore,
        made: &[Edit],
        notes: &mut Vec<String>,
    ) -> Result<Reverted, Problem> {
        let (files, path) = (&self.host.files, &file.path);
        let (Some(now), Some(stat)) = (self.document_now(path)?, files.stat(path)?) else {
            return Ok(self.edited_by_others(file, "changed"));
        };
        let unreadable =
            |error: DocumentError| Problem::unreadable(format!("edit `{path}`"), error);
        let before = self.document_before(file)?;
        let back = edits::take_back(&now, made, before.as_ref()).map_err(unreadable)?;
        let mut endings = Vec::new();
        if !back.left.is_empty() {
            endings.push(Reverted::left(
                format!("{} in `{path}`", back.left.join(", ")),
                format!(
                    "it was changed after this program wrote it; to finish, edit `{path}` and run \
                     the same command again"
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
                "took {}, which somebody has set since, out of `{path}`, because the program of that \
                 runtime goes",
                back.theirs.join(", ")
            );
            notes.push(what.clone());
            endings.push(Reverted::done(what));
        }
        if back.left.is_empty() && is_before {
            endings.push(self.put_back(file)?);
        } else if back.taken.is_empty() {
            endings.push(Reverted::nothing(format!(
                "`{path}` has nothing of this program"
            )));
        } else {
            files.write(path, back.document.text().as_bytes(), stat.mode)?;
            endings.push(Reverted::done(format!(
                "took {} out of `{path}`, which somebody has edited since",
                back.taken.join(", ")
            )));
        }
        Ok(Reverted::of(endings))
    }

    /// What stays of a file that somebody else has changed, and what to do about it.
    fn edited_by_others(&self, file: &FileBefore, how: &str) -> Reverted {
        let path = &file.path;
        let (save, restore, then) = match &file.before {
            None => (
                "save what you need of it".to_owned(),
                format!("rm {path}"),
                "",
            ),
            Some(Saved {
                link: Some(target), ..
            }) => (
                "save what you need of it".to_owned(),
                format!("ln -sfn {target} {path}"),
                "",
            ),
            // What others have added since must not be lost with it, such as mounts.
            Some(saved) => {
                let backup = self.backups.path(&saved.sha256);
                (
                    format!("save what others have put into it since (`diff -u {backup} {path}`)"),
                    format!(
                        "install -m {:04o} -o {} -g {} {backup} {path}",
                        saved.mode, saved.uid, saved.gid
                    ),
                    ", and put that back in",
                )
            }
        };
        Reverted::left(
            format!("`{path}`"),
            format!(
                "it was {how} after this program wrote it; to finish, {save}, run `{restore}`, run the same command \
                 again{then}"
            ),
        )
    }

    /// Restores files that an interrupted tool left empty. Most tools truncate a file before they
    /// write it, and a power cut in between leaves it empty or full of NUL bytes. Such a file holds
    /// nobody's work, and both the tool and the daemon refuse it.
    pub(super) fn restore_emptied_files(&self, undo: &Undo) -> Result<(), Problem> {
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

    fn restore_emptied(&self, file: &FileBefore) -> Result<(), Problem> {
        self.remove_temporary_files(&file.path)?;
        if !matches!(file.after, FileAfter::Unknown | FileAfter::Any) {
            return Ok(());
        }
        let content = match self.host.files.stat(&file.path)? {
            Some(stat) if stat.kind == FileKind::File => self.host.files.read(&file.path)?,
            _ => None,
        };
        if content.is_some_and(|content| content.iter().all(|byte| *byte == 0)) {
            self.put_back(file)?;
        }
        Ok(())
    }

    /// Removes temporary files that a killed run of this program left beside a file.
    fn remove_temporary_files(&self, path: &Utf8Path) -> Result<(), Problem> {
        for leftover in leftovers(&*self.host.files, path)? {
            self.host.files.remove(&leftover)?;
        }
        Ok(())
    }

    pub(super) fn save(&self, path: &Utf8Path) -> Result<Option<Saved>, Problem> {
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
            FileKind::Folder | FileKind::CharDevice(..) | FileKind::Other => {
                return Err(Problem::unreadable(
                    format!("back up `{path}`"),
                    "it is neither a file nor a link",
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

    fn file_now(&self, path: &Utf8Path) -> Result<FileNow, Problem> {
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
            Some(FileKind::Folder | FileKind::CharDevice(..) | FileKind::Other) => {
                FileAfter::Unknown
            }
        };
        Ok(FileNow { stat, after })
    }

    /// Restores files, each only if it is still as the change left it, and the labels that SELinux wants of them.
    pub(super) async fn restore_files(
        &self,
        files: &[FileBefore],
        created_folders: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Restored, Problem> {
        let (mut endings, mut notes) = (Vec::new(), Vec::new());
        for file in files {
            endings.push(self.restore(file, &mut notes)?);
        }
        endings.extend(self.remove_created(created_folders)?);
        let ending = Reverted::of(endings);
        if !matches!(ending, Reverted::Nothing { .. }) {
            let paths = created_folders
                .iter()
                .chain(files.iter().map(|file| &file.path));
            let paths: Vec<&Utf8Path> = paths.map(AsRef::as_ref).collect();
            self.restore_labels(&paths, sink).await?;
        }
        Ok(Restored { ending, notes })
    }

    /// Removes folders that a change has made, as far as they are empty.
    pub(super) fn remove_created(&self, folders: &[Utf8PathBuf]) -> Result<Vec<Reverted>, Problem> {
        let mut endings = Vec::new();
        for folder in folders.iter().rev() {
            if self.host.files.stat(folder)?.is_some()
                && self.host.files.remove_empty_folder(folder)?
            {
                endings.push(Reverted::done(format!("removed `{folder}`")));
            }
        }
        Ok(endings)
    }

    fn restore(&self, file: &FileBefore, notes: &mut Vec<String>) -> Result<Reverted, Problem> {
        let path = &file.path;
        // An earlier undo may have been killed while it wrote.
        self.remove_temporary_files(path)?;
        let now = self.file_now(path)?;
        if is_restored(&now, file.before.as_ref()) {
            return Ok(Reverted::nothing(format!("`{path}` is as it was")));
        }
        if file.after != FileAfter::Unknown && !file.after.is(&now.after) {
            return match (&file.after, &now.after) {
                (FileAfter::Edited { edits, .. }, FileAfter::File { .. }) => {
                    self.take_edits_back(file, edits, notes)
                }
                (_, FileAfter::Absent) => Ok(self.edited_by_others(file, "removed")),
                (_, FileAfter::File { .. }) => match self.take_lines_back(file)? {
                    Some(taken) => Ok(taken),
                    None => Ok(self.edited_by_others(file, "changed")),
                },
                _ => Ok(self.edited_by_others(file, "changed")),
            };
        }
        self.put_back(file)
    }

    /// Whether a file is as it was before the change.
    pub(super) fn is_as_before(&self, file: &FileBefore) -> Result<bool, Problem> {
        Ok(is_restored(
            &self.file_now(&file.path)?,
            file.before.as_ref(),
        ))
    }

    /// Makes a file as it was before the change, whatever it is now.
    pub(super) fn put_back(&self, file: &FileBefore) -> Result<Reverted, Problem> {
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

/// A text as the document that the file's name says; `None` if it is none.
fn parsed(path: &Utf8Path, text: &[u8]) -> Option<Document> {
    let text = std::str::from_utf8(text).ok()?;
    Document::parse(Format::of(path)?, text).ok()
}

/// Whether a file is as it was before the change.
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

/// A unified diff of a file and its new content; `before` is `None` if there is no file.
pub(super) fn diff(path: &Utf8Path, before: Option<&str>, after: &str) -> String {
    diff_with(path, before, after, 3)
}

/// The same for files that we did not create, without the lines around and the values of secrets: no setting of ours names
/// them, and a whole file may be one line.
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
