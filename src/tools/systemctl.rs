//! Commands and parsers for `systemctl`: unit states, and the commands that change them.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// Time limit for starting or stopping a unit: more than the systemd default of 90 s, so that systemd reports a failure first.
const UNIT_DEADLINE: Duration = Duration::from_secs(180);

/// Time limits of slow units: more than `TimeoutStartSec=720` of the unit, so that systemd reports a failure first.
const SLOW: [(&str, Duration); 1] = [("nvidia-fabricmanager.service", Duration::from_secs(750))];

/// Exists if systemd is running, sd_booted(3). It does not exist in application containers.
pub const BOOTED: &str = "/run/systemd/system";

/// Directories of unit files that are installed by a vendor or an administrator. systemd.unit(5).
pub const DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Directories of unit files in packages. Source: systemd.unit(5). `/lib` may be a different directory from `/usr/lib`.
pub const OF_PACKAGES: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];

/// Returns the unit file and its drop-ins, in the order in which systemd reads them, systemd.unit(5).
///
/// # Errors
/// If a directory cannot be listed.
pub fn files_of(files: &dyn ReadFiles, unit: &str) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let [etc, vendor @ ..] = DIRECTORIES;
    let directories = [&[etc, "/run/systemd/system"], &vendor[..]].concat();
    let mut paths = Vec::new();
    for directory in &directories {
        let path = Utf8Path::new(directory).join(unit);
        if files.exists(&path)? {
            paths.push(path);
            break;
        }
    }
    let mut drop_ins = BTreeMap::new();
    for directory in &directories {
        let directory = Utf8Path::new(directory).join(format!("{unit}.d"));
        for name in files.list(&directory)? {
            if name.ends_with(".conf") {
                let path = directory.join(&name);
                drop_ins.entry(name).or_insert(path);
            }
        }
    }
    paths.extend(drop_ins.into_values());
    Ok(paths)
}

/// Returns the values of a setting in the files of a unit, which take effect at the next boot or `daemon-reload`. An empty
/// value resets the list, systemd.syntax(7).
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

/// Returns the path of a unit file that an administrator installs.
pub fn own_file(unit: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/systemd/system/{unit}"))
}

/// Formats a path as an argument of `ExecStart`, according to systemd.service(5): `%` and `$` are doubled, quotes and
/// backslashes are escaped, and a path with whitespace is quoted.
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
    /// `enabled`, `disabled`, `static`, `masked`, …. Empty if it has no file.
    pub file: String,
    /// The result of the last run: `success`, `exit-code`, `start-limit-hit`, ….
    pub result: String,
    /// Whether systemd has a job for it, which starts, stops or restarts it. Between the two halves of a restart, the unit is
    /// inactive and has a job.
    pub has_job: bool,
}

/// The state of a unit if systemd is not running.
const NOT_BOOTED: &str = "not started, because systemd is not running";

impl UnitState {
    /// The state of a unit if systemd is not running, for example in the chroot of an image builder. `file` is the output of
    /// [`is_enabled`].
    pub fn not_booted(load: &str, file: &str) -> Self {
        Self {
            load: load.to_owned(),
            active: NOT_BOOTED.to_owned(),
            file: file.trim().to_owned(),
            result: String::new(),
            has_job: false,
        }
    }

    /// Whether systemd is not running, so that the unit cannot be started.
    pub fn is_not_booted(&self) -> bool {
        self.active == NOT_BOOTED
    }

    /// Whether the unit is enabled and active. If systemd is not running, whether it starts at the next boot.
    pub fn is_up(&self) -> bool {
        self.is_enabled() && (self.is_active() || self.is_not_booted())
    }

    /// Whether the unit exists.
    pub fn exists(&self) -> bool {
        self.load != "not-found"
    }

    /// Whether it stays masked after a boot. systemctl(1): the mask of `mask --runtime` ends with the next boot.
    pub fn is_masked_for_good(&self) -> bool {
        self.load == "masked" && self.file != "masked-runtime"
    }

    /// Whether systemd can start it: the unit exists, is not masked, and its file is valid.
    pub fn is_loaded(&self) -> bool {
        self.load == "loaded"
    }

    /// Whether it starts at boot, also indirectly by another unit (`static`, `indirect`, …).
    pub fn is_enabled(&self) -> bool {
        matches!(
            self.file.as_str(),
            "enabled" | "static" | "indirect" | "alias" | "generated"
        )
    }

    /// Whether it is starting or stopping, without a previous failure.
    pub fn is_restarting(&self) -> bool {
        self.is_changing() && self.result == "success"
    }

    /// Whether it is starting or stopping.
    pub fn is_changing(&self) -> bool {
        self.has_job || matches!(self.active.as_str(), "activating" | "deactivating")
    }

    /// Whether it is running.
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
        if self.has_job {
            f.write_str(", with a queued job")?;
        }
        Ok(())
    }
}

/// Queries the state of a unit. `systemctl(1)`: "show [...] is intended to be used whenever computer-parsable output is
/// required". It also exits with 0 for units that do not exist.
pub fn show(unit: &str) -> Query {
    Query::new(
        "systemctl",
        [
            "show",
            "--property=LoadState,ActiveState,UnitFileState,Result,Job",
            "--",
            unit,
        ],
    )
}

/// Parses the output of [`show`]. `None` if it is invalid.
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
        has_job: has_job(text),
    })
}

/// Whether the output of `systemctl show` contains a job. `Job` is present while a job is queued or running
/// (`org.freedesktop.systemd1(5)`). systemctl omits it if its number is 0.
fn has_job(text: &str) -> bool {
    let job = text.lines().find_map(|line| line.strip_prefix("Job="));
    job.is_some_and(|job| !matches!(job, "" | "0"))
}

/// Queries whether a unit starts at boot. systemctl reads files for this, so it also works if systemd is not running.
pub fn is_enabled(unit: &str) -> Query {
    Query::new("systemctl", ["is-enabled", "--", unit])
}

/// The state of a oneshot unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneshotState {
    /// It is running, queued, or waiting for a restart.
    Busy,
    /// It has failed.
    Failed {
        /// The exit status of its process, or `None` if the process was killed or did not start.
        code: Option<u8>,
        /// The time of the failure since boot.
        at: Duration,
    },
    /// Neither busy nor failed, or it does not exist.
    Idle,
}

/// Queries the state of a oneshot unit.
pub fn once(unit: &str) -> Query {
    let properties =
        "--property=ActiveState,Job,Result,ExecMainStatus,InactiveEnterTimestampMonotonic";
    Query::new("systemctl", ["show", properties, "--", unit])
}

/// Parses the output of [`once`]. `None` if it is invalid.
pub fn parse_once(text: &str) -> Option<OneshotState> {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    Some(match value("ActiveState")? {
        _ if has_job(text) => OneshotState::Busy,
        "inactive" => OneshotState::Idle,
        "failed" => {
            let status = value("ExecMainStatus").filter(|_| value("Result") == Some("exit-code"));
            let microseconds = value("InactiveEnterTimestampMonotonic")?.parse().ok()?;
            OneshotState::Failed {
                code: status.and_then(|status| status.parse().ok()),
                at: Duration::from_micros(microseconds),
            }
        }
        _ => OneshotState::Busy,
    })
}

/// Queries the command of a unit that systemd has read from the unit file and all drop-ins.
pub fn command(unit: &str) -> Query {
    Query::new("systemctl", ["show", "--property=ExecStart", "--", unit])
}

/// Parses the output of [`command`] and returns program and arguments, or `None` if the unit has no command or several.
/// `org.freedesktop.systemd1(5)` describes the fields.
pub fn parse_command(text: &str) -> Option<&str> {
    let mut commands = text
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart={"));
    let only = commands.next().filter(|_| commands.next().is_none())?;
    let (_, rest) = only.split_once(" argv[]=")?;
    Some(rest.split_once(" ; ignore_errors=")?.0)
}

/// The sandboxing settings that hide or change files of the machine for a unit, systemd.exec(5).
const SANDBOX: &str = "--property=ProtectSystem,PrivateDevices,ReadOnlyPaths,InaccessiblePaths,TemporaryFileSystem,\
                       ProtectKernelModules,RootDirectory,RootImage";

/// Queries the sandboxing settings of a unit.
pub fn sandbox(unit: &str) -> Query {
    Query::new("systemctl", ["show", SANDBOX, "--", unit])
}

/// Parses the output of [`sandbox`] and returns the settings that differ from their defaults.
pub fn parse_sandbox(text: &str) -> Vec<&str> {
    let is_set = |line: &&str| {
        (line.split_once('=')).is_some_and(|(_, value)| !matches!(value.trim(), "" | "no"))
    };
    text.lines().map(str::trim).filter(is_set).collect()
}

/// Queries which processes of a unit are killed when it stops.
pub fn kill_mode(unit: &str) -> Query {
    Query::new("systemctl", ["show", "--property=KillMode", "--", unit])
}

/// Parses the output of [`kill_mode`]. Returns whether stopping the unit kills only its main process and not its child
/// processes. systemd.kill(5).
pub fn parse_spares_children(text: &str) -> Option<bool> {
    let mode = (text.lines()).find_map(|line| line.strip_prefix("KillMode="))?;
    Some(spares_children(mode))
}

/// Whether stopping a unit with this value of `KillMode` kills only its main process and not its child processes.
pub fn spares_children(kill_mode: &str) -> bool {
    kill_mode == "process"
}

/// Returns the directory for drop-ins of an administrator or of gpu-bootstrap.
pub fn drop_in_directory(unit: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/systemd/system/{unit}.d"))
}

/// Queries whether files of a unit changed since systemd read them, and which drop-ins it has read. A unit that is not loaded
/// needs no reload, because systemd reads its files when it is queried by name.
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

/// Parses the output of [`needs_reload`]. `drop_ins` are the drop-ins on disk. For a loaded unit, systemd does not detect a new
/// drop-in directory, because it searches a cached list of paths (`unit_need_daemon_reload` and `unit_path_cache`, seen with
/// systemd 252).
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

/// Runs a command on a unit: `enable`, `disable`, `start`, `stop`, `restart`, `reset-failed`, `mask`, ….
pub fn act(verb: &'static str, unit: &str) -> Cmd {
    let slow = SLOW.iter().find(|(name, _)| *name == unit);
    let deadline = slow.map_or(UNIT_DEADLINE, |(_, deadline)| *deadline);
    Cmd::new("systemctl", [verb, "--", unit]).deadline(deadline)
}

/// Starts a unit without waiting for it.
pub fn start_no_block(unit: &str) -> Cmd {
    Cmd::new("systemctl", ["start", "--no-block", "--", unit])
}

/// Starts a program as a separate unit without waiting for it. systemd-run(1).
pub fn run(unit: &'static str, properties: &[&'static str], command: &[String]) -> Cmd {
    let properties = properties.iter().map(|one| format!("--property={one}"));
    let options = ["--no-block".to_owned(), format!("--unit={unit}")];
    let args = (options.into_iter().chain(properties))
        .chain(["--".to_owned()])
        .chain(command.iter().cloned());
    Cmd::new("systemd-run", args)
}

/// Queries the state of the system. `systemctl(1)`: it prints `stopping` while the manager shuts down. The exit status is 0
/// only for `running`.
pub fn is_system_running() -> Query {
    Query::new("systemctl", ["is-system-running"]).deadline(Duration::from_secs(10))
}

/// Queries the systemd version. Does not need a running systemd.
pub fn version() -> Query {
    Query::new("systemctl", ["--version"])
}

/// Parses the output of [`version`], whose first line is `systemd 252 (252.39-1~deb12u1)`. `None` if it is invalid.
pub fn parse_version(text: &str) -> Option<u32> {
    let version = text.strip_prefix("systemd ")?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Makes systemd reload unit files.
pub fn daemon_reload() -> Cmd {
    Cmd::new("systemctl", ["daemon-reload"])
}

/// Queries the last lines that a unit wrote to the journal, to explain its failure.
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
        OneshotState, drop_in_directory, parse_command, parse_needs_reload, parse_once,
        parse_sandbox, parse_show, parse_spares_children, settings,
    };
    use crate::host::fake::FakeFiles;

    #[test]
    fn settings_of_unit_file_and_drop_ins_are_read() {
        let files = FakeFiles::new();
        let own =
            "[Service]\n# ExecStart=/no\nExecStart=/usr/bin/d \\\n  -H fd://\nKillMode=process\n";
        files.put("/usr/lib/systemd/system/d.service", own);
        let read = |key| settings(&files, "d.service", key).expect("readable");
        assert_eq!(read("ExecStart"), ["/usr/bin/d    -H fd://"]);
        assert_eq!(read("KillMode"), ["process"]);
        // The administrator's drop-in replaces the vendor's drop-in with the same name.
        let (etc, usr) = ["/etc", "/usr/lib"]
            .map(|directory| format!("{directory}/systemd/system/d.service.d/10.conf"))
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
    fn sandbox_is_the_difference_from_the_defaults() {
        let text =
            "ProtectSystem=strict\nPrivateDevices=yes\nReadOnlyPaths=\nProtectKernelModules=no\n";
        assert_eq!(
            parse_sandbox(text),
            ["ProtectSystem=strict", "PrivateDevices=yes"]
        );
        assert!(parse_sandbox("ProtectSystem=no\n").is_empty());
    }

    #[test]
    fn kill_mode_decides_if_children_survive() {
        for (text, spares) in [
            ("KillMode=process\n", Some(true)),
            // Not even the main process is killed.
            ("KillMode=none\n", Some(false)),
            ("KillMode=control-group\n", Some(false)),
            ("KillMode=mixed\n", Some(false)),
            ("", None),
        ] {
            assert_eq!(parse_spares_children(text), spares, "{text}");
        }
    }

    #[test]
    fn oneshot_unit_is_busy_until_its_last_attempt() {
        for (text, expected) in rows! {
            "ActiveState=active\nResult=success\nExecMainStatus=0\n", OneshotState::Busy;
            // Between two attempts.
            "ActiveState=activating\nResult=exit-code\nExecMainStatus=1\n", OneshotState::Busy;
            // Waiting for the network during boot.
            "Job=312\nActiveState=inactive\nResult=success\nExecMainStatus=0\n", OneshotState::Busy;
            "ActiveState=inactive\nResult=success\nExecMainStatus=0\n", OneshotState::Idle;
            "ActiveState=failed\nResult=exit-code\nExecMainStatus=6\n\
             InactiveEnterTimestampMonotonic=61500000\n",
                OneshotState::Failed { code: Some(6), at: Duration::from_millis(61_500) };
            // With the result `signal`, `ExecMainStatus` is a signal number.
            "ActiveState=failed\nResult=signal\nExecMainStatus=9\n\
             InactiveEnterTimestampMonotonic=7\n",
                OneshotState::Failed { code: None, at: Duration::from_micros(7) };
        } {
            assert_eq!(parse_once(text), Some(expected), "{text}");
        }
        assert_eq!(parse_once("Failed to connect to bus"), None);
    }

    #[test]
    fn reload_is_needed_if_systemd_reports_it() {
        assert!(parse_needs_reload("NeedDaemonReload=yes\n", &[]));
        assert!(!parse_needs_reload("NeedDaemonReload=no\n", &[]));
        assert!(!parse_needs_reload("", &[]));
    }

    #[test]
    fn unread_drop_in_needs_a_reload() {
        let ours = [drop_in_directory("a.service").join("50-gpu-bootstrap.conf")];
        let text = "NeedDaemonReload=no\nDropInPaths=/usr/lib/systemd/system/a.service.d/10.conf\n";
        assert!(parse_needs_reload(text, &ours));
        let text = format!(
            "NeedDaemonReload=no\nDropInPaths=/usr/lib/x.conf {}\n",
            ours[0]
        );
        assert!(!parse_needs_reload(&text, &ours));
    }

    #[test]
    fn command_of_a_unit_is_parsed() {
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
    fn states_are_parsed_and_displayed() {
        for (text, told, enabled, active) in rows! {
            "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n",
                "enabled and active", true, true;
            "Result=exit-code\nLoadState=loaded\nActiveState=failed\nUnitFileState=disabled\n",
                "disabled and failed (exit-code)", false, false;
            "Result=success\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
                "not installed", false, false;
            "LoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\nResult=success\nJob=0\n",
                "enabled and inactive", true, false;
            "Job=312\nLoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\nResult=success\n",
                "enabled and inactive, with a queued job", true, false;
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
