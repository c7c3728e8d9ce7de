//! Files: reading never writes, writing is atomic and durable.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::model::text::bytes;

/// Bytes below which a filesystem has no room for what this program writes.
const LITTLE: u64 = 4 << 20;

/// Inodes below which a filesystem cannot take the files of packages.
const FEW_INODES: u64 = 1000;

/// What the name of a file ends with that is being written and not yet in its place.
const UNFINISHED: &str = ".gpu-bootstrap-new";

/// A name for what becomes `name` when it is whole: hidden, and with an ending that no daemon reads
/// from its `.d` folder.
#[must_use]
pub fn unfinished(name: &str, pid: u32, number: u32) -> String {
    format!("{}{pid}-{number}{UNFINISHED}", stem(name))
}

fn stem(name: &str) -> String {
    // Room for the suffix: a name has at most 255 bytes.
    let start: String = name.chars().take(50).collect();
    format!(".{start}.")
}

/// What writers of this file left beside it when they were killed. Only for one that is alone in
/// writing it.
///
/// # Errors
/// The operating system's reason.
pub fn leftovers(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Vec::new());
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = stem(name);
    let is_one = |other: &String| {
        (other.strip_prefix(&stem))
            .and_then(|rest| rest.strip_suffix(UNFINISHED)?.split_once('-'))
            .is_some_and(|(pid, number)| digits(pid) && digits(number))
    };
    let names = files.list(folder)?;
    Ok((names.iter().filter(|name| is_one(name)))
        .map(|name| folder.join(name))
        .collect())
}

/// What kind of thing a path names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file.
    File,
    Folder,
    /// A symbolic link, with its target as written.
    Link(Utf8PathBuf),
    /// A character device with its major and minor number.
    CharDevice(u32, u32),
    /// Anything else: block device, socket, pipe.
    Other,
}

/// What is known about a path, without following a final link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stat {
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, seconds since 1970.
    pub mtime: i64,
    /// Number of the inode; 0 where it is not known.
    #[serde(default)]
    pub inode: u64,
}

/// Room on the filesystem of a path, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Room {
    /// Size of the filesystem.
    pub total: u64,
    /// Available to an unprivileged process.
    pub free: u64,
    /// Mounted read-only.
    pub read_only: bool,
    /// `None` if the filesystem has no fixed number of inodes, as Btrfs.
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

impl Room {
    /// Whether no more files fit, whatever space is free.
    #[must_use]
    pub fn lacks_inodes(&self) -> bool {
        self.inodes.is_some_and(|inodes| inodes.free < FEW_INODES)
    }
}

/// The limit because of which a filesystem refuses a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// All blocks are used.
    Space,
    /// All inodes are used.
    Inodes,
    /// The disk quota of a user, group or project is used up.
    Quota,
    ReadOnly,
    /// Read-only for this process, but not for the machine: [`view`](super::view).
    ReadOnlyHere,
    /// The file would be larger than the process may write, or than the filesystem supports.
    FileSize,
}

impl Limit {
    /// The limit that an error of a write shows; `None` if it is not about a limit of the filesystem.
    pub(super) fn of(error: &std::io::Error, room: &Room) -> Option<Self> {
        use std::io::ErrorKind;
        Some(match error.kind() {
            ErrorKind::StorageFull if room.lacks_inodes() => Self::Inodes,
            ErrorKind::StorageFull => Self::Space,
            ErrorKind::QuotaExceeded => Self::Quota,
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            ErrorKind::FileTooLarge => Self::FileSize,
            _ => return None,
        })
    }

    /// The stable word for scripts.
    #[must_use]
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

    /// The remedy on the filesystem at this mount point.
    #[must_use]
    pub fn remedy(self, mount: &Utf8Path, room: &Room) -> String {
        let free = format!("{} of {} are free", bytes(room.free), bytes(room.total));
        match self {
            Self::Space if room.free < LITTLE => format!("free some room on `{mount}`: {free}"),
            Self::Space => format!(
                "free some room on `{mount}`: {free}, so that a project quota or the filesystem's own metadata may be \
                 used up (`df {mount}`)"
            ),
            Self::Inodes => {
                let Inodes { total, free } = room.inodes.unwrap_or(Inodes { total: 0, free: 0 });
                format!(
                    "`{mount}` has {free} free inodes of {total}: remove files that are not needed (`du --inodes -x {mount} \
                     | sort -n | tail` shows where most are); more free space does not help"
                )
            }
            Self::Quota => format!(
                "the disk quota on `{mount}` is used up, although {free}: raise it (`repquota {mount}`, `edquota`), or \
                 remove files of its owner"
            ),
            Self::ReadOnly => format!(
                "`{mount}` is mounted read-only: mount it writable (`mount -o remount,rw \
                 {mount}`), and ask the kernel's log whether its disk is broken (`dmesg`)"
            ),
            Self::ReadOnlyHere => format!(
                "`{mount}` is read-only for this process, but not for the machine: its unit has `ProtectSystem=` or \
                 `ReadOnlyPaths=` (`systemctl status $$` shows the unit); remove them, or run the command outside of the unit \
                 (`systemd-run --pipe --wait COMMAND`)"
            ),
            Self::FileSize => format!(
                "raise the file size limit of this process (`ulimit -f`, or `LimitFSIZE=` of its unit), or use a filesystem \
                 on `{mount}` that supports larger files"
            ),
        }
    }
}

/// A filesystem that refuses a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullFilesystem {
    /// Where it is mounted.
    pub mount: Utf8PathBuf,
    pub room: Room,
    pub limit: Limit,
}

/// What can go wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The operating system said no.
    #[error("{verb} `{path}`")]
    Io {
        /// What was tried: `read`, `write`, ….
        verb: &'static str,
        /// On which path.
        path: Utf8PathBuf,
        /// Its reason.
        source: std::io::Error,
        /// The filesystem, where it is full or not to be written to.
        disk: Option<Box<FullFilesystem>>,
    },
    /// The file decides what root does, and others than root may change it.
    #[error(
        "trust `{path}`: others than root may change `{at}` (owner {uid}, group {gid}, mode {mode:04o})"
    )]
    Foreign {
        /// The file.
        path: Utf8PathBuf,
        /// What others may change: the file, a folder that leads to it, or a link.
        at: Utf8PathBuf,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is no UTF-8.
    #[error("read `{path}`: it is not UTF-8")]
    NotText { path: Utf8PathBuf },
    /// Nothing is known about the path: the machine is known from a text that does not tell it.
    #[error("read `{path}`: {why}")]
    NotTold {
        path: Utf8PathBuf,
        /// What is known instead.
        why: &'static str,
    },
}

impl FilesError {
    /// The filesystem, where it is full or not to be written to.
    #[must_use]
    pub fn disk(&self) -> Option<&FullFilesystem> {
        match self {
            Self::Io { disk, .. } => disk.as_deref(),
            Self::Foreign { .. } | Self::NotText { .. } | Self::NotTold { .. } => None,
        }
    }

    /// Why nothing is known about the path, if that is the reason: it is not a fault of the machine.
    #[must_use]
    pub fn not_told(&self) -> Option<&'static str> {
        match self {
            Self::NotTold { why, .. } => Some(why),
            Self::Io { .. } | Self::Foreign { .. } | Self::NotText { .. } => None,
        }
    }

    /// Whether this user may not read it, where root may.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// The stable word for scripts, where the filesystem or an owner is at fault.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        if matches!(self, Self::Foreign { .. }) {
            return Some("untrusted-file");
        }
        self.disk().map(|disk| disk.limit.reason())
    }

    /// What to do, where the filesystem or an owner is at fault.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if let Self::Foreign { at, .. } = self {
            return Some(format!(
                "look at what is in it, then run `chown -h root:root {at} && chmod go-w {at}`"
            ));
        }
        let FullFilesystem { mount, room, limit } = self.disk()?;
        Some(limit.remedy(mount, room))
    }
}

pub trait ReadFiles: Send + Sync {
    /// The content, or `None` if nothing is there.
    ///
    /// # Errors
    /// Anything but absence.
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError>;

    /// Kind, mode and owner without following a final link, or `None` if nothing is there.
    ///
    /// # Errors
    /// Anything but absence.
    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError>;

    /// The sorted names in a folder; empty if it is not there.
    ///
    /// # Errors
    /// Anything but absence.
    fn list(&self, folder: &Utf8Path) -> Result<Vec<String>, FilesError>;

    /// The path with all links resolved, or `None` if nothing is at its end.
    ///
    /// # Errors
    /// Anything but absence.
    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError>;

    /// Room on the filesystem that holds the path or its nearest existing ancestor.
    ///
    /// # Errors
    /// When the operating system does not tell.
    fn room(&self, path: &Utf8Path) -> Result<Room, FilesError>;

    /// The content as text, or `None` if nothing is there.
    ///
    /// # Errors
    /// Anything but absence; content that is no UTF-8.
    fn read_text(&self, path: &Utf8Path) -> Result<Option<String>, FilesError> {
        self.read(path)?
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| FilesError::NotText {
                path: path.to_owned(),
            })
    }

    /// The same of a file that people write and this program only reads: what is no UTF-8, such as a comment in another
    /// encoding, is replaced.
    ///
    /// # Errors
    /// As [`ReadFiles::read`].
    fn read_lossy(&self, path: &Utf8Path) -> Result<Option<String>, FilesError> {
        let bytes = self.read(path)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Whether something is at the path, links followed.
    ///
    /// # Errors
    /// As [`ReadFiles::resolve`].
    fn exists(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        Ok(self.resolve(path)?.is_some())
    }
}

/// Writing. Every method is durable when it returns: file and folder are synced.
pub trait Files: ReadFiles {
    /// Replaces the content atomically (temporary file in the same folder, fsync, rename, fsync of
    /// the folder), creating missing parents with mode 0755. Sets the mode exactly; an existing file
    /// keeps its owner.
    ///
    /// # Errors
    /// The operating system's reason; the old content is then untouched.
    fn write(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError>;

    /// Appends and syncs; creates the file with the mode if it is missing.
    ///
    /// # Errors
    /// The operating system's reason. What was written is then cut off again; if that fails, too,
    /// the error says so.
    fn append(&self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), FilesError>;

    /// Makes a symbolic link, replacing one that is there.
    ///
    /// # Errors
    /// The operating system's reason.
    fn link(&self, path: &Utf8Path, target: &Utf8Path) -> Result<(), FilesError>;

    /// Sets owner and group.
    ///
    /// # Errors
    /// The operating system's reason.
    fn chown(&self, path: &Utf8Path, uid: u32, gid: u32) -> Result<(), FilesError>;

    /// Removes a file or link; nothing there is no error.
    ///
    /// # Errors
    /// The operating system's reason.
    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError>;

    /// Removes a folder if it is empty; true if it does not exist afterwards.
    ///
    /// # Errors
    /// The operating system's reason, except "not empty".
    fn remove_empty_folder(&self, path: &Utf8Path) -> Result<bool, FilesError>;

    /// Makes a folder and its missing parents.
    ///
    /// # Errors
    /// The operating system's reason.
    fn create_folder(&self, path: &Utf8Path, mode: u32) -> Result<(), FilesError>;

    /// Brings to the disk what other programs have written so far, on every filesystem that holds a part of
    /// the system: package managers, DKMS and the generators of initial RAM filesystems do not sync all their
    /// files.
    ///
    /// # Errors
    /// The operating system's reason.
    fn sync_system(&self) -> Result<(), FilesError>;

    /// Takes an exclusive lock on a file (created with mode 0600), without waiting. The content
    /// names the holder. `None`: another process holds it. Dropping the guard releases it.
    ///
    /// # Errors
    /// The operating system's reason.
    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError>;
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use nix::errno::Errno;

    use super::{Inodes, Limit, Room};

    #[test]
    fn each_limit_has_its_own_reason_and_remedy() {
        let room = |free, inodes| Room {
            total: 8 << 30,
            free,
            read_only: false,
            inodes: Some(Inodes {
                total: 65_536,
                free: inodes,
            }),
        };
        let mut seen = std::collections::BTreeSet::new();
        for (errno, room, limit, reason, words) in rows! {
            Errno::ENOSPC, room(0, 9000), Limit::Space, "no-disk-space", "free some room on `/var`";
            // Both are nearly used up: without inodes, space does not help.
            Errno::ENOSPC, room(0, 0), Limit::Inodes, "no-inodes", "0 free inodes of 65536";
            Errno::ENOSPC, room(4 << 30, 2), Limit::Inodes, "no-inodes", "more free space does not help";
            Errno::EDQUOT, room(4 << 30, 9000), Limit::Quota, "disk-quota", "`repquota /var`";
            Errno::EROFS, room(4 << 30, 9000), Limit::ReadOnly, "read-only-filesystem", "remount,rw";
            Errno::EFBIG, room(4 << 30, 9000), Limit::FileSize, "file-too-large", "`LimitFSIZE=`";
        } {
            let error = Error::from_raw_os_error(errno as i32);
            assert_eq!(Limit::of(&error, &room), Some(limit), "{errno}");
            assert_eq!(limit.reason(), reason);
            let remedy = limit.remedy("/var".into(), &room);
            assert!(remedy.contains(words), "{remedy}");
            seen.insert(remedy);
        }
        assert_eq!(seen.len(), 6);
        let other = Error::from_raw_os_error(Errno::EACCES as i32);
        assert_eq!(Limit::of(&other, &room(0, 0)), None);
        // Btrfs has no fixed number.
        let none = Room {
            inodes: None,
            ..room(0, 0)
        };
        let full = Error::from_raw_os_error(Errno::ENOSPC as i32);
        assert_eq!(Limit::of(&full, &none), Some(Limit::Space));
    }
}
