//! The file tree in memory: nodes by path, symlinks, free space. Operations return the same errors
//! as the operating system.

use std::collections::BTreeMap;
use std::io;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use nix::errno::Errno;

use crate::host::files::FreeSpace;
use crate::host::os;
use crate::host::{FileKind, Stat};

/// The number of symlinks that Linux follows before `ELOOP`.
const MAX_LINKS: usize = 40;

/// The entry at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    File(Vec<u8>),
    Directory,
    Link(Utf8PathBuf),
    CharDevice(u32, u32),
    Other,
}

/// An entry with its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub entry: Entry,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
    pub inode: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// All nodes by their real path, without symlinks.
    pub nodes: BTreeMap<Utf8PathBuf, Node>,
    /// Free space by mount point. `/` always exists.
    pub mounts: BTreeMap<Utf8PathBuf, FreeSpace>,
    /// The number of changes. Also the modification time of the latest change.
    pub tick: i64,
}

impl Node {
    pub fn new(entry: Entry, mode: u32) -> Self {
        Self {
            entry,
            mode,
            uid: 0,
            gid: 0,
            mtime: 0,
            inode: 0,
        }
    }

    pub fn size(&self) -> u64 {
        match &self.entry {
            Entry::File(content) => content.len() as u64,
            Entry::Link(target) => target.as_str().len() as u64,
            Entry::Directory | Entry::CharDevice(..) | Entry::Other => 0,
        }
    }

    pub fn stat(&self) -> Stat {
        Stat {
            kind: match &self.entry {
                Entry::File(_) => FileKind::File,
                Entry::Directory => FileKind::Directory,
                Entry::Link(target) => FileKind::Link(target.clone()),
                Entry::CharDevice(major, minor) => FileKind::CharDevice(*major, *minor),
                Entry::Other => FileKind::Other,
            },
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size(),
            mtime: self.mtime,
            inode: self.inode,
        }
    }
}

impl Tree {
    pub fn new() -> Self {
        let free_space = FreeSpace {
            total: 100 << 30,
            free: 80 << 30,
            read_only: false,
            inodes: None,
        };
        Self {
            nodes: BTreeMap::from([("/".into(), Node::new(Entry::Directory, 0o755))]),
            mounts: BTreeMap::from([("/".into(), free_space)]),
            tick: 0,
        }
    }

    /// Resolves all symlinks in a path. The last component need not exist, and is resolved only if
    /// `follow` is set. Returns `ENOENT` or `ENOTDIR` if another component is missing or not a
    /// directory.
    pub fn real(&self, path: &Utf8Path, follow: bool) -> io::Result<Utf8PathBuf> {
        self.walk(path, follow, &mut 0)
    }

    fn walk(&self, path: &Utf8Path, follow: bool, links: &mut usize) -> io::Result<Utf8PathBuf> {
        if !path.is_absolute() {
            // Unlike the real files, the fake has no working directory.
            return Err(os::error(Errno::EINVAL));
        }
        let mut at = Utf8PathBuf::from("/");
        let mut rest = path.components().peekable();
        while let Some(component) = rest.next() {
            match component {
                Utf8Component::Prefix(_) | Utf8Component::RootDir | Utf8Component::CurDir => {
                    continue;
                }
                Utf8Component::ParentDir => {
                    at.pop();
                    continue;
                }
                Utf8Component::Normal(name) => match self.nodes.get(&at) {
                    None => return Err(os::error(Errno::ENOENT)),
                    Some(node) if node.entry != Entry::Directory => {
                        return Err(os::error(Errno::ENOTDIR));
                    }
                    Some(_) => at.push(name),
                },
            }
            let last = rest.peek().is_none();
            if last && !follow {
                break;
            }
            if let Some(Node {
                entry: Entry::Link(target),
                ..
            }) = self.nodes.get(&at)
            {
                *links += 1;
                if *links > MAX_LINKS {
                    return Err(os::error(Errno::ELOOP));
                }
                at.pop();
                // `join` with an absolute target returns the target.
                at = self.walk(&at.join(target), true, links)?;
            }
        }
        Ok(at)
    }

    /// Returns the node at a path, or `None` if it does not exist.
    pub fn find(&self, path: &Utf8Path, follow: bool) -> io::Result<Option<(Utf8PathBuf, &Node)>> {
        match self.real(path, follow) {
            Ok(real) => Ok(self.nodes.get(&real).map(|node| (real, node))),
            Err(error) if os::absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the names in a directory.
    pub fn names(&self, directory: &Utf8Path) -> Vec<String> {
        self.nodes
            .range(directory.to_owned()..)
            .take_while(|(path, _)| path.starts_with(directory))
            .filter(|(path, _)| path.parent() == Some(directory))
            .filter_map(|(path, _)| path.file_name().map(str::to_owned))
            .collect()
    }

    /// Returns the mount point of a real path, and its free space.
    pub fn mount(&self, real: &Utf8Path) -> (Utf8PathBuf, FreeSpace) {
        real.ancestors()
            .find_map(|at| {
                self.mounts
                    .get(at)
                    .map(|free_space| (at.to_owned(), *free_space))
            })
            .unwrap_or_else(|| {
                let free_space = FreeSpace {
                    total: 0,
                    free: 0,
                    read_only: true,
                    inodes: None,
                };
                ("/".into(), free_space)
            })
    }

    /// Fails on a read-only mount.
    pub fn writable(&self, real: &Utf8Path) -> io::Result<()> {
        if self.mount(real).1.read_only {
            Err(os::error(Errno::EROFS))
        } else {
            Ok(())
        }
    }

    /// Puts a node at a real path, replaces an existing one, and updates the free space.
    pub fn put(&mut self, real: Utf8PathBuf, mut node: Node) -> io::Result<()> {
        let (mount, free_space) = self.mount(&real);
        let there = self.nodes.get(&real);
        let before = there.map_or(0, Node::size);
        let inode = there.map(|node| node.inode);
        let Some(free) = (free_space.free + before).checked_sub(node.size()) else {
            return Err(os::error(Errno::ENOSPC));
        };
        self.mounts.insert(mount, FreeSpace { free, ..free_space });
        self.tick += 1;
        node.mtime = self.tick;
        // All ticks are different, so all inode numbers are different.
        node.inode = inode.unwrap_or(self.tick.unsigned_abs());
        self.nodes.insert(real, node);
        Ok(())
    }

    /// Removes the node at a real path, and adds its size to the free space.
    pub fn take(&mut self, real: &Utf8Path) {
        if let Some(node) = self.nodes.remove(real) {
            let (mount, free_space) = self.mount(real);
            let free = free_space.free + node.size();
            self.mounts.insert(mount, FreeSpace { free, ..free_space });
            self.tick += 1;
        }
    }

    /// Creates a directory and its missing parents. Returns its real path.
    pub fn make_directories(&mut self, path: &Utf8Path, mode: u32) -> io::Result<Utf8PathBuf> {
        if let Some((real, node)) = self.find(path, true)? {
            return if node.entry == Entry::Directory {
                Ok(real)
            } else {
                Err(os::error(Errno::ENOTDIR))
            };
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(os::error(Errno::ENOENT));
        };
        let real = self.make_directories(parent, 0o755)?.join(name);
        if self.nodes.contains_key(&real) {
            // A dangling symlink.
            return Err(os::error(Errno::EEXIST));
        }
        self.writable(&real)?;
        self.put(real.clone(), Node::new(Entry::Directory, mode))?;
        Ok(real)
    }
}
