//! Docker's client.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use serde_json::{Value, json};

use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    model::document::{Document, Setting},
};

/// Docker's unit, whose name each distribution keeps.
pub const UNIT: &str = "docker.service";

/// Its default bridge. Source: Docker, "Bridge network driver".
pub const BRIDGE: &str = "docker0";

/// What the daemon says about itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Info {
    /// Runtimes by name.
    #[serde(default)]
    pub runtimes: BTreeMap<String, serde_json::Value>,
    /// The default runtime.
    pub default_runtime: Option<String>,
    /// The daemon's version.
    pub server_version: Option<String>,
    /// Whether containers keep running when the daemon stops.
    #[serde(default)]
    pub live_restore_enabled: bool,
    /// The folders from which it takes CDI specifications; none where it does not use them.
    #[serde(default, rename = "CDISpecDirs")]
    pub cdi_folders: Option<Vec<String>>,
    /// Why the daemon could not be asked. The client prints a document even then.
    #[serde(default)]
    pub server_errors: Vec<String>,
}

/// Asks the daemon about itself, as JSON.
#[must_use]
pub fn info() -> Query {
    Query::new("docker", ["info", "--format={{json .}}"])
}

/// Asks the daemon's program for its version.
#[must_use]
pub fn daemon_version() -> Query {
    Query::new("dockerd", ["--version"])
}

/// The first Docker that can check a configuration file without starting (moby/moby#42393).
const VALIDATES: u32 = 23;

/// Whether the daemon's program can check a file, by the answer to [`daemon_version`].
#[must_use]
pub fn can_validate(text: &str) -> bool {
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    numbers(version).is_some_and(|(major, _)| major >= VALIDATES)
}

/// Checks a configuration file. The status is not 0 where the daemon would not start with it and with these
/// flags.
#[must_use]
pub fn validate(flags: &[String], path: &Utf8Path) -> Query {
    let mut args = vec!["--validate".to_owned(), format!("--config-file={path}")];
    args.extend(flags.iter().cloned());
    Query::new("dockerd", args)
}

/// The flags with which a unit starts the daemon, by its command line as systemd prints it: without quotes.
/// Variables are left out: their values are in files that the unit names. No flag is known where another
/// program starts the daemon, or where a word could be a part of another one.
#[must_use]
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

/// The line by which somebody makes the daemon read another configuration file than `daemon.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherConfig {
    /// The file that the daemon reads.
    pub config: String,
    /// Where that is said.
    pub path: Utf8PathBuf,
    /// The number of the line, from 1.
    pub line: usize,
}

/// Whose options the units of Debian and of RHEL's relatives append.
const OPTIONS: [&str; 2] = ["/etc/default/docker", "/etc/sysconfig/docker"];

/// What a unit and its drop-ins say about the daemon's configuration file; `None` where it is the usual one.
///
/// # Errors
/// When an existing file cannot be read.
pub fn other_config(
    files: &dyn ReadFiles,
    unit: &str,
    usual: &str,
) -> Result<Option<OtherConfig>, FilesError> {
    let mut paths = unit_files(files, unit)?;
    paths.extend(OPTIONS.map(Utf8PathBuf::from));
    let mut found = None;
    for path in paths {
        let text = files.read(&path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        for (at, line) in text.lines().enumerate() {
            match config_in(line) {
                Some(config) => {
                    found = Some(OtherConfig {
                        config: config.to_owned(),
                        path: path.clone(),
                        line: at + 1,
                    });
                }
                // A later command line takes the place of an earlier one.
                None if line.trim_start().starts_with("ExecStart=") => found = None,
                None => {}
            }
        }
    }
    Ok(found.filter(|found| found.config != usual))
}

/// The value of the option in a line that is no comment.
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

/// The file of a unit and its drop-ins, in the order in which systemd reads them, systemd.unit(5).
fn unit_files(files: &dyn ReadFiles, unit: &str) -> Result<Vec<Utf8PathBuf>, FilesError> {
    const FOLDERS: [&str; 5] = [
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/local/lib/systemd/system",
        "/usr/lib/systemd/system",
        "/lib/systemd/system",
    ];
    let mut paths = Vec::new();
    for folder in FOLDERS {
        let path = Utf8Path::new(folder).join(unit);
        if files.exists(&path)? {
            paths.push(path);
            break;
        }
    }
    let mut drop_ins = BTreeMap::new();
    for folder in FOLDERS {
        let folder = Utf8Path::new(folder).join(format!("{unit}.d"));
        for name in files.list(&folder)? {
            if name.ends_with(".conf") {
                let path = folder.join(&name);
                drop_ins.entry(name).or_insert(path);
            }
        }
    }
    paths.extend(drop_ins.into_values());
    Ok(paths)
}

/// Major and minor number of a version such as `26.1.5+dfsg1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Asks for the names of the running containers, one per line.
#[must_use]
pub fn running() -> Query {
    Query::new("docker", ["ps", "--format={{.Names}}"])
}

/// Asks for an image. The status is not 0 where the daemon does not have it.
#[must_use]
pub fn inspect_image(image: &str) -> Query {
    Query::new(
        "docker",
        ["image", "inspect", "--format={{.Id}}", "--", image],
    )
}

/// Pulls an image.
#[must_use]
pub fn pull(image: &str) -> Cmd {
    Cmd::new("docker", ["pull", "--", image])
}

/// Removes an image.
#[must_use]
pub fn remove_image(image: &str) -> Cmd {
    Cmd::new("docker", ["image", "rm", "--force", "--", image]).deadline(Duration::from_secs(120))
}

/// Ends and removes a container; it is no error if there is none.
#[must_use]
pub fn remove_container(name: &str) -> Cmd {
    Cmd::new("docker", ["rm", "--force", "--", name])
}

/// Makes an image of one layer, from an archive.
#[must_use]
pub fn import(archive: &Utf8Path, image: &str) -> Cmd {
    Cmd::new("docker", ["import", "--", archive.as_str(), image])
}

/// Reads the answer to [`info`].
///
/// # Errors
/// Where and why it is not such a document.
pub fn parse_info(text: &str) -> Result<Info, String> {
    serde_json::from_str(text.trim()).map_err(|error| error.to_string())
}

/// What is wrong with a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// Where and why it cannot be read.
    pub why: String,
    /// Docker from [`LENIENT`] on reads it all the same; `nvidia-ctk` does not.
    pub forgiven: bool,
}

/// The first Docker that treats an empty file as none and skips a byte order mark
/// (moby/moby, `daemon/config/config.go` of 20.10.24 and 23.0.0). `nvidia-ctk` decodes the bytes as
/// they are (NVIDIA/nvidia-container-toolkit, `pkg/config/engine/docker/option.go`).
pub const LENIENT: u32 = 23;

/// The byte order mark with which some editors on Windows begin a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Checks that the daemon's configuration file, `daemon.json`, can be read.
///
/// # Errors
/// Where and why it is not a JSON object.
pub fn check_config(text: &str) -> Result<(), Flaw> {
    let unmarked = text.strip_prefix(BYTE_ORDER_MARK);
    let forgiven = |why: &str| Flaw {
        why: why.to_owned(),
        forgiven: true,
    };
    let rest = unmarked.unwrap_or(text);
    if rest.trim().is_empty() {
        return Err(forgiven("it is empty"));
    }
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(rest).map_err(|error| {
        Flaw {
            why: error.to_string(),
            forgiven: false,
        }
    })?;
    match unmarked {
        Some(_) => Err(forgiven("it begins with a byte order mark")),
        None => Ok(()),
    }
}

impl Info {
    /// Whether the daemon forgives a [`Flaw`] that can be forgiven.
    #[must_use]
    pub fn is_lenient(&self) -> bool {
        self.numbers().is_some_and(|(major, _)| major >= LENIENT)
    }

    /// Whether the daemon knows CDI, but has to be told to use it: from 25.0 on it does, from 28.2 on
    /// by itself (<https://docs.docker.com/build/building/cdi/>, release notes of 28.2.0).
    #[must_use]
    pub fn needs_cdi(&self) -> bool {
        self.numbers()
            .is_some_and(|version| ((25, 0)..(28, 2)).contains(&version))
    }

    /// The programs that run containers, by runtime.
    #[must_use]
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

/// Where a Docker that is a snap is, and what it uses. What a snap that was removed has left counts for nothing.
const SNAP: [&str; 2] = ["/snap/docker", "/var/snap/docker/current"];

/// The configuration file of a Docker that is a snap (canonical/docker-snap).
pub const SNAP_CONFIG: &str = "/var/snap/docker/current/config/daemon.json";

/// What makes GPUs usable where Docker is a snap.
pub const SNAP_REMEDY: &str = "run `snap remove docker` and install Docker as a package; or configure the runtime in \
     `/var/snap/docker/current/config/daemon.json`, then run `snap restart docker`";

/// What shows that Docker is a snap; `None` if nothing does.
///
/// # Errors
/// When a folder cannot be read.
pub fn snap(files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
    for path in SNAP {
        if files.exists(Utf8Path::new(path))? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The default runtime that a configuration file names and does not configure. runc is built in, and so are
/// shims, whose names have dots.
#[must_use]
pub fn missing_default(text: &str) -> Option<String> {
    let file: Value = serde_json::from_str(text.trim_start_matches(BYTE_ORDER_MARK)).ok()?;
    let name = file.get("default-runtime")?.as_str()?;
    let is_there = name == "runc"
        || name.is_empty()
        || name.contains('.')
        || file
            .get("runtimes")
            .is_some_and(|all| all.get(name).is_some());
    (!is_there).then(|| name.to_owned())
}

/// The keys that make Docker know a runtime; those that the file has already are left out.
#[must_use]
pub fn settings(file: &Document, runtime: &Runtime<'_>) -> Vec<Setting> {
    let mut wanted = Vec::new();
    let mut want = |key: &[&str], value: Value| {
        wanted.push(Setting {
            key: key.iter().map(ToString::to_string).collect(),
            value: Some(value),
        });
    };
    if !runtime.kept {
        // As `nvidia-ctk` writes it.
        want(
            &["runtimes", runtime.name],
            json!({"args": [], "path": runtime.program}),
        );
    }
    if runtime.default {
        want(&["default-runtime"], json!(runtime.name));
    }
    let cdi = ["features".to_owned(), "cdi".to_owned()];
    // Who has switched it off has decided.
    if runtime.cdi && file.get(&cdi).is_none() {
        want(&["features", "cdi"], json!(true));
    }
    wanted.retain(|setting| file.get(&setting.key) != setting.value);
    wanted
}

/// A runtime that Docker has to know.
#[derive(Debug, Clone, Copy)]
pub struct Runtime<'a> {
    /// Its name.
    pub name: &'a str,
    /// The program that takes runc's place.
    pub program: &'a str,
    /// Whether the entry that there is stays as it is.
    pub kept: bool,
    /// Whether it has to be the default one.
    pub default: bool,
    /// Whether CDI has to be switched on.
    pub cdi: bool,
}

#[cfg(test)]
mod tests {
    use super::{check_config, flags, parse_info, validate};

    #[test]
    fn a_broken_configuration_is_told_with_its_place() {
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
            let flaw = check_config(text).expect_err("broken");
            assert!(flaw.why.contains(place), "{flaw:?}");
            assert_eq!(flaw.forgiven, forgiven, "{text}");
        }
    }

    #[test]
    fn the_flags_of_the_unit_are_validated_with_the_file() {
        let command = "/usr/sbin/dockerd -H fd:// --default-runtime=runc $DOCKER_OPTS";
        let query = validate(&flags(command), "/etc/docker/daemon.json".into());
        assert_eq!(
            query.cmd().line(),
            "dockerd --validate --config-file=/etc/docker/daemon.json -H fd:// --default-runtime=runc"
        );
        // The words of quoted arguments and of variables cannot be told apart.
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
    fn newer_daemons_forgive() {
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
    fn runtimes_are_read() {
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
    fn a_silent_daemon_is_told() {
        let info =
            parse_info(r#"{"ID":"","ServerErrors":["Cannot connect to the Docker daemon"]}"#)
                .expect("an answer");
        assert_eq!(info.server_errors, ["Cannot connect to the Docker daemon"]);
        assert!(parse_info("docker: not found").is_err());
    }

    #[test]
    fn who_makes_the_daemon_read_another_file_is_found() {
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
