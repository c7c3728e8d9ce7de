//! Device nodes of NVIDIA's driver: character devices with the numbers of the driver, accessible as the driver's parameters
//! declare. A node that differs is of no use to any program, although its name is there.

use camino::Utf8Path;

use crate::host::{FileKind, FilesError, ReadFiles};

/// The kernel's list of major numbers.
const MAJORS: &str = "/proc/devices";

/// The parameters of the loaded module.
const PARAMETERS: &str = "/proc/driver/nvidia/params";

/// The nodes that each CUDA program opens, except those of GPUs, and their minor numbers. Source:
/// NVIDIA/nvidia-container-toolkit, `internal/system/nvdevices`.
const CONTROL: [(&str, u32); 4] = [
    ("nvidiactl", 255),
    ("nvidia-modeset", 254),
    ("nvidia-uvm", 0),
    ("nvidia-uvm-tools", 1),
];

/// The character devices of NVIDIA's driver in `/proc/devices`: names, and major numbers.
#[must_use]
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

/// The names that the driver of a device node has in `/proc/devices`; none for a node of somebody else. Source:
/// NVIDIA/nvidia-container-toolkit, `internal/info/proc/devices/devices.go`; before 550.40 the nodes of GPUs were
/// those of `nvidia-frontend`.
#[must_use]
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

/// What is wrong with an existing device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFault {
    /// The path, and what differs.
    pub why: String,
    pub remedy: String,
}

/// The first existing node in `/dev` that is not as the loaded driver made it.
///
/// # Errors
/// If a node or a list of the kernel cannot be read.
pub fn fault(files: &dyn ReadFiles) -> Result<Option<NodeFault>, FilesError> {
    let text = |path: &str| files.read_lossy(Utf8Path::new(path));
    let majors = majors(&text(MAJORS)?.unwrap_or_default());
    let mode = declared_mode(&text(PARAMETERS)?.unwrap_or_default());
    for name in files.list("/dev".into())? {
        let Some(minor) = minor_of(&name) else {
            continue;
        };
        let path = format!("/dev/{name}");
        let drivers = drivers_of(&path);
        let major = (majors.iter()).find(|(driver, _)| drivers.contains(&driver.as_str()));
        let expected = (major.map(|(_, major)| *major), minor);
        if let Some(fault) = of_node(files, &path, expected, mode)? {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

fn of_node(
    files: &dyn ReadFiles,
    path: &str,
    (major, minor): (Option<u32>, u32),
    declared: Option<u32>,
) -> Result<Option<NodeFault>, FilesError> {
    // A link leads to the node of another name.
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
                    "`{path}` is device {is_major}:{is_minor}, but the driver has {right}:{minor}"
                );
                return Ok(Some(made_again(why, "rm", path)));
            }
            let missing = declared.unwrap_or_default() & !stat.mode;
            return Ok((missing != 0).then(|| {
                let declared = declared.unwrap_or_default();
                NodeFault {
                    why: format!(
                        "`{path}` has mode {:04o}, but the driver declares {declared:04o}: some users cannot open the GPU",
                        stat.mode
                    ),
                    remedy: format!(
                        "run `chmod {declared:04o} {path}`, or declare the other mode (`NVreg_DeviceFileMode`, \
                         `driver.options`)"
                    ),
                }
            }));
        }
        FileKind::Folder => ("a directory", "rmdir"),
        FileKind::File => ("a regular file", "rm"),
        FileKind::Link(_) => ("a dangling symlink", "rm"),
        FileKind::Other => ("a block device, a socket or a pipe", "rm"),
    };
    let why = format!("`{path}` is {is}, not a character device");
    Ok(Some(made_again(why, remove, path)))
}

/// A container runtime that mounts a missing node from the host creates a directory in its place.
fn made_again(why: String, remove: &str, path: &str) -> NodeFault {
    NodeFault {
        why,
        remedy: format!(
            "run `{remove} {path}`, then `nvidia-modprobe -c 0 -u`; restart the containers that use it"
        ),
    }
}

/// The minor number of a node by its name; `None` for other files.
fn minor_of(name: &str) -> Option<u32> {
    let control = CONTROL.iter().find(|(known, _)| *known == name);
    match control {
        Some((_, minor)) => Some(*minor),
        None => name.strip_prefix("nvidia")?.parse().ok(),
    }
}

/// The mode of the nodes by the parameters of the module; `None` if it leaves nodes to the administrator
/// (`ModifyDeviceFiles`), or if there are no parameters. The kernel prints a decimal number. Source: NVIDIA's driver README,
/// "How and when are the NVIDIA device files created?".
fn declared_mode(parameters: &str) -> Option<u32> {
    let value = |key: &str| {
        let value = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned());
        parameters.lines().find_map(value)
    };
    if value("ModifyDeviceFiles").is_some_and(|modify| modify == "0") {
        return None;
    }
    let mode = value("DeviceFileMode")?;
    match mode.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        _ => mode.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{declared_mode, drivers_of, fault, majors};
    use crate::{host::fake::FakeFiles, model::text::reads_any_text};

    fn machine() -> FakeFiles {
        let files = FakeFiles::new();
        files.put(
            "/proc/devices",
            "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n",
        );
        files.put(
            "/proc/driver/nvidia/params",
            "DeviceFileMode: 438\nModifyDeviceFiles: 1\n",
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
        files.put_folder("/dev/nvidia-caps", 0o755);
        files
    }

    fn why(files: &FakeFiles) -> Option<String> {
        Some(fault(files).expect("readable")?.why)
    }

    #[test]
    fn major_numbers_are_those_of_the_kernel() {
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
    fn nodes_of_another_kind_or_number_or_mode_are_faults() {
        assert_eq!(why(&machine()), None);
        let files = machine();
        files.take("/dev/nvidia0");
        assert_eq!(why(&files), None, "a missing node is the concern of others");
        files.put_folder("/dev/nvidia0", 0o755);
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
                "`/dev/nvidia-uvm` is device 510:0, but the driver has 511:0",
            ),
            (
                "/dev/nvidia11",
                195,
                1,
                "`/dev/nvidia11` is device 195:1, but the driver has 195:11",
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
        let expected = "`/dev/nvidiactl` is device 195:254, but the driver has 195:255";
        assert_eq!(why(&files).as_deref(), Some(expected));
    }

    #[test]
    fn the_driver_declares_the_mode_unless_it_leaves_nodes_alone() {
        let files = machine();
        // All nodes have mode 0666.
        for (parameters, fails) in [
            ("DeviceFileMode: 432\n", false),
            ("DeviceFileMode: 511\n", true),
            ("DeviceFileMode: 511\nModifyDeviceFiles: 0\n", false),
            ("", false),
        ] {
            files.put("/proc/driver/nvidia/params", parameters);
            assert_eq!(why(&files).is_some(), fails, "{parameters}");
        }
        assert_eq!(declared_mode("DeviceFileMode: 0660\n"), Some(0o660));
    }

    reads_any_text!("(DeviceFileMode|: |0|\n|.)*", |text| declared_mode(&text));
}
