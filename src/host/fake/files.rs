//! Files in memory, with faults and a hook before each mutation.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;

use super::locked;
use super::snapshot::Snapshot;
use super::tree::{Entry, Node, Tree};
use super::unsynced;
use crate::host::files::{FreeSpace, FullFilesystem, Limit};
use crate::host::os;
use crate::host::{Files, FilesError, ReadFiles, Stat};

/// An upcoming change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// A method of [`Files`] (the verb used in its errors), and its path.
    File(&'static str, Utf8PathBuf),
    /// A command that changes the machine.
    Run(String),
}

/// The operations that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Reading, listing, stat.
    Reads,
    /// All operations that change something.
    Writes,
    /// All operations, including those of the variants below.
    All,
    /// Reading file contents. Files can still be found and listed.
    Content,
    /// Syncing, after an append or of the system. Appended data stays in the file, because truncating it
    /// also fails.
    Syncs,
}

type Hook = Box<dyn FnMut(u64, &Mutation) -> io::Result<()> + Send>;

/// A file tree in memory. Clones share the tree.
#[derive(Clone)]
pub struct FakeFiles {
    state: Arc<Mutex<State>>,
}

struct State {
    tree: Tree,
    faults: Vec<(Utf8PathBuf, Damage, Errno)>,
    locks: BTreeSet<Utf8PathBuf>,
    mutations: u64,
    /// A command has changed a file since the last sync.
    unsynced: bool,
    /// The test, or its handler of a command, has changed a file on disk since the last mutation started.
    arranged: bool,
    kill_at: Option<u64>,
    dead: bool,
    hook: Option<Hook>,
}

impl Default for FakeFiles {
    fn default() -> Self {
        Self::new()
    }
}

/// Test setup: faults and the hook do not affect these methods.
impl FakeFiles {
    /// Creates an empty root directory on a filesystem with plenty of free space.
    pub fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                tree: Tree::new(),
                faults: Vec::new(),
                locks: BTreeSet::new(),
                mutations: 0,
                unsynced: false,
                arranged: false,
                kill_at: None,
                dead: false,
                hook: None,
            })),
        }
    }

    /// Creates a file with mode 0644.
    ///
    /// # Panics
    /// If the setup is impossible, such as a file inside a file or on a full filesystem.
    pub fn put(&self, path: &str, content: impl Into<Vec<u8>>) {
        self.put_mode(path, content, 0o644);
    }

    /// Creates a file with a mode.
    ///
    /// # Panics
    /// Same as [`FakeFiles::put`].
    pub fn put_mode(&self, path: &str, content: impl Into<Vec<u8>>, mode: u32) {
        self.arrange(path, Node::new(Entry::File(content.into()), mode), true);
    }

    /// Creates a symlink.
    ///
    /// # Panics
    /// Same as [`FakeFiles::put`].
    pub fn put_link(&self, path: &str, target: &str) {
        self.arrange(path, Node::new(Entry::Link(target.into()), 0o777), false);
    }

    /// Creates a character device.
    ///
    /// # Panics
    /// Same as [`FakeFiles::put`].
    pub fn put_device(&self, path: &str, major: u32, minor: u32) {
        self.arrange(
            path,
            Node::new(Entry::CharDevice(major, minor), 0o666),
            false,
        );
    }

    /// Creates an entry that is neither a file, directory, symlink nor character device.
    ///
    /// # Panics
    /// Same as [`FakeFiles::put`].
    pub fn put_other(&self, path: &str) {
        self.arrange(path, Node::new(Entry::Other, 0o644), false);
    }

    /// Creates a directory and its missing parents.
    ///
    /// # Panics
    /// Same as [`FakeFiles::put`].
    pub fn put_directory(&self, path: &str, mode: u32) {
        let mut state = locked(&self.state);
        state.arranged |= unsynced::is_on_disk(path);
        let done = state.tree.make_directories(path.into(), mode);
        drop(state);
        if let Err(error) = done {
            panic!("cannot create the directory {path}: {error}");
        }
    }

    /// Sets the owner of an existing entry.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn own(&self, path: &str, uid: u32, gid: u32) {
        let mut state = locked(&self.state);
        state.arranged |= unsynced::is_on_disk(path);
        if let Err(error) = state.change_owner(path.into(), uid, gid) {
            panic!("cannot set the owner of {path}: {error}");
        }
    }

    /// Removes the path and everything below it.
    pub fn take(&self, path: &str) {
        let mut state = locked(&self.state);
        state.arranged |= unsynced::is_on_disk(path);
        let tree = &mut state.tree;
        if let Ok(real) = tree.real(path.into(), false) {
            let below: Vec<_> = tree
                .nodes
                .keys()
                .filter(|at| at.starts_with(&real))
                .cloned()
                .collect();
            for at in below {
                tree.take(&at);
            }
        }
    }

    /// Returns the text of a file, ignoring faults.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn text(&self, path: &str) -> String {
        let state = locked(&self.state);
        match state.tree.find(path.into(), true) {
            Ok(Some((_, node))) => match &node.entry {
                Entry::File(content) => String::from_utf8_lossy(content).into_owned(),
                entry => panic!("{path} is not a file but {entry:?}"),
            },
            Ok(None) => panic!("{path} does not exist"),
            Err(error) => panic!("cannot read {path}: {error}"),
        }
    }

    /// Mounts a filesystem with this free space at the path.
    pub fn mount(&self, path: &str, free_space: FreeSpace) {
        self.put_directory(path, 0o755);
        locked(&self.state)
            .tree
            .mounts
            .insert(path.into(), free_space);
    }

    /// Makes operations at or below the path fail. A full disk is `ENOSPC`, a broken disk `EIO`.
    pub fn damage(&self, path: &str, what: Damage, errno: Errno) {
        locked(&self.state).faults.push((path.into(), what, errno));
    }

    /// Removes all faults.
    pub fn repair(&self) {
        locked(&self.state).faults.clear();
    }

    /// Makes another process hold the lock. The content describes the holder.
    pub fn hold_lock(&self, path: &str, content: &str) {
        self.put_mode(path, content, 0o600);
        locked(&self.state).locks.insert(path.into());
    }

    /// Calls this before each mutation with its number, starting with 1. If it returns an error,
    /// the mutation fails with it.
    pub fn before_mutations(
        &self,
        hook: impl FnMut(u64, &Mutation) -> io::Result<()> + Send + 'static,
    ) {
        locked(&self.state).hook = Some(Box::new(hook));
    }

    /// Kills the process right before its `n`th mutation from now: this mutation and everything
    /// after it fails without effect until [`FakeFiles::revive`].
    pub fn kill_at(&self, n: u64) {
        let mut state = locked(&self.state);
        state.kill_at = Some(state.mutations + n);
    }

    /// Starts a new process: all locks are released, faults stay.
    pub fn revive(&self) {
        let mut state = locked(&self.state);
        state.kill_at = None;
        state.dead = false;
        state.locks.clear();
    }

    /// Whether the process was killed by [`FakeFiles::kill_at`].
    pub fn killed(&self) -> bool {
        locked(&self.state).dead
    }

    /// The number of mutations so far.
    pub fn mutations(&self) -> u64 {
        locked(&self.state).mutations
    }

    /// Whether a command has changed a file since the last [`Files::sync_system`], so that a power
    /// loss may undo the change.
    pub fn is_unsynced(&self) -> bool {
        locked(&self.state).unsynced
    }

    /// Returns the current tree.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&locked(&self.state).tree)
    }

    /// Called after a command: its changes are not on disk yet.
    pub(super) fn after_command(&self) {
        let mut state = locked(&self.state);
        state.unsynced |= state.arranged;
    }

    fn arrange(&self, path: &str, node: Node, follow: bool) {
        let mut state = locked(&self.state);
        state.arranged |= unsynced::is_on_disk(path);
        if let Err(error) = state.place(path.into(), node, follow) {
            panic!("cannot create {path}: {error}");
        }
    }

    /// Fails if the process is dead.
    pub(super) fn alive(&self) -> io::Result<()> {
        locked(&self.state).alive()
    }

    /// Counts a mutation and calls the hook.
    pub(super) fn before(&self, mutation: &Mutation) -> io::Result<()> {
        let (number, hook) = {
            let mut state = locked(&self.state);
            state.alive()?;
            state.mutations += 1;
            state.arranged = false;
            if state.kill_at.is_some_and(|at| state.mutations >= at) {
                state.dead = true;
                return state.alive();
            }
            (state.mutations, state.hook.take())
        };
        // Without holding the lock, because the hook may read the files.
        let Some(mut hook) = hook else { return Ok(()) };
        let answer = hook(number, mutation);
        locked(&self.state).hook.get_or_insert(hook);
        answer
    }

    fn look<T>(
        &self,
        verb: &'static str,
        path: &Utf8Path,
        ask: impl FnOnce(&State) -> io::Result<T>,
    ) -> Result<T, FilesError> {
        let state = locked(&self.state);
        state
            .alive()
            .and_then(|()| state.fault(path, Damage::Reads))
            .and_then(|()| ask(&state))
            .map_err(os::failed(verb, path))
    }

    fn mutate<T>(
        &self,
        verb: &'static str,
        path: &Utf8Path,
        act: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> Result<T, FilesError> {
        self.before(&Mutation::File(verb, path.to_owned()))
            .and_then(|()| {
                let mut state = locked(&self.state);
                state.fault(path, Damage::Writes)?;
                let kept = state.tree.clone();
                let done = act(&mut state);
                if done.is_err() {
                    // A mutation is atomic, like a real one.
                    state.tree = kept;
                }
                done
            })
            .map_err(|source| self.disk_of(os::failed(verb, path)(source), path))
    }

    /// Adds the filesystem to an error that it caused, like the real files.
    fn disk_of(&self, mut error: FilesError, path: &Utf8Path) -> FilesError {
        if let FilesError::Io { source, disk, .. } = &mut error
            && let (mount, free_space) = locked(&self.state).tree.mount(path)
            && let Some(limit) = Limit::of(source, &free_space)
        {
            let free_space = FreeSpace {
                free: if limit == Limit::Space {
                    0
                } else {
                    free_space.free
                },
                read_only: limit == Limit::ReadOnly,
                ..free_space
            };
            *disk = Some(Box::new(FullFilesystem {
                mount,
                free_space,
                limit,
            }));
        }
        error
    }
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.dead {
            Err(io::Error::other("the process was killed by the test"))
        } else {
            Ok(())
        }
    }

    fn fault(&self, path: &Utf8Path, what: Damage) -> io::Result<()> {
        self.faults
            .iter()
            .find(|(at, damage, _)| {
                path.starts_with(at) && (*damage == what || *damage == Damage::All)
            })
            .map_or(Ok(()), |(_, _, errno)| Err(os::error(*errno)))
    }

    /// Creates a node and its missing parents. Returns its real path.
    fn place(&mut self, path: &Utf8Path, node: Node, follow: bool) -> io::Result<Utf8PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(os::error(Errno::EISDIR));
        };
        let real = self.tree.make_directories(parent, 0o755)?.join(name);
        let real = self.tree.real(&real, follow)?;
        if let Some(there) = self.tree.nodes.get(&real)
            && there.entry == Entry::Directory
        {
            return Err(os::error(Errno::EISDIR));
        }
        self.tree.put(real.clone(), node)?;
        Ok(real)
    }

    fn change_owner(&mut self, path: &Utf8Path, uid: u32, gid: u32) -> io::Result<()> {
        let real = self.tree.real(path, false)?;
        self.tree.writable(&real)?;
        let node = self
            .tree
            .nodes
            .get_mut(&real)
            .ok_or_else(|| os::error(Errno::ENOENT))?;
        (node.uid, node.gid) = (uid, gid);
        Ok(())
    }

    /// Returns the owner of the regular file that is about to be replaced, otherwise root.
    fn owner(&self, path: &Utf8Path) -> io::Result<(u32, u32)> {
        Ok(match self.tree.find(path, false)? {
            Some((_, node)) if matches!(node.entry, Entry::File(_)) => (node.uid, node.gid),
            _ => (0, 0),
        })
    }

    fn parent_writable(&mut self, path: &Utf8Path) -> io::Result<()> {
        let parent = path.parent().ok_or_else(|| os::error(Errno::EISDIR))?;
        let real = self.tree.make_directories(parent, 0o755)?;
        self.tree.writable(&real)
    }
}

impl ReadFiles for FakeFiles {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        self.look("read", path, |state| {
            state.fault(path, Damage::Content)?;
            match state.tree.find(path, true)?.map(|(_, node)| &node.entry) {
                None => Ok(None),
                Some(Entry::File(content)) => Ok(Some(content.clone())),
                Some(Entry::Directory) => Err(os::error(Errno::EISDIR)),
                Some(_) => Err(os::error(Errno::EINVAL)),
            }
        })
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        self.look("stat", path, |state| {
            Ok(state.tree.find(path, false)?.map(|(_, node)| node.stat()))
        })
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        self.look("list", directory, |state| {
            match state.tree.find(directory, true)? {
                None => Ok(Vec::new()),
                Some((real, node)) if node.entry == Entry::Directory => Ok(state.tree.names(&real)),
                Some(_) => Err(os::error(Errno::ENOTDIR)),
            }
        })
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        self.look("resolve", path, |state| {
            Ok(state.tree.find(path, true)?.map(|(real, _)| real))
        })
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        self.look("read the free space of", path, |state| {
            for at in path.ancestors() {
                if let Some((real, _)) = state.tree.find(at, true)? {
                    return Ok(state.tree.mount(&real).1);
                }
            }
            Err(os::error(Errno::ENOENT))
        })
    }
}

impl Files for FakeFiles {
    fn write(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        self.mutate("write", path, |state| {
            state.parent_writable(path)?;
            let (uid, gid) = state.owner(path)?;
            let mut node = Node::new(Entry::File(content.to_vec()), mode);
            (node.uid, node.gid) = (uid, gid);
            state.place(path, node, false).map(drop)
        })
    }

    fn append(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        self.mutate("append to", path, |state| {
            state.parent_writable(path)?;
            let mut node = match state.tree.find(path, false)? {
                None => Node::new(Entry::File(Vec::new()), mode),
                Some((_, node)) => node.clone(),
            };
            match &mut node.entry {
                Entry::File(before) => before.extend_from_slice(content),
                Entry::Link(_) => return Err(os::error(Errno::ELOOP)),
                Entry::Directory => return Err(os::error(Errno::EISDIR)),
                Entry::CharDevice(..) | Entry::Other => return Err(os::error(Errno::EINVAL)),
            }
            state.place(path, node, false).map(drop)
        })?;
        let synced = locked(&self.state).fault(path, Damage::Syncs);
        synced.map_err(os::failed("append to", path))
    }

    fn link(&self, path: &Utf8Path, target: &Utf8Path) -> Result<(), FilesError> {
        self.mutate("link", path, |state| {
            state.parent_writable(path)?;
            if let Some((_, node)) = state.tree.find(path, false)?
                && !matches!(node.entry, Entry::Link(_))
            {
                return Err(os::error(Errno::EEXIST));
            }
            let node = Node::new(Entry::Link(target.to_owned()), 0o777);
            state.place(path, node, false).map(drop)
        })
    }

    fn chown(&self, path: &Utf8Path, uid: u32, gid: u32) -> Result<(), FilesError> {
        self.mutate("change the owner of", path, |state| {
            state.change_owner(path, uid, gid)
        })
    }

    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError> {
        self.mutate("remove", path, |state| {
            let Some((real, node)) = state.tree.find(path, false)? else {
                return Ok(());
            };
            if node.entry == Entry::Directory {
                return Err(os::error(Errno::EISDIR));
            }
            state.tree.writable(&real)?;
            state.tree.take(&real);
            Ok(())
        })
    }

    fn remove_empty_directory(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        self.mutate("remove the directory", path, |state| {
            let Some((real, node)) = state.tree.find(path, false)? else {
                return Ok(true);
            };
            if node.entry != Entry::Directory {
                return Err(os::error(Errno::ENOTDIR));
            }
            if !state.tree.names(&real).is_empty() {
                return Ok(false);
            }
            state.tree.writable(&real)?;
            state.tree.take(&real);
            Ok(true)
        })
    }

    fn create_directory(&self, path: &Utf8Path, mode: u32) -> Result<(), FilesError> {
        self.mutate("create the directory", path, |state| {
            state.tree.make_directories(path, mode).map(drop)
        })
    }

    fn sync_system(&self) -> Result<(), FilesError> {
        let root = Utf8Path::new("/");
        let mut state = locked(&self.state);
        state
            .alive()
            .and_then(|()| state.fault(root, Damage::Syncs))
            .map_err(os::failed("sync", root))?;
        state.unsynced = false;
        Ok(())
    }

    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError> {
        self.mutate("lock", path, |state| {
            if !state.locks.insert(path.to_owned()) {
                return Ok(false);
            }
            let holder = Entry::File(b"pid 1, `fake`, since 2026-01-01T00:00:00Z\n".to_vec());
            state.place(path, Node::new(holder, 0o600), false)?;
            Ok(true)
        })
        .map(|taken| {
            taken.then(|| -> Box<dyn Send + Sync> {
                Box::new(Guard {
                    files: self.clone(),
                    path: path.to_owned(),
                })
            })
        })
    }
}

struct Guard {
    files: FakeFiles,
    path: Utf8PathBuf,
}

impl Drop for Guard {
    fn drop(&mut self) {
        locked(&self.files.state).locks.remove(&self.path);
    }
}
