//! The machine joins a cluster, and leaves it. One file for each way to join.
//!
//! Only what this program joined is left. The undo names the cluster: that of a join which failed names
//! none, so nobody's node of the same name is deleted. A control plane is never reset.
//!
//! The token is read when the machine joins. Settings, changes and the journal name only its place.

mod node;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use node::Deleted;
pub use node::{Admission, RestoreLabels};

use super::{Applier, Problem, Reverted, Sink, Undo};
use crate::{
    error::one_line,
    joins::{Join, JoinMethod, Leave, agents},
    model::kubernetes::NodeName,
    tools::kubernetes::membership::Membership,
};

/// How long pods have to end when the machine leaves.
const DRAIN: Duration = Duration::from_secs(300);

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
}
