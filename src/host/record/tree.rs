//! The tree of files that a recording writes. Every entry is created relative to one open directory, one path component at a
//! time, without following a symlink. The paths and the link targets come from the recorded machine, where other users may have
//! chosen them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::symlinkat;

use crate::host::os;

/// One entry of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry<'c> {
    Directory,
    /// A file and its content.
    File(&'c [u8]),
    /// A symlink and its target, which may be any text.
    Symlink(&'c Utf8Path),
}

/// The entries of a tree by path, parents first.
///
/// A path can be seen as a directory and later as a symlink if another process changes it during
/// the recording. The first entry wins, and conflicting entries are omitted, so that nothing is
/// ever placed below a symlink or a file.
#[derive(Debug, Default)]
pub(super) struct Entries<'c>(BTreeMap<Utf8PathBuf, Entry<'c>>);

impl<'c> Entries<'c> {
    /// Adds an entry and its parent directories, unless it contradicts the entries so far.
    pub(super) fn add(&mut self, path: &Utf8Path, entry: Entry<'c>) {
        let is_normal = |part| matches!(part, Utf8Component::RootDir | Utf8Component::Normal(_));
        let parents = || path.ancestors().skip(1);
        let is_directory = |at: &Utf8Path| (self.0.get(at)).is_none_or(|e| *e == Entry::Directory);
        // A path that could not be resolved can contain `..`.
        if !path.components().all(is_normal)
            || self.0.contains_key(path)
            || !parents().all(is_directory)
        {
            return;
        }
        for parent in parents() {
            self.0.insert(parent.to_owned(), Entry::Directory);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Creates a directory, which must not exist yet, and writes the entries into it.
    ///
    /// # Errors
    /// The path that cannot be created, with the reason.
    pub(super) fn write(&self, directory: &Utf8Path) -> Result<(), (Utf8PathBuf, io::Error)> {
        let at = |path: &Utf8Path| super::below(directory, path);
        let root = create_directory(directory).map_err(|error| (directory.to_owned(), error))?;
        for (path, entry) in &self.0 {
            create(&root, path, *entry).map_err(|error| (at(path), error))?;
        }
        Ok(())
    }
}

fn create_directory(path: &Utf8Path) -> io::Result<File> {
    fs::create_dir(path)?;
    let flags = DIRECTORY.union(OFlag::O_CLOEXEC);
    Ok(openat(
        nix::fcntl::AT_FDCWD,
        path.as_std_path(),
        flags,
        Mode::empty(),
    )?
    .into())
}

/// Flags for opening a directory. Opening a symlink fails with `ENOTDIR` or `ELOOP`.
const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Creates one entry whose parents exist. `openat2` could resolve a whole path, but the EL 8 kernel
/// 4.18 lacks it.
fn create(root: &File, path: &Utf8Path, entry: Entry<'_>) -> io::Result<()> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Utf8Component::RootDir => {}
            Utf8Component::Normal(name) => names.push(name),
            _ => return Err(os::error(Errno::EINVAL)),
        }
    }
    let Some((name, parents)) = names.split_last() else {
        return Ok(());
    };
    let mut parent = root.try_clone()?;
    for name in parents {
        parent = openat(&parent, *name, DIRECTORY, Mode::empty())?.into();
    }
    match entry {
        Entry::Directory => mkdirat(&parent, *name, Mode::from_bits_truncate(0o755))?,
        Entry::Symlink(target) => symlinkat(target.as_std_path(), &parent, *name)?,
        Entry::File(content) => {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let mode = Mode::from_bits_truncate(0o644);
            File::from(openat(&parent, *name, flags, mode)?).write_all(content)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Utf8PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
        (temporary, path)
    }

    #[test]
    fn directories_files_and_symlinks_are_written() {
        let (_keep, root) = directory();
        let mut entries = Entries::default();
        entries.add("/usr/lib/x.so".into(), Entry::File(b"x"));
        entries.add("/lib".into(), Entry::Symlink("usr/lib".into()));
        entries.add("/".into(), Entry::Directory);
        entries.add("/usr/../../outside".into(), Entry::File(b"x"));
        let files = root.join("files");
        entries.write(&files).unwrap();
        assert_eq!(fs::read_to_string(files.join("lib/x.so")).unwrap(), "x");
        assert!(!root.join("outside").exists());
        assert!(entries.write(&files).is_err(), "already exists");
    }

    /// Another user switches `/a` between a directory with symlinks and a symlink while it is recorded.
    #[test]
    fn recorded_symlinks_are_not_followed() {
        let (_keep, root) = directory();
        let victim = root.join("victim");
        fs::create_dir(&victim).unwrap();
        let link = Entry::Symlink(&victim);
        let inside: [Entry<'_>; 3] = [
            Entry::Symlink("/tmp/evil".into()),
            Entry::File(b"evil"),
            Entry::Directory,
        ];
        for (number, below) in inside.into_iter().enumerate() {
            for link_first in [true, false] {
                let mut entries = Entries::default();
                let mut add: [(&str, Entry<'_>); 2] = [("/a", link), ("/a/b", below)];
                if !link_first {
                    add.reverse();
                }
                for (path, entry) in add {
                    entries.add(path.into(), entry);
                }
                let files = root.join(format!("files-{number}-{link_first}"));
                entries.write(&files).unwrap();
                assert_eq!(files.join("a").is_symlink(), link_first);
                assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
            }
        }
    }

    #[test]
    fn existing_symlink_in_the_tree_is_not_followed() {
        let (_keep, root) = directory();
        let (victim, files) = (root.join("victim"), root.join("files"));
        fs::create_dir(&victim).unwrap();
        let tree = create_directory(&files).unwrap();
        std::os::unix::fs::symlink(&victim, files.join("a")).unwrap();
        for entry in [
            Entry::Directory,
            Entry::File(b""),
            Entry::Symlink("/x".into()),
        ] {
            assert!(create(&tree, "/a/b".into(), entry).is_err(), "{entry:?}");
            assert!(create(&tree, "/a".into(), entry).is_err(), "{entry:?}");
            assert!(create(&tree, "/a/../../b".into(), entry).is_err());
        }
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
    }
}
