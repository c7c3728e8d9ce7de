//! Files on this machine. A write is either complete and on disk, or it did not happen.
//!
//! A writing method opens the parent directory once and works relative to it, so that a directory
//! that is replaced in the meantime cannot redirect the write.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::sync::atomic::{AtomicU32, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, symlinkat, unlinkat};

use super::{
    disk::{failed, free_space},
    lock::Lock,
    sync,
};
use crate::host::digest::{ContentDigest, Digesting};
use crate::host::files::{FreeSpace, unfinished};
use crate::host::os::{self, present};
use crate::host::{Files, FilesError, ReadFiles, Stat};

/// The maximum number of attempts to find a name for a temporary file.
const TEMPORARY_NAMES: u32 = 100;

/// The flags for opening a lock file: never follow a symlink, never block on a pipe.
const LOCK_FLAGS: OFlag = OFlag::O_RDWR
    .union(OFlag::O_CREAT)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK);

/// The files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFiles;

impl ReadFiles for RealFiles {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        present(read_regular(path)).map_err(failed("read", path))
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        present(stat(path)).map_err(failed("stat", path))
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        match list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(failed("list", directory)),
        }
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        present(path.canonicalize_utf8()).map_err(failed("resolve", path))
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        free_space(path).map_err(failed("read the free space of", path))
    }

    fn digest(&self, path: &Utf8Path) -> Result<Option<ContentDigest>, FilesError> {
        let digest = open_regular(path).and_then(|file| {
            let mut source = Digesting::new(file);
            io::copy(&mut source, &mut io::sink())?;
            Ok(source.digest())
        });
        present(digest).map_err(failed("read", path))
    }

    fn open(&self, path: &Utf8Path) -> Result<Option<Box<dyn io::Read + Send>>, FilesError> {
        let file = present(open_regular(path)).map_err(failed("read", path))?;
        Ok(file.map(|file| Box::new(file) as Box<dyn io::Read + Send>))
    }
}

impl Files for RealFiles {
    fn write(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        let (directory, name) = Directory::of(path, true).map_err(failed("write", path))?;
        directory
            .replace(name, mode, |file| file.write_all(content))
            .map_err(failed("write", path))
    }

    fn copy(
        &self,
        from: &Utf8Path,
        to: &Utf8Path,
        mode: u32,
    ) -> Result<Option<ContentDigest>, FilesError> {
        let source = present(open_regular(from)).map_err(failed("read", from))?;
        let Some(source) = source else {
            return Ok(None);
        };
        let mut source = Digesting::new(source);
        let (directory, name) = Directory::of(to, true).map_err(failed("write", to))?;
        let copied = directory.replace(name, mode, |file| io::copy(&mut source, file).map(drop));
        match copied {
            Ok(()) => Ok(Some(source.digest())),
            Err(error) if source.has_failed() => Err(failed("read", from)(error)),
            Err(error) => Err(failed("write", to)(error)),
        }
    }

    fn append(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
        let (directory, name) = Directory::of(path, true).map_err(failed("append to", path))?;
        directory
            .append(name, content, mode)
            .map_err(failed("append to", path))
    }

    fn link(&self, path: &Utf8Path, target: &Utf8Path) -> Result<(), FilesError> {
        let (directory, name) = Directory::of(path, true).map_err(failed("link", path))?;
        directory.link(name, target).map_err(failed("link", path))
    }

    fn chown(&self, path: &Utf8Path, uid: u32, gid: u32) -> Result<(), FilesError> {
        Directory::of(path, false)
            .and_then(|(directory, name)| directory.chown(name, uid, gid))
            .map_err(failed("change the owner of", path))
    }

    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError> {
        present(Directory::of(path, false).and_then(|(directory, name)| {
            unlinkat(&directory.0, name, UnlinkatFlags::NoRemoveDir)?;
            directory.sync()
        }))
        .map(drop)
        .map_err(failed("remove", path))
    }

    fn remove_empty_directory(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        let gone = Directory::of(path, false).and_then(|(directory, name)| {
            unlinkat(&directory.0, name, UnlinkatFlags::RemoveDir)?;
            directory.sync()
        });
        match gone {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            // POSIX allows both errors for a non-empty directory.
            Err(error) if is(&error, Errno::ENOTEMPTY) || is(&error, Errno::EEXIST) => Ok(false),
            Err(error) => Err(failed("remove the directory", path)(error)),
        }
    }

    fn create_directory(&self, path: &Utf8Path, mode: u32) -> Result<(), FilesError> {
        create_directories(path, mode).map_err(failed("create the directory", path))
    }

    fn sync_system(&self) -> Result<(), FilesError> {
        sync::system()
    }

    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError> {
        let taken = Directory::of(path, true)
            .and_then(|(directory, name)| Lock::take(directory.open(name, LOCK_FLAGS)?))
            .map_err(failed("lock", path))?;
        Ok(taken.map(|lock| -> Box<dyn Send + Sync> { Box::new(lock) }))
    }
}

fn read_regular(path: &Utf8Path) -> io::Result<Vec<u8>> {
    os::read_whole(open_regular(path)?)
}

fn open_regular(path: &Utf8Path) -> io::Result<File> {
    os::regular(&fs::metadata(path)?)?;
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

fn stat(path: &Utf8Path) -> io::Result<Stat> {
    os::stat(&fs::symlink_metadata(path)?, || path.read_link_utf8())
}

fn list(directory: &Utf8Path) -> io::Result<Vec<String>> {
    let mut names = fs::read_dir(directory)?
        // A name with invalid UTF-8 is listed with replacement characters, so it cannot be opened
        // by mistake.
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Creates a directory and its missing parents. Each one is synced into its parent.
fn create_directories(path: &Utf8Path, mode: u32) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(about) if about.is_dir() => return Ok(()),
        Ok(_) => return Err(os::error(Errno::ENOTDIR)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let (above, name) = Directory::of(path, true)?;
    match mkdirat(&above.0, name, Mode::from_bits_truncate(mode)) {
        // Another process created the path first. If it is not a directory, opening it fails later.
        Err(Errno::EEXIST) => return Ok(()),
        made => made?,
    }
    let made = above.open(
        name,
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW,
    )?;
    // `mkdir` applied the umask.
    made.set_permissions(Permissions::from_mode(mode))?;
    made.sync_all()?;
    above.sync()
}

/// An open directory. All operations are relative to it.
struct Directory(File);

impl Directory {
    /// Returns the parent directory and the last component of a path.
    fn of(path: &Utf8Path, create: bool) -> io::Result<(Self, &str)> {
        // A path that is `/` or ends in `..` cannot be written.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(os::error(Errno::EINVAL));
        };
        // A name without a directory is in the working directory.
        let parent = match parent.as_str() {
            "" => Utf8Path::new("."),
            _ => parent,
        };
        if create {
            create_directories(parent, 0o755)?;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(AT_FDCWD, parent.as_std_path(), flags, Mode::empty())?;
        Ok((Self(directory.into()), name))
    }

    fn open(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let mode = Mode::from_bits_truncate(0o600);
        Ok(openat(&self.0, name, flags | OFlag::O_CLOEXEC, mode)?.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn about(&self, name: &str) -> io::Result<Option<FileStat>> {
        match fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(about)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(os::error(errno)),
        }
    }

    /// Calls `make` with temporary names until one is free.
    fn temporary<T>(
        &self,
        name: &str,
        mut make: impl FnMut(&str) -> io::Result<T>,
    ) -> io::Result<(T, String)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..TEMPORARY_NAMES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = unfinished(name, std::process::id(), number);
            match make(&name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|made| (made, name)),
            }
        }
        Err(os::error(Errno::EEXIST))
    }

    /// Renames a temporary file to its final name if `ready` is not an error. Otherwise, or if
    /// renaming fails, removes the temporary file.
    fn put_in_place(&self, temporary: &str, name: &str, ready: io::Result<()>) -> io::Result<()> {
        let renamed = ready.and_then(|()| {
            renameat(&self.0, temporary, &self.0, name)?;
            Ok(())
        });
        if let Err(error) = renamed {
            // Report the first error. A remaining temporary file is recognized by its name.
            return match unlinkat(&self.0, temporary, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => Err(error),
                Err(errno) => Err(io::Error::new(
                    error.kind(),
                    format!(
                        "{error} (also failed to remove the temporary file `{temporary}`: {errno})"
                    ),
                )),
            };
        }
        self.sync()
    }

    fn replace(
        &self,
        name: &str,
        mode: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let owner = self
            .about(name)?
            .filter(|about| kind_of(about) == SFlag::S_IFREG)
            .map(|about| (about.st_uid, about.st_gid));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let (mut file, temporary) = self.temporary(name, |name| self.open(name, flags))?;
        let ready = (|| {
            fill(&mut file)?;
            let about = file.metadata()?;
            if let Some((uid, gid)) = owner.filter(|owner| *owner != (about.uid(), about.gid())) {
                fchown(file.as_fd(), Some(uid), Some(gid))?;
            }
            // Set the mode after the owner, because changing the owner clears set-uid bits.
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()
        })();
        self.put_in_place(&temporary, name, ready)
    }

    fn append(&self, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let (mut file, new) = match self.open(name, flags | OFlag::O_CREAT | OFlag::O_EXCL) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (self.open(name, flags)?, false)
            }
            file => (file?, true),
        };
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(os::error(Errno::EINVAL));
        }
        if new {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        let directory = new.then_some(self);
        whole_or_nothing(&mut file, about.len(), content, |file| {
            file.sync_all()?;
            directory.map_or(Ok(()), Self::sync)
        })
    }

    fn link(&self, name: &str, target: &Utf8Path) -> io::Result<()> {
        if let Some(about) = self.about(name)?
            && kind_of(&about) != SFlag::S_IFLNK
        {
            return Err(os::error(Errno::EEXIST));
        }
        let ((), temporary) = self.temporary(name, |name| {
            Ok(symlinkat(target.as_std_path(), &self.0, name)?)
        })?;
        self.put_in_place(&temporary, name, Ok(()))
    }

    fn chown(&self, name: &str, uid: u32, gid: u32) -> io::Result<()> {
        let about = self.about(name)?.ok_or_else(|| os::error(Errno::ENOENT))?;
        let kind = kind_of(&about);
        if kind == SFlag::S_IFREG || kind == SFlag::S_IFDIR {
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
            let file = self.open(name, flags)?;
            fchown(file.as_fd(), Some(uid), Some(gid))?;
            return file.sync_all();
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        fchownat(&self.0, name, Some(uid), Some(gid), flags)?;
        self.sync()
    }
}

/// Appends to a file with `before` bytes. If writing or syncing fails, the file is truncated to this
/// size, because a record that is incomplete or may be lost in a power loss is worse than none.
fn whole_or_nothing(
    file: &mut File,
    before: u64,
    content: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let Err(error) = file.write_all(content).and_then(|()| sync(file)) else {
        return Ok(());
    };
    // The returned error has the kind of the write error in both cases, because callers check it.
    match file.set_len(before) {
        Ok(()) => Err(error),
        Err(also) => Err(io::Error::new(
            error.kind(),
            format!("{error} (also failed to remove the written data: {also})"),
        )),
    }
}

fn kind_of(about: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(about.st_mode & SFlag::S_IFMT.bits())
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::FileKind;

    fn directory() -> (tempfile::TempDir, Utf8PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
        (temporary, path)
    }

    #[test]
    fn write_is_complete_with_exact_mode_and_no_leftovers() {
        let (_keep, root) = directory();
        let path = root.join("a/b/daemon.json");
        RealFiles.write(&path, b"one", 0o666).unwrap();
        RealFiles.write(&path, b"two", 0o640).unwrap();
        assert_eq!(RealFiles.read_text(&path).unwrap().unwrap(), "two");
        let stat = RealFiles.stat(&path).unwrap().unwrap();
        assert_eq!(
            (stat.kind, stat.mode, stat.size),
            (FileKind::File, 0o640, 3)
        );
        let parent = RealFiles.stat(&root.join("a/b")).unwrap().unwrap();
        assert_eq!((parent.kind, parent.mode), (FileKind::Directory, 0o755));
        assert_eq!(RealFiles.list(&root.join("a/b")).unwrap(), ["daemon.json"]);
        RealFiles.write(&path, b"", 0o4666).unwrap();
        assert_eq!(RealFiles.stat(&path).unwrap().unwrap().mode, 0o4666);
    }

    #[test]
    fn failed_write_keeps_the_old_content() {
        let (_keep, root) = directory();
        RealFiles
            .create_directory(&root.join("x/y"), 0o700)
            .unwrap();
        assert!(RealFiles.write(&root.join("x"), b"", 0o644).is_err());
        assert_eq!(RealFiles.list(&root).unwrap(), ["x"]);
        RealFiles.write(&root.join("file"), b"1", 0o644).unwrap();
        let below = RealFiles.write(&root.join("file/below"), b"", 0o644);
        assert!(matches!(below, Err(FilesError::Io { verb: "write", .. })));
        assert_eq!(RealFiles.read(&root.join("file/below")).unwrap(), None);
    }

    #[test]
    fn write_replaces_a_symlink_and_not_its_target() {
        let (_keep, root) = directory();
        RealFiles.write(&root.join("target"), b"t", 0o644).unwrap();
        RealFiles.link(&root.join("l"), "target".into()).unwrap();
        assert_eq!(
            RealFiles.resolve(&root.join("l")).unwrap().unwrap(),
            root.join("target")
        );
        RealFiles.write(&root.join("l"), b"l", 0o644).unwrap();
        assert_eq!(
            RealFiles.read_text(&root.join("target")).unwrap().unwrap(),
            "t"
        );
        assert_eq!(
            RealFiles.stat(&root.join("l")).unwrap().unwrap().kind,
            FileKind::File
        );
    }

    #[test]
    fn append_does_not_follow_symlinks() {
        let (_keep, root) = directory();
        let path = root.join("journal");
        RealFiles.append(&path, b"1\n", 0o600).unwrap();
        RealFiles.append(&path, b"2\n", 0o644).unwrap();
        assert_eq!(RealFiles.read_text(&path).unwrap().unwrap(), "1\n2\n");
        assert_eq!(RealFiles.stat(&path).unwrap().unwrap().mode, 0o600);
        RealFiles.link(&root.join("l"), "journal".into()).unwrap();
        assert!(RealFiles.append(&root.join("l"), b"3\n", 0o600).is_err());
    }

    #[test]
    fn unsynced_data_is_truncated() {
        let (_keep, root) = directory();
        let path = root.join("journal");
        RealFiles.append(&path, b"1\n", 0o600).unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let failed = whole_or_nothing(&mut file, 2, b"2\n", |file| {
            assert_eq!(file.metadata()?.len(), 4);
            Err(os::error(Errno::EIO))
        });
        assert!(is(&failed.unwrap_err(), Errno::EIO));
        assert_eq!(RealFiles.read_text(&path).unwrap().unwrap(), "1\n");
    }

    #[test]
    fn symlink_replaces_only_symlinks() {
        let (_keep, root) = directory();
        let link = root.join("l");
        RealFiles.link(&link, "/nowhere".into()).unwrap();
        RealFiles.link(&link, "/elsewhere".into()).unwrap();
        assert_eq!(
            RealFiles.stat(&link).unwrap().unwrap().kind,
            FileKind::Link("/elsewhere".into())
        );
        assert_eq!(RealFiles.resolve(&link).unwrap(), None);
        assert_eq!(RealFiles.read(&link).unwrap(), None);
        RealFiles.write(&root.join("f"), b"", 0o644).unwrap();
        assert!(RealFiles.link(&root.join("f"), "l".into()).is_err());
    }

    #[test]
    fn remove_accepts_missing_paths() {
        let (_keep, root) = directory();
        let directory = root.join("d");
        RealFiles.remove(&root.join("none/at/all")).unwrap();
        RealFiles.write(&directory.join("f"), b"", 0o644).unwrap();
        assert!(!RealFiles.remove_empty_directory(&directory).unwrap());
        assert!(RealFiles.remove(&directory).is_err());
        RealFiles.remove(&directory.join("f")).unwrap();
        assert!(RealFiles.remove_empty_directory(&directory).unwrap());
        assert!(RealFiles.remove_empty_directory(&directory).unwrap());
        assert_eq!(RealFiles.list(&root).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn files_above_the_read_limit_are_copied_and_have_a_digest() {
        let (_keep, root) = directory();
        let (large, copy) = (root.join("large"), root.join("a/copy"));
        File::create(&large).unwrap().set_len(257 << 20).unwrap();
        assert!(RealFiles.read(&large).is_err());
        let digest = ContentDigest {
            size: 257 << 20,
            // Source: `head -c 257M /dev/zero | sha256sum`.
            sha256: "053eadfdec682cf16f3f8704c7609c57868dd75765e08dc5a7491f5d06bcb74d".to_owned(),
        };
        let copied = RealFiles.copy(&large, &copy, 0o640).unwrap();
        assert_eq!(copied.as_ref(), Some(&digest));
        assert_eq!(RealFiles.digest(&copy).unwrap(), Some(digest));
        assert_eq!(RealFiles.stat(&copy).unwrap().unwrap().mode, 0o640);
        let missing = root.join("missing");
        assert_eq!(RealFiles.digest(&missing).unwrap(), None);
        assert_eq!(RealFiles.copy(&missing, &copy, 0o640).unwrap(), None);
        assert!(RealFiles.digest("/dev/null".into()).is_err());
    }

    #[test]
    fn device_content_is_not_read() {
        let null = Utf8Path::new("/dev/null");
        assert_eq!(
            RealFiles.stat(null).unwrap().unwrap().kind,
            FileKind::CharDevice(1, 3)
        );
        assert!(RealFiles.read(null).is_err());
        assert!(RealFiles.read("/proc".into()).is_err());
        assert!(
            RealFiles
                .read_text("/proc/version".into())
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn free_space_of_the_nearest_parent_is_returned() {
        let (_keep, root) = directory();
        let here = RealFiles.free_space(&root).unwrap();
        let below = RealFiles.free_space(&root.join("not/there")).unwrap();
        assert!(here.total > 0 && !here.read_only);
        assert_eq!(here.total, below.total);
    }

    #[test]
    fn full_filesystem_is_in_the_error() {
        let (_keep, root) = directory();
        let full = failed("write", &root.join("not/there"))(os::error(Errno::ENOSPC));
        let disk = full.disk().unwrap();
        assert!(root.starts_with(&disk.mount), "{disk:?}");
        assert!(full.hint().unwrap().contains(disk.mount.as_str()));
        assert_eq!(
            disk.free_space.total,
            RealFiles.free_space(&root).unwrap().total
        );
        assert_eq!(full.reason(), Some("no-disk-space"));
        let other = failed("write", &root)(os::error(Errno::EACCES));
        assert_eq!((other.disk(), other.hint()), (None, None));
    }

    #[test]
    fn name_without_directory_is_in_the_working_directory() {
        for path in ["recording", "./recording"] {
            let (directory, name) = Directory::of(Utf8Path::new(path), false).unwrap();
            assert!(directory.0.metadata().unwrap().is_dir());
            assert_eq!(name, "recording");
        }
    }

    #[test]
    fn owner_is_changed_if_permitted() {
        let (_keep, root) = directory();
        let path = root.join("f");
        RealFiles.write(&path, b"", 0o600).unwrap();
        let stat = RealFiles.stat(&path).unwrap().unwrap();
        RealFiles.chown(&path, stat.uid, stat.gid).unwrap();
        assert!(RealFiles.chown(&root.join("none"), 0, 0).is_err());
        if nix::unistd::geteuid().is_root() {
            RealFiles.chown(&path, 12, 34).unwrap();
            RealFiles.write(&path, b"new", 0o644).unwrap();
            let stat = RealFiles.stat(&path).unwrap().unwrap();
            assert_eq!((stat.uid, stat.gid, stat.mode), (12, 34, 0o644));
        }
    }
}
