//! The methods to join a cluster, one file each.

mod agent;
mod command;
mod eks;
mod kubeadm;
mod token;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{
    host::trusted::unusable_secret,
    model::{
        cluster::JoinMethod,
        kubernetes::{Labels, NodeName, Taint},
        paths,
        secret::Secret,
    },
    tools::kubernetes::{
        agents,
        kubeadm::UNIT as KUBELET,
        membership::{self, Membership, MembershipError},
        nodeadm,
    },
    work::{Hands, Problem, Sink},
};

/// The cluster to join, and the registration of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Join {
    /// The join method.
    pub method: JoinMethod,
    /// The node name.
    pub node: NodeName,
    /// The node labels.
    pub labels: Labels,
    /// The node taints.
    pub taints: Vec<Taint>,
    /// A kubeconfig that may drain and delete the node when the machine leaves.
    pub access: Option<Utf8PathBuf>,
    /// Time limit of each part of the join, in seconds.
    pub timeout_seconds: u64,
}

/// How a machine leaves a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Leave {
    /// `kubeadm reset`.
    Kubeadm {
        /// The URL of the container runtime socket.
        socket: String,
        /// Directories that did not exist before. They are removed if they are empty.
        created_folders: Vec<Utf8PathBuf>,
    },
    /// Stop the k3s agent.
    K3s,
    /// Stop the RKE2 agent.
    Rke2,
    /// Prevent `nodeadm` of EKS from joining, and stop its kubelet.
    Nodeadm,
    /// Run a command of the administrator.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The file with its environment.
        environment_file: Option<Utf8PathBuf>,
        /// The file that exists while the machine is a node.
        joined_file: Utf8PathBuf,
        /// Time limit of the command, in seconds.
        timeout_seconds: u64,
    },
    /// This join method cannot be undone.
    Never {
        /// Its name in the settings.
        method: String,
    },
}

impl Join {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The error of a unit or program that has not joined in time, with its last output.
    pub(crate) fn timed_out(&self, who: &str, words: Option<String>) -> Problem {
        let seconds = self.timeout_seconds;
        let what = format!("join the cluster: `{who}` did not join within {seconds} s");
        Problem::new("join-timeout", what)
            .telling(words)
            .advice("check its log, then run the command again")
    }
}

impl Hands {
    /// Returns `true` if an agent has our configuration. It then joins whenever it starts.
    pub(crate) fn may_join(&self, agent: &agents::Agent) -> Result<bool, Problem> {
        Ok(self.host.files.exists(Utf8Path::new(agent.config))?)
    }

    /// The cluster that the machine is, or is about to be, a node of. `nodeadm` writes the kubeconfig at each boot, before it
    /// is allowed to join. So does `nodeadm` of hybrid nodes, which is started by a command.
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

    /// The cluster for which the kubelet of this machine has credentials.
    pub(crate) fn joined_cluster(&self) -> Result<Option<Membership>, Problem> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => {
                Problem::unreadable(format!("read `{path}`"), why)
            }
        })
    }

    /// Cleans up after an interrupted attempt: removes the token file and, if the machine has joined, the marker file. Stops
    /// `nodeadm`, which would otherwise join at the next boot without a validation.
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
            // The step never requests this.
            JoinMethod::Managed => Ok(()),
        }
    }

    /// Reads a secret from a file. It is checked again, because it may have changed since the step checked it.
    pub(crate) fn secret(&self, path: &Utf8Path) -> Result<Secret, Problem> {
        self.refuse_unusable(path)?;
        let text = self.host.files.read_text(path)?;
        let text = text.ok_or_else(|| bad_secret(path, "it is missing"))?;
        // It may have changed since the start of the run.
        let secret = Secret::new(text.trim());
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Rejects a file with a secret, or a kubeconfig, if other users may read or replace it. A kubeconfig can contain a command
    /// that kubectl runs.
    pub(crate) fn refuse_unusable(&self, path: &Utf8Path) -> Result<(), Problem> {
        match unusable_secret(&*self.host.files, path)? {
            None => Ok(()),
            Some(why) => Err(bad_secret(path, &why)),
        }
    }

    /// Writes a secret to a file in the run directory, and removes it afterwards. kubeadm only accepts a token in its
    /// configuration or on the command line.
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

/// The error of an unusable secret file.
pub(crate) fn bad_secret(path: &Utf8Path, why: &str) -> Problem {
    Problem::new("join-secret", format!("use the secret in `{path}`: {why}"))
        .advice("write the secret into the file, with `chmod 600`, then run the command again")
}
