//! Changes of the node object in the cluster: wait until the node is Ready, set its labels, remove the startup taints, and
//! delete it when the machine leaves.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::DRAIN;
use crate::{
    change::{Applier, ChangeError, Reverted, Sink, Undo},
    error::one_line,
    host::Cmd,
    model::kubernetes::{Labels, NodeName, Taint},
    tools::kubernetes::{
        kubeconfig,
        kubectl::{self, Kubectl, MACHINE_IDS, Node, Registered},
        membership::Membership,
    },
};

/// The requirements of a node before pods may be scheduled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Admission {
    /// The node name.
    pub node: NodeName,
    /// Labels that are missing or have other values.
    pub labels: Labels,
    /// The startup taints, which are removed last.
    pub startup_taints: Vec<Taint>,
    /// A kubeconfig that may remove the taints.
    pub access: Option<Utf8PathBuf>,
    /// Time limit until the node must be Ready, in seconds.
    pub timeout_seconds: u64,
}

/// Restores the previous labels of a node. Its cluster may no longer be reachable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreLabels {
    /// The node name.
    pub node: NodeName,
    /// The id of the node's machine, as in [`LeaveCluster`](super::LeaveCluster).
    pub machine: Option<Box<str>>,
    /// The labels that the change sets, with their previous values.
    pub labels: BTreeMap<String, Option<String>>,
    /// The values that the change sets. A label with a different value was changed by another program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ours: BTreeMap<String, String>,
}

/// Prefix of the reason that a cluster could not be queried.
const SILENT: &str = "cannot query the cluster: ";

impl Admission {
    fn bound(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    fn not_ready(&self, why: String) -> ChangeError {
        let (node, seconds) = (&self.node, self.timeout_seconds);
        ChangeError::new(
            "node-not-ready",
            format!("wait until node `{node}` is Ready: not ready after {seconds} s ({why})"),
        )
        .advice(
            "run `kubectl describe node`; the usual cause is a cluster without a CNI plugin. The \
             next `install` waits again",
        )
    }

    /// A one-line summary in the imperative.
    pub(in crate::change) fn summary(&self) -> String {
        let mut parts = vec![format!("wait until node `{}` is Ready", self.node)];
        if !self.labels.is_empty() {
            let keys: Vec<&str> = self.labels.keys().map(String::as_str).collect();
            parts.push(format!("label it with {}", keys.join(", ")));
        }
        let taints = self.startup_taints.iter();
        parts.extend(taints.map(|taint| format!("remove the taint {}", taint.key)));
        parts.join(", ")
    }
}

impl Applier {
    pub(in crate::change) async fn capture_admission(
        &self,
        admission: &Admission,
    ) -> Result<Undo, ChangeError> {
        if admission.labels.is_empty() {
            return Ok(Undo::nothing("nothing to undo for a node that is Ready"));
        }
        // The node object may not exist yet if the machine has just joined.
        let now = match self
            .answer_about(&admission.node, admission.bound())
            .await?
        {
            Registered::Node(node) => node.labels,
            Registered::Unknown => Labels::new(),
            Registered::Silent(why) => return Err(admission.not_ready(format!("{SILENT}{why}"))),
        };
        Ok(Undo::RestoreLabels(RestoreLabels {
            node: admission.node.clone(),
            machine: self.machine_id()?.map(|(_, id)| id.into()),
            labels: (admission.labels.keys())
                .map(|key| (key.clone(), now.get(key).cloned()))
                .collect(),
            ours: admission.labels.clone(),
        }))
    }

    /// Queries the node, and waits for an API server that is temporarily unavailable. After the time limit, returns the last
    /// result.
    async fn answer_about(
        &self,
        name: &NodeName,
        bound: Duration,
    ) -> Result<Registered, ChangeError> {
        let what = format!("query the cluster for node `{name}`");
        let answer = self
            .awaited(&what, bound, || async {
                Ok(match self.node(name).await? {
                    Registered::Silent(_) => None,
                    answer => Some(answer),
                })
            })
            .await?;
        match answer {
            Some(answer) => Ok(answer),
            None => self.node(name).await,
        }
    }

    /// Changes the node object. If the API server becomes unavailable, tries once more as soon as it responds.
    async fn tell_cluster(
        &self,
        admission: &Admission,
        what: &str,
        cmd: &Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Err(error) = self.tool(what, cmd, sink).await else {
            return Ok(());
        };
        if !matches!(self.node(&admission.node).await, Ok(Registered::Silent(_))) {
            return Err(error);
        }
        sink.line(&format!(
            "{}; trying again when the cluster responds",
            one_line(&error)
        ));
        self.answer_about(&admission.node, admission.bound())
            .await?;
        self.tool(what, cmd, sink).await.map(drop)
    }

    pub(in crate::change) async fn admit_node(
        &self,
        admission: &Admission,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let name = &admission.node;
        let what = format!("wait until node `{name}` is Ready");
        let ready = self
            .awaited(&what, admission.bound(), || async {
                Ok(match self.node(name).await? {
                    Registered::Node(node) if node.ready => Some(node),
                    _ => None,
                })
            })
            .await?;
        let Some(node) = ready else {
            let why = match self.node(name).await? {
                Registered::Unknown => "it does not exist in the cluster".to_owned(),
                Registered::Silent(why) => format!("{SILENT}{why}"),
                Registered::Node(node) => node.why.unwrap_or_default(),
            };
            return Err(admission.not_ready(why));
        };
        let missing: Vec<(&str, Option<&str>)> = (admission.labels.iter())
            .filter(|(key, value)| node.labels.get(*key) != Some(value))
            .map(|(key, value)| (key.as_str(), Some(value.as_str())))
            .collect();
        let (kubectl, kubeconfig) = self.own_access(name)?;
        if !missing.is_empty() {
            let cmd = kubectl.label(&kubeconfig, name, missing.into_iter());
            let what = format!("label node `{name}`");
            self.tell_cluster(admission, &what, &cmd, sink).await?;
        }
        let there: Vec<&Taint> = (admission.startup_taints.iter())
            .filter(|startup| node.taints.iter().any(|taint| taint.key == startup.key))
            .collect();
        if let Some(access) = &admission.access
            && !there.is_empty()
        {
            self.refuse_unusable(access)?;
            let cmd = kubectl.untaint(access, name, &there);
            let what = format!("remove the startup taints of node `{name}`");
            self.tell_cluster(admission, &what, &cmd, sink).await?;
        }
        Ok(())
    }

    /// Reads the node with the permissions of its kubelet.
    pub(in crate::change) async fn node(&self, name: &NodeName) -> Result<Registered, ChangeError> {
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let asked = kubectl::registered(self.host.reader(), kubectl, &kubeconfig, name).await;
        asked.map_err(|source| {
            ChangeError::tool(format!("query the cluster for node `{name}`"), source)
        })
    }

    /// Returns kubectl, and the kubeconfig of the kubelet.
    pub(in crate::change) fn own_access(
        &self,
        name: &NodeName,
    ) -> Result<(Kubectl, Utf8PathBuf), ChangeError> {
        let kubectl = kubectl::find(&*self.host.files)?.ok_or_else(|| {
            let what = format!("query the cluster for node `{name}`: kubectl is not installed");
            ChangeError::new("no-kubectl", what)
                .advice("install kubectl, then run the command again")
        })?;
        let joined = self.joined_cluster()?;
        let joined =
            joined.ok_or_else(|| not_queried(name, "the machine is not a node".to_owned()))?;
        Ok((kubectl, joined.kubeconfig))
    }

    pub(in crate::change) async fn restore_node(
        &self,
        undo: &RestoreLabels,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let (name, labels) = (&undo.node, &undo.labels);
        let nothing = |why: &str| Ok(Reverted::nothing(why));
        if self.joined_cluster()?.is_none() || kubectl::find(&*self.host.files)?.is_none() {
            return nothing("the machine is no longer a node, or kubectl is not installed");
        }
        let node = match self.node(name).await? {
            Registered::Node(node) => node,
            Registered::Unknown => return nothing("the node no longer exists in the cluster"),
            Registered::Silent(why) => {
                let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
                return Ok(Reverted::left(
                    format!("the labels {} of node `{name}`", keys.join(", ")),
                    format!("{SILENT}{why}"),
                ));
            }
        };
        let not_ours = match self.is_clone_of(undo.machine.as_deref())? {
            None => self.is_another(&node)?,
            clone => clone,
        };
        if let Some(why) = not_ours {
            return Ok(Reverted::left(format!("the labels of node `{name}`"), why));
        }
        // A label whose value was changed by another program is kept.
        let before: Vec<(&str, Option<&str>)> = (labels.iter())
            .filter(|(key, before)| {
                let now = node.labels.get(*key);
                now != before.as_ref() && undo.ours.get(*key).is_none_or(|ours| now == Some(ours))
            })
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect();
        if before.is_empty() {
            return nothing("no label of the node has a value that gpu-bootstrap set");
        }
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let cmd = kubectl.label(&kubeconfig, name, before.into_iter());
        let what = format!("restore the labels of node `{name}`");
        self.tool(&what, &cmd, sink).await?;
        Ok(Reverted::done(what))
    }

    /// Drains and deletes the node if a kubeconfig allows it. An unreachable cluster does not prevent the machine from leaving,
    /// but pods that cannot be evicted do. A matching name is not sufficient to delete a node, because this machine may be a
    /// clone, and the kubeconfig may now point to another cluster.
    pub(super) async fn delete_node(
        &self,
        name: &NodeName,
        access: Option<&Utf8Path>,
        joined: &Membership,
        sink: &dyn Sink,
    ) -> Result<Deleted, ChangeError> {
        let left = |why: String| {
            Ok(Deleted::Ended(Reverted::left(
                format!("the node `{name}` in the cluster (`kubectl delete node {name}`)"),
                why,
            )))
        };
        let Some(access) = access else {
            return left(
                "no `cluster.kubeconfig-file` is configured that may delete it".to_owned(),
            );
        };
        if !self.host.files.exists(access)? {
            return left(format!("`{access}` no longer exists"));
        }
        if let Err(error) = self.refuse_unusable(access) {
            return left(one_line(&error));
        }
        if let Some(why) = self.leads_elsewhere(access, joined)? {
            return left(why);
        }
        let Some(kubectl) = kubectl::find(&*self.host.files)? else {
            return left("kubectl is not installed".to_owned());
        };
        let asked = kubectl::registered(self.host.reader(), kubectl, access, name).await;
        match asked {
            Ok(Registered::Node(node)) => {
                if let Some(why) = self.is_another(&node)? {
                    return left(why);
                }
            }
            Ok(Registered::Unknown) => {
                return Ok(Deleted::Ended(Reverted::nothing(format!(
                    "the node `{name}` no longer exists in the cluster"
                ))));
            }
            Ok(Registered::Silent(why)) => {
                return left(format!("{SILENT}{why}"));
            }
            Err(error) => return left(format!("{SILENT}{error}")),
        }
        let drain = kubectl.drain(access, name, DRAIN);
        let ran = self.exec(&drain, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&drain)) {
            return Ok(Deleted::Refused(format!(
                "its pods could not be evicted, so they continue to run here: {error}"
            )));
        }
        let delete = kubectl.delete(access, name);
        let ran = self.exec(&delete, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&delete)) {
            return left(format!("`kubectl delete` failed: {error}"));
        }
        Ok(Deleted::Ended(Reverted::done(format!(
            "the node `{name}` is drained and deleted"
        ))))
    }
}

impl Applier {
    /// Returns the reason a kubeconfig cannot be used to delete the node: it is missing, invalid, or points to a cluster other
    /// than the joined one. `None` if it points to the joined cluster, or if this is unknown.
    fn leads_elsewhere(
        &self,
        access: &Utf8Path,
        joined: &Membership,
    ) -> Result<Option<String>, ChangeError> {
        let Some(text) = self.host.files.read_text(access)? else {
            return Ok(Some(format!("`{access}` is missing")));
        };
        let theirs = match kubeconfig::parse(&text) {
            Ok(theirs) => theirs,
            Err(why) => return Ok(Some(format!("`{access}` is not a kubeconfig: {why}"))),
        };
        let pin = match (theirs.ca_pin, theirs.ca_file) {
            (Some(pin), _) => Some(pin),
            (None, Some(file)) => (self.host.files.read_text(Utf8Path::new(&file))?)
                .and_then(|pem| kubeconfig::pin_of(&pem)),
            (None, None) => None,
        };
        let differs = matches!((&pin, &joined.ca_pin), (Some(theirs), Some(own)) if theirs != own);
        Ok(differs.then(|| {
            format!(
                "`{access}` points to {}, whose certificate authority differs from the cluster \
                 that this machine has joined",
                theirs.server
            )
        }))
    }

    /// Returns the reason a node belongs, or may belong, to another machine. `None` if it belongs to this one. Each kubelet
    /// reports a machine id.
    pub(in crate::change) fn is_another(&self, node: &Node) -> Result<Option<String>, ChangeError> {
        let Some(theirs) = &node.system_uuid else {
            let why = "the machine ID of the node is unknown in the cluster, so it may be another \
                       machine";
            return Ok(Some(why.to_owned()));
        };
        Ok(match self.machine_id()? {
            Some((path, own)) => (!own.eq_ignore_ascii_case(theirs)).then(|| {
                format!(
                    "the node has the machine ID {theirs}, but this machine has {own} (`{path}`)"
                )
            }),
            None => Some(format!(
                "the node has the machine ID {theirs}, but this machine does not have {}",
                MACHINE_IDS.join(", ")
            )),
        })
    }
}

/// The result of deleting a node.
pub(super) enum Deleted {
    /// The machine may leave.
    Ended(Reverted),
    /// The machine must stay in its cluster, with the reason.
    Refused(String),
}

fn not_queried(name: &NodeName, why: String) -> ChangeError {
    ChangeError::unreadable(format!("query the cluster for node `{name}`"), why)
}
