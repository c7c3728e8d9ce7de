//! Docker reads its configuration again while its containers keep running.
//!
//! A restart of the daemon stops them, unless `live-restore` is on
//! (<https://docs.docker.com/engine/daemon/live-restore/>). After SIGHUP the daemon takes up `runtimes`
//! and `default-runtime` if they are in its file (moby/moby, `daemon/reload_unix.go`), but does not
//! forget what is not there any more: after `uninstall` the daemon may list our runtime until its next
//! restart. The daemon takes up CDI only when it starts. Only consent (`runtime.restart`) stops
//! containers: without it a restart is left to others, or to the next `install` while none runs.

use std::time::Duration;

use super::{Afterwards, Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    error::one_line,
    host::{ExecError, Query},
    tools::{
        docker::{self, Info},
        systemctl,
    },
};

/// The time limit for the daemon to take up its configuration after the signal.
const TAKE_UP_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The pause between two questions to the daemon.
const POLL: Duration = Duration::from_millis(500);

impl Applier {
    pub(super) fn capture_docker(unit: &str, runtime: &str) -> Undo {
        Undo::Afterwards {
            then: vec![Afterwards::ReloadDocker {
                unit: unit.to_owned(),
                runtime: runtime.to_owned(),
            }],
        }
    }

    /// Makes the daemon know a runtime. It is restarted only if a reload does not help, and only if
    /// that stops no container.
    pub(super) async fn reload_docker(
        &self,
        unit: &str,
        runtime: &str,
        default: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.reload_if_needed(unit, sink).await?;
        if !self.unit_state(unit).await?.is_active() {
            return self.bring_up("start", unit, sink).await;
        }
        if self.signal(unit, sink).await? && self.takes_up(runtime, default).await? {
            return Ok(());
        }
        let containers = self.stopped_by_restart(unit).await?;
        if containers.is_empty() {
            return self.bring_up("restart", unit, sink).await;
        }
        Err(ChangeError::WouldStop {
            unit: unit.to_owned(),
            containers,
        })
    }

    /// Docker takes up CDI only when it starts. Where a restart would stop containers, it is left to the
    /// next one: all else works.
    pub(super) async fn switch_cdi_on(
        &self,
        unit: &str,
        may_stop: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let uses_it = |info: Info| info.cdi_folders.is_some_and(|folders| !folders.is_empty());
        if self.docker_info().await?.is_ok_and(uses_it) {
            return Ok(());
        }
        let containers = self.stopped_by_restart(unit).await?;
        if may_stop && !containers.is_empty() {
            sink.note(&format!(
                "docker is restarted, which stops the containers {}",
                containers.join(", ")
            ));
        }
        if may_stop || containers.is_empty() {
            return self.bring_up("restart", unit, sink).await;
        }
        sink.note(&format!(
            "docker will use CDI from its next restart on, which would stop the containers {}",
            containers.join(", ")
        ));
        Ok(())
    }

    /// Sends the signal; whether systemd could.
    async fn signal(&self, unit: &str, sink: &dyn Sink) -> Result<bool, ChangeError> {
        let output = self.exec(&systemctl::act("reload", unit), sink).await;
        let output = output.map_err(|source| ChangeError::Tool {
            what: format!("reload `{unit}`"),
            source,
        })?;
        Ok(output.ok())
    }

    /// Waits until the daemon says that it knows the runtime.
    async fn takes_up(&self, runtime: &str, default: bool) -> Result<bool, ChangeError> {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        loop {
            if let Ok(info) = self.docker_info().await?
                && info.runtimes.contains_key(runtime)
                && (!default || info.default_runtime.as_deref() == Some(runtime))
            {
                return Ok(true);
            }
            if clock.monotonic().saturating_sub(started) >= TAKE_UP_TIME_LIMIT {
                return Ok(false);
            }
            self.pause_for(POLL, "wait for docker to read its configuration")
                .await?;
        }
    }

    /// What the daemon says about itself, or why it says nothing.
    async fn docker_info(&self) -> Result<Result<Info, String>, ChangeError> {
        let output = self.ask_docker(&docker::info()).await?;
        if output.trim().is_empty() {
            return Ok(Err("`docker info` prints nothing".to_owned()));
        }
        Ok(match docker::parse_info(&output) {
            Err(why) => Err(format!("the answer of `docker info` is unknown: {why}")),
            Ok(info) if info.server_errors.is_empty() => Ok(info),
            Ok(info) => Err(info.server_errors.join("; ")),
        })
    }

    /// Names of the containers that a restart of the daemon would stop.
    ///
    /// # Errors
    /// Also if the daemon does not tell: what is not known may be stopped.
    async fn stopped_by_restart(&self, unit: &str) -> Result<Vec<String>, ChangeError> {
        let info = (self.docker_info().await?).map_err(|why| ChangeError::DaemonSilent {
            unit: unit.to_owned(),
            why,
        })?;
        if info.live_restore_enabled {
            return Ok(Vec::new());
        }
        // What is not known may be stopped.
        let query = docker::running();
        let answer = self.host.reader().query(&query).await;
        let output = (answer.and_then(|output| output.success(query.cmd()))).map_err(|error| {
            ChangeError::DaemonSilent {
                unit: unit.to_owned(),
                why: one_line(&error),
            }
        })?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }

    /// The answer of the client, whatever its exit status.
    async fn ask_docker(&self, query: &Query) -> Result<String, ChangeError> {
        match self.host.reader().query(query).await {
            Ok(output) => Ok(output.stdout),
            Err(ExecError::NotFound { .. }) => Ok(String::new()),
            Err(source) => Err(ChangeError::Tool {
                what: "ask docker about itself".to_owned(),
                source,
            }),
        }
    }

    /// Makes the daemon use restored files.
    pub(super) async fn docker_again(
        &self,
        unit: &str,
        runtime: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let runs = (self.unit_state_if_any(unit).await?).is_some_and(|state| state.is_active());
        let stopped = match runs {
            true => self.stopped_by_restart(unit).await,
            false => Ok(Vec::new()),
        };
        let containers = match stopped {
            Ok(containers) => containers,
            // The files are restored in any case.
            Err(error @ ChangeError::DaemonSilent { .. }) => {
                return Ok(Reverted::Left {
                    what: format!(
                        "`{unit}`, which still uses the configuration from before the undo"
                    ),
                    why: format!(
                        "failed to {error}; run `systemctl restart {unit}` when its containers may \
                         stop"
                    ),
                });
            }
            Err(error) => return Err(error),
        };
        if containers.is_empty() {
            return self.restart_again(unit, sink).await;
        }
        let containers = containers.join(", ");
        let reloaded = self.signal(unit, sink).await?;
        let default = (self.docker_info().await?).map(|info| info.default_runtime);
        // New containers would be started with a runtime whose program goes. A daemon that says nothing
        // now may be such a one.
        let uses_another = default.is_ok_and(|default| default.as_deref() != Some(runtime));
        if !reloaded || !uses_another {
            return Ok(Reverted::Left {
                what: format!("`{unit}`, which still uses the configuration from before the undo"),
                why: format!(
                    "a restart would stop the containers {containers}; run `systemctl restart \
                     {unit}` when they may stop"
                ),
            });
        }
        Ok(Reverted::Done {
            what: format!(
                "reloaded `{unit}`; it lists the runtime {runtime} until its next restart, which \
                 would stop the containers {containers}"
            ),
        })
    }
}
