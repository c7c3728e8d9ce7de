//! The node in its cluster: it becomes Ready, gets its labels, loses the startup taint, and is deleted when the
//! machine leaves.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DRAIN;
use crate::{
    change::{Applier, ChangeError, JoinError, Reverted, Sink, Undo},
    host::{Cmd, ExecError},
    model::kubernetes::{Labels, Taint},
    tools::kubernetes::kubectl::{self, Kubectl, Node},
};

/// What a node needs before pods may come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Admission {
    /// The node's name.
    pub node: String,
    /// Labels that it lacks, or that have other values.
    pub labels: Labels,
    /// The startup taint, which goes at last.
    pub startup_taint: Option<Taint>,
    /// A kubeconfig that may remove it.
    #[schemars(with = "Option<String>")]
    pub access: Option<Utf8PathBuf>,
    /// Seconds until the node must be Ready.
    pub ready_timeout_seconds: u64,
}

impl Admission {
    /// One line in the imperative.
    pub(in crate::change) fn summary(&self) -> String {
        let mut parts = vec![format!("wait until node `{}` is Ready", self.node)];
        if !self.labels.is_empty() {
            let keys: Vec<&str> = self.labels.keys().map(String::as_str).collect();
            parts.push(format!("label it with {}", keys.join(", ")));
        }
        if let Some(taint) = &self.startup_taint {
            parts.push(format!("remove the taint {}", taint.key));
        }
        parts.join(", ")
    }
}

impl Applier {
    pub(in crate::change) async fn capture_admission(
        &self,
        admission: &Admission,
    ) -> Result<Undo, ChangeError> {
        if admission.labels.is_empty() {
            return Ok(Undo::Nothing {
                why: "a node that is Ready is nothing to undo".to_owned(),
            });
        }
        let now = self.node(&admission.node).await?;
        let before = |key: &String| now.as_ref().and_then(|node| node.labels.get(key).cloned());
        Ok(Undo::RestoreLabels {
            node: admission.node.clone(),
            labels: (admission.labels.keys())
                .map(|key| (key.clone(), before(key)))
                .collect(),
        })
    }

    pub(in crate::change) async fn admit_node(
        &self,
        admission: &Admission,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let name = &admission.node;
        let what = format!("wait until node `{name}` is Ready");
        let bound = Duration::from_secs(admission.ready_timeout_seconds);
        let ready = self
            .awaited(&what, bound, || async {
                let node = self.node(name).await?;
                Ok(node.filter(|node| node.ready))
            })
            .await?;
        if ready.is_none() {
            let why = match self.node(name).await? {
                None => "the cluster does not know it".to_owned(),
                Some(node) => node.why.unwrap_or_default(),
            };
            return Err(JoinError::NotReady {
                node: name.clone(),
                seconds: admission.ready_timeout_seconds,
                why,
            }
            .into());
        }
        if !admission.labels.is_empty() {
            let labels = admission.labels.iter();
            let labels = labels.map(|(key, value)| (key.as_str(), Some(value.as_str())));
            let (kubectl, kubeconfig) = self.own_access(name)?;
            let cmd = kubectl.label(kubeconfig, name, labels);
            self.tool(&format!("label node `{name}`"), &cmd, sink)
                .await?;
        }
        if let Some(taint) = &admission.startup_taint
            && let Some(access) = &admission.access
        {
            let (kubectl, _) = self.own_access(name)?;
            let cmd = kubectl.untaint(access, name, taint);
            self.tool(
                &format!("remove the startup taint of node `{name}`"),
                &cmd,
                sink,
            )
            .await?;
        }
        Ok(())
    }

    /// The node as its own kubelet may see it; `None` if the cluster does not know it, or cannot be asked now.
    async fn node(&self, name: &str) -> Result<Option<Node>, ChangeError> {
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let query = kubectl.node(kubeconfig, name);
        let what = || format!("ask the cluster about node `{name}`");
        let output = match self.host.reader().query(&query).await {
            Ok(output) => output,
            // The API server may be away for a moment.
            Err(ExecError::Deadline { .. }) => return Ok(None),
            Err(source) => {
                return Err(ChangeError::Tool {
                    what: what(),
                    source,
                });
            }
        };
        if !output.ok() {
            return Ok(None);
        }
        let node = kubectl::parse_node(&output.stdout)
            .map_err(|why| ChangeError::Unreadable { what: what(), why })?;
        Ok(Some(node))
    }

    /// kubectl, and the kubeconfig of the kubelet.
    fn own_access(&self, name: &str) -> Result<(Kubectl, &'static Utf8Path), ChangeError> {
        let kubectl = self.kubectl()?.ok_or_else(|| JoinError::NoKubectl {
            node: name.to_owned(),
        })?;
        let kubeconfig = self
            .kubelet_kubeconfig()?
            .ok_or_else(|| ChangeError::Unreadable {
                what: format!("ask the cluster about node `{name}`"),
                why: "the kubelet has no kubeconfig".to_owned(),
            })?;
        Ok((kubectl, kubeconfig))
    }

    pub(in crate::change) async fn restore_node(
        &self,
        name: &str,
        labels: &BTreeMap<String, Option<String>>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let nothing = |why: &str| {
            Ok(Reverted::Nothing {
                why: why.to_owned(),
            })
        };
        if self.kubelet_kubeconfig()?.is_none() || self.kubectl()?.is_none() {
            return nothing("the machine is no node any more");
        }
        if self.node(name).await?.is_none() {
            return nothing("the cluster does not know the node, or cannot be asked");
        }
        let (kubectl, kubeconfig) = self.own_access(name)?;
        let before = labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_deref()));
        let cmd = kubectl.label(kubeconfig, name, before);
        let what = format!("give node `{name}` its former labels");
        self.tool(&what, &cmd, sink).await?;
        Ok(Reverted::Done { what })
    }

    /// Drains and deletes the node where a kubeconfig allows it. A cluster that refuses, or that is gone, does not
    /// keep the machine from leaving.
    pub(super) async fn delete_node(
        &self,
        name: &str,
        access: Option<&Utf8Path>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let left = |why: String| {
            Ok(Reverted::Left {
                what: format!("the node `{name}` in the cluster (`kubectl delete node {name}`)"),
                why,
            })
        };
        let Some(access) = access else {
            return left("no `cluster.kubeconfig-file` was given that may delete it".to_owned());
        };
        if !self.host.files.exists(access)? {
            return left(format!("`{access}` is gone"));
        }
        let Some(kubectl) = self.kubectl()? else {
            return left("there is no kubectl on this machine".to_owned());
        };
        let commands: [(&str, Cmd); 2] = [
            ("drain", kubectl.drain(access, name, DRAIN)),
            ("delete", kubectl.delete(access, name)),
        ];
        for (verb, cmd) in commands {
            let ran = self.exec(&cmd, sink).await;
            match ran.and_then(|output| output.success(&cmd)) {
                Ok(_) => {}
                // A node that somebody has deleted has no pods.
                Err(ExecError::Failed { tail, .. }) if kubectl::is_not_found(&tail) => {}
                Err(error) => return left(format!("`kubectl {verb}` failed: {error}")),
            }
        }
        Ok(Reverted::Done {
            what: format!("the node `{name}` is drained and deleted"),
        })
    }
}
