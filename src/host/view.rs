//! Checks whether this process sees the machine as PID 1 does. A unit with `PrivateDevices=` or
//! `ProtectSystem=` has its own mount namespace, in which directories may be read-only or replaced.
//! Sources: systemd.exec(5), "Sandboxing"; mount_namespaces(7); proc_pid_mountinfo(5).

use camino::{Utf8Path, Utf8PathBuf};

use super::{FileKind, FilesError, ReadFiles};

/// The directories that gpu-bootstrap reads and writes.
const PATHS: [&str; 5] = ["/run", "/etc", "/usr", "/boot", "/var"];

/// The directory of device nodes.
const DEVICES: &str = "/dev";

/// The differences between the views of this process and PID 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateView {
    /// The unit of this process, if it is a service.
    pub unit: Option<String>,
    /// Directories that are read-only for this process, but not for the machine.
    pub read_only: Vec<&'static str>,
    /// `/dev` is not the machine's `/dev`.
    pub devices: bool,
}

/// A line of the kernel's mount list.
struct Mount<'t> {
    device: &'t str,
    point: &'t str,
    read_only: bool,
}

impl<'t> Mount<'t> {
    /// Parses a line: ID, parent, device, root, mount point, mount options, and after ` - ` type,
    /// source, filesystem options.
    fn parse(line: &'t str) -> Option<Self> {
        let mut fields = line.split(' ').skip(2);
        let (device, point) = (fields.next()?, fields.nth(1)?);
        let own = fields.next()?;
        let (_, filesystem) = line.split_once(" - ")?;
        let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            device,
            point,
            read_only: is_read_only(own) || filesystem.split(' ').nth(2).is_some_and(is_read_only),
        })
    }

    /// Returns the mount of a path. If several filesystems are mounted at one point, the last one
    /// is visible.
    fn holding(list: &'t str, path: &Utf8Path) -> Option<Self> {
        list.lines()
            .filter_map(Self::parse)
            .filter(|mount| path.starts_with(mount.point))
            .max_by_key(|mount| Utf8Path::new(mount.point).components().count())
    }
}

/// Converts errors to `None` if only root may read the data, or if the machine is only known from a
/// text that does not contain it.
fn unknown<T>(error: FilesError) -> Result<Option<T>, FilesError> {
    match error.is_denied() || error.not_reported().is_some() {
        true => Ok(None),
        false => Err(error),
    }
}

/// Returns the mount lists of this process and PID 1. `None` if both have the same mount namespace
/// or this user may not read it.
fn lists(files: &dyn ReadFiles) -> Result<Option<(String, String)>, FilesError> {
    let namespace = |process: &str| {
        let path = Utf8PathBuf::from(format!("/proc/{process}/ns/mnt"));
        let stat = files.stat(&path).or_else(unknown)?;
        Ok(stat.and_then(|stat| match stat.kind {
            FileKind::Link(target) => Some(target),
            _ => None,
        }))
    };
    let (Some(own), Some(first)) = (namespace("self")?, namespace("1")?) else {
        return Ok(None);
    };
    if own == first {
        return Ok(None);
    }
    let mounts = |process: &str| {
        let path = Utf8PathBuf::from(format!("/proc/{process}/mountinfo"));
        files.read_lossy(&path).or_else(unknown)
    };
    Ok(mounts("self")?.zip(mounts("1")?))
}

/// Whether a path is read-only for this process, but not for the machine.
///
/// # Errors
/// If the mount lists cannot be read.
pub fn is_read_only_here(files: &dyn ReadFiles, path: &Utf8Path) -> Result<bool, FilesError> {
    let lists = lists(files)?;
    Ok(lists.is_some_and(|(own, machine)| differs(&own, &machine, path)))
}

fn differs(own: &str, machine: &str, path: &Utf8Path) -> bool {
    let is_read_only = |list| Mount::holding(list, path).map(|mount| mount.read_only);
    is_read_only(own) == Some(true) && is_read_only(machine) == Some(false)
}

/// Returns the relevant differences between the views of this process and PID 1, or `None`.
///
/// # Errors
/// If the mount lists or the cgroup of this process cannot be read.
pub fn private(files: &dyn ReadFiles) -> Result<Option<PrivateView>, FilesError> {
    let Some((own, machine)) = lists(files)? else {
        return Ok(None);
    };
    let device = |list| Mount::holding(list, Utf8Path::new(DEVICES)).map(|mount| mount.device);
    let (here, there) = (device(&own), device(&machine));
    let view = PrivateView {
        unit: unit(files)?,
        read_only: (PATHS.into_iter())
            .filter(|path| differs(&own, &machine, Utf8Path::new(path)))
            .collect(),
        devices: here.is_some() && there.is_some() && here != there,
    };
    Ok((view.devices || !view.read_only.is_empty()).then_some(view))
}

/// Returns the service of this process according to its cgroup, cgroups(7).
///
/// # Errors
/// If `/proc/self/cgroup` cannot be read.
pub fn unit(files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
    let text = files
        .read_lossy("/proc/self/cgroup".into())?
        .unwrap_or_default();
    let path = (text.lines()).find_map(|line| {
        line.strip_prefix("0::")
            .or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
    });
    // A container or a user session is a scope below a slice or a service.
    let unit = path.and_then(|path| {
        let mut units = path.split('/').rev();
        units.find(|part| part.ends_with(".service") || part.ends_with(".scope"))
    });
    Ok(unit
        .filter(|unit| unit.ends_with(".service"))
        .map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::{PrivateView, is_read_only_here, private};
    use crate::host::fake::FakeFiles;

    const MACHINE: &str = "\
        22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
        23 22 0:5 / /dev rw,nosuid - devtmpfs udev rw\n\
        24 22 0:21 / /run rw,nosuid - tmpfs tmpfs rw\n";
    /// `ProtectSystem=strict`, `PrivateDevices=yes`, `ReadWritePaths=/var`.
    const UNIT: &str = "\
        92 1 254:1 / / ro,relatime - ext4 /dev/vda1 rw\n\
        93 92 0:51 / /dev rw,nosuid - tmpfs tmpfs rw\n\
        94 92 0:21 / /run ro,nosuid - tmpfs tmpfs rw\n\
        95 92 254:1 /var /var rw,relatime - ext4 /dev/vda1 rw\n";

    fn process(namespace: &str, own: &str, machine: &str) -> FakeFiles {
        let files = FakeFiles::new();
        files.put_link("/proc/1/ns/mnt", "mnt:[4026531841]");
        files.put_link("/proc/self/ns/mnt", namespace);
        files.put("/proc/1/mountinfo", machine);
        files.put("/proc/self/mountinfo", own);
        files.put("/proc/self/cgroup", "0::/system.slice/gpu-setup.service\n");
        files
    }

    #[test]
    fn sandbox_of_a_unit_is_distinguished_from_the_machine() {
        let files = process("mnt:[7]", UNIT, MACHINE);
        let expected = PrivateView {
            unit: Some("gpu-setup.service".into()),
            read_only: vec!["/run", "/etc", "/usr", "/boot"],
            devices: true,
        };
        assert_eq!(private(&files).expect("readable"), Some(expected));
        for (path, expected) in [("/run/lock", true), ("/var/lib", false), ("/usr/bin", true)] {
            let found = is_read_only_here(&files, path.into()).expect("readable");
            assert_eq!(found, expected, "{path}");
        }
        // A path that is also read-only for the machine is a problem of the machine.
        let files = process("mnt:[7]", UNIT, UNIT);
        assert_eq!(private(&files).expect("readable"), None);
        assert!(!is_read_only_here(&files, "/run".into()).expect("readable"));
        // Other differences, such as `PrivateTmp=`, and the same namespace are ignored.
        for (namespace, own) in [("mnt:[7]", MACHINE), ("mnt:[4026531841]", UNIT)] {
            let files = process(namespace, own, MACHINE);
            assert_eq!(private(&files).expect("readable"), None);
        }
        // A tree without these files.
        assert_eq!(private(&FakeFiles::new()).expect("readable"), None);
    }

    #[test]
    fn only_a_process_of_a_service_has_a_unit() {
        let files = FakeFiles::new();
        for (cgroup, unit) in [
            ("0::/system.slice/x.service/worker\n", Some("x.service")),
            (
                "1:name=systemd:/system.slice/x.service\n0::/y\n",
                Some("x.service"),
            ),
            ("0::/user.slice/user-0.slice/session-3.scope\n", None),
            (
                "0::/user.slice/user@0.service/app.slice/run-1.scope\n",
                None,
            ),
            ("0::/\n", None),
        ] {
            files.put("/proc/self/cgroup", cgroup);
            assert_eq!(
                super::unit(&files).expect("readable").as_deref(),
                unit,
                "{cgroup}"
            );
        }
    }
}
