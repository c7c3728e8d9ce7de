//! The agents of k3s and RKE2 after the container toolkit has gone. They look for its runtime only when they start.

use super::{Applier, Problem, Reverted, Sink};
use crate::{
    joins::agents::{self, Agent},
    runtimes::OWNERS,
    tools::{systemctl, toolkit},
};

/// The agent that a unit runs.
pub(super) fn of_unit(unit: &str) -> Option<&'static Agent> {
    agents::ALL.into_iter().find(|agent| agent.unit == unit)
}

impl Applier {
    /// What is told of the agents that had to start again.
    pub(super) async fn agents_forget_toolkit(
        &self,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, Problem> {
        let mut endings = Vec::new();
        for agent in agents::ALL {
            endings.push(self.forget_toolkit(agent, sink).await?);
        }
        endings.retain(|ending| !matches!(ending, Reverted::Nothing { .. }));
        Ok(endings)
    }

    /// Starts an agent again whose containerd names the toolkit's runtime although its program has gone.
    pub(super) async fn forget_toolkit(
        &self,
        agent: &Agent,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        let unit = agent.unit;
        if self.host.files.exists(toolkit::RUNTIME.into())? || !self.names_toolkit(agent)? {
            return Ok(Reverted::nothing(format!(
                "the containerd of `{unit}` names no program that has gone"
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
                    "`{unit}`, whose containerd still names `{}`",
                    toolkit::RUNTIME
                ),
                format!(
                    "only with `KillMode=process` would its containers go on; run `systemctl restart {unit}` when \
                     they may stop"
                ),
            ));
        }
        let ending = self.restart_again(unit, sink).await?;
        if matches!(ending, Reverted::Done { .. }) && self.names_toolkit(agent)? {
            return Ok(Reverted::left(
                format!(
                    "`{}` in the configuration of {}'s containerd",
                    toolkit::RUNTIME,
                    agent.name
                ),
                format!(
                    "somebody's template names it; take it out there, and run `systemctl restart {unit}`"
                ),
            ));
        }
        Ok(ending)
    }

    fn names_toolkit(&self, agent: &Agent) -> Result<bool, Problem> {
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
