//! containerd: its configuration as it prints it, and its client.

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

/// What the CRI plugin is configured with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CriConfig {
    /// Names of runtimes.
    pub runtimes: Vec<String>,
    pub default_runtime: Option<String>,
    /// The runtimes for which systemd makes the control groups, or not, where the configuration
    /// says so.
    pub systemd_cgroup: BTreeMap<String, bool>,
    /// The programs that run containers, by runtime, where the configuration names them.
    pub programs: BTreeMap<String, String>,
    /// Other files that belong to it, as patterns.
    pub imports: Vec<String>,
    /// The CRI plugin is not disabled.
    pub enabled: bool,
    /// It says something about the CRI plugin.
    pub has_plugin: bool,
    /// The version of the format; 1 where none is named.
    pub version: i64,
}

/// Prints the version: [`Version::parse`](crate::runtimes::Version::parse).
#[must_use]
pub fn version() -> Query {
    Query::new("containerd", ["--version"])
}

/// Prints the merged configuration, imports included.
#[must_use]
pub fn config_dump() -> Query {
    Query::new("containerd", ["config", "dump"])
}

/// Plugin ids of the CRI's runtime part: configuration version 2, then 3 and newer.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// The id of that plugin in files of version 1, which have no `version`, or 1.
const FIRST_PLUGIN: &str = "cri";

/// The ids by which a file names the plugin with the runtimes.
fn ids(root: &Table) -> impl DoubleEndedIterator<Item = &'static str> {
    let version = root.get("version").and_then(toml::Value::as_integer);
    let first = version.is_none_or(|version| version < 2);
    (first.then_some(FIRST_PLUGIN).into_iter()).chain(PLUGINS)
}

/// Reads the answer to [`config_dump`].
///
/// # Errors
/// Where and why it is not TOML.
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
    fn both_layouts_are_read() {
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
        // Version 1, as NVIDIA's instructions of 2019 had it.
        let old = parse_config(
            "[plugins.cri.containerd.default_runtime]\nruntime_type = \"io.containerd.runtime.v1.linux\"\n\
             runtime_engine = \"/usr/bin/nvidia-container-runtime\"\n",
        )
        .expect("TOML");
        let program = old.programs.get("default_runtime").map(String::as_str);
        assert_eq!(program, Some("/usr/bin/nvidia-container-runtime"));
    }
}
