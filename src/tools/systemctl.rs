//! `systemctl`: the state of units, and what changes it.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// How long starting or stopping a unit may take: above systemd's own default of 90 s, so that
/// its own verdict arrives first.
const UNIT_DEADLINE: Duration = Duration::from_secs(180);

/// Units that take longer: above the `TimeoutStartSec=720` of the unit.
const SLOW: [(&str, Duration); 1] = [("nvidia-fabricmanager.service", Duration::from_secs(750))];

/// Exists where systemd runs, sd_booted(3). A container of an application has none.
pub const BOOTED: &str = "/run/systemd/system";

/// Where files of units are, of those that a vendor or an administrator installs. systemd.unit(5).
pub const FOLDERS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Where packages have their units. Source: systemd.unit(5); `/lib` may be another folder than `/usr/lib`.
pub const OF_PACKAGES: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];

/// The file of a unit and its drop-ins, in the order in which systemd reads them, systemd.unit(5).
///
/// # Errors
/// If a directory cannot be listed.
pub fn files_of(files: &dyn ReadFiles, unit: &str) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let [etc, vendor @ ..] = FOLDERS;
    let folders = [&[etc, "/run/systemd/system"], &vendor[..]].concat();
    let mut paths = Vec::new();
    for folder in &folders {
        let path = Utf8Path::new(folder).join(unit);
        if files.exists(&path)? {
            paths.push(path);
            break;
        }
    }
    let mut drop_ins = BTreeMap::new();
    for folder in &folders {
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

/// The values of a setting in the files of a unit, which systemd will read at the next boot. An empty value resets the
/// list, systemd.syntax(7).
///
/// # Errors
/// If an existing file cannot be read.
pub fn settings(files: &dyn ReadFiles, unit: &str, key: &str) -> Result<Vec<String>, FilesError> {
    let mut values = Vec::new();
    for path in files_of(files, unit)? {
        let text = files.read_lossy(&path)?.unwrap_or_default();
        // A backslash at the end of a line continues it.
        let text = text.replace("\\\n", " ");
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with(['#', ';']))
        {
            match line.split_once('=') {
                Some((name, value)) if name.trim() == key && value.trim().is_empty() => {
                    values.clear();
                }
                Some((name, value)) if name.trim() == key => values.push(value.trim().to_owned()),
                _ => {}
            }
        }
    }
    Ok(values)
}

/// Where an administrator has a unit of this name.
#[must_use]
pub fn own_file(unit: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/systemd/system/{unit}"))
}

/// A path as a word of `ExecStart`, by systemd.service(5): quotes, and `%` and `$` doubled.
#[must_use]
pub fn quoted(path: &Utf8Path) -> String {
    let text = path
        .as_str()
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    if text.contains(char::is_whitespace) {
        format!("\"{text}\"")
    } else {
        text
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitState {
    /// `loaded`, `not-found`, `masked`, ….
    pub load: String,
    /// `active`, `inactive`, `failed`, `activating`, ….
    pub active: String,
    /// `enabled`, `disabled`, `static`, `masked`, …; empty where it has no file.
    pub file: String,
    /// Why it last ended: `success`, `exit-code`, `start-limit-hit`, ….
    pub result: String,
}

/// What a unit does where no systemd runs.
const NOT_BOOTED: &str = "not started, because no systemd runs here";

impl UnitState {
    /// The state of a unit where no systemd runs, as in the chroot of an image's builder; `file` is the answer to
    /// [`is_enabled`].
    #[must_use]
    pub fn not_booted(load: &str, file: &str) -> Self {
        Self {
            load: load.to_owned(),
            active: NOT_BOOTED.to_owned(),
            file: file.trim().to_owned(),
            result: String::new(),
        }
    }

    /// Whether no systemd runs that could start it.
    #[must_use]
    pub fn is_not_booted(&self) -> bool {
        self.active == NOT_BOOTED
    }

    /// Whether it is enabled and runs; where no systemd runs, whether the next boot starts it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_enabled() && (self.is_active() || self.is_not_booted())
    }

    /// Whether the unit exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.load != "not-found"
    }

    /// Whether systemd can start it: it exists, is not masked, and its file has no error.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.load == "loaded"
    }

    /// Whether it starts at boot, by itself or by another unit (`static`, `indirect`, …).
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        matches!(
            self.file.as_str(),
            "enabled" | "static" | "indirect" | "alias" | "generated"
        )
    }

    /// Whether a start or a stop of it is under way that has not failed before.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        matches!(self.active.as_str(), "activating" | "deactivating") && self.result == "success"
    }

    /// Whether it runs now.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading")
    }
}

impl std::fmt::Display for UnitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.exists() {
            return f.write_str("not installed");
        }
        let file = if self.file.is_empty() {
            "no unit file"
        } else {
            &self.file
        };
        write!(f, "{file} and {}", self.active)?;
        if self.active == "failed" {
            write!(f, " ({})", self.result)?;
        }
        Ok(())
    }
}

/// Asks for a unit's state. `systemctl(1)`: "show [...] is intended to be used whenever
/// computer-parsable output is required"; it exits with 0 for units that do not exist, too.
#[must_use]
pub fn show(unit: &str) -> Query {
    Query::new(
        "systemctl",
        [
            "show",
            "--property=LoadState,ActiveState,UnitFileState,Result",
            "--",
            unit,
        ],
    )
}

/// Reads the answer to [`show`]; `None` when it is not one.
#[must_use]
pub fn parse_show(text: &str) -> Option<UnitState> {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(str::to_owned)
    };
    Some(UnitState {
        load: value("LoadState")?,
        active: value("ActiveState")?,
        file: value("UnitFileState")?,
        result: value("Result").unwrap_or_default(),
    })
}

/// Asks whether a unit starts at boot. systemctl reads files for it, so it answers without systemd, too.
#[must_use]
pub fn is_enabled(unit: &str) -> Query {
    Query::new("systemctl", ["is-enabled", "--", unit])
}

/// What a unit that runs once is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Once {
    /// It runs, is about to start, or is started again after a pause.
    Busy,
    /// It has failed.
    Failed {
        /// The exit status of its process; `None` if the process was killed or never began.
        code: Option<u8>,
        /// When, as time since the machine booted.
        at: Duration,
    },
    /// Neither; also if it does not exist.
    Idle,
}

/// Asks for it.
#[must_use]
pub fn once(unit: &str) -> Query {
    let properties =
        "--property=ActiveState,Job,Result,ExecMainStatus,InactiveEnterTimestampMonotonic";
    Query::new("systemctl", ["show", properties, "--", unit])
}

/// Reads the answer to [`once`]; `None` when it is not one. `Job` is there while one is queued:
/// `org.freedesktop.systemd1(5)`, and systemctl leaves it out where its number is 0.
#[must_use]
pub fn parse_once(text: &str) -> Option<Once> {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    let queued = value("Job").is_some_and(|job| !matches!(job, "" | "0"));
    Some(match value("ActiveState")? {
        _ if queued => Once::Busy,
        "inactive" => Once::Idle,
        "failed" => {
            let status = value("ExecMainStatus").filter(|_| value("Result") == Some("exit-code"));
            let microseconds = value("InactiveEnterTimestampMonotonic")?.parse().ok()?;
            Once::Failed {
                code: status.and_then(|status| status.parse().ok()),
                at: Duration::from_micros(microseconds),
            }
        }
        _ => Once::Busy,
    })
}

/// Asks for the command that a unit runs, as systemd knows it from the unit file and all drop-ins.
#[must_use]
pub fn command(unit: &str) -> Query {
    Query::new("systemctl", ["show", "--property=ExecStart", "--", unit])
}

/// Reads the answer to [`command`]: program and arguments; `None` if the unit has no command, or
/// several. `org.freedesktop.systemd1(5)` describes the fields.
#[must_use]
pub fn parse_command(text: &str) -> Option<&str> {
    let mut commands = text
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart={"));
    let only = commands.next().filter(|_| commands.next().is_none())?;
    let (_, rest) = only.split_once(" argv[]=")?;
    Some(rest.split_once(" ; ignore_errors=")?.0)
}

/// The settings by which a unit sees other files than the machine, systemd.exec(5).
const SANDBOX: &str = "--property=ProtectSystem,PrivateDevices,ReadOnlyPaths,InaccessiblePaths,TemporaryFileSystem,\
                       ProtectKernelModules,RootDirectory,RootImage";

/// Queries them.
#[must_use]
pub fn sandbox(unit: &str) -> Query {
    Query::new("systemctl", ["show", SANDBOX, "--", unit])
}

/// Reads the answer to [`sandbox`]: the settings that differ from their defaults.
#[must_use]
pub fn parse_sandbox(text: &str) -> Vec<&str> {
    let is_set = |line: &&str| {
        (line.split_once('=')).is_some_and(|(_, value)| !matches!(value.trim(), "" | "no"))
    };
    text.lines().map(str::trim).filter(is_set).collect()
}

/// Asks what ends with a unit.
#[must_use]
pub fn kill_mode(unit: &str) -> Query {
    Query::new("systemctl", ["show", "--property=KillMode", "--", unit])
}

/// Reads the answer to [`kill_mode`]: whether the unit's main process alone ends, and not what it has started. systemd.kill(5).
#[must_use]
pub fn parse_spares_children(text: &str) -> Option<bool> {
    let mode = (text.lines()).find_map(|line| line.strip_prefix("KillMode="))?;
    Some(spares_children(mode))
}

/// The same of the value of `KillMode`.
#[must_use]
pub fn spares_children(kill_mode: &str) -> bool {
    kill_mode == "process"
}

/// Where an administrator, and this program, add drop-ins to a unit.
#[must_use]
pub fn drop_in_folder(unit: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/systemd/system/{unit}.d"))
}

/// Asks whether files of a unit changed since systemd read them, and which drop-ins it has read. A
/// unit that systemd does not know yet is looked up on the disk when it is asked for by name, so it
/// needs no reload.
#[must_use]
pub fn needs_reload(unit: &str) -> Query {
    Query::new(
        "systemctl",
        [
            "show",
            "--property=NeedDaemonReload,DropInPaths",
            "--",
            unit,
        ],
    )
}

/// Reads the answer to [`needs_reload`]. `drop_ins` are those on the disk. For a unit that it knows,
/// systemd does not notice a folder of drop-ins that is new: it looks for them in a list of paths
/// from its last look (`unit_need_daemon_reload` and `unit_path_cache`; seen with systemd 252).
#[must_use]
pub fn parse_needs_reload(text: &str, drop_ins: &[Utf8PathBuf]) -> bool {
    let changed = text
        .lines()
        .any(|line| line.trim() == "NeedDaemonReload=yes");
    let read: Vec<&str> = (text.lines())
        .filter_map(|line| line.strip_prefix("DropInPaths="))
        .flat_map(str::split_whitespace)
        .collect();
    changed || drop_ins.iter().any(|one| !read.contains(&one.as_str()))
}

/// A verb on a unit: `enable`, `disable`, `start`, `stop`, `restart`, `reset-failed`, `mask`, ….
#[must_use]
pub fn act(verb: &'static str, unit: &str) -> Cmd {
    let slow = SLOW.iter().find(|(name, _)| *name == unit);
    let deadline = slow.map_or(UNIT_DEADLINE, |(_, deadline)| *deadline);
    Cmd::new("systemctl", [verb, "--", unit]).deadline(deadline)
}

/// Starts a unit and does not wait for it.
#[must_use]
pub fn start_no_block(unit: &str) -> Cmd {
    Cmd::new("systemctl", ["start", "--no-block", "--", unit])
}

/// Starts a program as a unit of its own, and does not wait for it. systemd-run(1).
#[must_use]
pub fn run(unit: &'static str, properties: &[&'static str], command: &[String]) -> Cmd {
    let properties = properties.iter().map(|one| format!("--property={one}"));
    let options = ["--no-block".to_owned(), format!("--unit={unit}")];
    let args = (options.into_iter().chain(properties))
        .chain(["--".to_owned()])
        .chain(command.iter().cloned());
    Cmd::new("systemd-run", args)
}

/// Asks for the state of the whole system. `systemctl(1)`: it prints `stopping` while the manager
/// shuts down; the exit status is 0 for `running` only.
#[must_use]
pub fn is_system_running() -> Query {
    Query::new("systemctl", ["is-system-running"]).deadline(Duration::from_secs(10))
}

/// Makes systemd read unit files again.
#[must_use]
pub fn daemon_reload() -> Cmd {
    Cmd::new("systemctl", ["daemon-reload"])
}

/// The last lines that a unit wrote to the journal, to say why it failed.
#[must_use]
pub fn last_words(unit: &str) -> Query {
    let unit = format!("--unit={unit}");
    Query::new(
        "journalctl",
        [unit.as_str(), "--lines=20", "--no-pager", "--output=cat"],
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        Once, drop_in_folder, parse_command, parse_needs_reload, parse_once, parse_sandbox,
        parse_show, parse_spares_children, settings,
    };
    use crate::host::fake::FakeFiles;

    #[test]
    fn settings_are_read_from_the_unit_file_and_its_drop_ins() {
        let files = FakeFiles::new();
        let own =
            "[Service]\n# ExecStart=/no\nExecStart=/usr/bin/d \\\n  -H fd://\nKillMode=process\n";
        files.put("/usr/lib/systemd/system/d.service", own);
        let read = |key| settings(&files, "d.service", key).expect("readable");
        assert_eq!(read("ExecStart"), ["/usr/bin/d    -H fd://"]);
        assert_eq!(read("KillMode"), ["process"]);
        // The drop-in of an administrator replaces that of the vendor with the same name.
        let (etc, usr) = ["/etc", "/usr/lib"]
            .map(|folder| format!("{folder}/systemd/system/d.service.d/10.conf"))
            .into();
        files.put(&usr, "[Service]\nExecStart=\nExecStart=/vendor\n");
        assert_eq!(read("ExecStart"), ["/vendor"]);
        files.put(&etc, "[Service]\nExecStart=\nExecStart=/a\nExecStart=/b\n");
        assert_eq!(read("ExecStart"), ["/a", "/b"]);
        assert!(
            settings(&files, "other.service", "ExecStart")
                .expect("readable")
                .is_empty()
        );
    }

    #[test]
    fn the_sandbox_of_a_unit_is_what_differs_from_the_defaults() {
        let text =
            "ProtectSystem=strict\nPrivateDevices=yes\nReadOnlyPaths=\nProtectKernelModules=no\n";
        assert_eq!(
            parse_sandbox(text),
            ["ProtectSystem=strict", "PrivateDevices=yes"]
        );
        assert!(parse_sandbox("ProtectSystem=no\n").is_empty());
    }

    #[test]
    fn what_ends_with_a_unit() {
        for (text, spares) in [
            ("KillMode=process\n", Some(true)),
            // Not even the main process ends.
            ("KillMode=none\n", Some(false)),
            ("KillMode=control-group\n", Some(false)),
            ("KillMode=mixed\n", Some(false)),
            ("", None),
        ] {
            assert_eq!(parse_spares_children(text), spares, "{text}");
        }
    }

    #[test]
    fn what_runs_once_is_busy_until_nothing_of_it_is_left_to_do() {
        for (text, expected) in rows! {
            "ActiveState=active\nResult=success\nExecMainStatus=0\n", Once::Busy;
            // Between two attempts.
            "ActiveState=activating\nResult=exit-code\nExecMainStatus=1\n", Once::Busy;
            // At boot, until the network is up.
            "Job=312\nActiveState=inactive\nResult=success\nExecMainStatus=0\n", Once::Busy;
            "ActiveState=inactive\nResult=success\nExecMainStatus=0\n", Once::Idle;
            "ActiveState=failed\nResult=exit-code\nExecMainStatus=6\n\
             InactiveEnterTimestampMonotonic=61500000\n",
                Once::Failed { code: Some(6), at: Duration::from_millis(61_500) };
            // The number is that of a signal.
            "ActiveState=failed\nResult=signal\nExecMainStatus=9\n\
             InactiveEnterTimestampMonotonic=7\n",
                Once::Failed { code: None, at: Duration::from_micros(7) };
        } {
            assert_eq!(parse_once(text), Some(expected), "{text}");
        }
        assert_eq!(parse_once("Failed to connect to bus"), None);
    }

    #[test]
    fn a_reload_is_asked_for_in_so_many_words() {
        assert!(parse_needs_reload("NeedDaemonReload=yes\n", &[]));
        assert!(!parse_needs_reload("NeedDaemonReload=no\n", &[]));
        assert!(!parse_needs_reload("", &[]));
    }

    #[test]
    fn a_drop_in_that_systemd_has_not_read_needs_a_reload() {
        let ours = [drop_in_folder("a.service").join("50-gpu-bootstrap.conf")];
        let text = "NeedDaemonReload=no\nDropInPaths=/usr/lib/systemd/system/a.service.d/10.conf\n";
        assert!(parse_needs_reload(text, &ours));
        let text = format!(
            "NeedDaemonReload=no\nDropInPaths=/usr/lib/x.conf {}\n",
            ours[0]
        );
        assert!(!parse_needs_reload(&text, &ours));
    }

    #[test]
    fn the_command_of_a_unit_is_read() {
        let one = "ExecStart={ path=/usr/bin/nvidia-persistenced ; \
                   argv[]=/usr/bin/nvidia-persistenced --user nvpd --no-persistence-mode ; \
                   ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; \
                   status=0/0 }\n";
        let command = "/usr/bin/nvidia-persistenced --user nvpd --no-persistence-mode";
        assert_eq!(parse_command(one), Some(command));
        assert_eq!(parse_command(&one.repeat(2)), None);
        assert_eq!(parse_command(""), None);
    }

    #[test]
    fn states_are_read_and_told() {
        for (text, told, enabled, active) in rows! {
            "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n",
                "enabled and active", true, true;
            "Result=exit-code\nLoadState=loaded\nActiveState=failed\nUnitFileState=disabled\n",
                "disabled and failed (exit-code)", false, false;
            "Result=success\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
                "not installed", false, false;
        } {
            let state = parse_show(text).expect("a state");
            assert_eq!(state.to_string(), told);
            assert_eq!(
                (state.is_enabled(), state.is_active()),
                (enabled, active),
                "{told}"
            );
        }
        assert_eq!(parse_show("Failed to connect to bus"), None);
    }
}
