//! The machine joins a cluster, and leaves it. One file for each way to join.
//!
//! Only what this program joined is left. The undo names the cluster: that of a join which failed names
//! none, so nobody's node of the same name is deleted. A control plane is never reset.
//!
//! The token is read when the machine joins. Settings, changes and the journal name only its place.

mod agent;
mod command;
mod eks;
mod kubeadm;
mod node;
mod token;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use node::Deleted;
pub use node::{Admission, RestoreLabels};

use super::{Applier, Problem, Reverted, Sink, Undo};
use crate::{
    error::one_line,
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
};

/// How long pods have to end when the machine leaves.
const DRAIN: Duration = Duration::from_secs(300);

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

/// The undo of a join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaveCluster {
    /// How a machine leaves that has joined in this way.
    pub way: Leave,
    /// The node's name.
    pub node: NodeName,
    /// A kubeconfig that may drain and delete the node.
    pub access: Option<Utf8PathBuf>,
    /// The id of the machine that joined; a clone has another one. `None` where a machine has none.
    pub machine: Option<Box<str>>,
    /// The cluster that it joined; `None` while that is not certain.
    pub cluster: Option<Membership>,
}

impl Join {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The error of a unit or program that has not joined the machine in time, with its last words.
    fn timed_out(&self, who: &str, words: Option<String>) -> Problem {
        let seconds = self.timeout_seconds;
        let what = format!("join the cluster: `{who}` has not joined it within {seconds} s");
        Problem::new("join-timeout", what)
            .telling(words)
            .advice("see what its log says, then run the command again")
    }
}

impl Applier {
    /// A machine that joins was no node before: the step has looked.
    pub(super) fn capture_join(&self, join: &Join) -> Result<Undo, Problem> {
        let way = match &join.method {
            JoinMethod::Kubeadm { socket, .. } => Leave::Kubeadm {
                socket: socket.clone(),
                created_folders: self.folders_of_kubeadm()?,
            },
            JoinMethod::K3s { .. } => Leave::K3s,
            JoinMethod::Rke2 { .. } => Leave::Rke2,
            JoinMethod::Eks => Leave::Nodeadm,
            JoinMethod::Command {
                environment_file,
                joined_file,
                leave_command,
                ..
            } if !leave_command.is_empty() => Leave::Command {
                command: leave_command.clone(),
                environment_file: environment_file.clone(),
                joined_file: joined_file.clone(),
                timeout_seconds: join.timeout_seconds,
            },
            JoinMethod::Command { .. } | JoinMethod::Managed => Leave::Never {
                method: join.method.name().to_owned(),
            },
        };
        Ok(Undo::LeaveCluster(LeaveCluster {
            way,
            node: join.node.clone(),
            access: join.access.clone(),
            machine: self.machine_id()?.map(|(_, id)| id.into()),
            cluster: None,
        }))
    }

    /// Which cluster it joined; nothing is left to undo where it joined none.
    pub(super) async fn refine_join(&self, mut undo: LeaveCluster) -> Result<Undo, Problem> {
        undo.cluster = self.joined_by(&undo.way).await?;
        let begun = match undo.way {
            Leave::Kubeadm { .. } => self.has_begun()?,
            // What a command has done is not known.
            Leave::Command { .. } | Leave::Never { .. } => true,
            // Its unit starts at the next boot, and joins as our configuration says.
            Leave::K3s => self.may_join(&agents::K3S)?,
            Leave::Rke2 => self.may_join(&agents::RKE2)?,
            Leave::Nodeadm => false,
        };
        if undo.cluster.is_none() && !begun {
            return Ok(Undo::nothing("the machine has joined no cluster"));
        }
        Ok(Undo::LeaveCluster(undo))
    }

    /// Whether an agent has a configuration of ours, by which it joins whenever it starts.
    fn may_join(&self, agent: &agents::Agent) -> Result<bool, Problem> {
        Ok(self.host.files.exists(Utf8Path::new(agent.config))?)
    }

    /// The cluster that the machine is a node of, or is about to be. `nodeadm` writes the kubeconfig at each boot, before
    /// anything may join; so does that of hybrid nodes, which a command starts.
    async fn joined_by(&self, way: &Leave) -> Result<Option<Membership>, Problem> {
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
    fn joined_cluster(&self) -> Result<Option<Membership>, Problem> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => {
                Problem::unreadable(format!("read `{path}`"), why)
            }
        })
    }

    /// Removes what an attempt of this program's has left that was cut off: the file with the token, and, if the machine
    /// has joined all the same, the mark of the attempt. `nodeadm` would join at the next boot, proven or not.
    pub(super) async fn clear_interrupted_join(
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

    pub(super) async fn join_cluster(&self, join: &Join, sink: &dyn Sink) -> Result<(), Problem> {
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

    /// Undoes a join: the pods move elsewhere and the node is deleted where a kubeconfig allows it, then the
    /// machine forgets the cluster. A machine that is a node of another cluster by now stays there.
    pub(super) async fn leave_cluster(
        &self,
        undo: &LeaveCluster,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        let (way, node, joined) = (&undo.way, &undo.node, &undo.cluster);
        let stays = |why: String| {
            Ok(Reverted::left(
                format!("the membership of `{node}` in a cluster"),
                why,
            ))
        };
        if let Leave::Never { method } = way {
            return stays(format!(
                "nothing undoes what `cluster.join = \"{method}\"` has done"
            ));
        }
        let now = match (way, joined) {
            // Its kubelet may have stopped since.
            (Leave::Command { .. }, Some(_)) => self.joined_cluster()?,
            _ => self.joined_by(way).await?,
        };
        match (joined, &now) {
            (Some(joined), Some(now)) if !joined.is_of_cluster_of(now) => {
                return stays(format!(
                    "this program joined {}, and the machine is a node of {} now",
                    joined.server, now.server
                ));
            }
            (None, Some(now)) => {
                return stays(format!(
                    "it is not certain that this program joined {}",
                    now.server
                ));
            }
            _ => {}
        }
        let is_member = now.is_some();
        let clone = self.is_clone_of(undo.machine.as_deref())?;
        if let (Leave::Command { .. }, Some(why)) = (way, &clone) {
            return stays(why.clone());
        }
        // A node is not deleted whose machine cannot leave.
        if let Leave::Command {
            command,
            environment_file,
            joined_file,
            timeout_seconds,
        } = way
            && !self.has_left_by_command(joined_file, is_member)?
        {
            let timeout = Duration::from_secs(*timeout_seconds);
            let runs = self.with_environment(command, environment_file.as_deref(), timeout);
            match runs {
                Ok(cmd) if !self.host.files.exists(Utf8Path::new(&cmd.program))? => {
                    return stays(format!(
                        "`{}` does not exist, which `cluster.leave-command` names",
                        cmd.program
                    ));
                }
                Ok(_) => {}
                Err(error) => return stays(one_line(&error)),
            }
        }
        let deleted = match (now, clone) {
            (None, _) => Reverted::nothing("the machine is no node any more"),
            (Some(_), Some(why)) => {
                Reverted::left(format!("the node `{node}` in the cluster"), why)
            }
            (Some(now), None) => match self
                .delete_node(node, undo.access.as_deref(), &now, sink)
                .await?
            {
                Deleted::Refused(why) => return stays(why),
                Deleted::Ended(ended) => ended,
            },
        };
        let left = match way {
            Leave::Kubeadm {
                socket,
                created_folders,
            } => {
                self.leave_by_kubeadm((socket, created_folders), sink)
                    .await?
            }
            Leave::K3s => self.leave_by_agent(&agents::K3S, sink).await?,
            Leave::Rke2 => self.leave_by_agent(&agents::RKE2, sink).await?,
            Leave::Command {
                command,
                environment_file,
                joined_file,
                timeout_seconds,
            } => {
                let files = (environment_file.as_deref(), joined_file.as_path());
                let timeout = Duration::from_secs(*timeout_seconds);
                self.leave_by_command((command, timeout), files, is_member, sink)
                    .await?
            }
            // Of what nothing undoes, nothing is left to do here: it has stayed.
            Leave::Nodeadm | Leave::Never { .. } => self.leave_by_nodeadm(sink).await?,
        };
        Ok(Reverted::of(vec![deleted, left]))
    }

    /// A secret in a file. Its step has looked before: the file may have changed since.
    fn secret(&self, path: &Utf8Path) -> Result<Secret, Problem> {
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
    fn refuse_unusable(&self, path: &Utf8Path) -> Result<(), Problem> {
        match unusable_secret(&*self.host.files, path)? {
            None => Ok(()),
            Some(why) => Err(bad_secret(path, &why)),
        }
    }

    /// Writes a file with a secret below the run folder, and removes it when the work is done. kubeadm
    /// takes a token from its configuration or from the command line only.
    async fn with_secret_file<T>(
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
fn bad_secret(path: &Utf8Path, why: &str) -> Problem {
    Problem::new("join-secret", format!("use the secret in `{path}`: {why}"))
        .advice("write the secret into the file, with `chmod 600`, then run the command again")
}
