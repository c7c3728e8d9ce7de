//! The ways to join a cluster, one file each.

pub mod agents;
mod command;
pub mod kubeadm;
mod method;
pub mod nodeadm;
mod token;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

pub use method::{ClusterWish, Discovery, JoinKind, JoinMethod, NodeWish, SecretKind};

use kubeadm::UNIT as KUBELET;

use crate::{
    host::trusted::unusable_secret,
    model::{
        kubernetes::{Labels, NodeName, Taint},
        paths,
        secret::Secret,
    },
    tools::kubernetes::membership::{self, Membership, MembershipError},
    work::{Hands, Problem, Sink},
};

/// What a machine joins, and with what it is registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Join {
    /// How.
    pub method: JoinMethod,
    /// The node's name.
    pub node: NodeName,
    /// Its labels.
    pub labels: Labels,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// A kubeconfig that may drain and delete the node when the machine leaves.
    pub access: Option<Utf8PathBuf>,
    /// Seconds for each part of the join.
    pub timeout_seconds: u64,
}

/// How a machine leaves a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Leave {
    /// `kubeadm reset`.
    Kubeadm {
        /// The address of the container runtime's socket.
        socket: String,
        /// Folders that were not there before; removed if they are empty.
        created_folders: Vec<Utf8PathBuf>,
    },
    /// The agent of k3s stops.
    K3s,
    /// The agent of RKE2 stops.
    Rke2,
    /// EKS' `nodeadm` may not join any more, and its kubelet stops.
    Nodeadm,
    /// A command of the administrator's.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists while the machine is a node.
        joined_file: Utf8PathBuf,
        /// Seconds for the command.
        timeout_seconds: u64,
    },
    /// Nothing undoes this way to join.
    Never {
        /// Its name in the settings.
        method: String,
    },
}

/// What is wrong with a token, as its form tells.
#[must_use]
pub fn wrong_token(method: &JoinMethod, token: &str) -> Option<&'static str> {
    match method {
        JoinMethod::Kubeadm { .. } => (!kubeadm::is_token(token)).then_some(kubeadm::NO_TOKEN),
        JoinMethod::K3s { .. } | JoinMethod::Rke2 { .. } => agents::wrong_token(token),
        _ => None,
    }
}

impl Join {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The error of a unit or program that has not joined the machine in time, with its last words.
    pub(crate) fn timed_out(&self, who: &str, words: Option<String>) -> Problem {
        let seconds = self.timeout_seconds;
        let what = format!("join the cluster: `{who}` has not joined it within {seconds} s");
        Problem::new("join-timeout", what)
            .telling(words)
            .advice("see what its log says, then run the command again")
    }
}

impl Hands {
    /// Whether an agent has a configuration of ours, by which it joins whenever it starts.
    pub(crate) fn may_join(&self, agent: &agents::Agent) -> Result<bool, Problem> {
        Ok(self.host.files.exists(Utf8Path::new(agent.config))?)
    }

    /// The cluster that the machine is a node of, or is about to be. `nodeadm` writes the kubeconfig at each boot, before
    /// anything may join; so does that of hybrid nodes, which a command starts.
    pub(crate) async fn joined_by(&self, way: &Leave) -> Result<Option<Membership>, Problem> {
        let found = self.joined_cluster()?;
        let is_early = match way {
            Leave::Nodeadm => !self.host.files.exists(nodeadm::MAY_JOIN.into())?,
            Leave::Command { .. } => {
                (found.as_ref()).is_some_and(|found| found.kubeconfig == nodeadm::KUBECONFIG)
            }
            _ => false,
        };
        if is_early && !self.unit_state(KUBELET).await?.is_active() {
            return Ok(None);
        }
        Ok(found)
    }

    /// The cluster that this machine's kubelet has credentials of.
    pub(crate) fn joined_cluster(&self) -> Result<Option<Membership>, Problem> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => {
                Problem::unreadable(format!("read `{path}`"), why)
            }
        })
    }

    /// Removes what an attempt of this program's has left that was cut off: the file with the token, and, if the machine
    /// has joined all the same, the mark of the attempt. `nodeadm` would join at the next boot, proven or not.
    pub(crate) async fn clear_interrupted_join(
        &self,
        way: &Leave,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let files = &self.host.files;
        if *way == Leave::Nodeadm
            && files.exists(nodeadm::MAY_JOIN.into())?
            && !self.unit_state(KUBELET).await?.is_active()
        {
            self.hold_nodeadm_back(sink).await?;
        }
        let configuration = Utf8Path::new(paths::RUN).join(kubeadm::CONFIGURATION);
        if files.exists(&configuration)? {
            files.remove(&configuration)?;
        }
        let mark = self.state.join(kubeadm::JOINING);
        let has_joined = self.joined_cluster()?.is_some();
        if has_joined && files.exists(&mark)? {
            files.remove(&mark)?;
        }
        // An agent that has joined reads its own token at each start.
        if !has_joined {
            match way {
                Leave::K3s => self.hold_agent_back(&agents::K3S, sink).await?,
                Leave::Rke2 => self.hold_agent_back(&agents::RKE2, sink).await?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) async fn join_cluster(&self, join: &Join, sink: &dyn Sink) -> Result<(), Problem> {
        match &join.method {
            JoinMethod::Kubeadm {
                discovery,
                socket,
                ignore_preflight_errors,
            } => {
                self.join_by_kubeadm(join, (discovery, socket, ignore_preflight_errors), sink)
                    .await
            }
            JoinMethod::K3s { token_source, .. } => {
                self.join_by_agent(&agents::K3S, token_source, join, sink)
                    .await
            }
            JoinMethod::Rke2 { token_source, .. } => {
                self.join_by_agent(&agents::RKE2, token_source, join, sink)
                    .await
            }
            JoinMethod::Eks => self.join_by_nodeadm(join, sink).await,
            JoinMethod::Command {
                command,
                environment_file,
                joined_file,
                leave_command: _,
            } => {
                let files = (environment_file.as_deref(), joined_file.as_path());
                self.join_by_command(join, command, files, sink).await
            }
            // The step never asks for it.
            JoinMethod::Managed => Ok(()),
        }
    }

    /// A secret in a file. Its step has looked before: the file may have changed since.
    pub(crate) fn secret(&self, path: &Utf8Path) -> Result<Secret, Problem> {
        self.refuse_unusable(path)?;
        let text = self.host.files.read_text(path)?;
        let text = text.ok_or_else(|| bad_secret(path, "it is missing"))?;
        // It may be another one than at the start of the run.
        let secret = Secret::new(text.trim());
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Refuses a file with a secret, or a kubeconfig, that others than root may read or replace: a kubeconfig can name a
    /// program, which kubectl runs.
    pub(crate) fn refuse_unusable(&self, path: &Utf8Path) -> Result<(), Problem> {
        match unusable_secret(&*self.host.files, path)? {
            None => Ok(()),
            Some(why) => Err(bad_secret(path, &why)),
        }
    }

    /// Writes a file with a secret below the run folder, and removes it when the work is done. kubeadm
    /// takes a token from its configuration or from the command line only.
    pub(crate) async fn with_secret_file<T>(
        &self,
        name: &str,
        content: &Secret,
        work: impl AsyncFnOnce(&Utf8Path) -> T,
    ) -> Result<T, Problem> {
        let path = Utf8Path::new(paths::RUN).join(name);
        let files = &self.host.files;
        files.write(&path, content.expose().as_bytes(), 0o600)?;
        let done = work(&path).await;
        files.remove(&path)?;
        Ok(done)
    }
}

/// The error of a file with a secret that cannot be used.
pub(crate) fn bad_secret(path: &Utf8Path, why: &str) -> Problem {
    Problem::new("join-secret", format!("use the secret in `{path}`: {why}"))
        .advice("write the secret into the file, with `chmod 600`, then run the command again")
}
