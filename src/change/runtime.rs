//! The configuration of a container runtime. A change and its undo both swap all files: the files are written, the runtime's
//! own program validates them before the running daemon is touched, then the daemon loads them and must respond. If a step
//! fails, the previous files are restored and the daemon runs with them. A change writes our keys, and its undo removes them.
//!
//! `nvidia-ctk runtime configure` is not sufficient: it writes a drop-in file in the newest format version, which containerd
//! rejects if its root file has an older version, and it does not validate.

use std::{
    collections::BTreeSet,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::{
    Applier, ChangeError, Class, FileAfter, FileBefore, Reverted, RuntimeDaemon, STOPPED, Sink,
    Undo, edits, file,
};
use crate::{
    config::desired::Daemon,
    error::one_line,
    host::{ExecError, Output, Query, digest::sha256},
    model::document::{Document, FileSettings, Format},
    runtimes::{Config, PickUp, ReadError, Validated},
    tools::toolkit,
};

/// The required configuration of a container runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuntimeSettings {
    pub kind: Daemon,
    /// The systemd unit.
    pub unit: String,
    /// The keys to set. Empty if the files are correct and only the daemon has not loaded them.
    pub files: Vec<FileSettings>,
    /// The runtime that the daemon must have afterwards.
    pub runtime: String,
    /// Whether it must be the default runtime.
    pub default: bool,
    /// Whether the daemon must use CDI for devices.
    pub cdi: bool,
    /// Whether the daemon may be restarted although this stops containers.
    #[serde(default)]
    pub may_stop: bool,
}

/// The permission bits of a new file.
const MODE: u32 = 0o644;

/// The time limit for a daemon to respond after it was started.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(30);

/// New files of a daemon, and the files that they replaced.
struct Swap<'a> {
    daemon: &'a RuntimeDaemon,
    /// The previous files.
    former: &'a [FileBefore],
    created_directories: &'a [Utf8PathBuf],
    /// The required settings, with the previous configuration. `None` in an undo.
    wanted: Option<(&'a RuntimeSettings, Option<Config>)>,
}

impl Applier {
    /// Returns the diffs of the files.
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

    /// Returns the undo, with the previous value of each key. Later edits of other keys are kept.
    pub(super) fn capture_runtime(&self, settings: &RuntimeSettings) -> Result<Undo, ChangeError> {
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
    ) -> Result<(), ChangeError> {
        let Undo::RestoreFiles {
            files,
            created_directories,
            daemon: Some(daemon),
        } = undo
        else {
            return Err(ChangeError::unreadable(
                format!("configure {}", settings.kind.name()),
                "the undo does not belong to a container runtime",
            ));
        };
        let known = match self.validated(settings.kind, &settings.unit, &[]).await? {
            Validated::Reads(config) => Some(config),
            Validated::NotReported | Validated::Accepted | Validated::Refused(_) => None,
        };
        for one in &settings.files {
            let (document, _) = self.with(one)?;
            let path = self.target_of(&one.path)?;
            let mode = self.host.files.stat(&path)?.map_or(MODE, |stat| stat.mode);
            (self.host.files).write(&path, document.text().as_bytes(), mode)?;
        }
        let swap = Swap {
            daemon,
            former: files,
            created_directories,
            wanted: Some((settings, known)),
        };
        self.swap(&swap, sink).await.map(drop)
    }

    /// Removes the keys of a change from the files of a daemon. If the daemon rejects the files without these keys, they are
    /// kept.
    pub(super) async fn restore_runtime(
        &self,
        daemon: &RuntimeDaemon,
        files: &[FileBefore],
        created_directories: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        self.need_toolkit().insert(daemon.kind);
        let mut former = Vec::new();
        for file in files {
            former.push(FileBefore {
                before: self.save(&file.path)?,
                ..file.clone()
            });
        }
        let restored = self.restore_files(files, created_directories, sink).await?;
        let swap = Swap {
            daemon,
            former: &former,
            created_directories,
            wanted: None,
        };
        // If the undo could not change any file, do not touch the daemon, because it may not start with files that others have
        // modified.
        let is_stuck = matches!(restored.ending, Reverted::Left { .. }) && !self.differ(&former)?;
        let ending = if files.is_empty() || is_stuck {
            restored.told(sink)
        } else {
            // Reload the daemon even if no file had to be restored, because an interrupted run may not have done so.
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

    fn name_the_toolkit(&self, files: &[FileBefore]) -> Result<bool, ChangeError> {
        for file in files {
            let text = self.host.files.read_lossy(&file.path)?;
            if text.is_some_and(|text| toolkit::needs_packages(&text)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a file with the keys set, and the edits.
    fn with(&self, one: &FileSettings) -> Result<(Document, Vec<super::Edit>), ChangeError> {
        let unreadable =
            |why: String| ChangeError::unreadable(format!("set keys of `{}`", one.path), why);
        let format = Format::of(&one.path)
            .ok_or_else(|| unreadable("its name does not end in `.json` or `.toml`".to_owned()))?;
        let text = self.host.files.read_text(&one.path)?.unwrap_or_default();
        let mut document =
            Document::parse(format, &text).map_err(|error| unreadable(error.to_string()))?;
        let edits = edits::set(&mut document, &one.settings)
            .map_err(|error| unreadable(error.to_string()))?;
        Ok((document, edits))
    }

    /// Makes the daemon use the new files. If it does not work with them, restores the previous files. The error reports
    /// whether this succeeded.
    async fn swap(&self, swap: &Swap<'_>, sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        let runtime = swap.daemon.kind.name();
        let refused: Option<ChangeError> = match self.refusal(swap).await {
            Ok(refusal) => refusal.map(|why| self::refused(swap, &why)),
            Err(error) => Some(error),
        };
        let is_seen = refused.is_none();
        let why = match refused {
            Some(why) => why,
            None => match self.take_up(swap, sink).await {
                // The daemon did not respond after the reload, so it is unknown which configuration it runs with.
                Err(why) if why.class == Class::DaemonSilent => return Err(why),
                Err(why) => why,
                done => return done,
            },
        };
        if !self.differ(swap.former)? {
            return Err(why);
        }
        if swap.wanted.is_some() {
            sink.note(&format!(
                "{runtime} does not work with its new configuration, so the previous one is \
                 restored"
            ));
        }
        let restore_saved = self.restore_former(swap, is_seen, sink).await;
        let is_back = match &restore_saved {
            // The daemon has not read the new files, or only a requested stop, not a failure, ended the change.
            Ok(()) => !is_seen || why.reason == STOPPED,
            // The previous files are restored and the daemon was started with them. Only the wait for its response was stopped.
            Err(then) => why.reason == STOPPED && then.reason == STOPPED,
        };
        if is_back {
            return Err(why);
        }
        Err(not_configured(swap.daemon, why, restore_saved))
    }

    /// Restores the previous files. A daemon that has read the new files must load the previous ones.
    async fn restore_former(
        &self,
        swap: &Swap<'_>,
        is_seen: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        for file in swap.former {
            if !self.is_as_before(file)? {
                self.restore_saved(file)?;
            }
        }
        self.remove_created(swap.created_directories)?;
        if is_seen {
            // A running daemon that can reload its files is not restarted, because a restart may stop its containers.
            let reloads = matches!(kind.configured().pick_up(), PickUp::Reload(_));
            let goes_on = reloads && self.unit_state(unit).await?.is_active();
            let verb = if goes_on { "reload" } else { "restart" };
            self.bring_up(verb, unit, sink).await?;
            self.answers(*kind, false, sink).await?;
        }
        Ok(())
    }

    /// Returns the reason the daemon would not work with its files. The daemon's own program validates them, without touching
    /// the running daemon. `None` if the daemon would work, or if the result is unknown, such as with a program that is too old
    /// to validate.
    async fn refusal(&self, swap: &Swap<'_>) -> Result<Option<String>, ChangeError> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        // In an undo, the packages of the daemon may already be removed.
        if swap.wanted.is_none()
            && !(self.unit_state_if_any(unit).await?).is_some_and(|state| state.exists())
        {
            return Ok(None);
        }
        let paths: Vec<&Utf8Path> = swap.former.iter().map(|file| file.path.as_path()).collect();
        Ok(match self.validated(*kind, unit, &paths).await? {
            Validated::NotReported | Validated::Accepted => None,
            Validated::Refused(why) => Some(why),
            Validated::Reads(now) => issue(&now, swap),
        })
    }

    /// Validates the files with the daemon's own program.
    async fn validated(
        &self,
        kind: Daemon,
        unit: &str,
        paths: &[&Utf8Path],
    ) -> Result<Validated, ChangeError> {
        let read = (kind.configured())
            .validate(self.host.reader(), unit, paths)
            .await;
        read.map_err(|error| match error {
            ReadError::Files(error) => error.into(),
            ReadError::Exec(error) => ChangeError::tool(format!("query {}", kind.name()), error),
        })
    }

    /// Makes the daemon load the files, and waits until it responds with them.
    async fn take_up(&self, swap: &Swap<'_>, sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        let RuntimeDaemon { kind, unit, .. } = swap.daemon;
        // After a change, the daemon is started if it is not running. Without systemd, it reads the files at the next boot.
        // After an undo, a daemon that is not running reads the files when it is started manually.
        let runs = match swap.wanted {
            Some(_) => !self.unit_state(unit).await?.is_not_booted(),
            None => (self.unit_state_if_any(unit).await?).is_some_and(|state| state.is_active()),
        };
        if !runs {
            return Ok(Reverted::nothing(format!("`{unit}` is not running")));
        }
        match (kind.configured().pick_up(), &swap.wanted) {
            (PickUp::Reload(words), Some((settings, _))) => {
                self.reload(settings, &words, sink).await?;
            }
            (PickUp::Reload(words), None) => {
                if let Some(ending) = self.forgets(swap.daemon, &words, sink).await? {
                    return Ok(ending);
                }
            }
            // This kind of daemon keeps its containers running during a restart.
            (PickUp::Restart, _) => self.restart_unit(unit, sink).await?,
        }
        self.answers(*kind, swap.wanted.is_some(), sink).await?;
        Ok(Reverted::done(format!("restarted `{unit}`")))
    }

    /// Waits until a daemon can be used. If `for_kubelet` is set, containerd must also serve the kubelet.
    async fn answers(
        &self,
        kind: Daemon,
        for_kubelet: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = "wait for the container runtime to respond";
        let ready = self
            .awaited(what, ANSWER_TIME_LIMIT, || async {
                let issue = self.issue(kind, for_kubelet, sink).await?;
                Ok(issue.is_none().then_some(()))
            })
            .await?;
        if ready.is_some() {
            return Ok(());
        }
        let why = (self.issue(kind, for_kubelet, sink).await?).unwrap_or_default();
        let (name, seconds) = (kind.name(), ANSWER_TIME_LIMIT.as_secs());
        let what = format!("wait until {name} responds (within {seconds} s): {why}");
        Err(ChangeError::new("runtime-silent", what))
    }

    /// Returns the reason a daemon cannot be used yet. `None` if it can, or if its client is not installed and it cannot be
    /// queried.
    async fn issue(
        &self,
        kind: Daemon,
        for_kubelet: bool,
        sink: &dyn Sink,
    ) -> Result<Option<String>, ChangeError> {
        let said = (kind.configured())
            .answers(self.host.reader(), for_kubelet)
            .await;
        let said =
            said.map_err(|source| ChangeError::tool(format!("query {}", kind.name()), source))?;
        for note in &said.notes {
            sink.line(note);
        }
        Ok(said.issue)
    }

    /// Returns the output of a program, regardless of its exit status. `None` if it is not installed.
    pub(super) async fn answer_of(
        &self,
        program: &str,
        query: &Query,
    ) -> Result<Option<Output>, ChangeError> {
        match self.host.reader().query(query).await {
            Ok(output) => Ok(Some(output)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(source) => Err(ChangeError::tool(format!("query {program}"), source)),
        }
    }
}

/// Returns the error for a daemon that does not work with its new configuration.
fn not_configured(
    daemon: &RuntimeDaemon,
    why: ChangeError,
    restore_saved: Result<(), ChangeError>,
) -> ChangeError {
    let (runtime, unit) = (daemon.kind.name(), &daemon.unit);
    let see =
        format!("check the log (`journalctl --unit={unit}`), correct the configuration of {unit}");
    match restore_saved {
        Ok(()) => {
            let what =
                format!("configure {runtime}: its previous configuration was restored and works");
            // The remedy for the cause comes first.
            let hint = why.hint.clone();
            ChangeError::new("configuration-put-back", what)
                .advice(hint.unwrap_or_else(|| format!("{see}, and run the command again")))
                .caused_by(why)
        }
        Err(then) => {
            let then = one_line(&then);
            let what =
                format!("configure {runtime}, and restore its previous configuration ({then})");
            ChangeError::new("configuration-not-put-back", what)
                .advice(format!(
                    "{see} until `systemctl restart {unit}` succeeds, and run the command again"
                ))
                .caused_by(why)
        }
    }
}

/// Returns the error for a daemon whose own program rejects its files.
fn refused(swap: &Swap<'_>, why: &str) -> ChangeError {
    let runtime = swap.daemon.kind.name();
    let what = match swap.wanted {
        Some(_) => format!("use the new configuration of {runtime}: {why}"),
        None => {
            format!("{runtime} rejects its configuration without the keys of gpu-bootstrap: {why}")
        }
    };
    ChangeError::new("configuration-refused", what)
        .advice(format!(
            "{runtime} was not restarted, and its files are unchanged. Correct the reported error \
             in them, and run the command again"
        ))
        .of(Class::ConfigurationRefused)
}

/// Returns the result of an undo that kept the files, because the daemon does not work without the change.
fn left(swap: &Swap<'_>, error: &ChangeError) -> Reverted {
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
            "{why}. Correct the reported error and run the same command again; until then, the \
             NVIDIA runtime that these files contain is kept"
        ),
    )
}

/// Returns how a configuration differs from the required one. `None` if it does not.
fn issue(now: &Config, swap: &Swap<'_>) -> Option<String> {
    let default = now.default.as_deref();
    let Some((settings, before)) = &swap.wanted else {
        let lost = default.filter(|name| !now.runtimes.contains(*name));
        return lost
            .map(|name| format!("its default runtime would be {name}, which is not configured"));
    };
    let lost: Vec<&str> = (before.iter())
        .flat_map(|before| before.runtimes.difference(&now.runtimes))
        .map(String::as_str)
        .collect();
    if !lost.is_empty() {
        Some(format!(
            "the configured runtime {} would be lost",
            lost.join(", ")
        ))
    } else if !now.runtimes.contains(&settings.runtime) {
        Some(format!(
            "the runtime {} would not be configured",
            settings.runtime
        ))
    } else if settings.default && default != Some(&settings.runtime) {
        Some(format!(
            "its default runtime would be {}, not {}",
            default.unwrap_or("none"),
            settings.runtime
        ))
    } else {
        (!now.serves_pods).then(|| "its CRI plugin would be disabled".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::causes, exit::Exit};

    #[test]
    fn daemon_failure_shows_remedy_of_its_cause() {
        let daemon = RuntimeDaemon {
            kind: Daemon::Docker,
            unit: "docker.service".into(),
            runtime: "nvidia".into(),
        };
        let silent =
            || ChangeError::new("runtime-silent", "wait until docker responds (within 30 s)");
        let helped = || silent().advice("stop the containers");
        for (why, restore_saved, reason, hint) in [
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
            let error = not_configured(&daemon, why, restore_saved);
            assert_eq!((error.exit, error.reason), (Exit::StepFailed, reason));
            assert!(
                error.hint.as_ref().is_some_and(|told| told.contains(hint)),
                "{error:?}"
            );
            assert_eq!(causes(&error), ["wait until docker responds (within 30 s)"]);
        }
    }

    #[test]
    fn rejection_distinguishes_change_and_undo() {
        let daemon = RuntimeDaemon {
            kind: Daemon::Containerd,
            unit: "containerd.service".into(),
            runtime: "nvidia".into(),
        };
        let undo = Swap {
            daemon: &daemon,
            former: &[],
            created_directories: &[],
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
            panic!("the file must be kept");
        };
        assert!(
            why.starts_with("containerd rejects its configuration without the keys"),
            "{why}"
        );
    }
}
