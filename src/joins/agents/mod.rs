//! The agents of k3s and RKE2: their unit starts, and the kubelet inside of it registers the node. A file that the
//! step writes names the server.

use camino::Utf8Path;

mod tool;

pub use tool::{ALL, Agent, CLOUD_SETUP, K3S, RKE2, configuration, server_of, wrong_token};

use super::Join;
use crate::work::{Hands, Problem, Reverted, Sink};
use crate::{error::one_line, model::token::TokenSource, tools::systemctl};

impl Hands {
    pub(crate) async fn join_by_agent(
        &self,
        agent: &Agent,
        token_source: &TokenSource,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        if token_source.lasting_file().is_none() {
            let token = (self.usable_token(token_source, tool::wrong_token)).await?;
            let content = format!("{}\n", token.expose());
            let path = Utf8Path::new(agent.token);
            (self.host.files).write(path, content.as_bytes(), 0o600)?;
        }
        let joined = self.start_agent(agent, join, sink).await;
        // Also where somebody has asked to stop. What failed first is what must be told.
        if joined.is_err()
            && let Err(error) = self.hold_agent_back(agent, sink).await
        {
            sink.note(&format!("failed to {}", one_line(&error)));
        }
        joined
    }

    async fn start_agent(
        &self,
        agent: &Agent,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        // One that runs, and has joined nothing, does not know the configuration. It counts as started only once it
        // has joined, and systemd gives it any time.
        for (verb, cmd) in [
            ("stop", systemctl::act("stop", agent.unit)),
            ("start", systemctl::start_no_block(agent.unit)),
        ] {
            self.tool(&format!("{verb} `{}`", agent.unit), &cmd, sink)
                .await?;
        }
        let what = format!("wait until `{}` has joined", agent.unit);
        let joined = self
            .awaited(&what, join.timeout(), || async {
                let unit = self.unit_state(agent.unit).await?;
                // Without its certificate it is no membership yet, and the undo would be none.
                let there =
                    (self.joined_cluster()?).is_some_and(|now| now.kubeconfig == kubeconfig);
                Ok((there && unit.is_active()).then_some(()))
            })
            .await?;
        match joined {
            Some(()) => Ok(()),
            None => Err(join.timed_out(agent.unit, self.words_of(agent.unit).await)),
        }
    }

    /// Stops an agent that nobody waits for any more: it would go on for ever, and join a cluster at a moment that nobody
    /// awaits.
    pub(crate) async fn hold_agent_back(
        &self,
        agent: &Agent,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let unit = self.unit_state_if_any(agent.unit).await?;
        let runs = unit.is_some_and(|unit| !matches!(unit.active.as_str(), "inactive" | "failed"));
        let stopped = match runs {
            true => {
                let stop = systemctl::act("stop", agent.unit);
                let what = format!("stop `{}`", agent.unit);
                self.tool(&what, &stop, sink).await.map(drop)
            }
            false => Ok(()),
        };
        // The agent writes it before the kubelet runs: it would stand for a membership.
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        if self.host.files.exists(kubeconfig)? {
            self.host.files.remove(kubeconfig)?;
        }
        self.forget_token(agent)?;
        stopped
    }

    /// Removes our file with the token.
    pub(crate) fn forget_token(&self, agent: &Agent) -> Result<(), Problem> {
        let path = Utf8Path::new(agent.token);
        if self.host.files.exists(path)? {
            self.host.files.remove(path)?;
        }
        Ok(())
    }

    pub(crate) async fn leave_by_agent(
        &self,
        agent: &Agent,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        if !self.host.files.exists(kubeconfig)? {
            self.forget_token(agent)?;
            return Ok(Reverted::nothing("the machine is no node any more"));
        }
        let what = format!("stop `{}`", agent.unit);
        self.tool(&what, &systemctl::act("stop", agent.unit), sink)
            .await?;
        self.host.files.remove(kubeconfig)?;
        self.forget_token(agent)?;
        Ok(Reverted::left(
            format!(
                "the data and the containers of {} (its own script removes them: `{}-killall.sh`)",
                agent.name, agent.name
            ),
            format!("{} was on this machine before", agent.name),
        ))
    }
}
