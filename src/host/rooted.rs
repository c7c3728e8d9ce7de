//! `--root DIR`: uses a mounted image or a recorded tree instead of `/`. Only its files are read,
//! and no command is executed. Symlinks are resolved inside the tree, as if it were booted. This
//! includes symlinks of drivers, libraries and directories such as `/lib` that are text files in the
//! tree, because git and some archivers write text files if they cannot create symlinks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::statvfs::fstatvfs;

use super::files::FreeSpace;
use super::os::{self, absent, failed, present};
use super::read_only;
use super::{FileKind, FilesError, Host, ReadFiles, Stat};

/// The reason for rejected calls.
const WHY: &str = "a `--root` tree is read-only and no command is executed in it";

/// The reason for an unknown free space.
const NO_SPACE: &str =
    "the `--root` tree is a directory, not a mounted filesystem, so its free space is unknown";

/// The kernel requires a retry if a directory was moved during the lookup.
const ATTEMPTS: usize = 16;

/// The maximum size of a file in a tree. Package lists are up to 80 MB.
const FILE_LIMIT: u64 = 128 << 20;

/// The maximum total size that is read, because a small archive can contain any number of huge
/// sparse files.
const TREE_LIMIT: u64 = 2 << 30;

/// Directories that are symlinks on most systems.
const DIRECTORIES: [&str; 6] = ["/var/run", "/var/lock", "/bin", "/sbin", "/lib", "/lib64"];

/// The files in a directory.
#[derive(Debug)]
pub struct RootedFiles {
    root: File,
    /// The real path of the directory: the prefix of every path that the kernel resolves in it.
    prefix: Utf8PathBuf,
    /// The filesystem around the tree, which is not part of the inspected machine.
    outside: u64,
    /// The remaining number of bytes that may be read.
    left: AtomicU64,
}

/// Creates a read-only host that uses this directory as `/`.
///
/// # Errors
/// If the directory cannot be opened.
pub fn host(directory: &Utf8Path) -> Result<Host, FilesError> {
    Ok(read_only::host(RootedFiles::open(directory)?, WHY))
}

impl RootedFiles {
    /// Opens the files in this directory.
    ///
    /// # Errors
    /// If the path cannot be opened or is not a directory.
    pub fn open(directory: &Utf8Path) -> Result<Self, FilesError> {
        let opened = directory.canonicalize_utf8().and_then(|prefix| {
            let root = File::open(&prefix)?;
            if !root.metadata()?.is_dir() {
                return Err(os::error(Errno::ENOTDIR));
            }
            let outside = prefix.parent().unwrap_or(&prefix).metadata()?.dev();
            Ok(Self {
                root,
                prefix,
                outside,
                left: AtomicU64::new(TREE_LIMIT),
            })
        });
        opened.map_err(failed("open", directory))
    }

    fn open_at(&self, path: &Utf8Path, flags: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        for _ in 0..ATTEMPTS {
            match openat2(&self.root, path.as_std_path(), how) {
                Err(Errno::EAGAIN) => {}
                Err(Errno::ENOSYS) => {
                    let why = "`--root` needs `openat2`, which is available since Linux 5.6";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
                opened => return Ok(opened?.into()),
            }
        }
        Err(os::error(Errno::EAGAIN))
    }

    /// Returns the target of a symlink that is stored as a text file. Only for paths that are
    /// always symlinks or directories on a real machine: the driver of a device, a library name
    /// without its complete version, and [`DIRECTORIES`]. Returns `None` for an unreadable file, because
    /// the caller reports the error when it reads the file.
    fn link_as_text(&self, path: &Utf8Path) -> Option<Utf8PathBuf> {
        /// Paths in packages and in sysfs are shorter.
        const LONGEST: u64 = 255;
        let name = path.file_name()?;
        let is_driver = path.starts_with("/sys") && name == "driver";
        if !is_driver && !name.contains(".so.") && !DIRECTORIES.contains(&path.as_str()) {
            return None;
        }
        let file = self.open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW).ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || !(1..=LONGEST).contains(&about.len()) {
            return None;
        }
        let text = String::from_utf8(self.read_regular(path).ok()?).ok()?;
        let target = text.trim_end_matches('\n');
        let is_path = target
            .chars()
            .all(|one| one.is_ascii_graphic() && !matches!(one, '"' | '\'' | '*'));
        (is_path && !target.is_empty()).then(|| target.into())
    }

    /// Replaces parent directories that are symlinks stored as text.
    fn below_directories(&self, path: &Utf8Path) -> Utf8PathBuf {
        let inside = DIRECTORIES.iter().find_map(|directory| {
            let rest = path.strip_prefix(directory).ok()?;
            let target = self.link_as_text((*directory).into())?;
            let parent = Utf8Path::new(directory).parent().unwrap_or("/".into());
            (!rest.as_str().is_empty()).then(|| parent.join(target).join(rest))
        });
        inside.unwrap_or_else(|| path.to_owned())
    }

    /// Follows symlinks stored as text.
    fn followed(&self, path: &Utf8Path) -> Utf8PathBuf {
        /// The maximum number of symlinks in a chain such as libcuda.so, libcuda.so.1,
        /// libcuda.so.580.95.05.
        const CHAIN: usize = 4;
        let mut at = self.below_directories(path);
        for _ in 0..CHAIN {
            let Some(target) = self.link_as_text(&at) else {
                break;
            };
            at = at.parent().unwrap_or("/".into()).join(target);
        }
        at
    }

    fn read_regular(&self, path: &Utf8Path) -> io::Result<Vec<u8>> {
        // Check the type before opening, because opening can trigger an action of a device or block
        // on a pipe.
        os::regular(&self.open_at(path, OFlag::O_PATH)?.metadata()?)?;
        let file = self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let left = self.left.load(Ordering::Relaxed);
        let content = os::read_at_most(file, left.min(FILE_LIMIT))?;
        // Parallel reads can exceed the limit by a few files.
        let read = content.len() as u64;
        let less = |left: u64| Some(left.saturating_sub(read));
        let _ = (self.left).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        Ok(content)
    }

    fn stat_at(&self, path: &Utf8Path) -> io::Result<Stat> {
        let file = self.open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        let stat = os::stat(&file.metadata()?, || text(readlinkat(&file, "")?.into()))?;
        Ok(match self.link_as_text(path) {
            Some(target) => Stat {
                kind: FileKind::Link(target),
                ..stat
            },
            None => stat,
        })
    }

    fn names(&self, directory: &Utf8Path) -> io::Result<Vec<String>> {
        let opened = self.open_at(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::from_fd(opened.into())?.iter() {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn real(&self, path: &Utf8Path) -> io::Result<Utf8PathBuf> {
        let file = self.open_at(path, OFlag::O_PATH)?;
        // The kernel's path of an open file.
        let at = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let at = text(at)?;
        let inside = at.strip_prefix(&self.prefix).map_err(io::Error::other)?;
        Ok(Utf8Path::new("/").join(inside))
    }

    /// Returns `None` if the path is on the filesystem around the tree.
    fn free_space_at(&self, path: &Utf8Path) -> io::Result<Option<FreeSpace>> {
        for at in path.ancestors() {
            match self.open_at(at, OFlag::O_PATH) {
                Ok(file) => {
                    if self.prefix != "/" && file.metadata()?.dev() == self.outside {
                        return Ok(None);
                    }
                    return Ok(Some(os::free_space(&fstatvfs(&file)?)));
                }
                Err(error) if absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(os::error(Errno::ENOENT))
    }
}

impl ReadFiles for RootedFiles {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        present(self.read_regular(&self.followed(path))).map_err(failed("read", path))
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        present(self.stat_at(&self.below_directories(path))).map_err(failed("stat", path))
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        match self.names(&self.followed(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(failed("list", directory)),
        }
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        present(self.real(&self.followed(path))).map_err(failed("resolve", path))
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        self.free_space_at(path)
            .map_err(failed("read the free space of", path))?
            .ok_or_else(|| FilesError::NotReported {
                path: path.to_owned(),
                why: NO_SPACE,
            })
    }
}

fn text(path: std::path::PathBuf) -> io::Result<Utf8PathBuf> {
    Utf8PathBuf::from_path_buf(path).map_err(|_| os::error(Errno::EILSEQ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::real::RealFiles;
    use crate::host::{Cmd, Files, Nvml};

    fn tree() -> (tempfile::TempDir, Host) {
        let temporary = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        let put = |path: &str, content: &str| {
            let path = root.join(path);
            RealFiles.write(&path, content.as_bytes(), 0o644).unwrap();
        };
        put("usr/lib/os-release", "ID=almalinux\n");
        put("etc/passwd", "of the tree\n");
        put("sys/module/nvidia/version", "580\n");
        let link = |path: &str, target: &str| {
            RealFiles.link(&root.join(path), target.into()).unwrap();
        };
        link("etc/os-release", "../usr/lib/os-release");
        link("lib", "/usr/lib");
        link("etc/out", "../../../../../../etc/passwd");
        link("etc/gone", "/nowhere");
        let host = host(&root).unwrap();
        (temporary, host)
    }

    #[test]
    fn symlinks_stored_as_text_are_followed_at_known_paths() {
        let (keep, _) = tree();
        let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        for (path, content) in rows! {
            "sys/bus/pci/devices/0000:01:00.0/driver", "../../drivers/nvidia";
            "usr/lib/libcuda.so.1", "libcuda.so.580.95.05\n";
            "usr/lib/libcuda.so.580.95.05", "\x7fELF";
            "usr/lib/libgone.so.1", "../../../../libgone.so.2";
            "usr/lib/libself.so.1", "libself.so.1";
            "usr/lib/liblinker.so.1", "INPUT(-lgcc -lc)";
            "etc/driver", "../../drivers/nvidia";
            "run/cdi/nvidia.yaml", "cdiVersion: 0.6.0";
            "var/run", "../run";
        } {
            RealFiles
                .write(&root.join(path), content.as_bytes(), 0o644)
                .unwrap();
        }
        let host = host(&root).unwrap();
        let kind = |path: &str| host.files.stat(path.into()).unwrap().unwrap().kind;
        let resolve = |path: &str| host.files.resolve(path.into()).unwrap();
        assert_eq!(
            kind("/sys/bus/pci/devices/0000:01:00.0/driver"),
            FileKind::Link("../../drivers/nvidia".into())
        );
        assert_eq!(
            resolve("/usr/lib/libcuda.so.1").unwrap(),
            "/usr/lib/libcuda.so.580.95.05"
        );
        assert_eq!(
            host.files
                .read("/usr/lib/libcuda.so.1".into())
                .unwrap()
                .unwrap(),
            b"\x7fELF"
        );
        assert_eq!(resolve("/usr/lib/libgone.so.1"), None);
        assert_eq!(kind("/var/run"), FileKind::Link("../run".into()));
        assert_eq!(kind("/var/run/cdi"), FileKind::Directory);
        assert_eq!(
            host.files.list("/var/run/cdi".into()).unwrap(),
            ["nvidia.yaml"]
        );
        // A loop ends.
        assert_eq!(
            resolve("/usr/lib/libself.so.1").unwrap(),
            "/usr/lib/libself.so.1"
        );
        for path in ["/usr/lib/liblinker.so.1", "/etc/driver"] {
            assert_eq!(kind(path), FileKind::File, "{path}");
        }
    }

    #[test]
    fn huge_files_are_not_read() {
        let (keep, _) = tree();
        let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let sparse = File::create(root.join("etc/huge")).unwrap();
        sparse.set_len(FILE_LIMIT + 1).unwrap();
        let files = RootedFiles::open(&root).unwrap();
        let read = |path: &str| files.read(path.into());
        assert!(read("/etc/huge").is_err());
        assert!(read("/etc/passwd").is_ok());
        files.left.store(15, Ordering::Relaxed);
        // 12 bytes.
        assert!(read("/etc/passwd").is_ok());
        assert!(read("/etc/passwd").is_err());
        // 4 bytes exceed the remaining 3 bytes.
        assert!(read("/sys/module/nvidia/version").is_err());
    }

    #[test]
    fn symlinks_stay_inside_the_tree() {
        let (_keep, host) = tree();
        let text = |path: &str| host.files.read_text(path.into()).unwrap();
        assert_eq!(text("/etc/os-release").unwrap(), "ID=almalinux\n");
        assert_eq!(text("/lib/os-release").unwrap(), "ID=almalinux\n");
        assert_eq!(text("/etc/out").unwrap(), "of the tree\n");
        assert_eq!(text("/../../etc/passwd").unwrap(), "of the tree\n");
        assert_eq!(text("/etc/gone"), None);
        assert_eq!(text("/proc/version"), None);
        let resolve = |path: &str| host.files.resolve(path.into()).unwrap();
        assert_eq!(resolve("/lib/os-release").unwrap(), "/usr/lib/os-release");
        assert_eq!(resolve("/").unwrap(), "/");
        assert_eq!(resolve("/etc/gone"), None);
        assert_eq!(
            host.files.stat("/lib".into()).unwrap().unwrap().kind,
            FileKind::Link("/usr/lib".into())
        );
        assert_eq!(host.files.list("/lib".into()).unwrap(), ["os-release"]);
        assert_eq!(
            host.files.list("/".into()).unwrap(),
            ["etc", "lib", "sys", "usr"]
        );
        assert_eq!(
            host.files.list("/none".into()).unwrap(),
            Vec::<String>::new()
        );
        let unknown = host.files.free_space("/var/lib".into()).unwrap_err();
        assert_eq!(unknown.not_reported(), Some(NO_SPACE));
        let mounted = super::host("/proc".into()).unwrap();
        mounted.files.free_space("/none".into()).unwrap();
    }

    #[tokio::test]
    async fn everything_except_reading_is_rejected() {
        let (_keep, host) = tree();
        let path = Utf8Path::new("/etc/passwd");
        let errors = [
            host.files.write(path, b"", 0o644).unwrap_err(),
            host.files.append(path, b"", 0o644).unwrap_err(),
            host.files.link(path, path).unwrap_err(),
            host.files.chown(path, 0, 0).unwrap_err(),
            host.files.remove(path).unwrap_err(),
            host.files.remove_empty_directory(path).unwrap_err(),
            host.files.create_directory(path, 0o755).unwrap_err(),
            host.files.sync_system().unwrap_err(),
        ];
        for error in errors {
            assert!(crate::error::one_line(&error).contains("`--root` tree"));
        }
        assert!(host.files.try_lock(path).is_err());
        let run = host.exec.run(&Cmd::new("id", ["-u"]), &mut |_, _| {}).await;
        assert!(run.unwrap_err().to_string().contains("`--root` tree"));
        assert!(host.http.get("http://127.0.0.1/", 1).await.is_err());
        assert!(matches!(host.gpu.survey().await, Nvml::NotQueried { .. }));
    }

    #[test]
    fn missing_root_is_an_error() {
        assert!(host("/no/such/folder".into()).is_err());
        assert!(host("/etc/passwd".into()).is_err());
    }
}
