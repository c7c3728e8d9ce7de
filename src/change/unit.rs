//! Enables, starts, restarts, masks and restores units.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Applier, ChangeError, FollowUp, Reverted, Sink, Undo, agents};
use crate::{
    host::Output,
    state::in_use_by,
    tools::{imex, initramfs, systemctl},
};

/// The result of a unit that systemd no longer starts because it was started too often. Source: systemd.exec(5),
/// `$SERVICE_RESULT`.
const START_LIMIT: &str = "start-limit-hit";

/// The time limit for a unit to become active after it was started.
const START_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The polling interval of the unit state.
const POLL: Duration = Duration::from_millis(500);

/// Restores the state of a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreUnit {
    pub unit: String,
    /// Whether the unit was enabled. Unknown if the unit was masked.
    pub enabled: bool,
    /// Whether the unit was masked, also only until the next boot.
    pub masked: bool,
    /// Whether the unit was running. `None` if the change only enables the unit. Then the undo does not stop it, because the
    /// undo may run in this unit: the unit that resumes a run after a reboot.
    pub active: Option<bool>,
    /// Whether the change masked the unit. The undo then removes the mask, and cannot distinguish it from a mask that an
    /// administrator has set since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmask: bool,
}

impl Applier {
    pub(super) async fn capture_unit(&self, unit: &str, start: bool) -> Result<Undo, ChangeError> {
        let state = self.unit_state(unit).await?;
        Ok(Undo::RestoreUnit(RestoreUnit {
            unit: unit.to_owned(),
            enabled: state.file == "enabled",
            masked: state.load == "masked",
            active: start.then(|| state.is_active()),
            unmask: false,
        }))
    }

    pub(super) async fn capture_mask(&self, unit: &str) -> Result<Undo, ChangeError> {
        self.refuse_stop_under_work(unit).await?;
        let state = self.unit_state(unit).await?;
        Ok(Undo::RestoreUnit(RestoreUnit {
            unit: unit.to_owned(),
            enabled: state.file == "enabled",
            masked: state.load == "masked",
            active: Some(state.is_active()),
            unmask: !state.is_masked_for_good(),
        }))
    }

    /// Masks the unit before it is stopped, so that nothing starts it in between.
    pub(super) async fn mask_unit(&self, unit: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
        let state = self.unit_state(unit).await?;
        if !state.is_masked_for_good() {
            let what = format!("mask `{unit}`");
            self.tool(&what, &systemctl::act("mask", unit), sink)
                .await?;
        }
        if state.is_active() || state.is_changing() {
            let what = format!("stop `{unit}`");
            self.tool(&what, &systemctl::act("stop", unit), sink)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn capture_restart(&self, unit: &str) -> Result<Undo, ChangeError> {
        self.refuse_stop_under_work(unit).await?;
        Ok(Undo::FollowUp {
            then: vec![FollowUp::RestartUnit {
                unit: unit.to_owned(),
            }],
        })
    }

    /// Returns an error if this is the unit of IMEX, it is running, and a process uses a GPU. If IMEX stops, "existing exports
    /// from the signaled node will be terminated", also those to jobs on other nodes. Source: NVIDIA, IMEX guide.
    pub(super) async fn refuse_stop_under_work(&self, unit: &str) -> Result<(), ChangeError> {
        if unit != imex::UNIT {
            return Ok(());
        }
        let state = self.unit_state_if_any(unit).await?;
        if !state.is_some_and(|state| state.is_active() || state.is_changing()) {
            return Ok(());
        }
        let workers = self.gpu_workers()?;
        if workers.is_empty() {
            return Ok(());
        }
        let what = format!(
            "stop or restart `{unit}`: the GPUs are {}; without IMEX, programs on several nodes lose their shared GPU memory",
            in_use_by(&workers)
        );
        Err(ChangeError::blocked("gpu-in-use", what)
            .advice("drain the node, or stop these programs; then run the command again"))
    }

    pub(super) async fn enable_unit(
        &self,
        unit: &str,
        start: bool,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.reload_if_needed(unit, sink).await?;
        let state = self.unit_state(unit).await?;
        let what = format!("enable `{unit}`");
        if !state.exists() || state.load == "masked" {
            let why = if state.exists() {
                "masked"
            } else {
                "not installed"
            };
            return Err(failed(&what, why, None));
        }
        if !state.is_enabled() {
            self.tool(&what, &systemctl::act("enable", unit), sink)
                .await?;
        }
        if start && !state.is_active() {
            self.bring_up("start", unit, sink).await?;
        }
        Ok(())
    }

    pub(super) async fn restart_unit(
        &self,
        unit: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.reload_if_needed(unit, sink).await?;
        self.bring_up("restart", unit, sink).await
    }

    /// Reloads systemd's unit files only if necessary, because a reload re-applies the device rules of all running containers,
    /// and some lose access to their GPUs.
    pub(super) async fn reload_if_needed(
        &self,
        unit: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.unit_state(unit).await?.is_not_booted() {
            return Ok(());
        }
        let query = systemctl::needs_reload(unit);
        let what = "query whether unit files have changed";
        let output = self
            .host
            .reader()
            .query(&query)
            .await
            .and_then(|output| output.success(query.cmd()))
            .map_err(|source| ChangeError::tool(what, source))?;
        let directory = systemctl::drop_in_directory(unit);
        let names = self.host.files.list(&directory)?;
        let drop_ins: Vec<_> = (names.iter())
            .filter(|name| name.ends_with(".conf"))
            .map(|name| directory.join(name))
            .collect();
        if systemctl::parse_needs_reload(&output.stdout, &drop_ins) {
            self.tool(
                "make systemd reload its units",
                &systemctl::daemon_reload(),
                sink,
            )
            .await?;
        }
        Ok(())
    }

    pub(super) async fn bring_up(
        &self,
        verb: &'static str,
        unit: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = format!("{verb} `{unit}`");
        let reset = systemctl::act("reset-failed", unit);
        let before = self.unit_state(unit).await?;
        if before.is_not_booted() {
            sink.note(&format!(
                "`{unit}` starts at the next boot, because systemd is not running here"
            ));
            return Ok(());
        }
        if before.active == "failed" {
            // Otherwise systemd's start limit may block a unit that has failed often.
            self.tool(&what, &reset, sink).await?;
        }
        let cmd = systemctl::act(verb, unit);
        let tool = |source| ChangeError::tool(what.clone(), source);
        let mut ran = self.exec(&cmd, sink).await.map_err(tool)?;
        // A unit with `Restart=` is not in the failed state between two restarts, so the check above does not detect it. It may
        // reach the start limit with this start.
        if !ran.ok() && self.unit_state(unit).await?.result == START_LIMIT {
            self.tool(&what, &reset, sink).await?;
            ran = self.exec(&cmd, sink).await.map_err(tool)?;
        }
        let clock = &self.host.clock;
        let started = clock.monotonic();
        loop {
            let state = self.unit_state(unit).await?;
            // A oneshot unit that has exited successfully counts as started.
            let ended_well =
                state.active == "inactive" && !state.has_job && state.result == "success";
            if ran.ok() && (state.is_active() || ended_well) {
                return Ok(());
            }
            let waiting = ran.ok()
                && state.is_changing()
                && clock.monotonic().saturating_sub(started) < START_TIME_LIMIT;
            if !waiting {
                let words = self.last_words(unit, &ran).await;
                return Err(failed(&what, &state.to_string(), words));
            }
            clock.sleep(POLL).await;
        }
    }

    /// The last journal lines of the unit, or the error of systemctl if there is no journal.
    async fn last_words(&self, unit: &str, ran: &Output) -> Option<String> {
        let said = ran.stderr.trim();
        let journal = self.words_of(unit).await;
        journal.or_else(|| (!said.is_empty()).then(|| said.to_owned()))
    }

    pub(super) async fn restore_unit(
        &self,
        undo: &RestoreUnit,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let (unit, active) = (&*undo.unit, undo.active);
        if active == Some(false) {
            self.refuse_stop_under_work(unit).await?;
        }
        let mut now = self.unit_state(unit).await?;
        let mut done = Vec::new();
        if undo.unmask && now.is_masked_for_good() {
            let what = format!("unmask `{unit}`");
            self.tool(&what, &systemctl::act("unmask", unit), sink)
                .await?;
            done.push(what);
            // The mask hid whether the unit is enabled.
            now = self.unit_state(unit).await?;
        }
        // If systemd is not running, a unit can only be enabled, disabled or masked.
        let active = active.filter(|_| !now.is_not_booted());
        if !now.exists() && done.is_empty() {
            return Ok(Reverted::nothing(format!(
                "`{unit}` is no longer installed"
            )));
        }
        // A mask hides whether the unit is enabled.
        let is_known = !undo.masked;
        let actions = [
            (
                "stop",
                active == Some(false) && now.active != "inactive" && now.active != "failed",
            ),
            (
                "disable",
                is_known && !undo.enabled && now.file == "enabled",
            ),
            ("enable", is_known && undo.enabled && now.file == "disabled"),
            // Do not start a unit that was masked since.
            (
                "start",
                active == Some(true) && now.is_loaded() && !now.is_active(),
            ),
            // A masked unit cannot be started.
            ("mask", undo.masked && !undo.unmask && now.load != "masked"),
        ];
        for (verb, needed) in actions {
            if needed {
                let what = format!("{verb} `{unit}`");
                self.tool(&what, &systemctl::act(verb, unit), sink).await?;
                done.push(what);
            }
        }
        Ok(if done.is_empty() {
            Reverted::nothing(format!("`{unit}` is unchanged"))
        } else {
            Reverted::done(done.join(", "))
        })
    }

    /// Makes units and initramfs images use restored files.
    pub(super) async fn follow_up(
        &self,
        then: &[FollowUp],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let mut endings = Vec::new();
        for one in then {
            endings.push(match one {
                FollowUp::RestartUnit { unit } => match agents::of_unit(unit) {
                    Some(agent) => self.forget_toolkit(agent, sink).await?,
                    None => self.restart_again(unit, sink).await?,
                },
                FollowUp::RebuildInitramfs { kernel } => {
                    if (self.host.files)
                        .stat(&initramfs::of(&*self.host.files)?.image(kernel))?
                        .is_none()
                    {
                        Reverted::nothing(format!("kernel {kernel} is no longer installed"))
                    } else {
                        self.rebuild_initramfs(std::slice::from_ref(kernel), sink)
                            .await?;
                        Reverted::done(format!("rebuilt the initramfs of {kernel}"))
                    }
                }
            });
        }
        Ok(Reverted::of(endings))
    }

    pub(super) async fn restart_again(
        &self,
        unit: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let running = self
            .unit_state_if_any(unit)
            .await?
            .is_some_and(|state| state.is_active());
        if !running {
            return Ok(Reverted::nothing(format!("`{unit}` is not running")));
        }
        let restarted = match self.refuse_stop_under_work(unit).await {
            Ok(()) => self.restart_unit(unit, sink).await,
            Err(refusal) => Err(refusal),
        };
        Ok(match restarted {
            Ok(()) => Reverted::done(format!("restarted `{unit}`")),
            // The files are already restored, so only the restart is reported as remaining.
            Err(error) => Reverted::left(
                format!("`{unit}`, which still uses the configuration from before the undo"),
                error.to_string(),
            ),
        })
    }
}

/// The error of a unit that did not reach the required state, with its last journal lines.
fn failed(what: &str, state: &str, words: Option<String>) -> ChangeError {
    ChangeError::new("unit-failed", format!("{what}: the unit is {state}")).telling(words)
}
