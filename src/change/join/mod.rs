//! Joins a cluster, and leaves it. One file for each join method.
//!
//! Only a cluster that gpu-bootstrap joined is left. The undo contains the cluster, which is missing if the join failed, so a
//! node of the same name is not deleted. A control plane is never reset.
//!
//! The token is read when the machine joins. Settings, changes and the journal only contain its location.

mod node;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use node::Deleted;
pub use node::{Admission, RestoreLabels};

use super::{Applier, Problem, Reverted, Sink, Undo};
use crate::{
    error::one_line,
    joins::{Join, Leave},
    model::{cluster::JoinMethod, kubernetes::NodeName},
    tools::kubernetes::{agents, membership::Membership},
};

/// Time for pods to terminate when the machine leaves.
const DRAIN: Duration = Duration::from_secs(300);

/// The undo of a join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaveCluster {
    /// How to leave a cluster that was joined with this method.
    pub way: Leave,
    /// The node name.
    pub node: NodeName,
    /// A kubeconfig that may drain and delete the node.
    pub access: Option<Utf8PathBuf>,
    /// The id of the machine that joined. A clone has a different one. `None` if the machine has no id.
    pub machine: Option<Box<str>>,
    /// The cluster that it joined. `None` while this is uncertain.
    pub cluster: Option<Membership>,
}

impl Applier {
    /// A machine that joins was not a node before, which the step has checked.
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

    /// Adds the joined cluster. If no cluster was joined, there is nothing to undo.
    pub(super) async fn refine_join(&self, mut undo: LeaveCluster) -> Result<Undo, Problem> {
        undo.cluster = self.joined_by(&undo.way).await?;
        let begun = match undo.way {
            Leave::Kubeadm { .. } => self.has_begun()?,
            // The effect of a command is unknown.
            Leave::Command { .. } | Leave::Never { .. } => true,
            // The unit starts at the next boot and joins with our configuration.
            Leave::K3s => self.may_join(&agents::K3S)?,
            Leave::Rke2 => self.may_join(&agents::RKE2)?,
            Leave::Nodeadm => false,
        };
        if undo.cluster.is_none() && !begun {
            return Ok(Undo::nothing("the machine has not joined a cluster"));
        }
        Ok(Undo::LeaveCluster(undo))
    }

    /// Reverts a join: drains and deletes the node if a kubeconfig allows it, and then makes the machine leave the cluster. A
    /// machine that is now a node of another cluster is not changed.
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
                "the changes of `cluster.join = \"{method}\"` cannot be reverted"
            ));
        }
        let now = match (way, joined) {
            // Its kubelet may have stopped in the meantime.
            (Leave::Command { .. }, Some(_)) => self.joined_cluster()?,
            _ => self.joined_by(way).await?,
        };
        match (joined, &now) {
            (Some(joined), Some(now)) if !joined.is_of_cluster_of(now) => {
                return stays(format!(
                    "gpu-bootstrap joined {}, but the machine is now a node of {}",
                    joined.server, now.server
                ));
            }
            (None, Some(now)) => {
                return stays(format!(
                    "it is unknown whether gpu-bootstrap joined {}",
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
        // Do not delete a node whose machine cannot leave.
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
                        "`{}` from `cluster.leave-command` does not exist",
                        cmd.program
                    ));
                }
                Ok(_) => {}
                Err(error) => return stays(one_line(&error)),
            }
        }
        let deleted = match (now, clone) {
            (None, _) => Reverted::nothing("the machine is no longer a node"),
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
            // `Leave::Never` was already handled.
            Leave::Nodeadm | Leave::Never { .. } => self.leave_by_nodeadm(sink).await?,
        };
        Ok(Reverted::of(vec![deleted, left]))
    }
}
