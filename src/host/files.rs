//! File access: reading never writes, and writing is atomic and durable.

use std::io::{Cursor, Read};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::digest::ContentDigest;
use crate::model::text::{bytes, shell_word};

/// With less free space (in bytes), a write failed because the filesystem is full. With more, the
/// cause may be a project quota or full metadata.
const LITTLE: u64 = 4 << 20;

/// With fewer free inodes, a filesystem has no room for the files of packages.
const FEW_INODES: u64 = 1000;

/// The directory for settings and the files that they refer to.
const OWN: &str = "/etc/gpu-bootstrap";

/// The directories of the system, which should be writable only by root. `/opt`, `/run` and `/var/lib`
/// also contain directories of users.
const SYSTEM: [&str; 7] = [
    "/boot",
    "/etc",
    "/lib",
    "/root",
    "/run/gpu-bootstrap",
    "/usr",
    "/var/lib/gpu-bootstrap",
];

/// The suffix of a temporary file that is being written.
const UNFINISHED: &str = ".gpu-bootstrap-new";

/// Returns the temporary name for a file that is being written: hidden, with a suffix that daemons
/// ignore in their `.d` directories.
pub fn unfinished(name: &str, pid: u32, number: u32) -> String {
    format!("{}{pid}-{number}{UNFINISHED}", stem(name))
}

fn stem(name: &str) -> String {
    // Names are limited to 255 bytes, including the suffix.
    let start: String = name.chars().take(50).collect();
    format!(".{start}.")
}

/// Returns the temporary files that killed writers of this file left behind. Only valid for a file
/// with a single writer.
///
/// # Errors
/// The error of the operating system.
pub fn leftover_files(
    files: &dyn ReadFiles,
    path: &Utf8Path,
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Vec::new());
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = stem(name);
    let is_one = |other: &String| {
        (other.strip_prefix(&stem))
            .and_then(|rest| rest.strip_suffix(UNFINISHED)?.split_once('-'))
            .is_some_and(|(pid, number)| digits(pid) && digits(number))
    };
    let names = files.list(directory)?;
    Ok((names.iter().filter(|name| is_one(name)))
        .map(|name| directory.join(name))
        .collect())
}

/// The kind of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file.
    File,
    Directory,
    /// A symlink with its target as written.
    Link(Utf8PathBuf),
    /// A character device with its major and minor number.
    CharDevice(u32, u32),
    /// Anything else: block device, socket, pipe.
    Other,
}

/// Metadata of a path, without following a final symlink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stat {
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in seconds since 1970.
    pub mtime: i64,
    /// Inode number, or 0 if unknown.
    #[serde(default)]
    pub inode: u64,
}

/// Free space on the filesystem of a path, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FreeSpace {
    /// The size of the filesystem.
    pub total: u64,
    /// Available to an unprivileged process.
    pub free: u64,
    /// Mounted read-only.
    pub read_only: bool,
    /// `None` if the filesystem has no fixed number of inodes, like Btrfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<Inodes>,
}

/// The inodes of a filesystem: each file and directory uses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Inodes {
    pub total: u64,
    pub free: u64,
}

impl FreeSpace {
    /// Whether there are too few inodes for the files of packages, regardless of the free space.
    pub fn lacks_inodes(&self) -> bool {
        self.inodes.is_some_and(|inodes| inodes.free < FEW_INODES)
    }
}

/// The limit that makes a filesystem reject a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `ENOSPC`, but not because of inodes.
    Space,
    /// `ENOSPC`, because (almost) all inodes are used.
    Inodes,
    /// The disk quota of a user, group or project is exceeded.
    Quota,
    ReadOnly,
    /// Read-only for this process, but not for the machine. See [`view`](super::view).
    ReadOnlyHere,
    /// The file would exceed the size limit of the process or the filesystem.
    FileSize,
}

impl Limit {
    /// Returns the limit that a write error indicates, or `None` for other errors.
    pub(super) fn of(error: &std::io::Error, free_space: &FreeSpace) -> Option<Self> {
        use std::io::ErrorKind;
        Some(match error.kind() {
            ErrorKind::StorageFull if free_space.lacks_inodes() => Self::Inodes,
            ErrorKind::StorageFull => Self::Space,
            ErrorKind::QuotaExceeded => Self::Quota,
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            ErrorKind::FileTooLarge => Self::FileSize,
            _ => return None,
        })
    }

    /// The stable identifier for scripts.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Space => "no-disk-space",
            Self::Inodes => "no-inodes",
            Self::Quota => "disk-quota",
            Self::ReadOnly => "read-only-filesystem",
            Self::ReadOnlyHere => "private-view",
            Self::FileSize => "file-too-large",
        }
    }

    /// The remedy for the filesystem at this mount point.
    pub fn remedy(self, mount: &Utf8Path, free_space: &FreeSpace) -> String {
        let free = format!(
            "{} of {} free",
            bytes(free_space.free),
            bytes(free_space.total)
        );
        match self {
            Self::Space if free_space.free < LITTLE => {
                format!("free disk space on `{mount}` ({free})")
            }
            Self::Space => format!(
                "free disk space on `{mount}` ({free}; a project quota or the metadata of the \
                 filesystem may be full, see `df {mount}`)"
            ),
            Self::Inodes => {
                let Inodes { total, free } =
                    free_space.inodes.unwrap_or(Inodes { total: 0, free: 0 });
                format!(
                    "remove unneeded files: `{mount}` has {free} of {total} inodes free (`du \
                     --inodes -x {mount} | sort -n | tail` shows the largest directories); more \
                     disk space does not help"
                )
            }
            Self::Quota => format!(
                "raise the disk quota on `{mount}` ({free}; `repquota {mount}`, `edquota`), or \
                 remove files of its owner"
            ),
            Self::ReadOnly => format!(
                "`{mount}` is mounted read-only: remount it (`mount -o remount,rw {mount}`), and \
                 check the kernel log for disk errors (`dmesg`)"
            ),
            Self::ReadOnlyHere => format!(
                "`{mount}` is read-only for this process, but not for the machine: remove \
                 `ProtectSystem=` or `ReadOnlyPaths=` from its unit (`systemctl status $$` shows \
                 the unit), or run the command outside the unit (`systemd-run --pipe --wait \
                 COMMAND`)"
            ),
            Self::FileSize => format!(
                "raise the file size limit of this process (`ulimit -f`, or `LimitFSIZE=` of its unit), or use a filesystem \
                 on `{mount}` that supports larger files"
            ),
        }
    }
}

/// A filesystem that rejects a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullFilesystem {
    /// The mount point.
    pub mount: Utf8PathBuf,
    pub free_space: FreeSpace,
    pub limit: Limit,
}

/// A file error.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// An error of the operating system.
    #[error("{verb} `{path}`")]
    Io {
        /// The operation: `read`, `write`, ….
        verb: &'static str,
        /// The path.
        path: Utf8PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
        /// The filesystem, if it is full or read-only.
        disk: Option<Box<FullFilesystem>>,
    },
    /// The file controls what root does, but is writable by non-root users.
    #[error(
        "trust `{path}`: `{at}` is writable by non-root users (owner {uid}, group {gid}, mode \
        {mode:04o})"
    )]
    Foreign {
        path: Utf8PathBuf,
        /// The path that is writable by non-root users: the file, a parent directory, or a symlink.
        at: Utf8PathBuf,
        uid: u32,
        gid: u32,
        mode: u32,
    },
    /// The content is not valid UTF-8.
    #[error("read `{path}`: not valid UTF-8")]
    NotText { path: Utf8PathBuf },
    /// The machine is only known from a text (such as `lspci` output) or a directory tree, which
    /// does not contain this information.
    #[error("read `{path}`: {why}")]
    NotReported {
        path: Utf8PathBuf,
        /// The reason.
        why: &'static str,
    },
}

impl FilesError {
    /// The filesystem, if it is full or read-only.
    pub fn disk(&self) -> Option<&FullFilesystem> {
        match self {
            Self::Io { disk, .. } => disk.as_deref(),
            Self::Foreign { .. } | Self::NotText { .. } | Self::NotReported { .. } => None,
        }
    }

    /// The reason of [`Self::NotReported`], which is not a problem of the machine.
    pub fn not_reported(&self) -> Option<&'static str> {
        match self {
            Self::NotReported { why, .. } => Some(why),
            Self::Io { .. } | Self::Foreign { .. } | Self::NotText { .. } => None,
        }
    }

    /// Whether permission was denied to this user. Root may have access.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// The stable identifier for scripts, if the filesystem rejected the write or the file is
    /// untrusted.
    pub fn reason(&self) -> Option<&'static str> {
        if matches!(self, Self::Foreign { .. }) {
            return Some("untrusted-file");
        }
        self.disk().map(|disk| disk.limit.reason())
    }

    /// The remedy, if the filesystem rejected the write or the file is untrusted.
    pub fn hint(&self) -> Option<String> {
        if let Self::Foreign { path, at, .. } = self {
            return Some(untrusted_hint(path, at));
        }
        let FullFilesystem {
            mount,
            free_space,
            limit,
        } = self.disk()?;
        Some(limit.remedy(mount, free_space))
    }

    /// The remedy for a file or directory that a command writes because of an option.
    pub fn output_hint(&self) -> Option<String> {
        match self {
            Self::Foreign { .. } => Some(format!(
                "specify a path in a directory that only root can write, such as `{OWN}`"
            )),
            Self::Io { .. } | Self::NotText { .. } | Self::NotReported { .. } => self.hint(),
        }
    }
}

/// The remedy for a file that is untrusted because of the owner or the mode of `at`. A directory that
/// is not part of the system, such as a home directory, keeps its owner. The copy is in `/root`, where
/// no program reads it automatically. `install -b` keeps an existing file with the name of the copy.
fn untrusted_hint(path: &Utf8Path, at: &Utf8Path) -> String {
    let is_of_system = SYSTEM
        .iter()
        .any(|&directory| at.starts_with(directory) || Utf8Path::new(directory).starts_with(at));
    if path == at || is_of_system {
        let at = shell_word(at);
        return format!("check the content, then run `chown -h root:root {at} && chmod go-w {at}`");
    }
    if SYSTEM.iter().any(|&directory| path.starts_with(directory)) {
        return format!(
            "replace the symlink in `{path}` that leads to `{at}` with a copy of its target, and keep \
             the owner of `{at}`"
        );
    }
    let copy = Utf8Path::new("/root").join(path.file_name().unwrap_or("copy"));
    format!(
        "run `install -b -m 0600 {} {}` (`-m 0700` for a program), check the copy, and use its path; \
         keep the owner of `{at}`",
        shell_word(path),
        shell_word(copy)
    )
}

pub trait ReadFiles: Send + Sync {
    /// Returns the content, or `None` if the file does not exist.
    ///
    /// # Errors
    /// Any error except a missing file.
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError>;

    /// Returns the metadata without following a final symlink, or `None` if the path does not
    /// exist.
    ///
    /// # Errors
    /// Any error except a missing path.
    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError>;

    /// Returns the sorted names in a directory. Empty if it does not exist.
    ///
    /// # Errors
    /// Any error except a missing directory.
    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError>;

    /// Returns the path with all symlinks resolved, or `None` if the target does not exist.
    ///
    /// # Errors
    /// Any error except a missing path.
    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError>;

    /// Returns the free space on the filesystem of the path or its nearest existing parent.
    ///
    /// # Errors
    /// The error of the operating system, or [`FilesError::NotReported`].
    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError>;

    /// Returns the content as text, or `None` if the file does not exist.
    ///
    /// # Errors
    /// Any error except a missing file. Also if the content is not valid UTF-8.
    fn read_text(&self, path: &Utf8Path) -> Result<Option<String>, FilesError> {
        self.read(path)?
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| FilesError::NotText {
                path: path.to_owned(),
            })
    }

    /// Returns the content of a file that administrators edit and gpu-bootstrap only reads. Invalid
    /// UTF-8, such as a comment in another encoding, is replaced.
    ///
    /// # Errors
    /// Same as [`ReadFiles::read`].
    fn read_lossy(&self, path: &Utf8Path) -> Result<Option<String>, FilesError> {
        let bytes = self.read(path)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns the size and the digest of the content, or `None` if the file does not exist. The files of
    /// this machine are read in parts, so their size is not limited.
    ///
    /// # Errors
    /// Same as [`ReadFiles::read`].
    fn digest(&self, path: &Utf8Path) -> Result<Option<ContentDigest>, FilesError> {
        Ok(self.read(path)?.map(|content| ContentDigest::of(&content)))
    }

    /// Opens a file for reading, or returns `None` if it does not exist. The files of this machine are read in parts, so their
    /// size is not limited.
    ///
    /// # Errors
    /// Same as [`ReadFiles::read`].
    fn open(&self, path: &Utf8Path) -> Result<Option<Box<dyn Read + Send>>, FilesError> {
        let content = self.read(path)?;
        Ok(content.map(|content| Box::new(Cursor::new(content)) as Box<dyn Read + Send>))
    }

    /// Whether the path exists, following symlinks.
    ///
    /// # Errors
    /// Same as [`ReadFiles::resolve`].
    fn exists(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        Ok(self.resolve(path)?.is_some())
    }
}

/// Write access. The result of every method is durable: file and directory are synced.
pub trait Files: ReadFiles {
    /// Replaces the content atomically (temporary file in the same directory, fsync, rename, fsync
    /// of the directory). Creates missing parents with mode 0755. Sets the mode exactly, and keeps
    /// the owner of an existing file.
    ///
    /// # Errors
    /// The error of the operating system. The old content is then unchanged, unless only the fsync
    /// of the directory failed.
    fn write(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError>;

    /// Copies the content of a file, with the guarantees of [`Files::write`]. The files of this machine are
    /// read in parts, so their size is not limited. Returns the size and the digest of the copied content,
    /// or `None` if the file does not exist.
    ///
    /// # Errors
    /// Same as [`ReadFiles::read`] and [`Files::write`].
    fn copy(
        &self,
        from: &Utf8Path,
        to: &Utf8Path,
        mode: u32,
    ) -> Result<Option<ContentDigest>, FilesError> {
        let Some(content) = self.read(from)? else {
            return Ok(None);
        };
        self.write(to, &content, mode)?;
        Ok(Some(ContentDigest::of(&content)))
    }

    /// Appends and syncs. Creates a missing file with this mode.
    ///
    /// # Errors
    /// The error of the operating system. The appended data is then removed. If the removal also
    /// fails, the error contains both causes.
    fn append(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError>;

    /// Creates or replaces a symlink.
    ///
    /// # Errors
    /// The error of the operating system.
    fn link(&self, path: &Utf8Path, target: &Utf8Path) -> Result<(), FilesError>;

    /// Sets owner and group.
    ///
    /// # Errors
    /// The error of the operating system.
    fn chown(&self, path: &Utf8Path, uid: u32, gid: u32) -> Result<(), FilesError>;

    /// Removes a file or symlink, if it exists.
    ///
    /// # Errors
    /// The error of the operating system.
    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError>;

    /// Removes a directory if it is empty. Returns whether it no longer exists.
    ///
    /// # Errors
    /// The error of the operating system, except "not empty".
    fn remove_empty_directory(&self, path: &Utf8Path) -> Result<bool, FilesError>;

    /// Creates a directory and its missing parents.
    ///
    /// # Errors
    /// The error of the operating system.
    fn create_directory(&self, path: &Utf8Path, mode: u32) -> Result<(), FilesError>;

    /// Syncs files written by other programs, on every local filesystem that contains a part of the
    /// system. Package managers, DKMS and initramfs generators do not sync all their files.
    ///
    /// # Errors
    /// The error of the operating system.
    fn sync_system(&self) -> Result<(), FilesError>;

    /// Acquires an exclusive lock on a file (created with mode 0600), without waiting. While the
    /// lock is held, the file content describes the holder. Returns `None` if another process holds
    /// the lock. Dropping the guard releases it.
    ///
    /// # Errors
    /// The error of the operating system.
    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError>;
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use nix::errno::Errno;

    use super::{FilesError, FreeSpace, Inodes, Limit};

    #[test]
    fn each_limit_has_a_separate_reason_and_remedy() {
        let free_space = |free, inodes| FreeSpace {
            total: 8 << 30,
            free,
            read_only: false,
            inodes: Some(Inodes {
                total: 65_536,
                free: inodes,
            }),
        };
        let mut seen = std::collections::BTreeSet::new();
        for (errno, free_space, limit, reason, words) in rows! {
            Errno::ENOSPC, free_space(0, 9000), Limit::Space, "no-disk-space", "free disk space on `/var`";
            // Neither space nor inodes are free. More space alone would not help.
            Errno::ENOSPC, free_space(0, 0), Limit::Inodes, "no-inodes", "0 of 65536 inodes free";
            Errno::ENOSPC, free_space(4 << 30, 2), Limit::Inodes, "no-inodes", "more disk space does not help";
            Errno::EDQUOT, free_space(4 << 30, 9000), Limit::Quota, "disk-quota", "`repquota /var`";
            Errno::EROFS, free_space(4 << 30, 9000), Limit::ReadOnly, "read-only-filesystem", "remount,rw";
            Errno::EFBIG, free_space(4 << 30, 9000), Limit::FileSize, "file-too-large", "`LimitFSIZE=`";
        } {
            let error = Error::from_raw_os_error(errno as i32);
            assert_eq!(Limit::of(&error, &free_space), Some(limit), "{errno}");
            assert_eq!(limit.reason(), reason);
            let remedy = limit.remedy("/var".into(), &free_space);
            assert!(remedy.contains(words), "{remedy}");
            seen.insert(remedy);
        }
        assert_eq!(seen.len(), 6);
        let other = Error::from_raw_os_error(Errno::EACCES as i32);
        assert_eq!(Limit::of(&other, &free_space(0, 0)), None);
        // Btrfs has no fixed number of inodes.
        let none = FreeSpace {
            inodes: None,
            ..free_space(0, 0)
        };
        let full = Error::from_raw_os_error(Errno::ENOSPC as i32);
        assert_eq!(Limit::of(&full, &none), Some(Limit::Space));
    }

    #[test]
    fn home_directory_keeps_its_owner() {
        let hint = |path: &str, at: &str| {
            let error = FilesError::Foreign {
                path: path.into(),
                at: at.into(),
                uid: 1000,
                gid: 1000,
                mode: 0o755,
            };
            error.hint().expect("a remedy")
        };
        for (path, at, words) in rows! {
            "/home/ada/node.lock", "/home/ada",
                "`install -b -m 0600 /home/ada/node.lock /root/node.lock`";
            // A copy in `/etc/gpu-bootstrap` would replace the settings of the node.
            "/home/ada/config.toml", "/home/ada",
                "`install -b -m 0600 /home/ada/config.toml /root/config.toml`";
            "/var/lib/jenkins/a b.toml", "/var/lib/jenkins",
                "'/var/lib/jenkins/a b.toml' '/root/a b.toml'";
            // A directory of the system is a symlink.
            "/etc/gpu-bootstrap/node.lock", "/home/ada", "replace the symlink";
            "/etc/docker/daemon.json", "/srv/docker", "replace the symlink";
            "/var/lib/gpu-bootstrap/receipt.json", "/data/gb", "replace the symlink";
        } {
            let hint = hint(path, at);
            assert!(hint.contains(words) && !hint.contains("chown"), "{hint}");
        }
        for (path, at) in rows! {
            "/etc/gpu-bootstrap/config.toml", "/etc/gpu-bootstrap";
            "/var/lib/gpu-bootstrap/receipt.json", "/var";
            // Only the file belongs to a user.
            "/srv/node.lock", "/srv/node.lock";
            "/srv/node.lock", "/";
        } {
            let command = format!("chown -h root:root {at} && chmod go-w {at}");
            assert!(hint(path, at).contains(&command), "{path}");
        }
    }
}
