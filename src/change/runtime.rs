//! The configuration of a container runtime. A change and its undo both swap it as a whole: files are written, the
//! runtime's own program reads them before the daemon is touched, then the daemon takes them up and has to answer. Where
//! that fails, the files are as before, and the daemon runs with them. A change writes the keys of this program, its undo
//! takes them out.
//!
//! `nvidia-ctk runtime configure` does not do this: it writes a drop-in of the newest version, which an
//! older root file refuses, and it checks nothing.

use std::{
    collections::BTreeSet,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{
    Applier, Class, FileAfter, FileBefore, Problem, Reverted, RuntimeDaemon, STOPPED, Sink, Undo,
    edits, file,
};
use crate::{
    config::desired::Daemon,
    error::one_line,
    host::{ExecError, Output, Query, digest::sha256},
    model::document::{Document, FileSettings, Format},
    state::CONTAINERD_CONFIG,
    tools::{containerd, crictl, crio, ctr, docker, toolkit},
};

/// What a container runtime has to be configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Files of a daemon that were written, and what they replaced.
struct Swap<'a> {
    daemon: &'a RuntimeDaemon,
    /// The files as they were.
    former: &'a [FileBefore],
    created_folders: &'a [Utf8PathBuf],
    /// The settings that the daemon must have afterwards, with its configuration before; `None` in an undo.
    wanted: Option<(&'a RuntimeSettings, Option<EffectiveConfig>)>,
}

impl Applier {
    /// Returns the diffs of the files.
    pub(super) fn preview_runtime(
        &self,
        settings: &RuntimeSettings,
    ) -> Result<Option<String>, Problem> {
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

    /// Returns the undo, which has each key with its value before: it leaves alone what others edit later.
    pub(super) fn capture_runtime(&self, settings: &RuntimeSettings) -> Result<Undo, Problem> {
        let mut after = Vec::new();
        for one in &settings.files {
            let (document, edits) = self.with(one)?;
            let sha256 = sha256(document.text().as_bytes());
            let path = self.target_of(&one.path)?;
            after.push((path, FileAfter::Edited { sha256, edits }));
        }
        let mut undo = self.capture_files(after)?;
        if let Undo::RestoreFiles { daemon, .. } = &mut undo {
            *daemon = Some(RuntimeDaemon {
                kind: settings.kind,
                unit: settings.unit.clone(),
                runtime: settings.runtime.clone(),
            });
        }
        Ok(undo)
    }

    pub(super) async fn configure_runtime(
        &self,
        settings: &RuntimeSettings,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let Undo::RestoreFiles {
            files,
            created_folders,
            daemon: Some(daemon),
        } = undo
        else {
            return Err(Problem::unreadable(
                format!("configure {}", settings.kind.name()),
                "its undo is not that of a container runtime",
            ));
        };
        let known = self.known(settings.kind).await?.and_then(Result::ok);
        for one in &settings.files {
            let (document, _) = self.with(one)?;
            let path = self.target_of(&one.path)?;
            let mode = self.host.files.stat(&path)?.map_or(MODE, |stat| stat.mode);
            (self.host.files).write(&path, document.text().as_bytes(), mode)?;
        }
        let swap = Swap {
            daemon,
            former: files,
            created_folders,
            wanted: Some((settings, known)),
        };
        self.swap(&swap, sink).await.map(drop)
    }

    /// Takes the keys of a change out of the files of a daemon. If the daemon refuses the files without these keys,
    /// they stay.
    pub(super) async fn restore_runtime(
        &self,
        daemon: &RuntimeDaemon,
        files: &[FileBefore],
        created_folders: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        self.need_toolkit().insert(daemon.kind);
        let mut former = Vec::new();
        for file in files {
            former.push(FileBefore {
                before: self.save(&file.path)?,
                ..file.clone()
            });
        }
        let restored = self.restore_files(files, created_folders, sink).await?;
        let swap = Swap {
            daemon,
            former: &former,
            created_folders,
            wanted: None,
        };
        // If the undo could change no file, the daemon is left alone: it may not start with such a file.
        let is_stuck = matches!(restored.ending, Reverted::Left { .. }) && !self.differ(&former)?;
        let ending = if files.is_empty() || is_stuck {
            restored.told(sink)
        } else {
            // This is done even if nothing was left to restore: a run that was killed may not have restarted the
            // daemon.
            match self.swap(&swap, sink).await {
                Ok(taken_up) => Reverted::of(vec![restored.told(sink), taken_up]),
                Err(error) if error.reason == STOPPED => return Err(error),
                Err(error) => Reverted::of(vec![restored.ending, left(&swap, &error)]),
            }
        };
        let is_left = matches!(ending, Reverted::Left { .. });
        if !(is_left && self.name_the_toolkit(files)?) {
            self.need_toolkit().remove(&daemon.kind);
        }
        Ok(ending)
    }

    pub(super) fn need_toolkit(&self) -> MutexGuard<'_, BTreeSet<Daemon>> {
        (self.need_toolkit.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn name_the_toolkit(&self, files: &[FileBefore]) -> Result<bool, Problem> {
        for file in files {
            let text = self.host.files.read_lossy(&file.path)?;
            if text.is_some_and(|text| toolkit::needs_packages(&text)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a file with its keys set, and the edits.
    fn with(&self, one: &FileSettings) -> Result<(Document, Vec<super::Edit>), Problem> {
        let unreadable =
            |why: String| Problem::unreadable(format!("set keys of `{}`", one.path), why);
        let format = Format::of(&one.path)
            .ok_or_else(|| unreadable("its name says neither JSON nor TOML".to_owned()))?;
        let text = self.host.files.read_text(&one.path)?.unwrap_or_default();
        let mut document =
            Document::parse(format, &text).map_err(|error| unreadable(error.to_string()))?;
        let edits = edits::set(&mut document, &one.settings)
            .map_err(|error| unreadable(error.to_string()))?;
        Ok((document, edits))
    }

    /// Makes the daemon use the files that were written. If it does not work with them, puts the former ones back;
    /// the error says whether that worked.
    async fn swap(&self, swap: &Swap<'_>, sink: &dyn Sink) -> Result<Reverted, Problem> {
        let runtime = swap.daemon.kind.name();
        let refused: Option<Problem> = match self.refusal(swap).await {
            Ok(refusal) => refusal.map(|why| self::refused(swap, &why)),
            Err(error) => Some(error),
        };
        let is_seen = refused.is_none();
        let why = match refused {
            Some(why) => why,
            None => match self.take_up(swap, sink).await {
                // Docker gave no answer, so nobody knows which configuration it runs with.
                Err(why) if why.class == Class::DockerSilent => return Err(why),
                Err(why) => why,
                done => return done,
            },
        };
        if !self.differ(swap.former)? {
            return Err(why);
        }
        if swap.wanted.is_some() {
            sink.note(&format!(
                "{runtime} does not work with its new configuration; the former one is put back"
            ));
        }
        let put_back = self.put_back_former(swap, is_seen, sink).await;
        let is_back = match &put_back {
            // The daemon has not read the new files; or nothing is wrong, and somebody has asked to stop.
            Ok(()) => !is_seen || why.reason == STOPPED,
            // The former files are back and the daemon was started with them. Only the wait for its answer was
            // stopped.
            Err(then) => why.reason == STOPPED && then.reason == STOPPED,
        };
        if is_back {
            return Err(why);
        }
        Err(not_configured(swap.daemon, why, put_back))
    }

    /// Puts the former files back. A daemon that has read the new ones is made to use the former ones.
    async fn put_back_former(
        &self,
        swap: &Swap<'_>,
        is_seen: bool,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        for file in swap.former {
            if !self.is_as_before(file)? {
                self.put_back(file)?;
            }
        }
        self.remove_created(swap.created_folders)?;
        if is_seen {
            // A restart would stop the containers of a Docker that still runs.
            let goes_on = *kind == Daemon::Docker && self.unit_state(unit).await?.is_active();
            let verb = if goes_on { "reload" } else { "restart" };
            self.bring_up(verb, unit, sink).await?;
            self.answers(*kind, false, sink).await?;
        }
        Ok(())
    }

    /// Returns why the daemon would not work with its files. Its own program tells, without touching the daemon.
    /// `None` if it would work, or if the program is too old to tell.
    async fn refusal(&self, swap: &Swap<'_>) -> Result<Option<String>, Problem> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        // In an undo, the packages of the daemon may be gone already.
        if swap.wanted.is_none()
            && !(self.unit_state_if_any(unit).await?).is_some_and(|state| state.exists())
        {
            return Ok(None);
        }
        if *kind == Daemon::Docker {
            let paths = swap.former.iter().map(|file| file.path.as_path());
            return self.docker_refuses(unit, paths).await;
        }
        Ok(match self.known(*kind).await? {
            None => None,
            Some(Err(why)) => Some(why),
            Some(Ok(now)) => now.flaw(swap),
        })
    }

    /// Returns the configuration with which a daemon would run, as its program reads the files, or why it refuses
    /// them. `None` if no program tells: Docker's prints none, and `containerd config dump` of 1.6 fails if there is
    /// no file, although the daemon starts.
    async fn known(
        &self,
        kind: Daemon,
    ) -> Result<Option<Result<EffectiveConfig, String>>, Problem> {
        let query = match kind {
            Daemon::Containerd if self.host.files.exists(CONTAINERD_CONFIG.into())? => {
                containerd::config_dump()
            }
            Daemon::Crio => crio::config(),
            Daemon::Docker | Daemon::Containerd => return Ok(None),
        };
        let Some(said) = self.answer_of(kind.name(), &query).await? else {
            return Ok(Some(Err(format!("{} is not installed", kind.name()))));
        };
        Ok(Some(match kind {
            _ if !said.ok() => Err(last_lines(&said)),
            Daemon::Crio => crio::parse(&said.stdout).map(|config| EffectiveConfig {
                runtimes: config.runtimes.into_keys().collect(),
                default: config.default_runtime,
                enabled: true,
            }),
            _ => containerd::parse_config(&said.stdout).map(|config| EffectiveConfig {
                runtimes: config.runtimes.into_iter().collect(),
                default: config.default_runtime,
                enabled: config.enabled,
            }),
        }))
    }

    /// Makes the daemon use the files, and waits until it answers with them.
    async fn take_up(&self, swap: &Swap<'_>, sink: &dyn Sink) -> Result<Reverted, Problem> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        // A daemon that does not run reads the files when it starts: after a change when the machine boots, after an
        // undo when somebody starts it.
        let runs = match swap.wanted {
            Some(_) => !self.unit_state(unit).await?.is_not_booted(),
            None => (self.unit_state_if_any(unit).await?).is_some_and(|state| state.is_active()),
        };
        if !runs {
            return Ok(Reverted::nothing(format!("`{unit}` is not running")));
        }
        match (kind, &swap.wanted) {
            (Daemon::Docker, Some((settings, _))) => self.docker_takes_up(settings, sink).await?,
            (Daemon::Docker, None) => {
                if let Some(ending) = self.docker_keeps(swap.daemon, sink).await? {
                    return Ok(ending);
                }
            }
            // Containers of these two keep running during a restart.
            (Daemon::Containerd | Daemon::Crio, _) => self.restart_unit(unit, sink).await?,
        }
        self.answers(*kind, swap.wanted.is_some(), sink).await?;
        Ok(Reverted::done(format!("restarted `{unit}`")))
    }

    /// Waits until a daemon can be used; `for_kubelet`, too, if it is containerd.
    async fn answers(
        &self,
        kind: Daemon,
        for_kubelet: bool,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let what = "wait for the container runtime to answer";
        let ready = self
            .awaited(what, ANSWER_TIME_LIMIT, || async {
                let flaw = self.flaw(kind, for_kubelet, sink).await?;
                Ok(flaw.is_none().then_some(()))
            })
            .await?;
        if ready.is_some() {
            return Ok(());
        }
        let why = (self.flaw(kind, for_kubelet, sink).await?).unwrap_or_default();
        let (name, seconds) = (kind.name(), ANSWER_TIME_LIMIT.as_secs());
        let what = format!("see {name} work within {seconds} s: {why}");
        Err(Problem::new("runtime-silent", what))
    }

    /// Returns why a daemon cannot be used yet. `None` if it can, or if its client is not installed and it cannot be
    /// asked.
    async fn flaw(
        &self,
        kind: Daemon,
        for_kubelet: bool,
        sink: &dyn Sink,
    ) -> Result<Option<String>, Problem> {
        let query = match kind {
            Daemon::Docker => docker::info(),
            Daemon::Containerd => ctr::version(),
            Daemon::Crio => crio::status(),
        };
        let Some(said) = self.answer_of(kind.name(), &query).await? else {
            return Ok(None);
        };
        match kind {
            Daemon::Docker => Ok(match docker::parse_info(&said.stdout) {
                Ok(mut info) => info.server_errors.pop(),
                Err(why) => Some(why),
            }),
            Daemon::Containerd if said.ok() && for_kubelet => self.cri_flaw(sink).await,
            Daemon::Containerd | Daemon::Crio => Ok((!said.ok()).then(|| last_lines(&said))),
        }
    }

    /// Returns why CRI, the part of containerd that the kubelet talks to, cannot be used yet. The list of plugins
    /// tells it, and CRI itself if `crictl` is installed.
    async fn cri_flaw(&self, sink: &dyn Sink) -> Result<Option<String>, Problem> {
        let plugins = self.answer_of("ctr", &ctr::plugins()).await?;
        let status = (plugins.as_ref()).and_then(|said| ctr::cri_status(&said.stdout));
        if let Some(status) = status.filter(|status| *status != "ok") {
            return Ok(Some(format!("the status of its CRI plugin is `{status}`")));
        }
        let Some(said) = self.answer_of("crictl", &crictl::info()).await? else {
            return Ok(None);
        };
        if !said.ok() {
            let is_of_another_version = status.is_some() && crictl::knows_no_service(&said.stderr);
            return Ok((!is_of_another_version).then(|| last_lines(&said)));
        }
        let conditions = match crictl::parse_info(&said.stdout) {
            Ok(conditions) => conditions,
            Err(why) => return Ok(Some(why)),
        };
        let flaw = |name| conditions.iter().find(|one| one.name == name)?.flaw();
        let runtime = flaw("RuntimeReady");
        // A new node has no pod network before it joins.
        if let (None, Some(network)) = (&runtime, flaw("NetworkReady")) {
            sink.line(&format!("containerd has no pod network yet: {network}"));
        }
        Ok(runtime)
    }

    /// Returns the answer of a program, whatever its exit status; `None` if it is not installed.
    pub(super) async fn answer_of(
        &self,
        program: &str,
        query: &Query,
    ) -> Result<Option<Output>, Problem> {
        match self.host.reader().query(query).await {
            Ok(output) => Ok(Some(output)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(source) => Err(Problem::tool(format!("ask {program}"), source)),
        }
    }
}

/// Returns the error for a daemon that does not work with its new configuration.
fn not_configured(daemon: &RuntimeDaemon, why: Problem, put_back: Result<(), Problem>) -> Problem {
    let (runtime, unit) = (daemon.kind.name(), &daemon.unit);
    let see =
        format!("see what {unit} says (`journalctl --unit={unit}`), correct its configuration");
    match put_back {
        Ok(()) => {
            let what = format!(
                "configure {runtime}, which has its former configuration again and works with it"
            );
            // What helps against the cause comes first.
            let hint = why.hint.clone();
            Problem::new("configuration-put-back", what)
                .advice(hint.unwrap_or_else(|| format!("{see}, and run the command again")))
                .caused_by(why)
        }
        Err(then) => {
            let then = one_line(&then);
            let what =
                format!("configure {runtime}, and put its former configuration back ({then})");
            Problem::new("configuration-not-put-back", what)
                .advice(format!(
                    "{see} until `systemctl restart {unit}` succeeds, and run the command again"
                ))
                .caused_by(why)
        }
    }
}

/// Returns the error for a daemon whose own program refuses its files.
fn refused(swap: &Swap<'_>, why: &str) -> Problem {
    let runtime = swap.daemon.kind.name();
    let what = match swap.wanted {
        Some(_) => format!("use the new configuration of {runtime}: {why}"),
        None => {
            format!("{runtime} refuses its configuration without the keys of this program: {why}")
        }
    };
    Problem::new("configuration-refused", what)
        .advice(format!(
            "{runtime} was not restarted, and its files are as before; correct what it names in \
             them, and run the command again"
        ))
        .of(Class::ConfigurationRefused)
}

/// Returns the end of an undo whose files stay, because the daemon does not work without the change.
fn left(swap: &Swap<'_>, error: &Problem) -> Reverted {
    let paths: Vec<String> = (swap.former.iter())
        .map(|file| format!("`{}`", file.path))
        .collect();
    let why = match error.class {
        Class::ConfigurationRefused => error.what.clone(),
        _ => format!("failed to {}", one_line(error)),
    };
    Reverted::left(
        format!("{} of `{}`", paths.join(", "), swap.daemon.unit),
        format!(
            "{why}; correct what it names, and run the same command again: until then the program that the keys name stays"
        ),
    )
}

/// The part of a daemon's effective configuration that is judged.
struct EffectiveConfig {
    runtimes: BTreeSet<String>,
    default: Option<String>,
    enabled: bool,
}

impl EffectiveConfig {
    /// Returns why this configuration is not the wanted one; `None` if it is.
    fn flaw(&self, swap: &Swap<'_>) -> Option<String> {
        let default = self.default.as_deref();
        let Some((settings, before)) = &swap.wanted else {
            let lost = default.filter(|name| !self.runtimes.contains(*name));
            return lost.map(|name| {
                format!("its default runtime would be {name}, which it would not know")
            });
        };
        let lost: Vec<&str> = (before.iter())
            .flat_map(|before| before.runtimes.difference(&self.runtimes))
            .map(String::as_str)
            .collect();
        if !lost.is_empty() {
            Some(format!("it would lose the runtime {}", lost.join(", ")))
        } else if !self.runtimes.contains(&settings.runtime) {
            Some(format!(
                "it would not know the runtime {}",
                settings.runtime
            ))
        } else if settings.default && default != Some(&settings.runtime) {
            Some(format!(
                "its default runtime would be {}, not {}",
                default.unwrap_or("none"),
                settings.runtime
            ))
        } else {
            (!self.enabled).then(|| "its CRI plugin would be disabled".to_owned())
        }
    }
}

/// Returns the last lines of a program's errors.
pub(super) fn last_lines(output: &Output) -> String {
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        said => said,
    };
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::causes, exit::Exit};

    #[test]
    fn what_helps_is_told_where_a_daemon_does_not_work_with_its_configuration() {
        let daemon = RuntimeDaemon {
            kind: Daemon::Docker,
            unit: "docker.service".into(),
            runtime: "nvidia".into(),
        };
        let silent = || Problem::new("runtime-silent", "see docker work within 30 s");
        let helped = || silent().advice("stop the containers");
        for (why, put_back, reason, hint) in [
            (
                helped(),
                Ok(()),
                "configuration-put-back",
                "stop the containers",
            ),
            (
                silent(),
                Ok(()),
                "configuration-put-back",
                "`journalctl --unit=docker.service`",
            ),
            (
                helped(),
                Err(silent()),
                "configuration-not-put-back",
                "until `systemctl restart docker.service` succeeds",
            ),
        ] {
            let error = not_configured(&daemon, why, put_back);
            assert_eq!((error.exit, error.reason), (Exit::StepFailed, reason));
            assert!(
                error.hint.as_ref().is_some_and(|told| told.contains(hint)),
                "{error:?}"
            );
            assert_eq!(causes(&error), ["see docker work within 30 s"]);
        }
    }

    #[test]
    fn a_refusal_says_whether_a_change_or_its_undo_was_refused() {
        let daemon = RuntimeDaemon {
            kind: Daemon::Containerd,
            unit: "containerd.service".into(),
            runtime: "nvidia".into(),
        };
        let undo = Swap {
            daemon: &daemon,
            former: &[],
            created_folders: &[],
            wanted: None,
        };
        let error = refused(&undo, "no such key");
        assert_eq!(error.reason, "configuration-refused");
        assert!(
            error
                .hint
                .as_ref()
                .is_some_and(|hint| hint.contains("was not restarted"))
        );
        let Reverted::Left { why, .. } = left(&undo, &error) else {
            panic!("the file stays");
        };
        assert!(
            why.starts_with("containerd refuses its configuration without the keys"),
            "{why}"
        );
    }
}
