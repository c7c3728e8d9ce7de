//! CRI-O: its printed configuration, its files, and their faults. `check` evaluates them. `install` does not configure CRI-O,
//! and keeps changes by earlier versions, which `uninstall` undoes.
//!
//! Sources: CRI-O, `docs/crio.conf.d.5.md` (files are read in name order, and the last value is used), `docs/crio.8.md` (`crio
//! config` prints the configuration of the files), `internal/criocli/config.go` (and validates it), `docs/crio-status.8.md`.
//! This code was not tested with a real CRI-O.

mod runtime;

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde_json::{Map, Value};

pub use runtime::Crio;

use super::{ConfigFile, set_in_runtime};
use crate::{
    host::Query,
    model::{
        document::{Document, Format},
        fault::Fault,
    },
};

/// The file that CRI-O reads first.
pub const CONFIG: &str = "/etc/crio/crio.conf";

/// The socket of CRI-O, according to crio(8).
pub const SOCKET: &str = "/var/run/crio/crio.sock";

/// The directory of the files that CRI-O reads after [`CONFIG`].
pub const DROP_INS: &str = "/etc/crio/crio.conf.d";

/// A directory that CRI-O does not read, but to which some versions of the NVIDIA toolkit write their runtime.
///
/// Source: NVIDIA/nvidia-container-toolkit PR 1829.
pub const UNREAD: &str = "/etc/crio/conf.d";

/// The directory to which the NVIDIA GPU Operator adds its hook if CDI is disabled. CRI-O reads it only if a file lists it.
/// Sources: NVIDIA/gpu-operator issue 172 and pull request 1796; CRI-O, `docs/crio.conf.5.md` (`hooks_dir`).
pub const HOOKS: &str = "/run/containers/oci/hooks.d";

/// The directories of hooks. CRI-O reads the first two by default. [`HOOKS`] is always included, because
/// another error is reported for a hook there that CRI-O does not read.
pub const ALL_HOOKS: [&str; 3] = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
    HOOKS,
];

/// The key of the runtimes.
const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

/// Queries the configuration that the daemon uses.
pub fn status() -> Query {
    Query::new("crio", ["status", "config"])
}

/// Prints the configuration of the files. The exit status is not 0 if the daemon would not start with them.
pub fn config() -> Query {
    Query::new("crio", ["config"])
}

/// The parts of the CRI-O configuration that gpu-bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CrioConfig {
    /// The keys of each runtime.
    pub runtimes: BTreeMap<String, Map<String, Value>>,
    pub default_runtime: Option<String>,
}

impl CrioConfig {
    /// Returns the program of each runtime.
    pub fn programs(&self) -> BTreeMap<String, String> {
        let program =
            |keys: &Map<String, Value>| Some(keys.get("runtime_path")?.as_str()?.to_owned());
        (self.runtimes.iter())
            .filter_map(|(name, keys)| Some((name.clone(), program(keys)?)))
            .collect()
    }
}

/// Parses the output of [`status`] or [`config`].
///
/// # Errors
/// If the text is not TOML. The message contains the position.
pub fn parse(text: &str) -> Result<CrioConfig, String> {
    let document = Document::parse(Format::Toml, text).map_err(|error| error.to_string())?;
    let runtimes = document.get(&key(&RUNTIMES)).unwrap_or_default();
    let default = document.get(&key(&["crio", "runtime", "default_runtime"]));
    let table = |value: &Value| value.as_object().cloned().unwrap_or_default();
    Ok(CrioConfig {
        runtimes: (table(&runtimes).into_iter())
            .map(|(name, keys)| (name, table(&keys)))
            .collect(),
        default_runtime: (default.as_ref().and_then(Value::as_str))
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
    })
}

/// Returns the configuration, merged from all files. A file that is not TOML is ignored.
pub fn merged(files: &[ConfigFile]) -> CrioConfig {
    let mut merged = CrioConfig::default();
    for config in files.iter().filter_map(|file| parse(file.text()).ok()) {
        for (name, keys) in config.runtimes {
            merged.runtimes.entry(name).or_default().extend(keys);
        }
        merged.default_runtime = config.default_runtime.or(merged.default_runtime);
    }
    merged
}

/// Returns the programs of all runtimes, merged from all files. A file that is not TOML is ignored.
pub fn programs(files: &[ConfigFile]) -> BTreeMap<String, String> {
    let mut found = merged(files).programs();
    found.retain(|_, program| !program.is_empty());
    found
}

/// Returns the cgroup driver that a file sets.
pub fn cgroup_manager(file: &ConfigFile) -> Option<String> {
    let document = Document::parse(Format::Toml, file.text()).ok()?;
    let value = document.get(&key(&["crio", "runtime", "cgroup_manager"]))?;
    value.as_str().map(str::to_owned)
}

/// Whether CRI-O reads the hooks in [`HOOKS`]. The last file that lists directories is used.
pub fn reads_hooks(files: &[ConfigFile]) -> bool {
    let directories = files.iter().rev().find_map(|file| {
        let document = Document::parse(Format::Toml, file.text()).ok()?;
        document.get(&key(&["crio", "runtime", "hooks_dir"]))
    });
    let is_it = |directory: &Value| {
        let directory = directory.as_str().unwrap_or_default();
        directory.trim_end_matches('/') == HOOKS
    };
    directories.is_some_and(|directories| {
        directories
            .as_array()
            .is_some_and(|all| all.iter().any(is_it))
    })
}

/// Returns errors for runtimes that exist only in files that CRI-O does not read.
#[must_use]
pub fn astray(read: &[ConfigFile], unread: &[ConfigFile]) -> Vec<Fault> {
    let known: Vec<String> = (read.iter())
        .filter_map(|file| parse(file.text()).ok())
        .flat_map(|config| config.runtimes.into_keys())
        .collect();
    let mut found = Vec::new();
    for file in unread {
        let runtimes = parse(file.text()).unwrap_or_default().runtimes;
        for name in runtimes.into_keys().filter(|name| !known.contains(name)) {
            found.push(Fault::new(
                format!(
                    "CRI-O has no runtime `{name}`: it is configured in `{}`, in a directory that CRI-O does not read",
                    file.path
                ),
                format!(
                    "move `{}` into `{DROP_INS}`, then run `systemctl restart crio`",
                    file.path
                ),
            ));
        }
    }
    found
}

/// Returns the reasons if CRI-O does not start with its files, given in reading order. `in_path` checks whether a program is in
/// the `PATH` of the daemon.
///
/// Source: CRI-O, `pkg/config/config.go` (`ValidateConmonPath`: a runtime without `monitor_path` uses `conmon` of the parent
/// table, or the one in `PATH`; the default runtime must exist).
#[must_use]
pub fn faults(files: &[ConfigFile], in_path: impl Fn(&str) -> bool) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut runtimes: BTreeMap<String, (Map<String, Value>, &Utf8Path)> = BTreeMap::new();
    let (mut default, mut conmon) = (None, None);
    for file in files {
        let document = match Document::parse(Format::Toml, file.text()) {
            Ok(document) => document,
            Err(error) => {
                found.push(Fault::new(
                    format!(
                        "CRI-O does not start: `{}` is not TOML ({error})",
                        file.path
                    ),
                    format!("correct `{}`, then run `systemctl restart crio`", file.path),
                ));
                continue;
            }
        };
        if let Some(Value::Object(tables)) = document.get(&key(&RUNTIMES)) {
            for (name, keys) in tables {
                let entry = runtimes
                    .entry(name)
                    .or_insert_with(|| (Map::new(), file.path.as_path()));
                entry
                    .0
                    .extend(keys.as_object().cloned().unwrap_or_default());
                entry.1 = &file.path;
            }
        }
        let text = |name: &str| {
            let value = document.get(&key(&["crio", "runtime", name]))?;
            Some(value.as_str()?.to_owned()).filter(|text| !text.is_empty())
        };
        default = text("default_runtime")
            .map(|name| (name, &file.path))
            .or(default);
        conmon = text("conmon").or(conmon);
    }
    if !found.is_empty() {
        return found;
    }
    let says = |keys: &Map<String, Value>, name: &str| {
        keys.get(name)
            .and_then(Value::as_str)
            .is_some_and(|text| !text.is_empty())
    };
    let known = (runtimes.values())
        .find_map(|(keys, _)| keys.get("monitor_path")?.as_str())
        .filter(|path| !path.is_empty())
        .unwrap_or("/usr/bin/conmon")
        .to_owned();
    for (name, (keys, path)) in &runtimes {
        let is_vm = keys.get("runtime_type").and_then(Value::as_str) == Some("vm");
        if !is_vm && !says(keys, "monitor_path") && conmon.is_none() && !in_path("conmon") {
            found.push(Fault::new(
                format!(
                    "CRI-O does not start: runtime `{name}` has no `monitor_path` (`{path}`), and `conmon` is not in the `PATH`"
                ),
                match (files.iter().find(|file| file.path.as_path() == *path))
                    .filter(|_| in_path(&known))
                    .and_then(|file| {
                        set_in_runtime(file, name, "", "monitor_path", &format!("\"{known}\""))
                    }) {
                    Some(command) => format!(
                        "run `{command} && systemctl restart crio`: it sets `monitor_path` in the table of the runtime"
                    ),
                    None => format!(
                        "set `monitor_path = \"{known}\"` in its table in `{path}`, then run `systemctl restart crio`"
                    ),
                },
            ));
        }
    }
    // runc and crun are built in.
    if let Some((name, path)) = default
        && !runtimes.contains_key(&name)
        && !["runc", "crun"].contains(&name.as_str())
    {
        found.push(Fault::new(
            format!(
                "CRI-O does not start: its default runtime `{name}` (`{path}`) is not configured in any file"
            ),
            format!("configure runtime `{name}`, or set another one in `{path}`"),
        ));
    }
    found
}

fn key(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    /// The file of the CRI-O packages, with a comment of an administrator.
    const PACKAGED: &str = "[crio.runtime]\ndefault_runtime = \"crun\" # the package's\n\n\
        [crio.runtime.runtimes.crun]\nruntime_path = \"/usr/libexec/crio/crun\"\n\
        monitor_path = \"/usr/libexec/crio/conmon\"\nallowed_annotations = [\n    \"io.containers.trace-syscall\",\n]\n";
    const OLDER: &str = "# by hand\n[crio.runtime.runtimes.nvidia]\n\
        runtime_path = \"/opt/gone/nvidia-container-runtime\"\nruntime_type = \"oci\"\n";

    fn file(path: &str, text: &str) -> ConfigFile {
        ConfigFile {
            path: path.into(),
            text: Some(text.to_owned()),
        }
    }

    #[test]
    fn last_file_with_hook_directories_is_used() {
        let dirs = |all: &str| format!("[crio.runtime]\nhooks_dir = [{all}]\n");
        let (usual, both) = (
            dirs("'/usr/share/containers/oci/hooks.d'"),
            dirs("'/usr/share/containers/oci/hooks.d', '/run/containers/oci/hooks.d/'"),
        );
        let other = "[crio.runtime]\ndefault_runtime = 'runc'\n".to_owned();
        for (texts, reads) in rows! {
            vec![], false;
            vec![&usual], false;
            vec![&both, &other], true;
            vec![&both, &usual], false;
        } {
            let files: Vec<ConfigFile> = (texts.iter())
                .map(|text| ConfigFile {
                    path: CONFIG.into(),
                    text: Some((*text).clone()),
                })
                .collect();
            assert_eq!(reads_hooks(&files), reads, "{texts:?}");
        }
    }

    #[test]
    fn runtime_in_unread_directory_is_reported() {
        let read = [file("/etc/crio/crio.conf.d/10-crio.conf", PACKAGED)];
        let unread = [file("/etc/crio/conf.d/99-nvidia.toml", OLDER)];
        let [fault] = &astray(&read, &unread)[..] else {
            panic!("one runtime is astray");
        };
        assert!(fault.why.contains("no runtime `nvidia`"), "{}", fault.why);
        assert!(
            fault.remedy.contains("/etc/crio/crio.conf.d"),
            "{}",
            fault.remedy
        );
        // It is also configured in a file that is read.
        let both = [
            &read[..],
            &[file("/etc/crio/crio.conf.d/99-nvidia.toml", OLDER)],
        ]
        .concat();
        assert!(astray(&both, &unread).is_empty());
    }

    #[test]
    fn printed_configuration_is_parsed() {
        let config = parse(PACKAGED).expect("TOML");
        assert_eq!(config.default_runtime.as_deref(), Some("crun"));
        assert_eq!(config.programs()["crun"], "/usr/libexec/crio/crun");
        assert_eq!(parse("# [crio.runtime]\n"), Ok(CrioConfig::default()));
        assert!(parse("FATA[0000] failed\n").is_err());
    }

    reads_any_text!("(\\[crio|\\.runtime|\\]|=|\n|.)*", |text| parse(&text));

    #[test]
    fn files_rejected_by_cri_o_are_reported() {
        let file = |name: &str, text: &str| super::ConfigFile {
            path: format!("/etc/crio/crio.conf.d/{name}").into(),
            text: Some(text.to_owned()),
        };
        let crun = "[crio.runtime.runtimes.crun]\nmonitor_path = '/usr/libexec/crio/conmon'\n";
        let nvidia =
            "[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/bin/nvidia-container-runtime'\n";
        let monitor = "monitor_path = '/usr/libexec/crio/conmon'\n";
        let of = |files: &[super::ConfigFile], conmon: bool| {
            let found = super::faults(files, |_| conmon);
            found.into_iter().map(|fault| fault.why).collect::<Vec<_>>()
        };
        let both = [file("10-crio.conf", crun), file("99-nvidia.conf", nvidia)];
        assert!(of(&both, false)[0].contains("runtime `nvidia` has no `monitor_path`"));
        let fault = super::faults(&both, |_| false).remove(0);
        assert!(
            fault.remedy.contains("/usr/libexec/crio/conmon"),
            "{}",
            fault.remedy
        );
        // A monitor that does not exist is not set.
        assert!(!fault.remedy.contains("sed"), "{}", fault.remedy);
        let fault = super::faults(&both, |name| name != "conmon").remove(0);
        let command = "run `sed -i '/runtimes\\.\"\\?nvidia\"\\?\\]/a monitor_path = \"/usr/libexec/crio/conmon\"' \
                       /etc/crio/crio.conf.d/99-nvidia.conf && systemctl restart crio`";
        assert!(fault.remedy.starts_with(command), "{}", fault.remedy);
        assert!(of(&both, true).is_empty());
        let whole = [file("99-nvidia.conf", &format!("{nvidia}{monitor}"))];
        assert!(of(&whole, false).is_empty());
        let old = [file(
            "99-nvidia.conf",
            &format!("[crio.runtime]\nconmon = '/opt/conmon'\n{nvidia}"),
        )];
        assert!(of(&old, false).is_empty());
        let default = [file(
            "50.conf",
            "[crio.runtime]\ndefault_runtime = 'nvidia'\n",
        )];
        assert!(of(&default, true)[0].contains("its default runtime `nvidia`"));
        assert!(of(&[file("x.conf", "[crio\n")], true)[0].contains("not TOML"));
        let later = file(
            "99.conf",
            "[crio.runtime.runtimes.nvidia]\nruntime_path = '/opt/nvidia'\n",
        );
        let programs = super::programs(&[file("10.conf", nvidia), later]);
        assert_eq!(programs["nvidia"], "/opt/nvidia");
    }
}
