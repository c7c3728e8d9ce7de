//! The configuration of a container runtime, as a transaction: its keys are set, its own program
//! reads the files before the daemon is touched, the daemon takes them up and has to answer. Where
//! that fails, the files are as before, and the daemon runs with them.
//!
//! `nvidia-ctk runtime configure` does not do this: it writes a drop-in of the newest version, which an
//! older root file refuses, and it checks nothing.

use std::{collections::BTreeSet, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Afterwards, Applier, ChangeError, FileAfter, Reverted, RuntimeError, Sink, Undo, edits, file,
};
use crate::{
    config::desired::Daemon,
    error::one_line,
    host::{ExecError, Output, Query, digest::sha256},
    model::document::{Document, FileSettings, Format},
    tools::{
        containerd::{self, CriConfig},
        crio::{self, CrioConfig},
        ctr, docker, systemctl,
    },
};

/// What a container runtime has to be configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeSettings {
    /// Which one.
    pub kind: Daemon,
    /// Its unit.
    pub unit: String,
    /// The keys to set; none if the files are right and only the daemon does not know it.
    pub files: Vec<FileSettings>,
    /// The name of the runtime that it has to know afterwards.
    pub runtime: String,
    /// Whether this has to be the default one.
    pub default: bool,
    /// Whether it has to give devices to containers by CDI.
    pub cdi: bool,
    /// Whether it may be restarted although that stops containers.
    #[serde(default)]
    pub may_stop: bool,
}

/// The permission bits of a new file.
const MODE: u32 = 0o644;

/// The time limit for a daemon to answer after it was started.
pub(super) const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The time limit for CRI-O to take up its files after a reload.
const RELOAD_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The pause between two questions to a daemon.
pub(super) const POLL: Duration = Duration::from_millis(500);

impl Applier {
    /// Diffs of the files.
    pub(super) fn preview_runtime(
        &self,
        settings: &RuntimeSettings,
    ) -> Result<Option<String>, ChangeError> {
        let mut diffs = String::new();
        for one in &settings.files {
            let before = self.host.files.read_text(&one.path)?;
            let (document, _) = self.with(one)?;
            diffs.push_str(&file::bare_diff(
                &one.path,
                before.as_deref(),
                &document.text(),
            ));
        }
        Ok(Some(diffs).filter(|diffs| !diffs.is_empty()))
    }

    /// The undo knows each key with its value before, so it can leave alone what others edit later.
    pub(super) fn capture_runtime(&self, settings: &RuntimeSettings) -> Result<Undo, ChangeError> {
        let mut after = Vec::new();
        for one in &settings.files {
            let (document, edits) = self.with(one)?;
            // A link stays a link: its target is written.
            let path = (self.host.files.resolve(&one.path)?).unwrap_or_else(|| one.path.clone());
            let sha256 = sha256(document.text().as_bytes());
            after.push((path, FileAfter::Edited { sha256, edits }));
        }
        let paths: Vec<_> = after.iter().map(|(path, _)| path.clone()).collect();
        let found = |path: &Utf8Path| {
            let known = after.iter().find(|(known, _)| known == path);
            known.map_or(FileAfter::Unknown, |(_, after)| after.clone())
        };
        let undo = self.capture_files(&paths, found)?;
        let Undo::RestoreFiles {
            files,
            created_folders,
            ..
        } = undo
        else {
            return Ok(undo);
        };
        let unit = settings.unit.clone();
        let then = match settings.kind {
            Daemon::Docker => Afterwards::ReloadDocker {
                unit,
                runtime: settings.runtime.clone(),
            },
            // Their containers keep running.
            Daemon::Containerd | Daemon::Crio => Afterwards::RestartUnit { unit },
        };
        Ok(Undo::RestoreFiles {
            files,
            created_folders,
            then: vec![then],
        })
    }

    pub(super) async fn configure_runtime(
        &self,
        settings: &RuntimeSettings,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let before = match settings.kind {
            Daemon::Containerd => self.containerd_config().await?.ok().map(Known::from),
            Daemon::Crio => self.crio_config().await?.ok().map(Known::from),
            Daemon::Docker => None,
        };
        // `containerd config dump` shows files, not what the daemon has read: after a kill before the
        // restart they would look right.
        let unread = unread(&self.state, settings.kind);
        self.host.files.write(&unread, b"", 0o600)?;
        for one in &settings.files {
            self.write_settings(one)?;
        }
        if let Err(why) = self.validate(settings, before.as_ref()).await {
            return Err(self.undo_settings(settings, undo, false, why, sink).await);
        }
        match self.take_up(settings, sink).await {
            Ok(()) => Ok(self.host.files.remove(&unread)?),
            Err(why) if settings.files.is_empty() => Err(why),
            Err(why @ ChangeError::DaemonSilent { .. }) => Err(why),
            // A configuration that a daemon has not taken up may be one with which it does not start.
            Err(why) => Err(self.undo_settings(settings, undo, true, why, sink).await),
        }
    }

    /// A file with its keys set, and what that changes.
    fn with(&self, one: &FileSettings) -> Result<(Document, Vec<super::Edit>), ChangeError> {
        let unreadable = |why: String| ChangeError::Unreadable {
            what: format!("set keys of `{}`", one.path),
            why,
        };
        let format = Format::of(&one.path)
            .ok_or_else(|| unreadable("its name says neither JSON nor TOML".to_owned()))?;
        let text = self.host.files.read_text(&one.path)?.unwrap_or_default();
        let mut document =
            Document::parse(format, &text).map_err(|error| unreadable(error.to_string()))?;
        let edits = edits::set(&mut document, &one.settings)
            .map_err(|error| unreadable(error.to_string()))?;
        Ok((document, edits))
    }

    fn write_settings(&self, one: &FileSettings) -> Result<(), ChangeError> {
        let files = &self.host.files;
        let (document, _) = self.with(one)?;
        let path = files
            .resolve(&one.path)?
            .unwrap_or_else(|| one.path.clone());
        let stat = files.stat(&path)?;
        if let Some(folder) = path.parent()
            && files.stat(folder)?.is_none()
        {
            files.create_folder(folder, 0o755)?;
        }
        let mode = stat.as_ref().map_or(MODE, |stat| stat.mode);
        files.write(&path, document.text().as_bytes(), mode)?;
        if let Some(stat) = stat {
            files.chown(&path, stat.uid, stat.gid)?;
        }
        Ok(())
    }

    /// The runtime's own program reads the files; the daemon is not touched.
    async fn validate(
        &self,
        settings: &RuntimeSettings,
        before: Option<&Known>,
    ) -> Result<(), ChangeError> {
        match settings.kind {
            Daemon::Docker => {
                let paths = settings.files.iter().map(|one| one.path.as_path());
                match self.docker_refuses(&settings.unit, paths).await? {
                    Some(why) => Err(refused(settings, why).into()),
                    None => Ok(()),
                }
            }
            Daemon::Containerd => {
                let after = self.containerd_config().await?;
                Ok(judge(settings, before, after.map(Known::from))?)
            }
            Daemon::Crio => {
                let after = self.crio_config().await?;
                Ok(judge(settings, before, after.map(Known::from))?)
            }
        }
    }

    /// Why Docker would not start with a file; `None` if it would, or is too old to tell.
    pub(super) async fn docker_refuses(
        &self,
        unit: &str,
        paths: impl Iterator<Item = &Utf8Path>,
    ) -> Result<Option<String>, ChangeError> {
        let version = self.answer_of("dockerd", &docker::daemon_version()).await?;
        let can = (version.as_ref()).is_some_and(|output| docker::can_validate(&output.stdout));
        if !can {
            return Ok(None);
        }
        // A key that the unit's command line has, too, keeps the daemon from starting.
        let said = self
            .answer_of("systemctl", &systemctl::command(unit))
            .await?;
        let command = (said.as_ref()).and_then(|said| systemctl::parse_command(&said.stdout));
        let flags = command.map(docker::flags).unwrap_or_default();
        for path in paths {
            let output = self
                .answer_of("dockerd", &docker::validate(&flags, path))
                .await?;
            if let Some(output) = output.filter(|output| !output.ok()) {
                return Ok(Some(last_lines(&output)));
            }
        }
        Ok(None)
    }

    /// The configuration that containerd reads from its files, or why it refuses them.
    pub(super) async fn containerd_config(&self) -> Result<Result<CriConfig, String>, ChangeError> {
        let Some(output) = self
            .answer_of("containerd", &containerd::config_dump())
            .await?
        else {
            return Ok(Err("containerd is not installed".to_owned()));
        };
        if !output.ok() {
            return Ok(Err(last_lines(&output)));
        }
        Ok(containerd::parse_config(&output.stdout))
    }

    /// The configuration that CRI-O reads from its files, or why it refuses them.
    pub(super) async fn crio_config(&self) -> Result<Result<CrioConfig, String>, ChangeError> {
        let Some(output) = self.answer_of("crio", &crio::config()).await? else {
            return Ok(Err("CRI-O is not installed".to_owned()));
        };
        if !output.ok() {
            return Ok(Err(last_lines(&output)));
        }
        Ok(crio::parse(&output.stdout))
    }

    /// Makes the daemon use the files, and waits until it answers with them.
    async fn take_up(
        &self,
        settings: &RuntimeSettings,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        // The daemon reads its files when the machine boots.
        if self.unit_state(&settings.unit).await?.is_not_booted() {
            return Ok(());
        }
        match settings.kind {
            Daemon::Docker => {
                let reloaded = self
                    .reload_docker(&settings.unit, &settings.runtime, settings.default, sink)
                    .await;
                match reloaded {
                    Err(ChangeError::WouldStop { containers, .. }) if settings.may_stop => {
                        sink.note(&format!(
                            "docker is restarted, which stops the containers {}",
                            containers.join(", ")
                        ));
                        self.bring_up("restart", &settings.unit, sink).await?;
                    }
                    other => other?,
                }
                if settings.cdi {
                    self.switch_cdi_on(&settings.unit, settings.may_stop, sink)
                        .await?;
                }
                self.answers(settings).await
            }
            Daemon::Containerd => {
                self.restart_unit(&settings.unit, sink).await?;
                self.answers(settings).await?;
                self.serves_cri(settings, sink).await
            }
            Daemon::Crio => {
                // It takes up runtimes when it is reloaded; those that do not, are restarted.
                if !self.reload_crio(settings, sink).await? {
                    self.restart_unit(&settings.unit, sink).await?;
                }
                self.answers(settings).await
            }
        }
    }

    /// Waits until the daemon answers over its socket.
    async fn answers(&self, settings: &RuntimeSettings) -> Result<(), ChangeError> {
        let query = match settings.kind {
            Daemon::Docker => docker::info(),
            Daemon::Containerd => ctr::version(),
            Daemon::Crio => crio::status(),
        };
        let clock = &self.host.clock;
        let started = clock.monotonic();
        loop {
            let said = match self.answer_of(settings.kind.name(), &query).await? {
                // Its client is not installed, so nobody can be asked.
                None => return Ok(()),
                Some(output) => output,
            };
            let why = match settings.kind {
                Daemon::Docker => docker::parse_info(&said.stdout)
                    .err()
                    .or_else(|| docker::parse_info(&said.stdout).ok()?.server_errors.pop()),
                Daemon::Containerd | Daemon::Crio => (!said.ok()).then(|| last_lines(&said)),
            };
            let Some(why) = why else { return Ok(()) };
            if clock.monotonic().saturating_sub(started) >= ANSWER_TIME_LIMIT {
                return Err(RuntimeError::Silent {
                    runtime: settings.kind.name(),
                    seconds: ANSWER_TIME_LIMIT.as_secs(),
                    why,
                }
                .into());
            }
            self.pause_for(POLL, "wait for the container runtime to answer")
                .await?;
        }
    }

    /// Whether a running CRI-O knows the runtime after a reload.
    async fn reload_crio(
        &self,
        settings: &RuntimeSettings,
        sink: &dyn Sink,
    ) -> Result<bool, ChangeError> {
        self.reload_if_needed(&settings.unit, sink).await?;
        if !self.unit_state(&settings.unit).await?.is_active() {
            return Ok(false);
        }
        self.bring_up("reload", &settings.unit, sink).await?;
        // Before the reload it may have had a runtime of this name with another program.
        let program = |config: &CrioConfig| config.programs().get(&settings.runtime).cloned();
        let wanted = self
            .crio_config()
            .await?
            .ok()
            .and_then(|config| program(&config));
        let clock = &self.host.clock;
        let started = clock.monotonic();
        while clock.monotonic().saturating_sub(started) < RELOAD_TIME_LIMIT {
            if let Some(said) = self.answer_of("crio", &crio::status()).await?
                && said.ok()
                && let Ok(config) = crio::parse(&said.stdout)
                && program(&config) == wanted
                && judge(settings, None, Ok(Known::from(config))).is_ok()
            {
                return Ok(true);
            }
            self.pause_for(POLL, "wait for CRI-O to read its configuration")
                .await?;
        }
        Ok(false)
    }

    /// Restores the files, and the daemon if it has seen them; the error says how that ended.
    async fn undo_settings(
        &self,
        settings: &RuntimeSettings,
        undo: &Undo,
        seen: bool,
        why: ChangeError,
        sink: &dyn Sink,
    ) -> ChangeError {
        sink.note(&format!(
            "{} does not work with its new configuration; the former one is put back",
            settings.kind.name()
        ));
        let back = self.undo_files(settings, undo, seen, sink).await;
        let runtime = settings.kind.name();
        match back {
            // The daemon has seen nothing of it; or nothing is wrong, and somebody wants to stop.
            Ok(()) if !seen || matches!(why, ChangeError::Stopped { .. }) => why,
            Ok(()) => RuntimeError::PutBack {
                runtime,
                unit: settings.unit.clone(),
                source: Box::new(why),
            }
            .into(),
            Err(then) => RuntimeError::NotPutBack {
                runtime,
                unit: settings.unit.clone(),
                source: Box::new(why),
                then: one_line(&then),
            }
            .into(),
        }
    }

    async fn undo_files(
        &self,
        settings: &RuntimeSettings,
        undo: &Undo,
        seen: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if let Undo::RestoreFiles {
            files,
            created_folders,
            ..
        } = undo
            && let Reverted::Left { what, why } =
                self.restore_files(files, created_folders, sink)?
        {
            return Err(ChangeError::Unreadable { what, why });
        }
        self.host
            .files
            .remove(&unread(&self.state, settings.kind))?;
        if seen {
            // A Docker that still runs has its containers, which a restart would stop.
            let runs = self.unit_state(&settings.unit).await?.is_active();
            let verb = match settings.kind {
                Daemon::Docker if runs => "reload",
                _ => "restart",
            };
            self.bring_up(verb, &settings.unit, sink).await?;
            self.answers(settings).await?;
        }
        Ok(())
    }

    /// The answer of a program, whatever its exit status; `None` if it is not installed.
    pub(super) async fn answer_of(
        &self,
        program: &str,
        query: &Query,
    ) -> Result<Option<Output>, ChangeError> {
        match self.host.reader().query(query).await {
            Ok(output) => Ok(Some(output)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(source) => Err(ChangeError::Tool {
                what: format!("ask {program}"),
                source,
            }),
        }
    }
}

/// What matters of the configuration that a daemon would run with.
pub(super) struct Known {
    runtimes: BTreeSet<String>,
    default: Option<String>,
    enabled: bool,
}

impl Known {
    /// The default runtime if it is none of the known ones: the daemon would not start.
    pub(super) fn unknown_default(&self) -> Option<&str> {
        (self.default.as_deref()).filter(|name| !self.runtimes.contains(*name))
    }
}

impl From<CriConfig> for Known {
    fn from(config: CriConfig) -> Self {
        Self {
            runtimes: config.runtimes.into_iter().collect(),
            default: config.default_runtime,
            enabled: config.enabled,
        }
    }
}

impl From<CrioConfig> for Known {
    fn from(config: CrioConfig) -> Self {
        Self {
            runtimes: config.runtimes.into_keys().collect(),
            default: config.default_runtime,
            enabled: true,
        }
    }
}

/// Whether the daemon can run with what its program reads from the new files.
fn judge(
    settings: &RuntimeSettings,
    before: Option<&Known>,
    after: Result<Known, String>,
) -> Result<(), RuntimeError> {
    let after = after.map_err(|why| refused(settings, why))?;
    let lost: Vec<&str> = before
        .map(|before| before.runtimes.difference(&after.runtimes))
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let default = after.default.as_deref();
    let flaw = if !lost.is_empty() {
        format!("it would lose the runtime {}", lost.join(", "))
    } else if !after.runtimes.contains(&settings.runtime) {
        format!("it would not know the runtime {}", settings.runtime)
    } else if settings.default && default != Some(&settings.runtime) {
        let default = default.unwrap_or("none");
        format!(
            "its default runtime would be {default}, not {}",
            settings.runtime
        )
    } else if !after.enabled {
        "its CRI plugin would be disabled".to_owned()
    } else {
        return Ok(());
    };
    Err(refused(settings, flaw))
}

/// The file that is there from the moment when files of a runtime are written until its daemon has taken
/// them up.
#[must_use]
pub fn unread(state: &Utf8Path, kind: Daemon) -> Utf8PathBuf {
    state.join(format!("unread-{}", kind.name()))
}

fn refused(settings: &RuntimeSettings, why: String) -> RuntimeError {
    RuntimeError::Refused {
        runtime: settings.kind.name(),
        why,
    }
}

/// The last lines of a program's errors.
pub(super) fn last_lines(output: &Output) -> String {
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        said => said,
    };
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("\n")
}
