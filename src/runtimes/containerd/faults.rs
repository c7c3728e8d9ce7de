//! Errors in the containerd configuration: files that containerd rejects, and settings that have no effect. The files are read
//! in the same way as by the daemon.
//!
//! Sources: containerd, `cmd/containerd/server/config/config.go` (versions, imports, merging) and
//! `internal/cri/config/config.go` (`ValidateRuntimeConfig`: the default runtime must exist); NVIDIA/aicr issue 1688 and
//! NVIDIA/gpu-operator issue 2646 (an imported file may not have a higher version than the root file); containerd/containerd
//! issue 5237 (before 2.0, a file without `version` has version 1, in which plugins have short names); containerd,
//! `RELEASES.md`, "Deprecated features" (runtime types that were removed in 2.0), and `plugins/cri/runtime/plugin.go`,
//! `configMigration` (the older table is read only in files with a version older than the newest one that containerd reads);
//! containerd/containerd issues 3843 and 4806, and `pkg/config/config.go` of its CRI plugin in 1.2.5 and 1.3.0 (pods have type
//! `io.containerd.runtime.v1.linux` by default only before 1.3); containerd 1.7, `services/server/config/config.go`
//! (`ValidateV2`), 2.x, `cmd/containerd/server/config/config.go` (`ValidateVersion`), NVIDIA/nvidia-container-toolkit issue 410
//! (version 1 plugin names in version 2 files).

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use toml::{Table, Value};

use super::PLUGINS;
use crate::{
    model::{document::check_toml, text::shell_word},
    runtimes::{
        BUILT_IN, ConfigFile, Harm, RuntimeFault, Version,
        edit_command::{set_in_runtime, table_ends, table_pattern},
    },
    tools::toolkit,
};

/// The type of runtimes that run a program like runc, as TOML.
const RUNC: &str = "\"io.containerd.runc.v2\"";

struct ParsedConfig<'f> {
    path: &'f Utf8Path,
    root: Table,
    format: Option<i64>,
}

impl ParsedConfig<'_> {
    /// Returns the table of the plugin with the runtimes. In containerd 2, the table with the older name contains other keys,
    /// and runtimes are in the table with the newer name.
    fn plugin(&self) -> Option<&Table> {
        let plugins = self.root.get("plugins")?.as_table()?;
        (super::ids(&self.root).rev()).find_map(|name| plugins.get(name)?.as_table())
    }
}

/// Runtime types that were removed in containerd 2.0.
const REMOVED: [&str; 2] = ["io.containerd.runtime.v1.linux", "io.containerd.runc.v1"];

/// A runtime merged from all files, and the last file that sets one of its keys.
#[derive(Clone)]
struct MergedRuntime<'f> {
    keys: Table,
    path: &'f Utf8Path,
}

/// Returns the errors in the files. The first file is the root file of containerd, and the others are imported files in import
/// order. `strays` are files that are not imported.
#[must_use]
pub fn faults(
    files: &[ConfigFile],
    strays: &[ConfigFile],
    version: Option<Version>,
) -> Vec<RuntimeFault> {
    let mut found = Vec::new();
    let mut parsed = Vec::new();
    for file in files {
        let Some(text) = &file.text else { continue };
        match check_toml(text) {
            Err(why) => found.push(RuntimeFault::new(
                Harm::All,
                format!(
                    "containerd does not start: `{}` is not TOML ({why})",
                    file.path
                ),
                format!(
                    "correct `{}`, then run `systemctl restart containerd`",
                    file.path
                ),
            )),
            Ok(()) => parsed.extend(parse(file)),
        }
    }
    if !found.is_empty() {
        return found;
    }
    found.extend(versions(&parsed, version));
    if !found.is_empty() {
        return found;
    }
    let (runtimes, default) = merged(&parsed, version);
    found.extend(no_default(&runtimes, default, version));
    found.extend(first_shim(&parsed, &runtimes, version));
    // Since 2.0, the built-in runc keeps its type even if a file adds keys (`config dump` of 2.1.9 and 2.3.7; 1.7.24 prints an
    // empty type).
    let keeps_type =
        |name: &str| name == BUILT_IN && version.is_none_or(|version| !version.forgets_runc());
    for (name, runtime) in runtimes.iter().filter(|(name, _)| !keeps_type(name)) {
        let of_type = runtime.keys.get("runtime_type").and_then(Value::as_str);
        let removed = of_type.filter(|name| REMOVED.contains(name));
        if let (Some(name_of_type), Some(version)) =
            (removed, version.filter(|version| *version >= Version(2, 0)))
        {
            found.push(RuntimeFault::new(
                Harm::Containers,
                format!(
                    "containers of runtime `{name}` do not start: its type `{name_of_type}` (`{}`) does not exist in \
                     containerd {version}",
                    runtime.path
                ),
                format!(
                    "set `runtime_type = \"io.containerd.runc.v2\"` in its table in `{}`, and `BinaryName` in its `options` to \
                     its program; then run `systemctl restart containerd`",
                    runtime.path
                ),
            ));
        }
        if of_type.is_none_or(str::is_empty) {
            found.push(RuntimeFault::new(
                Harm::Containers,
                format!(
                    "containers of runtime `{name}` do not start: it has no `runtime_type` (`{}`)",
                    runtime.path
                ),
                match (files.iter().find(|file| file.path == runtime.path))
                    .and_then(|file| set_in_runtime(file, name, "", "runtime_type", RUNC))
                {
                    Some(command) => format!(
                        "run `{command} && systemctl restart containerd`: it sets the type in the table of the runtime"
                    ),
                    None => format!(
                        "set `runtime_type = {RUNC}` in its table in `{}`, then run `systemctl restart containerd`",
                        runtime.path
                    ),
                },
            ));
        }
    }
    let lost = |name: &str| !runtimes.contains_key(name);
    for stray in strays {
        let Some(root) = stray
            .text
            .as_deref()
            .and_then(|text| toml::from_str(text).ok())
        else {
            continue;
        };
        let file = ParsedConfig {
            path: &stray.path,
            format: None,
            root,
        };
        let name = (file.plugin().and_then(runtimes_of).into_iter().flatten())
            .map(|(name, _)| name)
            .find(|name| lost(name));
        let root = files
            .first()
            .map_or("config.toml", |file| file.path.as_str());
        if let Some(name) = name {
            let pattern = stray.path.parent().map_or_else(
                || stray.path.to_string(),
                |directory| directory.join("*.toml").into_string(),
            );
            found.push(RuntimeFault::new(
                Harm::Containers,
                format!(
                    "containerd has no runtime `{name}`: it is configured in `{}`, which is not imported",
                    stray.path
                ),
                match import(files, stray, name, version) {
                    Some(command) => format!(
                        "run `{command} && systemctl restart containerd`: containerd then reads the runtime; or add \
                         \"{pattern}\" to `imports` in `{root}`"
                    ),
                    None => format!(
                        "add \"{pattern}\" to `imports` in `{root}`, or move the file to an imported directory; then run \
                         `systemctl restart containerd`"
                    ),
                },
            ));
        }
    }
    // Before 2.1, the table of a plugin in a later file replaces the tables in earlier files.
    for file in &parsed {
        for name in file
            .plugin()
            .and_then(runtimes_of)
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
        {
            if lost(name) && name != BUILT_IN {
                let last = parsed.iter().rev().find(|file| file.plugin().is_some());
                let last = last.map_or(file.path, |last| last.path);
                found.push(RuntimeFault::new(
                    Harm::Containers,
                    format!(
                        "containerd has no runtime `{name}`, although it is configured in `{}`: before containerd 2.1, the \
                         plugin table in `{last}` replaces the complete table",
                        file.path
                    ),
                    format!("also add runtime `{name}` to `{last}`"),
                ));
            }
        }
    }
    found
}

/// Returns the command after which containerd reads a runtime of a file that is not imported: the file is moved to an imported
/// directory, or the tables of the runtime are appended to the root file. The result has no faults. Before containerd 2.1, an
/// imported file replaces the other runtimes.
fn import(
    files: &[ConfigFile],
    stray: &ConfigFile,
    name: &str,
    version: Option<Version>,
) -> Option<String> {
    let (first, others) = files.split_first()?;
    let text = first.text.as_deref()?;
    let root = parse(first)?;
    // The result has all keys of the runtime, and the default runtime that the file sets.
    let own = [parse(stray)?];
    let (own_runtimes, own_default) = merged(&own, version);
    let own_keys = &own_runtimes.get(name)?.keys;
    let works = |files: &[ConfigFile]| {
        let mut files = files.to_vec();
        // Imported files are read by name.
        if let Some((_, imported)) = files.split_first_mut() {
            imported.sort_by(|one, other| one.path.cmp(&other.path));
        }
        let parsed: Vec<ParsedConfig<'_>> = files.iter().filter_map(parse).collect();
        let (runtimes, default) = merged(&parsed, version);
        let has_default = own_default
            .as_ref()
            .is_none_or(|(wanted, _)| default.as_ref().is_some_and(|(found, _)| found == wanted));
        has_default
            && runtimes
                .get(name)
                .is_some_and(|found| found.keys == *own_keys)
            && faults(&files, &[], version).is_empty()
    };
    let imports = (root.root.get("imports").and_then(Value::as_array)).into_iter();
    let directory = (imports.flatten().filter_map(Value::as_str))
        .filter_map(|pattern| pattern.strip_suffix("/*.toml"))
        .find(|directory| directory.starts_with('/'));
    if let (Some(directory), Some(file)) = (directory, stray.path.file_name()) {
        let path = Utf8Path::new(directory).join(file);
        let is_free = files.iter().all(|file| file.path != path);
        let moved = ConfigFile {
            path,
            text: stray.text.clone(),
        };
        if is_free && works(&[files, &[moved]].concat()) {
            let directory = shell_word(directory);
            return Some(format!(
                "mkdir -p {directory} && mv {} {directory}/",
                shell_word(&stray.path)
            ));
        }
    }
    let ends = table_ends(name, "")?;
    let tables = (stray.text.as_deref()?.lines())
        .skip_while(|line| !ends.iter().any(|end| line.contains(end)));
    let tables: String = tables.map(|line| format!("{line}\n")).collect();
    let whole = ConfigFile {
        path: first.path.clone(),
        text: Some(format!("{text}{tables}")),
    };
    (text.ends_with('\n') && works(&[&[whole], others].concat())).then(|| {
        format!(
            "sed -n '/{}/,$p' {} >>{}",
            table_pattern(name, ""),
            shell_word(&stray.path),
            shell_word(&first.path)
        )
    })
}

fn parse(file: &ConfigFile) -> Option<ParsedConfig<'_>> {
    let root = toml::from_str::<Table>(file.text.as_deref()?).ok()?;
    Some(ParsedConfig {
        path: &file.path,
        format: root.get("version").and_then(Value::as_integer),
        root,
    })
}

/// A runtime and its configured program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub runtime: String,
    pub program: String,
    /// The last file that sets one of its keys.
    pub path: Utf8PathBuf,
    /// Whether it is the default runtime.
    pub default: bool,
}

/// Returns the programs of all runtimes, merged from all files.
pub fn programs(files: &[ConfigFile], version: Option<Version>) -> Vec<Program> {
    let parsed: Vec<ParsedConfig<'_>> = files.iter().filter_map(parse).collect();
    let (runtimes, default) = merged(&parsed, version);
    (runtimes.into_iter())
        .filter_map(|(name, runtime)| {
            let program = runtime.keys.get("options")?.get("BinaryName")?.as_str()?;
            (!program.is_empty()).then(|| Program {
                program: program.to_owned(),
                path: runtime.path.to_owned(),
                default: default
                    .as_ref()
                    .is_some_and(|(default, _)| *default == name),
                runtime: name,
            })
        })
        .collect()
}

/// Finds a file version that is invalid, that containerd does not support, or that does not fit the other files or the plugin
/// names.
fn versions(files: &[ParsedConfig<'_>], version: Option<Version>) -> Option<RuntimeFault> {
    let root = files.first()?;
    let odd =
        (files.iter()).find(|file| file.format.is_none() && file.root.contains_key("version"));
    if let Some(file) = odd {
        return Some(RuntimeFault::new(
            Harm::All,
            format!(
                "containerd does not start: `version` in `{}` is not a number",
                file.path
            ),
            format!(
                "set `version = 2` without quotes in `{}`, then run `systemctl restart containerd`",
                file.path
            ),
        ));
    }
    // Before 2.0, one version applies to all files.
    let is_first = files
        .iter()
        .all(|file| file.format.is_none_or(|format| format < 2));
    let unread = (files.iter()).find(|file| {
        let plugins = file.root.get("plugins").and_then(Value::as_table);
        plugins.is_some_and(|plugins| plugins.contains_key(PLUGINS[0]))
    });
    if let (true, Some(version), Some(file)) = (
        is_first,
        version.filter(|version| *version < Version(2, 0)),
        unread,
    ) {
        return Some(RuntimeFault::new(
            Harm::Containers,
            format!(
                "`{}` has no `version`, so containerd {version} reads it as version 1 and ignores its runtimes \
                 (`plugins.\"{}\"`)",
                file.path, PLUGINS[0]
            ),
            format!(
                "run `sed -i '1i version = 2' {} && systemctl restart containerd`",
                shell_word(root.path)
            ),
        ));
    }
    for file in files {
        let Some(format) = file.format else { continue };
        if let Some(version) = version.filter(|version| format > version.format()) {
            let newest = version.format();
            return Some(RuntimeFault::new(
                Harm::All,
                format!(
                    "containerd does not start: `{}` has version {format}, and containerd {version} supports up to version \
                     {newest}",
                    file.path
                ),
                format!(
                    "{}; or upgrade containerd",
                    in_version(file.path, format, newest)
                ),
            ));
        }
        if let Some(own) = root.format.filter(|own| format > *own) {
            return Some(RuntimeFault::new(
                Harm::All,
                format!(
                    "containerd does not start: `{}` has version {format}, but the importing `{}` has version {own}",
                    file.path, root.path
                ),
                in_version(file.path, format, own),
            ));
        }
    }
    short_name(files, version).or_else(|| old_table(files, version))
}

/// Finds a version 1 plugin name in files of a later version. containerd 1.x merges the files, then checks the lists and the
/// names of the plugin tables. 2.0 and newer check each file, but only its lists.
fn short_name(files: &[ParsedConfig<'_>], version: Option<Version>) -> Option<RuntimeFault> {
    const LISTS: [&str; 2] = ["disabled_plugins", "required_plugins"];
    let together = version.is_some_and(|version| version < Version(2, 0));
    let last = (files.iter().rev()).find_map(|file| file.format);
    let is_short = |name: &&str| !name.contains('.');
    files.iter().find_map(|file| {
        let format = if together { last } else { file.format };
        let format = format.filter(|format| *format > 1)?;
        let in_list = LISTS.iter().find_map(|list| {
            let names = file.root.get(*list)?.as_array()?;
            let name = names.iter().filter_map(Value::as_str).find(is_short)?;
            Some((name, *list))
        });
        let as_table = || {
            let plugins = file.root.get("plugins")?.as_table()?;
            let name = plugins.keys().map(String::as_str).find(is_short)?;
            together.then_some((name, "plugins"))
        };
        let (name, place) = in_list.or_else(as_table)?;
        let path = file.path;
        let long = match name {
            super::FIRST_PLUGIN => format!("`{}`", PLUGINS[0]),
            _ => "its long name (`io.containerd.…`)".to_owned(),
        };
        let leave_out = match (name, place) {
            (super::FIRST_PLUGIN, "disabled_plugins") => {
                "; if a kubelet uses this containerd, remove the name instead, because it needs this plugin"
            }
            _ => "",
        };
        Some(RuntimeFault::new(
            Harm::All,
            format!(
                "containerd does not start with `{path}`: `{place}` contains the version 1 plugin name `{name}`, but the file \
                 is read as version {format}"
            ),
            format!(
                "replace `{name}` with {long} in `{place}` of `{path}`{leave_out}; then run `systemctl restart containerd`"
            ),
        ))
    })
}

/// Returns the remedy that converts the runtimes of a file to another version.
fn in_version(path: &Utf8Path, from: i64, to: i64) -> String {
    let [old, new] = [from, to].map(super::layout::plugin);
    let rename = match old == new {
        true => String::new(),
        false => format!(" -e 's/{}/{new}/'", old.replace('.', "\\.")),
    };
    format!(
        "run `sed -i -e 's/^version *= *{from}/version = {to}/'{rename} {} && systemctl restart containerd`",
        shell_word(path)
    )
}

/// Finds a runtime that is only in the version 2 plugin table, in a file with the newest version that containerd reads. In such
/// a file, containerd reads runtimes only from the newer table.
fn old_table(files: &[ParsedConfig<'_>], version: Option<Version>) -> Option<RuntimeFault> {
    let version = version.filter(|version| *version >= Version(2, 0))?;
    let [old, new] = PLUGINS;
    // Before 2.3, the version in the last file applies to all files. If it is an older one, both tables are read.
    let last = (files.iter().rev()).find_map(|file| file.format.filter(|format| *format > 1));
    if version < Version(2, 3) && last != Some(version.format()) {
        return None;
    }
    let is_known = |name: &str| {
        (files.iter()).any(|file| below(file, new).is_some_and(|known| known.contains_key(name)))
    };
    files.iter().find_map(|file| {
        let format = file.format.filter(|format| *format == version.format())?;
        let name = below(file, old)?
            .keys()
            .find(|name| !is_known(name))?;
        let path = file.path;
        Some(RuntimeFault::new(
            Harm::Containers,
            format!(
                "containerd {version} ignores runtime `{name}` in `{path}`; in a file of version {format}, its table must be below \
                 `plugins.\"{new}\"` instead of `{old}`"
            ),
            format!(
                "run `sed -i 's/{}\\(.\\.containerd\\.runtimes\\.\\)/{new}\\1/' {} && systemctl restart containerd`",
                old.replace('.', "\\."),
                shell_word(path)
            ),
        ))
    })
}

/// Finds the toolkit's runtime configured only for the version 1 shim, which pods do not use.
fn first_shim(
    files: &[ParsedConfig<'_>],
    runtimes: &BTreeMap<String, MergedRuntime<'_>>,
    version: Option<Version>,
) -> Option<RuntimeFault> {
    const SHIM: [&str; 2] = ["linux", REMOVED[0]];
    let version = version.filter(|version| *version >= Version(1, 3))?;
    let has_toolkit = |keys: &Table| {
        let options = keys.get("options");
        let program = options.and_then(|options| options.get("BinaryName")?.as_str());
        let of_type = keys.get("runtime_type").and_then(Value::as_str);
        program.is_some_and(toolkit::is_named_in) || of_type == Some(REMOVED[0])
    };
    // The default runtime in the form without a name.
    let has_unnamed = |file: &ParsedConfig<'_>| {
        let plugin = file.plugin();
        let keys =
            plugin.and_then(|plugin| plugin.get("containerd")?.get("default_runtime")?.as_table());
        keys.is_some_and(has_toolkit)
    };
    // Without the plugin there are no pods, for example if only Docker uses containerd.
    let is_off = |file: &ParsedConfig<'_>| {
        let names = file.root.get("disabled_plugins").and_then(Value::as_array);
        (names.into_iter().flatten().filter_map(Value::as_str))
            .any(|name| name == super::FIRST_PLUGIN || PLUGINS.contains(&name))
    };
    if runtimes.values().any(|runtime| has_toolkit(&runtime.keys))
        || files.iter().any(|file| has_unnamed(file) || is_off(file))
    {
        return None;
    }
    files.iter().find_map(|file| {
        let plugins = file.root.get("plugins")?.as_table()?;
        let name = SHIM.iter().find(|name| {
            let program = (plugins.get(**name)).and_then(|shim| shim.get("runtime")?.as_str());
            program.is_some_and(toolkit::is_named_in)
        })?;
        let path = file.path;
        Some(RuntimeFault::new(
            Harm::Containers,
            format!(
                "pods do not get a GPU, because `{path}` sets `{}` only in `plugins.{name}`; containerd {version} does not use \
                 it for pods",
                toolkit::RUNTIME_NAME
            ),
            "run `nvidia-ctk runtime configure --runtime=containerd --set-as-default`, which makes a runtime `nvidia` \
             the default for pods, then run `systemctl restart containerd`",
        ))
    })
}

/// Returns the runtimes of a file in the table of one plugin ID.
fn below<'f>(file: &'f ParsedConfig<'_>, plugin: &str) -> Option<&'f Table> {
    let plugins = file.root.get("plugins")?;
    plugins.get(plugin)?.as_table().and_then(runtimes_of)
}

fn runtimes_of(plugin: &Table) -> Option<&Table> {
    plugin.get("containerd")?.get("runtimes")?.as_table()
}

/// Returns the runtimes merged from all files, and the default runtime with its file.
fn merged<'f>(
    files: &'f [ParsedConfig<'f>],
    version: Option<Version>,
) -> (
    BTreeMap<String, MergedRuntime<'f>>,
    Option<(String, &'f Utf8Path)>,
) {
    let mut runtimes: BTreeMap<String, MergedRuntime<'f>> = BTreeMap::new();
    let mut default = None;
    for file in files {
        let Some(plugin) = file.plugin() else {
            continue;
        };
        if version.is_some_and(|version| !version.merges()) {
            runtimes.clear();
            default = None;
        }
        for (name, keys) in runtimes_of(plugin).into_iter().flatten() {
            let keys = keys.as_table().cloned().unwrap_or_default();
            let runtime = runtimes
                .entry(name.clone())
                .or_insert_with(|| MergedRuntime {
                    keys: Table::new(),
                    path: file.path,
                });
            runtime.keys.extend(keys);
            runtime.path = file.path;
        }
        let named = plugin
            .get("containerd")
            .and_then(|table| table.get("default_runtime_name"));
        if let Some(name) = named
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
        {
            default = Some((name.to_owned(), file.path));
        }
    }
    (runtimes, default)
}

/// Finds a default runtime that does not exist, so that the CRI plugin does not start.
fn no_default(
    runtimes: &BTreeMap<String, MergedRuntime<'_>>,
    default: Option<(String, &Utf8Path)>,
    version: Option<Version>,
) -> Option<RuntimeFault> {
    let built_in = runtimes.is_empty() || version.is_some_and(|version| !version.forgets_runc());
    let (name, path) = match default {
        Some(default) => default,
        None => {
            let (_, first) = runtimes.first_key_value()?;
            // The default is runc if no file sets another one. It can be missing only before 2.0, where configured runtimes
            // replace the built-in runc.
            version.filter(|version| version.forgets_runc())?;
            (BUILT_IN.to_owned(), first.path)
        }
    };
    let is_there = runtimes.contains_key(&name) || (name == BUILT_IN && built_in);
    (!is_there && (version.is_some() || name != BUILT_IN)).then(|| {
        RuntimeFault::new(
            Harm::All,
            format!(
                "the CRI plugin of containerd does not start: its default runtime `{name}` (`{path}`) is not configured in any \
                 file"
            ),
            format!(
                "configure runtime `{name}` in `{path}`, or set `default_runtime_name` to another one; then run `systemctl \
                 restart containerd`"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::layout::fixtures::{ROOT, file};
    use super::{ConfigFile, Harm, RuntimeFault, Version, faults, programs};

    const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

    /// Returns a version 2 file with a runtime.
    fn old(name: &str, more: &str) -> String {
        let table = format!("[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.{name}]\n");
        format!("version = 2\n{table}{more}\n")
    }

    fn new(version: u32, name: &str, more: &str) -> String {
        let table =
            format!("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}]\n");
        format!("version = {version}\n{table}{more}\n")
    }

    const TYPE: &str = "runtime_type = 'io.containerd.runc.v2'";

    fn only(found: Vec<RuntimeFault>) -> RuntimeFault {
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn valid_files_have_no_faults() {
        for (texts, version) in rows! {
            vec![], Some(Version(1, 7));
            vec![old("runc", TYPE)], Some(Version(1, 7));
            vec!["disabled_plugins = ['cri']\n".to_owned()], Some(Version(2, 1));
            vec![new(3, "runc", TYPE), old("nvidia", TYPE)], Some(Version(2, 1));
            vec![new(3, "nvidia", TYPE)], Some(Version(2, 0));
            vec![new(4, "nvidia", TYPE)], Some(Version(2, 3));
            vec![old("nvidia", TYPE)], None;
            // Keys that are missing in one file are in the other.
            vec![new(3, "nvidia", TYPE), new(3, "nvidia", "snapshotter = 'x'")],
                Some(Version(2, 1));
        } {
            let paths = [ROOT, DROP_IN];
            let files: Vec<ConfigFile> = (texts.iter().zip(paths))
                .map(|(text, path)| file(path, text))
                .collect();
            assert_eq!(faults(&files, &[], version), [], "{texts:?}");
        }
    }

    #[test]
    fn rejected_files_are_reported() {
        for (files, version, path, words) in rows! {
            vec![file(ROOT, "version = 2\n[plugins\n")], None, ROOT, "not TOML";
            vec![file(ROOT, &new(3, "runc", TYPE))], Some(Version(1, 7)), ROOT,
                "containerd 1.7 supports up to version 2";
            vec![file(ROOT, &new(4, "runc", TYPE))], Some(Version(2, 1)), ROOT, "up to version 3";
            vec![file(ROOT, &old("runc", TYPE)), file(DROP_IN, &new(4, "nvidia", TYPE))],
                Some(Version(2, 3)), DROP_IN, "has version 2";
            vec![file(ROOT, &old("runc", TYPE)), file(DROP_IN, &new(3, "nvidia", TYPE))], None,
                DROP_IN, "has version 3";
            vec![file(
                ROOT,
                &format!(
                    "{}[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n",
                    new(3, "runc", TYPE)
                ),
            )], Some(Version(2, 0)), ROOT, "its default runtime `nvidia`";
        } {
            let RuntimeFault { harm, fault } = only(faults(&files, &[], version));
            assert!(fault.why.contains(path), "{}", fault.why);
            assert!(fault.why.contains(words), "{}", fault.why);
            assert_eq!(harm, Harm::All);
        }
    }

    #[test]
    fn version_1_names_in_later_files_are_rejected() {
        let disabled = "version = 2\ndisabled_plugins = ['cri']\n";
        let table = format!(
            "{}[plugins.cri]\nsandbox_image = 'x'\n",
            old("nvidia", TYPE)
        );
        let whole = "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n";
        for (text, version, place) in rows! {
            disabled, Some(Version(1, 7)), Some("disabled_plugins");
            disabled, Some(Version(2, 1)), Some("disabled_plugins");
            disabled, None, Some("disabled_plugins");
            "version = 3\nrequired_plugins = ['restart']\n", Some(Version(2, 2)), Some("required_plugins");
            table.as_str(), Some(Version(1, 6)), Some("plugins");
            // 2.0 and newer ignore such a table.
            table.as_str(), Some(Version(2, 1)), None;
            table.as_str(), None, None;
            whole, Some(Version(1, 7)), None;
            "disabled_plugins = ['cri']\n", Some(Version(1, 7)), None;
            "version = 1\ndisabled_plugins = ['cri']\n", Some(Version(1, 7)), None;
        } {
            let found = faults(&[file(ROOT, text)], &[], version);
            let Some(place) = place else {
                assert_eq!(found, [], "{text}");
                continue;
            };
            let RuntimeFault { harm, fault } = only(found);
            assert!(
                harm == Harm::All && fault.why.contains(ROOT),
                "{}",
                fault.why
            );
            assert!(fault.why.contains(&format!("`{place}`")), "{}", fault.why);
        }
        // Before 2.0, the version in a later file also applies to the earlier one.
        let files = [
            file(ROOT, "disabled_plugins = ['cri']\n"),
            file(DROP_IN, &old("nvidia", TYPE)),
        ];
        let fault = only(faults(&files, &[], Some(Version(1, 7)))).fault;
        assert!(fault.why.contains(ROOT), "{}", fault.why);
        assert!(
            fault.remedy.contains("io.containerd.grpc.v1.cri"),
            "{}",
            fault.remedy
        );
        assert!(
            fault.remedy.contains("remove the name instead"),
            "{}",
            fault.remedy
        );
        assert_eq!(faults(&files, &[], Some(Version(2, 1))), []);
    }

    #[test]
    fn runtime_without_type_is_a_fault() {
        let files = [
            file(ROOT, &new(3, "runc", TYPE)),
            file(DROP_IN, &new(3, "nvidia", "x = 1")),
        ];
        let RuntimeFault { harm, fault } = only(faults(&files, &[], Some(Version(2, 1))));
        assert!(fault.why.contains(DROP_IN), "{}", fault.why);
        assert!(
            fault
                .why
                .contains("runtime `nvidia` do not start: it has no `runtime_type`")
        );
        assert!(fault.remedy.contains("sed -i"), "{}", fault.remedy);
        assert_eq!(harm, Harm::Containers);
        // A second line with the same key would make the file invalid.
        let empty = file(DROP_IN, &new(3, "nvidia", "runtime_type = ''"));
        let fault = only(faults(&[files[0].clone(), empty], &[], Some(Version(2, 1)))).fault;
        assert!(fault.remedy.contains("s|"), "{}", fault.remedy);
        // A name with other characters would be part of the script.
        let odd = file(DROP_IN, &new(3, "\"a'b\"", "x = 1"));
        let fault = only(faults(&[files[0].clone(), odd], &[], Some(Version(2, 1)))).fault;
        assert!(!fault.remedy.contains("sed"), "{}", fault.remedy);
    }

    #[test]
    fn files_without_version_are_read_as_version_1() {
        let unversioned = old("nvidia", TYPE).replace("version = 2\n", "");
        let files = [file(ROOT, &unversioned)];
        let fault = only(faults(&files, &[], Some(Version(1, 7)))).fault;
        assert!(fault.why.contains("has no `version`"), "{}", fault.why);
        assert!(fault.remedy.contains("version = 2"), "{}", fault.remedy);
        // 2.0 and newer also accept the long name, and another file can set the version for all files.
        assert_eq!(faults(&files, &[], Some(Version(2, 1))), []);
        let both = [files[0].clone(), file(DROP_IN, &old("runc", TYPE))];
        assert!(
            faults(&both, &[], Some(Version(1, 7)))
                .iter()
                .all(|one| !one.fault.why.contains("has no `version`"))
        );
        let text = "version = '2'\n";
        let RuntimeFault { harm, fault } = only(faults(&[file(ROOT, text)], &[], None));
        assert!(harm == Harm::All && fault.why.contains("is not a number"));
        let linux = "[plugins.cri.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runtime.v1.linux'\n";
        let fault = only(faults(&[file(ROOT, linux)], &[], Some(Version(2, 1)))).fault;
        assert!(
            fault.why.contains("does not exist in containerd 2.1"),
            "{}",
            fault.why
        );
    }

    #[test]
    fn runtime_in_older_table_has_no_effect() {
        let both = format!(
            "{}[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n{TYPE}\n",
            new(3, "runc", TYPE)
        );
        let only_old = old("nvidia", TYPE).replace("version = 2", "version = 3");
        for (text, version) in rows! {
            &both, Version(2, 0);
            &only_old, Version(2, 2);
            &only_old.replace("version = 3", "version = 4"), Version(2, 3);
        } {
            let RuntimeFault { harm, fault } =
                only(faults(&[file(ROOT, text)], &[], Some(version)));
            assert!(
                harm == Harm::Containers && fault.why.contains(ROOT),
                "{}",
                fault.why
            );
            assert!(
                fault.why.contains("ignores runtime `nvidia`"),
                "{}",
                fault.why
            );
            assert!(
                (fault.remedy).starts_with("run `sed -i")
                    && fault.remedy.contains("io.containerd.cri.v1.runtime"),
                "{}",
                fault.remedy
            );
        }
        // Since 2.3, version 3 is an older version, so both tables are read. A runtime that is in both tables has an effect.
        let twice = format!(
            "{}[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n{TYPE}\n",
            new(3, "nvidia", TYPE)
        );
        for (text, version) in rows! {
            &only_old, Some(Version(2, 3));
            &only_old, None;
            &twice, Some(Version(2, 1));
        } {
            assert_eq!(faults(&[file(ROOT, text)], &[], version), [], "{text}");
        }
        // Another file has the right table, or makes containerd read all files as older ones.
        for later in [new(3, "nvidia", TYPE), old("x", TYPE)] {
            let files = [file(ROOT, &only_old), file(DROP_IN, &later)];
            let found = faults(&files, &[], Some(Version(2, 1)));
            let is_said = (found.iter()).any(|one| one.fault.why.contains("ignores runtime"));
            assert!(!is_said, "{found:?}");
        }
    }

    #[test]
    fn version_1_shim_program_does_not_apply_to_pods() {
        let shim =
            |plugin: &str| format!("[plugins.'{plugin}']\nruntime = 'nvidia-container-runtime'\n");
        let (short, long) = (shim("linux"), shim("io.containerd.runtime.v1.linux"));
        let options = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n";
        let program = "BinaryName = '/usr/bin/nvidia-container-runtime'\n";
        let whole = format!("{}{options}{program}{long}", old("nvidia", TYPE));
        let first = "[plugins.cri.containerd.runtimes.a]\nruntime_type = 'io.containerd.runtime.v1.linux'\n";
        for (text, version, said) in rows! {
            short.clone(), Some(Version(1, 7)), true;
            format!("version = 2\n{long}"), Some(Version(2, 1)), true;
            short.clone(), Some(Version(1, 2)), false;
            short.clone(), None, false;
            short.replace("nvidia-container-runtime", "runc"), Some(Version(1, 7)), false;
            format!("{short}{first}"), Some(Version(1, 6)), false;
            format!("{short}{}", first.replace("runtimes.a", "default_runtime")), Some(Version(1, 6)), false;
            format!("disabled_plugins = ['cri']\n{short}"), Some(Version(1, 7)), false;
            whole, Some(Version(1, 7)), false;
        } {
            let found = faults(&[file(ROOT, &text)], &[], version);
            let is_said = found
                .iter()
                .any(|one| one.fault.why.contains("it for pods"));
            assert_eq!(is_said, said, "{text}: {found:?}");
        }
    }

    #[test]
    fn programs_are_merged_from_all_files() {
        let plugin = "plugins.'io.containerd.grpc.v1.cri'.containerd";
        let options = format!("[{plugin}.runtimes.nvidia.options]\nBinaryName = '/opt/nvidia'\n");
        let root = format!("version = 2\n[{plugin}]\ndefault_runtime_name = 'nvidia'\n{options}");
        let found = programs(&[file(ROOT, &root)], None);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(one.default && one.program == "/opt/nvidia" && one.runtime == "nvidia");
        assert_eq!(programs(&[file(ROOT, "version = 2\n[x\n")], None), []);
    }

    #[test]
    fn file_that_is_not_imported_is_reported() {
        let stray = [file(
            "/etc/containerd/config.d/99-nvidia.toml",
            &old("nvidia", TYPE),
        )];
        let root = [file(ROOT, &old("runc", TYPE))];
        let fault = only(faults(&root, &stray, Some(Version(1, 7)))).fault;
        assert!(fault.why.contains(stray[0].path.as_str()), "{}", fault.why);
        assert!(fault.why.contains("which is not imported"), "{}", fault.why);
        // Before 2.1, the file would replace the table with runc.
        let append = "run `sed -n '/runtimes\\.\"\\?nvidia\"\\?\\]/,$p' /etc/containerd/config.d/99-nvidia.toml \
                      >>/etc/containerd/config.toml && systemctl restart containerd`";
        assert!(fault.remedy.starts_with(append), "{}", fault.remedy);
        let importing = [file(
            ROOT,
            &format!(
                "imports = ['/etc/containerd/conf.d/*.toml']\n{}",
                old("runc", TYPE)
            ),
        )];
        let fault = only(faults(&importing, &stray, Some(Version(1, 7)))).fault;
        assert!(fault.remedy.starts_with(append), "{}", fault.remedy);
        let fault = only(faults(&importing, &stray, Some(Version(2, 1)))).fault;
        let moves = "run `mkdir -p /etc/containerd/conf.d && mv /etc/containerd/config.d/99-nvidia.toml \
                     /etc/containerd/conf.d/ && systemctl restart containerd`";
        assert!(fault.remedy.starts_with(moves), "{}", fault.remedy);
        // A root file without a newline at its end, and a file with a newer version.
        let open = [file(ROOT, old("runc", TYPE).trim_end())];
        let newer = [file(stray[0].path.as_str(), &new(3, "nvidia", TYPE))];
        for (root, stray) in [(&open, &stray), (&importing, &newer)] {
            let fault = only(faults(root, stray, Some(Version(1, 7)))).fault;
            assert!(fault.remedy.starts_with("add "), "{}", fault.remedy);
        }
        // It is harmless if the runtime also exists elsewhere.
        let root = [file(
            ROOT,
            &format!(
                "{}[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n{TYPE}\n",
                old("nvidia", TYPE)
            ),
        )];
        assert_eq!(faults(&root, &stray, Some(Version(1, 7))), []);
    }

    #[test]
    fn before_2_1_later_table_replaces_earlier_table() {
        let root = old("nvidia", TYPE);
        let later = old("runc", TYPE);
        let files = [file(ROOT, &root), file(DROP_IN, &later)];
        let fault = only(faults(&files, &[], Some(Version(1, 7)))).fault;
        assert!(
            fault.why.contains("replaces the complete table"),
            "{}",
            fault.why
        );
        assert_eq!(faults(&files, &[], Some(Version(2, 1))), []);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in "(version = [0-9]\n|\\[plugins|runtimes|=|'|\\]|.|\n)*") {
            for version in [None, Some(Version(1, 6)), Some(Version(2, 3))] {
                let _ = faults(&[file(ROOT, &text)], &[file(DROP_IN, &text)], version);
            }
        }
    }
}
