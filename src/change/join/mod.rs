//! The machine joins a cluster, and leaves it. One file for each way to join.
//!
//! Only what this program joined is left. The undo names the cluster: that of a join which failed names
//! none, so nobody's node of the same name is deleted. A control plane is never reset.
//!
//! The token is read when the machine joins. Settings, changes and the journal name only its place.

mod node;

use std::time::Duration;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use node::Deleted;
pub use node::{Admission, RestoreLabels};

use super::{Applier, Problem, Reverted, Sink, Undo};
use crate::{
    joins::{Join, Leave},
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
        let way = join.method.way().leaving(self, join)?;
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
        let begun = undo.way.way().has_begun(self)?;
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
        let (way, node, joined) = (undo.way.way(), &undo.node, &undo.cluster);
        let stays = |why: String| {
            Ok(Reverted::left(
                format!("the membership of `{node}` in a cluster"),
                why,
            ))
        };
        if let Some(why) = way.never() {
            return stays(why);
        }
        let now = match joined {
            Some(_) if way.counts_without_kubelet() => self.joined_cluster()?,
            _ => self.joined_by(&undo.way).await?,
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
        // A node is not deleted whose machine cannot leave.
        if let Some(why) = way.stays(self, is_member, clone.as_deref())? {
            return stays(why);
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
        let left = way.leave(self, is_member, sink).await?;
        Ok(Reverted::of(vec![deleted, left]))
    }
}
