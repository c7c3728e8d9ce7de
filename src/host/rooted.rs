//! `--root DIR`: a mounted image or a recorded tree in place of `/`. Only its files are read, and
//! nothing is executed. Links resolve inside the tree, as they would if it were booted.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use camino::{Utf8Path, Utf8PathBuf};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::statvfs::fstatvfs;

use super::files::Room;
use super::os::{self, absent, failed, present};
use super::read_only;
use super::{FilesError, Host, ReadFiles, Stat};

/// The reason of every refusal.
const WHY: &str = "nothing is changed in or executed from a `--root` tree";

/// The kernel asks to try again when a folder moved during the look-up.
const ATTEMPTS: usize = 16;

/// The files below a folder.
#[derive(Debug)]
pub struct RootedFiles {
    root: File,
    /// The folder's real path: the prefix of every path that the kernel resolves in it.
    prefix: Utf8PathBuf,
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
            Ok(Self { root, prefix })
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

    fn read_regular(&self, path: &Utf8Path) -> io::Result<Vec<u8>> {
        // First without opening it for real: that can act on a device, or wait for a pipe.
        os::regular(&self.open_at(path, OFlag::O_PATH)?.metadata()?)?;
        os::read_whole(self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?)
    }

    fn stat_at(&self, path: &Utf8Path) -> io::Result<Stat> {
        let file = self.open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        os::stat(&file.metadata()?, || text(readlinkat(&file, "")?.into()))
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
        present(self.read_regular(path)).map_err(failed("read", path))
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        present(self.stat_at(path)).map_err(failed("stat", path))
    }

    fn list(&self, folder: &Utf8Path) -> Result<Vec<String>, FilesError> {
        match self.names(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(failed("list", folder)),
        }
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        present(self.real(path)).map_err(failed("resolve", path))
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
    use crate::host::{Cmd, Files, Kind, Nvml};

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
            Kind::Link("/usr/lib".into())
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
