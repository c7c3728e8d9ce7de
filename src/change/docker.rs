//! Docker reads its configuration again while its containers keep running.
//!
//! A restart of the daemon stops them, unless `live-restore` is on
//! (<https://docs.docker.com/engine/daemon/live-restore/>). After SIGHUP the daemon takes up `runtimes`
//! and `default-runtime` if they are in its file (moby/moby, `daemon/reload_unix.go`), but does not
//! forget what is not there any more: after `uninstall` the daemon may list our runtime until its next
//! restart. The daemon takes up CDI only when it starts. Only consent (`runtime.restart`) stops
//! containers: without it a restart is left to others, or to the next `install` while none runs.

use std::time::Duration;

use camino::Utf8Path;

use super::{
    Applier, Class, Problem, Reverted, RuntimeDaemon, RuntimeSettings, Sink, runtime::last_lines,
};
use crate::{
    error::one_line,
    state::units,
    tools::{
        docker::{self, Info},
        systemctl,
    },
};

/// The time limit for the daemon to take up its configuration after the signal.
const TAKE_UP_TIME_LIMIT: Duration = Duration::from_secs(30);

impl Applier {
    /// Why Docker would not start with a file; `None` if it would, or is too old to tell.
    pub(super) async fn docker_refuses(
        &self,
        unit: &str,
        paths: impl Iterator<Item = &Utf8Path>,
    ) -> Result<Option<String>, Problem> {
        let version = self.answer_of("dockerd", &docker::daemon_version()).await?;
        let can = (version.as_ref()).is_some_and(|output| docker::can_validate(&output.stdout));
        if !can {
            return Ok(None);
        }
        // A key that the unit's command line has, too, keeps the daemon from starting.
        let command = units::unit_command(&self.host, unit)
            .await
            .map_err(|error| {
                Problem::new("tool-failed", format!("query the command of `{unit}`"))
                    .caused_by(error)
            })?;
        let flags = command.as_deref().map(docker::flags).unwrap_or_default();
        for path in paths {
            if !self.host.files.exists(path)? {
                continue;
            }
            let output = self
                .answer_of("dockerd", &docker::validate(&flags, path))
                .await?;
            if let Some(output) = output.filter(|output| !output.ok()) {
                return Ok(Some(last_lines(&output)));
            }
        }
        Ok(None)
    }

    /// Makes the daemon know a runtime. It is restarted only if a reload does not help, and without consent only if that
    /// stops no container.
    pub(super) async fn docker_takes_up(
        &self,
        settings: &RuntimeSettings,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let (unit, runtime) = (&*settings.unit, &settings.runtime);
        self.reload_if_needed(unit, sink).await?;
        if !self.unit_state(unit).await?.is_active() {
            return self.bring_up("start", unit, sink).await;
        }
        let knows_it = |info: &Info| {
            info.runtimes.contains_key(runtime)
                && (!settings.default || info.default_runtime.as_ref() == Some(runtime))
        };
        let what = "wait for docker to read its configuration";
        let taken_up = if self.signal_docker(unit, sink).await? {
            self.awaited(what, TAKE_UP_TIME_LIMIT, || async {
                Ok(self.docker_info().await?.ok().filter(knows_it))
            })
            .await?
        } else {
            None
        };
        let uses_cdi =
            |info: &Info| (info.cdi_folders.as_ref()).is_some_and(|folders| !folders.is_empty());
        if (taken_up.as_ref()).is_some_and(|info| !settings.cdi || uses_cdi(info)) {
            return Ok(());
        }
        let containers = self.stopped_by_restart(unit).await?;
        let names = containers.join(", ");
        if containers.is_empty() || settings.may_stop {
            if !containers.is_empty() {
                sink.note(&format!(
                    "docker is restarted, which stops the containers {names}"
                ));
            }
            return self.bring_up("restart", unit, sink).await;
        }
        if taken_up.is_none() {
            return Err(Problem::new(
                "containers-run",
                format!("restart `{unit}`: it would stop the containers {names}"),
            )
            .advice(format!(
                "a reload did not make docker use its configuration, so the former one is back: stop \
                 the containers, or set `\"live-restore\": true` in `/etc/docker/daemon.json` and run \
                 `systemctl reload {unit}`, or set `runtime.restart = \"always\"`; then run the command again"
            )));
        }
        // All else works.
        sink.note(&format!(
            "docker will use CDI from its next restart on, which would stop the containers {names}"
        ));
        Ok(())
    }

    /// Restarts the daemon, so that it forgets a runtime, if that stops no container; otherwise returns what it keeps until
    /// its next restart.
    pub(super) async fn docker_keeps(
        &self,
        daemon: &RuntimeDaemon,
        sink: &dyn Sink,
    ) -> Result<Option<Reverted>, Problem> {
        let RuntimeDaemon { unit, runtime, .. } = daemon;
        let left = |why: String, who: &str| {
            Some(Reverted::left(
                format!("`{unit}`, which still uses the configuration from before the undo"),
                format!("{why}; run `systemctl restart {unit}` when {who} may stop"),
            ))
        };
        let containers = match self.stopped_by_restart(unit).await {
            // The files are restored in any case.
            Err(error) if error.class == Class::DockerSilent => {
                return Ok(left(format!("failed to {error}"), "its containers"));
            }
            containers => containers?.join(", "),
        };
        if containers.is_empty() {
            self.restart_unit(unit, sink).await?;
            return Ok(None);
        }
        let reloaded = self.signal_docker(unit, sink).await?;
        // New containers would be started with a default runtime whose program goes. A daemon that says nothing now may have
        // such a one.
        let uses_another = (self.docker_info().await?)
            .is_ok_and(|info| info.default_runtime.as_ref() != Some(runtime));
        if !reloaded || !uses_another {
            let why = format!("a restart would stop the containers {containers}");
            return Ok(left(why, "they"));
        }
        Ok(Some(Reverted::done(format!(
            "reloaded `{unit}`; it lists the runtime {runtime} until its next restart, which \
                 would stop the containers {containers}"
        ))))
    }

    /// Has the daemon read its configuration again; whether systemd could.
    async fn signal_docker(&self, unit: &str, sink: &dyn Sink) -> Result<bool, Problem> {
        let output = self.exec(&systemctl::act("reload", unit), sink).await;
        let output = output.map_err(|source| Problem::tool(format!("reload `{unit}`"), source))?;
        Ok(output.ok())
    }

    /// What the daemon says about itself, or why it says nothing.
    async fn docker_info(&self) -> Result<Result<Info, String>, Problem> {
        let said = self.answer_of("docker", &docker::info()).await?;
        let text = said.map(|said| said.stdout).unwrap_or_default();
        if text.trim().is_empty() {
            return Ok(Err("`docker info` prints nothing".to_owned()));
        }
        Ok(match docker::parse_info(&text) {
            Err(why) => Err(format!("the answer of `docker info` is unknown: {why}")),
            Ok(info) if info.server_errors.is_empty() => Ok(info),
            Ok(info) => Err(info.server_errors.join("; ")),
        })
    }

    /// Names of the containers that a restart of the daemon would stop.
    ///
    /// # Errors
    /// Also if the daemon does not tell: what is not known may be stopped.
    async fn stopped_by_restart(&self, unit: &str) -> Result<Vec<String>, Problem> {
        let silent = |why: String| {
            Problem::new(
                "docker-silent",
                format!("ask docker which containers a restart of `{unit}` would stop: {why}"),
            )
            .advice(format!(
                "see what `docker info` says; when its containers may stop, run `systemctl restart \
                 {unit}`, then run the command again"
            ))
            .of(Class::DockerSilent)
        };
        if (self.docker_info().await?.map_err(silent)?).live_restore_enabled {
            return Ok(Vec::new());
        }
        let query = docker::running();
        let answer = self.host.reader().query(&query).await;
        let output = (answer.and_then(|output| output.success(query.cmd())))
            .map_err(|error| silent(one_line(&error)))?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }
}
