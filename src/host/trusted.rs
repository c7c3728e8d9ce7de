//! Permission checks for files that control what root does. A file that is writable by non-root
//! users is rejected, as sudo does with `sudoers`.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::files::FreeSpace;
use super::{FileKind, FilesError, ReadFiles, Stat};

/// The maximum number of symlinks, as in the kernel (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The write bits of the group and of other users.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// In a directory with this bit, non-root users cannot replace or remove a file of root.
const STICKY: u32 = 0o1000;

/// Reads files that control root. Reading fails if the file, one of its directories, or a symlink
/// in its path is writable by non-root users.
#[derive(Clone, Copy)]
pub struct Trusted<'f> {
    files: &'f dyn ReadFiles,
    by_root: bool,
}

impl<'f> Trusted<'f> {
    /// `by_root` is whether the files control what root does. If not, nothing is rejected: other
    /// users cannot change the machine, and the tree of another machine is only examined.
    pub fn new(files: &'f dyn ReadFiles, by_root: bool) -> Self {
        Self { files, by_root }
    }
}

/// Rejects a path that is writable by non-root users. A missing path is not an error.
///
/// # Errors
/// [`FilesError::Foreign`], or if a file cannot be checked.
pub fn refuse_foreign(files: &dyn ReadFiles, path: &Utf8Path) -> Result<(), FilesError> {
    is_there(files, path).map(drop)
}

/// Returns whether a path exists, or an error if it is writable by non-root users. A missing path
/// must not be read after this check, because another user may create it in a directory such as
/// `/tmp`.
fn is_there(files: &dyn ReadFiles, path: &Utf8Path) -> Result<bool, FilesError> {
    let foreign = |at: &Utf8Path, stat: &Stat| FilesError::Foreign {
        path: path.to_owned(),
        at: at.to_owned(),
        uid: stat.uid,
        gid: stat.gid,
        mode: stat.mode,
    };
    let mut at = Utf8PathBuf::from("/");
    let mut rest: Vec<String> = parts(path);
    let mut links = 0;
    if let Some(root) = files.stat(&at)?
        && is_foreign(&root)
    {
        return Err(foreign(&at, &root));
    }
    // The parts are in reverse order.
    while let Some(part) = rest.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(part);
        let Some(stat) = files.stat(&next)? else {
            // The target of a kernel symlink to an open pipe, such as `pipe:[12]`, is not a path.
            return Ok(at.starts_with("/proc"));
        };
        if is_foreign(&stat) {
            return Err(foreign(&next, &stat));
        }
        let FileKind::Link(target) = &stat.kind else {
            at = next;
            continue;
        };
        links += 1;
        if links > MOST_LINKS {
            // Reading such a path fails with `ELOOP`.
            return Ok(true);
        }
        if target.is_absolute() {
            at = Utf8PathBuf::from("/");
        }
        rest.extend(parts(target));
    }
    Ok(true)
}

/// Returns the reason root must not rely on a world-readable file such as a keyring or a
/// certificate, or `None`. The file and all directories and symlinks in its path must be writable
/// only by root.
///
/// # Errors
/// If the path cannot be checked.
pub fn unusable(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Option<String>, FilesError> {
    match is_there(files, path) {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some("missing".to_owned())),
        Err(FilesError::Foreign {
            at, uid, gid, mode, ..
        }) => Ok(Some(format!(
            "`{at}` is writable by non-root users (owner {uid}, group {gid}, mode {mode:04o})"
        ))),
        Err(error) => Err(error),
    }
}

/// Returns the reason root must not use a file that contains a secret, a kubeconfig or the
/// environment of a command, or `None`. The file must be accessible only by root, and all
/// directories and symlinks in its path must be writable only by root.
///
/// # Errors
/// If the path cannot be checked.
pub fn unusable_secret(
    files: &dyn ReadFiles,
    path: &Utf8Path,
) -> Result<Option<String>, FilesError> {
    if let Some(why) = unusable(files, path)? {
        return Ok(Some(why));
    }
    let target = files.resolve(path)?.unwrap_or_else(|| path.to_owned());
    let stat = files.stat(&target)?;
    Ok(match stat {
        None => Some("missing".to_owned()),
        Some(stat) if stat.kind != FileKind::File => Some("not a regular file".to_owned()),
        Some(stat) if stat.mode & 0o077 != 0 => Some(format!(
            "mode is {:04o}: accessible to users other than root",
            stat.mode & 0o7777
        )),
        Some(_) => None,
    })
}

/// Returns the components of a path in reverse order.
fn parts(path: &Utf8Path) -> Vec<String> {
    (path.components().rev())
        .filter_map(|part| match part {
            Utf8Component::Normal(name) => Some(name.to_owned()),
            Utf8Component::ParentDir => Some("..".to_owned()),
            _ => None,
        })
        .collect()
}

/// Whether non-root users can change a file, or replace files of root in a directory. The mode of a
/// symlink has no effect. The group bits count even for the group root, because with an access
/// control list they are the upper limit for all its users and groups, acl(5).
fn is_foreign(stat: &Stat) -> bool {
    let link = matches!(stat.kind, FileKind::Link(_));
    let sticky = stat.kind == FileKind::Directory && stat.mode & STICKY != 0;
    let writes = stat.mode & (OTHERS_WRITE | GROUP_WRITES) != 0;
    stat.uid != 0 || (writes && !link && !sticky)
}

impl ReadFiles for Trusted<'_> {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        if self.by_root && !is_there(self.files, path)? {
            return Ok(None);
        }
        self.files.read(path)
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        self.files.stat(path)
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        self.files.list(directory)
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        self.files.resolve(path)
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        self.files.free_space(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    const FILE: &str = "/etc/gpu-bootstrap/config.toml";

    fn files() -> FakeFiles {
        let files = FakeFiles::new();
        files.put(FILE, "");
        files
    }

    /// Returns the rejected path with owner and mode.
    fn refused(files: &FakeFiles, path: &str) -> Option<String> {
        match Trusted::new(files, true).read(path.into()) {
            Err(FilesError::Foreign { at, uid, mode, .. }) => Some(format!("{at} {uid} {mode:o}")),
            Err(error) => panic!("{error}"),
            Ok(_) => None,
        }
    }

    #[test]
    fn file_writable_only_by_root_is_read() {
        let files = files();
        assert_eq!(refused(&files, FILE), None);
        files.put_mode(FILE, "", 0o644);
        assert_eq!(refused(&files, FILE), None, "the group is root");
        files.put_directory("/tmp", 0o1777);
        files.put("/tmp/site.toml", "");
        assert_eq!(refused(&files, "/tmp/site.toml"), None, "/tmp is sticky");
        assert_eq!(refused(&files, "/etc/gpu-bootstrap/none.toml"), None);
        assert_eq!(refused(&files, "/none/at/all"), None);
    }

    #[test]
    fn file_or_directory_writable_by_other_users_is_rejected() {
        for (mode, gid, why) in [
            (0o646, 0, "/etc/gpu-bootstrap/config.toml 0 646"),
            (0o664, 7, "/etc/gpu-bootstrap/config.toml 0 664"),
            // A user in its access control list may have write access.
            (0o664, 0, "/etc/gpu-bootstrap/config.toml 0 664"),
        ] {
            let files = files();
            files.put_mode(FILE, "", mode);
            files.own(FILE, 0, gid);
            assert_eq!(refused(&files, FILE).as_deref(), Some(why));
        }
        let files = files();
        files.own(FILE, 1000, 0);
        let why = "/etc/gpu-bootstrap/config.toml 1000 644";
        assert_eq!(refused(&files, FILE).as_deref(), Some(why));
        files.own(FILE, 0, 0);
        files.own("/etc/gpu-bootstrap", 1000, 0);
        let why = "/etc/gpu-bootstrap 1000 755";
        assert_eq!(refused(&files, FILE).as_deref(), Some(why));
        let open = FakeFiles::new();
        open.put_directory("/srv", 0o777);
        open.put("/srv/site.toml", "");
        assert_eq!(
            refused(&open, "/srv/site.toml").as_deref(),
            Some("/srv 0 777")
        );
    }

    /// A machine on which another user creates the file right after the check.
    struct Late(FakeFiles);

    impl ReadFiles for Late {
        fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
            self.0.put(path.as_str(), "theirs");
            self.0.own(path.as_str(), 1000, 1000);
            self.0.read(path)
        }
        fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
            self.0.stat(path)
        }
        fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
            self.0.list(directory)
        }
        fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
            self.0.resolve(path)
        }
        fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
            self.0.free_space(path)
        }
    }

    #[test]
    fn file_created_after_the_check_is_not_read() {
        let files = FakeFiles::new();
        files.put_directory("/tmp", 0o1777);
        let late = Late(files);
        let read = Trusted::new(&late, true).read("/tmp/site.toml".into());
        assert_eq!(read.unwrap(), None);
        // An open pipe passed by the shell is not a path.
        late.0.put_link("/proc/7/fd/0", "pipe:[12]");
        assert!(is_there(&late, "/proc/7/fd/0".into()).unwrap());
    }

    #[test]
    fn symlinks_are_followed() {
        let files = files();
        files.put("/home/ada/gpu.toml", "");
        files.own("/home/ada", 1000, 1000);
        files.put_link("/etc/gpu-bootstrap/link.toml", "../../home/ada/gpu.toml");
        let link = "/etc/gpu-bootstrap/link.toml";
        assert_eq!(refused(&files, link).as_deref(), Some("/home/ada 1000 755"));
        // A chain of symlinks whose middle part can be redirected by another user.
        files.put_link("/home/ada/way", "/etc/gpu-bootstrap");
        files.put_link("/etc/chain", "/home/ada/way");
        let chain = "/etc/chain/config.toml";
        assert_eq!(
            refused(&files, chain).as_deref(),
            Some("/home/ada 1000 755")
        );
        files.put_directory("/tmp", 0o1777);
        files.put_link("/tmp/way.toml", FILE);
        files.own("/tmp/way.toml", 1000, 1000);
        assert_eq!(
            refused(&files, "/tmp/way.toml").as_deref(),
            Some("/tmp/way.toml 1000 777")
        );
        files.put_link("/etc/loop", "/etc/loop");
        assert!(Trusted::new(&files, true).read("/etc/loop".into()).is_err());
    }

    #[test]
    fn nothing_is_rejected_for_non_root_users() {
        let files = files();
        files.put_mode(FILE, "", 0o666);
        assert!(Trusted::new(&files, false).read(FILE.into()).is_ok());
    }

    #[test]
    fn secret_file_must_be_accessible_only_by_root() {
        const SECRET: &str = "/opt/agent/token";
        let why = |arrange: &dyn Fn(&FakeFiles)| {
            let files = FakeFiles::new();
            files.put_mode(SECRET, "", 0o600);
            arrange(&files);
            unusable_secret(&files, SECRET.into()).expect("readable")
        };
        assert_eq!(why(&|_| {}), None);
        type Spoilt<'f> = (&'f dyn Fn(&FakeFiles), &'f str);
        let spoilt: [Spoilt<'_>; 6] = rows! {
            &|files| files.take(SECRET), "missing";
            &|files| files.put_mode(SECRET, "", 0o640), "mode is 0640";
            &|files| files.own(SECRET, 1000, 0), "`/opt/agent/token` is writable by non-root users (owner 1000";
            // The owner could replace the file.
            &|files| files.own("/opt/agent", 1000, 0), "`/opt/agent` is writable by non-root users (owner 1000";
            &|files| {
                files.take(SECRET);
                files.put_mode("/home/ada/token", "", 0o600);
                files.own("/home/ada", 1000, 1000);
                files.put_link(SECRET, "/home/ada/token");
            }, "`/home/ada` is writable by non-root users (owner 1000";
            &|files| { files.take(SECRET); files.put_directory(SECRET, 0o700); }, "not a regular file";
        };
        for (arrange, expected) in spoilt {
            let why = why(arrange).expect(expected);
            assert!(why.contains(expected), "{why}");
        }
    }
}
