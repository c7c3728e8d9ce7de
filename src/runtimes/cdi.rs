//! Container Device Interface specifications: which device nodes and files a container gets for a GPU.
//!
//! Source: the CDI specification, <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.

use std::{collections::BTreeSet, iter};

use camino::Utf8Path;
use serde::Deserialize;

use crate::{
    host::{FilesError, ReadFiles},
    model::version::DriverVersion,
    tools::yaml,
};

/// The kind of NVIDIA's GPUs.
pub const KIND: &str = "nvidia.com/gpu";

/// Where this program writes the specification of NVIDIA's toolkit, which would write JSON to a name without `.yaml`.
/// Source: nvidia-container-toolkit, `cmd/nvidia-ctk/cdi/generate/generate.go`.
pub const FILE: &str = "/etc/cdi/nvidia.yaml";

/// The folders that runtimes read unless they are told otherwise; what the later one names hides the same
/// name in the earlier one. Source: container-device-interface, `pkg/cdi/spec-dirs.go` and `doc.go`.
pub const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// What this program reads of a specification; other fields belong to the tools that write and use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// The version of the format, for example `0.5.0`: the lowest that has all that the file uses.
    pub cdi_version: String,
    /// What its devices are; with the name of a device it is what a container asks for.
    pub kind: String,
    /// What a container can ask for by name.
    pub devices: Vec<CdiDevice>,
    /// What every such container gets besides.
    pub container_edits: Edits,
}

/// A device that a container can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    /// An index, a UUID, or `all`.
    pub name: String,
    /// What a container gets with it.
    #[serde(default)]
    pub container_edits: Edits,
}

/// What a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Edits {
    pub device_nodes: Vec<DeviceNode>,
    /// Files and folders of the host.
    pub mounts: Vec<CdiMount>,
    /// Programs of the host that prepare the container; without one it does not start.
    pub hooks: Vec<Hook>,
}

/// A device node that is made in a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    path: String,
    host_path: Option<String>,
    major: Option<i64>,
    #[serde(default)]
    minor: i64,
}

/// A file or folder of the host that is mounted in a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    host_path: String,
}

/// A program of the host that a runtime runs for a container. Its `hookName`, `args`, `env` and `timeout` are
/// for the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Hook {
    path: String,
}

impl DeviceNode {
    /// Where the node is on the host.
    #[must_use]
    pub fn host_path(&self) -> &str {
        self.host_path.as_deref().unwrap_or(&self.path)
    }

    /// Major and minor number that the container's node gets. Without a major number the runtime asks
    /// the host. A minor number that is not written is zero.
    #[must_use]
    pub fn numbers(&self) -> Option<(i64, i64)> {
        self.major.map(|major| (major, self.minor))
    }
}

impl Spec {
    /// Whether it is of version 0.7.0 or newer. NVIDIA's toolkit writes that version from 1.19.1 on where a device node has
    /// a group, as those below `/dev/dri` have (`additionalGids`, `internal/edits/device.go`). Programs with an older
    /// library refuse the whole file.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        let mut numbers = self.cdi_version.split('.').map(str::parse::<u32>);
        matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (0, 7))
    }

    /// A name of a device that its version does not allow: below 0.5.0 none begins with a digit. Runtimes refuse the whole file
    /// then. Source: container-device-interface, `specs-go/version.go` (`ValidateVersion`, `requiresV050`).
    #[must_use]
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

    /// The device nodes, each once.
    #[must_use]
    pub fn device_nodes(&self) -> BTreeSet<&DeviceNode> {
        self.edits().flat_map(|edits| &edits.device_nodes).collect()
    }

    /// The paths on the host that must exist, each once.
    #[must_use]
    pub fn host_paths(&self) -> BTreeSet<&str> {
        let mounts = self.edits().flat_map(|edits| &edits.mounts);
        let hooks = self.edits().flat_map(|edits| &edits.hooks);
        (mounts.map(|mount| mount.host_path.as_str()))
            .chain(hooks.map(|hook| hook.path.as_str()))
            .chain(self.device_nodes().into_iter().map(DeviceNode::host_path))
            .collect()
    }

    /// What a container can ask for: indices, UUIDs, `all`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }
}

/// Reads a specification.
///
/// # Errors
/// Where and why it is none, in one line.
pub fn parse(text: &str) -> Result<Spec, String> {
    yaml::parse(text)
}

/// Whether runtimes read a file of this name as a specification. Source: container-device-interface,
/// `pkg/cdi/spec-dirs.go`.
#[must_use]
pub fn is_read(path: &Utf8Path) -> bool {
    matches!(path.extension(), Some("yaml" | "json"))
}

/// Whether a specification is there.
///
/// # Errors
/// When a folder cannot be read.
pub fn is_there(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    for folder in FOLDERS {
        let names = files.list(Utf8Path::new(folder))?;
        if names.iter().any(|name| is_read(Utf8Path::new(name))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The driver version in the name of a library, such as `libcuda.so.535.261.03`; `None` where the name has no
/// version, or the library one of its own (`libnvidia-egl-gbm.so.1.1.0`): branches of the driver have three
/// digits.
#[must_use]
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
    fn the_version_of_the_driver_is_in_the_names_of_its_libraries() {
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

    /// As nvidia-ctk 1.20.1 writes it.
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
    fn groups_need_a_newer_reader() {
        for (version, wanted) in [("0.6.0", false), ("0.7.0", true), ("1.0.0", true)] {
            let text = SPEC.replace("cdiVersion: 0.5.0", &format!("cdiVersion: {version}"));
            let spec = parse(&text).expect("a specification");
            assert_eq!(spec.has_groups(), wanted, "{version}");
        }
        let without = parse("kind: nvidia.com/gpu\ndevices: []\n").expect("a specification");
        assert!(!without.has_groups());
    }

    #[test]
    fn a_version_before_0_5_allows_no_name_that_begins_with_a_digit() {
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
    fn names_nodes_and_paths_are_read() {
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
    fn a_name_without_quotes_is_text() {
        let spec = parse("devices:\n- name: 0\n").expect("a specification");
        assert_eq!(spec.devices[0].name, "0");
    }

    #[test]
    fn json_is_yaml() {
        let spec = parse(r#"{"devices": [{"name": "0"}]}"#).expect("a specification");
        assert_eq!(spec.devices.len(), 1);
    }

    #[test]
    fn what_is_none_says_where() {
        let error = parse(&SPEC.replace("minor: 1\n", "minor: one\n")).expect_err("no number");
        assert!(error.contains("line 29"), "{error}");
        let error = parse(&SPEC.replace("    - name: all", "   - name: all")).expect_err("no YAML");
        assert!(error.contains("line "), "{error}");
        for none in [
            SPEC.replace("    - name: all", "   - name: all"),
            SPEC.replace("hostPath: /usr", "path: /usr"),
            SPEC.replace("path: /usr/bin/nvidia-cdi-hook", "name: nvidia-cdi-hook"),
        ] {
            let error = parse(&none).expect_err("no specification");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
