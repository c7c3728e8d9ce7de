//! Restored files of a container runtime: its own program reads them before its daemon does.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Afterwards, Applier, ChangeError, FileAfter, FileBefore, Reverted, Sink, Undo,
    labels::written,
    runtime::{Known, unread},
};
use crate::{
    config::desired::Daemon, error::one_line, host::Stat, state::CONTAINERD_CONFIG, tools::toolkit,
};

/// A file with keys of a change, as it is before the undo.
pub(super) struct EditedNow {
    path: Utf8PathBuf,
    content: Vec<u8>,
    stat: Stat,
}

impl Applier {
    /// Restores files, and has those who read them read them again. What one daemon refuses keeps no other from being
    /// restored.
    pub(super) async fn restore_and_follow(
        &self,
        undo: &Undo,
        (files, created_folders): (&[FileBefore], &[Utf8PathBuf]),
        then: &[Afterwards],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let mut endings = Vec::new();
        for group in groups(files, then) {
            endings.push(
                self.restore_group(undo, &group, created_folders, sink)
                    .await?,
            );
        }
        Ok(Reverted::of(endings))
    }

    async fn restore_group(
        &self,
        undo: &Undo,
        group: &Group<'_>,
        created_folders: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let Group {
            daemon,
            files,
            then,
        } = group;
        // After a kill before the daemon has read them the files would look as if nothing were left to do.
        let mut was_cut = false;
        if let &Some((daemon, _)) = daemon {
            let unread = unread(&self.state, daemon);
            was_cut = self.host.files.exists(&unread)?;
            self.host.files.write(&unread, b"", 0o600)?;
            let needs = needs_toolkit(&self.state, daemon);
            self.host.files.write(&needs, b"", 0o600)?;
        }
        let edited = self.edited_now(files)?;
        let later = Later {
            sink,
            notes: Mutex::default(),
        };
        let restored = self.restore_files(files, created_folders, &later)?;
        let changed = self.changed_since(&edited)?;
        // A file that the undo could not touch may be one with which the daemon does not start.
        let is_untouched = match daemon {
            Some(_) => changed.is_empty(),
            None => matches!(restored, Reverted::Nothing { .. }),
        };
        let mut refused = None;
        let ending = if is_untouched && !was_cut {
            restored
        } else {
            self.restore_labels(&written(undo), sink).await?;
            if let Some((daemon, unit)) = daemon {
                refused = self
                    .refused_undo((&edited, &changed), (*daemon, unit))
                    .await?;
            }
            let followed = match refused.clone() {
                Some(left) => left,
                None => {
                    later.tell();
                    self.afterwards(then, sink).await?
                }
            };
            Reverted::of(vec![restored, followed])
        };
        if let &Some((daemon, _)) = daemon {
            // Whether the daemon has read the files before is known no better than at the beginning.
            let is_unknown = was_cut && refused.is_some();
            let is_left = matches!(ending, Reverted::Left { .. });
            if !is_unknown {
                self.host.files.remove(&unread(&self.state, daemon))?;
            }
            if !(is_unknown || is_left && self.name_the_toolkit(files)?) {
                (self.host.files).remove(&needs_toolkit(&self.state, daemon))?;
            }
        }
        Ok(ending)
    }

    /// Those of the files that are not as they were.
    fn changed_since<'e>(
        &self,
        edited: &'e [EditedNow],
    ) -> Result<Vec<&'e EditedNow>, ChangeError> {
        let mut changed = Vec::new();
        for one in edited {
            if self.host.files.read(&one.path)?.as_ref() != Some(&one.content) {
                changed.push(one);
            }
        }
        Ok(changed)
    }

    /// Whether one of the files in which a change has set keys names the toolkit's runtime now.
    fn name_the_toolkit(&self, files: &[FileBefore]) -> Result<bool, ChangeError> {
        for file in files {
            if let FileAfter::Edited { .. } = file.after
                && let Some(content) = self.host.files.read(&file.path)?
                && toolkit::needs_packages(&String::from_utf8_lossy(&content))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The files in which a change has set keys.
    fn edited_now(&self, files: &[FileBefore]) -> Result<Vec<EditedNow>, ChangeError> {
        let mut found = Vec::new();
        for file in files {
            if let FileAfter::Edited { .. } = file.after
                && let Some(stat) = self.host.files.stat(&file.path)?
                && let Some(content) = self.host.files.read(&file.path)?
            {
                found.push(EditedNow {
                    path: file.path.clone(),
                    content,
                    stat,
                });
            }
        }
        Ok(found)
    }

    /// Puts files back as they were before their undo if their daemon would not start with the restored ones. Those that
    /// an undo restored which was cut off stay, but the daemon is not restarted with them.
    async fn refused_undo(
        &self,
        (edited, changed): (&[EditedNow], &[&EditedNow]),
        (daemon, unit): (Daemon, &str),
    ) -> Result<Option<Reverted>, ChangeError> {
        let files = &self.host.files;
        let why = match self.refusal(daemon, unit, edited).await {
            Ok(None) => return Ok(None),
            Ok(Some(why)) => why,
            Err(error) => format!("failed to {}", one_line(&error)),
        };
        let mut paths = BTreeSet::new();
        for one in changed {
            if let Some(folder) = one.path.parent()
                && files.stat(folder)?.is_none()
            {
                files.create_folder(folder, 0o755)?;
            }
            files.write(&one.path, &one.content, one.stat.mode)?;
            files.chown(&one.path, one.stat.uid, one.stat.gid)?;
            paths.insert(format!("`{}`", one.path));
        }
        let what = match paths.is_empty() {
            true => format!("`{unit}`, which was not restarted"),
            false => format!(
                "{}, as before the undo",
                paths.into_iter().collect::<Vec<_>>().join(", ")
            ),
        };
        Ok(Some(Reverted::Left {
            what,
            why: format!(
                "{} refuses its configuration without the keys of this program: {why}; correct what it names, and run \
                 the same command again: until then the program that they name stays",
                daemon.name()
            ),
        }))
    }

    /// Why a daemon would not start with its files; `None` if it would, or is not there any more.
    async fn refusal(
        &self,
        daemon: Daemon,
        unit: &str,
        edited: &[EditedNow],
    ) -> Result<Option<String>, ChangeError> {
        let state = self.unit_state_if_any(unit).await?;
        if !state.is_some_and(|state| state.exists()) {
            return Ok(None);
        }
        let files = &self.host.files;
        let known = match daemon {
            Daemon::Docker => {
                let mut paths = Vec::new();
                for one in edited {
                    if files.exists(&one.path)? {
                        paths.push(one.path.as_path());
                    }
                }
                return self.docker_refuses(unit, paths.into_iter()).await;
            }
            // Without any file it starts, but `containerd config dump` of 1.6 fails.
            Daemon::Containerd if files.stat(Utf8Path::new(CONTAINERD_CONFIG))?.is_none() => {
                return Ok(None);
            }
            Daemon::Containerd => self.containerd_config().await?.map(Known::from),
            Daemon::Crio => self.crio_config().await?.map(Known::from),
        };
        Ok(match known {
            Err(why) => Some(why),
            Ok(known) => known.unknown_default().map(|name| {
                format!("its default runtime would be {name}, which it would not know")
            }),
        })
    }
}

/// Files with keys of one daemon, or all others, and what must follow.
struct Group<'u> {
    daemon: Option<(Daemon, &'u str)>,
    files: Vec<FileBefore>,
    then: Vec<Afterwards>,
}

/// The files of each daemon that has to read them again, and the others before them.
fn groups<'u>(files: &[FileBefore], then: &'u [Afterwards]) -> Vec<Group<'u>> {
    let mut rest = Group {
        daemon: None,
        files: files.to_vec(),
        then: Vec::new(),
    };
    let mut groups = Vec::new();
    for one in then {
        let Some(daemon) = daemon(one) else {
            rest.then.push(one.clone());
            continue;
        };
        let is_theirs = |file: &FileBefore| {
            matches!(file.after, FileAfter::Edited { .. }) && reader(&file.path) == daemon.0
        };
        let (theirs, others): (Vec<_>, Vec<_>) = rest.files.into_iter().partition(is_theirs);
        rest.files = others;
        if theirs.is_empty() {
            rest.then.push(one.clone());
        } else {
            groups.push(Group {
                daemon: Some(daemon),
                files: theirs,
                then: vec![one.clone()],
            });
        }
    }
    if !(rest.files.is_empty() && rest.then.is_empty()) {
        groups.insert(0, rest);
    }
    groups
}

/// The daemon that reads a file with settings of runtimes: Docker's is JSON, CRI-O's have a folder of their own, and
/// containerd's may be imported from anywhere.
fn reader(path: &Utf8Path) -> Daemon {
    match path.extension() {
        Some("json") => Daemon::Docker,
        _ if path.starts_with("/etc/crio") => Daemon::Crio,
        _ => Daemon::Containerd,
    }
}

/// Keeps notes until it is certain that what they tell stays.
struct Later<'s> {
    sink: &'s dyn Sink,
    notes: Mutex<Vec<String>>,
}

impl Later<'_> {
    fn notes(&self) -> MutexGuard<'_, Vec<String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        for note in self.notes().drain(..) {
            self.sink.note(&note);
        }
    }
}

impl Sink for Later<'_> {
    fn line(&self, line: &str) {
        self.sink.line(line);
    }

    fn progress(&self, current: u64, total: Option<u64>, unit: &str) {
        self.sink.progress(current, total, unit);
    }

    fn retry(&self, message: &str, in_seconds: f64) {
        self.sink.retry(message, in_seconds);
    }

    fn note(&self, message: &str) {
        self.notes().push(message.to_owned());
    }
}

/// The daemon that reads restored files again, with its unit.
fn daemon(then: &Afterwards) -> Option<(Daemon, &str)> {
    match then {
        Afterwards::ReloadDocker { unit, .. } => Some((Daemon::Docker, unit)),
        Afterwards::RestartUnit { unit } => [Daemon::Containerd, Daemon::Crio]
            .into_iter()
            .find(|daemon| unit.strip_suffix(".service") == Some(daemon.name()))
            .map(|daemon| (daemon, unit.as_str())),
        Afterwards::RebuildInitramfs { .. } => None,
    }
}

/// The file that is there while files of a daemon name the toolkit's runtime although their undo was tried: the
/// runtime's package stays.
pub(super) fn needs_toolkit(state: &Utf8Path, daemon: Daemon) -> Utf8PathBuf {
    state.join(format!("needs-toolkit-{}", daemon.name()))
}
