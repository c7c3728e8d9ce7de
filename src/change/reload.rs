//! Daemons that can reload their configuration while their containers keep running, but whose restart may stop the containers.
//!
//! Containers are only stopped with consent (`runtime.restart`). Without it, the restart is left to the administrator, or to
//! the next `install` while no container is running. `runtimes` defines which daemons behave this way, and which settings they
//! reload.

use std::time::Duration;

use super::{Applier, ChangeError, Class, Reverted, RuntimeDaemon, RuntimeSettings, Sink};
use crate::{
    config::desired::Daemon,
    error::one_line,
    runtimes::{Config, LiveConfig, ReloadWords},
    tools::systemctl,
};

/// The time limit for the daemon to use its new configuration after a reload.
const TAKE_UP_TIME_LIMIT: Duration = Duration::from_secs(30);

impl Applier {
    /// Makes the daemon use a runtime. It is restarted only if a reload is not sufficient, and without
    /// [`RuntimeSettings::may_stop`] only if that stops no container.
    pub(super) async fn reload(
        &self,
        settings: &RuntimeSettings,
        words: &ReloadWords,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (unit, runtime) = (&*settings.unit, &settings.runtime);
        let (kind, name) = (settings.kind, settings.kind.name());
        self.reload_if_needed(unit, sink).await?;
        if !self.unit_state(unit).await?.is_active() {
            return self.bring_up("start", unit, sink).await;
        }
        let knows_it = |config: &Config| {
            config.runtimes.contains(runtime)
                && (!settings.default || config.default.as_ref() == Some(runtime))
        };
        let what = format!("wait for {name} to read its configuration");
        let taken_up = if self.signal(unit, sink).await? {
            self.awaited(&what, TAKE_UP_TIME_LIMIT, || async {
                Ok(self.said(kind).await?.ok().filter(knows_it))
            })
            .await?
        } else {
            None
        };
        if (taken_up.as_ref()).is_some_and(|config| !settings.cdi || config.uses_cdi) {
            return Ok(());
        }
        let containers = self.stopped_by_restart(kind, unit, words).await?;
        let names = containers.join(", ");
        if containers.is_empty() || settings.may_stop {
            if !containers.is_empty() {
                sink.note(&format!(
                    "{name} is restarted, which stops the containers {names}"
                ));
            }
            return self.bring_up("restart", unit, sink).await;
        }
        if taken_up.is_none() {
            return Err(ChangeError::new(
                "containers-run",
                format!("restart `{unit}`: this would stop the containers {names}"),
            )
            .advice(format!(
                "a reload did not make {name} use its configuration, so the previous one was \
                 restored. Stop the containers, or {} and run `systemctl reload {unit}`, or set \
                 `runtime.restart = \"always\"`. Then run the command again",
                words.spare
            )));
        }
        // Not an error, because the daemon already uses all settings except CDI.
        sink.note(&format!(
            "{name} uses CDI only after its next restart, which would stop the containers {names}"
        ));
        Ok(())
    }

    /// Restarts the daemon, so that it no longer uses a runtime, if that stops no container. Otherwise reloads it, and returns
    /// the part that remains until its next restart.
    pub(super) async fn forgets(
        &self,
        daemon: &RuntimeDaemon,
        words: &ReloadWords,
        sink: &dyn Sink,
    ) -> Result<Option<Reverted>, ChangeError> {
        let RuntimeDaemon {
            unit,
            runtime,
            kind,
        } = daemon;
        let left = |why: String, who: &str| {
            Some(Reverted::left(
                format!("`{unit}`, which still uses the configuration from before the undo"),
                format!("{why}; run `systemctl restart {unit}` when {who} may stop"),
            ))
        };
        let containers = match self.stopped_by_restart(*kind, unit, words).await {
            // Not an error of the undo, because the files are already restored.
            Err(error) if error.class == Class::DaemonSilent => {
                return Ok(left(format!("failed to {error}"), "its containers"));
            }
            containers => containers?.join(", "),
        };
        if containers.is_empty() {
            self.restart_unit(unit, sink).await?;
            return Ok(None);
        }
        let reloaded = self.signal(unit, sink).await?;
        // If the removed runtime is still the default, new containers do not start. Assume this if the daemon does not respond.
        let uses_another =
            (self.said(*kind).await?).is_ok_and(|config| config.default.as_ref() != Some(runtime));
        if !reloaded || !uses_another {
            let why = format!("a restart would stop the containers {containers}");
            return Ok(left(why, "they"));
        }
        Ok(Some(Reverted::done(format!(
            "reloaded `{unit}`, but it lists the runtime {runtime} until its next restart, which \
             would stop the containers {containers}"
        ))))
    }

    /// Reloads the daemon's configuration. Returns whether systemd could do it.
    async fn signal(&self, unit: &str, sink: &dyn Sink) -> Result<bool, ChangeError> {
        let output = self.exec(&systemctl::act("reload", unit), sink).await;
        let output =
            output.map_err(|source| ChangeError::tool(format!("reload `{unit}`"), source))?;
        Ok(output.ok())
    }

    /// The configuration that a daemon reports, or the reason it does not respond.
    async fn said(&self, kind: Daemon) -> Result<Result<Config, String>, ChangeError> {
        let said = kind.configured().said(self.host.reader()).await;
        let said =
            said.map_err(|source| ChangeError::tool(format!("query {}", kind.name()), source))?;
        Ok(match said {
            LiveConfig::Known(config) => Ok(config),
            LiveConfig::Silent(why) => Err(why),
            LiveConfig::Absent => Err("its client is not installed".to_owned()),
            LiveConfig::Unknown(error) => Err(one_line(&*error)),
        })
    }

    /// Names of the containers that a restart of the daemon would stop.
    ///
    /// # Errors
    /// If the daemon does not report its containers, because a restart may then stop some.
    async fn stopped_by_restart(
        &self,
        kind: Daemon,
        unit: &str,
        words: &ReloadWords,
    ) -> Result<Vec<String>, ChangeError> {
        let silent =
            |why: String| {
                let name = kind.name();
                ChangeError::new(
                words.silent,
                format!("query {name} for the containers that a restart of `{unit}` would stop: \
                         {why}"),
            )
            .advice(format!(
                "check the output of `{}`. When its containers may stop, run `systemctl restart \
                 {unit}`, then run the command again",
                words.asks
            ))
            .of(Class::DaemonSilent)
            };
        if (self.said(kind).await?.map_err(silent)?).spares_containers {
            return Ok(Vec::new());
        }
        let running = kind.configured().running(self.host.reader()).await;
        running.map_err(|error| silent(one_line(&error)))
    }
}
