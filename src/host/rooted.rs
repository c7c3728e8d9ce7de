//! `--root DIR`: a mounted image or a recorded tree in place of `/`. Only its files are read, and
//! nothing is executed. Links resolve inside the tree, as they would if it were booted; so do the links of drivers and
//! libraries that a copy has kept as text, as git and some archives do where they cannot make links.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::statvfs::fstatvfs;

use super::files::Room;
use super::os::{self, absent, failed, present};
use super::read_only;
use super::{FileKind, FilesError, Host, ReadFiles, Stat};

/// The reason of every refusal.
const WHY: &str = "nothing is changed in or executed from a `--root` tree";

/// The kernel asks to try again when a folder moved during the look-up.
const ATTEMPTS: usize = 16;

/// The largest file of a tree that is read. The lists of a package manager have up to 80 MB.
const FILE_LIMIT: u64 = 128 << 20;

/// The most that is read of a tree in all: a small archive can have any number of huge sparse files.
const TREE_LIMIT: u64 = 2 << 30;

/// Folders that are links on most systems, in a tree that has them.
const FOLDERS: [&str; 6] = ["/var/run", "/var/lock", "/bin", "/sbin", "/lib", "/lib64"];

/// The files below a folder.
#[derive(Debug)]
pub struct RootedFiles {
    root: File,
    /// The folder's real path: the prefix of every path that the kernel resolves in it.
    prefix: Utf8PathBuf,
    /// Bytes that may still be read.
    left: AtomicU64,
}

/// A host that sees the folder as `/`, and can only look.
///
/// # Errors
/// When the folder cannot be opened.
pub fn host(folder: &Utf8Path) -> Result<Host, FilesError> {
    Ok(read_only::host(RootedFiles::open(folder)?, WHY))
}

impl RootedFiles {
    /// The files below this folder.
    ///
    /// # Errors
    /// When it cannot be opened, or is no folder.
    pub fn open(folder: &Utf8Path) -> Result<Self, FilesError> {
        let opened = folder.canonicalize_utf8().and_then(|prefix| {
            let root = File::open(&prefix)?;
            if !root.metadata()?.is_dir() {
                return Err(os::error(Errno::ENOTDIR));
            }
            Ok(Self {
                root,
                prefix,
                left: AtomicU64::new(TREE_LIMIT),
            })
        });
        opened.map_err(failed("open", folder))
    }

    fn open_at(&self, path: &Utf8Path, flags: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        for _ in 0..ATTEMPTS {
            match openat2(&self.root, path.as_std_path(), how) {
                Err(Errno::EAGAIN) => {}
                Err(Errno::ENOSYS) => {
                    let why = "`--root` needs `openat2`, which Linux has since 5.6";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
                opened => return Ok(opened?.into()),
            }
        }
        Err(os::error(Errno::EAGAIN))
    }

    /// The target of a link that a copy of the tree has kept as a file with its text. Only where a machine has nothing but
    /// links or folders: the driver of a device, a library's name without its whole version, and [`FOLDERS`]. What cannot be
    /// read here is no such link; whoever asks for the path itself hears why.
    fn link_as_text(&self, path: &Utf8Path) -> Option<Utf8PathBuf> {
        /// A path in a package or in sysfs is shorter.
        const LONGEST: u64 = 255;
        let name = path.file_name()?;
        let is_driver = path.starts_with("/sys") && name == "driver";
        if !is_driver && !name.contains(".so.") && !FOLDERS.contains(&path.as_str()) {
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

    /// The path without the links kept as text on the way to it.
    fn below_folders(&self, path: &Utf8Path) -> Utf8PathBuf {
        let inside = FOLDERS.iter().find_map(|folder| {
            let rest = path.strip_prefix(folder).ok()?;
            let target = self.link_as_text((*folder).into())?;
            let parent = Utf8Path::new(folder).parent().unwrap_or("/".into());
            (!rest.as_str().is_empty()).then(|| parent.join(target).join(rest))
        });
        inside.unwrap_or_else(|| path.to_owned())
    }

    /// The path that links kept as text lead to.
    fn followed(&self, path: &Utf8Path) -> Utf8PathBuf {
        /// libcuda.so, libcuda.so.1, libcuda.so.580.95.05.
        const CHAIN: usize = 4;
        let mut at = self.below_folders(path);
        for _ in 0..CHAIN {
            let Some(target) = self.link_as_text(&at) else {
                break;
            };
            at = at.parent().unwrap_or("/".into()).join(target);
        }
        at
    }

    fn read_regular(&self, path: &Utf8Path) -> io::Result<Vec<u8>> {
        // First without opening it for real: that can act on a device, or wait for a pipe.
        os::regular(&self.open_at(path, OFlag::O_PATH)?.metadata()?)?;
        let file = self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let left = self.left.load(Ordering::Relaxed);
        let content = os::read_at_most(file, left.min(FILE_LIMIT))?;
        // Reads side by side can exceed the bound by a few files.
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

    fn names(&self, folder: &Utf8Path) -> io::Result<Vec<String>> {
        let opened = self.open_at(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
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
        // The kernel's own answer to where an open file is.
        let at = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let at = text(at)?;
        let inside = at.strip_prefix(&self.prefix).map_err(io::Error::other)?;
        Ok(Utf8Path::new("/").join(inside))
    }

    fn room_at(&self, path: &Utf8Path) -> io::Result<Room> {
        for at in path.ancestors() {
            match self.open_at(at, OFlag::O_PATH) {
                Ok(file) => {
                    return Ok(os::room(&fstatvfs(&file)?));
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
        present(self.stat_at(&self.below_folders(path))).map_err(failed("stat", path))
    }

    fn list(&self, folder: &Utf8Path) -> Result<Vec<String>, FilesError> {
        match self.names(&self.followed(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(failed("list", folder)),
        }
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        present(self.real(&self.followed(path))).map_err(failed("resolve", path))
    }

    fn room(&self, path: &Utf8Path) -> Result<Room, FilesError> {
        self.room_at(path)
            .map_err(failed("ask for the room at", path))
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
    fn links_that_a_copy_kept_as_text_are_links_where_only_links_are() {
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
        assert_eq!(kind("/var/run/cdi"), FileKind::Folder);
        assert_eq!(
            host.files.list("/var/run/cdi".into()).unwrap(),
            ["nvidia.yaml"]
        );
        // A circle ends.
        assert_eq!(
            resolve("/usr/lib/libself.so.1").unwrap(),
            "/usr/lib/libself.so.1"
        );
        for path in ["/usr/lib/liblinker.so.1", "/etc/driver"] {
            assert_eq!(kind(path), FileKind::File, "{path}");
        }
    }

    #[test]
    fn huge_files_of_a_tree_are_not_read() {
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
        // 4 bytes are more than the 3 that are left.
        assert!(read("/sys/module/nvidia/version").is_err());
    }

    #[test]
    fn links_stay_inside() {
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
        assert!(host.files.room("/var/lib".into()).unwrap().total > 0);
    }

    #[tokio::test]
    async fn everything_but_looking_is_refused() {
        let (_keep, host) = tree();
        let path = Utf8Path::new("/etc/passwd");
        let errors = [
            host.files.write(path, b"", 0o644).unwrap_err(),
            host.files.append(path, b"", 0o644).unwrap_err(),
            host.files.link(path, path).unwrap_err(),
            host.files.chown(path, 0, 0).unwrap_err(),
            host.files.remove(path).unwrap_err(),
            host.files.remove_empty_folder(path).unwrap_err(),
            host.files.create_folder(path, 0o755).unwrap_err(),
            host.files.sync_system().unwrap_err(),
        ];
        for error in errors {
            assert!(crate::error::one_line(&error).contains("`--root` tree"));
        }
        assert!(host.files.try_lock(path).is_err());
        let run = host.exec.run(&Cmd::new("id", ["-u"]), &mut |_, _| {}).await;
        assert!(run.unwrap_err().to_string().contains("`--root` tree"));
        assert!(host.http.get("http://127.0.0.1/", 1).await.is_err());
        assert!(matches!(host.gpu.survey().await, Nvml::NotAsked { .. }));
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        assert!(host("/no/such/folder".into()).is_err());
        assert!(host("/etc/passwd".into()).is_err());
    }
}
