//! A host that forwards every call and records the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use nix::unistd::geteuid;

use super::sensitive;
use super::tree::{Entries, Entry};
use super::{
    FILES, MANIFEST, RecordError, RecordManifest, RecordedAnswer, RecordedCommand, RecordedContent,
    RecordedEnd, SCHEMA,
};
use crate::host::digest::ContentDigest;
use crate::host::exec::OnLine;
use crate::host::files::FreeSpace;
use crate::host::os::failed;
use crate::host::real::RealFiles;
use crate::host::system::{MemoryError, ProcFiles, Process, System};
use crate::host::trusted::refuse_foreign;
use crate::host::{
    Cmd, CudaView, Exec, ExecError, FileKind, Files, FilesError, Gpu, Host, Nvml, Output,
    ReadFiles, Stat,
};
use crate::model::secret::Secrets;

/// The maximum file size. Larger files are omitted, because no fixture needs them.
const LARGEST: usize = 32 << 20;

/// The reason to omit content with a secret of the run.
const SECRET: &str = "contains a secret from the configuration";

/// The recorded data so far. [`Recording::finish`] writes it.
#[derive(Clone)]
pub struct Recording {
    directory: Utf8PathBuf,
    secrets: Secrets,
    state: Arc<Mutex<RecorderState>>,
}

#[derive(Default)]
struct RecorderState {
    manifest: RecordManifest,
    contents: BTreeMap<Utf8PathBuf, Vec<u8>>,
    links: BTreeMap<Utf8PathBuf, Utf8PathBuf>,
    directories: BTreeSet<Utf8PathBuf>,
    /// Libraries, modules, kernel images and marks of containers that were seen. Those that were not
    /// read are empty files in the tree for `--root`.
    files: BTreeSet<Utf8PathBuf>,
    /// Files with omitted content. They are not in the tree, so that they cannot be mistaken for
    /// empty files.
    left_out: BTreeSet<Utf8PathBuf>,
}

/// Wraps a host so that everything that is read is recorded. Only the first result of a query is
/// stored, because a recording is a snapshot. Network requests are not stored. Of the processes in a
/// process list, only those of `programs` are stored with name and command line, because other
/// command lines may contain passwords and private data.
///
/// # Errors
/// If the directory is not empty or cannot be created.
pub fn record(
    host: &Host,
    directory: &Utf8Path,
    secrets: &Secrets,
    programs: &'static [&'static str],
) -> Result<(Host, Recording), RecordError> {
    let directory = &from_the_root(directory)?;
    prepare(&RealFiles, directory, geteuid().is_root())?;
    let manifest = RecordManifest {
        schema: SCHEMA,
        tool: concat!("gpu-bootstrap ", env!("CARGO_PKG_VERSION")).to_owned(),
        recorded_at: host.clock.now(),
        ..RecordManifest::default()
    };
    let recording = Recording {
        directory: directory.to_owned(),
        secrets: secrets.clone(),
        state: Arc::new(Mutex::new(RecorderState {
            manifest,
            ..RecorderState::default()
        })),
    };
    let files = Arc::new(Recorder {
        inner: host.files.clone(),
        recording: recording.clone(),
    });
    let wrapped = Host {
        files: files.clone(),
        system: Arc::new(RecordedSystem {
            all: host.system.clone(),
            // Reads from `files`, so that the results are recorded.
            recorded: ProcFiles(files),
            programs,
        }),
        exec: Arc::new(Recorder {
            inner: host.exec.clone(),
            recording: recording.clone(),
        }),
        gpu: Arc::new(Recorder {
            inner: host.gpu.clone(),
            recording: recording.clone(),
        }),
        http: host.http.clone(),
        clock: host.clock.clone(),
    };
    Ok((wrapped, recording))
}

/// Returns the absolute path of the directory.
fn from_the_root(directory: &Utf8Path) -> Result<Utf8PathBuf, FilesError> {
    camino::absolute_utf8(directory).map_err(failed("resolve the directory", directory))
}

/// Creates the directory with access only for its owner, or uses an empty one. Root rejects a
/// directory that is writable by non-root users, because they could place symlinks in it to
/// redirect the writes of root.
fn prepare(files: &dyn Files, directory: &Utf8Path, by_root: bool) -> Result<(), RecordError> {
    if by_root {
        refuse_foreign(files, directory)?;
    }
    files.create_directory(directory, 0o700)?;
    // Another user may have created it in the meantime.
    if by_root {
        refuse_foreign(files, directory)?;
    }
    if !files.list(directory)?.is_empty() {
        return Err(RecordError::NotEmpty {
            directory: directory.to_owned(),
        });
    }
    Ok(())
}

impl Recording {
    /// Writes the recording: contents first, manifest last, so that a directory with a manifest is
    /// complete.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn finish(&self) -> Result<(), RecordError> {
        let mut state = self.state();
        self.leave_out_secrets(&mut state);
        let files = self.directory.join(FILES);
        // An existing directory may be readable by other users.
        fs::set_permissions(&self.directory, Permissions::from_mode(0o700))
            .map_err(failed("set the mode of", &self.directory))?;
        entries(&state)
            .write(&files)
            .map_err(|(path, error)| failed("write", &path)(error))?;
        let path = self.directory.join(MANIFEST);
        let text = serde_json::to_string_pretty(&state.manifest).map_err(|source| {
            RecordError::Manifest {
                path: path.clone(),
                source,
            }
        })?;
        let text = self.secrets.hide(&text).into_owned() + "\n";
        RealFiles.write(&path, text.as_bytes(), 0o600)?;
        Ok(())
    }

    /// Omits contents that contain a secret of the run. Not done while reading, because the secret may
    /// become known later.
    fn leave_out_secrets(&self, state: &mut RecorderState) {
        let RecorderState {
            manifest,
            contents,
            left_out,
            ..
        } = state;
        contents.retain(|path, content| {
            let keep = !self.secrets.are_in(&String::from_utf8_lossy(content));
            if !keep {
                left_out.insert(path.clone());
                for answer in manifest.reads.values_mut() {
                    if matches!(answer, RecordedAnswer::Is(RecordedContent::At(at)) if at == path) {
                        *answer = RecordedAnswer::Is(RecordedContent::LeftOut(SECRET.to_owned()));
                    }
                }
            }
            keep
        });
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tree for `--root`. If the machine changed during the recording, the first of two
/// conflicting entries is kept, so the most important ones (with content) are added first.
fn entries(state: &RecorderState) -> Entries<'_> {
    let mut entries = Entries::default();
    for (path, content) in &state.contents {
        entries.add(path, Entry::File(content));
    }
    let unread = (state.files.iter()).filter(|path| !state.left_out.contains(*path));
    for path in unread {
        entries.add(path, Entry::File(b""));
    }
    for path in &state.directories {
        entries.add(path, Entry::Directory);
    }
    for (path, target) in &state.links {
        entries.add(path, Entry::Symlink(target));
    }
    entries
}

/// Memory and processes. Of a process list, only the data of `programs` is recorded.
struct RecordedSystem {
    all: Arc<dyn System>,
    recorded: ProcFiles,
    programs: &'static [&'static str],
}

impl System for RecordedSystem {
    fn memory_bytes(&self) -> Result<u64, MemoryError> {
        self.recorded.memory_bytes()
    }

    fn process(&self, pid: u32) -> Process {
        self.recorded.process(pid)
    }

    fn processes(&self) -> Result<Vec<Process>, FilesError> {
        // Record the list, because a replay lists `/proc` too.
        self.recorded.0.list("/proc".into())?;
        let all = self.all.processes()?;
        let named = all.into_iter().map(|process| {
            let is_wanted = (self.programs.iter()).any(|program| process.is_called(program));
            match is_wanted {
                true => self.recorded.process(process.pid),
                false => Process {
                    name: None,
                    command: None,
                    uid: None,
                    ..process
                },
            }
        });
        Ok(named.collect())
    }
}

/// Whether only the name of a file is relevant: a library, a module, a kernel image, the mark of a container.
fn is_name(path: &Utf8Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let is_mark = matches!(name, ".dockerenv" | ".containerenv");
    name.contains(".so") || name.contains(".ko") || path.starts_with("/boot") || is_mark
}

/// Returns the stored part of a file. For the configuration space of a device, only the header is
/// stored, because serial numbers follow it.
fn kept<'c>(path: &Utf8Path, content: &'c [u8]) -> &'c [u8] {
    const HEADER: usize = 64;
    if path.starts_with("/sys") && path.file_name() == Some("config") {
        &content[..content.len().min(HEADER)]
    } else {
        content
    }
}

struct Recorder<T: ?Sized> {
    recording: Recording,
    inner: Arc<T>,
}

impl Recorder<dyn Files> {
    /// Records the content of a file. Returns its location in the recording, or the reason it is
    /// omitted.
    fn keep(&self, path: &Utf8Path, content: &[u8]) -> RecordedContent {
        let real = match self.inner.resolve(path) {
            Ok(Some(real)) => real,
            // Removed in the meantime, or not resolvable, like some paths in `/proc`.
            Ok(None) | Err(_) => path.to_owned(),
        };
        let left_out = sensitive::path(path)
            .or_else(|| sensitive::path(&real))
            .or_else(|| sensitive::content(content))
            .or_else(|| (content.len() > LARGEST).then_some("too large"));
        if let Some(why) = left_out {
            self.recording.state().left_out.insert(real);
            return RecordedContent::LeftOut(why.to_owned());
        }
        if real != path {
            self.keep_links(path);
        }
        self.recording
            .state()
            .contents
            .entry(real.clone())
            .or_insert_with(|| kept(path, content).to_vec());
        RecordedContent::At(real)
    }

    /// Records that a path was seen without being read, with the symlinks to it, for `--root` on
    /// the recording.
    fn keep_seen(&self, path: &Utf8Path) {
        let Ok(Some(real)) = self.inner.resolve(path) else {
            // A dangling symlink.
            return self.keep_links(path);
        };
        if real != path {
            self.keep_links(path);
        }
        let kind = self.inner.stat(&real).ok().flatten().map(|stat| stat.kind);
        let mut state = self.recording.state();
        match kind {
            Some(FileKind::Directory) => {
                state.directories.insert(real);
            }
            Some(FileKind::File) if sensitive::path(&real).is_none() && is_name(&real) => {
                state.files.insert(real);
            }
            _ => {}
        }
    }

    /// Records the symlinks in a path, for `--root` on the recording. They are not the result of a
    /// query, so unreadable ones are skipped.
    fn keep_links(&self, path: &Utf8Path) {
        for at in path.ancestors() {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
                continue;
            };
            if let Ok(Some(Stat {
                kind: FileKind::Link(target),
                ..
            })) = self.inner.stat(at)
                && let Ok(Some(parent)) = self.inner.resolve(parent)
            {
                self.recording
                    .state()
                    .links
                    .insert(parent.join(name), target.clone());
                // A symlink may point to a symlink.
                let next = parent.join(target);
                self.keep_next_link(&next);
            }
        }
    }

    fn keep_next_link(&self, path: &Utf8Path) {
        let known = self.recording.state().links.contains_key(path);
        if !known
            && self
                .inner
                .resolve(path)
                .is_ok_and(|real| real.as_deref() != Some(path))
        {
            self.keep_links(path);
        }
    }
}

/// Stores the first result of a query.
fn first<T: Clone>(
    answers: &mut BTreeMap<Utf8PathBuf, RecordedAnswer<T>>,
    path: &Utf8Path,
    result: &Result<T, FilesError>,
) {
    answers
        .entry(path.to_owned())
        .or_insert_with(|| RecordedAnswer::of(result));
}

impl ReadFiles for Recorder<dyn Files> {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        let result = self.inner.read(path);
        if !self.recording.state().manifest.reads.contains_key(path) {
            let answer = match &result {
                Ok(Some(content)) => RecordedAnswer::Is(self.keep(path, content)),
                Ok(None) => RecordedAnswer::Is(RecordedContent::Absent),
                Err(error) => RecordedAnswer::Error(super::RecordedError::of(error)),
            };
            let mut state = self.recording.state();
            if result.is_err() {
                state.left_out.insert(path.to_owned());
            }
            state.manifest.reads.insert(path.to_owned(), answer);
        }
        result
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        let result = self.inner.stat(path);
        first(&mut self.recording.state().manifest.stats, path, &result);
        if matches!(result, Ok(Some(_))) {
            self.keep_seen(path);
        }
        result
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        let result = self.inner.list(directory);
        first(
            &mut self.recording.state().manifest.lists,
            directory,
            &result,
        );
        if result.is_ok() {
            self.keep_seen(directory);
        }
        result
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        let result = self.inner.resolve(path);
        first(&mut self.recording.state().manifest.resolved, path, &result);
        if matches!(result, Ok(Some(_))) {
            self.keep_seen(path);
        }
        result
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        let result = self.inner.free_space(path);
        first(
            &mut self.recording.state().manifest.free_spaces,
            path,
            &result,
        );
        result
    }
}

/// Writes are forwarded but not recorded, because recordings come from `check`, which is read-only.
impl Files for Recorder<dyn Files> {
    fn write(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        self.inner.write(path, content, mode)
    }

    fn copy(
        &self,
        from: &Utf8Path,
        to: &Utf8Path,
        mode: u32,
    ) -> Result<Option<ContentDigest>, FilesError> {
        self.inner.copy(from, to, mode)
    }

    fn append(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        self.inner.append(path, content, mode)
    }

    fn link(&self, path: &Utf8Path, target: &Utf8Path) -> Result<(), FilesError> {
        self.inner.link(path, target)
    }

    fn chown(&self, path: &Utf8Path, uid: u32, gid: u32) -> Result<(), FilesError> {
        self.inner.chown(path, uid, gid)
    }

    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError> {
        self.inner.remove(path)
    }

    fn remove_empty_directory(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        self.inner.remove_empty_directory(path)
    }

    fn create_directory(&self, path: &Utf8Path, mode: u32) -> Result<(), FilesError> {
        self.inner.create_directory(path, mode)
    }

    fn sync_system(&self) -> Result<(), FilesError> {
        self.inner.sync_system()
    }

    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError> {
        self.inner.try_lock(path)
    }
}

#[async_trait]
impl Exec for Recorder<dyn Exec> {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let result = self.inner.run(cmd, on_line).await;
        let said = result.as_ref().ok().and_then(|output| {
            sensitive::content(output.stdout.as_bytes())
                .or_else(|| sensitive::content(output.stderr.as_bytes()))
        });
        let mut state = self.recording.state();
        if state.manifest.commands.iter().any(|known| known.is(cmd)) {
            return result;
        }
        let env = cmd.env.iter().map(|(_, value)| value);
        let command = match sensitive::args(cmd.args.iter().chain(env)) {
            // The command line must not be stored either.
            Some(why) => RecordedCommand {
                program: cmd.program.clone(),
                args: Vec::new(),
                env: Vec::new(),
                end: RecordedEnd::LeftOut(why.to_owned()),
            },
            None => RecordedCommand {
                program: cmd.program.clone(),
                args: cmd.args.clone(),
                env: cmd.env.clone(),
                end: said.map_or_else(
                    || RecordedEnd::of(&result),
                    |why| RecordedEnd::LeftOut(why.to_owned()),
                ),
            },
        };
        state.manifest.commands.push(command);
        result
    }
}

#[async_trait]
impl Gpu for Recorder<dyn Gpu> {
    async fn survey(&self) -> Nvml {
        let answer = self.inner.survey().await;
        let mut state = self.recording.state();
        state.manifest.nvml.get_or_insert_with(|| answer.clone());
        answer
    }

    async fn compute(&self, devices: &[String], within: Duration) -> CudaView {
        let answer = self.inner.compute(devices, within).await;
        let mut state = self.recording.state();
        state.manifest.cuda.get_or_insert_with(|| answer.clone());
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::{RecordError, prepare};
    use crate::host::{FilesError, fake::FakeFiles};

    #[test]
    fn root_rejects_a_directory_writable_by_other_users() {
        let foreign: [fn(&FakeFiles); 3] = [
            |files| {
                files.put_directory("/tmp/rec", 0o755);
                files.own("/tmp/rec", 1000, 1000);
            },
            |files| {
                files.put_directory("/home/ada", 0o755);
                files.own("/home/ada", 1000, 1000);
                files.put_link("/tmp/rec", "/home/ada");
            },
            |files| files.put_directory("/tmp/rec", 0o777),
        ];
        for arrange in foreign {
            let files = FakeFiles::new();
            files.put_directory("/tmp", 0o1777);
            arrange(&files);
            let refused = prepare(&files, "/tmp/rec".into(), true);
            assert!(
                matches!(refused, Err(RecordError::Files(FilesError::Foreign { .. }))),
                "{refused:?}"
            );
        }
        let files = FakeFiles::new();
        files.put_directory("/tmp", 0o1777);
        prepare(&files, "/tmp/rec".into(), true).expect("a new directory");
        prepare(&files, "/tmp/rec".into(), true).expect("an empty directory owned by root");
        files.put("/tmp/rec/x", "");
        let full = prepare(&files, "/tmp/rec".into(), true);
        assert!(matches!(full, Err(RecordError::NotEmpty { .. })));
    }
}
