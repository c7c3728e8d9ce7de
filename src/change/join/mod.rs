//! Joins a cluster, and leaves it. The join methods are in `crate::joins`.
//!
//! gpu-bootstrap leaves only a cluster that it joined. The undo contains the joined cluster. After a failed join, the undo
//! contains no cluster, so an existing node with the same name is not deleted. A control plane is never reset.
//!
//! The token is read when the machine joins. Settings, changes and the journal only contain its location.

mod node;

use std::time::Duration;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use node::Deleted;
pub use node::{Admission, RestoreLabels};

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{
    joins::{Join, Leave},
    model::kubernetes::NodeName,
    tools::kubernetes::membership::Membership,
};

/// Time for pods to terminate when the machine leaves.
const DRAIN: Duration = Duration::from_secs(300);

/// The undo of a join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaveCluster {
    /// How to leave a cluster that was joined with this method.
    pub leave: Leave,
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
    /// Returns the undo of a join. The step has already checked that the machine is not a node.
    pub(super) fn capture_join(&self, join: &Join) -> Result<Undo, ChangeError> {
        let leave = join.method.implementation().leaving(self, join)?;
        Ok(Undo::LeaveCluster(LeaveCluster {
            leave,
            node: join.node.clone(),
            access: join.access.clone(),
            machine: self.machine_id()?.map(|(_, id)| id.into()),
            cluster: None,
        }))
    }

    /// Adds the joined cluster to the undo. If no cluster was joined and the join has not started, there is nothing to undo.
    pub(super) async fn refine_join(&self, mut undo: LeaveCluster) -> Result<Undo, ChangeError> {
        undo.cluster = self.joined_by(&undo.leave).await?;
        let begun = undo.leave.implementation().has_begun(self)?;
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
    ) -> Result<Reverted, ChangeError> {
        let (leave, node, joined) = (undo.leave.implementation(), &undo.node, &undo.cluster);
        let stays = |why: String| {
            Ok(Reverted::left(
                format!("the membership of `{node}` in a cluster"),
                why,
            ))
        };
        if let Some(why) = leave.never() {
            return stays(why);
        }
        let now = match joined {
            Some(_) if leave.counts_without_kubelet() => self.joined_cluster()?,
            _ => self.joined_by(&undo.leave).await?,
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
        // Do not delete a node whose machine cannot leave.
        if let Some(why) = leave.stays(self, is_member, clone.as_deref())? {
            return stays(why);
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
        let left = leave.leave(self, is_member, sink).await?;
        Ok(Reverted::of(vec![deleted, left]))
    }
}
