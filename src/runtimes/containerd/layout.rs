//! Determines the configuration keys and files that configure a runtime in containerd.
//!
//! Sources: containerd, `docs/cri/config.md` and `docs/PLUGINS.md` (plugin IDs by version); `cmd/containerd/server/config`
//! (imports, versions, merging of files: before 2.1, the table of a plugin in a later file replaces the complete table of an
//! earlier one, containerd/containerd#5837).

use serde_json::{Map, Value, json};

use crate::{
    model::document::{Document, FileSettings, Format, Setting},
    runtimes::{BUILT_IN, ConfigFile, Goal, Version, cdi},
    tools::toolkit,
};

/// A runtime to configure in containerd. It may be [`BUILT_IN`].
#[derive(Debug, Clone, Copy)]
pub struct ContainerdRuntime<'a> {
    pub name: &'a str,
    /// The program that replaces runc.
    pub program: &'a str,
    /// Whether the program of an existing entry is kept.
    pub kept: bool,
    /// Whether it must be the default runtime.
    pub default: bool,
    /// Whether containers get devices with CDI.
    pub cdi: bool,
    /// Whether systemd is the cgroup driver of its containers. `None` keeps the existing setting.
    pub systemd_cgroup: Option<bool>,
    /// Whether a kubelet will use containerd. It requires systemd as the cgroup driver also of runc containers, and the default
    /// CNI plugin directory.
    pub for_kubelet: bool,
}

impl<'a> ContainerdRuntime<'a> {
    /// The runtime of the container toolkit for a goal, without the settings for a kubelet.
    pub fn of(goal: &Goal<'a>) -> Self {
        Self {
            name: goal.name,
            program: toolkit::RUNTIME,
            kept: false,
            default: goal.default,
            cdi: goal.cdi,
            systemd_cgroup: None,
            for_kubelet: false,
        }
    }
}

impl Version {
    /// Returns the format version for a new file: the newest version that this containerd reads.
    pub(super) fn format(self) -> i64 {
        match self {
            Self(..=1, _) => 2,
            Self(2, ..=2) => 3,
            _ => 4,
        }
    }

    /// Whether files are merged by key instead of by plugin.
    pub fn merges(self) -> bool {
        self >= Self(2, 1)
    }

    /// Whether runtimes in a file replace the built-in ones, so that runc must also be configured (seen with 1.6.20 and 1.7.24,
    /// not with 2.1.9).
    pub(super) fn forgets_runc(self) -> bool {
        self < Self(2, 0)
    }

    /// Whether CDI is supported but must be enabled.
    fn needs_cdi(self) -> bool {
        self == Self(1, 7)
    }
}

/// The containerd runtime type of runc and of its replacements.
const RUNC: &str = "io.containerd.runc.v2";

/// Keys that are not copied from the runc entry: other ways to set the program, and the directory of the state of runc
/// (`runtime_root`).
const PROGRAMS: [&str; 3] = ["runtime_path", "runtime_engine", "runtime_root"];

/// The default CNI plugin directory of containerd, which the Kubernetes packages and network add-ons use. Pods do not start
/// with the directory that the file of the Debian package sets instead (seen with 1.6.20).
const PLUGINS_FOLDER: &str = "/opt/cni/bin";
const DEBIANS_PLUGINS: &str = "/usr/lib/cni";

/// Returns the ID of the plugin with the runtimes in this format version.
pub(super) fn plugin(format: i64) -> &'static str {
    match format {
        ..=1 => "cri",
        2 => "io.containerd.grpc.v1.cri",
        _ => "io.containerd.cri.v1.runtime",
    }
}

struct Parsed<'a> {
    file: &'a ConfigFile,
    document: Document,
    /// The version to add to the file.
    new_format: Option<i64>,
    /// The ID of the plugin with the runtimes.
    id: &'static str,
}

impl<'a> Parsed<'a> {
    fn of(file: &'a ConfigFile, version: Option<Version>) -> Result<Self, String> {
        let newest = version.map_or(2, Version::format);
        let text = file.text.as_deref().unwrap_or_default();
        let document = Document::parse(Format::Toml, text)
            .map_err(|error| format!("`{}` cannot be parsed: {error}", file.path))?;
        let named = document.get(&["version".to_owned()]);
        // Without a version, the file has version 1. A file without version-dependent settings can get the newest version. The
        // file of the Docker package is such a file: as long as it has version 1, containerd 2.1.9 ignores a runtime in it.
        let new_format = (named.is_none() && is_of_each_version(&document)).then_some(newest);
        let format = new_format
            .or_else(|| named.and_then(|version| version.as_i64()))
            .unwrap_or(1);
        let has = |id: &&'static str| {
            document
                .get(&["plugins".to_owned(), (*id).to_owned()])
                .is_some()
        };
        // AKS ships `version = 2` with the version 3 table, and containerd uses that table. A runtime in the other table would
        // be lost without an error when containerd migrates the file (Azure/AgentBaker, pkg/agent/baker.go; NVIDIA/aicr#1688;
        // containerd, plugins/cri/runtime/plugin.go).
        let id = [plugin(3), plugin(format)]
            .into_iter()
            .find(has)
            .filter(|_| version.is_none_or(|version| version >= Version(2, 0)))
            .unwrap_or(plugin(format));
        Ok(Self {
            file,
            document,
            new_format,
            id,
        })
    }

    fn plugin(&self, names: &[&str]) -> Vec<String> {
        let all = ["plugins", self.id]
            .into_iter()
            .chain(names.iter().copied());
        all.map(str::to_owned).collect()
    }

    fn has(&self, names: &[&str]) -> bool {
        self.document.get(&self.plugin(names)).is_some()
    }
}

/// Whether the file has the same meaning in each format version: it has no imports, and no plugin names except the CRI plugin
/// in `disabled_plugins`, which is removed.
fn is_of_each_version(document: &Document) -> bool {
    let get = |key: &str| document.get(&[key.to_owned()]);
    ["plugins", "required_plugins", "imports"]
        .iter()
        .all(|key| get(key).is_none())
        && match get("disabled_plugins") {
            Some(Value::Array(names)) => names.iter().all(is_cri),
            other => other.is_none(),
        }
}

/// Whether the name is the CRI plugin ID in any format version.
fn is_cri(name: &Value) -> bool {
    (name.as_str()).is_some_and(|name| (1..=3).any(|format| name == plugin(format)))
}

/// Returns the keys to set, by file, or nothing if the files already contain all of them. The first file is the root file of
/// containerd, and the others are imported files in import order.
///
/// # Errors
/// If a file cannot be parsed. The message is one line with the file and the reason.
pub fn settings(
    files: &[ConfigFile],
    version: Option<Version>,
    runtime: &ContainerdRuntime<'_>,
) -> Result<Vec<FileSettings>, String> {
    let files: Vec<Parsed<'_>> = (files.iter())
        .map(|file| Parsed::of(file, version))
        .collect::<Result<_, _>>()?;
    let mut wanted: Vec<(usize, Setting)> = Vec::new();
    let merges = version.is_some_and(Version::merges);
    // The last file with a key determines its value.
    let last = |names: &[&str]| files.iter().rposition(|file| file.has(names));
    let last_section = last(&[]);
    // If both the older and the newer plugin table exist, only the newer one is read (seen with 2.1.9).
    let newer = files
        .iter()
        .rposition(|file| file.id == plugin(3) && file.has(&[]));
    let section = match merges {
        true => newer
            .or(last_section)
            .filter(|at| files[*at].id != files[0].id),
        false => last_section,
    }
    .unwrap_or_default();
    let place = |names: &[&str]| {
        if merges {
            last(names).unwrap_or(section)
        } else {
            section
        }
    };
    let Some(first) = files.first() else {
        return Ok(Vec::new());
    };
    if let Some(format) = first.new_format {
        wanted.push((0, set(&["version"], json!(format))));
    }

    let name = ["containerd", "runtimes", runtime.name];
    let at = place(&name);
    let file = &files[at];
    if runtime.for_kubelet {
        let runc = ["containerd", "runtimes", "runc"];
        let at = place(&runc);
        wanted.push((
            at,
            Setting {
                key: files[at].plugin(&runc),
                value: Some(with_systemd(
                    files[at].document.get(&files[at].plugin(&runc)),
                )),
            },
        ));
    } else if version.is_none_or(Version::forgets_runc) && !file.has(&["containerd", "runtimes"]) {
        let runc = ["containerd", "runtimes", "runc"];
        wanted.push((
            at,
            Setting {
                key: file.plugin(&runc),
                value: Some(json!({"runtime_type": RUNC})),
            },
        ));
    }
    if runtime.for_kubelet {
        let name = ["cni", "bin_dir"];
        let at = place(&name);
        let key = files[at].plugin(&name);
        if files[at].document.get(&key) == Some(json!(DEBIANS_PLUGINS)) {
            let value = Some(json!(PLUGINS_FOLDER));
            wanted.push((at, Setting { key, value }));
        }
    }
    if runtime.name != BUILT_IN {
        wanted.push((
            at,
            Setting {
                key: file.plugin(&name),
                value: Some(entry(&files, at, runtime)),
            },
        ));
    }
    if runtime.default {
        let name = ["containerd", "default_runtime_name"];
        let at = place(&name);
        wanted.push((
            at,
            Setting {
                key: files[at].plugin(&name),
                value: Some(json!(runtime.name)),
            },
        ));
    }
    if runtime.cdi && version.is_some_and(Version::needs_cdi) {
        for (name, value) in [
            ("enable_cdi", json!(true)),
            ("cdi_spec_dirs", json!(cdi::DIRECTORIES)),
        ] {
            let at = place(&[name]);
            let there = files[at].document.get(&files[at].plugin(&[name]));
            // Other directories may have been chosen intentionally.
            if name == "cdi_spec_dirs" && there.is_some() {
                continue;
            }
            wanted.push((
                at,
                Setting {
                    key: files[at].plugin(&[name]),
                    value: Some(value),
                },
            ));
        }
    }
    for (at, file) in files.iter().enumerate() {
        let key = ["disabled_plugins".to_owned()];
        let Some(Value::Array(names)) = file.document.get(&key) else {
            continue;
        };
        if names.iter().any(is_cri) {
            let others: Vec<Value> = names.into_iter().filter(|name| !is_cri(name)).collect();
            wanted.push((
                at,
                Setting {
                    key: key.to_vec(),
                    value: Some(others.into()),
                },
            ));
        }
    }

    let mut settings: Vec<FileSettings> = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let is_new = |setting: &Setting| file.document.get(&setting.key) != setting.value;
        let of_file: Vec<Setting> = (wanted.iter())
            .filter(|(place, setting)| *place == at && is_new(setting))
            .map(|(_, setting)| setting.clone())
            .collect();
        if !of_file.is_empty() {
            settings.push(FileSettings {
                path: file.file.path.clone(),
                settings: of_file,
            });
        }
    }
    Ok(settings)
}

/// Returns the runc entry with systemd as the cgroup driver.
fn with_systemd(entry: Option<Value>) -> Value {
    let mut entry = match entry {
        Some(Value::Object(entry)) => entry,
        _ => Map::new(),
    };
    entry.entry("runtime_type").or_insert_with(|| json!(RUNC));
    let options = entry
        .entry("options")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(options) = options {
        options.insert("SystemdCgroup".to_owned(), json!(true));
    }
    Value::Object(entry)
}

fn set(key: &[&str], value: Value) -> Setting {
    Setting {
        key: key.iter().map(ToString::to_string).collect(),
        value: Some(value),
    }
}

/// Returns the entry of the runtime. Other keys of an existing entry are kept. A new entry has the settings of runc, because an
/// administrator's choices apply to all containers, but another program.
fn entry(files: &[Parsed<'_>], at: usize, runtime: &ContainerdRuntime<'_>) -> Value {
    let file = &files[at];
    let object = |name: &str| {
        let found = file
            .document
            .get(&file.plugin(&["containerd", "runtimes", name]));
        match found {
            Some(Value::Object(object)) => Some(object),
            _ => None,
        }
    };
    let present = object(runtime.name);
    let is_there = present.is_some();
    let mut entry = present.or_else(|| object("runc")).unwrap_or_default();
    if !is_there {
        for name in PROGRAMS {
            entry.shift_remove(name);
        }
    }
    entry.insert("runtime_type".to_owned(), json!(RUNC));
    let options = entry
        .entry("options")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(options) = options {
        if !(runtime.kept && options.contains_key("BinaryName")) {
            options.insert("BinaryName".to_owned(), json!(runtime.program));
        }
        if let Some(systemd) = runtime.systemd_cgroup {
            options.insert("SystemdCgroup".to_owned(), json!(systemd));
        }
    }
    Value::Object(entry)
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::{ConfigFile, ContainerdRuntime};

    pub(in crate::runtimes::containerd) const ROOT: &str = "/etc/containerd/config.toml";

    pub(in crate::runtimes::containerd) fn file(path: &str, text: &str) -> ConfigFile {
        ConfigFile {
            path: path.into(),
            text: Some(text.to_owned()),
        }
    }

    pub(crate) const NVIDIA: ContainerdRuntime<'_> = ContainerdRuntime {
        name: "nvidia",
        program: "/usr/bin/nvidia-container-runtime",
        kept: false,
        default: false,
        cdi: true,
        systemd_cgroup: None,
        for_kubelet: false,
    };
}

#[cfg(test)]
mod tests {
    use super::{
        fixtures::{NVIDIA, ROOT, file},
        *,
    };

    #[test]
    fn file_that_cannot_be_parsed_is_reported() {
        let why = settings(&[file(ROOT, "version = ")], Some(Version(1, 7)), &NVIDIA).unwrap_err();
        assert!(
            why.starts_with("`/etc/containerd/config.toml` cannot be parsed:"),
            "{why}"
        );
    }

    #[test]
    fn versions_are_parsed() {
        for (text, version) in rows! {
            "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                Some(Version(1, 6));
            "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7", Some(Version(2, 1));
            "containerd", None;
        } {
            assert_eq!(Version::parse(text), version, "{text}");
        }
    }
}
