//! Docker: its client, its configuration file, and the command line of its unit.

mod runtime;

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use serde_json::{Value, json};

pub use runtime::{DAEMON_JSON, Docker};

use super::Elsewhere;
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    model::document::{Document, Setting},
    tools::systemctl,
};

/// The Docker unit. All distributions use this name.
pub const UNIT: &str = "docker.service";

/// The default bridge. Source: Docker, "Bridge network driver".
pub const BRIDGE: &str = "docker0";

/// The output of `docker info`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Info {
    /// The runtimes by name.
    #[serde(default)]
    pub runtimes: BTreeMap<String, serde_json::Value>,
    pub default_runtime: Option<String>,
    /// The daemon version.
    pub server_version: Option<String>,
    /// Whether containers keep running if the daemon stops.
    #[serde(default)]
    pub live_restore_enabled: bool,
    /// The directories of CDI specifications. `None` if the daemon does not use CDI.
    #[serde(default, rename = "CDISpecDirs")]
    pub cdi_directories: Option<Vec<String>>,
    /// Errors if the daemon could not be queried. The client prints a document even in this case.
    #[serde(default)]
    pub server_errors: Vec<String>,
}

/// Queries the daemon's information as JSON.
pub fn info() -> Query {
    Query::new("docker", ["info", "--format={{json .}}"])
}

/// Queries the version of the daemon binary.
pub fn daemon_version() -> Query {
    Query::new("dockerd", ["--version"])
}

/// The first Docker version that can validate a configuration file without starting (moby/moby#42393).
const VALIDATES: u32 = 23;

/// Whether the daemon binary can validate a file, based on the output of [`daemon_version`].
pub fn can_validate(text: &str) -> bool {
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    numbers(version).is_some_and(|(major, _)| major >= VALIDATES)
}

/// Validates a configuration file. The exit status is not 0 if the daemon would not start with this file and these flags.
pub fn validate(flags: &[String], path: &Utf8Path) -> Query {
    let mut args = vec!["--validate".to_owned(), format!("--config-file={path}")];
    args.extend(flags.iter().cloned());
    Query::new("dockerd", args)
}

/// Returns the flags in the command line of a unit, as printed by systemd: without quotes. Variables are omitted, because their
/// values are in the unit's environment files. The result is empty if another program starts the daemon, or if the arguments
/// are ambiguous: an argument may have been quoted, or the value of a flag is a variable.
pub fn flags(command: &str) -> Vec<String> {
    let mut words = command.split_whitespace();
    let is_daemon = |program: &str| program.rsplit('/').next() == Some("dockerd");
    if !words.next().is_some_and(is_daemon) {
        return Vec::new();
    }
    let (mut flags, mut takes_value): (Vec<String>, bool) = (Vec::new(), false);
    for word in words {
        let is_flag = word.starts_with('-');
        match word.strip_prefix('$') {
            Some(_) if !takes_value => continue,
            _ if word.contains(['$', '"', '\'', '\\']) || !(is_flag || takes_value) => {
                return Vec::new();
            }
            _ => {}
        }
        takes_value = is_flag && !word.contains('=');
        flags.push(word.to_owned());
    }
    flags
}

/// Files with options that the units of Debian and RHEL-like distributions append to the command line.
const OPTIONS: [&str; 2] = ["/etc/default/docker", "/etc/sysconfig/docker"];

/// Returns the line of a unit, its drop-ins or its option files that sets another configuration file. `None` if the daemon
/// reads the default file.
///
/// # Errors
/// If an existing file cannot be read.
pub fn other_config(
    files: &dyn ReadFiles,
    unit: &str,
    usual: &str,
) -> Result<Option<Elsewhere>, FilesError> {
    let mut paths = systemctl::files_of(files, unit)?;
    paths.extend(OPTIONS.map(Utf8PathBuf::from));
    let mut found = None;
    for path in paths {
        let text = files.read(&path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        for (at, line) in text.lines().enumerate() {
            match config_in(line) {
                Some(config) => {
                    found = Some(Elsewhere {
                        config: config.to_owned(),
                        path: path.clone(),
                        line: at + 1,
                    });
                }
                // A later command line replaces an earlier one.
                None if line.trim_start().starts_with("ExecStart=") => found = None,
                None => {}
            }
        }
    }
    Ok(found.filter(|found| found.config != usual))
}

/// A flag on the daemon's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitFlag {
    /// The equivalent key in the configuration file.
    pub key: String,
    /// The value. Empty if the flag has none.
    pub value: String,
    /// The file with the command line.
    pub path: Utf8PathBuf,
}

/// Flags whose configuration keys have other names. Source: moby/moby, `cmd/dockerd/config.go` and `config_unix.go`.
const FLAG_KEYS: [(&str, &str); 23] = [
    ("D", "debug"),
    ("G", "group"),
    ("H", "hosts"),
    ("b", "bridge"),
    ("l", "log-level"),
    ("p", "pidfile"),
    ("s", "storage-driver"),
    ("add-runtime", "runtimes"),
    ("authorization-plugin", "authorization-plugins"),
    ("cdi-spec-dir", "cdi-spec-dirs"),
    ("default-address-pool", "default-address-pools"),
    ("default-network-opt", "default-network-opts"),
    ("default-ulimit", "default-ulimits"),
    ("dns-opt", "dns-opts"),
    ("exec-opt", "exec-opts"),
    ("feature", "features"),
    ("host", "hosts"),
    ("insecure-registry", "insecure-registries"),
    ("label", "labels"),
    ("log-opt", "log-opts"),
    ("node-generic-resource", "node-generic-resources"),
    ("registry-mirror", "registry-mirrors"),
    ("storage-opt", "storage-opts"),
];

/// Returns the flags on the daemon's command line, from the files of its unit. The last command line is used. Variables have
/// the values of the unit and of its environment files. The result is empty if another program starts the daemon.
///
/// # Errors
/// If an existing file cannot be read.
pub fn unit_flags(files: &dyn ReadFiles, unit: &str) -> Result<Vec<UnitFlag>, FilesError> {
    let mut command: Option<(Utf8PathBuf, String)> = None;
    let (mut environment, mut named) = (BTreeMap::new(), Vec::new());
    let assign = |environment: &mut BTreeMap<String, String>, text: &str| {
        if let Some((key, value)) = text.split_once('=') {
            environment.insert(key.trim().to_owned(), value.to_owned());
        }
    };
    for path in systemctl::files_of(files, unit)? {
        let text = files.read(&path)?.unwrap_or_default();
        // A backslash at the end of a line continues it, systemd.syntax(7).
        let text = String::from_utf8_lossy(&text).replace("\\\n", " ");
        for line in text.lines().map(str::trim) {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            match (key, value.trim()) {
                ("ExecStart", "") => command = None,
                ("ExecStart", value) => command = Some((path.clone(), value.to_owned())),
                ("Environment", value) => {
                    for word in words(value) {
                        assign(&mut environment, &word);
                    }
                }
                ("EnvironmentFile", "") => named.clear(),
                ("EnvironmentFile", value) => named.push(value.trim_start_matches('-').to_owned()),
                _ => {}
            }
        }
    }
    // systemd specifiers and patterns are not expanded.
    for path in named.iter().filter(|path| path.starts_with('/')) {
        let text = match files.read(Utf8Path::new(path)) {
            // The current user cannot read the file, so the flags are unknown.
            Err(error) if error.is_denied() => return Ok(Vec::new()),
            text => text?.unwrap_or_default(),
        };
        let text = String::from_utf8_lossy(&text).replace("\\\n", " ");
        for line in text
            .lines()
            .filter(|line| !line.trim_start().starts_with(['#', ';']))
        {
            let whole = line.split_once('=').map(|(key, value)| {
                let value = value.trim().trim_matches(['"', '\'']);
                format!("{key}={value}")
            });
            assign(&mut environment, &whole.unwrap_or_default());
        }
    }
    let Some((path, command)) = command else {
        return Ok(Vec::new());
    };
    let value_of = |name: &str| environment.get(name).map_or("", String::as_str);
    let mut all = Vec::new();
    for word in words(&command) {
        match word.strip_prefix('$') {
            // `${NAME}` is one argument, but the value of `$NAME` is split into words, systemd.service(5).
            Some(name) => match name
                .strip_prefix('{')
                .and_then(|name| name.strip_suffix('}'))
            {
                Some(name) => all.push(value_of(name).to_owned()),
                None => all.extend(words(value_of(name))),
            },
            None => all.push(word),
        }
    }
    let is_daemon = |program: &String| {
        let program = program.trim_start_matches(['-', '@', ':', '+', '!']);
        program.rsplit('/').next() == Some("dockerd")
    };
    if !all.first().is_some_and(is_daemon) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (at, word) in all.iter().enumerate().skip(1) {
        let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let Some(name) = short.or_else(|| word.strip_prefix("--")) else {
            continue;
        };
        let (name, value) = match (name.split_once('='), short) {
            (Some((name, value)), _) => (name, Some(value)),
            // `-Hfd://` is also one argument.
            (None, Some(name)) if name.len() > 1 && name.is_char_boundary(1) => {
                (&name[..1], Some(&name[1..]))
            }
            (None, _) => (name, None),
        };
        let next = all.get(at + 1).filter(|next| !next.starts_with('-'));
        let key = (FLAG_KEYS.iter())
            .find(|(flag, _)| *flag == name)
            .map_or(name, |(_, key)| key);
        found.push(UnitFlag {
            key: key.to_owned(),
            value: value
                .or(next.map(String::as_str))
                .unwrap_or_default()
                .to_owned(),
            path: path.clone(),
        });
    }
    Ok(found)
}

/// Splits a line into arguments, which may be quoted.
fn words(line: &str) -> Vec<String> {
    let (mut found, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) =
        (Vec::new(), None, None);
    for c in line.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => found.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
    found
}

/// Keys whose tables the daemon compares as a whole. In other tables it compares the inner keys. Source: moby/moby,
/// `daemon/config/config.go`, `flatOptions`.
const WHOLE: [&str; 7] = [
    "builder",
    "cluster-store-opts",
    "default-network-opts",
    "default-ulimits",
    "features",
    "log-opts",
    "runtimes",
];

/// Returns the keys of a configuration file that the daemon compares with its flags.
fn keys(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in file.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(table) if !WHOLE.contains(&key.as_str()) => found.extend(table.keys().cloned()),
            _ => found.push(key.clone()),
        }
    }
    found
}

fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text.trim_start_matches(BYTE_ORDER_MARK)).ok()
}

/// Returns the first flag on the command line of the unit whose key is also set in the configuration file. In this case the
/// daemon does not start, even if the values are equal. An exception is the key `runtimes`, whose values are merged. Source:
/// moby/moby, `findConfigurationConflicts` and `skipDuplicates`.
pub fn conflict<'f>(text: &str, flags: &'f [UnitFlag]) -> Option<&'f UnitFlag> {
    let keys = keys(&parsed(text)?);
    (flags.iter()).find(|flag| flag.key != "runtimes" && keys.contains(&flag.key))
}

/// Commonly used keys of the Docker configuration file. Source: moby/moby, `cmd/dockerd/config.go` and `config_unix.go`: the
/// configuration names of flags.
const KEYS: [&str; 40] = [
    "bip",
    "bridge",
    "cdi-spec-dirs",
    "cgroup-parent",
    "containerd",
    "data-root",
    "debug",
    "default-address-pools",
    "default-cgroupns-mode",
    "default-runtime",
    "default-shm-size",
    "default-ulimits",
    "dns",
    "dns-opts",
    "dns-search",
    "exec-opts",
    "exec-root",
    "experimental",
    "features",
    "group",
    "hosts",
    "insecure-registries",
    "ipv6",
    "labels",
    "live-restore",
    "log-driver",
    "log-level",
    "log-opts",
    "max-concurrent-downloads",
    "max-concurrent-uploads",
    "metrics-addr",
    "mtu",
    "node-generic-resources",
    "registry-mirrors",
    "runtimes",
    "selinux-enabled",
    "storage-driver",
    "storage-opts",
    "userland-proxy",
    "userns-remap",
];

/// Returns a mistyped key and the intended one. The daemon does not start with an unknown key. A key that is not similar to a
/// known one is accepted, because a newer Docker may support it.
pub fn mistyped(text: &str) -> Option<(String, &'static str)> {
    // The daemon ignores a key with the name of a flag.
    let is_flag = |key: &String| FLAG_KEYS.iter().any(|(flag, _)| flag == key);
    (keys(&parsed(text)?).into_iter().filter(|key| !is_flag(key))).find_map(|key| {
        let plain = key.to_ascii_lowercase().replace(['_', ' '], "-");
        let meant = KEYS.into_iter().find(|known| {
            plain == *known
                || plain.strip_suffix('s') == Some(known)
                || known.strip_suffix('s') == Some(&plain)
        });
        meant
            .filter(|meant| *meant != key)
            .map(|meant| (key, meant))
    })
}

/// Returns the value of `--config-file` in a line that is not a comment.
fn config_in(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with(['#', ';']) {
        return None;
    }
    let (_, rest) = line.split_once("--config-file")?;
    let value = rest
        .strip_prefix(['=', ' '])?
        .trim_start_matches(['"', '\'']);
    let end = value.find(|c: char| c.is_whitespace() || "\"'".contains(c));
    Some(&value[..end.unwrap_or(value.len())])
}

/// Parses the major and minor number of a version such as `26.1.5+dfsg1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Queries the names of the running containers, one per line.
pub fn running() -> Query {
    Query::new("docker", ["ps", "--format={{.Names}}"])
}

/// Queries an image. The exit status is not 0 if the daemon does not have it.
pub fn inspect_image(image: &str) -> Query {
    Query::new(
        "docker",
        ["image", "inspect", "--format={{.Id}}", "--", image],
    )
}

pub fn pull(image: &str) -> Cmd {
    Cmd::new("docker", ["pull", "--", image])
}

/// Writes the image with an ID to a new archive, without names.
pub fn save(id: &str, archive: &Utf8Path) -> Cmd {
    let output = format!("--output={archive}");
    Cmd::new("docker", ["save", output.as_str(), "--", id])
}

pub fn load(archive: &Utf8Path) -> Cmd {
    let input = format!("--input={archive}");
    Cmd::new("docker", ["load", "--quiet", input.as_str()])
}

pub fn tag(id: &str, name: &str) -> Cmd {
    Cmd::new("docker", ["tag", "--", id, name])
}

pub fn remove_image(image: &str) -> Cmd {
    Cmd::new("docker", ["image", "rm", "--force", "--", image]).deadline(Duration::from_secs(120))
}

/// Stops and removes a container. Some versions fail if the container does not exist.
pub fn remove_container(name: &str) -> Cmd {
    Cmd::new("docker", ["rm", "--force", "--", name])
}

/// Creates an image with one layer from an archive.
pub fn import(archive: &Utf8Path, image: &str) -> Cmd {
    Cmd::new("docker", ["import", "--", archive.as_str(), image])
}

/// Parses the output of [`info`].
///
/// # Errors
/// If the text is not such a document. The message contains the position.
pub fn parse_info(text: &str) -> Result<Info, String> {
    serde_json::from_str(text.trim()).map_err(|error| error.to_string())
}

/// An error in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The parse error with its position.
    pub why: String,
    /// Whether Docker accepts the file since [`LENIENT`]. `nvidia-ctk` does not.
    pub forgiven: bool,
}

/// The first Docker version that treats an empty file as missing and skips a byte order mark (moby/moby,
/// `daemon/config/config.go` of 20.10.24 and 23.0.0). `nvidia-ctk` decodes the bytes unchanged
/// (NVIDIA/nvidia-container-toolkit, `pkg/config/engine/docker/option.go`).
pub const LENIENT: u32 = 23;

/// The byte order mark that some Windows editors add to UTF-8 files.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Checks whether the daemon's configuration file, `daemon.json`, can be parsed.
///
/// # Errors
/// If the text is not a JSON object. The error contains the position.
pub fn check_config(text: &str) -> Result<(), Issue> {
    let unmarked = text.strip_prefix(BYTE_ORDER_MARK);
    let forgiven = |why: &str| Issue {
        why: why.to_owned(),
        forgiven: true,
    };
    let rest = unmarked.unwrap_or(text);
    if rest.trim().is_empty() {
        return Err(forgiven("the file is empty"));
    }
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(rest).map_err(|error| {
        Issue {
            why: error.to_string(),
            forgiven: false,
        }
    })?;
    match unmarked {
        Some(_) => Err(forgiven("the file starts with a byte order mark")),
        None => Ok(()),
    }
}

impl Info {
    /// Whether the daemon accepts a file whose [`Issue`] is `forgiven`.
    pub fn is_lenient(&self) -> bool {
        self.numbers().is_some_and(|(major, _)| major >= LENIENT)
    }

    /// Whether this version supports CDI but does not enable it by default: it is supported since 25.0, and enabled since 28.2
    /// (<https://docs.docker.com/build/building/cdi/>, release notes of 28.2.0).
    pub fn needs_cdi(&self) -> bool {
        self.numbers()
            .is_some_and(|version| ((25, 0)..(28, 2)).contains(&version))
    }

    /// Returns the program of each runtime.
    pub fn programs(&self) -> BTreeMap<String, String> {
        let runtimes = self.runtimes.iter();
        runtimes
            .filter_map(|(name, runtime)| {
                Some((name.clone(), runtime.get("path")?.as_str()?.to_owned()))
            })
            .collect()
    }

    fn numbers(&self) -> Option<(u32, u32)> {
        self.server_version.as_deref().and_then(numbers)
    }
}

/// Directories that exist while Docker is installed as a snap. Remains of a removed snap are not checked.
const SNAP: [&str; 2] = ["/snap/docker", "/var/snap/docker/current"];

/// The configuration file of the Docker snap (canonical/docker-snap).
pub const SNAP_CONFIG: &str = "/var/snap/docker/current/config/daemon.json";

/// The remedy if Docker is a snap.
pub const SNAP_REMEDY: &str = "run `nvidia-ctk runtime configure --runtime=docker \
     --config=/var/snap/docker/current/config/daemon.json && snap restart docker`; or install Docker as a package after \
     `snap remove docker`, which deletes its containers and images";

/// Returns an existing directory of the Docker snap, or `None` if Docker is not a snap.
///
/// # Errors
/// If a directory cannot be read.
pub fn snap(files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
    for path in SNAP {
        if files.exists(Utf8Path::new(path))? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the runtimes in the configuration file and the flags, with their programs if specified.
pub fn runtimes(text: &str, flags: &[UnitFlag]) -> BTreeMap<String, Option<String>> {
    let file = parsed(text).unwrap_or_default();
    let of_file = file.get("runtimes").and_then(Value::as_object);
    let mut found: BTreeMap<String, Option<String>> = (of_file.into_iter().flatten())
        .map(|(name, runtime)| {
            let path = runtime.get("path").and_then(Value::as_str);
            (name.clone(), path.map(str::to_owned))
        })
        .collect();
    for flag in flags.iter().filter(|flag| flag.key == "runtimes") {
        if let Some((name, path)) = flag.value.split_once('=') {
            found.insert(name.to_owned(), Some(path.to_owned()));
        }
    }
    found
}

/// Returns the default runtime in the configuration file, or else in the flags.
pub fn default_runtime(text: &str, flags: &[UnitFlag]) -> Option<String> {
    let of_file =
        parsed(text).and_then(|file| Some(file.get("default-runtime")?.as_str()?.to_owned()));
    let of_flag = flags.iter().find(|flag| flag.key == "default-runtime");
    of_file
        .or_else(|| of_flag.map(|flag| flag.value.clone()))
        .filter(|name| !name.is_empty())
}

/// Whether Docker has a runtime without configuration. runc and shims are built in. The names of shims contain dots.
pub fn is_built_in(runtime: &str) -> bool {
    runtime == "runc" || runtime.contains('.')
}

/// Returns the keys that configure a runtime in Docker, without keys that are already set.
pub fn settings(file: &Document, runtime: &DockerRuntime<'_>) -> Vec<Setting> {
    let mut wanted = Vec::new();
    let mut want = |key: &[&str], value: Value| {
        wanted.push(Setting {
            key: key.iter().map(ToString::to_string).collect(),
            value: Some(value),
        });
    };
    if !runtime.kept {
        // The same entry as from `nvidia-ctk`.
        want(
            &["runtimes", runtime.name],
            json!({"args": [], "path": runtime.program}),
        );
    }
    if runtime.default {
        want(&["default-runtime"], json!(runtime.name));
    }
    let cdi = ["features".to_owned(), "cdi".to_owned()];
    // Keep CDI disabled if the user disabled it.
    if runtime.cdi && file.get(&cdi).is_none() {
        want(&["features", "cdi"], json!(true));
    }
    wanted.retain(|setting| file.get(&setting.key) != setting.value);
    wanted
}

/// A runtime to configure in Docker.
#[derive(Debug, Clone, Copy)]
pub struct DockerRuntime<'a> {
    pub name: &'a str,
    /// The program that replaces runc.
    pub program: &'a str,
    /// Whether an existing entry is kept.
    pub kept: bool,
    /// Whether it must be the default runtime.
    pub default: bool,
    /// Whether CDI must be enabled.
    pub cdi: bool,
}

#[cfg(test)]
mod tests {
    use super::{
        UnitFlag, check_config, conflict, default_runtime, flags, mistyped, parse_info, runtimes,
        unit_flags, validate,
    };
    use crate::{
        host::fake::FakeFiles,
        runtimes::{LiveConfig, RuntimeKind, RuntimeView},
    };

    #[test]
    fn broken_configuration_error_has_its_position() {
        assert_eq!(check_config("{\"log-driver\": \"local\"}\n"), Ok(()));
        for (text, place, forgiven) in [
            ("{\n  \"mtu\": 1400,\n}\n", "line 3 column 1", false),
            ("[]", "line 1 column 0", false),
            ("\u{feff}[]", "line 1 column 0", false),
            ("", "empty", true),
            (" \n", "empty", true),
            ("\u{feff}", "empty", true),
            ("\u{feff}{\"mtu\": 1400}", "byte order mark", true),
        ] {
            let issue = check_config(text).expect_err("broken");
            assert!(issue.why.contains(place), "{issue:?}");
            assert_eq!(issue.forgiven, forgiven, "{text}");
        }
    }

    #[test]
    fn cgroup_driver_of_the_unit_is_used() {
        let files = FakeFiles::new();
        let view = RuntimeView {
            files: Vec::new(),
            broken: None,
            elsewhere: None,
            by_files: None,
            said: LiveConfig::Absent,
            version: None,
        };
        let docker = RuntimeKind::Docker.runtime();
        let uses_systemd = || docker.uses_systemd_cgroups(&files, &view).unwrap();
        assert!(!uses_systemd());
        files.put(
            "/lib/systemd/system/docker.service",
            "[Service]\nExecStart=/usr/bin/dockerd --exec-opt native.cgroupdriver=systemd\n",
        );
        assert!(uses_systemd());
    }

    #[test]
    fn unit_flags_are_read_from_the_last_command_line() {
        let files = FakeFiles::new();
        files.put(
            "/lib/systemd/system/docker.service",
            "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n",
        );
        files.put(
            "/etc/default/docker",
            "# a comment\nDOCKER_OPTS=\"--storage-driver=overlay2 --add-runtime nvidia=/usr/bin/n\"\n",
        );
        let found = || {
            let flags = unit_flags(&files, "docker.service").unwrap();
            let told = |flag: &UnitFlag| format!("{}={}", flag.key, flag.value);
            flags.iter().map(told).collect::<Vec<_>>()
        };
        assert_eq!(
            found(),
            [
                "hosts=fd://",
                "storage-driver=overlay2",
                "runtimes=nvidia=/usr/bin/n"
            ]
        );
        files.put(
            "/etc/systemd/system/docker.service.d/override.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd \\\n  -D -l warn \\\n  --exec-opt=\"native.cgroupdriver=systemd\"\n",
        );
        assert_eq!(
            found(),
            [
                "debug=",
                "log-level=warn",
                "exec-opts=native.cgroupdriver=systemd"
            ]
        );
        files.put(
            "/etc/systemd/system/docker.service.d/short.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd -Hfd:// -D\n",
        );
        assert_eq!(found(), ["hosts=fd://", "debug="]);
        // A wrapper may use other flags.
        files.put(
            "/etc/systemd/system/docker.service.d/zz.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/snap run docker.dockerd -D\n",
        );
        assert!(found().is_empty());
    }

    #[test]
    fn key_in_both_file_and_flags_is_a_conflict() {
        let flag = |key: &str, value: &str| UnitFlag {
            key: key.to_owned(),
            value: value.to_owned(),
            path: "/etc/systemd/system/docker.service.d/override.conf".into(),
        };
        let flags = [
            flag("runtimes", "nvidia=/usr/bin/n"),
            flag("hosts", "fd://"),
        ];
        for (text, key) in [
            (r#"{"hosts": ["fd://"]}"#, Some("hosts")),
            (r#"{"runtimes": {"nvidia": {"path": "n"}}}"#, None),
            (r#"{"proxies": {"hosts": "x"}}"#, Some("hosts")),
            (r#"{"log-opts": {"hosts": "x"}}"#, None),
            ("{}", None),
            ("{", None),
        ] {
            let found = conflict(text, &flags).map(|flag| flag.key.as_str());
            assert_eq!(found, key, "{text}");
        }
        let named = runtimes(r#"{"runtimes": {"kata": {"runtimeType": "x"}}}"#, &flags);
        assert_eq!(named["kata"], None);
        assert_eq!(named["nvidia"].as_deref(), Some("/usr/bin/n"));
        let default = |text: &str, flags: &[UnitFlag]| default_runtime(text, flags);
        assert_eq!(
            default("{}", &[flag("default-runtime", "n")]).as_deref(),
            Some("n")
        );
        assert_eq!(
            default(r#"{"default-runtime": "m"}"#, &[]).as_deref(),
            Some("m")
        );
    }

    #[test]
    fn mistyped_keys_are_distinguished_from_new_keys() {
        for (text, meant) in [
            (r#"{"default_runtime": "nvidia"}"#, Some("default-runtime")),
            (r#"{"default-runtimes": "nvidia"}"#, Some("default-runtime")),
            (r#"{"Debug": true}"#, Some("debug")),
            // A key with the name of a flag is ignored, so it is not an error.
            (r#"{"label": ["a=b"]}"#, None),
            (r#"{"insecure-registries": [], "a-key-of-2030": 1}"#, None),
        ] {
            let found = mistyped(text).map(|(_, meant)| meant);
            assert_eq!(found, meant, "{text}");
        }
    }

    #[test]
    fn unit_flags_are_validated_together_with_the_file() {
        let command = "/usr/sbin/dockerd -H fd:// --default-runtime=runc $DOCKER_OPTS";
        let query = validate(&flags(command), "/etc/docker/daemon.json".into());
        assert_eq!(
            query.cmd().line(),
            "dockerd --validate --config-file=/etc/docker/daemon.json -H fd:// --default-runtime=runc"
        );
        // Quoted arguments and variables cannot be split reliably.
        for doubtful in [
            "/usr/bin/dockerd --label rack=a b -D",
            "/usr/bin/dockerd -H $HOST -D",
            "/usr/bin/dockerd --data-root $ROOT",
            "/usr/bin/dockerd --data-root=$ROOT",
            "/usr/bin/env X=1 dockerd -D",
            "",
        ] {
            assert!(flags(doubtful).is_empty(), "{doubtful}");
        }
    }

    #[test]
    fn newer_daemons_are_lenient() {
        for (version, lenient) in [
            ("\"20.10.24+dfsg1\"", false),
            ("\"23.0.0\"", true),
            ("\"28.5.2\"", true),
            ("null", false),
        ] {
            let text = format!(r#"{{"ServerVersion":{version}}}"#);
            assert_eq!(parse_info(&text).expect("an answer").is_lenient(), lenient);
        }
    }

    #[test]
    fn runtimes_are_parsed() {
        let info = parse_info(
            r#"{"ID":"x","Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"runc":{"path":"runc"}},
               "DefaultRuntime":"runc","CgroupDriver":"systemd","ServerVersion":"20.10.24+dfsg1"}"#,
        )
        .expect("an answer");
        assert_eq!(
            info.runtimes.keys().collect::<Vec<_>>(),
            ["io.containerd.runc.v2", "runc"]
        );
        assert_eq!(info.default_runtime.as_deref(), Some("runc"));
        assert!(info.server_errors.is_empty());
    }

    #[test]
    fn unavailable_daemon_is_reported() {
        let info =
            parse_info(r#"{"ID":"","ServerErrors":["Cannot connect to the Docker daemon"]}"#)
                .expect("an answer");
        assert_eq!(info.server_errors, ["Cannot connect to the Docker daemon"]);
        assert!(parse_info("docker: not found").is_err());
    }

    #[test]
    fn unit_line_that_sets_another_file_is_found() {
        const UNIT: &str = "/usr/lib/systemd/system/docker.service";
        const SITE: &str = "/etc/systemd/system/docker.service.d/site.conf";
        let own = "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n";
        let other =
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --config-file /x.json -H fd://\n";
        let found = |put: &[(&str, &str)]| {
            let files = crate::host::fake::FakeFiles::new();
            for (path, content) in put {
                files.put(path, *content);
            }
            let found = super::other_config(&files, "docker.service", "/etc/docker/daemon.json");
            found
                .unwrap()
                .map(|found| format!("{} {}:{}", found.config, found.path, found.line))
        };
        let of_site = Some(format!("/x.json {SITE}:3"));
        assert_eq!(found(&[(UNIT, own), (SITE, other)]), of_site);
        assert_eq!(found(&[(SITE, other)]), of_site);
        assert_eq!(found(&[(UNIT, other), (SITE, own)]), None);
        let usual = own.replace("-H", "--config-file=/etc/docker/daemon.json -H");
        assert_eq!(found(&[(UNIT, &usual)]), None);
        let options = "# --config-file=/y\nDOCKER_OPTS=\"--config-file=/x.json --debug\"\n";
        assert_eq!(
            found(&[(UNIT, own), ("/etc/default/docker", options)]),
            Some("/x.json /etc/default/docker:2".to_owned())
        );
    }
}
