//! Parses Container Device Interface (CDI) specifications, which list the device nodes, mounts and hooks of a container with a
//! GPU.
//!
//! Source: the CDI specification, <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.

use std::{collections::BTreeSet, iter};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

use crate::{
    host::{FileKind, FilesError, ReadFiles},
    model::version::DriverVersion,
    tools::yaml,
};

/// The device kind of NVIDIA GPUs.
pub const KIND: &str = "nvidia.com/gpu";

/// The specification that gpu-bootstrap generates with the NVIDIA toolkit. The toolkit derives the format from the extension:
/// `.yaml` or `.json`. Source: nvidia-container-toolkit, `cmd/nvidia-ctk/cdi/generate/generate.go`.
pub const FILE: &str = "/etc/cdi/nvidia.yaml";

/// The directories that runtimes read by default. A device in the second directory hides a device of the same name in the first
/// one. Source: container-device-interface, `pkg/cdi/spec-dirs.go` and `doc.go`.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// A specification, with only the fields that gpu-bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// The version of the format, for example `0.5.0`. The toolkit writes the lowest version that supports all features in the
    /// file.
    pub cdi_version: String,
    /// The device kind. A container requests a device by kind and name, for example `nvidia.com/gpu=0`.
    pub kind: String,
    /// The devices that a container can request by name.
    pub devices: Vec<CdiDevice>,
    /// Edits for every container that requests at least one of the devices, in addition to the edits of the device.
    pub container_edits: Edits,
}

/// A device that a container can request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    /// An index (`0`, or `0:1` for a MIG device), a UUID, or `all`.
    pub name: String,
    /// The edits for a container that requests the device.
    #[serde(default)]
    pub container_edits: Edits,
}

/// Changes to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Edits {
    pub device_nodes: Vec<DeviceNode>,
    /// Files and directories of the host that are mounted.
    pub mounts: Vec<CdiMount>,
    /// Host programs that prepare the container. If one is missing, the container does not start.
    pub hooks: Vec<Hook>,
}

/// A device node that is created in a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    path: String,
    host_path: Option<String>,
    major: Option<i64>,
    #[serde(default)]
    minor: i64,
}

/// A file or directory of the host that is mounted into a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    host_path: String,
}

/// A host program that a runtime executes for a container. The fields `hookName`, `args`, `env` and `timeout` are not read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Hook {
    path: String,
}

impl DeviceNode {
    /// Returns the path of the node on the host.
    pub fn host_path(&self) -> &str {
        self.host_path.as_deref().unwrap_or(&self.path)
    }

    /// Returns the major and minor number in the specification. `None` if it has no major number, because the runtime then uses
    /// the numbers of the host node. A missing minor number means zero.
    pub fn numbers(&self) -> Option<(i64, i64)> {
        self.major.map(|major| (major, self.minor))
    }
}

impl Spec {
    /// Whether the version is 0.7.0 or newer, which supports groups of device nodes (`additionalGids`). Runtimes with an older
    /// CDI library reject the whole file. Since 1.19.1, the NVIDIA toolkit writes 0.7.0 if a device node has a group, like the
    /// nodes in `/dev/dri`. Source: nvidia-container-toolkit, `internal/edits/device.go`.
    pub fn has_groups(&self) -> bool {
        let mut numbers = self.cdi_version.split('.').map(str::parse::<u32>);
        matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (0, 7))
    }

    /// Returns the first device name that starts with a digit, if the version is older than 0.5.0 and does not allow it.
    /// Runtimes reject the whole file because of such a name. Source: container-device-interface, `specs-go/version.go`
    /// (`ValidateVersion`, `requiresV050`).
    pub fn forbidden_name(&self) -> Option<&str> {
        let version = self
            .cdi_version
            .strip_prefix('v')
            .unwrap_or(&self.cdi_version);
        let mut numbers = version.split('.').map(str::parse::<u32>);
        let is_old =
            matches!((numbers.next(), numbers.next()), (Some(Ok(0)), Some(Ok(minor))) if minor < 5);
        let begins = |name: &&str| name.starts_with(|c: char| c.is_ascii_digit());
        self.names().filter(|_| is_old).find(begins)
    }

    fn edits(&self) -> impl Iterator<Item = &Edits> {
        let of_devices = self.devices.iter().map(|device| &device.container_edits);
        iter::once(&self.container_edits).chain(of_devices)
    }

    /// Returns the device nodes of all edits, without duplicates.
    pub fn device_nodes(&self) -> BTreeSet<&DeviceNode> {
        self.edits().flat_map(|edits| &edits.device_nodes).collect()
    }

    /// Returns the paths of mounts, hooks and device nodes that must exist on the host, without duplicates.
    pub fn host_paths(&self) -> BTreeSet<&str> {
        let mounts = self.edits().flat_map(|edits| &edits.mounts);
        let hooks = self.edits().flat_map(|edits| &edits.hooks);
        (mounts.map(|mount| mount.host_path.as_str()))
            .chain(hooks.map(|hook| hook.path.as_str()))
            .chain(self.device_nodes().into_iter().map(DeviceNode::host_path))
            .collect()
    }

    /// Returns the device names: indices, UUIDs, `all`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }
}

/// Parses a specification.
///
/// # Errors
/// If the text is not a specification. The message is one line with the position.
pub fn parse(text: &str) -> Result<Spec, String> {
    yaml::parse(text)
}

/// Whether runtimes read a file with this name as a specification. Source: container-device-interface, `pkg/cdi/spec-dirs.go`.
pub fn is_read(path: &Utf8Path) -> bool {
    matches!(path.extension(), Some("yaml" | "json"))
}

/// Returns a specification that only root can read, with its directory. Rootless containers then find no GPU
/// (containers/podman issue 17539).
///
/// # Errors
/// If a directory cannot be read.
pub fn only_for_root(
    files: &dyn ReadFiles,
) -> Result<Option<(&'static str, Utf8PathBuf)>, FilesError> {
    for directory in DIRECTORIES {
        let Some(of_directory) = files.stat(Utf8Path::new(directory))? else {
            continue;
        };
        for name in files.list(Utf8Path::new(directory))? {
            let path = Utf8Path::new(directory).join(&name);
            let Some(stat) = files.stat(&path)?.filter(|_| is_read(&path)) else {
                continue;
            };
            let is_link = matches!(stat.kind, FileKind::Link(_));
            let is_open = of_directory.mode & 0o005 == 0o005 && (is_link || stat.mode & 0o004 != 0);
            if !is_open {
                return Ok(Some((directory, path)));
            }
        }
    }
    Ok(None)
}

/// Whether one of the default directories contains a file that runtimes read as a specification.
///
/// # Errors
/// If a directory cannot be read.
pub fn is_there(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    for directory in DIRECTORIES {
        let names = files.list(Utf8Path::new(directory))?;
        if names.iter().any(|name| is_read(Utf8Path::new(name))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the driver version in a library path such as `/usr/lib/libcuda.so.535.261.03`. `None` if the file name has no
/// version, or a version that is not a driver version, such as in `libnvidia-egl-gbm.so.1.1.0`. The first number of a driver
/// version has at least three digits.
pub fn driver_of(path: &str) -> Option<DriverVersion> {
    let (_, name) = path.rsplit_once('/')?;
    let (_, version) = name.split_once(".so.")?;
    let digits = version.split('.').next()?.len();
    (digits >= 3).then(|| version.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{DeviceNode, driver_of, parse};

    #[test]
    fn driver_version_is_read_from_library_names() {
        for (path, version) in [
            ("/usr/lib/libcuda.so.535.261.03", Some("535.261.03")),
            ("/usr/lib/libnvidia-ml.so.580.65", Some("580.65")),
            ("/usr/lib/libnvidia-egl-gbm.so.1.1.0", None),
            ("/usr/lib/libcuda.so.1", None),
            ("/usr/bin/nvidia-smi", None),
        ] {
            let found = driver_of(path);
            assert_eq!(found.as_ref().map(|one| one.as_str()), version, "{path}");
        }
    }

    /// Based on the output of nvidia-ctk 1.20.1.
    const SPEC: &str = r#"---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              major: 195
              fileMode: 438
              permissions: rwm
        hooks:
            - hookName: createContainer
              path: /usr/bin/nvidia-cdi-hook
              args:
                - nvidia-cdi-hook
                - --link
                - ../card0::/dev/dri/by-path/pci-0000:18:00.0-card
    - name: GPU-1
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              major: 195
    - name: all
containerEdits:
    deviceNodes:
        - path: /dev/nvidia-uvm-tools
          major: 243
          minor: 1
        - path: /run/nvidia/dev/nvidiactl
          hostPath: /dev/nvidiactl
          major: 195
          minor: 255
        - path: /dev/nvidia-modeset
    mounts:
        - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
          hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
          options:
            - ro
"#;

    #[test]
    fn groups_require_version_0_7() {
        for (version, wanted) in [("0.6.0", false), ("0.7.0", true), ("1.0.0", true)] {
            let text = SPEC.replace("cdiVersion: 0.5.0", &format!("cdiVersion: {version}"));
            let spec = parse(&text).expect("a specification");
            assert_eq!(spec.has_groups(), wanted, "{version}");
        }
        let without = parse("kind: nvidia.com/gpu\ndevices: []\n").expect("a specification");
        assert!(!without.has_groups());
    }

    #[test]
    fn versions_before_0_5_forbid_names_starting_with_a_digit() {
        for (version, wanted) in [
            ("0.3.0", Some("0")),
            ("v0.4.0", Some("0")),
            ("0.5.0", None),
            ("1.0.0", None),
            ("\"\"", None),
        ] {
            let text = SPEC.replace("cdiVersion: 0.5.0", &format!("cdiVersion: {version}"));
            let spec = parse(&text).expect("a specification");
            assert_eq!(spec.forbidden_name(), wanted, "{version}");
        }
        let named = "cdiVersion: 0.4.0\ndevices:\n- name: gpu0\n- name: all\n";
        assert_eq!(
            parse(named).expect("a specification").forbidden_name(),
            None
        );
    }

    #[test]
    fn names_nodes_and_paths_are_parsed() {
        let spec = parse(SPEC).expect("a specification");
        let names: Vec<&str> = spec.devices.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["0", "GPU-1", "all"]);
        assert_eq!(spec.names().collect::<Vec<_>>(), ["0", "GPU-1", "all"]);
        let nodes: Vec<_> = (spec.device_nodes().into_iter())
            .map(|node: &DeviceNode| (node.host_path(), node.numbers()))
            .collect();
        assert_eq!(
            nodes,
            [
                ("/dev/nvidia-modeset", None),
                ("/dev/nvidia-uvm-tools", Some((243, 1))),
                ("/dev/nvidia0", Some((195, 0))),
                ("/dev/nvidiactl", Some((195, 255))),
            ]
        );
        let paths: Vec<&str> = spec.host_paths().into_iter().collect();
        assert_eq!(
            paths,
            [
                "/dev/nvidia-modeset",
                "/dev/nvidia-uvm-tools",
                "/dev/nvidia0",
                "/dev/nvidiactl",
                "/usr/bin/nvidia-cdi-hook",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03",
            ]
        );
    }

    #[test]
    fn unquoted_number_is_a_device_name() {
        let spec = parse("devices:\n- name: 0\n").expect("a specification");
        assert_eq!(spec.devices[0].name, "0");
    }

    #[test]
    fn json_specification_is_parsed() {
        let spec = parse(r#"{"devices": [{"name": "0"}]}"#).expect("a specification");
        assert_eq!(spec.devices.len(), 1);
    }

    #[test]
    fn invalid_specification_error_has_the_line() {
        let error = parse(&SPEC.replace("minor: 1\n", "minor: one\n")).expect_err("not a number");
        assert!(error.contains("line 29"), "{error}");
        let error =
            parse(&SPEC.replace("    - name: all", "   - name: all")).expect_err("not YAML");
        assert!(error.contains("line "), "{error}");
        for none in [
            SPEC.replace("    - name: all", "   - name: all"),
            SPEC.replace("hostPath: /usr", "path: /usr"),
            SPEC.replace("path: /usr/bin/nvidia-cdi-hook", "name: nvidia-cdi-hook"),
        ] {
            let error = parse(&none).expect_err("not a specification");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
