//! Checks that the NVIDIA device nodes in `/dev` are character devices with the driver's major and minor numbers. Programs
//! cannot use a node with the right name but the wrong type or number.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FileKind, FilesError, ReadFiles},
    model::{fault::Fault, text::shell_word},
};

/// The kernel's list of major device numbers.
const MAJORS: &str = "/proc/devices";

/// The control nodes, which do not belong to a single GPU, and their minor numbers. Source:
/// NVIDIA/nvidia-container-toolkit, `internal/system/nvdevices`.
const CONTROL: [(&str, u32); 4] = [
    ("nvidiactl", 255),
    ("nvidia-modeset", 254),
    ("nvidia-uvm", 0),
    ("nvidia-uvm-tools", 1),
];

/// Returns the NVIDIA character device drivers in `/proc/devices`: names and major numbers.
pub fn majors(text: &str) -> Vec<(String, u32)> {
    text.lines()
        .take_while(|line| !line.starts_with("Block devices"))
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            let name = name.trim();
            name.starts_with("nvidia")
                .then(|| Some((name.to_owned(), major.parse().ok()?)))?
        })
        .collect()
}

/// Returns the possible names in `/proc/devices` of the driver that owns a device node. Empty for nodes of other drivers.
/// Before 550.40, the owner of GPU nodes was `nvidia-frontend`. Source: NVIDIA/nvidia-container-toolkit,
/// `internal/info/proc/devices/devices.go`.
pub fn drivers_of(path: &str) -> &'static [&'static str] {
    let Some(name) = path.strip_prefix("/dev/") else {
        return &[];
    };
    if name.starts_with("nvidia-caps-imex-channels/") {
        return &["nvidia-caps-imex-channels"];
    }
    if name.starts_with("nvidia-caps/") {
        return &["nvidia-caps"];
    }
    match name {
        "nvidia-uvm" | "nvidia-uvm-tools" => &["nvidia-uvm"],
        "nvidiactl" | "nvidia-modeset" => &["nvidia", "nvidia-frontend"],
        _ => match name.strip_prefix("nvidia") {
            Some(rest) if rest.parse::<u32>().is_ok() => &["nvidia", "nvidia-frontend"],
            _ => &[],
        },
    }
}

/// Returns the first NVIDIA node in `/dev` with a wrong type or number. If `/proc/devices` does not list the driver, the major
/// number is not compared.
///
/// # Errors
/// If `/dev`, a node or `/proc/devices` cannot be read.
pub fn fault(files: &dyn ReadFiles) -> Result<Option<Fault>, FilesError> {
    let text = |path: &str| files.read_lossy(Utf8Path::new(path));
    let majors = majors(&text(MAJORS)?.unwrap_or_default());
    for name in files.list("/dev".into())? {
        let Some(minor) = minor_of(&name) else {
            continue;
        };
        let path = format!("/dev/{name}");
        let drivers = drivers_of(&path);
        let major = (majors.iter()).find(|(driver, _)| drivers.contains(&driver.as_str()));
        let expected = (major.map(|(_, major)| *major), minor);
        if let Some(fault) = of_node(files, &path, expected)? {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

fn of_node(
    files: &dyn ReadFiles,
    path: &str,
    (major, minor): (Option<u32>, u32),
) -> Result<Option<Fault>, FilesError> {
    // A symlink may point to the node of another device.
    let real = files.resolve(path.into())?.unwrap_or_else(|| path.into());
    let Some(stat) = files.stat(&real)? else {
        return Ok(None);
    };
    let (is, remove) = match stat.kind {
        FileKind::CharDevice(is_major, is_minor) => {
            let is_right = is_minor == minor && major.is_none_or(|major| major == is_major);
            if !is_right {
                let right = major.unwrap_or(is_major);
                let why = format!(
                    "`{path}` is device {is_major}:{is_minor}, but the driver uses {right}:{minor}"
                );
                return Ok(Some(recreated(why, "rm", path)));
            }
            return Ok(None);
        }
        FileKind::Directory => ("a directory", "rmdir"),
        FileKind::File => ("a regular file", "rm"),
        FileKind::Link(_) => ("a dangling symlink", "rm"),
        FileKind::Other => ("a block device, a socket or a pipe", "rm"),
    };
    let why = format!("`{path}` is {is}, not a character device");
    Ok(Some(recreated(why, remove, path)))
}

/// Returns the fault, with the commands that recreate the node. Containers that use the node must be restarted, because they
/// have mounted the wrong one. If a device node to mount is missing on the host, a container runtime creates a directory in
/// its place.
fn recreated(why: String, remove: &str, path: &str) -> Fault {
    Fault::new(
        why,
        format!(
            "run `{remove} {}`, then `{}`; restart the containers that use the node",
            shell_word(path),
            creation(path)
        ),
    )
}

/// Returns the command that creates an NVIDIA device node. With `-u`, `-c` is the minor number of a UVM node instead of a GPU.
/// Source: NVIDIA/nvidia-modprobe, `main` in `nvidia-modprobe.c`.
pub fn creation(path: &str) -> String {
    let name = path.strip_prefix("/dev/").unwrap_or(path);
    match name {
        "nvidia-uvm" | "nvidia-uvm-tools" => "nvidia-modprobe -u -c 0".to_owned(),
        "nvidia-modeset" => "nvidia-modprobe -m".to_owned(),
        _ => minor_of(name).map_or("nvidia-modprobe".to_owned(), |minor| {
            format!("nvidia-modprobe -c {minor}")
        }),
    }
}

/// `nvidia-ctk` creates no symlinks for these nodes, because containers do not get them (NVIDIA/nvidia-container-toolkit,
/// `nodeIsBlocked` in `cmd/nvidia-ctk/system/create-dev-char-symlinks/existing.go`).
const WITHOUT_LINKS: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// The major number of GPU nodes, `nvidiactl` and `nvidia-modeset`. Source: Linux, `admin-guide/devices.txt`.
const MAJOR: u32 = 195;

/// The NVIDIA device nodes that containers can get, and their symlinks in `/dev/char`. systemd needs the symlinks to find a
/// device by its numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symlinks {
    /// The number of device nodes.
    pub nodes: usize,
    /// The nodes without a symlink, sorted.
    pub missing: Vec<Utf8PathBuf>,
}

/// Returns the device nodes without a symlink. In a copy of a machine (`is_copy`), regular files may replace device nodes.
/// The numbers of nodes with a fixed major number are then derived from their names.
///
/// # Errors
/// If `/dev`, a node or a symlink cannot be read.
pub fn symlinks(files: &dyn ReadFiles, is_copy: bool) -> Result<Symlinks, FilesError> {
    let mut found = Symlinks::default();
    for directory in ["/dev", "/dev/nvidia-caps"].map(Utf8Path::new) {
        for name in files.list(directory)? {
            let is_without = WITHOUT_LINKS.iter().any(|one| name.starts_with(one));
            if !name.starts_with("nvidia") || is_without {
                continue;
            }
            let path = directory.join(&name);
            let has_fixed_major = drivers_of(path.as_str()).contains(&"nvidia");
            let (major, minor) = match files.stat(&path)?.map(|stat| stat.kind) {
                Some(FileKind::CharDevice(major, minor)) => (major, minor),
                Some(FileKind::File) if is_copy && has_fixed_major => match minor_of(&name) {
                    Some(minor) => (MAJOR, minor),
                    None => continue,
                },
                _ => continue,
            };
            found.nodes += 1;
            let link = Utf8PathBuf::from(format!("/dev/char/{major}:{minor}"));
            if files.stat(&link)?.is_none() {
                found.missing.push(path);
            }
        }
    }
    found.missing.sort();
    Ok(found)
}

/// Returns the minor number of the NVIDIA node with this name, or `None` for other files.
fn minor_of(name: &str) -> Option<u32> {
    let control = CONTROL.iter().find(|(known, _)| *known == name);
    match control {
        Some((_, minor)) => Some(*minor),
        None => name.strip_prefix("nvidia")?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{drivers_of, fault, majors};
    use crate::host::fake::FakeFiles;

    fn machine() -> FakeFiles {
        let files = FakeFiles::new();
        files.put(
            "/proc/devices",
            "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n",
        );
        for (name, major, minor) in [
            ("nvidia0", 195, 0),
            ("nvidia11", 195, 11),
            ("nvidiactl", 195, 255),
            ("nvidia-modeset", 195, 254),
            ("nvidia-uvm", 511, 0),
            ("nvidia-uvm-tools", 511, 1),
        ] {
            files.put_device(&format!("/dev/{name}"), major, minor);
        }
        files.put_directory("/dev/nvidia-caps", 0o755);
        files
    }

    fn why(files: &FakeFiles) -> Option<String> {
        Some(fault(files).expect("readable")?.why)
    }

    #[test]
    fn each_node_has_the_command_that_creates_it() {
        for (path, command) in rows! {
            "/dev/nvidia3", "nvidia-modprobe -c 3";
            "/dev/nvidiactl", "nvidia-modprobe -c 255";
            "/dev/nvidia-uvm", "nvidia-modprobe -u -c 0";
            "/dev/nvidia-uvm-tools", "nvidia-modprobe -u -c 0";
            "/dev/nvidia-modeset", "nvidia-modprobe -m";
        } {
            assert_eq!(super::creation(path), command);
        }
    }

    #[test]
    fn major_numbers_are_parsed() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n243 nvidia-uvm\n\n\
                    Block devices:\n  8 sd\n195 nvidia-none\n";
        let found = majors(text);
        let of = |path| {
            let names = drivers_of(path);
            (found.iter())
                .find(|(name, _)| names.contains(&name.as_str()))
                .map(|(_, major)| *major)
        };
        for (path, major) in [
            ("/dev/nvidia0", Some(195)),
            ("/dev/nvidia-modeset", Some(195)),
            ("/dev/nvidia-uvm-tools", Some(243)),
            ("/dev/nvidia-caps/nvidia-cap1", None),
            ("/dev/dri/card0", None),
        ] {
            assert_eq!(of(path), major, "{path}");
        }
    }

    #[test]
    fn wrong_node_type_or_number_is_a_fault() {
        assert_eq!(why(&machine()), None);
        let files = machine();
        files.take("/dev/nvidia0");
        assert_eq!(why(&files), None, "a missing node is reported elsewhere");
        files.put_directory("/dev/nvidia0", 0o755);
        let found = fault(&files).expect("readable").expect("a fault");
        assert_eq!(
            found.why,
            "`/dev/nvidia0` is a directory, not a character device"
        );
        assert!(
            found.remedy.contains("`rmdir /dev/nvidia0`"),
            "{}",
            found.remedy
        );
        for (path, major, minor, expected) in [
            (
                "/dev/nvidia-uvm",
                510,
                0,
                "`/dev/nvidia-uvm` is device 510:0, but the driver uses 511:0",
            ),
            (
                "/dev/nvidia11",
                195,
                1,
                "`/dev/nvidia11` is device 195:1, but the driver uses 195:11",
            ),
        ] {
            let files = machine();
            files.take(path);
            files.put_device(path, major, minor);
            assert_eq!(why(&files).as_deref(), Some(expected));
        }
        let files = machine();
        files.take("/dev/nvidiactl");
        files.put("/dev/nvidiactl", "");
        let expected = "`/dev/nvidiactl` is a regular file, not a character device";
        assert_eq!(why(&files).as_deref(), Some(expected));
        files.take("/dev/nvidiactl");
        files.put_link("/dev/nvidiactl", "/dev/nvidia-modeset");
        let expected = "`/dev/nvidiactl` is device 195:254, but the driver uses 195:255";
        assert_eq!(why(&files).as_deref(), Some(expected));
    }
}
