//! The cluster that this machine is a node of, and what that cluster says about the node.

use camino::{Utf8Path, Utf8PathBuf};

use super::{State, StateError};
use crate::{
    host::ExecError,
    tools::kubernetes::{
        kubeconfig::{self, Cluster},
        kubectl::{self, Kubectl, Node},
    },
};

/// The host name, as the kernel has it.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// This machine is a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The kubelet's kubeconfig.
    pub kubeconfig: Utf8PathBuf,
    /// The address of the API server.
    pub server: String,
    /// `sha256:` and the digest of the certificate authority's public key; `None` if it is not known.
    pub ca_pin: Option<String>,
}

/// What the cluster answers about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// The node.
    Node(Box<Node>),
    /// It does not know it.
    Unknown,
    /// It cannot be asked: why.
    Silent(String),
}

impl State {
    /// The cluster of this machine's kubelet; `None` if it has joined none.
    ///
    /// # Errors
    /// When a kubeconfig cannot be read, or is none.
    pub fn membership(&self) -> Result<Option<Membership>, StateError> {
        let files = &self.host.files;
        for path in kubeconfig::OF_KUBELETS.map(Utf8Path::new) {
            let Some(text) = files.read_text(path)? else {
                continue;
            };
            let unexpected = |why: String| StateError::Unexpected {
                what: format!("`{path}`"),
                why,
            };
            let Cluster {
                server,
                ca_pin,
                ca_file,
                certificate_file,
            } = kubeconfig::parse(&text).map_err(unexpected)?;
            // kubeadm writes it before the cluster has given the kubelet a certificate.
            if let Some(file) = certificate_file
                && !files.exists(Utf8Path::new(&file))?
            {
                continue;
            }
            let ca_pin = match (ca_pin, ca_file) {
                (Some(pin), _) => Some(pin),
                (None, Some(file)) => (files.read_text(Utf8Path::new(&file))?)
                    .and_then(|pem| kubeconfig::pin_of(&pem)),
                (None, None) => None,
            };
            return Ok(Some(Membership {
                kubeconfig: path.to_owned(),
                server,
                ca_pin,
            }));
        }
        Ok(None)
    }

    /// The name under which this machine would be a node: its host name in small letters, as kubeadm and the kubelet
    /// make it. Source: kubernetes/kubernetes, `staging/src/k8s.io/component-helpers/node/util/hostname.go`.
    ///
    /// # Errors
    /// When the host name cannot be read.
    pub fn host_name(&self) -> Result<Option<String>, StateError> {
        let text = self.host.files.read_text(Utf8Path::new(HOST_NAME))?;
        let name = text.unwrap_or_default().trim().to_ascii_lowercase();
        Ok((!name.is_empty()).then_some(name))
    }

    /// The kubectl of this machine.
    ///
    /// # Errors
    /// When the machine's files cannot be read.
    pub fn kubectl(&self) -> Result<Option<Kubectl>, StateError> {
        for one in kubectl::PROGRAMS {
            if self.host.files.exists(Utf8Path::new(one.program))? {
                return Ok(Some(one));
            }
        }
        Ok(None)
    }

    /// What the cluster says about a node, asked with the credentials of the kubelet and no more.
    ///
    /// # Errors
    /// When nothing may be executed, or the answer cannot be understood.
    pub async fn registered(
        &self,
        membership: &Membership,
        node: &str,
    ) -> Result<Registered, StateError> {
        let Some(kubectl) = self.kubectl()? else {
            return Ok(Registered::Silent(
                "there is no kubectl on this machine".to_owned(),
            ));
        };
        let query = kubectl.node(&membership.kubeconfig, node);
        let output = match self.host.reader().query(&query).await {
            Ok(output) => output,
            Err(ExecError::Deadline { .. }) => {
                return Ok(Registered::Silent(format!(
                    "{} does not answer",
                    membership.server
                )));
            }
            Err(error) => return Err(error.into()),
        };
        if output.ok() {
            let node =
                kubectl::parse_node(&output.stdout).map_err(|why| StateError::Unexpected {
                    what: format!("what `{}` prints", query.cmd().line()),
                    why,
                })?;
            return Ok(Registered::Node(Box::new(node)));
        }
        if kubectl::is_not_found(&output.stderr) {
            return Ok(Registered::Unknown);
        }
        let said = output.stderr.lines().last().unwrap_or_default().trim();
        Ok(Registered::Silent(said.to_owned()))
    }
}
