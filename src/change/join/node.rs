//! The node in its cluster: it becomes Ready, gets its labels, loses the startup taints, and is deleted when the
//! machine leaves.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::DRAIN;
use crate::{
    change::{Applier, Problem, Reverted, Sink, Undo},
    error::one_line,
    host::Cmd,
    model::kubernetes::{Labels, NodeName, Taint},
    tools::kubernetes::{
        kubeconfig,
        kubectl::{self, Kubectl, MACHINE_IDS, Node, Registered},
        membership::Membership,
    },
};

/// What a node needs before pods may come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Admission {
    /// The node's name.
    pub node: NodeName,
    /// Labels that it lacks, or that have other values.
    pub labels: Labels,
    /// The startup taints, which go at last.
    pub startup_taints: Vec<Taint>,
    /// A kubeconfig that may remove them.
    pub access: Option<Utf8PathBuf>,
    /// Seconds until the node must be Ready.
    pub timeout_seconds: u64,
}

/// Gives a node the labels that it had; its cluster may not be reached any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreLabels {
    /// The node's name.
    pub node: NodeName,
    /// The id of the machine whose node it is, as for [`LeaveCluster`](super::LeaveCluster).
    pub machine: Option<Box<str>>,
    /// The labels that the change sets, with their values before.
    pub labels: BTreeMap<String, Option<String>>,
    /// The values that it sets: one with another value by then is somebody else's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ours: BTreeMap<String, String>,
}

/// What stands before the reason why a cluster says nothing.
const SILENT: &str = "the cluster cannot be asked: ";

impl Admission {
    fn bound(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    fn not_ready(&self, why: String) -> Problem {
        let (node, seconds) = (&self.node, self.timeout_seconds);
        Problem::new(
            "node-not-ready",
            format!("wait until node `{node}` is Ready: after {seconds} s it is not ({why})"),
        )
        .advice(
            "a network plugin that is missing in the cluster is the most frequent reason; `kubectl describe node` \
             tells more. The next `install` waits again",
        )
    }

    /// One line in the imperative.
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
    ) -> Result<Undo, Problem> {
        if admission.labels.is_empty() {
            return Ok(Undo::nothing("a node that is Ready is nothing to undo"));
        }
        // A node that has just joined may not be there yet.
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

    /// What the cluster says about the node. An API server that is away for a moment is waited for; what it says after the
    /// bound is returned, whatever it is.
    async fn answer_about(&self, name: &NodeName, bound: Duration) -> Result<Registered, Problem> {
        let what = format!("ask the cluster about node `{name}`");
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

    /// Has the cluster change the node. Where its API server goes away meanwhile, once more as soon as it is back.
    async fn tell_cluster(
        &self,
        admission: &Admission,
        what: &str,
        cmd: &Cmd,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        let Err(error) = self.tool(what, cmd, sink).await else {
            return Ok(());
        };
        if !matches!(self.node(&admission.node).await, Ok(Registered::Silent(_))) {
            return Err(error);
        }
        sink.line(&format!(
            "{}; once more when the cluster answers",
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
    ) -> Result<(), Problem> {
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
                Registered::Unknown => "the cluster does not know it".to_owned(),
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

    /// The node as its own kubelet may see it.
    pub(in crate::change) async fn node(&self, name: &NodeName) -> Result<Registered, Problem> {
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let asked = kubectl::registered(self.host.reader(), kubectl, &kubeconfig, name).await;
        asked
            .map_err(|source| Problem::tool(format!("ask the cluster about node `{name}`"), source))
    }

    /// kubectl, and the kubeconfig of the kubelet.
    fn own_access(&self, name: &NodeName) -> Result<(Kubectl, Utf8PathBuf), Problem> {
        let kubectl = kubectl::find(&*self.host.files)?.ok_or_else(|| {
            let what =
                format!("ask the cluster about node `{name}`: there is no kubectl on this machine");
            Problem::new("no-kubectl", what).advice("install kubectl, then run the command again")
        })?;
        let joined = self.joined_cluster()?;
        let joined = joined.ok_or_else(|| unasked(name, "the machine is no node".to_owned()))?;
        Ok((kubectl, joined.kubeconfig))
    }

    pub(in crate::change) async fn restore_node(
        &self,
        undo: &RestoreLabels,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        let (name, labels) = (&undo.node, &undo.labels);
        let nothing = |why: &str| Ok(Reverted::nothing(why));
        if self.joined_cluster()?.is_none() || kubectl::find(&*self.host.files)?.is_none() {
            return nothing("the machine is no node any more");
        }
        let node = match self.node(name).await? {
            Registered::Node(node) => node,
            Registered::Unknown => return nothing("the cluster does not know the node any more"),
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
        // One that somebody else has given another value since is theirs.
        let before: Vec<(&str, Option<&str>)> = (labels.iter())
            .filter(|(key, before)| {
                let now = node.labels.get(*key);
                now != before.as_ref() && undo.ours.get(*key).is_none_or(|ours| now == Some(ours))
            })
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect();
        if before.is_empty() {
            return nothing("none of its labels has the value of this program");
        }
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let cmd = kubectl.label(&kubeconfig, name, before.into_iter());
        let what = format!("give node `{name}` its former labels");
        self.tool(&what, &cmd, sink).await?;
        Ok(Reverted::done(what))
    }

    /// Drains and deletes the node where a kubeconfig allows it. A cluster that cannot be reached does not keep the
    /// machine from leaving; pods that may not be evicted do. A name alone is no reason to delete a node: this machine may be
    /// the clone of that one, and the kubeconfig may lead to another cluster by now.
    pub(super) async fn delete_node(
        &self,
        name: &NodeName,
        access: Option<&Utf8Path>,
        joined: &Membership,
        sink: &dyn Sink,
    ) -> Result<Deleted, Problem> {
        let left = |why: String| {
            Ok(Deleted::Ended(Reverted::left(
                format!("the node `{name}` in the cluster (`kubectl delete node {name}`)"),
                why,
            )))
        };
        let Some(access) = access else {
            return left("no `cluster.kubeconfig-file` was given that may delete it".to_owned());
        };
        if !self.host.files.exists(access)? {
            return left(format!("`{access}` is gone"));
        }
        if let Err(error) = self.refuse_unusable(access) {
            return left(one_line(&error));
        }
        if let Some(why) = self.leads_elsewhere(access, joined)? {
            return left(why);
        }
        let Some(kubectl) = kubectl::find(&*self.host.files)? else {
            return left("there is no kubectl on this machine".to_owned());
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
                    "the cluster does not know the node `{name}` any more"
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
                "its pods could not be moved elsewhere, so they go on here: {error}"
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
    /// Why a kubeconfig leads to another cluster than the machine has joined; `None` if it does not, or that cannot be told.
    fn leads_elsewhere(
        &self,
        access: &Utf8Path,
        joined: &Membership,
    ) -> Result<Option<String>, Problem> {
        let Some(text) = self.host.files.read_text(access)? else {
            return Ok(Some(format!("`{access}` is missing")));
        };
        let theirs = match kubeconfig::parse(&text) {
            Ok(theirs) => theirs,
            Err(why) => return Ok(Some(format!("`{access}` is no kubeconfig: {why}"))),
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
                "`{access}` leads to {}, whose certificate authority is not that of the cluster that this machine has joined",
                theirs.server
            )
        }))
    }

    /// Why a node is, or may be, that of another machine; `None` if it is of this one. Each kubelet tells an id.
    fn is_another(&self, node: &Node) -> Result<Option<String>, Problem> {
        let Some(theirs) = &node.system_uuid else {
            let why = "the cluster does not know the id of its machine, which may be another one";
            return Ok(Some(why.to_owned()));
        };
        Ok(match self.machine_id()? {
            Some((path, own)) => (!own.eq_ignore_ascii_case(theirs)).then(|| {
                format!("its machine has the id {theirs}, and this one has {own} (`{path}`)")
            }),
            None => Some(format!(
                "its machine has the id {theirs}, and this one has none of {}",
                MACHINE_IDS.join(", ")
            )),
        })
    }
}

/// How the deletion of a node ended.
pub(super) enum Deleted {
    /// The machine may leave.
    Ended(Reverted),
    /// It must stay: why.
    Refused(String),
}

fn unasked(name: &NodeName, why: String) -> Problem {
    Problem::unreadable(format!("ask the cluster about node `{name}`"), why)
}
