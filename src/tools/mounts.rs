//! Finds the filesystem of a path in the kernel's mount list, proc_pid_mountinfo(5).

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{FilesError, ReadFiles, files::FreeSpace};

/// The mounts that are visible to this process.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Directories that are emptied at boot or by a timer, regardless of their filesystem.
const PASSING: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev", "/proc"];

/// Filesystems in memory, and filesystems that may not be mounted yet when the run starts at boot.
const PASSING_TYPES: [&str; 12] = [
    "tmpfs", "ramfs", "devtmpfs", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph",
    "iso9660", "udf",
];

/// The suffix that the kernel adds to the path of a running program whose file was deleted.
const DELETED: &str = " (deleted)";

/// An entry of the mount list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'t> {
    /// The device number, `major:minor`.
    pub device: &'t str,
    /// The mount point.
    pub point: Utf8PathBuf,
    /// The filesystem type.
    pub kind: &'t str,
}

/// Returns the mount list, or an empty string if it does not exist.
///
/// # Errors
/// If the mount list cannot be read.
pub fn list(files: &dyn ReadFiles) -> Result<String, FilesError> {
    Ok(files
        .read_text(Utf8Path::new(MOUNTINFO))?
        .unwrap_or_default())
}

/// Returns the mount that contains a path. The path must not contain symlinks. If several mounts have the same mount point,
/// the last one is visible.
pub fn holding<'t>(list: &'t str, path: &Utf8Path) -> Option<Mount<'t>> {
    list.lines()
        .filter_map(mount)
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

/// Whether a file will exist at this path after a reboot, according to the mount list.
pub fn stays(path: &Utf8Path, mounts: &str) -> bool {
    let passing = PASSING.iter().any(|directory| path.starts_with(directory))
        || path.as_str().ends_with(DELETED)
        || holding(mounts, path).is_some_and(|mount| {
            PASSING_TYPES.contains(&mount.kind) || mount.kind.starts_with("fuse")
        });
    !passing
}

/// Parses a line. The device is field 3, the mount point is field 5, and the type is the field after `-`.
fn mount(line: &str) -> Option<Mount<'_>> {
    let mut fields = line.split(' ').skip(2);
    Some(Mount {
        device: fields.next()?,
        point: unescaped(fields.nth(1)?),
        kind: line.split_once(" - ")?.1.split(' ').next()?,
    })
}

/// A filesystem, and the given paths on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem<'p> {
    /// The mount point, or the first path if there is no mount list.
    pub mount: Utf8PathBuf,
    /// The paths, in the given order.
    pub paths: Vec<&'p str>,
    pub free_space: FreeSpace,
}

/// Returns the free space on the filesystem of a path, or `None` if the machine is not running and
/// its source does not contain it.
///
/// # Errors
/// If the operating system does not report it.
pub fn free_space(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Option<FreeSpace>, FilesError> {
    match files.free_space(path) {
        Err(FilesError::NotReported { .. }) => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the filesystems of these paths, each once, in the order of the paths. Filesystems of
/// unknown free space are omitted.
///
/// # Errors
/// If a path or the mount list cannot be read.
pub fn of<'p>(files: &dyn ReadFiles, paths: &[&'p str]) -> Result<Vec<Filesystem<'p>>, FilesError> {
    let mounts = list(files)?;
    let mut found: Vec<(String, Filesystem<'p>)> = Vec::new();
    for &path in paths {
        let Some(free_space) = free_space(files, Utf8Path::new(path))? else {
            continue;
        };
        let there = existing(files, Utf8Path::new(path))?;
        let (device, mount) = match holding(&mounts, &there) {
            Some(mount) => (mount.device.to_owned(), mount.point),
            // Without the list, assume that equal sizes and free space mean the same filesystem.
            None => (format!("{free_space:?}"), path.into()),
        };
        match found.iter_mut().find(|(other, _)| *other == device) {
            Some((_, filesystem)) => filesystem.paths.push(path),
            None => found.push((
                device,
                Filesystem {
                    mount,
                    paths: vec![path],
                    free_space,
                },
            )),
        }
    }
    Ok(found
        .into_iter()
        .map(|(_, filesystem)| filesystem)
        .collect())
}

/// Returns the path or its nearest existing ancestor, with symlinks resolved.
fn existing(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Utf8PathBuf, FilesError> {
    for at in path.ancestors() {
        if let Some(real) = files.resolve(at)? {
            return Ok(real);
        }
    }
    Ok("/".into())
}

/// The kernel escapes space, tab, newline and backslash as three octal digits.
fn unescaped(field: &str) -> Utf8PathBuf {
    let pairs = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let plain = |text: String, (code, plain): (&str, &str)| text.replace(code, plain);
    pairs.into_iter().fold(field.to_owned(), plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;
    use crate::model::text::reads_any_text;

    const LIST: &str = "\
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
22 21 0:20 / /proc rw,nosuid shared:5 - proc proc rw
23 21 254:2 / /var rw shared:7 - ext4 /dev/vda2 rw
24 23 254:3 / /var/lib/my\\040data rw shared:8 - ext4 /dev/vda3 rw
25 21 254:4 / /usr rw - ext4 /dev/vda4 rw
26 21 254:1 /srv/cache /var/cache rw - ext4 /dev/vda1 rw
";

    const MOUNTS: &str = "\
        22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
        23 22 0:21 / /mnt/with\\040space rw - tmpfs tmpfs rw\n\
        24 22 0:22 / /home rw shared:2 - nfs4 server:/home rw\n\
        25 22 254:2 / /home/local rw shared:2 - xfs /dev/vdb rw\n\
        26 22 0:23 / /mnt/seed ro - fuse.sshfs x ro\n";

    #[test]
    fn paths_emptied_at_boot_do_not_persist() {
        for (path, there) in [
            ("/usr/local/bin/gb", true),
            ("/root/gb", true),
            ("/tmp/gb", false),
            ("/tmpx/gb", true),
            ("/var/tmp/gb", false),
            ("/run/user/0/gb", false),
            ("/dev/shm/gb", false),
            ("/usr/local/bin/gb (deleted)", false),
            ("/mnt/with space/gb", false),
            ("/home/admin/gb", false),
            ("/home/local/gb", true),
            ("/mnt/seed/gb", false),
        ] {
            assert_eq!(stays(Utf8Path::new(path), MOUNTS), there, "{path}");
        }
    }

    #[test]
    fn innermost_mount_contains_the_path() {
        let mount = |path: &str| {
            holding(LIST, path.into()).map(|mount| (mount.device, mount.point.into_string()))
        };
        assert_eq!(mount("/etc"), Some(("254:1", "/".to_owned())));
        assert_eq!(mount("/variable"), Some(("254:1", "/".to_owned())));
        assert_eq!(mount("/var/lib"), Some(("254:2", "/var".to_owned())));
        assert_eq!(
            mount("/var/lib/my data/x"),
            Some(("254:3", "/var/lib/my data".to_owned()))
        );
        assert_eq!(holding("garbage\n\n1 2\n", "/".into()), None);
    }

    #[test]
    fn paths_on_one_device_share_a_filesystem() {
        let files = FakeFiles::new();
        files.put(MOUNTINFO, LIST);
        for directory in ["/usr", "/var/cache/apt", "/etc"] {
            files.put_directory(directory, 0o755);
        }
        let paths = ["/", "/usr", "/var", "/var/cache/apt/archives"];
        let found = of(&files, &paths).unwrap();
        let pairs: Vec<(&str, Vec<&str>)> = (found.iter())
            .map(|one| (one.mount.as_str(), one.paths.clone()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("/", vec!["/", "/var/cache/apt/archives"]),
                ("/usr", vec!["/usr"]),
                ("/var", vec!["/var"])
            ]
        );
        files.take(MOUNTINFO);
        assert_eq!(of(&files, &paths).unwrap().len(), 1);
        let small = FreeSpace {
            total: 10,
            free: 1,
            read_only: false,
            inodes: None,
        };
        files.mount("/var", small);
        let found = of(&files, &paths).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[1].mount.as_str(), found[1].free_space),
            ("/var", small)
        );
    }

    reads_any_text!("([0-9:/ \\\\\n]|.)*", |text| holding(&text, "/var".into()));
}
