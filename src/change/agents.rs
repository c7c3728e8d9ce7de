//! Restarts the k3s and RKE2 agents after the container toolkit was removed, because they detect its runtime only at startup.

use super::{Applier, ChangeError, Reverted, Sink};
use crate::{
    joins::agents::{self, Agent},
    runtimes::OWNERS,
    tools::{systemctl, toolkit},
};

/// Returns the agent of a unit.
pub(super) fn of_unit(unit: &str) -> Option<&'static Agent> {
    agents::ALL.into_iter().find(|agent| agent.unit == unit)
}

impl Applier {
    /// Restarts the agents that still use the removed toolkit. Returns the results, without agents for which nothing was done.
    pub(super) async fn agents_forget_toolkit(
        &self,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let mut endings = Vec::new();
        for agent in agents::ALL {
            endings.push(self.forget_toolkit(agent, sink).await?);
        }
        endings.retain(|ending| !matches!(ending, Reverted::Nothing { .. }));
        Ok(endings)
    }

    /// Restarts an agent whose containerd still uses the removed runtime of the container toolkit, if its containers survive
    /// the restart.
    pub(super) async fn forget_toolkit(
        &self,
        agent: &Agent,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let unit = agent.unit;
        if self.host.files.exists(toolkit::RUNTIME.into())? || !self.names_toolkit(agent)? {
            return Ok(Reverted::nothing(format!(
                "the containerd of `{unit}` does not use a removed runtime"
            )));
        }
        let runs = (self.unit_state_if_any(unit).await?).is_some_and(|state| state.is_active());
        let query = systemctl::kill_mode(unit);
        let mode = match runs {
            true => self.answer_of("systemctl", &query).await?,
            false => None,
        };
        let spares = mode.and_then(|said| systemctl::parse_spares_children(&said.stdout));
        if runs && spares != Some(true) {
            return Ok(Reverted::left(
                format!(
                    "`{unit}`, whose containerd still uses `{}`",
                    toolkit::RUNTIME
                ),
                format!(
                    "its containers only survive a restart with `KillMode=process`; run `systemctl \
                     restart {unit}` when they may stop"
                ),
            ));
        }
        let ending = self.restart_again(unit, sink).await?;
        if matches!(ending, Reverted::Done { .. }) && self.names_toolkit(agent)? {
            return Ok(Reverted::left(
                format!(
                    "`{}` in the containerd configuration of {}",
                    toolkit::RUNTIME,
                    agent.name
                ),
                format!(
                    "a user-provided template contains it; remove it from the template, and run \
                     `systemctl restart {unit}`"
                ),
            ));
        }
        Ok(ending)
    }

    fn names_toolkit(&self, agent: &Agent) -> Result<bool, ChangeError> {
        let owner = OWNERS.iter().find(|owner| owner.name == agent.name);
        for path in owner.map_or(&[][..], |owner| owner.configs) {
            let text = self.host.files.read_text((*path).into())?;
            if text.is_some_and(|text| toolkit::needs_packages(&text)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
