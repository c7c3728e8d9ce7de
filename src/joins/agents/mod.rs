//! Joins a k3s or RKE2 cluster with its agent. gpu-bootstrap writes a configuration file for the agent and starts its systemd
//! unit. The agent process contains the kubelet, which registers the node.

mod tool;

use async_trait::async_trait;
use camino::Utf8Path;

pub use tool::{
    ALL, Agent, CLOUD_SETUP, K3S, NO_VERSION, RKE2, configuration, server_of, wrong_token,
};

use super::{
    API_PORT, Found, Given, Join, JoinMethod, Joining, Lack, Leave, Leaving, MethodRow, MethodTool,
    NodeRule, RuntimeClass, Wrongs,
};
use crate::{
    error::one_line,
    model::{
        kubernetes::{Labels, NodeName, Taint},
        token::TokenSource,
    },
    runtimes::choice::Cluster,
    tools::{
        kubernetes::{kubeconfig, membership::Membership},
        systemctl,
    },
    work::{ChangeError, Hands, Reverted, Sink},
};

/// The properties that the k3s and RKE2 join methods share.
const ROW: MethodRow = MethodRow {
    keys: &["server", "token"],
    runtimes: Cluster::BringsOwn("k3s and RKE2 ship their own"),
    node: NodeRule::OURS,
    has_packages: false,
    read: |_, _| None,
};

pub(super) const OF_K3S: MethodRow = MethodRow {
    read: |given, wrong| {
        let (server, token_source) = read(&K3S, given, wrong)?;
        Some(JoinMethod::K3s {
            server,
            token_source,
        })
    },
    ..ROW
};

pub(super) const OF_RKE2: MethodRow = MethodRow {
    read: |given, wrong| {
        let (server, token_source) = read(&RKE2, given, wrong)?;
        Some(JoinMethod::Rke2 {
            server,
            token_source,
        })
    },
    ..ROW
};

fn read(agent: &Agent, given: &Given<'_>, wrong: &mut Wrongs) -> Option<(String, TokenSource)> {
    let server = server(agent, given, wrong);
    let source = wrong.needed(
        "token",
        given.token,
        "set it to the location of an agent token, such as \"file:/etc/gpu-bootstrap/join-token\" (create one with \
            `k3s token create --ttl 2h` or `rke2 token create --ttl 2h` on a server, or use the file `agent-token` of a \
            server that was started with `--agent-token`)",
    );
    Some((server?, source?.clone()))
}

fn server(agent: &Agent, given: &Given<'_>, wrong: &mut Wrongs) -> Option<String> {
    let Agent { name, port, .. } = agent;
    let example = format!("set it to \"https://HOST:{port}\"");
    let server = wrong.needed("server", given.server, &example)?;
    if !server.starts_with("https://") {
        let why = format!("{name} requires an `https://` URL");
        return wrong.add("server", &why, &example);
    }
    if *port != API_PORT
        && server
            .trim_end_matches('/')
            .ends_with(&format!(":{API_PORT}"))
    {
        let why =
            format!("port {API_PORT} is for the API, but {name} nodes register at port {port}");
        return wrong.add("server", &why, &example);
    }
    // The placeholders in the cloud-init templates contain `@`, such as `@TOKEN@`. An `@` means that one was not replaced.
    if server.contains('@') {
        return wrong.add("server", "a server URL must not contain `@`", &example);
    }
    Some(server.to_owned())
}

/// Joins with the k3s or RKE2 agent.
pub(super) struct ByAgent<'a> {
    pub agent: &'static Agent,
    pub server: &'a str,
    pub token_source: &'a TokenSource,
    /// The undo of the join, which is stored in the journal.
    pub leave: Leave,
}

#[async_trait]
impl Joining for ByAgent<'_> {
    fn tool(&self) -> MethodTool<'_> {
        MethodTool {
            unit: Some(self.agent.unit),
            config: Some(self.agent.config),
            conflict: Some(CLOUD_SETUP),
            ..MethodTool::default()
        }
    }

    fn wrong_token(&self, token: &str) -> Option<&'static str> {
        wrong_token(token)
    }

    /// Source: k3s, "Advanced Options"; RKE2, "GPU Operators".
    fn runtime_class(&self) -> RuntimeClass {
        RuntimeClass::Existing
    }

    fn missing(&self, found: &Found) -> Option<Lack> {
        let unit = self.agent.unit;
        if !found.has_unit {
            return Some(Lack {
                why: format!("`{unit}` does not exist"),
                hint: "install the agent without starting it, with the script or the packages of k3s or RKE2, then run the \
                       command again; gpu-bootstrap does not install it",
            });
        }
        found.conflicts.then(|| Lack {
            why: format!("`{unit}` does not start while `{CLOUD_SETUP}` is enabled"),
            hint: "install an agent release from October 2025 or newer, which does not have this restriction, or run \
                   `systemctl disable nm-cloud-setup.service nm-cloud-setup.timer` and reboot",
        })
    }

    fn our_file(
        &self,
        node: &NodeName,
        labels: &Labels,
        taints: &[Taint],
    ) -> Option<(&'static str, String)> {
        let token = self.token_source.persistent_file();
        let token = token.unwrap_or_else(|| Utf8Path::new(self.agent.token));
        let content = configuration(self.server, token, node, labels, taints);
        Some((self.agent.config, content))
    }

    /// The server in the kubeconfig is a local proxy of the agent.
    fn endpoint<'a>(&'a self, _: &'a Membership) -> &'a str {
        self.server
    }

    /// The server in the kubeconfig is a local proxy of the agent, so it does not identify the cluster. Instead, compares the
    /// path of the kubeconfig, which identifies the agent, and the server in our configuration file.
    fn another(
        &self,
        membership: &Membership,
        config: Option<&str>,
        _: Option<&kubeconfig::Cluster>,
    ) -> Option<String> {
        let Agent {
            name, config: path, ..
        } = self.agent;
        if membership.kubeconfig != self.agent.kubeconfig {
            return Some(format!("the settings specify the {name} agent"));
        }
        let (joined, server) = (config.and_then(server_of)?, self.server);
        (joined != server)
            .then(|| format!("it joined {joined} (`{path}`), but the settings specify {server}"))
    }

    fn agent(&self) -> Option<&'static Agent> {
        Some(self.agent)
    }

    fn leaving(&self, _: &Hands, _: &Join) -> Result<Leave, ChangeError> {
        Ok(self.leave.clone())
    }

    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        (hands.join_by_agent(self.agent, self.token_source, join, sink)).await
    }
}

/// Leaves the cluster by stopping the agent.
pub(super) struct StopAgent(pub &'static Agent);

#[async_trait]
impl Leaving for StopAgent {
    /// Our configuration file is sufficient, because with it the unit may join at any later start, such as the next boot.
    fn has_begun(&self, hands: &Hands) -> Result<bool, ChangeError> {
        Ok(hands.host.files.exists(Utf8Path::new(self.0.config))?)
    }

    /// Stops an agent that has not joined, and removes its token file. After a join, the token file is kept, because the agent
    /// reads it at each start.
    async fn clear(&self, hands: &Hands, sink: &dyn Sink) -> Result<(), ChangeError> {
        match hands.joined_cluster()? {
            Some(_) => Ok(()),
            None => hands.hold_agent_back(self.0, sink).await,
        }
    }

    async fn leave(
        &self,
        hands: &Hands,
        _: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        hands.leave_by_agent(self.0, sink).await
    }
}

impl Hands {
    pub(crate) async fn join_by_agent(
        &self,
        agent: &Agent,
        token_source: &TokenSource,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if token_source.persistent_file().is_none() {
            let token = (self.usable_token(token_source, tool::wrong_token)).await?;
            let content = format!("{}\n", token.expose());
            let path = Utf8Path::new(agent.token);
            (self.host.files).write(path, content.as_bytes(), 0o600)?;
        }
        let joined = self.start_agent(agent, join, sink).await;
        // Stop the agent even after a stop request. The join error takes precedence over an error here.
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
    ) -> Result<(), ChangeError> {
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        // Restart the agent, because one that is already running has not read our configuration. Do not wait for the start job:
        // it finishes only after the agent has joined, and the unit disables its time limit (`TimeoutStartSec=0`).
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
                // Wait for the kubelet's certificate. Before that, the machine is not a node, and the join could not be undone.
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

    /// Stops an agent whose join failed or was interrupted. Otherwise the agent would retry, and could join unexpectedly later.
    pub(crate) async fn hold_agent_back(
        &self,
        agent: &Agent,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
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
        // The agent writes the kubeconfig before the kubelet runs. The file must not be mistaken for a membership later.
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        if self.host.files.exists(kubeconfig)? {
            self.host.files.remove(kubeconfig)?;
        }
        self.forget_token(agent)?;
        stopped
    }

    /// Removes our copy of the token, if it exists.
    pub(crate) fn forget_token(&self, agent: &Agent) -> Result<(), ChangeError> {
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
    ) -> Result<Reverted, ChangeError> {
        let kubeconfig = Utf8Path::new(agent.kubeconfig);
        if !self.host.files.exists(kubeconfig)? {
            self.forget_token(agent)?;
            return Ok(Reverted::nothing("the machine is no longer a node"));
        }
        let what = format!("stop `{}`", agent.unit);
        self.tool(&what, &systemctl::act("stop", agent.unit), sink)
            .await?;
        self.host.files.remove(kubeconfig)?;
        self.forget_token(agent)?;
        Ok(Reverted::left(
            format!(
                "the data and the containers of {} (`{}-killall.sh` stops the containers)",
                agent.name, agent.name
            ),
            format!("gpu-bootstrap did not install {}", agent.name),
        ))
    }
}
