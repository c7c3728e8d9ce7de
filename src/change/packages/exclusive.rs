//! Exclusive package work: pauses the timers that start package managers, then reports running package managers and waits for
//! them, with a time limit.

use std::{sync::atomic::Ordering, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::of_class;
use crate::{
    change::{Applier, ChangeError, Sink},
    error::one_line,
    host::ExecError,
    tools::{
        packages::{FailureClass, locks},
        systemctl,
    },
};

/// The polling interval of the locks.
const POLL: Duration = Duration::from_secs(2);

/// The interval between two messages about the same holder.
const REMIND: Duration = Duration::from_secs(30);

/// The paused timers, stored on disk so that the next run can start them again if this one is interrupted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Paused {
    schema: u32,
    units: Vec<String>,
    /// Whether the state directory was created for this file. It is then removed with the file, unless it has other content.
    #[serde(default)]
    made_directory: bool,
}

/// The process or service to wait for, and the lock.
struct LockHolder {
    path: Utf8PathBuf,
    who: String,
}

impl Applier {
    /// Runs package work while no other package manager is running: timers are paused and locks are free. The timers are always
    /// started again afterwards, or at the end of the run if it builds a module.
    pub(in crate::change) async fn exclusively<T>(
        &self,
        sink: &dyn Sink,
        work: impl Future<Output = Result<T, ChangeError>> + Send,
    ) -> Result<T, ChangeError> {
        let result = async {
            self.pause().await?;
            self.wait_for_locks(sink).await?;
            self.remove_stale_locks()?;
            let result = work.await;
            self.end_helpers(sink).await;
            result
        }
        .await;
        self.release_timers(sink).await;
        result
    }

    /// Pauses the timers until the run ends. A module build needs this because it takes no package lock: package work of other
    /// steps may finish during the build and would start the timers again. A run may also contain several builds, one for each
    /// kernel.
    pub(in crate::change) async fn pause_for_run(&self) -> Result<(), ChangeError> {
        self.paused_for_run.store(true, Ordering::Release);
        self.pause().await
    }

    /// Stops processes that the package manager leaves running. A failure is only reported, because the work is done.
    async fn end_helpers(&self, sink: &dyn Sink) {
        let commands = match self.backend.follow_up(&*self.host.files) {
            Ok(commands) => commands,
            Err(error) => return sink.line(&format!("failed to {error}")),
        };
        for cmd in commands {
            let ran = self.host.exec.run(&cmd, &mut |_, _| {}).await;
            match ran.and_then(|output| output.success(&cmd)) {
                Ok(_) | Err(ExecError::NotFound { .. }) => {}
                Err(error) => sink.line(&format!("failed to {error}")),
            }
        }
    }

    /// Waits until no package manager holds a lock. A stop request ends the wait.
    pub(super) async fn wait_for_locks(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        let mut reported: Option<(String, Duration)> = None;
        while let Some(holder) = self.current_holder().await? {
            let now = clock.monotonic();
            let waited = now.saturating_sub(started).as_secs();
            if waited >= self.policy.lock_timeout_seconds {
                let LockHolder { path, who } = holder;
                return Err(ChangeError {
                    retryable: true,
                    ..of_class(
                        FailureClass::Locked,
                        format!(
                            "wait for another package manager: after {waited} s {who} still holds `{path}`"
                        ),
                    )
                });
            }
            let is_due = reported
                .as_ref()
                .is_none_or(|(who, at)| *who != holder.who || now.saturating_sub(*at) >= REMIND);
            if is_due {
                let left = self.policy.lock_timeout_seconds - waited;
                sink.retry(
                    &format!(
                        "{} holds `{}`; waiting for at most {left} s more",
                        holder.who, holder.path
                    ),
                    POLL.as_secs_f64(),
                );
                reported = Some((holder.who, now));
            }
            self.pause_for(POLL, "wait for another package manager")
                .await?;
        }
        Ok(())
    }

    /// Removes PID files of exited processes, because the package manager would wait for another process that reused the PID.
    /// Also removes truncated PID files, because the package manager rejects them. The first lock file is never removed,
    /// because its existence shows that a transaction was interrupted; it is emptied if it is truncated.
    fn remove_stale_locks(&self) -> Result<(), ChangeError> {
        let first = self.backend.locks().first().map(Utf8Path::new);
        if let Some(path) = first.filter(|path| path.extension() == Some("pid"))
            && locks::is_torn(&*self.host.files, path)?
        {
            self.host.files.write(path, b"", 0o644)?;
        }
        for path in locks::stale(&*self.host.files, self.backend.locks())? {
            self.host.files.remove(path.into())?;
        }
        Ok(())
    }

    async fn current_holder(&self) -> Result<Option<LockHolder>, ChangeError> {
        if let Some(holder) =
            locks::holder(&*self.host.files, &*self.host.system, self.backend.locks())?
        {
            let who = match &holder.command {
                Some(command) if !command.is_empty() => format!("{holder}, `{command}`,"),
                _ => holder.to_string(),
            };
            return Ok(Some(LockHolder {
                path: holder.lock.into(),
                who,
            }));
        }
        // A service that is starting takes the lock soon. Never stop it, because a killed upgrade leaves packages
        // half-configured.
        for unit in self.policy.pause_units.iter().filter(|unit| !timer(unit)) {
            if let Some(state) = self.unit_state_if_any(unit).await?
                && state.active == "activating"
            {
                return Ok(Some(LockHolder {
                    path: self
                        .backend
                        .locks()
                        .first()
                        .copied()
                        .unwrap_or_default()
                        .into(),
                    who: format!("{unit}, which is running,"),
                }));
            }
        }
        Ok(None)
    }

    fn paused_path(&self) -> Utf8PathBuf {
        self.state.join("paused.json")
    }

    /// Stops only running timers. Their names are written to disk first.
    async fn pause(&self) -> Result<(), ChangeError> {
        let _pausing = self.pausing.lock().await;
        let mut paused = self.read_paused()?;
        let before = paused.units.len();
        for unit in self.policy.pause_units.iter().filter(|unit| timer(unit)) {
            if !paused.units.contains(unit)
                && self
                    .unit_state_if_any(unit)
                    .await?
                    .is_some_and(|state| state.is_active())
            {
                paused.units.push(unit.clone());
            }
        }
        if paused.units.len() > before {
            let files = &self.host.files;
            paused.made_directory |= !files.exists(&self.state)?;
            files.create_directory(&self.state, 0o700)?;
            self.write_paused(&paused)?;
        }
        for unit in &paused.units[before..] {
            self.act("stop", unit).await?;
        }
        Ok(())
    }

    /// Starts the timers that this run or an interrupted one has paused, unless they stay paused until the run ends. A timer
    /// that cannot be started is only reported, because the work is already done. A later call tries to start it again.
    pub(in crate::change) async fn release_timers(&self, sink: &dyn Sink) {
        let _pausing = self.pausing.lock().await;
        if self.paused_for_run.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.start_paused(sink).await {
            sink.note(&format!(
                "paused timers may not be running: failed to {}",
                one_line(&error)
            ));
        }
    }

    async fn start_paused(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let paused = self.read_paused()?;
        let mut stopped = Vec::new();
        for unit in &paused.units {
            if let Err(error) = self.start_if_possible(unit).await {
                sink.note(&format!(
                    "the paused timer `{unit}` is not running: failed to {}; the next `install` or \
                     `uninstall` tries again",
                    one_line(&error)
                ));
                stopped.push(unit.clone());
            }
        }
        match stopped.len() {
            same if same == paused.units.len() => Ok(()),
            0 => {
                self.host.files.remove(&self.paused_path())?;
                if paused.made_directory {
                    self.host.files.remove_empty_directory(&self.state)?;
                }
                Ok(())
            }
            _ => self.write_paused(&Paused {
                units: stopped,
                ..paused
            }),
        }
    }

    /// Starts a timer, unless it was removed with its package or masked since.
    async fn start_if_possible(&self, unit: &str) -> Result<(), ChangeError> {
        match self.unit_state_if_any(unit).await? {
            Some(state) if state.is_loaded() && !state.is_active() => self.act("start", unit).await,
            _ => Ok(()),
        }
    }

    fn write_paused(&self, paused: &Paused) -> Result<(), ChangeError> {
        let text = serde_json::to_string(paused)
            .map_err(|error| ChangeError::unreadable("record the paused timers", error))?;
        (self.host.files).write(&self.paused_path(), text.as_bytes(), 0o600)?;
        Ok(())
    }

    fn read_paused(&self) -> Result<Paused, ChangeError> {
        let path = self.paused_path();
        match self.host.files.read_text(&path)? {
            None => Ok(Paused {
                schema: 1,
                ..Paused::default()
            }),
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| ChangeError::unreadable(format!("read `{path}`"), error)),
        }
    }

    async fn act(&self, verb: &'static str, unit: &str) -> Result<(), ChangeError> {
        let cmd = systemctl::act(verb, unit);
        self.host
            .exec
            .run(&cmd, &mut |_, _| {})
            .await
            .and_then(|output| output.success(&cmd))
            .map_err(|source| ChangeError::tool(format!("{verb} `{unit}`"), source))?;
        Ok(())
    }
}

fn timer(unit: &str) -> bool {
    Utf8Path::new(unit).extension() == Some("timer")
}
