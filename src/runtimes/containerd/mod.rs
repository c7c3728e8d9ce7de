//! containerd: its configuration as printed by `containerd config dump`, and its client `ctr`.

use std::collections::BTreeMap;

use toml::Table;

use crate::host::Query;

pub mod ctr;
pub mod faults;
mod files;
mod kubelets;
pub mod layout;
mod owners;
mod runtime;

pub use files::CONFIG;
pub use owners::{KubernetesDistribution, OWNERS, PROGRAMS};
pub use runtime::{Containerd, SOCKET};

/// The configuration of the CRI plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CriConfig {
    /// The runtime names.
    pub runtimes: Vec<String>,
    pub default_runtime: Option<String>,
    /// Whether systemd is the cgroup driver, for each runtime that sets it.
    pub systemd_cgroup: BTreeMap<String, bool>,
    /// The program of each runtime that sets one.
    pub programs: BTreeMap<String, String>,
    /// Patterns of imported files.
    pub imports: Vec<String>,
    /// Whether the CRI plugin is enabled.
    pub enabled: bool,
    /// Whether there are settings of the CRI plugin.
    pub has_plugin: bool,
    /// The format version. 1 if it is not set.
    pub version: i64,
}

/// Prints the version, see [`Version::parse`](crate::runtimes::Version::parse).
pub fn version() -> Query {
    Query::new("containerd", ["--version"])
}

/// Prints the merged configuration, including imports.
pub fn config_dump() -> Query {
    Query::new("containerd", ["config", "dump"])
}

/// IDs of the plugin with the CRI runtimes: configuration version 2, then 3 and newer.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// The ID of this plugin in files of version 1 (`version` is 1 or missing).
const FIRST_PLUGIN: &str = "cri";

/// Returns the possible IDs of the plugin with the runtimes in a file.
fn ids(root: &Table) -> impl DoubleEndedIterator<Item = &'static str> {
    let version = root.get("version").and_then(toml::Value::as_integer);
    let first = version.is_none_or(|version| version < 2);
    (first.then_some(FIRST_PLUGIN).into_iter()).chain(PLUGINS)
}

/// Returns the import patterns of a file that contains nothing else, except its version. `None` for any other file.
pub fn only_imports(text: &str) -> Option<Vec<String>> {
    let root: Table = toml::from_str(text).ok()?;
    if !root.keys().all(|key| key == "imports" || key == "version") {
        return None;
    }
    let imports = root.get("imports")?.as_array()?.iter();
    Some(
        imports
            .filter_map(|pattern| pattern.as_str().map(str::to_owned))
            .collect(),
    )
}

/// Parses the output of [`config_dump`], or a configuration file.
///
/// # Errors
/// If the text is not TOML. The message contains the position.
pub fn parse_config(text: &str) -> Result<CriConfig, String> {
    let root: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let disabled = root
        .get("disabled_plugins")
        .and_then(|list| list.as_array())
        .is_some_and(|list| {
            list.iter().any(|name| {
                name.as_str()
                    .is_some_and(|name| name == FIRST_PLUGIN || PLUGINS.contains(&name))
            })
        });
    let containerd = ids(&root).find_map(|plugin| {
        root.get("plugins")?
            .get(plugin)?
            .get("containerd")?
            .as_table()
    });
    let has_plugin = ids(&root).any(|plugin| {
        root.get("plugins")
            .is_some_and(|all| all.get(plugin).is_some())
    });
    let runtimes = containerd
        .and_then(|table| table.get("runtimes")?.as_table())
        .map(|table| table.keys().cloned().collect())
        .unwrap_or_default();
    let systemd_cgroup = containerd
        .and_then(|table| table.get("runtimes")?.as_table())
        .into_iter()
        .flatten()
        .filter_map(|(name, runtime)| {
            let option = runtime.get("options")?.get("SystemdCgroup")?.as_bool()?;
            Some((name.clone(), option))
        })
        .collect();
    // Version 1 can define the default runtime in place (containerd/cri 1.2, `pkg/config`), with its program as
    // `runtime_engine`.
    let in_place = containerd
        .and_then(|table| Some(("default_runtime".to_owned(), table.get("default_runtime")?)));
    let programs = containerd
        .and_then(|table| table.get("runtimes")?.as_table())
        .into_iter()
        .flatten()
        .map(|(name, runtime)| (name.clone(), runtime))
        .chain(in_place)
        .filter_map(|(name, runtime)| {
            let option = |key: &str| runtime.get("options")?.get(key)?.as_str();
            let program = option("BinaryName")
                .or_else(|| option("Runtime"))
                .or_else(|| runtime.get("runtime_engine")?.as_str())?;
            (!program.is_empty()).then(|| (name, program.to_owned()))
        })
        .collect();
    let imports = root
        .get("imports")
        .and_then(|list| list.as_array())
        .into_iter()
        .flatten()
        .filter_map(|pattern| pattern.as_str().map(str::to_owned))
        .collect();
    let default_runtime = containerd
        .and_then(|table| table.get("default_runtime_name")?.as_str())
        .map(str::to_owned);
    let version = root
        .get("version")
        .and_then(|version| version.as_integer())
        .unwrap_or(1);
    Ok(CriConfig {
        version,
        runtimes,
        default_runtime,
        systemd_cgroup,
        programs,
        imports,
        enabled: !disabled,
        has_plugin,
    })
}

#[cfg(test)]
mod tests {
    use super::parse_config;

    #[test]
    fn both_layouts_are_parsed() {
        for plugin in ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"] {
            let text = format!(
                "version = 2\ndisabled_plugins = []\n[plugins.\"{plugin}\".containerd]\n\
                 default_runtime_name = \"runc\"\n\
                 [plugins.\"{plugin}\".containerd.runtimes.nvidia]\n\
                 runtime_type = \"io.containerd.runc.v2\"\n"
            );
            let config = parse_config(&text).expect("TOML");
            assert_eq!(config.runtimes, ["nvidia"]);
            assert_eq!(config.default_runtime.as_deref(), Some("runc"));
            assert!(config.enabled);
            assert_eq!(config.version, 2);
        }
        assert!(
            !parse_config("disabled_plugins = [\"cri\"]")
                .expect("TOML")
                .enabled
        );
        assert!(parse_config("version = ").is_err());
        // Version 1, as in NVIDIA's instructions of 2019.
        let old = parse_config(
            "[plugins.cri.containerd.default_runtime]\nruntime_type = \"io.containerd.runtime.v1.linux\"\n\
             runtime_engine = \"/usr/bin/nvidia-container-runtime\"\n",
        )
        .expect("TOML");
        let program = old.programs.get("default_runtime").map(String::as_str);
        assert_eq!(program, Some("/usr/bin/nvidia-container-runtime"));
    }
}
